"""Quantization to int8 with a scale for each token: one TVMScript function, scheduled by hand for CPU and GPU."""

import numpy as np
from _common import nearest_int
from kernelwright import grid, kernel
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import PrimFunc, Var

TINY = 1e-30
"""Smallest divisor, so that a token of zeros becomes zeros."""


@kernel(configs=grid(hidden=[4096], dtype=["float16", "float32"]), outputs=["q", "scale"])
def quantize_int8(hidden: int, dtype: str, target: Target):
    """scale[t] = max over h of |x[t, h]| / 127 and q[t, h] = x[t, h] / scale[t], rounded to nearest, ties to even.

    x [tokens, hidden], q [tokens, hidden] in int8, scale [tokens] in float32.
    """
    tokens = Var("tokens", "int32")
    lanes = 256 if target.kind.name == "cuda" else 32

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((tokens, hidden), dtype),
        q: T.Buffer((tokens, hidden), "int8"),
        scale: T.Buffer((tokens,), "float32"),
    ):
        lane_largest = T.sblock_alloc_buffer((tokens, lanes), "float32")
        largest = T.sblock_alloc_buffer((tokens,), "float32")
        for t in range(tokens):
            for lane, step in T.grid(lanes, hidden // lanes):
                with T.sblock("lane_largest"):
                    vt, vl, vs = T.axis.remap("SSR", [t, lane, step])
                    with T.init():
                        lane_largest[vt, vl] = T.min_value("float32")
                    lane_largest[vt, vl] = T.max(lane_largest[vt, vl], T.abs(T.Cast("float32", x[vt, vs * lanes + vl])))
            for lane in range(lanes):
                with T.sblock("largest"):
                    vt, vl = T.axis.remap("SR", [t, lane])
                    with T.init():
                        largest[vt] = T.min_value("float32")
                    largest[vt] = T.max(largest[vt], lane_largest[vt, vl])
            for lane in range(lanes):
                with T.sblock("scale"):
                    vt = T.axis.spatial(tokens, t)
                    T.where(lane == 0)
                    scale[vt] = largest[vt] / T.float32(127)
            for lane, step in T.grid(lanes, hidden // lanes):
                with T.sblock("quantize"):
                    vt, vl, vs = T.axis.remap("SSS", [t, lane, step])
                    q[vt, vs * lanes + vl] = T.Cast(
                        "int8",
                        nearest_int(
                            T.Cast("float32", x[vt, vs * lanes + vl])
                            / T.max(largest[vt] / T.float32(127), T.float32(TINY))
                        ),
                    )

    return one_block_per_token(main) if target.kind.name == "cuda" else one_core_per_token(main)


def one_block_per_token(function: PrimFunc) -> PrimFunc:
    """GPU: a lane is a thread."""
    schedule = Schedule(function)
    for name in ("lane_largest", "largest", "scale", "quantize"):
        token, lane, *_ = schedule.get_loops(schedule.get_sblock(name))
        schedule.bind(lane, "threadIdx.x")
    schedule.bind(token, "blockIdx.x")
    schedule.set_scope("lane_largest", 0, "local")
    schedule.set_scope("largest", 0, "shared")
    return schedule.mod["main"]


def one_core_per_token(function: PrimFunc) -> PrimFunc:
    """CPU: a lane is one of a vector."""
    schedule = Schedule(function)
    for name in ("lane_largest", "quantize"):
        token, lane, step = schedule.get_loops(schedule.get_sblock(name))
        schedule.reorder(step, lane)
        schedule.vectorize(lane)
    schedule.parallel(token)
    schedule.decompose_reduction("lane_largest", schedule.get_loops(schedule.get_sblock("lane_largest"))[1])
    return schedule.mod["main"]


@quantize_int8.reference
def _(x):
    x32 = x.astype(np.float32)
    scale = np.abs(x32).max(axis=-1) / np.float32(127)
    q = np.rint(x32 / np.maximum(scale, np.float32(TINY))[:, None])
    return q.astype(np.int8), scale
