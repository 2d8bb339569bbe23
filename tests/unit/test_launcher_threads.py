"""The thread pool of kernel libraries: results, nesting, concurrency, errors, fork, number of threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from forked import starter
from launcher_build import OPTIMISED, build, c_unit, plan, scalar, signature, tensor

# out, mode, tasks. Each task adds 1 to out[task]; out[64 + task] is the thread that ran it, out[128] the number of
# tasks.
PROBE = """
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
enum { PLAIN, NESTED, FAIL, SILENT, BARRIER, SLOW, WORKSPACE, FAIL_AT_BARRIER };
typedef struct { int64_t *out; int mode; _Atomic int arrived; } probe;
static int inner(int task, TVMParallelGroupEnv *env, void *closure) {
  for (int i = task; i < 1000; i += env->num_task) atomic_fetch_add((_Atomic int64_t *)closure, 1);
  return 0;
}
static int fail(int task) {
  TVMFFIErrorSetRaisedFromCStr("ValueError", task ? "a task failed" : "task 0 failed");
  return -1;
}
static int barrier(int task, TVMParallelGroupEnv *env, probe *p) {
  p->arrived++;
  if (__TVMBackendParallelBarrier(task, env)) return -1;
  p->out[64 + task] = p->arrived;
  return 0;
}
static int run(int task, TVMParallelGroupEnv *env, void *closure) {
  probe *p = closure;
  p->out[task] += 1;
  p->out[64 + task] = syscall(SYS_gettid);
  if (!task) p->out[128] = env->num_task;
  switch (p->mode) {
    case NESTED: return __TVMBackendParallelLaunch(inner, &p->out[129], 0);
    case FAIL: return fail(task);
    case SILENT: return task == env->num_task - 1 ? -1 : 0;
    case SLOW: usleep(3000); return 0;
    case BARRIER: return barrier(task, env, p);
    case FAIL_AT_BARRIER: return task ? barrier(task, env, p) : fail(task);
    case WORKSPACE: return __TVMBackendAllocWorkspace(1, 0, 1 << 24, 2, 32) ? fail(task) : 0;
    default: return 0;
  }
}
BEGIN
  probe p = {tensor(argument)->data, (int)argument[1].v_int64, 0};
  if (__TVMBackendParallelLaunch(run, &p, (int)argument[2].v_int64)) return -1;
END
"""
PLAIN, NESTED, FAIL, SILENT, BARRIER, SLOW, WORKSPACE, FAIL_AT_BARRIER = range(8)

PRELUDE = """
import os, sys, threading, time, numpy as np, tvm_ffi
PLAIN, NESTED, FAIL, SILENT, BARRIER, SLOW, WORKSPACE, FAIL_AT_BARRIER = range(8)
module = tvm_ffi.load_module(sys.argv[1])
def call(mode, tasks=0):
    out = np.zeros(160, "int64")
    module["probe"](out, mode, tasks)
    return out
"""


def build_probe(folder: Path, cgroup: Path) -> Path:
    """The library of the probe, for a machine whose control group is in that folder."""
    arguments = [tensor("out", "int64", [160]), scalar("mode", "int32"), scalar("tasks", "int32")]
    kernel = plan("probe", c_unit(folder, PROBE, signature("probe", arguments)))
    return build(folder, kernel, extra=[f'-DKW_CGROUP="{cgroup}"', *OPTIMISED])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    return build_probe(folder, folder / "no_cgroup")


@pytest.fixture
def module(library: Path) -> Any:
    module = tvm_ffi.load_module(str(library))
    module["kw_set_num_threads"](4)
    yield module
    module["kw_set_num_threads"](0)


def call(module: Any, mode: int, tasks: int = 0) -> np.ndarray:
    out = np.zeros(160, "int64")
    module["probe"](out, mode, tasks)
    return out


def in_process(library: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return starter("numpy", "tvm_ffi").run(PRELUDE + code, library, env=os.environ | environment)


def test_a_launch_runs_each_task_once(module: Any) -> None:
    for _ in range(500):
        out = call(module, PLAIN)
        assert out[:4].tolist() == [1] * 4 and not out[4:64].any() and out[128] == 4


def test_tasks_run_in_several_threads_the_caller_among_them(module: Any) -> None:
    seen: set[int] = set()
    for _ in range(100):  # on a busy machine the others may have done all of a launch before the caller gets a turn
        seen |= set(call(module, SLOW)[64:68].tolist())
        if len(seen) > 1 and threading.get_native_id() in seen:
            return
    raise AssertionError(f"{threading.get_native_id()} is not among {seen}, or alone")


@pytest.mark.parametrize("tasks", [1, 3, 4, 50])
def test_a_given_number_of_tasks_is_kept(module: Any, tasks: int) -> None:
    out = call(module, PLAIN, tasks)
    assert out[:tasks].tolist() == [1] * tasks and not out[tasks:64].any() and out[128] == tasks


def test_a_nested_launch_runs_to_completion(module: Any) -> None:
    for _ in range(50):
        out = call(module, NESTED)
        assert out[129] == 4 * 1000


def test_launches_from_several_threads_do_not_disturb_each_other(module: Any) -> None:
    wrong: list[np.ndarray] = []

    def work() -> None:
        for round in range(300):
            out = call(module, NESTED if round % 3 == 0 else PLAIN)
            tasks = int(out[128])
            if out[:tasks].tolist() != [1] * tasks or out[tasks:64].any():
                wrong.append(out)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_an_error_of_a_task_is_raised_in_the_caller(module: Any) -> None:
    for _ in range(20):
        with pytest.raises(ValueError, match="task"):
            call(module, FAIL)
    with pytest.raises(RuntimeError, match="kernel 'probe': a parallel task failed without saying why"):
        call(module, SILENT)
    assert call(module, PLAIN)[:4].tolist() == [1] * 4, "the pool goes on working"


def test_a_barrier_waits_for_all_tasks(module: Any) -> None:
    for _ in range(50):
        assert call(module, BARRIER)[64:68].tolist() == [4] * 4
    assert call(module, BARRIER, 1)[64] == 1


def test_a_task_that_fails_releases_those_at_the_barrier(module: Any) -> None:
    for _ in range(20):
        with pytest.raises((ValueError, RuntimeError), match="task"):
            call(module, FAIL_AT_BARRIER)


def test_a_barrier_among_more_tasks_than_threads_is_an_error_and_not_a_deadlock(module: Any) -> None:
    with pytest.raises(RuntimeError, match="a parallel barrier needs as many threads as the 9 tasks"):
        call(module, BARRIER, 9)


def test_workspaces_of_failed_tasks_are_freed(module: Any) -> None:
    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0])

    def fail() -> None:
        with pytest.raises(ValueError, match="task"):
            call(module, WORKSPACE)

    for _ in range(5):
        fail()
    before = pages()
    for _ in range(40):
        fail()
    assert (pages() - before) * os.sysconf("SC_PAGE_SIZE") < 40 * 2**24


def test_the_number_of_threads_can_be_set_and_read(module: Any) -> None:
    for threads in (1, 2, 7):
        module["kw_set_num_threads"](threads)
        assert module["kw_num_threads"]() == threads == call(module, PLAIN)[128]
    module["kw_set_num_threads"](0)
    assert module["kw_num_threads"]() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("threads", [-1, 1025])
def test_an_invalid_number_of_threads_is_refused(module: Any, threads: int) -> None:
    with pytest.raises(ValueError, match=f"kernel 'probe': the number of threads is {threads}, expected 1 to 1024"):
        module["kw_set_num_threads"](threads)


def test_the_environment_sets_the_number_of_threads(library: Path) -> None:
    done = in_process(library, "print(module['kw_num_threads'](), call(PLAIN)[128])", KERNELWRIGHT_NUM_THREADS="3")
    assert done.stdout == "3 3\n", done.stderr


@pytest.mark.parametrize("text", ["many", "0", "-2", "3.5", "9999"])
def test_an_invalid_number_of_threads_in_the_environment_is_refused(library: Path, text: str) -> None:
    done = in_process(library, "call(PLAIN)", KERNELWRIGHT_NUM_THREADS=text)
    message = f"ValueError: kernel 'probe': KERNELWRIGHT_NUM_THREADS is '{text}', expected a number from 1 to 1024"
    assert message in done.stderr


def test_the_default_is_the_cpus_that_the_process_may_use(library: Path) -> None:
    code = "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); print(module['kw_num_threads']())"
    assert in_process(library, code).stdout == "1\n"


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A library, and the folder that it takes for that of its control group."""
    folder = tmp_path_factory.mktemp("limited")
    return build_probe(folder, folder / "cgroup"), folder / "cgroup"


def quota_v1(quota: str, period: str = "100000\n") -> dict[str, str]:
    return {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": period}


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "100001 100000\n"}, 2),
        ({"cpu.max": "150000 50000\n"}, 3),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "9000000000000000 1\n"}, None),
        ({"cpu.max": "100000 0\n"}, None),
        ({"cpu.max": ""}, None),
        (quota_v1("50000\n"), 1),
        (quota_v1("150000\n"), 2),
        (quota_v1("-1\n"), None),
        ({"cpu/cpu.cfs_quota_us": "50000\n"}, None),
        ({}, None),
    ],
)
def test_the_default_is_within_the_cpu_quota_of_the_container(
    limited: tuple[Path, Path], files: dict[str, str], most: int | None
) -> None:
    library, cgroup = limited
    shutil.rmtree(cgroup, ignore_errors=True)
    for name, text in files.items():
        (cgroup / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroup / name).write_text(text)
    cpus = len(os.sched_getaffinity(0))
    done = in_process(library, "print(module['kw_num_threads']())")
    assert done.stdout == f"{min(cpus, most or cpus)}\n", done.stderr


def test_the_environment_goes_before_the_cpu_quota(limited: tuple[Path, Path]) -> None:
    library, cgroup = limited
    cgroup.mkdir(exist_ok=True)
    (cgroup / "cpu.max").write_text("100000 100000\n")
    done = in_process(library, "print(module['kw_num_threads']())", KERNELWRIGHT_NUM_THREADS="5")
    assert done.stdout == "5\n", done.stderr


def test_libraries_share_one_pool_that_starts_lazily(library: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(library.read_bytes())
    code = f"""
count = lambda: len(os.listdir("/proc/self/task"))
other = tvm_ffi.load_module({str(other)!r})
before = count()
module["kw_set_num_threads"](5)
assert other["kw_num_threads"]() == 5
assert count() == before, "no threads before the first launch"
call(PLAIN)
other["probe"](np.zeros(160, "int64"), PLAIN, 0)
print(count() - before)
"""
    assert in_process(library, code).stdout == "4\n"


FORK = """
module["kw_set_num_threads"](4)
stop = False
def work():
    while not stop:
        call(SLOW)
{background}
for _ in range({rounds}):
    call(PLAIN)
    child = os.fork()
    if not child:
        good = all(call(mode)[0] == 1 for mode in (PLAIN, NESTED, SLOW))
        several = len(set(call(SLOW)[64:68].tolist())) > 1
        os._exit(0 if good and several else 1)
    assert os.waitpid(child, 0)[1] == 0
stop = True
print("done")
"""


def test_a_child_after_fork_has_a_working_pool(library: Path) -> None:
    done = in_process(library, FORK.format(background="", rounds=10))
    assert done.stdout == "done\n", done.stderr


def test_a_fork_while_another_thread_is_in_a_launch_does_not_deadlock(library: Path) -> None:
    background = "threads = [threading.Thread(target=work) for _ in range(2)]\nfor thread in threads: thread.start()"
    done = in_process(library, FORK.format(background=background, rounds=30))
    assert done.stdout == "done\n", done.stderr


def test_idle_threads_use_no_cpu(module: Any) -> None:
    call(module, PLAIN)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


def test_signals_reach_the_main_thread(library: Path) -> None:
    code = """
import signal
module["kw_set_num_threads"](4)
call(PLAIN)
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
for _ in range(20):
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.002)
masks = [line for task in os.listdir("/proc/self/task") for line in open(f"/proc/self/task/{task}/status")]
names = [line.split()[1] for line in masks if line.startswith("Name:")]
print(len(seen) > 0, names.count("kernelwright"))
"""
    assert in_process(library, code).stdout == "True 3\n"
