"""Answers that builds find out and that other builds can use: what a tool says of itself, what a file declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol


class Answers(Protocol):
    """Keeps answers for other builds, perhaps of other trees and on other machines.

    A question is JSON data and says everything that decides the answer and is known beforehand, by contents and never
    by places or times. What else the answer depends on is known with it: names, each with the digest of what was there.
    """

    def recall(self, question: Any, current: Callable[[str], str], here: bool = False) -> Any:
        """The answer to a question, as JSON data that ``core.converter`` checks.

        None: there is none, it was damaged, or it depends on what is another one now.

        Arguments:
            current: gives the present digest of what an answer depends on, by its name.
            here: whether the answer is one of this machine, which no other one has.
        """

    def recall_ahead(self, questions: Iterable[Any], current: Callable[[str], str]) -> None:
        """Look for the answers to questions that are going to be asked, where that takes a while.

        Arguments:
            questions: gone through only then.
            current: as for :meth:`recall`; called in any thread.
        """

    def remember(self, question: Any, answer: Any, later: Mapping[str, str], here: bool = False) -> None:
        """Keep an answer, if answers can be kept.

        Arguments:
            answer: what ``core.converter`` makes JSON of.
            later: what else the answer depends on: name -> digest.
            here: as for :meth:`recall`.
        """
