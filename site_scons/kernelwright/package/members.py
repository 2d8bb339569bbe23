"""Opens the archive that a wheel is, and refuses one that installers could read in more than one way.

The format is that of https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, of which a wheel needs little: one
file behind the other, each with a header, then a directory with the same headers again, then the place of the
directory. An archive may have much more: data that no entry covers, headers that contradict the directory, second names
in extra fields. Readers differ in what they make of it, so a checked file need not be the installed one.
"""

from __future__ import annotations

import os
import stat
import struct
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..core.errors import KernelwrightError, Where, printable

END = struct.Struct("<4s4H2LH")
"""The end: mark, numbers of two disks, entries on this disk and in all, size and place of the directory, comment."""

ENTRY = struct.Struct("<4s6H3L5H2L")
"""In the directory: mark, two versions, flags, method, time, date, CRC, packed size, size, lengths of name, extra field
and comment, disk, internal attributes, external attributes, place."""

HEADER = struct.Struct("<4s5H3L2H")
"""Before each file: mark, version, then as in the directory from the flags to the length of the extra field."""

UTF8 = 0x800
HOW_WELL = 0x6
"""Flags that an entry may have: that its name is in UTF-8, and how well it was packed. Others say that it is encrypted,
a patch, or has its sizes behind it."""

STORED, DEFLATED = 0, 8

LARGEST = 1 << 30
"""Bytes that the files of a wheel may have in all."""

PARSED = ("/manifest.json", *(f".dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")))
LARGEST_TEXT = 1 << 25
"""Ends of the names of files that are parsed, which takes many times their size, and bytes that one may have."""

EXPANSION = 100
"""Bytes that a byte of the archive may stand for; device code and libraries pack to a tenth at best."""

FREE = 1 << 20
"""Bytes that the files may have however small the archive is."""

LONGEST = 400
"""Bytes that a name may have."""

PERMISSIONS = 0o775
"""Permissions that a file of a wheel may have: not everybody writes to it, and it runs as who starts it."""


@dataclass(frozen=True)
class Member:
    """A file of a wheel, as the archive's directory has it.

    Arguments:
        name: as it is written there.
        method: ``STORED`` or ``DEFLATED``.
        crc: the CRC-32 of its content.
        packed, size: bytes in the archive, and of its content.
        mode: type and permissions, as Unix has them; 0: none are given.
        attributes: those of other systems.
        start: where its content begins in the archive.
    """

    name: str
    method: int
    crc: int
    packed: int
    size: int
    mode: int
    attributes: int
    start: int


def files_of(wheel: Path) -> dict[str, bytes] | list[str]:
    """The files of a wheel, or what is wrong with it before their content is looked at.

    Raises:
        KernelwrightError: it is no archive, or cannot be read.
    """
    try:
        with open_regular(wheel) as archive:
            members = list_members(archive)
            if problems := [*member_problems(members, os.fstat(archive.fileno()).st_size)]:
                return problems
            return _contents(archive, members)
    except (OSError, ValueError) as error:
        where = Where(stage="verify", location=str(wheel))
        message = f"it cannot be read: {str(error) or type(error).__name__}"
        raise KernelwrightError(message, where, "name a wheel of Kernelwright's, or get it again") from error


def _contents(archive: BinaryIO, members: Sequence[Member]) -> dict[str, bytes] | list[str]:
    """The content of each file, or which are damaged."""
    files, problems = {}, []
    for member in members:
        try:
            files[member.name] = read_member(archive, member)
        except ValueError as error:
            problems.append(f"{member.name} is damaged: {error}")
    return problems or files


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError, ValueError: it is no regular file, such as a pipe without a writer."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is no regular file")
    return os.fdopen(handle, "rb")


def list_members(archive: BinaryIO) -> list[Member]:
    """The files of an archive, in its order; no content is read.

    Raises:
        ValueError: it is no archive, or has something that readers do not agree on.
    """
    length = archive.seek(0, os.SEEK_END)
    if length > LARGEST:
        raise ValueError(f"it has {length:,} bytes, and a wheel has {LARGEST:,} at most")
    place, size, count = _directory(archive, length)
    archive.seek(place)
    directory = archive.read(size)
    members, offset, at = [], 0, 0
    for _ in range(count):
        member, at = _entry(archive, directory, at, offset, place)
        members.append(member)
        offset = member.start + member.packed
    if at != size:
        raise ValueError("its directory has more in it than its entries")
    if offset != place:
        raise ValueError(f"there is data between {_last(members)} and the directory that is no file's")
    return members


def read_member(archive: BinaryIO, member: Member) -> bytes:
    """The content of a file, of which no more is unpacked than the directory says.

    Raises:
        ValueError: it is damaged, or larger than the directory says.
    """
    archive.seek(member.start)
    content = packed = archive.read(member.packed)
    if member.method == DEFLATED:
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = unpacker.decompress(packed, member.size + 1)
        except zlib.error as error:
            raise ValueError(f"it cannot be unpacked: {error}") from error
        if len(content) > member.size or not unpacker.eof or unpacker.unused_data:
            raise ValueError("it has another size than the directory says")
    if len(content) != member.size:
        raise ValueError("it has another size than the directory says")
    if zlib.crc32(content) != member.crc:
        raise ValueError("its checksum does not fit")
    return content


def member_problems(members: Sequence[Member], length: int) -> Iterator[str]:
    """What installers would do with the files of a wheel that they should not; sizes are as the directory says.

    Arguments:
        length: bytes of the archive.
    """
    yield from _size_problems(members, length)
    keys = {_key(member.name) for member in members}
    seen: dict[str, str] = {}
    for member in members:
        shown, key = printable(member.name), _key(member.name)
        if reason := _name_problem(member.name) or _mode_problem(member):
            yield f"{shown} {reason}"
        if key in seen:
            yield f"{shown} is there twice, or differs from {seen[key]} in a way that not every system tells apart"
        if above := next((folder for folder in _folders(key) if folder in keys), ""):
            yield f"{shown} is in {printable(above)}, which is a file"
        seen[key] = shown


def _directory(archive: BinaryIO, length: int) -> tuple[int, int, int]:
    """Place and size of the directory, and the number of its entries."""
    archive.seek(max(0, length - END.size))
    last = archive.read(END.size)
    if len(last) < END.size or last[:4] != b"PK\x05\x06":
        raise ValueError("it is no zip archive, or has something behind its end")
    _, disk, first, here, count, size, place, comment = END.unpack(last)
    if disk or first or here != count or comment:
        raise ValueError("it is a part of an archive, or has a comment")
    if count == 0xFFFF or 0xFFFFFFFF in (size, place):
        raise ValueError("it is a zip64 archive, which no wheel of this size needs")
    if place + size + END.size != length:
        raise ValueError("its directory does not end where the archive does")
    return place, size, count


def _entry(archive: BinaryIO, directory: bytes, at: int, offset: int, end: int) -> tuple[Member, int]:
    """An entry of the directory, and where the next one begins.

    Arguments:
        at: where it begins in the directory.
        offset: where its file has to begin in the archive, because the one before ends there.
        end: where files end.
    """
    if at + ENTRY.size > len(directory):
        raise ValueError("its directory ends in the middle of an entry")
    mark, _, _, *same, name_size, extra, comment, disk, _, attributes, place = ENTRY.unpack_from(directory, at)
    if name_size > LONGEST:
        raise ValueError(f"it has a name of {name_size:,} bytes, and {LONGEST} are the most")
    at += ENTRY.size
    raw = directory[at : at + name_size]
    if mark != b"PK\x01\x02" or len(raw) < name_size:
        raise ValueError("its directory is damaged")
    flags, method, _, _, crc, packed, size = same
    name = _decoded(raw, flags)
    shown = printable(name)
    if extra or comment or disk:
        raise ValueError(f"{shown} has an extra field or a comment, in which another name or size can be")
    if flags & ~(UTF8 | HOW_WELL):
        raise ValueError(f"{shown} is encrypted, or has flags that no file of a wheel needs")
    if method not in (STORED, DEFLATED):
        raise ValueError(f"{shown} is packed by method {method}, which not every installer knows")
    if place != offset:
        raise ValueError(f"{shown} does not begin where the file before it ends: they overlap, or hide data")
    archive.seek(place)
    header, again = archive.read(HEADER.size), archive.read(name_size)
    expected = (b"PK\x03\x04", *same, name_size, 0)
    mark, _, *values = HEADER.unpack(header.ljust(HEADER.size, b"\0"))
    if (mark, *values) != expected or again != raw:
        raise ValueError(f"{shown} has another header than the directory says")
    start = place + HEADER.size + name_size
    if start + packed > end or (method == STORED and packed != size):
        raise ValueError(f"{shown} has another size than the directory says")
    mode, rest = attributes >> 16, attributes & 0xFFFF
    return Member(name, method, crc, packed, size, mode, attributes=rest, start=start), at + name_size


def _decoded(raw: bytes, flags: int) -> str:
    """A name; without the flag for UTF-8 it is in an encoding that depends on the system, unless it is ASCII."""
    try:
        return raw.decode("utf-8" if flags & UTF8 else "ascii")
    except UnicodeDecodeError as error:
        raise ValueError(f"it has a name that is not in UTF-8: {ascii(raw)[2:-1]}") from error


def _last(members: Sequence[Member]) -> str:
    return printable(members[-1].name) if members else "its begin"


def _size_problems(members: Sequence[Member], length: int) -> Iterator[str]:
    total, most = sum(member.size for member in members), min(LARGEST, max(FREE, EXPANSION * length))
    if total > most:
        largest = max(members, key=lambda member: member.size)
        yield (
            f"its files have {total:,} bytes when unpacked, and {most:,} are the most for an archive of {length:,};"
            f" the largest is {printable(largest.name)}"
        )
    for member in members:
        if member.name.endswith(PARSED) and member.size > LARGEST_TEXT:
            yield f"{printable(member.name)} has {member.size:,} bytes, and {LARGEST_TEXT:,} are the most for it"


def _key(name: str) -> str:
    """What is equal for names that some file system takes for one: others than Linux's ignore case and composition."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _folders(name: str) -> Iterator[str]:
    """The folders that a file is in."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _name_problem(name: str) -> str:
    """Why a name could end up elsewhere than where it says; empty: it could not."""
    parts = name.split("/")
    if name.endswith("/"):
        return "is an entry for a folder, and a wheel has files only"
    if name.startswith("/") or ":" in name:
        return "has an absolute path, or one with a drive"
    if "\\" in name:
        return "has a backslash, which is a separator for some installers"
    if not name.isprintable() or unicodedata.normalize("NFC", name) != name:
        return "has characters in its name that are invisible or not normalised"
    if any(part.rstrip(". ") != part or not part for part in parts):
        return "has a part in its path that is empty, . or .., or ends with a dot or a blank"
    return ""


def _mode_problem(member: Member) -> str:
    """Why a file is none that a wheel should have; empty: it is one."""
    kind, permissions = stat.S_IFMT(member.mode), stat.S_IMODE(member.mode)
    if kind not in (0, stat.S_IFREG) or member.attributes:
        return "is no regular file, but a link or a device, or has attributes of another system"
    if permissions & ~PERMISSIONS:
        return f"has the permissions {permissions:04o}: everybody may write to it, or it runs as its owner"
    return ""
