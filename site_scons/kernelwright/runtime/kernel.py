"""The callable kernel objects of this package: tvm-ffi functions with a few more attributes.

A call runs one Python function before the compiled dispatcher. It handles arrays that never get to the dispatcher:
those that are read-only, and those that their library does not export.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from sys import modules
from typing import Any, TypeVar

import tvm_ffi

from .interface import (
    DEVICE_TYPES,
    IMMUTABLE,
    LEGACY,
    VIEW,
    Choice,
    LibraryKernel,
    NewArray,
    library_of,
    plain_number,
)
from .loader import DamageError, Loader
from .refusal import refusal_of

CUDA = DEVICE_TYPES["cuda"]

Made = TypeVar("Made", bound="Kernel")


class Kernel(LibraryKernel, tvm_ffi.Function):
    """A kernel, or one variant of it.

    Call it with all its arguments to have the outputs written into those you give, or leave the outputs out to get
    new ones. Arguments, by position or by name, are NumPy, PyTorch, JAX or CuPy arrays and numbers. New outputs come
    from PyTorch if an argument does, otherwise they are ``tvm_ffi.Tensor`` objects, which ``numpy.from_dlpack`` views
    without a copy, or on a GPU :class:`Output`.
    """

    # Slots are faster than the dictionary that each tvm-ffi function has.
    __slots__ = ("_as_is", "_function", "_mutable", "_on_cpu")

    _function: tvm_ffi.Function  # the dispatcher, or kw_looking: True if a view of PyTorch may be an argument
    _dispatcher: tvm_ffi.Function
    _mutable: set[type]
    _on_cpu: bool  # it has code for the CPU only
    _as_is: set[type]  # the types of results that are returned as they are
    _module: tvm_ffi.Module

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Run the kernel; see :class:`Kernel` for the arguments.

        Raises:
            TypeError: the number of arguments, a kind, a dtype or a rank does not fit, or an array cannot be passed.
            ValueError: sizes, strides, alignment, a range or a device do not fit, or an array that the kernel writes
                is read-only.
            RuntimeError: the device, or its driver, cannot run the kernel.
            MemoryError: there is not enough for an output.
        """
        if named or (IMMUTABLE in modules and not self._mutable.issuperset(map(type, arguments))):
            return self._call_otherwise(arguments, named)
        try:
            result = self._function(*arguments)
            if result is None or type(result) in self._as_is:
                return result
            if result is True:
                result = self._looked_at(arguments)
        except Exception as error:
            failure = error
        else:
            return self._with_stream(result)
        return self._again(arguments, failure)

    def _run(self, arguments: Sequence[Any]) -> Any:
        result = self._function(*arguments)
        return self._looked_at(arguments) if result is True else result

    def _looked_at(self, arguments: Sequence[Any]) -> Any:
        """Look at the arguments of a call: a BufferError if one is a computed view, otherwise the call's result."""
        if self._function is self._dispatcher:  # the author's own host code has returned True
            return True
        _refuse_computed(arguments)
        return self.function(*arguments)

    def _call_otherwise(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A call with names, or with arrays of types that may be JAX's.

        JAX reuses the memory of an array as soon as nobody holds the array and no work of JAX itself reads it. JAX does
        not know of the launch, so the call waits for the launch before it gives such arrays back.
        """
        arguments = self._in_order(positional, named)
        if IMMUTABLE not in modules:
            return self._call(arguments)
        self._refuse_immutable(arguments)
        places = () if self._on_cpu else self._places_of_immutable(arguments)
        for place in places:
            self._service(b"kw_refuse_captured", *place)
        try:
            return self._call(arguments)
        finally:
            for place in places:
                self._service(b"kw_synchronize", *place)

    def _call(self, arguments: tuple[Any, ...]) -> Any:
        try:
            return self._with_stream(self._run(arguments))
        except Exception as error:
            failure = error
        return self._again(arguments, failure)

    def _places_of_immutable(self, arguments: tuple[Any, ...]) -> Collection[tuple[int, int]]:
        """The GPUs that arrays of JAX are on, and on each the stream that the call is launched on."""
        devices = {cuda_device_of(array) for array in arguments if library_of(array) == IMMUTABLE}
        return [(device, self._stream_of_call(device, arguments)) for device in devices if device is not None]

    def _stream_of_call(self, device: int, arguments: tuple[Any, ...]) -> int:
        """The stream that tvm-ffi launches on: PyTorch's current one if a tensor of PyTorch is passed, or its own."""
        torch = modules.get("torch")
        if torch is not None and any(isinstance(argument, torch.Tensor) and argument.is_cuda for argument in arguments):
            return int(torch.cuda.current_stream(device).cuda_stream)
        return int(self._service(b"kw_current_stream", device))

    def _with_stream(self, result: Any) -> Any:
        """Convert a result: several outputs to a tuple, and tvm-ffi's tensors on a GPU to :class:`Output`."""
        if isinstance(result, tvm_ffi.Tensor):
            kind, device = result.__dlpack_device__()
            if kind != CUDA:
                return result
            stream = self._service(b"kw_current_stream", device)
            return Output(self.name, self._service, result, stream)
        if isinstance(result, tvm_ffi.Array):
            return tuple(map(self._with_stream, result))
        self._as_is.add(type(result))
        return result

    def _refuse_immutable(self, arguments: tuple[Any, ...]) -> None:
        for position, argument in enumerate(arguments):
            if library_of(argument) != IMMUTABLE:
                self._mutable.add(type(argument))
            else:
                name, written = self._passed(len(arguments))[position]
                if written:
                    self._refuse_writing(name, "an array of JAX, which is immutable")

    def _again(self, arguments: tuple[Any, ...], error: Exception) -> Any:
        """Repeat a call that has failed, with its arguments in other forms.

        Raises:
            Exception: the error of the call, if there are no other forms.
            TypeError: an array cannot be passed.
            ValueError: the kernel writes an array that is read-only.
        """
        usable = self._usable(arguments, error)
        if usable is not None:
            try:
                return self._with_stream(self._run(usable))
            except Exception as failure:
                error = failure
        return self._missed(arguments, error)

    def _usable(self, arguments: Sequence[Any], error: Exception) -> Sequence[Any] | None:
        """The arguments of a failed call, in forms that tvm-ffi takes; None: they have such forms already.

        Raises:
            TypeError: an array cannot be passed.
            ValueError: the kernel writes an array that is read-only.
        """
        scalars = {item["name"] for item in self._entry["variants"][0]["arguments"] if item["kind"] == "scalar"}
        # NumPy's bool, and numbers of ml_dtypes, are no numbers to tvm-ffi.
        plain = [
            plain_number(argument) if name in scalars and not hasattr(argument, "__dlpack__") else argument
            for (name, _), argument in zip(self._passed(len(arguments)), arguments, strict=True)
        ]
        exported = None if refusal_of(error) else self._exported(plain)
        is_changed = any(one is not other for one, other in zip(plain, arguments, strict=True))
        return exported or (plain if is_changed else None)

    def _exported(self, arguments: Sequence[Any]) -> list[Any] | None:
        """The arguments, with NumPy's arrays that tvm-ffi does not take in a form that it takes; None: there are none.

        Raises:
            TypeError: an array cannot be passed.
            ValueError: the kernel writes an array that is read-only.
        """
        exported = list(arguments)
        for position, (name, written) in enumerate(self._passed(len(arguments))):
            argument = arguments[position]
            if not hasattr(argument, "__dlpack__"):
                continue
            if written and _is_read_only(argument):
                self._refuse_writing(name, "a read-only array")
            try:
                readable = _readable(argument)
                tensor = tvm_ffi.from_dlpack(readable)
            except Exception as error:
                self._refuse_array(name, argument, error)
            if readable is not argument:
                exported[position] = tensor
        return exported if any(one is not other for one, other in zip(exported, arguments, strict=True)) else None

    def _passed(self, count: int) -> list[tuple[str, bool]]:
        """The name of each of the ``count`` arguments of a call, and whether some variant writes it."""
        chosen = self._entry["variants"] if self._index is None else [self._entry["variants"][self._index]]
        written = {argument["name"] for entry in chosen for argument in entry["arguments"] if argument["written"]}
        arguments = chosen[0]["arguments"]
        names = [argument["name"] for argument in arguments if count == len(arguments) or not argument["output"]]
        names += [f"number {number}" for number in range(len(names) + 1, count + 1)]
        return [(name, name in written) for name in names[:count]]

    def _service(self, name: bytes, *numbers: int) -> Any:
        return self._module[name.decode()](*numbers)

    def _of_variant(self, index: int) -> Kernel:
        return make_kernel(self.name, self._entry, self._module, index, Kernel)

    def choice(self, /, *arguments: Any, **named: Any) -> Choice:
        """Which variant a call with these arguments runs, and why; nothing runs.

        Raises:
            TypeError, ValueError, RuntimeError: the call would, because of a dtype, a rank, a constant size, alignment,
                the range of a number, or the device. Only the call itself looks at strides, and at sizes that have to
                be equal.
        """
        passed = self._in_order(arguments, named)
        if IMMUTABLE in modules:
            self._refuse_immutable(passed)
        return self._choice_for(passed)

    def _choice_for(self, arguments: tuple[Any, ...]) -> Choice:
        """Like :meth:`choice`, also with arrays that the call must not write."""
        choose = self._module[self._chooser()]
        try:
            return self._told_choice(choose(*arguments))
        except Exception as error:
            usable = self._usable(arguments, error)
            if usable is None:
                raise
        return self._told_choice(choose(*usable))

    @property
    def function(self) -> tvm_ffi.Function:
        """The compiled dispatcher itself.

        A call of it saves the Python frame, about 0.2 us. It takes no read-only arrays, writes into arrays of JAX
        without an error, ignores signs that PyTorch has only marked (``is_neg``), and does not explain why a library
        does not export an array.
        """
        return self._dispatcher

    def _set_provider(self, provider: Callable[[str, str, int, int], str]) -> None:
        self._module["kw_set_provider"](tvm_ffi.convert(provider))

    def for_xla(self, function: Any) -> Any:
        """Wrap a function so that it is safe to register with jax-tvm-ffi for GPUs.

        jax-tvm-ffi (0.1.3) makes XLA's stream tvm-ffi's current one for a call, and leaves it so if the stream before
        was the default one. Later calls of this thread would then run on XLA's stream; the wrapper prevents that.
        """
        return self._module["kw_for_xla"](function)


class Output(NewArray):
    """A new array on a GPU that no framework has allocated: a ``tvm_ffi.Tensor`` that knows the stream of its launch.

    Through DLPack it can be taken at once, on any stream: that stream is made to wait for the kernel. It can be passed
    to a kernel again, which waits if it is launched on another stream.
    """

    __slots__ = ()

    def __tvm_ffi_object__(self) -> tvm_ffi.Tensor:
        """The tensor, for a function of tvm-ffi that gets it as an argument. It may run on another stream.

        That is tvm-ffi's current one, or PyTorch's if an argument is its tensor. Which is not known here, so both wait.
        """
        device, torch = self.__dlpack_device__()[1], modules.get("torch")
        streams = [self._service(b"kw_current_stream", device)]
        if torch is not None and torch.cuda.is_initialized():
            streams.append(torch.cuda.current_stream(device).cuda_stream)
        for stream in streams:
            self._hand_over(stream or LEGACY)
        tensor: tvm_ffi.Tensor = self._view
        return tensor


def cuda_device_of(array: Any) -> int | None:
    """The number of the GPU that an array is on; None, if it is elsewhere, or does not say."""
    try:
        kind, device = array.__dlpack_device__()
    except Exception:  # what it means is said where the array is exported
        return None
    return int(device) if kind == CUDA else None


def _is_read_only(argument: Any) -> bool:
    """Whether NumPy marks an array as read-only; other libraries have no such arrays, or do not mark them."""
    return hasattr(argument, "__dlpack__") and getattr(getattr(argument, "flags", None), "writeable", None) is False


def _readable(array: Any) -> Any:
    """An array in a form that tvm-ffi takes: its export (a copy if NumPy is older than 2.1) if it is read-only or has a
    dtype that NumPy does not export, otherwise itself."""
    from .dlpack import as_integers, export_of

    _refuse_computed([array])
    if not _is_read_only(array) and as_integers(array) is None:
        return array
    try:
        return export_of(array)
    except TypeError:
        return _readable(array.copy()) if as_integers(array) else array.copy()


def _refuse_computed(arguments: Sequence[Any]) -> None:
    """Raise BufferError for a view whose numbers PyTorch computes when they are read; DLPack does not mark it."""
    torch = modules.get("torch")
    if torch is None:
        return
    for one in arguments:
        if isinstance(one, torch.Tensor) and (one.is_neg() or one.is_conj()):
            raise BufferError(f"it is {VIEW}")


def load(loader: Loader, name: str, entry: dict[str, Any]) -> Kernel:
    """Load a kernel of a package.

    Raises:
        ImportError: its library is missing or was altered, or cannot be loaded.
    """
    return load_kernel(name, entry, loader.library(name))._completed(loader)


def load_kernel(name: str, entry: dict[str, Any], path: Path) -> Kernel:
    """Load a library and make the kernel object whose call dispatches over all variants."""
    return kernel_in(name, entry, path, Kernel)


def kernel_in(name: str, entry: dict[str, Any], path: Path, kind: type[Made]) -> Made:
    """Load a library and make the kernel object of a class."""
    try:
        module = tvm_ffi.load_module(str(path))
    except (OSError, RuntimeError) as error:
        raise ImportError(f"{path}: cannot be loaded: {error}") from error
    try:
        return make_kernel(name, entry, module, None, kind)
    except AttributeError as error:
        raise DamageError(f"{path}: has no kernel {name!r}") from error


def make_kernel(name: str, entry: dict[str, Any], module: tvm_ffi.Module, index: int | None, kind: type[Made]) -> Made:
    """A kernel object over the dispatcher (index None) or over the variant of that number."""
    number = "" if index is None else f"__{index}"
    function = module.get_function(name + number)
    kernel = kind.__new__(kind)
    # Takes over the reference that the plain function object holds.
    kernel.__move_handle_from__(function)
    kernel._dispatcher = module.get_function(name + number)
    kernel._function = kernel._dispatcher if entry.get("opaque") else module.get_function("kw_looking" + number)
    kernel._mutable = set()
    kernel.name = name
    kernel._entry = entry
    kernel._module = module
    kernel._index = index
    kernel._on_cpu = "cuda" not in kernel.devices
    kernel._as_is = {tvm_ffi.Tensor} if kernel._on_cpu else set()
    kernel.__doc__ = entry["doc"]
    return kernel
