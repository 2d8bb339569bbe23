"""Makes kernel objects of compiled kernels: the same objects that packages have, with a few attributes more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import runtime
from ..runtime.loader import Loader
from .build import Compiled, Job, compile_job
from .sources import source_of, write_ir
from .store import damage

PREFIX = "kernelwright_on_demand_"
"""What the names of packages begin with that have compiled kernels; they are in no file."""


class KernelLoader(Loader):
    """Loads the kernels of a folder of the cache. The modules that load them are those of Kernelwright itself.

    Arguments:
        compiled: the folder.
        name: the kernel.
    """

    remedy = "compile it again"

    def __init__(self, compiled: Compiled, name: str) -> None:
        first = package = f"{PREFIX}{name}_{compiled.key[:16]}"
        number = 1
        while package in sys.modules:  # of another folder, or of what the folder had in it before
            number += 1
            package = f"{first}_{number}"
        super().__init__(str(compiled.folder / "__init__.py"), (name,), package)
        self._number = number
        self._register()

    def verified(self, relative: str) -> Path:
        """See :meth:`Loader.verified`; modules of ours need no digest."""
        if relative.startswith("_runtime/"):
            return Path(runtime.__file__).parent / relative.removeprefix("_runtime/")
        path = super().verified(relative)
        return self._spelled(relative) if self._number > 1 else path

    def _spelled(self, relative: str) -> Path:
        """A path that no earlier loader has spelled so.

        The system finds a library that is loaded by the text of its path, and would never load what has its place now.
        """
        ways = {"0": f"../{self.folder.name}", "1": f"../../{self.folder.parent.name}/{self.folder.name}"}
        return Path(self.folder, *(ways[digit] for digit in f"{self._number:b}"), relative)

    def _register(self) -> None:
        """Have modules that a backend has written import what they need: from the folder, and of the runtime."""
        module = ModuleType(self.package)
        module.__path__ = [str(self.folder)]
        sys.modules[self.package] = module
        sys.modules[f"{self.package}._runtime"] = runtime

    def through(self, module: str, name: str) -> Any:
        """See :meth:`Loader.through`. What a backend has written sees the modules of the runtime, and no copies."""
        for backend in self.manifest()["backends"].values():
            for file in backend["modules"] if module in backend["modules"] else ():
                shared = file.removesuffix(".py")
                sys.modules[f"{self.package}._runtime.{shared}"] = import_module(f"{runtime.__name__}.{shared}")
        return super().through(module, name)


def load_kernel(job: Job, note: Callable[[str], None]) -> Any:
    """The kernel object of a job, which is compiled unless the cache has it.

    Raises:
        KernelwrightError: a stage failed.
        ImportError: a package that the backend needs is not installed.
    """
    compiled = compile_job(job, note)
    try:
        kernel = _loaded(compiled, job)
    except ImportError:
        if not damage(compiled.folder):
            raise
        # Somebody has changed or removed a file of the cache: such a kernel is compiled again.
        compiled = compile_job(job, note, anew=True)
        kernel = _loaded(compiled, job)
    kernel.cached = compiled.cached
    if job.settings.dump_ir == "yes":
        write_ir(job, compiled.folder, note)
    return kernel


def _loaded(compiled: Compiled, job: Job) -> Any:
    """The kernel object, loaded once in a process as long as its folder is the same one.

    The key does not cover the files that only the stages have found out, such as headers: if they change, another
    folder with the same key is put in its place.
    """
    loaded = job.session.loaded
    place = (compiled.key, str(compiled.folder), *_stamp(compiled.folder / "manifest.json"))
    if place not in loaded:
        kernel = KernelLoader(compiled, job.record.name).kernel(job.record.name)
        kernel.key = compiled.key
        kernel.artifacts = compiled.folder / job.record.name
        kernel.source = partial(source_of, job, kernel.artifacts)
        loaded[place] = kernel
    return loaded[place]


def _stamp(path: Path) -> tuple[int, ...]:
    """What tells a file from another one that is put in its place; nothing if there is none."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns
