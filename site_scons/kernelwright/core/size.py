"""The value of a size in ``signature.json``, for known symbols."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}


def evaluate(text: str, symbols: Mapping[str, int]) -> int:
    """The value of an expression of integers, symbols, ``+ - * // %``, ``min`` and ``max``, in Python's arithmetic.

    Arguments:
        text: the expression.
        symbols: the value of each symbol.

    Raises:
        ValueError: the expression has something else in it.
        ZeroDivisionError: it divides by zero for these values.

    >>> evaluate("max(2 * n, 5) // 2", {"n": 4})
    4
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, symbols)
    except SyntaxError as error:
        raise ValueError(f"the size {text!r} is not an expression") from error


def _value(node: ast.expr, symbols: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=symbol) if symbol in symbols:
            return symbols[symbol]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, symbols)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, symbols), _value(right, symbols))
        case ast.Call(func=ast.Name(id="min" | "max" as function), args=[_, _, *_] as arguments, keywords=[]):
            return _FUNCTIONS[function](*(_value(argument, symbols) for argument in arguments))
    raise ValueError(f"cannot evaluate the size {ast.unparse(node)!r} with the symbols {sorted(symbols)}")
