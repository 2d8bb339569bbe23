"""Dtypes by the names that TVM gives them, such as ``float16`` and ``float4_e2m1fnx2``."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

CODES = {
    "int": 0,
    "uint": 1,
    "float": 2,
    "handle": 3,
    "bfloat": 4,
    "complex": 5,
    "bool": 6,
    "float8_e3m4": 7,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
    "float6_e2m3fn": 15,
    "float6_e3m2fn": 16,
    "float4_e2m1fn": 17,
}
"""Type codes of DLPack 1.1 (dlpack.h, DLDataTypeCode) by TVM's names."""

_NAMES = {code: name for name, code in CODES.items()}


@cache
def dtype_name(code: int, bits: int, lanes: int) -> str:
    """The name of a dtype that is given by DLPack's numbers."""
    base = _NAMES.get(code, f"dtype{code}_")
    has_bits = ("_" in base and code in _NAMES) or (base, bits) == ("bool", 8)
    name = base if has_bits else f"{base}{bits}"
    return name if lanes == 1 else f"{name}x{lanes}"


def number_kind(dtype: str) -> str:
    """What is passed for a number of that dtype: an ``int``, a ``bool``, a ``float``, or a ``pointer``."""
    if dtype.startswith(("int", "uint")):
        return "int"
    return {"bool": "bool", "handle": "pointer"}.get(dtype, "float")


NARROW: dict[str, tuple[int, int, float, float]] = {
    "bfloat16": (7, -126, (2 - 2**-7) * 2.0**127, math.inf),
    "float8_e3m4": (4, -2, 15.5, math.inf),
    "float8_e4m3": (3, -6, 240.0, math.inf),
    "float8_e4m3b11fnuz": (3, -10, 30.0, math.nan),
    "float8_e4m3fn": (3, -6, 448.0, math.nan),
    "float8_e4m3fnuz": (3, -7, 240.0, math.nan),
    "float8_e5m2": (2, -14, 57344.0, math.inf),
    "float8_e5m2fnuz": (2, -15, 57344.0, math.nan),
    "float8_e8m0fnu": (0, -127, 2.0**127, math.nan),
}
"""Floats that TVM's host code cannot take, so they are passed as float32. For each: bits of the mantissa, exponent of
the least normal number, greatest number, and what greater ones become.

Source: https://github.com/jax-ml/ml_dtypes, "Specifications"."""


def passed_as(dtype: str) -> str:
    """The dtype that a number has on its way to the kernel."""
    return "float32" if dtype in NARROW else dtype


def rounded(value: float, dtype: str) -> float:
    """A number rounded to a dtype of NARROW: to the nearest value, and to the even one of two equally near ones."""
    mantissa, least, most, beyond = NARROW[dtype]
    # A number goes through float32, in which 2**-150 and what is less is 0, and e8m0 has no 0.
    if math.isnan(value) or (dtype == "float8_e8m0fnu" and value <= 2.0**-150):
        return math.nan
    if math.isinf(value):
        return math.copysign(beyond, value)
    step = 2.0 ** (max(math.frexp(value)[1] - 1, least) - mantissa)
    nearest = math.copysign(round(value / step) * step, value)
    if dtype.endswith("fnuz") and nearest == 0:
        return 0.0
    if dtype == "float8_e8m0fnu":
        nearest = max(nearest, 2.0**least)
    return nearest if abs(nearest) <= most else math.copysign(beyond, value)


def integer_range(dtype: str) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def numpy_dtype(name: str) -> Any:
    """NumPy's dtype of that name, or that of ml_dtypes if NumPy has none.

    Raises:
        AttributeError: ml_dtypes does not have it either.
        TypeError: ml_dtypes is not installed.
    """
    import numpy

    try:
        return numpy.dtype(name)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError as error:
            raise TypeError(f"NumPy has no {name}, and ml_dtypes, which has it, is not installed") from error
        return numpy.dtype(getattr(ml_dtypes, name))


@cache
def name_of_torch(dtype: Any) -> str:
    """TVM's name of a dtype of PyTorch. It differs for lanes, and for integers below 8 bits: they take a byte."""
    name = re.sub(r"_x(\d+)$", r"x\1", str(dtype).removeprefix("torch."))
    return re.sub(r"^(u?int)[1-7]$", r"\g<1>8", name)


def torch_dtype(dtype: str) -> Any:
    """The dtype of PyTorch for TVM's name.

    Raises:
        TypeError: PyTorch has none.
    """
    import torch

    for name in (dtype, re.sub(r"x(\d+)$", r"_x\1", dtype)):
        found = getattr(torch, name, None)
        if isinstance(found, torch.dtype) and name_of_torch(found) == dtype:
            return found
    raise TypeError("it has no such dtype")
