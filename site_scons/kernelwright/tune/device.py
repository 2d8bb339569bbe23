"""The device that is tuned for, as tables name it, and what it was measured with."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import SettingsError, Where, shown
from ..ondemand.machine import answer_of, driver_library
from ..runtime.arch import suitable

CPUINFO = Path("/proc/cpuinfo")

NUM_THREADS = "KERNELWRIGHT_NUM_THREADS"
"""The variable that limits the threads of the libraries' pool."""

ASK = """
import ctypes, json, sys
driver = ctypes.CDLL(sys.argv[1])
index, device, value, version = int(sys.argv[2]), ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
name = ctypes.create_string_buffer(256)
def attribute(number):
    assert driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0
    return value.value
assert driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0
assert driver.cuDeviceGetName(name, len(name), device) == 0 and driver.cuDriverGetVersion(ctypes.byref(version)) == 0
print(json.dumps([name.value.decode(), attribute(16), 10 * attribute(75) + attribute(76), version.value]))
"""
"""Prints name, multiprocessors, compute capability and driver version of a device. The numbers are
CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, _COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h."""


@dataclass(frozen=True)
class Device:
    """A device of this machine.

    Arguments:
        spec: as a user names it: ``cpu``, ``cuda:0``.
        name: as its driver, or the kernel of the system, names it.
        count: its multiprocessors, or the CPUs of the machine.
        driver: version of the driver, and of CUDA; empty for the CPU.
        capability: of a GPU, 10 * major + minor; 0 for the CPU.
    """

    spec: str
    name: str
    count: int
    driver: str = ""
    capability: int = 0

    @property
    def target(self) -> str:
        """``llvm`` or ``cuda``."""
        return "cuda" if self.capability else "llvm"

    def arch(self, archs: Sequence[str]) -> str:
        """The one of some archs of code whose code runs here."""
        return suitable(archs, self.capability)[0] if self.capability else archs[0]


def device_of(spec: str) -> Device:
    """The device of this machine that a user names.

    Raises:
        SettingsError: there is none of that name.
    """
    if spec == "cpu":
        return Device("cpu", _cpu_name(), os.sysconf("SC_NPROCESSORS_ONLN"))
    index = spec.removeprefix("cuda").removeprefix(":") or "0"
    if not spec.startswith("cuda") or not re.fullmatch(r"\d{1,3}", index):
        raise SettingsError(f"there is no device {shown(spec)}", _WHERE, "write cpu, cuda or cuda:1")
    try:
        name, count, capability, version = json.loads(answer_of(ASK, driver_library(), index))
    except ValueError as error:
        message = f"this machine has no device {spec}, or its driver does not answer"
        raise SettingsError(message, _WHERE, "see what nvidia-smi says") from error
    driver = f"CUDA {version // 1000}.{version % 1000 // 10}"
    return Device(f"cuda:{int(index)}", name, count, f"{_driver_version()}{driver}", capability)


def usable_cpus(environment: Mapping[str, str] = os.environ) -> int:
    """The CPUs that the library's pool may use in this process: fewer with taskset, or with the pool's variable."""
    cpus, asked = len(os.sched_getaffinity(0)), environment.get(NUM_THREADS, "")
    return min(cpus, int(asked)) if re.fullmatch(r"[1-9]\d{0,8}", asked) else cpus


_WHERE = Where(stage="settings", location="--device")


def _cpu_name() -> str:
    """The CPU's model name; that of its architecture where the system does not say more."""
    lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines() if CPUINFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or os.uname().machine


def _driver_version() -> str:
    """The version of NVIDIA's driver, with a comma behind it; empty if nobody says."""
    path = Path("/proc/driver/nvidia/version")
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    match = re.search(r"Kernel Module\D*(\d+(?:\.\d+)+)", text)
    return f"{match[1]}, " if match else ""
