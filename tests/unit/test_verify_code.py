"""The code in a wheel is for the archs that its manifest says; checked with code that no tool has made."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright.core.records import Record
from kernelwright.package.device_code import arch_problems, device_archs, drivers_of, image_problem, library_problem
from kernelwright.package.drivers import driver_problems, needed_by
from kernelwright.package.project import read_project
from kernelwright.package.variant_checks import split_problems
from kernelwright.toolchain.fatbin import CUBIN, PTX
from test_fatbin_images import A, container, image

PTX_CODE = b"//\n.version 8.0\n.target %s\n.address_size 64\n"


def elf(machine: int, flags: int, abi: int = 8) -> bytes:
    """The header of an ELF file, as far as it is looked at."""
    header = bytearray(64)
    header[:9] = b"\x7fELF\x02\x01\x01\x41" + bytes([abi])
    header[18:20], header[48:52] = machine.to_bytes(2, "little"), flags.to_bytes(4, "little")
    return bytes(header)


def cubin(number: int, abi: int = 8) -> bytes:
    return elf(190, number << 8 | 2 if abi >= 8 else 0x500 | number, abi)


LIBRARY = b"built for llvm (x86-64, x86-64-v3) " + cubin(80) + PTX_CODE % b"sm_80"
"""What a library has in it that is looked at."""

ARCHS = ["x86-64", "x86-64-v3", "sm_80", "compute_80"]


@pytest.mark.parametrize(
    ("data", "archs"),
    [
        (b"", []),
        (cubin(80), ["sm_80"]),
        (cubin(121), ["sm_121"]),
        (cubin(86, abi=7), ["sm_86"]),
        (b"x" * 5 + cubin(90) + cubin(100), ["sm_90", "sm_100"]),
        (elf(62, 80 << 8), []),
        (b"x" + PTX_CODE % b"sm_90a", ["ptx sm_90"]),
        (cubin(80) + PTX_CODE % b"sm_80", ["sm_80", "ptx sm_80"]),
        (container(image(CUBIN, 90, cubin(90), flags=A)), ["sm_90a"]),
        (container(image(PTX, 80, PTX_CODE % b"sm_80")), ["ptx sm_80"]),
        (cubin(75) + container(image(CUBIN, 80, cubin(80))) + cubin(86), ["sm_75", "sm_80", "sm_86"]),
    ],
)
def test_code_says_what_it_is_for(data: bytes, archs: list[str]) -> None:
    assert list(device_archs(data)) == archs


@pytest.mark.parametrize(
    ("data", "needed"),
    [
        (cubin(80, abi=7) + cubin(90, abi=7) + cubin(90), {"sm_80": 12000, "sm_90": 13000}),
        (cubin(100, abi=7) + cubin(103, abi=7), {"sm_100": 12080, "sm_103": 12090}),
        (PTX_CODE.replace(b"8.0", b"8.5") % b"sm_80" + PTX_CODE % b"sm_90", {"ptx sm_80": 12050, "ptx sm_90": 12000}),
        (container(image(CUBIN, 80, cubin(80, abi=7), version=(7, 1))), {"sm_80": 12000}),
        (container(image(PTX, 80, PTX_CODE % b"sm_80", version=(0, 9))), {"ptx sm_80": 13000}),
    ],
)
def test_code_says_which_driver_it_needs(data: bytes, needed: dict[str, int]) -> None:
    assert drivers_of(data) == needed
    told = {arch.replace("ptx sm", "compute"): driver for arch, driver in needed.items()}
    assert list(driver_problems("it", told, [data])) == []
    first = next(iter(told))
    (problem,) = driver_problems("it", told | {first: 12010}, [data])
    assert problem.startswith(f"it: the code for {first} needs a driver for CUDA") and "says 12.1" in problem
    del told[first]
    (problem,) = driver_problems("it", told, [data])
    assert "the manifest does not say which driver" in problem


def test_what_one_variant_needs_is_needed_of_all(tmp_path: Path) -> None:
    units: list[Any] = []
    for name, data in (("new", cubin(80)), ("old", cubin(80, abi=7))):
        (tmp_path / name).write_bytes(data)
        units.append(SimpleNamespace(target="cuda", archs=["sm_80"], own=(), images={"sm_80": tmp_path / name}))
    assert needed_by(units) == needed_by(units[::-1]) == {"sm_80": "13.0"} and needed_by(units[1:]) == {"sm_80": "12.0"}


def test_ptx_that_is_newer_than_all_that_is_known_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"PTX has the version 10\.1, which is not known"):
        drivers_of(PTX_CODE.replace(b"8.0", b"10.1") % b"sm_80")


@pytest.mark.parametrize("inside", [cubin(90), b"nothing", cubin(80) + cubin(90)])
def test_a_fatbin_with_other_code_than_it_says_is_damaged(inside: bytes) -> None:
    with pytest.raises(ValueError, match="a fatbin for sm_80 has code for"):
        list(device_archs(container(image(CUBIN, 80, inside))))


@pytest.mark.parametrize(
    ("archs", "found"),
    [
        (ARCHS, []),
        (ARCHS[:3], ["kernel k has device code for ptx sm_80, which the manifest does not list"]),
        ([*ARCHS[:2], "compute_80"], ["kernel k has device code for sm_80, which the manifest does not list"]),
        ([*ARCHS, "sm_90a"], ["kernel k has no device code for sm_90, which the manifest lists"]),
        (ARCHS[1:], ["kernel k has code for x86-64, unlike the manifest"]),
        ([*ARCHS, "x86-64-v4"], ["kernel k lacks code for x86-64-v4, unlike the manifest"]),
    ],
)
def test_a_library_with_other_code_than_the_manifest_lists_is_named(archs: list[str], found: list[str]) -> None:
    assert list(arch_problems("k", {*archs}, LIBRARY)) == found


def test_only_compressed_code_tells_an_arch_from_its_family_and_damage_is_named() -> None:
    packed = container(image(CUBIN, 90, cubin(90), flags=A))
    assert list(arch_problems("k", {"sm_90a"}, packed, exact=True)) == []
    said = list(arch_problems("k", {"sm_90"}, packed, exact=True))
    assert ["no device code for sm_90," in said[0], "device code for sm_90a," in said[1]] == [True, True]
    assert list(arch_problems("k", {"sm_90a"}, cubin(90))) == []
    damaged = container(image(CUBIN, 80, cubin(90)))
    (said,) = arch_problems("k", {"sm_80"}, damaged)
    assert said == "kernel k has damaged device code: a fatbin for sm_80 has code for sm_90 in it"
    assert library_problem(cubin(80), "x86_64") == "is for a GPU, and the package is for CPUs of the family x86_64"


@pytest.mark.parametrize(
    ("file", "arch", "content", "problem"),
    [
        ("k.cubin", "sm_90a", cubin(90), ""),
        ("k.ptx", "compute_80", PTX_CODE % b"sm_80", ""),
        ("k.fatbin", "sm_100a", container(image(CUBIN, 100, cubin(100), flags=A)), ""),
        ("k.cubin", "sm_90a", cubin(80), "has code for sm_80"),
        ("k.ptx", "compute_80", b"", "has code for no arch"),
        ("k.ptx", "sm_80", cubin(80), "does not begin as a file of device code called .ptx does"),
        ("k.cubin", "sm_80", b"x" + cubin(80), "does not begin as a file of device code called .cubin does"),
        ("k.fatbin", "sm_80", cubin(80), "does not begin as a file of device code called .fatbin does"),
        (
            *("k.fatbin", "sm_100a", container(image(CUBIN, 100, cubin(90), flags=A))),
            "is damaged: a fatbin for sm_100a has code for sm_90 in it",
        ),
    ],
)
def test_device_code_in_a_file_is_for_the_arch_that_the_manifest_says(file, arch, content, problem):
    assert image_problem(file, arch, content) == problem


def test_a_split_package_has_an_extra_for_the_code_of_each_arch(tmp_path: Path) -> None:
    document = {"project": {"name": "demo", "version": "1.0"}}
    split, whole = (
        read_project(tmp_path, document, providers=archs, called_through=("cuda_core",))
        for archs in (("sm_80", "sm_90a"), ())
    )
    images = {arch: {"file": f"{arch}.cubin", "sha256": "", "size": 1} for arch in ("sm_80", "sm_90a")}
    wheels = {"sm_80": "demo-sm-80", "sm_90a": "demo-sm-90a"}
    place: dict[str, Any] = {"version": "1.0", "packages": {arch: f"demo_{arch}" for arch in images}, "wheels": wheels}
    kernels = {"k": {"variants": [{"units": [{"images": images}]}]}}

    def problems(project: Any) -> list[str]:
        record = Record({"package": "demo", "device_code": place, "kernels": kernels}, "")
        return list(split_problems(record, {"demo-1.0.dist-info/METADATA": project.metadata}))

    assert problems(split) == []
    assert problems(whole) == [
        f"it has no extra {arch} that installs demo-{arch}==1.0, which has its code for {arch.replace('-', '_')}"
        for arch in ("sm-80", "sm-90a")
    ]
    place["version"] = "1.1"
    assert len(problems(split)) == 2, "the extras install another version"
    place |= {"version": "1.0", "packages": {"sm_80": "demo_sm_80", "sm_90a": "torch"}}
    assert problems(split) == ["its manifest has the code for sm_90a in 'torch', which is no part of it"]
    place["packages"] = {"sm_80": "demo_sm_80"}
    with pytest.raises(ValueError, match=r"device_code\.packages\.sm_90a is missing, expected a string"):
        problems(split)
