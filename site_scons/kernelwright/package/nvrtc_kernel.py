"""The kernels of this package as Python functions that launch device code through cuda.core.

A call is matched with the variants here; a generated module has, for each variant, the function that launches.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from .interface import Interface
from .nvrtc_arrays import CUDA, IMMUTABLE, LEGACY_STREAM, MANAGED, Array, UnreadableArrayError, library_of, read_array
from .nvrtc_device import Call, Cuda, Device, DeviceCode, LaunchError
from .signature import Described, Signatures

COMPACT = "\n  remedy: pass a contiguous copy, such as cupy.ascontiguousarray(x) or x.contiguous()"

Passed = list["Array | Any"]
"""The arguments of a call by position: arrays, numbers, and None for outputs that are left out."""


class NvrtcKernel(Interface):
    """A kernel, or one variant of it.

    Call it with all its arguments to have the outputs written into those you give, or leave the outputs out to get
    new ones. Arguments are positional: arrays on a CUDA device of any library with DLPack or
    ``__cuda_array_interface__``, and numbers. New outputs come from PyTorch or CuPy if an argument does, otherwise they
    are ``cuda.core.utils.StridedMemoryView`` objects, which other libraries view through DLPack.

    Arguments:
        name: the kernel's name.
        entry: its part of the manifest.
        module: the generated module.
        shared: what all objects of one kernel have in common.
        index: the number of the variant; None: all.
    """

    def __init__(self, name: str, entry: dict[str, Any], module: Any, shared: _Shared, index: int | None) -> None:
        self.name = name
        self._entry = entry
        self._module = module
        self._shared = shared
        self._index = index
        self.__doc__ = entry["doc"]

    def __call__(self, *arguments: Any, stream: Any = None) -> Any:
        """Run the kernel; see :class:`NvrtcKernel` for the arguments.

        Arguments:
            stream: where it runs: an object with ``__cuda_stream__``, a stream of PyTorch or CuPy, or the integer
                handle of one; None: the current stream of PyTorch or CuPy if an argument is from there, otherwise the
                default stream.

        Raises:
            TypeError: the number of arguments, a kind, a dtype or a rank does not fit, or an array cannot be passed.
            ValueError: sizes, strides, alignment, a range or a device do not fit, or an array that the kernel writes
                is read-only.
            RuntimeError: the device, or its driver, cannot run the kernel.
        """
        shared = self._shared
        library = _library(arguments)
        handle = self._handle_of(stream) if stream is not None else _current_stream(library, arguments)
        passed = self._read(arguments, handle or LEGACY_STREAM)
        match = self._matched(passed)
        device = shared.cuda.device(match.device)
        with shared.cuda.current(device):
            made = self._allocate(match, passed, library, device, handle)
            self._run(match.variant, passed, device, handle)
        if not made:
            return None
        return made[0] if len(made) == 1 else tuple(made)

    # ---- arguments

    def _read(self, arguments: Sequence[Any], stream: int) -> Passed:
        """The arguments by position, with arrays read."""
        items = self._entry["variants"][0]["arguments"]
        complete = len(arguments) == len(items)
        given = [item for item in items if complete or not item["output"]]
        if len(given) != len(arguments):
            self._shared.signatures.choose([Described(value=value) for value in arguments])  # raises
        passed: Passed = []
        values = iter(arguments)
        for item in items:
            if not complete and item["output"]:
                passed.append(None)
            elif item["kind"] == "tensor":
                passed.append(self._read_array(item["name"], next(values), stream))
            else:
                passed.append(next(values))
        return passed

    def _read_array(self, name: str, value: Any, stream: int) -> Array:
        try:
            array = read_array(value, stream)
        except UnreadableArrayError as error:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            remedy = "pass an array of PyTorch, JAX, CuPy or another library, which lies on one CUDA device"
            text = f"argument {name!r} is a {kind} that cannot be passed: {error}\n  remedy: {remedy}"
            self._refuse(TypeError, text)
        if array is None:
            what = "expected a tensor: an array of NumPy, PyTorch, JAX, CuPy or another library with DLPack"
            self._refuse(TypeError, f"argument '{name}' is {_value_text(value)}, {what}")
        if array.device[0] not in (CUDA, MANAGED):
            remedy = "move it to a CUDA device, or use a backend that was built for the CPU"
            built = ", ".join(self._shared.archs)
            text = f"argument '{name}' is on {array.place}, and it was built for cuda ({built}) only"
            self._refuse(ValueError, f"{text}\n  remedy: {remedy}")
        return array

    def _matched(self, passed: Passed) -> _Match:
        """The variant for a call, once everything has been compared; of a call like an earlier one only the data is."""
        key = (self._index, *map(_outline, passed))
        known = self._shared.matches.get(key)
        if known is not None and known.fits(passed):
            return known
        number = self._device_number(passed)
        index, outputs, is_first = self._choose(passed)
        self._check(index, passed, number)
        arrays = [(position, value) for position, value in enumerate(passed) if isinstance(value, Array)]
        alignments = self._shared.alignments[index]
        written = [item["written"] for item in self._entry["variants"][index]["arguments"]]
        demands = [(p, alignments[p] - 1, written[p]) for p, array in arrays if not array.is_empty]
        match = _Match(index, number, outputs, tuple(demands))
        if is_first:  # another choice was made for data that happened to lie as it did
            self._shared.remember(key, match)
        return match

    def _device_number(self, passed: Passed) -> int:
        for value in passed:
            if isinstance(value, Array):
                return value.device[1]
        self._refuse(ValueError, "it has no array among its arguments, which would say on which device it runs")

    def _choose(self, passed: Passed) -> tuple[int, list[tuple[str, tuple[int, ...]]], bool]:
        """The variant for a call, dtypes and shapes of all its outputs, and whether it is the first by these alone."""
        described = [_described(value) for value in passed]
        signatures = self._shared.signatures
        first = chosen = signatures.choose(described, self._index, "cuda")
        if not self._are_aligned(chosen.index, passed) and self._index is None:
            # A later variant may ask for less; if none does, the first says what it asks for.
            for index in range(first.index + 1, len(self._entry["variants"])):
                try:
                    later = signatures.choose(described, index, "cuda")
                except (TypeError, ValueError):
                    continue
                if self._are_aligned(index, passed):
                    chosen = later
                    break
        return chosen.index, chosen.outputs(), chosen is first

    def _are_aligned(self, index: int, passed: Passed) -> bool:
        alignments = self._shared.alignments[index]
        return all(_is_aligned(alignment, value) for alignment, value in zip(alignments, passed, strict=True))

    def _check(self, index: int, passed: Passed, number: int) -> None:
        """Refuse what only the data tells: layout, alignment, device, and memory that may not be written."""
        first = next(
            item["name"]
            for item, value in zip(self._entry["variants"][index]["arguments"], passed, strict=True)
            if isinstance(value, Array)
        )
        for position, item in enumerate(self._entry["variants"][index]["arguments"]):
            array, name = passed[position], item["name"]
            if not isinstance(array, Array):
                continue
            if not array.is_compact:
                self._mismatch(index, position, f"Mismatched {name}.strides", "be compact array", COMPACT)
            if array.device[0] == CUDA and array.device[1] != number:
                remedy = "\n  remedy: move all arrays to one device"
                self._mismatch(index, position, f"Mismatched {name}.device_id", f"match {first}.device_id", remedy)
            if item["written"] and array.read_only:
                is_of_jax = library_of(array.owner[0]) == IMMUTABLE if isinstance(array.owner, tuple) else False
                what = "an array of JAX, which is immutable" if is_of_jax else "a read-only array"
                remedy = "pass an array that can be written, or leave outputs out of the call to get new ones"
                self._refuse(ValueError, f"argument {name!r} is {what}, and the kernel writes it\n  remedy: {remedy}")
            if array.is_empty:
                continue
            if not array.data:
                what, remedy = f"{name} data pointer is NULL", "\n  remedy: pass an array that has data"
                self._mismatch(index, position, what, "non-NULL data pointer", remedy, to="")
            alignment = self._shared.alignments[index][position]
            if not _is_aligned(alignment, array):
                text = f"argument '{name}' has data that is not aligned to {alignment} bytes"
                self._refuse(ValueError, f"{text}\n  remedy: pass a copy of it")

    def _mismatch(self, index: int, position: int, what: str, expected: str, remedy: str, to: str = "to ") -> NoReturn:
        """Raise an error in the words of TVM's host code."""
        call = self._shared.signatures.variants[index].call_text(self.name)
        text = f"{what} on argument #{position} when calling:\n  `{call}`,\n  expected {to}{expected}{remedy}"
        self._refuse(ValueError, text)

    def _refuse(self, kind: type[Exception], text: str) -> NoReturn:
        self._shared.cuda.refuse(kind, text)

    # ---- streams and outputs

    def _handle_of(self, stream: Any) -> int:
        """The handle of a stream, in any of its forms."""
        if isinstance(stream, int) and not isinstance(stream, bool) and 0 <= stream < 2**64:
            return stream
        protocol = getattr(stream, "__cuda_stream__", None)
        if protocol is not None:
            return int(protocol()[1])
        for attribute in ("cuda_stream", "ptr"):  # PyTorch and CuPy, before they had the protocol
            if isinstance(getattr(stream, attribute, None), int):
                return int(getattr(stream, attribute))
        remedy = "pass an object with __cuda_stream__, a stream of PyTorch or CuPy, or the handle of one as an int"
        text = f"stream is {_value_text(stream)}, expected a CUDA stream\n  remedy: {remedy}"
        self._refuse(TypeError, text)

    def _allocate(self, match: _Match, passed: Passed, library: str, device: Device, stream: int) -> list[Any]:
        """New arrays for the outputs that were left out, which come to be in their places in ``passed``."""
        made: list[Any] = []
        described = iter(match.outputs)
        for position, item in enumerate(self._entry["variants"][match.variant]["arguments"]):
            if not item["output"]:
                continue
            dtype, shape = next(described)
            if passed[position] is not None:
                continue
            array = self._new_array(item["name"], dtype, shape, library, device, stream)
            made.append(array)
            passed[position] = _viewed(array, dtype, shape, device)
        return made

    def _new_array(
        self, name: str, dtype: str, shape: tuple[int, ...], library: str, device: Device, stream: int
    ) -> Any:
        try:
            if library == "torch":
                return _new_in_torch(dtype, shape, device, stream)
            if library == "cupy":
                return _new_in_cupy(dtype, shape, device, stream)
            return self._new_in_cuda(dtype, shape, device, stream)
        except (AttributeError, TypeError) as error:
            source = library or "cuda.core"
            remedy = f"pass an array of that dtype as {name!r}"
            text = f"{source} cannot make output '{name}' of dtype {dtype}: {error}\n  remedy: {remedy}"
            self._shared.cuda.refuse(TypeError, text)

    def _new_in_cuda(self, dtype: str, shape: tuple[int, ...], device: Device, stream: int) -> Any:
        from cuda.core.utils import StridedMemoryView

        kind = _numpy_dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        cuda = self._shared.cuda
        resource = cuda.core.Device(device.number).memory_resource
        made = cuda.call(
            lambda: f"allocating {size} bytes for an output",
            lambda: resource.allocate(max(size, 1), stream=cuda.stream(stream, device)),
        )
        return StridedMemoryView.from_buffer(made, shape, dtype=kind)

    def _run(self, index: int, passed: Passed, device: Device, stream: int) -> None:
        variant = self._entry["variants"][index]
        call = Call(self._shared.codes[variant["slug"]], device, stream)
        try:
            values = [_number(item, value) for item, value in zip(variant["arguments"], passed, strict=True)]
            for value in passed:
                if isinstance(value, Array) and value.after not in (None, stream or LEGACY_STREAM):
                    call.wait(int(value.after or 0))
            self._module.VARIANTS[variant["slug"]](call, *values)
        except LaunchError as error:
            self._refuse(ValueError, str(error))
        except ZeroDivisionError:
            self._refuse(ValueError, "a launch cannot be computed from these sizes and numbers: it divides by 0")
        finally:
            call.free()

    # ---- what can be asked of a kernel

    def _of_variant(self, index: int) -> NvrtcKernel:
        return NvrtcKernel(self.name, self._entry, self._module, self._shared, index)

    @property
    def devices(self) -> frozenset[str]:
        """The kinds of devices that it can be called on through this backend: ``"cuda"``."""
        return frozenset({"cuda"})

    def supported(self, device: Any = "cuda") -> bool:
        """Whether this kernel has code that the device, and its driver, can run."""
        try:
            opened = self._shared.cuda.device(self._parsed(device))
            for code in self._codes():
                code.choose(opened)
        except (RuntimeError, ValueError):
            return False
        return True

    def preload(self, device: Any = "cuda") -> None:
        """Load the device code ahead of the first call, for example before a graph is captured.

        Raises:
            RuntimeError: the device, or its driver, cannot run the kernel; the message says why.
            ValueError: there is no such device, or the kernel is not built for devices of that kind.
        """
        opened = self._shared.cuda.device(self._parsed(device))
        with self._shared.cuda.current(opened):
            for code in self._codes():
                code.on(opened)

    def _codes(self) -> list[DeviceCode]:
        entries = self._entry["variants"]
        chosen = entries if self._index is None else [entries[self._index]]
        return [self._shared.codes[entry["slug"]] for entry in chosen if entry["slug"] in self._shared.codes]

    def _parsed(self, device: Any) -> int:
        """The number of ``"cuda"``, ``"cuda:1"``, or an object that prints so."""
        kind, _, index = str(device).partition(":")
        if kind not in ("cpu", "cuda") or not (index or "0").isdigit():
            raise ValueError(f"unknown device {device!r}; expected 'cpu', 'cuda' or 'cuda:N'")
        if kind == "cpu":
            remedy = "use a device that it was built for, or a backend that was built for the CPU"
            built = f"cuda ({', '.join(self._shared.archs)})"
            self._refuse(ValueError, f"it cannot run on cpu: it was built for {built} only\n  remedy: {remedy}")
        return int(index or 0)


class _Match(NamedTuple):
    """What a call was found to need.

    Arguments:
        variant: its number.
        device: the number of the device.
        outputs: dtype and shape of each output.
        demands: of each array that has elements its position, the bits that its address must not have, and whether it
            is written.
    """

    variant: int
    device: int
    outputs: list[tuple[str, tuple[int, ...]]]
    demands: tuple[tuple[int, int, bool], ...]

    def fits(self, passed: Passed) -> bool:
        """Whether other data can be used in the same way."""
        for position, bits, written in self.demands:
            array = passed[position]
            if not array.data or array.data & bits or (written and array.read_only):
                return False
        return True


class _Shared:
    """What the objects of one kernel have in common: CUDA, its signatures, and its device code by slug."""

    KEPT = 512
    """How many kinds of calls are remembered."""

    def __init__(self, name: str, entry: Mapping[str, Any], module: Any, find_image: Callable[..., Any]) -> None:
        self.cuda = Cuda(name)
        self.signatures = Signatures(name, entry)
        archs = {
            variant["slug"]: tuple(unit["archs"])
            for variant in entry["variants"]
            for unit in variant["units"]
            if unit["target"] == "cuda"
        }
        self.alignments = [[_alignment(item) for item in variant["arguments"]] for variant in entry["variants"]]
        self.matches: dict[tuple[Any, ...], _Match] = {}
        self.archs = tuple(dict.fromkeys(arch for listed in archs.values() for arch in listed))
        self.codes = {
            slug: DeviceCode(self.cuda, slug, listed, module.FUNCTIONS[slug], find_image, module.DRIVER)
            for slug, listed in archs.items()
        }

    def remember(self, key: tuple[Any, ...], match: _Match) -> None:
        """Note what was found out about calls of one kind."""
        if len(self.matches) >= self.KEPT:
            self.matches.clear()
        self.matches[key] = match


def load(loader: Any, name: str, entry: dict[str, Any]) -> NvrtcKernel:
    """The kernel object of a package.

    Raises:
        ImportError: a file of the package is missing or was altered.
    """
    loader.verified(f"backends/nvrtc/_{name}.py")
    module = import_module(f"{loader.package}.backends.nvrtc._{name}")
    return NvrtcKernel(name, entry, module, _Shared(name, entry, module, loader.image), None)


# ---- frameworks


def _library(arguments: Sequence[Any]) -> str:
    """The library that new outputs come from, and whose current stream is used: the first that has both."""
    found = {type(argument).__module__.partition(".")[0] for argument in arguments}
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(argument, torch.Tensor) for argument in arguments):
        return "torch"  # also for subclasses of its tensors
    return "cupy" if "cupy" in found else ""


def _current_stream(library: str, arguments: Sequence[Any]) -> int:
    """The handle of a library's current stream; 0, the default, where there is no such library."""
    if library == "torch":
        import torch

        tensors = [a for a in arguments if isinstance(a, torch.Tensor) and a.device.type == "cuda"]
        return int(torch.cuda.current_stream(tensors[0].device).cuda_stream) if tensors else 0
    if library == "cupy":
        import cupy

        return int(cupy.cuda.get_current_stream().ptr)
    return 0


def _new_in_torch(dtype: str, shape: tuple[int, ...], device: Device, stream: int) -> Any:
    import torch

    place, cuda = torch.device("cuda", device.number), _untyped(torch.cuda)
    with cuda.stream(cuda.ExternalStream(stream, place) if stream else cuda.default_stream(place)):
        return torch.empty(shape, dtype=getattr(torch, dtype), device=place)


def _untyped(module: Any) -> Any:
    """A module of which not everything has types."""
    return module


def _new_in_cupy(dtype: str, shape: tuple[int, ...], device: Device, stream: int) -> Any:
    import cupy

    with cupy.cuda.Device(device.number), cupy.cuda.ExternalStream(stream, device.number):
        return cupy.empty(shape, dtype=dtype)


def _viewed(array: Any, dtype: str, shape: tuple[int, ...], device: Device) -> Array:
    """An array that was made here, as a launch needs it."""
    data = array.data_ptr() if hasattr(array, "data_ptr") else array.ptr if hasattr(array, "ptr") else array.data.ptr
    return Array(int(data), dtype, shape, None, (CUDA, device.number), owner=array)


def _numpy_dtype(dtype: str) -> Any:
    """The dtype of that name of NumPy, or of ml_dtypes, which has those that NumPy has not."""
    import numpy

    try:
        return numpy.dtype(dtype)
    except TypeError:
        try:
            return numpy.dtype(getattr(import_module("ml_dtypes"), dtype))
        except ImportError as error:
            raise TypeError(f"NumPy has no {dtype}, and ml_dtypes, which has it, is not installed") from error


# ---- values


def _described(value: Any) -> Described | None:
    if value is None:
        return None
    if isinstance(value, Array):
        return Described(value.dtype, value.shape, device=value.place)
    return Described(value=value)


def _number(item: Mapping[str, Any], value: Any) -> Any:
    """An argument as the generated function takes it: an array, or a plain number of the kind that is declared."""
    if item["kind"] == "tensor":
        return value
    if item["dtype"] == "bool":
        return bool(value)
    if item["dtype"].startswith(("int", "uint")):
        return operator.index(value)
    try:
        return float(value)
    except OverflowError:
        raise LaunchError(f"argument '{item['name']}' is an int that is too large for {item['dtype']}") from None


def _outline(value: Any) -> Any:
    """What is compared of an argument, besides its data: dtype, sizes, strides and device, or an integer."""
    if type(value) is Array:
        return value[1:5]
    return (type(value), value) if isinstance(value, int) else type(value)


def _is_aligned(alignment: int, value: Any) -> bool:
    return not isinstance(value, Array) or value.is_empty or value.data % alignment == 0


def _alignment(item: Mapping[str, Any]) -> int:
    """Bytes to which an argument's data must be aligned."""
    if item.get("alignment"):
        return int(item["alignment"])
    head, _, lanes = item["dtype"].partition("x")
    bits = re.search(r"\d+", head.partition("_")[0])
    size = max(1, int(bits[0]) // 8 if bits else 1) * int(lanes or 1)
    return 1 << (size - 1).bit_length()


def _value_text(value: Any) -> str:
    """What is not a tensor, as a Python programmer would say it."""
    if value is None:
        return "None"
    if isinstance(value, float):
        return f"the float {value:g}"
    if isinstance(value, int):
        return f"the {type(value).__name__} {value}"
    return "a str" if isinstance(value, str) else "a Python object that is not a tensor"
