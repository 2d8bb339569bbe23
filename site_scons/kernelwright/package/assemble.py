"""Makes the generated files of a kernel package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends import get, texts_of
from ..backends.base import RUNTIME_FOLDER, Backend
from ..backends.commands import LIBRARIES
from ..core.errors import Where
from ..define.setting_kinds import BACKEND_ALIASES

if TYPE_CHECKING:
    from ..processes.pool import WorkerPool
    from .manifest import BuiltPackage

RUNTIME = (
    "loader.py",
    "misses.py",
    "passed.py",
    "refusal.py",
    "recorded_kernel.py",
    "recorded_values.py",
    "heuristic.py",
)
"""Modules of that folder that are copied into every package, as ``_runtime/``; backends add theirs."""

PROVIDER = "provider.py"
"""A further one, for packages whose libraries do not hold their device code: finds it in files."""

OUTPUTS = (
    "__init__.py",
    "__init__.pyi",
    "py.typed",
    "_runtime/__init__.py",
    "backends/__init__.py",
    "backends/__init__.pyi",
    "manifest.json",
)
"""Files that :func:`assemble` makes of any package, relative to it."""


def library_of(kernel: str) -> str:
    """Path of a kernel's library, relative to the package."""
    return f"{LIBRARIES}/{kernel}.so"


def product_of(backend: str, file: str) -> str:
    """Path of what a backend has made for a kernel, relative to the package."""
    return f"backends/{backend}/{file}"


def kernel_of(product: str) -> str:
    """The kernel that a backend has made a file of a package for, by the path of the file; empty: no backend did."""
    name = product.rpartition("/")[2].partition(".")[0]
    return name[1:] if product.startswith("backends/") and name.startswith("_") else ""


def provider_package(package: str, arch: str) -> str:
    """Import name of the package that has the device code of an arch, if the package is split."""
    return f"{package}_{arch}"


def runtime_sources(backends: Iterable[Backend], files: bool) -> list[Path]:
    """The modules that are copied, so that a build can depend on them.

    Arguments:
        backends: the package's.
        files: the device code is in files.
    """
    ours = [RUNTIME_FOLDER / name for name in RUNTIME]
    chosen = [path for backend in backends for path in backend.runtime_sources()]
    return list(dict.fromkeys([*ours, *chosen, *([RUNTIME_FOLDER / PROVIDER] if files else [])]))


def outputs(package: str, backends: Sequence[Backend], files: bool) -> tuple[str, ...]:
    """The files that :func:`assemble` makes, relative to the package.

    Arguments:
        package: its import name.
        backends, files: as :func:`runtime_sources` has them.
    """
    runtime = [f"_runtime/{source.name}" for source in runtime_sources(backends, files)]
    modules = [
        product_of(b.name, name)
        for b in backends
        for name in ("__init__.py", "__init__.pyi", *b.package_files(package))
    ]
    aliases = [f"{b.name}.{suffix}" for b in backends if b.at_top for suffix in ("py", "pyi")]
    aliases += [f"backends/{alias}.py" for alias in _aliases(b.name for b in backends)]
    return (*OUTPUTS, *runtime, *modules, *aliases)


def _of_package(backend: Backend, package: BuiltPackage, pool: Callable[[], WorkerPool] | None) -> dict[str, str]:
    """What a backend writes for the package as a whole."""
    kernels = tuple(kernel.name for kernel in package.kernels if backend.name in kernel.backends)
    project = package.project if backend.versioned else ""
    return texts_of(backend, None, (package.name, project, kernels), Where(stage="assemble"), pool)


def _aliases(backends: Iterable[str]) -> dict[str, str]:
    """Other names of a package's backends -> their names."""
    names = set(backends)
    return {alias: name for alias, name in BACKEND_ALIASES.items() if name in names}


def assemble(package: BuiltPackage, pool: Callable[[], WorkerPool] | None = None) -> dict[str, str]:
    """The texts of a package's generated files, by path relative to the package; ``pool`` is as of :func:`texts_of`."""
    from .manifest import make_manifest

    texts = generated(package, pool)
    return {**texts, "manifest.json": make_manifest(package, texts)}


def generated(package: BuiltPackage, pool: Callable[[], WorkerPool] | None = None) -> dict[str, str]:
    """The same without the manifest, which lists them."""
    # Imported here, because a build with nothing to do needs only the names above.
    from . import stubs

    chosen = [get(name) for name in package.backends]
    texts = {"__init__.py": stubs.make_init(package), "__init__.pyi": stubs.make_stub(package), "py.typed": ""}
    texts["_runtime/__init__.py"] = '"""What loads the kernels of this package."""\n'
    texts["backends/__init__.py"] = stubs.make_backends_init(package)
    texts["backends/__init__.pyi"] = stubs.make_backends_stub(package)
    for backend in chosen:
        texts[product_of(backend.name, "__init__.py")] = stubs.make_backend_init(package, backend.name)
        texts[product_of(backend.name, "__init__.pyi")] = stubs.make_backend_stub(package, backend)
        for name, text in _of_package(backend, package, pool).items():
            texts[product_of(backend.name, name)] = text
        if backend.at_top:
            texts[f"{backend.name}.py"] = stubs.make_alias(package, ".backends", backend.name)
            texts[f"{backend.name}.pyi"] = f"from .backends.{backend.name} import *\n"
    for alias, name in _aliases(package.backends).items():
        texts[f"backends/{alias}.py"] = stubs.make_alias(package, ".", name)
    for source in runtime_sources(chosen, bool(package.device_code)):
        texts[f"_runtime/{source.name}"] = source.read_text(encoding="utf-8")
    return texts
