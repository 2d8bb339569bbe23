"""Eager calls: the first listed variant that fits the arguments, compiled at its first use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..core.errors import KernelwrightError
from ..runtime.arguments import Described, Signatures
from ..runtime.dtype import name_of_torch
from .record import open_block
from .session import SESSIONS

if TYPE_CHECKING:
    from ..discover.discovery import KernelRecord
    from .options import Options
    from .origin import Origin

TARGETS = {"cpu": "llvm", "cuda": "cuda"}
"""Kind of a device -> the target of its code."""

UNALIGNED = "has data that is not aligned to"
"""What the error of a call says whose arguments fit but for their alignment (``library/launcher/call.h``)."""


class Variants(Protocol):
    """What compiles the variants of a definition: a ``Compilable``."""

    name: str

    @property
    def _options(self) -> Options: ...

    def _origin(self, options: Options) -> Origin: ...

    def _variant(self, origin: Origin, config: Mapping[str, Any], target: str | None) -> dict[str, Any]: ...

    def _load(self, origin: Origin, config: Mapping[str, Any]) -> Any: ...

    def _snapshot(self) -> tuple[Any, ...]: ...


class Eager:
    """Chooses among the variants of a definition, as the dispatcher of a package does.

    What was chosen is remembered by the dtypes, shapes and devices of the arguments. Safe to use from several threads.

    Arguments:
        definition: which compiles the variants.
        bound: gives a config for arguments that no listed variant fits.
    """

    def __init__(self, definition: Variants, bound: Callable[..., Mapping[str, Any]] | None) -> None:
        self._definition = definition
        self._bound = bound
        self._chosen: dict[tuple[Any, ...], Any] = {}
        self._lock = threading.RLock()

    def __call__(self, *arguments: Any) -> Any:
        """Call the variant that fits."""
        key = (SESSIONS.generation, self._definition._snapshot(), *map(_key, arguments))
        kernel = self._chosen.get(key)
        if kernel is None:
            kernel = self._chosen[key] = self._choose(arguments)
        elif (recorder := open_block()) is not None:  # which may be newer than the choice
            recorder.note(self._definition.name, kernel.variants[0])
        try:
            return kernel(*arguments)
        except ValueError as error:
            if UNALIGNED not in str(error):
                raise
            return self._call_another(arguments, kernel, error)

    def _call_another(self, arguments: tuple[Any, ...], refused: Any, error: ValueError) -> Any:
        """Call the next variant that fits data which is less aligned than the first one needs, as a dispatcher does."""
        for kernel in self._fitting(arguments):
            if kernel is not refused:
                with contextlib.suppress(ValueError):
                    return kernel(*arguments)
        raise error

    def _choose(self, arguments: tuple[Any, ...]) -> Any:
        """The kernel for some arguments, compiled if it was not before; see :meth:`_fitting`."""
        with self._lock:
            return next(self._fitting(arguments))

    def _fitting(self, arguments: tuple[Any, ...]) -> Iterator[Any]:
        """The kernels that fit some arguments, in order, each compiled when it is asked for.

        Raises:
            TypeError, ValueError: no listed variant fits, and no config is bound.
            KernelwrightError: a variant that might fit cannot be lowered, or the one that fits cannot be compiled.
        """
        origin = self._definition._origin(self._definition._options)
        passed = list(map(described, arguments))
        target = next((TARGETS.get(_kind(one)) for one in passed if one.device), None)
        tried, errors, fits = [], [], False
        for config in origin.record.configs:
            try:
                variant = self._definition._variant(origin, config, target)
            except KernelwrightError as error:
                errors.append(error)
                continue
            tried.append(variant)
            if _fits(origin.record, [variant], passed, target):
                fits = True
                yield self._definition._load(origin, config)
        if self._bound is not None:
            yield self._definition._load(origin, self._bound(*arguments))
        elif not fits:
            if errors:
                raise errors[0]
            _refuse(origin.record.name, tried, passed, target)
            raise KernelwrightError("no variant fits, and all of them do", origin.where)


def _fits(record: KernelRecord, variants: list[dict[str, Any]], passed: list[Described], target: str | None) -> bool:
    try:
        Signatures(record.name, {"variants": variants}).choose(passed, target=target)
    except (TypeError, ValueError):
        return False
    return True


def _refuse(name: str, tried: list[dict[str, Any]], passed: list[Described], target: str | None) -> None:
    """Raise the error that a package would have for a call that fits nothing, with what helps here."""
    try:
        Signatures(name, {"variants": tried}).choose(passed, target=target)
    except (TypeError, ValueError) as error:
        text = str(error).replace("no built variant accepts", "no listed config fits")
        here = f", add a config for them to the definition, or have @{name}.bind name one"
        raise type(error)(text.replace(", or add a config for them to the definition and rebuild", here)) from None


def described(argument: Any) -> Described:
    """An argument as the variants' signatures are compared with it."""
    dtype, shape = getattr(argument, "dtype", None), getattr(argument, "shape", None)
    if dtype is None or shape is None or not hasattr(argument, "__dlpack__"):
        return Described(value=argument)
    kind, number = argument.__dlpack_device__()
    device = {1: "cpu", 2: f"cuda:{number}"}.get(int(kind), f"device {int(kind)}")
    return Described(name_of_torch(dtype), tuple(map(int, shape)), device=device)


def _kind(passed: Described) -> str:
    return str(passed.device).partition(":")[0]


def _key(argument: Any) -> Any:
    """What decides which variant an argument fits."""
    dtype = getattr(argument, "dtype", None)
    if dtype is None:
        return type(argument)
    return dtype, tuple(argument.shape), getattr(argument, "device", None)
