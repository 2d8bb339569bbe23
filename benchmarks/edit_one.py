"""What an edit of one kernel costs beyond the work on that kernel, in a project of 1000 kernels.

The work on the kernel is what the same edit takes in a project that has only this kernel, less a build there with
nothing to do. By the timeline of the build, it is the start of a worker until it has executed the definition, and the
time in which one of the kernel's steps ran. Compilers are real for the edited kernel; the others were built with
stand-ins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from .harness import Bench, Finished, Result, Row, Target, interleave, median, median_wall, walls
from .measured import Measured, union_s
from .projects import Project, definition, generated, real_compilers, write_definition

STEPS = ("LOWER", "CUBIN", "PTX", "WRAP", "CC", "LINK")
LARGEST_EXTRA_S = 0.6


def measure(bench: Bench) -> Result:
    """Edit a constant again and again, in both projects."""
    count = 10 if bench.small else 1000
    many, one = generated(bench, count), generated(bench, 1)
    constants = itertools.count(1_000_000)  # a new one each time, so that nothing was ever built before
    measured: list[Measured] = []

    def edit(project: Project, number: int) -> Callable[[], Finished]:
        def action() -> Finished:
            write_definition(project, number, next(constants))
            measured.append(project.measured_scons(f"-j{bench.jobs}", "--cache-disable"))
            return measured[-1].done

        return action

    bench.say(f"edits of one of {count} kernels")
    for project, number in ((many, count // 2), (one, 0)):
        # An edit does not compile the wrapper again, and that of the stand-in cannot be linked.
        (project.kernels / definition(project, number).stem / "wrapper.o").unlink(missing_ok=True)
    with real_compilers(bench):
        actions = {
            "many": edit(many, count // 2),
            "one": edit(one, 0),
            "null": lambda: one.scons(),
            "worker": lambda: bench.child("start_worker", one.folder, definition(one, 0)),
        }
        warm_up = 0 if bench.small else 1
        runs = interleave(bench.rounds_or(7), actions, warm_up)
    for project, number in ((many, count // 2), (one, 0)):
        write_definition(project, number, number)
        project.build(bench.jobs)
    return _result(count, runs, measured[2 * warm_up :: 2])


def _result(count: int, runs: dict[str, list[Finished]], edits: list[Measured]) -> Result:
    """The rows; ``edits`` are those of the large project."""
    wall, alone, null = (median_wall(runs[name]) for name in ("many", "one", "null"))
    work = alone - null
    rows = [
        Row(f"an edit of one of {count} kernels", "s", wall, {"the only kernel": alone}),
        Row("the same beyond the work on the kernel", "s", wall - work, {}, Target(LARGEST_EXTRA_S)),
    ]
    steps = [union_s([event for event in edit.events if event["cat"] in STEPS]) for edit in edits]
    start = median(float(done.output) for done in runs["worker"])
    beyond = median(edit.done.wall_s - path for edit, path in zip(edits, steps, strict=True)) - start
    if all(steps):
        rows.append(Row("the same by the timeline", "s", beyond, {}, Target(LARGEST_EXTRA_S)))
    return Result(rows, {"walls": walls(runs), "work_s": work, "steps_s": steps, "worker_start_s": start})
