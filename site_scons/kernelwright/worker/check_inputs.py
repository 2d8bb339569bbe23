"""The arrays and numbers that a check calls a kernel with, for given sizes, and the strides that they have."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray

from ..core.dtype import numpy_dtype
from ..core.errors import CheckError, Where, shown
from ..core.signature import Argument
from ..define.configs import Variant
from ..define.kernel import Kernel
from ..processes.protocol import INTERPRETED, CheckRequest
from ..runtime.interface import plain_number
from ..runtime.size import Requirement, Size
from .check_sizes import SizeSets
from .compare import is_float
from .strided import GAPS, LAYOUTS, REPEATED, Spread, Strided, Strides, strides_for, told_by_strides

Array = NDArray[Any]
Values = dict[str, Any]

Call = Callable[[str, Callable[[], Any]], Any]
"""Calls a function of the definition file; the first argument is the name of that function for errors."""


class Drawing:
    """Draws what a kernel is called with.

    Arguments:
        request: what is checked.
        kernel, variant: what the definition file declares.
        call: calls a function of the definition file.
        is_whole: whether callers' arrays are drawn, in which leading dimensions fold, and not what a function gets.

    ``turn`` is the number of sizes that were checked before: these take turns in how many dimensions fold.
    """

    def __init__(self, request: CheckRequest, kernel: Kernel, variant: Variant, call: Call, is_whole: bool) -> None:
        self._kernel = kernel
        self._signature = request.signature
        self._variant = variant
        self._call = call
        self._is_whole = is_whole
        self.turn = 0
        self.inputs = [argument for argument in request.signature.arguments if not argument.output]
        self.tensors = [argument for argument in request.signature.arguments if argument.is_tensor]
        self.sizes = SizeSets(self._signature, self.bytes_of, request.device == INTERPRETED)
        self._strides: Strides = {}
        seed = hashlib.sha256(f"{kernel.name}/{variant.slug}".encode()).digest()
        self._rng = np.random.default_rng(int.from_bytes(seed[:8], "little"))

    def values(self, sizes: Mapping[str, int]) -> Values | None:
        """An array or a number for each argument that is not an output; None: the check skips these sizes."""
        shapes = self.shapes(sizes)
        if shapes is None:
            return None
        given = self._given(sizes, shapes)
        if given is None:
            return None
        sizes = self.sizes.completed(sizes)
        values: Values = {}
        for argument in self.inputs:
            name, dtype = argument.name, numpy_dtype(argument.dtype)
            if name in given or argument.given is False:
                values[name] = given.get(name)
            elif argument.is_tensor:
                values[name] = random_array(self._rng, self._whole(argument, shapes[name]), dtype)
            else:
                drawn = plain_number(random_array(self._rng, (), dtype)[()])
                usual = drawn if argument.default is None or self._rng.integers(2) else argument.default
                values[name] = sizes.get(name, usual)
        return values

    def _given(self, sizes: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> Values | None:
        """What the kernel's inputs function returns, in the types of the arguments; None if it skips these sizes."""
        hook = self._kernel.inputs_function
        if hook is None:
            return {}
        keywords = accepted(hook, {**sizes, **self._variant.config})
        given = self._call("inputs", lambda: hook(self._rng, **keywords))
        if given is None:
            return None
        inputs = {argument.name: argument for argument in self.inputs}
        if not isinstance(given, Mapping) or not set(given) <= set(inputs):
            expected = f"expected a dict with some of the keys {sorted(inputs)}"
            raise CheckError(f"the inputs function returned {shown(given)}, {expected}", line_of(hook))
        result: Values = {}
        for name, value in given.items():
            argument = inputs[name]
            if argument.given is False or (argument.given is None and value is None):
                result[name] = None
            elif name in shapes:
                array, dtype = np.asarray(value), numpy_dtype(argument.dtype)
                is_view = bool(argument.strides) and not array.flags.c_contiguous
                array = Spread.of(array, dtype).view() if is_view else np.asarray(array, dtype, order="C")
                if array.shape != shapes[name]:
                    message = f"the inputs function gives {name} the shape {array.shape}, expected {shapes[name]}"
                    raise CheckError(message, line_of(hook))
                result[name] = array.reshape(self._whole(argument, array.shape))
            else:
                result[name] = plain_number(value)
        return result

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]] | None:
        """The shape of each tensor; None if one divides by zero or is negative for these sizes."""
        try:
            shapes = {argument.name: shape_of(argument, sizes) for argument in self.tensors}
        except ZeroDivisionError:
            return None
        return None if any(min(shape, default=0) < 0 for shape in shapes.values()) else shapes

    def bytes_of(self, sizes: Mapping[str, int]) -> int | None:
        """The bytes of all tensors; None: there are none for these sizes."""
        shapes = self.shapes(sizes)
        if shapes is None:
            return None
        return sum(math.prod(shapes[each.name]) * int(numpy_dtype(each.dtype).itemsize) for each in self.tensors)

    def layouts(self, number: int | None) -> Sequence[str]:
        """The layouts of strides that sizes are checked with: all for the first sizes, and then one after the other.

        Arguments:
            number: that of the sizes; None: none have been checked so far.
        """
        layouts = [one for one in LAYOUTS if one != REPEATED or self._kernel.inputs_function is None]
        if not self._signature.stride_symbols:
            return LAYOUTS[:1]
        return layouts if number is None else [layouts[number % len(layouts)]]

    def laid_out(self, sizes: Mapping[str, int], layout: str) -> Values | None:
        """The inputs, for arrays with certain strides, which calls get from then on; None: these sizes are skipped."""
        inputs, shapes = self.values(sizes), self.shapes(sizes)
        if inputs is None:
            return None
        told = {**sizes, **{name: int(value) for name, value in inputs.items() if isinstance(value, int)}}
        if shapes is None or not any(argument.strides for argument in self.tensors):
            return inputs if self._fulfils(told) else None
        for gap in GAPS:
            strides = strides_for(self.tensors, shapes, told, self._signature.multiples, layout, gap)
            if strides is not None and self._fulfils({**told_by_strides(self._signature, shapes, strides), **told}):
                break
        else:
            return None
        self._strides = strides
        for argument in self.inputs:
            if argument.strides and inputs[argument.name] is not None:  # elements that share a place have one value
                inputs[argument.name] = self.strided(inputs[argument.name], argument, tvm.cpu()).given
        return inputs

    def _fulfils(self, told: Mapping[str, int]) -> bool:
        """Whether a call is one that the variant is for, by what the definition requires."""
        return all(Requirement(text).holds(told) for text in self._signature.requires)

    def strided(self, value: Array, argument: Argument, device: Any) -> Strided:
        """An array with the strides of the current sizes, of which the first one is that of rows that fold."""
        first, *others = self._strides[argument.name]
        leading = value.shape[: value.ndim - len(others)]
        rows = [first * math.prod(leading[axis + 1 :]) for axis in range(len(leading))]
        return Strided(value, argument, device, [*rows, *others])

    def _whole(self, argument: Argument, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that callers pass: leading dimensions that fold are from none to three, in turn.

        An interpreter gets what a function gets.
        """
        if not argument.folds or not self._is_whole:
            return shape
        rows, factor = shape[0], next((factor for factor in (2, 3, 5, 7) if shape[0] % factor == 0), 1)
        shapes = [(factor, rows // factor), (rows,), (1, factor, rows // factor)]
        return (*(() if rows == 1 else shapes[self.turn % 3]), *shape[1:])

    def garbage(self, argument: Argument, sizes: Mapping[str, int]) -> Array:
        """An output before the call, full of values that show where the kernel writes nothing."""
        dtype = numpy_dtype(argument.dtype)
        fill: Any = np.nan if is_float(dtype) else 1 if dtype == np.bool_ else 113
        return np.full(self._whole(argument, shape_of(argument, sizes)), fill, dtype)


def line_of(function: Any) -> Where:
    """The place of one of a kernel's functions, for an error about what it returns."""
    code = getattr(function, "__code__", None)
    return Where(location=f"{code.co_filename}:{code.co_firstlineno}" if code else None)


def shape_of(argument: Argument, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor argument, for values of the size variables."""
    return tuple(size if isinstance(size, int) else Size(size).value(sizes) for size in argument.shape)


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Random values that every type of the kind can hold: standard normal numbers, or integers from -8 (or 0) to 7."""
    if dtype == np.bool_:
        return np.asarray(rng.integers(0, 2, shape)).astype(dtype)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(0 if dtype.kind == "u" else -8, 8, shape)).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def accepted(function: Callable[..., Any], values: Mapping[str, Any], skip: int = 0) -> Values:
    """The values that a function has a parameter for; its first ``skip`` parameters do not count."""
    parameters = list(inspect.signature(function).parameters.values())
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return dict(values)
    names = {p.name for p in parameters[skip:]}
    return {name: value for name, value in values.items() if name in names}
