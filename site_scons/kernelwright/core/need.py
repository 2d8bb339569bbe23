"""A Python package that has to be installed for something, and the line that installs it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

OF_PLUGINS = "plugin_pythons"
"""The setting that names the environments of all plug-ins."""


def metadata_name(distribution: str) -> str:
    """The name of a distribution as the folder of its metadata has it."""
    return re.sub(r"[-_.]+", "_", distribution).lower()


@dataclass(frozen=True)
class Need:
    """A Python package that has to be installed.

    Arguments:
        module: what is imported of it.
        requirement: what pip installs, such as ``torch>=2.4``.
        otherwise: how to do without it here, for messages; empty: there is no way.
    """

    module: str
    requirement: str
    otherwise: str = ""

    @property
    def name(self) -> str:
        """The name of the distribution."""
        return re.split(r"[^A-Za-z0-9._-]", self.requirement, maxsplit=1)[0]

    @property
    def install(self) -> str:
        """The command line that installs it."""
        import shlex  # a build with nothing to do installs nothing

        return f"pip install {shlex.quote(self.requirement)}"

    @property
    def is_installed(self) -> bool:
        """Whether the module can be found; it is not imported."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except (ImportError, ValueError):  # the package that it should be in is missing, or is none
            return False


@dataclass(frozen=True)
class Interpreter:
    """What runs definitions of a front end on the CPU, slowly, to compare them with references without a GPU.

    Arguments:
        name: what messages call it.
        needs: what has to be installed for it.
        variables: those of the environment with which a definition can be interpreted, and cannot be compiled.
    """

    name: str
    needs: tuple[Need, ...]
    variables: Mapping[str, str]

    @property
    def missing(self) -> str:
        """The command line that installs what is missing; empty: nothing is."""
        return " && ".join(need.install for need in self.needs if not need.is_installed)

    def missing_in(self, python: str, has: Callable[[Need], bool]) -> str:
        """The same in another environment.

        Arguments:
            python: its interpreter.
            has: whether something is installed there.
        """
        import shlex

        absent = [shlex.quote(need.requirement) for need in self.needs if not has(need)]
        return f"{python} -m pip install {' '.join(absent)}" if absent else ""


# Frozen dataclasses would cost every run of scons 0.6 ms.
class Parts(NamedTuple):
    """The files that decide what a compiler makes.

    Arguments:
        distributions: as their folders have them, itself first.
        headers: the folder of headers whose contents count even where they are not what pip has recorded.
        modules: the folder of its modules; empty: it has the name of the distribution.
    """

    distributions: tuple[str, ...]
    headers: str = ""
    modules: str = ""

    def folder(self, records: Sequence[Path]) -> Path:
        """The folder of its modules, of which there is a record."""
        return records[0].parent.parent / (self.modules or self.distributions[0])

    def files(self, records: Sequence[Path]) -> list[Path]:
        """Its records and its own headers."""
        headers = self.folder(records).joinpath(self.headers).rglob("*.h") if records and self.headers else ()
        return [*records, *sorted(headers)]


class OwnEnvironment(NamedTuple):
    """The environment of a front end's compiler, in which a process imports it (``worker/elsewhere.py``).

    Arguments:
        title: what messages call the compiler.
        need: the compiler. Its module is what the environment is called, and for a plug-in the name of the front end.
        version: how the releases that the front end is written for begin.
        setting: the name of the setting that names the environment's Python interpreter.
        parts: the files of the compiler there.
        shared: how it can be had without an environment of its own, for messages; empty: it cannot.
    """

    title: str
    need: Need
    version: str
    setting: str
    parts: Parts
    shared: str = ""

    @property
    def remedy(self) -> str:
        """How to make the environment."""
        folder = self.need.module
        python = f"{folder}/bin/python"
        value = f'["{folder}={python}"]' if self.setting == OF_PLUGINS else f'"{python}"'
        pip = self.need.install.replace("pip", f"{folder}/bin/pip", 1)
        return (
            f"{self.shared}make an environment for it, python3 -m venv {folder} && {pip}, "
            f"and write {self.setting} = {value} in pyproject.toml"
        )

    def knows(self, version: str) -> bool:
        """Whether the front end is written for a release."""
        return f"{version.partition('+')[0]}.".startswith(f"{self.version}.")
