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

    def share_modules(self, names: list[str]) -> None:
        """Have the folder's modules see these modules of the runtime, and no copies of them."""
        for name in names:
            module = name.removesuffix(".py")
            loaded = import_module(f"{runtime.__name__}.{module}")
            sys.modules[f"{self.package}._runtime.{module}"] = loaded


def load_kernel(compiled: Compiled, name: str) -> Any:
    """The kernel object of a compiled kernel.

    Raises:
        ImportError: a file is missing or was altered, or a package that the backend needs is not installed.
    """
    loader = KernelLoader(compiled, name)
    backend = loader.entry(name)["backends"][0]
    loader.share_modules(loader.manifest()["backends"][backend]["modules"])
    kernel = loader.kernel(name)
    kernel.key = compiled.key
    kernel.cached = compiled.cached
    kernel.artifacts = compiled.folder / name
    return kernel
