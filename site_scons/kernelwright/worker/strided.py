"""Arrays with strides of their own for checks: the strides to try, and memory that shows what a kernel wrote.

Each array lies in a memory with gaps, and with room around it, whose content must not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray

from ..core.dtype import Dtype
from ..core.errors import CheckError, Where
from ..core.exported import Exported
from ..core.signature import Argument, Signature
from ..define.divisible import rounded_up
from ..runtime.size import Size
from ..runtime.strides import told_stride

Array = NDArray[Any]
Strides = dict[str, tuple[int, ...]]

REPEATED = "repeated"

LAYOUTS = ("gaps", "transposed", "reversed", REPEATED)
"""How free strides are chosen: with gaps between rows, with the first dimension as the densest, backwards, or with one
stride of an input as 0, so that its elements repeat."""

GAPS = (3, *range(8))
"""Elements that a gap has: the first of these with which a call is what the definition requires."""

GUARD = 64
"""Elements before the first one and behind the last one that are watched, too."""

ROUNDS = 16
"""How often strides are computed anew because another argument needs longer ones of the same name."""


def strides_for(
    arguments: Sequence[Argument],
    shapes: Mapping[str, Sequence[int]],
    sizes: Mapping[str, int],
    multiples: Mapping[str, int],
    layout: str,
    gap: int = GAPS[0],
) -> Strides | None:
    """Strides in elements for the arguments that declare some; None: an argument that is written would overlap itself.

    Arguments:
        arguments: the tensors.
        shapes: argument -> its shape.
        sizes: the values of sizes and integers.
        multiples: symbol -> what its values are multiples of.
        layout: one of LAYOUTS.
        gap: elements that a gap has.
    """
    strided = [argument for argument in arguments if argument.strides]
    told: dict[str, int] = {}
    for _ in range(ROUNDS):
        before = dict(told)
        for argument in strided:
            _widen(argument, shapes[argument.name], sizes, told, layout == "transposed", gap)
            told |= {name: rounded_up(stride, multiples.get(name, 1)) for name, stride in told.items()}
        if told == before:
            break
    written = {stride for argument in strided if argument.written for stride in argument.strides}
    changed = [name for name in told if layout == "reversed" or (layout == REPEATED and name not in written)]
    told |= {name: 0 if layout == REPEATED else -told[name] for name in changed[:1]}
    made = {argument.name: _values(argument, {**told, **sizes}) for argument in strided}
    is_apart = all(_is_apart(shapes[each.name], made[each.name]) for each in strided if each.written)
    return made if is_apart else None


class Spread(NamedTuple):
    """A view of an array, and the memory that it is of: from which element on, and with which steps, in elements."""

    memory: Array
    first: int
    steps: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: Array, dtype: np.dtype[Any]) -> Spread:
        """Elements of a dtype that lie as those of an array do, which has some."""
        steps = tuple(step // array.itemsize for step in array.strides)
        ends = [(size - 1) * step for size, step in zip(array.shape, steps, strict=True)]
        first = -sum(min(end, 0) for end in ends)
        spread = cls(np.zeros(first + 1 + sum(max(end, 0) for end in ends), dtype), first, steps, array.shape)
        spread.view()[...] = array
        return spread

    def view(self, memory: Array | None = None) -> Array:
        """The elements in the memory, or in another one that is as large."""
        of = self.memory if memory is None else memory
        steps = [step * of.itemsize for step in self.steps]
        return np.lib.stride_tricks.as_strided(of[self.first :], self.shape, steps)


class Layout(NamedTuple):
    """An array of a call that is not made yet."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None


def told_by_strides(signature: Signature, shapes: Mapping[str, tuple[int, ...]], strides: Strides) -> dict[str, int]:
    """What a call with such arrays tells of the symbols that only strides have."""
    arrays = [Layout(shapes[a.name], strides.get(a.name)) if a.is_tensor else None for a in signature.arguments]
    return {
        symbol: int(told_stride([(arrays[at], axis) for at, axis in places], signature.multiples.get(symbol, 1)))
        for symbol, places in signature.stride_places().items()
    }


def _widen(
    argument: Argument,
    shape: Sequence[int],
    sizes: Mapping[str, int],
    told: dict[str, int],
    forward: bool,
    gap: int,
) -> None:
    """Make the strides of an argument that are free so long that elements lie apart, from the densest dimension on."""
    axes = range(len(shape))
    free = [axis for axis in axes if argument.strides[axis] not in sizes and str(argument.strides[axis]).isidentifier()]
    for axis in free:
        told.setdefault(str(argument.strides[axis]), 1)
    span = 1
    for axis in [*(axis for axis in axes if axis not in free), *(free if forward else reversed(free))]:
        if axis in free:
            name = str(argument.strides[axis])
            told[name] = max(told[name], span + gap)
        span += max(shape[axis] - 1, 0) * abs(_values(argument, {**told, **sizes})[axis])


def _values(argument: Argument, values: Mapping[str, int]) -> tuple[int, ...]:
    """The strides of an argument; those whose symbols are not known yet are 0."""
    return tuple(
        stride if isinstance(stride, int) else Size(stride).value(values) if _is_known(stride, values) else 0
        for stride in argument.strides
    )


def _is_known(stride: str, values: Mapping[str, int]) -> bool:
    return all(name in values for name in Size(stride).names)


def _is_apart(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether no two elements have the same place, by a rule that is right for all strides that are chosen here."""
    span = 1
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride < span:
            return False
        span += (size - 1) * stride
    return True


class Strided:
    """A tensor with strides of its own.

    Arguments:
        array: its content.
        argument: what it is for. On the CPU it is aligned as that has to be, and no better.
        device: where it is.
        strides: in elements.

    Attributes:
        tensor: what a kernel is called with; this object has to live as long.
    """

    def __init__(self, array: Array, argument: Argument, device: Any, strides: Sequence[int]) -> None:
        self._array, self._strides = array, strides
        item = array.itemsize
        alignment = argument.alignment or item
        # Elements lie before the first one if strides are negative; all of that is in whole steps of alignments.
        ends = [max(size - 1, 0) * stride for size, stride in zip(array.shape, strides, strict=True)]
        self._first = rounded_up(GUARD - sum(min(end, 0) for end in ends), max(64, 2 * alignment) // item)
        count = self._first + 1 + sum(max(end, 0) for end in ends) + GUARD
        self._before = np.full(count * item, 0xFF, np.uint8).view(f"uint{8 * item}")
        self._view(self._before)[...] = array.view(self._before.dtype)
        on_cpu = device.dlpack_device_type() == tvm_ffi.DLDeviceType.kDLCPU
        copy: Any = barely_aligned(self._before, alignment) if on_cpu else None
        self._memory: Any = tvm_ffi.from_dlpack(copy) if on_cpu else _copied(self._before, device)
        self._exported = exported(self._memory, self._first * item, argument.dtype, array.shape, strides)
        self.tensor = tvm_ffi.from_dlpack(self._exported)

    def _view(self, memory: Array) -> Array:
        steps = [stride * memory.itemsize for stride in self._strides]
        return np.lib.stride_tricks.as_strided(memory[self._first :], self._array.shape, steps)

    @property
    def given(self) -> Array:
        """The content that it was given, as far as its elements have places of their own."""
        return self._content(self._before)

    def content(self, name: str) -> Array:
        """What it has now.

        Arguments:
            name: that of the argument.

        Raises:
            CheckError: something beside its elements has changed.
        """
        memory = np.asarray(self._memory.numpy())
        beside = np.ones(memory.shape, np.bool_)
        self._view(beside)[...] = False
        changed = np.count_nonzero((memory != self._before) & beside)
        if changed:
            message = f"{changed} elements that are none of {name} have changed, whose strides are {[*self._strides]}"
            raise CheckError(message, remedy="have the definition stay within the sizes and strides of the argument")
        return self._content(memory)

    def _content(self, memory: Array) -> Array:
        content: Array = self._view(memory).copy().view(self._array.dtype)
        return content


def exported(memory: Any, offset: int, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> Exported:
    """A view of a tensor, which has to live as long; its first element is so many bytes behind that of the tensor."""
    kind, (device, number) = Dtype.parse(dtype, Where(stage="check")), memory.__dlpack_device__()
    of = (int(device), int(number)), (kind.code, kind.bits, kind.lanes)
    return Exported(memory.data_ptr() + offset, *of, shape, strides)


def _copied(memory: Array, device: Any) -> Any:
    tensor = tvm.runtime.empty(memory.shape, str(memory.dtype), device)
    tensor.copyfrom(memory)
    return tensor


def barely_aligned(array: Array, alignment: int) -> Array:
    """A copy whose address is a multiple of ``alignment`` bytes and of nothing more, as a slice of an array may be."""
    more = max(64, 2 * alignment)
    storage = np.empty(array.nbytes + more + alignment, np.uint8)
    start = -storage.ctypes.data % more + alignment
    copy = storage[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
