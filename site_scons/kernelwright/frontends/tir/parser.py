"""Makes TVMScript's parser faster, without a change to what it makes.

A build has the same functions parsed for every variant and target. TVM 0.27 looks up their source each time, for which
Python goes through all modules that are loaded, and makes a syntax tree of it anew.
"""

from __future__ import annotations

import inspect
import sys
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from tvm.script.parser.core import doc
from tvm.script.parser.core.diagnostics import Source
from tvm.script.parser.core.parser import ScriptMacro

_look_up = Source.__init__
_known: dict[int, tuple[CodeType, dict[str, Any]]] = {}
"""The key is the identity of a code object: generated functions may have equal code objects and different texts."""

MOST = 256
"""How many sources are kept: functions within others have other code each time."""


def make_parser_faster() -> None:
    """Have the parser keep the sources and syntax trees of functions, and macros look for it in the frames alone.

    It also asks Python for the module of its callers. For code without a file, Python goes through all modules each
    time, and finds none.
    """
    getattr(inspect, "modulesbyfile", {}).update({"<string>": "", "<ast>": ""})
    Source.__init__ = _look_up_once
    Source.as_ast = lambda source: _copied(_tree(source.source))
    ScriptMacro._find_parser_def = _find_parser


@lru_cache(MOST)
def _tree(source: str) -> Any:
    """The syntax tree of a text. The parser changes the one that it gets."""
    return doc.parse(source)


def _copied(part: Any) -> Any:
    """A copy of a syntax tree. ``copy.deepcopy`` takes as long as to parse the text, this a fifth of it."""
    if isinstance(part, list):
        return [_copied(item) for item in part]
    if not isinstance(part, doc.AST):
        return part  # names, numbers and places, which nothing changes
    new = object.__new__(type(part))
    vars(new).update({name: _copied(value) for name, value in vars(part).items()})
    return new


def _look_up_once(source: Source, program: Any) -> None:
    code = getattr(program, "__code__", None)
    if code is None or hasattr(program, "__wrapped__"):  # such a function shows the source of another
        _look_up(source, program)
        return
    known = _known.get(id(code))  # once: another thread may clear it
    if known is None:
        if len(_known) >= MOST:
            _known.clear()
        _look_up(source, program)
        known = _known[id(code)] = code, dict(vars(source))
    vars(source).update(known[1])


def _find_parser(macro: Any) -> Any:
    """The parser that a macro is called by.

    TVM has ``inspect.getouterframes`` read the lines of source of every frame before it looks into the first one. That
    is a tenth of the lowering of a kernel that uses macros. The frames and their order are the same.
    """
    frame: FrameType | None = sys._getframe(0)
    while frame is not None:
        parser = frame.f_globals.get(ScriptMacro.parser_object_name)
        if parser is not None:
            return parser
        frame = frame.f_back
    raise RuntimeError(f"{ScriptMacro.parser_object_name} not available")
