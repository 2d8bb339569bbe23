"""Lowers a call that a program was recorded with: Triton makes the code, and the launcher makes the launch itself.

Written for Triton 3.9. Which forms of calls Triton tells apart is in ``python/src/specialize.cc``, and what a launch
passes is in ``backends/nvidia/driver.c``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.arch import arch_order, real_arch, shared_memory
from ...core.converter import to_json
from ...core.errors import DefinitionError, LoweringError, Where
from ...core.files import canonical_json, pretty_json
from ...core.signature import (
    SCHEMA,
    SPREAD_CLUSTERS,
    DeviceKernel,
    RecordedCall,
    RecordedFunction,
    Signature,
    Specialized,
)
from ...runtime.heuristic import LAUNCH_OPTIONS, undeclared
from ..cubin import device_files, reported_usage
from ..unit import LoweredKernel, Unit
from .compiler import Compiled, Compiler, require_arch, require_release, source_text
from .descriptor import require_tiled
from .program import DTYPES
from .recorded import RecordedVariant, record_again
from .recorded_function import FoundFunction, constant, defaults_of, found
from .recording import CONSTANT, DIVISIBLE, FUNCTION
from .source_digest import source_of
from .stand_in import importing

LOGIC = "the program chooses the grid of each call"
"""Why a backend without host code cannot call it."""

HOST = b"/* There is no host code: the launcher has the launch from the tables. */\n"

NAMES = {name: dtype for dtype, name in DTYPES.items()} | {"i1": "bool"}
"""A dtype as types of Triton have it -> its name."""

NUMBERS = (
    *("bool", "float16", "float32", "float64"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
"""The dtypes of numbers that a launch can pass."""

DESCRIPTOR = re.compile(r"tensordesc<(\w+)(\[[\d, ]+\])>")
"""The type of a tensor descriptor: the dtype, and the shape of its blocks."""


def lower_recorded(variant: RecordedVariant, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """Compile what a recording asks for, for all archs of ``unit``.

    Raises:
        DefinitionError: the function is not the one that was recorded.
        LoweringError: Triton cannot compile it, or it needs what a launch of ours does not have.
        ToolchainError: Triton is not installed, or another release of it.
    """
    require_release(unit.where)
    arch = min(map(real_arch, unit.archs), key=arch_order)
    require_arch(arch, unit.where)
    progress(f"importing {variant.function}")
    with importing(arch, variant.function.partition(":")[0], unit.where):
        function = found(variant.function, variant.recording, unit.where)
        known = _function(variant, function, unit.where)
    _require_parameters(variant, function.function, unit)
    variant = _with_ones_passed(variant, function.function)
    parameters = _specialized(variant, function.function, unit)
    form = _form_of_calls(variant, function)
    is_optional = bool(form) and not _is_chosen(variant, real_arch(unit.arch))
    results, left_out = _compiled(variant, function.function, is_optional, unit, progress)
    call = _call(variant, known, bool(function.function.debug), parameters, results)
    call = replace(call, maps=_maps(parameters, results[0], unit), form=form, left_out=left_out)
    signature = _signature(call, unit)
    usages = {result.arch: result for result in results}
    files = {
        "module.ttir": _source(variant, results).encode(),
        "signature.json": pretty_json({"schema": SCHEMA, **to_json(signature)}).encode(),
        "host.c": HOST,
    }
    return LoweredKernel(files | device_files(unit.archs, usages, reported_usage), "as written")


def _form_of_calls(variant: RecordedVariant, function: FoundFunction) -> str:
    """What the calls are that a tuned function can run with another config; empty: it is not tuned."""
    special = variant.specialization
    parts: list[Mapping[str, Any]] = [special.types, special.constants, special.options]
    rest = [{n: value for n, value in part.items() if n not in function.decided} for part in parts]
    return canonical_json([variant.general, *rest]) if function.is_tuned else ""


def _is_chosen(variant: RecordedVariant, arch: str) -> bool:
    """Whether a measurement on an arch found that the config of a variant is the fastest."""
    told = {**LAUNCH_OPTIONS, **variant.specialization.options, **variant.specialization.constants}
    return any(
        arch in choice.archs and all(told.get(name) == value for name, value in choice.config.items())
        for choice in variant.choices
    )


def _compiled(
    variant: RecordedVariant, function: Any, is_optional: bool, unit: Unit, progress: Callable[[str], None]
) -> tuple[list[Compiled], str]:
    """The code; of a config that Triton's tuner would leave out, none, and why.

    Arguments:
        is_optional: whether calls can run with another config.

    Raises:
        LoweringError: Triton cannot compile it, and would not leave it out.
    """
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import OutOfResources, PTXASError

    try:
        results = _RecordedCompiler(variant, function, unit).results(progress)
        for result in results if is_optional else ():
            _require_resources(result, unit)
    except LoweringError as error:
        if not is_optional or not isinstance(
            error.__cause__, (CompileTimeAssertionFailure, OutOfResources, PTXASError)
        ):
            raise
        path, _, line = str(error.where.location).rpartition(":")
        place = os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else Path(path).name
        (arch,) = {real_arch(arch) for arch in unit.archs}
        return [Compiled(arch, "left_out")], f"{place}:{line}: {error.message}"
    return results, ""


def _require_resources(result: Compiled, unit: Unit) -> None:
    """Raise a LoweringError for code that no GPU of the arch can launch, as Triton does at the first launch."""
    from triton.runtime.errors import OutOfResources

    most = shared_memory(result.arch)
    if most is not None and result.shared > most:
        message = f"it needs {result.shared} bytes of shared memory, and a block on {result.arch} can have {most}"
        cause = OutOfResources(result.shared, most, "shared memory")
        raise LoweringError(message, unit.where, "take smaller blocks, or fewer stages") from cause


def _require_parameters(variant: RecordedVariant, function: Any, unit: Unit) -> None:
    names = tuple(parameter.name for parameter in function.params)
    if any(each.kind is each.VAR_POSITIONAL for each in function.signature.parameters.values()):
        message = f"{variant.function} takes any number of arguments (*), which a launch of a package cannot pass"
        raise LoweringError(message, unit.where, "give the parameters names, or pass a tuple")
    if names != variant.parameters:
        message = f"{variant.function} has the parameters {', '.join(names)}, and was recorded with "
        raise DefinitionError(message + ", ".join(variant.parameters), unit.where, record_again(variant.recording))


def _with_ones_passed(variant: RecordedVariant, function: Any) -> RecordedVariant:
    """A general variant with parameters in place of the integers that Triton took for constants because they were 1."""
    special = variant.specialization
    ones = [p.name for p in function.params if not p.is_constexpr and _is_one(special.constants.get(p.name))]
    if not variant.general or not ones:
        return variant
    constants = {name: value for name, value in special.constants.items() if name not in ones}
    types = {**special.types, **dict.fromkeys(ones, "i32")}
    return replace(variant, specialization=replace(special, types=types, constants=constants))


def _is_one(value: Any) -> bool:
    return type(value) is int and value == 1


class _RecordedCompiler(Compiler):
    """Compiles a function for the types and constants of its recorded calls."""

    def __init__(self, variant: RecordedVariant, function: Any, unit: Unit) -> None:
        super().__init__(function, {**LAUNCH_OPTIONS, **variant.specialization.options}, unit)
        self._variant = variant

    def _source(self) -> Any:
        from triton.compiler import ASTSource

        special = self._variant.specialization
        constants: dict[tuple[int, ...], Any] = {}
        attributes: dict[tuple[int, ...], Any] = {}

        def kind(told: Any, path: tuple[int, ...]) -> Any:
            """The type of a parameter, or of an element of a tuple, for Triton; it notes what else is told."""
            if isinstance(told, list):
                return tuple(kind(inner, (*path, at)) for at, inner in enumerate(told))
            if isinstance(told, dict):
                constants[path] = constant(told[CONSTANT], self._variant.recording, self._unit.where)
                return "constexpr"
            if _is_divisible(told):
                attributes[path] = [["tt.divisibility", 16]]
            return told.removesuffix(DIVISIBLE)

        told = {**special.types, **{name: {CONSTANT: value} for name, value in special.constants.items()}}
        signature = {name: kind(told[name], (at,)) for at, name in enumerate(self._variant.parameters)}
        return ASTSource(self._function, signature, constants, attributes)


def _is_divisible(kind: str) -> bool:
    return kind.endswith(DIVISIBLE)


def _specialized(variant: RecordedVariant, function: Any, unit: Unit) -> tuple[Specialized, ...]:
    """All parameters of a function, as the recorded calls have them.

    Raises:
        LoweringError: one is passed in a way that launches here do not have.
    """
    special = variant.specialization
    told = {**special.types, **{name: {CONSTANT: value} for name, value in special.constants.items()}}
    return tuple(
        one
        for parameter in function.params
        for one in _parts(parameter, parameter.name, told[parameter.name], variant.general, unit)
    )


def _parts(parameter: Any, name: str, told: Any, general: bool, unit: Unit) -> Iterator[Specialized]:
    """A parameter; of a tuple its elements, and of a tensor descriptor what it consists of.

    Arguments:
        name: that of the parameter, or of an element.
        told: what the recording says of it.
    """
    if isinstance(told, list):
        for at, inner in enumerate(told):
            yield from _parts(parameter, f"{name}.{at}", inner, general, unit)
    elif isinstance(told, str) and (match := DESCRIPTOR.fullmatch(told)):
        yield from _in_descriptor(name, NAMES[match[1]], json.loads(match[2]))
    elif isinstance(told, dict):
        value = told[CONSTANT] if parameter.is_constexpr else undeclared(told[CONSTANT])
        yield Specialized(name, "constant", declared=parameter.is_constexpr, value=value)
    else:
        yield replace(_passed(parameter, told, general, unit), name=name)


def _in_descriptor(name: str, dtype: str, block: list[int]) -> Iterator[Specialized]:
    """What a tensor descriptor consists of, in the order in which calls pass it."""
    yield Specialized(name, "descriptor", dtype, divisible=True, value=len(block))
    for what, kind in (("shape", "int32"), ("strides", "int64")):
        yield from (Specialized(f"{name}.{what}.{axis}", "part", kind) for axis in range(len(block)))
    yield from (Specialized(f"{name}.{what}", "part", "bool") for what in ("padding", "round_f32_to_tf32"))
    yield Specialized(f"{name}.block_shape", "constant", value=block)


def _form(told: Any) -> list[Any] | int | None:
    """The form of a tuple: None for each element, or its form; of a tensor descriptor the number of dimensions."""
    if isinstance(told, list):
        return [_form(inner) for inner in told]
    match = DESCRIPTOR.fullmatch(told) if isinstance(told, str) else None
    return len(json.loads(match[2])) if match else None


def _passed(parameter: Any, kind: str, general: bool, unit: Unit) -> Specialized:
    """A parameter that a launch passes.

    Arguments:
        parameter: Triton's, which says what its type is compared by.
        kind: its type in the recording.
        general: whether any value will do.
    """
    text = kind.removesuffix(DIVISIBLE)
    dtype = NAMES.get(text.removeprefix("*").removeprefix("k"))
    is_tensor = text.startswith("*")
    if dtype is None or (not is_tensor and dtype not in NUMBERS):
        message = f"the parameter {parameter.name!r} is {kind}, which launches"
        remedy = "leave the call out of the recording, or pass tensors, integers, and floats of other types"
        raise LoweringError(f"{message} of a package cannot pass", unit.where, remedy)
    is_declared = bool(parameter.annotation_type)
    looks = not general and not parameter.do_not_specialize and not parameter.do_not_specialize_on_alignment
    number = "tensor" if is_tensor else "int" if "int" in dtype else "bool" if dtype == "bool" else "float"
    divisible = _is_divisible(kind) if looks and number in ("tensor", "int") else None
    return Specialized(parameter.name, number, dtype, is_declared and not is_tensor, divisible)


def _call(
    variant: RecordedVariant,
    function: RecordedFunction,
    is_debugged: bool,
    parameters: tuple[Specialized, ...],
    results: Sequence[Compiled],
) -> RecordedCall:
    """The calls that a variant is for, and their launch.

    Arguments:
        is_debugged: whether the decorator of the function says that it is debugged. Then a call need not say so.
        results: the code for the only arch, because each has a unit of its own.
    """
    (code,) = results
    options = {n: v for n, v in variant.specialization.options.items() if n != "debug" or v != is_debugged}
    return RecordedCall(
        function,
        general=variant.general,
        parameters=parameters,
        options=options,
        symbol=code.name,
        threads=code.threads,
        blocks=options.get("num_ctas", 1),
        shared=code.shared,
        scratch=code.scratch,
    )


def _maps(parameters: Sequence[Specialized], code: Compiled, unit: Unit) -> tuple[Mapping[str, Any], ...]:
    """How the code copies by each tensor descriptor, if not by pointers."""
    if not code.descriptors:
        return ()
    pairs = list(zip([p for p in parameters if p.kind == "descriptor"], code.descriptors, strict=True))
    for parameter, described in pairs:
        require_tiled(parameter.name, described, unit.where)
    return tuple({"dtype": p.dtype, "box": d["block_size"], "swizzle": d["swizzle"]} for p, d in pairs)


def _signature(call: RecordedCall, unit: Unit) -> Signature:
    kinds = [kind for parameter in call.parameters for kind in _kinds(parameter, bool(call.maps))]
    launch = ["blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x"]
    launch += ["clusterCtaIdx.x", SPREAD_CLUSTERS] if call.blocks > 1 else []
    # The first is how TVM 0.27 spells it.
    launch += ["tirx.use_programtic_dependent_launch"] if call.options.get("launch_pdl") else []
    launch += ["tirx.use_cooperative_launch"] if call.options.get("launch_cooperative_grid") else []
    launch += ["tirx.use_dyn_shared_memory"] if call.shared else []
    # Behind the parameters are two addresses of memory: of what blocks share, and of what instrumentation writes.
    device = DeviceKernel(call.symbol, (*kinds, "handle", "handle"), tuple(launch))
    return Signature(
        kernel=unit.kernel,
        slug=unit.slug,
        config=dict(unit.config),
        target=unit.target,
        arch=unit.arch,
        entry=unit.symbol,
        schedule="as written",
        arguments=(),
        symbols={},
        device_kernels=(device,),
        host_logic=LOGIC,
        opaque=True,
        recorded=call,
    )


def _kinds(parameter: Specialized, by_maps: bool) -> list[str]:
    """The dtypes of what a launch passes for a parameter. Without a map, sizes and strides are passed twice.

    Arguments:
        by_maps: whether the code copies by tensor maps.
    """
    if parameter.kind in ("constant", "part"):
        return []
    if parameter.kind != "descriptor":
        return ["handle" if parameter.kind == "tensor" else parameter.dtype]
    rank = parameter.value
    first = ["tensor_map"] if by_maps else ["handle", *["int64"] * 2 * rank, *["bool"] * 2]
    return [*first, *["int32"] * rank, *["int64"] * rank]


def _functions_in(value: Any, variant: RecordedVariant, where: Where) -> Iterator[tuple[str, str]]:
    """The functions in constants and in tuples, by name, with the digests of what they consist of."""
    if isinstance(value, list):
        for item in value:
            yield from _functions_in(item, variant, where)
    elif isinstance(value, dict) and FUNCTION in value:
        yield value[FUNCTION], source_of(constant(value, variant.recording, where)).digest
    elif isinstance(value, dict):  # a constant in a tuple
        yield from _functions_in([*value.values()], variant, where)


def _function(variant: RecordedVariant, function: FoundFunction, where: Where) -> RecordedFunction:
    """What callers have to know of the function, whatever the variant."""
    special = variant.specialization
    return RecordedFunction(
        name=variant.function,
        source=source_of(function.function).digest,
        parameters=variant.parameters,
        constants=tuple(parameter.name for parameter in function.function.params if parameter.is_constexpr),
        defaults=defaults_of(function),
        heuristics={name: text for name, text in function.heuristics.items() if text},
        configs=tuple(function.configs),
        tuned_by=tuple(function.tuned_by) if variant.choices else (),
        computed_first=tuple(function.computed_first) if variant.choices else (),
        choices=tuple(to_json(choice) for choice in variant.choices),
        functions=dict(_functions_in([*special.constants.values(), *special.types.values()], variant, where)),
        tuples={name: form for name, kind in special.types.items() if (form := _form(kind)) is not None},
    )


def _source(variant: RecordedVariant, results: Sequence[Compiled]) -> str:
    """Triton's IR, once for all archs that have the same, behind the calls that it is for."""
    special = variant.specialization
    asked: Mapping[str, Any] = {"types": special.types, "constants": special.constants, "options": special.options}
    return source_text(f"{variant.function} {canonical_json(asked)}", results)
