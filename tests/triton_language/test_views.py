"""Strides that declarations have: variants, parameters of launches and checks, with views of arrays and no GPU."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from kernelwright.frontends.triton.program import INTERPRETER
from support.project import SITE_SCONS, Project
from support.standin_calls import call, launches, make_standin
from support.walks import THOROUGH

try:
    version("triton"), version("torch")
except PackageNotFoundError:
    pytest.skip(f"Triton's interpreter needs {INTERPRETER.missing}", allow_module_level=True)

SETTINGS = """\
[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_90a"]
backends = ["tvm_ffi", "cuda_core"]
"""

TRITON = '''\
import numpy as np
import triton
import triton.language as tl
from _twice import twice_kernel
from kernelwright import kernel
from kernelwright.triton import Program, Size, Stride, Tensor


@triton.jit
def softmax_kernel(x, y, stride_row, step, stride_out, n, BLOCK: tl.constexpr):
    """A row of x, whose elements follow one another, as in a slice of columns."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * stride_row + at * step, mask=at < n, other=-float("inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + row * stride_out + at, value / tl.sum(value, 0), mask=at < n)


@kernel(frontend="triton", configs=[{"strides": "compact"}, {"strides": "rows"}], specialize="auto", outputs=["y"])
def softmax(strides):
    return Program(
        softmax_kernel,
        x=Tensor("float32", "m", "n", strides=("s", 1) if strides == "rows" else strides),
        y=Tensor("float32", "m", "n", strides="dense" if strides == "rows" else strides),
        stride_row=Stride("x", 0),
        step=Stride("x", 1),  # always 1, so the code has no such parameter
        stride_out=Stride("y", 0),
        n=Size("n"),
        BLOCK=128,
        grid="m",
    )


@softmax.inputs
def _(rng, m, n):
    return {} if 0 < m < 1000 and 0 < n <= 128 else None


@softmax.reference
def _(x):
    power = np.exp(x - x.max(axis=1, keepdims=True))
    return power / power.sum(axis=1, keepdims=True)


WRONG = {"dtype": "int16", "wrong": 1}


@kernel(frontend="triton", configs=[*({"dtype": each} for each in ("float32", "float16")), WRONG])
def twice(dtype, wrong=0):
    """Any strides; one variant is for a process of its own, and one has a mistake."""
    function = ["_twice.py", "twice_kernel"] if dtype == "float16" else [twice_kernel]
    return Program(
        *function,
        x=Tensor(dtype, "m", "n", strides="free"),
        y=Tensor(dtype, "m", "n", strides=(None, "k"), written=True),
        xm=Stride("x", 0),
        xk=Stride("x", 1, dtype="int64"),
        ym=Stride("y", 0),
        yk=Size("k"),
        n=Size("n") + wrong,
        BLOCK=256,
        grid="m",
    )


@twice.inputs
def _(rng, m, n):
    return {} if max(m, n) < 1000 else None


@twice.reference
def _(x, y):
    return {"y": x + x}
'''

SOURCE = """\
import triton
import triton.language as tl


@triton.jit
def twice_kernel(x, y, xm, xk, ym, yk, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * xm + at * xk, mask=at < n)
    tl.store(y + row * ym + at * yk, value * 2, mask=at < n)
"""

CUDA = '''\
from kernelwright import kernel
from kernelwright.cuda import Size, Source, Stride, Tensor, TensorMap

RMS_NORM = """
__global__ void rms_norm(float *out, const float *input, long input_stride, const float *weight, float *cache,
                         int block_stride, int hidden) {
  extern __shared__ float sums[];
  const float *row = input + blockIdx.x * input_stride;
  float sum = 0;
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) sum += row[i] * row[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) out[blockIdx.x * hidden + i] = row[i] * weight[i] + sums[0];
  cache[blockIdx.x * block_stride] = sum;
}
"""


@kernel(frontend="cuda", outputs=["out"])
def rms_norm():
    """As vLLM passes it: rows of a larger matrix, and one half of a cache."""
    return Source(
        RMS_NORM,
        "rms_norm",
        out=Tensor("float32", "tokens", "hidden"),
        input=Tensor("float32", "tokens", "hidden", strides="dense"),
        input_stride=Stride("input", 0, dtype="int64"),
        weight=Tensor("float32", "hidden"),
        cache=Tensor("float32", "tokens", 16, strides=("page", 1), written=True),
        block_stride=Size("page"),
        hidden=Size("hidden"),
        shared=Size(4 * 128),
        grid="tokens",
        block=128,
    )


MAPPED = """
#include <cuda.h>
__global__ void mapped(const __grid_constant__ CUtensorMap x, float *y) { *y = (long)&x; }
"""


@kernel(frontend="cuda", outputs=["y"])
def mapped():
    x = TensorMap(Tensor("float32", "m", 64, strides=("s", 1), multiples={"s": 4}), box=(8, 32))
    return Source(MAPPED, "mapped", x=x, y=Tensor("float32", 1), grid=1, block=1)
'''


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project."""
    project = Project.of(tmp_path_factory.mktemp("strides"), SETTINGS, programs=TRITON, sources=CUDA)
    project.write("kernels/_twice.py", SOURCE)
    project.scons("-j2")
    make_standin(project)
    return project


def parameters(log: list[str]) -> list[list[str]]:
    return [line.partition("parameters ")[2].split() for line in launches(log)]


@pytest.mark.parametrize("cuda_core", [False, True])
def test_the_first_variant_whose_strides_fit_gets_the_strides_of_the_arrays(built: Project, cuda_core: bool) -> None:
    code = """
def softmax(x, y=None):
    arrays = on_cuda(4, 5 if x != 32 else 32, data=0x100, strides=(x, 1) if x else None),
    arrays += (on_cuda(*arrays[0].shape, data=0x200, strides=(y, 1)),) if y else ()
    demo.softmax(*arrays)
    print(demo.softmax.choice(*arrays).variant)
softmax(0), softmax(5), softmax(5, 5), softmax(7), softmax(-7, 9), softmax(0, 9), softmax(32)
wide = on_cuda(4, 32, data=0x100, strides=(48, 1)), on_cuda(4, 32, data=0x400, strides=(32, 1))
demo.softmax(*wide), print(demo.softmax.choice(*wide).variant)
wide = on_cuda(4, 32, data=0x100, strides=(40, 1)), wide[1]
demo.softmax(*wide), print(demo.softmax.choice(*wide).variant)
for shape, strides in (((4, 5), (7, 2)), ((4, 5), (2**31, 1)), ((4, 5, 6), (1, 2, 3))):
    print(message_of(demo.softmax, on_cuda(*shape, strides=strides)).splitlines()[0])
print(message_of(demo.softmax, on_cuda(4, 5, strides=(7, 1)), on_cuda(4, 5, strides=(0, 1))).splitlines()[0])
print(message_of(demo.softmax, on_cuda(4, 5, dtype=half, strides=(7, 1))))
# Over one row, or none, nothing strides.
softmax(0), demo.softmax(on_cuda(1, 5, data=0x100, strides=(2**40, 1)), on_cuda(1, 5, data=0x200, strides=(0, 1)))
"""
    printed, log = call(built, code, parameters="ppiiipp", capability=90, cuda_core=cuda_core)
    lines = printed.splitlines()
    rows = ["strides-rows"] * 3
    assert lines[:9] == [
        *["strides-compact"] * 3,
        *rows,
        "strides-compact_all_multiple_of-16",
        "strides-rows_all_multiple_of-16",
        "strides-rows",
    ]
    assert [each[2:5] for each in parameters(log)[:9]] == [
        *[["5", "5", "5"]] * 3,
        *(["7", "5", "5"], ["-7", "9", "5"], ["5", "9", "5"]),
        *(["32", "32", "32"], ["48", "32", "32"], ["40", "32", "32"]),
    ]
    assert "Mismatched x.strides on argument #0" in lines[9]
    assert "argument 'x' has the stride 2147483648 in dimension 0, which does not fit int32" in lines[10]
    assert "no built variant accepts these arguments" in lines[11]
    assert "argument 'y' has the stride 0 in dimension 0, and the kernel writes it" in lines[12]
    assert "strides-rows expects: x = float32[m, n] with strides [s, 1]" in printed
    assert parameters(log)[-1][:5] == ["0x100", "0x200", "5", "5", "5"]


@pytest.mark.parametrize("cuda_core", [False, True])
def test_random_views_are_passed_as_numpy_has_them(built: Project, cuda_core: bool) -> None:
    code = """
import numpy as np
import random
random.seed(7)
def view(written):
    array = np.zeros([random.randint(1, 9) for _ in range(3)], "float32")
    array = array.transpose(random.sample(range(3), 3))
    array = array[tuple(slice(None, None, random.choice((1, 2, -1, -3))) for _ in range(3))]
    if not written and random.random() < 0.3:
        array = np.broadcast_to(array[:1], (4, *array.shape[1:]))
    return array[random.randrange(array.shape[0])] if random.random() < 0.7 else array[..., -1]
def fake(array, base):
    strides = tuple(stride // 4 for stride in array.strides)
    return on_cuda(*array.shape, data=base, strides=strides, byte_offset=16)
for number in range(150):
    x, y = view(False), view(True)
    x, y = (one[: min(x.shape[0], y.shape[0]), : min(x.shape[1], y.shape[1])] for one in (x, y))
    demo.twice(fake(x, 0x10000), fake(y, 0x20000))
    told = [stride // 4 if size > 1 else None for one in (x, y) for stride, size in zip(one.strides, one.shape)]
    print(told, x.shape)
"""
    printed, log = call(built, code, parameters="ppiliiipp", capability=90, cuda_core=cuda_core)
    asked, passed = printed.splitlines(), parameters(log)
    assert len(asked) == len(passed) == 150
    for line, found in zip(asked, passed, strict=True):
        told, shape = eval(line.replace("] (", "], ("))
        assert found[:2] == ["0x10010", "0x20010"]
        assert int(found[6]) == shape[1]
        assert all(one is None or one == int(other) for one, other in zip(told, found[2:6], strict=True)), (line, found)


def test_random_views_are_computed_in_the_interpreter_as_numpy_does(built: Project) -> None:
    code = """
import sys
sys.path[:0] = ["kernels"]
import numpy as np
import programs
import torch
from hypothesis import given, settings, strategies as st
from kernelwright.frontends.triton.interpreter import interpreted
from kernelwright.frontends.unit import Unit
unit = Unit("twice", "v", "kw_twice", {}, (), "cuda", "sm_90a", "programs.py:1")
torch.set_num_threads(1)
run = interpreted(programs.twice.function(dtype="float32"), unit)

@settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True)
@given(st.data())
def same(data):
    slices, order = st.slices(6), st.permutations(range(3))
    x = np.arange(6**3, dtype="float32").reshape(6, 6, 6).transpose(data.draw(order))
    x = x[data.draw(slices), data.draw(slices), data.draw(st.integers(0, 5))]
    if x.shape[0] and data.draw(st.booleans()):
        x = np.broadcast_to(x[0], x.shape)
    whole = np.zeros((6, 6, 6), "float32")
    y = whole.transpose(data.draw(order))[: x.shape[0], data.draw(st.integers(0, 5)), : x.shape[1]]
    y = y[:: data.draw(st.sampled_from([1, -1])), :: data.draw(st.sampled_from([1, -1]))]
    run(x, y)
    assert (y == 2 * x).all()
    y[...] = 0
    assert not whole.any(), "beside the output"

same()
print("done")
"""
    env = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(SITE_SCONS)}
    assert built.python(f"EXAMPLES = {2000 if THOROUGH else 60}{code}", env=env).splitlines()[-1] == "done"


@pytest.mark.parametrize("cuda_core", [False, True])
def test_a_source_in_cuda_gets_strides_of_views_and_tensor_maps_too(built: Project, cuda_core: bool) -> None:
    code = """
weight = on_cuda(128, data=0x500)
qkv = on_cuda(3, 128, data=0x1000, strides=(384, 1), byte_offset=512)  # qkv[:, 128:256]
demo.rms_norm(on_cuda(3, 128, data=0x700), qkv, weight, on_cuda(3, 16, data=0x900, strides=(32, 1)))  # cache[:, 0]
print(message_of(demo.rms_norm, qkv, weight, on_cuda(3, 16, strides=(0, 1))).splitlines()[0])
print(message_of(demo.rms_norm, qkv, weight, on_cuda(3, 16, strides=(32, 2))).splitlines()[0])
"""
    printed, log = call(built, code, parameters="pplppii", capability=90, cuda_core=cuda_core)
    assert parameters(log) == [["0x700", "0x1200", "384", "0x500", "0x900", "32", "128"]]
    first, second = printed.splitlines()
    assert "argument 'cache' has the stride 0 in dimension 0, and the kernel writes it" in first
    wanted = "argument 'cache' has the stride 2 in dimension 1, expected 1 (it has to be float32[tokens, 16] with"
    assert wanted in second
    code = "demo.mapped(on_cuda(5, 64, data=0x1000, strides=(96, 1)))\n"
    code += "print(message_of(demo.mapped, on_cuda(5, 64, data=0x1000, strides=(97, 1))))"
    printed, log = call(built, code, parameters="tp", capability=90, cuda_core=cuda_core)
    assert any("strides 384" in line for line in log), log
    assert "the size s is not a multiple of 4" in printed


def test_checks_try_strides_and_see_what_is_written_beside_an_array(built: Project, tmp_path: Path) -> None:
    project = built.copied(tmp_path / "copy")
    names = ["softmax/strides-rows", *(f"twice/dtype-{each}" for each in ("float16", "int16_wrong-1"))]
    run = project.scons("-k", *(f"build/check/demo/{name}.interpreted.json" for name in names), ok=False)
    assert run.labels["CHECK"] == 3
    found = "twice/dtype-int16_wrong-1 [check]: "
    assert run.output.count("[check]: ") == run.output.count(found) > 0
    assert "elements that are none of y have changed, whose strides are [" in run.output
    result = json.loads((project.folder / "build/check/demo/twice/dtype-float16.interpreted.json").read_text())
    assert result["cases"] == 3 + 5  # three layouts at the first sizes, and then one of them
