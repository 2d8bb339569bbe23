"""The kernels of this repository's library, through every backend that has CPU code, against their references."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.kernel_library import BACKENDS, LIKE_OTHERS, build_kernel_library
from support.project import ROOT, SITE_SCONS


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The library built for all backends, and the folder of its cases."""
    project = tmp_path_factory.mktemp("library")
    build_kernel_library(project)
    package, folder = project / "build/demo", project / "cases"
    child("tests/gpu/make_cases.py", str(folder), str(package))
    return package, folder


def child(script: str, *arguments: str) -> str:
    """What a script prints; PyTorch and the libraries have pools of threads that would not get on in one process."""
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        env=os.environ | {"PYTHONPATH": str(SITE_SCONS), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_kernels_agree_with_their_references(cases: tuple[Path, Path], backend: str) -> None:
    if importlib.util.find_spec(BACKENDS[backend]) is None:
        pytest.skip(f"{BACKENDS[backend]} is not installed")
    *wrong, last = child("tests/scons/run_cases.py", str(cases[0]), backend, str(cases[1])).splitlines()
    assert wrong == []
    count, kernels = int(last.split()[0]), int(last.split()[3])
    expected = {path.stem for path in (ROOT / "kernels").glob("[!_]*.py")}
    assert kernels == len(expected - set(LIKE_OTHERS) if backend == "cython" else expected)
    assert len(list(cases[1].glob("*.npz"))) >= 90 and count >= (40 if backend == "cython" else 90)
