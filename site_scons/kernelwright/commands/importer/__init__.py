"""``kernelwright import``: finds device functions in CUDA C++, and writes the definitions of kernels for them."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..command import Command, argument
from .command import import_source


def run(options: argparse.Namespace) -> int:
    """Write a definition file for the device functions of a source."""
    lines = import_source(Path(options.source), Path(options.output) if options.output else None)
    # The name of a file may hold bytes that are not UTF-8.
    print(lines.encode("utf-8", "backslashreplace").decode())
    return 0


COMMAND = Command(
    "import",
    "write a definition file for the device functions of a CUDA source; needs pip install 'kernelwright[import]'",
    run,
    (
        argument("source", "path of a .cu file, or of a header", metavar="FILE"),
        argument("--output", "definition file to write (default: one of the source's name, beside it)", metavar="FILE"),
    ),
)
