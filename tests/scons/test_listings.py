"""``scons sass`` and ``scons ptx``: device code as text. Real runs of ``scons``, nvcc, NVRTC and nvdisasm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kernelwright.core.arch import virtual_arch
from kernelwright.core.errors import ToolchainError
from kernelwright.toolchain.nvcc import find_nvcc, nvcc_parts
from kernelwright.toolchain.nvdisasm import find_nvdisasm
from kernelwright.toolchain.nvrtc import find_nvrtc
from support.project import ADD, Project

WITHOUT_WHEELS = """\
from kernelwright.toolchain import nvdisasm
nvdisasm.in_wheels = lambda name: []
nvdisasm.nvcc_parts = lambda nvcc: []
"""
"""The beginning of a build file for which pip has installed no nvdisasm."""

CUDA = "build/kernels/demo/add_one/default/cuda"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with one kernel, for the CPU and the GPU."""
    try:
        find_nvcc("", {})
        find_nvdisasm("", {})
    except ToolchainError as error:
        pytest.skip(error.message)
    settings = 'targets = ["llvm", "cuda"]\narchs = ["x86-64-v3", "sm_80", "sm_90a", "compute_80"]\n'
    return Project.of(tmp_path, f"[tool.kernelwright]\n{settings}", add_one=ADD)


def texts(project: Project) -> list[str]:
    return sorted(Path(name).name for name in project.files(CUDA) if name.endswith((".sass", ".ptx")))


def read(project: Project, name: str) -> str:
    return (project.folder / CUDA / name).read_text()


def without_nvdisasm(project: Project) -> None:
    build_file = project.folder / "SConstruct"
    build_file.write_text(WITHOUT_WHEELS + build_file.read_text())


def fake_nvdisasm(project: Project, body: str) -> dict[str, str]:
    """An nvdisasm that does something else; the environment of runs that find it."""
    without_nvdisasm(project)
    version = 'if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.2, V13.2.78"; exit; fi'
    project.write("home/bin/nvdisasm", f"#!/bin/sh\n{version}\n{body}\n").chmod(0o755)
    return {"CUDA_HOME": str(project.folder / "home")}


def wrapper_of_nvcc(project: Project) -> str:
    script = project.write("nvcc", f'#!/bin/sh\nexec {find_nvcc("", {})} "$@"\n')
    script.chmod(0o755)
    return f"NVCC={script}"


def test_sass_and_ptx_of_every_cubin_are_written_and_nothing_is_linked(project: Project) -> None:
    run = project.built("-j2", "sass", "ptx")
    assert run.labels == {"LOWER": 1, "CUBIN": 2, "SASS": 2, "PTX": 2}
    assert texts(project) == ["compute_80.ptx", "compute_90a.ptx", "sm_80.sass", "sm_90a.sass"]
    for arch in ("sm_80", "sm_90a"):
        assert f".target	{arch}\n" in read(project, f"{arch}.sass") and "EXIT" in read(project, f"{arch}.sass")
        assert f".target {arch}\n" in read(project, f"{virtual_arch(arch)}.ptx")
    assert ".text.add_one_kernel:" in read(project, "sm_90a.sass")
    assert str(project.folder) not in read(project, "sm_90a.sass") + read(project, "compute_90a.ptx")
    assert project.scons("sass", "ptx").stages == []
    (ptxas,) = (part for part in nvcc_parts(find_nvcc("", {})) if part.name == "ptxas")
    for arch in ("sm_80", "sm_90a"):
        command = [ptxas, f"-arch={arch}", "-m64", "-v", f"{virtual_arch(arch)}.ptx", "-o", project.folder / "again"]
        subprocess.run(command, cwd=project.folder / CUDA, check=True, timeout=100)
        made = (project.folder / CUDA / f"{arch}.cubin").read_bytes()
        assert made == (project.folder / "again").read_bytes(), "the PTX is that which the cubin is made from"


def test_a_text_that_was_damaged_or_deleted_comes_from_the_cache_and_cleaning_removes_no_more(project: Project) -> None:
    project.built("-j2", "sass", "ptx")
    before = project.files("build/kernels")
    (project.folder / CUDA / "sm_80.sass").write_text("damaged")
    (project.folder / CUDA / "compute_90a.ptx").unlink()
    run = project.scons("sass", "ptx")
    assert run.stages == ["CACHED PTX add_one/default compute_90a", "CACHED SASS add_one/default sm_80"]
    assert project.files("build/kernels") == before
    project.scons("-c", "sass")
    assert texts(project) == ["compute_80.ptx", "compute_90a.ptx"]
    for _ in range(2):  # also if there is nothing to remove
        project.scons("-c", "ptx")
        assert texts(project) == ["compute_80.ptx"], "which a package has"
        assert len(project.files("build/kernels")) == len(before) - 3


def test_a_build_makes_none_and_afterwards_only_they_are_made(project: Project) -> None:
    project.scons("-j2")  # not a copy, in which no kernel is settled
    assert texts(project) == ["compute_80.ptx", "compute_90a.ptx"], "which the cubins are made from"
    assert project.scons("sass").labels == {"SASS": 2}
    assert project.scons("ptx").labels == {}
    assert project.scons().stages == []
    assert len(texts(project)) == 4, "a run with nothing to do leaves them"


def test_where_nvcc_is_run_as_a_whole_ptx_is_made_when_it_is_asked_for(project: Project) -> None:
    archs = "ARCHS=sm_90a,compute_80"
    whole = wrapper_of_nvcc(project), archs
    run = project.scons("-j2", *whole)
    assert run.labels["CUBIN"] == 1 and run.labels["PTX"] == 1
    assert texts(project) == ["compute_80.ptx"]
    assert project.scons("ptx", *whole).labels == {"PTX": 1}
    assert project.scons(*whole).stages == [] and len(texts(project)) == 2
    parted = read(project, "compute_90a.ptx")
    project.scons("-c", "ptx", *whole)
    assert texts(project) == ["compute_80.ptx"], "which a package has"
    project.scons("-j2", "ptx", archs)
    assert read(project, "compute_90a.ptx") == parted


def test_a_run_that_assembles_the_package_leaves_no_text_of_older_code(project: Project) -> None:
    project.built("-j2", "sass", "ptx")
    project.replace("kernels/add_one.py", "+ 1.0", "+ 2.0")
    before = read(project, "sm_90a.sass")
    assert "SASS" not in project.scons("-j2").labels
    assert texts(project) == ["compute_80.ptx", "compute_90a.ptx"]
    project.replace("kernels/add_one.py", "+ 2.0", "+ 3.0")
    labels = project.scons("-j2", "build", "sass").labels
    assert labels["PACKAGE"] == 1 and labels["SASS"] == 2
    assert texts(project) == ["compute_80.ptx", "compute_90a.ptx", "sm_80.sass", "sm_90a.sass"]
    assert read(project, "sm_90a.sass") != before


def test_flags_are_those_of_the_cubin(project: Project) -> None:
    project.built("-j2", "sass", "ptx")
    run = project.scons("sass", "ptx", "NVCC_FLAGS=-lineinfo", "COMPRESS=size")
    assert run.labels == {"CUBIN": 2, "PTX": 2, "SASS": 2}, "compressed images are not needed for the text"
    assert ".loc" in read(project, "compute_90a.ptx")
    run = project.scons("sass", "TARGETS=llvm")
    assert "kernelwright: add_one has no device code of which there is a .sass" in run.output


def test_nvrtc_makes_both_without_nvcc(project: Project) -> None:
    try:
        find_nvrtc({})
    except ToolchainError:
        pytest.skip("NVRTC is not installed")
    without = ("CUDA_COMPILER=nvrtc", "NVCC=/nonexistent/nvcc", "PCH_SIZE=32M", "ARCHS=sm_90a")
    run = project.scons("-j2", "sass", "ptx", *without)
    assert run.labels == {"LOWER": 1, "CUBIN": 1, "SASS": 1, "PTX": 1}
    assert ".target sm_90a\n" in read(project, "compute_90a.ptx") and "EXIT" in read(project, "sm_90a.sass")


def test_without_nvdisasm_the_run_ends_before_anything_is_built_and_ptx_works(project: Project) -> None:
    without_nvdisasm(project)
    run = project.scons("sass", ok=False, env={"CUDA_HOME": ""})
    assert run.status == 2 and not run.stages
    assert "no nvdisasm" in run.output and "remedy: pip install 'kernelwright[sass]'" in run.output
    assert project.scons("ptx", env={"CUDA_HOME": ""}).labels == {"LOWER": 1, "PTX": 2}


def test_an_error_of_nvdisasm_names_the_kernel_and_leaves_nothing_out(project: Project) -> None:
    environment = fake_nvdisasm(project, "echo half; echo 'unknown arch' >&2; exit 3")
    run = project.scons("-j2", "--partial", "build", "sass", ok=False, env=environment)
    assert run.status == 2
    assert "kernels/add_one.py:5 add_one/default [nvdisasm]: nvdisasm ended with exit status 3" in run.output
    assert "unknown arch" in run.output and "sm_80.cubin" in run.output
    assert texts(project) == ["compute_80.ptx", "compute_90a.ptx"]
    assert not project.manifest.get("missing")
    fake = (project.folder / "home/bin/nvdisasm").read_text().replace("exit 3", "exit 0")
    project.write("home/bin/nvdisasm", fake)
    project.scons("-j2", "sass", env=environment)
    assert read(project, "sm_80.sass") == "half\n", "what it warns of is no part of the text"
