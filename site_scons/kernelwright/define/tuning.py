"""Tuning tables: the files that say which candidates of a kernel run on a device, for which sizes, and why.

A table has rules for each config of a caller. They cover every size, so a table only changes the order of variants that
fit: it can name no variant that the definition does not declare. ``docs/reference.md`` describes the form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.arch import TARGETS, target_of
from ..core.errors import KernelwrightError, SettingsError, Where, shown
from ..core.files import read_record
from ..core.located import Located, LocatedError, located
from ..runtime.tables import Rules
from .recorded import config_text, rank_of
from .space import Point

SCHEMA = 1
"""Revision of the file's form."""

LARGEST = 16 << 20
"""Bytes that such a file may have."""

MOST_CORES = 2**31 - 1
"""Largest count of a device: it is an int in C."""

ENDING = ".json"

DIGEST = re.compile(r"[0-9a-f]{8,64}")
"""The digest of the sources of a variant, or its beginning."""

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

    target: str
    arch: str
    name: str
    count: int


@dataclass(frozen=True)
class Rule:
    """A range of sizes, and the point that runs there.

    Arguments:
        tune: the point.
        upto: the largest product of sizes that is in the range; None: it has no end.
        line: where it is in the file; 0: it is in none.
    """

    tune: Point
    upto: int | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Evidence:
    """What was measured for some sizes.

    Arguments:
        sizes: size symbol -> size.
        tune: the point.
        us: how long it takes, in microseconds.
        default_us: how long the first point takes.
        spread: by how much the rounds differ, as a part of the time.
    """

    sizes: Mapping[str, int]
    tune: Point
    us: float
    default_us: float
    spread: float


@dataclass(frozen=True)
class Source:
    """The digest of the sources that a point was measured with."""

    tune: Point
    digest: str


@dataclass(frozen=True)
class TunedConfig:
    """What a table says of one config of a caller.

    Arguments:
        config: the config.
        by: the size symbols whose product decides; none: there is one rule.
        rules: in rising order; the last one has no end.
        evidence: what was measured.
        sources: the digest of each variant that was used.
        line: where it is in the file; 0: it is in none.
    """

    config: Mapping[str, Any]
    by: tuple[str, ...]
    rules: tuple[Rule, ...]
    evidence: tuple[Evidence, ...] = ()
    sources: tuple[Source, ...] = ()
    line: int = field(default=0, compare=False)

    def answer(self, sizes: Mapping[str, int]) -> Point | None:
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
    line: int = field(default=0, compare=False)

    def of(self, config: Mapping[str, Any]) -> TunedConfig | None:
        """What it says of a config; None: nothing."""
        return next((found for found in self.configs if same(found.config, config)), None)

    def where(self, line: int) -> Where:
        """The place of a line of the file, for messages."""
        return Where(self.kernel, stage="tuning", location=f"{self.path}:{line}")


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
        return _table(located(content), name)
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
    listed = [f"    {row}" for row in rows]
    return "\n" + ",\n".join(listed) + "\n   " if listed else ""


def _row(fields: Mapping[str, Any]) -> str:
    """A line: fields as they come, and what is in them in the order of its names."""
    return _json({name: _in_order(found) if isinstance(found, Mapping) else found for name, found in fields.items()})


def _in_order(found: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(found.items()))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _reduced(name: str) -> str:
    """A device's name as a part of a file's name: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60].strip("-") or "unknown"


def _table(document: Located, name: str) -> TableFile:
    document.require_object("schema", "kernel", "device", "measured", "configs")
    schema = document.member("schema")
    if schema.count() != SCHEMA:
        raise LocatedError(f"its schema is {schema.value}, expected {SCHEMA}", schema.line)
    kernel = document.member("kernel")
    if kernel.text() != kernel_of(name):
        message = f"kernel is {shown(kernel.text())}, but the name of the file begins with {shown(kernel_of(name))}"
        raise LocatedError(message, kernel.line)
    measured = {key: item.text() for key, item in document.member("measured").mapping().items()}
    configs = tuple(map(_config, document.member("configs").items()))
    known: set[str] = set()
    for config in configs:
        if config_text(config.config) in known:
            raise LocatedError(f"config {shown(dict(config.config))} is there twice", config.line)
        known.add(config_text(config.config))
    device = document.member("device")
    return TableFile(kernel.text(), _device(device), measured, configs, name, device.line)


def _device(item: Located) -> TableDevice:
    item.require_object("target", "arch", "name", "count")
    target, arch = item.member("target"), item.member("arch")
    if target.text() not in TARGETS:
        raise LocatedError(f"unknown target {shown(target.text())}, expected {' or '.join(TARGETS)}", target.line)
    try:
        of_arch = target_of(arch.text())
    except SettingsError as error:
        raise LocatedError(error.message, arch.line) from error
    if of_arch != target.text():
        raise LocatedError(f"arch {arch.text()!r} is one of {of_arch}, not of {target.text()}", arch.line)
    name = item.member("name")
    if not name.text() or not name.text().isprintable():
        raise LocatedError(f"device.name is {shown(name.text())}, expected the name of a device", name.line)
    count = item.member("count")
    if count.count(1) > MOST_CORES:
        raise LocatedError(f"device.count is {count.value}, expected at most {MOST_CORES}", count.line)
    return TableDevice(target.text(), arch.text(), name.text(), count.count(1))


def _config(item: Located) -> TunedConfig:
    item.require_object("config", "by", "rules", optional=("evidence", "sources"))
    by = item.member("by")
    symbols = tuple(symbol.text() for symbol in by.items())
    for symbol in symbols:
        if not symbol.isidentifier() or symbols.count(symbol) > 1:
            raise LocatedError(f"{by.name} is {shown(list(symbols))}, expected different size symbols", by.line)
    evidence = item.member("evidence").items() if item.has("evidence") else []
    sources = item.member("sources").items() if item.has("sources") else []
    return TunedConfig(
        item.member("config").scalars(),
        symbols,
        _rules(item.member("rules"), symbols),
        tuple(map(_evidence, evidence)),
        tuple(map(_source, sources)),
        item.line,
    )


def _rules(item: Located, by: tuple[str, ...]) -> tuple[Rule, ...]:
    """The rules of a config, which cover every size."""
    rules = tuple(map(_rule, item.items()))
    if not rules:
        raise LocatedError(f"{item.name} is empty, so it covers no size", item.line)
    least = -math.inf
    for rule in rules[:-1]:
        if rule.upto is None:
            raise LocatedError("a rule without upto covers every size, so nothing can follow it", rule.line)
        if rule.upto <= least:
            raise LocatedError(f"upto is {rule.upto}, expected more than {least} of the rule before", rule.line)
        least = rule.upto
    last = rules[-1]
    if last.upto is not None:
        message = f"the last rule has upto: no rule covers sizes above {last.upto}"
        raise LocatedError(message, last.line)
    if len(rules) > 1 and not by:
        raise LocatedError(f"{item.name} has several rules, but by names no size that decides", item.line)
    return rules


def _rule(item: Located) -> Rule:
    item.require_object("tune", optional=("upto",))
    upto = item.member("upto").count(1) if item.has("upto") else None
    return Rule(item.member("tune").scalars(), upto, item.line)


def _evidence(item: Located) -> Evidence:
    item.require_object("sizes", "tune", "us", "default_us", "spread")
    sizes = {symbol: size.count(1) for symbol, size in item.member("sizes").mapping().items()}
    times = (item.member(name).number() for name in ("us", "default_us", "spread"))
    return Evidence(sizes, item.member("tune").scalars(), *times)


def _source(item: Located) -> Source:
    item.require_object("tune", "digest")
    digest = item.member("digest")
    if not DIGEST.fullmatch(digest.text()):
        raise LocatedError(f"{digest.name} is {shown(digest.text())}, expected 8 to 64 hexadecimal digits", digest.line)
    return Source(item.member("tune").scalars(), digest.text())
