"""Front ends that other distributions bring: found by name, their content counts, and their faults are errors."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.plugin import SETTINGS, TWICE, distribute, put, python_of, scons, with_plugin
from support.project import ADD, ROOT, Project

OUTSIDE = """\
from dataclasses import replace
        made = super().lower(function_of(returned), unit, progress)
        return replace(made, files={**made.files, "../outside": b"x"})
        super().lower"""
"""A front end that would write beside the folder of its files."""


def project_in(folder: Path) -> Project:
    return Project.of(folder / "project", SETTINGS, twice=TWICE, add_one=ADD)


def value(project: Project) -> str:
    return project.python(
        "import numpy as np, demo\nprint(np.from_dlpack(demo.twice(np.ones(3, 'float32'))).tolist())"
    ).strip()


def test_a_language_from_outside_is_built_and_what_it_consists_of_counts(tmp_path: Path) -> None:
    python, site = with_plugin(tmp_path)
    project = project_in(tmp_path)
    said = scons(python, project).stdout
    assert "[ LOWER ] twice/default x86-64-v3" in said and value(project) == "[2.0, 2.0, 2.0]", said
    assert "[ " not in scons(python, project).stdout
    put(site, "FACTOR = 1.0", "FACTOR = 3.0", "lowering")
    said = scons(python, project).stdout
    assert "[ LOWER ] twice/default x86-64-v3" in said and "add_one" not in said, said
    assert value(project) == "[6.0, 6.0, 6.0]"
    distribute(site, "acme_numbers", {"acme_numbers.py": "TWO = 2.0\n"})
    assert "[ LOWER ] twice/default x86-64-v3" in scons(python, project).stdout
    # An editable install: its record has no hash of what is edited.
    shutil.move(site / "acme_lang", tmp_path / "acme_lang")
    (site / "editable.pth").write_text(f"{tmp_path}\n")
    (site / "acme_lang-1.0.dist-info/RECORD").write_text("editable.pth,,\n")
    assert value(project) == "[6.0, 6.0, 6.0]" and not scons(python, project).returncode
    lowering = tmp_path / "acme_lang/lowering.py"
    lowering.write_text(lowering.read_text().replace("FACTOR = 3.0", "FACTOR = 4.0"))
    said = scons(python, project).stdout
    assert "[ LOWER ] twice/default x86-64-v3" in said and value(project) == "[8.0, 8.0, 8.0]", said


def doctor_of(python: Path, project: Project) -> str:
    return python_of(python, project, "from kernelwright.cli import main; main(['doctor'])")


def test_a_plug_in_that_cannot_be_used_is_an_error_at_the_kernel_and_disturbs_no_other(tmp_path: Path) -> None:
    python, site = with_plugin(tmp_path)
    project = project_in(tmp_path)
    cases: list[tuple[tuple[str, str], list[str]]] = [
        (("interface = 1", "interface = 7"), ["for version 7 of the interface, and this Kernelwright has version 1"]),
        (('name = "acme"', 'name = "other"'), ["has the name 'other', and its entry point another"]),
        (("FRONT_END = Acme()", "FRONT_END = Acme"), ["is of type type, expected a FrontEnd"]),
        (
            ("    def load", "    def files(self, *given):\n        given[7]\n\n    def load"),
            ["does not tell its files for llvm"],
        ),
        (
            ("    def load", "    def tool(self, *given):\n        given[7]\n\n    def load"),
            ["does not tell its tool: IndexError"],
        ),
        (("from . import Expression", "import nowhere"), ["cannot be imported: ModuleNotFoundError", "'nowhere'"]),
        (('"acme_numbers", "acme-numbers', '"acme_letters", "acme-letters'), ["need acme-letters", "pip install"]),
        (("from . import lowering", "raise ValueError('broken')"), ["the front end 'acme' raised ValueError: broken"]),
        (
            ("return super().lower", "return {**locals()} or super().lower"),
            ["made {'self'", "promises module.tir, signature"],
        ),
        (("return super().lower", OUTSIDE), ["'../outside'", "and promises module.tir, signature.json, host.o"]),
        (("return super().lower", "return undefined, super().lower"), ["the front end 'acme' raised NameError"]),
        (("return super().lower", "import os; os._exit(3); return super().lower"), ["twice/default [lower]"]),
    ]
    for change, texts in cases:
        put(site, *change)
        done = scons(python, project, "-k")
        assert done.returncode == 2 and "kernels/twice.py:4 twice" in done.stdout, done.stdout
        assert all(text in done.stdout for text in texts), done.stdout
        assert "Traceback" not in done.stdout.replace("    Traceback", "") and "add_one.so" in str(
            list((project.folder / "build/kernels").rglob("*.so"))
        )
    put(site)
    assert "\nacme: acme_lang 1.0\n" in doctor_of(python, project)
    put(site, name="acme_lang_too")
    assert "acme: acme_lang and acme_lang_too both have" in doctor_of(python, project)
    assert "acme_lang and acme_lang_too both have a front end 'acme'" in scons(python, project).stdout
    for info in site.glob("acme_lang*.dist-info"):
        shutil.rmtree(info)
    said = scons(python, project).stdout
    assert "frontend is 'acme'" in said and "or install what has another" in said


SLOW = "import time; time.sleep(10**6)"
ENDS: list[tuple[tuple[str, str], list[str]]] = [
    (("return super().lower", f"{SLOW}; return super().lower"), ["twice/default [lower]", "30 s", "worker_timeout"]),
    (("from . import lowering", SLOW), ["twice", "30 s", "worker_timeout"]),
    (("return super().lower", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"), ["twice/default [lower]"]),
    (("from . import lowering", "import os; os._exit(3)"), ["twice"]),
]


def test_a_plug_in_that_hangs_or_dies_ends_as_a_definition_does(tmp_path: Path) -> None:
    python, site = with_plugin(tmp_path)
    project = project_in(tmp_path)
    for change, texts in ENDS:
        put(site, *change)
        done = scons(python, project, "-k", "WORKER_TIMEOUT=30")
        assert done.returncode == 2 and "kernels/twice.py" in done.stdout and "remedy: " in done.stdout, done.stdout
        assert all(text in done.stdout for text in texts), done.stdout
    put(site)
    assert not scons(python, project).returncode and value(project) == "[2.0, 2.0, 2.0]"


WRITES = """\
kernels = __import__("pathlib").Path({folder!r}) / "kernels"
        (kernels / "beside.txt").write_text("1")
        other = (kernels / "add_one.py").read_text()
        (kernels / "add_one.py").write_text(other.replace("+ 1.0", "+ 2.0"))
        return super().lower"""


def test_what_a_plug_in_writes_into_the_sources_is_seen_by_the_next_build_as_any_edit_is(tmp_path: Path) -> None:
    """So it is with what a definition writes. Nothing of it is stale, and nothing is built again and again."""
    python, site = with_plugin(tmp_path)
    project = project_in(tmp_path)
    assert not scons(python, project).returncode
    put(site, "return super().lower", WRITES.format(folder=str(project.folder)))
    for lowered in (["twice"], ["add_one"], []):
        done = scons(python, project)
        assert re.findall(r"^\[ LOWER \] (\w+)", done.stdout, re.M) == lowered, done.stdout
    code = "import numpy as np, demo\nprint(np.from_dlpack(demo.add_one(np.ones((1, 4), 'float32')))[0, 0])"
    assert project.python(code) == "3.0\n"


SESSION = """
import sys; sys.path.insert(0, {tests!r})
import numpy as np, kernelwright
from pathlib import Path
from support.plugin import put

def call(): print(np.from_dlpack(kernelwright.load("kernels/twice.py").twice(np.ones(2, "float32"))).tolist())

call()
put(Path({site!r}), "FACTOR = 1.0", "FACTOR = 3.0", "lowering")
try: call()
except Exception as error: print(error)
"""


def test_a_plug_in_that_changes_in_a_session_is_an_error_there_and_counts_in_the_next(tmp_path: Path) -> None:
    python, site = with_plugin(tmp_path)
    project = project_in(tmp_path)
    code = SESSION.format(tests=str(ROOT / "tests"), site=str(site))
    said = [python_of(python, project, code) for _ in range(2)]
    assert said[0].startswith("[2.0, 2.0]\n") and "remedy: start this process again" in said[0], said
    assert said[1].count("[6.0, 6.0]") == 2, said


INSTALLED = """
import sys; sys.path.insert(0, {tests!r})
import numpy as np, kernelwright
from pathlib import Path
from support.plugin import distribute

kernel = kernelwright.load("kernels/add_one.py").add_one
for number in (1, 3):
    distribute(Path({site!r}), "acme_numbers", {{"acme_numbers.py": f"ONE = float({{number * 1000}})"}})
    print(np.from_dlpack(kernel(np.zeros((1, 4), "float32")))[0, 0])
"""


def test_a_package_that_is_installed_anew_in_a_session_counts_there_and_in_the_next(tmp_path: Path) -> None:
    python, site = with_plugin(tmp_path)
    project = project_in(tmp_path)
    project.replace("kernels/add_one.py", "+ 1.0", "+ acme_numbers.ONE")
    project.replace("kernels/add_one.py", "from kernelwright", "import acme_numbers\nfrom kernelwright")
    for _ in range(2):
        said = python_of(python, project, INSTALLED.format(tests=str(ROOT / "tests"), site=str(site)))
        assert said.splitlines() == ["1000.0", "3000.0"], said


@pytest.mark.parametrize("name", ["tir", "cuda"])
def test_a_name_of_ours_is_not_looked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelwright import frontends
    from kernelwright.core import plugins

    monkeypatch.setattr(plugins, "find", None)
    assert frontends.get(name).distribution == ""
