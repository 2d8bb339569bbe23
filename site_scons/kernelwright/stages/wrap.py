"""WRAP: writes what calls a kernel: the C wrapper of its library, and the files of each backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import backends
from ..backends.base import Backend
from ..compilers.fatbin import needed_driver
from ..core.errors import DefinitionError, LoweringError
from ..core.files import digest_of
from ..library import sources
from ..library.files import UnitFiles, VariantFiles, images_of, units_of
from ..library.plan import KernelPlan, LoweredUnit, VariantPlan, with_strictest_alignment
from ..lower.entry_name import ENTRY, entry_name
from ..runtime.loader import gaps_text
from ..toolchain.cuda import cuda_version
from . import tuning
from .context import KernelContext
from .stage import Stage, files_in

REMEDY = f"name a __global__ function; what the source includes must leave {ENTRY} alone"


def make(kernel: KernelContext, variants: tuple[VariantFiles, ...]) -> Stage:
    """The stage that writes the wrapper of a kernel's library, and what embeds the images."""
    settings = kernel.package.settings

    def write(scratch: Path) -> None:
        plan = plan_of(kernel, variants)
        _require_arguments(kernel, plan)
        for name, text in sources.emit(plan).items():
            (scratch / name).write_text(text, encoding="utf-8")

    options = {
        "variants": [[v.slug, dict(v.config), [[u.target, list(u.archs)] for u in v.units]] for v in variants],
        "images": [kernel.package.images_in, settings.compress, _toolkit(kernel)],
        **tuning.options_of(kernel),
    }
    return _stage(kernel, kernel.name, variants, options, write, files_in(kernel.folder, sources.FILES))


def _require_arguments(kernel: KernelContext, plan: KernelPlan) -> None:
    """Raise a DefinitionError if a backend has to know arguments that are not declared."""
    for name in kernel.selection.backends if plan.opaque else ():
        if not backends.get(name).hands_over:
            remedy = 'declare them in Exported, or write backends=["tvm_ffi"] for this kernel'
            message = f"its arguments are not declared, and the backend {name} has to know them"
            raise DefinitionError(message, kernel.where("wrap"), remedy)


def make_for(kernel: KernelContext, variants: tuple[VariantFiles, ...], backend: Backend) -> Stage:
    """The stage that writes the files of a backend."""
    settings = kernel.package.settings

    def write(scratch: Path) -> None:
        plan = plan_of(kernel, variants)
        plan.check()
        backend.check(plan)
        for name, text in backend.emit(plan).items():
            (scratch / name).write_text(text, encoding="utf-8")

    cuda = kernel.tools.cuda  # the plan has its version, which is in no source
    images = [kernel.package.images_in, settings.compress, cuda.version if cuda else ""]
    # Some of its files are copies of those that all kernels have in common.
    options = {"backend": backend.name, "images": images, "headers": digest_of(backend.headers())}
    options |= tuning.options_of(kernel)
    outputs = files_in(kernel.package.work / backend.folder(kernel.name), backend.files(kernel.name))
    return _stage(kernel, f"{kernel.name} {backend.name}", variants, options, write, outputs)


def _stage(
    kernel: KernelContext,
    subject: str,
    variants: tuple[VariantFiles, ...],
    options: dict[str, Any],
    write: Callable[[Path], None],
    outputs: dict[str, str],
) -> Stage:
    sources = _sources(kernel, variants)
    stage = Stage("WRAP", subject, kernel.where("wrap"), options, write, outputs, sources)
    stage.rest = lambda: bool(kernel.whole(variants))
    return stage


def _sources(kernel: KernelContext, variants: tuple[VariantFiles, ...]) -> list[str]:
    """What the plan of a kernel is made of.

    It names images and does not read them, so that nvcc can run meanwhile; unless they may be lacking in the end.
    """
    images = images_of(variants) if kernel.run.partial else []
    units = units_of(variants)
    return [*(unit.signature for unit in units), *images, *(unit.named_in for unit in units if unit.named_in)]


def _name_in(image: str, unit: LoweredUnit) -> str:
    """What the device function of a unit is called."""
    try:
        return entry_name(Path(image))
    except ValueError as error:
        raise LoweringError(str(error), unit.where, REMEDY) from error


def _toolkit(kernel: KernelContext) -> int:
    """The CUDA version of the compiler that makes the images. A front end that does so itself does not tell."""
    compiler = kernel.tools.cuda
    return cuda_version(compiler.version) if compiler and not kernel.front_end.compiles_device_code else 0


def plan_of(kernel: KernelContext, variants: tuple[VariantFiles, ...]) -> KernelPlan:
    """What the wrapper and the backends need to know; paths relative to the folder of the package's kernels."""
    run, settings, top = kernel.run, kernel.package.settings, kernel.package.work

    def relative(path: str) -> str:
        return Path(path).relative_to(top).as_posix()

    def lowered(unit: UnitFiles) -> LoweredUnit:
        # Those in objects have no files of their own.
        images = {arch: relative(image) for arch, image in unit.images.items()} or dict.fromkeys(
            unit.archs if unit.own else (), ""
        )
        read = LoweredUnit.from_json(unit.read_signature(), relative(unit.host), images)
        return read.with_symbol(_name_in(unit.named_in, read)) if unit.named_in else read

    def units(variant: VariantFiles) -> tuple[LoweredUnit, ...]:
        read = tuple(map(lowered, variant.units))
        return with_strictest_alignment(read) if kernel.record.per_arch else read

    made = kernel.whole(variants)
    tuned = tuning.tuning_of(kernel, made)
    planned = tuple(VariantPlan(v.slug, v.config, units(v), tuned.tabled.get(v.slug, ())) for v in made)
    # Their names; the definition may list positions.
    outputs = tuple(argument.name for argument in planned[0].units[0].arguments if argument.output)
    gaps = gaps_text(run.partial.behind(_sources(kernel, variants))) if run.partial else ""
    split, needed = bool(kernel.package.images_in), needed_driver(settings.compress)
    plan = KernelPlan(
        *(kernel.name, outputs, planned, split, needed, _toolkit(kernel), gaps), tuned.declared, tuned.tables
    )
    tuning.check_symbols(plan, tuned, kernel)
    return plan
