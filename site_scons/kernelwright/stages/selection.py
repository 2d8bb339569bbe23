"""Which variants of which kernels a package gets, for which archs: the settings narrowed by each kernel's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import backends, frontends
from ..core.arch import TARGETS, source_groups, target_of
from ..core.errors import DefinitionError, SettingsError, Where
from ..core.request import ASIDE
from ..define.configs import Variant
from ..define.record import KernelRecord
from ..define.setting_kinds import require_known
from ..define.settings import Settings
from ..runtime.tables import DeviceTable

if TYPE_CHECKING:
    from ..toolchain.nvcc import Nvcc
    from ..toolchain.nvrtc import Nvrtc


@dataclass(frozen=True)
class KernelSelection:
    """What is built of one kernel.

    Arguments:
        record: the discovered kernel.
        archs: target -> archs in the order of the settings; no target without an arch.
        backends: execution backends, the default first.
        left_out: targets that the kernel allows, but for which the package builds none of its archs.
        unused: backends that it allows, and that can call none of its targets.
        compiled: those CUDA archs that device code is compiled for; None: all. The source is made for all of them.
        only: slug of a variant -> target -> the archs that it is built for; one that is missing is built for all.
        declared: how many of the variants, from the first on, are compared with a call; None: all.
        tables: the tuning tables.
        tabled: slug of a declared variant -> targets for which it is none: there it runs where a table says so.
        places: of each table: number of a declared variant -> ``file:line`` of its rules.
    """

    record: KernelRecord
    archs: dict[str, tuple[str, ...]]
    backends: tuple[str, ...]
    left_out: tuple[str, ...]
    unused: tuple[str, ...] = ()
    compiled: tuple[str, ...] | None = None
    only: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    declared: int | None = None
    tables: tuple[DeviceTable, ...] = ()
    tabled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    places: tuple[Mapping[int, str], ...] = field(default=(), metadata=ASIDE)

    def compiled_archs(self, target: str) -> tuple[str, ...]:
        """The archs of a target that code is compiled for."""
        archs = self.archs.get(target, ())
        return archs if target != "cuda" or self.compiled is None else self.compiled

    def variant_for(self, target: str) -> Variant:
        """The first variant that has code for a target; the first one at all, if none has."""
        variants = [Variant(self.record.name, config, slug) for config, slug in self.record.listed]
        return next((one for one in variants if target in self.archs_of(one.slug)), variants[0])

    def archs_of(self, slug: str) -> dict[str, tuple[str, ...]]:
        """The archs that a variant is compiled for, by target."""
        only, archs_of_target = self.only.get(slug), {}
        for target in self.archs:
            archs = self.compiled_archs(target)
            if only is not None:
                archs = tuple(arch for arch in archs if arch in only.get(target, ()))
            if archs:
                archs_of_target[target] = archs
        return archs_of_target

    def cuda_sources(self, slug: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """The CUDA archs that a source is made for and those of them that a variant is compiled for, for each source
        of the variant."""
        compiled = self.archs_of(slug).get("cuda", ())
        groups = source_groups(self.archs.get("cuda", ()), self.record.options.per_arch)
        pairs = [(group, tuple(arch for arch in compiled if arch in group)) for group in groups]
        return [pair for pair in pairs if pair[1]]


def select(record: KernelRecord, settings: Settings) -> KernelSelection:
    """Narrow the package's targets, archs and backends to those that the kernel's decorator allows.

    ``archs`` of a kernel restrict only the targets that they name, as on the command line.

    Raises:
        DefinitionError: the decorator names a target, an arch or a backend that does not exist, or only backends that
            the package does not have; or a target of the kernel has no backend that can call it.
    """
    where = Where(record.name, stage="discover", location=record.location)
    require_known("target", record.options.targets or (), TARGETS, where, DefinitionError)
    require_known("backend", record.options.backends or (), backends.names(), where, DefinitionError)
    restricted: dict[str, set[str]] = {}
    for arch in record.options.archs or ():
        try:
            restricted.setdefault(target_of(arch), set()).add(arch)
        except SettingsError as error:
            raise DefinitionError(error.message, where, error.remedy) from error
    archs = {}
    for target in settings.targets:
        if record.options.targets is None or target in record.options.targets:
            allowed = [a for a in settings.archs_of(target) if target not in restricted or a in restricted[target]]
            archs[target] = tuple(allowed)
    left_out = tuple(target for target, listed in archs.items() if not listed)
    built = {target: listed for target, listed in archs.items() if listed}
    own_backends = frontends.of(record, where).backends
    allowed_backends = own_backends or _allowed(record, settings, tuple(built), where)
    callable_by = [name for name in allowed_backends if own_backends or name not in backends.OF_FRONT_ENDS]
    chosen = backends.resolve(callable_by, built)
    for target in built:
        if not any(target in backends.get(name).targets for name in chosen):
            remedy = f"add one of {', '.join(_calling(target))} to backends, or remove {target!r} from targets"
            raise DefinitionError(f"no backend of {list(allowed_backends)} can call target {target!r}", where, remedy)
    unused = tuple(name for name in allowed_backends if built and name not in (*chosen, backends.AUTO))
    return KernelSelection(record, built, chosen, left_out, unused)


def _allowed(record: KernelRecord, settings: Settings, targets: tuple[str, ...], where: Where) -> tuple[str, ...]:
    """The package's backends or, of those that the kernel's decorator lists, the ones that the package has."""
    if record.options.backends is None:
        return settings.backends
    of_package = (*settings.backends, *backends.resolve(settings.backends, targets))
    allowed = tuple(name for name in record.options.backends if name in of_package)
    if not allowed:
        remedy = f"add one of them to the package's backends, which are {', '.join(settings.backends)}"
        raise DefinitionError(f"none of its backends {list(record.options.backends)} is built", where, remedy)
    return allowed


def _calling(target: str) -> list[str]:
    return [name for name in backends.names() if target in backends.get(name).targets]


def require_archs(record: KernelRecord, compiler: Nvcc | Nvrtc, others: Collection[str] = ()) -> None:
    """Raise a DefinitionError for a CUDA arch in a decorator that the CUDA compiler does not know.

    Arguments:
        others: the archs that other toolkits of the run know.
    """
    for arch in record.options.archs or ():
        if target_of(arch) == "cuda" and arch not in (*compiler.archs, *others):
            where = Where(record.name, stage="discover", location=record.location)
            remedy = f"use some of {', '.join(compiler.archs)}"
            raise DefinitionError(f"{compiler.name} {compiler.version} does not know the arch {arch!r}", where, remedy)
