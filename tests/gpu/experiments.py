"""What only a GPU can show, as small programs: order of work, life of memory, graphs, PTX, contexts, compilers.

``trials.py`` has the commands ``list``, ``run`` and ``all``. Each experiment says in a regular expression what is
expected, and in words what it got. ``KERNELWRIGHT_TEST_PACKAGES`` is the folder of the packages ``kw_kernels`` and
``gpu_probes``; beside it are the folders of its variants (see ``pack.py``). ``KERNELWRIGHT_TEST_DEVICE=cpu`` tries on
the CPU what can run there, and ``standin`` what can with the driver that stands in for NVIDIA's.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from devices import LIBRARIES, Device, Plain, named, packages
from trials import RIGHT, Experiment, Program, main, run_one, said, verdict

COUNT = 1 << 20
"""Elements of most arrays."""

FEW = 4096
"""Elements of arrays for ``late``, where a thread works long for each: more would fill the whole GPU with that."""

# ---- what they share


def kernels_of(backend: str, package: str = "kw_kernels", folder: Path | None = None) -> Any:
    """The kernels of a package, through a backend."""
    sys.path.insert(0, str(folder or packages()))
    return importlib.import_module(f"{package}.backends.{backend}")


def full(value: float, count: int = COUNT) -> np.ndarray:
    """An array of one value."""
    return np.full(count, value, np.float32)


# ---- the order of outputs and inputs


CONSUMERS = dict.fromkeys(("plain", "jax"), ("torch", "jax", "cupy")) | {"cupy": ("torch", "jax")}
"""Library of the inputs -> those that take the outputs. Of CuPy's own arrays CuPy orders no two streams."""


def order_of_outputs(device: Device, backend: str, source: str) -> str:
    """Other libraries take an output at once, while its stream still sleeps in front of the kernel."""
    saxpy = kernels_of(backend).saxpy
    found = []
    for number, consumer in enumerate(CONSUMERS[source], start=2):
        x, y = device.make(source, full(number)), device.make(source, full(1))
        del_me = saxpy(0.0, x, y)  # what it leaves in memory is likely to be where the next output is
        device.wait()
        del del_me
        stream = device.stream() if backend in ("cython", "cuda_core") and source == "plain" else None
        device.sleep(stream)
        made = saxpy(2.0, x, y) if stream is None else saxpy(2.0, x, y, stream=stream)
        found.append(f"{consumer}: {verdict(device.read(consumer, made), 2 * number + 1)}")
        device.wait()
    return "; ".join(found)


def current_stream(device: Device, backend: str, library: str) -> str:
    """The inputs come late on the current stream of their library; nothing else orders the kernel behind them."""
    saxpy = kernels_of(backend).saxpy
    x, z = device.make(library, full(1)), device.make(library, full(0))
    if library == "cupy":
        with device.cupy_stream() as handle:
            device.sleep(handle)
            y = x * 2
            saxpy(1.0, y, x, z)
    else:
        stream = device.stream()
        with device.on(stream):
            device.sleep(stream)
            y = x * 2
            saxpy(1.0, y, x, z)
    return verdict(device.values(z), 3)


def given_stream(device: Device, backend: str, library: str, leave_out: bool) -> str:
    """A stream is given, with outputs or without, while the inputs come late on that stream."""
    saxpy = kernels_of(backend).saxpy
    x, z = device.tensor(full(1)), device.tensor(full(0))
    device.wait()
    stream = device.stream()
    with device.on(stream):
        device.sleep(stream)
        y = x * 2
    passed = [Plain(y), Plain(x)] if library == "plain" else [y, x]
    made = saxpy(1.0, *passed, *([] if leave_out else [z]), stream=stream)
    return verdict(device.values(made if leave_out else z), 3)


def life_of_inputs(device: Device, backend: str, library: str) -> str:
    """An input is dropped after the call, and its memory used again, before the kernel has read it."""
    late = kernels_of(backend, "gpu_probes").late
    x = device.make(library, full(5, FEW))
    late(x, 1)
    device.wait()
    made = late(x, device.spin)
    del x
    others = [device.make_now(library, full(7, FEW)) for _ in range(4)]
    result = verdict(device.values(made), 5)
    del others
    return result


# ---- graphs


def graph_call(device: Device, backend: str, what: str) -> tuple[Any, Callable[[], Any], Any, Any, Callable[..., Any]]:
    """The kernel, the call to capture, its input, its output or None, and the values expected of an input."""
    if what in ("small", "outputs left out"):
        kernel = kernels_of(backend).saxpy
        x, expected = device.tensor(full(1)), lambda values: values * 2 + values
    else:
        name = "wide" if what == "over 48 kB shared" else "staged"
        kernel = getattr(kernels_of(backend, "gpu_probes"), name)
        x = device.tensor(np.arange(2 * 16384, dtype=np.float32).reshape(2, -1) if name == "wide" else full(1))
        expected = (lambda values: values[:, ::-1]) if name == "wide" else (lambda values: (values + 1) * 3)
    z = None if what == "outputs left out" else device.tensor(np.zeros(tuple(x.shape), np.float32))
    inputs = (2.0, x, x) if what in ("small", "outputs left out") else (x,)
    outputs = () if z is None else (z,)
    return kernel, lambda: kernel(*inputs, *outputs), x, z, expected


def capture(device: Device, backend: str, what: str, is_loaded: bool) -> str:
    """A call is captured, and the graph replayed with other inputs."""
    kernel, call, x, z, expected = graph_call(device, backend, what)
    if is_loaded:
        kernel.preload(f"{device.kind}:0")
    device.wait()
    replay, returned = device.captured(call)
    results = []
    for factor in (2, 3):
        x.mul_(factor)
        replay()
        device.wait()
        seen = device.values(returned if z is None else z)
        results.append(verdict(seen, expected(x.cpu().numpy())))
    return RIGHT if results == [RIGHT, RIGHT] else "; ".join(results)


# ---- PTX


REFUSED = {"damaged": 218, "newer": 222}
"""What the driver says of PTX that it cannot compile: CUDA_ERROR_INVALID_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION."""


REFUSAL = r"RuntimeError: kernel 'staged': (loading compute_80|finding the device function \w+ in compute_80 failed)"
"""How such an error begins. The driver may compile when the code is loaded, or when its first function is looked up."""


def with_ptx(device: Device, backend: str, variant: str) -> str:
    """A package that has PTX only: the driver compiles it, or refuses it."""
    touched = kernels_of(backend, "gpu_probes", packages().parent / "variants" / variant).staged
    if variant in REFUSED:
        device.refuse(REFUSED[variant])
    x = device.tensor(full(1))
    return verdict(device.values(touched(x)), 6)


def with_ptx_warm(device: Device, backend: str) -> str:
    """The same in a second process, which finds the driver's cache filled by the first one."""
    first = run_one(PROGRAM, f"PTX only, cold, {backend}", {"CUDA_CACHE_PATH": os.environ["CUDA_CACHE_PATH"]})
    return f"first: {first['got']}; second: {with_ptx(device, backend, 'ptx')}"


# ---- contexts, threads, processes


def no_context(device: Device, backend: str) -> str:
    """The device code is loaded before anything else has used CUDA, and PyTorch comes afterwards."""
    saxpy = kernels_of(backend).saxpy
    saxpy.preload(f"{device.kind}:0")
    return in_this_thread(device, saxpy)


def in_this_thread(device: Device, saxpy: Any) -> str:
    """A plain call."""
    x, z = device.tensor(full(1)), device.tensor(full(0))
    saxpy(2.0, x, x, z)
    return verdict(device.values(z), 3)


def in_a_thread(device: Device, backend: str) -> str:
    """The first call is in a thread that has no current context."""
    saxpy = kernels_of(backend).saxpy
    x, z = device.tensor(full(1)), device.tensor(full(0))
    device.wait()
    said_there: list[str] = []
    thread = threading.Thread(target=lambda: said_there.append(said(lambda: str(saxpy(2.0, x, x, z)))))
    thread.start()
    thread.join()
    return verdict(device.values(z), 3) if said_there == ["None"] else said_there[0]


def foreign_context(device: Device, backend: str) -> str:
    """Another context of the same device is current, and stays so; the arrays are of the primary one."""
    import ctypes

    saxpy = kernels_of(backend).saxpy
    x, z = device.tensor(full(1)), device.tensor(full(0))
    device.wait()
    driver = ctypes.CDLL("libcuda.so.1")
    foreign, current = ctypes.c_void_p(), ctypes.c_void_p()
    status = driver.cuCtxCreate_v2(ctypes.byref(foreign), 0, 0)
    if status:
        return f"cuCtxCreate failed with {status}"
    result = said(lambda: str(saxpy(2.0, x, x, z)))
    driver.cuCtxGetCurrent(ctypes.byref(current))
    kept = current.value == foreign.value
    driver.cuCtxDestroy_v2(foreign)
    if result != "None":
        return result
    return f"{verdict(device.values(z), 3)}; the context is {'as before' if kept else 'another one'}"


class Bare:
    """What an array has exported, once, so that PyTorch is not asked: after a fork it refuses before a kernel can."""

    def __init__(self, array: Any) -> None:
        self.device = array.__dlpack_device__()
        self.exported = array.__dlpack__(stream=-1)

    def __dlpack_device__(self) -> Any:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        return self.exported


def after_fork(device: Device, backend: str, is_used: bool) -> str:
    """A child process calls the kernel, which its parent has used before the fork, or has not.

    When tvm-ffi is imported, it asks PyTorch for GPUs, after which PyTorch refuses to use one in a forked process; but
    not if it counts them without CUDA.
    """
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    saxpy = kernels_of(backend).saxpy
    if is_used:
        x, z = device.tensor(full(1)), device.tensor(full(0))
        saxpy(2.0, x, x, z)
        device.wait()
        passed = [Bare(array) if backend == "cuda_core" else array for array in (x, x, z)]
    read, write = os.pipe()
    child = os.fork()
    if not child:
        work = (lambda: str(saxpy(2.0, *passed))) if is_used else (lambda: in_this_thread(device, saxpy))
        os.write(write, said(work)[:4000].encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    return text


# ---- compilers


def torch_compile(device: Device, mode: str, is_loaded: bool) -> str:
    """A compiled program with the kernel between PyTorch's own operators, called several times."""
    import torch

    saxpy = kernels_of("torch").saxpy
    if is_loaded:
        saxpy.preload(f"{device.kind}:0")

    def step(x: Any, y: Any) -> Any:
        return saxpy(0.5, x * 2, y) + 1

    more: dict[str, Any] = {"mode": mode} if device.kind == "cuda" else {"backend": "aot_eager"}
    compiled = torch.compile(step, fullgraph=True, **more)
    results = []
    for number in range(5):
        x, y = device.tensor(full(number)), device.tensor(full(10 * number))
        results.append(verdict(device.values(compiled(x, y).clone()), number + 10 * number + 1))
    return RIGHT if set(results) == {RIGHT} else "; ".join(results)


def jax_jit(device: Device, way: str) -> str:
    """A kernel that writes its input, in a jitted program; the input is given away, kept, or used again in it."""
    import jax

    double = kernels_of("jax", "gpu_probes").double
    donated = (0,) if way == "donated" else ()

    @functools.partial(jax.jit, donate_argnums=donated)
    def step(x: Any) -> Any:
        return double(x + 0) + x if way == "used again" else double(x)

    results = []
    for number in (1, 2, 3):
        x = device.make("jax", full(number))
        made = step(x)
        results.append(verdict(device.values(made), number * (3 if way == "used again" else 2)))
        if way != "donated":
            results.append(verdict(device.values(x), number))
    return RIGHT if set(results) == {RIGHT} else "; ".join(results)


def jax_chain(device: Device) -> str:
    """A jitted program of many calls between JAX's own operations."""
    import jax

    saxpy = kernels_of("jax").saxpy

    @jax.jit
    def steps(x: Any) -> Any:
        for _ in range(20):
            x = saxpy(1.0, x * 1, x) - x
        return x

    return verdict(device.values(steps(device.make("jax", full(4)))), 4)


def stream_after_jax(device: Device) -> str:
    """A call of JAX's in the same thread leaves the stream of the next call as it is: PyTorch's current one."""
    x = device.make("jax", full(1))
    device.values(kernels_of("jax").saxpy(1.0, x, x))
    return current_stream(device, "tvm_ffi", "torch")


# ---- the list


def ordered(*words: str) -> str:
    return "; ".join(f"{word}: {RIGHT}" for word in words)


def _orders() -> dict[str, Experiment]:
    found = {}
    for backend in ("tvm_ffi", "cython", "cuda_core"):
        cuda = backend == "cuda_core"
        for source in ("plain", "jax", "cupy"):
            run = functools.partial(order_of_outputs, backend=backend, source=source)
            name = f"order of outputs, {backend}, inputs of {source}"
            found[name] = Experiment(run, ordered(*CONSUMERS[source]), cuda)
        for library in LIBRARIES[backend]:
            run = functools.partial(life_of_inputs, backend=backend, library=library)
            found[f"life of inputs, {backend}, {library}"] = Experiment(run, only_cuda=cuda)
        for library in ("torch",) if backend == "tvm_ffi" else ("torch", "cupy"):
            run = functools.partial(current_stream, backend=backend, library=library)
            found[f"current stream, {backend}, {library}"] = Experiment(run, only_cuda=cuda)
    for backend in ("cython", "cuda_core"):
        for library in ("torch", "plain"):
            run = functools.partial(given_stream, backend=backend, library=library, leave_out=True)
            expected = rf"{RIGHT}|ValueError: .*stream.*"
            found[f"a stream and no outputs, {backend}, {library}"] = Experiment(run, expected, backend == "cuda_core")
        run = functools.partial(given_stream, backend=backend, library="torch", leave_out=False)
        found[f"a stream and outputs, {backend}"] = Experiment(run, only_cuda=backend == "cuda_core")
    run = functools.partial(current_stream, backend="torch", library="torch")
    found["current stream, torch, torch"] = Experiment(run)
    return found


def _graphs() -> dict[str, Experiment]:
    found = {}
    for backend in ("tvm_ffi", "cython", "cuda_core", "torch"):
        for what in ("small", "over 48 kB shared", "workspace", "outputs left out"):
            for is_loaded in (True, False):
                run = functools.partial(capture, backend=backend, what=what, is_loaded=is_loaded)
                expected = RIGHT if is_loaded else rf"{RIGHT}|RuntimeError: kernel .*preload.*"
                name = f"capture, {'preloaded' if is_loaded else 'first call'}, {what}, {backend}"
                found[name] = Experiment(run, expected, backend == "cuda_core")
    return found


def _ptx() -> dict[str, Experiment]:
    found = {}
    for backend in ("tvm_ffi", "cuda_core"):
        for name, variant, expected in (
            ("cold", "ptx", RIGHT),
            ("damaged", "damaged", rf"{REFUSAL}.*remedy.*"),
            ("too new", "newer", rf"{REFUSAL}.*driver.*remedy.*"),
            ("altered", "altered", r"(ImportError|RuntimeError): .*altered.*"),
        ):
            run = functools.partial(with_ptx, backend=backend, variant=variant)
            found[f"PTX only, {name}, {backend}"] = Experiment(run, expected, only_cuda=True)
        warm = functools.partial(with_ptx_warm, backend=backend)
        expected = f"first: {RIGHT}; second: {RIGHT}"
        found[f"PTX only, warm, {backend}"] = Experiment(warm, expected, only_cuda=True)
    return found


def _contexts() -> dict[str, Experiment]:
    found = {}
    for backend in ("tvm_ffi", "cython", "cuda_core"):
        cuda = backend == "cuda_core"
        found[f"no context, {backend}"] = Experiment(functools.partial(no_context, backend=backend), only_cuda=cuda)
        found[f"a new thread, {backend}"] = Experiment(functools.partial(in_a_thread, backend=backend), only_cuda=cuda)
        foreign = functools.partial(foreign_context, backend=backend)
        expected = f"{RIGHT}; the context is as before"
        found[f"a foreign context, {backend}"] = Experiment(foreign, expected, only_cuda=True)
        unused = functools.partial(after_fork, backend=backend, is_used=False)
        found[f"a fork before the first use, {backend}"] = Experiment(unused, only_cuda=cuda)
        used = functools.partial(after_fork, backend=backend, is_used=True)
        refusal = r"RuntimeError: kernel '.*fork.*" if backend == "cuda_core" else r"RuntimeError: .*fork.*"
        found[f"a fork after use, {backend}"] = Experiment(used, refusal, only_cuda=True)
    return found


def _compilers() -> dict[str, Experiment]:
    found = {}
    for mode in ("default", "reduce-overhead"):
        for is_loaded in (True, False):
            run = functools.partial(torch_compile, mode=mode, is_loaded=is_loaded)
            name = f"torch.compile, {mode}, {'preloaded' if is_loaded else 'first call'}"
            found[name] = Experiment(run, limit_s=150, only_cuda=mode != "default")  # the CPU knows one mode
    for way in ("donated", "kept", "used again"):
        found[f"jax.jit, an input that is written, {way}"] = Experiment(functools.partial(jax_jit, way=way))
    found["jax.jit, a chain of calls"] = Experiment(jax_chain)
    found["the stream after a call of JAX"] = Experiment(stream_after_jax)
    return found


EXPERIMENTS = {**_orders(), **_graphs(), **_contexts(), **_compilers(), **_ptx()}


# ---- which of them run here


ON_STANDIN = (capture, with_ptx, no_context, in_a_thread, after_fork)
"""What can be called where nothing computes."""


@functools.cache
def built_backends() -> tuple[str, ...]:
    """The backends that the packages were built for."""
    manifest = packages() / "kw_kernels" / "manifest.json"
    return tuple(json.loads(manifest.read_text())["backends"] if manifest.exists() else LIBRARIES)


def can_run(experiment: Experiment) -> bool:
    """Whether this device can do an experiment; where none is real, only the backends that were built are tried."""
    words = experiment.run.keywords if isinstance(experiment.run, functools.partial) else {}
    backend, backends = words.get("backend", "tvm_ffi"), built_backends()
    if named() == "cuda":
        return True
    if named() == "cpu":
        return not experiment.only_cuda and backend in backends
    function = experiment.run.func if isinstance(experiment.run, functools.partial) else experiment.run
    return function in ON_STANDIN and backend in backends and backend in ("tvm_ffi", "cuda_core")


PROGRAM = Program(__file__, EXPERIMENTS, can_run)

if __name__ == "__main__":
    sys.exit(main(PROGRAM, sys.argv[1:]))
