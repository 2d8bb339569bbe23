"""The cuTile front end: a definition returns a Program, which cuTile and tileiras compile; TVM makes the host code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kernelwright.core.written import APACHE, NVIDIA, Written
from kernelwright.frontends.base import FrontEnd, LoweredFiles

from .program import Program
from .tool import ENVIRONMENT, NEED, PARTS

if TYPE_CHECKING:
    from kernelwright.define.settings import Settings
    from kernelwright.toolchain.elsewhere import Elsewhere
    from kernelwright.toolchain.probe import Toolchain


class CuTile(FrontEnd):
    """A kernel function of cuTile with its arguments and its grid."""

    name = "cutile"
    interface = 1
    targets = ("cuda",)
    needs = (NEED,)
    own_environment = ENVIRONMENT
    compiles_device_code = True
    native_only = "the code of tileiras has parts for CPUs of this machine's family, which the driver runs at a launch"
    returns = Program
    writes = (
        Written("cuda-tile", APACHE, "what cuTile makes of a function", is_tool=False),
        Written("nvidia-cuda-tileiras", NVIDIA, "what tileiras makes of that"),
    )
    expects = "a Program"
    remedy = "return kernelwright_cutile.Program(kernel_function, x=Tensor(...), grid=..., ...)"

    def tool(self, toolchain: Toolchain, settings: Settings) -> Elsewhere:
        """See :meth:`FrontEnd.tool`."""
        return toolchain.elsewhere(settings.python_of(self.name) or sys.executable, PARTS)

    def files(self, target: str, archs: tuple[str, ...]) -> LoweredFiles:
        """See :meth:`FrontEnd.files`."""
        return LoweredFiles.with_images("module.tileir", ("host.c",), archs)

    def calls_definition(self, returned: Program) -> bool:
        """See :meth:`FrontEnd.calls_definition`: cuTile evaluates parts of functions while it compiles them."""
        return True


FRONT_END = CuTile()
