"""Compares the arguments of a call with what a kernel's manifest entry expects, without the kernel's library.

A tracer (``torch.compile``, ``jax.jit``) knows dtypes and sizes, but has no data. For a traced call this module does
what the library's dispatcher does for a real one: it chooses the variant and computes the outputs' shapes. The messages
are the same. Sizes may be symbolic integers of PyTorch; then an equality that a kernel needs becomes a guard.

Alignment of data is not compared here: the library does that, or ``cuda_core_match.py``. Strides only decide between
variants that fit otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

from .dtype import integer_range
from .expected import Described, Expected, ExpectedVariant, passed_text, shape_text, value_text, with_plain_number
from .interface import TENSOR
from .loader import gaps_text
from .passed import optional_in, passed_in
from .refusal import AMBIGUOUS, BY_KERNEL, NO_TARGET, NO_VARIANT, refuse
from .rivals import Pair, Relations
from .size import INT32_LIMIT, Size, value_or_none
from .strides import fold

SPLIT = "\n  remedy: split the call, or build the kernel with int64 sizes"
WIDER = '\n  remedy: pass a smaller array, or give the function a parameter of 64 bits: Size(..., dtype="int64")'
FIT = "\n  remedy: pass arrays whose sizes fit each other"
CONTIGUOUS = (
    "\n  remedy: pass a contiguous copy, such as numpy.ascontiguousarray(x) or x.contiguous(), and copy back what the "
    "kernel writes"
)

Symbols = Mapping[str, Any]

Leading = Mapping[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]]
"""The size that leading dimensions fold into -> the first array, an input if possible, its shape, and these."""


@dataclass(frozen=True)
class Words:
    """The words of the error for a call that no variant fits.

    Arguments:
        problem: what is wrong.
        remedy: what to do about it.
        several: the remedy if the arguments fit several variants that differ in meaning; empty: :func:`names_one`.
    """

    problem: str = "no built variant accepts these arguments"
    remedy: str = "convert the arguments, or add a config for them to the definition"
    several: str = ""


def names_one(kernel: str) -> str:
    """The remedy if arrays fit several variants that differ in meaning."""
    return f"name one: {kernel}.variant(...) takes the values of its config"


def outputs_of(signature: Mapping[str, Any]) -> list[str]:
    """The names of the outputs of a parsed signature.json, in the order in which a call returns new ones."""
    in_order = [argument["name"] for argument in signature["arguments"] if argument["output"]]
    return list(signature.get("outputs", in_order))


class Signatures:
    """What the variants of a kernel expect.

    Arguments:
        kernel: the kernel's name.
        entry: its part of the manifest.
        words: the words of the error if no variant fits a call; None: those of a package's library.

    Raises:
        ValueError: a size in the entry is not an expression of integers, symbols, ``+ - * // %``, ``min`` and ``max``.
    """

    def __init__(self, kernel: str, entry: Mapping[str, Any], words: Words | None = None) -> None:
        self.kernel = kernel
        self._words = words or Words()
        self.variants = [ExpectedVariant(variant) for variant in entry["variants"]]
        arguments = self.variants[0].arguments
        self.names = tuple(argument.name for argument in arguments)
        self.outputs = tuple(outputs_of({**entry["variants"][0], **entry}))
        self._arguments = arguments
        self._items: Sequence[Mapping[str, Any]] = entry["variants"][0]["arguments"]
        self.optional = optional_in(entry["variants"])
        self._declared: int = entry.get("declared", len(self.variants))
        self._meaning: Sequence[str] = entry.get("meaning", ())
        folded = (a for variant in reversed(self.variants) for a in variant.arguments if a.folds)
        self.folds = {a.name: (a.shape[0].text, len(a.shape) - 1) for a in folded if isinstance(a.shape[0], Size)}
        self._by_strides = len(self.variants) > 1 and any(variant.strides for variant in self.variants)
        self._gaps = gaps_text(entry.get("missing", []))

    def choose(self, passed: Sequence[Described | None], index: int | None = None, target: str | None = None) -> Chosen:
        """The first declared variant that the arguments fit; if the strides fit none, the first one without regard to
        them. Tuning tables are not asked.

        Numbers are converted by :func:`plain_number`.

        Arguments:
            passed: all arguments in order, with None for outputs that are left out; or just the inputs.
            index: the only variant that may be chosen; None: any.
            target: only variants that are built for this target, ``llvm`` or ``cuda``; None: any.

        Raises:
            TypeError: the number of arguments, a kind, a dtype or a rank does not fit.
            ValueError: sizes do not fit, or a number is out of the range of its type; or the arguments fit several
                variants which differ in meaning.
        """
        call = self.folded(self._bound(passed))
        numbers = self._numbers(index, target)
        number = self._first((n for n in numbers if self._matches(n, call, index is None)), call)
        if number is None:
            self._raise_no_match(call, numbers)
        variant = self.variants[number]
        others = self._relations.rivals[number] if index is None else ()
        if rivals := [n for n in others if n in numbers and self._is_rival(n, call)]:
            self._raise_several(call, [number, *rivals])
        self._check_ranges(variant, call)
        chosen = Chosen(self, number, variant.solve(call), self._leading(call))
        self._check_sizes(chosen, call)
        return chosen

    def _first(self, fitting: Iterator[int], call: Sequence[Described | None]) -> int | None:
        """Of the variants that a call fits without regard to strides, the first one whose strides it fits, or else the
        first one; None: there are none."""
        first = next(fitting, None)
        if first is None or not self._by_strides or self.variants[first].strides_fit(call):
            return first
        return next((number for number in fitting if self.variants[number].strides_fit(call)), first)

    def _is_rival(self, number: int, call: Sequence[Described | None]) -> bool:
        """Whether a call fits another variant, too, whatever the alignment of its data is."""
        fits = self._matches(number, call, True)
        return fits and (not self._by_strides or self.variants[number].strides_fit(call))

    def _matches(self, number: int, call: Sequence[Described | None], among_others: bool) -> bool:
        """Whether a call fits a variant. If the variant competes with one of other sizes, all sizes are compared."""
        variant = self.variants[number]
        if not variant.matches(call, sizes=True) or variant.unfulfilled(call):
            return False
        if not (among_others and number in self._relations.competing):
            return True
        symbols, pairs = variant.solve(call), zip(variant.arguments, call, strict=True)
        both = [(a.shape, d.shape) for a, d in pairs if d is not None and d.shape is not None]
        shapes = [pair for expected, found in both for pair in zip(expected, found, strict=True)]
        return all(_fits(size, symbols, found) for size, found in shapes if isinstance(size, Size))

    @cached_property
    def _relations(self) -> Relations:
        return Relations(
            _pairs(self.variants[: self._declared]), [variant.config for variant in self.variants], self._meaning
        )

    def compared(self, target: str | None) -> list[int]:
        """The numbers of the variants that a call is compared with; target: see :meth:`choose`."""
        declared = self.variants[: self._declared]
        return [n for n, v in enumerate(declared) if target is None or (target in v.targets and target not in v.tabled)]

    def _numbers(self, index: int | None, target: str | None) -> list[int]:
        if index is None:
            found = self.compared(target)
        else:
            found = [index] if target is None or target in self.variants[index].targets else []
        if not found:
            subject = "it" if index is None else self.variants[index].slug
            device = "cpu" if target == "llvm" else target
            built = ", ".join(dict.fromkeys(t for variant in self.variants for t in variant.targets))
            text = f"it cannot run on {device}: {subject} was built for {built} only"
            remedy = "use a device that it was built for, or add an arch of this one"
            self.refuse(ValueError, f"{text}\n  remedy: {remedy}", NO_TARGET)
        return found

    def _bound(self, passed: Sequence[Described | None]) -> list[Described | None]:
        """The arguments by position, with None for outputs that are left out."""
        left_out = [argument.output for argument in self._arguments]
        call = [with_plain_number(described) for described in passed]
        if len(call) != len(self.names) and passed_in(self._items, self.optional, len(call)) is not None:
            given = iter(call)
            call = [None if output else next(given, Described()) for output in left_out]
        for position, (name, described) in enumerate(zip(self.names, call, strict=False)):
            if described == Described() and self.optional.get(name) is not None:
                call[position] = Described(value=self.optional[name])
        missing = [described is None for described in call]
        if len(call) != len(self.names) or (any(missing) and missing != left_out):
            self._raise_count(len(passed) - sum(described is None for described in passed))
        for argument, described in zip(self._arguments, call, strict=True):
            if argument.kind != "tensor" or described is None or described.shape is not None:
                continue
            if described.value is not None or argument.name not in self.optional:
                refusal = BY_KERNEL if described.value is not None else NO_VARIANT
                text = f"argument '{argument.name}' is {value_text(described.value)}, {TENSOR}"
                self.refuse(TypeError, text, refusal)
        return call

    def folded(self, call: Sequence[Described | None]) -> list[Described | None]:
        """A call in which leading dimensions are one; those of a call for which that was done are compared again."""
        if not self.folds:
            return list(call)
        leading, result = self._leading(call), list(call)
        for position, name, array, whole in _wholes(self, call):
            symbol, trailing = self.folds[name]
            other, its_shape, its_leading = leading[symbol]
            if whole[: len(whole) - trailing] != its_leading:
                both = f"'{other}' of shape {shape_text(its_shape)} and '{name}' of shape {shape_text(whole)}"
                text = f"arguments {both} differ in their leading dimensions, which fold into {symbol}"
                self.refuse(ValueError, f"{text}\n  remedy: pass arrays with equal ones")
            if array.whole is None:
                view = fold(whole, array.strides, trailing)
                if view is None:
                    text = (
                        f"argument '{name}' has leading dimensions that are not compact, and do not fold into {symbol}"
                    )
                    self.refuse(ValueError, text + CONTIGUOUS)
                result[position] = replace(array, shape=view[0], strides=view[1], whole=whole)
        return result

    def _leading(self, call: Sequence[Described | None]) -> Leading:
        """The leading dimensions of a call, which they are compared with."""
        leading: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]] = {}
        wholes = _wholes(self, call) if self.folds else ()
        for _, name, _, whole in wholes:
            symbol, trailing = self.folds[name]
            if len(whole) < trailing:
                text = f"argument '{name}' has {len(whole)} dimensions, expected {trailing} or more: leading ones fold "
                remedy = "pass an array with the dimensions that the definition declares"
                self.refuse(TypeError, f"{text}into {symbol}\n  remedy: {remedy}")
        for _, name, _, whole in sorted(wholes, key=lambda one: self._arguments[one[0]].output):
            symbol, trailing = self.folds[name]
            leading.setdefault(symbol, (name, whole, whole[: len(whole) - trailing]))
        return leading

    def _check_ranges(self, variant: ExpectedVariant, call: Sequence[Described | None]) -> None:
        """Raise an error for an integer or a size out of the kernel's range. Symbolic sizes are not checked."""
        for argument, described in zip(variant.arguments, call, strict=True):
            if described is None:
                continue
            if described.shape is not None:
                self._check_tensor(argument, described.shape, variant.limit)
            elif argument.kind == "int" and isinstance(described.value, int):
                low, high = integer_range(argument.dtype)
                if not low <= described.value <= high:
                    problem = f"is {described.value}, which does not fit {argument.dtype}"
                    self.refuse(ValueError, f"argument '{argument.name}' {problem}")
        if text := variant.not_fitting(call):
            self.refuse(ValueError, text + WIDER)

    def _check_tensor(self, argument: Expected, shape: tuple[Any, ...], limit: int) -> None:
        sizes = [size for size in shape if isinstance(size, int)]
        allowed = f"the {limit} that int{_bits(limit)} sizes allow"
        for size in sizes:
            if size < 0:
                self.refuse(ValueError, f"argument '{argument.name}' has a dimension of {size}, expected one from 0")
            if size > limit:
                self.refuse(ValueError, f"argument '{argument.name}' has a dimension of {size}, beyond {allowed}")
        if math.prod(sizes) > limit and len(sizes) == len(shape):
            text = f"argument '{argument.name}' of shape {shape_text(shape)} has more elements than {allowed}"
            self.refuse(ValueError, text + SPLIT)

    def _check_sizes(self, chosen: Chosen, call: Sequence[Described | None]) -> None:
        """Raise an error if a size of a tensor is not the one that its expression gives for the symbols."""
        variant = self.variants[chosen.index]
        for position, (argument, described) in enumerate(zip(variant.arguments, call, strict=True)):
            if described is None or described.shape is None:
                continue
            for axis, (size, found) in enumerate(zip(argument.shape, described.shape, strict=True)):
                if isinstance(size, Size) and not _fits(size, chosen.symbols, found):
                    self.refuse(
                        ValueError,
                        f"Mismatched {argument.name}.shape[{axis}] on argument #{position} when calling:\n"
                        f"  `{variant.call_text(self.kernel)}`,\n"
                        f"  expected to {variant.source_text(size)}{FIT}",
                    )

    def _raise_count(self, count: int) -> NoReturn:
        outline = ", ".join(f"[{a.name}]" if a.output else a.name for a in self._arguments)
        every, inputs = len(self.names), len(self.names) - len(self.outputs)
        least = next(least for least in range(inputs + 1) if passed_in(self._items, self.optional, least) is not None)
        fewer = f", or {least} to {inputs}" if least < inputs else f", or {inputs}" if self.outputs else ""
        without = " with the outputs left out" if self.outputs else ""
        text = f"takes {every} arguments ({outline}){fewer}{without}{';' if fewer else ','} {count} were given"
        # Another variant may take None for what is left out.
        self.refuse(TypeError, text, NO_VARIANT if count < inputs else BY_KERNEL)

    def _raise_no_match(self, call: Sequence[Described | None], numbers: Sequence[int]) -> NoReturn:
        """Raise a ValueError if only constant sizes are wrong, otherwise a TypeError."""
        text = f"{self._words.problem}{self.passed_text(call)}"
        text += _expected_text([self.variants[number] for number in numbers], call)
        only_sizes = any(self.variants[number].matches(call, sizes=False) for number in numbers)
        text += f"\n  remedy: {self._words.remedy}"
        if None in call and passed_in(self._items, self.optional, len(call) - len(self.outputs) - 1) is not None:
            text += "; if inputs are left out, pass outputs by name"
        self.refuse(ValueError if only_sizes else TypeError, text, NO_VARIANT)

    def _raise_several(self, call: Sequence[Described | None], numbers: Sequence[int]) -> NoReturn:
        text = f"these arguments fit several variants, which differ in meaning{self.passed_text(call)}"
        text += _expected_text([self.variants[number] for number in numbers], call)
        self.refuse(ValueError, f"{text}\n  remedy: {self._words.several or names_one(self.kernel)}", AMBIGUOUS)

    def passed_text(self, call: Sequence[Described | None]) -> str:
        """What a call passes, as a line of a message."""
        given = [(name, described) for name, described in zip(self.names, call, strict=True) if described is not None]
        return "\n  passed: " + ", ".join(f"{name} = {passed_text(described)}" for name, described in given)

    def real(self, name: str, value: float) -> float:
        """A number as a float.

        Raises:
            ValueError: it is too large for a float.
        """
        try:
            return float(value)
        except OverflowError:
            self.refuse(ValueError, f"argument '{name}' is an int that is too large for a float")

    def refuse(self, kind: type[Exception], text: str, refusal: str = BY_KERNEL) -> NoReturn:
        """Raise an error that names the kernel, and tells programs why the call is refused."""
        refuse(self.kernel, kind, text + self._gaps, refusal)


def _wholes(signatures: Signatures, call: Sequence[Described | None]) -> list[tuple[int, str, Described, Any]]:
    """The arrays that fold, with their positions, names and shapes, in order."""
    names = enumerate(zip(signatures.names, call, strict=True))
    folding = [(at, n, d) for at, (n, d) in names if n in signatures.folds and d]
    wholes = [(at, n, d, d.shape if d.whole is None else d.whole) for at, n, d in folding]
    return [one for one in wholes if one[-1] is not None]


def _pairs(declared: Sequence[ExpectedVariant]) -> Iterator[Pair]:
    """Each two variants that may have code for the same device, with their numbers."""
    for (n, one), (m, other) in itertools.combinations(enumerate(declared), 2):
        if one.targets == other.targets or {*one.targets} & {*other.targets}:
            yield n, one.arguments, m, other.arguments


def _expected_text(variants: Sequence[ExpectedVariant], call: Sequence[Described | None]) -> str:
    """What variants expect, as lines of a message."""
    text = ""
    for variant in variants:
        expected = zip(variant.arguments, call, strict=True)
        listed = ", ".join(f"{a.name} = {a.text}" for a, described in expected if described is not None)
        text += f"\n  {variant.slug} expects: {listed}"
        if variant.matches(call, sizes=False) and (off := variant.off_line(call)):
            text += f"\n  {variant.slug}: {off}"
        if unfulfilled := variant.unfulfilled(call):
            text += f"\n  {variant.slug} requires {unfulfilled}"
    return text


@dataclass(frozen=True)
class Chosen:
    """The variant that a call gets.

    Arguments:
        signatures: what the kernel's variants expect.
        index: its number.
        symbols: the value of each symbol that the arguments give.
        leading: the leading dimensions of the call.
    """

    signatures: Signatures
    index: int
    symbols: dict[str, Any]
    leading: Leading

    def outputs(self) -> list[tuple[str, tuple[Any, ...]]]:
        """dtype and shape of each output, in the order in which new ones are returned.

        Raises:
            ValueError: a size cannot be computed, is negative or is too large.
        """
        variant = self.signatures.variants[self.index]
        by_name = {argument.name: argument for argument in variant.arguments}
        made = [by_name[name] for name in self.signatures.outputs]
        return [(argument.dtype, self._shape(variant, argument)) for argument in made]

    def _shape(self, variant: ExpectedVariant, argument: Expected) -> tuple[Any, ...]:
        shape = []
        for axis, size in enumerate(argument.shape):
            value = value_or_none(size, self.symbols) if isinstance(size, Size) else size
            if value is None:
                problem = "cannot be computed: it overflows int64, or divides by 0"
                self.signatures.refuse(ValueError, f"dimension {axis} of output '{argument.name}' {problem}")
            shape.append(value)
        known = [size for size in shape if isinstance(size, int)]
        limit = variant.limit if variant.limit == INT32_LIMIT else variant.limit // 128
        too_many = len(known) == len(shape) and math.prod(known) > limit
        if any(size < 0 or size > limit for size in known) or too_many:
            expected = f"expected sizes from 0, with a product up to the {limit} that int{_bits(limit)} sizes allow"
            text = f"output '{argument.name}' would have the shape {shape_text(shape)}, {expected}"
            self.signatures.refuse(ValueError, text)
        if argument.folds:
            shape[:1] = self.leading[self.signatures.folds[argument.name][0]][2]
        return tuple(shape)


def _fits(size: Size, symbols: Symbols, found: Any) -> bool:
    """Whether a dimension has this size; true if a symbol of the size has no value yet."""
    return not all(name in symbols for name in size.names) or bool(value_or_none(size, symbols) == found)


def _bits(limit: int) -> int:
    return 32 if limit <= INT32_LIMIT else 64
