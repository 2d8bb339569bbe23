"""Lowers through a pool of workers, as a build does: ``lower_pool.py PROJECT REQUESTS JOBS``.

REQUESTS is a file of JSON lines, see ``benchmarks/lowerings.py``. It prints a JSON object with the seconds that it
took, the start of the workers included.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.protocol import LowerRequest


def main() -> None:
    """Lower everything, and print the time."""
    project, requests, jobs = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    listed = [json.loads(line) for line in requests.read_text().splitlines()]
    start = time.perf_counter()
    with WorkerPool(jobs, project) as pool, ThreadPoolExecutor(jobs) as threads:

        def lower(request: dict[str, Any]) -> None:
            with tempfile.TemporaryDirectory() as scratch:
                pool.call(LowerRequest(**request | {"out": scratch}))

        list(threads.map(lower, listed))
    print(json.dumps({"wall_s": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
