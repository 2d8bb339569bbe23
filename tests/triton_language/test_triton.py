"""Kernels in Triton: real builds without a GPU, and calls against the stand-in for the driver."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import textwrap
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from kernelwright.frontends.triton.program import NEED
from support.project import ROOT, SITE_SCONS, Project
from support.ptx import Kernel
from support.standin_calls import call, driver_folder, launches, make_standin, started

try:
    version("triton")
except PackageNotFoundError:
    pytest.skip(f"Triton is not installed: {NEED.install}", allow_module_level=True)

KERNELS = Path(__file__).parent / "kernels"
SETTINGS = '[tool.kernelwright]\ntargets = ["llvm", "cuda"]\narchs = ["x86-64-v3", "sm_80", "sm_90a", "compute_80"]\n'
EVERYTHING = {"CC": 3, "GLIBC": 1, "LAUNCHER": 1, "LINK": 3, "LOWER": 4, "PACKAGE": 1, "WRAP": 3}
ADD = "build/kernels/demo/add/dtype-float32/cuda"
GEMM = "build/kernels/demo/gemm/default/cuda"


def new_project(folder: Path) -> Project:
    """The kernels of this folder, and what they import beside them."""
    project = Project.of(folder, SETTINGS)
    for file in KERNELS.glob("*.py"):
        project.write(file.name if file.name == "tiles.py" else f"kernels/{file.name}", file.read_text())
    return project


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project, which tests do not change."""
    project = new_project(tmp_path_factory.mktemp("triton"))
    assert project.scons("-j2").labels == EVERYTHING
    make_standin(project)
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """A copy of the built project."""
    return built.copied(tmp_path / "copy")


def only(project: Project, *names: str) -> None:
    """Leave out the other kernels, which would be compiled for the archs of a test, too."""
    for file in (project.folder / "kernels").glob("*.py"):
        if file.stem not in names:
            file.unlink()


# ---- what is built


def test_a_cubin_for_each_arch_has_the_device_function(built):
    for arch, number in (("sm_80", 80), ("sm_90a", 90)):
        file = ELFFile(io.BytesIO((built.folder / GEMM / f"{arch}.cubin").read_bytes()))
        assert file["e_machine"] == "EM_CUDA"
        assert file["e_flags"] & 0xFF == number or file["e_flags"] >> 8 & 0xFF == number
        assert [s.name for s in file.iter_sections() if s.name.startswith(".text.")] == [".text.gemm_kernel"]
        ((name, used),) = json.loads((built.folder / GEMM / f"{arch}.json").read_text())["kernels"].items()
        assert name == "gemm_kernel"
        assert 32 <= used["registers"] <= 255
    ptx = (built.folder / GEMM / "compute_80.ptx").read_text()
    assert re.search(r"^\.target sm_80$", ptx, re.M)


def test_the_launch_is_that_of_tritons_own_launcher(built):
    """Two pointers to scratch memory come behind the visible parameters."""
    signature = json.loads((built.folder / GEMM / "signature.json").read_text())
    (launch,) = signature["launches"]
    assert launch["grid"] == ["(m + 63) // 64", "(n + 127) // 128", 1]
    assert launch["block"] == [128, 1, 1]
    assert 0 < launch["shared"] <= 163 * 1024
    assert launch["params"][-2:] == [{"dtype": "uint64", "scalar": 0}] * 2
    ptx = (built.folder / GEMM / "compute_80.ptx").read_text()
    assert len(re.findall(r"^\t\.param .*gemm_kernel_param_\d+", ptx, re.M)) == len(launch["params"])


def test_alignment_and_multiples_reach_the_compiler_and_the_dispatcher(built):
    signature = json.loads((built.folder / GEMM / "signature.json").read_text())
    assert {a["name"]: a["alignment"] for a in signature["arguments"]} == {"a": 16, "b": 16, "c": 16}
    assert signature["multiples"] == {"k": 16, "n": 16}
    head = next(s for s in (built.folder / GEMM / "module.ttir").read_text().splitlines() if "tt.func" in s)
    divisible = re.findall(r"%(\w+): [^%]*?tt.divisibility = 16", head)
    assert divisible == ["a", "b", "c", "n", "k"]
    assert "tt.divisibility" not in (built.folder / ADD / "module.ttir").read_text()


def test_the_library_needs_nothing_of_triton(built):
    library = (built.folder / "build/demo/_lib/add.so").read_bytes()
    for arch in ("sm_80", "sm_90a"):
        assert library.count((built.folder / ADD / f"{arch}.cubin").read_bytes()) == 1
    file = ELFFile(io.BytesIO(library))
    needed = {tag.needed for tag in file.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
    assert not [name for name in needed if re.search("triton|cuda", name)]


def test_the_manifest_names_the_compiler(built):
    manifest = json.loads((built.folder / "build/demo/manifest.json").read_text())
    (variant,) = manifest["kernels"]["gemm"]["variants"]
    (unit,) = variant["units"]
    assert unit["archs"] == ["sm_80", "sm_90a", "compute_80"]
    assert unit["tools"]["triton"]["version"] == version("triton")


# ---- what is built again


def test_an_edit_compiles_again_what_depends_on_it_and_a_comment_stops_there(project):
    assert project.scons().stages == []
    project.replace("tiles.py", "a + b", "a + b + 1")
    run = project.scons("-j2")
    assert run.labels == {"LINK": 1, "LOWER": 2, "PACKAGE": 1}
    assert "gemm" not in " ".join(run.stages)
    with (project.folder / "kernels/gemm.py").open("a") as file:
        file.write("# a comment\n")
    assert project.scons().stages == ["LOWER gemm/default cuda"]


BOTH = """
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Size, Tensor, Workspace, ceildiv

from add import tripled


@triton.jit
def first(x, w, n):
    tl.store(w + tl.program_id(0), tripled(tl.load(x + tl.program_id(0))))


@triton.jit
def second(w, y, n):
    tl.store(y + tl.program_id(0), 2 * tl.load(w + tl.program_id(0)))


@kernel(frontend="triton", outputs=["y"])
def both():
    vector, between = Tensor("float32", "n"), Workspace("float32", "n")
    return [
        Program(first, x=vector, w=between, n=Size("n"), grid="n"),
        Program(second, w=between, y=vector, n=Size("n"), grid="n"),
    ]
"""
TRIPLED = """

@triton.jit
def tripled(v):
    return 3 * v
"""


def test_lines_are_those_of_the_python_file_and_equal_in_each_folder(project, tmp_path):
    only(project, "add")
    project.write("kernels/add.py", (KERNELS / "add.py").read_text() + TRIPLED)
    project.write("kernels/both.py", BOTH)
    other = project.copied(tmp_path / "elsewhere" / "copy")
    for file in (other.folder / "kernels").iterdir():
        os.utime(file, (1, 1))
    for each in (project, other):
        each.scons("DEBUG=lineinfo", "ARCHS=sm_90a")
    for kernel in (ADD, "build/kernels/demo/both/default/cuda"):
        made, again = (
            each.folder / kernel.replace("build", "build/debug-lineinfo") / "sm_90a.cubin" for each in (project, other)
        )
        assert made.read_bytes() == again.read_bytes()
        with made.open("rb") as stream:
            lines = ELFFile(stream).get_section_by_name(".debug_line").data()
        assert b"kernels\0" in lines and b"add.py\0" in lines and str(project.folder).encode() not in lines
    assert b"both.py\0" in lines
    run = project.scons("DEBUG=full", "ARCHS=sm_90a", ok=False)
    assert "a definition in triton cannot have debug = 'full': it can have lineinfo" in run.output
    assert 'write debug="no" in @kernel' in run.output


def test_caches_have_what_was_compiled_and_that_of_triton_is_left_alone(project, tmp_path):
    only(project, "add")
    (tmp_path / "home").mkdir()
    home = {"HOME": str(tmp_path / "home")}
    project.scons(f"CACHE_DIR={tmp_path / 'cache'}", "ARCHS=sm_80", env=home)
    assert list((tmp_path / "home").iterdir()) == []
    records = [path.read_text() for path in (project.folder / "build/.kernelwright/discovery").glob("*.record")]
    assert records and not [record for record in records if "/outside/" in record], (
        "Triton's own files are on any machine"
    )
    shutil.rmtree(project.folder / "build")
    run = project.scons(f"CACHE_DIR={tmp_path / 'cache'}", "ARCHS=sm_80", env=home | {"TMPDIR": str(tmp_path)})
    assert run.labels["CACHED"] >= 1
    assert "LOWER" not in run.labels


# ---- calls


LAUNCHED_BY_TRITON = """
import triton
from triton.backends.nvidia.driver import CudaDriver
triton.runtime.driver.set_active(CudaDriver())
class Data:
    def __init__(self, dtype, at):
        self.dtype, self.data_ptr = dtype, lambda: at
"""

THEIRS = """
from kernels.gemm import gemm_kernel
halves = [Data('fp16', at) for at in (0x100, 0x200, 0x300)]
gemm_kernel[(2, 2)](*halves, 70, 160, 32, M=64, N=128, K=32, num_warps=4)
"""
OURS = """
places = ((70, 32), 0x100), ((32, 160), 0x200), ((70, 160), 0x300)
demo.gemm(*[on_cuda(*shape, dtype=half, data=at) for shape, at in places])
"""


def test_the_driver_is_asked_for_what_tritons_own_launcher_asks_it_for(built):
    """Name, arch, grid, block, stream, attributes and parameters; Triton specialises for the call.

    One launch serves all archs of this package, so its shared memory is what the code of one of them needs at most.
    """
    driver = dict.fromkeys(("LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH"), str(driver_folder()))
    given = {"STANDIN_CAPABILITY": "80", "STANDIN_PARAMETERS": "pppiiipp", "STANDIN_SHARED": "166912"}
    places = {"PYTHONPATH": f"{built.folder}:{SITE_SCONS}", "TRITON_CACHE_DIR": str(built.folder / "triton-cache")}
    log = built.folder / "their_log"
    log.unlink(missing_ok=True)
    built.python(LAUNCHED_BY_TRITON + THEIRS, env={**driver, **given, **places, "STANDIN_LOG": str(log)})
    _, own = call(built, OURS, capability=80, shared=166912, parameters="pppiiipp")
    lines = [[line for line in each if line.startswith("launch ")] for each in (log.read_text().splitlines(), own)]
    expected, found = (re.sub(r"(cubin sm_\d+) \d+ \d+", r"\1", line) for (line,) in lines)
    least, most = (int(re.search(r" shared (\d+) ", line)[1]) for line in (expected, found))
    assert found == expected.replace(f" shared {least} ", f" shared {most} ") and least <= most <= 2 * least


@pytest.mark.parametrize("count", [1, 1000])
def test_the_compiled_elementwise_kernel_gives_the_reference(built, count):
    """Its PTX, run by an interpreter, with the launch that the host code has asked the driver for."""
    x, y = np.arange(count, dtype="float32"), np.linspace(0, 1, count, dtype="float32")
    arguments = ", ".join(f"on_cuda({count}, data={place})" for place in (256, 4352, 8448))
    _, log = call(built, f"demo.add({arguments})", capability=80, parameters="pppipp")
    grid, shared, parameters = started(log)
    memory = np.zeros(16384, np.uint8)
    for array, place in ((x, 256), (y, 4352)):
        memory[place : place + array.nbytes] = array.view(np.uint8)
    packed = [struct.pack("<i" if at == 3 else "<Q", int(value, 0)) for at, value in enumerate(parameters)]
    Kernel((built.folder / ADD / "compute_80.ptx").read_text()).run(grid, packed, memory, shared)
    assert np.array_equal(memory[8448 : 8448 + x.nbytes].view("float32"), x + y)
    assert not memory[8448 + x.nbytes :].any(), "it has written beyond the end"


@pytest.mark.parametrize("shape", [(3, 500), (1, 1)])
def test_the_compiled_softmax_gives_the_reference(built, shape):
    """Its warps exchange values through shared memory, of which it has what the host code has asked for."""
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    _, log = call(built, f"demo.softmax(*[on_cuda(*{shape}, data=d) for d in (256, 8448)])", parameters="ppipp")
    grid, shared, parameters = started(log)
    assert (grid, shared) == ((shape[0], 1, 1), 16)
    memory = np.zeros(16640, np.uint8)
    memory[256 : 256 + x.nbytes] = x.reshape(-1).view(np.uint8)
    packed = [struct.pack("<i" if at == 2 else "<Q", int(value, 0)) for at, value in enumerate(parameters)]
    text = (built.folder / "build/kernels/demo/softmax/default/cuda/compute_80.ptx").read_text()
    Kernel(text).run(grid, packed, memory, shared)
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    found = memory[8448 : 8448 + x.nbytes].view("float32").reshape(shape)
    assert np.allclose(found, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)
    assert not memory[8448 + x.nbytes :].any(), "it has written beyond the end"


def test_what_the_code_was_specialised_for_is_checked(built):
    code = """
        print(message_of(demo.gemm, on_cuda(8, 32, dtype=half, data=8), on_cuda(32, 16, dtype=half)))
        print(message_of(demo.gemm, on_cuda(8, 32, dtype=half), on_cuda(32, 24, dtype=half)))
    """
    printed, log = call(built, textwrap.dedent(code))
    unaligned, indivisible = re.findall(r"(?s)Error: .*?(?=\w+Error: |$)", printed)
    assert "aligned to 16 bytes" in unaligned
    assert "multiple of 16" in indivisible
    assert launches(log) == []


ALIGNED = """
@kernel(frontend="triton", configs=grid(aligned=[True, False]), divisible={"n": [16, 1]}, outputs=["z"])
def whole(aligned: bool):
    vector = Tensor("float32", "n", alignment=16 if aligned else None)
    return Program(add_kernel, x=vector, y=vector, z=vector, n=Size("n"), BLOCK=512, grid=ceildiv("n", 512))
"""


def test_a_call_runs_the_first_variant_that_its_data_and_sizes_were_compiled_for(project):
    """Triton would compile these when they are called; the docs say how to declare them."""
    only(project, "add")
    with (project.folder / "kernels/add.py").open("a") as file:
        file.write(ALIGNED)
    assert "aligned=[True, False]), divisible=" in (ROOT / "docs/triton.md").read_text()
    project.scons("ARCHS=sm_80", "-j2")
    folder = project.folder / "build/kernels/demo/whole"
    heads = {
        path.name: len(re.findall("divisibility", (path / "cuda/module.ttir").read_text()))
        for path in folder.iterdir()
        if path.is_dir()
    }
    assert sorted(heads.values()) == [0, 1, 3, 4], heads
    slugs = sorted(heads, key=lambda slug: -heads[slug])
    sizes = [(folder / slug / "cuda/sm_80.cubin").stat().st_size for slug in slugs]
    assert len(set(sizes)) == 3, "sizes do not matter where data is not aligned"
    code = """
        for place, count in ((256, 512), (256, 500), (260, 512), (260, 500)):
            demo.whole(*[on_cuda(count, data=place)] * 3)
    """
    _, log = call(project, textwrap.dedent(code), capability=80)
    run = re.findall(r"^launch \S+ cubin sm_80 (\d+)", "\n".join(log), re.M)
    assert list(map(int, run)) == sizes


TUNED = """
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Size, Tensor, ceildiv, configs_of


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((256, 2), (512, 8), (256, 2))], key=["n"])
@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


@kernel(frontend="triton", archs=["sm_80"], tune=configs_of(twice), outputs=["y"])
def doubled(BLOCK, num_warps, num_stages):
    vector, options = Tensor("float32", "n"), {"num_warps": num_warps, "num_stages": num_stages}
    return Program(twice, x=vector, y=vector, n=Size("n"), BLOCK=BLOCK, grid=ceildiv("n", BLOCK), **options)


@kernel(frontend="triton", archs=["sm_80"], tune=configs_of(twice)[::-1], outputs=["y"])
def turned(BLOCK, num_warps, num_stages):
    return doubled.function(BLOCK, num_warps, num_stages)
"""


def test_configs_of_autotune_are_the_space_of_a_kernel(kinds):
    """Without a tuning table the first point is built."""
    _, log = call(kinds, "demo.doubled(*[on_cuda(1000)] * 2)\ndemo.turned(*[on_cuda(1000)] * 2)", capability=80)
    first, last = launches(log)
    assert "grid 4 1 1 block 64 1 1" in first
    assert "grid 2 1 1 block 256 1 1" in last


MIXED = """

@kernel(outputs=["y"], targets=["llvm"])
def powers():
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def function(x_at: T.handle, y_at: T.handle):
        n = T.int32()
        x = T.match_buffer(x_at, (n,), "float32")
        y = T.match_buffer(y_at, (n,), "float32")
        for i in range(n):
            with T.sblock("y"):
                j = T.axis.spatial(n, i)
                y[j] = T.exp(x[j])

    return function
"""


def test_tvm_and_triton_compile_in_one_process(project):
    """Both have an LLVM of their own. The file's worker lowers all that is in it, in this order and in the other."""
    only(project, "add")
    with (project.folder / "kernels/add.py").open("a") as file:
        file.write(MIXED)
    project.scons("-j1", "powers", "add")
    shutil.rmtree(project.folder / "build")
    project.scons("-j1")
    code = "import numpy as np\nprint(np.from_dlpack(demo.powers(np.zeros(3, 'float32'))))"
    assert call(project, code)[0] == "[1. 1. 1.]"


SPECIALIZED = """\
import triton
import triton.language as tl
from kernelwright import grid, kernel
from kernelwright.triton import Program, Size, Tensor


@triton.jit
def device(x, y, rows, n, step, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    tl.store(y + (row + at) * step, 2 * tl.load(x + (row + at) * step, mask=at < n), mask=at < n)


@kernel(frontend="triton", archs=["sm_80", "compute_80"], specialize="auto", outputs=["y"])
def twice():
    x = Tensor("float32", "m", "n")
    sizes = {"rows": Size("m"), "n": Size("n"), "step": Size(1)}
    return Program(device, x=x, y=x, **sizes, BLOCK=512, grid="m")
"""


def test_the_dispatcher_chooses_between_the_specialized_and_the_general_code(kinds):
    """As Triton would have compiled it for the call: by the addresses and the length of rows, not by their number."""
    heads = {}
    for slug in ("all_multiple_of-16", "default"):
        folder = kinds.folder / "build/kernels/demo/twice" / slug / "cuda"
        head = next(s for s in (folder / "module.ttir").read_text().splitlines() if "tt.func" in s)
        assert re.findall(r"%(\w+): ", head) == ["x", "y", "rows", "n"], "the step is the constant 1"
        heads[slug] = re.findall(r"%(\w+): [^%]*?tt.divisibility = 16", head)
        wide = "ld.global.v4" in (folder / "compute_80.ptx").read_text()
        assert wide == (slug != "default")
    assert heads == {"all_multiple_of-16": ["x", "y", "n"], "default": []}
    calls = [(3, 32, 0x100), (3, 33, 0x100), (3, 32, 0x104), (1, 16, 0x200)]
    code = "\n".join(f"demo.twice(*[on_cuda({m}, {n}, data={data})] * 2)" for m, n, data in calls)
    _, log = call(kinds, code, capability=80, parameters="ppiipp")
    built = {
        slug: (kinds.folder / f"build/kernels/demo/twice/{slug}/cuda/sm_80.cubin").stat().st_size for slug in heads
    }
    run = [next(slug for slug, size in built.items() if f"cubin sm_80 {size} " in line) for line in launches(log)]
    assert run == ["all_multiple_of-16", "default", "default", "all_multiple_of-16"]


NUMBERS = [
    *(("float64", -2.5, "d", "-2.5"), ("float32", -2.5, "f", "-2.5"), ("int64", -3, "l", "-3")),
    *(("int16", -3, "h", "0xfffd"), ("bool", True, "b", "1")),
]

NUMBERED = """\
import triton
import triton.language as tl
from kernelwright import grid, kernel
from kernelwright.triton import Program, Scalar, Tensor


@triton.jit
def device(a, x):
    at = tl.arange(0, 32)
    tl.store(x + at, tl.load(x + at) + a.to(tl.float32))


@kernel(frontend="triton", archs=["sm_80"], configs=grid(dtype=DTYPES))
def numbered(dtype):
    return Program(device, a=Scalar(dtype), x=Tensor("float32", 32, written=True), grid=1)
"""


def test_numbers_arrive_with_their_types(kinds):
    for index, (dtype, value, letter, expected) in enumerate(NUMBERS):
        load = 'library = tvm_ffi.load_module("build/demo/_lib/numbered.so")'
        _, log = call(kinds, f'{load}\nlibrary["numbered__{index}"]({value}, on_cuda(32))', parameters=f"{letter}ppp")
        assert launches(log)[0].endswith(f"parameters {expected} 0x10000 0 0"), (dtype, log)


FLAGS = """\
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Tensor


@triton.jit
def device(x, LIMIT: tl.constexpr = 64, ROUND: tl.constexpr = None):
    at = tl.program_id(0) * 64 + tl.arange(0, 64)
    if ROUND is None:
        tl.store(x + at, at)
    else:
        tl.store(x + at, ROUND)


@kernel(frontend="triton", archs=["sm_90a"])
def clustered():
    return Program(device, x=Tensor("int32", "n", written=True), grid="n // 64", num_ctas=2, num_warps=8)


@kernel(frontend="triton", archs=["sm_90a"])
def together():
    x = Tensor("int32", "n", written=True)
    return Program(device, x=x, grid=["n // 64", 2], launch_cooperative_grid=True, ROUND=7)


@kernel(frontend="triton", archs=["sm_90a"])
def dependent():
    return Program(device, x=Tensor("int32", 64, written=True), grid=1, launch_pdl=True)
"""


def test_clusters_and_flags_of_launches_reach_the_driver(kinds):
    code = "demo.clustered(on_cuda(256, dtype=(0, 32, 1)))\ndemo.together(on_cuda(256, dtype=(0, 32, 1)))"
    _, log = call(kinds, code + "\ndemo.dependent(on_cuda(64, dtype=(0, 32, 1)))", capability=90)
    clustered, together, dependent = launches(log)
    assert "grid 8 1 1 block 256 1 1" in clustered
    assert "attribute 4: 2" in clustered, "the cluster"
    assert "grid 4 2 1 block 128 1 1" in together
    assert "attribute 2: 1" in together
    assert "attribute 6: 1" in dependent


DESCRIBED = """\
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Size, Tensor, ceildiv


@triton.jit
def device(x, y, m):
    of_x = tl.make_tensor_descriptor(x, [m, 64], [64, 1], [64, 64])
    of_y = tl.make_tensor_descriptor(y, [m, 64], [64, 1], [64, 64])
    row = tl.program_id(0) * 64
    of_y.store([row, 0], of_x.load([row, 0]))


@kernel(frontend="triton", archs=["sm_90a"], outputs=["y"])
def described():
    rows = Tensor("float16", "m", 64, alignment=16)
    return Program(device, x=rows, y=rows, m=Size("m"), grid=[ceildiv("m", 64), 2])
"""


def test_descriptors_that_a_kernel_makes_get_scratch_memory_for_each_program(kinds):
    signature = json.loads((kinds.folder / "build/kernels/demo/described/default/cuda/signature.json").read_text())
    (workspace,) = signature["workspaces"]
    _, log = call(kinds, "demo.described(*[on_cuda(1000, 64, dtype=half)] * 2)", capability=90, parameters="ppipp")
    (launch,) = launches(log)
    each = eval(workspace["bytes"], {"m": 1000}) // 32
    assert each in (256, 512)
    allocated = re.search(rf"^allocate {32 * each} in stream 0 .*$", "\n".join(log), re.M)
    assert allocated, log
    *_, scratch, profile = launch.split()
    assert int(scratch, 16) > 0
    assert profile == "0"


PASSED = """\
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Tensor


@triton.jit
def device(x, y, num_warps: tl.constexpr, num_stages):
    at = tl.arange(0, 32)
    tl.store(y + at, tl.load(x + at) & (num_warps * num_stages == 16))


@kernel(frontend="triton", archs=["sm_80", "compute_80"], outputs=["y"])
def passed():
    x = Tensor("bool", 32)
    return Program(device, x=x, y=x, grid=1, num_warps=8, num_stages=2)
"""


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project with kernels of all these kinds, for the archs that their tests look at."""
    project = new_project(tmp_path_factory.mktemp("kinds"))
    only(project)
    numbered = NUMBERED.replace("DTYPES", repr([dtype for dtype, *_ in NUMBERS]))
    texts = (TUNED, SPECIALIZED, numbered, FLAGS, DESCRIBED, PASSED)
    for name, text in zip(("tuned", "twice", "numbered", "flags", "described", "passed"), texts, strict=True):
        project.write(f"kernels/{name}.py", text)
    output = project.scons("-j2").output
    assert not re.search(r"kernels/\w+\.py", output), "nothing to be said"
    make_standin(project)
    return project


def test_options_of_a_launch_can_be_parameters_and_bool_can_be_loaded(kinds):
    """Triton's own softmax has ``num_stages`` among its parameters."""
    text = (kinds.folder / "build/kernels/demo/passed/default/cuda/compute_80.ptx").read_text()
    assert ".reqntid 256" in text and "ld.global.b8" in text


# ---- what is wrong with a definition

ADD_TEXT = (KERNELS / "add.py").read_text()
CHOSEN = ADD_TEXT.replace(
    "tl.store(z + at", "pointer = z\n    if n > 9:\n        pointer = x\n    tl.store(pointer + at"
)
RULED = '@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})\n@triton.jit\n'
DESCRIPTORS = "\n\nfrom kernelwright.cuda import TensorMap\nfrom kernelwright.triton import TensorDescriptor\n"
GRID = 'grid=ceildiv("n", 256)'

MISTAKES = [
    ("y=vector, z=vector", "z=vector, y=vector", "of its function add_kernel: 'z' is given where it has 'y'", "same"),
    ("y=vector, z=vector", "z=vector", "the parameters of its function add_kernel: its parameter 'y' gets nothing", ""),
    ("BLOCK=256,", "BLOCK=256, MORE=3,", "it has no parameter 'MORE'", "same names"),
    ("z, n, BLOCK", "z, n: tl.int64, BLOCK", "the parameter 'n' is annotated as i64, and gets a Size of", "that dtype"),
    ("BLOCK=256,", "BLOCK=Size('n'),", "the parameter 'BLOCK' of add_kernel is a constexpr, and gets a Size", ""),
    ('outputs=["z"]', 'outputs=["w"]', "outputs names 'w', which is no tensor argument", "names of the tensors"),
    ("Tensor(dtype,", 'Tensor("float7",', "argument 'x' has the dtype 'float7'", "use one of float64"),
    (GRID, 'grid=ceildiv("m", 256)', "grid has the name 'm', which is in no shape", "ceildiv"),
    (GRID, "grid=[1, 1, 1, 1]", "grid has 4 sizes", "give one to three"),
    (GRID, "grid=lambda meta: 1", "which is no size", "ceildiv"),
    ('n=Size("n")', 'n=Size("n ** 2")', "argument 'n' is '(n ** 2)', which is no arithmetic", "ceildiv"),
    ("BLOCK=256,", "BLOCK=256, num_warps=3,", "num_warps is 3, expected a power of two up to 32", ""),
    ("Program(add_kernel,", "Program(print,", "function is of type builtins.builtin_function", "@triton.jit"),
    (
        "BLOCK=256,",
        "BLOCK=TensorMap(vector, [64]),",
        "the argument 'BLOCK' is TensorMap(",
        "triton.TensorDescriptor(Tens",
    ),
    ("x=vector,", "x=TensorDescriptor(vector, [64]),", "Triton cannot compile it for sm_80: ", "mend that line"),
    ("@triton.jit\n", RULED, "the heuristic 'EVEN' of @triton.heuristics needs whether n is", 'divisible={"n": [256'),
    ('outputs=["z"]', 'outputs=["z"], targets=["llvm"]', "cannot be built for the target 'llvm'", "['cuda']"),
    ('frontend="triton"', 'frontend="cutedsl"', "the definition returned an object", '@kernel(frontend="triton"'),
    ("@kernel(", "@kernel(archs=['sm_90'], ", "[lower]: Triton 3.9 makes no code for sm_90\n", "write sm_90a"),
    ("@kernel(", "@kernel(archs=['sm_88'], ", "[lower]: Triton 3.9 makes no code for sm_88\n", "it knows sm_75, sm_80"),
    (
        "tl.program_id(0)",
        "tl.no_such(0)",
        ":11 NAME/dtype-float32 [lower]: Triton cannot compile it for sm_80",
        "no_such",
    ),
    (
        "plus(tl.load",
        "minus(tl.load",
        "less.py:6 NAME/dtype-float32 [lower]: Triton cannot compile it for sm_80: ",
        "nothing is not defined",
    ),
    (
        "tl.store(z + at",
        "tl.store(x + at",
        ":13 NAME/dtype-float32 [lower]: it stores to a tensor that is no output",
        "add it to outputs, or write Tensor(..., written=True)",
    ),
    (ADD_TEXT, CHOSEN, "it cannot be told whether it stores to a tensor that is", "written=True"),
    (
        ADD_TEXT,
        (KERNELS / "gemm.py")
        .read_text()
        .replace("num_warps=4", "num_warps=4, num_stages=9")
        .replace('"K": 32', '"K": 64')
        .replace("def gemm()", "def add()")
        .replace("@gemm.", "@add."),
        "bytes of shared memory",
        "and sm_80 has 166912",
    ),
]
"""Edits of ``add``, what is said, and words of the remedy."""


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The error of each mistake, of one build that has all of them in files of their own."""
    project = new_project(tmp_path_factory.mktemp("mistakes"))
    only(project)
    project.write("less.py", "import triton\n\n\n@triton.jit\ndef minus(a, b):\n    return a + nothing\n")
    for number, (old, new, *_) in enumerate(MISTAKES):
        assert old in ADD_TEXT, old
        text = (
            ADD_TEXT.replace(old, new)
            .replace("def add(", f"def m{number}(")
            .replace('["float32", "float16"]', '["float32"]')
        )
        text = text.replace("from tiles import plus\n", "from tiles import plus\nfrom less import minus\n").replace(
            "@add.", f"@m{number}."
        )
        text = text if "archs=" in text else text.replace("@kernel(", '@kernel(archs=["sm_80"], ')
        project.write(f"kernels/m{number}.py", text + DESCRIPTORS)
    errors = project.scons("-k", "-j2", "ARCHS=sm_80,sm_88,sm_90", ok=False).errors
    return [errors[f"m{number}"] for number in range(len(MISTAKES))]


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[what for _, _, what, _ in MISTAKES])
def test_what_cannot_be_is_an_error_with_a_place_and_a_remedy(mistakes, number):
    _, _, what, remedy = MISTAKES[number]
    assert what.replace("NAME", f"m{number}") in mistakes[number]
    assert remedy in mistakes[number]


def test_a_kernel_has_one_name_in_whatever_language_and_where_triton_is_missing_the_line_for_pip_is_shown(project):
    """It is hidden from the worker that executes the file; elsewhere no import of it is tried."""
    project.write("kernels/other.py", f"from kernelwright import kernel\n{MIXED.replace('powers', 'add')}")
    expected = r"kernels/other\.py:\d+ add \[discover\]: a kernel named 'add' is also defined at kernels/add\.py"
    assert re.search(expected, project.scons(ok=False).output)
    project.replace("kernels/add.py", "import triton\n", "import sys\nsys.modules['triton'] = None\nimport triton\n")
    output = project.scons("add", ok=False).output
    assert re.search(r"kernels/add\.py:\d+ \[discover\]: the file raised ModuleNotFoundError: ", output)
    assert "remedy: definitions in triton need it: pip install 'triton==3.9.*'" in output
