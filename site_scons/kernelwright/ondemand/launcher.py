"""The launcher, an object file that all libraries compiled on demand share: compiled once, and as early as can be."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from ..core.errors import KernelwrightError

if TYPE_CHECKING:
    from ..define.settings import Settings
    from ..stages.stage import Stage
    from .run import OnDemandRun
    from .session import Session


def attempt_stage(run: OnDemandRun, stage: Stage) -> KernelwrightError | None:
    """Run a stage. Of several compiles that want the launcher at a time, one makes it for all."""
    from ..stages.execution import attempt

    with run.session.launcher if stage.label == "LAUNCHER" else contextlib.nullcontext():
        return attempt(stage, run)


def begin_launcher(session: Session, settings: Settings) -> None:
    """Compile the launcher in a thread, so that it is ready before a worker has imported TVM and lowered anything.

    Errors are not shown here: the first kernel that needs the launcher meets them again, and shows them.
    """
    if session.stages is None or session.jobs < 2:
        return

    def compile_it() -> None:
        from ..stages import launcher
        from ..stages.context import Context
        from ..stages.tools import Tools
        from .run import OnDemandRun

        try:
            chain = session.toolchain
            tools = Tools(chain.lowerer(), chain.host_compiler(settings.host_compiler), None)
            with session.store.scratch("launcher") as folder:
                run = OnDemandRun(session, lambda text: None)
                context = Context(run, settings, tools, work=folder, package=folder, checks=folder, wheels=folder)
                attempt_stage(run, launcher.make(context, None))
        except (KernelwrightError, OSError):
            return

    threading.Thread(target=compile_it, name="launcher").start()
