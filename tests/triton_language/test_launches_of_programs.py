"""Launches of programs in Triton: those of packages that were recorded are those that Triton makes itself.

Triton's own launcher and a package run beside each other, against the library that stands in for the driver. What both
ask for is compared byte by byte: the code, the grid, the block, the attributes and all parameters.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from kernelwright.frontends.triton.program import NEED
from support.project import ROOT, SITE_SCONS, Project
from support.standin_calls import make_standin

for name in ("triton", "torch"):
    try:
        version(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed: {NEED.install}", allow_module_level=True)

PROGRAMS = Path(__file__).parent / "programs"
SETTINGS = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_90a"]\n'
DEFINITION = 'from kernelwright.triton import recorded\n\nkernels = recorded("calls.json")\n'

FUNCTIONS = (
    *("optional", "numbers", "typed", "precise", "unspecialized", "constants"),
    *("matmul", "applied", "copied", "aware", "described", "decided", "tuned"),
)
"""Those of ``programs/everything.py``."""


def packaged(folder: Path, program: str) -> Project:
    """A package of what a program was recorded with."""
    project = Project.of(folder, SETTINGS, recorded=DEFINITION)
    shutil.copy(PROGRAMS / f"{program}.py", project.folder)
    words = ("record", "--output", "kernels/calls.json", "--arch", "sm_90a", f"{program}.py")
    command = [sys.executable, "-m", "kernelwright", *words]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(SITE_SCONS)}, check=True)
    project.scons("-j2")
    make_standin(project)
    return project


def beside(project: Project, code: str) -> str:
    """What a program prints that launches through Triton and through the package."""
    driver = project.folder / "driver"
    env = {
        "PYTHONPATH": os.pathsep.join(["build", ".", str(ROOT / "tests"), str(SITE_SCONS)]),
        "LD_LIBRARY_PATH": str(driver),
        "TRITON_LIBCUDA_PATH": str(driver),
        "KERNELWRIGHT_CUDA_DRIVER": str(driver / "libcuda.so.1"),
        "TRITON_CACHE_DIR": str(project.folder / "triton-cache"),
        "TRITON_DISABLE_LINE_INFO": "1",  # packages have none
        "TRITON_DEFAULT_FP_FUSION": "1",
        "STANDIN_LOG": str(project.folder / "log"),
        "STANDIN_BYTES": "1",
        "STANDIN_CAPABILITY": "90",
        "STANDIN_SHARED": "232448",
    }
    return project.python(code, env=env)


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Function -> its calls, and how launches of the package differ from those of Triton."""
    project = packaged(tmp_path_factory.mktemp("everything"), "everything")
    printed = beside(project, COMPARED)
    found: dict[str, list[str]] = json.loads(printed.splitlines()[-1])
    return found


COMPARED = """
import json, torch
from pathlib import Path
import demo, everything
from support.triton_launches import Beside
beside = Beside(Path("log"), demo)
print(json.dumps(beside.differences(everything)))
"""


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_package_launches_what_triton_launches(differences, function):
    """Cubin, grid, block, shared memory, attributes and the bytes of each parameter, both through the program's own
    function while the package is used, and by the kernel of the package."""
    compared = differences[function]
    assert len(compared) >= 2 and not any(compared), "\n".join(filter(None, compared))


def test_all_functions_of_the_program_are_compared(differences):
    assert sorted(differences) == sorted(FUNCTIONS)


VARIED = """
import torch
from pathlib import Path
import demo, varied
from hypothesis import given, settings, strategies as st
from support.triton_launches import Beside

beside = Beside(Path("log"), demo)
known = list(varied.calls())
for function, arguments in known:
    assert beside.agree(varied, function, (varied.FLOATS, *arguments), compiles=True), (function, arguments)

EDGES = [0, 1, 16, 17, -1, -16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**63 - 1, -(2**63)]
LARGE = [2**63, 2**63 + 1, 2**64 - 16, 2**64 - 1]
floats = st.floats(width=32)
signed = st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1) | st.integers(-64, 64)
integers = signed | st.sampled_from(LARGE) | st.integers(2**63, 2**64 - 1)
pointers = st.sampled_from([*varied.POINTERS])
counts = {True: 0, False: 0}

def both(function, *arguments):
    arguments = [varied.POINTERS.get(a, a) if isinstance(a, str) else a for a in arguments]
    counts[beside.agree(varied, function, (varied.FLOATS, *arguments), compiles=False)] += 1

def checked(*strategies):
    chosen = settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True)
    return lambda test: chosen(given(*strategies)(test))

@checked(pointers, integers | floats | st.booleans() | st.none())
def untyped(x, n):
    both("untyped", x, n)

@checked(st.sampled_from(["floats", "odd floats", "halves"]), signed, integers | floats | st.booleans())
def typed(x, m, k):
    both("typed", x, m, k)

@checked(floats, st.sampled_from([1, 1.0, True, False, 0, 0.0, -0.0, 1.5, 2, None]))
def constant(f, count):
    both("constant", f, count)

for test in (untyped, typed, constant):
    test()
    assert all(counts.values()), (test, counts)
print("launched", counts[True], "refused", counts[False])
"""


def test_any_call_is_launched_as_by_triton_or_refused_where_triton_would_compile(tmp_path):
    project = packaged(tmp_path, "varied")
    printed = beside(project, f"EXAMPLES = 300\n{VARIED}")
    launched, refused = (int(word) for word in printed.split()[-3::2])
    assert launched >= 100 and refused >= 100, printed
