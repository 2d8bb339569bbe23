"""Containers of device code, made by hand: what they are asked to hold, which drivers read them, what is in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelwright.compilers import fatbin
from kernelwright.compilers.fatbin import (
    CUBIN,
    ENTRY,
    LZ4,
    MAGIC,
    PTX,
    PackJob,
    described,
    fatbin_ranges,
    images_in,
    needed_driver,
)
from kernelwright.core.errors import Where

LETTERS = {"": 0, "a": 0x10_0000, "f": 0x20_0000}


def entry(kind: int, number: int, data: bytes, letter: str = "", size: int = 0, flags: int = 0) -> bytes:
    """An image with its header; compressed where it has another size."""
    padded = data + bytes(-len(data) % 8)
    packed = len(data) if flags else 0
    fields = (kind, 0x101, ENTRY.size, len(padded if flags else data), packed, 0, 0, 0, number, 0, 0)
    return ENTRY.pack(*fields, LETTERS[letter] | flags, 0, size) + (padded if flags else data)


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return MAGIC + len(body).to_bytes(8, "little") + body


@pytest.mark.parametrize(
    ("arch", "image", "asked"),
    [
        ("sm_90a", "sm_90a.cubin", "--image3=kind=elf,sm=90a,file=sm_90a.cubin"),
        ("sm_80", "sm_80.cubin", "--image3=kind=elf,sm=80,file=sm_80.cubin"),
        ("compute_80", "compute_80.ptx", "--image3=kind=ptx,sm=80,file=compute_80.ptx"),
    ],
)
def test_the_container_is_asked_for_with_the_kind_and_the_arch_of_its_image(arch: str, image: str, asked: str) -> None:
    command = PackJob(arch, image, "size", Path(), Where()).arguments("fatbinary", "out")
    assert command == ["fatbinary", "--64", "--compress-all", "--compress-mode=size", asked, "--create=out"]


def test_modes_that_use_zstd_need_a_newer_driver() -> None:
    assert {mode: needed_driver(mode) for mode in ("none", "speed", "balance", "size")} == {
        "none": 0,
        "speed": 0,
        "balance": 12040,
        "size": 12040,
    }
    assert [described(mode)["cuda"] for mode in ("speed", "balance", "size")] == ["12.0", "12.4", "12.4"]


def test_each_image_comes_out_with_its_arch() -> None:
    packed = b"\x14a\x01\x00\x50bcdef"
    data = container(
        entry(CUBIN, 80, b"one-----"),
        entry(CUBIN, 90, b"two-----", "a"),
        entry(CUBIN, 100, packed, "f", 14, LZ4),
        entry(PTX, 80, b"four----"),
    )
    assert [(image.arch, image.content) for image in images_in(data)] == [
        ("sm_80", b"one-----"),
        ("sm_90a", b"two-----"),
        ("sm_100f", b"a" * 9 + b"bcdef"),
        ("compute_80", b"four----"),
    ]


def test_an_image_may_be_as_large_as_the_limit_and_no_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    data = container(entry(CUBIN, 80, b"\x14a\x01\x00\x50bcdef", "", 14, LZ4))
    monkeypatch.setattr(fatbin, "LARGEST", 14)
    assert [image.content for image in images_in(data)] == [b"a" * 9 + b"bcdef"]
    monkeypatch.setattr(fatbin, "LARGEST", 13)
    with pytest.raises(ValueError, match="13 are the most that are unpacked"):
        list(images_in(data))


def test_containers_are_found_wherever_they_are_in_a_library() -> None:
    first, second = container(entry(CUBIN, 80, b"first---")), container(entry(PTX, 80, b"second--"))
    data = b"code" + first + second + b"more" + second
    places = [(4, 4 + len(first)), (4 + len(first), 4 + len(first + second))]
    assert list(fatbin_ranges(data)) == [*places, (len(data) - len(second), len(data))]
    assert list(fatbin_ranges(data[:-1])) == places
