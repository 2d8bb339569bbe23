"""What only the launcher in C does on a GPU: its locks, contexts and services, and code that its libraries do not hold.

What it has in common with other launchers is in tests/contracts. The driver stands in, as there.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from kernelwright.backends.own_code import own_symbol
from kernelwright.backends.plan import LoweredUnit
from kernelwright.cuda import Tensor
from support.launched import ARCHS, declared, scale, two_steps
from support.launcher_build import FakeTensor, build, c_unit, plan, scalar, signature, tensor
from support.launchers import Machine, Variant, host_of, make_driver, plan_of
from support.moments import held

# Preloaded into a process. A thread that would wait for a lock for ever ends the process with status 9: if it has the
# lock itself, and in a child after fork, where no other thread is left that could have it. One that waits for the lock
# of a kernel's library opens a pipe first, if there is one.
LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_child;
static void note_fork(void) { is_child = 1; }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, note_fork); }

int pthread_mutex_lock(pthread_mutex_t *lock) {
  static int (*original)(pthread_mutex_t *);
  if (!original) *(void **)&original = dlsym(RTLD_NEXT, "pthread_mutex_lock");
  if (lock->__data.__kind) return original(lock); /* one that may be taken twice, or checks that */
  if (!pthread_mutex_trylock(lock)) return 0;
  if (is_child || lock->__data.__owner == gettid()) _exit(9);
  Dl_info found;
  const char *pipe = getenv("LOCKS_PIPE");
  if (pipe && dladdr(lock, &found) && strstr(found.dli_fname, "/direct.so")) close(open(pipe, O_WRONLY));
  return original(lock);
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_driver(tmp_path_factory.mktemp("cuda"))
    (folder / "locks.c").write_text(LOCKS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "locks.c", "-o", "locks.so"], cwd=folder, check=True)
    return folder


@pytest.fixture
def machine(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(folder, tmp_path, monkeypatch)
    yield made
    assert len(made.calls("push")) == len(made.calls("pop")), "a context is left current"


def on_cuda(shape: Sequence[int], dtype: tuple[int, int, int] = (2, 16, 1), device: int = 0) -> Any:
    return tvm_ffi.from_dlpack(FakeTensor(shape, dtype, device=(2, device)))


def library_of(folder: Path, variant: Variant, archs: Sequence[str] = ("sm_80",), **options: Any) -> Path:
    """The library of a kernel with one variant; options of its plan."""
    made = replace(plan_of([], archs, [variant]), **options)
    host_of(folder, variant, archs)
    name = "_".join([made.name, *archs, *map(str, options.values())])
    return build(folder, made).rename(folder / f"{name}.so")


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    return library_of(folder, *scale().variants)


@pytest.fixture(scope="module")
def steps(folder: Path) -> Path:
    return library_of(folder, Variant.of("two_steps", two_steps(), outputs=["y"]))


# ---- launches

DIRECT = """
int32_t ENTRY(void *self, void *arguments, int32_t count, void *result) {
  const TVMFFIAny *given = arguments;
  TVMFFIAny passed[] = {{.type_index = kTVMFFIOpaquePtr}, given[1], given[2]};
  TVMFFIObjectHandle function;
  if (TVMFFIEnvModLookupFromImports(__tvm_ffi__library_ctx, "direct_kernel", &function)) return -1;
  return TVMFFIFunctionCall(function, passed, 3, result);
}
"""


@pytest.fixture(scope="module")
def direct(folder: Path) -> Path:
    """A kernel whose numbers are the width of the grid and the bytes of dynamic shared memory. It leaves its output."""
    arguments = [tensor("x", "float16", ["n"]), scalar("grid", "int64"), scalar("shared", "int64")]
    arguments += [tensor("y", "int4", ["n"], output=True)]
    data = signature("direct", arguments, target="cuda", arch="sm_80", symbols={"n": "int64"})
    launch = ["blockIdx.x", "tirx.use_dyn_shared_memory"]
    data["device_kernels"] = [{"name": "direct_kernel", "params": ["handle"], "launch": launch}]
    library = library_of(folder, Variant(data | {"launches": None}, DIRECT.replace("ENTRY", data["entry"])))
    return library.rename(folder / "direct.so")


def test_a_launch_may_be_as_large_as_the_driver_can_be_told_and_an_output_has_room_for_parts_of_bytes(machine, direct):
    module, x = machine.load(direct), on_cuda((5,))
    module["direct"](x, 2**32 - 1, 0)
    (launch,) = machine.calls("launch")
    assert launch.startswith("direct_kernel sm_80 grid 4294967295 1 1 block 1 1 1 shared 0 ")
    for grid, shared, wrong in [(2**32, 0, 2**32), (2**32 + 1, 0, 2**32 + 1), (-1, 0, -1), (1, 2**32, 2**32)]:
        message = f"kernel 'direct': device function direct_kernel would be launched with a dimension of {wrong}$"
        with pytest.raises(ValueError, match=message):
            module["direct"](x, grid, shared)
    assert len(machine.calls("launch")) == 1
    made = machine.load(direct)["direct"](on_cuda((5,)), 1, 0)
    assert (made.dtype, {text.split()[0] for text in machine.calls("allocate")}) == ("int4", {"3"})


def test_the_device_of_a_call_is_not_that_of_another_threads_call(machine: Machine, steps: Path) -> None:
    gate, module = machine.hold("cuLaunchKernelEx"), machine.load(steps)
    on = [on_cuda((100,), (2, 32, 1), device=device) for device in (0, 1)]
    with held(gate, lambda: module["two_steps"](on[0], on[0])):  # before the first of its two launches
        module["two_steps"](on[1], on[1])
    assert [launch[-6:] for launch in machine.calls("launch")] == ["cuda:1", "cuda:1", "cuda:0", "cuda:0"]


def test_sizes_and_kernels_may_be_called_like_macros(machine: Machine, folder: Path) -> None:
    """Host code in C has variables of these names."""
    passed = {"x": Tensor("float32", "linux", "unix"), "y": Tensor("float32", "errno")}
    variant = Variant.of("bool", declared("bool_kernel", "linux + unix + errno", passed))
    machine.load(library_of(folder, variant))["bool"](on_cuda((3, 4), (2, 32, 1)), on_cuda((5,), (2, 32, 1)))
    assert "grid 12 1 1" in machine.calls("launch")[0]


def test_one_library_serves_cpu_and_cuda(machine: Machine, folder: Path) -> None:
    units, dtypes = [], {"float32": (2, 32, 1), "float16": (2, 16, 1)}
    for number, dtype in enumerate(dtypes):
        data = signature("both", [tensor("x", dtype, ["n"])], slug=dtype, symbols={"n": "int32"})
        units.append(c_unit(folder, f"BEGIN *(char *)tensor(argument)->data = {number + 1}; END", data))
        variant = Variant.of("both", declared(f"on_{dtype}", "n", {"x": Tensor(dtype, "n")}), slug=dtype)
        host_of(folder, variant, ["sm_80"])
        units += plan_of([], ["sm_80"], [variant]).units
    both = machine.load(build(folder, plan("both", *units)))["both"]
    for number, (dtype, code) in enumerate(dtypes.items()):
        x = np.zeros(5, dtype)
        both(x)
        assert x.view("int8")[0] == number + 1
        both(on_cuda((7,), code))
    assert [launch.split()[0] for launch in machine.calls("launch")] == ["on_float32", "on_float16"]
    assert machine.calls("load") == ["sm_80", "sm_80"]


def test_cpu_tensors_are_refused_by_a_kernel_for_cuda_only(machine: Machine, library: Path) -> None:
    x = np.zeros(5, "float16")
    expected = r"kernel 'scale': it cannot run on cpu: it was built for cuda \(sm_80\) only\n  remedy: .*add an arch"
    with pytest.raises(ValueError, match=expected):
        machine.load(library)["scale"](x, x, 1, 1, 1)


# ---- contexts


def test_the_primary_context_is_made_current_for_loading_and_for_the_launch_only(machine, library):
    module, x = machine.load(library), on_cuda((5,), device=1)
    module["scale"](x, x, 1, 1, 1)
    log = [line.split(" grid")[0] for line in machine.log]
    loading = ["push cuda:1", "load sm_80", "pop cuda:1"]
    assert log == ["init", *loading, "push cuda:1", "launch scale_kernel sm_80", "pop cuda:1"]


def test_a_launch_that_fails_leaves_no_context_behind(machine: Machine, library: Path, steps: Path) -> None:
    x, wide = on_cuda((5,)), on_cuda((100,), (2, 32, 1))
    machine.set(fail="cuLaunchKernelEx=1")
    with pytest.raises(RuntimeError, match="launching device function"):
        machine.load(library)["scale"](x, x, 1, 1, 1)
    assert machine.log[-2:] == ["push cuda:0", "pop cuda:0"]
    machine.set(fail="cuMemAllocFromPoolAsync=1")
    with pytest.raises(RuntimeError, match="allocating a workspace"):
        machine.load(steps)["two_steps"](wide, wide)
    assert len(machine.calls("push")) == len(machine.calls("pop"))


@contextmanager
def current(machine: Machine, make: str, device: int = 0) -> Iterator[None]:
    """A context of a device that a function of the driver has made is current."""
    driver, context = ctypes.CDLL(str(machine.driver)), ctypes.c_void_p()
    numbers = (device,) if make == "cuDevicePrimaryCtxRetain" else (0, device)
    getattr(driver, make)(ctypes.byref(context), *numbers)
    driver.cuCtxPushCurrent_v2(context)
    yield
    driver.cuCtxPopCurrent_v2(ctypes.byref(context))


def test_a_current_context_of_the_device_is_left_alone(machine: Machine, library: Path) -> None:
    module, x = machine.load(library), on_cuda((5,))
    with current(machine, "cuDevicePrimaryCtxRetain"):
        module["scale"](x, x, 1, 1, 1)
        assert machine.calls("push") == ["cuda:0"], "ours"
        module["scale"](*[on_cuda((5,), device=1)] * 2, 1, 1, 1)
        assert machine.calls("push")[1:] == ["cuda:1", "cuda:1"]


def test_code_is_loaded_in_the_primary_context_and_a_stream_of_another_one_keeps_that(machine, library):
    module, x = machine.load(library), on_cuda((5,))
    with current(machine, "cuCtxCreate_v2"), tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0xF007):
        module["kw_preload"](2, 0)
        assert machine.log[-3:] == ["push cuda:0", "load sm_80", "pop cuda:0"]
        before = len(machine.log)
        module["scale"](x, x, 1, 1, 1)
        (launch,) = machine.log[before:]
    assert launch.endswith("stream 0xf007 on cuda:0 in a context of its own")


@pytest.mark.parametrize("opaque", [False, True])
def test_host_code_of_the_authors_runs_in_the_context_of_its_stream(machine: Machine, folder: Path, opaque) -> None:
    arguments = [] if opaque else [tensor("x", "float16", ["n"])]
    data = signature("own", arguments, target="cuda", arch="sm_80", symbols={} if opaque else {"n": "int64"})
    checks = "int32_t ENTRY(void *self, void *arguments, int32_t count, void *result) { return 0; }\n"
    for name, text in (
        ("host.c", checks.replace("ENTRY", data["entry"])),
        ("own.c", f"int {own_symbol('launch', '')}(void) {{ return 0; }}\n"),
    ):
        (folder / "own").mkdir(exist_ok=True)
        (folder / "own" / name).write_text(text)
    subprocess.run(["gcc", "-c", "-fPIC", "own/own.c", "-o", "own.o"], cwd=folder, check=True)
    data |= {"exported": "launch", "opaque": opaque}
    unit = LoweredUnit.from_json(data, "own/host.c", {"sm_80": "own/sm_80"})
    module = machine.load(build(folder, plan("own", unit), objects=["own.o"]))
    for device in (0, 1):
        with current(machine, "cuCtxCreate_v2", device):
            module["own"](on_cuda((5,), device=device))
            assert machine.log[-2:] == [f"push cuda:{device}", f"pop cuda:{device}"]
            before = len(machine.log)
            with tvm_ffi.use_raw_stream(tvm_ffi.device(f"cuda:{device}"), 0xF007):
                module["own"](on_cuda((5,), device=device))
            assert machine.log[before:] == [], "it stays where it is"


# ---- images in files of their own


@pytest.fixture(scope="module")
def split(folder: Path) -> Path:
    """The library of the kernel without its images."""
    return library_of(folder, *scale().variants, archs=ARCHS, split=True)


def provide(module: Any, images: Path, *installed: str) -> list[tuple[Any, ...]]:
    """Have the images of some archs found in a folder; the questions that are asked for them."""
    asked: list[tuple[Any, ...]] = []

    def find(variant: str, archs: str, device: int, capability: int) -> str:
        asked.append((variant, archs, device, capability))
        arch = next((arch for arch in archs.split() if arch in installed), "")
        return f"{arch} {images / arch}.cubin" if arch else " none of them is here"

    module["kw_set_provider"](tvm_ffi.convert(find))
    return asked


@pytest.fixture
def images(folder: Path, split: Path) -> Path:
    return folder / "scale" / "default" / "cuda"


@pytest.mark.parametrize(
    ("capability", "suitable", "installed", "expected"),
    [
        (80, "sm_80 compute_80", ARCHS, "sm_80"),
        (90, "sm_90a sm_90 compute_80", ARCHS, "sm_90a"),
        (90, "sm_90a sm_90 compute_80", ("compute_80", "sm_80"), "compute_80"),
        (103, "sm_100f compute_80", ("sm_100f",), "sm_100f"),
        (90, "sm_90a sm_90 compute_80", ("sm_80", "sm_100f"), None),
    ],
)
def test_the_provider_is_asked_for_what_suits_best_first(
    machine, images, split, capability, suitable, installed, expected
):
    machine.set(capability=capability)
    module, x = machine.load(split), on_cuda((5,))
    asked = provide(module, images, *installed)
    assert machine.log == [] and asked == []
    if expected:
        module["scale"](x, x, 1, 1, 1)
        module["scale"](x, x, 1, 1, 1)
        assert machine.calls("load") == [expected] and asked == [("default", suitable, 0, capability)]
        assert module["kw_supported"](2, 0) == ""
        return
    for attempt in (lambda: module["scale"](x, x, 1, 1, 1), lambda: module["kw_preload"](2, 0)):
        with pytest.raises(RuntimeError, match=r"^kernel 'scale': none of them is here$"):
            attempt()
    assert module["kw_supported"](2, 0) == "kernel 'scale': none of them is here" and machine.calls("load") == []


def test_a_device_that_nothing_suits_is_refused_without_asking(machine: Machine, images: Path, split: Path) -> None:
    machine.set(capability=75)
    module, x = machine.load(split), on_cuda((5,))
    asked = provide(module, images, *ARCHS)
    with pytest.raises(RuntimeError, match=r"is an sm_75, and variant default was built for sm_80, sm_90, "):
        module["scale"](x, x, 1, 1, 1)
    assert asked == []


def test_a_provider_that_waits_for_other_threads_holds_nobody_up(machine: Machine, images: Path, split: Path) -> None:
    module, together = machine.load(split), threading.Barrier(4)

    def find(variant: str, archs: str, device: int, capability: int) -> str:
        together.wait(120)  # all four are in here at once, so none of them holds a lock
        return f"sm_80 {images / 'sm_80.cubin'}"

    module["kw_set_provider"](tvm_ffi.convert(find))
    tensors = [on_cuda((5,), device=number % 2) for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda x: module["scale"](x, x, 1, 1, 1), tensors))
    assert machine.calls("load") == ["sm_80"] and len(machine.calls("launch")) == 4
    assert len(machine.calls("push")) == 2 + 4, "functions are looked up once on each device"


def test_a_provider_is_kept_until_there_is_another_one(machine: Machine, images: Path, split: Path) -> None:
    module = machine.load(split)

    def find(*_: object) -> str:
        return " none"

    alive = weakref.ref(find)
    module["kw_set_provider"](tvm_ffi.convert(find))
    del find
    gc.collect()
    with pytest.raises(RuntimeError, match=r"^kernel 'scale': none$"):  # also a text as short as this one is told
        module["kw_preload"](2, 0)
    assert alive() is not None
    provide(module, images)
    gc.collect()
    assert alive() is None


def test_an_image_gets_a_zero_behind_it(machine: Machine, tmp_path: Path, split: Path) -> None:
    """The stand-in reads an image up to a zero, as the driver does with PTX."""
    machine.set(capability=120)
    x = on_cuda((5,))
    for size in (63, 64, 65, 4096):
        (tmp_path / "compute_80.cubin").write_bytes(b"x" * size)
        module = machine.load(split)
        provide(module, tmp_path, "compute_80")
        module["scale"](x, x, 1, 1, 1)
    assert machine.calls("load") == ["x" * size for size in (63, 64, 65, 4096)]


# ---- what other modules use of it


def test_no_event_stays_where_one_stream_waits_for_another(machine: Machine, library: Path) -> None:
    module = machine.load(library)
    alive = ctypes.CDLL(str(machine.driver)).standin_events
    module["kw_order"](0, 0x50, 0x70)
    assert alive() == 0
    for fail in ("cuEventRecord=700", "cuStreamWaitEvent=700"):
        machine.set(fail=fail)
        with pytest.raises(RuntimeError, match="kernel 'scale': making stream 0x70 of cuda:0 wait for stream 0x50"):
            module["kw_order"](0, 0x50, 0x70)
        assert alive() == 0 and machine.log[-1] == "pop cuda:0"


def test_a_function_for_xla_keeps_the_one_that_it_calls_while_it_lives(machine: Machine, library: Path) -> None:
    def call(number: int) -> int:
        return number + 1

    alive = weakref.ref(call)
    made = machine.load(library)["kw_for_xla"](tvm_ffi.convert(call))
    del call
    gc.collect()
    assert made(1) == 2
    del made
    gc.collect()
    assert alive() is None


# ---- drivers


@pytest.mark.parametrize(
    ("toolkit", "driver"), [(0, "525 (CUDA 12.0)"), (12080, "525 (CUDA 12.0)"), (13000, "580 (CUDA 13.0)")]
)
def test_the_driver_to_install_is_one_that_runs_the_device_code(machine, folder, monkeypatch, toolkit, driver):
    module, x = machine.load(library_of(folder, *scale().variants, toolkit=toolkit)), on_cuda((5,))
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", "libm.so.6")
    older = f"the CUDA driver is too old: it has no cuInit\n  remedy: install driver {driver} or newer"
    with pytest.raises(RuntimeError, match=re.escape(older)):
        module["scale"](x, x, 1, 1, 1)
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", "libnone.so.7")
    number = driver.split()[0]
    with pytest.raises(RuntimeError, match=re.escape(f"\n  remedy: install the NVIDIA driver ({number} or newer)")):
        module["scale"](x, x, 1, 1, 1)


# ---- what needs a process: memory that begins with nothing, forks, and locks that are never given back

PROGRAM = """
import os, signal, sys, threading
sys.modules["torch"] = None  # tvm-ffi would import it, which takes seconds
import tvm_ffi
sys.path[:0] = sys.argv[2:]
from support.launcher_build import FakeTensor
from support.moments import held
module = tvm_ffi.load_module(sys.argv[1])
def array(size=5, dtype=(2, 16, 1)):
    return tvm_ffi.from_dlpack(FakeTensor((size,), dtype, device=(2, 0)))
x = array()
def call():
    module["scale"](x, x, 1, 1, 1)
def on(handle):
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), handle):
        return module["scale"](array(1000), 1, 1, 1)
def ask():
    print(module["kw_supported"](2, 0), flush=True)
def in_child(work):
    if os.fork():
        assert os.wait()[1] == 0
        return
    signal.alarm(300)  # against a hang
    try:
        work()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
"""


def alone(library: Path, code: str) -> str:
    """What the code prints in a process of its own, in which no thread waits for a lock for ever."""
    paths = [Path(__file__).parents[1], *(path for path in sys.path if path)]
    command = [sys.executable, "-c", PROGRAM + code, str(library), *map(str, paths)]
    variables = os.environ | {"LD_PRELOAD": str(library.parent / "locks.so")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


FORKED = "kernel 'scale': CUDA was used before this process was forked, and does not survive that\n"


def test_a_child_that_was_forked_while_cuda_starts_gets_an_exception_and_does_not_hang(machine, library):
    """Another thread is in cuInit and has the lock, which a question takes in the child."""
    code = f"""
with held({str(machine.hold("cuInit"))!r}, call):
    in_child(ask)
    in_child(call)
"""
    text = alone(library, code)
    assert text.startswith(FORKED) and text.count(FORKED) == 2
    assert machine.calls("init") == [""] and len(machine.calls("launch")) == 1


def test_no_failure_leaves_the_lock_locked(machine: Machine, library: Path, direct: Path) -> None:
    code = f"""
large = tvm_ffi.load_module({str(direct)!r})
fails = ["cuInit=1", "cuDeviceGetCount=1", "cuDevicePrimaryCtxRetain=1", "cuLibraryLoadData=1"]
fails += ["cuLibraryGetKernel=1", "cuKernelSetAttribute=1"]
for fail in [*fails, ""]:
    os.environ["STANDIN_FAIL"] = fail
    for work in (ask, call, lambda: large["direct"](x, 1, 60000)):
        try:
            work()
        except RuntimeError as error:
            print(error)
"""
    alone(library, code)
    assert [launch.split()[0] for launch in machine.calls("launch")] == [
        "scale_kernel",
        "scale_kernel",
        "direct_kernel",
    ]


def test_a_thread_that_asks_for_less_shared_memory_leaves_another_one_what_it_has(
    machine: Machine, direct: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = tmp_path / "waits"
    os.mkfifo(waits)
    monkeypatch.setenv("LOCKS_PIPE", str(waits))
    code = f"""
start = lambda shared: module["direct"](x, 1, shared)
start(0)
less = threading.Thread(target=start, args=(50000,))
with held({str(machine.hold("cuKernelSetAttribute"))!r}, lambda: start(60000)):
    less.start()
    os.close(os.open({str(waits)!r}, os.O_RDONLY))
less.join()
"""
    alone(direct, code)
    assert machine.calls("set") == ["direct_kernel attribute 8 to 60000 on cuda:0"]
    assert len(machine.calls("launch")) == 3


def test_libraries_share_memory_also_if_one_without_cuda_code_was_loaded_first(machine, folder, library, steps):
    body = "BEGIN (void)tensor, (void)argument; END"
    unit = c_unit(folder, body, signature("nothing", [tensor("x", "float16", ["n"])], symbols={"n": "int32"}))
    code = f"""
nothing, module, other = (module, *map(tvm_ffi.load_module, {[str(library), str(steps)]!r}))
kept = [on(7), other["two_steps"](array(100, (2, 32, 1)))]
try:
    nothing["nothing"](kept[0])
except ValueError as error:
    print(error)
"""
    printed = alone(build(folder, plan("nothing", unit)), code)
    assert printed.startswith("kernel 'nothing': it cannot run on cuda:0: it was built for llvm (x86-64) only\n")
    assert machine.calls("pool") == ["1 of cuda:0", "1 keeps 0xffffffffffffffff"]
    assert {line.partition(" from ")[2] for line in machine.calls("allocate")} == {"pool 1 of cuda:0"}


def test_of_two_threads_that_make_a_pool_at_once_the_first_wins(machine: Machine, library: Path) -> None:
    code = f"""
kept = []
with held({str(machine.hold("cuMemPoolCreate"))!r}, lambda: kept.append(on(7))):
    kept.append(on(8))
"""
    alone(library, code)
    pools = ["1 of cuda:0", "1 keeps 0xffffffffffffffff", "2 of cuda:0", "2 keeps 0xffffffffffffffff"]
    assert machine.calls("pool") == pools and machine.calls("destroy") == ["pool 2"]
    streams = ("0x8", "0x7")
    assert machine.calls("allocate") == [f"2000 in stream {stream} from pool 1 of cuda:0" for stream in streams]
