"""The record of a definition file. With it, a build knows the kernels without executing the file again.

A worker makes it, and it passes as JSON (``core/converter.py``) to the build, which keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from ..core.converter import from_json, that
from ..core.dependencies import is_portable
from ..core.errors import shown
from ..core.records import is_file_name
from ..core.request import ASIDE
from ..core.surroundings import OUTSIDE
from .configs import Config, ConfigValue, Variant, variant_of
from .kernel import Kernel
from .kernel_options import KernelOptions
from .own_sources import EVERY, OwnSource
from .space import Choice, Sizes, targets_with_points, variants_of

FileName = Annotated[str, that("a name of a file", is_file_name)]
"""Folders get these names, whatever a definition has done to its objects after they were checked."""

KernelName = Annotated[str, that("a name of a kernel", lambda name: bool(re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII)))]


@dataclass(frozen=True)
class KernelRecord:
    """One kernel of a definition file.

    Arguments:
        name: the kernel's name.
        doc: the definition's docstring, dedented.
        location: ``path:line`` of the definition, relative to the project root.
        configs: the configs in order; the first is the default.
        slugs: the variants' slugs, in the order of the configs.
        options: what its decorator was given; the targets are those for which it has variants.
        reference: the names in the configs that the reference has parameters of; None: there is no reference.
        takes_target: whether the definition depends on the target.
        backward: name of the kernel that computes its gradients, or None.
        choices: with a space of tuning parameters, the configs that callers can see and the points of each; the configs
            are those of all candidates then.
        sizes: what is measured for the first config, if the definition says so.
        has_cost: whether the definition estimates what candidates take.
        remark: what a run says of it, or refuses in strict mode.
        sources: the sources of each variant, by its slug, or with the key ``EVERY``, if the definition makes some or
            they depend on the config; see :func:`define.own_sources.listed_sources`.
    """

    name: KernelName
    doc: str
    location: str = field(metadata=ASIDE)
    configs: tuple[Mapping[str, ConfigValue], ...]
    slugs: tuple[FileName, ...]
    options: KernelOptions
    reference: tuple[str, ...] | None
    takes_target: bool
    backward: str | None = None
    choices: tuple[Choice, ...] = ()
    sizes: Sizes = field(default_factory=dict, metadata=ASIDE)
    has_cost: bool = False
    remark: str = field(default="", metadata=ASIDE)
    sources: Mapping[str, tuple[OwnSource, ...]] = field(default_factory=dict)

    def sources_of(self, slug: str) -> tuple[OwnSource, ...] | None:
        """The sources with host code of their own of a variant; None: the definition does not list its config."""
        if not self.sources:
            return tuple(map(OwnSource, self.options.sources))
        return self.sources.get(slug, self.sources.get(EVERY))

    @property
    def compiled_sources(self) -> set[OwnSource]:
        """The sources with host code of their own of all variants, without headers."""
        listed = (self.sources_of(slug) or () for slug in self.slugs)
        return {source for sources in listed for source in sources if source.is_compiled}

    @property
    def has_reference(self) -> bool:
        """Whether the kernel can be checked."""
        return self.reference is not None

    @property
    def listed(self) -> Iterator[tuple[Mapping[str, Any], str]]:
        """Config and slug of each variant, in order."""
        return zip(self.configs, self.slugs, strict=True)

    def variant_of(self, config: Mapping[str, Any]) -> Variant:
        """The variant of a config, be it listed or not; see :func:`define.configs.variant_of`."""
        return variant_of(self.name, self.configs, config)

    def with_options(self, **changes: Any) -> KernelRecord:
        """The record with other values of some options."""
        return replace(self, options=replace(self.options, **changes))


@dataclass(frozen=True)
class DefinitionRecord:
    """One definition file. What decides in it is what a kernel of it depends on, whatever other kernels there are.

    Arguments:
        file: path relative to the project root, with forward slashes.
        dependencies: the files that decide what the definitions are, the file itself included, in sorted order: name
            (see ``core.dependencies``) -> SHA-256 of the content that was executed.
        kernels: the kernels in the order of their definition.
        later: what single requests turned out to read besides, such as a function's own imports: name of the request ->
            path -> SHA-256 of its present content.
        recorded: the files that ``recorded()`` has configs from: path -> SHA-256. Which configs there are depends on
            them, and what a variant is lowered to does not.
        surroundings: what it depends on besides files of the project: name (see ``core.surroundings``) -> digest.
        shared: whether this is all that it depends on, so that other trees can tell whether it is the same there.
        lowered: SHA-256 of the file without the functions that only checks call; empty: it is no file.
        untracked: what it did that no digest can tell, with the place.
    """

    file: str
    dependencies: Mapping[str, str]
    kernels: tuple[KernelRecord, ...] = field(metadata=ASIDE)
    later: Mapping[str, Mapping[str, str]] = field(default_factory=dict, metadata=ASIDE)
    recorded: Mapping[str, str] = field(default_factory=dict, metadata=ASIDE)
    surroundings: Mapping[str, str] = field(default_factory=dict)
    shared: bool = field(default=False, metadata=ASIDE)
    untracked: tuple[str, ...] = field(default=(), metadata=ASIDE)
    lowered: str = field(default="", metadata=ASIDE)

    @property
    def unnamed(self) -> list[str]:
        """The files that it depends on and that have no name on other machines."""
        return [name for name in self.dependencies if not is_portable(name)]

    @property
    def known(self) -> list[tuple[str, str]]:
        """All that it depends on, with the digests."""
        return [*self.dependencies.items(), *self.recorded.items(), *self.surroundings.items()]

    def covers(self, name: str) -> bool:
        """Whether the record names something as a dependency of the definition file itself."""
        return name in self.dependencies or name in self.surroundings or (name == OUTSIDE and not self.shared)


def record_of(
    kernel: Kernel,
    targets: Sequence[str],
    location: str,
    sizes_of: Callable[[Config], Mapping[str, tuple[int, ...]]],
) -> KernelRecord:
    """The record of a kernel.

    Arguments:
        targets: those that its front end has, or that the kernel is restricted to.
        location: ``path:line`` of the definition, as the record has it.
        sizes_of: gives the sizes that are measured for a caller's config.
    """
    choices = tuple(replace(choice, sizes=sizes_of(choice.config)) for choice in kernel.choices)
    return KernelRecord(
        kernel.name,
        kernel.doc,
        location,
        configs=kernel.configs,
        slugs=tuple(variant.slug for variant in kernel.variants),
        options=replace(kernel.options, targets=targets_with_points(kernel.choices, targets)),
        reference=kernel.reference_takes,
        takes_target=kernel.takes_target,
        backward=None if kernel.backward_kernel is None else kernel.backward_kernel.name,
        choices=choices,
        sizes=choices[0].sizes if choices else sizes_of(kernel.configs[0]),
        has_cost=kernel.cost_function is not None,
        remark=kernel.remark,
        sources=kernel.sources,
    )


def definition_record(value: Any) -> DefinitionRecord:
    """The record in JSON data. Raises ValueError for data of another form."""
    record = from_json(DefinitionRecord, value)
    if problem := misfit(record):
        raise ValueError(problem)
    return record


def misfit(record: DefinitionRecord) -> str:
    """Which parts of a record of a file do not fit together; empty: none."""
    if record.file not in record.dependencies:
        return "a definition that does not depend on its own file"
    for kernel in record.kernels:
        slugs = set(kernel.slugs)
        if not kernel.configs or len(kernel.configs) != len(kernel.slugs) or len(slugs) < len(kernel.slugs):
            return f"the configs of {shown(kernel.name)} have not one slug each"
        if kernel.choices and variants_of(kernel.choices) != list(kernel.configs):
            return f"the configs of {shown(kernel.name)} are not those of its choices"
    return ""
