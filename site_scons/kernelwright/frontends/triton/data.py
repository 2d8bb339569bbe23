"""A Program and its unit as data, which another process can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...define.arguments import Scalar, Tensor
from ...define.sizes import Size, text_of
from ..unit import Unit
from .program import Program


def data_of(program: Program, unit: Unit) -> dict[str, Any]:
    """The data; that of the function is not among it."""
    described = {
        "grid": [text_of(size) for _, size in program.blocks],
        "options": program.options,
        "arguments": [[name, *_argument_data(value)] for name, value in program.arguments.items()],
    }
    return {"program": described, "unit": asdict(unit)}


def _argument_data(value: Any) -> tuple[str, Any]:
    if isinstance(value, Tensor):
        return "tensor", asdict(value)
    if isinstance(value, Scalar):
        return "scalar", value.dtype
    return ("size", [text_of(value), value.dtype]) if isinstance(value, Size) else ("value", value)


def program_of(data: Mapping[str, Any], function: Any) -> Program:
    """The Program of its data, with a function."""
    described = data["program"]
    arguments = {name: _argument(kind, value) for name, kind, value in described["arguments"]}
    return Program(function, grid=described["grid"], **described["options"], **arguments)


def _argument(kind: str, data: Any) -> Any:
    if kind == "tensor":
        options = {name: data[name] for name in ("alignment", "multiples", "written")}
        return Tensor(data["dtype"], *data["shape"], **options)
    if kind == "scalar":
        return Scalar(data)
    return Size(*data) if kind == "size" else data


def unit_of(data: Mapping[str, Any]) -> Unit:
    """The unit of its data."""
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data["unit"].items()}
    return Unit(**values)
