"""Asks the remote cache for the outputs of stages before SCons gets to them, many at once whatever ``-j`` says.

When the outputs of a stage come, the keys of the stages that read them are known, and these are asked for at once. So
all requests take as long as the longest path through the graph, and not as long as their sum. The build does not rely
on what comes: when SCons runs a stage, its outputs are in the build cache or not.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from ..core.dependencies import present_digest
from ..stages.stage import Stage
from ..state.cache import BuildCache
from ..state.entries import Found


class Ahead:
    """The stages of a package whose outputs this tree lacks.

    Arguments:
        cache: the build cache, with the remote one behind it.
        top: the project's folder.
        digest: gives the SHA-256 of a file that no stage makes.
        stages: all stages of the package.
    """

    def __init__(self, cache: BuildCache, top: Path, digest: Callable[[str], str], stages: Iterable[Stage]) -> None:
        self._cache = cache
        self._top = top
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}
        self._readers: dict[str, list[Stage]] = defaultdict(list)
        fetchable = (stage for stage in stages if stage.cacheable and not stage.here)
        lacking = [stage for stage in fetchable if not os.path.exists(stage.paths[0])]  # noqa: PTH110
        outputs = {path for stage in lacking for path in stage.paths}
        self._waits = {id(stage): len(outputs.intersection(stage.sources)) for stage in lacking}
        for stage in lacking:
            for source in set(stage.sources):
                if source in outputs:
                    self._readers[source].append(stage)
                elif source not in self._digests and os.path.exists(source):  # noqa: PTH110
                    self._digests[source] = digest(source)
        for stage in lacking:
            if not self._waits[id(stage)]:
                self._ask(stage)

    def _ask(self, stage: Stage) -> None:
        """Ask for the outputs of a stage whose sources are known."""
        if any(source not in self._digests for source in stage.sources):
            return  # a stage whose outputs no cache keeps makes one of them
        key = stage.cache_key(self._digests.__getitem__)
        names = list(stage.outputs)
        self._cache.fetch_ahead(key, names, lambda name: present_digest(self._top, name), self._noting(stage))

    def _noting(self, stage: Stage) -> Callable[[Found], None]:
        """A function to call when the outputs of a stage are there: it asks for the stages that read them."""

        def note(found: Found) -> None:
            digests = {stage.outputs[name]: hashlib.sha256(data).hexdigest() for name, data in found[0].items()}
            ready = []
            with self._lock:
                self._digests |= digests
                for path in digests:
                    for reader in self._readers[path]:
                        self._waits[id(reader)] -= 1
                        if not self._waits[id(reader)]:
                            ready.append(reader)
            for reader in ready:
                self._ask(reader)

        return note
