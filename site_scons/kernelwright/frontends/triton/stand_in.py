"""What answers in place of a GPU while a program is recorded: a driver for Triton, and the part of PyTorch about CUDA.

Tensors stay on the CPU and say that they are on a GPU. Nothing is launched, so nobody reads what is in them. What the
program asks about the device is answered for one of the arch that is recorded. Written for Triton 3.9.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ...core.arch import arch_order, shared_memory
from ...core.errors import DefinitionError, Where
from ..cubin import usage_of
from .in_force import keep_in_force, replace

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

REGISTERS = 65536
"""Registers of a multiprocessor, from compute capability 5.0 on (CUDA C++ Programming Guide)."""

PLAIN_SHARED = 48 * KIB
"""Bytes of shared memory that a block can have without asking for more."""

LONG = 1e6
"""Milliseconds that everything seems to take, so that what measures repeats its measurement once only."""


ASKED = "__asked_the_stand_in__"
"""The attribute of modules that were imported with a stand-in in force."""


@dataclass(frozen=True)
class Device:
    """A GPU, by what programs ask for. The clocks are about those of such devices.

    Arguments:
        name: as CUDA has it.
        multiprocessors, threads: how many it has, and how many threads each of them can have at once.
        memory, cache: GiB of memory, and MiB of its second cache.
        clock, memory_clock: MHz.
        bus: bits of the bus to the memory.
    """

    name: str
    multiprocessors: int
    threads: int
    memory: int
    cache: int
    clock: int
    memory_clock: int
    bus: int


DEVICES: Mapping[str, Device] = {
    "sm_75": Device("Tesla T4", 40, 1024, 16, 4, 1590, 5001, 256),
    "sm_80": Device("NVIDIA A100-SXM4-80GB", 108, 2048, 80, 40, 1410, 1593, 5120),
    "sm_86": Device("NVIDIA A10", 72, 1536, 24, 6, 1695, 6251, 384),
    "sm_87": Device("Orin", 16, 1536, 64, 4, 1300, 3200, 256),
    "sm_89": Device("NVIDIA L40S", 142, 1536, 48, 96, 2520, 9001, 384),
    "sm_90a": Device("NVIDIA H100 80GB HBM3", 132, 2048, 80, 50, 1980, 2619, 5120),
    "sm_100a": Device("NVIDIA B200", 148, 2048, 180, 126, 1965, 3996, 7680),
    "sm_103a": Device("NVIDIA B300", 148, 2048, 275, 126, 1920, 3996, 8192),
    "sm_110a": Device("NVIDIA Thor", 20, 1536, 128, 32, 1575, 4266, 256),
    "sm_120a": Device("NVIDIA GeForce RTX 5090", 170, 1536, 32, 96, 2407, 14001, 512),
    "sm_121a": Device("NVIDIA GB10", 48, 1536, 128, 24, 2418, 4266, 256),
}
"""CUDA arch -> a device of that arch, whose answers a program gets."""


@contextlib.contextmanager
def standing_in(arch: str) -> Iterator[None]:
    """Have a stand-in answer in place of a GPU of an arch.

    Arguments:
        arch: one of :data:`DEVICES`.
    """
    from triton import knobs
    from triton.runtime.driver import driver

    with ExitStack() as stack:
        replace(stack, driver, "_active", _driver(arch))
        # Its cache is in the home folder, and would have times that nobody measured.
        stack.enter_context(knobs.cache.scope())
        knobs.cache.dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelwright-"))
        if importlib.util.find_spec("torch") is not None:
            _replace_torch(stack, arch)
        yield


@contextlib.contextmanager
def importing(arch: str, module: str, where: Where) -> Iterator[None]:
    """Have a stand-in answer while a build imports a module, which may ask for the GPU as it did when it was recorded.

    What the module launches is not compiled. What it compiles ahead is, because it may look at what that gives.

    Raises:
        DefinitionError: the module was imported before, without the stand-in.
    """
    from triton.runtime.jit import JITFunction

    known = sys.modules.get(module)
    if known is not None and not hasattr(known, ASKED):
        message = f"the definition file imports {module!r}, which has recorded functions, and which the build imports "
        message += "with answers for the GPU that it builds for"
        remedy = "do not import it there: put what both need into a module without functions of Triton"
        raise DefinitionError(message, where, remedy)
    compile_ahead = JITFunction._do_compile

    def compile_no_launch(function: Any, *asked: Any) -> Any:
        *_, is_ahead = asked
        return compile_ahead(function, *asked) if is_ahead else None

    before = {*sys.modules}
    try:
        with standing_in(arch), ExitStack() as stack:
            replace(stack, JITFunction, "_do_compile", compile_no_launch)
            yield
    finally:
        for name in {*sys.modules} - before:
            with contextlib.suppress(AttributeError):  # not everything there is a module
                setattr(sys.modules[name], ASKED, True)


class _Answers(SimpleNamespace):
    """Functions of a driver; what there is not is said in a sentence."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_unanswered(f"utils.{name}"))


def _unanswered(name: str) -> str:
    return f"{name} of Triton's driver has no answer without a GPU: do without it, or record on a GPU"


class _NoLauncher:
    """Stands in for Triton's launcher, and launches nothing."""

    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(self, *arguments: Any) -> None:
        pass


def _answers(arch: str) -> _Answers:
    """What Triton's driver has for a GPU of an arch in ``utils``."""
    capability = arch_order(arch)[0]

    def load_binary(name: str, binary: bytes, shared: int, device: int) -> tuple[Any, int, int, int, int]:
        usage = usage_of(binary, capability)[name]
        return None, 0, usage["registers"], usage["stack_bytes"] // 4, 1024  # Triton counts spills in words

    return _Answers(
        get_device_properties=lambda index=0: _triton_properties(arch),
        get_device_capability=lambda index=0: divmod(capability, 10),
        get_current_device=lambda: 0,
        set_current_device=lambda index: None,
        get_default_stream=lambda index=0: 0,
        is_stream_capturing=lambda stream=0: False,
        set_printf_fifo_size=lambda size: None,
        load_binary=load_binary,
        unload_module=lambda module: None,
    )


def measure_once(call: Callable[[], Any], quantiles: Sequence[float] | None = None, **_: Any) -> Any:
    """What benchmarks in place of Triton's: it calls once, and all calls seem to take equally long."""
    call()
    return LONG if quantiles is None else [LONG] * len(quantiles)


def _driver(arch: str) -> Any:
    """A driver whose only device is one of an arch."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase
    from triton.backends.nvidia.driver import ty_to_cpp

    capability = arch_order(arch)[0]

    class StandIn(DriverBase):  # type: ignore[misc]  # Triton has no types
        """Answers what Triton and programs ask before a launch."""

        utils = _answers(arch)
        launcher_cls = _NoLauncher

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(_unanswered(name))

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability, 32)

        def get_current_device(self) -> int:
            return 0

        def set_current_device(self, index: int) -> None:
            """There is one only."""

        def get_current_stream(self, index: int = 0) -> int:
            return 0

        def get_device_capability(self, index: int = 0) -> tuple[int, int]:
            return divmod(capability, 10)

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cuda", 0)

        def get_device_interface(self) -> Any:
            import torch

            return torch.cuda

        def map_python_to_cpp_type(self, ty: str) -> str:
            return str(ty_to_cpp(ty))

        def get_benchmarker(self) -> Callable[..., Any]:
            return measure_once

        def get_empty_cache_for_benchmark(self) -> None:
            """There is nothing to empty."""

        def clear_cache(self, cache: None) -> None:
            """There is nothing to clear."""

    return StandIn()


def _triton_properties(arch: str) -> dict[str, int]:
    """What Triton's drivers tell of a device; clocks are in kHz."""
    device = DEVICES[arch]
    return {
        "max_shared_mem": shared_memory(arch) or PLAIN_SHARED,
        "max_num_regs": REGISTERS,
        "multiprocessor_count": device.multiprocessors,
        "warpSize": 32,
        "sm_clock_rate": device.clock * 1000,
        "mem_clock_rate": device.memory_clock * 1000,
        "mem_bus_width": device.bus,
    }


def _torch_properties(arch: str) -> SimpleNamespace:
    """What PyTorch tells of a device."""
    device, (major, minor) = DEVICES[arch], divmod(arch_order(arch)[0], 10)
    largest = shared_memory(arch) or PLAIN_SHARED
    return SimpleNamespace(
        name=device.name,
        major=major,
        minor=minor,
        is_integrated=False,
        is_multi_gpu_board=False,
        multi_processor_count=device.multiprocessors,
        max_threads_per_multi_processor=device.threads,
        max_threads_per_block=1024,
        warp_size=32,
        regs_per_multiprocessor=REGISTERS,
        shared_memory_per_block=PLAIN_SHARED,
        shared_memory_per_block_optin=largest,
        shared_memory_per_multiprocessor=largest + KIB,  # CUDA keeps one for itself
        total_memory=device.memory * GIB,
        L2_cache_size=device.cache * MIB,
        clock_rate=device.clock * 1000,
        memory_clock_rate=device.memory_clock * 1000,
        memory_bus_width=device.bus,
    )


class _Idle:
    """Stands in for streams, events and graphs of PyTorch: there is nothing to wait for, and nothing to repeat."""

    cuda_stream = cuda_event = device_index = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def _nothing(self, *arguments: Any, **options: Any) -> None:
        """There is nothing to do."""

    synchronize = wait = wait_event = wait_stream = record = _nothing
    capture_begin = capture_end = replay = reset = pool = _nothing

    def record_event(self, event: Any = None) -> Any:
        return event or _Idle()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: _Idle) -> float:
        return LONG

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _Marks:
    """Stands in for NVTX, which nobody looks at."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_, **__: 0


def _replace_torch(stack: ExitStack, arch: str) -> None:
    """Have PyTorch answer for a GPU of an arch, and put on the CPU what a program puts on a GPU."""
    import torch

    properties = _torch_properties(arch)
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (properties.major, properties.minor),
        "get_device_properties": properties,
        "get_device_name": properties.name,
        "mem_get_info": (properties.total_memory, properties.total_memory),
        "is_bf16_supported": properties.major >= 8,
        "is_current_stream_capturing": False,
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0),
        **dict.fromkeys(("init", "set_device", "synchronize", "empty_cache", "ipc_collect", "set_rng_state")),
        **dict.fromkeys(("reset_peak_memory_stats", "set_stream", "set_per_process_memory_fraction")),
        **dict.fromkeys(("graph_pool_handle", "reset_accumulated_memory_stats", "memory_summary")),
    }
    for name, answer in answers.items():
        replace(stack, torch.cuda, name, lambda *_, answer=answer, **__: answer)
    for name in (
        *("Stream", "Event", "ExternalStream", "current_stream", "default_stream", "stream", "device"),
        *("CUDAGraph", "graph"),
    ):
        replace(stack, torch.cuda, name, type(name, (_Idle,), {}))  # PyTorch's compiler knows each by its class
    replace(stack, torch.cuda.nvtx, "_nvtx", _Marks())
    new_shared: Any = torch.UntypedStorage._new_shared  # for what workers of a DataLoader give back
    on_cpu = classmethod(lambda _, size, **options: new_shared(size, **{**options, "device": "cpu"}))
    replace(stack, torch.UntypedStorage, "_new_shared", on_cpu)
    replace(stack, torch.cuda, "default_generators", (torch.default_generator,))
    replace(stack, torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state())
    load = torch.load

    def load_on_cpu(file: Any, map_location: Any = None, *more: Any, **options: Any) -> Any:
        return load(file, "meta" if str(map_location) == "meta" else "cpu", *more, **options)

    replace(stack, torch, "load", load_on_cpu)
    set_default = torch.set_default_device
    replace(stack, torch, "set_default_device", lambda device: set_default(_on_cpu(device)))
    _set_variable(stack, "TORCHDYNAMO_DISABLE", "1")  # torch.compile would compile for the GPU
    mode, run_backward = _mode(), vars(torch.autograd)["_engine_run_backward"]

    def backward(*arguments: Any, **options: Any) -> Any:
        with mode:  # which is not in force in what is called through it, as Tensor.backward is
            return run_backward(*arguments, **options)

    replace(stack, torch.autograd, "_engine_run_backward", backward)
    keep_in_force(stack, mode)
    stack.enter_context(mode)


def _set_variable(stack: ExitStack, name: str, value: str) -> None:
    """Set a variable of the environment, until the stack is closed."""
    before = os.environ.get(name)
    os.environ[name] = value
    if before is None:
        stack.callback(os.environ.pop, name, None)
    else:
        stack.callback(os.environ.__setitem__, name, before)


def _mode() -> Any:
    """What PyTorch calls in place of each of its functions; it has a stack of such modes for each thread."""
    import torch
    from torch.overrides import TorchFunctionMode

    there = torch.device("cuda", 0)
    said: dict[Any, Callable[[Any], Any]] = {
        _getter("is_cuda"): lambda is_cuda: True,
        _getter("device"): lambda device: there if device.type == "cpu" else device,
        torch.Tensor.get_device: lambda index: max(index, 0),
    }

    products = (torch.mm, torch.bmm, torch.addmm, torch.baddbmm)

    class OnCpu(TorchFunctionMode):
        """Puts on the CPU what is to be on a GPU, and says of what is there that it is on a GPU."""

        def __torch_function__(
            self, function: Any, types: Any, arguments: tuple[Any, ...] = (), options: Any = None
        ) -> Any:
            options = dict(options or {})
            if function is torch.Tensor.cuda or function is torch.Tensor.pin_memory:
                return arguments[0]
            if function is torch.Tensor.record_stream:
                return None
            if "device" in options:
                options["device"] = _on_cpu(options["device"])
            options.pop("pin_memory", None)  # it needs a GPU
            if function in products and "out_dtype" in options:  # the CPU lacks these
                dtype = options.pop("out_dtype")
                arguments = tuple(each.to(dtype) if isinstance(each, torch.Tensor) else each for each in arguments)
            if function is torch.Tensor.to:
                arguments = (arguments[0], *map(_on_cpu, arguments[1:]))
            result = function(*arguments, **options)
            return said[function](result) if function in said else result

    return OnCpu()


def _getter(name: str) -> Any:
    """What PyTorch calls when an attribute of a tensor is read."""
    import torch

    return getattr(torch.Tensor, name).__get__


def _on_cpu(device: Any) -> Any:
    """The CPU in place of a GPU; everything else as it is."""
    import torch

    is_gpu = (isinstance(device, str) and device.split(":")[0] == "cuda") or (
        isinstance(device, int) and not isinstance(device, bool)
    )
    return "cpu" if is_gpu or (isinstance(device, torch.device) and device.type == "cuda") else device
