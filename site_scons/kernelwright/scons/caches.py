"""The caches of a run: the build cache, and the remote cache behind it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import SCons.Script

from ..core.errors import SettingsError, Where
from ..core.once import if_made, shared_property
from ..core.quantity import parse_size
from ..define.settings import Settings
from . import compat
from .command_line import is_passive
from .progress import Progress
from .tree import Tree

if TYPE_CHECKING:
    from ..core.answers import Answers
    from ..state.cache import BuildCache
    from ..state.counts import Counts
    from ..state.remote_client import RemoteCache

FLUSH_S = 20.0
"""Seconds that the end of a run waits for what is still to be written to the remote cache."""

INTERRUPTED_S = 1.0
"""The same after Ctrl-C."""


class Caches:
    """The caches of a run. Each is opened when it is first needed.

    Arguments:
        env: an SCons environment; a build file may have given it a folder with ``CacheDir``.
        settings: those of the first package.
    """

    def __init__(self, tree: Tree, env: Any, settings: Settings, progress: Progress) -> None:
        self._tree = tree
        self._env = env
        self._settings = settings
        self._progress = progress
        self._warned: set[str] = set()
        self._warning = threading.Lock()

    @shared_property
    def build(self) -> BuildCache | None:
        """The build cache; that of ``env.CacheDir`` if the build file names one, otherwise that of the settings.

        Raises:
            SettingsError: its folder would be among the outputs of builds, or something else is in its place.
        """
        from ..state.cache import BuildCache

        given, tree = compat.cache_folder(self._env), self._tree
        folder = os.path.join(self._env.Dir(given).get_abspath(), "kernelwright") if given else self._settings.cache_dir  # noqa: PTH118
        if not folder or SCons.Script.GetOption("cache_disable"):
            return None
        limit = parse_size(self._settings.cache_size or "1T") * 1024
        place = tree.top / folder
        tree.require_folders([str(place)])
        self._require_outside(str(place))
        writable = not SCons.Script.GetOption("cache_readonly")
        owned = place == tree.state / "cache"
        return BuildCache(place, limit, writable, owned, self._stages_on_demand, lambda: self.remote)

    @property
    def answers(self) -> Answers | None:
        """The build cache, if this run may use it: it has answers that other trees and machines have found out."""
        return None if is_passive() else self.build

    def require(self) -> None:
        """Raise a SettingsError, before any work is done, if something else is in the place of the build cache."""
        _ = self.answers

    @property
    def has_remote(self) -> bool:
        """Whether this run may use a remote cache."""
        return bool(self._settings.remote_cache) and not is_passive()

    @shared_property
    def remote(self) -> RemoteCache | None:
        """The remote cache, if the settings name one."""
        if not self.has_remote:
            return None
        from ..state.remote_opening import open_remote

        return open_remote(self._settings, self._tree.top, os.environ, self._warn)

    def _warn(self, text: str) -> None:
        """Show a line once, also with ``-s``: nothing fails, but somebody should know."""
        with self._warning:
            is_new = text not in self._warned
            self._warned.add(text)
        if is_new:
            self._progress.erase()
            sys.stderr.write(f"{text}\n")

    def _stages_on_demand(self) -> BuildCache | None:
        """The cache of the stages that compile on demand has finished, if there is one."""
        # Imported here, because a run with nothing to do does not need it.
        from ..ondemand.store import stages_behind

        return stages_behind(self._tree.top, os.environ)

    def _require_outside(self, place: str) -> None:
        """Raise a SettingsError if the build cache would be among the outputs of builds; its default place may be."""
        tree, real = self._tree, os.path.realpath(place) + os.sep
        inside = next((base for base in tree.bases if real.startswith(os.path.realpath(base) + os.sep)), None)
        if inside is not None and real != os.path.realpath(tree.state / "cache") + os.sep:
            message = f"the build cache cannot be in {place}: builds write into {os.path.relpath(inside, tree.top)}"
            remedy = "leave cache_dir out, or set it to a folder outside of that"
            raise SettingsError(message, Where(stage="settings"), remedy)

    def trim(self) -> None:
        """Cut the build cache down to its size, if this run has used it, and say if it could not be written."""
        cache = if_made(self, "build")
        if cache is not None:
            cache.trim()
            if cache.problem:
                sys.stderr.write(f"kernelwright: the build cache could not be written: {cache.problem}\n")

    @property
    def counts(self) -> dict[str, Counts]:
        """What the caches did that this run has used."""
        used = {"local": if_made(self, "build"), "remote": if_made(self, "remote")}
        return {name: cache.counts for name, cache in used.items() if cache is not None}

    def close(self, interrupted: bool) -> None:
        """Have the remote cache write what is still to be written, and say what it did.

        Arguments:
            interrupted: whether the user has stopped the run and waits for its end.
        """
        remote = if_made(self, "remote")
        if remote is None or remote.is_closed:
            return
        patience_s = INTERRUPTED_S if interrupted else FLUSH_S
        # However often Ctrl-C comes: Python must not end in the middle of a request.
        while not remote.is_closed:
            with contextlib.suppress(KeyboardInterrupt):
                remote.close(patience_s)
            patience_s = 0
        counts = remote.counts
        if counts.hits or counts.misses or counts.written:
            self._progress.note(f"kernelwright: remote cache: {counts}")
