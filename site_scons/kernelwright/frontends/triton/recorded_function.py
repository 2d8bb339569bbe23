"""Finds the function that a recording names, and what its decorators do at each call: heuristics, and tuned configs.

Written for Triton 3.9.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import DefinitionError, Where
from ..raised import first_line
from .expression import expression_of
from .program import OPTIONAL
from .recorded import record_again
from .recording import DTYPE, FLOAT, FUNCTION


@dataclass(frozen=True)
class FoundFunction:
    """A function with what its decorators do.

    Arguments:
        function: the ``JITFunction``.
        heuristics: parameter -> the expression that computes it; empty: a package cannot compute it.
        configs: what it is tuned with, the first one first; none, if a function of the program leaves some out of
            calls.
        tuned_by: the parameters that decide which config is the fastest.
        computed_first: those of its heuristics that are computed before that is asked.
        decided: the parameters and options that its decorators give.
        is_tuned: whether it has configs, also if a function of the program leaves some out of calls.
    """

    function: Any
    heuristics: Mapping[str, str] = field(default_factory=dict)
    configs: Sequence[Mapping[str, Any]] = ()
    tuned_by: Sequence[str] = ()
    computed_first: Sequence[str] = ()
    decided: frozenset[str] = frozenset()
    is_tuned: bool = False


def found(name: str, recording: str, where: Where) -> FoundFunction:
    """The function of a name: ``module:name``.

    Arguments:
        recording: the file that has the name.

    Raises:
        DefinitionError: there is none, or it does at each call what no package can do.
    """
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction, KernelInterface

    value = _attribute(name, record_again(recording), where)
    heuristics: dict[str, str] = {}
    configs: list[dict[str, Any]] = []
    tuned_by: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    is_tuned = False
    decided: set[str] = set()
    # Libraries have decorators of their own, which may be around those of Triton or between them.
    while isinstance(value, KernelInterface) and not isinstance(value, JITFunction) and hasattr(value, "fn"):
        if isinstance(value, Heuristics):
            # The inner ones come later, and have the last word.
            heuristics |= {parameter: expression_of(rule) for parameter, rule in value.values.items()}
        elif isinstance(value, Autotuner):
            listed, tuned_by = [_config(config, name, where) for config in value.configs], tuple(value.keys)
            first = tuple(parameter for parameter, text in heuristics.items() if text)
            decided |= {parameter for config in listed for parameter in config}
            is_tuned = True
            configs = [] if value.early_config_prune else listed
        value = value.fn
    if not isinstance(value, JITFunction):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        message = f"{name} is of type {kind}, and no function with @triton.jit"
        remedy = f"let the name in its def be that of the function with @triton.jit, or {record_again(recording)}"
        raise DefinitionError(message, where, remedy)
    if value.pre_run_hooks:
        remedy = "call its hooks in the program, and remove them from the function"
        raise DefinitionError(f"{name} has hooks that run before each call, which a package has not", where, remedy)
    return FoundFunction(value, heuristics, configs, tuned_by, first, frozenset({*decided, *heuristics}), is_tuned)


def _attribute(name: str, again: str, where: Where) -> Any:
    module_name, _, path = name.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    except ImportError as error:
        message = f"the module {module_name!r} of a recorded function cannot be imported: {first_line(error)}"
        remedy = f"install the package that has it, put it beside the definition file, or {again}"
        raise DefinitionError(message, where, remedy) from error
    for part in path.split("."):
        if not hasattr(value, part):
            message = f"the module {module_name!r} has no {path!r} any more, which was recorded"
            raise DefinitionError(message, where, again)
        value = getattr(value, part)
    return value


def _config(config: Any, name: str, where: Where) -> dict[str, Any]:
    """What a config of ``@triton.autotune`` gives to a call."""
    if config.pre_hook is not None or config.ir_override is not None:
        message = f"the config {config} of {name} has a pre_hook or an ir_override, which a package has not"
        raise DefinitionError(message, where, "do its work in the program, before the call")
    options = {option: getattr(config, option) for option in ("num_warps", "num_stages", *OPTIONAL)}
    try:
        given = {parameter: encoded(value) for parameter, value in config.kwargs.items()}
    except ValueError as error:
        remedy = "give numbers, texts, dtypes of Triton, functions with @triton.jit, or tuples of them"
        raise DefinitionError(f"the config {config} of {name} has {error}", where, remedy) from error
    return {**given, **{option: value for option, value in options.items() if value is not None}}


def constant(value: Any, recording: str, where: Where) -> Any:
    """A constant of a recording as Triton has it.

    Raises:
        DefinitionError: it is a function that is not there.
    """
    from triton import language

    if isinstance(value, list):
        return tuple(constant(item, recording, where) for item in value)
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == DTYPE:
        return language.dtype(content)
    return float(content) if kind == FLOAT else found(content, recording, where).function


def encoded(value: Any) -> Any:
    """A default or a value of a config as a recording has constants; raises a ValueError for what it has not."""
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [encoded(item) for item in value]
    if type(value).__name__ == "constexpr":
        return encoded(value.value)
    if type(value).__name__ == "dtype":
        return {DTYPE: value.name}
    if type(value).__name__ == "JITFunction":
        return {FUNCTION: f"{value.module}:{value.fn.__qualname__}"}
    raise ValueError(f"a value of type {type(value).__name__}")


def defaults_of(found: FoundFunction) -> dict[str, Any]:
    """The parameters of a function that have a default which a package can have, and that counts, and the defaults."""
    defaults = {}
    for parameter in found.function.signature.parameters.values():
        if parameter.default is not inspect.Parameter.empty and parameter.name not in found.decided:
            try:
                defaults[parameter.name] = encoded(parameter.default)
            except ValueError:
                continue  # a call has to give it
    return defaults
