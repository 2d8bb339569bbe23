"""Compiles sources that have host code of their own: nvcc makes an object of each, with device code of all archs in it.

What nvcc itself makes differs from run to run and from folder to folder: it numbers temporary files by its process,
and makes names of the folder's path. So the programs that it would run are run with fixed names and no folder.
Whatever goes wrong on the way, nvcc is run, and its error is the one that counts.

What the host's compiler gets and the device code of each arch are made at the same time, as far as there are cores for
it. nvcc makes one after the other, because cudafe++ chooses the name of the module, which all of them need; here it is
chosen before.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ..core.arch import is_ptx, virtual_arch
from ..core.errors import ToolError, Where
from ..core.files import pretty_json
from ..core.request import ASIDE
from ..processes.environment import place_for_shell
from ..processes.tools import RunsTools, ToolCall, ToolResult, together
from .headers import Search, headers_in, options_files
from .host_compiler import HostCompiler
from .nvcc import Nvcc
from .nvcc_run import HERE, CompiledCode, as_dependencies, resource_usage, shell_script, stand_in
from .nvcc_steps import EXPORTED, LINE, TEMPORARY, VARIABLE, program_of

PROGRAMS = {"cudafe++", "cicc", "ptxas", "fatbinary", "rm"}
"""The programs besides the host compiler that nvcc runs for an object."""

NAMED = ("cudafe++", "cicc", "ptxas", "fatbinary")
"""Those of them that an error about time names; the host compiler only preprocesses for most of them."""

LISTING = "headers-{}.d"
"""Names of the lists of headers that runs of the preprocessor leave."""

SOURCE = re.compile(
    r'(?<= --orig_src_path_name ")(?:\\.|[^"\\])*(?=")|(?<= --orig_src_file_name ")/(?:\\.|[^"\\])*(?=")'
)
"""The path of the source, of which cudafe++ and cicc make names of what is in this file only."""

TEXT = re.compile(r'(?<= --orig_src_(?:path|file)_name ")(?:\\.|[^"\\])*(?=")')
"""The same of a source that a definition has written, which is in another folder when it is compiled on demand."""

MODULE = re.compile(r'--gen_module_id_file (?=--module_id_file_name "(?:[^"]*/)?([^"/]+)")')
"""How cudafe++ is told to write the name of the module into a file; without it, it reads the file."""

PER_ARCH = re.compile(r"(?=Compiling entry function '[^']*' for '(sm_\w+)')")
"""What ptxas begins its report of a function with."""


@dataclass(frozen=True)
class ObjectJob:
    """One source that becomes an object.

    Arguments:
        source: path of the source, relative to the folder.
        name: the name of the object, without its ending.
        archs: what device code is made for: ``sm_90a`` for a cubin, ``compute_80`` for PTX.
        flags: flags of nvcc.
        folder: the project's folder, in which the programs run.
        where: the place for error messages.
        known: folders of headers that something else stands for, which are no dependencies, and their names.
        packages: folders in installed packages, and their names. ``__FILE__`` has the names of both kinds of folders.
        up: the folder of the project, relative to that of the outputs.
        shown: the source, as progress lines have it.
        texts: folders of what a definition has written, as commands name them, and names that are equal everywhere.
    """

    source: str
    name: str
    archs: tuple[str, ...]
    flags: tuple[str, ...]
    folder: Path = field(metadata=ASIDE)
    where: Where = field(metadata=ASIDE)
    known: Mapping[str, str] = field(default_factory=dict, metadata=ASIDE)
    packages: Mapping[str, str] = field(default_factory=dict, metadata=ASIDE)
    up: str = "."
    shown: str = field(default="", metadata=ASIDE)
    texts: Mapping[str, str] = field(default_factory=dict, metadata=ASIDE)

    @property
    def is_text(self) -> bool:
        """Whether a definition has written the source."""
        return self.source.rpartition("/")[0] in self.texts

    @property
    def outputs(self) -> tuple[str, str, str]:
        """Names of the files that a run leaves: with what ptxas reported, and the script."""
        return f"{self.name}.o", f"{self.name}.json", f"compile_{self.name}.sh"

    def arguments(self, nvcc: str, host_compiler: str, output: str) -> list[str]:
        """The command, with the given executables and output file."""
        codes = [f"arch={virtual_arch(arch)},code={arch}" for arch in self.archs]
        targets = [word for code in codes for word in ("-gencode", code)]
        # Each function has a section, so that the linker drops those that nobody calls, with what these call.
        of_host = "-fPIC,-ffunction-sections,-fdata-sections"
        standard = [] if any(flag.startswith("-std=") for flag in self.flags) else ["-std=c++17"]
        fixed = ["-ccbin", host_compiler, *standard, "-O3", "-Xcompiler", of_host, "-Xptxas", "-v"]
        return [nvcc, "-c", *fixed, *targets, *self.flags, "-o", output, self.source]


def compile_object(
    job: ObjectJob,
    nvcc: Nvcc,
    host_compiler: HostCompiler,
    scratch: Path,
    tools: RunsTools,
    by_hand: ObjectJob,
) -> CompiledCode:
    """Compile a source, and leave the object, what ptxas reported (JSON) and the command (a script) in ``scratch``.

    Arguments:
        by_hand: the same as the script has it, without paths of this machine.

    Raises:
        KernelwrightError: as :meth:`ToolRunner.run`; the message has what nvcc says, with file and line.
    """
    place = place_for_shell(scratch, job.folder)
    command = job.arguments(nvcc.path, host_compiler.path, f"{place}/{job.name}.o")
    subject, note = job.shown, ""

    def run(command: Sequence[str], part: str = "", called: str = "") -> ToolResult:
        remedy = f"mend {f'what the definition writes into {job.source}' if job.is_text else job.source}, or the flags"
        named = f"{subject}{part}"
        about: dict[str, str] = {"kind": "nvcc", "subject": named, "called": called}
        return tools.run(ToolCall(command, job.folder, scratch, job.where, remedy, **about))  # type: ignore[arg-type]

    def run_part(part: tuple[str, str]) -> ToolResult:
        label, commands = part
        # Nobody has asked for a shell, and what takes too long is one of these.
        names = [name for name in NAMED if re.search(rf'{re.escape(name)}"?\s', commands)]
        names += [Path(host_compiler.path).name] if " -c " in commands else []
        called = f"{' or '.join(names)} for {subject}"
        return run(["/bin/sh", "-c", commands], f" {label}", called)

    try:
        dry = run([command[0], "--dryrun", *command[1:]])
        programs = programs_of(dry.output, job, place)
        if programs.module_file:
            (scratch / programs.module_file).write_text(module_name(job), encoding="utf-8")
        with ThreadPoolExecutor(max(1, len(programs.first))) as threads:
            results = list(threads.map(run_part, programs.first))
        result = together([*results, run_part(("object", programs.last))])
    except (ValueError, ToolError) as error:
        listing = place_for_shell(scratch / LISTING.format(0), job.folder)
        result = run([*command, "-MD", "-MF", listing, "-MT", "object"])
        what = str(error) if isinstance(error, ValueError) else f"the programs that it runs failed: {error}"
        note = f"nvcc is run as a whole for {job.source}, and what it makes differs from run to run: {what}"
    report = {"schema": 1, "archs": usage_by_arch(result.output, job.archs)}
    (scratch / f"{job.name}.json").write_text(pretty_json(report), encoding="utf-8")
    script = by_hand.arguments(stand_in("NVCC"), stand_in(host_compiler.named("CC")), f"{stand_in(HERE)}/{job.name}.o")
    text = shell_script(f"nvcc {nvcc.version}", job.up, script, cuda=nvcc.version)
    (scratch / f"compile_{job.name}.sh").write_text(text)
    paths = set(_listed(job, nvcc, host_compiler, scratch)) | set(options_files(job.flags, job.folder))
    texts = frozenset(path for path in paths if _is_below(path, (f"{job.folder / folder}" for folder in job.texts)))
    own = {path for path in paths - texts if not _is_below(path, job.known)}
    headers = as_dependencies(own, tools.project_root, job.packages)
    return CompiledCode(result, headers, (note,) if note else (), texts)


@dataclass(frozen=True)
class Programs:
    """What a shell runs in place of nvcc, in the folder of the project.

    Arguments:
        first: commands that do not need each other, and what each makes.
        last: those that need what the first ones make.
        module_file: name of the file with the name of the module; empty: none is needed.
    """

    first: tuple[tuple[str, str], ...]
    last: str
    module_file: str = ""


def module_name(job: ObjectJob) -> str:
    """The name of a module, of which the compilers make names of what is only in it, in the form of cudafe++'s own."""
    name, digest = re.sub(r"\W", "_", job.name), hashlib.sha256(job.name.encode()).hexdigest()
    return f"_{digest[:8]}_{len(name)}_{name}_{digest[8:16]}"


def programs_of(dry_run: str, job: ObjectJob, scratch: str) -> Programs:
    """The programs that nvcc would run.

    Arguments:
        dry_run: what ``nvcc --dryrun`` printed.
        scratch: the folder for temporary files, as nvcc was given it.

    Raises:
        ValueError: nvcc would run other programs than are known, or in another order.
    """
    variables, commands = [], []
    for line in LINE.findall(dry_run):
        if variable := VARIABLE.fullmatch(line):
            variables += [f"export {variable[1]}={shlex.quote(variable[2])}; "] if variable[1] in EXPORTED else []
        elif program_of(line) != "rm":
            commands.append(line)
    if not commands:
        raise ValueError("its dry run shows no programs")
    host = program_of(commands[0])
    unknown = {program_of(line) for line in commands} - PROGRAMS - {host}
    if unknown:
        raise ValueError(f"it would run {', '.join(sorted(unknown))}")
    fixed = [_fixed(line, number, job, scratch, host) for number, line in enumerate(commands)]
    names = [program_of(command) for command in commands]

    def joined(parts: Sequence[str]) -> str:
        return "".join(variables) + " && ".join(parts)

    if len(commands) == 1:
        return Programs((), joined(fixed))
    module = MODULE.search(fixed[1])
    starts = [number for number, name in enumerate(names[:-2]) if name == host]
    if names[:2] != [host, "cudafe++"] or names[-2:] != ["fatbinary", host] or starts[:2] != [0, 2] or not module:
        raise ValueError(f"it would run {', '.join(names)} in this order")
    fixed[1] = MODULE.sub("", fixed[1])
    parts = [joined(fixed[begin:end]) for begin, end in zip(starts, [*starts[1:], len(fixed) - 2], strict=True)]
    labels = ["host", *(f"device {number}" for number in range(1, len(parts)))]
    return Programs(tuple(zip(labels, parts, strict=True)), joined(fixed[-2:]), module[1])


def _fixed(command: str, number: int, job: ObjectJob, scratch: str, host: str) -> str:
    """A command with names that are the same in each run and folder."""
    command = TEMPORARY.sub(lambda match: f"kw_{match[1]}_", command)
    command = (TEXT if job.is_text else SOURCE).sub(job.name, command)
    if program_of(command) != host:
        return command
    folders = {**job.known, **job.packages, **job.texts}
    maps = " ".join(shlex.quote(f"-fmacro-prefix-map={path}={name}") for path, name in folders.items())
    listing = f"-MD -MF {shlex.quote(f'{scratch}/{LISTING.format(number)}')} -MT object"
    if " -E " in command:
        return command.replace(" -E ", f" -E {maps} {listing} ", 1)
    seed = f"-frandom-seed={shlex.quote(job.name)}"
    if "cudafe1.cpp" not in command:  # C++ without device code, which is compiled in one go
        return command.replace(" -c ", f" -c {seed} {maps} {listing} ", 1)
    # The object has the name of the file that it is compiled from, which must not be that of the scratch folder.
    inside = command.replace(f'"{scratch}/', '"').replace(" -c ", f" -c {seed} ", 1)
    return f"(cd {shlex.quote(scratch)} && {inside})"


def usage_by_arch(output: str, archs: Sequence[str]) -> dict[str, dict[str, dict[str, int]]]:
    """What each device function uses, arch by arch, from the output of ``ptxas -v``."""
    usage: dict[str, dict[str, dict[str, int]]] = {arch: {} for arch in archs if not is_ptx(arch)}
    parts = PER_ARCH.split(output)
    for arch, part in zip(parts[1::2], parts[2::2], strict=True):
        usage.setdefault(arch, {}).update(resource_usage(part))
    return usage


def _is_below(path: Path, folders: Iterable[str]) -> bool:
    return str(path).startswith(tuple(f"{folder}/" for folder in folders))


def _listed(job: ObjectJob, nvcc: Nvcc, host_compiler: HostCompiler, scratch: Path) -> Iterator[Path]:
    named = Search.of(job.flags, job.folder).named(job.packages)
    for listing in sorted(scratch.glob(LISTING.format("*"))):
        yield from headers_in(listing, job.folder, nvcc.path, host_compiler.path, job.where, named)
