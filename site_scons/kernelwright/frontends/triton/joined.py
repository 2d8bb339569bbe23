"""Makes one module of the device code of several functions, which one kernel launches.

Triton compiles each function to a module of its own, and a variant's device code is one module. So their PTX is put
together, and Triton's ptxas makes machine code of it. Written for Triton 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...core.arch import arch_order
from ...core.errors import LoweringError
from ..unit import Unit
from .compiler import Compiled, ptxas_printing

HEADER = re.compile(r"^\.(?:version|target|address_size)\b.*$", re.M)
NAME = re.compile(r"^(?:\.(?:visible|weak|common)\s+)*\.(?P<kind>entry|func|global|const|shared)\b(?P<rest>.*)", re.S)
NAMED = {
    **dict.fromkeys(("entry", "func"), re.compile(r"\s*(?:\([^)]*\)\s*)?([\w$]+)")),
    **dict.fromkeys(("global", "const", "shared"), re.compile(r"[^\[=;]*?([\w$]+)\s*(?=[\[=;])")),
}
"""Kind of a statement outside of functions -> the name that it defines, behind that word."""

FILE = re.compile(r'^\s*\.file\s+(\d+) (".*")$\n?', re.M)
SECTION = re.compile(r"^\s*\.section\s+\.(\w+)\s*\{([^{}]*)\}", re.M)
PLACE = re.compile(r"(?<=\binlined_at )\d+|(?<=^\t\.loc\t)\d+", re.M)
STRING = re.compile(r"\$L__info_string\d+")


def joined(
    parts: Sequence[Sequence[Compiled]], options: Sequence[Mapping[str, Any]], unit: Unit
) -> list[list[Compiled]]:
    """The same functions with device code that all of them have in common, in the same order.

    Arguments:
        parts: what Triton made of each function, for each arch.
        options: those that each was compiled with.
        unit: what is lowered.

    Raises:
        LoweringError: the functions cannot be in one module.
    """
    if len({one["enable_fp_fusion"] for one in options}) > 1:
        message = "its launches differ in enable_fp_fusion, and their code is compiled together"
        raise LoweringError(message, unit.where, "give all of them the same")
    made = [_module(each, options[0], unit) for each in zip(*parts, strict=True)]
    return [list(each) for each in zip(*made, strict=True)]


def _module(parts: Sequence[Compiled], options: Mapping[str, Any], unit: Unit) -> list[Compiled]:
    """The functions for one arch, in one module."""
    texts, names, lines = [], [], _Lines()
    for number, part in enumerate(parts):
        statements = list(_statements(lines.taken(part.ptx, number), part.name, unit))
        defined = [name for statement in statements if (name := _defined(statement, unit))]
        # Those of the first one, too, so that no other one gets a name that it has.
        renamed = {name: f"{name}_{number}" for name in defined}
        texts += [_renamed(statement, renamed) for statement in statements]
        names.append(renamed.get(part.name, part.name))
    heads = max((HEADER.findall(part.ptx) for part in parts), key=lambda lines: _version(lines[0]))
    ptx = "\n".join([*heads, *dict.fromkeys(texts), *lines.statements]) + "\n"
    cubin, report = _assembled(ptx, parts[0].arch, options, unit)
    named = zip(parts, names, strict=True)
    return [replace(part, name=name, cubin=cubin, ptx=ptx, report=report) for part, name in named]


class _Lines:
    """The files that lines are of, and the names of functions that are inlined, of all functions together.

    What debuggers read besides is for one function only. Lines do not need it.
    """

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._strings = ""

    def taken(self, ptx: str, number: int) -> str:
        """The PTX of a function without them; in its lines, they are called as in all functions together."""
        files = {own: self._files.setdefault(name, len(self._files) + 1) for own, name in FILE.findall(ptx)}
        text = re.sub(r"//[^\n]*", "", FILE.sub("", ptx))
        text = STRING.sub(rf"\g<0>_{number}", PLACE.sub(lambda match: str(files[match[0]]), text))
        self._strings += "".join(content for name, content in SECTION.findall(text) if name == "debug_str")
        return SECTION.sub("", text)

    @property
    def statements(self) -> list[str]:
        """What a module with all functions has at its end."""
        strings = [f".section .debug_str {{{self._strings}}}"] if self._strings else []
        return [*(f".file {number} {name}" for name, number in self._files.items()), *strings]


def _version(line: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", line)))


def _statements(ptx: str, name: str, unit: Unit) -> Iterator[str]:
    """The statements of a module outside of functions: each ends with a semicolon, or with the end of a function.

    Arguments:
        ptx: the module, without comments.
        name: what Triton calls its function.
    """
    text = HEADER.sub("", ptx)
    depth = start = 0
    for match in re.finditer(r"[{}();]", text):
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(match[0], 0)
        is_function = match[0] == "}" and "=" not in text[start : text.find("{", start)]
        if not depth and (match[0] == ";" or is_function):
            yield text[start : match.end()].strip()
            start = match.end()
    if depth or text[start:].strip():
        raise LoweringError(f"Triton's PTX of {name} ends within a statement", unit.where, "report it, please")


def _defined(statement: str, unit: Unit) -> str:
    """The name that a statement defines; empty: it only declares one that is somewhere else."""
    if statement.startswith(".extern"):
        return ""
    match = NAME.match(statement)
    named = match and NAMED[match["kind"]].match(match["rest"])
    if not named:
        first = statement.partition("\n")[0][:120]
        message = f"Triton's PTX has a statement that no module of several functions can have here: {first}"
        raise LoweringError(message, unit.where, "make a kernel of each function")
    return named[1]


def _renamed(statement: str, names: Mapping[str, str]) -> str:
    """A statement with other names. What a function defines itself is not meant, nor what is part of a longer name."""
    # A name stands behind a comma or bracket, or is what is defined or called; an instruction has a dot behind it.
    return re.sub(r"(?<![\w$%.])[\w$]+(?![\w$.])", lambda match: names.get(match[0], match[0]), statement)


def _assembled(ptx: str, arch: str, options: Mapping[str, Any], unit: Unit) -> tuple[bytes, str]:
    """The machine code of PTX, and what ptxas has printed."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    capability = arch_order(arch)[0]
    backend = make_backend(GPUTarget("cuda", capability, 32))
    with ptxas_printing(unit.debug) as printed:
        try:
            cubin: bytes = backend.make_cubin(ptx, {}, backend.parse_options(dict(options)), capability)
        except Exception as error:
            message = f"ptxas cannot compile the functions of all launches as one module for {arch}"
            remedy = "make a kernel of each function"
            raise LoweringError(message, unit.where, remedy, str(error)) from error
    return cubin, printed.getvalue()
