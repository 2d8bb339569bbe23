"""The build caches of shards: each says which shard it is of, and is read behind the cache of the whole project.

Nothing here imports SCons.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import KernelwrightError, SettingsError, Where, printable, shown
from ..core.sealed import read_sealed, write_sealed
from ..core.shard import Shard, shard_of
from .cache import BuildCache
from .entry import Header, Parsed
from .layers import LayeredCache
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


@dataclass(frozen=True)
class Merged:
    """Shards whose kernels a run takes.

    Arguments:
        folders: their build caches, which stay as they are.
        shards: the shard of each folder, in the same order.
    """

    folders: Sequence[Path]
    shards: Sequence[BuiltShard]

    @property
    def count(self) -> int:
        """How many shards the kernels are divided into."""
        return self.shards[0].shard.count


class ShardCache(BuildCache):
    """The build cache of a shard, to read from. It tells of entries that are damaged, and leaves them where they are.

    Arguments:
        folder: where it is.
        behind: another cache, which is asked for what this one lacks.
        tell: shows a line.
    """

    def __init__(self, folder: Path, behind: LayeredCache | None, tell: Callable[[str], None]) -> None:
        super().__init__(folder, 0, writable=False, owned=True, behind=lambda: behind)
        self._tell = tell

    def _read(self, place: Path, parse: Callable[[Header, bytes], Parsed]) -> Parsed | None:
        """See :meth:`Entries._read`. Anything else in the place of an entry, such as a folder, is told, too."""
        found = super()._read(place, parse)
        if found is None and os.path.lexists(place) and (problem := self.damage(place)):
            self._tell(f"kernelwright: left out, because it is damaged: {place}: {problem}")
        return found


def layered(
    folders: Iterable[Path], behind: LayeredCache | None = None, tell: Callable[[str], None] = lambda line: None
) -> LayeredCache | None:
    """The build caches of shards, one behind the other, and another cache behind them; None: there is none of them."""
    for folder in reversed([*folders]):
        behind = ShardCache(folder, behind, tell)
    return behind


def note_shard(folder: Path, built: BuiltShard) -> None:
    """Write down which shard fills a build cache. Raises OSError if that is not possible."""
    mark_own(folder)
    write_sealed(folder / FILE, built)


def shard_in(folder: Path) -> BuiltShard | None:
    """The shard that filled a build cache last; None: no shard did, or the file that says so is damaged."""
    return read_sealed(folder / FILE, BuiltShard)


def merged_shards(folders: Sequence[Path]) -> Merged:
    """The shards whose build caches are in some folders.

    Raises:
        SettingsError: a folder is no build cache of a shard, or the shards are of different divisions.
    """
    merged = Merged(folders, [_require_shard(folder) for folder in folders])
    if len({built.shard.count for built in merged.shards}) > 1:
        places = ", ".join(f"{built.shard} in {folder}" for built, folder in zip(merged.shards, folders, strict=True))
        remedy = "merge shards of one number only"
        raise SettingsError(f"these shards do not belong together: {printable(places)}", WHERE, remedy)
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
        kernels: their names; empty: what is lacking is what all kernels have in common.
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
