"""What all compiles of one project in a process share: workers, compilers, tools, and the caches.

Nothing is started, probed or imported before it is needed. A child of ``fork`` starts workers of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.errors import KernelwrightError
from ..define.settings import Settings
from ..processes.of_build import BuildProcesses
from .store import KernelStore

if TYPE_CHECKING:
    from ..processes.pool import WorkerPool
    from ..processes.protocol import Request
    from ..processes.tools import RunsTools
    from ..state.cache import BuildCache
    from ..toolchain.probe import Toolchain

T = TypeVar("T")


class Session:
    """What the compiles of one project share. Safe to use from several threads.

    Arguments:
        root: the project's folder, which the names of definition files are relative to.
        settings: limits of time and memory, and the folder of the project's build cache.
        store: the cache folder.
        jobs: how many stages run at a time.
        verbose: whether the stages, their commands and the words of the tools are shown.

    ``loaded`` has the kernel objects of the process, by key and folder; see ``ondemand/loaded.py``.
    """

    def __init__(self, root: Path, settings: Settings, store: KernelStore, jobs: int, verbose: bool = False) -> None:
        self.root = root
        self.settings = settings
        self.store = store
        self.jobs = jobs
        self.verbose = verbose
        self.loaded: dict[tuple[object, ...], Any] = {}
        self.launcher = threading.Lock()
        self.ending = False
        self._compiling: Counter[int] = Counter()
        self._lock = threading.RLock()
        self._processes = self._new_processes()

    @property
    def state(self) -> Path:
        """The folder that records are written into."""
        return self.store.work

    @property
    def discovery(self) -> Path:
        """The folder of the records of the project's definition files."""
        return self.state / "discovery" / hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]

    def with_room(self, work: Callable[[], T]) -> T:
        """Do some work; do it once more, in a folder of this process's own, if the cache's disk is full.

        Raises:
            KernelwrightError, OSError: it failed for another reason, or failed again.
        """
        try:
            return work()
        except (KernelwrightError, OSError) as error:
            if not self.store.gives_way(error):
                raise
            self.__dict__.pop("stages", None)
            if not self.is_used_by_others([threading.get_ident()]):
                self.end_children()  # the failure may have ended them, and then they take no more requests
        return work()

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Count the current thread among those that compile."""
        thread = threading.get_ident()
        self._compiling[thread] += 1
        try:
            yield
        finally:
            self._compiling[thread] -= 1

    def is_used_by_others(self, threads: Collection[int]) -> bool:
        """Whether threads besides these compile now: they have the same workers and compilers."""
        return any(count and thread not in threads for thread, count in list(self._compiling.items()))

    @cached_property
    def toolchain(self) -> Toolchain:
        """The tools; probing looks at the user's PATH and CUDA_HOME, running does not."""
        from ..toolchain.probe import Toolchain

        return Toolchain(self.state / "toolchain.json", os.environ)

    @cached_property
    def interpreter(self) -> list[Any]:
        """What all definition files see; see :func:`core.surroundings.interpreter`."""
        from ..core.surroundings import interpreter

        return interpreter()

    @property
    def pool(self) -> WorkerPool:
        """The workers; none is started before the first request."""
        with self._lock:
            return self._processes.pool

    @property
    def compilers(self) -> RunsTools:
        """What runs the compilers, with a limit for their time and their memory."""
        with self._lock:
            return self._processes.compilers

    def _new_processes(self) -> BuildProcesses:
        # The folder is made when it is needed first, and is another one if the disk of the cache gets full.
        return BuildProcesses(
            self.root, self.settings, lambda: self.jobs, lambda: self.state / "measurements.json", self._show_output
        )

    @cached_property
    def stages(self) -> BuildCache | None:
        """The finished stages, and behind them those of the project's own builds."""
        return self.store.stages(self.root, self.settings.cache_dir)

    def _show_output(self, request: Request[Any], text: str) -> None:
        """Show what a definition printed."""

        for line in text.splitlines():
            sys.stderr.write(f"{request.where}: {line}\n")

    def end_children(self) -> None:
        """End all workers and compilers, with everything that they started; later compiles start new ones."""
        with self._lock:
            ended, self._processes = self._processes, self._new_processes()
        ended.save()
        ended.close()

    def forget_children(self) -> None:
        """In a child of fork: the parent's processes are not ours, and a lock may be held by a thread that is gone."""
        self.launcher, self._lock = threading.Lock(), threading.RLock()
        self._compiling.clear()
        self._processes = self._new_processes()


class Sessions:
    """The sessions of a process, one for each project.

    ``cache_disabled`` is what ``disable_cache`` or ``enable_cache`` has set last; None: neither was called.
    ``generation`` changes when all that was compiled is to be forgotten.
    """

    def __init__(self) -> None:
        self.cache_disabled: bool | None = None
        self.generation = 0
        self._sessions: dict[tuple[object, ...], Session] = {}
        self._lock = threading.Lock()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._after_fork)

    def get(self, root: Path, settings: Settings, store: KernelStore, jobs: int, verbose: bool) -> Session:
        """The session of a project, made when it is asked for first."""
        limits = (settings.worker_timeout, settings.tool_timeout, settings.memory_limit, settings.nvcc_memory)
        key = (root, store.folder, jobs, verbose, *limits, settings.cache_dir, settings.environment)
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = Session(root, settings, store, jobs, verbose)
            return self._sessions[key]

    @property
    def stores(self) -> list[KernelStore]:
        """The caches that the process has used."""
        return list({id(session.store): session.store for session in self._sessions.values()}.values())

    def forget(self) -> None:
        """Forget the kernels that the process holds."""
        self.generation += 1
        for session in list(self._sessions.values()):
            session.loaded.clear()

    def close(self) -> None:
        """End all processes."""
        for session in list(self._sessions.values()):
            session.end_children()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        for session in self._sessions.values():
            session.forget_children()


SESSIONS = Sessions()
"""The sessions of this process: workers outlive a compile, because the import of TVM takes a second."""
