"""Kernels that print and assert: what is made of that for GPUs in each language, as docs/bench.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import Project

SOURCE = """
#include <cassert>
#include <cstdio>
extern "C" __global__ void says(const float* x, float* y, int n) {
  assert(n < 1000000);
  if (threadIdx.x < n) printf("%f\\n", y[threadIdx.x] = 2 * x[threadIdx.x]);
}
"""

CUDA = """
from kernelwright import kernel
from kernelwright.cuda import Size, Source, Tensor


@kernel(frontend="cuda", outputs=["y"])
def in_cuda():
    return Source("says.cu", "says", x=Tensor("float32", "n"), y=Tensor("float32", "n"), n=Size("n"), grid=1, block=256)
"""

TIR = """
from kernelwright import kernel
from tvm.script import tirx as T


@kernel(outputs=["y"])
def in_tir():
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((256,), "float32"), y: T.Buffer((256,), "float32")):
        for t in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("y"):
                i = T.axis.spatial(256, t)
                T.evaluate(T.call_extern("int32", "printf", "%f\\\\n", x[i]))
                # assert
                y[i] = x[i] * T.float32(2)

    return main
"""

TRITON = """
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Tensor


@triton.jit
def says(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i)
    tl.device_print("value", value)
    tl.device_assert(value < 3, "too large")
    tl.store(y + i, value * 2)


@kernel(frontend="triton", outputs=["y"])
def in_triton():
    vector = Tensor("float32", 256)
    return Program(says, x=vector, y=vector, BLOCK=256, grid=1, debug=True)
"""


def code_of(folder: Path, kernel: str) -> bytes:
    (cubin,) = (folder / "build/kernels/demo" / kernel).rglob("*.cubin")
    return cubin.read_bytes()


def test_what_prints_and_asserts_is_built_or_refused_with_its_place(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs the extra triton")
    settings = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_90a"]\n'
    project = Project.of(tmp_path, settings, in_cuda=CUDA, in_tir=TIR, in_triton=TRITON)
    project.write("kernels/says.cu", SOURCE)
    project.scons("-j2")
    for kernel, asserts in {"in_cuda": True, "in_tir": False, "in_triton": True}.items():
        code = code_of(project.folder, kernel)
        assert b"vprintf" in code and (b"__assertfail" in code) == asserts, kernel
    project.replace("kernels/in_triton.py", ", debug=True", "")
    project.replace("kernels/in_tir.py", "# assert", 'assert x[i] < T.float32(3), "too large"')
    output = project.scons("-j2", "-k", ok=False).output
    assert "in_tir/default [lower]: it has an assert within threads of a GPU, which cannot raise an error" in output
    assert "kernels/in_tir.py:6 in_tir" in output and "write it before the threads begin" in output
    assert b"__assertfail" not in code_of(project.folder, "in_triton")
