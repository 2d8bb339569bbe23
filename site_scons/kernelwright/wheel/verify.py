"""Checks a wheel: that its files are what it says they are, and that it can be passed on.

Run by ``scons wheel`` before a wheel gets into ``dist/``, and by ``kernelwright verify``.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import KernelwrightError, Where
from ..package.loader import DIGEST_LINE
from ..records import Record
from .platform import platform_tag

CUDA = 190
"""ELF's number of NVIDIA's machine code (EM_CUDA)."""

PTX = re.compile(rb"\.version [0-9.]+\s+\.target (sm_[0-9]+[af]?)")
CPU_BUILDS = re.compile(rb"llvm \((x86[a-z0-9-]+(?:, x86[a-z0-9-]+)*)\)")
"""What a library says of itself in messages."""

OF_SOMEBODY = re.compile(rb"/(?:home|root|Users|tmp|build|workspace|github)/[A-Za-z0-9._+-]+/[A-Za-z0-9._+/-]*")
"""Paths that only exist on the machine that built a file."""

MANIFEST = "manifest.json"


def verify_wheel(wheel: Path, private: Sequence[str] = ()) -> list[str]:
    """What is wrong with a wheel, a line for each; nothing, if all is well.

    Arguments:
        wheel: the file.
        private: further folders that no file may name, such as that of the project.

    Raises:
        KernelwrightError: the file is no wheel, or cannot be read.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            damaged = archive.testzip()
            if damaged is not None:
                return [f"{damaged} is damaged"]
            files = {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        where = Where(stage="verify", location=str(wheel))
        raise KernelwrightError(f"it cannot be read: {error}", where, "name a wheel of Kernelwright's") from error
    problems = [*_record_problems(files), *_path_problems(files, private)]
    manifests = [name for name in files if name.endswith(f"/{MANIFEST}")]
    if not manifests:
        problems.append(f"it has no {MANIFEST}, so it is no wheel of a kernel package")
    for name in manifests:
        problems += _manifest_problems(name, files)
    return problems or _tag_problems(wheel, files)


def _record_problems(files: Mapping[str, bytes]) -> Iterator[str]:
    """RECORD has every file and its digest.

    https://packaging.python.org/en/latest/specifications/recording-installed-packages/
    """
    records = [name for name in files if name.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        yield f"it has {len(records)} files RECORD, expected one"
        return
    rows = list(csv.reader(io.StringIO(files[records[0]].decode("utf-8", "replace"))))
    listed = {row[0]: row[1] for row in rows if len(row) == 3}
    for name in sorted(files.keys() - listed.keys()):
        yield f"{name} is not in RECORD"
    for name in sorted(listed.keys() - files.keys()):
        yield f"{name} is in RECORD, and missing"
    for name in sorted(files.keys() & listed.keys() - {records[0]}):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        if listed[name] != f"sha256={digest}":
            yield f"{name} is not the file that RECORD lists"


def _path_problems(files: Mapping[str, bytes], private: Sequence[str]) -> Iterator[str]:
    known = [re.escape(folder.rstrip("/").encode()) for folder in private if len(folder) > 1]
    pattern = re.compile(b"|".join([OF_SOMEBODY.pattern, *known]))
    for name, content in sorted(files.items()):
        # What people write about their project is theirs.
        if ".dist-info/" not in name and (found := pattern.search(content)):
            yield f"{name} has a path of the machine that built it: {found[0].decode('utf-8', 'replace')}"


def _manifest_problems(name: str, files: Mapping[str, bytes]) -> Iterator[str]:
    text = files[name].decode("utf-8", "replace")
    content, _, last = text.rpartition("," + DIGEST_LINE)
    if not content or last.strip("\n }") != json.dumps(hashlib.sha256(content.encode()).hexdigest()):
        yield f"{name} is damaged: its digest does not fit"
        return
    try:
        yield from _package_problems(Record(json.loads(text), ""), name.removesuffix(MANIFEST), files)
    except ValueError as error:
        yield f"{name} is not a manifest: {error}"


def _package_problems(document: Record, folder: str, files: Mapping[str, bytes]) -> Iterator[str]:
    source = document.record("source")
    _ = source.text("commit"), source.flag("dirty")
    listed = document.record("files")
    for path in sorted(listed.raw):
        content = files.get(folder + path)
        if content is None:
            yield f"{folder}{path} is in the manifest, and missing"
        elif hashlib.sha256(content).hexdigest() != listed.record(path).text("sha256"):
            yield f"{folder}{path} is not the file that the manifest lists"
    extra = {name.removeprefix(folder) for name in files if name.startswith(folder)} - listed.raw.keys() - {MANIFEST}
    for path in sorted(extra):
        yield f"{folder}{path} is not in the manifest"
    kernels = document.record("kernels")
    for name in kernels.raw:
        kernel = kernels.record(name)
        library = files.get(folder + kernel.text("library"), b"")
        claimed = {arch for variant in kernel.records("variants") for arch in variant.texts("archs")}
        yield from _arch_problems(name, claimed, library)


def _arch_problems(kernel: str, claimed: set[str], library: bytes) -> Iterator[str]:
    """The device code in a library is for the archs that the manifest says, and for no others."""
    wanted = {re.sub("[af]$", "", arch.replace("compute", "ptx sm")) for arch in claimed if not arch.startswith("x86")}
    found = set(device_archs(library))
    for arch in sorted(wanted - found):
        yield f"kernel {kernel} has no device code for {arch}, which the manifest lists"
    for arch in sorted(found - wanted):
        yield f"kernel {kernel} has device code for {arch}, which the manifest does not list"
    built = CPU_BUILDS.search(library)
    levels = set(built[1].decode().split(", ")) if built else set()
    for level in sorted(levels ^ {arch for arch in claimed if arch.startswith("x86")}):
        yield f"kernel {kernel} {'has' if level in levels else 'lacks'} code for {level}, unlike the manifest"


def device_archs(library: bytes) -> Iterator[str]:
    """The archs of the device code in a library: ``sm_90`` for each cubin, ``ptx sm_80`` for each PTX.

    A cubin does not tell sm_90 from sm_90a: the number is all that the flags of its header have.
    """
    for match in re.finditer(rb"\x7fELF\x02\x01", library):
        header = library[match.start() : match.start() + 64]
        if int.from_bytes(header[18:20], "little") == CUDA:
            flags = int.from_bytes(header[48:52], "little")
            # The ABI of CUDA 13 has the number in the second byte, older ones in the first.
            yield f"sm_{flags >> 8 & 0xFF if header[8] >= 8 else flags & 0xFF}"
    for target in PTX.finditer(library):
        yield f"ptx {re.sub('[af]$', '', target[1].decode())}"


def _tag_problems(wheel: Path, files: Mapping[str, bytes]) -> list[str]:
    tag = wheel.name.removesuffix(".whl").rpartition("-")[2]
    described = next(content for name, content in files.items() if name.endswith(".dist-info/WHEEL")).decode()
    inside = re.findall(r"^Tag: \S+-(\S+)$", described, re.M)
    try:
        needed = platform_tag(wheel)
    except KernelwrightError as error:
        return [error.message]
    problems = [] if inside == [tag] else [f"WHEEL has the tags {inside}, the name has {tag}"]
    if _glibc(tag) is None or _glibc(needed) is None or _glibc(tag) < _glibc(needed):
        problems.append(f"its libraries need {needed}, its name says {tag}")
    return problems


def _glibc(tag: str) -> Any:
    match = re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", tag)
    return (int(match[1]), int(match[2])) if match else None
