"""Writes and reads fatbins, the containers in which CUDA keeps device code. A fatbin can be compressed.

NVIDIA does not document the format. This reader follows the output of ``fatbinary`` of CUDA 13.0: a header of 16 bytes
(magic number, version, size of the header, bytes that follow), and for each image a header with its kind, arch, size
and compression.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..core.arch import CudaArch, is_ptx
from ..core.driver import of_cubin, of_ptx
from ..core.errors import SettingsError, ToolchainError, Where
from ..core.request import ASIDE
from ..processes.environment import place_for_shell
from ..processes.tools import RunsTools, ToolCall, ToolResult
from .nvcc import INSTALL_CUDA, Nvcc, fatbinary_beside
from .nvcc_run import shell_script, stand_in

MAGIC = b"\x50\xed\x55\xba\x01\x00\x10\x00"
"""Begins a fatbin: the magic number, version 1, and the size of the header."""

ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
"""Kind, version, bytes of this header, of the data behind it with padding, of compressed data; place of the options;
minor and major version of the code; arch, place and length of a name; flags; reserved; bytes when decompressed."""

PTX, CUBIN = 1, 2
LZ4, ZSTD = 0x2000, 0x8000
SUFFIXES = {0: "", 0x10_0000: "a", 0x20_0000: "f"}
"""Flags -> what follows the arch's number."""

LARGEST = 1 << 28
"""Bytes of the largest image that is unpacked here: some bytes can stand for any number of them."""

ZSTD_DRIVER = 12040
"""Drivers from that of CUDA 12.4 on (550.54) decompress zstd, which the modes ``balance`` and ``size`` use. LZ4, that
of ``speed``, is older than any driver that the launcher works with. Source: ``--compress-mode`` in
https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc, and the first bytes of what fatbinary writes."""

FIRST_NVCC = (12, 8)
"""The CUDA release whose ``fatbinary`` has ``--compress-mode``."""


def needed_driver(mode: str) -> int:
    """The CUDA version, 1000 * major + 10 * minor, that a driver must support to decompress device code; 0: any."""
    return ZSTD_DRIVER if mode in ("balance", "size") else 0


def described(mode: str) -> dict[str, str]:
    """The manifest's facts about compressed device code: the mode, and the oldest CUDA version that a driver needs."""
    return {"mode": mode, "cuda": "12.4" if needed_driver(mode) else "12.0"}


@dataclass(frozen=True)
class PackJob:
    """One run of fatbinary.

    Arguments:
        arch: that of the image.
        image: name of the cubin or the PTX file.
        mode: ``speed``, ``balance`` or ``size``.
        folder: the folder of the image, in which fatbinary runs, so that its output has no path.
        where: the place for error messages.
    """

    arch: str
    image: str
    mode: str
    folder: Path = field(metadata=ASIDE)
    where: Where = field(metadata=ASIDE)

    @property
    def outputs(self) -> tuple[str, str]:
        """Names of the files that :func:`pack` makes."""
        return f"{self.arch}.fatbin", f"pack_{self.arch}.sh"

    def arguments(self, fatbinary: str, output: str) -> list[str]:
        """The command, with the given executable and output file."""
        kind = "ptx" if is_ptx(self.arch) else "elf"
        image = f"--image3=kind={kind},sm={self.arch.partition('_')[2]},file={self.image}"
        return [fatbinary, "--64", "--compress-all", f"--compress-mode={self.mode}", image, f"--create={output}"]


def find_fatbinary(nvcc: Nvcc) -> str:
    """Path of the ``fatbinary`` beside an nvcc.

    Raises:
        SettingsError: this release cannot choose how to compress.
        ToolchainError: there is none.
    """
    where = Where(stage="settings")
    if tuple(map(int, re.findall(r"\d+", nvcc.version)[:2])) < FIRST_NVCC:
        remedy = "use a newer nvcc, or write compress = none; on the command line: COMPRESS=none"
        raise SettingsError(f"compress needs nvcc 12.8 or newer, and this is {nvcc.version}", where, remedy)
    path = fatbinary_beside(nvcc.path)
    if path is None:
        raise ToolchainError(
            f"nvcc {nvcc.version} has no fatbinary beside it", where, INSTALL_CUDA, f"nvcc: {nvcc.path}"
        )
    return path


def pack(job: PackJob, nvcc: Nvcc, fatbinary: str, scratch: Path, tools: RunsTools, subject: str) -> ToolResult:
    """Pack an image, and leave the fatbin and the command (a script) in ``scratch``.

    Raises:
        KernelwrightError: as :meth:`ToolRunner.run`.
    """
    output, repeats = job.outputs
    command = job.arguments(fatbinary, place_for_shell(scratch / output, job.folder))
    remedy = f"the image is {job.folder / job.image}; remove it and try again, or write compress = none"
    result = tools.run(ToolCall(command, job.folder, scratch, job.where, remedy, kind="fatbinary", subject=subject))
    by_hand = job.arguments(stand_in("FATBINARY"), output)
    script = shell_script(f"fatbinary of nvcc {nvcc.version}", ".", by_hand, cuda=nvcc.version)
    (scratch / repeats).write_text(script)
    return result


@dataclass(frozen=True)
class PackedImage:
    """An image in a fatbin.

    Arguments:
        arch: ``sm_90a`` for a cubin, ``compute_80`` for PTX.
        content: the image; None: it is compressed in a way that this Python cannot undo.
        driver: the CUDA version that a driver must be for.
    """

    arch: str
    content: bytes | None
    driver: int


def fatbin_ranges(data: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each fatbin in some data, such as a library."""
    start = data.find(MAGIC)
    while start >= 0:
        end = start + 16 + int.from_bytes(data[start + 8 : start + 16], "little")
        if end <= len(data):
            yield start, end
        start = data.find(MAGIC, min(end, len(data)))


def images_in(fatbin: bytes) -> Iterator[PackedImage]:
    """The images in a fatbin.

    Raises:
        ValueError: it is damaged.
    """
    place = 16
    while place < len(fatbin):
        if place + ENTRY.size > len(fatbin):
            raise ValueError("a fatbin ends in the middle of a header")
        fields = ENTRY.unpack_from(fatbin, place)
        kind, header, padded, packed, number, flags, size = (fields[i] for i in (0, 2, 3, 4, 8, 11, 13))
        suffix = SUFFIXES.get(flags & (0x10_0000 | 0x20_0000))
        data = fatbin[place + header : place + header + (packed or padded)]
        known = kind in (PTX, CUBIN) and header >= ENTRY.size
        if suffix is None or not known or packed > padded or len(data) < (packed or padded):
            raise ValueError("a fatbin has a header that is not known")
        arch = CudaArch(number, suffix, kind == PTX)
        driver = of_ptx((fields[7], fields[6])) if kind == PTX else of_cubin(number, fields[6])
        packer = ZSTD_DRIVER if flags & ZSTD else 0
        yield PackedImage(str(arch), _unpacked(data, flags, size), max(driver, packer))
        place += header + padded


def _unpacked(data: bytes, flags: int, size: int) -> bytes | None:
    if flags & (LZ4 | ZSTD) and size > LARGEST:
        raise ValueError(f"a fatbin has an image of {size:,} bytes, and {LARGEST:,} are the most that are unpacked")
    if flags & LZ4:
        return unpacked_lz4(data, size)
    if flags & ZSTD:
        return _unpacked_zstd(data, size)
    return data


def _unpacked_zstd(data: bytes, size: int) -> bytes | None:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # from Python 3.14 on
    except ImportError:
        return None
    try:
        unpacker = zstd.ZstdDecompressor()
        content: bytes = unpacker.decompress(data, size + 1)
    except zstd.ZstdError as error:
        raise ValueError(f"a fatbin cannot be decompressed: {error}") from error
    if len(content) != size or not unpacker.eof:
        raise ValueError("a fatbin is of another size than its header says")
    return content


def unpacked_lz4(data: bytes, size: int) -> bytes:
    """Decompress a block of LZ4 of ``size`` bytes.

    Raises:
        ValueError: it is damaged, or of another size.
    """
    # Imported here, because only the verification of wheels needs it.
    from lz4 import block

    try:
        content: bytes = block.decompress(data, uncompressed_size=size) if data else b""
    except block.LZ4BlockError as error:
        raise ValueError(
            f"a fatbin cannot be decompressed, or is of another size than its header says: {error}"
        ) from error
    if len(content) != size:
        raise ValueError("a fatbin is of another size than its header says")
    return content
