"""Builds candidates with all cores, and keeps what is left of those that fail."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .. import frontends as front_ends
from ..core.converter import from_json
from ..core.dependencies import is_portable
from ..core.errors import KernelwrightError
from ..core.files import canonical_json, write_atomically
from ..core.signature import Signature
from ..define.configs import Config
from ..ondemand.build import Job, compile_job, lowered_module
from ..ondemand.kernel_folders import folder_name
from ..ondemand.options import Options
from ..ondemand.origin import Origin, job_of
from ..ondemand.parallel import compile_all
from ..processes.protocol import CheckRequest
from ..runtime.size import Requirement

LOG = "log.txt"
"""The file in the folder of a candidate that is out, which says why."""


@dataclass(frozen=True)
class Candidate:
    """A point of the space, for one config.

    Arguments:
        number: its place in the space; 0 is the default.
        tune: the point.
        config: all values that the definition is called with.
        slug: the variant's name.
    """

    number: int
    tune: Config
    config: Config
    slug: str


@dataclass(frozen=True)
class Built:
    """A candidate that was built and gives the right answers.

    Arguments:
        candidate: which.
        request: what its check was asked for; it names library, signature and device.
        sources: the folder of what it was made from.
        digest: that of its source: the program that was lowered, with the passes' configs, the compiler's flags, and
            the author's sources and headers.
    """

    candidate: Candidate
    request: CheckRequest
    sources: Path
    digest: str

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Whether it may run at these sizes, by what it requires of them."""
        required = (Requirement(text) for text in self.request.signature.requires)
        return all(one.holds(sizes) for one in required if {*one.names} <= {*sizes})


class Workshop:
    """Builds the candidates of a kernel for one device.

    Arguments:
        origin: the kernel.
        options: how it is compiled: for the target of the device only.
        target, device: ``llvm`` and ``cpu``, or ``cuda`` and ``cuda:0``.
        failed: the folder that gets a folder for each candidate that is out.
    """

    def __init__(self, origin: Origin, options: Options, target: str, device: str, failed: Path) -> None:
        self.origin = origin
        self._options = options
        self._target = target
        self._device = device
        self._failed = failed

    def build(self, candidates: Sequence[Candidate]) -> list[Built | KernelwrightError]:
        """Each candidate, built and checked; or what is wrong with it, which has its log by then."""
        return compile_all([partial(self._attempt, each) for each in candidates], self.origin.session, False)

    def _attempt(self, candidate: Candidate) -> Built | KernelwrightError:
        job = job_of(self.origin, candidate.config, self._options)
        try:
            built = self._built(candidate, job)
        except KernelwrightError as error:
            store = self.origin.session.store
            kept = folder_name(f"{job.record.name}-{job.slug}", job.failed_key)
            self.out(candidate, error, store.work / "failed" / kept)
            return error
        if self.origin.record.has_reference:
            try:
                self.origin.session.pool.call(built.request)
            except KernelwrightError as error:
                self.out(candidate, error, built.sources)
                return error
        return built

    def _built(self, candidate: Candidate, job: Job) -> Built:
        compiled = compile_job(job, lambda line: print(line, file=sys.stderr))
        folder, record = compiled.folder, self.origin.record
        sources = folder / record.name / job.slug
        module = next(sources.glob(f"{self._target}/**/module.*"))
        signature = from_json(Signature, json.loads((module.parent / "signature.json").read_text(encoding="utf-8")))
        library = str(folder / "_lib" / f"{record.name}.so")
        file = self.origin.definition.file
        request = CheckRequest(
            file,
            record.name,
            candidate.slug,
            library=library,
            variant_index=0,
            signature=signature,
            device=self._device,
            tolerance=record.options.tolerance,
            listed=candidate.slug in record.slugs,
            config={} if candidate.slug in record.slugs else dict(candidate.config),
        )
        program = b"".join(path.read_bytes() for path in (module, *module.parent.glob("flags.json")))
        return Built(candidate, request, sources, digest_of(program, compiled.later, self.origin))

    def folder(self, candidate: Candidate) -> Path:
        """The folder of a candidate that is out."""
        return self._failed / candidate.slug

    def out(self, candidate: Candidate, error: KernelwrightError, sources: Path) -> None:
        """Keep the sources of a candidate that is out, and the reason; nothing if only the run is ending."""
        if self.origin.session.ending:
            return
        folder = self.folder(candidate)
        shutil.rmtree(folder, ignore_errors=True)
        if sources.is_dir():
            shutil.copytree(sources, folder, symlinks=True)
        write_atomically(folder / LOG, str(error) + "\n")


def digest_today(job: Job, target: str, origin: Origin) -> str:
    """The digest of the source that the one variant of a job has now; it is compiled where that tells its headers."""
    module = lowered_module(job, target, lambda line: None)
    return digest_of(module, compile_job(job, print).later if _has_sources(origin) else {}, origin)


def digest_of(module: bytes, later: Mapping[str, str], origin: Origin) -> str:
    """The digest of a candidate's source: the program that was lowered, and what else its definition says.

    Arguments:
        module: the program, as :func:`lowered_module` gives it.
        later: what its stages turned out to read, with the digests of that. Of files in CUDA C++ the program has the
            names only.
    """
    record = origin.record
    besides: list[Any] = [
        list(record.options.flags),
        dict(record.options.pass_configs),
        list(origin.settings.nvcc_flags),
    ]
    if _has_sources(origin):
        besides.append({name: digest for name, digest in later.items() if digest and is_portable(name)})
    return hashlib.sha256(module + canonical_json(besides).encode()).hexdigest()[:16]


def _has_sources(origin: Origin) -> bool:
    front_end = front_ends.of(origin.record)
    return front_end.includes_sources or front_end.has_host_code
