"""What the tests of installed packages share: wheels for the CPU, built once for all test processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from support.environments import install, linked, needed
from support.project import Project, once

SCONSTRUCT = """\
from kernelwright.scons import generate

env = Environment(tools=[generate])
env.Default(env.KernelPackage("@PACKAGE@", env.Glob("kernels/*.py")))
env.KernelWheel("@PACKAGE@")
"""

PYPROJECT = """\
[build-system]
requires = ["kernelwright"]
build-backend = "kernelwright.build"

[project]
name = "@PACKAGE@"
version = "@VERSION@"

[tool.kernelwright]
package = "@PACKAGE@"
targets = ["llvm"]
"""

AXPY = '''\
from kernelwright import grid, kernel
from tvm import te


@kernel(configs=grid(dtype=["float32", "float16", "bfloat16"]), outputs=["z"])
def axpy(dtype: str):
    """z = alpha * x + y, for matrices of one shape."""
    rows, columns, alpha = te.var("rows"), te.var("columns"), te.var("alpha", "float32")
    x = te.placeholder((rows, columns), dtype, name="x")
    y = te.placeholder((rows, columns), dtype, name="y")

    def element(i, j):
        return (alpha * x[i, j].astype("float32") + y[i, j].astype("float32")).astype(dtype)

    return te.create_prim_func([alpha, x, y, te.compute((rows, columns), element, name="z")])
'''

ACCUMULATE = '''\
from kernelwright import kernel
from tvm.script import tirx as T


@kernel()
def accumulate():
    """total += x, in place."""

    @T.prim_func(s_tir=True)
    def main(total_handle: T.handle, x_handle: T.handle):
        n = T.int32()
        total = T.match_buffer(total_handle, (n,), "float32")
        x = T.match_buffer(x_handle, (n,), "float32")
        for i in range(n):
            with T.sblock("total"):
                j = T.axis.spatial(n, i)
                total[j] = total[j] + x[j]

    return main
'''


def build(folder: Path, package: str, kernels: Mapping[str, str], version: str = "1.0") -> Path:
    """Build the wheel of a package for the CPU in a folder of its own."""
    project = Project(folder)
    for name, text in {"SConstruct": SCONSTRUCT, "pyproject.toml": PYPROJECT}.items():
        project.write(name, text.replace("@PACKAGE@", package).replace("@VERSION@", version))
    for name, text in kernels.items():
        project.write(f"kernels/{name}.py", text)
    project.scons("-j2", "wheel")
    return wheel_in(folder / "dist")


def wheel_in(folder: Path) -> Path:
    (found,) = folder.rglob("*.whl")
    return found


def acme(factory: pytest.TempPathFactory) -> Path:
    """An environment with the package ``acme_kernels`` (axpy, accumulate) and NumPy."""

    def make(folder: Path) -> None:
        wheel = build(folder / "project", "acme_kernels", {"axpy": AXPY, "accumulate": ACCUMULATE})
        install(linked(needed(factory), folder / "home"), "--no-index", wheel)

    return once(factory, "acme", make) / "home"
