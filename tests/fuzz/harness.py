"""What all fuzz tests share: how many cases there are, and what a program may do to the file system and to its user."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis.strategies import SearchStrategy
from kernelwright.core.errors import KernelwrightError

THOROUGH = os.environ.get("KERNELWRIGHT_FUZZ") == "thorough"

FACTOR = 20
"""How many times as many cases the thorough profile has."""

CASES: Counter[str] = Counter()
"""Test -> cases that it has run."""


def fuzz(cases: int, *, factor: int | None = None, slow: bool = False, **strategies: SearchStrategy[Any]) -> Any:
    """Decorator: run a test with random arguments.

    Arguments:
        cases: how many times, in the default profile.
        factor: how many times as often in the thorough one, if not FACTOR times.
        slow: a case takes seconds, so that a failure is shown as it was found, without looking for a smaller one.
        strategies: for each argument what it may be.
    """

    def decorate(test: Callable[..., None]) -> Any:
        name = f"{test.__module__.rpartition('.')[2]}.{test.__name__}"

        @functools.wraps(test)
        def counted(*arguments: Any, **keywords: Any) -> None:
            CASES[name] += 1
            test(*arguments, **keywords)

        phases = [Phase.generate] if slow else list(Phase)
        times = (factor or FACTOR) if THOROUGH else 1
        chosen = settings(max_examples=cases * times, phases=phases)
        return chosen(given(**strategies)(counted))

    return decorate


@contextlib.contextmanager
def only_our_errors(*others: type[Exception]) -> Iterator[list[KernelwrightError]]:
    """A block that may raise a KernelwrightError that a user can read, or one of some others; the list receives it."""
    found: list[KernelwrightError] = []
    try:
        yield found
    except KernelwrightError as error:
        require_readable(error)
        found.append(error)
    except others as error:
        assert str(error)


def require_readable(error: KernelwrightError, placed: bool = True) -> None:
    """An error has a message and a place, and can be shown."""
    text = str(error)
    assert error.message
    assert str(error.where) or not placed, f"no place: {text}"
    assert "report this as a defect" not in text, text
    text.encode("utf-8", "backslashreplace")


TRACE_LINE = re.compile(r'^ {0,3}(Traceback \(most recent call last\)|File ".*", line \d+|Exception ignored)', re.M)
"""A line of a traceback that is not in the indented part of a message. SCons has a form of its own."""


def require_no_traceback(output: str) -> None:
    """The output of a run shows no traceback of ours, and no message about a defect of ours."""
    assert not TRACE_LINE.search(output), output
    assert "report this as a defect" not in output, output


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Kind, time of the last change and content of everything in a folder but ``build`` and ``dist``, by path."""
    found = {}
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if relative.parts[0] not in ("build", "dist"):
            status = path.lstat()
            # A folder's time changes with temporary files in it, and is looked at for that reason.
            found[str(relative)] = (status.st_mode, status.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
    return found


EVENTS = {
    **dict.fromkeys(["os.mkdir", "os.rmdir", "os.remove", "os.chmod", "os.truncate", "os.utime", "shutil.rmtree"], 1),
    **dict.fromkeys(["os.rename", "os.link", "os.symlink", "shutil.move"], 2),
}
"""Audit events of changes, and how many of their first arguments are paths."""


class WriteGuard:
    """Notes every change of the file system that this process makes outside of one folder.

    There is no way to remove an audit hook, so there is one guard for the whole run of the tests.
    """

    def __init__(self) -> None:
        self._allowed: str | None = None
        self._found: list[str] = []
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def only(self, folder: Path) -> Iterator[None]:
        """Fail at the end of the block if something outside of a folder was changed in it."""
        self._allowed, self._found = str(folder), []
        try:
            yield
        finally:
            self._allowed = None
        assert not self._found, self._found

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let the tests themselves write in between, such as Hypothesis what it knows of Unicode."""
        self._allowed, allowed = None, self._allowed
        try:
            yield
        finally:
            self._allowed = allowed

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._allowed is None:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = (
                set(mode) & set("wax+") if isinstance(mode, str) else flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            )
            paths: tuple[Any, ...] = (path,) if writes else ()
        else:
            paths = arguments[: EVENTS.get(event, 0)]
        self._found += [f"{event} {path!r}" for path in paths if not self._is_allowed(path)]

    def _is_allowed(self, path: Any) -> bool:
        if isinstance(path, int):
            return True  # a file that is open already
        full = os.path.normpath(Path.cwd() / os.fsdecode(path))
        if full.startswith("/proc/self/fd/"):  # below a folder that is held open
            held, _, rest = full.removeprefix("/proc/self/fd/").partition("/")
            full = f"{Path('/proc/self/fd', held).readlink()}/{rest}"
        return f"{full}/".startswith(f"{self._allowed}/")


@functools.cache
def write_guard() -> WriteGuard:
    """The guard of this process."""
    return WriteGuard()
