"""Dtypes as DLPack numbers them, and what follows from their bits: the bytes of an element, and its alignment.

Their names, and what else a package has to know of them where it runs, are in ``runtime/dtype.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..runtime.dtype import CODES as CODES
from ..runtime.dtype import number_kind as number_kind
from ..runtime.dtype import numpy_dtype as numpy_dtype
from .errors import KernelwrightError, Where

PLAIN_NUMBER = re.compile(r"bool|u?int\d+|b?float\d+(_\w+)?")
"""The dtypes of numbers that frameworks can pass."""


def bytes_of(bits: int) -> int:
    """Bytes that so many bits take: rounded up (dlpack.h, at ``DLTensor.strides``, and tvm-ffi's ``GetDataSize``)."""
    return (bits + 7) // 8


def alignment_of(bits: int) -> int:
    """Bytes to which an element, or an access, of so many bits is aligned.

    This is the largest power of two that divides its size, and at least one byte. So are the vector types of CUDA
    (CUDA C++ Programming Guide, "Built-in Vector Types": ``float3`` is aligned to 4 bytes, ``char3`` to 1), with which
    TVM's code reads packed and vector elements: ``int4x8`` as one ``int``. DLPack demands nothing of single elements,
    and TVM's host code compares no alignment.
    """
    return max(1, (bits & -bits) // 8)


@dataclass(frozen=True)
class Dtype:
    """A dtype as DLPack has it."""

    code: int
    bits: int
    lanes: int

    @property
    def alignment(self) -> int:
        """Bytes to which an element is aligned."""
        return alignment_of(self.bits * self.lanes)

    @classmethod
    def parse(cls, text: str, where: Where) -> Dtype:
        """Read a dtype as TVM writes it, such as ``float16`` or ``float4_e2m1fnx2``.

        Raises:
            KernelwrightError: it is none that DLPack has.
        """
        match = re.fullmatch(r"(complex[0-9]+|[^x]*)(?:x([0-9]{1,4}))?", text, re.S)
        base, lanes = (match[1], int(match[2] or 1)) if match else ("", 1)
        if base == "handle":
            return cls(CODES[base], 64, 1)
        if base == "bool":
            return cls(CODES[base], 8, lanes)
        if base in CODES and (bits := re.match(r"float(\d)", base)):
            return cls(CODES[base], int(bits[1]), lanes)
        plain = re.fullmatch(r"(int|uint|float|bfloat|complex)([0-9]{1,4})", base)
        if plain:
            return cls(CODES[plain[1]], int(plain[2]), lanes)
        raise KernelwrightError(f"dtype {text!r} cannot be an argument", where, "use a dtype that DLPack knows")
