"""From a definition and a config to the job that compiles it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..core.errors import Where
from ..define.kernel import require_values, variant_of
from ..define.pass_configs import checked_pass_configs
from .build import Job
from .choice import select_for
from .machine import REMEMBERED, machine
from .options import effective

if TYPE_CHECKING:
    from ..define.settings import Settings
    from ..discover.discovery import DefinitionRecord, KernelRecord
    from ..discover.selection import KernelSelection
    from .build import MakeContext
    from .options import Options
    from .session import Session


DIFFERENTIATING = ("torch", "jax")
"""Backends that call the kernel of the gradients."""


@dataclass(frozen=True)
class Origin:
    """What a compile needs to know of a definition.

    Arguments:
        definition: the record of its definition file.
        record: the kernel's own.
        settings: what decides the rest.
        session: what runs the stages.
        context: gives for a selection what makes the context of its stages, and what decides its result besides.
    """

    definition: DefinitionRecord
    record: KernelRecord
    settings: Settings
    session: Session
    context: Callable[[KernelSelection], tuple[MakeContext, Mapping[str, str]]]

    @property
    def where(self) -> Where:
        """The place for error messages."""
        return Where(self.record.name, location=self.record.location)


def job_of(origin: Origin, config: Mapping[str, Any], options: Options) -> Job:
    """The job that compiles one variant, for the archs and the backend that are asked for.

    Arguments:
        config: as of ``Compilable.compile``.

    Raises:
        KernelwrightError: the options, the settings, the kernel and the machine do not fit each other.
    """
    record = narrowed(origin.record, config)
    selection = selected(origin, record, options)
    backward = _backward_of(origin, selection, options)
    if backward is None:
        selection = replace(selection, record=replace(selection.record, backward=None))
    settings = replace(
        origin.settings,
        targets=tuple(selection.archs),
        archs=tuple(arch for archs in selection.archs.values() for arch in archs),
        backends=selection.backends,
        split="none",
        glibc="",
    )
    made = {chosen.record.name: origin.context(chosen) for chosen in (selection, backward) if chosen}
    contexts = {name: context for name, (context, _) in made.items()}
    identity = {f"{name} {unit}": digest for name, (_, digests) in made.items() for unit, digest in digests.items()}
    return Job(origin.definition, selection, settings, origin.session, backward, contexts, identity)


def selected(origin: Origin, record: KernelRecord, options: Options) -> KernelSelection:
    """What is compiled of a kernel: for one backend, and without what a build says about the others."""
    if pass_configs := effective(os.environ, options).pass_configs:
        merged = {**record.pass_configs, **pass_configs}
        record = replace(record, pass_configs=checked_pass_configs(merged, origin.where))
    selection = select_for(record, origin.settings, machine(origin.session.state / REMEMBERED), options.given)
    return replace(selection, backends=selection.backends[:1], left_out=(), unused=())


def _backward_of(origin: Origin, selection: KernelSelection, options: Options) -> KernelSelection | None:
    """The kernel of the gradients, if the backend calls that."""
    name = selection.record.backward
    if name is None or selection.backends[0] not in DIFFERENTIATING:
        return None
    record = next(record for record in origin.definition.kernels if record.name == name)
    return selected(origin, narrowed(record, selection.record.configs[0]), options)


def narrowed(record: KernelRecord, config: Mapping[str, Any]) -> KernelRecord:
    """A kernel with one config only.

    Arguments:
        config: values of parameters; see :meth:`Compilable.compile`.

    Raises:
        DefinitionError: it is no config.
    """
    require_values(config, Where(record.name, stage="lower", location=record.location))
    listed = list(zip(record.configs, record.slugs, strict=True))
    # The config itself goes before those that only begin like it: one without classes is for sizes of any kind.
    for known, slug in sorted(listed, key=lambda pair: len(pair[0]) != len(config)):
        if all(key in known and _same(known[key], value) for key, value in config.items()):
            return replace(record, configs=(known,), slugs=(slug,))
    variant = variant_of(record.name, record.configs, config)
    return replace(record, configs=(variant.config,), slugs=(variant.slug,))


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)  # 0.0 and -0.0 are not
