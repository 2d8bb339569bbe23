"""What a definition in CUDA C++ returns: a source, a function in it, its arguments, and how it is launched."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike

from ...core.errors import DefinitionError, Where, shown
from ...define.arguments import DTYPES, Scalar, Tensor, Workspace
from ...define.declared import Declared, check_launch_only
from ...define.sizes import Size, Sizes, check_axes, check_size, on_axes
from .struct import Struct, flat
from .tensor_map import TensorMap

TENSOR_MAP = "tensor_map"
"""In ``types``: the type is a CUtensorMap by another name."""

MACRO = re.compile(r"[A-Za-z_]\w*", re.ASCII)

Passed = Tensor | Scalar | TensorMap | Workspace | Size | int | None
"""What a parameter of a function can get."""


class Source(Declared):
    """A device function in CUDA C++ with its arguments and its launch.

    Arguments:
        source: the path of a ``.cu`` file, relative to that of the definition; or the source itself, in several lines.
        function: the function, as C++ names it: ``saxpy``, or an instance of a template: ``row_sum<float, 256>``.
        grid, block: the launch in blocks and in threads: a size, or up to three for x, y and z.
        shared: dynamic shared memory of a block, in bytes.
        cluster: blocks in a cluster: a size, or up to three; None: a launch without clusters.
        cooperative: whether all blocks run at once, so that they can wait for each other.
        dependent: whether the launch may begin before the one before it has ended; the function has to wait for it with
            ``cudaGridDependencySynchronize``.
        defines: macros that are defined before the source: name -> value.
        types: what types of the source's own hold: ``{"cutlass::half_t": "float16"}``; ``"tensor_map"`` for a map.
        launch: integers that callers pass and the function does not get, for sizes of the launch: name -> a
            :class:`Scalar`. They are the last arguments of the kernel.
        arguments: for each parameter of the function, in order: a :class:`Tensor` or a :class:`Scalar`, which becomes
            an argument of the kernel; a :class:`TensorMap`, which makes its tensor one; a :class:`Struct` of such
            values; or what callers do not pass: a :class:`Size`, an integer, True, False, or None for a null pointer.
    """

    def __init__(
        self,
        source: str | PathLike[str],
        function: str,
        *,
        grid: Sizes | Sequence[Sizes],
        block: Sizes | Sequence[Sizes],
        shared: Sizes = 0,
        cluster: Sizes | Sequence[Sizes] | None = None,
        cooperative: bool = False,
        dependent: bool = False,
        defines: Mapping[str, bool | int | float | str] | None = None,
        types: Mapping[str, str] | None = None,
        launch: Mapping[str, Scalar] | None = None,
        **arguments: Passed | Struct,
    ) -> None:
        self.source = source
        self.function = function
        self.grid, self.block, self.shared, self.cluster = grid, block, shared, cluster
        self.cooperative, self.dependent = cooperative, dependent
        self.defines = dict(defines or {})
        self.types = types or {}
        self.launch_only = launch or {}
        self.parameters = arguments
        self.arguments = dict(flat(arguments))

    @property
    def declared(self) -> dict[str, Tensor | Scalar]:
        """The arguments of the kernel, by their names."""
        return {**super().declared, **self.launch_only}

    @property
    def text(self) -> str | None:
        """The source, if it is given itself; None: it is in a file."""
        return self.source if isinstance(self.source, str) and "\n" in self.source else None

    def launch(self) -> Iterator[tuple[str, Sizes]]:
        """The sizes of the launch by TVM's names: ``blockIdx.x`` and its size, and so on."""
        yield from on_axes("blockIdx", self.grid)
        yield from on_axes("threadIdx", self.block)
        yield from on_axes("clusterCtaIdx", self.cluster)

    def check(self, outputs: Sequence[str], where: Where) -> None:
        """See :meth:`Declared.check`."""
        self._check_structures(where)  # before one of two values with the same name is compared with outputs
        super().check(outputs, where)

    def check_launch(self, names: frozenset[str], sure: frozenset[str], where: Where) -> None:
        """See :meth:`Declared.check_launch`."""
        if not isinstance(self.function, str) or not self.function.strip():
            message = f"function is {shown(self.function)}, expected the name of a device function"
            raise DefinitionError(message, where, 'write, for example, function="row_sum<float, 256>"')
        self._check_structures(where)
        check_launch_only(self.launch_only, self.arguments, where)
        for name, value in self.arguments.items():
            if isinstance(value, TensorMap):
                value.check(name, where)
            elif isinstance(value, Workspace):
                value.check(name, sure, where)
            elif name not in self.declared and value is not None and not isinstance(value, bool):
                check_size(value, names, f"argument {name!r}", where)
        for what in ("grid", "block", "cluster"):
            if what != "cluster" or self.cluster is not None:
                check_axes(getattr(self, what), sure, what, where)
        check_size(self.shared, sure, "shared", where)
        self._check_words(where)

    def _check_structures(self, where: Where) -> None:
        """Raise a DefinitionError for a structure without members, and for two values of one name."""
        names = [name for name, _ in flat(self.parameters)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            message = f"{twice!r} is the name of two parameters or members"
            raise DefinitionError(message, where, "one name is one argument: give each a name of its own")
        for name, value in self.parameters.items():
            if isinstance(value, Struct) and not value.fields:
                message = f"the Struct of parameter {name!r} has no members"
                raise DefinitionError(message, where, "give all members, in order: Struct(x=Tensor(...), n=Size('n'))")

    def _check_words(self, where: Where) -> None:
        """Raise a DefinitionError if a macro or a type is not valid C++."""
        for macro, text in self.defines.items():
            if not isinstance(macro, str) or not MACRO.fullmatch(macro) or "\n" in str(text):
                message = f"defines has {shown(macro)}: {shown(text)}, which is no macro"
                raise DefinitionError(
                    message, where, "give each an identifier of C as its name, and a value in one line"
                )
        for name, dtype in self.types.items() if isinstance(self.types, Mapping) else [(self.types, None)]:
            if not isinstance(name, str) or not name.strip() or "\n" in name or dtype not in (*DTYPES, TENSOR_MAP):
                message = f"types has {shown(name)}: {shown(dtype)}, which does not say what a type holds"
                remedy = f"give each type, as C++ names it, one of {', '.join(DTYPES)} or {TENSOR_MAP}"
                raise DefinitionError(message, where, remedy)
