"""What a cache has done in a run, in numbers."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from ..core.converter import Amount, Count


@dataclass
class Counts:
    """What one side of a cache has done.

    Arguments:
        hits, misses: questions for entries that it had, and that it lacked.
        read: bytes that it gave.
        seconds: time of all questions; some of them were asked at the same time.
        written, sent: entries that were added, and their bytes.
    """

    hits: Count = 0
    misses: Count = 0
    read: Count = 0
    seconds: Amount = 0.0
    written: Count = 0
    sent: Count = 0

    def __add__(self, other: Counts) -> Counts:
        """The sum of both."""
        return Counts(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        asked = f"{self.hits} hits, {self.misses} misses, {self.read / 1e6:.1f} MB in {self.seconds:.1f} s of waiting"
        return f"{asked}; {self.written} written, {self.sent / 1e6:.1f} MB" if self.written else asked
