"""The Python of the product, parsed once for all tests of a process that look at every module."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

from support.project import SITE_SCONS

PACKAGE = SITE_SCONS / "kernelwright"


def name_of(path: Path) -> str:
    """How messages and tables of tests call a file."""
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else SITE_SCONS).as_posix()


@cache
def trees() -> dict[Path, ast.Module]:
    """The syntax tree of every module; to look for garbage among them would take three times as long."""
    gc.disable()
    try:
        found = {path: ast.parse(path.read_bytes()) for path in sorted(SITE_SCONS.rglob("*.py"))}
    finally:
        gc.freeze()
        gc.enable()
    assert len(found) > 300
    return found


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Everything in a module, at any depth."""
    return tuple(ast.walk(trees()[path]))
