"""TileLang and Triton in the environments that the settings of a project name."""

from __future__ import annotations

import sys
from pathlib import Path

from ..core.errors import ToolchainError, Where
from ..core.need import OwnEnvironment
from ..define.settings import read_pyproject
from ..frontends.tilelang import program as tilelang_program
from ..frontends.triton import program as triton_program
from ..toolchain.elsewhere import Elsewhere
from ..toolchain.probe import Toolchain


def found_tilelang(toolchain: Toolchain) -> Elsewhere:
    """TileLang in the environment that the settings of this folder's project name.

    Raises:
        ToolchainError: there is none, or it is of another release.
    """
    environment = tilelang_program.ENVIRONMENT
    found = toolchain.tilelang(setting_of(environment.setting, Path.cwd()))
    _require_known(found.version, environment)
    return found


def found_triton(toolchain: Toolchain) -> str:
    """Triton and where it is: in the environment that these settings name, or in this one. Raises the same errors."""
    environment = triton_program.ENVIRONMENT
    found = toolchain.triton(setting_of(environment.setting, Path.cwd()))
    # If the setting names an environment, the Triton beside TVM does not stand in for one there.
    _require_known("absent" if found.python and not found.path else found.version, environment)
    return f"{found.version} at {found.python or sys.executable}"


def _require_known(version: str, environment: OwnEnvironment) -> None:
    """Raise a ToolchainError for a compiler that is absent, or of another release."""
    setting, where = setting_of(environment.setting, Path.cwd()), Where(stage="settings")
    if version == "absent":
        empty = (
            f"the setting {environment.setting} is empty{', and it is not installed here' * bool(environment.shared)}"
        )
        message = f"{setting}, the setting {environment.setting}, has no {environment.title}" if setting else empty
        raise ToolchainError(message, where, environment.remedy)
    if not all(map(environment.knows, version.split(" and "))):
        message = f"there is {version}, and Kernelwright knows the launches of {environment.version}"
        raise ToolchainError(message, where, environment.remedy)


def setting_of(name: str, folder: Path) -> str:
    """A setting of the project that a folder belongs to; a path in it is relative to the project's folder."""
    top = next((place for place in (folder, *folder.parents) if (place / "pyproject.toml").is_file()), folder)
    setting = str(read_pyproject(top / "pyproject.toml").get(name, ""))
    return str(top / setting) if "/" in setting and not setting.startswith("~") else setting
