"""The CUDA C++ front end: a definition names a device function in a source, which nvcc or NVRTC compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..base import FrontEnd, LoweredFiles
from .exported import Exported
from .source import Source

if TYPE_CHECKING:
    from ..unit import LoweredKernel, Unit


class CudaSource(FrontEnd):
    """A device function in CUDA C++ with its arguments and its launch. TVM makes the host code."""

    name = "cuda"
    targets = ("cuda",)
    includes_sources = True
    expects = "a Source"
    remedy = 'return kernelwright.cuda.Source("file.cu", "function", x=Tensor(...), grid=..., block=...)'

    def files(self, target: str, archs: tuple[str, ...]) -> LoweredFiles:
        """See :meth:`FrontEnd.files`."""
        return LoweredFiles("module.tir", ("host.c",), "device.cu")

    def load(self) -> None:
        """See :meth:`FrontEnd.load`."""
        from . import lowering  # noqa: F401

    def recognizes(self, returned: Any) -> bool:
        """See :meth:`FrontEnd.recognizes`."""
        return isinstance(returned, Source)

    def argument_names(self, returned: Source, unit: Unit) -> list[str]:
        """See :meth:`FrontEnd.argument_names`."""
        return list(returned.declared)

    def lower(self, returned: Source, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
        """See :meth:`FrontEnd.lower`."""
        from .lowering import lower

        return lower(returned, unit, progress)

    def with_host_code(self) -> FrontEnd:
        """See :meth:`FrontEnd.with_host_code`."""
        return CudaLibrary()


class CudaLibrary(FrontEnd):
    """A function that sources export, with host code of their own. TVM makes host code that checks its arguments."""

    name = "cuda"
    targets = ("cuda",)
    has_host_code = True
    expects = "an Exported"
    remedy = 'return kernelwright.cuda.Exported("function", x=Tensor(...)), or leave sources out'

    def files(self, target: str, archs: tuple[str, ...]) -> LoweredFiles:
        """See :meth:`FrontEnd.files`."""
        return LoweredFiles("module.tir", ("host.c",))

    def load(self) -> None:
        """See :meth:`FrontEnd.load`."""
        from . import library  # noqa: F401

    def recognizes(self, returned: Any) -> bool:
        """See :meth:`FrontEnd.recognizes`."""
        return isinstance(returned, Exported)

    def argument_names(self, returned: Exported, unit: Unit) -> list[str]:
        """See :meth:`FrontEnd.argument_names`."""
        return list(returned.declared)

    def lower(self, returned: Exported, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
        """See :meth:`FrontEnd.lower`."""
        from .library import lower

        return lower(returned, unit, progress)


FRONT_END = CudaSource()
