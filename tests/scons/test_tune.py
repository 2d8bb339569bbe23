"""``kernelwright tune`` with real kernels, in short rounds: what it measures, chooses, survives and keeps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kernelwright.cli import main
from support.demand import Demand
from support.moments import wait_for
from support.project import ROOT, Project

FILE = '''
from kernelwright import kernel
from tvm.script import tirx as T

POINTS = [{"way": "slow"}, {"way": "fast"}, {"way": "wide"}]


@kernel(configs=[{"dtype": "float32"}], tune=POINTS, outputs=["y"])
def double(dtype: str, way: str):
    """y[i] = 2 x[i], with as much work as a way does; what is larger than 3000 goes wrong in some of them."""
    if way == "raises":
        raise ValueError("there is no such way")
    steps = {"slow": 256, "wide": 1}.get(way, 32)
    before = 4000 if way == "wide" else 1
    added = {"wrong": 1.0}.get(way, 0.0)
    late = {"late": 1.0}.get(way, 0.0)
    number = {"crashes": 11}.get(way, 0)
    waits = way == "hangs"
    divisor = 2 if way == "even" else 1

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), dtype)
        y = T.match_buffer(y_handle, (n,), dtype)
        assert n % divisor == 0, "n has to be even"
        z = T.alloc_buffer((1,), dtype)
        with T.sblock("begin"):
            z[0] = T.cast(added, dtype)
        if n > 3000:
            with T.sblock("late"):
                z[0] = T.cast(late, dtype)
            if number > 0:
                with T.sblock("crash"):
                    T.evaluate(T.call_extern("int32", "raise", number))
            if waits:
                with T.sblock("wait"):
                    T.evaluate(T.call_extern("int32", "pause"))
        for f in T.serial(before):
            with T.sblock("before"):
                k = T.axis.opaque(before, f)
                z[0] = z[0] + x[0] * T.cast(1e-30, dtype)
        for i in T.serial(n):
            with T.sblock("first"):
                j = T.axis.opaque(n, i)
                y[j] = x[j] * T.cast(2.0, dtype) + z[0]
            for s in T.serial(steps):
                with T.sblock("again"):
                    j = T.axis.opaque(n, i)
                    y[j] = y[j] + x[j] * T.cast(1e-30, dtype)

    return main


@double.sizes
def _():
    return {"n": [16, 8192]}


@double.reference
def _(x):
    return x * 2
'''

VIEWS = '''
from kernelwright import kernel
from tvm.script import tirx as T


@kernel(configs=[{}], tune=[{"steps": 64}, {"steps": 1}], requires=["s == 3 * n"])
def doubled(steps: int):
    """x[i, j] = 2 x[i, j], in views only"""

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle):
        m, n, s = T.int32(), T.int32(), T.int32()
        x = T.match_buffer(x_handle, (m, n), "float32", strides=(s, 1))
        for i, j in T.grid(m, n):
            with T.sblock("x"):
                a, b = T.axis.remap("SS", [i, j])
                x[a, b] = x[a, b] * T.float32(2)
        for i, j, k in T.grid(m, n, steps):
            with T.sblock("again"):
                a, b, c = T.axis.remap("SSS", [i, j, k])
                x[a, b] = x[a, b] + T.float32(1e-30)

    return main


@doubled.sizes
def _():
    return {"m": [64], "n": [32]}


@doubled.inputs
def _(rng, m, n):
    return {"x": rng.standard_normal((m, 3 * n))[:, n : 2 * n]}


@doubled.reference
def _(x):
    return {"x": x * 2}
'''

COMMAND = "import sys; from kernelwright.cli import main; sys.exit(main({arguments!r}))"

SHORT = {"rounds": 3, "confirm": 0, "batches": 8, "batch_us": 300, "limit_s": 60, "waiting": 1.0}


class Tuned:
    """A project with that kernel, and what the command says about it."""

    def __init__(self, project: Project) -> None:
        self.demand = Demand(project)
        self.folder = project.folder
        self.file = project.write("kernels/double.py", FILE)
        self.project = project
        self.temporary = project.folder / ".temporary"
        self.temporary.mkdir(exist_ok=True)
        self.lock = self.temporary / f"kernelwright-{os.getuid()}" / "tune-cpu.lock"

    def variables(self, **policy: Any) -> dict[str, str]:
        own = {"TMPDIR": str(self.temporary)}  # other tests must not wait for this one
        return {"KERNELWRIGHT_TEST_TUNE": json.dumps(SHORT | policy), "CUDA_VISIBLE_DEVICES": "", **own}

    def tune(self, *arguments: str, ok: bool = True, forks: int = 3, **policy: Any) -> subprocess.CompletedProcess[str]:
        code = COMMAND.format(arguments=["tune", *arguments])
        return self.demand.run(code, env=self.variables(**policy), ok=ok, forks=forks)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = ["-m", "kernelwright", "tune", *arguments]
        return self.demand.start(command, self.variables() | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")})

    def points(self, *ways: str) -> None:
        """Have the space consist of these ways."""
        lines = self.file.read_text().splitlines()
        points = f"POINTS = {[{'way': way} for way in ways]}"
        self.file.write_text("\n".join(points if line.startswith("POINTS") else line for line in lines) + "\n")

    @property
    def table(self) -> Path:
        (path,) = (self.folder / "tuning").glob("double.*.json")
        return path

    @property
    def rules(self) -> list[dict[str, Any]]:
        (config,) = json.loads(self.table.read_text())["configs"]
        return list(config["rules"])

    @property
    def state(self) -> Path:
        (path,) = (self.folder / "build/tune/double").glob("x86-64*")
        return path

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.state / "timings.jsonl").read_text().splitlines()]

    @property
    def measured(self) -> list[tuple[str, int]]:
        """What was measured at sizes that are in the table."""
        found = [(line["config"]["way"], line["sizes"]["n"]) for line in self.lines]
        return [(way, n) for way, n in found if not n % 2]

    @property
    def evidence(self) -> dict[int, str]:
        """The answer of the table for each size."""
        (config,) = json.loads(self.table.read_text())["configs"]
        return {row["sizes"]["n"]: row["tune"]["way"] for row in config["evidence"]}

    def failed(self) -> dict[str, str]:
        """The logs of the candidates that are out, by their ways."""
        folders = (self.folder / "build/tune/double/failed").glob("*")
        return {path.name.rpartition("-")[2]: (path / "log.txt").read_text() for path in folders}


@pytest.fixture
def tuned(cpu_project: Project) -> Tuned:
    return Tuned(cpu_project)


def answers(tuned: Tuned) -> list[str]:
    return [rule["tune"]["way"] for rule in tuned.rules]


def test_the_best_candidate_of_each_size_is_chosen_and_a_second_run_gives_the_same_table(tuned: Tuned) -> None:
    said = tuned.tune("double", waiting=-1.0)  # so that every batch has waited for too long
    assert answers(tuned) == ["slow"] and "this machine is busy: 100% of the batches waited for a CPU" in said.stderr
    assert "double: building 2 candidates" in said.stderr
    said = tuned.tune("double")
    assert answers(tuned) == ["fast", "wide"], "what was measured in another way does not count"
    assert tuned.rules[0]["upto"] == 362 and "way=fast" in said.stdout, said.stdout
    text, lines = tuned.table.read_bytes(), (tuned.state / "timings.jsonl").read_bytes()
    result = json.loads((tuned.state / "result.json").read_text())["configs"][0]
    assert [at["chosen"] for at in result["sizes"]] == [1, 2] and result["failures"] == result["unmeasured"] == []
    assert [one["number"] for one in result["sizes"][0]["candidates"]] == [0, 1, 2]
    tuned.tune()
    assert (tuned.table.read_bytes(), (tuned.state / "timings.jsonl").read_bytes()) == (text, lines)
    tuned.tune("--again")
    assert answers(tuned) == ["fast", "wide"] and len(tuned.lines) > len(lines.splitlines())


def test_without_compile_on_demand_no_candidate_counts_as_one_that_failed(tuned: Tuned) -> None:
    tuned.demand.run(f"kw.load({str(tuned.file)!r}).double.compile()")
    said = tuned.demand.run(
        COMMAND.format(arguments=["tune", "double"]), env=tuned.variables() | {"KERNELWRIGHT_JIT": "off"}, ok=False
    )
    assert "double [tune]: candidates have to be compiled, and compile on demand is off" in said.stderr
    said = tuned.demand.run(
        COMMAND.format(arguments=["tune", "double"]), env=tuned.variables() | {"KERNELWRIGHT_DEBUG": "full"}, ok=False
    )
    assert "double [tune]: debug is 'full'" in said.stderr and "remedy: tune it without debug" in said.stderr
    assert not list(tuned.folder.glob("tuning/*")) and not list(tuned.folder.glob("build/tune/**/log.txt"))


def test_candidates_that_fail_in_any_way_are_out_with_their_logs(tuned: Tuned) -> None:
    tuned.points("slow", "crashes", "fast", "wrong", "late", "raises", "hangs")
    said = tuned.tune(limit_s=10, forks=5)
    assert answers(tuned) == ["fast"] and "5 of 7 candidates are out, see build/tune/double/failed" in said.stdout
    logs = tuned.failed()
    words = {
        "crashes": "was ended by SIGSEGV",
        "wrong": "[check]: y differs from the reference at n=33",
        "late": "[tune]: y differs from the reference at n=8192",
        "raises": "ValueError: there is no such way",
        "hangs": "took longer than 10 s",
    }
    assert logs.keys() == words.keys()
    for way, text in words.items():
        assert text in logs[way], way
    (sources,) = (tuned.folder / "build/tune/double/failed").glob("*crashes")
    assert list(sources.rglob("module.tir"))
    result = json.loads((tuned.state / "result.json").read_text())["configs"][0]
    assert sorted(failure["number"] for failure in result["failures"]) == [1, 3, 4, 5, 6]
    assert (tuned.folder / result["failures"][0]["folder"] / "log.txt").is_file()
    # What is known to crash or to hang is not tried again, unless that is asked for.
    before = tuned.lines
    tuned.tune(limit_s=10)
    assert tuned.lines == before and tuned.failed().keys() == words.keys()
    # What is left of candidates goes with them.
    tuned.project.replace("kernels/double.py", '{"crashes": 11}', "{}")
    other = tuned.state.parent / "sm_80-100"
    shutil.copytree(tuned.state, other)
    tuned.points("slow", "crashes")
    tuned.tune()
    assert tuned.failed().keys() == words.keys(), "the result of another device names them"
    shutil.rmtree(other)
    tuned.tune()
    assert tuned.failed() == {}


REFERENCE = """
@double.reference
def _(x):
    return x * 2
"""


def test_a_candidate_that_fails_beside_the_sizes_it_would_be_chosen_for_is_out(tuned: Tuned) -> None:
    """Without a reference there is no check, which has sizes of all kinds, and all that are tuned are even."""
    tuned.points("slow", "even")
    tuned.project.replace("kernels/double.py", REFERENCE, "")
    said = tuned.tune()
    assert answers(tuned) == ["slow"] and "1 of 2 candidates are out" in said.stdout
    assert "n has to be even" in tuned.failed()["even"] and "n=17" in tuned.failed()["even"]
    known = [line for line in tuned.lines if line["config"]["way"] == "even"]
    tuned.tune("--sizes", "n=16")
    assert [line for line in tuned.lines if line["config"]["way"] == "even"] == known
    assert answers(tuned) == ["slow"] and tuned.failed().keys() == {"even"}
    # Where the default fails as well, that is how the kernel is.
    tuned.project.replace("kernels/double.py", 'if way == "even"', "if True")
    tuned.tune("--sizes", "n=16")
    assert answers(tuned) == ["even"] and not tuned.failed()


def test_a_default_that_fails_is_an_error(tuned: Tuned) -> None:
    """The kernels behind it are tuned all the same."""
    tuned.points("wrong", "fast")
    other = FILE.replace("double", "other").replace("[16, 8192]", "[16]").replace(', {"way": "wide"}', "")
    tuned.project.write("kernels/other.py", other)
    said = tuned.tune(ok=False)
    assert "way-wrong [check]: y differs" in said.stderr and "way=fast" in said.stdout
    assert [path.name.partition(".")[0] for path in (tuned.folder / "tuning").iterdir()] == ["other"]


def measuring(folder: Path) -> list[str]:
    """The processes that measure for a project."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"kernelwright.tune.measure" in words and str(folder).encode() in words:
            found.append(path.parent.name)
    return found


def test_a_killed_run_is_resumed_and_another_tuner_waits_for_its_end(tuned: Tuned, tmp_path: Path) -> None:
    """The second one tunes a checkout of its own. The first one measures a candidate that hangs until it is killed."""
    tuned.points("slow", "fast", "hangs")
    here, checkout = tuned.folder, tmp_path / "checkout"
    shutil.copytree(here, checkout)
    process = tuned.start("--sizes", "n=16,32,8192")

    def begun() -> bool:
        assert process.poll() is None, process.communicate()
        return bool(list((here / "build").glob("tune/double/*/timings.jsonl"))) and len(tuned.lines) >= 3

    try:
        wait_for(begun, "the first timings")
        tuned.project.folder = checkout
        said = tuned.tune("--no-wait", ok=False)
        assert f"process {process.pid}, tuning double of {here}, since" in said.stderr and "--no-wait" in said.stderr
        second = tuned.start("--sizes", "n=16")
        assert second.stderr is not None
        wait_for(lambda: "waiting for it" in os.read(second.stderr.fileno(), 10000).decode(), "the second one to wait")
        assert not (checkout / "build/tune/double").exists()
    finally:
        process.kill()
        _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors
    assert second.wait(60) == 0 and list((checkout / "tuning").iterdir())
    wait_for(lambda: not measuring(here), "the end of the measuring process")
    tuned.project.folder = here
    assert not (here / "tuning").exists()
    before = tuned.measured
    with (tuned.state / "timings.jsonl").open("a") as stream:
        stream.write('{"config": {"way')  # as one that was cut off
    tuned.points("slow", "fast")
    tuned.tune("--sizes", "n=16,32,8192")
    lines = (tuned.state / "timings.jsonl").read_text().splitlines()
    whole = [json.loads(line) for line in lines if not line.endswith('{"way')]
    found = [(line["config"]["way"], line["sizes"]["n"]) for line in whole if not line["sizes"]["n"] % 2]
    assert before and found[: len(before)] == before and len(found) == len(set(found))
    assert {("fast", n) for n in (16, 32, 8192)} <= set(found)
    assert tuned.rules


def test_a_table_is_checked_and_listed_with_what_is_stale(tuned: Tuned) -> None:
    assert "double                   has a space, and no table" in tuned.tune("--list").stdout
    assert "there is no table for this device to check" in tuned.tune("--check", ok=False).stderr
    said = tuned.tune("--check", "double", ok=False).stderr
    assert "double has no table for" in said and "kernelwright tune double" in said
    tuned.tune()
    lines = (tuned.state / "timings.jsonl").read_bytes()
    other = tuned.project.write("kernels/other.py", FILE.replace("double", "other"))
    said = tuned.tune("--check", "--max-regret", "100%")
    assert "the largest regret is" in said.stdout and "BEYOND" not in said.stdout
    assert "other has no table for" in said.stderr
    assert (tuned.state / "timings.jsonl").read_bytes() == lines
    assert "other has no table for" in tuned.tune("--check", "other", ok=False).stderr
    assert "other" not in tuned.tune("--list", "double").stdout
    other.unlink()
    text = tuned.table.read_text()
    tuned.table.write_text(text.replace('{"n": 16}', '{"q": 16}'))
    said = tuned.tune("--check", ok=False)
    assert f"{tuned.table.relative_to(tuned.folder)}:5" in said.stderr and "double has no size 'q'" in said.stderr
    tuned.table.write_text(text.replace('"upto": 362, "tune": {"way": "fast"}', '"upto": 362, "tune": {"way": "slow"}'))
    said = tuned.tune("--check", ok=False)
    assert "BEYOND double dtype=float32, n=16: way=slow takes 1.000 of the default's time, way=fast 0." in said.stdout
    tuned.table.write_text(text)
    assert "2 rules (tuning/double.x86-64" in tuned.tune("--list", "--strict").stdout
    tuned.points("slow", "fast")
    listed = tuned.tune("--list", "--strict", ok=False).stdout
    assert f"{tuned.table.relative_to(tuned.folder)}:8: {{'way': 'wide'}} is not in the space any more" in listed
    # Some sizes leave what the table has for others.
    tuned.points("slow", "fast", "wide")
    said = tuned.tune("--sizes", "n=64")
    assert tuned.evidence == {16: "fast", 64: "fast", 8192: "wide"} and "is gone" not in said.stderr
    assert tuned.rules == [{"upto": 724, "tune": {"way": "fast"}}, {"tune": {"way": "wide"}}]
    # What was measured with another source is no answer any more.
    tuned.project.replace("kernels/double.py", ".get(way, 32)", ".get(way, 31)")
    listed = tuned.tune("--list").stdout
    assert "the source of {'way': 'fast'} has changed since it was measured" in listed and listed.count("stale") == 1
    said = tuned.tune("--sizes", "n=64")
    assert tuned.evidence == {64: "fast", 8192: "wide"}
    assert "the answer of the table for n=16 is gone" in said.stderr


OPTIONS = {
    "--sizes=n=16": ("tuning",),
    "--budget=1s": ("tuning",),
    "--again": ("tuning",),
    "--device=cpu": ("tuning", "--check"),
    "--no-wait": ("tuning", "--check"),
    "--max-regret=5%": ("--check",),
    "--strict": ("--list",),
    "--file=kernels/double.py": ("tuning", "--check", "--list"),
    "double": ("tuning", "--check", "--list"),
}
"""What may be given besides -> what it counts for."""


def test_an_option_that_does_not_count_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """All pairs of an option and what is done; the rest of a run is left out here."""
    monkeypatch.setattr("kernelwright.tune.command._Command.run", lambda self: 0)
    monkeypatch.setattr("kernelwright.tune.command.default_files", list)
    for option, counts in OPTIONS.items():
        for doing in ("tuning", "--check", "--list"):
            status = main(["tune", option, *([] if doing == "tuning" else [doing])])
            errors = capsys.readouterr().err
            said = f"{option.partition('=')[0]} does not count for {doing}"
            assert (status, said in errors) == ((0, False) if doing in counts else (1, True)), (option, doing, errors)
    assert main(["tune", "--check", "--list"]) == 1 and "leave it out; it counts for --check" in capsys.readouterr().err
    assert main(["tune", "--budget="]) == 1 and "write 90s" in capsys.readouterr().err
    assert main(["tune", "--check", "--max-regret=nan"]) == 1 and "write 5% or 2.5%" in capsys.readouterr().err


def test_mistakes_are_told_with_what_to_do(tuned: Tuned) -> None:
    assert "the kernels are add_one, double, scale" in tuned.tune("triple", ok=False).stderr
    assert "its sizes are n" in tuned.tune("--sizes", "m=1", ok=False).stderr
    tuned.project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\ntuning = ""\n')
    said = tuned.tune("double", ok=False).stderr
    assert "tuning" in said and "no table would count" in said and 'set tuning = "tuning"' in said
    assert "there are no tables in no folder: the setting tuning is empty" in tuned.tune("--list").stdout
    tuned.project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    tuned.lock.unlink(missing_ok=True)
    tuned.lock.mkdir()
    (tuned.lock / "other").write_text("so that the folder stays")
    said = tuned.tune("double", ok=False).stderr
    assert f"{tuned.lock}: Is a directory" in said and "make room" in said and "Traceback" not in said
    tuned.project.replace("kernels/double.py", ", tune=POINTS", "")
    tuned.project.replace("kernels/double.py", "way: str", 'way: str = "slow"')
    assert "no kernel for cpu has a space" in tuned.tune(ok=False).stderr
    assert "double has no space: nothing about it can be tuned" in tuned.tune("double", ok=False).stderr


def test_scons_tunes_the_kernels_of_a_package_and_a_call_those_on_demand(tuned: Tuned) -> None:
    env = tuned.variables() | {"KERNELWRIGHT_CACHE_DIR": str(tuned.demand.cache)}
    run = tuned.project.scons("tune", "KERNELS=double", "TUNE=--sizes n=16", env=env)
    assert answers(tuned) == ["fast"] and "way=fast" in run.output
    assert not (tuned.folder / "build/demo").exists()
    run = tuned.project.scons("tune", "KERNELS=double", "TUNE=--device tpu", env=env, ok=False)
    assert "kernelwright tune ended with exit status 1" in run.output and run.status == 2
    assert "write cpu" in run.output
    # What was measured before is known.
    tuned.table.unlink()
    program = """
    double = kw.load("kernels/double.py").double
    double.tune(sizes={"n": [16]}, device="cpu")
    with pytest.raises(kw.KernelwrightError, match="does not count for tune, which"):
        double.using(flags=["-O3"]).tune()
    with pytest.raises(kw.KernelwrightError, match="exit status 1"):
        double.tune(device="tpu")

    @kw.kernel(outputs=["y"])
    def here():
        pass

    with pytest.raises(kw.KernelwrightError, match="in no file that tune could execute"):
        here.tune()
    """
    said = tuned.demand.run(program, env=tuned.variables())
    assert answers(tuned) == ["fast"] and "way=fast" in said.stdout


def test_the_cost_of_the_definition_decides_who_is_first(tuned: Tuned) -> None:
    cost = """
@double.cost
def _(way, n):
    return {"slow": 3, "fast": 2, "wide": 1}[way] * n
"""
    tuned.file.write_text(tuned.file.read_text() + cost)
    tuned.tune("--sizes", "n=16", "--budget", "1s", group=1)
    assert tuned.measured[0] == ("wide", 16)


def test_variants_of_a_class_are_measured_at_sizes_of_the_class(tuned: Tuned) -> None:
    tuned.points("slow", "fast")
    tuned.project.replace("kernels/double.py", "tune=POINTS", 'tune=POINTS, divisible={"n": [1, 16]}')
    tuned.tune("double", "--sizes", "n=17,30")
    configs = json.loads(tuned.table.read_text())["configs"]
    found = ((each["config"].get("n_multiple_of", 1), each["evidence"]) for each in configs)
    sizes = {number: [row["sizes"]["n"] for row in rows] for number, rows in found}
    assert sizes == {1: [17, 30], 16: [32]}
    tried = {(line["config"].get("n_multiple_of", 1), line["sizes"]["n"]) for line in tuned.lines}
    assert tried == {(1, 17), (1, 30), (1, 18), (1, 31), (16, 32), (16, 48)}, (
        "what is chosen runs at the next sizes, too"
    )


# ---- GPUs

ON_GPU = '''
from kernelwright import grid, kernel
from tvm.script import tirx as T


@kernel(tune=grid(threads=[64, 256]), outputs=["y"])
def double(threads: int):
    """y[i] = 2 x[i]"""

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float32")
        y = T.match_buffer(y_handle, (n,), "float32")
        for b in T.thread_binding((n + threads - 1) // threads, thread="blockIdx.x"):
            for t in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("y"):
                    j = T.axis.spatial(n, b * threads + t)
                    T.where(b * threads + t < n)
                    y[j] = x[j] * T.float32(2)

    return main


@double.sizes
def _():
    return {"n": [64, 65536, 1048576]}
'''


class Gpu:
    """A project on a machine where a driver stands in, which computes nothing and makes times up.

    So its tests show that the tuner asks a driver the right things, and what it makes of the answers, and nothing about
    any GPU. The kernel has no reference, because its results would be wrong.
    """

    def __init__(self, project: Project) -> None:
        project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80"]\n')
        project.write("kernels/double.py", ON_GPU)
        self.folder = project.folder
        self.driver = project.folder / "libstandin.so"
        source = ROOT / "site_scons/kernelwright/testing/cuda.c"
        subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(self.driver)], check=True)
        self.demand = Demand(project)

    def tune(self, *arguments: str, ok: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        policy = {"rounds": 3, "batches": 2, "batch_us": 100}
        given = {"KERNELWRIGHT_CUDA_DRIVER": str(self.driver), "KERNELWRIGHT_TEST_TUNE": json.dumps(policy)}
        code = COMMAND.format(arguments=["tune", "double", *arguments])
        return self.demand.run(code, env=given | variables, ok=ok)

    def table(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "tuning/double.sm_80-100.json").read_text())
        return found


@pytest.fixture
def gpu(project: Project) -> Gpu:
    return Gpu(project)


def made_up_us(n: int, threads: int) -> float:
    """What the stand-in makes of a launch; see ``site_scons/kernelwright/testing/cuda.c``."""
    return 5 + 0.01 * -(-n // threads) + 0.02 * threads


def test_each_gpu_has_a_table_that_says_which_it_is_and_what_was_measured(gpu: Gpu) -> None:
    gpu.tune()
    table = gpu.table()
    assert table["device"] == {"target": "cuda", "arch": "sm_80", "name": "stand-in 0", "count": 100}
    assert table["measured"]["compiler"].startswith("nvcc 13.") and table["measured"]["driver"].endswith("CUDA 13.0")
    assert "L2 flushed at each call" in table["measured"]["policy"]
    (config,) = table["configs"]
    assert config["rules"] == [{"upto": 2048, "tune": {"threads": 64}}, {"tune": {"threads": 256}}]
    for row in config["evidence"]:
        n = row["sizes"]["n"]
        assert row["us"] == pytest.approx(made_up_us(n, row["tune"]["threads"]), rel=1e-3)
        assert row["default_us"] == pytest.approx(made_up_us(n, 64), rel=1e-3)
    (path,) = (gpu.folder / "build/tune/double/sm_80-100").glob("result.json")
    (found,) = json.loads(path.read_text())["configs"]
    chosen = next(one for one in found["sizes"][2]["candidates"] if one["number"] == 1)
    assert chosen["warm_us"] == pytest.approx(made_up_us(1048576, 256), rel=1e-3) and chosen["clock_mhz"] == []
    gpu.tune("--sizes", "n=64", "--device", "cuda:1")
    names = sorted(path.name for path in (gpu.folder / "tuning").glob("*"))
    assert names == ["double.sm_80-100-stand-in-1.json", "double.sm_80-100.json"], "they differ in their names only"
    assert "stand-in 1: 1 configs" in gpu.tune("--list").stdout


def test_a_driver_that_does_not_answer_is_an_error(gpu: Gpu) -> None:
    said = gpu.tune("--device", "cuda:0", ok=False, KERNELWRIGHT_CUDA_DRIVER="libm.so.6")
    assert "this machine has no device cuda:0, or its driver does not answer" in said.stderr
    assert not (gpu.folder / "tuning").exists()


SOURCED = """
from kernelwright import grid, kernel
from kernelwright.cuda import Source, Tensor

@kernel(frontend="cuda", tune=grid(threads=[64, 256]), outputs=["y"])
def double(threads: int):
    x, y = Tensor("float32", "n"), Tensor("float32", "n")
    return Source("double.cu", f"twice<{threads}>", x=x, y=y, grid=f"(n + {threads - 1}) // {threads}", block=threads)

@double.sizes
def _():
    return {"n": [64]}
"""


def test_what_a_source_includes_is_a_part_of_what_was_measured(gpu: Gpu) -> None:
    (gpu.folder / "kernels/double.py").write_text(SOURCED)
    (gpu.folder / "kernels/double.cu").write_text(
        '#include "factor.cuh"\ntemplate <int> __global__ void twice(const float *x, float *y) { *y = FACTOR * *x; }\n'
    )
    header = gpu.folder / "kernels/factor.cuh"
    header.write_text("#define FACTOR 2\n")
    gpu.tune()
    assert "stale" not in gpu.tune("--list").stdout
    header.write_text("#define FACTOR 3\n")
    assert "stale" in gpu.tune("--list").stdout


def test_inputs_may_be_views_and_are_measured_as_such(tuned: Tuned) -> None:
    """Compact arrays are refused, so nothing else was measured, or checked."""
    tuned.file.write_text(VIEWS)
    assert "steps=1" in tuned.tune("doubled").stdout
    (path,) = (tuned.folder / "tuning").glob("doubled.*.json")
    (config,) = json.loads(path.read_text())["configs"]
    assert [rule["tune"] for rule in config["rules"]] == [{"steps": 1}]
