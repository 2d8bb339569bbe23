"""Reads the expression that a function of ``@triton.heuristics`` computes, so that a package can compute it at a call.

A package has no Triton, and must not run whatever a function does. So only expressions of a few operations are taken.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from ...runtime.heuristic import ATTRIBUTES, FUNCTIONS, METHODS, NODES


def expression_of(rule: Callable[..., Any]) -> str:
    """The expression that a heuristic computes of its arguments, called ``args``; empty: it cannot be told.

    Arguments:
        rule: a function of one parameter, the dict of arguments, that only returns an expression.
    """
    if not isinstance(rule, types.FunctionType) or len(inspect.signature(rule).parameters) != 1:
        return ""
    body = _body(rule)
    (parameter,) = inspect.signature(rule).parameters
    captured = inspect.getclosurevars(rule)
    names = {**captured.globals, **captured.nonlocals, **captured.builtins}
    try:
        expression = body and _Translation(parameter, names).visit(body)
    except ValueError:
        return ""
    return ast.unparse(ast.fix_missing_locations(expression)) if expression else ""


def _body(rule: types.FunctionType) -> ast.expr | None:
    """The expression that a function returns, from its source."""
    try:
        lines, _ = inspect.findsource(rule)
        tree = ast.parse("".join(lines))
    except (OSError, SyntaxError, ValueError):
        return None
    bodies = [body for node in ast.walk(tree) if (body := _returned(node, rule)) is not None]
    return bodies[0] if len(bodies) == 1 else None


def _returned(node: ast.AST, rule: types.FunctionType) -> ast.expr | None:
    """What a node returns, if it is where the code of the function is."""
    if isinstance(node, ast.FunctionDef) and node.name == rule.__name__:
        *before, last = node.body
        is_plain = all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in before)
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        is_here = first == rule.__code__.co_firstlineno
        return last.value if is_here and is_plain and isinstance(last, ast.Return) else None
    is_here = isinstance(node, ast.Lambda) and rule.__name__ == "<lambda>" and _is_code_of(node, rule)
    return node.body if is_here else None  # type: ignore[attr-defined]


def _is_code_of(node: ast.Lambda, rule: types.FunctionType) -> bool:
    """Whether the code of a function is that of a lambda. Before Python 3.11, code has lines and no columns."""
    code = rule.__code__
    positions = getattr(code, "co_positions", None)
    if node.lineno != code.co_firstlineno or positions is None:
        return node.lineno == code.co_firstlineno
    places = [(line, column) for line, _, column, _ in positions() if line is not None and column is not None]
    begins = min((place for place in places if place != (code.co_firstlineno, 0)), default=None)
    return begins == (node.body.lineno, node.body.col_offset)


class _Translation(ast.NodeTransformer):
    """Replaces the names in an expression by what a package knows; raises a ValueError if there is none.

    Arguments:
        parameter: the name of the dict of arguments.
        names: what other names mean.
    """

    def __init__(self, parameter: str, names: Mapping[str, Any]) -> None:
        self._parameter = parameter
        self._names = names

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if type(node).__name__ not in NODES:
            raise ValueError(type(node).__name__)
        return super().generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if not self._is_argument(node):
            return self.generic_visit(node)
        if not isinstance(node.slice, ast.Constant):
            raise ValueError("an argument that is not named by a text")
        return ast.Subscript(ast.Name("args", ast.Load()), node.slice, ast.Load())

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self._names.get(node.id)
        if value is None or not isinstance(value, (bool, int, float, str)):
            raise ValueError(node.id)
        return ast.Constant(value)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if node.keywords:
            raise ValueError("keywords")
        arguments = [self.visit(argument) for argument in node.args]
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and self._is_argument(node.func.value):
            return ast.Call(ast.Attribute(self.visit(node.func.value), node.func.attr, ast.Load()), arguments, [])
        name = self._function(node.func)
        return ast.Call(ast.Name(name, ast.Load()), arguments, [])

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr in ATTRIBUTES and self._is_argument(node.value):
            return ast.Attribute(self.visit(node.value), node.attr, ast.Load())
        raise ValueError(node.attr)

    def _is_argument(self, node: ast.expr) -> bool:
        """Whether a node is an argument: ``args["x"]``."""
        is_item = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
        return is_item and node.value.id == self._parameter  # type: ignore[attr-defined]

    def _function(self, node: ast.expr) -> str:
        """The name of a function that a package has: one of Python's, or ``triton.cdiv`` and its like."""
        parts = ast.unparse(node).split(".")
        value = self._names.get(parts[0])
        for part in parts[1:]:
            value = getattr(value, part, None)
        module, name = getattr(value, "__module__", ""), getattr(value, "__name__", parts[-1])
        if name not in FUNCTIONS or (module or "").partition(".")[0] not in ("builtins", "triton"):
            raise ValueError(parts[-1])
        return str(name)
