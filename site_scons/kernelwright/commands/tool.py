"""``kernelwright tool``: prints the path of a tool, as compile.sh scripts use it."""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .. import frontends
from ..backends.launcher import LAUNCHER
from ..backends.own_code import cuda_runtime
from ..core import plugins
from ..core.arch import FAMILIES, native_family
from ..core.dependencies import IN_PACKAGE
from ..core.errors import ToolchainError, Where
from ..toolchain.fatbin import find_fatbinary
from ..toolchain.nvrtc import PROGRAM
from ..toolchain.package_folder import package_folder
from ..toolchain.probe import Toolchain
from ..toolchain.tvm import tvm_ffi_includes
from .command import Command, argument
from .own_environments import found

TOOLS = (
    *("nvcc", "fatbinary", "cc", "launcher", "tvm_ffi", "dlpack"),
    *("python", "python_include", "nvrtc", "nvrtc_compile", "cuda_include", "cuda_runtime"),
    *(f"{tool}_{family}" for tool in ("cc", "cuda_runtime") for family in FAMILIES),
)
"""What ``kernelwright tool`` knows, by the names that scripts have for it."""


WHERE = Where(stage="toolchain")


def known_tool(name: str) -> str:
    """The name of a tool, or of a folder in an installed package.

    Raises:
        argparse.ArgumentTypeError: it is neither.
    """
    known = (*TOOLS, *frontends.names(), *plugins.installed(plugins.FRONT_ENDS))
    if name in known or name.startswith(IN_PACKAGE):
        return name
    raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}, and does not begin with {IN_PACKAGE}")


def _headers_of(name: str, toolchain: Toolchain) -> str:
    """The folder of the headers that the tool of a front end has for device code."""
    front_end = frontends.get(name)
    if front_end.header_folders is None or front_end.own_environment is None:
        raise ToolchainError(f"there are no headers of {name} that device code includes", WHERE, "name another tool")
    return str(getattr(found(front_end, toolchain), "path", ""))


def _compiler_for(toolchain: Toolchain, family: str) -> str:
    """The path of the C compiler for a family of CPUs."""
    if family == native_family():
        return toolchain.host_compiler("").path
    compiler = toolchain.cross_compiler(family, "", "")
    if compiler.brings_glibc:
        remedy = f"set CC_{family.upper()} to the program that the build has written, in build/.kernelwright/zig"
        raise ToolchainError(f"Zig is no program for {family} alone", WHERE, remedy)
    return compiler.path


def print_tool(toolchain: Toolchain, name: str, release: str = "") -> int:
    """Print the path of one tool.

    Arguments:
        release: the CUDA release that a tool of CUDA has to be of; empty: any.
    """
    compiler = toolchain.host_compiler
    paths: dict[str, Callable[[], object]] = {
        "cc": lambda: compiler("").path,
        "nvcc": lambda: toolchain.nvcc("", compiler(""), release).path,
        "cuda_runtime": lambda: cuda_runtime(toolchain.nvcc("", compiler(""), release), WHERE, native_family()),
        "fatbinary": lambda: find_fatbinary(toolchain.nvcc("", compiler(""), release)),
        "launcher": lambda: LAUNCHER,
        "tvm_ffi": lambda: tvm_ffi_includes()[0],
        "dlpack": lambda: tvm_ffi_includes()[1],
        "python": lambda: sys.executable,
        "python_include": lambda: sysconfig.get_path("include"),
        "nvrtc": lambda: toolchain.nvrtc(release).library,
        "nvrtc_compile": lambda: PROGRAM,
        "cuda_include": lambda: toolchain.nvrtc(release).include,
    }
    for family in FAMILIES:
        paths[f"cc_{family}"] = partial(_compiler_for, toolchain, family)
        paths[f"cuda_runtime_{family}"] = partial(
            cuda_runtime,
            toolchain.nvcc("", compiler(""), release) if name.startswith("cuda_runtime_") else None,
            WHERE,
            family,
        )
    if name in paths or name.startswith(IN_PACKAGE):
        print(paths[name]() if name in paths else package_folder(name, WHERE, "tool"))
    else:
        print(_headers_of(name, toolchain))
    return 0


def run(options: argparse.Namespace) -> int:
    """Look for the tool in the environment of this process."""
    with tempfile.TemporaryDirectory() as folder:
        return print_tool(Toolchain(Path(folder, "toolchain.json"), dict(os.environ)), options.name, options.cuda)


COMMAND = Command(
    "tool",
    "print the path of a tool, as compile.sh scripts use it",
    run,
    (
        argument(
            "name",
            f"{', '.join(TOOLS)}, a front end that brings headers, or {IN_PACKAGE}FOLDER; nvrtc is the library, "
            "cuda_runtime an archive, and launcher, tvm_ffi, dlpack, python_include, cuda_include, that of a front end "
            "and a FOLDER that pip has installed are folders",
            type=known_tool,
            metavar="NAME",
        ),
        argument("--cuda", "the CUDA release that a tool of CUDA has to be of", default="", metavar="RELEASE"),
    ),
)
