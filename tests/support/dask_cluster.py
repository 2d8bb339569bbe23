"""A cluster of Dask on this machine: a scheduler and workers, in processes and folders of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.moments import wait_for

SITE_SCONS = Path(__file__).resolve().parents[2] / "site_scons"


KNOWING = """\
import shutil, sys
from kernelwright.cli import main
from kernelwright.toolchain.probe import Toolchain
begin = Toolchain.__init__
def begin_knowing(self, path, *given):
    shutil.copyfile({tools!r}, path)
    begin(self, path, *given)
Toolchain.__init__ = begin_knowing
sys.exit(main(sys.argv[1:]))
"""
"""Starts a worker that knows what its tools are, which takes 2 s to find out."""


class Process:
    """A process of a cluster: a run of Python, in a new folder; ``log`` has what it prints."""

    def __init__(self, folder: Path, *command: str, **variables: str) -> None:
        folder.mkdir()
        self.log = folder / "log"
        environment = {**os.environ, "PYTHONPATH": str(SITE_SCONS), "TMPDIR": str(folder), **variables}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    def wait_for(self, text: str) -> None:
        """Wait until it has printed something."""

        def has_said() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return text in self.log.read_text()

        wait_for(has_said, text)

    def kill(self) -> None:
        """End it now."""
        self.process.kill()
        self.process.wait()


class Scheduler(Process):
    """A scheduler of this machine that answers; ``port`` is where."""

    def __init__(self, folder: Path, **variables: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard"]
        options += ["--dashboard-address", "127.0.0.1:0"]
        super().__init__(folder, "-m", "distributed.cli.dask_scheduler", *options, **variables)
        self.wait_for("Scheduler at:")


class Cluster:
    """A scheduler, and workers that have joined it, with two threads each; all see some variables besides ours."""

    tools: Path | None = None
    """A file with what is known of the tools of these workers, but for those with a nanny, which find it out."""

    def __init__(self, folder: Path, **variables: str) -> None:
        folder.mkdir()
        self.folder, self.variables = folder, variables
        self.scheduler = Scheduler(folder / "scheduler", **variables)
        self.address = f"tcp://127.0.0.1:{self.scheduler.port}"
        self.workers: list[Process] = []
        self.start("a", "b")

    def start(self, *names: str, options: Sequence[str] = ("--no-nanny",), **variables: str) -> None:
        """Start workers, in folders of these names."""
        is_known = self.tools is not None and "--no-nanny" in options
        begin = ["-c", KNOWING.format(tools=str(self.tools))] if is_known else ["-m", "kernelwright"]
        command = [*begin, "worker", self.address, "--threads", "2", *options]
        started = [Process(self.folder / name, *command, **{**self.variables, **variables}) for name in names]
        for worker in started:
            worker.wait_for("Registered to:")
        self.workers += started

    def close(self) -> None:
        """End all of it."""
        for process in (*self.workers, self.scheduler):
            process.kill()
