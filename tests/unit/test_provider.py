"""What is said of device code that does not belong to its package. Its files are made without any tool."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.files import pretty_json
from kernelwright.package.manifest import sealed_manifest
from kernelwright.runtime.loader import INSTALL_AGAIN, SCHEMA, read_manifest, read_regular
from kernelwright.runtime.provider import Provider

CUBIN, FATBIN = "scale/default/cuda/sm_80.cubin", "scale/default/cuda/sm_80.fatbin"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def install(
    folder: Path,
    files: dict[str, bytes],
    *,
    version: str = "1.0",
    name: str = "",
    arch: str = "sm_80",
    of: str = "demo",
) -> Path:
    """Device code for an arch, as an installed wheel has it, in a folder of its own or of another name."""
    place = folder / (name or f"demo_{arch}")
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content)
    listed = {path: {"sha256": digest(content)} for path, content in files.items()}
    manifest = {"schema": SCHEMA, "package": of, "arch": arch, "version": version, "files": listed}
    (place / "manifest.json").write_text(sealed_manifest(pretty_json(manifest).removesuffix("\n}\n")))
    return place


def manifest_of(file: str, content: bytes, *archs: str) -> dict[str, Any]:
    """That of a package which lists one image for each arch."""
    image = {"file": file, "sha256": digest(content)}
    images = dict.fromkeys(archs, image)
    variants = [{"slug": "another", "units": []}, {"slug": "default", "units": [{}, {"images": images}]}]
    return {
        "schema": SCHEMA,
        "package": "demo",
        "device_code": {
            "name": "Demo",
            "version": "1.0",
            "packages": {arch: f"demo_{arch}" for arch in archs},
            "wheels": {arch: f"Demo-{arch.replace('_', '-')}" for arch in archs},
        },
        "kernels": {"scale": {"variants": variants}},
    }


def provider(folder: Path, *archs: str, file: str = CUBIN, manifest: dict[str, Any] | None = None) -> Provider:
    """That of a package whose image for each arch is ``code``."""
    manifest = manifest or manifest_of(file, b"code", *(archs or ("sm_80",)))
    return Provider(folder / "demo", manifest, "scale", read_manifest, read_regular, INSTALL_AGAIN)


def answer(found: Provider, archs: str = "sm_80", device: int = 0, capability: int = 80) -> str:
    return found.find("default", archs, device, capability)


@pytest.mark.parametrize("theirs", [{FATBIN: b"packed"}, {CUBIN: b"other"}, {}])
def test_another_build_of_one_version_is_said_to_be_one(tmp_path: Path, theirs: dict[str, bytes]) -> None:
    place = install(tmp_path, {"__init__.py": b"", **theirs})
    message, remedy = answer(provider(tmp_path)).splitlines()
    assert message == f" {place} belongs to another build of Demo 1.0, in which {CUBIN} is not the same"
    assert "pip install --force-reinstall --no-deps 'Demo==1.0' 'Demo-sm-80==1.0'" in remedy


def test_what_was_altered_or_removed_since_is_to_be_installed_again(tmp_path: Path) -> None:
    place, found = install(tmp_path, {CUBIN: b"code"}), provider(tmp_path)
    assert answer(found) == f"sm_80 {place / CUBIN}"
    (place / CUBIN).write_bytes(b"edited")
    assert f"{place / CUBIN}: was altered" in answer(found)
    (place / CUBIN).unlink()
    assert f"{place / CUBIN}: cannot be read (No such file or directory)" in answer(found)
    (place / "manifest.json").write_text("{")
    assert str(place / "manifest.json") in answer(found) and "--force-reinstall" in answer(found)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"of": "other"}, " {place} is not the device code of demo for sm_80\n  remedy: pip install --force-rein"),
        ({"arch": "sm_90", "name": "demo_sm_80"}, " {place} is not the device code of demo for sm_80\n  remedy: pip"),
        ({"version": "2.0"}, " Demo-sm-80 is installed in version 2.0, and Demo in 1.0"),
    ],
    ids=str,
)
def test_device_code_of_another_package_arch_or_version_is_not_used(tmp_path, more, message):
    place = install(tmp_path, {CUBIN: b"code"}, **more)
    assert answer(provider(tmp_path)).startswith(message.format(place=place))


def test_the_first_of_the_archs_that_is_installed_is_used(tmp_path: Path) -> None:
    found = provider(tmp_path)
    other = {"file": "scale/default/cuda/sm_90.cubin", "sha256": digest(b"more")}
    found._variants["default"]["units"][1]["images"]["sm_90"] = other
    found._place["packages"]["sm_90"], found._place["wheels"]["sm_90"] = "demo_sm_90", "Demo-sm-90"
    assert "is not installed: sm_90 or sm_80 (installed: none)" in answer(found, "sm_90 sm_80", 0, 90)
    older = install(tmp_path, {CUBIN: b"code"})
    assert answer(found, "sm_90 sm_80", 0, 90) == f"sm_80 {older / CUBIN}"
    best = install(tmp_path, {other["file"]: b"more"}, arch="sm_90")
    assert answer(found, "sm_90 sm_80", 0, 90) == f"sm_90 {best / other['file']}"
    (best / "manifest.json").write_text("{}")
    assert "demo_sm_90/manifest.json: has another schema" in answer(found, "sm_90 sm_80", 0, 90)


def test_what_is_not_installed_is_said_with_the_command_that_installs_it(tmp_path: Path) -> None:
    found = provider(tmp_path, "sm_90a", "sm_80", "compute_80")
    message, remedy = answer(found, "sm_90a compute_80", 1, 90).splitlines()
    missing = "cuda:1 is an sm_90, and the device code for it is not installed: sm_90a or compute_80"
    assert message == f" {missing} (installed: none)"
    assert remedy == "  remedy: pip install 'Demo-sm-90a==1.0'"
    place = install(tmp_path, {CUBIN: b"code"})
    assert f" {missing} (installed: sm_80)" in answer(found, "sm_90a compute_80", 1, 90)
    assert answer(found, "sm_90a sm_80 compute_80", 0, 90) == f"sm_80 {place / CUBIN}"


def test_device_code_elsewhere_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = install(tmp_path / "elsewhere", {CUBIN: b"code"})
    info = tmp_path / "elsewhere" / "Demo_sm_80-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Demo-sm-80\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kernelwright.device_code]\ndemo_sm_75 = absent\ndemo_sm_80 = demo_sm_80\n")
    found = provider(tmp_path)
    assert "not installed" in answer(found)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    assert answer(found) == f"sm_80 {place / CUBIN}"


def test_a_build_that_was_not_packed_has_its_device_code_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "work" / CUBIN).parent.mkdir(parents=True)
    (tmp_path / "work" / CUBIN).write_bytes(b"code")
    manifest = manifest_of(CUBIN, b"code", "sm_80")
    manifest["device_code"] = {"folder": "../work", "packages": {"sm_80": "demo_sm_80"}}
    found = provider(tmp_path, manifest=manifest)
    assert answer(found) == f"sm_80 {tmp_path / 'work' / CUBIN}"
    (tmp_path / "work" / CUBIN).write_bytes(b"edited")
    assert answer(found).endswith("\n  remedy: scons")
    manifest["device_code"]["packages"] = {}
    found = provider(tmp_path, manifest=manifest)
    assert answer(found).endswith("\n  remedy: install the package again")


@pytest.mark.parametrize("file", ["../outside.cubin", "/outside.cubin", "scale/../../outside.cubin"])
def test_an_image_outside_of_its_package_is_refused(tmp_path: Path, file: str) -> None:
    install(tmp_path, {CUBIN: b"code"})
    (tmp_path / "outside.cubin").write_bytes(b"code")
    assert answer(provider(tmp_path, file=file)) == f" the manifest lists {file!r}, which is no file of the package"


@pytest.mark.parametrize("variant", ["other", "without units"])
def test_a_manifest_of_another_form_is_named(tmp_path: Path, variant: str) -> None:
    manifest = manifest_of(CUBIN, b"code", "sm_80")
    manifest["kernels"]["scale"]["variants"].append({"slug": "without units", "units": [{}]})
    said = provider(tmp_path, manifest=manifest).find(variant, "sm_80", 0, 80)
    place = tmp_path / "demo" / "manifest.json"
    assert said == f" {place}: does not list its device code in the form of schema {SCHEMA}"


def test_a_wheel_variant_has_the_next_best_code_or_says_where_to_get_the_best(tmp_path: Path) -> None:
    manifest = manifest_of(CUBIN, b"code", "sm_80", "sm_90a")
    images = manifest["kernels"]["scale"]["variants"][1]["units"][1]["images"]
    images["sm_90a"] = {"file": "scale/default/cuda/sm_90a.cubin", "sha256": digest(b"other")}
    manifest["device_code"] = {"folder": "_images", "packages": {}, "label": "sm_80", "name": "Demo", "version": "1.0"}
    manifest["files"] = {f"_images/{CUBIN}": {"sha256": digest(b"code")}}
    place = tmp_path / "demo/_images" / CUBIN
    place.parent.mkdir(parents=True)
    place.write_bytes(b"code")
    found = provider(tmp_path, manifest=manifest)
    assert answer(found, "sm_90a sm_80") == f"sm_80 {place}"
    message, remedy = answer(found, "sm_90a", capability=90).splitlines()
    assert message.endswith("an sm_90, and the device code for it is not installed: sm_90a (installed: sm_80)")
    assert remedy.startswith("  remedy: this is the wheel variant sm_80, for other machines.")
    place.write_bytes(b"altered")
    assert "was altered, or belongs to another build" in answer(found, "sm_80")
