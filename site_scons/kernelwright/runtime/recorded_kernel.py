"""Functions that a program was recorded with, called as the program calls them: ``function[grid](x, y, BLOCK=1024)``.

The kernel's library compares a call with those that were recorded, and launches. Here the arguments are put in order,
and what the program's decorators compute is computed: heuristics, the config of a tuned function, the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from keyword import iskeyword
from sys import modules
from typing import Any, NoReturn

import tvm_ffi

from .heuristic import rule_of, tuning_key
from .interface import IMMUTABLE, Choice, library_of
from .kernel import Kernel, cuda_device_of, kernel_in, make_kernel
from .loader import Loader
from .recorded_values import MISSING, OPTIONS, default, default_tuple, elements, normal, plain, text_of, value_of
from .refusal import NO_VARIANT, refusal_of, refuse

OF_TRITON = frozenset(
    (
        *("fn", "src", "params", "signature", "configs", "best_config", "cache", "cache_key", "device_caches"),
        *("warmup", "pre_run_hooks", "add_pre_run_hook"),
    )
)
"""What programs ask functions of Triton for, and a package does not have."""


def _outside(function: Callable[..., None]) -> Callable[..., None]:
    """Have ``torch.compile`` leave a function out of its graphs: PyTorch reads these attributes."""
    marks = {
        "_torchdynamo_disable": True,
        "_torchdynamo_disable_msg": "Kernelwright launches it outside of graphs; with fullgraph=True, put the launch "
        "into a function with torch.library.custom_op",
    }
    function.__dict__.update(marks)
    return function


class RecordedFunction(Kernel):
    """A function of a program, with the code of the calls that were recorded.

    ``function[grid](...)`` launches it: the grid is a tuple of up to three integers, or a function of the arguments
    that returns one. Arguments are tensors of one GPU, numbers, None, and the constants that the code was made with.
    """

    _recorded: Mapping[str, Any]  # what the manifest says of it
    _others: dict[str, RecordedFunction]  # arch -> the function there, if its decorators do something else
    _names: list[str]  # of the parameters, and of the options behind them
    _places: dict[str, int]
    _count: int  # of the parameters
    _defaults: list[Any]
    _constants: list[int]  # the places of parameters that are declared as constants
    _texts: frozenset[int]  # the places of constants that are compared as texts
    _tuples: dict[str, Any]  # parameter -> the form of the tuples that it gets
    _is_mixed: bool  # whether there are such constants or tuples
    _decorators: Decorators | None  # of the function, that give some parameters
    _archs: dict[int, str]  # device -> the arch of the code that runs there
    _launcher: Callable[..., None]  # launches the function; it gets the grid first
    _find: tvm_ffi.Function

    @property
    def arg_names(self) -> list[str]:
        """The names of the parameters, as functions of Triton have them."""
        return self._names[: self._count]

    def __getattr__(self, name: str) -> NoReturn:
        message = f"a recorded function of a package has no attribute {name!r}"
        remedy = "ask the program's own function; kernelwright.triton.use(package) has it launch the package's code"
        raise AttributeError(f"{message}\n  remedy: {remedy}" if name in OF_TRITON else message)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """What launches the function with a grid."""
        return partial(self._launcher, grid)

    @_outside
    def run(self, *arguments: Any, grid: Any, warmup: bool = False, **named: Any) -> None:
        """Launch the function, as ``function[grid](...)`` does.

        Arguments:
            arguments, named: the parameters, and options of the launch such as ``num_warps``.
            grid: how many programs there are along x, y and z.
            warmup: whether nothing is launched.

        Raises:
            TypeError: a parameter is missing, is given twice, or has another name.
            ValueError: no such call was recorded, the tensors are on several devices, or the grid is too large.
        """
        if not warmup:
            self._run(grid, *arguments, **named)

    @_outside
    def _run(self, grid: Any, /, *arguments: Any, **named: Any) -> None:
        if self._others and (other := self._other(arguments, named)):
            return other._run(grid, *arguments, **named)
        values = self._in_place(arguments, named)
        self._launch(grid, self._decorators.decided(values) if self._decorators else values)

    def launch_decided(self, arguments: Sequence[Any], named: Mapping[str, Any], grid: Any) -> None:
        """Launch the function as :meth:`run` does, for a program whose decorators have computed their parameters."""
        if self._others and (other := self._other(arguments, named)):
            return other.launch_decided(arguments, named, grid)
        self._launch(grid, self._in_place(arguments, named))

    def told(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """The name that the code on the GPU has for such a call, and the parameters by name; None: none was recorded.

        It is for a program whose decorators have computed their parameters, and that has hooks.
        """
        if self._others and (other := self._other(arguments, named)):
            return other.told(arguments, named)
        values = self._in_place(arguments, named)
        number = self.number_of(values)
        if number < 0:
            return None
        units = self._entry["variants"][number]["units"]
        by_arch = {arch: kernels for unit in units for arch, kernels in unit["resources"].items()}
        names = by_arch.get(self.arch_of(values)) or next(iter(by_arch.values()))
        return next(iter(names)), dict(zip(self._names[: self._count], values, strict=False))

    def recorded_for(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the manifest says of the function on the GPU of a call."""
        other = self._other(arguments, named) if self._others else None
        return (other or self)._recorded

    def _launch(self, grid: Any, values: Sequence[Any]) -> None:
        if callable(grid):
            grid = self.called(grid, values)
        if IMMUTABLE in modules:
            _refuse_jax(self.name, zip(self._names, values, strict=True))
        passed = self._spread(values) if self._is_mixed else values
        is_plain = type(grid) is tuple and len(grid) == 1
        sizes = (grid[0], 1, 1) if is_plain else _three(self.name, grid)
        try:
            self._function(*sizes, *passed)
        except (TypeError, ValueError) as error:
            failure = error
        else:
            return
        self._repeat(sizes, values, failure)

    def _spread(self, values: Sequence[Any]) -> list[Any]:
        """What the library is given: constants as texts where it has texts, and the elements of tuples one by one."""
        passed: list[Any] = []
        for name, place, value in zip(self._names, range(len(values)), values, strict=True):
            if name in self._tuples:
                passed += elements(self.name, name, value, self._tuples[name])
            else:
                passed.append(plain(value) if place in self._texts else value)
        return passed

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Refuse a call without a grid."""
        refuse(self.name, TypeError, f"it is called with a grid\n  remedy: write {self.name}[grid](...)")

    def choice(self, /, *arguments: Any, **named: Any) -> Choice:
        """Which variant a call with these arguments runs, whatever the grid; nothing runs.

        Raises:
            TypeError: a parameter is missing, is given twice, or has another name.
            ValueError: no such call was recorded.
        """
        if self._others and (other := self._other(arguments, named)):
            return other.choice(*arguments, **named)
        given = self._in_place(arguments, named)
        values = self._decorators.decided(given) if self._decorators else given
        _refuse_missing(self, values)
        number = self.number_of(values)
        if number < 0:
            refuse(self.name, ValueError, "no such call was recorded", NO_VARIANT)
        return self._choice(number, "it is for calls of this form")

    def _of_variant(self, index: int) -> NoReturn:
        """Refuse to name a variant."""
        message = "its variants are for calls of different forms, and a call finds its own"
        refuse(self.name, TypeError, f"{message}\n  remedy: call {self.name}[grid](...); choice(...) tells the variant")

    def _in_place(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """The parameters and the options of a call, in order."""
        count = len(arguments)
        if count > self._count:
            refuse(self.name, TypeError, f"it has {self._count} parameters, and {count} values were given")
        values = [*arguments, *self._defaults[count:]]
        for name, value in named.items():
            place = self._places.get(name)
            if place is None:
                self.require_default(name, value)
            elif place < count:
                refuse(self.name, TypeError, f"its parameter {name!r} is given twice")
            else:
                values[place] = None if place >= self._count and value == OPTIONS.get(name) else value
        for place in self._constants:
            if type(values[place]).__name__ == "constexpr":
                values[place] = values[place].value
        return values

    def require_default(self, name: str, value: Any) -> None:
        """Refuse a name that is no parameter, and an option with which nothing was recorded."""
        if name not in OPTIONS:
            remedy = f"its parameters are {', '.join(self._names[: self._count])}"
            refuse(self.name, TypeError, f"it has no parameter {name!r}\n  remedy: {remedy}")
        if value != OPTIONS[name]:
            message = f"no call with {name}={value} was recorded\n  remedy: record a run of the program that makes it"
            refuse(self.name, ValueError, message, NO_VARIANT)

    def _repeat(self, sizes: Sequence[Any], values: Sequence[Any], error: Exception) -> None:
        """Repeat a call that has failed, with numbers and constants of other libraries as plain ones.

        Raises:
            Exception: the error of the call, if there are none.
        """
        _refuse_missing(self, values)
        passed = [*sizes, *self._spread(values)]
        simple = [plain(value) for value in passed]
        if any(one is not other for one, other in zip(simple, passed, strict=True)):
            try:
                self._function(*simple)
            except (TypeError, ValueError) as failure:
                error = failure
            else:
                return
        _note_call(self, values, error)
        raise error

    def number_of(self, values: Sequence[Any]) -> int:
        """The number of the variant for a call; -1: there is none."""
        return int(self._find(*map(plain, self._spread(values))))

    def _other(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> RecordedFunction | None:
        """The function for the GPU of a call, if it is not this one."""
        return self._others.get(self.arch_of((*arguments, *named.values())))

    def arch_of(self, values: Sequence[Any]) -> str:
        """The arch of the code that runs on the GPU of a call."""
        for value in values:
            value = getattr(value, "base", value)  # of a tensor descriptor
            device = cuda_device_of(value) if hasattr(value, "__dlpack_device__") else None
            if device is not None:
                if device not in self._archs:
                    self._archs[device] = str(self._module["kw_arch"](device))
                return self._archs[device]
        return ""

    def called(self, function: Callable[[Any], Any], values: Any) -> Any:
        """What a function of the program makes of the arguments: a grid, or a parameter."""
        arguments = values if isinstance(values, dict) else dict(zip(self._names, values, strict=True))
        try:
            return function(arguments)
        except Exception:
            _refuse_missing(self, [arguments[name] for name in self._names])
            raise


def _refuse_jax(function: str, given: Iterable[tuple[str, Any]]) -> None:
    """Refuse arrays of JAX: nothing says which arguments the function writes."""
    for name, value in given:
        if library_of(value) == IMMUTABLE:
            message = f"its parameter {name!r} is an array of JAX, which is immutable, and the function may write it"
            refuse(function, ValueError, f"{message}\n  remedy: pass an array of another library")


def _refuse_missing(function: RecordedFunction, values: Sequence[Any]) -> None:
    missing = [name for name, value in zip(function._names, values, strict=True) if value is MISSING]
    if not missing:
        return
    remedy = "pass it, also if a decorator of the function computes it: a package has only simple expressions"
    config = function._decorators.configs[0] if function._decorators and function._decorators.configs else {}
    if missing[0] in config:
        remedy = f"give all that a config of the function gives, or nothing: {', '.join(config)}"
    refuse(function.name, TypeError, f"its parameter {missing[0]!r} is missing\n  remedy: {remedy}")


def _note_call(function: RecordedFunction, values: Sequence[Any], error: Exception) -> None:
    """Note a call that was not recorded, for ``misses()``."""
    kinds = ("tensor" if hasattr(value, "__dlpack__") else "scalar" for value in values)
    items = [{"name": n, "kind": k, "output": False} for n, k in zip(function._names, kinds, strict=True)]
    if function._loader is not None and refusal_of(error) == NO_VARIANT:
        function._loader.missed_calls().note(function.name, {"variants": [{"arguments": items}]}, values, error)


def _three(name: str, grid: Any) -> tuple[Any, Any, Any]:
    """The grid along x, y and z."""
    try:
        sizes = tuple(grid)
    except TypeError:
        refuse(name, TypeError, f"the grid is {grid!r}\n  remedy: give a tuple of up to three integers")
    if not 1 <= len(sizes) <= 3:
        refuse(name, TypeError, f"the grid has {len(sizes)} numbers\n  remedy: give a tuple of up to three integers")
    return (*sizes, 1, 1)[:3]


class Decorators:
    """What the decorators of a recorded function compute: heuristics, and the config of a tuned function.

    Arguments:
        function: the function.
        recorded: what the manifest says of it.
        places: name of each parameter, and of each option behind them -> its place.
    """

    def __init__(self, function: RecordedFunction, recorded: Mapping[str, Any], places: Mapping[str, int]) -> None:
        self._function = function
        self._recorded = recorded
        self._names, self._places, self._count = [*places], places, len(recorded["parameters"])
        is_option = {name: place >= self._count for name, place in places.items()}
        choices = [(each, arch) for each in recorded.get("choices", ()) for arch in each["archs"]]
        self._heuristics = {name: rule_of(text) for name, text in recorded.get("heuristics", {}).items()}
        self.configs = [normal(config, is_option) for config in recorded.get("configs", ())]
        # Key and arch -> the fastest config.
        self._choices = {(text_of(each["key"]), arch): normal(each["config"], is_option) for each, arch in choices}

    def __bool__(self) -> bool:
        return bool(self.configs or self._choices or self._heuristics)

    def decided(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values, with those that the decorators of the function give: a config, and what heuristics compute."""
        if not self.configs and not self._choices:
            return self._computed(values)
        first = None
        for config in self._in_chosen_order(values):
            chosen = self._computed([config.get(name, v) for name, v in zip(self._names, values, strict=True)])
            first = first or chosen
            if self._function.number_of(chosen) >= 0:
                return chosen
        return first or values

    def _in_chosen_order(self, values: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
        """The configs that a call may have; first the one that was the fastest when such a call was recorded.

        There is none if the call gives itself what they give.
        """
        chosen = self._chosen_config(values) if self._choices else None
        known = self.configs if chosen is None else [chosen, *(each for each in self.configs if each != chosen)]
        given = {n for n, v in zip(self._names[: self._count], values, strict=False) if v is not MISSING}
        yield from (config for config in known if not given.intersection(config))
        if not known or given.intersection(known[0]):
            yield {}

    def _chosen_config(self, values: Sequence[Any]) -> Mapping[str, Any] | None:
        arguments = dict(zip(self._names, values, strict=True))
        for name in self._recorded.get("computed_first", ()):
            arguments[name] = self._function.called(self._heuristics[name], arguments)
        given = {name: value for name, value in arguments.items() if value is not MISSING}
        key = tuning_key(given, self._recorded.get("tuned_by", ()), self._recorded["parameters"])
        return self._choices.get((text_of(list(map(value_of, key))), self._function.arch_of(values)))

    def _computed(self, values: Sequence[Any]) -> list[Any]:
        """The values with what heuristics compute, also if the call gives it, as in Triton."""
        arguments, completed = dict(zip(self._names, values, strict=True)), [*values]
        for name, rule in self._heuristics.items():
            value = arguments[name] = self._function.called(rule, arguments)
            place = self._places.get(name)
            if place is None:
                self._function.require_default(name, value)
            else:
                completed[place] = None if place >= self._count and value == OPTIONS.get(name) else value
        return completed


def load(loader: Loader, name: str, entry: dict[str, Any]) -> RecordedFunction:
    """Load a recorded function of a package.

    Raises:
        ImportError: its library is missing or was altered, or cannot be loaded.
    """
    recorded = entry["recorded"]
    function = kernel_in(name, entry, loader.library(name), RecordedFunction)._completed(loader)
    _tell(function, recorded)
    for arch, other in recorded.get("by_arch", {}).items():
        function._others[arch] = make_kernel(name, entry, function._module, None, RecordedFunction)
        _tell(function._others[arch], other)
    return function


def _tell(function: RecordedFunction, recorded: Mapping[str, Any]) -> None:
    """Tell a function what the manifest says of its calls."""
    parameters, options, defaults = recorded["parameters"], recorded.get("options", []), recorded.get("defaults", {})
    function._recorded, function._others = recorded, {}
    function._names, function._count = [*parameters, *options], len(parameters)
    function._places = {name: place for place, name in enumerate(function._names)}
    tuples = function._tuples = recorded.get("tuples", {})
    decoded = {name: default_tuple(value) if name in tuples else default(value) for name, value in defaults.items()}
    given = [decoded.get(name, MISSING) for name in parameters]
    function._defaults = [*given, *(None for _ in options)]
    function._decorators = Decorators(function, recorded, function._places) or None
    function._archs = {}
    function._constants = [function._places[name] for name in recorded.get("constants", ())]
    function._texts = frozenset(function._places[name] for name in recorded.get("texts", ()))
    function._is_mixed = bool(function._texts or function._tuples)
    function._find = function._module["kw_find"]
    is_usual = not (function._decorators or function._is_mixed or function._others)
    function._launcher = (_bound(function, len(parameters)) if is_usual else None) or function._run


BOUND = """
def {name}(_kw_grid, /, {parameters}, *_kw_rest, {options}**_kw_more):
    if not (_kw_rest or _kw_more or _kw_jax in _kw_modules) and type(_kw_grid) is tuple and len(_kw_grid) == 1:
        try:
            return _kw_function(_kw_grid[0], 1, 1, {passed})
        except (TypeError, ValueError):
            pass
    return _kw_run(_kw_grid, {given}, *_kw_rest, **_kw_more)
"""
"""Launches a call that nothing has to be decided for. Python itself puts the arguments in order. Whatever is unusual,
and whatever fails, goes the long way, which has the messages."""


def _bound(function: RecordedFunction, count: int) -> Callable[..., None] | None:
    """What launches calls of the usual kind; None: a parameter has a name that no text of Python can have.

    Arguments:
        count: of the parameters.
    """
    names, options, every = function._names[:count], function._names[count:], [function.name, *function._names]
    if not names or any(not n.isidentifier() or iskeyword(n) or n.startswith("_kw_") for n in every):
        return None
    space = {f"_kw_{place}": value for place, value in enumerate(function._defaults)}
    space |= {
        "_kw_function": function._function,
        "_kw_run": function._run,
        "_kw_modules": modules,
        "_kw_jax": IMMUTABLE,
    }
    text = BOUND.format(
        name=function.name,
        parameters=", ".join(f"{name}=_kw_{place}" for place, name in enumerate(names)),
        options="".join(f"{name}=None, " for name in options),
        passed=", ".join([*names, *(f"None if {n} == {OPTIONS.get(n)!r} else {n}" for n in options)]),
        given=", ".join([*names, *(f"{name}={name}" for name in options)]),
    )
    exec(text, space)
    return _outside(space[function.name])
