"""Has TVM make the host code of a device function, if the definition declares its arguments and its launch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import sym, tirx
from tvm.script import tirx as T
from tvm.tirx import op as operations

from ..core.converter import to_json
from ..core.dtype import Dtype, bytes_of
from ..core.errors import DefinitionError, Where
from ..core.signature import ZEROED
from ..core.signature import TensorMap as EncodedMap
from ..define.arguments import Scalar, Tensor, Workspace, is_absent, multiples_of
from ..define.declared import declared_strides, lines_of, told_strides
from ..define.sizes import Size, Sizes, names_in, plain_text, text_of, unbracketed
from ..runtime.dtype import integer_range
from ..runtime.size import MULTIPROCESSORS, OCCUPANCY, translate
from .cuda.tensor_map import UNIT, TensorMap
from .launches import NULL, DeclaredLaunch, Given, Passed, dtype_of
from .tir.launch import COUNT_BLOCKS, TOLD_BELOW
from .tir.lowering import lower_host
from .tir.signature import Argument, arguments_of, line_variable
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

GRID = ("blockIdx.x", "blockIdx.y", "blockIdx.z")

WORD = bytes_of(Dtype.parse(ZEROED, Where()).bits)


def lower_launches(
    declared: Mapping[str, Tensor | Scalar], launches: Sequence[DeclaredLaunch], unit: Unit, sizes: str = "int64"
) -> LoweredKernel:
    """Make all files of a unit that launches device functions one after the other, except for the device code.

    Arguments:
        declared: the arguments of the kernel, in order.
        sizes: the dtype of the sizes that callers choose. With int64, arrays may have any number of elements.

    Raises:
        DefinitionError: the arguments cannot be those of a kernel.
        LoweringError: TVM cannot make the host code.
    """
    unit = replace(unit, multiples=multiples_of(declared, unit.multiples))
    host = _Host(declared, unit.named(list(declared)), sizes, unit.where)
    function = host.function(launches)
    mapped = {value.tensor for launch in launches for value in launch.mapped.values()}
    arguments = _arguments(function, declared, mapped, unit)
    kernels = [
        {"name": each.function, "params": host.parameters(each), "launch": each.names}
        | ({"structures": to_json(each.structures)} if each.structures else {})
        for each in launches
    ]
    limited = host.limited(launches) if sizes == "int64" else None
    return lower_host(function, arguments, kernels, unit, limited)


def declared_arguments(declared: Mapping[str, Tensor | Scalar], unit: Unit, sizes: str) -> list[Argument]:
    """The arguments of a kernel whose host code another compiler makes; what they are is as above.

    Raises:
        DefinitionError: the arguments cannot be those of a kernel.
    """
    host = _Host(declared, unit.named(list(declared)), sizes, unit.where)
    return _arguments(host.function(()), declared, (), unit)


def _arguments(
    function: tirx.PrimFunc, declared: Mapping[str, Tensor | Scalar], mapped: Collection[str], unit: Unit
) -> list[Argument]:
    absent = {name: value.dtype for name, value in declared.items() if is_absent(value)}
    lines = lines_of(declared, unit.named(list(declared)))
    return [
        _with_text(_declared(argument, value, UNIT if argument.name in mapped else 1, unit.where), value, lines)
        for argument in arguments_of(function, unit, absent)
        for value in [declared[argument.name]]
    ]


def _with_text(argument: Argument, value: Tensor | Scalar, lines: Collection[str]) -> Argument:
    """An argument with sizes as they are declared, where host code computes their names of another size."""
    if isinstance(value, Scalar) or not argument.text or not lines:
        return argument

    def texts(of_host: tuple[int | str, ...], own: tuple[int | str, ...]) -> tuple[int | str, ...]:
        computed = (isinstance(size, str) and any(name in lines for name in names_in(size)) for size in own)
        return tuple(plain_text(str(s)) if is_one else t for is_one, t, s in zip(computed, of_host, own, strict=True))

    strides = declared_strides({argument.name: value})[argument.name] if argument.stride_text else ()
    return replace(argument, text=texts(argument.text, value.shape), stride_text=texts(argument.stride_text, strides))


def _declared(argument: Argument, value: Tensor | Scalar, least: int, where: Where) -> Argument:
    """An argument with facts that only the definition has: its alignment, and whether it is written.

    Arguments:
        least: bytes to which its data is aligned in any case.
    """
    if isinstance(value, Scalar):
        return replace(argument, default=value.default)
    if is_absent(value):
        return argument
    element = Dtype.parse(value.dtype, where).alignment
    alignment = max(value.alignment or 1, least)
    written = bool(value.written) or argument.output
    aligned = alignment if alignment > element else None
    return replace(argument, written=written, alignment=aligned, given=value.passed, folds=value.folds)


class _Host:
    """Makes the function in TIR.

    Arguments:
        declared: its arguments.
        outputs: the names of those that a call may leave out.
        sizes: the dtype of the sizes that callers choose.
        where: the definition, for errors.
    """

    def __init__(
        self, declared: Mapping[str, Tensor | Scalar], outputs: Collection[str], sizes: str, where: Where
    ) -> None:
        self._declared = declared
        self._where = where
        self._size_dtype = sizes
        self._launches: Sequence[DeclaredLaunch] = ()
        self._memories: dict[str, Any] = {}
        self._checks: list[Any] = []
        self._analyzer = sym.Analyzer()
        self._strides, self._told = declared_strides(declared), told_strides(declared)
        # Sizes and strides may be computed of numbers, wherever these are among the arguments.
        self._parameters = {n: tirx.Var(n, value.dtype) for n, value in declared.items() if isinstance(value, Scalar)}
        # A number that callers pass is the size of that name, too.
        self._sizes = {name: number for name, number in self._parameters.items() if declared[name].dtype == sizes}
        self._lines: dict[tuple[str, int], Any] = {}
        for name, (argument, axis, told) in lines_of(declared, outputs).items():
            self._lines[argument, axis] = size = self._variable(line_variable(name, told))
            less, times = (tirx.IntImm(sizes, number) for number in (told.plus, told.times))
            self._sizes[name] = self._analyzer.simplify(tirx.FloorDiv(size - less, times))
        for value in declared.values():  # a stride with the name of a size is that size
            for size in value.shape if isinstance(value, Tensor) else ():
                self._size(size)
        self._parameters = {name: self._parameter(name, value) for name, value in declared.items()}

    def function(self, launches: Sequence[DeclaredLaunch]) -> tirx.PrimFunc:
        """The function."""
        self._launches = launches
        passed = [pair for launch in launches for pair in (*launch.passed.items(), *launch.memories.items())]
        self._memories = {name: self._memory(value) for name, value in passed if isinstance(value, Workspace)}
        launched = [statement for launch in launches for statement in self._launch(launch)]
        allocated = map(tirx.AllocBuffer, self._memories.values())
        statements = [*self._checks, *allocated, *launched] or [tirx.Evaluate(0)]
        body = tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]
        return tirx.PrimFunc(list(self._parameters.values()), body).with_attr("s_tir", True)

    def limited(self, launches: Sequence[DeclaredLaunch]) -> dict[str, str]:
        """The sizes and strides that device functions get as they are, in 32 bits: name -> the narrowest dtype."""
        limited: dict[str, str] = {}
        passed = [value for launch in launches for value in launch.passed.values() if isinstance(value, Size)]
        for value in sorted(passed, key=lambda value: value.dtype, reverse=True):  # int32 comes last, and counts
            name = text_of(value)
            name = str(name if name in self._sizes else self._told.get(name, name))
            if name in self._sizes and name not in self._parameters and value.dtype.endswith("32"):
                limited[name] = value.dtype
        return limited

    def parameters(self, launch: DeclaredLaunch) -> list[str]:
        """What the parameters of a device function are, as ``signature.json`` has them."""
        return [self._kind(value) for value in launch.passed.values()]

    def _kind(self, value: Passed) -> str:
        if isinstance(value, Given):
            return "handle" if value.name in self._memories else self._kind(self._declared[value.name])
        if isinstance(value, (TensorMap, EncodedMap)):
            return "tensor_map"
        if is_absent(value):
            return NULL.dtype
        return "handle" if isinstance(value, (Tensor, Workspace)) else dtype_of(value)

    def _launch(self, launch: DeclaredLaunch) -> list[Any]:
        """The statements of a launch: the tensor maps, and the launch itself."""
        maps = {name: tirx.Var(f"{name}_map", T.handle("tensormap").ty) for name in launch.mapped}
        for name, least in launch.least.items():
            size: Any = launch.passed[name]
            number = self._number(size, "int64")
            if self._analyzer.const_int_bound(number).min_value < least:
                problem = f"{name!r} is {unbracketed(text_of(size))}, which has to be at least {least}"
                self._require(tirx.GE(number, _int64(least)), problem)
        passed = [maps[n] if n in maps else self._passed(n, v) for n, v in launch.passed.items()]
        sizes = [self._number(size) for _, size in launch.sizes]
        shared = [self._number(launch.shared)] if launch.shared != 0 else []
        call = operations.call_ffi_kernel(launch.function, *passed, *sizes, *shared, launch_params=launch.names)
        encoded = [statement for name, value in launch.mapped.items() for statement in self._map(maps[name], value)]
        return [*encoded, tirx.Evaluate(call)]

    def _parameter(self, name: str, value: Tensor | Scalar) -> Any:
        if isinstance(value, Scalar):
            return self._parameters[name]
        if is_absent(value):
            return tirx.Var(name, "handle")
        strides = [self._stride(stride) for stride in self._strides[name]]
        places = [(name, axis) for axis in range(len(value.shape))]
        pairs = zip(places, value.shape, strict=True)
        shape = [self._lines[place] if place in self._lines else self._size(size) for place, size in pairs]
        return tirx.decl_buffer(shape, value.dtype, name, strides=strides)

    def _stride(self, stride: int | str) -> Any:
        """A declared stride, in the type of sizes. One that stands alone may be negative, so nothing bounds it."""

        def symbol(name: str) -> Any:
            if name in self._sizes or name not in self._parameters:
                return self._sizes.setdefault(name, tirx.Var(name, self._size_dtype))
            number = self._parameters[name]
            return number if str(number.ty.dtype) == self._size_dtype else tirx.Cast(self._size_dtype, number)

        return translate(str(stride), self._constant, symbol, _operation)

    def _constant(self, number: int) -> Any:
        """A size or stride that is a number. TVM 0.27 takes sizes and strides of one type only."""
        if number > integer_range(self._size_dtype)[1]:
            message = f"{number} is a size or a stride of an argument, and these are {self._size_dtype}"
            raise DefinitionError(message, self._where, "pass smaller arrays, or parts of the array")
        return tirx.IntImm(self._size_dtype, number)

    def _memory(self, workspace: Workspace) -> Any:
        """A workspace as bytes; one that is zeroed as words, which the launcher tells it by."""
        element = bytes_of(Dtype.parse(workspace.dtype, self._where).bits)
        shape = [self._number(size, "int64") for size in workspace.shape]
        for size, number in zip(workspace.shape, shape, strict=True):
            if self._analyzer.const_int_bound(number).min_value < 0:
                problem = f"the size {unbracketed(text_of(size))} of a workspace is negative in this call"
                self._require(tirx.GE(number, _int64(0)), problem)
        # TVM 0.27 has to know a greatest size, and knows none of a product of two that the device tells.
        shape = [
            tirx.Min(n, _int64(2**48)) if OCCUPANCY in names_in(s) else n
            for s, n in zip(workspace.shape, shape, strict=True)
        ]
        if not workspace.zeroed:
            return tirx.decl_buffer([*shape, *([_int64(element)] if element > 1 else [])], "uint8", "workspace")
        size = functools.reduce(tirx.Mul, shape, _int64(element))
        words = self._analyzer.simplify(tirx.FloorDiv(size + _int64(WORD - 1), _int64(WORD)))
        return tirx.decl_buffer([words], ZEROED, "workspace")

    def _size(self, size: int | str) -> Any:
        if isinstance(size, int):
            return self._constant(size)
        if not size.isidentifier():
            for name in names_in(size):
                if name not in self._parameters:
                    self._size(name)
            return self._number(size)
        if size in self._parameters and size not in self._sizes:
            dtype, remedy = self._declared[size].dtype, f"write {size}=Scalar({self._size_dtype!r})"
            if "int" not in dtype or integer_range(dtype)[1] > integer_range(self._size_dtype)[1]:
                message = f"{size!r} is a size, which is {self._size_dtype}, and an argument that is {dtype}"
                raise DefinitionError(message, self._where, f"{remedy}, or give one of them another name")
            return tirx.Cast(self._size_dtype, self._parameters[size])
        if size not in self._sizes:
            self._sizes[size] = self._variable(size)
        return self._sizes[size]

    def _variable(self, name: str) -> Any:
        variable = tirx.Var(name, self._size_dtype)
        most = tirx.IntImm(self._size_dtype, integer_range(self._size_dtype)[1])
        self._analyzer.bind(variable, tvm.ir.Range(0, most))
        return variable

    def _passed(self, name: str, value: Passed) -> Any:
        value = NULL if value is None or is_absent(value) else value
        if isinstance(value, bool):
            return tirx.IntImm("bool", value)
        if isinstance(value, (Size, int)):
            return self._parameter_number(name, value, dtype_of(value))
        source = value.name if isinstance(value, Given) else name
        is_memory = isinstance(value, Workspace) or (isinstance(value, Given) and source in self._memories)
        parameter = self._memories[source] if is_memory else self._parameters[source]
        return parameter.data if tirx.buffer.is_buffer_var(parameter) else parameter

    def _map(self, variable: Any, value: EncodedMap) -> list[Any]:
        """What makes a tensor map, before the launch."""
        numbers = [self._number(size, "int64") for size in (*value.sizes, *value.strides)]
        call = operations.tensormap_encode_tiled(
            *(variable, self._passed("", Given(value.tensor)), *numbers, *value.box, *value.steps),
            descriptor_dtype=value.dtype,
            rank=len(value.sizes),
            interleave=value.interleave,
            swizzle=value.swizzle,
            l2_promotion=value.promotion,
            oob_fill=value.fill,
        )
        return [tirx.Bind(variable, operations.tvm_stack_alloca("tensormap", 1)), tirx.Evaluate(call)]

    def _parameter_number(self, name: str, size: Sizes, dtype: str) -> Any:
        """A number that a parameter gets. A check before the launches refuses a number that its dtype cannot hold."""
        number = self._number(size, dtype)
        if "int" not in dtype:
            return number
        low, high = _range(dtype)
        bound = self._analyzer.const_int_bound(number)
        if isinstance(number, tirx.IntImm) and not low <= int(number.value) <= high:
            message = f"argument {name!r} is {int(number.value)}, which does not fit {dtype}"
            raise DefinitionError(message, self._where, 'give it a wider dtype: Size(..., dtype="int64")')
        problem = f"{name!r} is {unbracketed(text_of(size))}, which does not fit {dtype} in this call"
        if bound.min_value < low:
            self._require(tirx.GE(number, _int64(low)), problem)
        if bound.max_value > high:
            self._require(tirx.LE(number, _int64(high)), problem)
        return number

    def _number(self, size: Sizes, dtype: str = "int32") -> Any:
        """A size. It is computed in 64 bits whatever gets it, so that nothing wraps around.

        Arguments:
            dtype: what its numbers have to fit. TileLang passes a number that is no integer as a size, too.
        """
        computed = "int64" if "int" in dtype else dtype

        def symbol(name: str) -> Any:
            if name in self._told and name not in self._sizes:
                return translate(str(self._told[name]), literal, symbol, operation)
            if name in (MULTIPROCESSORS, OCCUPANCY) and name not in {*self._sizes, *self._parameters}:
                return self._multiprocessors if name == MULTIPROCESSORS else self._occupancy
            variable = self._sizes[name] if name in self._sizes else self._parameters[name]
            return variable if str(variable.ty.dtype) == computed else tirx.Cast(computed, variable)

        def literal(number: int) -> Any:
            high = integer_range("int64")[1]
            if number <= high:
                return _int64(number)
            message = f"the number {number} in the size {unbracketed(text_of(size))} is too large to compute with"
            raise DefinitionError(message, self._where, f"write numbers up to {high}")

        def operation(name: str, operands: list[Any]) -> Any:
            if name in ("//", "%"):
                self._require_divisor(operands[1], size)
            return _operation(name, operands)

        return self._analyzer.simplify(translate(text_of(size), literal, symbol, operation))

    @functools.cached_property
    def _multiprocessors(self) -> Any:
        number = _told(MULTIPROCESSORS)
        self._require(tirx.GE(number, _int64(1)), "the device does not say how many multiprocessors it has", "")
        return number

    @functools.cached_property
    def _occupancy(self) -> Any:
        grids = [[OCCUPANCY in names_in(s) for tag, s in each.sizes if tag in GRID] for each in self._launches]
        counted = [number for number, has in enumerate(grids) if any(has)]
        if len(counted) != 1:
            remedy = "name it in the grid of the launch whose blocks are meant, and of no other one"
            message = f"{OCCUPANCY!r} is in the grids of {len(counted)} launches"
            raise DefinitionError(message, self._where, remedy)
        launch, sizes = self._launches[counted[0]], dict(self._launches[counted[0]].sizes)
        decides = [launch.shared, *(size for tag, size in sizes.items() if tag not in GRID)]
        if any("cluster" in tag for tag in sizes) or any(OCCUPANCY in names_in(size) for size in decides):
            message = f"{OCCUPANCY!r} is of a launch with clusters, or with a block or shared memory that depends on it"
            raise DefinitionError(message, self._where, "give the grid another size, or the launch no clusters")
        block = [self._number(sizes.get(f"threadIdx.{axis}", 1)) for axis in "xyz"]
        asked = (_int64(counted[0]), *block, self._number(launch.shared))
        self._checks.append(tirx.Evaluate(operations.call_packed(COUNT_BLOCKS, *asked)))
        return _told(OCCUPANCY, *asked)

    def _require_divisor(self, divisor: Any, size: Sizes) -> None:
        """Add a check that refuses calls with a divisor of 0. Such a division ends a process that computes in C."""
        bound = self._analyzer.const_int_bound(divisor)
        if bound.min_value == bound.max_value == 0:
            remedy = "divide by a number, or by a size that is not 0"
            raise DefinitionError(f"the size {unbracketed(text_of(size))} divides by 0", self._where, remedy)
        if bound.min_value <= 0 <= bound.max_value:
            self._require(
                tirx.NE(divisor, _int64(0)), f"the size {unbracketed(text_of(size))} divides by 0 in this call"
            )

    def _require(self, passes: Any, problem: str, remedy: str = "\n  remedy: pass other sizes and numbers") -> None:
        message = f"kernel '{self._where.kernel}': {problem}{remedy}"
        # TVM 0.27 documents another order of these arguments.
        check = tirx.AssertStmt(passes, tvm.ir.StringImm("ValueError"), [tvm.ir.StringImm(message)])
        self._checks.append(check)


def _range(dtype: str) -> tuple[int, int]:
    """The least and the greatest number of a dtype that int64 has as well."""
    low, high = integer_range(dtype)
    return low, min(high, integer_range("int64")[1])


def _told(name: str, *asked: Any) -> Any:
    """A number that the launcher tells generated host code."""
    return tirx.FloorMod(operations.call_extern("int64", f"kw_{name}", *asked), _int64(TOLD_BELOW))


def _int64(number: int) -> Any:
    return tirx.IntImm("int64", number)


def _operation(name: str, operands: list[Any]) -> Any:
    first, *rest = operands
    if not rest:
        return -first
    for operand in rest:
        first = OPERATIONS[name](first, operand)
    return first
