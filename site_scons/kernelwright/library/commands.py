"""The commands that make the library of a kernel: one compiles its wrapper, the other one links it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .launcher import LAUNCHER


@dataclass(frozen=True)
class ToolPaths:
    """The compilers and folders that commands name: their paths on this machine, or what scripts have in their place.

    Arguments:
        compiler: the C compiler.
        launcher: the folder of the launcher's headers.
        includes: tvm-ffi's include folders.
        glibc: the folder of the libraries that stand in for the machine's C library (see ``glibc``); empty: none.
        python: the Python interpreter that builds.
        python_include: the folder of its ``Python.h``.
    """

    compiler: str
    launcher: str
    includes: tuple[str, ...]
    glibc: str = ""
    python: str = ""
    python_include: str = ""


STACK_PROTECTOR = "-fstack-protector-strong"
"""Ends the process when a function has written beyond its arrays on the stack. Calls are no slower."""

RELRO = ("-z,relro", "-z,now")
"""Options of the linker: functions are found when the library is loaded, and their table is read-only from then on."""


def compile_flags() -> list[str]:
    """Options of the C compiler for wrappers and the launcher, without folders."""
    return ["-O2", "-std=gnu11", "-fPIC", "-fvisibility=hidden", STACK_PROTECTOR]


def link_flags(launcher: str | Path = LAUNCHER, glibc: str = "") -> list[str]:
    """Options for linking a kernel library: nothing exported but FFI functions, never unloaded, hardened, reproducible.

    Arguments:
        launcher: the folder of the launcher, as the command line should name it.
        glibc: the folder of the libraries that stand in for the machine's C library; empty: none.
    """
    linker = [f"--version-script={launcher}/exports.map", "-z,nodelete", *RELRO, "--build-id=none"]
    # Before glibc 2.34 the last two have functions that are bound as if they were in libc.
    libraries = ["-lm", "-Wl,--push-state,--no-as-needed", "-ldl", "-lpthread", "-Wl,--pop-state"]
    return ["-shared", "-s", *(f"-Wl,{option}" for option in linker), *([f"-L{glibc}"] if glibc else []), *libraries]


def include_flags(include: Iterable[str | Path], launcher: str | Path = LAUNCHER) -> list[str]:
    """Options that name the folders of headers.

    Arguments:
        include: TVM-FFI's include folders (tvm-ffi's own, and DLPack's).
        launcher: the folder of the launcher's headers.
    """
    return [f"-I{folder}" for folder in (".", launcher, *include)]


def compile_command(kernel: str, paths: ToolPaths, output: str) -> list[str]:
    """The command that compiles the wrapper and the lowered host code; it needs no device code.

    Arguments:
        kernel: the kernel's name.
        paths: the compiler and the folders.
        output: the file that is made.
    """
    flags = [*compile_flags(), *include_flags(paths.includes, paths.launcher)]
    return [paths.compiler, *flags, "-c", f"{kernel}/wrapper.c", "-o", output]


def launcher_command(paths: ToolPaths) -> list[str]:
    """The command that compiles the launcher, which all kernels have in common."""
    folders = include_flags(paths.includes, paths.launcher)
    return [paths.compiler, *compile_flags(), *folders, "-c", f"{paths.launcher}/launcher.c", "-o", "launcher.o"]


def link_command(kernel: str, objects: Iterable[str], paths: ToolPaths, library: str) -> list[str]:
    """The command that makes the library of the compiled wrapper, the device code and the host code of llvm lowerings.

    Arguments:
        kernel: the kernel's name.
        objects: the launcher and the host code, relative to the folder in which the command runs.
        paths: the compiler and the folders.
        library: the file that is made.
    """
    parts = [f"{kernel}/wrapper.o", f"{kernel}/images.s", *objects]
    return [paths.compiler, *parts, "-o", library, *link_flags(paths.launcher, paths.glibc)]
