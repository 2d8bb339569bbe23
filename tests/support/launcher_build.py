"""Lowers functions with TVM and builds kernel libraries of them, the way the build does but without it."""

from __future__ import annotations

import importlib
import io
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.backends.commands import (
    ToolPaths,
    compile_command,
    compile_flags,
    include_flags,
    launcher_commands,
    launcher_library,
    launcher_map,
    link_command,
)
from kernelwright.backends.launcher import LAUNCHER, launcher_sources
from kernelwright.backends.plan import KernelPlan, LoweredUnit, VariantPlan
from kernelwright.backends.sources import emit
from kernelwright.testing.launches import DeviceArray

FakeTensor = DeviceArray


def include_folders() -> list[str]:
    """The include folders of TVM-FFI."""
    from tvm_ffi import libinfo

    return [libinfo.find_include_path(), libinfo.find_dlpack_include_path()]


def signature(
    kernel: str,
    arguments: Sequence[Mapping[str, Any]],
    *,
    slug: str = "default",
    target: str = "llvm",
    arch: str = "x86-64",
    symbols: Mapping[str, str] | None = None,
    device_kernels: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What signature.json would say; the entry symbol follows from the rest."""
    identity = f"kw_{kernel}__{slug}__{target}__{arch}".replace("-", "_")
    return {
        **{"schema": 1, "kernel": kernel, "slug": slug, "config": {}, "target": target, "arch": arch},
        **{"entry": identity, "arguments": list(arguments), "symbols": dict(symbols or {})},
        **{"device_kernels": list(device_kernels), "schedule": "as written"},
    }


def tensor(name: str, dtype: str, shape: Sequence[int | str], *, output: bool = False) -> dict[str, Any]:
    """A tensor argument."""
    return {"name": name, "kind": "tensor", "dtype": dtype, "shape": list(shape), "output": output, "written": output}


def scalar(name: str, dtype: str) -> dict[str, Any]:
    """A scalar argument."""
    return {"name": name, "kind": "scalar", "dtype": dtype, "output": False, "written": False}


def lower(function: Any, entry: str, name: str, target: Mapping[str, Any]) -> tuple[Any, list[Any], Any]:
    """Host module, device modules and host target of a PrimFunc whose messages say `name`."""
    import tvm

    build = importlib.import_module("tvm.tirx.build")
    chosen = tvm.target.Target(dict(target))
    host = tvm.target.Target({"kind": "c"}) if chosen.kind.name == "cuda" else chosen
    module = tvm.IRModule.from_expr(function.with_attr("global_symbol", name))
    module = tvm.tirx.transform.BindTarget(chosen.with_host(host))(module)
    pipeline, finish_host, finish_device = tvm.tirx.get_default_tir_pipeline(chosen)
    host_module, device_modules = build.split_host_device_mods(pipeline(module))
    host_module = finish_host()(host_module)
    (variable,) = host_module.get_global_vars()
    renamed = host_module[variable].with_attr("global_symbol", entry)
    host_module = tvm.IRModule({tvm.ir.GlobalVar(entry): renamed})
    return host_module, [finish_device()(m) for m in device_modules.values()], host


def llvm_unit(folder: Path, function: Any, data: dict[str, Any]) -> LoweredUnit:
    """Lower for the CPU and write host.o."""
    build = importlib.import_module("tvm.tirx.build")
    host_module, _, host = lower(function, data["entry"], data["kernel"], {"kind": "llvm", "mcpu": data["arch"]})
    path = Path(data["kernel"], data["slug"], "llvm", data["arch"], "host.o")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    build.codegen_build(host_module, host).write_to_file(str(folder / path), "o")
    return LoweredUnit.from_json(data, str(path))


def cuda_unit(folder: Path, function: Any, data: dict[str, Any], archs: Sequence[str]) -> LoweredUnit:
    """Lower for CUDA and write host.c; the images hold the name of their arch, which is what the stand-in wants."""
    build = importlib.import_module("tvm.tirx.build")
    host_module, devices, host = lower(function, data["entry"], data["kernel"], {"kind": "cuda", "arch": data["arch"]})
    data["device_kernels"] = [
        {
            "name": variable.name_hint,
            "params": [_parameter_dtype(parameter) for parameter in function.params],
            "launch": [str(tag) for tag in function.attrs["tirx.kernel_launch_params"]],
        }
        for module in devices
        for variable, function in module.functions.items()
    ]
    base = Path(data["kernel"], data["slug"], "cuda")
    (folder / base).mkdir(parents=True, exist_ok=True)
    (folder / base / "host.c").write_text(build.codegen_build(host_module, host).inspect_source())
    images = {arch: str(base / f"{arch}.{'ptx' if arch.startswith('compute') else 'cubin'}") for arch in archs}
    for arch, path in images.items():
        (folder / path).write_text(arch)
    return LoweredUnit.from_json(data, str(base / "host.c"), images)


def _parameter_dtype(parameter: Any) -> str:
    text = str(getattr(parameter, "ty", "") or parameter.dtype)
    return "handle" if "handle" in text else text


def plan(name: str, *units: LoweredUnit, outputs: Sequence[str] = ()) -> KernelPlan:
    """A plan whose variants are the units' slugs, in order of appearance."""
    slugs = dict.fromkeys(unit.slug for unit in units)
    variants = [VariantPlan(slug, {}, tuple(unit for unit in units if unit.slug == slug)) for slug in slugs]
    return KernelPlan(name, tuple(outputs), tuple(variants))


OPTIMISED = ("-O2",)
"""As the build does it, which takes three times as long: for some of the libraries."""


def build(folder: Path, kernel: KernelPlan, *, extra: Sequence[str] = (), objects: Sequence[str] = ()) -> Path:
    """Emit the wrapper and build the library, not optimised unless ``extra`` says so; warnings are errors."""
    (folder / kernel.name).mkdir(parents=True, exist_ok=True)
    for name, text in emit(kernel).items():
        (folder / kernel.name / name).write_text(text)
    hosts = [unit.host for unit in kernel.units if unit.target == "llvm"]
    compile_and_link(folder, kernel.name, [*hosts, *objects], f"{kernel.name}.so", *extra)
    return folder / f"{kernel.name}.so"


SOURCE = f"{LAUNCHER}/launcher.c"


def compile_and_link(folder: Path, kernel: str, objects: Sequence[str], library: str, *extra: str) -> None:
    """Compile an emitted wrapper, and link its library with a launcher in it, whose state no other library knows."""
    places = ToolPaths("gcc", str(LAUNCHER), tuple(include_folders()))
    flags = ["-O0", "-Wall", "-Wextra", "-Werror", *extra]
    wrapper, launcher = f"{kernel}/wrapper.o", "launcher.o"
    _compile_once(folder, [*compile_command(kernel, places, wrapper), *flags], (folder / kernel).rglob("*.c"), wrapper)
    compiled = [places.compiler, *compile_flags(), *include_flags(places.includes), *flags, "-c", SOURCE]
    _compile_once(folder, [*compiled, "-o", launcher], launcher_sources(), launcher)
    _run(folder, [*link_command(kernel, [*objects, launcher], places, library), *extra])


def link_apart(folder: Path, kernel: str, objects: Sequence[str], library: str, digest: str) -> Path:
    """Link a library that was built, again: with the launcher beside it in a library of its own, which is returned."""
    places = ToolPaths("gcc", str(LAUNCHER), tuple(include_folders()))
    launcher = launcher_library(digest)
    (folder / "launcher.map").write_text(launcher_map(launcher))
    _run(folder, launcher_commands(places, launcher, ".")[1])
    _run(folder, link_command(kernel, [*objects, launcher], places, library))
    return folder / launcher


def _run(folder: Path, command: Sequence[str]) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not result.returncode, result.stderr


_COMPILED: dict[tuple[str, ...], bytes] = {}
"""Objects, by the command and all C sources."""


def _compile_once(folder: Path, command: Sequence[str], sources: Iterable[Path], output: str) -> None:
    texts = [text for path in sorted(sources) for text in (path.name, path.read_text())]
    key = (*command, *texts)
    if key not in _COMPILED:
        _run(folder, command)
        _COMPILED[key] = (folder / output).read_bytes()
    (folder / output).write_bytes(_COMPILED[key])


def c_unit(folder: Path, source: str, data: dict[str, Any]) -> LoweredUnit:
    """A CPU lowering written by hand, in C: `source` has the entry function between BEGIN and END."""
    path = Path(data["kernel"], data["slug"], "llvm", data["arch"], "host.o")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    text = HAND_WRITTEN.replace("ENTRY", data["entry"]).replace("BODY", source)
    (folder / path).with_suffix(".c").write_text(text)
    folders = [f"-I{item}" for item in (LAUNCHER, *include_folders())]
    command = ["gcc", "-O1", "-fPIC", *folders, "-c", str(path.with_suffix(".c")), "-o", str(path)]
    subprocess.run(command, cwd=folder, check=True)
    return LoweredUnit.from_json(data, str(path))


HAND_WRITTEN = """\
#include <tvm/runtime/c_backend_api.h>
#include <stddef.h>
/* As TVM's LLVM code generator defines them. */
__attribute__((weak)) int (*__TVMBackendParallelLaunch)(FTVMParallelLambda, void *, int);
__attribute__((weak)) int (*__TVMBackendParallelBarrier)(int, TVMParallelGroupEnv *);
__attribute__((weak)) void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
__attribute__((weak)) int (*__TVMBackendFreeWorkspace)(int, int, void *);
static DLTensor *tensor(const TVMFFIAny *value) {
  return value->type_index == kTVMFFITensor ? (DLTensor *)((char *)value->v_ptr + sizeof(TVMFFIObject)) : value->v_ptr;
}
#define BEGIN int32_t ENTRY(void *self, void *arguments, int32_t count, void *result) { \\
  const TVMFFIAny *argument = arguments;
#define END return 0; }
BODY
"""


_PAIR = """
BEGIN
  DLTensor *sum = tensor(argument), *x = tensor(argument + 1), *product = tensor(argument + 4);
  double factor = argument[2].type_index == kTVMFFIFloat ? argument[2].v_float64 : argument[2].v_int64;
  if (factor == 13) {
    TVMFFIErrorSetRaisedFromCStr("IndexError", "thirteen");
    return -1;
  }
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    ((float *)sum->data)[i] = ((float *)x->data)[i] + factor + argument[3].v_int64;
    ((float *)product->data)[i] = ((float *)x->data)[i] * factor;
  }
END
"""


def pair_plan(folder: Path) -> KernelPlan:
    """``[sum], x, factor, steps, [product]``: outputs are not at the end; with the factor 13 it raises IndexError."""
    arguments = [tensor("sum", "float32", ["n"], output=True), tensor("x", "float32", ["n"])]
    arguments += [scalar("factor", "float32"), scalar("steps", "int32")]
    arguments += [tensor("product", "float32", ["n"], output=True)]
    unit = c_unit(folder, _PAIR, signature("pair", arguments, symbols={"n": "int32"}))
    return plan("pair", unit, outputs=["sum", "product"])


def hardened(library: Path) -> Any:
    """The ELF file of a library, whose table of functions is complete and read-only once it is loaded."""
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(io.BytesIO(library.read_bytes()))
    assert [segment.header.p_type for segment in elf.iter_segments()].count("PT_GNU_RELRO") == 1
    tags = {tag.entry.d_tag: tag.entry.d_val for tag in elf.get_section_by_name(".dynamic").iter_tags()}
    assert tags["DT_FLAGS"] & 0x8 and tags["DT_FLAGS_1"] & 0x1, "DF_BIND_NOW and DF_1_NOW of elf.h"
    return elf


MEET = """
#include <pthread.h>
#include <time.h>
/* Returns 0 when that many threads are in it; -1 when one has waited for two minutes, and would wait for ever. */
static int meet(int all) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static pthread_cond_t complete = PTHREAD_COND_INITIALIZER;
  static int inside, meetings, status;
  struct timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += 120;
  pthread_mutex_lock(&lock);
  int meeting = meetings;
  if (++inside == all) inside = 0, ++meetings, pthread_cond_broadcast(&complete);
  while (meeting == meetings && !status) status = pthread_cond_timedwait(&complete, &lock, &limit);
  pthread_mutex_unlock(&lock);
  return status ? -1 : 0;
}
"""
"""A function for hand-written lowerings."""
