"""Mutates modules at random, and runs the unit tests of each module to see whether they find its mutants.

``python tests/mutants/random_sample.py --count 300 --seed 7`` prints every mutant that no test finds, with its file,
its line and the change, and at the end how many were found. Status 0 if it was at least ``--goal`` per cent. Each
module has random numbers of its own, so the same seed chooses the same mutants of a module until it is edited.

The mutants are those of mutmut, used as a library and no part of what Kernelwright needs, so install it first:
``pip install mutmut==3.8.1``. Only modules with unit tests of their own, that need no run of SCons and no GPU, take
part: the table ``TESTS``. Each run has the tests of one module only, so what other tests would find does not count.

These changes are no bugs, so they are left out:

- of docstrings, type annotations, names of types, ``import``, ``__all__``, decorators and ``if TYPE_CHECKING``;
- of wording: strings with a blank in them, strings in what is raised, and f-strings there;
- of arguments of ``len`` and ``isinstance``, where all that can come of it is a TypeError;
- of ``"utf-8"`` to ``"UTF-8"``, and those that compile to the same program or to none.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators
from run import ROOT, copy_of_the_tree

SOURCES = "site_scons/kernelwright/"
TESTS = {
    "backends/__init__.py": "test_backend_registry",
    "state/cache.py": "test_cache",
    "state/entry.py": "test_cache",
    "worker/compare.py": "test_compare",
    "define/kernel.py": "test_declare",
    "discover/discovery.py": "test_discovery",
    "core/arch.py": "test_arch",
    "core/dtype.py": "test_dtypes",
    "core/errors.py": "test_error_texts",
    "compilers/fatbin.py": "test_fatbin test_fatbin_images",
    "core/files.py": "test_files",
    "compilers/glibc.py": "test_glibc",
    "compilers/headers.py": "test_headers",
    "compilers/limits.py": "test_limits",
    "processes/memory.py": "test_memory",
    "package/manifest.py": "test_manifest",
    "runtime/provider.py": "test_provider",
    "runtime/arch.py": "test_arch",
    "runtime/dtype.py": "test_dtypes",
    "runtime/size.py": "test_sizes",
    "runtime/arguments.py": "test_signature",
    "discover/selection.py": "test_plan",
    "core/records.py": "test_records",
    "report/code.py": "test_report",
    "report/data.py": "test_report",
    "report/markup.py": "test_report",
    "report/page.py": "test_report",
    "report/timeline.py": "test_report",
    "scons/journal.py": "test_journal",
    "state/journal.py": "test_journal",
    "core/sealed.py": "test_sealed",
    "define/settings.py": "test_settings",
    "state/settled.py": "test_settled test_settled_records",
    "state/trace.py": "test_trace",
    "wheel/archive.py": "test_archive",
    "wheel/content.py": "test_content",
    "wheel/git.py": "test_source",
    "wheel/members.py": "test_members test_verify",
    "wheel/project.py": "test_project",
    "wheel/sdist.py": "test_source",
    "wheel/source.py": "test_project test_source",
    "wheel/verify.py": "test_verify_code test_verify",
    "wheel/version.py": "test_project test_source",
}
"""Module -> the files in ``tests/unit`` with its tests."""

ENDS_AFTER = 300
"""Seconds after which the tests of one mutant are ended, and the mutant counts as found: far more than any takes. It is
printed, because it says nothing if the machine was merely slow."""


@dataclass(frozen=True)
class Mutant:
    """A changed module.

    Attributes:
        module: its name in ``TESTS``.
        line: where the change is.
        source: what the module is then.
    """

    module: str
    line: int
    source: str

    @property
    def place(self) -> str:
        return f"{SOURCES}{self.module}:{self.line}"

    @property
    def change(self) -> str:
        """The lines that differ."""
        original = (ROOT / SOURCES / self.module).read_text(encoding="utf-8")
        lines = difflib.unified_diff(original.splitlines(), self.source.splitlines(), lineterm="", n=0)
        return "\n".join("    " + line for line in [*lines][3:])


def mutable(node: cst.CSTNode, raised: bool = False) -> Iterator[tuple[cst.CSTNode, bool]]:
    """A node and those in it that may be changed, each with whether it is part of what is raised."""
    if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom):
        return
    if isinstance(node, cst.If) and isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING":
        return
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.BaseString):
        return
    if isinstance(node, cst.Assign) and names_types(node):
        return
    raised = raised or isinstance(node, cst.Raise) or (isinstance(node, cst.Call) and called(node).endswith("Error"))
    if isinstance(node, cst.FormattedString) and raised:
        return
    if not (isinstance(node, cst.Call) and called(node) in ("len", "isinstance")):
        yield node, raised
    for child in node.children:
        yield from mutable(child, raised)


def called(call: cst.Call) -> str:
    """The name of what is called, without what is before a dot."""
    name = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    return name.value if isinstance(name, cst.Name) else ""


def names_types(assignment: cst.Assign) -> bool:
    """Whether it gives a name to a type, such as ``Array = NDArray[Any]``, or lists what a module exports."""
    target = assignment.targets[0].target
    name = target.value.lstrip("_") if isinstance(target, cst.Name) else ""
    makes_type = isinstance(assignment.value, cst.Subscript | cst.Call)
    return (makes_type and name[:1].isupper() and not name.isupper()) or name == "all__"


def is_wording(old: cst.CSTNode, new: cst.CSTNode, raised: bool) -> bool:
    """Whether a change is one of words that are only read, or of how a codec is spelt."""
    if not isinstance(old, cst.SimpleString) or not isinstance(new, cst.SimpleString):
        return False
    return raised or " " in old.value or old.value.lower() == new.value.lower() == '"utf-8"'


def changes_of(module: str) -> list[tuple[str, int, cst.Module, cst.CSTNode, cst.CSTNode]]:
    """Every change of a module: its name, the line, the syntax tree, and a node with what takes its place."""
    wrapper = MetadataWrapper(cst.parse_module((ROOT / SOURCES / module).read_text(encoding="utf-8")))
    lines = wrapper.resolve(PositionProvider)
    return [
        (module, lines[old].start.line, wrapper.module, old, new)
        for old, raised in mutable(wrapper.module)
        for kind, operator in mutation_operators
        if isinstance(old, kind)
        for new in operator(old)
        if not is_wording(old, new, raised)
    ]


def is_other_program(source: str, original: str) -> bool:
    """Whether a changed source compiles, to something else than the original."""
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return ast.dump(ast.parse(source)) != ast.dump(ast.parse(original))


def sample(count: int, seed: int) -> list[Mutant]:
    """So many mutants of all modules together, each as likely as any other, in random order."""
    changes = []
    for module in TESTS:
        numbers = random.Random(f"{seed} {module}")
        changes += [(numbers.random(), change) for change in changes_of(module)]
    found: list[Mutant] = []
    for _, (module, line, tree, old, new) in sorted(changes, key=lambda ranked: ranked[0]):
        source = cst.ensure_type(tree.deep_replace(old, new), cst.Module).code
        if is_other_program(source, tree.code):
            found.append(Mutant(module, line, source))
        if len(found) == count:
            break
    print(f"{len(found)} mutants out of {len(changes)} changes of {len(TESTS)} modules", flush=True)
    return found


def outcome(top: Path, files: str, *options: str, original: bool = False) -> str:
    """What the test files, names with blanks between them, do in a copy: ``PASS``, ``FAIL`` or, if ended, ``HANG``."""
    paths = [f"tests/unit/{name}.py" for name in files.split()]
    variables = os.environ | {"PYTHONPATH": str(top / "site_scons")}
    if not original:  # a mutant of the same size and second would not be seen
        variables["PYTHONDONTWRITEBYTECODE"] = "1"
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-x", "-n", "0", "-p", "no:cacheprovider", *options, *paths],
        cwd=top,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return "FAIL" if process.wait(None if original else ENDS_AFTER) else "PASS"
    except subprocess.TimeoutExpired:
        return "HANG"
    finally:
        with contextlib.suppress(ProcessLookupError):  # also what a failed test has left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_mutant(mutant: Mutant, copies: SimpleQueue[Path]) -> str:
    """The outcome of the tests with a mutant, in one of the copies that nobody uses."""
    top = copies.get()
    path = top / SOURCES / mutant.module
    original = path.read_bytes()
    try:
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_text(mutant.source, encoding="utf-8")
        return outcome(top, TESTS[mutant.module])
    finally:
        path.write_bytes(original)
        copies.put(top)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its status."""
    parser = argparse.ArgumentParser(description="mutate modules at random and see whether their unit tests find it")
    parser.add_argument("--count", type=int, default=300, help="mutants")
    parser.add_argument("--seed", type=int, default=7, help="of the choice")
    parser.add_argument("--goal", type=float, default=85, help="per cent that have to be found")
    parser.add_argument("--only", nargs="*", help="run those of the sample with one of these in their FILE:LINE")
    parser.add_argument("-j", type=int, default=2, help="mutants at a time")
    given = parser.parse_args(arguments)
    mutants = [m for m in sample(given.count, given.seed) if not given.only or any(o in m.place for o in given.only)]
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.j) as pool:
        tops = [copy_of_the_tree(Path(folder)) for _ in range(given.j)]
        for top in tops:
            copies.put(top)
        files = " ".join(sorted({name for mutant in mutants for name in TESTS[mutant.module].split()}))
        # All but the first only compile what is imported, so that no run of a mutant has to do it again.
        options = [[], *(["--collect-only"] for _ in tops[1:])]
        if {"FAIL"} & {*pool.map(lambda top, more: outcome(top, files, *more, original=True), tops, options)}:
            print(f"these have to pass before anything is mutated: {files}")
            return 1
        survivors = 0
        outcomes = pool.map(lambda mutant: run_mutant(mutant, copies), mutants)
        for number, (mutant, found) in enumerate(zip(mutants, outcomes, strict=True), 1):
            survivors += found == "PASS"
            if found != "FAIL":
                word = {"PASS": "SURVIVES", "HANG": f"ended after {ENDS_AFTER} s"}[found]
                print(f"{word} {mutant.place} (the {number}. of {len(mutants)})\n{mutant.change}", flush=True)
    share = 100 * (1 - survivors / max(1, len(mutants)))
    print(f"{len(mutants) - survivors} of {len(mutants)} mutants found: {share:.1f} %")
    return 0 if share >= given.goal else 1


if __name__ == "__main__":
    sys.exit(main())
