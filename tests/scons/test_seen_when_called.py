"""What a definition sees only when it is called, variables, packages and files outside, is in the keys of caches.

Workers look for packages where Python does, so the packages of these tests are in an environment of their own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import SCONSTRUCT, SITE_SCONS, Project

DEFINITION = """\
from kernelwright import kernel
from tvm import te


@kernel(outputs=["y"])
def {name}():
    {line}
    n = te.var("n")
    x = te.placeholder((n, 4), "float32", name="x")
    return te.create_prim_func([x, te.compute((n, 4), lambda i, j: x[i, j] + value, name="y")])
"""

LINES = {
    "of_package": "from acme_numbers import VALUE as value",
    "of_variable": 'import os; value = float(os.environ["CUDA_VISIBLE_DEVICES"])',
    "of_file": "value = float(open({outside!r}).read())",
}

PRINTED = """
import demo, numpy as np
for name in ("of_package", "of_variable", "of_file"):
    print(np.from_dlpack(getattr(demo, name)(np.zeros((1, 4), "float32")))[0, 0])
"""


class Machine:
    """A place with an environment, in which a package is installed, and with a build cache of its own.

    Arguments:
        top: what all machines have in common: a remote cache.
    """

    def __init__(self, top: Path, name: str) -> None:
        self.folder = top / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.folder / "venv"], check=True)
        (self.site,) = (self.folder / "venv/lib").glob("python3*/site-packages")
        (self.site / "others.pth").write_text(sysconfig.get_path("purelib"))
        (self.folder / "outside.txt").write_text("1")
        self.project = Project(self.folder / "project")
        settings = f'targets = ["llvm"]\nbackends = ["tvm_ffi"]\nremote_cache = "{top / "remote"}"\n'
        self.project.write("SConstruct", SCONSTRUCT)
        self.project.write("pyproject.toml", f'[tool.kernelwright]\n{settings}remote_mode = "read-write"\n')
        for kernel, line in LINES.items():
            text = DEFINITION.format(name=kernel, line=line.format(outside=str(top / "outside.txt")))
            self.project.write(f"kernels/{kernel}.py", text)

    def install(self, value: int) -> None:
        """Install a release of the package, as pip does."""
        for old in self.site.glob("acme_numbers*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        (self.site / "acme_numbers.py").write_text(f"VALUE = {value}.0\n")
        record = self.site / f"acme_numbers-{value}.dist-info/RECORD"
        record.parent.mkdir()
        record.write_text(f"acme_numbers.py,sha256=of{value},13\n")

    def values(self, variable: str) -> list[float]:
        """What the kernels of a fresh build add."""
        shutil.rmtree(self.project.folder / "build", ignore_errors=True)
        shutil.rmtree(self.project.folder / ".sconsign.dblite", ignore_errors=True)
        environment = {"PYTHONPATH": str(SITE_SCONS), "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": variable}
        command = [self.folder / "venv/bin/python", "-m", "SCons"]
        done = subprocess.run(command, cwd=self.project.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        self.output = done.stdout
        return [float(line) for line in self.project.python(PRINTED).split()]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Machine, Machine]:
    top = tmp_path_factory.mktemp("machines")
    return top, Machine(top, "one"), Machine(top, "two")


def test_no_machine_takes_what_a_definition_saw_elsewhere(machines: tuple[Path, Machine, Machine]) -> None:
    top, one, two = machines
    one.install(1)
    two.install(2)
    (top / "outside.txt").write_text("1")
    assert one.values("1") == [1, 1, 1]
    (top / "outside.txt").write_text("3")
    assert two.values("4") == [2, 4, 3]
    assert "[ LOWER ]" in two.output
    assert two.values("4") == [2, 4, 3]


def test_what_is_the_same_is_shared_but_for_what_nobody_can_tell(machines: tuple[Path, Machine, Machine]) -> None:
    _, one, two = machines
    two.install(5)
    assert two.values("6")[:2] == [5, 6]
    one.install(5)
    assert one.values("6")[:2] == [5, 6]
    lowered = [line for line in one.output.splitlines() if line.startswith("[ LOWER ]")]
    assert lowered == ["[ LOWER ] of_file/default x86-64-v3"]
