"""Arrays of any library in calls of ``tvm_ffi`` and ``cython``: right results, or errors that say what to do.

Both backends say the same, word by word.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.contract import contracted

__all__ = ["contracted"]

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

pytestmark = pytest.mark.filterwarnings("ignore")

X, Y, Z = (np.full(4, number, "float32") for number in (1, 2, 0))
T = torch.ones(4)
J = jax.numpy.ones(4)


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def deleted() -> Any:
    array = jax.numpy.zeros(4)
    array.delete()
    return array


FROZEN = read_only(X)
ODD = np.zeros(17, "int8")[1:].view("float32")
IMAGINARY = torch.ones(4, dtype=torch.complex64).conj().imag

NOT_COMPACT = ("ValueError", "x.strides", "compact", "numpy.ascontiguousarray")
NOT_BUILT = ("TypeError", "no built variant accepts")
NO_NUMBER = ("TypeError", "Mismatched type on argument #0", "expected float")
NO_ARRAY = ("TypeError", "expected a tensor: an array of NumPy, PyTorch, JAX, CuPy or another library with DLPack")
OTHER_RANK = ("ValueError", "Mismatched x.ndim on argument #1")

WRONG: dict[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
    "too few": ((1.0,), ("TypeError", "takes 4 arguments")),
    "too many": ((1.0, X, Y, Z, Z), ("TypeError", "takes 4 arguments")),
    "an int for a tensor": ((1.0, X, 3), (*NO_ARRAY, "'y' is the int 3")),
    "a text for a tensor": ((1.0, "x", Y), (*NO_ARRAY, "'x' is a str")),
    "None for a tensor": ((1.0, None, Y), (*NO_ARRAY, "'x' is None")),
    "a number of NumPy for a tensor": ((1.0, np.float32(1), Y), (*NO_ARRAY, "'x' is the float 1")),
    "a list for a number": (([1], X, Y, Z), NO_NUMBER),
    "a text for a number": (("x", X, Y, Z), NO_NUMBER),
    "None for a number": ((None, X, Y, Z), NO_NUMBER),
    "a complex number": ((1j, X, Y, Z), NO_NUMBER),
    "an array for a number": ((X, X, Y, Z), NO_NUMBER),
    "a tensor for a number": ((torch.tensor(2.0), X, Y, Z), NO_NUMBER),
    "another dtype": ((1.0, X.astype("float64"), Y), (*NOT_BUILT, "x = float64[4] on cpu")),
    "another dtype of PyTorch": ((1.0, T, T.bfloat16()), (*NOT_BUILT, "y = bfloat16[4] on cpu")),
    "another rank": ((1.0, X.reshape(2, 2), Y, Z), OTHER_RANK),
    "no dimension": ((1.0, np.ones((), "float32"), Y, Z), OTHER_RANK),
    "another size": ((1.0, X, Y[1:]), ("ValueError", "y.shape[0]", "fit each other")),
    "another size of an output": ((1.0, X, Y, Z[:3]), ("ValueError", "z.shape[0]")),
    "strides": ((1.0, np.ones(8, "float32")[::2], Y), NOT_COMPACT),
    "strides of PyTorch": ((1.0, torch.ones(8)[::2], T), ("ValueError", "x.strides", "compact", ".contiguous()")),
    "negative strides": ((1.0, X[::-1], Y), NOT_COMPACT),
    "a repeated number": ((1.0, np.broadcast_to(np.float32(1), 4), Y), NOT_COMPACT),
    "an expanded tensor": ((1.0, torch.ones(1).expand(4), T), ("ValueError", "x.strides", ".contiguous()")),
    "strides that are no multiples": ((1.0, np.zeros(4, [("a", "f4"), ("b", "i1")])["a"], Y), ("Error", "'x'")),
    "strides of an output": ((1.0, X, Y, np.zeros(8, "float32")[::2]), ("ValueError", "z.strides", "compact")),
    "data that is not aligned": ((1.0, ODD, Y), ("ValueError", "'x'", "aligned")),
    "another byte order": ((1.0, X, Y.astype(">f4")), ("TypeError", "'y' is a numpy.ndarray", "native byte order")),
    "objects": ((1.0, X.astype(object), Y), ("TypeError", "'x' is a numpy.ndarray", "cannot be passed")),
    "times": ((1.0, np.zeros(4, "datetime64[s]"), Y), ("TypeError", "'x' is a numpy.ndarray")),
    "long doubles": ((1.0, np.zeros(4, "longdouble"), Y), ("TypeError", "x")),
    "a dtype that nobody has": ((1.0, X.astype(ml_dtypes.int4), Y), ("TypeError", "bfloat16 or float8 of ml_dtypes")),
    "a tensor without data": ((1.0, torch.ones(4, device="meta"), T), ("TypeError", "'x'", "on meta", "has data")),
    "an output without data": ((1.0, T, T, torch.ones(4, device="meta")), ("TypeError", "'z'", "that has data")),
    "a sparse tensor": ((1.0, T.to_sparse(), T), ("TypeError", "'x' is a torch.Tensor", "storage")),
    "a conjugate": ((1.0, torch.ones(4, dtype=torch.complex64).conj(), T), ("Error", "x")),
    "a marked sign": ((1.0, IMAGINARY, T), ("Error", "x")),
    "a marked sign of one number": ((1.0, IMAGINARY[2:3], T[:1]), ("Error", "'x'")),
    "a marked sign of an output": ((1.0, T[:1], T[:1], IMAGINARY[2:3]), ("Error", "'z'")),
    "a read-only output": ((1.0, X, Y, FROZEN), ("ValueError", "'z' is a read-only array")),
    "a read-only output of another": ((1.0, FROZEN, Y, FROZEN), ("ValueError", "'z' is a read-only array")),
    "a read-only input among too few": ((1.0, FROZEN), ("TypeError", "kernel 'plus': takes 4 arguments")),
    "an output of JAX": ((1.0, J, J, J), ("ValueError", "'z' is an array of JAX, which is immutable")),
    "an output of JAX and inputs of NumPy": ((1.0, X, Y, J), ("ValueError", "'z' is an array of JAX, which is imm")),
    "a deleted array": ((1.0, deleted(), Y), ("TypeError", "'x' is a jaxlib.", "not deleted")),
}


def error_of(call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*arguments)
    return f"{caught.type.__name__}: {caught.value}"


@pytest.mark.parametrize("case", WRONG)
def test_an_array_that_cannot_be_computed_with_is_refused_and_nothing_is_written(contracted: Any, case: str) -> None:
    arguments, words = WRONG[case]
    said = [error_of(getattr(contracted.backends, name).plus, *arguments) for name in ("tvm_ffi", "cython")]
    assert said[0] == said[1]
    assert "kernel 'plus': " in said[0] and [word for word in words if word not in said[0]] == [], said[0]
    assert "\n  remedy: " in said[0] or words[:2] == NO_ARRAY or "takes 4 arguments" in said[0]
    assert (X.tolist(), Z.tolist(), J.tolist()) == ([1] * 4, [0] * 4, [1] * 4)


def test_wrong_calls_of_a_kernel_with_variants_say_the_same(contracted: Any) -> None:
    backends = contracted.backends.tvm_ffi, contracted.backends.cython
    for number in (2.5, "1", None, 2**31, -(2**31) - 1, 2**63):
        for config in ({"dtype": "int32"}, {}):
            said = [
                error_of(backend.whole.variant(**config) if config else backend.whole, X, number)
                for backend in backends
            ]
            assert said[0] == said[1] and "kernel 'whole'" in said[0]
    for array in (X, X.reshape(2, 2), T.bfloat16()[::2]):
        for config in ({"dtype": "float8_e4m3fn"}, {"dtype": "bfloat16"}):
            said = [error_of(backend.same.variant(**config), array) for backend in backends]
            assert said[0] == said[1] and "kernel 'same'" in said[0]
        said = [error_of(backend.same, array) for backend in backends]
        assert said[0] == said[1] and "kernel 'same'" in said[0]


def test_tracers_are_refused_with_what_to_use_instead(contracted: Any) -> None:
    seen: list[str] = []

    def call(x: Any) -> Any:
        seen.extend(error_of(getattr(contracted.backends, name).plus, 1.0, x, x) for name in ("tvm_ffi", "cython"))
        return x

    jax.jit(call)(J)
    torch.vmap(call)(torch.ones(3, 4))
    assert len(seen) == 4 and seen[0] == seen[1] and seen[2] == seen[3]
    assert "'x' is a jax." in seen[0] and "jax.pure_callback" in seen[0]
    assert "'x' is a torch.Tensor" in seen[2] and "vmap" in seen[2]


@pytest.fixture(params=["tvm_ffi", "cython"])
def kernels(contracted: Any, request: pytest.FixtureRequest) -> Any:
    return getattr(contracted.backends, request.param)


def test_arrays_of_all_libraries_meet_in_one_call_also_in_a_program_of_jax(kernels: Any) -> None:
    for x in (X, FROZEN, T, J, torch.ones(4, requires_grad=True), torch.nn.Parameter(T)):
        for y in (Y, 2 * T, 2 * J):
            made = kernels.plus(2.0, x, y)
            assert np.from_dlpack(made.detach() if torch.is_tensor(made) else made).tolist() == [4] * 4
            z, of_torch = np.zeros(4, "float32"), torch.zeros(4)
            assert kernels.plus(2.0, x, y, z) is None and kernels.plus(2.0, x, y, of_torch) is None
            assert z.tolist() == of_torch.tolist() == [4] * 4
    assert torch.is_tensor(kernels.plus(1.0, T, X)) and not kernels.plus(1.0, T, T).requires_grad
    shape = jax.ShapeDtypeStruct((4,), "float32")
    callback = lambda *arrays: np.from_dlpack(kernels.plus(2.0, *arrays))  # noqa: E731
    assert jax.jit(lambda x, y: jax.pure_callback(callback, shape, x, y))(J, J).tolist() == [3] * 4


def test_read_only_arrays_are_inputs_that_are_not_written(kernels: Any, tmp_path: Path) -> None:
    Y.tofile(tmp_path / "y")
    mapped = np.memmap(tmp_path / "y", "float32", "r", shape=Y.shape)
    for function in (kernels.plus, kernels.plus.variant()):
        assert np.from_dlpack(function(2.0, FROZEN, mapped)).tolist() == [4] * 4
    empty = read_only(np.empty(0, "float32"))
    for view in (empty, np.empty((0, 2), "float32")[:, 1]):
        assert np.from_dlpack(kernels.plus(2.0, empty, view)).shape == (0,), "whatever its strides"
    total = np.ones(4, "float32")
    kernels.add_to(total, FROZEN)
    kernels.add_to(total, J)
    assert total.tolist() == [3] * 4
    assert "'total' is a read-only array" in error_of(kernels.add_to, FROZEN, X)
    assert "'total' is an array of JAX, which is immutable" in error_of(kernels.add_to, J, X)


def test_the_function_of_a_kernel_leaves_read_only_arrays_to_numpy(contracted: Any) -> None:
    function = contracted.backends.tvm_ffi.plus.function
    assert np.from_dlpack(function(2.0, X, Y)).tolist() == [4] * 4
    with pytest.raises(BufferError, match="readonly"):
        function(2.0, FROZEN, Y)
