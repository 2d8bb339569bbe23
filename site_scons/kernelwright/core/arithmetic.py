"""Identifies the C library and the CPU, because they decide the last bit of numbers that tools compute.

Compilers fold constants with the C library of the machine, and the C library has several versions of ``exp``, ``pow``,
``sin`` and others, among which it chooses by the CPU. Their results differ in the last bit. NumPy does the same.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from .files import file_stamp, sha256_of

MAPS = Path("/proc/self/maps")
"""Which files this process has in its memory."""

CPU = Path("/proc/cpuinfo")

LIBRARY = re.compile(r" (/.*/libm(?:-[0-9.]+)?\.so[0-9.]*)$", re.M)
"""The C library's functions of numbers: ``libm.so.6``, before glibc 2.34 ``libm-2.28.so``."""

USUAL = tuple(Path(folder, "libm.so.6") for folder in ("/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"))
"""Where it is on most systems, for a Python that has its own functions."""

FEATURES = ("avx", "avx2", "fma", "fma4")
"""What glibc chooses by among the versions of a function (``sysdeps/x86_64/fpu/multiarch`` of its source)."""

OF_NUMPY = ("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl")
"""What NumPy chooses by besides these."""

BEGINNING = 1 << 13
"""Bytes that have the flags of the first CPU; a machine with many takes long to tell of all."""


@cache
def library() -> Path | None:
    """The C library's functions of numbers; None: there are none in the usual places."""
    match = LIBRARY.search(MAPS.read_text(encoding="utf-8", errors="surrogateescape"))
    return Path(match[1]) if match else next((path for path in USUAL if path.is_file()), None)


@cache
def features() -> tuple[str, ...]:
    """The features in :data:`FEATURES` and :data:`OF_NUMPY` that the CPU has."""
    with CPU.open("rb") as stream:
        beginning = stream.read(BEGINNING)
    flags = re.search(rb"^flags\s*:(.*)$", beginning, re.M)
    has = flags[1].decode("ascii", "replace").split() if flags else []
    return tuple(name for name in (*FEATURES, *OF_NUMPY) if name in has)


def arithmetic() -> list[Any]:
    """What the identity of everything depends on that computes with the C library: JSON data without paths and times.

    Raises:
        OSError: the library cannot be read.
    """
    path = library()
    digest = _digest(path, file_stamp(path)) if path else ""
    return [digest, [name for name in features() if name in FEATURES]]


def stamp() -> list[Any]:
    """A stamp that changes if the result of :func:`arithmetic` may change, without a look into the library."""
    path = library()
    return [str(path), file_stamp(path) if path else [], features()]


def of_numpy() -> list[str]:
    """The features of the CPU that only NumPy looks at."""
    return [name for name in features() if name in OF_NUMPY]


@cache
def _digest(path: Path, stamp: tuple[int, ...]) -> str:
    return sha256_of(path)
