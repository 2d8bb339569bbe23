"""An environment with a front end that another distribution brings, and projects whose kernels are written in it."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from kernelwright import testing

from support.environments import environment, site_of
from support.forked import starter
from support.project import CACHE_DIR, SITE_SCONS, Project, Run

SETTINGS = '[tool.kernelwright]\ntargets = ["llvm"]\narchs = ["x86-64-v3"]\n'

FRONT_END = '''\
"""Kernels that are one expression."""

from kernelwright.core.need import Need
from kernelwright.frontends.tir.front_end import Tir

from . import Expression


class Acme(Tir):
    name = "acme"
    interface = 1
    needs = (Need("acme_numbers", "acme-numbers>=1"),)
    expects = "an Expression"
    remedy = 'return acme_lang.Expression("2 * x")'

    def recognizes(self, returned):
        return isinstance(returned, Expression)

    def argument_names(self, returned, unit):
        return ["x", "y"]

    def load(self):
        super().load()
        from . import lowering

    def lower(self, returned, unit, progress):
        from .lowering import function_of

        return super().lower(function_of(returned), unit, progress)


FRONT_END = Acme()
'''

LOWERING = """\
from tvm import te

FACTOR = 1.0

def function_of(expression):
    n = te.var("n")
    x = te.placeholder((n,), "float32", "x")
    y = te.compute((n,), lambda i: eval(expression.text, {"x": x[i]}) * FACTOR, "y")
    return te.create_prim_func([x, y])
"""

LANGUAGE = {
    "acme_lang/__init__.py": "class Expression:\n    def __init__(self, text):\n        self.text = text\n",
    "acme_lang/front_end.py": FRONT_END,
    "acme_lang/lowering.py": LOWERING,
}

TWICE = """\
from acme_lang import Expression
from kernelwright import kernel

@kernel(frontend="acme", outputs=["y"])
def twice():
    \"\"\"2 x\"\"\"
    return Expression("x * 2")
"""


def distribute(site: Path, name: str, files: Mapping[str, str], entry_points: str = "", version: str = "1.0") -> None:
    """Write a distribution as pip installs it."""
    info = f"{name}-{version}.dist-info"
    known = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/entry_points.txt": entry_points,
    }
    rows = []
    for path, text in {**files, **known}.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={digest},{len(text)}")
    (site / info / "RECORD").write_text("\n".join([*rows, f"{info}/RECORD,,", ""]))


def with_plugin(folder: Path) -> tuple[Path, Path]:
    """An environment that has all of the tests' own and the plug-in: its interpreter, and where it has packages."""
    home = environment(folder / "env")
    site = site_of(home)
    (site / "tests.pth").write_text(f"{SITE_SCONS}\n{sysconfig.get_path('purelib')}\n")
    put(site)
    distribute(site, "acme_numbers", {"acme_numbers.py": "TWO = 2\n"})
    return home / "bin/python", site


def put(
    site: Path, old: str = "", new: str = "", file: str = "front_end", name: str = "acme_lang", language: str = "acme"
) -> None:
    """Install the plug-in, with a change in one of its files, by a name, for a language."""
    path = f"acme_lang/{file}.py"
    assert old in LANGUAGE[path]
    changed = {**LANGUAGE, path: LANGUAGE[path].replace(old, new)} if old else LANGUAGE
    files = {path.replace("acme_", f"{language}_"): in_language(language, text) for path, text in changed.items()}
    entry_point = f"{language} = {language}_lang.front_end:FRONT_END"
    distribute(site, name, files, f"[kernelwright.frontends]\n{entry_point}\n")


def in_language(language: str, text: str) -> str:
    """A text of the plug-in, or a definition in it, for a language of another name."""
    return text.replace('"acme"', f'"{language}"').replace("acme_lang", f"{language}_lang")


def forked_scons(
    python: Path | str, project: Project, *arguments: str, ok: bool = True, path: Sequence[Path] = ()
) -> Run:
    """Run ``scons`` of an environment in a project, in a fork of a process that has imported what it needs."""
    project.know_tools()
    program, env = "from support import scons_start; scons_start.main()", project.variables({"PYTHONPATH": ""})
    process = starter(*project.imported, python=str(python))
    done = process.run(program, *arguments, env=env, path=path, cwd=project.folder, merged=True)
    assert (done.returncode == 0) == ok and "Traceback" not in done.stdout.replace("    Traceback", ""), done.stdout
    return Run(done.returncode, done.stdout)


def forked_python(python: Path | str, project: Project, code: str) -> str:
    """What a program prints that an environment runs in a project, in such a fork; its first workers are forks, too."""
    program = f"from support import tvm_ready; tvm_ready.prepare(2)\n{code}"
    process = starter(*project.imported, python=str(python))
    return process.run(program, env=_variables(project), cwd=project.folder, merged=True).stdout


OF_EDITS = testing.PROMISES[2:6]
"""Promises of languages whose first build may come from a cache."""


def in_forks(monkeypatch: pytest.MonkeyPatch, cache: Path | None = None, path: Sequence[Path] = ()) -> None:
    """Have what is promised of languages run ``scons`` in forks, which need not wait long for what hangs.

    Arguments:
        cache: a folder for a build cache; None: each project has its own.
        path: where Python finds the language; empty: where it is installed.
    """

    def scons(self: testing.Project, *arguments: str, fails: bool = False) -> str:
        project = Project(self.folder)
        # In strict mode the worker imports Triton itself, so that what is read then is seen. cuTile imports PyTorch.
        definition = self.language.files[self.language.definition]
        if ("triton" in definition or "cuda.tile" in definition) and "--strict" not in arguments:
            project.imported = ("support.torch_ready", *project.imported)
        words = ["-Q", *([f"CACHE_DIR={cache}"] if cache else []), *arguments]
        return forked_scons(self.language.python, project, *words, ok=not fails, path=path).output

    monkeypatch.setattr(testing.Project, "scons", scons)
    monkeypatch.setattr(testing.languages, "TIME_LIMIT_S", 10)


class Crashing(testing.Language):
    """A language whose definitions crash where they would hang: the build waits in the same way for all languages."""

    def before_return(self, statement: str) -> testing.Edit:
        hangs, crashes = "__import__('ctypes').PyDLL(None).pause()", "__import__('os').abort()"
        return super().before_return(statement.replace(hangs, crashes))


def scons(python: Path, project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``scons`` of an environment in a project."""
    return _run(python, project, "-m", "SCons", "-Q", "CACHE_DIR=", *arguments)


def python_of(python: Path, project: Project, code: str) -> str:
    """What a program prints that an environment runs in a project."""
    return _run(python, project, "-c", code).stdout


def _variables(project: Project) -> dict[str, str]:
    return project.variables({"PYTHONPATH": "", CACHE_DIR: str(project.folder.parent / "cache")})


def _run(python: Path, project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *arguments],
        cwd=project.folder,
        env={**os.environ, **_variables(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
