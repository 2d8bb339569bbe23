"""Wheels that are damaged or have the name of another: each is one clear error. They are made without any tool."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import zipfile
from pathlib import Path

import pytest
from kernelwright.cli import verify
from kernelwright.errors import KernelwrightError
from kernelwright.wheel.archive import write_wheel
from kernelwright.wheel.content import BuiltFiles, Image, provider_files
from kernelwright.wheel.project import provider_project, read_project
from kernelwright.wheel.source import Source
from kernelwright.wheel.verify import verify_together, verify_wheel

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


def test_one_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = provider_wheel(tmp_path)
    zipped = shutil.copyfile(wheel, tmp_path / "x.zip")
    assert verify([tmp_path / "missing.whl", wheel, zipped, tmp_path / "gone.whl"]) == 1
    output = capsys.readouterr()
    assert output.out == f"{NAME}: all well\n"
    for name in ("missing.whl", "gone.whl", "x.zip: its name"):
        assert output.err.count(name) >= 1


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
