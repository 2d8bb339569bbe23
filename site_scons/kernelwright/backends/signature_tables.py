"""The part of ``wrapper.c`` that says what a lowering expects of its arguments: tables, and the functions that compute
sizes and strides from a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.dtype import Dtype
from ..core.errors import KernelwrightError
from ..core.signature import Argument, Place
from ..runtime.dtype import integer_range
from ..runtime.size import Requirement, are_int32, argument_text, line_text
from .c_text import c_string, size_expression, symbols_of
from .plan import LoweredUnit


def signature_tables(number: int, unit: LoweredUnit, has_outputs: bool, competes: bool) -> list[str]:
    """The tables of what a lowering expects of its arguments, and the functions that compute sizes and strides."""
    lines = ["", f"static const kw_argument kw_arguments_{number}[] = {{"]
    lines += [f"  {_argument(argument, unit)}," for argument in unit.arguments]
    outputs = [argument for argument in unit.arguments if argument.output]
    nullable = [argument for argument in unit.arguments if argument.given is None]
    lines += ["};", *(_shapes(f"kw_shapes_{number}", outputs, unit) if has_outputs else [])]
    fields = [f".arguments = kw_arguments_{number}"]
    has_int32 = are_int32(unit.symbols.values(), unit.stride_symbols.values(), unit.limited)
    fields += [".int32_sizes = true"] if has_int32 else []
    fields += [f".output_shapes = kw_shapes_{number}"] if has_outputs else []
    if nullable:
        lines += _shapes(f"kw_nullable_{number}", nullable, unit)
        fields += [f".nullable_shapes = kw_nullable_{number}"]
    if any(argument.strides for argument in unit.arguments):
        lines += _strides(number, unit)
        fields += [f".strides = kw_strides_{number}"]
    if unit.limited:
        told = _told(unit)
        rows = (
            f"{{{told[name]}, {c_string(dtype)}, {', '.join(map(str, integer_range(dtype)))}}}"
            for name, dtype in unit.limited.items()
        )
        lines += [f"static const kw_limited kw_limited_{number}[] = {{{', '.join(rows)}}};"]
        fields += [f".limited = kw_limited_{number}", f".num_limited = {len(unit.limited)}"]
    if of_lines := _lines(number, unit):
        lines += of_lines
        fields += [f".lines = kw_lines_{number}"]
    if unit.requires:
        lines += _requires(number, unit)
        fields += [f".requirements = kw_requirements_{number}", f".requires = kw_requires_{number}"]
    if competes:
        lines += _fits(number, unit)
        fields += [f".fits = kw_fits_{number}"]
    return [*lines, f"static const kw_signature kw_signature_{number} = {{{', '.join(fields)}}};"]


def _strides(number: int, unit: LoweredUnit) -> list[str]:
    """The function that computes declared strides of an argument."""
    sources = _symbol_sources(unit)
    for symbol, told in _stride_sources(unit).items():
        sources.setdefault(symbol, f"kw_told_stride(call, {told})")
    lines = [f"static bool kw_strides_{number}(const kw_call *call, int32_t argument, int64_t *strides) {{"]
    strides = [stride for argument in unit.arguments for stride in argument.strides]
    used = dict.fromkeys(symbol for stride in strides for symbol in _symbols(stride, unit))
    for symbol in used:
        if symbol not in sources:
            text = f"strides of arguments depend on {symbol!r}, which no input tells"
            raise KernelwrightError(text, unit.where, f"make {symbol!r} a size or a stride of an input")
        lines.append(f"  const int64_t size_{symbol} = {sources[symbol]};")
    for position, argument in enumerate(unit.arguments):
        for axis, stride in enumerate(argument.strides):
            value = str(stride) if isinstance(stride, int) else size_expression(stride, "size_{}".format)
            lines.append(f"  if (argument == {position}) strides[{axis}] = {value};")
    multiples = [f"!(size_{symbol} % {unit.multiples[symbol]})" for symbol in used if symbol in unit.multiples]
    return [*lines, f"  return {' && '.join(multiples) or 'true'};", "}"]


def _stride_sources(unit: LoweredUnit) -> dict[str, str]:
    """Symbol that only strides tell -> the places that tell it, their number, and what it is a multiple of, in C."""
    sources = {}
    for symbol, places in unit.stride_places().items():
        told = ", ".join(f"{{{position}, {axis}}}" for position, axis in places)
        sources[symbol] = f"(const kw_place[]){{{told}}}, {len(places)}, {unit.multiples.get(symbol, 1)}"
    return sources


def _told(unit: LoweredUnit) -> dict[str, str]:
    """Where a call has each size, stride and integer: a ``kw_told`` by name."""
    told = {name: f"{{{c_string(name)}, 0, 0, {source}, 1, 0}}" for name, source in _stride_sources(unit).items()}
    for name, (position, axis, times, plus) in unit.symbol_places().items():
        told[name] = f"{{{c_string(name)}, {position}, {-1 if axis is None else axis}, NULL, 0, 1, {times}, {plus}}}"
    return told


def _requires(number: int, unit: LoweredUnit) -> list[str]:
    """The requirements of a lowering, and the function that tells which of them a call does not fulfil."""
    told = _told(unit)
    required = list(map(Requirement, unit.requires))
    lines = list[str]()
    for index, requirement in enumerate(required):
        rows = ", ".join(told[name] for name in requirement.names)
        lines.append(f"static const kw_told kw_told_{number}_{index}[] = {{{rows}}};")
    lines.append(f"static const kw_requirement kw_requirements_{number}[] = {{")
    for index, requirement in enumerate(required):
        names = f"kw_told_{number}_{index}, {len(requirement.names)}"
        lines.append(f"  {{{c_string(requirement.text)}, {names}}},")
    lines += ["};", f"static int32_t kw_requires_{number}(const kw_call *call) {{"]
    for name in dict.fromkeys(name for requirement in required for name in requirement.names):
        lines.append(f"  const int64_t size_{name} = kw_told_value(call, (kw_told){told[name]});")
    for index, requirement in enumerate(required):
        left, right = (size_expression(side.text, "size_{}".format) for side in requirement.sides)
        lines.append(f"  const int64_t left_{index} = {left}, right_{index} = {right};")
        compared = f"left_{index} {requirement.sign} right_{index}"
        lines.append(f"  if (!(kw_are_sizes(left_{index}, right_{index}) && {compared})) return {index};")
    return [*lines, "  return -1;", "}"]


def _fits(number: int, unit: LoweredUnit) -> list[str]:
    """The function that tells whether the sizes of a call fit each other."""
    sources = _symbol_sources(unit)
    compared = [
        (f"call->tensors[{position}]", axis, size)
        for position, argument in enumerate(unit.arguments)
        for axis, size in enumerate(argument.shape)
        if isinstance(size, str) and all(symbol in sources for symbol in _symbols(size, unit))
    ]
    lines = [f"static bool kw_fits_{number}(const kw_call *call) {{"]
    for symbol in dict.fromkeys(symbol for _, _, size in compared for symbol in _symbols(size, unit)):
        lines.append(f"  const int64_t size_{symbol} = {sources[symbol]};")
    for tensor, axis, size in compared:
        value = size_expression(size, "size_{}".format)
        lines.append(f"  if ({tensor} && {tensor}->shape[{axis}] != {value}) return false;")
    return [*lines, "  return true;", "}"]


def _shapes(name: str, arguments: Sequence[Argument], unit: LoweredUnit) -> list[str]:
    """The function that computes the sizes of some arguments from the inputs that are given in each call."""
    sources = _symbol_sources(unit)
    sizes = [size for argument in arguments for size in argument.shape]
    used = [symbol for size in sizes for symbol in _symbols(size, unit)]
    lines = [f"static void {name}(const kw_call *call, int64_t *dims) {{", "  (void)call, (void)dims;"]
    for symbol in dict.fromkeys(used):
        if symbol not in sources:
            raise _unbound(arguments, unit, symbol)
        lines.append(f"  const int64_t size_{symbol} = {sources[symbol]};")
    for index, size in enumerate(sizes):
        value = str(size) if isinstance(size, int) else size_expression(size, "size_{}".format)
        lines.append(f"  dims[{index}] = {value};")
    return [*lines, "}"]


def _argument(argument: Argument, unit: LoweredUnit) -> str:
    dtype = Dtype.parse(argument.dtype, unit.where)
    sizes = argument.shape, unit.multiples, argument.strides
    text = argument_text(argument.kind, argument.dtype, *sizes, argument.given, folds=argument.folds)
    fields = [f".name = {c_string(argument.name)}", f".kind = {argument.launcher_kind}"]
    if argument.kind == "tensor":
        shape = ", ".join(_size(size, unit.multiples) for size in argument.shape)
        ndim = "KW_NO_TENSOR" if argument.given is False else len(argument.shape)
        fields += [f".alignment = {argument.alignment or dtype.alignment}", f".ndim = {ndim}"]
        fields += [f".shape = (const int64_t[]){{{shape}}}"] if shape else []
    fields += [".strided = true"] if argument.strides else []
    fields += [".unique = true"] if argument.strides and argument.written else []
    fields += [".nullable = true"] if argument.given is not True else []
    fields += [".output = true"] if argument.output else []
    if argument.default is not None:
        type_index, member = {"KW_BOOL": ("Bool", "int64"), "KW_INT": ("Int", "int64")}.get(
            argument.launcher_kind, ("Float", "float64")
        )
        number = f".type_index = kTVMFFI{type_index}, .v_{member} = {argument.default + 0}"
        fields += [f".otherwise = &(const TVMFFIAny){{{number}}}"]
    fields += [f".dtype = {{{dtype.code}, {dtype.bits}, {dtype.lanes}}}", f".text = {c_string(text)}"]
    return "{" + ", ".join(fields) + "}"


def _size(size: int | str, multiples: Mapping[str, int]) -> str:
    if isinstance(size, int):
        return str(size)
    return str(-multiples[size]) if size in multiples else "KW_ANY"


def _symbols(size: int | str, unit: LoweredUnit) -> list[str]:
    try:
        return symbols_of(size)
    except (ValueError, RecursionError, MemoryError) as error:  # the last two: it is nested too deeply
        raise KernelwrightError(f"the size {size!r} of an output cannot be computed: {error}", unit.where) from error


def _symbol_sources(unit: LoweredUnit) -> dict[str, str]:
    """The C expression of each symbol that the inputs give."""
    return {symbol: _source(place) for symbol, place in unit.symbol_places().items()}


def _source(place: Place) -> str:
    if place.axis is None:
        return f"call->values[{place.argument}]->v_int64"
    size = f"call->tensors[{place.argument}]->shape[{place.axis}]"
    return size if (place.times, place.plus) == (1, 0) else f"kw_on_line({size}, {place.times}, {place.plus})"


def _lines(number: int, unit: LoweredUnit) -> list[str]:
    """The table of the sizes that tell a symbol by more than its name."""
    rows = []
    for name, place in unit.symbol_places().items():
        if place.axis is not None and (place.times, place.plus) != (1, 0):
            step = unit.multiples.get(name, 1)
            text = line_text(str(unit.arguments[place.argument].shape[place.axis]), name, step)
            rows.append(f"{{{place.argument}, {place.axis}, {place.times * step}, {place.plus}, {c_string(text)}}}")
    return [f"static const kw_line kw_lines_{number}[] = {{{', '.join([*rows, '{0}'])}}};"] if rows else []


def _unbound(arguments: Sequence[Argument], unit: LoweredUnit, symbol: str) -> KernelwrightError:
    first = next(a for a in arguments if any(symbol in _symbols(size, unit) for size in a.shape))
    what, other = ("output", "outputs") if first.output else ("argument", "what is optional")
    return KernelwrightError(
        f"{what} {first.name!r} has the size {symbol!r}, which no input tells",
        unit.where,
        f"pass {symbol!r} as a number, make it a size of an input, or remove {first.name!r} from {other}",
    )
