"""The shard that a run builds (``--shard``), or the shards whose kernels it takes (``--merge``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import SCons.Script

from ..core.dependencies import present_digest
from ..core.errors import KernelwrightError, SettingsError, Where
from ..core.shard import shard_of
from ..stages.stage import Stage
from . import command_line, compat
from .caches import Caches
from .tree import Tree

if TYPE_CHECKING:
    from ..stages.kernel import KernelBuild
    from ..state.cache import BuildCache
    from ..state.shards import Merged


class Shards:
    """What the command line says about shards.

    Arguments:
        note: shows a line, once.

    Raises:
        SettingsError: there is no such shard, or something is asked for that needs all kernels.
    """

    def __init__(self, tree: Tree, caches: Caches, note: Callable[[str], None]) -> None:
        self.shard = command_line.shard()
        self.merged: Merged | None = None
        self._tree = tree
        self._caches = caches
        self._note = note
        self._keys: dict[str, str] = {}

    # ---- a shard ----

    def note_package(self, package: str, key: str) -> None:
        """Have the build cache say which shard fills it.

        Arguments:
            key: digest of all that each kernel of the package depends on.

        Raises:
            KernelwrightError: there is no build cache, or it cannot be written, so that nobody could merge the shard.
        """
        if self.shard is None or command_line.is_passive():
            return
        from ..state.shards import BuiltShard, note_shard

        cache = self._writable_cache("a shard gives what it builds to the merge by way of the build cache")
        self._keys[package] = key
        note_shard(cache.folder, BuiltShard(self.shard, self._keys))

    def not_kept(self, stage: Stage) -> KernelwrightError | None:
        """What is wrong if a shard could not put the outputs of a stage into the build cache."""
        cache = self._caches.build if self.shard else None
        if cache is None or not cache.problem:
            return None
        message = f"the merge would lack what this shard builds: {cache.problem}"
        return KernelwrightError(message, replace(stage.where, stage="cache"), "mend that and run scons again")

    def _writable_cache(self, message: str) -> BuildCache:
        """The build cache. Raises a SettingsError if this run has none, or must not change it."""
        cache = self._caches.build
        if cache is None or SCons.Script.GetOption("cache_readonly"):
            remedy = "leave --cache-disable and --cache-readonly out, and give cache_dir a folder"
            raise SettingsError(f"{message}, which this run cannot write", Where(stage="settings"), remedy)
        return cache

    # ---- a merge ----

    def merge(self) -> None:
        """Put the build caches of shards that the command line names behind that of this run, once.

        Raises:
            KernelwrightError: a folder is no build cache of a shard, or there is no build cache here.
        """
        folders = command_line.merged_folders(self._tree.top)
        if not folders or command_line.is_passive() or self.merged is not None:
            return
        from ..state.shards import layered, merged_shards

        cache = self._writable_cache("a merge takes what shards have built by way of the build cache")
        self.merged = merged_shards(folders)
        cache.behind = layered(folders, cache.behind, self._note)
        if self.only_merged:
            if command_line.given("partial"):
                message = "--partial has to find out here what fails, and a merge compiles nothing"
                raise SettingsError(message, Where(stage="settings"), "add --build-missing, or leave --partial out")
            compat.keep_going()
        shards = ", ".join(sorted({str(built.shard) for built in self.merged.shards}))
        self._note(f"kernelwright: what is not in the build cache is taken from the shards {shards}")

    @property
    def only_merged(self) -> bool:
        """Whether all that a compiler makes has to be in the build cache, because it was merged from shards."""
        return self.merged is not None and not command_line.given("build-missing")

    def require_all(self, package: str, key: str, builds: Mapping[str, KernelBuild], stages: Iterable[Stage]) -> None:
        """Raise a KernelwrightError that names the kernels that no shard has built, before anything is done.

        Arguments:
            key: digest of all that each kernel of the package depends on.
            builds: the kernels of the package that are not settled.
            stages: all stages of the package.
        """
        from ..state.shards import lacking

        assert self.merged is not None
        outputs = {path for stage in stages for path in stage.paths}
        missing = [name for name, build in builds.items() if not all(self._is_there(s, outputs) for s in build.stages)]
        if missing:
            raise lacking(self.merged, package, key, missing)

    def _is_there(self, stage: Stage, outputs: Collection[str]) -> bool:
        """Whether a stage's outputs are in the tree or in the build cache, as far as can be told before the build."""
        cache = None if self._caches.has_remote else self._caches.build
        if cache is None or any(path in outputs for path in stage.sources) or all(map(os.path.lexists, stage.paths)):
            return True
        key = stage.cache_key(self._tree.journal.digest)
        return bool(cache.has(key, lambda name: present_digest(self._tree.top, name)))

    def refuse(self, stage: Stage) -> None:
        """Have a stage fail where a compiler would run, because packages are assembled from shards."""
        from ..state.shards import REMEDY

        def make(*given: Any) -> None:
            kernel, merged = stage.where.kernel, self.merged
            place = f" in shard {shard_of(kernel, merged.count)}" if kernel and merged else ""
            message = f"the build cache has no intact entry with what {stage.label} makes{place}"
            raise KernelwrightError(message, stage.where, REMEDY)

        stage.instead = make
