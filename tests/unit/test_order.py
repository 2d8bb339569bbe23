"""Streams of calls through the backends tvm_ffi, cython and cuda_core: what waits for what, on a driver that stands in.

The first part is the same for all three. Behind it is what only the first two do, which share a library.
"""

from __future__ import annotations

import copy
import ctypes
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from kernelwright.backends.plan import KernelPlan
from kernelwright.cuda import Scalar, Tensor
from kernelwright.runtime import cython_kernel
from kernelwright.runtime import kernel as tvm_ffi_kernel
from support.extension_build import Built, Loader, OnCuda, build_both, build_scale
from support.launched import declared, driver_of
from support.launcher_build import FakeTensor, c_unit, plan, scalar, signature, tensor
from support.launchers import LAUNCHERS, Kernel, Process, Variant, host_of, make_package
from support.project import ROOT, once

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jax_tvm_ffi = pytest.importorskip("jax_tvm_ffi")
jax_kernel = pytest.importorskip("kernelwright.runtime.jax_kernel")

BACKENDS = ("tvm_ffi", "cython")
LINE = re.compile(r"^(launch|record|wait|synchronize) .*?stream (\S+)(?: on cuda:(\d))?", re.M)


CYTHON_INIT = """\
import json
from pathlib import Path
from types import SimpleNamespace

from kernelwright.runtime import cython_kernel

here = Path(__file__).parent
files = {"verified": lambda name: here / "work" / name, "library": lambda name: here / f"work/{name}.so"}
loader = SimpleNamespace(package="acme", folder=here / "work", manifest=dict, **files)


def kernel(name):
    return cython_kernel.load(loader, name, json.loads((here / f"{name}.json").read_text()))


def call(kernel, *arguments, stream=None):
    return kernel(*arguments, stream=stream)
"""


def make_cython(root: Path, name: str, kernel: Kernel, plan: KernelPlan, archs: Sequence[str]) -> None:
    """A kernel that is called through an extension module."""
    (root / "__init__.py").write_text(CYTHON_INIT)
    for variant in kernel.variants:
        host_of(root / "work", variant, archs)
    build_both(root / "work", plan)


def scaling() -> Kernel:
    """A kernel for CUDA: x, [y], alpha."""
    x = Tensor("float32", "n")
    launch = declared("scale_kernel", "n", {"x": x, "y": x, "alpha": Scalar("float32")})
    return Kernel([Variant.of("scale", launch, outputs=["y"])])


# ---- what all of them do


@pytest.fixture(params=[*LAUNCHERS, "cython"])
def process(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Process:
    def make(folder: Path) -> None:
        launcher = make_cython if request.param == "cython" else request.param
        make_package(folder, {"scale": scaling()}, launcher=launcher)

    return Process(once(tmp_path_factory, f"order_{request.param}", make), driver_of(tmp_path_factory))


ORDER = """
import re, threading
scale, log = made.kernel("scale"), os.environ["STANDIN_LOG"]
def events():
    # what the driver was asked for since the last look, such as "launch 0x5"; the default stream has two handles
    text = open(log).read() if os.path.exists(log) else ""
    open(log, "w").close()
    found = re.findall(r"^(launch|record|wait|synchronize) (?:.*?stream (\\S+))?", text, re.M)
    said = (f"{what} {int(stream or '0', 16):#x}" if stream else what for what, stream in found)
    return " ".join(said).replace("0x1", "0x0")
def output(stream=None, x=None):
    return call(scale, x or on_cuda((8,)), 1.0, stream=stream)
def in_another_thread(work):
    made = []
    thread = threading.Thread(target=lambda: made.append(work()))
    thread.start()
    thread.join()
    return made[0]
class OfJax(FakeTensor):
    pass
OfJax.__module__ = "jaxlib._jax"
import sys
sys.modules["jaxlib"] = sys  # as if it had been imported
def of_jax():
    return OfJax((8,), device=(2, 0))
"""
TAKEN = {
    **{(0x50, 0x70): "record 0x50 wait 0x70", (0x50, 1): "record 0x50 wait 0x0", (0x50, 2): "record 0x50 wait 0x2"},
    **{(0, 0x70): "record 0x0 wait 0x70", (0, 2): "record 0x0 wait 0x2", (2, 1): "record 0x2 wait 0x0"},
    **{(2, 0x70): "record 0x2 wait 0x70", (0x50, None): "synchronize 0x50", (0, None): "synchronize 0x0"},
    **{(0x50, 0x50): "", (0, 1): "", (2, 2): "", (0x50, -1): ""},
}
"""Stream of the launch, and of who takes the output -> what the driver is asked for."""


def test_who_takes_an_output_waits_for_its_kernel(process: Process) -> None:
    code = f"""
for launched, taken in {[*TAKEN]}:
    y = output(launched)
    assert events() == f"launch {{launched:#x}}"
    for version, name in ((None, '"dltensor"'), ((1, 1), '"dltensor_versioned"')):
        assert name in repr(y.__dlpack__(stream=taken, max_version=version))
        print(events())
"""
    said = process.run(ORDER + code).split("\n")[:-1]
    assert dict(zip(TAKEN, zip(said[::2], said[1::2], strict=True), strict=True)) == {
        row: (expected, expected) for row, expected in TAKEN.items()
    }


def test_another_threads_default_stream_waits_for_the_device_and_what_is_no_stream_takes_nothing(process):
    code = """
for taken in (2, 0x70, None, -1):
    y = in_another_thread(lambda: output(2))
    events()
    y.__dlpack__(stream=taken)
    print(events())
os.environ["STANDIN_FAIL"] = "cuCtxSynchronize=700"
print(refusal(lambda: in_another_thread(lambda: output(2)).__dlpack__(stream=1)).splitlines()[0])
"""
    *waits, failed = process.run(ORDER + code).split("\n")[:-1]
    assert waits == ["wait", "wait", "wait", ""]
    message = "RuntimeError: kernel 'scale': waiting for cuda:0 failed with CUDA_ERROR_ILLEGAL_ADDRESS"
    assert failed.startswith(message)
    code = """
y = output(0x50)
for options in (*({"stream": stream} for stream in (0, -2, True, "x", 1.5)), {"copy": True}, {"dl_device": (1, 0)}):
    print(refusal(lambda: y.__dlpack__(**options)).splitlines()[0])
y.__dlpack__(stream=-1, copy=False, dl_device=(2, 0))
print(events())
"""
    what = "BufferError: kernel 'scale': an output was asked for on the stream"
    asked = [f"{what} {stream!r}" for stream in (0, -2, True, "x", 1.5)]
    copied = ["BufferError: a new output of a kernel is exported where it is, and not copied"] * 2
    assert process.run(ORDER + code).splitlines() == [*asked, *copied, "launch 0x50"]


def test_a_captured_stream_sees_no_event_and_an_error_is_raised_where_an_output_is_taken(process: Process) -> None:
    code = """
y = output(0x50)
os.environ["STANDIN_CAPTURE"] = "0x50"
y.__dlpack__(stream=0x50)
call(scale, y, on_cuda((8,)), 1.0, stream=0x50)
print(events())
print(refusal(y.__dlpack__), events())
"""
    first, refused, remedy = process.run(ORDER + code).splitlines()
    assert first == "launch 0x50 launch 0x50"
    assert "RuntimeError: kernel 'scale': " in refused and "wait for stream 0x50 of cuda:0, which is being" in refused
    assert remedy.startswith("  remedy: ") and remedy.endswith(" ")
    code = """
y = output(0x50)
for fail, stream in (("cuEventRecord=700", 0x70), ("cuStreamSynchronize=700", None)):
    os.environ["STANDIN_FAIL"] = fail
    print(refusal(lambda: y.__dlpack__(stream=stream)).splitlines()[0].partition(" failed")[0])
"""
    assert process.run(ORDER + code).splitlines() == [
        "RuntimeError: kernel 'scale': making stream 0x70 of cuda:0 wait for stream 0x50",
        "RuntimeError: kernel 'scale': waiting for stream 0x50 of cuda:0",
    ]
    code = """
y = output(0x50)
call(scale, y, y, 1.0, stream=0x50)
call(scale, y, on_cuda((8,)), 1.0, stream=0x60)
print(events())
"""
    assert process.run(ORDER + code) == "launch 0x50 launch 0x50 record 0x50 wait 0x60 launch 0x60\n"
    code = "print(refusal(lambda: call(scale, of_jax(), on_cuda((8,)), 1.0, stream=0x50)), events())"
    refused, remedy = process.run(ORDER + code, capture="0x50").splitlines()
    assert refused.startswith("RuntimeError: kernel 'scale': the call would have to wait for stream 0x50 of cuda:0,")
    assert "an array of JAX" in refused and "remedy: " in remedy and remedy.endswith(" ")


def test_a_call_with_inputs_of_jax_waits_before_they_may_be_freed_also_if_it_fails(process: Process) -> None:
    code = """
y = on_cuda((8,))
call(scale, of_jax(), y, 1.0, stream=0x50)
call(scale, y, y, 1.0, stream=0x50)
scale(of_jax(), y, 1.0)
os.environ["STANDIN_FAIL"] = "cuLaunchKernelEx=700"
print(refusal(lambda: call(scale, of_jax(), y, 1.0, stream=0x50)).partition(" launching ")[0])
print(events())
del os.environ["STANDIN_FAIL"]
call(scale, OfJax((8,), device=(2, 1)), FakeTensor((8,), device=(2, 1)), 1.0, stream=0x50)
print("cuda:0" in open(log).read(), events())
"""
    refused, ordered, other_device = process.run(ORDER + code).splitlines()
    assert refused == "RuntimeError: kernel 'scale':"
    assert other_device == "False launch 0x50 synchronize 0x50"
    waits = ["launch 0x50 synchronize 0x50", "launch 0x50", "launch 0x0 synchronize 0x0", "synchronize 0x50"]
    assert ordered == " ".join(waits)


def test_an_output_keeps_the_stream_of_its_launch_as_far_as_it_was_passed(process: Process) -> None:
    """CUDA must not see the handle of a stream that was destroyed."""
    if process.folder.name == "order_library":
        return  # tvm-ffi is told handles only
    code = """
import gc, weakref
class Own:
    def __cuda_stream__(self):
        return 0, 0x88
own = Own()
alive = weakref.ref(own)
y = output(own)
del own
gc.collect()
assert alive() is not None
y.__dlpack__(stream=0x70)
del y
gc.collect()
assert alive() is None
"""
    process.run(ORDER + code)


# ---- the backends tvm_ffi and cython


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_scale(tmp_path_factory.mktemp("order"))


@dataclass(frozen=True)
class Machine:
    """A machine with the stand-in driver, and the kernel there through both backends."""

    kernels: dict[str, Any]
    log: Path

    def call(self, backend: str, stream: int, *arguments: Any, device: int = 0) -> Any:
        """Call the kernel on a stream."""
        if backend == "cython":
            return self.kernels[backend](*arguments, stream=stream)
        with tvm_ffi.use_raw_stream(tvm_ffi.device(f"cuda:{device}"), stream):
            return self.kernels[backend](*arguments)

    def events(self) -> list[str]:
        """What the driver was asked for since the last look, such as ``launch 0x5``."""
        text = self.log.read_text() if self.log.exists() else ""
        self.log.unlink(missing_ok=True)
        return [f"{what} {int(stream, 16):#x}" for what, stream, _ in LINE.findall(text)]


@pytest.fixture
def machine(scale: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", str(scale.folder / "libstandin.so"))
    monkeypatch.setenv("STANDIN_LOG", str(tmp_path / "log"))
    shutil.copytree(scale.folder / "backends", tmp_path / "backends")
    library = shutil.copy(scale.folder / "scale.so", tmp_path)
    entry = dict(scale.entry)
    kernels = {
        "tvm_ffi": tvm_ffi_kernel.load_kernel("scale", entry, Path(library)),
        "cython": cython_kernel.load(Loader(tmp_path), "scale", entry),
    }
    return Machine(kernels, tmp_path / "log")


def in_another_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_an_output_of_another_threads_default_stream_is_waited_for_by_a_kernel(machine: Machine) -> None:
    output = machine.call("tvm_ffi", 2, OnCuda(), 1.0)
    machine.log.unlink()
    in_another_thread(lambda: machine.call("tvm_ffi", 2, output, OnCuda(), 1.0))
    lines = [line.split(" scale")[0] for line in machine.log.read_text().splitlines()]
    assert [line for line in lines if line.startswith(("wait", "launch"))] == ["wait for cuda:0", "launch"]


def test_integers_are_handles_if_a_pointer_can_have_them(machine: Machine) -> None:
    kernel, arguments = machine.kernels["cython"], (OnCuda(), OnCuda(), 1.0)
    for stream in (np.int64(5), np.uint64(2**64 - 1), 2**64 - 1):
        kernel(*arguments, stream=stream)
        assert machine.events() == [f"launch {int(stream):#x}"]
    for stream in (-1, 2**64, -(2**70), np.int64(-1)):
        with pytest.raises(TypeError, match=r"^kernel 'scale': the stream is (.|\n)*remedy: pass a stream of PyTorch"):
            kernel(*arguments, stream=stream)
    assert machine.events() == []


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 0x77)


@pytest.mark.parametrize(
    ("stream", "number"), [(0x5150, 0x5150), (Protocol(), 0x77), (SimpleNamespace(cuda_stream=0x88), 0x88), (0, 0)]
)
def test_a_launch_goes_to_the_stream_that_is_given(machine: Machine, stream: Any, number: int) -> None:
    kernel, x = machine.kernels["cython"], OnCuda()
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0x99):
        assert kernel(x, OnCuda(), 1.0, stream=stream) is None
        kernel(x, OnCuda(), 1.0)
    assert machine.events() == [f"launch {number:#x}", "launch 0x99"]
    # 1 is what DLPack has for the default stream.
    assert x.asked[0] == {"max_version": (1, 0), "stream": number or 1} and x.asked[1]["stream"] == 0x99


@pytest.mark.parametrize("backend", BACKENDS)
def test_streams_are_ordered_on_the_device_of_the_output(machine: Machine, backend: str) -> None:
    output = machine.call(backend, 0x50, OnCuda(1), 1.0, device=1)
    for stream, asked in (
        (0x70, ["record in stream 0x50", "wait in stream 0x70"]),
        (None, ["synchronize stream 0x50"]),
    ):
        machine.log.unlink()
        output.__dlpack__(stream=stream)
        first, *between, last = machine.log.read_text().splitlines()
        assert (first, last) == ("push cuda:1", "pop cuda:1") and [
            line for line in between if "cuda:" not in line
        ] == asked


@pytest.mark.parametrize(("maker", "user"), [("tvm_ffi", "cython"), ("cython", "tvm_ffi")])
def test_a_kernel_of_another_backend_waits_for_an_output(machine: Machine, maker: str, user: str) -> None:
    """tvm-ffi asks an output of another library for what is finished."""
    output = machine.call(maker, 0x50, OnCuda(), 1.0)
    machine.events()
    machine.call(user, 0x60, output, OnCuda(), 1.0)
    is_asked = user == "tvm_ffi"
    assert machine.events() == [*(["synchronize 0x50"] if is_asked else ["record 0x50", "wait 0x60"]), "launch 0x60"]
    machine.call(user, 0x50, output, OnCuda(), 1.0)
    assert machine.events() == [*(["synchronize 0x50"] if is_asked else []), "launch 0x50"]


def test_an_output_among_tensors_of_pytorch_is_waited_for_on_its_stream(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0x800 + device))
    output = machine.call("tvm_ffi", 0x50, OnCuda(1), 1.0, device=1)
    machine.events()
    assert isinstance(output.__tvm_ffi_object__(), tvm_ffi.Tensor)
    assert machine.events() == ["record 0x50", "wait 0x0", "record 0x50", "wait 0x801"]


def test_an_output_of_tvm_ffi_has_what_its_tensors_have(machine: Machine) -> None:
    output = machine.call("tvm_ffi", 0x50, OnCuda(), 1.0)
    assert (output.shape, output.dtype, output.ndim, output.strides) == ((8,), "float32", 1, (1,))
    assert str(output.device) == "cuda:0" and output.is_contiguous() and output.data_ptr() > 0
    assert repr(output) == "<output of kernel scale: float32[8] on cuda:0>"
    with pytest.raises(AttributeError):
        _ = output._to_dlpack
    assert copy.copy(output).data_ptr() == output.data_ptr()
    machine.events()
    assert tvm_ffi.from_dlpack(output).data_ptr() == output.data_ptr()
    assert machine.events() == ["synchronize 0x50"]


def test_several_outputs_on_a_gpu_all_remember_the_stream(machine: Machine) -> None:
    kernel = machine.kernels["tvm_ffi"]
    tensors = [tvm_ffi.from_dlpack(OnCuda()), tvm_ffi.from_dlpack(OnCuda())]
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0x50):
        outputs = kernel._with_stream(tvm_ffi.Array(tensors))
    for output in outputs:
        output.__dlpack__(stream=0x70)
    assert machine.events() == ["record 0x50", "wait 0x70"] * 2


# ---- arrays of JAX


class OfJax(OnCuda):
    """An array of JAX on a GPU."""


OfJax.__module__ = "jaxlib._jax"


def test_inputs_of_jax_on_a_gpu_are_refused_by_a_kernel_for_the_cpu(machine, tmp_path, monkeypatch):
    """The call says why. What cython asks before and after it, for arrays of JAX, needs no driver."""
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", str(tmp_path / "no driver"))
    arguments = [tensor("x", "float32", ["n"]), tensor("y", "float32", ["n"], output=True), scalar("alpha", "float32")]
    unit = c_unit(tmp_path, "BEGIN (void)tensor, (void)argument; END", signature("cpu", arguments))
    built = build_both(tmp_path, plan("cpu", unit, outputs=["y"]))
    kernels = [tvm_ffi_kernel.load_kernel("cpu", dict(built.entry), built.folder / "cpu.so")]
    kernels.append(cython_kernel.load(Loader(built.folder), "cpu", dict(built.entry)))
    for kernel in kernels:
        for x in (OfJax(), OnCuda()):
            with pytest.raises(ValueError, match=r"kernel 'cpu': it cannot run on cuda:0: it was built for llvm"):
                kernel(x, 1.0)
    assert machine.events() == []


def test_pytorchs_stream_is_waited_for_where_tensors_of_pytorch_are_passed(machine, monkeypatch):
    """tvm-ffi launches there."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0x800))
    kernel, on_cuda = machine.kernels["tvm_ffi"], type("Tensor", (torch.Tensor,), {"is_cuda": True})
    assert kernel._stream_of_call(0, (OfJax(), on_cuda())) == 0x800
    assert kernel._stream_of_call(0, (OfJax(), torch.ones(2))) == 0


# ---- the current streams of other libraries, in calls through cython


class OfCupy(OnCuda):
    """An array of CuPy."""


OfCupy.__module__ = "cupy"


class CupyStream:
    """A stream of CuPy, which has no other attribute before version 14."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is used of CuPy; its streams by device."""

    def from_dlpack(array: Any) -> Any:
        _, device = array.__dlpack_device__()
        array.__dlpack__(stream=streams[device].ptr or 1, max_version=(1, 0), copy=None)
        return array

    streams = {0: CupyStream(0x100), 1: CupyStream(0x101)}
    module = SimpleNamespace(
        cuda=SimpleNamespace(get_current_stream=lambda device: streams[device]),
        from_dlpack=from_dlpack,
        streams=streams,
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.mark.parametrize("device", [0, 1])
def test_arrays_of_cupy_are_used_on_its_stream_of_their_device(machine: Machine, cupy: Any, device: int) -> None:
    x = OfCupy(device)
    machine.kernels["cython"](x, OfCupy(device), 1.0)
    assert x.asked == [{"max_version": (1, 0), "stream": 0x100 + device}]
    machine.kernels["cython"](OfCupy(device), 1.0)
    assert machine.events() == [f"launch {0x100 + device:#x}"] * 2
    machine.kernels["cython"](OfCupy(), 1.0, stream=0x50)
    assert machine.events() == ["launch 0x50", "record 0x50", "wait 0x100"], "CuPy takes the output in order"


class OfTorch(OnCuda):
    """A tensor of a PyTorch without a C interface for DLPack."""


class Parameter(OfTorch):
    """One of its subclasses, from somewhere else."""


OfTorch.__module__ = "torch"


@pytest.mark.parametrize("kind", [OfTorch, Parameter])
def test_an_older_pytorch_is_asked_for_its_stream(machine, kind, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0x200 + device))
    x = kind(1)
    machine.kernels["cython"](x, kind(1), 1.0)
    assert machine.events() == ["launch 0x201"] and x.asked[0]["stream"] == 0x201
    machine.kernels["cython"](kind(1), kind(1), 1.0, stream=0x50)
    assert machine.events() == ["launch 0x50"]


def test_arrays_of_jax_are_used_on_the_default_stream_and_told_so(machine: Machine, cupy: Any) -> None:
    x = OfJax()
    machine.kernels["cython"](x, OfCupy(), 1.0)
    assert machine.events() == ["launch 0x0", "synchronize 0x0"] and x.asked[0]["stream"] == 1


def test_an_error_of_a_library_that_is_asked_is_raised(machine, cupy, monkeypatch):
    monkeypatch.delitem(cupy.streams, 1)
    with pytest.raises(KeyError):
        machine.kernels["cython"](OfCupy(1), OfCupy(1), 1.0)
    assert machine.events() == []


# ---- a given stream and the allocator of the arrays' library


class ExchangeApi(ctypes.Structure):
    """DLPackExchangeAPI of dlpack.h."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("tensor_from_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


def pointer_in(capsule: Any, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, name)


def taken(capsule: Any) -> int:
    """The managed tensor of a capsule, which from then on is the caller's."""
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    managed = pointer_in(capsule, b"dltensor_versioned")
    rename(capsule, b"used_dltensor_versioned")
    return managed


class Allocating:
    """A library with a C interface, whose allocator notes which stream is its current one."""

    def __init__(self, module: str) -> None:
        self.stream = 0x300
        self.allocations: list[int] = []
        self.memory = FakeTensor((8,), device=(2, 0))
        of_tvm_ffi = tvm_ffi.core.DLTensorTestWrapper
        theirs = pointer_in(of_tvm_ffi.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
        self.api = ExchangeApi.from_buffer_copy(ctypes.string_at(theirs, ctypes.sizeof(ExchangeApi)))
        integer, pointer = ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)
        self.callbacks = (
            ctypes.CFUNCTYPE(integer, ctypes.c_void_p, pointer, ctypes.c_void_p, ctypes.c_void_p)(self.allocate),
            ctypes.CFUNCTYPE(integer, integer, ctypes.c_int32, pointer)(self.current_stream),
        )
        self.api.allocate, self.api.current_stream = (
            ctypes.cast(callback, ctypes.c_void_p) for callback in self.callbacks
        )
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.name = ctypes.c_char_p(b"dlpack_exchange_api")
        capsule = make(ctypes.addressof(self.api), self.name, None)
        self.kind = type("Tensor", (of_tvm_ffi,), {"__dlpack_c_exchange_api__": capsule, "__module__": module})

    def allocate(self, prototype: int, made: Any, context: int, fail: int) -> int:
        self.allocations.append(self.stream)
        made[0] = taken(tvm_ffi.from_dlpack(self.memory).__dlpack__(max_version=(1, 0)))
        return 0

    def current_stream(self, kind: int, device: int, stream: Any) -> int:
        stream[0] = self.stream
        return 0

    def array(self) -> Any:
        return self.kind(tvm_ffi.from_dlpack(OnCuda()))

    @contextmanager
    def use(self, stream: int) -> Iterator[None]:
        """What ``torch.cuda.stream`` does."""
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Allocating:
    """PyTorch, with its C interface."""
    library = Allocating("torch")
    monkeypatch.setattr(torch.cuda, "stream", library.use)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: handle)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: 0)
    return library


@pytest.mark.parametrize(("stream", "current"), [(0x50, 0x50), (0, 0), (1, 0), (0x300, 0x300)])
def test_outputs_are_allocated_for_the_stream_that_is_given(machine, library, stream, current):
    kernel = machine.kernels["cython"]
    kernel(library.array(), 1.0, stream=stream)
    kernel(library.array(), 1.0)
    assert machine.events() == [f"launch {stream:#x}", "launch 0x300"]
    assert library.allocations == [current, 0x300] and library.stream == 0x300


def test_the_stream_that_is_given_is_made_current_on_the_device_of_the_arrays(machine, library, monkeypatch):
    devices: list[int] = []
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: devices.append(device) or handle)
    library.memory = FakeTensor((8,), device=(2, 1))
    machine.kernels["cython"](library.kind(tvm_ffi.from_dlpack(library.memory)), 1.0, stream=0x50)
    assert devices == [1] and library.allocations == [0x50]


def test_pytorchs_stream_is_restored_after_a_failed_call_whose_error_stays_its_own(machine, library, monkeypatch):
    monkeypatch.setenv("STANDIN_FAIL", "cuLaunchKernelEx=700")
    with pytest.raises(RuntimeError, match="launching device function"):
        machine.kernels["cython"](library.array(), 1.0, stream=0x50)
    assert library.allocations == [0x50] and library.stream == 0x300
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: FailingInside(machine.kernels["tvm_ffi"].function))
    with pytest.raises(RuntimeError, match="kernel 'scale': launching device function"):
        machine.kernels["cython"](library.array(), 1.0, stream=0x50)


class FailingInside:
    """A block of PyTorch's whose end calls a function of tvm-ffi that fails, as a hook of an application may."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        with pytest.raises(TypeError):
            self.function(1, 2, 3, 4, 5)


def test_a_library_whose_stream_cannot_be_set_or_that_allocates_nothing_keeps_the_order(machine: Machine) -> None:
    library = Allocating("paddle")
    kernel = machine.kernels["cython"]
    with pytest.raises(ValueError, match=r"kernel 'scale': a stream was given, and outputs were left out(.|\n)*remedy"):
        kernel(library.array(), 1.0, stream=0x50)
    assert machine.events() == [] and library.allocations == []
    assert kernel(library.array(), library.array(), 1.0, stream=0x50) is None
    kernel(library.array(), 1.0, stream=0x300)
    assert machine.events() == ["launch 0x50", "launch 0x300"]
    x = tvm_ffi.core.DLTensorTestWrapper(tvm_ffi.from_dlpack(OnCuda()))
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0x70):  # which is that library's current stream
        machine.kernels["cython"](x, 1.0, stream=0x50)
        assert machine.events() == ["launch 0x50", "record 0x50", "wait 0x70"]
        machine.kernels["cython"](x, 1.0)
        assert machine.events() == ["launch 0x70"]


def test_memory_is_freed_of_an_output_that_its_library_refuses(machine: Machine) -> None:
    library = Allocating("paddle")
    managed, interpreter = library.memory._managed, ctypes.pythonapi
    # Functions of C: one raises for all that is no context of Python's, the other writes where the data is.
    library.api.managed_to_object, managed.deleter = (
        ctypes.cast(function, ctypes.c_void_p) for function in (interpreter.PyContext_Enter, interpreter.time)
    )
    with pytest.raises(TypeError, match="Context was expected"):
        machine.kernels["cython"](library.array(), 1.0)
    assert library.allocations and managed.data != 0x10000


# ---- XLA


@pytest.fixture(scope="module")
def xla(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What calls a handler of jax-tvm-ffi as XLA does on a GPU."""
    library = tmp_path_factory.mktemp("xla") / "libxla.so"
    folder = jax.ffi.include_dir()
    source = str(ROOT / "tests/standin/xla.c")
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{folder}", source, "-o", library], check=True)
    function = ctypes.CDLL(str(library)).call_handler
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    return function


def handler(function: Any, places: list[str]) -> int:
    """The handler that jax-tvm-ffi has for a function on GPUs."""
    registered = jax_tvm_ffi._LIB.register_tvm_ffi_handler(function, places, 2, 0, False, False)
    return ctypes.cast(registered, ctypes.c_void_p).value or 0


@pytest.mark.parametrize("before", [0, 0x50])
def test_xlas_stream_does_not_stay_the_current_one(machine, xla, before, monkeypatch):
    """jax-tvm-ffi itself is called, with the function that the jax backend registers."""
    kernel = machine.kernels["tvm_ffi"]
    registered: list[Any] = []
    monkeypatch.setattr(jax_tvm_ffi, "register_ffi_target", lambda *given, **_: registered.append(given))
    monkeypatch.setattr(jax_tvm_ffi, "_kernelwright", {}, raising=False)
    jax_kernel.JaxKernel(SimpleNamespace(package="acme", version="1"), dict(kernel._entry), kernel, None)
    ((_, function, places, platform),) = registered
    assert (places, platform) == (["args", "rets", "attrs.alpha"], "gpu")
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), before):
        assert xla(handler(function, places), 0x999, 0x10000, 0x20000, 8) == 0
        kernel(OnCuda(), OnCuda(), 1.0)
    assert machine.events() == ["launch 0x999", f"launch {before:#x}"]


def test_jax_tvm_ffi_leaves_its_stream_behind_which_is_why_it_is_guarded(machine: Machine, xla: Any) -> None:
    """When this fails, the guard can go."""
    kernel = machine.kernels["tvm_ffi"]
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0):
        assert xla(handler(kernel.function, ["args", "rets", "attrs.alpha"]), 0x999, 0x10000, 0x20000, 8) == 0
        kernel(OnCuda(), OnCuda(), 1.0)
    assert machine.events() == ["launch 0x999", "launch 0x999"]


def test_an_error_passes_through_the_function_for_xla(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = machine.kernels["tvm_ffi"]
    with pytest.raises(TypeError, match="kernel 'scale': takes 3 arguments"):
        kernel.for_xla(kernel.function)(1)
    with pytest.raises(TypeError, match="kw_for_xla takes a function"):
        kernel.for_xla(1)
