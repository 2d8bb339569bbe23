"""Attention with an online softmax: TileLang's source is in tile/attention.py."""

import numpy as np
from kernelwright import grid, kernel
from kernelwright.tilelang import Program


@kernel(frontend="tilelang", configs=grid(causal=[False, True]), outputs=["out"], tolerance=2e-2)
def attention(causal: bool):
    """out = softmax(q k^T / 8) v, for 16 heads of 64 elements"""
    return Program("tile/attention.py", "attention", heads=16, dim=64, causal=causal)


@attention.inputs
def _(config, rng):
    shape = (1, 256, 16, 64)
    return {name: rng.standard_normal(shape).astype("float16") for name in ("q", "k", "v")}


@attention.reference
def _(q, k, v, causal):
    q, k, v = (np.moveaxis(x.astype("float32"), 1, 2) for x in (q, k, v))
    scores = q @ np.swapaxes(k, 2, 3) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.moveaxis(weights @ v, 1, 2).astype("float16")
