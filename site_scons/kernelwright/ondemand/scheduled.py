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
    from ..lower.tir_lowering import scheduled
    from .live import Programs, deep_recursion

    archs = job.selection.archs
    target = "cuda" if "cuda" in archs else "llvm"
    variant = job.selection.variant_for(target)
    programs = Programs(kernel, {variant.slug: variant.config}, job.record.slugs, job.record.pass_configs)
    unit = programs.unit(variant.slug, target, lowering_arch(archs["cuda"]) if target == "cuda" else archs["llvm"][0])
    with deep_recursion():
        return scheduled(programs.returned(unit), unit)
