"""How much is fuzzed, and where hypothesis keeps its files. The last lines of a run have the number of cases.

``KERNELWRIGHT_FUZZ=thorough`` tries many times as many cases, other ones in each run.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import DirectoryBasedExampleDatabase
from support.project import ADD, ROOT, SCONSTRUCT, Project

from .harness import THOROUGH

STATE = ROOT / "build" / ".hypothesis"

SCALE = '''\
from kernelwright import grid, kernel
from tvm import te


@kernel(configs=grid(factor=[2, 3]), outputs=["y"])
def scale(factor: int):
    """y = factor x, x: [n] float32"""
    n = te.var("n")
    x = te.placeholder((n,), "float32", name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] * float(factor), name="y")])
'''

set_hypothesis_home_dir(STATE)
settings.register_profile("same", derandomize=True, database=None)
settings.register_profile("thorough", database=DirectoryBasedExampleDatabase(STATE / "examples"), print_blob=True)
# Fixtures are shared by all cases of a test on purpose, and a case of a real build takes seconds.
settings.register_profile(
    "kernelwright",
    settings.get_profile("thorough" if THOROUGH else "same"),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("kernelwright")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A small package that was built for the CPU. Tests must not change it."""
    project = Project(tmp_path_factory.mktemp("built"))
    project.write("SConstruct", SCONSTRUCT)
    project.write("kernels/add_one.py", ADD)
    project.write("kernels/scale.py", SCALE)
    project.scons("-j2", "TARGETS=llvm")
    return project


@pytest.fixture(scope="session")
def signature(built: Project) -> dict[str, Any]:
    """The content of a real signature.json."""
    path = next((built.folder / "build/kernels/demo/scale").rglob("signature.json"))
    return dict(json.loads(path.read_text()))
