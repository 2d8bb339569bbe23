"""Finds the variant for a call through cuda.core: compares its arrays and numbers with the variants that are built.

``arguments.py`` compares dtypes, sizes and strides; this module adds alignment, devices and tuning tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from .arguments import Chosen, Signatures
from .cuda_core_arrays import ABSENT, CUDA, Array
from .cuda_core_device import Cuda, Device
from .cuda_core_launch import DeviceCode
from .expected import Described
from .interface import IMMUTABLE, library_of
from .refusal import MISALIGNED, refuse_writing
from .strides import stride_of
from .tables import Tuned, table_for, tables_of

DECLARED = "\n  remedy: pass an array with the strides that the definition declares"

UNIQUE = "\n  remedy: pass an array whose elements have a place each, such as a copy"

COMPACT = (
    "\n  remedy: pass a contiguous copy, such as cupy.ascontiguousarray(x) or x.contiguous(), and copy back what the "
    "kernel writes"
)

Passed = list["Array | Any"]
"""The arguments of a call by position: arrays, or ABSENT, numbers, and None for outputs that are left out."""


class Match(NamedTuple):
    """The variant for calls of one kind, and what it needs.

    Arguments:
        variant: its number.
        device: the number of the device.
        outputs: dtype and shape of each output.
        demands: for each array with elements: its position, the bits that must be 0 in its address, and whether it is
            written.
        apart: the outputs that are passed, two by two, see :meth:`Matcher._pairs`.
    """

    variant: int
    device: int
    outputs: list[tuple[str, tuple[int, ...]]]
    demands: tuple[tuple[int, int, bool], ...]
    apart: tuple[tuple[int, int, bool], ...]

    def fits(self, passed: Passed) -> bool:
        """Whether this is also the match of a call of the same kind with other data."""
        for position, bits, written in self.demands:
            array = passed[position]
            if not array.data or array.data & bits or (written and array.read_only):
                return False
        return not any(passed[one].shares_memory(passed[other], strided) for one, other, strided in self.apart)


@dataclass(frozen=True)
class Found:
    """The variant for a call, and why it is that one.

    Arguments:
        index: its number.
        declared: the declared variant that the call fits, with the sizes of the call.
        is_first: whether dtypes, sizes and strides alone decide this; otherwise the alignment of the data decides, too.
        tuned: what the tuning tables say; None: there are none.
    """

    index: int
    declared: Chosen
    is_first: bool
    tuned: Tuned | None = None

    @property
    def outputs(self) -> list[tuple[str, tuple[int, ...]]]:
        """dtype and shape of each output, in order."""
        return self.declared.outputs()


class Shared:
    """What the objects of one kernel have in common: CUDA, its signatures, and its device code by slug."""

    KEPT = 512
    """How many kinds of calls are remembered."""

    def __init__(self, name: str, entry: Mapping[str, Any], module: Any, find_image: Callable[..., Any]) -> None:
        self.cuda = Cuda(name, module.TOOLKIT)
        self.signatures = Signatures(name, entry)
        archs: dict[str, tuple[str, ...]] = {}
        for variant in entry["variants"]:
            for unit in variant["units"]:
                if unit["target"] == "cuda":
                    archs[variant["slug"]] = (*archs.get(variant["slug"], ()), *unit["archs"])
        self.tables = tables_of(entry)
        self._tuned: dict[tuple[int, int], Tuned] = {}
        self._archs_of = [archs.get(variant["slug"], ()) for variant in entry["variants"]]
        # A variant without code for CUDA has no alignments, and is never chosen.
        self.alignments = [module.ALIGNMENTS.get(variant["slug"], ()) for variant in entry["variants"]]
        self.matches: dict[tuple[Any, ...], Match] = {}
        self.archs = tuple(dict.fromkeys(arch for listed in archs.values() for arch in listed))
        drivers = {"driver": module.DRIVER, "drivers": module.DRIVERS}
        self.codes = {
            slug: DeviceCode(self.cuda, slug, listed, module.FUNCTIONS[slug], find_image, **drivers)
            for slug, listed in archs.items()
        }

    def tuned(self, declared: int, device: Device) -> Tuned:
        """What the tables say about calls on a device that fit a declared variant; looked up once.

        Raises:
            RuntimeError: the variant cannot run on the device.
        """
        known = self._tuned.get((declared, device.number))
        if known is None:
            slug = self.signatures.variants[declared].slug
            arch, _ = self.codes[slug].choose(device)
            table = table_for(self.tables, "cuda", arch, device.name, device.count)
            found = table and table.with_code(lambda variant: arch in self._archs_of[variant])
            known = self._tuned[declared, device.number] = Tuned(declared, arch, device.name, device.count, found)
        return known

    def remember(self, key: tuple[Any, ...], match: Match) -> None:
        """Keep the match for calls of one kind."""
        if len(self.matches) >= self.KEPT:
            self.matches.clear()
        self.matches[key] = match


class Matcher:
    """Finds the variant for calls of a kernel, or of one variant of it.

    Arguments:
        entry: the kernel's part of the manifest.
        shared: what all objects of one kernel have in common.
        index: the number of the variant; None: all.
    """

    def __init__(self, entry: Mapping[str, Any], shared: Shared, index: int | None) -> None:
        self._entry = entry
        self.shared = shared
        self._index = index
        self._by_strides = any(variant.strides for variant in shared.signatures.variants)

    def matched(self, passed: Passed) -> Match:
        """The match for a call. If an earlier call was of the same kind, only the data is compared."""
        key = (self._index, *map(_outline, passed))
        known = self.shared.matches.get(key)
        if known is not None and known.fits(passed):
            return known
        number = self.device_number(passed)
        found = self.choose(passed)
        index = found.index
        self.check(index, passed, number)
        arrays = [(position, value) for position, value in enumerate(passed) if isinstance(value, Array)]
        # Other data must fit the declared variant, too: if it does not, another declared variant is chosen.
        both = zip(self.shared.alignments[index], self.shared.alignments[found.declared.index], strict=True)
        alignments = list(map(max, both))
        written = [item["written"] for item in self._entry["variants"][index]["arguments"]]
        demands = [(p, alignments[p] - 1, written[p]) for p, array in arrays if not array.is_empty]
        match = Match(index, number, found.outputs, tuple(demands), tuple(self._pairs(index, passed)))
        if found.is_first:  # otherwise the alignment of this data decided, and other data may differ
            self.shared.remember(key, match)
        return match

    def device_number(self, passed: Passed) -> int:
        """The number of the device that a call runs on: that of its first array. A ValueError if it has none."""
        for value in passed:
            if isinstance(value, Array):
                return value.device[1]
        self.shared.cuda.refuse(
            ValueError, "it has no array among its arguments, which would say on which device it runs"
        )

    def choose(self, passed: Passed) -> Found:
        """The variant for a call."""
        signatures = self.shared.signatures
        described = signatures.folded([described_as(value) for value in passed])
        first = declared = signatures.choose(described, self._index, "cuda")
        if self._index is not None:
            return Found(first.index, first, True)
        aligned = self._are_aligned(first.index, passed)
        if not aligned:
            # A later variant may need less alignment. If none fits, the error says what the first one needs.
            for index in signatures.compared("cuda"):
                if index > first.index and (later := self._fitting(index, described, passed)):
                    declared, aligned = later, True
                    break
        tuned = self._tuned(declared, passed) if aligned else None
        rules = tuned.rules() if tuned else None
        index = rules.choose(declared.symbols) if rules else declared.index
        fits = index == declared.index or self._fitting(index, described, passed) is not None
        return Found(index if fits else declared.index, declared, fits and declared is first, tuned)

    def _fitting(self, index: int, described: list[Described | None], passed: Passed) -> Chosen | None:
        """The choice of this variant for a call; None: the call does not fit it."""
        try:
            chosen = self.shared.signatures.choose(described, index, "cuda")
        except (TypeError, ValueError):
            return None
        fits = not self._by_strides or self.shared.signatures.variants[index].strides_fit(described)
        return chosen if fits and self._are_aligned(index, passed) else None

    def _tuned(self, declared: Chosen, passed: Passed) -> Tuned | None:
        """What the tuning tables say; None: there are none, or the variant cannot run, and then the call says so."""
        if not self.shared.tables:
            return None
        try:
            device = self.shared.cuda.device(self.device_number(passed))
            return self.shared.tuned(declared.index, device)
        except (RuntimeError, ValueError):
            return None

    def _are_aligned(self, index: int, passed: Passed) -> bool:
        alignments = self.shared.alignments[index]
        return all(_is_aligned(alignment, value) for alignment, value in zip(alignments, passed, strict=True))

    def check(self, index: int, passed: Passed, number: int) -> None:
        """Raise an error for a wrong layout, alignment or device of an array, or for one that must not be written."""
        first = next(
            item["name"]
            for item, value in zip(self._entry["variants"][index]["arguments"], passed, strict=True)
            if isinstance(value, Array)
        )
        for position, item in enumerate(self._entry["variants"][index]["arguments"]):
            array, name = passed[position], item["name"]
            if not isinstance(array, Array):
                continue
            if "strides" in item:
                self._check_strides(index, position, passed)
            elif not array.is_compact:
                self._mismatch(index, position, f"Mismatched {name}.strides", "be compact array", COMPACT)
            if array.device[0] == CUDA and array.device[1] != number:
                remedy = "\n  remedy: move all arrays to one device"
                self._mismatch(index, position, f"Mismatched {name}.device_id", f"match {first}.device_id", remedy)
            if item["written"] and array.read_only:
                is_of_jax = library_of(array.owner[0]) == IMMUTABLE if isinstance(array.owner, tuple) else False
                what = "an array of JAX, which is immutable" if is_of_jax else "a read-only array"
                refuse_writing(self.shared.cuda.kernel, name, what)
            if array.is_empty:
                continue
            if not array.data:
                what, remedy = f"{name} data pointer is NULL", "\n  remedy: pass an array that has data"
                self._mismatch(index, position, what, "non-NULL data pointer", remedy, to="")
            alignment = self.shared.alignments[index][position]
            if not _is_aligned(alignment, array):
                text = f"argument '{name}' has data that is not aligned to {alignment} bytes"
                self.shared.cuda.refuse(ValueError, f"{text}\n  remedy: pass a copy of it", MISALIGNED)
        self._check_outputs(index, passed)

    def _check_outputs(self, index: int, passed: Passed) -> None:
        """Raise an error for two outputs that are one memory, where one would overwrite the other."""
        items = self._entry["variants"][index]["arguments"]
        for one, other, strided in self._pairs(index, passed):
            if passed[one].shares_memory(passed[other], strided):
                text = f"outputs '{items[one]['name']}' and '{items[other]['name']}' overlap in memory"
                self.shared.cuda.refuse(ValueError, f"{text}\n  remedy: pass arrays with memory of their own")

    def _pairs(self, index: int, passed: Passed) -> list[tuple[int, int, bool]]:
        """The positions of each two outputs that are passed, and whether either may have gaps."""
        items = self._entry["variants"][index]["arguments"]
        outputs = [p for p, value in enumerate(passed) if items[p]["output"] and isinstance(value, Array)]
        pairs = itertools.combinations(outputs, 2)
        return [(one, other, "strides" in items[one] or "strides" in items[other]) for one, other in pairs]

    def _check_strides(self, index: int, position: int, passed: Passed) -> None:
        """Compare an array's strides with the declared ones. Any stride fits an axis of size 1, or an empty array."""
        signatures, item = self.shared.signatures, self._entry["variants"][index]["arguments"][position]
        call, variant = signatures.folded([described_as(value) for value in passed]), signatures.variants[index]
        array = passed[position].folded(len(item["shape"]) - 1) if item.get("folds") else passed[position]
        other = variant.strides.other(position, call, variant.strides.told(call, variant.solve(call)))
        if other is not None:
            axis, expected = other
            found = f"argument '{item['name']}' has the stride {stride_of(array, axis)} in dimension {axis}"
            text = f"{found}, expected {expected} (it has to be {variant.arguments[position].text}){DECLARED}"
            self.shared.cuda.refuse(ValueError, text)
        for axis, size in enumerate(array.shape if item["written"] and not array.is_empty else ()):
            if size > 1 and stride_of(array, axis) == 0:
                text = f"argument '{item['name']}' has the stride 0 in dimension {axis}, and the kernel writes it"
                self.shared.cuda.refuse(ValueError, text + UNIQUE)
        if array.span > variant.limit:
            remedy = "pass a copy that has no such gaps, or build the kernel with int64 sizes"
            told = (
                f"the {variant.limit} that int{32 if variant.limit < 1 << 32 else 64} sizes allow\n  remedy: {remedy}"
            )
            name = item["name"]
            self.shared.cuda.refuse(ValueError, f"argument '{name}' has elements that are further apart than {told}")

    def _mismatch(self, index: int, position: int, what: str, expected: str, remedy: str, to: str = "to ") -> NoReturn:
        """Raise an error in the words of TVM's host code."""
        call = self.shared.signatures.variants[index].call_text(self.shared.cuda.kernel)
        text = f"{what} on argument #{position} when calling:\n  `{call}`,\n  expected {to}{expected}{remedy}"
        self.shared.cuda.refuse(ValueError, text)


def described_as(value: Any) -> Described | None:
    """An argument as :class:`Signatures` compares it; None for an output that is left out."""
    if value is None:
        return None
    if value is ABSENT:
        return Described()
    if isinstance(value, Array):
        return Described(value.dtype, value.shape, device=value.place, strides=value.strides)
    return Described(value=value)


def _outline(value: Any) -> Any:
    """What tells kinds of calls apart: an array's dtype, sizes, strides and device; an integer; the type of others."""
    if type(value) is Array:
        return value[1:5]
    return (type(value), value) if isinstance(value, int) else type(value)


def _is_aligned(alignment: int, value: Any) -> bool:
    return not isinstance(value, Array) or value.is_empty or value.data % alignment == 0
