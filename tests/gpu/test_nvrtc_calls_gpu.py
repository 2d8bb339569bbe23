"""The nvrtc backend on a real GPU: a package that was built elsewhere with ``BACKENDS=tvm_ffi,nvrtc``.

Needs PyTorch with CUDA, cuda-core and the package; see ``test_kernels.py`` for where it is looked for. Kernels are
compared with what PyTorch computes, and with the same kernels called through tvm-ffi's backend where that is there.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from test_kernels import PACKAGES, missing


def missing_here() -> str | None:
    """Why these tests cannot run here, or None."""
    if missing() is not None:
        return missing()
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        return "cuda-core is not installed"
    if not (PACKAGES / "kw_kernels" / "backends" / "nvrtc").is_dir():
        return f"the package in {PACKAGES} was not built with the backend nvrtc"
    return None


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(missing_here() is not None, reason=str(missing_here()))]


@pytest.fixture(scope="module")
def kernels() -> Any:
    import sys

    sys.path.insert(0, str(PACKAGES))
    return importlib.import_module("kw_kernels.backends.nvrtc")


def test_saxpy_agrees_with_pytorch_in_place_and_allocated(kernels: Any) -> None:
    import torch

    x, y = torch.rand(100_003, device="cuda"), torch.rand(100_003, device="cuda")
    z = torch.full_like(x, torch.nan)
    assert kernels.saxpy(2.5, x, y, z) is None
    torch.testing.assert_close(z, 2.5 * x + y)
    made = kernels.saxpy(2.5, x, y)
    assert isinstance(made, torch.Tensor) and made.is_cuda
    torch.testing.assert_close(made, z)


def test_a_kernel_with_more_than_48_kib_of_shared_memory_runs(kernels: Any) -> None:
    import torch

    a = torch.rand(300, 1024, device="cuda", dtype=torch.float16)
    b = torch.rand(1024, 1024, device="cuda", dtype=torch.float16)
    torch.testing.assert_close(kernels.gemm(a, b).float(), a.float() @ b.float(), rtol=2e-2, atol=0.5)


def test_the_current_stream_is_used(kernels: Any) -> None:
    import torch

    stream = torch.cuda.Stream()
    x = torch.ones(1 << 24, device="cuda")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        y = x * 2
        z = kernels.saxpy(1.0, y, x)
    stream.synchronize()
    assert z.min().item() == z.max().item() == 3.0


def test_a_stream_can_be_given(kernels: Any) -> None:
    import torch

    stream = torch.cuda.Stream()
    x = torch.ones(1 << 24, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        y = x * 2
    z = kernels.saxpy(1.0, y, x, stream=stream)
    stream.synchronize()
    assert z.min().item() == z.max().item() == 3.0


def test_graph_capture_after_preload(kernels: Any) -> None:
    import torch

    kernels.saxpy.preload("cuda:0")
    x = torch.ones(1000, device="cuda")
    y, z = torch.ones_like(x), torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.saxpy(2.0, x, y, z)
    x.fill_(5.0)
    graph.replay()
    torch.cuda.synchronize()
    assert z.unique().tolist() == [11.0]


def test_outputs_for_arrays_of_no_framework_are_seen_through_dlpack(kernels: Any) -> None:
    import torch

    class Plain:
        """An array of a library that offers DLPack only."""

        def __init__(self, tensor: torch.Tensor) -> None:
            self._tensor = tensor

        def __dlpack__(self, **options: Any) -> Any:
            return self._tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self._tensor.__dlpack_device__()

    x = torch.rand(1000, device="cuda")
    z = torch.from_dlpack(kernels.saxpy(2.0, Plain(x), Plain(x)))
    torch.cuda.synchronize()
    torch.testing.assert_close(z, 3.0 * x)


def test_wrong_device_is_an_error(kernels: Any) -> None:
    import torch

    with pytest.raises(ValueError, match="kernel 'saxpy': argument 'y' is on cpu"):
        kernels.saxpy(1.0, torch.ones(3, device="cuda"), torch.ones(3))
