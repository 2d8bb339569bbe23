"""A new project works at once: it builds, its test passes, and it can be installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.forked import starter
from support.project import CALLING, Project
from support.wheels import build_environment, kernelwright, pip

PYTEST = """
import sys
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider"]))
"""


def test_a_new_project_is_checked_installed_and_tested(tmp_path: Path) -> None:
    done = kernelwright("init", "Acme-Kernels", cwd=tmp_path)
    assert done.returncode == 0 and "Next:\ncd Acme-Kernels" in done.stdout
    project = Project(tmp_path / "Acme-Kernels")
    names = {str(path.relative_to(project.folder)) for path in project.folder.rglob("*") if path.is_file()}
    assert names == {
        *("SConstruct", "pyproject.toml", "README.md", ".gitignore", ".github/workflows/kernels.yml"),
        ".github/workflows/release.yml",
        *("kernels/scale_add.py", "tests/test_scale_add.py"),
    }
    assert not [name for name in names if re.search("@[A-Z]+@", (project.folder / name).read_text())]
    assert project.built("-j2", "check").labels["CHECK"] == 1
    installed = tmp_path / "installed"
    options = ["--no-build-isolation", "--no-deps", "--no-compile", "--target", str(installed)]
    pip("install", *options, ".", cwd=project.folder)
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    prepared = starter(*CALLING)
    done = prepared.run(PYTEST, env=variables, path=[installed], cwd=project.folder, merged=True)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


@pytest.mark.skipif(not list(distributions(name="build")), reason="the package build is not installed")
def test_python_m_build_makes_a_wheel_of_what_is_tracked(tmp_path: Path) -> None:
    assert kernelwright("init", "acme", cwd=tmp_path).returncode == 0
    folder = tmp_path / "acme"
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run(["git", *identity, *command], cwd=folder, check=True)
    (folder / ".env").write_text("TOKEN=secret")
    # Without isolation, because no package index has this Kernelwright.
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--config-setting=targets=llvm"],
        cwd=folder,
        env=os.environ | build_environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "the source distribution leaves out 1 file: .env" in done.stdout, done.stdout
    wheel, archive = sorted((folder / "dist").iterdir())
    assert archive.name == "acme-0.1.0.tar.gz"
    assert re.fullmatch(r"acme-0\.1\.0-py3-none-manylinux_2_\d+_x86_64\.whl", wheel.name)
    with tarfile.open(archive) as packed:
        names = {name.removeprefix("acme-0.1.0/") for name in packed.getnames()}
    assert {"SConstruct", "pyproject.toml", "kernels/scale_add.py", "PKG-INFO"} <= names
    assert not any(name.startswith(("build/", "dist/", ".env")) for name in names)


LANGUAGE_NEEDS = {"cuda": ("numpy", "NumPy"), "triton": ("triton", "Triton"), "cutedsl": ("cutlass", "CuTe DSL")}
"""The module that a language needs here, and what it is called."""


@pytest.mark.parametrize("language", [*LANGUAGE_NEEDS, "tilelang"])
def test_a_new_project_in_another_language_builds(tmp_path: Path, language: str) -> None:
    python = os.environ.get("KERNELWRIGHT_TILELANG_PYTHON", "")
    module, name = LANGUAGE_NEEDS.get(language, ("", "TileLang"))
    if not (find_spec(module) if module else python):
        pytest.skip(f"{name} is not installed")
    assert kernelwright("init", "--language", language, "elsewhere/acme", cwd=tmp_path).returncode == 0
    settings = [f"TILELANG_PYTHON={python}"] if language == "tilelang" else []
    project = Project(tmp_path / "elsewhere/acme")
    assert project.scons("-j2", "ARCHS=sm_90a", *settings).labels["PACKAGE"] == 1
    manifest = json.loads((project.folder / "build/acme/manifest.json").read_text())
    (variant,) = manifest["kernels"]["scale_add"]["variants"]
    assert variant["archs"] == ["sm_90a"]


def test_the_steps_of_the_release_workflow_do_what_they_say(tmp_path: Path) -> None:
    assert kernelwright("init", "acme", cwd=tmp_path).returncode == 0
    folder = tmp_path / "acme"
    text = (folder / ".github/workflows/release.yml").read_text()
    steps = [step for step in re.findall(r"^      - run: (.*)$", text, re.M) if "pip install" not in step]
    assert [step.split()[0] for step in steps] == ["scons", "ls"]
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, code in (
        ("scons", "from SCons.Script import main"),
        ("kernelwright", "from kernelwright.cli import main"),
    ):
        (bin_folder / name).write_text(f"#!{sys.executable}\nimport sys\n{code}\nsys.exit(main())\n")
        (bin_folder / name).chmod(0o755)
    variables = os.environ | build_environment() | {"GITHUB_REF_NAME": "v0.1.0"}
    variables["PATH"] = f"{bin_folder}:{variables['PATH']}"

    def run(step: str, **more: str) -> int:
        command = ["bash", "-ec", step]
        return subprocess.run(command, cwd=folder, env=variables | more, capture_output=True, check=False).returncode

    Project(folder).scons("TARGETS=llvm")  # in a fork, so that the step has a wheel to make and no more
    assert run(steps[0].replace("scons ", "scons TARGETS=llvm ")) == 0
    assert run(steps[1]) == 0
    assert run(steps[1], GITHUB_REF_NAME="v0.2.0") != 0, "the tag is that of another version"
    (wheel,) = (folder / "dist").iterdir()
    wheel.write_bytes(wheel.read_bytes()[:-100])
    assert run(steps[1]) != 0, "the wheel is damaged"


NO_NAMES = dict.fromkeys(["", "a b", "1a", "\u00e9"], "a project cannot have this name") | {"-x": "usage:"}
NO_NAMES |= dict.fromkeys(["class", "kernels", "numpy", "TVM-FFI", "json"], "would take the name of something else")


def test_a_name_that_cannot_be_one_or_that_something_else_has_is_refused(tmp_path: Path) -> None:
    for name, said in NO_NAMES.items():
        done = kernelwright("init", name, cwd=tmp_path)
        assert done.returncode != 0 and said in done.stdout and "Traceback" not in done.stdout, name
        assert list(tmp_path.iterdir()) == []
