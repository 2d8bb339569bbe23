"""The callable kernel objects of this package: tvm-ffi functions with a few attributes more.

A call goes straight to the compiled dispatcher; no Python code runs in between.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm_ffi

DEVICE_TYPES = {"cpu": 1, "cuda": 2}
"""DLPack's device type numbers."""


class Kernel(tvm_ffi.Function):
    """A kernel, or one variant of it.

    Call it with all its arguments to have the outputs written into those you give, or leave the outputs out to get
    new ones. Arguments are positional: NumPy, PyTorch, JAX or CuPy arrays and numbers. New outputs come from PyTorch if
    an argument does, otherwise they are ``tvm_ffi.Tensor`` objects, which ``numpy.from_dlpack`` views without a copy.
    """

    name: str
    _entry: dict[str, Any]
    _module: tvm_ffi.Module
    _index: int | None

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
        """Whether this kernel has code that the device can run."""
        return not self._module["kw_supported"](*parse_device(device))

    def preload(self, device: Any = "cpu") -> None:
        """Load the device code ahead of the first call, for example before a graph is captured.

        Raises:
            RuntimeError: the device, or its driver, cannot run the kernel; the message says why.
            ValueError: the kernel is not built for devices of that kind.
        """
        self._module["kw_preload"](*parse_device(device))

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
            return f"<kernel {self.name} with {len(self.variants)} variants>"
        return f"<kernel {self.name}, variant {self._entry['variants'][self._index]['slug']}>"

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: Any) -> Kernel:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"kernel {self.name} cannot be pickled; import it where it is used")


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
    function = module.get_function(name if index is None else f"{name}__{index}")
    kernel = Kernel.__new__(Kernel)
    # Takes over the reference that the plain function object holds.
    kernel.__move_handle_from__(function)
    kernel.name = name
    kernel._entry = entry
    kernel._module = module
    kernel._index = index
    kernel.__doc__ = entry["doc"]
    return kernel
