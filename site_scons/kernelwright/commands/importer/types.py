"""The types of C++ that can be arguments of kernels, and their dtypes."""

from __future__ import annotations

import re

from ...core.dtype import Dtype, bytes_of
from ...core.errors import Where

NAMES = {
    "float64": "double",
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float8_e4m3fn": "__nv_fp8_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint64": "unsigned long long",
    "uint32": "unsigned int",
    "uint16": "unsigned short",
    "uint8": "unsigned char",
    "bool": "bool",
}
"""A dtype -> what C++ calls it."""

OTHERS = {"long": "int64", "unsigned long": "uint64", "char": "int8", "half": "float16", "nv_bfloat16": "bfloat16"}
"""Other names -> the dtypes that they have on Linux on x86-64."""

VECTORS = {
    **{"char": "int8", "uchar": "uint8", "short": "int16", "ushort": "uint16", "int": "int32", "uint": "uint32"},
    **{"long": "int64", "ulong": "uint64", "longlong": "int64", "ulonglong": "uint64"},
    **{"float": "float32", "double": "float64", "__half": "float16", "__nv_bfloat16": "bfloat16"},
}
"""The beginnings of the names of vector types (CUDA C++ Programming Guide, "Built-in Vector Types") -> dtypes."""

OF_NAMES = {**{name: dtype for dtype, name in NAMES.items()}, **OTHERS}
"""What C++ calls a number -> its dtype."""


def dtype_of(element: str) -> str | None:
    """The dtype of a number, as C++ calls its type; None: it is no number."""
    return OF_NAMES.get(element)


def vector_dtype(element: str) -> str | None:
    """The dtype of the numbers in a vector such as ``float4``; None: it is no vector."""
    match = re.fullmatch(r"(__nv_bfloat16|\w+?)([1-4])(?:_(?:16|32)a)?", element)
    return VECTORS.get(match[1]) if match else None


def number_bytes(dtype: str) -> int:
    """The bytes of a number."""
    return bytes_of(Dtype.parse(dtype, Where(stage="import")).bits)


def template_index(element: str) -> int | None:
    """Which parameter of the template a type is, counted from 0; None: it is none of them."""
    match = re.fullmatch(r"type-parameter-0-(\d+)", element)
    return int(match[1]) if match else None
