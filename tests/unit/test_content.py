"""What wheels hold of a built package: the files that its manifest lists, and nothing that differs from them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.version import VERSION
from kernelwright.package.content import BuiltFiles, provider_files, read_built
from kernelwright.package.manifest import sealed_document
from kernelwright.package.project import Project
from kernelwright.package.source import Source
from kernelwright.runtime.loader import SCHEMA

PROJECT = Project("acme_demo", "Acme-Demo", "1.0", b"", "", {}, ())
SOURCE = Source("a" * 40, True, 0)
LICENCES = [{"name": "cuda", "version": "13.0.88", "license": "LicenseRef-NVIDIA-Proprietary", "what": "headers"}]
CODE = b".version 8.5\n.target sm_80\n"
SPLIT = {"folder": "../work", "packages": {"sm_80": "acme.demo_sm_80", "sm_90a": "acme.demo_sm_90a"}}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def build(top: Path, device_code: dict[str, Any] | None = None, files: tuple[str, ...] = ("_lib/k.so",)) -> Path:
    """A built package of one kernel, whose image for sm_80 is outside of it."""
    folder = top / "demo"
    listed = {}
    for name in ("__init__.py", *files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
        listed[name] = {"sha256": digest(name.encode()), "size": len(name)}
    (top / "work/k").mkdir(parents=True)
    (top / "work/k/sm_80.cubin").write_bytes(CODE)
    image = {"file": "k/sm_80.cubin", "sha256": digest(CODE), "size": len(CODE)}
    document = {
        "schema": SCHEMA,
        "package": "acme.demo",
        "tools": {},
        "licenses": LICENCES,
        **({"device_code": device_code} if device_code is not None else {}),
        "kernels": {"k": {"variants": [{"slug": "s", "units": [{}, {"images": {"sm_80": image}}]}]}},
        "files": listed,
    }
    (folder / "manifest.json").write_text(sealed_document(document))
    return folder


def test_a_package_that_is_not_split_is_read_without_images(tmp_path: Path) -> None:
    for number, code in enumerate([None, {"folder": "_images", "packages": {}}]):
        folder = build(tmp_path / str(number), code)
        built = read_built(folder, "acme.demo")
        digests = {name: digest(name.encode()) for name in ("__init__.py", "_lib/k.so")}
        assert built == BuiltFiles(
            folder, "acme.demo", (folder / "manifest.json").read_text(), digests, (), licenses=LICENCES
        )


def test_a_package_without_a_kernel_and_one_that_was_not_built_are_errors(tmp_path):
    folder = build(tmp_path, files=("backends/x.py",))
    with pytest.raises(KernelwrightError, match=r"the package acme\.demo has no built kernel") as caught:
        read_built(folder, "acme.demo")
    where = caught.value.where
    assert (where.stage, where.location) == ("wheel", str(folder / "manifest.json"))
    assert "build at least one" in (caught.value.remedy or "")
    assert read_built(build(tmp_path / "images", files=("_images/k.cubin",)), "acme.demo")
    with pytest.raises(KernelwrightError, match=r"manifest\.json: cannot be read") as caught:
        read_built(tmp_path, "demo")
    assert "run scons again" in (caught.value.remedy or "")


def test_a_wheel_of_device_code_says_what_it_belongs_to(tmp_path: Path) -> None:
    built = read_built(build(tmp_path, SPLIT), "acme.demo")
    files = provider_files(built, PROJECT, SOURCE, "sm_80")
    assert sorted(files) == [f"acme/demo_sm_80/{name}" for name in ("__init__.py", "k/sm_80.cubin", "manifest.json")]
    assert files["acme/demo_sm_80/k/sm_80.cubin"] == CODE
    init = files["acme/demo_sm_80/__init__.py"]
    assert b"device code of acme.demo for sm_80" in init
    manifest = json.loads(files["acme/demo_sm_80/manifest.json"])
    del manifest["digest"]
    assert manifest == {
        "schema": SCHEMA,
        "package": "acme.demo",
        "arch": "sm_80",
        "version": "1.0",
        "driver": "12.5",
        "kernelwright": VERSION,
        "licenses": LICENCES,
        "source": {"commit": "a" * 40, "dirty": True},
        "files": {
            "__init__.py": {"sha256": digest(init), "size": len(init)},
            "k/sm_80.cubin": {"sha256": digest(CODE), "size": len(CODE)},
        },
    }
    assert list(manifest["files"]) == sorted(manifest["files"])


@pytest.mark.parametrize("having", [{"source_libraries": ["_lib/a.cu-0123456789abcdef.so"]}, {"operators": {}}])
def test_code_in_libraries_of_sources_is_not_told_to_be_missing(tmp_path: Path, having: dict[str, Any]) -> None:
    built = read_built(build(tmp_path, SPLIT), "acme.demo")
    kernels = {"own": {**having, "variants": [{"archs": ["sm_90a"]}]}, "other": {"variants": [{"archs": ["sm_80"]}]}}
    built = replace(built, manifest=json.dumps({"kernels": kernels}))
    with pytest.raises(
        KernelwrightError, match=r"all code for sm_90a is in libraries of sources .* those of own; these stay"
    ):
        provider_files(built, PROJECT, SOURCE, "sm_90a")
