"""A stage of the pipeline as an SCons action: signature, atomic outputs, errors and progress in one place."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import SCons.Action
import SCons.Errors

from ..errors import KernelwrightError, Where
from ..files import canonical_json, digest_of, scratch_folder

if TYPE_CHECKING:
    from .run import BuildRun


CODE = {
    "DISCOVER": ("discovery.py", "declare.py", "workers/definitions.py", "workers/server.py"),
    "LOWER": ("declare.py", "files.py", "frontends/*.py", "workers/definitions.py", "workers/server.py"),
    "CUBIN": ("nvcc.py", "toolchain.py"),
    "PTX": ("nvcc.py", "toolchain.py"),
    "WRAP": ("backends/*.py", "scons/stages.py"),
    "LINK": ("nvcc.py", "toolchain.py", "scons/stages.py"),
    "PACKAGE": ("package/*.py", "files.py", "scons/stages.py"),
    "CHECK": ("workers/*.py", "compare.py", "sizes.py", "declare.py", "files.py", "scons/stages.py"),
}
"""The modules of ours that decide what a stage makes out of its inputs, relative to the package."""


@cache
def code_digest(label: str) -> str:
    """Digest of the source of a stage's own code.

    The text and not the bytecode, which SCons would take: that differs between Python versions, and misses helpers.
    """
    package = Path(__file__).resolve().parent.parent
    return digest_of(file for pattern in CODE[label] for file in package.glob(pattern))


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
        published: whether this run has made its outputs.
    """

    label: str
    subject: str
    where: Where
    options: Mapping[str, Any]
    make: Callable[[Path], None]
    targets: Mapping[str, Any]
    sources: list[Any]
    published: bool = False

    @property
    def nodes(self) -> list[Any]:
        """The SCons nodes of the targets."""
        return list(self.targets.values())

    @property
    def line(self) -> str:
        """The progress line."""
        return f"[ {self.label} ] {self.subject}"

    @property
    def signature(self) -> str:
        """What SCons compares besides the sources."""
        return canonical_json([self.label, code_digest(self.label), self.options])


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
        """The stage's signature."""
        return self.stage.signature.encode()

    def get_implicit_deps(self, target: Any, source: Any, env: Any, executor: Any = None) -> list[Any]:
        """None: every dependency of a stage is one of its sources, or in its signature."""
        return []

    def strfunction(self, target: Any, source: Any, env: Any, executor: Any = None) -> str:
        """The progress line."""
        return self.stage.line

    def print_cmd_line(self, text: str, target: Any, source: Any, env: Any) -> None:
        """Show the line as the progress display does, instead of printing it."""
        self.run.started(text)

    def execute(self, target: Any, source: Any, env: Any, executor: Any = None) -> Any:
        """Make the targets; None, or a BuildError that shows the whole message."""
        try:
            publish(self.stage, self.run)
        except KernelwrightError as error:
            return self._failed(error)
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            message = f"the operating system said: {error.strerror or error}{place}"
            return self._failed(KernelwrightError(message, self.stage.where, "mend that and run scons again"))
        except Exception as error:
            # A defect of ours must look like one, and count as a failure.
            message = f"an unexpected {type(error).__name__}: {error}"
            remedy = "report this as a defect of Kernelwright"
            return self._failed(KernelwrightError(message, self.stage.where, remedy, traceback.format_exc()))
        self.run.progress.finished(self.stage.line)
        return None

    def _failed(self, error: KernelwrightError) -> Any:
        if ":" not in (error.where.location or ""):
            # The definition's line, where nothing more exact is known.
            error.where = replace(error.where, location=self.stage.where.location)
        self.run.failed(self.stage, error)
        return SCons.Errors.BuildError(node=self.stage.nodes[0], errstr=str(error), status=2, exitstatus=2, action=self)


def move(source: Path, target: Path) -> None:
    """Rename a file; the target's folder may have been swept away as empty in the meantime."""
    for _ in range(3):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.replace(source, target)  # noqa: PTH105
            return
        except FileNotFoundError:
            continue
    os.replace(source, target)  # noqa: PTH105


def publish(stage: Stage, run: BuildRun) -> None:
    """Run a stage in a scratch folder, and move its outputs into place when all of them are there.

    Raises:
        KernelwrightError: the stage failed, or did not make a declared output. No target exists then.
    """
    paths = {name: Path(node.get_abspath()) for name, node in stage.targets.items()}
    with scratch_folder(run.scratch) as scratch:
        stage.make(scratch)
        missing = [name for name in paths if not (scratch / name).is_file()]
        if missing:
            message = f"the stage did not make {', '.join(missing)}"
            raise KernelwrightError(message, stage.where, "report this as a defect of Kernelwright")
        for name, path in paths.items():
            move(scratch / name, path)
    run.ledger.record(paths.values())
    stage.published = True
