"""Eager calls: the first listed variant that fits the arguments, compiled at its first use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..core.errors import KernelwrightError
from ..define.kernel import require_values
from ..define.recorded import config_text
from ..runtime.arguments import Described, Signatures, Words
from ..runtime.dtype import name_of_torch
from ..runtime.refusal import MISALIGNED, NO_TARGET, NO_VARIANT, refusal_of
from .record import open_block
from .session import SESSIONS

if TYPE_CHECKING:
    from ..discover.discovery import KernelRecord
    from .origin import Origin

TARGETS = {"cpu": "llvm", "cuda": "cuda"}
"""Kind of a device -> the target of its code."""

MOST_CHOICES = 10_000
"""How many choices are remembered; arguments of ever new shapes would fill the memory."""


class Variants(Protocol):
    """What compiles the variants of a definition: a ``Compilable``."""

    name: str

    def _origin(self) -> Origin: ...

    def _variant(self, origin: Origin, config: Mapping[str, Any], target: str | None) -> dict[str, Any]: ...

    def _load(self, origin: Origin, config: Mapping[str, Any], tuned: bool = False) -> Any: ...

    def _snapshot(self) -> tuple[Any, ...]: ...


class Candidates:
    """The variants of a definition for a target, each lowered and loaded once, whatever arguments it is compared with.

    Arguments:
        definition: which compiles them.
        target: the target; None: the first one that is compiled for.
    """

    def __init__(self, definition: Variants, target: str | None) -> None:
        self.origin = definition._origin()
        self._definition = definition
        self._target = target
        self._variants: dict[str, dict[str, Any]] = {}
        self._kernels: dict[str, Any] = {}

    def variant(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What a listed variant expects of its arguments. Raises KernelwrightError if it cannot be lowered."""
        name = config_text(config)
        if name not in self._variants:
            self._variants[name] = self._definition._variant(self.origin, config, self._target)
        return self._variants[name]

    def kernel(self, config: Mapping[str, Any]) -> Any:
        """The compiled kernel of a config. Raises KernelwrightError if there is no such config, or a stage fails."""
        require_values(config, self.origin.where)
        name = config_text(config)
        if name not in self._kernels:
            self._kernels[name] = self._definition._load(self.origin, config, tuned=True)
        return self._kernels[name]


class Eager:
    """Chooses among the variants of a definition, as the dispatcher of a package does.

    What was chosen is remembered by the dtypes, shapes and devices of the arguments. Safe to use from several threads,
    and in a child of fork.

    Arguments:
        definition: which compiles the variants.
        bound: gives a config for arguments that no listed variant fits.
    """

    def __init__(self, definition: Variants, bound: Callable[..., Mapping[str, Any]] | None) -> None:
        self._definition = definition
        self._bound = bound
        self._chosen: dict[tuple[Any, ...], Any] = {}
        self._candidates: dict[tuple[Any, ...], Candidates] = {}
        self._lock, self._process = threading.RLock(), os.getpid()

    def __call__(self, *arguments: Any) -> Any:
        """Call the variant that fits."""
        now = self._now()
        # A bound function may look at numbers, which no listed variant does.
        keys = tuple(map(_key if self._bound is None else _key_with_value, arguments))
        kernel = self._chosen.get((now, keys))
        if kernel is None:
            kernel = self._choose(now, arguments)
            if len(self._chosen) >= MOST_CHOICES:
                self._chosen.clear()
            # Which files decide is known better now than before.
            self._chosen[self._now(), keys] = kernel
        if (recorder := open_block()) is not None:  # which may be newer than the choice
            recorder.note(self._definition.name, kernel.variants[0])
        try:
            return kernel(*arguments)
        except ValueError as error:
            if refusal_of(error) != MISALIGNED:
                raise
            return self._call_another(now, arguments, kernel, error)

    def _now(self) -> tuple[Any, ...]:
        """What choices depend on besides the arguments."""
        return SESSIONS.generation, self._definition._snapshot()

    def _call_another(self, now: Any, arguments: tuple[Any, ...], refused: Any, error: ValueError) -> Any:
        """Call the next variant that fits data which is less aligned than the first one needs, as a dispatcher does."""
        for kernel in self._fitting(now, arguments):
            try:
                if kernel is not refused:
                    return kernel(*arguments)
            except ValueError as failure:
                if refusal_of(failure) != MISALIGNED:
                    raise
        raise error

    def _choose(self, now: Any, arguments: tuple[Any, ...]) -> Any:
        """The kernel for some arguments, compiled if it was not before; see :meth:`_fitting`."""
        if self._process != os.getpid():  # a thread that the child of fork does not have may hold the lock
            self._lock, self._process = threading.RLock(), os.getpid()
        with self._lock:
            return next(self._fitting(now, arguments))

    @staticmethod
    def _listed(record: KernelRecord, target: str | None) -> list[Mapping[str, Any]]:
        """The configs that a call is compared with: those that are listed, or that callers of a space can see."""
        seen = [choice.config for choice in record.choices if target is None or choice.points.get(target)]
        return seen if record.choices else list(record.configs)

    def _fitting(self, now: Any, arguments: tuple[Any, ...]) -> Iterator[Any]:
        """The kernels that fit some arguments, in order, each compiled when it is asked for.

        Arguments:
            now: what the variants were lowered from: they are lowered anew if that changes.

        Raises:
            TypeError, ValueError: no listed variant fits, and no config is bound.
            KernelwrightError: a variant that might fit cannot be lowered, or the one that fits cannot be compiled.
        """
        passed = list(map(described, arguments))
        target = next((TARGETS.get(_kind(one)) for one in passed if one.device), None)
        if (now, target) not in self._candidates:
            self._candidates = {key: known for key, known in self._candidates.items() if key[0] == now}
            self._candidates[now, target] = Candidates(self._definition, target)
        candidates = self._candidates[now, target]
        record = candidates.origin.record
        tried, errors, fits = [], [], False
        for config in self._listed(record, target):
            try:
                variant = candidates.variant(config)
            except KernelwrightError as error:
                errors.append(error)
                continue
            tried.append(variant)
            if _fits(record, [variant], passed, target):
                fits = True
                yield candidates.kernel(config)
        if self._bound is not None:
            yield candidates.kernel(self._bound(*arguments))
        elif not fits:
            if errors:
                raise errors[0]
            _refuse(record.name, tried, passed, target)
            raise KernelwrightError("no variant fits, and all of them do", candidates.origin.where)


def _fits(record: KernelRecord, variants: list[dict[str, Any]], passed: list[Described], target: str | None) -> bool:
    try:
        Signatures(record.name, {"variants": variants}).choose(passed, target=target)
    except (TypeError, ValueError) as error:
        if refusal_of(error) not in (NO_VARIANT, NO_TARGET):
            raise  # a dispatcher looks no further, either
        return False
    return True


def _refuse(name: str, tried: list[dict[str, Any]], passed: list[Described], target: str | None) -> None:
    """Raise the error that a package would have for a call that fits nothing, with what helps here."""
    remedy = f"convert the arguments, add a config for them to the definition, or have @{name}.bind name one"
    words = Words("no listed config fits these arguments", remedy)
    Signatures(name, {"variants": tried}, words).choose(passed, target=target)


def described(argument: Any) -> Described:
    """An argument as the variants' signatures are compared with it."""
    dtype, shape = getattr(argument, "dtype", None), getattr(argument, "shape", None)
    if dtype is None or shape is None or not hasattr(argument, "__dlpack__"):
        return Described(value=argument)
    try:
        kind, number = argument.__dlpack_device__()
    except Exception:  # of an array that has no data, in a program that is traced; what it means is said by the call
        return Described(name_of_torch(dtype), tuple(shape))
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


def _key_with_value(argument: Any) -> Any:
    """What decides which variant an argument fits, and what a function of ``bind`` may make of it."""
    return _key(argument) if hasattr(argument, "__dlpack__") else (type(argument), repr(argument))
