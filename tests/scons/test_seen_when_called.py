"""What a definition sees only when it is called, variables, packages and files outside, is in the keys of caches.

Workers look for packages where Python does, so the packages of these tests are in an environment of their own. There
Kernelwright is installed from its wheel, among the packages and so below the standard library, as it is for users.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from kernelwright.state.remote_objects import decompressed
from support.environments import own_wheel
from support.project import SCONSTRUCT, Project

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
    "of_common": "import sys; sys.path[:0] = [__file__.rpartition('/project')[0] + '/common']; from tiles import value",
    "of_editable": "from acme_editable import value",
}

PRINTED = """
import demo, numpy as np
for name in ("of_package", "of_variable", "of_file", "of_common", "of_editable"):
    print(np.from_dlpack(getattr(demo, name)(np.zeros((1, 4), "float32")))[0, 0])
"""


class Machine:
    """A place with an environment, in which packages are installed, and with a build cache of its own.

    The project is in a repository with a folder of modules that several projects use.

    Arguments:
        top: what all machines have in common: a remote cache.
        wheel: that of Kernelwright.
    """

    def __init__(self, top: Path, name: str, wheel: Path) -> None:
        self.folder = top / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.folder / "venv"], check=True)
        (self.site,) = (self.folder / "venv/lib").glob("python3*/site-packages")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)
        (self.site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{self.folder / 'editable'}\n")
        (self.folder / "editable").mkdir()
        (self.folder / "repository/.git").mkdir(parents=True)
        (self.folder / "repository/common").mkdir()
        self.set_outside(1, 1)
        self.project = Project(self.folder / "repository/project")
        settings = f'targets = ["llvm"]\nbackends = ["tvm_ffi"]\nremote_cache = "{top / "remote"}"\n'
        self.project.write("SConstruct", SCONSTRUCT)
        self.project.write("pyproject.toml", f'[tool.kernelwright]\n{settings}remote_mode = "read-write"\n')
        for kernel, line in LINES.items():
            text = DEFINITION.format(name=kernel, line=line.format(outside=str(top / "outside.txt")))
            self.project.write(f"kernels/{kernel}.py", text)

    def set_outside(self, common: int, editable: int) -> None:
        """Edit what lies outside of the project."""
        (self.folder / "repository/common/tiles.py").write_text(f"value = {common}.0\n")
        (self.folder / "editable/acme_editable.py").write_text(f"value = {editable}.0\n")

    def install(self, value: int) -> None:
        """Install a release of the package, as pip does."""
        for old in self.site.glob("acme_numbers*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        (self.site / "acme_numbers.py").write_text(f"VALUE = {value}.0\n")
        record = self.site / f"acme_numbers-{value}.dist-info/RECORD"
        record.parent.mkdir()
        record.write_text(f"acme_numbers.py,sha256=of{value},13\n")

    def scons(self, variable: str) -> str:
        """What a run prints."""
        environment = {"PATH": f"{Project.shared}/bin:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": variable}
        command = [self.folder / "venv/bin/python", "-m", "SCons"]
        done = subprocess.run(command, cwd=self.project.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def values(self, variable: str) -> list[float]:
        """What the kernels of a build from nothing add."""
        shutil.rmtree(self.project.folder / "build", ignore_errors=True)
        self.output = self.scons(variable)
        return [float(line) for line in self.project.python(PRINTED).split()]

    @property
    def lowered(self) -> list[str]:
        """The kernels that the last build has lowered."""
        return re.findall(r"^\[ LOWER \] (\w+)/", self.output, re.M)


def test_machines_share_what_a_definition_saw_alike_and_nothing_else(tmp_path_factory: pytest.TempPathFactory) -> None:
    top, wheel = tmp_path_factory.mktemp("machines"), own_wheel(tmp_path_factory)
    one, two = Machine(top, "one", wheel), Machine(top, "two", wheel)
    one.install(1)
    two.install(2)
    two.set_outside(5, 6)
    (top / "outside.txt").write_text("1")
    assert one.values("1") == [1, 1, 1, 1, 1]
    (top / "outside.txt").write_text("3")
    assert two.values("4") == [2, 4, 3, 5, 6]
    assert sorted(two.lowered) == sorted(LINES)
    # What is the same is shared, but for what has no name elsewhere.
    one.install(2)
    one.set_outside(5, 6)
    assert one.values("4") == [2, 4, 3, 5, 6]
    assert one.lowered == ["of_file"]
    objects = [decompressed(path.read_bytes()) for path in (top / "remote").rglob("*/*/*") if path.is_file()]
    assert any(b"../common/tiles.py" in text for text in objects)
    assert not any(b"outside.txt" in text for text in objects)
