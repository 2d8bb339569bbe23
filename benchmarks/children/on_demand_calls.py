"""Times calls of a kernel compiled on demand, and of a built package's: ``on_demand_calls.py FOLDER BUILD CALLS``.

FOLDER has the definition file saxpy.py, and BUILD the package ``library`` with the same kernel. It prints the ns of a
call of each, in turn, and of an eager one, which has to find the variant first.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

if sys.argv[4:] == ["without-torch"]:
    sys.modules["torch"] = None  # type: ignore[assignment]

import kernelwright as kw
import numpy as np

BATCHES = 41


def main() -> None:
    """Measure, and print the result."""
    sys.path.insert(0, sys.argv[2])
    import library  # type: ignore[import-not-found]

    eager = kw.load(Path(sys.argv[1], "saxpy.py")).saxpy
    functions = {"compiled": eager.compile(), "package": library.saxpy, "eager": eager}
    count = int(sys.argv[3])
    x, z = np.arange(8, dtype="float32"), np.zeros(8, dtype="float32")
    times: dict[str, list[float]] = {name: [] for name in functions}
    for batch in range(-1, BATCHES):
        for name, function in functions.items():
            start = time.perf_counter_ns()
            for _ in range(count):
                function(2.0, x, x, z)
            if batch >= 0:  # the first one warms up
                times[name].append((time.perf_counter_ns() - start) / count)
    print(json.dumps({name: statistics.median(listed) for name, listed in times.items()}))


if __name__ == "__main__":
    main()
