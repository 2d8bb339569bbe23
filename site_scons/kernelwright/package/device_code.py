"""The code in the files of a wheel: which machines it is for, by its headers, against what a manifest says."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator

from ..core.arch import CPU_LEVELS, FAMILIES, is_ptx, real_arch, without_suffix
from ..core.driver import CUDA_13_ABI, of_cubin, of_ptx
from ..toolchain.fatbin import MAGIC, fatbin_ranges, images_in

CUDA = 190
"""ELF's number of NVIDIA's machine code (EM_CUDA)."""

MACHINES = {3: "x86 of 32 bits", 40: "Arm of 32 bits", CUDA: "a GPU", 243: "RISC-V"}
MACHINES |= {family.elf: f"CPUs of the family {name}" for name, family in FAMILIES.items()}
"""ELF's numbers of machines, for messages."""

HEADER = struct.Struct("<4s4B8x2HI3QI6H")
"""The header of an ELF file of 64 bits: mark, class, byte order, version, ABI, type, machine, version, entry point,
places of the tables of segments and of sections, flags, size of the header; size and number of segments, and of
sections; and the number of the section with their names (elf.h, Elf64_Ehdr)."""

SEGMENT = struct.Struct("<2I6Q")
"""A segment: type, flags, place in the file, two addresses, sizes in the file and in memory, alignment (Elf64_Phdr)."""

LOAD, DYNAMIC = 1, 2
"""Types of segments that a library has (PT_LOAD, PT_DYNAMIC)."""

ELF = b"\x7fELF"
SHARED = 3
ABIS = (0, 3)
"""What a library of Linux has there: its type (ET_DYN), and an ABI (ELFOSABI_SYSV, ELFOSABI_GNU)."""

BEGINS = {".cubin": ELF, ".fatbin": MAGIC}
"""What files of device code begin with."""

PTX = re.compile(rb"\.version ([0-9]+)\.([0-9]+)\s+\.target (sm_[0-9]+[af]?)")
CPU_ARCH = "|".join(sorted(CPU_LEVELS, reverse=True))  # x86-64-v2 before x86-64
CPU_BUILDS = re.compile(f"llvm \\(((?:{CPU_ARCH})(?:, (?:{CPU_ARCH}))*)\\)".encode())
"""What a library says of itself in messages."""


def is_for_cpu(content: bytes) -> bool:
    """Whether a file begins as an object or a library for a CPU does, and not as a cubin, which is an ELF file, too."""
    return content.startswith(ELF) and int.from_bytes(content[18:20], "little") != CUDA


def library_problem(content: bytes, family: str) -> str:
    """Why a file is no library that Linux can load; empty: it is one, as far as its header tells.

    Arguments:
        family: the family of CPUs that the package is for.
    """
    only = f"and the package is for CPUs of the family {family}"
    if not content.startswith(ELF) or len(content) < HEADER.size or not {*content[4:6]} <= {1, 2}:
        return "is no library: it does not begin as an ELF file does"
    _, bits, order, version, abi, kind, machine, again, _, segments, sections, _, size, *counts = HEADER.unpack_from(
        content
    )
    segment, segment_count, section, section_count, _ = counts
    if (bits, order) != (2, 1):
        return f"is for a machine of {32 * bits} bits{', the highest byte first' if order == 2 else ''}, {only}"
    if machine != FAMILIES[family].elf:
        return f"is for {MACHINES.get(machine, f'the machine number {machine}')}, {only}"
    if kind != SHARED or abi not in ABIS or (version, again, size) != (1, 1, HEADER.size):
        return "is no shared library of Linux"
    tables = ((segments, segment, segment_count, SEGMENT.size), (sections, section, section_count, 64))
    if any(count and (each != of or place + each * count > len(content)) for place, each, count, of in tables):
        return "is cut off, or has a damaged header"
    entries = [SEGMENT.unpack_from(content, segments + number * SEGMENT.size) for number in range(segment_count)]
    if {DYNAMIC, LOAD} - {kind for kind, *_ in entries}:
        return "has nothing that is loaded, or does not say what it needs"
    if not all(_is_loadable(len(content), *sizes) for kind, _, *sizes in entries if kind in (DYNAMIC, LOAD)):
        return "is cut off, or has damaged segments"
    return ""


def _is_loadable(length: int, offset: int, address: int, _: int, size: int, in_memory: int, alignment: int) -> bool:
    """Whether the dynamic linker takes a segment; the last values are as in a :data:`SEGMENT`."""
    aligned = alignment.bit_count() <= 1 and (address - offset) % max(alignment, 1) == 0
    return aligned and size <= in_memory < 1 << 40 and offset + size <= length


def image_problem(name: str, arch: str, content: bytes) -> str:
    """Why a file is not device code for an arch; empty: it is."""
    suffix = f".{name.rpartition('.')[2]}"
    if not content.startswith(BEGINS.get(suffix, b"")) or (suffix == ".ptx" and ELF in content):
        return f"does not begin as a file of device code called {suffix} does"
    try:
        archs = set(device_archs(content))
    except ValueError as error:
        return f"is damaged: {error}"
    if archs != {claim(arch, suffix == ".fatbin")}:
        return f"has code for {', '.join(sorted(archs)) or 'no arch'}"
    return ""


def own_code_problems(kernel: str, claimed: set[str], library: bytes) -> Iterator[str]:
    """As :func:`arch_problems`, of a library whose sources have host code of their own, and need no device code.

    nvcc puts it into fatbins, which such a library holds in any package.
    """
    with contextlib.suppress(ValueError):  # damaged code is found below
        if not list(device_archs(library)):
            return
    yield from arch_problems(kernel, claimed, library, exact=True)


def claim(arch: str, exact: bool) -> str:
    """An arch as :func:`device_archs` has it; only fatbins tell ``sm_90a`` from ``sm_90``."""
    named = real_arch(arch if exact else without_suffix(arch))
    return f"ptx {named}" if is_ptx(arch) else named


def arch_problems(kernel: str, claimed: set[str], library: bytes, exact: bool = False) -> Iterator[str]:
    """The code in a library is for the archs that the manifest says, and for no others.

    Arguments:
        exact: the device code is in fatbins.
    """
    expected = {claim(arch, exact) for arch in claimed if arch not in CPU_LEVELS}
    try:
        present = set(device_archs(library))
    except ValueError as error:
        yield f"kernel {kernel} has damaged device code: {error}"
        return
    for arch in sorted(expected - present):
        yield f"kernel {kernel} has no device code for {arch}, which the manifest lists"
    for arch in sorted(present - expected):
        yield f"kernel {kernel} has device code for {arch}, which the manifest does not list"
    built = CPU_BUILDS.search(library)
    levels = set(built[1].decode().split(", ")) if built else set()
    for level in sorted(levels ^ {arch for arch in claimed if arch in CPU_LEVELS}):
        yield f"kernel {kernel} {'has' if level in levels else 'lacks'} code for {level}, unlike the manifest"


def device_archs(data: bytes) -> Iterator[str]:
    """The archs of the device code in a library or another file: ``sm_90`` for a cubin, ``ptx sm_80`` for PTX.

    Raises:
        ValueError: as :func:`device_code`.
    """
    yield from (arch for arch, _ in device_code(data))


def drivers_of(data: bytes) -> dict[str, int]:
    """What the device code in a library or another file needs of a driver: arch, as there -> CUDA version.

    Raises:
        ValueError: as :func:`device_code`.
    """
    needed: dict[str, int] = {}
    for arch, driver in device_code(data):
        needed[arch] = max(driver, needed.get(arch, 0))
    return needed


def device_code(data: bytes) -> Iterator[tuple[str, int]]:
    """The archs of the device code in a library or another file, each with the CUDA version that a driver must be for.

    A cubin does not tell sm_90 from sm_90a: the number is all that the flags of its header have. A fatbin does. What is
    in a fatbin must be for the same arch as the fatbin says, as far as this Python can decompress it.

    Raises:
        ValueError: a fatbin is damaged, or has other code in it than its header says; or PTX is of an unknown version.
    """
    begin = 0
    for start, end in fatbin_ranges(data):
        yield from _bare_code(data[begin:start])
        for image in images_in(data[start:end]):
            inside = {arch for arch, _ in _bare_code(image.content)} if image.content is not None else None
            if inside is not None and inside != {claim(image.arch, False)}:
                raise ValueError(f"a fatbin for {image.arch} has code for {', '.join(inside) or 'no arch'} in it")
            yield claim(image.arch, True), image.driver
        begin = end
    yield from _bare_code(data[begin:])


def _bare_code(data: bytes) -> Iterator[tuple[str, int]]:
    """The archs of cubins and PTX that are in no fatbin, and what they need."""
    for match in re.finditer(rb"\x7fELF\x02\x01", data):
        header = data[match.start() : match.start() + 64]
        if int.from_bytes(header[18:20], "little") == CUDA:
            flags = int.from_bytes(header[48:52], "little")
            # The ABI of CUDA 13 has the number in the second byte, older ones in the first.
            number = flags >> 8 & 0xFF if header[8] >= CUDA_13_ABI else flags & 0xFF
            yield f"sm_{number}", of_cubin(number, header[8])
    for major, minor, target in PTX.findall(data):
        yield f"ptx {without_suffix(target.decode())}", of_ptx((int(major), int(minor)))
