"""The cython backend: a typed extension module for each kernel, in Cython, on Python's limited API.

One binary serves Python 3.11 and every later version. It converts the arguments and calls the kernel's library, which
checks them, so that its messages are those of every other backend. The mechanism is in the headers and in the ``.pxi``
of ``launcher/python``; a ``.pyx`` has the names of one kernel.
"""

from __future__ import annotations

import keyword
from pathlib import Path

from .base import IDENTIFIER, Argument, Backend, KernelPlan, Need, Places
from .library import LAUNCHER

LIMITED_API = "0x030B0000"
"""The oldest Python that the modules run on: the first whose limited API has the buffer protocol."""

DIRECTIVES = ("language_level=3", "binding=False", "embedsignature=False", "always_allow_keywords=True")

RESERVED = {*keyword.kwlist, "self", "positional", "stream", "cdef", "cimport", "cpdef", "ctypedef", "include", "NULL"}
RESERVED |= {"DEF", "IF", "ELIF", "ELSE", "print", "exec", "named"}
"""What cannot be, or had better not be, the name of a parameter in Cython. Such arguments are passed by position."""

HEAD = '''\
# cython: {directives}
# Kernel {kernel} as an extension module. Written by Kernelwright; the included file has the mechanism.

cdef extern from *:
    """
    #define KW_MAX_ARGUMENTS {slots}
    """

include "python/kernel.pxi"

cdef kw_parameter[{slots}] PARAMETERS = [
    # name, is a tensor, is an output, is written
{table}
]


cdef class Function(Kernel):
    """Kernel {kernel}, or one variant of it."""

    def __cinit__(self):
        self.kernel.name = b"{kernel}"
        self.kernel.parameters = PARAMETERS
        self.kernel.num_parameters = {count}
        self.kernel.num_outputs = {outputs}

    def __call__(
        self,
        *positional,
{parameters}
        stream=None,
    ):
        """Run the kernel on arrays and numbers."""
        cdef PyObject **named = [{named}]
        return kw_call_kernel(self, &self.kernel, positional, named, <PyObject *>stream)
'''


class Cython(Backend):
    """Callable through an extension module, with keyword arguments and a stream; nothing of Python's is imported."""

    name = "cython"
    build_needs = (Need("Cython", "cython>=3.1"),)
    run_needs = (Need("tvm_ffi", "apache-tvm-ffi>=0.1.13,<0.2"),)
    runtime = ("cython_kernel.py", "interface.py")

    def emit(self, kernel: KernelPlan) -> dict[str, str]:
        """The module's source, in Cython."""
        kernel.check()
        arguments = kernel.units[0].arguments
        listed = [argument for argument in arguments if _can_be_named(argument.name)]
        text = HEAD.format(
            directives=", ".join(DIRECTIVES),
            kernel=kernel.name,
            slots=max(1, len(arguments)),
            table="\n".join(map(_row, arguments)) or '    kw_parameter(b"", False, False, False),',
            count=len(arguments),
            outputs=len(kernel.outputs),
            parameters="\n".join(f"        {a.name}=None,  # {_described(kernel, a)}" for a in listed),
            named=", ".join(f"<PyObject *>{a.name if a in listed else 'None'}" for a in arguments) or "NULL",
        )
        return {f"_{kernel.name}.pyx": text}

    def files(self, kernel: str) -> tuple[str, ...]:
        """The one source."""
        return (f"_{kernel}.pyx",)

    def products(self, kernel: str) -> tuple[str, ...]:
        """The compiled module."""
        return (f"_{kernel}.abi3.so",)

    def commands(self, kernel: str, places: Places, output: str) -> tuple[list[str], ...]:
        """Translate to C, compile and link."""
        source, translated = f"{self.folder(kernel)}/_{kernel}.pyx", f"{output}/_{kernel}.c"
        cython = [places.python, "-m", "cython", "-3", "-I", places.launcher, "--module-name", f"_{kernel}"]
        return (
            [*cython, source, "-o", translated],
            [
                places.compiler,
                *compile_flags(),
                *(f"-I{folder}" for folder in (places.launcher, *places.includes, places.python_include)),
                translated,
                "-o",
                f"{output}/_{kernel}.abi3.so",
                *link_flags(places.glibc),
            ],
        )

    def headers(self) -> list[Path]:
        """The C headers and the Cython file that every module includes."""
        return sorted((LAUNCHER / "python").iterdir())


def compile_flags() -> list[str]:
    """Options of the C compiler, without folders."""
    defines = [f"-DPy_LIMITED_API={LIMITED_API}", "-DCYTHON_LIMITED_API=1", "-DCYTHON_CLINE_IN_TRACEBACK=0"]
    return ["-O2", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", *defines]


def link_flags(glibc: str) -> list[str]:
    """Options for linking: stripped, reproducible, bound when functions are first called."""
    linker = ["-z,lazy", "--build-id=none", "--push-state", "--no-as-needed"]
    libraries = [*([f"-L{glibc}"] if glibc else []), "-ldl", "-Wl,--pop-state"]
    return ["-shared", "-s", *(f"-Wl,{option}" for option in linker), *libraries]


def _can_be_named(name: str) -> bool:
    return bool(IDENTIFIER.fullmatch(name)) and name not in RESERVED


def _row(argument: Argument) -> str:
    name = "".join(
        c if " " <= c <= "~" and c not in '"\\' else "".join(f"\\x{b:02x}" for b in c.encode()) for c in argument.name
    )
    flags = (argument.kind == "tensor", argument.output, argument.written)
    return f'    kw_parameter(b"{name}", {", ".join(map(str, flags))}),'


def _described(kernel: KernelPlan, argument: Argument) -> str:
    """An argument's dtypes and shapes in all variants."""
    found: dict[str, None] = {}
    for unit in kernel.units:
        for other in unit.arguments:
            if other.name == argument.name:
                shape = f"[{', '.join(map(str, other.shape))}]" if other.kind == "tensor" else ""
                found.setdefault(other.dtype + shape)
    written = "; written, and allocated if left out" if argument.output else "; written" if argument.written else ""
    return " or ".join(found) + written
