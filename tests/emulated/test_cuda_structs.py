"""Structures that functions in CUDA C++ get by value: what launches pass, and what does not agree with the source."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from typing import Any

import numpy as np
import pytest
from emulation import Emulation
from kernelwright.core.errors import DefinitionError, ToolchainError, Where
from kernelwright.cuda import Scalar, Size, Source, Struct, Tensor, TensorMap
from kernelwright.define.unit import Unit
from kernelwright.frontends.cuda.parameters import TYPES, comparisons
from kernelwright.toolchain.nvrtc import find_nvrtc
from support.project import Project
from support.standin_calls import call, make_standin

SETTINGS = """\
[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_90a"]
backends = ["tvm_ffi", "cuda_core"]
cuda_compiler = "nvrtc"
"""

SOURCE = """
namespace ns {
struct Empty {};
struct Shape { int m; short k; Empty empty; };
template <class T> struct Params {
  const T *__restrict__ x; bool flag; const Shape shape; const double scale; long stride; signed char level;
  T *const __restrict__ y; float last;
};
struct Pair { int one, two; };
}
__global__ void scaled(int first, const __grid_constant__ ns::Params<float> params, float *z, ns::Pair pair) {
  int i = threadIdx.x;
  z[0] = first + params.flag + params.shape.k + params.level + pair.two;
  params.y[i] = params.x[i * params.stride] * params.scale + params.last + params.shape.m;
}
"""

PARAMS = """\
    params = Struct(
        x=Tensor("float32", "m", strides=("s",)),
        flag=Scalar("bool"),
        shape=Struct(m=Size("m"), k=Scalar("int16"), empty=Struct()),
        scale=Scalar("float64"),
        stride=Stride("x", 0, "int64"),
        level=Scalar("int8"),
        y=Tensor("float32", "m"),
        last=Scalar("float32"),
    )
    passed = {"first": 7, "params": params, "z": Tensor("float32", 1), "pair": Struct(one=10, two=20)}
    return Source(SOURCE, "scaled", **passed, grid=1, block="m")
"""

DEFINITION = f'''\
from kernelwright import kernel
from kernelwright.cuda import Scalar, Size, Source, Stride, Struct, Tensor

SOURCE = """{SOURCE}"""


@kernel(frontend="cuda", outputs=["y", "z"])
def scaled():
{PARAMS}'''


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    try:
        find_nvrtc({})
    except ToolchainError:
        pytest.skip("NVRTC is not installed")
    project = Project.of(tmp_path_factory.mktemp("structs"), SETTINGS, scaled=DEFINITION)
    project.scons("-j2")
    make_standin(project)
    return project


@pytest.mark.parametrize("cuda_core", [False, True])
def test_a_launch_passes_the_bytes_of_the_structure(built, cuda_core):
    code = """
    x, y = on_cuda(5, strides=(3,), data=0x1000), on_cuda(5, data=0x2000)
    demo.scaled(x, True, -2, 0.5, -3, y, 1.25, on_cuda(1, data=0x3000))
    """
    _, log = call(built, re.sub("^    ", "", code, flags=re.M), cuda_core=cuda_core, capability=90, bytes=1)
    (launch,) = [line for line in log if line.startswith("launch ")]
    assert (
        f"stream {'0x1' if cuda_core else '0'} on cuda:0" in launch
    )  # the one in which functions without structures are
    first, params, z, pair = map(bytes.fromhex, launch.split()[-4:])
    assert params == struct.pack("<q?3xih6xdqb7xqf4x", 0x1000, True, 5, -2, 0.5, 3, -3, 0x2000, 1.25)
    assert (first, z, pair) == (struct.pack("<i", 7), struct.pack("<q", 0x3000), struct.pack("<ii", 10, 20))


def test_the_code_gets_what_the_definition_says(built, tmp_path):
    folder = built.folder / "build/kernels/demo/scaled/default/cuda"
    described = json.loads((folder / "signature.json").read_text())
    emulated = Emulation(described, (folder / "device.cu").read_text(), tmp_path / "emulated")
    numbers = {"flag": True, "k": -2, "scale": 0.5, "level": -3, "last": 1.25}
    x = np.arange(8, dtype="f")
    values = {"x": x, **numbers, "y": np.zeros(4, "f"), "z": np.zeros(1, "f")}
    made = emulated(values, {"m": 4, "s": 2})
    np.testing.assert_array_equal(made["y"], x[::2] * 0.5 + 1.25 + 4)
    assert made["z"] == 7 + 1 - 2 - 3 + 20


AT = "of params, and at another one of parameter 2 of scaled"
MISTAKES = [
    ("", "", ""),
    ('flag=Scalar("bool"),', "", f"shape.m is at byte 8 {AT}"),
    ('level=Scalar("int8"),', 'level=Scalar("int32"),', "level is a number of int32, which level of parameter 2 of"),
    ("Struct(m=Size", "Struct(mm=Size", "params has the member shape.mm, which parameter 2 of scaled does not have"),
    ('last=Scalar("float32"),', "", "params has 7 members, and parameter 2 of scaled has more"),
    ("struct Params {", "struct alignas(128) Params {", "params has 64 bytes, and parameter 2 of scaled has more"),
    ("signed char level;", "signed char level; short hidden;", "params has 8 members, and parameter 2"),
    ("Empty empty; };", "Empty empty; char end; };", "params.shape has 3 members, and parameter 2 of scaled has more"),
    ("bool flag; const Shape shape;", "const Shape shape; bool flag;", f"flag is at byte 8 {AT}"),
    ("T *const __restrict__ y;", "const T *y;", "y is written, and y of parameter 2 of scaled points to constants"),
    ('x=Tensor("float32"', 'x=Tensor("int32"', "x is a tensor of int32, which x of parameter 2 of scaled does not"),
    (
        "const T *__restrict__ x;",
        "const double *x;",
        "x is a tensor of float32, which x of parameter 2 of scaled does not",
    ),
    ("ns::Params<float> params,", "float params,", "params has the member x, which parameter 2"),
]
"""Edits of the source or the definition, and what the compiler says."""

KEYWORDS = "#define __global__\n#define __device__\n#define __grid_constant__\n"


UNIT = Unit("k", "default", "kw_k", {}, ("y", "z"), "cuda", "sm_90a", "k.py:1")


def test_what_does_not_agree_with_the_source_is_an_error_that_names_the_member(tmp_path):
    for old, new, expected in MISTAKES:
        assert old in DEFINITION
        definition = DEFINITION.replace(old, new).partition("@kernel")
        names: dict[str, Any] = {}
        exec(definition[0] + definition[2].partition("\n")[2], names)
        function = re.sub(r"\) \{.*", ");", names["SOURCE"], flags=re.S)
        text = [KEYWORDS, function, TYPES, *comparisons([names["scaled"]()], UNIT)]
        (tmp_path / "types.cpp").write_text("\n".join(text))
        command = ["g++", "-std=c++17", "-fsyntax-only", "-w", "types.cpp"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert f"static assertion failed: {expected}" in done.stderr if expected else not done.stderr, done.stderr


def test_alignments_are_in_the_order_of_the_arguments():
    text, passed = "void f(float4 *z, char *a);\n", {"z": Tensor("float32", "m"), "a": Tensor("int8", "m")}
    *_, asked = comparisons([Source(text, "f", **passed, grid=1, block=1)], UNIT)
    assert re.findall(r"parameter<(\d)>", asked) == ["0", "1"]


def test_structures_that_no_launch_can_pass_are_errors():
    x = Tensor("float32", "m")
    for struct_of, expected in (
        (Struct(), "the Struct of parameter 'p' has no members"),
        (Struct(y=x), "'y' is the name of two parameters or members"),
        (Struct(y=Scalar("float32")), "'y' is the name of two parameters or members"),
        (Struct(a=Struct(y=x)), "'y' is the name of two parameters or members"),
        (Struct(a=Scalar("bfloat16")), "argument 'a' has the dtype 'bfloat16', which no number can have here"),
        (Struct(a=Size("k")), "argument 'a' has the name 'k', which is in no shape"),
        (Struct(a=1.5), "argument 'a' is 1.5, which is no size"),
        (Struct(a=TensorMap(x, box=[3])), "the TensorMap of 'a' has a box with rows of 12 bytes"),
    ):
        source = Source("void f();\n", "f", y=x, p=struct_of, grid=1, block=1)
        with pytest.raises(DefinitionError, match=re.escape(expected)):
            source.check(("y",), Where("k"))
        if "members" in expected:  # also of one of several launches
            with pytest.raises(DefinitionError, match=re.escape(expected)):
                source.check_launch(source.told_sizes, source.sure_sizes, Where("k"))
