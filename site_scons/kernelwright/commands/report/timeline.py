"""The sections of the report about the run: its numbers, the timeline, the slowest steps, the stages and the cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ...core.pipeline import STAGES
from ...core.quantity import plural
from ...state.trace import RecordedRun, Span
from .markup import UNKNOWN, Column, duration, name_cell, number_cell, table

OTHERS = (("#5a5f9e", "#8fb7d9"), ("#6b5a3a", "#d6c39a"))
"""Colours of stages of other versions, on a light and on a dark page."""

COLOURS = (*(kind.colours for kind in STAGES), *OTHERS)
"""One for each stage, in the order of the pipeline, and those of other versions."""

SLOWEST = 20


def colours(spans: Iterable[Span]) -> dict[str, int]:
    """The number of the colour of each stage that occurs, in the order of the pipeline."""
    labels = {span.label for span in spans}
    known = {kind.label: number for number, kind in enumerate(STAGES)}
    others = sorted(labels - known.keys())
    palette = {label: number for label, number in known.items() if label in labels}
    return palette | {label: len(STAGES) + index % len(OTHERS) for index, label in enumerate(others)}


def colour_rules() -> str:
    """The rules of the page's style that give each colour its number. What is printed is always light."""
    light, dark = (
        "\n".join(f".c{number} {{ --c: {both[page]}; }}" for number, both in enumerate(COLOURS)) for page in (0, 1)
    )
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def timeline_data(run: RecordedRun) -> dict[str, Any]:
    """What the script draws the timeline from; times in microseconds."""
    palette = colours(run.spans)
    order = list(palette)
    return {
        "stages": [[label, palette[label]] for label in order],
        "end": round(max([run.summary.seconds, *(span.end for span in run.spans)]) * 1e6),
        "spans": [_drawn(span, order.index(span.label)) for span in run.spans],
    }


def run_sections(run: RecordedRun) -> str:
    """The sections of one run."""
    palette = colours(run.spans)
    parts = [_numbers(run), _timeline(run), _slowest(run.spans, palette), _stages(run, palette)]
    return "\n".join(parts)


def _drawn(span: Span, stage: int) -> list[Any]:
    start, end = round(span.start * 1e6), round(span.end * 1e6)
    state = 2 if span.failed else 1 if span.cached else 0
    return [stage, span.lane, start, end - start, span.subject, state, span.cpu_seconds, span.peak_kib]


def _numbers(run: RecordedRun) -> str:
    summary = run.summary
    busy = sum(span.seconds for span in run.spans) / (summary.seconds * summary.jobs or 1)
    cards = [
        ("Built", f"{summary.built:,}", "steps that ran"),
        ("From cache", f"{summary.cached:,}", "steps whose outputs came out of the build cache"),
        ("Reused", f"{summary.reused:,}", "steps that were up to date"),
        ("Failed", f"{summary.failed:,}", "steps that ended with an error"),
        ("Time", duration(summary.seconds), "from the start of scons to its end"),
        ("Cores", f"{summary.cores:,}", "that the run could use"),
        ("CPU use", *_cpu_use(run)),
        (f"Slots busy, of {summary.jobs:,}", f"{busy:.0%}", "of the time of all slots of -j, a step was running"),
    ]
    shown = "\n".join(
        f'<div{_alarm(title, summary.failed)} title="{escape(hint)}"><dt>{title}</dt><dd>{value}</dd></div>'
        for title, value, hint in cards
    )
    return f'<dl class="cards">\n{shown}\n</dl>'


def _alarm(title: str, failed: int) -> str:
    return ' class="bad"' if title == "Failed" and failed else ""


def _cpu_use(run: RecordedRun) -> tuple[str, str]:
    """Share of all cores' time that the steps used, and how it is known; a lower bound if some were not measured."""
    ran = [span for span in run.spans if not span.cached]
    measured = [span.cpu_seconds for span in ran if span.cpu_seconds is not None]
    if not measured:
        return UNKNOWN, "no step's processor time was measured"
    share = sum(measured) / (run.summary.seconds * run.summary.cores or 1)
    least = "≥ " if len(measured) < len(ran) else ""
    hint = f"{duration(sum(measured))} of processor time, measured for {len(measured):,} of {plural(len(ran), 'step')}"
    return f"{least}{share:.0%}", hint


def _timeline(run: RecordedRun) -> str:
    lanes = max((span.lane for span in run.spans), default=-1) + 1
    label = f"Timeline of {plural(len(run.spans), 'step')} in {plural(lanes, 'slot')}"
    return f"""<section id="timeline">
<h2>Timeline</h2>
<noscript><p class="note">The timeline is drawn by JavaScript. The tables need none.</p></noscript>
<div class="controls" hidden>
<div class="legend" role="group" aria-label="Stages"></div>
<div class="zoom" role="group" aria-label="Zoom">
<button type="button" data-zoom="out" title="Zoom out (-)">&minus;</button>
<button type="button" data-zoom="in" title="Zoom in (+)">+</button>
<button type="button" data-zoom="all" title="Show everything (0)">All</button>
</div>
</div>
<svg id="chart" role="img" aria-label="{label}" tabindex="0" hidden></svg>
<p class="help" hidden>Drag over a part to enlarge it; a double click shows everything. The keys +, -, 0 and the arrows
work as well. A click on a stage hides it.</p>
</section>"""


def _slowest(spans: Sequence[Span], palette: Mapping[str, int]) -> str:
    ran = sorted((span for span in spans if not span.cached), key=lambda span: -span.seconds)[:SLOWEST]
    longest = ran[0].seconds if ran else 0.0
    columns = [
        Column("Stage"),
        Column("Step"),
        Column("Seconds", True),
        Column("", hint="compared with the slowest"),
        Column("CPU s", True, "processor time of all processes of the step"),
        Column("Peak MiB", True, "memory of its largest process"),
    ]
    rows = [
        [
            _stage_cell(span.label, palette),
            name_cell(span.subject),
            number_cell(span.seconds, f"{span.seconds:,.2f}"),
            _bar(span.seconds / longest if longest else 0, palette[span.label]),
            number_cell(span.cpu_seconds, f"{span.cpu_seconds or 0:,.2f}"),
            number_cell(span.peak_kib, f"{(span.peak_kib or 0) / 1024:,.1f}"),
        ]
        for span in ran
    ]
    return f"<section>\n<h2>Slowest steps</h2>\n{table('Slowest steps', columns, rows)}\n</section>"


def _stage_cell(label: str, palette: Mapping[str, int]) -> str:
    return f'<td class="stage"><i class="chip c{palette[label]}"></i>{escape(label)}</td>'


def _bar(share: float, colour: int) -> str:
    # A rectangle and not a styled element: the page's policy allows no style attributes.
    rectangle = f'<rect class="c{colour}" width="{share:.1%}" height="100%"/>'
    return f'<td class="share"><svg aria-hidden="true">{rectangle}</svg></td>'


def _stages(run: RecordedRun, palette: Mapping[str, int]) -> str:
    spans = run.spans
    columns = [
        Column("Stage"),
        Column("Steps", True),
        Column("Hits", True, "outputs that came out of the build cache"),
        Column("Misses", True, "steps that ran, well or not"),
        Column("Hit rate", True),
        Column("Failed", True),
        Column("Seconds", True, "of all steps that ran, one after the other"),
        Column("Longest", True, "seconds of the longest step"),
        Column("CPU s", True, "processor time, as far as it was measured"),
    ]
    rows = [_stage_row(label, [span for span in spans if span.label == label], palette) for label in palette]
    hits = sum(span.cached for span in spans)
    note = f"{plural(hits, 'step')} of {len(spans):,} came out of the build cache."
    for name, counts in run.summary.caches.items():
        note += f" The {name} cache: {counts}."
    heading = f'<h2>Stages and build cache</h2>\n<p class="note">{note}</p>'
    return f"<section>\n{heading}\n{table('Stages and build cache', columns, rows)}\n</section>"


def _stage_row(label: str, spans: Sequence[Span], palette: Mapping[str, int]) -> list[str]:
    hits, failed = sum(span.cached for span in spans), sum(span.failed for span in spans)
    times = [span.seconds for span in spans if not span.cached]
    measured = [span.cpu_seconds for span in spans if span.cpu_seconds is not None]
    return [
        _stage_cell(label, palette),
        number_cell(len(spans)),
        number_cell(hits, kind="" if hits else "zero"),
        number_cell(len(spans) - hits),
        number_cell(hits / len(spans), f"{hits / len(spans):.0%}", kind="" if hits else "zero"),
        number_cell(failed, kind="bad" if failed else "zero"),
        number_cell(sum(times), f"{sum(times):,.2f}"),
        number_cell(max(times, default=0.0), f"{max(times, default=0.0):,.2f}"),
        number_cell(sum(measured) if measured else None, f"{sum(measured):,.2f}"),
    ]
