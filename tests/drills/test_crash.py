"""A short form of the crash drills; ``python tests/drills/crash.py`` runs as many as wanted on the whole library."""

from __future__ import annotations

import os
import subprocess

from crash import VICTIMS, Drill
from support.moments import wait_for
from support.project import Project


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


def test_builds_that_are_killed_end_as_clean_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Project.shared}/bin:{os.environ['PATH']}")
    settings = ["ARCHS=x86-64-v3,sm_80"]
    drill = ShortDrill(tmp_path, ["saxpy"], jobs=2, seed=7, settings=settings)
    tally = drill.run(moments=len(VICTIMS))
    assert tally.moments.total() >= len(VICTIMS) and tally.kept > 0
