"""Compressed device code: what is built again, what is in it, which driver it needs, bad input.

What a damaged container is taken for is in ``tests/unit/test_fatbin_images.py`` and ``tests/unit/test_verify_code.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernelwright.package.device_code import arch_problems, device_archs
from kernelwright.toolchain.fatbin import MAGIC, find_fatbinary, images_in
from kernelwright.toolchain.nvcc import Nvcc, find_nvcc
from support.project import Project
from support.wheels import Machine, built_wheel, driver, inside, machine, require_well, unpack, wheels_of, without_dist

__all__ = ["driver", "machine"]

CUDA = "build/kernels/demo/scale/dtype-float32/cuda"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A committed project whose wheel was built with the least compression; tests must not change it."""
    project = without_dist(built_wheel(tmp_path_factory), tmp_path_factory.mktemp("packed") / "copy")
    project.scons("-j2", "wheel", "COMPRESS=speed")
    return project


def fatbin(project: Project, arch: str) -> bytes:
    return (project.folder / CUDA / f"{arch}.fatbin").read_bytes()


def test_the_wheel_says_its_mode_and_has_the_same_code_and_none_uncompressed(packed: Project) -> None:
    files = inside(wheels_of(packed)["main"])
    assert b'"compress": {\n  "mode": "speed",\n  "cuda": "12.0"\n }' in files["demo/manifest.json"]
    library = files["demo/_lib/scale.so"]
    assert library.count(MAGIC) == 6 and set(device_archs(library)) == {"sm_80", "sm_90a", "ptx sm_80"}
    for arch in ("sm_80", "sm_90a"):
        (image,) = images_in(fatbin(packed, arch))
        cubin = (packed.folder / CUDA / f"{arch}.cubin").read_bytes()
        assert (image.arch, image.content) == (arch, cubin)
        assert cubin not in library and fatbin(packed, arch) in library
    (image,) = images_in(fatbin(packed, "compute_80"))
    assert image.arch == "compute_80" and image.content is not None
    assert b".target sm_80" in image.content, "fatbinary takes comments out of PTX"
    plain = bytearray(fatbin(packed, "sm_90a"))
    plain[58] &= 0x0F  # without the flag of the suffix
    assert list(arch_problems("scale", {"sm_90a"}, fatbin(packed, "sm_90a"), exact=True)) == []
    assert list(arch_problems("scale", {"sm_90a"}, bytes(plain), exact=True)) == [
        "kernel scale has no device code for sm_90a, which the manifest lists",
        "kernel scale has device code for sm_90, which the manifest does not list",
    ]


def test_another_mode_packs_again_and_compiles_no_device_code(packed: Project, tmp_path: Path) -> None:
    project = packed.copied(tmp_path / "copy")
    labels = project.scons("-j2", "--replace", "wheel", "COMPRESS=balance", "CACHE_DIR=").labels
    assert labels == {"CC": 2, "FATBIN": 9, "LINK": 2, "PACKAGE": 1, "WHEEL": 1, "WRAP": 2}
    manifest = inside(wheels_of(project)["main"])["demo/manifest.json"].decode()
    assert '"compress": {\n  "mode": "balance",\n  "cuda": "12.4"\n }' in manifest
    assert len(fatbin(project, "sm_90a")) < len(fatbin(packed, "sm_90a"))
    require_well(wheels_of(project)["main"])
    assert "FATBIN" not in project.scons("-j2", "--replace", "wheel").labels
    assert not list((project.folder / "build").rglob("*.fatbin"))
    files = inside(wheels_of(project)["main"])
    assert b'"compress"' not in files["demo/manifest.json"] and MAGIC not in files["demo/_lib/scale.so"]


def test_the_script_repeats_the_step(packed: Project, tmp_path: Path) -> None:
    project = packed.copied(tmp_path / "copy")
    before = fatbin(project, "sm_90a")
    (project.folder / CUDA / "sm_90a.fatbin").unlink()
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["FATBINARY"] = find_fatbinary(Nvcc(find_nvcc("", dict(os.environ)), "13.0.88", "", ()))
    subprocess.run(["sh", str(project.folder / CUDA / "pack_sm_90a.sh")], check=True, env=environment)
    assert fatbin(project, "sm_90a") == before


def test_the_driver_gets_the_container(packed: Project, machine: Machine) -> None:
    assert machine.call(packed.folder / "build", STANDIN_VERSION="13000") == "supported: True\n"
    assert machine.loads == [f"fatbin sm_90 {len(fatbin(packed, 'sm_90a'))}"]


def test_split_and_compressed_code_needs_a_driver_that_can_read_it(packed, machine, tmp_path):
    project = packed.copied(tmp_path / "copy")
    project.scons("-j2", "--replace", "wheel", "COMPRESS=size", "SPLIT=arch")
    wheels = wheels_of(project)
    variants = ("add_one/default", "scale/dtype-float16", "scale/dtype-float32")
    code = {name for name in inside(wheels["sm_80"]) if "/cuda/" in name}
    assert code == {f"demo_sm_80/{variant}/cuda/sm_80.fatbin" for variant in variants}
    require_well(*wheels.values())
    everything = unpack(tmp_path / "all", *wheels.values())
    output = machine.call(everything, STANDIN_VERSION="12020")
    assert (
        "dtype-float32 for cuda:0 (sm_90a) needs a driver for CUDA 13.0 or newer; this one is for CUDA 12.2" in output
    )
    assert machine.loads == []
    assert output.endswith("supported: False\n")
    for more in ((), ("COMPRESS=size",)):  # in files of the build folder, and in the library itself
        if more:
            project.scons("-j2", *more)
        output = machine.call(project.folder / "build", STANDIN_VERSION="12020")
        assert "needs a driver for CUDA 13.0" in output and output.endswith("supported: False\n")
    assert machine.call(everything, STANDIN_VERSION="13000") == "supported: True\n"
    assert machine.loads == [f"fatbin sm_90 {len(fatbin(project, 'sm_90a'))}"]
