"""The assembly of a package: generated modules, manifest, and copies of the kernels' libraries."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Where
from ..fatbin import described
from ..files import Stamp, digest_of, file_stamp, lasting_stamp, sha256_of
from ..package.assemble import library_of, outputs, provider_package, runtime_sources
from ..version import VERSION
from .stage import Stage, move

if TYPE_CHECKING:
    from .graph import PackageGraph


@dataclass(frozen=True)
class Part:
    """A kernel in the assembly.

    Arguments:
        name: the kernel's name.
        nodes: library and entry, if SCons looks after them in this run.
        digests: SHA-256 of library and entry, if it does not.
    """

    name: str
    nodes: tuple[Any, Any] | None
    digests: tuple[str, str] | None


class Assembly:
    """Makes the stage that assembles a package.

    The package has copies of the libraries, so that building one kernel alone never leaves it with a stale manifest.
    They are no SCons targets, since there may be thousands: their contents are in the signature of the stage.

    Arguments:
        graph: the package's nodes.
        parts: its kernels, sorted by name.
        libraries: kernel -> stamp and SHA-256 of the copies that an earlier run made.
    """

    def __init__(self, graph: PackageGraph, parts: list[Part], libraries: Mapping[str, tuple[Stamp, str]]) -> None:
        self._graph = graph
        self._parts = parts
        self.libraries = {part.name: libraries[part.name] for part in parts if part.name in libraries}
        self._work = graph.work.get_abspath()
        self._folder = graph.folder.get_abspath()

    def stage(self) -> Stage:
        """The stage. Its sources are left to ``Requires``: which of them have nodes differs from run to run."""
        graph = self._graph
        options = {
            "package": graph.settings.package,
            "version": VERSION,
            "tools": graph.tool_data,
            "backends": list(graph.settings.backends),
            "runtime": digest_of(runtime_sources(bool(self._device_code))),
            "compress": self._compress,
            "device_code": self._device_code,
        }
        targets = {output: graph.folder.File(output) for output in outputs(bool(self._device_code))}
        where = Where(stage="assemble")
        stage = Stage("PACKAGE", graph.settings.package, where, options, self._make, targets, [], cacheable=False)
        stage.late = lambda: [[part.name, *self._digests(part)] for part in self._parts]
        return stage

    @property
    def _compress(self) -> dict[str, Any]:
        """What the manifest says of the compression of device code."""
        mode = self._graph.settings.compress
        return described(mode) if mode != "none" and self._graph.tools.nvcc else {}

    @property
    def _device_code(self) -> dict[str, Any]:
        """What the manifest of a split package says of its device code, which is used where it was built."""
        settings = self._graph.settings
        if not settings.providers:
            return {}
        packages = {arch: provider_package(settings.package, arch) for arch in settings.providers}
        return {"folder": os.path.relpath(self._work, self._folder), "packages": packages}

    def restore(self) -> None:
        """Have the package assembled again if one of its libraries is not the one that was copied there."""
        for part in self._parts:
            path = self._copy_of(part.name)
            # A library that has to be linked again may turn out the same, and then its copy is still right.
            expected = self._digests(part)[0] or self.libraries.get(part.name, (None, ""))[1]
            if expected and not self._is_current(part.name, path, expected):
                self.libraries.pop(part.name, None)
                if os.path.exists(path):  # noqa: PTH110
                    self._graph.run.remove(path, tell=part.nodes is None)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._folder, "manifest.json"))  # noqa: PTH108, PTH118

    def _is_current(self, name: str, path: str, expected: str) -> bool:
        known = self.libraries.get(name)
        try:
            stamp = file_stamp(path)
            if known is None or known[0] != stamp or self._graph.run.strict:
                known = self.libraries[name] = (lasting_stamp(path), sha256_of(Path(path)))
        except OSError:
            return False
        return known[1] == expected

    def _digests(self, part: Part) -> tuple[str, str]:
        """SHA-256 of a kernel's library and entry; empty as long as they are not built."""
        if part.digests is not None:
            return part.digests
        known = [self._graph.run.journal.output(node.get_abspath()) for node in part.nodes or ()]
        library, entry = (output[1] if output else "" for output in known)
        return library, entry

    def _copy_of(self, kernel: str) -> str:
        return os.path.join(self._folder, library_of(kernel))  # noqa: PTH118

    def _make(self, scratch: Path) -> None:
        from ..package.assemble import assemble
        from ..package.manifest import BuiltPackage

        kernels = tuple(self._packaged(part, scratch) for part in self._parts)
        settings = self._graph.settings
        head = (settings.package, VERSION, self._graph.tool_data, settings.backends)
        package = BuiltPackage(*head, kernels, self._compress, self._device_code)
        for relative, text in assemble(package).items():
            (scratch / relative).parent.mkdir(exist_ok=True)
            (scratch / relative).write_text(text, encoding="utf-8")
        self._sweep()

    def _packaged(self, part: Part, scratch: Path) -> Any:
        """What the package needs to know of a kernel; copies its library if the package has another one."""
        from ..package.manifest import PackagedKernel

        name, digest = part.name, self._digests(part)[0]
        built = Path(self._work, name, f"{name}.so")
        path = self._copy_of(name)
        if not self._is_current(name, path, digest):
            shutil.copyfile(built, scratch / "library")
            move(scratch / "library", Path(path))
            self.libraries[name] = (lasting_stamp(path), sha256_of(Path(path)))
        entry = Path(self._work, name, "entry.json").read_text(encoding="utf-8")
        return PackagedKernel(name, entry, library_of(name), self.libraries[name][1], self.libraries[name][0][0])

    def _sweep(self) -> None:
        """Remove what earlier definitions, configs and archs left behind."""
        names = {part.name for part in self._parts}
        graph = self._graph
        known = {path for stage in graph.made for path in stage.paths} | {self._copy_of(name) for name in names}
        remove_unknown(Path(self._folder, "_lib"), known)
        for name in set(outputs(split=True)) - set(outputs(bool(self._device_code))):
            Path(self._folder, name).unlink(missing_ok=True)
        for top in (Path(self._work), Path(graph.checks.get_abspath())):
            kept = (names - graph.unsettled.keys()) | {graph.glibc.name}
            for folder in [path for path in top.glob("*") if path.name not in kept]:
                remove_unknown(folder, known)


def remove_unknown(path: Path, known: Iterable[str]) -> None:
    """Remove the files below a folder that are not known, and the folders that are empty then."""
    keep = known if isinstance(known, set) else set(known)
    if path.is_symlink() or not path.is_dir():
        if str(path) not in keep:
            path.unlink(missing_ok=True)
        return
    for inner in path.iterdir():
        remove_unknown(inner, keep)
    # Not empty, or just being filled by a stage that runs at the same time.
    with contextlib.suppress(OSError):
        path.rmdir()
