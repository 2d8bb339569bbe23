"""Builds kernels as extension modules the way the build does, and loads them from a folder like a package's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright import backends
from kernelwright.backends.commands import ToolPaths
from kernelwright.backends.cython import Cython
from kernelwright.backends.launcher import LAUNCHER
from kernelwright.backends.plan import KernelPlan, LoweredUnit, VariantPlan
from kernelwright.runtime import cython_kernel
from kernelwright.runtime import kernel as tvm_ffi_kernel

from support.forked import starter
from support.launcher_build import (
    OPTIMISED,
    FakeTensor,
    build,
    cuda_unit,
    include_folders,
    plan,
    scalar,
    signature,
    tensor,
)
from support.workers_project import Project

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"
"""The definitions of this repository."""

STANDIN = ROOT / "site_scons/kernelwright/testing/cuda.c"


@dataclass(frozen=True)
class Loader:
    """What a package's loader offers, of files that were just built."""

    folder: Path
    package: str = "acme"
    device_code: Any = None  # in a split package: what finds it, a function

    def manifest(self) -> dict[str, Any]:
        return {"device_code": {}} if self.device_code else {}

    def provider(self, name: str) -> Any:
        return SimpleNamespace(find=self.device_code)

    def verified(self, relative: str) -> Path:
        return self.folder / relative

    def library(self, name: str) -> Path:
        return self.folder / f"{name}.so"


BY_HAND = SimpleNamespace(package="built_by_hand", version="1")
"""What operators and functions of JAX ask a package's loader for."""


@dataclass(frozen=True)
class Built:
    """A kernel that was built for both backends."""

    folder: Path
    plan: KernelPlan
    entry: Mapping[str, Any]

    def cython(self) -> Any:
        """The kernel object of the extension module."""
        return cython_kernel.load(Loader(self.folder), self.plan.name, dict(self.entry))

    def torch(self) -> Any:
        """The operator of the torch backend."""
        pytest.importorskip("torch")
        from kernelwright.runtime.torch_kernel import Operators

        module: dict[str, Any] = {}
        exec(backends.get("torch").emit(self.plan)[f"_{self.plan.name}.py"], module)
        operators = Operators(BY_HAND, dict(self.entry), self.tvm_ffi(), None)
        return operators.finished(module["define"](operators), module["define"])

    def jax(self) -> Any:
        """The kernel object of the jax backend."""
        pytest.importorskip("jax_tvm_ffi")
        from kernelwright.runtime.jax_kernel import JaxKernel

        return JaxKernel(BY_HAND, dict(self.entry), self.tvm_ffi(), None)

    def tvm_ffi(self) -> Any:
        """The kernel object of tvm-ffi, over the same library."""
        return tvm_ffi_kernel.load_kernel(self.plan.name, dict(self.entry), self.folder / f"{self.plan.name}.so")


def places() -> ToolPaths:
    """Names for a build in any folder."""
    include = sysconfig.get_paths()["include"]
    return ToolPaths("gcc", str(LAUNCHER), tuple(include_folders()), python=sys.executable, python_include=include)


def compile_extension(
    folder: Path, plan: KernelPlan, named: ToolPaths | None = None, *, flags: Sequence[str] = OPTIMISED
) -> Path:
    """Emit the source and compile it; warnings are errors."""
    backend, output = Cython(), "backends/cython"
    for name in (backend.folder(plan.name), output):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, text in backend.emit(plan).items():
        (folder / backend.folder(plan.name) / name).write_text(text)
    (_, *cython), compile_ = backend.commands(plan.name, named or places(), output)
    assert cython[:2] == ["-m", "cython"]
    translated = starter(*OF_CYTHON).run(TRANSLATE, *cython[2:], env=os.environ, cwd=folder)
    assert not translated.returncode, translated.stderr
    command = [*compile_, *flags, "-Wall", "-Wextra", "-Werror"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not result.returncode, result.stderr
    return folder / output / f"_{plan.name}.abi3.so"


OF_CYTHON = ("Cython.Compiler.Main", "Cython.Compiler.Pipeline", "Cython.Compiler.Optimize")
TRANSLATE = "import runpy; runpy.run_module('cython', run_name='__main__', alter_sys=True)"


def build_both(folder: Path, plan: KernelPlan, *, flags: Sequence[str] = ("-O0",)) -> Built:
    """The library of a kernel and its extension module."""
    build(folder, plan, extra=flags)
    compile_extension(folder, plan, flags=flags)
    return Built(folder, plan, entry_of(plan))


def entry_of(plan: KernelPlan) -> dict[str, Any]:
    """The kernel's part of a manifest, as far as it is used when kernels are called."""
    variants = [
        {
            "slug": variant.slug,
            "config": dict(variant.config),
            "archs": [arch for unit in variant.units for arch in unit.images or [unit.arch]],
            "arguments": [
                {"name": a.name, "kind": a.kind, "dtype": a.dtype, "shape": list(a.shape)}
                | {"output": a.output, "written": a.written}
                | ({} if a.given is True else {"given": a.given})
                | ({"folds": True} if a.folds else {})
                | ({} if a.default is None else {"default": a.default})
                for a in variant.units[0].arguments
            ],
            "symbols": dict(variant.units[0].symbols),
            "units": [{"target": unit.target} for unit in variant.units],
        }
        for variant in plan.variants
    ]
    return {"doc": f"Kernel {plan.name}.", "outputs": list(plan.outputs), "variants": variants}


def lower_ours(project: Project, kernel: str, outputs: Sequence[str], *configs: Mapping[str, Any]) -> KernelPlan:
    """The plan of a kernel of this repository, lowered for the CPU in the project's workers."""
    for name in (f"{kernel}.py", *(path.name for path in KERNELS.glob("_*.py"))):
        project.write(f"kernels/{name}", (KERNELS / name).read_text())
    variants = []
    for config in configs or ({},):
        slug = "_".join(f"{key}-{value}" for key, value in config.items()) or "default"
        result = project.lower(f"kernels/{kernel}.py", kernel, slug=slug, config=dict(config))
        signature = json.loads(result["contents"]["signature.json"])
        unit = LoweredUnit.from_json(signature, f"out/{kernel}/{slug}/llvm/host.o")
        variants.append(VariantPlan(slug, config, (unit,)))
    return KernelPlan(kernel, tuple(outputs), tuple(variants))


def scale_function() -> Any:
    from tvm.script import tirx

    @tirx.prim_func(s_tir=True)
    def main(x_handle: tirx.handle, y_handle: tirx.handle, alpha: tirx.float32):
        n = tirx.int32()
        x = tirx.match_buffer(x_handle, (n,), "float32", align=4)
        y = tirx.match_buffer(y_handle, (n,), "float32", align=4)
        for i in tirx.thread_binding(n, thread="blockIdx.x"):
            for _ in tirx.thread_binding(1, thread="threadIdx.x"):
                with tirx.sblock("y"):
                    k = tirx.axis.spatial(n, i)
                    y[k] = x[k] * alpha

    return main


def build_scale(folder: Path) -> Built:
    """A kernel for CUDA, ``x, [y], alpha``; beside it is ``libstandin.so``, which stands in for the driver."""
    subprocess.run(["gcc", "-shared", "-fPIC", str(STANDIN), "-o", str(folder / "libstandin.so")], check=True)
    arguments = [tensor("x", "float32", ["n"]), tensor("y", "float32", ["n"], output=True), scalar("alpha", "float32")]
    data = signature("scale", arguments, target="cuda", arch="sm_80", symbols={"n": "int32"})
    return build_both(folder, plan("scale", cuda_unit(folder, scale_function(), data, ["sm_80"]), outputs=["y"]))


class OnCuda(FakeTensor):
    """An array on a GPU that notes how it is asked for."""

    def __init__(self, device: int = 0) -> None:
        super().__init__((8,), device=(2, device))
        self.asked: list[dict[str, Any]] = []

    def __dlpack__(self, **named: Any) -> Any:
        self.asked.append(named)
        return super().__dlpack__(**named)
