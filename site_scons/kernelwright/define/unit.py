"""A unit: the part of a kernel that a front end lowers in one go."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.errors import Where
from ..core.request import ASIDE
from .debug import NO
from .outputs import Outputs, named_outputs
from .pass_configs import PassConfigs


@dataclass(frozen=True)
class Unit:
    """One variant for one target, which a front end lowers.

    Arguments:
        kernel: the kernel's name.
        slug: the variant's slug.
        symbol: the C symbol of its packed function (:func:`unit_symbol`).
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
        requires: comparisons of sizes that have to hold for a call, as the definition has them.
        python: the interpreter of the front end's own environment; empty: there is none.
        per_arch: whether each CUDA arch has a unit of its own.
        debug: what the front end itself makes for debuggers, one of :data:`.debug.LEVELS`.
    """

    kernel: str
    slug: str
    symbol: str
    config: Mapping[str, bool | int | float | str]
    outputs: Outputs
    target: str
    arch: str
    location: str = field(metadata=ASIDE)
    archs: tuple[str, ...] = ()
    pass_configs: PassConfigs = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)
    ir: str = field(default="", metadata=ASIDE)
    divisible: Mapping[str, Sequence[int]] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    python: str = field(default="", metadata=ASIDE)
    per_arch: bool = False
    debug: str = NO

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


def unit_symbol(kernel: str, slug: str, slugs: Iterable[str], target: str, arch: str, per_arch: bool) -> str:
    """The C symbol of a unit's packed function, unique among all units of the kernel.

    Arguments:
        slugs: those of all variants of the kernel; the other arguments are as of :class:`Unit`.
    """
    name = _identifier(slug)
    if len(alike(slug, {*slugs, slug})) > 1:
        name += "_" + hashlib.sha256(slug.encode()).hexdigest()[:8]
    place = "cuda" if target == "cuda" and not per_arch else _identifier(arch)
    return f"kw_{kernel}__{name}__{place}"


def alike(slug: str, slugs: Iterable[str]) -> list[str]:
    """The slugs that become the same C identifier as a slug, which may be one of them."""
    return [other for other in slugs if _identifier(other) == _identifier(slug)]


def _identifier(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", text)
