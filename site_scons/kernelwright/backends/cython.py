"""The cython backend: a typed extension module for each kernel, written in Cython, on Python's limited API.

One binary serves Python 3.11 and every later version. It converts the arguments and calls the kernel's library, which
checks them, so its messages are those of the other backends. The mechanism is in ``launcher/python``. This
module writes a ``.pyx``, which describes one kernel.
"""

from __future__ import annotations

import keyword
import platform
import re
import sysconfig
from pathlib import Path
from typing import ClassVar

from ..core.errors import KernelwrightError, ToolchainError, Where
from ..core.need import Need
from ..core.signature import IDENTIFIER, Argument
from .base import Backend
from .commands import RELRO, STACK_PROTECTOR, ToolPaths
from .launcher import LAUNCHER
from .plan import KernelPlan

SHARED = LAUNCHER / "python"
"""The folder of what all modules have in common: C headers, and a file that every ``.pyx`` includes."""

OLDEST_PYTHON = (3, 11)
"""The first Python whose limited API has the buffer protocol; modules run on it and on all later ones."""

LIMITED_API = "0x{:02X}{:02X}0000".format(*OLDEST_PYTHON)

RESERVED = frozenset(keyword.kwlist).union(
    ["self", "positional", "named", "stream"],
    ["cdef", "cimport", "cpdef", "ctypedef", "include", "sizeof", "print", "exec", "NULL", "DEF", "IF", "ELIF", "ELSE"],
    ["void", "char", "int", "float", "double", "bint", "short", "long", "signed", "unsigned", "const", "volatile"],
    ["size_t", "ssize_t", "ptrdiff_t"],
)
"""Names that no parameter can have: Cython 3.3 refuses them, or they mean something else in the module."""

FOREIGN = ("__", "kw_", "KW_", "Py")
"""Prefixes of the names of Python and of our headers. Arguments with such names can only be passed by position."""

SOURCE = '''\
# cython: language_level=3, binding=False, embedsignature=False
# Kernel {kernel} as an extension module. Written by Kernelwright; kernel.pxi and its C headers have the mechanism.

cdef extern from *:
    """
    #define KW_MAX_ARGUMENTS {slots}
    """

include "kernel.pxi"

cdef kw_parameter[{slots}] PARAMETERS = [
    # what is passed; whether it may be left out, as an output or as an input that is None then; whether it is written
{rows}
]


cdef class Function(Kernel):
    """Kernel {kernel}, or one variant of it."""

    def __cinit__(self):
        self.kernel.name = b"{kernel}"
        self.kernel.parameters = PARAMETERS
        self.kernel.num_parameters = {count}
        self.kernel.num_outputs = {outputs}
        self.kernel.num_optional = {optional}

    def __call__(
        self,
        *positional,
{parameters}
        stream=None,
    ):
        # Each argument is passed by its position or by its name. None stands for one that is not given.
        cdef PyObject **named = [{named}]
        return kw_call_kernel(self, &self.kernel, positional, named, <PyObject *>stream)
'''


class Cython(Backend):
    """Callable through an extension module: with keyword arguments and a stream, and without importing tvm-ffi."""

    name = "cython"
    build_needs = (Need("Cython", "cython>=3.1"),)
    run_needs = (Need("tvm_ffi", "apache-tvm-ffi>=0.1.13,<0.2"),)
    runtime = ("cython_kernel.py", "interface.py", "refusal.py", "dlpack.py", "dtype.py")
    stub_types: ClassVar = {"keywords": ("stream: _Any = None",)}

    def require_build(self) -> None:
        """Find out whether Cython and Python's headers are there."""
        super().require_build()
        check_headers(Path(sysconfig.get_path("include")))

    def build_versions(self) -> dict[str, str]:
        """The versions of Cython, and of Python: functions of its headers get into modules, and differ by version."""
        return {**super().build_versions(), "Python": platform.python_version()}

    def emit(self, kernel: KernelPlan) -> dict[str, str]:
        """The module's source, and a copy of the file that it includes, because its path gets into the binary."""
        kernel.check()
        return {f"_{kernel.name}.pyx": _source(kernel), "kernel.pxi": (SHARED / "kernel.pxi").read_text()}

    def files(self, kernel: str) -> tuple[str, ...]:
        """The module's source, and the file that it includes."""
        return (f"_{kernel}.pyx", "kernel.pxi")

    def products(self, kernel: str) -> tuple[str, ...]:
        """The compiled module."""
        return (f"_{kernel}.abi3.so",)

    def commands(self, kernel: str, paths: ToolPaths, output: str) -> tuple[list[str], ...]:
        """Translate to C; compile and link."""
        translated, library = f"{output}/_{kernel}.c", f"{output}/_{kernel}.abi3.so"
        source = f"{self.folder(kernel)}/_{kernel}.pyx"
        folders = [f"-I{folder}" for folder in (paths.launcher, *paths.includes, paths.python_include)]
        return (
            [paths.python, "-m", "cython", "--module-name", f"_{kernel}", source, "-o", translated],
            [paths.compiler, *compile_flags(), *folders, translated, "-o", library, *link_flags(paths.glibc)],
        )

    def headers(self) -> list[Path]:
        """The C headers, and the file that every source includes."""
        return [LAUNCHER / "computed.h", *sorted(path for path in SHARED.iterdir() if path.suffix in (".h", ".pxi"))]


def compile_flags() -> list[str]:
    """Options of the C compiler, without folders."""
    defines = ["-DNDEBUG", f"-DPy_LIMITED_API={LIMITED_API}", "-DCYTHON_LIMITED_API=1"]
    options = ["-O2", "-std=gnu11", "-fPIC", "-fvisibility=hidden", STACK_PROTECTOR]
    return [*options, "-fno-asynchronous-unwind-tables", *defines]


def link_flags(glibc: str) -> list[str]:
    """Options for linking: stripped, hardened, reproducible. Python's functions are found in the process that loads it.

    Arguments:
        glibc: the folder of the libraries that stand in for the machine's C library; empty: none.
    """
    # Before glibc 2.34 dlopen is in libdl, which the linker could drop as not needed.
    libraries = ["-Wl,--push-state,--no-as-needed", "-ldl", "-Wl,--pop-state"]
    linker = ["--build-id=none", "-z,noseparate-code", *RELRO]
    return ["-shared", "-s", *(f"-Wl,{option}" for option in linker), *([f"-L{glibc}"] if glibc else []), *libraries]


def check_headers(folder: Path) -> None:
    """Check that extension modules can be compiled with the headers of a Python.

    Arguments:
        folder: where ``Python.h`` should be.

    Raises:
        ToolchainError: ``Python.h`` is not there, or belongs to a Python that is too old.
    """
    where, version = Where(stage="settings"), folder / "patchlevel.h"
    if not (folder / "Python.h").is_file() or not version.is_file():
        remedy = "install Python's headers (Debian: apt install python3-dev; Fedora: dnf install python3-devel)"
        raise ToolchainError(f"the backend cython needs Python.h, which is not in {folder}", where, remedy)
    found = re.findall(r"^#define PY_M(?:AJ|IN)OR_VERSION\s+(\d+)", version.read_text(), re.MULTILINE)
    if tuple(map(int, found)) < OLDEST_PYTHON:
        message = f"the backend cython needs the headers of Python 3.11 or later, these are of {'.'.join(found)}"
        raise ToolchainError(message, where, "use a later Python, or take cython out of backends")


def _source(kernel: KernelPlan) -> str:
    arguments = kernel.units[0].arguments
    for argument in arguments:
        if not IDENTIFIER.fullmatch(argument.name):
            message = f"argument {argument.name!r} is not a C identifier"
            raise KernelwrightError(message, Where(kernel.name, stage="wrap"), "rename it in the definition")
    nameable = {number: argument for number, argument in enumerate(arguments) if _can_be_named(argument.name)}
    return SOURCE.format(
        kernel=kernel.name,
        slots=max(1, len(arguments)),
        rows="\n".join(_row(kernel, number, a) for number, a in enumerate(arguments))
        or '    kw_parameter(b"", KW_INT, False, False, False),',
        count=len(arguments),
        outputs=len(kernel.outputs),
        optional=len(kernel.optional),
        parameters="\n".join(f"        {a.name}=None,  # {kernel.described(n)}" for n, a in nameable.items()),
        named=", ".join(f"<PyObject *>{a.name if n in nameable else None}" for n, a in enumerate(arguments)) or "NULL",
    )


def _can_be_named(name: str) -> bool:
    """Whether the generated function can have a parameter of that name."""
    return name not in RESERVED and not name.startswith(FOREIGN)


def _row(kernel: KernelPlan, position: int, argument: Argument) -> str:
    is_written = any(other.written for other in kernel.everywhere(position))
    flags = f"{argument.output}, {argument.name in kernel.optional}, {is_written}"
    return f'    kw_parameter(b"{argument.name}", {argument.launcher_kind}, {flags}),'


BACKEND = Cython()
