"""What a definition in NVIDIA's CuTe DSL returns: its host function, and the arguments of the kernel that it becomes.

Nothing here imports CuTe DSL, so that its absence can be explained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.errors import Where
from ...core.need import Need
from ...define.arguments import Declared, Scalar, Tensor, check_arguments

VERSION = "4.8.1"
"""The release of nvidia-cutlass-dsl whose exported code the launcher knows (``launcher/cutedsl.h``)."""

NEED = Need("cutlass", f"nvidia-cutlass-dsl=={VERSION}")
"""What definitions in CuTe DSL import."""

DTYPES = {
    "float64": "Float64",
    "float32": "Float32",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8E4M3FN",
    "float8_e5m2": "Float8E5M2",
    "int64": "Int64",
    "int32": "Int32",
    "int16": "Int16",
    "int8": "Int8",
    "uint64": "Uint64",
    "uint32": "Uint32",
    "uint16": "Uint16",
    "uint8": "Uint8",
    "bool": "Boolean",
}
"""A dtype -> its class in the module ``cutlass``."""


class Program(Declared):
    """A host function of CuTe DSL with the arguments that it is compiled for.

    Arguments:
        function: a function decorated with ``@cute.jit``, which launches device functions.
        arguments: for each of its parameters, in order and by name: a :class:`Tensor` or a :class:`Scalar`, which
            becomes an argument of the kernel, or a plain value for a parameter of type ``cutlass.Constexpr``.
    """

    def __init__(self, function: Callable[..., Any], /, **arguments: Tensor | Scalar | Any) -> None:
        self.function = function
        self.arguments = arguments

    def check(self, outputs: tuple[str, ...], where: Where) -> None:
        """Raise a DefinitionError for arguments that cannot be."""
        check_arguments(self.declared, outputs, tuple(DTYPES), where)
