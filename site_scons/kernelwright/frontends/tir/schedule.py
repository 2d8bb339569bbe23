"""Schedules TIR functions that come without a schedule, by the rules of TVM's dlight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import dlight
from tvm.s_tir.stmt import SBlock
from tvm.target import Target

from ..raised import first_line

AS_WRITTEN = "as written"
"""The name of a schedule that the definition itself made."""

BLOCK = """\
@T.prim_func(s_tir=True)
def main(x: T.Buffer((256,), "float32"), y: T.Buffer((256,), "float32")):
    for i in range(256):
        with T.sblock("y"):              # the block
            j = T.axis.spatial(256, i)   # its axis; of a reduction: T.axis.reduce
            y[j] = x[j] * 2.0
"""
"""An example for those who have written plain loops."""

GPU_RULES = ("Matmul", "GEMV", "Reduction", "GeneralReduction", "Transpose", "Fallback")
CPU_RULES = ("GEMV", "Reduction")
"""Names of dlight's rules in the order in which they are tried, the most specific first."""

WITHOUT_TENSOR_CORES = "sm_61"
"""The arch that the Matmul rule is told, so that it does not use tensor cores.

In TVM 0.27 its part for tensor cores takes 5 to 15 seconds to import and then ends the process for most float16
functions: Tensorize reads an invalid pointer where it should report that a block does not match an intrinsic.
"""


def candidates(
    function: tirx.PrimFunc, target: Target, progress: Callable[[str], None], failures: list[str]
) -> Iterator[tuple[str, tirx.PrimFunc]]:
    """The schedules of a function that are worth lowering, the best first, each with the name of its rule.

    A function that is scheduled comes back as it is. Of one that is not, the results of the rules that apply follow one
    another, so that the next can be lowered when one cannot; for the CPU the function itself is the last of them.

    Arguments:
        failures: receives a line for each rule that did not apply.
    """
    gpu = target.kind.name == "cuda"
    if is_bound_to_threads(function) if gpu else has_loop_annotations(function):
        yield AS_WRITTEN, function
        return
    for name in GPU_RULES if gpu else CPU_RULES:
        rule = f"dlight.{'gpu' if gpu else 'cpu'}.{name}"
        progress(f"scheduling with {rule}")
        scheduled = _apply(rule, function, target, failures)
        if scheduled is not None:
            yield rule, scheduled
    if not gpu:
        yield AS_WRITTEN, function


def is_bound_to_threads(function: tirx.PrimFunc) -> bool:
    """Whether any loop or region of a function is bound to GPU threads."""

    def binds(node: Any) -> bool:
        if isinstance(node, tirx.For):
            return node.thread_binding is not None
        if isinstance(node, tirx.AttrStmt):
            return str(node.attr_key) in ("thread_extent", "virtual_thread")
        return isinstance(node, tirx.stmt.ScopeIdDefStmt)

    return _any_statement(function, binds)


def has_loop_annotations(function: tirx.PrimFunc) -> bool:
    """Whether any loop of a function is parallel, vectorized, unrolled or annotated: then somebody has scheduled it."""

    def annotated(node: Any) -> bool:
        return isinstance(node, tirx.For) and (int(node.kind) != tirx.ForKind.SERIAL or len(node.annotations) > 0)

    return _any_statement(function, annotated)


def has_blocks(function: tirx.PrimFunc) -> bool:
    """Whether any block of a function has axes: dlight's rules schedule such blocks, and no loops without one."""
    return _any_statement(function, lambda node: isinstance(node, SBlock) and len(node.iter_vars) > 0)


def _any_statement(function: tirx.PrimFunc, test: Callable[[Any], bool]) -> bool:
    matches: list[bool] = []

    def visit(node: Any) -> Any:
        if matches or not isinstance(node, tirx.Stmt):
            return tvm_ffi.WalkResult.SKIP if isinstance(node, tirx.expr.Var) else None
        if test(node):
            matches.append(True)
        return None

    tvm_ffi.structural_walk(function.body, (object, visit), order="pre")
    return bool(matches)


def _apply(rule: str, function: tirx.PrimFunc, target: Target, failures: list[str]) -> tirx.PrimFunc | None:
    """The result of one rule, or None and a line in ``failures``."""
    _, group, name = rule.split(".")
    instance = getattr(getattr(dlight, group), name)()

    if rule == "dlight.gpu.Matmul":
        target = Target({"kind": "cuda", "arch": WITHOUT_TENSOR_CORES})
    try:
        with target:
            space = instance.apply(function, target, False)
    except Exception as error:  # rules raise errors of any type
        failures.append(f"{rule}: {type(error).__name__}: {first_line(error)}")
        return None
    if space is None or space == []:
        failures.append(f"{rule}: it does not apply")
        return None
    schedule = space[0] if isinstance(space, list) else space
    return schedule.mod["main"]
