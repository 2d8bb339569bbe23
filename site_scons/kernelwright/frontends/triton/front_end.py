"""The Triton front end: a definition returns a Program, which Triton compiles; TVM makes the host code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from ...core.errors import DefinitionError
from ...core.written import NVIDIA, Written
from ...define.debug import LINEINFO
from ..base import FrontEnd, LoweredFiles, OwnTuner
from ..sequence import Launches, each_of
from ..unit import Unit
from .program import ENVIRONMENT, INTERPRETER, NEED, Program
from .recorded import RecordedVariant, is_recorded

if TYPE_CHECKING:
    from ...define.record import KernelRecord
    from ...define.settings import Settings
    from ...toolchain.distribution import Distribution
    from ...toolchain.elsewhere import Elsewhere
    from ...toolchain.probe import Toolchain


TUNER = OwnTuner(
    "a function of a recorded program is tuned by Triton's own tuner",
    "record the program on a GPU: kernelwright record program.py; or run it there with TRITON_CACHE_AUTOTUNING=1, and "
    "record it anywhere with the times that Triton keeps: "
    "kernelwright record --arch sm_90a --timings FOLDER program.py",
)


class TritonProgram(FrontEnd):
    """A function of Triton with its arguments and its launch."""

    name = "triton"
    targets = ("cuda",)
    needs = (NEED,)
    own_environment = ENVIRONMENT
    compiles_device_code = True
    debugs = (LINEINFO,)
    has_sequences = True
    may_be_opaque = True
    imports_for_arch = True
    specializes = True
    interpreter = INTERPRETER
    returns = Program | RecordedVariant
    expects = "a Program, or a list of several"
    writes = (
        Written("triton", "MIT", "what Triton's code generator writes"),
        Written("libdevice", NVIDIA, "functions of CUDA's library for devices that Triton has", is_tool=False),
    )
    remedy = "return kernelwright.triton.Program(function, x=Tensor(...), grid=..., ...)"

    def own_tuner(self, kernel: KernelRecord) -> OwnTuner | None:
        """See :meth:`FrontEnd.own_tuner`: that of Triton has chosen the configs of functions that are recorded."""
        return TUNER if is_recorded(kernel) else None

    def tool(self, toolchain: Toolchain, settings: Settings) -> Distribution | Elsewhere:
        """Triton in the environment that the setting names, or in this one if that is empty.

        If both have it, definitions may use either, and the identity is that of both.
        """
        here = toolchain.distribution("triton")
        if not settings.triton_python:
            return here
        from ...toolchain.ask import identity

        found = toolchain.elsewhere(settings.triton_python, ENVIRONMENT.parts)
        if here.version == "absent":
            return found
        versions = [version for version in dict.fromkeys((found.version, here.version)) if version != "absent"]
        both = identity([[found.identity, here.identity]])
        return replace(found, version=" and ".join(versions), identity=both)

    def files(self, target: str, archs: tuple[str, ...]) -> LoweredFiles:
        """See :meth:`FrontEnd.files`."""
        return LoweredFiles.with_images("module.ttir", ("host.c",), archs)

    def calls_definition(self, returned: Program | Launches[Program] | RecordedVariant) -> bool:
        """See :meth:`FrontEnd.calls_definition`; a source that is only named is executed by another process."""
        if isinstance(returned, Launches):
            return any(map(self.calls_definition, returned.items))
        return isinstance(returned, RecordedVariant) or returned.source is None

    def interpreted(
        self, returned: Program | Launches[Program] | RecordedVariant, unit: Unit
    ) -> Callable[..., Mapping[str, str]]:
        """See :meth:`FrontEnd.interpreted`."""
        if isinstance(returned, RecordedVariant):
            raise DefinitionError("a recorded function has no reference", unit.where, "compare it in the program")
        if any(program.source is not None for program, _ in each_of(returned, unit)):
            from .elsewhere import interpreted_elsewhere

            return interpreted_elsewhere(returned, unit)
        if INTERPRETER.missing:
            return _not_interpreted
        from .interpreter import interpreted

        return interpreted(returned, unit)


def _not_interpreted(*_: Any) -> NoReturn:
    """With an environment of Triton's own, the build looks there for what the interpreter needs."""
    raise NotImplementedError(
        f"the function is one of this environment, where the interpreter lacks {INTERPRETER.missing}"
    )


FRONT_END = TritonProgram()
