"""Tests nvcc with a small kernel: once as a whole, and once with the programs that nvcc runs, one by one."""

from __future__ import annotations

import filecmp
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.arch import is_ptx, virtual_arch
from ..core.errors import ToolchainError
from .ask import WHERE, failure, run_tool
from .host_compiler import HostCompiler
from .nvcc import INSTALL_CUDA, Nvcc
from .nvcc_steps import Steps, read_steps
from .trimmed_source import TrimmedSource

PROBE_SOURCE = """\
#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
static __device__ int launches;
template <typename T> __device__ T twice(T x) { return x + x; }
extern "C" __global__ void probe(float *x, __half *y, __nv_bfloat16 *z, uint64_t n) {
  __shared__ float shared[32];
  uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
  if (i >= n) return;
  if (i == 0) atomicAdd(&launches, 1);
  shared[threadIdx.x % 32] = expf(x[i]) + powf(x[i], 0.3f) / sinf(x[i]);
  __syncthreads();
  x[i] = twice(shared[(threadIdx.x + 1) % 32]);
  y[i] = __hmul(y[i], __float2half(rsqrtf(x[i])));
  z[i] = __float2bfloat16(twice(__bfloat162float(z[i])));
}
"""
"""It has the headers of every source that TVM generates, and what gets names or code from elsewhere in the compiler."""

CHECKED_RELEASES = ("13.0",)
"""Releases of CUDA whose compiler was seen to make the same of all kernels, run as a whole and step by step."""

ELF = b"\x7fELF"


@dataclass(frozen=True)
class NvccPrograms:
    """The programs that an nvcc runs.

    Arguments:
        obstacle: why nvcc is run as a whole; empty: these programs can be run one by one, and make the same.
    """

    obstacle: str


def probe_programs(nvcc: Nvcc, host_compiler: HostCompiler) -> NvccPrograms:
    """Compile a small kernel with nvcc and with the programs that nvcc runs.

    Raises:
        ToolchainError: nvcc does not compile it.
    """
    with tempfile.TemporaryDirectory() as folder:
        probe = _compiled(nvcc, host_compiler, Path(folder))
        return NvccPrograms(_known_obstacle(nvcc.path, nvcc.version) or probe.obstacle())


def require_compiles(nvcc: Nvcc, host_compiler: HostCompiler) -> None:
    """Raise a ToolchainError if nvcc does not even compile a small kernel, so that a source is not to blame."""
    with tempfile.TemporaryDirectory() as folder:
        _compiled(nvcc, host_compiler, Path(folder))


def _compiled(nvcc: Nvcc, host_compiler: HostCompiler, folder: Path) -> _Probe:
    arch = next(arch for arch in nvcc.archs if not is_ptx(arch))
    problem = f"nvcc does not compile a small kernel for {arch}"
    remedy = f"a C++ compiler (g++) must be installed, and all CUDA packages be of one release: {INSTALL_CUDA}"
    Path(folder, "probe.cu").write_text(PROBE_SOURCE)
    probe = _Probe(nvcc.path, host_compiler.path, arch, folder)
    command = probe.arguments("cubin", "probe.cubin")
    done = run_tool(command, problem, remedy, folder)
    if done.returncode != 0:
        raise failure(problem, remedy, command, done)
    return probe


def _known_obstacle(nvcc: str, version: str) -> str:
    with open(nvcc, "rb") as file:  # noqa: PTH123
        if file.read(len(ELF)) != ELF:
            return f"{nvcc} is a script"
    if version.rpartition(".")[0] not in CHECKED_RELEASES:
        return f"it is of CUDA {version}, and what it runs is known of {', '.join(CHECKED_RELEASES)} only"
    return ""


@dataclass(frozen=True)
class _Probe:
    """A small kernel, ``probe.cu``, which nvcc has compiled to ``probe.cubin`` in its folder."""

    nvcc: str
    host_compiler: str
    arch: str
    folder: Path

    def arguments(self, kind: str, output: str) -> list[str]:
        arch = virtual_arch(self.arch) if kind == "ptx" else self.arch
        return [self.nvcc, "-ccbin", self.host_compiler, f"-{kind}", f"-arch={arch}", "-o", output, "probe.cu"]

    def obstacle(self) -> str:
        """Why the programs that nvcc runs cannot be used without nvcc; empty: they can."""
        try:
            front, whole = self._steps("ptx"), self._steps("cubin")
            if front.decisive != whole.decisive:
                return "it makes PTX in another way than for a cubin"
            self._run(front.front_end())
            self._run(whole.assembling("steps.ptx"))
            if not self._are_equal("probe.cubin", "steps.cubin"):
                return "what it would run makes another cubin"
            (self.folder / "steps.ptx").rename(self.folder / "probe.ptx")
            source = TrimmedSource(
                self.folder / "probe.cu", front, self.folder, self._run, self._run, lambda head, before, read: read()
            )
            if not source.make_ptx(checked=False) or not self._are_equal("probe.ptx", "steps.ptx"):
                return "it makes other PTX without declarations that are not used"
        except (ValueError, OSError) as error:
            return f"its dry run cannot be read: {error}"
        except ToolchainError as error:
            return error.message
        return ""

    def _run(self, command: Sequence[str]) -> None:
        done = run_tool(command, "it cannot be run", "", self.folder, self.folder)
        if done.returncode != 0:
            raise ToolchainError(f"what it would run ends with exit status {done.returncode}", WHERE)

    def _are_equal(self, first: str, second: str) -> bool:
        return filecmp.cmp(self.folder / first, self.folder / second, shallow=False)

    def _steps(self, kind: str) -> Steps:
        command = self.arguments(kind, f"{self.folder}/steps.{kind}")
        done = run_tool([command[0], "--dryrun", *command[1:]], "it cannot be run", "", self.folder, self.folder)
        return read_steps(done.stderr + done.stdout, kind, str(self.folder))
