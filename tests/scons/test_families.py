"""Builds for CPUs of another family than this machine's: what is made once, what is made twice, and what fails."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from kernelwright.core.errors import ToolchainError
from kernelwright.toolchain import cross_compiler
from kernelwright.toolchain.cross_compiler import find_cross_compiler
from support.arm import CROSS, CUDA, NO_ARM, NO_CROSS, build_on_arm, can_build_on_arm, has_arm, run_on_arm
from support.project import ADD, SCALE, SCONSTRUCT, Project
from support.wheels import hook, unpack

pytestmark = [
    pytest.mark.skipif(CROSS is None, reason=NO_CROSS),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="aarch64 is the other family"),
]

SETTINGS = """
[project]
name = "demo"
version = "1.0"
requires-python = ">=3.10"
dependencies = ["apache-tvm-ffi>=0.1.14"]

[tool.kernelwright]
package = "demo"
archs = ["x86-64-v3", "armv8-a", "neoverse-n1", "neoverse-v2", "sm_80", "compute_80"]
"""

WHEELS = SCONSTRUCT + 'env.KernelWheel("demo")\n'

ONE = SCALE.replace('"float32", ', "")
"""With one variant."""

CALLS = """
import numpy as np, platform, demo
x = np.linspace(-2, 2, 1000, dtype="float32")
x = x.astype("float16")
assert (np.from_dlpack(demo.scale(x)) == 2 * x).all()
print(platform.machine(), demo.num_threads() > 0)
"""

ZIG = Path(sys.prefix, f"lib/python3.{sys.version_info.minor}/site-packages/ziglang")

BOTH = ("build/demo", "build/aarch64/demo")


def machine_of(library: Path) -> int:
    return int.from_bytes(library.read_bytes()[18:20], "little")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project.of(tmp_path / "project", SETTINGS, scale=ONE)
    made.write("SConstruct", WHEELS)
    return made


def test_one_run_builds_for_both_families_and_device_code_once(project: Project) -> None:
    first = project.built("-j2", "wheel")
    assert [first.labels[label] for label in ("PTX", "CUBIN", "LINK", "PACKAGE", "WHEEL")] == [1, 1, 2, 2, 2]
    assert first.labels["LOWER"] == 1 + 3 + 1, "one for x86-64, three for aarch64, and one for CUDA"
    assert not list((project.folder / "build/aarch64").rglob("*.cubin"))
    libraries = {top: list((project.folder / top).rglob("*.so")) for top in BOTH}
    assert {top: {*map(machine_of, found)} for top, found in libraries.items()} == {BOTH[0]: {62}, BOTH[1]: {183}}
    assert {top: len(found) for top, found in libraries.items()} == {BOTH[0]: 2, BOTH[1]: 2}
    names = sorted(path.name for path in (project.folder / "dist").iterdir())
    assert names == [f"demo-1.0-py3-none-manylinux_2_17_{family}.whl" for family in ("aarch64", "x86_64")]
    for name in names:
        assert "all well" in project.kernelwright("verify", f"dist/{name}")
    said = project.kernelwright("diff", *(f"dist/{name}" for name in names), status=1)
    assert "the one is of demo for aarch64, and the other of demo" in said
    with zipfile.ZipFile(project.folder / "dist" / names[0]) as archive:
        code = archive.read("demo/_lib/scale.so")
    cubins = list((project.folder / "build/kernels/demo/scale").rglob("*.cubin"))
    assert len(cubins) == 1 and all(cubin.read_bytes() in code for cubin in cubins)
    assert "remove it" not in first.output
    assert project.scons("-j2", "wheel").counts[0] == 0


def test_an_edit_makes_device_code_once_again_and_removal_of_a_family_leaves_the_other(project: Project) -> None:
    project.built("-j2", "wheel")
    before = project.files("build/demo/_lib")
    project.replace("kernels/scale.py", "T.cast(2.0, dtype)", "T.cast(3.0, dtype)")
    again = project.scons("-j2")
    assert [again.labels[label] for label in ("PTX", "CUBIN", "LINK", "PACKAGE")] == [1, 1, 2, 2], again.output
    project.replace("kernels/scale.py", "T.cast(3.0, dtype)", "T.cast(2.0, dtype)")
    shutil.rmtree(project.folder / "build/aarch64")
    back = project.scons("-j2")
    assert project.files("build/demo/_lib") == before
    launchers = [stage for stage in back.stages if "LAUNCHER" in stage or "GLIBC" in stage]
    assert launchers and all("aarch64" in stage for stage in launchers), back.output
    own = project.scons("-j2", "ARCHS=x86-64-v3")
    assert "aarch64" not in own.output and project.files("build/demo/_lib") == before
    project.write("build/cu128/aarch64/demo/__init__.py", "")
    project.write("build/cu128/notes/__init__.py", "")
    assert "Could not remove" not in project.scons("-c", "ARCHS=x86-64-v3").output
    left = [path.relative_to(project.folder / "build").as_posix() for path in project.folder.glob("build/**/*.*")]
    assert left == ["cu128/notes/__init__.py"], "what settings do not name any more is cleaned, and no more than that"


def test_bytes_depend_neither_on_the_folder_nor_on_what_else_is_built(project: Project, tmp_path: Path) -> None:
    other = project.copied(tmp_path / "a longer name of a folder")
    project.built("-j2", "wheel")
    alone = other.scons("-j1", "wheel", "ARCHS=armv8-a,neoverse-n1,neoverse-v2")
    assert alone.labels["CUBIN"] == 1 and not (other.folder / "build/demo").exists()
    name = "dist/demo-1.0-py3-none-manylinux_2_17_aarch64.whl"
    assert other.files("dist") == {name: (project.folder / name).read_bytes()}
    other.scons("-j1", "wheel", "--cache-disable")
    assert len(project.files("dist")) == 2 and project.files("dist") == other.files("dist")
    assert project.files("build/aarch64/demo") == other.files("build/aarch64/demo")


def test_the_loader_names_both_families(project: Project) -> None:
    project.built("-j2", "wheel")
    program = "import demo\ntry:\n    demo.scale\nexcept ImportError as error:\n    print(error)"
    said = project.python(program, env={"PYTHONPATH": "build/aarch64"})
    text = "the package is for CPUs of the family aarch64, and this machine's is x86_64; install the wheel for x86_64"
    assert text in said


REFUSED = """
import os, numpy as np, sys
if os.fork():
    os.wait()
    sys.path.insert(0, "installed")
else:
    sys.path.insert(0, "build/aarch64")
    import demo
    if os.fork():
        os.wait()
    else:
        os.environ["KERNELWRIGHT_CPU_LEVEL"] = "x86-64"
    try:
        demo.scale(np.ones(4, "float16"))
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(not has_arm(), reason=NO_ARM)
def test_each_arch_runs_on_a_cpu_that_has_no_more_and_one_that_has_less_is_told_so(project: Project) -> None:
    """What zig links runs on the third."""
    project.built("-j2", "wheel")
    (wheel,) = (project.folder / "dist").glob("*_aarch64.whl")
    unpack(project.folder / "installed", wheel)
    project.scons("-j2", "ARCHS=neoverse-n1", "TARGETS=llvm")
    assert run_on_arm(CALLS, project.folder, "installed", "neoverse-n1") == "aarch64 True\n"
    said = run_on_arm(REFUSED + CALLS, project.folder, "", "armv8-a")
    assert said.endswith("aarch64 True\n")
    assert "this CPU supports armv8-a, and variant dtype-float16 was built for neoverse-n1 only" in said
    assert "KERNELWRIGHT_CPU_LEVEL is 'x86-64', expected armv8-a, neoverse-n1 or neoverse-v2" in said


@pytest.mark.skipif(not can_build_on_arm(), reason=NO_ARM)
def test_an_arm_machine_builds_and_checks_for_itself(tmp_path: Path) -> None:
    """It takes some minutes, because qemu runs TVM."""
    project = Project.of(tmp_path, '[tool.kernelwright]\ntargets = ["llvm"]\nworker_timeout = 900\n', add_one=ADD)
    compiler = f"HOST_COMPILER={project.shared}/bin/{Path(str(CROSS)).name}"
    said = build_on_arm(project.folder, "-Q", "check", compiler)
    assert "[ LOWER ] add_one/default neoverse-n1" in said and "[ CHECK ] add_one/default cpu" in said, said
    assert {*map(machine_of, project.folder.glob("build/kernels/demo/add_one/*.so"))} == {183}


OWN = """
from kernelwright import kernel
from kernelwright.cuda import Exported

@kernel(frontend="cuda", sources=["own.cu"], flags=["-DFACTOR=2"])
def twice():
    \"\"\"2 x\"\"\"
    return Exported("twice")
"""
SOURCE = """
#include <string>
#include <tvm/ffi/c_api.h>
__global__ void device(float *x) { x[threadIdx.x] *= FACTOR; }
extern "C" __attribute__((visibility("default"))) int __tvm_ffi_twice(
    void *, const TVMFFIAny *arguments, int32_t, TVMFFIAny *result) {
  float *memory = nullptr;
  if (cudaMalloc(&memory, 4 * 32) == cudaSuccess) device<<<1, 32>>>(memory);
  result->type_index = kTVMFFIInt;
  result->v_int64 = FACTOR * std::stoll(std::to_string(arguments[0].v_int64));
  return 0;
}
"""


@pytest.mark.skipif(not has_arm(), reason=NO_ARM)
def test_sources_with_host_code_of_their_own_are_compiled_for_each_family(project: Project) -> None:
    project.built("-j2", "wheel")  # the launchers are there
    settings = SETTINGS.replace("[tool.kernelwright]", '[tool.kernelwright]\ntargets = ["cuda"]')
    project.write("pyproject.toml", settings.replace(', "compute_80"', ""))
    (project.folder / "kernels/scale.py").unlink()
    project.write("kernels/own.py", OWN)
    project.write("kernels/own.cu", SOURCE)
    said = project.scons(ok=False).output
    assert "there is no libcudart_static.a for aarch64 beside nvcc, nor in cross_cuda" in said
    assert "--platform manylinux2014_aarch64 'nvidia-cuda-runtime==13.0.*'" in said
    run = project.scons("-j2", f"CROSS_CUDA={CUDA}")
    assert (run.labels["OBJECT"], run.labels["SOURCES"]) == (2, 2)
    assert project.scons(f"CROSS_CUDA={CUDA}").counts[0] == 0
    program = "import demo; print(demo.twice(21))"
    assert project.python(program) == "42\n"
    assert run_on_arm(program, project.folder, "build/aarch64", "armv8-a") == "42\n"
    zig = project.scons("twice", f"CROSS_CUDA={CUDA}", "CROSS_COMPILERS=aarch64=zig", ok=False).output
    assert "which Zig does not compile" in zig or not ZIG.is_dir()


CUTE = """
from kernelwright import kernel
from kernelwright.cutedsl import Program

@kernel(frontend="cutedsl")
def cute():
    return Program(None)
"""


def test_what_cannot_be_built_for_the_other_family_is_an_error(tmp_path: Path) -> None:
    project = Project.of(tmp_path, SETTINGS, cute=CUTE)
    said = project.scons(ok=False).output
    assert "kernels/cute.py:5 cute [discover]: it cannot be built for aarch64 here: NVIDIA's compiler makes" in said
    assert "build that package on such a machine, or leave archs of that family out here" in said


def without_cross(folder: Path) -> dict[str, str]:
    """Variables of a run that finds no compiler for aarch64."""
    folder.mkdir()
    for name in ("gcc", "g++", "cc", "ld", "as", "git", "sh"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("settings", "said", "remedy"),
    [
        (
            ["CROSS_COMPILERS=aarch64=arm-cc"],
            "cross_compilers names 'arm-cc' for aarch64, and there is no such program",
            "apt-get install gcc-aarch64-linux-gnu g++-aarch64-linux-gnu, or pip install 'kernelwright[cross]', or",
        ),
        (["CROSS_COMPILERS=aarch64=gcc"], "gcc compiles for x86_64-", "and not for aarch64"),
        (["CROSS_COMPILERS=riscv64=gcc"], "cross_compilers has 'riscv64=gcc'", "the families are x86_64, aarch64"),
        (["CROSS_COMPILERS=gcc"], "cross_compilers has 'gcc', expected <family>=<compiler>", "aarch64="),
        (
            ["CROSS_COMPILERS=aarch64=gcc,aarch64=zig"],
            "cross_compilers names 2 compilers for aarch64",
            "name one for each family of CPUs",
        ),
        (["ARCHS=aarch64"], "unknown arch 'aarch64'", "armv8-a, neoverse-n1, neoverse-v2"),
    ],
)
def test_a_compiler_that_is_not_there_is_an_error_with_its_remedy(
    project: Project, tmp_path: Path, settings: list[str], said: str, remedy: str
) -> None:
    run = project.scons("TARGETS=llvm", *settings, env=without_cross(tmp_path / "bin"), ok=False)
    assert said in run.output and remedy in run.output and "[settings]" in run.output, run.output
    assert not list(project.folder.glob("build/**/demo"))


def test_without_a_setting_gnu_s_compiler_is_taken_and_else_zig_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nothing, gnu = {"PATH": str(tmp_path)}, {"PATH": str(Path(str(CROSS)).parent)}
    for records in ([], [tmp_path / "ziglang-0.17.1.dist-info/RECORD"]):
        monkeypatch.setattr(cross_compiler, "zig_records", lambda found=records: found)
        assert find_cross_compiler("aarch64", "", gnu) == CROSS
        if records:
            assert find_cross_compiler("aarch64", "", nothing) == find_cross_compiler("aarch64", "zig", gnu) == "zig"
        for named in ("zig", "") if not records else ("arm-cc",):
            with pytest.raises(ToolchainError) as caught:
                find_cross_compiler("aarch64", named, nothing)
            assert "for aarch64, " in caught.value.message and "kernelwright[cross]" in str(caught.value.remedy)


@pytest.mark.parametrize("name", ["aarch64", "cu128"])
def test_a_package_cannot_have_the_name_of_a_folder_of_a_family_or_a_toolkit(tmp_path: Path, name: str) -> None:
    project = Project.of(tmp_path, SETTINGS, add_one=ADD)
    project.replace("SConstruct", '"demo"', f'"{name}"')
    assert "aarch64, cu128 and the like are folders of the build" in project.scons(ok=False).output


@pytest.mark.skipif(not ZIG.is_dir(), reason="needs the extra cross: pip install ziglang")
def test_zig_links_for_the_other_family_without_libraries_that_stand_in(project: Project) -> None:
    run = project.scons("-j2", "CROSS_COMPILERS=aarch64=zig", "TARGETS=llvm", "wheel")
    assert "GLIBC 2.28 (aarch64)" not in run.stages and len(project.files("dist")) == 2
    if has_arm():
        assert run_on_arm(CALLS, project.folder, "build/aarch64", "neoverse-v2") == "aarch64 True\n"


def test_a_wheel_of_the_build_backend_is_for_this_machine(project: Project, tmp_path: Path) -> None:
    project.built("-j2", "wheel")
    out = tmp_path / "out"
    out.mkdir()
    done = hook(project, f"build.build_wheel({str(out)!r})")
    assert done.returncode == 0, done.stdout
    assert [path.name for path in out.iterdir()] == ["demo-1.0-py3-none-manylinux_2_17_x86_64.whl"]
