"""The nvcc of this environment with what runs it, for tests that compile."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from kernelwright.core.errors import ToolchainError, Where
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.processes.runner import ToolRunner
from kernelwright.toolchain.host_compiler import HostCompiler, find_host_compiler
from kernelwright.toolchain.nvcc import Nvcc, find_nvcc
from kernelwright.toolchain.nvcc_run import CompiledCode, NvccJob, NvccRun, compile_device_code


@dataclass
class Bench:
    """A project with a source, and what compiles it."""

    project: Path
    nvcc: Nvcc
    compiler: HostCompiler
    runner: ToolRunner

    @property
    def folder(self) -> Path:
        return self.project / "build" / "kernel"

    @property
    def source(self) -> Path:
        return self.folder / "device.cu"

    def plain(self, arch: str, *flags: str) -> tuple[CompiledCode, dict[str, bytes]]:
        """What nvcc reports and makes."""
        run = self.new_run(arch, flags)
        return compile_device_code(run), self.outputs(run)

    def new_run(self, arch: str, flags: tuple[str, ...] = ()) -> NvccRun:
        """A run in an empty folder, whose name a shell would take apart."""
        scratch = self.project / "build" / "scratch, (1): really"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        job = NvccJob(arch, flags, self.folder, Where("k", "default", "nvcc"))
        return NvccRun(job, self.nvcc, self.compiler, scratch, self.runner, arch)

    def outputs(self, run: NvccRun) -> dict[str, bytes]:
        return {name: (run.scratch / name).read_bytes() for name in run.job.outputs}


AnyBench = TypeVar("AnyBench", bound=Bench)


@contextlib.contextmanager
def real_nvcc(kind: type[AnyBench], project: Path, source: str) -> Iterator[AnyBench]:
    """A bench with nvcc and the C compiler; the test is skipped without nvcc."""
    try:
        nvcc = Nvcc(find_nvcc("", {}), "13.0.88", "id", ())
    except ToolchainError:
        pytest.skip("nvcc is not installed")
    compiler = HostCompiler(find_host_compiler("", {"PATH": "/usr/local/bin:/usr/bin:/bin"}), "cc", "id")
    runner = ToolRunner(1, project, 120.0, MemoryGovernor(1 << 20, Measurements(project / "measurements.json")))
    bench = kind(project, nvcc, compiler, runner)
    bench.folder.mkdir(parents=True, exist_ok=True)
    bench.source.write_text(source)
    try:
        yield bench
    finally:
        runner.close()
