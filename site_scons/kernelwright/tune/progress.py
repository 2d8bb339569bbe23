"""One line at the terminal that says how far a run is; where there is no terminal, a line for each step of it."""

from __future__ import annotations

import sys

from ..core.status_line import StatusLine


class Progress(StatusLine):
    """Shows what is done now."""

    def __init__(self) -> None:
        super().__init__()
        self._doing = ""
        self._turns = 0

    def begin(self, doing: str) -> None:
        """Something else is done from now on."""
        self._doing, self._turns = doing, 0
        if self.is_shown:
            self.show(doing)
        else:
            self.note(doing)

    def step(self, turns: int) -> None:
        """Some more turns were had."""
        self._turns += turns
        self.show(f"{self._doing}, {self._turns} turns")

    def note(self, line: str) -> None:
        """A line that stays."""
        self.end()
        sys.stderr.write(f"kernelwright: {line}\n")
        sys.stderr.flush()
