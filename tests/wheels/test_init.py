"""A new project works at once: it builds, its test passes, and it can be installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SITE_SCONS, Project


def init(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelwright", "init", name]
    variables = os.environ | {"PYTHONPATH": str(SITE_SCONS)}
    return subprocess.run(
        command, cwd=folder, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )


def test_a_new_project_is_checked_installed_and_tested(tmp_path: Path) -> None:
    done = init(tmp_path, "Acme-Kernels")
    assert done.returncode == 0 and "Next: cd Acme-Kernels" in done.stdout
    project = Project(tmp_path / "Acme-Kernels")
    names = {str(path.relative_to(project.folder)) for path in project.folder.rglob("*") if path.is_file()}
    assert names == {
        "SConstruct",
        "pyproject.toml",
        "README.md",
        ".gitignore",
        ".github/workflows/kernels.yml",
        "kernels/scale_add.py",
        "tests/test_scale_add.py",
    }
    assert not [name for name in names if re.search("@[A-Z]+@", (project.folder / name).read_text())]
    assert project.scons("-j2", "check").labels["CHECK"] == 1
    installed = tmp_path / "installed"
    command = ["install", "--no-build-isolation", "--no-deps", "--target", str(installed), "."]
    variables = os.environ | {"PYTHONPATH": str(SITE_SCONS)}
    subprocess.run([sys.executable, "-m", "pip", "-q", *command], cwd=project.folder, env=variables, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project.folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST")} | {"PYTHONPATH": str(installed)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("name", ["", "a b", "class", "../x", "-x", "1a", "kernels", "\u00e9"])
def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path, name: str) -> None:
    done = init(tmp_path, name)
    assert done.returncode != 0 and "Traceback" not in done.stdout
    assert "a project cannot have this name" in done.stdout or "usage:" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "mine").write_text("mine")
    done = init(tmp_path, "acme")
    assert done.returncode == 1 and "acme [init]: there is something of this name" in done.stdout
    assert [path.name for path in (tmp_path / "acme").iterdir()] == ["mine"]
