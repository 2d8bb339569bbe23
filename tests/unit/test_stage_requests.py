"""Each stage is made from its request and nothing else, and what decides in the request is in the fingerprint."""

from __future__ import annotations

import ast
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("SCons")
pytest.importorskip("Cython")

from kernelwright.compilers.nvcc import CompiledCode
from kernelwright.core.dependencies import EDITED
from kernelwright.core.errors import KernelwrightError, Where
from kernelwright.core.files import canonical_json
from kernelwright.core.pipeline import KINDS, LISTINGS
from kernelwright.core.request import canonical
from kernelwright.define.settings import Settings
from kernelwright.discover.selection import select
from kernelwright.library.files import UnitFiles
from kernelwright.processes.runner import ToolResult
from kernelwright.scons.graph import PackageGraph
from kernelwright.stages import commands, discover, link, package, wheel
from kernelwright.stages.stage import Stage
from kernelwright.stages.stage_run import StageRun
from kernelwright.toolchain.elsewhere import Elsewhere
from scons_tree import GEMM, NVRTC, TOOLS, Inputs, new_graph
from support.moments import wait_for
from support.project import ROOT
from support.variations import variations

BASE = Inputs(Settings(package="demo", backends=("tvm_ffi", "cython"), compress="size"), listings=LISTINGS)
TUNED = replace(GEMM, pass_configs={"tirx.disable_vectorize": True})
CUDA = replace(GEMM, frontend="cuda", targets=("cuda",), includes=("headers", "package:kernelwright/library"))
OWN = replace(CUDA, sources=("own.cu", "package:kernelwright/library/own.cu"), configs=({},), slugs=("default",))

TREES: dict[str, Inputs] = {
    "TIR": replace(BASE, kernel=TUNED, settings=replace(BASE.settings, dump_ir="yes")),
    "NVRTC": replace(BASE, settings=replace(BASE.settings, cuda_compiler="nvrtc"), tools=replace(TOOLS, nvrtc=NVRTC)),
    "no library": replace(
        BASE, settings=replace(BASE.settings, backends=("nvrtc",), targets=("cuda",), compress="none")
    ),
    "CUDA C++": replace(BASE, kernel=CUDA),
    "host code of its own": replace(BASE, kernel=OWN, settings=replace(BASE.settings, backends=("tvm_ffi",))),
    "Triton": replace(BASE, kernel=replace(GEMM, frontend="triton", targets=("cuda",), per_arch=True)),
    "TileLang": replace(BASE, kernel=replace(GEMM, frontend="tilelang", targets=("cuda",))),
    "CuTe DSL": replace(BASE, kernel=replace(GEMM, frontend="cutedsl", targets=("cuda",))),
}
"""A package with one kernel for each way to compile."""

FRONT_ENDS = ("triton", "tilelang", "cutedsl")


@pytest.fixture
def stages_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Stage]]:
    """All stages of a package, and those that other commands would add."""

    def made(tree: str) -> list[Stage]:
        inputs = TREES[tree]
        monkeypatch.setattr(link, "cuda_runtime", lambda *given: __file__)
        graph = new_graph(tmp_path, monkeypatch, inputs)
        tool = Elsewhere("1.0", "a tool", "/opt/python", "/opt/site-packages/tool")
        graph.tools.__dict__.update(of_front_ends=dict.fromkeys(FRONT_ENDS, tool))
        graph.__dict__["has_gpu"] = tree != "Triton"
        graph.add_kernel(inputs.definition, select(inputs.kernel, inputs.settings))
        return [*graph.made, *others(graph)]

    return made


def others(graph: PackageGraph) -> Iterator[Stage]:
    """Stages that only some commands have."""
    yield package.Assembly(graph.context, [], {}, graph.made, "1.0").stage()
    yield commands.make(graph.run.top, [{"file": "a.c"}])
    yield discover.make(graph.context, 1, KernelwrightError("it is wrong", Where()))
    (graph.run.top / "pyproject.toml").write_text('[project]\nname = "demo"\nversion = "1.0"\n')
    yield wheel.make(graph.context, [], "manifest.json")


@pytest.mark.parametrize("tree", TREES)
def test_a_field_of_a_request_is_in_the_fingerprint_unless_it_is_marked(
    tree: str, stages_of: Callable[[str], list[Stage]]
) -> None:
    wrong = set()
    for stage in stages_of(tree):
        for name, request, decides in variations(stage.request):
            other = replace(stage, request=request)
            if (other.fingerprint != stage.fingerprint) != decides:
                wrong.add(f"{stage.label}{name}")
            assert (other.cache_key(str) != stage.cache_key(str)) == decides
    assert not wrong


def test_these_packages_have_every_kind_of_stage(stages_of: Callable[[str], list[Stage]]) -> None:
    kinds = {(stage.label, type(stage.request).__name__) for tree in TREES for stage in stages_of(tree)}
    with_nvrtc = {(label, "NvrtcCompilation") for label in ("CUBIN", "PTX")}
    assert kinds - with_nvrtc == {(label, kind.request) for label, kind in KINDS.items() if kind.module}


@pytest.mark.parametrize("tree", TREES)
def test_no_path_of_this_machine_is_in_a_request(
    tree: str, stages_of: Callable[[str], list[Stage]], tmp_path: Path
) -> None:
    for stage in stages_of(tree):
        text = canonical_json(canonical(stage.request))
        for path in (str(tmp_path), *map(str, (ROOT, Path(sys.prefix))), "/opt/", "/cuda/", "/usr/"):
            assert path not in text, f"{stage.label}: {text}"


@pytest.mark.parametrize("tree", TREES)
def test_what_makes_the_outputs_is_a_function_that_knows_its_arguments_only(
    tree: str, stages_of: Callable[[str], list[Stage]]
) -> None:
    for stage in stages_of(tree):
        make: Any = stage.make
        assert isinstance(make, FunctionType) and make.__closure__ is None and not make.__defaults__, stage.label
        assert make.__qualname__ == make.__name__ and make.__module__.startswith("kernelwright.stages."), stage.label
        assert list(inspect.signature(make).parameters) == ["request", "scratch", "stage"], stage.label
        assert type(stage.request).__dataclass_params__.frozen


@pytest.mark.parametrize(
    ("tree", "label", "compiler"),
    [
        ("host code of its own", "OBJECT", "stages.object.compile_object"),
        ("CUDA C++", "PTX", "stages.device.compile_by_steps"),
        ("NVRTC", "CUBIN", "compilers.nvrtc.compile_with_nvrtc"),
    ],
)
def test_what_is_edited_while_a_compiler_runs_is_no_known_file(
    tree: str,
    label: str,
    compiler: str,
    stages_of: Callable[[str], list[Stage]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    header, run = tmp_path / "a.h", SimpleNamespace(top=tmp_path, state=tmp_path, compilers=None)

    def compiled(*given: Any, **named: Any) -> CompiledCode:
        now = time.time_ns()  # which the clock of files may be behind
        wait_for(
            lambda: header.write_text("new") and header.stat().st_ctime_ns > now, "the clock of files stands still"
        )
        return CompiledCode(ToolResult("", 0.0, 0.0, 0), ("a.h",))

    stage = next(stage for stage in stages_of(tree) if stage.label == label)
    monkeypatch.setattr(f"kernelwright.{compiler}", compiled)
    stage.note = dict
    more: dict[str, Any] = {"path": __file__} if label == "OBJECT" else {}
    stage.make(replace(stage.request, folders={}, **more), tmp_path, StageRun(run, stage))  # type: ignore[arg-type]
    assert stage.later["a.h"] == EDITED


REPORTS = {"state", "note", "note_once", "require_folders", "top"}
"""What functions of stages use of the run: it says where things are kept, and shows lines."""


def test_functions_of_stages_use_nothing_of_the_run_that_decides() -> None:
    folder, used = Path(inspect.getfile(commands)).parent, set()
    for module in folder.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "stage.run":
                used.add(node.attr)
    assert used <= REPORTS


def test_a_worker_is_asked_what_the_stage_is_known_by(
    stages_of: Callable[[str], list[Stage]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """But for what decides nothing: where outputs are to be, and what the sources say."""
    monkeypatch.setattr(UnitFiles, "read_signature", lambda unit: {"arguments": []})
    asked = []

    def ask(request: Any, where: Where) -> dict[str, Any]:
        asked.append(canonical(request))
        return {"dependencies": {}}

    stages = [stage for stage in stages_of("TIR") if stage.ask and stage.label in ("LOWER", "CHECK", "IR")]
    for number, stage in enumerate(stages):
        stage.ask, stage.note = ask, None
        scratch = tmp_path / str(number)
        scratch.mkdir()
        stage.make(stage.request, scratch, StageRun(SimpleNamespace(partial=None, require_folders=list), stage))
    assert asked == [canonical(stage.request.asked) for stage in stages] and len(asked) > 8
