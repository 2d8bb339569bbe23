"""What a definition in TileLang returns: a source, a function in it, and the values that the function is compiled for.

TileLang is installed in another environment than Kernelwright, because the two need different releases of tvm-ffi. So
the definition only names the source, and a process of that environment imports it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from os import PathLike
from typing import Any

from ..core.errors import DefinitionError, Where, shown

VERSION = "0.1.15"
"""The release of TileLang that the front end is written for: what its lowering returns is not documented."""

REQUIREMENT = f"tilelang=={VERSION}"
"""What pip installs into an environment of its own."""

SETTING = "tilelang_python"
"""The setting that names the Python interpreter of that environment."""

REMEDY = (
    f"make an environment for it, python3 -m venv tilelang && tilelang/bin/pip install {REQUIREMENT}, "
    f'and write {SETTING} = "tilelang/bin/python" in pyproject.toml'
)
"""How to install TileLang."""

DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
)
"""The dtypes of tensors."""

FUNCTION = re.compile(r"[A-Za-z_]\w*", re.ASCII)

Value = bool | int | float | str | None
"""What a function can be compiled for; lists and dictionaries of these, too."""


class Program:
    """A function of TileLang, and the values that it is called with to make a kernel.

    Its tensors and its launch are those of the source. The outputs are those of ``outputs=`` of ``@kernel``, which have
    to be the function's own: ``out_idx``, or the tensors that it returns.

    Arguments:
        source: the path of a Python file, relative to that of the definition.
        function: the name of a function in it that is decorated with ``@tilelang.jit``.
        arguments: the values, by the names of the function's parameters, and of its ``T.const`` sizes.
    """

    def __init__(self, source: str | PathLike[str], function: str, /, **arguments: Any) -> None:
        self.source = source
        self.function = function
        self.arguments = arguments

    def check(self, where: Where) -> None:
        """Raise a DefinitionError for what cannot be."""
        if not isinstance(self.source, (str, os.PathLike)):
            message = f"the Program's source is {shown(self.source)}, expected the path of a Python file"
            remedy = (
                'write the path and the name, as in Program("matmul.py", "matmul", M=1024): TileLang is imported '
                "in another environment"
            )
            raise DefinitionError(message, where, remedy)
        if not isinstance(self.function, str) or not FUNCTION.fullmatch(self.function):
            message = f"the Program's function is {shown(self.function)}, expected the name of a function"
            raise DefinitionError(message, where, 'write, for example, Program("matmul.py", "matmul", M=1024)')
        for name, value in self.arguments.items():
            if not _is_plain(value):
                message = f"argument {name!r} of the Program is {shown(value)}, which cannot be passed to a process"
                remedy = "use numbers, texts, None, and lists and dictionaries of these; a dtype is a text: 'float16'"
                raise DefinitionError(message, where, remedy)


def _is_plain(value: Any) -> bool:
    """Whether JSON gives a value back as it is; tuples become lists, which is the same to a shape."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
