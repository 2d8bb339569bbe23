"""What ``scons -c`` removes of a package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.arch import image_file
from ..core.pipeline import LISTINGS
from ..stages.stage import IR
from .package import Package

SINGLE_FILES = ("trace.json", "report.html", "compile_commands.json")
"""Files in the build folder that all packages share."""


def add_cleaning(package: Package) -> Any:
    """Add nodes for ``scons -c``. They need no discovery, because whole folders are removed."""
    wheel, folders = package.wheels.Dir(package.settings.package), (package.work, package.folder, package.checks)
    package.run.require_folders(folder.get_abspath() for folder in (*folders, wheel))
    work = Path(package.work.get_abspath())
    for folder in work.glob("*"):
        _clean(package, folder.name, package.work.Dir(folder.name))
    _clean(package, "check", package.checks)
    images = {image_file(arch) for arch in package.settings.archs_of("cuda")}
    for ending in LISTINGS:
        texts = (path for depth in ("cuda", "cuda/*") for path in work.glob(f"*/*/{depth}/*.{ending}"))
        _clean(package, ending, package.work, sorted(str(path) for path in texts if path.name not in images))
    shown = [path for depth in ("*/*/cuda", "*/*/cuda/*", "*/*/llvm/*") for path in work.glob(f"{depth}/{IR}")]
    _clean(package, IR, package.work, sorted(map(str, shown)))
    _clean(package, "wheel", wheel)
    manifest = package.env.Command(package.folder.File("manifest.json"), [], "")
    single = [str(package.run.top / "build" / name) for name in (".kernelwright", *SINGLE_FILES)]
    package.env.Clean(manifest, [*folders, wheel, *single])
    return manifest


def _clean(package: Package, alias: str, folder: Any, files: Sequence[str] | None = None) -> None:
    """Have ``scons -c`` with a target remove a folder, or some files in it."""
    node = package.env.Command(folder.File(f".clean {alias}"), [], "")
    package.env.Clean(node, folder if files is None else list(files))
    package.user_env.Alias(alias, node)
