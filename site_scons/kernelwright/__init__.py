"""Kernelwright: a build system for GPU and CPU kernels, as an SCons tool."""

from typing import TYPE_CHECKING, Any

from .core.errors import KernelwrightError
from .core.version import VERSION

if TYPE_CHECKING:
    from .define.configs import Variant, grid
    from .define.kernel import Kernel
    from .define.recorded import recorded
    from .ondemand.files import load
    from .ondemand.kernel import kernel
    from .ondemand.monitor import counters, monitor
    from .ondemand.programs import compile, par_compile
    from .ondemand.project import clear_cache, disable_cache, enable_cache
    from .ondemand.record import record

PLACES = {
    "Kernel": "define.kernel",
    "Variant": "define.configs",
    "clear_cache": "ondemand.project",
    "compile": "ondemand.programs",
    "counters": "ondemand.monitor",
    "disable_cache": "ondemand.project",
    "enable_cache": "ondemand.project",
    "grid": "define.configs",
    "kernel": "ondemand.kernel",
    "load": "ondemand.files",
    "monitor": "ondemand.monitor",
    "par_compile": "ondemand.programs",
    "record": "ondemand.record",
    "recorded": "define.recorded",
}
"""Name -> the module that has it."""

__all__ = [
    "Kernel",
    "KernelwrightError",
    "Variant",
    "clear_cache",
    "compile",
    "counters",
    "disable_cache",
    "enable_cache",
    "grid",
    "kernel",
    "load",
    "monitor",
    "par_compile",
    "record",
    "recorded",
]
__version__ = VERSION


def __getattr__(name: str) -> Any:
    """What definition files and callers use, imported when they do: the SCons tool can do without."""
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{PLACES[name]}", __name__), name)
