"""``debug``: what a build keeps for debuggers and profilers, where it is, and what wheels say of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from support.demand import Demand
from support.project import Project

TWICE = """
from kernelwright import kernel
from kernelwright.cuda import Size, Source, Tensor, ceildiv


@kernel(frontend="cuda", outputs=["y"])
def twice():
    vector = Tensor("float32", "n")
    return Source("twice.cu", "twice", x=vector, y=vector, n=Size("n"), grid=ceildiv("n", 256), block=256)
"""
PROJECT = '[project]\nname = "demo"\nversion = "1.0"\nrequires-python = ">=3.10"\n'
SOURCE = """__global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""


@pytest.fixture
def debugged(project: Project) -> Project:
    project.write("kernels/twice.py", TWICE)
    project.write("kernels/twice.cu", SOURCE)
    return project


def symbols(library: Path) -> set[str]:
    """The names of functions that are in a library besides those that it exports."""
    with library.open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".symtab")
        return {symbol.name for symbol in table.iter_symbols()} if table else set()


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def named_sources(cubin: Path) -> set[str]:
    """The sources that the lines of device code are of."""
    text = subprocess.run(["readelf", "--debug-dump=rawline", str(cubin)], capture_output=True, text=True, check=False)
    return {line.split()[-1] for line in text.stdout.splitlines() if line.endswith(".cu")}


def test_lines_are_in_a_package_of_their_own_with_equal_bytes_in_each_folder(debugged: Project, tmp_path: Path) -> None:
    other = debugged.copied(tmp_path / "elsewhere" / "copy")
    debugged.scons("-j2")
    plain = files_in(debugged.folder / "build/demo")
    debugged.scons("-j2", "DEBUG=lineinfo")
    other.scons("-j2", "DEBUG=lineinfo")
    made, again = (one.folder / "build/debug-lineinfo" for one in (debugged, other))
    files, same = (files_in(folder / "demo") for folder in (made, again))
    assert files == same and {"_lib/twice.so", "_lib/scale.so"} < files.keys()
    assert files_in(debugged.folder / "build/demo") == plain and not symbols(
        debugged.folder / "build/demo/_lib/scale.so"
    )
    assert any(re.fullmatch("kw_scale__.*__x86_64_v3", name) for name in symbols(made / "demo/_lib/scale.so"))
    assert named_sources(made / "kernels/demo/twice/default/cuda/sm_80.cubin") == {"twice.cu"}
    assert "debug-lineinfo" in debugged.scons("-Q", "-c").output and not (made / "demo").exists()


def test_a_kernel_can_be_debugged_alone_and_a_wheel_says_so(debugged: Project) -> None:
    debugged.replace("kernels/twice.py", 'frontend="cuda", ', 'frontend="cuda", debug="lineinfo", ')
    for name, more in (("pyproject.toml", PROJECT), ("SConstruct", 'env.KernelWheel("demo")\n')):
        debugged.write(name, (debugged.folder / name).read_text() + more)
    debugged.scons("-j2", "wheel")
    levels = {name: kernel.get("debug") for name, kernel in debugged.manifest["kernels"].items()}
    assert levels == {"add_one": None, "scale": None, "twice": "lineinfo"}
    libraries = debugged.folder / "build/demo/_lib"
    assert symbols(libraries / "twice.so") and not symbols(libraries / "scale.so")
    said = debugged.kernelwright("verify", *debugged.folder.glob("dist/*.whl"))
    assert "  debug = 'lineinfo': twice\n" in said
    debugged.replace("kernels/twice.py", 'debug="lineinfo"', 'debug="full"')
    run = debugged.scons("-j2", "wheel", ok=False)
    assert "flags such as -G record paths" in run.output


def test_code_with_the_path_of_its_folder_is_made_anew_in_another_one(debugged: Project, tmp_path: Path) -> None:
    debugged.replace("kernels/twice.py", 'frontend="cuda", ', 'frontend="cuda", debug="full", ')
    given = ("-j2", f"CACHE_DIR={tmp_path / 'cache'}")
    other = debugged.copied(tmp_path / "elsewhere" / "copy")
    cubin = "build/kernels/demo/twice/default/cuda/sm_80.cubin"
    debugged.scons(*given)
    assert str(debugged.folder).encode() in (debugged.folder / cubin).read_bytes()
    other.scons(*given)
    assert str(other.folder).encode() in (other.folder / cubin).read_bytes()
    other.folder.rename(tmp_path / "moved")
    moved = Project(tmp_path / "moved")
    moved.scons(*given)
    assert str(moved.folder).encode() in (moved.folder / cubin).read_bytes()
    assert not moved.scons(*given).labels


def test_what_cannot_be_debugged_is_said(debugged: Project) -> None:
    assert (
        "unknown debug 'yes'\n  remedy: the valid ones are no, lineinfo, full"
        in debugged.scons("DEBUG=yes", ok=False).output
    )
    debugged.replace("kernels/twice.py", 'frontend="cuda", ', 'frontend="cuda", debug="all", ')
    run = debugged.scons(ok=False)
    assert "twice" in run.output and "debug is 'all', expected one of no, lineinfo, full" in run.output


def test_calls_on_demand_keep_what_is_for_debuggers_apart(cpu_project: Project) -> None:
    demand = Demand(cpu_project)
    demand.definition("times")
    program = 'print((array(kw.load("kernels/times.py").times(np.ones((1, 4), "float32"))) == 2).all())'
    for level in ("no", "lineinfo", "no"):
        assert demand.run(program, env={"KERNELWRIGHT_DEBUG": level}).stdout == "True\n"
    libraries = list(demand.cache.glob("kernels/times-*/_lib/times.so"))
    assert sorted(bool(symbols(library)) for library in libraries) == [False, True]
