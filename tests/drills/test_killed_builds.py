"""Short forms of the drills that kill builds; the programs beside this file do as many as wanted."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from crash import VICTIMS, Drill
from killed_with_remote import RemoteDrill
from lost_workers import INTERRUPT, LostWorkers
from support.moments import wait_for
from support.project import Project

SMALL = {"kernels": ["saxpy"], "jobs": 2, "seed": 7, "settings": ["ARCHS=x86-64-v3,sm_80"]}


class ShortDrill(Drill):
    """The moments are numbers of finished stages instead of times, so that they are the same on a slow machine."""

    stages = 0
    """Those of a clean build."""

    chosen = ""
    """The victim of the moment."""

    def prepare(self, number: int) -> str:
        self.stages = self.stages or len(self.entries())
        return super().prepare(number)

    def victim(self, number: int) -> str:
        self.chosen = VICTIMS[number % len(VICTIMS)]
        return self.chosen

    def wait(self, process: subprocess.Popen[str], size: str) -> None:
        # Workers and compilers run early in a build.
        finished = self.random.randrange(1, self.stages) if "scons" in self.chosen else self.random.randrange(2)
        wait_for(
            lambda: process.poll() is not None or len(self.entries()) >= finished, f"{finished} stages do not finish"
        )


class ShortRemoteDrill(ShortDrill, RemoteDrill):
    """With the same moments."""


class ShortClusterDrill(LostWorkers):
    """The moment is the end of the first run on a worker."""

    def wait(self, process: subprocess.Popen[str], size: str) -> None:
        def has_run() -> bool:
            return any("status 0 in" in worker.log.read_text() for worker in self.cluster.workers)

        wait_for(lambda: process.poll() is not None or has_run(), "no worker does anything")


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Project.shared}/bin:{os.environ['PATH']}")


TAKES_LONG = pytest.mark.skipif(
    "KERNELWRIGHT_DRILLS" not in os.environ, reason="takes long: KERNELWRIGHT_DRILLS=1 runs it"
)


@pytest.mark.parametrize("drill", [ShortDrill, pytest.param(ShortRemoteDrill, marks=TAKES_LONG)])
def test_builds_that_are_killed_end_as_clean_ones(tmp_path: Path, drill: type[Drill]) -> None:
    made = drill(tmp_path, **SMALL)
    Project(tmp_path).know_tools()
    tally = made.run(moments=len(VICTIMS))
    assert tally.moments.total() >= len(VICTIMS) and tally.kept > 0


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="clusters need the extra fleet")
def test_builds_that_lose_their_cluster_end_as_clean_ones(tmp_path: Path) -> None:
    """It takes long: each moment builds the library on a cluster, and once more to its end.

    A scheduler that is lost is in ``tests/cluster``.
    """
    (tmp_path / "project").mkdir()
    victims = Counter(["worker SIGKILL", INTERRUPT])
    drill = ShortClusterDrill(tmp_path / "project", **SMALL)
    Project(drill.folder).know_tools()
    assert drill.strike(victims).moments == victims
