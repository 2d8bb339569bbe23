"""From a definition and a config to the job that compiles it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import frontends
from ..core.arch import CPU_LEVELS, FAMILY_OF, TARGETS, arch_of_device
from ..core.dependencies import KIND, whole_name
from ..core.errors import DefinitionError, EditedError, SettingsError, Where
from ..define.configs import require_values, variant_of
from ..define.divisible import is_class
from ..define.pass_configs import checked_pass_configs
from ..define.settings import Settings
from ..define.space import Choice, Point, callers_part, targets_with_points
from ..define.unit import alike
from ..runtime.arch import suitable
from .build import Job, MakeContext
from .machine import REMEMBERED, Machine, machine
from .options import ON, Options, effective
from .session import Session

if TYPE_CHECKING:
    from ..define.record import DefinitionRecord, KernelRecord
    from ..stages.selection import KernelSelection

DIFFERENTIATING = ("torch", "jax")
"""Backends that call the kernel of the gradients."""


@dataclass(frozen=True)
class Origin:
    """What a compile needs to know of a definition.

    Arguments:
        definition: the record of its definition file.
        record: the kernel's own.
        settings: what decides the rest.
        session: what runs the stages.
        context: gives for a selection what makes the context of its stages, and the digests of its programs, if any.
    """

    definition: DefinitionRecord
    record: KernelRecord
    settings: Settings
    session: Session
    context: Callable[[KernelSelection], tuple[MakeContext, Mapping[str, str]]]

    @property
    def where(self) -> Where:
        """The place for error messages."""
        return Where(self.record.name, location=self.record.location)


def job_of(origin: Origin, config: Mapping[str, Any], options: Options, tuned: bool = False) -> Job:
    """The job that compiles one variant, for the archs and the backend that are asked for.

    For a kernel with a space it compiles the declared variants, which may differ from target to target.

    Arguments:
        config: as for ``Compilable.compile``.
        tuned: whether the variants that tuning tables choose are compiled with it.

    Raises:
        KernelwrightError: the options, the settings, the kernel and the machine do not fit each other.
    """
    record = _with_sources(origin, narrowed(origin.record, config))
    selection = _selected(origin, record, options, tuned)
    backward = _backward_of(origin, selection, options)
    if backward is None:
        selection = replace(selection, record=replace(selection.record, backward=None))
    settings = replace(
        origin.settings,
        targets=tuple(selection.archs),
        archs=tuple(arch for archs in selection.archs.values() for arch in archs),
        backends=selection.backends,
        split="none",
        glibc="",
    )
    chosen = [selection, *([backward] if backward else [])]
    made = {each.record.name: origin.context(each) for each in chosen}
    contexts = {name: context for name, (context, _) in made.items()}
    identity: dict[str, Any] = {f"alike in {each.record.name}": alike_in_c(origin.definition, each) for each in chosen}
    for name, (_, digests) in made.items():
        identity |= {f"{name} {unit}": digest for unit, digest in digests.items()}
    jit = effective(os.environ, options).jit or ON
    return Job(
        origin.definition, selection, settings, origin.session, backward, contexts=contexts, identity=identity, jit=jit
    )


def _with_sources(origin: Origin, record: KernelRecord) -> KernelRecord:
    """A kernel with one config, and the sources that its definition makes for it, if that does not list the config.

    Raises:
        DefinitionError: what makes the sources has read more for it than for the configs that are listed: nobody would
            notice an edit of that.
    """
    is_known = len(record.slugs) > 1 or record.sources_of(record.slugs[0]) is not None
    if is_known or not origin.definition.dependencies:
        return record
    # Imported here, because few kernels need it.
    from ..processes.protocol import SourcesRequest

    slug, config, known = record.slugs[0], record.configs[0], origin.definition
    result = origin.session.pool.call(SourcesRequest(known.file, record.name, slug, config))
    where = replace(origin.where, variant=slug, stage="lower")
    if any(known.dependencies.get(name, digest) != digest for name, digest in result.dependencies.items()):
        raise EditedError(f"{known.file} was edited meanwhile", where, "try again")
    itself = whole_name(known.file)  # a job depends on all of it in any case
    more = [name for name in result.dependencies if not known.covers(name) and name != itself]
    more += [what for what in result.untracked if what not in known.untracked]
    if more:
        message = (
            f"what makes its sources uses {more[0].removeprefix(KIND)} for a config that the definition does not list"
        )
        raise DefinitionError(message, where, "add the config to configs, or read that at the top of the file")
    return replace(record, sources={**record.sources, slug: result.sources})


def alike_in_c(definition: DefinitionRecord, selection: KernelSelection) -> list[list[str]]:
    """For each variant, the slugs of its kernel that are one identifier in C with its own."""
    listed = {slug for record in definition.kernels if record.name == selection.record.name for slug in record.slugs}
    return [sorted(alike(slug, {*listed, slug})) for slug in selection.record.slugs]


def _selected(origin: Origin, record: KernelRecord, options: Options, tuned: bool = False) -> KernelSelection:
    """What is compiled of a kernel: for one backend, and without what a build says about the others."""
    if pass_configs := effective(os.environ, options).pass_configs:
        merged = {**record.options.pass_configs, **pass_configs}
        record = record.with_options(pass_configs=checked_pass_configs(merged, origin.where))
    selection = select_for(record, origin.settings, machine(origin.session.state / REMEMBERED), options.given)
    selection = replace(selection, backends=selection.backends[:1], left_out=(), unused=())
    return _chosen(origin, selection, tuned) if record.choices else selection


def _chosen(origin: Origin, selection: KernelSelection, tuned: bool) -> KernelSelection:
    """The variants of a kernel with a space that are compiled. Requests that mean the same give the same selection."""
    from ..stages.tuned import choose, note_of, read_tables

    record = next(known for known in origin.definition.kernels if known.name == selection.record.name)
    names = tables_of(origin, record) if tuned else ()
    found = choose(selection, read_tables(origin.session.root, names).tables, record, preferred=tuned)
    for stale in found.stale:
        sys.stderr.write(f"{note_of(stale)}\n")
    chosen, slugs = found.selection, found.selection.record.slugs
    return replace(
        chosen,
        record=replace(chosen.record, choices=(), options=record.options),
        only={slug: only for slug, only in chosen.only.items() if only != chosen.archs},
        declared=chosen.declared if len(slugs) > 1 else None,
    )


def tables_of(origin: Origin, record: KernelRecord) -> tuple[str, ...]:
    """The files of the tuning tables of a kernel; a kernel that is in no file of a project has none."""
    from ..define.tables import tables_in

    if not record.choices or not origin.definition.dependencies:
        return ()
    return tables_in(origin.session.root, origin.settings.tuning).get(record.name, ())


def _backward_of(origin: Origin, selection: KernelSelection, options: Options) -> KernelSelection | None:
    """The kernel of the gradients, if the backend calls that."""
    name = selection.record.backward
    if name is None or selection.backends[0] not in DIFFERENTIATING:
        return None
    record = next(record for record in origin.definition.kernels if record.name == name)
    seen = callers_part(origin.record.choices, selection.record.configs[0])
    return _selected(origin, narrowed(record, seen), options)


def narrowed(record: KernelRecord, config: Mapping[str, Any]) -> KernelRecord:
    """A kernel with one config only; with a space, with one choice only.

    Arguments:
        config: values of parameters; see :meth:`Compilable.compile`.

    Raises:
        DefinitionError: it is no config.
    """
    require_values(config, Where(record.name, stage="lower", location=record.location))
    # The config itself goes first, then those that have more: one without classes of sizes is for sizes of any kind.
    for choice in sorted(record.choices, key=lambda choice: _surplus(choice.config, config)):
        if _begins_like(choice.config, config):
            targets = targets_with_points((choice,), record.options.targets or TARGETS)
            return replace(record, choices=(choice,)).with_options(targets=targets)
    for known, slug in sorted(record.listed, key=lambda pair: _surplus(pair[0], config)):
        if _begins_like(known, config):
            return _with_one(record, known, slug)
    variant = variant_of(record.name, record.configs, config)
    return _with_one(record, variant.config, variant.slug)


def _with_one(record: KernelRecord, config: Mapping[str, Any], slug: str) -> KernelRecord:
    """A kernel with one variant, for the targets whose space has it, or else for all."""
    one = replace(record, configs=(config,), slugs=(slug,))
    if not record.choices:
        return one
    targets = [t for choice in record.choices for t in choice.points if config in choice.candidates(t)]
    points: dict[str, tuple[Point, ...]] = dict.fromkeys(targets or TARGETS, ({},))
    allowed = tuple(target for target in record.options.targets or TARGETS if target in points)
    return replace(one, choices=(Choice(config, points),)).with_options(targets=allowed)


def _begins_like(known: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a known config has all values of another one."""
    return all(key in known and _same(known[key], value) for key, value in config.items())


def _surplus(known: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[bool, int]:
    """What a known config has that was not asked for: whether anything, and how many classes of sizes."""
    return len(known) != len(config), sum(is_class(key) for key in known.keys() - config.keys())


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)  # 0.0 and -0.0 are not the same


def select_for(record: KernelRecord, settings: Settings, machine: Machine, given: frozenset[str]) -> KernelSelection:
    """What is compiled of a kernel.

    All archs that were asked for are compiled. Otherwise those of the settings are that this machine's devices would
    run; the source is still made for all archs of the settings, so that it is the same as in a build.

    Arguments:
        machine: the devices.
        given: which of ``targets`` and ``archs`` somebody has named: in arguments or variables.

    Raises:
        DefinitionError: the kernel's decorator does not fit the settings.
        SettingsError: there is no device that the kernel could run on, and no arch was named.
    """
    from ..stages.selection import select

    if not frontends.of(record).on_demand:
        raise _needs_a_build(record)
    if "archs" in given:
        selection = select(record, settings)
        if not any(selection.archs.values()):
            raise _no_arch(record, settings)
        _require_one_family(selection)
        return selection
    allowed = record.options.targets or settings.targets
    targets = tuple(target for target in settings.targets if target in allowed)
    if not machine.cuda and "targets" not in given:
        targets = tuple(target for target in targets if target != "cuda")
    if not targets or (targets == ("cuda",) and not machine.cuda):
        raise _no_device(record)
    archs = (*_cpu(settings.archs_of("llvm"), machine), *_cuda(settings.archs_of("cuda"), machine))
    selection = select(record, replace(settings, targets=targets, archs=archs))
    own = selection.archs.get("cuda", ())
    compiled = tuple(dict.fromkeys(_best(own, number) for number in machine.cuda)) if own else None
    return replace(selection, compiled=compiled)


def _require_one_family(selection: KernelSelection) -> None:
    """Raise a SettingsError for archs of several families of CPUs: what is compiled on demand is one library."""
    record = selection.record
    families = dict.fromkeys(FAMILY_OF[arch] for arch in selection.archs.get("llvm", ()))
    if len(families) > 1:
        message = f"archs are for CPUs of the families {' and '.join(families)}, and what is compiled is one library"
        where = Where(record.name, stage="settings", location=record.location)
        raise SettingsError(message, where, "name archs of one family; scons builds for several")


def _cpu(archs: Sequence[str], machine: Machine) -> list[str]:
    """The best of the listed CPU archs that this machine runs, or its own."""
    family, level = FAMILY_OF[machine.cpu], CPU_LEVELS[machine.cpu]
    usable = [arch for arch in archs if FAMILY_OF[arch] == family and CPU_LEVELS[arch] <= level]
    return [max(usable, key=CPU_LEVELS.__getitem__) if usable else machine.cpu]


def _cuda(archs: Sequence[str], machine: Machine) -> tuple[str, ...]:
    """The listed CUDA archs; or those of this machine's GPUs, if one of these GPUs can run none of the listed."""
    if all(suitable(archs, number) for number in machine.cuda):
        return tuple(archs)
    return tuple(dict.fromkeys(arch_of_device(number) for number in machine.cuda))


def _best(archs: Sequence[str], capability: int) -> str:
    return next(iter(suitable(archs, capability)), archs[0])


def _no_arch(record: KernelRecord, settings: Settings) -> SettingsError:
    targets = " and ".join(record.options.targets or settings.targets)
    restricted = f", and only for {', '.join(record.options.archs)}" if record.options.archs else ""
    return SettingsError(
        f"{record.name} is not compiled for any of the archs that were asked for: {', '.join(settings.archs)}",
        Where(record.name, stage="settings", location=record.location),
        f"it is compiled for {targets}{restricted}: name such archs, or none",
    )


def _needs_a_build(record: KernelRecord) -> DefinitionError:
    where = Where(record.name, stage="settings", location=record.location)
    message = "its operators are registered with PyTorch once and for all, so it is not compiled for a call"
    return DefinitionError(message, where, "build the package with scons, and import that")


def _no_device(record: KernelRecord) -> SettingsError:
    return SettingsError(
        f"{record.name} is to be compiled for CUDA only, this machine has no CUDA device, and no arch was given",
        Where(record.name, stage="settings", location=record.location),
        "name the archs to compile for: using(archs=['sm_90a']), or KERNELWRIGHT_ARCHS=sm_90a",
    )
