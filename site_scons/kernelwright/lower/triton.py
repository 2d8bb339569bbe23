"""The Triton front end: a definition returns a Program, which Triton compiles; TVM makes the host code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..define.triton_program import INTERPRETER, NEED, Program
from .base import FrontEnd, LoweredFiles

if TYPE_CHECKING:
    from ..define.settings import Settings
    from ..toolchain.distribution import Distribution
    from ..toolchain.probe import Toolchain
    from .unit import LoweredKernel, Unit


class TritonProgram(FrontEnd):
    """A function of Triton with its arguments and its launch."""

    name = "triton"
    targets = ("cuda",)
    needs = (NEED,)
    compiles_device_code = True
    calls_definition = True
    interpreter = INTERPRETER
    expects = "a Program"
    remedy = "return kernelwright.triton.Program(function, x=Tensor(...), grid=..., ...)"

    def tool(self, toolchain: Toolchain, settings: Settings) -> Distribution:
        """See :meth:`FrontEnd.tool`."""
        return toolchain.distribution("triton")

    def files(self, target: str, archs: tuple[str, ...]) -> LoweredFiles:
        """See :meth:`FrontEnd.files`."""
        return LoweredFiles.with_images("module.ttir", ("host.c",), archs)

    def load(self) -> None:
        """See :meth:`FrontEnd.load`; Triton itself is imported by the definitions that use it."""
        from . import triton_compiler  # noqa: F401

    def recognizes(self, returned: Any) -> bool:
        """See :meth:`FrontEnd.recognizes`."""
        return isinstance(returned, Program)

    def argument_names(self, returned: Program, unit: Unit) -> list[str]:
        """See :meth:`FrontEnd.argument_names`."""
        return list(returned.declared)

    def interpreted(self, returned: Program, unit: Unit) -> Callable[..., None]:
        """See :meth:`FrontEnd.interpreted`."""
        from .triton_interpreter import interpreted

        return interpreted(returned, unit)

    def lower(self, returned: Program, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
        """See :meth:`FrontEnd.lower`."""
        from .triton_compiler import lower

        return lower(returned, unit, progress)
