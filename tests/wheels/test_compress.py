"""Compressed device code: what is built again, what is in it, which driver it needs, damaged ones, bad input."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lz4.block
import pytest
from kernelwright.compilers.fatbin import MAGIC, find_fatbinary, images_in, unpacked_lz4
from kernelwright.core.errors import SettingsError, ToolchainError
from kernelwright.toolchain.nvcc import Nvcc
from kernelwright.wheel.device_code import device_archs
from support.project import Project
from test_split import Machine, driver, inside, machine, unpack, wheels_of  # noqa: F401
from test_wheel import copy_of, kernelwright, made_for

ARCHS = ("sm_80", "sm_90a", "compute_80")
CUDA = "build/kernels/demo/scale/dtype-float32/cuda"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A committed project whose wheel was built with the least compression; tests must not change it."""
    project = copy_of(made_for(tmp_path_factory), tmp_path_factory.mktemp("packed") / "copy")
    shutil.rmtree(project.folder / "dist")
    project.scons("-j2", "wheel", "COMPRESS=speed")
    return project


def fatbin(project: Project, arch: str) -> bytes:
    return (project.folder / CUDA / f"{arch}.fatbin").read_bytes()


@pytest.mark.parametrize("mode", ["balance", "size"])
def test_another_mode_packs_again_and_compiles_no_device_code(packed: Project, tmp_path: Path, mode: str) -> None:
    project = copy_of(packed, tmp_path / "copy")
    labels = project.scons("-j2", "wheel", f"COMPRESS={mode}", "CACHE_DIR=").labels
    assert labels == {"CC": 2, "FATBIN": 9, "LINK": 2, "PACKAGE": 1, "WHEEL": 1, "WRAP": 2}
    manifest = inside(wheels_of(project)["main"])["demo/manifest.json"].decode()
    assert f'"compress": {{\n  "mode": "{mode}",\n  "cuda": "12.4"\n }}' in manifest
    assert len(fatbin(project, "sm_90a")) < len(fatbin(packed, "sm_90a"))
    assert kernelwright("verify", "--entry-points", str(wheels_of(project)["main"])).returncode == 0
    assert list(device_archs(fatbin(project, "sm_90a"))) == ["sm_90a"]


def test_the_same_cubin_comes_out_again(packed: Project) -> None:
    for arch in ("sm_80", "sm_90a"):
        (image,) = images_in(fatbin(packed, arch))
        assert image.arch == arch
        assert image.content == (packed.folder / CUDA / f"{arch}.cubin").read_bytes()
    (image,) = images_in(fatbin(packed, "compute_80"))
    assert image.arch == "compute_80" and image.content is not None
    assert b".target sm_80" in image.content, "fatbinary takes comments out of PTX"


def test_the_manifest_has_the_mode_and_its_driver_and_no_library_has_plain_code(packed: Project) -> None:
    files = inside(wheels_of(packed)["main"])
    assert b'"compress": {\n  "mode": "speed",\n  "cuda": "12.0"\n }' in files["demo/manifest.json"]
    library = files["demo/_lib/scale.so"]
    assert library.count(MAGIC) == 6 and set(device_archs(library)) == {"sm_80", "sm_90a", "ptx sm_80"}
    cubin = (packed.folder / CUDA / "sm_90a.cubin").read_bytes()
    assert cubin not in library and fatbin(packed, "sm_90a") in library


def test_without_compression_everything_is_as_it_was(packed: Project, tmp_path: Path) -> None:
    project = copy_of(packed, tmp_path / "copy")
    assert "FATBIN" not in project.scons("-j2", "wheel").labels
    assert not list((project.folder / "build").rglob("*.fatbin"))
    files = inside(wheels_of(project)["main"])
    assert b'"compress"' not in files["demo/manifest.json"] and MAGIC not in files["demo/_lib/scale.so"]


def test_the_script_repeats_the_step(packed: Project, tmp_path: Path) -> None:
    project = copy_of(packed, tmp_path / "copy")
    before = fatbin(project, "sm_90a")
    (project.folder / CUDA / "sm_90a.fatbin").unlink()
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["FATBINARY"] = find_fatbinary(found_nvcc())
    subprocess.run(["sh", str(project.folder / CUDA / "pack_sm_90a.sh")], check=True, env=environment)
    assert fatbin(project, "sm_90a") == before


def found_nvcc() -> Nvcc:
    from kernelwright.toolchain.nvcc import find_nvcc

    return Nvcc(find_nvcc("", dict(os.environ)), "13.0.88", "", ())


# ---- called


def test_the_driver_gets_the_container(packed: Project, machine: Machine) -> None:  # noqa: F811
    assert machine.call(packed.folder / "build", STANDIN_VERSION="12000") == "supported: True\n"
    assert machine.loads == [f"fatbin sm_90 {len(fatbin(packed, 'sm_90a'))}"]


def test_split_and_compressed_code_needs_a_driver_that_can_read_it(
    packed: Project,
    machine: Machine,  # noqa: F811
    tmp_path: Path,
) -> None:
    project = copy_of(packed, tmp_path / "copy")
    project.scons("-j2", "wheel", "COMPRESS=size", "SPLIT=arch")
    wheels = wheels_of(project)
    assert {name for name in inside(wheels["sm_80"]) if "/cuda/" in name} == {
        f"demo_sm_80/{variant}/cuda/sm_80.fatbin"
        for variant in ("add_one/default", "scale/dtype-float16", "scale/dtype-float32")
    }
    assert kernelwright("verify", "--entry-points", *map(str, wheels.values())).returncode == 0
    everything = unpack(tmp_path / "all", *wheels.values())
    output = machine.call(everything, STANDIN_VERSION="12020")
    assert "sm_90a of variant dtype-float32 is compressed, and needs a driver for CUDA 12.4 or newer; this" in output
    assert "this one is for CUDA 12.2\n  remedy: install a newer NVIDIA driver" in output and machine.loads == []
    assert output.endswith("supported: False\n")
    output = machine.call(project.folder / "build", STANDIN_VERSION="12020")
    assert "needs a driver for CUDA 12.4" in output and output.endswith("supported: False\n")
    project.scons("-j2", "COMPRESS=size")  # in the library itself
    output = machine.call(project.folder / "build", STANDIN_VERSION="12020")
    assert "needs a driver for CUDA 12.4" in output and output.endswith("supported: False\n")
    assert machine.call(everything, STANDIN_VERSION="12040") == "supported: True\n"
    assert machine.loads == [f"fatbin sm_90 {len(fatbin(project, 'sm_90a'))}"]
    name = "demo_sm_90a/scale/dtype-float32/cuda/sm_90a.fatbin"
    content = inside(wheels["sm_90a"])[name]
    assert set(device_archs(content)) == {"sm_90a"}


# ---- verify


def test_a_container_that_says_another_arch_than_its_code_is_damaged(packed: Project) -> None:
    whole = fatbin(packed, "sm_90a")
    other = bytearray(whole)
    other[44] = 80
    with pytest.raises(ValueError, match=r"a fatbin for sm_80a has code for sm_90 in it"):
        list(device_archs(bytes(other)))
    plain = bytearray(whole)
    plain[58] &= 0x0F  # without the flag of the suffix
    assert list(device_archs(bytes(plain))) == ["sm_90"]
    from kernelwright.wheel.device_code import arch_problems

    assert list(arch_problems("scale", {"sm_90a"}, whole, exact=True)) == []
    assert list(arch_problems("scale", {"sm_90a"}, bytes(plain), exact=True)) == [
        "kernel scale has no device code for sm_90a, which the manifest lists",
        "kernel scale has device code for sm_90, which the manifest does not list",
    ]
    (problem,) = arch_problems("scale", {"sm_80a"}, bytes(other), exact=True)
    assert problem.startswith("kernel scale has damaged device code: a fatbin for sm_80a")


def test_damaged_containers_are_value_errors_and_never_anything_else(packed: Project) -> None:
    whole = fatbin(packed, "sm_80")
    rng = random.Random(7)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(MAGIC) + 8, len(damaged))] = rng.randrange(256)
        try:
            list(images_in(bytes(damaged)))
        except ValueError:
            refused += 1
    assert refused > 30
    for size in range(17, len(whole), 37):
        with pytest.raises(ValueError, match="a fatbin"):
            list(images_in(whole[:size]))


@pytest.mark.parametrize(
    "content", [b"hello", b"a" * 23 + b"z" * 12, b"0123456789abcdef", b"x" * 272, b"abc" * 12 + b"!"]
)
def test_lz4_is_decompressed(content: bytes) -> None:
    block = lz4.block.compress(content, store_size=False)
    assert unpacked_lz4(block, len(content)) == content
    for wrong in (len(content) - 1, len(content) + 1):
        with pytest.raises(ValueError, match="of another size"):
            unpacked_lz4(block, wrong)


@pytest.mark.parametrize("block", [b"\x14a\x02\x00", b"\x14a\x00\x00", b"\x14a\x01", b"\xf0"])
def test_damaged_lz4_is_refused(block: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be decompressed"):
        unpacked_lz4(block, 9)


# ---- bad input


def test_an_nvcc_that_cannot_choose_is_an_error(tmp_path: Path) -> None:
    nvcc: dict[str, Any] = {"identity": "", "archs": ()}
    with pytest.raises(SettingsError, match=r"compress needs nvcc 12\.8 or newer, and this is 12\.6\.20"):
        find_fatbinary(Nvcc(found_nvcc().path, "12.6.20", **nvcc))
    assert find_fatbinary(Nvcc(found_nvcc().path, "12.8.61", **nvcc)).endswith("/fatbinary")
    alone = tmp_path / "bin" / "nvcc"
    alone.parent.mkdir()
    alone.write_text("#!/bin/sh\n")
    alone.chmod(0o755)
    with pytest.raises(ToolchainError, match=r"nvcc 13\.0\.88 has no fatbinary beside it"):
        find_fatbinary(Nvcc(str(alone), "13.0.88", **nvcc))


@pytest.mark.parametrize("value", ["fast", "SIZE", ""])
def test_an_unknown_mode_lists_the_valid_ones(packed: Project, value: str) -> None:
    output = packed.scons(f"COMPRESS={value}", ok=False).output
    assert f"command line [settings]: unknown compress {value!r}\n" in output
    assert "remedy: the valid ones are none, speed, balance, size" in output
