"""Host code for a device function whose arguments and launch a definition declares: TVM makes it of TIR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.tirx import op as operations

from ..core.dtype import Dtype, bytes_of
from ..core.errors import Where
from ..define.arguments import Scalar, Tensor, multiples_of
from ..define.cuda_source import Passed as Declared
from ..define.cuda_source import declared_in
from ..define.sizes import Size, Sizes, text_of
from ..define.tensor_map import FILLS, PROMOTIONS, SWIZZLES, UNIT, TensorMap
from ..runtime.size import translate
from .tir_lowering import lower_host
from .tir_signature import Argument, arguments_of
from .unit import LoweredKernel, Unit

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": tirx.Add,
    "-": tirx.Sub,
    "*": tirx.Mul,
    "//": tirx.FloorDiv,
    "%": tirx.FloorMod,
    "min": tirx.Min,
    "max": tirx.Max,
}


@dataclass(frozen=True)
class Workspace:
    """Temporary device memory, which a launch gets a pointer to.

    Arguments:
        factors: the number of bytes is their product, so that each is an int32, and it need not be one.
    """

    factors: Sequence[Sizes]


Passed = Declared | Workspace
"""What a parameter of a device function gets."""


@dataclass(frozen=True)
class DeclaredLaunch:
    """The launch of a device function.

    Arguments:
        function: what the host code calls it.
        passed: its parameters, in order: tensors, maps of tensors and scalars, which are arguments of the kernel;
            sizes and workspaces.
        sizes: what is launched, by TVM's names: ``blockIdx.x``, ``threadIdx.x``, ``clusterCtaIdx.x`` and so on.
        shared: dynamic shared memory of a block, in bytes.
        cooperative, dependent: flags of the launch.
    """

    function: str
    passed: Mapping[str, Passed]
    sizes: Sequence[tuple[str, Sizes]]
    shared: Sizes = 0
    cooperative: bool = False
    dependent: bool = False

    @property
    def arguments(self) -> dict[str, Tensor | Scalar]:
        """The arguments of the kernel."""
        return declared_in(self.passed)

    @property
    def parameters(self) -> list[str]:
        """What the parameters of the device function are, as ``signature.json`` has them."""
        return [_kind(value) for value in self.passed.values()]

    @property
    def names(self) -> list[str]:
        """TVM's launch parameters."""
        # The first is how TVM 0.27 spells it.
        flags = {
            "tirx.use_programtic_dependent_launch": self.dependent,
            "tirx.use_cooperative_launch": self.cooperative,
        }
        named = [name for name, _ in self.sizes] + [flag for flag, is_set in flags.items() if is_set]
        return named + (["tirx.use_dyn_shared_memory"] if self.shared != 0 else [])


def dtype_of(value: Declared) -> str:
    """The dtype of what is passed; a plain integer is an int32."""
    if isinstance(value, TensorMap):
        return value.tensor.dtype
    return "int32" if isinstance(value, int) else value.dtype


def _kind(value: Passed) -> str:
    if isinstance(value, TensorMap):
        return "tensor_map"
    return "handle" if isinstance(value, (Tensor, Workspace)) else dtype_of(value)


def lower_launch(launch: DeclaredLaunch, unit: Unit) -> LoweredKernel:
    """Make the files of a unit, but for its device code.

    Raises:
        DefinitionError: the arguments cannot be those of a kernel.
        LoweringError: TVM cannot make the host code.
    """
    declared = launch.arguments
    unit = replace(unit, multiples={**unit.multiples, **multiples_of(declared.values())})
    function = _Host(launch).function()
    mapped = {name for name, value in launch.passed.items() if isinstance(value, TensorMap)}
    arguments = [
        _declared(found, declared[found.name], UNIT if found.name in mapped else 1, unit.where)
        for found in arguments_of(function, unit)
    ]
    kernel = {"name": launch.function, "params": launch.parameters, "launch": launch.names}
    return lower_host(function, arguments, [kernel], unit)


def _declared(argument: Argument, value: Tensor | Scalar, least: int, where: Where) -> Argument:
    """An argument with what the definition says of it and TIR cannot know.

    Arguments:
        least: bytes to which its data is aligned in any case.
    """
    if isinstance(value, Scalar):
        return argument
    element = Dtype.parse(value.dtype, where).alignment
    alignment = max(value.alignment or 1, least)
    written = bool(value.written) or argument.output
    return replace(argument, written=written, alignment=alignment if alignment > element else None)


class _Host:
    """Makes the function in TIR."""

    def __init__(self, launch: DeclaredLaunch) -> None:
        self._launch = launch
        self._sizes: dict[str, Any] = {}
        self._maps: list[Any] = []
        self._parameters = {name: self._parameter(name, value) for name, value in launch.arguments.items()}
        self._workspaces = {n: self._workspace(v) for n, v in launch.passed.items() if isinstance(v, Workspace)}

    def function(self) -> tirx.PrimFunc:
        """The function."""
        launch = self._launch
        passed = [self._passed(name, value) for name, value in launch.passed.items()]
        sizes = [self._number(size) for _, size in launch.sizes]
        shared = [self._number(launch.shared)] if launch.shared != 0 else []
        call = operations.call_ffi_kernel(launch.function, *passed, *sizes, *shared, launch_params=launch.names)
        before = [*(tirx.AllocBuffer(buffer) for buffer in self._workspaces.values()), *self._maps]
        launched = tirx.Evaluate(call)
        body = tirx.SeqStmt([*before, launched]) if before else launched
        return tirx.PrimFunc(list(self._parameters.values()), body).with_attr("s_tir", True)

    def _parameter(self, name: str, value: Tensor | Scalar) -> Any:
        if isinstance(value, Scalar):
            return tirx.Var(name, value.dtype)
        return tirx.decl_buffer([self._size(size) for size in value.shape], value.dtype, name)

    def _workspace(self, workspace: Workspace) -> Any:
        shape = [self._number(factor, "int64") for factor in workspace.factors]
        return tirx.decl_buffer(shape, "uint8", "workspace")

    def _size(self, size: int | str) -> Any:
        return size if isinstance(size, int) else self._sizes.setdefault(size, tirx.Var(size, "int32"))

    def _passed(self, name: str, value: Passed) -> Any:
        if isinstance(value, Workspace):
            return self._workspaces[name].data
        if isinstance(value, (Size, int)):
            return self._number(value, dtype_of(value))
        if isinstance(value, TensorMap):
            return self._map(name, value)
        return self._parameters[name].data if isinstance(value, Tensor) else self._parameters[name]

    def _map(self, name: str, value: TensorMap) -> Any:
        """The tensor map of an argument, which is encoded before the launch."""
        made = tirx.Var(f"{name}_map", T.handle("tensormap").ty)
        element = bytes_of(Dtype.parse(value.tensor.dtype, Where()).bits)
        # The driver wants the innermost dimension first, and the strides of the others in bytes.
        shape = [str(size) for size in reversed(value.tensor.shape)]
        strides = [" * ".join([str(element), *shape[: axis + 1]]) for axis in range(len(shape) - 1)]
        numbers = [self._number(size, "int64") for size in (*shape, *strides)]
        call = operations.tensormap_encode_tiled(
            *(made, self._parameters[name].data, *numbers, *reversed(value.box), *[1] * len(shape)),
            descriptor_dtype=value.tensor.dtype,
            rank=len(shape),
            swizzle=SWIZZLES[value.swizzle],
            l2_promotion=PROMOTIONS[value.promotion],
            oob_fill=FILLS[value.fill],
        )
        self._maps += [tirx.Bind(made, operations.tvm_stack_alloca("tensormap", 1)), tirx.Evaluate(call)]
        return made

    def _number(self, size: Sizes, dtype: str = "int32") -> Any:
        """A size, computed in a dtype."""

        def symbol(name: str) -> Any:
            variable = self._sizes[name] if name in self._sizes else self._parameters[name]
            return variable if str(variable.ty.dtype) == dtype else tirx.Cast(dtype, variable)

        return translate(text_of(size), lambda number: tirx.IntImm(dtype, number), symbol, _operation)


def _operation(name: str, operands: list[Any]) -> Any:
    first, *rest = operands
    if not rest:
        return -first
    for operand in rest:
        first = OPERATIONS[name](first, operand)
    return first
