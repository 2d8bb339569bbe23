"""Makes the generated files of a kernel package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .manifest import BuiltPackage

RUNTIME = ("loader.py", "kernel.py")
"""Modules of this folder that are copied into every package, as ``_runtime/``."""

PROVIDER = "provider.py"
"""A further one, for packages that are split: finds device code in other wheels."""

OUTPUTS = (
    "__init__.py",
    "__init__.pyi",
    "py.typed",
    "_runtime/__init__.py",
    *(f"_runtime/{name}" for name in RUNTIME),
    "manifest.json",
)
"""Files that :func:`assemble` makes of any package, relative to it."""


def library_of(kernel: str) -> str:
    """Path of a kernel's library, relative to the package."""
    return f"_lib/{kernel}.so"


def provider_package(package: str, arch: str) -> str:
    """Import name of the package that has the device code of an arch, if the package is split."""
    return f"{package}_{arch}"


def runtime_sources(split: bool = False) -> list[Path]:
    """The modules that are copied, so that a build can depend on them; a split package has one more."""
    return [Path(__file__).with_name(name) for name in (*RUNTIME, *((PROVIDER,) if split else ()))]


def outputs(split: bool) -> tuple[str, ...]:
    """The files that :func:`assemble` makes, relative to the package."""
    return (*OUTPUTS, f"_runtime/{PROVIDER}") if split else OUTPUTS


def assemble(package: BuiltPackage) -> dict[str, str]:
    """The texts of a package's generated files, by path relative to the package."""
    # Imported here, because a build with nothing to do needs only the names above.
    from .manifest import make_manifest
    from .stubs import make_init, make_stub

    texts = {"__init__.py": make_init(package), "__init__.pyi": make_stub(package), "py.typed": ""}
    texts["_runtime/__init__.py"] = '"""What loads the kernels of this package."""\n'
    for source in runtime_sources(bool(package.device_code)):
        texts[f"_runtime/{source.name}"] = source.read_text(encoding="utf-8")
    texts["manifest.json"] = make_manifest(package, texts)
    return texts
