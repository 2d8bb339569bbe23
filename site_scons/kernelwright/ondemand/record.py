"""Notes the variants that a program uses, in a file from which ``recorded()`` makes the variants of a package.

Any number of threads and processes may note into one file. Each merges what it has into what is there, under a lock
beside the file, and replaces the file with one rename: a reader never sees a half of it.
"""

from __future__ import annotations

import contextlib
import contextvars
import fcntl
import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import KernelwrightError, Where
from ..core.files import open_lock, read_record, write_atomically
from ..define.recorded import LARGEST, VARIABLE, Configs, config_text, damage, parse, text_of


class Recorder:
    """Notes variants in one file; each once in a process, so that a repeated call costs next to nothing.

    Arguments:
        path: the file, relative to the current folder. It is made with the first variant.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()  # the current folder may be another one later
        self._noted: set[tuple[str, str]] = set()

    def note(self, kernel: str, config: Mapping[str, Any]) -> None:
        """Note a variant of a kernel.

        Raises:
            KernelwrightError: the file is damaged, in which case it is left as it is, or it cannot be read or written.
        """
        key = (kernel, config_text(config))
        if key not in self._noted:
            note(self.path, kernel, config)
            self._noted.add(key)


def note(path: Path, kernel: str, config: Mapping[str, Any]) -> None:
    """Add a variant of a kernel to a file, unless it is in it.

    Raises:
        KernelwrightError: the file is damaged, in which case it is left as it is, or it cannot be read or written.
    """
    try:
        with _locked(path):
            kernels = _read(path)
            configs = kernels.setdefault(kernel, [])
            wanted = config_text(config)
            if all(config_text(known) != wanted for known in configs):
                configs.append(dict(config))
                write_atomically(path, text_of(kernels))
    except OSError as error:
        message = f"cannot be written: {error.strerror or error} ({error.filename or path})"
        remedy = f"name a file in a folder that you can write to with {VARIABLE}, or leave that out"
        raise _error(path, kernel, message, remedy) from error
    except ValueError as error:
        remedy = f"mend the file, delete it, or name another one with {VARIABLE}"
        raise _error(path, kernel, damage(error), remedy) from error


def _read(path: Path) -> Configs:
    try:
        return parse(read_record(path, LARGEST))
    except FileNotFoundError:
        return {}


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "there is no such folder", str(path.parent))
    # The lock is never removed, because others may wait for it. Its name begins with a dot, so that it is hidden.
    with os.fdopen(open_lock(path.with_name(f".{path.name}.lock")), "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # the system ends it with the process
        yield


def _error(path: Path, kernel: str, message: str, remedy: str) -> KernelwrightError:
    return KernelwrightError(message, Where(kernel, stage="record", location=str(path)), remedy)


_MINE: contextvars.ContextVar[tuple[Recorder, ...]] = contextvars.ContextVar("recorders", default=())
"""The blocks of :func:`record` that the current code is in, the innermost last."""

_OPEN: list[Recorder] = []
"""The open blocks of the whole process, for threads that are in none of their own: a new thread has no context."""


@contextlib.contextmanager
def record(path: str | Path) -> Iterator[Recorder]:
    """Note every variant that is compiled on demand or called in this block; ``KERNELWRIGHT_RECORD`` waits meanwhile.

    It holds for the thread, or the task of asyncio, that is in the block, and for all threads that are in no such block
    themselves.

    Arguments:
        path: the file, which is made or added to.
    """
    recorder = Recorder(path)
    token = _MINE.set((*_MINE.get(), recorder))
    _OPEN.append(recorder)
    try:
        yield recorder
    finally:
        _OPEN.remove(recorder)
        _MINE.reset(token)


def active(named: str | None = None) -> Recorder | None:
    """The recorder that notes now: that of the innermost block of :func:`record`, or else of a file; None: none does.

    Arguments:
        named: the option ``record``; None or empty: what ``KERNELWRIGHT_RECORD`` says.
    """
    block = open_block()
    if block is not None:
        return block
    named = named or os.environ.get(VARIABLE)
    return _of_variable(named) if named else None


def open_block() -> Recorder | None:
    """The recorder of the innermost block of :func:`record`. To ask takes a tenth of a microsecond."""
    blocks = _MINE.get() or _OPEN
    return blocks[-1] if blocks else None


@functools.cache
def _of_variable(path: str) -> Recorder:
    """One recorder for each path, so that it remembers what the process has noted."""
    return Recorder(path)
