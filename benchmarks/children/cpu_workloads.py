"""What the kernels of the library are measured with on the CPU: inputs, and what PyTorch and NumPy have for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Workload:
    """A call of a kernel, and the same by others.

    Arguments:
        kernel: its name.
        sizes: what is shown of sizes and dtype.
        inputs: arguments in order, without outputs.
        torch: PyTorch's function of these inputs; it is measured as it is, and compiled.
        numpy: NumPy's function of them.
        tolerance: how far our result may be from PyTorch's.
        exact: whether the two results are comparable.
    """

    kernel: str
    sizes: str
    inputs: tuple[Any, ...]
    torch: Callable[..., Tensor]
    numpy: Callable[..., Any] | None = None
    tolerance: float = 1e-2
    exact: bool = True


def workloads(kernels: set[str], tiny: bool) -> Iterator[Workload]:
    """The workloads of some kernels, one after the other: a few sizes each, or a tiny one."""
    torch.manual_seed(0)
    for name in sorted(kernels & set(MAKERS)):
        sizes, make = MAKERS[name]
        for size in sizes[:1] if tiny else sizes:
            yield from make(size)


def _random(*shape: int, dtype: str = "float32") -> Tensor:
    return torch.randn(*shape).to(getattr(torch, dtype))


def _cumsum(rows: int) -> Iterator[Workload]:
    x = _random(rows, 32768)
    yield Workload("cumsum", f"{rows}x32768", (x,), lambda x: torch.cumsum(x, -1))


def _decode_attention(batch: int) -> Iterator[Workload]:
    length = 1024

    def attention(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
        keys, values = k.transpose(1, 2), v.transpose(1, 2)
        return F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)[:, :, 0]

    for dtype in ("float32", "float16"):
        q = _random(batch, 16, 128, dtype=dtype)
        k, v = (_random(batch, length, 4, 128, dtype=dtype) for _ in range(2))
        lengths = torch.full((batch,), length, dtype=torch.int32)
        yield Workload("decode_attention", f"batch={batch} length={length} {dtype}", (q, k, v, lengths), attention)


def _gemm(m: int) -> Iterator[Workload]:
    n = k = 1024
    for dtype in ("float32", "float16"):
        a, b = _random(m, k, dtype=dtype), (_random(k, n) / math.sqrt(k)).to(getattr(torch, dtype))
        yield Workload("gemm", f"{m}x{n}x{k} {dtype}", (a, b), torch.matmul, np.matmul if dtype == "float32" else None)


def _gemv_int8(tokens: int) -> Iterator[Workload]:
    n, k, group = 4096, 2048, 128

    def product(x: Tensor, w: Tensor, scales: Tensor) -> Tensor:
        weights = w.view(n, k // group, group).to(x.dtype) * scales[:, :, None]
        return F.linear(x, weights.view(n, k))

    for dtype in ("float32", "float16"):
        x = _random(tokens, k, dtype=dtype)
        w = torch.randint(-127, 128, (n, k), dtype=torch.int8)
        scales = (torch.rand(n, k // group) / 1000).to(x.dtype)
        yield Workload("gemv_int8", f"tokens={tokens} {n}x{k} {dtype}", (x, w, scales), product, tolerance=2e-2)


def _layer_norm(tokens: int) -> Iterator[Workload]:
    for dtype in ("float32", "float16"):
        inputs = (_random(tokens, 1280, dtype=dtype), _random(1280, dtype=dtype), _random(1280, dtype=dtype))
        yield Workload(
            "layer_norm", f"{tokens}x1280 {dtype}", inputs, lambda x, w, b: F.layer_norm(x, (1280,), w, b, 1e-5)
        )


def _quantize_int8(tokens: int) -> Iterator[Workload]:
    def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.float().abs().amax(-1) / 127
        return (x.float() / scale[:, None]).round().to(torch.int8), scale

    x = _random(tokens, 4096, dtype="float16")
    yield Workload("quantize_int8", f"{tokens}x4096 float16", (x,), quantize, exact=False)


def _rms_norm(tokens: int) -> Iterator[Workload]:
    for dtype in ("float32", "float16", "bfloat16"):
        inputs = (_random(tokens, 4096, dtype=dtype), _random(4096, dtype=dtype))
        yield Workload("rms_norm", f"{tokens}x4096 {dtype}", inputs, lambda x, w: F.rms_norm(x, (4096,), w, 1e-5))


def _rope(tokens: int) -> Iterator[Workload]:
    def rotated(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
        first, second = x.float().chunk(2, -1)
        return torch.cat([first * c - second * s, second * c + first * s], -1).to(x.dtype)

    def rotate(query: Tensor, key: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
        c, s = cos[positions][:, None], sin[positions][:, None]
        query.copy_(rotated(query, c, s))
        key.copy_(rotated(key, c, s))

    angles = torch.rand(4096, 64)
    positions = torch.randint(0, 4096, (tokens,), dtype=torch.int32)
    query, key = (_random(tokens, heads, 128, dtype="float16") for heads in (32, 8))
    inputs = (query, key, positions, angles.cos(), angles.sin())
    yield Workload("rope", f"tokens={tokens} float16", inputs, rotate, exact=False)


def _row_argmax(rows: int) -> Iterator[Workload]:
    x = _random(rows, 32000, dtype="float16")
    yield Workload("row_argmax", f"{rows}x32000 float16", (x,), lambda x: torch.argmax(x, -1), exact=False)


def _row_sum(rows: int) -> Iterator[Workload]:
    yield Workload("row_sum", f"{rows}x1000", (_random(rows, 1000),), lambda x: torch.sum(x, -1))


def _saxpy(n: int) -> Iterator[Workload]:
    yield Workload("saxpy", f"n={n}", (2.5, _random(n), _random(n)), lambda alpha, x, y: alpha * x + y)


def _softmax(rows: int) -> Iterator[Workload]:
    for dtype in ("float32", "float16"):
        x = _random(rows, 4096, dtype=dtype)
        yield Workload("softmax", f"{rows}x4096 {dtype}", (x,), lambda x: torch.softmax(x, -1))


def _swiglu(tokens: int) -> Iterator[Workload]:
    hidden = 11008
    for dtype in ("float16", "bfloat16"):
        x = _random(tokens, 2 * hidden, dtype=dtype)
        yield Workload(
            "swiglu",
            f"{tokens}x{hidden} {dtype}",
            (x,),
            lambda x: F.silu(x[:, :hidden]) * x[:, hidden:],
            tolerance=3e-2,
        )


def _top_k(rows: int) -> Iterator[Workload]:
    for k in (8, 32):
        # Which k is taken is decided by the outputs, so ours gets them.
        values, indices = torch.empty(rows, k), torch.empty(rows, k, dtype=torch.int32)
        inputs = (_random(rows, 32000), values, indices)
        yield Workload(
            "top_k", f"{rows}x32000 k={k}", inputs, lambda x, v, i: torch.topk(x, v.shape[1])[0], exact=False
        )


def _top_p_sampling(rows: int) -> Iterator[Workload]:
    def draw(probs: Tensor, uniform: Tensor, top_p: float) -> Tensor:
        ordered, places = torch.sort(probs, -1, descending=True)
        sums = ordered.cumsum(-1)
        kept = torch.where(sums - ordered < top_p, ordered, 0.0).cumsum(-1)
        chosen = torch.searchsorted(kept, uniform[:, None] * kept[:, -1:])
        return places.gather(-1, chosen.clamp(max=probs.shape[1] - 1))[:, 0]

    probs = torch.softmax(3 * _random(rows, 32000), -1)
    yield Workload("top_p_sampling", f"{rows}x32000", (probs, torch.rand(rows), 0.9), draw, exact=False)


def _transpose(rows: int) -> Iterator[Workload]:
    for dtype in ("float32", "float16"):
        x = _random(rows, rows + 64, dtype=dtype)
        yield Workload("transpose", f"{rows}x{rows + 64} {dtype}", (x,), lambda x: x.t().contiguous())


MAKERS: dict[str, tuple[tuple[int, ...], Callable[[int], Iterator[Workload]]]] = {
    "cumsum": ((1, 64), _cumsum),
    "decode_attention": ((1, 8), _decode_attention),
    "gemm": ((1, 8, 16, 64, 256, 1024), _gemm),
    "gemv_int8": ((1, 4), _gemv_int8),
    "layer_norm": ((1, 64, 2048), _layer_norm),
    "quantize_int8": ((1, 64, 1024), _quantize_int8),
    "rms_norm": ((1, 64, 1024), _rms_norm),
    "rope": ((1, 64), _rope),
    "row_argmax": ((1, 64), _row_argmax),
    "row_sum": ((16, 4096), _row_sum),
    "saxpy": ((4096, 1 << 22), _saxpy),
    "softmax": ((1, 64, 1024), _softmax),
    "swiglu": ((1, 64), _swiglu),
    "top_k": ((1, 16), _top_k),
    "top_p_sampling": ((1, 8), _top_p_sampling),
    "transpose": ((512, 2048), _transpose),
}
"""Kernel -> its first sizes, and what makes the workloads of one."""
