"""Wheels of packages with other backends: their tags and requirements, and that they run where they are installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.environments import linked, needed, site_of
from support.project import Project
from support.wheels import built_wheel, inside, metadata_of, pip_wheel, require_well, unpack, wheel_of

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


def made_again(factory: pytest.TempPathFactory, folder: Path) -> Project:
    """A copy of the project with what is lowered and compiled for devices; all that is made for a backend is not."""
    project = built_wheel(factory).copied(folder)
    for name in (".git", "dist", "build/demo", "build/wheels", "build/.kernelwright/cache"):
        shutil.rmtree(folder / name)
    for path in (folder / "build/kernels/demo").glob("*/*"):
        if path.is_file():
            path.unlink()
    return project


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel for the CPU with four backends."""
    project = made_again(tmp_path_factory, tmp_path_factory.mktemp("both") / "copy")
    project.scons("-j2", "TARGETS=llvm", "BACKENDS=tvm_ffi,cython,torch,jax", "wheel")
    return wheel_of(project)


def test_the_default_backend_is_required_and_the_others_are_extras(both: Path) -> None:
    required = re.findall(r"^Requires-Dist: (.*)$", metadata_of(both), re.M)
    assert re.findall(r"^Provides-Extra: (.*)$", metadata_of(both), re.M) == ["cython", "torch", "jax"]
    assert [line for line in required if "extra" not in line] == ["numpy", "apache-tvm-ffi<0.2,>=0.1.13"]
    assert 'torch>=2.4; extra == "torch"' in required
    assert any(line.startswith("jax-tvm-ffi") and 'extra == "jax"' in line for line in required)
    assert re.search(r"-py3-none-manylinux_2_\d+_x86_64\.whl$", both.name)
    require_well(both)


@pytest.mark.parametrize("minor", [11, 13])
def test_one_extension_runs_on_old_and_new_pythons(both, tmp_path, tmp_path_factory, minor):
    home = linked(needed(tmp_path_factory, minor), tmp_path / "home")
    for path in site_of(home).iterdir():
        if not path.name.startswith(("apache_tvm_ffi", "tvm_ffi")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    unpack(site_of(home), both)
    done = subprocess.run([home / "bin/python", "-I", "-c", RUN], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"(3, {minor})\n", done.stderr


def test_a_package_of_pure_python_is_for_any_machine_also_if_pip_makes_it(tmp_path, tmp_path_factory):
    """Only the backend cuda_core: no library, no compiler of host code, the device code in files."""
    project = made_again(tmp_path_factory, tmp_path / "pure")
    settings = 'package = "demo"\ntargets = ["cuda"]\nbackends = ["cuda_core"]\n'
    project.replace("pyproject.toml", 'package = "demo"\n', settings)
    assert not {"CC", "LINK", "EXT"} & project.scons("-j2", "wheel").labels.keys()
    wheel, files = wheel_of(project), inside(wheel_of(project))
    assert wheel.name == "demo_kernels-1.2rc1-py3-none-any.whl"
    assert not [name for name in files if name.endswith(".so")]
    assert "demo/_images/scale/dtype-float32/cuda/sm_80.cubin" in files
    described = files["demo_kernels-1.2rc1.dist-info/WHEEL"].decode()
    assert "Root-Is-Purelib: true" in described and "Tag: py3-none-any" in described
    assert "apache-tvm-ffi" not in metadata_of(wheel) and "cuda" in metadata_of(wheel)
    require_well(wheel)
    code = "import sys, demo\nprint(dir(demo.backends), sorted(demo.scale.devices), 'tvm_ffi' in sys.modules)"
    variables = {"PYTHONPATH": str(unpack(tmp_path / "installed", wheel)), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "['cuda_core'] ['cuda'] False\n", done.stderr
    assert pip_wheel(project, tmp_path / "out").read_bytes() == wheel.read_bytes()


def test_a_package_with_libraries_and_images_says_nothing_of_the_images(tmp_path, tmp_path_factory):
    project = made_again(tmp_path_factory, tmp_path / "mixed")
    run = project.scons("-j2", "ARCHS=sm_80", "BACKENDS=tvm_ffi,cuda_core", "wheel")
    assert "ignoring" not in run.output and "unknown" not in run.output
    require_well(wheel_of(project))
