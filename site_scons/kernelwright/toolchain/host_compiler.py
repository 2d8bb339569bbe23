"""Finds and probes the C compiler."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import ToolchainError
from ..core.files import sha256_of
from ..core.request import ASIDE
from .ask import WHERE, answer, identity

INSTALL_COMPILER = "install gcc and g++, or set host_compiler"


@dataclass(frozen=True)
class HostCompiler:
    """A C compiler: its path, the first line of ``--version``, and a digest of what decides its output.

    Arguments:
        cross: the family of CPUs that it compiles for, if that is not this machine's.
        brings_glibc: whether it links for an older glibc by itself.
    """

    path: str = field(metadata=ASIDE)
    version: str
    identity: str
    cross: str = ""
    brings_glibc: bool = False

    def named(self, tool: str) -> str:
        """What scripts call a tool for its CPUs: ``CC`` or, for those of another family, ``CC_AARCH64``."""
        return f"{tool}_{self.cross.upper()}" if self.cross else tool


def find_host_compiler(setting: str, environment: Mapping[str, str]) -> str:
    """Path of the C compiler: the setting, else cc, gcc or clang on PATH.

    Raises:
        ToolchainError: there is none.
    """
    for name in [setting] if setting else ["cc", "gcc", "clang"]:
        path = shutil.which(name, path=environment.get("PATH"))
        if path is not None:
            return str(Path(path).absolute())
    compiler = f"host_compiler = {setting!r}" if setting else "a C compiler (cc, gcc or clang)"
    raise ToolchainError(f"{compiler} is not on PATH", WHERE, INSTALL_COMPILER)


def probe_host_compiler(path: str) -> HostCompiler:
    """Identify the compiler.

    Raises:
        ToolchainError: it does not answer.
    """
    version = answer([path, "--version"], INSTALL_COMPILER).splitlines()[0]
    machine = answer([path, "-dumpmachine"], INSTALL_COMPILER).strip()
    return HostCompiler(path, version, identity([version, machine, sha256_of(Path(path))]))
