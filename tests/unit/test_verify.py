"""Wheels that are damaged or have the name of another: each is one clear error. They are made without any tool."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import SITE_SCONS
from kernelwright.cli import verify
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.files import pretty_json
from kernelwright.package.manifest import sealed_manifest
from kernelwright.wheel import verify as verify_module
from kernelwright.wheel.archive import write_wheel
from kernelwright.wheel.content import BuiltFiles, Image, provider_files
from kernelwright.wheel.project import provider_project, read_project
from kernelwright.wheel.source import Source
from kernelwright.wheel.verify import gaps_of, verify_together, verify_wheel

NAME = "demo_sm_80-1.0-py3-none-any.whl"
TIME = 1_700_000_000


def cubin(number: int, more: bytes = b"") -> bytes:
    """The header of a cubin for an arch, and something behind it."""
    header = bytearray(64)
    header[:6], header[18:20], header[48] = b"\x7fELF\x02\x01", (190).to_bytes(2, "little"), number
    return bytes(header) + more


def provider_wheel(folder: Path, arch: str = "sm_80", version: str = "1.0") -> Path:
    """A wheel with the device code of a kernel."""
    folder.mkdir(parents=True, exist_ok=True)
    code = cubin(int(arch.removeprefix("sm_")), f"code for {arch}".encode() * 40)
    file = f"scale/default/cuda/{arch}.cubin"
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(code)
    image = Image(arch, file, hashlib.sha256(code).hexdigest())
    built = BuiltFiles(folder, "demo", "", {}, (image,), {"folder": "."})
    document = {"project": {"name": "demo", "version": version}}
    project = provider_project(folder, document, arch, f"demo_{arch}")
    path = folder / f"{project.name}-{version}-py3-none-any.whl"
    write_wheel(path, project, provider_files(built, project, Source("", False, TIME), arch), "any", TIME)
    return path


def test_a_whole_one_is_well(tmp_path: Path) -> None:
    wheel = provider_wheel(tmp_path)
    assert wheel.name == NAME and verify_wheel(wheel) == []


@pytest.mark.parametrize(
    "changes",
    [
        {8: 0x01},  # the flag for encryption
        {9: 0x08, 46: 0xCC},  # names in UTF-8, and one that is not
        {10: 12},  # compressed as bzip2, which it is not
        {10: 99},  # and in a way that nobody knows
    ],
)
def test_a_damaged_archive_is_an_error_that_names_it(tmp_path: Path, changes: dict[int, int]) -> None:
    wheel = provider_wheel(tmp_path)
    data = bytearray(wheel.read_bytes())
    start = data.index(b"PK\x01\x02")
    for place, value in changes.items():
        data[start + place] = value
    wheel.write_bytes(data)
    with pytest.raises(KernelwrightError, match="it cannot be read") as caught:
        verify_wheel(wheel)
    assert str(wheel) in str(caught.value)


def test_random_damage_is_never_another_exception(tmp_path: Path) -> None:
    whole = provider_wheel(tmp_path / "whole").read_bytes()
    chance = random.Random(1)
    wheel = tmp_path / NAME
    refused = 0
    for number in range(400):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 2, 8])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        wheel.write_bytes(data[: chance.randrange(len(data))] if number % 10 == 0 else data)
        try:
            verify_wheel(wheel)
        except KernelwrightError as error:
            refused += 1
            assert str(wheel) in str(error)
    assert refused > 100


def test_a_damaged_list_of_files_is_named(tmp_path: Path) -> None:
    wheel = provider_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content.replace(b",", b"\ry", 1) if name.endswith("RECORD") else content)
    assert any("RECORD is damaged" in problem for problem in verify_wheel(wheel))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x.zip", "its name is not that of a wheel"),
        ("demo_sm_80-1.0.whl", "its name is not that of a wheel"),
        ("other-1.0-py3-none-any.whl", "METADATA has the name demo-sm-80, and the name of the wheel has other"),
        ("demo_sm_90-1.0-py3-none-any.whl", "it has demo_sm_80-1.0.dist-info, and by its name it should have demo_sm"),
        ("demo_sm_80-1.1-py3-none-any.whl", "METADATA has the version 1.0, and the name of the wheel has 1.1"),
        ("demo_sm_80-1.0-cp312-cp312-any.whl", "its name is not for py3-none"),
        ("demo_sm_80-1.0-py3-none-manylinux_2_17_x86_64.whl", "what its libraries need cannot be found out"),
    ],
)
def test_a_wheel_with_the_name_of_another_is_named(tmp_path: Path, name: str, problem: str) -> None:
    wheel = shutil.copyfile(provider_wheel(tmp_path / "whole"), tmp_path / name)
    assert any(found.startswith(problem) for found in verify_wheel(wheel)), verify_wheel(wheel)


def test_a_build_number_is_no_other_name(tmp_path: Path) -> None:
    wheel = shutil.copyfile(provider_wheel(tmp_path / "whole"), tmp_path / "demo_sm_80-1.0-2-py3-none-any.whl")
    assert verify_wheel(wheel) == []


def test_what_other_tools_have_written_again_is_well(tmp_path: Path) -> None:
    wheel, again = provider_wheel(tmp_path), tmp_path / "again"
    again.mkdir()
    for arguments in (
        ["tags", "--build", "7", str(wheel)],
        ["unpack", "-d", str(tmp_path / "unpacked"), str(wheel)],
        ["pack", "-d", str(again), str(tmp_path / "unpacked/demo_sm_80-1.0")],
    ):
        subprocess.run([sys.executable, "-m", "wheel", *arguments], check=True, capture_output=True)
    for path in (tmp_path / "demo_sm_80-1.0-7-py3-none-any.whl", again / NAME):
        assert verify_wheel(path) == []


def test_one_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = provider_wheel(tmp_path)
    zipped = shutil.copyfile(wheel, tmp_path / "x.zip")
    assert verify([tmp_path / "missing.whl", wheel, zipped, tmp_path / "gone.whl"]) == 1
    output = capsys.readouterr()
    assert output.out == f"{NAME}: all well\n"
    for name in ("missing.whl", "gone.whl", "x.zip: its name"):
        assert output.err.count(name) >= 1


# ---- hostile


class Parts(NamedTuple):
    """What a wheel is made of; RECORD is made of it."""

    files: list[tuple[zipfile.ZipInfo, bytes]]
    rows: list[str]


def parts_of(wheel: Path) -> Parts:
    with zipfile.ZipFile(wheel) as archive:
        names = [entry for entry in archive.infolist() if not entry.filename.endswith("/RECORD")]
        return Parts([(entry, archive.read(entry)) for entry in names], [])


def entry(name: str, mode: int = 0o100644) -> zipfile.ZipInfo:
    found = zipfile.ZipInfo(name)
    found.external_attr = mode << 16
    found.create_system = 3
    return found


def row(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    quoted = f'"{name}"' if set(name) & set(',\n"') else name
    return f"{quoted},sha256={digest},{len(content)}"


def write_parts(wheel: Path, parts: Parts) -> Path:
    """A wheel of some files whose RECORD is right, but for further rows."""
    record = f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info/RECORD"
    rows = [*(row(item.filename, content) for item, content in parts.files), *parts.rows, f"{record},,"]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for item, content in parts.files:
            archive.writestr(item, content, zipfile.ZIP_DEFLATED)
        archive.writestr(entry(record), "\n".join(rows) + "\n")
    return wheel


def added(name: str, mode: int = 0o100644, content: bytes = b"import os\n") -> Callable[[Parts], Parts]:
    return lambda parts: Parts([*parts.files, (entry(name, mode), content)], [])


def with_mode(mode: int) -> Callable[[Parts], Parts]:
    """The device code is of another type, or has other permissions."""

    def change(parts: Parts) -> Parts:
        for item, _ in parts.files:
            if item.filename.endswith(".cubin"):
                item.external_attr = mode << 16
        return parts

    return change


def with_points(text: str) -> Callable[[Parts], Parts]:
    def change(parts: Parts) -> Parts:
        return Parts([(i, c + text.encode() if i.filename.endswith("points.txt") else c) for i, c in parts.files], [])

    return change


def with_row(text: str) -> Callable[[Parts], Parts]:
    return lambda parts: Parts(parts.files, [text])


INFO = "demo_sm_80-1.0.dist-info"
CODE = "demo_sm_80/scale/default/cuda/sm_80.cubin"

HOSTILE: dict[str, tuple[Callable[[Parts], Parts], str]] = {
    "pth": (added("evil.pth"), "evil.pth is outside of demo_sm_80/"),
    "module": (added("evil.py"), "evil.py is outside of demo_sm_80/"),
    "torch": (added("torch/__init__.py"), "torch/__init__.py is outside of demo_sm_80/"),
    "longer name": (added("demo_sm_80x/__init__.py"), "demo_sm_80x/__init__.py is outside of demo_sm_80/"),
    "scripts": (added("demo_sm_80-1.0.data/scripts/pip", 0o100755), "demo_sm_80-1.0.data/scripts/pip is outside"),
    "parent": (added("demo_sm_80/../torch/x.py"), "demo_sm_80/../torch/x.py has a part in its path"),
    "above": (added("../x.py"), "../x.py has a part in its path"),
    "same": (added("demo_sm_80/./x.py"), "demo_sm_80/./x.py has a part in its path"),
    "empty": (added("demo_sm_80//x.py"), "demo_sm_80//x.py has a part in its path"),
    "blank": (added("demo_sm_80 /x.py"), "demo_sm_80 /x.py has a part in its path"),
    "absolute": (added("/tmp/x.py"), "/tmp/x.py has an absolute path"),
    "drive": (added("C:/x.py"), "C:/x.py has an absolute path"),
    "backslash": (added("demo_sm_80\\..\\x.py"), "demo_sm_80\\..\\x.py has a backslash"),
    "control": (added("demo_sm_80/x\ny.py"), "demo_sm_80/x\\ny.py has characters in its name"),
    "composed": (added("demo_sm_80/a\u0308.py"), "demo_sm_80/a\u0308.py has characters in its name"),
    "twice": (added("demo_sm_80/__init__.py"), "demo_sm_80/__init__.py is there twice"),
    "case": (added("demo_sm_80/__INIT__.py"), "demo_sm_80/__INIT__.py is there twice, or differs from"),
    "in a file": (added("demo_sm_80/__init__.py/x"), "demo_sm_80/__init__.py/x is in demo_sm_80/__init__.py, which"),
    "folder": (added("demo_sm_80/more/", 0o40755, b""), "demo_sm_80/more/ is an entry for a folder"),
    "link": (with_mode(0o120777), f"{CODE} is no regular file"),
    "pipe": (with_mode(0o10644), f"{CODE} is no regular file"),
    "setuid": (with_mode(0o104755), f"{CODE} has the permissions 4755"),
    "setgid": (with_mode(0o102755), f"{CODE} has the permissions 2755"),
    "writable": (with_mode(0o100666), f"{CODE} has the permissions 0666"),
    "unlisted": (added("demo_sm_80/more.py"), "demo_sm_80/more.py is not in the manifest"),
    "other info": (added("evil-1.0.dist-info/METADATA"), "and evil-1.0.dist-info, and by its name it should have"),
    "address": (added(f"{INFO}/direct_url.json"), f"{INFO}/direct_url.json is no file that the wheel of a kernel"),
    "nested info": (added(f"{INFO}/x/RECORD"), f"{INFO}/x/RECORD is no file that the wheel of a kernel"),
    "command": (
        with_points("[console_scripts]\npip = demo_sm_80:x\n"),
        "the entry point pip = demo_sm_80:x of the group",
    ),
    "other's command": (
        with_points("[console_scripts]\npip = os:abort\n"),
        "pip = os:abort of the group console_scripts",
    ),
    "plugin": (with_points("[pytest11]\nx = demo_sm_80\n"), "the entry point x = demo_sm_80 of the group pytest11"),
    "other's code": (
        with_points("torch = torch\n"),
        "torch = torch of the group kernelwright.device_code, which is not",
    ),
    "continued": (with_points("  [x]\n"), "entry_points.txt has the line '  [x]'"),
    "unlisted in RECORD": (with_row("demo_sm_80/gone.py,sha256=x,1"), "demo_sm_80/gone.py is in RECORD, and missing"),
    "row twice": (with_row(f"{CODE},sha256=x,1"), f"{INFO}/RECORD has a file twice"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_wheel_is_refused_by_the_name_of_what_is_wrong(tmp_path: Path, case: str) -> None:
    change, message = HOSTILE[case]
    good = write_parts(tmp_path / NAME, parts_of(provider_wheel(tmp_path / "good")))
    assert verify_wheel(good) == [], "only the change is wrong"
    bad = write_parts(tmp_path / NAME, change(parts_of(good)))
    found = verify_wheel(bad)
    assert any(message in problem for problem in found), found


@pytest.mark.parametrize("field", [1, 2])
def test_a_digest_or_a_size_in_record_that_is_wrong_is_named(tmp_path: Path, field: int) -> None:
    wheel = provider_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        files = [(item, archive.read(item)) for item in archive.infolist()]
    with zipfile.ZipFile(wheel, "w") as archive:
        for item, content in files:
            if item.filename.endswith("/RECORD"):
                rows = [line.split(",") for line in content.decode().splitlines()]
                changed = next(found for found in rows if found[0] == CODE)
                changed[field] = {1: changed[1][:-1], 2: f"{changed[2]}0"}[field]
                content = "".join(",".join(found) + "\n" for found in rows).encode()
            archive.writestr(item, content)
    assert verify_wheel(wheel) == [f"{CODE} is not the file that RECORD lists"]


def without(ending: str) -> Callable[[Parts], Parts]:
    """A file is missing, and RECORD lists it as it was."""

    def change(parts: Parts) -> Parts:
        kept = [(item, content) for item, content in parts.files if not item.filename.endswith(ending)]
        (gone,) = [row(item.filename, content) for item, content in parts.files if item.filename.endswith(ending)]
        return Parts(kept, [gone])

    return change


def replaced(ending: str, before: bytes, after: bytes) -> Callable[[Parts], Parts]:
    """A file has another content, or more of it if nothing is replaced, and RECORD lists that."""

    def change(parts: Parts) -> Parts:
        changed = {i.filename: c.replace(before, after) if before else c + after for i, c in parts.files}
        files = [(i, changed[i.filename] if i.filename.endswith(ending) else c) for i, c in parts.files]
        assert files != parts.files
        return Parts(files, [])

    return change


@pytest.mark.parametrize("name", [f"{INFO}/entry_points.txt", f"{INFO}/METADATA", f"{INFO}/WHEEL", CODE])
def test_a_file_that_record_lists_and_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    whole = provider_wheel(tmp_path)
    problems = verify_wheel(write_parts(whole, without(name)(parts_of(whole))))
    assert f"{name} is in RECORD, and missing" in problems


ALTERED: dict[str, tuple[Callable[[Parts], Parts], str]] = {
    "code": (replaced(CODE, b"code for sm_80", b"code for sm_81"), f"{CODE} is not the file that the manifest lists"),
    "module": (replaced("/__init__.py", b"", b"x"), "demo_sm_80/__init__.py is not the file that the manifest lists"),
    "manifest": (replaced("/manifest.json", b"sm_80", b"sm_90"), "demo_sm_80/manifest.json is damaged: its digest"),
    "pin": (replaced("/METADATA", b"demo==1.0", b"demo>=1.0"), "it does not depend on version 1.0 of demo"),
    "point": (replaced("/entry_points.txt", b"demo_sm_80 =", b"demo_sm_81 ="), "it has no entry point demo_sm_80 in"),
    "tag": (replaced("/WHEEL", b"none-any", b"none-linux_x86_64"), "WHEEL has the tags ['linux_x86_64'], the name has"),
    "pure": (replaced("/WHEEL", b"Purelib: true", b"Purelib: false"), "WHEEL says that it is for a platform, and its"),
    "path": (replaced("/__init__.py", b"", b"/home/me/demo"), "has a path of the machine that built it: /home/me/demo"),
}


@pytest.mark.parametrize("case", ALTERED)
def test_an_altered_file_is_named_though_record_is_right(tmp_path: Path, case: str) -> None:
    change, message = ALTERED[case]
    whole = provider_wheel(tmp_path)
    problems = verify_wheel(write_parts(whole, change(parts_of(whole))))
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b'{"package": NaN}', b"\xff", b"9" * 5000])
def test_a_manifest_of_another_form_is_no_error_of_the_command(tmp_path: Path, text: bytes) -> None:
    manifest = "demo_sm_80/manifest.json"
    whole = provider_wheel(tmp_path)
    other = [(i, text if i.filename == manifest else content) for i, content in parts_of(whole).files]
    wheel = write_parts(whole, Parts(other, []))
    assert any(f"{manifest} is damaged" in problem for problem in verify_wheel(wheel))
    assert gaps_of(wheel) == [] and verify_together([wheel, provider_wheel(tmp_path / "good")]) == []


def test_a_folder_that_is_said_to_be_private_is_named_in_no_file(tmp_path: Path) -> None:
    whole = provider_wheel(tmp_path)
    described = replaced("/METADATA", b"Version: 1.0", b"Version: 1.0\nKeywords: /place/of/mine")
    wheel = write_parts(whole, described(parts_of(whole)))
    assert verify_wheel(wheel, ["/place/of/mine"]) == [], "what people write about their project is theirs"
    wheel = write_parts(whole, replaced("/__init__.py", b"", b"/place/of/mine/kernels")(parts_of(whole)))
    problems = verify_wheel(wheel, ["/place/of/mine"])
    assert "demo_sm_80/__init__.py has a path of the machine that built it: /place/of/mine" in problems[0]


class Zip:
    """The bytes of an archive, and the places of its parts."""

    def __init__(self, wheel: Path) -> None:
        self.data = bytearray(wheel.read_bytes())
        self.directory = self.data.index(b"PK\x01\x02")
        self.end = self.data.rindex(b"PK\x05\x06")
        self.entry = self.data.index(CODE.encode(), self.directory) - 46
        self.header = int.from_bytes(self.data[self.entry + 42 : self.entry + 46], "little")

    def put(self, place: int, value: int, size: int) -> None:
        self.data[place : place + size] = value.to_bytes(size, "little")

    def insert(self, place: int, more: bytes) -> None:
        """Insert bytes before the directory, and have the directory's places right."""
        for start in (found.start() for found in re.finditer(b"PK\x01\x02", bytes(self.data[: self.end]))):
            at = int.from_bytes(self.data[start + 42 : start + 46], "little")
            self.put(start + 42, at + len(more) * (at >= place), 4)
        self.put(self.end + 16, self.directory + len(more), 4)
        self.data[place:place] = more


def in_front(archive: Zip) -> None:
    archive.insert(0, b"#!/bin/sh\n")


def in_front_of_all_places(archive: Zip) -> None:
    archive.data[:0] = b"#!/bin/sh\n"


def between(archive: Zip) -> None:
    archive.insert(archive.header, b"PK\x03\x04 hidden")


def before_the_directory(archive: Zip) -> None:
    archive.insert(archive.directory, b"hidden")


def behind_the_end(archive: Zip) -> None:
    archive.data += b"more"


def commented(archive: Zip) -> None:
    archive.put(archive.end + 20, 4, 2)
    archive.data += b"more"


def overlapping(archive: Zip) -> None:
    archive.put(archive.entry + 42, 0, 4)


def other_name(archive: Zip) -> None:
    archive.data[archive.header + 30] ^= 0x20


def other_size(archive: Zip) -> None:
    archive.data[archive.header + 22] ^= 1


def other_method(archive: Zip) -> None:
    archive.put(archive.header + 8, 0, 2)


def encrypted(archive: Zip) -> None:
    for place in (archive.entry + 8, archive.header + 6):
        archive.put(place, 1, 2)


def sizes_behind(archive: Zip) -> None:
    for place in (archive.entry + 8, archive.header + 6):
        archive.put(place, 8, 2)


def unknown_method(archive: Zip) -> None:
    for place in (archive.entry + 10, archive.header + 8):
        archive.put(place, 14, 2)


def second_name(archive: Zip) -> None:
    """The field of Info-ZIP in which a name in UTF-8 can be, which some readers use instead of the other."""
    name = b"\x01" + b"\0" * 4 + b"evil.pth"
    field = b"\x75\x70" + len(name).to_bytes(2, "little") + name
    place = archive.entry + 46 + len(CODE)
    archive.data[place:place] = field
    archive.put(archive.entry + 30, len(field), 2)
    archive.end += len(field)
    archive.put(archive.end + 12, archive.end - archive.directory, 4)


def zip64(archive: Zip) -> None:
    archive.put(archive.end + 16, 0xFFFFFFFF, 4)


def fewer_entries(archive: Zip) -> None:
    count = int.from_bytes(archive.data[archive.end + 8 : archive.end + 10], "little")
    for place in (archive.end + 8, archive.end + 10):
        archive.put(place, count - 1, 2)


def long_name(archive: Zip) -> None:
    archive.put(archive.entry + 28, 500, 2)


AMBIGUOUS: dict[Callable[[Zip], None], str] = {
    in_front: "demo_sm_80/__init__.py does not begin where",
    in_front_of_all_places: "its directory does not end where the archive does",
    between: f"{CODE} does not begin where the file before it ends",
    before_the_directory: "there is data between demo_sm_80-1.0.dist-info/RECORD and the directory",
    behind_the_end: "it is no zip archive, or has something behind its end",
    commented: "it is no zip archive, or has something behind its end",
    overlapping: f"{CODE} does not begin where the file before it ends",
    other_name: f"{CODE} has another header than the directory says",
    other_size: f"{CODE} has another header than the directory says",
    other_method: f"{CODE} has another header than the directory says",
    encrypted: f"{CODE} is encrypted",
    sizes_behind: f"{CODE} is encrypted, or has flags",
    unknown_method: f"{CODE} is packed by method 14",
    second_name: f"{CODE} has an extra field",
    zip64: "it is a zip64 archive",
    fewer_entries: "its directory has more in it than its entries",
    long_name: "it has a name of 500 bytes",
}


@pytest.mark.parametrize("change", AMBIGUOUS, ids=lambda change: change.__name__)
def test_an_archive_that_readers_do_not_agree_on_cannot_be_read(tmp_path: Path, change: Callable[[Zip], None]) -> None:
    wheel = provider_wheel(tmp_path)
    archive = Zip(wheel)
    change(archive)
    wheel.write_bytes(archive.data)
    with pytest.raises(KernelwrightError) as caught:
        verify_wheel(wheel)
    assert f"{wheel} [verify]: it cannot be read: {AMBIGUOUS[change]}" in str(caught.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(KernelwrightError, match="it is no regular file"):
        verify_wheel(tmp_path / NAME)


BOMB = 256 << 20
"""Bytes that the bombs of these tests unpack to; some hundred kilobytes stand for them."""

BOUNDED = """
import re, resource, sys
from pathlib import Path
from kernelwright.core.errors import KernelwrightError
from kernelwright.compilers.fatbin import unpacked_lz4
from kernelwright.wheel.verify import verify_wheel
used = int(re.search(r"VmSize:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
try:
    {statement}
except (KernelwrightError, ValueError) as error:
    print(error)
"""


def run_bounded(statement: str) -> str:
    """What a program prints that has 64 MiB of memory for a statement."""
    code = BOUNDED.format(statement=statement)
    variables = os.environ | {"PYTHONPATH": str(SITE_SCONS)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("said", [BOMB, 1000], ids=["said", "concealed"])
def test_a_bomb_is_refused_in_little_memory(tmp_path: Path, said: int) -> None:
    parts = parts_of(provider_wheel(tmp_path / "good"))
    wheel = write_parts(tmp_path / NAME, Parts([*parts.files, (entry("demo_sm_80/zeros"), b"@bomb@")], []))
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    blocks = (packer.compress(bytes(1 << 20)) for _ in range(BOMB >> 20))
    bomb = b"".join(blocks) + packer.flush()
    with zipfile.ZipFile(wheel) as archive:
        old = archive.getinfo("demo_sm_80/zeros")
    data = wheel.read_bytes()
    start = old.header_offset + 30 + len(old.filename)
    said_before = struct.pack("<LLL", old.CRC, old.compress_size, old.file_size)
    more = len(bomb) - old.compress_size
    data = data[:start] + bomb + data[start + old.compress_size :]
    data = data.replace(said_before, struct.pack("<LLL", zlib.crc32(bytes(BOMB)), len(bomb), said))
    changed = bytearray(data)
    end = data.rindex(b"PK\x05\x06")
    for found in re.finditer(b"PK\x01\x02", data[:end]):
        at = int.from_bytes(data[found.start() + 42 : found.start() + 46], "little")
        changed[found.start() + 42 : found.start() + 46] = (at + more * (at > old.header_offset)).to_bytes(4, "little")
    changed[end + 16 : end + 20] = (int.from_bytes(data[end + 16 : end + 20], "little") + more).to_bytes(4, "little")
    wheel.write_bytes(changed)
    assert len(changed) < 1 << 20
    output = run_bounded(f"print(verify_wheel(Path({str(wheel)!r})))")
    expected = {
        BOMB: "the largest is demo_sm_80/zeros",
        1000: "demo_sm_80/zeros is damaged: it has another size than the directory says",
    }
    assert expected[said] in output


def test_a_compressed_image_is_unpacked_to_its_size_and_no_further() -> None:
    block = "bytes([0x1F, 65, 1, 0]) + bytes([255]) * (1 << 20) + bytes([0])"
    assert "of another size than its header says" in run_bounded(f"unpacked_lz4({block}, 100)")


def pure_wheel(
    folder: Path, package: str, scripts: Mapping[str, str] | None = None, inside: str = "", **kernels: object
) -> Path:
    """The wheel of a package without any kernel, which needs no compiler."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {"package": package, "source": Source("", False, TIME).as_json(), "files": {}, "kernels": kernels}
    text = sealed_manifest(pretty_json(document).removesuffix("\n}\n"))
    project = read_project(folder, {"project": {"name": "demo", "version": "1.0", "scripts": dict(scripts or {})}})
    path = folder / "demo-1.0-py3-none-any.whl"
    files = {f"{inside or package.replace('.', '/')}/manifest.json": text.encode()}
    write_wheel(path, project, files, "any", TIME)
    return path


HOST_CODE = b"\x7fELF\x02\x01" + bytes(12) + (62).to_bytes(2, "little") + bytes(44)
"""The header of a library for x86-64."""


def packed_wheel(folder: Path, tag: str, inside: str = "", content: bytes = b"text") -> Path:
    """The wheel of a package with one file and no kernel, for a platform; WHEEL may say another one."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = {"data": {"sha256": hashlib.sha256(content).hexdigest()}}
    document = {"package": "demo", "source": Source("", False, TIME).as_json(), "files": listed, "kernels": {}}
    files = {
        "demo/data": content,
        "demo/manifest.json": sealed_manifest(pretty_json(document).removesuffix("\n}\n")).encode(),
    }
    project = read_project(folder, {"project": {"name": "demo", "version": "1.0"}})
    path = folder / f"demo-1.0-py3-none-{tag}.whl"
    write_wheel(path, project, files, inside or tag, TIME)
    return path


def test_code_for_a_cpu_is_for_no_machine_in_particular_only_if_the_name_says_so(tmp_path: Path) -> None:
    assert verify_wheel(packed_wheel(tmp_path, "any")) == []
    assert verify_wheel(packed_wheel(tmp_path, "any", content=cubin(80))) == []
    problems = verify_wheel(packed_wheel(tmp_path, "any", content=HOST_CODE))
    assert problems == ["demo/data is code for a CPU, and the name of the wheel says any platform"]


@pytest.mark.parametrize(
    ("tag", "needed", "fits"),
    [
        ("manylinux_2_17_x86_64", "manylinux_2_17_x86_64", True),
        ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", True),
        ("manylinux_2_17_x86_64", "manylinux_2_5_x86_64", True),
        ("manylinux_2_5_x86_64", "manylinux_2_17_x86_64", False),
        ("manylinux_2_9_x86_64", "manylinux_2_10_x86_64", False),
        ("manylinux_2_17_x86_64", "manylinux_3_1_x86_64", False),
        ("linux_x86_64", "manylinux_2_17_x86_64", False),
    ],
)
def test_a_name_promises_no_older_system_than_the_libraries_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str, needed: str, fits: bool
) -> None:
    monkeypatch.setattr(verify_module, "platform_tag", lambda wheel: needed)
    problems = verify_wheel(packed_wheel(tmp_path, tag, content=HOST_CODE))
    assert problems == ([] if fits else [f"its libraries need {needed}, its name says {tag}"])


def test_a_tag_inside_that_differs_from_the_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "platform_tag", lambda wheel: "manylinux_2_17_x86_64")
    wheel = packed_wheel(tmp_path, "manylinux_2_28_x86_64", "manylinux_2_17_x86_64")
    (problem,) = verify_wheel(wheel)
    assert problem == "WHEEL has the tags ['manylinux_2_17_x86_64'], the name has manylinux_2_28_x86_64"


def test_a_package_that_would_replace_another_is_refused(tmp_path: Path) -> None:
    assert verify_wheel(pure_wheel(tmp_path, "acme.demo")) == [] == verify_wheel(pure_wheel(tmp_path, "demo"))
    for package in ("torch", "json", "kernelwright", "numpy.demo"):
        (problem,) = verify_wheel(pure_wheel(tmp_path, package))
        assert problem.endswith("/ would take the place of something else that programs import, or cannot be imported")
    (problem,) = verify_wheel(pure_wheel(tmp_path, "demo", inside="other"))
    assert problem == "other/manifest.json is about the package demo, which is in another folder"


@pytest.mark.parametrize("package", ["sitecustomize", "pip", "__pycache__", "class"])
def test_a_package_that_python_or_pip_would_load_by_itself_is_refused(tmp_path: Path, package: str) -> None:
    problems = verify_wheel(pure_wheel(tmp_path, package))
    assert any("would take the place of something else" in problem for problem in problems), problems


@pytest.mark.parametrize("name", ["python", "Python3.11", "pip3", "activate.csh", "../pwned", "/pwned"])
def test_a_command_that_replaces_one_of_the_environment_is_refused(tmp_path: Path, name: str) -> None:
    whole = provider_wheel(tmp_path)
    spoilt = with_points(f"[console_scripts]\n{name} = demo_sm_80:main\n")(parts_of(whole))
    problems = verify_wheel(write_parts(whole, spoilt), own_points=True)
    assert any("whose name is a path, or that of a program" in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("name", "before", "after", "problem"),
    [
        ("METADATA", b"Name: ", b"name: requests\nName: ", "METADATA has 2 fields Name"),
        ("METADATA", b"Version: ", b"version: 9.9\nVersion: ", "METADATA has 2 fields Version"),
        ("METADATA", b"Name: ", b"name: requests\n\nName: ", "METADATA has the name requests"),
        ("METADATA", b"Name: ", b"Requires-Dist: evil @ file:///evil\nName: ", "depends on evil @ file:///evil"),
        ("WHEEL", b"Root-Is-Purelib: ", b"root-is-purelib: false\nRoot-Is-Purelib: ", "one field Root-Is-Purelib"),
    ],
)
def test_fields_are_read_as_installers_read_them(
    tmp_path: Path, name: str, before: bytes, after: bytes, problem: str
) -> None:
    whole = provider_wheel(tmp_path)
    parts = parts_of(whole)
    files = [
        (item, data.replace(before, after, 1) if item.filename.endswith(f"/{name}") else data)
        for item, data in parts.files
    ]
    problems = verify_wheel(write_parts(whole, parts._replace(files=files)))
    assert any(problem in text for text in problems), problems


def test_what_a_wheel_says_of_itself_cannot_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = provider_wheel(tmp_path)
    parts = parts_of(whole)
    spoilt = [
        (
            item,
            data.replace(b"Version: ", b"Version: 9\x1b]0;evil\x07\r", 1)
            if item.filename.endswith("/METADATA")
            else data,
        )
        for item, data in parts.files
    ]
    assert verify([write_parts(whole, parts._replace(files=spoilt))]) == 1
    assert not set(capsys.readouterr().err) & {"\x1b", "\x07", "\r"}


def test_device_code_beside_a_package_that_lists_none_of_its_own_is_no_traceback(tmp_path: Path) -> None:
    provider = provider_wheel(tmp_path)
    package = pure_wheel(tmp_path, "demo", k={"variants": [{"slug": "a", "units": 5}]})
    assert any("is of another build" in problem for problem in verify_together([package, provider]))


def test_commands_are_accepted_if_they_are_asked_for_and_of_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = pure_wheel(tmp_path, "demo", {"demo-run": "demo.tools:main"})
    assert verify([wheel], own_points=True) == 0 and verify([wheel]) == 1
    assert "demo-run = demo.tools:main of the group console_scripts: accept" in capsys.readouterr().err
    other = pure_wheel(tmp_path, "demo", {"demo-run": "demolition:main"})
    assert verify([other], own_points=True) == 1
    assert "demo-run = demolition:main of the group console_scripts, which is not in" in capsys.readouterr().err


# ---- together


def package_wheel(folder: Path, *providers: Path, split: bool = True, version: str = "1.0") -> Path:
    """The wheel of a package, split into some wheels, without any library."""
    folder.mkdir(parents=True, exist_ok=True)
    images = {}
    for provider in providers:
        with zipfile.ZipFile(provider) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".cubin"))
            place, _, file = name.partition("/")
            images[place.removeprefix("demo_")] = {
                "file": file,
                "sha256": hashlib.sha256(archive.read(name)).hexdigest(),
            }
    manifest = {
        "package": "demo",
        "kernels": {"scale": {"variants": [{"units": [{"images": images}]}]}},
        **({"device_code": {"version": version}} if split else {}),
    }
    project = read_project(folder, {"project": {"name": "demo", "version": version}})
    path = folder / f"demo-{version}-py3-none-manylinux_2_17_x86_64.whl"
    files = {"demo/manifest.json": json.dumps(manifest).encode()}
    write_wheel(path, project, files, "manylinux_2_17_x86_64", TIME)
    return path


def test_device_code_that_its_package_does_not_list_is_named(tmp_path: Path) -> None:
    kept, dropped = provider_wheel(tmp_path, "sm_80"), provider_wheel(tmp_path, "sm_75")
    package = package_wheel(tmp_path, kept)
    assert verify_together([package, kept]) == [] == verify_together([package]) == verify_together([kept, dropped])
    assert verify_together([dropped, package, kept]) == [
        f"{dropped.name} is of another build: {package.name} lists no device code for sm_75"
    ]


def test_device_code_of_another_build_of_one_version_is_named(tmp_path: Path) -> None:
    provider = provider_wheel(tmp_path)
    package = package_wheel(tmp_path, provider)
    parts = replaced(CODE, b"code for sm_80", b"CODE FOR SM_80")(parts_of(provider))
    listed = (hashlib.sha256(content).hexdigest().encode() for item, content in parts.files if item.filename == CODE)
    with zipfile.ZipFile(provider) as archive:
        before = hashlib.sha256(archive.read(CODE)).hexdigest().encode()
    other = write_parts(provider, replaced("/manifest.json", before, next(listed))(parts))
    assert verify_together([package, other]) == [
        f"{package.name}: {CODE.partition('/')[2]} is not the one in {other.name}: they are of different builds"
    ]


def test_device_code_beside_a_package_that_is_not_split_is_named(tmp_path: Path) -> None:
    provider = provider_wheel(tmp_path)
    package = package_wheel(tmp_path, split=False)
    assert verify_together([package, provider]) == [
        f"{provider.name} is of another build: {package.name} has all of its device code in itself"
    ]


def test_device_code_of_another_version_has_nothing_to_do_with_a_package(tmp_path: Path) -> None:
    provider = provider_wheel(tmp_path, version="1.1")
    assert verify_together([package_wheel(tmp_path, split=False), provider]) == []
    assert verify_together([package_wheel(tmp_path), provider]) == []
