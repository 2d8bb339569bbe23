"""References of kernels in Triton, compared without a GPU: the interpreter of Triton runs the definition."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, version

import pytest
from kernelwright.frontends.triton.program import INTERPRETER
from support.project import Project

try:
    version("triton"), version("torch")
except PackageNotFoundError:
    pytest.skip(f"Triton's interpreter needs {INTERPRETER.missing}", allow_module_level=True)

SETTINGS = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80"]\n'
DOUBLED = "build/check/demo/doubled/default.interpreted.json"
HELPERS = """\
import triton
import triton.language as tl


@triton.jit
def twice(a):
    return a + a
"""
CHECKED = '''\
import numpy as np
import triton
import triton.language as tl
from helpers import twice
from triton.language.extra.libdevice import rsqrt
from kernelwright import grid, kernel
from kernelwright.triton import Program, Scalar, Size, Tensor, ceildiv


@triton.jit
def numbers_kernel(x, alpha, big, y, n, columns, WIDTH, ROUND, BLOCK: tl.constexpr, step=1):
    """Numbers that are no int32 and no float32, and constants that are not said to be some."""
    at = (tl.program_id(0) * BLOCK + tl.arange(0, WIDTH)) * step
    value = tl.load(x + at, mask=at < n).to(tl.float32).to(tl.float64) * alpha
    if ROUND is None:
        value += (big >> 40).to(tl.float64) + columns.to(tl.float64)
    tl.store(y + at, value, mask=at < n)


@kernel(frontend="triton", configs=grid(dtype=["bfloat16", "uint16"]), outputs=["y"])
def numbers(dtype):
    vectors = {"x": Tensor(dtype, "n"), "alpha": Scalar("float64"), "big": Scalar("int64"), "y": Tensor("float64", "n")}
    sizes = {"n": Size("n"), "columns": Size("n * 4294967296", "int64")}
    return Program(
        numbers_kernel, **vectors, **sizes, WIDTH=64, ROUND=None, BLOCK=64, step=Size(1), grid=ceildiv("n", 64)
    )


@numbers.inputs
def _(rng, n):
    return {"big": 5 << 40, "alpha": 1 + 2.0**-40} if n < 1000 else None


@numbers.reference
def _(x, alpha, big):
    return x.astype("float64") * alpha + 5 + len(x) * 2.0**32


@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % 16 == 0, "STEP": lambda args: args["BLOCK"] // 4})
@triton.jit
def doubled_kernel(x, y, n, BLOCK: tl.constexpr, STEP: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * STEP + tl.arange(0, STEP)
    if EVEN:
        tl.store(y + at, twice(tl.load(x + at)))
    else:
        tl.store(y + at, twice(tl.load(x + at, mask=at < n)), mask=at < n)


@kernel(frontend="triton", specialize="auto", divisible={"n": [16, 1]}, outputs=["y"])
def doubled():
    vector = Tensor("float32", "n")
    return Program(doubled_kernel, x=vector, y=vector, n=Size("n"), BLOCK=64, grid=ceildiv("n", 16))


@doubled.inputs
def _(rng, n):
    return {} if n < 1000 else None


@doubled.reference
def _(x):
    return 2 * x


@triton.jit
def sums_kernel(x, y):
    row = tl.load(x + tl.arange(0, 64))
    tl.store(y, tl.sum(row))
    tl.store(y + 1, tl.argmax(row, 0).to(tl.float32))
    tl.store(y + 2, tl.max(tl.fma(row, row, tl.cumsum(row, 0))))


@kernel(frontend="triton", outputs=["y"])
def sums():
    return Program(sums_kernel, x=Tensor("bfloat16", 64), y=Tensor("float32", 3), grid=1)


@sums.inputs
def _(rng):
    return {"x": rng.integers(-3, 3, 64)}


@sums.reference
def _(x):
    x = x.astype("float32")
    return np.array([x.sum(), x.argmax(), (x * x + x.cumsum()).max()], "float32")


@triton.jit
def casts_kernel(x, y):
    at = tl.arange(0, 64)
    narrow = tl.load(x + at).to(tl.bfloat16)
    tl.store(y + at, (narrow.to(tl.float32) * 65536).to(tl.int32) + narrow.to(tl.int32) + (at + 300).to(tl.bfloat16))


@kernel(frontend="triton", outputs=["y"])
def casts():
    return Program(casts_kernel, x=Tensor("float32", 64), y=Tensor("int32", 64), grid=1)


@casts.reference
def _(x):
    narrow, sums = x.astype("bfloat16").astype("float32"), np.arange(300, 364).astype("bfloat16").astype("float32")
    return ((narrow * 65536).astype("int32") + narrow.astype("int32") + sums).astype("int32")


@triton.jit
def assembly_kernel(y):
    at = tl.arange(0, 32)
    tl.store(y + at, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [at], tl.int32, True, 1))


@triton.jit
def library_kernel(y):
    at = tl.arange(0, 32)
    tl.store(y + at, rsqrt(at.to(tl.float32)).to(tl.int32))


@kernel(frontend="triton", configs=[{"function": "assembly"}, {"function": "library"}], outputs=["y"])
def lacking(function):
    function = {"assembly": assembly_kernel, "library": library_kernel}[function]
    return Program(function, y=Tensor("int32", 32), grid=1)


@lacking.reference
def _():
    return np.arange(32, dtype="int32")
'''


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose kernels are checked, which tests do not change."""
    project = Project.of(tmp_path_factory.mktemp("interpreted"), SETTINGS)
    project.write("helpers.py", HELPERS)
    project.write("kernels/checked.py", CHECKED)
    run = project.scons("check", "-j2")
    assert run.labels["CHECK"] == 10
    assert "[ CHECK ] numbers/dtype-bfloat16 interpreted\n" in run.output
    for name in ("assembly", "library"):
        assert f"lacking/function-{name} is not checked, as the interpreter cannot run it" in run.output
    assert "inline_asm not supported" in run.output
    assert "libdevice not supported" in run.output
    return project


def test_all_variants_are_compared_at_sizes_of_their_class(checked):
    """It takes long: Triton's interpreter runs each variant at several sizes."""
    found = {
        name.removeprefix("build/check/demo/"): json.loads(text) for name, text in checked.files("build/check").items()
    }
    cases = {name: result["cases"] for name, result in found.items()}
    numbers = {f"numbers/dtype-{dtype}.interpreted.json": 5 for dtype in ("bfloat16", "uint16")}
    classes = ("all_multiple_of-16", "all_multiple_of-16_n_multiple_of-16", "n_multiple_of-16", "default")
    doubled = {f"doubled/{slug}.interpreted.json": 5 if slug == "default" else 4 for slug in classes}
    lacking = {f"lacking/function-{name}.interpreted.json": 0 for name in ("assembly", "library")}
    once = {f"{name}/default.interpreted.json": 1 for name in ("sums", "casts")}
    assert cases == {**numbers, **doubled, **lacking, **once}
    assert {result["device"] for result in found.values()} == {"interpreted"}
    sizes = [size["n"] for size in found["doubled/all_multiple_of-16.interpreted.json"]["sizes"]]
    assert sizes == [48, 16, 144, 0]  # each once


LIMITED = """\
import numpy as np
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Size, Tensor, ceildiv


@triton.jit
def softmax_kernel(x, y, longest, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    powers = tl.exp(tl.load(x + row * n + at, mask=at < n, other=float("-inf")))
    tl.store(y + row * n + at, powers / tl.sum(powers, axis=0), mask=at < n)
    if row % 2 == 0:
        tl.store(longest + row // 2, n)


def softmax(block=4096):
    given = {"x": Tensor("float32", "2 * m", "n"), "y": Tensor("float32", "2 * m", "n"), "m": Tensor("int8", "m")}
    longest = Tensor("int32", ceildiv("2 * m", 2))
    return Program(softmax_kernel, x=given["x"], y=given["y"], longest=longest, n=Size("n"), BLOCK=block, grid="2 * m")
"""


def test_a_row_that_is_longer_than_the_block_fails_and_a_declared_limit_is_tried(project: Project) -> None:
    """The argument whose size tells the others is one that the function gets, too."""
    text = LIMITED.replace("softmax_kernel(x, y, longest, n,", "softmax_kernel(m, x, y, longest, n,")
    text = text.replace("Program(softmax_kernel, x", 'Program(softmax_kernel, m=given["m"], x')
    for name, more in {"plain": "", "limited": ', requires=["n <= BLOCK", "n > 0"]'}.items():
        text += f"""

@kernel(frontend="triton", outputs=["y", "longest"]{more})
def {name}():
    return softmax()


@{name}.reference
def _(m, x):
    powers = np.exp(x)
    return powers / powers.sum(axis=1, keepdims=True), np.full(len(m), x.shape[1], "int32")


@{name}.inputs
def _(rng, m):
    return {{}} if m < 100 else None
"""
    for name in ("add_one", "scale"):
        (project.folder / f"kernels/{name}.py").unlink(missing_ok=True)
    project.write("kernels/softmax.py", text)
    project.write("pyproject.toml", SETTINGS)
    run = project.scons("check", "-k", "-j2", ok=False)
    assert re.search(r"plain/default \[check\]: y differs from the reference at m=7, n=4097 on inter", run.output), (
        run.output
    )
    assert 'no more than 4096, declare that: requires=["n <= BLOCK"]' in run.output
    checked = json.loads(project.files("build/check/demo/limited")["build/check/demo/limited/default.interpreted.json"])
    assert {"m": 7, "n": 4096} in checked["sizes"] and all(1 <= sizes["n"] <= 4096 for sizes in checked["sizes"])


def test_an_edit_checks_again_what_it_changes_and_says_what_is_wrong_where(checked):
    project = checked
    assert project.scons("check").stages == []
    project.replace("kernels/checked.py", "return 2 * x", "return 2 * x + (x > 99)")
    run = project.scons(DOUBLED, "-j2")
    assert run.labels["CHECK"] == 1
    project.replace("helpers.py", "a + a", "a + a + (a > 1)")
    run = project.scons(DOUBLED, "-k", "-j2", ok=False)
    wrong = r"kernels/checked\.py:\d+ doubled/default \[check\]: y differs from the reference at n=33 on interpreted: "
    assert re.search(wrong, run.output), run.output
    project.replace("helpers.py", "a + a + (a > 1)", "a + a")
    # An error of the interpreter is at its line: an assertion, for one, of which compiled code has none.
    project.replace("kernels/checked.py", "    if EVEN:", "    assert n < 100\n    if EVEN:")
    output = project.scons(DOUBLED, "-k", ok=False).output
    line = 1 + (project.folder / "kernels/checked.py").read_text().splitlines().index("    assert n < 100")
    place = f"kernels/checked.py:{line} doubled/default [check]: the interpreted function of doubled raised Assert"
    assert place in output and "AssertionError (at n=" in output, output
