"""``record --timings``: what Triton's own tuner has measured and kept on a GPU chooses configs without one."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.errors import KernelwrightError
from kernelwright.frontends.triton import stand_in
from kernelwright.frontends.triton.recording import parse
from kernelwright.triton import record
from support.project import Project
from support.recorded import ready, recorded
from support.standin_calls import call, make_standin

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

OPS = """
import triton
import triton.language as tl

C = triton.Config
TWO = [C({"BLOCK": 64}), C({"BLOCK": 128}, num_warps=8)]

@triton.autotune(TWO, key=["n", "scale"])
@triton.jit
def plain(y, n, KIND: tl.constexpr, scale=3, BLOCK: tl.constexpr = 16):
    tl.store(y + tl.arange(0, BLOCK), (n * scale).to(KIND))

@triton.heuristics({"HALF": lambda args: args["n"] // 2})
@triton.heuristics({"EVEN": lambda args: args["HALF"] % 2 == 0})
@triton.autotune(TWO, key=["EVEN"])
@triton.jit
def computed_first(y, n, HALF, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), n + HALF + EVEN)

@triton.autotune(TWO, key=["n", "FITS"])
@triton.heuristics({"FITS": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def computed_later(y, n, FITS: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), n + FITS)

@triton.autotune(
    [*TWO, C({"BLOCK": 64}, num_warps=2), C({"BLOCK": 64}, maxnreg=64)], key=["n"],
    prune_configs_by={"perf_model": lambda num_warps, n, **_: num_warps * n, "top_k": 3},
    reset_to_zero=["y"], restore_value=["x"],
)
@triton.jit
def modelled(y, x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) + n)

@triton.autotune(
    TWO, key=["n"], prune_configs_by={"early_config_prune": lambda configs, args, n, **_: configs[: n % 2 + 1]}
)
@triton.jit
def pruned(y, n, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), n)

also = triton.autotune([C({"BLOCK": 32}), C({"BLOCK": 256})], key=["n"])(pruned.fn)
"""

CALLS = """
def calls(ops, y, half, tl):
    for n in (2, 3, 4):
        yield ops.plain, dict(y=y, n=n, KIND=tl.float32)
        yield ops.plain, dict(n=n, y=half, KIND=tl.int32, scale=5)
        yield ops.computed_first, dict(y=y, n=n)
        yield ops.computed_later, dict(y=y, n=n)
        yield ops.modelled, dict(y=y, x=y, n=n)
        yield ops.modelled, dict(y=half, x=y, n=n)
        yield ops.pruned, dict(y=y, n=n)
"""
HEAD = "import sys, torch, triton, triton.language as tl, tuned_ops\nfrom calls import calls\n"

KEEPING = 'import os\nos.environ["TRITON_CACHE_AUTOTUNING"] = "1"\n'

PROGRAM = """
y = torch.zeros(256, device="cuda")
for function, named in calls(tuned_ops, y, y.half(), tl):
    function[(1,)](**named)
tuned_ops.also[(1,)](y, 4)
"""

GPU = """
import random
from kernelwright.frontends.triton import stand_in
chance, found = random.Random(5), []
with stand_in.standing_in("sm_90a"):
    triton.knobs.cache.dir = sys.argv[1]
    triton.runtime.driver.active.get_benchmarker = lambda: lambda call, quantiles: [chance.random()] * 3
    triton.runtime.jit.JITFunction.run = lambda function, *arguments, **named: found.append(named)
    import tuned_ops
    y = torch.zeros(256)
    tuned_ops.also[(1,)](y, 4)
    found.clear()
    for function, named in calls(tuned_ops, y, y.half(), tl):
        function[(1,)](**named)
for each in found:
    print(each["BLOCK"], each["num_warps"], each.get("maxnreg"))
"""

ASK = """
import re, triton.language as tl
from calls import calls
y, half = on_cuda(256), on_cuda(256, dtype=half)
for function, named in calls(demo, y, half, tl):
    told = function.choice(**named).variant
    number = lambda name, other=None: (re.search(name + r"-(\\d+)", told) or [0, other])[1]
    print(number("BLOCK"), number("num_warps", 4), number("maxnreg"))
"""

SETTINGS = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_90a"]\n'


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, list[str]]:
    """A project, in whose folder ``times`` Triton's tuner has written, and the configs that it took."""
    project = Project.of(tmp_path_factory.mktemp("tuned"), SETTINGS)
    for name, text in (("tuned_ops", OPS), ("calls", CALLS), ("program", HEAD + PROGRAM)):
        project.write(f"kernels/{name}.py", text)
    env = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1"}
    played = ready().run(KEEPING + HEAD + GPU, "times", env=env, path=["kernels"], cwd=project.folder)
    assert not played.returncode, played.stderr
    return project, played.stdout.splitlines()


def test_a_package_takes_the_configs_that_triton_took_with_the_same_times(tuned):
    project, configs = tuned
    before = sorted(project.folder.glob("times/**/*"))
    words = "--output", "kernels/calls.json", "--arch", "sm_90a", "--timings", "times"
    assert not recorded(project.folder, "kernels/program.py", *words).stderr
    assert sorted(project.folder.glob("times/**/*")) == before
    project.write("kernels/recorded.py", 'from kernelwright.triton import recorded\n\nkernels = recorded("calls.json")')
    text = project.folder.joinpath("SConstruct").read_text()
    project.write("SConstruct", text.replace("kernels/*.py", "kernels/recorded.py"))
    project.scons("-j2")
    make_standin(project)
    (project.folder / "build/calls.py").write_text(CALLS)
    asked, _ = call(project, ASK, capability=90)
    assert asked.splitlines() == configs
    assert len({*configs}) == 4  # so that each kind of config was the best one for some call


def test_with_first_config_the_config_that_times_choose_is_recorded_alone(tuned, tmp_path):
    project, configs = tuned
    words = "--output", str(tmp_path / "calls.json"), "--arch", "sm_90a", "--first-config", "--timings", "times"
    recorded(project.folder, "kernels/program.py", *words)
    known = parse((tmp_path / "calls.json").read_bytes())["tuned_ops:modelled"]
    found = {(one.constants["BLOCK"], one.options.get("num_warps", 4), one.options.get("maxnreg"))
             for one in known.specializations}  # fmt: skip
    at_calls = [number for number in range(len(configs)) if number % 7 in (4, 5)]
    assert {f"{block} {warps} {most}" for block, warps, most in found} == {configs[number] for number in at_calls}


# ---- in this process: times that are of something else


MODULE = """
import triton
import triton.language as tl

@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def tuned(p, n, BLOCK: tl.constexpr):
    tl.store(p + tl.arange(0, BLOCK), n)

class OfLibrary(triton.runtime.Autotuner):
    def run(self, *arguments, **named):
        self.nargs = dict(zip(self.arg_names, arguments))
        times = {each: self._bench(*arguments, config=each, **named) for each in self.prune_configs(named)}
        return self.fn.run(*arguments, **named, **min(times, key=times.get).all_kwargs())

narrowed = OfLibrary(tuned.fn, tuned.arg_names, tuned.configs, ["n"], None, None)
"""


def loaded(folder: Path, text: str = MODULE) -> Any:
    """The functions of a module of that text. Modules of equal texts have equal names and lines."""
    folder.mkdir(exist_ok=True)
    (folder / "timed_ops.py").write_text(text)
    sys.modules.pop("timed_ops", None)
    sys.path.insert(0, str(folder))  # until the test ends: what a build could not import is not recorded
    try:
        return __import__("timed_ops")
    finally:
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)


def played(folder: Path, arch: str, times: list[float], n: int = 3) -> Path:
    """Have Triton's tuner measure, and keep its times in a folder of caches."""
    import triton

    ops, left = loaded(folder), iter(times)
    with stand_in.standing_in(arch), pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.runtime.jit.JITFunction, "run", lambda *_, **__: None)
        patch.setattr(ops.tuned, "_do_bench", lambda call, quantiles: [next(left)] * 3)
        patch.setattr(ops.tuned, "cache_results", True)
        triton.knobs.cache.dir = str(folder / "times")
        ops.tuned[(1,)](torch.zeros(64), n)
    return folder / "times"


def choices(folder: Path, times: Path, text: str = MODULE, ns: tuple[int, ...] = (3,), **more: Any) -> list[int]:
    """The blocks of the choices that a recording has."""
    ops = loaded(folder, text)
    with record(folder / "calls.json", "sm_90a", timings=times, fresh=True, **more):
        for n in ns:
            ops.tuned[(1,)](torch.zeros(64), n)
    return [one.config["BLOCK"] for one in parse((folder / "calls.json").read_bytes())["timed_ops:tuned"].choices]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the times, and a path for the modules of a test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


def test_times_of_another_arch_text_list_or_environment_are_not_taken(tmp_path, monkeypatch):
    times = played(tmp_path, "sm_90a", [2.0, 1.0])
    assert choices(tmp_path, times) == [32]
    others = MODULE.replace(" n)", " n + 1)"), MODULE.replace("64", "65").replace('"BLOCK": 16', '"BLOCK": 64')
    for text in others:
        with pytest.raises(KernelwrightError, match="has no times of timed_ops:tuned for sm_90a and the key"):
            choices(tmp_path, times, text)
    with pytest.warns(UserWarning, match=r"no times of timed_ops:tuned for sm_90a and the key \(4, .*; those of anoth"):
        assert choices(tmp_path, times, ns=(3, 4)) == [32]
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    with pytest.raises(KernelwrightError, match="environment"):
        choices(tmp_path, times)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    with pytest.raises(KernelwrightError, match="of another arch"):
        choices(tmp_path, played(tmp_path / "sm_80", "sm_80", [2.0, 1.0]))


def test_configs_that_did_not_run_are_not_chosen(tmp_path):
    inf = float("inf")
    assert choices(tmp_path, played(tmp_path, "sm_90a", [inf, 1e9])) == [32]
    with pytest.raises(KernelwrightError, match="no times"):
        choices(tmp_path / "none", played(tmp_path / "none", "sm_90a", [inf, inf]))


def test_calls_in_forks_of_the_program_take_times_too(tmp_path):
    times = played(tmp_path, "sm_90a", [2.0, 1.0])
    ops = loaded(tmp_path)
    with (
        pytest.warns(UserWarning, match=r"no times of timed_ops:tuned for sm_90a and the key \(4, "),
        record(tmp_path / "calls.json", "sm_90a", timings=times) as notes,
    ):
        if not (fork := os.fork()):
            try:
                ops.tuned[(1,)](torch.zeros(64), 3)
                ops.tuned[(1,)](torch.zeros(64), 4)
            finally:
                os._exit(0)
        os.waitpid(fork, 0)
    (choice,) = parse((tmp_path / "calls.json").read_bytes())["timed_ops:tuned"].choices
    assert choice.config["BLOCK"] == 32 and not notes.calls


def test_a_folder_without_times_or_with_damaged_ones_is_an_error_before_the_program_runs(tmp_path):
    times = played(tmp_path, "sm_90a", [2.0, 1.0])
    (file,) = times.glob("*/tuned.autotune.json")
    for text in ("{", "[]", '{"configs_timings": [[{}, []]]}', '{"configs_timings": [[1, 2]]}'):
        file.write_text(text)
        with pytest.raises(KernelwrightError, match=f"{file}: is damaged: "):
            choices(tmp_path, times)
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(KernelwrightError, match="no times of Triton's tuner"):
            choices(tmp_path, folder)
    with pytest.raises(KernelwrightError, match="Triton's tuner measures"), record(tmp_path / "c.json", timings=times):
        pass


def test_the_first_config_of_tuners_of_libraries_is_recorded_alone_too(tmp_path):
    ops = loaded(tmp_path)
    with record(tmp_path / "calls.json", "sm_90a", first_config=True) as notes:
        ops.narrowed[(1,)](torch.zeros(64), 3)
        ops.tuned[(1,)](torch.zeros(64), 3)
    known = parse((tmp_path / "calls.json").read_bytes())["timed_ops:tuned"]
    assert [one.constants for one in known.specializations] == [{"BLOCK": 16}] and notes.calls == 2
    assert not known.choices
