"""What decides is in the key of what it decides, for each stage and both drivers, and nothing else is.

A stage has a signature, by which it runs again, and a key in the build cache. A kernel that is compiled on demand has
the key of its job. All of them are made of requests, which are dataclasses.
"""

from __future__ import annotations

import ast
import inspect
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("SCons")
pytest.importorskip("Cython")

from kernelwright import backends, frontends
from kernelwright.backends import cython
from kernelwright.backends.files import UnitFiles
from kernelwright.core.converter import to_json
from kernelwright.core.dependencies import EDITED
from kernelwright.core.errors import KernelwrightError, Where
from kernelwright.core.files import canonical_json, sha256_of
from kernelwright.core.need import Need
from kernelwright.core.pipeline import KINDS, LISTINGS
from kernelwright.core.request import ASIDE, canonical, deciding, digest
from kernelwright.core.signature import UNKNOWN
from kernelwright.define.configs import slugs
from kernelwright.define.own_sources import EVERY, OwnSource
from kernelwright.define.record import DefinitionRecord
from kernelwright.define.settings import Settings, affecting
from kernelwright.define.space import Choice, variants_of
from kernelwright.define.tuning import Rule, TableDevice, TableFile, TunedConfig
from kernelwright.frontends.torch.front_end import TorchSources
from kernelwright.ondemand import build
from kernelwright.ondemand.build import Job, MadeWith, key_of_made, read_by
from kernelwright.ondemand.origin import alike_in_c
from kernelwright.package.device_code import ELF
from kernelwright.processes.protocol import CheckResult, LowerResult
from kernelwright.processes.tools import ToolResult
from kernelwright.runtime.tables import DeviceTable, Rules
from kernelwright.scons.ahead import Ahead
from kernelwright.scons.graph import PackageGraph
from kernelwright.stages import (
    cc,
    commands,
    context,
    discover,
    launcher,
    link,
    package,
    sources,
    torch_library,
    wheel,
)
from kernelwright.stages import stage as stage_module
from kernelwright.stages.check import not_checked
from kernelwright.stages.code import code_digest
from kernelwright.stages.selection import KernelSelection, select
from kernelwright.stages.stage import Stage
from kernelwright.stages.stage_run import StageRun
from kernelwright.stages.tuned import choose
from kernelwright.state.entry import entry_key
from kernelwright.toolchain.distribution import Distribution
from kernelwright.toolchain.elsewhere import Elsewhere
from kernelwright.toolchain.nvcc_run import CompiledCode
from kernelwright.toolchain.pytorch import Torch
from support.moments import wait_for
from support.project import ROOT
from support.scons_tree import ARCHS, FILE, GEMM, NVRTC, TOOLS, Inputs, graph_of, new_graph, stages_of
from support.variations import variations

# --- Requests: what decides in a dataclass is in its canonical form


@dataclass(frozen=True)
class Tool:
    identity: str
    path: str = field(metadata=ASIDE)


@dataclass(frozen=True)
class OtherTool(Tool):
    """Says the same, and is used in another way."""


@dataclass(frozen=True)
class Compile:
    source: str
    tool: Tool
    flags: tuple[str, ...] = ()
    names: Mapping[str, Any] = field(default_factory=dict)
    scratch: Path = field(default=Path("/nowhere"), metadata=ASIDE)


GIVEN = Compile("a.cu", Tool("nvcc 13", "/usr/bin/nvcc"), ("-O3",), {"b": 1, "a": frozenset({"y", "x"})})


@pytest.mark.parametrize(
    ("changed", "decides"),
    [
        ({"source": "b.cu"}, True),
        ({"tool": Tool("nvcc 12", "/usr/bin/nvcc")}, True),
        ({"tool": OtherTool("nvcc 13", "/usr/bin/nvcc")}, True),
        ({"flags": ("-O3", "-G")}, True),
        ({"flags": ("-O3 -G",)}, True),
        ({"names": {"b": 1.0, "a": frozenset({"y", "x"})}}, True),
        ({"names": {"b": True, "a": frozenset({"y", "x"})}}, True),
        ({"names": {"b": 1, "a": frozenset({"y"})}}, True),
        ({"names": {"b": 1, "a": frozenset({"y", "x"}), "c": {1: 2}}}, True),
        ({"scratch": Path("/elsewhere")}, False),
        ({"tool": Tool("nvcc 13", "/opt/nvcc")}, False),
        ({"names": {"a": frozenset({"x", "y"}), "b": 1}}, False),
    ],
)
def test_what_decides_changes_the_digest_and_nothing_else_does(changed: dict[str, Any], decides: bool) -> None:
    assert (digest(replace(GIVEN, **changed)) != digest(GIVEN)) == decides


@pytest.mark.parametrize("wrong", [Path("a"), object(), {1: 2, "a": 3}, {True: 2}, Compile])
def test_what_has_no_canonical_form_is_an_error(wrong: object) -> None:
    with pytest.raises(TypeError, match="no canonical form"):
        canonical(replace(GIVEN, names={"of": wrong}))


# --- Each field of each stage's request

# Two backends and compressed device code, so that there are stages of nearly all kinds.
BASE = Inputs(Settings(package="demo", backends=("tvm_ffi", "cython"), compress="size"), listings=LISTINGS)
WITH_NVRTC = replace(BASE, settings=replace(BASE.settings, cuda_compiler="nvrtc"), tools=replace(TOOLS, nvrtc=NVRTC))
OWN_FORMAT = replace(BASE, settings=replace(BASE.settings, backends=("cuda_core",), targets=("cuda",), compress="none"))
PER_ARCH = replace(BASE, kernel=GEMM.with_options(frontend="triton", targets=("cuda",), per_arch=True), listings=())
TUNED = GEMM.with_options(pass_configs={"tirx.disable_vectorize": True})
CUDA = GEMM.with_options(frontend="cuda", targets=("cuda",), includes=("headers", "package:kernelwright/backends"))
OWN = replace(CUDA, configs=({},), slugs=("default",)).with_options(
    sources=("own.cu", "package:kernelwright/backends/own.cu")
)
WRITTEN = replace(
    OWN, sources={EVERY: (OwnSource("own.cu"), OwnSource("a.cu", "int a;"), OwnSource("a.inc", "int b;"))}
)

TREES: dict[str, Inputs] = {
    "TIR": replace(BASE, kernel=TUNED, settings=replace(BASE.settings, dump_ir="yes")),
    "NVRTC": WITH_NVRTC,
    "no library": OWN_FORMAT,
    "CUDA C++": replace(BASE, kernel=CUDA),
    "host code of its own": replace(BASE, kernel=OWN, settings=replace(BASE.settings, backends=("tvm_ffi",))),
    "sources that it writes": replace(BASE, kernel=WRITTEN, settings=replace(BASE.settings, backends=("tvm_ffi",))),
    "PyTorch": replace(BASE, kernel=OWN.with_options(frontend="torch")),
    "Triton": replace(BASE, kernel=GEMM.with_options(frontend="triton", targets=("cuda",), per_arch=True)),
    "TileLang": replace(BASE, kernel=GEMM.with_options(frontend="tilelang", targets=("cuda",))),
    "CuTe DSL": replace(BASE, kernel=GEMM.with_options(frontend="cutedsl", targets=("cuda",))),
}
"""A package with one kernel for each way to compile."""

FRONT_ENDS = ("triton", "tilelang", "cutedsl")


Made = Callable[..., list[Stage]]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """All stages of a package, and those that other commands would add."""

    def make(tree: str, identity: str = "a tool") -> list[Stage]:
        inputs = TREES[tree]
        monkeypatch.setattr(sources, "cuda_runtime", lambda *given: __file__)
        monkeypatch.setattr(torch_library, "cuda_runtime", lambda *given: __file__)
        monkeypatch.setattr(torch_library, "find_torch", lambda *given: Torch("2.13.0", "0" * 64, tmp_path))
        monkeypatch.setattr(TorchSources, "includes", ())
        graph = new_graph(tmp_path, monkeypatch, inputs)
        tool = Elsewhere("1.0", identity, "/opt/python", "/opt/site-packages/tool")
        graph.package.tools.__dict__.update(of_front_ends=dict.fromkeys(FRONT_ENDS, tool))
        vars(graph.package)["has_gpu"] = tree != "Triton"
        graph.definitions.add_kernel(inputs.definition, select(inputs.kernel, inputs.settings))
        return [*graph.package.stages, *others(graph)]

    return make


def others(graph: PackageGraph) -> Iterator[Stage]:
    """Stages that only some commands have."""
    yield package.Assembly(graph.package.context, [], {}, graph.package.stages, "1.0").stage()
    yield commands.make(graph.run.top, [{"file": "a.c"}])
    yield discover.make(graph.package.context, 1, KernelwrightError("it is wrong", Where()))
    (graph.run.top / "pyproject.toml").write_text('[project]\nname = "demo"\nversion = "1.0"\n')
    yield wheel.make(graph.package.context, [], "manifest.json")


@pytest.mark.parametrize("tree", TREES)
def test_a_field_of_a_request_is_in_the_fingerprint_unless_it_is_marked(tree: str, made: Made) -> None:
    wrong = set()
    for stage in made(tree):
        for name, request, decides in variations(stage.request):
            other = replace(stage, request=request)
            if (other.fingerprint != stage.fingerprint) != decides:
                wrong.add(f"{stage.label}{name}")
            assert (other.cache_key(str) != stage.cache_key(str)) == decides
    assert not wrong


@pytest.mark.parametrize("tree", ["Triton", "TileLang", "CuTe DSL"])
def test_another_release_of_what_a_front_end_lowers_with_lowers_again(tree: str, made: Made) -> None:
    before, after = (
        {stage.subject: stage.fingerprint for stage in made(tree, identity) if stage.label == "LOWER"}
        for identity in ("one", "other")
    )
    assert before.keys() == after.keys() and all(before[name] != after[name] for name in before)


def test_these_packages_have_every_kind_of_stage(made: Made) -> None:
    kinds = {(stage.label, type(stage.request).__name__) for tree in TREES for stage in made(tree)}
    with_nvrtc = {(label, "NvrtcCompilation") for label in ("CUBIN", "PTX")}
    assert kinds - with_nvrtc == {(label, kind.request) for label, kind in KINDS.items() if kind.module}


@pytest.mark.parametrize("tree", TREES)
def test_a_stage_is_a_function_of_its_request_in_which_no_path_of_this_machine_is(tree, made, tmp_path):
    for stage in made(tree):
        make: Any = type(stage.request).make
        assert isinstance(make, FunctionType) and make.__closure__ is None and not make.__defaults__, stage.label
        assert make.__module__ == f"kernelwright.{KINDS[stage.label].module}", stage.label
        assert list(inspect.signature(make).parameters) == ["self", "scratch", "stage"], stage.label
        assert type(stage.request).__dataclass_params__.frozen
        text = canonical_json(canonical(stage.request))
        for path in (str(tmp_path), *map(str, (ROOT, Path(sys.prefix))), "/opt/", "/cuda/", "/usr/"):
            assert path not in text, f"{stage.label}: {text}"


@pytest.mark.parametrize(
    ("tree", "label", "compiler"),
    [
        ("host code of its own", "OBJECT", "stages.object.compile_object"),
        ("CUDA C++", "PTX", "stages.device.compile_by_steps"),
        ("NVRTC", "CUBIN", "toolchain.nvrtc_run.compile_with_nvrtc"),
    ],
)
def test_what_is_edited_while_a_compiler_runs_is_no_known_file(tree, label, compiler, made, monkeypatch, tmp_path):
    header, run = tmp_path / "a.h", SimpleNamespace(top=tmp_path, state=tmp_path, compilers=None)

    def compiled(*given: Any, **named: Any) -> CompiledCode:
        if label == "OBJECT":
            (tmp_path / stage.request.job.outputs[0]).write_bytes(ELF + bytes(16))
        now = time.time_ns()  # which the clock of files may be behind
        wait_for(
            lambda: header.write_text("new") and header.stat().st_ctime_ns > now, "the clock of files stands still"
        )
        return CompiledCode(ToolResult("", 0.0, 0.0, 0), ("a.h",))

    stage = next(stage for stage in made(tree) if stage.label == label)
    monkeypatch.setattr(f"kernelwright.{compiler}", compiled)
    stage.note = dict
    real = stage.request.real
    real = replace(real, source=__file__) if label == "OBJECT" else real
    replace(stage.request, folders={}, real=real).make(tmp_path, StageRun(run, stage))  # type: ignore[arg-type]
    assert stage.later["a.h"] == EDITED


def test_headers_are_kept_for_one_compiler_in_one_place(tmp_path, monkeypatch):
    kept: list[tuple[str, ...]] = []

    def keep(folder: Path, identity: tuple[str, ...]) -> None:
        kept.append(identity)
        raise SentError

    monkeypatch.setattr("kernelwright.stages.device.KeptHeaders", keep)
    tools = [tool(name, **{what: "other"}) for name in ("nvcc", "host_compiler") for what in ("identity", "path")]
    for change in (lambda inputs: inputs, *tools):
        stage = stages_of(graph_of(tmp_path, monkeypatch, change(BASE)))["PTX gemm/m-1 compute_80"]
        with pytest.raises(SentError):
            stage.request.make(tmp_path, StageRun(SimpleNamespace(top=tmp_path, state=tmp_path, compilers=None), stage))
    assert len(set(kept)) == len(kept) == 5


REPORTS = {"state", "note", "note_once", "pool", "require_folders", "top"}
"""What functions of stages use of the run: it says where things are kept, shows lines, and has the workers. A plug-in
writes its files in one, and what it consists of is in the request."""


def test_functions_of_stages_use_nothing_of_the_run_that_decides() -> None:
    folder, used = Path(inspect.getfile(commands)).parent, set()
    for module in folder.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "stage.run":
                used.add(node.attr)
    assert used <= REPORTS


def test_a_worker_is_asked_what_the_stage_is_known_by(made, monkeypatch, tmp_path):
    """But for what decides nothing: where outputs are to be, and what the sources say."""
    monkeypatch.setattr(UnitFiles, "read_signature", lambda unit: to_json(UNKNOWN))
    asked = []

    def ask(request: Any, where: Where) -> Any:
        asked.append(canonical(request))
        made_of = {"dependencies": {}, "untracked": ()}
        return LowerResult((), "", 0, 0, **made_of) if request.op == "lower" else CheckResult(1, 0.0, (), "cpu", {})

    stages = [stage for stage in made("TIR") if stage.ask and stage.label in ("LOWER", "CHECK", "IR")]
    for number, stage in enumerate(stages):
        stage.ask, stage.note = ask, None
        scratch = tmp_path / str(number)
        scratch.mkdir()
        stage.make(scratch, StageRun(SimpleNamespace(partial=None, require_folders=list), stage))
    assert asked == [canonical(stage.request.asked) for stage in stages] and len(asked) > 8


# --- What is changed, and the stages that run again


Change = Callable[[Inputs], Inputs]


def tool(name: str, **fields: Any) -> Change:
    """Another tool."""
    return lambda inputs: replace(
        inputs, tools=replace(inputs.tools, **{name: replace(getattr(inputs.tools, name), **fields)})
    )


def given(**fields: Any) -> Change:
    return lambda inputs: replace(inputs, **fields)


def setting(**fields: Any) -> Change:
    return lambda inputs: replace(inputs, settings=replace(inputs.settings, **fields))


def kernel(**fields: Any) -> Change:
    return lambda inputs: replace(inputs, kernel=replace(inputs.kernel, **fields))


def option(**fields: Any) -> Change:
    """Options of the kernel are others."""
    return lambda inputs: replace(inputs, kernel=inputs.kernel.with_options(**fields))


def signatures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: Inputs) -> dict[str, str]:
    graph = graph_of(tmp_path, monkeypatch, inputs)
    return {name: stage.fingerprint for name, stage in stages_of(graph).items()}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before | after if before.get(name) != after.get(name)}


def labels(names: set[str]) -> set[str]:
    """Their labels; ``WRAP`` is done for the library and, apart from that, for a backend."""
    return {name.split()[0] + (" of a backend" if name == "WRAP gemm cython" else "") for name in names}


LABELS = [label for label, kind in KINDS.items() if kind.module]
USUAL = {*LABELS, "WRAP of a backend"} - {
    *("DISCOVER", "IR", "ENTRY", "TEXT", "OBJECT", "SOURCES", "WHEEL", "COMMANDS", "TORCH")
}
WRAPS = {"WRAP", "WRAP of a backend"}
MADE_BY_TVM = {"LOWER", "LINK", "PACKAGE"}
OF_C = {"LAUNCHER", "EXT", "LINK", "PACKAGE"}
OF_CUDA = {"CUBIN", "PTX", "LINK", "PACKAGE"}
CHANGES: dict[str, tuple[Change, set[str]]] = {
    "nothing": (lambda inputs: inputs, set()),
    "TVM": (tool("lowerer", identity="other"), MADE_BY_TVM),
    "tvm-ffi": (tool("lowerer", tvm_ffi="0.1.16"), {*MADE_BY_TVM, *OF_C, "CC"}),
    "the C compiler": (tool("host_compiler", identity="other"), {*OF_C, "CC", "GLIBC"}),
    "nvcc": (tool("nvcc", identity="other"), {*OF_CUDA, "FATBIN"}),
    "nvdisasm": (lambda inputs: replace(inputs, nvdisasm=replace(inputs.nvdisasm, identity="other")), {"SASS"}),
    "the version of CUDA": (tool("nvcc", version="13.1.0"), {*WRAPS, *OF_CUDA, "FATBIN"}),
    "flags": (setting(nvcc_flags=("-lineinfo",)), {"CUBIN", "PTX", "LINK"}),
    "flags of the kernel": (option(flags=("-lineinfo",)), {"CUBIN", "PTX", "LINK"}),
    "lines for debuggers": (setting(debug="lineinfo"), {"CUBIN", "PTX", "CC", "LINK"}),
    "all for debuggers": (option(debug="full"), {"CUBIN", "PTX", "CC", "LINK"}),
    "the limit of registers": (setting(max_registers=0), {"LINK"}),
    "the limit of spills": (setting(max_spills=0), {"LINK"}),
    "the compression": (setting(compress="speed"), {*WRAPS, "FATBIN", "PACKAGE"}),
    "where device code is": (setting(split="arch"), {*WRAPS, "LINK", "PACKAGE"}),
    "the oldest glibc": (setting(glibc="2.31"), {*OF_C, "GLIBC"}),
    "a file of the definition": (given(contents={FILE: "2" * 64}), {"LOWER", "CHECK"}),
    "what only checks call": (given(contents={FILE: "2" * 64}, lowered="1" * 64), {"CHECK"}),
    "one more file": (given(contents={FILE: "1" * 64, "kernels/": "3" * 64}), {"LOWER", "CHECK"}),
    "what the definition sees besides its files": (given(surroundings={"/installed/a": "5" * 64}), {"LOWER", "CHECK"}),
    "the configs of passes": (option(pass_configs={"tirx.disable_vectorize": True}), {"LOWER"}),
    "the docstring": (kernel(doc="The product."), {"LINK"}),
    "the tolerance": (option(tolerance=0.5), {"CHECK"}),
    "the backward kernel": (kernel(backward="gemm_backward"), {"LINK"}),
    "strictness": (given(strict=True), {"LOWER", "CHECK"}),
}
OTHER_CHANGES: list[tuple[Inputs, Change, set[str]]] = [
    (WITH_NVRTC, tool("nvrtc", identity="other"), {"CUBIN", "PTX", "LINK", "PACKAGE"}),
    (PER_ARCH, setting(debug="lineinfo"), {"LOWER", "CC", "LINK"}),
    *((OWN_FORMAT, change, {"ENTRY"}) for change in (setting(max_registers=0), kernel(doc=""), kernel(backward="b"))),
]
"""A change of something -> the labels of the stages that have to run, unless their outputs were in the cache."""


@pytest.mark.parametrize(
    ("base", "change", "expected"),
    [*(pytest.param(BASE, *change, id=name) for name, change in CHANGES.items()), *OTHER_CHANGES],
)
def test_a_change_is_in_the_signatures_of_the_stages_that_depend_on_it_and_of_no_other(
    tmp_path, monkeypatch, base, change, expected
):
    before = signatures(tmp_path, monkeypatch, base)
    assert labels(set(before)) == USUAL if base is BASE else labels(set(before)) >= expected
    assert labels(changed(before, signatures(tmp_path, monkeypatch, change(base)))) == expected


def test_what_nobody_else_can_look_at_decides_outputs_that_no_other_machine_may_have(tmp_path, monkeypatch):
    """The stages behind a lowering are known by what it has made, so these may be shared."""

    def asked(inputs: Inputs) -> tuple[set[str], set[str]]:
        stages = graph_of(tmp_path, monkeypatch, inputs).package.stages
        found: list[str] = []
        cache = SimpleNamespace(fetch_ahead=lambda key, *others: found.append(key))
        Ahead(cache, tmp_path, digest, stages)
        return {s.label for s in stages if s.here}, {s.label for s in stages if s.cache_key(digest) in found}

    def digest(path: str) -> str:
        return "6" * 64

    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_text("")
    here, ahead = asked(BASE)
    assert here == set() and "LOWER" in ahead
    assert asked(replace(BASE, shared=False)) == ({"LOWER"}, ahead - {"LOWER"})


def test_definitions_are_lowered_again_by_another_interpreter_and_not_for_another_order_of_archs(tmp_path, monkeypatch):
    before = signatures(tmp_path, monkeypatch, BASE)
    monkeypatch.setattr(context, "interpreter", lambda: ["cpython-399"])
    assert labels(changed(before, signatures(tmp_path, monkeypatch, BASE))) == {"LOWER", "CHECK"}
    before = signatures(tmp_path, monkeypatch, BASE)
    turned = setting(archs=BASE.settings.archs[::-1])(BASE)
    assert "LOWER" not in labels(changed(before, signatures(tmp_path, monkeypatch, turned)))


def test_a_change_of_one_variant_or_arch_is_in_its_own_signatures(tmp_path, monkeypatch):
    before = signatures(tmp_path, monkeypatch, BASE)
    other = kernel(configs=({"m": 1}, {"m": 3}))(BASE)
    found = changed(before, signatures(tmp_path, monkeypatch, other))
    assert labels(found) == {"LOWER", *WRAPS, "LINK", "CHECK"} and not [name for name in found if "m-1" in name]
    other = setting(archs=("x86-64-v2", "sm_80", "sm_90a", "compute_80"))(BASE)
    found = changed(before, signatures(tmp_path, monkeypatch, other))
    assert not [name for name in found if name.startswith(("CUBIN", "PTX", "FATBIN", "LOWER")) and "x86" not in name]
    assert labels(found) >= {"LOWER", "WRAP", "LINK"}


def tuned_signatures(tmp_path, monkeypatch, *ranges: tuple[int | None, int]) -> dict[str, str]:
    """Signatures of a kernel with a space of three points, for one table with these ranges for the first config."""
    points = tuple({"block": block} for block in (8, 16, 32))
    choices = tuple(Choice({"m": m}, dict.fromkeys(("llvm", "cuda"), points)) for m in (1, 2))
    configs = tuple(variants_of(choices))
    record = replace(GEMM, configs=configs, slugs=tuple(slugs(configs)), choices=choices)
    rules = tuple(Rule({"block": block}, upto) for upto, block in ranges)
    file = TableFile("gemm", TableDevice("cuda", "sm_80", "GPU", 108), {}, (TunedConfig({"m": 1}, ("n",), rules),))
    graph = new_graph(tmp_path, monkeypatch, replace(BASE, kernel=record))
    graph.definitions.add_kernel(
        replace(BASE, kernel=record).definition, choose(select(record, BASE.settings), [file]).selection
    )
    return {name: stage.fingerprint for name, stage in stages_of(graph).items()}


def test_the_ranges_of_a_table_are_in_the_signatures_of_what_has_them_and_a_new_variant_in_its_own(
    tmp_path, monkeypatch
):
    before = tuned_signatures(tmp_path, monkeypatch, (64, 16), (None, 8))
    edited = changed(before, tuned_signatures(tmp_path, monkeypatch, (65, 16), (None, 8)))
    assert edited == {"WRAP gemm", "WRAP gemm cython", "LINK gemm"}
    after = tuned_signatures(tmp_path, monkeypatch, (64, 16), (None, 32))
    assert changed(before, after) - edited - {"CC gemm"} == {
        *("LOWER gemm/m-1_block-32 cuda", "CUBIN gemm/m-1_block-32 sm_80", "FATBIN gemm/m-1_block-32 sm_80"),
        *("SASS gemm/m-1_block-32 sm_80", "PTX gemm/m-1_block-32 compute_80", "CHECK gemm/m-1_block-32 cuda:0"),
    }


@pytest.mark.parametrize(
    ("request_", "stage", "obstacle"),
    [
        ("gemm/m-1 cuda", "LOWER gemm/m-1 cuda", ""),
        ("nvcc gemm/m-2 compute_80", "PTX gemm/m-2 compute_80", ""),
        ("check gemm/m-1 cpu", "CHECK gemm/m-1 cpu", ""),
        ("nvcc gemm/m-2 sm_80", None, ""),  # it is made of PTX
        ("nvcc gemm/m-2 sm_80", "CUBIN gemm/m-2 sm_80", "nvcc is a script, so it is made of the source"),
    ],
)
def test_what_a_stage_read_in_its_last_run_is_in_its_signature(tmp_path, monkeypatch, request_, stage, obstacle):
    base = setting(nvcc_flags=("-include", "a.h"))(replace(BASE, tools=replace(BASE.tools, known_obstacle=obstacle)))
    before = signatures(tmp_path, monkeypatch, base)
    later = {request_: {"kernels/table.txt": "4" * 64}}
    assert changed(before, signatures(tmp_path, monkeypatch, replace(base, later=later))) == {stage} - {None}


def test_without_a_gpu_a_check_depends_on_the_interpreter_and_not_on_the_library(tmp_path, monkeypatch):
    """Where PyTorch is not installed, there is no check, and the line for pip is said."""

    def checks(identity: str) -> dict[str, Stage]:
        graph = new_graph(tmp_path, monkeypatch, inputs)
        vars(graph.package)["has_gpu"] = False
        graph.package.tools.__dict__["of_front_ends"] = {"triton": Distribution("3.9.0", identity)}
        graph.definitions.add_kernel(inputs.definition, select(inputs.kernel, inputs.settings))
        return {name: stage for name, stage in stages_of(graph).items() if stage.label == "CHECK"}

    inputs = replace(option(frontend="triton", targets=("cuda",))(BASE), listings=())
    monkeypatch.setattr(Need, "is_installed", property(lambda need: True))
    (name, stage), _ = checks("1").items()
    assert name == "CHECK gemm/m-1 interpreted"
    assert [Path(path).name for path in stage.paths] == ["m-1.interpreted.json"]
    assert [Path(source).name for source in stage.sources] == ["signature.json", "gemm.py"]
    assert stage.fingerprint == checks("1")[name].fingerprint != checks("2")[name].fingerprint
    monkeypatch.setattr(Need, "is_installed", property(lambda need: need.module != "torch"))
    assert checks("1") == {}
    (tmp_path / "site/numpy").mkdir(parents=True)
    here, there = Distribution("3.9.0", "1"), Elsewhere("3.9.0", "1", "tri/bin/python", str(tmp_path / "site/triton"))
    what = {"here": not_checked(frontends.get("triton"), here), "there": not_checked(frontends.get("triton"), there)}
    assert what["here"].endswith("; Triton's interpreter can run it: pip install torch")
    assert what["there"].endswith("can run it: tri/bin/python -m pip install 'triton==3.9.*' torch")
    assert not_checked(frontends.get("cutedsl"), None).endswith("so it is not checked")


@pytest.mark.parametrize(
    ("module", "file", "expected"),
    [
        (cc, "types.h", {"CC"}),
        (launcher, "dispatch.h", {"LAUNCHER", "LINK", "PACKAGE"}),
        (link, "exports.map", {"LINK"}),
        (package, "loader.py", {"PACKAGE"}),
    ],
)
def test_headers_and_runtime_modules_are_in_the_signatures_of_what_is_made_with_them(
    tmp_path, monkeypatch, module, file, expected
):
    before = signatures(tmp_path, monkeypatch, BASE)
    names: set[str] = set()
    monkeypatch.setattr(module, "digest_of", lambda files: names.update(path.name for path in files) or "other")
    assert labels(changed(before, signatures(tmp_path, monkeypatch, BASE))) == expected
    assert file in names and (module is launcher or "dispatch.h" not in names)


def test_a_kernel_whose_sources_are_compiled_anew_is_checked_although_its_own_library_stays(made: Made) -> None:
    stages = made("host code of its own")
    objects = [stage.paths[0] for stage in stages if stage.label == "OBJECT"]
    (check,) = (stage for stage in stages if stage.label == "CHECK")
    assert len(objects) == 2 and set(objects) <= set(check.sources)


def test_the_library_of_sources_has_its_runtime_in_its_signature_and_is_another_one_with_other_libraries(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context.KernelContext, "libraries", ())  # none of these is installed
    linked = []
    for libraries in ((), ("package:acme/liba.so",), ("package:acme/liba.so", "package:acme/libb.so")):
        monkeypatch.setitem(TREES, "own", option(libraries=libraries)(TREES["host code of its own"]))
        linked += [stage for stage in made("own") if stage.label == "SOURCES"]
    assert len({Path(stage.paths[0]).name for stage in linked}) == 3
    assert all(sha256_of(Path(__file__)) in stage.outside.values() for stage in linked)


def test_what_a_compiler_says_of_the_code_is_a_source_of_what_is_made_with_it(made: Made) -> None:
    wraps = [stage for stage in made("CUDA C++") if stage.label == "WRAP"]
    assert wraps and all({"compute_80.ptx", "compute_90a.ptx"} <= names_of(stage) for stage in wraps)
    images = [stage for stage in made("TileLang") if stage.label in ("PTX", "CUBIN")]
    assert len(images) == 8 and all("flags.json" in names_of(stage) for stage in images), "flags that the source says"


def names_of(stage: Stage) -> set[str]:
    return {Path(source).name for source in stage.sources}


def test_of_headers_and_flags_those_count_that_are_nearest_to_the_kernel(tmp_path, monkeypatch, made):
    """The first folder that has a header, and the last of several flags."""
    inputs = setting(nvcc_flags=("-DA=1",))(replace(BASE, kernel=CUDA.with_options(flags=("-DA=2",))))
    flags = stages_of(graph_of(tmp_path, monkeypatch, inputs))["PTX gemm/m-1 compute_80"].request.job.flags
    beside, *others = [path for path in flags if path not in ("-I", "-DA=1", "-DA=2")]
    assert (Path(beside).name, *others) == ("kernels", f"{beside}/headers", "\0package:kernelwright/backends\0")
    assert flags[-2:] == ("-DA=1", "-DA=2")
    torch = next(stage for stage in made("PyTorch") if stage.label == "OBJECT").request.job.flags
    packages = [path.strip("\0").removeprefix("package:kernelwright/") for path in torch if "package:" in path]
    assert packages == ["frontends/torch/include", "backends"], "what stands for PyTorch's own headers is first"


def test_a_check_of_a_variant_with_code_for_each_arch_is_for_any_gpu(tmp_path, monkeypatch):
    check = stages_of(graph_of(tmp_path, monkeypatch, PER_ARCH))["CHECK gemm/m-1 cuda:0"].request
    assert set(check.unit.archs) == set(ARCHS) and check.asked.archs == ""


def test_an_edit_of_what_all_extension_modules_include_writes_it_and_compiles_them_again(tmp_path, monkeypatch):
    before = signatures(tmp_path, monkeypatch, BASE)
    shared = tmp_path / "python"
    shutil.copytree(cython.SHARED, shared)
    monkeypatch.setattr(cython, "SHARED", shared)
    assert changed(before, signatures(tmp_path, monkeypatch, BASE)) == set()
    (shared / "kernel.pxi").write_text("# edited")
    assert labels(changed(before, signatures(tmp_path, monkeypatch, BASE))) == {"WRAP of a backend", "EXT"}


def launcher_of(graph) -> str:
    """The launcher's library, relative to the folder of the kernels."""
    return Path(graph.package.launcher_stage.paths[0]).relative_to(graph.package.work.get_abspath()).as_posix()


def test_a_library_is_linked_again_if_any_file_changes_that_is_in_it_or_that_its_entry_describes(tmp_path, monkeypatch):
    graph = graph_of(tmp_path, monkeypatch, BASE)
    found = [Path(path) for path in stages_of(graph)["LINK gemm"].sources]
    cpu = ("host.o", "module.tir", "signature.json")
    images = [f"{arch}.fatbin" for arch in ARCHS]
    cuda = (*images, "sm_80.json", "sm_90a.json", "module.tir", "signature.json")
    expected = [
        *("gemm/wrapper.o", "gemm/images.s", launcher_of(graph)),
        *(f"gemm/{slug}/llvm/x86-64-v3/{name}" for slug in GEMM.slugs for name in cpu),
        *(f"gemm/{slug}/cuda/{name}" for slug in GEMM.slugs for name in cuda),
        *(f"glibc-{BASE.settings.glibc}/lib{name}.so" for name in ("c", "m", "dl", "pthread", "rt")),
    ]
    assert sorted(path.relative_to(graph.package.work.get_abspath()).as_posix() for path in found) == sorted(expected)
    names = {Path(path).name for path in stages_of(graph)["EXT gemm cython"].sources}
    assert names >= {"libc.so", "libm.so"}, "what stands in for the machine's C library is there before"


def test_the_code_of_a_stage_is_in_its_signature_and_in_its_key_in_the_cache(tmp_path, monkeypatch):
    known = {label: code_digest(label) for label in LABELS}
    before = stages_of(graph_of(tmp_path, monkeypatch, BASE))
    keys = {name: (stage.fingerprint, stage.cache_key(str)) for name, stage in before.items()}
    for label in {name.split()[0] for name in before}:
        monkeypatch.setattr(stage_module, "code_digest", lambda of, it=label: "new code" if of == it else known[of])
        for name, stage in stages_of(graph_of(tmp_path, monkeypatch, BASE)).items():
            differ = (stage.fingerprint != keys[name][0], stage.cache_key(str) != keys[name][1])
            assert differ == (stage.label == label,) * 2, (name, label)


def a_stage(**fields: Any) -> Stage:
    """A stage with two sources."""
    sources = ["/top/a.cu", "/top/b.h"]
    given = {"label": "CUBIN", "subject": "gemm/m-1 sm_80", "where": None, "request": {"arch": "sm_80"}}
    return Stage(**{**given, "outputs": {}, "sources": sources, **fields})


def key(stage: Stage, **digests: str) -> str:
    """Its key in the build cache."""
    known = {"/top/a.cu": "1", "/top/b.h": "2"} | {f"/top/{name.replace('_', '.')}": d for name, d in digests.items()}
    return stage.cache_key(known.__getitem__)


def test_label_request_and_the_name_and_content_of_each_source_are_in_the_key(monkeypatch):
    monkeypatch.setattr(stage_module, "code_digest", lambda label: "code")
    first = a_stage()
    keys = [
        key(first),
        key(first, a_cu="2"),
        key(first, b_h="1"),
        key(first, a_cu="2", b_h="1"),
        key(a_stage(label="PTX")),
        key(a_stage(request={"arch": "sm_90"})),
        key(a_stage(sources=first.sources[:1])),
        key(a_stage(sources=first.sources[::-1])),
    ]
    assert len(set(keys)) == len(keys)
    assert key(a_stage(subject="gemm/m-2 sm_80")) == keys[0], "what it is called decides nothing"


def test_what_a_stage_turns_out_to_read_is_in_the_signature_and_not_in_the_key():
    stage = a_stage()
    before, signature = key(stage), stage.fingerprint
    stage.later = {"table.txt": "3"}
    assert key(stage) == before, "the cache compares these files itself"
    assert stage.fingerprint != signature
    late = ["first"]
    stage = a_stage(late=lambda: late)
    before = stage.fingerprint
    late[0] = "second"
    assert stage.fingerprint != before


def cache_keys(graph: PackageGraph) -> dict[str, str]:
    """The keys of the stages that the build cache keeps, if no two files have the same content."""
    return {name: stage.cache_key(str) for name, stage in stages_of(graph).items() if stage.cacheable}


def test_no_two_stages_of_a_package_have_the_same_key_in_the_cache(tmp_path, monkeypatch):
    two_kernels = replace(BASE, others=(replace(GEMM, name="other"),))
    inputs = setting(archs=("x86-64-v2", "x86-64-v3", *ARCHS))(two_kernels)
    keys = cache_keys(graph_of(tmp_path, monkeypatch, inputs))
    assert labels(keys.keys()) == USUAL - {"PACKAGE", "CHECK"}
    lowered = {name for name in keys if name.startswith("LOWER")}
    assert len(lowered) == 2 * 2 * 3, "of two kernels with two variants, for two CPU archs and for CUDA"
    names_of: dict[str, list[str]] = {}
    for name, known in keys.items():
        names_of.setdefault(known, []).append(name)
    assert [names for names in names_of.values() if len(names) > 1] == []
    older = cache_keys(graph_of(tmp_path, monkeypatch, setting(glibc="2.17")(BASE)))
    assert older["GLIBC 2.17"] not in keys.values()


def test_a_variant_that_is_not_listed_has_the_signature_that_it_would_have_in_the_list(tmp_path, monkeypatch):
    listed = kernel(configs=({"m": 1}, {"m": 2}, {"m": 3}), slugs=("m-1", "m-2", "m-3"))(BASE)
    graph = new_graph(tmp_path, monkeypatch, BASE)
    graph.definitions.add_kernel(BASE.definition, select(listed.kernel, BASE.settings))
    asked = stages_of(graph)
    expected = stages_of(graph_of(tmp_path / "other", monkeypatch, listed))
    for target in ("cuda", "x86-64-v3"):
        name = f"LOWER gemm/m-3 {target}"
        assert asked[name].fingerprint == expected[name].fingerprint
    sent = [request_of(asked[f"LOWER gemm/{slug} cuda"], graph, monkeypatch) for slug in ("m-2", "m-3")]
    assert [request.listed for request in sent] == [True, False]
    sent = [request_of(asked[f"CHECK gemm/{slug} cpu"], graph, monkeypatch) for slug in ("m-2", "m-3")]
    assert [(request.listed, request.config) for request in sent] == [(True, {"m": 2}), (False, {"m": 3})]


class SentError(Exception):
    """Has what a stage asks a worker for."""


def request_of(stage: Stage, graph: PackageGraph, monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(request: Any) -> None:
        raise SentError(request)

    vars(graph.run.processes)["pool"] = SimpleNamespace(call=call)
    monkeypatch.setattr(UnitFiles, "read_signature", lambda unit: to_json(UNKNOWN))
    scratch = graph.run.top / "scratch" / stage.subject.replace("/", " ")
    scratch = scratch.with_name(f"{stage.label} {scratch.name}")
    scratch.mkdir(parents=True)
    with pytest.raises(SentError) as caught:
        stage.make(scratch, StageRun(graph.run, stage))
    return caught.value.args[0]


def test_to_show_the_ir_is_in_no_other_signature_and_has_what_the_lowering_has(tmp_path, monkeypatch):
    before = signatures(tmp_path, monkeypatch, BASE)
    showing = setting(dump_ir="yes")(BASE)
    graph = graph_of(tmp_path / "shown", monkeypatch, showing)
    shown = stages_of(graph)
    assert labels(shown.keys() - before.keys()) == {"IR"}
    assert {name: shown[name].fingerprint for name in before} == before
    for name, stage in shown.items():
        if stage.label == "IR":
            assert vars(stage.request) == vars(shown[name.replace("IR", "LOWER")].request) and not stage.cacheable
    request = request_of(shown["IR gemm/m-2 cuda"], graph, monkeypatch)
    lowering = request_of(shown["LOWER gemm/m-2 cuda"], graph, monkeypatch)
    assert Path(request.ir).is_dir() and replace(request, out="", ir="") == replace(lowering, out="")


# --- The key of a kernel that is compiled on demand


KEY = "ab" * 32


CHOICES = (Choice({}, {"llvm": ({"block": 1},)}, {"n": (1,)}, {"x86-64-v3": {"block": 1}}),)
CANDIDATES = tuple(variants_of(CHOICES))
WITH_SPACE = replace(GEMM, configs=CANDIDATES, slugs=tuple(slugs(CANDIDATES)), choices=CHOICES)
SELECTED = KernelSelection(
    *(WITH_SPACE, {"llvm": ("x86-64-v3",)}, ("tvm_ffi",), ()),
    tables=(DeviceTable("llvm", "x86-64-v3", "a CPU", 2, {0: Rules((), ((None, 1),))}),),
    places=({0: "a.json:1"},),
)
DEFINITION = DefinitionRecord(FILE, {FILE: "1"}, (WITH_SPACE,), surroundings={"/installed/a": "1"})
SESSION: Any = SimpleNamespace(interpreter=["3.11"], toolchain=None)
JOB = Job(DEFINITION, SELECTED, Settings(), SESSION, SELECTED, {}, {"gemm llvm": "1"})

NOT_IN_THE_KEY = """
CheckRequest: library listed python signature; Checking: unit variants; Compilation: folders real
DefinitionRecord: kernels later lowered recorded shared untracked; DeviceJob: folder packages where; Disassembly: cubin
Elsewhere: path python; Entry: compiler; EntrySource: images_below; Extension: top; Failure: error; HostCompiler: path
Job: contexts jit session; KernelRecord: location remark sizes; KernelSelection: places; Launcher: begun top
Library: path; Linking: described_in top; LowerRequest: imported_for ir listed out python; Nvcc: archs path
NvccCompilation: host_compiler obstacle shipped steps; Nvdisasm: path; Nvrtc: archs include library
NvrtcCompilation: store; ObjectCompilation: source texts; ObjectJob: folder known packages shown texts where
OwnOptions: reads
PackJob: folder where; Package: assembly; Packing: fatbinary; Registering: python top; SourceLibrary: top
ToolHeaders: path; Torch: folder
ToolPaths: compiler cuda_runtime includes launcher python python_include; Tuning: places; Unit: ir location python
UnitFiles: host images module named_in objects own own_library_path reports signature usages
Wheels: device folder work; Wrapper: top; Wrapping: top
"""
"""The fields of requests, and of what is in them, that decide nothing of what is made."""


def test_what_decides_nothing_is_known() -> None:
    for label in LABELS:
        import_module(f"kernelwright.{KINDS[label].module}")
    modules = [vars(module) for name, module in sys.modules.items() if name.startswith("kernelwright.")]
    kinds = {kind for names in modules for kind in names.values() if isinstance(kind, type) and is_dataclass(kind)}
    own = [(kind, f) for kind in kinds - {Settings} for f in fields(kind) if f.name in inspect.get_annotations(kind)]
    listed = [line.split(": ") for line in NOT_IN_THE_KEY.strip().replace("\n", "; ").split("; ")]
    assert {(kind.__name__, f.name) for kind, f in own if f.metadata.get("aside")} == {
        (kind, name) for kind, names in listed for name in names.split()
    }
    assert {*deciding(Settings)} == {*affecting(Settings())}


@pytest.mark.parametrize("request_", [JOB, MadeWith("1", "2", ({},), {}, ())], ids=["job", "what it is made with"])
def test_a_field_of_a_job_is_in_its_key_unless_it_is_marked(request_: Any) -> None:
    names = set()
    for name, other, decides in variations(request_):
        assert (canonical(other) != canonical(request_)) == decides, name
        names.add(name)
    assert request_ is not JOB or {".selection.record.name", ".backward.tables[0].rules", ".settings.compress"} <= names


def test_a_key_is_of_the_job_and_of_what_it_is_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def key_with(tools: Any, job: Job = JOB, triton: str = "1") -> str:
        tools.__dict__["of_front_ends"] = {"triton": Distribution("3.9.0", triton)}
        monkeypatch.setattr(build, "find_tools", lambda settings, chain: tools)
        return replace(job).key

    first = key_with(replace(TOOLS))
    assert first == key_with(replace(TOOLS)) == digest([JOB, replace(JOB).made_with])
    assert first != key_with(replace(TOOLS, lowerer=replace(TOOLS.lowerer, identity="another")))
    assert first != key_with(replace(TOOLS), replace(JOB, settings=replace(JOB.settings, compress="size")))
    backward = replace(
        JOB, backward=replace(SELECTED, record=WITH_SPACE.with_options(frontend="triton"), backends=("torch",))
    )
    assert key_with(replace(TOOLS), triton="2") == first, "it is in another language"
    assert key_with(replace(TOOLS), backward, "2") != key_with(replace(TOOLS), backward)
    in_process = replace(JOB, definition=replace(DEFINITION, dependencies={}))
    other = {"session": SimpleNamespace(**{**vars(SESSION), "interpreter": ["3.12", "numpy 2.4"]})}
    assert key_with(replace(TOOLS), replace(JOB, **other)) != first
    assert key_with(replace(TOOLS), replace(in_process, **other)) == key_with(replace(TOOLS), in_process)
    alone = key_with(replace(TOOLS), backward)
    monkeypatch.setattr(type(backends.get("torch")), "build_versions", lambda backend: {"torch": "2.99"})
    assert key_with(replace(TOOLS)) == first and key_with(replace(TOOLS), backward) != alone


def test_each_checkout_has_a_log_of_its_own_of_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = replace(TOOLS)
    tools.__dict__["of_front_ends"] = {}
    monkeypatch.setattr(build, "find_tools", lambda settings, chain: tools)
    sessions: list[Any] = [SimpleNamespace(**vars(SESSION), root=Path(root)) for root in ("/one", "/two")]
    one, two = (replace(JOB, session=session) for session in sessions)
    assert one.key == two.key and one.failed_key != two.failed_key


def stage(outside: dict[str, str] | None = None, **later: str) -> Stage:
    return Stage("PTX", "scale", Where(), None, {}, [], later=later, outside=outside or {})


def test_a_kernel_two_stages_of_which_read_a_file_differently_is_never_found_again() -> None:
    all_read = read_by([stage(a="1"), stage(), stage({"/runtime.a": "2"}, b="3")])
    assert all_read == {"a": "1", "/runtime.a": "2", "b": "3"}
    later = read_by([stage(a="1", b="1"), stage(a="1", b="2"), stage(a="1", b="1")])
    assert later == {"a": "1", "b": EDITED}
    keys = {key_of_made(KEY, later) for _ in range(3)}
    assert len(keys) == 3 and entry_key(KEY, later) not in keys
    assert key_of_made(KEY, {"a": "1"}) == entry_key(KEY, {"a": "1"})


def test_slugs_that_are_alike_in_c_are_in_the_key() -> None:
    """The symbols in the library depend on them, and the definition's files do not tell which configs are recorded."""
    one = replace(WITH_SPACE, slugs=("x-1_5",), configs=({"x": "1_5"},))
    others = replace(WITH_SPACE, slugs=("x-1.5", "x-1_5", "x-2"))
    selected = replace(SELECTED, record=one)
    assert alike_in_c(DefinitionRecord("k.py", {}, (others,)), selected) == [["x-1.5", "x-1_5"]]
    assert alike_in_c(DefinitionRecord("k.py", {}, (one,)), selected) == [["x-1_5"]]
    both = replace(SELECTED, record=replace(one, slugs=("x-2", "x-1_5"), configs=({"x": 2}, {"x": "1_5"})))
    assert alike_in_c(DefinitionRecord("k.py", {}, (others,)), both) == [["x-2"], ["x-1.5", "x-1_5"]]
