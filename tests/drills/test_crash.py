"""A short form of the crash drills; ``python tests/drills/crash.py`` runs as many as wanted on the whole library."""

from __future__ import annotations

from crash import Drill


def test_builds_that_are_killed_end_as_clean_ones(tmp_path):
    tally = Drill(tmp_path, ["saxpy", "transpose"], jobs=2, seed=7).run(moments=6)
    assert tally.moments.total() >= 6 and tally.kept > 0
