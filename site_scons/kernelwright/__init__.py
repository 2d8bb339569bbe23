"""Kernelwright: a build system for GPU and CPU kernels, as an SCons tool."""

from typing import TYPE_CHECKING, Any

from .core.errors import KernelwrightError
from .core.version import VERSION

if TYPE_CHECKING:
    from .define.kernel import Kernel, Variant, grid, kernel

__all__ = ["Kernel", "KernelwrightError", "Variant", "grid", "kernel"]
__version__ = VERSION


def __getattr__(name: str) -> Any:
    """What definition files use, imported when they do: the SCons tool can do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .define import kernel as declare

    return getattr(declare, name)
