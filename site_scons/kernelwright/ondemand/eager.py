"""Eager calls: the first listed variant that fits the arguments, compiled at its first use."""

from __future__ import annotations

import itertools
import operator
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from ..core.errors import DefinitionError, EditedError, KernelwrightError
from ..core.files import canonical_json
from ..define.configs import require_values
from ..define.recorded import config_text
from ..runtime.arguments import Signatures, Words
from ..runtime.dtype import name_of_torch
from ..runtime.expected import Described
from ..runtime.interface import in_order
from ..runtime.passed import optional_in
from ..runtime.refusal import AMBIGUOUS, MISALIGNED, NO_TARGET, NO_VARIANT, refusal_of
from ..runtime.size import Size
from .reached import Doubt
from .record import open_block

if TYPE_CHECKING:
    from ..define.record import KernelRecord
    from .build import Job
    from .origin import Origin
    from .watched import Watch

TARGETS = {"cpu": "llvm", "cuda": "cuda"}
"""Kind of a device -> the target of its code."""

MOST_CHOICES = 10_000
"""How many choices are remembered; arguments of ever new shapes would fill the memory."""


BY_VALUE: Any = object()
"""In place of a kernel: the one of the config that the bound function names, which may differ from call to call."""


class Variants(Protocol):
    """What compiles the variants of a definition: a ``Compilable``."""

    name: str

    def _watch(self, before: Watch | None = None) -> Watch: ...

    def _origin(self, watch: Watch | None = None) -> Origin: ...

    def _job(self, origin: Origin, config: Mapping[str, Any], tuned: bool = False) -> Job: ...

    def _variant(self, job: Job, target: str | None) -> tuple[dict[str, Any], dict[str, str]]: ...

    def _load_job(self, job: Job) -> tuple[Any, dict[str, str]]: ...

    def _point_out(self, doubt: Doubt) -> None: ...


class Choices:
    """What calls have chosen since the last change. Each variant is evaluated, lowered and loaded once.

    Arguments:
        definition: compiles the variants.
        before: the last choices, if nothing that they rely on has changed but what functions of this process read from
            around them. Then programs are evaluated again, and the results of equal programs are taken over.
    """

    def __init__(self, definition: Variants, before: Choices | None = None) -> None:
        self.watch: Watch = definition._watch(None if before is None else before.watch)
        self.chosen: dict[tuple[Any, ...], Any] = {}
        self.key: Callable[[Any], Any] = _key
        self._definition = definition
        self._jobs: dict[tuple[str, bool], Job] = {}
        self._variants: dict[tuple[str, str | None], dict[str, Any]] = {}
        self._kernels: dict[str, Any] = {}
        self._made: dict[tuple[str, ...], tuple[Any, dict[str, str]]] = {}
        if before is not None:
            self.origin = before.origin
            self._made = before._made

    @cached_property
    def origin(self) -> Origin:
        """What is known of the definition."""
        return self._definition._origin(self.watch)

    def variant(self, config: Mapping[str, Any], target: str | None) -> dict[str, Any]:
        """What a listed variant expects of its arguments. Raises KernelwrightError if it cannot be lowered."""
        name = config_text(config), target
        if name not in self._variants:
            job = self._job(config, tuned=False)
            make = partial(self._definition._variant, job, target)
            self._variants[name] = self._made_once("variant", job, (name[0], str(target)), make)
            if self._variants[name].get("requires") or _numbers_choose(self.origin.record, self._variants[name]):
                self.key = _exact_key
            elif self.key is _key and any("strides" in argument for argument in self._variants[name]["arguments"]):
                self.key = _key_with_strides
        return self._variants[name]

    def arguments(self, target: str | None) -> list[dict[str, Any]]:
        """The arguments of the variants. Raises KernelwrightError if no variant can be lowered."""
        errors = []
        for config in _listed(self.origin.record, target):
            try:
                found: list[dict[str, Any]] = self.variant(config, target)["arguments"]
            except EditedError:
                raise
            except KernelwrightError as error:
                errors.append(error)
                continue
            return found
        message = "no config is listed, so that the names of its arguments are not known"
        raise errors[0] if errors else DefinitionError(message, self.origin.where, "pass the arguments by position")

    def optional(self, target: str | None) -> dict[str, Any]:
        """What calls may leave out of the variants that can be lowered; see :func:`optional_in`."""
        found = []
        for config in _listed(self.origin.record, target):
            with suppress(KernelwrightError):
                found.append(self.variant(config, target))
        return optional_in(found)

    def known(self, config: Mapping[str, Any]) -> Any:
        """The kernel of a config, if it was compiled or loaded; otherwise None."""
        require_values(config, self.origin.where)
        return self._kernels.get(config_text(config))

    def kernel(self, config: Mapping[str, Any]) -> Any:
        """The compiled kernel of a config. Raises KernelwrightError if there is no such config, or a stage fails."""
        kernel = self.known(config)
        if kernel is None:
            job, name = self._job(config, tuned=True), config_text(config)
            make = partial(self._definition._load_job, job)
            kernel = self._kernels[name] = self._made_once("kernel", job, (name,), make)
        return kernel

    def _job(self, config: Mapping[str, Any], tuned: bool) -> Job:
        tuned = tuned and bool(self.origin.record.choices)
        name = config_text(config), tuned
        if name not in self._jobs:
            self._jobs[name] = self._definition._job(self.origin, config, tuned)
        return self._jobs[name]

    def _made_once(
        self, what: str, job: Job, names: tuple[str, ...], make: Callable[[], tuple[Any, dict[str, str]]]
    ) -> Any:
        """The result of ``make``, which is called once for all jobs with equal programs: their digests are in the job.

        Arguments:
            make: gives the result, and what was read for it.
        """
        key = what, *names, canonical_json(dict(job.identity))
        if key not in self._made:
            if len(self._made) >= MOST_CHOICES:
                self._made.clear()
            self._made[key] = make()
        made, later = self._made[key]
        self.watch.rely_on(later)
        return made


class Eager:
    """Chooses among the variants of a definition, as the dispatcher of a package does.

    A choice is remembered by the dtypes, shapes and devices of the arguments, until something that decides it may have
    changed. Safe to use from several threads, and in a child of fork.

    Arguments:
        definition: compiles the variants.
        bound: gives a config for arguments that no listed variant fits, or that several fit which differ in meaning.
    """

    def __init__(self, definition: Variants, bound: Callable[..., Mapping[str, Any]] | None) -> None:
        self._definition = definition
        self._bound = bound
        self._choices: Choices | None = None
        self._before: Choices | None = None
        self._lock, self._process = threading.RLock(), os.getpid()

    def __call__(self, *arguments: Any) -> Any:
        """Call the variant that fits."""
        choices = self._choices
        if choices is None or not choices.watch.is_current():
            choices = self._anew()
        keys = tuple(map(choices.key, arguments))
        kernel = choices.chosen.get(keys)
        if kernel is None:
            choices, kernel = self._choose(choices, keys, arguments)
        if kernel is BY_VALUE:
            kernel = self._kernel_of_bound(choices, arguments)
        if (recorder := open_block()) is not None:  # the block may be newer than the choice
            recorder.note(self._definition.name, kernel.variants[0])
        try:
            return kernel(*arguments)
        except ValueError as error:
            if refusal_of(error) != MISALIGNED:
                raise
            return self._call_another(choices, arguments, kernel, error)

    def call_named(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Call the variant that fits, with arguments by name. The names are the same in all variants."""
        choices = self._choices
        if choices is None or not choices.watch.is_current():
            choices = self._anew()
        passed = map(described, (*positional, *named.values()))
        target = next((TARGETS.get(_kind(one)) for one in passed if one.device), None)
        with self._locked():
            arguments = choices.arguments(target)
            inputs = [item["name"] for item in arguments if not item["output"]]
            is_short = len(positional) + len(named.keys() & inputs) < len(inputs)
            optional = choices.optional(target) if is_short else {}
            self._settle(choices)
        return self(*in_order(self._definition.name, arguments, positional, named, optional))

    def _anew(self) -> Choices:
        """New choices. If they are needed because no call can compare something, the user is told once."""
        before = self._before
        if before is not None and before.watch.doubt is not None:
            self._definition._point_out(before.watch.doubt)
        if before is None or not before.watch.surroundings_are_current():
            return Choices(self._definition)
        return Choices(self._definition, before)

    def _call_another(self, choices: Choices, arguments: tuple[Any, ...], refused: Any, error: ValueError) -> Any:
        """Call the next variant that fits, as a dispatcher does: the data is less aligned than the first one needs."""
        for kernel in self._fitting(choices, arguments):
            try:
                if kernel is BY_VALUE:
                    kernel = self._kernel_of_bound(choices, arguments)
                if kernel is not refused:
                    return kernel(*arguments)
            except ValueError as failure:
                if refusal_of(failure) != MISALIGNED:
                    raise
        raise error

    def _choose(self, choices: Choices, keys: Any, arguments: tuple[Any, ...]) -> tuple[Choices, Any]:
        """The kernel for some arguments, compiled if it was not before; see :meth:`_fitting`.

        The choice is kept for later calls if nothing that the work relies on has changed meanwhile. If the work fails
        because a file was edited, it is done once more.
        """
        with self._locked():
            others = self._choices  # of another thread, which had the lock before
            if others is not None and others is not choices and others.watch.is_current():
                choices = others
                if keys in choices.chosen:
                    return choices, choices.chosen[keys]
            try:
                kernel = next(self._fitting(choices, arguments))
            except EditedError:
                choices = self._anew()
                kernel = next(self._fitting(choices, arguments))
            if self._settle(choices):
                if len(choices.chosen) >= MOST_CHOICES:
                    choices.chosen.clear()
                choices.chosen[tuple(map(choices.key, arguments))] = kernel
            return choices, kernel

    def _kernel_of_bound(self, choices: Choices, arguments: tuple[Any, ...]) -> Any:
        """The kernel of the config that the bound function names. It may depend on anything, so each call asks it."""
        assert self._bound is not None
        config = self._bound(*arguments)
        kernel = choices.known(config)
        if kernel is None:
            with self._locked():
                kernel = choices.kernel(config)
                self._settle(choices)
        return kernel

    def _settle(self, choices: Choices) -> bool:
        """Have later calls use choices if all that they rely on can be compared, and is what it was."""
        is_settled = choices.watch.settle()
        self._choices, self._before = choices if is_settled else None, choices
        return is_settled

    def _locked(self) -> threading.RLock:
        if self._process != os.getpid():  # a thread that the child of fork does not have may hold the lock
            self._lock, self._process = threading.RLock(), os.getpid()
        return self._lock

    @staticmethod
    def _lowered(
        choices: Choices, config: Mapping[str, Any], target: str | None, errors: list[KernelwrightError]
    ) -> dict[str, Any] | None:
        """What a listed variant expects; None: it cannot be lowered, and the error is added to the errors."""
        try:
            return choices.variant(config, target)
        except EditedError:
            raise
        except KernelwrightError as error:
            errors.append(error)
            if choices.origin.definition.dependencies:
                what = f"what the variant {config_text(config)} reads, which cannot be lowered"
                choices.watch.give_up(Doubt(what, str(choices.origin.where.location)))
            return None

    def _fitting(self, choices: Choices, arguments: tuple[Any, ...]) -> Iterator[Any]:
        """The kernels that fit some arguments, in order, each compiled when it is asked for.

        Raises:
            TypeError, ValueError: no listed variant fits, and no config is bound.
            KernelwrightError: a variant that might fit cannot be lowered, or the one that fits cannot be compiled.
        """
        passed = list(map(described, arguments))
        target = next((TARGETS.get(_kind(one)) for one in passed if one.device), None)
        record = choices.origin.record
        listed = _listed(record, target)
        tried: list[dict[str, Any]] = []
        errors: list[KernelwrightError] = []
        fits = False
        for config in listed:
            variant = self._lowered(choices, config, target, errors)
            if variant is None:
                continue
            tried.append(variant)
            if not _may_fit(record.name, variant, passed, target):
                continue
            # Other configs are looked at if the caller could mean them as well, or instead.
            meant = [c for c in listed if _may_be_meant(record, config, c, variant)]
            others = [(c, self._lowered(choices, c, target, [])) for c in meant]
            among = [(config, variant), *((c, v) for c, v in others if v is not None)]
            passed_on = (NO_VARIANT, NO_TARGET, *([AMBIGUOUS] if self._bound else []))
            chosen = _chosen(record, [v for _, v in among], passed, target, passed_on)
            if chosen is not None:
                fits = True
                yield choices.kernel(among[chosen][0])
        if self._bound is not None:
            yield BY_VALUE
        elif not fits:
            if errors:
                raise errors[0]
            _refuse(record.name, tried, passed, target)
            raise KernelwrightError(
                "the call was refused, although a listed config fits it",
                choices.origin.where,
                "report this as a defect",
            )


def _listed(record: KernelRecord, target: str | None) -> list[Mapping[str, Any]]:
    """The configs that a call is compared with: those that are listed, or of a space those that callers see."""
    seen = [choice.config for choice in record.choices if target is None or choice.points.get(target)]
    return seen if record.choices else list(record.configs)


def _may_be_meant(
    record: KernelRecord, config: Mapping[str, Any], other: Mapping[str, Any], variant: Mapping[str, Any]
) -> bool:
    """Whether arguments that fit a variant may fit another config: not if only the dtype of an input differs."""
    inputs = {argument["dtype"] for argument in variant["arguments"] if not argument["output"]}
    differing = [(key, value) for key, value in config.items() if other.get(key) != value]
    if len(differing) != 1:
        return bool(differing)  # the dtype may be that of something inside, and the sizes choose
    [(key, value)] = differing
    return key in (record.reference or ()) or not (isinstance(value, str) and value in inputs)


def _numbers_choose(record: KernelRecord, variant: Mapping[str, Any]) -> bool:
    """Whether a number that a call passes is in the size of an array, by which other configs may differ."""
    numbers = {argument["name"] for argument in variant["arguments"] if argument["kind"] != "tensor"}
    sizes = (size for argument in variant["arguments"] for size in argument.get("shape", ()))
    used = (Size(size).names for size in sizes if isinstance(size, str))
    return len(record.configs) > 1 and not numbers.isdisjoint(itertools.chain.from_iterable(used))


def _may_fit(name: str, variant: dict[str, Any], passed: list[Described], target: str | None) -> bool:
    """Whether dtypes, ranks and constant sizes fit."""
    try:
        Signatures(name, {"variants": [variant]}).choose(passed, target=target)
    except (TypeError, ValueError) as error:
        return refusal_of(error) not in (NO_VARIANT, NO_TARGET)
    return True


def _chosen(
    record: KernelRecord,
    variants: list[dict[str, Any]],
    passed: list[Described],
    target: str | None,
    passed_on: Sequence[str],
) -> int | None:
    """The number of the first variant that fits; None: none does.

    Arguments:
        passed_on: the kinds of refusals after which the next variant is tried.

    Raises:
        TypeError, ValueError: it is refused for another reason; a dispatcher looks no further, either.
    """
    try:
        entry = {"variants": variants, "meaning": record.reference or ()}
        return Signatures(record.name, entry, _words(record.name)).choose(passed, target=target).index
    except (TypeError, ValueError) as error:
        if refusal_of(error) not in passed_on:
            raise
        return None


def _refuse(name: str, tried: list[dict[str, Any]], passed: list[Described], target: str | None) -> None:
    """Raise the error that a package would have for a call that fits nothing, with what helps here."""
    Signatures(name, {"variants": tried}, _words(name)).choose(passed, target=target)


def _words(name: str) -> Words:
    remedy = f"convert the arguments, add a config for them to the definition, or have @{name}.bind name one"
    several = f"name one: {name}.compile(...) takes the values of its config"
    return Words("no listed config fits these arguments", remedy, several)


def described(argument: Any) -> Described:
    """An argument in the form that the variants' signatures are compared with."""
    dtype, shape = getattr(argument, "dtype", None), getattr(argument, "shape", None)
    if dtype is None or shape is None or not hasattr(argument, "__dlpack__"):
        return Described(value=argument)
    try:
        kind, number = argument.__dlpack_device__()
    except Exception:  # an array in a program that is traced has no data; the call itself says what that means
        return Described(name_of_torch(dtype), tuple(shape))
    device = {1: "cpu", 2: f"cuda:{number}"}.get(int(kind), f"device {int(kind)}")
    return Described(name_of_torch(dtype), tuple(map(int, shape)), device=device, strides=_strides(argument))


def _strides(array: Any) -> tuple[int, ...] | None:
    """The strides of an array in elements, which NumPy and CuPy have in bytes; None: its library has compact ones."""
    if callable(stride := getattr(array, "stride", None)):
        return tuple(map(int, stride()))
    strides = getattr(array, "strides", None)
    return strides and tuple(each // getattr(array, "itemsize", 1) for each in strides)


def _key_with_strides(argument: Any) -> Any:
    return _key(argument), _strides(argument)


def _kind(passed: Described) -> str:
    return str(passed.device).partition(":")[0]


def _key(argument: Any) -> Any:
    """What decides which variant an argument fits."""
    dtype = getattr(argument, "dtype", None)
    if dtype is None:
        return type(argument)
    is_array = hasattr(argument, "__dlpack__")  # a NumPy scalar, which is none, has all the rest of an array
    return dtype, tuple(argument.shape), getattr(argument, "device", None), is_array


def _exact_key(argument: Any) -> Any:
    """What decides that, where numbers and strides do, too: they are required to be something, or sizes follow."""
    if hasattr(argument, "__dlpack__"):
        return _key(argument), _strides(argument)
    return _key(argument), operator.index(argument) if hasattr(argument, "__index__") else None
