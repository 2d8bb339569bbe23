"""What gets into a wheel, and its bytes: verified files, one time, one order, plain permissions, the right tags."""

from __future__ import annotations

import hashlib
import json
import os
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright.core.errors import KernelwrightError
from kernelwright.package import platform
from kernelwright.package.archive import write_wheel
from kernelwright.package.content import BuiltFiles, package_files, provider_files, read_built
from kernelwright.package.manifest import sealed_document
from kernelwright.package.project import Project, read_project
from kernelwright.package.source import Source

SOURCE = Source("a" * 40, False, 1_700_000_000)
TIME = 1_700_000_000
INFO = "demo-1.0.dist-info"


def project_of(folder: Path, **more: Any) -> Project:
    return read_project(folder, {"project": {"name": "demo", "version": "1.0", **more}})


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ---- the bytes of an archive


FILES = {"demo/b.py": b"b", "demo/a.py": b"a" * 5000, "demo/_lib/k.so": bytes(range(256))}


def test_equal_content_gives_equal_bytes_whatever_its_order_and_wherever(tmp_path, monkeypatch):
    project, paths = project_of(tmp_path), [tmp_path / str(number) / "demo-1.0-py3-none-any.whl" for number in range(2)]
    for path, names in zip(paths, (list(FILES), sorted(FILES)), strict=True):
        path.parent.mkdir()
        write_wheel(path, project, {name: FILES[name] for name in names}, "any", TIME)
        # The second one in another time zone, with other permissions of new files.
        before = os.umask(0o077)
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
    os.umask(before)
    monkeypatch.delenv("TZ")
    time.tzset()
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with zipfile.ZipFile(paths[0]) as archive:
        entries = archive.infolist()
        assert archive.testzip() is None
    assert {entry.date_time for entry in entries} == {(2023, 11, 14, 22, 13, 20)}
    assert {(entry.external_attr, entry.create_system) for entry in entries} == {(0o100644 << 16, 3)}
    assert [entry.filename for entry in entries] == [
        *sorted(FILES),
        *(f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD")),
    ]


# ---- the platform


def analysis(policy: str, *libraries: str) -> SimpleNamespace:
    """What auditwheel finds out about a wheel."""
    references = {policy: SimpleNamespace(libs=dict.fromkeys(libraries))}
    return SimpleNamespace(
        overall_policy=SimpleNamespace(name=policy), external_refs=references, versioned_symbols={"libc.so.6": set()}
    )


@pytest.mark.parametrize(
    ("policy", "tag"),
    [
        ("manylinux1_x86_64", "manylinux_2_5_x86_64"),
        ("manylinux2010_x86_64", "manylinux_2_12_x86_64"),
        ("manylinux2014_x86_64", "manylinux_2_17_x86_64"),
        ("manylinux_2_28_x86_64", "manylinux_2_28_x86_64"),
    ],
)
def test_the_tag_names_the_oldest_glibc(monkeypatch: pytest.MonkeyPatch, policy: str, tag: str) -> None:
    monkeypatch.setattr(platform, "_analyse", lambda wheel, family, others: analysis(policy))
    assert platform.platform_tag(Path("x.whl"), "x86_64") == tag


@pytest.mark.parametrize("policy", ["linux_x86_64", "musllinux_1_2_x86_64"])
def test_a_wheel_that_runs_on_no_manylinux_has_no_tag(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setattr(platform, "_analyse", lambda wheel, family, others: analysis(policy, "libgomp.so.1"))
    with pytest.raises(KernelwrightError, match=r"it runs on no manylinux system: it needs libgomp\.so\.1"):
        platform.platform_tag(Path("x.whl"), "x86_64")


# ---- what is in it

CODE = {"sm_90": b"code for sm_90", "sm_90a": b"code for sm_90a", "compute_90": b"text for compute_90"}


def split_package(folder: Path) -> BuiltFiles:
    """A package whose device code is to have wheels of its own, as a build leaves it."""
    images = {}
    for arch, code in CODE.items():
        images[arch] = {"file": f"scale/default/cuda/{arch}.bin", "sha256": digest(code), "size": len(code)}
        path = folder / "work" / images[arch]["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(code)
    files = {"__init__.py": b"import this", "_lib/scale.so": b"a library"}
    for name, content in files.items():
        (folder / "demo" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "demo" / name).write_bytes(content)
    manifest = {
        "package": "demo",
        "tools": {},
        "device_code": {"folder": "../work", "packages": {arch: f"demo_{arch}" for arch in CODE}},
        "kernels": {"scale": {"variants": [{"units": [{"images": images}, {}]}]}},
        "files": {name: {"sha256": digest(content)} for name, content in files.items()},
    }
    (folder / "demo/manifest.json").write_text(sealed_document(manifest))
    return read_built(folder / "demo", "demo")


def test_a_wheel_has_the_files_that_the_manifest_lists_and_the_manifest(tmp_path: Path) -> None:
    built = split_package(tmp_path)
    (tmp_path / "demo/notes.txt").write_text("mine")
    files = package_files(built, project_of(tmp_path), SOURCE)
    assert sorted(files) == ["demo/__init__.py", "demo/_lib/scale.so", "demo/manifest.json"]
    manifest = json.loads(files["demo/manifest.json"])
    assert manifest["source"] == {"commit": SOURCE.commit, "dirty": False}
    assert manifest["device_code"] == {
        "name": "demo",
        "version": "1.0",
        "packages": {arch: f"demo_{arch}" for arch in CODE},
        "wheels": {"sm_90": "demo-sm-90", "sm_90a": "demo-sm-90a", "compute_90": "demo-compute-90"},
    }


@pytest.mark.parametrize("name", ["__init__.py", "_lib/scale.so"])
def test_a_file_that_was_altered_since_the_build_gets_into_no_wheel(tmp_path: Path, name: str) -> None:
    built = split_package(tmp_path)
    path = tmp_path / "demo" / name
    path.write_bytes(path.read_bytes().swapcase())
    with pytest.raises(KernelwrightError, match="it is not the file that the manifest lists") as caught:
        package_files(built, project_of(tmp_path), SOURCE)
    assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(KernelwrightError, match="it cannot be read: No such file"):
        package_files(built, project_of(tmp_path), SOURCE)
    for arch, other in (("sm_90", "sm_90a"), ("sm_90a", "sm_90")):
        built = split_package(tmp_path)
        (tmp_path / f"work/scale/default/cuda/{arch}.bin").write_bytes(CODE[arch].swapcase())
        with pytest.raises(KernelwrightError, match="it is not the file that the manifest lists"):
            provider_files(built, project_of(tmp_path), SOURCE, arch)
        provider_files(built, project_of(tmp_path), SOURCE, other)
