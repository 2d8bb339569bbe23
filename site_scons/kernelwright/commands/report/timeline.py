"""What the page shows of a run: its steps by stage, what the script draws them from, and how busy the processor was."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ...core.pipeline import STAGES
from ...core.quantity import plural
from ...state.trace import RecordedRun, Span
from .text import UNKNOWN, duration

OTHERS = (("#5a5f9e", "#8fb7d9"), ("#6b5a3a", "#d6c39a"))
"""Colours of stages that this version does not have, on a light and on a dark page."""

COLOURS = (*(kind.colours for kind in STAGES), *OTHERS)
"""Colours of each stage, in the order of the pipeline, and of stages that this version does not have."""

SLOWEST = 20
"""How many steps are listed as the slowest."""


def colour_rules() -> str:
    """The rules of the page's style that give each colour its number. What is printed is always light."""
    light, dark = (
        "\n".join(f".c{number} {{ --c: {both[page]}; }}" for number, both in enumerate(COLOURS)) for page in (0, 1)
    )
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


class RunView:
    """A run, with what follows from its steps."""

    def __init__(self, run: RecordedRun) -> None:
        self.summary, self.spans = run.summary, run.spans
        self.lanes = max((span.lane for span in run.spans), default=-1) + 1
        self.ran = [span for span in run.spans if not span.cached]
        self.slowest = sorted(self.ran, key=lambda span: -span.seconds)[:SLOWEST]

    @cached_property
    def colours(self) -> dict[str, int]:
        """The number of the colour of each stage that occurs, in the order of the pipeline."""
        labels = {span.label for span in self.spans}
        known = {kind.label: number for number, kind in enumerate(STAGES)}
        others = {label: len(STAGES) + n % len(OTHERS) for n, label in enumerate(sorted(labels - known.keys()))}
        return {label: number for label, number in known.items() if label in labels} | others

    @property
    def stages(self) -> dict[str, list[Span]]:
        """The steps of each stage."""
        return {label: [span for span in self.spans if span.label == label] for label in self.colours}

    @property
    def drawn(self) -> dict[str, Any]:
        """What the script draws the timeline from; times in microseconds."""
        order = list(self.colours)
        end = max([self.summary.seconds, *(span.end for span in self.spans)])
        spans = [_drawn(span, order.index(span.label)) for span in self.spans]
        return {"stages": list(self.colours.items()), "end": round(end * 1e6), "spans": spans}

    @property
    def busy(self) -> float:
        """The share of the time of all slots in which a step was running."""
        return sum(span.seconds for span in self.spans) / (self.summary.seconds * self.summary.jobs or 1)

    @property
    def cpu_use(self) -> tuple[str, str]:
        """Share of all cores' time that the steps used, and how it is known.

        It is a lower bound if some steps were not measured.
        """
        measured = [span.cpu_seconds for span in self.ran if span.cpu_seconds is not None]
        if not measured:
            return UNKNOWN, "no step's processor time was measured"
        share = sum(measured) / (self.summary.seconds * self.summary.cores or 1)
        least = "≥ " if len(measured) < len(self.ran) else ""
        of = f"measured for {len(measured):,} of {plural(len(self.ran), 'step')}"
        return f"{least}{share:.0%}", f"{duration(sum(measured))} of processor time, {of}"


def _drawn(span: Span, stage: int) -> list[Any]:
    start, end = round(span.start * 1e6), round(span.end * 1e6)
    state = 2 if span.failed else 1 if span.cached else 0
    return [stage, span.lane, start, end - start, span.subject, state, span.cpu_seconds, span.peak_kib]
