"""What is said in two places agrees: stages, settings, options, commands, requirements, benchmarks and their docs."""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from kernelwright import backends, kernel
from kernelwright.cli import command_of
from kernelwright.commands import COMMANDS
from kernelwright.commands.report.timeline import COLOURS, colour_rules
from kernelwright.commands.tool import TOOLS
from kernelwright.core.pipeline import KINDS, MEMORY_KIB, STAGES
from kernelwright.define.names import RESERVED
from kernelwright.define.settings import SETTINGS, Settings
from kernelwright.frontends.cutedsl.program import VERSION as CUTEDSL
from kernelwright.frontends.triton.program import VERSION as TRITON
from kernelwright.ondemand.options import INTERNAL, OTHERS, VARIABLES
from kernelwright.runtime.loader import SCHEMA
from kernelwright.scons.command_line import OPTIONS, VALUED
from kernelwright.stages.code import code_of
from kernelwright.worker.compare import TOLERANCES
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "site_scons/kernelwright"


def doc(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    """A part of a page of the docs, up to the next heading of the same depth."""
    text = doc(name).partition(f"\n{heading}\n")[2]
    assert text, f"{name} has no {heading}"
    return re.split(rf"\n{heading.split()[0]} ", text, maxsplit=1)[0]


def first_cells(text: str) -> list[str]:
    """The names in backticks in the first cells of all tables."""
    cells = re.findall(r"^\| (`[^|]*?) \|", text, re.M)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def project() -> dict[str, Any]:
    return pyproject()["project"]


def requirements(extra: str) -> dict[str, Requirement]:
    listed = project()["optional-dependencies"][extra] if extra else project()["dependencies"]
    return {found.name: found for found in map(Requirement, listed)}


def group(name: str) -> dict[str, Requirement]:
    listed = pyproject()["dependency-groups"][name]
    return {found.name: found for found in map(Requirement, listed)}


@cache
def all_calls() -> dict[str, list[ast.Call]]:
    """Name of a function or method -> its calls in the package."""
    found: dict[str, list[ast.Call]] = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                found[getattr(node.func, "attr", getattr(node.func, "id", ""))].append(node)
    return found


def calls(name: str) -> list[ast.Call]:
    return all_calls()[name]


def require_written(name: str) -> dict[str, Any]:
    """A page has the table that follows from the code; what the script that writes it is made of."""
    run = runpy.run_path(str(ROOT / "docs/tables.py"))
    page = doc(name)
    assert run["with_tables"](page, run["tables"]()[name]) == page, "run: python docs/tables.py"
    return run


# Stages.

MADE = {label: kind for label, kind in KINDS.items() if kind.module}


def test_the_report_has_a_colour_for_every_stage():
    rules = colour_rules()
    for number, kind in enumerate(STAGES):
        for colour in kind.colours:
            assert f".c{number} {{ --c: {colour}; }}\n" in rules, "on a light and on a dark page"
    assert rules.count("{ --c: #") == 2 * len(COLOURS) and len(COLOURS) > len(STAGES)
    assert len({kind.colours for kind in STAGES}) == len(STAGES)


def test_every_stage_that_is_made_is_in_the_table():
    made = {call.args[0].value for call in calls("Stage") if isinstance(call.args[0], ast.Constant)}
    assert made | {"CUBIN", "PTX"} == set(MADE), "CUBIN and PTX are made by one call, with a variable"
    for kind in MADE.values():
        for name in (kind.module, *kind.also):
            path = PACKAGE / name.replace(".", "/")
            assert path.is_dir() or path.with_suffix(".py").is_file(), f"{kind.label}: {name}"
    names = {kind.module.removeprefix("stages.") for kind in MADE.values()}
    helpers = {"left_out"} | {
        "__init__",
        "code",
        "compilation",
        "context",
        "execution",
        "kernel",
        "partial",
        "places",
        "runs",
        "stage",
    }
    helpers |= {
        "common",
        "stage_run",
        "tools",
        "tuning",
        "configured",
        "discovery",
        "registered",
        "selection",
        "tuned",
        "undefined",
    }
    assert names | helpers == {path.stem for path in (PACKAGE / "stages").glob("*.py")}, "one file for each stage"


def test_the_docs_have_the_table_of_the_stages():
    require_written("architecture.md")
    shown = re.findall(r"`\[ (\w+) \]", doc("reference-scons.md"))
    assert set(shown) == {*MADE, "CACHED"}


def test_all_modules_that_are_code_of_no_stage_are_known_to_decide_nothing():
    deciding = {path for label in MADE for path in code_of(label, PACKAGE)}
    without = ("cluster", "commands", "ondemand", "scons", "testing", "tune")  # folders that no stage imports
    modules = {path for path in PACKAGE.rglob("*.py") if path.parts[len(PACKAGE.parts)] not in without}
    others = {path.relative_to(PACKAGE).as_posix() for path in modules - deciding}
    assert {name for name in others if not name.endswith("__init__.py")} == DECIDING_NOTHING


def modules(begin: str, names: str) -> set[str]:
    return {f"{begin}{name}.py" for name in names.split()}


DECIDING_NOTHING = {
    *modules("", "__main__ build cli cuda cutedsl tilelang triton"),
    # Their results are in the options: who the tools are, and our version.
    *(*modules("toolchain/", "miscompiles other_machine probe"), *modules("core/", "answers version")),
    *(*modules("core/", "located once pipeline shard status_line"), *modules("define/", "tables tuning")),
    *modules("processes/", "of_build"),
    # What is shipped is compared by its content, or its text is among the options of PACKAGE.
    *modules(
        "runtime/", "kernel cython_kernel jax_kernel recorded_kernel recorded_values torch_kernel torch_names torch_ops"
    ),
    *modules("runtime/cuda_core_", "arrays device frameworks kernel launch match memory"),
    *modules("stages/", "configured kernel partial selection tools tuned"),
    *modules("state/", "cache counts entries finished journal layers own_folder restorer settled"),
    *modules("state/", "bench_result shards trace tuning_result"),
    *modules("state/remote_", "bazel client entries objects opening store"),
    *(*modules("package/", "diff sdist"), *modules("worker/", "elsewhere forkserver start_elsewhere tvm_import")),
}
"""Modules that no stage's signature has: what they do does not change what a stage makes out of its inputs, or it is in
the options of the stage."""


def test_the_docs_list_every_folder_in_the_order_of_the_floors():
    floors = re.search(r"```text\n(commands .*?)```", section("architecture.md", "## Folders"), re.S)
    listed = [line.split()[0] for line in floors[1].splitlines() if line[0] != " "] if floors else []
    assert sorted(listed) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def test_the_docs_name_files_that_exist():
    for page in sorted((ROOT / "docs").glob("*.md")):
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|h|pxi))`", page.read_text(encoding="utf-8")):
            folder = name.partition("/")[0]
            if (PACKAGE / folder).is_dir() and "/_" not in name:
                assert (PACKAGE / name).exists() or name.endswith(
                    ("keyword.py", "keyword_kernel.py", "te/front_end.py")
                ), f"{page.name}: {name}"


# Compilers.


def test_memory_has_a_first_estimate_for_every_kind_of_run():
    given = [
        k.value
        for call in (*calls("run"), *calls("tool"), *calls("ToolCall"))
        for k in call.keywords
        if k.arg == "kind"
    ]
    kinds = {
        value.value for value in given if isinstance(value, ast.Constant)
    }  # a run that shows commands passes it on
    assert kinds == set(MEMORY_KIB)


# Settings, options, commands, arguments.


def test_the_docs_have_the_table_of_the_settings_that_are_declared():
    run = require_written("reference-settings.md")
    table = doc("reference-settings.md")
    assert run["written_part"](SETTINGS, Settings()) in table
    assert re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", table, re.M) == list(SETTINGS)


def test_the_docs_list_every_option_command_and_tool():
    commands = doc("reference-scons.md")
    for name in OPTIONS:
        assert f"| `scons --{name}` |" in commands
    for name in VALUED:
        assert re.search(rf"^\| `scons --{name}[ =]\S+` \|", commands, re.M), name
    require_written("reference-commands.md")
    tools = doc("reference-commands.md")
    assert set(re.findall(r"^\| `kernelwright (\w+)", tools, re.M)) == set(COMMANDS)
    actions = [action.name for action in command_of("cache").actions]
    assert re.findall(r"^\| `kernelwright cache (\w+)", tools, re.M) == actions
    row = re.search(r"^\| `kernelwright tool .*NAME`.*`NAME`: (.*), or package:FOLDER; ", tools, re.M)
    assert row and set(row[1].split(", ")) == {*TOOLS, "a front end that brings headers"}


def test_the_docs_list_every_argument_of_the_decorator():
    named = [n for n, p in inspect.signature(kernel).parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    require_written("reference-definitions.md")
    text = doc("reference-definitions.md").partition("\n## ")[0]
    assert sorted(first_cells(text)) == sorted(named)
    reserved = re.search(r"or be one of (.*?)\.\n", text, re.S)
    assert reserved and set(re.findall(r"`(\w+)`", reserved[1])) == RESERVED


def test_the_docs_list_every_tolerance():
    rows = re.findall(r"^\| `(\w+)` \| ([\d.e-]+) \|", doc("reference-checks.md"), re.M)
    assert {name: float(value) for name, value in rows} == TOLERANCES


def test_the_docs_list_every_variable_of_the_environment():
    sources = [p.read_text() for p in (PACKAGE / "backends/launcher").rglob("*.h")]
    found = [name for text in sources for name in re.findall(r'"(KERNELWRIGHT_\w+)"', text)]
    documented = set(first_cells(section("reference-package.md", "## Environment variables")))
    assert found and set(found) <= documented


def test_the_docs_have_the_table_of_the_variables_of_compile_on_demand():
    require_written("on-demand.md")
    documented = first_cells(section("on-demand.md", "## Environment variables"))
    assert documented == list(VARIABLES)
    sources = [path.read_text(encoding="utf-8") for path in (PACKAGE / "ondemand").glob("*.py")]
    read = {name for text in sources for name in re.findall(r'"(KERNELWRIGHT_[A-Z_]+)"', text)}
    assert read == {*VARIABLES, *OTHERS, *INTERNAL}


# Backends and what is installed for them.


def test_the_docs_list_every_backend():
    names = set(backends.names())
    word = re.search(r"^\| backend \| .*$", doc("architecture.md"), re.M)
    assert word and set(re.findall(r"`(\w+)`", word[0])) - {"cpp"} == names
    table = re.findall(r"^\| \[?`(\w+)`\]?[^|]*\|", doc("backends.md"), re.M)
    assert set(table) >= names
    text = re.search(r"^- `backends`: .*?\.\n", doc("reference-settings.md"), re.M | re.S)
    assert text and set(re.findall(r"`(\w+)`", text[0])) >= names
    assert f"`schema` is {SCHEMA}" in doc("manifest.md")


@pytest.mark.parametrize("name", backends.names())
def test_what_is_installed_for_tests_and_builds_suits_what_backends_need(name):
    backend = backends.get(name)
    known = requirements("") | group("frameworks") | requirements("cython") | group("test")
    for need in (*backend.run_needs, *backend.build_needs):
        mine = Requirement(need.requirement)
        if mine.name not in known:
            assert mine.name in ("cuda-core", "cuda-bindings") and "cuda-python" in known
            continue
        theirs = known[mine.name].specifier
        lowest = next(s.version for s in theirs if s.operator in (">=", "=="))
        assert mine.specifier.contains(lowest), f"{need.requirement}, and pyproject.toml allows {theirs}"
        if need.module == "jax":
            assert f"`jax` {lowest} or newer" in doc("backends-jax.md")


def test_parts_of_cuda_are_pinned_together_and_docs_name_the_pins():
    cuda, nvrtc = requirements("cuda"), requirements("nvrtc")
    assert {name: str(nvrtc[name]) for name in cuda.keys() & nvrtc.keys()} == {
        name: str(cuda[name]) for name in cuda.keys() & nvrtc.keys()
    }
    assert str(requirements("cutedsl")["nvidia-cutlass-dsl"].specifier) == f"=={CUTEDSL}"
    assert str(requirements("triton")["triton"].specifier) == f"=={TRITON}.*"
    pinned = str(requirements("")["apache-tvm-ffi"])
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    assert {found for page in pages for found in re.findall(r"apache-tvm-ffi==[\w.]+", page)} == {pinned}
    extras = set(project()["optional-dependencies"])
    texts = [p.read_text(encoding="utf-8") for p in (*PACKAGE.rglob("*.py"), *(ROOT / "docs").glob("*.md"))]
    asked = {e for text in texts for listed in re.findall(r"kernelwright\[([\w,]+)\]", text) for e in listed.split(",")}
    assert asked and asked <= extras


# Benchmarks.


def test_every_benchmark_has_a_row_and_a_result():
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.suite import MODULES
    finally:
        sys.path.remove(str(ROOT))
    if not (ROOT / "benchmarks/results").is_dir():
        pytest.skip("a source distribution has no results of benchmarks")
    text = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8").partition("## What is measured")[2]
    assert set(first_cells(text.partition("\n## ")[0])) == set(MODULES)
    results = {path.stem: json.loads(path.read_text()) for path in (ROOT / "benchmarks/results").glob("*.json")}
    assert set(results) == set(MODULES)
    assert all(document["benchmark"] == name and document["rows"] for name, document in results.items())


def test_every_statement_of_the_security_page_names_tests_that_exist():
    rows = [line for line in doc("security.md").splitlines() if line.startswith("|") and not line.startswith("|---")]
    named = 0
    for row in rows:
        *_, last, _ = row.split("|")
        found = re.findall(r"`([\w/]+\.py)::(\w+)`", last)
        assert found or last.strip() == "test", row
        for file, name in found:
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file} has no {name}"
        named += len(found)
    assert named
