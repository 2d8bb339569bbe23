"""Kernels in TileLang: real builds without a GPU, by the TileLang of an environment of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kernelwright.frontends.tilelang.program import NEED, VERSION
from support.project import ROOT, SCONSTRUCT, Project
from support.ptx import Kernel
from support.standin_calls import call, launches, make_standin, started

PYTHON = os.environ.get("KERNELWRIGHT_TILELANG_PYTHON", "")
if not PYTHON:
    reason = f"KERNELWRIGHT_TILELANG_PYTHON names no interpreter of an environment with {NEED.requirement}"
    pytest.skip(reason, allow_module_level=True)

KERNELS = Path(__file__).parent / "kernels"
SETTINGS = f"""\
[project]
name = "demo-kernels"
version = "1.0"

[tool.kernelwright]
package = "demo"
targets = ["cuda"]
archs = ["sm_90a"]
tilelang_python = "{PYTHON}"
"""
EVERYTHING = {"CC": 4, "CUBIN": 5, "GLIBC": 1, "LAUNCHER": 1, "LINK": 4, "LOWER": 5, "PACKAGE": 1, "PTX": 5, "WRAP": 4}
MATMUL = "build/kernels/demo/matmul/dtype-float16/cuda"
GEMM = "build/kernels/demo/gemm/default/cuda"


def new_project(folder: Path) -> Project:
    """The kernels of this folder, and the sources in TileLang that they name."""
    project = Project(folder)
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", SETTINGS)
    for file in KERNELS.rglob("*.py"):
        project.write(f"kernels/{file.relative_to(KERNELS).as_posix()}", file.read_text())
    return project


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project, which tests do not change."""
    project = new_project(tmp_path_factory.mktemp("tilelang"))
    assert project.scons("-j2").labels == EVERYTHING
    make_standin(project)
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """A copy of the built project."""
    return built.copied(tmp_path / "copy")


def signature_of(project: Project, folder: str) -> dict:
    return json.loads((project.folder / folder / "signature.json").read_text())


def written_by(project: Project, kernel: str) -> set[str]:
    """The arguments that the only variant of a kernel writes."""
    arguments = signature_of(project, f"build/kernels/demo/{kernel}/default/cuda")["arguments"]
    return {argument["name"] for argument in arguments if argument["written"]}


# ---- what is built


def test_the_launch_is_that_of_tilelangs_own_host_code(built):
    signature = signature_of(built, GEMM)
    (launch,) = signature["launches"]
    assert launch["grid"] == ["(N + 63) // 64", "(M + 127) // 128", 1]
    assert launch["params"] == [
        *({"tensor_map": 0}, {"tensor_map": 1}, {"tensor": "C"}),
        *({"scalar": name, "dtype": "int32"} for name in "KMN"),
    ]
    first, second = signature["tensor_maps"]
    assert (first["tensor"], first["sizes"], first["strides"], first["box"]) == ("A", ["K", "M"], ["K * 2"], [32, 128])
    assert (second["tensor"], second["sizes"], second["strides"], second["box"]) == (
        *("B", ["N", "K"], ["N * 2"], [64, 32]),
    )
    assert {a["name"]: (a["output"], a["written"], a["alignment"]) for a in signature["arguments"]} == {
        **dict.fromkeys("AB", (False, False, 16)),
        "C": (True, True, 16),
    }


def test_what_any_launch_of_a_function_may_write_is_written_and_nothing_else(built):
    assert [written_by(built, kernel) for kernel in ("gemm", "steps", "doubled")] == [{"C"}, {"y", "z"}, {"y"}]


def test_flags_of_the_function_reach_the_compiler(built):
    script = (built.folder / MATMUL / "compile_sm_90a.sh").read_text()
    assert "-std=c++20" in script and "-DUSED=1 --use_fast_math" in script
    assert "use_fast_math" not in (built.folder / GEMM / "compile_sm_90a.sh").read_text()
    assert PYTHON not in script and "site-packages" not in script


def test_the_manifest_names_the_language_and_its_version(built):
    manifest = json.loads((built.folder / "build/demo/manifest.json").read_text())
    assert manifest["kernels"]["gemm"]["frontend"] == "tilelang"
    ((unit,),) = [variant["units"] for variant in manifest["kernels"]["gemm"]["variants"]]
    assert unit["tools"]["tilelang"]["version"] == VERSION


def test_another_folder_and_another_order_give_the_same_package(built, tmp_path):
    other = new_project(tmp_path)
    other.scons("-j1", "CACHE_DIR=")
    assert other.files("build/demo") == built.files("build/demo")
    texts = [*built.files("build/demo").values(), *built.files("build/kernels").values()]
    place = str(Path(PYTHON).parent.parent).encode()
    assert not [text for text in texts if str(built.folder).encode() in text or place in text]


def test_the_wheel_needs_nothing_of_tilelang(project):
    project.write("SConstruct", f'{SCONSTRUCT}env.KernelWheel("demo")\n')
    project.scons("wheel")
    (wheel,) = (project.folder / "dist").glob("*.whl")
    verified = subprocess.run([sys.executable, "-m", "kernelwright", "verify", wheel], capture_output=True, text=True)
    assert verified.stdout.startswith(f"{wheel.name}: all well\n")
    for library in (project.folder / "build/demo/_lib").glob("[dgms]*.so"):
        assert library.stat().st_size < 100_000
        assert not re.search(rb"tilelang|tvm_runtime", library.read_bytes())


# ---- calls


def test_a_call_makes_the_tensor_maps_and_launches_with_them(built):
    arguments = ", ".join(
        f"on_cuda({shape}, dtype=half, data={data})" for shape, data in (("70, 64", 256), ("64, 200", 512))
    )
    printed, log = call(built, f"print(demo.gemm({arguments}).shape)", capability=90, parameters="mmpiii")
    assert printed == "(70, 200)"
    maps = [line for line in log if line.startswith("encode ")]
    assert maps[0].endswith("dtype 6 at 0x100 sizes 64,70 strides 128 box 32,128 steps 1,1 modes 0 2 2 0")
    assert maps[1].endswith("dtype 6 at 0x200 sizes 200,64 strides 400 box 64,32 steps 1,1 modes 0 3 2 0")
    (launch,) = launches(log)
    assert "grid 4 1 1 block" in launch and launch.endswith(" 64 70 200")


def test_launches_run_one_after_the_other_with_tensors_and_numbers_in_tilelangs_order(built):
    code = "demo.steps(0.5, on_cuda(3, 128, data=0x100), on_cuda(3, 128, data=0x200), on_cuda(3, 128, data=0x300))"
    _, log = call(built, code, capability=90)
    first, second = launches(log)
    assert "grid 3 1 1 block 128 1 1 shared 0" in first and "grid 3 1 1 block 128 1 1" in second


def test_the_compiled_elementwise_kernel_gives_the_reference(built):
    """Its PTX, run by an interpreter, with the launch that the host code has asked the driver for."""
    _, log = call(
        built, "demo.doubled(on_cuda(512, data=256), on_cuda(512, data=2304))", capability=90, parameters="pp"
    )
    assert "attribute 4: 2 " in launches(log)[0], "no clusters of 2 blocks"
    grid, shared, parameters = started(log)
    memory, x = np.zeros(8192, np.uint8), np.arange(512, dtype="float32")
    memory[256 : 256 + x.nbytes] = x.view(np.uint8)
    packed = [int(value, 0).to_bytes(8, "little") for value in parameters]
    text = (built.folder / "build/kernels/demo/doubled/default/cuda/compute_90a.ptx").read_text()
    # The interpreter knows this line only as Triton's kernels have it.
    text = text.replace(".maxntid", ".reqntid").replace(".minnctapersm 1", "")
    Kernel(text).run(grid, packed, memory, shared)
    assert np.array_equal(memory[2304 : 2304 + x.nbytes].view("float32"), 2 * x)
    assert not memory[2304 + x.nbytes :].any(), "it has written beyond the end"


def test_data_that_is_not_aligned_is_refused(built):
    code = "print(message_of(demo.gemm, on_cuda(8, 32, dtype=half, data=8), on_cuda(32, 16, dtype=half)))"
    printed, log = call(built, code, capability=90)
    assert "aligned to 16 bytes" in printed and launches(log) == []


# ---- the example


def test_the_example_is_built_and_its_wheel_is_well(tmp_path):
    shutil.copytree(ROOT / "examples/tilelang", tmp_path / "tilelang", ignore=shutil.ignore_patterns("build", "dist"))
    project = Project(tmp_path / "tilelang")
    labels = project.scons("-j2", "wheel", f"TILELANG_PYTHON={PYTHON}").labels
    assert (labels["LOWER"], labels["CUBIN"]) == (4, 4)
    (wheel,) = (project.folder / "dist").glob("*.whl")
    verified = subprocess.run([sys.executable, "-m", "kernelwright", "verify", wheel], capture_output=True, text=True)
    assert verified.stdout.startswith(f"{wheel.name}: all well\n")
    signature = signature_of(project, "build/kernels/tile_kernels/attention/causal-True/cuda")
    assert signature["launches"][0]["grid"] == ["(length + 127) // 128", 16, "batch"]


# ---- what is built again


def test_nothing_is_done_twice(project):
    assert project.scons().stages == []


def test_an_edit_of_a_macro_in_another_file_compiles_again_what_it_changes(project):
    project.replace("kernels/tile/blocks.py", "T.gemm(a, b, c)", "T.gemm(a, b, c)\n    T.gemm(a, b, c)")
    labels = {"CUBIN": 2, "LINK": 1, "LOWER": 3, "PACKAGE": 1, "PTX": 2}
    assert project.scons("-j2").labels == labels


def test_a_comment_lowers_again_and_stops_there(project):
    with (project.folder / "kernels/tile/matmul.py").open("a") as file:
        file.write("# a comment\n")
    assert project.scons("-j2").labels == {"LOWER": 3}


def test_an_edit_of_a_flag_of_a_function_compiles_it_again(project):
    project.replace("kernels/tile/matmul.py", "-DUSED=1", "-DUSED=2")
    run = project.scons("-j2")
    assert run.labels == {"LOWER": 3, "PTX": 2, "CUBIN": 2}
    assert "PTX gemm/default compute_90a" not in run.stages


# ---- what a call decides: views, None, sizes, and memory between launches

DECIDED_BY_CALLS = """\
import tilelang
import tilelang.language as T


@tilelang.jit(out_idx=[-1])
def added(n, has_bias):
    m, s, t = T.dynamic("m, s, t")

    @T.prim_func
    def launched(
        x: T.StridedTensor((m, n), (s, t), "float32"), bias: T.Tensor((n,), "float32"), y: T.Tensor((m, n), "float32")
    ):
        with T.Kernel(m, threads=32) as row:
            for i in T.Parallel(n):
                y[row, i] = x[row, i] + bias[i] if has_bias else x[row, i]

    return launched


@tilelang.jit
def through(x, y, shape):
    x: T.Tensor(shape, T.float16)
    y: T.Tensor(shape, T.float16)
    first, second = T.alloc_global(shape, "float16"), T.alloc_global(shape, "float16")
    with T.Kernel(shape[0] // 64, threads=128) as row:
        a = T.alloc_shared((64, shape[1]), "float16")
        T.copy(x[row * 64, 0], a)
        T.copy(a, first[row * 64, 0])
        T.copy(a, second[row * 64, 0])
    with T.Kernel(shape[0] // 32, threads=128) as row:
        b = T.alloc_shared((32, shape[1]), "float16")
        T.copy(first[row * 32, 0], b)
        T.copy(b, y[row * 32, 0])
    with T.Kernel(shape[0] // 64, threads=128) as row:
        a = T.alloc_shared((64, shape[1]), "float16")
        T.copy(second[row * 64, 0], a)
        T.copy(a, y[row * 64, 0])
"""

DEFINED = """\
from kernelwright import grid, kernel
from kernelwright.tilelang import Program, Size


@kernel(frontend="tilelang", configs=grid(has_bias=[True, False]), outputs=["y"])
def added(has_bias):
    return Program("tile/decided.py", "added", n=Size("n"), has_bias=has_bias)


@kernel(frontend="tilelang")
def through():
    return Program("tile/decided.py", "through", shape=(Size("rows"), 64))
"""


def test_calls_decide_strides_sizes_what_is_None_and_how_much_memory_launches_share(tmp_path):
    project = Project.of(tmp_path, SETTINGS.replace('["sm_90a"]', '["sm_90a", "compute_90a"]'), decided=DEFINED)
    project.write("kernels/tile/decided.py", DECIDED_BY_CALLS)
    project.scons("-j2")
    make_standin(project)
    memory = np.arange(4096, dtype="float32")
    x, bias, y = memory[:640].reshape(16, 40).T[36:30:-2, :5], memory[640:645], memory[1024:1039].reshape(3, 5)
    expected = x + bias
    strides = tuple(stride // 4 for stride in x.strides)
    view = f"on_cuda(3, 5, strides={strides}, data={x.ctypes.data - memory.ctypes.data})"
    code = f"x, y = {view}, on_cuda(3, 5, data=4096)\ndemo.added(x, on_cuda(5, data=2560), y)\ndemo.added(x, None, y)"
    _, log = call(project, code, capability=90, bytes=1)
    packed = [[bytes.fromhex(t) for t in one.partition(" bytes ")[2].split()] for one in launches(log)]
    ptx = (project.folder / "build/kernels/demo/added/has_bias-True/cuda/compute_90a.ptx").read_text()
    ptx = ptx.replace(".maxntid", ".reqntid").replace(".minnctapersm 1", "")
    Kernel(ptx).run((3, 1, 1), packed[0], memory.view(np.uint8), 0)
    assert np.array_equal(y, expected)
    assert len(packed[1]) == len(packed[0]) - 1, "a variant without bias"
    _, log = call(project, "demo.through(*[on_cuda(128, 64, dtype=half)] * 2)", capability=90, bytes=1)
    maps = [
        re.search(r"at (\S+) sizes 64,128 .* box (\S+)", line).groups() for line in log if line.startswith("encode")
    ]
    assert [box for _, box in maps] == ["64,64", "64,64", "64,32", "64,64"], "each launch has its own map of y"
    assert written_by(project, "through") == {"y"}, "by tensor maps"
    assert sum(line.startswith("allocate 16384 in stream 0") for line in log) == 2
    memories = [int(place, 16).to_bytes(8, "little").hex() for place, _ in maps[:2]]
    assert memories[0] != memories[1]
    passed = [one.partition(" bytes ")[2].split() for one in launches(log)[1:]]
    assert [memory in own for memory, own in zip(memories, passed, strict=True)] == [True, True]
