"""The devices of this machine: the arch of its CPU, and the compute capabilities of its GPUs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..core.arch import CPU_LEVELS, FAMILIES, FAMILY_OF, native_family
from ..core.sealed import read_sealed, write_sealed

REMEMBERED = "machine.json"
"""Name of the file in the cache that remembers a machine's GPUs."""

ADDED = {
    "x86-64-v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "x86-64-v3": "abm avx avx2 bmi1 bmi2 f16c fma movbe",
    "x86-64-v4": "avx512bw avx512cd avx512dq avx512f avx512vl",
    "neoverse-n1": "asimddp asimdhp asimdrdm atomics crc32 fphp lrcpc",
    "neoverse-v2": "asimdfhm bf16 fcma flagm flagm2 frint i8mm ilrcpc sve sve2 svebf16 svei8mm",
}
"""What each CPU arch adds to the one before, by the names of /proc/cpuinfo, as far as compilers use it unasked. LLVM
has the same tables (X86TargetParser.cpp, AArch64Processors.td), and so has ``backends/launcher/cpu.h``. A name is
there only if the operating system saves the registers, too."""

CAP = "KERNELWRIGHT_CPU_LEVEL"
"""The variable with which a user lowers the level that kernels run on; see ``backends/launcher/cpu.h``."""

DRIVER = "KERNELWRIGHT_CUDA_DRIVER"
"""The variable that names another CUDA driver than the installed one; see ``backends/launcher/driver.h``."""

DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg")
"""One of these files exists if a driver is loaded; it is the second one under Windows."""

ASK_TIMEOUT_S = 60.0
"""The first question to the driver of a machine with many GPUs takes seconds."""

ASK = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
count, value = ctypes.c_int(), ctypes.c_int()
if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
    for device in range(count.value):
        digits = []
        for attribute in (75, 76):
            if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
                sys.exit(1)
            digits.append(value.value)
        print(10 * digits[0] + digits[1])
"""
"""Prints the compute capability of each device. 75 and 76 are CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
of cuda.h."""


@dataclass(frozen=True)
class Machine:
    """The devices of this machine.

    Arguments:
        cpu: the highest CPU arch whose code it runs.
        cuda: the compute capabilities of its GPUs, 10 * major + minor, without doubles.
    """

    cpu: str
    cuda: tuple[int, ...]


def machine(remember: Path | None = None) -> Machine:
    """The devices of this machine.

    Arguments:
        remember: a file that saves the next process the question to the driver.
    """
    return Machine(native_cpu_arch(), tuple(sorted(set(cuda_devices(remember)))))


def native_cpu_arch(environment: Mapping[str, str] = os.environ, cpuinfo: str = "/proc/cpuinfo") -> str:
    """The highest CPU arch whose code runs on this CPU.

    Where ``KERNELWRIGHT_CPU_LEVEL`` lowers what kernels run on, it lowers this as well.
    """
    family, flags = native_family(), _cpu_flags(cpuinfo)
    arch, *better = FAMILIES[family].archs
    for level in better:
        if not flags.issuperset(ADDED[level].split()):
            break
        arch = level
    cap = environment.get(CAP, "")
    return cap if FAMILY_OF.get(cap) == family and CPU_LEVELS[cap] < CPU_LEVELS[arch] else arch


@cache
def _cpu_flags(cpuinfo: str) -> frozenset[str]:
    """What the first CPU can do; none if that cannot be read."""
    try:
        with open(cpuinfo, encoding="ascii", errors="replace") as stream:  # noqa: PTH123 (as quick as can be)
            for line in stream:
                if line.startswith(("flags", "Features")):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def cuda_devices(remember: Path | None = None) -> tuple[int, ...]:
    """The compute capabilities of the GPUs that CUDA programs of this process see, 10 * major + minor; never an error.

    The driver is asked in a process of its own: one that has initialised it cannot use it in children that it forks.

    Arguments:
        remember: a file in which the answer is kept until the machine, its driver or its devices change.
    """
    library = _driver()
    if not library:
        return ()
    return _remembered(library, os.environ.get("CUDA_VISIBLE_DEVICES"), remember)


@dataclass(frozen=True)
class _Kept:
    """The GPUs of a machine: what tells it from others, and their capabilities."""

    identity: list[str]
    capabilities: tuple[int, ...]


@cache
def _remembered(library: str, visible: str | None, remember: Path | None) -> tuple[int, ...]:
    """The answer of the driver, from the file if that is of this machine as it is now."""
    now = _identity(library, visible)
    kept = read_sealed(remember, _Kept) if remember else None
    known = kept.capabilities if kept and kept.identity == now else None
    if known is None:
        known = _ask(library)
        if remember and known:
            with contextlib.suppress(OSError):  # else it is asked again the next time
                write_sealed(remember, _Kept(now, known))
    return known


def _ask(library: str) -> tuple[int, ...]:
    """What the driver says; nothing if it fails."""
    try:
        return tuple(map(int, answer_of(ASK, library).split()))
    except ValueError:
        return ()


def answer_of(program: str, *arguments: str) -> bytes:
    """What a Python program prints that asks the driver, in a process of its own; nothing if it fails."""
    import subprocess

    command = [sys.executable, "-I", "-S", "-c", program, *arguments]
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return b""


def driver_library() -> str:
    """The name of the CUDA driver's library."""
    return os.environ.get(DRIVER) or "libcuda.so.1"


def _driver() -> str:
    """The CUDA driver's library, if it can have a device; else an empty text."""
    may_have_one = os.environ.get(DRIVER) or any(map(os.path.exists, DEVICE_FILES))
    return driver_library() if may_have_one else ""


def _identity(library: str, visible: str | None) -> list[str]:
    """What the answer of a driver depends on: the boot, the driver, the devices, and which of them are visible."""
    return [
        f"{library} {_mtime(library)}",
        "all" if visible is None else f"only {visible}",
        _text("/proc/sys/kernel/random/boot_id"),
        _text("/proc/driver/nvidia/version"),
        " ".join(name for name in _names("/dev") if name.startswith("nvidia")),
        " ".join(_names("/proc/driver/nvidia/gpus")),
    ]


def _mtime(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:  # no path, but a name that the loader looks up; the driver's version shows a change of that
        return 0


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return sorted(path.name for path in Path(folder).iterdir())
    except OSError:
        return []
