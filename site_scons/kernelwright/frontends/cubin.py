"""Reads ELF files: the device functions of a cubin with their registers and memory, and the symbols an object needs."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from ..core.arch import arch_order, image_file, is_ptx, real_arch
from ..core.entry_name import attributes_in
from ..core.files import pretty_json

REGISTERS, FRAME_SIZE = 0x2F, 0x11
"""Attributes of ``.nv.info`` that have a symbol and a number (EIATTR_REGCOUNT, EIATTR_FRAME_SIZE)."""

RESERVED, RESERVED_SINCE = 1024, 90
"""Bytes of shared memory that CUDA has for itself in each block, and the first capability where it does. ptxas does not
count them, and the section has them."""


class Code(Protocol):
    """The device code of an arch."""

    @property
    def cubin(self) -> bytes:
        """The machine code."""

    @property
    def ptx(self) -> str:
        """The PTX that it is made of."""


def functions_of(cubin: bytes) -> list[str]:
    """The names of the device functions of a cubin, sorted."""
    names = (section.name for section in ELFFile(io.BytesIO(cubin)).iter_sections())
    return sorted(name.removeprefix(".text.") for name in names if name.startswith(".text."))


def usage_of(cubin: bytes, capability: int) -> dict[str, dict[str, int]]:
    """Registers and bytes of stack, static shared and constant memory of each device function; spills are left 0.

    Arguments:
        capability: of the arch, such as 90.
    """
    file = ELFFile(io.BytesIO(cubin))
    sizes = {section.name: int(section["sh_size"]) for section in file.iter_sections()}
    numbers = dict(_numbers(file))
    reserved = RESERVED if capability >= RESERVED_SINCE else 0
    return {
        name: {
            "constant_bytes": sizes.get(f".nv.constant0.{name}", 0),
            "registers": numbers.get((REGISTERS, name), 0),
            "shared_bytes": max(0, sizes.get(f".nv.shared.{name}", 0) - reserved),
            "spill_load_bytes": 0,
            "spill_store_bytes": 0,
            "stack_bytes": numbers.get((FRAME_SIZE, name), 0),
        }
        for name in functions_of(cubin)
    }


def with_spills(usage: Mapping[str, Mapping[str, int]], report: str) -> dict[str, dict[str, int]]:
    """The usage with the spills from the report of ``ptxas -v``. A function that the report does not name has none."""
    completed = {name: dict(used) for name, used in usage.items()}
    for name, used in completed.items():
        part = report.partition(f"Function properties for {name}")[2]
        match = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        if match:
            used |= {"spill_store_bytes": int(match[1]), "spill_load_bytes": int(match[2])}
    return completed


def reported_usage(result: Any) -> dict[str, dict[str, int]]:
    """What the functions of a compiled cubin use, with the spills that its ``report`` has; without code nothing."""
    return {} if not result.cubin else with_spills(usage_of(result.cubin, arch_order(result.arch)[0]), result.report)


def device_files(
    archs: Iterable[str], results: Mapping[str, Code], usage: Callable[[Any], Mapping[str, Any]]
) -> dict[str, bytes]:
    """The files with the device code of archs, and with what the functions of each cubin use.

    Arguments:
        results: real arch -> its code.
        usage: tells what the functions of a cubin use.
    """
    files = {}
    for arch in archs:
        result = results[real_arch(arch)]
        files[image_file(arch)] = result.ptx.encode() if is_ptx(arch) else result.cubin
        if not is_ptx(arch):
            files[f"{arch}.json"] = pretty_json({"schema": 1, "arch": arch, "kernels": usage(result)}).encode()
    return files


def undefined_symbols(content: bytes) -> set[str]:
    """The symbols that an object file uses and does not define."""
    table = ELFFile(io.BytesIO(content)).get_section_by_name(".symtab")
    if not isinstance(table, SymbolTableSection):
        return set()
    return {s.name for s in table.iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name}


def _numbers(file: ELFFile) -> Iterator[tuple[tuple[int, str], int]]:
    """The numbers that ``.nv.info`` has of device functions: attribute and name -> number."""
    section, table = file.get_section_by_name(".nv.info"), file.get_section_by_name(".symtab")
    if section is None or not isinstance(table, SymbolTableSection):
        return
    for attribute, value in attributes_in(section.data()):
        if len(value) == 8:
            symbol, number = struct.unpack("<II", value)
            yield (attribute, table.get_symbol(symbol).name), number
