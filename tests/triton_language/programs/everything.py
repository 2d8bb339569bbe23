"""A program in Triton that calls functions in all the ways in which a launch can differ from another one.

``calls()`` has the calls: a function, a grid, and what is passed. As a program it makes all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

FACTOR = tl.constexpr(3)


@dataclass(frozen=True)
class Call:
    """A call: ``function[grid](*arguments, **named)``."""

    function: str
    grid: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)

    def of(self, functions: Any) -> None:
        """Make it with what ``functions`` has under the name."""
        getattr(functions, self.function)[self.grid](*self.arguments, **self.named)


@triton.jit
def optional(y, x, bias, n, alpha, BLOCK: tl.constexpr = 64):
    """Optional pointers, floats, and a default."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n) * alpha
    if bias is not None:
        value += tl.load(bias + at, mask=at < n)
    tl.store(y + at, value, mask=at < n)


@triton.jit
def numbers(y, a, b, c, flag, f):
    """Untyped numbers: ints of any size, a bool, a float."""
    tl.store(y, a + b + c + flag + f)


@triton.jit
def typed(y, a: tl.int8, b: tl.int16, c: tl.int64, d: tl.uint8, e: tl.uint16, f: tl.uint32, g: tl.uint64, h: tl.int1):
    """Integers of declared types."""
    tl.store(y, a + b + c)
    tl.store(y + 1, (d + e + f + g).to(tl.int64))
    tl.store(y + 2, h.to(tl.int64))


@triton.jit
def precise(y, a: tl.float64, b: tl.float32, c: tl.float16):
    """Floats of declared types."""
    tl.store(y, a + b)
    tl.store(y + 1, c.to(tl.float64))


@triton.jit(do_not_specialize=["n", "x"], do_not_specialize_on_alignment=["stride", "z"])
def unspecialized(y, x, z, n, stride):
    """What is divisible by 16, or is 1, does not matter here."""
    tl.store(y + stride, tl.load(x + n) + tl.load(z))


@triton.jit
def doubled(value):
    return value * 2


@triton.jit
def tripled(value):
    return value * FACTOR


@triton.jit
def constants(
    y,
    COUNT: tl.constexpr,
    SCALE: tl.constexpr,
    FLAG: tl.constexpr,
    MODE: tl.constexpr,
    NOTHING: tl.constexpr,
    KIND: tl.constexpr,
    SHAPE: tl.constexpr,
    APPLY: tl.constexpr = doubled,
):
    """Constants of all kinds."""
    value = tl.full((SHAPE[0], SHAPE[1]), COUNT * SCALE, KIND)
    if FLAG:
        value += 1
    if MODE == "twice":
        value = APPLY(value)
    if NOTHING is None:
        at = tl.arange(0, SHAPE[0])[:, None] * SHAPE[1] + tl.arange(0, SHAPE[1])[None, :]
        tl.store(y + at, value)


@triton.jit
def matmul(c, a, b, m, n, k, stride_a, stride_b, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Shared memory, and options of the compiler."""
    rows, columns = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    sum = tl.zeros((M, N), tl.float32)
    for at in range(0, k, K):
        left = tl.load(a + rows[:, None] * stride_a + (at + inner)[None, :], mask=rows[:, None] < m)
        right = tl.load(b + (at + inner)[:, None] * stride_b + columns[None, :], mask=columns[None, :] < n)
        sum += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], sum)


@triton.jit
def applied(y, x, pair):
    """A tuple with a function."""
    tl.store(y, pair[0](tl.load(x)) * pair[1])


def told(grid, code, arguments):
    """What a profiler is told about a launch."""
    return {"name": f"{code.name} {grid} {code.num_warps} {code.num_ctas}", "bytes": 4 * arguments["BLOCK"]}


@triton.jit(launch_metadata=told)
def copied(y, x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))


@triton.jit
def aware(y, num_warps: tl.constexpr, num_stages: tl.constexpr = 2):
    """Parameters that are options of the launch as well."""
    at = tl.arange(0, 32 * num_warps)
    tl.store(y + at, at + num_stages)


@triton.jit
def described(y, x, rows, columns, M: tl.constexpr, N: tl.constexpr):
    """A descriptor that is made on the device, in memory that the launch has to give it."""
    source = tl.make_tensor_descriptor(x, (rows, columns), (columns, 1), (M, N))
    target = tl.make_tensor_descriptor(y, (rows, columns), (columns, 1), (M, N))
    at = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([at[0], at[1]], source.load([at[0], at[1]]))


@triton.jit
def by_descriptor(y, pair, factor):
    """Descriptors that the program makes, one of them in a tuple."""
    row, column = tl.program_id(0) * y.block_shape[0], tl.program_id(1) * y.block_shape[1]
    value = pair[1].load([row, column]) * factor
    y.store([row, column], value.to(y.dtype) + pair[0] + y.shape[0])


@triton.heuristics({"HAS_BIAS": lambda args: args["bias"] is not None, "BLOCK": lambda args: max(16, args["n"])})
@triton.jit
def decided(y, x, bias, n, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    if HAS_BIAS:
        value += tl.load(bias + at)
    tl.store(y + at, value, mask=at < n)


@triton.autotune([triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}, num_warps=8)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned(y, x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = None if EVEN else at < n
    tl.store(y + at, tl.load(x + at, mask=mask), mask=mask)


_DTYPES = (*(torch.bool, torch.int8, torch.int64, torch.float8_e5m2),)


def calls() -> Iterator[Call]:
    """All calls, in order."""
    yield from _calls_with_pointers()
    yield from _calls_with_numbers()
    yield from _calls_with_constants()
    yield from _calls_with_options()
    yield from _calls_with_descriptors()
    yield from _calls_with_decorators()


def _tensor(*shape: int, dtype: torch.dtype = torch.float32, skipped: int = 0) -> torch.Tensor:
    """A tensor that does not begin with the first of its elements that are allocated."""
    count = 1
    for size in shape:
        count *= size
    return torch.empty(count + skipped, dtype=dtype)[skipped:].view(shape)


def _calls_with_pointers() -> Iterator[Call]:
    y, x, bias = _tensor(1000), _tensor(1000), _tensor(1000)
    odd = _tensor(1000, skipped=1)
    half, brain = _tensor(1000, dtype=torch.float16), _tensor(1000, dtype=torch.bfloat16)
    yield Call("optional", (4,), (y, x, None, 1000, 0.5))
    yield Call("optional", [2], (y, x, bias, 1008, -0.25), {"BLOCK": 128})
    yield Call(
        "optional", lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]), 2), (y, x, bias), {"n": 500, "alpha": 1.0}
    )
    yield Call("optional", (1, 2, 3), (odd, x), {"bias": odd, "alpha": float("inf"), "n": 16, "BLOCK": 64})
    yield Call("optional", (1,), (half, brain, None, 1, 1e-30), {"BLOCK": 32})
    yield Call("optional", (0,), (y, x, None, 1000, 0.5))
    yield Call("optional", (2, 0, 1), (y, x, None, 1000, 0.5))
    yield Call("optional", (1,), (y, x, x, 1000, float("nan")))
    yield Call("optional", (1,), (y, x[16:], y[1:], 0, -0.0))


def _calls_with_numbers() -> Iterator[Call]:
    y = _tensor(16)
    for a, b, c in (
        (1, 16, 7),
        (2**31 - 1, -(2**31), 2**31),
        (2**63, 2**64 - 1, -(2**63)),
        (0, -16, 2**40 + 1),
        (-1, 1, 2**63 + 16),
    ):
        yield Call("numbers", (1,), (y, a, b, c, True, 0.1))
    yield Call("numbers", (1,), (y, 1, 1, 1, False, 3.4e38))
    yield Call("numbers", (1,), (y, True, 2.5, 5, 7, 1e-45))
    bytes = _tensor(16, dtype=torch.int8)  # times a constant they stay bytes, times an int they do not
    for a in (tl.constexpr(17), 17, tl.constexpr(1), 1, tl.constexpr(0.5), 0.5):
        yield Call("numbers", (1,), (bytes, a, 16, 7, True, 0.1))
    longs, doubles = _tensor(4, dtype=torch.int64), _tensor(4, dtype=torch.float64)
    yield Call("typed", (1,), (longs, -128, -32768, -(2**63), 255, 65535, 2**32 - 1, 2**64 - 1, True))
    yield Call("typed", (1,), (longs, 1, 16, 1, 1, 16, 1, 1, False))
    yield Call("precise", (1,), (doubles, 0.1, 0.1, 0.1))
    yield Call("precise", (1,), (doubles, -0.0, 1e-45, 6e-8))
    yield Call("precise", (1,), (doubles, 1, 2, 3))
    yield Call("precise", (1,), (doubles, True, 2**53 + 1, 1))
    yield Call("typed", (1,), (longs, True, 1, False, True, 1, 1, True, 1))
    yield Call("typed", (1,), (longs, 1, 1, 1, 1, 1, 1, 1, 0))
    x, odd = _tensor(16), _tensor(16, skipped=3)
    yield Call("unspecialized", (1,), (y, x, x, 1, 1))
    yield Call("unspecialized", (1,), (y, odd, odd, 16, 16))
    yield Call("unspecialized", (1,), (y, odd, x, 2**40, 17))


def _calls_with_constants() -> Iterator[Call]:
    y = _tensor(64)
    yield Call("constants", (1,), (y, 3, 0.5, True, "once", None, tl.float32, (4, 8)))
    yield Call("constants", (1,), (y, 1, 1.0, False, "twice", None, tl.float16, (16, 2), tripled))
    yield Call("constants", (1,), (y, 2, 2, 1, 'with "quotes"', 7, tl.bfloat16, (1, 1)))
    for function in (doubled, tripled):
        yield Call("applied", (1,), (y, y, (function, 17)))
    yield Call("applied", (1,), (y, y, (doubled, tl.constexpr(17))))
    yield Call("constants", (1,), (y, tl.constexpr(5), 1.5, True, "once", None, tl.float32, (tl.constexpr(4), 8)))


def _calls_with_options() -> Iterator[Call]:
    c, a, b = (_tensor(128, 128, dtype=dtype) for dtype in (torch.float32, torch.float16, torch.float16))
    block = {"M": 64, "N": 64, "K": 32}
    sizes = (c, a, b, 128, 128, 128, 128, 128)
    yield Call("matmul", (2, 2), sizes, {**block, "num_stages": 4, "num_warps": 8})
    yield Call("matmul", (2, 2), sizes, {**block, "maxnreg": 64, "enable_fp_fusion": False})
    y, x = _tensor(1024), _tensor(1024)
    yield Call("copied", (4,), (y, x, 256), {"num_ctas": 2})
    yield Call("copied", (4, 2, 3), (y, x, 256), {"num_ctas": 2, "launch_pdl": True, "launch_cooperative_grid": True})
    yield Call("copied", (4,), (y, x, 256), {"launch_pdl": True})
    yield Call("copied", (4,), (y, x), {"BLOCK": 256, "launch_cooperative_grid": True})
    yield Call("copied", (4,), (y, x), {"BLOCK": 256, "num_ctas": 1, "launch_pdl": False})
    yield Call("copied", (2,), (y, x, 512), {"num_warps": 1, "num_ctas": 4})
    for dtype in _DTYPES:
        yield Call("copied", (1,), (_tensor(64, dtype=dtype), _tensor(64, dtype=dtype, skipped=1)), {"BLOCK": 64})
    yield Call("copied", (1,), (_tensor(0), _tensor(0)), {"BLOCK": 64})
    yield Call("aware", (1,), (y,), {"num_warps": 8})
    yield Call("aware", (1,), (y,), {"num_warps": 4, "num_stages": 5})
    wide = _tensor(256, 256, dtype=torch.float16)
    yield Call("described", (4, 4), (wide, wide, 256, 256, 64, 64))
    yield Call("described", (4, 4, 2), (wide, wide, 255, 256, 64, 64), {"num_warps": 8})


def _calls_with_descriptors() -> Iterator[Call]:
    for dtype, blocks in ((torch.float32, [16, 32]), (torch.bfloat16, [512, 16])):
        y, x = _tensor(100, 64, dtype=dtype), _tensor(200, 128, dtype=dtype)[::2, :64]
        described = TensorDescriptor.from_tensor(y, blocks)
        yield Call("by_descriptor", (7, 2), (described, (3, TensorDescriptor.from_tensor(x, blocks)), 2))
        part = TensorDescriptor(x, [57, 40], [512, 1], blocks, "nan" if dtype.is_floating_point else "zero")
        yield Call("by_descriptor", (4, 2), (described, (3, part)), {"factor": 2})
        yield Call("by_descriptor", (0,), (described, (3, part)), {"factor": 2})
    rounded = TensorDescriptor.from_tensor(_tensor(64, 32), [16, 32], round_f32_to_tf32=True)
    yield Call("by_descriptor", (4,), (rounded, (16, rounded), 2.5))


def _calls_with_decorators() -> Iterator[Call]:
    y, x, bias = _tensor(1024), _tensor(1024), _tensor(1024)
    yield Call("decided", (1,), (y, x, None, 64))
    yield Call("decided", (1,), (y, x, bias), {"n": 128})
    yield Call("decided", (1,), (y, x, bias, 1), {"HAS_BIAS": False})
    grid = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)  # noqa: E731
    yield Call("tuned", grid, (y, x, 1000))
    yield Call("tuned", grid, (y, x), {"n": 1024})
    yield Call("tuned", (3, 2), (y, x), {"n": 64})
    yield Call("tuned", grid, (y, x[1:], 1000))


if __name__ == "__main__":
    import sys

    for call in calls():
        call.of(sys.modules[__name__])
