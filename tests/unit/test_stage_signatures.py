"""What is in the signature of a stage and in its key in the build cache: what depends on a change runs, and no more."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("SCons")
pytest.importorskip("Cython")

from kernelwright import lower
from kernelwright.backends import cython
from kernelwright.core.arch import lowering_arch
from kernelwright.core.need import Need
from kernelwright.core.pipeline import KINDS as STAGES
from kernelwright.core.pipeline import LISTINGS
from kernelwright.define.kernel import slugs
from kernelwright.define.settings import Settings
from kernelwright.define.space import Choice, variants_of
from kernelwright.define.tuning import Rule, TableDevice, TableFile, TunedConfig
from kernelwright.discover.selection import select
from kernelwright.discover.tuned import choose
from kernelwright.library.files import UnitFiles
from kernelwright.scons.ahead import Ahead
from kernelwright.scons.graph import PackageGraph
from kernelwright.stages import cc, context, ext, launcher, link, package
from kernelwright.stages import code as code_module
from kernelwright.stages import stage as stage_module
from kernelwright.stages.check import not_checked
from kernelwright.stages.code import PACKAGE, code_digest, code_of, imported
from kernelwright.stages.stage import Stage
from kernelwright.stages.stage_run import StageRun
from kernelwright.toolchain.distribution import Distribution
from kernelwright.toolchain.elsewhere import Elsewhere
from scons_tree import ARCHS, FILE, GEMM, NVRTC, TOOLS, Inputs, graph_of, new_graph, stages_of

# Two backends and compressed device code, so that there are stages of nearly all kinds.
BASE = Inputs(Settings(package="demo", backends=("tvm_ffi", "cython"), compress="size"), listings=LISTINGS)
WITH_NVRTC = replace(BASE, settings=replace(BASE.settings, cuda_compiler="nvrtc"), tools=replace(TOOLS, nvrtc=NVRTC))
OWN_FORMAT = replace(BASE, settings=replace(BASE.settings, backends=("nvrtc",), targets=("cuda",), compress="none"))

Change = Callable[[Inputs], Inputs]


def tool(name: str, **fields: Any) -> Change:
    """Another tool."""
    return lambda inputs: replace(
        inputs, tools=replace(inputs.tools, **{name: replace(getattr(inputs.tools, name), **fields)})
    )


def setting(**fields: Any) -> Change:
    return lambda inputs: replace(inputs, settings=replace(inputs.settings, **fields))


def kernel(**fields: Any) -> Change:
    return lambda inputs: replace(inputs, kernel=replace(inputs.kernel, **fields))


def signatures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: Inputs) -> dict[str, str]:
    graph = graph_of(tmp_path, monkeypatch, inputs)
    return {name: stage.fingerprint for name, stage in stages_of(graph).items()}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before | after if before.get(name) != after.get(name)}


def labels(names: set[str]) -> set[str]:
    """Their labels; ``WRAP`` is done for the library and, apart from that, for a backend."""
    return {name.split()[0] + (" of a backend" if name == "WRAP gemm cython" else "") for name in names}


LABELS = [label for label, kind in STAGES.items() if kind.module]
KINDS = {*LABELS, "WRAP of a backend"} - {"DISCOVER", "IR", "ENTRY", "OBJECT", "WHEEL", "COMMANDS"}
WRAPS = {"WRAP", "WRAP of a backend"}


CHANGES: dict[str, tuple[Change, set[str]]] = {
    "nothing": (lambda inputs: inputs, set()),
    "TVM": (tool("lowerer", identity="other"), {"LOWER", "LINK", "PACKAGE"}),
    "tvm-ffi": (tool("lowerer", tvm_ffi="0.1.16"), {"LOWER", "LAUNCHER", "CC", "EXT", "LINK", "PACKAGE"}),
    "the C compiler": (
        tool("host_compiler", identity="other"),
        {"LAUNCHER", "CC", "EXT", "GLIBC", "LINK", "PACKAGE"},
    ),
    "nvcc": (tool("nvcc", identity="other"), {"CUBIN", "PTX", "FATBIN", "LINK", "PACKAGE"}),
    "nvdisasm": (lambda inputs: replace(inputs, nvdisasm=replace(inputs.nvdisasm, identity="other")), {"SASS"}),
    "the version of CUDA": (tool("nvcc", version="13.1.0"), {*WRAPS, "CUBIN", "PTX", "FATBIN", "LINK", "PACKAGE"}),
    "flags": (setting(nvcc_flags=("-lineinfo",)), {"CUBIN", "PTX", "LINK"}),
    "flags of the kernel": (kernel(flags=("-lineinfo",)), {"CUBIN", "PTX", "LINK"}),
    "the limit of registers": (setting(max_registers=0), {"LINK"}),
    "the limit of spills": (setting(max_spills=0), {"LINK"}),
    "the compression": (setting(compress="speed"), {*WRAPS, "FATBIN", "PACKAGE"}),
    "where device code is": (setting(split="arch"), {*WRAPS, "LINK", "PACKAGE"}),
    "the oldest glibc": (setting(glibc="2.31"), {"GLIBC", "EXT", "LAUNCHER", "LINK", "PACKAGE"}),
    "a file of the definition": (
        lambda inputs: replace(inputs, contents={FILE: "2" * 64}),
        {"LOWER", "CHECK"},
    ),
    "one more file of the definition": (
        lambda inputs: replace(inputs, contents={**inputs.contents, "kernels/": "3" * 64}),
        {"LOWER", "CHECK"},
    ),
    "what the definition sees besides its files": (
        lambda inputs: replace(inputs, surroundings={"/installed/einops": "5" * 64}),
        {"LOWER", "CHECK"},
    ),
    "the configs of passes": (kernel(pass_configs={"tirx.disable_vectorize": True}), {"LOWER"}),
    "the docstring": (kernel(doc="The product."), {"LINK"}),
    "the tolerance": (kernel(tolerance=0.5), {"CHECK"}),
    "the backward kernel": (kernel(backward="gemm_backward"), {"LINK"}),
    "strictness": (lambda inputs: replace(inputs, strict=True), {"LOWER", "CHECK"}),
}
"""A change of something -> the labels of the stages that have to run, unless their outputs were in the cache."""


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_in_the_signatures_of_the_stages_that_depend_on_it_and_of_no_other(tmp_path, monkeypatch, name):
    change, expected = CHANGES[name]
    before = signatures(tmp_path, monkeypatch, BASE)
    assert labels(set(before)) == KINDS
    assert labels(changed(before, signatures(tmp_path, monkeypatch, change(BASE)))) == expected


def test_what_nobody_else_can_look_at_decides_outputs_that_no_other_machine_may_have(tmp_path, monkeypatch):
    """The stages behind a lowering are known by what it has made, so these may be shared."""

    def asked(inputs: Inputs) -> tuple[set[str], set[str]]:
        stages = graph_of(tmp_path, monkeypatch, inputs).made
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


def test_definitions_are_lowered_again_by_another_interpreter(tmp_path, monkeypatch):
    before = signatures(tmp_path, monkeypatch, BASE)
    monkeypatch.setattr(context, "interpreter", lambda: ["cpython-399"])
    assert labels(changed(before, signatures(tmp_path, monkeypatch, BASE))) == {"LOWER", "CHECK"}


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
    graph.add_kernel(replace(BASE, kernel=record).definition, choose(select(record, BASE.settings), [file]).selection)
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
    ("request_", "stage"),
    [
        ("gemm/m-1 cuda", "LOWER gemm/m-1 cuda"),
        ("nvcc gemm/m-2 compute_80", "PTX gemm/m-2 compute_80"),
        ("check gemm/m-1 cpu", "CHECK gemm/m-1 cpu"),
    ],
)
def test_what_a_stage_read_in_its_last_run_is_in_its_signature(tmp_path, monkeypatch, request_, stage):
    base = setting(nvcc_flags=("-include", "a.h"))(BASE)
    before = signatures(tmp_path, monkeypatch, base)
    later = {request_: {"kernels/table.txt": "4" * 64}}
    assert changed(before, signatures(tmp_path, monkeypatch, replace(base, later=later))) == {stage}


def test_a_cubin_depends_on_what_flags_include_only_if_it_is_made_from_the_source(tmp_path, monkeypatch):
    later = {"nvcc gemm/m-2 sm_80": {"kernels/table.txt": "4" * 64}}
    expected = {"": set(), "it is a script": {"CUBIN gemm/m-2 sm_80"}}
    for obstacle, those in expected.items():
        base = tool("nvcc", obstacle=obstacle)(setting(nvcc_flags=("-include", "a.h"))(BASE))
        before = signatures(tmp_path, monkeypatch, base)
        assert changed(before, signatures(tmp_path, monkeypatch, replace(base, later=later))) == those


def test_without_a_gpu_a_check_depends_on_the_interpreter_and_not_on_the_library(tmp_path, monkeypatch):
    """Where PyTorch is not installed, there is no check, and the line for pip is said."""

    def checks(identity: str) -> dict[str, Stage]:
        graph = new_graph(tmp_path, monkeypatch, inputs)
        graph.__dict__["has_gpu"] = False
        graph.tools.__dict__["of_front_ends"] = {"triton": Distribution("3.9.0", identity)}
        graph.add_kernel(inputs.definition, select(inputs.kernel, inputs.settings))
        return {name: stage for name, stage in stages_of(graph).items() if stage.label == "CHECK"}

    inputs = replace(kernel(frontend="triton", targets=("cuda",))(BASE), listings=())
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
    what = {"here": not_checked(lower.get("triton"), here), "there": not_checked(lower.get("triton"), there)}
    assert what["here"].endswith("; Triton's interpreter can run it: pip install torch")
    assert what["there"].endswith("can run it: tri/bin/python -m pip install 'triton==3.9.*' torch")
    assert not_checked(lower.get("cutedsl"), None).endswith("so it is not checked")


def test_another_nvrtc_compiles_device_code_again(tmp_path, monkeypatch):
    before = signatures(tmp_path, monkeypatch, WITH_NVRTC)
    other = tool("nvrtc", identity="other")(WITH_NVRTC)
    assert labels(changed(before, signatures(tmp_path, monkeypatch, other))) == {"CUBIN", "PTX", "LINK", "PACKAGE"}
    assert labels(changed(before, signatures(tmp_path, monkeypatch, BASE))) >= {"CUBIN", "PTX"}


def test_a_kernel_without_a_library_has_what_the_manifest_says_of_it_in_its_entry(tmp_path, monkeypatch):
    before = signatures(tmp_path, monkeypatch, OWN_FORMAT)
    assert "ENTRY" in labels(set(before)) and "LINK" not in labels(set(before))
    for change in (setting(max_registers=0), kernel(doc="The product."), kernel(backward="other")):
        assert labels(changed(before, signatures(tmp_path, monkeypatch, change(OWN_FORMAT)))) == {"ENTRY"}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (cc, {"CC"}),
        (launcher, {"LAUNCHER", "LINK", "PACKAGE"}),
        (link, {"LINK"}),
        (ext, {"EXT"}),
        (package, {"PACKAGE"}),
    ],
)
def test_headers_and_runtime_modules_are_in_the_signatures_of_what_is_made_with_them(
    tmp_path, monkeypatch, module, expected
):
    before = signatures(tmp_path, monkeypatch, BASE)
    digested: list[Path] = []

    def digest_of(files):
        digested.extend(files)
        return "other"

    monkeypatch.setattr(module, "digest_of", digest_of)
    assert labels(changed(before, signatures(tmp_path, monkeypatch, BASE))) == expected
    wanted = {cc: "types.h", launcher: "dispatch.h", link: "exports.map", ext: "kernel.pxi", package: "loader.py"}[
        module
    ]
    names = {path.name for path in digested}
    assert wanted in names and (module is launcher or "dispatch.h" not in names)


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
    return Path(graph.launcher_stage.paths[0]).relative_to(graph.work.get_abspath()).as_posix()


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
    assert sorted(path.relative_to(graph.work.get_abspath()).as_posix() for path in found) == sorted(expected)


# --- The code of a stage


EXECUTION = "define/kernel core/files worker/definitions worker/imports worker/patterns core/project worker/reads"
EXECUTION += " worker/server worker/strict"
DEVICE_COMPILERS = "compilers/headers compilers/nvcc compilers/nvrtc processes/environment stages/device"
DEVICE_COMPILERS += " compilers/nvcc_steps toolchain/ask toolchain/cuda toolchain/nvcc toolchain/nvcc_steps"
DEVICE_COMPILERS += " toolchain/nvrtc toolchain/nvrtc_compile"
FOLDERS = ("backends", "library", "lower", "package", "toolchain", "wheel")

DECIDING = {
    "DISCOVER": f"discover/discovery {EXECUTION}",
    "LOWER": f"define/program core/dtype lower {EXECUTION} stages/lower",
    "CUBIN": DEVICE_COMPILERS,
    "PTX": DEVICE_COMPILERS,
    "OBJECT": "compilers/host_code compilers/headers compilers/nvcc library/own_code stages/context stages/object "
    "toolchain/nvcc_steps",
    "FATBIN": "compilers/fatbin compilers/nvcc stages/fatbin",
    "SASS": "compilers/sass stages/sass",
    "WRAP": "backends core/dtype compilers/fatbin library stages/wrap stages/context",
    "GLIBC": "compilers/glibc stages/glibc",
    "LAUNCHER": "library/commands library/launcher compilers/nvcc stages/launcher stages/places",
    "CC": "library/commands library/launcher compilers/nvcc stages/cc stages/places",
    "EXT": "backends compilers/nvcc stages/ext stages/places",
    "ENTRY": "core/files compilers/limits package/manifest stages/entry",
    "LINK": "core/files compilers/limits compilers/nvcc library/commands library/own_code package/manifest stages/link "
    "stages/entry",
    "PACKAGE": "backends compilers/fatbin core/files package stages/package",
    "WHEEL": "compilers/fatbin core/files package stages/wheel wheel/archive wheel/content wheel/verify",
    "COMMANDS": "stages/commands core/files",
    "IR": f"define/program core/dtype lower {EXECUTION} stages/lower stages/ir stages/execution",
    "CHECK": f"worker/compare stages/check runtime/size worker/check {EXECUTION}",
}
"""Modules that decide what each stage makes, written by hand: the digest has to have these. A folder stands for all
modules in it."""

STRANGERS = {
    "LOWER": "backends wheel package compilers report state/settled stages/cc stages/device stages/ir scons",
    "CUBIN": "lower worker wheel report stages/lower stages/cc scons",
    "CC": "lower worker wheel report stages/lower stages/device scons",
    "SASS": "lower worker wheel report stages/lower stages/device backends scons",
    "LINK": "lower worker wheel report stages/lower stages/device scons",
    "PACKAGE": "lower worker report stages/lower stages/ir stages/device scons",
}
"""Modules that have nothing to do with a stage: an edit of them must not run it again."""


def modules_of(names: str) -> set[Path]:
    """The files of modules and folders; there have to be such files."""
    found: set[Path] = set()
    for name in names.split():
        folder = PACKAGE / name
        paths = {*folder.glob("*.py")} if folder.is_dir() else {folder.with_suffix(".py")}
        assert paths and all(path.is_file() for path in paths), name
        found |= paths
    return {path for path in found if path.name != "__init__.py"}


@pytest.mark.parametrize("label", LABELS)
def test_the_digest_of_a_stage_has_every_module_that_decides_what_it_makes(label):
    assert modules_of(DECIDING[label]) <= code_of(label, PACKAGE)


@pytest.mark.parametrize("label", STRANGERS)
def test_the_digest_of_a_stage_has_no_module_that_has_nothing_to_do_with_it(label):
    assert not modules_of(STRANGERS[label]) & code_of(label, PACKAGE)


@pytest.mark.parametrize("label", LABELS)
def test_what_is_imported_by_name_is_code_of_each_stage_that_may_do_so(label):
    modules = code_of(label, PACKAGE)
    for module in modules:
        if "import_module(" in module.read_text() and module.name == "__init__.py":
            assert {*module.parent.glob("*.py")} <= modules, f"{label} may import any of {module.parent.name}"


def imported_by_syntax_tree(module: Path) -> set[Path]:
    """The modules of ours that a module imports, as Python's own parser finds them."""
    tree = ast.parse(module.read_text())
    for node in [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]:
        node.body = [ast.Pass()]
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not any(name.name.startswith("kernelwright") for name in node.names), "imports of ours are relative"
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = module.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            names |= {folder, *(folder / name.name for name in node.names)}
    files = {file for name in names for file in (name.with_suffix(".py"), name / "__init__.py")}
    return {file for file in files if file.is_file()}


def test_the_imports_of_a_module_are_those_that_python_sees():
    modules = [path for path in PACKAGE.rglob("*.py") if "template" not in path.parts]
    assert len(modules) > 100
    for module in modules:
        seen = imported_by_syntax_tree(module)
        found = {path for path in imported(module, PACKAGE) if path is not None}
        assert seen <= found, module
        assert len(found - seen) <= 3, "lines of docstrings and templates may look like imports"


IMPORTS = """
from typing import TYPE_CHECKING

from . import (
    cc,
    check as checks,
)
from ..core import errors, files  # modules
from ..core.arch import (
    is_ptx,
)
from .. import wheel

if TYPE_CHECKING:
    from . import kernel

    from .context import Context


def late() -> None:
    from . import lower

    if lower:
        from .entry import make
"""
"""Imports of all the forms that our code has, and two for annotations only."""


def test_imports_of_every_form_are_followed_and_those_for_annotations_are_not(tmp_path):
    top = tmp_path / "kernelwright"
    expected = {
        *("stages/__init__.py", "stages/cc.py", "stages/check.py", "stages/lower.py", "stages/entry.py"),
        *("core/__init__.py", "core/errors.py", "core/files.py", "core/arch.py", "__init__.py", "wheel/__init__.py"),
    }
    for name in (*expected, "stages/kernel.py", "stages/context.py"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()
    module = top / "stages" / "made.py"
    module.write_text(IMPORTS)
    found = {path for path in imported(module, top) if path is not None}
    assert found == imported_by_syntax_tree(module) == {top / name for name in expected}


@pytest.mark.parametrize("label", sorted(KINDS & set(LABELS)))
def test_the_code_of_a_stage_is_in_its_signature(tmp_path, monkeypatch, label):
    before = signatures(tmp_path, monkeypatch, BASE)
    known = {other: code_digest(other) for other in LABELS}
    monkeypatch.setattr(stage_module, "code_digest", lambda other: "new code" if other == label else known[other])
    found = changed(before, signatures(tmp_path, monkeypatch, BASE))
    assert found == {name for name in before if name.split()[0] == label}


def a_stage(**fields: Any) -> Stage:
    """A stage with two sources."""
    sources = ["/top/a.cu", "/top/b.h"]
    given = {"label": "CUBIN", "subject": "gemm/m-1 sm_80", "where": None, "request": {"arch": "sm_80"}}
    return Stage(**{**given, "make": None, "outputs": {}, "sources": sources, **fields})


def key(stage: Stage, **digests: str) -> str:
    """Its key in the build cache."""
    known = {"/top/a.cu": "1", "/top/b.h": "2"} | {f"/top/{name.replace('_', '.')}": d for name, d in digests.items()}
    return stage.cache_key(known.__getitem__)


def test_the_code_of_a_stage_is_in_its_key_in_the_cache(monkeypatch):
    before, signature = key(a_stage()), a_stage().fingerprint
    monkeypatch.setattr(stage_module, "code_digest", lambda label: "new code")
    assert key(a_stage()) != before and a_stage().fingerprint != signature


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


def test_what_is_known_only_when_the_kernels_are_made_is_in_the_signature():
    late = ["first"]
    stage = a_stage(late=lambda: late)
    before = stage.fingerprint
    late[0] = "second"
    assert stage.fingerprint != before


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """A copy of our sources, which the digests are made of."""
    copy = tmp_path / "kernelwright"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "template"))
    monkeypatch.setattr(code_module, "PACKAGE", copy)
    return copy


def test_an_edit_of_any_module_that_decides_what_a_stage_makes_changes_its_digest(own_code):
    def digests() -> dict[str, str]:
        code_module.text_digest.cache_clear()
        return {label: code_digest.__wrapped__(label) for label in LABELS}

    before = digests()
    assert before == {label: code_digest(label) for label in LABELS}, "the same text has the same digest anywhere"
    whole = code_module.own_code()
    deciding = {label: code_of(label, own_code) for label in LABELS}
    for file in set().union(*deciding.values()):
        text = file.read_text()
        file.write_text(text + "\n# edited\n")
        after = digests()
        edited = {label for label in LABELS if after[label] != before[label]}
        assert edited == {label for label, files in deciding.items() if file in files}, file
        assert code_module.own_code() != whole
        file.write_text(text)


@pytest.mark.parametrize(
    "name", ["library/launcher/" + file for file in ("cuda.h", "exports.map", "python/kernel.pxi")] + ["scons/graph.py"]
)
def test_an_edit_of_the_launcher_or_of_any_module_has_every_kernel_looked_at(own_code, name):
    before = code_module.own_code()
    file = own_code / name
    file.write_text(file.read_text() + "\n")
    assert code_module.own_code() != before


# --- What the build cache keeps apart


def cache_keys(graph: PackageGraph) -> dict[str, str]:
    """The keys of the stages that the build cache keeps, if no two files have the same content."""
    return {name: stage.cache_key(str) for name, stage in stages_of(graph).items() if stage.cacheable}


def test_no_two_stages_of_a_package_have_the_same_key_in_the_cache(tmp_path, monkeypatch):
    two_kernels = replace(BASE, others=(replace(GEMM, name="other"),))
    inputs = setting(archs=("x86-64-v2", "x86-64-v3", *ARCHS))(two_kernels)
    keys = cache_keys(graph_of(tmp_path, monkeypatch, inputs))
    assert labels(keys.keys()) == KINDS - {"PACKAGE", "CHECK"}
    lowered = {name for name in keys if name.startswith("LOWER")}
    assert len(lowered) == 2 * 2 * 3, "of two kernels with two variants, for two CPU archs and for CUDA"
    names_of: dict[str, list[str]] = {}
    for name, known in keys.items():
        names_of.setdefault(known, []).append(name)
    assert [names for names in names_of.values() if len(names) > 1] == []


def test_libraries_of_each_oldest_glibc_have_their_own_key_in_the_cache(tmp_path, monkeypatch):
    floors = ("2.28", "2.34")
    keys = [cache_keys(graph_of(tmp_path, monkeypatch, setting(glibc=floor)(BASE))) for floor in floors]
    assert len({known[f"GLIBC {floor}"] for known, floor in zip(keys, floors, strict=True)}) == 2


# --- The arch that CUDA source is made for


@pytest.mark.parametrize(
    ("archs", "expected"),
    [
        (("sm_90a", "sm_80"), "sm_80"),
        (("sm_100", "sm_90"), "sm_90"),
        (("sm_90a", "sm_90"), "sm_90"),
        (("sm_90a", "compute_80"), "sm_80"),
        (("compute_75", "sm_80"), "sm_75"),
    ],
)
def test_cuda_source_is_made_for_the_lowest_arch_however_they_are_listed(archs, expected):
    assert lowering_arch(archs) == lowering_arch(archs[::-1]) == expected


def test_the_order_of_archs_lowers_nothing_again(tmp_path, monkeypatch):
    before = signatures(tmp_path, monkeypatch, BASE)
    turned = setting(archs=BASE.settings.archs[::-1])(BASE)
    assert "LOWER" not in labels(changed(before, signatures(tmp_path, monkeypatch, turned)))


def test_a_variant_that_is_not_listed_has_the_signature_that_it_would_have_in_the_list(tmp_path, monkeypatch):
    listed = kernel(configs=({"m": 1}, {"m": 2}, {"m": 3}), slugs=("m-1", "m-2", "m-3"))(BASE)
    graph = new_graph(tmp_path, monkeypatch, BASE)
    graph.add_kernel(BASE.definition, select(listed.kernel, BASE.settings))
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

    graph.run.__dict__["pool"] = SimpleNamespace(call=call)
    monkeypatch.setattr(UnitFiles, "read_signature", lambda unit: {})
    scratch = graph.run.top / "scratch" / stage.subject.replace("/", " ")
    scratch = scratch.with_name(f"{stage.label} {scratch.name}")
    scratch.mkdir(parents=True)
    with pytest.raises(SentError) as caught:
        stage.make(stage.request, scratch, StageRun(graph.run, stage))
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
            assert stage.request == shown[name.replace("IR", "LOWER")].request and not stage.cacheable
    request = request_of(shown["IR gemm/m-2 cuda"], graph, monkeypatch)
    lowering = request_of(shown["LOWER gemm/m-2 cuda"], graph, monkeypatch)
    assert Path(request.ir).is_dir() and replace(request, out="", ir="") == replace(lowering, out="")
