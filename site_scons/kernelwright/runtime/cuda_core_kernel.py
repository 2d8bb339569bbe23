"""The kernels of this package as Python functions that launch device code through cuda.core.

A call is matched with the variants here; a generated module has, for each variant, the function that launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from .arguments import Chosen, Described, Expected, Signatures
from .cuda_core_arrays import CUDA, IMMUTABLE, MANAGED, Array, UnreadableArrayError, library_of, read_array
from .cuda_core_device import Call, Cuda, Device, DeviceCode, LaunchError
from .cuda_core_frameworks import Framework, Stream, address_of, framework_of
from .cuda_core_memory import LEGACY
from .dtype import NARROW, rounded
from .interface import Choice, Interface, kind_of, plain_number
from .refusal import BY_KERNEL, MISALIGNED, NO_TARGET
from .size import Size
from .tables import ASKED_FOR, NO_TABLES, Tuned, table_for, tables_of

DECLARED = "\n  remedy: pass an array with the strides that the definition declares"

COMPACT = "\n  remedy: pass a contiguous copy, such as cupy.ascontiguousarray(x) or x.contiguous()"

Passed = list["Array | Any"]
"""The arguments of a call by position: arrays, numbers, and None for outputs that are left out."""


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

    def __init__(self, name: str, entry: dict[str, Any], module: Any, shared: _Shared, index: int | None) -> None:
        self.name = name
        self._entry = entry
        self._module = module
        self._shared = shared
        self._index = index
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
            match = self._matched(passed)
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

    def _items(self, arguments: Sequence[Any]) -> list[dict[str, Any]]:
        """What the manifest says of each argument that was passed."""
        items: list[dict[str, Any]] = self._entry["variants"][0]["arguments"]
        given = items if len(arguments) == len(items) else [item for item in items if not item["output"]]
        if len(given) != len(arguments):
            self._shared.signatures.choose([Described(value=value) for value in arguments])  # raises
        return given

    def _read(self, pairs: Sequence[tuple[Mapping[str, Any], Any]], stream: int) -> Passed:
        """The arguments by position, with arrays read."""
        items = self._entry["variants"][0]["arguments"]
        complete = len(pairs) == len(items)
        values = iter(value for _, value in pairs)
        passed: Passed = []
        for item in items:
            if not complete and item["output"]:
                passed.append(None)
            elif item["kind"] == "tensor":
                passed.append(self._read_array(item["name"], next(values), stream))
            else:
                passed.append(plain_number(next(values)))
        return passed

    def _read_array(self, name: str, value: Any, stream: int) -> Array:
        try:
            array = read_array(value, stream)
        except UnreadableArrayError as error:
            remedy = "pass an array of PyTorch, JAX, CuPy or another library, which lies on one CUDA device"
            text = f"argument {name!r} is a {kind_of(value)} that cannot be passed: {error}\n  remedy: {remedy}"
            self._refuse(TypeError, text)
        if array is None:
            what = "expected a tensor: an array of NumPy, PyTorch, JAX, CuPy or another library with DLPack"
            self._refuse(TypeError, f"argument '{name}' is {_value_text(value)}, {what}")
        if array.device[0] not in (CUDA, MANAGED):
            remedy = "move it to a CUDA device, or use a backend that was built for the CPU"
            built = ", ".join(self._shared.archs)
            text = f"argument '{name}' is on {array.place}, and it was built for cuda ({built}) only"
            self._refuse(ValueError, f"{text}\n  remedy: {remedy}", NO_TARGET)
        return array

    def _matched(self, passed: Passed) -> _Match:
        """The variant for a call, once everything has been compared; of a call like an earlier one only the data is."""
        key = (self._index, *map(_outline, passed))
        known = self._shared.matches.get(key)
        if known is not None and known.fits(passed):
            return known
        number = self._device_number(passed)
        found = self._choose(passed)
        index = found.index
        self._check(index, passed, number)
        arrays = [(position, value) for position, value in enumerate(passed) if isinstance(value, Array)]
        # Other data has to suit the declared variant as well: with data that it does not fit, a later one decides.
        both = zip(self._shared.alignments[index], self._shared.alignments[found.declared.index], strict=True)
        alignments = list(map(max, both))
        written = [item["written"] for item in self._entry["variants"][index]["arguments"]]
        demands = [(p, alignments[p] - 1, written[p]) for p, array in arrays if not array.is_empty]
        match = _Match(index, number, found.outputs, tuple(demands))
        if found.is_first:  # another choice was made for data that happened to lie as it did
            self._shared.remember(key, match)
        return match

    def _device_number(self, passed: Passed) -> int:
        for value in passed:
            if isinstance(value, Array):
                return value.device[1]
        self._refuse(ValueError, "it has no array among its arguments, which would say on which device it runs")

    def _choose(self, passed: Passed) -> _Found:
        """The variant for a call."""
        described = [_described(value) for value in passed]
        signatures = self._shared.signatures
        first = declared = signatures.choose(described, self._index, "cuda")
        if self._index is not None:
            return _Found(first.index, first, True)
        aligned = self._are_aligned(first.index, passed)
        if not aligned:
            # A later variant may ask for less; if none does, the first says what it asks for.
            for index in signatures.compared("cuda"):
                if index > first.index and (later := self._fitting(index, described, passed)):
                    declared, aligned = later, True
                    break
        tuned = self._tuned(declared, passed) if aligned else None
        rules = tuned.rules() if tuned else None
        index = rules.choose(declared.symbols) if rules else declared.index
        fits = index == declared.index or self._fitting(index, described, passed) is not None
        return _Found(index if fits else declared.index, declared, fits and declared is first, tuned)

    def _fitting(self, index: int, described: list[Described | None], passed: Passed) -> Chosen | None:
        """A variant as the one for a call; None, if the call does not fit it."""
        try:
            chosen = self._shared.signatures.choose(described, index, "cuda")
        except (TypeError, ValueError):
            return None
        return chosen if self._are_aligned(index, passed) else None

    def _tuned(self, declared: Chosen, passed: Passed) -> Tuned | None:
        """What the tuning tables say; None, if there are none, or the variant cannot run, which the call says."""
        if not self._shared.tables:
            return None
        try:
            device = self._shared.cuda.device(self._device_number(passed))
            return self._shared.tuned(declared.index, device)
        except (RuntimeError, ValueError):
            return None

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
                self._refuse(ValueError, f"{text}\n  remedy: pass a copy of it", MISALIGNED)

    def _check_strides(self, index: int, position: int, passed: Passed) -> None:
        """Compare the strides of an array with those that are declared, where they stride over something."""
        entry, array, limit = (
            self._entry["variants"][index],
            passed[position],
            self._shared.signatures.variants[index].limit,
        )
        known = self._shared.signatures.choose([_described(value) for value in passed], index, "cuda").symbols
        strides = entry["arguments"][position]["strides"]
        for axis, stride in enumerate(strides):
            if array.shape[axis] == 1 or array.is_empty:
                continue
            found = array.stride(axis)
            expected = self._stride(stride, entry, passed, known)
            if found != expected:
                what = f"Mismatched {entry['arguments'][position]['name']}.strides[{axis}]"
                self._mismatch(index, position, what, str(expected), DECLARED, to="")
        if array.span > limit:
            name = entry["arguments"][position]["name"]
            remedy = "pass a copy that has no such gaps, or build the kernel with int64 sizes"
            told = f"the {limit} that int{32 if limit < 1 << 32 else 64} sizes allow\n  remedy: {remedy}"
            self._refuse(ValueError, f"argument '{name}' has elements that are further apart than {told}")

    def _stride(self, stride: int | str, entry: Mapping[str, Any], passed: Passed, known: Mapping[str, Any]) -> int:
        """A declared stride; what only strides tell is as the first array has it."""
        if isinstance(stride, int):
            return stride
        symbols = dict(known)
        order = sorted(range(len(passed)), key=lambda number: entry["arguments"][number]["output"])
        for number in (number for number in order if isinstance(passed[number], Array)):
            for axis, symbol in enumerate(entry["arguments"][number].get("strides", ())):
                if isinstance(symbol, str) and symbol.isidentifier():
                    symbols.setdefault(symbol, passed[number].stride(axis))
        return int(Size(stride).value(symbols))

    def _mismatch(self, index: int, position: int, what: str, expected: str, remedy: str, to: str = "to ") -> NoReturn:
        """Raise an error in the words of TVM's host code."""
        call = self._shared.signatures.variants[index].call_text(self.name)
        text = f"{what} on argument #{position} when calling:\n  `{call}`,\n  expected {to}{expected}{remedy}"
        self._refuse(ValueError, text)

    def _refuse(self, kind: type[Exception], text: str, refusal: str = BY_KERNEL) -> NoReturn:
        self._shared.cuda.refuse(kind, text, refusal)

    # ---- streams and outputs

    def _given_stream(self, stream: Any) -> Stream:
        """The stream that was passed, in any of its forms."""
        found = Stream.of(stream)
        if found is None:
            remedy = "pass an object with __cuda_stream__, a stream of PyTorch or CuPy, or the handle of one as an int"
            text = f"stream is {_value_text(stream)}, expected a CUDA stream\n  remedy: {remedy}"
            self._refuse(TypeError, text)
        return found

    def _allocate(
        self, match: _Match, passed: Passed, framework: Framework, device: Device, stream: Stream
    ) -> list[Any]:
        """New arrays for the outputs that were left out, which come to be in their places in ``passed``."""
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
        """Waits for the launches before arrays are given back whose library does not know of them."""
        if not any(isinstance(value, Array) and value.borrowed for value in passed):
            yield
            return
        self._shared.cuda.refuse_captured(device, stream)
        try:
            yield
        finally:
            self._shared.cuda.synchronize(device, stream)

    def _require_idle(self, launch: str, match: _Match, passed: Passed, made: list[Any]) -> None:
        """Refuse a call that launched nothing, unless it has nothing to do: see kw_require_idle of the launcher."""
        outputs = [shape for _, shape in match.outputs]
        if any(0 in shape for shape in outputs or [value.shape for value in passed if isinstance(value, Array)]):
            return
        new = [isinstance(value, Array) and any(value.owner is array for array in made) for value in passed]
        given = [None if left_out else _described(value) for left_out, value in zip(new, passed, strict=True)]
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
            # Of a variant with several sources, that of the code that suits the device best.
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
        number, found = self._device_number(passed), self._choose(passed)
        self._check(found.index, passed, number)
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
        """The device code that calls may need: all of declared variants, and of others what has the same arch."""
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


@dataclass(frozen=True)
class _Found:
    """The variant for a call, and how it was found.

    Arguments:
        index: its number.
        declared: the declared variant that the call fits, with the sizes of the call.
        is_first: whether dtypes and sizes alone decide so; otherwise it is because of how the data lies.
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


class _Shared:
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
        # A variant that is not built for CUDA has none, and is never chosen.
        self.alignments = [module.ALIGNMENTS.get(variant["slug"], ()) for variant in entry["variants"]]
        self.matches: dict[tuple[Any, ...], _Match] = {}
        self.archs = tuple(dict.fromkeys(arch for listed in archs.values() for arch in listed))
        self.codes = {
            slug: DeviceCode(self.cuda, slug, listed, module.FUNCTIONS[slug], find_image, module.DRIVER)
            for slug, listed in archs.items()
        }

    def tuned(self, declared: int, device: Device) -> Tuned:
        """What the tables say of calls on a device that a declared variant fits; found once.

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

    def remember(self, key: tuple[Any, ...], match: _Match) -> None:
        """Note what was found out about calls of one kind."""
        if len(self.matches) >= self.KEPT:
            self.matches.clear()
        self.matches[key] = match


def load(loader: Any, name: str, entry: dict[str, Any]) -> CudaCoreKernel:
    """The kernel object of a package.

    Raises:
        ImportError: a file of the package is missing or was altered.
    """
    loader.verified(f"backends/cuda_core/_{name}.py")
    module = import_module(f"{loader.package}.backends.cuda_core._{name}")
    return CudaCoreKernel(name, entry, module, _Shared(name, entry, module, loader.image), None)


# ---- values


def _described(value: Any) -> Described | None:
    if value is None:
        return None
    if isinstance(value, Array):
        return Described(value.dtype, value.shape, device=value.place)
    return Described(value=value)


def _number(argument: Expected, value: Any) -> Any:
    """An argument as the generated function takes it: an array, or a plain number of the kind that is declared."""
    if argument.kind == "tensor":
        return value
    if argument.kind == "bool":
        return bool(value)
    if argument.kind == "int":
        return int(value)
    try:
        return rounded(float(value), argument.dtype) if argument.dtype in NARROW else float(value)
    except OverflowError:
        raise LaunchError(f"argument '{argument.name}' is an int that is too large for {argument.dtype}") from None


def _outline(value: Any) -> Any:
    """What is compared of an argument, besides its data: dtype, sizes, strides and device, or an integer."""
    if type(value) is Array:
        return value[1:5]
    return (type(value), value) if isinstance(value, int) else type(value)


def _is_aligned(alignment: int, value: Any) -> bool:
    return not isinstance(value, Array) or value.is_empty or value.data % alignment == 0


def _value_text(value: Any) -> str:
    """What is not a tensor, as a Python programmer would say it."""
    if value is None:
        return "None"
    if isinstance(value, float):
        return f"the float {value:g}"
    if isinstance(value, int):
        return f"the {type(value).__name__} {value}"
    return "a str" if isinstance(value, str) else "a Python object that is not a tensor"
