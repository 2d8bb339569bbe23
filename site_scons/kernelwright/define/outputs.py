"""Outputs of kernels: their names, and which names the outputs and arguments of a backward kernel can have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core.errors import DefinitionError, Where, shown

Outputs = Sequence[str | int]
"""Outputs as a definition lists them: names of arguments, or positions, from the end where they are negative."""


class Arguments(NamedTuple):
    """The arguments of a kernel: its outputs as the definition lists them, and the names of all in order."""

    outputs: Outputs
    names: Sequence[str]


def named_outputs(outputs: Outputs, arguments: Sequence[str], where: Where) -> tuple[str, ...]:
    """The names of outputs, some of which may be given by their positions.

    Arguments:
        outputs: as the definition lists them.
        arguments: the names of all arguments, in the order of a call.
        where: the definition.

    Raises:
        DefinitionError: there is no argument at a position, or two entries are one argument.
    """
    named: dict[str, str | int] = {}
    names = ", ".join(arguments) or "none"
    for entry in outputs:
        if isinstance(entry, int) and not -len(arguments) <= entry < len(arguments):
            message = f"outputs lists position {entry}, but there are {len(arguments)} arguments ({names})"
            remedy = f"use 0 to {len(arguments) - 1}, or -1 to -{len(arguments)} from the end" if arguments else None
            raise DefinitionError(message, where, remedy)
        name = arguments[entry] if isinstance(entry, int) else entry
        if name in named:
            message = f"outputs lists one argument twice: {named[name]!r} and {entry!r} are both {name!r}"
            raise DefinitionError(message, where, f"remove one of them (the arguments are {names})")
        named[name] = entry
    return tuple(named)


def require_gradient_names(forward: str, of_forward: Arguments, of_backward: Arguments, where: Where) -> None:
    """Check that autograd can pass each argument of a backward kernel.

    Arguments:
        forward: the name of the kernel whose gradients it computes.
        of_forward: the arguments of that.
        of_backward: those of the backward kernel.
        where: the definition of the backward kernel.

    Raises:
        DefinitionError: an argument has another name.
    """
    outputs = named_outputs(*of_backward, where)
    forward_outputs, forward_arguments = named_outputs(*of_forward, where), of_forward.names
    inputs = [name for name in forward_arguments if name not in forward_outputs]
    gradients = [f"grad_{name}" for name in forward_outputs]
    for name in of_backward.names:
        if name in outputs and name not in [f"grad_{given}" for given in inputs]:
            raise DefinitionError(
                f"output {name!r} is the gradient of no input of {forward}",
                where,
                f"its inputs are {', '.join(inputs)}: call the output grad_{inputs[0] if inputs else '...'}",
            )
        if name not in outputs and name not in (*forward_arguments, *gradients):
            raise DefinitionError(
                f"argument {name!r} is no argument of {forward}, and not the gradient of one of its outputs",
                where,
                f"call it like one of {', '.join([*forward_arguments, *gradients])}",
            )


def check_gradients(outputs: Outputs, where: Where) -> None:
    """Raise a DefinitionError if an output of a backward kernel has a name that is not that of a gradient."""
    for name in outputs or ("",):
        # What stands at a position is known when the definition is called; see require_gradient_names.
        if isinstance(name, str) and not (name.startswith("grad_") and name.removeprefix("grad_")):
            raise DefinitionError(
                f"outputs of a backward kernel is {shown(list(outputs))}, expected names of gradients",
                where,
                'write for example outputs=["grad_x"], for the gradient of input x',
            )
