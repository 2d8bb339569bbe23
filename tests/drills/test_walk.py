"""A short form of the random walks; ``python tests/drills/walk.py --steps 1000`` takes as many steps as wanted."""

from __future__ import annotations

from walk import Plan, Tally, random_plan, walked


def test_a_walk_gives_after_each_step_what_it_gives_from_nothing(tmp_path):
    """It takes long: after each of 25 steps all is made from nothing as well. Triton is not installed everywhere."""
    tally, plan = Tally(), random_plan(seed=7, length=25, leave_out=frozenset({"triton"}))
    error = walked(plan, tally, tmp_path / "walk")
    assert error is None, f"{error}\n{plan}"
    assert tally.steps.total() == 25 and tally.clean > 5


def test_a_walk_that_was_printed_is_read_as_it_was():
    plan = random_plan(seed=3, length=25)
    assert Plan.read(str(plan)) == plan
