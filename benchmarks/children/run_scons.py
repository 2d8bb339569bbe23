"""Runs scons, and writes what it and its children have used: ``run_scons.py REPORT count|'' ARGUMENTS...``."""

from __future__ import annotations

import atexit
import gc
import json
import resource
import sys
from pathlib import Path


def report(path: Path, count: bool) -> None:
    """Write the report. Registered first, so it runs after everything that the build does at its end."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    said = {
        "own_cpu_s": own.ru_utime + own.ru_stime,
        "children_cpu_s": children.ru_utime + children.ru_stime,
        "own_peak_kib": peak_kib(),
        "nodes": count_nodes() if count else None,
    }
    path.write_text(json.dumps(said))


def peak_kib() -> int:
    """Memory of this process at its peak. Not ru_maxrss, which begins with that of whoever started this process."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def count_nodes() -> int:
    """How many SCons nodes there are; its table of file names keeps them until the process ends."""
    from SCons.Node import Node

    return sum(isinstance(thing, Node) for thing in gc.get_objects())


def main() -> None:
    """Take our own arguments away, and be scons."""
    path, count, *arguments = sys.argv[1:]
    atexit.register(report, Path(path), bool(count))
    sys.argv = ["scons", *arguments]
    del sys.path[0]  # this folder, which scons would not have there
    from SCons.Script import main as scons

    scons()


if __name__ == "__main__":
    main()
