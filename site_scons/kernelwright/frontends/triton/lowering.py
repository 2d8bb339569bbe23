"""Lowers a Program: Triton makes device code for each arch, and TVM the host code that launches it.

Written for Triton 3.9. What its launcher passes and sets besides the arguments is in its ``backends/nvidia/driver.c``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ...core.arch import SHARED_MEMORY, arch_order
from ...core.errors import LoweringError
from ...core.files import canonical_json
from ...define.sizes import Size, Sizes, text_of
from ..cubin import device_files, usage_of, with_spills
from ..declared_launch import lower_launch
from ..launches import DeclaredLaunch, Workspace
from ..unit import LoweredKernel, Unit
from .compiler import Compiled, compiled
from .data import Made
from .elsewhere import compiled_elsewhere
from .heuristics import specialized
from .program import Program
from .recorded import RecordedVariant
from .recorded_lowering import lower_recorded

GLOBAL_SCRATCH, PROFILE_SCRATCH = "global scratch", "profile scratch"
"""The parameters of each device function behind the visible ones: pointers to memory, if it asks for some."""

NULL = Size(0, "uint64")
"""A pointer to no memory."""


def lower(program: Program | RecordedVariant, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """Compile what a definition returned, for all archs of ``unit``.

    Arguments:
        program: what the definition returned: a Program, or a call that was recorded.
        unit: what is being lowered.
        progress: called with what is about to be done.

    Raises:
        DefinitionError: its arguments do not fit.
        LoweringError: Triton cannot compile it, or it needs what a launch of ours does not have.
        ToolchainError: Triton is not installed, or another release of it.
    """
    if isinstance(program, RecordedVariant):
        return lower_recorded(program, unit, progress)
    unit = program.checked(unit)
    compilation = _made(program, unit, progress)
    program, unit = specialized(program, unit)
    program = program.with_options(compilation.options)
    progress("making host code")
    lowered = lower_launch(_launch(program, compilation.results, unit), unit)
    files = {name: lowered.files[name] for name in ("signature.json", "host.c")}
    return replace(lowered, files=files | _files(program, unit, compilation.results), read=compilation.files)


def _made(program: Program, unit: Unit, progress: Callable[[str], None]) -> Made:
    if not program.source:
        return Made(*compiled(program, unit, progress))
    progress(f"compiling for {', '.join(unit.archs)} (Triton)")
    return compiled_elsewhere(program, unit)


def _launch(program: Program, results: Sequence[Compiled], unit: Unit) -> DeclaredLaunch:
    """The launch, which has to be one for all archs; shared memory is that of the arch that needs the most.

    Raises:
        LoweringError: it differs, or there is too little shared memory.
    """
    main = results[0]
    for other in results:
        if (other.name, other.threads) != (main.name, main.threads):
            message = f"Triton launches {other.threads} threads for {other.arch}, {main.threads} for {main.arch}"
            remedy = "give each arch a launch of its own: @kernel(per_arch=True)"
            raise LoweringError(message, unit.where, remedy)
    most = max(results, key=lambda result: result.shared)
    for result in results:
        if most.shared > SHARED_MEMORY[result.arch] * 1024:
            raise LoweringError(
                f"the code for {most.arch} needs {most.shared} bytes of shared memory in a block, and {result.arch} "
                f"has {SHARED_MEMORY[result.arch] * 1024}; there is one launch for all archs",
                unit.where,
                "make num_stages or the blocks smaller, or give each arch a launch of its own: @kernel(per_arch=True)",
            )
    options, sizes = program.options, list(program.launch(main.threads))
    return DeclaredLaunch(
        main.name,
        {**program.passed, GLOBAL_SCRATCH: _scratch(sizes, results), PROFILE_SCRATCH: NULL},
        sizes,
        most.shared,
        options["launch_cooperative_grid"],
        options["launch_pdl"],
    )


def _scratch(sizes: Sequence[tuple[str, Sizes]], results: Sequence[Compiled]) -> Size | Workspace:
    """What the device function gets as global memory for its blocks: as much as the arch needs that needs the most."""
    most = max(result.scratch for result in results)
    return Workspace([*(size for name, size in sizes if name.startswith("blockIdx")), most]) if most else NULL


def _files(program: Program, unit: Unit, codes: Sequence[Compiled]) -> dict[str, bytes]:
    results = {result.arch: result for result in codes}
    return {"module.ttir": _source(program, codes).encode()} | device_files(unit.archs, results, _usage)


def _usage(result: Compiled) -> dict[str, dict[str, int]]:
    return with_spills(usage_of(result.cubin, arch_order(result.arch)[0]), result.report)


def _source(program: Program, results: Iterable[Compiled]) -> str:
    """Triton's IR, once for all archs that have the same, behind what decides besides: the options and the grid."""
    archs: dict[str, list[str]] = {}
    for result in results:
        archs.setdefault(result.source, []).append(result.arch)
    blocks = {name: text_of(size) for name, size in program.blocks}
    head = f"// {canonical_json({**program.options, **blocks})}\n"
    return head + "".join(f"// ---- for {', '.join(names)} ----\n{source}" for source, names in archs.items())
