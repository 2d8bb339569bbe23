"""Index of the largest element of each row: a TVMScript reduction of pairs, scheduled by hand for the GPU."""

import numpy as np
from _common import rows_on_cpu
from kernelwright import grid, kernel
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import PrimFunc, Var

THREADS = 512


@kernel(configs=grid(columns=[32000], dtype=["float32", "float16"]), outputs=["index"])
def row_argmax(columns: int, dtype: str, target: Target):
    """index[r] = the first c with the largest x[r, c]: x [rows, columns], index [rows] in int32.

    A row must have an element above the lowest finite number, and no NaN.
    """
    rows = Var("rows", "int32")

    # TVM splits a reduction of pairs among threads or lanes if it is written exactly like this.
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((rows, columns), dtype), index: T.Buffer((rows,), "int32")):
        largest = T.sblock_alloc_buffer((rows,), dtype)
        for r, c in T.grid(rows, columns):
            with T.sblock("argmax"):
                vr, vc = T.axis.remap("SR", [r, c])
                with T.init():
                    index[vr] = -1
                    largest[vr] = T.min_value(dtype)
                new_index: T.let = T.Select(
                    largest[vr] > x[vr, vc] or (largest[vr] == x[vr, vc] and index[vr] < vc), index[vr], vc
                )
                new_largest: T.let = T.Select(largest[vr] > x[vr, vc], largest[vr], x[vr, vc])
                index[vr] = new_index
                largest[vr] = new_largest

    return one_row_per_block(main) if target.kind.name == "cuda" else rows_on_cpu(main, target)


def one_row_per_block(function: PrimFunc) -> PrimFunc:
    """Give each row to one thread block, whose threads take turns at its elements and then compare their results."""
    schedule = Schedule(function)
    argmax = schedule.get_sblock("argmax")
    row, column = schedule.get_loops(argmax)
    _, thread = schedule.split(column, [None, THREADS])
    schedule.bind(row, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.set_scope(argmax, buffer_index=1, storage_scope="shared")
    return schedule.mod["main"]


@row_argmax.reference
def _(x):
    return x.argmax(axis=-1).astype(np.int32)
