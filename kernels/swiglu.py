"""The gate of a SwiGLU feed-forward layer (silu-and-mul), in TE for the CPU."""

import numpy as np
from _common import exp, rows_on_cpu
from _rows_on_cuda import block_space, piece_width, with_fallback
from kernelwright import grid, kernel
from tvm import te
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import Var

LOG2_E = 1.4426950408889634


@kernel(
    configs=with_fallback(grid(hidden=[11008, 14336], dtype=["float16", "bfloat16"])), tune=block_space, outputs=["y"]
)
def swiglu(hidden: int, dtype: str, target: Target, aligned: bool = True, threads: int = 256, cores: str = "all"):
    """y[t, h] = silu(x[t, h]) * x[t, hidden + h], where silu(v) = v / (1 + exp(-v)).

    x [tokens, 2 * hidden] holds the gate and then the value; y [tokens, hidden]. Computed in float32.
    """
    if target.kind.name == "cuda":
        return _cuda(hidden, dtype, aligned, threads)
    tokens = te.var("tokens")
    x = te.placeholder((tokens, 2 * hidden), dtype, name="x")

    def gated(t, h):
        gate, value = x[t, h].astype("float32"), x[t, hidden + h].astype("float32")
        return gate / (1.0 + exp(-gate)) * value

    y = te.compute((tokens, hidden), lambda t, h: gated(t, h).astype(dtype), name="y")
    return rows_on_cpu(te.create_prim_func([x, y]), target, cores)


@swiglu.sizes
def _():
    return {"tokens": [1, 4, 16, 64, 256, 1024]}


@swiglu.reference
def _(x):
    gate, value = np.split(x.astype(np.float32), 2, axis=-1)
    return (gate / (1 + np.exp(-gate)) * value).astype(x.dtype)


def _cuda(hidden: int, dtype: str, aligned: bool, threads: int):
    """A thread computes 16 bytes of a row."""
    width = piece_width(hidden, dtype, aligned)
    pieces = hidden // width
    tokens = Var("tokens", "int32")

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((tokens, 2 * hidden), dtype), y: T.Buffer((tokens, hidden), dtype)):
        block = T.launch_thread("blockIdx.x", T.ceildiv(tokens * pieces, threads))
        tx = T.launch_thread("threadIdx.x", threads)
        token = T.meta_var(T.truncdiv(block * threads + tx, pieces))
        h = T.meta_var(T.truncmod(block * threads + tx, pieces) * width)
        gate = T.alloc_buffer((width,), dtype, scope="local")
        value = T.alloc_buffer((width,), dtype, scope="local")
        gate32 = T.alloc_buffer((1,), "float32", scope="local")
        if block * threads + tx < tokens * pieces:
            for i in T.vectorized(width):
                gate[i] = x[token, h + i]
            for i in T.vectorized(width):
                value[i] = x[token, hidden + h + i]
            for i in T.unroll(width):
                gate32[0] = T.cast(gate[i], "float32")
                # Divisions and powers of e that are correct to the last bit would take longer than the memory does.
                gate32[0] = T.cuda.fdividef(gate32[0], T.float32(1) + T.exp2(gate32[0] * T.float32(-LOG2_E)))
                value[i] = T.cast(gate32[0] * T.cast(value[i], "float32"), dtype)
            for i in T.vectorized(width):
                y[token, h + i] = value[i]

    return main
