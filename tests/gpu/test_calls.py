"""Calls on a real GPU that are not about values: streams, graphs, outputs, and kernels of much shared memory.

What PyTorch computes is what kernels are compared with.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import pytest
from devices import Device, Plain, backends

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None

pytestmark = pytest.mark.gpu

BOTH = pytest.mark.parametrize("backend", backends("cython", "nvrtc"))
ALL = pytest.mark.parametrize("backend", backends("tvm_ffi", "cython", "nvrtc", "torch"))
"""Backends that take a stream, and all that are called with PyTorch's tensors."""


def of(kernels: Any, backend: str) -> Any:
    return getattr(kernels.backends, backend)


def ones(device: Device, count: int = 1000) -> Any:
    return device.tensor(np.ones(count, np.float32))


@ALL
def test_saxpy_agrees_with_pytorch_in_place_and_allocated(kernels: Any, device: Device, backend: str) -> None:
    x, y = (torch.rand(100_003, device=device.kind) for _ in range(2))
    z = torch.full_like(x, torch.nan)
    saxpy = of(kernels, backend).saxpy
    assert saxpy(2.5, x, y, z) is None
    torch.testing.assert_close(z, 2.5 * x + y)
    made = torch.from_dlpack(saxpy(2.5, x, y))
    assert made.device.type == device.kind
    torch.testing.assert_close(made, z)


@ALL
def test_the_current_stream_is_used(kernels: Any, device: Device, backend: str) -> None:
    stream, x = device.stream(), ones(device, 1 << 24)
    device.wait()
    with device.on(stream):
        device.sleep(stream)
        y = x * 2
        z = torch.from_dlpack(of(kernels, backend).saxpy(1.0, y, x))
    device.wait(stream)
    assert z.min().item() == z.max().item() == 3.0


@BOTH
def test_a_stream_can_be_given(kernels: Any, device: Device, backend: str) -> None:
    stream, x = device.stream(), ones(device, 1 << 24)
    z = torch.empty_like(x)
    device.wait()
    with device.on(stream):
        device.sleep(stream)
        y = x * 2
    of(kernels, backend).saxpy(1.0, y, x, z, stream=stream)
    device.wait(stream)
    assert z.min().item() == z.max().item() == 3.0


@ALL
def test_graph_capture_after_preload(kernels: Any, device: Device, backend: str) -> None:
    saxpy = of(kernels, backend).saxpy
    saxpy.preload(f"{device.kind}:0")
    x = ones(device)
    y, z = torch.ones_like(x), torch.empty_like(x)
    replay, _ = device.captured(lambda: saxpy(2.0, x, y, z))
    x.fill_(5.0)
    replay()
    device.wait()
    assert z.unique().tolist() == [11.0]


@BOTH
def test_outputs_for_arrays_of_no_framework_are_seen_through_dlpack(kernels: Any, device: Device, backend: str) -> None:
    x = torch.rand(1000, device=device.kind)
    z = torch.from_dlpack(of(kernels, backend).saxpy(2.0, Plain(x), Plain(x)))
    device.wait()
    torch.testing.assert_close(z, 3.0 * x)


@ALL
def test_more_than_48_kib_of_shared_memory(kernels: Any, device: Device, backend: str) -> None:
    probes = importlib.import_module(f"gpu_probes.backends.{backend}")
    x = torch.rand(300, 16384, device=device.kind)
    torch.testing.assert_close(torch.from_dlpack(probes.wide(x)), x.flip(1))
