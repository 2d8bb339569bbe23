"""Lowers functions of TileLang: a module that runs in an environment which has TileLang, and not Kernelwright.

Written for TileLang 0.1.15.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, cast

from ...core.errors import DefinitionError, LoweringError, Where
from ...define.arguments import Scalar, Tensor
from ..launches import DeclaredLaunch
from ..named_source import SourceRequest, require_function
from .host_reader import HostReader, UnsupportedError

ALIGNMENT = 16
"""Bytes that tensors are aligned to: TileLang's code loads as many at once, and asks no one."""

WIDE = ("longlong4", "load_global_256", "store_global_256", "_global_256")
"""What is in source whose code loads 32 bytes at once."""


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
    reader = HostReader(compiled.function, device)
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


OPERATIONS = {TileLangRequest: _lower}
"""Request -> what does it, for ``worker/elsewhere.py``."""
