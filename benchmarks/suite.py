"""The list of all benchmarks."""

from __future__ import annotations

from . import (
    against_tilelang,
    against_triton,
    call_overhead,
    ci,
    clean_build,
    cuda_cpp,
    cutile,
    edit_one,
    first_kernel,
    fresh_folder,
    gpu,
    import_and_call,
    kernels_cpu,
    lookup,
    null_build,
    nvrtc,
    on_demand,
    process_per_kernel,
    recorded_launch,
    remote_cache,
    scale,
    stability,
    tilelang_kernels,
)
from .harness import Benchmark

MODULES = {
    "clean_build": clean_build,
    "nvrtc": nvrtc,
    "null_build": null_build,
    "edit_one": edit_one,
    "first_kernel": first_kernel,
    "fresh_folder": fresh_folder,
    "remote_cache": remote_cache,
    "ci": ci,
    "tilelang": against_tilelang,
    "tilelang_kernels": tilelang_kernels,
    "triton": against_triton,
    "cuda_cpp": cuda_cpp,
    "cutile": cutile,
    "process_per_kernel": process_per_kernel,
    "import_and_call": import_and_call,
    "on_demand": on_demand,
    "call_overhead": call_overhead,
    "recorded_launch": recorded_launch,
    "lookup": lookup,
    "kernels": kernels_cpu,
    "stability": stability,
    "scale": scale,
    "gpu": gpu,
}

BENCHMARKS = [
    Benchmark(name, (module.__doc__ or "").splitlines()[0], module.measure) for name, module in MODULES.items()
]
"""In the order in which they run: those that share a project are neighbours."""
