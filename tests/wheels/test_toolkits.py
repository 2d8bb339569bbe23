"""Packages of CUDA 12 and 13 in one run: names, archs, drivers, and what is built once for both."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from kernelwright.core.errors import ToolchainError
from kernelwright.toolchain.nvrtc import find_nvrtc
from support.project import Project, once
from support.wheels import (
    FILES,
    Machine,
    commit,
    driver,
    inside,
    machine,
    metadata_of,
    require_well,
    unpack,
    without_dist,
    write,
)

__all__ = ["driver", "machine"]

TWO = 'package = "demo"\ncuda = ["13.0", "nvrtc-12.8"]\n'
ARCHS = '"sm_70", "sm_80", "sm_110", "compute_80"]'
OLD, NEW = "1.2rc1+cu128", "1.2rc1+cu130"


def why_not() -> str:
    try:
        find_nvrtc(dict(os.environ), "12.8")
    except ToolchainError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"the extra nvrtc12 is not installed: {why_not()}")


def project_in(folder: Path) -> Project:
    project = write(folder)
    project.replace("pyproject.toml", 'package = "demo"\n', TWO)
    project.replace("kernels/scale.py", ', "float16"', "")
    project.replace("pyproject.toml", '"sm_80", "sm_90a", "compute_80"]', ARCHS)
    shutil.rmtree(folder / ".git")
    commit(folder, *FILES)
    return project


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The built project, which tests must not change, and what its build printed."""

    def build(folder: Path) -> None:
        project = project_in(folder / "project")
        (folder / "output").write_text(project.scons("-j2", "wheel").output)

    return Project(once(tmp_path_factory, "wheels-of-two-toolkits", build) / "project")


def wheels_of(project: Project) -> dict[str, Path]:
    return {path.name.split("-")[1]: path for path in (project.folder / "dist").iterdir()}


def test_each_toolkit_has_a_wheel_of_its_own_name_with_the_archs_that_it_knows(made: Project) -> None:
    wheels = wheels_of(made)
    assert sorted(wheels) == [OLD, NEW]
    require_well(*wheels.values())
    said = made.kernelwright("verify", "--entry-points", *sorted(wheels.values())).splitlines()
    old = "  driver: 525.60.13 (CUDA 12.0) or newer for sm_70, sm_80; 570.26 (CUDA 12.8) or newer for compute_80"
    new = "  driver: 580.65.06 (CUDA 13.0) or newer for sm_80, compute_80, sm_110"
    assert [line for line in said if "driver" in line] == [old, new]
    for version, number in ((OLD, "525.60.13"), (NEW, "580.65.06")):
        lines = metadata_of(wheels[version]).splitlines()
        assert f"Version: {version}" in lines and f"Requires-External: nvidia-driver (>={number})" in lines


def test_what_is_for_the_processor_is_made_once(made: Project) -> None:
    output = (made.folder.parent / "output").read_text()
    lowered = re.findall(r"^\[ (LOWER|CACHED) \] (?:LOWER )?(\w+/\S+ x86-64-v3)$", output, re.M)
    assert sorted(lowered) == sorted(
        (how, what) for how in ("LOWER", "CACHED") for what in dict(map(reversed, lowered))
    )
    assert len(lowered) == 4
    cubins = [len(re.findall(rf"^\[ CUBIN \] .* {label}$", output, re.M)) for label in ("cu128", "cu130")]
    assert cubins == [4, 4]


def test_a_second_run_makes_nothing(made: Project, tmp_path: Path) -> None:
    project = made.copied(tmp_path / "copy")
    run = project.scons("wheel")
    assert run.stages == [] and wheels_of(project).keys() == wheels_of(made).keys()
    project.scons("-c")
    assert not (project.folder / "build/cu128/demo").exists() and not (project.folder / "build/demo").exists()


def test_with_an_older_driver_the_wheel_for_it_runs_and_the_other_one_names_both_versions(
    made: Project, tmp_path: Path, machine: Machine
) -> None:
    folders = {version: unpack(tmp_path / version, wheel) for version, wheel in wheels_of(made).items()}
    assert machine.call(folders[OLD], capability=80, STANDIN_VERSION="12040") == "supported: True\n"
    assert machine.loaded == ["cubin sm_80"] * len(machine.loaded) and machine.loaded
    said = machine.call(folders[NEW], capability=80, STANDIN_VERSION="12040")
    assert "needs a driver for CUDA 13.0 or newer; this one is for CUDA 12.4" in said
    assert "remedy: install an NVIDIA driver for CUDA 13.0 (580 or newer)" in said
    files = inside(wheels_of(made)[OLD])
    assert not any(name.startswith("demo/_images") for name in files)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "nvrtc-12.8",
            "nvcc-12.4",
            ["pyproject.toml [settings]: no nvcc of CUDA 12.4 (there is that of 13.0)", 'cuda = ["nvrtc-12.4", ...]'],
        ),
        (
            "nvrtc-12.8",
            "nvrtc-12.9",
            ["pyproject.toml [settings]: no NVRTC of CUDA 12.9", "'nvidia-cuda-nvrtc-cu12==12.9.*'"],
        ),
        ("nvrtc-12.8", "nvrtc-13.0", ["cuda has two toolkits of CUDA 13.0: 13.0 and nvrtc-13.0"]),
        (
            TWO,
            f'{TWO}cuda_label = "no"\n',
            ["pyproject.toml [settings]: cuda_label = 'no' would give the wheels of 13.0 and nvrtc-12.8 one name"],
        ),
        ("nvrtc-12.8", "12", ["cuda has '12'", "write releases such as 13.0, or nvrtc-12.8"]),
        (
            '"sm_70", ',
            '"sm_61f", ',
            [
                "pyproject.toml [settings]: no toolkit of cuda = 13.0, nvrtc-12.8 knows the arch 'sm_61f'",
                "CUDA 12.8 knows",
            ],
        ),
        (
            ARCHS,
            '"sm_110"]',
            [
                "pyproject.toml [settings]: CUDA 12.8 knows none of the archs sm_110",
                "remove it from cuda, or add an arch",
            ],
        ),
    ],
)
def test_a_mistake_is_an_error_that_says_what_to_do(
    made: Project, tmp_path: Path, old: str, new: str, said: list[str]
) -> None:
    project = made.copied(tmp_path / "copy")
    project.replace("pyproject.toml", old, new)
    run = project.scons("wheel", ok=False)
    assert run.status == 2 and "[settings]: " in run.output and all(text in run.output for text in said), run.output
    assert "remedy: " in run.output and run.stages == []


def test_a_kernel_for_an_arch_that_one_toolkit_lacks_is_built_by_the_other_only(made: Project, tmp_path: Path) -> None:
    project = made.copied(tmp_path / "copy")
    project.replace(
        "kernels/add_one.py", '@kernel(outputs=["y"]', '@kernel(outputs=["y"], targets=["cuda"], archs=["sm_110"]'
    )
    output = project.scons("-j2").output
    assert "kernelwright: add_one is not built for cuda: the package has none of its archs" in output
    assert (project.folder / "build/demo/_lib/add_one.so").exists()
    assert not (project.folder / "build/cu128/demo/_lib/add_one.so").exists()


def test_one_wheel_has_code_of_both_and_the_driver_decides(made: Project, tmp_path: Path, machine: Machine) -> None:
    project = without_dist(made, tmp_path / "copy")
    output = project.scons("-j2", "wheel", "CUDA=nvrtc-12.8,13.0", "CUDA_WHEELS=one").output
    cubins = r"^\[ (?:CUBIN|CACHED) \] (?:CUBIN )?\w+/\S+ {} (cu\d+)$"
    by = {arch: {*re.findall(cubins.format(arch), output, re.M)} for arch in ("sm_70", "sm_80")}
    assert by == {"sm_70": {"cu128"}, "sm_80": {"cu128"}}, "that for sm_110 is there: the main package has it"
    ((version, wheel),) = wheels_of(project).items()
    assert version == "1.2rc1+cu128cu130"
    said = project.kernelwright("verify", "--entry-points", wheel)
    least = "525.60.13 (CUDA 12.0) or newer for sm_70, sm_80; 570.26 (CUDA 12.8) or newer for compute_80; "
    assert f"  driver: {least}580.65.06 (CUDA 13.0) or newer for sm_110\n" in said
    folder = unpack(tmp_path / "installed", wheel)
    assert machine.call(folder, capability=80, STANDIN_VERSION="12000") == "supported: True\n"
    assert machine.call(folder, capability=110, STANDIN_VERSION="12080") == "supported: True\n"
    assert machine.call(folder, capability=110, STANDIN_VERSION="13000") == "supported: True\n"
    assert list(dict.fromkeys(machine.loaded)) == ["cubin sm_80", "ptx compute_80", "cubin sm_110"]
    assert project.scons("wheel", "CUDA=nvrtc-12.8,13.0", "CUDA_WHEELS=one").stages == []
