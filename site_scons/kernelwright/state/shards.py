"""The build caches of shards: each says which shard it is of, and its entries get into the cache of the whole project.

Nothing here imports SCons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import KernelwrightError, SettingsError, Where, printable, shown
from ..core.sealed import read_sealed, write_sealed
from ..core.shard import Shard, shard_of
from .cache import BuildCache
from .own_folder import mark_own

FILE = "shard.json"
"""Name of the file in a build cache that says which shard filled it last."""

WHERE = Where(stage="merge")
REMEDY = "merge the shards that are missing, or run them again; with --build-missing this run compiles what they lack"


@dataclass(frozen=True)
class BuiltShard:
    """What a build cache says of the shard that filled it last.

    Arguments:
        shard: which one it is.
        keys: name of a package -> digest of all that each of its kernels depends on: settings, tools, our code.
    """

    shard: Shard
    keys: Mapping[str, str]

    def __post_init__(self) -> None:
        if not 1 <= self.shard.number <= self.shard.count:
            raise ValueError(f"there is no shard {self.shard}")


@dataclass
class Merged:
    """What was taken out of the build caches of some shards.

    Arguments:
        shards: which shards they are of.
        entries: how many entries they have together, each counted once.
        damaged: what is wrong with those that were left out, a line for each.
    """

    shards: Sequence[BuiltShard]
    entries: int = 0
    damaged: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many shards the kernels are divided into."""
        return self.shards[0].shard.count


def note_shard(folder: Path, built: BuiltShard) -> None:
    """Write down which shard fills a build cache. Raises OSError if that is not possible."""
    mark_own(folder)
    write_sealed(folder / FILE, built)


def shard_in(folder: Path) -> BuiltShard | None:
    """The shard that filled a build cache last; None: no shard did, or the file that says so is damaged."""
    return read_sealed(folder / FILE, BuiltShard)


def merge(cache: BuildCache, folders: Iterable[Path]) -> Merged:
    """Take the entries of the build caches of some shards into another one.

    Arguments:
        cache: what receives them. An intact entry that it has stays as it is.
        folders: the build caches of the shards, which stay as they are.

    Raises:
        SettingsError: a folder is no build cache of a shard, or the shards are not of one division.
        OSError: the cache cannot be written.
    """
    places = list(folders)
    merged = Merged([_require_shard(folder) for folder in places])
    if len({built.shard.count for built in merged.shards}) > 1:
        listed = ", ".join(f"{built.shard} in {folder}" for built, folder in zip(merged.shards, places, strict=True))
        remedy = "merge shards of one number only"
        raise SettingsError(f"these shards do not belong together: {printable(listed)}", WHERE, remedy)
    names: set[str] = set()
    for folder in places:
        source = BuildCache(folder, 0, writable=False, owned=True)
        for entry in sorted(path for _, _, path in source.entries()):
            try:
                cache.take(entry)
                names.add(entry.name)
            except ValueError as error:
                merged.damaged.append(f"{entry}: {error}")
    merged.entries = len(names)
    return merged


def _require_shard(folder: Path) -> BuiltShard:
    built = shard_in(folder)
    if built is None:
        remedy = "name the folders that cache_dir of scons --shard named, as the jobs have left them"
        raise SettingsError(f"{shown(str(folder))} is not the build cache of a shard", WHERE, remedy)
    return built


def lacking(merged: Merged, package: str, key: str, kernels: Iterable[str]) -> KernelwrightError:
    """The error for kernels that no merged shard has built.

    Arguments:
        key: digest of all that each kernel of the package depends on here.
        kernels: their names; empty: it is what all kernels have in common.
    """
    names: dict[Shard, list[str]] = {}
    for name in sorted(kernels):
        names.setdefault(shard_of(name, merged.count), []).append(name)
    total = sum(map(len, names.values()))
    what = {0: "what all kernels have in common", 1: "1 kernel"}.get(total, f"{total} kernels")
    ordered = sorted(names, key=lambda shard: shard.number)
    lines = [f"shard {shard}{_why(merged, shard, package, key)}: {', '.join(names[shard])}" for shard in ordered]
    return KernelwrightError(f"the shards lack {what} of {package}", WHERE, REMEDY, "\n".join(lines) or None)


def _why(merged: Merged, shard: Shard, package: str, key: str) -> str:
    """What is known of the reason for which a shard's kernels are lacking."""
    built = [one for one in merged.shards if one.shard == shard]
    if not built:
        return ", which was not merged"
    if all(one.keys.get(package) != key for one in built):
        return ", which was built with other settings, tools or Kernelwright"
    return ", whose cache lacks them: they failed, were up to date before, or have other sources"
