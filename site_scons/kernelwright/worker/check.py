"""Compares a built variant with its NumPy reference, at sizes that tiles and vectors do not divide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..core.dtype import Dtype, bytes_of, numpy_dtype
from ..core.errors import CheckError, DefinitionError, UnimplementedError, Where, shown
from ..core.signature import Argument
from ..define.configs import Variant
from ..define.kernel import Kernel
from ..define.space import callers_part
from ..processes.protocol import INTERPRETED, CheckRequest, CheckResult
from ..runtime.arch import suitable
from .check_inputs import Array, Call, Drawing, Values, accepted, line_of
from .check_sizes import MIDDLE, SIZES, constants_of
from .compare import TOLERANCES, Mismatch, compare, is_float
from .cuda_runtime import capability, load_cuda_runtime
from .strided import Strided, barely_aligned


class Check:
    """The comparison of one variant on one device.

    Arguments:
        request: what to check.
        kernel, variant: what the definition file declares.
        call: calls a function of the definition file.
        progress: called with a text that says what the check does next.
        interpreted: called with all arguments in place of the library's function.
    """

    def __init__(
        self,
        request: CheckRequest,
        kernel: Kernel,
        variant: Variant,
        call: Call,
        progress: Callable[[str], None],
        interpreted: Callable[..., None] | None = None,
    ) -> None:
        self.drawing = Drawing(request, kernel, variant, call, is_whole=interpreted is None)
        self._request = request
        self._kernel = kernel
        self._variant = variant
        self._call = call
        self._progress = progress
        self._interpreted = interpreted
        self._signature = request.signature
        self._checked: list[Mapping[str, int]] = []
        self._outputs = list(request.signature.returned)
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
        worst, sets, cases = 0.0, self.drawing.sizes.sets(), int(self._leaves_out)
        checked = self._checked
        for number, sizes in enumerate(sets):
            for layout in self.drawing.layouts(number if checked else None):
                inputs = self.drawing.laid_out(sizes, layout)
                if inputs is not None:
                    self._progress(f"running it with {_listed(sizes)}")
                    for values in self._with_none(inputs):
                        worst = max(worst, self._case(function, sizes, values, leave_out=False))
                        cases += 1
                    if not checked and self._leaves_out:
                        worst = max(worst, self._case(function, sizes, inputs, leave_out=True))
                    checked.append(sizes)
                    self.drawing.turn += 1
        if not checked:
            raise self._nothing_checked(sets)
        return CheckResult(cases, worst, tuple(checked), self._request.device)

    def _with_none(self, inputs: Values) -> Iterator[Values]:
        """Some inputs, and the same with None for each optional argument by itself, and for all of them."""
        yield inputs
        names = [each.name for each in self.drawing.inputs if each.given is None and inputs[each.name] is not None]
        several = [names] if len(names) > 1 else []
        yield from ({**inputs, **dict.fromkeys(chosen)} for chosen in [*([name] for name in names), *several])

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

    def _nothing_checked(self, sets: Sequence[Mapping[str, int]]) -> CheckError:
        if self._signature.requires and (not sets or self._kernel.inputs_function is None):
            message = f"no sizes are found that fulfil what it requires: {' and '.join(self._signature.requires)}"
            return CheckError(message, self._kernel.where, "mend requires")
        if self._kernel.inputs_function is None:
            return CheckError(f"none of the sizes {SIZES} gives all tensors a valid shape")
        where = line_of(self._kernel.inputs_function)
        return CheckError("the kernel's inputs function skips all sizes", where, "let it accept some of them")

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
        for argument in self.drawing.tensors:
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

    @property
    def callers_config(self) -> dict[str, Any]:
        """What callers see of the variant's config."""
        return callers_part(self._kernel.choices, self._variant.config)

    def in_reference(self, function: Callable[[], Any]) -> Any:
        """What a function returns that calls the reference."""
        return self._call("reference", function)

    def referenced(self, inputs: Values) -> Callable[[], Any]:
        """A call of the reference, which has to be there, with copies of the inputs: it may write into its own."""
        reference = self._kernel.reference_function
        assert reference is not None
        copies = [value.copy() if isinstance(value, np.ndarray) else value for value in inputs.values()]
        keywords = accepted(reference, self._variant.config, skip=len(copies))
        return lambda: reference(*copies, **keywords)

    def expected(self, inputs: Values) -> Values:
        """The reference's arrays by argument name."""
        reference = self._kernel.reference_function
        if reference is None:
            return {}
        result = self.in_reference(self.referenced(inputs))
        tensors = {argument.name for argument in self.drawing.tensors}
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
        for argument in self.drawing.inputs if leave_out else self._signature.arguments:
            value = self.drawing.garbage(argument, sizes) if argument.output else inputs[argument.name]
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
        return self.drawing.strided(value, argument, self._device)

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


def _listed(sizes: Mapping[str, int], inputs: Values | None = None) -> str:
    """The sizes of a call, and which of its inputs are None."""
    absent = [name for name, value in (inputs or {}).items() if value is None]
    return (
        ", ".join(f"{name}={value}" for name, value in [*sizes.items(), *dict.fromkeys(absent).items()])
        or "its fixed sizes"
    )
