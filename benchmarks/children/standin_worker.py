"""Loaded into a worker of Dask (``--preload``): a worker whose only tool is a shell, which stands in for compilers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from kernelwright.cluster.dask_worker import INFORMATION, MachinePlugin
from kernelwright.cluster.machine import Machine
from kernelwright.cluster.messages import Offer, resource, versions
from kernelwright.core.converter import to_json
from kernelwright.processes.tools import SharedTool

TOOL = SharedTool("shell", "1", "5e11", {"SHELL": "/bin/sh"})


async def dask_setup(worker: Any) -> None:
    """Have a worker offer the shell."""
    said = to_json(Offer(versions(), {TOOL.identity: "shell 1"}))
    worker.startup_information[INFORMATION] = lambda worker: said
    for resources in (worker.state.total_resources, worker.state.available_resources):
        resources[resource(TOOL.identity)] = worker.state.nthreads
    folder = Path(tempfile.mkdtemp(dir=worker.local_directory))
    machine = Machine({TOOL.name: lambda: TOOL}, folder, lambda line: None)
    await worker.plugin_add(MachinePlugin(machine), name=INFORMATION)
