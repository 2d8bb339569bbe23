"""What definitions in Gluon import. Nothing here imports Triton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelwright.core.errors import Where
from kernelwright.define.arguments import Scalar, Tensor
from kernelwright.define.declared import Declared, refuse_optional
from kernelwright.define.sizes import Size, Sizes, check_axes

__all__ = ["Program", "Scalar", "Size", "Tensor"]


class Program(Declared):
    """A function of Gluon with the arguments that it is compiled for, and its launch.

    Arguments:
        function: a function decorated with ``@gluon.jit``.
        grid: how many blocks are launched: a size, or up to three for x, y and z.
        num_warps: warps of a block; the layouts of the function are for as many.
        arguments: for each parameter, by name and in order: a ``Tensor`` or a ``Scalar``, which becomes an argument of
            the kernel; a ``Size``, which callers do not pass; or the value of a ``gl.constexpr``.
    """

    def __init__(
        self, function: Any, /, *, grid: Sizes | Sequence[Sizes], num_warps: int = 4, **arguments: Any
    ) -> None:
        self.function, self.grid, self.num_warps, self.arguments = function, grid, num_warps, arguments

    def check_launch(self, names: frozenset[str], sure: frozenset[str], where: Where) -> None:
        """See ``Declared.check_launch``."""
        refuse_optional(self.declared, "Gluon", where)
        check_axes(self.grid, sure, "grid", where)
