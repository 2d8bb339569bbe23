"""The check of a built library against its reference: what passes, and what each kind of mistake is called."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernelwright import kernel
from kernelwright.backends.plan import LoweredUnit
from kernelwright.core.converter import from_json
from kernelwright.core.dtype import Dtype, numpy_dtype
from kernelwright.core.errors import CheckError, DefinitionError, Where, WorkerError
from kernelwright.core.signature import UNKNOWN, Argument, Launch, Signature
from kernelwright.processes import worker as worker_module
from kernelwright.processes.protocol import CheckRequest, CheckResult
from kernelwright.runtime.strides import fold
from kernelwright.worker import check as check_module
from kernelwright.worker.check import Check, from_device, to_device
from kernelwright.worker.check_inputs import random_array
from kernelwright.worker.check_sizes import SizeSets, size_sets
from kernelwright.worker.strided import Spread, Strided, strides_for
from support.launcher_build import build, plan
from support.moments import HANGS_AFTER_S
from support.workers_project import Project

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

SCALE = """
from kernelwright import grid, kernel
from tvm.script import tirx as T
from tvm import tirx

@kernel(configs=[{{"dtype": {dtype!r}}}], outputs=[{output}])
def scale(dtype):
    n = tirx.Var("n", "int32")
    @T.prim_func(s_tir=True)
    def main(alpha: T.{scalar}, x: T.Buffer((n, 3), dtype), y: T.Buffer((n, 3), dtype)):
        for i, j in T.grid(n, 3):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                {statement}
    return main

{more}
"""

STATEMENT = "y[vi, vj] = T.cast(alpha, dtype) * x[vi, vj]"
REFERENCE = "import numpy as np\n@scale.reference\ndef _(alpha, x):\n    return x * np.asarray(alpha).astype(x.dtype)\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("check"))
    with project.pool:
        yield project


def library_of(project: Project, kernel: str, contents: dict[str, bytes]) -> tuple[Signature, Path]:
    """The signature of what was lowered, and its library."""
    signature = json.loads(contents["signature.json"])
    (project.folder / "host.o").write_bytes(contents["host.o"])
    outputs = [argument["name"] for argument in signature["arguments"] if argument["output"]]
    unit = LoweredUnit.from_json(signature, "host.o")
    return from_json(Signature, signature), build(project.folder, plan(kernel, unit, outputs=outputs))


UNSCHEDULED = """
import numpy as np
from kernelwright import kernel
from tvm import te

@kernel(outputs=["y"])
def softmax():
    n = te.var("n")
    x = te.placeholder((n, 100), "float32", name="x")
    k1, k2 = te.reduce_axis((0, 100), name="k1"), te.reduce_axis((0, 100), name="k2")
    top = te.compute((n,), lambda i: te.max(x[i, k1], axis=k1), name="top")
    e = te.compute((n, 100), lambda i, j: te.exp(x[i, j] - top[i]), name="e")
    total = te.compute((n,), lambda i: te.sum(e[i, k2], axis=k2), name="total")
    return te.create_prim_func([x, te.compute((n, 100), lambda i, j: e[i, j] / total[i], name="y")])

@softmax.reference
def _(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)

@kernel(outputs=["y"])
def gemv():
    n = te.var("n")
    a = te.placeholder((n, 100), "float32", name="a")
    x = te.placeholder((100,), "float32", name="x")
    k = te.reduce_axis((0, 100), name="k")
    return te.create_prim_func([a, x, te.compute((n,), lambda i: te.sum(a[i, k] * x[k], axis=k), name="y")])

@gemv.reference
def _(a, x):
    return a @ x
"""


@pytest.mark.parametrize("kernel", ["softmax", "gemv"])
def test_what_tvms_rules_schedule_for_the_cpu_is_right(project: Project, kernel: str) -> None:
    project.write("kernels/te.py", UNSCHEDULED)
    result = project.lower("kernels/te.py", kernel)
    assert result["schedule"].startswith("dlight.cpu.")
    signature, library = library_of(project, kernel, result["contents"])
    request = CheckRequest("kernels/te.py", kernel, "default", str(library), 0, signature, "cpu", 1e-4)
    assert project.pool.call(request).cases == 7


BUILT: dict[tuple[str, ...], tuple[Signature, bytes]] = {}
"""Signature and library of what was built for other tests: they differ in their references."""


def check(
    project: Project,
    more: str = REFERENCE,
    *,
    statement: str = STATEMENT,
    dtype: str = "float32",
    output: str = '"y"',
    tolerance: float | None = None,
    built: str | None = None,
    definition: str = SCALE,
) -> dict[str, Any]:
    """Lower, build and check; ``built`` is a statement to build instead of the one that is checked."""
    scalar = "int32" if "int" in dtype else "float32"

    def write(code: str) -> str:
        text = definition.format(dtype=dtype, output=output, scalar=scalar, statement=code, more=more)
        return str(project.write("kernels/scale.py", text).relative_to(project.folder))

    slug, config = f"dtype-{dtype}", {"dtype": dtype}
    identity = (built or statement, dtype, output, definition)
    if identity not in BUILT:
        contents = project.lower(write(built or statement), "scale", slug=slug, config=config)["contents"]
        signature, library = library_of(project, "scale", contents)
        BUILT[identity] = signature, library.read_bytes()
    signature, content = BUILT[identity]
    file = write(statement)
    # A name of its own for each test: a process does not load a library twice.
    library = project.folder / f"scale{len(list(project.folder.glob('scale*.so')))}.so"
    library.write_bytes(content)
    return project.pool.call(CheckRequest(file, "scale", slug, str(library), 0, signature, "cpu", tolerance))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_a_right_kernel_passes_for_all_sizes_and_with_its_outputs_left_out(project: Project, dtype: str) -> None:
    result = check(project, dtype=dtype)
    assert list(result.sizes) == [{"n": 33}, {"n": 1}, {"n": 130}, {"n": 7}, {"n": 0}, {"n": 2053}]
    assert result.cases == 7 and result.device == "cpu"
    assert result.worst_error <= 1e-2
    assert set(result.dependencies) == {"kernels/scale.py"}


def test_a_mistake_that_only_long_rows_show_is_seen(project: Project) -> None:
    with pytest.raises(CheckError, match=r"at n=2053 on cpu: y\[1024, 0\] is nan"):
        check(project, statement="if vi < 1024: " + STATEMENT)


def test_what_the_reference_reads_when_it_is_called_is_a_dependency(project: Project) -> None:
    project.write("kernels/factors.py", "ONE = 1\n")
    more = REFERENCE.replace("return x", "import factors\n    return factors.ONE * x")
    assert {"kernels/scale.py", "kernels/factors.py"} <= set(check(project, more).dependencies)


def test_a_reference_may_call_that_of_another_kernel(project: Project) -> None:
    other = "@kernel\ndef other():\n    return None\n" + REFERENCE.replace("scale", "other")
    calls = "@scale.reference\ndef _(alpha, x):\n    return other.reference_function(alpha, x)\n"
    check(project, f"from kernelwright import kernel\n{other}{calls}")


def test_what_a_reference_changes_is_not_in_what_is_lowered_later(project: Project) -> None:
    more = REFERENCE.replace("return x", "FACTORS[0] = 3.0\n    return x") + "FACTORS = [2.0]\n"
    check(project, more)
    text = (
        (project.folder / "kernels/scale.py").read_text().replace("    @T.prim", "    factor = FACTORS[0]\n    @T.prim")
    )
    file = str(project.write("kernels/scale.py", text.replace("T.cast(alpha, dtype)", "T.float32(factor)")).name)
    lower = {"slug": "dtype-float32", "config": {"dtype": "float32"}}
    before = project.lower(f"kernels/{file}", "scale", **lower)["contents"]
    signature, library = library_of(project, "scale", before)
    request = CheckRequest(f"kernels/{file}", "scale", lower["slug"], str(library), 0, signature, "cpu", 1e9)
    project.pool.call(request)
    assert project.lower(f"kernels/{file}", "scale", **lower)["contents"] == before


def test_a_wrong_value_names_sizes_argument_index_and_both_values(project: Project) -> None:
    wrong = "y[vi, vj] = T.if_then_else(tirx.all(vi == 2, vj == 1), T.float32(9), alpha * x[vi, vj])"
    with pytest.raises(CheckError) as caught:
        check(project, statement=wrong)
    error = caught.value
    assert "y differs from the reference at n=33 on cpu: y[2, 1] is 9.0, expected" in error.message
    assert "1 elements are wrong" in error.message
    assert (error.where.kernel, error.where.variant, error.where.stage) == ("scale", "dtype-float32", "check")


IN_PLACE = "@scale.reference\ndef _(alpha, x, y):\n    return {'y': y + alpha * x}\n"
ADD = "y[vi, vj] = y[vi, vj] + alpha * x[vi, vj]"


def test_an_argument_that_is_updated_in_place_is_compared(project: Project) -> None:
    assert check(project, IN_PLACE, statement=ADD, output="").cases == 6
    with pytest.raises(CheckError, match="y differs"):
        check(project, IN_PLACE, statement="y[vi, vj] = alpha * x[vi, vj]", output="")


INPUTS = """
@scale.inputs
def _(rng, n, dtype):
    if n == 0 or n > 100:
        return None
    return {"alpha": 2.0, "x": rng.uniform(5, 6, (n, 3))}

@scale.reference
def _(alpha, x, *, dtype):
    assert alpha == 2.0 and (x >= 5).all() and dtype == "float32"
    return x * np.float32(2)
"""


def test_inputs_can_be_set_and_sizes_skipped_and_the_reference_gets_the_config_that_it_asks_for(project: Project):
    assert check(project, REFERENCE + INPUTS).sizes == ({"n": 33}, {"n": 1}, {"n": 7})


def test_inputs_that_are_not_given_are_those_of_kernels_without_an_inputs_function() -> None:
    plain, given = (prepared(["n"], ["n"], lambda x: x) for _ in range(2))
    given._kernel.inputs(lambda rng, n: {})
    one, other = inputs_of(plain, n=7), inputs_of(given, n=7)
    assert one["x"].tobytes() == other["x"].tobytes() and list(other) == ["x"]


def test_inputs_may_be_numbers_with_the_name_of_a_size_and_tensors_without_dimensions() -> None:
    check = prepared(["n"], ["n"], more=[Argument("n", "scalar", "int32", output=False, written=False)])
    assert inputs_of(check, n=130)["n"] == 130
    check = prepared([], [])
    check._kernel.inputs(lambda rng: {"x": 2})
    x = inputs_of(check)["x"]
    assert x.shape == () and x == 2 and x.dtype == np.float32


@pytest.mark.parametrize("alignment", [None, 16, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float4_e2m1fn"])
def test_arrays_of_every_dtype_are_aligned_as_the_kernel_asks_and_no_better(dtype: str, alignment: int | None) -> None:
    import tvm

    array = np.arange(15).reshape(3, 5).astype(numpy_dtype(dtype))
    tensor = to_device(array, Argument("x", "tensor", dtype, False, False, (3, 5), alignment), tvm.cpu())
    expected = alignment or Dtype.parse(dtype, Where()).alignment
    address = tensor.ctypes.data if isinstance(tensor, np.ndarray) else tensor.data_ptr()
    assert address % (2 * expected) == expected
    assert from_device(tensor).tolist() == array.tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("strides", [(8, 1), (1, 4), (-9, 2), (0, 1)])
def test_arrays_have_the_strides_of_the_argument_and_what_is_beside_them_is_watched(
    dtype: str, strides: tuple[int, ...]
) -> None:
    import tvm
    import tvm_ffi

    array = np.arange(15).reshape(3, 5).astype(numpy_dtype(dtype))
    placed = Strided(
        array, Argument("x", "tensor", dtype, False, False, (3, 5), 2 * array.itemsize), tvm.cpu(), strides
    )
    assert tuple(placed.tensor.strides) == strides and str(placed.tensor.dtype) == dtype
    assert placed.tensor.data_ptr() % (4 * array.itemsize) == 2 * array.itemsize
    expected = array if strides[0] else np.broadcast_to(array[-1], array.shape)
    assert placed.given.tolist() == placed.content("x").tolist() == expected.tolist()
    first = placed.tensor.data_ptr() if strides != (-9, 2) else placed.tensor.data_ptr() - 2 * 9 * array.itemsize
    (ctypes.c_uint8 * 1).from_address(first - 1)[0] = 1
    with pytest.raises(CheckError, match=r"1 elements that are none of x have changed, whose strides are \["):
        placed.content("x")
    assert tvm_ffi.from_dlpack(placed.tensor).device == placed.tensor.device


def test_on_a_gpu_a_view_with_strides_is_one_of_a_copy_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm

    empty, gpu = tvm.runtime.empty, SimpleNamespace(dlpack_device_type=lambda: 2)
    monkeypatch.setattr(tvm.runtime, "empty", lambda shape, dtype, device: empty(shape, dtype))
    array = np.arange(15, dtype="float16").reshape(3, 5)
    placed = Strided(array, Argument("x", "tensor", "float16", False, False, (3, 5), 16), gpu, (-9, 2))
    assert tuple(placed.tensor.strides) == (-9, 2) and placed.tensor.data_ptr() % 16 == 0
    view = np.lib.stride_tricks.as_strided(np.from_dlpack(placed._memory)[placed._first :], (3, 5), (-18, 4))
    assert view.view("float16").tolist() == array.tolist()
    view[2, 4] = 0
    assert placed.content("x").tolist() == [*array[:2].tolist(), [10, 11, 12, 13, 0]]


@pytest.mark.parametrize("steps", [(1, 1), (-1, 1), (2, -2), (-2, -3)])
def test_the_memory_of_a_view_reaches_from_its_first_element_to_its_last(steps: tuple[int, int]) -> None:
    array = np.arange(35, dtype="int16").reshape(5, 7)[:: steps[0], :: steps[1]]
    for view in (array, array.T):
        spread = Spread.of(view, np.dtype("float32"))
        assert np.array_equal(spread.view(), view)
        assert np.lib.array_utils.byte_bounds(spread.view()) == np.lib.array_utils.byte_bounds(spread.memory)


def test_strides_fit_all_arguments_of_a_name_and_leave_gaps_where_they_are_free() -> None:
    def made(layout: str, **declared: tuple[int | str, ...]) -> dict[str, tuple[int, ...]] | None:
        arguments = [
            Argument(n, "tensor", "float32", False, n == "y", ("m", "n"), None, s) for n, s in declared.items()
        ]
        shapes = {"x": (4, 5), "y": (4, 9), "z": (4, 5)}
        return strides_for(arguments, shapes, {"m": 4, "n": 5}, {"s": 16}, layout)

    shared = {"x": ("s", 1), "y": ("s", 1)}
    assert made("gaps", **shared) == {"x": (16, 1), "y": (16, 1)}
    assert made("reversed", **shared) == {"x": (-16, 1), "y": (-16, 1)}
    assert made("repeated", **shared) == made("gaps", **shared)  # y is written
    assert made("repeated", x=("s", 1), y=("t", 1)) == {"x": (0, 1), "y": (12, 1)}
    assert made("transposed", x=("a", "b"), z=("2 * a", 1)) == {"x": (4, 16), "z": (8, 1)}
    assert made("gaps", x=("n", 1), z=("n + m", 1)) == {"x": (5, 1), "z": (9, 1)}
    assert made("gaps", y=("n", 1)) is None  # rows of y have 9 elements


def test_a_kernel_that_asks_for_aligned_arrays_gets_them(project: Project) -> None:
    buffer = "T.Buffer((n, 3), dtype)"
    for where in ("x", "y"):
        text = SCALE.replace(f"{where}: {buffer}", f"{where}: {buffer[:-1]}, align=128)")
        assert text != SCALE
        assert check(project, definition=text).cases == 7


def prepared(
    symbols: list[str],
    shape: list[int | str],
    reference: Callable[[Any], Any] | None = None,
    dtype: str = "float32",
    more: Sequence[Argument] = (),
    interpreted: Callable[..., None] | None = None,
    tolerance: float | None = None,
    **declared: Any,
) -> Check:
    """A check of a kernel that is not built, with one input ``x`` and, if it has a reference, one output ``y``."""

    @kernel
    def unbuilt() -> None:
        pass

    arguments = [Argument("x", "tensor", dtype, output=False, written=False, shape=tuple(shape))]
    if reference is not None:
        unbuilt.reference(reference)
        arguments.append(replace(arguments[0], name="y", output=True, written=True))
    signature = replace(UNKNOWN, arguments=(*arguments, *more), symbols=dict.fromkeys(symbols, "int32"), **declared)
    request = CheckRequest("a.py", "unbuilt", "default", "", 0, signature, "cpu", tolerance)
    quiet = (lambda what, function: function()), (lambda doing: None)
    return Check(request, unbuilt, unbuilt.variants[0], *quiet, interpreted)


def inputs_of(check: Check, **sizes: int) -> dict[str, Any]:
    inputs = check.drawing.values(sizes)
    assert inputs is not None
    return inputs


def sets_of(check: Check) -> list[dict[str, int]]:
    """The sizes that it tries."""
    return check.drawing.sizes.sets()


def case_of(check: Check, kernel: Callable[..., Any], leave_out: bool = False) -> float:
    """The largest error of a call."""
    return check._case(kernel, {"n": 7}, inputs_of(check, n=7), leave_out=leave_out)


def checked(
    value: Callable[[Any], Any],
    reference: Callable[[Any], Any],
    dtype: str = "float32",
    tolerance: float | None = None,
    left_out: Callable[[Any], Any] | None = None,
) -> CheckResult:
    """The check of a kernel that computes ``value``, or ``left_out`` if its output is left out."""
    check = prepared(["n"], ["n"], reference, dtype, tolerance=tolerance)

    def kernel(x: Any, y: Any = None) -> Any:
        if y is None:
            return (left_out or value)(x)
        y[:] = value(x)
        return None

    check.function = lambda: kernel  # type: ignore[method-assign]
    return check.run()


def test_each_optional_argument_is_none_once_and_then_all_of_them() -> None:
    def reference(x: Any, a: Any, b: Any, never: Any) -> Any:
        assert never is None
        seen.append((a is None, b is None))
        return {"y": x + (0 if a is None else a) + (0 if b is None else 1), "b": None if b is None else b + 1}

    def kernel(x: Any, y: Any, a: Any, b: Any, never: Any) -> None:
        y[:] = x + (0 if a is None else a) + (wrong if b is None else 1)
        if b is not None:
            b[:] += 1

    plain = Argument("a", "tensor", "float32", output=False, written=False, shape=("n",), given=None)
    more = [plain, replace(plain, name="b", written=True), replace(plain, name="never", shape=(), given=False)]
    seen: list[tuple[bool, bool]] = []
    wrong = 0
    check = prepared(["n"], ["n"], reference, more=more, interpreted=kernel)
    assert check.run().cases == 4 * len(size_sets(["n"]))
    assert seen[:4] == [(False, False), (True, False), (False, True), (True, True)]
    wrong = 1
    with pytest.raises(CheckError, match=r"y differs from the reference at n=\d+, b=None, never=None on cpu: y\[0\]"):
        check.run()


def test_leading_dimensions_are_none_to_three_and_have_the_strides_of_rows() -> None:
    def kernel(x: Any, y: Any, a: Any) -> None:
        view = np.from_dlpack(a)
        (rows, columns), (step, _) = fold(view.shape, [stride // 4 for stride in view.strides], 1)
        assert step > columns or rows * columns <= columns, "rows have gaps, all the same"
        seen.add(view.ndim - 1)
        y[:] = x
        np.lib.stride_tricks.as_strided(view, writeable=True)[...] += 1

    a = Argument("a", "tensor", "float32", output=False, written=True, shape=("m", "n"), strides=("s", 1), folds=True)
    check = prepared(["m", "n"], ["m", "n"], lambda x, a: {"y": x, "a": a + 1}, more=[a])
    check._kernel.inputs(lambda rng, m, n: {"a": np.zeros((m, n), "f")})
    seen = set[int]()
    check.function = lambda: kernel  # type: ignore[method-assign]
    check._outputs.clear()
    assert check.run().cases == len(size_sets(["m", "n"])) and seen == {0, 1, 2, 3}


def test_the_tolerance_decides() -> None:
    for function, tolerance, too_small in (
        (lambda x: x + np.float32(0.001), 0.01, None),
        (lambda x: x * np.float32(1.0000001), None, 0.0),
    ):
        assert 0 < checked(function, lambda x: x, tolerance=tolerance).worst_error < 0.01
        with pytest.raises(CheckError, match="differs"):
            checked(function, lambda x: x, tolerance=too_small)


def test_what_a_kernel_allocates_itself_is_compared_too() -> None:
    assert checked(lambda x: 2 * x, lambda x: 2 * x).cases == 7
    with pytest.raises(CheckError, match="y differs from the reference at n=33"):
        checked(lambda x: 2 * x, lambda x: 2 * x, left_out=lambda x: 3 * x)


def test_an_input_must_not_change_by_less_than_the_tolerance_either() -> None:
    check = prepared(["n"], ["n"])
    assert case_of(check, lambda x: None) == 0.0
    with pytest.raises(CheckError, match="x changed, and the reference does not say so"):
        case_of(check, lambda x: np.add(x, np.float32(1e-6), out=x))


def test_a_tolerance_is_that_of_floating_point_numbers_only() -> None:
    check = prepared(["n"], ["n"], tolerance=2.0)
    tolerances = {dtype: check.tolerance(dtype) for dtype in ("float32", "bfloat16", "int32", "uint8", "bool")}
    assert tolerances == {"float32": 2.0, "bfloat16": 2.0, "int32": 0.0, "uint8": 0.0, "bool": 0.0}


def test_a_reference_may_change_the_arrays_that_it_gets() -> None:
    check = prepared(["n"], ["n"], lambda x: np.multiply(x, 2, out=x))
    assert case_of(check, lambda x, y: np.multiply(x, 2, out=y)) == 0.0


def test_outputs_that_a_kernel_allocates_are_told_apart_by_their_order() -> None:
    another = Argument("z", "tensor", "float32", output=True, written=True, shape=("n",))
    check = prepared(["n"], ["n"], lambda x: (x, 2 * x), more=[another])
    assert case_of(check, lambda x: [x, 2 * x], leave_out=True) == 0.0
    with pytest.raises(CheckError, match="y differs"):
        case_of(check, lambda x: [2 * x, x], leave_out=True)


def test_sizes_that_give_no_shape_or_take_too_much_memory_are_skipped() -> None:
    check = prepared(["n", "m"], ["n // m", "n - 1"])
    assert check.drawing.values({"n": 7, "m": 0}) is check.drawing.values({"n": 0, "m": 1}) is None
    assert inputs_of(check, n=7, m=2)["x"].shape == (3, 6)
    check = prepared(["n"], ["n", 10_000])
    assert {"n": 130} in sets_of(check) and {"n": 2053} not in sets_of(check)


def test_random_integers_are_negative_too_where_they_can_be() -> None:
    rng = np.random.default_rng(0)
    for dtype, ends in {"int8": (-8, 7), "int64": (-8, 7), "uint8": (0, 7), "bool": (0, 1)}.items():
        array = random_array(rng, (1000,), np.dtype(dtype))
        assert (int(array.min()), int(array.max())) == ends


def test_each_size_variable_is_large_once() -> None:
    assert size_sets(["n", "m"])[-2:] == [{"n": 2053, "m": 7}, {"n": 7, "m": 2053}]
    assert size_sets([]) == [{}]


def limited(symbols: list[str], requires: list[str], **more: Any) -> list[dict[str, int]]:
    """The sizes that are tried for a matrix, or for vectors if three are named, if something is required of them."""
    vectors = [Argument(f"{n}_", "tensor", "int8", output=False, written=False, shape=(n,)) for n in symbols]
    shape, vectors = (symbols, []) if len(symbols) < 3 else ([1], vectors)
    return sets_of(prepared(symbols, shape, more=vectors, requires=tuple(requires), **more))


def test_sizes_fulfil_what_is_required_and_reach_its_limits() -> None:
    assert [sizes["n"] for sizes in limited(["n"], ["n <= 100"])] == [33, 1, 100, 7, 0]
    assert {"n": 4096, "m": 7} in limited(["n", "m"], ["4096 >= n"])
    assert all(sizes["m"] == 8 * sizes["n"] for sizes in limited(["n", "m"], ["m == 8 * n"]))
    assert {"n": 2053, "m": 16424, "k": 7} in limited(["n", "m", "k"], ["m == 8 * n"])
    assert {sizes["n"] % 128 for sizes in limited(["n"], ["n % 128 == 0", "n > 0"])} == {0}
    assert [sizes for sizes in limited(["n", "m"], ["n >= 64", "n <= 64"]) if sizes["m"] == 7] == [{"n": 64, "m": 7}]
    assert limited(["n"], ["n >= 64", "n <= 32"]) == limited(["n"], ["n % 0 == 0"]) == []
    grouped = limited(["t", "h", "k"], ["h % k == 0", "k > 0", "t * h <= 65536"])
    assert len(grouped) > 5 and all(s["h"] % s["k"] == 0 < s["k"] and s["t"] * s["h"] <= 65536 for s in grouped)


def test_a_number_fulfils_what_is_required_of_it_at_any_sizes() -> None:
    k = Argument("k", "scalar", "int8", output=False, written=False)
    check = prepared(["n"], ["n"], more=[k], requires=("k > n // 2", "k % 3 == 0"))
    for n, k in ((100, 51), (1000, None)):
        assert inputs_of(check, n=n)["k"] == (k or 7), "which a call refuses, if nothing can be found"
    assert all(s["n"] // 2 < s["k"] <= 126 and s["k"] % 3 == 0 for s in sets_of(check)) and len(sets_of(check)) > 4


def test_sizes_are_tried_above_each_constant_of_the_code() -> None:
    constants = {"BLOCK": 4096, "WARPS": 8, "MANY": 2**40}
    assert limited(["n", "m"], [], constants=constants)[-2:] == [{"n": 4097, "m": 7}, {"n": 7, "m": 4097}]
    assert {"n": 10**6 + 1, "m": 1} in limited(["n", "m"], [], config={"block": 10**6, "fast": True}, multiples={})
    declared = limited(["n", "m"], ["n <= 4096"], constants=constants)
    assert {"n": 7, "m": 4097} in declared and max(sizes["n"] for sizes in declared) == 4096
    launch = Launch("f", (), ("m", 1, 1), (32, 1, 1), 0)
    check = prepared(["n", "m"], ["n", "m"])
    signature = replace(check._signature, constants=constants, launches=(launch,))
    interpreted = SizeSets(signature, check.drawing.bytes_of, True)
    large = [(sizes["n"], sizes["m"]) for sizes in interpreted.sets() if max(sizes.values()) > 2000]
    assert large == [(2053, 7), (4097, 7)], "a block for each of so many elements runs one after the other"
    assert {"n": 4112} in limited(["n"], [], constants=constants, multiples={"n": 16})


def test_a_failure_beyond_a_constant_says_how_to_declare_the_limit() -> None:
    check = prepared(["n"], ["n"], lambda x: x, config={"block": 1000}, constants={"BLOCK": 1000})
    check.function = lambda: lambda x, y=None: x if y is None else y.__setitem__(slice(1000), x[:1000])
    with pytest.raises(CheckError, match=r"at n=2053 on cpu: y\[1000\] is nan.*1053 elements") as error:
        check.run()
    assert error.value.remedy is not None
    assert error.value.remedy.endswith('no more than 1000, declare that: requires=["n <= block"]')
    check = prepared(["n", "m"], ["n", "m"], lambda x: x, config={"rows": 16, "block": 64})
    check.function = lambda: lambda x, y=None: x if y is None else y.__setitem__((..., slice(64)), x[:, :64])
    with pytest.raises(CheckError, match="at n=33, m=130 on cpu") as error:
        check.run()
    assert str(error.value.remedy).endswith('no more than 64, declare that: requires=["m <= block"]')
    check = prepared(["n"], ["n"], lambda x: x, requires=("n <= 1000",))
    check.function = lambda: lambda x, y=None: x if y is None else y.__setitem__(slice(1000), x[:1000])
    assert check.run().sizes[-1] == {"n": 1000}


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("", "has no reference"),
        (REFERENCE + "@scale.inputs\ndef _(rng): return None\n", "skips all sizes"),
        (REFERENCE + "@scale.inputs\ndef _(rng): return {'z': 1}\n", "expected a dict with some of the keys"),
        (REFERENCE + "@scale.inputs\ndef _(rng): return {'x': rng.random(5)}\n", "gives x the shape"),
        ("@scale.reference\ndef _(alpha, x): return x, x\n", "returned 2 arrays, expected one"),
        ("@scale.reference\ndef _(alpha, x): return {'z': x}\n", "returned arrays for"),
        ("@scale.reference\ndef _(alpha, x): pass\n", "returned None, expected one"),
        ("@scale.reference\ndef _(alpha, x): return x[:1]\n", "has the shape"),
    ],
)
def test_a_reference_that_does_not_fit_is_a_check_error_at_its_line(project: Project, more: str, what: str) -> None:
    with pytest.raises(CheckError, match=what) as caught:
        check(project, more)
    file, _, line = str(caught.value.where.location).partition(":")
    lines = (project.folder / file).read_text().splitlines()
    # The last function is the one to blame.
    assert not more or int(line) == max(i for i, text in enumerate(lines, 1) if text.startswith("@scale."))


def test_an_exception_in_the_reference_names_its_line_the_sizes_and_a_remedy_for_empty_arrays(project: Project) -> None:
    with pytest.raises(DefinitionError, match="the reference of scale raised ZeroDivisionError") as caught:
        check(project, "@scale.reference\ndef _(alpha, x):\n    return x / (1 // 0)\n")
    assert caught.value.where.stage == "check"
    assert "return x / (1 // 0)" in str(caught.value.detail)
    assert caught.value.message.endswith(" (at n=33)") and caught.value.remedy is None
    with pytest.raises(DefinitionError, match=r"zero-size array.* \(at n=0\)") as caught:
        check(project, "@scale.reference\ndef _(alpha, x):\n    return alpha * x + 0 * x.max()\n")
    assert str(caught.value.where.location).startswith("kernels/scale.py:")
    assert "initial=" in str(caught.value.remedy)
    assert "have @scale.inputs return None" in str(caught.value.remedy)


def test_an_error_of_the_library_is_shown_with_the_sizes(project: Project) -> None:
    with pytest.raises(CheckError, match=r"(?s)at n=33 raised .*refused"):
        check(project, statement='assert vi < 5, "refused"\n                ' + STATEMENT)


def test_a_kernel_that_crashes_is_one_error(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "REAP_S", HANGS_AFTER_S)
    file = project.copy("after")
    with pytest.raises(WorkerError, match=r"was ended by SIG(SEGV|BUS) while running it with n=33") as caught:
        check(project, statement="y[vi * 100000000, vj] = alpha * x[vi, vj]")
    assert caught.value.where.kernel == "scale"
    assert project.discover(file)


@pytest.mark.parametrize(("version", "runs"), [("8.0", False), ("9.0", True), ("10.0", False)])
def test_a_variant_for_one_arch_is_not_compared_on_a_gpu_of_another(
    monkeypatch: pytest.MonkeyPatch, version: str, runs: bool
) -> None:
    monkeypatch.setattr(check_module, "load_cuda_runtime", lambda: None)
    check = prepared(["n"], ["n"], lambda x: x)
    check._request = replace(check._request, device="cuda:0", archs="sm_90a", library="/no/such.so")
    check._device = SimpleNamespace(exist=True, compute_version=version)
    if runs:
        with pytest.raises(Exception, match=r"/no/such\.so"):
            check.run()
    else:
        assert check.run() == CheckResult(0, 0.0, (), "cuda:0")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        # Without a driver it is that which is missing.
        ("cuda:63", r"this machine has no device cuda:63|cannot be loaded: libcuda\.so"),
        ("cpu", "cannot load after__0"),
    ],
)
def test_a_missing_device_or_library_is_a_check_error(project: Project, device: str, message: str) -> None:
    file = project.copy("after")
    project.write(file, (project.folder / file).read_text() + "\nafter.reference(lambda: {})\n")
    with pytest.raises(CheckError, match=message):
        project.pool.call(CheckRequest(file, "after", "default", "/no/such.so", 0, UNKNOWN, device, None))
