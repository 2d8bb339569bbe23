"""The kernel library of this repository with a few kernels more, built and checked once in a test run."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from support.project import CUBE, ROOT, SCONSTRUCT, Project, Run

BACKENDS = {"tvm_ffi": "tvm_ffi", "cython": "Cython", "torch": "torch", "jax": "jax_tvm_ffi"}
"""Backend that has CPU code -> what has to be installed for it."""

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

LIKE_OTHERS = ("cumsum", "gemm", "layer_norm", "rms_norm", "row_argmax", "row_sum", "swiglu", "top_k", "transpose")
"""Kernels whose arguments are of kinds that others have, too: an extension of each would take two seconds."""

MORE = {"cube": CUBE, "product": PRODUCT, "accumulate": ACCUMULATE}
"""Definition files beside those of the library."""


def installed_backends() -> list[str]:
    """The backends for which there is everything here."""
    return [name for name, module in BACKENDS.items() if importlib.util.find_spec(module) is not None]


def build_kernel_library(folder: Path) -> Run:
    """Build the library for the CPU and all backends in a folder, and check it; the package is ``build/demo``."""
    project = Project(folder)
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in MORE.items():
        # These are for tests that emit their backends' files: the build has enough to do.
        project.write(f"kernels/{name}.py", text.replace('outputs=["y"]', 'outputs=["y"], backends=["tvm_ffi"]'))
    others = [name for name in installed_backends() if name != "cython"]
    for name in LIKE_OTHERS:
        project.replace(f"kernels/{name}.py", "@kernel(", f"@kernel(backends={others}, ")
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    return project.built("-j2", "build/demo", "check", f"BACKENDS={','.join(installed_backends())}")


def covering(configs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first of some configs, and each further one that has a value of a parameter which none before it has."""
    seen: set[tuple[str, Any]] = set()
    found: list[Mapping[str, Any]] = []
    for config in configs:
        if not found or not seen.issuperset(config.items()):
            found.append(config)
        seen.update(config.items())
    return found
