"""PyTorch where kernels are built: its libraries, and what a library that is linked needs of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.errors import ToolchainError, Where
from ..core.need import Need
from ..core.request import ASIDE
from ..core.surroundings import installed_digest, installed_record
from .package_folder import package_folder

NEED = Need("torch", "torch>=2.4")

FOLDER = "torch/lib"
"""The folder of its libraries, below the folder that pip installs into."""

LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libtorch.so", "libtorch_cuda.so", "libc10_cuda.so")
"""The libraries of PyTorch that sources can call. The last two are in PyTorch for CUDA only."""

OPTIONAL = re.compile(r"(?:aoti_torch|torch)_\w*cuda\w*")
"""The functions of PyTorch's stable ABI that are in PyTorch for CUDA only. What they return is a status."""

ABI = ("inductor/aoti_torch", "stable/c")
"""The folders of the headers of PyTorch's stable ABI in C. PyTorch for CPUs has those for CUDA, too."""

OF_CUDA = (
    ("libc10_cuda.so", re.compile(r"\w*NK?3c104cuda\w*")),
    ("libtorch_cuda.so", re.compile(rf"\w*NK?2at4cuda\w*|{OPTIONAL.pattern}")),
)
"""The libraries that are in PyTorch for CUDA only, and the names of what they have: in C++, and in C."""

STABLE = re.compile(r"(aoti_torch|torch)_\w+")
"""The functions of PyTorch's stable ABI."""

OF_TOOLKIT = {"cublas_v2.h": "nvidia-cublas", "cusolverDn.h": "nvidia-cusolver", "cusparse.h": "nvidia-cusparse"}
"""What PyTorch's headers for CUDA, such as ``ATen/cuda/CUDAContext.h``, include -> the packages that have it."""

TARGET_VERSION = re.compile(
    r"-D ?TORCH_TARGET_VERSION=0x([0-9a-fA-F]{2})([0-9a-fA-F]{2})[0-9a-fA-F]{12}(?![0-9a-fA-F])\w*"
)
"""The flag that says for which PyTorch the headers of the stable ABI are: major and minor version come first."""


@dataclass(frozen=True)
class Torch:
    """PyTorch as it is installed.

    Arguments:
        version: such as ``2.13.0+cpu``.
        recorded: digest of what pip has recorded of it.
        folder: its libraries.
    """

    version: str
    recorded: str
    folder: Path = field(metadata=ASIDE)

    @property
    def minor(self) -> str:
        """Its major and minor version: ``2.13``."""
        return ".".join(self.version.split(".")[:2])

    @property
    def libraries(self) -> list[Path]:
        """Those of its libraries that there are."""
        return [path for path in (self.folder / name for name in LIBRARIES) if path.is_file()]

    def declared(self, names: Iterable[str]) -> set[str]:
        """Those of some functions of the stable ABI that its headers know."""
        top = self.folder.parent / "include/torch/csrc"
        headers = (header for folder in ABI for header in (top / folder).rglob("*.h"))
        words = {word for one in headers for word in re.findall(r"\w+", one.read_text("utf-8", "replace"))}
        return words.intersection(names)

    def requirement(self, is_stable: bool, flags: Iterable[str]) -> str:
        """What pip has to install for a library.

        Arguments:
            is_stable: whether the library needs the stable ABI only.
            flags: those of its sources; they may say which version the ABI is to be of.
        """
        if not is_stable:
            return f"torch=={self.minor}.*"
        asked = TARGET_VERSION.findall(" ".join(flags))  # of several, the compiler takes the last one
        return f"torch>={int(asked[-1][0], 16)}.{int(asked[-1][1], 16)}" if asked else f"torch>={self.minor}"


def find_torch(where: Where) -> Torch:
    """PyTorch, which is not imported.

    Raises:
        ToolchainError: it is not installed.
    """
    record = installed_record("torch")
    if record is None:
        raise ToolchainError("PyTorch is not installed where kernels are built", where, NEED.install)
    version = record.parent.stem.partition("-")[2]
    return Torch(version, installed_digest("torch"), package_folder(FOLDER, where, "libraries"))


def lacking_headers(toolkit: Path) -> str:
    """What PyTorch's headers for CUDA include and this machine lacks, with what to do; empty: it lacks nothing.

    Arguments:
        toolkit: the folder of nvcc's toolkit.
    """
    absent = [header for header in OF_TOOLKIT if not (toolkit / "include" / header).is_file()]
    return f"{', '.join(absent)} (pip install {' '.join(OF_TOOLKIT[header] for header in absent)})" if absent else ""


def defined_in(library: Path, names: Iterable[str]) -> set[str]:
    """Those of some symbols that a shared library defines. Its hash table is asked, because it has many thousands."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.hash import GNUHashSection

    with library.open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".gnu.hash")
        if not isinstance(table, GNUHashSection):
            return set()
        found = {name: table.get_symbol(name) for name in names}
        return {name for name, symbol in found.items() if symbol and symbol["st_shndx"] != "SHN_UNDEF"}


@dataclass(frozen=True)
class Undefined:
    """Symbols that a library needs from elsewhere.

    Arguments:
        torch: those that libraries of PyTorch define.
        cuda: the name of a library of PyTorch for CUDA that is not installed -> what it defines.
        rest: those that are in neither.
    """

    torch: tuple[str, ...]
    cuda: dict[str, list[str]]
    rest: tuple[str, ...]

    @property
    def is_stable(self) -> bool:
        """Whether what it needs of PyTorch is the stable ABI."""
        return all(map(STABLE.fullmatch, (*self.torch, *(name for names in self.cuda.values() for name in names))))


def sorted_out(names: Sequence[str], libraries: Iterable[Path]) -> Undefined:
    """Which of some symbols PyTorch has.

    Arguments:
        libraries: those of PyTorch that are installed.
    """
    here = list(libraries)
    known = {name for library in here for name in defined_in(library, names)}
    of_cuda = {name: where for name in names if name not in known for where in _of_cuda(name, {p.name for p in here})}
    cuda = {library: [name for name in names if of_cuda.get(name) == library] for library in set(of_cuda.values())}
    rest = (name for name in names if name not in known and name not in of_cuda)
    return Undefined(tuple(name for name in names if name in known), dict(sorted(cuda.items())), tuple(rest))


def without_others(undefined: Undefined, torch: Torch) -> Undefined:
    """The same, with those functions in ``rest`` whose names only look like those of the stable ABI."""
    named = {name for names in undefined.cuda.values() for name in names if OPTIONAL.fullmatch(name)}
    others = named - torch.declared(named) if named else named
    cuda = {library: [name for name in names if name not in others] for library, names in undefined.cuda.items()}
    found = {library: names for library, names in cuda.items() if names}
    return replace(undefined, cuda=found, rest=(*undefined.rest, *sorted(others)))


def names_of_cuda(undefined: Undefined, torch: Torch) -> list[str]:
    """What a library needs of PyTorch for CUDA, whether that is installed or not."""
    here = [path for path in torch.libraries if "cuda" in path.name]
    installed = sorted_out(undefined.torch, here).torch if here else ()
    return [*installed, *(name for names in undefined.cuda.values() for name in names)]


def _of_cuda(name: str, installed: Iterable[str]) -> Iterator[str]:
    """The library of PyTorch for CUDA that a symbol is in, by its name, unless that is installed and lacks it."""
    named = next((library for library, pattern in OF_CUDA if pattern.fullmatch(name)), "")
    if named and named not in installed:
        yield named


def stand_in_text(names: Iterable[str]) -> str:
    """Assembler text of a library that has functions of some names, which end the process."""
    # An instruction that there never is: in x86-64, and in aarch64.
    functions = "".join(f".globl {name}\n.type {name}, @function\n{name}: .long 0xb0f\n" for name in names)
    return f'.section .note.GNU-stack, "", @progbits\n.text\n{functions}'
