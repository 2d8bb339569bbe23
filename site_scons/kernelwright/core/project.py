"""Tells whether a file belongs to the user, or to Python, a package or the system."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from .dependencies import found_name, repository_around

MAX_DETAIL = 6000
"""Longest text in characters that an error shows of an exception."""

OWN_PACKAGE = str(Path(__file__).parents[1]) + os.sep

_SYSTEM = (
    *("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/local/lib/", "/dev/"),
    *("/usr/share/locale/", "/usr/share/i18n/", "/usr/share/zoneinfo/"),
    *("/etc/localtime/", "/etc/timezone/", "/etc/ld.so.cache/"),
)
"""Shared libraries, devices, languages and time zones."""

MACHINE = ("/proc/", "/sys/")
"""What the system says about the machine. It may be another thing each time, so it is no file that has a digest."""


class Project:
    """Tells the files of the project from those of installed packages.

    Arguments:
        root: the project root.
    """

    def __init__(self, root: Path) -> None:
        self._names: dict[str, str | None] = {}
        self._users: dict[str, str | None] = {}
        self.root = os.path.abspath(root)  # noqa: PTH100 (symlinks stay: they are part of the names users know)
        # A definition may resolve the links in its own path to find the files beside it.
        self._roots = tuple(dict.fromkeys((self.root, os.path.realpath(root))))
        self._repositories = [(top, str(found)) for top in self._roots if (found := repository_around(Path(top)))]
        tops = (*self._roots, *(repository for _, repository in self._repositories))
        folders = {OWN_PACKAGE, *(prefix + os.sep for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix))}
        self._foreign = tuple(folder for folder in folders if any(_is_below(folder, top) for top in tops))

    def leave_out(self, folders: Iterable[Path]) -> None:
        """Count no file in some folders as the user's from now on, wherever they are: a plug-in has them."""
        self._foreign = (*self._foreign, *(_with_slash(str(folder)) for folder in folders))
        self._names.clear()
        self._users.clear()

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

    def name(self, path: str, installation: Installation) -> str | None:
        """The name of a file, or folder, of the user's as that of a dependency; None for any other file.

        A file of the project, or of the repository that the project is in, is named relative to the root, so that the
        name means the same in another checkout. So does that of a file which is found in the search path of Python,
        such as one of an editable installation. All others have their absolute paths.
        """
        known = self.relative(path)
        if known is not None or path.startswith("<"):
            return known
        full = os.path.abspath(path)  # noqa: PTH100
        if full not in self._users:
            self._users[full] = self._name_outside(full, installation)
        return self._users[full]

    def _name_outside(self, full: str, installation: Installation) -> str | None:
        if (full + os.sep).startswith((*self._foreign, *MACHINE)) or _is_foreign(full):
            return None
        known = self._in_repository(full)
        if known is not None or installation.has(full):
            return known
        return found_name(full, installation.search_path) or full

    def _in_repository(self, full: str) -> str | None:
        for root, repository in self._repositories:
            name = os.path.relpath(full, root)
            # With links on the way, the name might lead elsewhere.
            if _is_below(full, repository) and os.path.realpath(os.path.join(root, name)) == os.path.realpath(full):  # noqa: PTH118
                return name.replace(os.sep, "/")
        return None

    def _relative(self, full: str) -> str | None:
        name = self._inside(full)
        if name is None or (full + os.sep).startswith(self._foreign):
            return None
        return None if _is_foreign(name) else name

    def is_in(self, data: bytes) -> bool:
        """Whether there is an absolute path of the project in some bytes, or one of a folder around it."""
        around = {Path(*Path(root).parts[:3]) for root in self._roots}  # such as /home/user
        return any(os.fsencode(folder) in data for folder in around)

    def shorten(self, text: str) -> str:
        """Text with the root removed from paths in it, and cut if it is very long."""
        text = text.replace(self.root + os.sep, "")
        return text if len(text) <= MAX_DETAIL else text[:MAX_DETAIL] + "\n[cut]"

    def location(self, location: str | None) -> str | None:
        """``path:line`` with the path relative to the root where it is a file of the project or of its repository."""
        if location is None:
            return None
        path, colon, line = location.rpartition(":")
        file = path if colon else location
        name = self.relative(file) or (self._in_repository(file) if file.startswith(os.sep) else None)
        return location if name is None else name + (f":{line}" if colon else "")

    def _inside(self, path: str) -> str | None:
        for root in self._roots:
            if _is_below(path, root):
                return os.path.relpath(path, root).replace(os.sep, "/")
        return None


class Installation:
    """Tells what is installed, which is the same for every build of an environment, from all other files.

    Arguments:
        own: further folders that are not the user's.
    """

    def __init__(self, *own: str) -> None:
        paths = sysconfig.get_paths()
        self._standard = tuple(_with_slash(paths[name]) for name in ("stdlib", "platstdlib"))
        prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix} - {"/", "/usr", "/usr/local"}
        tvm = [path for name in ("tvm", "tvm_ffi") for path in getattr(sys.modules.get(name), "__path__", ())]
        self._folders = (*self._standard, *map(_with_slash, [*prefixes, *tvm, *own]), OWN_PACKAGE)
        self.search_path = tuple(dict.fromkeys(os.path.abspath(folder) for folder in sys.path))  # noqa: PTH100
        """Where Python looks for modules, before a definition adds something."""

    def has(self, path: str) -> bool:
        """Whether a file, or a folder, belongs to Python, to an installed package, or to the system's libraries.

        Folders that modules are looked for in belong to Python, whatever else is in them: who asks for the version of
        an installed package lists them all.
        """
        known = (*self._folders, *_SYSTEM)
        return path in self.search_path or any(
            _is_installed(p) or _with_slash(p).startswith(known) for p in {path, os.path.realpath(path)}
        )

    def is_package_code(self, file: str) -> bool:
        """Whether code is that of an installed package, other than this one and the standard library."""
        if file.startswith(OWN_PACKAGE) or not file.startswith(os.sep):
            return False
        return _is_installed(file) or (file.startswith(self._folders) and not file.startswith(self._standard))

    def is_module_code(self, file: str) -> bool:
        """Whether code is that of an installed package other than this one, or of the standard library.

        This one may be installed below the standard library, too.
        """
        return not file.startswith(OWN_PACKAGE) and (self.is_package_code(file) or file.startswith(self._standard))


@dataclass(frozen=True)
class Culprit:
    """The innermost line of the user's; ``by_package``: it has an installed package do it."""

    location: str | None
    by_package: bool


def culprit_of(frames: Iterable[FrameType], project: Project, installation: Installation) -> Culprit | None:
    """The user's line that the frames come from; None: an installed module is being imported, which is allowed.

    Only the first import in a process would show that, and the user could not do anything about it.

    Arguments:
        frames: from the innermost on.
    """
    by_package, by_module = False, False
    for frame in frames:
        file = frame.f_code.co_filename
        if project.name(file, installation) is not None:
            return Culprit(f"{file}:{frame.f_lineno}", by_package)
        if by_module and file.startswith("<frozen importlib"):
            return None
        by_package = by_package or installation.is_package_code(file)
        by_module = by_module or installation.is_module_code(file)
    return Culprit(None, by_package)


def callers() -> Iterator[FrameType]:
    """The frames of this thread, from that of whoever asks on."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_installed(path: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.split("/"))


def _is_foreign(path: str) -> bool:
    return _is_installed(path) or "__pycache__" in path.split("/")


def _is_below(path: str, folder: str) -> bool:
    """Whether a path is that of a folder, or of something in it."""
    return _with_slash(path).startswith(_with_slash(folder))


def _with_slash(path: str) -> str:
    return path.rstrip(os.sep) + os.sep


__all__ = ["Culprit", "Installation", "Project", "callers", "culprit_of"]
