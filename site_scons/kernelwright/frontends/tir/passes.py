"""Which configs TVM's passes have, and the context in which a function is lowered with some of them.

The IR after each pass can be written into a folder, so that people see what a pass changes.

Written for TVM 0.27. It takes any integer for a bool, and for a field of an object also text, which becomes 0. Its own
``DumpIR`` does not tell which schedule a pass belongs to, nor which passes do nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassContext

from ...core.errors import DefinitionError, Where, shown
from ..unit import IR_INDEX, Unit

PLAIN = {"bool": bool, "int": int, "ir.IntImm": int, "float": float, "str": str, "ffi.String": str}
"""TVM's names of plain types -> what is given for them."""

REMEDIES = {bool: "write True or False", int: "write a whole number", float: "write a number", str: "write a string"}


MAX_NAME = 80
"""Longest name of a pass in characters, as a part of the name of a file."""


class IrDump:
    """The IR after each pass of one lowering: a file for each, in order, and at the end a list of them.

    The files are written at once, so that they are there if TVM ends the process.

    Arguments:
        folder: an existing, empty folder that receives the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: list[str] = []
        self._count = 0
        self._last = ""

    def write(self, name: str, module: Any) -> None:
        """Write a module, or a function.

        Arguments:
            name: what it is, or the pass that made it.
        """
        text = _text(module)
        file = f"{self._count:03d}-{re.sub(r'[^A-Za-z0-9_.+-]', '_', name)[:MAX_NAME]}.tir"
        (self._folder / file).write_text(text, encoding="utf-8")
        self._lines.append(file + (" unchanged" if text == self._last else ""))
        self._count, self._last = self._count + 1, text

    def instrument(self) -> Any:
        """What tells TVM to write the IR here, for a ``PassContext``."""
        write = self.write

        class Printing:
            def run_after_pass(self, module: Any, info: Any) -> None:
                write(str(info.name), module)

        return pass_instrument(Printing)()

    def noting(self, progress: Callable[[str], None]) -> Callable[[str], None]:
        """The function ``progress``, which now also adds a line to the list for each schedule that it is told."""

        def noted(doing: str) -> None:
            self._lines.append(f"# {doing}")
            progress(doing)

        return noted

    def finish(self, unit: Unit) -> None:
        """Write the list."""
        head = f"# the IR of {unit.kernel}/{unit.slug} for {unit.target} ({unit.arch}) after each pass, in order"
        (self._folder / IR_INDEX).write_text("\n".join([head, *self._lines]) + "\n", encoding="utf-8")


def _text(module: Any) -> str:
    try:
        text: str = module.script()
    except Exception as error:  # TVM raises errors of any type; to show something must not change what is made
        return f"# TVM cannot print this module: {type(error).__name__}: {error}\n"
    return text.rstrip() + "\n"


def require_pass_configs(pass_configs: Mapping[str, Any], where: Where) -> None:
    """Check that TVM's passes have these configs, and take values of these types.

    Arguments:
        pass_configs: the result of ``define.pass_configs.checked_pass_configs``.
        where: the place for errors.

    Raises:
        DefinitionError: TVM has no such config, or expects another type.
    """
    known = {str(name): str(about["type"]) for name, about in PassContext.list_configs().items()}
    for name, value in pass_configs.items():
        if name not in known:
            near = get_close_matches(name, sorted(known), 3)
            remedy = f"did you mean {' or '.join(near)}?" if near else f"they are {', '.join(sorted(known))}"
            raise DefinitionError(
                f"TVM has {len(known)} pass configs, and {shown(name)} is none of them", where, remedy
            )
        _require_type(name, value, known[name], where)


def pass_context(pass_configs: Mapping[str, Any], instruments: Sequence[Any] = ()) -> PassContext:
    """A context with these configs and instruments, and with nothing of a context that may be around it."""
    return PassContext(config=dict(pass_configs), instruments=instruments)


def _require_type(name: str, value: Any, expected: str, where: Where) -> None:
    if expected in PLAIN:
        _require_plain(f"pass config {name!r}", value, PLAIN[expected], where)
        return
    fields = _fields_of(name)
    if not fields:
        message = f"pass config {name!r} cannot be given: TVM expects an object of type {expected}, which is no data"
        raise DefinitionError(message, where, "leave it out")
    names = ", ".join(f"{field} ({type(default).__name__})" for field, default in fields.items())
    remedy = f"its fields are {names}"
    if not isinstance(value, Mapping):
        message = f"pass config {name!r} is {shown(value)}, TVM expects a {expected}: write a dict of its fields"
        raise DefinitionError(message, where, remedy)
    for field, item in value.items():
        if field not in fields:
            raise DefinitionError(f"pass config {name!r} has no field {shown(field)}", where, remedy)
        _require_plain(f"pass config {name!r}, field {field!r},", item, type(fields[field]), where)
    config = PassContext(config={name: dict(value)}).config[name]
    for field, item in value.items():
        if getattr(config, field) != item:  # an int of 32 bits has another value
            message = f"pass config {name!r}, field {field!r}, is {shown(item)}, which TVM takes for something else"
            raise DefinitionError(message, where, "give a smaller number")


def _require_plain(place: str, value: Any, expected: type, where: Where) -> None:
    if type(value) is not expected and not (expected is float and type(value) is int):
        message = f"{place} is {shown(value)}, TVM expects a value of type {expected.__name__}"
        raise DefinitionError(message, where, REMEDIES[expected])


def _fields_of(name: str) -> dict[str, Any]:
    """The fields of the object that a config is, with their defaults; none, if it is something else."""
    try:
        config = PassContext(config={name: {}}).config[name]
    except (AttributeError, RuntimeError, TypeError, ValueError):  # it cannot be made of fields
        return {}
    return {field.name: getattr(config, field.name) for field in type(config).__tvm_ffi_type_info__.fields}
