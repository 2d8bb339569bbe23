"""Lowers a Program: NVIDIA's compiler makes device code for each arch, and exports the host code beside it.

The exported host code checks its arguments and computes the launch, as TVM's does. ``launcher/cutedsl.h`` has the
functions of NVIDIA's runtime library that it calls. So packages do not need that library, and the launcher chooses and
loads device code as for all other kernels. Written for nvidia-cutlass-dsl 4.8.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.arch import CudaArch, arch_order, real_arch
from ...core.errors import DefinitionError, KernelwrightError, LoweringError, ToolchainError, Where
from ...core.files import pretty_json
from ...define.arguments import Scalar, Tensor, multiples_of
from ...define.declared import first_difference
from ...define.sizes import divisor_of
from ...define.strides import all_strides
from ..cubin import device_files, functions_of, undefined_symbols, usage_of, with_spills
from ..declared_launch import declared_arguments
from ..raised import MAX_MESSAGE, first_line, line_of
from ..tir.signature import Argument, stride_symbols_of, symbols_of
from ..unit import LoweredKernel, Unit, returned_in
from .program import DTYPES, NEED, VERSION, Program

ANSWERED = frozenset(
    {
        *("CuteDSLRT_TVMFFISetRaisedCudaError", "TVMFFIEnvGetStream", "_GLOBAL_OFFSET_TABLE_"),
        *("_cuKernelGetAttribute", "_cudaDeviceGetAttribute", "_cudaFuncSetAttribute", "_cudaGetDevice"),
        *("_cudaKernelSetAttributeForDevice", "_cudaLaunchKernelEx", "_cudaLibraryGetKernel"),
        *("_cudaLibraryLoadData", "_cudaSetDevice", "cuda_dialect_init_library_once"),
        *("cuda_dialect_unload_library_once", "kw_cutedsl_print", "kw_cutedsl_raise"),
        *("kw_cutedsl_raise_parts", "memcpy", "memset"),
    }
)
"""What exported code may call: functions of ``launcher/cutedsl.h``, of tvm-ffi and of the C library."""

RENAMED = {
    "TVMFFIErrorSetRaisedFromCStr": "kw_cutedsl_raise",
    "TVMFFIErrorSetRaisedFromCStrParts": "kw_cutedsl_raise_parts",
    "printf": "kw_cutedsl_print",
}
"""A function that exported code reports errors with -> the launcher's in its place, whose errors name the kernel."""

STREAM = "stream"
"""The last parameter of a host function may have this name: it gets the stream that tvm-ffi has as the current one."""

HOST = """\
/* The host half of {kernel}/{slug}: CuTe DSL {version} has exported it, as host.o. The launcher stands in for what it
 * calls, which is written down in cutedsl.h. */
#include "cutedsl.h"

KW_HIDDEN int32_t __tvm_ffi_{entry}(void *, void *, int32_t, void *);

static int32_t {entry}_find(const char *name, void **function) {{
  return TVMFFIEnvModLookupFromImports(NULL, name, function);
}}

static int32_t {entry}(void *self, void *arguments, int32_t count, void *result) {{
  (void)self;
  const kw_entry exported = __tvm_ffi_{entry};
  return kw_cutedsl_call({entry}_find, exported, arguments, count, result);
}}
"""


@dataclass(frozen=True)
class _Compiled:
    """What CuTe DSL made for one arch.

    Arguments:
        arch: such as ``sm_90a``.
        cubin, ptx: the device code.
        host: the host code in MLIR's LLVM dialect, without the device code in it.
        object: the host code as an object file; empty unless it was asked for.
    """

    arch: str
    cubin: bytes
    ptx: str
    host: str
    object: bytes

    @property
    def portable_host(self) -> str:
        """The host code without the name of the arch, which a message in it has."""
        text = re.sub(r"(current GPU arch )\w+( allowed\. .* Max: )\d+", r"\1ARCH\2N", self.host)
        return text.replace(self.arch, "ARCH")


def lower(program: Program, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """Compile what a definition returned, for all archs of ``unit``.

    Arguments:
        program: what the definition returned.
        unit: what is being lowered.
        progress: called with what is about to be done.

    Raises:
        DefinitionError: its arguments do not fit.
        LoweringError: CuTe DSL cannot compile it, or its host code is not what the launcher can run.
        ToolchainError: CuTe DSL is not installed, or another release of it.
    """
    unit = program.checked(unit)
    _require_names(program, unit)
    arguments = declared_arguments(program.declared, unit, "int32")
    compiler = _Compiler(program, unit)
    results: dict[str, _Compiled] = {}
    for arch in sorted({real_arch(arch) for arch in unit.archs}):
        progress(f"compiling for {arch} (CuTe DSL)")
        results[arch] = compiler.compile(arch, with_object=arch == unit.arch)
    _require_one_host(results, unit)
    return LoweredKernel(_files(program, unit, results, compiler, arguments), "as written")


def _files(
    program: Program, unit: Unit, results: Mapping[str, _Compiled], compiler: _Compiler, arguments: list[Argument]
) -> dict[str, bytes]:
    main = results[unit.arch]
    files = {
        "module.mlir": _source(results).encode(),
        "signature.json": pretty_json(_signature(program, unit, functions_of(main.cubin), arguments)).encode(),
        "host.c": HOST.format(
            kernel=unit.kernel, slug=unit.slug, version=VERSION.rpartition(".")[0], entry=unit.symbol
        ).encode(),
        "host.o": main.object,
    }
    return files | device_files(unit.archs, results, lambda result: _usage(result, compiler))


def _source(results: Mapping[str, _Compiled]) -> str:
    """The host code, and the device code of every arch as comments: what the digest in the manifest is made of."""
    parts = [next(iter(results.values())).host.rstrip()]
    for arch, result in results.items():
        parts += [f"// ---- device code for {arch} ----", *(f"// {line}".rstrip() for line in result.ptx.splitlines())]
    return "\n".join(parts) + "\n"


def _signature(program: Program, unit: Unit, functions: list[str], arguments: list[Argument]) -> dict[str, Any]:
    strides, multiples = stride_symbols_of(arguments), multiples_of(program.declared)
    return {
        "arch": unit.arch,
        "arguments": [argument.to_json() for argument in arguments],
        "config": dict(unit.config),
        # The exported code computes the launch by itself, and passes the parameters on as they are.
        "device_kernels": [{"name": name, "params": [], "launch": []} for name in functions],
        "entry": unit.symbol,
        "host_logic": "the host code computes launches in code that CuTe DSL has compiled",
        "kernel": unit.kernel,
        "launches": None,
        **({"multiples": multiples} if multiples else {}),
        **returned_in(unit, list(program.declared)),
        "schedule": "as written",
        "schema": 1,
        "slug": unit.slug,
        **({"stride_symbols": strides} if strides else {}),
        "symbols": symbols_of(arguments, unit),
        "target": unit.target,
    }


def _require_names(program: Program, unit: Unit) -> None:
    """Raise a DefinitionError if the arguments are not the parameters of the host function."""
    try:
        parameters = list(inspect.signature(program.function).parameters)
    except (TypeError, ValueError) as error:
        remedy = "pass a function that is decorated with @cute.jit"
        raise DefinitionError("the Program's host function is no function", unit.where, remedy) from error
    if parameters and parameters[-1] == STREAM and STREAM not in program.arguments:
        parameters.pop()
    if different := first_difference(program.arguments, parameters, list(program.arguments), parameters):
        raise DefinitionError(
            f"the arguments of the Program are not the parameters of its host function: {different}",
            unit.where,
            "give both the same names in the same order; only a last parameter named stream gets no argument",
        )


def _require_one_host(results: Mapping[str, _Compiled], unit: Unit) -> None:
    """Raise a LoweringError if the host code, of which a library has one, differs between archs."""
    main = results[unit.arch]
    for arch, result in results.items():
        if (result.portable_host, functions_of(result.cubin)) != (main.portable_host, functions_of(main.cubin)):
            raise LoweringError(
                f"the host code that CuTe DSL makes for {arch} differs from that for {main.arch}",
                unit.where,
                "give each arch host code of its own: @kernel(per_arch=True)",
            )


class _Compiler:
    """Compiles one program.

    Raises:
        ToolchainError: CuTe DSL is not installed, or another release of it.
    """

    def __init__(self, program: Program, unit: Unit) -> None:
        self._program = program
        self._unit = unit
        _require_release(unit.where)
        import cutlass
        from cutlass import cute
        from cutlass.base_dsl.enums import Arch

        self._cutlass, self._cute = cutlass, cute
        self._known = [name for name in Arch.__members__ if CudaArch.of(name)]

    def compile(self, arch: str, *, with_object: bool) -> _Compiled:
        """Compile for one arch."""
        self._require_arch(arch)
        with tempfile.TemporaryDirectory(prefix="kernelwright-") as folder:
            compiled = self._compile(arch, folder)
            artifacts = compiled.artifacts
            compiled.ir_module = self._adapted(compiled.ir_module, arch)
            exported = self._export(compiled, Path(folder)) if with_object else b""
            return _Compiled(arch, artifacts.CUBIN, artifacts.PTX, str(compiled.ir_module), exported)

    def remarks(self, arch: str) -> str:
        """What ptxas says of spills: compiles once more, because asking for it takes as long as compiling."""

        printed = io.StringIO()
        with tempfile.TemporaryDirectory(prefix="kernelwright-") as folder, contextlib.redirect_stderr(printed):
            self._compile(arch, folder, "remarks{ptx}")
        return " ".join(printed.getvalue().split())

    def _compile(self, arch: str, folder: str, more: str = "") -> Any:
        # Keeping files also has CuTe DSL leave its own cache alone, which it has in a folder of all users.
        options = f"--enable-tvm-ffi --gpu-arch {arch} --keep-ptx --keep-cubin --dump-dir {folder} {more}"
        try:
            return self._cute.compile(self._program.function, *self._arguments(), options=options)
        except KernelwrightError:
            raise
        except BaseException as error:  # it runs the user's code, and its own errors have many types
            raise _compile_error(error, arch, self._unit) from error

    def _arguments(self) -> Iterator[Any]:
        """Stand-ins for the arguments: tensors without data, and numbers of the right type."""
        runtime, multiples = self._cute.runtime, multiples_of(self._program.declared)
        shapes = (value.shape for value in self._program.declared.values() if isinstance(value, Tensor))
        names = dict.fromkeys(size for shape in shapes for size in shape if isinstance(size, str))
        sizes = {name: self._cute.sym_int32(divisibility=multiples.get(name, 1), symbol=name) for name in names}
        for name, value in self._program.arguments.items():
            if isinstance(value, Tensor) and not value.given:
                yield None
            elif isinstance(value, Tensor):
                kind = getattr(self._cutlass, DTYPES[value.dtype])
                shape = tuple(sizes[size] if isinstance(size, str) else size for size in value.shape)
                # The launcher has compared those that are not constants, so CuTe DSL need not know which are equal.
                strides = tuple(
                    stride if isinstance(stride, int) else self._cute.sym_int64(divisor_of(stride, multiples) or 1)
                    for stride in all_strides(name, value.shape, value.strides)
                )
                alignment = value.alignment or max(1, kind.width // 8)
                yield runtime.make_fake_tensor(kind, shape, strides, assumed_align=alignment)
            elif isinstance(value, Scalar):
                yield getattr(self._cutlass, DTYPES[value.dtype])(0)
            else:
                yield value
        if STREAM in inspect.signature(self._program.function).parameters and STREAM not in self._program.arguments:
            yield runtime.make_fake_stream(use_tvm_ffi_env_stream=True)

    def _require_arch(self, arch: str) -> None:
        if arch not in self._known:
            raise LoweringError(
                f"CuTe DSL {VERSION} makes no code for {arch}",
                self._unit.where,
                f"restrict the kernel to others with archs=[...]; it knows {', '.join(self._known)}",
            )

    def _adapted(self, module: Any, arch: str) -> Any:
        """The host code without its copy of the device code, which the library has as an image; errors go through us.

        Raises:
            LoweringError: it has no device code, or several modules of it, or a launch cannot work.
        """
        from cutlass._mlir import ir

        with module.context:
            binaries = [op for op in module.body.operations if _is_binary(op)]
            for op in binaries:
                op.operation.attributes["value"] = ir.StringAttr.get("\0")
                op.operation.attributes["global_type"] = ir.TypeAttr.get(ir.Type.parse("!llvm.array<1 x i8>"))
            if len(binaries) != 1:
                message = f"the host code has {len(binaries)} modules of device code, expected 1"
                raise LoweringError(message, self._unit.where, "launch at least one @cute.kernel in the host function")
            text = str(module)
            _require_right_launches(text, arch, self._unit)
            for theirs, ours in RENAMED.items():
                text = text.replace(f"@{theirs}(", f"@{ours}(").replace(f"@{theirs} :", f"@{ours} :")
            return ir.Module.parse(text)

    def _export(self, compiled: Any, folder: Path) -> bytes:
        """The host code as an object that exports nothing but its packed function."""
        path = folder / "host.o"
        compiled.export_to_c(
            str(path), function_name=self._unit.symbol, enable_pic=True, export_only_tvm_ffi_symbols=True
        )
        content = path.read_bytes()
        unknown = sorted(undefined_symbols(content) - ANSWERED)
        if unknown:
            raise LoweringError(
                f"its host code calls {', '.join(unknown)}, which the launcher of a package does not have",
                self._unit.where,
                "compute it in the device code, or pass it as an argument",
            )
        return content


def _is_binary(op: Any) -> bool:
    """Whether an operation of a module is a constant that holds device code."""
    attributes = op.operation.attributes
    return op.operation.name == "llvm.mlir.global" and str(attributes["sym_name"]).strip('"').endswith("_binary")


def _require_right_launches(host: str, arch: str, unit: Unit) -> None:
    """Raise a LoweringError if every launch would fail, for example because it has too little memory.

    The exported code only prints such an error, at each call: the first block of a function calls ``printf``, and no
    condition guards that call.
    """
    formats = dict(re.findall(r'constant @(\w+)\("\\0AError: ([^"]*?)(?:\\0A)*\\00"\)', host))
    for function in re.split(r"(?m)^  llvm\.func ", host):
        values = dict(re.findall(r"(%\d+) = llvm\.mlir\.(?:constant\(|addressof @)(-?\w+) ", function))
        pointers = dict(re.findall(r"(%\d+) = llvm\.getelementptr (%\d+)\[", function))
        for call in re.finditer(r"llvm\.call @printf\(([^)]*)\)", function.partition("\n  ^bb")[0]):
            text, *numbers = call[1].split(", ")
            message = formats.get(values.get(pointers.get(text, ""), ""))
            if message is not None:
                problem = re.sub(r"%(?:ll)?d", "{}", message).format(*(values.get(n, "?") for n in numbers))
                remedy = "mend the launch or make its tiles smaller, or restrict the kernel to other archs"
                raise LoweringError(f"CuTe DSL says of a launch for {arch}: {problem}", unit.where, remedy)


def _require_release(where: Where) -> None:
    """Raise a ToolchainError unless CuTe DSL of the release that this module is written for is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("nvidia-cutlass-dsl")
    except PackageNotFoundError as error:
        raise ToolchainError("nvidia-cutlass-dsl (CuTe DSL) is not installed", where, NEED.install) from error
    if installed.split(".")[:2] != VERSION.split(".")[:2]:
        message = f"nvidia-cutlass-dsl {installed} is installed; the launcher knows the exported code of {VERSION}"
        raise ToolchainError(message, where, NEED.install)


def _usage(result: _Compiled, compiler: _Compiler) -> dict[str, dict[str, int]]:
    """Registers, memory and spills of each device function; without a stack frame there are no spills."""
    usage = usage_of(result.cubin, arch_order(result.arch)[0])
    if any(used["stack_bytes"] for used in usage.values()):
        return with_spills(usage, compiler.remarks(result.arch))
    return usage


def _compile_error(error: BaseException, arch: str, unit: Unit) -> LoweringError:
    """The error for what CuTe DSL, or the user's code in it, has raised: at the user's line."""
    text = re.sub(r"\x1b?\[\d+m", "", str(error)).strip()
    kind = type(error).__name__
    place = re.search(r"^ *--> (.+?):(\d+)(?::\d+)?$", text, re.MULTILINE)
    location = f"{place[1]}:{place[2]}" if place else line_of(error, "nvidia_cutlass_dsl")
    return LoweringError(
        f"CuTe DSL cannot compile it for {arch}: {first_line(error, text)}",
        Where(unit.kernel, unit.slug, "lower", location or unit.location),
        "mend that line of the definition",
        text[:MAX_MESSAGE] if "\n" in text else f"{kind}: {text}"[:MAX_MESSAGE],
    )
