"""Finds what a definition has to say about the body of a device function, and of the functions that it calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

GRID = "grid_group"
"""The class of all blocks of a launch in ``cooperative_groups.h``."""

WAITING = ("sync", "barrier_arrive", "barrier_wait")
"""Functions and methods in which the blocks of a grid wait for each other."""

REFERENCES = ("DECL_REF_EXPR", "MEMBER_REF_EXPR", "OVERLOADED_DECL_REF")
FUNCTIONS = ("FUNCTION_DECL", "FUNCTION_TEMPLATE", "CXX_METHOD")


def body_of(cindex: Any, function: Any) -> list[Any]:
    """All cursors in a function, and in the functions of the author's that it calls."""
    lib, known, waiting, body = cindex.conf.lib, {function.get_usr()}, [function], []
    while waiting:
        inner = list(waiting.pop().walk_preorder())
        body += inner
        for called in (called for cursor in inner for called in _called(lib, cursor)):
            if called.get_usr() not in known and not lib.clang_Location_isInSystemHeader(called.location):
                known.add(called.get_usr())
                waiting.append(called)
    return body


def _called(lib: Any, cursor: Any) -> Iterator[Any]:
    """The definitions of the functions that a cursor may refer to: several, if types of a template decide."""
    if cursor.kind.name not in REFERENCES:
        return
    count = lib.clang_getNumOverloadedDecls(cursor)
    named = [lib.clang_getOverloadedDecl(cursor, number) for number in range(count)] or [cursor.referenced]
    for function in named:
        if function is not None and function.kind.name in FUNCTIONS:
            definition = function.get_definition()
            if definition is not None:
                yield definition


def waits_for_grid(body: list[Any]) -> bool:
    """Whether the blocks of a launch wait for each other by cooperative groups."""
    return any(_waits(cursor) for cursor in body if cursor.kind.name == "CALL_EXPR" and cursor.spelling in WAITING)


def _waits(call: Any) -> bool:
    method = call.referenced
    parent = method.semantic_parent if method is not None else None
    arguments = [argument.type.get_canonical().spelling for argument in call.get_arguments()]
    words = {word for spelling in arguments for word in spelling.replace("::", " ").split()}
    return GRID in words or (parent is not None and parent.spelling == GRID)


def unfilled_constants(cindex: Any, body: list[Any]) -> list[str]:
    """The variables in constant memory that a body reads, and that have no value in the source."""
    used = (cursor.referenced for cursor in body if cursor.kind.name == "DECL_REF_EXPR")
    variables = (variable for variable in used if variable is not None and variable.kind.name == "VAR_DECL")
    return sorted({variable.spelling for variable in variables if _is_unfilled(cindex, variable)})


def _is_unfilled(cindex: Any, variable: Any) -> bool:
    if not any(child.kind.name == "CUDACONSTANT_ATTR" for child in variable.get_children()):
        return False
    initializer = cindex.conf.lib.clang_Cursor_getVarDeclInitializer  # Python's module does not name it
    initializer.argtypes, initializer.restype = [cindex.Cursor], cindex.Cursor
    value = initializer(variable)
    # Clang gives a variable of a class an initializer if it has none, at the place of the variable's name.
    return value.kind.is_invalid() or bool(value.extent.start.offset <= variable.location.offset)


def has_dynamic_shared(body: list[Any]) -> bool:
    """Whether a body has an array in shared memory whose size the launch gives."""
    return any(cursor.kind.name == "VAR_DECL" and cursor.storage_class.name == "EXTERN" for cursor in body)
