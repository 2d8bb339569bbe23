"""Arrays with any leading dimensions in CUDA C++ and Triton: what functions compute of them, and what calls return."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from emulation import Comparison, Lowered
from kernelwright.frontends.triton.program import NEED as TRITON
from support.project import Project
from support.standin_calls import call, make_standin

SETTINGS = """\
[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_90a"]
backends = ["tvm_ffi", "cuda_core"]
"""

NORM = '''\
import numpy as np
from kernelwright import kernel
from kernelwright.cuda import Exported, Size, Source, Tensor

SOURCE = """
__global__ void rms_norm(const float *x, const float *weight, const float *add, float *y, float *scales, int n) {
  float sum = 0, scale;
  for (int i = 0; i < n; ++i) sum += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
  scale = rsqrtf(sum / max(n, 1) + 1e-6f);
  for (int i = 0; i < n; ++i)
    y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * scale * weight[i] + (add ? add[blockIdx.x * n + i] : 0);
  scales[blockIdx.x] = scale;
}
"""


@kernel(frontend="cuda", outputs=["y", "scales"])
def rms_norm():
    x, add = Tensor("float32", ..., "n"), Tensor("float32", ..., "n", optional=True)
    return Source(SOURCE, "rms_norm", x=x, weight=Tensor("float32", "n"), add=add, y=x, scales=Tensor("float32", ...),
                  n=Size("n"), grid="rows", block=1)


@rms_norm.reference
def _(x, weight, add):
    assert add is None or add.shape == x.shape
    scales = 1 / np.sqrt((x * x).sum(-1) / max(x.shape[-1], 1) + 1e-6)
    return x * scales[..., None] * weight + (0 if add is None else add), scales


GATE = """
__global__ void gate(const float *x, const float *ends, float *y, int d) {
  const float *row = x + blockIdx.x * (2 * d + 1);
  for (int i = 0; i < d; ++i) y[blockIdx.x * d + i] = row[i] * row[d + i] + row[2 * d] + ends[d + 2];
}
"""


@kernel(frontend="cuda", outputs=["y"])
def gate():
    x, y = Tensor("float32", ..., "2 * d + 1"), Tensor("float32", ..., "d")
    return Source(GATE, "gate", x=x, ends=Tensor("float32", "d + 3"), y=y, d=Size("d"), grid="rows", block=1)


@gate.reference
def _(x, ends):
    d = x.shape[-1] // 2
    return x[..., :d] * x[..., d : 2 * d] + x[..., 2 * d :] + ends[-1]


@kernel(frontend="cuda", sources=["told.cc"], backends=["tvm_ffi"])
def told():
    return Exported("told", x=Tensor("float32", ..., "n"), y=Tensor("float32", ..., "n"))
'''

TOLD = """\
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void told(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  TVM_FFI_THROW(ValueError) << "it gets " << x.ndim() << " and " << y.ndim();
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(told, told);
"""

GATED = """\
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Size, Tensor


@triton.jit
def gate(x, y, d, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, d, BLOCK):
        i = start + tl.arange(0, BLOCK)
        first, second = tl.load(x + row * 2 * d + i, i < d), tl.load(x + row * 2 * d + d + i, i < d)
        tl.store(y + row * d + i, first * second, i < d)


@kernel(frontend="triton", outputs=["y"])
def gated():
    return Program(gate, grid="rows", x=Tensor("float32", ..., "2 * d"), y=Tensor("float32", ..., "d"), BLOCK=16)


@gated.reference
def _(x):
    d = x.shape[-1] // 2
    return x[..., :d] * x[..., d : 2 * d]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project, and the stand-in for the driver."""
    of_triton = {"gated": GATED} if TRITON.is_installed else {}
    project = Project.of(tmp_path_factory.mktemp("leading"), SETTINGS, norm=NORM, **of_triton)
    if of_triton:
        project.imported = ("support.torch_ready", *Project.imported)
    project.write("kernels/told.cc", TOLD)
    project.scons("-j2")
    make_standin(project)
    return project


@pytest.mark.parametrize("name", ["rms_norm", "gate"])
def test_checks_have_none_to_three_leading_dimensions_and_references_get_them(
    project: Project, tmp_path: Path, name: str
) -> None:
    folder, module = project.folder / f"build/kernels/demo/{name}/default/cuda", dict[str, Any]()
    exec(compile(NORM, project.folder / "kernels/norm.py", "exec"), module)
    kernel, signature = module[name], json.loads((folder / "signature.json").read_text())
    code = Lowered(kernel, kernel.variants[0], signature, (folder / "device.cu").read_text())
    comparison, ranks = Comparison(code, tmp_path), list[int]()
    for sizes in comparison.drawing.sizes.sets():
        inputs = comparison.drawing.values(sizes)
        assert inputs is not None
        comparison.compare_for(inputs, sizes)
        comparison.drawing.turn += 1
        ranks.append(inputs["x"].ndim - 1)
    assert {*ranks} == {0, 1, 2, 3}


GATES = """
for lead in ((2, 3), (), (1, 4, 2)):
    y = demo.gate(on_cuda(*lead, 9, data=0x10000), on_cuda(7, data=0x20000))
    assert tuple(y.shape) == (*lead, 4), y.shape
for x, ends in ((on_cuda(2, 3, 8), on_cuda(7)), (on_cuda(2, 3, 9), on_cuda(6))):
    print(message_of(demo.gate, x, ends))
"""

CALLS = """
weight = on_cuda(8, data=0x20000)
for lead in ((2, 3), (), (1, 4, 2)):
    x, add, y = (on_cuda(*lead, 8, data=data) for data in (0x10000, 0x30000, 0x40000))
    new = [np_shape(each) for each in demo.rms_norm(x, weight)]
    assert new == [(*lead, 8), lead], new
    demo.rms_norm(x, weight, add, y, on_cuda(*lead, data=0x50000))
print(message_of(demo.rms_norm, on_cuda(2, 3, 8), weight, on_cuda(6, 8)))
"""

ON_DEMAND = """
import kernelwright

class Array(FakeTensor):
    dtype = "float32"

    def __init__(self, *shape, data=0x10000):
        super().__init__(shape, (2, 32, 1), device=(2, 0), data=data)
        self.shape = shape

class demo:
    rms_norm = kernelwright.load("kernels/norm.py").rms_norm

on_cuda = Array
"""


WAYS = ["tvm_ffi", "cuda_core", "on demand"]


def head_of(way: str) -> str:
    return ON_DEMAND if way == "on demand" else ""


@pytest.mark.parametrize("way", WAYS[:2])
def test_a_size_that_is_arithmetic_of_one_name_tells_it_however_it_is_called(project: Project, way: str) -> None:
    code, is_python = head_of(way) + GATES, way == "cuda_core"
    printed, log = call(project, code, parameters="pppi", cuda_core=is_python, capability=90)
    assert re.findall(r"grid (\d+) .* (\d+)$", "\n".join(log), re.M) == [("6", "4"), ("1", "4"), ("8", "4")]
    assert "argument 'x' has the size 8 in dimension 1, which is no 2 * d + 1\n" in printed
    assert "ends.shape[0]" in printed and "\n  remedy: pass arrays whose sizes fit each other" in printed


@pytest.mark.parametrize("way", WAYS)
def test_outputs_have_the_leading_dimensions_of_inputs_and_functions_see_rows(project: Project, way: str) -> None:
    shape = "np_shape = lambda each: tuple(getattr(each, 'shape', None))\n"
    code = head_of(way) + shape + CALLS
    printed, log = call(project, code, parameters="pppppi", cuda_core=way == "cuda_core", capability=90)
    said = (
        "arguments 'x' of shape [2, 3, 8] and 'add' of shape [6, 8] differ in their leading dimensions, which fold into"
    )
    assert f"ValueError: kernel 'rms_norm': {said} rows\n  remedy: pass arrays with equal ones" in printed
    launched = [re.search(r"grid (\d+) .* parameters (.*)", line) for line in log if line.startswith("launch ")]
    found = [(match[1], match[2].split()) for match in launched if match]
    assert [grid for grid, _ in found] == ["6", "6", "1", "1", "8", "8"]
    assert found[1::2] == [(n, ["0x10000", "0x20000", "0x30000", "0x40000", "0x50000", "8"]) for n in ("6", "1", "8")]
    assert all(parameters[2] == "0" and parameters[5] == "8" for _, parameters in found[::2])


def test_host_code_of_the_author_gets_arrays_as_they_are_passed(project: Project) -> None:
    code = "x = on_cuda(2, 3, 8)\nfor y in (x, on_cuda(6, 8)): print(message_of(demo.told, x, y).split('\\n')[0])"
    lines = call(project, code, capability=90)[0].splitlines()
    assert lines[0] == "ValueError: it gets 3 and 3" and "differ in their leading dimensions" in lines[1]


@pytest.mark.skipif(not TRITON.is_installed, reason="needs Triton")
def test_programs_of_triton_are_checked_and_called_with_leading_dimensions(project: Project) -> None:
    assert project.scons("check").labels["CHECK"] == 1
    code = "print(demo.gated(on_cuda(2, 3, 64, data=0x1000)).shape, demo.gated(on_cuda(64, data=0x1000)).shape)"
    printed, log = call(project, code, capability=90)
    assert re.findall("[0-9]+", printed) == ["2", "3", "32", "32"]
    assert re.findall(r"launch gate .*? grid (\d+)", "\n".join(log)) == ["6", "1"]
    stub = (project.folder / "build/demo/__init__.pyi").read_text()
    assert "(x: float32[(..., rows), 2 * d], y: float32[(..., rows), d])" in stub
