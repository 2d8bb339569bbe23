"""The front end for sources that register operators with PyTorch: nothing is lowered, and PyTorch calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.errors import DefinitionError, Where
from ...core.need import Need
from ...define.debug import FULL, LINEINFO
from ...define.kernel_options import KernelOptions
from ..base import FrontEnd, LoweredFiles
from .operators import Operators

if TYPE_CHECKING:
    from ...define.kernel import Kernel
    from ..unit import Unit

SENSELESS = ("outputs", "requires", "per_arch", "pass_configs", "tolerance", "backends")
"""Options of kernels that mean nothing here, because PyTorch makes the calls."""


INCLUDES = ("package:torch/include", "package:torch/include/torch/csrc/api/include")
"""The folders of PyTorch's headers."""

MODULES = "package:kernelwright/frontends/torch/include"
"""The folder of a header that stands before PyTorch's, in which ``PYBIND11_MODULE`` registers operators."""


class TorchSources(FrontEnd):
    """Sources that register operators with PyTorch, for which PyTorch's own headers are included."""

    name = "torch"
    targets = ("cuda",)
    uses_multiples = False
    needs = (Need("torch", "torch>=2.4"),)
    has_host_code = True
    debugs = LINEINFO, FULL
    backends = ("torch_ops",)
    on_demand = False
    native_only = "PyTorch has to load its library to tell which operators it registers"
    first_includes = (MODULES,)
    includes = INCLUDES
    # As torch.utils.cpp_extension has them: PyTorch's headers are in C++20, and have own operators for these types.
    flags = (
        "-std=c++20",
        "-D__CUDA_NO_HALF_OPERATORS__",
        "-D__CUDA_NO_HALF_CONVERSIONS__",
        "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
        "-D__CUDA_NO_HALF2_OPERATORS__",
        "--expt-relaxed-constexpr",
        # On Linux the file decides nothing, and PyTorch for CPUs does not have it.
        "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",
    )
    returns = Operators
    expects = "an Operators"
    remedy = 'return kernelwright.cuda.Operators("acme::rms_norm")'

    def files(self, target: str, archs: tuple[str, ...]) -> LoweredFiles:
        """See :meth:`FrontEnd.files`."""
        return LoweredFiles("operators.txt", ())

    def check(self, kernel: Kernel, where: Where) -> None:
        """See :meth:`FrontEnd.check`; what describes calls cannot be said."""
        super().check(kernel, where)
        if not kernel.options.sources:
            message = "it has no sources, which would register its operators"
            raise DefinitionError(message, where, 'write sources=["rms_norm.cu"], or another frontend')
        usual = KernelOptions()
        given = [name for name in SENSELESS if getattr(kernel.options, name) != getattr(usual, name)]
        given += ["configs"] if kernel.configs != ({},) else []
        given += ["a reference"] if kernel.reference_function else []
        if given:
            message = f"it has {given[0]}, which its operators cannot have, because PyTorch makes the calls"
            raise DefinitionError(
                message, where, f"leave {given[0]} out; the schemas of the operators say what they take"
            )

    def argument_names(self, returned: Any, unit: Unit) -> list[str]:
        """See :meth:`FrontEnd.argument_names`; the schemas have them."""
        return []


FRONT_END = TorchSources()
