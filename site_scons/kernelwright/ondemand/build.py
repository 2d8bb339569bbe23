"""Compiles one kernel into a folder of the cache: the stages of a build, run by the executor."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import backends
from .. import frontends as front_ends
from ..core.dependencies import EDITED, present_digest
from ..core.errors import KernelwrightError, Where
from ..core.files import sha256_of
from ..core.request import ASIDE, differences, digest, first_of, parts
from ..core.version import VERSION
from ..define.settings import Settings
from ..stages.code import loaded_code
from ..stages.context import Context, KernelContext
from ..stages.runs import Run
from ..stages.tools import Tools, find_tools
from ..state.entry import entry_key
from .cache_place import CacheError
from .kernel_folders import LATER, REQUEST
from .monitor import is_heard, tell
from .options import OFF, ON, WARN
from .session import Session

if TYPE_CHECKING:
    from ..define.record import DefinitionRecord, KernelRecord
    from ..stages.kernel import KernelBuild
    from ..stages.selection import KernelSelection
    from ..stages.stage import Stage

LOCK_TIMEOUT_S = 600.0
"""How long a process waits for another one that compiles the same kernel."""

MakeContext = Callable[..., KernelContext]
"""Makes the context of a kernel from the arguments of :class:`KernelContext`."""


@dataclass(frozen=True)
class MadeWith:
    """What a kernel is compiled with. Another version of it might make something else from the same job.

    Arguments:
        kernelwright: our version.
        code: digest of our code.
        tools: what is known of the tools, without paths, and of the tools of each kernel's front end.
        backends: name of each backend that a kernel is for -> versions of what it is built with.
        interpreter: what all definition files see; empty for a program of this process, whose digest is in the job.
    """

    kernelwright: str
    code: str
    tools: tuple[Mapping[str, Any], ...]
    backends: Mapping[str, Any]
    interpreter: tuple[Any, ...]


@dataclass(frozen=True)
class Job:
    """A kernel that is to be compiled: a request (see :mod:`core.request`).

    Arguments:
        definition: the definition file that it is from.
        selection: the kernel, narrowed to the configs, archs and backends that are wanted.
        settings: what decides the rest.
        session: what runs the stages.
        backward: the kernel of its gradients, if a backend calls that.
        contexts: name of each kernel -> what makes the context that its stages are made from.
        jit: what happens if it has to be compiled: ``on``, ``warn`` or ``off``.
        identity: what else decides the result: the digests of programs that are in no file, and which slugs of a
            kernel are one identifier in C, because its symbols depend on that.
    """

    definition: DefinitionRecord
    selection: KernelSelection
    settings: Settings
    session: Session = field(metadata=ASIDE)
    backward: KernelSelection | None = None
    contexts: Mapping[str, MakeContext] = field(default_factory=dict, metadata=ASIDE)
    identity: Mapping[str, Any] = field(default_factory=dict)
    jit: str = field(default=ON, metadata=ASIDE)

    @property
    def record(self) -> KernelRecord:
        """The kernel."""
        return self.selection.record

    @property
    def selections(self) -> list[KernelSelection]:
        """The kernels that the folder has."""
        return [self.selection, *([self.backward] if self.backward else [])]

    @property
    def slug(self) -> str:
        """The slug of the variant that is compiled; of the first one, if targets have different ones."""
        return self.record.slugs[0]

    @cached_property
    def tools(self) -> Tools:
        """The tools, probed now if they were not before."""
        return find_tools(self.settings, self.session.toolchain)

    @cached_property
    def made_with(self) -> MadeWith:
        """What it is compiled with."""
        used = sorted({name for selection in self.selections for name in selection.backends})
        front_ends = [self.tools.data_of_front_end(selection.record.options.frontend) for selection in self.selections]
        return MadeWith(
            VERSION,
            loaded_code(),
            (self.tools.data, *front_ends),
            {name: backends.versions(backends.get(name)) for name in used},
            tuple(self.session.interpreter) if self.definition.dependencies else (),
        )

    @cached_property
    def key(self) -> str:
        """Digest of all that decides the folder's content, besides what is only known when the stages have run."""
        return digest([self, self.made_with])

    @property
    def parts(self) -> dict[str, str]:
        """What decides it, part by part, for people; see :func:`~..core.request.parts`."""
        found = {**parts(self), **parts(self.made_with)}
        # The slug, and what is alike in C, follow from the config.
        return {name: text for name, text in found.items() if not name.startswith(("slugs", "identity.alike"))}

    @property
    def failed_key(self) -> str:
        """The key of what a failed compile leaves. It is the checkout's own: another one may fail for other reasons."""
        return digest([self.key, str(self.session.root)])


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel.

    Arguments:
        folder: where it is. Its content never changes, but somebody may remove it.
        key: digest of all that decides its content: the job's key, and the files that the stages turned out to read.
        later: these files, with their digests.
        cached: whether it was there before, so that nothing was compiled now.
    """

    folder: Path
    key: str
    later: Mapping[str, str]
    cached: bool


def compile_job(job: Job, note: Callable[[str], None], anew: bool = False) -> Compiled:
    """The folder of a kernel; it is compiled unless the cache has it.

    Arguments:
        note: shows a line.
        anew: whether it is compiled whatever the cache has, because that turned out to be damaged.

    Raises:
        KernelwrightError: a stage failed. Its sources and its error are in a folder that the error names.
    """
    return job.session.with_room(partial(_compile_job, job, note, anew))


def _compile_job(job: Job, note: Callable[[str], None], anew: bool) -> Compiled:
    store, name, begin = job.session.store, job.record.name, time.monotonic()

    def told(kind: str, why: str = "") -> None:
        tell(kind, name, job.slug, time.monotonic() - begin, why)

    earlier = None if anew else _known(job)
    if earlier is not None:
        told("hit")
        return earlier
    if job.jit == OFF:
        raise _is_off(job)
    waiting = partial(note, f"kernelwright: another process compiles {name}, waiting for it")
    with store.locked(job.key, LOCK_TIMEOUT_S, waiting, lambda: job.session.ending):
        earlier = None if anew else _known(job)
        if earlier is not None:
            told("wait")
            return earlier
        begin, why = time.monotonic(), _why(job) if is_heard() else ""
        try:
            with job.session.compiling():
                compiled = _compiled(job, note)
        except KernelwrightError:
            told("failure")
            raise
        told("compile", why)
    store.trim()
    return compiled


def _is_off(job: Job) -> KernelwrightError:
    """The error of a kernel that would have to be compiled."""
    message = f"it is not compiled, and compile on demand is off: {_why(job)}"
    ahead = "run the program where it may compile, with KERNELWRIGHT_RECORD=configs.json, let the definition take its"
    remedy = f"build it ahead: {ahead} configs from recorded('configs.json'), and run scons; or set KERNELWRIGHT_JIT=on"
    return KernelwrightError(message, Where(job.record.name, job.slug, location=job.record.location), remedy)


def _why(job: Job) -> str:
    """What in the request for a kernel differs from that of the one in the cache which is the most like it."""
    now, least = job.parts, None
    for known in job.session.store.requests(job.record.name):
        texts = differences(known, now)
        least = texts if least is None or len(texts) < len(least) else least
    if least is None:
        return "the cache has no kernel of that name"
    if not least:
        return "a file that its stages have read was edited, or what the cache had is damaged"
    return first_of(least)


def _compiled(job: Job, note: Callable[[str], None]) -> Compiled:
    """Compile a kernel now."""
    logger = logging.getLogger("kernelwright")
    if job.jit == WARN or logger.isEnabledFor(logging.INFO):
        archs, why = ", ".join(job.settings.archs), _why(job)
        text = (
            f"{job.record.name}/{job.slug} is compiled for {archs}, for the backend {job.selection.backends[0]}: {why}"
        )
        logger.info("%s", text)
        if job.jit == WARN:
            note(f"kernelwright: {text}")
    store, name = job.session.store, job.record.name
    if problem := store.untold_problem():
        note(f"kernelwright: {problem}")
    for backend in dict.fromkeys(used for selection in job.selections for used in selection.backends):
        backends.get(backend).require_build()
    with store.scratch(name) as scratch:
        try:
            entry, later = _make(job, scratch, note)
        except KernelwrightError as error:
            with contextlib.suppress(CacheError):
                kept = store.fail(f"{name}-{job.slug}", job.failed_key, scratch, str(error))
                # Compilers run in the project's folder, and may have named files as seen from there.
                for place in (str(scratch), os.path.relpath(scratch, job.session.root)):
                    _move_places(error, place, str(kept))
                how_long = "" if store.lasting else " until this process ends"
                see = f"its sources and its log are in {kept}{how_long}"
                error.remedy = f"{error.remedy}; {see}" if error.remedy else see
            raise
        return Compiled(store.publish(name, job.key, entry, scratch), entry, later, False)


def _move_places(error: KernelwrightError, old: str, new: str) -> None:
    """Have an error name the files of a failed compile in their new place."""
    error.message = error.message.replace(old, new)
    error.detail = error.detail.replace(old, new) if error.detail else None
    error.remedy = error.remedy.replace(old, new) if error.remedy else None


def lower_job(job: Job, target: str, note: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, str]]:
    """Lower the one variant of a job for one target: its ``signature.json``, and what the lowering has read.

    Raises:
        KernelwrightError: it cannot be lowered; or it is not compiled for that target.
    """
    content, later = job.session.with_room(partial(_lowered, job, target, note, "signature."))
    return json.loads(content), later


def lowered_module(job: Job, target: str, note: Callable[[str], None]) -> bytes:
    """Lower the one variant of a job for one target: its ``module.tir``, followed by the flags that its front end gives
    for the CUDA compiler, if there are any.

    Raises:
        KernelwrightError: it cannot be lowered; or it is not compiled for that target.
    """
    return job.session.with_room(partial(_lowered, job, target, note, "module.", "flags."))[0]


def _lowered(job: Job, target: str, note: Callable[[str], None], *wanted: str) -> tuple[bytes, dict[str, str]]:
    """Lower the one variant of a job: the files whose names begin with ``wanted``, and what the lowering has read."""
    from ..stages import lower
    from ..stages.execution import attempt
    from .run import OnDemandRun

    archs = job.selection.archs.get(target)
    if archs is None:
        target, archs = next(iter(job.selection.archs.items()))
    with job.session.store.scratch(job.record.name) as scratch:
        kernel = kernel_context(job, OnDemandRun(job.session, note), scratch)
        variant = job.selection.variant_for(target)
        if target == "cuda":
            archs, _ = job.selection.cuda_sources(variant.slug)[0]
        stage = lower.make(lower.VariantUnit(kernel, variant.slug, variant.config, target, archs))
        if (problem := attempt(stage, kernel.run)) is not None:
            raise problem
        contents = [Path(path).read_bytes() for name, path in stage.outputs.items() if name.startswith(wanted)]
        return b"".join(contents), {**stage.later, **stage.outside}


def _known(job: Job) -> Compiled | None:
    """The kernel of an earlier compile whose stages read the files that are there now; None: there is none."""
    found = job.session.store.find(job.record.name, job.key, partial(present_digest, job.session.root))
    return None if found is None else Compiled(*found, cached=True)


def _make(job: Job, scratch: Path, note: Callable[[str], None]) -> tuple[str, dict[str, str]]:
    """Run the stages, and put together what a package has of the kernels.

    Returns:
        The key of the result, and the files that stages turned out to read.
    """
    from ..package.images import IMAGES
    from ..package.manifest import BuiltPackage, make_manifest
    from ..stages import kernel, launcher
    from ..stages.package import compression
    from .executor import run_stages
    from .launcher import attempt_stage
    from .run import OnDemandRun

    run = OnDemandRun(job.session, note)
    contexts = [kernel_context(job, run, scratch, selection) for selection in job.selections]
    own = launcher.make(contexts[0].package, None)
    builds = [kernel.make(context, None, own) for context in contexts]
    # Each once: the kernels may have made stages of their own for what they have in common.
    common = {stage.paths[0]: stage for build in builds for stage in build.common}
    stages = [*common.values(), *(stage for build in builds for stage in build.stages)]
    if any(own.paths[0] in stage.sources for stage in stages):
        stages.insert(0, own)
    problem = run_stages(stages, partial(attempt_stage, run), job.session.jobs, job.session.end_children)
    if problem is not None:
        raise problem
    packaged = tuple(_packaged(build, scratch) for build in builds)
    names = tuple(dict.fromkeys(name for build in builds for name in build.backends))
    device_code = {"folder": IMAGES, "packages": {}} if contexts[0].package.images_in == "package" else {}
    later = read_by(stages)
    entry = key_of_made(job.key, later)
    compress = compression(job.settings, job.tools)
    package = BuiltPackage(
        *(job.record.name, VERSION, job.tools.data, names, packaged, compress, device_code),
        key=entry,
        machine=job.settings.family,
    )
    texts = {LATER: json.dumps(later, indent=1), REQUEST: json.dumps(job.parts, indent=1)}
    for file, text in {**texts, "manifest.json": make_manifest(package, texts)}.items():
        (scratch / file).write_text(text, encoding="utf-8")
    return entry, later


def key_of_made(key: str, later: Mapping[str, str]) -> str:
    """The key of a result: made of the key of its job and the files that stages turned out to read.

    If one of these files was edited meanwhile, nobody can tell what was made: then no look-up ever gives the key.
    """
    return os.urandom(32).hex() if EDITED in later.values() else entry_key(key, later)


def read_by(stages: Iterable[Stage]) -> dict[str, str]:
    """The files that stages turned out to read, with their digests; ``EDITED`` for one that two have read differently.

    Those outside of the project are among them.
    """
    later: dict[str, str] = {}
    for stage in stages:
        for name, content in {**stage.later, **stage.outside}.items():
            later[name] = content if later.get(name, content) == content else EDITED
    return later


def kernel_context(job: Job, run: Run, folder: Path, selection: KernelSelection | None = None) -> KernelContext:
    """What the stages of a kernel of a job are made from; their outputs are in a folder.

    Arguments:
        selection: the kernel; None: the job's first.
    """
    from ..stages.package import images_in

    chosen = selection or job.selection
    places = (folder, folder, folder / "check", folder / "wheels")
    package = Context(run, job.settings, job.tools, *places, images_in(job.settings))
    make = job.contexts.get(chosen.record.name, KernelContext)
    return make(package, job.definition, chosen, front_ends.of(chosen.record))


def _packaged(build: KernelBuild, folder: Path) -> Any:
    """A kernel as the manifest has it; its files are put into their places in the folder."""
    from ..package.manifest import PackagedKernel

    products = {}
    for inside, path in build.products.items():
        place = folder / inside
        place.parent.mkdir(parents=True, exist_ok=True)
        if Path(path) != place:  # the launcher is made in its place already
            _link(path, place)
        products[inside] = sha256_of(place), place.stat().st_size
    entry = Path(build.entry).read_text(encoding="utf-8")
    return PackagedKernel(build.record.name, entry, build.backends, products)


def _link(source: str, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
