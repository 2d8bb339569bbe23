"""What tuning tables add to a call of a kernel: one table of three ranges, and eight tables of twenty."""

from __future__ import annotations

import json

from .harness import Bench, Result, Row, Target, interleave, median

LIMIT_NS = 20.0
"""A call with tables may take that much longer than one without."""

KINDS = {"one": "one table of three ranges", "eight": "eight tables of twenty ranges"}
SIZES = {"1": "always the same size", "64": "64 sizes in turn"}
"""How many different sizes the calls have. Where they change, the CPU jumps to another variant in each call, which it
cannot foresee: that is most of the difference."""


def measure(bench: Bench) -> Result:
    """Build the kernels once, and call them in turn in processes of their own."""
    bench.say("libraries")
    bench.child("lookup", "build", bench.work / "lookup")
    bench.say("calls")
    calls = "20000" if bench.small else "1000000"
    actions = {
        sizes: lambda sizes=sizes: bench.child("lookup", "call", bench.work / "lookup", calls, sizes) for sizes in SIZES
    }
    found = interleave(bench.rounds_or(9), actions)
    samples = {sizes: [dict(json.loads(done.output)) for done in listed] for sizes, listed in found.items()}
    rows = []
    for sizes, what in SIZES.items():
        none = median(sample["none"] for sample in samples[sizes])
        rows.append(Row(f"a call of a kernel without tables, {what}", "ns", none))
        for kind, tables in KINDS.items():
            added = median(sample[kind] - sample["none"] for sample in samples[sizes])
            rows.append(Row(f"{tables}, {what}: beyond that", "ns", round(added, 2), {}, Target(LIMIT_NS)))
    return Result(rows, {"ns": samples})
