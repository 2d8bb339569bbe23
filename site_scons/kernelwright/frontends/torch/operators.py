"""Operators: what a definition returns if its sources register operators with PyTorch."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping

from ...core.errors import DefinitionError, Where, shown

NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", re.ASCII)
"""The name of an operator: its namespace, its own name, and that of an overload, if it has one."""

TAKEN = re.compile(r"devices|operators|preload|schemas|_by_name|__\w*")
"""Other attributes of what callers get, and names that Python gives a meaning."""

EXAMPLE = 'write, for example, Operators("acme::rms_norm", "acme::silu")'


class Operators:
    """Operators that the sources of a kernel register with PyTorch, with ``TORCH_LIBRARY`` or ``STABLE_TORCH_LIBRARY``.

    Arguments:
        names: the operators that callers use, such as ``acme::rms_norm``. The sources may register others.
        schemas: the name of an operator -> what its schema has to be, such as ``"(Tensor x) -> Tensor"``. The schema
            that the sources register is compared with it, and differs in nothing but blanks.
    """

    def __init__(self, *names: str, schemas: Mapping[str, str] | None = None) -> None:
        self.names = names
        self.schemas = {} if schemas is None else schemas

    def check(self, where: Where) -> None:
        """Raise a DefinitionError if the names are none of operators, or a schema is of another operator."""
        wrong = [name for name in self.names if not isinstance(name, str) or not NAME.fullmatch(name)]
        if not self.names or wrong:
            message = f"Operators has {shown(wrong[0])}, which is no name of one" if wrong else "Operators names none"
            raise DefinitionError(message, where, EXAMPLE)
        own = [str(name).rpartition("::")[2].replace(".", "_") for name in self.names]
        if twice := [name for number, name in enumerate(own) if name in own[:number]]:
            message = f"Operators has two that are called {twice[0]!r}, and callers could reach one of them"
            raise DefinitionError(message, where, "put one of them into another kernel, with other sources")
        if taken := [name for name in own if TAKEN.fullmatch(name) or keyword.iskeyword(name)]:
            full = self.names[own.index(taken[0])]
            message = f"Operators has {full!r}, and what loads them has that name for something else"
            raise DefinitionError(message, where, "give the operator another name, or leave it to torch.ops")
        if not isinstance(self.schemas, Mapping) or not all(
            name in self.names and isinstance(text, str) for name, text in self.schemas.items()
        ):
            message = (
                f"schemas is {shown(self.schemas)}, expected the schemas of some of these operators by their names"
            )
            raise DefinitionError(message, where, 'write schemas={"acme::silu": "(Tensor x) -> Tensor"}')
