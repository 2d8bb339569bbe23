"""manifest.json as text: put together from the kernels' parts, and with what a wheel adds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright.backends.files import UnitFiles, VariantFiles
from kernelwright.core.errors import KernelwrightError
from kernelwright.package.content import with_source
from kernelwright.package.manifest import (
    BuiltPackage,
    EntrySource,
    PackagedKernel,
    make_entry,
    make_manifest,
    sealed_document,
    sealed_manifest,
)
from kernelwright.package.source import Source
from kernelwright.runtime.loader import DIGEST_LINE, SCHEMA
from kernelwright.toolchain.limits import USED

TRAPS = '{ "tools": 1,\n "tools": {}, "device_code": }\n }'
"""Text that looks like JSON in a docstring."""

SOURCE = Source("a" * 40, True, 0)


def manifest_of(*entries: str, **head: Any) -> str:
    kernels = tuple(PackagedKernel(f"k{number}", entry, ("cuda_core",), {}) for number, entry in enumerate(entries))
    return make_manifest(BuiltPackage("demo", "1", {"nvcc": {"version": "13"}}, ("cuda_core",), kernels, **head), {})


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
    assert kernel == {"backends": ["cuda_core"], **entry}


def unit_files(
    folder: Path, target: str, archs: tuple[str, ...], tir: str = "the lowered function", **signature: Any
) -> UnitFiles:
    """A unit with device code and resources for each arch."""
    (folder / "f").mkdir(exist_ok=True)
    path, module = folder / f"signature_{target}.json", folder / f"{target}.tir"
    module.write_text(tir)
    arguments = [{"name": "x", "output": False}, {"name": "y", "output": True}]
    said = {"target": target, "schedule": f"of {target}", "arguments": arguments, "symbols": {"n": "int32"}}
    path.write_text(json.dumps({**said, **signature}))
    if target == "llvm":
        return UnitFiles(target, archs, str(path), str(module), "")
    for arch in archs:
        registers = dict.fromkeys(USED, 7) | {"registers": int(arch.rpartition("_")[2])}
        (folder / f"{arch}.json").write_text(json.dumps({"schema": 1, "arch": arch, "kernels": {"g": registers}}))
        (folder / f"f/{arch}.bin").write_text(f"code for {arch}")
    images = {arch: f"{folder}/f/{arch}.bin" for arch in archs}
    usages = {arch: f"{folder}/{arch}.json" for arch in archs}
    return UnitFiles(target, archs, str(path), str(module), "", images=images, usages=usages)


CUDA = ("sm_80", "compute_80")


def built(folder: Path, *units: UnitFiles, **changes: Any) -> dict[str, Any]:
    """The part of a kernel of two variants, the first one with these units, or for CUDA."""
    variants = (
        VariantFiles("m-1", {"m": 1}, units or (unit_files(folder, "cuda", CUDA),)),
        VariantFiles("m-2", {"m": 2}, (unit_files(folder, "llvm", ("x86-64",)),)),
    )
    kernel = EntrySource(
        "text", "_lib/f.so", "_lib/l.so", variants, ("-O3",), {"nvcc": "13.0"}, "1", images_below=folder
    )
    entry: dict[str, Any] = json.loads(make_entry(replace(kernel, **changes)))
    return entry


def test_the_part_of_a_kernel_says_what_it_is_and_what_it_was_made_of(tmp_path: Path) -> None:
    units = [unit_files(tmp_path, "llvm", ("x86-64",)), unit_files(tmp_path, "cuda", CUDA)]
    entry = built(tmp_path, *units)
    first, second = entry.pop("variants")
    assert entry == {"doc": "text", "library": "_lib/f.so", "launcher": "_lib/l.so", "outputs": ["y"]}
    assert list(first) == ["slug", "config", "archs", "arguments", "symbols", "units"]
    assert (first["slug"], first["config"]) == ("m-1", {"m": 1})
    assert first["archs"] == ["x86-64", *CUDA] and second["archs"] == ["x86-64"]
    assert [argument["name"] for argument in first["arguments"]] == ["x", "y"] and first["symbols"] == {"n": "int32"}
    llvm, cuda = first["units"]
    signatures = [unit.pop("signature") for unit in (llvm, cuda)]
    assert all(len(signature) == 64 for signature in signatures) and len(set(signatures)) == 2
    source = {"source_digest": hashlib.sha256(b"the lowered function").hexdigest()}
    assert llvm == {"target": "llvm", "archs": ["x86-64"], "schedule": "of llvm", **source, "resources": {}}
    resources, images = cuda.pop("resources"), cuda.pop("images")
    assert cuda == {"target": "cuda", "archs": list(CUDA), "schedule": "of cuda", **source}
    for arch in CUDA:
        code = f"code for {arch}".encode()
        image = {"file": f"f/{arch}.bin", "sha256": hashlib.sha256(code).hexdigest(), "size": len(code)}
        assert images[arch] == image and resources[arch]["g"] == dict.fromkeys(USED, 7) | {"registers": 80}
    own = built(tmp_path, *units, library="", backward="f_backward", own_tools={"cutedsl": "4"})
    assert "library" not in own and own["backward"] == "f_backward"
    assert own["variants"][0]["units"][0]["tools"] == {"cutedsl": "4"}


def test_the_signature_of_a_unit_differs_with_all_that_decides_what_it_is(tmp_path: Path) -> None:
    def signature(unit: UnitFiles | None = None, **changes: Any) -> str:
        entry = built(tmp_path, *([] if unit is None else [unit]), **changes)
        return str(entry["variants"][0]["units"][0]["signature"])

    first = signature()
    assert signature() == first == signature(doc="another", backward="x")
    changed = [
        signature(flags=("-O3", "--use_fast_math")),
        signature(tools={"nvcc": "13.1"}),
        signature(own_tools={"cutedsl": "5"}),
        signature(version="2"),
        signature(unit_files(tmp_path, "cuda", ("sm_80",))),
        signature(unit_files(tmp_path, "cuda", CUDA, "another lowered function")),
        signature(unit_files(tmp_path, "cuda", CUDA, symbols={"n": "int64"})),
    ]
    assert len({first, *changed}) == len(changed) + 1
    on_cpu = [signature(unit_files(tmp_path, "llvm", ("x86-64",)), flags=flags) for flags in (("-O3",), ())]
    assert on_cpu[0] == on_cpu[1], "nvcc has no part in it"


def test_the_head_of_a_manifest_says_what_is_known_and_it_can_be_sealed_again() -> None:
    bare = content_of(manifest_of(json.dumps({"doc": ""})))
    assert list(bare) == ["schema", "package", "kernelwright", "tools", "licenses", "backends", "kernels", "files"]
    assert (bare["schema"], bare["package"], bare["kernelwright"]) == (SCHEMA, "demo", "1")
    modules = bare["backends"]["cuda_core"]
    assert modules["modules"] and ["cuda.core", "cuda-core>=1.2,<2"] in modules["needs"]
    known = {"compress": {"mode": "size", "cuda": "12.4"}, "device_code": {"folder": "x"}, "missing": [{"kernel": "k"}]}
    full = content_of(manifest_of(json.dumps({"doc": ""}), project="2.0", **known))
    assert {name: full[name] for name in known} == known and full["version"] == "2.0"
    text = sealed_document({"schema": 3, "files": {}})
    assert content_of(text) == {"schema": 3, "files": {}}
    assert sealed_document(json.loads(text)) == text


def test_every_file_of_a_package_is_listed_in_order_with_its_digest_and_size() -> None:
    kernels = tuple(
        PackagedKernel(name, json.dumps({"doc": name}), ("tvm_ffi", "cuda_core"), {f"_lib/{name}.so": (name * 64, 5)})
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
    assert content["kernels"] == {name: {"backends": ["tvm_ffi", "cuda_core"], "doc": name} for name in ("b", "a")}


@pytest.mark.parametrize("entry", ["", "[]", '"{"', "damaged {"])
def test_a_part_that_is_no_object_is_an_error(entry: str) -> None:
    with pytest.raises(KernelwrightError, match=r"k0 \[package\]: entry\.json is .*, expected a JSON object"):
        manifest_of(entry)


def test_a_wheel_says_where_its_sources_are_from_and_where_its_device_code_is() -> None:
    """However the text is laid out that it is added to."""
    placed = {"name": "demo", "packages": {"sm_80": "demo_sm_80"}}
    built = manifest_of(json.dumps({"doc": TRAPS}), device_code={"folder": "../x"})
    compact = sealed_manifest(json.dumps(content_of(built)).removesuffix("}"))
    assert compact != built
    for text in (built, compact):
        content = content_of(with_source(text, SOURCE, placed))
        keys = list(content)
        assert keys[keys.index("tools") - 1] == "source" and keys.index("device_code") < keys.index("kernels")
        assert content.pop("source") == {"commit": "a" * 40, "dirty": True}
        assert content == content_of(built) | {"device_code": placed}
        bare = content_of(with_source(text, SOURCE))
        assert bare.pop("source") and bare == content_of(built)
