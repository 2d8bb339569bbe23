"""Kernelwright: a build system for GPU and CPU kernels, as an SCons tool."""

from .declare import Kernel, Variant, grid, kernel
from .errors import KernelwrightError
from .version import VERSION

__all__ = ["Kernel", "KernelwrightError", "Variant", "grid", "kernel"]
__version__ = VERSION
