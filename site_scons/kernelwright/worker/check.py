"""Compares a built variant with its NumPy reference, at sizes that tiles and vectors do not divide."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray

from ..core.dtype import Dtype, bytes_of, numpy_dtype
from ..core.errors import CheckError, DefinitionError, UnimplementedError, Where, shown
from ..core.signature import Argument
from ..define.configs import Variant
from ..define.kernel import Kernel
from ..processes.protocol import INTERPRETED, CheckRequest, CheckResult
from ..runtime.arch import suitable
from ..runtime.interface import plain_number
from ..runtime.size import Requirement, Size
from .check_sizes import MIDDLE, SIZES, SizeSets, constants_of
from .compare import TOLERANCES, Mismatch, compare, is_float
from .cuda_runtime import capability, load_cuda_runtime
from .strided import GAPS, LAYOUTS, REPEATED, Spread, Strided, Strides, barely_aligned, strides_for, told_by_strides

Array = NDArray[Any]
Values = dict[str, Any]


def line_of(function: Any) -> Where:
    """The place of one of a kernel's functions, for an error about what it returns."""
    code = getattr(function, "__code__", None)
    return Where(location=f"{code.co_filename}:{code.co_firstlineno}" if code else None)


class Check:
    """The comparison of one variant on one device.

    Arguments:
        request: what to check.
        kernel, variant: what the definition file declares.
        call: calls a function of the definition file; its first argument is the name of that function for errors.
        progress: called with a text that says what the check does next.
        interpreted: called with all arguments in place of the library's function.
    """

    def __init__(
        self,
        request: CheckRequest,
        kernel: Kernel,
        variant: Variant,
        call: Callable[[str, Callable[[], Any]], Any],
        progress: Callable[[str], None],
        interpreted: Callable[..., None] | None = None,
    ) -> None:
        self._request = request
        self._kernel = kernel
        self._variant = variant
        self._call = call
        self._progress = progress
        self._interpreted = interpreted
        self._signature = request.signature
        self._checked: list[Mapping[str, int]] = []
        self._outputs = list(request.signature.returned)
        self._inputs = [argument for argument in request.signature.arguments if not argument.output]
        self._tensors = [argument for argument in request.signature.arguments if argument.is_tensor]
        self._strides: Strides = {}
        seed = hashlib.sha256(f"{kernel.name}/{variant.slug}".encode()).digest()
        self._rng = np.random.default_rng(int.from_bytes(seed[:8], "little"))
        kind, _, index = ("cpu" if request.device == INTERPRETED else request.device).partition(":")
        self._device = tvm.device(kind, int(index or 0))

    def run(self) -> CheckResult:
        """Check all sizes.

        Raises:
            CheckError: the kernel has no reference, or does not agree with it.
        """
        if self._kernel.reference_function is None:
            raise CheckError("the kernel has no reference", remedy=f"add one with @{self._kernel.name}.reference")
        if self._request.device.startswith("cuda"):
            load_cuda_runtime()
        if not self._device.exist:
            raise CheckError(f"this machine has no device {self._request.device}")
        is_for_some = self._request.archs and self._interpreted is None
        if is_for_some and not suitable(self._request.archs.split(","), capability(self._device)):
            return CheckResult(0, 0.0, (), self._request.device)
        function = self.function()
        worst, sets, cases = 0.0, self._size_sets.sets(), int(self._leaves_out)
        checked = self._checked
        for number, sizes in enumerate(sets):
            for layout in self._layouts(number if checked else None):
                inputs = self._laid_out(sizes, layout)
                if inputs is not None:
                    self._progress(f"running it with {_listed(sizes)}")
                    for values in self._with_none(inputs):
                        worst = max(worst, self._case(function, sizes, values, leave_out=False))
                        cases += 1
                    if not checked and self._leaves_out:
                        worst = max(worst, self._case(function, sizes, inputs, leave_out=True))
                    checked.append(sizes)
        if not checked:
            raise self._nothing_checked(sets)
        return CheckResult(cases, worst, tuple(checked), self._request.device)

    def _with_none(self, inputs: Values) -> Iterator[Values]:
        """Some inputs, and the same with None for each optional argument by itself, and for all of them."""
        yield inputs
        names = [each.name for each in self._inputs if each.given is None and inputs[each.name] is not None]
        several = [names] if len(names) > 1 else []
        yield from ({**inputs, **dict.fromkeys(chosen)} for chosen in [*([name] for name in names), *several])

    def _layouts(self, number: int | None) -> Sequence[str]:
        """The layouts of strides that sizes are checked with: all for the first sizes, and then one after the other.

        Arguments:
            number: that of the sizes; None: none have been checked so far.
        """
        layouts = [one for one in LAYOUTS if one != REPEATED or self._kernel.inputs_function is None]
        if not self._signature.stride_symbols:
            return LAYOUTS[:1]
        return layouts if number is None else [layouts[number % len(layouts)]]

    def _laid_out(self, sizes: Mapping[str, int], layout: str) -> Values | None:
        """The inputs, for arrays with certain strides, which calls get from then on; None: these sizes are skipped."""
        inputs, shapes = self.inputs(sizes), self.shapes(sizes)
        if inputs is None:
            return None
        told = {**sizes, **{name: int(value) for name, value in inputs.items() if isinstance(value, int)}}
        if shapes is None or not any(argument.strides for argument in self._tensors):
            return inputs if self._fulfils(told) else None
        for gap in GAPS:
            strides = strides_for(self._tensors, shapes, told, self._signature.multiples, layout, gap)
            if strides is not None and self._fulfils({**told_by_strides(self._signature, shapes, strides), **told}):
                break
        else:
            return None
        self._strides = strides
        for argument in self._inputs:
            if argument.strides and inputs[argument.name] is not None:  # elements that share a place have one value
                inputs[argument.name] = self._strided(inputs[argument.name], argument, tvm.cpu()).given
        return inputs

    def _fulfils(self, told: Mapping[str, int]) -> bool:
        """Whether a call is one that the variant is for, by what the definition requires."""
        return all(Requirement(text).holds(told) for text in self._signature.requires)

    @property
    def _size_sets(self) -> SizeSets:
        return SizeSets(self._signature, self.bytes_of, self._request.device == INTERPRETED)

    @property
    def _leaves_out(self) -> bool:
        """Whether there is a call without the outputs."""
        return bool(self._outputs) and self._interpreted is None

    def function(self) -> Any:
        """The function that runs the variant: that of the library, or ``interpreted``."""
        if self._interpreted is not None:
            return self._interpreted
        name = f"{self._kernel.name}__{self._request.variant_index}"
        try:
            return tvm_ffi.load_module(self._request.library)[name]
        except Exception as error:  # dlopen and the lookup raise errors of several types
            raise CheckError(f"cannot load {name} from the built library: {error}") from error

    def inputs(self, sizes: Mapping[str, int]) -> Values | None:
        """An array or a number for each argument that is not an output; None: the check skips these sizes."""
        shapes = self.shapes(sizes)
        if shapes is None:
            return None
        given = self._given(sizes, shapes)
        if given is None:
            return None
        sizes = self._size_sets.completed(sizes)
        values: Values = {}
        for argument in self._inputs:
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
        keywords = _accepted(hook, {**sizes, **self._variant.config})
        given = self._call("inputs", lambda: hook(self._rng, **keywords))
        if given is None:
            return None
        inputs = {argument.name: argument for argument in self._inputs}
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
            shapes = {argument.name: shape_of(argument, sizes) for argument in self._tensors}
        except ZeroDivisionError:
            return None
        return None if any(min(shape, default=0) < 0 for shape in shapes.values()) else shapes

    def _nothing_checked(self, sets: Sequence[Mapping[str, int]]) -> CheckError:
        if self._signature.requires and (not sets or self._kernel.inputs_function is None):
            message = f"no sizes are found that fulfil what it requires: {' and '.join(self._signature.requires)}"
            return CheckError(message, self._kernel.where, "mend requires")
        if self._kernel.inputs_function is None:
            return CheckError(f"none of the sizes {SIZES} gives all tensors a valid shape")
        where = line_of(self._kernel.inputs_function)
        return CheckError("the kernel's inputs function skips all sizes", where, "let it accept some of them")

    def bytes_of(self, sizes: Mapping[str, int]) -> int | None:
        """The bytes of all tensors; None: there are none for these sizes."""
        shapes = self.shapes(sizes)
        if shapes is None:
            return None
        return sum(math.prod(shapes[each.name]) * int(numpy_dtype(each.dtype).itemsize) for each in self._tensors)

    def _case(self, function: Any, sizes: Mapping[str, int], inputs: Values, leave_out: bool) -> float:
        """Call the kernel and the reference with the same inputs and return the largest error."""
        try:
            expected = self.expected(inputs)
        except DefinitionError as error:
            advice = "have the reference take empty arrays, as with np.max(..., initial=-np.inf); "
            raise self._failed_at(error, sizes, inputs, advice) from error
        return self.compared(expected, self._got(function, sizes, inputs, leave_out), sizes, inputs)

    def compared(self, reference: Values, got: Values, sizes: Mapping[str, int], inputs: Values) -> float:
        """The largest error of the tensors after a call, by argument name.

        Arguments:
            reference: the expected tensors; one that it does not mention must not have changed.

        Raises:
            CheckError: one is too large.
        """
        expected = dict(reference)
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                expected.setdefault(name, value)
        worst = 0.0
        for argument in self._tensors:
            name = argument.name
            if name not in got:
                continue  # it is None
            worst = max(worst, self._compared(argument, expected[name], got[name], sizes, inputs))
        return worst

    def _failed_at(
        self, error: DefinitionError, sizes: Mapping[str, int], inputs: Values, advice: str = ""
    ) -> DefinitionError:
        """The error of a function of the definition, with the sizes of the call, and a remedy if one of them is 0."""
        never = f"if the kernel is never called with these sizes, have @{self._kernel.name}.inputs return None for them"
        remedy = error.remedy or (advice + never if 0 in sizes.values() else None)
        return type(error)(f"{error.message} (at {_listed(sizes, inputs)})", error.where, remedy, error.detail)

    def expected(self, inputs: Values) -> Values:
        """The reference's arrays by argument name."""
        reference = self._kernel.reference_function
        copies = [value.copy() if isinstance(value, np.ndarray) else value for value in inputs.values()]
        if reference is None:
            return {}
        keywords = _accepted(reference, self._variant.config, skip=len(copies))
        result = self._call("reference", lambda: reference(*copies, **keywords))
        tensors = {argument.name for argument in self._tensors}
        if isinstance(result, Mapping):
            if not set(self._outputs) <= set(result) <= tensors:
                message = f"the reference returned arrays for {shown(list(result))}, expected {self._outputs}"
                raise CheckError(message, line_of(reference))
            passed = {name: value for name, value in result.items() if inputs.get(name, value) is not None}
            return {name: np.asarray(value) for name, value in passed.items()}
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if not self._outputs:
            remedy = "return {argument name: expected array}, or name the outputs with @kernel(outputs=[...])"
            message = "the reference of a kernel without outputs must return a dict"
            raise CheckError(message, line_of(reference), remedy)
        if len(results) != len(self._outputs) or any(one is None for one in results):
            with_none = " with None among them" if any(one is None for one in results) else ""
            returned = "None" if result is None else f"{len(results)} arrays{with_none}"
            message = f"the reference returned {returned}, expected one for each of {self._outputs}"
            raise CheckError(message, line_of(reference), "have it return the arrays")
        return dict(zip(self._outputs, map(np.asarray, results), strict=True))

    def _got(self, function: Any, sizes: Mapping[str, int], inputs: Values, leave_out: bool) -> dict[str, Array]:
        """The kernel's tensors after a call, by argument name."""
        arguments: list[Any] = []
        tensors: dict[str, Any] = {}
        for argument in self._inputs if leave_out else self._signature.arguments:
            value = self.garbage(argument, sizes) if argument.output else inputs[argument.name]
            if isinstance(value, np.ndarray):
                tensors[argument.name] = value = self._placed(value, argument)
            arguments.append(value.tensor if isinstance(value, Strided) else value)
        try:
            returned = function(*arguments)
            if leave_out:
                several = list(returned) if len(self._outputs) > 1 else [returned]
                tensors |= dict(zip(self._outputs, several, strict=True))
            return {
                name: tensor.content(name) if isinstance(tensor, Strided) else from_device(tensor)
                for name, tensor in tensors.items()
            }
        except (CheckError, UnimplementedError):
            raise  # the kernel wrote beside an array, or is not checked
        except DefinitionError as error:
            raise self._failed_at(error, sizes, inputs) from error
        except Exception as error:  # the library raises errors of any type
            how = "without its outputs" if leave_out else "with all arguments"
            raise CheckError(
                f"calling the kernel {how} at {_listed(sizes, inputs)} raised {type(error).__name__}: {error}"
            ) from error

    def _placed(self, value: Array, argument: Argument) -> Any:
        """An array where a kernel gets it."""
        if not argument.strides:
            return to_device(value, argument, self._device)
        return self._strided(value, argument, self._device)

    def _strided(self, value: Array, argument: Argument, device: Any) -> Strided:
        """An array with the strides of the current sizes, of which the first one is that of rows that fold."""
        first, *others = self._strides[argument.name]
        leading = value.shape[: value.ndim - len(others)]
        rows = [first * math.prod(leading[axis + 1 :]) for axis in range(len(leading))]
        return Strided(value, argument, device, [*rows, *others])

    def _whole(self, argument: Argument, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that callers pass: leading dimensions that fold are from none to three, in turn.

        An interpreter gets what a function gets.
        """
        if not argument.folds or self._interpreted is not None:
            return shape
        rows, factor = shape[0], next((factor for factor in (2, 3, 5, 7) if shape[0] % factor == 0), 1)
        shapes = [(factor, rows // factor), (rows,), (1, factor, rows // factor)]
        return (*(() if rows == 1 else shapes[len(self._checked) % 3]), *shape[1:])

    def garbage(self, argument: Argument, sizes: Mapping[str, int]) -> Array:
        """An output before the call, full of values that show where the kernel writes nothing."""
        dtype = numpy_dtype(argument.dtype)
        fill: Any = np.nan if is_float(dtype) else 1 if dtype == np.bool_ else 113
        return np.full(self._whole(argument, shape_of(argument, sizes)), fill, dtype)

    def _compared(
        self, argument: Argument, expected: Array, got: Array, sizes: Mapping[str, int], inputs: Values
    ) -> float:
        name = argument.name
        if expected.shape != got.shape:
            message = (
                f"{name} has the shape {got.shape} at {_listed(sizes, inputs)}, the reference's is {expected.shape}"
            )
            raise CheckError(message, line_of(self._kernel.reference_function))
        untouched = expected is inputs.get(name)
        tolerance = 0.0 if untouched else self.tolerance(argument.dtype)
        error, mismatch = compare(expected, got, tolerance)
        if mismatch is not None:
            raise self._failure(name, _listed(sizes, inputs), mismatch, tolerance, untouched, self._limit_text(sizes))
        return error

    def tolerance(self, dtype: str) -> float:
        """Largest accepted error of a tensor of this dtype, as ``compare`` defines it."""
        if self._request.tolerance is not None and is_float(numpy_dtype(dtype)):
            return self._request.tolerance
        return TOLERANCES.get(dtype, 0.0)

    def _limit_text(self, sizes: Mapping[str, int]) -> str:
        """What else may help if no size beyond a constant of the code has passed."""
        limits: dict[int, str] = {}
        for symbol in self._signature.symbols:
            passed = max((each[symbol] for each in self._checked), default=MIDDLE)
            for name, value in constants_of(self._signature).items():
                if passed <= value < sizes[symbol]:
                    limits.setdefault(value, f'requires=["{symbol} <= {name}"]')
        most = max(limits, default=0)
        return f"; if a call must have no more than {most}, declare that: {limits[most]}" if limits else ""

    def _failure(
        self, name: str, sizes: str, mismatch: Mismatch, tolerance: float, untouched: bool, limit: str
    ) -> CheckError:
        index = ", ".join(map(str, mismatch.index))
        what = "changed, and the reference does not say so" if untouched else "differs from the reference"
        remedy = "mend the definition or its reference; if only rounding differs, set tolerance in @kernel"
        remedy += limit
        return CheckError(
            f"{name} {what} at {sizes} on {self._request.device}: {name}[{index}] is {mismatch.got}, "
            f"expected {mismatch.expected}; {mismatch.count} elements are wrong",
            Where(variant=self._variant.slug),
            "have the reference return it, or do not write it" if untouched else remedy,
            detail=f"largest error {mismatch.error:.3g}, accepted {tolerance:.3g} (relative to the expected values)",
        )


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


def to_device(array: Array, argument: Argument, device: Any) -> Any:
    """A new compact tensor on a device with the content of an array, for an argument.

    On the CPU it is aligned as the argument has to be and no better.
    """
    on_cpu = device.dlpack_device_type() == tvm_ffi.DLDeviceType.kDLCPU
    if on_cpu and array.dtype.isbuiltin == 1:
        return barely_aligned(array, argument.alignment or array.itemsize)
    shape = array.shape
    tensor = _aligned_tensor(shape, argument) if on_cpu else tvm.runtime.empty(shape, argument.dtype, device)
    if array.size:
        tensor.copyfrom(array)
    return tensor


def _aligned_tensor(shape: tuple[int, ...], argument: Argument) -> Any:
    """A new tensor on the CPU, of a dtype that NumPy does not have; TVM's own would be aligned to 64 bytes."""
    dtype = Dtype.parse(argument.dtype, Where(stage="check"))
    memory = np.zeros(bytes_of(math.prod(shape) * dtype.bits), np.uint8)
    tensor: Any = tvm_ffi.from_dlpack(barely_aligned(memory, argument.alignment or dtype.alignment))
    return tensor._create_view(shape, argument.dtype)


def from_device(tensor: Any) -> Array:
    """The content of a tensor, after the work that was submitted before it."""
    return tensor if isinstance(tensor, np.ndarray) else np.asarray(tensor.numpy())


def _accepted(function: Callable[..., Any], values: Mapping[str, Any], skip: int = 0) -> Values:
    """The values that a function has a parameter for; its first ``skip`` parameters do not count."""
    parameters = list(inspect.signature(function).parameters.values())
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return dict(values)
    names = {p.name for p in parameters[skip:]}
    return {name: value for name, value in values.items() if name in names}


def _listed(sizes: Mapping[str, int], inputs: Values | None = None) -> str:
    """The sizes of a call, and which of its inputs are None."""
    absent = [name for name, value in (inputs or {}).items() if value is None]
    return (
        ", ".join(f"{name}={value}" for name, value in [*sizes.items(), *dict.fromkeys(absent).items()])
        or "its fixed sizes"
    )
