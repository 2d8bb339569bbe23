"""The TIR front end: a definition returns a function of TVM, and TVM makes host code and CUDA source of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import Where
from ...core.written import APACHE, Written
from ...define.debug import FULL, LINEINFO
from ...define.pass_configs import PassConfigs
from ..base import FrontEnd

if TYPE_CHECKING:
    from ..unit import LoweredKernel, Unit


class Tir(FrontEnd):
    """A TVM PrimFunc, or an IRModule with one entry function."""

    name = "tir"
    has_passes = True
    debugs = LINEINFO, FULL
    writes = (Written("apache-tvm", APACHE, "what TVM's code generators write"),)
    expects = "a PrimFunc or an IRModule"
    remedy = "return a function made with @T.prim_func or te.create_prim_func, or a module made with @I.ir_module"

    def load(self) -> None:
        """See :meth:`FrontEnd.load`."""
        from . import lowering, passes  # noqa: F401
        from .parser import make_parser_faster

        make_parser_faster()

    def require_pass_configs(self, pass_configs: PassConfigs, where: Where) -> None:
        """See :meth:`FrontEnd.require_pass_configs`; TVM knows which there are."""
        if pass_configs:
            from .passes import require_pass_configs

            require_pass_configs(pass_configs, where)

    def recognizes(self, returned: Any) -> bool:
        """See :meth:`FrontEnd.recognizes`."""
        from tvm import IRModule, tirx

        return isinstance(returned, (tirx.PrimFunc, IRModule))

    def target(self, unit: Unit) -> Any:
        """The ``tvm.target.Target``; see :meth:`FrontEnd.target`."""
        from .lowering import target_for

        return target_for(unit)

    def argument_names(self, returned: Any, unit: Unit) -> list[str]:
        """See :meth:`FrontEnd.argument_names`."""
        from .lowering import argument_names

        return argument_names(returned, unit)

    def constants(self, returned: Any) -> Mapping[str, Any]:
        """See :meth:`FrontEnd.constants`: in a PrimFunc, none has a name."""
        return {}

    def lower(self, returned: Any, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
        """See :meth:`FrontEnd.lower`."""
        from .lowering import lower
        from .passes import IrDump, pass_context

        dump = IrDump(Path(unit.ir)) if unit.ir else None
        if dump is None:
            with pass_context(unit.pass_configs):
                return lower(returned, unit, progress)
        dump.write("definition", returned)
        with pass_context(unit.pass_configs, (dump.instrument(),)):
            lowered = lower(returned, unit, dump.noting(progress))
        dump.finish(unit)
        return lowered


FRONT_END = Tir()
