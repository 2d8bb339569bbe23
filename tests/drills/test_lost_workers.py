"""A short form of the drills on a cluster; ``python tests/drills/lost_workers.py`` does as many as wanted."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from support.moments import wait_for
from support.project import Project

pytest.importorskip("distributed", reason="clusters need the extra fleet")
from lost_workers import INTERRUPT, LostWorkers


class ShortDrill(LostWorkers):
    """The moment is the end of the first run on a worker, so that it is the same on a slow machine."""

    def wait(self, process: subprocess.Popen[str], size: str) -> None:
        def has_run() -> bool:
            return any("status 0 in" in worker.log.read_text() for worker in self.cluster.workers)

        wait_for(lambda: process.poll() is not None or has_run(), "no worker does anything")


def test_builds_that_lose_their_cluster_end_as_clean_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It takes long: each moment builds the library on a cluster, and once more to its end."""
    monkeypatch.setenv("PATH", f"{Project.shared}/bin:{os.environ['PATH']}")
    (tmp_path / "project").mkdir()
    drill = ShortDrill(tmp_path / "project", ["saxpy"], jobs=2, seed=7, settings=["ARCHS=x86-64-v3,sm_80"])
    victims = Counter(["worker SIGKILL", "scheduler SIGKILL", INTERRUPT])
    assert drill.strike(victims).moments == victims
