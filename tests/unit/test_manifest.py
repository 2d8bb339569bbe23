"""manifest.json as text: put together from the kernels' parts, and with what a wheel adds."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from kernelwright.errors import KernelwrightError
from kernelwright.package.loader import DIGEST_LINE
from kernelwright.package.manifest import BuiltPackage, PackagedKernel, make_manifest, sealed_document, sealed_manifest
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


@pytest.mark.parametrize("entry", ["", "[]", '"{"', "damaged {"])
def test_a_part_that_is_no_object_is_an_error(entry: str) -> None:
    with pytest.raises(KernelwrightError, match=r"k0 \[package\]: entry\.json is .*, expected a JSON object"):
        manifest_of(entry)


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
