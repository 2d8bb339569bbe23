"""The commands that make the library of a kernel: one compiles its wrapper, the other one links it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..core.request import ASIDE
from .launcher import LAUNCHER, OLDER
from .own_code import CXX


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
        cuda_runtime: CUDA's runtime as an archive, for host code that is not ours.
        debug: whether libraries are for debuggers and profilers: with lines of sources and the names of all functions.
    """

    compiler: str = field(metadata=ASIDE)
    launcher: str = field(metadata=ASIDE)
    includes: tuple[str, ...] = field(metadata=ASIDE)
    glibc: str = ""
    python: str = field(default="", metadata=ASIDE)
    python_include: str = field(default="", metadata=ASIDE)
    cuda_runtime: str = field(default="", metadata=ASIDE)
    debug: bool = False


STACK_PROTECTOR = "-fstack-protector-strong"
"""Ends the process when a function has written beyond its arrays on the stack. Calls are no slower."""

RELRO = ("-z,relro", "-z,now")
"""Options of the linker: functions are found when the library is loaded, and their table is read-only from then on."""


def compile_flags() -> list[str]:
    """Options of the C compiler for wrappers and the launcher, without folders."""
    return ["-O2", "-std=gnu11", "-fPIC", "-fvisibility=hidden", STACK_PROTECTOR]


LIBRARIES = "_lib"
"""The folder of the libraries in a package, and of the launcher's where the kernels are built."""

BESIDE = f"$ORIGIN:$ORIGIN/../{LIBRARIES}"
"""Where a kernel's library looks for the launcher's: in its own folder, as in a package, and where both are built."""


def launcher_library(digest: str) -> str:
    """The file name of the launcher's library, which is its name for the dynamic linker as well.

    A process has only one library of each name. So the name has a digest of all that the launcher is made of: packages
    with equal launchers share one, and others never get one that they were not linked with.
    """
    return f"libkernelwright-{digest[:16]}.so"


def launcher_map(library: str) -> str:
    """The linker version script of the launcher's library: functions that wrappers call get a version with its name.

    So no other library of a process can take its place with functions of the same names.
    """
    return f"{library.removesuffix('.so').replace('-', '_')} {{ global: kw_*; local: *; }};\n"


def link_flags(glibc: str = "", debug: bool = False) -> list[str]:
    """Options for linking a library: never unloaded, hardened, reproducible.

    Arguments:
        glibc: the folder of the libraries that stand in for the machine's C library; empty: none.
        debug: whether the names of functions, and what debuggers need, stay in it.
    """
    linker = ["-z,nodelete", *RELRO, "--build-id=none"]
    return [
        "-shared",
        *([] if debug else ["-s"]),
        *(f"-Wl,{option}" for option in linker),
        *([f"-L{glibc}"] if glibc else []),
    ]


def include_flags(include: Iterable[str | Path], launcher: str | Path = LAUNCHER) -> list[str]:
    """Options that name the folders of headers.

    Arguments:
        include: TVM-FFI's include folders (tvm-ffi's own, and DLPack's).
        launcher: the folder of the launcher's headers.
    """
    return [f"-I{folder}" for folder in (".", launcher, *include)]


def compile_command(kernel: str, paths: ToolPaths, output: str, folder: str = ".") -> list[str]:
    """The command that compiles the wrapper and the lowered host code; it needs no device code.

    Arguments:
        kernel: the kernel's name.
        paths: the compiler and the folders.
        output: the file that is made.
        folder: the one that it runs in, which code for debuggers must not name.
    """
    flags = [*compile_flags(), *include_flags(paths.includes, paths.launcher)]
    if paths.debug:
        # In place of paths, which are other ones on another machine.
        named = {folder: ".", paths.launcher: "launcher", **dict.fromkeys(paths.includes, "tvm_ffi")}
        flags += ["-g", *(f"-fdebug-prefix-map={path}={name}" for path, name in named.items())]
    return [paths.compiler, *flags, "-c", f"{kernel}/wrapper.c", "-o", output]


def launcher_commands(paths: ToolPaths, library: str, folder: str = LIBRARIES) -> tuple[list[str], list[str]]:
    """The commands that compile the launcher, which all kernels have in common, and link its library.

    Arguments:
        paths: the compiler and the folders.
        library: the name of the library.
        folder: where both are made, and where the library's ``launcher.map`` is.
    """
    source, made = f"{paths.launcher}/launcher.c", f"{folder}/launcher.o"
    flags = [*compile_flags(), *include_flags(paths.includes, paths.launcher)]
    linker = [f"-soname={library}", f"--version-script={folder}/launcher.map", "-Bsymbolic"]
    # glibc before 2.34 has functions in these two that are linked as if they were in libc.
    libraries = ["-Wl,--push-state,--no-as-needed", "-ldl", "-lpthread", "-Wl,--pop-state"]
    named = [*(f"-Wl,{option}" for option in linker), *link_flags(paths.glibc), *libraries]
    compiling = [paths.compiler, *flags, "-c", source, "-o", made]
    return compiling, [paths.compiler, made, "-o", f"{folder}/{library}", *named]


def link_command(kernel: str, others: Iterable[str], paths: ToolPaths, library: str) -> list[str]:
    """The command that makes the library of the compiled wrapper, the device code and the host code of llvm lowerings.

    Arguments:
        kernel: the kernel's name.
        others: the host code, the library of its sources if there is one, and that of the launcher, relative to the
            folder in which the command runs.
        paths: the compiler and the folders.
        library: the file that is made.
    """
    parts = [f"{kernel}/wrapper.o", f"{kernel}/images.s", *others]
    linker = [f"--version-script={paths.launcher}/exports.map", f"-rpath,{BESIDE}", "--enable-new-dtags"]
    flags = [*(f"-Wl,{option}" for option in linker), *link_flags(paths.glibc, paths.debug)]
    return [paths.compiler, *parts, "-o", library, *flags, "-lm"]


BESIDE_BY_PATH = f"$ORIGIN/../{LIBRARIES}"
"""What libraries of sources are called for the dynamic linker begins with: it looks for such a name at that path.

It takes any library of a name that the process has loaded, and these have equal names in packages that were built with
other headers. So their names are paths, which are the package's own. (A launcher's name has a digest of its content.)
The symbols in them have no versions: glibc compares the names of libraries with those in lists of versions, but it does
not replace ``$ORIGIN`` there (2.36).
"""


SOURCE_LIBRARY = re.compile(rf"{LIBRARIES}/[A-Za-z0-9_.-]*(?:cu|cc|cpp|cxx)-[0-9a-f]{{16}}\.so")
"""The path of a library of sources in a package; no kernel's name has a dash, nor the launcher's such an ending."""

NEEDED_BY_PATH = re.compile(rf"{re.escape(BESIDE_BY_PATH)}/([^/\0]+)\0".encode())
"""What libraries of sources are called, in them and in the libraries that need them."""


def source_library_command(name: str, linked: Iterable[str], paths: ToolPaths, library: str) -> list[str]:
    """The command that makes the library of sources with host code of their own.

    Arguments:
        name: of the library, without its ending.
        linked: objects and libraries, relative to the folder in which the command runs.
        paths: the compiler and the folders.
        library: the file that is made.
    """
    linker = [
        f"-soname={BESIDE_BY_PATH}/{name}.so",
        f"--version-script={paths.launcher}/sources.map",
        f"-rpath,{BESIDE}",
    ]
    flags = [*(f"-Wl,{option}" for option in (*linker, "--enable-new-dtags")), *link_flags(paths.glibc)]
    older = [*compile_flags(), "-x", "c", f"{paths.launcher}/{OLDER.name}", "-x", "none"]
    return [paths.compiler, *older, *linked, "-o", library, *flags, *own_link_flags(paths.cuda_runtime), "-lm"]


def own_link_flags(cuda_runtime: str) -> list[str]:
    """Options for linking host code in C++: the library contains the C++ library and CUDA's runtime, exporting neither.

    So a machine that runs the library needs no certain version of CUDA's runtime or of the C++ library.
    """
    # glibc before 2.34 has functions in these that are linked as if they were in libc.
    libc = ["-Wl,--push-state,--no-as-needed", "-ldl", "-lpthread", "-lrt", "-Wl,--pop-state"]
    return ["-Wl,--exclude-libs,ALL", "-Wl,--gc-sections", cuda_runtime, *CXX, *libc]
