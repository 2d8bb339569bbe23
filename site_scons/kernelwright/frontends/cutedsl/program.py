"""What a definition in NVIDIA's CuTe DSL returns: its host function, and the arguments of the kernel that it becomes.

Nothing here imports CuTe DSL, so that its absence can be explained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.errors import DefinitionError, Where
from ...core.need import Need
from ...define import arguments
from ...define.arguments import Scalar, Tensor
from ...define.declared import Declared, refuse_optional

VERSION = "4.8.1"
"""The release of nvidia-cutlass-dsl whose exported code the launcher knows (``launcher/cutedsl.h``)."""

NEED = Need("cutlass", f"nvidia-cutlass-dsl=={VERSION}")
"""The package that definitions in CuTe DSL import."""

_CLASSES = {"bfloat16": "BFloat16", "float8_e4m3fn": "Float8E4M3FN", "float8_e5m2": "Float8E5M2", "bool": "Boolean"}

DTYPES = {dtype: _CLASSES.get(dtype, dtype.capitalize()) for dtype in arguments.DTYPES}
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

    def check(self, outputs: Sequence[str], where: Where) -> None:
        """See :meth:`Declared.check`; CuTe DSL compares no sizes that are computed of others."""
        super().check(outputs, where)
        refuse_optional(self.declared, "CuTe DSL", where)
        for name, value in self.declared.items():
            computed = [size for size in getattr(value, "shape", ()) if not str(size).isidentifier()]
            if text := next((size for size in computed if isinstance(size, str)), None):
                message = f"a size of argument {name!r} is {text!r}, and CuTe DSL knows numbers and names only"
                remedy = (
                    f'give it a name, and declare requires=["name == {text}"]; it cannot be left out of a call then'
                )
                raise DefinitionError(message, where, remedy)
