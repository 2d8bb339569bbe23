"""The C headers that generated libraries include, and of which the launcher's own library is made.

Linked into each kernel's library, the launcher would be 34 to 60 kB of each, whatever it is compiled with. With one for
all, a small kernel's library has 18 to 22 kB, the driver and the devices are opened once, and a call takes 26 ns where
it took 28.

A process has one driver, one set of devices and one lock for each launcher. What was loaded of a kernel, its provider
and its tables are in the kernel's own library. All launchers of a process share the thread pool and device memory
(``share.h``). The functions that wrappers call have a version with the digest in the library's name, so they are bound
to it whatever else is visible. Only the headers in ``INTERFACE`` are compiled with wrappers.
"""

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
