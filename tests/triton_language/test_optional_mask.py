"""Kernels whose arrays may be None: attention with or without a mask in Triton, and norms in CUDA C++.

They are built without a GPU, called against the stand-in for the driver, and compared with references where Triton's
interpreter runs them.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from kernelwright.frontends.triton.program import INTERPRETER
from support.project import Project
from support.standin_calls import call, make_standin

try:
    version("triton"), version("torch")
except PackageNotFoundError:
    pytest.skip(f"Triton's interpreter needs {INTERPRETER.missing}", allow_module_level=True)

SETTINGS = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_90a"]\n'
BACKENDS = 'backends = ["tvm_ffi", "cuda_core"]\n'

ATTENTION = """\
import numpy as np
import triton
import triton.language as tl
from kernelwright import grid, kernel
from kernelwright.triton import Program, Size, Tensor


@triton.heuristics({"HAS_MASK": lambda arguments: arguments["mask"] is not None})
@triton.jit
def attention_kernel(q, k, v, mask, out, n, HAS_MASK: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    row, keys, columns = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, D)
    inside = (keys < n)[:, None]
    places = keys[:, None] * D + columns[None, :]
    scores = tl.sum(tl.load(q + row * D + columns)[None, :] * tl.load(k + places, mask=inside, other=0.0), axis=1)
    if mask is not None:
        scores += tl.load(mask + row * n + keys, mask=keys < n, other=0.0)
    if not HAS_MASK:
        scores += 0.5
    weights = tl.exp(tl.where(keys < n, scores, float("-inf")))
    weights /= tl.sum(weights, axis=0)
    tl.store(out + row * D + columns, tl.sum(weights[:, None] * tl.load(v + places, mask=inside, other=0.0), axis=0))


@kernel(frontend="triton", configs=grid(has_mask=[True, False]), outputs=["out"])
def attention(has_mask):
    rows = {name: Tensor("float32", size, 16) for name, size in (("q", "m"), ("k", "n"), ("v", "n"))}
    mask = Tensor("float32", "m", "n", given=has_mask)
    constants = {"D": 16, "BLOCK": 16}
    return Program(
        attention_kernel, **rows, mask=mask, out=Tensor("float32", "m", 16), n=Size("n"), **constants, grid="m"
    )


@attention.reference
def _(q, k, v, mask):
    weights = np.exp(q @ k.T + (0 if mask is None else mask))
    return weights / weights.sum(axis=1, keepdims=True) @ v


@attention.inputs
def _(rng, m, n):
    mask = rng.standard_normal((m, n))
    return {"mask": mask} if 0 < n <= 16 and m < 100 else None
"""

ADD = """\
import triton
import triton.language as tl


@triton.heuristics({"HAS_BIAS": lambda arguments: arguments["bias"] is not None})
@triton.jit
def add_kernel(x, bias, y, n, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if HAS_BIAS:
        value += tl.load(bias + at, mask=at < n)
    tl.store(y + at, value, mask=at < n)
"""

NAMED = """\
from kernelwright import grid, kernel
from kernelwright.triton import Program, Size, Tensor, ceildiv


@kernel(frontend="triton", configs=grid(has_bias=[True, False]), outputs=["y"], backends=["tvm_ffi"])
def add(has_bias):
    vector, bias = Tensor("float32", "n"), Tensor("float32", "n", given=has_bias)
    sizes = {"n": Size("n"), "grid": ceildiv("n", 64)}
    return Program("source/add.py", "add_kernel", x=vector, bias=bias, y=vector, BLOCK=64, **sizes)


@add.reference
def _(x, bias):
    return x + (0 if bias is None else bias)


@add.inputs
def _(rng, n):
    return {} if n < 500 else None
"""

NORMS = '''\
from kernelwright import kernel
from kernelwright.cuda import Exported, Size, Source, Tensor

SOURCE = """
__global__ void rms_norm(const float *bias, const float *x, const float *weight, float *mean, float *y, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[blockIdx.x * n + i] * x[blockIdx.x * n + i];
  if (mean && !threadIdx.x) mean[blockIdx.x] = sum / n;
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * rsqrtf(sum / n) * (weight ? weight[i] : 1) + (bias ? bias[i] : 0);
}
"""


@kernel(frontend="cuda", outputs=["y"])
def rms_norm():
    rows, row = Tensor("float32", "m", "n"), Tensor("float32", "n", optional=True)
    mean = Tensor("float32", "m", optional=True, written=True)
    return Source(SOURCE, "rms_norm", bias=row, x=rows, weight=row, mean=mean, y=rows, n=Size("n"), grid="m", block=32)


@kernel(frontend="cuda", sources=["told.cc"], backends=["tvm_ffi"])
def told():
    return Exported("told", x=Tensor("float32", "n"), bias=Tensor("float32", "n", optional=True))
'''

TOLD = """\
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

void told(tvm::ffi::TensorView x, tvm::ffi::Optional<tvm::ffi::TensorView> bias) {
  TVM_FFI_THROW(ValueError) << (bias.has_value() ? "it has " : "no bias, ") << x.size(0);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(told, told);
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project."""
    project = Project.of(
        tmp_path_factory.mktemp("none"), SETTINGS + BACKENDS, attention=ATTENTION, norms=NORMS, named=NAMED
    )
    project.write("kernels/told.cc", TOLD)
    project.write("kernels/source/add.py", ADD)
    project.scons("-j2")
    make_standin(project)
    return project


CALLS = """
shapes = [(3, 16), (5, 16), (5, 16), (3, 5), (3, 16)]
q, k, v, mask, out = (on_cuda(*shape, data=at << 16) for at, shape in enumerate(shapes, 1))
demo.attention(q, k, v, mask, out)
demo.attention(q, k, v, None, out)
demo.attention(out=out, q=q, k=k, v=v)
x, row, y = on_cuda(3, 5, data=0x10000), on_cuda(5, data=0x20000), on_cuda(3, 5, data=0x30000)
demo.rms_norm(row, x, row, None, y)
demo.rms_norm(None, x, None, None, y)
demo.rms_norm(x=x, y=y, mean=on_cuda(3, data=0x40000))
made = demo.attention(q, k, v)
print(made.__dlpack_device__())
"""


@pytest.mark.parametrize("cuda_core", [False, True])
def test_a_package_is_called_with_and_without_an_array(built: Project, cuda_core: bool) -> None:
    printed, log = call(built, CALLS, parameters="pppp", cuda_core=cuda_core, capability=90)
    assert printed == "(2, 0)"
    launched = [re.match(r"launch (\S+) .* parameters (.*)", line) for line in log if line.startswith("launch ")]
    found = [(match[1], match[2].split()) for match in launched if match]
    q, k, v, mask, out = (hex(at << 16) for at in range(1, 6))
    assert found[:3] == [("attention_kernel", [q, k, v, mask]), *[("attention_kernel", [q, k, v, out])] * 2]
    assert [parameters for name, parameters in found[3:6] if name != "attention_kernel"] == [
        ["0x20000", "0x10000", "0x20000", "0"],
        ["0", "0x10000", "0", "0"],
        ["0", "0x10000", "0", "0x40000"],
    ]
    assert len({line for line in log if line.startswith("load")}) == 3, "two variants of attention, and one of rms_norm"


ON_DEMAND = """
import kernelwright

class Array(FakeTensor):
    dtype = "float32"

    def __init__(self, *shape, data=0x10000):
        super().__init__(shape, (2, 32, 1), device=(2, 0), data=data)
        self.shape = shape

attention = kernelwright.load("kernels/attention.py").attention
q, k, mask = Array(3, 16), Array(5, 16, data=0x20000), Array(3, 5, data=0x30000)
for more, named in (((mask,), {}), ((None,), {}), ((), {}), ((), {"mask": mask})):
    attention(q, k, k, *more, **named)
attention(v=k, k=k, q=q)
print(message_of(attention, q, k).partition("\\n")[0])
"""


def test_a_definition_is_called_with_and_without_an_array(built: Project) -> None:
    printed, log = call(built, ON_DEMAND, parameters="pppp", capability=90)
    said = "takes 5 arguments (q, k, v, mask, [out]), or 3 to 4 with the outputs left out; 2 were given"
    assert printed.splitlines()[-1] == f"TypeError: kernel 'attention': {said}"
    fourth = [line.split()[-1] for line in log if line.startswith("launch ")]
    assert [parameter == "0x30000" for parameter in fourth] == [True, False, False, True, False]


def test_host_code_of_the_author_gets_None(built: Project) -> None:
    code = 'x = on_cuda(5)\nfor more in ((), (None,), (x,)): print(message_of(demo.told, x, *more).split("\\n")[0])'
    assert call(built, code, capability=90)[0].splitlines() == [
        "ValueError: no bias, 5",
        "ValueError: no bias, 5",
        "ValueError: it has 5",
    ]
    assert (
        "Mismatched bias.shape[0]"
        in call(built, "print(message_of(demo.told, on_cuda(5), on_cuda(4)))", capability=90)[0]
    )


def test_the_manifest_and_the_stub_say_what_may_be_none(built: Project) -> None:
    manifest = json.loads((built.folder / "build/demo/manifest.json").read_text())["kernels"]
    arguments = {
        name: [{a["name"]: a["given"] for a in variant["arguments"] if "given" in a} for variant in kernel["variants"]]
        for name, kernel in manifest.items()
    }
    assert arguments == {
        "add": [{}, {"bias": False}],
        "attention": [{}, {"mask": False}],
        "rms_norm": [{"bias": None, "weight": None, "mean": None}],
        "told": [{"bias": None}],
    }
    stub = (built.folder / "build/demo/__init__.pyi").read_text()
    assert "(self, /, q: _Tensor, k: _Tensor, v: _Tensor, mask: _Tensor | None = None) -> _Any: ..." in stub
    assert "has_mask-False: (q: float32[m, 16], k: float32[n, 16], v: float32[n, 16], mask: None, out:" in stub


def test_references_get_None_too(built: Project, tmp_path: Path) -> None:
    run = built.scons("check")
    assert run.labels["CHECK"] == 4
    wrong = built.copied(tmp_path / "wrong")
    definition = wrong.folder / "kernels/attention.py"
    definition.write_text(definition.read_text().replace("(0 if mask is None else mask)", "(1 if mask is None else 0)"))
    results = (f"build/check/demo/attention/has_mask-{each}.interpreted.json" for each in (True, False))
    text = wrong.scons("-k", *results, ok=False).output
    assert re.search(
        r"attention/has_mask-True.*out differs from the reference at m=\d+, n=\d+ on interpreted", text, re.S
    )
    assert "[ CHECK ] attention/has_mask-False interpreted\n" in text and "kernelwright: 1 failed:" in text
