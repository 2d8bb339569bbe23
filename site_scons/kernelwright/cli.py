"""The command ``kernelwright``: reads its words, runs one of the commands, and prints the error that it ends with."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from .commands import COMMANDS
from .commands.command import Command
from .core.errors import KernelwrightError
from .core.version import VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status (0 well, 1 a problem was found, 2 wrong usage)."""
    try:
        status = run(list(sys.argv[1:] if arguments is None else arguments))
        print(end="", flush=True)  # what is in the buffer, where there is any stdout
    except BrokenPipeError:
        # Whoever reads has seen enough, as `head` has. What is left at the end of Python goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def run(words: Sequence[str]) -> int:
    """Run the command with its arguments; returns the exit status of :func:`main`."""
    parser = argparse.ArgumentParser(prog="kernelwright", description="Helpers around a Kernelwright build.")
    parser.add_argument("--version", action="version", version=f"kernelwright {VERSION}")
    subparsers = parser.add_subparsers(dest="command", required=True)
    # One that is named is imported alone: what the others need takes time.
    named = [word for word in words[:1] if word in COMMANDS]
    commands = [command_of(name) for name in ([] if words[:1] == ["--version"] else named or COMMANDS)]
    for command in commands:
        command.add_to(subparsers)
    has_rest = len(commands) == 1 and commands[0].rest and "--" in words
    cut = words.index("--") if has_rest else len(words)
    options = parser.parse_args(words[:cut], argparse.Namespace(rest=words[cut + 1 :]))
    try:
        return int(options.run(options))
    except KernelwrightError as error:
        print(f"kernelwright: {error}", file=sys.stderr)
        return 1


def command_of(name: str) -> Command:
    """What the module of a command declares."""
    command: Command = importlib.import_module(f".commands.{COMMANDS[name]}", __package__).COMMAND
    return command
