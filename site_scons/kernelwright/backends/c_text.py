"""Python values as C: string literals, and sizes, which are expressions in Python syntax."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from ..runtime.size import translate


def c_string(text: str) -> str:
    """A string literal, of C and of the assembler."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if " " <= character <= "~" and character not in '"\\?':
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode())


_FUNCTIONS = {
    "+": "kw_add",
    "-": "kw_subtract",
    "*": "kw_multiply",
    "//": "kw_floordiv",
    "%": "kw_floormod",
    "min": "kw_min",
    "max": "kw_max",
}
"""Functions of the launcher, because C's own operators are undefined where int64 overflows."""


def size_expression(text: str, name: Callable[[str], str]) -> str:
    """Translate a size to C.

    Arguments:
        text: the size.
        name: returns the C expression of a symbol.

    Raises:
        ValueError: the text is no expression of a size.
    """

    def operation(sign: str, operands: list[str]) -> str:
        terms = operands if len(operands) > 1 else ["INT64_C(0)", *operands]
        return reduce(lambda first, second: f"{_FUNCTIONS[sign]}({first}, {second})", terms)

    return translate(text, "INT64_C({})".format, name, operation)


def symbols_of(size: int | str) -> list[str]:
    """The symbols in a size, in order of appearance."""
    if isinstance(size, int):
        return []
    symbols: dict[str, None] = {}
    size_expression(size, lambda symbol: symbols.setdefault(symbol) or symbol)
    return list(symbols)
