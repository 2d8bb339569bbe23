"""What ``kernelwright import`` writes is built as it is, with the real compilers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernelwright.cli import main
from support.imported_source import HEADER, KERNELS, SOURCE
from support.project import Project

pytest.importorskip("clang.cindex", reason="libclang is not installed")


def test_the_definitions_of_a_source_are_built_as_they_are(project: Project) -> None:
    for name in ("scale", "add_one"):
        (project.folder / f"kernels/{name}.py").unlink()
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80"]\n')
    project.write("kernels/twice.cuh", HEADER)
    source = project.write("kernels/many.cu", SOURCE)
    assert main(["import", str(source)]) == 0
    run = project.scons("-j2")
    assert run.labels["LOWER"] == run.labels["CUBIN"] == len(KERNELS)
    manifest = json.loads(Path(project.folder, "build/demo/manifest.json").read_text())
    assert sorted(manifest["kernels"]) == sorted(KERNELS)
