"""The CuTe DSL front end: a definition returns a Program, which NVIDIA's compiler makes host and device code of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.written import NVIDIA, Written
from ..base import FrontEnd, LoweredFiles
from .program import NEED, Program

if TYPE_CHECKING:
    from ...define.settings import Settings
    from ...toolchain.distribution import Distribution
    from ...toolchain.probe import Toolchain


class CuteDslProgram(FrontEnd):
    """A host function of CuTe DSL with its arguments. TVM has no part in it."""

    name = "cutedsl"
    targets = ("cuda",)
    uses_multiples = False
    needs = (NEED,)
    compiles_device_code = True
    native_only = "NVIDIA's compiler makes host code for this machine's CPUs only"
    returns = Program
    lowering = "compiler"
    writes = (Written("nvidia-cutlass-dsl", NVIDIA, "what CuTe DSL's code generator writes"),)
    expects = "a Program"
    remedy = "return kernelwright.cutedsl.Program(host_function, x=Tensor(...), ...)"

    def tool(self, toolchain: Toolchain, settings: Settings) -> Distribution:
        """See :meth:`FrontEnd.tool`."""
        return toolchain.distribution("nvidia_cutlass_dsl", "nvidia_cutlass_dsl*")

    def files(self, target: str, archs: tuple[str, ...]) -> LoweredFiles:
        """See :meth:`FrontEnd.files`: the host code is an object, and C that adapts it to the launcher."""
        return LoweredFiles.with_images("module.mlir", ("host.c", "host.o"), archs)

    def calls_definition(self, returned: Program) -> bool:
        """See :meth:`FrontEnd.calls_definition`."""
        return True


FRONT_END = CuteDslProgram()
