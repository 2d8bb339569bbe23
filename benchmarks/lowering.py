"""What the workers cost: lowering the kernel library through the pool, against lowering alone in one process.

The bound: at most twice the sum of the variants' own lowering times, plus one TVM import for each worker.
The peer in the same run is one Python process for each variant, which is what a compiler driver without workers does.
It is measured on a sample, because it takes a second for each variant.

    python benchmarks/lowering.py [--jobs N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "site_scons"))

from kernelwright.discovery import discover  # noqa: E402
from kernelwright.workers.pool import WorkerPool  # noqa: E402
from kernelwright.workers.protocol import LowerRequest  # noqa: E402

SAMPLE = 6
"""Variants that are lowered in a process each."""

ALONE = """\
import sys, tempfile, time
start = time.perf_counter()
import tvm
imported = time.perf_counter() - start
sys.path[:0] = [{site!r}, {kernels!r}]
from kernelwright.workers.server import Server
from kernelwright.workers.protocol import LowerRequest, DiscoverRequest
from pathlib import Path
server = Server(Path({root!r}), lambda line: None)
for request in {requests!r}:
    server._definitions.load(request["file"])
times = []
for request in {requests!r}:
    with tempfile.TemporaryDirectory() as out:
        begin = time.perf_counter()
        server._lower(LowerRequest(**request, out=out), lambda text: None)
        times.append(time.perf_counter() - begin)
print(imported, sum(times))
"""


def timed(action: Callable[[], Any]) -> float:
    """Seconds that an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def all_requests(folder: Path) -> list[dict[str, Any]]:
    """The lowerings of the library, without their output folders."""
    files = sorted(path for path in (ROOT / "kernels").glob("*.py") if not path.name.startswith("_"))
    with WorkerPool(2, ROOT) as pool:
        records, errors = discover(files, ROOT, folder, lambda: pool, "benchmark")
    if errors:
        raise SystemExit("\n".join(map(str, errors)))
    return [
        {
            "file": record.file,
            "kernel": kernel.name,
            "slug": slug,
            "config": dict(config),
            "target": target,
            "arch": arch,
        }
        for record in records
        for kernel in record.kernels
        for slug, config in zip(kernel.slugs, kernel.configs, strict=True)
        for target, arch in (("llvm", "x86-64-v3"), ("cuda", "sm_80"))
    ]


def through_pool(requests: list[dict[str, Any]], jobs: int) -> None:
    """Lower everything with a new pool, start of the workers included."""

    def one(request: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as out:
            pool.call(LowerRequest(**request, out=out))

    with WorkerPool(jobs, ROOT) as pool, ThreadPoolExecutor(jobs) as threads:
        list(threads.map(one, requests))


def alone(requests: list[dict[str, Any]]) -> tuple[float, float]:
    """Seconds of the TVM import and of the lowerings in one process, one after the other, definitions loaded before."""
    code = ALONE.format(site=str(ROOT / "site_scons"), kernels=str(ROOT / "kernels"), root=str(ROOT), requests=requests)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    imported, total = map(float, done.stdout.split())
    return imported, total


def main() -> None:
    """Measure, print a table, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        requests = all_requests(Path(folder))
    imported, own = alone(requests)
    walls = {jobs: timed(lambda jobs=jobs: through_pool(requests, jobs)) for jobs in sorted({1, options.jobs})}
    sample = requests[:: max(1, len(requests) // SAMPLE)][:SAMPLE]
    each = timed(lambda: [alone([request]) for request in sample]) / len(sample) * len(requests)
    result = {
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "lowerings": len(requests),
        "tvm_import_s": round(imported, 3),
        "own_s": round(own, 3),
        "workers": {
            str(jobs): {
                "wall_s": round(wall, 3),
                "bound_s": round(2 * own + jobs * imported, 3),
                "ratio_to_bound": round(wall / (2 * own + jobs * imported), 3),
                "ratio_to_own": round(wall / own, 3),
            }
            for jobs, wall in walls.items()
        },
        "process_each_s": round(each, 1),
        "process_each_to_workers": round(each / walls[1], 1),
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
