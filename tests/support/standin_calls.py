"""Calls kernels of built packages without a GPU: against the library that stands in for the driver."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from support.project import ROOT, SITE_SCONS, Project, once_in

SETUP = """
import tvm_ffi
from support.launcher_build import FakeTensor
import demo
def on_cuda(*shape, dtype=(2, 32, 1), device=0, **more):
    return tvm_ffi.from_dlpack(FakeTensor(shape, dtype, device=(2, device), **more))
def message_of(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it raised nothing")
half = (2, 16, 1)
"""


def make_standin(project: Project) -> None:
    """Put the library into the folder of a project."""
    shutil.copy(driver_folder() / "libcuda.so.1", project.folder / "standin.so")


def driver_folder() -> Path:
    """The folder of that library under the driver's name. It is compiled once, and one process is forked with it."""
    return once_in(Project.shared, "driver", _compile)


def _compile(folder: Path) -> None:
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        str(ROOT / "site_scons/kernelwright/testing/cuda.c"),
        "-o",
        str(folder / "libcuda.so.1"),
    ]
    subprocess.run(command, check=True)


def call(
    project: Project, code: str, *, parameters: str = "", cuda_core: bool = False, **machine: object
) -> tuple[str, list[str]]:
    """Run code against the stand-in: what it printed, and what the driver was asked for.

    Arguments:
        cuda_core: whether it calls kernels of the backend ``cuda_core``, whose driver is ``libcuda.so.1``.
    """
    log = project.folder / "log"
    log.unlink(missing_ok=True)
    path = os.pathsep.join(["build", str(ROOT / "tests"), str(SITE_SCONS)])
    env = {"PYTHONPATH": path, "KERNELWRIGHT_CUDA_DRIVER": "./standin.so", "STANDIN_LOG": "log"}
    env |= {f"STANDIN_{name.upper()}": str(value) for name, value in machine.items()}
    if cuda_core:
        env["LD_LIBRARY_PATH"] = str(driver_folder())
        code = "from demo.backends import cuda_core as demo\n" + code
    printed = project.python(SETUP + code, env=env | ({"STANDIN_PARAMETERS": parameters} if parameters else {}))
    return printed.strip(), log.read_text().splitlines() if log.exists() else []


def beside(project: Project, code: str, capability: int = 90) -> str:
    """What a program prints that launches through Triton and through the package."""
    driver = driver_folder()
    env = {
        "PYTHONPATH": os.pathsep.join(["build", ".", str(ROOT / "tests"), str(SITE_SCONS)]),
        "LD_LIBRARY_PATH": str(driver),
        "TRITON_LIBCUDA_PATH": str(driver),
        "KERNELWRIGHT_CUDA_DRIVER": str(driver / "libcuda.so.1"),
        "TRITON_CACHE_DIR": str(project.shared / "triton-cache"),
        "TRITON_DISABLE_LINE_INFO": "1",  # packages have none
        "TRITON_DEFAULT_FP_FUSION": "1",
        "STANDIN_LOG": str(project.folder / "log"),
        "STANDIN_BYTES": "1",
        "STANDIN_CAPABILITY": str(capability),
        "STANDIN_SHARED": "232448",
    }
    return project.python(code, env=env)


def launches(log: list[str]) -> list[str]:
    """What is said of each launch behind the name of the device function."""
    return [re.sub(r"^launch \S+ ", "", line) for line in log if line.startswith("launch ")]


def started(log: list[str]) -> tuple[tuple[int, ...], int, list[str]]:
    """Grid, bytes of shared memory and parameters of the only launch."""
    (launch,) = launches(log)
    match = re.search(r"grid (\d+) (\d+) (\d+) .* shared (\d+) .* parameters (.*)", launch)
    assert match, launch
    return tuple(map(int, match.groups()[:3])), int(match[4]), match[5].split()
