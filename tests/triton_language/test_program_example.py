"""The example of a program in Triton: it is recorded as it was, and its wheel launches what the program launches."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path

import pytest
from support.environments import NEEDED, environment, run
from support.project import ROOT, SITE_SCONS, Project
from support.recorded import recorded
from support.standin_calls import make_standin

for module in ("triton", "torch"):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"the program of the example imports {module}, which is not installed", allow_module_level=True)

EXAMPLE = ROOT / "examples/triton-programs"

MATRICES = '''
"""What serve.py needs of PyTorch: float16 matrices on a GPU that need not exist."""

import itertools

from support.launcher_build import FakeTensor

ADDRESSES = itertools.count(0x100000, 0x100000)
float16 = "float16"


class Matrix:
    device, dtype = "cuda:0", float16

    def __init__(self, shape, strides=None, data=None):
        self.shape, self._strides, self._data = shape, strides or (shape[1], 1), data or next(ADDRESSES)
        self._exported = FakeTensor(shape, (2, 16, 1), device=(2, 0), strides=self._strides, data=self._data)

    def stride(self, at=None):
        return self._strides if at is None else self._strides[at]

    def t(self):
        return Matrix(self.shape[::-1], self._strides[::-1], self._data)

    def __dlpack__(self, **options):
        return self._exported.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._exported.__dlpack_device__()


def empty(shape, device, dtype):
    assert (device, dtype) == ("cuda:0", float16)
    return Matrix(shape)


def empty_like(matrix):
    return Matrix(matrix.shape)
'''

SERVED = """
import sys
import tvm_ffi  # before there is a torch: it asks the real one for its dtypes
import matrices
sys.modules["torch"] = matrices
sys.path.insert(0, FOLDER)
import serve
from matrices import Matrix
for length, is_masked in ((256, False), (300, True)):
    q, k, v = (Matrix((length, 64)) for _ in range(3))
    out = serve.attention(q, k, v, Matrix((length, length)) if is_masked else None)
    print(out.shape)
try:
    serve.softmax(Matrix((100, 1024)))
except ValueError as error:
    print(error)
"""

ALONE = """
import importlib.util, model_kernels as m
print(*(name for name in ("kernelwright", "tvm", "triton", "torch") if importlib.util.find_spec(name)))
print(*(len(getattr(m, name).variants) for name in sorted(m.manifest()["kernels"])))
"""

PARAMETERS = "matmul_kernel:pppiiiiiif softmax_kernel:ppii"
"""Those of softmax with a mask are three pointers: the log has 32 bits of the third, and of n."""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the example."""
    folder = tmp_path_factory.mktemp("example") / "triton-programs"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("build", "dist", ".scons*"))
    return Project(folder)


def test_the_page_makes_a_wheel_of_its_program(tmp_path: Path) -> None:
    page = (ROOT / "docs/triton-programs.md").read_text()
    python, toml = (re.findall(rf"```{language}\n(.*?)```", page, re.S) for language in ("python", "toml"))
    project = Project(tmp_path)
    for name, text in zip(("rows.py", "kernels/program.py", "SConstruct"), python, strict=False):
        project.write(name, text)
    project.write("pyproject.toml", toml[0])
    session = re.search(r"^\$ kernelwright record (.*)\n(.*)$", page, re.M)
    assert session
    assert recorded(project.folder, session[1]).stdout.strip() == session[2]
    labels = project.scons("-j2", "wheel").labels
    assert (labels["LOWER"], labels["WHEEL"]) == (4, 1)


def commands_of(page: str) -> list[str]:
    """The lines of the first block of a page."""
    block = re.search(r"^```text\n(.*?)^```", page, re.M | re.S)
    assert block
    return [line.partition("#")[0].strip() for line in block[1].splitlines()]


def test_the_program_makes_the_recording_that_is_beside_it(example: Project) -> None:
    (line,) = [one for one in commands_of((EXAMPLE / "README.md").read_text()) if one.startswith("kernelwright record")]
    printed = recorded(example.folder, line.removeprefix("kernelwright record"), "--fresh").stdout
    assert printed.splitlines()[-1].startswith("kernels/calls.json: 4 functions, 19 specializations (19 new) from")
    made, kept = (folder / "kernels/calls.json" for folder in (example.folder, EXAMPLE))
    assert made.read_text() == kept.read_text()


def test_its_wheel_launches_what_serve_asks_for_without_triton(example: Project, tmp_path: Path) -> None:
    """It takes long: Triton compiles 19 functions."""
    assert example.scons("-j2", "wheel", "ARCHS=sm_90a").labels["LOWER"] == 19
    (wheel,) = (example.folder / "dist").glob("*.whl")
    home = environment(tmp_path / "env", *NEEDED, wheel)
    assert run(home, ALONE) == "\n12 1 2 4\n"
    make_standin(example)
    stubs = example.write("stubs/matrices.py", MATRICES).parent
    also = os.pathsep.join(map(str, (stubs, ROOT / "tests", SITE_SCONS)))
    machine = {"KERNELWRIGHT_CUDA_DRIVER": str(example.folder / "standin.so"), "STANDIN_CAPABILITY": "90"}
    machine |= {"STANDIN_SHARED": "232448", "STANDIN_LOG": str(tmp_path / "log"), "STANDIN_PARAMETERS": PARAMETERS}
    code = SERVED.replace("FOLDER", repr(str(example.folder)))
    printed = run(home, code, env=machine | {"ALSO_FROM": also})
    assert printed.startswith("(256, 64)\n(300, 64)\nkernel 'softmax_kernel': no such call was recorded\n")
    assert "the nearest of the 4 that were recorded has: BLOCK = " in printed
    assert launches(tmp_path / "log") == [
        # Four tiles of 64 by 64 each way; q and k begin at the first two addresses, and k is read by columns.
        "matmul_kernel 4 4 1 x 128: 0x100000 0x200000 0x400000 256 256 64 64 64 256 0.125",
        "softmax_kernel 256 1 1 x 128: 0x500000 0x400000 256 256",
        "matmul_kernel 4 1 1 x 128: 0x500000 0x300000 0x600000 256 64 256 256 64 64 1",
        "matmul_kernel 5 5 1 x 128: 0x700000 0x800000 0xb00000 300 300 64 64 64 300 0.125",
        f"softmax_kernel 300 1 1 x 128: 0xc00000 0xb00000 {0xA00000} 300",
        "matmul_kernel 5 1 1 x 128: 0xc00000 0x900000 0xd00000 300 64 300 300 64 64 1",
    ]


def launches(log: Path) -> list[str]:
    """Function, grid, threads and parameters of each launch."""
    pattern = r"^launch (\S+) cubin sm_90 .* grid (\d+ \d+ \d+) block (\d+) 1 1 .* parameters (.*)$"
    return ["{} {} x {}: {}".format(*found) for found in re.findall(pattern, log.read_text(), re.M)]
