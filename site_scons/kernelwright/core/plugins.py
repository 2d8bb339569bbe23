"""Front ends that other distributions bring: entry points name them.

Only a name that a definition uses is looked up, and only that plug-in is imported.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import KernelwrightError, ToolchainError, Where
from .files import sha256_of
from .need import metadata_name
from .surroundings import installed_digest

INTERFACE = 1
"""The version of what plug-ins are asked for and may call; docs/extending.md describes it."""

WHERE = Where(stage="plug-in")

GROUP = "kernelwright.frontends"
"""The group of the entry points."""


def installed() -> list[str]:
    """The names of all plug-ins that are installed, sorted."""
    from importlib.metadata import entry_points  # takes 30 ms, and few runs have plug-ins

    return sorted({point.name for point in entry_points(group=GROUP)})


@cache
def find(name: str, base: type) -> Any:
    """The plug-in of a name, for the rest of this process; None: none was installed when it was asked for.

    Arguments:
        base: the class that it has to be an object of.

    Raises:
        ToolchainError: it cannot be imported, it is no such object, it is for another version of the interface, or two
            distributions have one of that name.
    """
    from importlib.metadata import entry_points

    found = {}
    for point in entry_points(group=GROUP, name=name):
        found[point.dist.name if point.dist else "a distribution without a name"] = point
    if len(found) > 1:
        both = " and ".join(sorted(found))
        raise ToolchainError(f"{both} both have a front end {name!r}", WHERE, "uninstall all of them but one")
    for distribution, point in found.items():
        subject = f"the front end {name!r} of {distribution}"
        with guarded(f"{subject} cannot be imported"):
            plugin = point.load()
        for wrong in _wrong(plugin, name, base, point.value):
            raise ToolchainError(f"{subject} {wrong}", WHERE, f"mend {distribution}, or install another version of it")
        plugin.distribution, plugin.version = distribution, point.dist.version if point.dist else ""
        plugin.content = _content(plugin)
        for target in plugin.targets:
            with guarded(f"{subject} does not tell its files for {target}"):
                plugin.files(target, ())
        return plugin
    return None


@contextlib.contextmanager
def guarded(problem: str) -> Iterator[None]:
    """Make what a plug-in raises an error of ours, in this process; in workers it is that of other front ends.

    Raises:
        ToolchainError: the problem, and what was raised.
    """
    try:
        yield
    except KernelwrightError:
        raise
    except Exception as error:
        message, remedy = f"{problem}: {type(error).__name__}: {error}", "install what it needs, or repair it"
        raise ToolchainError(message, WHERE, remedy, detail=traceback.format_exc()) from error


def folders_of(plugin: Any) -> list[Path]:
    """The folders of the modules of a plug-in; none if it is a single file."""
    return [Path(folder) for folder in getattr(_top_module(plugin), "__path__", ())]


def _top_module(plugin: Any) -> ModuleType:
    return sys.modules[type(plugin).__module__.partition(".")[0]]


def content_of(plugin: Any) -> list[str]:
    """Digests of a plug-in's own files and of the distributions that it needs: what may decide what it makes.

    Raises:
        ToolchainError: they have changed since this process imported it. This process and its workers may run what
            was there before, so a result would count as that of another content.
    """
    if plugin.content != _content(plugin):
        message = f"{plugin.distribution}, which has the front end {plugin.name!r}, has changed since it was imported"
        raise ToolchainError(message, WHERE, "start this process again")
    return list(plugin.content)


def _content(plugin: Any) -> list[str]:
    """The same, now. The files themselves are read, because the record of an editable install does not list them."""
    files = [(p, p.relative_to(folder).as_posix()) for folder in folders_of(plugin) for p in folder.rglob("*")]
    files = files or [(Path(str(_top_module(plugin).__file__)), "")]
    own = [
        f"{name} {sha256_of(path)}"
        for path, name in sorted(files)
        if path.is_file() and "__pycache__" not in name and not name.endswith(".pyc")
    ]
    return [*own, *(f"{need.name} {installed_digest(metadata_name(need.name))}" for need in plugin.needs)]


def _wrong(plugin: Any, name: str, base: type, value: str) -> Iterator[str]:
    """What is wrong with an object that an entry point names."""
    if not isinstance(plugin, base):
        yield f"is of type {type(plugin).__name__}, expected a {base.__name__}, as {value} has to be"
    if plugin.interface != INTERFACE:
        yield f"is for version {plugin.interface} of the interface, and this Kernelwright has version {INTERFACE}"
    if plugin.name != name:
        yield f"has the name {plugin.name!r}, and its entry point another"
