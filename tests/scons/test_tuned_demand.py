"""Eager calls of a kernel with a space: the declared variant runs, or the one that a table of the project has."""

from __future__ import annotations

import pytest
from support.demand import Demand
from support.project import Project
from support.tuned import table, tuned
from test_tuned_calls import BY_BOTH, BY_M, HERE, WHICH

TABLE = table(BY_M, BY_BOTH, device=HERE, kernel="which")
FILE = "tuning/which.here.json"


@pytest.fixture
def demand(cpu_project: Project) -> Demand:
    for path in (cpu_project.folder / "kernels").glob("*.py"):
        path.unlink()
    cpu_project.write("kernels/which.py", WHICH)
    return Demand(cpu_project)


BEGIN = """
    which = kw.load("kernels/which.py").which

    def ran(*sizes, dtype="float32"):
        return [int(array(which(np.zeros((m, 3), dtype)))[0]) for m in sizes]
"""


def test_a_table_of_the_project_decides_and_an_edit_counts_at_the_next_call(demand: Demand) -> None:
    demand.run(
        BEGIN
        + f"""
        assert ran(1, 20, 70) == [1, 1, 1], "the declared variant"
    import pathlib

    path = pathlib.Path({FILE!r})
    path.parent.mkdir()
    path.write_text({TABLE!r})
    assert ran(1, 8, 9, 64, 65) == [4, 4, 1, 1, 16]
    assert ran(33, 34, dtype="int32") == [1, 4], "the product of both sizes decides"
    path.write_text(path.read_text().replace('"upto": 8,', '"upto": 9,'))
    assert ran(1, 9, 10) == [4, 4, 1]
    path.write_text("broken")
    with pytest.raises(kw.KernelwrightError, match={FILE!r}):
        ran(1)
    path.unlink()
    assert ran(1, 20, 70) == [1, 1, 1]
    """
    )


def test_only_declared_variants_are_compared_and_only_what_runs_is_compiled(demand: Demand) -> None:
    demand.project.write(FILE, TABLE)
    demand.run(
        BEGIN
        + """
    assert ran(70) == [16]
    with pytest.raises(TypeError) as error:
        ran(3, dtype="float64")
    assert str(error.value).count("expects") == 2, "one for each config of callers"
    assert array(which.compile(dtype="float32")(np.zeros((70, 3), "float32")))[0] == 1, "what a package declares"
    assert array(which.compile(dtype="float32", block=4)(np.zeros((70, 3), "float32")))[0] == 4
    """
    )


def test_a_point_that_is_gone_is_told_and_the_declared_variant_runs(demand: Demand) -> None:
    stale = table(tuned("float32", (8, {"block": 5}), (None, {"block": 16}), by=("m",)), device=HERE, kernel="which")
    demand.project.write(FILE, stale)
    said = demand.run(BEGIN + "\n    assert ran(1, 70) == [1, 16]\n").stderr
    assert f"{FILE}:" in said and "does not have the point {'block': 5} any more" in said


def test_tables_of_another_arch_do_not_count(demand: Demand) -> None:
    demand.project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\narchs = ["x86-64"]\n')
    demand.project.write(FILE, TABLE)
    demand.run(BEGIN + "\n    assert ran(1, 70) == [1, 1]\n")
