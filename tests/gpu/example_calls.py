"""Calls of the kernels of ``examples/``, and what NumPy says that they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """A call of a kernel.

    Arguments:
        kernel: its name.
        inputs: arrays and numbers by the names of the arguments; of bfloat16 the bits.
        expected: arrays by the names of the arguments that the kernel writes.
        dtypes: name -> dtype of its array.
        tolerance: the largest error of each array.
        config: that of the variant to call; none: the dispatcher chooses.
    """

    kernel: str
    inputs: Values
    expected: Values
    dtypes: Mapping[str, str]
    tolerance: Mapping[str, float]
    config: Mapping[str, Any] = field(default_factory=dict)


def bits_of(values: np.ndarray) -> np.ndarray:
    """Numbers as bfloat16, by their bits: the upper half of float32, rounded to nearest."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers as a file or a framework holds them."""
    return bits_of(values) if dtype == "bfloat16" else values.astype(dtype)


def comparable(array: np.ndarray, dtype: str) -> np.ndarray:
    """The values of an array; bfloat16 comes as its bits, which are the upper half of a float32."""
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else array


def garbage(like: np.ndarray, dtype: str) -> np.ndarray:
    """An output as it may be before the call: what the kernel does not write shows."""
    nan_bits = 0x7FC0
    fill = nan_bits if dtype == "bfloat16" else np.nan if like.dtype.kind == "f" else 113
    return np.full(like.shape, fill).astype(like.dtype)


def call(
    kernel: str, output: str, dtype: str, inputs: Values, reference: Callable[..., np.ndarray], tolerance: float
) -> Call:
    """A call whose arrays all have one dtype; the reference gets what the kernel gets, as float32."""
    kept = {name: stored(value, dtype) if isinstance(value, np.ndarray) else value for name, value in inputs.items()}
    seen = {
        name: comparable(value, dtype).astype(np.float32) if isinstance(value, np.ndarray) else value
        for name, value in kept.items()
    }
    expected = {output: stored(reference(**seen), dtype)}
    dtypes = {name: dtype for name, value in [*inputs.items(), *expected.items()] if isinstance(value, np.ndarray)}
    return Call(kernel, kept, expected, dtypes, {output: tolerance})


# ---- references


def softmax_of(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def product_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ b


def tile_product_of(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return A @ B


def attention_of(q: np.ndarray, k: np.ndarray, v: np.ndarray, is_causal: bool) -> np.ndarray:
    """Of arrays of [..., rows, depth]; the last query sees all keys."""
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if is_causal:
        rows, keys = scores.shape[-2:]
        scores = np.where(np.tri(rows, keys, keys - rows, dtype=bool), scores, -np.inf)
    return softmax_of(scores) @ v


def layer_norm_of(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, epsilon: float) -> np.ndarray:
    centered = x - x.mean(axis=1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + epsilon) * weight + bias


def rms_norm_of(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + epsilon) * weight


def gated_of(x: np.ndarray) -> np.ndarray:
    gate, value = np.split(x, 2, axis=1)
    return gate / (1 + np.exp(-gate)) * value


# ---- the examples


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def softmax_calls() -> Iterator[Call]:
    """Rows that are multiples of 16, and others."""
    for dtype, tolerance in (("float32", 1e-5), ("float16", 2e-3)):
        for shape in ((64, 2048), (5, 1000), (3, 1003), (1, 1)):
            yield call("softmax", "y", dtype, {"x": numbers(*shape)}, softmax_of, tolerance)


def matmul_calls() -> Iterator[Call]:
    for dtype, tolerance in (("float16", 5e-3), ("bfloat16", 4e-2)):
        for m, n, k in ((256, 512, 128), (200, 136, 72), (33, 65, 100)):
            inputs = {"a": numbers(m, k), "b": numbers(k, n, seed=1) / np.sqrt(k)}
            yield call("matmul", "c", dtype, inputs, product_of, tolerance)


def attention_calls() -> Iterator[Call]:
    for is_causal in (False, True):
        for queries, keys in ((256, 256), (100, 320), (70, 90)):
            of_keys = {name: numbers(4, keys, 64, seed=seed) for seed, name in enumerate("kv", 1)}
            yield _causal({"q": numbers(4, queries, 64), **of_keys}, is_causal, attention_of)


def _causal(inputs: Values, is_causal: bool, reference: Callable[..., np.ndarray]) -> Call:
    one = call("attention", "out", "float16", inputs, lambda q, k, v: reference(q, k, v, is_causal), 5e-3)
    return replace(one, config={"causal": is_causal})


def gemm_calls() -> Iterator[Call]:
    """Rows that fill the tiles, and others."""
    b = numbers(2048, 2048, seed=1) / np.sqrt(2048)
    for dtype, tolerance in (("float16", 5e-3), ("bfloat16", 4e-2)):
        for rows in (256, 100, 1):
            yield call("gemm", "C", dtype, {"A": numbers(rows, 2048), "B": b}, tile_product_of, tolerance)


def tile_attention_calls() -> Iterator[Call]:
    for is_causal in (False, True):
        for shape in ((1, 256, 16, 64), (2, 200, 16, 64)):
            inputs = {name: numbers(*shape, seed=seed) for seed, name in enumerate("qkv")}
            yield _causal(inputs, is_causal, _attention_of_heads_inside)


def _attention_of_heads_inside(q: np.ndarray, k: np.ndarray, v: np.ndarray, is_causal: bool) -> np.ndarray:
    """Of arrays of [batch, rows, heads, depth]."""
    moved = (np.swapaxes(array, 1, 2) for array in (q, k, v))
    return np.swapaxes(attention_of(*moved, is_causal), 1, 2)


NORM_DTYPES = (("float32", 2e-5), ("float16", 5e-3), ("bfloat16", 4e-2))
NORM_SHAPES = ((64, 1024), (5, 77), (2, 8192))
"""Rows of all lengths, for which rms_norm has several instances."""


def layer_norm_calls() -> Iterator[Call]:
    for dtype, tolerance in NORM_DTYPES:
        for shape in NORM_SHAPES:
            weights = {name: numbers(shape[1], seed=seed) for seed, name in enumerate(("weight", "bias"), 1)}
            inputs = {"x": numbers(*shape), **weights, "epsilon": 1e-5}
            yield call("layer_norm", "y", dtype, inputs, layer_norm_of, tolerance)


def column_means_calls() -> Iterator[Call]:
    """Its weight is float32 whatever the dtype of the rows is, and None half of the time."""
    for dtype, tolerance in NORM_DTYPES[:2]:
        for weight in (None, np.abs(numbers(64))):
            x = stored(numbers(64, 1000), dtype)
            weighted = x.astype(np.float32) if weight is None else x.astype(np.float32) * weight[:, None]
            expected = {"y": weighted.mean(axis=0)}
            dtypes = {"x": dtype, "y": "float32", **({} if weight is None else {"weight": "float32"})}
            yield Call("column_means", {"x": x, "weight": weight}, expected, dtypes, {"y": tolerance})


def rms_norm_calls() -> Iterator[Call]:
    for dtype, tolerance in NORM_DTYPES[:2]:
        for shape in NORM_SHAPES:
            inputs = {"x": numbers(*shape), "weight": numbers(shape[1], seed=1), "epsilon": 1e-5}
            yield call("rms_norm", "y", dtype, inputs, rms_norm_of, tolerance)


def silu_and_mul_calls() -> Iterator[Call]:
    for dtype, tolerance in NORM_DTYPES:
        for shape in ((33, 256), (1, 1000)):
            yield call("silu_and_mul", "y", dtype, {"x": numbers(*shape)}, gated_of, tolerance)


def scale_calls(kernel: str) -> Iterator[Call]:
    """The same for each language."""
    for size in (4096, 1000, 1):
        values = {"alpha": 2.5, "x": numbers(size)}
        yield call(kernel, "y", "float32", values, lambda alpha, x: np.float32(alpha) * x, 0)


Calls = Callable[[], Iterator[Call]]

SCALES: Mapping[str, Calls] = {
    f"scale_{language}": partial(scale_calls, f"scale_{language}")
    for language in ("tir", "cuda", "triton", "tilelang", "cutedsl")
}

EXAMPLES: Mapping[str, Mapping[str, Calls]] = {
    "attention_kernels": {"softmax": softmax_calls, "matmul": matmul_calls, "attention": attention_calls},
    "tile_kernels": {"gemm": gemm_calls, "attention": tile_attention_calls},
    "norm_kernels": {
        **{"layer_norm": layer_norm_calls, "rms_norm": rms_norm_calls},
        "column_means": column_means_calls,
    },
    "mixed_kernels": SCALES,
    "gate_kernels": {"silu_and_mul": silu_and_mul_calls},
}
"""Package -> kernel -> calls of it."""
