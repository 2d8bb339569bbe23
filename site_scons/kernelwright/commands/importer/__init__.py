"""``kernelwright import``: writes the definitions of kernels for CUDA C++ that exists."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import DefinitionError, SettingsError, Where, printable
from ..command import Command, argument
from .definition import NAMED, TABLE, Definition, LeftOut, comment, definition_of, in_docstring, quoted
from .function import Found
from .kernel_builder import read_layout
from .operators import import_layout
from .parser import functions_in
from .types import NAMES


def run(options: argparse.Namespace) -> int:
    """Write a definition file for the device functions of a source, or for the operators of a project."""
    lines = import_source(Path(options.source), Path(options.output) if options.output else None)
    # The name of a file may hold bytes that are not UTF-8.
    print(lines.encode("utf-8", "backslashreplace").decode())
    return 0


COMMAND = Command(
    "import",
    "write a definition file for the device functions of a CUDA source; needs pip install 'kernelwright[import]'. Or "
    "for the operators of a project in the layout of Hugging Face's kernel-builder",
    run,
    (
        argument("source", "path of a .cu file, of a header, or of a build.toml", metavar="FILE"),
        argument("--output", "definition file to write (default: one of its name, beside it)", metavar="FILE"),
    ),
)


def import_source(source: Path, output: Path | None) -> str:
    """Write the definition file.

    Arguments:
        source: a ``.cu`` file, a header, or a ``build.toml`` of kernel-builder.
        output: the file to write; None: one of the source's name beside it.

    Returns:
        What was done, in lines.

    Raises:
        KernelwrightError: there is no such source, it has no function that can be a kernel, the file exists already,
            or libclang is missing.
    """
    where = Where(stage="import", location=str(source))
    if not source.is_file():
        raise SettingsError("there is no such file", where, "give the path of a source in CUDA C++")
    layout = read_layout(source) if source.suffix == ".toml" else None
    written = output or source.with_name(f"{layout.name if layout else _module_name(source.stem)}.py")
    if written.exists() or written.is_symlink():
        taken = Where(stage="import", location=str(written))
        raise SettingsError("this file exists already", taken, "remove it, or write another one: --output FILE")
    if layout is not None:
        text, names, left_out = import_layout(source, layout, written)
        _write(written, text)
        return _summary(written, names, left_out)
    found = functions_in(source)
    if not found.functions:
        raise _without_functions(found, where)
    relative = Path(os.path.relpath(source.resolve(), written.parent.resolve())).as_posix()
    definitions, left_out = _definitions(found, relative)
    if not definitions:
        raise DefinitionError("none of its functions can be a kernel", where, None, "\n".join(left_out))
    _write(written, _text(relative, definitions, _notes(found, left_out)))
    odd = [f"not found: {name}" for name in found.missing] + [f"not understood: {error}" for error in found.errors]
    return _summary(written, [definition.name for definition in definitions], left_out, odd)


def _write(written: Path, text: str) -> None:
    try:
        with written.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        refused = Where(stage="import", location=str(written))
        message = f"this file cannot be written: {error.strerror}"
        raise SettingsError(message, refused, "write another one: --output FILE") from error


def _module_name(stem: str) -> str:
    return re.sub(r"\W", "_", stem, flags=re.ASCII)


def _without_functions(found: Found, where: Where) -> DefinitionError:
    message = "it defines no __global__ function"
    if found.elsewhere:
        return DefinitionError(message, where, f"import a header of it that does: {', '.join(found.elsewhere)}")
    remedy = "give a source that has one"
    if found.missing:
        remedy += f"; Clang did not find {', '.join(found.missing)}, so it may have missed some"
    return DefinitionError(message, where, remedy, "\n".join(found.errors) or None)


def _definitions(found: Found, source: str) -> tuple[list[Definition], list[str]]:
    """The definitions of all functions that can be kernels, and why the others cannot."""
    definitions, left_out = [], []
    names: set[str] = set()
    for function in found.functions:
        try:
            definitions.append(definition_of(function, source, names))
        except LeftOut as error:
            left_out.append(f"{function.name} (line {function.line}): {printable(str(error))}")
    return definitions, left_out


def _notes(found: Found, left_out: Sequence[str]) -> list[str]:
    """Comments about what is not in the file."""
    lines = []
    if found.missing:
        lines += comment(f"TODO: Clang did not find {', '.join(found.missing)}. What needs them may be missing here.")
    if found.errors:
        lines += ["# TODO: Clang did not understand all of it:", *_listed(found.errors)]
    if left_out:
        lines += comment("TODO: these functions are left out. Host code of your own can launch them:")
        lines += _listed(left_out)
    return [*lines, ""] if lines else []


def _listed(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in comment(text, mark="- ")]


def _text(source: str, definitions: Sequence[Definition], notes: Sequence[str]) -> str:
    """The definition file."""
    lines = [line for definition in definitions for line in definition.lines]
    code = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    title = f'"""Kernels of {in_docstring(source)}. `kernelwright import` wrote this; see to each TODO."""'
    return "\n".join([title, "", *_imports(code), "", *_table(definitions), *notes, *_spaced(definitions)])


def _imports(code: str) -> list[str]:
    """The imports that the code needs, in the order that formatters give them."""
    names = [name for name in NAMED if re.search(rf"\b{name}\(", code)]
    ours = [name for name in ("grid", "kernel") if re.search(rf"\b{name}\(", code)]
    return [f"from kernelwright import {', '.join(ours)}", f"from kernelwright.cuda import {', '.join(names)}"]


def _table(definitions: Sequence[Definition]) -> list[str]:
    if not any(definition.has_types for definition in definitions):
        return []
    rows = [f"    {quoted(dtype)}: {quoted(name)}," for dtype, name in NAMES.items()]
    return ["# What C++ calls a dtype.", f"{TABLE} = {{", *rows, "}", ""]


def _spaced(definitions: Sequence[Definition]) -> list[str]:
    return [line for definition in definitions for line in ("", *definition.lines, "")]


def _summary(written: Path, names: Sequence[str], left_out: Sequence[str], odd: Sequence[str] = ()) -> str:
    lines = [f"{written}: {', '.join(names)}", *(f"left out: {line}" for line in left_out), *odd]
    return "\n".join([*lines, "Next: see to each TODO in the file, and run scons."])
