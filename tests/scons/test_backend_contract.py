"""What a call takes and returns is the same with each backend, in packages and on demand: numbers, several outputs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.demand import Demand
from support.project import Project, new_project

DEFINITION = '''
    import numpy as np
    from kernelwright import grid, kernel
    from kernelwright.runtime.dtype import numpy_dtype
    from tvm import te


    def wide(dtype):
        """What has all numbers of a dtype."""
        return dtype if dtype in ("float64", "uint64") else "float32" if "float" in dtype else "int64"


    def define(dtype):
        n, a = te.var("n"), te.var("a", dtype)
        x = te.placeholder((n,), "float32", name="x")
        return te.create_prim_func([x, a, te.compute((n,), lambda i: a.astype(wide(dtype)), name="y")])


    def reference(x, a, dtype):
        return np.full(x.shape, np.asarray(a, numpy_dtype(dtype))).astype(wide(dtype))


    def declared(name, dtypes):
        define.__name__ = name
        made = kernel(configs=grid(dtype=dtypes), outputs=["y"], targets=["llvm"])(define)
        made.reference(reference)
        return made

    {kernels}

    @kernel(outputs=["y"], targets=["llvm"], configs=grid(dtype={narrow}))
    def same(dtype):
        n = te.var("n")
        x = te.placeholder((n,), dtype, name="x")
        return te.create_prim_func([x, te.compute((n,), lambda i: x[i], name="y")])


    @kernel(outputs=["y", "z"], targets=["llvm"])
    def pair():
        n = te.var("n")
        x = te.placeholder((n,), "float32", name="x")
        z = te.compute((n,), lambda i: x[i] * 2.0, name="z")
        y = te.compute((n + 1,), lambda i: te.if_then_else(i < n, x[te.min(i, n - 1)] + 1.0, 0.0), name="y")
        return te.create_prim_func([x, z, y])


    @pair.reference
    def _(x):
        return np.append(x + 1, np.float32(0)).astype("float32"), x * 2


    @pair.backward(outputs=["grad_x"])
    def _():
        n = te.var("n")
        x = te.placeholder((n,), "float32", name="x")
        gy, gz = te.placeholder((n + 1,), "float32", name="grad_y"), te.placeholder((n,), "float32", name="grad_z")
        return te.create_prim_func([x, gz, gy, te.compute((n,), lambda i: gy[i] + 2.0 * gz[i], name="grad_x")])
'''
NARROW = [
    *(
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
    ),
    *("float8_e5m2fnuz", "float8_e8m0fnu"),
]
KINDS = {
    "flag": ["bool"],
    "whole": [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)][:-1],
    "natural": ["uint64"],
    "real": ["float16", "float32", "float64", *NARROW],
}
"""Name of a kernel -> the dtypes of its number. Frameworks tell apart what is an integer, and what has no sign."""

OF_ML_DTYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2fnuz"]
"""Dtypes of arrays that NumPy hands to nobody."""

CALLS = """
import json, sys, warnings
import numpy as np
import ml_dtypes
from kernelwright.runtime.dtype import numpy_dtype
warnings.simplefilter("ignore")
np.seterr(all="ignore")

def values(dtype):
    '''Numbers of Python and NumPy, each with what it is as a number of the dtype; None, where it is out of range.'''
    kinds = [np.bool_(True), True, np.int8(3), np.uint64(5), np.int64(7), 1]
    if dtype == "bool":
        return [(value, int(bool(value))) for value in kinds]
    if "int" in dtype:
        bits = int(dtype.lstrip("uint"))
        low, high = (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        kinds += [low, high, low - 1, high + 1, 2**63, 2**64 - 1, 2**64, np.uint64(2**64 - 1), -1]
        return [(value, int(value) if low <= int(value) <= high else None) for value in kinds]
    kinds += [1.3, -0.2, 7, 200.0, 1e-3, 0.0, np.float32(1.3), np.float16(0.7), np.float64(3.3), 2**63, 2**64]
    kinds += [ml_dtypes.bfloat16(0.3), float("inf"), -1e30, float("nan"), 10**400]
    def rounded(value):
        return float(np.asarray(float(value)).astype(numpy_dtype(dtype)))

    return [(value, None if type(value) is int and value > 2**1023 else rounded(value)) for value in kinds]

def check(kernel_of, like, array):
    wrong = []
    for name, dtype in [(name, dtype) for name, dtypes in KINDS.items() for dtype in dtypes]:
        kernel = kernel_of(name, dtype)
        for value, expected in values(dtype):
            try:
                got = array(kernel(like, value)).astype(np.float64 if "float" in dtype else object)[0]
            except (ValueError, OverflowError) as error:
                got = None
                if f"kernel '{name}'" not in str(error):
                    wrong.append([dtype, repr(value)[:40], str(error)[:200]])
            except Exception as error:
                if isinstance(error, OWN) and isinstance(value, (int, np.integer)) and not -(2**63) <= value < 2**63:
                    continue  # PyTorch itself says that its integers are not so large
                got = f"{type(error).__name__}: {error}"[:200]
            if got != expected and not (got != got and expected != expected):
                wrong.append([dtype, repr(value)[:40], str(got), str(expected)])
    return wrong
"""

BACKENDS = {
    "tvm_ffi": "OWN = (); like, array = np.zeros(2, 'float32'), np.from_dlpack",
    "cython": "OWN = (); like, array = np.zeros(2, 'float32'), np.asarray",
    "torch": "import torch; OWN = RuntimeError; like, array = torch.zeros(2), lambda made: made.numpy()",
    "jax": (
        "import jax; jax.config.update('jax_enable_x64', True); "
        "OWN = (); like, array = np.zeros(2, 'float32'), np.asarray"
    ),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = new_project(tmp_path_factory.mktemp("contract"))
    for name in ("scale", "add_one"):
        (made.folder / f"kernels/{name}.py").unlink()
    made.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    made.write(
        "kernels/numbers.py",
        DEFINITION.format(
            kernels="".join(f"{n} = declared({n!r}, {d})\n    " for n, d in KINDS.items()), narrow=OF_ML_DTYPES
        ),
    )
    made.scons("-j2", "build/demo", "check", f"BACKENDS={','.join(BACKENDS)}")
    return made


def called(project: Project, backend: str, code: str) -> Any:
    head = f"{CALLS}\nKINDS = {KINDS}\n{BACKENDS[backend]}\nfrom demo.backends import {backend} as kernels\n"
    output = project.python(head + code)
    return json.loads(output.splitlines()[-1])


CHECK = """
print(json.dumps(check(lambda name, dtype: getattr(kernels, name).variant(dtype=dtype), like, array)))
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_of_any_dtype_and_of_any_kind_is_taken_or_out_of_range(project: Project, backend: str) -> None:
    assert called(project, backend, CHECK) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_outputs_are_a_tuple_in_the_order_of_the_definition(project: Project, backend: str) -> None:
    code = """
made = kernels.pair(like + 1)
print(json.dumps([type(made).__name__, *(array(one).tolist() for one in made)]))
"""
    assert called(project, backend, code) == ["tuple", [2.0, 2.0, 0.0], [2.0, 2.0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_says_for_programs_why_a_call_is_refused(project: Project, backend: str) -> None:
    code = """
from demo._runtime.refusal import refusal_of
def why(call):
    try:
        call()
    except Exception as error:
        return refusal_of(error)
refused = [lambda: kernels.whole(kernels, 1), lambda: kernels.natural(like, -1), lambda: kernels.flag(like[None], 1)]
refused += [lambda what=what: kernels.whole(what, 1) for what in ([1.0], {}, None, len)]
print(json.dumps([why(call) for call in refused]))
"""
    assert called(project, backend, code) == ["by_kernel", "by_kernel", "no_variant", *["by_kernel"] * 4]


NAMED = """
whole = kernels.whole.variant(dtype="int64")
made = [whole(x=like, a=3), whole(like, a=3), whole(a=3, x=like)]
values = [array(one).tolist() for one in made]
chosen = whole.choice(a=3, x=like).config
if backend != "jax":  # whose outputs are always new
    y, z = like.repeat(2)[:3] if hasattr(like, "repeat_interleave") else np.zeros(3, "float32"), like * 0
    kernels.pair(y=y, x=like + 1, z=z)
    values += [y.tolist(), z.tolist()]
def said(**named):
    try:
        whole(like, **named)
    except TypeError as error:
        return str(error)
print(json.dumps([values, chosen, said(x=like, a=1), said(b=1), said()]))
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_can_be_given_by_name(project: Project, backend: str) -> None:
    values, chosen, twice, unknown, missing = called(project, backend, f"backend = {backend!r}\n{NAMED}")
    assert values == [[3, 3]] * 3 + ([] if backend == "jax" else [[2.0, 2.0, 0.0], [2.0, 2.0]])
    assert chosen == {"dtype": "int64"}
    assert "'x'" in twice and "'b'" in unknown and missing


@pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend != "torch"])
def test_arrays_that_numpy_hands_to_nobody_are_taken(project: Project, backend: str) -> None:
    code = f"""
made = []
for dtype in {OF_ML_DTYPES}:
    x = np.asarray([0.5, -1.5, 2.0, 8.0]).astype(numpy_dtype(dtype))
    same = kernels.same.variant(dtype=dtype)
    x.flags.writeable = False
    results = [same(x), same(x[:0]), kernels.same(x[1:])]
    if {backend!r} == "jax":
        made.append([np.asarray(one).astype(float).tolist() for one in results])
        continue
    y = np.zeros_like(x)
    same(x, y)
    try:
        same(x, x)
    except ValueError as error:
        refused = "a read-only array, and the kernel writes it" in str(error)
    shapes = [list(one.shape) for one in results]
    made.append([y.astype(float).tolist(), refused, shapes])
print(json.dumps(made))
"""
    x = [0.5, -1.5, 2.0, 8.0]
    expected = [x, [], x[1:]] if backend == "jax" else [x, True, [[4], [0], [3]]]
    assert called(project, backend, code) == [expected] * len(OF_ML_DTYPES)


def test_on_demand_the_same_is_taken_and_returned(project: Project) -> None:
    code = f"""{CALLS}
KINDS = {{"flag": ["bool"], "natural": ["uint64"], "real": ["bfloat16", "float8_e4m3fn"]}}
{BACKENDS["tvm_ffi"]}
import kernelwright
kernels = kernelwright.load("kernels/numbers.py")
wrong = check(lambda name, dtype: getattr(kernels, name).compile(dtype=dtype), like, array)
made = kernels.pair(x=like + 1)
narrow = np.ones(3, numpy_dtype("bfloat16"))
kernels.same(narrow * 2, y=narrow)
wrong += [] if narrow.astype(float).tolist() == [2, 2, 2] else [repr(narrow)]
print(json.dumps([wrong, type(made).__name__, *(array(one).tolist() for one in made)]))
"""
    output = Demand(project).run(code).stdout
    assert json.loads(output.splitlines()[-1]) == [[], "tuple", [2.0, 2.0, 0.0], [2.0, 2.0]]


TRACED = {
    "torch": """
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode() as mode:
    shapes = [list(one.shape) for one in kernels.pair(mode.from_tensor(like))]
x = like.clone().requires_grad_()
y, z = torch.compile(kernels.pair, backend="eager", fullgraph=True)(x)
((10 * y).sum() + z.sum()).backward()
gradient = x.grad.tolist()
""",
    "jax": """
shapes = [list(one.shape) for one in jax.eval_shape(kernels.pair, like)]
def loss(x):
    y, z = jax.jit(kernels.pair)(x)
    return (10 * y).sum() + z.sum()
gradient = jax.grad(loss)(like).tolist()
""",
}


@pytest.mark.parametrize("backend", TRACED)
def test_tracers_and_gradients_have_the_outputs_in_that_order_too(project: Project, backend: str) -> None:
    code = f"{TRACED[backend]}\nprint(json.dumps([shapes, gradient]))"
    assert called(project, backend, code) == [[[3], [2]], [12.0, 12.0]]
