"""Builds on a cluster: what a run costs besides the compiler, and how busy workers are kept.

``python -m benchmarks.cluster`` starts a scheduler and workers on this machine, with a shell for a compiler. It is no
part of the suite, because what it measures is the distance to a run here and not the speed of a build.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kernelwright.cluster.start import cluster_at
from kernelwright.core.errors import Where
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.processes.runner import ToolRunner
from kernelwright.processes.tools import Elsewhere, RunsTools, ToolCall

from .children.standin_worker import TOOL

ROOT = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
STANDIN = "benchmarks.children.standin_worker"
SOURCE = "// as long as a kernel's source\n" * 500


def cpu_seconds() -> float:
    """Processor time of this process, and of all that it has started so far."""
    parents, used = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        used[int(entry.name)] = sum(map(int, fields[11:15]))
    family, new = set(), {os.getpid()}
    while new:
        family |= new
        new = {pid for pid, parent in parents.items() if parent in family} - family
    return sum(used[pid] for pid in family) / TICKS


@contextmanager
def cluster(processes: int, threads: int, folder: Path, preload: str = STANDIN, **more: str) -> Iterator[str]:
    """The address of a scheduler with some workers.

    Arguments:
        processes: how many workers.
        threads: of each of them.
        folder: for their files.
        preload: the module that gives them tools.
        more: variables that they see besides ours.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    base = [sys.executable, "-m", "distributed.cli"]
    own = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    commands = [[f"{base[2]}.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), *own]]
    worker = [f"{base[2]}.dask_worker", address, "--nthreads", str(threads), "--no-nanny", "--no-dashboard"]
    worker += ["--memory-limit", "0", "--preload", preload]
    commands += [worker] * processes
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}/site_scons:{ROOT}", "TMPDIR": str(folder), **more}
    variables["DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"] = "False"  # as kernelwright worker has it
    with (folder / "log").open("w") as log:
        started = [
            subprocess.Popen([*base[:2], *command], cwd=folder, env=variables, stdout=log, stderr=log)
            for command in commands
        ]
        try:
            wait_for_workers(folder / "log", processes)
            yield address
        finally:
            for process in started:
                process.kill()
                process.wait()


def wait_for_workers(log: Path, count: int) -> None:
    """Wait until so many workers have joined; their log says so."""
    while log.read_text().count("Registered to:") < count:
        time.sleep(0.2)


def run_all(tools: RunsTools, folder: Path, count: int, jobs: int, script: str) -> tuple[float, float]:
    """Seconds, and seconds of processor time, that some runs take."""

    def run(number: int) -> None:
        scratch = folder / f"scratch-{number}"
        scratch.mkdir()
        output = scratch / "out"
        command = ["/bin/sh", "-c", f"{script} > {output}"]
        needs = Elsewhere(TOOL, (folder / "source",), (output,))
        tools.run(ToolCall(command, folder, scratch, Where("k"), "", kind="cc", subject="k", elsewhere=needs))
        output.unlink()
        scratch.rmdir()

    begun, used = time.monotonic(), cpu_seconds()
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, range(count)))
    return time.monotonic() - begun, cpu_seconds() - used


def main() -> None:
    """Measure, and print lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=500, help="runs for the overhead (default: 500)")
    parser.add_argument("--actions", type=int, default=20_000, help="runs of the simulation (default: 5000 x 4)")
    parser.add_argument("--seconds", type=float, default=4.0, help="what each of these sleeps (default: 4)")
    parser.add_argument("--processes", type=int, default=4, help="processes with workers (default: 4)")
    parser.add_argument("--threads", type=int, default=16, help="workers in each of them (default: 16)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top)
        (folder / "source").write_text(SOURCE)
        measure(options, folder, print)


def measure(options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> None:
    """Compare runs on a cluster with runs here, then see how busy its workers are."""
    slots = options.processes * options.threads
    with cluster(options.processes, options.threads, folder) as address:
        governor = MemoryGovernor(1 << 30, Measurements(folder / "m.json"))
        local = ToolRunner(4, folder, 600.0, governor)
        remote = ToolRunner(4, folder, 600.0, governor, cluster_at(address, Path(), say))
        for tools in (local, remote):
            run_all(tools, folder, 20, 4, "cat source")  # starts the processes
        seconds, used = run_all(local, folder, options.runs, 4, "cat source")
        say(f"here: {1000 * used / options.runs:.1f} ms of CPU for each run, {options.runs / seconds:.0f} a second")
        before = used
        seconds, used = run_all(remote, folder, options.runs, 4, "cat source")
        say(f"cluster: {1000 * used / options.runs:.1f} ms of CPU for each run, {options.runs / seconds:.0f} a second")
        say(f"overhead: {1000 * (used - before) / options.runs:.1f} ms of CPU for each run")
        script = f"sleep {options.seconds}; cat source"
        seconds, used = run_all(remote, folder, options.actions, 2 * slots, script)
        busy = options.actions * options.seconds / (seconds * slots)
        each = 1000 * used / options.actions
        say(f"{options.actions} runs of {options.seconds:g} s on {slots} workers took {seconds:.0f} s: {busy:.2f} busy")
        say(f"meanwhile this machine used {used / seconds:.2f} CPUs, {each:.1f} ms for each run")
        remote.close()
        local.close()


if __name__ == "__main__":
    main()
