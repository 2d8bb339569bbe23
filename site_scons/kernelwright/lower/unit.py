"""A unit, which a front end is given, and the files that it makes of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.errors import Where
from ..define.kernel import Outputs, named_outputs
from ..define.pass_configs import PassConfigs

IR_INDEX = "index.txt"
"""The file that lists those with the IR after each pass."""


@dataclass(frozen=True)
class Unit:
    """What is to be lowered: one variant for one target.

    Arguments:
        kernel: the kernel's name.
        slug: the variant's slug.
        slugs: the slugs of all variants of the kernel.
        config: the variant's config.
        outputs: the arguments that the definition declares as outputs; a front end that knows their names puts those
            in place of positions (:meth:`named`).
        target: ``llvm`` or ``cuda``.
        arch: the arch that code is generated for.
        location: ``path:line`` of the definition, relative to the project root.
        archs: those that the front end itself makes device code for; empty where nvcc does that.
        pass_configs: configs of TVM's passes, which :meth:`FrontEnd.require_pass_configs` accepts.
        multiples: size symbol -> what its values are multiples of.
        ir: an existing, empty folder that receives the IR after each pass; empty: it is not written.
        divisible: size symbol -> the multiples that variants of the kernel are for, this one and others.
        python: the interpreter of the front end's own environment; empty: there is none.
        per_arch: whether each CUDA arch has a unit of its own.
    """

    kernel: str
    slug: str
    slugs: tuple[str, ...]
    config: Mapping[str, bool | int | float | str]
    outputs: Outputs
    target: str
    arch: str
    location: str
    archs: tuple[str, ...] = ()
    pass_configs: PassConfigs = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)
    ir: str = ""
    divisible: Mapping[str, Sequence[int]] = field(default_factory=dict)
    python: str = ""
    per_arch: bool = False

    def named(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """The names of the outputs, some of which may be given by their positions.

        Arguments:
            arguments: the names of all arguments, in the order of a call.

        Raises:
            DefinitionError: there is no argument at a position, or two entries are one argument.
        """
        return named_outputs(self.outputs, arguments, self.where)

    @property
    def where(self) -> Where:
        """The place that errors of this lowering belong to."""
        return Where(self.kernel, self.slug, "lower", self.location)


@dataclass(frozen=True)
class LoweredKernel:
    """What a front end makes of a unit.

    Arguments:
        files: file name -> content, for all of ``FrontEnd.files``. Equal inputs give equal bytes, in any process,
            folder and order.
        schedule: what scheduled the function: the name of a rule, or ``as written``.
        read: paths of the files that another process used or looked for -> the digest of what it used; empty: there is
            none. A path with a slash at the end is that of a folder, and has no digest. Those of the project are
            dependencies.
    """

    files: Mapping[str, bytes]
    schedule: str
    read: Mapping[str, str | None] = field(default_factory=dict)


def unit_symbol(unit: Unit) -> str:
    """The C symbol of a unit's packed function, unique among all units of the kernel."""
    name = _identifier(unit.slug)
    if len(alike(unit.slug, unit.slugs)) > 1:
        name += "_" + hashlib.sha256(unit.slug.encode()).hexdigest()[:8]
    place = "cuda" if unit.target == "cuda" and not unit.per_arch else _identifier(unit.arch)
    return f"kw_{unit.kernel}__{name}__{place}"


def alike(slug: str, slugs: Iterable[str]) -> list[str]:
    """Those slugs that are one identifier in C with a slug, which may be one of them."""
    return [other for other in slugs if _identifier(other) == _identifier(slug)]


def _identifier(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", text)
