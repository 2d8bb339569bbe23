"""``kernelwright doctor``: shows the tools that a build would use, and what is wrong with them."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .. import frontends
from ..core import plugins
from ..core.arch import FAMILIES, native_family
from ..core.errors import KernelwrightError, ToolchainError, Where
from ..toolchain.ask import answer
from ..toolchain.miscompiles import warnings
from ..toolchain.nvcc import Nvcc
from ..toolchain.nvrtc import Nvrtc
from ..toolchain.probe import Toolchain
from ..toolchain.pytorch import NEED as PYTORCH
from ..toolchain.pytorch import find_torch, lacking_headers
from .command import Command
from .own_environments import shown

(OTHER,) = FAMILIES.keys() - {native_family()}
"""The family of CPUs that this machine is not of."""

FIRST_UV = (0, 13, 6)
"""The first version of uv that installs wheel variants."""

OPTIONAL = {
    "nvrtc": "only cuda_compiler = nvrtc needs it: pip install 'kernelwright[nvrtc]'",
    "torch": f"only sources for PyTorch need it: {PYTORCH.install}",
    "uv": "only machines that install wheel variants need it: pip install 'uv>=0.13.6'",
}
"""Tools that not every build needs -> what needs them. It is no error if one of these is missing."""


def doctor(toolchain: Toolchain) -> int:
    """Print what is found, one line for each tool."""
    status = 0
    probes: dict[str, Callable[[], str]] = {
        "tvm": lambda: toolchain.lowerer().tvm,
        "tvm-ffi": lambda: toolchain.lowerer().tvm_ffi,
        "host compiler": lambda: toolchain.host_compiler("").version,
        "cross compiler": lambda: toolchain.cross_compiler(OTHER, "", "").version,
        "nvcc": lambda: _found_nvcc(toolchain),
        "nvrtc": lambda: _found_cuda((nvrtc := toolchain.nvrtc()), nvrtc.library),
        "torch": lambda: _found_torch(toolchain),
        **{
            name: partial(_compiler_of, name, toolchain)
            for name in (*with_own_compilers(), *plugins.installed(plugins.FRONT_ENDS))
        },
        "uv": _found_uv,
    }
    for name, probe in probes.items():
        try:
            print(f"{name}: {probe()}")
        except KernelwrightError as error:
            if name == "cross compiler":
                print(f"{name}: {error.message}; only archs of {OTHER} need it: {error.remedy}")
                continue
            if name in OPTIONAL:
                print(f"{name}: {error.message}; {OPTIONAL[name]}")
                continue
            if isinstance(probe, partial):
                print(f"{name}: {error.message}; only definitions in {name} need it: {error.remedy}")
                continue
            status = 1
            print(f"{name}: {error}")
    return status


def with_own_compilers() -> list[str]:
    """The front ends of Kernelwright whose compilers can have environments of their own."""
    return [name for name in frontends.names() if frontends.get(name).own_environment]


def _compiler_of(name: str, toolchain: Toolchain) -> str:
    return shown(frontends.get(name), toolchain)


def _found_nvcc(toolchain: Toolchain) -> str:
    """nvcc's version and path, and what is known of it, if it compiles."""
    compiler = toolchain.host_compiler("")
    nvcc = toolchain.nvcc("", compiler)
    toolchain.nvcc_programs(nvcc, compiler)
    return _found_cuda(nvcc, nvcc.path)


def _found_uv() -> str:
    """The version of uv and where it is, if it installs wheel variants.

    Raises:
        ToolchainError: there is none, or it is too old.
    """
    path, where = shutil.which("uv"), Where(stage="settings")
    if path is None:
        raise ToolchainError("there is none on PATH", where, OPTIONAL["uv"])
    found = re.match(r"uv (\d+)\.(\d+)\.(\d+)", answer([path, "--version"], OPTIONAL["uv"]))
    if found is None or tuple(map(int, found.groups())) < FIRST_UV:
        raise ToolchainError(f"the one at {path} does not know wheel variants", where, OPTIONAL["uv"])
    return f"{found[0].removeprefix('uv ')} at {path}"


def _found_cuda(compiler: Nvcc | Nvrtc, place: str) -> str:
    """Version and place of a CUDA compiler, and a line for each public report of wrong code that it makes."""
    plain = [arch for arch in compiler.archs if arch[:3] == "sm_" and arch[-1].isdigit()]
    known = warnings(compiler.name, compiler.version, plain)
    return "".join([f"{compiler.version} at {place}", *(f"\n  warning: {line}" for line in known)])


def _found_torch(toolchain: Toolchain) -> str:
    """PyTorch's version, and what sources lack that include its headers for CUDA."""
    torch = find_torch(Where(stage="settings"))
    nvcc = toolchain.nvcc("", toolchain.host_compiler(""))
    lacking = lacking_headers(Path(nvcc.path).resolve().parent.parent)
    rest = "; sources that include ATen/cuda/CUDAContext.h lack {}; those for the stable ABI need none of these"
    return torch.version + (rest.format(lacking) if lacking else "")


def run(options: argparse.Namespace) -> int:
    """Look for the tools in the environment of this process."""
    with tempfile.TemporaryDirectory() as folder:
        return doctor(Toolchain(Path(folder, "toolchain.json"), dict(os.environ)))


COMMAND = Command(
    "doctor",
    "show the tools that a build would use, and what is wrong with them",
    run,
    exits={1: "a tool that every build needs is missing or wrong"},
)
