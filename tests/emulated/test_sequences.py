"""Definitions that return several launches: what they compute, what the driver is asked for, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulation import Emulation
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelwright.cuda import Source, Tensor, Workspace
from kernelwright.define.unit import Unit
from kernelwright.frontends.cuda.lowering import lower
from kernelwright.frontends.sequence import Launches
from kernelwright.frontends.triton.program import NEED as TRITON
from support.project import Project
from support.standin_calls import call, launches, make_standin

SETTINGS = """\
[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_80", "sm_90a"]
backends = ["tvm_ffi", "cuda_core"]
"""

ROW_SUM = '''\
from kernelwright import kernel
from kernelwright.cuda import Scalar, Size, Source, Tensor, Workspace, ceildiv

SOURCE = """
template <int PARTS> __global__ void add(const float *x, float *partial, unsigned *count, int m) {
  float sum = 0;
  for (int i = blockIdx.y; i < m; i += PARTS) sum += x[blockIdx.x * m + i];
  partial[blockIdx.x * PARTS + blockIdx.y] = sum;
  atomicAdd(&count[blockIdx.x], 1u);
}
template <class T, int PARTS> __global__ void finish(const T *partial, const unsigned *count, float *y, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  float sum = 0;
  for (int i = 0; i < PARTS; ++i) sum += partial[row * PARTS + i];
  y[row] = count[row] == PARTS ? sum : -1;
}
"""


@kernel(frontend="cuda", configs=[{"parts": 3}], outputs=["y"])
def row_sum(parts: int):
    partial, count = Workspace("float32", "n", parts), Workspace("uint32", "n", zeroed=True)
    return [
        Source(SOURCE, f"add<{parts}>", grid=("n", parts), block=1,
               x=Tensor("float32", "n", "m"), partial=partial, count=count, m=Size("m")),
        Source(SOURCE, f"finish<float, {parts}>", grid=ceildiv("n", 32), block=32,
               partial=partial, count=count, y=Tensor("float32", "n"), n=Size("n")),
    ]
'''

TRITON_SUM = """\
import triton
import triton.language as tl
from kernelwright import grid, kernel
from kernelwright.triton import Program, Size, Tensor, Workspace


@triton.jit
def finish_1(x, partial, count, m, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    row, part, total = tl.program_id(0), tl.program_id(1), 0.0
    for start in range(part * BLOCK, m, PARTS * BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x + row * m + i, i < m, 0.0))
    tl.store(partial + row * PARTS + part, total)
    tl.atomic_add(count + row, 1)


@triton.jit
def finish(partial, count, bias, step, y, PARTS: tl.constexpr):
    row = tl.program_id(0)
    total = tl.sum(tl.load(partial + row * PARTS + tl.arange(0, PARTS)))
    if bias is not None:
        total += tl.load(bias + row * step)
    tl.store(y + row, tl.where(tl.load(count + row) == PARTS, total, -1.0))


@kernel(frontend="triton", specialize="auto", configs=grid(has_bias=[True, False]), outputs=["y"])
def triton_sum(has_bias):
    partial, count = Workspace("float32", "n", 4), Workspace("int32", "n", zeroed=True)
    bias, step = Tensor("float32", "n", strides=["s"], given=has_bias), Size("s") if has_bias else None
    return [
        Program(finish_1, grid=("n", 4), x=Tensor("float32", "n", "m"), partial=partial, count=count,
                m=Size("m"), PARTS=4, BLOCK=16),
        Program(finish, grid="n", num_warps=1, partial=partial, count=count, bias=bias, step=step,
                y=Tensor("float32", "n"), PARTS=4),
    ]


@triton_sum.reference
def sums(x, bias):
    return x.sum(axis=1) + (0 if bias is None else bias)
"""

FILL = '''\
from kernelwright import kernel
from kernelwright.cuda import Scalar, Source, Tensor, ceildiv

SOURCE = """
__global__ void fill(float *x, float value) { x[blockIdx.x] = value; }
"""


@kernel(frontend="cuda")
def fill():
    return Source(SOURCE, "fill", x=Tensor("float32", "n", written=True), value=Scalar("float32"),
                  launch={"longest": Scalar("int32")}, grid=(ceildiv("longest", 32), "n"), block=1)
'''

needs_triton = pytest.mark.skipif(not TRITON.is_installed, reason="needs Triton")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a kernel of two launches in CUDA C++, built, and the stand-in for the driver."""
    project = Project.of(tmp_path_factory.mktemp("sequences"), SETTINGS, row_sum=ROW_SUM, fill=FILL)
    assert project.scons("-j2").labels["LOWER"] == 2
    make_standin(project)
    return project


def lowered(project: Project) -> tuple[dict[str, Any], str]:
    """The signature and the device code of the kernel in CUDA C++."""
    folder = project.folder / "build/kernels/demo/row_sum/parts-3/cuda"
    return json.loads((folder / "signature.json").read_text()), (folder / "device.cu").read_text()


def test_launches_share_arguments_and_workspaces(project: Project, tmp_path: Path) -> None:
    """It is run on the CPU, in both orders of blocks. Workspaces are no zeros, unless the definition says so."""
    emulation = Emulation(*lowered(project), tmp_path)

    @given(st.integers(1, 70), st.integers(0, 40), st.booleans())
    @settings(max_examples=25, deadline=None)
    def run(n: int, m: int, backwards: bool) -> None:
        x = np.random.default_rng(n * m).random((n, m), np.float32)
        got = emulation({"x": x, "y": np.full(n, np.nan, np.float32)}, {"n": n, "m": m}, backwards)
        np.testing.assert_allclose(got["y"], x.sum(axis=1), rtol=1e-5)

    run()


def test_two_workspaces_are_two_memories_even_if_no_launch_needs_both(tmp_path: Path) -> None:
    """TVM would take the first one for the second, which is then not zeroed."""
    source = "__global__ void count(unsigned *memory, unsigned *y) { *y = ++*memory; }\n"
    each = [{name: Workspace("uint32", 1, zeroed=True), f"y_{name}": Tensor("uint32", 1)} for name in "ab"]
    items = [Source(source, "count", **passed, grid=1, block=1) for passed in each]
    unit = Unit("count", "default", "kw_count", {}, ("y_a", "y_b"), "cuda", "sm_90", "count.py:1")
    files = lower(Launches(items), unit, lambda doing: None).files
    emulation = Emulation(json.loads(files["signature.json"]), files["device.cu"].decode(), tmp_path)
    got = emulation({name: np.zeros(1, np.uint32) for name in unit.outputs}, {})
    assert [got[name][0] for name in unit.outputs] == [1, 1]


@pytest.mark.parametrize("cuda_core", [False, True], ids=["library", "cuda_core"])
def test_a_call_allocates_once_fills_with_zeros_launches_in_order_and_frees(project: Project, cuda_core: bool) -> None:
    code = "x, y = on_cuda(33, 5), on_cuda(33, data=0x20000); demo.row_sum(x, y)"
    _, log = call(project, code, cuda_core=cuda_core)
    told = [line.split()[:2] for line in log if line.startswith(("allocate", "fill", "launch", "free"))]
    kinds = [first if first in ("allocate", "fill", "free") else f"{first} {second}" for first, second in told]
    adds, finishes = (line for line in log if line.startswith("launch"))
    assert kinds.count("allocate") == kinds.count("free") == 2 and kinds.count("fill") == 1
    assert kinds[-2:] == ["free", "free"] and "grid 33 3 1" in adds and "grid 2 1 1" in finishes
    assert "add" in adds and "finish" in finishes
    stream = "stream 0x1" if cuda_core else "stream 0"
    assert [line for line in log if line.startswith("fill")] == [f"fill 136 bytes with 0 in {stream}"]  # whole words
    assert f"{stream} on" in adds and f"{stream} on" in finishes


def test_arguments_of_all_launches_are_checked_and_an_edit_of_one_function_builds_what_it_has_to(
    project: Project,
) -> None:
    said, log = call(project, "print(message_of(demo.row_sum, on_cuda(33, 5), on_cuda(32)))")
    assert "y.shape[0]" in said and not [line for line in log if line.startswith("launch")]
    assert not project.scons("-j2").labels
    text = ROW_SUM.replace("sum : -1", "sum : -2").replace('"float32", "n", parts)', '"float32", "n * m - 7")')
    project.write("kernels/row_sum.py", text)
    labels = project.scons("-j2").labels
    assert (labels["LOWER"], labels["CUBIN"]) == (1, 2)
    said, log = call(project, "print(message_of(demo.row_sum, on_cuda(3, 2)))", cuda_core=True)
    assert "the size n * m - 7 of a workspace is negative" in said and not launches(log)
    project.write("kernels/row_sum.py", ROW_SUM)
    project.scons("-j2")


def test_an_array_of_two_launches_is_as_aligned_as_the_stricter_one_demands() -> None:
    demands = [{"alignment": 16}, {"alignment": 4, "multiples": {"n": 4}}, {"multiples": {"n": 6}}, {}]
    tensors = [Tensor("float32", "n", **demand) for demand in demands]
    sources = [Source("", f"f{number}", grid=1, block=1, x=x) for number, x in enumerate(tensors)]
    for order in (sources, sources[::-1]):
        x = Launches(order).declared["x"]
        assert (x.alignment, x.multiples) == (16, {"n": 12})


REFUSED = [
    ("return [", "return [1, ", "the definition returned an object of type builtins.int, expected a Source"),
    (
        "return [",
        'return [[Source(SOURCE, "add<1>", grid=1, block=1)] * 2, ',
        "an object of type builtins.list, expected",
    ),
    ('"float32", "n", parts)', '"float32", "n", -parts)', "workspace 'partial' has the size -3"),
    ("partial=partial, count=count, y", 'partial=Workspace("float32", "n"), count=count, y', "two launches name"),
    ('"uint32", "n", zeroed', '"complex64", "n", zeroed', "workspace 'count' has the dtype 'complex64'"),
    ('"float32", "n", parts)', '"float32", "k", parts)', "workspace 'partial' has the name 'k'"),
    ("block=1,", "block=1, defines={'A': 1},", "two launches define A, as 1 and as 2"),
    ('y=Tensor("float32", "n")', 'x=Tensor("float32", "n", "k"), y=Tensor("float32", "n")', "two launches name 'x'"),
    ("const T *partial, const", "const T *partial, const int *more, const", "another number of parameters than 4"),
    ("block=32,", 'block=32, launch={"n": Tensor("int32")},', "launch has 'n': "),
    ("block=32,", 'block=32, launch={"n": Scalar("int32")},', "launch has 'n', which is no name, or"),
    ("float *y", "const float *y", "y is written, and parameter 3 of finish<float, 3> points to constants"),
]
"""Edits of the definition, and what is said of the kernel then."""


def test_what_no_kernel_can_be_made_of_is_refused(tmp_path: Path) -> None:
    """One build has all of them, in files of their own."""
    project = Project.of(tmp_path, SETTINGS)
    for number, (old, new, _) in enumerate(REFUSED):
        text = ROW_SUM.replace("def row_sum", f"def k{number}").replace(old, new)
        assert old in ROW_SUM
        if "defines" in new:
            text = text.replace("block=32,", "block=32, defines={'A': 2},")
        if "const float *y" in new:
            text = text.replace("y[row] =", "if (0) count[row], (void)")
        project.write(f"kernels/k{number}.py", text)
    run = project.scons("-k", "-j2", "ARCHS=sm_80", ok=False)
    for number, (_, _, told) in enumerate(REFUSED):
        assert told in run.errors[f"k{number}"] and run.errors[f"k{number}"].startswith(f"kernels/k{number}.py:")


@pytest.mark.parametrize("cuda_core", [False, True], ids=["library", "cuda_core"])
def test_a_number_that_only_the_launch_needs_is_passed_and_the_function_does_not_get_it(
    project: Project, cuda_core: bool
) -> None:
    code = (
        "x = on_cuda(7); demo.fill(x, 1.5, 70); demo.fill(x, longest=32, value=2)\nprint(message_of(demo.fill, x, 1.5))"
    )
    said, log = call(project, code, cuda_core=cuda_core, parameters="pf")
    found = [re.findall(r"grid (\d+ \d+).* parameters \S+ (.*)", line)[0] for line in log if line.startswith("launch")]
    assert found == [("3 7", "1.5"), ("1 7", "2")]
    assert "takes 3 arguments" in said


@needs_triton
def test_programs_of_triton_become_one_kernel(tmp_path: Path) -> None:
    """Its code is compiled as one module, checked in Triton's interpreter, and launched as that of any kernel."""
    project = Project.of(tmp_path, SETTINGS, sums=TRITON_SUM)
    project.imported = ("support.torch_ready", *Project.imported)
    project.scons("-j2", "ARCHS=sm_90a")
    results = [
        f"build/check/demo/triton_sum/has_bias-{each}.interpreted.json" for each in ("True_all_multiple_of-16", "False")
    ]
    assert project.scons(*results, "-j2", "ARCHS=sm_90a").labels == {"CHECK": 2}
    make_standin(project)
    x, bias, y = "on_cuda(9, 48, data=0x1000)", "on_cuda(9, strides=({},), data=0x4000)", "on_cuda(9, data=0x20000)"
    called = [f"demo.triton_sum({x}, {bias.format(step)}, {y})\n" for step in (16, 3)] + [f"demo.triton_sum({x})"]
    _, log = call(project, "".join(called), capability=90)
    launched = [line for line in log if line.startswith("launch")]
    assert [(line.split()[1], re.findall(r"grid \d+ \d+", line)) for line in launched] == 3 * [
        ("finish_1_0", ["grid 9 4"]),
        ("finish_1", ["grid 9 1"]),
    ]
    folder = project.folder / "build/kernels/demo/triton_sum/has_bias-True_all_multiple_of-16/cuda"
    told = json.loads((folder / "signature.json").read_text())["multiples"]
    assert told == {"m": 16, "s": 16}, "a call has to have what the code of either launch takes for granted"
    assert log.count("fill 40 bytes with 0 in stream 0") == 3
    wrong = TRITON_SUM.replace("PARTS, total, -1.0", "PARTS, -total, -1.0")
    project.write("kernels/sums.py", wrong)
    assert "differs" in project.scons(results[0], "ARCHS=sm_90a", ok=False).output
