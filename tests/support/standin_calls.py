"""Calls kernels of built packages without a GPU: against the library that stands in for the driver."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from support.project import ROOT, SITE_SCONS, Project

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
    """Compile the library into the folder of a project."""
    command = ["gcc", "-shared", "-fPIC", str(ROOT / "tests/standin/cuda.c"), "-o", str(project.folder / "standin.so")]
    subprocess.run(command, check=True)
    (project.folder / "driver").mkdir(exist_ok=True)
    shutil.copy(project.folder / "standin.so", project.folder / "driver/libcuda.so.1")


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
        env["LD_LIBRARY_PATH"] = str(project.folder / "driver")
        code = "from demo.backends import cuda_core as demo\n" + code
    printed = project.python(SETUP + code, env=env | ({"STANDIN_PARAMETERS": parameters} if parameters else {}))
    return printed.strip(), log.read_text().splitlines() if log.exists() else []


def beside(project: Project, code: str, capability: int = 90) -> str:
    """What a program prints that launches through Triton and through the package."""
    driver = project.folder / "driver"
    env = {
        "PYTHONPATH": os.pathsep.join(["build", ".", str(ROOT / "tests"), str(SITE_SCONS)]),
        "LD_LIBRARY_PATH": str(driver),
        "TRITON_LIBCUDA_PATH": str(driver),
        "KERNELWRIGHT_CUDA_DRIVER": str(driver / "libcuda.so.1"),
        "TRITON_CACHE_DIR": str(project.folder / "triton-cache"),
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
