"""Running compilers: real processes that print, fail, fork, take too long, eat memory and are killed."""

from __future__ import annotations

import ast
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from kernelwright.core.errors import KernelwrightError, ToolchainError, ToolError, Where, WorkerError
from kernelwright.processes import pool as pool_module
from kernelwright.processes import protocol
from kernelwright.processes import runner as runner_module
from kernelwright.processes import tool_process as tools
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.processes.runner import ToolResult, ToolRunner
from support.moments import ENDLESS, HANGS_AFTER_S, Clock, Gate, running, wait_for, wait_until_gone

SITE_SCONS = Path(protocol.__file__).parents[2]
WHERE = Where("gemm", "m-64", "nvcc", "kernels/gemm.py:3")
PYTHON = [sys.executable, "-I", "-S", "-c"]
GIB = 1 << 20

OTHER_GROUP = """\
import os
os.setpgid(0, 0)
open('other-group', 'w').write(f'{os.getpid()}' + chr(10))
open('all-there', 'w').close()
os.execlp('sh', 'sh', '-c', 'exec ENDLESS')
""".replace("ENDLESS", ENDLESS)

FAMILY = f"""\
echo $PPID > runner; echo $$ > tool; mkfifo all-there
{ENDLESS} & echo $! > child
sh -c 'echo $$ > grandchild; {ENDLESS}; true' &
{sys.executable} -I -S -c "{OTHER_GROUP}" &
cat all-there
"""
"""A tool with children, a grandchild, and a child in a process group of its own; it writes their numbers to files. None
of them ends by itself."""

MEMBERS = ("tool", "child", "grandchild", "other-group")


LATER = """\
import os, runpy, time
now = time.monotonic
time.monotonic = lambda: now() + (1e6 if os.path.exists({late!r}) else 0)
runpy.run_path({program!r}, run_name="__main__")
"""
"""A runner for which much time has passed as soon as there is a certain file."""


class Bench:
    """A runner, and a folder in which tools run."""

    def __init__(
        self, folder: Path, size: int = 1, timeout_s: float = HANGS_AFTER_S, budget_kib: int = 64 * GIB
    ) -> None:
        self.folder = folder
        self.measurements = Measurements(folder / "measurements.json")
        self.governor = MemoryGovernor(budget_kib, self.measurements)
        self.runner = ToolRunner(size, folder, timeout_s, self.governor)

    def run(self, *command: str, subject: str = "gemm/m-64 sm_80") -> ToolResult:
        return self.runner.run(command, self.folder, self.folder, WHERE, "mend it", kind="nvcc", subject=subject)

    def sh(self, text: str, **arguments: str) -> ToolResult:
        return self.run("/bin/sh", "-c", text, **arguments)

    def pid(self, name: str) -> int:
        """A number that a tool writes to a file, once it is there."""
        path = self.folder / name
        wait_for(lambda: path.exists() and path.read_text().endswith("\n"), f"{name} did not start")
        return int(path.read_text())

    def in_thread(self, text: str) -> tuple[threading.Thread, list[KernelwrightError]]:
        """Start a tool that fails; the list gets its error."""
        errors: list[KernelwrightError] = []

        def call() -> None:
            try:
                self.sh(text)
            except KernelwrightError as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        return thread, errors

    def wait_for_line(self, count: int) -> None:
        """Wait until so many calls have no runner yet."""
        wait_for(lambda: len(self.runner._pool._line) == count, f"{count} calls do not wait in line")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.runner.close()


def all_gone(bench: Bench) -> None:
    for name in MEMBERS:
        wait_until_gone(bench.pid(name))


def test_the_environment_is_the_fixed_one_and_stdin_is_empty(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-lineinfo")
    code = "import os, sys; print(sorted(os.environ.items())); print(os.getcwd()); print(repr(sys.stdin.read()))"
    environment, folder, stdin = bench.run(*PYTHON, code).output.splitlines()
    expected = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TMPDIR": str(bench.folder)}
    assert environment == str(sorted(expected.items()))
    assert folder == str(bench.folder) and stdin == "''"


def test_signals_that_python_ignores_are_not_ignored_in_a_tool(bench: Bench) -> None:
    ignored = int(bench.sh("grep SigIgn /proc/self/status").output.split()[1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_both_streams_are_captured_in_order(bench: Bench) -> None:
    assert bench.sh("echo one; echo two >&2; printf 'thr\\377ee'").output == "one\ntwo\nthr\ufffdee"


def test_a_very_long_output_keeps_its_ends(bench: Bench) -> None:
    output = bench.run(*PYTHON, "print('begin'); [print('x' * 999) for _ in range(40000)]; print('end')").output
    assert output.startswith("begin\nxxx") and output.endswith("xxx\nend\n")
    assert f"[... {40_000_000 + 10 - 2 * tools.OUTPUT_LIMIT} bytes ...]" in output
    assert len(output) < 2 * tools.OUTPUT_LIMIT + 100


def test_time_and_memory_are_those_of_the_whole_tree(bench: Bench) -> None:
    work = "data = bytearray(200 << 20); sum(range(10_000_000))"  # so much work takes more than to start a shell
    code = f"import time; begin = time.monotonic(); {work}; print(time.process_time(), time.monotonic() - begin)"
    begin = time.monotonic()
    result = bench.sh(f"{sys.executable} -I -S -c '{code}'; true")
    longest = time.monotonic() - begin
    used, shortest = map(float, result.output.split())
    assert 200 << 10 <= result.peak_kib < 250 << 10
    assert 0.9 * used <= result.cpu_seconds, "that of the child counts"
    assert 0.9 * shortest <= result.seconds <= longest + 0.001, "it lies within, however long that was"
    small = bench.sh("true")
    assert small.peak_kib < 20 << 10, "what the tool before it took does not count"
    assert small.cpu_seconds < result.cpu_seconds


def test_what_a_run_took_is_learnt_and_kept(bench: Bench) -> None:
    result = bench.sh("true", subject="gemm/m-64 sm_90a")
    with pytest.raises(ToolError):
        bench.sh("exit 1", subject="broken sm_90a")
    bench.runner.save()
    kept = Measurements(bench.folder / "measurements.json")
    learnt = kept.find("nvcc", "gemm/m-64 sm_90a")
    assert learnt and (learnt.peak_kib, learnt.seconds) == (result.peak_kib, result.seconds)
    assert kept.find("nvcc", "broken sm_90a") is None, "a run that failed early says nothing"


def test_a_failure_has_command_status_output_place_and_remedy(bench: Bench) -> None:
    with pytest.raises(ToolError) as caught:
        bench.sh("echo 'device.cu(3): error'; exit 3")
    error = caught.value
    assert (error.message, error.status, error.where) == ("sh ended with exit status 3", 3, WHERE)
    assert error.detail == "$ /bin/sh -c 'echo '\"'\"'device.cu(3): error'\"'\"'; exit 3'\ndevice.cu(3): error"
    assert error.remedy == "mend it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kill -9 $$", "sh was ended by signal 9"),
        ("echo \"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\"; exit 9", "sh ended with exit status 9"),
        ("echo 'cc: fatal error: Killed signal terminated program cc1plus'; exit 1", "sh ended with exit status 1"),
    ],
)
def test_a_killed_compiler_points_at_memory(bench: Bench, text: str, message: str) -> None:
    with pytest.raises(ToolError) as caught:
        bench.sh(text)
    assert caught.value.message == message
    assert "memory" in str(caught.value.remedy) and "mend it" not in str(caught.value.remedy)


def test_a_tool_that_is_missing_or_has_no_folder_is_an_error_with_its_place(bench: Bench) -> None:
    with pytest.raises(ToolchainError, match=r"nvcc cannot be run: .*No such file") as caught:
        bench.run("/no/such/nvcc", "--version")
    assert caught.value.where == WHERE
    bench.folder = bench.folder / "missing"
    with pytest.raises(ToolchainError, match="missing"):
        bench.sh("true")


def test_a_tool_that_takes_too_long_is_ended_with_its_family_and_the_runner_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, program = tmp_path / "late", tmp_path / "later.py"
    program.write_text(LATER.format(late=str(late), program=tools.__file__))
    kind = replace(runner_module.RUNNER, arguments=("-I", "-S", "-B", str(program)))
    monkeypatch.setattr(runner_module, "RUNNER", kind)
    bench = Bench(tmp_path)
    before = bench.sh("echo $PPID").output
    with pytest.raises(KernelwrightError, match=f"sh took longer than {HANGS_AFTER_S:g} s, and was ended\\n") as caught:
        bench.sh(FAMILY + "touch late; echo last words; wait")
    assert caught.value.where == WHERE and "tool_timeout" in str(caught.value.remedy)
    assert "$ /bin/sh -c" in str(caught.value.detail) and "last words" in str(caught.value.detail)
    all_gone(bench)
    late.unlink()
    assert bench.sh("echo $PPID").output == before
    bench.runner.close()


def test_a_tool_that_says_nothing_is_ended_at_the_time_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timeout_s=0.2)  # nothing has to be done within it
    with pytest.raises(KernelwrightError, match=r"sh took longer than 0\.2 s, and was ended"):
        bench.sh(ENDLESS)
    bench.runner.close()


def test_a_longer_time_may_be_given_later(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timeout_s=1e-9)
    bench.runner.timeout_s = HANGS_AFTER_S
    with Gate(tmp_path / "gate") as gate:
        thread, errors = bench.in_thread(gate.shell)
        gate.wait()
        gate.open()
        thread.join(HANGS_AFTER_S)
    assert errors == []
    bench.runner.close()


def test_a_runner_has_more_time_than_its_tool(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timeout_s=2000.0)
    assert bench.runner._pool.timeout_s > 2000
    bench.runner.timeout_s = 5000.0
    assert bench.runner._pool.timeout_s > 5000
    bench.runner.close()


def test_what_a_tool_leaves_running_is_ended_and_not_waited_for(bench: Bench) -> None:
    assert bench.sh(FAMILY + "echo done").output == "done\n"  # what is left would never end by itself
    all_gone(bench)


@pytest.mark.parametrize("does", [f"exec {ENDLESS}", "exec yes"], ids=["is silent", "prints"])
def test_a_process_that_leaves_the_session_does_not_hold_the_build_up(bench: Bench, does: str) -> None:
    daemon = f"setsid sh -c 'echo $$ > daemon; cat go; echo y; echo > up; {does}' &"
    output = bench.sh(f"mkfifo go up; {daemon} echo done; echo > go; cat up").output
    os.kill(bench.pid("daemon"), signal.SIGKILL)
    assert output.startswith("done\n") and bench.sh("echo next").output == "next\n"


BUILD = """
import signal, sys
from pathlib import Path
from kernelwright.core.errors import Where
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.processes.runner import ToolRunner
folder = Path(sys.argv[1])
if "ignore" in sys.argv:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
runner = ToolRunner(1, folder, 900.0, MemoryGovernor(1 << 20, Measurements(folder / "m.json")))
result = runner.run(["/bin/sh", "-c", sys.argv[2]], folder, folder, Where(), "", kind="nvcc", subject="s")
print(result.output)
runner.close()
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_a_build_that_is_killed(tmp_path: Path, ending: signal.Signals) -> None:
    bench = Bench(tmp_path)
    command = [sys.executable, "-c", BUILD, str(tmp_path), FAMILY + "wait"]
    build = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(SITE_SCONS)})
    for name in MEMBERS:
        assert running(bench.pid(name))
    build.send_signal(ending)
    build.wait()
    all_gone(bench)
    wait_until_gone(bench.pid("runner"))


def test_a_build_that_was_started_with_sigchld_ignored_runs_tools(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(tmp_path), "echo fine; exec echo twice", "ignore"]
    environment = {**os.environ, "PYTHONPATH": str(SITE_SCONS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGS_AFTER_S)
    assert (done.returncode, done.stdout.split()) == (0, ["fine", "twice"]), done.stderr


def test_a_killed_runner_is_one_clear_error_and_leaves_no_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "REAP_S", HANGS_AFTER_S)
    thread, errors = bench.in_thread(FAMILY + "wait")
    for name in MEMBERS:
        assert running(bench.pid(name))
    os.kill(bench.pid("runner"), signal.SIGKILL)
    thread.join(HANGS_AFTER_S)
    (error,) = errors
    assert isinstance(error, WorkerError) and error.where == WHERE
    assert error.message == "the process that runs compilers was ended by SIGKILL while running sh"
    assert "memory" in str(error.remedy)
    all_gone(bench)
    assert bench.sh("echo next").output == "next\n"


def test_a_runner_that_does_not_answer_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(pool_module, "time", clock)
    thread, errors = bench.in_thread(FAMILY + "wait")
    bench.pid("other-group")
    os.kill(bench.pid("runner"), signal.SIGSTOP)
    clock.ahead = HANGS_AFTER_S + runner_module.GRACE_S
    thread.join(HANGS_AFTER_S)
    assert f"took longer than {clock.ahead:g} s while running sh, and was ended" in errors[0].message
    all_gone(bench)


def test_closing_ends_what_runs_and_refuses_more(bench: Bench) -> None:
    thread, errors = bench.in_thread(FAMILY + "wait")
    bench.pid("other-group")
    bench.runner.close()
    thread.join(HANGS_AFTER_S)
    assert "the build is ending" in errors[0].message and errors[0].where == WHERE
    all_gone(bench)
    with pytest.raises(WorkerError, match="the build is ending"):
        bench.sh("true")


def test_threads_get_their_own_answers_and_there_are_never_more_runs_than_places(tmp_path: Path) -> None:
    bench = Bench(tmp_path, size=3)
    (tmp_path / "now").mkdir()
    with ThreadPoolExecutor(8) as threads, Gate(tmp_path / "gate") as gate:
        text = f"touch now/$$; ls now | wc -l >> counts; {gate.shell}; rm now/$$; echo "
        answers = threads.map(lambda n: bench.sh(f"{text}{n}").output, range(24))
        gate.wait(3)
        bench.wait_for_line(5)
        gate.open()
        assert list(answers) == [f"{n}\n" for n in range(24)]
    assert max(int(line) for line in (tmp_path / "counts").read_text().split()) == 3
    bench.runner.close()


def test_runs_wait_for_memory(tmp_path: Path) -> None:
    bench = Bench(tmp_path, size=4, budget_kib=1)  # nothing fits beside another
    (tmp_path / "now").mkdir()
    with ThreadPoolExecutor(4) as threads, Gate(tmp_path / "gate") as gate:
        text = f"touch now/$$; ls now | wc -l >> counts; {gate.shell}; rm now/$$"
        runs = threads.map(lambda _: bench.sh(text), range(6))
        wait_for(lambda: len(bench.governor._waiting) == 3, "three do not wait for the first")
        gate.open()
        assert len(list(runs)) == 6
    assert (tmp_path / "counts").read_text().split() == ["1"] * 6
    bench.runner.close()


def test_a_runner_that_does_not_lead_a_session_harms_nobody() -> None:
    command = [sys.executable, tools.__file__]
    # In a session of its own, for the case that this fails.
    script = ["/bin/sh", "-c", f"{ENDLESS} & {shlex.join(command)} < /dev/null; kill $! && echo all there"]
    done = subprocess.run(script, start_new_session=True, capture_output=True, text=True, timeout=HANGS_AFTER_S)
    assert done.stdout.endswith("all there\n"), done


def test_a_runner_speaks_the_workers_protocol_and_imports_next_to_nothing() -> None:
    assert tools.HELLO == protocol.VERSION
    tree = ast.parse(Path(tools.__file__).read_text())
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"json", "os", "select", "signal", "sys", "time"}
    assert [node.module for node in tree.body if isinstance(node, ast.ImportFrom)] == ["__future__"]
