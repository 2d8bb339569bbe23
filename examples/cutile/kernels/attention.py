"""Attention in one kernel: the scores are never written, because softmax is corrected while it goes along the keys."""

import math

import cuda.tile as ct
import numpy as np
from kernelwright import grid, kernel
from kernelwright_cutile import Program, Scalar, Size, Tensor, ceildiv

DEPTH = 64
BLOCK = 64


def scores_of(query, key, first, keys, BLOCK: ct.Constant[int]):
    """The products of queries with a block of keys; those behind the last key have no weight."""
    scores = ct.mma(query, ct.transpose(key), ct.zeros((BLOCK, BLOCK), ct.float32))
    places = first + ct.arange(BLOCK, dtype=ct.int32)
    return ct.where(places[None, :] < keys, scores, -math.inf)


@ct.kernel
def attention_kernel(
    q, k, v, out, factor, keys, bias, HAS_BIAS: ct.Constant[bool], DEPTH: ct.Constant[int], BLOCK: ct.Constant[int]
):
    """BLOCK queries of one head. The factor is for scores as powers of 2."""
    block, head = ct.bid(0), ct.bid(1)
    query = ct.load(q, index=(head, block, 0), shape=(1, BLOCK, DEPTH), padding_mode=ct.PaddingMode.ZERO)
    query = query.reshape((BLOCK, DEPTH))
    top = ct.full((BLOCK, 1), -math.inf, ct.float32)
    total = ct.zeros((BLOCK, 1), ct.float32)
    result = ct.zeros((BLOCK, DEPTH), ct.float32)
    for step in range(ct.cdiv(keys, BLOCK)):
        key = ct.load(k, index=(head, step, 0), shape=(1, BLOCK, DEPTH), padding_mode=ct.PaddingMode.ZERO)
        value = ct.load(v, index=(head, step, 0), shape=(1, BLOCK, DEPTH), padding_mode=ct.PaddingMode.ZERO)
        scores = scores_of(query, key.reshape((BLOCK, DEPTH)), step * BLOCK, keys, BLOCK) * factor
        if HAS_BIAS:
            scores = scores + ct.load(bias, index=(head, step), shape=(1, BLOCK), padding_mode=ct.PaddingMode.ZERO)
        higher = ct.maximum(top, ct.max(scores, axis=1, keepdims=True))
        powers = ct.exp2(scores - higher)
        scale = ct.exp2(top - higher)
        total = total * scale + ct.sum(powers, axis=1, keepdims=True)
        result = ct.mma(powers.astype(q.dtype), value.reshape((BLOCK, DEPTH)), result * scale)
        top = higher
    ct.store(out, index=(head, block, 0), tile=(result / total).astype(out.dtype).reshape((1, BLOCK, DEPTH)))


@kernel(frontend="cutile", configs=grid(dtype=["float16"], has_bias=[False, True]), outputs=["out"])
def attention(dtype: str, has_bias: bool):
    """out = softmax(q k^T factor + bias) v for each head; the factor and the bias are for powers of 2"""
    queries = Tensor(dtype, "heads", "queries", DEPTH, alignment=16)
    keys = Tensor(dtype, "heads", "keys", DEPTH, alignment=16)
    return Program(
        attention_kernel,
        q=queries,
        k=keys,
        v=keys,
        out=queries,
        factor=Scalar("float32"),
        keys=Size("keys"),
        bias=Tensor("float32", "heads", "keys", given=has_bias),
        HAS_BIAS=has_bias,
        DEPTH=DEPTH,
        BLOCK=BLOCK,
        grid=(ceildiv("queries", BLOCK), "heads"),
    )


@attention.reference
def _(q, k, v, factor, bias=None):
    scores = np.einsum("hqd,hkd->hqk", q.astype("float32"), k.astype("float32")) * factor
    scores = scores if bias is None else scores + bias[:, None, :]
    powers = np.exp2(scores - scores.max(axis=2, keepdims=True, initial=-np.inf))
    return (powers / powers.sum(axis=2, keepdims=True) @ v.astype("float32")).astype(q.dtype)
