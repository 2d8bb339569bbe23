"""GLIBC: makes the libraries without code that kernels are linked with in place of the machine's C library.

A linker binds each function of glibc to its newest version on the machine that builds: ``dlopen`` to GLIBC_2.34,
``exp`` to GLIBC_2.29. glibc keeps the older versions, but a linker has no option to choose them. So it is given shared
libraries with the same names and without code. In these, the default version of each symbol is the newest one that the
setting ``glibc`` allows. The machine's own libraries list the symbols and their versions.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.arch import FAMILIES
from ..core.errors import ToolchainError, Where
from ..processes.tools import RunsTools, ToolCall, ToolResult
from ..toolchain.ask import run_tool
from ..toolchain.host_compiler import HostCompiler
from .context import Context
from .stage import Stage, files_in
from .stage_run import StageRun

LIBRARIES = {
    "libc": "libc.so.6",
    "libm": "libm.so.6",
    "libdl": "libdl.so.2",
    "libpthread": "libpthread.so.0",
    "librt": "librt.so.1",
}
"""Name for the linker -> name at run time. The last three are a part of libc.so.6 from glibc 2.34 on."""

FROM_LOADER = "libc"
"""The library that stands in for the dynamic linker as well. That has some symbols too (``__tls_get_addr``), and at run
time it does not matter which library has a symbol of some version."""

VERSION = re.compile(r"GLIBC_([0-9]+(?:\.[0-9]+)+)")
SYMBOL = struct.Struct("<IBBHQQ")
"""A symbol in a table: name, type and binding, visibility, section, value, size (``Elf64_Sym`` of elf.h)."""

OBJECT, FUNCTION, INDIRECT_FUNCTION = 1, 2, 10
NOWHERE = (0, 0xFFF1)
"""Sections of symbols that the library does not define: ``SHN_UNDEF``, and ``SHN_ABS`` for the versions' own names."""

NOT_DEFAULT = 0x8000
"""Bit of a symbol's version that says that it is not the default one."""

Version = tuple[int, ...]


@dataclass(frozen=True)
class Symbol:
    """A symbol in one of its versions."""

    name: str
    version: Version
    is_code: bool

    @property
    def node(self) -> str:
        """The version as ELF has it."""
        return node(self.version)


def node(version: Version) -> str:
    """A version as ELF has it: ``GLIBC_2.28``."""
    return f"GLIBC_{'.'.join(map(str, version))}"


def make_stubs(
    floor: str, compiler: HostCompiler, scratch: Path, tools: RunsTools, where: Where, loader: str
) -> list[ToolResult]:
    """Write ``libc.so`` and the others into ``scratch``; the runs of the compiler are returned.

    Arguments:
        floor: the oldest glibc that libraries are to run with, such as ``2.28``.
        compiler: the C compiler, whose glibc is read.
        scratch: the folder to write to.
        tools: runs the compiler.
        where: the place for error messages.
        loader: the file name of the dynamic linker.

    Raises:
        ToolchainError: the compiler has no glibc of which the symbols can be read.
    """
    newest = tuple(map(int, floor.split(".")))
    done = []
    for name, soname in LIBRARIES.items():
        files = [soname, loader] if name == FROM_LOADER else [soname]
        symbols = chosen_symbols([_library(compiler, file, where) for file in files], newest, where)
        (scratch / f"{name}.s").write_text(assembly(symbols))
        (scratch / f"{name}.map").write_text(version_script(symbols))
        options = ["-shared", "-s", "-nostdlib", f"-Wl,-soname,{soname}", "-Wl,--build-id=none"]
        options += [f"-Wl,--version-script={name}.map"] if symbols else []
        command = [compiler.path, *options, f"{name}.s", "-o", f"{name}.so"]
        remedy = "report this as a defect of Kernelwright"
        done.append(tools.run(ToolCall(command, scratch, scratch, where, remedy, kind="link", subject=soname)))
    return done


def chosen_symbols(libraries: list[Path], floor: Version, where: Where) -> list[Symbol]:
    """For each symbol of some libraries its newest version that the floor has; sorted. Those without one are left out.

    Raises:
        ToolchainError: a file cannot be read.
    """
    newest: dict[str, Symbol] = {}
    for symbol in (symbol for library in libraries for symbol in _symbols(library, where)):
        known = newest.get(symbol.name)
        if symbol.version[:2] <= floor and (known is None or known.version < symbol.version):
            newest[symbol.name] = symbol
    return [newest[name] for name in sorted(newest)]


def assembly(symbols: list[Symbol]) -> str:
    """Defines the symbols, a byte each; nobody ever runs or reads that."""
    lines = ['.section .note.GNU-stack, "", @progbits', ".data"]
    for number, symbol in enumerate(symbols):
        label = f"kw_{number}"
        kind = "@function" if symbol.is_code else "@object"
        lines += [f".globl {label}", f".type {label}, {kind}", f"{label}: .byte 0", f".size {label}, 1"]
        lines += [f".symver {label}, {symbol.name}@@{symbol.node}"]
    return "\n".join([*lines, ""])


def version_script(symbols: list[Symbol]) -> str:
    """Declares the versions."""
    return "".join(f"{node(version)} {{ }};\n" for version in sorted({symbol.version for symbol in symbols}))


def _library(compiler: HostCompiler, soname: str, where: Where) -> Path:
    """The path of a library of the compiler's C library."""
    remedy = 'install glibc, or set glibc = "" to link with the C library that there is'
    done = run_tool([compiler.path, f"-print-file-name={soname}"], f"{compiler.path} cannot be run", remedy)
    path = Path(done.stdout.strip())
    if done.returncode != 0 or not path.is_absolute() or not path.is_file():
        raise ToolchainError(f"{compiler.path} has no {soname}", where, remedy)
    return path


def _symbols(library: Path, where: Where) -> list[Symbol]:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with library.open("rb") as stream:
            elf = ELFFile(stream)
            names = {
                definition["vd_ndx"]: next(auxiliary).name
                for definition, auxiliary in _section(elf, ".gnu.version_d").iter_versions()
            }
            # Not pyelftools' symbols: thousands of them would take it 0.3 s.
            table = _section(elf, ".dynsym").data()
            text = _section(elf, ".dynstr").data()
            versions = memoryview(_section(elf, ".gnu.version").data()).cast("H")
            rows = zip(SYMBOL.iter_unpack(table), versions, strict=True)
            symbols = [_symbol(item, names.get(version & ~NOT_DEFAULT, ""), text) for item, version in rows]
    except (OSError, ELFError, ValueError, struct.error) as error:
        remedy = 'mend that, or set glibc = "" to link with the C library that there is'
        raise ToolchainError(f"the symbols of {library} cannot be read: {error}", where, remedy) from error
    return [symbol for symbol in symbols if symbol is not None]


def _section(elf: Any, name: str) -> Any:
    section = elf.get_section_by_name(name)
    if section is None:
        raise ValueError(f"it has no section {name}")
    return section


def _symbol(item: tuple[int, ...], version: str, text: bytes) -> Symbol | None:
    """A symbol that the library defines for everybody; None for others."""
    start, info, _, section, _, _ = item
    kind = info & 0xF
    match = VERSION.fullmatch(version)
    if section in NOWHERE or kind not in (OBJECT, FUNCTION, INDIRECT_FUNCTION) or match is None:
        return None
    name = text[start : text.index(b"\0", start)].decode()
    return Symbol(name, tuple(map(int, match[1].split("."))), kind != OBJECT)


@dataclass(frozen=True)
class Floor:
    """The oldest glibc, the compiler whose glibc is read, and the file name of its dynamic linker."""

    glibc: str
    compiler: HostCompiler
    loader: str

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Write the libraries."""
        stage.took(*make_stubs(self.glibc, self.compiler, scratch, stage.tools, stage.where, self.loader))


def make(context: Context) -> Stage | None:
    """The stage for a package; None: its libraries are linked with the machine's own."""
    floor = context.settings.glibc
    compiler = context.tools.host_compiler
    if not floor or compiler.brings_glibc:
        return None
    request = Floor(floor, compiler, FAMILIES[context.settings.family].loader)
    outputs = files_in(context.work / context.glibc, [f"{name}.so" for name in LIBRARIES])
    return Stage("GLIBC", floor, Where(stage="link"), request, outputs, [])
