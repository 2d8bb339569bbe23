"""``gemm`` by wgmma and TMA: results, instructions, and that mistakes in such code are found.

No GPU is needed. What a GPU would do is emulated (``wgmma_on_cpu.cpp``) by the layouts of the PTX ISA.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulation import Comparison, Emulation, EmulationError, Lowered, kernels_in, lowered, machine_code
from kernelwright.define.configs import Variant

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

SMALL = {"n": 128, "k": 320, "dtype": "float16", "wgmma": True}
"""One more step along k than there are stages, and one block along n."""


@functools.cache
def code_of(block_m: int, n: int = 1024, k: int = 1024) -> Lowered:
    (kernel,) = kernels_in("gemm")
    config = {**SMALL, "n": n, "k": k, "block_m": block_m}
    return lowered(kernel, Variant(kernel.name, config, f"block_m-{block_m}_n-{n}"), "sm_90a")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all that is compiled."""
    return tmp_path_factory.mktemp("wgmma")


# ---- results


@needs_compiler
@pytest.mark.parametrize("block_m", [64, 128])
def test_it_computes_what_its_reference_says_for_any_number_of_rows(block_m: int, folder: Path) -> None:
    comparison = Comparison(code_of(block_m, 256), folder / f"gemm_{block_m}")
    for backwards, sizes in ((False, (1, 200)), (True, (65,))):
        for m in sizes:
            assert comparison.compare({"m": m}, backwards)
    assert comparison.compare({"m": 0}), "nothing is launched"


# ---- mistakes


def without(text: str) -> tuple[str, str]:
    return text, ""


WAIT_FULL = r"tvm_builtin_cuda_mbarrier_wait\(.*\bstep_1\b.*\);"

MISTAKES: dict[str, tuple[tuple[str, str], str]] = {
    "no fence before wgmma": (without(r"(?m)^ +tvm_builtin_ptx_wgmma_fence\w+\(\);"), "no wgmma.fence since"),
    "a stage is given back too early": (
        (r"wgmma\.wait_group\.sync\.aligned 1;", "wgmma.wait_group.sync.aligned 7;"),
        "",
    ),
    "nobody waits for tiles": (without(WAIT_FULL), ""),
    "fewer bytes are expected": ((r"\(uint\)24576", "(uint)24560"), "threads wait for others"),
    "lanes that differ": ((r"\(0 < step_1\)\);", "(threadIdx.x & 1));"), "different operands"),
}
"""What is changed in the generated code, and what the error says; nothing: the result is wrong in one of the orders."""


@needs_compiler
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name: str, folder: Path) -> None:
    (pattern, replacement), message = MISTAKES[name]
    code = code_of(64, 128, 320)
    head, kernel = code.source.rsplit('extern "C" __global__', 1)
    changed = re.sub(pattern, replacement, kernel)
    source = head + 'extern "C" __global__' + changed
    if changed == kernel:
        source = re.sub(pattern, replacement, head) + 'extern "C" __global__' + kernel
    assert source != code.source
    emulation = Emulation(code.signature, source, folder / name.replace(" ", "_"))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((70, 320)).astype("float16"), rng.standard_normal((320, 128)).astype("float16")
    values = {"a": a, "b": b, "c": np.zeros((70, 128), "float16")}
    expected = a.astype("float32") @ b.astype("float32")
    found = []
    for backwards in (False, True):
        try:
            got = emulation(values, {"m": 70}, backwards)["c"]
            found.append("" if np.allclose(got, expected, atol=0.1, rtol=0.01) else "wrong")
        except EmulationError as error:
            found.append(str(error))
    assert any(message in text if message else text for text in found), found


@pytest.fixture(scope="module")
def mapped(folder: Path) -> Emulation:
    code = code_of(64, 128, 320)
    return Emulation(code.signature, code.source, folder / "maps")


@needs_compiler
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"swizzle": 2}, "rows of a box that are longer than its swizzle"),
        ({"box": [64, 257]}, "a box that is too large"),
        ({"strides": [648]}, "a stride that is no multiple of 16"),
        ({"interleave": 1}, "modes that are not emulated"),
        ({"swizzle": 0}, "wrong"),
        ({"sizes": [320, "m + 3"]}, ""),
    ],
)
def test_tensor_maps_of_another_form_are_found(change: dict[str, Any], message: str, mapped: Emulation) -> None:
    signature = json.loads(json.dumps(code_of(64, 128, 320).signature))
    map_of_a = next(one for one in signature["tensor_maps"] if one["tensor"] == "a")
    map_of_a.update(change)
    emulation = mapped.described(signature)
    values = {
        "a": np.ones((5, 320), "float16"),
        "b": np.eye(320, 128, dtype="float16"),
        "c": np.zeros((5, 128), "float16"),
    }
    values["a"] *= np.arange(320, dtype="float16")
    try:
        right = np.array_equal(emulation(values, {"m": 5})["c"], values["a"][:, :128])
        found = "" if right else "wrong"
    except EmulationError as error:
        found = str(error)
    assert message in found if message else not found, "rows behind the array are computed and not stored"


# ---- instructions


@pytest.fixture(scope="module")
def code(folder: Path) -> str:
    """What ptxas says, and the text of nvdisasm."""
    return "".join(machine_code(code_of(128).source, folder))


def test_its_machine_code_has_wgmma_and_tma_and_keeps_sums_in_registers(code: str) -> None:
    assert re.findall(r"\bHGMMA\.[\w.]+", code) and set(re.findall(r"\bHGMMA\.[\w.]+", code)) == {"HGMMA.64x128x16.F32"}
    assert re.search(r"\bUTMALDG\.2D\b", code), "copies by tensor maps"
    assert re.search(r"\bSYNCS\.PHASECHK\b", code), "waits for barriers in shared memory"
    assert not re.search(r"\b(LDL|STL|LDG|LDGSTS|HMMA)\b", code), "no spills, and no other way to load or to multiply"
    assert "0 bytes spill stores, 0 bytes spill loads" in code
    assert "serialized" not in code, "ptxas found nothing that makes wgmma wait"


def test_products_run_while_the_next_ones_are_started(code: str) -> None:
    """The wait in the loop leaves one group of products unfinished."""
    waits = re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+)", code)
    assert waits.count("0x1") >= len(waits) - 1 and waits[-1] == "0x0"


# ---- how it enters the library


def test_it_is_preferred_for_sm_90a_and_float16_and_has_the_arguments_of_the_declared_variant() -> None:
    (kernel,) = kernels_in("gemm")
    preferred = {choice.config["dtype"]: choice.preferred for choice in kernel.choices}
    assert preferred == {"float16": {"sm_90a": {"block_m": 128, "wgmma": True}}, "float32": {}}
    assert all("wgmma" not in (choice.declared("cuda") or {}) for choice in kernel.choices)
    (kernel,) = kernels_in("gemm")
    declared = lowered(kernel, next(v for v in kernel.variants if v.config == kernel.choices[0].declared("cuda")))
    preferred = code_of(128)
    assert preferred.signature["arguments"] == declared.signature["arguments"]
