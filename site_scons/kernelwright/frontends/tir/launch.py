"""What the host code of a CUDA lowering does, as data: which device functions it launches, and with what.

TVM's host function checks the arguments, selects the device, and then launches. The launches are read from TIR, after
host and device were split and before the host's code is generated, and written down as expressions over sizes and
numbers. So a backend without host code of its own can launch as well. What cannot be said so is reported in words.

Written for TVM 0.27 (``MakePackedAPI``, ``SplitHostDevice``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...core.dtype import bytes_of
from ...core.signature import ZEROED
from ...define.sizes import unbracketed
from ...runtime.size import MULTIPROCESSORS, OCCUPANCY
from .signature import ARITHMETIC, FUNCTIONS, Argument, variables_of
from .tensor_maps import ENCODE, encoded, is_tensor_map

_INFIX = {
    **ARITHMETIC,
    tirx.EQ: "==",
    tirx.NE: "!=",
    tirx.LT: "<",
    tirx.LE: "<=",
    tirx.GT: ">",
    tirx.GE: ">=",
    tirx.And: "and",
    tirx.Or: "or",
    tirx.LShift: "<<",
    tirx.RShift: ">>",
    tirx.BitwiseAnd: "&",
    tirx.BitwiseOr: "|",
    tirx.BitwiseXor: "^",
}
_FUNCTIONS = {**FUNCTIONS, tirx.Div: "truncdiv", tirx.Mod: "truncmod"}

_AXES = ("blockIdx", "threadIdx", "clusterCtaIdx", "preferredClusterCtaIdx")
_KEYS = dict(zip(_AXES, ("grid", "block", "cluster", "preferred_cluster"), strict=True))
_SHARED = "tirx.use_dyn_shared_memory"
_FLAGS = {
    # The first is how TVM 0.27 spells it.
    "tirx.use_programtic_dependent_launch": "dependent",
    "tirx.use_programmatic_dependent_launch": "dependent",
    "tirx.use_cooperative_launch": "cooperative",
}

# What tvm_struct_get reads (TVM's TVMStructFieldKind).
_DATA, _SHAPE, _VALUE, _ELEMENT = 1, 2, 15, 17


TOLD_BELOW = 1 << 16
"""No device tells a number that is so large. What it tells is divided by that, and the remainder counts, which is the
same: by it TVM knows from what to what the number can be."""

COUNT_BLOCKS = "kw_count_blocks"
"""What host code calls so that the launcher raises an error if it cannot tell the occupancy of a launch."""


class _Inexpressible(Exception):
    """Host code that is no data; the text completes "the host code ..."."""


@dataclass(frozen=True)
class _Handle:
    """The DLTensor of an argument, or with ``shape`` the array of its sizes."""

    argument: Argument
    shape: bool = False


@dataclass(frozen=True)
class _Memory:
    """A pointer that launches pass on: an entry of ``params``."""

    param: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _Text:
    """A number as an expression in Python syntax, which stands in brackets where it needs them."""

    text: str


def launches_of(
    host: tvm.IRModule, function: tirx.PrimFunc, arguments: list[Argument], device_kernels: list[dict[str, Any]]
) -> dict[str, Any]:
    """What ``signature.json`` says of the host code.

    Arguments:
        host: the host module, with the packed function as ``MakePackedAPI`` makes it.
        function: the function that was lowered.
        arguments: its arguments.
        device_kernels: name, dtypes of parameters and launch parameters of each device function.

    Returns:
        ``launches``, ``workspaces`` and ``host_checks``, and ``tensor_maps`` if there are any; or ``launches`` None
        and, in ``host_logic``, a sentence that says what the host code does that is no data.
    """
    try:
        _require_plain(function, arguments)
        if len(host.functions) != 1:
            raise _Inexpressible("calls functions of its own")
        ((_, packed),) = host.functions_items()
        reader = _Reader(packed, arguments, {kernel["name"]: kernel for kernel in device_kernels})
        reader.visit(packed.body, None)
    except _Inexpressible as error:
        return {"launches": None, "host_logic": f"the host code {error}"}
    code: dict[str, Any] = {"launches": reader.launches, "workspaces": reader.workspaces, "host_checks": reader.checks}
    return code | ({"tensor_maps": reader.tensor_maps} if reader.tensor_maps else {})


def _require_plain(function: tirx.PrimFunc, arguments: list[Argument]) -> None:
    """Refuse layouts and names that signatures do not tell."""
    for argument, parameter in zip(arguments, function.params, strict=True):
        if argument.shape is not None and argument.given is not False and not _is_zero(parameter.elem_offset):
            raise _Inexpressible(f"takes argument {argument.name!r} with an offset of its own")
    names = {argument.name: parameter for argument, parameter in zip(arguments, function.params, strict=True)}
    for variable in variables_of(size for a in arguments for size in (*(a.shape or ()), *a.strides)):
        name = str(variable.name)
        if not name.isascii():
            raise _Inexpressible(f"has a size named {name!r}, which is not ASCII")
        if name in names and not names[name].same_as(variable):
            raise _Inexpressible(f"has a size and an argument that are both named {name!r}")


def _is_zero(offset: Any) -> bool:
    return offset is None or _is_number(offset, 0)


def _is_number(node: Any, number: int) -> bool:
    return isinstance(node, tirx.IntImm) and int(node.value) == number


@dataclass
class _Reader:
    """Reads the statements of a packed function in order, and notes what they launch."""

    packed: tirx.PrimFunc
    arguments: list[Argument]
    kernels: dict[str, dict[str, Any]]
    launches: list[dict[str, Any]] = field(default_factory=list)
    workspaces: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    tensor_maps: list[dict[str, Any]] = field(default_factory=list)
    _values: list[tuple[Any, Any]] = field(default_factory=list)
    _started: bool = False
    """Whether the arguments have been checked, after which comes what the definition says."""

    def visit(self, node: Any, when: str | None) -> None:
        """Read a statement.

        Arguments:
            when: the condition under which it runs; None: always.
        """
        match node:
            case tirx.SeqStmt():
                for item in node.seq:
                    self.visit(item, when)
            case tirx.AttrStmt():
                self.visit(node.body, when)
            case tirx.Bind():
                self._values.append((node.var, self._bound(node.value) or self._stride(node.var)))
            case tirx.DeclBuffer():
                self._values.append((node.buffer, self._memory(node.data)))
            case tirx.AllocBuffer():
                self._allocate(node.buffer, when)
            case tirx.IfThenElse():
                self._branch(node, when)
            case tirx.AssertStmt():
                self._check(node, when)
            case tirx.Evaluate():
                self._evaluate(node.value, when)
            case tirx.Return():
                pass
            case tirx.For() | tirx.While():
                raise _Inexpressible(f"has a loop around what it launches: {_first_line(node)}")
            case _:
                raise _Inexpressible(f"has a {type(node).__name__}: {_first_line(node)}")

    # ---- statements

    def _branch(self, node: Any, when: str | None) -> None:
        if not self._started:
            return  # around a check of an argument's strides
        condition = self._text(node.condition)
        self.visit(node.then_case, _both(when, condition))
        if node.else_case is not None:
            self.visit(node.else_case, _both(when, f"(not {condition})"))

    def _check(self, node: Any, when: str | None) -> None:
        if not self._started:
            return
        condition = self._text(node.condition)
        text = "".join(str(part.value) for part in node.message_parts)
        passes = condition if when is None else f"((not {when}) or {condition})"
        self.checks.append({"error": str(node.error_kind.value), "message": text, "passes": unbracketed(passes)})

    def _allocate(self, buffer: Any, when: str | None) -> None:
        if when is not None:
            raise _Inexpressible(f"allocates {buffer.name!r} under a condition")
        kind = tvm.DataType(str(buffer.dtype))
        element = bytes_of(kind.bits * kind.lanes)
        sizes = [self._text(size) for size in buffer.shape]
        if str(buffer.scope()) != "global":
            raise _Inexpressible(f"allocates {buffer.name!r} in the memory {buffer.scope()!r}")
        self._values.append((buffer, _Memory((("workspace", len(self.workspaces)),))))
        known = math.prod(int(size) for size in sizes if size.isdigit()) * element
        factors = [size for size in sizes if not size.isdigit()]
        zeroed = {"zeroed": True} if str(buffer.dtype) == ZEROED else {}
        self.workspaces.append({"bytes": _number(" * ".join([*factors, str(known)])), **zeroed})

    def _evaluate(self, value: Any, when: str | None) -> None:
        name = str(getattr(getattr(value, "op", None), "name", ""))
        if isinstance(value, tirx.IntImm):
            return
        packed = str(getattr(value.args[0], "value", "")) if name == "tirx.tvm_call_packed" else ""
        if packed == COUNT_BLOCKS:
            return
        if packed == "__tvm_set_device":
            self._started = True
        elif name == "tirx.call_ffi_kernel":
            self._launch(value, when)
        elif name == ENCODE:
            self._encode(value, when)
        else:
            raise _Inexpressible(f"calls {_first_line(value)}")

    def _encode(self, call: Any, when: str | None) -> None:
        """Note what a tensor map is of, whose place among the others is known."""
        known, array = self._memory(call.args[0]), self._memory(call.args[1])
        param = dict(array.param) if array else {}
        if known is None or when is not None or "tensor" not in param or int(call.attrs.force_cu_dtype) >= 0:
            raise _Inexpressible(f"makes a tensor map in its own way: {_first_line(call)}")
        number = dict(known.param)["tensor_map"]
        self.tensor_maps[number] = param | encoded(call, lambda size: _number(self._text(size)))

    def _launch(self, call: Any, when: str | None) -> None:
        name = str(call.args[0].value)
        if name not in self.kernels:
            raise _Inexpressible(f"calls {name!r}, which is no device function of it")
        kernel = self.kernels[name]
        values, count = list(call.args[1:]), len(kernel["params"])
        params = [self._param(value, dtype) for value, dtype in zip(values, kernel["params"], strict=False)]
        launch: dict[str, Any] = {"kernel": name, "params": params, **_dims(kernel["launch"])}
        tags = [tag for tag in kernel["launch"] if tag not in _FLAGS]
        for tag, value in zip(tags, values[count:], strict=True):
            size = _number(self._text(value))
            if tag == _SHARED:
                launch["shared"] = size
            else:
                base, _, axis = tag.partition(".")
                launch[_KEYS[base]]["xyz".index(axis)] = size
        self.launches.append(launch if when is None else {**launch, "when": unbracketed(when)})

    def _param(self, value: Any, dtype: str) -> dict[str, Any]:
        if dtype in ("handle", "tensor_map"):
            memory = self._memory(value)
            if not isinstance(memory, _Memory):
                raise _Inexpressible(f"passes the pointer {_first_line(value)}")
            return dict(memory.param)
        return {"scalar": _number(self._text(value)), "dtype": dtype}

    # ---- values

    def _value_of(self, variable: Any) -> Any:
        for known, value in reversed(self._values):
            if known.same_as(variable):
                return value
        return None

    def _bound(self, value: Any) -> Any:
        """What a variable stands for: a handle, a pointer or a number; None: something that no launch may use."""
        if not self._started:
            argument = self._argument_read_by(value)
            if argument is not None:
                return _Text(argument.name) if argument.shape is None else _Handle(argument)
            if _is_struct_get(value, _SHAPE):
                handle = self._value_of(value.args[0])
                return _Handle(handle.argument, shape=True) if isinstance(handle, _Handle) else None
        if is_tensor_map(value):
            self.tensor_maps.append({})
            return _Memory((("tensor_map", len(self.tensor_maps) - 1),))
        memory = self._memory(value)
        if memory is not None:
            return memory
        try:
            return _Text(self._text(value))
        except _Inexpressible:
            return None

    def _stride(self, variable: Any) -> _Text | None:
        """A variable that stands for a stride of an argument, which host code computes where an array tells none."""
        declared = variables_of(stride for argument in self.arguments for stride in argument.strides)
        is_declared = not self._started and str(variable.name) in {str(each.name) for each in declared}
        return _Text(str(variable.name)) if is_declared else None

    def _argument_read_by(self, value: Any) -> Argument | None:
        """The argument whose value an expression takes out of the array of packed arguments."""
        positions: list[int] = []

        def note(call: Any) -> None:
            if _is_struct_get(call, _VALUE) and call.args[0].same_as(self.packed.params[1]):
                positions.append(int(call.args[1].value))

        tvm_ffi.structural_walk(value, (tvm.ir.Call, note))
        return self.arguments[positions[0]] if positions else None

    def _memory(self, value: Any) -> _Memory | None:
        """The memory that a pointer expression points to the beginning of."""
        if isinstance(value, tvm.ir.Var):
            known = self._value_of(value)
            return known if isinstance(known, _Memory) else None
        name = str(getattr(getattr(value, "op", None), "name", ""))
        if name in ("tirx.buffer_data", "tirx.reinterpret"):
            return self._memory(value.args[-1])
        if _is_struct_get(value, _DATA):
            handle = self._value_of(value.args[0])
            if isinstance(handle, _Handle) and not handle.shape:
                return _Memory((("tensor", handle.argument.name),))
        return None

    def _text(self, node: Any) -> str:
        """A number as an expression, in brackets if it is more than a name."""
        if isinstance(node, tirx.IntImm):
            return str(bool(int(node.value)) if str(node.ty.dtype) == "bool" else int(node.value))
        if isinstance(node, tirx.FloatImm):
            return repr(float(node.value))
        if isinstance(node, tvm.ir.Var):
            known = self._value_of(node)
            if isinstance(known, _Text):
                return known.text
        if isinstance(node, tirx.FloorMod) and _is_number(node.b, TOLD_BELOW) and (told := _told_by_device(node.a)):
            return told
        for kind, operator in _INFIX.items():
            if isinstance(node, kind):
                return self._operation(node, node.a, operator, node.b)
        for kind, function in _FUNCTIONS.items():
            if isinstance(node, kind):
                self._require_integers(node)
                return f"{function}({unbracketed(self._text(node.a))}, {unbracketed(self._text(node.b))})"
        if isinstance(node, tirx.Not):
            return f"(not {self._text(node.a)})"
        if isinstance(node, tirx.Select):
            return self._choice(node.condition, node.true_value, node.false_value)
        if isinstance(node, tirx.Cast):
            return self._cast(node)
        return self._call(node)

    def _call(self, node: Any) -> str:
        name = str(getattr(getattr(node, "op", None), "name", ""))
        if _is_struct_get(node, _ELEMENT):
            return self._size(node)
        if name == "prim.if_then_else":
            return self._choice(*node.args)
        if told := _told_by_device(node):
            return told
        if name == "prim.likely":
            return self._text(node.args[0])
        raise _Inexpressible(f"computes {_first_line(node)}")

    def _size(self, node: Any) -> str:
        handle = self._value_of(node.args[0])
        if not isinstance(handle, _Handle) or not handle.shape:
            raise _Inexpressible(f"reads {_first_line(node)}")
        size = handle.argument.text[int(node.args[1].value)]
        return str(size) if isinstance(size, int) or size.isidentifier() else f"({size})"

    def _operation(self, node: Any, left: Any, operator: str, right: Any) -> str:
        self._require_integers(node)
        self._require_integers(left)
        return f"({self._text(left)} {operator} {self._text(right)})"

    def _choice(self, condition: Any, true: Any, false: Any) -> str:
        self._require_integers(true)
        return f"({self._text(true)} if {self._text(condition)} else {self._text(false)})"

    def _cast(self, node: Any) -> str:
        """A conversion between integers, which changes nothing here: expressions are exact, where C would wrap.

        What is passed to a launch is compared with the range of its type.
        """
        source, target = (str(item.ty.dtype) for item in (node.value, node))
        signed = source.startswith(("int", "bool")) and target.startswith("int")
        widens = source.startswith("uint") and target.startswith("int") and _bits(target) > _bits(source)
        if signed or widens or source == target:
            return self._text(node.value)
        raise _Inexpressible(f"computes {_first_line(node)}")

    def _require_integers(self, node: Any) -> None:
        """Refuse arithmetic that Python would round in another way."""
        dtype = str(node.ty.dtype)
        if not dtype.startswith(("int", "bool")):
            raise _Inexpressible(f"computes {_first_line(node)} in {dtype}")


def _bits(dtype: str) -> int:
    return int(tvm.DataType(dtype).bits)


def _is_struct_get(node: Any, kind: int) -> bool:
    named = str(getattr(getattr(node, "op", None), "name", "")) == "tirx.tvm_struct_get"
    return named and int(node.args[2].value) == kind


def _told_by_device(node: Any) -> str | None:
    """The name of what the launcher is asked for; None: the device is not asked."""
    is_call = str(getattr(getattr(node, "op", None), "name", "")) == "tirx.call_extern"
    asked = str(node.args[0].value) if is_call else ""
    return next((name for name in (MULTIPROCESSORS, OCCUPANCY) if asked == f"kw_{name}"), None)


def _dims(tags: list[str]) -> dict[str, Any]:
    """Grid, block, shared memory and flags of a launch, before the sizes are filled in."""
    dims: dict[str, Any] = {"grid": [1, 1, 1], "block": [1, 1, 1], "shared": 0}
    for tag in tags:
        base = tag.partition(".")[0]
        if tag in _FLAGS:
            dims[_FLAGS[tag]] = True
        elif base in _KEYS:
            dims.setdefault(_KEYS[base], [1, 1, 1])
        elif tag != _SHARED:
            raise _Inexpressible(f"has the launch parameter {tag!r}")
    return dims


def _both(when: str | None, condition: str) -> str:
    return condition if when is None else f"({when} and {condition})"


def _number(text: str) -> int | str:
    """A number as signatures have it: an integer where it is one."""
    text = unbracketed(text)
    return int(text) if text.removeprefix("-").isdigit() else text


def _first_line(node: Any) -> str:
    text = str(node).strip()
    return (text.splitlines() or [type(node).__name__])[0].strip().removesuffix(":")[:200]
