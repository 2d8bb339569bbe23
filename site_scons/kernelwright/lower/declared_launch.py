"""Host code for a device function whose arguments and launch a definition declares: TVM makes it of TIR."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.tirx import op as operations

from ..core.dtype import Dtype
from ..core.errors import Where
from ..define.arguments import Scalar, Tensor
from ..define.sizes import Size, Sizes, text_of
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
class DeclaredLaunch:
    """The launch of a device function.

    Arguments:
        function: what the host code calls it.
        passed: its parameters, in order: tensors and scalars, which are arguments of the kernel, and sizes.
        sizes: what is launched, by TVM's names: ``blockIdx.x``, ``threadIdx.x``, ``clusterCtaIdx.x`` and so on.
        shared: dynamic shared memory of a block, in bytes.
        cooperative, dependent: flags of the launch.
    """

    function: str
    passed: Mapping[str, Tensor | Scalar | Size | int]
    sizes: Sequence[tuple[str, Sizes]]
    shared: Sizes = 0
    cooperative: bool = False
    dependent: bool = False

    @property
    def arguments(self) -> dict[str, Tensor | Scalar]:
        """The arguments of the kernel."""
        return {name: value for name, value in self.passed.items() if isinstance(value, (Tensor, Scalar))}

    @property
    def parameters(self) -> list[str]:
        """What the parameters of the device function are, as ``signature.json`` has them."""
        return ["handle" if isinstance(value, Tensor) else dtype_of(value) for value in self.passed.values()]

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


def dtype_of(value: Tensor | Scalar | Size | int) -> str:
    """The dtype of what is passed; a plain integer is an int32."""
    return "int32" if isinstance(value, int) else value.dtype


def lower_launch(launch: DeclaredLaunch, unit: Unit) -> LoweredKernel:
    """Make the files of a unit, but for its device code.

    Raises:
        DefinitionError: the arguments cannot be those of a kernel.
        LoweringError: TVM cannot make the host code.
    """
    declared = launch.arguments
    unit = replace(unit, multiples={**unit.multiples, **_multiples(declared.values())})
    function = _Host(launch).function()
    arguments = [_declared(found, declared[found.name], unit.where) for found in arguments_of(function, unit)]
    kernel = {"name": launch.function, "params": launch.parameters, "launch": launch.names}
    return lower_host(function, arguments, [kernel], unit)


def _multiples(values: Iterable[Tensor | Scalar]) -> dict[str, int]:
    return {
        name: number for tensor in values if isinstance(tensor, Tensor) for name, number in tensor.multiples.items()
    }


def _declared(argument: Argument, value: Tensor | Scalar, where: Where) -> Argument:
    """An argument with what the definition says of it and TIR cannot know."""
    if isinstance(value, Scalar):
        return argument
    element = Dtype.parse(value.dtype, where).alignment
    alignment = value.alignment if value.alignment and value.alignment > element else None
    return replace(argument, written=bool(value.written) or argument.output, alignment=alignment)


class _Host:
    """Makes the function in TIR."""

    def __init__(self, launch: DeclaredLaunch) -> None:
        self._launch = launch
        self._sizes: dict[str, Any] = {}
        self._parameters = {name: self._parameter(name, value) for name, value in launch.arguments.items()}

    def function(self) -> tirx.PrimFunc:
        """The function."""
        launch = self._launch
        passed = [self._passed(name, value) for name, value in launch.passed.items()]
        sizes = [self._number(size) for _, size in launch.sizes]
        shared = [self._number(launch.shared)] if launch.shared != 0 else []
        call = operations.call_ffi_kernel(launch.function, *passed, *sizes, *shared, launch_params=launch.names)
        return tirx.PrimFunc(list(self._parameters.values()), tirx.Evaluate(call)).with_attr("s_tir", True)

    def _parameter(self, name: str, value: Tensor | Scalar) -> Any:
        if isinstance(value, Scalar):
            return tirx.Var(name, value.dtype)
        return tirx.decl_buffer([self._size(size) for size in value.shape], value.dtype, name)

    def _size(self, size: int | str) -> Any:
        return size if isinstance(size, int) else self._sizes.setdefault(size, tirx.Var(size, "int32"))

    def _passed(self, name: str, value: Tensor | Scalar | Size | int) -> Any:
        if isinstance(value, (Size, int)):
            return self._number(value, dtype_of(value))
        return self._parameters[name].data if isinstance(value, Tensor) else self._parameters[name]

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
