"""The TileLang front end: a definition names a function, of which TileLang makes CUDA source in its environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.written import Written
from ...define.debug import FULL, LINEINFO
from ..base import FrontEnd, HeaderFolders, LoweredFiles
from ..unit import Unit
from .program import ENVIRONMENT, Program

if TYPE_CHECKING:
    from ...define.settings import Settings
    from ...toolchain.elsewhere import Elsewhere
    from ...toolchain.probe import Toolchain


class TileLangProgram(FrontEnd):
    """A function of TileLang with its values. TVM makes the host code, and a CUDA compiler the device code."""

    name = "tilelang"
    own_environment = ENVIRONMENT
    targets = ("cuda",)
    uses_multiples = False
    debugs = LINEINFO, FULL
    header_folders = HeaderFolders(("src", "3rdparty/cutlass/include"), "c++20")
    returns = Program
    writes = (
        Written("tilelang", "MIT", "what TileLang's code generator writes, and its headers"),
        Written("cutlass", "BSD-3-Clause", "headers of CUTLASS that TileLang has", is_tool=False),
    )
    expects = "a Program"
    remedy = 'return kernelwright.tilelang.Program("file.py", "function", M=1024, ...)'

    def tool(self, toolchain: Toolchain, settings: Settings) -> Elsewhere:
        """See :meth:`FrontEnd.tool`."""
        return toolchain.elsewhere(settings.tilelang_python, ENVIRONMENT.parts)

    def files(self, target: str, archs: tuple[str, ...]) -> LoweredFiles:
        """See :meth:`FrontEnd.files`."""
        return LoweredFiles("module.tir", ("host.c",), "device.cu", flags="flags.json")

    def argument_names(self, returned: Program, unit: Unit) -> list[str]:
        """See :meth:`FrontEnd.argument_names`."""
        from .lowering import argument_names

        return argument_names(returned, unit)


FRONT_END = TileLangProgram()
