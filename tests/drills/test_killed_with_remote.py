"""A short form of the drills with a remote cache; ``python tests/drills/killed_with_remote.py`` does as many as one
likes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from crash import VICTIMS
from killed_with_remote import RemoteDrill
from support.project import Project
from test_crash import ShortDrill


class ShortRemoteDrill(ShortDrill, RemoteDrill):
    """With the moments of the short form without a remote cache."""


@pytest.mark.skipif("KERNELWRIGHT_DRILLS" not in os.environ, reason="takes long: KERNELWRIGHT_DRILLS=1 runs it")
def test_killed_builds_leave_both_caches_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Project.shared}/bin:{os.environ['PATH']}")
    drill = ShortRemoteDrill(tmp_path, ["saxpy"], jobs=2, seed=7, settings=["ARCHS=x86-64-v3,sm_80"])
    tally = drill.run(moments=len(VICTIMS))
    assert tally.moments.total() >= len(VICTIMS) and tally.kept > 0
