"""Tuning tables choose which candidates of a kernel are built, and which of them runs on a device.

The declared variants are built in any case, and a call is compared with these alone. A table adds those that its rules
name, for its arch only, and says for which sizes one of them takes the place of a declared one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.arch import target_of
from ..core.errors import shown
from ..core.files import read_record
from ..define.record import KernelRecord
from ..define.recorded import config_text
from ..define.space import Choice
from ..define.tuning import LARGEST, TableFile, TunedConfig, TuningError, parse_table, unreadable
from ..runtime.tables import DeviceTable, Rules
from .selection import KernelSelection


@dataclass(frozen=True)
class KernelTables:
    """The tuning tables of a kernel, as they were read.

    Arguments:
        tables: in the order of their files.
        digests: file -> SHA-256 of its content.
    """

    tables: tuple[TableFile, ...]
    digests: Mapping[str, str]


def read_tables(top: Path, names: Iterable[str]) -> KernelTables:
    """Read the tables of one kernel.

    Arguments:
        top: the folder that the names are relative to.
        names: the files.

    Raises:
        TuningError: one cannot be read or is malformed, or two are of one device.
    """
    tables: dict[object, TableFile] = {}
    digests = {}
    for name in names:
        try:
            content = read_record(top / name, LARGEST)
        except OSError as error:
            raise unreadable(name, error) from error
        digests[name] = hashlib.sha256(content).hexdigest()
        table = parse_table(content, name)
        if (other := tables.get(table.device)) is not None:
            message = f"it is of the same device as {other.path}: {table.device.name}"
            raise TuningError(message, table.where(table.line), "remove one of the two")
        tables[table.device] = table
    return KernelTables(tuple(tables.values()), digests)


@dataclass(frozen=True)
class Chosen:
    """What is built of a kernel with a space.

    Arguments:
        selection: the kernel, with the variants that are built and the tables.
        stale: what the tables name and the definition does not declare any more.
    """

    selection: KernelSelection
    stale: tuple[TuningError, ...] = ()


def choose(
    selection: KernelSelection,
    tables: Sequence[TableFile] = (),
    declared: KernelRecord | None = None,
    preferred: bool = True,
) -> Chosen:
    """Choose the variants of a kernel that are built. A kernel without a space stays as it is.

    Arguments:
        selection: the kernel with the configs of all candidates; its choices may be fewer than were declared.
        tables: its tuning tables, in the order in which they count.
        declared: the kernel as its definition declares it; None: as it is selected.
        preferred: whether the points that the definition prefers for some archs are built.
    """
    if not selection.record.choices:
        return Chosen(selection)
    return _Choosing(selection, declared or selection.record, preferred).run(tables)


def note_of(stale: TuningError) -> str:
    """What a run says of a rule that does not count any more."""
    return f"kernelwright: {stale.where.location}: {stale.message}; {stale.remedy}"


@dataclass
class _Choosing:
    """Collects the variants that are built of one kernel.

    Arguments:
        selection: the kernel.
        declared: it, as its definition declares it.
        preferred: whether what the definition prefers counts.
        built: text of a config -> target -> archs that it is built for, in the order of the variants.
        counted: text of a config -> targets for which calls are compared with it.
        stale: what the tables name in vain.
        places: of each table: number of a declared variant -> where its rules are.
    """

    selection: KernelSelection
    declared: KernelRecord
    preferred: bool
    built: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    counted: dict[str, set[str]] = field(default_factory=dict)
    stale: list[TuningError] = field(default_factory=list)
    places: list[dict[int, str]] = field(default_factory=list)

    def run(self, tables: Sequence[TableFile]) -> Chosen:
        record, archs = self.selection.record, self.selection.archs
        for choice in record.choices:
            for target in archs:
                config = choice.declared(target)
                if config is not None:
                    self._build(config, target, archs[target])
                    self.counted.setdefault(config_text(config), set()).add(target)
        count = len(self.built)
        device_tables = [table for file in tables if (table := self._table(file)) is not None]
        device_tables += self._preferred_tables() if self.preferred else []
        known = {config_text(config): (config, slug) for config, slug in record.listed}
        variants = [known[text] for text in self.built]
        slugs = dict(zip(self.built, (slug for _, slug in variants), strict=True))
        built = {target for of_target in self.built.values() for target in of_target}
        selection = replace(
            self.selection,
            archs={target: listed for target, listed in archs.items() if target in built},
            record=replace(record, configs=tuple(c for c, _ in variants), slugs=tuple(slugs.values())),
            only={slugs[text]: self._in_order(of_target) for text, of_target in self.built.items()},
            declared=count,
            tables=tuple(device_tables),
            tabled={slugs[text]: tabled for text in self.counted if (tabled := self._tabled(text))},
            places=tuple(self.places),
        )
        return Chosen(selection, tuple(self.stale))

    def _build(self, config: Mapping[str, Any], target: str, archs: Iterable[str]) -> int:
        """Have a variant built for some archs; its number."""
        text = config_text(config)
        self.built.setdefault(text, {}).setdefault(target, set()).update(archs)
        return list(self.built).index(text)

    def _in_order(self, of_target: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
        archs = self.selection.archs
        return {
            target: tuple(a for a in archs[target] if a in of_target[target]) for target in archs if target in of_target
        }

    def _tabled(self, text: str) -> tuple[str, ...]:
        """The targets for which a variant that is declared for another one runs only where a table says so."""
        return tuple(
            target for target in self.selection.archs if target in self.built[text].keys() - self.counted[text]
        )

    def _table(self, file: TableFile) -> DeviceTable | None:
        """A table as packages have it; None: the package has no code for its arch, or it changes nothing."""
        device, rules, places = file.device, dict[int, Rules](), dict[int, str]()
        of_choice = {config_text(choice.config): choice for choice in self.declared.choices}
        selected = {config_text(choice.config) for choice in self.selection.record.choices}
        for tuned in file.configs:
            text = config_text(tuned.config)
            choice = of_choice.get(text)
            if choice is None:
                what = f"config {shown(dict(tuned.config))} is not declared any more"
                self._add_stale(file, tuned.line, what, "so these rules do not count")
                continue
            points = self._points(file, tuned, choice)
            first = choice.declared(device.target)
            if first is not None and text in selected and device.arch in self.selection.compiled_archs(device.target):
                number = self._build(first, device.target, ())
                answer = self._rules(tuned, choice, number, points, file)
                # That the first point runs is worth a rule where the definition would prefer another one.
                if answer.ranges != ((None, number),) or device.arch in choice.preferred:
                    rules[number], places[number] = answer, f"{file.path}:{tuned.line}"
        if not rules:
            return None
        if self.preferred:
            listed = {config_text(tuned.config) for tuned in file.configs}
            others = self._preferred_rules(device.arch, listed)
            rules |= others
            places |= dict.fromkeys(others, self.declared.location)
        self.places.append(places)
        return DeviceTable(device.target, device.arch, device.name, device.count, rules)

    def _preferred_tables(self) -> list[DeviceTable]:
        """What the definition prefers, as tables of no device in particular, which are farther than any other."""
        tables = []
        for target in self.selection.archs:
            for arch in self.selection.compiled_archs(target):
                if rules := self._preferred_rules(arch, set()):
                    tables.append(DeviceTable(target, arch, "", 0, rules))
                    self.places.append(dict.fromkeys(rules, self.declared.location))
        return tables

    def _preferred_rules(self, arch: str, listed: Container[str]) -> dict[int, Rules]:
        """For each choice that no table lists: what the definition prefers for an arch."""
        rules_of, target = {}, target_of(arch)
        for choice in self.selection.record.choices:
            first, point = choice.declared(target), choice.preferred.get(arch)
            if point is not None and first is not None and config_text(choice.config) not in listed:
                number = self._build(first, target, ())
                rules_of[number] = Rules((), ((None, self._build(choice.candidate(point), target, (arch,))),))
        return rules_of

    def _points(self, file: TableFile, tuned: TunedConfig, choice: Choice) -> list[Mapping[str, Any] | None]:
        """The point of each rule; None, if it is not in the space any more."""
        known = {config_text(point) for point in choice.points.get(file.device.target, ())}
        points: list[Mapping[str, Any] | None] = []
        for rule in tuned.rules:
            is_known = config_text(rule.tune) in known
            points.append(rule.tune if is_known else None)
            if not is_known:
                what = f"the space of {file.kernel} does not have the point {shown(dict(rule.tune))} any more"
                self._add_stale(file, rule.line, what, "so the first point runs for these sizes")
        return points

    def _rules(
        self,
        tuned: TunedConfig,
        choice: Choice,
        first: int,
        points: Sequence[Mapping[str, Any] | None],
        file: TableFile,
    ) -> Rules:
        """What takes the place of a declared variant; adjacent ranges with one answer merge."""
        device = file.device
        ranges: list[tuple[int | None, int]] = []
        for rule, point in zip(tuned.rules, points, strict=True):
            candidate = None if point is None else choice.candidate(point)
            number = first if candidate is None else self._build(candidate, device.target, (device.arch,))
            if ranges and ranges[-1][1] == number:
                ranges.pop()
            ranges.append((rule.upto, number))
        return Rules(tuned.by if len(ranges) > 1 else (), tuple(ranges))

    def _add_stale(self, file: TableFile, line: int, what: str, so: str) -> None:
        remedy = f"measure again: kernelwright tune {file.kernel}"
        self.stale.append(TuningError(f"{what}, {so}", file.where(line), remedy))
