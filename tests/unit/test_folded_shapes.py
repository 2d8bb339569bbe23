"""Arrays with any leading dimensions, which fold into one, with the backends that call a library; and declarations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelwright.backends.plan import KernelPlan
from kernelwright.backends.stubs import documentation
from kernelwright.core.errors import DefinitionError, KernelwrightError, Where
from kernelwright.cuda import Exported, Scalar, Size, Source, Tensor, TensorMap
from kernelwright.runtime import misses
from kernelwright.triton import Program
from support.extension_build import Built, build_both
from support.launcher_build import c_unit, plan, signature, tensor

# bias, x, [y], [sums]: y = x + bias and sums = the sums of rows, for views with two dimensions and one.
SUMMED = """
BEGIN
  DLTensor *bias = tensor(argument), *x = tensor(argument + 1), *y = tensor(argument + 2), *sums = tensor(argument + 3);
  int none = (uintptr_t)bias->data >> 63, fits = x->ndim == 2 && y->ndim == 2 && sums->ndim == 1 && bias->ndim == 2;
  for (int i = 0; fits && i < x->shape[0]; ++i) {
    float sum = 0;
    for (int j = 0; j < x->shape[1]; ++j) {
      float value = ((float *)x->data)[i * (x->strides ? x->strides[0] : x->shape[1]) + j];
      sum += value;
      ((float *)y->data)[i * y->shape[1] + j] = value + (none ? 0 : ((float *)bias->data)[i * x->shape[1] + j]);
    }
    ((float *)sums->data)[i] = sum;
  }
END
"""
FOLDS: dict[str, Any] = {"folds": True}
ARGUMENTS = [
    tensor("bias", "float32", ["m", "n"]) | FOLDS | {"given": None},
    tensor("x", "float32", ["m", "n"]) | FOLDS,
    tensor("y", "float32", ["m", "n"], output=True) | FOLDS,
    tensor("sums", "float32", ["m"], output=True) | FOLDS,
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("leading")
    unit = c_unit(folder, SUMMED, signature("summed", ARGUMENTS, symbols={"m": "int32", "n": "int32"}))
    return build_both(folder, plan("summed", unit, outputs=["y", "sums"]))


SHAPES = [(6, 4), (2, 3, 4), (1, 3, 2, 4), (4,), (0, 3, 4), (2, 3, 0)]


def same(results: Any, x: Any, bias: Any = 0) -> None:
    y, sums = (np.asarray(result) if hasattr(result, "__array__") else np.from_dlpack(result) for result in results)
    np.testing.assert_array_equal(y, x + bias, strict=False)
    np.testing.assert_array_equal(sums, x.sum(-1))
    assert (y.shape, sums.shape) == (x.shape, x.shape[:-1])


def test_extension_modules_and_ffi_functions_take_any_leading_dimensions(built: Built) -> None:
    for kernel in (built.cython(), built.tvm_ffi()):
        for shape in SHAPES:
            x = np.arange(np.prod(shape), dtype="f").reshape(shape)
            y, sums = np.full_like(x, -1), np.full(shape[:-1], -1, "f")
            same(kernel(None, x), x)
            same(kernel(2 * x, x), x, 2 * x)
            assert kernel(None, x, y, sums) is None
            same((y, sums), x)
        with pytest.raises(
            ValueError, match=r"'x' of shape \[2, 3, 4\] and 'sums' of shape \[6\] differ in their leading"
        ):
            kernel(None, np.ones((2, 3, 4), "f"), np.ones((2, 3, 4), "f"), np.ones(6, "f"))
        with pytest.raises(
            ValueError, match="argument 'x' has leading dimensions that are not compact, and do not fold"
        ):
            kernel(None, np.ones((3, 2, 4), "f").transpose(1, 0, 2))
    assert "x: float32[(..., m), n], y: float32[(..., m), n]" in documentation("summed", {**built.entry, "doc": ""})


def test_operators_of_pytorch_take_any_leading_dimensions(built: Built) -> None:
    torch, summed = pytest.importorskip("torch"), built.torch()
    compiled = torch.compile(lambda x: summed(2 * x, x), backend="aot_eager", fullgraph=True, dynamic=True)
    for shape in SHAPES:
        x = torch.arange(np.prod(shape), dtype=torch.float32).reshape(shape)
        same(summed(None, x), x.numpy())
        same(compiled(x), x.numpy(), 2 * x.numpy())
    turned = torch.arange(24.0).reshape(3, 2, 4).transpose(0, 1)
    for call in (lambda x: summed(2 * x, x), compiled):  # it gets a copy
        same(call(turned), turned.numpy(), 2 * turned.numpy())
    torch.library.opcheck(summed.op.default, (None, torch.ones(2, 3, 4)))
    with (
        torch._subclasses.FakeTensorMode(),
        pytest.raises(ValueError, match=r"of shape \[6, 4\] and 'x' of shape \[2, 3"),
    ):
        summed(torch.ones(6, 4), torch.ones(2, 3, 4))


def test_functions_of_jax_take_any_leading_dimensions(built: Built) -> None:
    jax, summed = pytest.importorskip("jax"), built.jax()
    for shape in SHAPES:
        x = np.arange(np.prod(shape), dtype="f").reshape(shape)
        for function in (summed, jax.jit(summed)):
            same(function(x, x), x, x)


X, WHERE = Tensor("float32", ..., "h"), Where("summed", None, "lower")


def source(**arguments: Any) -> Source:
    return Source("\n", "summed", grid="rows", block=32, **arguments)


def test_the_size_of_leading_dimensions_has_a_name_that_a_launch_knows() -> None:
    assert Tensor("float32", (..., "rows"), "h") == X != Tensor("float32", "rows", "h")
    source(x=X, y=X, rows=Size("rows"), one=Tensor("int8", ...), last=Tensor("int8", "rows")).check(("y",), WHERE)
    source(x=Tensor("int8", ..., strides=("s",)), m=TensorMap(X, box=(8, 8))).check((), WHERE)


FIRST = 'write ..., or (..., "n") with a name, and only as the first size'


@pytest.mark.parametrize(
    ("declared", "said", "remedy"),
    [
        (source(x=Tensor("int8", "h", ...)), "argument 'x' has Ellipsis among its sizes", FIRST),
        (source(x=Tensor("int8", ..., ...)), "argument 'x' has Ellipsis among its sizes", FIRST),
        (source(x=Tensor("int8", "h", (..., "n"))), "argument 'x' has (Ellipsis, 'n') among its sizes", FIRST),
        (source(x=Tensor("int8", (..., 4), "h")), "argument 'x' has (Ellipsis, 4) among its sizes", FIRST),
        (source(x=Tensor("int8", (..., "2 * n"))), "argument 'x' has (Ellipsis, '2 * n') among its sizes", FIRST),
        (source(x=Tensor("int8", ("n", 4))), "argument 'x' has ('n', 4) among its sizes", FIRST),
        (
            source(x=Tensor("int8", ..., "h", strides=("a", "b", 1))),
            "argument 'x' has strides=('a', 'b', 1), and 2 dimensions",
            "an integer, a name",
        ),
        (
            source(x=Tensor("int8", "rows", "h"), y=X),
            "output 'y' has leading dimensions that fold into 'rows', and no input has",
            "fold those of an input into that name: one that calls cannot leave out",
        ),
        (
            Program("f.py", "f", x=Tensor("int8", "h"), rows=Scalar("int32"), y=X, grid="rows"),
            "output 'y' has leading dimensions that fold into 'rows', and no input has",
            "or take it out of outputs",
        ),
        (
            Exported("f", x=Tensor("int8", "rows"), b=Tensor("int8", ..., optional=True), y=X),
            "output 'y' has leading dimensions that fold into 'rows', and no input has",
            "one that calls cannot leave out",
        ),
    ],
)
def test_declarations_that_do_not_fold_are_refused(declared: Any, said: str, remedy: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        declared.check(("y",) if "y" in declared.declared else (), WHERE)
    assert said in caught.value.message and remedy in str(caught.value.remedy)


def test_all_variants_fold_alike_but_for_those_that_take_none(tmp_path: Path) -> None:
    def planned(item: dict[str, Any]) -> KernelPlan:
        parts = [
            signature("f", [one, tensor("y", "int8", ["k"])], slug=f"v{n}") for n, one in enumerate((X_ITEM, item))
        ]
        return plan("f", *(c_unit(tmp_path, SUMMED, part) for part in parts))

    X_ITEM = tensor("x", "float32", ["m", "n"]) | FOLDS
    planned(tensor("x", "float32", []) | {"given": False}).check()
    for other in (
        tensor("x", "int8", ["m", "n"]),
        tensor("x", "int8", ["m"]) | FOLDS,
        tensor("x", "int8", ["k", 4]) | FOLDS,
    ):
        with pytest.raises(
            KernelwrightError, match="leading dimensions of argument 'x' fold otherwise than in another"
        ):
            planned(other).check()


def test_a_missed_call_has_folded_sizes() -> None:
    entry = {"variants": [{"arguments": [tensor("x", "int8", ["m", 4]) | FOLDS], "multiples": {"m": 2}, "units": []}]}
    fits = [
        misses._fits(entry["variants"][0], [{"name": "x", "dtype": "int8", "shape": shape}])
        for shape in ([2, 3, 4], [3, 3, 4], ["s0", 3, 4], [2, 5], [], [4])
    ]
    assert fits == [True, False, True, False, False, False]
