"""The worker's side of a Dask cluster. Dask loads this module into a worker (``--preload``) and calls ``dask_setup``.

A worker does what the clients of its scheduler tell it: Dask sends functions, and a worker executes them. See
docs/security.md for who has to be trusted.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import distributed
from distributed.diagnostics.plugin import WorkerPlugin

from ..core.converter import to_json
from ..core.version import VERSION
from ..toolchain.probe import Toolchain
from .machine import Machine, finders
from .messages import Offer, resource, versions

INFORMATION = "kernelwright"
"""The name of a worker's offer in what the scheduler knows of the worker, and of our plugin in the worker."""

LOGGER = logging.getLogger("distributed.worker.kernelwright")
"""Dask prints messages of loggers that are below its own."""

ENDED = ("cancelled", "released", "forgotten", "error")
"""States of a task that nobody waits for."""


def execute(request: bytes, key: str) -> bytes:
    """Do a request on this worker: the one function that builds send."""
    machine: Machine = distributed.get_worker().plugins[INFORMATION].machine
    return machine.execute(request, key)


class MachinePlugin(WorkerPlugin):  # type: ignore[misc]
    """Gives a worker of Dask its machine.

    Arguments:
        machine: does the runs.
    """

    name = INFORMATION

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def transition(self, key: Any, start: str, finish: str, **more: Any) -> None:
        """End a run that nobody waits for any more; Dask only forgets it."""
        if start in ("executing", "long-running") and finish in ENDED:
            self.machine.cancel(str(key))

    def teardown(self, worker: Any) -> None:
        """End all runs when the worker ends."""
        self.machine.close()


async def dask_setup(worker: Any) -> None:
    """Find the tools of this machine, and have a worker offer them. Dask calls this before the worker joins."""
    folder = Path(tempfile.mkdtemp(prefix="kernelwright-", dir=worker.local_directory))
    toolchain = Toolchain(folder / "toolchain.json", dict(os.environ))

    def leave() -> None:
        LOGGER.info("Kernelwright %s ends this worker: a tool has changed since it was started", VERSION)
        # A worker cannot take its offer back, so it ends. If it has a nanny, that starts it again.
        worker.loop.add_callback(worker.close_gracefully, restart=True)

    machine = Machine(finders(toolchain), folder, LOGGER.info, leave)
    offer = to_json(Offer(versions(), {tool.identity: f"{tool.name} {tool.version}" for tool in machine.tools}))
    worker.startup_information[INFORMATION] = lambda worker: offer
    for tool in machine.tools:
        # A resource says that the worker can do a run. Its threads, and not this number, limit how many run at once.
        for resources in (worker.state.total_resources, worker.state.available_resources):
            resources[resource(tool.identity)] = worker.state.nthreads
    await worker.plugin_add(MachinePlugin(machine), name=INFORMATION)
    for tool in machine.tools:
        LOGGER.info("Kernelwright %s has %s %s (%s)", VERSION, tool.name, tool.version, tool.identity[:16])
    for problem in machine.problems:
        LOGGER.info("Kernelwright %s has %s", VERSION, problem)
