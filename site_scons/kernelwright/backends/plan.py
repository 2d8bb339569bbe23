"""The plan of a kernel that a backend gets: what was lowered, read from signature.json, and where the files are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn

from ..core.arch import CPU_LEVELS, TARGETS
from ..core.converter import from_json
from ..core.driver import of_toolkit
from ..core.dtype import PLAIN_NUMBER
from ..core.errors import KernelwrightError, Where, shown
from ..core.signature import IDENTIFIER, SCHEMA, Argument, RecordedFunction, Signature, Structure, function_of
from ..runtime.rivals import Pair, Relations
from ..runtime.size import argument_text
from ..runtime.tables import DeviceTable, Rules

REBUILD = "remove what was built, and try again"

MOST = 2**63 - 1
"""More than the limit of any range in a tuning table: in C it marks the end of the last one."""


@dataclass(frozen=True, kw_only=True)
class LoweredUnit(Signature):
    """One lowering of a variant: what signature.json says, and where its files are.

    Arguments:
        host: path of host.c (cuda) or host.o (llvm), relative to the folder in which the compiler runs.
        images: for cuda, arch -> path of its cubin or PTX.
        names: arch -> the name of its only device function in that image; empty: it is the same in all.
        own_library: the name of the library that has what it calls, if that is exported by sources; else empty.
    """

    host: str
    images: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    own_library: str = ""

    def with_names(self, names: Mapping[str, tuple[str, ...]]) -> LoweredUnit:
        """The unit, with its device functions' names in each image: that of an only one may depend on the arch."""
        first, *others = dict.fromkeys(names.values())
        return replace(self._with_symbols(first), names={a: n for a, (n,) in names.items()} if others else {})

    def by_name(self) -> tuple[LoweredUnit, ...]:
        """The unit alone; or, if its device function has several names, one for each, with the images that have it."""
        archs: dict[str, list[str]] = {}
        for arch, name in self.names.items():
            archs.setdefault(name, []).append(arch)
        return tuple(
            replace(self._with_symbols((name,)), images={arch: self.images[arch] for arch in listed}, names={})
            for name, listed in archs.items()
        ) or (self,)

    def _with_symbols(self, symbols: tuple[str, ...]) -> LoweredUnit:
        pairs = list(zip(self.device_kernels, symbols, strict=True))
        named = {device.symbol or device.name: symbol for device, symbol in pairs}
        devices = tuple(replace(device, symbol=symbol) for device, symbol in pairs)
        launches = self.launches and tuple(replace(each, kernel=named[each.kernel]) for each in self.launches)
        return replace(self, device_kernels=devices, launches=launches)

    @property
    def where(self) -> Where:
        """The place that errors about this unit name."""
        return Where(self.kernel, self.slug, "wrap")

    @property
    def has_tensor_maps(self) -> bool:
        """Whether the host code makes tensor maps."""
        return bool(self.tensor_maps) or any("tensor_map" in device.params for device in self.device_kernels)

    def structures_of(self, function: str) -> tuple[Structure, ...]:
        """The structures among the parameters of a device function, which a launch names."""
        named = {device.symbol or device.name: device.structures for device in self.device_kernels}
        return named.get(function, ())

    @property
    def told_sizes(self) -> list[str]:
        """The size symbols that the inputs of a call give: as a size of an array, or as an integer."""
        return list(self.symbol_places())

    @classmethod
    def from_json(cls, data: Any, host: str, images: Mapping[str, str] | None = None) -> LoweredUnit:
        """Read a parsed signature.json.

        Arguments:
            data: the parsed file.
            host: path of host.c or host.o.
            images: arch -> path of the device image, for cuda.

        Raises:
            KernelwrightError: the file has another schema, or lacks something.
        """
        content = data if isinstance(data, dict) else {}
        kernel, slug = (name if isinstance(name := content.get(key), str) else None for key in ("kernel", "slug"))
        where = Where(kernel, slug, "wrap")
        if content.get("schema") != SCHEMA:
            message = f"signature.json has schema {shown(content.get('schema'))}, expected {SCHEMA}"
            raise KernelwrightError(message, where, REBUILD)
        try:
            return cls(**vars(from_json(Signature, content)), host=host, images=dict(images or {}))
        except ValueError as error:
            raise KernelwrightError(f"signature.json is damaged: {error}", where, REBUILD) from error


@dataclass(frozen=True)
class VariantPlan:
    """A variant and its lowerings: one per arch for llvm; for cuda one, or one for each source.

    Arguments:
        slug: its name.
        config: its config.
        units: its lowerings.
        tabled: targets for which it is no declared variant, though it is one for another target: calls on these are not
            compared with it, and it runs only if a table says so.
    """

    slug: str
    config: Mapping[str, Any]
    units: tuple[LoweredUnit, ...]
    tabled: tuple[str, ...] = ()

    def of(self, target: str) -> tuple[LoweredUnit, ...]:
        """The lowerings for a target."""
        return tuple(unit for unit in self.units if unit.target == target)

    def has_code(self, target: str, arch: str) -> bool:
        """Whether there is code of exactly this arch."""
        return any(arch in (unit.images or (unit.arch,)) for unit in self.of(target))


@dataclass(frozen=True)
class KernelPlan:
    """All that a backend has to know of a kernel.

    Arguments:
        name: the kernel's name.
        outputs: the names of arguments that callers may leave out, in the order in which new ones are returned.
        variants: in the order of the configs; the first that fits a call is used.
        split: the library does not hold the device images, they are loaded from their files.
        driver: the CUDA version that a driver must support to decompress the images, such as 12040; 0: any.
        toolkit: the CUDA version of the compiler that made the images, such as 13000; 0: it is not known.
        gaps: what errors say of the variants that failed, in a package that was built partially; empty: none did.
        declared: how many of the variants, from the first on, are compared with a call; those behind them run only
            where a table says so. None: all.
        tables: the tuning tables.
        meaning: the names in the configs that the reference takes. Variants with equal inputs compute different things
            if they differ in one of these.
        others: arch -> the CUDA version of another compiler, which makes its images.
    """

    name: str
    outputs: tuple[str, ...]
    variants: tuple[VariantPlan, ...]
    split: bool = False
    driver: int = 0
    toolkit: int = 0
    gaps: str = ""
    declared: int | None = None
    tables: tuple[DeviceTable, ...] = ()
    meaning: tuple[str, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)

    def driver_of(self, arch: str) -> int:
        """The CUDA version that a driver must be for to read the image for an arch; 0: it is not known."""
        return of_toolkit(arch, self.others.get(arch, self.toolkit))

    @property
    def num_declared(self) -> int:
        """How many of the variants are compared with a call."""
        return len(self.variants) if self.declared is None else self.declared

    @property
    def optional(self) -> frozenset[str]:
        """The names of arguments that a call may leave out: for None, or for a default."""
        arguments = (argument for unit in self.units for argument in unit.arguments)
        return frozenset(a.name for a in arguments if a.given is not True or a.default is not None)

    @cached_property
    def folds(self) -> dict[str, tuple[str, int]]:
        """Argument -> the size that its leading dimensions fold into, and how many dimensions follow that."""
        return {a.name: _fold(a) for unit in reversed(self.units) for a in unit.arguments if a.folds}

    @property
    def usable_tables(self) -> tuple[DeviceTable, ...]:
        """The tables, without variants that have no code for the table's arch."""
        return tuple(
            table.with_code(lambda number, t=table: self.variants[number].has_code(t.target, t.arch))  # type: ignore[misc]
            for table in self.tables
        )

    @property
    def opaque(self) -> bool:
        """Whether its arguments are not known: calls are handed through."""
        return any(unit.opaque for unit in self.units)

    @property
    def recorded(self) -> RecordedFunction | None:
        """The function that calls of a program are recorded of; None: it is no recorded kernel."""
        calls = [(unit.images, unit.recorded) for unit in self.units if unit.recorded]
        return function_of(calls) if calls else None

    @property
    def units(self) -> tuple[LoweredUnit, ...]:
        """All lowerings of all variants."""
        return tuple(unit for variant in self.variants for unit in variant.units)

    def everywhere(self, position: int) -> list[Argument]:
        """An argument as all lowerings have it, by its position."""
        return [unit.arguments[position] for unit in self.units]

    def described(self, position: int) -> str:
        """The dtypes and shapes of an argument in all variants, such as ``float16[n, 64] or float32[n, 64]``."""
        texts = (
            argument_text(a.kind, a.dtype, a.shape, {}, (), a.given, folds=a.folds) for a in self.everywhere(position)
        )
        return " or ".join(dict.fromkeys(texts)).replace("\n", " ")

    def relations(self) -> Relations:
        """Which declared variants the same call may fit; none, if the arguments are not known."""
        return Relations(self._pairs(), [variant.config for variant in self.variants], self.meaning)

    def _pairs(self) -> Iterator[Pair]:
        """Each two declared variants, for each target that both have."""
        declared = () if self.opaque else self.variants[: self.num_declared]
        for (number, one), (rival, other) in itertools.combinations(enumerate(declared), 2):
            for target in TARGETS:
                if (first := one.of(target)) and (second := other.of(target)):
                    yield number, first[0].arguments, rival, second[0].arguments

    def check(self) -> None:
        """Check what every backend relies on.

        Raises:
            KernelwrightError: something is missing, or the lowerings do not fit together.
        """
        where = Where(self.name, stage="wrap")
        if not self.units or any(not variant.units for variant in self.variants):
            raise KernelwrightError("a variant has no lowering", where, "list a target and an arch for it")
        for variant in self.variants:
            for unit in variant.of("cuda")[1:]:
                self._check_alike(unit, variant.of("cuda")[0])
        for unit in self.units:
            self._check_unit(unit)
        self._check_unique("symbol", [unit.entry for unit in self.units])
        for variant in self.variants:
            self._check_unique("unit", [f"{unit.target} {unit.arch}" for unit in variant.units])
        for table in self.tables:
            self._check_table(table)

    def _check_table(self, table: DeviceTable) -> None:
        """Check that a table can be looked up, and that a variant which it names can stand in for the declared one."""
        for declared, rules in table.rules.items():
            is_known = 0 <= declared < self.num_declared <= len(self.variants)
            if not is_known or not all(0 <= variant < len(self.variants) for _, variant in rules.ranges):
                self._refuse_table(table, None, "has rules for a variant that does not exist")
            *limits, last = [upto for upto, _ in rules.ranges] or [0]
            ends = [-1, *(-1 if upto is None else upto for upto in limits), MOST]
            if last is not None or any(first >= then for first, then in itertools.pairwise(ends)):
                self._refuse_table(
                    table, declared, "has ranges that do not rise from 0 to the last one, without an end"
                )
            for unit in self.variants[declared].of(table.target)[:1]:
                self._check_symbols(table, rules, declared, unit)
                for _, variant in rules.ranges:
                    self._check_stand_in(table, declared, variant, unit)

    def _check_symbols(self, table: DeviceTable, rules: Rules, declared: int, unit: LoweredUnit) -> None:
        for symbol in rules.by:
            if symbol not in unit.symbol_places():
                self._refuse_table(table, declared, f"decides by the size {symbol!r}, which no input tells")

    def _check_stand_in(self, table: DeviceTable, declared: int, variant: int, unit: LoweredUnit) -> None:
        """Check that a variant makes the declared variant's outputs: callers get those, whatever a table says."""
        for other in self.variants[variant].of(table.target):
            if _made(other) != _made(unit):
                slug = self.variants[variant].slug
                self._refuse_table(table, declared, f"names {slug}, which makes other outputs or has other size limits")

    def _refuse_table(self, table: DeviceTable, declared: int | None, problem: str) -> NoReturn:
        slug = None if declared is None else self.variants[declared].slug
        device = f"{table.name!r} ({table.arch}, count {table.count})"
        remedy = "tune the kernel again, or remove the file of that device from the folder of tuning tables"
        raise KernelwrightError(f"its tuning table of {device} {problem}", Where(self.name, slug, "wrap"), remedy)

    def _check_unit(self, unit: LoweredUnit) -> None:
        if unit.target not in TARGETS:
            raise KernelwrightError(f"unknown target {unit.target!r}", unit.where)
        if unit.target == "llvm" and unit.arch not in CPU_LEVELS:
            raise KernelwrightError(f"unknown CPU arch {unit.arch!r}", unit.where, f"use {', '.join(CPU_LEVELS)}")
        if unit.exported and not IDENTIFIER.fullmatch(unit.exported):
            raise KernelwrightError(f"exported function {unit.exported!r} is not a C identifier", unit.where)
        if unit.opaque != self.opaque:
            remedy = "declare the arguments of all variants, or of none"
            raise KernelwrightError(
                "its arguments are not declared, and those of other variants are", unit.where, remedy
            )
        if not IDENTIFIER.fullmatch(unit.entry):
            raise KernelwrightError(f"symbol {unit.entry!r} is not a C identifier", unit.where)
        first = self.units[0]
        mine, expected = _outline(unit), _outline(first)
        if mine != expected:
            raise KernelwrightError(
                f"its arguments are {mine}, those of variant {first.slug} ({first.target}) are {expected}",
                unit.where,
                "give all variants of a kernel the same arguments; only dtypes, shapes and strides may differ",
            )
        for argument in unit.arguments:
            fold = _fold(argument) if argument.folds else None
            if argument.given is not False and fold != self.folds.get(argument.name):
                message = f"the leading dimensions of argument {argument.name!r} fold otherwise than in another variant"
                raise KernelwrightError(message, unit.where, "give it as many dimensions in all variants, and one name")
            if argument.alignment is not None and argument.alignment.bit_count() != 1:
                message = f"argument {argument.name!r} has the alignment {argument.alignment}, expected a power of two"
                raise KernelwrightError(message, unit.where)
        if unit.returned != self.outputs:
            raise KernelwrightError(f"its outputs are {unit.returned}, those of the kernel {self.outputs}", unit.where)

    def _check_alike(self, unit: LoweredUnit, first: LoweredUnit) -> None:
        """Check that callers see no difference between two CUDA sources of a variant."""
        mine, expected = _call_text(unit), _call_text(first)
        if mine != expected:
            text = f"it returns for {unit.arch} a program that is called with {mine}; for {first.arch}, with {expected}"
            remedy = "return programs with equal arguments for all CUDA archs, or make two kernels of them"
            raise KernelwrightError(text, unit.where, remedy)

    def _check_unique(self, what: str, values: list[str]) -> None:
        for value in values:
            if values.count(value) > 1:
                raise KernelwrightError(f"{what} {value!r} appears twice", Where(self.name, stage="wrap"))


def require_dtypes(kernel: KernelPlan, arrays: re.Pattern[str], cannot: str, backend: str) -> None:
    """Raise a KernelwrightError for an argument of a dtype that a framework does not have.

    Arguments:
        arrays: the dtypes of its arrays.
        cannot: what it does not do with others, for the message.
    """
    for unit in kernel.units:
        for argument in unit.arguments:
            if not (arrays if argument.kind == "tensor" else PLAIN_NUMBER).fullmatch(argument.dtype):
                what = f"a {argument.kind} of dtype {argument.dtype}, which {cannot}"
                remedy = f"change its dtype, or take {backend} out of the kernel's backends"
                raise KernelwrightError(f"argument {argument.name!r} is {what}", unit.where, remedy)


def _made(unit: LoweredUnit) -> tuple[object, ...]:
    """What callers see of the variant that runs: the outputs that it makes, and how large sizes may be."""
    outputs = [(argument.dtype, argument.shape) for argument in unit.arguments if argument.output]
    return outputs, "int64" in unit.symbols.values(), unit.limited


def with_strictest_alignment(units: tuple[LoweredUnit, ...]) -> tuple[LoweredUnit, ...]:
    """The lowerings of a variant. Those for CUDA all get the strictest alignment of each argument.

    Data is compared with these before it is known which lowering runs.
    """
    cuda = [unit for unit in units if unit.target == "cuda"]
    if len({len(unit.arguments) for unit in cuda}) != 1:
        return units  # KernelPlan.check refuses them
    columns = zip(*(unit.arguments for unit in cuda), strict=True)
    strictest = [max((argument.alignment or 0 for argument in column), default=0) or None for column in columns]

    def aligned(unit: LoweredUnit) -> LoweredUnit:
        if unit.target != "cuda":
            return unit
        pairs = zip(unit.arguments, strictest, strict=True)
        return replace(unit, arguments=tuple(replace(argument, alignment=bytes_) for argument, bytes_ in pairs))

    return tuple(map(aligned, units))


def _call_text(unit: LoweredUnit) -> str:
    """All that callers have to know of a lowering."""

    def text(argument: Argument) -> str:
        sizes = argument.shape, unit.multiples, argument.strides
        kind = argument_text(argument.kind, argument.dtype, *sizes, argument.given, folds=argument.folds)
        return f"{argument.name}: {kind}" + " (output)" * argument.output + " (written)" * argument.written

    sizes = [f"{name}: {dtype}" for name, dtype in sorted(unit.symbols.items())]
    limited = [f"{name} passed as {dtype}" for name, dtype in sorted((unit.limited or {}).items())]
    required = [f"required: {requirement}" for requirement in unit.requires]
    return ", ".join([*map(text, unit.arguments), *(["and the sizes"] if sizes else []), *sizes, *limited, *required])


def _fold(argument: Argument) -> tuple[str, int]:
    """See :attr:`KernelPlan.folds`."""
    return str(argument.shape[0]), len(argument.shape) - 1


def _outline(unit: LoweredUnit) -> str:
    """The arguments as far as they must agree: names, tensor or scalar, output or not, and defaults."""
    return ", ".join(
        f"{argument.name}{'[]' if argument.kind == 'tensor' else ''}{' (output)' if argument.output else ''}"
        f"{'' if argument.default is None else f'={argument.default}'}"
        for argument in unit.arguments
    )
