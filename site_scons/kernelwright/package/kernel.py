"""The callable kernel objects of this package: tvm-ffi functions with a few attributes more.

One Python frame stands between a caller and the compiled dispatcher. It is there for what the dispatcher never sees:
arrays that are read-only, and arrays that their library does not hand out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from sys import modules
from typing import Any

import tvm_ffi

from .interface import Interface, library_of, parse_device
from .loader import Loader

IMMUTABLE = "jaxlib"
"""Where arrays come from that nobody may write into. Through DLPack they are exported without a word about that."""


class Kernel(Interface, tvm_ffi.Function):
    """A kernel, or one variant of it.

    Call it with all its arguments to have the outputs written into those you give, or leave the outputs out to get
    new ones. Arguments are positional: NumPy, PyTorch, JAX or CuPy arrays and numbers. New outputs come from PyTorch if
    an argument does, otherwise they are ``tvm_ffi.Tensor`` objects, which ``numpy.from_dlpack`` views without a copy.
    """

    # Found faster than what is in the dictionary that each tvm-ffi function has.
    __slots__ = ("_function", "_mutable")

    _function: tvm_ffi.Function
    _mutable: set[type]
    _module: tvm_ffi.Module

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel; see :class:`Kernel` for the arguments.

        Raises:
            TypeError: the number of arguments, a kind, a dtype or a rank does not fit, or an array cannot be passed.
            ValueError: sizes, strides, alignment, a range or a device do not fit, or an array that the kernel writes
                is read-only.
            RuntimeError: the device, or its driver, cannot run the kernel.
            MemoryError: there is not enough for an output.
        """
        if IMMUTABLE in modules and not self._mutable.issuperset(map(type, arguments)):
            self._refuse_immutable(arguments)
        try:
            return self._function(*arguments)
        except Exception as error:
            exported = None if str(error).startswith("kernel '") else self._exported(arguments)
            if exported is None:
                raise
        return self._function(*exported)

    def _refuse_immutable(self, arguments: tuple[Any, ...]) -> None:
        for position, argument in enumerate(arguments):
            if library_of(argument) != IMMUTABLE:
                self._mutable.add(type(argument))
            else:
                name, written = self._passed(len(arguments))[position]
                if written:
                    self._refuse_writing(name, "an array of JAX, which is immutable")

    def _exported(self, arguments: tuple[Any, ...]) -> list[Any] | None:
        """The arguments with read-only arrays in a form that tvm-ffi takes; None, if none is read-only.

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
                tensor = tvm_ffi.from_dlpack(_readable(argument))
            except Exception as error:
                self._refuse_array(name, argument, error)
            if _is_read_only(argument):
                exported[position] = tensor
        return exported if any(map(_is_read_only, arguments)) else None

    def _passed(self, count: int) -> list[tuple[str, bool]]:
        """Name of each argument of a call with that many, and whether some variant writes it."""
        chosen = self._entry["variants"] if self._index is None else [self._entry["variants"][self._index]]
        written = {argument["name"] for entry in chosen for argument in entry["arguments"] if argument["written"]}
        arguments = chosen[0]["arguments"]
        names = [argument["name"] for argument in arguments if count == len(arguments) or not argument["output"]]
        names += [f"number {number}" for number in range(len(names) + 1, count + 1)]
        return [(name, name in written) for name in names[:count]]

    def _of_variant(self, index: int) -> Kernel:
        return make_kernel(self.name, self._entry, self._module, index)

    @property
    def function(self) -> tvm_ffi.Function:
        """The compiled dispatcher itself.

        Calling it spares the Python frame, about 0.2 us. It takes no read-only arrays, writes into arrays of JAX
        without a word, and leaves errors about arrays that a library does not hand out to that library.
        """
        return self._function

    def supported(self, device: Any = "cpu") -> bool:
        """Whether this kernel has code that the device, and its driver, can run."""
        return not self._module["kw_supported"](*parse_device(device))

    def preload(self, device: Any = "cpu") -> None:
        """Load the device code ahead of the first call, for example before a graph is captured.

        Raises:
            RuntimeError: the device, or its driver, cannot run the kernel; the message says why.
            ValueError: the kernel is not built for devices of that kind.
        """
        self._module["kw_preload"](*parse_device(device))

    def find_device_code(self, provider: Callable[[str, str, int, int], str]) -> None:
        """Have device code, if the library does not hold it, found by a function as :class:`Provider` has one."""
        self._module["kw_set_provider"](tvm_ffi.convert(provider))

    def set_num_threads(self, count: int) -> None:
        """Set how many threads parallel CPU loops use, in the whole process.

        Raises:
            ValueError: count is not a positive integer.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"set_num_threads: expected a positive integer, got {count!r}")
        self._module["kw_set_num_threads"](count)

    def num_threads(self) -> int:
        """How many threads parallel CPU loops use."""
        return int(self._module["kw_num_threads"]())


def _is_read_only(argument: Any) -> bool:
    """Whether NumPy says so of an array; other libraries either have no such arrays, or do not say."""
    return hasattr(argument, "__dlpack__") and getattr(getattr(argument, "flags", None), "writeable", None) is False


def _readable(array: Any) -> Any:
    """What tvm-ffi can take of an array: of a read-only one its export, or a copy if NumPy is older than 2.1.

    tvm-ffi asks for DLPack's older form, which cannot say that memory is read-only, so NumPy refuses.
    """
    if not _is_read_only(array):
        return array
    try:
        return array.__dlpack__(max_version=(1, 0))
    except TypeError:
        return array.copy()


def load(loader: Loader, name: str, entry: dict[str, Any]) -> Kernel:
    """Load a kernel of a package.

    Raises:
        ImportError: its library is missing or was altered, or cannot be loaded.
    """
    kernel = load_kernel(name, entry, loader.library(name))
    if "device_code" in loader.manifest() and "cuda" in kernel.devices:
        kernel.find_device_code(loader.provider(name).find)
    return kernel


def load_kernel(name: str, entry: dict[str, Any], path: Path) -> Kernel:
    """Load a library and make the kernel object whose call dispatches over all variants."""
    try:
        module = tvm_ffi.load_module(str(path))
    except (OSError, RuntimeError) as error:
        raise ImportError(f"{path}: cannot be loaded: {error}") from error
    try:
        return make_kernel(name, entry, module, None)
    except AttributeError as error:
        raise ImportError(f"{path}: has no kernel {name!r}; install the package again") from error


def make_kernel(name: str, entry: dict[str, Any], module: tvm_ffi.Module, index: int | None) -> Kernel:
    """A kernel object over the dispatcher (index None) or over the variant of that number."""
    symbol = name if index is None else f"{name}__{index}"
    function = module.get_function(symbol)
    kernel = Kernel.__new__(Kernel)
    # Takes over the reference that the plain function object holds.
    kernel.__move_handle_from__(function)
    kernel._function = module.get_function(symbol)
    kernel._mutable = set()
    kernel.name = name
    kernel._entry = entry
    kernel._module = module
    kernel._index = index
    kernel.__doc__ = entry["doc"]
    return kernel
