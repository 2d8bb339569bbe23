"""Runs a package that was built elsewhere on a real GPU.

Needs PyTorch with CUDA, the built package and the cases of ``make_cases.py``, but not TVM.
``KERNELWRIGHT_TEST_PACKAGES`` is the folder that holds the package (default ``build``), ``KERNELWRIGHT_TEST_CASES``
that of the cases (``build/gpu_cases``).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "site_scons"))  # where Kernelwright itself is not installed

from kernelwright.compare import compare  # noqa: E402

PACKAGES = Path(os.environ.get("KERNELWRIGHT_TEST_PACKAGES", ROOT / "build"))
CASES = sorted(Path(os.environ.get("KERNELWRIGHT_TEST_CASES", ROOT / "build" / "gpu_cases")).glob("*.npz"))


def missing() -> str | None:
    """Why these tests cannot run here, or None."""
    if not Path("/dev/nvidiactl").exists():
        return "no NVIDIA GPU here"
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    if not (PACKAGES / "kw_kernels").is_dir():
        return f"no built package in {PACKAGES}"
    return None


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


@pytest.fixture(scope="session")
def kernels() -> Any:
    sys.path.insert(0, str(PACKAGES))
    return importlib.import_module("kw_kernels")


def to_gpu(array: np.ndarray, dtype: str) -> Any:
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(array).copy())
    return (tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor).cuda()


def comparable(array: np.ndarray, dtype: str) -> np.ndarray:
    """The values of an array; bfloat16 comes as its bits, which are the upper half of a float32."""
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else array


def garbage(like: np.ndarray, dtype: str) -> np.ndarray:
    """An output as it may be before the call: what the kernel does not write shows."""
    nan_bits = 0x7FC0
    fill = nan_bits if dtype == "bfloat16" else np.nan if like.dtype.kind == "f" else 113
    return np.full(like.shape, fill).astype(like.dtype)


def to_numpy(tensor: Any) -> np.ndarray:
    import torch

    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


@pytest.mark.parametrize("path", CASES or [None], ids=lambda path: path.stem if path else "no cases")
@pytest.mark.parametrize("leave_out", [False, True], ids=["in place", "allocated"])
@pytest.mark.parametrize("backend", ["tvm_ffi", "cython", "nvrtc", "torch"])
def test_variant_agrees_with_its_reference(kernels, path, leave_out, backend):
    if path is None:
        pytest.skip("no cases: run tests/gpu/make_cases.py where the package was built")
    if backend not in kernels.backends.__all__:
        pytest.skip(f"the package was built without the backend {backend}: scons BACKENDS=tvm_ffi,{backend}")
    case = np.load(path, allow_pickle=False)
    meta = json.loads(str(case["meta"]))
    entry = kernels.manifest()["kernels"][meta["kernel"]]
    specification = entry["variants"][meta["index"]]["arguments"]
    call = getattr(getattr(kernels.backends, backend), meta["kernel"]).variant(**meta["variant"])
    tensors, passed = {}, []
    for argument in specification:
        name = argument["name"]
        if argument["output"]:
            if leave_out:
                continue
            value = garbage(case[f"out_{name}"], argument["dtype"])
        else:
            value = case[f"in_{name}"]
        if argument["kind"] == "tensor":
            tensors[name] = value = to_gpu(value, argument["dtype"])
        else:
            value = value.item()
        passed.append(value)
    returned = call(*passed)
    if leave_out and entry["outputs"]:
        several = list(returned) if len(entry["outputs"]) > 1 else [returned]
        tensors |= dict(zip(entry["outputs"], several, strict=True))
    for argument in specification:
        name = argument["name"]
        if argument["kind"] != "tensor" or f"out_{name}" not in case.files:
            continue
        expected = comparable(case[f"out_{name}"], argument["dtype"])
        got = comparable(to_numpy(tensors[name]), argument["dtype"])
        assert got.shape == expected.shape
        _, mismatch = compare(expected, got, meta["tolerance"][name])
        assert mismatch is None, f"{name} at {meta['sizes']}: {mismatch}"


def test_current_stream_is_used(kernels):
    import torch

    stream = torch.cuda.Stream()
    x = torch.ones(1 << 24, device="cuda")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        y = x * 2
        z = kernels.saxpy(1.0, y, x)
    stream.synchronize()
    assert z.min().item() == z.max().item() == 3.0


def test_graph_capture_after_preload(kernels):
    import torch

    kernels.preload("cuda:0")
    x = torch.ones(1000, device="cuda")
    y, z = torch.ones_like(x), torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.saxpy(2.0, x, y, z)
    x.fill_(5.0)
    graph.replay()
    torch.cuda.synchronize()
    assert z.unique().tolist() == [11.0]


def test_wrong_device_is_an_error(kernels):
    import torch

    with pytest.raises((TypeError, ValueError), match="saxpy"):
        kernels.saxpy(1.0, torch.ones(3, device="cuda"), torch.ones(3))


def test_supported_says_yes_for_a_built_arch(kernels):
    assert kernels.gemm.supported("cuda:0")
