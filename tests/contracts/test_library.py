"""The kernels of this repository agree with their references on CPUs of both families, through every backend."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.arm import CROSS, NO_ARM, NO_CROSS, has_arm, run_on_arm
from support.contract import BACKENDS
from support.kernel_library import installed_backends, library_project
from support.project import ROOT, SITE_SCONS, Project, Run

KERNELS = {path.stem for path in (ROOT / "kernels").glob("[!_]*.py")}

IN_CYTHON = {"quantize_int8", "top_p_sampling"}
"""Kernels that have an extension, which takes two seconds: the arguments of others are of the same kinds."""

ARM = ("armv8-a", "neoverse-v2")
"""Those CPUs of `support.arm.CPUS` that have the least and the most instructions."""

NOT_IN_NUMPY = "No module named 'torch'"
"""What is said of calls with arrays of bfloat16 where there is only NumPy."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Run]:
    """The library for all backends, checked in strict mode: nothing of it reads what it does not declare."""
    project = library_project(tmp_path_factory.mktemp("library"))
    backends = installed_backends()
    others = [name for name in backends if name != "cython"]
    for name in KERNELS - IN_CYTHON:
        project.replace(f"kernels/{name}.py", "@kernel(", f"@kernel(backends={others}, ")
    return project, project.scons("-j2", "--strict", "build/demo", "check", f"BACKENDS={','.join(backends)}")


@pytest.fixture(scope="module")
def cases(library: tuple[Project, Run]) -> Path:
    folder = library[0].folder / "cases"
    child("tests/gpu/make_cases.py", str(folder), str(library[0].folder / "build/demo"))
    assert len(list(folder.glob("*.npz"))) >= 60
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
    assert run.labels["CHECK"] == len(variants) >= 30
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
    assert kernels == len(IN_CYTHON if backend == "cython" else KERNELS)
    assert count >= (10 if backend == "cython" else 60)


@pytest.fixture(scope="module")
def on_arm(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = library_project(tmp_path_factory.mktemp("on_arm"), f"archs = {[*ARM]}\n")
    project.scons("-j2")
    return project


@pytest.mark.skipif(CROSS is None, reason=NO_CROSS)
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="aarch64 is the other family")
@pytest.mark.skipif(not has_arm(), reason=NO_ARM)
@pytest.mark.parametrize("arch", ARM)
def test_all_kernels_agree_with_their_references_on_a_cpu_of_each_arch(on_arm: Project, cases: Path, arch: str) -> None:
    script, arguments = str(ROOT / "tests/support/run_cases.py"), ["", "build/aarch64/demo", "tvm_ffi", str(cases)]
    calls = f"import runpy, sys; sys.argv = {arguments}; runpy.run_path({script!r}, run_name='__main__')"
    *wrong, last = run_on_arm(calls, on_arm.folder, "build/aarch64", arch).splitlines()
    assert [line for line in wrong if NOT_IN_NUMPY not in line] == []
    count, kernels = int(last.split()[0]), int(last.split()[3])
    assert kernels == len(KERNELS) and count - len(wrong) >= 60
