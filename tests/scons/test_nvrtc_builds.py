"""Builds with ``cuda_compiler = "nvrtc"``: real ``scons`` runs, without nvcc, and beside it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from kernelwright.core.errors import ToolchainError
from kernelwright.toolchain.nvcc import find_nvcc
from kernelwright.toolchain.nvrtc import find_nvrtc
from support.project import ADD, Project

NO_NVCC = "NVCC=/nonexistent/nvcc"
"""Where NVRTC compiles nobody looks for it; where nvcc does this is an error."""

BAD = """\
from kernelwright import kernel
from tvm.script import tirx as T


@kernel
def bad():
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
        for i in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("a"):
                j = T.axis.spatial(32, i)
                y[j] = T.call_extern("float32", "no_such_device_function", x[j])
    return main
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with one kernel for the GPU, compiled by NVRTC."""
    try:
        find_nvrtc({})
    except ToolchainError:
        pytest.skip("NVRTC is not installed")
    settings = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80", "compute_80"]\ncuda_compiler = "nvrtc"\n'
    return Project.of(tmp_path, settings, add_one=ADD)


def headers(project: Project) -> list[str]:
    folder = project.folder / "build/.kernelwright/pch"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def require_headers(project: Project, count: int, output: str) -> None:
    """Precompiled headers are there; NVRTC may decline to make one, which costs time, and is said."""
    missing = count - len(headers(project))
    assert missing == 0 or (missing > 0 and "kernelwright: a precompiled header is not made: " in output)


BUILD = ("-j2", NO_NVCC)
"""The first build of most tests."""

DEVICE_CODE = ("sm_80.cubin", "sm_80.json", "compute_80.ptx", "compute_80.json")


def remove_device_code(project: Project) -> None:
    """And the library and the package, which are made of it."""
    (project.folder / "build/kernels/demo/add_one/add_one.so").unlink()
    for name in DEVICE_CODE:
        (project.folder / "build/kernels/demo/add_one/default/cuda" / name).unlink()
    shutil.rmtree(project.folder / "build/demo")


def needs_nvcc() -> None:
    try:
        find_nvcc("", {})
    except ToolchainError:
        pytest.skip("nvcc is not installed")


def test_a_package_is_built_without_nvcc_and_then_nothing_is_left_to_do(project: Project) -> None:
    run = project.built(*BUILD)
    assert run.labels["CUBIN"] == run.labels["PTX"] == 1
    require_headers(project, 2, run.output)
    tools = project.manifest["tools"]
    assert tools["nvrtc"]["version"].startswith("13.") and "nvcc" not in tools
    project.scons(NO_NVCC, "compile_commands")
    command = json.loads((project.folder / "build/compile_commands.json").read_text())[0]
    assert command["file"] == "device.cu" and "-arch=sm_80" in command["arguments"]
    project.python("from demo import add_one; print(add_one)")
    assert project.scons(NO_NVCC).stages == []


def test_neither_jobs_nor_place_nor_precompiled_headers_change_a_byte(project: Project, tmp_path: Path) -> None:
    project.built(*BUILD)
    remove_device_code(project)
    for name in ("cache", "pch"):  # and all that could replace it
        shutil.rmtree(project.folder / "build/.kernelwright" / name)
    project.scons("-j1", "PCH_SIZE=")
    assert headers(project) == []
    plain = project.files("build/demo", "build/kernels")
    other = Project(tmp_path / "another place")
    shutil.copytree(project.folder, other.folder, ignore=shutil.ignore_patterns(other.folder.name))
    for _ in range(2):  # they are made, and used
        remove_device_code(other)
        output = other.scons("-j4", "--cache-disable").output
        assert other.files("build/demo", "build/kernels") == plain
        require_headers(other, 2, output)


def test_an_error_names_kernel_variant_and_line_and_others_stay(project: Project) -> None:
    project.built(*BUILD)
    flagged = ADD.replace("add_one", "flagged").replace("@kernel(", '@kernel(flags=["-Xcompiler=-O1"], ', 1)
    project.write("kernels/flagged.py", flagged)
    project.write("kernels/bad.py", BAD)
    run = project.scons("-k", "-j2", ok=False)
    assert run.status == 2 and "bad/default [nvrtc]: NVRTC ended with exit status 1" in run.output
    assert re.search(r'device\.cu\(\d+\): error: identifier "no_such_device_function" is undefined', run.output)
    assert "build/kernels/demo/bad/default/cuda/device.cu" in run.output, "the path of the source"
    assert "flagged/default [nvrtc]: NVRTC has no flag '-Xcompiler=-O1'" in run.output
    assert "remedy: remove it" in run.output
    assert {path.parts[-4] for path in (project.folder / "build/kernels/demo").rglob("*.cubin")} == {"add_one"}
    assert (project.folder / "build/kernels/demo/add_one/add_one.so").exists()


def test_compress_needs_the_fatbinary_of_nvcc(project: Project) -> None:
    project.built(*BUILD)
    run = project.scons("COMPRESS=size", NO_NVCC, ok=False)
    assert "compress = 'size' needs fatbinary, which comes with nvcc" in run.output and "COMPRESS=none" in run.output
    needs_nvcc()
    run = project.scons("COMPRESS=size", "SPLIT=arch")
    assert run.labels["FATBIN"] == 2 and "CUBIN" not in run.labels
