"""The kernels of this package as Python functions that launch device code through cuda.core.

This module finds the variant for a call. A generated module has a function for each variant, which launches it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from .cuda_core_arrays import ABSENT, CUDA, MANAGED, Absent, Array, UnreadableArrayError, read_array
from .cuda_core_device import Device
from .cuda_core_frameworks import Framework, Stream, address_of, framework_of
from .cuda_core_launch import Call, DeviceCode, LaunchError
from .cuda_core_match import Match, Matcher, Passed, Shared, described_as
from .dtype import NARROW, rounded
from .expected import Described, Expected, value_text
from .interface import DEVICE_TYPES, LEGACY, TENSOR, Choice, Interface, kind_of, parse_device, plain_number
from .passed import passed_in
from .refusal import BY_KERNEL, NO_TARGET
from .tables import ASKED_FOR, NO_TABLES


class CudaCoreKernel(Interface):
    """A kernel, or one variant of it.

    Call it with all its arguments to have the outputs written into those you give, or leave the outputs out to get
    new ones. Arguments, by position or by name, are arrays on a CUDA device of any library with DLPack or
    ``__cuda_array_interface__``, and numbers. New outputs come from PyTorch or CuPy if an argument does, otherwise they
    are :class:`Output` objects, which other libraries view through DLPack on any stream.

    Arguments:
        name: the kernel's name.
        entry: its part of the manifest.
        module: the generated module.
        shared: what all objects of one kernel have in common.
        index: the number of the variant; None: all.
    """

    def __init__(self, name: str, entry: dict[str, Any], module: Any, shared: Shared, index: int | None) -> None:
        self.name = name
        self._entry = entry
        self._module = module
        self._shared = shared
        self._index = index
        self._matcher = Matcher(entry, shared, index)
        self.__doc__ = entry["doc"]

    def __call__(self, /, *arguments: Any, stream: Any = None, **named: Any) -> Any:
        """Run the kernel; see :class:`CudaCoreKernel` for the arguments.

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
        arguments = self._in_order(arguments, named)
        items = self._items(arguments)
        pairs = list(zip(items, arguments, strict=True))
        framework = framework_of(value for item, value in pairs if item["kind"] == "tensor")
        where = self._given_stream(stream) if stream is not None else framework.current_stream()
        try:
            passed = self._read(pairs, where.handle or LEGACY)
            match = self._matcher.matched(passed)
        except (TypeError, ValueError) as error:
            return self._missed(arguments, error, stream)
        cuda = self._shared.cuda
        device = cuda.device(match.device)
        with cuda.current(device, where.handle):
            made = self._allocate(match, passed, framework, device, where)
            with self._held(passed, device, where.handle):
                call = self._run(match.variant, passed, framework, device, where)
            if call.skipped and not call.launched:
                self._require_idle(call.skipped, match, passed, made)
        if not made:
            return None
        return made[0] if len(made) == 1 else tuple(made)

    # ---- arguments

    def _items(self, arguments: Sequence[Any]) -> list[Mapping[str, Any]]:
        """The manifest's description of each argument that was passed."""
        items: list[dict[str, Any]] = self._entry["variants"][0]["arguments"]
        given = passed_in(items, self._shared.signatures.optional, len(arguments))
        if given is None:
            self._shared.signatures.choose([Described(value=value) for value in arguments])  # raises
        return given or []

    def _read(self, pairs: Sequence[tuple[Mapping[str, Any], Any]], stream: int) -> Passed:
        """All arguments by position, with arrays read: ABSENT for None, and None for outputs that were left out."""
        items = self._entry["variants"][0]["arguments"]
        complete = len(pairs) == len(items)
        values = iter(value for _, value in pairs)
        passed: Passed = []
        for item in items:
            if not complete and item["output"]:
                passed.append(None)
            elif item["kind"] == "tensor":
                passed.append(self._read_array(item["name"], next(values, None), stream))
            else:
                value = next(values, None)
                passed.append(
                    plain_number(self._shared.signatures.optional.get(item["name"]) if value is None else value)
                )
        return passed

    def _read_array(self, name: str, value: Any, stream: int) -> Array | Absent:
        if value is None and name in self._shared.signatures.optional:
            return ABSENT
        try:
            array = read_array(value, stream)
        except UnreadableArrayError as error:
            remedy = "pass an array of PyTorch, JAX, CuPy or another library, which lies on one CUDA device"
            text = f"argument {name!r} is a {kind_of(value)} that cannot be passed: {error}\n  remedy: {remedy}"
            self._refuse(TypeError, text)
        if array is None:
            self._refuse(TypeError, f"argument '{name}' is {value_text(value)}, {TENSOR}")
        if array.device[0] not in (CUDA, MANAGED):
            remedy = "move it to a CUDA device, or use a backend that was built for the CPU"
            built = ", ".join(self._shared.archs)
            text = f"argument '{name}' is on {array.place}, and it was built for cuda ({built}) only"
            self._refuse(ValueError, f"{text}\n  remedy: {remedy}", NO_TARGET)
        return array

    def _refuse(self, kind: type[Exception], text: str, refusal: str = BY_KERNEL) -> NoReturn:
        self._shared.cuda.refuse(kind, text, refusal)

    # ---- streams and outputs

    def _given_stream(self, stream: Any) -> Stream:
        """The stream that was passed, in any of its forms."""
        found = Stream.of(stream)
        if found is None:
            remedy = "pass an object with __cuda_stream__, a stream of PyTorch or CuPy, or the handle of one as an int"
            text = f"stream is {value_text(stream)}, expected a CUDA stream\n  remedy: {remedy}"
            self._refuse(TypeError, text)
        return found

    def _allocate(
        self, match: Match, passed: Passed, framework: Framework, device: Device, stream: Stream
    ) -> list[Any]:
        """Make new arrays for the outputs that were left out, and put them into ``passed``."""
        made: list[Any] = []
        signatures = self._shared.signatures
        for name, (dtype, shape) in zip(signatures.outputs, match.outputs, strict=True):
            position = signatures.names.index(name)
            if passed[position] is not None:
                continue
            array = self._new_array(name, dtype, shape, framework, device, stream)
            made.append(array)
            passed[position] = Array(address_of(array), dtype, shape, None, (CUDA, device.number), owner=array)
        return made

    def _new_array(
        self, name: str, dtype: str, shape: tuple[int, ...], framework: Framework, device: Device, stream: Stream
    ) -> Any:
        try:
            return framework.new_array(self._shared.cuda, device, dtype, shape, stream)
        except (AttributeError, TypeError) as error:
            remedy = f"pass an array of that dtype as {name!r}"
            text = f"{framework.name} cannot make output '{name}' of dtype {dtype}: {error}\n  remedy: {remedy}"
            self._refuse(TypeError, text)

    @contextmanager
    def _held(self, passed: Passed, device: Device, stream: int) -> Iterator[None]:
        """Wait for the launches before borrowed arrays are given back: their library does not know of the launches."""
        if not any(isinstance(value, Array) and value.borrowed for value in passed):
            yield
            return
        self._shared.cuda.refuse_captured(device, stream)
        try:
            yield
        finally:
            self._shared.cuda.synchronize(device, stream)

    def _require_idle(self, launch: str, match: Match, passed: Passed, made: list[Any]) -> None:
        """Refuse a call that launched nothing, unless there was nothing to do; see kw_require_idle of the launcher."""
        outputs = [shape for _, shape in match.outputs]
        if any(0 in shape for shape in outputs or [value.shape for value in passed if isinstance(value, Array)]):
            return
        new = [isinstance(value, Array) and any(value.owner is array for array in made) for value in passed]
        given = [None if left_out else described_as(value) for left_out, value in zip(new, passed, strict=True)]
        what, listed = "output" if outputs else "array", self._shared.signatures.passed_text(given)
        remedy = "pass larger sizes, or compute 1 or more there, as in max(n // 256, 1)"
        text = f"{launch}, which does nothing, and no {what} is empty{listed}\n  remedy: {remedy}"
        self._refuse(ValueError, text)

    def _run(self, index: int, passed: Passed, framework: Framework, device: Device, stream: Stream) -> Call:
        variant, cuda = self._shared.signatures.variants[index], self._shared.cuda
        allocate = partial(framework.workspace, cuda, device, stream=stream)
        code = self._shared.codes[variant.slug]
        call = Call(code, device, stream.handle, allocate)
        try:
            values = [_number(argument, value) for argument, value in zip(variant.arguments, passed, strict=True)]
            for value in passed:
                if isinstance(value, Array) and value.after is not None:
                    cuda.order(device, int(value.after), stream.handle)
            launching = self._module.VARIANTS[variant.slug]
            # A variant with several sources has a function for each arch.
            launching = launching[code.arch_on(device)] if isinstance(launching, dict) else launching
            launching(call, *values)
        except LaunchError as error:
            self._refuse(ValueError, str(error))
        except ZeroDivisionError:
            self._refuse(ValueError, "a launch cannot be computed from these sizes and numbers: it divides by 0")
        finally:
            call.free()
        return call

    # ---- what can be asked of a kernel

    def choice(self, /, *arguments: Any, **named: Any) -> Choice:
        """Which variant a call with these arguments runs, and why; nothing runs.

        Raises:
            TypeError, ValueError, RuntimeError: the call would.
        """
        arguments = self._in_order(arguments, named)
        passed = self._read(list(zip(self._items(arguments), arguments, strict=True)), LEGACY)
        number, found = self._matcher.device_number(passed), self._matcher.choose(passed)
        self._matcher.check(found.index, passed, number)
        slugs = [entry["slug"] for entry in self._entry["variants"]]
        self._shared.codes[slugs[found.index]].choose(self._shared.cuda.device(number))
        if self._index is not None:
            return self._choice(found.index, ASKED_FOR)
        if found.tuned is None:
            return self._choice(found.index, NO_TABLES)
        return self._choice(found.index, found.tuned.reason(found.declared.symbols, found.index, slugs))

    def _of_variant(self, index: int) -> CudaCoreKernel:
        return CudaCoreKernel(self.name, self._entry, self._module, self._shared, index)

    @property
    def devices(self) -> frozenset[str]:
        """The kinds of devices that it can be called on through this backend: ``"cuda"``."""
        return frozenset({"cuda"})

    def supported(self, device: Any = "cuda") -> bool:
        """Whether this kernel has code that the device, and its driver, can run."""
        try:
            opened = self._shared.cuda.device(self._parsed(device))
            for code in self._codes(opened):
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
        with self._shared.cuda.current(opened, 0):
            for code in self._codes(opened):
                code.on(opened)

    def _codes(self, device: Device) -> list[DeviceCode]:
        """The device code that calls may need: that of declared variants, and that of others with the same arch."""
        if self._index is not None:
            return self._codes_of([self._entry["variants"][self._index]])
        compared, entries = self._shared.signatures.compared("cuda"), self._entry["variants"]
        declared = self._codes_of([entries[number] for number in compared])
        others = self._codes_of([entry for number, entry in enumerate(entries) if number not in compared])
        arch = declared[0].choose(device)[0] if declared and others else ""
        return [*declared, *(code for code in others if arch in code.archs)]

    def _codes_of(self, entries: list[dict[str, Any]]) -> list[DeviceCode]:
        return [self._shared.codes[entry["slug"]] for entry in entries if entry["slug"] in self._shared.codes]

    def _parsed(self, device: Any) -> int:
        """The number of the device ``"cuda"``, ``"cuda:1"``, or an object whose ``str()`` is like these."""
        kind, number = parse_device(device)
        if kind != DEVICE_TYPES["cuda"]:
            remedy = "use a device that it was built for, or a backend that was built for the CPU"
            built = f"cuda ({', '.join(self._shared.archs)})"
            self._refuse(ValueError, f"it cannot run on cpu: it was built for {built} only\n  remedy: {remedy}")
        return number


def load(loader: Any, name: str, entry: dict[str, Any]) -> CudaCoreKernel:
    """The kernel object of a package.

    Raises:
        ImportError: a file of the package is missing or was altered.
    """
    loader.verified(f"backends/cuda_core/_{name}.py")
    module = import_module(f"{loader.package}.backends.cuda_core._{name}")
    return CudaCoreKernel(name, entry, module, Shared(name, entry, module, loader.image), None)


# ---- values


def _number(argument: Expected, value: Any) -> Any:
    """An argument as the generated function takes it: an array, or a plain number of the kind that is declared."""
    if argument.kind == "tensor":
        return value.folded(len(argument.shape) - 1) if argument.folds and isinstance(value, Array) else value
    if argument.kind == "bool":
        return bool(value)
    if argument.kind == "int":
        return int(value)
    try:
        return rounded(float(value), argument.dtype) if argument.dtype in NARROW else float(value)
    except OverflowError:
        raise LaunchError(f"argument '{argument.name}' is an int that is too large for {argument.dtype}") from None
