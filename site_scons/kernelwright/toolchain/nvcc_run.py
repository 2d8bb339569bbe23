"""Runs nvcc: CUDA source to a cubin or to PTX, with the resource usage that ptxas reports as data."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ..core.arch import image_file, is_ptx
from ..core.dependencies import IN_PACKAGE, dependency_name
from ..core.errors import ToolError, Where
from ..core.files import pretty_json
from ..core.request import ASIDE
from ..processes.environment import place_for_shell
from ..processes.tools import Elsewhere, RunsTools, ToolCall, ToolResult
from .headers import Search, can_include, headers_in, options_files
from .host_compiler import HostCompiler
from .nvcc import Nvcc

USAGE = {
    "registers": r"Used (\d+) registers",
    "stack_bytes": r"(\d+) bytes stack frame",
    "spill_store_bytes": r"(\d+) bytes spill stores",
    "spill_load_bytes": r"(\d+) bytes spill loads",
    "shared_bytes": r"(\d+) bytes smem",
    "constant_bytes": r"(\d+) bytes cmem\[0\]",
}
"""Patterns in the output of ``ptxas -v``; what it does not mention is 0."""


LISTING = "headers.d"
"""Name of the list of headers that a run leaves in the folder for temporary files."""


@dataclass(frozen=True)
class ToolHeaders:
    """Headers that come with the tool of a front end, whose identity stands for their contents.

    Arguments:
        name: of the tool, for scripts.
        path: its folder.
        folders: where the compiler looks for headers, below that.
        standard: the standard of C++ that they are written in.
    """

    name: str
    path: str = field(metadata=ASIDE)
    folders: tuple[str, ...]
    standard: str

    def flags(self, path: str) -> list[str]:
        """The flags that make the compiler find them.

        Arguments:
            path: the folder of the tool.
        """
        return [flag for folder in self.folders for flag in ("-I", f"{path}/{folder}")]


@dataclass(frozen=True)
class DeviceJob:
    """One run of a CUDA compiler.

    Arguments:
        arch: ``sm_90a`` for a cubin, ``compute_80`` for PTX.
        flags: further flags, as nvcc has them.
        folder: the folder of ``device.cu``, in which it runs, so that no absolute path gets into its output.
        where: the place for error messages.
        headers: those that come with a tool, if the source includes some.
        packages: the folders in installed packages among the flags, and their names, which a script has for them.
    """

    arch: str
    flags: tuple[str, ...]
    folder: Path = field(metadata=ASIDE)
    where: Where = field(metadata=ASIDE)
    headers: ToolHeaders | None = None
    packages: Mapping[str, str] = field(default_factory=dict, metadata=ASIDE)

    @property
    def output(self) -> str:
        """Name of the file that it makes."""
        return image_file(self.arch)

    @property
    def outputs(self) -> tuple[str, str, str]:
        """Names of all files that a run leaves: with the resource usage, and the script."""
        return self.output, f"{self.arch}.json", f"compile_{self.arch}.sh"


Job = TypeVar("Job", bound=DeviceJob)


@dataclass(frozen=True)
class NvccJob(DeviceJob):
    """One run of nvcc.

    Arguments:
        has_portable_names: whether the names of functions and variables must not depend on the folder. Those in a
            namespace without a name do with nvcc, but not with the programs that it runs.
    """

    has_portable_names: bool = False

    def arguments(self, nvcc: str, host_compiler: str, output: str, headers: str | None = None) -> list[str]:
        """The command, with the given executables and output file.

        Arguments:
            headers: the folder of the tool with the headers; None: where it is.
        """
        kind = ["-ptx"] if is_ptx(self.arch) else ["-cubin", "-Xptxas", "-v"]
        fixed = ["-ccbin", host_compiler, f"-std={self.headers.standard if self.headers else 'c++17'}", "-O3"]
        folders = self.headers.flags(self.headers.path if headers is None else headers) if self.headers else []
        return [nvcc, *fixed, *kind, f"-arch={self.arch}", *folders, *self.flags, "-o", output, "device.cu"]


@dataclass(frozen=True)
class CompiledCode:
    """The result of a run of a CUDA compiler, besides its files.

    Arguments:
        result: what it printed and what it took.
        headers: the names of the files that flags made it read, sorted (see ``core.dependencies``). CUDA's and the
            system's headers are not among them, because the identities of the tools stand for those.
        notes: what the user may want to know about the run.
        texts: the files that it read of those that the definition has written.
    """

    result: ToolResult
    headers: tuple[str, ...]
    notes: tuple[str, ...] = ()
    texts: frozenset[Path] = frozenset()


@dataclass(frozen=True)
class NvccRun:
    """What a run of nvcc, or of the programs that it runs, works with.

    Arguments:
        job: what to compile, and how.
        nvcc, host_compiler: the compilers.
        scratch: a folder on the same file system as the outputs' last place.
        tools: runs programs.
        subject: what is made, for the measurements of memory; the same in every build.
        obstacle: why nvcc is run as a whole; empty: the programs that it runs can be run one by one.
    """

    job: NvccJob
    nvcc: Nvcc
    host_compiler: HostCompiler
    scratch: Path
    tools: RunsTools
    subject: str
    obstacle: str = ""

    def place(self, name: str) -> str:
        """A file in the scratch folder, as a command names it."""
        return place_for_shell(self.scratch / name, self.job.folder)

    @property
    def command(self) -> list[str]:
        """The command of nvcc."""
        return self.job.arguments(self.nvcc.path, self.host_compiler.path, self.place(self.job.output))

    def run(
        self, command: Sequence[str], remedy: str = "", elsewhere: Elsewhere | None = None, subject: str = ""
    ) -> ToolResult:
        """Run a command; see :meth:`ToolRunner.run`."""
        given = (command, self.job.folder, self.scratch, self.job.where, remedy)
        called = "nvcc" if command[0] == "/bin/sh" else ""  # the user has not asked for a shell
        subject = subject or self.subject
        return self.tools.run(ToolCall(*given, kind="nvcc", subject=subject, elsewhere=elsewhere, called=called))

    def write_results(self, output: str) -> None:
        """Leave the resource usage, which is in the output of ptxas, and the script that repeats the run."""
        write_usage(self.job, output, self.scratch)
        (self.scratch / f"compile_{self.job.arch}.sh").write_text(script(self.job, self.nvcc))

    def headers(self) -> tuple[str, ...]:
        """The headers in the list that the run has left, as :class:`CompiledCode` has them."""
        job, places = self.job, (self.nvcc.path, self.host_compiler.path)
        named = Search.of(job.flags, job.folder).named(job.packages)
        paths = headers_in(self.scratch / LISTING, job.folder, *places, job.where, named)
        if job.headers:
            paths = [path for path in paths if not path.is_relative_to(job.headers.path)]
        read = {*paths, *options_files(job.flags, job.folder)} - {job.folder / "device.cu"}
        return as_dependencies(read, self.tools.project_root, job.packages)


def compile_device_code(run: NvccRun) -> CompiledCode:
    """Compile ``device.cu``, and leave the output, its resource usage (JSON) and the command (a script) in ``scratch``.

    Raises:
        KernelwrightError: as :meth:`ToolRunner.run`; the message has the command, its output and the source's path.
    """
    job, command = run.job, run.command
    if can_include(job.flags):
        # The target's name is given because nvcc would write the path of the output there without quoting it.
        command += ["-MD", "-MF", run.place(LISTING), "-MT", "device"]
    remedy = f"the source is {job.folder / 'device.cu'}; mend the definition that it was lowered from, or the flags"
    if job.has_portable_names:  # a source of the user's own
        remedy = f"mend the source, the definition or the flags; {job.folder / 'device.cu'} includes the source"
    try:
        # Never on another machine: nvcc makes names of the folder that it runs in.
        result = run.run(command, remedy)
    except ToolError as error:
        error.detail = error.detail and _from_project(error.detail, job.folder, run.tools.project_root)
        raise
    run.write_results(result.output)
    headers = run.headers() if can_include(job.flags) else ()
    return CompiledCode(result, headers, (f"nvcc is run as a whole: {run.obstacle}",) if run.obstacle else ())


def _from_project(text: str, folder: Path, project_root: Path) -> str:
    """What nvcc said, with the places of files of the project as its users know them, and not from where nvcc ran."""
    return re.sub(rf"^{re.escape(os.path.relpath(project_root, folder))}/", "", text, flags=re.M)


def write_usage(job: DeviceJob, output: str, scratch: Path) -> None:
    """Write the resource usage that ptxas reported in a compiler's output to ``<arch>.json``."""
    usage = {"schema": 1, "arch": job.arch, "kernels": resource_usage(output)}
    (scratch / f"{job.arch}.json").write_text(pretty_json(usage))


def as_dependencies(paths: Iterable[Path], project_root: Path, packages: Mapping[str, str]) -> tuple[str, ...]:
    """Absolute paths as :class:`CompiledCode` has them."""
    return tuple(sorted(dependency_name(path, project_root, packages) for path in paths))


def resource_usage(output: str) -> dict[str, dict[str, int]]:
    """Registers, spills (bytes), stack and shared memory (bytes) of each kernel, from the output of ``ptxas -v``."""
    usage: dict[str, dict[str, int]] = {}
    for part in re.split(r"Compiling entry function '", output)[1:]:
        name = part.split("'", 1)[0]
        matches: dict[str, Any] = {key: re.search(pattern, part) for key, pattern in USAGE.items()}
        usage[name] = {key: int(match[1]) if match else 0 for key, match in matches.items()}
    return dict(sorted(usage.items()))


def by_hand(job: Job) -> Job:
    """The job with stand-ins for folders in installed packages, for a script."""
    return replace(
        job, flags=tuple(stand_in(job.packages[word]) if word in job.packages else word for word in job.flags)
    )


def script(job: NvccJob, nvcc: Nvcc) -> str:
    """A shell script that repeats the run by hand; it names no path of this machine."""
    headers = stand_in(job.headers.name) if job.headers else None
    arguments = by_hand(job).arguments(stand_in("NVCC"), stand_in("CC"), job.output, headers)
    return shell_script(f"nvcc {nvcc.version}", ".", arguments, cuda=nvcc.version)


def shell_script(made_with: str, folder: str, *commands: Sequence[str], cuda: str = "") -> str:
    """A script that runs commands in ``folder``, relative to itself.

    Arguments:
        cuda: version of the CUDA tool that the commands run, such as ``13.0.88``, as a machine may have several.
        commands: one after the other, with stand-ins for paths.
    """
    names = dict.fromkeys(name for command in commands for word in command for name in STAND_IN.findall(word))
    variables = dict(zip(names, _variables(list(names)), strict=True))
    tools = {name: one for name, one in variables.items() if name not in (HERE, PWD)}
    of = {name: f" --cuda {'.'.join(cuda.split('.')[:2])}" for name in OF_CUDA if cuda}
    told = {name: f"{_tool(name)}{of.get(name, '')}" for name in tools}
    uses = "".join(f"{one}=${{{one}:-$(python3 -m kernelwright tool {told[name]})}}\n" for name, one in tools.items())
    lines = [" ".join(_quoted(word, variables) for word in command) for command in commands]
    here = f'{HERE}=$(cd "$(dirname "$0")" && pwd)\n' if HERE in variables else ""
    place = f'"${HERE}/{folder}"' if here else f'"$(dirname "$0")/{folder}"'
    head = f"#!/bin/sh\n# Repeats this step by hand. Made with {made_with}.\nset -e\n{here}cd {place}\n"
    return head + uses + "".join(f"{line}\n" for line in [*lines[:-1], f"exec {lines[-1]}"])


OF_CUDA = ("NVCC", "FATBINARY", "NVRTC", "CUDA_INCLUDE")
"""The stand-ins for what belongs to a CUDA toolkit."""

HERE = "HERE"
"""Stands for the folder of a script, whatever folder its commands run in."""

PWD = "PWD"
"""Stands for the folder that its commands run in."""

STAND_IN = re.compile("\0([^\0]+)\0")


def stand_in(name: str) -> str:
    """A placeholder for a path of this machine in a command of :func:`shell_script`: a word, or a part of one.

    The script takes the path from the variable of that name, or asks ``kernelwright tool`` for it. No flag can look
    like this: what a program is given has no NUL in it.

    Arguments:
        name: a variable, such as ``NVCC``, or a folder in an installed package, as definitions name it.
    """
    return f"\0{name}\0"


def _variables(names: Sequence[str]) -> list[str]:
    """The variables of a script for what is stood in for: ``PACKAGE_1`` and so on for folders in packages."""
    packages = [name for name in names if name.startswith(IN_PACKAGE)]
    return [f"PACKAGE_{packages.index(name) + 1}" if name in packages else name for name in names]


def _tool(name: str) -> str:
    return shlex.quote(name) if name.startswith(IN_PACKAGE) else name.lower()


def _quoted(word: str, variables: Mapping[str, str]) -> str:
    """A word as a shell takes it, with the variables that its stand-ins mean."""
    if not STAND_IN.search(word):
        return shlex.quote(word)
    parts = enumerate(STAND_IN.split(word))
    return "".join(f'"${variables[part]}"' if number % 2 else shlex.quote(part) for number, part in parts if part)
