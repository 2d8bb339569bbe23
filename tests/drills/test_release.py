"""The short form of the rehearsal of a release: what is in the source distribution."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from release import look_into
from support.project import ROOT


@pytest.mark.skipif(not list(distributions(name="build")), reason="the package build is not installed")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone of the repository")
def test_the_sdist_has_what_a_packager_needs_and_not_more(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "-q", "--shared", ROOT, tree], check=True)
    shutil.copy(ROOT / "MANIFEST.in", tree)
    command = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "."]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (sdist,) = (tree / "dist").iterdir()
    look_into(sdist)
    less = tmp_path / "less.tar.gz"
    with tarfile.open(less, "w:gz") as archive:
        archive.add(tree / "SConstruct", "kernelwright/SConstruct")
        archive.add(tree / "tests/mutants/planted.py", "kernelwright/tests/mutants/planted.py")
    with pytest.raises(SystemExit, match=r"lacks \['LICENSE', .* should not have \['tests/mutants/planted.py'\]"):
        look_into(less)
