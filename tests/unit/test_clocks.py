"""What a measurement on a GPU asks the driver for, and in which order, on a driver that stands in and has a clock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernelwright.core.signature import UNKNOWN, Argument
from kernelwright.processes.protocol import REFERENCE, MeasureRequest
from kernelwright.tune import clocks, measure
from support.standin_calls import driver_folder

FILL, RECORD, WAIT = "fill 83886080 bytes with 0 in stream 0", "record in stream 0", "wait for cuda:1"


@dataclass(frozen=True)
class Gpu:
    """The second GPU of the stand-in, where a fill takes a microsecond."""

    clock: clocks.CudaClock
    library: ctypes.CDLL
    log: Path

    def said(self) -> list[str]:
        """What the driver was asked for since the last look."""
        lines = self.log.read_text().splitlines()
        self.log.unlink()
        return lines

    def call(self, *lengths: int) -> Callable[[], None]:
        """Calls of so many microseconds each, in turn."""
        turns = iter(lengths)

        def call() -> None:
            for _ in range(next(turns)):
                self.library.cuMemsetD8Async(0, 7, 4, 0)

        return call


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    driver, log = driver_folder() / "libcuda.so.1", tmp_path / "log"
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", str(driver))
    monkeypatch.setenv("STANDIN_LOG", str(log))
    monkeypatch.setattr(clocks, "SPIN_UP_S", 0.001)
    library = ctypes.CDLL(str(driver))
    clocks.CudaClock(0)
    gpu = Gpu(clocks.CudaClock(1), library, log)
    said = gpu.said()
    assert [line for line in said if "allocate" in line] == ["allocate 67108864", "allocate 83886080"]
    assert said[-2:] == [FILL, WAIT]
    yield gpu
    library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def test_caches_are_filled_before_the_call_that_is_timed_and_the_host_waits_behind_all(gpu: Gpu) -> None:
    one = "fill 4 bytes with 7 in stream 0"
    assert gpu.clock.seconds(gpu.call(1, 2), 2) == pytest.approx(3e-6)
    assert gpu.said() == [FILL, RECORD, one, one, one, RECORD, WAIT]
    assert gpu.clock.batch(gpu.call(1, 9, 2, 3, 5), 2) == pytest.approx((2e-6, 4e-6)), "the median, and a mean"
    cold = [[FILL, RECORD, *[one] * length, RECORD] for length in (1, 9, 2)]
    assert gpu.said() == [*cold[0], *cold[1], *cold[2], WAIT, FILL, RECORD, *[one] * 8, RECORD, WAIT]
    gpu.clock.batch(gpu.call(*[1] * 125), 100)
    assert gpu.said().count(FILL) == 26, "25 cold calls and those that are warm"
    gpu.clock.first(gpu.call(1))
    assert gpu.said() == [one, WAIT] and gpu.clock.clock_mhz() == 0


def test_a_tensor_has_what_was_written_last_and_its_memory_ends_with_it(gpu: Gpu) -> None:
    array = np.arange(6, dtype="float32").reshape(2, 3)
    tensor = gpu.clock.tensor(array.T, Argument("x", "tensor", "float32", False, False, (3, 2)))
    assert (str(tensor.device), tensor.shape) == ("cuda:1", (3, 2)) and gpu.said() == ["allocate 24"]
    assert np.array_equal(gpu.clock.values(tensor), array.T)
    gpu.clock.write(tensor, -array.T)
    assert np.array_equal(gpu.clock.values(tensor), -array.T)
    del tensor
    assert gpu.said() == ["free"]


def test_inputs_and_what_the_reference_makes_of_them_are_of_one_config() -> None:
    drawn: list[int] = []
    bench = measure.Bench("cpu")
    for factor in (2, 2, 3):
        drawing = SimpleNamespace(shapes=lambda sizes: {}, bytes_of=lambda sizes: 0, tensors=())
        drawing.values = lambda sizes, factor=factor: drawn.append(factor) or {"factor": factor}
        check: Any = SimpleNamespace(callers_config={"factor": factor}, drawing=drawing, expected=dict)
        check.in_reference, check.referenced = (lambda call: call()), (lambda inputs: lambda: None)
        request = MeasureRequest(
            "a.py", "scale", "", f"{factor}.so", 0, UNKNOWN, "cpu", sizes={"n": 1}, beside=REFERENCE
        )
        bench.measure(request, check, True, 0.0)
    assert drawn == [2, 3]
