"""Describes the machine and the versions of all tools, without the machine's name."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

DISTRIBUTIONS = ("kernelwright", "scons", "apache-tvm", "apache-tvm-ffi", "numpy", "nvidia-cuda-nvcc", "ninja")


def describe() -> dict[str, Any]:
    """CPU, memory, kernel, Python and versions; and the load before the measurement, which should be near 0."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {_kernel_version()} {platform.machine()}",
        "python": platform.python_version(),
        "compiler": _compiler(),
        "versions": {name: found for name in DISTRIBUTIONS if (found := version_of(name))},
        "load_before": round(os.getloadavg()[0], 2),
    }


def version_of(distribution: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _kernel_version() -> str:
    """The numbers only: what follows them may name who built the kernel."""
    return re.sub(r"[^0-9.].*", "", platform.release())


def _cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return match[1] if match else platform.processor()


def _compiler() -> str:
    path = shutil.which("cc")
    if path is None:
        return "none"
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
