"""Launches of Triton and of packages beside each other, without a GPU: what both ask the driver for.

Triton's own launcher, which it compiles itself, runs against the library that stands in for the driver. Tensors are on
the CPU: that library takes their addresses for those of a GPU, and what calls a package says that they are on one.
Written for Triton 3.9.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import tvm_ffi
from kernelwright.triton import use
from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils
from triton.runtime.autotuner import Autotuner

from support.launcher_build import FakeTensor

SCRATCH = "scratch"
"""Stands for the address of memory that a launch allocates."""

STREAM = 0x510
"""The stream of all launches."""

CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6, "float8_e4m3fn": 10, "float8_e5m2": 12}
"""Kinds of dtypes in DLPack."""


@dataclass(frozen=True)
class Launch:
    """What the driver is asked for.

    Arguments:
        image: arch, size and checksum of the code.
        grid, block: along x, y and z.
        attributes: cluster, cooperative launch and such, by number.
        parameters: the bytes of each of them, in hexadecimal digits; of the last but one only whether it is an address,
            and of a tensor map what the driver was asked for.
    """

    function: str
    image: str
    grid: str
    block: str
    shared: int
    stream: str
    attributes: tuple[str, ...]
    parameters: tuple[str, ...]


_LINE = re.compile(
    r"launch (?P<function>\S+) cubin (?P<image>.*) grid (?P<grid>.*) block (?P<block>.*) shared (?P<shared>\d+) "
    r"stream (?P<stream>\S+) on cuda:0(?P<attributes>( attribute \d+: \d+( \d+)*)*) bytes (?P<parameters>.*)"
)


MAP = 128
"""Bytes of a tensor map."""


def launches_in(lines: list[str]) -> list[Launch]:
    """The launches in a log that was written with ``STANDIN_BYTES=1``."""
    asked = dict(re.findall(r"encode map (\d+) (.*)", "\n".join(lines)))
    return [_launch_of(line, asked) for line in lines if line.startswith("launch ")]


def _told(parameter: str, asked: Mapping[str, str]) -> str:
    data = bytes.fromhex(parameter)
    return asked[str(int.from_bytes(data[:8], "little"))] if len(data) == MAP else parameter


def _launch_of(line: str, asked: Mapping[str, str]) -> Launch:
    match = _LINE.fullmatch(line)
    assert match, line
    *parameters, scratch, profile = match["parameters"].split()
    scratch = SCRATCH if scratch.strip("0") else scratch
    attributes = tuple(sorted(re.findall(r"attribute (\d+: \d+(?: \d+)*)", match["attributes"])))
    return Launch(
        match["function"],
        match["image"],
        match["grid"],
        match["block"],
        int(match["shared"]),
        match["stream"],
        attributes,
        (*(_told(each, asked) for each in parameters), scratch, profile),
    )


class Log:
    """The log of the driver.

    Arguments:
        path: as ``STANDIN_LOG`` has it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")

    def taken(self) -> list[str]:
        """What was added since the last time."""
        lines = self._path.read_text().splitlines()
        os.truncate(self._path, 0)
        return lines

    def launches(self) -> list[Launch]:
        """The launches that were added."""
        return launches_in(self.taken())


class StandInDriver(CudaDriver):  # type: ignore[misc]  # Triton has no types
    """Triton's driver, where PyTorch has no GPU."""

    def __init__(self) -> None:
        self.utils = CudaUtils()
        self.launcher_cls = CudaLauncher
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device: STREAM
        self.get_device_capability = lambda device: divmod(int(os.environ["STANDIN_CAPABILITY"]), 10)

    def get_benchmarker(self) -> Callable[..., Any]:
        """What takes the first config for the best one."""
        times = iter(range(1, 1 << 30))

        def measured(call: Callable[[], Any], quantiles: Any = None, **_: Any) -> Any:
            call()
            time = float(next(times))
            return time if quantiles is None else [time] * len(quantiles)

        return measured


def use_stand_in() -> list[int]:
    """Have Triton launch through the library that stands in for the driver.

    Returns:
        A list to which the sizes of memory are added that launches ask for.
    """
    asked: list[int] = []

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        asked.append(size)
        return torch.empty(size, dtype=torch.int8)

    triton.runtime.driver.set_active(StandInDriver())
    triton.set_allocator(allocate)
    return asked


def on_gpu(value: Any) -> Any:
    """A tensor on the CPU as one on a GPU, at the same address; everything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    name = str(value.dtype).removeprefix("torch.")
    code = CODES.get(name, CODES.get(name.rstrip("0123456789"), -1))
    dtype = (code, 8 * value.element_size(), 1)
    tensor = FakeTensor(value.shape, dtype, device=(2, 0), strides=value.stride(), data=value.data_ptr())
    return tvm_ffi.from_dlpack(tensor)


def take_tensors(package: Any) -> None:
    """Have the libraries of a package's recorded functions take tensors on the CPU for such on a GPU."""
    for name, entry in package.manifest()["kernels"].items():
        if "recorded" in entry:
            kernel = getattr(package, name)
            kernel._function, kernel._find = _moving(kernel._function), _moving(kernel._find)


def _moving(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a library that is called with such tensors, in the stream of all launches."""
    device = tvm_ffi.device("cuda", 0)

    def moved(*values: Any) -> Any:
        with tvm_ffi.use_raw_stream(device, STREAM):
            return function(*map(on_gpu, values))

    return moved


class Beside:
    """Makes calls through Triton and through a package, and compares what the driver was asked for.

    Arguments:
        log: the file that ``STANDIN_LOG`` names.
        package: one of what was recorded.
    """

    def __init__(self, log: Path, package: Any) -> None:
        self._log, self._package = Log(log), package
        self._asked = use_stand_in()
        take_tensors(package)

    def differences(self, program: Any) -> dict[str, list[str]]:
        """Function -> for each of its calls, how the launches differ; empty: they do not.

        Arguments:
            program: it has ``calls()``.
        """
        found: dict[str, list[str]] = {}
        for call in program.calls():
            found.setdefault(call.function, []).append(self._difference(program, call))
        return found

    def _difference(self, program: Any, call: Any) -> str:
        theirs, scratch = self._seen(lambda: call.of(program), program)
        with use(self._package):
            ours = self._seen(lambda: call.of(program), program)
        kernel = self._seen(lambda: call.of(self._package), program)
        texts = [] if ours == (theirs, scratch) else [f"Triton: {(theirs, scratch)}; used: {ours}"]
        if not theirs:
            return "\n".join(texts + ([f"the package launches {kernel}"] if kernel[0] else []))
        # A tuned function tries its configs and then runs the best one, which is any of them; a package runs one.
        if kernel[0] != theirs[-1:]:
            texts.append(f"Triton: {theirs[-1]}; package: {kernel}")
        return "\n".join(texts)

    def _seen(self, made: Callable[[], Any], program: Any) -> tuple[list[Launch], list[int]]:
        """The launches of a call, and the sizes of memory that they asked for; or the error."""
        for function in vars(program).values():
            if isinstance(function, Autotuner):
                function.cache.clear()  # it would not try its configs again
        self._asked.clear()
        self._log.taken()
        try:
            made()
        except ValueError as error:
            return [f"{error}"], []  # type: ignore[list-item]  # which no launch is equal to
        lines = self._log.taken()
        sizes = [int(line.split()[1]) for line in lines if line.startswith("allocate ")]
        return launches_in(lines), self._asked + sizes

    def agree(self, program: Any, name: str, arguments: tuple[Any, ...], *, compiles: bool) -> bool:
        """Make a call through both; raise an AssertionError if they differ.

        Arguments:
            compiles: whether Triton may compile for it first. Otherwise the package may refuse what Triton has no code
                for. It may launch, too, as Triton compiles code again where that cannot differ.

        Returns:
            Whether both launched.
        """
        theirs, missing = self._launched_by_triton(program, name, arguments, compiles)
        try:
            getattr(self._package, name)[(1,)](*arguments)
        except ValueError as error:
            assert "no such call was recorded" in str(error), error
            assert missing, f"Triton launches {theirs}, the package raises {error}"
            return False
        ours = self._log.launches()
        if missing:
            theirs, _ = self._launched_by_triton(program, name, arguments, compiles=True)
        assert ours == theirs and len(ours) == 1, f"{theirs}\n{ours}"
        return True

    def _launched_by_triton(
        self, program: Any, name: str, arguments: tuple[Any, ...], compiles: bool
    ) -> tuple[list[Launch], bool]:
        """The launches, and whether there is none because Triton would have to compile."""
        missing = []

        def stop(**_: Any) -> bool:
            missing.append(name)
            return not compiles

        self._log.taken()
        triton.knobs.runtime.jit_cache_hook = stop
        getattr(program, name)[(1,)](*arguments)
        return self._log.launches(), bool(missing) and not compiles
