"""The CUDA C++ front end: a definition names a device function in a source, which nvcc or NVRTC compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...define.debug import FULL, LINEINFO
from ..base import FrontEnd, LoweredFiles
from ..torch.front_end import INCLUDES, TorchSources
from .exported import Exported
from .source import Source


class CudaSource(FrontEnd):
    """A device function in CUDA C++ with its arguments and its launch. TVM makes the host code."""

    name = "cuda"
    targets = ("cuda",)
    uses_multiples = False
    includes_sources = True
    debugs = LINEINFO, FULL
    has_sequences = True
    returns = Source
    expects = "a Source, or a list of several"
    remedy = 'return kernelwright.cuda.Source("file.cu", "function", x=Tensor(...), grid=..., block=...)'

    def constants(self, returned: Any) -> Mapping[str, Any]:
        """See :meth:`FrontEnd.constants`; macros are constants, too."""
        return {**returned.defines, **returned.arguments}

    def with_host_code(self, includes: Sequence[str]) -> FrontEnd:
        """See :meth:`FrontEnd.with_host_code`."""
        return CudaLibraryWithTorch() if INCLUDES[0] in includes else CudaLibrary()


class CudaLibrary(FrontEnd):
    """A function that sources export, with host code of their own. TVM makes host code that checks its arguments."""

    name = "cuda"
    targets = ("cuda",)
    uses_multiples = False
    has_host_code = True
    debugs = LINEINFO, FULL
    may_be_opaque = True
    returns = Exported
    lowering = "library"
    expects = "an Exported"
    remedy = 'return kernelwright.cuda.Exported("function", x=Tensor(...)), or leave sources out'

    def files(self, target: str, archs: tuple[str, ...]) -> LoweredFiles:
        """See :meth:`FrontEnd.files`."""
        return LoweredFiles("module.tir", ("host.c",))


class CudaLibraryWithTorch(CudaLibrary):
    """The same of sources with PyTorch's headers. They are compiled as for PyTorch, so that both have equal objects."""

    needs = TorchSources.needs
    first_includes = TorchSources.first_includes
    includes = INCLUDES
    flags = TorchSources.flags


FRONT_END = CudaSource()
