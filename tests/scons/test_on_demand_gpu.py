"""Compiles a kernel on demand for the GPU of this machine, and calls it there."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from support.project import ROOT

NEEDED = ("torch", "tvm", "nvidia.cu13")


def absent() -> list[str]:
    """What compiling and calling needs, and is not installed here."""
    found = [name for name in NEEDED if importlib.util.find_spec(name.partition(".")[0]) is None]
    return found


@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here")
@pytest.mark.skipif(bool(absent()), reason=f"{', '.join(absent())} not installed")
def test_a_kernel_is_compiled_for_the_gpu_at_hand_and_computes_there(tmp_path: Path) -> None:
    import kernelwright
    import torch

    file = kernelwright.load(ROOT / "kernels" / "softmax.py", cache_dir=str(tmp_path / "cache"))
    softmax = file.softmax.using(target="cuda")
    x = torch.randn(64, 1000, device="cuda")
    y = softmax(x)
    assert torch.allclose(y, torch.softmax(x, 1), atol=1e-6)
    kernel = softmax.compile(columns=1000, dtype="float32")
    assert kernel.cached
    assert kernel.devices >= {"cuda"}
    expected = torch.softmax(x.cpu(), 1).numpy()
    np.testing.assert_allclose(kernel(x).cpu().numpy(), expected, atol=1e-6)
