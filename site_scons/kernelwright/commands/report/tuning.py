"""The sections of the report about tuning: what was measured of each candidate, what was chosen, and what is out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ...core.quantity import plural
from ...state.tuning_result import DEFAULT, ConfigResult, SizeResult, TuningResult
from .heatmap import heat_maps
from .markup import MISSING, UNKNOWN, Column, name_cell, number_cell, prose_cell, table
from .plot import PANELS, legend, panels, plots
from .tuning_data import ConfigView, microseconds, regret, scaled_us, spaced, words

FASTEST = 10
"""Candidates that are listed where there are no two sizes to draw a line between."""


def tuning_sections(results: Sequence[TuningResult]) -> str:
    """All sections about tuning."""
    return "\n".join([_overview(results), *map(_section, results)])


def _overview(results: Sequence[TuningResult]) -> str:
    columns = [
        Column("Kernel"),
        Column("Device"),
        Column("Config"),
        Column("Sizes", True, "combinations of sizes that were measured"),
        Column("Candidates", True, "points of the space"),
        Column("Out", True, "candidates that cannot be built, are wrong, or cannot be measured"),
        Column("Default kept", True, "combinations of sizes at which the default was chosen"),
        Column("Largest regret", True, "of the default: how much longer it takes than the fastest candidate"),
    ]
    rows = [_overview_row(result, config) for result in results for config in result.configs]
    note = (
        "Candidates are measured in turns with the default, and compared with its times in the same rounds. Plots and "
        "heat maps show times scaled in this way. Regret is how much longer a candidate takes than the fastest one."
    )
    head = f'<h2>Tuning</h2>\n<p class="note">{escape(note)}</p>'
    return f'<section class="tuning">\n{head}\n{table("Tuning", columns, rows)}\n</section>'


def _overview_row(result: TuningResult, config: ConfigResult) -> list[str]:
    kept = sum(size.chosen == DEFAULT for size in config.sizes)
    found = [value for size in config.sizes if (value := regret(size, DEFAULT)) is not None]
    return [
        name_cell(result.kernel),
        name_cell(result.device.arch, _device_text(result)),
        name_cell(words(config.config) or UNKNOWN),
        number_cell(len(config.sizes)),
        number_cell(len(config.points)),
        number_cell(len(config.failures), kind="" if config.failures else "zero"),
        number_cell(kept),
        _percent_cell(max(found, default=None)),
    ]


def _section(result: TuningResult) -> str:
    with_what = ", ".join(f"{name} {version}" for name, version in result.measured.items())
    note = f"{_device_text(result)}. Measured with {with_what}. The table is {result.table}."
    heading = f"Tuning of {result.kernel} for {result.device.arch}"
    head = f'<h2>{escape(heading)}</h2>\n<p class="note">{escape(note)}</p>'
    return "\n".join(
        ['<section class="tuning">', head, *(_config(result, one) for one in result.configs), "</section>"]
    )


def _device_text(result: TuningResult) -> str:
    device = result.device
    return f"{device.name}, {plural(device.count, 'multiprocessor' if device.target == 'cuda' else 'core')}"


def _config(result: TuningResult, config: ConfigResult) -> str:
    view = ConfigView(config)
    name = words(config.config)
    title = f"{result.kernel} {name}".strip()
    heading = f"<h3>{escape(name or 'Its only config')}</h3>"
    notes = [f'<p class="note">{escape(text)}</p>' for text in (_counts(config), _rules(view)) if text]
    parts = [heading, *notes, _times(view, title), _sizes(view, title), heat_maps(view), _failures(view, title)]
    return "\n".join(part for part in parts if part)


def _counts(config: ConfigResult) -> str:
    measured = {candidate.number for size in config.sizes for candidate in size.candidates}
    out = f", {len(config.failures):,} out" if config.failures else ""
    late = f", {len(config.unmeasured):,} for which there was no time" if config.unmeasured else ""
    return f"{plural(len(config.points), 'candidate')}: {len(measured):,} measured{out}{late}."


def _rules(view: ConfigView) -> str:
    """The rules of the table in words."""
    config = view.result
    common = {name: value for name, value in config.points[DEFAULT].items() if name not in view.parameters}
    always = f" Every candidate has {words(common)}." if common else ""
    shown = [(view.name_of(rule.tune), rule.upto) for rule in config.rules]
    if len(shown) < 2:
        return "".join(f"For all sizes: {name}." for name, _ in shown) + always
    by = " \u00d7 ".join(config.by)
    ranges = "; ".join(f"{'above' if upto is None else f'up to {upto:,}'}: {name}" for name, upto in shown)
    return f"{by} {ranges}.{always}"


def _times(view: ConfigView, title: str) -> str:
    """Plots; or, where there is no line to draw, the fastest candidates at each combination of sizes."""
    all_panels = panels(view)
    if not all_panels:
        return "\n".join(_fastest(view, size, title) for size in spaced(view.result.sizes, PANELS))
    parts = [legend(view)]
    shown = spaced(all_panels, PANELS)
    if len(shown) < len(all_panels):
        parts.append(f'<p class="note">{len(shown)} of {len(all_panels):,} plots; the table has all sizes.</p>')
    for panel in shown:
        parts += [f"<h4>{escape(panel.fixed)}</h4>"] if panel.fixed else []
        parts.append(plots(view, panel, " ".join(filter(None, (title, panel.fixed)))))
    return f'<div class="times">\n{chr(10).join(parts)}\n</div>'


def _fastest(view: ConfigView, size: SizeResult, title: str) -> str:
    ranked = sorted(size.candidates, key=lambda candidate: candidate.ratio)
    shown = [one for place, one in enumerate(ranked) if place < FASTEST or one.number in (DEFAULT, size.chosen)]
    longest = max((one.ratio for one in shown), default=1.0)
    columns = [
        Column("Candidate"),
        Column("Time", True, "microseconds of a call, scaled by the default's time in the same rounds"),
        Column("Of default", True, "time over that of the default"),
        Column("", hint="compared with the slowest of these"),
    ]
    rows = [
        [
            _candidate_cell(view, one.number, " (chosen)" if one.number == size.chosen else ""),
            number_cell(scaled_us(size, one.ratio), microseconds(scaled_us(size, one.ratio))),
            number_cell(one.ratio, f"{one.ratio:.3f}"),
            _bar(one.ratio / longest, view.colour(one.number)),
        ]
        for one in shown
    ]
    at = words(size.sizes)
    note = f"The fastest of {plural(len(ranked), 'candidate')}{f' at {at}' if at else ''}, and the default."
    label = f"Fastest candidates of {' '.join(filter(None, (title, at)))}"
    return f'<p class="note">{escape(note)}</p>\n{table(label, columns, rows)}'


def _bar(share: float, colour: str) -> str:
    rectangle = f'<rect class="{colour}" width="{share:.1%}" height="100%"/>'
    return f'<td class="share"><svg aria-hidden="true">{rectangle}</svg></td>'


def _candidate_cell(view: ConfigView, number: int, mark: str = "") -> str:
    default = " (default)" if number == DEFAULT else ""
    name = escape(view.name(number))
    return f'<td class="name"><i class="chip {view.colour(number)}"></i>{name}{default}{mark}</td>'


def _sizes(view: ConfigView, title: str) -> str:
    if not view.result.sizes:
        return '<p class="note">Nothing was measured.</p>'
    measured = [candidate for size in view.result.sizes for candidate in size.candidates]
    warm, clocks = any(one.warm_us for one in measured), any(one.clock_mhz for one in measured)
    columns = [
        *(Column(symbol, True) for symbol in view.result.symbols),
        Column("Chosen"),
        Column("Time", True, "microseconds of a call of what was chosen, the median of its rounds"),
        Column("Default", True, "microseconds of a call of the default, in the same rounds"),
        Column("Regret of default", True, "how much longer the default takes than the fastest candidate"),
        Column("Regret of choice", True, "how much longer what was chosen takes than the fastest candidate"),
        Column("Spread", True, "how far apart the rounds of what was chosen are, relative to the default"),
        *([Column("Warm", True, "microseconds of a call with warm caches")] if warm else []),
        *([Column("MHz", True, "lowest and highest clock that was seen")] if clocks else []),
        Column("Measured", True, "candidates that were measured at these sizes"),
        Column("To the end", True, "candidates that had all their rounds"),
    ]
    rows = [_size_row(view, size, warm, clocks) for size in view.result.sizes]
    return table(f"Choices of {title}", columns, rows)


def _size_row(view: ConfigView, size: SizeResult, warm: bool, clocks: bool) -> list[str]:
    chosen = size.of_number.get(size.chosen)
    times = [MISSING, number_cell(size.default_us, microseconds(size.default_us))]
    if chosen is not None:
        times = [number_cell(us, microseconds(us)) for us in (chosen.us, chosen.default_us)]
    mhz = chosen.clock_mhz if chosen is not None else ()
    return [
        *(number_cell(size.sizes[symbol]) for symbol in view.result.symbols),
        _candidate_cell(view, size.chosen),
        *times,
        _percent_cell(regret(size, DEFAULT)),
        _percent_cell(regret(size, size.chosen)),
        _percent_cell(chosen.spread if chosen is not None else None),
        *([_warm_cell(chosen.warm_us if chosen is not None else 0.0)] if warm else []),
        *([number_cell(max(mhz), " \u2013 ".join(map(str, dict.fromkeys(mhz)))) if mhz else MISSING] if clocks else []),
        number_cell(len(size.candidates)),
        number_cell(len(size.complete)),
    ]


def _warm_cell(us: float) -> str:
    return number_cell(us, microseconds(us)) if us else MISSING


def _percent_cell(share: float | None) -> str:
    if share is None:
        return MISSING
    return number_cell(share, f"{share:,.1%}", kind="" if share else "zero")


def _failures(view: ConfigView, title: str) -> str:
    failures = view.result.failures
    if not failures:
        return ""
    columns = [Column("Candidate"), Column("Why it is out"), Column("Sources and log")]
    rows = [
        [name_cell(view.name(failure.number), failure.slug), prose_cell(failure.message), name_cell(failure.folder)]
        for failure in failures
    ]
    return f"<h4>Candidates that are out</h4>\n{table(f'Candidates of {title} that are out', columns, rows)}"
