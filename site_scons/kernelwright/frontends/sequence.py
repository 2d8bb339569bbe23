"""Several launches that a definition returns: one kernel to callers, whose functions run one after the other.

The launches see the same arguments by the same names, and workspaces of one name are the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ..core.errors import DefinitionError, Where
from ..define.arguments import Scalar, Tensor, Workspace
from ..define.declared import Declared
from ..define.unit import Unit

Item = TypeVar("Item", bound=Declared)


class Launches(Declared, Generic[Item]):
    """Several launches, in order.

    Arguments:
        items: what a definition with one launch returns, for each of them.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = tuple(items)

    def constants_by(self, constants: Callable[[Item], Mapping[str, Any]]) -> dict[str, Any]:
        """The constants of all launches, without names that two of them give different values.

        Arguments:
            constants: tells those of one.
        """
        every = [pair for item in self.items for pair in constants(item).items()]
        return {name: value for name, value in every if all(other == value for same, other in every if same == name)}

    @property
    def declared(self) -> dict[str, Tensor | Scalar]:
        """The arguments of the kernel: those of all launches, in the order in which they are first named."""
        named: dict[str, Tensor | Scalar] = {}
        for name, value in (pair for item in self.items for pair in item.declared.items()):
            first = named.setdefault(name, value)
            if isinstance(first, Tensor) and isinstance(value, Tensor):
                named[name] = first.with_demands_of(value)
        return named

    def check_launch(self, names: frozenset[str], sure: frozenset[str], where: Where) -> None:
        """See :meth:`Declared.check_launch`."""
        for name, first, other in self._repeated():
            both = [value.without_demands(name) if isinstance(value, Tensor) else value for value in (first, other)]
            if both[0] != both[1]:
                message = f"two launches name {name!r}: to one it is {first}, to the other {other}"
                raise DefinitionError(message, where, "declare it alike in both, or give one of them another name")
        for item in self.items:
            item.check_launch(names, sure, where)

    def _repeated(self) -> Iterator[tuple[str, Any, Any]]:
        """The arguments and workspaces that two launches name: the name, and what it is for each of them."""
        seen: dict[str, Any] = {}
        for item in self.items:
            shared = {n: v for n, v in item.arguments.items() if isinstance(v, Workspace)} | item.declared
            yield from ((name, seen[name], value) for name, value in shared.items() if name in seen)
            seen |= shared


def each_of(returned: Item | Launches[Item], unit: Unit) -> list[tuple[Item, Unit]]:
    """The launches of what a definition returned; each with its unit, which names only outputs that it has itself."""
    items = returned.items if isinstance(returned, Launches) else (returned,)
    return [(i, replace(unit, outputs=tuple(o for o in unit.outputs if o in i.declared))) for i in items]
