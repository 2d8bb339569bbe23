"""Kernels in Triton whose definitions name a source and a function, which a process compiles.

The process runs in the environment whose interpreter ``KERNELWRIGHT_TRITON_PYTHON`` names, and in this one if it has
Triton.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest
from kernelwright.frontends.triton.program import NEED
from support.project import Project

HERE = importlib.util.find_spec("triton") is not None
PYTHON = os.environ.get("KERNELWRIGHT_TRITON_PYTHON", "")
if not (HERE or PYTHON):
    reason = (
        f"KERNELWRIGHT_TRITON_PYTHON names no interpreter of an environment with {NEED.requirement}, nor is it here"
    )
    pytest.skip(reason, allow_module_level=True)

WAYS = ([""] if HERE else []) + ([PYTHON] if PYTHON else [])
KERNELS = Path(__file__).parent / "kernels"
SETTINGS = """\
[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_90a"]
"""
SPECIALIZED = '"triton", specialize="auto", configs=grid(dtype=["float32"])'
MORE = '''\
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Scalar, Size, Tensor, Workspace, ceildiv
from tiles import plus
from spaces import POINTS


@triton.autotune([triton.Config({"BLOCK": p["BLOCK"]}, num_warps=p["num_warps"]) for p in POINTS], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % 16 == 0, "num_stages": lambda args: args["BLOCK"] // 8})
@triton.jit
def scaled_kernel(x, alpha, y, spare, n, BLOCK: tl.constexpr, EVEN: tl.constexpr, MODE: tl.constexpr = "plain", step=1):
    """With whatever a decorator can say, a number, and constants that are none."""
    at = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) * step
    tl.store(spare + at, 0.0, mask=at < n)
    if EVEN and MODE == "plain":
        tl.store(y + at, plus(tl.load(x + at), alpha.to(tl.float32)))
    else:
        tl.store(y + at, plus(tl.load(x + at, mask=at < n), alpha.to(tl.float32)), mask=at < n)


@kernel(frontend="triton", divisible={"n": [16, 1]}, tune=POINTS, outputs=["y"])
def scaled(BLOCK, num_warps):
    x, y = Tensor("bfloat16", "n"), Tensor("float32", "n")
    return Program(
        scaled_kernel, x=x, alpha=Scalar("float64"), y=y, spare=Workspace("float32", "n"), n=Size("n"), BLOCK=BLOCK,
        num_warps=num_warps, step=Size(1), grid=ceildiv("n", BLOCK)
    )


@scaled.reference
def _(x, alpha):
    return x.astype("float32") + alpha
'''


STEPS = """\
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Size, Tensor, Workspace, ceildiv


@triton.jit
def scaled(value):
    return value * 2


@triton.jit
def first_kernel(x, between, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(between + at, scaled(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def second_kernel(between, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, scaled(tl.load(between + at, mask=at < n)), mask=at < n)


@kernel(frontend="triton", outputs=["y"])
def steps():
    vector, between = Tensor("float32", "n"), Workspace("float32", "n")
    sizes = {"n": Size("n"), "BLOCK": 64, "grid": ceildiv("n", 64)}
    return [
        Program(first_kernel, x=vector, between=between, **sizes),
        Program(second_kernel, between=between, y=vector, **sizes),
    ]


@steps.reference
def _(x):
    return 4 * x
"""


def named(text: str, name: str) -> tuple[str, str]:
    """A definition file that has its function: the source alone, and the definition that names it."""
    head, definition = text.split("@kernel", 1)
    lines = head.splitlines(keepends=True)
    ours = [line for line in lines if line.startswith(("from kernelwright", "from spaces"))]
    source = "".join(line for line in lines if not line.startswith("from kernelwright"))
    definition = re.sub(r"Program\(\s*(\w+_kernel),", rf'Program("tri/{name}.py", "\1",', definition)
    return source, "".join([*ours, "\n\n@kernel", definition])


def new_project(folder: Path, python: str | None) -> Project:
    """The kernels of this folder and one more.

    Arguments:
        python: the interpreter of Triton's environment; empty: it is this one. None: definitions have the functions.
    """
    project = Project.of(folder, SETTINGS + (f'triton_python = "{python}"\n' if python else ""))
    project.write("tiles.py", (KERNELS / "tiles.py").read_text())
    project.write("spaces.py", 'POINTS = [{"BLOCK": 16, "num_warps": 1}, {"BLOCK": 128, "num_warps": 4}]\n')
    texts = {"add": (KERNELS / "add.py").read_text(), "scaled": MORE, "steps": STEPS}
    texts["add"] = texts["add"].replace('"triton", configs=grid(dtype=["float32", "float16"])', SPECIALIZED)
    for name, text in texts.items():
        source, definition = named(text, name) if python is not None else ("", text)
        project.write(f"kernels/{name}.py", definition)
        if source:
            project.write(f"kernels/tri/{name}.py", source)
    return project


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: "elsewhere" if way else "here")
def built(request, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project, which tests do not change."""
    project = new_project(tmp_path_factory.mktemp("named"), request.param)
    assert project.scons("-j2").labels["LOWER"] == 5
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """A copy of the built project."""
    return built.copied(tmp_path / "copy")


def made(project: Project) -> dict[str, bytes]:
    """What is lowered."""
    files = project.files("build/kernels")
    kinds = (".cubin", ".ttir", "signature.json", "host.c", "sm_90a.json")
    return {name: text for name, text in files.items() if name.endswith(kinds)}


def test_the_code_is_the_same_byte_for_byte(built, tmp_path):
    """No place is in what is built, and it is what is made of definitions that have the functions themselves."""
    texts = [*built.files("build/demo").values(), *built.files("build/kernels").values()]
    places = [str(built.folder).encode(), *([str(Path(PYTHON).parent.parent).encode()] if PYTHON else [])]
    assert not [text for text in texts for place in places if place in text]
    if not HERE:
        pytest.skip("the other way needs Triton in this environment")
    other = new_project(tmp_path, None)
    other.scons()
    assert len(made(built)) == 5 * 5
    assert made(built) == made(other)


def test_an_edit_runs_what_depends_on_it_and_nothing_runs_twice(project):
    assert project.scons().stages == []
    (project.folder / "kernels/scaled.py").unlink()  # each of its variants takes a process
    project.replace("tiles.py", "a + b", "a + b + 1")
    run = project.scons()
    assert run.labels == {"LINK": 1, "LOWER": 2, "PACKAGE": 1}
    assert "steps" not in (" ".join(run.stages))
    project.write("kernels/tri/tiles.py", (project.folder / "tiles.py").read_text().replace("a + b + 1", "a + b"))
    assert project.scons().labels == {"CACHED": 1, "LOWER": 2, "PACKAGE": 1}, "a file that was looked for in vain"
    project.write("../common/bias.py", "BIAS = 1\n")
    source = project.folder / "kernels/tri/steps.py"
    folder = str(project.folder.parent / "common")
    source.write_text(f"import sys\nsys.path.insert(0, {folder!r})\nfrom bias import BIAS\n{source.read_text()}")
    assert project.scons().stages == ["LOWER steps/default cuda"], "the code is the same"
    project.write("../common/bias.py", "BIAS = 2\n")
    assert project.scons().stages == ["LOWER steps/default cuda"], "a file beside the project"


def test_references_are_compared_in_the_interpreter_of_that_environment(project):
    command = [PYTHON or "python", "-c", "import torch, numpy"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("that environment has no PyTorch and NumPy")
    run = project.scons("check", "-j2")
    assert run.labels == {"CHECK": 5}
    assert re.search(r"\[ CHECK \] add/\S*all_multiple_of-16\S* interpreted\n", run.output)
    project.replace("tiles.py", "a + b", "a + b + (a > 1)")
    run = project.scons("check", "-k", "-j2", ok=False)
    assert run.labels["CHECK"] == 4
    wrong = r"kernels/scaled\.py:\d+ scaled/\S+ \[check\]: y differs from the reference at n=33 on interpreted: "
    assert re.search(wrong, run.output), run.output
    project.replace("tiles.py", "    return", "    assert a is None\n    return")
    output = project.scons("check", "-k", ok=False).output
    assert re.search(r"tiles\.py:\d+ add/\S+ \[check\]: tri/add.py raised Asser", output), output
