"""The examples build as they are; what they compute is that of their references; their wheels need no compiler."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulation import Emulation
from kernelwright.frontends.cutedsl.program import NEED as CUTEDSL
from kernelwright.frontends.tilelang.program import NEED as TILELANG
from kernelwright.frontends.triton.program import INTERPRETER
from kernelwright.frontends.triton.program import NEED as TRITON
from support.environments import NEEDED, environment
from support.project import ROOT, Project

EXAMPLES = ROOT / "examples"

CHECKED = (
    "softmax/dtype-float16",
    "matmul/dtype-float16_BLOCK_M-128_BLOCK_N-128_BLOCK_K-32_num_warps-4_num_stages-4",
    "attention/causal-False",
)


def copied(name: str, top: Path) -> Project:
    """A copy of an example."""
    shutil.copytree(EXAMPLES / name, top / name, ignore=shutil.ignore_patterns("build", "dist", ".scons*"))
    return Project(top / name)


def example(name: str, top: Path, *settings: str) -> tuple[Project, dict[str, int]]:
    """A copy of an example, built with some settings, with its wheel; and how often each stage ran."""
    project = copied(name, top)
    return project, project.scons("-j2", "wheel", *settings).labels


@pytest.fixture(scope="module")
def cuda_cpp(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The example in CUDA C++."""
    project, labels = example("cuda-cpp", tmp_path_factory.mktemp("examples"), "ARCHS=sm_90a")
    assert (labels["CUBIN"], labels["OBJECT"]) == (5, 3)
    return project


def run_installed(project: Project, home: Path, code: str) -> str:
    """What code prints in an environment with NumPy, tvm-ffi and the project's wheel, which is well."""
    (wheel,) = (project.folder / "dist").glob("*.whl")
    assert project.kernelwright("verify", wheel).splitlines()[0] == f"{wheel.name}: all well"
    environment(home, *NEEDED, wheel)
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "ALSO_FROM")}
    done = subprocess.run([home / "bin/python", "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def source_of(folder: Path, *parts: str) -> str:
    """The files of a source as one, without what they include."""
    return "".join(re.sub("^#.*$", "", (folder / part).read_text(), flags=re.M) for part in parts)


def module_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_layer_norm_has_an_instance_for_each_dtype(cuda_cpp: Project) -> None:
    manifest = json.loads((cuda_cpp.folder / "build/norm_kernels/manifest.json").read_text())
    assert [kernel["frontend"] for kernel in manifest["kernels"].values()] == ["cuda"] * 4
    kernel = manifest["kernels"]["layer_norm"]
    units = [unit for variant in kernel["variants"] for unit in variant["units"]]
    functions = {name for unit in units for used in unit["resources"].values() for name in used}
    types = sorted(re.fullmatch(r"_ZN6layers10layer_normI(\w+?)Li256EEEvPKT_.*", name)[1] for name in functions)  # type: ignore[index]
    assert types == ["13__nv_bfloat16", "6__half", "f"]


def test_layer_norm_agrees_with_its_reference(cuda_cpp: Project, tmp_path: Path) -> None:
    folder = cuda_cpp.folder / "build/kernels/norm_kernels/layer_norm/dtype-float32/cuda"
    code = source_of(cuda_cpp.folder / "kernels", "block_sum.cuh", "layer_norm.cu") + (folder / "device.cu").read_text()
    emulated = Emulation(json.loads((folder / "signature.json").read_text()), code, tmp_path / "layer_norm")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 700), np.float32)
    weight, bias = rng.standard_normal((2, 700), np.float32)
    values = {"x": x, "weight": weight, "bias": bias, "y": np.zeros_like(x), "epsilon": 1e-5}
    expected = module_of(cuda_cpp.folder / "kernels/layer_norm.py").layer_norm.reference_function(x, weight, bias, 1e-5)
    for backwards in (False, True):
        made = emulated(values, {"rows": 3, "columns": 700}, backwards)
        np.testing.assert_allclose(made["y"], expected, rtol=2e-4, atol=1e-5)


def test_column_means_agree_with_their_reference_for_rows_that_lie_apart(cuda_cpp: Project, tmp_path: Path) -> None:
    folder = cuda_cpp.folder / "build/kernels/norm_kernels/column_means/dtype-float32/cuda"
    code = source_of(cuda_cpp.folder / "kernels", "column_means.cu") + (folder / "device.cu").read_text()
    emulated = Emulation(json.loads((folder / "signature.json").read_text()), code, tmp_path / "column_means")
    memory = np.random.default_rng(0).standard_normal((21, 300), np.float32)
    x, weight = memory[:, :200], np.linspace(0, 1, 21, dtype=np.float32)
    reference = module_of(cuda_cpp.folder / "kernels/column_means.py").column_means.reference_function
    values = {"x": memory, "weight": weight, "y": np.zeros(200, np.float32)}
    made = emulated(values, {"rows": 21, "columns": 200, "stride": 300})
    np.testing.assert_allclose(made["y"], reference(x, weight), rtol=1e-4, atol=1e-5)


def test_its_wheel_is_well_and_its_package_loads_without_a_compiler(cuda_cpp: Project, tmp_path: Path) -> None:
    code = """
import numpy, norm_kernels
def refused(function, *arguments):
    try:
        return function(*arguments)
    except (TypeError, ValueError) as error:
        return str(error).splitlines()[0]
print(len(norm_kernels.layer_norm.variants), norm_kernels.rms_norm.devices)
print(norm_kernels.rms_norm_threads(5000), refused(norm_kernels.rms_norm_threads, 0), sep="|")
rows = numpy.ones((2, 64), "float32")
print(refused(norm_kernels.rms_norm, rows, rows[0], 1e-6))
"""
    assert run_installed(cuda_cpp, tmp_path / "env", code).splitlines() == [
        "3 frozenset({'cuda'})",
        "512|Check failed: (columns > 0) is false: a row has 0 elements, expected at least one",
        "kernel 'rms_norm': it cannot run on cpu: it was built for cuda (sm_90a) only",
    ]


def test_the_kernels_in_triton_agree_with_their_references_in_the_interpreter(tmp_path: Path) -> None:
    """It takes long: the interpreter runs a variant of each."""
    for module in ("triton", "torch"):
        pytest.importorskip(module, reason=f"Triton's interpreter needs both: {INTERPRETER.missing}")
    project = copied("triton", tmp_path)
    project.imported = ("support.torch_ready", *Project.imported)
    assert project.scons("-j2", "ARCHS=sm_90a").labels["LOWER"] == 12
    results = (f"build/check/attention_kernels/{name}.interpreted.json" for name in CHECKED)
    assert project.scons(*results, "-j2", "ARCHS=sm_90a").labels == {"CHECK": len(CHECKED)}


def test_one_wheel_has_kernels_of_all_languages(tmp_path: Path) -> None:
    if not (python := os.environ.get("KERNELWRIGHT_TILELANG_PYTHON")):
        pytest.skip(f"KERNELWRIGHT_TILELANG_PYTHON names no interpreter of an environment with {TILELANG.requirement}")
    for module, need in (("triton", TRITON), ("cutlass", CUTEDSL)):
        pytest.importorskip(module, reason=f"{module} is not installed: {need.install}")
    project, _ = example("mixed", tmp_path, f"TILELANG_PYTHON={python}")
    manifest = json.loads((project.folder / "build/mixed_kernels/manifest.json").read_text())
    units = {
        kernel.get("frontend", "tir"): unit
        for kernel in manifest["kernels"].values()
        for variant in kernel["variants"]
        for unit in variant["units"]
    }
    versions = {name: unit.get("tools", {}).get(name, {}).get("version") for name, unit in units.items()}
    assert versions.pop("tir") is None and versions.pop("cuda") is None
    assert set(versions) == {"cutedsl", "tilelang", "triton"} and all(versions.values())
    assert project.scons("wheel", f"TILELANG_PYTHON={python}").counts[0] == 0
    code = "import mixed_kernels as m; print(*(getattr(m, f'scale_{name}').devices for name in NAMES))"
    code = code.replace("NAMES", str(sorted(units)))
    assert run_installed(project, tmp_path / "env", code) == " ".join(["frozenset({'cuda'})"] * 5)
