"""The kernels of this repository: every variant agrees with its reference, through every backend that has CPU code."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.contract import BACKENDS
from support.kernel_library import LIKE_OTHERS, build_kernel_library
from support.project import ROOT, SITE_SCONS, Project, Run

KERNELS = {path.stem for path in (ROOT / "kernels").glob("[!_]*.py")}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Run]:
    """The library, built for all backends and checked."""
    project = Project(tmp_path_factory.mktemp("library"))
    return project, build_kernel_library(project.folder)


@pytest.fixture(scope="module")
def cases(library: tuple[Project, Run]) -> Path:
    folder = library[0].folder / "cases"
    child("tests/gpu/make_cases.py", str(folder), str(library[0].folder / "build/demo"))
    return folder


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


def test_every_variant_is_checked_against_its_reference_at_awkward_sizes(library: tuple[Project, Run]) -> None:
    project, run = library
    kernels = json.loads((project.folder / "build/demo/manifest.json").read_text())["kernels"]
    assert len(KERNELS) >= 16 and kernels.keys() == KERNELS
    variants = [(name, v["slug"]) for name, kernel in kernels.items() for v in kernel["variants"]]
    assert run.labels["CHECK"] == len(variants) >= 40
    for name, slug in variants:
        result = json.loads((project.folder / f"build/check/demo/{name}/{slug}.cpu.json").read_text())
        sizes = {size for case in result["sizes"] for size in case.values()}
        assert {1, 7}.issubset(sizes) or not result["sizes"][0], (name, slug, sizes)
    assert all(entry["doc"].strip() for entry in kernels.values())


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_kernels_agree_with_their_references(library: tuple[Project, Run], cases: Path, backend: str) -> None:
    if importlib.util.find_spec(BACKENDS[backend].needs) is None:
        pytest.skip(f"{BACKENDS[backend].needs} is not installed")
    package = str(library[0].folder / "build/demo")
    *wrong, last = child("tests/support/run_cases.py", package, backend, str(cases)).splitlines()
    assert wrong == []
    count, kernels = int(last.split()[0]), int(last.split()[3])
    assert kernels == len(KERNELS - set(LIKE_OTHERS) if backend == "cython" else KERNELS)
    assert len(list(cases.glob("*.npz"))) >= 90 and count >= (40 if backend == "cython" else 90)
