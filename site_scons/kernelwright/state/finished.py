"""Puts kernels that another tree or machine has finished into a fresh build folder, without discovery or nodes.

When the kernels of a definition file are finished, the build cache notes which of its entries have their outputs. A
tree that has none of these kernels, and in which all that they depend on is the same, takes the outputs at once. Then
the kernels are settled there (see ``settled``). A fresh folder with a full cache is filled this way; in all other
cases SCons looks at the stages one by one.

Nothing here imports SCons.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from ..core.converter import from_json, that
from ..core.files import SCRATCH, make_folder, sha256_of
from ..core.sealed import form_of
from .cache import BuildCache
from .entry import EntryName, file_with_answer
from .settled import KernelName, SettledKernel, is_inside


def _is_output(path: str) -> bool:
    parts = path.split("/")
    is_plain = not any(part in ("", ".") or part.startswith(SCRATCH) for part in parts)
    return is_inside(path) and len(parts) > 1 and is_plain


def _is_line(text: str) -> bool:
    return text.startswith('{"') and text.endswith("}") and text.isprintable()


OutputPath = Annotated[str, that("an output of a kernel", _is_output)]

Line = Annotated[str, that("a line of a journal", _is_line)]


@dataclass(frozen=True)
class FinishedStage:
    """A stage whose outputs are in the build cache.

    Arguments:
        entry: name of the entry.
        label, subject: of the stage.
        kernel, variant, arch: what it belongs to; empty: it does not belong to a single one.
        users: the kernels of the definition file that have it in common, if it is not the whole package.
        outputs: name in the entry -> path in the folder of the package's kernels.
        lines: name in the entry -> the journal's line of the output, see ``Journal.line_of``.
    """

    entry: EntryName
    label: str
    subject: str
    kernel: str
    variant: str
    arch: str
    users: tuple[KernelName, ...]
    outputs: Mapping[str, OutputPath]
    lines: Mapping[str, Line]

    def __post_init__(self) -> None:
        if self.outputs.keys() != self.lines.keys():
            raise ValueError("an output without a line, or a line without an output")


@dataclass(frozen=True)
class Finished:
    """The finished kernels of a definition file.

    Arguments:
        names: all that they depend on, as for ``dependency_digest``.
        notes: what a run says about them.
        kernels: the kernels, without the stamps of their outputs.
        stages: what makes them, in order.
    """

    names: tuple[str, ...]
    notes: tuple[str, ...]
    kernels: Mapping[KernelName, SettledKernel]
    stages: tuple[FinishedStage, ...]

    def __post_init__(self) -> None:
        paths = list(self.paths)
        if len(set(paths)) != len(paths) or not self.kernels:
            raise ValueError("two stages make one file, or there is no kernel")

    @property
    def paths(self) -> Iterator[str]:
        """The paths of all outputs in the folder of the package's kernels."""
        return (path for stage in self.stages for path in stage.outputs.values())


FORM = form_of(Finished)
"""The form of :class:`Finished`: a part of the question."""


def remember(cache: BuildCache, question: Any, finished: Finished, digests: Mapping[str, str]) -> None:
    """Note the finished kernels of a definition file.

    Arguments:
        digests: what they depend on, with the digests.
    """
    kernels = {name: replace(k, outputs={}, checks=0, check_outputs={}) for name, k in finished.kernels.items()}
    refers = {stage.entry: list(stage.outputs) for stage in finished.stages if stage.kernel}
    needs = [stage.entry for stage in finished.stages if not stage.kernel]
    cache.remember(question, replace(finished, kernels=kernels), digests, refers=refers, needs=needs)


def recall(
    cache: BuildCache, question: Any, current: Callable[[str], str]
) -> tuple[Finished, Mapping[str, bytes]] | None:
    """The finished kernels of a definition file, if everything that they depend on is the same now.

    With them come the contents of the outputs that the answer had, under names from ``file_with_answer``.
    """
    compared: set[str] = set()

    def compare(name: str) -> str:
        compared.add(name)
        return current(name)

    found = cache.recall_with_files(question, compare)
    try:
        kernels = None if found is None else from_json(Finished, found[0])
    except ValueError:
        return None
    return (kernels, found[1]) if found and kernels and compared.issuperset(kernels.names) else None


def fetch_common(cache: BuildCache, finished: Iterable[Finished]) -> None:
    """Have the build cache fetch what finished kernels have in common from the remote cache."""
    stages = {stage.entry: stage for found in finished for stage in found.stages if not stage.kernel}
    for entry, stage in stages.items():
        cache.contents(entry, list(stage.outputs), far=True)


@dataclass(frozen=True)
class Written:
    """What was written: the stages that make it, and path in the folder of the package's kernels -> SHA-256."""

    stages: tuple[FinishedStage, ...]
    digests: Mapping[str, str]


def restore(
    cache: BuildCache,
    finished: Finished,
    files: Mapping[str, bytes],
    work: str,
    shared: Collection[str],
    digest: Callable[[Path], str] = sha256_of,
) -> Written | None:
    """Write the outputs of finished kernels; None if that cannot be done.

    Arguments:
        files: the contents that :func:`recall` gave with the kernels.
        work: the folder of the package's kernels.
        shared: the folders in it that belong to no kernel. What is in them already stays as it is.
        digest: gives the SHA-256 of a file in one of them.
    """
    contents: dict[str, bytes] = {}
    stages = tuple(stage for stage in finished.stages if not _is_there(stage, work, shared))
    for stage in stages:
        with_answer = {name: files.get(file_with_answer(stage.entry, name)) for name in stage.outputs}
        here = {name: data for name, data in with_answer.items() if data is not None}
        if len(here) < len(with_answer):
            # The remote cache is asked only for what all kernels share: the rest would be one request for each stage.
            here = cache.contents(stage.entry, list(stage.outputs), far=not stage.kernel) or {}
        if not here:
            return None
        contents |= {stage.outputs[name]: data for name, data in here.items()}
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in contents.items()}
    try:
        wanted = _wanted(finished)
        there = {path: digest(Path(work, path)) for path in (wanted.keys() - digests.keys()) & {*finished.paths}}
        if any(wanted[path] != {**there, **digests}.get(path) for path in wanted):
            return None
        _write(work, contents)
    except OSError:
        return None  # the stages run then, and say what is wrong
    return Written(stages, digests)


def _wanted(finished: Finished) -> dict[str, str]:
    """The files that the package takes from the kernels -> the SHA-256 that each had."""
    wanted = {f"{name}/entry.json": kernel.entry for name, kernel in finished.kernels.items()}
    for kernel in finished.kernels.values():
        wanted |= dict(kernel.products.values())
    return wanted


def _is_there(stage: FinishedStage, work: str, shared: Collection[str]) -> bool:
    """Whether an output of a stage that kernels have in common is there, from this run or from an earlier one."""
    paths = stage.outputs.values()
    return any(path.partition("/")[0] in shared and os.path.lexists(f"{work}/{path}") for path in paths)


def _write(work: str, contents: Mapping[str, bytes]) -> None:
    """Write new files. If the run is killed meanwhile, the journal knows none of them, and they are made again."""
    # Short paths first: most folders of a new kernel are inside of another one of that kernel.
    for folder in sorted({path.rpartition("/")[0] for path in contents}, key=len):
        make_folder(f"{work}/{folder}")
    for path, data in contents.items():
        stream = os.open(f"{work}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        try:
            while data:
                data = data[os.write(stream, data) :]
        finally:
            os.close(stream)
