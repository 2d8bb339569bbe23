"""Finds and loads the user's modules, wherever they lie, always from source, and notes every file that it looks for.

Python's own finders list folders and remember what they saw. This one asks for single files in a fixed order, so that
the files that it did not find are known, too: if one of them is made later, an import finds another module.
"""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import os
import sys
from collections.abc import Sequence
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from ..core.project import OWN_PACKAGE, Installation, Project
from .reads import ReadRecorder


class ProjectLoader(SourceFileLoader):
    """Loads a module of the user's from its source and never from bytecode."""

    def __init__(self, name: str, path: str, recorder: ReadRecorder) -> None:
        super().__init__(name, path)
        self._recorder = recorder

    def get_code(self, fullname: str) -> CodeType:
        """Compile what is in the file now; tracebacks show the same text later."""
        with self._recorder.noting():
            content = self.get_data(self.path)
        text = self._recorder.note_module(self.path, content)
        code: CodeType = self.source_to_code(content if text is None else text, self.path)
        lines = (importlib.util.decode_source(content) if text is None else text).splitlines(keepends=True)
        linecache.cache[self.path] = (len(content), None, lines, self.path)  # without a time: never checked again
        return code


class ProjectFinder(MetaPathFinder):
    """Finds the user's modules before Python's own finders do, except under the names of standard modules.

    A user's folder that was in the search path from the start, as a ``.pth`` file adds it, keeps its place there. All
    other folders of the user come first.

    A folder's source modules come before its extension modules. Bytecode without source is not looked for.
    """

    def __init__(self, project: Project, installation: Installation, recorder: ReadRecorder) -> None:
        self._project = project
        self._installation = installation
        self._recorder = recorder
        self.folders: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of the user's, or None for any other."""
        if path is None:
            if fullname in sys.stdlib_module_names:
                return None
            if self._is_import_of_a_package() and _is_installed(fullname):
                return None
            return self._search(fullname, self._top_folders()) or self._search_from_the_start(fullname)
        return self._search(fullname, [folder for folder in path if self._is_users(folder)])

    def _is_users(self, folder: str) -> bool:
        return self._recorder.name_of(f"{folder}/_") is not None

    def _top_folders(self) -> list[str]:
        added = [os.path.abspath(folder) for folder in sys.path if isinstance(folder, str)]  # noqa: PTH100
        later = {folder for folder in self._installation.search_path if self._project.relative(folder) is None}
        own = [folder for folder in added if folder not in later and self._is_users(folder)]
        # As for a script: its folder comes before Python's search path, but after the folders that it inserts in front.
        before = itertools.takewhile(lambda folder: folder not in self._installation.search_path, added)
        return list(dict.fromkeys([*(folder for folder in before if folder in own), *self.folders, *own]))

    @cached_property
    def _start(self) -> list[tuple[str, bool]]:
        """The search path as it was at the start, and which of its folders are the user's; empty, if none is."""
        ours = os.path.dirname(OWN_PACKAGE.rstrip(os.sep))  # noqa: PTH120
        folders = [(folder, folder != ours and self._is_users(folder)) for folder in self._installation.search_path]
        return folders if any(is_users for _, is_users in folders) else []

    def _search_from_the_start(self, fullname: str) -> ModuleSpec | None:
        for folder, is_users in self._start:
            if is_users and (spec := self._search(fullname, [folder])):
                return spec
            if not is_users and PathFinder.find_spec(fullname, [folder]) is not None:
                return None
        return None

    def _is_import_of_a_package(self) -> bool:
        """Whether code of an installed package imports: it must not get a project file that has the module's name."""
        frame = sys._getframe(1)
        while frame.f_back is not None and not self._is_user_of_import(frame.f_code.co_filename):
            frame = frame.f_back
        return self._installation.is_package_code(frame.f_code.co_filename)

    def _is_user_of_import(self, file: str) -> bool:
        return self._recorder.name_of(file) is not None or self._installation.is_package_code(file)

    def _search(self, fullname: str, folders: Sequence[str]) -> ModuleSpec | None:
        portions = []
        for folder in folders:
            base = os.path.join(folder, fullname.rpartition(".")[2])  # noqa: PTH118
            if self._recorder.name_of(base) is None:
                continue
            if spec := self._spec_at(fullname, base):
                return spec
            if os.path.isdir(base):  # noqa: PTH112
                portions.append(base)
        if not portions or ("." not in fullname and _is_installed(fullname)):
            return None
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = portions
        return spec

    def _spec_at(self, fullname: str, base: str) -> ModuleSpec | None:
        """The spec of a regular package or of a module at a path without suffix."""
        if not os.path.isdir(base):  # noqa: PTH112
            self._recorder.note_candidate(base + os.sep)
        elif self._exists(init := os.path.join(base, "__init__.py")):  # noqa: PTH118
            return self._spec(fullname, init, [base])
        for suffix in (".py", *EXTENSION_SUFFIXES):
            if self._exists(base + suffix):
                return self._spec(fullname, base + suffix, None)
        return None

    def _exists(self, path: str) -> bool:
        """Whether there is a file. It is noted in either case, also for those who only ask for the spec."""
        self._recorder.note_candidate(path)
        return os.path.isfile(path)  # noqa: PTH113

    def _spec(self, fullname: str, path: str, folders: list[str] | None) -> ModuleSpec | None:
        is_source = path.endswith(".py")
        loader = ProjectLoader(fullname, path, self._recorder) if is_source else ExtensionFileLoader(fullname, path)
        return importlib.util.spec_from_file_location(fullname, path, loader=loader, submodule_search_locations=folders)


def _is_installed(name: str) -> bool:
    """Whether a module is installed; a folder without __init__.py does not count."""
    spec = PathFinder.find_spec(name) if "." not in name else None
    return spec is not None and spec.origin is not None


__all__ = ["ProjectFinder", "ProjectLoader"]
