"""``kernelwright bench`` with real kernels, in short rounds: what it measures, compares and refuses."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.demand import Demand
from support.project import Project
from test_tune import COMMAND, FILE, SHORT

OPERATIONS = """

@double.flops
def _(n, dtype):
    return 100 * n
"""

WITHOUT_LIMITS = "from kernelwright.tune import benchmark; benchmark._Run.limits = lambda run: None\n"


class Benched:
    """A project with the kernel of the tuner's tests, with or without its space, and what the command says."""

    def __init__(self, project: Project) -> None:
        self.project, self.demand = project, Demand(project)
        project.write("kernels/double.py", FILE + OPERATIONS)

    def bench(
        self, *arguments: str, ok: bool = True, env: dict[str, str] | None = None, limits: bool = False
    ) -> tuple[str, str]:
        """What it prints; ``limits``: whether what the machine can do is measured as well, for 2 s."""
        variables = {"KERNELWRIGHT_TEST_TUNE": json.dumps(SHORT | {"waiting": 1e6}), "CUDA_VISIBLE_DEVICES": ""}
        variables |= {"TMPDIR": str(self.project.folder), **(env or {})}
        code = ("" if limits else WITHOUT_LIMITS) + COMMAND.format(arguments=["bench", *arguments])
        run = self.demand.run(code, env=variables, ok=ok, forks=5)
        assert "Traceback" not in run.stderr, run.stderr
        return run.stdout, run.stderr

    def rows(self, name: str) -> dict[str, dict[str, Any]]:
        return {row["what"]: row for row in json.loads((self.project.folder / name).read_text())["rows"]}

    def git(self, *words: str) -> None:
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(self.project.folder)]
        subprocess.run([*git, *words], check=True)

    def committed(self) -> None:
        self.git("init", "-q")
        self.git("add", "kernels", "SConstruct", "pyproject.toml")
        self.git("commit", "-qm", "first")

    def left(self) -> list[Path]:
        """Folders that runs have left behind."""
        return sorted(self.project.folder.glob("kernelwright-*/bench/.scratch-*"))

    def without_space(self) -> None:
        self.project.replace("kernels/double.py", ", tune=POINTS", "")
        self.project.replace("kernels/double.py", "way: str", 'way: str = "fast"')


@pytest.fixture
def benched(cpu_project: Project) -> Benched:
    return Benched(cpu_project)


def test_a_kernel_is_measured_beside_all_that_does_the_same(benched: Benched) -> None:
    project = benched.project
    project.scons()
    sizes = ("double", "--sizes", "n=1024")
    benched.bench(
        *sizes, "--all", "--beside", "numpy:positive", "--against", "build/demo", "--json", "all.json", limits=True
    )
    rows = benched.rows("all.json")
    assert set(rows) == {"way=slow", "way=fast", "way=wide", "reference", "numpy:positive", "demo"}
    assert all(len(row["rounds"]) == 3 and row["sizes"] == {"n": 1024} for row in rows.values())
    fast, slow = rows["way=fast"], rows["way=slow"]
    us = sorted(fast["rounds"])[1]
    assert fast["gb_s"] == pytest.approx(2 * 4 * 1024 / us / 1e3) and fast["gflop_s"] == pytest.approx(
        102400 / us / 1e3
    )
    assert min(slow["rounds"]) > max(fast["rounds"])
    limits = json.loads((project.folder / "all.json").read_text())["limits"]
    assert limits["gb_s"] > 0 and limits["gflop_s"] > 0
    assert not benched.left()
    table, _ = benched.bench(*sizes)
    assert [line.split()[3] for line in table.splitlines()[1:]] == ["way=slow", "reference"]
    assert "GFLOP/s" in table and "dtype=float32" in table


TIMES = """
from kernelwright import kernel
from tvm import te


@kernel(configs=[{"factor": 2}, {"factor": 3}], outputs=["y"])
def times(factor: int):
    n = te.var("n")
    x = te.placeholder((n,), "float32", name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] * float(factor), name="y")])


@times.reference
def _(x, factor):
    return x * factor
"""


def test_a_package_is_measured_with_the_config_of_its_row_also_if_a_call_would_choose_another(benched: Benched) -> None:
    benched.project.write("kernels/times.py", TIMES)
    benched.project.scons()
    benched.bench("times", "--sizes", "n=16", "--against", "build/demo", "--json", "times.json")
    rows = json.loads((benched.project.folder / "times.json").read_text())["rows"]
    assert [row["config"]["factor"] for row in rows if row["what"] == "demo"] == [2, 3]
    benched.project.replace("kernels/times.py", '{"factor": 3}', '{"factor": 4}')
    said = benched.bench("times", "--sizes", "n=16", "--against", "build/demo", ok=False)[1]
    assert "the package has no such variant" in said and "factor=4" in said


def test_what_has_become_slower_is_found(benched: Benched) -> None:
    benched.without_space()
    folder = benched.project.folder
    benched.committed()
    limits = ("--max", "30%")
    benched.bench("double", "--json", "before.json")
    said, _ = benched.bench("double", "--check", "before.json", "--max", "100000%")
    assert "4 of 4 rows compared, 0 slower by more than 100000.0%" in said
    benched.project.replace("kernels/double.py", 'way: str = "fast"', 'way: str = "slow"')
    said, _ = benched.bench(
        "double", "--check", "before.json", *limits, "--against", "HEAD", "--json", "n.json", ok=False
    )
    assert "SLOWER: double, dtype=float32, n=16, kernel:" in said and "reference:" not in said
    rows = benched.rows("n.json")
    assert min(rows["kernel"]["rounds"]) > max(rows["HEAD"]["rounds"])
    assert not benched.left() and not (folder / ".git/worktrees").exists()


def test_what_a_killed_run_has_left_is_removed_by_the_next_one(benched: Benched) -> None:
    folder = benched.project.folder
    benched.committed()
    tree = folder / f"kernelwright-{os.getuid()}/bench/.scratch-1-x/tree"
    young, used = tree.parents[1] / ".scratch-1-young", tree.parents[1] / ".scratch-1-used"
    for path in (tree.parent, young, used):
        path.mkdir(parents=True)
    benched.git("worktree", "add", "--detach", str(tree), "HEAD")
    for path in (tree.parent, used):
        os.utime(path, (1e9, 1e9))
    lock = os.open(used, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    benched.bench("double")
    os.close(lock)
    assert benched.left() == [used, young], "what is old goes, if no process holds it"
    assert not (folder / ".git/worktrees").exists()


def test_mistakes_of_a_bench_are_told_with_what_to_do(benched: Benched, tmp_path: Path) -> None:
    def error(*arguments: str) -> str:
        return benched.bench(*arguments, ok=False)[1]

    said = error("triple")
    assert "[bench]: there is no kernel" in said and "the kernels are add_one, double, scale" in said
    assert "scale [bench]: nothing says which n to measure" in error("scale")
    assert "scale" in benched.bench("scale", "--sizes", "n=16")[0]
    said = error("double", "--sizes", "n=1000000000000")
    assert "GB are free" in said and "name smaller sizes: --sizes" in said
    said = error("double", "--sizes", "n=16", "--beside", "numpy:nothing")
    assert "numpy:nothing cannot be imported" in said and "MODULE:FUNCTION" in said
    assert ":f cannot be imported" in error("double", "--sizes", "n=16", "--beside", ":f")
    assert "json has no from_dlpack" in error("double", "--sizes", "n=16", "--beside", "json:dumps")
    said = error("double", "--sizes", "n=16", "--against", "nothing")
    assert "is no package, no wheel, and no revision of git" in said
    benched.project.write("kernels/times.py", TIMES)
    benched.project.scons()
    benched.committed()
    benched.project.replace("kernels/times.py", "(n,)", "(n, 1)")
    benched.project.replace("kernels/times.py", "lambda i: x[i]", "lambda i, j: x[i, j]")
    said = error("times", "--sizes", "n=16", "--against", "HEAD")
    assert (
        "at HEAD its arguments are other ones: float32[n], float32[n] there, float32[n, 1], float32[n, 1] here" in said
    )
    said = error("times", "--sizes", "n=16", "--against", "build/demo")
    assert "calling the kernel of the package demo at n=16 raised" in said
    benched.project.replace("kernels/times.py", "times", "ours")
    assert "HEAD has no kernel ours in kernels/times.py" in error("ours", "--sizes", "n=16", "--against", "HEAD")
    benched.bench("scale", "--sizes", "n=16", "--json", "scale.json")
    assert "has nothing that was measured now" in error("double", "--sizes", "n=16", "--check", "scale.json")
    path = benched.project.folder / "scale.json"
    path.write_text(path.read_text().replace('"count": ', '"count": 1'))
    assert "compare runs of one device" in error("scale", "--sizes", "n=16", "--check", "scale.json")
    path.write_text("{}")
    assert "scale.json: is damaged" in error("scale", "--sizes", "n=16", "--check", "scale.json")
    benched.project.replace("kernels/double.py", "return 100 * n", 'return "many"')
    assert "flops returned 'many', expected a number" in error("double", "--sizes", "n=16")
    (tmp_path / "bin").mkdir()
    said = benched.bench("scale", "--profile", env={"PATH": str(tmp_path / "bin")}, ok=False)[1]
    assert "[bench]: --profile needs perf" in said and "apt-get install linux-perf" in said
    perf = tmp_path / "bin/perf"
    perf.write_text('#!/bin/sh\necho "$@" > profiled.txt\n')
    perf.chmod(0o755)
    _, said = benched.bench(
        "scale", "--sizes", "n=16", "--profile", env={"PATH": f"{perf.parent}:{os.environ['PATH']}"}
    )
    assert "look at it with: perf report -i build/profile/scale.data" in said
    words = (benched.project.folder / "profiled.txt").read_text()
    assert words.startswith("record -g -o build/profile/scale.data")


def test_a_call_on_demand_runs_the_command(benched: Benched) -> None:
    program = """
    double = kw.load("kernels/double.py").double
    for given in ({"beside": ["numpy:nothing"]}, {"sizes": {"n": [10**12]}}, {"device": "tpu"}):
        with pytest.raises(kw.KernelwrightError, match="exit status 1"):
            double.bench(**{"device": "cpu"} | given)
    """
    said = benched.demand.run(program, env={"CUDA_VISIBLE_DEVICES": ""})
    for text in ("numpy:nothing cannot be imported", "GB are free", "write cpu"):
        assert text in said.stdout + said.stderr
