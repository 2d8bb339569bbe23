"""The CUDA half of the launcher, against a stand-in for the driver that writes down what it is asked for.

Kernels are lowered by TVM; no device code is compiled: an image is the name of its arch, which the stand-in repeats.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from gate import held
from kernelwright.library.plan import KernelPlan, LoweredUnit
from launcher_build import (
    OPTIMISED,
    FakeTensor,
    build,
    c_unit,
    cuda_unit,
    lower,
    plan,
    scalar,
    signature,
    tensor,
)

STANDIN = Path(__file__).parent.parent / "standin" / "cuda.c"
ARCHS = ("sm_80", "sm_90", "sm_90a", "sm_100f", "compute_80")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Werror",
        str(STANDIN),
        "-o",
        str(folder / "libstandin.so"),
    ]
    subprocess.run(command, check=True)
    (folder / "locks.c").write_text(LOCKS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "locks.c", "-o", "locks.so"], cwd=folder, check=True)
    return folder


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


class Machine:
    """A machine with the stand-in driver, and what that was asked for.

    A library's state is for one machine, so each machine loads copies of its own.
    """

    def __init__(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._tmp_path = tmp_path
        self._patch = monkeypatch
        self.driver = folder / "libstandin.so"
        self.log_file = tmp_path / "log"
        monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", str(self.driver))
        monkeypatch.setenv("STANDIN_LOG", str(self.log_file))

    def set(self, **variables: object) -> None:
        for name, value in variables.items():
            self._patch.setenv(f"STANDIN_{name.upper()}", str(value))

    def hold(self, function: str) -> Path:
        """Put a gate in front of a function of the driver; its path, for ``held``."""
        gate = self._tmp_path / f"gate of {function}"
        self.set(hold=f"{function}={gate}")
        return gate

    def load(self, library: Path) -> Any:
        copy = self._tmp_path / f"{len(list(self._tmp_path.iterdir()))}_{library.name}"
        shutil.copy(library, copy)
        return tvm_ffi.load_module(str(copy))

    @property
    def log(self) -> list[str]:
        return self.log_file.read_text().splitlines() if self.log_file.exists() else []

    def calls(self, name: str) -> list[str]:
        return [line.removeprefix(name).strip() for line in self.log if line.startswith(name)]


@pytest.fixture
def machine(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(folder, tmp_path, monkeypatch)


def on_cuda(shape: Sequence[int], dtype: tuple[int, int, int] = (2, 16, 1), device: int = 0) -> Any:
    return tvm_ffi.from_dlpack(FakeTensor(shape, dtype, device=(2, device)))


# ---- kernels


def scale_function() -> Any:
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle, alpha: T.float32, beta: T.float16, shift: T.int64):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float16", align=2)
        y = T.match_buffer(y_handle, (n,), "float16", align=2)
        for i in T.thread_binding((n + 127) // 128, thread="blockIdx.x"):
            for j in T.thread_binding(128, thread="threadIdx.x"):
                with T.sblock("y"):
                    k = T.axis.spatial(n, i * 128 + j)
                    T.where(i * 128 + j < n)
                    y[k] = x[k] * T.cast(alpha, "float16") + beta + T.cast(shift, "float16")

    return main


def two_steps_function() -> Any:
    """Two launches with a temporary buffer between them."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float32", align=4)
        y = T.match_buffer(y_handle, (n,), "float32", align=4)
        middle = T.alloc_buffer((n,), "float32")
        for i in T.thread_binding(n, thread="blockIdx.x"):
            for _ in T.thread_binding(1, thread="threadIdx.x"):
                with T.sblock("middle"):
                    k = T.axis.spatial(n, i)
                    middle[k] = x[k] + T.float32(1)
        for i in T.thread_binding(n, thread="blockIdx.x"):
            for _ in T.thread_binding(1, thread="threadIdx.x"):
                with T.sblock("y"):
                    k = T.axis.spatial(n, i)
                    y[k] = middle[k]

    return main


def shared_function(elements: int) -> Any:
    """A kernel whose blocks have dynamic shared memory."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle):
        x = T.match_buffer(x_handle, (2, elements), "float32", align=4)
        for i in T.thread_binding(2, thread="blockIdx.x"):
            with T.sblock("block"):
                b = T.axis.spatial(2, i)
                T.reads(x[b, 0:elements])
                T.writes(x[b, 0:elements])
                own = T.alloc_buffer((elements,), "float32", scope="shared.dyn")
                for j in T.thread_binding(32, thread="threadIdx.x"):
                    for k in range(elements // 32):
                        with T.sblock("own"):
                            e = T.axis.spatial(elements, k * 32 + j)
                            T.reads(x[b, e])
                            T.writes(own[e])
                            own[e] = x[b, e]
                for j in T.thread_binding(32, thread="threadIdx.x"):
                    for k in range(elements // 32):
                        with T.sblock("x"):
                            e = T.axis.spatial(elements, k * 32 + j)
                            T.reads(own[elements - 1 - e])
                            T.writes(x[b, e])
                            x[b, e] = own[elements - 1 - e]

    return main


@pytest.fixture(scope="module")
def scale(folder: Path) -> KernelPlan:
    arguments = [tensor("x", "float16", ["n"]), tensor("y", "float16", ["n"], output=True)]
    arguments += [scalar("alpha", "float32"), scalar("beta", "float16"), scalar("shift", "int64")]
    data = signature("scale", arguments, target="cuda", arch="sm_80", symbols={"n": "int32"})
    return plan("scale", cuda_unit(folder, scale_function(), data, ARCHS), outputs=["y"])


def only(kernel: KernelPlan, archs: Sequence[str]) -> KernelPlan:
    """The kernel with only some of its images."""
    (variant,) = kernel.variants
    (unit,) = variant.units
    images = {arch: unit.images[arch] for arch in archs}
    return replace(kernel, variants=(replace(variant, units=(replace(unit, images=images),)),))


@pytest.fixture(scope="module")
def library(folder: Path, scale: KernelPlan) -> Path:
    return build(folder, only(scale, ["sm_80"]), extra=OPTIMISED).rename(folder / "scale_only_sm_80.so")


@pytest.fixture(scope="module")
def two_steps(folder: Path) -> Path:
    arguments = [tensor("x", "float32", ["n"]), tensor("y", "float32", ["n"], output=True)]
    data = signature("two_steps", arguments, target="cuda", arch="sm_80", symbols={"n": "int32"})
    unit = cuda_unit(folder, two_steps_function(), data, ["sm_80"])
    return build(folder, plan("two_steps", unit, outputs=["y"]), extra=OPTIMISED)


def shared_library(folder: Path, elements: int) -> Path:
    name = f"shared{elements}"
    data = signature(name, [tensor("x", "float32", [2, elements])], target="cuda", arch="sm_80")
    if not (folder / f"{name}.so").exists():
        build(folder, plan(name, cuda_unit(folder, shared_function(elements), data, ["sm_80"])))
    return folder / f"{name}.so"


# ---- launches


def test_a_launch_passes_dims_stream_and_typed_parameters(machine: Machine, library: Path, scale: KernelPlan) -> None:
    letters = {"handle": "p", "float32": "f", "float16": "h", "int32": "i", "int64": "l"}
    machine.set(parameters="".join(letters[dtype] for dtype in scale.units[0].device_kernels[0].params))
    module, x = machine.load(library), on_cuda((1000,))
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0x5150):
        assert module["scale"](x, x, 1.5, -2, 2**40) is None
    (launch,) = machine.calls("launch")
    head, parameters = launch.split(" parameters ")
    assert head == "scale_kernel sm_80 grid 8 1 1 block 128 1 1 shared 0 stream 0x5150 on cuda:0"
    # The numbers in some order; -2 as float16 is 0xc000.
    assert sorted(parameters.split()) == sorted(["0x10000", "0x10000", "1.5", "0xc000", "1000", str(2**40)])


def test_the_default_stream_is_that_of_the_environment(machine: Machine, library: Path) -> None:
    module, x = machine.load(library), on_cuda((1,))
    module["scale"](x, x, 1, 1, 1)
    assert "stream 0 " in machine.calls("launch")[0].replace("(nil)", "0").replace("0x0", "0")


def test_a_launch_is_in_the_stream_of_its_device(machine: Machine, library: Path) -> None:
    module, x = machine.load(library), on_cuda((1,), device=1)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0x50), tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:1"), 0x60):
        module["scale"](x, x, 1, 1, 1)
    assert machine.calls("launch")[0].endswith("stream 0x60 on cuda:1")


def test_the_device_of_a_call_is_not_that_of_another_threads_call(machine: Machine, two_steps: Path) -> None:
    gate, module = machine.hold("cuLaunchKernelEx"), machine.load(two_steps)
    on = [on_cuda((100,), (2, 32, 1), device=device) for device in (0, 1)]
    with held(gate, lambda: module["two_steps"](on[0], on[0])):  # before the first of its two launches
        module["two_steps"](on[1], on[1])
    assert [launch[-6:] for launch in machine.calls("launch")] == ["cuda:1", "cuda:1", "cuda:0", "cuda:0"]


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
    host, image = Path("direct", "host.c"), Path("direct", "sm_80.cubin")
    (folder / "direct").mkdir()
    (folder / host).write_text(DIRECT.replace("ENTRY", data["entry"]))
    (folder / image).write_text("sm_80")
    unit = LoweredUnit.from_json(data, str(host), {"sm_80": str(image)})
    return build(folder, plan("direct", unit, outputs=["y"]))


def test_a_launch_may_be_as_large_as_the_driver_can_be_told(machine: Machine, direct: Path) -> None:
    module, x = machine.load(direct), on_cuda((5,))
    module["direct"](x, 2**32 - 1, 0)
    (launch,) = machine.calls("launch")
    assert launch.startswith("direct_kernel sm_80 grid 4294967295 1 1 block 1 1 1 shared 0 ")
    for grid, shared, wrong in [(2**32, 0, 2**32), (2**32 + 1, 0, 2**32 + 1), (-1, 0, -1), (1, 2**32, 2**32)]:
        message = f"kernel 'direct': device function direct_kernel would be launched with a dimension of {wrong}$"
        with pytest.raises(ValueError, match=message):
            module["direct"](x, grid, shared)
    assert len(machine.calls("launch")) == 1


def test_a_launch_that_fails_leaves_no_context_behind(machine: Machine, library: Path, two_steps: Path) -> None:
    x, wide = on_cuda((5,)), on_cuda((5,), (2, 32, 1))
    machine.set(fail="cuLaunchKernelEx=1")
    with pytest.raises(RuntimeError, match="launching device function"):
        machine.load(library)["scale"](x, x, 1, 1, 1)
    assert machine.log[-2:] == ["push cuda:0", "pop cuda:0"]
    machine.set(fail="cuMemAllocFromPoolAsync=1")
    with pytest.raises(RuntimeError, match="allocating a workspace"):
        machine.load(two_steps)["two_steps"](wide, wide)
    assert len(machine.calls("push")) == len(machine.calls("pop"))


def test_a_launch_with_an_empty_grid_is_skipped(machine: Machine, library: Path) -> None:
    module, x = machine.load(library), on_cuda((0,))
    module["scale"](x, x, 1, 1, 1)
    assert machine.calls("launch") == []


def test_the_primary_context_is_made_current_for_the_launch_only(machine: Machine, library: Path) -> None:
    module, x = machine.load(library), on_cuda((5,), device=1)
    module["scale"](x, x, 1, 1, 1)
    log = [line.split(" grid")[0] for line in machine.log]
    loading = ["push cuda:1", "load sm_80", "pop cuda:1"]
    assert log == ["init", *loading, "push cuda:1", "launch scale_kernel sm_80", "pop cuda:1"]


def test_a_current_context_of_the_device_is_left_alone(machine: Machine, library: Path, folder: Path) -> None:
    module, x = machine.load(library), on_cuda((5,))
    driver = ctypes.CDLL(str(folder / "libstandin.so"))
    context = ctypes.c_void_p()
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxPushCurrent_v2(context)
    try:
        module["scale"](x, x, 1, 1, 1)
        assert machine.calls("push") == ["cuda:0"], "ours"
        module["scale"](*[on_cuda((5,), device=1)] * 2, 1, 1, 1)
        assert machine.calls("push")[1:] == ["cuda:1", "cuda:1"]
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))


@pytest.fixture
def foreign(folder: Path) -> Iterator[None]:
    """A context of the application's own on cuda:0 is current."""
    driver = ctypes.CDLL(str(folder / "libstandin.so"))
    context = ctypes.c_void_p()
    driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
    driver.cuCtxPushCurrent_v2(context)
    yield
    driver.cuCtxPopCurrent_v2(ctypes.byref(context))


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_default_stream_is_that_of_the_primary_context(machine: Machine, library: Path, stream: int) -> None:
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), stream):
        machine.load(library)["scale"](on_cuda((5,)), on_cuda((5,)), 1, 1, 1)
    (launch,) = machine.calls("launch")
    assert launch.endswith(f"stream {stream and hex(stream)} on cuda:0")


@pytest.mark.usefixtures("foreign")
def test_a_stream_of_the_applications_own_context_keeps_it(machine: Machine, library: Path) -> None:
    module, x = machine.load(library), on_cuda((5,))
    module["kw_preload"](2, 0)
    before = len(machine.log)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0xF007):
        module["scale"](x, x, 1, 1, 1)
    (launch,) = machine.log[before:]
    assert launch.endswith("stream 0xf007 on cuda:0 in a context of its own")


@pytest.mark.usefixtures("foreign")
def test_host_code_of_the_authors_runs_in_the_context_of_its_stream(machine: Machine, folder: Path) -> None:
    data = signature("own", [tensor("x", "float16", ["n"])], target="cuda", arch="sm_80", symbols={"n": "int64"})
    checks = "int32_t ENTRY(void *self, void *arguments, int32_t count, void *result) { return 0; }\n"
    for name, text in (
        ("host.c", checks.replace("ENTRY", data["entry"])),
        ("own.c", "int __tvm_ffi_launch(void) { return 0; }\n"),
    ):
        (folder / "own").mkdir(exist_ok=True)
        (folder / "own" / name).write_text(text)
    subprocess.run(["gcc", "-c", "-fPIC", "own/own.c", "-o", "own.o"], cwd=folder, check=True)
    unit = LoweredUnit.from_json({**data, "exported": "launch"}, "own/host.c", {"sm_80": "own/sm_80"})
    module = machine.load(build(folder, plan("own", unit), objects=["own.o"]))
    module["own"](on_cuda((5,)))
    assert machine.log[-2:] == ["push cuda:0", "pop cuda:0"]
    before = len(machine.log)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0xF007):
        module["own"](on_cuda((5,)))
    assert machine.log[before:] == [], "it stays where it is"


@pytest.mark.usefixtures("foreign")
def test_outputs_have_to_be_passed_in_a_stream_of_another_context(machine: Machine, library: Path) -> None:
    module, x = machine.load(library), on_cuda((5,))
    expected = "its output would be made in a stream of another context of cuda:0 than the primary one\n"
    expected += "  remedy: pass the outputs"
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0xF007), pytest.raises(RuntimeError, match=expected):
        module["scale"](x, 1, 1, 1)
    assert machine.calls("allocate") == []


@pytest.mark.usefixtures("foreign")
def test_code_is_loaded_in_the_primary_context(machine: Machine, library: Path) -> None:
    machine.load(library)["kw_preload"](2, 0)
    assert machine.log[-3:] == ["push cuda:0", "load sm_80", "pop cuda:0"]


def test_images_are_loaded_once_for_all_devices_and_threads(machine: Machine, library: Path) -> None:
    module = machine.load(library)
    tensors = [on_cuda((5,), device=number % 2) for number in range(8)]
    start = threading.Barrier(8)

    def work(x: Any) -> None:
        start.wait()
        for _ in range(20):
            module["scale"](x, x, 1, 1, 1)

    threads = [threading.Thread(target=work, args=(x,)) for x in tensors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert machine.calls("init") == [""] and machine.calls("load") == ["sm_80"]
    assert len(machine.calls("launch")) == 160


def test_preload_loads_and_a_call_then_only_launches(machine: Machine, library: Path) -> None:
    module, x = machine.load(library), on_cuda((5,))
    assert machine.log == [], "nothing is touched before it is needed"
    assert module["kw_supported"](2, 0) == ""
    assert machine.log == ["init"], "a question loads nothing"
    assert module["kw_preload"](2, 0) is None
    assert machine.calls("load") == ["sm_80"]
    before = len(machine.log)
    module["scale"](x, x, 1, 1, 1)
    assert [line.split()[0] for line in machine.log[before:]] == ["push", "launch", "pop"]


def test_a_kernel_with_two_launches_frees_its_temporary_memory(machine: Machine, two_steps: Path) -> None:
    module, x = machine.load(two_steps), on_cuda((100,), (2, 32, 1))
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 7):
        module["two_steps"](x, x)
    log = [" ".join(line.split()[:2]) for line in machine.log if not line.startswith(("push", "pop"))]
    launches = ["launch two_steps_kernel", "launch two_steps_kernel_1"]
    assert [line for line in log if not line.startswith("pool")] == [
        "init",
        "allocate 400",
        "load sm_80",
        *launches,
        "free in",
    ]
    (allocated,) = machine.calls("allocate")
    assert allocated.startswith("400 in stream 0x7 from pool") and machine.calls("free") == ["in stream 0x7"]


def test_temporary_memory_is_used_in_the_stream_of_its_device(machine: Machine, two_steps: Path) -> None:
    module, x = machine.load(two_steps), on_cuda((100,), (2, 32, 1), device=1)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0x50), tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:1"), 0x60):
        module["two_steps"](x, x)
    ((allocated, pool), (freed,)) = (machine.calls(name)[0].split(" from ") for name in ("allocate", "free"))
    assert (allocated, freed) == ("400 in stream 0x60", "in stream 0x60") and pool.endswith("cuda:1")


def test_temporary_memory_is_freed_when_a_launch_fails(machine: Machine, two_steps: Path) -> None:
    machine.set(fail="cuLaunchKernelEx=700")
    module, x = machine.load(two_steps), on_cuda((100,), (2, 32, 1))
    with pytest.raises(RuntimeError, match="ILLEGAL_ADDRESS"):
        module["two_steps"](x, x)
    assert len(machine.calls("allocate")) == len(machine.calls("free")) == 1


def test_a_device_without_memory_pools_is_served(machine: Machine, two_steps: Path) -> None:
    machine.set(pools=0)
    module, x = machine.load(two_steps), on_cuda((100,), (2, 32, 1))
    module["two_steps"](x, x)
    assert machine.calls("allocate") == ["400"] and machine.calls("free") == [""]


# ---- memory of outputs


def alone(library: Path, code: str) -> str:
    """What the code prints in a process of its own, where device memory begins with nothing."""
    return fork(library, MEMORY + code)


MEMORY = """
from contextlib import contextmanager
def on(handle, n=1000, device=0):
    x = tvm_ffi.from_dlpack(FakeTensor((n,), (2, 16, 1), device=(2, device)))
    with tvm_ffi.use_raw_stream(tvm_ffi.device(f"cuda:{device}"), handle):
        return module["scale"](x, 1, 1, 1)
MANY = 1 << 27  # 256 MiB of float16
"""


def memory_calls(machine: Machine) -> list[str]:
    """What was asked for that has to do with memory, pools by the order in which they were made."""
    kinds = ("pool", "allocate", "free", "wait", "launch", "use", "destroy")
    return [line.split(" scale_kernel")[0] for line in machine.log if line.startswith(kinds)]


def test_an_output_without_a_framework_is_allocated_in_the_launchs_stream_from_a_pool_that_keeps_its_memory(
    machine: Machine, library: Path
) -> None:
    assert alone(library, "y = on(7); print(y.shape, y.device, y.dtype)") == "(1000,) cuda:0 float16\n"
    made = ["pool 1 of cuda:0", "pool 1 keeps 0xffffffffffffffff"]
    assert memory_calls(machine) == [*made, "allocate 2000 in stream 0x7 from pool 1 of cuda:0", "launch"]


def test_an_output_has_room_for_elements_that_fill_no_byte(machine: Machine, direct: Path) -> None:
    made = machine.load(direct)["direct"](on_cuda((5,)), 1, 0)
    assert (made.dtype, [text.split()[0] for text in machine.calls("allocate")]) == ("int4", ["3"])


def test_all_libraries_of_a_process_share_one_pool_for_each_device(
    machine: Machine, library: Path, two_steps: Path
) -> None:
    code = f"""
other = tvm_ffi.load_module({str(two_steps)!r})
kept = [on(7), on(7, device=1), on(0)]
x = tvm_ffi.from_dlpack(FakeTensor((100,), (2, 32, 1), device=(2, 0)))
other["two_steps"](x, x)
kept.append(other["two_steps"](x))
"""
    alone(library, code)
    assert machine.calls("pool") == [
        "1 of cuda:0",
        "1 keeps 0xffffffffffffffff",
        "2 of cuda:1",
        "2 keeps 0xffffffffffffffff",
    ]
    pools = [line.partition(" from ")[2] for line in machine.calls("allocate")]
    assert pools == [f"pool {number}" for number in ("1 of cuda:0", "2 of cuda:1", *["1 of cuda:0"] * 4)]


def test_libraries_share_memory_also_if_one_without_cuda_code_was_loaded_first(
    machine: Machine, folder: Path, library: Path, two_steps: Path
) -> None:
    body = "BEGIN (void)tensor, (void)argument; END"
    unit = c_unit(folder, body, signature("nothing", [tensor("x", "float16", ["n"])], symbols={"n": "int32"}))
    code = f"""
nothing, module, other = (module, *map(tvm_ffi.load_module, {[str(library), str(two_steps)]!r}))
kept = [on(7)]
x = tvm_ffi.from_dlpack(FakeTensor((100,), (2, 32, 1), device=(2, 0)))
kept.append(other["two_steps"](x))
try:
    nothing["nothing"](kept[0])
except ValueError as error:
    print(error)
"""
    printed = alone(build(folder, plan("nothing", unit)), code)
    assert printed.startswith("kernel 'nothing': it cannot run on cuda:0: it was built for llvm (x86-64) only\n"), (
        printed
    )
    assert machine.calls("pool") == ["1 of cuda:0", "1 keeps 0xffffffffffffffff"]
    assert {line.partition(" from ")[2] for line in machine.calls("allocate")} == {"pool 1 of cuda:0"}


def test_the_end_of_an_output_asks_the_driver_for_nothing(machine: Machine, library: Path) -> None:
    code = """
y = on(7)
os.environ["STANDIN_DESTROYED"] = "7"
before = open(os.environ["STANDIN_LOG"]).read()
thread = threading.Thread(target=lambda kept: kept.clear(), args=([y],))
del y
thread.start()
thread.join()
print(open(os.environ["STANDIN_LOG"]).read() == before)
"""
    assert alone(library, code) == "True\n"


def test_what_outputs_leave_is_freed_once_the_device_has_done_its_work_in_a_stream_that_exists(
    machine: Machine, library: Path
) -> None:
    code = """
on(7, MANY, 1)
on(8, device=1)
os.environ["STANDIN_DESTROYED"] = "7"
kept = on(9, device=1)
kept = on(9, device=1)
"""
    alone(library, code)
    small = "allocate 2000 in stream {} from pool 1 of cuda:1".format
    assert memory_calls(machine)[3:] == [
        "launch",
        small("0x8"),
        "launch",
        "wait for cuda:1",
        "free in stream 0x9",
        "free in stream 0x9",
        small("0x9"),
        "launch",
        small("0x9"),
        "launch",
    ]


def test_outputs_that_exist_are_not_freed_by_the_wait_for_others(machine: Machine, library: Path) -> None:
    alone(library, "kept = on(7, MANY); on(7, MANY); on(7); print(kept.shape); last = on(7)")
    assert machine.calls("wait") == ["for cuda:0"] and machine.calls("free") == ["in stream 0x7"] * 2
    assert len(machine.calls("allocate")) == 4


def test_memory_that_ran_out_is_taken_back_from_outputs_that_have_ended(machine: Machine, library: Path) -> None:
    machine.set(memory=3000)
    code = """
on(7)
kept = on(8)
try:
    on(8)
except RuntimeError as error:
    print(error)
"""
    text = alone(library, code)
    assert text.startswith("kernel 'scale': allocating 2000 bytes for an output failed with CUDA_ERROR_OUT_OF_MEMORY")
    assert memory_calls(machine)[3:] == [
        "launch",
        "wait for cuda:0",
        "free in stream 0x8",
        "allocate 2000 in stream 0x8 from pool 1 of cuda:0",
        "launch",
    ]


def test_temporary_memory_is_taken_back_from_outputs_too(machine: Machine, library: Path, two_steps: Path) -> None:
    machine.set(memory=2100)
    code = f"""
other = tvm_ffi.load_module({str(two_steps)!r})
x = tvm_ffi.from_dlpack(FakeTensor((100,), (2, 32, 1), device=(2, 0)))
on(7)
other["two_steps"](x, x)
"""
    alone(library, code)
    assert machine.calls("free") == ["in stream 0", "in stream 0"] and machine.calls("wait") == ["for cuda:0"]


def test_memory_is_kept_where_the_device_cannot_be_waited_for(machine: Machine, library: Path) -> None:
    """Another thread captures a graph. Nothing is freed until that is over, and calls go on."""
    code = """
on(7, MANY)
on(7)
os.environ["STANDIN_CAPTURE"] = "5"
kept = on(7)
os.environ["STANDIN_CAPTURE"] = ""
on(7, MANY + 1)
kept = on(7)
"""
    alone(library, code)
    calls = memory_calls(machine)
    assert calls.count("launch") == 5 and calls.count("free in stream 0x7") == 3
    assert calls.index("wait for cuda:0") > [i for i, line in enumerate(calls) if line == "launch"][3]
    assert calls.index("free in stream 0x7") > calls.index("wait for cuda:0")


def test_a_wait_that_fails_is_made_again_after_as_much_memory_again(machine: Machine, library: Path) -> None:
    """Each one makes the capture of another thread fail."""
    code = """
on(7, MANY)
on(7)
os.environ["STANDIN_FAIL"] = "cuCtxSynchronize=900"
for _ in range(9):
    on(7)
os.environ["STANDIN_FAIL"] = ""
on(7, MANY)
on(7)
on(7)
"""
    alone(library, code)
    calls = [line.split()[0] for line in memory_calls(machine)[2:]]
    assert calls.index("wait") == 2 * 12 and calls.count("wait") == 1
    assert calls.count("free") == 12


def test_a_child_may_drop_outputs_of_its_parent(machine: Machine, library: Path) -> None:
    code = """
kept = [on(7, MANY), on(7)]
def call():
    kept.clear()
    on(7)
call_in_child()
"""
    assert alone(library, code).startswith(FORKED)
    assert machine.calls("free") == [] and machine.calls("wait") == []


def test_a_pool_that_cannot_be_made_is_an_exception_and_can_be_retried(machine: Machine, library: Path) -> None:
    code = """
for failing in ("cuMemPoolCreate=2", "cuMemPoolSetAttribute=1", ""):
    os.environ["STANDIN_FAIL"] = failing
    try:
        kept = on(7)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""
    text = "kernel 'scale': allocating 2000 bytes for an output failed with"
    known, unknown = "CUDA_ERROR_OUT_OF_MEMORY", "an unknown error"
    assert alone(library, code) == "".join(f"{text} {name} (no description)\n" for name in (known, unknown))
    assert memory_calls(machine)[:3] == ["pool 1 of cuda:0", "destroy pool 1", "pool 2 of cuda:0"]
    assert len(machine.calls("launch")) == 1


def test_of_two_threads_that_make_a_pool_at_once_the_first_wins(machine: Machine, library: Path) -> None:
    code = """
kept = []
with held(gate, lambda: kept.append(on(7))):
    kept.append(on(8))
"""
    alone(library, f"gate = {str(machine.hold('cuMemPoolCreate'))!r}\n" + code)
    assert memory_calls(machine) == [
        "pool 1 of cuda:0",
        "pool 1 keeps 0xffffffffffffffff",
        "allocate 2000 in stream 0x8 from pool 1 of cuda:0",
        "launch",
        "pool 2 of cuda:0",
        "pool 2 keeps 0xffffffffffffffff",
        "destroy pool 2",
        "allocate 2000 in stream 0x7 from pool 1 of cuda:0",
        "launch",
    ]


def test_an_output_of_a_failed_launch_waits_to_be_freed(machine: Machine, library: Path) -> None:
    code = """
os.environ["STANDIN_FAIL"] = "cuLaunchKernelEx=1"
for _ in range(2):
    try:
        on(7, MANY + 1)
    except RuntimeError:
        pass
"""
    alone(library, code)
    assert len(machine.calls("allocate")) == 2 and len(machine.calls("free")) == 1


def test_outputs_on_a_device_without_memory_pools_are_plain_memory(machine: Machine, library: Path) -> None:
    machine.set(pools=0)
    alone(library, "on(7, MANY + 1); kept = on(7)")
    assert memory_calls(machine) == [
        f"allocate {2 << 27 | 2}",
        "launch",
        "wait for cuda:0",
        "free",
        "allocate 2000",
        "launch",
    ]


# ---- graph capture


@pytest.fixture
def thread_mode(folder: Path) -> Callable[[int], int]:
    """Sets the capture mode of the thread, and returns the one before: 0 is global, 1 of the thread, 2 relaxed."""
    exchange = ctypes.CDLL(str(folder / "libstandin.so")).cuThreadExchangeStreamCaptureMode

    def swap(mode: int) -> int:
        value = ctypes.c_int(mode)
        exchange(ctypes.byref(value))
        return value.value

    return swap


@pytest.mark.parametrize("mode", [0, 1])
def test_a_first_call_may_be_captured_and_leaves_the_threads_mode(
    machine: Machine, folder: Path, thread_mode: Callable[[int], int], mode: int
) -> None:
    machine.set(capture=7)
    module = machine.load(shared_library(folder, 16384))
    thread_mode(mode)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 7):
        module["shared16384"](on_cuda((2, 16384), (2, 32, 1)))
    assert thread_mode(0) == mode
    assert machine.calls("load") == ["sm_80"] and "stream 0x7" in machine.calls("launch")[0]
    assert machine.calls("set") == ["shared16384_kernel attribute 8 to 65536 on cuda:0"]


@pytest.mark.parametrize(
    "fail", ["cuDevicePrimaryCtxRetain=2", "cuLibraryLoadData=200", "cuLibraryGetKernel=500", "cuKernelGetFunction=218"]
)
def test_a_first_call_that_fails_leaves_the_threads_mode(
    machine: Machine, library: Path, thread_mode: Callable[[int], int], fail: str
) -> None:
    machine.set(fail=fail)
    thread_mode(1)
    with pytest.raises(RuntimeError):
        machine.load(library)["scale"](on_cuda((5,)), on_cuda((5,)), 1, 1, 1)
    assert thread_mode(0) == 1


def test_what_a_capture_refuses_names_the_remedy(machine: Machine, library: Path) -> None:
    """The driver has no word for relaxed, so that loading is refused."""
    machine.set(capture=7, fail="cuThreadExchangeStreamCaptureMode=1")
    expected = (
        "kernel 'scale': opening cuda:0 failed with CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (no description)\n"
        "  a graph is being captured, which does not allow this\n"
        "  remedy: call preload before the capture, pass the outputs, and use the captured stream"
    )
    with pytest.raises(RuntimeError, match=re.escape(expected)):
        machine.load(library)["scale"](on_cuda((5,)), on_cuda((5,)), 1, 1, 1)


def test_an_innocent_thread_is_told_why_the_default_stream_is_refused(machine: Machine, library: Path) -> None:
    """Another thread captures a stream that is not non-blocking."""
    machine.set(capture=7, blocking=1)
    module, x = machine.load(library), on_cuda((1000,))
    expected = (
        "kernel 'scale': asking whether a stream of cuda:0 is captured failed with "
        "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT (no description)\n  another stream that is not non-blocking is being "
        "captured, and the default stream would wait for it\n  remedy: use a stream of your own"
    )
    with pytest.raises(RuntimeError) as raised:
        module["scale"](x, 1, 1, 1)
    assert str(raised.value) == expected
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 8):
        module["scale"](x, 1, 1, 1)
    assert len(machine.calls("launch")) == 1


def test_outputs_have_to_be_passed_in_a_capture(machine: Machine, library: Path) -> None:
    machine.set(capture=7)
    module, x = machine.load(library), on_cuda((1000,))
    expected = "its output would be part of the graph that is captured on cuda:0, and gone once that has run\n"
    expected += "  remedy: pass the outputs"
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 7):
        with pytest.raises(RuntimeError, match=re.escape(f"kernel 'scale': {expected}")):
            module["scale"](x, 1, 1, 1)
        module["scale"](x, x, 1, 1, 1)
    assert machine.calls("allocate") == [] and len(machine.calls("launch")) == 1


def test_temporary_memory_in_a_capture_is_the_graphs(machine: Machine, two_steps: Path) -> None:
    machine.set(capture=7)
    x = on_cuda((100,), (2, 32, 1))
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 7):
        machine.load(two_steps)["two_steps"](x, x)
    assert len(machine.calls("allocate")) == 1 and machine.calls("free") == ["in stream 0x7"]


def test_temporary_memory_in_a_capture_needs_memory_pools(machine: Machine, two_steps: Path) -> None:
    machine.set(capture=7, pools=0)
    module, x = machine.load(two_steps), on_cuda((100,), (2, 32, 1))
    expected = "kernel 'two_steps': it needs temporary memory, which a graph cannot hold on cuda:0: the device has no "
    expected += "memory pools\n  remedy: call it outside of graph capture"
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 7), pytest.raises(RuntimeError, match=re.escape(expected)):
        module["two_steps"](x, x)
    module["two_steps"](x, x)  # another thread captures
    assert machine.calls("allocate") == ["400"] and machine.calls("free") == [""]


# ---- which image


@pytest.mark.parametrize(
    ("built", "capability", "expected"),
    [
        (ARCHS, 80, "sm_80"),
        (ARCHS, 86, "sm_80"),
        (ARCHS, 90, "sm_90a"),
        (["sm_80", "sm_90", "compute_80"], 90, "sm_90"),
        (["sm_90a", "compute_80"], 91, "compute_80"),
        (ARCHS, 100, "sm_100f"),
        (ARCHS, 103, "sm_100f"),
        (["sm_80", "compute_80"], 90, "compute_80"),
        (ARCHS, 120, "compute_80"),
        (["sm_80", "sm_90"], 75, None),
        (["sm_80", "sm_90"], 120, None),
        (["sm_90a"], 91, None),
        (["sm_100f"], 110, None),
        (["compute_80"], 75, None),
    ],
)
def test_the_best_image_for_the_device_is_loaded(
    machine: Machine, folder: Path, scale: KernelPlan, built: Sequence[str], capability: int, expected: str | None
) -> None:
    machine.set(capability=capability)
    name = folder / f"scale_{'_'.join(built)}.so"
    if not name.exists():
        build(folder, only(scale, built)).rename(name)
    module, x = machine.load(name), on_cuda((5,))
    if expected:
        module["scale"](x, x, 1, 1, 1)
        assert machine.calls("load") == [expected]
        return
    listed = ", ".join(built)
    message = (
        f"kernel 'scale': cuda:0 is an sm_{capability}, and variant default was built for {listed}\n"
        f"  remedy: add sm_{capability} to its archs"
    )
    assert module["kw_supported"](2, 0) == message
    for attempt in (lambda: module["scale"](x, x, 1, 1, 1), lambda: module["kw_preload"](2, 0)):
        with pytest.raises(RuntimeError, match=re.escape(message)):
            attempt()


def choose(folder: Path, tmp_path: Path, archs: Sequence[str]) -> Callable[[int], int]:
    """The launcher's choice among archs, straight from C: capability -> index or -1."""
    from kernelwright.core.errors import Where
    from kernelwright.library.launcher import LAUNCHER
    from kernelwright.library.wrapper import _image
    from launcher_build import include_folders

    table = ", ".join(_image(arch, ".data = 0", Where()) for arch in archs)
    function = """
    int choose(int capability) {
      int best = -1, best_score = 0;
      for (int i = 0; i < (int)(sizeof images / sizeof images[0]); ++i) {
        int score = kw_suitability(&images[i], capability);
        if (score > best_score) best = i, best_score = score;
      }
      return best;
    }"""
    (tmp_path / "choose.c").write_text(
        f'#include "launcher.h"\nstatic const kw_image images[] = {{{table}}};{function}'
    )
    folders = [f"-I{item}" for item in (LAUNCHER, *include_folders())]
    subprocess.run(["gcc", "-shared", "-fPIC", *folders, "choose.c", "-o", "choose.so"], cwd=tmp_path, check=True)
    function_pointer: Callable[[int], int] = ctypes.CDLL(str(tmp_path / "choose.so")).choose
    return function_pointer


def test_the_order_of_preference_among_all_kinds_of_images(folder: Path, tmp_path: Path) -> None:
    archs = ["compute_80", "compute_90", "compute_90a", "compute_100f", "sm_80", "sm_86", "sm_90", "sm_90a"]
    archs += ["sm_100", "sm_100f", "sm_100a", "sm_103", "sm_103f", "sm_75"]
    chosen = choose(folder, tmp_path, archs)
    expected = {70: None, 75: "sm_75", 80: "sm_80", 86: "sm_86", 89: "sm_86", 90: "sm_90a", 100: "sm_100a"}
    expected |= {101: "sm_100f", 103: "sm_103", 107: "sm_103f", 110: "compute_90", 120: "compute_90"}
    found = {capability: chosen(capability) for capability in expected}
    assert {c: archs[i] if i >= 0 else None for c, i in found.items()} == expected


def test_ptx_with_a_suffix_is_for_its_devices_only(folder: Path, tmp_path: Path) -> None:
    archs = ["compute_80", "compute_90a", "compute_100f"]
    chosen = choose(folder, tmp_path, archs)
    assert [archs[chosen(capability)] for capability in (90, 91, 100, 103, 110)] == [
        "compute_90a",
        "compute_80",
        "compute_100f",
        "compute_100f",
        "compute_80",
    ]


# ---- images in files of their own


@pytest.fixture(scope="module")
def split(folder: Path, scale: KernelPlan) -> Path:
    """The library of the kernel without its images."""
    return build(folder, replace(scale, split=True)).rename(folder / "scale_split.so")


def provide(module: Any, images: Path, *installed: str) -> list[tuple[Any, ...]]:
    """Have the images of some archs found in a folder; the questions that are asked for them."""
    asked: list[tuple[Any, ...]] = []

    def find(variant: str, archs: str, device: int, capability: int) -> str:
        asked.append((variant, archs, device, capability))
        arch = next((arch for arch in archs.split() if arch in installed), "")
        ending = "ptx" if arch.startswith("compute") else "cubin"
        return f"{arch} {images / arch}.{ending}" if arch else " none of them is here"

    module["kw_set_provider"](tvm_ffi.convert(find))
    return asked


def images_of(folder: Path, kernel: KernelPlan) -> Path:
    return (folder / kernel.units[0].images["sm_80"]).parent


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
    machine: Machine,
    folder: Path,
    scale: KernelPlan,
    split: Path,
    capability: int,
    suitable: str,
    installed: Sequence[str],
    expected: str | None,
) -> None:
    machine.set(capability=capability)
    module, x = machine.load(split), on_cuda((5,))
    asked = provide(module, images_of(folder, scale), *installed)
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


def test_a_device_that_nothing_suits_is_refused_without_asking(machine: Machine, folder: Path, split: Path) -> None:
    machine.set(capability=75)
    module, x = machine.load(split), on_cuda((5,))
    asked = provide(module, folder, *ARCHS)
    with pytest.raises(RuntimeError, match=r"is an sm_75, and variant default was built for sm_80, sm_90, "):
        module["scale"](x, x, 1, 1, 1)
    assert asked == []


def test_a_provider_that_waits_for_other_threads_holds_nobody_up(
    machine: Machine, folder: Path, scale: KernelPlan, split: Path
) -> None:
    module = machine.load(split)
    images = images_of(folder, scale)
    together = threading.Barrier(4)

    def find(variant: str, archs: str, device: int, capability: int) -> str:
        together.wait(120)  # all four are in here at once, so none of them holds a lock
        return f"sm_80 {images / 'sm_80.cubin'}"

    module["kw_set_provider"](tvm_ffi.convert(find))
    tensors = [on_cuda((5,), device=number % 2) for number in range(4)]
    threads = [threading.Thread(target=module["scale"], args=(x, x, 1, 1, 1)) for x in tensors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert machine.calls("load") == ["sm_80"] and len(machine.calls("launch")) == 4
    assert len(machine.calls("push")) == 2 + 4, "functions are looked up once on each device"


def test_a_provider_is_kept_until_there_is_another_one(machine: Machine, folder: Path, split: Path) -> None:
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
    provide(module, folder)
    gc.collect()
    assert alive() is None


def test_an_image_gets_a_zero_behind_it(machine: Machine, tmp_path: Path, split: Path) -> None:
    """The stand-in reads an image up to a zero, as the driver does with PTX."""
    machine.set(capability=120)
    module, x = machine.load(split), on_cuda((5,))
    for size in (63, 64, 65, 4096):
        (tmp_path / "compute_80.ptx").write_bytes(b"x" * size)
        provide(module, tmp_path, "compute_80")
        copy = machine.load(split)
        provide(copy, tmp_path, "compute_80")
        copy["scale"](x, x, 1, 1, 1)
    assert machine.calls("load") == ["x" * size for size in (63, 64, 65, 4096)]


# ---- compressed images


@pytest.mark.parametrize(("version", "enough"), [(12030, False), (12040, True), (13000, True)])
def test_compressed_code_needs_a_driver_that_can_decompress_it(
    machine: Machine, folder: Path, scale: KernelPlan, version: int, enough: bool
) -> None:
    machine.set(version=version)
    library = folder / "scale_compressed.so"
    if not library.exists():
        build(folder, replace(only(scale, ["sm_80"]), driver=12040)).rename(library)
    module, x = machine.load(library), on_cuda((5,))
    if enough:
        module["scale"](x, x, 1, 1, 1)
        assert machine.calls("load") == ["sm_80"]
        return
    message = (
        "kernel 'scale': sm_80 of variant default is compressed, and needs a driver for CUDA 12.4 or newer; this one "
        "is for CUDA 12.3\n  remedy: install a newer NVIDIA driver, or compress it less, "
        "with compress = speed"
    )
    with pytest.raises(RuntimeError, match=re.escape(message)):
        module["scale"](x, x, 1, 1, 1)
    assert machine.calls("load") == []


def test_code_that_any_driver_takes_asks_for_no_version(machine: Machine, library: Path) -> None:
    machine.set(version=12000, fail="cuDriverGetVersion=999")
    module, x = machine.load(library), on_cuda((5,))
    module["scale"](x, x, 1, 1, 1)
    assert machine.calls("load") == ["sm_80"]


# ---- events


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


# ---- dynamic shared memory


def test_shared_memory_above_48_kib_is_asked_for_once_per_device(machine: Machine, folder: Path) -> None:
    module = machine.load(shared_library(folder, 16384))
    for device in (0, 0, 1):
        module["shared16384"](on_cuda((2, 16384), (2, 32, 1), device))
    assert machine.calls("set") == [f"shared16384_kernel attribute 8 to 65536 on cuda:{device}" for device in (0, 1)]
    assert all("shared 65536" in launch for launch in machine.calls("launch")) and len(machine.calls("launch")) == 3


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
    fork(direct, code)
    assert machine.calls("set") == ["direct_kernel attribute 8 to 60000 on cuda:0"]
    assert len(machine.calls("launch")) == 3


def test_shared_memory_up_to_48_kib_needs_no_asking(machine: Machine, folder: Path) -> None:
    module = machine.load(shared_library(folder, 8192))
    module["shared8192"](on_cuda((2, 8192), (2, 32, 1)))
    assert machine.calls("set") == [] and "shared 32768" in machine.calls("launch")[0]


@pytest.mark.parametrize(("static", "asks"), [(16384, False), (16385, True)])
def test_static_shared_memory_counts_towards_the_48_kib(
    machine: Machine, folder: Path, static: int, asks: bool
) -> None:
    machine.set(static=static)
    module = machine.load(shared_library(folder, 8192))
    for _ in range(2):
        module["shared8192"](on_cuda((2, 8192), (2, 32, 1)))
    asked = ["shared8192_kernel attribute 8 to 32768 on cuda:0"]
    assert machine.calls("set") == (asked if asks else []) and len(machine.calls("launch")) == 2


def test_more_shared_memory_than_the_device_has_is_refused(machine: Machine, folder: Path) -> None:
    machine.set(shared=66000, static=1000)
    module = machine.load(shared_library(folder, 16384))
    expected = (
        r"kernel 'shared16384': device function shared16384_kernel, grid \(2, 1, 1\), block \(32, 1, 1\), 65536 bytes "
    )
    expected += r"of dynamic shared memory, cuda:0 \(sm_80\): with 1000 bytes of static shared memory that is more "
    expected += r"than the 66000 bytes of a block on this device\n  remedy: call a variant with smaller tiles"
    with pytest.raises(RuntimeError, match=expected):
        module["shared16384"](on_cuda((2, 16384), (2, 32, 1)))


# ---- launch attributes


def test_clusters_and_launch_flags_become_attributes(machine: Machine, folder: Path, scale: KernelPlan) -> None:
    """TVM's host code is for a plain launch; the tables say that its second dimension is the cluster's."""
    (unit,) = scale.units
    (device,) = unit.device_kernels
    flags = ("tirx.use_programtic_dependent_launch", "tirx.use_cooperative_launch")
    device = replace(device, launch=("blockIdx.x", "clusterCtaIdx.x", *flags))
    odd = replace(unit, device_kernels=(device,), images={"sm_90a": unit.images["sm_90a"]})
    library = build(folder, replace(scale, variants=(replace(scale.variants[0], units=(odd,)),)))
    machine.set(capability=90)
    module, x = machine.load(library.rename(folder / "cluster.so")), on_cuda((1000,))
    module["scale"](x, x, 1, 1, 1)
    assert machine.calls("launch")[0].endswith("attribute 4: 128 attribute 6: 1 attribute 2: 1")


# ---- errors


def test_a_failed_launch_says_what_was_launched_where(machine: Machine, library: Path) -> None:
    machine.set(fail="cuLaunchKernelEx=700")
    module, x = machine.load(library), on_cuda((1000,))
    expected = (
        "kernel 'scale': launching device function scale_kernel, grid (8, 1, 1), block (128, 1, 1), 0 bytes of "
        "dynamic shared memory, cuda:0 (sm_80) failed with "
        "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)"
    )
    with pytest.raises(RuntimeError, match=re.escape(expected)):
        module["scale"](x, x, 1, 1, 1)


EARLIER = """
  it comes from earlier work on the device, of this kernel or of anything else
  remedy: restart the process, since CUDA cannot be used in it any more; with CUDA_LAUNCH_BLOCKING=1 in its \
environment the launch at fault raises the error"""


@pytest.mark.parametrize("status", [226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911])
def test_an_error_of_earlier_work_says_so(
    machine: Machine, library: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    machine.set(fail=f"cuLaunchKernelEx={status}")
    module, x = machine.load(library), on_cuda((5,))
    with pytest.raises(RuntimeError) as raised:
        module["scale"](x, x, 1, 1, 1)
    assert str(raised.value).endswith(")" + EARLIER)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(RuntimeError) as raised:
        module["scale"](x, x, 1, 1, 1)
    assert str(raised.value).endswith(")\n  remedy: restart the process, since CUDA cannot be used in it any more")


def test_an_error_of_this_launch_says_nothing_of_earlier_work(machine: Machine, library: Path) -> None:
    machine.set(fail="cuLaunchKernelEx=701")
    module, x = machine.load(library), on_cuda((5,))
    with pytest.raises(RuntimeError) as raised:
        module["scale"](x, x, 1, 1, 1)
    assert "remedy" not in str(raised.value)


@pytest.mark.parametrize(
    ("toolkit", "driver", "says"),
    [
        (
            13000,
            12080,
            "its device code was made with CUDA 13.0, and the driver is for CUDA 12.8\n"
            "  remedy: install an NVIDIA driver for CUDA 13.0 (580 or newer), or compile it with CUDA 12.8",
        ),
        (
            12040,
            12020,
            "its device code was made with CUDA 12.4, and the driver is for CUDA 12.2\n"
            "  remedy: install an NVIDIA driver for CUDA 12.4, or compile it with CUDA 12.2",
        ),
        (
            13000,
            13000,
            "its device code was made with CUDA 13.0, and the driver is for CUDA 13.0, which is new enough\n"
            "  remedy: install the package again: its device code may be damaged",
        ),
        (
            0,
            12080,
            "the driver is for CUDA 12.8\n  remedy: install a newer NVIDIA driver, or compile it with an older CUDA",
        ),
    ],
)
def test_device_code_that_the_driver_cannot_read_names_both_versions(
    machine: Machine, folder: Path, scale: KernelPlan, toolkit: int, driver: int, says: str
) -> None:
    library = folder / f"scale_made_with_{toolkit}.so"
    if not library.exists():
        build(folder, replace(only(scale, ["sm_80"]), toolkit=toolkit)).rename(library)
    machine.set(version=driver)
    module, x = machine.load(library), on_cuda((5,))
    places = {"cuLibraryLoadData": "loading sm_80 of variant default"}
    places |= dict.fromkeys(
        ("cuLibraryGetKernel", "cuKernelGetFunction"), "finding the device function scale_kernel in sm_80"
    )
    for call, doing in places.items():
        for status in (200, 209, 218, 222):
            machine.set(fail=f"{call}={status}")
            with pytest.raises(RuntimeError) as raised:
                module["scale"](x, x, 1, 1, 1)
            assert str(raised.value).startswith(f"kernel 'scale': {doing} failed with ")
            assert str(raised.value).endswith(f"\n  {says}")


@pytest.mark.parametrize(
    ("toolkit", "driver"), [(0, "525 (CUDA 12.0)"), (12080, "525 (CUDA 12.0)"), (13000, "580 (CUDA 13.0)")]
)
def test_the_driver_to_install_is_one_that_runs_the_device_code(
    machine: Machine, folder: Path, scale: KernelPlan, monkeypatch: pytest.MonkeyPatch, toolkit: int, driver: str
) -> None:
    library = folder / f"scale_made_with_{toolkit}.so"
    if not library.exists():
        build(folder, replace(only(scale, ["sm_80"]), toolkit=toolkit)).rename(library)
    module, x = machine.load(library), on_cuda((5,))
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", "libm.so.6")
    with pytest.raises(RuntimeError, match=re.escape(f"it has no cuInit\n  remedy: install driver {driver} or newer")):
        module["scale"](x, x, 1, 1, 1)
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", "libnone.so.7")
    number = driver.split()[0]
    with pytest.raises(RuntimeError, match=re.escape(f"\n  remedy: install the NVIDIA driver ({number} or newer)")):
        module["scale"](x, x, 1, 1, 1)


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("cuInit=100", "initialising CUDA failed with an unknown error"),
        ("cuDeviceGetCount=3", "counting CUDA devices failed"),
        ("cuDevicePrimaryCtxRetain=2", "opening cuda:0 failed"),
        ("cuLibraryLoadData=222", "loading sm_80 of variant default failed with CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        ("cuLibraryGetKernel=500", "finding the device function scale_kernel in sm_80 failed"),
    ],
)
def test_a_failure_of_the_driver_is_an_exception_and_can_be_retried(
    machine: Machine, library: Path, fail: str, message: str
) -> None:
    machine.set(fail=fail)
    module, x = machine.load(library), on_cuda((5,))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=re.escape(f"kernel 'scale': {message}")):
            module["scale"](x, x, 1, 1, 1)
    machine.set(fail="")
    module["scale"](x, x, 1, 1, 1)
    assert len(machine.calls("launch")) == 1


def test_a_failed_allocation_of_temporary_memory_is_an_exception(machine: Machine, two_steps: Path) -> None:
    machine.set(fail="cuMemAllocFromPoolAsync=2")
    module, x = machine.load(two_steps), on_cuda((100,), (2, 32, 1))
    with pytest.raises(RuntimeError, match="kernel 'two_steps': allocating a workspace of 400 bytes on cuda:0 failed"):
        module["two_steps"](x, x)


def test_a_machine_without_a_driver_gets_an_exception(machine: Machine, library: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", "libnone.so.7")
    module, x = machine.load(library), on_cuda((5,))
    expected = r"kernel 'scale': there is no CUDA driver: libnone.so.7: .*\n  remedy: install the NVIDIA driver"
    with pytest.raises(RuntimeError, match=expected):
        module["scale"](x, x, 1, 1, 1)
    assert "there is no CUDA driver" in module["kw_supported"](2, 0)


def test_a_driver_that_is_too_old_gets_an_exception(machine: Machine, library: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", "libm.so.6")
    module, x = machine.load(library), on_cuda((5,))
    with pytest.raises(
        RuntimeError, match="the CUDA driver is too old: it has no cuInit\n  remedy: install driver 525"
    ):
        module["scale"](x, x, 1, 1, 1)


def test_a_device_that_does_not_exist_is_refused(machine: Machine, library: Path) -> None:
    module, x = machine.load(library), on_cuda((5,), device=2)
    with pytest.raises(ValueError, match="kernel 'scale': there is no cuda:2, the process sees 2 CUDA devices"):
        module["scale"](x, x, 1, 1, 1)
    assert "there is no cuda:-1" in module["kw_supported"](2, -1)


def test_cpu_tensors_are_refused_by_a_kernel_for_cuda_only(machine: Machine, library: Path) -> None:
    x = np.zeros(5, "float16")
    expected = r"kernel 'scale': it cannot run on cpu: it was built for cuda \(sm_80\) only\n  remedy: .*add an arch"
    with pytest.raises(ValueError, match=expected):
        machine.load(library)["scale"](x, x, 1, 1, 1)


def test_tensors_on_different_devices_are_refused(machine: Machine, library: Path) -> None:
    module = machine.load(library)
    with pytest.raises(ValueError, match="device_id"):
        module["scale"](on_cuda((5,)), on_cuda((5,), device=1), 1, 1, 1)
    with pytest.raises(ValueError, match="device_type"):
        module["scale"](on_cuda((5,)), np.zeros(5, "float16"), 1, 1, 1)


FORK = """
import os, signal, sys, threading
sys.modules["torch"] = None  # tvm-ffi would import it, which takes seconds
import tvm_ffi
sys.path[:0] = sys.argv[2:]
from gate import held
from launcher_build import FakeTensor
module = tvm_ffi.load_module(sys.argv[1])
x = tvm_ffi.from_dlpack(FakeTensor((5,), (2, 16, 1), device=(2, 0)))
def call():
    module["scale"](x, x, 1, 1, 1)
def ask():
    print(module["kw_supported"](2, 0), flush=True)
def call_in_child():
    in_child(call, "called")
def in_child(work, done=""):
    if os.fork():
        assert os.wait()[1] == 0
        return
    signal.alarm(300)  # against a hang
    try:
        work()
        print(done, flush=True)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
"""


def fork(library: Path, code: str) -> str:
    """What the code prints that follows FORK in a process of its own, in which no thread waits for a lock for ever."""
    paths = [Path(__file__).parent, *(path for path in sys.path if path)]
    command = [sys.executable, "-c", FORK + code, str(library), *map(str, paths)]
    variables = os.environ | {"LD_PRELOAD": str(library.parent / "locks.so")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


FORKED = "kernel 'scale': CUDA was used before this process was forked, and does not survive that\n"


def test_a_child_that_was_forked_after_cuda_gets_an_exception(machine: Machine, library: Path) -> None:
    text = fork(library, "call(); call_in_child(); in_child(ask)")
    assert text.startswith(FORKED) and text.count(FORKED) == 2


def test_a_child_that_was_forked_while_cuda_starts_gets_an_exception_and_does_not_hang(
    machine: Machine, library: Path
) -> None:
    """Another thread is in cuInit and has the lock, which a question takes in the child."""
    code = """
with held(gate, call):
    in_child(ask)
    call_in_child()
"""
    text = fork(library, f"gate = {str(machine.hold('cuInit'))!r}\n" + code)
    assert text.startswith(FORKED) and text.count(FORKED) == 2
    assert machine.calls("init") == [""] and len(machine.calls("launch")) == 1


def test_no_failure_leaves_the_lock_locked(machine: Machine, folder: Path, library: Path) -> None:
    code = f"""
large = tvm_ffi.load_module({str(shared_library(folder, 16384))!r})
y = tvm_ffi.from_dlpack(FakeTensor((2, 16384), (2, 32, 1), device=(2, 0)))
fails = ["cuInit=1", "cuDeviceGetCount=1", "cuDevicePrimaryCtxRetain=1", "cuLibraryLoadData=1"]
fails += ["cuLibraryGetKernel=1", "cuKernelSetAttribute=1"]
for fail in [*fails, ""]:
    os.environ["STANDIN_FAIL"] = fail
    for work in (ask, call, lambda: large["shared16384"](y)):
        try:
            work()
        except RuntimeError as error:
            print(error)
"""
    fork(library, code)
    assert [launch.split()[0] for launch in machine.calls("launch")] == [
        "scale_kernel",
        "scale_kernel",
        "shared16384_kernel",
    ]


def test_a_child_that_was_forked_after_a_failed_start_gets_an_exception(machine: Machine, library: Path) -> None:
    machine.set(fail="cuInit=100")
    code = """
try:
    call()
except RuntimeError:
    call_in_child()
"""
    assert fork(library, code).startswith(FORKED)


def test_a_child_that_was_forked_before_cuda_can_use_it(machine: Machine, library: Path) -> None:
    code = """
driver = os.environ["KERNELWRIGHT_CUDA_DRIVER"]
os.environ["KERNELWRIGHT_CUDA_DRIVER"] = "libnone.so.7"
try:
    call()
except RuntimeError:
    os.environ["KERNELWRIGHT_CUDA_DRIVER"] = driver
    call_in_child()
"""
    assert fork(library, code) == "called\n"


# ---- several variants and targets in one library


def test_one_library_serves_cpu_and_cuda_and_two_cuda_variants(machine: Machine, folder: Path) -> None:
    from launcher_build import llvm_unit
    from tvm.script import tirx as T

    def define(dtype: str, cuda: bool) -> Any:
        blocks, threads = ("blockIdx.x", "threadIdx.x")

        @T.prim_func(s_tir=True)
        def on_cuda_(x_handle: T.handle):
            n = T.int32()
            x = T.match_buffer(x_handle, (n,), dtype, align=1)
            for i in T.thread_binding(n, thread=blocks):
                for _ in T.thread_binding(1, thread=threads):
                    with T.sblock("x"):
                        k = T.axis.spatial(n, i)
                        x[k] = x[k] + x[k]

        @T.prim_func(s_tir=True)
        def on_cpu(x_handle: T.handle):
            n = T.int32()
            x = T.match_buffer(x_handle, (n,), dtype, align=1)
            for i in range(n):
                with T.sblock("x"):
                    k = T.axis.spatial(n, i)
                    x[k] = x[k] + x[k]

        return on_cuda_ if cuda else on_cpu

    units = []
    for dtype in ("float32", "float16"):
        options: dict[str, Any] = {"slug": dtype, "symbols": {"n": "int32"}}
        arguments = [tensor("x", dtype, ["n"])]
        units.append(
            llvm_unit(folder, define(dtype, False), signature("double", arguments, arch="x86-64-v3", **options))
        )
        data = signature("double", arguments, target="cuda", arch="sm_80", **options)
        units.append(cuda_unit(folder, define(dtype, True), data, ["sm_80"]))
    double = machine.load(build(folder, plan("double", *units)))["double"]
    for dtype, code in (("float32", (2, 32, 1)), ("float16", (2, 16, 1))):
        x = np.arange(5, dtype=dtype)
        double(x)
        np.testing.assert_array_equal(x, 2 * np.arange(5, dtype=dtype))
        double(on_cuda((7,), code))
    assert len(machine.calls("launch")) == 2 and machine.calls("load") == ["sm_80", "sm_80"]


def test_sizes_may_be_called_like_macros(machine: Machine, folder: Path) -> None:
    """Host code in C has variables of these names."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        linux = T.int32()
        unix = T.int32()
        errno = T.int32()
        x = T.match_buffer(x_handle, (linux, unix), "float32", align=4)
        y = T.match_buffer(y_handle, (errno,), "float32", align=4)
        for i in T.thread_binding(linux + unix + errno, thread="blockIdx.x"):
            for j in T.thread_binding(1, thread="threadIdx.x"):
                with T.sblock("x"):
                    k = T.axis.spatial(linux, i + j)
                    x[k, 0] = y[0]

    arguments = [tensor("x", "float32", ["linux", "unix"]), tensor("y", "float32", ["errno"])]
    symbols = dict.fromkeys(["linux", "unix", "errno"], "int32")
    data = signature("sized", arguments, target="cuda", arch="sm_80", symbols=symbols)
    sized = machine.load(build(folder, plan("sized", cuda_unit(folder, main, data, ["sm_80"]))))["sized"]
    sized(on_cuda((3, 4), (2, 32, 1)), on_cuda((5,), (2, 32, 1)))
    assert "grid 12 1 1" in machine.calls("launch")[0]


def test_lowering_for_these_tests_finds_the_launch_parameters() -> None:
    _, (devices,), _ = lower(shared_function(16384), "entry", "shared", {"kind": "cuda", "arch": "sm_80"})
    tags = [[str(tag) for tag in f.attrs["tirx.kernel_launch_params"]] for f in devices.functions.values()]
    assert tags == [["blockIdx.x", "threadIdx.x", "tirx.use_dyn_shared_memory"]]
