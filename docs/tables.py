"""Writes the tables that follow from the code, of settings, options and stages: ``python docs/tables.py``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from kernelwright.cli import command_of
from kernelwright.commands import COMMANDS
from kernelwright.commands.command import Command
from kernelwright.core.arch import FAMILIES
from kernelwright.core.pipeline import STAGES, StageKind
from kernelwright.core.request import deciding
from kernelwright.define.kernel_options import Declaration, OwnOptions, declared_options
from kernelwright.define.setting_kinds import Setting
from kernelwright.define.settings import CUDA_ARCHS, SETTINGS, Settings
from kernelwright.ondemand.options import OPTIONS, Option
from kernelwright.toolchain.miscompiles import ALL, MISCOMPILES, Miscompile

DOCS = Path(__file__).parent
BEGIN = "<!-- {}: written by docs/tables.py -->\n"
END = "<!-- end of what is written -->\n"


def written_part(settings: Mapping[str, Setting], defaults: object) -> str:
    """The table of some settings, and what it does not tell of them."""
    rows = [
        f"| `{name}` | {declared.kind.word} | {default_of(declared, getattr(defaults, name))} | {declared.help} |\n"
        for name, declared in settings.items()
    ]
    without = names(name for name, declared in settings.items() if not declared.affects_output)
    file_only = names(name for name, declared in settings.items() if not declared.on_command_line)
    of_run = names(name for name, declared in settings.items() if declared.of_run)
    return (
        "| setting | type | default | meaning |\n|---|---|---|---|\n"
        f"{''.join(rows)}\n"
        f"These do not change what is built: {without}. Not on the command line: {file_only}.\n"
        f"For all packages of a build: {of_run}.\n"
    )


def default_of(declared: Setting, value: object) -> str:
    """The default as the table shows it, for x86-64; that of the archs depends on the machine."""
    words = value if isinstance(value, tuple) else (declared.kind.text(value),)
    return ", ".join(f"`{word}`" for word in words if word) or "empty"


def names(found: Iterable[str]) -> str:
    """Names as the page shows them."""
    return ", ".join(f"`{name}`" for name in found)


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """A page with the tables of today, by what they are of."""
    for name, table in tables.items():
        before, rest = page.split(BEGIN.format(name))
        page = before + BEGIN.format(name) + table + END + rest.split(END, 1)[1]
    return page


def variables_part(options: Mapping[str, Option]) -> str:
    """The table of the environment variables of compile on demand, and what wins over what."""
    rows = [
        f"| `{option.variable}` | {option.setting.kind.word} | {option.default} | {option.setting.help} |\n"
        for option in options.values()
        if option.variable
    ]
    return f"| variable | type | default | meaning |\n|---|---|---|---|\n{''.join(rows)}"


def stages_part(stages: Iterable[StageKind]) -> str:
    """The table of the stages."""
    rows = [
        f"| `{k.label}` | {k.sources} | {names(what_decides(k)) or 'nothing'} | {k.outputs} |\n"
        for k in stages
        if k.module
    ]
    return f"| stage | sources | request | outputs |\n|---|---|---|---|\n{''.join(rows)}"


def what_decides(kind: StageKind) -> list[str]:
    """The fields of a stage's requests that decide, with those of the requests and jobs in them, each once."""
    module = importlib.import_module(f"kernelwright.{kind.module}")
    return list(dict.fromkeys(deciding_in(getattr(module, kind.request))))


def deciding_in(request: type) -> Iterator[str]:
    """The fields of a class that decide. A tool is one of them as a whole, because its identity decides."""
    for name in deciding(request):
        inner = class_of(request, name)
        is_tool = isinstance(inner, type) and "identity" in getattr(inner, "__annotations__", {})
        if is_dataclass(inner) and isinstance(inner, type) and not is_tool:
            yield from deciding_in(inner)
        else:
            yield name


def class_of(request: type, name: str) -> Any:
    """The class of a field; None: its type is no class that its module knows at run time."""
    declaring = next(each for each in request.__mro__ if name in vars(each).get("__annotations__", {}))
    kind = str(declaring.__annotations__[name]).rpartition(".")[2]
    known = getattr(sys.modules[declaring.__module__], kind, None)
    # A request that builds on a generic one says what stands for the type variable.
    return get_args(vars(request)["__orig_bases__"][0])[0] if isinstance(known, TypeVar) else known


def options_part(kind: type[OwnOptions]) -> str:
    """The table of the arguments of a decorator; those of the classes that it builds on come last."""
    of_class = {found.name: each for each in kind.__mro__ if is_dataclass(each) for found in fields(each)}
    declared = declared_options(kind)
    ordered = sorted(declared, key=lambda name: kind.__mro__.index(of_class[name]))
    rows = [f"| `{n}` | {declared[n].word} | {declared[n].default} | {declared[n].help} |\n" for n in ordered]
    return f"| argument | type | default | meaning |\n|---|---|---|---|\n{''.join(rows)}"


def with_actions(commands: Iterable[Command]) -> list[tuple[str, Command]]:
    """Commands and their actions, with the words that users write."""
    named = [(command.name, command) for command in commands]
    return [each for name, one in named for each in ((name, one), *((f"{name} {a.name}", a) for a in one.actions))]


def commands_part(commands: Iterable[Command]) -> str:
    """The table of the commands: how each is written, and what it and its arguments are."""
    rows = []
    for name, command in with_actions(commands):
        if command.run:
            parser = argparse.ArgumentParser(prog=f"kernelwright {name}", add_help=False)
            command.add_arguments(parser)
            usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
            told = "".join(f"<br>`{one.shown}`: {one.help.replace('%%', '%')}" for one in command.arguments)
            usage += " [-- ARGUMENT ...]" if command.rest else ""
            rows.append(f"| `{usage}` | {command.help}{told} |\n")
    return f"| command | does |\n|---|---|\n{''.join(rows)}"


def exits_part(commands: Iterable[Command]) -> str:
    """The table of the exit statuses of commands, and of their actions."""
    ends = with_actions(commands)
    rows = [f"| `{name}` | {status} | {when} |\n" for name, c in ends for status, when in c.exits.items()]
    return f"| command | exit status | when |\n|---|---|---|\n{''.join(rows)}"


def miscompiles_part(rows: Iterable[Miscompile]) -> str:
    """The table of releases that are known to compile wrong code."""
    told = [
        f"| {row.first} | {row.fixed or 'not known'} | {archs_of(*row.archs)} | {row.what} "
        f"| {row.seen} | <{row.source}> |\n"
        for row in rows
    ]
    head = "| from | fixed in | archs | code that goes wrong | reported | source |\n|---|---|---|---|---|---|\n"
    return head + "".join(told)


def archs_of(first: int, last: int) -> str:
    """A span of compute capabilities in words."""
    if (first, last) == ALL:
        return "all"
    return f"`sm_{first}`" + (" and newer" if last == ALL[1] else f" to `sm_{last}`" if last > first else "")


def tables() -> dict[str, dict[str, str]]:
    """Name of a page -> what a table is of -> that table."""
    return {
        "reference-settings.md": {
            "settings": written_part(SETTINGS, Settings(archs=(FAMILIES["x86_64"].usual, *CUDA_ARCHS))),
        },
        "reference-definitions.md": {"arguments": options_part(Declaration)},
        "reference-commands.md": {
            "commands": commands_part(map(command_of, COMMANDS)),
            "exits": exits_part(map(command_of, COMMANDS)),
        },
        "known-miscompiles.md": {"miscompiles": miscompiles_part(MISCOMPILES)},
        "architecture.md": {"stages": stages_part(STAGES)},
        "on-demand.md": {"variables": variables_part(OPTIONS)},
    }


if __name__ == "__main__":
    for name, of_page in tables().items():
        page = DOCS / name
        page.write_text(with_tables(page.read_text(encoding="utf-8"), of_page), encoding="utf-8")
