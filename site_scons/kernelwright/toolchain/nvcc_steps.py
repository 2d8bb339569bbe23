"""The programs that nvcc runs for a source, as its dry run shows them, so that they can be run without nvcc.

``nvcc --dryrun`` prints variables that it sets and then the commands that it has a shell run, each after ``#$ ``. For
PTX they are the host compiler, which preprocesses, and cicc; for a cubin ptxas follows. PTX of an arch such as
``compute_90a`` is given to ptxas as well, which only looks for errors then. This was read from the output of CUDA 13.0.
What does not look like it is refused, and then nvcc is run itself.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

LINE = re.compile(r"^#\$ (.*)$", re.M)
VARIABLE = re.compile(r"(\w+)=(.*)")
PROGRAM = re.compile(r'((?:"[^"]*"|[^\s"])+)\s')
OUTPUT = re.compile(r'-o "([^"]+)"\s*$')
FILES = re.compile(r'"([^"]+)" -o "([^"]+)"\s*$')
BUILT_IN_HEADER = re.compile(r' -include "cuda_runtime\.h"')

EXPORTED = ("PATH", "LD_LIBRARY_PATH", "CICC_PATH", "NVVMIR_LIBRARY_DIR")
"""The variables that the programs see, or that their commands name. nvcc has put its own folder first in ``PATH``."""

PROGRAMS = {"ptx": (["cicc"], ["cicc", "ptxas"]), "cubin": (["cicc", "ptxas"],)}
"""Kind of output -> the programs that may be run on what the host compiler has preprocessed."""

OF_CUBINS_ONLY = re.compile(r' --(?:gen_c_file|stub_file|gen_device_file)_name "[^"]*"')
"""Flags for files that cicc writes beside the PTX of a cubin. No program reads these files."""

SOURCE_PATH = re.compile(r'(?<= --orig_src_path_name ")((?:\\.|[^"\\])*)/(?=[^"/]*")')
"""The folder of the source, which nvcc tells cicc for debug information."""

TEMPORARY = re.compile(r"tmpxft_[0-9a-f]+_[0-9a-f]+-(\d+)_")
"""What the names of temporary files begin with: numbers of the process, and one that counts them."""


@dataclass(frozen=True)
class Steps:
    """What nvcc has a shell run for a source, in its folder.

    Arguments:
        scratch: the folder of what the programs pass on and make, as it is written in the commands.
        variables: what the commands are run with.
        commands: preprocessing, compiling to PTX, and perhaps a run of ptxas.
    """

    scratch: str
    variables: Mapping[str, str]
    commands: tuple[str, ...]

    def moved(self, folder: str, scratch: str) -> Steps:
        """The steps for a source of the same name in another folder; empty: cicc does not learn the folder.

        cicc makes names of that path for declarations in a namespace without a name, so that they differ between files.
        """
        # nvcc puts it between double quotes as it is, where a shell would act on it.
        place = re.sub(r'([$`"\\])', r"\\\1", os.path.realpath(folder)) + "/" if folder else ""
        commands = (SOURCE_PATH.sub(lambda match: place, line.replace(self.scratch, scratch)) for line in self.commands)
        return Steps(scratch, self.variables, tuple(commands))

    def front_end(self) -> list[str]:
        """The command that makes PTX."""
        return self._by_shell(" && ".join(self.commands[:2]))

    def reading(self, preprocessor_flags: str = "") -> list[str]:
        """The command that preprocesses the source.

        Arguments:
            preprocessor_flags: what the host compiler gets besides, as a shell takes it.
        """
        command = self.commands[0]
        if preprocessor_flags:
            command = command.replace(" -E ", f" -E {preprocessor_flags} ", 1)
        return self._by_shell(command)

    @property
    def preprocessed(self) -> str:
        """Name of the file that the front end reads, as a path from the folder of the source."""
        return _output(self.commands[0])

    @property
    def ptx(self) -> str:
        """Name of the PTX file, in the same way."""
        return _output(self.commands[1])

    def preprocessing(self, source: str, output: str, *, has_built_in: bool, macros: bool) -> list[str]:
        """The command that preprocesses a part of a source.

        Arguments:
            source, output: files, as a shell takes them from the folder of the source.
            has_built_in: nvcc's own header comes first; the parts behind the first have what they need of it.
            macros: those that are defined at its end are wanted, too.

        Raises:
            ValueError: the command has another form.
        """
        command, files = FILES.subn(lambda match: f'"{source}" -o "{output}"', self.commands[0])
        without, has_header = BUILT_IN_HEADER.subn("", command)
        if not files or not has_header:
            raise ValueError("the command that preprocesses has another form")
        command = command if has_built_in else without
        return self._by_shell(command.replace(" -E ", " -E -dD ", 1) if macros else command)

    def translating(self, *, checked: bool) -> list[str]:
        """The command that makes PTX of what was preprocessed.

        Arguments:
            checked: whether ptxas looks for errors, if it would with nvcc.
        """
        return self._by_shell(" && ".join(self.commands[1:] if checked else self.commands[1:2]))

    def assembling(self, ptx: str) -> list[str]:
        """The command that makes a cubin, of another PTX file than nvcc would have made."""
        return self._by_shell(self.commands[2].replace(f'"{_output(self.commands[1])}"', f'"{ptx}"', 1))

    @property
    def decisive(self) -> list[str]:
        """The part of the commands that decides the PTX: the first two, without the names of temporary files."""
        named = (OUTPUT.sub("", OF_CUBINS_ONLY.sub("", command)) for command in self.commands[:2])
        return [" ".join(TEMPORARY.sub("", command).split()) for command in named]

    def _by_shell(self, commands: str) -> list[str]:
        variables = "".join(f"export {name}={shlex.quote(value)}; " for name, value in self.variables.items())
        return ["/bin/sh", "-c", f"{variables}{commands}"]


def read_steps(text: str, kind: str, scratch: str) -> Steps:
    """The steps in the output of a dry run.

    Arguments:
        text: what ``nvcc --dryrun`` printed.
        kind: what it would make: ``ptx`` or ``cubin``.
        scratch: the folder for temporary files and the output, as nvcc was given it.

    Raises:
        ValueError: it has other steps, or cannot be read.
    """
    variables: dict[str, str] = {}
    commands = []
    for line in LINE.findall(text):
        if variable := VARIABLE.fullmatch(line):
            variables[variable[1]] = variable[2]
        else:
            commands.append(line)
    names = [program_of(command) for command in commands]
    if names[1:] not in PROGRAMS[kind] or " -E " not in commands[0] or not SOURCE_PATH.search(commands[1]):
        raise ValueError(f"it would run {', '.join(names) or 'nothing'}")
    for command in commands if kind == "cubin" else commands[:2]:
        _output(command)
    return Steps(scratch, {name: variables[name] for name in EXPORTED if name in variables}, tuple(commands))


def program_of(command: str) -> str:
    """The name of the program that a command runs."""
    match = PROGRAM.match(command)
    return match[1].replace('"', "").rpartition("/")[2] if match else ""


def _output(command: str) -> str:
    match = OUTPUT.search(command)
    if match is None:
        raise ValueError(f"{program_of(command)} would make no file that has a name")
    return match[1]
