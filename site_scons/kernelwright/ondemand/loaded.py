"""Makes kernel objects of compiled kernels: the same objects that packages have, with a few attributes more."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import runtime
from ..core.errors import Where
from ..runtime.loader import DamageError, Loader, read_manifest, read_regular
from ..runtime.provider import Provider
from .build import Compiled, Job, compile_job
from .cache_place import PRIVATE, CacheError
from .kernel_folders import AGAIN, damage
from .sources import source_of, write_ir

PREFIX = "kernelwright_on_demand_"
"""The names of the packages of compiled kernels begin so. These packages are only in this process's memory."""

ATTEMPTS = 3
"""How often a kernel is compiled if somebody changes or removes its files before they are loaded."""


class KernelLoader(Loader):
    """Loads the kernels of a folder of the cache. The modules that load them are those of Kernelwright itself.

    Device code in files is loaded later than the kernel itself, and others may have removed the folder by then. So this
    process keeps a copy of it for as long as it lives.

    Arguments:
        compiled: the folder.
        name: the kernel.
    """

    remedy = AGAIN

    def __init__(self, compiled: Compiled, name: str) -> None:
        first = package = f"{PREFIX}{name}_{compiled.key[:16]}"
        number = 1
        while package in sys.modules:  # of another folder, or of what the folder had in it before
            number += 1
            package = f"{first}_{number}"
        super().__init__(str(compiled.folder / "__init__.py"), (name,), package)
        self._number = number
        self._providers: dict[str, Any] = {}
        self._register()

    def verified(self, relative: str) -> Path:
        """See :meth:`Loader.verified`; modules of ours need no digest."""
        if relative.startswith("_runtime/"):
            return Path(runtime.__file__).parent / relative.removeprefix("_runtime/")
        path = super().verified(relative)
        return self._spelled(relative) if self._number > 1 else path

    def provider(self, name: str) -> Any:
        """See :meth:`Loader.provider`. The first call copies the device code; :meth:`_load` sees to that."""
        if name not in self._providers:
            kept, manifest = PRIVATE.make(), self.manifest()
            for relative in manifest["files"]:
                if relative.startswith(f"{manifest['device_code']['folder']}/"):
                    (kept / relative).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(self.verified(relative), kept / relative)
            self._providers[name] = Provider(kept, manifest, name, read_manifest, read_regular, self.remedy)
        return self._providers[name]

    def _load(self, name: str, backend: str) -> Any:
        if "device_code" in self.manifest():
            self.provider(name)
        return super()._load(name, backend)

    def _spelled(self, relative: str) -> Path:
        """A path to a file, spelled as no earlier loader has spelled it.

        The system knows loaded libraries by the texts of their paths, and would not load the file that is there now.
        """
        ways = {"0": f"../{self.folder.name}", "1": f"../../{self.folder.parent.name}/{self.folder.name}"}
        return Path(self.folder, *(ways[digit] for digit in f"{self._number:b}"), relative)

    def _register(self) -> None:
        """Let modules that a backend has written import what they need, from the folder and from the runtime."""
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
        KernelwrightError: a stage failed, or something keeps damaging the cache.
        ImportError: a package that the backend needs is not installed.
    """
    anew = False
    for _ in range(ATTEMPTS):
        compiled = compile_job(job, note, anew)
        try:
            kernel = _loaded(compiled, job)
            break
        except (ImportError, OSError, RuntimeError) as error:
            # Somebody has changed or removed a file of the cache. Another process may have put that right by now.
            anew, problem = bool(damage(compiled.folder)), getattr(error, "problem", error)
            if not anew and not isinstance(error, DamageError):
                raise
    else:
        where = Where(job.record.name, job.slug, "cache", job.record.location)
        remedy = "find out what changes the cache, or set KERNELWRIGHT_DISABLE_CACHE=1"
        raise CacheError(f"its files are damaged as soon as they are made: {problem}", where, remedy)
    kernel.cached = compiled.cached
    if job.settings.dump_ir == "yes":
        write_ir(job, compiled.folder, note)
    return kernel


def _loaded(compiled: Compiled, job: Job) -> Any:
    """The kernel object, loaded once in a process for each folder, which never has the content of another key."""
    loaded, place = job.session.loaded, (compiled.key, str(compiled.folder))
    if place not in loaded:
        kernel = KernelLoader(compiled, job.record.name).kernel(job.record.name)
        kernel.key = compiled.key
        kernel.artifacts = compiled.folder / job.record.name
        kernel.source = partial(source_of, job, kernel.artifacts, compiled.later)
        kernel._later = compiled.later
        loaded[place] = kernel
    return loaded[place]
