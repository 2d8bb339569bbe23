"""``kernelwright diff``: says what differs between two wheels: kernels, operators, registers, spills, sizes."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from ..core.errors import printable
from ..package.diff import Limits, compare, read_package
from .command import Command, argument, count

GROWN = "exit status 1 if a device function uses so many more {}"


def percent(text: str) -> float:
    """A percentage, for argparse."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)%", text, re.ASCII)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage, such as 5% or 2.5%")
    return float(found[1])


def run(options: argparse.Namespace) -> int:
    """Print what differs between two wheels, or packages; exit status 1 if something is gone, or has grown too much."""
    old, new = (read_package(Path(place)) for place in (options.old, options.new))
    limits = Limits(options.max_register_growth, options.max_spill_growth, options.max_size_growth)
    found = compare(old, new, limits)
    for line in found.lines:
        print(line)
    for place, package in ((options.old, old), (options.new, new)):
        if package.partial:
            print(f"{printable(place)} was built partially: what it lacks counts as removed")
    gone = [] if options.allow_removed else found.gone
    for line in [*gone, *found.exceeded]:
        print(f"kernelwright: {line}", file=sys.stderr)
    return 1 if gone or found.exceeded else 0


COMMAND = Command(
    "diff",
    "say what differs between two wheels: kernels, operators, registers, spills, sizes",
    run,
    (
        argument("old", "a wheel, or the folder of a built package", metavar="OLD"),
        argument("new", "another one of the same package", metavar="NEW"),
        argument("--max-register-growth", GROWN.format("registers"), metavar="N", type=count),
        argument("--max-spill-growth", GROWN.format("bytes of spills"), metavar="BYTES", type=count),
        argument("--max-size-growth", "likewise, if a kernel grows: 5%%", metavar="PERCENT", type=percent),
        argument(
            "--allow-removed",
            "exit status 0 although a kernel, a variant, an arch or an operator is gone",
            action="store_true",
        ),
    ),
    {1: "something is gone, or has grown too much"},
)
