"""Makes kernel objects of compiled kernels: the same objects that packages have, with a few attributes more."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import runtime
from ..runtime.loader import Loader
from .build import Compiled

PREFIX = "kernelwright_on_demand_"
"""What the names of packages begin with that have compiled kernels; they are in no file."""


class KernelLoader(Loader):
    """Loads the kernels of a folder of the cache. The modules that load them are those of Kernelwright itself.

    Arguments:
        compiled: the folder.
        name: the kernel.
    """

    def __init__(self, compiled: Compiled, name: str) -> None:
        package = f"{PREFIX}{name}_{compiled.key[:16]}"
        super().__init__(str(compiled.folder / "__init__.py"), (name,), package)
        self._register()

    def verified(self, relative: str) -> Path:
        """See :meth:`Loader.verified`; modules of ours need no digest."""
        if relative.startswith("_runtime/"):
            return Path(runtime.__file__).parent / relative.removeprefix("_runtime/")
        return super().verified(relative)

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


def load_kernel(compiled: Compiled, name: str) -> Any:
    """The kernel object of a compiled kernel.

    Raises:
        ImportError: a file is missing or was altered, or a package that the backend needs is not installed.
    """
    kernel = KernelLoader(compiled, name).kernel(name)
    kernel.key = compiled.key
    kernel.cached = compiled.cached
    kernel.artifacts = compiled.folder / name
    return kernel
