"""The front end: a definition returns a Program, which Triton compiles; TVM makes the host code."""

from __future__ import annotations

from typing import Any

from kernelwright.core.need import Need
from kernelwright.frontends.base import FrontEnd, LoweredFiles

from . import Program


class Gluon(FrontEnd):
    """A function of Gluon with its arguments and its grid."""

    name = "gluon"
    interface = 1
    targets = ("cuda",)
    needs = (Need("triton", "triton==3.9.*"),)
    compiles_device_code = True
    returns = Program
    expects = "a Program"
    remedy = "return acme_gluon.Program(function, x=Tensor(...), grid=...)"

    def files(self, target: str, archs: tuple[str, ...]) -> LoweredFiles:
        """See ``FrontEnd.files``."""
        return LoweredFiles.with_images("module.ttgir", ("host.c",), archs)

    def calls_definition(self, returned: Any) -> bool:
        """See ``FrontEnd.calls_definition``: Gluon evaluates parts of a function while it compiles it."""
        return True


FRONT_END = Gluon()
