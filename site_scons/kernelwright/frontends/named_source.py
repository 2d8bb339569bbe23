"""What definitions name in place of a function: a source, which another process imports, and a function in it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ..core.errors import DefinitionError, Where, shown

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


def is_plain(value: Any) -> bool:
    """Whether JSON gives a value back as it is; tuples become lists, which is the same to a shape."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
