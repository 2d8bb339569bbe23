"""``recorded("calls.json")``: a kernel for each function that a program was recorded with, a variant for each form of
its calls. Nothing here imports Triton, so a definition file that has nothing else costs next to nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.converter import to_json
from ...core.errors import DefinitionError, Where, shown
from ...core.files import canonical_json
from ...define.kernel import Kernel, Kernels
from ...define.kernel_options import Declaration, read_options
from ...define.names import caller, is_name
from ...define.recorded import CALL, damage, read_recorded, recorded
from .recording import (
    DIVISIBLE,
    ChosenConfig,
    RecordedFunction,
    Recording,
    Specialization,
    parse,
    text_of_specialization,
)

if TYPE_CHECKING:
    from ...define.record import KernelRecord

OPTIONS = ("archs", "backends", "reads")
"""The options of ``@kernel`` that recorded functions can have."""

MOST_LABEL = 48
"""Characters of the readable part of a config."""


def record_again(recording: str, options: str = "--fresh ") -> str:
    """The remedy for a recording that is no longer right."""
    return f"record the program again: kernelwright record {options}--output {recording} program.py"


@dataclass(frozen=True)
class RecordedVariant:
    """What the definition of a recorded function returns.

    Arguments:
        function: ``module:name``.
        recording: the file that says so.
        parameters: all parameters of the function, when it was recorded.
        specialization: the calls that this is for.
        choices: what measurements of a tuned function found.
        general: whether it is for all calls with these types and constants, whatever is divisible by 16 or is 1.
    """

    function: str
    recording: str
    parameters: tuple[str, ...]
    specialization: Specialization
    choices: tuple[ChosenConfig, ...] = ()
    general: bool = False

    @property
    def declared(self) -> Mapping[str, Any]:
        """Its arguments are known in a call only."""
        return {}


def recorded_functions(
    path: str, names: Mapping[str, str] | None = None, general: bool = False, **options: Any
) -> Kernels:
    """Declare a kernel for each function in a recording: ``kernels = recorded("calls.json")`` in a definition file.

    ``kernelwright record`` makes such a file. A kernel is called like the function, without underscores in front.

    Arguments:
        path: the recording, relative to the folder of the definition file.
        names: ``module:name`` of a function -> the name of its kernel, where it is to have another one.
        general: whether sizes, strides and addresses that were not recorded run as well, by code that does not rely on
            what is divisible by 16 or is 1.
        options: as of ``@kernel``: ``archs``, ``reads``; and ``backends``, of which only ``tvm_ffi`` calls such
            kernels.

    Raises:
        DefinitionError: the file is missing or damaged, or two functions would become kernels of one name.
    """
    where = caller()
    recorded(path)  # which refuses a path that is not one
    folder = Path(str(where.location).rpartition(":")[0]).parent
    functions = _functions_in(folder, path, where)
    _require_modules(functions, where)
    from .recorded_text import Texts  # a run with nothing to do reads no texts

    texts, recording = Texts(), _from_here(folder / path)
    kernels = {}
    for name, function in _named(functions, names or {}, path, where).items():
        known = functions[function]
        kernels[name] = _kernel(name, _variants(function, recording, known, general), path, options, where)
        if texts.has_other(function, known.source):
            again = record_again(recording, options="")
            kernels[name].remark = f"{function} has changed since {recording} was recorded; {again}"
    return Kernels(kernels)


def is_recorded(kernel: KernelRecord) -> bool:
    """Whether a kernel in Triton is a function of a recording."""
    return all([*config] == [CALL] for config in kernel.configs)


def _functions_in(folder: Path, path: str, where: Where) -> Recording:
    remedy = f"record the program: kernelwright record --output {_from_here(folder / path)} program.py"
    try:
        functions = parse(read_recorded(folder / path))
    except FileNotFoundError as error:
        raise DefinitionError(f"there is no file {path}", where, remedy) from error
    except (OSError, ValueError) as error:
        raise DefinitionError(f"{path} {damage(error)}", where, f"delete it, and {remedy}") from error
    if not functions:
        raise DefinitionError(f"{path} has no functions", where, remedy)
    return functions


def _from_here(path: Path) -> str:
    """A path as somebody in this folder, which is that of the project, writes it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _require_modules(functions: Recording, where: Where) -> None:
    """Raise a DefinitionError if a package that has recorded functions is not there."""
    for function in functions:
        if "<locals>" in function:
            message = f"{function} is defined inside of a function, where no build can find it"
            raise DefinitionError(message, where, "move it to the top of its module, and record the program again")
        top = function.partition(":")[0].partition(".")[0]
        if top not in sys.modules and importlib.util.find_spec(top) is None:
            remedy = (
                "install it, or put its folder on the path in the definition file: sys.path.append(...); PYTHONPATH "
                "does not count here"
            )
            raise DefinitionError(f"there is no module {top!r}, which {function} was recorded in", where, remedy)


def _named(functions: Recording, names: Mapping[str, str], path: str, where: Where) -> dict[str, str]:
    """Name of a kernel -> function."""
    for function in names:
        if function not in functions:
            remedy = f"it has {', '.join(functions)}"
            raise DefinitionError(f"{path} has no function {shown(function)}, which names has", where, remedy)
    alike: dict[str, list[str]] = {}
    for function in functions:
        name = names.get(function, re.sub(r"_+", "_", function.rpartition(":")[2].replace(".", "_")).strip("_"))
        remedy = f'name it: recorded("{path}", names={{"{function}": "another_name"}})'
        if not is_name(name):
            raise DefinitionError(f"{function} cannot be a kernel called {shown(name)}", where, remedy)
        alike.setdefault(name, []).append(function)
    if several := {name: found for name, found in alike.items() if len(found) > 1}:
        texts = "; ".join(f"{', '.join(found)} ({name})" for name, found in several.items())
        longer = {function: _longer_name(function) for found in several.values() for function in found}
        remedy = f'name them: recorded("{path}", names={json.dumps({**names, **longer})})'
        raise DefinitionError(f"several functions would become kernels of one name: {texts}", where, remedy)
    return {name: function for name, (function,) in alike.items()}


def _longer_name(function: str) -> str:
    """A name with that of the module in front."""
    return re.sub(r"_+", "_", re.sub(r"\W", "_", function)).strip("_")


def _variants(function: str, path: str, known: RecordedFunction, general: bool) -> dict[str, RecordedVariant]:
    """Config -> variant: for each form of calls, and behind them, if wanted, the general ones."""
    exact = [RecordedVariant(function, path, known.parameters, one, known.choices) for one in known.specializations]
    variants = {_config_of(variant): variant for variant in exact}
    for variant in exact if general else ():
        wide = replace(variant, specialization=_without_divisibility(variant.specialization), general=True)
        variants.setdefault(_config_of(wide), wide)
    return variants


def _without_divisibility(one: Specialization) -> Specialization:
    return replace(one, types={name: _plain(kind) for name, kind in one.types.items()})


def _plain(kind: Any) -> Any:
    """A type, or those of a tuple, without what is divisible."""
    if isinstance(kind, list):
        return [_plain(inner) for inner in kind]
    return kind.removesuffix(DIVISIBLE) if isinstance(kind, str) else kind


def _kernel(
    name: str, variants: Mapping[str, RecordedVariant], path: str, options: Mapping[str, Any], where: Where
) -> Kernel:
    """The kernel of a function. Its definition looks up the calls that its config names."""

    def definition(call: str) -> RecordedVariant:
        return variants[call]

    definition.__name__ = definition.__qualname__ = name
    definition.__doc__ = f"Calls of {next(iter(variants.values())).function}, as recorded in {path}."
    place = Where(name, stage="discover", location=where.location)
    for option in options:
        if option not in OPTIONS:
            remedy = f"its arguments are names, general, {', '.join(OPTIONS)}"
            raise DefinitionError(f"recorded() has no argument {option!r}", place, remedy)
    # Triton compiles for each arch by itself, and the launches of two archs may differ.
    given = {
        "targets": ["cuda"],
        "backends": ["tvm_ffi"],
        "per_arch": True,
        "frontend": "triton",
        "configs": [{CALL: each} for each in variants],
    }
    given |= options
    kernel = Kernel.declare(definition, read_options(Declaration, given, "recorded()", place), place)
    kernel.recorded = path
    return kernel


def _config_of(variant: RecordedVariant) -> str:
    """The config of a variant: its constants and options, as far as there is room, and a digest of all that it is for.

    A variant keeps its name when the program is recorded again, unless other configs of its function are the fastest.
    """
    specialization = variant.specialization
    told = {**({"general": True} if variant.general else {}), **specialization.constants, **specialization.options}
    plain = (f"{name}-{value}" for name, value in told.items() if isinstance(value, (bool, int, str)))
    label = re.sub(r"[^A-Za-z0-9_.+-]", "", "_".join(plain))[:MOST_LABEL]
    text = "general " * variant.general + text_of_specialization(specialization)
    text += "".join(canonical_json(to_json(choice)) for choice in variant.choices)  # the package has them
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{label}_{digest}".lstrip("_")
