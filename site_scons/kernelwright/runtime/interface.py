"""What kernel objects have besides their call: configs, devices, services of the library, and errors for arguments.

Only the standard library is imported here.
"""

from __future__ import annotations

import operator
import threading

from .loader import gaps_text
from .passed import optional_in
from .refusal import BY_KERNEL, because, refuse, refuse_writing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn, TypeVar

    from .loader import Loader

    Self = TypeVar("Self", bound="Interface")
    Called = TypeVar("Called", bound="LibraryKernel")

DEVICE_TYPES = {"cpu": 1, "cuda": 2}
"""DLPack's device type numbers."""

LEGACY, OF_THREAD = 1, 2
"""The default streams as DLPack numbers them for CUDA: the legacy one, and that of the thread."""

IMMUTABLE = "jaxlib"
"""The library whose arrays nobody may write into. Its DLPack exports do not say so.

JAX reuses the memory of an array as soon as nobody holds the array and no work of JAX itself reads it."""

TENSOR = "expected a tensor: an array of NumPy, PyTorch, JAX, CuPy or another library with DLPack"
"""What errors say about an argument that has to be a tensor, and is none."""

REMEDIES = {
    "numpy": "pass a dtype that NumPy exports, in native byte order, or bfloat16 or float8 of ml_dtypes",
    "torch": "pass a dense tensor that has data, outside of transformations such as vmap; for a view that is computed "
    "when it is read, x.resolve_neg().resolve_conj()",
    "jax": "call the kernel outside of jax.jit and the like, or in a jax.pure_callback",
    "jaxlib": "pass an array that lies on one device and was not deleted",
}
"""Library -> what to do about an array that it does not export."""


VIEW = "a view that PyTorch computes when it is read (is_neg, is_conj)"
"""What errors call a tensor whose memory does not hold its values."""


class NoVariantError(KeyError):
    """No variant has this config. A KeyError alone would show the message in quotes and on one line."""

    def __str__(self) -> str:
        return str(self.args[0])


def backward_of(variant: Any, backward: Any) -> Any:
    """The variant of a backward kernel that has the config of a kernel's variant; None: there is none."""
    if backward is None:
        return None
    [config] = variant.variants
    names = backward.variants[0]
    try:
        return backward.variant(**{name: value for name, value in config.items() if name in names})
    except NoVariantError:
        return None


class Choice:
    """Which variant a call runs, and why.

    Attributes:
        variant: the name of the variant.
        config: its config.
        reason: why, as a sentence.
    """

    __slots__ = ("config", "reason", "variant")

    def __init__(self, variant: str, config: dict[str, Any], reason: str) -> None:
        self.variant = variant
        self.config = config
        self.reason = reason

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Choice):
            return NotImplemented
        return (self.variant, self.config, self.reason) == (other.variant, other.config, other.reason)

    __hash__ = None  # type: ignore[assignment] # a config is a dictionary

    def __repr__(self) -> str:
        return f"<variant {self.variant}: {self.reason}>"


def plain_number(value: Any) -> Any:
    """A number of any library as a Python number. It is converted once, so the number compared is the one launched.

    Arguments:
        value: what was passed as a number.

    Returns:
        An int for an integer (``__index__``), a bool for NumPy's bool, a float for any other real number
        (``__float__``). Symbolic numbers of PyTorch, and values that are no numbers, are returned unchanged.
    """
    if type(value) in (int, bool, float) or value is None or is_symbolic(value):
        return value
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind == "b" and getattr(value, "shape", None) == ():
        return bool(value)  # NumPy's bool is no index since version 2
    try:
        return operator.index(value)
    except TypeError:  # arrays have the method even if they are no integers
        pass
    try:
        return float(value) if hasattr(value, "__float__") and kind != "c" else value
    except (TypeError, ValueError, OverflowError):
        return value


def in_order(
    kernel: str,
    items: Sequence[Mapping[str, Any]],
    positional: Sequence[Any],
    named: Mapping[str, Any],
    optional: Mapping[str, Any],
) -> tuple[Any, ...]:
    """The arguments of a call by position. If some are left out, arguments passed by position are the first inputs.

    Arguments:
        kernel: its name.
        items: what the manifest says of each argument.
        positional: what was passed by position.
        named: what was passed by name; an output that is None counts as left out.
        optional: the inputs that may be left out, and what they are then.

    Raises:
        TypeError: no argument has a given name, or an argument is given twice or is missing.
    """

    outputs = {item["name"] for item in items if item["output"]}
    given = {name: value for name, value in named.items() if value is not None or name not in outputs}
    names = [item["name"] for item in items]
    if unknown := [name for name in given if name not in names]:
        known = ", ".join(names) or "not declared: pass them by position"
        refuse(kernel, TypeError, f"it has no argument {unknown[0]!r}\n  remedy: its arguments are {known}")
    if len(positional) + len(given) < len(names):
        names = [name for name in names if name not in outputs or outputs & given.keys()]
    values = dict(zip(names, positional, strict=False))
    if twice := [name for name in values if name in given]:
        problem = f"argument {twice[0]!r} was given by its position and by its name"
        refuse(kernel, TypeError, f"{problem}\n  remedy: pass it once")
    values = {**{name: optional[name] for name in names if name in optional}, **values, **given}
    if missing := [name for name in names if name not in values]:
        problem = f"argument {missing[0]!r} is missing"
        refuse(kernel, TypeError, f"{problem}\n  remedy: pass all arguments, or all but the outputs")
    return (*(values[name] for name in names), *positional[len(names) :])


UNSIGNED = 1 << 64
"""One more than the greatest unsigned integer of 64 bits."""


def unsigned_of(entry: dict[str, Any]) -> frozenset[str]:
    """The names of a kernel's numbers that are uint64 in each variant.

    Frameworks pass values from 2**63 on as negative integers.

    Arguments:
        entry: the kernel's part of the manifest.
    """
    found: dict[str, set[str]] = {}
    for variant in entry["variants"]:
        for item in variant["arguments"]:
            found.setdefault(item["name"], set()).add("" if item["kind"] == "tensor" else item["dtype"])
    return frozenset(name for name, dtypes in found.items() if dtypes == {"uint64"})


def is_symbolic(value: Any) -> bool:
    """Whether a value is a symbolic number of PyTorch: it is not known yet, and must not be converted."""
    # PyTorch's compiler takes such a number for an int, and cannot trace whether it has an attribute.
    return type(value) not in (int, float, bool) and hasattr(value, "__sym_max__")


class Interface:
    """A kernel, or one variant of it: its part of the manifest, and the messages for wrong arguments."""

    __slots__ = ()  # so that a type of another language can have it as a base

    name: str
    _entry: dict[str, Any]
    _index: int | None
    _loader: Loader | None = None  # of the package; a variant that was asked for has none

    def _of_variant(self: Self, index: int) -> Self:
        """The kernel object of the variant of that number."""
        raise NotImplementedError

    @property
    def variants(self) -> tuple[dict[str, Any], ...]:
        """The configs that are built, in order; the first is the default."""
        entries = self._entry["variants"]
        chosen = entries if self._index is None else [entries[self._index]]
        return tuple(dict(entry["config"]) for entry in chosen)

    def variant(self: Self, **config: Any) -> Self:
        """The first variant whose config has these values. On a variant, its other values stay as they are.

        A variant whose config has just these values goes before those with more keys, and a variant for any size before
        those for multiples.

        Raises:
            KeyError: no variant has them; the message lists the configs.
        """
        entries = self._entry["variants"]
        wanted = config if self._index is None else entries[self._index]["config"] | config
        order = sorted(enumerate(entries), key=lambda pair: _surplus(pair[1], wanted))
        for fits in (_equal_in_type, _equal):
            for index, entry in order:
                if all(key in entry["config"] and fits(entry["config"][key], value) for key, value in wanted.items()):
                    return self._of_variant(index)
        configs = [_listed(entry["config"]) or "one without a config" for entry in entries]
        built = "; ".join(configs) + gaps_text(self._entry.get("missing", []))
        raise NoVariantError(f"{self.name} has no variant with {_listed(wanted)}; built are: {built}")

    @property
    def devices(self) -> frozenset[str]:
        """The kinds of devices that it is built for: ``"cpu"``, ``"cuda"``."""
        targets = {unit["target"] for entry in self._entry["variants"] for unit in entry["units"]}
        return frozenset("cpu" if target == "llvm" else target for target in targets)

    def _in_order(self, positional: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        if not named:
            return tuple(positional)
        variants = self._entry["variants"]
        return in_order(self.name, variants[0]["arguments"], positional, named, optional_in(variants))

    def _choice(self, index: int, reason: str) -> Choice:
        entry = self._entry["variants"][index]
        return Choice(entry["slug"], dict(entry["config"]), reason)

    def _missed(self, arguments: Sequence[Any], error: Exception, stream: Any = None) -> Any:
        """Note a failed call if no variant fits it. If the user wants that, compile the variant, and return the result.

        Raises:
            Exception: the error of the call, otherwise.
        """
        if self._loader is None:
            raise error
        return self._loader.missed_calls().answer(self.name, self._entry, arguments, error, stream)

    def _note_miss(self, arguments: Sequence[Any], error: Exception) -> None:
        """Note a call in a program that is being traced, if no variant fits it."""
        if self._loader is not None:
            self._loader.missed_calls().note(self.name, self._entry, arguments, error)

    def _refuse_writing(self, name: str, what: str) -> NoReturn:
        refuse_writing(self.name, name, what)

    def _refuse_large(self, name: str, what: str) -> NoReturn:
        refuse(self.name, ValueError, f"argument {name!r} is an int that is too large for {what}")

    def _refuse_array(self, name: str, argument: Any, error: Exception) -> NoReturn:
        remedy = REMEDIES.get(library_of(argument), "pass an array of NumPy, PyTorch, JAX or CuPy")
        text = f"argument {name!r} is a {kind_of(argument)} that cannot be passed: {first_line(error)}"
        raise because(TypeError(f"kernel {self.name!r}: {text}\n  remedy: {remedy}"), BY_KERNEL) from error

    def __repr__(self) -> str:
        if self._index is None:
            count = len(self.variants)
            return f"<kernel {self.name} with {count} variant{'s' if count > 1 else ''}>"
        return f"<kernel {self.name}, variant {self._entry['variants'][self._index]['slug']}>"

    def __copy__(self: Self) -> Self:
        return self

    def __deepcopy__(self: Self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"kernel {self.name} cannot be pickled; import it where it is used")


class LibraryKernel(Interface):
    """A kernel that is called through its library, and what the library does besides."""

    __slots__ = ()

    _service: Callable[..., Any]  # calls a function of the library by its name, with integers
    _set_provider: Callable[[Callable[[str, str, int, int], str]], None]

    def find_device_code(self, provider: Callable[[str, str, int, int], str]) -> None:
        """Set the function that finds device code which the library does not hold; see :meth:`Provider.find`."""
        self._set_provider(provider)

    def _completed(self: Called, loader: Loader) -> Called:
        """This kernel, set up to find the device code that its library does not hold."""
        has_own_host_code = any("exported" in variant for variant in self._entry["variants"])
        if "device_code" in loader.manifest() and "cuda" in self.devices and not has_own_host_code:
            self.find_device_code(loader.provider(self.name).find)
        return self

    def supported(self, device: Any = "cpu") -> bool:
        """Whether this kernel has code that the device, and its driver, can run."""
        return not self._service(b"kw_supported", *parse_device(device))

    def preload(self, device: Any = "cpu") -> None:
        """Load the device code ahead of the first call, for example before a graph is captured.

        Raises:
            RuntimeError: the device, or its driver, cannot run the kernel; the message says why.
            ValueError: the kernel is not built for devices of that kind.
        """
        self._service(b"kw_preload", *parse_device(device))

    def set_num_threads(self, count: int) -> None:
        """Set how many threads parallel CPU loops use, in the whole process.

        Raises:
            ValueError: count is not a positive integer.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"set_num_threads: expected a positive integer, got {count!r}")
        self._service(b"kw_set_num_threads", count)

    def num_threads(self) -> int:
        """How many threads parallel CPU loops use."""
        return int(self._service(b"kw_num_threads"))

    def _chooser(self) -> str:
        """The name of the library's function that tells what a call would run."""
        return "kw_choice" if self._index is None else f"kw_choice__{self._index}"

    def _told_choice(self, text: str) -> Choice:
        """The choice in the text that this function returns: the number of the variant, a blank, and the reason."""
        number, _, reason = text.partition(" ")
        return self._choice(int(number), reason)

    def _hand_over(self, device: int, launched: int, stream: Any, thread: int) -> None:
        hand_over(self.name, self._service, device, launched, stream, thread)


def hand_over(kernel: str, service: Callable[..., Any], device: int, launched: int, stream: Any, thread: int) -> None:
    """Make whoever takes an output on a GPU wait for the kernel that writes it.

    The work on the launch's stream is recorded now, and not at the launch. So an output that stays on that stream costs
    nothing, later kernels there that write the output count too, and a stream that is being captured sees no event.

    Arguments:
        kernel: the kernel's name.
        service: called with ``kw_synchronize``, the device and a stream, or -1 for all streams, it waits; with
            ``kw_order``, the device and two streams, it makes the second stream wait for the first.
        device: CUDA's number of the device.
        launched: the handle of the launch's stream.
        stream: what was passed to ``__dlpack__``, as the array API standard has it for CUDA: the handle of the
            taker's stream, 1 for the default one, 2 for the default one of the thread, -1 if the taker orders its
            work itself. None if the taker names no stream: then this function waits until the output is finished.
        thread: the thread of the launch, by ``threading.get_ident``.

    Raises:
        BufferError: the stream is no handle.
        RuntimeError: the driver refuses, or a stream that is being captured would have to be waited for.
    """
    is_stream = isinstance(stream, int) and not isinstance(stream, bool) and stream >= -1 and stream != 0
    if stream is not None and not is_stream:
        raise BufferError(
            f"kernel {kernel!r}: an output was asked for on the stream {stream!r}\n  remedy: pass a handle, 1 "
            "for the default stream, 2 for that of the thread, -1 for no order, or None to wait"
        )
    if stream == -1:
        return
    if launched == OF_THREAD and thread != threading.get_ident():
        # Another thread's default stream has no handle here, so all streams are waited for.
        service(b"kw_synchronize", device, -1)
    elif stream is None:
        service(b"kw_synchronize", device, launched)
    else:
        service(b"kw_order", device, launched, stream)


class NewArray:
    """A new array on a GPU that no framework has allocated, and that knows the stream of its launch.

    Through DLPack it can be taken at once, on any stream: that stream is made to wait for the kernel.

    Arguments:
        kernel: the name of the kernel that writes it.
        service: see :func:`hand_over`.
        view: the object with its data; other attributes are looked up there.
        stream: the handle of the launch's stream, which has to exist until the array is taken.
        kept: an object that keeps that stream alive, if one was passed.
    """

    __slots__ = ("__weakref__", "_kept", "_kernel", "_service", "_stream", "_thread", "_view")

    def __init__(self, kernel: str, service: Callable[..., Any], view: Any, stream: int, kept: Any = None) -> None:
        self._kernel = kernel
        self._service = service
        self._view = view
        self._stream = stream
        self._kept = kept
        self._thread = threading.get_ident()

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's type and number of the device."""
        kind, number = self._view.__dlpack_device__()
        return int(kind), int(number)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        """A capsule, in the form of DLPack 1 if ``max_version`` is that or later.

        Arguments:
            stream: the taker's stream, which is made to wait; see :func:`hand_over`. Without one, this method waits for
                the kernel.
            max_version: the latest version that the taker understands.
            dl_device: the device that the taker wants; only the array's own is possible.
            copy: whether the taker wants a copy, which is not possible.

        Raises:
            BufferError: the stream is no handle, or a copy is asked for.
            RuntimeError: the driver refuses, or a stream that is being captured would have to be waited for.
        """
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("a new output of a kernel is exported where it is, and not copied")
        self._hand_over(stream)
        return self._exported(max_version if max_version and max_version[0] >= 1 else None)

    def _exported(self, max_version: Any) -> Any:
        return self._view.__dlpack__(max_version=max_version)

    def _hand_over(self, stream: Any) -> None:
        hand_over(self._kernel, self._service, self.__dlpack_device__()[1], self._stream, stream, self._thread)

    def __getattr__(self, name: str) -> Any:
        """``shape``, ``dtype`` and all else that the view has."""
        if name.startswith("_"):
            raise AttributeError(name)  # private attributes would give the data without waiting for the stream
        return getattr(self._view, name)

    def __repr__(self) -> str:
        place = f"cuda:{self.__dlpack_device__()[1]}"
        return f"<output of kernel {self._kernel}: {self.dtype}{list(self.shape)} on {place}>"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or the name of its class if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def libraries_of(kind: type) -> list[str]:
    """The top modules of a type and of its bases, without repetition."""
    return list(dict.fromkeys(base.__module__.partition(".")[0] for base in kind.__mro__))


def kind_of(argument: Any) -> str:
    """The type of an argument as messages name it."""
    kind = type(argument)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def library_of(argument: Any) -> str:
    """The top module of an argument's type."""
    return type(argument).__module__.partition(".")[0]


def parse_device(device: Any) -> tuple[int, int]:
    """DLPack's (device type, index) of ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or an object whose ``str()`` is like these.

    Raises:
        ValueError: it is none of these.
    """
    kind, _, index = str(device).partition(":")
    if kind not in DEVICE_TYPES or not (index or "0").isdigit():
        raise ValueError(f"unknown device {device!r}; expected 'cpu', 'cuda' or 'cuda:N'")
    return DEVICE_TYPES[kind], int(index or 0)


def _surplus(entry: dict[str, Any], wanted: dict[str, Any]) -> tuple[bool, int]:
    """What a variant has beyond the wanted values: whether it has more keys, and how many multiples of sizes."""
    classes = {f"{symbol}_multiple_of" for symbol in entry.get("multiples", {})}
    return len(entry["config"]) != len(wanted), len(classes - wanted.keys())


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right)


def _equal_in_type(left: Any, right: Any) -> bool:
    """Whether two values are the same: 1, 1.0 and True are equal, and may be three configs."""
    return type(left) is type(right) and bool(left == right)


def _listed(config: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in config.items())
