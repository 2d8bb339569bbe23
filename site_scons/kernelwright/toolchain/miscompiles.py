"""Releases of CUDA's compilers that are publicly known to compile wrong code. A wrong result is worse than a warning.

The table is as of 29 November 2026. Each row is a public report of code that was compiled without an error and ran
wrong; what fails to compile, or crashes the compiler, is not here. Most rows are about rare code: a release in the
table is not useless, and one that is not in the table is not proven right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..core.arch import CudaArch


# A frozen dataclass would cost every run of scons 0.6 ms.
class Miscompile(NamedTuple):
    """A public report.

    Arguments:
        first: the first release that has it, as nvcc and NVRTC tell their own: ``12.0``, or ``12.3.103``.
        fixed: the first one that does not; empty: none is known.
        archs: the first and the last compute capability, times ten, of the devices that it was seen for.
        what: the code that goes wrong.
        seen: when it was reported, or said to be fixed; a year, if the source has no date.
        source: where.
    """

    first: str
    fixed: str
    archs: tuple[int, int]
    what: str
    seen: str
    source: str

    def concerns(self, version: str, archs: Iterable[str]) -> list[str]:
        """Those of some archs that a compiler of this version may compile wrong code for."""
        number = _numbers(version)
        if not number or number < _numbers(self.first) or (self.fixed and number >= _numbers(self.fixed)):
            return []
        first, last = self.archs
        known = ((name, CudaArch.of(name)) for name in archs)
        return [name for name, arch in known if arch and first <= arch.number <= last]


ALL = (0, 999)

MISCOMPILES = (
    Miscompile(
        *("12.8", "13.3", (100, 129)),
        "two or more nested levels of divergent branches: threads may go on with stale registers",
        *("2026-09-18", "https://github.com/pytorch/pytorch/issues/190385"),
    ),
    Miscompile(
        *("12.8", "13.4", (120, 121)),
        "a scan by specialised warps",
        *("2026-05-12", "https://github.com/NVIDIA/cccl/pull/8922"),
    ),
    Miscompile(
        *("13.0", "13.1", (120, 121)),
        "matrix products of quantized numbers (MXFP4)",
        *("2026-01-29", "https://github.com/ggml-org/llama.cpp/pull/19168"),
    ),
    Miscompile(
        *("12.8", "13.1", (120, 120)),
        "solvers that need many registers; -Xptxas -O0 avoids it",
        *("2025", "https://docs.nvidia.com/cuda/cusolverdx/0.2.1/release_notes.html"),
    ),
    Miscompile(
        *("13.3", "", ALL),
        "shuffles of structures with members of less than four bytes",
        *("2026-08-23", "https://github.com/NVIDIA/cccl/issues/10958"),
    ),
    Miscompile(
        *("13.2", "13.3", ALL),
        "code of CUB that the optimiser changes",
        *("2026-04-23", "https://github.com/NVIDIA/cccl/pull/8656"),
    ),
    Miscompile(
        *("12.0", "12.6.85", (90, 999)),
        "code that XLA makes",
        *("2024-11-28", "https://github.com/openxla/xla/pull/19927"),
    ),
    Miscompile(
        *("12.3.103", "12.3.104", ALL),
        "code that XLA makes",
        *("2024-01-03", "https://github.com/openxla/xla/pull/7922"),
    ),
    Miscompile(
        *("11.8", "11.9", ALL),
        "std::min of a constexpr variable",
        *("2025-07-29", "https://github.com/Hi-PACE/hipace/pull/1269"),
    ),
    Miscompile(
        *("11.3", "11.7", ALL),
        "copies of std::complex<double>",
        *("2022-03-30", "https://github.com/llvm/llvm-project/issues/54633"),
    ),
    Miscompile(
        *("0", "11.1", ALL),
        "code that XLA makes",
        *("2022-03-30", "https://github.com/jax-ml/jax/issues/10083"),
    ),
)


def warnings(name: str, version: str, archs: Iterable[str]) -> Iterator[str]:
    """What is known of a compiler, a sentence for each row.

    Arguments:
        name: that of the compiler.
        version: as it tells it, such as ``13.0.88``.
        archs: those that it compiles for.
    """
    for row in MISCOMPILES:
        if concerned := row.concerns(version, archs := list(archs)):
            wrong = f"{name} {version} is known to compile wrong code for {', '.join(concerned)}"
            remedy = f"use {row.fixed} or newer" if row.fixed else "no release without it is known"
            yield f"{wrong}: {row.what} ({row.source}); {remedy}, and compare with references on that device"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
