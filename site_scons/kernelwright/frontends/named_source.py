"""Sources that definitions name instead of passing a function: another process imports the source and finds it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from ..core.errors import DefinitionError, Where, shown
from .unit import Unit


@dataclass(frozen=True)
class SourceRequest:
    """A request about a function of a source.

    Arguments:
        unit: what is lowered, or interpreted.
        root: the project's folder.
        file: the path of the source.
        function: the name of the function.
    """

    definition: ClassVar[None] = None
    if_late: ClassVar[str] = ""
    remedy: ClassVar[str | None] = None
    otherwise: ClassVar[str] = ""
    unit: Unit
    root: str
    file: str
    function: str

    @property
    def where(self) -> Where:
        """The place that errors of the request name."""
        return self.unit.where

    @property
    def subject(self) -> str:
        """What messages name as the origin of errors in the author's code."""
        return self.function

    @property
    def cannot(self) -> str:
        """The beginning of a message for an error of the compiler: what it cannot do. ``remedy`` ends the message, and
        ``otherwise`` the remedy for an error in the author's code."""
        raise NotImplementedError


FUNCTION = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def check_source(source: Any, function: Any, example: str, where: Where) -> None:
    """Raise a DefinitionError unless these are the path of a file and the name of a function.

    Arguments:
        example: how a Program is written, for messages.
    """
    if not isinstance(source, (str, os.PathLike)):
        message = f"the Program's source is {shown(source)}, expected the path of a Python file"
        remedy = f"write the path and the name, as in {example}: a process of another environment imports the file"
        raise DefinitionError(message, where, remedy)
    if not isinstance(function, str) or not FUNCTION.fullmatch(function):
        message = f"the Program's function is {shown(function)}, expected the name of a function"
        raise DefinitionError(message, where, f"write, for example, {example}")


def require_function(
    request: SourceRequest, module: ModuleType, is_right: Callable[[Any], bool], decorator: str
) -> Any:
    """The function that a request names, in the module of its source.

    Arguments:
        is_right: whether an object is a function that the compiler takes.
        decorator: what makes it one.

    Raises:
        DefinitionError: there is none.
    """
    name = request.function
    function = getattr(module, name, None)
    if is_right(function):
        return function
    known = ", ".join(other for other, value in vars(module).items() if is_right(value))
    what = f"has no {name!r}" if function is None else f"has {name!r}, which is no function with {decorator}"
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
    message = f"{os.path.relpath(request.file, request.root)} {what}; such functions are {known or 'none'}"
    remedy = f"name a function of the file that is decorated with {decorator}"
    raise DefinitionError(message, Where(location=f"{request.file}:{line}"), remedy)
