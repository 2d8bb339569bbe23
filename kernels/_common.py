"""What several definition files share: a CPU schedule for row-wise kernels."""

from __future__ import annotations

import math

from tvm.ir import Expr
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.script import tirx as T
from tvm.target import Target
from tvm.target.codegen import target_has_features
from tvm.tirx import IterVar, PrimFunc

LANES = 16
"""Elements that a CPU loop handles at once: two AVX2 registers of float32."""

COPIES = (4, 5, 3, 2, 1)
"""How many sums of LANES elements a reduction keeps at once: the first of these that leaves no remainder."""


def cpu_lanes(target: Target) -> int:
    """Elements of float32 in a vector register of a CPU: 16 with AVX-512, otherwise 8."""
    return 16 if target_has_features("avx512f", target) else 8


def exp(x: Expr) -> Expr:
    """The exponential of a float32 on the CPU, in instructions that can be vectorized: TVM calls the C library.

    With n = round(x / ln 2) it is 2**n * exp(x - n * ln 2). The second factor is a polynomial with the coefficients of
    ``expf`` of the Cephes library (Moshier, netlib.org/cephes), good to 2 units in the last place. From 88.4 on the
    result is infinite; below -87.6 it is 0, where it would be denormal.
    """
    # floor, since TVM 0.27 does not vectorize nearbyint. The order of the comparisons matters: a NaN must arrive in r.
    # There is no Let, because TVM cannot lower one with a bfloat16 in it.
    n = T.floor(T.max(T.min(x * T.float32(math.log2(math.e)) + T.float32(0.5), T.float32(128)), T.float32(-127)))
    r = T.Select(x < T.float32(-88), T.float32(0), x - n * T.float32(0.693359375) - n * T.float32(-2.12194440e-4))
    y = T.float32(1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        y = y * r + T.float32(coefficient)
    power_of_two = T.reinterpret("float32", (T.cast(n, "int32") + 127) << 23)
    return (y * r * r + r + T.float32(1)) * power_of_two


def nearest_int(x: Expr) -> Expr:
    """The integer that is nearest to a float32, ties to even, in instructions that can be vectorized; |x| < 2**22.

    The sum with 1.5 * 2**23 has no bits for a fraction, so it is rounded, and its lowest bits are the integer.
    """
    return T.reinterpret("int32", x + T.float32(1.5 * 2**23)) - T.int32(0x4B400000)


def rows_on_cpu(function: PrimFunc, target: Target, cores: str = "all") -> PrimFunc:
    """Schedule an unscheduled row-wise function for the CPU; for other targets return it as it is.

    Within a row, the blocks run one after the other, each vectorized. A reduction becomes LANES
    partial ones, each of a few copies, added up last, since LLVM alone does not reorder floating-point additions. With
    one copy, each addition would wait for the one before it.

    Arguments:
        function: a function whose blocks lie directly under its root, each with the rows as its outermost loop and
            the columns, of constant extent, as its innermost one. Only the last block may write outputs.
        target: the target of the lowering.
        cores: ``all`` for rows in parallel, or ``one``.
    """
    if target.kind.name != "llvm":
        return function
    schedule = Schedule(function)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    partials = [_partial_reductions(schedule, block) for block in blocks if _is_reduction(schedule, block)]
    *producers, last = schedule.get_child_blocks(schedule.get_sblock("root"))
    rows = schedule.get_loops(last)[0]
    for block in reversed(producers):
        schedule.compute_at(block, rows, preserve_unit_loops=True)
    if cores == "all":
        schedule.parallel(rows)
    for block in blocks:
        if not _is_reduction(schedule, block):
            schedule.vectorize(_split_lanes(schedule, schedule.get_loops(block)[-1])[1])
    for copies, lanes in partials:
        _vectorize_copies(schedule, copies)
        _vectorize_lanes(schedule, lanes)
    return schedule.mod["main"]


def _is_reduction(schedule: Schedule, block: SBlockRV) -> bool:
    return any(axis.iter_type == IterVar.CommReduce for axis in schedule.get(block).iter_vars)


def _split_lanes(schedule: Schedule, loop: LoopRV) -> list[LoopRV]:
    """Split a loop by LANES, or by the largest divisor of LANES that leaves no remainder."""
    return schedule.split(loop, [None, math.gcd(int(schedule.get(loop).extent), LANES)])


def _partial_reductions(schedule: Schedule, block: SBlockRV) -> tuple[SBlockRV, SBlockRV]:
    """Split a reduction in three: COPIES x LANES partial ones, which are returned first, then LANES, then the rest."""
    steps, _ = _split_lanes(schedule, schedule.get_loops(block)[-1])
    count = int(schedule.get(steps).extent)
    schedule.split(steps, [None, next(copies for copies in COPIES if count % copies == 0)])
    lanes = schedule.rfactor(schedule.get_loops(block)[-1], factor_axis=1)
    copies = schedule.rfactor(schedule.get_loops(lanes)[-2], factor_axis=1)
    return copies, lanes


def _vectorize_copies(schedule: Schedule, block: SBlockRV) -> None:
    _, copies, lanes, _, steps = schedule.get_loops(block)
    schedule.reorder(steps, copies, lanes)
    schedule.unroll(copies)
    schedule.vectorize(lanes)
    schedule.decompose_reduction(block, steps)


def _vectorize_lanes(schedule: Schedule, block: SBlockRV) -> None:
    _, copies, lanes, _ = schedule.get_loops(block)
    schedule.unroll(copies)
    schedule.vectorize(lanes)
    schedule.decompose_reduction(block, copies)
