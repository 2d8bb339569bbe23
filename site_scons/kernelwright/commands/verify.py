"""``kernelwright verify``: checks what wheels install, their digests, archs, paths and tags."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import KernelwrightError, printable
from ..package.drivers import drivers_text, least_drivers
from ..package.verify import debug_builds, gaps_of, manifest_of, verify_together, verify_wheel
from ..runtime.loader import gap_text
from .command import Command, argument

MOST_PROBLEMS = 50
"""How many problems of wheels are printed."""

LONGEST_PROBLEM = 1000
"""Characters of a problem that are printed."""


def verify(wheels: Sequence[Path], own_points: bool = False, partial: bool = False) -> int:
    """Print what is wrong with some wheels: with each, and with those together that are well by themselves.

    Arguments:
        partial: whether they may lack what could not be built.
        own_points: whether they may have entry points that refer to their own package.
    """
    found: dict[Path, list[str]] = {}
    errors: list[KernelwrightError] = []
    for wheel in wheels:
        try:
            found[wheel] = verify_wheel(wheel, own_points=own_points)
        except KernelwrightError as error:
            errors.append(error)
    well = [wheel for wheel, listed in found.items() if not listed]
    misfits = verify_together(well)
    problems = [f"{wheel.name}: {problem}" for wheel, listed in found.items() for problem in listed]
    # These texts come from a wheel, and so from a stranger: each is kept to one line, and cut.
    lines = [printable(problem)[:LONGEST_PROBLEM] for problem in [*problems, *misfits]]
    more = [f"and {len(lines) - MOST_PROBLEMS} problems more"] if len(lines) > MOST_PROBLEMS else []
    for line in [*errors, *lines[:MOST_PROBLEMS], *more]:
        print(f"kernelwright: {line}", file=sys.stderr)
    lacking = False
    for wheel in [] if misfits else well:
        gaps = [f"  {printable(gap_text(gap))[:LONGEST_PROBLEM]}" for gap in gaps_of(wheel)]
        verdict = "built partially (--partial accepts that), without" if gaps else "all well"
        manifest = manifest_of(wheel)
        more = [f"  debug = {level!r}: {', '.join(names)}" for level, names in debug_builds(manifest).items()]
        if driver := drivers_text(least_drivers(manifest)):
            more.append(f"  driver: {driver}")
        print("\n".join([f"{printable(wheel.name)}: {verdict}", *gaps, *more]))
        lacking = lacking or bool(gaps)
    return 1 if errors or problems or misfits or (lacking and not partial) else 0


def run(options: argparse.Namespace) -> int:
    """Verify the wheels that are named."""
    return verify([Path(wheel) for wheel in options.wheels], options.entry_points, options.partial)


COMMAND = Command(
    "verify",
    "check wheels: what each installs, its digests, archs, paths, name and tag; and whether they fit together",
    run,
    (
        argument("wheels", "path of a wheel", nargs="+", metavar="WHEEL"),
        argument(
            "--entry-points",
            "accept commands and other entry points, if they refer to the wheel's own package",
            action="store_true",
        ),
        argument("--partial", "accept a wheel of a partial build; what it lacks is listed", action="store_true"),
    ),
    {1: "something is wrong, or a wheel lacks something and --partial is not given"},
)
