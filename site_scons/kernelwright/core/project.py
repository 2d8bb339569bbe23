"""Tells the files of the project from those of Python, of installed packages, and of the system."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

MAX_DETAIL = 6000
"""Longest text in characters that an error shows of an exception."""

OWN_PACKAGE = str(Path(__file__).parents[1]) + os.sep

_SYSTEM = (
    *("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/local/lib/", "/dev/"),
    *("/usr/share/locale/", "/usr/share/i18n/", "/usr/share/zoneinfo/"),
    *("/etc/localtime/", "/etc/timezone/", "/etc/ld.so.cache/"),
)
"""Shared libraries, devices, languages and time zones."""


class Project:
    """Tells the files of the project from those of installed packages.

    Arguments:
        root: the project root.
    """

    def __init__(self, root: Path) -> None:
        self._names: dict[str, str | None] = {}
        self.root = os.path.abspath(root)  # noqa: PTH100 (symlinks stay: they are part of the names users know)
        # A definition may resolve the links in its own path to find the files beside it.
        self._roots = tuple(dict.fromkeys((self.root, os.path.realpath(root))))
        folders = (OWN_PACKAGE, sys.prefix + os.sep, sys.exec_prefix + os.sep)
        self._foreign = tuple(folder for folder in folders if self._inside(folder) is not None)

    def relative(self, path: str) -> str | None:
        """The name of a project file relative to the root (``.``), with forward slashes; None for any other file."""
        if path.startswith("<"):
            return None  # code without a file, such as "<frozen importlib._bootstrap>"
        if path not in self._names:
            full = os.path.abspath(path)  # noqa: PTH100
            if full != path:
                return self._relative(full)  # relative to a working folder that may change
            self._names[path] = self._relative(path)
        return self._names[path]

    def _relative(self, full: str) -> str | None:
        name = self._inside(full)
        if name is None or (full + os.sep).startswith(self._foreign):
            return None
        parts = name.split("/")
        return None if {"site-packages", "dist-packages", "__pycache__"}.intersection(parts) else name

    def is_in(self, data: bytes) -> bool:
        """Whether there is an absolute path of the project in some bytes, or one of a folder around it."""
        around = {Path(*Path(root).parts[:3]) for root in self._roots}  # such as /home/user
        return any(os.fsencode(folder) in data for folder in around)

    def shorten(self, text: str) -> str:
        """Text with the root removed from paths in it, and cut if it is very long."""
        text = text.replace(self.root + os.sep, "")
        return text if len(text) <= MAX_DETAIL else text[:MAX_DETAIL] + "\n[cut]"

    def location(self, location: str | None) -> str | None:
        """``path:line`` with the path relative to the root where it is a project file."""
        if location is None:
            return None
        path, colon, line = location.rpartition(":")
        name = self.relative(path) if colon else self.relative(location)
        return location if name is None else name + (f":{line}" if colon else "")

    def _inside(self, path: str) -> str | None:
        for root in self._roots:
            if path == root:
                return "."
            if path.startswith(root.rstrip(os.sep) + os.sep):
                return os.path.relpath(path, root).replace(os.sep, "/")
        return None


class Installation:
    """Tells what is installed, which is the same for every build of an environment, from all other files."""

    def __init__(self) -> None:
        paths = sysconfig.get_paths()
        self._standard = tuple(_with_slash(paths[name]) for name in ("stdlib", "platstdlib"))
        prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix} - {"/", "/usr", "/usr/local"}
        tvm = [path for name in ("tvm", "tvm_ffi") for path in getattr(sys.modules.get(name), "__path__", ())]
        self._folders = (*self._standard, *map(_with_slash, [*prefixes, *tvm]), OWN_PACKAGE)
        self._search_path = frozenset(os.path.abspath(folder) for folder in sys.path)  # noqa: PTH100

    def has(self, path: str) -> bool:
        """Whether a file, or a folder, belongs to Python, to an installed package, or to the system's libraries.

        Folders that modules are looked for in belong to Python, whatever else is in them: who asks for the version of
        an installed package lists them all.
        """
        known = (*self._folders, *_SYSTEM)
        return path in self._search_path or any(
            _is_installed(p) or _with_slash(p).startswith(known) for p in {path, os.path.realpath(path)}
        )

    def is_package_code(self, file: str) -> bool:
        """Whether code is that of an installed package, other than this one and the standard library."""
        if file.startswith(OWN_PACKAGE) or not file.startswith(os.sep):
            return False
        return _is_installed(file) or (file.startswith(self._folders) and not file.startswith(self._standard))

    def is_module_code(self, file: str) -> bool:
        """Whether code is that of an installed package other than this one, or of the standard library."""
        return self.is_package_code(file) or file.startswith(self._standard)


def _is_installed(path: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.split("/"))


def _with_slash(path: str) -> str:
    return path.rstrip(os.sep) + os.sep


__all__ = ["Installation", "Project"]
