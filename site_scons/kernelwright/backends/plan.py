"""The plan of a kernel that a backend gets: what was lowered, read from signature.json, and where the files are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from ..core.arch import CPU_LEVELS, TARGETS
from ..core.dtype import number_kind
from ..core.errors import KernelwrightError, Where, is_text, shown
from ..core.records import Record
from ..runtime.size import size_text, strides_text
from ..runtime.tables import DeviceTable, Rules

SCHEMA = 1
"""The schema of signature.json that is understood."""

REBUILD = "remove what was built, and try again"

MOST = 2**63 - 1
"""What no range of a tuning table reaches: it stands for the end of the last one in C."""

IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""A name in C."""


@dataclass(frozen=True)
class Argument:
    """One argument of a lowered kernel.

    Arguments:
        name: the name in the definition.
        kind: ``tensor`` or ``scalar``.
        dtype: as TVM writes it, such as ``float16``.
        shape: a tensor's sizes: numbers, or expressions over symbols in Python syntax. Empty for a scalar.
        output: callers may leave it out.
        written: the kernel writes it.
        alignment: of a tensor's data, in bytes; None for that of its elements.
        strides: in elements, expressions as those of sizes; empty: it has to be compact.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int | str, ...] = ()
    output: bool = False
    written: bool = False
    alignment: int | None = None
    strides: tuple[int | str, ...] = ()

    @property
    def launcher_kind(self) -> str:
        """The launcher's name of what is passed: ``KW_TENSOR``, or a kind of number."""
        return "KW_TENSOR" if self.kind == "tensor" else f"KW_{number_kind(self.dtype).upper()}"


@dataclass(frozen=True)
class DeviceKernel:
    """A device function.

    Arguments:
        name: what the host code calls it.
        params: the dtypes of its parameters.
        launch: TVM's launch parameters, in order.
        symbol: its name in the images.
    """

    name: str
    params: tuple[str, ...]
    launch: tuple[str, ...]
    symbol: str


@dataclass(frozen=True)
class Launch:
    """A launch of a device function, as the host code makes it.

    An expression is an integer, or text in Python syntax over symbols and numbers among the arguments: ``+ - * // %``,
    ``<< >> & | ^``, comparisons, ``and or not``, ``a if c else b``, ``min``, ``max``, and ``truncdiv`` and
    ``truncmod``, which round towards zero.

    Arguments:
        kernel: the device function.
        params: its parameters: ``("tensor", name)``, ``("workspace", number)``, ``("tensor_map", number)``, or
            ``(dtype, expression)``.
        grid, block: expressions for x, y and z, in blocks and in threads.
        shared: dynamic shared memory of a block, in bytes.
        cluster, preferred_cluster: in blocks; None: not a launch with clusters.
        cooperative, dependent: flags of the launch; the latter allows it to begin before the one before it has ended.
        when: the condition under which it happens; None: always.
    """

    kernel: str
    params: tuple[tuple[str, int | str], ...]
    grid: tuple[int | str, ...]
    block: tuple[int | str, ...]
    shared: int | str = 0
    cluster: tuple[int | str, ...] | None = None
    preferred_cluster: tuple[int | str, ...] | None = None
    cooperative: bool = False
    dependent: bool = False
    when: int | str | None = None


@dataclass(frozen=True)
class TensorMap:
    """A tensor map that the host code makes: by it, the copy engine of a GPU finds its way in an array.

    All is in the order and with the numbers of cuTensorMapEncodeTiled (cuda.h): the innermost dimension is the first.

    Arguments:
        tensor: the argument whose data it is of.
        dtype: that of an element.
        sizes: expressions for the number of elements in each dimension.
        strides: expressions for the bytes from one index to the next, of all dimensions but the first.
        box: how many elements one copy has in each dimension.
        steps: how many elements it goes on from one to the next.
        interleave, swizzle, promotion, fill: modes.
    """

    tensor: str
    dtype: str
    sizes: tuple[int | str, ...]
    strides: tuple[int | str, ...]
    box: tuple[int | str, ...]
    steps: tuple[int | str, ...]
    interleave: int
    swizzle: int
    promotion: int
    fill: int

    @property
    def expressions(self) -> tuple[int | str, ...]:
        """All expressions in it."""
        return (*self.sizes, *self.strides, *self.box, *self.steps)


@dataclass(frozen=True)
class HostCheck:
    """A condition of the definition's own that the host code asserts: the expression, kind of error, and message."""

    passes: int | str
    error: str
    message: str


@dataclass(frozen=True)
class HostPlan:
    """What the host code of a CUDA lowering does once it has checked the arguments.

    Arguments:
        launches: in order.
        workspaces: sizes in bytes, as expressions, of temporary device memory.
        checks: what has to hold before anything is launched.
        tensor_maps: what launches pass by number.
    """

    launches: tuple[Launch, ...]
    workspaces: tuple[int | str, ...] = ()
    checks: tuple[HostCheck, ...] = ()
    tensor_maps: tuple[TensorMap, ...] = ()


@dataclass(frozen=True)
class LoweredUnit:
    """One lowering of a variant: what signature.json says, and where its files are.

    Arguments:
        kernel, slug, target, arch: whose lowering it is.
        symbol: the C name of the packed function (``entry`` in signature.json).
        arguments: in call order.
        symbols: free sizes and their dtypes.
        multiples: free size -> what its values are multiples of; the host code refuses others.
        stride_symbols: what only strides of arguments tell, and its dtype.
        returned: the names of the outputs, in the order in which they are returned; empty: in that of the arguments.
        names: arch -> what its only device function is called in that image; empty: the same in all.
        device_kernels: for cuda; empty for llvm.
        host: path of host.c (cuda) or host.o (llvm), relative to the folder in which the compiler runs.
        images: for cuda, arch -> path of its cubin or PTX.
        host_plan: for cuda, what the host code does, as data; None if it cannot be said so.
        host_logic: why it cannot, as a sentence; empty if it can.
        exported: the function of the author's that the host code checks the arguments for; empty: it launches itself.
        opaque: of such a function: whether its arguments are not known.
    """

    kernel: str
    slug: str
    target: str
    arch: str
    symbol: str
    arguments: tuple[Argument, ...]
    symbols: Mapping[str, str]
    device_kernels: tuple[DeviceKernel, ...]
    host: str
    images: Mapping[str, str] = field(default_factory=dict)
    host_plan: HostPlan | None = None
    host_logic: str = ""
    multiples: Mapping[str, int] = field(default_factory=dict)
    exported: str = ""
    opaque: bool = False
    stride_symbols: Mapping[str, str] = field(default_factory=dict)
    returned: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in the order in which new ones are returned."""
        return self.returned or tuple(argument.name for argument in self.arguments if argument.output)

    def with_names(self, names: Mapping[str, str]) -> LoweredUnit:
        """The unit, with the name that its only device function has in each image: a type may depend on the arch."""
        first, *others = dict.fromkeys(names.values())
        return replace(self._with_symbol(first), names=names if others else {})

    def by_name(self) -> tuple[LoweredUnit, ...]:
        """The unit as it is; or one for each name of its device function, with the images that have it."""
        archs: dict[str, list[str]] = {}
        for arch, name in self.names.items():
            archs.setdefault(name, []).append(arch)
        return tuple(
            replace(self._with_symbol(name), images={arch: self.images[arch] for arch in listed}, names={})
            for name, listed in archs.items()
        ) or (self,)

    def _with_symbol(self, symbol: str) -> LoweredUnit:
        (device,) = self.device_kernels
        plan = self.host_plan
        launches = tuple(replace(launch, kernel=symbol) for launch in plan.launches) if plan else ()
        host_plan = replace(plan, launches=launches) if plan else None
        return replace(self, device_kernels=(replace(device, symbol=symbol),), host_plan=host_plan)

    @property
    def where(self) -> Where:
        """The place that errors about this unit name."""
        return Where(self.kernel, self.slug, "wrap")

    @property
    def has_tensor_maps(self) -> bool:
        """Whether the host code makes tensor maps."""
        passed = any("tensor_map" in device.params for device in self.device_kernels)
        return passed or bool(self.host_plan and self.host_plan.tensor_maps)

    def symbol_places(self) -> dict[str, tuple[int, int | None]]:
        """Where the inputs give each symbol: the number of an argument, and of a dimension that is the symbol; None, if
        the argument is a number of that name."""
        places: dict[str, tuple[int, int | None]] = {}
        for position, argument in enumerate(self.arguments):
            if argument.launcher_kind == "KW_INT":
                places.setdefault(argument.name, (position, None))
        for position, argument in enumerate(self.arguments):
            for axis, size in enumerate(argument.shape):
                if not argument.output and isinstance(size, str) and size.isidentifier():
                    places.setdefault(size, (position, axis))
        return places

    def stride_places(self) -> dict[str, tuple[int, int]]:
        """Where the caller's arrays give what only strides tell: the numbers of an argument and of a dimension."""
        places: dict[str, tuple[int, int]] = {}
        for position in sorted(range(len(self.arguments)), key=lambda number: self.arguments[number].output):
            for axis, stride in enumerate(self.arguments[position].strides):
                if stride in self.stride_symbols:
                    places.setdefault(str(stride), (position, axis))
        return places

    @property
    def told_sizes(self) -> list[str]:
        """The size symbols that the inputs of a call tell: as a size of an array, or as an integer."""
        return list(self.symbol_places())

    @classmethod
    def from_json(cls, data: Mapping[str, Any], host: str, images: Mapping[str, str] | None = None) -> LoweredUnit:
        """Read a parsed signature.json.

        Arguments:
            data: the parsed file.
            host: path of host.c or host.o.
            images: arch -> path of the device image, for cuda.

        Raises:
            KernelwrightError: the file has another schema, or lacks something.
        """
        known = data if isinstance(data, dict) else {}
        kernel, slug = (name if isinstance(name := known.get(key), str) else None for key in ("kernel", "slug"))
        where = Where(kernel, slug, "wrap")
        if known.get("schema") != SCHEMA:
            message = f"signature.json has schema {shown(known.get('schema'))}, expected {SCHEMA}"
            raise KernelwrightError(message, where, REBUILD)
        for name in ("kernel", "slug", "target", "arch", "entry", "arguments", "symbols", "device_kernels"):
            if name not in known:
                raise KernelwrightError(f"signature.json has no {name!r}", where, REBUILD)
        try:
            return _unit(Record(known, ""), host, dict(images or {}))
        except ValueError as error:
            raise KernelwrightError(f"signature.json is damaged: {error}", where, REBUILD) from error


def _unit(document: Record, host: str, images: Mapping[str, str]) -> LoweredUnit:
    symbols = document.record("symbols")
    return LoweredUnit(
        kernel=_text(document, "kernel"),
        slug=_text(document, "slug"),
        target=_text(document, "target"),
        arch=_text(document, "arch"),
        symbol=_text(document, "entry"),
        arguments=tuple(map(argument_of, document.records("arguments"))),
        symbols={name: _text(symbols, name) for name in symbols.raw},
        device_kernels=tuple(map(_device_kernel, document.records("device_kernels"))),
        host=host,
        images=images,
        host_plan=_host_plan(document),
        host_logic=_text(document, "host_logic") if document.has("host_logic") else "",
        multiples=_multiples(document) if document.has("multiples") else {},
        exported=_text(document, "exported") if document.has("exported") else "",
        opaque=document.has("opaque") and document.flag("opaque"),
        stride_symbols=_stride_symbols(document) if document.has("stride_symbols") else {},
        returned=_returned(document) if document.has("outputs") else (),
    )


def _returned(document: Record) -> tuple[str, ...]:
    listed = document.texts("outputs")
    made = [item.text("name") for item in document.records("arguments") if item.flag("output")]
    if sorted(listed) != sorted(made):
        raise ValueError(f"outputs is {shown(listed)}, and the arguments say that they are {shown(made)}")
    return tuple(listed)


def _multiples(document: Record) -> dict[str, int]:
    found = document.record("multiples")
    return {name: found.count(name) for name in found.raw}


def _stride_symbols(document: Record) -> dict[str, str]:
    found = document.record("stride_symbols")
    return {name: _text(found, name) for name in found.raw}


def _host_plan(document: Record) -> HostPlan | None:
    if document.raw.get("launches") is None:
        return None
    workspaces = document.records("workspaces") if document.has("workspaces") else []
    checks = document.records("host_checks") if document.has("host_checks") else []
    return HostPlan(
        tuple(map(_launch, document.records("launches"))),
        tuple(_expression(item, "bytes") for item in workspaces),
        tuple(HostCheck(_expression(c, "passes"), _text(c, "error"), _text(c, "message")) for c in checks),
        tuple(map(_tensor_map, document.records("tensor_maps"))) if document.has("tensor_maps") else (),
    )


def _tensor_map(item: Record) -> TensorMap:
    sizes, strides, box, steps = (_expressions(item, name) for name in ("sizes", "strides", "box", "steps"))
    if not 1 <= len(sizes) == len(strides) + 1 == len(box) == len(steps) <= 5:
        raise ValueError(f"{item.place} has lists of other lengths than a tensor map")
    interleave, swizzle, promotion, fill = map(item.count, ("interleave", "swizzle", "promotion", "fill"))
    tensor, dtype = _text(item, "tensor"), _text(item, "dtype")
    return TensorMap(tensor, dtype, sizes, strides, box, steps, interleave, swizzle, promotion, fill)


def _expressions(item: Record, name: str) -> tuple[int | str, ...]:
    values = item.raw.get(name)
    if not isinstance(values, list) or not all(map(_is_expression, values)):
        raise ValueError(f"{item.place}.{name} is {shown(values)}, expected a list of expressions")
    return tuple(values)


def _launch(item: Record) -> Launch:
    def dims(name: str) -> tuple[int | str, ...] | None:
        sizes = item.raw.get(name)
        if sizes is None:
            return None
        if not isinstance(sizes, list) or len(sizes) != 3 or not all(map(_is_expression, sizes)):
            raise ValueError(f"{item.place}.{name} is {shown(sizes)}, expected three expressions")
        return tuple(sizes)

    return Launch(
        _text(item, "kernel"),
        tuple(map(_launch_param, item.records("params"))),
        dims("grid") or (1, 1, 1),
        dims("block") or (1, 1, 1),
        _expression(item, "shared"),
        dims("cluster"),
        dims("preferred_cluster"),
        item.has("cooperative") and item.flag("cooperative"),
        item.has("dependent") and item.flag("dependent"),
        _expression(item, "when") if item.has("when") else None,
    )


def _launch_param(item: Record) -> tuple[str, int | str]:
    if item.has("tensor"):
        return "tensor", _text(item, "tensor")
    if item.has("workspace"):
        return "workspace", item.count("workspace")
    if item.has("tensor_map"):
        return "tensor_map", item.count("tensor_map")
    return _text(item, "dtype"), _expression(item, "scalar")


def _expression(item: Record, name: str) -> int | str:
    value: Any = item.raw.get(name)
    if not _is_expression(value):
        raise ValueError(f"{item.place}.{name} is {shown(value)}, expected an integer or an expression")
    found: int | str = value
    return found


def _is_expression(value: Any) -> bool:
    return is_text(value) if isinstance(value, str) else isinstance(value, int) and not isinstance(value, bool)


def argument_of(item: Record) -> Argument:
    """An argument as signature.json and manifests have it. Raises ValueError for one of another form."""
    is_tensor = _text(item, "kind") == "tensor"
    shape = item.raw.get("shape") if is_tensor else []
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise ValueError(f"{item.place}.shape is {shown(shape)}, expected a list of sizes")
    strides = item.raw.get("strides") if is_tensor and item.has("strides") else []
    if not isinstance(strides, list) or len(strides) not in (0, len(shape)) or not all(map(_is_size, strides)):
        raise ValueError(f"{item.place}.strides is {shown(strides)}, expected a stride for each size")
    alignment = item.count("alignment") if item.has("alignment") else None
    name, kind, dtype = (_text(item, key) for key in ("name", "kind", "dtype"))
    written = item.flag("written") if item.has("written") else item.flag("output")
    return Argument(name, kind, dtype, tuple(shape), item.flag("output"), written, alignment, tuple(strides))


def _device_kernel(item: Record) -> DeviceKernel:
    name = _text(item, "name")
    if not IDENTIFIER.fullmatch(name):
        raise ValueError(f"{item.place}.name is {name!r}, expected a C identifier")
    return DeviceKernel(name, tuple(item.texts("params")), tuple(item.texts("launch")), name)


def _text(item: Record, name: str) -> str:
    """A string that can be written to a source file."""
    text = item.text(name)
    if not is_text(text):
        raise ValueError(f"{item.place}.{name} is {shown(text)}, expected whole characters")
    return text


def _is_size(size: Any) -> bool:
    if isinstance(size, str):
        return is_text(size)
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 1 << 63


@dataclass(frozen=True)
class VariantPlan:
    """A variant and its lowerings: one per arch for llvm; for cuda one, or one for each source.

    Arguments:
        slug: its name.
        config: its config.
        units: its lowerings.
        tabled: targets for which it is no declared variant, though it is for another one: calls for these targets are
            not compared with it, and it runs only where a table says so.
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
        meaning: the names in the configs that the reference takes. Variants of equal inputs that differ in one of these
            do not compute the same.
        linked: the kernels that have sources with host code in common with it, itself among them.
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
    linked: tuple[str, ...] = ()

    @property
    def num_declared(self) -> int:
        """How many of the variants are compared with a call."""
        return len(self.variants) if self.declared is None else self.declared

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
    def units(self) -> tuple[LoweredUnit, ...]:
        """All lowerings of all variants."""
        return tuple(unit for variant in self.variants for unit in variant.units)

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
        self._check_unique("symbol", [unit.symbol for unit in self.units])
        for variant in self.variants:
            self._check_unique("unit", [f"{unit.target} {unit.arch}" for unit in variant.units])
        for table in self.tables:
            self._check_table(table)

    def _check_table(self, table: DeviceTable) -> None:
        """Check that a table can be looked up, and that a variant which it names can stand in for the declared one."""
        for declared, rules in table.rules.items():
            known = 0 <= declared < self.num_declared <= len(self.variants)
            if not known or not all(0 <= variant < len(self.variants) for _, variant in rules.ranges):
                self._refuse_table(table, None, "has rules for a variant that there is not")
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
        """A caller gets the outputs that the declared variant has, whatever a table says."""
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
        if not IDENTIFIER.fullmatch(unit.symbol):
            raise KernelwrightError(f"symbol {unit.symbol!r} is not a C identifier", unit.where)
        first = self.units[0]
        mine, expected = _outline(unit), _outline(first)
        if mine != expected:
            raise KernelwrightError(
                f"its arguments are {mine}, those of variant {first.slug} ({first.target}) are {expected}",
                unit.where,
                "give all variants of a kernel the same arguments; only dtypes and shapes may differ",
            )
        for argument in unit.arguments:
            if argument.alignment is not None and argument.alignment.bit_count() != 1:
                message = f"argument {argument.name!r} has the alignment {argument.alignment}, expected a power of two"
                raise KernelwrightError(message, unit.where)
        if unit.outputs != self.outputs:
            raise KernelwrightError(f"its outputs are {unit.outputs}, those of the kernel {self.outputs}", unit.where)

    def _check_alike(self, unit: LoweredUnit, first: LoweredUnit) -> None:
        """Find out whether two CUDA sources of a variant are one variant for callers."""
        mine, expected = _call_text(unit), _call_text(first)
        if mine != expected:
            text = f"it returns for {unit.arch} a program that is called with {mine}; for {first.arch}, with {expected}"
            remedy = "return programs with equal arguments for all CUDA archs, or make two kernels of them"
            raise KernelwrightError(text, unit.where, remedy)

    def _check_unique(self, what: str, values: list[str]) -> None:
        for value in values:
            if values.count(value) > 1:
                raise KernelwrightError(f"{what} {value!r} appears twice", Where(self.name, stage="wrap"))


def _made(unit: LoweredUnit) -> tuple[object, ...]:
    """What callers see of the variant that runs: the outputs that it makes, and how large sizes may be."""
    outputs = [(argument.dtype, argument.shape) for argument in unit.arguments if argument.output]
    return outputs, "int64" in unit.symbols.values()


def with_strictest_alignment(units: tuple[LoweredUnit, ...]) -> tuple[LoweredUnit, ...]:
    """The lowerings of a variant, with the arguments of those for CUDA as aligned as one of them needs.

    Data is compared with that before it is known which of them runs.
    """
    cuda = [unit for unit in units if unit.target == "cuda"]
    if len({len(unit.arguments) for unit in cuda}) != 1:
        return units  # which is refused when the plan is checked
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
        sizes = ", ".join(size_text(size, unit.multiples) for size in argument.shape)
        kind = f"{argument.dtype}[{sizes}]" if argument.kind == "tensor" else argument.dtype
        kind += strides_text(argument.strides)
        return f"{argument.name}: {kind}" + " (output)" * argument.output + " (written)" * argument.written

    sizes = [f"{name}: {dtype}" for name, dtype in sorted(unit.symbols.items())]
    return ", ".join([*map(text, unit.arguments), *(["and the sizes"] if sizes else []), *sizes])


def _outline(unit: LoweredUnit) -> str:
    """The arguments as far as they must agree: names, tensor or scalar, output or not."""
    return ", ".join(
        f"{argument.name}{'[]' if argument.kind == 'tensor' else ''}{' (output)' if argument.output else ''}"
        for argument in unit.arguments
    )
