"""What every process that works for a build promises, whatever it does: the build asks it to run a shell script."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernelwright.cluster.machine import Machine
from kernelwright.cluster.messages import Offer
from kernelwright.cluster.runner import Cluster as Machines
from kernelwright.core.errors import KernelwrightError, Where, WorkerError
from kernelwright.define.unit import Unit
from kernelwright.frontends.other_process import asked, process_of
from kernelwright.frontends.tilelang import program as tilelang_program
from kernelwright.processes import runner as runner_module
from kernelwright.processes import tool_process
from kernelwright.processes import worker as worker_module
from kernelwright.processes.children import ForkServer
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.protocol import DevicesRequest, DiscoverRequest
from kernelwright.processes.runner import ToolRunner
from kernelwright.processes.tools import Elsewhere, SharedTool, ToolCall
from support.family import family, number, require_gone
from support.moments import ENDLESS, HANGS_AFTER_S, Clock, Gate, processes_of, wait_for, wait_until_gone
from support.scripts_elsewhere import ScriptRequest

SITE_SCONS = Path(worker_module.__file__).parents[2]
PLACES = 3
"""How many requests may be worked on at the same time."""

DEFINITION = """\
import subprocess
from kernelwright import kernel
status = subprocess.run(["/bin/sh", "-c", {script!r}]).returncode
assert status == 0, f"sh ended with exit status {{status}}"

@kernel
def k():
    return None
"""

STUCK = """\
import ctypes, subprocess
subprocess.Popen(["/bin/sh", "-c", {script!r}])
ctypes.PyDLL(None).pause()  # without a look at whether the build has ended
"""


class Definitions:
    """A worker of the fork server, which executes a definition that runs the script."""

    variables = frozenset(
        ("PATH", "HOME", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8")
    )
    kept = frozenset(["HOME"])
    """The variables of the user's that are passed on."""

    kill = "kill -9 $PPID"
    killed = "a worker was ended by SIGKILL while working on discover"
    late = f"a worker took longer than {HANGS_AFTER_S:g} s while working on discover, and was ended"
    setting = "worker_timeout"

    _numbers = itertools.count()

    def __init__(self, folder: Path, fork_server: ForkServer, clock: Clock) -> None:
        self.folder, self.clock = folder, clock
        self._printed: dict[str, str] = {}

        def printed(request: DiscoverRequest, text: str) -> None:
            self._printed[request.file] = text

        self.pool = WorkerPool(PLACES, folder, HANGS_AFTER_S, on_output=printed)
        self.pool._fork_server = fork_server

    def do(self, script: str) -> str:
        file = f"k{next(self._numbers)}.py"
        (self.folder / file).write_text(DEFINITION.format(script=script))
        self.pool.call(DiscoverRequest(file))
        return self._printed.get(file, "")

    def is_placed(self, where: Where) -> bool:
        return where.stage == "discover" and re.fullmatch(r"k\d+\.py(:4)?", where.location or "") is not None

    def expire(self) -> None:
        self.clock.ahead = HANGS_AFTER_S

    def close(self) -> None:
        self.pool._fork_server = None  # the other tests go on with it
        self.pool.close()


LATER = """\
import os, runpy, time
now = time.monotonic
time.monotonic = lambda: now() + (1e6 if os.path.exists({late!r}) else 0)
runpy.run_path({program!r}, run_name="__main__")
"""
"""A runner for which much time has passed as soon as there is a certain file."""


class Compilers:
    """A process that runs compilers."""

    variables = frozenset(("PATH", "LC_ALL", "TMPDIR"))
    kept: frozenset[str] = frozenset()
    where = Where("gemm", "m-64", "nvcc", "kernels/gemm.py:3")
    kill = Definitions.kill
    killed = "the process that runs compilers was ended by SIGKILL while running sh"
    late = f"sh took longer than {HANGS_AFTER_S:g} s, and was ended"
    setting = "tool_timeout"

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._late, program = folder, folder / "late", folder / "later.py"
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        program.write_text(LATER.format(late=str(self._late), program=tool_process.__file__))
        kind = replace(runner_module.RUNNER, arguments=("-I", "-S", "-B", str(program)))
        monkeypatch.setattr(runner_module, "RUNNER", kind)
        governor = MemoryGovernor(1 << 40, Measurements(folder / "measurements.json"))
        self.runner = ToolRunner(PLACES, folder, HANGS_AFTER_S, governor, self.others(folder))
        self.pool: WorkerPool | None = self.runner._pool
        self.elsewhere: Elsewhere | None = None

    def others(self, folder: Path) -> Machines | None:
        """The other machines of the build."""
        return None

    def do(self, script: str) -> str:
        how = {"kind": "cc", "subject": "k", "elsewhere": self.elsewhere}
        call = ToolCall(["/bin/sh", "-c", script], self.folder, self.scratch, self.where, "", **how)
        return self.runner.run(call).output

    def is_placed(self, where: Where) -> bool:
        return where == self.where

    def expire(self) -> None:
        self._late.touch()

    def close(self) -> None:
        self.runner.close()


class Cluster(Compilers):
    """A machine of a cluster, in this process."""

    killed = f"{Compilers.killed} (before that, a worker of the cluster could not run cc: {Compilers.killed})"

    tool = SharedTool("cc", "12", "f00d", {"CC": "/bin/sh"})

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        self.pool = None  # Dask has the places
        self.elsewhere = Elsewhere(self.tool, (), ())

    def others(self, folder: Path) -> Machines:
        keys = itertools.count()
        (folder / "machine").mkdir()
        self.machine = Machine({"cc": lambda: self.tool}, folder / "machine", lambda note: None)
        engine = SimpleNamespace(
            offers=lambda: [Offer({}, {"f00d": "cc 12"})],
            execute=lambda request, tool: self.machine.execute(request, str(next(keys))),
            close=self.machine.close,
        )
        return Machines(lambda: engine, {}, lambda note: None)

    def close(self) -> None:
        super().close()
        self.machine.close()


SERVING = """\
import sys
sys.path[:0] = {folders!r}
from support import scripts_elsewhere
scripts_elsewhere.main()
"""


class OtherEnvironment:
    """A process in another environment, which has a compiler that only runs scripts."""

    variables = frozenset(("PATH", "LC_ALL", "TMPDIR", "HOME", "PYTHONHASHSEED"))
    kept: frozenset[str] = frozenset()
    # The script is run by a fork.
    pool = None
    kill = "read -r _ _ _ server _ < /proc/$PPID/stat; kill -9 $server"
    killed = "the process of TileLang was ended by SIGKILL while working on script"

    def __init__(self, folder: Path) -> None:
        program, python = folder / "serving.py", folder / "python"
        program.write_text(SERVING.format(folders=[str(SITE_SCONS), str(Path(__file__).parents[1])]))
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -I {program} "$5"\n')
        python.chmod(0o755)
        (folder / "source.py").touch()
        self.folder, self._lock = folder, threading.Lock()
        self.unit = Unit("k", "s", "kw", {}, (), "cuda", "sm_80", "k.py:3", ("sm_80",), python=str(python))

    def do(self, script: str) -> str:
        request = ScriptRequest(self.unit, str(self.folder), str(self.folder / "source.py"), "", script)
        with self._lock:  # a worker has one, and asks it one thing after the other
            return asked(tilelang_program.ENVIRONMENT, "tilelang.worker", request, self.unit).text

    def is_placed(self, where: Where) -> bool:
        return where == self.unit.where

    def close(self) -> None:
        process_of.cache_clear()  # then it ends


Works = Definitions | Compilers | Cluster | OtherEnvironment


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ForkServer]]:
    """A folder, and a fork server for it that has imported TVM."""
    folder = tmp_path_factory.mktemp("definitions")
    with WorkerPool(1, folder) as pool:
        pool.call(DevicesRequest())
        assert pool._fork_server is not None
        yield folder, pool._fork_server


@pytest.fixture
def works(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Works]:
    """What works for the build."""
    monkeypatch.setattr(worker_module, "REAP_S", HANGS_AFTER_S)
    if request.param is Definitions:
        clock = Clock()
        monkeypatch.setattr(worker_module, "time", clock)
        made = Definitions(*request.getfixturevalue("forking"), clock)
    elif request.param is OtherEnvironment:
        made = OtherEnvironment(tmp_path)
    else:
        made = request.param(tmp_path, monkeypatch)
    yield made
    made.close()


def of(*kinds: type[Works]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("works", kinds, indirect=True, ids=[kind.__name__ for kind in kinds])


EVERY = of(Definitions, Compilers, Cluster, OtherEnvironment)
EVERY_OF_A_BUILD = of(Definitions, Compilers, Cluster)
"""A process of another environment ends with the worker that has it."""


class Call:
    """A script that runs in a thread, and the error that it ends with."""

    def __init__(self, do: Callable[[str], str], script: str) -> None:
        self._error: KernelwrightError | None = None

        def run() -> None:
            with pytest.raises(KernelwrightError) as caught:
                do(script)
            self._error = caught.value

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def error(self) -> KernelwrightError:
        self._thread.join(HANGS_AFTER_S)
        assert self._error is not None, "it hangs"
        return self._error


@EVERY
def test_each_of_many_callers_gets_its_own_answer_and_no_more_run_than_there_are_places(works, tmp_path):
    (tmp_path / "now").mkdir()
    with ThreadPoolExecutor(6) as threads, Gate(tmp_path / "gate") as gate:
        text = f"cd {tmp_path}; touch now/$$; ls now | wc -l >> counts; {gate.shell}; rm now/$$; echo "
        answers = threads.map(lambda n: works.do(f"{text}{n}"), range(12))
        if works.pool is not None:
            gate.wait(PLACES)
            wait_for(lambda: len(works.pool._line) == 3, "the others do not wait in line")
        gate.open()
        assert list(answers) == [f"{n}\n" for n in range(12)]
    if works.pool is not None:
        assert max(map(int, (tmp_path / "counts").read_text().split())) == PLACES


@EVERY
def test_an_error_has_its_place_and_the_next_request_is_done(works: Works) -> None:
    with pytest.raises(KernelwrightError, match="sh ended with exit status 3") as caught:
        works.do("exit 3")
    assert works.is_placed(caught.value.where)
    assert works.do("echo next") == "next\n"


@EVERY
def test_what_is_printed_to_both_streams_is_handed_on_in_order(works: Works) -> None:
    assert works.do(r"echo one; echo two >&2; printf 'thr\377ee'; cat 2> /dev/null || :") == "one\ntwo\nthr\ufffdee"


@EVERY_OF_A_BUILD
def test_of_a_very_long_output_the_ends_are_kept(works: Works) -> None:
    output = works.do("echo begin; yes | head -c 40000000; echo end")
    assert output.startswith("begin\ny\ny\n") and output.endswith("y\ny\nend\n")
    assert f"\n[... {40_000_000 + 10 - 2 * tool_process.OUTPUT_LIMIT} bytes ...]\n" in output
    assert len(output) < 2 * tool_process.OUTPUT_LIMIT + 100


@EVERY
def test_few_of_the_users_variables_are_seen(works: Works, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ("TVM_NUM_THREADS", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONOPTIMIZE", "LD_PRELOAD", "HOME", "LANG")
    for name in (*names, "NVCC_APPEND_FLAGS"):
        monkeypatch.setenv(name, "the user's")
    if isinstance(works, Definitions):  # what it is started with, of which the fork server has a copy
        seen = works.pool._environment()
    else:
        printed = works.do("tr '\\0' '\\n' < /proc/$$/environ")
        seen = dict(line.split("=", 1) for line in printed.splitlines())
    assert seen.keys() - {"TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "PWD"} == works.variables - {"TMPDIR"}
    assert {name for name, value in seen.items() if value == "the user's"} == works.kept
    if isinstance(works, Compilers):
        assert (seen["PATH"], seen["LC_ALL"]) == ("/usr/local/bin:/usr/bin:/bin", "C.UTF-8")
        assert Path(seen["TMPDIR"]).is_relative_to(tmp_path)


@EVERY_OF_A_BUILD
def test_what_takes_too_long_is_ended_with_all_that_it_has_started(works: Works, tmp_path: Path) -> None:
    with Gate(tmp_path / "gate") as gate:
        call = Call(works.do, f"{family(tmp_path)} echo last words; {gate.shell}; echo; wait")
        gate.wait()
        works.expire()
        gate.open()
        error = call.error()
    assert error.message == works.late and works.is_placed(error.where)
    assert works.setting in str(error.remedy) and "last words" in str(error.detail)
    require_gone(tmp_path)
    (tmp_path / "late").unlink(missing_ok=True)
    assert works.do("echo next") == "next\n"


@EVERY
def test_a_process_that_is_killed_is_one_error_that_points_at_memory_and_the_next_one_works(works, tmp_path):
    begin = "" if isinstance(works, OtherEnvironment) else family(tmp_path)
    call = Call(works.do, f"mkdir {tmp_path}/begun && {{ {begin} }}; {works.kill}; wait" if begin else works.kill)
    error = call.error()
    assert error.message == works.killed and works.is_placed(error.where)
    assert "out of memory" in str(error.remedy)
    if begin:
        require_gone(tmp_path)
    assert works.do("echo next") == "next\n"


@EVERY_OF_A_BUILD
def test_closing_ends_what_runs_and_refuses_more(works: Works, tmp_path: Path) -> None:
    call = Call(works.do, family(tmp_path) + "wait")
    number(tmp_path / "other-group")
    works.close()
    error = call.error()
    assert isinstance(error, WorkerError) and error.message.startswith("the build is ending, so no worker takes")
    assert works.is_placed(error.where)
    require_gone(tmp_path)
    wait_until_gone(number(tmp_path / "worker"))
    with pytest.raises(WorkerError, match="the build is ending"):
        works.do("true")


@pytest.mark.parametrize("does", [f"exec {ENDLESS}", "exec yes"], ids=["is silent", "prints"])
@pytest.mark.parametrize("ends", ["", "exit 3"], ids=["it succeeds", "it fails"])
@EVERY_OF_A_BUILD
def test_a_process_that_leaves_the_session_does_not_hold_the_build_up(works, does, ends, tmp_path):
    daemon = f"setsid sh -c 'printf $$. > daemon; cat go; echo y; echo > up; {does}' &"
    script = f"cd {tmp_path}; mkfifo go up; {daemon} echo done; echo > go; cat up; {ends}"
    if ends:
        with pytest.raises(KernelwrightError, match="exit status 3"):
            works.do(script)
    else:
        assert works.do(script).startswith("done\n")
    with contextlib.suppress(ProcessLookupError):  # nobody read what it prints any more
        os.kill(number(tmp_path / "daemon"), signal.SIGKILL)
    assert works.do("echo next") == "next\n"


BUILD = """
import sys
from pathlib import Path
from kernelwright.core.errors import Where
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.protocol import DiscoverRequest
from kernelwright.processes.runner import ToolRunner
from kernelwright.processes.tools import ToolCall
folder, script = Path(sys.argv[1]), sys.argv[2]
"""
CALL = "WorkerPool(1, folder).call(DiscoverRequest('k.py'))"
BUILDS = {
    "definitions": CALL,
    "definitions that are stuck in C": CALL,
    "compilers": "runner = ToolRunner(1, folder, 900.0, MemoryGovernor(1 << 20, Measurements(folder / 'm.json')))\n"
    "runner.run(ToolCall(['/bin/sh', '-c', script], folder, folder, Where(), '', kind='cc', subject='s'))",
}


@pytest.mark.parametrize(
    ("build", "ending"),
    [
        ("definitions", signal.SIGKILL),
        ("definitions that are stuck in C", signal.SIGTERM),
        *(("compilers", ending) for ending in (signal.SIGKILL, signal.SIGTERM)),
    ],
)
def test_nothing_outlives_a_build_that_is_ended(build: str, ending: signal.Signals, tmp_path: Path) -> None:
    script = family(tmp_path) + "wait"
    (tmp_path / "k.py").write_text((STUCK if "stuck" in build else DEFINITION).format(script=script))
    command = [sys.executable, "-c", BUILD + BUILDS[build], str(tmp_path), script]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(SITE_SCONS)})
    number(tmp_path / "other-group")
    process.send_signal(ending)
    process.wait()
    require_gone(tmp_path)
    wait_for(lambda: not processes_of(tmp_path), "a process of the build is left")
