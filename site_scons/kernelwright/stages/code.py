"""The digest of a stage's code: of its module, and of each module of ours that this imports, directly or not.

The text and not the bytecode, which SCons would take: that differs between versions of Python and misses helpers.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache
from pathlib import Path

from ..core.files import canonical_json, digest_of, sha256_of
from ..core.pipeline import KINDS

PACKAGE = Path(__file__).resolve().parent.parent

NO_CODE = ("__init__.py", "core/version.py", "core/pipeline.py")
"""Modules whose text makes nothing: names for definition files, our version, which is in the options of the stages
that write it, and the table of the stages."""

SOURCES = (".py", ".pxi", ".c", ".cc", ".h", ".map")
"""Endings of our code, Python, C and C++."""

TYPES_ONLY = re.compile(r"\nif TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)+")
"""What is imported for annotations only. It does not run."""

IMPORT = re.compile(r"\n[ \t]*from (\.+)([\w.]*) import (\([^)]*\)|[^\n#]*)")
"""An import of one of our modules; in our own code these are all relative. To begin with the line break is much faster
than to look for the begin of a line."""

NAME = re.compile(r"(\w+)(?: as \w+)?")
"""A name in the list of an import."""


@cache
def code_digest(label: str) -> str:
    """The digest of the code of a stage, which is in the stage's fingerprint."""
    digests = [(module.relative_to(PACKAGE).as_posix(), text_digest(module)) for module in code_of(label, PACKAGE)]
    return hashlib.sha256(canonical_json(sorted(digests)).encode()).hexdigest()


@cache
def text_digest(module: Path) -> str:
    """SHA-256 of a module, which many stages have in common."""
    return sha256_of(module)


def own_code() -> str:
    """The digest of all of our code and of the launcher. A build compares it before it looks at single stages."""
    # Not rglob, which takes a run with nothing to do three times as long.
    folders = sorted((folder, sorted(names)) for folder, _, names in os.walk(PACKAGE))
    return digest_of(Path(folder, name) for folder, names in folders for name in names if name.endswith(SOURCES))


@cache
def loaded_code() -> str:
    """The digest of our code, asked for once: it is what this process has loaded."""
    return own_code()


def code_of(label: str, package: Path) -> set[Path]:
    """The modules that a stage consists of: its own, those that run without being imported, and all that these import.

    Arguments:
        package: the folder of our modules.
    """
    kind = KINDS[label]
    todo = [module_file(f"{package}/{kind.module.replace('.', '/')}")]
    for name in kind.also:
        path = package / name.replace(".", "/")
        todo += path.rglob("*.py") if path.is_dir() else [module_file(str(path))]
    modules: set[Path] = set()
    left_out = {package / name for name in NO_CODE}
    while todo:
        module = todo.pop()
        if module is not None and module not in modules | left_out:
            modules.add(module)
            todo += imported(module, package)
    return modules


@cache
def imported(module: Path, package: Path) -> list[Path | None]:
    """The modules of ours that a module imports, anywhere in it, but for those that only annotations need."""
    files: list[Path | None] = []
    for dots, name, names in IMPORT.findall(TYPES_ONLY.sub("\n", "\n" + module.read_text(encoding="utf-8"))):
        folder = module.parents[len(dots) - 1]
        if folder.is_relative_to(package):  # a line of a template may look like an import
            base = f"{folder}/{name.replace('.', '/')}".rstrip("/")
            files += [module_file(base), *(module_file(f"{base}/{one}") for one in NAME.findall(names))]
    return files


def module_file(path: str) -> Path | None:
    """The file of a module or of a package, by its path without the suffix; None: there is no such module."""
    # A run with nothing to do asks this hundreds of times, and pathlib takes five times as long.
    return next((Path(file) for file in (f"{path}.py", f"{path}/__init__.py") if os.path.isfile(file)), None)  # noqa: PTH113
