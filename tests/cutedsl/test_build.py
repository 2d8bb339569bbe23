"""Kernels in CuTe DSL: real builds without a GPU, and calls against the stand-in for the driver."""

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
from kernelwright.frontends.cutedsl.program import NEED
from support.project import SCONSTRUCT, Project
from support.ptx import Kernel
from support.standin_calls import call, launches, make_standin, started

try:
    version("nvidia-cutlass-dsl")
except PackageNotFoundError:
    pytest.skip(f"CuTe DSL is not installed: {NEED.install}", allow_module_level=True)

KERNELS = Path(__file__).parent / "kernels"
SETTINGS = '[tool.kernelwright]\ntargets = ["llvm", "cuda"]\narchs = ["x86-64-v3", "sm_80", "sm_90a", "compute_90"]\n'
EVERYTHING = {"CC": 3, "GLIBC": 1, "LAUNCHER": 1, "LINK": 3, "LOWER": 4, "PACKAGE": 1, "WRAP": 3}
GEMM = "build/kernels/demo/gemm/dtype-float16_tile-64/cuda"


def new_project(folder: Path) -> Project:
    """The kernels of this folder, gemm for one dtype: it takes CuTe DSL a second for each arch."""
    project = Project(folder)
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", SETTINGS)
    for file in KERNELS.glob("*.py"):
        project.write(f"kernels/{file.name}", file.read_text())
    project.replace("kernels/gemm.py", 'dtype=["float32", "float16"]', 'dtype=["float16"]')
    return project


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project, which tests do not change."""
    project = new_project(tmp_path_factory.mktemp("cutedsl"))
    assert project.scons("-j2").labels == EVERYTHING
    make_standin(project)
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """A copy of the built project."""
    return built.copied(tmp_path / "copy")


# ---- what is built


def test_a_cubin_for_each_arch_has_the_device_function(built):
    names = json.loads((built.folder / GEMM / "signature.json").read_text())["device_kernels"]
    for arch, number in (("sm_80", 80), ("sm_90a", 90)):
        file = ELFFile(io.BytesIO((built.folder / GEMM / f"{arch}.cubin").read_bytes()))
        assert file["e_machine"] == "EM_CUDA"
        assert file["e_flags"] & 0xFF == number
        text = [s.name for s in file.iter_sections() if s.name.startswith(".text.")]
        assert text == [f".text.{kernel['name']}" for kernel in names]
        assert "gemm_device" in text[0]
    ptx = (built.folder / GEMM / "compute_90.ptx").read_text()
    assert re.search(r"^\.target sm_90$", ptx, re.M)


def test_the_library_has_the_images_once_and_needs_nothing_of_cute_dsl(built):
    library = (built.folder / "build/demo/_lib/gemm.so").read_bytes()
    for arch in ("sm_80", "sm_90a"):
        assert library.count((built.folder / GEMM / f"{arch}.cubin").read_bytes()) == 1
    file = ELFFile(io.BytesIO(library))
    needed = [tag.needed for tag in file.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    ours = [name for name in needed if name.startswith("libkernelwright-")]
    assert len(ours) == 1 and set(needed) - set(ours) <= {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0"}
    symbols = list(file.get_section_by_name(".dynsym").iter_symbols())
    others = [s.name for s in symbols if not s.name.startswith("kw_")]  # those are of our launcher
    assert not [name for name in others if re.search("cuda|cute|cutlass", name, re.I)]
    defined = {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"}
    assert "__tvm_ffi_gemm" in defined
    assert not [name for name in defined if name.startswith("__tvm_ffi_kw_gemm")]
    # The host code has no copy of the device code: it is smaller than the smallest cubin.
    assert len((built.folder / GEMM / "host.o").read_bytes()) < len((built.folder / GEMM / "sm_80.cubin").read_bytes())


def test_the_manifest_says_what_it_says_of_every_kernel_and_names_the_compiler(built):
    manifest = json.loads((built.folder / "build/demo/manifest.json").read_text())
    (variant,) = manifest["kernels"]["gemm"]["variants"]
    (unit,) = variant["units"]
    assert unit["archs"] == variant["archs"] == ["sm_80", "sm_90a", "compute_90"]
    assert [a["name"] for a in variant["arguments"]] == ["a", "b", "c"]
    assert variant["symbols"] == {"m": "int32", "k": "int32", "n": "int32"}
    assert unit["tools"]["cutedsl"]["version"] == version("nvidia-cutlass-dsl")
    for usage in (unit["resources"][arch] for arch in ("sm_80", "sm_90a")):
        ((_, used),) = usage.items()
        assert 32 <= used["registers"] <= 255
        assert used["shared_bytes"] == used["spill_store_bytes"] == 0, "its shared memory is dynamic"


def test_another_folder_and_another_order_give_the_same_package(built, tmp_path):
    other = new_project(tmp_path)
    other.scons("-j1")
    assert other.files("build/demo") == built.files("build/demo")
    texts = [*built.files("build/demo").values(), *built.files("build/kernels").values()]
    assert not [text for text in texts if str(built.folder).encode() in text]


# ---- what is built again


def test_an_edit_compiles_again_what_depends_on_it_and_a_comment_stops_there(project):
    assert project.scons().stages == []
    with (project.folder / "kernels/gemm.py").open("a") as file:
        file.write("# a comment\n")
    assert project.scons().stages == ["LOWER gemm/dtype-float16_tile-64 cuda"]
    project.replace("kernels/scale_add.py", "alpha * x[i]", "alpha + x[i]")
    run = project.scons()
    assert run.labels == {"LINK": 1, "LOWER": 2, "PACKAGE": 1}
    assert "gemm" not in " ".join(run.stages)
    run = project.scons("TARGETS=llvm")
    assert "gemm is left out: it is for other targets" in run.output
    assert "LOWER" not in run.labels


def test_another_list_of_archs_compiles_again(project):
    run = project.scons("ARCHS=sm_80,sm_89")
    assert "copy_rows is not built for cuda: the package has none of its archs" in run.output
    assert run.labels == {"CC": 2, "LINK": 2, "LOWER": 3, "PACKAGE": 1, "WRAP": 2}
    assert (project.folder / GEMM / "sm_89.cubin").exists()
    assert not (project.folder / GEMM / "sm_90a.cubin").exists()


def test_the_build_cache_has_what_was_compiled(project, tmp_path):
    project.scons(f"CACHE_DIR={tmp_path / 'cache'}", "ARCHS=sm_80")
    shutil.rmtree(project.folder / "build")
    run = project.scons(f"CACHE_DIR={tmp_path / 'cache'}", "ARCHS=sm_80")
    assert run.labels["CACHED"] >= 3
    assert "LOWER" not in run.labels


# ---- calls


def test_parameters_arrive_whole(built):
    """A tensor is passed as its address and, behind that, the sizes and strides that are not constant."""
    code = (
        "demo.gemm(*[on_cuda(*s, dtype=half, data=d) for s, d in [((70, 33), 16), ((33, 100), 32), ((70, 100), 48)]])"
    )
    _, log = call(built, code, capability=80, parameters="www")
    (launch,) = launches(log)
    assert "grid 2 2 1 block 256 1 1 shared 8448" in launch
    assert launch.endswith("parameters 16/70/33/33 32/33/100/100 48/70/100/100")


@pytest.mark.parametrize(("m", "n", "k"), [(70, 100, 33), (64, 64, 16), (1, 200, 5)])
def test_the_compiled_matrix_product_gives_the_reference(built, m, n, k):
    """Its PTX, run by an interpreter, with the launch that the host code has asked the driver for."""
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, k)).astype("float16"), rng.standard_normal((k, n)).astype("float16")
    memory, places = np.zeros(1 << 18, np.uint8), (256, 1 << 16, 1 << 17)
    sizes = zip(((m, k), (k, n), (m, n)), places, strict=True)
    shapes = [f"on_cuda({rows}, {columns}, dtype=half, data={place})" for (rows, columns), place in sizes]
    _, log = call(built, f"demo.gemm({', '.join(shapes)})", capability=90, parameters="www")
    grid, shared, parameters = started(log)
    for array, place in zip((a, b), places, strict=False):
        memory[place : place + array.nbytes] = array.reshape(-1).view(np.uint8)
    packed = [struct.pack("<QiiQ", *map(int, text.split("/"))) for text in parameters]
    Kernel((built.folder / GEMM / "compute_90.ptx").read_text()).run(grid, packed, memory, shared)
    c = memory[places[2] : places[2] + 2 * m * n].view("float16").reshape(m, n).astype("float32")
    assert np.allclose(c, a.astype("float32") @ b.astype("float32"), rtol=2e-3, atol=2e-3)
    assert not memory[places[2] + 2 * m * n :].any(), "it has written beyond the end"


def test_the_compiled_elementwise_kernel_gives_the_reference(built):
    x, y = np.arange(1000, dtype="float32"), np.linspace(0, 1, 1000, dtype="float32")
    arguments = ", ".join(f"on_cuda(1000, data={place})" for place in (0, 4096, 8192))
    _, log = call(built, f"demo.scale_add(2.5, {arguments})", capability=90, parameters="fppp")
    grid, shared, parameters = started(log)
    assert "grid 4 1 1 block 256 1 1 shared 0 stream 0 on cuda:0" in launches(log)[0]
    assert parameters == ["2.5", "0", "0x1000", "0x2000"]
    memory = np.zeros(16384, np.uint8)
    memory[:4000], memory[4096:8096] = x.view(np.uint8), y.view(np.uint8)
    packed = [struct.pack("<f", float(parameters[0])), *(struct.pack("<Qi", int(p, 0), 1000) for p in parameters[1:])]
    text = (built.folder / "build/kernels/demo/scale_add/dtype-float32/cuda/compute_90.ptx").read_text()
    Kernel(text).run(grid, packed, memory, shared)
    assert np.allclose(memory[8192:12192].view("float32"), 2.5 * x + y)
    assert not memory[12192:].any(), "it has written beyond the end"


def test_tensor_memory_descriptors_clusters_and_streams_reach_the_driver(built):
    """The descriptor, which the exported code encodes itself, is the first parameter: it begins with the address."""
    code = """
        import ctypes
        x, y = on_cuda(128, 64, dtype=half, data=0x7700), on_cuda(128, 64, dtype=half)
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0x55):
            demo.copy_rows(x, y)
        print(message_of(demo.copy_rows, *[on_cuda(96, 64, dtype=half)] * 2))
        print(message_of(demo.copy_rows, *[on_cuda(128, 64, dtype=half, data=8)] * 2))
    """
    printed, log = call(built, textwrap.dedent(code), capability=90, parameters="p")
    (launch,) = launches(log)
    assert "grid 4 1 1 block 128 1 1" in launch
    assert "stream 0x55 on cuda:0" in launch
    assert "attribute 4: 2" in launch, "the cluster"
    assert launch.endswith(" 0x7700")
    assert "x = float16[m (a multiple of 64), 64]" in printed
    assert "argument 'x' has data that is not aligned to 16 bytes" in printed


def test_variants_are_chosen_by_dtype_and_images_by_device(built):
    code = """
        for dtype in ((2, 32, 1), half):
            demo.scale_add(1, *[on_cuda(8, dtype=dtype, device=1)] * 3)
    """
    _, log = call(built, textwrap.dedent(code), capability=100)
    first, second = launches(log)
    assert all("on cuda:1" in launch and "ptx compute_90" in launch for launch in (first, second))
    names = re.findall(r"^launch (\S+)", "\n".join(log), re.M)
    assert "f32" in names[0] and "f16" in names[1]


def test_an_output_that_is_left_out_is_allocated(built):
    printed, log = call(built, "print(demo.gemm(on_cuda(70, 33, dtype=half), on_cuda(33, 100, dtype=half)).shape)")
    assert printed == "(70, 100)"
    assert "allocate 14000 in stream 0 from pool 1 of cuda:0" in log


def test_rows_may_lie_apart_and_nothing_is_launched_for_empty_tensors(built):
    code = """
        a = on_cuda(70, 33, dtype=half, strides=(64, 1), data=16)
        demo.gemm(a, *[on_cuda(*shape, dtype=half) for shape in ((33, 100), (70, 100))])
        demo.gemm(*[on_cuda(*shape, dtype=half) for shape in ((0, 33), (33, 100), (0, 100))])
    """
    _, log = call(built, textwrap.dedent(code), parameters="w")
    (launch,) = launches(log)
    assert launch.endswith("parameters 16/70/33/64")


def test_a_host_function_may_launch_several_device_functions(project):
    project.write("kernels/steps.py", STEPS)
    project.scons("ARCHS=sm_90a")
    _, log = call(project, "[demo.steps(on_cuda(n), on_cuda(n)) for n in (32, 132)]", capability=90)
    found = [re.sub(r"cubin.* (grid \d+) .*cuda:0", r"\1", launch) for launch in launches(log)]
    first, second = "grid 1 attribute 6: 0 attribute 2: 1", "grid 1 attribute 6: 1 attribute 2: 0"
    assert found == [first, second, first, second, "grid 132 attribute 6: 0 attribute 2: 0"]


STEPS = """\
import cutlass
from cutlass import cute
from kernelwright import kernel
from kernelwright.cutedsl import Program, Tensor


@cute.kernel
def copy(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    y[thread] = x[thread]


@cute.kernel
def multiply(y: cute.Tensor, factor: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    y[thread] = y[thread] * factor


@cute.jit
def host(x: cute.Tensor, y: cute.Tensor):
    copy(x, y).launch(grid=[1, 1, 1], block=[32, 1, 1], cooperative=True)
    multiply(y, 2.0).launch(grid=[1, 1, 1], block=[32, 1, 1], use_pdl=True)
    if cute.size(x) > 100:
        multiply(y, 3.0).launch(grid=[cute.size(x), 1, 1], block=[32, 1, 1])


@kernel(frontend="cutedsl", outputs=["y"])
def steps():
    return Program(host, x=Tensor("float32", "n"), y=Tensor("float32", "n"))
"""

NUMBERS = [
    ("float64", -2.5, "d", "-2.5"),
    ("float32", -2.5, "f", "-2.5"),
    ("int64", -3, "l", "-3"),
    ("int16", -3, "h", "0xfffd"),
    ("uint32", 7, "i", "7"),
    ("bool", True, "h", "0x1"),
]


def test_numbers_arrive_with_their_types(project):
    project.write("kernels/numbered.py", NUMBERED.replace("DTYPES", repr([dtype for dtype, *_ in NUMBERS])))
    project.scons("ARCHS=sm_80", "-j2")
    for index, (dtype, value, letter, expected) in enumerate(NUMBERS):
        code = f"""
            library = tvm_ffi.load_module("build/demo/_lib/numbered.so")
            library["numbered__{index}"]({value}, on_cuda(32))
        """
        _, log = call(project, textwrap.dedent(code), parameters=letter)
        assert launches(log)[0].endswith(f"parameters {expected}"), dtype


NUMBERED = """\
from cutlass import cute
from kernelwright import grid, kernel
from kernelwright.cutedsl import Program, Scalar, Tensor


@cute.kernel
def device(a, x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    x[thread] = x[thread] + x.element_type(a)


@cute.jit
def host(a, x: cute.Tensor):
    device(a, x).launch(grid=[1, 1, 1], block=[32, 1, 1])


@kernel(frontend="cutedsl", configs=grid(dtype=DTYPES))
def numbered(dtype):
    return Program(host, a=Scalar(dtype), x=Tensor("float32", 32, written=True))
"""


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (
            "on_cuda(8), on_cuda(9), on_cuda(8)",
            r"^ValueError: kernel 'scale_add': Mismatched y.shape\[0\] on argument #2",
        ),
        ("on_cuda(8, strides=(2,)), on_cuda(8), on_cuda(8)", r"'scale_add': Mismatched x.strides\[0\]"),
        ("on_cuda(8), on_cuda(8, device=1), on_cuda(8)", r"'scale_add': Mismatched device index on argument #2"),
        ("on_cuda(8, data=2), on_cuda(8), on_cuda(8)", r"argument 'x' has data that is not aligned to 4 bytes"),
        ("on_cuda(8, dtype=(0, 32, 1)), on_cuda(8), on_cuda(8)", r"^TypeError: .*no built variant accepts"),
    ],
)
def test_wrong_arguments_are_errors_that_name_the_kernel(built, arguments, what):
    printed, log = call(built, f"print(message_of(demo.scale_add, 1.0, {arguments}))")
    assert re.search(what, printed), printed
    assert launches(log) == []


def test_errors_of_the_driver_say_what_was_launched(built):
    code = "print(message_of(demo.scale_add, 1.0, *[on_cuda(8)] * 3))"
    printed, _ = call(built, code, fail="cuLaunchKernelEx=700")
    assert printed.startswith("RuntimeError: kernel 'scale_add': launching device function kernel_cutlass_scale_add")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in printed
    printed, _ = call(built, code, capability=75)
    assert "is an sm_75, and variant dtype-float32 was built for sm_80, sm_90a, compute_90" in printed


def test_extension_modules_call_them_and_device_code_can_be_in_other_wheels_and_compressed(project):
    pytest.importorskip("Cython")
    run = project.scons("SPLIT=arch", "COMPRESS=size", "BACKENDS=tvm_ffi,cython", "-j2")
    assert run.labels["FATBIN"] == 10
    assert "EXT scale_add cython" in run.stages
    code = (
        "from demo.backends.cython import scale_add\nfor f in (demo.scale_add, scale_add): f(1, *[on_cuda(1000)] * 3)"
    )
    _, log = call(project, code, capability=90)
    both = launches(log)
    assert len(both) == 2
    assert all("fatbin sm_90" in launch and "grid 4 1 1 block 256 1 1" in launch for launch in both)


def test_the_backend_that_needs_launches_as_data_refuses_them(project):
    output = project.scons("ARCHS=sm_90a", "BACKENDS=cuda_core", ok=False).output
    assert (
        "the host code computes launches in code that CuTe DSL has compiled, which the backend cuda_core cannot do"
        in output
    )
    assert "remedy: use the backend tvm_ffi" in output


# ---- what is wrong with a definition


def broken(project: Project, old: str, new: str, *arguments: str) -> str:
    """The error of a build after an edit of scale_add."""
    project.replace("kernels/scale_add.py", old, new)
    return project.scons("scale_add", *arguments, ok=False).output


def test_an_error_in_device_code_is_shown_with_its_line(project):
    output = broken(project, "thread, _, _ = cute.arch.thread_idx()", "thread, _, _ = cute.arch.no_such_thing()")
    lines = (project.folder / "kernels/scale_add.py").read_text().splitlines()
    number = 1 + next(i for i, line in enumerate(lines) if "no_such_thing" in line)
    assert f"kernels/scale_add.py:{number} scale_add/dtype-float" in output
    assert "[lower]: CuTe DSL cannot compile it for sm_80" in output
    assert "no_such_thing" in output
    assert "remedy: " in output


def test_an_arch_that_cute_dsl_does_not_know_is_an_error(project):
    output = project.scons("scale_add", "ARCHS=sm_75", ok=False).output
    assert re.search(r"scale_add/dtype-float\d\d \[lower\]: CuTe DSL \S+ makes no code for sm_75", output)
    assert "remedy: restrict the kernel to others with archs=[...]; it knows sm_80" in output


def test_a_launch_with_too_much_or_too_little_shared_memory_is_an_error_of_the_build(project):
    launch = "block=[THREADS, 1, 1])"
    output = broken(project, launch, "block=[THREADS, 1, 1], smem=200000)", "ARCHS=sm_90a,sm_80")
    assert re.search("says of a launch for sm_80: .* Allocated: 200000 bytes. Max: 166912 bytes.", output)
    assert "remedy: mend the launch or make its tiles smaller, or restrict the kernel to other archs" in output
    assert project.scons("scale_add", "ARCHS=sm_90a").labels["LINK"] == 1
    project.replace("kernels/gemm.py", launch, "block=[THREADS, 1, 1], smem=16)")
    output = project.scons("gemm", "ARCHS=sm_80", ok=False).output
    assert re.search("may exceed available memory set in kernel launch. Allocated: 16 bytes. Used: 8448 bytes.", output)


SCALE_ADD = (KERNELS / "scale_add.py").read_text()

MISTAKES = [
    ("y=vector, z=vector)", "z=vector, y=vector)", "'z' is given where it has 'y'", "same names"),
    ('outputs=["z"]', 'outputs=["w"]', "outputs names 'w', which is no tensor argument", "names of the tensors"),
    ("Tensor(dtype,", 'Tensor("float7",', "argument 'x' has the dtype 'float7'", "use one of float64"),
    ('"n")', '"n m")', "a size of argument 'x' is 'n m'", "write, for example"),
    ("scale_add_host, alpha", "3, alpha", "the Program's host function is no function", "@cute.jit"),
    ('outputs=["z"]', 'outputs=["z"], flags=["-O1"]', "flags are those of nvcc", "leave flags out"),
    ('outputs=["z"]', 'outputs=["z"], targets=["llvm"]', "cannot be built for the target 'llvm'", "['cuda']"),
    ('frontend="cutedsl", ', "", "expected a PrimFunc or an IRModule", "frontend"),
]
"""Edits of ``scale_add``, what is said, and words of the remedy."""


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The error of each mistake, of one build that has all of them in files of their own."""
    project = Project(tmp_path_factory.mktemp("mistakes"))
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", SETTINGS)
    for number, (old, new, *_) in enumerate(MISTAKES):
        assert old in SCALE_ADD, old
        text = (
            SCALE_ADD.replace(old, new)
            .replace("def scale_add(", f"def m{number}(")
            .replace("@scale_add.", f"@m{number}.")
        )
        project.write(f"kernels/m{number}.py", text.replace('"float32", ', ""))
    return project.scons("-k", "TARGETS=cuda", "ARCHS=sm_80", ok=False).errors


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[what for _, _, what, _ in MISTAKES])
def test_what_cannot_be_is_an_error_with_a_place_and_a_remedy(mistakes, number):
    _, _, what, remedy = MISTAKES[number]
    error = mistakes[f"m{number}"]
    assert what in error and remedy in error
    assert error.startswith(f"kernels/m{number}.py:")


def test_spills_are_counted_and_limited(project):
    project.replace("pyproject.toml", "[tool.kernelwright]\n", "[tool.kernelwright]\nmax_spills = 0\n")
    project.write("kernels/spilling.py", SPILLING)
    output = project.scons("spilling", "ARCHS=sm_80", ok=False).output
    used = json.loads((project.folder / "build/kernels/demo/spilling/default/cuda/sm_80.json").read_text())["kernels"]
    ((_, numbers),) = used.items()
    assert numbers["spill_store_bytes"] > 0
    assert numbers["spill_load_bytes"] > 0
    assert re.search(r"spills \d+ bytes \(stores \d+, loads \d+\) for sm_80, max_spills is 0", output)


SPILLING = """\
import cutlass
from cutlass import cute
from kernelwright import kernel
from kernelwright.cutedsl import Program, Tensor

COUNT = 400


@cute.kernel
def device(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    values = cute.make_rmem_tensor(cute.make_layout((COUNT,)), cutlass.Float32)
    for i in cutlass.range_constexpr(COUNT):
        values[i] = x[thread * COUNT + i]
    cute.arch.sync_threads()
    for i in cutlass.range_constexpr(COUNT):
        y[thread * COUNT + i] = values[i] * values[COUNT - 1 - i] + values[(i * 7) % COUNT]


@cute.jit
def host(x: cute.Tensor, y: cute.Tensor):
    device(x, y).launch(grid=[1, 1, 1], block=[256, 1, 1])


@kernel(frontend="cutedsl", outputs=["y"])
def spilling():
    return Program(host, x=Tensor("float32", "n"), y=Tensor("float32", "n"))
"""


ADD = """\
import cutlass
from cutlass import cute
from kernelwright import grid, kernel
from kernelwright.cutedsl import Program, Tensor


@cute.kernel
def add_device(x: cute.Tensor, y: cute.Tensor | None, z: cute.Tensor):
    i, _, _ = cute.arch.thread_idx()
    if i < cute.size(x):
        z[i] = x[i] + (y[i] if cutlass.const_expr(y is not None) else 1)


@cute.jit
def add_host(x: cute.Tensor, y: cute.Tensor | None, z: cute.Tensor):
    add_device(x, y, z).launch(grid=[1, 1, 1], block=[128, 1, 1])


@kernel(frontend="cutedsl", configs=grid(has_y=[True, False]), outputs=["z"])
def add(has_y):
    vector = Tensor("float32", "n")
    return Program(add_host, x=vector, y=Tensor("float32", "k", given=has_y), z=vector)
"""


def test_a_variant_for_None_gets_None(tmp_path):
    project = Project.of(tmp_path, '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_90a"]\n', add=ADD)
    project.scons("-j2")
    make_standin(project)
    code = "x, y, z = (on_cuda(5, data=at) for at in (0x10000, 0x20000, 0x30000))\n"
    code += "demo.add(x, y, z), demo.add(x, None, z), demo.add(x=x, z=z)\nprint(message_of(demo.add, None, y))"
    printed, log = call(project, code, parameters="pp", capability=90)
    assert "argument 'x' is None, expected a tensor" in printed
    parameters = [line.partition(" parameters ")[2] for line in launches(log)]
    assert parameters == ["0x10000 0x20000", *["0x10000 0x30000"] * 2]


VIEWED = """\
from cutlass import cute
from kernelwright import grid, kernel
from kernelwright.cutedsl import Program, Tensor


@cute.kernel
def device(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
    j, _, _ = cute.arch.thread_idx()
    i, _, _ = cute.arch.block_idx()
    if j < cute.size(x, mode=[1]):
        z[i, j] = x[i, j] + y[i, j]


@cute.jit
def host(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
    device(x, y, z).launch(grid=[cute.size(x, mode=[0]), 1, 1], block=[32, 1, 1])


@kernel(frontend="cutedsl", configs=grid(x_strides=["compact", "free"]))
def viewed(x_strides):
    x = Tensor("float32", "m", "n", strides=x_strides)
    y = Tensor("float32", "m", "n", strides=("4 * s", 2))
    z = Tensor("float32", "m", "n", strides=["s", None], multiples={"s": 8}, written=True)
    return Program(host, x=x, y=y, z=z)


@kernel(frontend="cutedsl", outputs=["y"])
def returned():
    y = Tensor("float32", 1, "n", strides=("s", 2))
    return Program(host, x=Tensor("float32", 1, "n"), y=y, z=Tensor("float32", 1, "n"))
"""


def test_views_are_read_and_written_by_their_strides(tmp_path):
    settings = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_90a", "compute_90"]\n'
    project = Project.of(tmp_path, settings, viewed=VIEWED)
    run = project.scons("-k", "--partial", ok=False)
    assert "output 'y' has the strides [s, 2], and new arrays are compact" in run.output
    make_standin(project)
    memory = np.arange(4096, dtype="float32")

    def called(*arrays):
        places = [(a, a.__array_interface__["data"][0] - memory.ctypes.data) for a in arrays]
        given = [f"on_cuda(*{a.shape}, strides={tuple(s // 4 for s in a.strides)}, data={at})" for a, at in places]
        return call(project, f"demo.viewed({', '.join(given)})", capability=90, bytes=1)

    def passed(*arrays):
        (launch,) = launches(called(*arrays)[1])
        return [bytes.fromhex(text) for text in launch.partition(" bytes ")[2].split()]

    x, y = memory[:640].reshape(40, 16).T[2:5, 20:3:-4], memory[640:1344:2].reshape(11, 32)[:6:2, :5]
    z = memory[2048:2144].reshape(6, 16)[::2, 13:3:-2]
    packed, expected, before = passed(x, y, z), x + y, memory.copy()
    ptx = (project.folder / "build/kernels/demo/viewed/x_strides-free/cuda/compute_90.ptx").read_text()
    Kernel(ptx).run((3, 1, 1), packed, memory.view(np.uint8), 0)
    assert np.array_equal(z, expected)
    z[:] = before[2048:2144].reshape(6, 16)[::2, 13:3:-2]
    assert np.array_equal(memory, before), "it has written between the elements"
    compact, one = memory[:15].reshape(3, 5), memory[7:12].reshape(1, 5)
    assert [*map(len, passed(compact, y, z))] == [24, *map(len, packed[1:])], "the variant for compact arrays"
    assert passed(one, y[:1], one), "nothing strides over one row"
    with pytest.raises(AssertionError, match="has the stride 64 in dimension 0, expected 128"):
        called(x, memory[:192].reshape(3, 64)[:, :10:2], z)
    with pytest.raises(AssertionError, match="has the stride 0 in dimension 1, and the kernel writes it"):
        called(x, y, np.lib.stride_tricks.as_strided(z, z.shape, (z.strides[0], 0)))
