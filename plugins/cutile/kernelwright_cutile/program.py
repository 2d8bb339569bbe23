"""What a definition in cuTile returns: a kernel function, the arguments that it is compiled for, and its grid.

Nothing here imports cuTile, so that its absence can be explained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.core.errors import DefinitionError, Where, shown
from kernelwright.define.arguments import Scalar, Tensor
from kernelwright.define.declared import Declared, check_launch_only, refuse_optional
from kernelwright.define.sizes import Size, Sizes, check_axes, check_size, on_axes

EXAMPLES = {
    "list": "pass each array by a parameter of its own",
    "NoneType": "declare an array that some calls leave out: Tensor(..., given=False)",
}
"""The type of a value that cuTile knows in launches only -> what can be passed in its place."""


class Program(Declared):
    """A kernel function of cuTile with the arguments that it is compiled for, and its launch.

    Arguments:
        function: a function decorated with ``@ct.kernel``; its hints count, also those of ``replace_hints``.
        grid: how many blocks are launched: a size, or up to three for x, y and z.
        programmatic_dependent_launch: as ``ct.launch`` has it.
        launch: integers that callers pass and the function does not get, for the grid: name -> a :class:`Scalar`. They
            are the last arguments of the kernel.
        arguments: for each parameter of the function, by name and in order: a :class:`Tensor` or a :class:`Scalar`,
            which becomes an argument of the kernel; a :class:`Size`, which callers do not pass; or a number, a bool, or
            a tuple of these, for which the code is compiled. In place of a Tensor with ``given=False`` it gets ``()``.
    """

    def __init__(
        self,
        function: Any,
        /,
        *,
        grid: Sizes | Sequence[Sizes],
        programmatic_dependent_launch: bool = False,
        launch: Mapping[str, Scalar] | None = None,
        **arguments: Tensor | Scalar | Size | Any,
    ) -> None:
        self.function = function
        self.grid = grid
        self.dependent = programmatic_dependent_launch
        self.launch_only = launch or {}
        self.arguments = arguments

    @property
    def declared(self) -> dict[str, Tensor | Scalar]:
        """See :attr:`Declared.declared`."""
        return {**super().declared, **self.launch_only}

    @property
    def blocks(self) -> list[tuple[str, Sizes]]:
        """The blocks along each axis, by TVM's names of the axes."""
        return list(on_axes("blockIdx", self.grid))

    def check_launch(self, names: frozenset[str], sure: frozenset[str], where: Where) -> None:
        """See :meth:`Declared.check_launch`."""
        refuse_optional(self.declared, "cuTile", where)
        check_launch_only(self.launch_only, self.arguments, where)
        check_axes(self.grid, sure, "grid", where)
        if type(self.dependent) is not bool:
            message = f"programmatic_dependent_launch is {shown(self.dependent)}"
            raise DefinitionError(message, where, "write True, or leave it out")
        for name, value in self.arguments.items():
            if isinstance(value, Size):
                check_size(value, names, f"argument {name!r}", where)
            elif not isinstance(value, (Tensor, Scalar)):
                _check_constant(name, value, where)


def _check_constant(name: str, value: Any, where: Where) -> None:
    """Raise a DefinitionError for a value that cuTile compiles no code for ahead of a launch."""
    for each in value if isinstance(value, tuple) else (value,):
        if type(each) not in (bool, int, float):
            message = f"argument {name!r} is {shown(value)}, which cuTile compiles no code for ahead of a launch"
            remedy = EXAMPLES.get(type(each).__name__, "use a number, a bool, or a tuple of these")
            raise DefinitionError(message, where, remedy)
