"""Front ends: each turns what a definition returns into a :class:`LoweredKernel`. They run inside workers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import Where


@dataclass(frozen=True)
class Unit:
    """What is to be lowered: one variant for one target.

    Arguments:
        kernel: the kernel's name.
        slug: the variant's slug.
        slugs: the slugs of all variants of the kernel.
        config: the variant's config.
        outputs: the arguments that the definition declares as outputs.
        target: ``llvm`` or ``cuda``.
        arch: the arch that code is generated for.
        location: ``path:line`` of the definition, relative to the project root.
    """

    kernel: str
    slug: str
    slugs: tuple[str, ...]
    config: Mapping[str, bool | int | float | str]
    outputs: tuple[str, ...]
    target: str
    arch: str
    location: str

    @property
    def where(self) -> Where:
        """The place that errors of this lowering belong to."""
        return Where(self.kernel, self.slug, "lower", self.location)


@dataclass(frozen=True)
class LoweredKernel:
    """What a front end makes of a unit.

    Arguments:
        files: content by file name: ``module.tir``, ``signature.json``, and ``host.o`` for llvm or ``host.c`` and
            ``device.cu`` for cuda. Equal inputs give equal bytes, in any process, folder and order.
        schedule: what scheduled the function: the name of a rule, or ``as written``.
    """

    files: Mapping[str, bytes]
    schedule: str
