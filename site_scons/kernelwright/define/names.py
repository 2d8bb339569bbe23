"""Names of kernels, and the places of their definitions."""

from __future__ import annotations

import inspect
import keyword
import re
from pathlib import Path
from typing import Any

from ..core.errors import DefinitionError, Where, shown

MAX_NAME = 100
"""Longest name of a kernel in characters: files are called after it, with something before and behind."""

RESERVED = frozenset(
    {
        *("main", "preload", "supported", "variants", "manifest", "misses", "set_fallback", "set_num_threads"),
        *("num_threads", "check", "ir", "wheel", "tune", "sass", "ptx", "backends", "jax"),
    }
)
"""Names that a kernel cannot have, because the package or the build file uses them."""


def is_name(name: str) -> bool:
    """Whether a kernel can have a name: files, C functions and attributes of a package are called after it."""
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and len(name) <= MAX_NAME and "__" not in name
    return bool(is_plain) and name not in RESERVED and not name.startswith("kw_") and not keyword.iskeyword(name)


def check_name(name: str, where: Where) -> None:
    """Raise a DefinitionError if a kernel cannot have a name."""
    if not is_name(name):
        raise DefinitionError(
            f"{name!r} cannot be a kernel's name",
            where,
            f"use at most {MAX_NAME} ASCII letters, digits and single underscores, start with a letter, and avoid "
            + ", ".join(sorted(RESERVED)),
        )


def kernel_name(function: Any) -> tuple[str, Where]:
    """The name of the kernel that a function defines, and its place. Raises a DefinitionError for a bad name."""
    where = function_where(function, "@kernel")
    check_name(function.__name__, where)
    return function.__name__, where


def function_where(function: Any, decorator: str) -> Where:
    """The place of a decorated function."""
    if not inspect.isfunction(function):
        raise DefinitionError(
            f"{decorator} was applied to {shown(function)}, expected a function",
            caller(),
            f"put {decorator} above a def statement",
        )
    code = function.__code__
    return Where(function.__name__, stage="discover", location=f"{code.co_filename}:{code.co_firstlineno}")


def caller() -> Where:
    """The nearest frame outside of our code: the user's line."""
    frame, here = inspect.currentframe(), str(Path(__file__).parents[1])
    while frame is not None and frame.f_code.co_filename.startswith(here):
        frame = frame.f_back
    return Where(stage="discover", location=f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else None)
