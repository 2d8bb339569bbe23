"""``kernelwright tune``: measures which variants suit a device, and writes tuning tables."""

from __future__ import annotations

from ..tune.command import INTERRUPTED, tune
from .command import Command, argument

MEASURED = (
    argument("--file", "a definition file (default: kernels/*.py of the project)", action="append", metavar="FILE"),
    argument(
        "--sizes",
        "m=1,16,64 or m=1:8192:x2 or m=1:100:+10; once for each symbol (default: those of the definition)",
        action="append",
        metavar="SIZES",
    ),
)
"""The arguments that say where kernels are, and at which sizes they are measured."""

COMMAND = Command(
    "tune",
    "measure which variants suit a device, and write tuning tables",
    tune,
    (
        argument("kernels", "kernels to tune (default: all that have a space)", nargs="*", metavar="KERNEL"),
        *MEASURED,
        argument("--device", "cpu or cuda:0 (default: the GPU, or else the CPU)", action="append", metavar="DEVICE"),
        argument("--budget", "how long it may take: 90s, 10m, 1h (default: until all is done)", metavar="TIME"),
        argument("--again", "measure anew, also what was measured before", action="store_true"),
        argument("--no-wait", "fail if another process tunes, instead of waiting", action="store_true"),
        argument("--check", "measure the answers of the tables again, and write none", action="store_true"),
        argument("--max-regret", "with --check: what an answer may cost (default: 5%%)", metavar="PERCENT"),
        argument("--list", "list the tables, and what is stale in them", action="store_true"),
        argument("--strict", "with --list: exit status 1 if anything is stale", action="store_true"),
    ),
    {
        1: "with --check, an answer is worse than --max-regret, or there is no table; with --strict, one is stale",
        INTERRUPTED: "after Ctrl-C",
    },
)
