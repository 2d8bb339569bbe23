"""Lowers functions of TileLang: a program that runs in an environment which has TileLang, and not Kernelwright.

It reads requests from stdin and answers on stdout, one JSON object in a line each, until stdin ends. Each request is
answered by a fork, so that sources are executed anew, and an error that ends the process is an answer, too::

    < {"version": "0.1.15"}
    > {"root": "/project", "file": "/project/kernels/tile/matmul.py", "function": "matmul", "arguments": {"M": 1024},
       "arch": "sm_90a"}
    < {"lowered": {"arguments": [...], "maps": [...], "launches": [...], "source": "...", ...}, "files": {...}}
    < {"error": {"kind": "...", "message": "...", "location": "...", "detail": "..."}, "files": {...}}

``files`` are those of the project that it used, as :class:`Reads` has them.

Written for TileLang 0.1.15. Nothing here imports a module of ours.
"""

# ruff: noqa: E402

from __future__ import annotations

import sys

# The folder of this program has modules with the names of others, such as "triton".
sys.path[:] = [folder for folder in sys.path if folder != __file__.rpartition("/")[0]]

import hashlib
import importlib.util
import itertools
import json
import os
import re
import shlex
import signal
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

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
"""Operations that only read the tensor of a tensor map."""

FEATURES = {
    "__tvm_tensormap_create_im2col": "a tensor map for convolutions (T.im2col)",
    "__tvm_cuda_stream_set_access_policy_window": "a policy of the level 2 cache (T.annotate_l2_hit_ratio)",
}
"""What host code calls for features that launches of Kernelwright do not have."""


class Failure(Exception):
    """Why a function cannot be lowered, in words for its author.

    Arguments:
        kind: ``function``: the file has no such function; ``values``: it takes others; ``unsupported``: TileLang can do
            more than a launch of ours; ``source``: the author's code raised an error; ``tilelang``: TileLang did.
        message: what is wrong.
        location: ``path:line``, if it is known.
        detail: more about it.
    """

    def __init__(self, kind: str, message: str, location: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.answer = {"kind": kind, "message": message, "location": location, "detail": detail}


def main() -> None:
    """Serve requests until stdin ends."""
    outgoing = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what others print is no answer
    try:
        import tilelang
    except Exception as error:  # a broken installation fails in many ways
        _send(outgoing, {"error": f"{type(error).__name__}: {error}"})
        return
    _send(outgoing, {"version": tilelang.__version__})
    for line in sys.stdin:
        _send(outgoing, _answered(json.loads(line)))


def _send(stream: Any, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def _answered(request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(_answer(request)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as stream:
        text = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0 and text:
        answer: dict[str, Any] = json.loads(text)
        return answer
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    return {"error": Failure("tilelang", f"the process {how}").answer, "files": {}}


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    root = request["root"]
    reads = Reads(root)
    reads.install()
    try:
        answer = {"lowered": _lower(request)}
    except Failure as failure:
        answer = {"error": failure.answer}
    except BaseException as error:  # it runs the author's code, and TileLang's errors have many types
        answer = {"error": _failure(error, root).answer}
    for file in _project_files(root):
        reads.note(file)
    return {**answer, "files": dict(sorted(reads.files.items()))}


class Reads:
    """Notes what a process uses of the project, from :meth:`install` on: also the files that it asks for in vain.

    Python itself would load a module from bytecode, which may be of another source.

    Arguments:
        root: the project's folder.

    Attributes:
        files: path -> the digest of the content when it was first used; empty: there is no such file. A path with a
            slash at the end is that of a folder whose names were listed; it has no digest here.
    """

    def __init__(self, root: str) -> None:
        self.files: dict[str, str | None] = {}
        self._root = root
        self._made: set[str] = set()
        self._is_busy = False

    def install(self) -> None:
        """Have Python tell what it opens and lists, and ask here first for modules. There is no way back."""
        sys.addaudithook(self._hook)
        sys.meta_path.insert(0, self)

    def note(self, path: str) -> bool:
        """Note a file; returns whether it is there."""
        if path not in self.files:
            self._is_busy = True
            try:
                self.files[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            except (OSError, ValueError):
                self.files[path] = ""
            self._is_busy = False
        return bool(self.files[path])

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_busy or event not in ("open", "os.listdir", "os.scandir"):
            return
        try:
            path = os.path.abspath(os.fsdecode(arguments[0] or "."))  # noqa: PTH100
        except TypeError:  # the number of an open file
            return
        if not _is_inside(path, self._root) or path.endswith(".pyc"):
            return
        if event != "open":
            # Python's own finder lists folders; what it is asked for is noted one by one.
            if sys._getframe(1).f_code.co_name != "_fill_cache":
                self.files.setdefault(f"{path}/", None)
        elif arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self._made.add(path)
        elif path not in self._made and not os.path.isdir(path):  # noqa: PTH112
            self.note(path)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module of the project, as far as its folders come first; None for any other."""
        folders = map(os.path.abspath, sys.path if path is None else path)
        for folder in itertools.takewhile(lambda folder: _is_inside(f"{folder}/", self._root), folders):
            base = f"{folder}/{name.rpartition('.')[2]}"
            for file, inside in ((f"{base}/__init__.py", [base]), (f"{base}.py", None)):
                if self.note(file):
                    loader = _FromSource(name, file)
                    return importlib.util.spec_from_file_location(
                        name, file, loader=loader, submodule_search_locations=inside
                    )
        return None


class _FromSource(SourceFileLoader):
    """Loads a module from its source and never from bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _lower(request: dict[str, Any]) -> dict[str, Any]:
    """What the function of a request is lowered to."""
    compiled = _Function(_function_of(request), request)
    host, device, source = compiled.lower(request["arch"])
    reader = _HostReader(compiled.function, device)
    reader.read(host)
    tensors, names = reader.arguments(), [argument["name"] for argument in reader.arguments()]
    return {
        "name": request["function"],
        "arguments": tensors,
        "outputs": [names[index] for index in compiled.outputs],
        "maps": reader.maps,
        "launches": reader.launches,
        "source": source,
        "module": f"{compiled.function.script()}\n",
        "flags": compiled.flags,
    }


def _function_of(request: dict[str, Any]) -> Any:
    """The function that a request names, in its source, which is executed."""
    file, name, root = request["file"], request["function"], request["root"]
    sys.path[:0] = [str(Path(file).parent), root]
    sys.dont_write_bytecode = True
    stem = Path(file).stem
    own = f"_{stem}" if stem in sys.modules else stem  # it must not take the place of a module such as "math"
    spec = importlib.util.spec_from_file_location(own, file, loader=_FromSource(own, file))
    if spec is None or spec.loader is None:
        raise Failure("function", f"{_short(file, root)} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # TileLang looks for the source of its functions through their module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    from tilelang.jit import JITImpl

    function = getattr(function, "jit_impl", function)  # with @tilelang.autotune
    if isinstance(function, JITImpl):
        return function
    known = ", ".join(n for n, value in vars(module).items() if isinstance(getattr(value, "jit_impl", value), JITImpl))
    what = f"has no {name!r}" if function is None else f"has {name!r}, which is no function with @tilelang.jit"
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
    raise Failure("function", f"{_short(file, root)} {what}; such functions are {known or 'none'}", f"{file}:{line}")


class _Function:
    """A function of TileLang with its values.

    Attributes:
        function: its TIR.
        outputs: the positions of its outputs.
        flags: flags of the CUDA compiler.
    """

    def __init__(self, jit: Any, request: dict[str, Any]) -> None:
        from tilelang.jit.kernel import normalize_pass_configs

        target = _target(request["arch"])
        jit.target = target  # what a decorator says is of the machine that runs it
        self.function = _called(jit, request["arguments"])
        attributes = dict(self.function.attrs or {})
        self._configs = normalize_pass_configs(
            {**dict(attributes.get("tilelang_pass_configs", {})), **dict(jit.pass_configs or {})}
        )
        wanted = attributes.get("tilelang_out_idx", jit.out_idx)
        count = len(self.function.params)
        listed = [] if wanted is None else [wanted] if isinstance(wanted, int) else list(wanted)
        self.outputs = [int(index) % count for index in listed]
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
                source = device_codegen_without_compile(device, context).inspect_source()
        functions = [value for _, value in host.functions.items()]
        if len(functions) != 1:
            raise Failure("unsupported", "its host code calls functions of its own")
        return functions[0], device, source


def _called(jit: Any, values: dict[str, Any]) -> Any:
    """The TIR that a function makes of its values."""
    try:
        return jit.get_tir(**values)
    except (TypeError, ValueError) as error:
        # Where no line of the author's has run, it is the call that is wrong.
        if any(
            frame.filename == jit.func.orig_func.__code__.co_filename
            for frame in traceback.extract_tb(error.__traceback__)
        ):
            raise
        raise Failure("values", str(error).strip()) from error


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
        self._known: dict[str, Any] = {}
        self._written: set[str] = set()
        self.maps: list[dict[str, Any]] = []
        self.launches: list[dict[str, Any]] = []
        self._tensors = {str(buffer.data.name): str(buffer.name) for _, buffer in function.buffer_map.items()}

    def read(self, host: Any) -> None:
        """Read the host function, as ``MakePackedAPI`` makes it."""
        self._visit(host.body)
        if not self.launches:
            raise Failure("unsupported", "its host code launches no device function")

    def arguments(self) -> list[dict[str, Any]]:
        """The arguments, in the order of a call."""
        return [self._argument(parameter) for parameter in self._function.params]

    def _argument(self, parameter: Any) -> dict[str, Any]:
        buffer = self._function.buffer_map.get(parameter)
        if buffer is None:
            if str(parameter.dtype) == "handle":
                message = f"argument {parameter.name!r} is a plain pointer: give it a shape and a dtype with T.Tensor"
                raise Failure("unsupported", message)
            return {"name": str(parameter.name), "dtype": str(parameter.dtype), "shape": None}
        name = str(buffer.name)
        _require_compact(buffer)
        shape = [_size(size, _plain) for size in buffer.shape]
        return {"name": name, "dtype": str(buffer.dtype), "shape": shape, "written": name in self._written}

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
        elif self._started and kind != "Return":
            raise Failure("unsupported", f"its host code has a {kind}: {_first_line(node)}")

    def _visit_body(self, node: Any) -> None:
        body = getattr(node, "body", None)
        if body is not None:
            self._visit(body)

    def _bind(self, variable: Any, value: Any) -> None:
        if not self._started:
            return
        if _name_of(value) == "tirx.tvm_stack_alloca":
            self._known[str(variable.name)] = {"map": len(self.maps)}
            self.maps.append({})
        else:
            self._known[str(variable.name)] = {"size": self._text(value)}

    def _evaluate(self, call: Any) -> None:
        if _name_of(call) not in ("tirx.tvm_call_packed", "tirx.call_packed"):
            if self._started and type(call).__name__ != "IntImm" and _name_of(call) != "tirx.ret":
                raise Failure("unsupported", f"its host code calls {_first_line(call)}")
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
            raise Failure("unsupported", f"it uses {FEATURES.get(callee, f'what host code calls {callee} for')}")

    def _encode(self, arguments: list[Any]) -> None:
        """Note a tensor map, whose place among the others is known: the arguments of cuTensorMapEncodeTiled."""
        place = self._known[str(arguments[0].name)]["map"]
        dtype, rank, tensor = int(arguments[1]), int(arguments[2]), self._tensor(arguments[3])
        if dtype >= len(DATA_TYPES) or tensor is None:
            raise Failure("unsupported", f"it makes a tensor map in a way of its own: {_first_line(arguments[3])}")
        values = iter(map(self._text, arguments[4:]))
        # It gives the stride of the innermost dimension, too, which is that of an element.
        lists = {name: [next(values) for _ in range(rank)] for name in ("sizes", "strides", "box", "steps")}
        modes = dict(zip(("interleave", "swizzle", "promotion", "fill"), map(int, values), strict=True))
        lists["strides"] = lists["strides"][1:]
        whole = {name: [int(number) for number in lists[name]] for name in ("box", "steps")}
        self.maps[place] = {"tensor": tensor, "dtype": DATA_TYPES[dtype], **lists, **whole, **modes}

    def _launch(self, callee: str, arguments: list[Any]) -> None:
        function = self._device[callee]
        attributes, count = dict(function.attrs), len(function.params)
        passed = [self._passed(value, str(p.dtype)) for value, p in zip(arguments, function.params, strict=False)]
        tags = [str(tag) for tag in attributes["tirx.kernel_launch_params"]]
        sizes = dict(zip(tags, map(self._text, arguments[count:]), strict=True))
        self._note_written(function, passed)
        self.launches.append(
            {
                "function": callee,
                "passed": passed,
                "shared": sizes.pop("tirx.use_dyn_shared_memory", "0"),
                "sizes": {CLUSTER.get(tag, tag): size for tag, size in sizes.items()},
                "cooperative": bool(int(attributes.get("use_cooperative_groups", 0))),
                "dependent": bool(int(attributes.get("has_cuda_pdl_sync", 0))),
            }
        )

    def _passed(self, value: Any, dtype: str) -> dict[str, Any]:
        """What a parameter gets: a tensor, a map, or a number."""
        known = self._known.get(str(getattr(value, "name", "")), {})
        if "map" in known:
            return dict(known)
        tensor = self._tensor(value)
        if tensor is not None:
            return {"tensor": tensor}
        if dtype == "handle":
            raise Failure("unsupported", f"its host code passes the pointer {_first_line(value)}")
        return {"size": self._text(value), "dtype": dtype}

    def _tensor(self, value: Any) -> str | None:
        """The tensor whose data a pointer is to."""
        return self._tensors.get(str(value.name)) if type(value).__name__ == "Var" else None

    def _note_written(self, function: Any, passed: list[dict[str, Any]]) -> None:
        """Note the tensors that a device function may write."""
        from tvm.tirx.stmt_functor import post_order_visit

        read_only = {int(index) for index in function.attrs.get("tl.readonly_param_indices", ())}
        stored: set[str] = set()

        def visit(node: Any) -> None:
            if type(node).__name__ == "Call" and not READS_MAP.match(_name_of(node)):
                stored.update(str(value.name) for value in node.args if type(value).__name__ == "Var")

        post_order_visit(function.body, visit)
        for index, (parameter, value) in enumerate(zip(function.params, passed, strict=True)):
            if "tensor" in value and index not in read_only:
                self._written.add(value["tensor"])
            if "map" in value and str(parameter.name) in stored:
                self._written.add(self.maps[value["map"]]["tensor"])

    def _text(self, node: Any) -> str:
        def name_of(variable: Any) -> str:
            known = self._known.get(str(variable.name))
            return _plain(variable) if known is None else str(known["size"])

        return _size(node, name_of)


def _require_compact(buffer: Any) -> None:
    """Raise a Failure for a tensor with gaps or another order of its dimensions."""
    expected = "1"
    texts = [_size(size, _plain) for size in buffer.shape]
    for size, stride in zip(reversed(texts), reversed([_size(s, _plain) for s in buffer.strides]), strict=False):
        if _product(stride) != _product(expected):
            message = f"argument {buffer.name!r} has strides of its own ({', '.join(map(str, buffer.strides))})"
            raise Failure("unsupported", f"{message}: launches pass tensors in row-major order without gaps")
        expected = f"({expected} * {size})"


def _product(text: str) -> list[str]:
    """The factors of a product of sizes, with the numbers among them as one."""
    factors = [factor for factor in re.split(r"[ ()*]+", text) if factor]
    number = 1
    for factor in factors:
        number *= int(factor) if factor.isdigit() else 1
    return [str(number), *sorted(factor for factor in factors if not factor.isdigit())]


def _plain(variable: Any) -> str:
    return str(variable.name)


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
    raise Failure("unsupported", f"its host code computes {_first_line(node)}, which is no arithmetic of sizes")


def _name_of(call: Any) -> str:
    return str(getattr(getattr(call, "op", None), "name", ""))


def _first_line(node: Any) -> str:
    lines = [line for line in str(node).strip().splitlines() if not line.startswith("#")]
    return (lines or [type(node).__name__])[0].strip()[:200]


def _failure(error: BaseException, root: str) -> Failure:
    """What an exception of the author's code, or of TileLang in it, says: at the innermost line of the project."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_project(frame.filename, root)]
    location = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = str(error).strip()
    if isinstance(error, SyntaxError) and error.filename:
        location, text = f"{error.filename}:{error.lineno}", error.msg
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    message = f"{type(error).__name__}: {first}" if first else type(error).__name__
    shown = "".join([*traceback.format_list(frames), f"{type(error).__name__}: {text}"])
    return Failure("source" if frames else "tilelang", _short(message, root), location, _short(shown, root))


def _is_of_project(path: str, root: str) -> bool:
    return _is_inside(path, root) and os.path.isfile(path)  # noqa: PTH113


def _is_inside(path: str, root: str) -> bool:
    """Whether a path is one of the project, and not of an environment in its folder."""
    foreign = path.startswith(sys.prefix + os.sep) or "site-packages" in Path(path).parts
    return path.startswith(root + os.sep) and not foreign


def _project_files(root: str) -> Iterator[str]:
    """The files of the project that were imported."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and _is_of_project(file, root) and file != __file__:
            yield file


def _short(text: str, root: str) -> str:
    """Text without the root in paths."""
    return text.replace(root + os.sep, "")


if __name__ == "__main__":
    main()
