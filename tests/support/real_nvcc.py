"""The nvcc of this environment with what runs it, for tests that compile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelwright.core.errors import ToolchainError
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.processes.runner import ToolRunner
from kernelwright.toolchain.host_compiler import HostCompiler, find_host_compiler
from kernelwright.toolchain.nvcc import Nvcc, find_nvcc


@contextlib.contextmanager
def real_nvcc(project: Path) -> Iterator[tuple[Nvcc, HostCompiler, ToolRunner]]:
    """nvcc, the C compiler, and what runs them in a project; the test is skipped without nvcc."""
    try:
        nvcc = Nvcc(find_nvcc("", {}), "13.0.88", "id", ())
    except ToolchainError:
        pytest.skip("nvcc is not installed")
    compiler = HostCompiler(find_host_compiler("", {"PATH": "/usr/local/bin:/usr/bin:/bin"}), "cc", "id")
    runner = ToolRunner(1, project, 120.0, MemoryGovernor(1 << 20, Measurements(project / "measurements.json")))
    try:
        yield nvcc, compiler, runner
    finally:
        runner.close()
