"""Kernels in TileLang: real builds without a GPU, by the TileLang of an environment of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SCONSTRUCT, Project
from kernelwright.define.tilelang_program import REQUIREMENT, VERSION

PYTHON = os.environ.get("KERNELWRIGHT_TILELANG_PYTHON", "")
if not PYTHON:
    reason = f"KERNELWRIGHT_TILELANG_PYTHON names no interpreter of an environment with {REQUIREMENT}"
    pytest.skip(reason, allow_module_level=True)

KERNELS = Path(__file__).parent / "kernels"
SETTINGS = f"""\
[project]
name = "demo-kernels"
version = "1.0"

[tool.kernelwright]
package = "demo"
targets = ["cuda"]
archs = ["sm_90a"]
tilelang_python = "{PYTHON}"
"""
EVERYTHING = {"CC": 2, "CUBIN": 3, "GLIBC": 1, "LAUNCHER": 1, "LINK": 2, "LOWER": 3, "PACKAGE": 1, "PTX": 3, "WRAP": 2}
MATMUL = "build/kernels/demo/matmul/dtype-float16/cuda"
GEMM = "build/kernels/demo/gemm/default/cuda"


def new_project(folder: Path) -> Project:
    """The kernels of this folder, and the sources in TileLang that they name."""
    project = Project(folder)
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", SETTINGS)
    for file in KERNELS.rglob("*.py"):
        project.write(f"kernels/{file.relative_to(KERNELS).as_posix()}", file.read_text())
    return project


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project, which tests do not change."""
    project = new_project(tmp_path_factory.mktemp("tilelang"))
    assert project.scons("-j2").labels == EVERYTHING
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """A copy of the built project."""
    shutil.copytree(built.folder, tmp_path / "copy", symlinks=True)
    return Project(tmp_path / "copy")


def signature_of(project: Project, folder: str) -> dict:
    return json.loads((project.folder / folder / "signature.json").read_text())


# ---- what is built


def test_the_launch_is_that_of_tilelangs_own_host_code(built):
    signature = signature_of(built, GEMM)
    (launch,) = signature["launches"]
    assert launch["grid"] == ["(N + 63) // 64", "(M + 127) // 128", 1]
    assert launch["params"] == [
        *({"tensor_map": 0}, {"tensor_map": 1}, {"tensor": "C"}),
        *({"scalar": name, "dtype": "int32"} for name in "KMN"),
    ]
    first, second = signature["tensor_maps"]
    assert (first["tensor"], first["sizes"], first["strides"], first["box"]) == ("A", ["K", "M"], ["K * 2"], [32, 128])
    assert (second["tensor"], second["sizes"], second["strides"], second["box"]) == (
        "B",
        ["N", "K"],
        ["N * 2"],
        [64, 32],
    )
    assert {a["name"]: (a["output"], a["written"], a["alignment"]) for a in signature["arguments"]} == {
        **dict.fromkeys("AB", (False, False, 16)),
        "C": (True, True, 16),
    }


def test_flags_of_the_function_reach_the_compiler(built):
    script = (built.folder / MATMUL / "compile_sm_90a.sh").read_text()
    assert "-std=c++20" in script and "-DUSED=1 --use_fast_math" in script
    assert "use_fast_math" not in (built.folder / GEMM / "compile_sm_90a.sh").read_text()
    assert PYTHON not in script and "site-packages" not in script


def test_the_manifest_names_the_language_and_its_version(built):
    manifest = json.loads((built.folder / "build/demo/manifest.json").read_text())
    assert manifest["kernels"]["gemm"]["frontend"] == "tilelang"
    ((unit,),) = [variant["units"] for variant in manifest["kernels"]["gemm"]["variants"]]
    assert unit["tools"]["tilelang"]["version"] == VERSION


def test_another_folder_and_another_order_give_the_same_package(built, tmp_path):
    other = new_project(tmp_path)
    other.scons("-j1", "CACHE_DIR=")
    assert other.files("build/demo") == built.files("build/demo")
    texts = [*built.files("build/demo").values(), *built.files("build/kernels").values()]
    place = str(Path(PYTHON).parent.parent).encode()
    assert not [text for text in texts if str(built.folder).encode() in text or place in text]


def test_the_wheel_needs_nothing_of_tilelang(project):
    project.write("SConstruct", f'{SCONSTRUCT}env.KernelWheel("demo")\n')
    project.scons("wheel")
    (wheel,) = (project.folder / "dist").glob("*.whl")
    verified = subprocess.run([sys.executable, "-m", "kernelwright", "verify", wheel], capture_output=True, text=True)
    assert verified.stdout == f"{wheel.name}: all well\n"
    for library in (project.folder / "build/demo/_lib").glob("[gm]*.so"):
        assert library.stat().st_size < 100_000
        assert not re.search(rb"tilelang|tvm_runtime", library.read_bytes())


# ---- what is built again


def test_nothing_is_done_twice(project):
    assert project.scons().stages == []


def test_an_edit_of_a_macro_in_another_file_compiles_again_what_it_changes(project):
    project.replace("kernels/tile/blocks.py", "T.gemm(a, b, c)", "T.gemm(a, b, c)\n    T.gemm(a, b, c)")
    labels = {"CUBIN": 2, "LINK": 1, "LOWER": 3, "PACKAGE": 1, "PTX": 2}
    assert project.scons("-j2").labels == labels


def test_a_comment_lowers_again_and_stops_there(project):
    with (project.folder / "kernels/tile/matmul.py").open("a") as file:
        file.write("# a comment\n")
    assert project.scons("-j2").labels == {"LOWER": 3}


def test_an_edit_of_a_flag_of_a_function_compiles_it_again(project):
    project.replace("kernels/tile/matmul.py", "-DUSED=1", "-DUSED=2")
    run = project.scons("-j2")
    assert run.labels == {"LOWER": 3, "PTX": 2, "CUBIN": 2}
    assert "PTX gemm/default compute_90a" not in run.stages
