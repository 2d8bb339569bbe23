"""The IRModule of a variant, made in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.arch import lowering_arch

if TYPE_CHECKING:
    from ..define.kernel import Kernel
    from .build import Job


def scheduled_module(kernel: Kernel, job: Job) -> Any:
    """What a variant is lowered from: the ``tvm.IRModule``, scheduled; for CUDA, if the job has both targets.

    Raises:
        DefinitionError: the definition is wrong.
        LoweringError: no schedule can be found.
    """
    from ..frontends.tir.lowering import scheduled
    from .deep import deep_recursion, deeply
    from .live import Programs

    selection = job.selection
    target = "cuda" if "cuda" in selection.archs else "llvm"
    variant = selection.variant_for(target)
    sources = selection.cuda_sources(variant.slug)
    arch = lowering_arch(sources[0][0]) if target == "cuda" else selection.archs["llvm"][0]
    programs = Programs(kernel, {variant.slug: variant.config}, job.record.slugs, job.record.options.pass_configs)
    unit = programs.unit(variant.slug, target, arch)
    with deep_recursion():
        returned = programs.returned(unit)
        return deeply(lambda: scheduled(returned, unit))
