"""The pool and the protocol: real worker processes that die, hang, print and answer."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kernelwright.core.errors import DefinitionError, KernelwrightError, LoweringError, Where, WorkerError
from kernelwright.processes import pool as pool_module
from kernelwright.processes import protocol
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.protocol import CheckRequest, DevicesRequest, DiscoverRequest, LowerRequest
from kernelwright.processes.tool_process import OUTPUT_LIMIT
from support.moments import ENDLESS, HANGS_AFTER_S, Clock, Gate, processes_of, wait_for, wait_until_gone
from workers_project import Project

SITE_SCONS = Path(protocol.__file__).parents[2]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("shared"), size=2)
    with project.pool:
        yield project


Fresh = Callable[[int], Project]


@pytest.fixture
def fresh(shared: Project) -> Fresh:
    """A pool of that size with workers of its own, whose fork server has imported TVM for other tests already."""

    def make(size: int) -> Project:
        project = Project(shared.folder, size)
        shared.lend_to(project)
        return project

    return make


def started(file: Path) -> list[int]:
    """The numbers of processes that a definition writes to a file, with a dot behind them, once they are there."""
    wait_for(lambda: file.exists() and file.read_text().endswith("."), "the definition does not begin")
    return [int(pid) for pid in file.read_text().strip(".").split()]


def test_importing_the_client_side_imports_neither_tvm_nor_numpy_nor_scons() -> None:
    code = """
        import sys
        import kernelwright.discover.discovery, kernelwright.processes.pool, kernelwright.processes.protocol
        bad = {"tvm", "tvm_ffi", "numpy", "SCons"} & set(sys.modules)
        assert not bad, bad
    """
    env = {"PYTHONPATH": str(SITE_SCONS)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=env, check=True)


@pytest.mark.parametrize(
    "request_",
    [
        DiscoverRequest("kernels/a.py"),
        LowerRequest(
            *("kernels/a.py", "a", "m-1", "kw", {"m": 1, "f": 0.5, "b": True, "s": "é\n\u2028"}, "cuda", "sm_80", "/o"),
            archs=("sm_80", "compute_80"),
        ),
        CheckRequest("kernels/a.py", "a", "m-1", "/lib.so", 3, {"symbols": {"n": "int32"}}, "cpu", None),
        DevicesRequest(),
    ],
)
def test_a_request_survives_the_wire(request_: protocol.Request) -> None:
    line = protocol.encode_request(5, request_)
    assert line.count(b"\n") == 1
    assert protocol.decode_request(line) == (5, request_)


def test_an_error_survives_the_wire() -> None:
    error = LoweringError("bad", Where("k", "v", "lower", "kernels/k.py:3"), "do this", "line 1\nline 2")
    answer = protocol.decode_answer(protocol.encode_error(7, error))
    assert isinstance(answer, protocol.Answer) and type(answer.error) is LoweringError
    assert str(answer.error) == str(error)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"[1]",
        b'{"op":"discover","file":"a"}',
        b'{"id":1,"op":"destroy"}',
        b'{"id":1,"op":"discover"}',
        b'{"id":1,"op":"discover","file":3}',
        b'{"id":1,"op":"discover","file":"a","more":1}',
        b'{"id":true,"op":"devices"}',
        b"[" * 100_000,
    ],
)
def test_a_bad_request_line_is_a_worker_error(line: bytes) -> None:
    with pytest.raises(WorkerError, match="expected a message of the worker protocol"):
        protocol.decode_request(line)


@pytest.mark.parametrize(
    "line", [b'{"id":1}', b'{"id":1,"ok":true}', b'{"id":1,"ok":false,"error":{"message":3}}', b"\xff\xfe"]
)
def test_a_bad_answer_line_is_a_worker_error(line: bytes) -> None:
    with pytest.raises(WorkerError):
        protocol.decode_answer(line)


def test_another_protocol_version_is_refused() -> None:
    with pytest.raises(WorkerError, match="version"):
        protocol.decode_hello(b'{"hello": 999, "versions": {}}')


PROCESS = "import os\nopen('processes', 'a').write(f'{os.getpid()}\\n')"


def processes(project: Project) -> list[str]:
    """The processes that have executed a definition with PROCESS, in order."""
    file = project.folder / "processes"
    return file.read_text().split() if file.exists() else []


def test_no_worker_is_started_before_the_first_call_and_one_does_all_of_a_file(fresh: Fresh) -> None:
    project = fresh(2)
    with project.pool:
        assert project.pool.started == 0
        file = project.empty("k", PROCESS, body="raise ValueError")
        for _ in range(2):
            assert project.discover(file)["kernels"][0]["name"] == "k"
            with pytest.raises(DefinitionError, match="ValueError"):
                project.lower(file, "k")
        assert project.pool.started == 1
    assert len(processes(project)) == 1


def test_a_worker_sees_few_of_the_users_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TVM_NUM_THREADS", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONOPTIMIZE", "LD_PRELOAD", "HOME"):
        monkeypatch.setenv(name, "the user's")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen = Project(tmp_path).pool._environment()
    assert seen.keys() - {"TMPDIR", "LD_LIBRARY_PATH"} == {
        *("PATH", "HOME", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8")
    }
    assert [name for name, value in seen.items() if value == "the user's"] == ["HOME"]


def test_a_worker_that_was_started_ahead_belongs_to_the_first_file_that_it_is_asked_about(fresh: Fresh) -> None:
    project = fresh(1)
    first, second = project.empty("first", PROCESS), project.empty("second", PROCESS)
    with project.pool as pool:
        pool._start_one()
        (ahead,) = pool._all
        project.discover(first)
        assert pool._all == {ahead}
        project.discover(second)
        assert ahead not in pool._all


def test_one_process_never_executes_two_files_nor_one_file_twice(fresh: Fresh) -> None:
    project = fresh(1)
    first, second = project.empty("first", PROCESS), project.empty("second", PROCESS)
    with project.pool as pool:
        for file in (first, second, first):
            project.discover(file)
        assert len(set(processes(project))) == 3
        pool.call(DiscoverRequest(first, strict=True))
        assert len(set(processes(project))) == 4, "strict mode is another execution"
        for text in (PROCESS + "\nX = 1", PROCESS + "\nraise ValueError", PROCESS):
            project.empty("first", text)
            if "raise" in text:
                for _ in range(2):
                    with pytest.raises(DefinitionError, match="ValueError"):
                        project.discover(first)
            else:
                project.discover(first)
        assert pool.started == 1
    assert len(processes(project)) == len(set(processes(project))) == 8


def test_the_worker_that_was_idle_for_longest_makes_room(fresh: Fresh) -> None:
    project = fresh(2)
    files = [project.empty(f"k{n}", PROCESS) for n in range(3)]
    with project.pool:
        for number in (0, 1, 0, 2, 0):
            project.discover(files[number])
        assert len(processes(project)) == 3, "k1 made room for k2"
        project.discover(files[1])
        assert len(processes(project)) == 4
        project.discover(files[0])
        assert len(processes(project)) == 4, "k2 made room for k1"


def test_calls_for_other_files_wait_in_line_and_none_waits_for_ever(fresh: Fresh) -> None:
    project = fresh(1)
    first, second = project.copy("first"), project.copy("second")
    begun, done = threading.Semaphore(0), threading.Event()
    with project.pool, ThreadPoolExecutor(3) as threads:

        def repeat() -> None:
            while not done.is_set():
                project.discover(first)
                begun.release()

        busy = [threads.submit(repeat) for _ in range(2)]
        try:
            for _ in busy:
                assert begun.acquire(timeout=HANGS_AFTER_S)
            for _ in range(5):
                assert project.discover(second)["kernels"][0]["name"] == "second"
        finally:
            done.set()
        for call in busy:
            call.result()
        assert project.pool.started == 1


def test_threads_with_more_files_than_places_all_get_their_answers(fresh: Fresh) -> None:
    project = fresh(2)
    files = [project.copy(f"k{n}") for n in range(4)]
    with project.pool, ThreadPoolExecutor(8) as threads:
        answers = threads.map(lambda number: project.discover(files[number % 4])["file"], range(32))
        assert list(answers) == [files[number % 4] for number in range(32)]
        assert project.pool.started == 2


def test_prints_do_not_disturb_the_protocol_and_are_handed_on(shared: Project) -> None:
    top = """
    import os, sys
    print("from python")
    print("to stderr", file=sys.stderr)
    os.write(1, b"raw\\n")
    os.system("echo from a child")
    print('{"id": 1, "ok": true, "result": {}}')
    assert sys.stdin.read() == ""
    """
    assert shared.discover(shared.empty("noisy", top))["kernels"][0]["name"] == "noisy"
    text = shared.printed[-1]
    assert all(part in text for part in ("from python", "to stderr", "raw", "from a child"))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_worker_loads_pytorch_only_if_a_definition_does(shared: Project) -> None:
    shared.discover(shared.empty("plain", "import sys; print('torch' in sys.modules)"))
    assert shared.printed[-1].strip() == "False"
    shared.discover(shared.empty("uses_it", "import torch; print(torch.ones(2).sum().item())"))
    assert shared.printed[-1].strip() == "2.0"


@pytest.mark.parametrize(
    ("crash", "how"),
    [
        ("import ctypes; ctypes.string_at(0)", "was ended by SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
        ("import os; os.abort()", "was ended by SIGABRT"),
        ("import os; print('last words', flush=True); os._exit(3)", "ended with exit status 3"),
        ("import os; os.closerange(3, 1000)", "while"),
    ],
)
def test_a_dying_worker_is_one_clear_error_and_the_next_call_works(
    shared: Project, crash: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "closerange" not in crash:  # it does not end by itself
        monkeypatch.setattr(pool_module, "REAP_S", HANGS_AFTER_S)
    file = shared.empty("crashing", body=f"{crash}\nreturn None")
    shared.discover(file)
    with pytest.raises(WorkerError) as caught:
        shared.lower(file, "crashing")
    assert how in caught.value.message
    assert caught.value.where == Where("crashing", "default", "lower", "kernels/crashing.py")
    assert caught.value.remedy
    if "SIGSEGV" in how:
        assert 'crashing.py", line' in str(caught.value.detail), "the log shows the Python line"
    if "last words" in crash:
        assert "last words" in str(caught.value)
    assert shared.discover(shared.copy("survivor"))


def test_a_request_that_takes_too_long_is_ended_together_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(pool_module, "time", clock)
    project = Project(tmp_path)
    top = f"""
    import os, shlex, signal, subprocess
    child = subprocess.Popen(shlex.split({ENDLESS!r}))
    print("the last words", flush=True)
    open("pids", "w").write(f"{{os.getpid()}} {{child.pid}}.")
    while True: signal.pause()
    """
    with project.pool, ThreadPoolExecutor(1) as threads:
        call = threads.submit(project.discover, project.empty("endless", top))
        pids = started(tmp_path / "pids")
        clock.ahead = project.pool.timeout_s
        with pytest.raises(WorkerError, match=f"longer than {project.pool.timeout_s:g} s") as caught:
            call.result(HANGS_AFTER_S)
        assert "worker_timeout" in str(caught.value.remedy) and "the last words" in str(caught.value.detail)
        for pid in pids:
            wait_until_gone(pid)
        assert project.discover(project.copy("next"))


def test_there_are_never_more_workers_than_the_pool_has_places(fresh: Fresh) -> None:
    project = fresh(2)
    files = [project.copy(f"k{n}") for n in range(6)]
    with project.pool, ThreadPoolExecutor(6) as threads:
        names = [r["kernels"][0]["name"] for r in threads.map(project.discover, files)]
        assert names == [f"k{n}" for n in range(6)]
        assert project.pool.started == 2


def test_workers_that_were_started_ahead_are_the_ones_that_calls_use(fresh: Fresh) -> None:
    project = fresh(2)
    with project.pool as pool:
        pool.warm_up(5)
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(lambda _: pool.call(DevicesRequest()), range(4)))
        assert pool.started == 2
        pool.warm_up(1)


PARENT = """
import os
open(f"parents/{os.getppid()}-{os.getpid()}", "w").close()
"""


def parents(folder: Path) -> dict[int, set[int]]:
    """The fork servers that have had workers which executed a definition with PARENT, and these workers."""
    found: dict[int, set[int]] = {}
    for file in (folder / "parents").iterdir():
        parent, worker = map(int, file.name.split("-"))
        found.setdefault(parent, set()).add(worker)
    return found


def test_one_process_imports_tvm_and_the_workers_are_its_forks(tmp_path: Path) -> None:
    project = Project(tmp_path, size=3)
    (tmp_path / "parents").mkdir()
    with project.pool, ThreadPoolExecutor(6) as threads, Gate(tmp_path.with_name(f"{tmp_path.name}-gate")) as gate:
        files = [project.empty(f"k{n}", PARENT + gate.python) for n in range(6)]
        answers = threads.map(project.discover, files)
        gate.wait(3)
        gate.open()
        assert len(list(answers)) == 6
        ((server, workers),) = parents(tmp_path).items()
        assert len(workers) == 6
        libraries = Path(f"/proc/{server}/maps").read_text()
        assert "libtvm_runtime.so" in libraries
    for pid in (server, *workers):
        wait_until_gone(pid)


def test_workers_outlive_their_fork_server_and_the_next_one_gets_another(tmp_path: Path) -> None:
    project = Project(tmp_path, size=1)
    (tmp_path / "parents").mkdir()
    with project.pool:
        file = project.empty("first", PARENT, body="os._exit(3)")
        project.discover(file)
        ((server, workers),) = parents(tmp_path).items()
        os.kill(server, signal.SIGKILL)
        wait_until_gone(server)
        assert project.discover(file), "the worker goes on"
        assert parents(tmp_path) == {server: workers}
        with pytest.raises(WorkerError, match="a worker closed its pipe while executing the definition"):
            project.lower(file, "first")
        project.discover(project.empty("second", PARENT))
        assert len(parents(tmp_path)) == 2


def test_closing_the_pool_ends_workers_without_a_fork_server(tmp_path: Path) -> None:
    project = Project(tmp_path, size=1)
    (tmp_path / "parents").mkdir()
    file = project.empty("endless", PARENT + "import signal; signal.pause()")
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(project.discover, file)
        wait_for(lambda: parents(tmp_path), "the definition does not begin")
        ((server, workers),) = parents(tmp_path).items()
        os.kill(server, signal.SIGKILL)
        project.pool.close()
        with pytest.raises(WorkerError, match="the build is ending"):
            call.result(HANGS_AFTER_S)
    for pid in workers:
        wait_until_gone(pid)


def test_closing_the_pool_ends_calls_in_flight_and_refuses_new_ones(tmp_path: Path) -> None:
    project = Project(tmp_path)
    file = project.empty("endless", "import os, signal\nopen('pid', 'w').write(f'{os.getpid()}.')\nsignal.pause()")
    errors: list[WorkerError] = []

    def call() -> None:
        with pytest.raises(WorkerError) as caught:
            project.discover(file)
        errors.append(caught.value)

    thread = threading.Thread(target=call)
    thread.start()
    (pid,) = started(tmp_path / "pid")
    project.pool.close()
    thread.join(HANGS_AFTER_S)
    assert "the build is ending" in errors[0].message
    wait_until_gone(pid)
    with pytest.raises(WorkerError, match="the build is ending"):
        project.discover(file)


# A test run in the background of a shell ignores Ctrl-C, and so would its children.
HEED_CTRL_C = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"

BUILD = """
import sys
from pathlib import Path
from kernelwright.discover.discovery import discover
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.children import ForkServer
root = Path(sys.argv[1])
pool = WorkerPool(1, root)
try:
    discover([root / "kernels/endless.py"], root, root / "cache", lambda: pool, "")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_build(tmp_path: Path, ending: signal.Signals) -> None:
    project = Project(tmp_path)
    top = f"""
    import os, shlex, subprocess
    child = subprocess.Popen(shlex.split({ENDLESS!r}))
    open("pids", "w").write(f"{{os.getpid()}} {{child.pid}}.")
    while True: pass
    """
    project.empty("endless", top)
    build = subprocess.Popen(
        [sys.executable, "-c", HEED_CTRL_C + BUILD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(SITE_SCONS)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    pids = started(tmp_path / "pids")
    os.killpg(build.pid, ending)  # as the terminal does for Ctrl-C: to the whole group
    output, _ = build.communicate(timeout=HANGS_AFTER_S)
    assert (b"interrupted" in output) == (ending == signal.SIGINT)
    for pid in pids:
        wait_until_gone(pid)


def test_a_worker_that_cannot_import_tvm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "REAP_S", HANGS_AFTER_S)
    broken = tmp_path / "python"
    broken.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    broken.chmod(0o755)
    with WorkerPool(1, tmp_path, python=str(broken)) as pool, pytest.raises(Exception, match="TVM cannot be imported"):
        pool.call(DevicesRequest())
    with WorkerPool(1, tmp_path, python="/bin/false") as pool, pytest.raises(WorkerError, match="exit status 1"):
        pool.call(DevicesRequest())
    with WorkerPool(1, tmp_path, python="/no/such/python") as pool, pytest.raises(WorkerError, match="cannot start"):
        pool.call(DevicesRequest())
    assert pool.started == 0

    def message(_: int) -> str:
        with pytest.raises(KernelwrightError) as caught:
            pool.call(DevicesRequest())
        return str(caught.value)

    # Whoever finds that it cannot be imported leaves the others' fork server alone.
    with WorkerPool(4, tmp_path, python=str(broken)) as pool, ThreadPoolExecutor(8) as threads:
        assert all("TVM cannot be imported" in text for text in threads.map(message, range(16)))


def test_a_fork_server_that_imports_ends_with_the_build(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "tvm_ffi.py").write_text(
        f"open({str(tmp_path / 'importing')!r}, 'w').close()\nimport signal\nsignal.pause()"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{slow}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    code = f"""
import sys
from pathlib import Path
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.children import ForkServer
from kernelwright.processes.protocol import DevicesRequest
WorkerPool(1, Path(sys.argv[1]), python={str(python)!r}).call(DevicesRequest())
"""
    build = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(SITE_SCONS)}
    )

    wait_for((tmp_path / "importing").exists, "TVM is not imported")
    (server,) = (pid for pid, words in processes_of(tmp_path) if "kernelwright.worker.forkserver" in words)
    build.kill()
    build.wait()
    wait_until_gone(server)


@pytest.mark.parametrize(
    ("does", "sees"),
    [
        ("from tvm import te; te.exp = te.log", "from tvm import te; print(te.exp is te.log)"),
        ("import numpy; numpy.exp = numpy.log", "import numpy; print(numpy.exp is numpy.log)"),
        (
            "import tvm_ffi; tvm_ffi.register_global_func('tvm_callback_cuda_postproc', lambda code, target: 'x')",
            "import tvm_ffi; print(tvm_ffi.get_global_func('tvm_callback_cuda_postproc', allow_missing=True))",
        ),
        (
            "import kernelwright; kernelwright.grid.leak = 1",
            "from kernelwright import grid; print(hasattr(grid, 'leak'))",
        ),
        ("import sys; sys.modules['leak'] = sys", "import sys; print('leak' in sys.modules)"),
        ("import os; os.environ['LEAK'] = '1'", "import os; print('LEAK' in os.environ)"),
        ("import sys; sys.path.insert(0, '/leak')", "import sys; print('/leak' in sys.path)"),
        ("import os; os.chdir('/')", "import os; print(os.getcwd() == '/')"),
        ("import os; os.umask(0)", "import os; print(os.umask(0o22) == 0)"),
        ("import signal; signal.signal(15, signal.SIG_IGN)", "import signal; print(signal.getsignal(15) == 1)"),
        (
            "import warnings; warnings.simplefilter('error')",
            "import warnings; print(warnings.filters[0][0] == 'error')",
        ),
        ("import sys; sys.setrecursionlimit(9_999)", "import sys; print(sys.getrecursionlimit() == 9_999)"),
        (
            "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
            "import resource; print(resource.getrlimit(resource.RLIMIT_CORE) == (0, 0))",
        ),
    ],
)
def test_what_one_definition_does_to_the_process_does_not_reach_the_next(shared: Project, does: str, sees: str) -> None:
    shared.discover(shared.empty("clean", sees))
    before = shared.printed[-1]
    shared.discover(shared.empty("messy", f"{does}\n{sees}"))
    assert shared.printed[-1] != before, "the definition does change its own process"
    shared.discover(shared.empty("next", sees))
    assert shared.printed[-1] == before


def test_what_a_definition_prints_is_bounded_and_takes_no_disk(shared: Project) -> None:
    top = """
    import os, stat
    print("begin", stat.S_ISREG(os.fstat(1).st_mode), stat.S_ISREG(os.fstat(2).st_mode))
    for _ in range(137): print("x" * 999_999)
    print("end")
    """
    shared.discover(shared.empty("noisy", top))
    text = shared.printed[-1]
    assert text.startswith("begin False False\nxxx") and text.endswith("xxx\nend\n")
    assert f"[... {137_000_000 + 22 - 2 * OUTPUT_LIMIT} bytes ...]" in text
    assert len(text) < 2 * OUTPUT_LIMIT + 100


CONTROLS = "\x1b]0;title\x07\x1b[2J\x9b1m\ttab\r\nline\rover"
SHOWN = r"\x1b]0;title\x07\x1b[2J\x9b1m" + "\ttab\nline" + r"\rover"


def test_control_characters_that_a_definition_prints_or_raises_are_shown_escaped(shared: Project) -> None:
    shared.discover(shared.empty("controls", f"print({CONTROLS!r})"))
    assert shared.printed[-1] == SHOWN + "\n"
    with pytest.raises(DefinitionError) as caught:
        shared.discover(shared.empty("controls", f"raise ValueError({CONTROLS!r})"))
    assert SHOWN in str(caught.value.detail)
    for text in (str(caught.value), caught.value.message):
        assert not set(text) & set("\x1b\x07\x9b\r")
    with pytest.raises(WorkerError) as died:
        shared.discover(shared.empty("controls", f"import os; print({CONTROLS!r}, flush=True); os._exit(1)"))
    assert SHOWN.splitlines()[0] in str(died.value.detail)


DAEMON = """
import os, signal
started = os.pipe()
if os.fork() == 0:
    os.setsid()
    open("daemon", "w").write(f"{os.getpid()}\\n")
    os.write(started[1], b"x")
    while True: DOES
os.read(started[0], 1)
"""


def end_daemon(project: Project) -> None:
    os.kill(int((project.folder / "daemon").read_text()), signal.SIGKILL)


def test_a_worker_that_ended_is_not_taken_for_one_that_hangs_because_a_process_holds_its_pipes(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "REAP_S", HANGS_AFTER_S)
    project = fresh(1)
    file = project.empty("k", DAEMON.replace("DOES", "signal.pause()") + "os._exit(3)")
    with project.pool:
        with pytest.raises(WorkerError, match="a worker ended with exit status 3 while working on discover") as caught:
            project.discover(file)
        assert "os._exit" in str(caught.value.remedy)
        end_daemon(project)
        assert project.discover(project.copy("next"))


@pytest.mark.parametrize("end", ["", "os._exit(3)"])
def test_a_process_that_prints_for_ever_does_not_hold_a_worker_up(
    fresh: Fresh, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "REAP_S", HANGS_AFTER_S)
    project = fresh(1)
    file = project.empty("k", DAEMON.replace("DOES", "os.write(1, b'y' * 999)") + end)
    with project.pool:
        if end:
            with pytest.raises(WorkerError, match="exit status 3"):
                project.discover(file)
        else:
            assert project.discover(file)["kernels"][0]["name"] == "k"
        end_daemon(project)


DRIVER = """
#include "{standin}"
__attribute__((constructor)) static void log(void) {{ setenv("STANDIN_LOG", "{folder}/log", 1); }}
/* What TVM's CUDA runtime is linked with besides; a program that runs nothing does not call it. */
int cuModuleLoadData(void) {{ return 801; }}
int cuModuleUnload(void) {{ return 801; }}
int cuModuleGetFunction(void) {{ return 801; }}
int cuFuncSetAttribute(void) {{ return 801; }}
"""

CUDART = "libcudart.so.13"
OF_PIP = sorted(Path(sys.prefix).glob(f"lib/python*/site-packages/nvidia/cu*/lib/{CUDART}"))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the loader's path with a CUDA driver, which notes in ``log`` that it is initialised."""
    folder = tmp_path / "driver"
    folder.mkdir()
    standin = Path(__file__).parents[1] / "standin" / "cuda.c"
    (folder / "driver.c").write_text(DRIVER.format(standin=standin, folder=folder))
    library = folder / "libcuda.so.1"
    command = ["gcc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), "driver.c"]
    subprocess.run(command, cwd=folder, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return folder


@pytest.mark.skipif(not OF_PIP, reason="pip has not installed nvidia-cuda-runtime")
def test_tvms_cuda_runtime_works_with_the_library_that_pip_installed(tmp_path: Path, driver: Path) -> None:
    (driver / CUDART).write_text("")  # the loader takes no other one from elsewhere
    project = Project(tmp_path / "project")
    with project.pool:
        file = project.copy("k")
        project.discover(file)
        project.lower(file, "k")
        assert not (driver / "log").exists(), "nothing but a check initialises CUDA"
        assert project.pool.call(DevicesRequest())["cuda"] == []
        assert (driver / "log").read_text().startswith("init\n")


@pytest.mark.skipif(not OF_PIP, reason="pip has not installed nvidia-cuda-runtime")
def test_a_driver_and_a_toolkit_do_not_change_what_is_lowered(tmp_path: Path, driver: Path, shared: Project) -> None:
    text = """
    from kernelwright import kernel
    from tvm import te

    @kernel
    def k():
        n = te.var("n")
        x = te.placeholder((n, 64), "float32", name="x")
        return te.create_prim_func([x, te.compute((n, 64), lambda i, j: te.exp(x[i, j]), name="y")])
    """
    (driver / CUDART).symlink_to(OF_PIP[0])
    project = Project(tmp_path / "project")
    with project.pool:
        made = [where.lower(str(where.write("kernels/k.py", text)), "k", "cuda") for where in (project, shared)]
    assert made[0]["contents"] == made[1]["contents"]


@pytest.mark.parametrize(
    ("missing", "remedy"), [("libcuda.so.1", "driver"), (CUDART, "pip install 'nvidia-cuda-runtime")]
)
def test_what_is_missing_for_a_check_on_a_gpu_is_said(driver: Path, missing: str, remedy: str) -> None:
    code = """
        import sys
        from kernelwright.worker import server
        assert isinstance(server.load(), dict)
        from kernelwright.worker import check
        sys.path.clear()
        try:
            check.load_cuda_runtime()
        except Exception as error:
            print(error)
    """
    (driver / missing).unlink(missing_ok=True)
    (driver / missing).write_text("")
    env = {"PYTHONPATH": str(SITE_SCONS), "LD_LIBRARY_PATH": str(driver)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True)
    assert "TVM's CUDA runtime cannot be loaded" in done.stdout, done.stderr
    assert missing in done.stdout and remedy in done.stdout


def test_an_unknown_variant_is_a_definition_error(shared: Project) -> None:
    with pytest.raises(DefinitionError, match="no kernel 'other'"):
        shared.lower(shared.copy("known"), "other")


def test_devices_is_answered_without_a_gpu(shared: Project) -> None:
    assert isinstance(shared.pool.call(DevicesRequest())["cuda"], list)
