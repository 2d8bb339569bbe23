"""The report of a build: one static HTML page of its timeline, of the code that it made, and of what was measured."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import KernelwrightError
from ...core.files import write_atomically
from ...core.quantity import plural
from ...core.records import damage_named
from ..command import Command, argument
from .data import collect


def make_report(top: Path, output: Path, bases: Sequence[str] = ("build",), benches: Sequence[str] = ()) -> str:
    """Write the report of a project; a line that says what is in it.

    Arguments:
        top: the project's folder, the one with the SConstruct.
        output: the page to write.
        bases: folders that packages were built in, relative to ``top``: ``build``, or a ``variant_dir``.
        benches: files that ``kernelwright bench --json`` has written.

    Raises:
        KernelwrightError: nothing was built there, a file is damaged, or the page cannot be written.
    """
    from .page import render  # Jinja2 is for this command only

    with damage_named(top, "make it readable"):
        report = collect(top, bases, [Path(name) for name in benches])
    page = render(report)
    try:
        write_atomically(output, page)
    except OSError as error:
        raise KernelwrightError(
            f"{output}: cannot be written ({error.strerror})", remedy="name another file with --output"
        ) from error
    steps = len(report.run.spans) if report.run else 0
    kernels = sum(len(package.kernels) for package in report.packages)
    tuned = f", {plural(len(report.tunings), 'result')} of tuning" if report.tunings else ""
    measured = f", {plural(len(report.benches), 'result')} of bench" if report.benches else ""
    return f"{output}: {plural(steps, 'step')}, {plural(kernels, 'kernel')}{tuned}{measured}"


def run(options: argparse.Namespace) -> int:
    """Write the report of a project."""
    top = Path(options.folder)
    output = Path(options.output) if options.output else top / "build" / "report.html"
    try:
        line = make_report(top, output, options.packages or ["build"], options.bench or ())
    except KernelwrightError as error:
        # A script reads the error of this command as one line.
        raise KernelwrightError(f"{error.message}; {error.remedy}") from error
    # The name of a folder may hold bytes that are not UTF-8.
    print(line.encode("utf-8", "backslashreplace").decode())
    return 0


COMMAND = Command(
    "report",
    "write a page with the timeline of a build and the code that it made",
    run,
    (
        argument("folder", "folder of the SConstruct (default: this one)", nargs="?", default=".", metavar="FOLDER"),
        argument("--output", "page to write (default: build/report.html in that folder)", metavar="FILE"),
        argument(
            "--packages",
            "folder that packages were built in, if not build: a variant_dir; may be given several times",
            action="append",
            metavar="FOLDER",
        ),
        argument(
            "--bench",
            "draw rooflines of the results that kernelwright bench --json has written; may be given several times",
            action="append",
            metavar="FILE",
        ),
    ),
)
