"""What a compile on demand is asked for: arguments, ``using(...)`` and the KERNELWRIGHT_* variables become one Options.

What is asked for then meets the project's settings (:func:`settings_for`) and this machine's devices (``machine.py``).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from ..backends import OF_FRONT_ENDS, choices
from ..core.arch import TARGETS, arch_of_device, target_of
from ..core.errors import SettingsError, Where, one_of, shown
from ..core.plugins import Names
from ..define.debug import LEVELS
from ..define.pass_configs import checked_pass_configs
from ..define.setting_kinds import FLAGS, TEXT, WORDS, Kind, Setting, backend, choice, require_known
from ..define.settings import Settings, merge, read_pyproject
from .machine import machine

AUTO = "auto"
"""As a target: those of the project that have a device here, or an arch that was asked for."""

NATIVE = "native"
"""As an arch: those of this machine's devices."""

WORDS_FOR = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
"""How a switch is written, in small or capital letters."""


def _read_switch(name: str, raw: Any, where: Where) -> bool:
    value = raw if isinstance(raw, bool) else WORDS_FOR.get(str(raw).lower())
    if value is None:
        raise SettingsError(f"{name} is {shown(raw)}, expected one of {', '.join(WORDS_FOR)}", where)
    return value


def _read_count(name: str, raw: Any, where: Where) -> int:
    value = int(raw) if isinstance(raw, str) and raw.isascii() and raw.isdecimal() and len(raw) < 10 else raw
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingsError(f"{name} is {shown(raw)}, expected a number from 1 up", where)
    return value


def _read_pass_configs(name: str, raw: Any, where: Where) -> dict[str, Any]:
    return checked_pass_configs(raw, where)


def _read_mapping(name: str, raw: Any, where: Where) -> dict[str, Any]:
    if not isinstance(raw, Mapping) or not all(isinstance(key, str) for key in raw):
        raise SettingsError(f"{name} is {shown(raw)}, expected a dict with strings as keys", where)
    return dict(raw)


SWITCH = Kind("`1` or `0`", _read_switch, lambda value: str(int(value)))
COUNT = Kind("number", _read_count)
MAPPING = Kind("dict", _read_mapping)
PASS_CONFIGS = Kind("dict", _read_pass_configs)


def _check_targets(targets: tuple[str, ...], where: Where) -> None:
    require_known("target", targets, (AUTO, *TARGETS), where)
    if AUTO in targets and len(targets) > 1:
        raise SettingsError(f"target {AUTO!r} stands alone, found {', '.join(targets)}", where)


def _check_archs(archs: tuple[str, ...], where: Where) -> None:
    for arch in archs:
        if arch != NATIVE:
            try:
                target_of(arch, where)
            except SettingsError as error:
                raise SettingsError(error.message, where, f"{error.remedy}; or {NATIVE}: the devices here") from None


class Option(NamedTuple):
    """What is declared about one option.

    Arguments:
        setting: how its values are written, and its help.
        variable: the environment variable that gives it; empty: none does.
        default: what holds if the option is not given, in Markdown.
    """

    setting: Setting
    variable: str = ""
    default: str = ""


def _option(kind: Kind, text: str, variable: str = "", default: str = "", check: Any = None) -> Any:
    """A field of :class:`Options`.

    Arguments:
        kind, text, check: see :class:`Setting`.
        variable, default: see :class:`Option`.
    """
    return field(default=None, metadata={"option": Option(Setting(kind, text, check), variable, default)})


OTHERS = ("KERNELWRIGHT_CPU_LEVEL", "KERNELWRIGHT_NUM_THREADS", "KERNELWRIGHT_CUDA_DRIVER")
"""Variables that kernels look at when they run; ``docs/reference-package.md`` describes them."""

INTERNAL = ("KERNELWRIGHT_TEST_", "KERNELWRIGHT_FUZZ", "KERNELWRIGHT_WHEEL_LIST")
"""Variables that our tests set, and that one process of ours sets for another, begin so."""


ON, WARN, OFF = JIT = ("on", "warn", "off")
"""The values of the option ``jit``."""


@dataclass(frozen=True)
class Options:
    """What was asked for; None: nothing was said about it."""

    targets: tuple[str, ...] | None = _option(
        WORDS,
        "what is compiled for: `llvm`, `cuda` or both; `auto`: the project's targets that have a device here",
        "KERNELWRIGHT_TARGET",
        "`auto`",
        _check_targets,
    )
    archs: tuple[str, ...] | None = _option(
        WORDS,
        "archs such as `x86-64-v3` and `sm_90a`, all of which are compiled for; `native`: those of this machine's "
        "devices. They decide the targets, if these are not given",
        "KERNELWRIGHT_ARCHS",
        "for each device the best of the project's archs; without a project, or if none suits: `native`",
        _check_archs,
    )
    backend: str | None = _option(
        backend(Names(name for name in choices() if name not in OF_FRONT_ENDS)),
        "the execution backend",
        "KERNELWRIGHT_BACKEND",
        "the project's first",
    )
    flags: tuple[str, ...] | None = _option(FLAGS, "flags of each run of the CUDA compiler, in place of `nvcc_flags`")
    debug: str | None = _option(
        choice(*LEVELS),
        "what is compiled for debuggers and profilers: `lineinfo`, `full` or `no`",
        "KERNELWRIGHT_DEBUG",
        "that of the project",
    )
    pass_configs: Mapping[str, Any] | None = _option(PASS_CONFIGS, "configs of TVM's passes, as of `@kernel`")
    settings: Mapping[str, Any] | None = _option(MAPPING, "further settings, as in `[tool.kernelwright]`")
    dump_ir: bool | None = _option(
        SWITCH, "whether the IR after each of TVM's passes is written into the folder of the kernel"
    )
    verbose: bool | None = _option(
        SWITCH, "whether the commands that are run are shown, and what compilers say", "KERNELWRIGHT_VERBOSE", "`0`"
    )
    num_workers: int | None = _option(
        COUNT, "how many stages run at once", "KERNELWRIGHT_NUM_WORKERS", "the number of this process's cores"
    )
    disable_cache: bool | None = _option(
        SWITCH, "whether all is compiled anew in each process, and nothing is kept", "KERNELWRIGHT_DISABLE_CACHE", "`0`"
    )
    clear_cache: bool | None = _option(
        SWITCH, "whether the cache is emptied when a process uses it first", "KERNELWRIGHT_CLEAR_CACHE", "`0`"
    )
    cache_dir: str | None = _option(
        TEXT,
        "the folder of the cache",
        "KERNELWRIGHT_CACHE_DIR",
        "`.cache/kernelwright` at the root of the git tree, or else in the home folder",
    )
    jit: str | None = _option(
        choice(*JIT),
        "what happens if a kernel has to be compiled: `on` compiles it, `warn` does and says why, `off` is an error",
        "KERNELWRIGHT_JIT",
        "`on`",
    )
    monitor: bool | None = _option(
        SWITCH,
        "whether a line at the end of the process says what was compiled and loaded",
        "KERNELWRIGHT_MONITOR",
        "`0`",
    )
    record: str | None = _option(
        TEXT, "a file in which every variant that is compiled or called is noted", "KERNELWRIGHT_RECORD", "empty: none"
    )

    @classmethod
    def read(cls, place: str, **values: Any) -> Options:
        """Options from arguments as a user gives them; None, and ``target`` for ``targets``, may be among them.

        Arguments:
            place: what was called, for messages: ``compile()``.

        Raises:
            SettingsError: there is no such option, or a value is wrong.
        """
        where = Where(stage="settings", location=place)
        found: dict[str, Any] = {}
        for given, raw in values.items():
            name = "targets" if given == "target" else given
            if name not in OPTIONS:
                known = ["target" if option == "targets" else option for option in OPTIONS]
                raise SettingsError(f"{place} has no option {given!r}", where, one_of(given, "the options are", known))
            if raw is not None:
                found[name] = OPTIONS[name].setting.read(given, raw, where)
        return cls(**found)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Options:
        """The options that variables give; an empty variable counts as not set.

        Raises:
            SettingsError: a value is wrong.
        """
        found = {
            name: OPTIONS[name].setting.read(
                variable, environment[variable], Where(stage="settings", location=variable)
            )
            for variable, name in VARIABLES.items()
            if environment.get(variable)
        }
        return cls(**found)

    def over(self, below: Options) -> Options:
        """These options, and those of ``below`` that are not given here. Dicts are merged key by key."""
        merged: dict[str, Any] = {}
        for option in fields(self):
            mine, other = getattr(self, option.name), getattr(below, option.name)
            both = isinstance(mine, Mapping) and isinstance(other, Mapping)
            merged[option.name] = {**other, **mine} if both else other if mine is None else mine
        return Options(**merged)

    @property
    def named_targets(self) -> tuple[str, ...]:
        """The targets that were named; none, if they follow from the project and the machine."""
        return () if self.targets in (None, (AUTO,)) else self.targets or ()

    @property
    def given(self) -> frozenset[str]:
        """Which of ``targets`` and ``archs`` were named, in these options or in variables."""
        asked = effective(os.environ, self)
        named = {"targets": asked.named_targets, "archs": asked.archs}
        return frozenset(name for name, values in named.items() if values)

    @property
    def workers(self) -> int:
        """How many stages run at once."""
        return self.num_workers or len(os.sched_getaffinity(0))


OPTIONS: Mapping[str, Option] = {option.name: option.metadata["option"] for option in fields(Options)}
"""Name of an option -> what is declared about it."""

VARIABLES: Mapping[str, str] = {option.variable: name for name, option in OPTIONS.items() if option.variable}
"""Name of an environment variable -> the option that it gives."""


def effective(environment: Mapping[str, str], *layers: Options) -> Options:
    """The options that count in the end.

    Arguments:
        environment: names and values of environment variables.
        layers: the other options, the strongest first: arguments, then ``using(...)``.

    Raises:
        SettingsError: the value of a variable is wrong.
    """
    options = Options()
    for layer in (Options.of_environment(environment), *reversed(layers)):
        options = layer.over(options)
    return options


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A line for each KERNELWRIGHT_* variable that does not exist, with the nearest one that does."""
    lines = []
    known = (*VARIABLES, *OTHERS)
    for name in sorted(environment):
        if name.startswith("KERNELWRIGHT_") and not name.startswith(INTERNAL) and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; the variables are {', '.join(known)}"
            lines.append(f"kernelwright: {name} has no effect: there is no such variable{hint}")
    return lines


PLACE = "options of compile on demand"
"""Where messages say that options come from which no variable gives."""


def settings_for(root: Path | None, options: Options, environment: Mapping[str, str]) -> Settings:
    """The settings for a compile: defaults, the project's, variables and arguments; later ones win.

    Without named targets, named archs decide the targets, too.

    Arguments:
        root: the folder of pyproject.toml; None: there is no project.
        options: what was asked for with arguments and ``using(...)``.
        environment: names and values of environment variables.

    Raises:
        SettingsError: a value is wrong, or ``native`` is asked for with CUDA, and there is no CUDA device.
    """
    asked = effective(environment, options)
    table = read_pyproject(root / "pyproject.toml") if root else {}
    layer, by_variable = _as_settings(asked), list[tuple[str, dict[str, Any]]]()
    for variable, name in VARIABLES.items():
        if environment.get(variable) and getattr(options, name) is None:
            follow = _as_settings(Options(**{name: getattr(asked, name)}))
            found = [one for one in follow if one in layer and getattr(options, one, None) is None]
            by_variable.append((variable, {one: layer.pop(one) for one in found}))
    return merge([("pyproject.toml", table), *by_variable, (PLACE, layer)], choices())


def _as_settings(asked: Options) -> dict[str, Any]:
    """What was asked for, as settings."""
    layer = dict(asked.settings or {})
    archs = [arch for name in asked.archs or () for arch in (_native() if name == NATIVE else (name,))]
    targets = asked.named_targets or tuple(dict.fromkeys(map(target_of, archs)))
    if NATIVE in (asked.archs or ()) and "cuda" in targets and not any(target_of(arch) == "cuda" for arch in archs):
        remedy = "name the archs: using(archs=['sm_90a']), or KERNELWRIGHT_ARCHS=sm_90a"
        raise SettingsError("there is no CUDA device here, for which 'native' stands", Where(stage="settings"), remedy)
    if archs and not any(target_of(arch) in targets for arch in archs):
        message = f"none of the archs {', '.join(archs)} is one of the target {' or '.join(targets)}"
        raise SettingsError(message, Where(stage="settings"), "leave out the target, or name archs of it")
    given = {
        "targets": targets,
        "archs": archs,
        "backends": (asked.backend,) if asked.backend else (),
    }
    layer |= {name: list(values) for name, values in given.items() if values}
    if asked.debug:
        layer["debug"] = asked.debug
    if asked.dump_ir is not None:
        layer["dump_ir"] = "yes" if asked.dump_ir else "no"
    return layer if asked.flags is None else {**layer, "nvcc_flags": list(asked.flags)}


def _native() -> tuple[str, ...]:
    """The archs of this machine's devices."""
    here = machine()
    return (here.cpu, *map(arch_of_device, here.cuda))
