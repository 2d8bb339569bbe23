"""The kernel library of this repository: what it holds, and that every CPU variant agrees with its reference."""

from __future__ import annotations

import json

import pytest
from support.kernel_library import MORE, build_kernel_library
from support.project import Project

EXPECTED = {
    "saxpy",
    "swiglu",
    "rms_norm",
    "layer_norm",
    "softmax",
    "rope",
    "gemm",
    "gemv_int8",
    "transpose",
    "row_sum",
    "row_argmax",
    "cumsum",
    "quantize_int8",
    "decode_attention",
    "top_k",
    "top_p_sampling",
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """The library built for the CPU and checked, in a folder of its own."""
    project = Project(tmp_path_factory.mktemp("library"))
    project.run = build_kernel_library(project.folder)
    return project


def test_library_has_its_kernels_and_at_least_forty_variants(checked):
    everything = json.loads((checked.folder / "build/demo/manifest.json").read_text())["kernels"]
    kernels = {name: entry for name, entry in everything.items() if name.removesuffix("_backward") not in MORE}
    assert set(kernels) >= EXPECTED
    assert sum(len(kernel["variants"]) for kernel in kernels.values()) >= 40
    assert all(len(kernel["doc"].splitlines()) >= 1 and kernel["doc"].strip() for kernel in kernels.values())


def test_every_variant_is_checked_against_its_reference_at_awkward_sizes(checked):
    kernels = json.loads((checked.folder / "build/demo/manifest.json").read_text())["kernels"]
    variants = [(name, v["slug"]) for name, kernel in kernels.items() for v in kernel["variants"]]
    assert checked.run.labels["CHECK"] == len(variants)
    for name, slug in variants:
        result = json.loads((checked.folder / f"build/check/demo/{name}/{slug}.cpu.json").read_text())
        sizes = {size for case in result["sizes"] for size in case.values()}
        assert {1, 7}.issubset(sizes) or not result["sizes"][0], (name, slug, sizes)
