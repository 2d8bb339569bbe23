"""Reads compiled device code: the name that the compiler gave a function, and the alignment and threads it needs."""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENTRY = "kw_entry"
"""The variable of the device code that points to the function; the host code calls the function by this name, too. If
there are several functions, the others have a number behind it."""

ALIGNMENTS = "kw_alignments"
"""The variable with the alignment that each argument's type asks for, as a power of two."""

ALIGNMENTS_IN_PTX = re.compile(rf"\.[bu]8 {ALIGNMENTS}(?:\[(\d+)\])?(?: = \{{?([\d, ]*)\}}?)?;".encode())


def entry_name(image: Path, entry: str = ENTRY) -> str:
    """The name of the function that a variable points to.

    Arguments:
        image: a cubin or a PTX file.
        entry: the variable.

    Raises:
        ValueError: there is no such variable, or no kernel that it points to.
    """
    content = image.read_bytes()
    if content.startswith(b"\x7fELF"):
        return _in_cubin(content, entry)
    match = re.search(rf"\.u64 {entry}(?:\[1\])? = (?:generic\()?([\w$]+)".encode(), content)
    # A __device__ function is a .func, which no host code can launch.
    if match is None or not re.search(rb"\.entry " + re.escape(match[1]) + rb"(?![\w$])", content):
        raise ValueError(f"{image.name} has no {entry} that points to a __global__ function")
    return match[1].decode()


def asked_alignments(image: Path) -> list[int]:
    """The alignment that the type of each argument asks for, in bytes: 16 for a pointer to ``float4``.

    Arguments:
        image: a cubin or a PTX file.

    Raises:
        ValueError: it does not tell.
    """
    content = image.read_bytes()
    if content.startswith(b"\x7fELF"):
        powers = _variable_in_cubin(content)
    elif match := ALIGNMENTS_IN_PTX.search(content):
        # Zeros at the end are not written.
        powers = bytes(map(int, filter(None, (match[2] or b"").split(b",")))).ljust(int(match[1] or 1), b"\0")
    else:
        raise ValueError(f"{image.name} has no {ALIGNMENTS}")
    return [1 << power for power in powers]


def thread_bounds(image: Path, function: str) -> tuple[int, bool] | None:
    """The threads that a block may have, and whether it has to have all of them; None: nothing is said.

    It is ``.maxntid`` and ``.reqntid`` of PTX, which ``__launch_bounds__`` and ``__block_size__`` become.

    Arguments:
        image: a cubin or a PTX file.
        function: the name of the function in it.
    """
    content = image.read_bytes()
    if content.startswith(b"\x7fELF"):
        return _bounds_in_cubin(content, function)
    # Before it is defined it may be declared, which ends with a semicolon.
    name = re.escape(function.encode())
    bounds = re.search(rb"\.entry " + name + rb"(?![\w$])[^{;]*\.(maxntid|reqntid) ([\d, ]+)", content)
    return (math.prod(map(int, bounds[2].split(b","))), bounds[1] == b"reqntid") if bounds else None


MAX_THREADS, REQUIRED_THREADS = 0x05, 0x10
"""EIATTR_MAX_THREADS and EIATTR_REQNTID of a cubin's ``.nv.info`` sections, as cuobjdump -elf names them."""


SIZED = 4
"""The format of attributes with two bytes of length, and that many bytes. The others have two bytes only."""


def _bounds_in_cubin(content: bytes, function: str) -> tuple[int, bool] | None:
    from elftools.elf.elffile import ELFFile

    section = ELFFile(io.BytesIO(content)).get_section_by_name(f".nv.info.{function}")
    for attribute, value in attributes_in(section.data() if section else b""):
        if attribute in (MAX_THREADS, REQUIRED_THREADS) and len(value) == 12:
            return math.prod(struct.unpack("<3I", value)), attribute == REQUIRED_THREADS
    return None


def attributes_in(section: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in a section ``.nv.info`` of a cubin: number and value. Values of two bytes are left out."""
    at = 0
    while at + 4 <= len(section):
        form, attribute, size = struct.unpack_from("<BBH", section, at)
        at += 4
        if form == SIZED:  # otherwise the value is in place of the size
            yield attribute, section[at : at + size]
            at += size


def _in_cubin(content: bytes, entry: str) -> str:
    """The symbol by which the linker fills the variable."""
    from elftools.elf.relocation import RelocationSection

    for file, symbols, variable in _variables(content, entry):
        place = file.get_section(variable["st_shndx"]).name
        relocations = file.get_section_by_name(f".rela{place}") or file.get_section_by_name(f".rel{place}")
        for relocation in relocations.iter_relocations() if isinstance(relocations, RelocationSection) else ():
            if relocation["r_offset"] == variable["st_value"]:
                name: str = symbols.get_symbol(relocation["r_info_sym"]).name
                return name
    raise ValueError(f"the cubin has no {entry} that points to a __global__ function")


def _variable_in_cubin(content: bytes) -> bytes:
    """The bytes of the variable with alignments."""
    for file, _, variable in _variables(content, ALIGNMENTS):
        start: int = variable["st_value"]
        content_of_variable: bytes = file.get_section(variable["st_shndx"]).data()[start : start + variable["st_size"]]
        return content_of_variable
    raise ValueError(f"the cubin has no {ALIGNMENTS}")


def _variables(content: bytes, name: str) -> Iterator[tuple[Any, Any, Any]]:
    """The file, its symbols, and each of these with that name."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    file = ELFFile(io.BytesIO(content))
    symbols = file.get_section_by_name(".symtab")
    if isinstance(symbols, SymbolTableSection):
        yield from ((file, symbols, symbol) for symbol in symbols.get_symbol_by_name(name) or ())
