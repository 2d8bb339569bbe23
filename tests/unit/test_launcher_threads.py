"""The thread pool of kernel libraries: results, nesting, concurrency, errors, fork, number of threads."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from kernelwright.backends.launcher import LAUNCHER
from support.forked import starter
from support.launcher_build import MEET, OPTIMISED, build, c_unit, include_folders, plan, scalar, signature, tensor
from support.moments import held
from tvm_ffi import libinfo

# out, mode, tasks. Each task adds 1 to out[task]; out[64 + task] is the thread that ran it, out[128] the number of
# tasks.
PROBE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
enum { PLAIN, NESTED, FAIL, SILENT, BARRIER, TOGETHER, WORKSPACE, FAIL_AT_BARRIER, HELD, HUGE };
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
/* Reads the pipe $GATE to its end, if there is one. */
static int wait_at_gate(void) {
  int gate = open(getenv("GATE"), O_RDONLY);
  char byte;
  while (gate >= 0 && read(gate, &byte, 1) > 0) continue;
  if (gate >= 0) close(gate);
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
    case TOGETHER: return meet(env->num_task);
    case HELD: return wait_at_gate();
    case BARRIER: return barrier(task, env, p);
    case FAIL_AT_BARRIER: return task ? barrier(task, env, p) : fail(task);
    case WORKSPACE: return __TVMBackendAllocWorkspace(1, 0, 1 << 24, 2, 32) ? fail(task) : 0;
    case HUGE: return __TVMBackendAllocWorkspace(1, 0, UINT64_MAX, 2, 32) ? 0 : -1;
    default: return 0;
  }
}
BEGIN
  probe p = {tensor(argument)->data, (int)argument[1].v_int64, 0};
  if (__TVMBackendParallelLaunch(run, &p, (int)argument[2].v_int64)) return -1;
END
"""
PLAIN, NESTED, FAIL, SILENT, BARRIER, TOGETHER, WORKSPACE, FAIL_AT_BARRIER, HELD, HUGE = range(10)

PRELUDE = """
import os, signal, sys, threading
sys.modules["torch"] = None  # tvm-ffi would import it, which takes seconds
import numpy as np, tvm_ffi
from support.moments import held
PLAIN, NESTED, FAIL, SILENT, BARRIER, TOGETHER, WORKSPACE, FAIL_AT_BARRIER, HELD, HUGE = range(10)
module = tvm_ffi.load_module(sys.argv[1])
def call(mode, tasks=0):
    out = np.zeros(160, "int64")
    module["probe"](out, mode, tasks)
    return out
"""


def build_probe(folder: Path, cgroup: Path) -> Path:
    """The library of the probe, for a machine whose control group is in that folder."""
    arguments = [tensor("out", "int64", [160]), scalar("mode", "int32"), scalar("tasks", "int32")]
    kernel = plan("probe", c_unit(folder, MEET + PROBE, signature("probe", arguments)))
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
    for tasks in [*[0] * 500, 1, 3, 4, 50]:
        out, count = call(module, PLAIN, tasks), tasks or 4
        assert out[:count].tolist() == [1] * count and not out[count:64].any() and out[128] == count


def test_all_tasks_run_at_once_one_of_them_in_the_caller(library: Path) -> None:
    code = """
module["kw_set_num_threads"](4)
for _ in range(20):
    threads = call(TOGETHER)[64:68].tolist()
    print(len(set(threads)), threading.get_native_id() in threads)
"""
    done = in_process(library, code)
    assert done.stdout == "4 True\n" * 20, done.stderr


def test_a_nested_launch_runs_to_completion(module: Any) -> None:
    for _ in range(50):
        out = call(module, NESTED)
        assert out[129] == 4 * 1000


def test_launches_from_several_threads_do_not_disturb_each_other(module: Any) -> None:
    def wrong(thread: int) -> list[np.ndarray]:
        outs = [call(module, NESTED if round % 3 == 0 else PLAIN) for round in range(300)]
        counts = [int(out[128]) for out in outs]
        return [o for o, n in zip(outs, counts, strict=True) if o[:n].tolist() != [1] * n or o[n:64].any()]

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(wrong, range(6))) == [[]] * 6


def test_a_launch_during_that_of_another_thread_runs_in_the_caller(module, tmp_path, monkeypatch):
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    others: list[np.ndarray] = []
    with held(tmp_path / "gate", lambda: others.append(call(module, HELD))):
        for tasks in (0, 3):
            out = call(module, PLAIN, tasks)
            count = tasks or 1
            assert out[128] == count and out[:count].tolist() == [1] * count
            assert set(out[64 : 64 + count].tolist()) == {threading.get_native_id()}
    assert others[0][:4].tolist() == [1] * 4 and others[0][128] == 4
    assert call(module, PLAIN)[128] == 4, "the pool is free again"


def test_an_error_of_a_task_is_raised_in_the_caller(module: Any) -> None:
    for _ in range(20):
        with pytest.raises(ValueError, match="task"):
            call(module, FAIL)
    with pytest.raises(RuntimeError, match="kernel 'probe': a parallel task failed without saying why"):
        call(module, SILENT)
    assert call(module, PLAIN)[:4].tolist() == [1] * 4, "the pool goes on working"


def test_a_barrier_waits_for_all_tasks_until_one_fails_and_is_an_error_where_threads_are_too_few(module):
    for _ in range(50):
        assert call(module, BARRIER)[64:68].tolist() == [4] * 4
    assert call(module, BARRIER, 1)[64] == 1
    for _ in range(20):
        with pytest.raises((ValueError, RuntimeError), match="task"):
            call(module, FAIL_AT_BARRIER)
    with pytest.raises(RuntimeError, match="a parallel barrier needs as many threads as the 9 tasks"):
        call(module, BARRIER, 9)


def test_workspaces_of_failed_tasks_are_freed_and_one_larger_than_memory_is_refused(module: Any) -> None:
    pages = []
    for _ in range(45):
        with pytest.raises(ValueError, match="task"):
            call(module, WORKSPACE)
        pages.append(int(Path("/proc/self/statm").read_text().split()[0]))
    assert (pages[-1] - pages[4]) * os.sysconf("SC_PAGE_SIZE") < 40 * 2**24
    with pytest.raises(ValueError, match="the size of a workspace is negative, or too large"):
        call(module, HUGE)


def test_the_number_of_threads_can_be_set_and_read(module: Any) -> None:
    for threads in (1, 2, 7):
        module["kw_set_num_threads"](threads)
        assert module["kw_num_threads"]() == threads == call(module, PLAIN)[128]
    module["kw_set_num_threads"](0)
    assert module["kw_num_threads"]() == len(os.sched_getaffinity(0))
    for wrong in (-1, 1025):
        with pytest.raises(ValueError, match=f"kernel 'probe': the number of threads is {wrong}, expected 1 to 1024"):
            module["kw_set_num_threads"](wrong)


IN_CHILD = """
def in_child(work):
    if not os.fork():
        try:
            print(work(), flush=True)
        except ValueError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
"""


def test_an_invalid_number_of_threads_in_the_environment_is_refused(library: Path) -> None:
    texts = ["many", "0", "-2", "3.5", "9999"]
    code = f"""
for text in {texts}:
    os.environ["KERNELWRIGHT_NUM_THREADS"] = text
    in_child(lambda: call(PLAIN))
"""
    message = "kernel 'probe': KERNELWRIGHT_NUM_THREADS is '{}', expected a number from 1 to 1024"
    done = in_process(library, IN_CHILD + code)
    assert done.stdout.splitlines() == [message.format(text) for text in texts], done.stderr


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


QUOTAS: list[tuple[dict[str, str], int | None]] = [
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
]
"""Files of a control group -> the most CPUs that they allow."""


def test_the_default_is_within_the_cpu_quota_of_the_container(limited: tuple[Path, Path]) -> None:
    library, cgroup = limited
    code = f"""
import pathlib, shutil
cgroup = pathlib.Path({str(cgroup)!r})
for files in {[files for files, _ in QUOTAS]}:
    shutil.rmtree(cgroup, ignore_errors=True)
    for name, text in files.items():
        (cgroup / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroup / name).write_text(text)
    in_child(module["kw_num_threads"])
"""
    cpus = len(os.sched_getaffinity(0))
    done = in_process(library, IN_CHILD + code)
    assert [int(line) for line in done.stdout.split()] == [min(cpus, most or cpus) for _, most in QUOTAS], done.stderr


def test_the_environment_sets_the_number_of_threads_also_beyond_the_cpu_quota(limited: tuple[Path, Path]) -> None:
    library, cgroup = limited
    cgroup.mkdir(exist_ok=True)
    (cgroup / "cpu.max").write_text("100000 100000\n")
    done = in_process(library, "print(module['kw_num_threads'](), call(PLAIN)[128])", KERNELWRIGHT_NUM_THREADS="5")
    assert done.stdout == "5 5\n", done.stderr


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
def check_pool():
    good = call(TOGETHER)[128] == 4 and len(workers()) == 3
    good = good and all(call(mode)[0] == 1 for mode in (PLAIN, NESTED, TOGETHER))
    return good and len(set(call(TOGETHER)[64:68].tolist())) == 4
def workers():
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return [name for name in names if name.strip() == "kernelwright"]
def fork():
    child = os.fork()
    if not child:
        signal.alarm(300)  # against a hang
        call(PLAIN)
        os._exit(0 if len(workers()) == 3 and check_pool() else 1)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_after_fork_has_a_working_pool(library: Path) -> None:
    code = """
fork()  # no thread has started yet
for _ in range(3):
    call(TOGETHER)
    fork()
print("done")
"""
    done = in_process(library, FORK + code)
    assert done.stdout == "done\n", done.stderr


def test_a_fork_while_another_thread_is_in_a_launch_does_not_deadlock(library: Path, tmp_path: Path) -> None:
    code = """
outs = []
with held(os.environ["GATE"], lambda: outs.append(call(HELD))):
    fork()
assert outs[0][:4].tolist() == [1] * 4
assert check_pool()
print("done")
"""
    done = in_process(library, FORK + code, GATE=str(tmp_path / "gate"))
    assert done.stdout == "done\n", done.stderr


def test_signals_are_left_to_the_threads_of_the_application(library: Path) -> None:
    code = """
module["kw_set_num_threads"](4)
before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
call(TOGETHER)
for task in os.listdir("/proc/self/task"):
    status = dict(line.split(":", 1) for line in open(f"/proc/self/task/{task}/status"))
    if status["Name"].strip() == "kernelwright":
        print(status["SigBlk"].strip())
print(signal.pthread_sigmask(signal.SIG_BLOCK, []) == before | {signal.SIGUSR2})
"""
    *masks, kept = in_process(library, code).stdout.split()
    assert kept == "True" and len(masks) == 3
    never = {signal.SIGKILL, signal.SIGSTOP, 32, 33}  # the last two are glibc's own
    wanted = sum(1 << number - 1 for number in range(1, 65) if number not in never)
    assert [int(mask, 16) & wanted for mask in masks] == [wanted] * 3


# ---- moments that only a test can make


MOMENTS = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>

/* Stands before the futex calls of the pool: who is about to sleep on the watched word is held until it is woken up. */
static long at_futex(long number, _Atomic uint32_t *word, int operation, uint32_t value, void *, void *, int);
#define syscall(...) at_futex(__VA_ARGS__)
#include "launcher.h"
#undef syscall

static _Atomic uint32_t *watched;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int num_held;      /* threads that are held */
static uint32_t held_at;  /* the value of the word for which the last of them wants to sleep */
static int wakes, missed; /* how often they were woken; how often so early that they would sleep all the same */

/* The time limit is for what would hang. */
static void wait_for_change(void) {
  struct timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += 120;
  if (pthread_cond_timedwait(&changed, &lock, &limit)) puts("nothing happens"), fflush(stdout), _exit(1);
}

static void hold(_Atomic uint32_t *word, uint32_t value) {
  pthread_mutex_lock(&lock);
  int before = wakes;
  if (atomic_load(word) == value) {
    ++num_held, held_at = value;
    pthread_cond_broadcast(&changed);
    while (wakes == before) wait_for_change();
    --num_held;
  }
  pthread_mutex_unlock(&lock);
}

static void wake(_Atomic uint32_t *word) {
  pthread_mutex_lock(&lock);
  ++wakes;
  if (num_held && atomic_load(word) == held_at) ++missed;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

/* Waits until so many threads are about to sleep for the present value of the word. */
static void wait_for_held(int count) {
  pthread_mutex_lock(&lock);
  while (num_held != count || held_at != atomic_load(watched)) wait_for_change();
  wakes = 0;
  pthread_mutex_unlock(&lock);
}

static long at_futex(long number, _Atomic uint32_t *word, int operation, uint32_t value, void *time, void *other,
                     int last) {
  if (word != watched) return syscall(number, word, operation, value, time, other, last);
  if (time) puts("it wakes up by itself");
  if (operation == FUTEX_WAKE_PRIVATE) wake(word);
  else hold(word, value);
  return 0;
}

/* ---- a task fails when another has decided to sleep at the barrier, and does not sleep yet ---- */

/* Tasks of a kernel are told which it is, by what these moments go round. */
static const kw_kernel of_errors = {.name = "moments"};

static int fail_late(int task, TVMParallelGroupEnv *env, void *closure) {
  (void)closure;
  kw_now.kernel = &of_errors;
  if (task) return kw_parallel_barrier(task, env);
  wait_for_held(1);
  return kw_raise("ValueError", "task 0 failed");
}

static void failure(void) {
  watched = &kw_own_pool.phase;
  int status = kw_pool_launch(fail_late, NULL, 2);
  printf("%d missed, %s\\n", missed, status == KW_POOL_TASK_RAISED ? "raised" : "not raised");
}

/* ---- a launch when a worker has decided to sleep ---- */

static int count(int task, TVMParallelGroupEnv *env, void *closure) {
  (void)task, (void)env;
  atomic_fetch_add((atomic_int *)closure, 1);
  return 0;
}

static void launch(void) {
  atomic_int done = 0;
  watched = &kw_own_pool.wakes;
  kw_pool_launch(count, &done, 2);
  wait_for_held(1);
  kw_pool_launch(count, &done, 2);
  printf("%d woken, %d missed, %d tasks\\n", wakes, missed, atomic_load(&done));
}

/* ---- who is idle sleeps ---- */

static void idle(void) {
  atomic_int done = 0;
  kw_pool_set_threads(4);
  watched = &kw_own_pool.wakes;
  kw_pool_launch(count, &done, 4);
  wait_for_held(3);
  puts("3 asleep");
}

/* ---- what a failed barrier leaves ---- */

static int fail_at_barrier(int task, TVMParallelGroupEnv *env, void *closure) {
  (void)closure;
  kw_now.kernel = &of_errors;
  return task ? kw_parallel_barrier(task, env) : kw_raise("ValueError", "task 0 failed");
}

static int look(int task, TVMParallelGroupEnv *env, void *closure) {
  (void)task, (void)env;
  atomic_fetch_add((atomic_int *)closure, (int)atomic_load(&kw_own_pool.arrived));
  return 0;
}

static void barrier(void) {
  atomic_int arrived = 0;
  kw_pool_set_threads(4);
  kw_pool_launch(fail_at_barrier, NULL, 4);
  kw_pool_launch(look, &arrived, 4);
  printf("%d arrived\\n", atomic_load(&arrived));
}

/* ---- workspaces that are freed in another order ---- */

static void workspaces(void) {
  void *data[4], *rest;
  for (int order = 0; order < 24; ++order) {
    int left[] = {0, 1, 2, 3}, picks[] = {order / 6, order / 2 % 3, order % 2, 0};
    for (int i = 0; i < 4; ++i) data[i] = kw_allocate_workspace(kDLCPU, 0, 100, 2, 32);
    for (int i = 0; i < 4; ++i) {
      kw_free_workspace(kDLCPU, 0, data[left[picks[i]]]);
      memmove(left + picks[i], left + picks[i] + 1, (size_t)(3 - picks[i]) * sizeof *left);
      kw_workspace *last = kw_now.workspaces, *next = NULL;
      for (int j = 2 - i; j >= 0; --j, next = last, last = last->previous)
        if (!last || last->data != data[left[j]] || last->next != next) puts("the list is wrong"), _exit(1);
      if (last) puts("the list is too long"), _exit(1);
    }
  }
  rest = kw_allocate_workspace(kDLCPU, 0, 100, 2, 32);
  kw_allocate_workspace(kDLCPU, 0, 100, 2, 32);
  kw_raise("ValueError", "the error");
  kw_drop_workspaces((kw_workspace *)rest - 1);
  kw_text text = {0};
  kw_append_raised(&text);
  bool left = kw_now.workspaces == (kw_workspace *)rest - 1;
  printf("%s, %s\\n", left ? "the first is left" : "the mark was passed", text.data);
}

/* ---- a message that is too long ---- */

static void message(void) {
  struct { kw_text text; char guard[64]; } long_one;
  char word[9001];
  memset(word, 'x', 9000), word[9000] = 0;
  memset(long_one.guard, 'g', sizeof long_one.guard);
  kw_begin(&long_one.text);
  for (int i = 0; i < 4; ++i) kw_append(&long_one.text, "%s", word);
  bool whole = true;
  for (size_t i = 0; i < sizeof long_one.guard; ++i) whole &= long_one.guard[i] == 'g';
  printf("%zu of %zu, %s\\n", strlen(long_one.text.data), long_one.text.used, whole ? "whole" : "overwritten");
}

int main(int count, char **words) {
  static const struct { const char *name; void (*run)(void); } moments[] = {
      {"failure", failure}, {"launch", launch}, {"idle", idle}, {"barrier", barrier}, {"workspaces", workspaces},
      {"message", message}};
  kw_now.kernel = &of_errors;
  kw_pool_set_threads(2);
  for (size_t i = 0; count == 2 && i < sizeof moments / sizeof *moments; ++i)
    if (!strcmp(words[1], moments[i].name)) moments[i].run();
  fflush(stdout);
  _exit(0);
}
"""


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that has the launcher in it, and stops its threads where a test wants them."""
    folder = tmp_path_factory.mktemp("moments")
    (folder / "moments.c").write_text(MOMENTS)
    runtime = Path(libinfo.find_libtvm_ffi())
    folders = [f"-I{item}" for item in (LAUNCHER, *include_folders())]
    linked = [str(runtime), f"-Wl,-rpath,{runtime.parent}", "-lpthread", "-ldl"]
    command = ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", *folders, "moments.c", *linked]
    subprocess.run([*command, "-o", "moments"], cwd=folder, check=True)
    return folder / "moments"


@pytest.mark.parametrize(
    ("moment", "printed"),
    [
        ("failure", "0 missed, raised"),  # it wakes a task that is about to sleep at the barrier
        ("launch", "1 woken, 0 missed, 4 tasks"),  # it wakes a worker that is about to sleep
        ("idle", "3 asleep"),
        ("barrier", "0 arrived"),  # after one that failed it counts from zero
        ("workspaces", "the first is left, kernel 'moments': the error"),  # they may be freed in any order
        ("message", "16383 of 16383, whole"),  # one that is too long is cut
    ],
)
def test_nothing_goes_wrong_at_moments_that_only_a_test_can_make(moments: Path, moment: str, printed: str) -> None:
    done = subprocess.run([moments, moment], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, printed), done.stderr
