"""Tensor descriptors as arguments of functions in Triton: what launches pass, references, and mistakes."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.frontends.sequence import Launches
from kernelwright.frontends.triton.program import INTERPRETER
from kernelwright.triton import Program, Tensor, TensorDescriptor
from support.project import Project
from support.recorded import recorded
from support.standin_calls import beside, call, make_standin

try:
    version("triton"), version("torch")
except PackageNotFoundError:
    pytest.skip(f"Triton's interpreter needs {INTERPRETER.missing}", allow_module_level=True)

SETTINGS = """\
[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_80", "sm_90a"]
backends = ["tvm_ffi", "cuda_core"]
"""

FUNCTIONS = """\
import triton
import triton.language as tl


@triton.jit
def scaled_kernel(x, factor, y, m, M: tl.constexpr, K: tl.constexpr):
    row, column = tl.program_id(0) * M, tl.program_id(1) * K
    y.store([row, column], (x.load([row, column]) * factor).to(y.dtype))
"""

SCALED = """\
import numpy as np
from functions import scaled_kernel
from kernelwright import kernel
from kernelwright.triton import Program, Scalar, Size, Tensor, TensorDescriptor, ceildiv

CONFIGS = [{"dtype": "bfloat16", "M": 16}, {"dtype": "float32", "M": 512}]


@kernel(frontend="triton", per_arch=True, configs=CONFIGS, outputs=["y"])
def scaled(dtype, M):
    x = TensorDescriptor(Tensor(dtype, "m", "k", strides="dense"), [M, 16], padding="nan")
    y = TensorDescriptor(Tensor(dtype, "m", "k"), [M, 16])
    function = ["../functions.py", "scaled_kernel"] if dtype == "float32" else [scaled_kernel]
    numbers = {"factor": Scalar("float32"), "y": y, "m": Size("m"), "M": M, "K": 16}
    return Program(*function, x=x, **numbers, grid=[ceildiv("m", M), ceildiv("k", 16)])


@scaled.inputs
def _(rng, m, k):
    return {} if m < 500 and k < 500 else None


@scaled.reference
def _(x, factor):
    return (x * np.float32(factor)).astype(x.dtype)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A package with the kernel, beside its function."""
    made = Project.of(tmp_path_factory.mktemp("described"), SETTINGS, scaled=SCALED, recorded=RECORDED)
    made.write("functions.py", FUNCTIONS)
    made.write("program.py", PROGRAM)
    recorded(made.folder, "program.py", "--output", "kernels/calls.json", "--arch", "sm_80", "--arch", "sm_90a")
    made.scons("-j2")
    (checked,) = (path.name for path in made.folder.glob("build/kernels/demo/scaled/dtype-bfloat16*"))
    assert made.scons(f"build/check/demo/scaled/{checked}.interpreted.sm_90a.json").labels == {"CHECK": 1}
    make_standin(made)
    return made


PROGRAM = """\
import torch
from functions import scaled_kernel
from triton.tools.tensor_descriptor import TensorDescriptor

def launch(x, y, M):
    (m, k), of_x = x.shape, TensorDescriptor.from_tensor(x, [M, 16], padding="nan")
    scaled_kernel[-(-m // M), -(-k // 16)](of_x, 0.1, TensorDescriptor.from_tensor(y, [M, 16]), m, M, 16)

CALLS = [
    (torch.zeros(m, apart, dtype=dtype)[:, :k], torch.zeros(m, k, dtype=dtype), M)
    for m, k, apart in ((100, 40, 40), (513, 8, 64))
    for dtype, M in ((torch.bfloat16, 16), (torch.float32, 512))
]
if __name__ == "__main__":
    for call in CALLS:
        launch(*call)
"""

RECORDED = 'from kernelwright.triton import recorded\n\nkernels = recorded("calls.json")\n'

COMPARED = """
import demo, program, torch, tvm_ffi
from demo.backends import cuda_core
from kernelwright.triton import use
from pathlib import Path
from support.triton_launches import STREAM, Log, on_gpu, take_tensors, use_stand_in

use_stand_in()
take_tensors(demo)
log = Log(Path("log"))

def of_triton(*call):
    program.launch(*call)

def recorded(*call):
    with use(demo):
        program.launch(*call)

def library(x, y, M):
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), STREAM):
        demo.scaled(on_gpu(x), 0.1, on_gpu(y))

def python(x, y, M):
    cuda_core.scaled(on_gpu(x), 0.1, on_gpu(y), stream=STREAM)

def launches(way, call):
    log.taken()
    way(*call)
    return log.launches()

for call in program.CALLS:
    theirs = launches(of_triton, call)
    for way in (recorded, library, python):
        ours = launches(way, call)
        assert ours == theirs and len(ours) == 1, f"{way} {ours}\\n{theirs}"

def refused(x, blocks):
    try:
        with use(demo):
            program.scaled_kernel[1, 1](x and program.TensorDescriptor(*x, blocks), 0.1, program.CALLS[0][1], 3, 16, 16)
    except ValueError as error:
        return str(error)

x = torch.zeros(16, 16, dtype=torch.bfloat16)
assert "its parameter 'x' is no tensor descriptor of 2 dimensions" in refused(None, [16, 16])
assert "its parameter 'x' is no tensor descriptor of 2 dimensions" in refused((x, [256], [1]), [16])
assert "'y' is no tensor descriptor of 2 dimensions, which has base, sh" in refused((x, [16, 16], [16, 1]), [16, 16])
print(sum("sizes" in each for each in ours[0].parameters), "maps")
"""


@pytest.mark.parametrize("capability", [80, 90])
def test_a_launch_passes_what_triton_passes(project, capability):
    """By TMA and by pointers: code, grid, and the bytes of each parameter; of maps, what the driver is asked for."""
    assert beside(project, COMPARED, capability) == f"{2 if capability == 90 else 0} maps\n"


REFUSED = """
def refused(**more):
    arrays = [on_cuda(16, 24, dtype=(4, 16, 1), **more), 2.0, on_cuda(16, 24, dtype=(4, 16, 1))]
    print(message_of(demo.scaled, *arrays))
refused(data=0x1008)
refused(strides=(28, 1))
refused(strides=(48, 2))
print(message_of(demo.scaled, *[on_cuda(3, 12, dtype=(4, 16, 1)), 2.0, on_cuda(3, 12, dtype=(4, 16, 1))]))
"""


@pytest.mark.parametrize("cuda_core", [False, True])
def test_calls_that_no_descriptor_is_of_are_refused(project, cuda_core):
    printed, log = call(project, REFUSED, cuda_core=cuda_core, capability=90)
    assert not [line for line in log if line.startswith(("launch", "encode"))]
    data, stride, last, size = printed.split("Error: ")[1:]
    assert "'x'" in data and "16" in data
    assert "the stride of x in dimension 0 is not a multiple of 8" in stride
    assert "'x'" in last and "stride" in last
    assert "k (a multiple of 8)" in size


@pytest.mark.parametrize("strides", ["compact", "dense"])
def test_another_launch_gets_the_same_tensor_by_its_pointer(strides):
    x, y = Tensor("float16", "m", "k", strides=strides), Tensor("float16", "m")
    programs = [Program("f.py", "f", x=each, y=y, grid=1) for each in (TensorDescriptor(x, [8, 8]), x)]
    for launches in (Launches(programs), Launches(programs[::-1])):
        launches.check((), Where("k"))
        assert launches.declared["x"] == programs[0].declared["x"] != x
    with pytest.raises(DefinitionError, match="two launches name 'x'"):
        Launches([programs[0], Program("f.py", "f", x=Tensor("float16", "m", 8), y=y, grid=1)]).check((), Where("k"))


def test_a_descriptor_that_no_launch_can_pass_is_an_error():
    halves = Tensor("float16", "m", "k")
    for descriptor, expected, remedy in (
        (TensorDescriptor(Tensor("float16", "m", "k", given=False), [8, 8]), "", ""),  # the function gets None
        (TensorDescriptor(Tensor("float16", *"abcdef"), [8] * 6), "is of Tensor(", "one to 5 dimensions"),
        (TensorDescriptor(Tensor("float16", "m", "k", strides="free"), [8, 8]), "last stride is not", "dense"),
        (TensorDescriptor(Tensor("float16", "m", 12), [8, 8]), "has the stride 12, which is not in each", "multiples="),
        (TensorDescriptor(Tensor("float16", "m", 4, "k", strides=("4 * s", "s", 1)), [8, 4, 8]), "", ""),
        (TensorDescriptor(Tensor("float16", "m", "s", strides=("4 * s", 1)), [8, 8]), "has the stride (4 * s)", ""),
        (TensorDescriptor(Tensor("float16", "m", "s", strides=("4 * s", 1), multiples={"s": 2}), [8, 8]), "", ""),
        (TensorDescriptor(halves, [8]), "has block_shape=[8]", "give 2 powers of two"),
        (TensorDescriptor(halves, [8, 48]), "has block_shape=[8, 48]", "give 2 powers of two"),
        (TensorDescriptor(halves, [8, 4]), "has block_shape=[8, 4]", "16 bytes or more"),
        (TensorDescriptor(halves, [8, 8], "none"), "has padding='none' and the dtype float16", "'zero'"),
        (TensorDescriptor(Tensor("int8", "m", "k"), [8, 16], "nan"), "has padding='nan' and the dtype int8", "'zero'"),
        (TensorDescriptor("x", [8]), "the argument 'x' is TensorDescriptor(", "kernelwright.triton.TensorDescriptor("),
        (TensorDescriptor(Tensor("float7", "m"), [8]), "argument 'x' has the dtype 'float7'", "use one of"),
    ):
        program = Program("f.py", "f", x=descriptor, y=halves, grid=1)
        try:
            program.check((), Where("k"))
            said = ""
        except DefinitionError as error:
            said = str(error)
        assert expected in said and remedy in said and bool(said) == bool(expected), (descriptor, said)
