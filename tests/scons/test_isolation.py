"""Definition files that change TVM, NumPy and their process: what is built of another file does not show it.

Every test is a real project and real ``scons`` runs.
"""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest
from support.project import Project

SETTINGS = """\
[tool.kernelwright]
targets = ["llvm", "cuda"]
archs = ["x86-64-v3", "sm_80"]
cache_dir = "cache"
"""

KERNEL = """\
import os
import numpy as np
from kernelwright import kernel
from tvm import te

@kernel(outputs=["y"])
def {name}():
    n = te.var("n")
    x = te.placeholder((n, 4), "float32", name="x")
    return te.create_prim_func([x, te.compute((n, 4), lambda i, j: te.exp(x[i, j]), name="y")])

@{name}.reference
def _(x):
    return np.{reference}(x)
"""

CULPRIT = (
    """\
import atexit, os, signal, sys, types, warnings
import numpy as np
import tvm
import tvm_ffi
from tvm import te

te.exp = te.log
np.exp = np.log
tvm_ffi.register_global_func("tvm_callback_cuda_postproc", lambda code, target: "// changed\\n" + code, override=True)
os.umask(0)
os.environ["PATH"] = "/nowhere"
sys.modules["tvm.te.operation"] = types.ModuleType("tvm.te.operation")
sys.setrecursionlimit(9_000)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
atexit.register(lambda: open("at_exit", "w").close())
warnings.simplefilter("ignore")
"""
    + KERNEL
)

INNOCENT = ("build/kernels/demo/innocent", "build/check/demo/innocent")


ALL = ("build/demo", "check")


def files_of(project: Project) -> dict[str, tuple[bytes, int]]:
    """Content and mode of every file of the innocent kernel; its image in the package counts too."""
    paths = [p for top in INNOCENT for p in sorted((project.folder / top).rglob("*")) if p.is_file()]
    paths.append(project.folder / "build/demo/_lib/innocent.so")
    return {str(p.relative_to(project.folder)): (p.read_bytes(), stat.S_IMODE(p.stat().st_mode)) for p in paths}


def make(folder: Path) -> Project:
    return Project.of(folder, SETTINGS, m_innocent=KERNEL.format(name="innocent", reference="exp"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, int]]:
    """What is built of the innocent file where there is no other one."""
    project = make(tmp_path_factory.mktemp("alone"))
    project.scons(*ALL)
    files = files_of(project)
    assert {Path(name).name for name in files} > {"innocent.so", "device.cu", "host.o", "signature.json"}
    return files


def test_one_definition_does_not_change_what_is_built_of_another(tmp_path, alone):
    """There is one before it and one behind it."""
    project = make(tmp_path)
    for name in ("a_culprit", "z_culprit"):
        project.write(f"kernels/{name}.py", CULPRIT.format(name=name, reference="exp"))
    project.scons("-j1", *ALL)
    assert files_of(project) == alone, "fresh"

    text = (project.folder / "kernels/m_innocent.py").read_text()
    for file in ("kernels/m_innocent.py", "kernels/a_culprit.py", "kernels/z_culprit.py"):
        project.write(file, (project.folder / file).read_text() + "\n# edited\n")
    assert project.scons("-j2", *ALL).labels["LOWER"] == 6
    assert files_of(project) == alone, "incremental"

    for file in project.folder.glob("kernels/*_culprit.py"):
        file.unlink()
    project.write("kernels/m_innocent.py", text)
    shutil.rmtree(project.folder / "build")
    assert "LOWER" not in project.scons(*ALL).labels, "what is built of the innocent file comes from the cache"
    contents = {name: content for name, (content, _) in files_of(project).items()}
    assert contents == {name: content for name, (content, _) in alone.items()}, "from the cache"
    assert "2.71828" in project.python(
        "import numpy as np, demo; print(np.from_dlpack(demo.innocent(np.ones((1, 4), 'float32')))[0, 0])"
    )


def test_a_wrong_kernel_is_found_wrong_whatever_another_definition_does(tmp_path: Path) -> None:
    project = make(tmp_path)
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    (project.folder / "kernels/m_innocent.py").unlink()
    project.write("kernels/m_wrong.py", KERNEL.format(name="wrong", reference="log"))
    project.write("kernels/a_culprit.py", CULPRIT.format(name="culprit", reference="exp"))
    run = project.scons("-k", "check", ok=False)
    assert "y differs from the reference" in run.output
    assert run.counts[2] == 1 and "CHECK ] wrong" in run.output


def test_outputs_have_the_mode_that_the_umask_of_the_build_gives(tmp_path: Path) -> None:
    """Whatever that of the definition is: also one that takes every right away."""
    project = make(tmp_path)
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    for name, umask in (("open", "0"), ("shut", "0o777")):
        text = KERNEL.format(name=name, reference="exp")
        project.write(f"kernels/{name}.py", f"import os\nos.umask({umask})\n{text}")
    project.scons()
    reference = project.write("reference", "")
    made = list((project.folder / "build/kernels").rglob("module.tir"))
    assert len(made) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {stat.S_IMODE(reference.stat().st_mode)}
