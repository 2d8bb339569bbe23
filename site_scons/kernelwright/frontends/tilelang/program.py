"""What a definition in TileLang returns: a source, a function in it, and the values that the function is compiled for.

TileLang is installed in another environment than Kernelwright, because the two need different releases of tvm-ffi. So
the definition only names the source, and a process of that environment imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from ...core.errors import DefinitionError, Where, shown
from ...core.need import Need, OwnEnvironment, Parts
from ...define.sizes import Size, text_of
from ..named_source import check_source

VERSION = "0.1.15"
"""The release of TileLang that the front end is written for: what its lowering returns is not documented."""

NEED = Need("tilelang", f"tilelang=={VERSION}")

PARTS = Parts(("tilelang", "apache_tvm_ffi", "z3_solver"), "src/tl_templates/cuda")
"""What decides what it makes."""

ENVIRONMENT = OwnEnvironment("TileLang", NEED, VERSION, "tilelang_python", PARTS)
"""Where it is installed."""

REMEDY = (
    "use numbers, texts, None, sizes that have names, and lists, tuples and dictionaries of these; a dtype is a text: "
    "'float16'"
)


class Program:
    """A function of TileLang, and the values that it is called with to make a kernel.

    Its tensors and its launch are those of the source. The outputs are those of ``outputs=`` of ``@kernel``, which have
    to be the function's own: ``out_idx``, or the tensors that it returns.

    Arguments:
        source: the path of a Python file, relative to that of the definition.
        function: the name of a function in it that is decorated with ``@tilelang.jit``.
        arguments: the values, by the names of the function's parameters, and of its ``T.const`` sizes. For a
            :class:`Size`, the function gets what ``T.dynamic`` makes of its name.
    """

    def __init__(self, source: str | PathLike[str], function: str, /, **arguments: Any) -> None:
        self.source = source
        self.function = function
        self.arguments = arguments

    def checked(self, where: Where) -> dict[str, Any]:
        """The values as :func:`sent` has them.

        Raises:
            DefinitionError: something cannot be.
        """
        check_source(self.source, self.function, 'Program("matmul.py", "matmul", M=1024)', where)
        values: dict[str, Any] = {}
        for name, value in self.arguments.items():
            try:
                values[name] = sent(value)
            except TypeError as error:
                message = f"argument {name!r} of the Program is {shown(value)}, and {error}"
                raise DefinitionError(message, where, REMEDY) from error
        return values


def sent(value: Any) -> Any:
    """A value as JSON data that tells tuples, lists and sizes apart: ``["tuple", 64, ["size", "m"]]``.

    Raises:
        TypeError: it cannot be passed to the function.
    """
    if isinstance(value, Size):
        if not text_of(value).isidentifier() or value.dtype != "int32":
            raise TypeError("a size of the call is a name, which is int32")
        return ["size", value.text]
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: sent(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return ["tuple" if isinstance(value, tuple) else "list", *map(sent, value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError("it cannot be passed to a process")
