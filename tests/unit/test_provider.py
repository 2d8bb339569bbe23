"""What is said of device code that does not belong to its package. Its files are made without any tool."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from kernelwright.files import pretty_json
from kernelwright.package.loader import SCHEMA
from kernelwright.package.manifest import sealed_manifest
from kernelwright.package.provider import Provider

CUBIN, FATBIN = "scale/default/cuda/sm_80.cubin", "scale/default/cuda/sm_80.fatbin"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def install(folder: Path, files: dict[str, bytes], version: str = "1.0") -> Path:
    """Device code for sm_80, as an installed wheel has it."""
    place = folder / "demo_sm_80"
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    listed = {name: {"sha256": digest(content)} for name, content in files.items()}
    manifest = {"schema": SCHEMA, "package": "demo", "arch": "sm_80", "version": version, "files": listed}
    (place / "manifest.json").write_text(sealed_manifest(pretty_json(manifest).removesuffix("\n}\n")))
    return place


def provider(folder: Path, file: str, content: bytes) -> Provider:
    """That of a package whose manifest lists one image."""
    image = {"file": file, "sha256": digest(content)}
    manifest: dict[str, Any] = {
        "package": "demo",
        "device_code": {
            "name": "Demo",
            "version": "1.0",
            "packages": {"sm_80": "demo_sm_80"},
            "wheels": {"sm_80": "Demo-sm-80"},
        },
        "kernels": {"scale": {"variants": [{"slug": "default", "units": [{"images": {"sm_80": image}}]}]}},
    }
    return Provider(folder / "demo", manifest, "scale")


def test_what_belongs_together_is_found(tmp_path: Path) -> None:
    place = install(tmp_path, {CUBIN: b"code"})
    assert provider(tmp_path, CUBIN, b"code").find("default", "sm_80", 0, 80) == f"sm_80 {place / CUBIN}"


@pytest.mark.parametrize("theirs", [{FATBIN: b"packed"}, {CUBIN: b"other"}, {}])
def test_another_build_of_one_version_is_said_to_be_one(tmp_path: Path, theirs: dict[str, bytes]) -> None:
    place = install(tmp_path, {"__init__.py": b"", **theirs})
    answer = provider(tmp_path, CUBIN, b"code").find("default", "sm_80", 0, 80)
    message, remedy = answer.splitlines()
    assert message == f" {place} belongs to another build of Demo 1.0, in which {CUBIN} is not the same"
    assert "pip install --force-reinstall --no-deps 'Demo==1.0' 'Demo-sm-80==1.0'" in remedy


def test_what_was_altered_or_removed_since_is_to_be_installed_again(tmp_path: Path) -> None:
    place = install(tmp_path, {CUBIN: b"code"})
    found = provider(tmp_path, CUBIN, b"code")
    (place / CUBIN).write_bytes(b"edited")
    assert f"{place / CUBIN}: was altered" in found.find("default", "sm_80", 0, 80)
    (place / CUBIN).unlink()
    assert f"{place / CUBIN}: cannot be read (No such file or directory)" in found.find("default", "sm_80", 0, 80)


def test_another_version_is_named(tmp_path: Path) -> None:
    install(tmp_path, {CUBIN: b"code"}, "2.0")
    answer = provider(tmp_path, CUBIN, b"code").find("default", "sm_80", 0, 80)
    assert "Demo-sm-80 is installed in version 2.0, and Demo in 1.0" in answer
