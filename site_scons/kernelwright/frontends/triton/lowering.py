"""Lowers a Program: Triton makes device code for each arch, and TVM the host code that launches it.

Written for Triton 3.9. What its launcher passes and sets besides the arguments is in its ``backends/nvidia/driver.c``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ...core.arch import SHARED_MEMORY
from ...core.errors import LoweringError
from ...core.files import canonical_json
from ...define.arguments import Workspace
from ...define.sizes import Size, Sizes, text_of
from ..cubin import device_files, reported_usage
from ..declared_launch import lower_launches
from ..launches import NULL, DeclaredLaunch, Passed
from ..sequence import Launches
from ..unit import LoweredKernel, Unit
from .compiler import Compiled, compiled, source_text
from .data import Made
from .descriptor import TensorDescriptor
from .elsewhere import compiled_elsewhere, joined_elsewhere
from .heuristics import each_specialized
from .joined import joined
from .program import Program
from .recorded import RecordedVariant
from .recorded_lowering import lower_recorded

GLOBAL_SCRATCH, PROFILE_SCRATCH = "global scratch", "profile scratch"
"""The parameters of each device function behind the visible ones: pointers to memory, if it asks for some."""


def lower(
    returned: Program | Launches[Program] | RecordedVariant, unit: Unit, progress: Callable[[str], None]
) -> LoweredKernel:
    """Compile what a definition returned, for all archs of ``unit``.

    Arguments:
        returned: what the definition returned: a Program, several, or a call that was recorded.
        unit: what is being lowered.
        progress: called with what is about to be done.

    Raises:
        DefinitionError: its arguments do not fit.
        LoweringError: Triton cannot compile it, or it needs what a launch of ours does not have.
        ToolchainError: Triton is not installed, or another release of it.
    """
    if isinstance(returned, RecordedVariant):
        return lower_recorded(returned, unit, progress)
    unit = returned.checked(unit)
    programs = each_specialized(returned, unit)
    made = [_made(program, own, progress) for program, own in programs]
    results: list[Sequence[Compiled]] = [one.results for one in made]
    named = next((program for program, _ in programs if program.source), None)
    if len(made) > 1:
        options = [one.options for one in made]
        results[:] = joined_elsewhere(named, made, unit) if named else joined(results, options, unit)
    programs = [(p.with_options(one.options), own) for (p, own), one in zip(programs, made, strict=True)]
    whole = Launches([program for program, _ in programs])
    progress("making host code")
    launches = [
        _launch(program, codes, own, f" {number}" if number else "")
        for number, ((program, own), codes) in enumerate(zip(programs, results, strict=True))
    ]
    lowered = lower_launches(whole.declared, launches, replace(unit, multiples=programs[0][1].multiples))
    files = {name: lowered.files[name] for name in ("signature.json", "host.c")}
    read = {name: digest for one in made for name, digest in one.files.items()}
    return replace(lowered, files=files | _files(whole.items, results, unit), read=read)


def _made(program: Program, unit: Unit, progress: Callable[[str], None]) -> Made:
    if not program.source:
        return Made(*compiled(program, unit, progress))
    progress(f"compiling for {', '.join(unit.archs)} (Triton)")
    return compiled_elsewhere(program, unit)


def _launch(program: Program, results: Sequence[Compiled], unit: Unit, suffix: str) -> DeclaredLaunch:
    """The launch, which has to be one for all archs; shared memory is that of the arch that needs the most.

    Arguments:
        suffix: what tells its own memory from that of other launches.

    Raises:
        LoweringError: it differs, or there is too little shared memory.
    """
    main = results[0]
    for other in results:
        if (other.name, _form(other)) != (main.name, _form(main)):
            message = f"Triton launches {_form(other)} for {other.arch}, {_form(main)} for {main.arch}"
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
        {**_passed(program, main, unit), GLOBAL_SCRATCH + suffix: _scratch(sizes, results), PROFILE_SCRATCH: NULL},
        sizes,
        most.shared,
        options["launch_cooperative_grid"],
        options["launch_pdl"],
    )


def _form(result: Compiled) -> str:
    """What a launch has to fit besides the memory, for messages."""
    maps = "".join(f" with a map of {described}" for described in result.descriptors)
    return f"{result.threads} threads{maps}"


def _passed(program: Program, result: Compiled, unit: Unit) -> dict[str, Passed]:
    """What the device function gets."""
    names = [name for name, value in program.passed.items() if isinstance(value, TensorDescriptor)]
    described = dict(zip(names, result.descriptors, strict=True)) if result.descriptors else {}
    passed: dict[str, Passed] = {}
    for name, value in program.passed.items():
        if isinstance(value, TensorDescriptor):
            passed |= value.passed(name, described.get(name), unit.where)
        else:
            passed[name] = value
    return passed


def _scratch(sizes: Sequence[tuple[str, Sizes]], results: Sequence[Compiled]) -> Size | Workspace:
    """What the device function gets as global memory for its blocks: as much as the arch needs that needs the most."""
    most = max(result.scratch for result in results)
    blocks = (size for name, size in sizes if name.startswith("blockIdx"))
    return Workspace("uint8", *blocks, most) if most else NULL


def _files(programs: Sequence[Program], codes: Sequence[Sequence[Compiled]], unit: Unit) -> dict[str, bytes]:
    results = {result.arch: result for result in codes[0]}  # that of one launch is that of all
    sources = [_source(program, own) for program, own in zip(programs, codes, strict=True)]
    return {"module.ttir": "".join(sources).encode()} | device_files(unit.archs, results, reported_usage)


def _source(program: Program, results: Iterable[Compiled]) -> str:
    """Triton's IR, once for all archs that have the same, behind what decides besides: the options and the grid."""
    blocks = {name: text_of(size) for name, size in program.blocks}
    return source_text(canonical_json({**program.options, **blocks}), results)
