"""Wheels that are damaged, hostile, or have the name of another: each is one clear error, in this process."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from kernelwright.commands.verify import verify
from kernelwright.core.errors import KernelwrightError
from kernelwright.package import verify as verify_module
from kernelwright.package.archive import write_wheel
from kernelwright.package.project import read_project
from kernelwright.package.verify import gaps_of, verify_together, verify_wheel
from support.hostile_wheels import (
    CODE,
    GOOD,
    KINDS,
    TIME,
    Draft,
    draft_of,
    package_called,
    provider_wheel,
    pure_wheel,
    text,
)
from support.project import SITE_SCONS

NAME = "demo_sm_80-1.0-py3-none-any.whl"


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The good wheels, which no test changes."""
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in GOOD.items()}


@pytest.fixture
def provider(good: dict[str, Path]) -> Draft:
    """What a wheel of device code is made of."""
    return draft_of(good["provider"])


@pytest.mark.parametrize("base", GOOD)
def test_a_whole_one_is_well(good: dict[str, Path], base: str, tmp_path: Path) -> None:
    assert verify_wheel(good[base]) == []
    draft = draft_of(good[base])
    assert verify_wheel(draft.write(tmp_path)) == [], "what is written here anew is not what is wrong"
    if base in ("package", "pure"):
        package_called("acme.demo")(draft)
        assert verify_wheel(draft.write(tmp_path)) == [], "a package may be in another one"


@pytest.mark.parametrize("name", KINDS)
def test_a_hostile_wheel_is_refused_by_the_name_of_what_is_wrong(good, tmp_path, name):
    kind = KINDS[name]
    draft = draft_of(good[kind.base])
    kind.change(draft)
    said = verify_wheel(draft.write(tmp_path))
    assert any(kind.message in problem for problem in said), said


def test_random_headers_of_libraries_are_never_another_exception(good: dict[str, Path], tmp_path: Path) -> None:
    chance = random.Random(1)
    whole = draft_of(good["package"])
    library = whole.files["demo/_lib/scale.so"]
    refused = 0
    for _ in range(60):
        data = bytearray(library)
        for _ in range(chance.choice([1, 4, 16])):
            data[chance.randrange(500)] = chance.randrange(256)
        whole.put("_lib/scale.so", bytes(data))
        refused += bool(verify_wheel(whole.write(tmp_path)))
    assert refused > 20


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


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x.zip", "its name is not that of a wheel"),
        ("demo_sm_80-1.0.whl", "its name is not that of a wheel"),
        ("other-1.0-py3-none-any.whl", "METADATA has the name demo-sm-80, and the name of the wheel has other"),
        ("demo_sm_90-1.0-py3-none-any.whl", "it has demo_sm_80-1.0.dist-info, and by its name it should have demo_sm"),
        ("demo_sm_80-1.1-py3-none-any.whl", "METADATA has the version 1.0, and the name of the wheel has 1.1"),
        ("demo_sm_80-1.0-cp312-cp312-any.whl", "its name is not for py3-none"),
        ("demo_sm_80-1.0-py3-none-manylinux_2_17_x86_64.whl", "WHEEL has the tags py3-none-any, and the name has py3"),
    ],
)
def test_a_wheel_with_the_name_of_another_is_named(tmp_path: Path, name: str, problem: str) -> None:
    wheel = shutil.copyfile(provider_wheel(tmp_path / "whole"), tmp_path / name)
    assert any(found.startswith(problem) for found in verify_wheel(wheel)), verify_wheel(wheel)


def test_what_other_tools_have_written_again_is_well(tmp_path: Path) -> None:
    """With a build number in its name, or packed anew."""
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
    assert output.out == f"{NAME}: all well\n  driver: 525.60.13 (CUDA 12.0) or newer for sm_80\n"
    for name in ("missing.whl", "gone.whl", "x.zip: its name"):
        assert output.err.count(name) >= 1


# ---- manifests and paths


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b'{"package": NaN}', b"\xff", b"9" * 5000])
def test_a_manifest_of_another_form_is_no_error_of_the_command(provider, good, tmp_path, content):
    provider.manifest = lambda sealed: content
    wheel = provider.write(tmp_path)
    assert any("demo_sm_80/manifest.json is no manifest" in problem for problem in verify_wheel(wheel))
    assert gaps_of(wheel) == [] and verify_together([wheel, good["provider"]]) == []


def test_a_folder_that_is_said_to_be_private_is_named_in_no_file(provider: Draft, tmp_path: Path) -> None:
    text("@METADATA", b"Version: 1.0", b"Version: 1.0\nKeywords: /place/of/mine")(provider)
    assert verify_wheel(provider.write(tmp_path), ["/place/of/mine"]) == [], "what people write of a project is theirs"
    text("__init__.py", b"", b"/place/of/mine/kernels")(provider)
    problems = verify_wheel(provider.write(tmp_path), ["/place/of/mine"])
    assert "demo_sm_80/__init__.py has a path of the machine that built it: /place/of/mine" in problems[0]


def test_what_a_partial_package_lacks_is_told(good: dict[str, Path], tmp_path: Path) -> None:
    gap = {"kernel": "k", "stage": "nvcc", "error": "it failed"}
    draft = draft_of(good["pure"])
    draft.document["missing"] = [gap]
    wheel = draft.write(tmp_path)
    assert gaps_of(wheel) == [gap] and verify_wheel(wheel) == []
    assert gaps_of(good["pure"]) == []


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

    def put_both(self, in_entry: int, in_header: int, value: int) -> None:
        self.put(self.entry + in_entry, value, 2)
        self.put(self.header + in_header, value, 2)

    def insert(self, place: int, more: bytes) -> None:
        """Insert bytes before the directory, and have the directory's places right."""
        for start in (found.start() for found in re.finditer(b"PK\x01\x02", bytes(self.data[: self.end]))):
            at = int.from_bytes(self.data[start + 42 : start + 46], "little")
            self.put(start + 42, at + len(more) * (at >= place), 4)
        self.put(self.end + 16, self.directory + len(more), 4)
        self.data[place:place] = more


NO_ZIP = "it is no zip archive, or has something behind its end"
OTHER_HEADER = f"{CODE} has another header than the directory says"
BEGINS_ELSEWHERE = f"{CODE} does not begin where the file before it ends"


def commented(archive: Zip) -> None:
    archive.put(archive.end + 20, 4, 2)
    archive.data += b"more"


def second_name(archive: Zip) -> None:
    """The field of Info-ZIP in which a name in UTF-8 can be, which some readers use instead of the other."""
    name = b"\x01" + b"\0" * 4 + b"evil.pth"
    field = b"\x75\x70" + len(name).to_bytes(2, "little") + name
    place = archive.entry + 46 + len(CODE)
    archive.data[place:place] = field
    archive.put(archive.entry + 30, len(field), 2)
    archive.end += len(field)
    archive.put(archive.end + 12, archive.end - archive.directory, 4)


AMBIGUOUS: dict[str, tuple[Callable[[Zip], None], str]] = {
    "in front": (lambda zip_: zip_.insert(0, b"#!/bin/sh\n"), "demo_sm_80/__init__.py does not begin where"),
    "in front of all places": (
        lambda zip_: zip_.data.__setitem__(slice(0), b"#!/bin/sh\n"),
        "its directory does not end",
    ),
    "between": (lambda zip_: zip_.insert(zip_.header, b"PK\x03\x04 hidden"), BEGINS_ELSEWHERE),
    "before the directory": (
        lambda zip_: zip_.insert(zip_.directory, b"hidden"),
        "there is data between demo_sm_80-1.0.dist-info/RECORD and the directory",
    ),
    "behind the end": (lambda zip_: zip_.data.extend(b"more"), NO_ZIP),
    "commented": (commented, NO_ZIP),
    "overlapping": (lambda zip_: zip_.put(zip_.entry + 42, 0, 4), BEGINS_ELSEWHERE),
    "other name": (lambda zip_: zip_.put(zip_.header + 30, zip_.data[zip_.header + 30] ^ 0x20, 1), OTHER_HEADER),
    "other size": (lambda zip_: zip_.put(zip_.header + 22, zip_.data[zip_.header + 22] ^ 1, 1), OTHER_HEADER),
    "other method": (lambda zip_: zip_.put(zip_.header + 8, 0, 2), OTHER_HEADER),
    "encrypted": (lambda zip_: zip_.put_both(8, 6, 1), f"{CODE} is encrypted"),
    "sizes behind": (lambda zip_: zip_.put_both(8, 6, 8), f"{CODE} is encrypted, or has flags"),
    "unknown method": (lambda zip_: zip_.put_both(10, 8, 14), f"{CODE} is packed by method 14"),
    "second name": (second_name, f"{CODE} has an extra field"),
    "zip64": (lambda zip_: zip_.put(zip_.end + 16, 0xFFFFFFFF, 4), "it is a zip64 archive"),
    "fewer entries": (
        lambda zip_: zip_.put(zip_.end + 8, 0x10001 * (zip_.data[zip_.end + 8] - 1), 4),
        "its directory has more in it than its entries",
    ),
    "long name": (lambda zip_: zip_.put(zip_.entry + 28, 500, 2), "it has a name of 500 bytes"),
}


@pytest.mark.parametrize(("change", "said"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_an_archive_that_readers_do_not_agree_on_cannot_be_read(tmp_path, change, said):
    wheel = provider_wheel(tmp_path)
    archive = Zip(wheel)
    change(archive)
    wheel.write_bytes(archive.data)
    with pytest.raises(KernelwrightError) as caught:
        verify_wheel(wheel)
    assert f"{wheel} [verify]: it cannot be read: {said}" in str(caught.value)


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
from kernelwright.toolchain.fatbin import unpacked_lz4
from kernelwright.package.verify import verify_wheel
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
def test_a_bomb_is_refused_in_little_memory(provider: Draft, tmp_path: Path, said: int) -> None:
    provider.more.append(("demo_sm_80/zeros", b"@bomb@"))
    wheel = provider.write(tmp_path)
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


# ---- names


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
def test_a_name_promises_no_older_system_than_the_libraries_need(good, tmp_path, monkeypatch, tag, needed, fits):
    draft = draft_of(good["package"])
    draft.tag(tag)
    monkeypatch.setattr(verify_module, "platform_tag", lambda wheel, family, others: needed)
    problems = verify_wheel(draft.write(tmp_path))
    assert problems == ([] if fits else [f"its libraries need {needed}, its name says {tag}"])


@pytest.mark.parametrize("name", ["python", "Python3.11", "pip3", "activate.csh", "../pwned", "/pwned"])
def test_a_command_that_replaces_one_of_the_environment_is_refused(provider: Draft, tmp_path: Path, name: str) -> None:
    text("@entry_points.txt", b"", f"[console_scripts]\n{name} = demo_sm_80:main\n".encode())(provider)
    problems = verify_wheel(provider.write(tmp_path), own_points=True)
    assert any("whose name is a path, or that of a program" in problem for problem in problems), problems


def test_what_a_wheel_says_of_itself_cannot_command_the_terminal(provider, tmp_path, capsys):
    text("@METADATA", b"\nVersion: ", b"\nVersion: 9\x1b]0;evil\x07\r")(provider)
    assert verify([provider.write(tmp_path)]) == 1
    assert not set(capsys.readouterr().err) & {"\x1b", "\x07", "\r"}


def test_device_code_beside_a_package_that_lists_none_of_its_own_is_no_traceback(good, tmp_path):
    package = draft_of(good["package"])
    package.kernel["variants"][0]["units"] = 5
    assert any("is of another build" in said for said in verify_together([package.write(tmp_path), good["provider"]]))


def test_commands_are_accepted_if_they_are_asked_for_and_of_the_package(tmp_path, capsys):
    wheel = pure_wheel(tmp_path / "own", {"demo-run": "demo.tools:main"})
    assert verify([wheel], own_points=True) == 0 and verify([wheel]) == 1
    assert "demo-run = demo.tools:main of the group console_scripts: accept" in capsys.readouterr().err
    other = pure_wheel(tmp_path / "other", {"demo-run": "demolition:main"})
    assert verify([other], own_points=True) == 1
    assert "demo-run = demolition:main of the group console_scripts, which is not in" in capsys.readouterr().err


def test_wheels_without_a_manifest_have_nothing_to_do_with_each_other(good: dict[str, Path], tmp_path: Path) -> None:
    project = read_project(tmp_path, {"project": {"name": "other", "version": "1.0"}})
    other = tmp_path / "other-1.0-py3-none-any.whl"
    for content in ({}, {"other/manifest.json": b"{"}, {"other/manifest.json": b"[]"}):
        write_wheel(other, project, content, "any", TIME)
        assert verify_together([good["pure"], other]) == [] == gaps_of(other)
        assert verify_wheel(other)
        other.unlink()


# ---- together


def split_wheel(folder: Path, *providers: Path, split: bool = True, version: str = "1.0") -> Path:
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
                "size": len(archive.read(name)),
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


def test_device_code_and_packages_that_are_not_of_one_build_are_named(tmp_path: Path) -> None:
    kept, dropped = provider_wheel(tmp_path, "sm_80"), provider_wheel(tmp_path, "sm_75")
    package = split_wheel(tmp_path, kept)
    assert verify_together([package, kept]) == [] == verify_together([package]) == verify_together([kept, dropped])
    assert verify_together([dropped, package, kept]) == [
        f"{dropped.name} is of another build: {package.name} lists no device code for sm_75"
    ]
    other = draft_of(kept)
    other.replace(CODE.partition("/")[2], b"code for sm_80", b"CODE FOR SM_80")
    assert verify_together([package, other.write(tmp_path)]) == [
        f"{package.name}: {CODE.partition('/')[2]} is not the one in {kept.name}: they are of different builds"
    ]


def test_device_code_beside_a_package_that_is_not_split_is_named_unless_it_is_of_another_version(tmp_path):
    provider, later = provider_wheel(tmp_path), provider_wheel(tmp_path, version="1.1")
    package = split_wheel(tmp_path, split=False)
    assert verify_together([package, provider]) == [
        f"{provider.name} is of another build: {package.name} has all of its device code in itself"
    ]
    assert verify_together([package, later]) == []
    assert verify_together([split_wheel(tmp_path), later]) == []
