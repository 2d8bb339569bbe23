"""Which kernels the definition files declare: asked of a worker once, then read from a cache.

A null build reads one small record for each definition file, compares the contents of the files that it was made
from, and starts no worker. Nothing here imports TVM, NumPy or SCons.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.converter import to_json
from ..core.dependencies import present_digest
from ..core.errors import DefinitionError, KernelwrightError, Where
from ..core.files import open_lock
from ..core.sealed import form_of, read_sealed, write_sealed
from ..core.surroundings import interpreter
from ..define.record import DefinitionRecord, definition_record, misfit

if TYPE_CHECKING:
    from ..core.answers import Answers
    from ..processes.pool import WorkerPool

Note = Callable[[str, float, float, bool], None]
"""Is told of a file that was executed: its name, from when to when (``time.monotonic()``), and whether that failed."""


class Discovery(NamedTuple):
    """A record for each good definition file and an error for each bad one, in their order."""

    records: list[DefinitionRecord]
    errors: list[KernelwrightError]


def _duplicates(records: Sequence[DefinitionRecord], others: Mapping[str, str]) -> list[KernelwrightError]:
    """An error for each kernel whose name another file has already taken."""
    first = dict(others)
    errors: list[KernelwrightError] = []
    for record in records:
        for kernel in record.kernels:
            if kernel.name in first:
                message = f"a kernel named {kernel.name!r} is also defined at {first[kernel.name]}"
                where = Where(kernel.name, stage="discover", location=kernel.location)
                errors.append(DefinitionError(message, where, "rename one of the two"))
            first.setdefault(kernel.name, kernel.location)
    return errors


@dataclass(frozen=True)
class _Kept:
    """What is kept of a definition file.

    Arguments:
        identity: what else the record depends on.
        later: for each request the names of files that only it reads. Those do not make the record stale, since the
            kernels and their configs do not depend on them.
    """

    identity: str
    record: DefinitionRecord
    later: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class KeptRecords:
    """The files in which a tree keeps the records of its definition files.

    Arguments:
        root: the folder that paths in records are relative to.
        folder: where the files are; it is made when needed.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder

    def name(self, path: Path) -> str:
        """A definition file's path relative to the project root, with forward slashes, if it is below it."""
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else str(path)

    def place(self, path: Path) -> Path:
        """Where the record of a definition file is kept."""
        name = self.name(path)
        readable = re.sub(r"[^A-Za-z0-9_]+", "-", name.removesuffix(".py"))[-60:].strip("-")
        return self._folder / f"{readable}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}.record"

    def read(self, path: Path) -> _Kept | None:
        """What is kept for a definition file; None: nothing, it is damaged, or it is of another file."""
        kept = read_sealed(self.place(path), _Kept)
        # The file may have been copied from another one's place.
        return kept if kept and kept.record.file == self.name(path) and not misfit(kept.record) else None

    def keep(self, path: Path, identity: str, record: DefinitionRecord) -> _Kept:
        """Replace the record of a definition file, and leave the names that its requests read as they are."""
        with self._locked():
            before = self.read(path)
            kept = _Kept(identity, record, before.later if before else {})
            write_sealed(self.place(path), kept)
        return kept

    def set_later(self, path: Path, request: str, names: Iterable[str]) -> None:
        """Replace the files that a request reads, if there is a record."""
        with self._locked():
            kept = self.read(path)
            if kept is not None:
                later = {name: files for name, files in kept.later.items() if name != request}
                later |= {request: tuple(sorted(names))} if names else {}
                write_sealed(self.place(path), replace(kept, later=later))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other threads and processes from changing records."""
        with os.fdopen(open_lock(self._folder / "lock"), "w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


class DefinitionRecords:
    """The records of definition files: a sealed file for each, which a worker writes when it is missing or stale.

    Arguments:
        root: the folder that paths in records are relative to.
        folder: where the records are; it is made when needed, and safe to delete.
        identity: what else a record depends on (TVM's identity, our own code); a record of another identity is a miss.
        answers: what other trees and machines know.
    """

    def __init__(self, root: Path, folder: Path, identity: str = "", answers: Answers | None = None) -> None:
        self._root = root
        self._records = KeptRecords(root, folder)
        self._identity = identity
        self._answers = answers
        self._digests: dict[str, str] = {}

    def discover(
        self,
        files: Iterable[Path],
        pool: Callable[[], WorkerPool],
        others: Mapping[str, str] | None = None,
        strict: bool = False,
        note: Note | None = None,
    ) -> Discovery:
        """The kernels of some definition files.

        Arguments:
            pool: gives the workers; called only if a record is missing or stale.
            others: kernels of files that are not looked into, with their file; no kernel of these files may have such a
                name.
            strict: whether a definition may only read what it declares.
            note: told of each file that was executed, from several threads.
        """
        paths = list(dict.fromkeys(files))
        self._ask_ahead(paths)
        results: dict[Path, DefinitionRecord | KernelwrightError | None] = {path: self._read(path) for path in paths}
        if stale := [path for path, record in results.items() if record is None]:
            results.update(self._ask_all(pool(), stale, strict, note))
        records = [result for result in results.values() if isinstance(result, DefinitionRecord)]
        errors = [result for result in results.values() if isinstance(result, KernelwrightError)]
        return Discovery(records, errors + _duplicates(records, others or {}))

    def are_known(self, files: Iterable[Path]) -> bool:
        """Whether :meth:`discover` would tell the kernels of some definition files without a worker."""
        return all(self._read(path) is not None for path in files)

    def remember(
        self, record: DefinitionRecord, request: str, dependencies: Mapping[str, str], *, whole: bool = False
    ) -> dict[str, str]:
        """Note the files that a request turned out to depend on when it was done, such as a function's own imports.

        A compiler's header dependencies work in the same way: the first build needs none, and later ones have them in
        the record's ``later``. Safe to call from several threads and processes.

        Arguments:
            record: that of the definition file.
            request: a name for the request.
            dependencies: the ``dependencies`` of the request's result: name (see ``core.dependencies``) -> digest.
            whole: whether the request does not depend on the definition file itself, so that it needs all of them.

        Returns:
            Those that are not among the record's own dependencies; all, if ``whole``.
        """
        later = {name: digest for name, digest in sorted(dependencies.items()) if whole or not record.covers(name)}
        if set(later) != set(record.later.get(request, ())):
            self._records.set_later(self._root / record.file, request, later)
        return later

    def _ask_all(
        self, workers: WorkerPool, paths: Sequence[Path], strict: bool, note: Note | None
    ) -> dict[Path, DefinitionRecord | KernelwrightError]:
        # Imported here and below, because most runs ask no worker.
        from concurrent.futures import ThreadPoolExecutor

        def ask(path: Path) -> DefinitionRecord | KernelwrightError:
            start = time.monotonic()
            result = self._ask(workers, path, strict)
            if note is not None:
                note(self._records.name(path), start, time.monotonic(), isinstance(result, KernelwrightError))
            return result

        with ThreadPoolExecutor(min(workers.size, len(paths))) as threads:
            try:
                return dict(zip(paths, threads.map(ask, paths), strict=True))
            except BaseException:  # Ctrl-C: the threads end when their workers do
                workers.close()
                raise

    def _ask(self, workers: WorkerPool, path: Path, strict: bool) -> DefinitionRecord | KernelwrightError:
        """Have a worker execute a file, and keep the record. Errors are returned: one file does not hide another."""
        from ..processes.protocol import DiscoverRequest

        try:
            record = workers.call(DiscoverRequest(self._records.name(path), strict=strict))
        except KernelwrightError as error:
            return error
        if problem := misfit(record):
            return DefinitionError(f"a worker's record has a wrong form: {problem}", Where(location=str(path)))
        return self._write(path, record)

    def _read(self, path: Path) -> DefinitionRecord | None:
        """The record of a definition file if it is there, undamaged, and of the current contents."""
        return self._current(path) or self._recall(path)

    def _ask_ahead(self, paths: Sequence[Path]) -> None:
        """Have others look for the records of definition files that are going to be read, and that this tree lacks."""
        if self._answers is not None:
            lacking = (path for path in paths if not self._records.place(path).exists())
            questions = (self._question(path, self._digest(self._records.name(path))) for path in lacking)
            self._answers.recall_ahead(questions, self._digest)

    def _current(self, path: Path) -> DefinitionRecord | None:
        """The record that an earlier run in this tree has kept."""
        kept = self._records.read(path)
        if kept is None or kept.identity != self._identity or not self._is_current(kept.record):
            return None
        return self._with_later(kept)

    def _is_current(self, record: DefinitionRecord) -> bool:
        """Whether all that a record was made from is what it was."""
        return all(self._digest(name) == digest for name, digest in record.known)

    def _write(self, path: Path, record: DefinitionRecord) -> DefinitionRecord:
        """Keep a new record, and return it together with what lowerings of the old one have read."""
        kept = self._keep(path, record)
        if self._answers is not None and record.shared:
            question = self._question(path, record.dependencies[record.file])
            self._answers.remember(question, to_json(record), dict(record.known))
        return kept

    def _recall(self, path: Path) -> DefinitionRecord | None:
        """The record that another tree or machine has found out, if all that it depends on is the same here."""
        if self._answers is None:
            return None
        question, compared = self._question(path, self._digest(self._records.name(path))), {self._records.name(path)}

        def compare(name: str) -> str:
            compared.add(name)
            return self._digest(name)

        answer = self._answers.recall(question, compare)
        try:
            record = None if answer is None else definition_record(answer)
        except ValueError:
            return None
        if record is None or record.file != self._records.name(path):
            return None
        # What the record names was compared when it was looked for; another name is none that others may ask for.
        if not compared.issuperset(name for name, _ in record.known) or not self._is_current(record):
            return None
        return self._keep(path, record)

    @cached_property
    def _surroundings(self) -> list[Any]:
        """What every record depends on besides what it lists."""
        return interpreter()

    def _question(self, path: Path, digest: str) -> list[Any]:
        """What is asked of others: the digest is that of the definition file itself."""
        return ["discovery", form_of(_Kept), self._identity, self._surroundings, self._records.name(path), digest]

    def _keep(self, path: Path, record: DefinitionRecord) -> DefinitionRecord:
        """Keep a record for later runs in this tree, and return it with what its requests read."""
        return self._with_later(self._records.keep(path, self._identity, record))

    def _with_later(self, kept: _Kept) -> DefinitionRecord:
        # A file that has gone keeps its place, with another digest, so that the request is done again.
        record = kept.record
        return replace(
            record,
            later={request: {n: self._digest(n) for n in sorted(names)} for request, names in kept.later.items()},
        )

    def _digest(self, name: str) -> str:
        """Present digest of a file, a folder's listing, or something around the project; empty if it is absent.

        Each is looked at once.
        """
        if name not in self._digests:
            self._digests[name] = present_digest(self._root, name)
        return self._digests[name]
