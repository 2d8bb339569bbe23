"""Front ends that other distributions bring: found by name, their content counts, and their faults are errors."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.plugin import (
    SETTINGS,
    TWICE,
    distribute,
    forked_python,
    forked_scons,
    in_language,
    put,
    with_plugin,
)
from support.project import ADD, Project, Run

OUTSIDE = """\
from dataclasses import replace
        made = super().lower(function_of(returned), unit, progress)
        return replace(made, files={**made.files, "../outside": b"x"})
        super().lower"""
"""A front end that would write beside the folder of its files."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An environment: its interpreter, whose forks run all that these tests do, and where it has packages."""
    return with_plugin(tmp_path_factory.mktemp("plugins"))


class Plugged:
    """A project in a folder, with a kernel of a plug-in, which is installed as it is; and the environment."""

    def __init__(self, home: tuple[Path, Path], folder: Path) -> None:
        self.python, self.site = home
        self.path: list[Path] = []  # what it has besides, as by a .pth file
        for old in self.site.glob("*_lang*"):
            shutil.rmtree(old)
        put(self.site)
        self.distribute("TWO = 2.0\n")
        self.project = Project.of(folder / "project", SETTINGS, twice=TWICE, add_one=ADD)

    def distribute(self, text: str) -> None:
        """Install the package that the plug-in needs."""
        distribute(self.site, "acme_numbers", {"acme_numbers.py": text})

    def add(self, language: str, *change: str) -> None:
        """Install the plug-in with a change for another language, and write a kernel in that."""
        put(self.site, *change, name=f"{language}_lang", language=language)
        self.project.write(f"kernels/{language}.py", in_language(language, TWICE).replace("twice", language))

    def scons(self, *arguments: str, ok: bool = True) -> Run:
        return forked_scons(self.python, self.project, "-Q", "CACHE_DIR=", *arguments, ok=ok, path=self.path)

    def run(self, code: str) -> str:
        """What a program prints."""
        return forked_python(self.python, self.project, code)

    @property
    def value(self) -> float:
        """What the kernel of the package makes of ones."""
        return self.project.value("twice")


@pytest.fixture
def plugged(home: tuple[Path, Path], tmp_path: Path) -> Plugged:
    return Plugged(home, tmp_path)


def test_what_a_language_from_outside_consists_of_counts(plugged: Plugged, tmp_path: Path) -> None:
    """That it is found, built and called after real starts is a promise of tests/contracts."""
    site, lowered = plugged.site, "LOWER twice/default x86-64-v3"
    assert lowered in plugged.scons().stages and plugged.value == 2
    assert plugged.scons().stages == []
    put(site, "FACTOR = 1.0", "FACTOR = 3.0", "lowering")
    assert plugged.scons().stages == ["LINK twice", lowered, "PACKAGE demo"] and plugged.value == 6
    plugged.distribute("TWO = 2.5\n")
    assert lowered in plugged.scons().stages
    # An editable install: its record has no hash of what is edited.
    shutil.move(site / "acme_lang", tmp_path / "acme_lang")
    (site / "acme_lang-1.0.dist-info/RECORD").write_text("editable.pth,,\n")
    plugged.path = [tmp_path]
    plugged.scons()
    lowering = tmp_path / "acme_lang/lowering.py"
    lowering.write_text(lowering.read_text().replace("FACTOR = 3.0", "FACTOR = 4.0"))
    assert lowered in plugged.scons().stages and plugged.value == 8


UNUSABLE: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "newer": (
        ("interface = 1", "interface = 7"),
        ["for version 7 of the interface, and this Kernelwright has version 1"],
    ),
    "renamed": (('name = "acme"', 'name = "other"'), ["has the name 'other', and its entry point another"]),
    "typed": (("FRONT_END = Acme()", "FRONT_END = Acme"), ["is of type type, expected a FrontEnd"]),
    "files": (
        ("    def load", "    def files(self, *given):\n        given[7]\n\n    def load"),
        ["does not tell its files for llvm"],
    ),
    "tool": (
        ("    def load", "    def tool(self, *given):\n        given[7]\n\n    def load"),
        ["does not tell its tool: IndexError"],
    ),
    "imports": (
        ("from . import Expression", "import nowhere"),
        ["cannot be imported: ModuleNotFoundError", "'nowhere'"],
    ),
    "needs": (('"acme_numbers", "acme-numbers', '"acme_letters", "acme-letters'), ["need acme-letters", "pip install"]),
    "loads": (
        ("from . import lowering", "raise ValueError('broken')"),
        ["the front end 'loads' raised ValueError: broken"],
    ),
    "returns": (
        ("return super().lower", "return {**locals()} or super().lower"),
        ["made {'self'", "promises module.tir, signature"],
    ),
    "outside": (("return super().lower", OUTSIDE), ["'../outside'", "and promises module.tir, signature.json, host.o"]),
    "raises": (
        ("return super().lower", "return undefined, super().lower"),
        ["the front end 'raises' raised NameError"],
    ),
    "twin": ((), ["twin_lang and twin_lang_too both have a front end 'twin'"]),
    "absent": ((), ["frontend is 'absent'", "or install what has another"]),
}
"""Language -> a change of the plug-in, and what its error says."""


def test_a_plug_in_that_cannot_be_used_is_an_error_at_the_kernel_and_disturbs_no_other(plugged: Plugged) -> None:
    for language, (change, _) in UNUSABLE.items():
        plugged.add(language, *change)
    put(plugged.site, name="twin_lang_too", language="twin")
    shutil.rmtree(plugged.site / "absent_lang-1.0.dist-info")
    run = plugged.scons("-k", "-j2", ok=False)
    assert run.errors.keys() == UNUSABLE.keys()
    for language, (_, texts) in UNUSABLE.items():
        said = run.errors[language]
        assert said.startswith(f"kernels/{language}.py:4 ") and all(text in said for text in texts), said
    libraries = plugged.project.folder.glob("build/kernels/demo/*/*.so")
    assert {path.stem for path in libraries if path.stem == path.parent.name} == {"twice", "add_one"}
    said = plugged.run("from kernelwright.cli import main; main(['doctor'])")
    assert "\nacme: acme_lang 1.0\n" in said and "twin: twin_lang and twin_lang_too both have" in said, said


ENDS: dict[str, tuple[tuple[str, ...], str, list[str]]] = {
    "hangs": (("from . import lowering", "import time; time.sleep(10**6)"), "discover", ["10 s", "worker_timeout"]),
    "crashes": (
        ("return super().lower", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
        "lower",
        ["SIGSEGV", "Fatal Python error"],
    ),
    "leaves": (("return super().lower", "import os; os._exit(3); return super().lower"), "lower", ["exit status 3"]),
    "vanishes": (("from . import lowering", "import os; os._exit(3)"), "discover", ["exit status 3"]),
}
"""The same, with the stage. A definition that hangs while it is lowered is a promise of tests/contracts."""


def test_a_plug_in_that_hangs_or_dies_ends_as_a_definition_does(plugged: Plugged) -> None:
    for language, (change, *_) in ENDS.items():
        plugged.add(language, *change)
    output = plugged.scons("-k", "-j2", "WORKER_TIMEOUT=10", ok=False).output
    for language, (_, stage, texts) in ENDS.items():
        (said,) = re.findall(rf"^scons: \*\*\* \[\S+\] (kernels/{language}.py.*\n(?:  .*\n)*)", output, re.M)
        assert f"[{stage}]: " in said and all(text in said for text in ["remedy: ", *texts]), said
        put(plugged.site, name=f"{language}_lang", language=language)
    assert plugged.scons().labels["LOWER"] == len(ENDS) and plugged.project.value("hangs") == 2


WRITES = """\
kernels = __import__("pathlib").Path({folder!r}) / "kernels"
        (kernels / "beside.txt").write_text("1")
        other = (kernels / "add_one.py").read_text()
        (kernels / "add_one.py").write_text(other.replace("+ 1.0", "+ 2.0"))
        return super().lower"""


def test_what_a_plug_in_writes_into_the_sources_is_seen_by_the_next_build_as_any_edit_is(plugged: Plugged) -> None:
    """So it is with what a definition writes. Nothing of it is stale, and nothing is built again and again."""
    plugged.scons()
    put(plugged.site, "return super().lower", WRITES.format(folder=str(plugged.project.folder)))
    for lowered in (["twice"], ["add_one"], []):
        run = plugged.scons()
        assert re.findall(r"^\[ LOWER \] (\w+)", run.output, re.M) == lowered, run.output
    assert plugged.project.value("add_one", (1, 4)) == 3


SESSION = """
import numpy as np, kernelwright
from pathlib import Path
from support.plugin import put

def call(): print(np.from_dlpack(kernelwright.load("kernels/twice.py").twice(np.ones(2, "float32"))).tolist())

call()
put(Path({site!r}), "FACTOR = 1.0", "FACTOR = 3.0", "lowering")
try: call()
except Exception as error: print(error)
"""


def test_a_plug_in_that_changes_in_a_session_is_an_error_there_and_counts_in_the_next(plugged: Plugged) -> None:
    code = SESSION.format(site=str(plugged.site))
    said = [plugged.run(code) for _ in range(2)]
    assert said[0].startswith("[2.0, 2.0]\n") and "remedy: start this process again" in said[0], said
    assert said[1].count("[6.0, 6.0]") == 2, said


INSTALLED = """
import numpy as np, kernelwright
from pathlib import Path
from support.plugin import distribute

kernel = kernelwright.load("kernels/add_one.py").add_one
for number in (1, 3):
    distribute(Path({site!r}), "acme_numbers", {{"acme_numbers.py": f"ONE = float({{number * 1000}})"}})
    print(np.from_dlpack(kernel(np.zeros((1, 4), "float32")))[0, 0])
"""


def test_a_package_that_is_installed_anew_in_a_session_counts_there_and_in_the_next(plugged: Plugged) -> None:
    plugged.project.replace("kernels/add_one.py", "+ 1.0", "+ acme_numbers.ONE")
    plugged.project.replace("kernels/add_one.py", "from kernelwright", "import acme_numbers\nfrom kernelwright")
    for _ in range(2):
        said = plugged.run(INSTALLED.format(site=str(plugged.site)))
        assert said.splitlines() == ["1000.0", "3000.0"], said


@pytest.mark.parametrize("name", ["tir", "cuda"])
def test_a_name_of_ours_is_not_looked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelwright import frontends
    from kernelwright.core import plugins

    plugins.find.cache_clear()
    monkeypatch.setattr("importlib.metadata.entry_points", None)
    assert frontends.get(name).distribution == ""
