"""One line at the terminal that says how far a run is; where there is no terminal, a line for each step of it."""

from __future__ import annotations

import sys


class Progress:
    """Shows what is done now."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._doing = ""
        self._turns = 0

    def begin(self, doing: str) -> None:
        """Something else is done from now on."""
        self._doing, self._turns = doing, 0
        if self._terminal:
            self._show()
        else:
            self.note(doing)

    def step(self, turns: int) -> None:
        """Some more turns were had."""
        self._turns += turns
        self._show()

    def note(self, line: str) -> None:
        """A line that stays."""
        self.end()
        sys.stderr.write(f"kernelwright: {line}\n")
        sys.stderr.flush()

    def _show(self) -> None:
        if self._terminal:
            turns = f", {self._turns} turns" if self._turns else ""
            sys.stderr.write(f"\r\033[Kkernelwright: {self._doing}{turns}")
            sys.stderr.flush()

    def end(self) -> None:
        """Remove the line that does not stay."""
        if self._terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
