"""Attention in one kernel: the scores are never written, because softmax is corrected while it goes along the keys."""

import numpy as np
import triton
import triton.language as tl
from kernelwright import grid, kernel
from kernelwright.triton import Program, Size, Tensor, ceildiv

DEPTH = 64
BLOCK = 64


@triton.jit
def rows_at(pointer, head, length, rows, DEPTH: tl.constexpr):
    """Pointers to rows of one head, one below the other."""
    return pointer + (head * length + rows[:, None]) * DEPTH + tl.arange(0, DEPTH)[None, :]


@triton.heuristics({"EVEN": lambda args: args["keys"] % args["BLOCK"] == 0})
@triton.jit
def attention_kernel(
    q,
    k,
    v,
    out,
    queries,
    keys,
    FACTOR: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr,
    EVEN: tl.constexpr,
):
    """BLOCK queries of one head. FACTOR is for scores as powers of 2. The last query sees all keys."""
    first = tl.program_id(0) * BLOCK
    head = tl.program_id(1).to(tl.int64)
    rows = first + tl.arange(0, BLOCK)
    query = tl.load(rows_at(q, head, queries, rows, DEPTH), mask=rows[:, None] < queries, other=0.0)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    result = tl.zeros((BLOCK, DEPTH), tl.float32)
    end = keys
    if CAUSAL:
        end = tl.minimum(keys, first + BLOCK + keys - queries)
    for start in range(0, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        if EVEN:
            key = tl.load(rows_at(k, head, keys, at, DEPTH))
            value = tl.load(rows_at(v, head, keys, at, DEPTH))
        else:
            key = tl.load(rows_at(k, head, keys, at, DEPTH), mask=at[:, None] < keys, other=0.0)
            value = tl.load(rows_at(v, head, keys, at, DEPTH), mask=at[:, None] < keys, other=0.0)
        scores = tl.dot(query, tl.trans(key)) * FACTOR
        if not EVEN:
            scores = tl.where(at[None, :] < keys, scores, float("-inf"))
        if CAUSAL:
            scores = tl.where(at[None, :] <= rows[:, None] + keys - queries, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        origin = tl.where(higher == float("-inf"), 0.0, higher)  # it has seen no key so far
        powers = tl.exp2(scores - origin[:, None])
        correction = tl.exp2(top - origin)
        total = total * correction + tl.sum(powers, axis=1)
        result = tl.dot(powers.to(value.dtype), value, result * correction[:, None])
        top = higher
    result = result / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(rows_at(out, head, queries, rows, DEPTH), result.to(out.dtype.element_ty), mask=rows[:, None] < queries)


@kernel(
    frontend="triton",
    configs=grid(causal=[False, True]),
    divisible={"keys": [BLOCK, 1]},
    outputs=["out"],
    tolerance=5e-3,
)
def attention(causal: bool):
    """out = softmax(q k^T / sqrt(depth)) v, for each head; with ``causal``, a query sees no key behind its own"""
    of_queries = Tensor("float16", "heads", "queries", DEPTH, alignment=16)
    of_keys = Tensor("float16", "heads", "keys", DEPTH, alignment=16)
    return Program(
        attention_kernel,
        q=of_queries,
        k=of_keys,
        v=of_keys,
        out=of_queries,
        queries=Size("queries"),
        keys=Size("keys"),
        FACTOR=DEPTH**-0.5 * 1.4426950408889634,
        DEPTH=DEPTH,
        BLOCK=BLOCK,
        CAUSAL=causal,
        grid=[ceildiv("queries", BLOCK), "heads"],
    )


@attention.reference
def _(q, k, v, causal):
    scores = q.astype("float32") @ k.astype("float32").swapaxes(1, 2) * DEPTH**-0.5
    if causal:
        seen = np.tri(q.shape[1], k.shape[1], k.shape[1] - q.shape[1], dtype=bool)
        scores = np.where(seen, scores, -np.inf)
    top = scores.max(axis=2, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = powers.sum(axis=2, keepdims=True)
    return (powers @ v.astype("float32") / np.where(total == 0, 1, total)).astype("float16")


@attention.inputs
def _(rng, heads):
    return {} if heads < 100 else None  # the interpreter runs one head after the other, and they are all alike
