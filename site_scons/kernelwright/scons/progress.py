"""What a build shows: one live line on a terminal, otherwise one line for each action, and a last line."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO


class Progress:
    """Shows what runs. Called from several threads.

    Arguments:
        silent: show nothing but errors (``scons -s``).
        stream: where to; a live line is used if it is a terminal.
    """

    def __init__(self, silent: bool, stream: TextIO | None = None) -> None:
        self._silent = silent
        self._stream = stream or sys.stdout
        # Names of files, and what definitions print, may have characters that the terminal's encoding lacks. SCons has
        # replaced sys.stdout by an object of its own, which passes this call on.
        if hasattr(self._stream, "reconfigure"):
            self._stream.reconfigure(errors="backslashreplace")
        self._live = not silent and self._stream.isatty()
        self._lock = threading.Lock()
        self._running: list[str] = []
        self._told: set[str] = set()
        self._counts: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.start = time.monotonic()

    def expect(self, counts: Callable[[], tuple[int, int]]) -> None:
        """Set the function that returns how many stages are done, and how many there are."""
        self._counts = counts

    def started(self, line: str) -> None:
        """An action begins."""
        with self._lock:
            self._running.append(line)
            if self._live:
                self._redraw()
            elif not self._silent:
                self._stream.write(line + "\n")
                self._stream.flush()

    def finished(self, line: str) -> None:
        """An action ended, well or not."""
        with self._lock:
            if line in self._running:
                self._running.remove(line)
            if self._live and self._running:
                self._redraw()

    @contextlib.contextmanager
    def ahead(self, text: str) -> Iterator[None]:
        """Show on a terminal what is done before the first action, which takes seconds in a fresh folder."""
        with self._lock:
            if self._live:
                self._stream.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
                self._stream.flush()
        try:
            yield
        finally:
            self.erase()

    def restored(self, lines: Iterable[str]) -> None:
        """Show the lines of actions that did not run, because whole kernels came out of the build cache."""
        if not self._live and not self._silent:
            with self._lock:
                self._stream.write("".join(f"{line}\n" for line in lines))
                self._stream.flush()

    def note(self, text: str) -> None:
        """Show a message on a line of its own, such as why something is made again."""
        with self._lock:
            if not self._silent:
                self._erase()
                self._stream.write(text + "\n")
                self._stream.flush()

    def note_once(self, text: str) -> None:
        """Show a message unless it has been shown."""
        with self._lock:
            is_new = text not in self._told
            self._told.add(text)
        if is_new:
            self.note(text)

    @property
    def seconds(self) -> float:
        """Time since the run began."""
        return time.monotonic() - self.start

    def summary(self, counts: Mapping[str, Any], failures: list[str]) -> None:
        """The last lines: the failures, how many stages were built, reused and failed, and the time."""
        with self._lock:
            self._erase()
            if failures:
                lines = "".join(f"  {failure}\n" for failure in failures)
                sys.stderr.write(f"kernelwright: {len(failures)} failed:\n{lines}")
            if not self._silent:
                cached = f" ({counts['cached']} from the cache)" if counts["cached"] else ""
                self._stream.write(
                    f"kernelwright: {counts['built']} built{cached}, {counts['reused']} reused, "
                    f"{counts['failed']} failed in {self.seconds:.1f} s\n"
                )
                self._stream.flush()

    def erase(self) -> None:
        """Take the live line away, before somebody else writes."""
        with self._lock:
            self._erase()

    def _erase(self) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")

    def _redraw(self) -> None:
        running = self._running[0] if self._running else ""
        more = f" (+{len(self._running) - 1})" if len(self._running) > 1 else ""
        done, total = self._counts()
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[K{f'{done}/{total} {running}{more}'[:width]}")
        self._stream.flush()
