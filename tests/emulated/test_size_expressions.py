"""Sizes of definitions that declare their arguments: every backend computes them, with what Python computes."""

from __future__ import annotations

import pytest
from support.project import Project
from support.standin_calls import call, make_standin, started

SETTINGS = """\
[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_90a"]
backends = ["tvm_ffi", "cuda_core"]
"""

EXPRESSIONS = {
    "int32": ["(n - m) // 3", "(n - m) % 3", "-n // 7 + max(n, m, 3)", "n // m", "n % m", "k * 2"],
    "int64": ["n * m * 100000"],
    "uint32": ["(100 - n) // 2", "u - 1", "u * u // (u + 1)"],
    "uint64": ["min(n, 5)"],
}
"""By dtype. ``k`` is an int64 and ``u`` a uint32 that callers pass."""

KERNEL = f"""\
from kernelwright import kernel
from kernelwright.cuda import Scalar, Size, Source, Tensor, ceildiv

EXPRESSIONS = {EXPRESSIONS}
TYPES = {{"int32": "int", "int64": "long long", "uint32": "unsigned", "uint64": "unsigned long long"}}
SIZES = [(text, dtype) for dtype, texts in EXPRESSIONS.items() for text in texts]
PARAMETERS = "const float *x, const float *y, long long k, unsigned u, " + ", ".join(TYPES[dtype] for _, dtype in SIZES)


@kernel(frontend="cuda")
def sizes():
    return Source(
        f"__global__ void sizes({{PARAMETERS}}) {{{{}}}}\\n",
        "sizes",
        x=Tensor("float32", "n"),
        y=Tensor("float32", "m"),
        k=Scalar("int64"),
        u=Scalar("uint32"),
        **{{f"size_{{i}}": Size(text, dtype) for i, (text, dtype) in enumerate(SIZES)}},
        grid=(ceildiv("n * m * 4096", 4096), "k", "u"),
        block=ceildiv("(n + 1) + m", "(m) + 1"),
    )


@kernel(frontend="cuda")
def eights():
    x, y = Tensor("float32", "n"), Tensor("float32", "m", "8 * n")
    return Source("__global__ void eights(const float *x, const float *y) {{}}\\n", "eights", x=x, y=y, grid=1, block=1)
"""

PARAMETERS = "ppli" + "".join(
    {"int32": "i", "uint32": "i"}.get(dtype, "l") * len(t) for dtype, t in EXPRESSIONS.items()
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project."""
    project = Project.of(tmp_path_factory.mktemp("sizes"), SETTINGS, sizes=KERNEL)
    project.scons("-j2")
    make_standin(project)
    return project


def calling(n: int, m: int, k: int, u: int) -> str:
    return f"demo.sizes, on_cuda({n}, data=0x100), on_cuda({m}, data=0x200), {k}, {u}"


@pytest.mark.parametrize("cuda_core", [False, True])
@pytest.mark.parametrize(("n", "m", "k", "u"), [(5, 12, 3, 2), (12, 5, 1, 1), (100, 1000000, 7, 65535)])
def test_every_backend_computes_what_python_computes(built, n, m, k, u, cuda_core):
    code = f"(lambda f, *values: f(*values))({calling(n, m, k, u)})"
    _, log = call(built, code, parameters=PARAMETERS, capability=90, cuda_core=cuda_core)
    grid, _, parameters = started(log)
    names = {"n": n, "m": m, "k": k, "u": u, "min": min, "max": max}
    expected = [eval(text, names) for texts in EXPRESSIONS.values() for text in texts]
    assert [int(value) for value in parameters[4:]] == expected
    assert grid == (n * m, k, u)


REFUSED = {
    "a divisor that is 0": ((5, 0, 1, 1), "the size n // m divides by 0 in this call"),
    "a number that wraps in 32 bits": (
        (5, 3, 2**32 + 1, 1),
        "'size_5' is k * 2, which does not fit int32 in this call",
    ),
    "a negative number": ((102, 3, 1, 1), "'size_7' is (100 - n) // 2, which does not fit uint32 in this call"),
    "a negative sum of unsigned numbers": ((5, 3, 1, 0), "'size_8' is u - 1, which does not fit uint32 in this call"),
}


@pytest.mark.parametrize("cuda_core", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_every_backend_refuses_what_no_number_says(built, name, cuda_core):
    numbers, expected = REFUSED[name]
    printed, log = call(built, f"print(message_of({calling(*numbers)}))", capability=90, cuda_core=cuda_core)
    assert printed == f"ValueError: kernel 'sizes': {expected}\n  remedy: pass other sizes and numbers"
    assert not [line for line in log if line.startswith("launch ")]


@pytest.mark.parametrize("cuda_core", [False, True])
def test_a_compact_array_whose_computed_size_is_another_one_is_told_to_fit(built, cuda_core):
    code = "print(message_of(demo.eights, on_cuda(5), on_cuda(2, 41)))"
    printed, _ = call(built, code, capability=90, cuda_core=cuda_core)
    assert "y: Tensor([m, n * 8], float32))`" in printed
    assert printed.endswith("remedy: pass arrays whose sizes fit each other")
    code = "print(message_of(demo.eights, on_cuda(5), on_cuda(2, 40, strides=(50, 1))))"
    assert "remedy: pass a contiguous copy" in call(built, code, capability=90, cuda_core=cuda_core)[0]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("Size(2**20) * 2**20", "argument 'size_0' is 1099511627776, which does not fit int32"),
        ('Size("n // (3 - 3)")', r"the size n // (3 - 3) divides by 0"),
    ],
)
def test_a_constant_that_no_call_can_have_is_an_error_of_the_build(built, tmp_path, size, expected):
    project = built.copied(tmp_path / "copy")
    project.replace("kernels/sizes.py", "        grid=(", f"        size_0={size},\n        grid=(")
    project.replace("kernels/sizes.py", "enumerate(SIZES)}", "enumerate(SIZES) if i}")
    output = project.scons(ok=False).output
    assert f"[lower]: {expected}" in output and "remedy: " in output
