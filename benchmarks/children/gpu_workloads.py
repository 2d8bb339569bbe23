"""What the kernels of the library are measured with on a GPU: inputs, what PyTorch has for it, and what has to move.

A workload counts the bytes that have to be read and written once, and the operations that the result needs: whatever a
kernel does beyond that is its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

SIZES = {
    "saxpy": (1 << 16, 1 << 26),
    "cumsum": (32, 2048),
    "decode_attention": (8, 64),
    "gemm": (64, 4096),
    "gemv_int8": (1, 8),
    "layer_norm": (64, 32768),
    "quantize_int8": (64, 16384),
    "rms_norm": (64, 16384),
    "rope": (64, 8192),
    "row_argmax": (64, 4096),
    "row_sum": (1024, 131072),
    "softmax": (64, 16384),
    "swiglu": (64, 4096),
    "top_k": (64, 1024),
    "top_p_sampling": (64, 512),
    "transpose": (512, 8192),
}
"""Kernel -> its first size, small and large."""


@dataclass(frozen=True)
class Workload:
    """A call of a kernel, and the same by others.

    Arguments:
        kernel, config: what is called, and what the config of the variant that the call chooses has.
        sizes: what is shown of the sizes.
        inputs: arguments in order, without outputs.
        outputs: tensors for the outputs, in order.
        peers: who else computes it -> how; the first one's result is compared with ours, if it returns one.
        bytes: to be read and written once.
        operations: of floating point; 0 where the time is that of the memory.
        exact: whether the peer's result is comparable with ours.
    """

    kernel: str
    config: dict[str, Any]
    sizes: str
    inputs: tuple[Any, ...]
    outputs: tuple[torch.Tensor, ...]
    peers: Mapping[str, Callable[..., Any]]
    bytes: int
    operations: int = 0
    exact: bool = True
    tolerance: float = field(default=1e-2)


class Maker:
    """Makes workloads on a device: a small and a large one of each kernel, or tiny ones.

    Arguments:
        device: ``cuda`` or ``cpu``.
        tiny: only see whether everything runs.
    """

    def __init__(self, device: str, tiny: bool) -> None:
        self._device = device
        self._tiny = tiny
        torch.manual_seed(0)

    def all(self, kernels: set[str]) -> Iterator[Workload]:
        """The workloads of some kernels, one after the other, since together they may not fit into the memory."""
        for name in sorted(kernels):
            make = getattr(self, name, None)
            if make is not None:
                for size in (2, 3) if self._tiny else SIZES[name]:
                    yield from make(size)

    def random(self, *shape: int, dtype: str = "float32") -> torch.Tensor:
        """Normal numbers."""
        return torch.randn(*shape, device=self._device).to(getattr(torch, dtype))

    def empty(self, *shape: int, dtype: str = "float32") -> torch.Tensor:
        """A tensor for an output."""
        return torch.empty(*shape, device=self._device, dtype=getattr(torch, dtype))

    # ---- one function for each kernel

    def saxpy(self, n: int) -> Iterator[Workload]:
        """Beside torch.add."""
        x, y, z = self.random(n), self.random(n), self.empty(n)
        peer = self.empty(n)
        peers = {"torch.add": lambda: torch.add(y, x, alpha=2.5, out=peer)}
        yield Workload("saxpy", {}, f"n={n}", (2.5, x, y), (z,), peers, 12 * n)

    def cumsum(self, rows: int) -> Iterator[Workload]:
        """Beside torch.cumsum."""
        columns = 50 if self._tiny else 32768
        x, y = self.random(rows, columns), self.empty(rows, columns)
        peers = {"torch.cumsum": lambda: torch.cumsum(x, -1)}
        yield Workload("cumsum", {"dtype": "float32"}, f"{rows}x{columns}", (x,), (y,), peers, 8 * x.numel())

    def decode_attention(self, batch: int) -> Iterator[Workload]:
        """Beside scaled_dot_product_attention with full lengths."""
        heads, groups, dim, length = 16, 4, 128, 20 if self._tiny else 4096
        q = self.random(batch, heads, dim, dtype="float16")
        k, v = (self.random(batch, length, groups, dim, dtype="float16") for _ in range(2))
        lengths = torch.full((batch,), length, dtype=torch.int32, device=self._device)
        queries, keys, values = q[:, :, None], k.transpose(1, 2), v.transpose(1, 2)

        def attention() -> torch.Tensor:
            return F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)[:, :, 0]

        config = {"heads": heads, "kv_heads": groups, "head_dim": dim, "dtype": "float16"}
        moved, out = 2 * k.numel() * 2 + 2 * q.numel() * 2, self.empty(batch, heads, dim, dtype="float16")
        sizes, peers = f"batch={batch} length={length}", {"scaled_dot_product_attention": attention}
        yield Workload("decode_attention", config, sizes, (q, k, v, lengths), (out,), peers, moved)

    def gemm(self, m: int) -> Iterator[Workload]:
        """Beside cuBLAS."""
        for n, dtype in ((4096, "float16"), (1024, "float32")):
            k, size = 1024, 2 if dtype == "float16" else 4
            a, b, c = self.random(m, k, dtype=dtype), self.random(k, n, dtype=dtype), self.empty(m, n, dtype=dtype)
            b /= math.sqrt(k)
            peer = torch.empty_like(c)
            config = {"n": n, "k": k, "dtype": dtype}
            moved = size * (m * k + k * n + m * n)
            peers = {"cuBLAS": lambda a=a, b=b, peer=peer: torch.matmul(a, b, out=peer)}
            sizes = f"{m}x{n}x{k} {dtype}"
            yield Workload("gemm", config, sizes, (a, b), (c,), peers, moved, 2 * m * n * k)

    def gemv_int8(self, tokens: int) -> Iterator[Workload]:
        """Beside cuBLAS with the same weights in float16, which are twice as many bytes."""
        k, group, n = 2048, 128, 40 if self._tiny else 8192
        x, y = self.random(tokens, k, dtype="float16"), self.empty(tokens, n, dtype="float16")
        w = torch.randint(-127, 128, (n, k), device=self._device, dtype=torch.int8)
        scales = (torch.rand(n, k // group, device=self._device) / 1000).to(torch.float16)
        weights = (w.float() * scales.float().repeat_interleave(group, 1)).to(torch.float16)
        moved = n * k + 2 * scales.numel() + 2 * x.numel() + 2 * y.numel()
        config = {"one_token": tokens == 1, "k": k, "group": group, "dtype": "float16"}
        sizes = f"tokens={tokens} n={n}"
        peers = {"cuBLAS, float16 weights": lambda: F.linear(x, weights)}
        yield Workload("gemv_int8", config, sizes, (x, w, scales), (y,), peers, moved)

    def layer_norm(self, tokens: int) -> Iterator[Workload]:
        """Beside layer_norm."""
        for dtype, size in (("float16", 2), ("float32", 4)):
            x, w, b = (self.random(*shape, dtype=dtype) for shape in ((tokens, 1280), (1280,), (1280,)))
            peers = {"layer_norm": lambda x=x, w=w, b=b: F.layer_norm(x, (1280,), w, b, 1e-5)}
            config = {"hidden": 1280, "dtype": dtype}
            moved = 2 * size * x.numel()
            yield Workload(
                "layer_norm", config, f"{tokens}x1280 {dtype}", (x, w, b), (torch.empty_like(x),), peers, moved
            )

    def quantize_int8(self, tokens: int) -> Iterator[Workload]:
        """Beside PyTorch's operators, of which several are needed."""
        x = self.random(tokens, 4096, dtype="float16")
        q, scale = self.empty(tokens, 4096, dtype="int8"), self.empty(tokens)

        def quantize() -> torch.Tensor:
            scales = x.abs().amax(-1).float() / 127
            return (x / scales[:, None]).round().to(torch.int8)

        config, peers = {"hidden": 4096, "dtype": "float16"}, {"PyTorch, several operators": quantize}
        yield Workload(
            "quantize_int8", config, f"{tokens}x4096", (x,), (q, scale), peers, 3 * x.numel() + 4 * tokens, exact=False
        )

    def rms_norm(self, tokens: int) -> Iterator[Workload]:
        """Beside rms_norm."""
        for dtype in ("float16", "bfloat16"):
            x, w = self.random(tokens, 4096, dtype=dtype), self.random(4096, dtype=dtype)
            peers = {"rms_norm": lambda x=x, w=w: F.rms_norm(x, (4096,), w, 1e-5)}
            config, made = {"hidden": 4096, "dtype": dtype}, torch.empty_like(x)
            yield Workload("rms_norm", config, f"{tokens}x4096 {dtype}", (x, w), (made,), peers, 4 * x.numel())

    def rope(self, tokens: int) -> Iterator[Workload]:
        """Beside PyTorch's operators, of which several are needed; ours is in place."""
        query, key = (self.random(tokens, heads, 128, dtype="float16") for heads in (32, 8))
        angles = torch.rand(4096, 64, device=self._device)
        positions = torch.randint(0, 4096, (tokens,), device=self._device, dtype=torch.int32)
        cos, sin = angles.cos(), angles.sin()

        def rotate(x: torch.Tensor) -> torch.Tensor:
            c, s = cos[positions][:, None], sin[positions][:, None]
            first, second = x.float().chunk(2, -1)
            return torch.cat([first * c - second * s, second * c + first * s], -1).to(x.dtype)

        config = {"heads": 32, "kv_heads": 8, "head_dim": 128, "dtype": "float16"}
        inputs, moved = (query, key, positions, cos, sin), 4 * (query.numel() + key.numel())
        peers = {"PyTorch, several operators": lambda: (rotate(query), rotate(key))}
        yield Workload("rope", config, f"tokens={tokens}", inputs, (), peers, moved, exact=False)

    def row_argmax(self, rows: int) -> Iterator[Workload]:
        """Beside argmax."""
        x, index = self.random(rows, 32000, dtype="float16"), self.empty(rows, dtype="int32")
        peers = {"argmax": lambda: torch.argmax(x, -1)}
        config = {"columns": 32000, "dtype": "float16"}
        yield Workload("row_argmax", config, f"{rows}x32000", (x,), (index,), peers, 2 * x.numel(), exact=False)

    def row_sum(self, rows: int) -> Iterator[Workload]:
        """Beside sum."""
        x, y = self.random(rows, 1000), self.empty(rows)
        peers = {"sum": lambda: torch.sum(x, -1)}
        config = {"columns": 1000, "dtype": "float32"}
        yield Workload("row_sum", config, f"{rows}x1000", (x,), (y,), peers, 4 * x.numel())

    def softmax(self, rows: int) -> Iterator[Workload]:
        """Beside softmax."""
        x = self.random(rows, 4096, dtype="float16")
        peers, config = {"softmax": lambda: torch.softmax(x, -1)}, {"columns": 4096, "dtype": "float16"}
        yield Workload("softmax", config, f"{rows}x4096", (x,), (torch.empty_like(x),), peers, 4 * x.numel())

    def swiglu(self, tokens: int) -> Iterator[Workload]:
        """Beside silu and a product."""
        hidden = 14336
        x, y = self.random(tokens, 2 * hidden, dtype="bfloat16"), self.empty(tokens, hidden, dtype="bfloat16")
        peers = {"silu, product": lambda: F.silu(x[:, :hidden]) * x[:, hidden:]}
        config, moved = {"hidden": hidden, "dtype": "bfloat16"}, 2 * x.numel() + 2 * y.numel()
        yield Workload("swiglu", config, f"{tokens}x{hidden}", (x,), (y,), peers, moved, tolerance=3e-2)

    def top_k(self, rows: int) -> Iterator[Workload]:
        """Beside topk."""
        n = 100 if self._tiny else 32000
        for k in (8, 32):
            x, config = self.random(rows, n), {"k": k, "dtype": "float32"}
            values, indices = self.empty(rows, k), self.empty(rows, k, dtype="int32")
            peers = {"topk": lambda x=x, k=k: torch.topk(x, k)[0]}
            yield Workload("top_k", config, f"{rows}x{n} k={k}", (x,), (values, indices), peers, 4 * x.numel())

    def top_p_sampling(self, rows: int) -> Iterator[Workload]:
        """Beside PyTorch's operators with a sort; it draws other tokens where sums are rounded otherwise."""
        n = 100 if self._tiny else 32000
        probs, uniform = torch.softmax(3 * self.random(rows, n), -1), torch.rand(rows, device=self._device)
        token = self.empty(rows, dtype="int32")

        def draw() -> torch.Tensor:
            ordered, places = torch.sort(probs, -1, descending=True)
            sums = ordered.cumsum(-1)
            kept = torch.where(sums - ordered < 0.9, ordered, 0.0).cumsum(-1)
            chosen = torch.searchsorted(kept, uniform[:, None] * kept[:, -1:])
            return places.gather(-1, chosen.clamp(max=n - 1))[:, 0]

        peers = {"PyTorch, with a sort": draw}
        inputs = (probs, uniform, 0.9)
        yield Workload("top_p_sampling", {}, f"{rows}x{n}", inputs, (token,), peers, 4 * probs.numel(), exact=False)

    def transpose(self, rows: int) -> Iterator[Workload]:
        """Beside contiguous() of the transposed tensor."""
        for dtype, size in (("float32", 4), ("float16", 2)):
            x, y = self.random(rows, rows + 64, dtype=dtype), self.empty(rows + 64, rows, dtype=dtype)
            peers, moved = {"t().contiguous()": lambda x=x: x.t().contiguous()}, 2 * size * x.numel()
            sizes = f"{rows}x{rows + 64} {dtype}"
            yield Workload("transpose", {"dtype": dtype}, sizes, (x,), (y,), peers, moved)
