"""Writes the IR after each of TVM's passes into a folder, so that people can see what a pass changes.

Written for TVM 0.27. Its own ``DumpIR`` does not tell which schedule a pass belongs to, nor which passes do nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm.ir.instrument import pass_instrument

from ..unit import IR_INDEX, Unit

MAX_NAME = 80
"""Longest name of a pass in characters, as a part of the name of a file."""


class IrDump:
    """The IR after each pass of one lowering: a file for each, in order, and at the end a list of them.

    The files are written at once, so that they are there if TVM ends the process.

    Arguments:
        folder: an existing, empty folder that receives the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: list[str] = []
        self._count = 0
        self._last = ""

    def write(self, name: str, module: Any) -> None:
        """Write a module, or a function.

        Arguments:
            name: what it is, or the pass that made it.
        """
        text = _text(module)
        file = f"{self._count:03d}-{re.sub(r'[^A-Za-z0-9_.+-]', '_', name)[:MAX_NAME]}.tir"
        (self._folder / file).write_text(text, encoding="utf-8")
        self._lines.append(file + (" unchanged" if text == self._last else ""))
        self._count, self._last = self._count + 1, text

    def instrument(self) -> Any:
        """What tells TVM to write the IR here, for a ``PassContext``."""
        write = self.write

        class Printing:
            def run_after_pass(self, module: Any, info: Any) -> None:
                write(str(info.name), module)

        return pass_instrument(Printing)()

    def noting(self, progress: Callable[[str], None]) -> Callable[[str], None]:
        """The function ``progress``, which now also adds a line to the list for each schedule that it is told."""

        def noted(doing: str) -> None:
            self._lines.append(f"# {doing}")
            progress(doing)

        return noted

    def finish(self, unit: Unit) -> None:
        """Write the list."""
        head = f"# the IR of {unit.kernel}/{unit.slug} for {unit.target} ({unit.arch}) after each pass, in order"
        (self._folder / IR_INDEX).write_text("\n".join([head, *self._lines]) + "\n", encoding="utf-8")


def _text(module: Any) -> str:
    try:
        text: str = module.script()
    except Exception as error:  # TVM raises errors of any type; to show something must not change what is made
        return f"# TVM cannot print this module: {type(error).__name__}: {error}\n"
    return text.rstrip() + "\n"
