"""A package whose manifest or files were damaged or forged: an ImportError, or the right kernel."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from kernelwright.runtime import kernel as kernel_module
from kernelwright.runtime.loader import Loader, read_manifest
from support.project import Project

from .harness import fuzz, write_guard
from .strategies import as_json, damaged, nested, restructured
from .test_records import signed

NAMES = ("add_one", "scale")


@pytest.fixture
def package(built: Project, tmp_path: Path) -> Path:
    folder = tmp_path / "demo"
    if not folder.exists():
        shutil.copytree(built.folder / "build/demo", folder)
    return folder


@pytest.fixture
def inside_only(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No library is loaded that is not in the package."""
    load = kernel_module.load_kernel

    def checked(name: str, entry: dict[str, Any], path: Path) -> Any:
        assert path.resolve().is_relative_to(package.resolve()), path
        return load(name, entry, path)

    monkeypatch.setattr(kernel_module, "load_kernel", checked)


def unsigned(manifest: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(manifest.read_text())
    del document["digest"]
    return document


def loader_of(folder: Path) -> Loader:
    return Loader(str(folder / "__init__.py"), NAMES, "demo")


def use(folder: Path) -> None:
    """Load a kernel and use all that its object offers; ImportError names a file of the package, or what it needs."""
    loader = loader_of(folder)
    try:
        made = loader.kernel("scale")
    except ImportError as error:
        assert str(folder) in str(error) or "which is not installed\n  remedy: " in str(error)
        return
    assert "scale" in repr(made) and made.variants and made.devices is not None
    for variant in made.variants:
        assert isinstance(variant, dict)
    x = np.ones(4, np.float32)
    y = np.empty_like(x)
    made(x, y)
    assert (y == 2).all()


@fuzz(150, data=st.data())
def test_manifests_of_any_form(built: Project, package: Path, inside_only: None, data: Any) -> None:
    original = built.folder / "build/demo/manifest.json"
    document = unsigned(original)
    content = data.draw(
        st.one_of(
            damaged(original.read_bytes()),
            restructured(document).map(lambda value: signed(as_json(value).encode())),
            restructured(document["kernels"]).map(lambda v: signed(as_json({**document, "kernels": v}).encode())),
            restructured(document["kernels"]["scale"]).map(lambda v: forged(document, v)),
            restructured(document["files"]).map(lambda v: signed(as_json({**document, "files": v}).encode())),
            st.sampled_from([nested(100_000), nested(940), "{}", "[]", "null"]).map(lambda t: signed(t.encode())),
        )
    )
    (package / "manifest.json").write_bytes(content)
    with write_guard().only(package):
        use(package)


def forged(document: dict[str, Any], entry: Any) -> bytes:
    """A manifest with another entry of one kernel."""
    return signed(as_json({**document, "kernels": {**document["kernels"], "scale": entry}}).encode())


def test_the_unchanged_manifest_loads(package: Path, inside_only: None) -> None:
    made = loader_of(package).kernel("scale")
    assert made.variants == ({"factor": 2}, {"factor": 3})


@fuzz(60, data=st.data())
def test_a_damaged_file_of_a_package_is_never_loaded(built: Project, package: Path, data: Any) -> None:
    name = data.draw(st.sampled_from(["_lib/scale.so", "_runtime/kernel.py"]))
    content = (built.folder / "build/demo" / name).read_bytes()
    changed = data.draw(damaged(content))
    replace(package / name, changed)
    try:
        if changed == content:
            use(package)
        else:
            with pytest.raises(ImportError, match="was altered"):
                loader_of(package).kernel("scale")
    finally:
        replace(package / name, content)


def replace(path: Path, content: bytes) -> None:
    """Write a new file: this process may have the library in use, and would crash if it changed."""
    path.unlink()
    path.write_bytes(content)


OUTSIDE = ["../evil.so", "_lib/../../evil.so", "{outside}", "//{outside}", "_lib/../_lib/../../evil.so"]
OUTSIDE += ["..", "/", "_lib/x\0.so"]


@pytest.mark.parametrize("library", OUTSIDE)
def test_a_forged_manifest_cannot_name_a_library_outside_of_the_package(package, inside_only, library):
    evil = package.parent / "evil.so"
    shutil.copy(package / "_lib/scale.so", evil)
    library = library.format(outside=evil)
    document = unsigned(package / "manifest.json")
    document["kernels"]["scale"]["library"] = library
    document["files"][library] = {"sha256": hashlib.sha256(evil.read_bytes()).hexdigest(), "size": evil.stat().st_size}
    (package / "manifest.json").write_bytes(signed(as_json(document).encode()))
    read_manifest(package / "manifest.json")  # its digest is right
    with pytest.raises(ImportError, match=r"manifest\.json"):
        loader_of(package).kernel("scale")


def test_a_library_without_the_kernel_is_an_import_error(package: Path) -> None:
    document = unsigned(package / "manifest.json")
    document["kernels"]["scale"]["library"] = "_lib/add_one.so"
    (package / "manifest.json").write_bytes(signed(as_json(document).encode()))
    with pytest.raises(ImportError, match=r"add_one\.so"):
        loader_of(package).kernel("scale")
