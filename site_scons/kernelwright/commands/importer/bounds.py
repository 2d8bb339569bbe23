"""Reads what stands in ``__launch_bounds__``: Clang computes what does not depend on a template."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .function import Function

TOKEN = re.compile(r"\d[\w']*|(?:::\s*)?[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*|\S")
"""A number, a name with its namespaces, or a sign."""

NAME = re.compile(r"(?:::)?[A-Za-z_]")

ARITHMETIC = re.compile(r"[A-Za-z_]\w*|\d+|[-+*%()]|/")
"""What Python computes as C++ does, but for the quotient of integers."""

ASKED = "kernelwright_"
"""The names of the constants that Clang computes begin so."""

Question = tuple[str, str]
"""A namespace, and an expression in it."""


def threads_of(bounds: str) -> str:
    """The first argument of ``__launch_bounds__``."""
    depth = 0
    for position, sign in enumerate(bounds):
        depth += (sign in "(<[{") - (sign in ")>]}")
        if sign == "," and depth <= 0:
            return bounds[:position].strip()
    return bounds.strip()


def questions_of(function: Function) -> list[Question]:
    """What Clang is to compute for the bounds of a function: all of it, or what depends on no template."""
    threads, own = threads_of(function.bounds), {parameter.name for parameter in function.template}
    names = [token for token in TOKEN.findall(threads) if NAME.match(token)]
    scope = function.name.rpartition("::")[0]
    if own.isdisjoint(names):
        return [(scope, threads)] if threads and not re.fullmatch("0|[1-9][0-9]*", threads) else []
    return [(scope, name) for name in dict.fromkeys(names) if name not in own]


def with_values(function: Function, values: Mapping[Question, int]) -> str:
    """The threads in the bounds of a function, with the numbers that Clang has computed."""
    scope, threads = function.name.rpartition("::")[0], threads_of(function.bounds)
    if (scope, threads) in values:
        return str(values[scope, threads])
    own = {parameter.name for parameter in function.template}

    def number(token: re.Match[str]) -> str:
        return token[0] if token[0] in own else str(values.get((scope, token[0]), token[0]))

    return TOKEN.sub(number, threads)


def question_text(source: str, questions: Iterable[Question]) -> str:
    """A source with the questions, each in a line of its own, so that an error costs only one of them."""
    lines = [
        f"namespace {scope} {{ {_constant(number, text)} }}" if scope else _constant(number, text)
        for number, (scope, text) in enumerate(questions, 2)
    ]
    return "\n".join([f'#include "{source}"', *lines, ""])


def _constant(line: int, text: str) -> str:
    return f"enum : long long {{ {ASKED}{line} = ({text}) }};"


def answers(unit: Any, file: str, questions: Sequence[Question]) -> dict[Question, int]:
    """What Clang has computed.

    Arguments:
        unit: the text of the questions as Clang has read it.
        file: its name.
    """
    wrong = {e.location.line for e in unit.diagnostics if e.severity >= e.Error and str(e.location.file) == file}
    found = {cursor.spelling: cursor.enum_value for cursor in _constants(unit.cursor, file)}
    known = {f"{ASKED}{line}": question for line, question in enumerate(questions, 2) if line not in wrong}
    return {question: found[name] for name, question in known.items() if name in found}


def _constants(cursor: Any, file: str) -> Iterable[Any]:
    for child in cursor.get_children():
        if str(child.location.file) != file:
            continue
        if child.kind.name == "ENUM_CONSTANT_DECL":
            yield child
        elif child.kind.name in ("NAMESPACE", "ENUM_DECL"):
            yield from _constants(child, file)


def in_python(threads: str, name_of: Callable[[str], str | None]) -> str | None:
    """The threads of a block as Python computes them; None: they are no arithmetic of integers.

    Arguments:
        name_of: what the definition calls a parameter of the template; None: it is no number.
    """
    written = []
    for token in TOKEN.findall(re.sub(r"\b(\d+)[uUlL]+\b", r"\1", threads)):
        text = name_of(token) if NAME.match(token) else token
        if text is None or not ARITHMETIC.fullmatch(token):
            return None
        written.append({"/": " // ", "*": " * ", "+": " + ", "-": " - ", "%": " % "}.get(text, text))
    return "".join(written) or None
