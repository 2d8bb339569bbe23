"""The sources of a kernel's library: ``wrapper.c`` and ``images.s``.

The device code is in ``images.s``, apart from the wrapper. So the wrapper can be compiled while nvcc is still at work,
and need not be compiled again when only device code has changed.
"""

from __future__ import annotations

from ..core.errors import KernelwrightError, Where
from .images import images_text
from .plan import KernelPlan
from .wrapper import wrapper_text

FILES = ("wrapper.c", "images.s")
"""The names of the files that :func:`emit` writes."""


def emit(kernel: KernelPlan) -> dict[str, str]:
    """Write the sources of a kernel's library.

    Arguments:
        kernel: the plan; paths in it are relative to the folder in which the compiler runs.

    Returns:
        File name (relative to the kernel's folder) -> text; equal for equal plans.

    Raises:
        KernelwrightError: the kernel cannot be called from C.
    """
    kernel.check()
    if kernel.name.startswith("kw_") or kernel.name == "main":
        raise KernelwrightError(
            f"{kernel.name!r} cannot be a kernel's name",
            Where(kernel.name, stage="wrap"),
            "choose one that is not main and does not start with kw_",
        )
    return {"wrapper.c": wrapper_text(kernel), "images.s": images_text(kernel)}
