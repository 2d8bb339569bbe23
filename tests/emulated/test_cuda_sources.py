"""Definitions in CUDA C++: real builds without a GPU, and calls against the stand-in for the driver."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from emulation import Emulation
from kernelwright.core.errors import DefinitionError, ToolchainError, Where
from kernelwright.cuda import Tensor, TensorMap
from kernelwright.frontends.cuda.parameters import TYPES
from kernelwright.toolchain.nvcc import find_nvcc
from kernelwright.toolchain.nvrtc import find_nvrtc
from support.project import Project
from support.standin_calls import call, launches, make_standin

SETTINGS = """\
[tool.kernelwright]
targets = ["llvm", "cuda"]
archs = ["x86-64-v3", "sm_80", "sm_90a"]
backends = ["tvm_ffi", "cuda_core"]
"""

HEADER = """\
#pragma once
#include <cuda_fp16.h>
#if __CUDA_ARCH__ >= 900
constexpr int TILE = 8;
#else
constexpr int TILE = 4;
#endif
namespace {
__device__ float scales[2] = {1, 2};  // nvcc makes the name of this one
}
__device__ inline float as_float(float x) { return scales[0] * x; }
__device__ inline float as_float(__half x) { return __half2float(x); }
"""

REDUCE = """\
#include "as_float.cuh"

namespace rows {
template <typename T, int THREADS, int WIDTH>  // whose name depends on the arch
__global__ void __launch_bounds__(THREADS) sum(const T *__restrict__ x, float *y, int columns, float scale) {
  __shared__ float partial[THREADS];
  float found = 0;
  for (int i = threadIdx.x; i < columns; i += THREADS) found += as_float(x[(long long)blockIdx.x * columns + i]);
  partial[threadIdx.x] = found;
  __syncthreads();
  for (int half = THREADS / 2; half; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (!threadIdx.x) y[blockIdx.x] = partial[0] * scale;
}
}  // namespace rows
"""

ROW_SUM = """\
from kernelwright import grid, kernel
from kernelwright.cuda import Scalar, Size, Source, Tensor

TYPES = {"float32": "float", "float16": "__half"}


@kernel(frontend="cuda", configs=grid(dtype=["float32", "float16"]), outputs=["y"])
def row_sum(dtype: str):
    return Source(
        "csrc/reduce.cu",
        f"rows::sum<{TYPES[dtype]}, 128, TILE>",
        x=Tensor(dtype, "rows", "columns"),
        y=Tensor("float32", "rows"),
        columns=Size("columns"),
        scale=Scalar("float32"),
        grid="rows",
        block=128,
    )
"""

TILES = '''\
from kernelwright import kernel
from kernelwright.cuda import Size, Source, Tensor

SOURCE = """
#include <numpy/utils.h>
extern "C" __global__ void NPY_CAT(ti, les)(float4 *aligned, long long bytes, int width) {
  float *x = (float *)aligned;
  extern __shared__ float buffer[];
  long long i = ((long long)blockIdx.y * gridDim.x + blockIdx.x) * THREADS + threadIdx.x;
  buffer[threadIdx.x] = 4 * i < bytes ? x[i] : 0;
  __syncthreads();
  if (4 * i < bytes) x[i] = buffer[THREADS - 1 - threadIdx.x] + width;
}
"""


@kernel(frontend="cuda", includes=["package:numpy/_core/include"])
def tiles():
    return Source(
        SOURCE,
        "tiles",
        x=Tensor("float32", "m", "n", multiples={"n": 4}, written=True),
        bytes=Size("4 * m * n", dtype="int64"),
        width=Size("n"),
        grid=("(n + 32) // 64", "m"),
        block=64,
        shared=Size(4) * 64,
        defines={"THREADS": 64},
        dependent=True,
    )
'''


BOXES = '''\
from kernelwright import kernel
from kernelwright.cuda import Source, Tensor, TensorMap, ceildiv

SOURCE = """
#include <cuda.h>
extern "C" __global__ void boxes(const __grid_constant__ CUtensorMap x, float *y) {
  y[blockIdx.x] = ((const char *)&x)[threadIdx.x];
}
"""


@kernel(frontend="cuda", outputs=["y"])
def boxes():
    return Source(
        SOURCE,
        "boxes",
        x=TensorMap(Tensor("float16", "m", "k"), box=(32, 64), swizzle=128),
        y=Tensor("float32", "m"),
        grid=ceildiv("m", 32),
        block="min(k // 2, 128)",
    )
'''


def new_project(folder: Path) -> Project:
    project = Project.of(folder, SETTINGS, row_sum=ROW_SUM, tiles=TILES)
    project.write("kernels/csrc/reduce.cu", REDUCE)
    project.write("kernels/csrc/as_float.cuh", HEADER)
    return project


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project, which tests do not change."""
    project = new_project(tmp_path_factory.mktemp("cuda_sources"))
    run = project.scons("-j2")
    # Without "WRAP" for the CPU: the kernels are for CUDA only. Each cubin is made of the PTX of its own arch.
    assert run.labels == {
        **{"GLIBC": 1, "LAUNCHER": 1, "LOWER": 3, "PTX": 6, "CUBIN": 6, "WRAP": 4, "CC": 2, "LINK": 2}
    } | {"PACKAGE": 1}
    make_standin(project)
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """A copy of the built project."""
    return built.copied(tmp_path / "copy")


def folder_of(project: Project, variant: str) -> Path:
    return project.folder / "build/kernels/demo" / variant / "cuda"


def signature(project: Project, variant: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder_of(project, variant) / "signature.json").read_text())
    return found


# ---- what is built


@pytest.mark.parametrize("cuda_core", [False, True])
def test_an_instance_is_asked_for_by_the_name_that_the_compiler_gave_it_for_the_arch(built, cuda_core):
    code = "demo.row_sum(on_cuda(3, 1000, data=0x100), on_cuda(3, data=0x200), 0.5)"
    for arch, capability, tile in (("sm_80", 80, 4), ("sm_90a", 90, 8)):
        _, log = call(built, code, cuda_core=cuda_core, parameters="ppif", capability=capability)
        (launch,) = [line for line in log if line.startswith("launch ")]
        name = f"_ZN4rows3sumIfLi128ELi{tile}EEEvPKT_Pfif"
        assert launch.startswith(f"launch {name} ")
        assert "grid 3 1 1 block 128 1 1 shared 0 " in launch
        assert launch.endswith("parameters 0x100 0x200 1000 0.5")
        assert name.encode() in (folder_of(built, "row_sum/dtype-float32") / f"{arch}.cubin").read_bytes()


@pytest.mark.parametrize("cuda_core", [False, True])
def test_data_is_as_aligned_as_the_type_that_the_parameter_points_to(built, cuda_core):
    code = "print(message_of(demo.tiles, on_cuda(5, 64, data=0x10004)))"
    printed, log = call(built, code, cuda_core=cuda_core, parameters="pii", capability=90)
    assert "argument 'x' has data that is not aligned to 16 bytes" in printed
    assert not any(line.startswith("launch ") for line in log)
    manifest = json.loads((built.folder / "build/demo/manifest.json").read_text())
    assert [variant["arguments"][0]["alignment"] for variant in manifest["kernels"]["tiles"]["variants"]] == [16]


def test_sizes_shared_memory_and_flags_of_a_launch_are_as_declared(built):
    code = "demo.tiles(on_cuda(5, 1000, data=0x100)); print(message_of(demo.tiles, on_cuda(5, 1001, data=0x100)))"
    printed, log = call(built, code, parameters="pii", capability=90)
    (launch,) = [line for line in log if line.startswith("launch ")]
    assert launch.startswith("launch tiles ")
    assert " grid 16 5 1 block 64 1 1 shared 256 " in launch
    assert launch.endswith("parameters 0x100 20000 1000")
    (described,) = signature(built, "tiles/default")["launches"]
    assert described["dependent"] is True
    _, log = call(built, "demo.tiles(on_cuda(40000, 50000, data=0x100))", parameters="pli", capability=90)
    assert launches(log)[0].endswith("parameters 0x100 8000000000 50000"), "a size of 64 bits is computed in 64 bits"
    assert "float32[m, n (a multiple of 4)]" in printed


def test_the_code_computes_what_its_author_wrote(built, tmp_path):
    text = HEADER + REDUCE
    device = (folder_of(built, "row_sum/dtype-float32") / "device.cu").read_text()
    device = text.replace("__half2float(x)", "float(x)") + device
    emulated = Emulation(signature(built, "row_sum/dtype-float32"), device, tmp_path / "row_sum")
    x = np.random.default_rng(0).standard_normal((5, 300), np.float32)
    values = {"x": x, "y": np.zeros(5, np.float32), "scale": 0.5}
    made = emulated(values, {"rows": 5, "columns": 300})
    np.testing.assert_allclose(made["y"], 0.5 * x.sum(1), rtol=1e-5)


def test_a_script_finds_folders_of_installed_packages(built):
    folder = built.folder / "build/kernels/demo/tiles/default/cuda"
    text = (folder / "compile_sm_80.sh").read_text()
    assert "PACKAGE_1=${PACKAGE_1:-$(python3 -m kernelwright tool package:numpy/_core/include)}" in text
    assert str(Path(np.__file__).parent) not in text


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project with a kernel that takes a tensor map."""
    project = Project.of(tmp_path_factory.mktemp("boxes"), SETTINGS.replace('"sm_80", ', ""), boxes=BOXES)
    project.scons("-j2")
    make_standin(project)
    return project


def test_the_launcher_encodes_a_tensor_map_for_each_call(boxes):
    (described,) = signature(boxes, "boxes/default")["tensor_maps"]
    assert described == {
        **{"tensor": "x", "dtype": "float16", "sizes": ["k", "m"], "strides": ["k * 2"], "box": [64, 32]},
        **{"steps": [1, 1], "interleave": 0, "swizzle": 3, "promotion": 0, "fill": 0},
    }
    (argument, _) = signature(boxes, "boxes/default")["arguments"]
    assert argument["alignment"] == 16
    code = "demo.boxes(on_cuda(100, 256, dtype=(2, 16, 1), data=0x1000), on_cuda(100, data=0x2000))"
    _, log = call(boxes, code, parameters="tp", capability=90)
    (encoded,) = [line for line in log if line.startswith("encode ")]
    assert encoded.endswith("of dtype 6 at 0x1000 sizes 256,100 strides 512 box 64,32 steps 1,1 modes 0 3 0 0")
    (launch,) = [line for line in log if line.startswith("launch boxes ")]
    assert " grid 4 1 1 block 128 1 1 " in launch


@pytest.mark.parametrize("cuda_core", [False, True])
def test_the_driver_gets_a_stride_that_it_takes_where_there_is_one_element(boxes, cuda_core):
    """Rows of 100 numbers of two bytes would be 200 bytes apart, which is no multiple of 16."""
    code = "demo.boxes(on_cuda(1, 100, dtype=(2, 16, 1), data=0x1000), on_cuda(1, data=0x2000))"
    _, log = call(boxes, code, cuda_core=cuda_core, capability=90)
    assert any("sizes 100,1 strides 16 box" in line for line in log)


@pytest.mark.parametrize("cuda_core", [False, True])
def test_data_begins_where_the_offset_of_a_tensor_says(boxes, cuda_core):
    code = """
x, y = (dict(dtype=(2, 16, 1), data=0x1000), dict(data=0x2000))
demo.boxes(on_cuda(100, 256, byte_offset=32, **x), on_cuda(100, byte_offset=4, **y))
print(message_of(demo.boxes, on_cuda(100, 256, byte_offset=8, **x), on_cuda(100, **y)))
"""
    printed, log = call(boxes, code, cuda_core=cuda_core, parameters="tp", capability=90)
    (encoded,) = [line for line in log if line.startswith("encode ")]
    assert " at 0x1020 sizes 256,100 " in encoded
    (launch,) = [line for line in log if line.startswith("launch boxes ")]
    assert launch.endswith(" 0x2004")
    assert "argument 'x' has data that is not aligned to 16 bytes" in printed


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"box": (64,)}, r"box=\(64,\)\n.*give 2 integers from 1 to 256"),
        ({"box": (32, 512)}, "give 2 integers from 1 to 256"),
        ({"box": (32, 4)}, r"rows of 8 bytes\n.*make them a multiple of 16"),
        ({"box": (32, 64), "swizzle": 64}, "rows of 128 bytes\n.*no more than its swizzle of 64"),
        ({"swizzle": 16}, r"swizzle=16\n.*use one of 0, 32, 64, 128"),
        ({"fill": "one"}, r"fill='one'\n.*use one of zero, nan"),
        ({"tensor": Tensor("int16", "m", "k"), "fill": "nan"}, r"fill='nan' and the dtype 'int16'\n.*use fill='zero'"),
        ({"tensor": Tensor("float16", "m", 20)}, r"of a tensor with rows of 40 bytes\n.*make them a multiple of 16"),
        ({"tensor": Tensor("float16")}, "give it a Tensor with one to 5 dimensions"),
    ],
)
def test_a_map_that_no_driver_can_encode_is_an_error(changes, expected):
    given = {"tensor": Tensor("float16", "m", "k"), "box": (32, 64), **changes}
    with pytest.raises(DefinitionError, match=f"(?s)TensorMap of 'x'.*{expected}"):
        TensorMap(**given).check("x", Where("k", "default", "lower"))


# ---- what is built again


def test_an_edit_runs_what_depends_on_it_and_no_more(project):
    def units() -> list[str]:
        manifest = json.loads((project.folder / "build/demo/manifest.json").read_text())
        variants = manifest["kernels"]["row_sum"]["variants"]
        return [unit["signature"] for variant in variants for unit in variant["units"]]

    project.replace("pyproject.toml", '"sm_80", ', "")
    project.scons()
    assert project.scons().stages == []
    header = project.folder / "kernels/csrc/as_float.cuh"
    header.write_text(header.read_text() + "// a comment\n")
    assert project.scons().labels == {"PTX": 2}
    before = units()
    project.replace("kernels/csrc/as_float.cuh", "* x;", "* x + 1;")
    run = project.scons()
    assert run.labels == {"PTX": 2, "CUBIN": 1, "WRAP": 2, "LINK": 1, "PACKAGE": 1}
    assert "float16" not in " ".join(stage for stage in run.stages if stage.startswith("CUBIN"))
    assert [old == new for old, new in zip(before, units(), strict=True)] == [False, True], "as the manifest says"
    project.replace("kernels/row_sum.py", ", 128,", ", 64,")
    project.replace("kernels/row_sum.py", "block=128", "block=64")
    run = project.scons()
    assert run.labels == {"LOWER": 2, "PTX": 2, "CUBIN": 2, "WRAP": 2, "CC": 1, "LINK": 1, "PACKAGE": 1}
    wrapper = (project.folder / "build/kernels/demo/row_sum/wrapper.c").read_text()
    assert "_ZN4rows3sumIfLi64ELi8EEEvPKT_Pfif" in wrapper and "Li128" not in wrapper


LAUNCHES_ITSELF = """\
from kernelwright import kernel
from kernelwright.cuda import Exported


@kernel(frontend="cuda", sources=["csrc/reduce.cu"])
def itself():
    return Exported("itself")
"""


def test_nvrtc_compiles_them_too_but_for_host_code(project):
    try:
        find_nvrtc({})
    except ToolchainError:
        pytest.skip("NVRTC is not installed")
    project.write("kernels/itself.py", LAUNCHES_ITSELF)
    run = project.scons("-k", "CUDA_COMPILER=nvrtc", ok=False)
    expected = "kernels/itself.py:5 itself [nvcc]: its sources have host code of their own, which NVRTC cannot compile"
    assert expected in run.output
    assert run.labels["CUBIN"] == 6
    assert (
        "_ZN4rows3sumIfLi128ELi8EEEvPKT_Pfif" in (project.folder / "build/kernels/demo/row_sum/wrapper.c").read_text()
    )


def test_a_compiler_that_is_run_as_a_whole_gives_the_same_names(project):
    run = project.scons("NVCC_FLAGS=--threads=1", "ARCHS=x86-64-v3,sm_90a")
    assert "PTX" not in run.labels and run.labels["CUBIN"] == 3
    assert ".alignment = 16" in (project.folder / "build/kernels/demo/tiles/wrapper.c").read_text()
    assert (
        "_ZN4rows3sumIfLi128ELi8EEEvPKT_Pfif" in (project.folder / "build/kernels/demo/row_sum/wrapper.c").read_text()
    )


# ---- what is compared

HELD = {
    "float16": "__half __half2 half2 halves",
    "bfloat16": "__nv_bfloat16 __nv_bfloat162",
    "float8_e4m3fn": "__nv_fp8_e4m3 __nv_fp8x4_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2 __nv_fp8x2_e5m2",
    "float32": "float float4 float3 float[4] triple",
    "float64": "double double2 double4_16a",
    "int8": "char signed_char char4",
    "uint8": "char unsigned_char uchar4",
    "bool": "char unsigned_char uchar4 bool",
    "int16": "short short2",
    "uint16": "unsigned_short",
    "int32": "int int4 level",
    "uint32": "unsigned uint2",
    "int64": "long long_long longlong2 float*",
    "uint64": "unsigned_long ulonglong2 float* size_t",
}
"""dtype -> what points to elements of it, with ``_`` for a blank; none of the others does, but ``void``."""

NUMBERS = {"float32": "float", "int32": "int level", "int8": "char signed_char", "bool": "bool char unsigned_char"}

OWN_TYPES = """
#include <vector_types.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda.h>
using signed_char = signed char; using unsigned_char = unsigned char; using unsigned_short = unsigned short;
using long_long = long long; using unsigned_long = unsigned long;
enum level : int { low };
struct triple { float x, y, z; };
struct mixed { float x; int y; };
struct padded { alignas(16) float x, y, z; };
struct halves { unsigned short bits[4]; };
struct opaque;
"""


def test_types_are_compared_and_not_sizes(tmp_path):
    names = [*dict.fromkeys(" ".join(HELD.values()).split()), "mixed", "padded", "opaque", "level*"]
    lines = [OWN_TYPES, TYPES, "template <> constexpr bool kw_own<halves, kw_dtype::kw_float16> = true;"]

    def require(condition: str, expected: bool) -> None:
        lines.append(f'static_assert({"" if expected else "!"}{condition}, "");')

    for dtype in HELD:
        for name in names:
            pointer = f"const {name[:-3]} (*)[4]" if name.endswith("[4]") else f"const {name} *"
            address = name.endswith("*") and dtype in ("int64", "uint64")
            require(f"kw_is_tensor<{pointer}, kw_dtype::kw_{dtype}>", name in HELD[dtype].split() or address)
            plain = name in NUMBERS.get(dtype, "").split()
            if dtype in NUMBERS and not name.endswith("[4]"):
                require(f"kw_is_number<{name}, kw_dtype::kw_{dtype}>", plain)
        require(f"kw_is_tensor<const void *, kw_dtype::kw_{dtype}>", True)
    require("kw_is_tensor_map<CUtensorMap>", True)
    require("kw_is_tensor_map<float[32]>", False)
    asked = [("const float4 *", 4), ("float *", 2), ("const opaque *", 0), ("void *", 0), ("padded *", 4), ("int", 0)]
    for pointer, power in asked:
        require(f"(kw_alignment<{pointer}>::kw_value == {power})", True)
    (tmp_path / "types.cpp").write_text("\n".join(lines) + "\n")
    headers = Path(find_nvcc("", os.environ)).parent.parent / "include"
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w", "-isystem", str(headers), "types.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


# ---- errors

NAMES = ["T", "N", "K", "P", "F", "I", "First", "Rest", "kw", "type", "kind", "count", "number", "bytes", "about"]

MISTAKES = [
    (
        "a file that is not there",
        [("csrc/reduce.cu", "csrc/reduced.cu")],
        r"m\d+.py:7 m\d+/dtype-float32 \[lower\]: there is no file .csrc/reduced.cu. beside",
    ),
    (
        "a folder that is not there",
        [('"cuda", configs', '"cuda", includes=["inclde"], configs')],
        r":7 m\d+/dtype-float32 \[nvcc\]: includes names 'inclde', which is no folder beside",
    ),
    ("a function that is not there", [("rows::sum<", "rows::total<")], r'device\.cu\(\d+\): error: .*"total"'),
    (
        "a template with too few arguments",
        [(", 128, TILE>", ">")],
        r"cannot determine which instance of function template(?s:.)*names no __global__ function",
    ),
    (
        "a function that only device code can call",
        [("csrc/reduce.cu", "csrc/device.cu")],
        r"\[wrap\]: .* has no kw_entry that points to a __glo.*\n(?s:.)*remedy: name a __global__ function",
    ),
    (
        "too few parameters",
        [('        scale=Scalar("float32"),\n', "")],
        r"rows::sum<float, 128, TILE> has another number of parameters than 3: x, y, columns",
    ),
    (
        "another dtype of the same size",
        [("float32: float", "float32: __half"), ("Tensor(dtype,", 'Tensor("bfloat16",')],
        r"x is a tensor of bfloat16, which parameter 1 of rows::sum<__half, 128, TILE> does not take; if its type is y",
    ),
    (
        "a type that holds nothing",
        [("block=128,", 'block=128, types={"rows::pair": "float"},')],
        r"types has 'rows::pair': 'float', which does not say what a type holds",
    ),
    (
        "another dtype of a size",
        [('columns=Size("columns")', 'columns=Size("columns", dtype="int64")')],
        r"columns is a number of int64, which parameter 3 of rows::sum<float, 128, TILE> does not take",
    ),
    (
        "an input that is written",
        [('outputs=["y"]', "outputs=[]")],
        r"parameter 2 of rows::sum<float, 128, TILE> may write to y: name it in outputs, write written=True",
    ),
    (
        "a grid that is no arithmetic",
        [('grid="rows"', 'grid="rows / 2"')],
        r"grid is '\(rows / 2\)', which is no arithm",
    ),
    ("a grid of an unknown size", [('grid="rows"', 'grid="rowz"')], r"grid has the name 'rowz', which is in no shape"),
    ("a grid of four sizes", [('grid="rows"', "grid=(1, 2, 3, 4)")], r"grid has 4 sizes"),
    ("a grid beyond 32 bits", [('grid="rows"', "grid=2**31")], "2147483648 blocks in x, and 2147483647 are the most"),
    (
        "a block of too many threads",
        [("block=128,", "block=(128, 9),")],
        r":7 m\d+/dtype-float32 \[lower\]: the launch has 1152 threads in a block, and 1024 are",
    ),
    (
        "a block beyond the bounds of the function",
        [("block=128,", "block=(64, 4),")],
        r"\[wrap\]: the launch has 256 threads in a block, and the function is for 128 at most",
    ),
    (
        "code for a device linker",
        [('"cuda", configs', '"cuda", flags=["-rdc=true"], configs')],
        r"\[nvcc\]: its flags have -rdc=true, and there is no device linker\n  remedy: leave it out, and include what",
    ),
    ("a grid that is no size", [('grid="rows"', "grid=1.5")], r"grid is 1.5, which is no size"),
    (
        "a macro that is none",
        [("block=128,", 'block=128, defines={"a b": 1},')],
        r"defines has 'a b': 1, which is no mac",
    ),
    (
        "something else that is returned",
        [("return Source(", "return dict(source="), ('reduce.cu",\n        f', 'reduce.cu", function=f')],
        r"expected a Source",
    ),
    (
        "the CPU as a target",
        [('"cuda", configs', '"cuda", targets=["llvm"], configs')],
        r"cannot be built for the target",
    ),
]
"""What is wrong, edits of ``row_sum``, and what is said."""


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The error of each mistake, of one build that has all of them in files of their own, and one that is right."""
    project = new_project(tmp_path_factory.mktemp("mistakes"))
    project.replace("pyproject.toml", '["x86-64-v3", "sm_80", "sm_90a"]', '["sm_90a"]')
    project.replace("pyproject.toml", '["tvm_ffi", "cuda_core"]', '["tvm_ffi"]')
    # Macros may have any name.
    project.replace("kernels/tiles.py", '"THREADS": 64', f'"THREADS": 64, **dict.fromkeys({NAMES}, "(another)")')
    project.replace("kernels/tiles.py", ", long long bytes,", ", long long size,")
    project.replace("kernels/tiles.py", "< bytes", "< size")
    project.write(
        "kernels/csrc/device.cu", REDUCE.replace("__global__ void __launch_bounds__(THREADS)", "__device__ void")
    )
    (project.folder / "kernels/row_sum.py").unlink()
    right = ROW_SUM.replace('["float32", "float16"]', '["float32"]').replace('"float32": "float"', "float32: float")
    for number, (_, edits, _) in enumerate(MISTAKES):
        text = right.replace("def row_sum", f"def m{number}")
        for old, new in edits:
            assert old in text, old
            text = text.replace(old, new)
        project.write(f"kernels/m{number}.py", re.sub(r"float32: (\w+)", r'"float32": "\1"', text))
    run = project.scons("-k", "-j2", ok=False)
    assert "LINK tiles" in run.stages
    return {name: run.errors[f"m{number}"] for number, (name, _, _) in enumerate(MISTAKES)}


@pytest.mark.parametrize(("name", "edits", "expected"), MISTAKES, ids=[name for name, _, _ in MISTAKES])
def test_a_mistake_is_one_error_that_says_what_to_do(mistakes, name, edits, expected):
    assert re.search(expected, mistakes[name]), mistakes[name]
    assert "remedy: " in mistakes[name] and "does not take" not in mistakes["a template with too few arguments"]
