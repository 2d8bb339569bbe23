"""Reads what the host code of a function of TileLang does, in an environment that has TileLang and not Kernelwright."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...core.signature import TensorMap
from ...define.arguments import Scalar, Tensor, Workspace
from ...define.sizes import Size, names_in
from ...define.strides import COMPACT, all_strides
from ..launches import DeclaredLaunch, Given

INFIX = {
    **{"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%"},
    # Sizes are not negative, so rounding towards zero and rounding down are the same.
    **{"Div": "//", "Mod": "%"},
}
FUNCTIONS = {"Min": "min", "Max": "max"}
"""TVM's operations -> what expressions of sizes have."""

ENCODE = "__tvm_tensormap_create_tiled"
"""What host code calls to make a tensor map."""

DATA_TYPES = ("uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bfloat16")
"""The dtypes of tensor maps by their number (CUtensorMapDataType in cuda.h)."""

CLUSTER = {f"tir.cluster_dim_{axis}": f"clusterCtaIdx.{axis}" for axis in "xyz"}
"""Launch parameters that TileLang names in another way than TVM."""

READS_MAP = re.compile(r"tl\.(tma_load|prefetch_tma)")
"""Operations that read the tensor of a tensor map and never write it."""

FEATURES = {
    "__tvm_tensormap_create_im2col": "a tensor map for convolutions (T.im2col)",
    "__tvm_cuda_stream_set_access_policy_window": "a policy of the level 2 cache (T.annotate_l2_hit_ratio)",
}
"""What host code calls for features that launches of Kernelwright do not have."""


class UnsupportedError(Exception):
    """A function has what launches of Kernelwright do not have."""


class HostReader:
    """Reads what the host code of a function does: the tensor maps that it makes, and the launches.

    Arguments:
        function: the function before it was lowered.
        device: the module of device functions.
    """

    def __init__(self, function: Any, device: Any) -> None:
        self._function = function
        self._device = {str(f.attrs["global_symbol"]): f for _, f in device.functions.items()}
        self._started = False
        # By the variables themselves: several may have one name, such as two maps of one tensor.
        self._values: list[tuple[Any, str | TensorMap | Given]] = []
        self._memories: dict[str, Workspace] = {}
        self._written: set[str] = set()
        self.launches: list[DeclaredLaunch] = []
        self._tensors = {str(buffer.data.name): str(buffer.name) for _, buffer in function.buffer_map.items()}

    def read(self, host: Any) -> None:
        """Read the host function, as ``MakePackedAPI`` makes it."""
        self._visit(host.body)
        if not self.launches:
            raise UnsupportedError("its host code launches no device function")

    def arguments(self, alignment: int) -> dict[str, Tensor | Scalar]:
        """The arguments, in the order of a call. A tensor that no launch gets may be None, as with TileLang itself, if
        others tell its sizes.

        Arguments:
            alignment: bytes that tensors are aligned to.
        """
        arguments = dict(self._argument(parameter, alignment) for parameter in self._function.params)
        values = [value for launch in self.launches for value in launch.passed.values()]
        used = {value.name for value in values if isinstance(value, Given)}
        used |= {value.tensor for value in values if isinstance(value, TensorMap)}
        shapes = {name: value.shape for name, value in arguments.items() if isinstance(value, Tensor)}
        names = {name: {each for size in shape for each in names_in(size)} for name, shape in shapes.items()}
        told = set[str]().union(*(names[name] for name in used & names.keys()))
        for name, value in arguments.items():
            if isinstance(value, Tensor) and name not in used and value.strides == COMPACT and names[name] <= told:
                arguments[name] = Tensor.of_fields(**{**vars(value), "optional": True})
        return arguments

    def _argument(self, parameter: Any, alignment: int) -> tuple[str, Tensor | Scalar]:
        buffer = self._function.buffer_map.get(parameter)
        if buffer is None:
            if str(parameter.dtype) == "handle":
                message = f"argument {parameter.name!r} is a plain pointer: give it a shape and a dtype with T.Tensor"
                raise UnsupportedError(message)
            return str(parameter.name), Scalar(str(parameter.dtype))
        name = str(buffer.name)
        shape, strides = (
            [_number(size_text(size, _plain)) for size in sizes] for sizes in (buffer.shape, buffer.strides)
        )
        told = COMPACT if _is_compact(shape, strides) else strides
        tensor = Tensor(str(buffer.dtype), *shape, alignment=alignment, written=name in self._written, strides=told)
        return name, tensor

    def _visit(self, node: Any) -> None:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for item in node.seq:
                self._visit(item)
        elif kind in ("Bind", "LetStmt"):
            self._bind(node.var, node.value)
            self._visit_body(node)
        elif kind == "Evaluate":
            self._evaluate(node.value)
        elif kind in ("AttrStmt", "DeclBuffer", "AssertStmt"):
            self._visit_body(node)
        elif kind == "AllocBuffer" and str(node.buffer.scope()) == "global":
            self._allocate(node.buffer)
            self._visit_body(node)
        elif self._started and kind != "Return":
            raise UnsupportedError(f"its host code has a {kind}: {_first_line(node)}")

    def _visit_body(self, node: Any) -> None:
        body = getattr(node, "body", None)
        if body is not None:
            self._visit(body)

    def _bind(self, variable: Any, value: Any) -> None:
        if self._started and _name_of(value) != "tirx.tvm_stack_alloca":  # that is memory for a tensor map
            self._values.append((variable, self._text(value)))

    def _allocate(self, buffer: Any) -> None:
        """Note memory of a call, which ``T.alloc_global`` asks for."""
        name = f"memory {len(self._memories)}"
        self._memories[name] = Workspace(str(buffer.dtype), *(_number(self._text(size)) for size in buffer.shape))
        self._values.append((buffer.data, Given(name)))

    def _evaluate(self, call: Any) -> None:
        if _name_of(call) not in ("tirx.tvm_call_packed", "tirx.call_packed"):
            if self._started and type(call).__name__ != "IntImm" and _name_of(call) != "tirx.ret":
                raise UnsupportedError(f"its host code calls {_first_line(call)}")
            return
        name, *arguments = call.args
        callee = str(getattr(name, "value", name))
        if callee == "__tvm_set_device":
            self._started = True
        elif callee == ENCODE:
            self._encode(arguments)
        elif callee in self._device:
            self._launch(callee, arguments)
        else:
            raise UnsupportedError(f"it uses {FEATURES.get(callee, f'what host code calls {callee} for')}")

    def _encode(self, arguments: list[Any]) -> None:
        """Note a tensor map: these are the arguments of cuTensorMapEncodeTiled."""
        dtype, rank, tensor = int(arguments[1]), int(arguments[2]), self._tensor(arguments[3])
        if dtype >= len(DATA_TYPES) or tensor is None:
            raise UnsupportedError(f"it makes a tensor map in a way of its own: {_first_line(arguments[3])}")
        values = iter(map(self._text, arguments[4:]))
        # It gives the stride of the innermost dimension, too, which is that of an element.
        sizes, strides, box, steps = (tuple(itertools.islice(values, rank)) for _ in range(4))
        lists = sizes, strides[1:], tuple(map(int, box)), tuple(map(int, steps))
        self._values.append((arguments[0], TensorMap(tensor, DATA_TYPES[dtype], *lists, *map(int, values))))

    def _launch(self, callee: str, arguments: list[Any]) -> None:
        function = self._device[callee]
        attributes, count = dict(function.attrs), len(function.params)
        passed = [self._passed(value, str(p.dtype)) for value, p in zip(arguments, function.params, strict=False)]
        tags = [str(tag) for tag in attributes["tirx.kernel_launch_params"]]
        sizes = dict(zip(tags, map(self._text, arguments[count:]), strict=True))
        self._note_written(function, passed)
        shared = _number(sizes.pop("tirx.use_dyn_shared_memory", "0"))
        launched = [(CLUSTER.get(tag, tag), size) for tag, size in sizes.items()]
        names = ("use_cooperative_groups", "has_cuda_pdl_sync")
        cooperative, dependent = (bool(int(attributes.get(name, 0))) for name in names)
        parameters = {f"p{number}": value for number, value in enumerate(passed)}
        launch = DeclaredLaunch(callee, parameters, launched, shared, cooperative, dependent)
        self.launches.append(replace(launch, memories=self._memories))

    def _passed(self, value: Any, dtype: str) -> Given | TensorMap | Size:
        """What a parameter gets: a tensor or other memory, a map, or a number."""
        known, tensor = self._value_of(value), self._tensor(value)
        if isinstance(known, TensorMap):
            return known
        if tensor is not None:
            return Given(tensor)
        if dtype == "handle":
            raise UnsupportedError(f"its host code passes the pointer {_first_line(value)}")
        return Size(_number(self._text(value)), dtype)

    def _value_of(self, variable: Any) -> str | TensorMap | Given | None:
        """What the host code has computed, encoded or allocated under a variable."""
        return next((value for known, value in self._values if known.same_as(variable)), None)

    def _tensor(self, value: Any) -> str | None:
        """The tensor, or the memory of the call, whose data a pointer is to."""
        known = self._value_of(value)
        if isinstance(known, Given):
            return known.name
        return self._tensors.get(str(value.name)) if type(value).__name__ == "Var" else None

    def _note_written(self, function: Any, passed: Sequence[Given | TensorMap | Size]) -> None:
        """Note the tensors that a device function may write."""
        from tvm.tirx.stmt_functor import post_order_visit

        read_only = {int(index) for index in function.attrs.get("tl.readonly_param_indices", ())}
        stored: set[str] = set()

        def visit(node: Any) -> None:
            if type(node).__name__ == "Call" and not READS_MAP.match(_name_of(node)):
                stored.update(str(value.name) for value in node.args if type(value).__name__ == "Var")

        post_order_visit(function.body, visit)
        for index, (parameter, value) in enumerate(zip(function.params, passed, strict=True)):
            if isinstance(value, Given) and index not in read_only:
                self._written.add(value.name)
            if isinstance(value, TensorMap) and str(parameter.name) in stored:
                self._written.add(value.tensor)

    def _text(self, node: Any) -> str:
        def name_of(variable: Any) -> str:
            known = self._value_of(variable)
            return known if isinstance(known, str) else _plain(variable)

        return size_text(node, name_of)


def _is_compact(shape: Sequence[int | str], strides: Sequence[int | str]) -> bool:
    """Whether a tensor has its elements in row-major order, without gaps."""
    compact = all_strides("", shape, COMPACT)
    return all(_product(str(one)) == _product(str(other)) for one, other in zip(strides, compact, strict=False))


def _product(text: str) -> list[str]:
    """The factors of a product of sizes, with the numbers among them as one."""
    factors = [factor for factor in re.split(r"[ ()*]+", text) if factor]
    number = 1
    for factor in factors:
        number *= int(factor) if factor.isdigit() else 1
    return [str(number), *sorted(factor for factor in factors if not factor.isdigit())]


def _plain(variable: Any) -> str:
    return str(variable.name)


def _number(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def size_text(node: Any, name_of: Callable[[Any], str]) -> str:
    """A number as an expression over sizes, in brackets if it is more than a name or an integer."""
    kind = type(node).__name__
    if isinstance(node, int):
        return str(node)
    if kind == "IntImm":
        return str(int(node.value))
    if kind == "Var":
        return name_of(node)
    if kind == "Cast":
        return size_text(node.value, name_of)
    if kind in INFIX:
        return f"({size_text(node.a, name_of)} {INFIX[kind]} {size_text(node.b, name_of)})"
    if kind in FUNCTIONS:
        return f"{FUNCTIONS[kind]}({size_text(node.a, name_of)}, {size_text(node.b, name_of)})"
    if _name_of(node) in ("tirx.shift_left", "tirx.shift_right") and type(node.args[1]).__name__ == "IntImm":
        operator = "*" if _name_of(node).endswith("left") else "//"
        return f"({size_text(node.args[0], name_of)} {operator} {1 << int(node.args[1].value)})"
    raise UnsupportedError(f"its host code computes {_first_line(node)}, which is no arithmetic of sizes")


def _name_of(call: Any) -> str:
    return str(getattr(getattr(call, "op", None), "name", ""))


def _first_line(node: Any) -> str:
    lines = [line for line in str(node).strip().splitlines() if not line.startswith("#")]
    return (lines or [type(node).__name__])[0].strip()[:200]
