"""A project whose wheels are built once in a test run, and what tests do with wheels: build, install, read, call."""

from __future__ import annotations

import functools
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support.forked import starter
from support.project import ADD, CALLING, ROOT, SCALE, SCONSTRUCT, SITE_SCONS, Project, once

ARCHS = ("sm_80", "sm_90a", "compute_80")
PYPROJECT = """\
[build-system]
requires = ["kernelwright"]
build-backend = "kernelwright.build"

[project]
name = "Demo-Kernels"
dynamic = ["version"]
description = "Two kernels"
readme = "README.md"
license = "MIT"
license-files = ["LICENSE*"]
requires-python = ">=3.10"
classifiers = ["Topic :: Software Development"]
urls = { Source = "https://example.org/demo" }
dependencies = ["numpy"]
scripts = { demo-add = "demo:main" }

[tool.kernelwright]
package = "demo"
archs = ["x86-64-v3", "sm_80", "sm_90a", "compute_80"]

[tool.kernelwright.version]
file = "VERSION"
"""
FILES = {
    "SConstruct": SCONSTRUCT + 'env.KernelWheel("demo")\n',
    "pyproject.toml": PYPROJECT,
    "VERSION": "1.2rc1\n",
    "README.md": "# Demo, with a letter: \u00e9\n",
    "LICENSE.txt": "Do what you like.\n",
    "kernels/scale.py": SCALE,
    "kernels/add_one.py": ADD,
}


# ---- projects


def write(folder: Path) -> Project:
    """The project, committed."""
    project = Project(folder)
    for name, text in FILES.items():
        project.write(name, text)
    commit(folder, *FILES)
    return project


def git(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    variables = os.environ | (env or {})
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True, env=variables
    ).stdout


def commit(folder: Path, *names: str) -> None:
    """Commit these files: the same commit each time, so that two copies are the same."""
    git(folder, "init", "-q")
    git(folder, "add", *names)
    date = "2026-01-02T03:04:05Z"
    git(folder, "commit", "-qm", "all", env={"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date})


def built_wheel(factory: pytest.TempPathFactory) -> Project:
    """The project with its wheel, built once for all tests, which must not change it."""
    return Project(
        once(factory, "wheel-of-demo", lambda folder: write(folder / "project").scons("-j2", "wheel")) / "project"
    )


def committed_copy(project: Project, folder: Path, old: str, new: str) -> Project:
    """A copy with what is built, without a wheel, with another text in pyproject.toml, and one commit of that."""
    copy = project.copied(folder)
    for name in (".git", "dist"):
        shutil.rmtree(folder / name)
    copy.replace("pyproject.toml", old, new)
    commit(folder, *FILES)
    return copy


def without_dist(project: Project, folder: Path) -> Project:
    """A copy with what is built, without a wheel."""
    copy = project.copied(folder)
    shutil.rmtree(folder / "dist")
    return copy


def split_copy(project: Project, folder: Path) -> Project:
    """A committed copy whose wheels are split by arch."""
    return committed_copy(project, folder, 'package = "demo"\n', 'package = "demo"\nsplit = "arch"\n')


def elsewhere(factory: pytest.TempPathFactory) -> Project:
    """The project, built from nothing in another place, by another user if there can be one, once for all tests."""
    place = "a much longer path/\u00fc"

    def make(folder: Path) -> None:
        other = write(folder / place)
        other.know_tools()
        person = {"USER": "nobody", "LOGNAME": "nobody", "HOME": str(folder), "TZ": "Asia/Tokyo", "LC_ALL": "C"}
        user = [] if why_no_other_user() else as_user(other_user()[0])
        before = os.umask(0o077)
        try:
            done = subprocess.run(
                [*user, sys.executable, "-m", "SCons", "-j8", "wheel", "CACHE_DIR="],
                cwd=other.folder,
                env={**os.environ, **build_environment(), **person},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        finally:
            os.umask(before)
        assert done.returncode == 0 and "Traceback" not in done.stdout, done.stdout
        assert " from the cache" not in done.stdout

    return Project(once(factory, "wheel-of-demo-elsewhere", make) / place)


def other_user() -> tuple[int, str]:
    """Number and name of a user who is not the one that runs the tests."""
    return next((user.pw_uid, user.pw_name) for user in pwd.getpwall() if user.pw_uid not in (os.getuid(), 0))


def as_user(number: int) -> list[str]:
    """Runs a command in a user namespace in which this process has another user's number.

    The files stay those of the user who runs the tests, and readable: an interpreter may be where others cannot enter.
    """
    return ["unshare", "--user", f"--map-user={number}", f"--map-group={number}"]


@functools.cache
def why_no_other_user() -> str:
    """Why no process here can have another user's number; empty if one can."""
    number, name = other_user()
    code = "import getpass, os, pwd; print(os.getuid(), getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name)"
    person = {key: value for key, value in os.environ.items() if key not in ("USER", "LOGNAME", "LNAME", "USERNAME")}
    try:
        command = [*as_user(number), sys.executable, "-c", code]
        done = subprocess.run(command, env=person, capture_output=True, text=True)
    except FileNotFoundError:
        return "there is no unshare"
    if done.returncode != 0:
        return f"no user namespace can be made: {done.stderr.strip()}"
    assert done.stdout == f"{number} {name} {name}\n" and number != os.getuid()
    return ""


# ---- commands


def build_environment() -> dict[str, str]:
    """This Kernelwright, and the C compiler of all other builds of the test run."""
    return {"PYTHONPATH": str(SITE_SCONS), "PATH": f"{Project.shared}/bin:{os.environ['PATH']}"}


def pip(*arguments: str | Path, cwd: Path | None = None) -> None:
    """Run pip, in a fork of a process that has imported it."""
    variables = os.environ | build_environment()
    code = "import sys\nfrom pip._internal.cli.main import main\nsys.exit(main())"
    prepared = starter("pip._internal.cli.main", "pip._internal.commands.wheel")
    options = ["-q", "--disable-pip-version-check", *map(str, arguments)]
    done = prepared.run(code, *options, env=variables, cwd=cwd, merged=True)
    assert done.returncode == 0, done.stdout


def pip_wheel(project: Project, out: Path, *options: str) -> Path:
    """The wheel that pip makes of a project."""
    pip("wheel", ".", "--no-build-isolation", "--no-deps", "-w", out, *options, cwd=project.folder)
    (wheel,) = out.glob("*.whl")
    return wheel


def kernelwright(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A run of ``python -m kernelwright``."""
    return with_kernelwright("from kernelwright.cli import main\nraise SystemExit(main())", *arguments, cwd=cwd)


def require_well(*wheels: Path) -> None:
    """``kernelwright verify`` finds nothing wrong with wheels."""
    done = kernelwright("verify", "--entry-points", *wheels)
    assert done.returncode == 0 and done.stdout.count(": all well\n") == len(wheels), done.stdout


def hook(project: Project, code: str) -> subprocess.CompletedProcess[str]:
    """Call the build backend as a front end does."""
    return with_kernelwright(f"import kernelwright.build as build\n{code}", cwd=project.folder)


def with_kernelwright(code: str, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A run of a program, in a fork of a process that has imported Kernelwright and what it needs for wheels."""
    prepared = starter("kernelwright.cli", "kernelwright.build", "kernelwright.package.verify", "auditwheel.wheel_abi")
    variables = os.environ | build_environment()
    return prepared.run(code, *map(str, arguments), env=variables, cwd=cwd or Path.cwd(), merged=True)


# ---- wheels


def wheels_of(project: Project) -> dict[str, Path]:
    """The wheels in dist by arch; that of the package has the key ``main``."""
    found = {}
    for path in (project.folder / "dist").glob("*.whl"):
        match = re.fullmatch(r"demo_kernels(?:_(\w+))?-[^-]+-py3-none-(\w+)\.whl", path.name)
        assert match, path
        found[match[1] or "main"] = path
    return found


def wheel_of(project: Project) -> Path:
    """The only wheel in dist."""
    (found,) = (project.folder / "dist").glob("*.whl")
    return found


def inside(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata_of(wheel: Path) -> str:
    (text,) = (content for name, content in inside(wheel).items() if name.endswith(".dist-info/METADATA"))
    return text.decode()


def source_in(wheel: Path) -> dict[str, Any]:
    """What a wheel says of its sources."""
    found: dict[str, Any] = json.loads(inside(wheel)["demo/manifest.json"])["source"]
    return found


def unpack(folder: Path, *wheels: Path) -> Path:
    """What an installation of the wheels into a folder gives."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


# ---- calls on a GPU that a library stands in for

ON_CUDA = f"""
import sys
sys.modules["torch"] = None  # tvm-ffi would import it, which takes a second
import demo
sys.path += {[str(ROOT / "tests"), str(SITE_SCONS)]!r}
import tvm_ffi
from support.launcher_build import FakeTensor
x = tvm_ffi.from_dlpack(FakeTensor((8,), (2, 32, 1), device=(2, 0)))
"""
CALL = f"""
import sys
before = "importlib.metadata" in sys.modules  # a .pth file of the environment may have imported it
sys.modules["torch"] = None
import demo
assert "importlib.metadata" not in sys.modules or before
import numpy as np
ones = np.ones((2, 4), "float32")
np.testing.assert_array_equal(np.from_dlpack(demo.add_one(ones)), ones + 1)
assert "kernelwright" not in sys.modules and "tvm" not in sys.modules
{ON_CUDA}
try:
    demo.scale(x, x)
except RuntimeError as error:
    print(error)
print("supported:", demo.scale.supported("cuda"))
"""


class Machine:
    """A machine with the stand-in driver, on which packages of some folders are called."""

    def __init__(self, driver: Path, log: Path) -> None:
        self._driver = driver
        self._log = log

    def variables(self, capability: int = 90, **more: str) -> dict[str, str]:
        found = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | more
        found |= {"KERNELWRIGHT_CUDA_DRIVER": str(self._driver), "STANDIN_LOG": str(self._log)}
        return found | {"STANDIN_CAPABILITY": str(capability)}

    def run(self, code: str, *folders: Path, capability: int = 90, **more: str) -> str:
        """What a program prints, in a fork of a process that has imported NumPy and tvm-ffi."""
        variables = self.variables(capability, **more)
        done = starter(*CALLING).run(code, env=variables, path=folders, merged=True)
        assert done.returncode == 0 and "Traceback" not in done.stdout, done.stdout
        return done.stdout

    def call(self, *folders: Path | str, capability: int = 90, python: Path | None = None, **more: str) -> str:
        """What a call on a GPU prints: nothing but the last line, if it went well."""
        if python is None:
            return self.run(CALL, *map(Path, folders), capability=capability, **more)
        variables = self.variables(capability, **more) | {"PYTHONPATH": ":".join(map(str, folders))}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run([python, "-c", CALL], env=variables, text=True, timeout=300, **output)
        assert done.returncode == 0 and "Traceback" not in done.stdout, done.stdout
        return done.stdout

    @property
    def loads(self) -> list[str]:
        """Kind and arch of the images that were loaded, and their bytes."""
        if not self._log.exists():
            return []
        lines = [line.split() for line in self._log.read_text().splitlines()]
        return [" ".join(line[1:4]) for line in lines if line[0] == "load"]

    @property
    def loaded(self) -> list[str]:
        """Kind and arch of the images that were loaded."""
        return [load.rpartition(" ")[0] for load in self.loads]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libcuda."""
    library = tmp_path_factory.mktemp("driver") / "libstandin.so"
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Werror",
        str(ROOT / "site_scons/kernelwright/testing/cuda.c"),
    ]
    subprocess.run([*command, "-o", str(library)], check=True)
    return library


@pytest.fixture
def machine(driver: Path, tmp_path: Path) -> Machine:
    return Machine(driver, tmp_path / "log")
