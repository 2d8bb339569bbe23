"""Sources with host code of their own: what kernels call their functions, and what their library is linked with."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.arch import FAMILIES, native_family
from ..core.errors import ToolchainError, Where
from ..toolchain.nvcc import INSTALL_CUDA, Nvcc
from .assembler import ASSEMBLER

if TYPE_CHECKING:
    from elftools.elf.sections import Symbol

EXPORT = "__tvm_ffi_"
"""The prefix of the C name of a function that is exported for TVM-FFI."""

RUNTIME = "libcudart_static.a"
"""CUDA's runtime as an archive: a library that is linked with it runs without a CUDA toolkit, and finds the driver."""

OF_DRIVER = re.compile(r"cu(?!File[A-Z])[A-Z]\w*")
"""The names of functions of the CUDA driver; those of its runtime and of libraries go on with a small letter, but for
those of cuFile."""

UNVERSIONED = 1
"""Numbers up to this one in a library's table of versions stand for no version."""

CXX = ("-Wl,-Bstatic", "-lstdc++", "-Wl,-Bdynamic", "-lgcc", "-lgcc_s")
"""The libraries of C++. The first one becomes a part of what is linked: its versions would otherwise be those of the
machine that builds. The last one unwinds stacks, of which a process needs one; tvm-ffi's library needs it, too."""


OWN = "kw_own_"
"""The prefix of the C name by which kernels call a function of sources: ``EXPORT`` is that of dispatchers."""


def own_symbol(function: str, library: str) -> str:
    """The C name by which kernels call a function of sources.

    Arguments:
        library: the name of the library of these sources, with or without its ending: the digest at its end keeps
            functions of several libraries apart, which variants of a kernel may call by one name.
    """
    return f"{OWN}{library.removesuffix('.so').rpartition('-')[2]}_{function}"


def functions_text(functions: Iterable[str], library: str, family: str) -> str:
    """Assembler text of what kernels call, for functions that sources export, and for a family of CPUs; ``library`` is
    as above.
    """
    text = ASSEMBLER[family].function
    named = ((own_symbol(name, library), f"{EXPORT}{name}") for name in functions)
    return "".join(text.format(symbol=symbol, exported=exported) for symbol, exported in named)


def exported_functions(objects: Iterable[Path]) -> list[str]:
    """The functions that some objects export for TVM-FFI, sorted."""
    symbols = {name for path in objects for name in _symbols(path, defined=True)}
    return sorted(name.removeprefix(EXPORT) for name in symbols if name.startswith(EXPORT))


def _symbols(path: Path, *, defined: bool) -> list[str]:
    """The names of the global symbols that an object defines, or else of those that it needs."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    with path.open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".symtab")
        symbols = list(table.iter_symbols()) if isinstance(table, SymbolTableSection) else []
    shared = [symbol for symbol in symbols if symbol["st_info"]["bind"] != "STB_LOCAL"]
    return [symbol.name for symbol in shared if (symbol["st_shndx"] != "SHN_UNDEF") == defined]


def driver_functions(objects: Collection[Path], text: str, known: Iterable[Path]) -> list[str]:
    """The functions of the CUDA driver that some objects call, sorted; and those that assembler text names.

    Arguments:
        known: libraries that are loaded before. What they or the objects have is not the driver's.
    """
    named = {name for path in objects for name in needed_symbols(path)} | set(re.findall(r"\w+", text))
    needed = {*filter(OF_DRIVER.fullmatch, named)}
    if needed:  # libraries can have many thousands of symbols
        needed -= {name for path in objects for name in _symbols(path, defined=True)} | _defined(known)
    return sorted(needed)


def contents(path: Path) -> bytes:
    """The contents of an object's sections, with a zero in front of each."""
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as stream:
        return b"".join(b"\0" + part.data() for part in ELFFile(stream).iter_sections("SHT_PROGBITS"))


def needed_symbols(path: Path) -> list[str]:
    """The names of the symbols that an object needs from elsewhere."""
    return _symbols(path, defined=False)


def driver_text(functions: Iterable[str], family: str) -> str:
    """Assembler text for a family of CPUs: functions of these names, which call those of the driver.

    The driver is looked for at the first call, so that neither building nor loading a package needs one.
    """
    texts = ASSEMBLER[family]
    return texts.driver + "".join(texts.of_driver.format(name=name) for name in functions)


def cuda_runtime(nvcc: Nvcc | None, where: Where, family: str, toolkit: str = "") -> Path:
    """CUDA's runtime for a family of CPUs.

    Arguments:
        toolkit: the folder of a CUDA toolkit for CPUs of another family than this machine's.

    Raises:
        ToolchainError: there is none.
    """
    top, is_native = Path(nvcc.path if nvcc else "").resolve().parent.parent, family == native_family()
    below = f"targets/{FAMILIES[family].cuda}/lib"
    places: list[Path] = [top / folder for folder in (*(("lib", "lib64") if is_native else ()), below)]
    if toolkit and not is_native:
        # What pip install --target makes has it below nvidia.
        places += [Path(toolkit, folder) for folder in ("lib", "lib64", below)]
        places += sorted(Path(toolkit).glob("nvidia/cu*/lib"))
    for place in places:
        if (place / RUNTIME).is_file():
            return place / RUNTIME
    if is_native:
        raise ToolchainError(f"there is no {RUNTIME} beside nvcc in {top}", where, INSTALL_CUDA)
    release = f"=={'.'.join(nvcc.version.split('.')[:2])}.*" if nvcc else ""
    options = f"--target cuda-{family} --no-deps --only-binary=:all: --platform manylinux2014_{family}"
    remedy = f"pip install {options} 'nvidia-cuda-runtime{release}', and write cross_cuda = \"cuda-{family}\""
    raise ToolchainError(f"there is no {RUNTIME} for {family} beside nvcc, nor in cross_cuda", where, remedy)


def undefined_functions(library: Path, known: Iterable[Path]) -> list[str]:
    """The symbols that a library needs and none of the known libraries has; sorted.

    Symbols with a version were found when it was linked: in the C library, or the launcher's.

    Arguments:
        known: libraries that are loaded before it.
    """
    theirs = _defined(known)
    return sorted(
        name for name, is_defined, is_bound in _dynamic(library) if not (is_defined or is_bound or name in theirs)
    )


def _defined(libraries: Iterable[Path]) -> set[str]:
    return {name for library in libraries for name, is_defined, _ in _dynamic(library) if is_defined}


def _dynamic(library: Path) -> list[tuple[str, bool, bool]]:
    """The dynamic symbols of a library: name, whether the library defines it, and whether it may be missing elsewhere.

    A weak symbol may be missing. A symbol with a version was found when the library was linked.
    """
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    with library.open("rb") as stream:
        elf = ELFFile(stream)
        table, versions = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
        if not isinstance(table, SymbolTableSection):
            return []
        # A library that neither has versions nor needs any has no list of them.
        numbers = memoryview(versions.data()).cast("H") if versions else [UNVERSIONED] * table.num_symbols()
        return [_named(symbol, number) for symbol, number in zip(table.iter_symbols(), numbers, strict=True)][1:]


def _named(symbol: Symbol, version: int) -> tuple[str, bool, bool]:
    is_optional = version > UNVERSIONED or symbol["st_info"]["bind"] == "STB_WEAK"
    return symbol.name, symbol["st_shndx"] != "SHN_UNDEF", is_optional
