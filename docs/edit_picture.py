"""Draws docs/images/edit.svg: the timelines of a first build and of one after an edit, on one scale.

Build the library of this repository with an empty folder ``build``, keep ``build/trace.json``, edit a kernel, and build
again. Then: ``python docs/edit_picture.py FIRST.json EDIT.json "After an edit of softmax"``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from kernelwright.core.pipeline import STAGES
from kernelwright.state.trace import RecordedRun, read_trace

PICTURE = Path(__file__).parent / "images" / "edit.svg"
WIDTH, MARGIN, LANE, HEAD, FOOT = 920, 20, 18, 34, 46
COLOURS = {kind.label: kind.colours[0] for kind in STAGES}


def picture(runs: Iterable[tuple[str, RecordedRun]]) -> str:
    """An SVG with a row for each run; what runs at the same time is in lanes below each other."""
    runs = list(runs)
    scale = (WIDTH - 2 * MARGIN) / max(run.summary.seconds for _, run in runs)
    parts, top = [], 0
    for title, run in runs:
        did = f"{title}: {run.summary.built} steps, {run.summary.seconds:.1f} s"
        parts.append(f'<text x="{MARGIN}" y="{top + 23}" font-size="15">{escape(did)}</text>')
        parts += _steps(run, top + HEAD, scale)
        top += HEAD + LANE * (1 + max(span.lane for span in run.spans)) + 8
    shown = {span.label for _, run in runs for span in run.spans}
    parts += _legend([label for label in COLOURS if label in shown], top + 22)
    box = f'<rect width="{WIDTH}" height="{top + FOOT}" rx="8" fill="#fff"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + FOOT}" font-family="sans-serif">'
    return "\n".join([head, box, *parts, "</svg>\n"])


def _steps(run: RecordedRun, top: float, scale: float) -> Iterator[str]:
    """The steps of a run, those of a stage in one path."""
    for label in dict.fromkeys(span.label for span in run.spans):
        boxes = (
            f"M{MARGIN + span.start * scale:.1f} {top + span.lane * LANE}h{max(span.seconds * scale, 0.2):.1f}"
            f"v{LANE - 2}H{MARGIN + span.start * scale:.1f}z"
            for span in run.spans
            if span.label == label
        )
        yield f'<path fill="{COLOURS[label]}" d="{"".join(boxes)}"/>'


def _legend(labels: Iterable[str], y: float) -> Iterator[str]:
    x = float(MARGIN)
    for label in labels:
        yield f'<rect x="{x}" y="{y - 10}" width="11" height="11" fill="{COLOURS[label]}"/>'
        yield f'<text x="{x + 15}" y="{y}" font-size="11">{label}</text>'
        x += 34 + 7.5 * len(label)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("edit", type=Path)
    parser.add_argument("title")
    given = parser.parse_args()
    first, edit = read_trace(given.first), read_trace(given.edit)
    PICTURE.write_text(picture([("First build", first), (given.title, edit)]), encoding="utf-8")
