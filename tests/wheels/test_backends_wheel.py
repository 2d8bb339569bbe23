"""Wheels of packages with other backends: their tags and requirements, and that they run where they are installed."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import SITE_SCONS, Project
from test_wheel import kernelwright, pip, pythons, wheel_of, write

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


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A wheel for the CPU with four backends."""
    project = write(tmp_path_factory.mktemp("both"))
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


def installed(wheel: Path, folder: Path, minor: int, *others: str) -> Path:
    """A new environment of Python 3.<minor> with the wheel and tvm-ffi, and nothing else but ``others``."""
    python = pythons()[minor - 10]
    if not python:
        pytest.skip(f"there is no Python 3.{minor} here")
    subprocess.run([python, "-m", "venv", folder / "home"], check=True)
    pip(folder / "home/bin/python", "install", "--no-deps", str(wheel), "apache-tvm-ffi>=0.1.13,<0.2", *others)
    return folder / "home/bin/python"


@pytest.mark.parametrize("minor", [11, 12, 13])
def test_one_extension_runs_on_every_python(both: Project, tmp_path: Path, minor: int) -> None:
    python = installed(wheel_of(both), tmp_path, minor)
    done = subprocess.run([python, "-I", "-c", RUN], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"(3, {minor})\n", done.stderr


def test_an_older_python_is_told(both: Project, tmp_path: Path) -> None:
    python = installed(wheel_of(both), tmp_path, 10, "numpy", "typing_extensions")
    code = "try:\n    from demo.backends.cython import scale\nexcept ImportError as error:\n    print(error)\n"
    code += "import numpy, demo\nprint(numpy.from_dlpack(demo.scale(numpy.ones(1, 'float32'))))"
    done = subprocess.run([python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "3.11" in done.stdout and done.stdout.endswith("[2.]\n"), done.stdout + done.stderr


def test_a_package_of_pure_python_is_for_any_machine(tmp_path: Path) -> None:
    """Only the backend nvrtc: no library, no compiler of host code, the device code in files."""
    project = write(tmp_path / "pure")
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


def test_a_package_with_libraries_and_images_says_nothing_of_the_images(tmp_path: Path) -> None:
    project = write(tmp_path / "mixed")
    run = project.scons("-j2", "ARCHS=sm_80", "BACKENDS=tvm_ffi,nvrtc", "wheel")
    assert "ignoring" not in run.output and "unknown" not in run.output
    assert (
        kernelwright("verify", "--entry-points", str(wheel_of(project))).stdout
        == f"{wheel_of(project).name}: all well\n"
    )


def test_an_image_of_another_arch_is_named(tmp_path: Path) -> None:
    project = write(tmp_path / "pure")
    project.scons("-j2", "TARGETS=cuda", "ARCHS=sm_80,sm_90a", "BACKENDS=nvrtc", "wheel")
    wheel = wheel_of(project)
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    images = {name: data for name, data in content.items() if name.endswith("/sm_80.cubin")}
    unpacked, out = tmp_path / "unpacked", tmp_path / "out"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    for name in images:
        (unpacked / name).write_bytes(content[name.replace("/sm_80.cubin", "/sm_90a.cubin")])
    out.mkdir()
    # It writes a RECORD that is right.
    subprocess.run(
        [sys.executable, "-m", "wheel", "pack", str(unpacked), "-d", str(out)], check=True, capture_output=True
    )
    (damaged,) = out.iterdir()
    done = kernelwright("verify", "--entry-points", str(damaged))
    assert done.returncode == 1 and "has code for sm_90, and the manifest says sm_80" in done.stdout, done.stdout


def test_pip_gives_the_same_pure_wheel(tmp_path: Path) -> None:
    project = write(tmp_path / "pure")
    project.replace(
        "pyproject.toml", 'package = "demo"\n', 'package = "demo"\ntargets = ["cuda"]\nbackends = ["nvrtc"]\n'
    )
    project.scons("-j2", "wheel")
    out = tmp_path / "out"
    path = {"PYTHONPATH": str(SITE_SCONS)}
    pip(sys.executable, "wheel", "--no-build-isolation", "--no-deps", "-w", str(out), str(project.folder), env=path)
    assert (out / wheel_of(project).name).read_bytes() == wheel_of(project).read_bytes()
