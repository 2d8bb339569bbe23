"""A definition that can be compiled and called: what ``@kernel`` makes and what ``load`` finds have in common."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.errors import DefinitionError, KernelwrightError, Where, shown
from ..define.kernel import Config, slugs

if TYPE_CHECKING:
    from ..define.settings import Settings
    from ..discover.discovery import DefinitionRecord, KernelRecord
    from ..discover.selection import KernelSelection
    from .build import Compiled, Job, MakeContext
    from .options import Options
    from .session import Session

Self = TypeVar("Self", bound="Compilable")


@dataclass(frozen=True)
class Origin:
    """What a compile needs to know of a definition.

    Arguments:
        definition: the record of its definition file.
        record: the kernel's own.
        settings: what decides the rest.
        session: what runs the stages.
        kernel_context: makes the context of the kernel's stages, of a config.
    """

    definition: DefinitionRecord
    record: KernelRecord
    settings: Settings
    session: Session
    kernel_context: Callable[[Config], MakeContext]

    @property
    def where(self) -> Where:
        """The place for error messages."""
        return Where(self.record.name, location=self.record.location)


class Compilable:
    """A definition that can be compiled and called.

    A compiled kernel is an object as packages have, for the devices of this machine or for the archs that were asked
    for. It has four attributes more: ``key``, ``cached`` (whether it was compiled before, and not now), ``artifacts``
    (the folder of its sources and images), and ``source``.
    """

    name: str
    _options: Options

    def _origin(self, options: Options) -> Origin:
        """What is known of the definition now.

        Raises:
            KernelwrightError: the definition file has an error, or a tool is missing.
        """
        raise NotImplementedError

    def compile(self, **config: Any) -> Any:
        """Compile one variant, unless the cache has it.

        Arguments:
            config: the values of the definition's parameters. None at all means the first config that is listed. If
                only some are given, the first listed config that has these is meant, or they are all that there is.

        Returns:
            A kernel object as packages have.

        Raises:
            KernelwrightError: the config is none, or a stage failed; the message names the kernel, the variant, the
                stage and the place.
        """
        return self._load(self._origin(self._options), config)

    def par_compile(
        self,
        configs: Iterable[Mapping[str, Any]] | None = None,
        *,
        num_workers: int | None = None,
        ignore_error: bool = False,
    ) -> list[Any]:
        """Compile several variants at once; the kernel objects in the order of the configs.

        Arguments:
            configs: as of :meth:`compile`; None: all that are listed.
            num_workers: how many stages run at once; None: as many as there are cores.
            ignore_error: whether a variant that fails becomes None, with a warning. Otherwise the first failure ends
                all, and is raised.

        Raises:
            KernelwrightError: a variant failed.
        """
        from .parallel import compile_all

        options = self._options if num_workers is None else replace(self._options, num_workers=num_workers)
        origin = self._origin(options)
        wanted = origin.record.configs if configs is None else tuple(configs)
        return compile_all([lambda c=config: self._load(origin, c) for config in wanted], origin.session, ignore_error)

    def _load(self, origin: Origin, config: Mapping[str, Any]) -> Any:
        from .build import compile_job
        from .loaded import load_kernel

        job = self._job(origin, config)
        compiled = compile_job(job, _say)
        return load_kernel(compiled, origin.record.name)

    def _job(self, origin: Origin, config: Mapping[str, Any]) -> Job:
        from .build import Job
        from .choice import select_for
        from .options import machine

        record = narrowed(origin.record, config, origin.where)
        selection = select_for(record, origin.settings, machine(), self._options.given)
        settings = replace(
            origin.settings,
            targets=tuple(selection.archs),
            archs=tuple(arch for archs in selection.archs.values() for arch in archs),
            backends=selection.backends[:1],
            split="none",
            glibc="",
        )
        selection = replace(selection, backends=selection.backends[:1], left_out=(), unused=())
        context = origin.kernel_context(record.configs[0])
        return Job(origin.definition, selection, settings, origin.session, None, context)


def narrowed(record: KernelRecord, config: Mapping[str, Any], where: Where) -> KernelRecord:
    """A kernel with one config only.

    Arguments:
        config: values of parameters; see :meth:`Compilable.compile`.
    """
    for known, slug in zip(record.configs, record.slugs, strict=True):
        if all(key in known and _same(known[key], value) for key, value in config.items()):
            return replace(record, configs=(known,), slugs=(slug,))
    order = {key: number for number, key in enumerate(record.configs[0])}
    ordered = dict(sorted(config.items(), key=lambda item: order.get(item[0], len(order))))
    return replace(record, configs=(ordered,), slugs=(slugs([*record.configs, ordered])[-1],))


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
