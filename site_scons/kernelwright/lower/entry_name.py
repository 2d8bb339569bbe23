"""Tells what a device function is called in compiled code, which has the name that the compiler made of its types."""

from __future__ import annotations

import io
import re
from pathlib import Path

ENTRY = "kw_entry"
"""The variable of the device code that points to the function; the host code calls the function by this name, too."""

IN_PTX = re.compile(rf"\.u64 {ENTRY}(?:\[1\])? = (?:generic\()?([\w$]+)".encode())


def entry_name(image: Path) -> str:
    """The name of the function that :data:`ENTRY` points to.

    Arguments:
        image: a cubin or a PTX file.

    Raises:
        ValueError: there is no such variable, or no kernel that it points to.
    """
    content = image.read_bytes()
    if content.startswith(b"\x7fELF"):
        return _in_cubin(content)
    match = IN_PTX.search(content)
    # A __device__ function is a .func, which no host code can launch.
    if match is None or not re.search(rb"\.entry " + re.escape(match[1]) + rb"(?![\w$])", content):
        raise ValueError(f"{image.name} has no {ENTRY} that points to a __global__ function")
    return match[1].decode()


def _in_cubin(content: bytes) -> str:
    """The symbol by which the linker fills the variable."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.relocation import RelocationSection
    from elftools.elf.sections import SymbolTableSection

    file = ELFFile(io.BytesIO(content))
    symbols = file.get_section_by_name(".symtab")
    if isinstance(symbols, SymbolTableSection):
        for variable in symbols.get_symbol_by_name(ENTRY) or ():
            place = file.get_section(variable["st_shndx"]).name
            relocations = file.get_section_by_name(f".rela{place}") or file.get_section_by_name(f".rel{place}")
            for relocation in relocations.iter_relocations() if isinstance(relocations, RelocationSection) else ():
                if relocation["r_offset"] == variable["st_value"]:
                    name: str = symbols.get_symbol(relocation["r_info_sym"]).name
                    return name
    raise ValueError(f"the cubin has no {ENTRY} that points to a __global__ function")
