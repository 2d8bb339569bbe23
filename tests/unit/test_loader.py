"""The loader of a package: what it verifies before anything runs, which kernel it gives, and what it says otherwise.

The packages are made here, of text: nothing is compiled, and a backend is a module that notes that it was run.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kernelwright.core.files import pretty_json
from kernelwright.package.assemble import RUNTIME_FOLDER
from kernelwright.package.manifest import sealed_document
from kernelwright.runtime.loader import SCHEMA, load_needed, read_manifest
from support.disks import put_in_place

NAME = "made_by_hand"

INIT = """\
from ._runtime.loader import Loader

loader = Loader(__file__, ("scale", "add"), __name__)
"""

BACKEND = """\
from . import first, second


def load(loader, name, entry):
    return __name__, name, entry
"""

FILES = {
    "_lib/scale.so": "the library of scale",
    "_lib/add.so": "the library of add",
    "_runtime/one.py": BACKEND,
    "_runtime/two.py": "from . import one\n\n\ndef load(*given):\n    return __name__, *one.load(*given)[1:]\n",
    "_runtime/first.py": "",
    "_runtime/second.py": "",
    "_runtime/provider.py": "class Provider:\n    def __init__(self, *given):\n        self.given = given\n",
}


def entry_of(name: str, **more: Any) -> dict[str, Any]:
    """A kernel's part of the manifest."""
    variant = {"slug": "default", "config": {}, "units": [{"target": "llvm"}], "arguments": []}
    return {"backends": ["one", "two"], "doc": "", "library": f"_lib/{name}.so", "variants": [variant], **more}


def manifest_of(**more: Any) -> dict[str, Any]:
    """A manifest that fits the files."""
    files = {name: {"sha256": hashlib.sha256(text.encode()).hexdigest()} for name, text in FILES.items()}
    backends = {
        "one": {"modules": ["one.py", "first.py", "second.py"], "needs": [["json", "json>=1"]]},
        "two": {"modules": ["two.py", "one.py", "first.py", "second.py"], "needs": []},
    }
    kernels = {name: entry_of(name) for name in ("scale", "add")}
    return {"schema": SCHEMA, "package": NAME, "backends": backends, "kernels": kernels, "files": files, **more}


class Package:
    """A package in a folder, which is in the search path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in FILES.items():
            self.write(name, text)
        self.write("__init__.py", INIT)
        self.write("_runtime/__init__.py", "")
        shutil.copy(RUNTIME_FOLDER / "loader.py", folder / "_runtime")
        self.seal(manifest_of())

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def seal(self, document: dict[str, Any]) -> None:
        """Write a manifest whose digest is right."""
        self.write("manifest.json", sealed_document(document))

    def change(self, kernel: str, **more: Any) -> None:
        """Seal a manifest with other keys of one kernel; None takes a key out."""
        document = manifest_of()
        entry = document["kernels"][kernel] | more
        document["kernels"][kernel] = {key: value for key, value in entry.items() if value is not None}
        self.seal(document)

    @property
    def loader(self) -> Any:
        return importlib.import_module(NAME).loader


def ours() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == NAME}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Package(tmp_path / NAME)
    for name in ours():
        del sys.modules[name]


def test_a_whole_package_gives_its_kernels(package: Package) -> None:
    module, name, entry = package.loader.kernel("scale")
    assert (module, name, entry["library"]) == (f"{NAME}._runtime.one", "scale", "_lib/scale.so")
    assert package.loader.library("add") == package.folder / "_lib/add.so"
    path = package.folder / "_lib/add.so"
    path.write_text(path.read_text().swapcase())
    with pytest.raises(ImportError, match=r"_lib/add\.so: was altered"):
        package.loader.library("add")


def test_operators_say_which_pytorch_they_need_and_the_threads_of_other_kernels_need_none(package: Package) -> None:
    document = manifest_of()
    document["backends"]["one"]["needs"] = [["absent_torch", "absent_torch>=2.4"]]
    document["kernels"]["scale"] = entry_of("scale", operators={"absent_torch": "absent_torch==2.13.*"})
    document["kernels"]["add"]["backends"] = ["two"]
    package.seal(document)
    with pytest.raises(
        ImportError, match=r"needs absent_torch, which is not installed\n  remedy: pip install 'absent_"
    ) as why:
        package.loader.kernel("scale")
    assert "==2.13.*'" in str(why.value)
    with pytest.raises(RuntimeError, match="has CPU code"):
        package.loader.num_threads()
    assert ("add", "") in package.loader._kernels


@pytest.mark.parametrize("module", ["one.py", "first.py", "second.py"])
@pytest.mark.parametrize("damage", ["altered", "missing"])
def test_each_module_that_a_backend_lists_is_verified_before_any_of_them_runs(package, module, damage):
    path = package.folder / "_runtime" / module
    if damage == "missing":
        path.unlink()
    else:
        path.write_text(f"{path.read_text()}\nEVIL = True\n")
    loader = package.loader
    with pytest.raises(ImportError) as caught:
        loader.kernel("scale")
    assert str(caught.value).startswith(f"{path}: {'cannot be read' if damage == 'missing' else 'was altered'}")
    assert not {f"{NAME}._runtime.{name}" for name in ("one", "first", "second")} & ours().keys()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", ["manifest.json", "_lib/scale.so"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(package: Package, name: str, kind: str) -> None:
    (package.folder / name).unlink()
    put_in_place(package.folder / name, kind)
    with pytest.raises(
        ImportError, match=rf"{name}: cannot be read \(it is no regular file\); install the package again"
    ):
        package.loader.library("scale")


def test_a_link_to_a_file_is_followed(package: Package) -> None:
    """Some installers link files instead of copying them."""
    for name in ("manifest.json", "_lib/scale.so"):
        path = package.folder / name
        path.symlink_to(path.rename(path.with_suffix(".kept")))
    assert package.loader.library("scale") == package.folder / "_lib/scale.so"


def test_what_finds_device_code_is_verified_before_it_runs(package: Package) -> None:
    folder, manifest, name, read, *_ = package.loader.provider("scale").given
    assert (folder, manifest["package"], name) == (package.folder, NAME, "scale")
    assert read(folder / "manifest.json") == manifest
    del sys.modules[f"{NAME}._runtime.provider"]
    package.write("_runtime/provider.py", "raise SystemExit('it runs')")
    with pytest.raises(ImportError, match=r"provider\.py: was altered"):
        package.loader.provider("scale")


def test_a_library_is_not_given_if_its_launcher_was_altered(package: Package) -> None:
    package.change("scale", launcher="_lib/add.so")
    assert package.loader.library("scale") == package.folder / "_lib/scale.so"
    (package.folder / "_lib/add.so").write_text("another launcher")
    with pytest.raises(ImportError, match=r"_lib/add\.so: was altered"):
        package.loader.library("scale")


@pytest.mark.parametrize(
    "more",
    [
        *({"variants": found} for found in ([], [{"slug": "default", "config": {}}])),
        *({"backends": None}, {"doc": None}, {"library": 5}, {"backward": ["x"]}),
    ],
    ids=str,
)
def test_a_kernel_in_another_form_is_an_error_that_names_it(package: Package, more: dict[str, Any]) -> None:
    package.change("scale", **more)
    with pytest.raises(ImportError, match=rf"has no kernel 'scale' in the form of schema {SCHEMA}$"):
        package.loader.kernel("scale")
    assert package.loader.kernel("add")[1] == "add"


def test_a_kernel_without_a_library_and_a_backend_in_another_form_are_errors_that_name_it(package: Package) -> None:
    package.change("scale", library=None)
    with pytest.raises(ImportError, match=r"manifest\.json: lists no library of kernel 'scale'$"):
        package.loader.library("scale")
    assert package.loader.library("add").name == "add.so"
    for described in (None, [], {"modules": [], "needs": []}, {"modules": ["one.py"], "needs": [["json"]]}):
        document = manifest_of()
        document["backends"]["one"] = described
        package.seal(document)
        del sys.modules[NAME]
        with pytest.raises(ImportError, match="does not describe the backend 'one'"):
            package.loader.kernel("scale")


UNSEALED: dict[str, tuple[Callable[[dict[str, Any]], str], str]] = {
    "without its last line": (pretty_json, "was altered"),
    "with keys behind the digest": (
        lambda document: sealed_document(document).removesuffix("\n}\n") + ',\n "kernels": {}\n}\n',
        "was altered",
    ),
    "of another schema": (
        lambda document: sealed_document({**document, "schema": SCHEMA + 1}),
        f"has another schema than {SCHEMA}",
    ),
}


@pytest.mark.parametrize("kind", UNSEALED)
def test_a_manifest_without_a_seal_or_of_another_schema_is_refused(package: Package, kind: str) -> None:
    text, message = UNSEALED[kind]
    path = package.write("manifest.json", text(manifest_of()))
    with pytest.raises(ImportError, match=message):
        read_manifest(path)
    with pytest.raises(ImportError, match=message):
        package.loader.kernel("scale")


def test_a_kernel_is_loaded_once_for_each_backend_and_what_is_not_there_is_an_attribute_error(package):
    loader = package.loader
    by_default, one, two = (loader.kernel("scale", backend) for backend in ("", "one", "two"))
    assert by_default is one and loader.kernel("scale", "two") is two
    assert [made[0] for made in (one, two)] == [f"{NAME}._runtime.{module}" for module in ("one", "two")]
    assert loader.kernel("add", "two")[1] == "add"
    with pytest.raises(AttributeError, match=r"has no kernel 'scael'; it has scale, add$"):
        package.loader.kernel("scael")
    with pytest.raises(AttributeError, match="kernel 'add' of 'made_by_hand' is built for one, two, not 'three'"):
        package.loader.kernel("add", "three")


class Preloaded:
    """A kernel that notes for which device it was loaded ahead."""

    def __init__(self, *devices: str) -> None:
        self.devices, self.asked = frozenset(devices), list[str]()

    def preload(self, device: str) -> None:
        if device.partition(":")[0] not in self.devices:
            raise ValueError(f"not built for {device}")
        self.asked.append(device)


def test_kernels_are_loaded_ahead_for_the_devices_that_they_are_built_for(package: Package) -> None:
    loader = package.loader
    both, cpu = Preloaded("cpu", "cuda"), Preloaded("cpu")
    loader._kernels.update({("scale", ""): both, ("add", ""): cpu})
    loader.preload("cuda:1")
    loader.preload()
    assert (both.asked, cpu.asked) == (["cuda:1", "cpu"], ["cpu"])
    with pytest.raises(ValueError, match="not built for rocm"):
        loader.preload("rocm")


GAPS = [
    {"kernel": "scale", "variant": "v", "archs": ["sm_80"], "stage": "cubin", "error": "too many registers"},
    {"kernel": "gone", "stage": "lower", "error": "no schedule"},
    {"location": "kernels/broken.py", "stage": "discover", "error": "SyntaxError"},
]


def test_what_a_partial_package_lacks_is_said_of_the_kernel_that_it_is_about(package: Package) -> None:
    document = manifest_of(missing=GAPS)
    document["kernels"]["add"]["backward"] = "gone"
    package.seal(document)
    loader = package.loader
    assert loader.entry("scale")["missing"] == GAPS[:1]
    add = loader.entry("add")
    assert add["missing"] == GAPS[1:2] and "backward" not in add
    with pytest.raises(AttributeError) as caught:
        loader.kernel("unknown")
    assert "kernels/broken.py [discover]: SyntaxError" in str(caught.value) and "no schedule" not in str(caught.value)


def test_a_library_of_another_package_is_one_of_the_process_or_where_it_is_installed(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "acme/lib"
    folder.mkdir(parents=True)
    needed = ("scale", "libacme_needed.so.1", "acme/lib", "acme-lib>=1,<2")
    with pytest.raises(ImportError) as caught:
        load_needed(*needed)
    assert "kernel 'scale' needs libacme_needed.so.1: " in str(caught.value)
    assert "cannot open shared object file" in str(caught.value) and "pip install 'acme-lib>=1,<2'" in str(caught.value)
    monkeypatch.syspath_prepend(tmp_path)
    (folder / needed[1]).write_text("no library")
    with pytest.raises(ImportError, match=r"acme/lib/libacme_needed\.so\.1: file too short"):
        load_needed(*needed)
    options = ["-shared", "-nostdlib", "-Wl,-soname,libacme_needed.so.1", "-x", "c", "-"]
    subprocess.run(["gcc", *options, "-o", folder / needed[1]], input=b"int acme = 1;", check=True)
    load_needed(*needed)
    shutil.rmtree(folder)
    load_needed(*needed)  # the process has it
