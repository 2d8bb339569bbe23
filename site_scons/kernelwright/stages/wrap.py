"""WRAP: writes what calls a kernel: the C wrapper of its library, and the files of each backend."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import backends
from ..backends import sources
from ..backends.base import Backend
from ..backends.description import description_of
from ..backends.files import UnitFiles, VariantFiles, images_of, units_of
from ..backends.plan import KernelPlan, LoweredUnit, VariantPlan, with_strictest_alignment
from ..core.entry_name import ENTRY, entry_name, thread_bounds
from ..core.errors import DefinitionError, LoweringError, Where
from ..core.plugins import described
from ..core.request import ASIDE
from ..runtime.loader import gaps_text
from ..toolchain.cuda import cuda_version
from ..toolchain.fatbin import needed_driver
from .context import KernelContext, whole
from .left_out import without_left_out
from .stage import Stage, files_in
from .stage_run import StageRun
from .tuning import Tuning, check_symbols, tuning_of

REMEDY = f"name a __global__ function; what the source includes must leave {ENTRY} alone"


@dataclass(frozen=True)
class Wrapping:
    """What the plan of a kernel says besides what its variants' ``signature.json`` say, and what is written from it.

    Arguments:
        per_arch: whether the definition is called for each CUDA arch.
        split: whether the device images are somewhere else than in the library.
        compress: the mode of the compression of device code.
        toolkit: the CUDA version of the compiler that makes the images.
        others: arch -> that of another compiler, which makes its images.
        meaning: see :class:`backends.plan.KernelPlan`.
        backend: what is written for; empty: the library.
        backends: those that call the library, if its arguments may not be declared.
        headers: digest of the backend's headers: some of its files are copies of those that all kernels have in common.
        plugin: a distribution that brings the backend, with a digest of what it consists of.
        device: the folder of the device code, relative to that of the package's kernels.
        top: the folder of the package's kernels, which paths in the plan are relative to. Names of images that are
            somewhere else than in the library are relative to the folder of the device code.
    """

    kernel: str
    variants: tuple[VariantFiles, ...]
    tuning: Tuning
    per_arch: bool
    split: bool
    compress: str
    toolkit: int
    others: Mapping[str, int]
    meaning: tuple[str, ...]
    backend: str
    backends: tuple[str, ...]
    headers: str
    plugin: Mapping[str, str]
    device: str
    top: Path = field(metadata=ASIDE)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Write the wrapper and what embeds the images, or the files of the backend."""
        plan = plan_of(self, stage)
        if self.backend:
            texts = _backend_texts(backends.get(self.backend), plan, stage)
        else:
            _require_arguments(self, plan, stage.where)
            texts = sources.emit(plan)
        for name, text in texts.items():
            (scratch / name).write_text(text, encoding="utf-8")


def _backend_texts(backend: Backend, plan: KernelPlan, stage: StageRun) -> dict[str, str]:
    """The files of a backend; those in Python say at their end what the plan is."""
    plan.check()
    where = Where(plan.name, stage="wrap")
    texts = backends.texts_of(backend, plan, backends.NO_PACKAGE, where, lambda: stage.run.pool)
    described = f"# {description_of(plan)}\n"
    return {name: text + (described if name.endswith(".py") else "") for name, text in texts.items()}


def _require_arguments(request: Wrapping, plan: KernelPlan, where: Where) -> None:
    """Raise a DefinitionError if a backend has to know arguments that are not declared."""
    for name in request.backends if plan.opaque else ():
        if not backends.get(name).hands_over:
            remedy = 'declare them in Exported, or write backends=["tvm_ffi"] for this kernel'
            if plan.recorded:
                remedy = "leave backends out, and tvm_ffi is the only one"
            message = f"its arguments are not declared, and the backend {name} has to know them"
            raise DefinitionError(message, where, remedy)


def make(kernel: KernelContext, variants: tuple[VariantFiles, ...], backend: Backend | None = None) -> Stage:
    """The stage that writes the wrapper of a kernel's library and what embeds the images, or the files of a backend."""
    name, work, record, subject = kernel.name, kernel.package.work, kernel.record, kernel.name
    outputs = files_in(kernel.folder, sources.FILES)
    if backend:
        subject, outputs = f"{name} {backend.name}", files_in(work / backend.folder(name), backend.files(name))
    request = Wrapping(
        kernel=name,
        variants=variants,
        tuning=tuning_of(kernel.selection),
        per_arch=record.options.per_arch,
        split=bool(kernel.package.images_in),
        compress=kernel.package.settings.compress,
        toolkit=_toolkit(kernel),
        others=_others(kernel),
        meaning=record.reference or (),
        backend=backend.name if backend else "",
        backends=kernel.selection.backends if kernel.front_end.may_be_opaque and not backend else (),
        headers=backends.headers(backend) if backend else "",
        plugin=described(backend) if backend else {},
        device=os.path.relpath(kernel.package.device_work, work),
        top=work,
    )
    stage = Stage("WRAP", subject, kernel.where("wrap"), request, outputs, _sources(kernel, variants))
    stage.rest = lambda: bool(whole(kernel.run, variants))
    return stage


def _sources(kernel: KernelContext, variants: tuple[VariantFiles, ...]) -> list[str]:
    """What the plan of a kernel is made of.

    It names images and does not read them, so that nvcc can run meanwhile; unless they may be lacking in the end.
    """
    units = units_of(variants)
    code = [*images_of(variants), *(path for unit in units for path in (*unit.own, unit.own_library_path) if path)]
    images = code if kernel.run.partial else []
    named_in = dict.fromkeys(path for unit in units for path in unit.named_in.values())
    return list(dict.fromkeys([*(unit.signature for unit in units), *images, *named_in]))


def _signature(unit: UnitFiles, where: Where) -> dict[str, Any]:
    """What signature.json and compiled code say of a unit."""
    try:
        return unit.read_signature()
    except ValueError as error:
        raise LoweringError(str(error), where, REMEDY) from error


def _names_in(paths: Mapping[str, str], unit: LoweredUnit) -> dict[str, tuple[str, ...]]:
    """What the device functions of a unit are called for each arch."""
    entries = [device.name for device in unit.device_kernels]
    try:
        names = {p: tuple(entry_name(Path(p), entry) for entry in entries) for p in dict.fromkeys(paths.values())}
    except ValueError as error:
        raise LoweringError(str(error), unit.where, REMEDY) from error
    for path, listed in names.items():
        for entry, name in zip(entries, listed, strict=True):
            _require_within_bounds(unit, entry, thread_bounds(Path(path), name))
    if len(entries) > 1 and len({*names.values()}) > 1:
        message = "the compiler gives its functions names that differ from arch to arch, by the types in them"
        raise LoweringError(message, unit.where, "give each arch a source of its own: @kernel(per_arch=True)")
    return {arch: names[path] for arch, path in paths.items()}


def _require_within_bounds(unit: LoweredUnit, entry: str, bounds: tuple[int, bool] | None) -> None:
    """Raise a LoweringError for a block of constant size that a function says it cannot have."""
    for launch in (launch for launch in unit.launches or () if bounds and launch.kernel == entry):
        sizes = [size for size in launch.block if isinstance(size, int)]
        threads, (most, exact) = math.prod(sizes), bounds or (0, False)
        if threads > most or (exact and len(sizes) == 3 and threads != most):
            allowed = f"exactly {most}" if exact else f"{most} at most"
            message = f"the launch has {threads} threads in a block, and the function is for {allowed} in its source"
            raise LoweringError(message, unit.where, "change block, or __launch_bounds__ of the function")


def _toolkit(kernel: KernelContext) -> int:
    """The CUDA version of the compiler that makes the images. A front end that does so itself does not tell."""
    compiler = kernel.tools.cuda
    return cuda_version(compiler.version) if compiler and not kernel.front_end.compiles_device_code else 0


def _others(kernel: KernelContext) -> dict[str, int]:
    """The CUDA versions of the compilers for those archs whose images another one makes."""
    main = _toolkit(kernel)
    archs = kernel.selection.compiled_archs("cuda") if kernel.tools.others else ()
    versions = {arch: _toolkit(kernel.with_toolkit_for(arch)) for arch in archs}
    return {arch: version for arch, version in versions.items() if version != main}


def plan_of(request: Wrapping, stage: StageRun) -> KernelPlan:
    """What the wrapper and the backends need to know; paths as :class:`Wrapping` says."""
    of_images = os.path.normpath(request.top / request.device) if request.split else request.top

    def lowered(unit: UnitFiles) -> LoweredUnit:
        # Those in objects have no files of their own.
        images = {arch: os.path.relpath(image, of_images) for arch, image in unit.images.items()} or dict.fromkeys(
            unit.archs if unit.own else (), ""
        )
        read = LoweredUnit.from_json(_signature(unit, stage.where), os.path.relpath(unit.host, request.top), images)
        read = replace(read, own_library=unit.own_library)
        return read.with_names(_names_in(unit.named_in, read)) if unit.named_in else read

    def units(variant: VariantFiles) -> tuple[LoweredUnit, ...]:
        read = tuple(map(lowered, variant.units))
        return with_strictest_alignment(read) if request.per_arch else read

    variants = without_left_out(stage.whole(request.variants), stage.where, stage.run)
    tuned = request.tuning.of(variants)
    planned = tuple(VariantPlan(v.slug, v.config, units(v), tuned.tabled.get(v.slug, ())) for v in variants)
    # Their names; the definition may list positions.
    outputs = planned[0].units[0].returned
    needed, gaps = needed_driver(request.compress), gaps_text(stage.gaps)
    plan = KernelPlan(
        *(request.kernel, outputs, planned, request.split, needed, request.toolkit, gaps),
        declared=tuned.declared,
        tables=tuned.tables,
        meaning=request.meaning,
        others=request.others,
    )
    check_symbols(plan, tuned, stage.where)
    return plan
