"""manifest.json as text: put together from the kernels' parts, and with what a wheel adds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright.compilers.limits import USED
from kernelwright.core.errors import KernelwrightError
from kernelwright.library.files import UnitFiles, VariantFiles
from kernelwright.package.manifest import (
    BuiltPackage,
    EntrySource,
    PackagedKernel,
    make_entry,
    make_manifest,
    sealed_document,
    sealed_manifest,
)
from kernelwright.runtime.loader import DIGEST_LINE, SCHEMA
from kernelwright.wheel.content import with_source
from kernelwright.wheel.source import Source

TRAPS = '{ "tools": 1,\n "tools": {}, "device_code": }\n }'
"""Text that looks like JSON in a docstring."""

SOURCE = Source("a" * 40, True, 0)


def manifest_of(*entries: str, **head: Any) -> str:
    kernels = tuple(PackagedKernel(f"k{number}", entry, ("nvrtc",), {}) for number, entry in enumerate(entries))
    return make_manifest(BuiltPackage("demo", "1", {"nvcc": {"version": "13"}}, ("nvrtc",), kernels, **head), {})


def content_of(text: str) -> dict[str, Any]:
    """The keys of a manifest, whose digest has to be right."""
    covered, _, last = text.rpartition("," + DIGEST_LINE)
    assert last == f'"{hashlib.sha256(covered.encode()).hexdigest()}"\n}}\n'
    content: dict[str, Any] = json.loads(text)
    del content["digest"]
    return content


@pytest.mark.parametrize("indent", [1, None])
def test_a_kernel_says_first_how_it_is_called(indent: int | None) -> None:
    entry = {"doc": TRAPS, "variants": [{"slug": "{"}]}
    (kernel,) = content_of(manifest_of(json.dumps(entry, indent=indent)))["kernels"].values()
    assert list(kernel) == ["backends", "doc", "variants"]
    assert kernel == {"backends": ["nvrtc"], **entry}


USAGE = dict.fromkeys(USED, 7)


def unit_files(folder: Path, signature: dict[str, Any], archs: tuple[str, ...], **parts: Any) -> UnitFiles:
    """A unit with this content of signature.json."""
    path = folder / f"signature_{signature['target']}.json"
    path.write_text(json.dumps(signature))
    return UnitFiles(signature["target"], archs, str(path), str(folder / "module.tir"), "", **parts)


def built_kernel(folder: Path, **changes: Any) -> EntrySource:
    """A kernel of two variants, the first one for the CPU and for CUDA."""
    (folder / "module.tir").write_text("tir")
    (folder / "sm_80.json").write_text(json.dumps({"schema": 1, "arch": "sm_80", "kernels": {"scale_kernel": USAGE}}))
    (folder / "scale").mkdir(exist_ok=True)
    (folder / "scale/sm_80.cubin").write_bytes(b"cubin")
    arguments = [{"name": "x", "output": False}, {"name": "y", "output": True}]

    def unit(target: str, *archs: str, **parts: Any) -> UnitFiles:
        signature = {"target": target, "schedule": f"of {target}", "arguments": arguments, "symbols": {"n": "int32"}}
        return unit_files(folder, signature, archs, **parts)

    images, usages = {"sm_80": f"{folder}/scale/sm_80.cubin"}, {"sm_80": f"{folder}/sm_80.json"}
    cuda = unit("cuda", "sm_80", "compute_80", usages=usages, images=images)
    variants = (
        VariantFiles("m-1", {"m": 1}, (unit("llvm", "x86-64"), cuda)),
        VariantFiles("m-2", {"m": 2}, (unit("llvm", "x86-64"),)),
    )
    kernel = EntrySource(
        "text",
        "_lib/scale.so",
        "_lib/launcher.so",
        variants,
        ("-v",),
        {"nvcc": {"version": "13"}},
        "0.1",
        images_below=folder,
    )
    return replace(kernel, **changes)


def entry_of(kernel: EntrySource) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(make_entry(kernel))
    return entry


def test_the_part_of_a_kernel_says_what_it_is_and_what_it_was_made_of(tmp_path: Path) -> None:
    entry = entry_of(built_kernel(tmp_path))
    first, second = entry.pop("variants")
    libraries = {"library": "_lib/scale.so", "launcher": "_lib/launcher.so"}
    assert entry == {"doc": "text", **libraries, "outputs": ["y"]}
    assert list(first) == ["slug", "config", "archs", "arguments", "symbols", "units"]
    assert (first["slug"], first["config"]) == ("m-1", {"m": 1})
    assert first["archs"] == ["x86-64", "sm_80", "compute_80"] and second["archs"] == ["x86-64"]
    assert [argument["name"] for argument in first["arguments"]] == ["x", "y"] and first["symbols"] == {"n": "int32"}
    llvm, cuda = first["units"]
    signatures = [unit.pop("signature") for unit in (llvm, cuda)]
    assert all(len(signature) == 64 for signature in signatures) and len(set(signatures)) == 2
    source = hashlib.sha256(b"tir").hexdigest()
    assert llvm == {
        "target": "llvm",
        "archs": ["x86-64"],
        "schedule": "of llvm",
        "source_digest": source,
        "resources": {},
    }
    image = {"file": "scale/sm_80.cubin", "sha256": hashlib.sha256(b"cubin").hexdigest(), "size": 5}
    assert cuda == {
        "target": "cuda",
        "archs": ["sm_80", "compute_80"],
        "schedule": "of cuda",
        "source_digest": source,
        "resources": {"sm_80": {"scale_kernel": USAGE}},
        "images": {"sm_80": image},
    }


def test_what_a_kernel_has_beyond_that_is_in_its_part(tmp_path: Path) -> None:
    own = {"cutedsl": {"version": "4"}}
    entry = entry_of(built_kernel(tmp_path, library="", backward="scale_backward", own_tools=own))
    assert "library" not in entry and entry["backward"] == "scale_backward"
    assert entry["variants"][0]["units"][0]["tools"] == {"cutedsl": {"version": "4"}}


def test_the_signature_of_a_unit_changes_with_what_it_was_made_of(tmp_path: Path) -> None:
    def signatures(**changes: Any) -> list[str]:
        kernel = built_kernel(tmp_path, **changes)
        return [unit["signature"] for unit in entry_of(kernel)["variants"][0]["units"]]

    before = signatures()
    assert signatures() == before
    flagged = signatures(flags=("-O1",))
    assert flagged[0] == before[0] and flagged[1] != before[1], "flags are those of nvcc"
    for changes in ({"version": "0.2"}, {"tools": {"nvcc": {"version": "12"}}}):
        assert not set(signatures(**changes)) & set(before)
    assert signatures(doc="another", backward="x") == before


def test_the_head_of_a_manifest_says_what_is_known() -> None:
    bare = content_of(manifest_of(json.dumps({"doc": ""})))
    assert list(bare) == ["schema", "package", "kernelwright", "tools", "backends", "kernels", "files"]
    assert (bare["schema"], bare["package"], bare["kernelwright"]) == (SCHEMA, "demo", "1")
    modules = bare["backends"]["nvrtc"]
    assert modules["modules"] and ["cuda.core", "cuda-core>=1.2,<2"] in modules["needs"]
    known = {
        "compress": {"mode": "size", "cuda": "12.4"},
        "device_code": {"folder": "x"},
        "missing": [{"kernel": "k"}],
    }
    full = content_of(manifest_of(json.dumps({"doc": ""}), project="2.0", **known))
    assert {name: full[name] for name in known} == known and full["version"] == "2.0"


def test_every_file_of_a_package_is_listed_in_order_with_its_digest_and_size() -> None:
    kernels = tuple(
        PackagedKernel(name, json.dumps({"doc": name}), ("tvm_ffi", "nvrtc"), {f"_lib/{name}.so": (name * 64, 5)})
        for name in ("b", "a")
    )
    built = BuiltPackage("demo", "1", {}, ("tvm_ffi",), kernels)
    content = content_of(make_manifest(built, {"__init__.py": "größe"}))
    digest = hashlib.sha256("größe".encode()).hexdigest()
    assert list(content["files"].items()) == [
        ("__init__.py", {"sha256": digest, "size": 7}),
        ("_lib/a.so", {"sha256": "a" * 64, "size": 5}),
        ("_lib/b.so", {"sha256": "b" * 64, "size": 5}),
    ]
    assert content["kernels"] == {name: {"backends": ["tvm_ffi", "nvrtc"], "doc": name} for name in ("b", "a")}


@pytest.mark.parametrize("entry", ["", "[]", '"{"', "damaged {"])
def test_a_part_that_is_no_object_is_an_error(entry: str) -> None:
    with pytest.raises(KernelwrightError, match=r"k0 \[package\]: entry\.json is .*, expected a JSON object"):
        manifest_of(entry)


def built(folder: Path, target: str = "cuda", tir: str = "the lowered function", **more: Any) -> dict[str, Any]:
    """The first unit of a kernel's part, of a kernel that was built with other flags, tools and so on."""
    (folder / "module.tir").write_text(tir)
    archs = more.pop("archs", ("sm_80", "compute_80"))
    for arch in archs:
        registers = dict.fromkeys(USED, 7) | {"registers": int(arch.rpartition("_")[2])}
        (folder / f"{arch}.json").write_text(json.dumps({"kernels": {"f": registers}}))
        (folder / "f").mkdir(exist_ok=True)
        (folder / f"f/{arch}.bin").write_text(f"code for {arch}")
    signature = {"target": target, "schedule": "as written", "symbols": {}, **more.pop("signature", {})}
    signature["arguments"] = [{"name": "x", "output": False}, {"name": "y", "output": True}]
    images = {arch: f"{folder}/f/{arch}.bin" for arch in archs}
    usages = {arch: f"{folder}/{arch}.json" for arch in archs}
    unit = unit_files(folder, signature, tuple(archs), images=images, usages=usages)
    given = {"flags": ("-O3",), "tools": {"nvcc": "13.0"}, "own_tools": {"cutedsl": "4"}, "version": "1", **more}
    kernel = EntrySource(
        "", "_lib/f.so", "_lib/l.so", (VariantFiles("v", {"size": 1}, (unit,)),), images_below=folder, **given
    )
    entry = json.loads(make_entry(kernel))
    assert (entry["outputs"], entry["library"], entry["variants"][0]["archs"]) == (["y"], "_lib/f.so", list(archs))
    found: dict[str, Any] = entry["variants"][0]["units"][0]
    return found


def test_a_unit_lists_the_image_and_the_resources_of_each_arch(tmp_path: Path) -> None:
    unit = built(tmp_path)
    assert unit["archs"] == ["sm_80", "compute_80"] and unit["tools"] == {"cutedsl": "4"}
    assert unit["source_digest"] == hashlib.sha256(b"the lowered function").hexdigest()
    for arch in unit["archs"]:
        code = f"code for {arch}".encode()
        image = {"file": f"f/{arch}.bin", "sha256": hashlib.sha256(code).hexdigest(), "size": len(code)}
        assert unit["images"][arch] == image and unit["resources"][arch]["f"]["registers"] == 80


def test_the_signature_of_a_unit_differs_with_all_that_decides_what_it_is(tmp_path: Path) -> None:
    first = built(tmp_path)["signature"]
    assert built(tmp_path)["signature"] == first
    changes: list[dict[str, Any]] = [
        {"flags": ("-O3", "--use_fast_math")},
        {"tools": {"nvcc": "13.1"}},
        {"own_tools": {"cutedsl": "5"}},
        {"version": "2"},
        {"archs": ("sm_80",)},
        {"tir": "another lowered function"},
        {"signature": {"symbols": {"n": "int64"}}},
    ]
    signatures = [built(tmp_path, **change)["signature"] for change in changes]
    assert len({first, *signatures}) == len(changes) + 1
    on_cpu = [built(tmp_path, "llvm", flags=flags)["signature"] for flags in (("-O3",), ())]
    assert on_cpu[0] == on_cpu[1], "nvcc has no part in it"


def test_the_manifest_lists_every_file_of_the_package_with_its_digest() -> None:
    products = {"_lib/f.so": ("1" * 64, 10), "backends/torch/_f.py": ("2" * 64, 20)}
    more = {"_lib/g.so": ("3" * 64, 30)}
    kernels = tuple(PackagedKernel(n, '{"doc": ""}', ("nvrtc",), p) for n, p in (("f", products), ("g", more)))
    texts = {"__init__.py": "# \u00e9", "_runtime/loader.py": ""}
    files = content_of(make_manifest(BuiltPackage("demo", "1", {}, ("nvrtc",), kernels), texts))["files"]
    listed = {path: {"sha256": found, "size": size} for path, (found, size) in (products | more).items()}
    for path, text in texts.items():
        data = text.encode()
        listed[path] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    assert files == listed and list(files) == sorted(files)


def test_a_wheel_says_where_its_sources_are_from_in_front_of_the_tools() -> None:
    built = manifest_of(json.dumps({"doc": TRAPS}))
    content = content_of(with_source(built, SOURCE))
    keys = list(content)
    assert keys[keys.index("tools") - 1] == "source" and content.pop("source") == {"commit": "a" * 40, "dirty": True}
    assert content == content_of(built)


def test_a_wheel_says_where_its_device_code_is() -> None:
    built = manifest_of(json.dumps({"doc": TRAPS}), device_code={"folder": "../x", "packages": {"sm_80": "demo_sm_80"}})
    placed = {"name": "demo", "packages": {"sm_80": "demo_sm_80"}}
    content = content_of(with_source(built, SOURCE, placed))
    assert content["device_code"] == placed
    assert list(content).index("device_code") < list(content).index("kernels")
    assert content_of(with_source(built, SOURCE))["device_code"] == content_of(built)["device_code"]


def test_what_is_added_does_not_depend_on_how_the_text_is_laid_out() -> None:
    built = manifest_of(json.dumps({"doc": TRAPS}), device_code={"folder": "x"})
    compact = sealed_manifest(json.dumps(content_of(built)).removesuffix("}"))
    assert compact != built
    placed = {"name": "demo"}
    assert content_of(with_source(compact, SOURCE, placed)) == content_of(with_source(built, SOURCE, placed))


def test_a_sealed_document_can_be_sealed_again() -> None:
    text = sealed_document({"schema": 3, "files": {}})
    assert content_of(text) == {"schema": 3, "files": {}}
    assert sealed_document(json.loads(text)) == text
