"""Compiles CUDA source with the programs that nvcc runs, without nvcc: the front end makes PTX, and ptxas makes cubins.

The files are the same, and take less time: PTX is made once for all archs that need it, and ptxas runs only if the PTX
changed. ``toolchain/nvcc_probe.py`` has tested that this nvcc allows it. If a step fails, nvcc itself runs, and the
user sees the error of nvcc.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from ..core.arch import is_ptx, virtual_arch
from ..core.errors import ToolError
from ..processes.environment import place_for_shell
from ..processes.tools import Elsewhere, ToolResult, together
from .headers import can_include
from .kept_headers import KeptHeaders
from .nvcc_run import LISTING, CompiledCode, NvccRun, compile_device_code
from .nvcc_steps import Steps, read_steps
from .plain_flags import can_trim, has_debug_information
from .shared import shared_nvcc
from .trimmed_source import TrimmedSource
from .trimming import Headers

WITH_VALUE = {
    *("-D", "--define-macro", "-U", "--undefine-macro", "-I", "--include-path", "-isystem", "--system-include"),
    *("-include", "--pre-include", "-std", "--std", "-O", "--optimize", "-maxrregcount", "--maxrregcount"),
    *("-Xptxas", "--ptxas-options", "-Xcompiler", "--compiler-options", "-Xcudafe", "--cudafe-options"),
    *("-ftz", "--ftz", "-prec-sqrt", "--prec-sqrt", "-prec-div", "--prec-div", "-fmad", "--fmad"),
    *("-dopt", "--dopt", "-Ofc", "--Ofast-compile", "-split-compile", "--split-compile", "-rdc"),
    *("--relocatable-device-code", "-Werror", "--Werror", "-diag-error", "--diag-error", "-diag-suppress"),
    *("--diag-suppress", "-diag-warn", "--diag-warn", "-opt-info", "--optimization-info"),
    *("-device-stack-protector", "--device-stack-protector", "-static-global-template-stub"),
}
"""Flags of nvcc, with a value behind ``=`` or in the next word, with which a cubin is what ptxas makes of the PTX."""

WITHOUT_VALUE = {
    *("-G", "--device-debug", "-g", "--debug", "-lineinfo", "--generate-line-info", "-use_fast_math"),
    *("--use_fast_math", "-extra-device-vectorization", "--extra-device-vectorization", "-restrict", "--restrict"),
    *("-w", "--disable-warnings", "-res-usage", "--resource-usage", "-err-no", "--display-error-number"),
    *("-no-err-no", "--no-display-error-number", "-Wno-deprecated-gpu-targets", "--expt-relaxed-constexpr"),
    *("-expt-relaxed-constexpr", "--extended-lambda", "-extended-lambda", "-ewp", "--extensible-whole-program"),
    "-m64",
}
"""Such flags without a value."""

JOINED = re.compile(r"-[DUI].+|-O[0-3]")
"""Such flags with the value in the same word."""

OPTIONS_FILES = re.compile(r"(?:^|[,=])(?:@|-optf|--options-file)")
"""Files with more flags, which may be any."""


Run = Callable[[Sequence[str]], ToolResult]
"""Runs a command in the folder of the source."""

HeadersOf = Callable[[tuple[str, ...], Headers | None, Callable[[], Headers]], Headers]


@dataclass
class KnownHeaders:
    """The headers of sources, preprocessed and read once for each arch and flags. Several threads may ask at a time."""

    _known: dict[tuple[str, ...], Headers] = field(default_factory=dict)
    _locks: dict[tuple[str, ...], Lock] = field(default_factory=dict)

    def of(
        self, kept: KeptHeaders, key: tuple[str, ...], before: Headers | None, read: Callable[[], Headers]
    ) -> Headers:
        """What is known or kept by that key, or else what ``read`` gives. A second thread waits for the first."""
        with self._locks.setdefault(key, Lock()):
            if key not in self._known:
                self._known[key] = kept.of(key, before, read)
            return self._known[key]


def compile_trimmed(
    run: NvccRun, steps: Steps, headers: HeadersOf, translate: Run, *, checked: bool
) -> list[ToolResult]:
    """Make PTX; an empty list: it does not count, because the source needs all of its headers.

    Arguments:
        headers: what is known of headers, as :meth:`KnownHeaders.of` finds it.
        translate: makes PTX of what was preprocessed.
        checked: as :meth:`Steps.front_end` has it.

    Raises:
        ToolError: a program failed.
        ValueError: the headers or the steps have another form than is known.
    """
    job, results = run.job, list[ToolResult]()
    where = (job.headers.standard, *job.headers.flags(job.headers.path)) if job.headers else ()

    def headers_of(head: str, before: Headers | None, read: Callable[[], Headers]) -> Headers:
        return headers((job.arch, *job.flags, *where, head), before, read)

    def keeping(do: Run) -> Callable[[Sequence[str]], None]:
        return lambda command: results.append(do(command))

    runs = keeping(run.run), keeping(translate)
    source = TrimmedSource(job.folder / "device.cu", steps, run.scratch, *runs, headers_of, job.headers is None)
    return results if source.make_ptx(checked=checked) else []


def can_part(flags: Sequence[str]) -> bool:
    """Whether a cubin that nvcc makes with these flags is what ptxas makes of its PTX."""
    words = iter(flags)
    for word in words:
        name, _, value = word.partition("=")
        if word in WITH_VALUE:
            value = next(words, "")
        elif name not in WITH_VALUE and word not in WITHOUT_VALUE and not JOINED.fullmatch(word):
            return False
        if OPTIONS_FILES.search(value):
            return False
    return True


class KnownSteps:
    """The programs that nvcc runs, read from one dry run for each arch and flags. Several threads may ask at a time."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Steps] = {}
        self.headers = KnownHeaders()

    def of(self, run: NvccRun) -> Steps:
        """The steps of a run.

        Raises:
            ToolError: the dry run failed.
            ValueError: it cannot be read.
        """
        job, scratch = run.job, place_for_shell(run.scratch, run.job.folder)
        # Debug information has names that a CUDA header's static functions got, and that no code has.
        is_portable = job.has_portable_names or has_debug_information(job.flags)
        folder = "" if is_portable else str(job.folder)
        key = (run.nvcc.path, run.host_compiler.path, job.arch, job.headers, *job.flags)
        known = self._known.get(key)
        if known is not None:
            return known.moved(folder, scratch)
        nvcc, *arguments = run.command
        done = run.run([nvcc, "--dryrun", *arguments], subject=f"steps for {job.arch}")
        steps = read_steps(done.output, "ptx" if is_ptx(job.arch) else "cubin", scratch).moved(folder, scratch)
        if not can_include(job.flags):  # what flags name may be relative to the folder
            self._known[key] = steps
        return steps


def compile_by_steps(run: NvccRun, known: KnownSteps, kept: KeptHeaders, *, shipped: bool) -> CompiledCode:
    """As :func:`compile_device_code`, without nvcc; a cubin is made of the PTX of its virtual arch in the same folder.

    Arguments:
        known: what nvcc would run.
        kept: headers that builds have read.
        shipped: whether the output is used itself, and not only for cubins.
    """
    job = run.job
    try:
        result = _result(run, known, kept, shipped=shipped)
    except ValueError as error:
        reason = f"its dry run for {job.arch} cannot be read: {error}"
    except ToolError as error:
        reason = f"what it runs for {job.arch} ended with exit status {error.status}"
    else:
        if is_ptx(job.arch) and has_debug_information(job.flags):
            _name_sources(run)
        run.write_results(result.output)
        return CompiledCode(result, run.headers() if is_ptx(job.arch) and can_include(job.flags) else ())
    done = compile_device_code(run)
    return CompiledCode(done.result, done.headers, (f"nvcc is run as a whole: {reason}",))


def _name_sources(run: NvccRun) -> None:
    """Have the line information in PTX name sources as every machine does: as seen from the project's folder.

    Those of CUDA are below ``cuda/``. What is compiled outside of the project is below nothing: it may be moved. All of
    them get a time, because ptxas looks for files that have none, and takes that of those that it finds.
    """
    root = str(run.tools.project_root)
    names = {str(Path(run.nvcc.path).resolve().parents[1]): "cuda/", root: ""}
    if not run.job.folder.is_relative_to(run.tools.project_root):
        names[str(run.job.folder)] = ""

    def relative(match: re.Match[str]) -> str:
        written = _unescaped(match[2])
        place = os.path.normpath(written)
        top = next((top for top in names if place.startswith(f"{top}/")), None)
        if top is not None:
            name = f"{names[top]}{place[len(top) + 1 :]}"
        elif written.startswith((f"{root}/", f"{run.job.folder}/")):
            name = os.path.relpath(place, root)  # beside the project, which includes it by a relative path
        else:
            name = written
        return f'{match[1]}"{_escaped(name)}", 1, 0'

    path = run.scratch / run.job.output
    named = re.sub(r'^(\t\.file\t\d+ )"((?:[^"\\\n]|\\.)*)"$', relative, path.read_text(), flags=re.M)
    path.write_text(named)


def _unescaped(text: str) -> str:
    """A path as PTX has it: bytes that are no ASCII are octal numbers behind backslashes."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})|\\(.)", lambda m: bytes([int(m[1], 8)]) if m[1] else m[2], text.encode()))


def _escaped(path: str) -> str:
    return "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\{b:03o}" for b in os.fsencode(path))


def _result(run: NvccRun, known: KnownSteps, kept: KeptHeaders, *, shipped: bool) -> ToolResult:
    """Run what makes the output."""
    job, steps, tool = run.job, known.of(run), shared_nvcc(run.nvcc, run.host_compiler)

    def translate(command: Sequence[str]) -> ToolResult:
        # What was preprocessed has all that is read, so another machine can do it.
        files = (job.folder / steps.preprocessed,), (job.folder / steps.ptx,)
        return run.run(command, elsewhere=None if has_debug_information(job.flags) else Elsewhere(tool, *files))

    if not is_ptx(job.arch):
        ptx = f"{virtual_arch(job.arch)}.ptx"
        needs = Elsewhere(tool, (job.folder / ptx,), (run.scratch / job.output,))
        return run.run(steps.assembling(ptx), elsewhere=needs)
    if can_trim(job.flags):
        results = compile_trimmed(run, steps, partial(known.headers.of, kept), translate, checked=shipped)
        if results:
            return together(results)
    listing = f"-MD -MF {shlex.quote(run.place(LISTING))} -MT device" if can_include(job.flags) else ""
    return together([run.run(steps.reading(listing)), translate(steps.translating(checked=shipped))])
