"""Flags of nvcc with which PTX depends neither on the folders of sources nor on unused declarations."""

from __future__ import annotations

import re
from collections.abc import Sequence

FLAGS = {
    *("-use_fast_math", "--use_fast_math", "-w", "--disable-warnings", "-res-usage", "--resource-usage"),
    *("-extra-device-vectorization", "--extra-device-vectorization"),
}
"""Flags of nvcc with which unused declarations leave no trace in PTX."""

FLAGS_WITH_VALUE = {
    *("-maxrregcount", "--maxrregcount", "-Xptxas", "--ptxas-options", "-ftz", "--ftz", "-prec-sqrt", "--prec-sqrt"),
    *("-prec-div", "--prec-div", "-fmad", "--fmad", "-O", "--optimize"),
}
"""Such flags, with a value behind ``=`` or in the next word."""

OPTIMIZE = ("-O0", "-O1", "-O2", "-O3")


def can_trim(flags: Sequence[str]) -> bool:
    """Whether PTX that nvcc makes with these flags is the same without declarations that are not used."""
    words = iter(flags)
    for word in words:
        if word in FLAGS_WITH_VALUE:
            next(words, None)
        elif word not in FLAGS and word not in OPTIMIZE and word.partition("=")[0] not in FLAGS_WITH_VALUE:
            return False
    return True


OF_PROGRAM = re.compile(r"-X[a-z]+|--?[a-z]+-options")
"""Flags of nvcc whose value, in the next word, is for a program that it runs."""

THREADS = re.compile(r"-(?:t|-?threads)(=?\d+)?")
"""nvcc's flag for the number of its threads, with the number or before it."""


def without_threads(flags: Sequence[str]) -> tuple[str, ...]:
    """The flags without those for nvcc's threads, which decide nothing but the time and the order of its programs."""
    kept: list[str] = []
    words = iter(flags)
    for word in words:
        match = None if kept and OF_PROGRAM.fullmatch(kept[-1]) else THREADS.fullmatch(word)
        if match is None:
            kept.append(word)
        elif not match[1]:
            next(words, None)
    return tuple(kept)


ALL = ("-G", "--device-debug", "-g", "--debug")
"""Flags for debuggers."""

DEBUG = (*ALL, "-lineinfo", "--generate-line-info")
"""Flags that have cicc write folders and times of sources into PTX, which are others on another machine."""


def has_debug_information(flags: Sequence[str], kinds: tuple[str, ...] = DEBUG) -> bool:
    """Whether these flags make nvcc write the folders of sources into its output."""
    return any(word.startswith(kinds) for word in flags)
