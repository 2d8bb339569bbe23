"""Tuning tables: the files that say which candidates of a kernel run on a device, for which sizes, and why.

A table has rules for each config of a caller. They cover every size, so a table only changes the order of variants that
fit: it can name no variant that the definition does not declare. ``docs/reference-variants.md`` describes the form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from ..core.arch import CPU_LEVELS, TARGETS, CudaArch, target_of
from ..core.converter import LARGEST as EXACT
from ..core.converter import that
from ..core.errors import KernelwrightError, Where, is_text, shown
from ..core.files import read_record
from ..core.located import LocatedError, read_located
from ..core.signature import Text
from ..runtime.tables import Rules
from .recorded import Value, config_text, rank_of

SCHEMA = 1
"""Revision of the file's form."""

LARGEST = 16 << 20
"""Bytes that such a file may have."""

MOST_CORES = 2**31 - 1
"""Largest count of a device: it is an int in C."""

ENDING = ".json"

Digest = Annotated[str, that("8 to 64 hexadecimal digits", lambda text: bool(re.fullmatch("[0-9a-f]{8,64}", text)))]
"""The digest of the sources of a variant, or its beginning."""

Positive = Annotated[int, that(f"an integer from 1 to {EXACT}", lambda value: 1 <= value <= EXACT)]
Amount = Annotated[float, that("a number that is not negative", lambda value: 0 <= value <= EXACT)]


def _are_symbols(names: tuple[str, ...]) -> bool:
    return all(map(str.isidentifier, names)) and len({*names}) == len(names)


Target = Annotated[str, that(" or ".join(TARGETS), lambda text: text in TARGETS)]
Arch = Annotated[str, that("an arch, such as sm_90a", lambda text: text in CPU_LEVELS or bool(CudaArch.of(text)))]
DeviceName = Annotated[str, that("the name of a device", lambda text: bool(text) and text.isprintable())]
Cores = Annotated[int, that(f"an integer from 1 to {MOST_CORES}", lambda value: 1 <= value <= MOST_CORES)]
Symbols = Annotated[tuple[str, ...], that("different size symbols", _are_symbols)]
Schema = Annotated[int, that(str(SCHEMA), lambda schema: schema == SCHEMA)]

Values = Mapping[str, Annotated[Value, that("whole characters", lambda value: is_text(str(value)))]]
"""A config, or a point."""

MEND = "mend the line, or remove the file and measure again: kernelwright tune"


class TuningError(KernelwrightError):
    """A tuning table is damaged, or does not fit its kernel."""


@dataclass(frozen=True)
class TableDevice:
    """The device that a table is for.

    Arguments:
        target: ``cuda`` or ``llvm``.
        arch: the arch of the code that was measured, such as ``sm_90a`` or ``x86-64-v3``.
        name: the device as its driver or its kernel names it.
        count: its multiprocessors, or the cores of the machine.
    """

    target: Target
    arch: Arch
    name: DeviceName
    count: Cores


@dataclass(frozen=True)
class Rule:
    """A range of sizes, and the point that runs there.

    Arguments:
        tune: the point.
        upto: the largest product of sizes that is in the range; None: it has no end.
        line: where it is in the file; 0: it is in none.
    """

    tune: Values
    upto: Positive | None = None
    line: int = field(default=0, compare=False, init=False)


@dataclass(frozen=True)
class Evidence:
    """A measurement for some sizes.

    Arguments:
        sizes: size symbol -> size.
        tune: the point.
        us: how long it takes, in microseconds.
        default_us: how long the first point takes.
        spread: by how much the rounds differ, as a part of the time.
    """

    sizes: Mapping[str, Positive]
    tune: Values
    us: Amount
    default_us: Amount
    spread: Amount


@dataclass(frozen=True)
class Source:
    """The digest of the sources that a point was measured with."""

    tune: Values
    digest: Digest


@dataclass(frozen=True)
class TunedConfig:
    """The part of a table for one config of a caller.

    Arguments:
        config: the config.
        by: the size symbols whose product decides; none: there is one rule.
        rules: in rising order; the last one has no end.
        evidence: what was measured.
        sources: the digest of each variant that was used.
        line: where it is in the file; 0: it is in none.
    """

    config: Values
    by: Symbols
    rules: tuple[Rule, ...]
    evidence: tuple[Evidence, ...] = ()
    sources: tuple[Source, ...] = ()
    line: int = field(default=0, compare=False, init=False)

    def answer(self, sizes: Mapping[str, int]) -> Values | None:
        """The point for some sizes; None: those that decide are not among them."""
        if not set(self.by) <= sizes.keys():
            return None
        rules = Rules(self.by, tuple((rule.upto, number) for number, rule in enumerate(self.rules)))
        return self.rules[rules.choose(sizes)].tune


@dataclass(frozen=True)
class TableFile:
    """The tuning table of one kernel for one device.

    Arguments:
        kernel: the kernel's name.
        device: the device.
        measured: what it was measured with: name of a tool, or of the way to measure -> its version, or in words.
        configs: what it says of each config.
        path: the file, for messages; empty: there is none.
        line: where the device is in the file.
    """

    kernel: str
    device: TableDevice
    measured: Mapping[str, str]
    configs: tuple[TunedConfig, ...]
    path: str = field(default="", compare=False)
    line: int = field(default=0, compare=False, init=False)

    def of(self, config: Mapping[str, Any]) -> TunedConfig | None:
        """Its part for a config; None: it has none."""
        return next((each for each in self.configs if same(each.config, config)), None)

    def where(self, line: int) -> Where:
        """The place of a line of the file, for messages."""
        return Where(self.kernel, stage="tuning", location=f"{self.path}:{line}")


@dataclass(frozen=True)
class _Document:
    """A table as its file has it."""

    schema: Schema
    kernel: Text
    device: TableDevice
    measured: Mapping[str, Text]
    configs: tuple[TunedConfig, ...]


def read_table(top: Path, name: str) -> TableFile:
    """The table in a file.

    Arguments:
        top: the folder that the name is relative to.
        name: the file.

    Raises:
        TuningError: it cannot be read, or is malformed; the message names file and line.
    """
    try:
        content = read_record(top / name, LARGEST)
    except OSError as error:
        raise unreadable(name, error) from error
    return parse_table(content, name)


def parse_table(content: bytes, name: str) -> TableFile:
    """The table that is the content of a file.

    Arguments:
        name: the file, relative to the project's folder; its name begins with that of the kernel.

    Raises:
        TuningError: it is malformed; the message names file and line.
    """
    try:
        return _table(content, name)
    except LocatedError as error:
        where = Where(kernel_of(name), stage="tuning", location=f"{name}:{error.line}")
        raise TuningError(error.message, where, MEND) from error


def unreadable(name: str, error: OSError) -> TuningError:
    """The error for a file that cannot be read."""
    where = Where(kernel_of(name), stage="tuning", location=f"{name}:1")
    return TuningError(f"cannot be read: {error.strerror or error}", where, "mend that, or remove the file")


def kernel_of(name: str) -> str:
    """The name of the kernel that a table is of, by the name of its file."""
    return Path(name).name.partition(".")[0]


def file_name(kernel: str, device: TableDevice, with_device: bool = False) -> str:
    """The name of the file of a table: ``gemm.sm_90a-132.json``, ``gemm.x86-64-v3-amd-epyc-9b45-2.json``.

    Arguments:
        with_device: whether a GPU's name is part of it, too, because the plain name is another one's.
    """
    model = _reduced(device.name)
    if device.target == "cuda":
        return f"{kernel}.{device.arch}-{device.count}{f'-{model}' if with_device else ''}{ENDING}"
    return f"{kernel}.{device.arch}-{model}-{device.count}{ENDING}"


def path_of_table(top: Path, folder: str, kernel: str, device: TableDevice) -> str:
    """Where the table of a device belongs, relative to the project's folder.

    Arguments:
        folder: the setting ``tuning``.

    Raises:
        TuningError: what has the name is damaged.
    """
    plain = f"{folder}/{file_name(kernel, device)}"
    if not (top / plain).exists() or read_table(top, plain).device.name == device.name:
        return plain
    return f"{folder}/{file_name(kernel, device, with_device=True)}"


def table_text(table: TableFile) -> str:
    """The canonical text of a table, which is equal for equal tables: a line for each rule and each measurement."""
    device = vars(table.device)
    configs = sorted(table.configs, key=lambda one: rank_of(one.config))
    blocks = ",\n".join(_config_block(config) for config in configs)
    return (
        f'{{"schema": {SCHEMA}, "kernel": {_json(table.kernel)},\n'
        f' "device": {_json(device)},\n'
        f' "measured": {_json(_in_order(table.measured))},\n'
        f' "configs": [' + (f"\n{blocks}\n ]" if blocks else "]") + "}\n"
    )


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two configs, or two points, are equal, in whatever order their keys are; 1, 1.0 and True differ."""
    return config_text(one) == config_text(other)


def _config_block(config: TunedConfig) -> str:
    rules = [_row(({} if rule.upto is None else {"upto": rule.upto}) | {"tune": rule.tune}) for rule in config.rules]
    evidence = sorted(config.evidence, key=lambda row: (rank_of(row.sizes), rank_of(row.tune)))
    sources = sorted(config.sources, key=lambda source: rank_of(source.tune))
    return (
        f'  {{"config": {_json(_in_order(config.config))}, "by": {_json(list(config.by))},\n'
        f'   "rules": [{_rows(rules)}],\n'
        f'   "evidence": [{_rows(_row(vars(row)) for row in evidence)}],\n'
        f'   "sources": [{_rows(_row(vars(source)) for source in sources)}]}}'
    )


def _rows(rows: Iterable[str]) -> str:
    lines = [f"    {row}" for row in rows]
    return "\n" + ",\n".join(lines) + "\n   " if lines else ""


def _row(fields: Mapping[str, Any]) -> str:
    """A line: fields as they come, and what is in them in the order of its names."""
    return _json({name: _in_order(value) if isinstance(value, Mapping) else value for name, value in fields.items()})


def _in_order(items: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(items.items()))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _reduced(name: str) -> str:
    """A device's name as a part of a file's name: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60].strip("-") or "unknown"


def _table(content: bytes, name: str) -> TableFile:
    document, lines = read_located(_Document, content)
    if document.kernel != kernel_of(name):
        message = f"kernel is {shown(document.kernel)}, but the name of the file begins with {shown(kernel_of(name))}"
        raise LocatedError(message, lines["kernel"])
    device, known = document.device, set[str]()
    if target_of(device.arch) != device.target:
        message = f"arch {device.arch!r} is one of {target_of(device.arch)}, not of {device.target}"
        raise LocatedError(message, lines["device.arch"])
    for number, config in enumerate(document.configs):
        place = f"configs[{number}]"
        object.__setattr__(config, "line", lines[place])
        if config_text(config.config) in known:
            raise LocatedError(f"config {shown(dict(config.config))} is there twice", config.line)
        known.add(config_text(config.config))
        for row, rule in enumerate(config.rules):
            object.__setattr__(rule, "line", lines[f"{place}.rules[{row}]"])
        _require_whole(config, f"{place}.rules", lines)
    table = TableFile(document.kernel, device, document.measured, document.configs, name)
    object.__setattr__(table, "line", lines["device"])
    return table


def _require_whole(config: TunedConfig, place: str, lines: Mapping[str, int]) -> None:
    """Raise a LocatedError unless the rules of a config cover every size."""
    rules = config.rules
    if not rules:
        raise LocatedError(f"{place} is empty, so it covers no size", lines[place])
    least = -math.inf
    for rule in rules[:-1]:
        if rule.upto is None:
            raise LocatedError("a rule without upto covers every size, so nothing can follow it", rule.line)
        if rule.upto <= least:
            raise LocatedError(f"upto is {rule.upto}, expected more than {least} of the rule before", rule.line)
        least = rule.upto
    if rules[-1].upto is not None:
        raise LocatedError(f"the last rule has upto: no rule covers sizes above {rules[-1].upto}", rules[-1].line)
    if len(rules) > 1 and not config.by:
        raise LocatedError(f"{place} has several rules, but by names no size that decides", lines[place])
