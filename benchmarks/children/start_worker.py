"""Starts a worker, and prints the seconds until it has executed a definition: ``start_worker.py PROJECT FILE``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.protocol import DiscoverRequest


def main() -> None:
    """Start one, and print the time."""
    start = time.perf_counter()
    with WorkerPool(1, Path(sys.argv[1])) as pool:
        pool.call(DiscoverRequest(sys.argv[2]))
        print(time.perf_counter() - start)


if __name__ == "__main__":
    main()
