"""One line at the terminal that says how far something is, and does not stay. Where there is no terminal, nothing."""

from __future__ import annotations

import sys


class StatusLine:
    """A line of standard error.

    Arguments:
        wanted: whether there is one at all.
    """

    def __init__(self, wanted: bool = True) -> None:
        self.is_shown = wanted and sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Have it say something else."""
        self._write(f"kernelwright: {text}")

    def end(self) -> None:
        """Remove it."""
        self._write("")

    def _write(self, text: str) -> None:
        if self.is_shown:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
