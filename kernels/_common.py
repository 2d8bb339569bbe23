"""What several definition files share: a CPU schedule for row-wise kernels."""

from __future__ import annotations

import math

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target
from tvm.tirx import IterVar, PrimFunc

LANES = 16
"""Elements that a CPU loop handles at once: two AVX2 registers of float32."""


def rows_on_cpu(function: PrimFunc, target: Target) -> PrimFunc:
    """Schedule an unscheduled row-wise function for the CPU; for other targets return it as it is.

    Rows run in parallel; within a row, the blocks run one after the other, each vectorized. A reduction becomes LANES
    partial ones, added up last, since LLVM alone does not reorder floating-point additions.

    Arguments:
        function: a function whose blocks lie directly under its root, each with the rows as its outermost loop and
            the columns, of constant extent, as its innermost one. Only the last block may write outputs.
        target: the target of the lowering.
    """
    if target.kind.name != "llvm":
        return function
    schedule = Schedule(function)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    partials = [_partial_reduction(schedule, block) for block in blocks if _is_reduction(schedule, block)]
    *producers, last = schedule.get_child_blocks(schedule.get_sblock("root"))
    rows = schedule.get_loops(last)[0]
    for block in reversed(producers):
        schedule.compute_at(block, rows, preserve_unit_loops=True)
    schedule.parallel(rows)
    for block in blocks:
        if not _is_reduction(schedule, block):
            schedule.vectorize(_split_lanes(schedule, schedule.get_loops(block)[-1])[1])
    for block in partials:
        _vectorize_partial(schedule, block)
    return schedule.mod["main"]


def _is_reduction(schedule: Schedule, block: SBlockRV) -> bool:
    return any(axis.iter_type == IterVar.CommReduce for axis in schedule.get(block).iter_vars)


def _split_lanes(schedule: Schedule, loop: LoopRV) -> list[LoopRV]:
    """Split a loop by LANES, or by the largest divisor of LANES that leaves no remainder."""
    return schedule.split(loop, [None, math.gcd(int(schedule.get(loop).extent), LANES)])


def _partial_reduction(schedule: Schedule, block: SBlockRV) -> SBlockRV:
    _, lanes = _split_lanes(schedule, schedule.get_loops(block)[-1])
    return schedule.rfactor(lanes, factor_axis=1)


def _vectorize_partial(schedule: Schedule, block: SBlockRV) -> None:
    _, lanes, _, steps = schedule.get_loops(block)
    schedule.reorder(steps, lanes)
    schedule.vectorize(lanes)
    schedule.decompose_reduction(block, steps)
