"""Where programs of the tests run: virtual environments, each with some packages and nothing else, made once."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
from kernelwright.backends.tvm_ffi import TvmFfi

from support.project import ROOT, once

NEEDED = ("numpy", TvmFfi.run_needs[0].requirement)
"""What packages for the CPU need where they run."""


def environment(home: Path, *requirements: str | Path, python: str = sys.executable) -> Path:
    """A fresh virtual environment with these distributions and what they need."""
    # Without pip, whose installation takes longer than all else: that of the tests installs here, see `install`.
    subprocess.run([python, "-m", "venv", "--without-pip", str(home)], check=True)
    # Where a test asks for it, what the environment of the tests has comes after what is installed: PyTorch and JAX
    # are too large to be installed for a test.
    line = "import os, sys; sys.path.extend(filter(None, os.environ.get('ALSO_FROM', '').split(':')))\n"
    (site_of(home) / "also.pth").write_text(line)
    if requirements:
        install(home, *requirements)
    return home


def site_of(home: Path) -> Path:
    """Where an environment has its packages."""
    return next(home.glob("lib/python*/site-packages"))


def linked(home: Path, copy: Path) -> Path:
    """A copy of an environment that shares its files: installers replace files, and write into none."""
    subprocess.run(["cp", "-al", str(home), str(copy)], check=True)
    return copy


def install(home: Path, *requirements: str | Path, env: Mapping[str, str] | None = None) -> None:
    """Install with pip; a requirement may also be one of its options."""
    # What `pip --python` starts after it was started itself. Importing pip would keep setuptools out of this process,
    # which the compiler of PyTorch needs.
    runner = Path(sysconfig.get_path("purelib"), "pip/__pip-runner__.py")
    command = [str(home / "bin/python"), str(runner), "--disable-pip-version-check", "-q"]
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*command, "install", "--no-compile", *map(str, requirements)],
        env={**variables, **(env or {})},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout


def own_wheel(factory: pytest.TempPathFactory) -> Path:
    """The wheel of Kernelwright itself, made once, from its sdist."""

    def make(folder: Path) -> None:
        # A copy, because setuptools writes into the tree that it builds.
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copyfile(ROOT / name, folder / name)
        leave = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "site_scons", folder / "site_scons", ignore=leave)
        # The wheel is made from the sdist, so what that lacks is missing here too.
        command = [sys.executable, "-m", "build", "--no-isolation", "."]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=without_path())

    (wheel,) = (once(factory, "own-wheel", make) / "dist").glob("*.whl")
    return wheel


def without_path() -> dict[str, str]:
    """The environment without what would let another kernelwright be found."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}


@functools.cache
def python_of(minor: int) -> str:
    """An interpreter of Python 3.<minor>; empty if there is none."""
    if minor == sys.version_info.minor:
        return sys.executable
    candidates = [*Path(sys.base_prefix).parent.glob(f"3.{minor}.*/bin/python3"), shutil.which(f"python3.{minor}")]
    works = (str(path) for path in candidates if path and subprocess.run([path, "-c", ""], check=False).returncode == 0)
    return next(works, "")


def needed(factory: pytest.TempPathFactory, minor: int = sys.version_info.minor) -> Path:
    """An environment of Python 3.<minor> with what packages for the CPU need, and nothing else; made once."""
    python = python_of(minor)
    if not python:
        pytest.skip(f"there is no Python 3.{minor} here")

    def make(folder: Path) -> None:
        environment(folder / "home", *NEEDED, python=python)
        # Compiled to bytecode here, and not in each copy.
        run(folder / "home", "import numpy, tvm_ffi")

    return once(factory, f"needed-on-3.{minor}", make) / "home"


def variables_of(also: bool) -> dict[str, str]:
    installed = [path for path in sys.path if path.endswith("site-packages")]
    return {"PATH": "/nowhere", "ALSO_FROM": ":".join(installed) if also else ""}


def run(home: Path, code: str, *, also: bool = False, env: Mapping[str, str] | None = None) -> str:
    """What a program prints that runs in an environment and sees nothing else; ``also``: but the tests' packages."""
    done = subprocess.run(
        [str(home / "bin/python"), "-I", "-c", code],
        cwd=home,
        env={**variables_of(also), **(env or {})},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
    )
    assert done.returncode == 0, f"{code}\nended with {done.returncode}:\n{done.stdout}"
    return done.stdout
