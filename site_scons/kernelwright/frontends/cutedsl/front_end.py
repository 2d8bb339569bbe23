"""The CuTe DSL front end: a definition returns a Program, which NVIDIA's compiler makes host and device code of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..base import FrontEnd, LoweredFiles
from .program import NEED, Program

if TYPE_CHECKING:
    from ...define.settings import Settings
    from ...toolchain.distribution import Distribution
    from ...toolchain.probe import Toolchain
    from ..unit import LoweredKernel, Unit


class CuteDslProgram(FrontEnd):
    """A host function of CuTe DSL with its arguments. TVM has no part in it."""

    name = "cutedsl"
    targets = ("cuda",)
    needs = (NEED,)
    compiles_device_code = True
    expects = "a Program"
    remedy = "return kernelwright.cutedsl.Program(host_function, x=Tensor(...), ...)"

    def tool(self, toolchain: Toolchain, settings: Settings) -> Distribution:
        """See :meth:`FrontEnd.tool`."""
        return toolchain.distribution("nvidia_cutlass_dsl", "nvidia_cutlass_dsl*")

    def files(self, target: str, archs: tuple[str, ...]) -> LoweredFiles:
        """See :meth:`FrontEnd.files`: the host code is an object, and C that adapts it to the launcher."""
        return LoweredFiles.with_images("module.mlir", ("host.c", "host.o"), archs)

    def load(self) -> None:
        """See :meth:`FrontEnd.load`; CuTe DSL itself is imported by the definitions that use it."""
        from . import compiler  # noqa: F401

    def recognizes(self, returned: Any) -> bool:
        """See :meth:`FrontEnd.recognizes`."""
        return isinstance(returned, Program)

    def calls_definition(self, returned: Program) -> bool:
        """See :meth:`FrontEnd.calls_definition`."""
        return True

    def argument_names(self, returned: Program, unit: Unit) -> list[str]:
        """See :meth:`FrontEnd.argument_names`."""
        return list(returned.declared)

    def lower(self, returned: Program, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
        """See :meth:`FrontEnd.lower`."""
        from .compiler import lower

        return lower(returned, unit, progress)


FRONT_END = CuteDslProgram()
