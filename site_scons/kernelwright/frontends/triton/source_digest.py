"""The digest of the text of a function of Triton, of the functions that it calls, and of the constants that it names.

It does not depend on the place of the text, nor on the release of Triton, whose own digest does.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass
class Source:
    """What a function consists of.

    Arguments:
        texts: of the function and of those that it calls, and their constants, in a fixed order.
        constants: where each text and constant is found, and which one is there: a namespace, a name, and a value.
    """

    texts: list[str] = field(default_factory=list)
    constants: list[tuple[Mapping[str, Any], str, Any]] = field(default_factory=list)

    @cached_property
    def digest(self) -> str:
        """The first 16 digits of the SHA-256 of all texts."""
        return _digest("\0".join(self.texts))

    @property
    def is_current(self) -> bool:
        """Whether the constants are those that were found."""
        return all(namespace.get(name) is value for namespace, name, value in self.constants)


def text_of(source: str | ast.FunctionDef) -> str:
    """The text of a function, without what changes nothing: comments, docstrings, and how it is laid out.

    Arguments:
        source: its text, or its tree. Decorators are no part of it.
    """
    tree: Any = ast.parse(source).body[0] if isinstance(source, str) else source
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    fields = {**dict(ast.iter_fields(tree)), "body": body or [ast.Pass()], "decorator_list": []}
    return ast.unparse(ast.fix_missing_locations(ast.FunctionDef(**fields)))


def digest_of_text(source: str | ast.FunctionDef) -> str:
    """The digest of the text of a function alone; see :func:`text_of`."""
    return _digest(text_of(source))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def source_of(function: Any) -> Source:
    """What a function consists of.

    Arguments:
        function: a ``JITFunction``.
    """
    source = Source()
    _add(function, source, set())
    return source


def _add(function: Any, source: Source, seen: set[int]) -> None:
    if id(function) in seen:
        return
    seen.add(id(function))
    source.texts.append(text_of(str(function.src)))
    if "_src" in vars(function):  # Triton can replace it
        source.constants.append((vars(function), "_src", vars(function)["_src"]))
    for parameter in function.signature.parameters.values():
        _add_value(None, parameter.name, parameter.default, source, seen)
    for namespace, name, value in sorted(_used(function.fn), key=lambda used: used[1]):
        _add_value(namespace, name, value, source, seen)


def _add_value(namespace: Mapping[str, Any] | None, name: str, value: Any, source: Source, seen: set[int]) -> None:
    """Add what a function names: another function, or a constant."""
    inner = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    is_function = hasattr(value, "src") and hasattr(value, "fn")
    if is_function:
        _add(value, source, seen)
    elif _is_constant(inner):
        source.texts.append(f"{name} = {inner!r}")
    else:
        return
    if namespace is not None:
        source.constants.append((namespace, name, value))


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, (bool, int, float, str)) or type(value).__name__ == "dtype"


def _used(function: Any) -> Iterator[tuple[Mapping[str, Any], str, Any]]:
    """The global names that a function uses, and what is behind them; of modules, the attributes that it may use."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    captured = {name: cell.cell_contents for name, cell in cells}
    names = function.__code__.co_names
    yield from _named_in(captured, tuple(captured), names, set())
    yield from _named_in(function.__globals__, names, names, set())


def _named_in(
    namespace: Mapping[str, Any], looked_up: tuple[str, ...], names: tuple[str, ...], seen: set[str]
) -> Iterator[tuple[Mapping[str, Any], str, Any]]:
    """What a namespace has under some names, and what modules in it have.

    Arguments:
        looked_up: the names that are looked up in it.
        names: those that are looked up in modules.
        seen: the modules that were looked into.
    """
    for name in looked_up:
        if name not in namespace:
            continue
        value = namespace[name]
        if not isinstance(value, ModuleType):
            yield namespace, name, value
        elif value.__name__.partition(".")[0] not in ("triton", "torch") and value.__name__ not in seen:
            seen.add(value.__name__)
            yield from _named_in(vars(value), names, names, seen)


def name_of(function: Any) -> str:
    """``module:qualname`` of a function; the program itself is called as other modules would call it."""
    module = getattr(function, "module", function.fn.__module__)
    if module == "__main__":
        main = sys.modules[module]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else Path(file).stem if file else module
    return f"{module}:{function.fn.__qualname__}"


def defaults_in(function: Any) -> dict[str, Any]:
    """The parameters of a function that have a default, and the defaults."""
    parameters = function.signature.parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}
