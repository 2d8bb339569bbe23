"""Loads kernels that are extension modules: one binary each, for Python 3.11 and later.

A kernel object is of the module's own type, and has the services of every kernel object. A call enters C at once, and
runs no Python code of ours or of tvm-ffi: only the library of that package is loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

from .interface import Choice, LibraryKernel, libraries_of, library_of, plain_number
from .passed import optional_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature
    from types import ModuleType
    from typing import Any

    from .loader import Loader

OLDEST_PYTHON = (3, 11)
"""The first Python that has the buffer protocol in its limited API."""

IMPORTERS = {
    "numpy": "numpy",
    "jax": "jax.dlpack",
    "jaxlib": "jax.dlpack",
    "cupy": "cupy",
    "torch": "torch",  # if it is too old to make them in C
    "tvm_ffi": "tvm_ffi",
    "tvm": "tvm_ffi",
}
"""Library of the first array of a call -> the module whose ``from_dlpack`` turns new outputs into its arrays."""


STREAMS: dict[str, Callable[[Any, int], Any]] = {
    "torch": lambda torch, device: torch.cuda.current_stream(device),
    "cupy": lambda cupy, device: cupy.cuda.get_current_stream(device),
}
"""Library -> a function that gives its current stream on a device. Other libraries tell it in C, or have none: JAX
orders its work by itself."""


class Services(LibraryKernel):
    """The methods of a kernel object besides its call. The module has ``_load``, ``_service`` and ``_set_provider``."""

    _load: Callable[[bytes, bytes, bytes], None]
    _library: Path
    _importers: dict[type, Callable[[Any], Any]]
    _choosing: Any = None  # an object whose call is that of kw_choice

    def _of_variant(self, index: int) -> Services:
        return _make(type(self), self.name, self._entry, self._library, index)

    def choice(self, *arguments: Any, **named: Any) -> Choice:
        """Which variant a call with these arguments runs, and why; nothing runs.

        Raises:
            TypeError, ValueError, RuntimeError: the call would, because of a dtype, a rank, a constant size, alignment,
                the range of a number, or the device. Only the call itself looks at strides, and at sizes that have to
                be equal.
        """
        if self._choosing is None:
            symbol = self._chooser()
            self._choosing = _make(type(self), self.name, self._entry, self._library, self._index, symbol)
        return self._told_choice(self._choosing(*arguments, **named))

    @property
    def __signature__(self) -> Signature:
        """The parameters as ``inspect`` shows them: outputs and the stream may be left out."""
        return _signature(self._entry)

    def _current_stream(self, like: type, device: int) -> Any:
        """The current stream of the library that has the type ``like``; None, if none is known."""
        for library in libraries_of(like):
            if library in STREAMS:
                return STREAMS[library](sys.modules[library], device)
        return None

    def _enter_stream(self, like: type, device: int, stream: int) -> Any:
        """Make a stream current in the library that has the type ``like``; return the context to leave afterwards.

        Raises:
            ValueError: Kernelwright cannot do that for this library.
        """
        if "torch" not in libraries_of(like):
            raise ValueError(
                f"kernel {self.name!r}: a stream was given, and outputs were left out, which {like.__module__} "
                "allocates for its current stream\n  remedy: pass the outputs, or make the stream its current one"
            )
        cuda = sys.modules["torch"].cuda
        entered = cuda.stream(cuda.ExternalStream(stream, device) if stream > 1 else cuda.default_stream(device))
        entered.__enter__()
        return entered

    _plain_number = staticmethod(plain_number)

    def _as_integers(self, array: Any) -> tuple[Any, int] | None:
        """An array whose dtype keeps it from having a buffer, as integers; None: it is another object."""
        from .dlpack import as_integers

        return as_integers(array)

    def _adopt(self, output: Any, first: Any) -> Any:
        """Turn a new output into an array of the library of the call's first array, if that is a known one."""
        like = type(first)
        try:
            importer = self._importers[like]
        except KeyError:
            importer = self._importers[like] = _find_importer(like)
        made = importer(output)
        if made is not output or library_of(first) != "numpy":
            return made
        from .dlpack import as_integers, to_numpy

        return made if as_integers(first) is None else to_numpy(output)


def _find_importer(like: type) -> Callable[[Any], Any]:
    """The function by which a library takes new outputs without a copy."""
    library = like.__module__.partition(".")[0]
    if library not in IMPORTERS:
        return lambda output: output
    importer: Callable[[Any], Any] = importlib.import_module(IMPORTERS[library]).from_dlpack
    return _or_as_it_is(importer) if library == "numpy" else importer


def _or_as_it_is(importer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An importer that returns an output unchanged if its library lacks the dtype, as NumPy lacks bfloat16."""

    def take(output: Any) -> Any:
        try:
            return importer(output)
        except (BufferError, RuntimeError, TypeError):
            return output

    return take


def _signature(entry: dict[str, Any]) -> Signature:
    from inspect import Parameter, Signature

    arguments = entry["variants"][0]["arguments"]
    # Python allows no parameter without a default after one with a default, so outputs before an input have none.
    trailing = len(arguments)
    optional = optional_in(entry["variants"])
    while trailing and (arguments[trailing - 1]["output"] or arguments[trailing - 1]["name"] in optional):
        trailing -= 1
    parameters = [
        Parameter(
            a["name"],
            Parameter.POSITIONAL_OR_KEYWORD,
            default=optional.get(a["name"]) if i >= trailing else Parameter.empty,
        )
        for i, a in enumerate(arguments)
    ]
    return Signature([*parameters, Parameter("stream", Parameter.KEYWORD_ONLY, default=None)])


def load(loader: Loader, name: str, entry: dict[str, Any]) -> Services:
    """Import the extension module of a kernel and make the object whose call dispatches over all variants.

    Raises:
        ImportError: this Python is too old, tvm-ffi is not installed, or a file of the package is missing or altered.
    """
    if not _is_suitable():
        raise ImportError(
            f"kernel {name!r}: the cython backend needs CPython 3.11 or later with a GIL, this is {sys.version}\n"
            "  remedy: use such a Python, or another backend of the package",
            name=name,
        )
    path = loader.verified(f"backends/cython/_{name}.abi3.so")
    module = _import(f"{loader.package}.backends.cython._{name}", path)
    kind = type(name, (Services, module.Function), {"__module__": loader.package, "__doc__": entry["doc"]})
    return _make(kind, name, entry, loader.library(name), None)._completed(loader)


def _is_suitable() -> bool:
    """Whether this Python has the stable ABI that the modules are compiled for. A free-threaded one has another."""
    is_threaded = "t" in getattr(sys, "abiflags", "")
    return sys.implementation.name == "cpython" and sys.version_info >= OLDEST_PYTHON and not is_threaded


def _import(name: str, path: Path) -> ModuleType:
    file_loader = ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, str(path), loader=file_loader)
    if spec is None:
        raise ImportError(f"{path}: cannot be imported", name=name, path=str(path))
    module = importlib.util.module_from_spec(spec)
    file_loader.exec_module(module)
    return module


def _make(
    kind: type[Services], name: str, entry: dict[str, Any], library: Path, index: int | None, function: str = ""
) -> Services:
    kernel = kind()
    called = function or (name if index is None else f"{name}__{index}")
    kernel._load(os.fsencode(find_runtime()), os.fsencode(library), f"__tvm_ffi_{called}".encode())
    kernel.name = name
    kernel._entry = entry
    kernel._library = library
    kernel._index = index
    kernel._importers = {}
    return kernel


def find_runtime() -> Path:
    """The path of libtvm_ffi.so. The package is not imported: that takes long, and imports PyTorch.

    Raises:
        ImportError: it is not installed.
    """
    spec = importlib.util.find_spec("tvm_ffi")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "lib", "libtvm_ffi.so")
        if path.is_file():
            return path
    raise ImportError(
        "the library of tvm-ffi is not installed, which kernels are called through\n"
        "  remedy: python -m pip install 'apache-tvm-ffi>=0.1.13,<0.2'"
    )
