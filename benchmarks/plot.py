"""Draws how the time of scons grows with the number of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .harness import Skip

SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "kernelwright",  # or names in the SVG would differ from run to run
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(path: Path, lines: Mapping[str, Mapping[int, float]]) -> None:
    """Write ``path`` with the suffixes .svg and .png.

    Arguments:
        path: without a suffix.
        lines: for each name, number of kernels -> seconds.

    Raises:
        Skip: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise Skip("no plot, matplotlib is not installed: pip install --group bench") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(SETTINGS):
        figure, axes = pyplot.subplots(figsize=(5.5, 3.6))
        for (name, points), marker in zip(lines.items(), "osd^", strict=False):
            axes.loglog(list(points), list(points.values()), marker=marker, label=name)
        _reference(axes, list(lines.values())[-1])
        counts = sorted({count for points in lines.values() for count in points})
        axes.set_xticks(counts, [f"{count:,}" for count in counts], minor=False)
        axes.xaxis.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set(xlabel="kernels", ylabel="seconds", title="scons without anything to build")
        axes.legend(frameon=False)
        axes.grid(True, which="major", linewidth=0.4)
        figure.tight_layout()
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=150, metadata={"Software": None})
        pyplot.close(figure)


def _reference(axes: Any, points: Mapping[int, float]) -> None:
    """A straight line of slope 1 through the last point."""
    counts, (last, seconds) = sorted(points), max(points.items())
    line = [seconds * count / last for count in counts]
    axes.loglog(counts, line, "--", color="gray", linewidth=0.8, label="proportional")
