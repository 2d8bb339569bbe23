"""How a wheel is written: what is in it, in which order, and that nothing of the machine or the moment is."""

from __future__ import annotations

import csv
import io
import time
import zipfile
from pathlib import Path

from kernelwright.core.version import VERSION
from kernelwright.wheel.archive import wheel_name, write_wheel
from kernelwright.wheel.project import Project

PROJECT = Project("acme_demo", "Acme-Demo", "1.0", b"Name: Acme-Demo\n", "", {}, ())
SECONDS = 1_700_000_001
PLATFORM = "manylinux_2_17_x86_64.manylinux2014_x86_64"
INFO = "acme_demo-1.0.dist-info"


def written(folder: Path, project: Project = PROJECT, platform: str = PLATFORM) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / wheel_name(project, platform)
    write_wheel(path, project, {"demo/b": b"bb" * 500, "demo/a": b"a"}, platform, SECONDS)
    return path


def test_the_name_has_project_version_and_platform(tmp_path: Path) -> None:
    assert written(tmp_path).name == f"acme_demo-1.0-py3-none-{PLATFORM}.whl"


def test_files_come_first_then_what_describes_them_each_in_order(tmp_path: Path) -> None:
    project = Project("acme_demo", "Acme-Demo", "1.0", b"", "[x]\n", {"a/LICENSE": b"do", "NOTICE": b""}, ())
    with zipfile.ZipFile(written(tmp_path, project)) as archive:
        assert archive.namelist() == [
            "demo/a",
            "demo/b",
            *(f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "entry_points.txt")),
            *(f"{INFO}/licenses/{name}" for name in ("NOTICE", "a/LICENSE")),
            f"{INFO}/RECORD",
        ]
        assert archive.read(f"{INFO}/licenses/a/LICENSE") == b"do"
        assert archive.read(f"{INFO}/entry_points.txt") == b"[x]\n"
        listed = [row[0] for row in csv.reader(io.StringIO(archive.read(f"{INFO}/RECORD").decode()))]
        assert sorted(listed) == sorted(archive.namelist())


def test_what_describes_a_wheel_names_every_platform(tmp_path: Path) -> None:
    with zipfile.ZipFile(written(tmp_path)) as archive:
        assert archive.read(f"{INFO}/METADATA") == b"Name: Acme-Demo\n"
        assert archive.read(f"{INFO}/WHEEL").decode().splitlines() == [
            "Wheel-Version: 1.0",
            f"Generator: kernelwright {VERSION}",
            "Root-Is-Purelib: false",
            "Tag: py3-none-manylinux_2_17_x86_64",
            "Tag: py3-none-manylinux2014_x86_64",
        ]
    with zipfile.ZipFile(written(tmp_path, platform="any")) as archive:
        text = archive.read(f"{INFO}/WHEEL").decode()
        assert "Root-Is-Purelib: true\nTag: py3-none-any\n" in text


def test_all_files_are_compressed_and_have_the_time_and_the_permissions_of_all(tmp_path: Path) -> None:
    with zipfile.ZipFile(written(tmp_path)) as archive:
        for entry in archive.infolist():
            assert entry.date_time == (*time.gmtime(SECONDS)[:5], time.gmtime(SECONDS)[5] // 2 * 2)
            assert (entry.external_attr >> 16, entry.create_system) == (0o100644, 3)
            assert entry.compress_type == zipfile.ZIP_DEFLATED
        assert archive.getinfo("demo/b").compress_size < 100


def test_the_same_content_makes_the_same_bytes(tmp_path: Path) -> None:
    assert written(tmp_path / "1").read_bytes() == written(tmp_path / "2").read_bytes()
