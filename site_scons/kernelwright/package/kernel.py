"""The callable kernel objects of this package: tvm-ffi functions with a few attributes more.

One Python frame stands between a caller and the compiled dispatcher. It is there for what the dispatcher never sees:
arrays that are read-only, and arrays that their library does not hand out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from sys import modules
from typing import Any, NoReturn

import tvm_ffi

from .loader import Loader

DEVICE_TYPES = {"cpu": 1, "cuda": 2}
"""DLPack's device type numbers."""

IMMUTABLE = "jaxlib"
"""Where arrays come from that nobody may write into. Through DLPack they are exported without a word about that."""

REMEDIES = {
    "numpy": "pass a dtype that NumPy exports, in native byte order; bfloat16 only from PyTorch or JAX",
    "torch": "pass a dense tensor that has data, outside of transformations such as vmap",
    "jax": "call the kernel outside of jax.jit and the like, or in a jax.pure_callback",
    "jaxlib": "pass an array that lies on one device and was not deleted",
}
"""Library -> what to do about an array that it does not export."""


class Kernel(tvm_ffi.Function):
    """A kernel, or one variant of it.

    Call it with all its arguments to have the outputs written into those you give, or leave the outputs out to get
    new ones. Arguments are positional: NumPy, PyTorch, JAX or CuPy arrays and numbers. New outputs come from PyTorch if
    an argument does, otherwise they are ``tvm_ffi.Tensor`` objects, which ``numpy.from_dlpack`` views without a copy.
    """

    # Found faster than what is in the dictionary that each tvm-ffi function has.
    __slots__ = ("_function", "_mutable")

    _function: tvm_ffi.Function
    _mutable: set[type]
    name: str
    _entry: dict[str, Any]
    _module: tvm_ffi.Module
    _index: int | None

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
            if _library_of(argument) != IMMUTABLE:
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
                self._refuse(name, argument, error)
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

    def _refuse_writing(self, name: str, what: str) -> NoReturn:
        remedy = "pass an array that can be written, or leave outputs out of the call to get new ones"
        raise ValueError(
            f"kernel {self.name!r}: argument {name!r} is {what}, and the kernel writes it\n  remedy: {remedy}"
        )

    def _refuse(self, name: str, argument: Any, error: Exception) -> NoReturn:
        kind = f"{type(argument).__module__}.{type(argument).__qualname__}"
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        remedy = REMEDIES.get(_library_of(argument), "pass an array of NumPy, PyTorch, JAX or CuPy")
        raise TypeError(
            f"kernel {self.name!r}: argument {name!r} is a {kind} that cannot be passed: {cause}\n  remedy: {remedy}"
        ) from error

    @property
    def function(self) -> tvm_ffi.Function:
        """The compiled dispatcher itself.

        Calling it spares the Python frame, about 0.2 us. It takes no read-only arrays, writes into arrays of JAX
        without a word, and leaves errors about arrays that a library does not hand out to that library.
        """
        return self._function

    @property
    def variants(self) -> tuple[dict[str, Any], ...]:
        """The configs that are built, in order; the first is the default."""
        entries = self._entry["variants"]
        chosen = entries if self._index is None else [entries[self._index]]
        return tuple(dict(entry["config"]) for entry in chosen)

    def variant(self, **config: Any) -> Kernel:
        """The first variant whose config has these values; on a variant, one that differs from it only in these.

        Raises:
            KeyError: no variant has them; the message lists the configs.
        """
        entries = self._entry["variants"]
        wanted = config if self._index is None else entries[self._index]["config"] | config
        for fits in (_equal_in_type, _equal):
            for index, entry in enumerate(entries):
                if all(key in entry["config"] and fits(entry["config"][key], value) for key, value in wanted.items()):
                    return make_kernel(self.name, self._entry, self._module, index)
        configs = [_listed(entry["config"]) or "one without a config" for entry in entries]
        raise KeyError(f"{self.name} has no variant with {_listed(wanted)}; built are: {'; '.join(configs)}")

    @property
    def devices(self) -> frozenset[str]:
        """The kinds of devices that it is built for: ``"cpu"``, ``"cuda"``."""
        targets = {unit["target"] for entry in self._entry["variants"] for unit in entry["units"]}
        return frozenset("cpu" if target == "llvm" else target for target in targets)

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

    def __repr__(self) -> str:
        if self._index is None:
            count = len(self.variants)
            return f"<kernel {self.name} with {count} variant{'s' if count > 1 else ''}>"
        return f"<kernel {self.name}, variant {self._entry['variants'][self._index]['slug']}>"

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: Any) -> Kernel:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"kernel {self.name} cannot be pickled; import it where it is used")


def _library_of(argument: Any) -> str:
    return type(argument).__module__.partition(".")[0]


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


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right)


def _equal_in_type(left: Any, right: Any) -> bool:
    """Whether two values are the same: 1, 1.0 and True are equal, and may be three configs."""
    return type(left) is type(right) and bool(left == right)


def _listed(config: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in config.items())


def parse_device(device: Any) -> tuple[int, int]:
    """DLPack's (device type, index) of ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or an object that prints so.

    Raises:
        ValueError: it is none of these.
    """
    kind, _, index = str(device).partition(":")
    if kind not in DEVICE_TYPES or not (index or "0").isdigit():
        raise ValueError(f"unknown device {device!r}; expected 'cpu', 'cuda' or 'cuda:N'")
    return DEVICE_TYPES[kind], int(index or 0)


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
