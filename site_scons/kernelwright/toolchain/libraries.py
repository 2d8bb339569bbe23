"""Shared libraries of installed packages that a kernel is linked with by name: CUDA's from PyPI, and others."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath
from typing import Any

from ..core.dependencies import IN_PACKAGE
from ..core.errors import DefinitionError, Where
from ..core.request import ASIDE
from .package_folder import package_folder

INSTALL = "install the package that has it, such as nvidia-cublas, or write a path in a package"


@dataclass(frozen=True)
class Library:
    """A library that is found again, by its name, where the kernel runs.

    Arguments:
        name: what the dynamic linker calls it: ``libcublasLt.so.13``.
        folder: where it is below a folder of ``sys.path``: ``nvidia/cu13/lib``.
        requirement: what pip installs: ``nvidia-cublas>=13,<14``.
        version: of the distribution that it was linked from.
        path: where it is here.
    """

    name: str
    folder: str
    requirement: str
    version: str
    path: Path = field(metadata=ASIDE)

    @property
    def needed(self) -> list[str]:
        """What loaders have to know of it."""
        return [self.name, self.folder, self.requirement]


def find_library(named: str, toolkit: Path, where: Where) -> Library:
    """The library that a definition names.

    Arguments:
        named: ``cublasLt``, for a library of CUDA's packages, or ``package:acme/lib/libacme.so.1``.
        toolkit: the folder of the CUDA toolkit, which is asked first.
        where: the place for error messages.

    Raises:
        DefinitionError: no installed package has it.
    """
    if named.startswith(IN_PACKAGE):
        folder, _, file = named.rpartition("/")
        path = package_folder(folder, where, "libraries") / file
        paths = [path] if path.is_file() else []
    else:
        tops = [toolkit, *(folder for top in sys.path for folder in sorted(Path(top).glob("nvidia/*")))]
        paths = [path for top in tops for path in sorted(top.glob(f"lib/lib{named}.so*"))]
    for path in paths:
        if (owner := _owner(path)) is not None:
            distribution, folder = owner
            major = distribution.version.partition(".")[0]
            span = f">={major},<{int(major) + 1}" if major.isdigit() else f"=={distribution.version}"
            return Library(_soname(path, where), folder, f"{distribution.name}{span}", distribution.version, path)
    message = f"libraries names {named.removeprefix(IN_PACKAGE)!r}, and no installed package has that library"
    raise DefinitionError(message, where, f"{INSTALL}: {IN_PACKAGE}acme/lib/libacme.so.1")


def _owner(path: Path) -> tuple[Distribution, str] | None:
    """The distribution that has a file, and the file's folder in it; None: pip has not installed it."""
    for top in dict.fromkeys(sys.path):
        if top and path.is_relative_to(top):
            inside = PurePosixPath(path.relative_to(top).as_posix())
            for distribution in distributions(path=[top]):
                if f"\n{inside}," in f"\n{distribution.read_text('RECORD')}":
                    return distribution, inside.parent.as_posix()
    return None


def _soname(path: Path, where: Where) -> str:
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as stream:
        dynamic = ELFFile(stream).get_section_by_name(".dynamic")
        tags: Iterable[Any] = dynamic.iter_tags("DT_SONAME") if isinstance(dynamic, DynamicSection) else ()
        for tag in tags:
            return str(tag.soname)
    message = f"libraries names {path.name}, which has no name for the dynamic linker"
    raise DefinitionError(message, where, f"link it with -Wl,-soname,{path.name}")
