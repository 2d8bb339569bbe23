"""A stage of the pipeline as an SCons action: signature, atomic outputs, errors and progress in one place."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import SCons.Action
import SCons.Errors

from ..core.errors import KernelwrightError, Where, refused
from ..core.files import canonical_json, dependency_digest, digest_of, make_way, scratch_folder
from ..state.cache import key_of

if TYPE_CHECKING:
    from .run import BuildRun


WORKER_MODULES = ("definitions", "imports", "patterns", "project", "reads", "server", "strict")
EXECUTION = ("define/kernel.py", "core/files.py", *(f"worker/{name}.py" for name in WORKER_MODULES))
"""What executes definition files."""

CODE = {
    "DISCOVER": ("discover/discovery.py", *EXECUTION),
    "LOWER": ("lower/*.py", "core/dtype.py", "define/program.py", *EXECUTION),
    "CUBIN": ("compile/nvcc.py", "compile/nvrtc.py", "compile/headers.py", "toolchain/*.py", "scons/device.py"),
    "PTX": ("compile/nvcc.py", "compile/nvrtc.py", "compile/headers.py", "toolchain/*.py", "scons/device.py"),
    "FATBIN": ("compile/fatbin.py", "compile/nvcc.py"),
    "WRAP": (
        "backends/*.py",
        "library/*.py",
        "core/dtype.py",
        "library/launcher/python/*.pxi",
        "compile/fatbin.py",
        "scons/stages.py",
        "scons/backend_stages.py",
    ),
    "GLIBC": ("compile/glibc.py", "toolchain/probe.py"),
    "CC": ("library/*.py", "compile/nvcc.py", "toolchain/probe.py", "scons/stages.py"),
    "EXT": ("backends/*.py", "library/*.py", "compile/nvcc.py", "toolchain/probe.py", "scons/backend_stages.py"),
    "ENTRY": ("compile/limits.py", "package/manifest.py", "core/files.py", "scons/stages.py"),
    "LINK": (
        "compile/nvcc.py",
        "toolchain/probe.py",
        "compile/limits.py",
        "package/manifest.py",
        "core/files.py",
        "scons/stages.py",
    ),
    "PACKAGE": (
        "package/*.py",
        "runtime/*.py",
        "backends/*.py",
        "compile/fatbin.py",
        "core/files.py",
        "scons/assembly.py",
    ),
    "WHEEL": ("wheel/*.py", "package/*.py", "runtime/*.py", "compile/fatbin.py", "scons/wheel.py"),
    "COMMANDS": ("scons/commands.py",),
    "CHECK": ("worker/compare.py", "core/size.py", "worker/check.py", "scons/stages.py", *EXECUTION),
}
"""The modules of ours that decide what a stage makes out of its inputs, relative to the package."""


@cache
def code_digest(label: str) -> str:
    """Digest of the source of a stage's own code.

    The text and not the bytecode, which SCons would take: that differs between Python versions, and misses helpers.
    """
    package = Path(__file__).resolve().parent.parent
    return digest_of(file for pattern in CODE[label] for file in package.glob(pattern))


@dataclass
class Measured:
    """What a stage took: seconds of CPU time of its tools or its worker, and the peak of its memory in KiB."""

    cpu_seconds: float | None = None
    peak_kib: int | None = None


@dataclass(eq=False)
class Stage:
    """One node group of the build: what makes some files out of others.

    Arguments:
        label: the word that the progress line shows, such as ``CUBIN``.
        subject: what it works on, such as ``gemm/block_m-64 sm_90a``.
        where: the place for error messages.
        options: everything besides the sources that decides the outputs: flags, tool identities. JSON data.
        make: called with a scratch folder; leaves there a file for each target.
        targets: what it makes: name of the file in the scratch folder -> SCons file node.
        sources: SCons nodes that it reads.
        late: gives further options that are known only when the nodes that it waits for are done.
        remember: notes files that the stage turned out to depend on while it ran, name -> SHA-256, and puts them into
            the options; None: the stage has no such files.
        cacheable: whether the build cache may keep its outputs.
        archs: the archs that it makes code for, if that is not all of its kernel's.
        rest: for a stage that can do without some sources: whether enough of them is left (see ``partial``).
        published: whether this run has made its outputs.
        cached: whether they came out of the build cache.
        measured: what making them took.
        logs: the folder where a partial build keeps its error.
    """

    label: str
    subject: str
    where: Where
    options: dict[str, Any]
    make: Callable[[Path], None]
    targets: Mapping[str, Any]
    sources: list[Any]
    late: Callable[[], Any] | None = None
    remember: Callable[[Mapping[str, str]], None] | None = None
    cacheable: bool = True
    archs: tuple[str, ...] = ()
    rest: Callable[[], bool] | None = None
    published: bool = False
    cached: bool = False
    measured: Measured = field(default_factory=Measured)
    logs: Path | None = None

    @property
    def nodes(self) -> list[Any]:
        """The SCons nodes of the targets."""
        return list(self.targets.values())

    @property
    def paths(self) -> list[str]:
        """The paths of the targets."""
        return [str(node.get_abspath()) for node in self.targets.values()]

    @property
    def line(self) -> str:
        """The progress line."""
        return f"[ {'CACHED' if self.cached else self.label} ] {self.subject}"

    @property
    def signature(self) -> str:
        """What SCons compares besides the sources."""
        late = [] if self.late is None else [self.late()]
        return canonical_json([self.label, code_digest(self.label), self.options, *late])

    def cache_key(self, run: BuildRun) -> str:
        """Key in the build cache: the signature without what is known only after the run, and the sources' contents."""
        options = {name: value for name, value in self.options.items() if name != "later"}
        signature = canonical_json([self.label, code_digest(self.label), options])
        return key_of(signature, [(node.name, run.digest(node.get_abspath())) for node in self.sources])


class StageAction(SCons.Action._ActionAction):  # type: ignore[misc]
    """Runs a stage in one of SCons's threads.

    SCons's own FunctionAction would take the function's bytecode as its signature, which changes with the Python
    version and misses every helper that the function calls.
    """

    def __init__(self, stage: Stage, run: BuildRun) -> None:
        super().__init__()
        self.stage = stage
        self.run = run

    def __str__(self) -> str:
        return self.stage.line

    def __hash__(self) -> int:
        return id(self)

    def get_presig(self, target: Any, source: Any, env: Any, executor: Any = None) -> bytes:
        """The stage's signature, with the sources that a partial package has to do without."""
        lacking = self.run.partial.lacking(self.stage) if self.run.partial else []
        signature = self.stage.signature
        return (canonical_json([signature, lacking]) if lacking else signature).encode()

    def get_implicit_deps(self, target: Any, source: Any, env: Any, executor: Any = None) -> list[Any]:
        """None: every dependency of a stage is one of its sources, or in its signature."""
        return []

    def strfunction(self, target: Any, source: Any, env: Any, executor: Any = None) -> str:
        """The progress line."""
        return self.stage.line

    def print_cmd_line(self, text: str, target: Any, source: Any, env: Any) -> None:
        """With ``-n`` show the line; otherwise that is done when it is known whether the cache has the outputs."""
        if self.run.passive:
            self.run.started(text)

    def execute(self, target: Any, source: Any, env: Any, executor: Any = None) -> Any:
        """Make the targets; None, or a BuildError that shows the whole message."""
        if self.run.partial and self.run.partial.skips(self.stage):
            self.run.journal.forget(self.stage.paths)
            return None
        start = time.monotonic()
        problem = self._attempt()
        self.run.trace_stage(self.stage, start, problem is not None)
        if problem is not None:
            return self._failed(problem)
        self.run.progress.finished(self.stage.line)
        return None

    def _attempt(self) -> KernelwrightError | None:
        """Publish the stage; what went wrong, as an error that a user can read."""
        try:
            publish(self.stage, self.run)
        except KernelwrightError as error:
            return error
        except OSError as error:
            return refused(error, self.stage.where, self.stage.paths[0])
        except Exception as error:
            # A defect of ours must look like one, and count as a failure.
            message = f"an unexpected {type(error).__name__}: {error}"
            remedy = "report this as a defect of Kernelwright"
            return KernelwrightError(message, self.stage.where, remedy, traceback.format_exc())
        return None

    def _failed(self, error: KernelwrightError) -> Any:
        if ":" not in (error.where.location or ""):
            # The definition's line, where nothing more exact is known.
            error.where = replace(error.where, location=self.stage.where.location)
        self.run.failed(self.stage, error)
        if self.run.partial and self.run.partial.tolerates(self.stage, error):
            self.run.journal.forget(self.stage.paths)
            return None
        return SCons.Errors.BuildError(node=self.stage.nodes[0], errstr=str(error), status=2, exitstatus=2, action=self)


def move(source: Path, target: Path) -> None:
    """Rename a file; the target's folder may have been swept away as empty in the meantime."""
    for _ in range(3):
        target.parent.mkdir(parents=True, exist_ok=True)
        make_way(target)
        try:
            os.replace(source, target)  # noqa: PTH105
            return
        except FileNotFoundError:
            continue
    os.replace(source, target)  # noqa: PTH105


def publish(stage: Stage, run: BuildRun) -> None:
    """Fetch a stage's outputs from the cache or run it, in a scratch folder; then move all of them into place.

    Raises:
        KernelwrightError: the stage failed, or did not make a declared output. No target exists then.
    """
    paths = {name: Path(node.get_abspath()) for name, node in stage.targets.items()}
    with scratch_folder(run.scratch) as scratch:
        key = stage.cache_key(run) if stage.cacheable and run.cache is not None else None
        stage.cached = key is not None and _fetch(stage, run, key, scratch)
        run.started(stage.line)
        if not stage.cached:
            stage.make(scratch)
        missing = [name for name in paths if not (scratch / name).is_file()]
        if missing:
            message = f"the stage did not make {', '.join(missing)}"
            raise KernelwrightError(message, stage.where, "report this as a defect of Kernelwright")
        if key is not None and run.cache is not None and not stage.cached:
            run.cache.store(key, scratch, list(paths), stage.options.get("later", {}))
        run.require_folders({str(path.parent) for path in paths.values()})
        for name, path in paths.items():
            move(scratch / name, path)
    run.journal.record(map(str, paths.values()))
    stage.published = True


def _fetch(stage: Stage, run: BuildRun, key: str, scratch: Path) -> bool:
    """Whether the stage's outputs were in the cache, and are in the scratch folder now."""
    if run.cache is None:
        return False
    later = run.cache.fetch(key, scratch, list(stage.targets), lambda name: dependency_digest(run.top, name))
    if later is not None and stage.remember is not None:
        stage.remember(later)
    return later is not None
