"""Wheels of packages with other backends: their tags and requirements, and that they run where they are installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.environments import linked, needed, site_of
from support.project import Project
from test_wheel import build_environment, copy_of, kernelwright, made_for, pip, wheel_of

RUN = """
import array, sys
from demo.backends.cython import scale
x = array.array("f", [1, 2, 3])
y = array.array("f", [0, 0, 0])
scale(x, y=y)
assert list(y) == [2, 4, 6], y
assert scale(x).__dlpack_device__() == (1, 0)
assert "tvm_ffi" not in sys.modules and "numpy" not in sys.modules and "torch" not in sys.modules
print(sys.version_info[:2])
"""


def metadata_of(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def made_again(factory: pytest.TempPathFactory, folder: Path) -> Project:
    """A copy of the project with what is lowered and compiled for devices; all that is made for a backend is not."""
    project = copy_of(made_for(factory), folder)
    for name in (".git", "dist", "build/demo", "build/wheels", "build/.kernelwright/cache"):
        shutil.rmtree(folder / name)
    for path in (folder / "build/kernels/demo").glob("*/*"):
        if path.is_file():
            path.unlink()
    return project


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A wheel for the CPU with four backends."""
    project = made_again(tmp_path_factory, tmp_path_factory.mktemp("both") / "copy")
    project.scons("-j2", "TARGETS=llvm", "BACKENDS=tvm_ffi,cython,torch,jax", "wheel")
    return project


def test_the_default_backend_is_required_and_the_others_are_extras(both: Project) -> None:
    metadata = metadata_of(wheel_of(both))
    required = re.findall(r"^Requires-Dist: (.*)$", metadata, re.M)
    assert re.findall(r"^Provides-Extra: (.*)$", metadata, re.M) == ["cython", "torch", "jax"]
    assert [line for line in required if "extra" not in line] == ["numpy", "apache-tvm-ffi<0.2,>=0.1.13"]
    assert 'torch>=2.4; extra == "torch"' in required
    assert any(line.startswith("jax-tvm-ffi") and 'extra == "jax"' in line for line in required)


def test_the_wheel_is_well(both: Project) -> None:
    wheel = wheel_of(both)
    assert re.search(r"-py3-none-manylinux_2_\d+_x86_64\.whl$", wheel.name)
    done = kernelwright("verify", "--entry-points", str(wheel))
    assert done.returncode == 0 and done.stdout == f"{wheel.name}: all well\n", done.stdout


def installed(wheel: Path, folder: Path, minor: int, factory: pytest.TempPathFactory, *others: str) -> Path:
    """Python 3.<minor> of a new environment with the wheel and tvm-ffi, and nothing else but ``others``."""
    home = linked(needed(factory, minor), folder / "home")
    site, kept = site_of(home), ("apache_tvm_ffi", "tvm_ffi", *others)
    for path in site.iterdir():
        if not path.name.startswith(kept):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return home / "bin/python"


@pytest.mark.parametrize("minor", [11, 12, 13])
def test_one_extension_runs_on_every_python(
    both: Project, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, minor: int
) -> None:
    python = installed(wheel_of(both), tmp_path, minor, tmp_path_factory)
    done = subprocess.run([python, "-I", "-c", RUN], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"(3, {minor})\n", done.stderr


def test_an_older_python_is_told(both: Project, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    python = installed(wheel_of(both), tmp_path, 10, tmp_path_factory, "numpy", "typing_extensions")
    code = "try:\n    from demo.backends.cython import scale\nexcept ImportError as error:\n    print(error)\n"
    code += "import numpy, demo\nprint(numpy.from_dlpack(demo.scale(numpy.ones(1, 'float32'))))"
    done = subprocess.run([python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "3.11" in done.stdout and done.stdout.endswith("[2.]\n"), done.stdout + done.stderr


def test_a_package_of_pure_python_is_for_any_machine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Only the backend nvrtc: no library, no compiler of host code, the device code in files."""
    project = made_again(tmp_path_factory, tmp_path / "pure")
    run = project.scons("-j2", "TARGETS=cuda", "ARCHS=sm_80,compute_80", "BACKENDS=nvrtc", "wheel")
    assert not {"CC", "LINK", "EXT"} & run.labels.keys()
    wheel = wheel_of(project)
    assert wheel.name == "demo_kernels-1.2rc1-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        described = archive.read("demo_kernels-1.2rc1.dist-info/WHEEL").decode()
    assert not [name for name in names if name.endswith(".so")]
    assert "demo/_images/scale/dtype-float32/cuda/sm_80.cubin" in names
    assert "Root-Is-Purelib: true" in described and "Tag: py3-none-any" in described
    assert "apache-tvm-ffi" not in metadata_of(wheel) and "cuda" in metadata_of(wheel)
    assert kernelwright("verify", "--entry-points", str(wheel)).returncode == 0
    code = "import sys, demo\nprint(dir(demo.backends), sorted(demo.scale.devices), 'tvm_ffi' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(wheel), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        cwd=project.folder / "build",
    )
    assert done.stdout == "['nvrtc'] ['cuda'] False\n", done.stderr


def test_a_package_with_libraries_and_images_says_nothing_of_the_images(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project = made_again(tmp_path_factory, tmp_path / "mixed")
    run = project.scons("-j2", "ARCHS=sm_80", "BACKENDS=tvm_ffi,nvrtc", "wheel")
    assert "ignoring" not in run.output and "unknown" not in run.output
    assert (
        kernelwright("verify", "--entry-points", str(wheel_of(project))).stdout
        == f"{wheel_of(project).name}: all well\n"
    )


def test_pip_gives_the_same_pure_wheel(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    project = made_again(tmp_path_factory, tmp_path / "pure")
    project.replace(
        "pyproject.toml", 'package = "demo"\n', 'package = "demo"\ntargets = ["cuda"]\nbackends = ["nvrtc"]\n'
    )
    project.scons("-j2", "wheel")
    out = tmp_path / "out"
    path = build_environment()
    pip("wheel", "--no-build-isolation", "--no-deps", "-w", str(out), str(project.folder), env=path)
    assert (out / wheel_of(project).name).read_bytes() == wheel_of(project).read_bytes()
