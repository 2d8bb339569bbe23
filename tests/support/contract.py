"""The package whose calls every backend is asked the same of, and what a test has to know of a backend."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from kernelwright.package.manifest import sealed_document
from kernelwright.testing.calls import CALLED

from support.project import CUBE, Project

NARROW = ["bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"]
NARROW += ["float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
KINDS = {
    "flag": ["bool"],
    "whole": [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)][:-1],
    "natural": ["uint64"],
    "real": ["float16", "float32", "float64", *NARROW],
}
"""Name of a kernel -> the dtypes of its number. Frameworks tell apart what is an integer, and what has no sign."""

OF_ML_DTYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2fnuz"]
"""Dtypes of arrays that NumPy hands to nobody."""

NUMBERS = """
    from kernelwright import grid, kernel
    from tvm import te


    def wide(dtype):
        '''What has all numbers of a dtype.'''
        return dtype if dtype in ("float64", "uint64") else "float32" if "float" in dtype else "int64"


    def define(dtype):
        n, a = te.var("n"), te.var("a", dtype)
        x = te.placeholder((n,), "float32", name="x")
        return te.create_prim_func([x, a, te.compute((n,), lambda i: a.astype(wide(dtype)), name="y")])


    for name, dtypes in KINDS.items():
        define.__name__ = name
        globals()[name] = kernel(configs=grid(dtype=dtypes), outputs=["y"])(define)
"""

ARRAYS = """
    import numpy as np
    from kernelwright import grid, kernel
    from tvm import te


    @kernel(outputs=["y"], configs=grid(dtype=NARROW))
    def same(dtype):
        n = te.var("n")
        x = te.placeholder((n,), dtype, name="x")
        return te.create_prim_func([x, te.compute((n,), lambda i: x[i], name="y")])


    @kernel(outputs=["y", "z"], backends=OTHERS)
    def pair():
        n = te.var("n")
        x = te.placeholder((n,), "float32", name="x")
        z = te.compute((n,), lambda i: x[i] * 2.0, name="z")
        y = te.compute((n + 1,), lambda i: te.if_then_else(i < n, x[te.min(i, n - 1)] + 1.0, 0.0), name="y")
        return te.create_prim_func([x, z, y])


    @pair.reference
    def _(x):
        return np.append(x + 1, np.float32(0)).astype("float32"), x * 2


    @pair.backward(outputs=["grad_x"])
    def _():
        n = te.var("n")
        x = te.placeholder((n,), "float32", name="x")
        gy, gz = te.placeholder((n + 1,), "float32", name="grad_y"), te.placeholder((n,), "float32", name="grad_z")
        return te.create_prim_func([x, gz, gy, te.compute((n,), lambda i: gy[i] + 2.0 * gz[i], name="grad_x")])
"""


# Its backward kernel computes the gradient of one input only.
PRODUCT = '''\
from kernelwright import kernel
from tvm import te


def vector(name):
    return te.placeholder((4,), "float32", name=name)


@kernel(configs=[{"factor": 1}, {"factor": 3}], outputs=["y"])
def product(factor: int):
    """y = factor * x * w"""
    x, w = vector("x"), vector("w")
    return te.create_prim_func([x, w, te.compute((4,), lambda i: factor * x[i] * w[i], name="y")])


@product.reference
def _(x, w, factor):
    return factor * x * w


@product.backward(outputs=["grad_x"])
def _(factor: int):
    w, grad = vector("w"), vector("grad_y")
    return te.create_prim_func([w, grad, te.compute((4,), lambda i: factor * grad[i] * w[i], name="grad_x")])


@product.backward_kernel.reference
def _(w, grad_y, factor):
    return factor * grad_y * w
'''

# It has an output, and writes an input.
ACCUMULATE = '''\
from kernelwright import kernel
from tvm.script import tirx as T
from tvm.tirx import Var


@kernel(outputs=["y"])
def accumulate():
    """total += x, and y = 2 * total, as it is then"""
    n = Var("n", "int32")

    @T.prim_func(s_tir=True)
    def main(total: T.Buffer((n,), "float32"), x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):
        for i in T.serial(n):
            with T.sblock("total"):
                vi = T.axis.spatial(n, i)
                total[vi] = total[vi] + x[vi]
                y[vi] = total[vi] * T.float32(2)

    return main


@accumulate.reference
def _(total, x):
    return {"total": total + x, "y": 2 * (total + x)}
'''


@dataclass(frozen=True)
class Backend:
    """How a backend is called on a CPU.

    Arguments:
        name: the backend.
        module: what has to be importable where its kernels are called, and what to install for it.
        needs: the module that has to be there to build and to call them.
        array: an array that it takes, with the content of one of NumPy.
        numpy: the content of what it returns.
        writes: whether outputs can be passed. JAX's are always new.
        own_errors: what its framework, and not the kernel, raises for integers of more than 64 bits.
    """

    name: str
    module: tuple[str, str]
    needs: str
    array: Callable[[np.ndarray], Any]
    numpy: Callable[[Any], np.ndarray]
    writes: bool = True
    own_errors: tuple[type[Exception], ...] = ()


def _in_torch(array: np.ndarray) -> Any:
    return importlib.import_module("torch").from_numpy(array)


def _in_jax(array: np.ndarray) -> Any:
    return importlib.import_module("jax.numpy").asarray(array)


TVM_FFI = ("tvm_ffi", "pip install 'apache-tvm-ffi>=0.1.13,<0.2'")
TORCH = ("torch", "pip install 'torch>=2.4'")
BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("tvm_ffi", TVM_FFI, "tvm_ffi", np.asarray, np.from_dlpack),
        Backend("cython", TVM_FFI, "Cython", np.asarray, np.asarray),
        Backend(
            "torch", ("torch", "pip install 'torch>=2.4'"), "torch", _in_torch, np.asarray, own_errors=(RuntimeError,)
        ),
        Backend("jax", ("jax_tvm_ffi", "pip install 'jax-tvm-ffi"), "jax_tvm_ffi", _in_jax, np.asarray, writes=False),
    )
}
"""All that have CPU code: a new one is a line."""

OF_FRAMEWORKS = "cube", "product", "accumulate"
"""Files of kernels that the backend cython lacks, for which each would be compiled."""


def contract_project(folder: Path) -> Project:
    """The project of the package ``contracted``, built for all backends, of which one is built in a test run."""
    project = Project(folder)
    head = "from kernelwright.scons import generate\nenv = Environment(tools=[generate])\n"
    project.write("SConstruct", head + 'env.Default(env.KernelPackage("contracted", env.Glob("kernels/*.py")))\n')
    head = '[project]\nname = "contracted"\nversion = "1.2.0"\n'
    project.write("pyproject.toml", head + '[tool.kernelwright]\ntargets = ["llvm"]\n')
    project.write("kernels/called.py", CALLED)
    project.write("kernels/numbers.py", NUMBERS.replace("KINDS", repr(KINDS)))
    others = [backend for backend in BACKENDS if backend != "cython"]
    arrays = ARRAYS.replace("NARROW", repr(OF_ML_DTYPES)).replace("OTHERS", repr(others))
    project.write("kernels/arrays.py", arrays)
    for name, text in zip(OF_FRAMEWORKS, (CUBE, PRODUCT, ACCUMULATE), strict=True):
        project.write(f"kernels/{name}.py", text.replace('outputs=["y"]', f'outputs=["y"], backends={others}'))
    project.built("-j2", "build/contracted", "check", f"BACKENDS={','.join(BACKENDS)}")
    return project


def imported(folder: Path, name: str) -> ModuleType:
    """A package in a folder, imported by the process of the tests."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


def copied(package: Path, folder: Path, name: str = "contracted", **changes: Any) -> ModuleType:
    """Another build of the package: a copy whose manifest says something else, imported."""
    copy = shutil.copytree(package, folder / name)
    document = json.loads((copy / "manifest.json").read_text())
    del document["digest"]
    (copy / "manifest.json").write_text(sealed_document({**document, **changes}))
    return imported(folder, name)


@contextmanager
def forgotten(name: str) -> Iterator[None]:
    """As in a process that has not imported a package yet; what is imported meanwhile is forgotten afterwards."""

    def take() -> dict[str, ModuleType]:
        return {module: sys.modules.pop(module) for module in [*sys.modules] if module.partition(".")[0] == name}

    hidden = take()
    try:
        yield
    finally:
        take()
        sys.modules.update(hidden)


@contextmanager
def wide_in_jax() -> Iterator[None]:
    """JAX has 64-bit dtypes."""
    config = importlib.import_module("jax").config
    config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        config.update("jax_enable_x64", False)


@pytest.fixture(scope="module")
def contracted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The package, imported by the process of the tests; its folder is ``contracted.folder``."""
    project = contract_project(tmp_path_factory.mktemp("contract"))
    package: Any = imported(project.folder / "build", "contracted")
    package.folder = project.folder / "build/contracted"
    yield package
