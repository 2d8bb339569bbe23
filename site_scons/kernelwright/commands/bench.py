"""``kernelwright bench``: measures kernels beside other ways to do the same."""

from __future__ import annotations

from ..tune.benchmark import bench
from ..tune.command import INTERRUPTED
from .command import Command, argument
from .tune import MEASURED

COMMAND = Command(
    "bench",
    "measure kernels beside their references, other variants, functions, packages and revisions",
    bench,
    (
        argument("kernels", "kernels to measure (default: all for the device)", nargs="*", metavar="KERNEL"),
        *MEASURED,
        argument("--device", "cpu or cuda:0 (default: the GPU, or else the CPU)", metavar="DEVICE"),
        argument("--all", "measure all points of the space, not only those that run", action="store_true"),
        argument(
            "--beside",
            "a function that gets the inputs, such as numpy:tanh or torch:softmax",
            action="append",
            metavar="MODULE:FUNCTION",
        ),
        argument("--against", "a wheel, the folder of a package, or a revision of git", metavar="OTHER"),
        argument("--json", "write the results into this file", metavar="FILE"),
        argument("--plot", "draw them into this file, such as bench.svg; needs Matplotlib", metavar="FILE"),
        argument("--profile", "run it under perf, or for a GPU under Nsight Compute", action="store_true"),
        argument("--check", "compare with results that --json has written", metavar="FILE"),
        argument(
            "--max", "with --check: how much longer something may take (default: 5%%)", metavar="PERCENT", default="5%"
        ),
    ),
    {
        1: "a kernel cannot be measured; or with --check, something takes longer by more than --max",
        INTERRUPTED: "after Ctrl-C",
    },
)
