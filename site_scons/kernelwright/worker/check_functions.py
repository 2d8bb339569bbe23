"""The functions of a definition file that only checks call: references, and functions that make inputs.

A worker executes the file without their bodies, and has these only while it calls such a function. So no lowering can
depend on a body, and an edit of one lowers nothing again. Lines stay where they are, because lowerings may have them.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib.util import decode_source
from types import CodeType, FunctionType

from ..define.kernel import Kernel

DECORATORS = ("reference", "inputs")
"""The decorators of such functions: ``@saxpy.reference``."""

BODY = "raise RuntimeError('only checks may call this function: have both call another one')"
"""In place of a body. It is only reached in ways that the text does not show, such as ``globals()["rows" + "_np"]``."""


class CheckFunctions:
    """The functions of a definition file that only checks call.

    Arguments:
        path: that of the file.
        content: what is in it.

    ``text`` is the file without their bodies; None: it has no such function, or is no Python.
    """

    def __init__(self, path: str, content: bytes) -> None:
        self._path = path
        self._content = content
        self.text = _without_bodies(content)

    @cached_property
    def _bodies(self) -> dict[tuple[str, int], CodeType]:
        code = compile(decode_source(self._content), self._path, "exec", dont_inherit=True)
        return {(one.co_name, one.co_firstlineno): one for one in code.co_consts if isinstance(one, CodeType)}

    @contextlib.contextmanager
    def with_bodies(self, kernels: Iterable[Kernel]) -> Iterator[None]:
        """Give the functions of kernels their bodies, and error messages the lines of the file, in this block.

        It is all of them, because a function of one kernel may call that of another.
        """
        functions = [one for kernel in kernels for one in (kernel.reference_function, kernel.inputs_function)]
        codes = {one: one.__code__ for one in functions if isinstance(one, FunctionType)}
        codes = {one: code for one, code in codes.items() if code.co_filename == self._path}
        if self.text is None or not codes:
            yield
            return
        lines, whole = linecache.cache[self._path], decode_source(self._content).splitlines(keepends=True)
        for function, code in codes.items():
            function.__code__ = self._bodies.get((code.co_name, code.co_firstlineno), code)
        linecache.cache[self._path] = (len(self._content), None, whole, self._path)
        try:
            yield
        finally:
            for function, code in codes.items():
                function.__code__ = code
            linecache.cache[self._path] = lines


def _without_bodies(content: bytes) -> str | None:
    try:
        text = decode_source(content)
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # whoever executes the file says what is wrong
        return None
    lines = text.encode().split(b"\n")
    used = _used(tree)
    decorated = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and _is_ours(node, used, decorated)]
    for function in functions:
        first, last = function.body[0], function.body[-1]
        start, end = first.lineno - 1, last.end_lineno or first.lineno
        lines[start:end] = [lines[start][: first.col_offset] + BODY.encode(), *[b""] * (end - start - 1)]
    return b"\n".join(lines).decode() if functions else None


def _used(tree: ast.Module) -> set[str]:
    """The names that a file reads, and its texts, which may be names."""
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return names | texts | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _is_ours(node: ast.FunctionDef, used: set[str], decorated: set[str]) -> bool:
    """Whether only checks call a function, as far as the text shows: ``@saxpy.reference`` and nobody has its name."""
    if len(node.decorator_list) != 1 or node.name in used or getattr(node, "type_params", None):
        return False
    decorator = node.decorator_list[0]
    parts = ast.unparse(decorator).split(".")
    is_ours = isinstance(decorator, ast.Attribute) and parts[0] in decorated and parts[-1] in DECORATORS
    return is_ours and not getattr(node.body[0], "decorator_list", None)  # that would begin above its first line
