"""What every front end promises: a function for each promise, with real builds of a small project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SCONSTRUCT = """\
from kernelwright.scons import generate

env = Environment(tools=[generate])
env.Default(env.KernelPackage("demo", env.Glob("kernels/*.py")))
"""

TIME_LIMIT_S = 30
"""Seconds that a worker gets for a definition that hangs. Starting a worker has to take less, on any machine."""


@dataclass(frozen=True)
class Edit:
    """A change of a file: the first place with a text gets another one.

    Arguments:
        file: its path in the project.
        old, new: the texts.
    """

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Language:
    """A project with one kernel in a language, and edits of it.

    Arguments:
        files: path -> text. The definition file is in ``kernels``.
        settings: the lines of ``[tool.kernelwright]``.
        definition: the path of the definition file.
        returned: how the line begins with which the definition returns, behind its indentation: ``return Program(``.
        comment: an edit that must not change what is made.
        helper: an edit that has to: of a function or a number that the definition imports.
        mistakes: edits that make mistakes, and for each of them a text that its error has.
        python: an interpreter of the environment that has the language.
        variables: those of the environment that builds have besides.
    """

    files: Mapping[str, str]
    settings: str
    definition: str
    returned: str
    comment: Edit
    helper: Edit
    mistakes: Sequence[tuple[Edit, str]]
    python: str = sys.executable
    variables: Mapping[str, str] = field(default_factory=dict)

    def project(self, folder: Path) -> Project:
        """The project in a folder, which is made."""
        files = {"SConstruct": SCONSTRUCT, "pyproject.toml": f"[tool.kernelwright]\n{self.settings}\n", **self.files}
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return Project(self, folder)

    def before_return(self, statement: str) -> Edit:
        """An edit that has the definition do something before it returns."""
        return Edit(self.definition, self.returned, f"{statement}; {self.returned}")


@dataclass(frozen=True)
class Project:
    """The project of a language, in a folder."""

    language: Language
    folder: Path

    def edit(self, edit: Edit) -> int:
        """Make an edit; the number of the line that it begins in."""
        path = self.folder / edit.file
        text = path.read_text()
        assert edit.old in text, f"{edit.file} has no {edit.old!r}"
        path.write_text(text.replace(edit.old, edit.new, 1))
        return text.partition(edit.old)[0].count("\n") + 1

    def revert(self, file: str) -> None:
        """Undo the edits of a file."""
        (self.folder / file).write_text(self.language.files[file])

    def scons(self, *arguments: str, fails: bool = False) -> str:
        """Run ``scons``; what it printed."""
        done = subprocess.run(
            [self.language.python, "-m", "SCons", "-Q", *arguments],
            cwd=self.folder,
            env={**os.environ, **self.language.variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert (done.returncode != 0) == fails, done.stdout
        assert not re.search(r"^Traceback", done.stdout, re.M), done.stdout
        return done.stdout

    def made(self) -> dict[str, bytes]:
        """The files of the package: path -> content."""
        top = self.folder / "build/demo"
        files = sorted(path for path in top.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        assert files, "the package has no files"
        return {path.relative_to(top).as_posix(): path.read_bytes() for path in files}

    def libraries(self) -> dict[str, bytes]:
        """The compiled ones among them."""
        return {name: content for name, content in self.made().items() if name.startswith("_lib/")}


def the_same_bytes_again(language: Language, folder: Path) -> None:
    """A build with nothing to do makes nothing, and a build from nothing makes the same bytes as before."""
    project = language.project(folder / "project")
    project.scons()
    first = project.made()
    assert "[ " not in project.scons()
    shutil.rmtree(project.folder / "build")
    project.scons()
    assert _different(project.made(), first) == []


def the_same_bytes_in_another_folder_and_order(language: Language, folder: Path) -> None:
    """Neither the folder, nor the order of what is built, nor the number of jobs is in a package."""
    one, other = language.project(folder / "one"), language.project(folder / "deep/er/other")
    one.scons("-j1")
    other.scons("-j2", "--random")
    assert _different(one.made(), other.made()) == []
    assert [name for name, content in one.made().items() if os.fsencode(one.folder) in content] == []


def a_comment_changes_nothing(language: Language, folder: Path) -> None:
    """An edit that changes no code is lowered again, and nothing after that runs."""
    project = language.project(folder / "project")
    project.scons()
    first = project.made()
    project.edit(language.comment)
    stages = re.findall(r"^\[ (\w+) \]", project.scons(), re.M)
    assert {*stages} <= {"LOWER"}, stages
    assert _different(project.made(), first) == []


def an_edit_of_a_helper_counts(language: Language, folder: Path) -> None:
    """What the definition imports is a dependency: another text there is lowered, and gives another library."""
    project = language.project(folder / "project")
    project.scons()
    first = project.libraries()
    project.edit(language.helper)
    assert "[ LOWER ]" in project.scons()
    assert _different(project.libraries(), first)
    project.revert(language.helper.file)
    project.scons()
    assert _different(project.libraries(), first) == []


def a_mistake_is_an_error_with_its_place(language: Language, folder: Path) -> None:
    """Each mistake is told with the file and a line of it, and leaves nothing behind that a later build would take."""
    project = language.project(folder / "project")
    assert language.mistakes
    for edit, text in language.mistakes:
        project.edit(edit)
        said = project.scons(fails=True)
        assert re.search(rf"{re.escape(edit.file)}:\d+", said) and text in said, said
        project.revert(edit.file)
    project.scons()
    assert project.libraries()


def a_worker_that_dies_or_hangs_is_an_error(language: Language, folder: Path) -> None:
    """A definition that ends its process, or never returns, is an error at its kernel; the next build is as ever."""
    project = language.project(folder / "project")
    project.scons()
    first = project.made()
    # The second one waits in C, with Python's lock, and takes no time of a processor.
    endless = "__import__('ctypes').PyDLL(None).pause()"
    for statement, limit in (("__import__('os')._exit(9)", 300), (endless, TIME_LIMIT_S)):
        project.edit(language.before_return(statement))
        said = project.scons(f"WORKER_TIMEOUT={limit}", fails=True)
        assert f"{language.definition}:" in said and "[lower]" in said, said
        project.revert(language.definition)
    project.scons()
    assert _different(project.made(), first) == []


def strict_mode_holds(language: Language, folder: Path) -> None:
    """With ``--strict`` the language itself does nothing that is refused, and a definition that starts a process is."""
    project = language.project(folder / "project")
    project.scons("--strict")
    project.edit(language.before_return("__import__('subprocess').run(['true'])"))
    assert "starts a process: true (strict mode)" in project.scons("--strict", fails=True)


PROMISES: tuple[Callable[[Language, Path], None], ...] = (
    the_same_bytes_again,
    the_same_bytes_in_another_folder_and_order,
    a_comment_changes_nothing,
    an_edit_of_a_helper_counts,
    a_mistake_is_an_error_with_its_place,
    a_worker_that_dies_or_hangs_is_an_error,
    strict_mode_holds,
)
"""What every front end promises. Each takes the language, and a folder for its projects."""


def _different(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> list[str]:
    """The names of the files that differ."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
