"""The digest of a stage's code: every module that decides what it makes is in it, and none that does not."""

from __future__ import annotations

import ast
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from kernelwright.core.pipeline import KINDS, RUNNER
from kernelwright.stages import code as code_module
from kernelwright.stages.code import PACKAGE, code_digest, code_of, imported, module_file
from support.sources import nodes, trees

LABELS = [label for label, kind in KINDS.items() if kind.module]

EXECUTION = "define/kernel core/files worker/definitions worker/imports worker/patterns core/project worker/reads"
EXECUTION += " worker/server worker/strict worker/events worker/watch worker/looks"
DEVICE_COMPILERS = "toolchain/headers toolchain/nvcc_run toolchain/nvrtc_run processes/environment stages/device"
DEVICE_COMPILERS += " toolchain/nvcc_steps_run toolchain/ask toolchain/cuda toolchain/nvcc toolchain/nvcc_steps"
DEVICE_COMPILERS += " toolchain/nvrtc toolchain/nvrtc_compile"

DECIDING = {
    "DISCOVER": f"stages/discovery {EXECUTION}",
    "LOWER": f"frontends/cutedsl/program core/dtype frontends {EXECUTION} stages/lower",
    "CUBIN": DEVICE_COMPILERS,
    "PTX": DEVICE_COMPILERS,
    "TEXT": "stages/text",
    "OBJECT": "toolchain/host_code toolchain/headers toolchain/nvcc_run stages/context stages/object "
    "toolchain/nvcc_steps",
    "FATBIN": "toolchain/fatbin toolchain/nvcc_run stages/fatbin",
    "SASS": "stages/sass",
    "WRAP": "backends core/dtype toolchain/fatbin stages/wrap stages/context",
    "GLIBC": "stages/glibc",
    "LAUNCHER": "backends/commands backends/launcher toolchain/nvcc_run stages/launcher stages/places",
    "CC": "backends/commands backends/launcher toolchain/nvcc_run stages/cc stages/places",
    "EXT": "backends toolchain/nvcc_run stages/ext stages/places",
    "ENTRY": "core/files toolchain/limits package/manifest stages/entry",
    "SOURCES": "backends/commands backends/launcher backends/operators backends/own_code toolchain/nvcc_run "
    "stages/sources stages/registered stages/object stages/places",
    "LINK": "core/files toolchain/limits toolchain/nvcc_run backends/commands backends/own_code package/manifest "
    "stages/link stages/entry",
    "TORCH": "core/files toolchain/pytorch toolchain/torch_registry toolchain/nvcc_run backends/commands "
    "backends/description backends/own_code package/manifest stages/torch_library stages/entry",
    "PACKAGE": "backends toolchain/fatbin core/files package/assemble package/manifest package/stubs stages/package",
    "WHEEL": "toolchain/fatbin core/files package/assemble package/manifest package/archive package/content "
    "package/verify stages/wheel",
    "COMMANDS": "stages/commands core/files",
    "IR": f"frontends/cutedsl/program core/dtype frontends {EXECUTION} stages/lower stages/ir stages/execution",
    "CHECK": f"worker/compare stages/check runtime/size worker/check {EXECUTION}",
}
"""Modules that decide what each stage makes, written by hand: the digest has to have these. A folder stands for all
modules in it."""

for label in ("PTX", "CUBIN", "OBJECT", "FATBIN", "CC", "LAUNCHER", "GLIBC", "EXT", "SOURCES", "LINK", "TORCH", "SASS"):
    DECIDING[label] += " processes/runner processes/environment"

WHEEL_MODULES = "archive content described device_code diff git members package_files platform project sdist size_table"
WHEEL_MODULES += " source verify version"
WHEELS = " ".join(f"package/{name}" for name in WHEEL_MODULES.split())
COMPILER_MODULES = "fatbin headers host_code limits nvcc_run nvcc_steps_run nvrtc_run plain_flags shared trimmed_source"
COMPILERS = " ".join(f"toolchain/{name}" for name in COMPILER_MODULES.split())

STRANGERS = {
    "LOWER": f"backends package {COMPILERS} commands/report state/settled stages/cc stages/device stages/glibc "
    "stages/ir scons",
    "CUBIN": f"frontends worker {WHEELS} commands/report stages/lower stages/cc scons",
    "CC": f"frontends worker {WHEELS} commands/report stages/lower stages/device scons",
    "SASS": f"frontends worker {WHEELS} commands/report stages/lower stages/device backends scons",
    # The entry that is written with a library says which drivers its device code needs.
    "LINK": f"frontends worker {WHEELS.replace('package/device_code ', '')} commands/report stages/lower scons",
    "PACKAGE": "frontends worker commands/report stages/lower stages/ir stages/device scons",
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
def test_the_digest_of_a_stage_has_every_module_that_decides_what_it_makes_and_no_stranger(label: str) -> None:
    modules = code_of(label, PACKAGE)
    assert modules_of(DECIDING[label]) <= modules and not modules_of(STRANGERS.get(label, "")) & modules
    for module in modules:
        if "plugins.find(" in module.read_text() and module.name == "__init__.py":
            assert {*module.parent.glob("*.py")} <= modules, f"{label} may import any of {module.parent.name}"


def test_a_stage_that_runs_tools_has_what_runs_them_as_its_code() -> None:
    for label in DECIDING:
        module = module_file(f"{PACKAGE}/{KINDS[label].module.replace('.', '/')}")
        asks = module is not None and re.search(r"stage\.tools?\b", module.read_text())
        assert bool(asks) == (RUNNER in KINDS[label].also), label


def imported_by_syntax_tree(module: Path, found: Iterable[ast.AST]) -> set[Path]:
    """The modules of ours that a module imports, as Python's own parser finds them."""
    found = [*found]
    unused = [n for n in found if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    left_out = {id(node) for statement in unused for node in ast.walk(statement)}
    names = set()
    for node in (n for n in found if id(n) not in left_out):
        if isinstance(node, ast.Import):
            assert not any(name.name.startswith("kernelwright") for name in node.names), "imports of ours are relative"
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = module.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            names |= {folder, *(folder / name.name for name in node.names)}
    files = {file for name in names for file in (name.with_suffix(".py"), name / "__init__.py")}
    return {file for file in files if file.is_file()}


def test_the_imports_of_a_module_are_those_that_python_sees():
    for module in (path for path in trees() if "template" not in path.parts):
        seen = imported_by_syntax_tree(module, nodes(module))
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
from .. import package

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
        *("core/__init__.py", "core/errors.py", "core/files.py", "core/arch.py", "__init__.py", "package/__init__.py"),
    }
    for name in (*expected, "stages/kernel.py", "stages/context.py"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()
    module = top / "stages" / "made.py"
    module.write_text(IMPORTS)
    found = {path for path in imported(module, top) if path is not None}
    seen = imported_by_syntax_tree(module, ast.walk(ast.parse(IMPORTS)))
    assert found == seen == {top / name for name in expected}


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
    deciding = {label: code_of(label, own_code) for label in LABELS}
    users = Counter(file for files in deciding.values() for file in files)
    # A module that few other stages have, and one that many have, of each stage.
    for file in sorted(
        {one(files, key=lambda file: (users[file], file)) for files in deciding.values() for one in (min, max)}
    ):
        text = file.read_text()
        file.write_text(text + "\n# edited\n")
        after = digests()
        edited = {label for label in LABELS if after[label] != before[label]}
        assert edited == {label for label, files in deciding.items() if file in files}, file
        file.write_text(text)


def test_an_edit_of_the_launcher_or_of_any_module_has_every_kernel_looked_at(own_code):
    launcher = ("launch.h", "exports.map", "operators/operators.cc", "python/kernel.pxi")
    seen = {code_module.own_code()}
    for name in (*(f"backends/launcher/{file}" for file in launcher), "scons/graph.py"):
        with (own_code / name).open("a") as file:
            file.write("\n")
        assert code_module.own_code() not in seen, name
        seen.add(code_module.own_code())
