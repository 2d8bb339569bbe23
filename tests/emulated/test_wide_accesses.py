"""Kernels on CUDA read and write 16 bytes at a time where data is aligned: what nvcc makes of them says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from emulation import Lowered, kernels_in, lowered, machine_code

ROWS: dict[str, list[dict[str, Any]]] = {
    "rms_norm": [{"hidden": 4096, "dtype": "bfloat16"}],
}
"""Kernel -> some of its configs. All memory accesses have 16 bytes."""

TILES: dict[str, list[dict[str, Any]]] = {"transpose": [{"dtype": "int8"}]}
"""The same, where rows of some sizes need narrower accesses, so that both kinds are there."""

EVERYTHING = [(name, config) for name, configs in [*ROWS.items(), *TILES.items()] for config in configs]


def variant_of(name: str, config: dict[str, Any]) -> Lowered:
    (kernel,) = kernels_in(name)
    (variant,) = (variant for variant in kernel.variants if variant.config == config)
    return lowered(kernel, variant)


def accesses(source: str, folder: Path) -> set[str]:
    """The instructions for memory of an H100's machine code, such as ``LDG.E.128.CONSTANT``."""
    code = machine_code(source, folder)[1]
    found = set(re.findall(r"\b((?:LD|ST)[GL]\b[.\w]*)", code))
    assert found, code[:2000]
    return found


@pytest.mark.parametrize(("name", "config"), EVERYTHING)
def test_aligned_data_is_read_and_written_16_bytes_at_a_time(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    code = variant_of(name, config)
    assert {a["alignment"] for a in code.signature["arguments"]} == {16}
    found = accesses(code.source, tmp_path)
    wide = {access for access in found if ".128" in access}
    assert {access.partition(".")[0] for access in wide} == {"LDG", "STG"}
    assert found == wide or name in TILES
    assert not any(access.startswith(("LDL", "STL")) for access in found), "what a thread holds is in registers"


@pytest.mark.parametrize(("name", "config"), EVERYTHING)
def test_the_variant_for_other_data_comes_later_and_asks_for_no_alignment(name: str, config: dict[str, Any]) -> None:
    (kernel,) = kernels_in(name)
    configs = [variant.config for variant in kernel.variants]
    fallback = {**config, "aligned": False}
    assert configs.index(config) < configs.index(fallback)
    assert not any("alignment" in argument for argument in variant_of(name, fallback).signature["arguments"])
    (choice,) = (choice for choice in kernel.choices if choice.config == fallback)
    assert choice.declared("cuda") == fallback and choice.declared("llvm") is None, "code for the CPU takes any data"


def test_the_fallback_reads_elements(tmp_path: Path) -> None:
    found = accesses(variant_of("softmax", {"columns": 1000, "dtype": "float16", "aligned": False}).source, tmp_path)
    assert {access.removesuffix(".CONSTANT") for access in found} == {"LDG.E.U16", "STG.E.U16"}
