"""None for an array, with the backends that call a library: a kernel for the CPU, and declarations."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelwright import backends
from kernelwright.backends.plan import LoweredUnit
from kernelwright.backends.stubs import StubTypes, kernel_stub
from kernelwright.core.errors import DefinitionError, KernelwrightError, Where
from kernelwright.cuda import Exported, Scalar, Size, Source, Tensor, TensorMap
from kernelwright.cutedsl import Program as CuteProgram
from kernelwright.define.declared import Declared
from kernelwright.runtime.interface import in_order
from kernelwright.triton import Program as TritonProgram
from support.extension_build import Built, build_both
from support.launcher_build import c_unit, plan, scalar, signature, tensor

# bias, x, factor, scale, [y]: y = factor * x * scale + bias, where bias and scale may be None.
BIASED = """
BEGIN
  DLTensor *bias = tensor(argument), *x = tensor(argument + 1);
  DLTensor *scale = tensor(argument + 3), *y = tensor(argument + 4);
  int none = (uintptr_t)bias->data >> 63, unscaled = (uintptr_t)scale->data >> 63;
  int fits = bias->ndim == 1 && bias->shape[0] == x->shape[1] && scale->shape[0] == 1 && !(none && bias->strides);
  for (int i = 0; fits && i < x->shape[0] * x->shape[1]; ++i)
    ((float *)y->data)[i] = argument[2].v_int64 * ((float *)x->data)[i] * (unscaled ? 1 : *(float *)scale->data) +
                            (none ? 0 : ((float *)bias->data)[i % x->shape[1]]);
END
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("none")
    optional: dict[str, Any] = {"given": None}
    arguments = [
        tensor("bias", "float32", ["n"]) | optional,
        tensor("x", "float32", ["m", "n"]),
        scalar("factor", "int32"),
        tensor("scale", "float32", [1]) | optional,
        tensor("y", "float32", ["m", "n"], output=True),
    ]
    unit = c_unit(folder, BIASED, signature("biased", arguments, symbols={"m": "int32", "n": "int32"}))
    return build_both(folder, plan("biased", unit, outputs=["y"]))


def test_extension_modules_and_ffi_functions_take_none(built: Built) -> None:
    x, bias, scale = np.ones((2, 3), "f"), np.arange(3, dtype="f"), np.full(1, 5, "f")
    for kernel in (built.cython(), built.tvm_ffi()):
        y = np.zeros_like(x)
        for arguments, named, expected in (
            ((None, x, 2, None), {}, 2 * x),
            ((None, x, 2), {}, 2 * x),
            ((bias, x, 2), {}, 2 * x + bias),
            ((), {"x": x, "factor": 2}, 2 * x),
            ((), {"x": x, "factor": 2, "scale": scale, "y": y}, 10 * x),
            ((bias, x), {"factor": 3, "scale": None, "y": None}, 3 * x + bias),
            ((bias, x, 2, scale, y), {}, 10 * x + bias),
        ):
            result = kernel(*arguments, **named)
            assert (result is None) == (named.get("y") is y or len(arguments) == 5)
            np.testing.assert_array_equal(y if result is None else np.from_dlpack(result), expected)
        for arguments, said in (
            ((), r"argument 'x' is missing|takes 5 arguments .*, or 3 to 4 with the outputs left out; 0 were given"),
            ((bias, x, 2, scale, y, y), "or 3 to 4 with the outputs left out; 6 were given"),
            ((bias, None, 2), "argument 'x' is None, expected a tensor"),
            ((None, x, None), "no built variant accepts these arguments"),
            ((np.float32(1), x, 2), "argument 'bias' is the float 1, expected a tensor"),
        ):
            with pytest.raises(TypeError, match=said):
                kernel(*arguments)
    assert str(inspect.signature(built.cython())) == "(bias, x, factor, scale=None, y=None, *, stream=None)"


def test_operators_of_pytorch_take_none(built: Built) -> None:
    torch, biased = pytest.importorskip("torch"), built.torch()
    x, bias = torch.ones(2, 3), torch.arange(3.0)
    new = "(Tensor? bias, Tensor x, SymInt factor, Tensor? scale) -> Tensor"
    assert f'NEW = "{new}"' in backends.get("torch").emit(built.plan)["_biased.py"]
    for compiled in (biased, torch.compile(biased, backend="eager", fullgraph=True)):
        torch.testing.assert_close(compiled(bias, x, 2, None), 2 * x + bias)
        torch.testing.assert_close(compiled(None, x.t().contiguous().t(), 2, None), 2 * x)
    torch.testing.assert_close(biased(x=x, factor=3), 3 * x)
    torch.testing.assert_close(biased(None, x, 3), 3 * x)
    y = torch.zeros(2, 3)
    assert biased(None, x, 2, torch.full((1,), 5.0), y) is None and y.eq(10).all()
    torch.library.opcheck(biased.op.default, (None, x, 2, torch.full((1,), 5.0)))
    assert biased.choice(x=x, factor=1).variant == "default"
    with pytest.raises(TypeError, match="argument 'x' is None, expected a tensor"):
        biased(bias, None, 2, None)
    with pytest.raises(TypeError, match="argument 'scale' is a list, expected a tensor of PyTorch"):
        biased(bias, x, 2, [1.0])
    with pytest.raises(TypeError, match="argument 'factor' is None, expected a number"):
        biased(bias, x, None, None)
    with pytest.raises(RuntimeError, match="it has no backward kernel, and a gradient goes through it"):
        biased(None, x.clone().requires_grad_(), 2, None).sum().backward()


def test_functions_of_jax_take_none(built: Built) -> None:
    jax, biased = pytest.importorskip("jax"), built.jax()
    x, bias, scale = np.ones((2, 3), "f"), np.arange(3, dtype="f"), np.full(1, 5, "f")
    for factor, arguments, expected in (
        (2, (None, None), 2 * x),
        (2, (bias, None), 2 * x + bias),
        (3, (None, scale), 15 * x),
        (2, (bias, scale), 10 * x + bias),
    ):
        for function in (biased, jax.jit(biased, static_argnums=2)):
            np.testing.assert_array_equal(function(arguments[0], x, factor, arguments[1]), expected)
    np.testing.assert_array_equal(biased(x=x, factor=4), 4 * x)
    np.testing.assert_array_equal(biased(None, x, 4), 4 * x)
    with pytest.raises(TypeError, match="argument 'x' is a NoneType, expected an array of JAX or NumPy"):
        biased(bias, None, 2)


# x, factor, [y]: y = factor * x.
SCALED = """
BEGIN
  DLTensor *x = tensor(argument), *y = tensor(argument + 2);
  for (int i = 0; i < x->shape[0]; ++i) ((float *)y->data)[i] = argument[1].v_float64 * ((float *)x->data)[i];
END
"""


def test_a_number_with_a_default_may_be_left_out_of_calls_through_any_backend(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    factor = scalar("factor", "float32") | {"default": 1e-06}
    arguments = [tensor("x", "float32", ["n"]), factor, tensor("y", "float32", ["n"], output=True)]
    made = build_both(tmp_path, plan("scaled", c_unit(tmp_path, SCALED, signature("scaled", arguments)), outputs=["y"]))
    x, y = np.ones(3, "f"), np.zeros(3, "f")
    for kernel, array in ((made.cython(), x), (made.tvm_ffi(), x), (made.torch(), torch.ones(3)), (made.jax(), x)):
        for result in (kernel(array), kernel(array, None), kernel(x=array), kernel(x=array, factor=None)):
            np.testing.assert_array_equal(np.from_dlpack(result), x * np.float32(1e-06))
        np.testing.assert_array_equal(np.from_dlpack(kernel(array, factor=2.0)), 2 * x)
    for kernel in (made.cython(), made.tvm_ffi()):
        assert kernel(x=x, y=y) is None and y.tolist() == (x * np.float32(1e-06)).tolist()
    assert str(inspect.signature(made.cython())) == "(x, factor=1e-06, y=None, *, stream=None)"
    types = StubTypes("Kernel", "Array", "Array")
    assert "def __call__(self, /, x: Array, factor: _b.float | None = 1e-06) -> Array" in kernel_stub(
        "scaled", made.entry, types
    )


def test_a_call_that_names_one_output_of_two_is_told_of_the_other() -> None:
    items = [*(tensor(name, "float32", ["n"], output=name != "x") for name in "xyz"), scalar("eps", "float32")]
    assert in_order("f", items, (1,), {"y": 2, "z": 3}, {"eps": 4.0}) == (1, 2, 3, 4.0)
    with pytest.raises(TypeError, match="argument 'z' is missing"):
        in_order("f", items, (1,), {"y": 2}, {"eps": 4.0})
    with pytest.raises(TypeError, match="its arguments are not declared: pass them by position"):
        in_order("f", [], (), {"x": 1}, {})


@pytest.mark.parametrize(
    ("dtype", "default"),
    [("int8", 128), ("int32", 1.0), ("bool", 1), ("float64", float("inf")), ("float32", 10**39), ("float64", 10**309)],
)
def test_a_default_that_is_none_of_its_type_is_refused(dtype: str, default: Any) -> None:
    with pytest.raises(DefinitionError, match=f"argument 'k' has default={default}, which is no {dtype}"):
        source(x=X, k=Scalar(dtype, default=default)).check((), WHERE)


# x, mean: mean[0] = x[0], if there is one, and then x[0] += 1.
UPDATED = """
BEGIN
  DLTensor *x = tensor(argument), *mean = tensor(argument + 1);
  if (!((uintptr_t)mean->data >> 63)) *(float *)mean->data = *(float *)x->data;
  ++*(float *)x->data;
END
"""


def test_an_array_that_may_be_none_can_be_written(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    written = {"written": True}
    arguments = [tensor("x", "float32", ["n"]) | written, tensor("mean", "float32", [1]) | written | {"given": None}]
    made = build_both(tmp_path, plan("updated", c_unit(tmp_path, UPDATED, signature("updated", arguments))))
    x, mean, updated = torch.ones(3), torch.zeros(1), made.torch()
    for call in (updated, torch.compile(updated, backend="aot_eager", fullgraph=True)):
        call(x, mean), call(x, None), call(x)
    assert (x.tolist(), mean.tolist()) == ([7, 1, 1], [4]) and mean._version >= 2
    torch.library.opcheck(updated.op.default, (x, None))
    of_jax = made.jax()
    new, none = of_jax(np.ones(3, "f"))
    assert none is None and new.tolist() == [2, 1, 1]
    assert [one.tolist() for one in of_jax(np.ones(3, "f"), np.zeros(1, "f"))] == [[2, 1, 1], [1]]


@pytest.mark.parametrize("argument", [scalar("n", "int32"), tensor("y", "float32", [1], output=True)])
def test_a_signature_with_none_for_what_is_no_input_array_is_damaged(argument: dict[str, Any]) -> None:
    damaged = signature("damaged", [tensor("x", "float32", [1]), argument | {"given": False}])
    with pytest.raises(KernelwrightError, match=f"argument '{argument['name']}' is no input that is a tensor"):
        LoweredUnit.from_json(damaged, "host.o")


X, WHERE = Tensor("float32", "m", "n"), Where("biased", None, "lower")


def source(**arguments: Any) -> Source:
    return Source("\n", "biased", grid="m", block=32, **arguments)


@pytest.mark.parametrize(
    ("declared", "outputs", "said", "remedy"),
    [
        (
            source(x=X, b=Tensor("float32", "k", optional=True)),
            (),
            "the size 'k' is only in the shape of 'b', for which calls may pass None",
            "give another input that size",
        ),
        (
            source(x=Tensor("float32", "m"), b=Tensor("float32", "n", optional=True), y=X),
            ("y",),
            "the size 'n' is only in the shape of 'b'",
            "give another input that size",
        ),
        (
            source(x=X, b=Tensor("float32", "k", given=False), k=Size("k")),
            (),
            "argument 'k' has the name 'k', which is in no shape of a Tensor",
            "write an integer",
        ),
        (
            Exported("biased", x=Tensor("float32", "n", optional=True), y=Tensor("int8", 4, given=False)),
            (),
            "all its tensors may be None (x, y), and then none tells on which device to run",
            "have at least one Tensor that is neither optional nor given=False",
        ),
        (
            source(x=X, y=Tensor("float32", "n", optional=True)),
            ("y",),
            "output 'y' is optional, and an output that is left out is allocated",
            "take 'y' out of outputs and give it written=True",
        ),
        (
            source(x=X, y=Tensor("float32", "n", optional=True, given=False)),
            (),
            "argument 'y' has optional=True and given=False",
            "write optional=True if calls may pass None",
        ),
        (
            source(x=X, y=Tensor("float32", given=1)),
            (),
            "argument 'y' has optional=False and given=1",
            "write optional=",
        ),  # type: ignore[arg-type]
        (
            source(x=X, y=TensorMap(Tensor("float32", "m", "n", optional=True), box=(8, 8))),
            (),
            "the TensorMap of 'y' is of a tensor that may be None",
            "make a variant with another function",
        ),
        (
            TritonProgram("f.py", "f", x=X, y=Tensor("float32", "n", optional=True), grid="m"),
            (),
            "argument 'y' is optional, and a function in Triton is compiled with None or without",
            "given=has_y in the Tensor, and configs=grid(has_y=[True, False])",
        ),
        (
            CuteProgram(print, x=X, y=Tensor("float32", "n", optional=True)),
            (),
            "argument 'y' is optional, and a function in CuTe DSL is compiled with None or without",
            "given=has_y in the Tensor",
        ),
    ],
)
def test_declarations_that_do_not_tell_what_a_call_with_none_needs_are_refused(
    declared: Declared, outputs: tuple[str, ...], said: str, remedy: str
) -> None:
    with pytest.raises(DefinitionError) as caught:
        declared.check(outputs, WHERE)
    assert said in caught.value.message and remedy in str(caught.value.remedy)


def test_a_size_that_only_an_optional_tensor_has_can_be_a_number_of_the_call() -> None:
    source(x=X, b=Tensor("float32", "k", optional=True), k=Scalar("int32")).check((), WHERE)
