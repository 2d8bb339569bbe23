"""Tests that any front end and any backend can run against itself: a function for each promise, with real builds.

With pytest, for a ``Language`` of one's own::

    @pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
    def test_promise(promise, tmp_path):
        promise(LANGUAGE, tmp_path)

For a backend, a ``Caller`` says how it is called, and ``CALLS`` are its promises::

    @pytest.fixture(scope="module")
    def kernels(tmp_path_factory):
        return CALLER.kernels(tmp_path_factory.mktemp("called"))

    @pytest.mark.parametrize("promise", CALLS, ids=lambda promise: promise.__name__)
    def test_promise(promise, kernels):
        promise(CALLER, kernels)

A promise that is not kept is an AssertionError with what the build has printed.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
DTYPES = ("bool", *INTEGERS, "float16", "float32", "float64")
"""The dtypes of arrays that every backend takes."""

CALLED = f"""\
from kernelwright import kernel
from tvm import te
from tvm.script import tirx as T


@kernel(outputs=["y"], configs=[{{"dtype": dtype}} for dtype in {DTYPES}])
def each(dtype):
    '''y = x'''
    n = te.var("n")
    x = te.placeholder((n,), dtype, name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i], name="y")])


@kernel(outputs=["z"])
def plus():
    '''z = alpha * x + y'''
    n, alpha = te.var("n"), te.var("alpha", "float32")
    x, y = te.placeholder((n,), "float32", name="x"), te.placeholder((n,), "float32", name="y")
    return te.create_prim_func([alpha, x, y, te.compute((n,), lambda i: alpha * x[i] + y[i], name="z")])


@kernel(outputs=["y", "z"])
def two():
    '''z = 2 * x, and y = x and a zero'''
    n = te.var("n")
    x = te.placeholder((n,), "float32", name="x")
    z = te.compute((n,), lambda i: x[i] * 2.0, name="z")
    y = te.compute((n + 1,), lambda i: te.if_then_else(i < n, x[te.min(i, n - 1)], 0.0), name="y")
    return te.create_prim_func([x, z, y])


@kernel
def add_to():
    '''total += x'''
    @T.prim_func(s_tir=True)
    def main(total_handle: T.handle, x_handle: T.handle):
        n = T.int32()
        total = T.match_buffer(total_handle, (n,), "float32")
        x = T.match_buffer(x_handle, (n,), "float32")
        for i in range(n):
            with T.sblock("total"):
                j = T.axis.spatial(n, i)
                total[j] = total[j] + x[j]
    return main


@kernel(outputs=["y"])
def rows():
    '''y = 2 * x, whose rows may have gaps between them'''
    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        m, n, step = T.int32(), T.int32(), T.int32()
        x = T.match_buffer(x_handle, (m, n), "float32", strides=(step, 1))
        y = T.match_buffer(y_handle, (m, n), "float32")
        for i, j in T.grid(m, n):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] * T.float32(2)
    return main
"""
"""The definitions of the kernels that are called."""


@dataclass(frozen=True)
class Caller:
    """How the kernels of a backend are called, on the CPU.

    Arguments:
        backend: its name.
        array: makes an array that it takes of one of NumPy; the two share their memory, if outputs can be passed.
        numpy: the content of what it returns, as an array of NumPy.
        writes: whether outputs can be passed, and inputs written; otherwise they are always new.
    """

    backend: str
    array: Callable[[Any], Any]
    numpy: Callable[[Any], Any]
    writes: bool = True

    def kernels(self, folder: Path) -> Any:
        """The kernels of a package that is built for the backend in a folder, imported by this process."""
        name = f"called_through_{self.backend}"
        settings = f'[tool.kernelwright]\ntargets = ["llvm"]\nbackends = ["{self.backend}"]\n'
        files = {
            "SConstruct": SCONSTRUCT.replace("demo", name),
            "pyproject.toml": settings,
            "kernels/called.py": CALLED,
        }
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        command = [sys.executable, "-m", "SCons", "-Q"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        sys.path.insert(0, str(folder / "build"))
        try:
            return getattr(importlib.import_module(name).backends, self.backend)
        finally:
            sys.path.remove(str(folder / "build"))


def every_dtype_and_size_is_taken(caller: Caller, kernels: Any) -> None:
    """Arrays of each dtype, of several elements, of one and of none; a framework may lack some dtypes."""
    import numpy as np

    taken = 0
    for dtype in DTYPES:
        for size in (3, 1, 0):
            x = np.arange(size).astype(dtype)
            given = caller.array(x)
            if caller.numpy(given).dtype != x.dtype:
                continue
            taken += 1
            made = caller.numpy(kernels.each(given))
            assert (made.dtype, made.tolist()) == (x.dtype, x.tolist()), f"{dtype}[{size}] gives {made!r}"
    assert taken >= 3 * 3, "it takes hardly any dtype"


def outputs_are_made_or_written(caller: Caller, kernels: Any) -> None:
    """Outputs that are left out are new, several are a tuple in the order of the definition; others are written."""
    import numpy as np

    for size in (3, 1, 0):
        x, y = np.arange(size, dtype="float32"), np.full(size, 5, "float32")
        expected = 2 * x + y
        assert caller.numpy(kernels.plus(2.0, caller.array(x), caller.array(y))).tolist() == expected.tolist()
        if caller.writes:
            z = np.zeros_like(x)
            assert kernels.plus(2.0, caller.array(x), caller.array(y), caller.array(z)) is None
            assert z.tolist() == expected.tolist()
    made = kernels.two(caller.array(np.ones(2, "float32")))
    assert type(made) is tuple and [caller.numpy(one).tolist() for one in made] == [[1, 1, 0], [2, 2]]
    total = np.ones(2, "float32")
    made = kernels.add_to(caller.array(total), caller.array(np.ones(2, "float32")))
    assert (made is None) == caller.writes
    assert (total if caller.writes else caller.numpy(made)).tolist() == [2, 2]


def strides_are_taken_or_refused(caller: Caller, kernels: Any) -> None:
    """A view with the strides that a kernel declares is taken. One that it does not is refused, or taken rightly."""
    import numpy as np

    whole = np.arange(12, dtype="float32").reshape(3, 4)
    for view in (whole[:, :3], whole[::2], whole[:1, 1:]):
        assert caller.numpy(kernels.rows(caller.array(view))).tolist() == (2 * view).tolist()
    column = whole[:, 1]
    try:
        made = caller.numpy(kernels.plus(1.0, caller.array(column), caller.array(column))).tolist()
    except (TypeError, ValueError, RuntimeError) as error:
        assert "plus" in str(error) and "compact" in str(error), error
    else:
        assert made == (2 * column).tolist()


def a_wrong_call_names_the_kernel(caller: Caller, kernels: Any) -> None:
    """A wrong dtype, rank, size or count is an error that names the kernel, and writes nothing."""
    import numpy as np

    x, z = np.ones(3, "float32"), np.zeros(3, "float32")
    wrong = [(2.0, x, x.astype("float16")), (2.0, x[None], x), (2.0, x, x[:2]), (2.0,), ("a", x, x), (2.0, x, None)]
    wrong += [(2.0, x, x[:2], z)] if caller.writes else []
    for arguments in wrong:
        given = [caller.array(one) if isinstance(one, np.ndarray) else one for one in arguments]
        try:
            made = kernels.plus(*given)
        except (TypeError, ValueError, RuntimeError) as error:
            assert "plus" in str(error), f"{arguments}: {error}"
        else:
            raise AssertionError(f"{arguments} gives {made!r}")
    assert z.tolist() == [0, 0, 0]


def a_kernel_says_what_it_has(caller: Caller, kernels: Any) -> None:
    """Its variants, where it runs, and one variant by its config; another one is an error that lists these."""
    import numpy as np

    assert kernels.each.variants == tuple({"dtype": dtype} for dtype in DTYPES)
    assert kernels.each.devices == {"cpu"} and kernels.each.supported() and not kernels.each.supported("cuda")
    assert kernels.each.preload() is None
    chosen = kernels.each.variant(dtype="float32")
    assert chosen.variants == ({"dtype": "float32"},)
    assert caller.numpy(chosen(caller.array(np.ones(2, "float32")))).tolist() == [1, 1]
    try:
        kernels.each.variant(dtype="float7")
    except KeyError as error:
        assert "dtype='float32'" in str(error)
    else:
        raise AssertionError("there is a variant of float7")


CALLS: tuple[Callable[[Caller, Any], None], ...] = (
    every_dtype_and_size_is_taken,
    outputs_are_made_or_written,
    strides_are_taken_or_refused,
    a_wrong_call_names_the_kernel,
    a_kernel_says_what_it_has,
)
"""What every backend promises to callers on the CPU. Each takes the caller, and its kernels."""


def _different(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> list[str]:
    """The names of the files that differ."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
