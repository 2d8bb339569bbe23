"""What the code of the CUDA kernels shows without a GPU: launches, passes over the data, barriers and instructions.

The results are compared where the sizes of ``scons check`` do not reach: rows and sequences that are split many times,
and sums that need more than 32 bits.
"""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulation import FUNCTIONS, Comparison, Emulation, Lowered, Values, kernels_in, lowered, machine_code

MULTIPROCESSORS = 132
"""Of an H100."""

COUNTER = 'extern "C" __attribute__((visibility("default"))) unsigned long long loads;\nunsigned long long loads;\n'


Emulated = Callable[..., Comparison]
"""Gives the comparison of the variant of a kernel with a config."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all that is compiled."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def emulated(folder: Path) -> Emulated:
    """Compiles a variant once."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")

    @functools.cache
    def compiled(name: str, **config: Any) -> Comparison:
        code = code_of(name, **config)
        return Comparison(code, folder / f"{name}_{code.variant.slug}")

    return compiled


@functools.cache
def code_of(name: str, **config: Any) -> Lowered:
    """The variant of a kernel of the library with a config, for sm_90a; the config need not name all keys."""
    (kernel,) = (kernel for kernel in kernels_in(name) if kernel.name == name)
    variant = next(v for v in kernel.variants if config.items() <= v.config.items())
    return lowered(kernel, variant, "sm_90a")


def blocks(code: Lowered, **sizes: int) -> list[int]:
    """The number of blocks of each launch."""
    grids = [[eval(str(size), dict(FUNCTIONS), sizes) for size in la["grid"]] for la in code.signature["launches"]]
    return [x * y * z for x, y, z in grids]


def loads_of(code: Lowered, array: str, values: Values, sizes: dict[str, int], folder: Path) -> int:
    """How many elements of an argument a call reads in emulation."""
    counted = code.source.replace(f"{array}_ptr[", f"(++loads, {array}_ptr)[")
    assert counted != code.source
    place = counted.index('extern "C" __global__')
    emulation = Emulation(
        code.signature,
        counted[:place] + COUNTER + counted[place:],
        folder / f"counted_{code.kernel.name}_{code.variant.slug}",
    )
    emulation(values, sizes)
    return int(ctypes.c_ulonglong.in_dll(emulation._library, "loads").value)


def instructions(code: Lowered, folder: Path) -> list[str]:
    """The instructions of all functions in order, such as ``LDG.E.128.CONSTANT``."""
    text = machine_code(code.source, folder)[1]
    return re.findall(r"^\s*(?:/\*[0-9a-f]+\*/)?\s*(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]+)(?= |;)", text, re.M)


def count(found: list[str], prefix: str) -> int:
    return sum(name.startswith(prefix) for name in found)


# ---- decode_attention


def test_decode_attention_has_blocks_for_all_multiprocessors_and_splits_no_more_than_it_needs() -> None:
    code = code_of("decode_attention")
    attend, merge = blocks(code, batch=1, max_seq=32768)
    assert MULTIPROCESSORS <= attend <= 2 * MULTIPROCESSORS
    assert merge == 16, "one for each head"
    assert blocks(code, batch=1, max_seq=4096)[0] >= MULTIPROCESSORS
    code = code_of("decode_attention")
    assert blocks(code, batch=66, max_seq=4096)[0] == 66 * 4
    assert blocks(code, batch=1, max_seq=64)[0] == 4
    assert blocks(code, batch=3, max_seq=0) == [0, 3 * 16], "the second launch writes the zeros"


def test_decode_attention_of_a_long_sequence_is_right(emulated: Emulated) -> None:
    comparison = emulated("decode_attention", dtype="float16")
    for sizes in ({"batch": 1, "max_seq": 3000}, {"batch": 2, "max_seq": 300}):
        assert comparison.compare(sizes)


def test_decode_attention_loads_16_bytes_at_a_time_and_keeps_sums_in_registers(tmp_path: Path) -> None:
    found = instructions(code_of("decode_attention", head_dim=128, dtype="float16"), tmp_path)
    assert count(found, "LDG.E.128") >= 3, "of queries, keys and values"
    assert count(found, "LDG.E.U16") == count(found, "LDL") == count(found, "STL") == 0


# ---- cumsum


def test_cumsum_of_long_rows_has_blocks_for_all_multiprocessors_and_else_nothing_for_totals() -> None:
    code = code_of("cumsum")
    for rows in (1, 3, 100):
        totals, scan = blocks(code, rows=rows, columns=1 << 22)
        assert totals + rows == scan, "the total of a row's last part is not needed"
        assert MULTIPROCESSORS <= scan <= 3 * MULTIPROCESSORS
    code = code_of("cumsum")
    assert blocks(code, rows=1, columns=1000) == [0, 1]
    assert blocks(code, rows=4096, columns=8192) == [0, 4096]
    assert blocks(code, rows=5, columns=0) == [0, 5]


def test_cumsum_of_many_parts_is_right(emulated: Emulated) -> None:
    comparison = emulated("cumsum", dtype="float32")
    assert comparison.compare({"rows": 1, "columns": 400_000})
    assert comparison.compare({"rows": 3, "columns": 100_001}, backwards=True)


# ---- top_p_sampling


def sampled(probs: Any, rng: np.random.Generator, top_p: float) -> dict[str, Any]:
    """Inputs of top_p_sampling."""
    uniform = (rng.integers(0, 2**24, len(probs)) / 2**24).astype("float32")
    return {"probs": probs.astype("float32"), "uniform": uniform, "top_p": top_p}


def test_top_p_sampling_reads_a_row_four_times_and_a_little_more(folder: Path) -> None:
    n = 12_000
    values = sampled(np.full((1, n), 1 / n), np.random.default_rng(0), 0.9) | {"token": np.zeros(1, "int32")}
    loads = loads_of(code_of("top_p_sampling"), "probs", values, {"rows": 1, "n": n}, folder)
    # Three digits of the least weight of the nucleus, and a search for the token, whose rounds read less and less. The
    # source reads an element there twice, to compare it and to add it; the compiler makes one load of that.
    assert loads <= 3 * n + 2 * 1.1 * n


@pytest.mark.parametrize("kind", ["equal", "few large", "wide range", "ties and nothing"])
def test_top_p_sampling_draws_the_token_of_its_reference(kind: str, emulated: Emulated) -> None:
    rng, n = np.random.default_rng(7), 5000
    probs = {
        "equal": np.full((4, n), 0.09),  # one bin has more than 32 bits
        "few large": rng.random((4, n)) ** 40,
        "wide range": np.exp(-25 * rng.random((4, n))),
        "ties and nothing": rng.choice([0, -1, 2.0**-31, 2.0**-30, 2.0**-29, 1e-3], (4, n)),
    }[kind]
    comparison = emulated("top_p_sampling")
    for top_p in (0.0, 0.3, 0.9, 1.0):
        comparison.compare_for(sampled(probs, rng, top_p), {"rows": 4, "n": n})


def test_top_p_sampling_adds_to_its_bins_with_native_atomics(tmp_path: Path) -> None:
    found = instructions(code_of("top_p_sampling"), tmp_path)
    assert count(found, "ATOMS.ADD") >= 3
    assert count(found, "ATOMS.CAS") == 0, "a loop around a comparison is what 64 bits would take"


# ---- top_k


def test_top_k_reads_each_element_once_with_all_threads(folder: Path) -> None:
    k = 32
    code = code_of("top_k", k=k, dtype="float32")
    (launch,) = code.signature["launches"]
    assert launch["block"] == [512, 1, 1]
    x = np.random.default_rng(0).standard_normal((1, 5000)).astype("float32")
    values = {"x": x, "values": np.zeros((1, k), "float32"), "indices": np.zeros((1, k), "int32")}
    loads = loads_of(code, "x", values, {"rows": 1, "n": 5000}, folder)
    assert loads == 2 * 5000, "the source has the element twice in its key; the compiler makes one load of that"


@pytest.mark.parametrize("k", [8, 32])
def test_top_k_of_long_rows_in_any_order_is_right(k: int, emulated: Emulated) -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((5, 9001)).astype("float32")
    rows[1].sort()
    rows[2] = -np.sort(-rows[2])
    rows[3] = rng.integers(-2, 3, 9001)
    rows[4] = -np.inf
    emulated("top_k", k=k, dtype="float32").compare_for({"x": rows}, {"rows": 5, "n": 9001})


def test_top_k_keeps_its_lists_in_registers_and_has_four_loads_on_their_way(tmp_path: Path) -> None:
    found = instructions(code_of("top_k", k=32), tmp_path)
    assert count(found, "LDG") == 4 and not count(found, "LDL")
    loads = [i for i, name in enumerate(found) if name.startswith("LDG")]
    assert not count(found[loads[0] : loads[-1]], "VOTE"), "nothing is put into a list between them"


# ---- gemv_int8


def test_gemv_int8_has_its_variants_for_one_token_first() -> None:
    (kernel,) = kernels_in("gemv_int8")
    alone = [choice.config["one_token"] for choice in kernel.choices]
    assert alone == sorted(alone, reverse=True) and Counter(alone) == {True: 4, False: 4}
    arguments = {a["name"]: a for a in code_of("gemv_int8", one_token=True).signature["arguments"]}
    assert arguments["x"]["shape"][0] == arguments["y"]["shape"][0] == 1


def test_gemv_int8_of_one_token_loads_16_bytes_at_a_time_before_it_computes(tmp_path: Path) -> None:
    code = code_of("gemv_int8", one_token=True, dtype="float16")
    assert blocks(code, n=4096) == [1024], "a warp for each column"
    found = instructions(code, tmp_path)
    assert count(found, "LDG.E.128") == 4 + 8, "a column is 2048 weights, of which a lane has 4 times 16"
    assert count(found, "FFMA") == 2048 // 32 + 4, "the weights, and a scale for each 16"


# ---- gemm


def test_gemm_float32_loads_the_next_tiles_before_it_computes(tmp_path: Path) -> None:
    found = instructions(code_of("gemm", dtype="float32", block_m=128), tmp_path)
    assert count(found, "BAR.SYNC") == 3, "one before the loop, and one for each of the two steps in it"
    barriers = [i for i, name in enumerate(found) if name.startswith("BAR.SYNC")]
    for number, barrier in enumerate(barriers[:2]):
        computes = next(i for i in range(barrier, len(found)) if found[i].startswith("FFMA"))
        assert count(found[:computes], "LDG.E.128") == (number + 2) * 3, "with step 0 those of step 1"
    assert not count(found, "LDL")
