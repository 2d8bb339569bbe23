"""CHECK: a worker runs a variant of a library on a device and compares it with the kernel's NumPy reference.

Where there is no GPU, the interpreter of the definition's language runs it, if there is one, and not the library.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.files import pretty_json
from ..core.need import Interpreter
from ..library.files import UnitFiles, VariantFiles
from ..lower.base import FrontEnd
from ..processes.protocol import INTERPRETED, CheckRequest
from .context import KernelContext
from .stage import Stage, files_in

if TYPE_CHECKING:
    from ..toolchain.distribution import Distribution
    from ..toolchain.elsewhere import Elsewhere


def make_all(kernel: KernelContext, variants: tuple[VariantFiles, ...], library: Stage) -> list[Stage]:
    """The checks of a kernel: of each variant on the CPU, and on a GPU if there is one."""
    checks = []
    for number, variant in enumerate(variants):
        units = {unit.target: unit for unit in variant.units}
        if cuda := [unit for unit in variant.units if unit.target == "cuda"]:
            units["cuda"] = replace(cuda[0], archs=tuple(arch for unit in cuda for arch in unit.archs))
        if "llvm" in units:
            checks.append(make(kernel, variants, number, units["llvm"], library, "cpu"))
        if "cuda" in units and kernel.package.has_gpu:
            checks.append(make(kernel, variants, number, units["cuda"], library, "cuda:0"))
        elif cuda and can_interpret(kernel.front_end, kernel.own_tool):
            checks += [make(kernel, variants, number, unit, None, INTERPRETED) for unit in cuda]
    return checks


def can_interpret(front_end: FrontEnd, tool: Distribution | Elsewhere | None) -> bool:
    """Whether definitions can be checked without a GPU.

    Arguments:
        tool: what the front end runs besides TVM.
    """
    return front_end.interpreter is not None and not _missing(front_end.interpreter, tool)


def not_checked(front_end: FrontEnd, tool: Distribution | Elsewhere | None) -> str:
    """Why no variant of a kernel with a reference is checked, in a sentence without its beginning."""
    interpreter = front_end.interpreter
    remedy = f"; {interpreter.name}'s interpreter can run it: {_missing(interpreter, tool)}" if interpreter else ""
    return f"has nothing that can run on this machine, so it is not checked{remedy}"


def _missing(interpreter: Interpreter, tool: Distribution | Elsewhere | None) -> str:
    """The command line that installs what an interpreter lacks, here or in the front end's own environment."""
    if tool is None or not tool.python:
        return interpreter.missing
    return interpreter.missing_in(tool.python, tool.has)


def make(
    kernel: KernelContext,
    variants: tuple[VariantFiles, ...],
    number: int,
    unit: UnitFiles,
    library: Stage | None,
    device: str,
) -> Stage:
    """The stage that checks one variant on one device.

    Arguments:
        number: which of the variants it is.
        unit: the variant's code for the device.
        library: the stage that links the kernel's library; None: the definition is interpreted.
        device: ``cpu``, ``cuda:0``, or ``INTERPRETED``.
    """
    record, run, path = kernel.record, kernel.run, library.paths[0] if library else ""
    file, slug = kernel.definition.file, variants[number].slug
    own = unit.own_arch if library is None else ""
    subject, where = f"{record.name}/{slug} {device}{own and f' {own}'}", kernel.where("check", slug)
    output = f"{slug}.{device.partition(':')[0]}{own and f'.{own}'}.json"
    # A variant that a table or the definition chooses for one arch cannot run on every GPU, and does not have to.
    compiled = set(kernel.selection.compiled_archs("cuda"))
    is_for_some = library is not None and unit.target == "cuda" and set(unit.archs) != compiled
    archs = ",".join(unit.archs) if is_for_some else own

    def check(scratch: Path) -> None:
        signature = unit.read_signature()
        index = [variant.slug for variant in kernel.whole(variants)].index(slug)
        listed = kernel.lists(slug)
        request = CheckRequest(
            *(file, record.name, slug, path, index, signature, device, record.tolerance, run.strict, listed),
            {} if listed else dict(variants[number].config),
            archs,
            "" if library else kernel.python,
        )
        result = kernel.call(request, where)
        remember(result.pop("dependencies"))
        (scratch / output).write_text(pretty_json(result))

    options: dict[str, Any] = {
        "index": number,
        "device": device,
        "tolerance": record.tolerance,
        "definition": kernel.definition_identity,
    } | ({"strict": True} if run.strict else {})
    options |= {"archs": archs} if archs else {}
    if not library:
        options |= {name: tool["identity"] for name, tool in kernel.own_tools.items()}
    remember = kernel.later(f"check {subject}", options)
    outputs = files_in(kernel.package.checks / record.name, (output,))
    sources = [*filter(None, [path]), unit.signature, *kernel.definition_files]
    stage = Stage("CHECK", subject, where, options, check, outputs, sources, remember=remember, cacheable=False)
    stage.rest = lambda: kernel.made(unit) is not None
    return stage
