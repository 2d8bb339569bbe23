"""Runs a package that was built elsewhere on a real GPU, through every backend with arrays of every library.

Needs PyTorch, the built package and the cases of ``make_cases.py``, but not TVM; ``conftest.py`` says where they are
looked for.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import LIBRARIES, ROOT, Device, backends, named
from example_calls import comparable, garbage
from kernelwright.runtime.arch import suitable
from kernelwright.worker.compare import compare

pytestmark = pytest.mark.gpu

TARGETS = {"cpu": "llvm", "cuda": "cuda"}

CASES = Path(os.environ.get("KERNELWRIGHT_TEST_CASES", ROOT / "build" / "gpu_cases"))


def listed() -> list[dict[str, Any]]:
    """The cases of variants with code for this kind of device: file, kernel, variant, and what the arguments are."""
    index = CASES / "index.json"
    cases = json.loads(index.read_text()) if index.exists() else []
    return [case for case in cases if TARGETS[named()] in case["targets"]]


def fits(case: dict[str, Any], backend: str, library: str, leave_out: bool) -> bool:
    """Whether a case can be called in that way."""
    if library == "cupy" and "bfloat16" in case["dtypes"]:
        return False  # CuPy has no such arrays
    if backend == "jax":
        return leave_out  # the only form of its calls
    if library == "jax":
        return leave_out and not case["writes_inputs"]  # its arrays cannot be written
    return not leave_out or case["has_outputs"]


def calls() -> list[Any]:
    """All calls, as parameters."""
    return [
        pytest.param(case, backend, library, leave_out, id=f"{case['file'][:-4]} {backend} {library} {way}")
        for backend in backends(*LIBRARIES)
        for library in LIBRARIES[backend]
        for case in listed()
        for leave_out, way in ((False, "in place"), (True, "allocated"))
        if fits(case, backend, library, leave_out)
    ]


@functools.lru_cache(maxsize=8)
def arrays_of(file: str) -> dict[str, np.ndarray]:
    """The arrays of a case by name."""
    with np.load(CASES / file, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def passed(
    device: Device, case: dict[str, Any], arguments: list[dict[str, Any]], library: str, leave_out: bool
) -> tuple[list[Any], dict[str, Any]]:
    """What is passed by position, and the arrays among it by name."""
    arrays, values, by_name = arrays_of(case["file"]), [], {}
    for argument in arguments:
        name = argument["name"]
        if argument["output"] and leave_out:
            continue
        value: Any = garbage(arrays[f"out_{name}"], argument["dtype"]) if argument["output"] else arrays[f"in_{name}"]
        if argument["kind"] == "tensor":
            value = by_name[name] = device.make(library, value, argument["dtype"])
        else:
            value = value.item()
        values.append(value)
    return values, by_name


def test_there_are_cases() -> None:
    if not listed():
        pytest.skip(f"no cases in {CASES}: run tests/gpu/pack.py, or make_cases.py, where the package was built")


@pytest.mark.parametrize(("case", "backend", "library", "leave_out"), calls())
def test_variant_agrees_with_its_reference(kernels, device, case, backend, library, leave_out):
    entry = kernels.manifest()["kernels"][case["kernel"]]
    built = entry["variants"][case["index"]]
    if device.capability is not None and not suitable(archs_of(built), device.capability):
        pytest.skip("the variant is built for other archs only")
    arguments = built["arguments"]
    call = getattr(getattr(kernels.backends, backend), case["kernel"]).variant(**case["variant"])
    values, tensors = passed(device, case, arguments, library, leave_out)
    returned = call(*values)
    if leave_out:
        names = [a["name"] for a in arguments if a["output"]]
        if backend == "jax":
            names += [a["name"] for a in arguments if a["written"] and not a["output"]]
        tensors |= dict(zip(names, returned if len(names) > 1 else [returned], strict=True))
    check(device, case, arguments, tensors)


def archs_of(built: dict[str, Any]) -> list[str]:
    """The archs that a variant has CUDA code for."""
    return [arch for unit in built["units"] if unit["target"] == "cuda" for arch in unit["archs"]]


def check(device: Device, case: dict[str, Any], arguments: list[dict[str, Any]], tensors: dict[str, Any]) -> None:
    """Compare what a call has written with what was expected."""
    arrays = arrays_of(case["file"])
    for argument in arguments:
        name = argument["name"]
        if argument["kind"] != "tensor" or f"out_{name}" not in arrays:
            continue
        expected = comparable(arrays[f"out_{name}"], argument["dtype"])
        got = comparable(device.values(tensors[name]), argument["dtype"])
        assert got.shape == expected.shape
        _, mismatch = compare(expected, got, case["tolerance"][name])
        assert mismatch is None, f"{name} at {case['sizes']}: {mismatch}"


@pytest.mark.parametrize("backend", backends("tvm_ffi", "cython", "cuda_core", "torch") if named() == "cuda" else [])
def test_wrong_device_is_an_error(kernels: Any, device: Device, backend: str) -> None:
    there, here = device.make("torch", np.ones(3, "float32")), Device().make("torch", np.ones(3, "float32"))
    with pytest.raises((TypeError, ValueError), match="saxpy"):
        getattr(kernels.backends, backend).saxpy(1.0, there, here)


@pytest.mark.parametrize("backend", backends("tvm_ffi", "cython", "cuda_core", "torch") if named() == "cuda" else [])
def test_gemm_uses_wgmma_where_the_gpu_has_it(kernels: Any, device: Device, backend: str) -> None:
    rng = np.random.default_rng(0)
    gemm = getattr(kernels.backends, backend).gemm
    for n in (1024, 4096):
        b = (rng.standard_normal((1024, n)) / 32).astype("float16")
        for m in (1, 16, 63, 64, 65, 200, 1000):
            a = rng.standard_normal((m, 1024)).astype("float16")
            passed = [device.make("torch", array, "float16") for array in (a, b)]
            expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
            for _ in range(3):  # a race need not show at once
                _, mismatch = compare(expected, device.values(gemm(*passed)), 1e-2)
                assert mismatch is None, f"m = {m}, n = {n}: {mismatch}"
            chosen = gemm.choice(*passed)
            assert ("wgmma" in chosen.variant) == (device.capability == 90), chosen.reason


def test_supported_says_yes_for_a_built_arch(kernels: Any, device: Device) -> None:
    assert kernels.saxpy.supported(f"{device.kind}:0")
