"""Names of what builds depend on: they say the same in another place, and digests are those of what is there."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
from kernelwright.core.dependencies import (
    dependency_name,
    installed_name,
    is_file,
    packaged_folder,
    path_of,
    present_digest,
)
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.toolchain.package_folder import package_folder

NAMES = {
    "project/kernels/a.h": "kernels/a.h",
    "project/.venv/lib/site-packages/acme/include/a.h": "/package:acme/include//a.h",
    "project/.venv/lib/site-packages/acme/include/more/b.h": "/package:acme/include/more//b.h",
    "project/.venv/lib/site-packages/acme/c.h": "/package:acme/include//../c.h",
    "project/.venv/lib/site-packages/acme/included.h": "/package:acme/include//../included.h",
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages in a project."""
    packaged_folder.cache_clear()
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    site = tmp_path / "project/.venv/lib/site-packages"
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "empty"), str(site)])
    return site


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("place", NAMES)
def test_a_file_has_a_name_that_leads_to_it(site: Path, tmp_path: Path, place: str) -> None:
    packages = {str(site / name): f"package:{name}" for name in ("acme/include", "acme/include/more")}
    top, path = tmp_path / "project", tmp_path / place
    name = dependency_name(path, top, packages)
    assert name == NAMES[place]
    assert path_of(top, name).resolve() == path and is_file(name)
    assert present_digest(top, name) == sha(place)
    path.write_text("edited")
    assert present_digest(top, name) == sha("edited")
    path.unlink()
    assert present_digest(top, name) == ""


def test_any_other_file_has_its_absolute_path_and_the_folder_of_a_package_is_the_first_in_the_path(site, tmp_path):
    other = tmp_path / "other.h"
    other.write_text("x")
    name = dependency_name(other, tmp_path / "project", {str(site / "acme/include"): "package:acme/include"})
    assert name == str(other) and path_of(tmp_path / "project", name) == other
    assert present_digest(tmp_path / "project", name) == sha("x")
    name = "/package:acme/include//a.h"
    (tmp_path / "empty/acme/include").mkdir(parents=True)
    assert present_digest(tmp_path, name) == "", "a compiler would not look into the other one either"
    (tmp_path / "empty/acme/include/a.h").write_text("first")
    assert present_digest(tmp_path, name) == sha("first")


@pytest.mark.parametrize("name", ["/package:nowhere/include//a.h", "/package:a\0//b", "/package:", "/package:acme"])
def test_what_is_in_no_package_is_absent(site: Path, tmp_path: Path, name: str) -> None:
    assert present_digest(tmp_path, name) == ""
    path_of(tmp_path, name)


def test_the_folder_of_a_package_is_found_and_one_that_no_package_has_is_an_error(site: Path) -> None:
    assert package_folder("package:acme/include", Where("k")) == site / "acme/include"
    with pytest.raises(DefinitionError) as caught:
        package_folder("package:nowhere/include", Where("k"), "sources")
    assert str(caught.value) == (
        "k: sources names 'nowhere/include', and no installed package has that folder\n  remedy: install the package "
        "that has nowhere, or mend the name: folders of packages are looked for in sys.path"
    )


def test_folders_and_surroundings_have_digests_too(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert present_digest(tmp_path, "/package:acme//include/") == sha("a.h\nmore")
    monkeypatch.setenv("HOME", "/nowhere")
    assert present_digest(tmp_path, "/environment/HOME") == sha("/nowhere")
    assert not is_file("/environment/HOME") and not is_file("/installed/numpy")


def test_a_part_of_a_tool_is_named_after_its_package(site: Path, tmp_path: Path) -> None:
    assert installed_name(site / "acme/include/a.h") == "/package:acme/include//a.h"
    assert installed_name(tmp_path / "cuda/lib64/libcudart_static.a") == str(tmp_path / "cuda/lib64/libcudart_static.a")
    (tmp_path / "empty/acme/include").mkdir(parents=True)
    packaged_folder.cache_clear()
    assert installed_name(site / "acme/include/a.h") == str(site / "acme/include/a.h"), "the name is that of another"
