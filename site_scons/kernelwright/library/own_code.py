"""Host code of the author's own in a kernel's library: what its functions are called, and what it is linked with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ToolchainError, Where
from ..toolchain.nvcc import INSTALL_CUDA

if TYPE_CHECKING:
    from elftools.elf.sections import Symbol

EXPORT = "__tvm_ffi_"
"""What the C name of a function begins with that is exported for TVM-FFI."""

RUNTIME = "libcudart_static.a"
"""CUDA's runtime as an archive: what is linked with it needs no CUDA toolkit where it runs, and finds the driver."""

UNVERSIONED = 1
"""The largest number in a library's table of versions that stands for none."""

CXX = ("-Wl,-Bstatic", "-lstdc++", "-Wl,-Bdynamic", "-lgcc", "-lgcc_s")
"""The libraries of C++. The first one becomes a part of what is linked: its versions would otherwise be those of the
machine that builds. The last one unwinds stacks, of which a process needs one; tvm-ffi's library needs it, too."""


def own_symbol(kernel: str, function: str) -> str:
    """The C name of an exported function; that of the kernel's name is the dispatcher's, so another one stands in."""
    return f"kw_own_{kernel}" if function == kernel else f"{EXPORT}{function}"


def renaming(kernel: str) -> str:
    """The compiler's option with which sources give their functions the names of :func:`own_symbol`."""
    return f"-D{EXPORT}{kernel}={own_symbol(kernel, kernel)}"


def exported_functions(kernel: str, objects: Iterable[Path]) -> list[str]:
    """The functions that some objects export for TVM-FFI, sorted."""
    found = {name for path in objects for name in _defined(path)}
    own = {kernel} if own_symbol(kernel, kernel) in found else set()
    return sorted(own | {name.removeprefix(EXPORT) for name in found if name.startswith(EXPORT)})


def _defined(path: Path) -> list[str]:
    """The names of an object's functions that others can call."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    with path.open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".symtab")
        symbols = list(table.iter_symbols()) if isinstance(table, SymbolTableSection) else []
    return [s.name for s in symbols if s["st_info"]["bind"] != "STB_LOCAL" and s["st_shndx"] != "SHN_UNDEF"]


def cuda_runtime(nvcc: str, where: Where) -> Path:
    """CUDA's runtime beside an nvcc.

    Raises:
        ToolchainError: there is none.
    """
    top = Path(nvcc).resolve().parent.parent
    for folder in ("lib", "lib64", "targets/x86_64-linux/lib"):
        if (top / folder / RUNTIME).is_file():
            return top / folder / RUNTIME
    raise ToolchainError(f"there is no {RUNTIME} beside nvcc in {top}", where, INSTALL_CUDA)


def undefined_functions(library: Path, known: Path) -> list[str]:
    """What a library calls that no library is known to have; sorted.

    What it is linked with has versions: the C library, and the launcher's.

    Arguments:
        known: a library that is loaded before it.
    """
    theirs = {name for name, is_defined, _ in _dynamic(known) if is_defined}
    return sorted(
        name for name, is_defined, is_bound in _dynamic(library) if not (is_defined or is_bound or name in theirs)
    )


def _dynamic(library: Path) -> list[tuple[str, bool, bool]]:
    """The symbols that a library has for others or wants of them: whether it defines it, and whether it can do without.

    It can do without weak ones. One with a version was found when the library was linked.
    """
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    with library.open("rb") as stream:
        elf = ELFFile(stream)
        table, versions = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
        if not isinstance(table, SymbolTableSection) or versions is None:
            return []
        numbers = memoryview(versions.data()).cast("H")
        return [_named(symbol, number) for symbol, number in zip(table.iter_symbols(), numbers, strict=True)][1:]


def _named(symbol: Symbol, version: int) -> tuple[str, bool, bool]:
    is_optional = version > UNVERSIONED or symbol["st_info"]["bind"] == "STB_WEAK"
    return symbol.name, symbol["st_shndx"] != "SHN_UNDEF", is_optional
