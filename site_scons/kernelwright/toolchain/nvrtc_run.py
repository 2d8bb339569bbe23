"""Runs NVRTC, nvcc's compiler for device code as a library: CUDA source to a cubin or to PTX, with precompiled headers.

What nvcc does besides is not done: preprocessing for the host, cudafe++, and a process each for cicc and ptxas. What
costs time instead is that NVRTC's sources include CUDA's own standard library. The headers at the beginning of a source
are therefore compiled once for all kernels that begin alike; see ``nvrtc_compile`` for how.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.arch import is_ptx
from ..core.errors import SettingsError, ToolError, Where
from ..core.files import canonical_json
from ..processes.tools import Elsewhere, RunsTools, ToolCall, ToolResult
from .headers import can_include, included_files
from .nvcc_run import CompiledCode, DeviceJob, as_dependencies, by_hand, shell_script, stand_in, write_usage
from .nvrtc import Nvrtc, compiler_process
from .plain_flags import can_trim
from .shared import shared_nvrtc
from .trimming import head_lines

NOTE = "PCH"
"""As ``nvrtc_compile.NOTE``, which would have to be imported, with ctypes."""

PCH_REVISION = 2
"""Raise when precompiled headers are made in another way."""

SMALLEST_STORE = 64 << 20
"""Bytes that a precompiled header may need; NVRTC 13.0's have 60 MB, nearly all of which is the same in each."""

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
"""Signals that end a program which is at fault itself; others come from outside."""

WITH_VALUE = {
    *("-D", "--define-macro", "-U", "--undefine-macro", "-I", "--include-path", "-include", "--pre-include"),
    *("-std", "--std", "-maxrregcount", "--maxrregcount", "-Xptxas", "--ptxas-options", "-ftz", "--ftz"),
    *("-prec-sqrt", "--prec-sqrt", "-prec-div", "--prec-div", "-fmad", "--fmad", "-dopt", "--dopt"),
    *("-Ofc", "--Ofast-compile", "-jtd", "--jump-table-density", "-opt-info", "--optimization-info"),
    *("-diag-error", "--diag-error", "-diag-suppress", "--diag-suppress", "-diag-warn", "--diag-warn"),
    *("-brief-diag", "--brief-diagnostics", "-split-compile", "--split-compile", "-frandom-seed", "--frandom-seed"),
    *("-device-stack-protector", "--device-stack-protector"),
}
"""Flags that nvcc and NVRTC share, with a value behind ``=`` or in the next word."""

WITHOUT_VALUE = {
    *("-G", "--device-debug", "-lineinfo", "--generate-line-info", "-use_fast_math", "--use_fast_math"),
    *("-extra-device-vectorization", "--extra-device-vectorization", "-restrict", "--restrict"),
    *("-w", "--disable-warnings", "-err-no", "--display-error-number", "-no-err-no", "--no-display-error-number"),
}
"""Flags that nvcc and NVRTC share, without a value."""

JOINED = re.compile(r"-[DUI].")
"""A flag with its value in the same word."""

OF_THE_HOST = re.compile(r"-O[0-3]?|--optimize=[0-3]|-res-usage|--resource-usage|-Wno-deprecated-gpu-targets")
"""Flags of nvcc that make no difference here: they are for the host's code, or ask for what is reported anyway."""

WIDE_SHARED = "--sharedmem32=0"
"""What makes nvcc (13.0, behind -Xcudafe) compile as NVRTC always does, with addresses of shared memory of 64 bits. The
machine code of both is equal then; otherwise nvcc computes these addresses in 32 bits, and registers may differ."""


class NvrtcJob(DeviceJob):
    """One run of NVRTC."""

    def options(self, fixed: Sequence[str]) -> list[str]:
        """NVRTC's options; what NVRTC does not have among the flags is left as it is.

        Arguments:
            fixed: those of every run, see :meth:`Nvrtc.options`.
        """
        report = [] if is_ptx(self.arch) else ["--ptxas-options=-v"]
        own = [f"-arch={self.arch}", "-std=c++17", *report]
        return [*own, *(word for words in _parted(self.flags) for word in words[1]), *fixed]

    def arguments(
        self, process: Sequence[str], library: str, fixed: Sequence[str], output: str, own: Sequence[str]
    ) -> list[str]:
        """The command.

        Arguments:
            process: the program that runs NVRTC.
            library: path of NVRTC.
            fixed: as for :meth:`options`.
            output: the file to make.
            own: further options of the program.
        """
        return [*process, f"--library={library}", f"--output={output}", *own, *self.options(fixed), "device.cu"]

    def command(self, nvrtc: Nvrtc) -> list[str]:
        """The command as other tools may read it, without a precompiled header."""
        return self.arguments(compiler_process(), nvrtc.library, nvrtc.options(), self.output, [])


@dataclass(frozen=True)
class HeaderStore:
    """The folder of precompiled headers, which are of 60 MB each.

    Arguments:
        folder: where they are.
        limit: bytes that they may have together.
    """

    folder: Path
    limit: int

    @property
    def has_room(self) -> bool:
        """Whether it can keep any."""
        return self.limit >= SMALLEST_STORE

    def trim(self) -> None:
        """Remove what was not used for longest until the rest is within the limit."""
        files = []
        for path in self.folder.glob("[!.]*.pch"):
            try:
                status = path.stat()
            except OSError:  # somebody else removed it
                continue
            files.append((status.st_mtime, status.st_size, path))
        total = 0
        for _, size, path in sorted(files, reverse=True):
            total += size
            if total > self.limit:
                _remove(path)


def compile_with_nvrtc(
    job: NvrtcJob, nvrtc: Nvrtc, scratch: Path, tools: RunsTools, subject: str, store: HeaderStore | None = None
) -> CompiledCode:
    """Compile ``device.cu``, and leave the output, its resource usage (JSON) and the command (a script) in ``scratch``.

    Arguments:
        job: what to compile, and how.
        nvrtc: the compiler.
        scratch: a folder on the same file system as the outputs' last place.
        tools: runs it.
        subject: what is made, for the measurements of memory; the same in every build.
        store: keeps precompiled headers; None: none are used.

    Raises:
        SettingsError: NVRTC does not have one of the flags.
        KernelwrightError: as :meth:`ToolRunner.run`; the message has the command, its output and the source's path.
    """
    require_flags(job.flags, job.where)
    source = job.folder / "device.cu"
    own, notes = header_options(job, nvrtc, source, store) if store is not None else ([], [])
    try:
        result = _run(job, nvrtc, scratch, tools, subject, own)
    except ToolError as error:
        if not own or -error.status not in CRASHES:
            raise
        notes.append(f"a precompiled header is not used: NVRTC crashed with it (signal {-error.status})")
        _remove(Path(own[-1].partition("=")[2]))
        result = _run(job, nvrtc, scratch, tools, subject, [])
    lines = re.findall(rf"^{NOTE} (.*)$", result.output, re.M)
    if store is not None and "is made" in lines:
        store.trim()
    notes += [f"a precompiled header {text}" for text in lines if text not in ("is used", "is made")]
    write_usage(job, result.output, scratch)
    (scratch / f"compile_{job.arch}.sh").write_text(script(job, nvrtc))
    headers = included_files(source, job.flags, job.folder) if can_include(job.flags) else []
    return CompiledCode(result, as_dependencies(headers, tools.project_root, job.packages), tuple(notes))


def _run(job: NvrtcJob, nvrtc: Nvrtc, scratch: Path, tools: RunsTools, subject: str, own: Sequence[str]) -> ToolResult:
    process, output = compiler_process(), str(scratch / job.output)
    command = job.arguments(process, nvrtc.library, nvrtc.options(), output, own)
    remedy = f"the source is {job.folder / 'device.cu'}; mend the definition that it was lowered from, or the flags"
    needs = _needs(job, nvrtc, scratch)
    given = (command, job.folder, scratch, job.where, remedy)
    # The user has not asked for a Python.
    return tools.run(ToolCall(*given, kind="nvrtc", subject=subject, elsewhere=needs, called="NVRTC"))


def _needs(job: NvrtcJob, nvrtc: Nvrtc, scratch: Path) -> Elsewhere | None:
    """What a run on another machine needs, if the source includes headers of CUDA only.

    A precompiled header is no use there: it counts for one interpreter on one machine.
    """
    if not can_trim(job.flags) or can_include(job.flags):
        return None
    output = scratch / job.output
    command = job.arguments(compiler_process(), nvrtc.library, nvrtc.options(), str(output), [])
    return Elsewhere(shared_nvrtc(nvrtc), (job.folder / "device.cu",), (output,), tuple(command))


def _remove(path: Path) -> None:
    """Remove a file, if that is possible: one that stays costs time or room, and no more."""
    with contextlib.suppress(OSError):
        path.unlink()


def require_flags(flags: Sequence[str], where: Where) -> None:
    """Raise a SettingsError for a flag of nvcc that NVRTC does not have."""
    for flag, words in _parted(flags):
        if words and not _is_known(flag):
            remedy = "remove it from nvcc_flags or from the kernel's flags, or set cuda_compiler to nvcc"
            raise SettingsError(f"NVRTC has no flag {flag!r}, or none that gives a cubin or PTX", where, remedy)


def _parted(flags: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words to give to NVRTC: itself and perhaps its value, or nothing."""
    words = iter(flags)
    for word in words:
        if OF_THE_HOST.fullmatch(word):
            yield word, []
        elif word == "-Xcudafe":
            passed_on = next(words, "")
            yield f"{word} {passed_on}", [] if passed_on == WIDE_SHARED else [word, passed_on]
        elif word in WITH_VALUE:
            value = next(words, None)
            yield word, [word] if value is None else [word, value]
        else:
            yield word, [word]


def _is_known(flag: str) -> bool:
    return flag in WITHOUT_VALUE or flag.partition("=")[0] in WITH_VALUE or JOINED.match(flag) is not None


def header_options(job: NvrtcJob, nvrtc: Nvrtc, source: Path, store: HeaderStore) -> tuple[list[str], list[str]]:
    """The options for a precompiled header, and notes for the user; no options: this source cannot have one."""
    text = source.read_text(encoding="utf-8", errors="surrogateescape")
    number = head_lines(text)
    if not number or not store.has_room or can_include(job.flags):
        return [], []
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return [], [f"precompiled headers are not used: {error}"]
    head = "\n".join(text.split("\n")[:number])
    return [f"--head={number}", f"--pch={store.folder / _key(job, nvrtc, head)}.pch"], []


def _key(job: NvrtcJob, nvrtc: Nvrtc, head: str) -> str:
    """Name of a precompiled header: digest of everything that decides its content.

    That includes what decides where a process has its memory: a header made by another Python is refused.
    """
    machine = [sys.version, sys.executable, os.uname().release, nvrtc.library]
    parts = [PCH_REVISION, nvrtc.identity, job.options(nvrtc.options()), machine, head]
    return hashlib.sha256(canonical_json(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def script(job: NvrtcJob, nvrtc: Nvrtc) -> str:
    """A shell script that repeats the run by hand; it names no path of this machine."""
    process = [stand_in("PYTHON"), "-I", "-S", "-B", stand_in("NVRTC_COMPILE")]
    arguments = by_hand(job).arguments(
        process, stand_in("NVRTC"), nvrtc.options(stand_in("CUDA_INCLUDE")), job.output, []
    )
    return shell_script(f"NVRTC {nvrtc.version}", ".", arguments, cuda=nvrtc.version)
