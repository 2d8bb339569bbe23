"""What is known of a device function that was found in a source, before it is a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Parameter:
    """A parameter of a device function.

    Arguments:
        name: empty if it has none.
        type: as C++ writes it, without aliases.
        kind: a pointer to something whose size is known, a number, a structure of such parameters, or none of them.
        element: the type of the number, or what the pointer points to, without ``const``; ``type-parameter-0-1`` is the
            second parameter of the template.
        bytes, alignment: of a class that it points to; otherwise 0.
        is_constant: whether a pointer points to constants.
        inner: the sizes of the arrays that a pointer points to.
        members: those of a structure.
    """

    name: str
    type: str
    kind: Literal["pointer", "number", "structure", "other"]
    element: str
    bytes: int = 0
    alignment: int = 0
    is_constant: bool = False
    inner: tuple[int, ...] = ()
    members: tuple[Parameter, ...] = ()

    @property
    def parts(self) -> Iterator[Parameter]:
        """Itself, and all that is in a structure."""
        yield self
        for member in self.members:
            yield from member.parts


@dataclass(frozen=True)
class TemplateParameter:
    """A parameter of a template.

    Arguments:
        name: empty if it has none.
        kind: what it takes.
        default: what is written behind ``=``, in tokens; empty if it has none.
        type, first: the enumeration whose values it takes, and the first of them.
    """

    name: str
    kind: Literal["type", "integer", "bool", "enumeration", "other"]
    default: tuple[str, ...] = ()
    type: str = ""
    first: int = 0


@dataclass(frozen=True)
class Function:
    """A device function.

    Arguments:
        name: its name with the namespaces that it is in.
        line: where it is.
        parameters: those of the function.
        template: those of the template that it is.
        bounds: the arguments of ``__launch_bounds__``; empty if it has none.
        threads: the first of them, with numbers for what depends on no template.
        cluster: the arguments of ``__cluster_dims__``; empty if it has none.
        has_dynamic_shared: whether it has an array in shared memory whose size the launch gives.
        is_cooperative: whether its blocks wait for each other by cooperative groups.
        is_overloaded: whether there are others of its name.
        problem: why it cannot be a kernel, as far as its source tells; empty: it can.
    """

    name: str
    line: int
    parameters: tuple[Parameter, ...]
    template: tuple[TemplateParameter, ...] = ()
    bounds: str = ""
    threads: str = ""
    cluster: str = ""
    has_dynamic_shared: bool = False
    is_cooperative: bool = False
    is_overloaded: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Found:
    """What a source has.

    Arguments:
        functions: its device functions, in order.
        elsewhere: names of headers with device functions.
        missing: headers that were not found.
        errors: what the parser did not understand, as ``path:line: words``.
    """

    functions: tuple[Function, ...]
    elsewhere: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
