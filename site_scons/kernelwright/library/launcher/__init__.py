"""The C headers that generated libraries include."""

from pathlib import Path

LAUNCHER = Path(__file__).resolve().parent
"""Folder of the headers."""


def launcher_sources() -> list[Path]:
    """The launcher's files, in a fixed order: every kernel library depends on their content."""
    found = [path for path in LAUNCHER.rglob("*") if path.suffix in (".h", ".map")]
    return sorted(path for path in found if path.parent.name != "python")  # these are the extension modules
