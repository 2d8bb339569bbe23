"""Records what a running program asks Triton's compiler for, with or without a GPU.

Without one, nothing is launched, and only what the program compiles ahead is compiled: ``stand_in.py`` answers in its
place. Written for Triton 3.9, whose methods ``JITFunction.run`` and ``_do_compile``, and those of ``Autotuner``, are
replaced meanwhile. Its own hook, ``jit_cache_hook``, is not enough: it fails for constants that JSON does not have, and
does not say for which.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.arch import arch_of_device
from ...core.errors import KernelwrightError, SettingsError, refused, shown
from ...core.files import read_record, write_atomically
from ...core.records import damage_named
from ...runtime.heuristic import LAUNCH_OPTIONS, tuning_key
from . import stand_in
from .compiler import ARCHS, require_release
from .in_force import replace
from .notes import WHERE, Notes, Seen, seen_in
from .recording import (
    CONSTANT,
    DIVISIBLE,
    Recording,
    Specialization,
    UnwritableError,
    encoded,
    merged,
    parse,
    text_of,
    text_of_specialization,
)
from .source_digest import defaults_in, digest_of_text, name_of
from .timings import Timings

DIVISIBLE_BY_16 = ["tt.divisibility", 16]
"""What Triton knows of an argument. On CUDA it knows nothing else."""


def why_not_found(function: Any, path: Sequence[str]) -> str:
    """Why no build can import a function by its name, as the rest of a sentence about it; empty: one can.

    Modules that a program writes or makes up are gone by then.

    Arguments:
        function: a ``JITFunction``.
        path: ``sys.path`` before the program could add to it.
    """
    module_name, _, names = name_of(function).partition(":")
    if "<locals>" in names:
        return "is defined inside of a function"
    module = sys.modules.get(function.module)
    file = getattr(module, "__file__", None)
    if module is None or file is None or not Path(file).is_file():
        return f"is in the module {module_name!r}, which has no file"
    if not is_reached(function, function):
        return f"is not what its module {module_name!r} has under this name"
    if function.module == "__main__":
        return ""
    found = _file_of(module_name)
    if found is None or not found.samefile(file):
        return f"is in a module that Python does not find by its name, {file}"
    is_temporary = found.is_relative_to(Path(tempfile.gettempdir()).resolve())
    if is_temporary and not any(found.is_relative_to(Path(entry).resolve()) for entry in path):
        return f"is in a module that the program has put into a temporary folder, {file}"
    return ""


def is_reached(wanted: Any, function: Any) -> bool:
    """Whether a function's name leads to something: the function, or one of its decorators.

    A build has the decorators that are found so, and no others.
    """
    value: Any = sys.modules.get(function.module)
    for name in function.fn.__qualname__.split("."):
        value = getattr(value, name, None)
    while value is not None and value is not wanted:
        value = vars(value).get("fn") if hasattr(value, "__dict__") else None
    return value is wanted


def _file_of(module_name: str) -> Path | None:
    """The file that Python would import a module from, if it was not imported yet."""
    parent = module_name.rpartition(".")[0]
    folders = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    if parent and folders is None:
        return None
    for finder in sys.meta_path:
        spec = finder.find_spec(module_name, folders)
        if spec is not None:
            return Path(spec.origin).resolve() if spec.has_location and spec.origin else None
    return None


@dataclass(frozen=True)
class _Asked:
    """What Triton compiles a function for.

    Arguments:
        signature: parameter -> its type; a tuple has tuples, and a constant is ``"constexpr"``.
        constants, attributes: path to a parameter, or to an element of a tuple in it -> the value, and what is known.
        options: Triton's object.
        defaults: the options that it would have if nobody asked for any.
    """

    signature: Mapping[str, Any]
    constants: Mapping[tuple[int, ...], Any]
    attributes: Mapping[tuple[int, ...], Any]
    options: Any
    defaults: Mapping[str, Any]


@contextlib.contextmanager
def record(
    path: str | Path,
    arch: str | None = None,
    *,
    fresh: bool = False,
    first_config: bool = False,
    timings: str | Path | None = None,
) -> Iterator[Notes]:
    """Record which code the calls of functions with ``@triton.jit`` need, and write it to a file.

    An existing file keeps what it has, and gets what is new. What was seen is written also if an error ends the block.

    Arguments:
        path: the file.
        arch: that of the GPU which is recorded for, such as ``sm_90a``. No GPU is used then: nothing is
            launched, and what is to be on a GPU is on the CPU. None: that of the GPU that Triton uses; all runs.
        fresh: whether to replace an existing file.
        first_config: whether of the configs of a tuned function only one is recorded, and run: the first one, or that
            which ``timings`` choose.
        timings: the folder of Triton's caches on a GPU of the arch, where its tuner kept times. They choose the configs
            of tuned functions, as they would there.

    Raises:
        KernelwrightError: there is no GPU and no arch, Triton is missing, the file is damaged or cannot be written, no
            call was seen, one cannot be recorded, or no times are of these calls.
    """
    path = Path(path)
    read(path, fresh)  # it fails now rather than after the program
    with tempfile.TemporaryDirectory(prefix="kernelwright-") as folder:
        file = Path(folder, "notes")
        try:
            with noting(arch, file, first_config, timings) as notes:
                yield notes
        finally:
            seen = seen_in(file) if file.exists() else Seen()
            if seen.recording:
                write(path, seen.recording, fresh)
    seen.require_complete()
    if seen.left_out:
        warnings.warn(str(seen.lack()), stacklevel=3)
    if timings is not None and (untimed := seen.require_timed(timings)):
        warnings.warn(untimed, stacklevel=3)


@contextlib.contextmanager
def noting(
    arch: str | None, file: Path, first_config: bool = False, timings: str | Path | None = None
) -> Iterator[Notes]:
    """Write what Triton is asked for to a file; see :func:`record`."""
    require_release(WHERE)
    _require_compiler()
    if timings is not None and arch is None:
        remedy = "name the arch that they are of: --arch sm_90a (arch='sm_90a')"
        raise SettingsError("times are of a recording without a GPU; with one, Triton's tuner measures", WHERE, remedy)
    times = None if timings is None else Timings.read(Path(timings), WHERE)
    with ExitStack() as stack:
        if arch is not None:
            require_arch(arch)
            stack.enter_context(stand_in.standing_in(arch))
        notes = Notes(arch or _arch_of_gpu(), file)
        stack.callback(notes.end)
        exit_now = os._exit

        def end_and_exit(status: int) -> None:
            notes.end()
            exit_now(status)

        replace(stack, os, "_exit", end_and_exit)  # forks of multiprocessing end by it
        _Watch(stack, notes, _How(arch is None, first_config, times))
        yield notes


def require_arch(arch: str) -> None:
    """Raise a SettingsError if Triton makes no code for an arch."""
    if arch not in ARCHS:
        raise SettingsError(f"a recording for {shown(arch)} is not possible", WHERE, f"use one of {', '.join(ARCHS)}")


def read(path: Path, fresh: bool = False) -> Recording:
    """What a file has; nothing if there is none, or if it is to be replaced.

    Raises:
        KernelwrightError: it is damaged, or cannot be read.
    """
    if fresh or not path.exists():
        return {}
    with damage_named(path, "delete it, or replace it with --fresh (fresh=True)"):
        return parse(read_record(path))


def write(path: Path, new: Recording, fresh: bool = False) -> str:
    """Write a file, with what an existing one has.

    Returns:
        How much is in it now, and how much of that was not there before.

    Raises:
        KernelwrightError: it cannot be written, or disagrees about the parameters of a function.
    """
    known = read(path, fresh)
    try:
        whole = merged(known, new)
    except ValueError as error:
        remedy = "record all anew with --fresh (fresh=True), or write another file"
        raise KernelwrightError(f"{path}: {error}", WHERE, remedy) from error
    try:
        write_atomically(path, text_of(whole))
    except OSError as error:
        raise refused(error, WHERE, str(path)) from error
    before, after = _lines(known), _lines(whole)
    return f"{counted(len(whole), 'function')}, {counted(len(after), 'specialization')} ({len(after - before)} new)"


def _lines(recording: Recording) -> set[tuple[str, ...]]:
    return {
        (name, text_of_specialization(one), *one.archs)
        for name, function in recording.items()
        for one in function.specializations
    }


def counted(number: int, what: str) -> str:
    """A number with its word: ``1 call``, ``2 calls``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _require_compiler() -> None:
    """Raise a KernelwrightError if Triton interprets functions instead of compiling them."""
    from triton import knobs

    if knobs.runtime.interpret:
        message = "TRITON_INTERPRET is set, so Triton is not asked to compile anything"
        raise KernelwrightError(message, WHERE, "unset it")


def _arch_of_gpu() -> str:
    """The arch of the GPU that Triton uses.

    Raises:
        KernelwrightError: there is none.
    """
    if importlib.util.find_spec("torch") is not None:
        import torch  # noqa: F401  # before Triton's driver, which then asks it for the stream
    from triton.runtime.driver import driver

    remedy = "name the arch in front of the program, and no GPU is needed: --arch sm_90a (arch='sm_90a')"
    try:
        target = driver.active.get_current_target()
    except RuntimeError as error:
        raise KernelwrightError("Triton finds no GPU here", WHERE, remedy) from error
    arch = arch_of_device(target.arch) if target.backend == "cuda" else f"{target.backend}:{target.arch}"
    if arch not in ARCHS:
        raise KernelwrightError(f"the GPU here is of {arch}, which cannot be recorded for", WHERE, remedy)
    return arch


@dataclass(frozen=True)
class _How:
    """How a program is watched.

    Arguments:
        runs: whether it runs on a GPU.
        first_config: whether a tuned function has one config only.
        timings: what choose a config without a GPU.
    """

    runs: bool
    first_config: bool
    timings: Timings | None

    @property
    def measures(self) -> bool:
        """Whether Triton's tuner measures."""
        return self.runs and not self.first_config


class _Watch:
    """Sees each call, each compilation and each choice of a config, in place of methods of Triton.

    Arguments:
        stack: at its end all is as before.
        notes: what is seen.
        how: what is done about it.
    """

    def __init__(self, stack: ExitStack, notes: Notes, how: _How) -> None:
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        self._stack, self._notes, self._how, self._path = stack, notes, how, tuple(sys.path)
        self._run, self._compile = JITFunction.run, JITFunction._do_compile
        self._tune, self._look = Autotuner.run, Autotuner.check_disk_cache
        self._names = [*inspect.signature(self._compile).parameters][1:]
        self._seen: dict[int, Any] = {}
        self._noted: set[tuple[int, str]] = set()
        self._guessed: set[int] = set()
        methods: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
            (JITFunction, "run", self._see_call),
            (JITFunction, "_do_compile", self._see_compilation),
            (Autotuner, "run", self._see_choice),
            (Autotuner, "check_disk_cache", self._see_measurement),
            # Tuners of libraries that have another run call it, too.
            *([(Autotuner, "_bench", _unmeasured)] if how.first_config else []),
        )
        for owner, name, method in methods:
            replace(stack, owner, name, _as_method(method))

    def _see_call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        if self._is_new(function):
            # What was compiled before, perhaps for another device, would not be seen.
            replace(self._stack, function, "device_caches", defaultdict(function.create_binder))
        self._notes.count()
        return self._run(function, *arguments, **options)

    def _see_compilation(self, function: Any, *asked: Any, **more: Any) -> Any:
        call = dict(zip(self._names, asked, strict=False), **more)  # the rest is named
        # Nothing is launched where there is nothing compiled; but who compiles ahead looks at what that gives.
        result = self._compile(function, *asked, **more) if self._how.runs or call["warmup"] else None
        if (id(function), call["key"]) not in self._noted:
            self._noted.add((id(function), call["key"]))
            self._note(function, call)
        return result

    def _note(self, function: Any, call: Mapping[str, Any]) -> None:
        defaults = function.device_caches[call["device"]][3].parse_options({"enable_fp_fusion": True})
        asked = _Asked(
            signature=call["signature"],
            constants=call["constexprs"],
            attributes=call["attrs"],
            options=call["options"],
            defaults={**vars(defaults), **LAUNCH_OPTIONS},  # whatever the environment says
        )
        name = name_of(function)
        if reason := why_not_found(function, self._path):
            self._notes.leave_out(name, reason)
            return
        try:
            specialization = _specialization(function, asked, self._notes.arch)
        except UnwritableError as problem:
            self._notes.refuse(f"{name} {problem}")
        else:
            self._notes.note(name, tuple(asked.signature), digest_of_text(function.src), specialization)

    def _see_choice(self, tuner: Any, *arguments: Any, **options: Any) -> Any:
        if self._is_new(tuner):
            # Results of other runs would keep it from trying all configs.
            changes = {"cache": {}, "cache_results": True}  # so that it asks check_disk_cache
            for name, value in (changes if self._how.runs else {**changes, "do_bench": stand_in.measure_once}).items():
                replace(self._stack, tuner, name, value)
        if not self._how.measures:
            tuner.cache.clear()  # any config may be the best one
        self._guessed.discard(id(tuner))
        result = self._tune(tuner, *arguments, **options)
        if id(tuner) not in self._guessed:
            self._choose(tuner, arguments, options)
        return result

    def _see_measurement(self, tuner: Any, key: tuple[Any, ...], configs: Sequence[Any], measure: Any) -> bool:
        measure()
        if self._how.measures:
            return False
        times = self._how.timings
        best = times and times.fastest(self._look, tuner, key, configs)
        if best is None:
            self._guessed.add(id(tuner))
        else:
            tuner.cache[key] = best
        if times:
            call = f"{name_of(_tuned_by(tuner))} for {self._notes.arch} and the key {shown(key)}"
            self._notes.time(call, best is not None)
        return False

    def _choose(self, tuner: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Note which config of a tuned function was the fastest, if there is more than one.

        Arguments:
            tuner: Triton's, after a call.
            arguments, named: those of the call.
        """
        function = _tuned_by(tuner)
        parameters = self._notes.parameters_of(name_of(function))
        if not parameters or len(tuner.configs) < 2 or not is_reached(tuner, function):
            return
        given = {**defaults_in(function), **dict(zip(parameters, arguments, strict=False)), **named}
        try:
            key = tuple(encoded(part) for part in tuning_key(given, tuner.keys, parameters))
            config = {name: encoded(value) for name, value in tuner.best_config.all_kwargs().items()}
        except UnwritableError:
            return  # a package tries the configs in order
        self._notes.choose(name_of(function), key, config)

    def _is_new(self, watched: Any) -> bool:
        is_new = id(watched) not in self._seen
        self._seen[id(watched)] = watched  # kept, so that no other object gets its id
        return is_new


def _tuned_by(tuner: Any) -> Any:
    """The function that a tuner tunes."""
    function = tuner.fn
    while not hasattr(function, "params"):
        function = function.fn
    return function


def _unmeasured(*_: Any, **__: Any) -> list[float]:
    """The times of a config that is not tried."""
    return [stand_in.LONG] * 3


def _as_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """A function that becomes a method of a class; what is bound already would not get the object."""

    def called(*arguments: Any, **options: Any) -> Any:
        return method(*arguments, **options)

    return called


def _specialization(function: Any, asked: _Asked, arch: str) -> Specialization:
    """What was asked for, as a recording has it."""
    if function.is_gluon():
        raise UnwritableError("is a function of Gluon, and a recording has those with @triton.jit")
    types: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for at, (name, kind) in enumerate(asked.signature.items()):
        with _named(f"has the parameter {name!r}, which"):
            if kind == "constexpr":
                constants[name] = encoded(asked.constants[(at,)])
            else:
                types[name] = _type(kind, (at,), asked)
    return Specialization(types, constants, _options(asked), (arch,))


def _options(asked: _Asked) -> dict[str, Any]:
    """The options that are not the default."""
    options = {}
    for name, value in vars(asked.options).items():
        if value != asked.defaults.get(name) or name not in asked.defaults:
            with _named(f"has the option {name!r}, which"):
                options[name] = encoded(value)
    return options


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    """Put before a problem what it belongs to."""
    try:
        yield
    except UnwritableError as problem:
        raise UnwritableError(f"{what} {problem}") from None


def _type(kind: Any, path: tuple[int, ...], asked: _Asked) -> Any:
    """The type of an argument as a recording has it."""
    if isinstance(kind, tuple):
        return [_element(inner, (*path, at), asked) for at, inner in enumerate(kind)]
    known = asked.attributes.get(path) or []
    if any(attribute != DIVISIBLE_BY_16 for attribute in known):
        raise UnwritableError(f"has the attributes {shown(known)}, which a recording cannot have")
    return f"{kind}{DIVISIBLE if known else ''}"


def _element(kind: Any, path: tuple[int, ...], asked: _Asked) -> Any:
    """The same of an element of a tuple."""
    return {CONSTANT: encoded(asked.constants[path])} if kind == "constexpr" else _type(kind, path, asked)
