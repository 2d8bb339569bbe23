"""``debug``: what a build keeps for debuggers and profilers, where it is, and what wheels say of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from support.project import Project

TWICE = """
from kernelwright import kernel
from kernelwright.cuda import Size, Source, Tensor, ceildiv


@kernel(frontend="cuda", outputs=["y"])
def twice():
    vector = Tensor("float32", "n")
    return Source("twice.cu", "twice", x=vector, y=vector, n=Size("n"), grid=ceildiv("n", 256), block=256)
"""
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


def named_sources(cubin: Path) -> set[str]:
    """The sources that the lines of device code are of."""
    with cubin.open("rb") as stream:
        lines = next(ELFFile(stream).get_dwarf_info().iter_CUs(), None)
    assert lines is None, "nvcc writes no units with -lineinfo"
    text = subprocess.run(["readelf", "--debug-dump=rawline", str(cubin)], capture_output=True, text=True, check=False)
    return {line.split()[-1] for line in text.stdout.splitlines() if line.endswith((".cu", ".py"))}


def test_lines_are_in_a_package_of_their_own_with_equal_bytes_in_each_folder(debugged: Project, tmp_path: Path) -> None:
    other = debugged.copied(tmp_path / "elsewhere" / "copy")
    debugged.scons("-j2", "HOST_COMPILER=gcc")
    plain = (debugged.folder / "build/demo/_lib/twice.so").read_bytes()
    debugged.scons("-j2", "DEBUG=lineinfo", "HOST_COMPILER=gcc")
    other.scons("-j2", "DEBUG=lineinfo", "HOST_COMPILER=gcc")
    made, again = (one.folder / "build/debug-lineinfo" for one in (debugged, other))
    libraries = sorted(path.name for path in (made / "demo/_lib").iterdir())
    assert {"twice.so", "scale.so"} < {*libraries}
    assert all((made / "demo/_lib" / name).read_bytes() == (again / "demo/_lib" / name).read_bytes() for name in libraries)
    assert (debugged.folder / "build/demo/_lib/twice.so").read_bytes() == plain and not symbols(
        debugged.folder / "build/demo/_lib/scale.so"
    )
    assert any(name.startswith("kw_scale__") and name.endswith("x86_64_v3") for name in symbols(made / "demo/_lib/scale.so"))
    assert named_sources(made / "kernels/demo/twice/default/cuda/sm_80.cubin") == {"twice.cu"}
    assert "debug-lineinfo" in debugged.scons("-Q", "-c").output and not (made / "demo").exists()


def test_a_kernel_can_be_debugged_alone_and_a_wheel_says_so(debugged: Project) -> None:
    debugged.replace("kernels/twice.py", 'frontend="cuda", ', 'frontend="cuda", debug="lineinfo", ')
    debugged.write("pyproject.toml", debugged.read("pyproject.toml") + '[project]\nname = "demo"\nversion = "1.0"\n')
    debugged.write("SConstruct", debugged.read("SConstruct") + 'env.KernelWheel("demo")\n')
    debugged.scons("-j2", "wheel", "HOST_COMPILER=gcc")
    manifest = json.loads((debugged.folder / "build/demo/manifest.json").read_text())
    assert {name: kernel.get("debug") for name, kernel in manifest["kernels"].items() if "debug" in kernel} == {
        "twice": "lineinfo"
    }
    assert symbols(debugged.folder / "build/demo/_lib/twice.so") and not symbols(
        debugged.folder / "build/demo/_lib/scale.so"
    )
    run = debugged.command("verify", *map(str, debugged.folder.glob("dist/*.whl")))
    assert "  debug = 'lineinfo': twice\n" in run.stdout
    debugged.replace("kernels/twice.py", 'debug="lineinfo"', 'debug="full"')
    run = debugged.scons("-j2", "wheel", ok=False)
    assert "flags such as -G record paths" in run.output


def test_what_cannot_be_debugged_is_said(debugged: Project) -> None:
    assert "DEBUG" in debugged.scons("DEBUG=yes", ok=False).output
    debugged.replace("kernels/twice.py", 'frontend="cuda", ', 'frontend="cuda", debug="all", ')
    run = debugged.scons(ok=False)
    assert "twice" in run.output and "debug is 'all', expected one of no, lineinfo, full" in run.output
