"""The C headers that generated libraries include."""

from pathlib import Path

LAUNCHER = Path(__file__).resolve().parent
"""Folder of the headers."""


LINKER_MAP = LAUNCHER / "exports.map"
"""What a kernel's library exports."""

INTERFACE = ("kernelwright.h", "types.h", "services.h", "sizes.h", "runtime.h", "exports.h", "cutedsl.h", "older.h")
"""The headers that wrappers include."""


def launcher_sources() -> list[Path]:
    """What the launcher is compiled of, in a fixed order."""
    found = [path for path in LAUNCHER.rglob("*") if path.suffix in (".h", ".c")]
    return sorted(path for path in found if path.parent.name != "python")  # these are the extension modules


def interface_sources() -> list[Path]:
    """What wrappers are compiled with, in a fixed order; the rest of the launcher may change without them."""
    return [path for path in launcher_sources() if path.name in INTERFACE or path.parent != LAUNCHER]
