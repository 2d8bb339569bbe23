"""Shared libraries of installed packages that a kernel is linked with by name: CUDA's from PyPI, and others."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.dependencies import IN_PACKAGE
from ..core.errors import DefinitionError, Where
from ..core.request import ASIDE
from ..core.surroundings import distributions_of, installed_digest, installed_record
from .package_folder import package_folder

INSTALL = "install the package that has it, such as nvidia-cublas, or write a path in a package"


@dataclass(frozen=True)
class Library:
    """A library that is found again, by its name, where the kernel runs.

    Arguments:
        name: what the dynamic linker calls it: ``libcublasLt.so.13``.
        folder: where it is below a folder of ``sys.path``: ``nvidia/cu13/lib``.
        requirement: what pip installs: ``nvidia-cublas>=13,<14``.
        distribution: the one that has it, as pip names its folder.
        recorded: digest of what pip has recorded of that.
        path: where it is here.
    """

    name: str
    folder: str
    requirement: str
    distribution: str
    recorded: str
    path: Path = field(metadata=ASIDE)

    @property
    def needed(self) -> tuple[str, str, str]:
        """What loaders have to know of it."""
        return self.name, self.folder, self.requirement


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
            (distribution, _, version), folder = owner
            major = version.partition(".")[0]
            span = f">={major},<{int(major) + 1}" if major.isdigit() else f"=={version}"
            requirement, recorded = distribution.replace("_", "-") + span, installed_digest(distribution)
            return Library(_soname(path, where), folder, requirement, distribution, recorded, path)
    message = f"libraries names {named.removeprefix(IN_PACKAGE)!r}, and no installed package has that library"
    raise DefinitionError(message, where, f"{INSTALL}: {IN_PACKAGE}acme/lib/libacme.so.1")


def _owner(path: Path) -> tuple[tuple[str, str, str], str] | None:
    """Name and version of the distribution that has a file, and the file's folder; None: pip has not installed it."""
    names = distributions_of([str(path)])
    record = installed_record(names[0]) if names else None
    if record is None or not path.is_relative_to(top := record.parent.parent):
        return None
    return record.parent.stem.partition("-"), path.parent.relative_to(top).as_posix()


def _soname(path: Path, where: Where) -> str:
    from elftools.common.exceptions import ELFError
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    try:
        with path.open("rb") as stream:
            dynamic = ELFFile(stream).get_section_by_name(".dynamic")
            tags: Iterable[Any] = dynamic.iter_tags("DT_SONAME") if isinstance(dynamic, DynamicSection) else ()
            for tag in tags:
                return str(tag.soname)
    except (OSError, ELFError) as error:
        message = f"libraries names {path.name}, which cannot be read as a shared library: {error}"
        raise DefinitionError(message, where, "install its package again, or name the library itself") from error
    message = f"libraries names {path.name}, which has no name for the dynamic linker"
    raise DefinitionError(message, where, f"link it with -Wl,-soname,{path.name}")
