"""The kernels of this repository, built for aarch64: every variant agrees with its reference on every arch of that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from support.arm import CPUS, CROSS, NO_ARM, NO_CROSS, has_arm, run_on_arm
from support.project import ROOT, SCONSTRUCT, SITE_SCONS, Project

pytestmark = [
    pytest.mark.skipif(CROSS is None, reason=NO_CROSS),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="aarch64 is the other family"),
    pytest.mark.skipif(not has_arm(), reason=NO_ARM),
]

NOT_IN_NUMPY = "No module named 'torch'"
"""What is said of calls with arrays of bfloat16."""

CALLS = f"""
import runpy, sys
sys.argv = ["run_cases.py", "build/aarch64/demo", "tvm_ffi", "cases"]
runpy.run_path({str(ROOT / "tests/support/run_cases.py")!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The library with code for all archs, and the cases that it is called with."""
    project = Project(tmp_path_factory.mktemp("library"))
    shutil.copytree(ROOT / "kernels", project.folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", f'[tool.kernelwright]\ntargets = ["llvm"]\narchs = {[*CPUS]}\n')
    project.scons("-j2")
    command = [sys.executable, str(ROOT / "tests/gpu/make_cases.py"), "cases", "build/aarch64/demo"]
    subprocess.run(command, cwd=project.folder, env=os.environ | {"PYTHONPATH": str(SITE_SCONS)}, check=True)
    return project


@pytest.mark.parametrize("arch", CPUS)
def test_all_kernels_agree_with_their_references_on_a_cpu_of_each_arch(library: Project, arch: str) -> None:
    """It takes half a minute, because qemu runs NumPy's part as well."""
    *wrong, last = run_on_arm(CALLS, library.folder, "build/aarch64", arch).splitlines()
    assert [line for line in wrong if NOT_IN_NUMPY not in line] == []
    count, kernels = int(last.split()[0]), int(last.split()[3])
    assert kernels == len(list((ROOT / "kernels").glob("[!_]*.py"))) and count - len(wrong) >= 300
