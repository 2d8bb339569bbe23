"""Kernels in Triton: real builds without a GPU, and calls against the stand-in for the driver."""

from __future__ import annotations

import io
import json
import re
import shutil
import struct
import textwrap
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from kernelwright.define.triton_program import NEED
from support.project import ROOT, SCONSTRUCT, Project
from support.ptx import Kernel
from support.standin_calls import call, launches, make_standin, started

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
    project = Project(folder)
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", SETTINGS)
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


def test_another_folder_and_another_order_give_the_same_package(built, tmp_path):
    other = new_project(tmp_path)
    other.scons("-j1")
    assert other.files("build/demo") == built.files("build/demo")
    assert other.files("build/kernels") == built.files("build/kernels")
    texts = [*built.files("build/demo").values(), *built.files("build/kernels").values()]
    assert not [text for text in texts if str(built.folder).encode() in text or b"add.py" in text]


def test_the_cache_of_triton_is_left_alone(project, tmp_path):
    project.replace("kernels/add.py", "BLOCK=256", "BLOCK=512")
    home = tmp_path / "home"
    home.mkdir()
    project.scons("ARCHS=sm_80", env={"HOME": str(home)})
    assert list(home.iterdir()) == []


# ---- what is built again


def test_nothing_is_done_twice(project):
    assert project.scons().stages == []


def test_an_edit_of_a_called_function_in_another_file_compiles_its_callers_again(project):
    project.replace("tiles.py", "a + b", "a + b + 1")
    run = project.scons("-j2")
    assert run.labels == {"LINK": 1, "LOWER": 2, "PACKAGE": 1}
    assert "gemm" not in " ".join(run.stages)


def test_a_comment_compiles_that_file_again_and_stops_there(project):
    with (project.folder / "kernels/gemm.py").open("a") as file:
        file.write("# a comment\n")
    assert project.scons().stages == ["LOWER gemm/default cuda"]


def test_the_build_cache_has_what_was_compiled(project, tmp_path):
    project.scons(f"CACHE_DIR={tmp_path / 'cache'}", "ARCHS=sm_80")
    shutil.rmtree(project.folder / "build")
    run = project.scons(f"CACHE_DIR={tmp_path / 'cache'}", "ARCHS=sm_80")
    assert run.labels["CACHED"] >= 3
    assert "LOWER" not in run.labels


def test_programs_and_files_of_triton_itself_keep_nothing_on_the_machine(project, tmp_path):
    project.scons(f"CACHE_DIR={tmp_path / 'cache'}", "ARCHS=sm_80")
    records = [path.read_text() for path in (project.folder / "build/.kernelwright/discovery").glob("*.record")]
    assert records and not [record for record in records if "/outside/" in record]
    shutil.rmtree(project.folder / "build")
    run = project.scons(f"CACHE_DIR={tmp_path / 'cache'}", "ARCHS=sm_80", env={"TMPDIR": str(tmp_path)})
    assert run.labels["CACHED"] >= 3 and "LOWER" not in run.labels


# ---- calls


def test_a_call_launches_with_its_parameters(built):
    code = "print(demo.add(on_cuda(1000, data=0x100), on_cuda(1000, data=0x200), on_cuda(1000, data=0x300)))"
    printed, log = call(built, code, capability=90, parameters="pppipp")
    assert printed == "None"
    (launch,) = launches(log)
    assert "grid 4 1 1 block 128 1 1 shared 0 stream 0 on cuda:0" in launch
    assert launch.endswith("parameters 0x100 0x200 0x300 1000 0 0")
    assert re.search(r"^load cubin sm_90 ", "\n".join(log), re.M)


@pytest.mark.parametrize("count", [1, 256, 1000])
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


@pytest.mark.parametrize("shape", [(3, 500), (1, 1), (2, 512)])
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


def test_a_matrix_product_opts_in_to_its_shared_memory(built):
    code = "demo.gemm(on_cuda(70, 32, dtype=half), on_cuda(32, 160, dtype=half), on_cuda(70, 160, dtype=half))"
    _, log = call(built, code, capability=80)
    (launch,) = launches(log)
    (described,) = json.loads((built.folder / GEMM / "signature.json").read_text())["launches"]
    assert f"grid 2 2 1 block 128 1 1 shared {described['shared']}" in launch


def test_an_output_that_is_left_out_is_allocated(built):
    printed, _ = call(built, "print(demo.gemm(on_cuda(70, 32, dtype=half), on_cuda(32, 160, dtype=half)).shape)")
    assert printed == "(70, 160)"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("on_cuda(8), on_cuda(9), on_cuda(8)", r"^ValueError: kernel 'add': Mismatched y.shape\[0\] on argument #1"),
        ("on_cuda(8), on_cuda(8, device=1), on_cuda(8)", r"'add': Mismatched y.device_id on argument #1"),
        ("on_cuda(8, dtype=(0, 32, 1)), on_cuda(8), on_cuda(8)", r"^TypeError: .*no built variant accepts"),
    ],
)
def test_wrong_arguments_are_errors_that_name_the_kernel(built, arguments, what):
    printed, log = call(built, f"print(message_of(demo.add, {arguments}))")
    assert re.search(what, printed), printed
    assert launches(log) == []


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


@kernel(frontend="triton", tune=configs_of(twice), outputs=["y"])
def doubled(BLOCK, num_warps, num_stages):
    vector, options = Tensor("float32", "n"), {"num_warps": num_warps, "num_stages": num_stages}
    return Program(twice, x=vector, y=vector, n=Size("n"), BLOCK=BLOCK, grid=ceildiv("n", BLOCK), **options)
"""


def test_configs_of_autotune_are_the_space_of_a_kernel(project):
    """Without a tuning table the first point is built."""
    only(project)
    project.write("kernels/doubled.py", TUNED)
    project.scons("ARCHS=sm_80", "-j2")
    _, log = call(project, "demo.doubled(*[on_cuda(1000)] * 2)", capability=80)
    assert "grid 4 1 1 block 64 1 1" in launches(log)[0]
    project.replace("kernels/doubled.py", "tune=configs_of(twice)", "tune=configs_of(twice)[::-1]")
    project.scons("ARCHS=sm_80", "-j2")
    _, log = call(project, "demo.doubled(*[on_cuda(1000)] * 2)", capability=80)
    assert "grid 2 1 1 block 256 1 1" in launches(log)[0]


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
    project.scons("-j1")
    shutil.rmtree(project.folder / "build")
    project.scons("-j1", "powers", "add")
    project.scons("-j1")
    code = "import numpy as np\nprint(np.from_dlpack(demo.powers(np.zeros(3, 'float32'))))"
    assert call(project, code)[0] == "[1. 1. 1.]"


def test_device_code_can_be_in_other_wheels_and_compressed(project):
    only(project, "add")
    project.scons("SPLIT=arch", "COMPRESS=size", "-j2")
    _, log = call(project, "demo.add(*[on_cuda(8)] * 3)", capability=90)
    assert "fatbin sm_90" in launches(log)[0]


def test_every_backend_calls_them(project):
    pytest.importorskip("Cython")
    only(project, "add")
    project.scons("ARCHS=sm_90a", "BACKENDS=tvm_ffi,cython,nvrtc", "-j2")
    _, log = call(project, "from demo.backends.cython import add\nadd(*[on_cuda(1000)] * 3)", capability=90)
    assert "grid 4 1 1 block 128 1 1" in launches(log)[0]


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


@kernel(frontend="triton", specialize="auto", outputs=["y"])
def twice():
    x = Tensor("float32", "m", "n")
    sizes = {"rows": Size("m"), "n": Size("n"), "step": Size(1)}
    return Program(device, x=x, y=x, **sizes, BLOCK=512, grid="m")
"""


def test_the_dispatcher_chooses_between_the_specialized_and_the_general_code(project):
    """As Triton would have compiled it for the call: by the addresses and the length of rows, not by their number."""
    only(project)
    project.write("kernels/twice.py", SPECIALIZED)
    project.scons("twice", "ARCHS=sm_80,compute_80", "-j2")
    heads = {}
    for slug in ("all_multiple_of-16", "default"):
        folder = project.folder / "build/kernels/demo/twice" / slug / "cuda"
        head = next(s for s in (folder / "module.ttir").read_text().splitlines() if "tt.func" in s)
        assert re.findall(r"%(\w+): ", head) == ["x", "y", "rows", "n"], "the step is the constant 1"
        heads[slug] = re.findall(r"%(\w+): [^%]*?tt.divisibility = 16", head)
        wide = "ld.global.v4" in (folder / "compute_80.ptx").read_text()
        assert wide == (slug != "default")
    assert heads == {"all_multiple_of-16": ["x", "y", "n"], "default": []}
    project.scons("-j2", "ARCHS=sm_80,compute_80")
    calls = [(3, 32, 0x100), (3, 33, 0x100), (3, 32, 0x104), (1, 16, 0x200)]
    code = "\n".join(f"demo.twice(*[on_cuda({m}, {n}, data={data})] * 2)" for m, n, data in calls)
    _, log = call(project, code, capability=80, parameters="ppiipp")
    built = {
        slug: (project.folder / f"build/kernels/demo/twice/{slug}/cuda/sm_80.cubin").stat().st_size for slug in heads
    }
    run = [next(slug for slug, size in built.items() if f"cubin sm_80 {size} " in line) for line in launches(log)]
    assert run == ["all_multiple_of-16", "default", "default", "all_multiple_of-16"]


NUMBERS = [
    ("float64", -2.5, "d", "-2.5"),
    ("float32", -2.5, "f", "-2.5"),
    ("int64", -3, "l", "-3"),
    ("int32", -3, "i", "-3"),
    ("int16", -3, "h", "0xfffd"),
    ("uint8", 7, "b", "7"),
    ("bool", True, "b", "1"),
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


@kernel(frontend="triton", configs=grid(dtype=DTYPES))
def numbered(dtype):
    return Program(device, a=Scalar(dtype), x=Tensor("float32", 32, written=True), grid=1)
"""


def test_numbers_arrive_with_their_types(project):
    only(project)
    project.write("kernels/numbered.py", NUMBERED.replace("DTYPES", repr([dtype for dtype, *_ in NUMBERS])))
    project.scons("ARCHS=sm_80", "-j2")
    for index, (dtype, value, letter, expected) in enumerate(NUMBERS):
        code = f"""
            library = tvm_ffi.load_module("build/demo/_lib/numbered.so")
            library["numbered__{index}"]({value}, on_cuda(32))
        """
        _, log = call(project, textwrap.dedent(code), parameters=f"{letter}ppp")
        assert launches(log)[0].endswith(f"parameters {expected} 0x10000 0 0"), (dtype, log)


COUNTED = """\
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Scalar, Size, Tensor, ceildiv


@triton.jit
def device(x, y, each, z, count):
    tl.store(z + tl.program_id(0) % 64, count.to(tl.int64) + each)


@kernel(frontend="triton")
def pairs():
    tensors = {"x": Tensor("int8", "m"), "y": Tensor("int8", "n"), "each": Scalar("int64")}
    z = Tensor("int64", 64, written=True)
    return Program(device, **tensors, z=z, count=Size("m * n // each"), grid=ceildiv(Size("m") * "n", 64))
"""


def test_sizes_are_computed_exactly_and_compared_with_their_dtype(project):
    """In 32 bits, 65537 * 65537 is 131073. A division by zero would end the process."""
    only(project)
    project.write("kernels/pairs.py", COUNTED)
    project.scons("-j2", "ARCHS=sm_80")
    code = """
        def pairs(m, n, each):
            x, y = (on_cuda(size, dtype=(0, 8, 1)) for size in (m, n))
            return demo.pairs(x, y, each, on_cuda(64, dtype=(0, 64, 1)))
        pairs(65537, 65537, 1 << 20)
        print(message_of(pairs, 65537, 65537, 2).splitlines()[0])
        print(message_of(pairs, 65537, 65537, -2).splitlines()[0])
        print(message_of(pairs, 8, 8, 0).splitlines()[0])
    """
    printed, log = call(project, textwrap.dedent(code), parameters="pplpipp")
    assert printed.splitlines() == [
        *["ValueError: kernel 'pairs': 'count' is m * n // each, which does not fit int32 in this call"] * 2,
        "ValueError: kernel 'pairs': the size m * n // each divides by 0 in this call",
    ]
    (launch,) = launches(log)
    assert "grid 67110913 1 1" in launch and launch.endswith("parameters 0x10000 0x10000 1048576 0x10000 4096 0 0")


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


@kernel(frontend="triton")
def clustered():
    return Program(device, x=Tensor("int32", "n", written=True), grid="n // 64", num_ctas=2, num_warps=8)


@kernel(frontend="triton")
def together():
    x = Tensor("int32", "n", written=True)
    return Program(device, x=x, grid=["n // 64", 2], launch_cooperative_grid=True, ROUND=7)


@kernel(frontend="triton")
def dependent():
    return Program(device, x=Tensor("int32", 64, written=True), grid=1, launch_pdl=True)
"""


def test_clusters_and_flags_of_launches_reach_the_driver(project):
    only(project)
    project.write("kernels/flags.py", FLAGS)
    project.scons("ARCHS=sm_90a", "-j2")
    code = "demo.clustered(on_cuda(256, dtype=(0, 32, 1)))\ndemo.together(on_cuda(256, dtype=(0, 32, 1)))"
    _, log = call(project, code + "\ndemo.dependent(on_cuda(64, dtype=(0, 32, 1)))", capability=90)
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


@kernel(frontend="triton", outputs=["y"])
def described():
    rows = Tensor("float16", "m", 64, alignment=16)
    return Program(device, x=rows, y=rows, m=Size("m"), grid=[ceildiv("m", 64), 2])
"""


def test_descriptors_that_a_kernel_makes_get_scratch_memory_for_each_program(project):
    only(project)
    project.write("kernels/described.py", DESCRIBED)
    project.scons("ARCHS=sm_90a", "-j2")
    signature = json.loads((project.folder / "build/kernels/demo/described/default/cuda/signature.json").read_text())
    (workspace,) = signature["workspaces"]
    _, log = call(project, "demo.described(*[on_cuda(1000, 64, dtype=half)] * 2)", capability=90, parameters="ppipp")
    (launch,) = launches(log)
    each = eval(workspace["bytes"], {"m": 1000}) // 32
    assert each in (256, 512)
    allocated = re.search(rf"^allocate {32 * each} in stream 0 .*$", "\n".join(log), re.M)
    assert allocated, log
    *_, scratch, profile = launch.split()
    assert int(scratch, 16) > 0
    assert profile == "0"
    assert project.scons("ARCHS=sm_80", "-j2").labels["LINK"] == 1
    project.replace("kernels/described.py", "of_y.store([row, 0], of_x.load", "of_x.store([row, 0], of_y.load")
    output = project.scons("described", "ARCHS=sm_90a", ok=False).output
    assert re.search(r"kernels/described\.py:12 described/default .*: it stores to a tensor that is no output", output)


PASSED = """\
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Tensor


@triton.jit
def device(x, y, num_warps: tl.constexpr, num_stages):
    at = tl.arange(0, 32)
    tl.store(y + at, tl.load(x + at) & (num_warps * num_stages == 16))


@kernel(frontend="triton", outputs=["y"])
def passed():
    x = Tensor("bool", 32)
    return Program(device, x=x, y=x, grid=1, num_warps=8, num_stages=2)
"""


def test_options_of_a_launch_can_be_parameters_and_bool_can_be_loaded(project):
    """Triton's own softmax has ``num_stages`` among its parameters."""
    project.write("kernels/passed.py", PASSED)
    output = project.scons("passed", "ARCHS=sm_80,compute_80").output
    assert "kernels/passed.py" not in output, "nothing to be said"
    text = (project.folder / "build/kernels/demo/passed/default/cuda/compute_80.ptx").read_text()
    assert ".reqntid 256" in text and "ld.global.b8" in text


# ---- what is wrong with a definition


def test_a_kernel_has_one_name_in_whatever_language(project):
    project.write("kernels/other.py", f"from kernelwright import kernel\n{MIXED.replace('powers', 'add')}")
    output = project.scons(ok=False).output
    assert re.search(
        r"kernels/other\.py:\d+ add \[discover\]: a kernel named 'add' is also defined at kernels/add\.py", output
    )


def test_where_triton_is_missing_the_line_for_pip_is_shown(project):
    """It is hidden from the worker that executes the file; elsewhere no import of it is tried."""
    project.replace("kernels/add.py", "import triton\n", "import sys\nsys.modules['triton'] = None\nimport triton\n")
    output = project.scons("add", ok=False).output
    assert re.search(r"kernels/add\.py:\d+ \[discover\]: the file raised ModuleNotFoundError: ", output)
    assert "remedy: definitions in triton need it: pip install 'triton==3.9.*'" in output


def broken(project: Project, old: str, new: str, *arguments: str) -> str:
    """The error of a build after an edit of add."""
    project.replace("kernels/add.py", old, new)
    return project.scons("add", *arguments, ok=False).output


def test_an_error_in_device_code_is_shown_with_its_line(project):
    output = broken(project, "tl.program_id(0)", "tl.no_such_thing(0)")
    lines = (project.folder / "kernels/add.py").read_text().splitlines()
    number = 1 + next(i for i, line in enumerate(lines) if "no_such_thing" in line)
    assert f"kernels/add.py:{number} add/dtype-float" in output
    assert "[lower]: Triton cannot compile it for sm_80" in output
    assert "no_such_thing" in output
    assert "remedy: " in output


def test_an_error_in_a_called_function_is_shown_with_its_line(project):
    project.replace("tiles.py", "a + b", "a + nothing")
    output = project.scons("add", ok=False).output
    assert re.search(r"tiles\.py:9 add/dtype-float\d\d \[lower\]: Triton cannot compile it for sm_80: ", output)
    assert "nothing is not defined" in output


@pytest.mark.parametrize(("arch", "remedy"), [("sm_90", "write sm_90a"), ("sm_88", "it knows sm_75, sm_80")])
def test_an_arch_that_triton_makes_no_code_for_is_an_error(project, arch, remedy):
    output = project.scons("add", f"ARCHS={arch}", ok=False).output
    assert re.search(rf"add/dtype-float\d\d \[lower\]: Triton 3.9 makes no code for {arch}\n", output)
    assert remedy in output


def test_a_store_to_what_is_no_output_is_an_error(project):
    output = broken(project, "tl.store(z + at", "tl.store(x + at")
    assert re.search(r"kernels/add\.py:12 add/dtype-float.*: it stores to a tensor that is no output", output)
    assert "remedy: add it to outputs, or write Tensor(..., written=True)" in output


CHOSEN = """\
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Scalar, Tensor


@triton.jit
def device(x, y, flag):
    pointer = x
    if flag > 0:
        pointer = y
    tl.store(pointer + tl.arange(0, 32), 1.0)


@kernel(frontend="triton", outputs=["y"])
def chosen():
    return Program(device, x=Tensor("float32", 32), y=Tensor("float32", 32), flag=Scalar("int32"), grid=1)
"""


def test_a_store_to_an_input_or_an_output_is_an_error_until_both_are_said_to_be_written(project):
    project.write("kernels/chosen.py", CHOSEN)
    output = project.scons("chosen", "ARCHS=sm_80", ok=False).output
    assert re.search(
        r"kernels/chosen\.py:10 chosen/.*: it cannot be told whether it stores to a tensor that is", output
    )
    project.replace("kernels/chosen.py", 'x=Tensor("float32", 32)', 'x=Tensor("float32", 32, written=True)')
    project.scons("chosen", "ARCHS=sm_80")


def test_more_shared_memory_than_an_arch_has_is_an_error_of_the_build(project):
    project.replace("kernels/gemm.py", "num_warps=4", "num_warps=4, num_stages=9")
    project.replace("kernels/gemm.py", '"K": 32', '"K": 64')
    output = project.scons("gemm", "ARCHS=sm_80", ok=False).output
    assert re.search(r"the code for sm_80 needs \d+ bytes of shared memory .* and sm_80 has 166912", output)
    assert "make num_stages or the blocks smaller" in output


RULED = '@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})\n@triton.jit\n'


@pytest.mark.parametrize(
    ("old", "new", "what", "remedy"),
    [
        (
            "y=vector, z=vector",
            "z=vector, y=vector",
            "its function add_kernel the parameters x, y, z, n, BLOCK",
            "same",
        ),
        ("y=vector, z=vector", "z=vector", "the Program has the arguments x, z, n, BLOCK, its function add_kernel", ""),
        ("BLOCK=256,", "BLOCK=256, MORE=3,", "the Program has the arguments x, y, z, n, BLOCK, MORE", "same names"),
        (
            "z, n, BLOCK",
            "z, n: tl.int64, BLOCK",
            "the parameter 'n' is annotated as i64, and gets a Size of",
            "that dtype",
        ),
        ("BLOCK=256,", "BLOCK=Size('n'),", "the parameter 'BLOCK' of add_kernel is a constexpr, and gets a Size", ""),
        ('outputs=["z"]', 'outputs=["w"]', "outputs names 'w', which is no tensor argument", "names of the tensors"),
        ("Tensor(dtype,", 'Tensor("float7",', "argument 'x' has the dtype 'float7'", "use one of float64"),
        ('grid=ceildiv("n", 256)', 'grid=ceildiv("m", 256)', "grid has the name 'm', which is in no shape", "ceildiv"),
        ('grid=ceildiv("n", 256)', "grid=[1, 1, 1, 1]", "grid has 4 sizes", "give one to three"),
        ('grid=ceildiv("n", 256)', "grid=lambda meta: 1", "which is no size", "ceildiv"),
        ('n=Size("n")', 'n=Size("n ** 2")', "argument 'n' is '(n ** 2)', which is no arithmetic", "ceildiv"),
        ("BLOCK=256,", "BLOCK=256, num_warps=3,", "num_warps is 3, expected a power of two up to 32", ""),
        ("Program(add_kernel,", "Program(print,", "function is of type builtins.builtin_function", "@triton.jit"),
        ("BLOCK=256,", "BLOCK=TensorDescriptor(),", "the argument 'BLOCK' is a tensor descriptor", "make_tensor_desc"),
        ("BLOCK=256,", "BLOCK=TensorMap(vector, [64]),", "is a tensor descriptor (TMA), which", "make_tensor_desc"),
        (
            "@triton.jit\n",
            RULED,
            "the heuristic 'EVEN' of @triton.heuristics needs whether n is",
            'divisible={"n": [256',
        ),
        ('outputs=["z"]', 'outputs=["z"], targets=["llvm"]', "cannot be built for the target 'llvm'", "['cuda']"),
        ('frontend="triton"', 'frontend="cutedsl"', "the definition returned an object", '@kernel(frontend="triton"'),
    ],
)
def test_what_cannot_be_is_an_error_with_a_place_and_a_remedy(project, old, new, what, remedy):
    with (project.folder / "kernels/add.py").open("a") as file:
        file.write("\n\nfrom kernelwright.cuda import TensorMap\n\n\nclass TensorDescriptor:\n    pass\n")
    output = broken(project, old, new)
    assert what in output
    assert remedy in output
    assert re.search(r"kernels/add.py:\d+", output)


# ---- one source for each arch

PER_ARCH = """\
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Size, Tensor, ceildiv


@triton.jit
def doubled_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


@kernel(frontend="triton", outputs=["y"], per_arch=True)
def doubled(target):
    block, warps = {"sm_80": (256, 4), "sm_90a": (1024, 8)}[target]
    tensors = {"x": Tensor("float32", "n"), "y": Tensor("float32", "n")}
    grid = ceildiv("n", block)
    return Program(doubled_kernel, **tensors, n=Size("n"), BLOCK=block, grid=grid, num_warps=warps)


@doubled.reference
def _(x):
    return 2 * x
"""


def test_each_arch_can_have_its_own_launch(tmp_path):
    project = Project(tmp_path)
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", SETTINGS)
    project.write("kernels/doubled.py", PER_ARCH)
    assert project.scons("-j2").labels["LOWER"] == 2
    make_standin(project)
    for capability, launch in {90: "grid 1 1 1 block 256 1 1", 86: "grid 4 1 1 block 128 1 1"}.items():
        code = "demo.doubled(on_cuda(1000, data=0x100), on_cuda(1000, data=0x200))"
        _, log = call(project, code, capability=capability)
        assert launch in launches(log)[0]
    if project.python("import importlib.util as u\nprint(bool(u.find_spec('torch')))").strip() == "True":
        checked = project.scons("check").stages  # by the interpreter, each source for itself
        assert [stage for stage in checked if "CHECK" in stage] == [
            f"CHECK doubled/default interpreted {arch}" for arch in ("sm_80", "sm_90a")
        ]
