"""The CUDA kernels of this repository compute on emulated hardware what their references say."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from emulation import Comparison, kernels_in, lowered, variants_of
from kernelwright.worker.check_sizes import size_sets
from support.kernel_library import covering
from support.project import ROOT

FILES = sorted(path.stem for path in (ROOT / "kernels").glob("[a-z]*.py"))

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


LONG = 521
"""A prime that the last of several size variables takes: loops over parts of a row go round a few times."""

WIDE = 4096
"""Columns of those variants of gemm that differ from others in the number of their blocks only: they are left out."""

MULTIPLES = (48, 80, 16)
"""What size variables take where there are several: rows of 16 bytes may have code of their own."""


def chosen(signature: Mapping[str, Any], first: bool) -> list[dict[str, int]]:
    """Few of the sizes of ``scons check``: many rows cost time here and find nothing new. Long rows for one variant."""
    symbols, known = list(signature["symbols"]), signature.get("multiples", {})
    sets = size_sets(symbols)
    more = [sets[3], dict(zip(symbols, MULTIPLES, strict=False))] if len(symbols) > 1 else []
    long = [{**sets[3], symbols[-1]: LONG}] if len(symbols) > 1 and first else []
    sizes = [sets[0], sets[1], *more, *long]
    return [{name: -(-size // known.get(name, 1)) * known.get(name, 1) for name, size in s.items()} for s in sizes]


@pytest.mark.parametrize("name", FILES)
def test_cuda_code_agrees_with_its_reference_in_both_orders_of_threads(name: str, folder: Path) -> None:
    """Each value of each parameter is in a variant that is run: the code of every variant takes twice as long."""
    for kernel in kernels_in(name):
        variants = [variant for variant in variants_of(kernel) if variant.config.get("n") != WIDE]
        wanted = covering(variant.config for variant in variants)
        for variant in (variant for variant in variants if variant.config in wanted):
            code = lowered(kernel, variant)
            comparison = Comparison(code, folder / f"{kernel.name}-{variant.slug}")
            sizes = chosen(code.signature, variant == kernel.variants[0])
            results = [comparison.compare(case, bool(i % 2)) for i, case in enumerate(sizes)]
            assert any(results), f"{variant.slug}: the inputs function accepts no sizes"
