"""The C headers that generated libraries include, and from which the launcher's own library is compiled.

If the launcher were linked into each kernel's library, it would take 34 to 60 kB of each, with any compiler options.
With one launcher for all, a small kernel's library has 18 to 22 kB, the driver and the devices are opened once, and a
call takes 26 ns instead of 28.

In a process, each launcher has one driver, one set of devices and one lock. A kernel's own library has its loaded code,
its provider and its tables. All launchers of a process share the thread pool and device memory (``share.h``). The
functions that wrappers call have a version with the digest in the library's name, so wrappers are bound to that library
whatever else is visible. Only the headers in ``INTERFACE`` are compiled with wrappers.
"""

from pathlib import Path

LAUNCHER = Path(__file__).resolve().parent
"""Folder of the headers."""


SOURCES_MAP = LAUNCHER / "sources.map"
"""Linker version script of every library of sources."""

LINKER_MAP = LAUNCHER / "exports.map"
"""What a kernel's library exports."""

OLDER = LAUNCHER / "older.h"
"""What every library of sources is compiled with."""

INTERFACE = ("kernelwright.h", "types.h", "services.h", "sizes.h", "runtime.h", "exports.h", "cutedsl.h")
"""The headers that wrappers include."""


def launcher_sources() -> list[Path]:
    """The files that the launcher is compiled from, in a fixed order."""
    found = [path for path in LAUNCHER.rglob("*") if path.suffix in (".h", ".c")]
    return sorted(path for path in found if path.parent.name != "python")  # these are the extension modules


def interface_sources() -> list[Path]:
    """The files that wrappers are compiled with, in a fixed order. If others change, wrappers stay as they are."""
    return [path for path in launcher_sources() if path.name in INTERFACE or path.parent != LAUNCHER]
