"""Fatbins: how an image is packed, and what is in a container, with all that can be wrong in one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.errors import SettingsError, ToolchainError, Where
from kernelwright.processes.tools import ToolCall, ToolResult
from kernelwright.toolchain import fatbin
from kernelwright.toolchain.fatbin import (
    CUBIN,
    ENTRY,
    LARGEST,
    LZ4,
    MAGIC,
    PTX,
    PackedImage,
    PackJob,
    described,
    fatbin_ranges,
    find_fatbinary,
    images_in,
    needed_driver,
    pack,
    unpacked_lz4,
)
from kernelwright.toolchain.nvcc import Nvcc
from lz4 import block

A, F = 0x10_0000, 0x20_0000
"""Flags of the archs that end with these letters."""


def image(
    kind: int,
    number: int,
    data: bytes,
    *,
    flags: int = 0,
    packed: int = 0,
    size: int = 0,
    gap: int = 0,
    version: tuple[int, int] = (0, 8),
) -> bytes:
    """One image as a fatbin has it, with some bytes of padding behind it and some between its header and its data.

    Arguments:
        version: minor and major version: of PTX; the first number is the ABI of a cubin.
    """
    padded = data + bytes(-len(data) % 8)
    header = ENTRY.pack(
        kind, 257, ENTRY.size + gap, len(padded), packed, 0, *version, number, 0, 0, flags, 0, size or len(data)
    )
    return header + bytes(max(0, gap)) + padded


def container(*images: bytes) -> bytes:
    body = b"".join(images)
    return MAGIC + len(body).to_bytes(8, "little") + body


@pytest.mark.parametrize(
    ("mode", "cuda", "said"), [("speed", 0, "12.0"), ("balance", 12040, "12.4"), ("size", 12040, "12.4")]
)
def test_a_mode_says_which_driver_it_needs(mode: str, cuda: int, said: str) -> None:
    assert needed_driver(mode) == cuda
    assert described(mode) == {"mode": mode, "cuda": said}
    assert needed_driver("none") == 0


class FakeTools:
    """Notes what is run, and writes nothing."""

    def __init__(self, project_root: Path) -> None:
        self.project_root = project_root
        self.calls: list[tuple[Any, ...]] = []

    def run(self, call: ToolCall) -> ToolResult:
        self.calls.append((list(call.command), call.folder, call.scratch, call.where, call.kind, call.subject))
        assert f"the image is {call.folder}/" in call.remedy
        return ToolResult("printed", 1.0, 1.0, 1)


NVCC = Nvcc("/opt/cuda/bin/nvcc", "13.0.88", "id", ())


def test_fatbinary_runs_beside_the_image_and_its_script_names_no_path(tmp_path: Path) -> None:
    folder, scratch, where = tmp_path / "cuda", tmp_path / "scratch", Where("gemm", "m-64")
    scratch.mkdir()
    tools = FakeTools(tmp_path)
    job = PackJob("sm_90a", "sm_90a.cubin", "size", folder, where)
    assert job.outputs == ("sm_90a.fatbin", "pack_sm_90a.sh")
    assert pack(job, NVCC, "/opt/cuda/bin/fatbinary", scratch, tools, "gemm sm_90a").output == "printed"
    options = ["--64", "--compress-all", "--compress-mode=size", "--image3=kind=elf,sm=90a,file=sm_90a.cubin"]
    command = ["/opt/cuda/bin/fatbinary", *options, f"--create={scratch}/sm_90a.fatbin"]
    assert tools.calls == [(command, folder, scratch, where, "fatbinary", "gemm sm_90a")]
    script = (scratch / "pack_sm_90a.sh").read_text()
    assert "13.0.88" in script and str(tmp_path) not in script and '\ncd "$(dirname "$0")/."\n' in script
    assert script.endswith(f'"$FATBINARY" {" ".join(options)} --create=sm_90a.fatbin\n')
    of_ptx = PackJob("compute_80", "compute_80.ptx", "speed", Path("x"), Where())
    assert "--image3=kind=ptx,sm=80,file=compute_80.ptx" in of_ptx.arguments("fatbinary", "y")


@pytest.mark.parametrize(
    ("version", "fits"), [("11.9.1", False), ("12.7.99", False), ("12.8", True), ("12.10.3", True), ("13.0.88", True)]
)
def test_an_nvcc_from_12_8_on_can_choose_how_to_compress(tmp_path: Path, version: str, fits: bool) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("nvcc", "fatbinary"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        os.chmod(tmp_path / "bin" / name, 0o755)  # noqa: PTH101
    nvcc = Nvcc(str(tmp_path / "bin" / "nvcc"), version, "id", ())
    if fits:
        assert find_fatbinary(nvcc) == str(tmp_path / "bin" / "fatbinary")
        (tmp_path / "bin" / "fatbinary").unlink()
        with pytest.raises(ToolchainError, match="has no fatbinary beside it") as missing:
            find_fatbinary(nvcc)
        assert nvcc.path in (missing.value.detail or "") and missing.value.remedy
    else:
        with pytest.raises(SettingsError, match=r"compress needs nvcc 12\.8 or newer") as caught:
            find_fatbinary(nvcc)
        assert caught.value.where.stage == "settings" and "COMPRESS=none" in (caught.value.remedy or "")


def test_every_container_in_a_library_is_found_where_it_is_whole() -> None:
    one, two = container(image(CUBIN, 80, b"a" * 20)), container(image(PTX, 90, b"b" * 300))
    data = b"x" * 7 + one + two + b"y" * 5
    assert [data[begin:end] for begin, end in fatbin_ranges(data)] == [one, two]
    assert [*fatbin_ranges(data[:-6])] == [(7, 7 + len(one))]
    assert [*fatbin_ranges(one)] == [(0, len(one))]
    assert [*fatbin_ranges(b"")] == []


def test_images_say_what_they_are_for() -> None:
    images = (
        image(CUBIN, 90, b"cubin with suffix", flags=A),
        image(CUBIN, 100, b"family", flags=F),
        image(PTX, 80, b"ptx", gap=16),
    )
    assert [*images_in(container(*images))] == [
        PackedImage("sm_90a", b"cubin with suffix" + bytes(7), 12000),
        PackedImage("sm_100f", b"family" + bytes(2), 12080),
        PackedImage("compute_80", b"ptx" + bytes(5), 12000),
    ]
    assert [*images_in(container())] == []


def test_a_compressed_image_is_unpacked_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"a" * 230 + b"z" * 20
    packed = block.compress(content, store_size=False)
    made = image(CUBIN, 80, packed, flags=LZ4, packed=len(packed), size=len(content))
    assert len(packed) < 50
    monkeypatch.setattr(fatbin, "LARGEST", len(content))
    assert [*images_in(container(made))] == [PackedImage("sm_80", content, 12000)]
    monkeypatch.setattr(fatbin, "LARGEST", len(content) - 1)
    with pytest.raises(ValueError, match="249 are the most that are unpacked"):
        list(images_in(container(made)))


NOT_KNOWN = (
    *(image(3, 80, b"x"), image(CUBIN, 80, b"x", flags=A | F), image(CUBIN, 80, b"x", gap=-8)),
    *(image(CUBIN, 80, b"x", flags=LZ4, packed=9), image(CUBIN, 80, b"x")[:-1]),
)
TOO_LARGE = image(CUBIN, 80, b"x", flags=LZ4, packed=1, size=LARGEST + 1)


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        *((damaged, "a header that is not known") for damaged in NOT_KNOWN),
        (image(CUBIN, 80, b"x")[: ENTRY.size - 1], "in the middle of a header"),
        (TOO_LARGE, "268,435,457 bytes, and 268,435,456 are the most"),
        (image(CUBIN, 80, b"\x10x", flags=LZ4, packed=2, size=2), "of another size than its header says"),
    ],
)
def test_a_damaged_container_is_an_error(damaged: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(images_in(container(damaged)))


@pytest.mark.parametrize(
    "content",
    [
        *(b"hello", b"x" * 15, b"x" * 272, b"a" * 275 + b"z", b"abcabcabcabc" * 3 + b"!"),
        b"x" + b"y" * 255 + b"xyyy" + b"z" * 12,
    ],
)
def test_lz4_is_unpacked_and_every_other_size_is_an_error(content: bytes) -> None:
    packed = block.compress(content, store_size=False)
    assert unpacked_lz4(packed, len(content)) == content
    for size in (0, len(content) - 1, len(content) + 1):
        with pytest.raises(ValueError, match="of another size"):
            unpacked_lz4(packed, size)


@pytest.mark.parametrize("damaged", [b"\x10a\x02\x00", b"\x10a\x00\x00", b"\x10a\x01", b"\xf0", b"\x1fa\x01\x00"])
def test_damaged_lz4_is_an_error_and_an_empty_block_is_none(damaged: bytes) -> None:
    assert unpacked_lz4(b"", 0) == unpacked_lz4(b"\x00", 0) == b""
    with pytest.raises(ValueError, match="cannot be decompressed"):
        unpacked_lz4(damaged, 9)
