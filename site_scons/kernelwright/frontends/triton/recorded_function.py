"""Finds the function that a recording names, and what its decorators do at each call: heuristics, and tuned configs.

Written for Triton 3.9.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import DefinitionError, Where
from ...runtime.heuristic import ATTRIBUTES, FUNCTIONS, METHODS, NODES
from ..raised import first_line
from .program import OPTIONAL
from .recorded import record_again
from .recording import DTYPE, FLOAT, encoded


@dataclass(frozen=True)
class FoundFunction:
    """A function with what its decorators do.

    Arguments:
        function: the ``JITFunction``.
        heuristics: parameter -> the expression that computes it; empty: a package cannot compute it.
        configs: what it is tuned with, the first one first; none, if a function of the program leaves some out of
            calls.
        tuned_by: the parameters that decide which config is the fastest.
        computed_first: those of its heuristics that are computed before that is asked.
        decided: the parameters and options that its decorators give.
        is_tuned: whether it has configs, also if a function of the program leaves some out of calls.
    """

    function: Any
    heuristics: Mapping[str, str] = field(default_factory=dict)
    configs: Sequence[Mapping[str, Any]] = ()
    tuned_by: Sequence[str] = ()
    computed_first: Sequence[str] = ()
    decided: frozenset[str] = frozenset()
    is_tuned: bool = False


def found(name: str, recording: str, where: Where) -> FoundFunction:
    """The function of a name: ``module:name``.

    Arguments:
        recording: the file that has the name.

    Raises:
        DefinitionError: there is none, or it does at each call what no package can do.
    """
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction, KernelInterface

    value = _attribute(name, record_again(recording), where)
    heuristics: dict[str, str] = {}
    configs: list[dict[str, Any]] = []
    tuned_by: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    is_tuned = False
    decided: set[str] = set()
    # Libraries have decorators of their own, which may be around those of Triton or between them.
    while isinstance(value, KernelInterface) and not isinstance(value, JITFunction) and hasattr(value, "fn"):
        if isinstance(value, Heuristics):
            # The inner ones come later, and have the last word.
            heuristics |= {parameter: expression_of(rule) for parameter, rule in value.values.items()}
        elif isinstance(value, Autotuner):
            listed, tuned_by = [_config(config, name, where) for config in value.configs], tuple(value.keys)
            first = tuple(parameter for parameter, text in heuristics.items() if text)
            decided |= {parameter for config in listed for parameter in config}
            is_tuned = True
            configs = [] if value.early_config_prune else listed
        value = value.fn
    if not isinstance(value, JITFunction):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        message = f"{name} is of type {kind}, and no function with @triton.jit"
        remedy = f"let the name in its def be that of the function with @triton.jit, or {record_again(recording)}"
        raise DefinitionError(message, where, remedy)
    if value.pre_run_hooks:
        remedy = "call its hooks in the program, and remove them from the function"
        raise DefinitionError(f"{name} has hooks that run before each call, which a package has not", where, remedy)
    return FoundFunction(
        value,
        heuristics=heuristics,
        configs=configs,
        tuned_by=tuned_by,
        computed_first=first,
        decided=frozenset({*decided, *heuristics}),
        is_tuned=is_tuned,
    )


def _attribute(name: str, again: str, where: Where) -> Any:
    module_name, _, path = name.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    except ImportError as error:
        message = f"the module {module_name!r} of a recorded function cannot be imported: {first_line(error)}"
        remedy = f"install the package that has it, put it beside the definition file, or {again}"
        raise DefinitionError(message, where, remedy) from error
    for part in path.split("."):
        if not hasattr(value, part):
            message = f"the module {module_name!r} has no {path!r} any more, which was recorded"
            raise DefinitionError(message, where, again)
        value = getattr(value, part)
    return value


def _config(config: Any, name: str, where: Where) -> dict[str, Any]:
    """What a config of ``@triton.autotune`` gives to a call."""
    if config.pre_hook is not None or config.ir_override is not None:
        message = f"the config {config} of {name} has a pre_hook or an ir_override, which a package has not"
        raise DefinitionError(message, where, "do its work in the program, before the call")
    options = {option: getattr(config, option) for option in ("num_warps", "num_stages", *OPTIONAL)}
    try:
        given = {parameter: encoded(value) for parameter, value in config.kwargs.items()}
    except ValueError as error:
        remedy = "give numbers, texts, dtypes of Triton, functions with @triton.jit, or tuples of them"
        raise DefinitionError(f"the config {config} of {name} has a value that {error}", where, remedy) from error
    return {**given, **{option: value for option, value in options.items() if value is not None}}


def constant(value: Any, recording: str, where: Where) -> Any:
    """A constant of a recording as Triton has it.

    Raises:
        DefinitionError: it is a function that is not there.
    """
    from triton import language

    if isinstance(value, list):
        return tuple(constant(item, recording, where) for item in value)
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == DTYPE:
        return language.dtype(content)
    return float(content) if kind == FLOAT else found(content, recording, where).function


def defaults_of(found: FoundFunction) -> dict[str, Any]:
    """The parameters of a function that have a default which a package can have, and that counts, and the defaults."""
    defaults = {}
    for parameter in found.function.signature.parameters.values():
        if parameter.default is not inspect.Parameter.empty and parameter.name not in found.decided:
            try:
                defaults[parameter.name] = encoded(parameter.default)
            except ValueError:
                continue  # a call has to give it
    return defaults


def expression_of(rule: Callable[..., Any]) -> str:
    """The expression that a heuristic computes of its arguments, called ``args``; empty: it cannot be told.

    A package has no Triton, and must not run whatever a function does. So only expressions of a few operations are
    taken.

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
