"""Builds with ``cuda_compiler = "nvrtc"``: real ``scons`` runs, without nvcc, and beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from kernelwright.core.errors import ToolchainError
from kernelwright.toolchain.nvcc import find_nvcc
from kernelwright.toolchain.nvrtc import find_nvrtc
from support.moments import Gate, wait_for
from support.project import ADD, ROOT, SITE_SCONS, Project

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
    project = Project(tmp_path)
    text = "from kernelwright.scons import generate\nenv = Environment(tools=[generate])\n"
    project.write("SConstruct", text + 'env.Default(env.KernelPackage("demo", env.Glob("kernels/*.py")))\n')
    settings = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80", "compute_80"]\ncuda_compiler = "nvrtc"\n'
    project.write("pyproject.toml", settings)
    project.write("kernels/add_one.py", ADD)
    return project


def headers(project: Project) -> list[str]:
    """Names of what is in the folder of precompiled headers."""
    folder = project.folder / "build/.kernelwright/pch"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def require_headers(project: Project, count: int, output: str) -> None:
    """Precompiled headers are there; NVRTC may decline to make one, which costs time, and is said."""
    missing = count - len(headers(project))
    assert missing == 0 or (missing > 0 and "kernelwright: a precompiled header is not made: " in output)


BUILD = ("-j2", NO_NVCC)
"""The first build of most tests."""

DEVICE_CODE = ("sm_80.cubin", "sm_80.json", "compute_80.ptx", "compute_80.json")


def lowered(project: Project) -> None:
    """Have everything of the project but its device code, what is made of that, and all that could replace it."""
    project.built(*BUILD)
    remove_device_code(project)
    for name in ("cache", "pch"):
        shutil.rmtree(project.folder / "build/.kernelwright" / name)


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
    tools = json.loads((project.folder / "build/demo/manifest.json").read_text())["tools"]
    assert tools["nvrtc"]["version"].startswith("13.") and "nvcc" not in tools
    project.scons(NO_NVCC, "compile_commands")
    command = json.loads((project.folder / "build/compile_commands.json").read_text())[0]
    assert command["file"] == "device.cu" and "-arch=sm_80" in command["arguments"]
    project.python("from demo import add_one; print(add_one)")
    assert project.scons(NO_NVCC).stages == []


def test_the_compiler_is_part_of_the_signature(project: Project) -> None:
    needs_nvcc()
    project.built(*BUILD)
    run = project.scons("-j2", "--cache-disable", "CUDA_COMPILER=nvcc")
    assert run.labels == {"CUBIN": 1, "PTX": 1, "LINK": 1, "PACKAGE": 1}
    assert project.scons("-j2", "--cache-disable").labels["CUBIN"] == 1


def test_neither_jobs_nor_place_nor_precompiled_headers_change_a_byte(project: Project, tmp_path: Path) -> None:
    lowered(project)
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


def test_a_header_of_the_project_that_changes_is_noticed(project: Project) -> None:
    project.built(*BUILD)
    shutil.rmtree(project.folder / "build/.kernelwright/pch")
    project.write("inc/mine.h", "#define NOTHING 1\n")
    flags = f"NVCC_FLAGS=-I {project.folder}/inc -include mine.h"
    assert project.scons(flags).labels["CUBIN"] == 1
    assert project.scons(flags).stages == []
    project.write("inc/mine.h", "#define NOTHING 2\n")
    assert project.scons(flags).labels["CUBIN"] == 1
    assert headers(project) == []


def test_damaged_headers_are_made_again_and_a_folder_that_cannot_have_them_is_said_once(project: Project) -> None:
    lowered(project)
    project.scons("-j2", "--cache-disable")
    before = project.files("build/demo")
    for name in headers(project):
        (project.folder / "build/.kernelwright/pch" / name).write_bytes(b"damaged")
    remove_device_code(project)
    run = project.scons("-j2", "--cache-disable")
    assert "kernelwright: a precompiled header is damaged; it is made again" in run.output
    assert project.files("build/demo") == before
    require_headers(project, 2, run.output)
    remove_device_code(project)
    shutil.rmtree(project.folder / "build/.kernelwright/pch")
    project.write("build/.kernelwright/pch", "a file")
    run = project.scons("-j1", "--cache-disable")
    assert run.output.count("kernelwright: precompiled headers are not used: ") == 1
    assert project.files("build/demo") == before and project.scons().stages == []


def test_an_error_names_kernel_variant_and_line_and_others_are_built(project: Project) -> None:
    lowered(project)
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


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("ARCHS=sm_70", ("does not know the arch 'sm_70'", "NVRTC 13.", "sm_75")),
        ("CUDA_COMPILER=clang", ("unknown cuda_compiler 'clang'", "nvcc, nvrtc")),
    ],
)
def test_what_nvrtc_cannot_be_told_is_an_error(project: Project, setting: str, words: tuple[str, ...]) -> None:
    output = project.scons(setting, ok=False).output
    assert [word for word in words if word not in output] == []


def test_a_missing_wheel_says_how_to_install_it(project: Project) -> None:
    hide = "from kernelwright.toolchain import nvrtc\nnvrtc.library_folders = lambda environment: []\n"
    project.write("SConstruct", hide + (project.folder / "SConstruct").read_text())
    run = project.scons(ok=False)
    assert "no NVRTC" in run.output and "pip install 'kernelwright[nvrtc]'" in run.output and run.status == 2


def test_compress_needs_the_fatbinary_of_nvcc(project: Project) -> None:
    lowered(project)
    run = project.scons("COMPRESS=size", NO_NVCC, ok=False)
    assert "compress = 'size' needs fatbinary, which comes with nvcc" in run.output and "COMPRESS=none" in run.output
    needs_nvcc()
    run = project.scons("COMPRESS=size", "SPLIT=arch")
    assert run.labels["FATBIN"] == 2 and run.labels["CUBIN"] == 1


def test_doctor_and_tool_know_it(project: Project) -> None:
    env = {name: value for name, value in os.environ.items() if name != "CUDA_HOME"} | {"PYTHONPATH": str(SITE_SCONS)}
    command = [sys.executable, "-m", "kernelwright"]
    text = subprocess.run([*command, "doctor"], env=env, capture_output=True, text=True).stdout
    assert "\nnvrtc: 13." in text
    done = subprocess.run([*command, "tool", "nvrtc"], env=env, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_file()


def processes_in(folder: Path) -> list[int]:
    """Processes whose working folder is below a folder, but scons itself."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                inside = (entry / "cwd").readlink().is_relative_to(folder)
            except OSError:
                continue
            if inside and any(word.endswith(b"nvrtc_compile.py") for word in words):
                found.append(int(entry.name))
    return found


STOPPED = """\
import sys
from kernelwright.toolchain import nvrtc
nvrtc.compiler_process = lambda: [sys.executable, {program!r}]
"""
"""Beginning of a build file: runs another program in place of the one that runs NVRTC."""


def test_a_killed_build_leaves_no_process_and_the_next_one_finishes(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lowered(project)
    command = [sys.executable, "-m", "SCons", "-j2", "--cache-disable"]
    env = os.environ | {"PYTHONPATH": str(SITE_SCONS), "PATH": f"{project.shared}/bin:{os.environ['PATH']}"}
    folder = tmp_path_factory.mktemp("stopped")
    text = (project.folder / "SConstruct").read_text()
    with Gate(folder / "gate") as gate:
        (folder / "nvrtc_compile.py").write_text(gate.python)
        project.write("SConstruct", STOPPED.format(program=str(folder / "nvrtc_compile.py")) + text)
        process = subprocess.Popen(
            command, cwd=project.folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        gate.wait()
        assert processes_in(project.folder)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        wait_for(lambda: not processes_in(project.folder), "a process is left")
    # What such a process may leave.
    (project.folder / "build/.kernelwright/pch").mkdir(exist_ok=True)
    (project.folder / f"build/.kernelwright/pch/.scratch-{process.pid}-x.pch").write_text("half")
    assert not (project.folder / "build/demo/manifest.json").exists()
    project.write("SConstruct", text)
    run = project.scons("-j2", "--cache-disable")
    assert run.labels["CUBIN"] == run.labels["PTX"] == 1
    assert [name for name in headers(project) if not name.endswith(".pch") or name.startswith(".")] == []


def machine_code(project: Project) -> dict[str, dict[str, bytes]]:
    """The code of the device functions of each cubin, by path."""
    found = {}
    for path in sorted((project.folder / "build/kernels").rglob("*.cubin")):
        with path.open("rb") as file:
            sections = {s.name: s.data() for s in ELFFile(file).iter_sections() if s.name.startswith(".text.")}
        found[str(path.relative_to(project.folder))] = sections
    return found


def test_kernels_of_the_library_have_the_code_and_registers_of_nvcc(project: Project) -> None:
    """Where both address shared memory alike; the benchmark ``nvrtc`` does it with all of them."""
    needs_nvcc()
    (project.folder / "kernels/add_one.py").unlink()
    for name in ("_common", "_rows_on_cuda", "softmax"):
        shutil.copy(ROOT / "kernels" / f"{name}.py", project.folder / "kernels")
    text = (project.folder / "SConstruct").read_text()
    project.write("SConstruct", text.replace("kernels/*.py", "kernels/[!_]*.py"))
    code, usage = {}, {}
    for compiler in ("nvrtc", "nvcc"):
        same = "NVCC_FLAGS=-Xcudafe --sharedmem32=0"
        project.scons("-j2", "--cache-disable", "ARCHS=sm_90a", "BACKENDS=nvrtc", same, f"CUDA_COMPILER={compiler}")
        code[compiler] = machine_code(project)
        files = project.files("build/kernels").items()
        usage[compiler] = {name: json.loads(data) for name, data in files if "/sm_" in name and name.endswith(".json")}
    assert len(code["nvrtc"]) == len(usage["nvrtc"]) >= 3 and all(code["nvrtc"].values())
    assert code["nvrtc"] == code["nvcc"]
    registers = {
        compiler: {name: {f: used["registers"] for f, used in u["kernels"].items()} for name, u in found.items()}
        for compiler, found in usage.items()
    }
    assert registers["nvrtc"] == registers["nvcc"]
