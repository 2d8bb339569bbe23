"""Exported: what a definition returns if its sources have host code. It names a function that they export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.errors import DefinitionError, Where, shown
from ...define.arguments import Scalar, Tensor
from ...define.declared import Declared, check_arguments
from .source import MACRO


class Exported(Declared):
    """A function that the sources of a kernel export for TVM-FFI, with ``TVM_FFI_DLL_EXPORT_TYPED_FUNC``.

    Arguments:
        function: the name that it is exported by.
        arguments: what the function takes, in order: a :class:`Tensor` or a :class:`Scalar`, which calls are compared
            with before the function is called. Without any, the function gets whatever a call has, and what it returns
            is what the call returns.
    """

    def __init__(self, function: str, **arguments: Tensor | Scalar) -> None:
        self.function = function
        self.arguments: Mapping[str, Tensor | Scalar] = arguments

    @property
    def is_opaque(self) -> bool:
        """Whether the arguments are not declared."""
        return not self.arguments

    def check(self, outputs: Sequence[str], where: Where) -> None:
        """See :meth:`Declared.check`."""
        if not isinstance(self.function, str) or not MACRO.fullmatch(self.function):
            message = f"function is {shown(self.function)}, expected the name of an exported function"
            raise DefinitionError(message, where, 'write, for example, Exported("rms_norm", x=Tensor("float32", "n"))')
        for name, value in self.arguments.items():
            if not isinstance(value, (Tensor, Scalar)):
                message = f"argument {name!r} is {shown(value)}, and an exported function takes tensors and numbers"
                raise DefinitionError(message, where, "give it a Tensor or a Scalar; sizes are in the tensors")
        if not self.is_opaque:
            check_arguments(self.declared, outputs, where)
        elif outputs:
            message = f"outputs are {shown(list(outputs))}, and no arguments are declared"
            raise DefinitionError(message, where, "declare the arguments, or leave outputs out")
