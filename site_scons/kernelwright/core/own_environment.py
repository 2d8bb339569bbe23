"""The separate Python environment of a front end's compiler that cannot, or need not, share that of TVM."""

from __future__ import annotations

from typing import NamedTuple

from .need import Need


# A frozen dataclass would cost every run of scons 0.6 ms.
class OwnEnvironment(NamedTuple):
    """The environment of a front end's compiler, in which a process imports it (``worker/elsewhere.py``).

    Arguments:
        title: what messages call the compiler.
        need: the compiler.
        version: how the releases that the front end is written for begin.
        setting: the name of the setting that names the environment's Python interpreter.
        shared: how it can be had without an environment of its own, for messages; empty: it cannot.
    """

    title: str
    need: Need
    version: str
    setting: str
    shared: str = ""

    @property
    def remedy(self) -> str:
        """How to make the environment."""
        folder = self.need.module
        pip = self.need.install.replace("pip", f"{folder}/bin/pip", 1)
        return (
            f"{self.shared}make an environment for it, python3 -m venv {folder} && {pip}, "
            f'and write {self.setting} = "{folder}/bin/python" in pyproject.toml'
        )

    def knows(self, version: str) -> bool:
        """Whether the front end is written for a release."""
        return f"{version.partition('+')[0]}.".startswith(f"{self.version}.")
