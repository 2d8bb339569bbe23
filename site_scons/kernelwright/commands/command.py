"""What a command of ``kernelwright`` declares: parser, dispatch and help follow from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Argument:
    """An argument of a command.

    Arguments:
        name: ``folder``, or ``--output``.
        help: its help.
        options: further arguments of :meth:`argparse.ArgumentParser.add_argument`.
    """

    name: str
    help: str
    options: Mapping[str, Any]

    @property
    def shown(self) -> str:
        """What help calls it: the name of an option, or else a word in place of the value."""
        return self.name if self.name.startswith("-") else str(self.options.get("metavar", self.name))


def argument(name: str, help: str, **options: Any) -> Argument:
    """An argument, with what argparse has to know of it."""
    return Argument(name, help, options)


@dataclass(frozen=True)
class Command:
    """A command, or an action of one.

    Arguments:
        name, help: as users write it, and what it does.
        run: does it; returns the exit status. A KernelwrightError that it raises is printed, and the status is 1.
        arguments: what it takes.
        exits: exit status -> when it ends with that, besides 1 for an error and 2 for wrong usage.
        actions: in place of ``run`` and ``arguments``, the further words that a user chooses from.
        rest: what the words after ``--`` are; they get to ``run`` as ``rest``. Empty: there are none.
    """

    name: str
    help: str
    run: Callable[[argparse.Namespace], int] | None = None
    arguments: tuple[Argument, ...] = ()
    exits: Mapping[int, str] = field(default_factory=dict)
    actions: tuple[Command, ...] = ()
    rest: str = ""

    def add_to(self, commands: Any) -> None:
        """Add its parser to those of argparse, which has no public name for their type."""
        ends = [f"Exit status {status}: {when}." for status, when in self.exits.items()]
        about = {"help": self.help, "description": f"{self.help[0].upper()}{self.help[1:]}."}
        parser = commands.add_parser(self.name, **about, epilog=" ".join([*ends, self.rest]).strip())
        self.add_arguments(parser)
        if self.actions:
            actions = parser.add_subparsers(dest="action", required=True)
            for action in self.actions:
                action.add_to(actions)
        else:
            parser.set_defaults(run=self.run)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its arguments to a parser."""
        for one in self.arguments:
            parser.add_argument(one.name, help=one.help, **one.options)


def count(text: str) -> int:
    """A number from 0 up, for argparse."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 up")
    return int(text)
