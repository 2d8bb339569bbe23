"""Lowers functions of TileLang: a module that runs in an environment which has TileLang, and not Kernelwright.

Written for TileLang 0.1.15.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, ClassVar, cast

from ...core.errors import DefinitionError, LoweringError, Where
from ...core.signature import TensorMap
from ...define.arguments import Scalar, Tensor, Workspace
from ...define.sizes import Size, names_in
from ...define.strides import COMPACT, all_strides
from ..launches import DeclaredLaunch, Given
from ..named_source import SourceRequest, require_function

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

ALIGNMENT = 16
"""Bytes that tensors are aligned to: TileLang's code loads as many at once, and asks no one."""

WIDE = ("longlong4", "load_global_256", "store_global_256", "_global_256")
"""What is in source whose code loads 32 bytes at once."""

READS_MAP = re.compile(r"tl\.(tma_load|prefetch_tma)")
"""Operations that read the tensor of a tensor map and never write it."""

FEATURES = {
    "__tvm_tensormap_create_im2col": "a tensor map for convolutions (T.im2col)",
    "__tvm_cuda_stream_set_access_policy_window": "a policy of the level 2 cache (T.annotate_l2_hit_ratio)",
}
"""What host code calls for features that launches of Kernelwright do not have."""


@dataclass(frozen=True)
class Lowered:
    """The result of lowering a function.

    Arguments:
        arguments: those of the kernel by their names, in the order of a call.
        outputs: the names of those that the function itself calls outputs.
        launches: what host code launches, with what.
        source, module: the CUDA source, and the function in TIR.
        flags: flags of the CUDA compiler.
        files: as ``LoweredKernel.read``.
    """

    arguments: Mapping[str, Tensor | Scalar]
    outputs: tuple[str, ...]
    launches: tuple[DeclaredLaunch, ...]
    source: str
    module: str
    flags: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TileLangRequest(SourceRequest):
    """Lower a function, which is called with these values, in the form of ``sent`` in ``program.py``."""

    op: ClassVar[str] = "tilelang"
    result: ClassVar[type[Lowered]] = Lowered
    arguments: Mapping[str, Any]

    @property
    def cannot(self) -> str:
        """What TileLang cannot do if it raises an error itself, for messages."""
        return f"TileLang cannot lower {self.function} for {self.unit.arch}"

    @property
    def otherwise(self) -> str:  # type: ignore[override]
        """What may help besides, for messages: a number in place of a size that callers choose."""
        names = dict.fromkeys(re.findall(r'\["size", "(\w+)"\]', json.dumps(self.arguments)))
        return f"; or, if it needs to know {' or '.join(names)}, give the Program a number for it" if names else ""

    @property
    def remedy(self) -> str | None:  # type: ignore[override]
        """The same where nothing else is known to help."""
        return self.otherwise.removeprefix("; or, ") or None


class UnsupportedError(Exception):
    """A function has what launches of Kernelwright do not have."""


def load() -> ModuleType:
    """Import TileLang."""
    import tilelang

    return cast("ModuleType", tilelang)


def _lower(request: TileLangRequest, module: ModuleType) -> Lowered:
    """What the function of a request is lowered to."""
    try:
        return _lowered(_Function(_function_of(request, module), request), request.unit.arch)
    except UnsupportedError as error:
        message = f"{request.function} cannot be a kernel of a package: {error}"
        raise LoweringError(
            message, None, "leave that out of the function, or call TileLang's kernel itself"
        ) from error


def _lowered(compiled: _Function, arch: str) -> Lowered:
    host, device, source = compiled.lower(arch)
    reader = _HostReader(compiled.function, device)
    reader.read(host)
    arguments = reader.arguments(2 * ALIGNMENT if any(word in source for word in WIDE) else ALIGNMENT)
    return Lowered(
        arguments=arguments,
        outputs=tuple(list(arguments)[index] for index in compiled.outputs),
        launches=tuple(reader.launches),
        source=source,
        module=f"{compiled.function.script()}\n",
        flags=tuple(compiled.flags),
    )


def _function_of(request: TileLangRequest, module: ModuleType) -> Any:
    from tilelang.jit import JITImpl

    def is_jit(value: Any) -> bool:
        return isinstance(getattr(value, "jit_impl", value), JITImpl)  # with @tilelang.autotune

    function = require_function(request, module, is_jit, "@tilelang.jit")
    return getattr(function, "jit_impl", function)


class _Function:
    """A function of TileLang with its values.

    Attributes:
        function: its TIR.
        outputs: the positions of its outputs.
        flags: flags of the CUDA compiler.
    """

    def __init__(self, jit: Any, request: TileLangRequest) -> None:
        from tilelang.jit.kernel import normalize_pass_configs

        target = _target(request.unit.arch)
        jit.target = target  # what a decorator says is of the machine that runs it
        self.function = _called(jit, request)
        attributes = dict(self.function.attrs or {})
        self._configs = normalize_pass_configs(
            {**dict(attributes.get("tilelang_pass_configs", {})), **dict(jit.pass_configs or {})}
        )
        outputs = attributes.get("tilelang_out_idx", jit.out_idx)
        count = len(self.function.params)
        positions = [] if outputs is None else [outputs] if isinstance(outputs, int) else list(outputs)
        self.outputs = [int(index) % count for index in positions]
        listed_flags = [*attributes.get("tilelang_compile_flags", ()), *_listed(jit.compile_flags)]
        self.flags = list(self._flags(map(str, listed_flags)))

    def _flags(self, flags: Iterator[str]) -> Iterator[str]:
        """The flags that TileLang would give nvcc, besides its own folders and the standard of C++."""
        from tilelang.transform import PassConfigKey as Key

        configs = self._configs
        for flag in [*_listed(configs.get(Key.TL_DEVICE_COMPILE_FLAGS)), *flags]:
            yield from shlex.split(str(flag))
        if configs.get(Key.TL_ENABLE_FAST_MATH):
            yield "--use_fast_math"
        level = configs.get(Key.TL_PTXAS_REGISTER_USAGE_LEVEL)
        if level is not None:
            yield f"--ptxas-options=--register-usage-level={int(level)}"

    def lower(self, arch: str) -> tuple[Any, Any, str]:
        """The host function in TIR, the device functions in TIR, and their CUDA source."""
        from tilelang.backend.module import create_backend_context
        from tilelang.engine.lower import device_codegen_without_compile, lower_to_host_device_ir
        from tilelang.instrumentation import compile_pass_instrumentation, instrument_current_pass_context
        from tilelang.transform import PassContext

        target = _target(arch)
        with PassContext(opt_level=3, config=self._configs), target:
            context = create_backend_context(target, None, "tvm_ffi")
            with compile_pass_instrumentation(name="kernelwright"), instrument_current_pass_context():
                host, device, *_ = lower_to_host_device_ir(self.function, context)
                source = str(device_codegen_without_compile(device, context).inspect_source())
        functions = [value for _, value in host.functions.items()]
        if len(functions) != 1:
            raise UnsupportedError("its host code calls functions of its own")
        return functions[0], device, source


def _called(jit: Any, request: TileLangRequest) -> Any:
    """The TIR that a function makes of its values."""
    sizes: dict[str, Any] = {}
    values = {name: _value(value, sizes) for name, value in request.arguments.items()}
    _refuse_decisions(tuple(sizes.values()), request)
    try:
        return jit.get_tir(**values)
    except (TypeError, ValueError) as error:
        # Where no line of the author's has run, it is the call that is wrong.
        if any(
            frame.filename == jit.func.orig_func.__code__.co_filename
            for frame in traceback.extract_tb(error.__traceback__)
        ):
            raise
        message = f"{request.function} cannot be called with the values of the Program: {str(error).strip()}"
        raise DefinitionError(message, None, "give a value to each of its parameters that is no tensor") from error


def _value(sent: Any, sizes: dict[str, Any]) -> Any:
    """A value that was sent; ``sizes`` gets the variable of each size in it."""
    if isinstance(sent, Mapping):
        return {name: _value(item, sizes) for name, item in sent.items()}
    if not isinstance(sent, list):
        return sent
    kind, *items = sent
    if kind == "size":
        import tilelang.language as T

        return sizes.setdefault(items[0], T.dynamic(items[0]))
    return (tuple if kind == "tuple" else list)(_value(item, sizes) for item in items)


def _refuse_decisions(sizes: Sequence[Any], request: TileLangRequest) -> None:
    """Have the author's Python code not decide by whether a size is equal to something. TVM answers that expressions
    differ unless they are one object, which is wrong for some calls.

    Arguments:
        sizes: the variables of sizes that callers choose.
    """
    import tilelang
    from tvm.tirx.expr import EqualOp, NotEqualOp, PrimExpr
    from tvm.tirx.stmt_functor import post_order_visit

    folder = os.path.dirname(tilelang.__file__)  # noqa: PTH120

    def answer(compared: Any) -> Callable[[Any], bool]:
        usual = compared.__bool__

        def decide(self: Any) -> bool:
            caller, used = sys._getframe(1), list[Any]()
            is_known = self.a.same_as(self.b) or caller.f_code.co_filename.startswith(folder)
            if not is_known and all(isinstance(side, (int, PrimExpr)) for side in (self.a, self.b)):
                post_order_visit(self.asobject(), used.append)
            if any(node.same_as(size) for node in used for size in sizes):
                message = f"{request.function} decides by whether {self.a} is {self.b}, which only a call knows"
                where = Where(location=f"{caller.f_code.co_filename}:{caller.f_lineno}")
                raise DefinitionError(message, where, f"mend that line{request.otherwise}")
            return bool(usual(self))

        return decide

    for kind in (EqualOp, NotEqualOp):
        kind.__bool__ = answer(kind)


def _target(arch: str) -> Any:
    from tvm.target import Target

    return Target({"kind": "cuda", "arch": arch})


def _listed(value: Any) -> list[Any]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


class _HostReader:
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
        shape, strides = ([_number(_size(size, _plain)) for size in sizes] for sizes in (buffer.shape, buffer.strides))
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

        return _size(node, name_of)


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


def _size(node: Any, name_of: Callable[[Any], str]) -> str:
    """A number as an expression over sizes, in brackets if it is more than a name or an integer."""
    kind = type(node).__name__
    if isinstance(node, int):
        return str(node)
    if kind == "IntImm":
        return str(int(node.value))
    if kind == "Var":
        return name_of(node)
    if kind == "Cast":
        return _size(node.value, name_of)
    if kind in INFIX:
        return f"({_size(node.a, name_of)} {INFIX[kind]} {_size(node.b, name_of)})"
    if kind in FUNCTIONS:
        return f"{FUNCTIONS[kind]}({_size(node.a, name_of)}, {_size(node.b, name_of)})"
    if _name_of(node) in ("tirx.shift_left", "tirx.shift_right") and type(node.args[1]).__name__ == "IntImm":
        operator = "*" if _name_of(node).endswith("left") else "//"
        return f"({_size(node.args[0], name_of)} {operator} {1 << int(node.args[1].value)})"
    raise UnsupportedError(f"its host code computes {_first_line(node)}, which is no arithmetic of sizes")


def _name_of(call: Any) -> str:
    return str(getattr(getattr(call, "op", None), "name", ""))


def _first_line(node: Any) -> str:
    lines = [line for line in str(node).strip().splitlines() if not line.startswith("#")]
    return (lines or [type(node).__name__])[0].strip()[:200]


OPERATIONS = {TileLangRequest: _lower}
"""Request -> what does it, for ``worker/elsewhere.py``."""
