"""The plug-in of ``examples/gluon``: what every language promises, and its launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kernelwright.testing import PROMISES, Edit
from support.plugin import OF_EDITS, Crashing, distribute, in_forks
from support.project import ROOT, Project
from support.standin_calls import call, make_standin, started

pytest.importorskip("triton")

README = (ROOT / "examples/gluon/README.md").read_text().partition("```python\n")[2].partition("```")[0]
DEFINITION = README.replace("from triton.exp", "from numbers_of import FACTOR\nfrom triton.exp", 1)
DEFINITION = DEFINITION.replace("BLOCK: gl", "FACTOR: gl.constexpr, BLOCK: gl").replace("* 2.0", "* FACTOR")
DEFINITION = DEFINITION.replace("BLOCK=256", "FACTOR=FACTOR, BLOCK=256")
FILE = "kernels/double.py"


LANGUAGE = Crashing(
    files={FILE: DEFINITION, "numbers_of.py": "FACTOR = 2.0\n"},
    settings='targets = ["cuda"]\narchs = ["sm_80", "compute_90"]',
    definition=FILE,
    returned="return Program(",
    comment=Edit(FILE, "from kernelwright", "# a comment\nfrom kernelwright"),
    helper=Edit("numbers_of.py", "2.0", "3.0"),
    mistakes=[
        (Edit(FILE, "* FACTOR,", "* missing,"), "missing is not defined"),
        (Edit(FILE, "x=row, y=row", "y=row, x=row"), "the same names in the same order"),
        (Edit(FILE, 'outputs=["y"]', 'outputs=["z"]'), "outputs names 'z'"),
    ],
)
"""The kernel of the README with a helper."""


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plug-in as it is installed for development, and with a build cache."""
    folder = tmp_path_factory.mktemp("gluon")
    entry_point = "gluon = acme_gluon.front_end:FRONT_END"
    distribute(folder / "site", "acme_gluon", {}, f"[kernelwright.frontends]\n{entry_point}\n")
    return folder


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_gluon_keeps_what_all_languages_promise(
    promise: Callable[..., None], top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_forks(monkeypatch, top / "cache" if promise in OF_EDITS else None, [top / "site", ROOT / "examples/gluon"])
    promise(LANGUAGE, tmp_path)


def test_a_kernel_in_gluon_is_launched_with_what_the_definition_says(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_forks(monkeypatch, top / "cache", [top / "site", ROOT / "examples/gluon"])
    LANGUAGE.project(tmp_path).scons()
    project = Project(tmp_path)
    make_standin(project)
    printed, log = call(project, "print(demo.double(on_cuda(1000), on_cuda(1000)))", parameters="ppipp")
    grid, shared, parameters = started(log)
    assert (printed, grid, shared) == ("None", (4, 1, 1), 0), log
    assert "block 128 1 1" in "".join(log) and parameters[2] == "1000", log
