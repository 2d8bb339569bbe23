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
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.dependencies import is_portable, present_digest
from ..core.errors import DefinitionError, KernelwrightError, Where, shown
from ..core.files import open_lock
from ..core.records import Record, is_file_name
from ..core.request import ASIDE
from ..core.sealed import read_sealed, write_sealed
from ..core.surroundings import OUTSIDE, interpreter
from ..define.kernel import Outputs, Variant, variant_of
from ..define.pass_configs import PassConfigs, checked_pass_configs
from ..define.space import Choice, Sizes, variants_of

if TYPE_CHECKING:
    from ..core.answers import Answers
    from ..processes.pool import WorkerPool

SCHEMA = 3
"""Revision of a record's form, as workers give it."""

FORMAT = f"discovery 4, records {SCHEMA}"
"""Schema of the sealed files; another one is a miss."""

Note = Callable[[str, float, float, bool], None]
"""Is told of a file that was executed: its name, from when to when (``time.monotonic()``), and whether that failed."""


@dataclass(frozen=True)
class KernelRecord:
    """One kernel of a definition file.

    Arguments:
        name: the kernel's name.
        doc: the definition's docstring, dedented.
        location: ``path:line`` of the definition, relative to the project root.
        configs: the configs in order; the first is the default.
        slugs: the variants' slugs, in the order of the configs.
        targets, archs, backends: restrictions of the package's settings; None keeps those.
        outputs: names or positions of the arguments that callers may leave out.
        flags: extra nvcc flags.
        tolerance: largest accepted error in the check, or None for the default of the output's dtype.
        reference: the names in the configs that the reference has parameters of; None: there is no reference.
        takes_target: whether the definition depends on the target.
        backward: name of the kernel that computes its gradients, or None.
        frontend: what the definition is written in.
        pass_configs: configs of TVM's passes.
        choices: with a space of tuning parameters, the configs that callers can see and the points of each; the configs
            are those of all candidates then.
        has_cost: whether the definition estimates what candidates take.
        per_arch: whether the definition is called for each CUDA arch.
        sources, includes: see :class:`define.kernel.Kernel`.
    """

    name: str
    doc: str
    location: str = field(metadata=ASIDE)
    configs: tuple[Mapping[str, Any], ...]
    slugs: tuple[str, ...]
    targets: tuple[str, ...] | None
    archs: tuple[str, ...] | None
    backends: tuple[str, ...] | None
    outputs: Outputs
    flags: tuple[str, ...]
    tolerance: float | None
    reference: tuple[str, ...] | None
    takes_target: bool
    backward: str | None = None
    frontend: str = "tir"
    pass_configs: PassConfigs = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()
    has_cost: bool = False
    per_arch: bool = False
    sources: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()

    @property
    def sizes(self) -> Sizes:
        """The sizes that are measured for the first choice; none, if the definition does not say."""
        return self.choices[0].sizes if self.choices else {}

    @property
    def has_reference(self) -> bool:
        """Whether the kernel can be checked."""
        return self.reference is not None

    @property
    def listed(self) -> Iterator[tuple[Mapping[str, Any], str]]:
        """Config and slug of each variant, in order."""
        return zip(self.configs, self.slugs, strict=True)

    def variant_of(self, config: Mapping[str, Any]) -> Variant:
        """The variant of a config, be it listed or not; see :func:`define.kernel.variant_of`."""
        return variant_of(self.name, self.configs, config)

    @classmethod
    def from_json(cls, value: Record) -> KernelRecord:
        """The kernel in a JSON object.

        Raises:
            ValueError: the object has another form.
        """

        def restriction(name: str) -> tuple[str, ...] | None:
            return tuple(value.texts(name)) if value.has(name) else None

        record = cls(
            value.text("name"),
            value.text("doc"),
            value.text("location"),
            tuple(map(_config, value.records("configs"))),
            tuple(value.texts("slugs")),
            restriction("targets"),
            restriction("archs"),
            restriction("backends"),
            tuple(value.texts_or_counts("outputs")),
            tuple(value.texts("flags")),
            value.number("tolerance", sys.float_info.max) if value.has("tolerance") else None,
            restriction("reference"),
            value.flag("takes_target"),
            value.optional(value.text, "backward"),
            value.text("frontend"),
            _pass_configs(value.record("pass_configs")),
            tuple(map(_choice, value.records("choices"))) if value.has("choices") else (),
            value.has("has_cost") and value.flag("has_cost"),
            value.has("per_arch") and value.flag("per_arch"),
            *(tuple(value.texts(name)) if value.has(name) else () for name in ("sources", "includes")),
        )
        if not record.configs or len(record.configs) != len(record.slugs):
            raise ValueError("a kernel needs one slug for each config")
        # Folders get these names, whatever a definition has done to its objects after they were checked.
        if not re.fullmatch(r"[A-Za-z]\w*", record.name, re.ASCII) or not all(map(is_file_name, record.slugs)):
            raise ValueError(f"{shown((record.name, record.slugs))} are not the names of a kernel and its variants")
        if len(set(record.slugs)) != len(record.slugs):
            raise ValueError("two variants have one slug")
        if record.choices and variants_of(record.choices) != list(record.configs):
            raise ValueError("its configs are not those of its choices")
        return record


@dataclass(frozen=True)
class DefinitionRecord:
    """One definition file. What decides in it is what a kernel of it depends on, whatever other kernels there are.

    Arguments:
        file: path relative to the project root, with forward slashes.
        dependencies: the files that decide what the definitions are, the file itself included, in sorted order: name
            (see ``core.dependencies``) -> SHA-256 of the content that was executed.
        kernels: the kernels in the order of their definition.
        later: what single requests turned out to read besides, such as a function's own imports: name of the request ->
            path -> SHA-256 of its present content.
        recorded: the files that ``recorded()`` has configs from: path -> SHA-256. Which configs there are depends on
            them, and what a variant is lowered to does not.
        surroundings: what it depends on besides files of the project: name (see ``core.surroundings``) -> digest.
        shared: whether this is all that it depends on, so that other trees can tell whether it is the same there.
        untracked: what it did that no digest can tell, with the place.
    """

    file: str
    dependencies: Mapping[str, str]
    kernels: tuple[KernelRecord, ...] = field(metadata=ASIDE)
    later: Mapping[str, Mapping[str, str]] = field(default_factory=dict, metadata=ASIDE)
    recorded: Mapping[str, str] = field(default_factory=dict, metadata=ASIDE)
    surroundings: Mapping[str, str] = field(default_factory=dict)
    shared: bool = field(default=False, metadata=ASIDE)
    untracked: tuple[str, ...] = field(default=(), metadata=ASIDE)

    @property
    def unnamed(self) -> list[str]:
        """The files that it depends on and that have no name on other machines."""
        return [name for name in self.dependencies if not is_portable(name)]

    @property
    def known(self) -> list[tuple[str, str]]:
        """All that it depends on, with the digests."""
        return [*self.dependencies.items(), *self.recorded.items(), *self.surroundings.items()]

    def covers(self, name: str) -> bool:
        """Whether it is known of something that the definition depends on it, before any of its functions is called."""
        return name in self.dependencies or name in self.surroundings or (name == OUTSIDE and not self.shared)

    @classmethod
    def from_json(cls, value: Record) -> DefinitionRecord:
        """The record in a JSON object.

        Raises:
            ValueError: the object has another form.
        """
        if value.count("schema") != SCHEMA:
            raise ValueError("another schema")

        def digests(name: str) -> dict[str, str]:
            listed = value.record(name)
            return {path: listed.text(path) for path in sorted(listed.raw)}

        kernels = tuple(map(KernelRecord.from_json, value.records("kernels")))
        recorded, surroundings = (digests(n) if value.has(n) else {} for n in ("recorded", "surroundings"))
        shared = value.has("shared") and value.flag("shared")
        untracked = tuple(value.texts("untracked")) if value.has("untracked") else ()
        record = cls(
            value.text("file"), digests("dependencies"), kernels, {}, recorded, surroundings, shared, untracked
        )
        if record.file not in record.dependencies:
            raise ValueError("a definition that does not depend on its own file")
        return record


class Discovery(NamedTuple):
    """What :func:`discover` found: a record for each good file and an error for each bad one, in their order."""

    records: list[DefinitionRecord]
    errors: list[KernelwrightError]


def discover(
    files: Iterable[Path],
    project_root: Path,
    cache_dir: Path,
    pool: Callable[[], WorkerPool],
    identity: str,
    others: Mapping[str, str] | None = None,
    strict: bool = False,
    note: Note | None = None,
    answers: Answers | None = None,
) -> Discovery:
    """The kernels of some definition files.

    Arguments:
        files: the definition files.
        project_root: the folder that paths in records are relative to.
        cache_dir: where records are kept; created when needed, and safe to delete.
        pool: gives the workers; called only if a record is missing or stale.
        identity: what else a record depends on (TVM's identity, our own code); a record of another identity is a miss.
        others: kernels of files that are not looked into, with their file; no kernel found may have such a name.
        strict: whether a definition may only read what it declares.
        note: told of each file that was executed, from several threads.
        answers: what other trees and machines have found out.
    """
    cache = _Cache(project_root, cache_dir, identity, answers)
    paths = list(dict.fromkeys(files))
    cache.ask_ahead(paths)
    found: dict[Path, DefinitionRecord | KernelwrightError | None] = {path: cache.read(path) for path in paths}
    stale = [path for path, record in found.items() if record is None]
    if stale:
        found.update(_ask_all(pool(), cache, stale, strict, note))
    results = [found[path] for path in paths]
    records = [result for result in results if isinstance(result, DefinitionRecord)]
    errors = [result for result in results if isinstance(result, KernelwrightError)]
    return Discovery(records, errors + _duplicates(records, others or {}))


def is_known(
    files: Iterable[Path], project_root: Path, cache_dir: Path, identity: str, answers: Answers | None = None
) -> bool:
    """Whether :func:`discover` would find the kernels of some definition files without a worker."""
    cache = _Cache(project_root, cache_dir, identity, answers)
    return all(cache.read(path) is not None for path in files)


def remember_dependencies(
    record: DefinitionRecord, project_root: Path, cache_dir: Path, request: str, dependencies: Mapping[str, str]
) -> dict[str, str]:
    """Note what a request turned out to depend on only when it was done, such as a function's own imports.

    A compiler's header dependencies work in the same way: the first build needs none, and later ones find them in the
    record's ``later``. Safe to call from several threads and processes.

    Arguments:
        record: what :func:`discover` returned for the definition file.
        request: a name for the request.
        dependencies: the ``dependencies`` of the request's result: name (see ``core.dependencies``) -> digest.

    Returns:
        Those that are not among the record's own dependencies.
    """
    later = {name: digest for name, digest in sorted(dependencies.items()) if not record.covers(name)}
    if set(later) != set(record.later.get(request, ())):
        _Cache(project_root, cache_dir, "").set_later(record.file, request, later)
    return later


def _ask_all(
    workers: WorkerPool, cache: _Cache, paths: Sequence[Path], strict: bool, note: Note | None
) -> dict[Path, DefinitionRecord | KernelwrightError]:
    # Imported here and below, because most runs ask no worker.
    from concurrent.futures import ThreadPoolExecutor

    def ask(path: Path) -> DefinitionRecord | KernelwrightError:
        start = time.monotonic()
        found = _ask(workers, cache, path, strict)
        if note is not None:
            note(cache.name(path), start, time.monotonic(), isinstance(found, KernelwrightError))
        return found

    with ThreadPoolExecutor(min(workers.size, len(paths))) as threads:
        try:
            return dict(zip(paths, threads.map(ask, paths), strict=True))
        except BaseException:  # Ctrl-C: the threads end when their workers do
            workers.close()
            raise


def _ask(workers: WorkerPool, cache: _Cache, path: Path, strict: bool) -> DefinitionRecord | KernelwrightError:
    """Have a worker execute a file, and keep the record. Errors are returned: one file does not hide another."""
    from ..processes.protocol import DiscoverRequest

    try:
        answer = workers.call(DiscoverRequest(cache.name(path), strict))
        try:
            record = DefinitionRecord.from_json(Record(answer, ""))
        except ValueError as error:
            raise DefinitionError(f"a worker's record has a wrong form: {error}", Where(location=str(path))) from error
    except KernelwrightError as error:
        return error
    return cache.write(path, answer, record)


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


class _Cache:
    """The cached records, a sealed file for each definition file.

    It has ``identity``, ``record``, and ``later``: for each request the names of files that only it reads. Those do not
    make the record stale, since the kernels and their configs do not depend on them.
    """

    def __init__(self, project_root: Path, folder: Path, identity: str, answers: Answers | None = None) -> None:
        self._root = project_root
        self._folder = folder
        self._identity = identity
        self._answers = answers
        self._digests: dict[str, str] = {}

    def read(self, path: Path) -> DefinitionRecord | None:
        """The record of a definition file if it is there, undamaged, and of the current contents."""
        return self._read(path) or self._recall(path)

    def ask_ahead(self, paths: Sequence[Path]) -> None:
        """Have others look for the records of definition files that are going to be read, and that this tree lacks."""
        if self._answers is not None:
            lacking = (path for path in paths if not self._place(path).exists())
            questions = (self._question(path, self._digest(self.name(path))) for path in lacking)
            self._answers.recall_ahead(questions, self._digest)

    def _read(self, path: Path) -> DefinitionRecord | None:
        """The record that an earlier run in this tree has kept."""
        body = self._body(path)
        if body is None or body["identity"] != self._identity:
            return None
        try:
            record = DefinitionRecord.from_json(Record(body["record"], ""))
        except ValueError:
            return None
        return self._with_later(record, body["later"]) if self._is_current(record) else None

    def _is_current(self, record: DefinitionRecord) -> bool:
        """Whether all that a record was made from is what it was."""
        return all(self._digest(name) == digest for name, digest in record.known)

    def write(self, path: Path, answer: Mapping[str, Any], record: DefinitionRecord) -> DefinitionRecord:
        """Keep a new record, and return it together with what lowerings of the old one have read."""
        kept = self._keep(path, answer, record)
        if self._answers is not None and record.shared:
            self._answers.remember(self._question(path, record.dependencies[record.file]), answer, dict(record.known))
        return kept

    def _recall(self, path: Path) -> DefinitionRecord | None:
        """The record that another tree or machine has found out, if all that it depends on is the same here."""
        if self._answers is None:
            return None
        question, compared = self._question(path, self._digest(self.name(path))), {self.name(path)}

        def compare(name: str) -> str:
            compared.add(name)
            return self._digest(name)

        answer = self._answers.recall(question, compare)
        try:
            record = None if answer is None else DefinitionRecord.from_json(answer)
        except ValueError:
            return None
        if answer is None or record is None or record.file != self.name(path):
            return None
        # What the record names was compared when it was looked for; another name is none that others may ask for.
        if not compared.issuperset(name for name, _ in record.known) or not self._is_current(record):
            return None
        return self._keep(path, answer.raw, record)

    @cached_property
    def _surroundings(self) -> list[Any]:
        """What every record depends on besides what it lists."""
        return interpreter()

    def _question(self, path: Path, digest: str) -> list[Any]:
        """What is asked of others: the digest is that of the definition file itself."""
        return ["discovery", FORMAT, self._identity, self._surroundings, self.name(path), digest]

    def _keep(self, path: Path, answer: Mapping[str, Any], record: DefinitionRecord) -> DefinitionRecord:
        """Keep a record for later runs in this tree."""
        with self._locked():
            later = (self._body(path) or {"later": {}})["later"]
            self._store(path, {"identity": self._identity, "record": dict(answer), "later": later})
        return self._with_later(record, later)

    def name(self, path: Path) -> str:
        """A definition file's path relative to the project root, with forward slashes, if it is below it."""
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else str(path)

    def set_later(self, file: str, request: str, names: Iterable[str]) -> None:
        """Replace the files that a request reads in a kept record."""
        path = self._root / file
        with self._locked():
            body = self._body(path)
            if body is not None:
                later = {name: listed for name, listed in body["later"].items() if name != request}
                self._store(path, {**body, "later": later | ({request: sorted(names)} if names else {})})

    def _with_later(self, record: DefinitionRecord, later: Mapping[str, Iterable[str]]) -> DefinitionRecord:
        # A file that has gone keeps its place, with another digest, so that the request is done again.
        return replace(
            record,
            later={
                request: {n: self._digest(n) for n in sorted(names) if not record.covers(n)}
                for request, names in later.items()
            },
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other threads and processes from changing records."""
        with os.fdopen(open_lock(self._folder / "lock"), "w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def _store(self, path: Path, body: Mapping[str, Any]) -> None:
        write_sealed(self._place(path), FORMAT, body)

    def _body(self, path: Path) -> dict[str, Any] | None:
        """What is kept for a definition file; None: nothing, it is damaged, or it is of another file."""

        def parse(document: Record) -> dict[str, Any]:
            document.require_names("identity", "record", "later")
            # The file may have been copied from another one's place.
            if document.record("record").text("file") != self.name(path):
                raise ValueError("it is of another file")
            later = document.record("later")
            for request in later.raw:
                later.texts(request)
            document.text("identity")
            return document.raw

        return read_sealed(self._place(path), FORMAT, parse)

    def _place(self, path: Path) -> Path:
        name = self.name(path)
        readable = re.sub(r"[^A-Za-z0-9_]+", "-", name.removesuffix(".py"))[-60:].strip("-")
        return self._folder / f"{readable}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}.record"

    def _digest(self, name: str) -> str:
        """Present digest of a file, a folder's listing, or something around the project; empty if it is absent.

        Each is looked at once.
        """
        if name not in self._digests:
            self._digests[name] = present_digest(self._root, name)
        return self._digests[name]


def _config(value: Record) -> Mapping[str, Any]:
    if not all(isinstance(item, (bool, int, float, str)) for item in value.raw.values()):
        raise ValueError(f"{value.place} is {shown(value.raw)}, which is not a config")
    return dict(value.raw)


def _choice(value: Record) -> Choice:
    points, sizes = value.record("points"), value.record("sizes")
    of_target = {target: tuple(map(_config, points.records(target))) for target in points.raw}
    listed = {symbol: tuple(sizes.counts(symbol)) for symbol in sizes.raw}
    preferred = value.record("preferred") if value.has("preferred") else None
    points_of = {arch: _config(preferred.record(arch)) for arch in preferred.raw} if preferred else {}
    return Choice(_config(value.record("config")), of_target, listed, points_of)


def _pass_configs(value: Record) -> PassConfigs:
    try:
        return checked_pass_configs(value.raw, Where())
    except DefinitionError as error:
        raise ValueError(error.message) from error
