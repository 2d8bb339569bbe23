"""The compilers of front ends, which are beside TVM or in the environments that the settings of a project name."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import ToolchainError, Where
from ..core.need import OF_PLUGINS, OwnEnvironment
from ..define.settings import Settings, read_pyproject
from ..frontends.base import FrontEnd
from ..toolchain.distribution import Distribution
from ..toolchain.elsewhere import Elsewhere
from ..toolchain.probe import Toolchain


def found(front_end: FrontEnd, toolchain: Toolchain) -> Distribution | Elsewhere:
    """The compiler of a front end that can have an environment of its own, by the settings of this folder's project.

    Raises:
        ToolchainError: there is none, or it is of another release.
    """
    environment = front_end.own_environment
    assert environment
    setting = setting_of(environment.setting, Path.cwd(), front_end.name)
    given: Any = (f"{front_end.name}={setting}",) * bool(setting) if environment.setting == OF_PLUGINS else setting
    tool = front_end.tool(toolchain, replace(Settings(), **{environment.setting: given}))
    # If the setting names an environment, a compiler beside TVM does not stand in for one there.
    is_absent = tool is None or (isinstance(tool, Elsewhere) and bool(tool.python) and not tool.path)
    _require_known("absent" if tool is None or is_absent else tool.version, environment, setting)
    assert tool
    return tool


def shown(front_end: FrontEnd, toolchain: Toolchain) -> str:
    """Version and place of that compiler; of a plug-in without one, of its distribution. It raises the same."""
    if front_end.own_environment is None:
        return f"{front_end.distribution} {front_end.version}"
    tool = found(front_end, toolchain)
    return f"{tool.version} at {(tool.python if isinstance(tool, Elsewhere) else '') or sys.executable}"


def _require_known(version: str, environment: OwnEnvironment, setting: str) -> None:
    """Raise a ToolchainError for a compiler that is absent, or of another release."""
    where = Where(stage="settings")
    if version == "absent":
        empty = (
            f"the setting {environment.setting} is empty{', and it is not installed here' * bool(environment.shared)}"
        )
        message = f"{setting}, the setting {environment.setting}, has no {environment.title}" if setting else empty
        raise ToolchainError(message, where, environment.remedy)
    if not all(map(environment.knows, version.split(" and "))):
        message = f"there is {version}, and Kernelwright knows the launches of {environment.version}"
        raise ToolchainError(message, where, environment.remedy)


def setting_of(name: str, folder: Path, plugin: str = "") -> str:
    """A setting of the project that a folder belongs to; a path in it is relative to the project's folder.

    Arguments:
        name: the setting.
        plugin: the front end whose part it is, if the setting is that of all plug-ins.
    """
    top = next((place for place in (folder, *folder.parents) if (place / "pyproject.toml").is_file()), folder)
    given = read_pyproject(top / "pyproject.toml").get(name, "")
    named = given if isinstance(given, list) else [given]
    if name == OF_PLUGINS:
        named = [str(item).removeprefix(f"{plugin}=") for item in named if str(item).startswith(f"{plugin}=")]
    setting = str(named[0]) if named else ""
    return str(top / setting) if "/" in setting and not setting.startswith("~") else setting
