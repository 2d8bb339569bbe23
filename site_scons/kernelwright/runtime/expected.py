"""What a variant of a kernel expects of each argument, by its manifest entry, and what a call passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .dtype import integer_range, number_kind, passed_as
from .interface import is_symbolic, plain_number
from .size import INT32_LIMIT, Requirement, Size, are_int32, argument_text, line_text, lines_in
from .strides import DeclaredStrides, stride_of


@dataclass(frozen=True)
class Described:
    """One argument of a call.

    Arguments:
        dtype: of a tensor, as TVM writes it, such as ``float16``; None for a scalar.
        shape: of a tensor: integers, or symbolic ones; None for a scalar.
        value: of a scalar.
        device: of a tensor, for messages, such as ``cuda:0``; None where it is not known.
        strides: of a tensor, in elements; None: it is compact, or they are not known.
        whole: of a tensor whose leading dimensions have been folded, the shape that was passed.
    """

    dtype: str | None = None
    shape: tuple[Any, ...] | None = None
    value: Any = None
    device: str | None = None
    strides: Sequence[Any] | None = None
    whole: tuple[Any, ...] | None = None


class Expected:
    """One argument as one variant expects it."""

    def __init__(self, item: Mapping[str, Any], multiples: Mapping[str, int]) -> None:
        self.name: str = item["name"]
        self.dtype: str = item["dtype"]
        self.output = bool(item["output"])
        self.kind = "tensor" if item["kind"] == "tensor" else number_kind(self.dtype)
        sizes = item.get("shape") or () if self.kind == "tensor" else ()
        self.shape = tuple(Size(size) if isinstance(size, str) else int(size) for size in sizes)
        self._steps = [multiples.get(size, 1) for size in sizes]
        self.strides: Sequence[int | str] = item.get("strides", ())
        self.given: bool | None = item.get("given", True)
        self.folds: bool = item.get("folds", False)
        shown = sizes, multiples, self.strides, self.given
        self.text = argument_text(self.kind, self.dtype, *shown, folds=self.folds)
        self.host_text = passed_as(self.dtype)
        if self.kind == "tensor":
            self.host_text = f"Tensor([{', '.join(map(str, sizes))}], {self.dtype})"

    @property
    def sizes_told(self) -> list[int | str]:
        """The sizes that tell their names; none of what a call need not pass."""
        is_firm = self.given and not self.output
        return [size.text if isinstance(size, Size) else size for size in self.shape] if is_firm else []

    def matches(self, described: Described, sizes: bool) -> bool:
        """Whether a tensor has the dtype and rank (and, with ``sizes``, the constant sizes), or a number the kind."""
        if self.kind != "tensor":
            return described.shape is None and self._takes(described.value)
        if described.shape is None or self.given is False:
            return described.shape is None and not self.given
        shape = described.shape
        if described.dtype != self.dtype or len(shape) != len(self.shape):
            return False
        return not sizes or all(map(_size_fits, self.shape, self._steps, shape))

    def _takes(self, value: Any) -> bool:
        """Whether a plain number is of the kind. An int passes as a bool, a bool as an int, and both as a float."""
        if self.kind == "pointer":
            return value is None
        if isinstance(value, int) or (is_symbolic(value) and hasattr(value, "__index__")):
            return True
        return self.kind == "float" and (isinstance(value, float) or is_symbolic(value))


def _size_fits(size: Size | int, step: int, found: Any) -> bool:
    if isinstance(size, int):
        return bool(found == size)
    return step == 1 or not bool(found % step)


class ExpectedVariant:
    """What one variant expects."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.slug: str = entry["slug"]
        self.config: Mapping[str, Any] = entry.get("config", {})
        self.targets = tuple(dict.fromkeys(unit["target"] for unit in entry.get("units", ())))
        self.tabled = tuple(entry.get("tabled", ()))  # targets for which it only runs where a tuning table says so
        self.arguments = [Expected(item, entry.get("multiples", {})) for item in entry["arguments"]]
        self.strides = DeclaredStrides(entry)
        integers = [argument.name for argument in self.arguments if argument.kind == "int"]
        self._lines = lines_in((argument.sizes_told for argument in self.arguments), integers)
        self._multiples: Mapping[str, int] = entry.get("multiples", {})
        self._requires = [Requirement(text) for text in entry.get("requires", ())]
        self._limited: Mapping[str, str] | None = entry.get("limited")
        has_int32 = are_int32(entry["symbols"].values(), entry.get("stride_symbols", {}).values(), self._limited)
        self.limit = INT32_LIMIT if has_int32 else 2**63 - 1

    def matches(self, call: Sequence[Described | None], sizes: bool) -> bool:
        """Whether a call fits; see :meth:`Expected.matches`."""
        pairs = zip(self.arguments, call, strict=True)
        fits = all(described is None or argument.matches(described, sizes) for argument, described in pairs)
        return fits and not (sizes and self.off_line(call))

    def off_line(self, call: Sequence[Described | None]) -> str:
        """The first size that does not tell its name, of a call that matches apart from sizes; empty: there is none."""
        for name, (position, axis, told) in self._lines.items():
            array, argument, step = call[position], self.arguments[position], self._multiples.get(name, 1)
            size = array.shape[axis] if array is not None and array.shape is not None else None
            if size is not None and not told.fits(size, step):
                text = line_text(str(argument.sizes_told[axis]), name, step)
                return f"argument '{argument.name}' has the size {size} in dimension {axis}, which is no {text}"
        return ""

    def strides_fit(self, call: Sequence[Described | None]) -> bool:
        """Whether the strides of a call that matches fit."""
        return self.strides.fit(call, self.solve(call))

    def unfulfilled(self, call: Sequence[Described | None]) -> str:
        """What a call does not fulfil of what the variant requires, and what it has; empty: it fulfils everything, or
        does not even have the dtypes and ranks."""
        if not self._requires or not self.matches(call, sizes=False):
            return ""
        symbols = self.strides.told(call, self.solve(call))
        failed = (one for one in self._requires if not one.holds(symbols))
        return next((one.unfulfilled_text(symbols) for one in failed), "")

    def not_fitting(self, call: Sequence[Described | None]) -> str:
        """The first size or stride that does not fit the type in which the function gets it; empty: all do."""
        told = self.strides.told(call, self.solve(call)) if self._limited else {}
        for name, dtype in (self._limited or {}).items():
            low, high = integer_range(dtype)
            if isinstance(told.get(name), int) and not low <= told[name] <= high:
                place = self._place(name, told[name], call)
                return f"{place}, which does not fit {dtype}, as which the function gets it"
        return ""

    def _place(self, name: str, value: int, call: Sequence[Described | None]) -> str:
        """Which argument has a size or a stride of that name."""
        for argument, array in zip(self.arguments, call, strict=True):
            if array is None or array.shape is None:
                continue
            for axis in range(len(argument.shape)):
                if getattr(argument.shape[axis], "text", "") == name:
                    return f"argument '{argument.name}' has the size {value} in dimension {axis}"
                if name in argument.strides[axis : axis + 1] and stride_of(array, axis) == value:
                    return f"argument '{argument.name}' has the stride {value} in dimension {axis}"
        return f"{name} is {value}"

    def solve(self, call: Sequence[Described | None]) -> dict[str, Any]:
        """The value of each symbol: the number of that name, or the first size that is the symbol; inputs go first."""
        symbols: dict[str, Any] = {}
        pairs = [(a, d) for a, d in zip(self.arguments, call, strict=True) if d is not None]
        for argument, described in pairs:
            if argument.kind == "int":
                symbols.setdefault(argument.name, described.value)
        for outputs in (False, True):
            for argument, described in (pair for pair in pairs if pair[0].output == outputs):
                for size, found in zip(argument.shape, described.shape, strict=True) if described.shape else ():
                    if isinstance(size, Size) and size.text.isidentifier():
                        symbols.setdefault(size.text, found)
            for name, (position, axis, told) in self._lines.items():
                if (array := call[position]) is not None and array.shape is not None:
                    symbols.setdefault(name, told.solved(array.shape[axis]))
        return symbols

    def call_text(self, kernel: str) -> str:
        """The signature as TVM's host code writes it in messages."""
        return f"{kernel}({', '.join(f'{a.name}: {a.host_text}' for a in self.arguments)})"

    def source_text(self, size: Size) -> str:
        """What a size has to match: the place that gives its symbol, or else its expression."""
        if size.text.isidentifier():
            for argument in sorted(self.arguments, key=lambda argument: argument.output):
                for axis, other in enumerate(argument.shape):
                    if isinstance(other, Size) and other.text == size.text:
                        return f"match {argument.name}.shape[{axis}]"
        return f"be {size.text}"


def with_plain_number(described: Described | None) -> Described | None:
    """An argument of a call, with a number of other libraries as a plain one."""
    if described is None or described.shape is not None:
        return described
    return replace(described, value=plain_number(described.value))


def shape_text(shape: Sequence[Any]) -> str:
    """A shape, for messages."""
    return f"[{', '.join(map(str, shape))}]"


def passed_text(described: Described) -> str:
    """An argument of a call, for messages."""
    if described.shape is None:
        return value_text(described.value)
    place = f" on {described.device}" if described.device else ""
    return f"{described.dtype}{shape_text(described.shape if described.whole is None else described.whole)}{place}"


def value_text(value: Any) -> str:
    """A value that is not a tensor, in the words of Python."""
    if value is None:
        return "None"
    if isinstance(value, str):
        return "a str"
    if isinstance(value, bool):
        return f"the bool {value}"
    if isinstance(value, int) or is_symbolic(value):
        return f"the int {value}"
    if isinstance(value, float):
        return f"the float {value:g}"
    return "a Python object that is not a tensor"
