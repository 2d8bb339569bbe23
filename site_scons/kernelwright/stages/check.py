"""CHECK: a worker runs a variant of a library on a device and compares it with the kernel's NumPy reference.

Where there is no GPU, the interpreter of the definition's language runs it, if there is one, and not the library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends.files import UnitFiles, VariantFiles
from ..core.converter import from_json
from ..core.files import pretty_json
from ..core.need import Interpreter
from ..core.records import damage_named
from ..core.request import ASIDE
from ..core.signature import UNKNOWN, Signature
from ..frontends.base import FrontEnd
from ..processes.protocol import INTERPRETED, CheckRequest
from .context import KernelContext, made
from .stage import Stage, files_in
from .stage_run import StageRun

if TYPE_CHECKING:
    from ..toolchain.distribution import Distribution
    from ..toolchain.elsewhere import Elsewhere
    from ..toolchain.other_machine import OtherMachine


@dataclass(frozen=True)
class Checking:
    """What a check compares, and with what.

    Arguments:
        asked: what the worker is asked for.
        definition: what decides what the definition does (:attr:`KernelContext.definition_identity`).
        own_tool: what the interpreter is a part of, if that runs the definition.
        machine: where the library runs, if this machine cannot run it.
        unit: the variant's code for the device, whose signature is a source.
        variants: all variants, of which a partial library may lack some.
    """

    asked: CheckRequest
    definition: Mapping[str, Any]
    own_tool: Distribution | Elsewhere | None
    machine: OtherMachine | None
    unit: UnitFiles = field(metadata=ASIDE)
    variants: tuple[VariantFiles, ...] = field(metadata=ASIDE)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Have a worker compare the variant with its reference."""
        asked = self.asked
        number = [variant.slug for variant in stage.whole(self.variants)].index(asked.slug)
        with damage_named(Path(self.unit.signature), "remove it and try again"):
            signature = from_json(Signature, self.unit.read_signature())
        result = asdict(stage.asked(replace(asked, variant_index=number, signature=signature)))
        del result["dependencies"]
        (scratch / next(iter(stage.stage.outputs))).write_text(pretty_json(result))


def make_all(kernel: KernelContext, variants: tuple[VariantFiles, ...], library: Stage) -> list[Stage]:
    """The checks of a kernel: of each variant on the CPU, and on a GPU if there is one.

    Where another machine runs the code for the CPU, the package for this machine's family has the other checks.
    """
    checks = []
    native = kernel.package.is_native
    for number, variant in enumerate(variants):
        units = {unit.target: unit for unit in variant.units}
        if cuda := [unit for unit in variant.units if unit.target == "cuda"]:
            units["cuda"] = replace(cuda[0], archs=tuple(arch for unit in cuda for arch in unit.archs))
        if "llvm" in units:
            checks.append(make(kernel, variants, number, units["llvm"], library, "cpu"))
        if not native:
            continue
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
    record, path, slug = kernel.record, library.paths[0] if library else "", variants[number].slug
    own = unit.own_arch if library is None else ""
    subject, where = f"{record.name}/{slug} {device}{own and f' {own}'}", kernel.where("check", slug)
    output = f"{slug}.{device.partition(':')[0]}{own and f'.{own}'}.json"
    # A variant that a table or the definition chooses for one arch cannot run on every GPU, and does not have to.
    compiled = set(kernel.selection.compiled_archs("cuda"))
    is_for_some = library is not None and unit.target == "cuda" and set(unit.archs) != compiled
    asked = CheckRequest(
        kernel.definition.file,
        record.name,
        slug,
        library=path,
        variant_index=number,
        signature=UNKNOWN,
        device=device,
        tolerance=record.options.tolerance,
        strict=kernel.run.strict,
        listed=slug in kernel.listed_slugs,
        config=dict(variants[number].config),
        archs=",".join(unit.archs) if is_for_some else own,
        python="" if library else kernel.python,
    )
    machine = kernel.package.machine
    own_tool = None if library else kernel.own_tool
    request = Checking(asked, kernel.definition_identity, own_tool, machine, unit, variants)
    outputs = files_in(kernel.package.checks / record.name, (output,))
    # The library of a kernel stays as it is if only its sources' own library, which has these objects, is another one.
    described = [*unit.own, unit.signature, *dict.fromkeys(unit.named_in.values())]
    sources = [*filter(None, [path]), *described, *kernel.definition_files]
    stage = Stage("CHECK", subject, where, request, outputs, sources, cacheable=False)
    stage.rest = lambda: made(kernel.run, unit) is not None
    return kernel.remembering(stage, f"check {subject} {kernel.package.settings.family if machine else ''}".rstrip())
