"""Running compilers: what only these processes promise; tests/contracts has the rest."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kernelwright.core.errors import KernelwrightError, ToolchainError, ToolError, Where
from kernelwright.processes import messages
from kernelwright.processes import runner as runner_module
from kernelwright.processes import tool_process as tools
from kernelwright.processes import worker as worker_module
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.processes.runner import ToolRunner
from kernelwright.processes.tools import ToolCall, ToolResult
from support.family import family, number, require_gone
from support.moments import ENDLESS, HANGS_AFTER_S, Clock, Gate, wait_for

SITE_SCONS = Path(messages.__file__).parents[2]
WHERE = Where("gemm", "m-64", "nvcc", "kernels/gemm.py:3")
PYTHON = [sys.executable, "-I", "-S", "-c"]
GIB = 1 << 20


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
        return self.runner.run(
            ToolCall(command, self.folder, self.folder, WHERE, "mend it", kind="nvcc", subject=subject)
        )

    def sh(self, text: str, **arguments: str) -> ToolResult:
        return self.run("/bin/sh", "-c", text, **arguments)

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


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.runner.close()


def test_a_tool_ignores_no_signals_a_failure_says_all_and_what_is_left_running_is_ended(bench: Bench) -> None:
    assert bench.sh("echo $TMPDIR").output == f"{bench.folder}\n", "what is left there is removed with the rest"
    ignored = int(bench.sh("grep SigIgn /proc/self/status").output.split()[1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)
    with pytest.raises(ToolError) as caught:
        bench.sh("echo 'device.cu(3): error'; exit 3")
    error = caught.value
    assert (error.message, error.status, error.where) == ("sh ended with exit status 3", 3, WHERE)
    assert error.detail == "$ /bin/sh -c 'echo '\"'\"'device.cu(3): error'\"'\"'; exit 3'\ndevice.cu(3): error"
    assert error.remedy == "mend it"
    assert bench.sh(family(bench.folder) + "echo done").output == "done\n"  # what is left would never end by itself
    require_gone(bench.folder)
    with pytest.raises(ToolchainError, match=r"nvcc cannot be run: .*No such file") as caught:
        bench.run("/no/such/nvcc", "--version")
    assert caught.value.where == WHERE
    bench.folder = bench.folder / "missing"
    with pytest.raises(ToolchainError, match="missing"):
        bench.sh("true")


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


BUILD = """
import signal, sys
from pathlib import Path
from kernelwright.core.errors import Where
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.processes.runner import ToolRunner
from kernelwright.processes.tools import ToolCall
folder = Path(sys.argv[1])
if "ignore" in sys.argv:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
runner = ToolRunner(1, folder, 900.0, MemoryGovernor(1 << 20, Measurements(folder / "m.json")))
result = runner.run(ToolCall(["/bin/sh", "-c", sys.argv[2]], folder, folder, Where(), "", kind="nvcc", subject="s"))
print(result.output)
runner.close()
"""


def test_a_build_that_was_started_with_sigchld_ignored_runs_tools(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(tmp_path), "echo fine; exec echo twice", "ignore"]
    environment = {**os.environ, "PYTHONPATH": str(SITE_SCONS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGS_AFTER_S)
    assert (done.returncode, done.stdout.split()) == (0, ["fine", "twice"]), done.stderr


def test_a_runner_that_does_not_answer_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(worker_module, "time", clock)
    thread, errors = bench.in_thread(family(bench.folder) + "wait")
    number(bench.folder / "other-group")
    os.kill(number(bench.folder / "worker"), signal.SIGSTOP)
    clock.ahead = HANGS_AFTER_S + runner_module.GRACE_S
    thread.join(HANGS_AFTER_S)
    assert f"took longer than {clock.ahead:g} s while running sh, and was ended" in errors[0].message
    require_gone(bench.folder)


def test_a_runner_that_does_not_lead_a_session_harms_nobody() -> None:
    command = [sys.executable, tools.__file__]
    # In a session of its own, for the case that this fails.
    script = ["/bin/sh", "-c", f"{ENDLESS} & {shlex.join(command)} < /dev/null; kill $! && echo all there"]
    done = subprocess.run(script, start_new_session=True, capture_output=True, text=True, timeout=HANGS_AFTER_S)
    assert done.stdout.endswith("all there\n"), done


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
