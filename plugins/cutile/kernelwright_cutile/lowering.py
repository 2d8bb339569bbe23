"""Lowers a Program: cuTile and tileiras make device code for each arch, and TVM the host code that launches it.

Written for cuda-tile 1.7. An array is passed as its address, its shape and its strides in elements, and a block has one
thread: the driver knows from the code how many it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kernelwright.core.arch import arch_order
from kernelwright.define.arguments import Scalar, Tensor, multiples_of
from kernelwright.define.sizes import Size, text_of
from kernelwright.define.strides import all_strides
from kernelwright.frontends.cubin import device_files, reported_usage
from kernelwright.frontends.declared_launch import lower_launches
from kernelwright.frontends.launches import DeclaredLaunch, Passed
from kernelwright.frontends.unit import LoweredKernel, Unit

from .compiler import Compiled, Compiler
from .program import Program


def lower(program: Program, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """Compile what a definition returned, for all archs of ``unit``.

    Arguments:
        program: what the definition returned.
        unit: what is being lowered.
        progress: called with what is about to be done.

    Raises:
        DefinitionError: its arguments do not fit.
        LoweringError: cuTile or tileiras cannot compile it.
        ToolchainError: tileiras is not installed, or another release of it.
    """
    unit = program.checked(unit)
    compiler = Compiler(program, replace(unit, multiples=multiples_of(program.declared, unit.multiples)))
    results: dict[str, Compiled] = {}
    for arch in sorted(unit.archs, key=arch_order):
        progress(f"compiling for {arch} (cuTile)")
        results[arch] = compiler.compile(arch)
    progress("making host code")
    lowered = lower_launches(program.declared, [launch_of(program, compiler)], unit)
    files = {name: lowered.files[name] for name in ("signature.json", "host.c")}
    text = _source(program, results).encode()
    return replace(lowered, files=files | {"module.tileir": text} | device_files(unit.archs, results, reported_usage))


def launch_of(program: Program, compiler: Compiler) -> DeclaredLaunch:
    """The launch, with all that the device function gets."""
    passed: dict[str, Passed] = {}
    strides: list[str] = []
    for name, value in program.arguments.items():
        if isinstance(value, Tensor) and value.given:
            dtype = compiler.index_dtype(name)
            listed = all_strides(name, value.shape, value.strides)
            passed[name] = value
            passed |= {f"shape {axis} of {name}": Size(text_of(size), dtype) for axis, size in enumerate(value.shape)}
            passed |= {f"stride {axis} of {name}": Size(text_of(step), dtype) for axis, step in enumerate(listed)}
            strides += [f"stride {axis} of {name}" for axis in range(len(listed))]
        elif isinstance(value, (Scalar, Size)):
            passed[name] = value
    sizes = [*program.blocks, ("threadIdx.x", 1)]
    return DeclaredLaunch(compiler.symbol, passed, sizes, dependent=program.dependent, least=dict.fromkeys(strides, 0))


def _source(program: Program, results: Mapping[str, Compiled]) -> str:
    """cuTile's code, once for all archs that have the same, behind the grid, which decides as well."""
    archs: dict[str, list[str]] = {}
    for arch, result in results.items():
        archs.setdefault(result.source, []).append(arch)
    grid = ", ".join(text_of(size) for _, size in program.blocks)
    parts = [f"// for {', '.join(those)}\n{source}" for source, those in archs.items()]
    return f"// grid {grid}\n" + "".join(parts)
