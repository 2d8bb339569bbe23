"""Writes the tables of a kernel that is called with a grid: which calls each of its variants was recorded for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..core.dtype import Dtype
from ..core.errors import KernelwrightError, Where
from ..core.signature import SPECIALIZED_KINDS, RecordedCall, Specialized
from ..runtime.heuristic import MARK
from .c_text import c_string
from .plan import KernelPlan, LoweredUnit

PASSED = {kind: f"KW_PASSED_{kind.upper()}" for kind in SPECIALIZED_KINDS if kind != "constant"}
DIVISIBLE = {None: "KW_ANY_NUMBER", True: "KW_MULTIPLE", False: "KW_NO_MULTIPLE"}


def plain(value: Any) -> bool | int | float | str | None:
    """A constant as a call passes it: a number, a text or None as it is, and anything else as canonical JSON.

    In front of JSON is a mark, so that no text of the user's is equal to it.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict) and [*value] == ["float"]:
        return float(value["float"])
    return MARK + json.dumps(value, sort_keys=True, separators=(",", ":"))


class Forms:
    """The tables of a kernel's variants.

    Arguments:
        kernel: a plan whose lowerings are recorded calls.

    Raises:
        KernelwrightError: two variants are for the same calls.
    """

    def __init__(self, kernel: KernelPlan) -> None:
        self._options = kernel.recorded.options if kernel.recorded else ()
        self._require_distinct(kernel)

    def lines(self, number: int, unit: LoweredUnit) -> Iterator[str]:
        """The table of a variant."""
        call = unit.recorded
        assert call is not None
        rows = self._rows(call, unit.where)
        yield f"static const kw_parameter_form kw_forms_{number}[] = {{"
        yield from (f"  {row}," for row in rows)
        yield "};"
        fields: dict[str, Any] = {"parameters": f"kw_forms_{number}", "num_parameters": len(rows)}
        fields |= {"num_options": len(self._options), **({"general": "true"} if call.general else {})}
        yield f"static const kw_form kw_form_{number} = {_fields(fields)};"

    def _rows(self, call: RecordedCall, where: Where) -> list[str]:
        options = (Specialized(name, "constant", value=call.options.get(name)) for name in self._options)
        rows = [_row(parameter, form_text(parameter), where) for parameter in call.parameters]
        return rows + [_row(option, _option_text(option), where) for option in options]

    def _require_distinct(self, kernel: KernelPlan) -> None:
        seen: dict[str, str] = {}
        tuples = kernel.recorded.tuples if kernel.recorded else {}
        for unit in kernel.units:
            own = unit.recorded.function.tuples if unit.recorded else tuples
            other = next((name for name in {**tuples, **own} if own.get(name) != tuples.get(name)), None)
            if other is not None:
                first, what = kernel.units[0].slug, "a tuple or tensor descriptor"
                message = (
                    f"{other!r} is {what} of another form than in the variant {first}, or is one in only one of them"
                )
                raise KernelwrightError(message, unit.where, "record these calls into a file of their own")
        for variant in kernel.variants:
            call = variant.units[0].recorded
            text = "\n".join(self._rows(call, variant.units[0].where)) if call else variant.slug
            # General variants may be alike: of calls with a size of 1, and of others. The first one runs.
            if text in seen and not (call and call.general):
                message = f"it is for the same calls as the variant {seen[text]}"
                raise KernelwrightError(message, variant.units[0].where, "record the program again, with --fresh")
            seen[text] = variant.slug


def block_text(call: RecordedCall) -> str:
    """What the launch of a variant has besides its grid, for one of its lowerings."""
    numbers = {"threads": call.threads, "cluster": call.blocks, "shared": call.shared, "scratch": call.scratch}
    rows = [_fields({**each, "dtype": c_string(each["dtype"]), "box": _list(each["box"])}) for each in call.maps]
    maps = {"maps": f"(const kw_map_form[]){_list(rows)}", "num_maps": len(rows)} if rows else {}
    return _fields(numbers | maps)


def _list(values: Iterable[Any]) -> str:
    return f"{{{', '.join(map(str, values))}}}"


def _fields(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f".{name} = {value}" for name, value in values.items()) + "}"


def form_text(parameter: Specialized) -> str:
    """A parameter as messages have it: ``*float16, a multiple of 16``."""
    if parameter.kind == "constant":
        return str(plain(parameter.value)).removeprefix(MARK)
    kind = f"{'*' if parameter.kind in ('tensor', 'descriptor') else ''}{parameter.dtype}"
    return kind + {None: "", True: ", a multiple of 16", False: ", no multiple of 16"}[parameter.divisible]


def _option_text(option: Specialized) -> str:
    return "the default" if option.value is None else form_text(option)


def _row(parameter: Specialized, text: str, where: Where) -> str:
    fields = [f".name = {c_string(parameter.name)}", f".text = {c_string(text)}"]
    if parameter.kind == "constant":
        fields += [".passed = KW_FIXED", *([".declared = true"] if parameter.declared else [])]
        return "{" + ", ".join([*fields, *_constant(plain(parameter.value), where)]) + "}"
    dtype = Dtype.parse(parameter.dtype, where)
    fields += [f".passed = {PASSED[parameter.kind]}", f".divisible = {DIVISIBLE[parameter.divisible]}"]
    fields += [f".integer = {parameter.value}"] if parameter.kind == "descriptor" else []
    fields += [".declared = true"] if parameter.declared else []
    return "{" + ", ".join([*fields, f".dtype = {{{dtype.code}, {dtype.bits}, {dtype.lanes}}}"]) + "}"


def _constant(value: bool | int | float | str | None, where: Where) -> list[str]:
    """The value of a constant: its type in TVM-FFI, and the number or the text."""
    if value is None:
        return [".type = kTVMFFINone"]
    if isinstance(value, str) and "\0" in value:
        raise KernelwrightError("a constant is a text with NUL", where, "leave the call out of the recording")
    if isinstance(value, str):
        return [".type = kTVMFFIStr", f".string = {c_string(value)}"]
    if isinstance(value, float):
        return [".type = kTVMFFIFloat", f".number = {_number(value)}"]
    if not -(2**63) <= value < 2**63:
        raise KernelwrightError(f"a constant is {value}, which int64 cannot hold", where, "pass it as a parameter")
    kind = "kTVMFFIBool" if isinstance(value, bool) else "kTVMFFIInt"
    return [f".type = {kind}", f".integer = {_integer(int(value))}"]


def _number(value: float) -> str:
    if math.isfinite(value):
        return value.hex()
    return '__builtin_nan("")' if math.isnan(value) else f"{'-' if value < 0 else ''}__builtin_inf()"


def _integer(value: int) -> str:
    return "INT64_MIN" if value == -(2**63) else f"INT64_C({value})"
