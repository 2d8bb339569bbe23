"""Prints how each device.cu below a folder is compiled by nvcc and by NVRTC, as JSON lines.

Arguments: the folder, one for precompiled headers, and archs. In the commands, OUTPUT stands for the file to make.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from kernelwright.core.arch import is_ptx
from kernelwright.core.errors import Where
from kernelwright.toolchain.nvcc_run import NvccJob
from kernelwright.toolchain.nvrtc import compiler_process
from kernelwright.toolchain.nvrtc_run import WIDE_SHARED, HeaderStore, NvrtcJob, header_options
from kernelwright.toolchain.probe import Toolchain

NVCCS = {"nvcc": (), "nvcc with 64-bit addresses of shared memory": ("-Xcudafe", WIDE_SHARED)}
"""Ways to run nvcc, and their flags."""


def main(kernels: str, headers: str, *archs: str) -> None:
    """Print the commands."""
    with tempfile.TemporaryDirectory() as folder:
        chain = Toolchain(Path(folder, "toolchain.json"), {})
        compiler = chain.host_compiler("")
        nvcc, nvrtc = chain.nvcc("", compiler), chain.nvrtc()
    store = HeaderStore(Path(headers), 1 << 40)
    for source in sorted(Path(kernels).rglob("device.cu")):
        for arch in archs:
            by_nvrtc = NvrtcJob(arch, (), source.parent, Where())
            own, _ = header_options(by_nvrtc, nvrtc, source, store)
            output = f"OUTPUT.{'ptx' if is_ptx(arch) else 'cubin'}"
            place = (compiler_process(), nvrtc.library, nvrtc.include, output)
            by_nvcc = {name: NvccJob(arch, flags, source.parent, Where()) for name, flags in NVCCS.items()}
            commands = {name: job.arguments(nvcc.path, compiler.path, output) for name, job in by_nvcc.items()}
            commands |= {
                "NVRTC without a precompiled header": by_nvrtc.arguments(*place, []),
                "NVRTC": by_nvrtc.arguments(*place, own),
            }
            print(json.dumps({"folder": str(source.parent), "arch": arch, "commands": commands}))


if __name__ == "__main__":
    main(*sys.argv[1:])
