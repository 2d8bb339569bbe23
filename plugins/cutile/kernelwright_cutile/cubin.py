"""Reads the parameters of a function out of its machine code."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping

from elftools.elf.elffile import ELFFile
from kernelwright.core.entry_name import attributes_in

SIZES: Mapping[int, Callable[[int], int]] = {0x17: lambda word: word >> 18, 0x45: lambda word: word & 0xFFFF}
"""Attributes of ``.nv.info`` that describe a parameter, its number first -> its size in bytes, of their last word.

They are EIATTR_KPARAM_INFO, as ``cuobjdump --dump-elf`` prints it, and what code with tensor maps has in its place.
"""


def parameter_sizes(cubin: bytes, function: str) -> list[int]:
    """The sizes of a function's parameters in bytes, in their order; none if there is no such function."""
    section = ELFFile(io.BytesIO(cubin)).get_section_by_name(f".nv.info.{function}")
    found: dict[int, int] = {}
    for attribute, value in attributes_in(section.data()) if section else ():
        if attribute in SIZES and len(value) == 12:
            _, number, _, last = struct.unpack("<IHHI", value)
            found[number] = SIZES[attribute](last)
    return [found[number] for number in sorted(found)]
