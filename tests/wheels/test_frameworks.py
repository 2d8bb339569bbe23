"""One installed package, called with arrays of NumPy, PyTorch and JAX: right results, or errors that say what to do."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from consumers import Interpreter, acme
from support.environments import run

PRELUDE = """
import contextlib, sys
import numpy as np
from acme_kernels import accumulate, axpy

@contextlib.contextmanager
def refused(kind, kernel, argument, *words):
    try:
        yield
    except Exception as error:
        assert type(error) is kind, repr(error)
        text = str(error)
        assert text.startswith(f"kernel '{kernel}': ") and "\\n  remedy: " in text, text
        assert argument in text and all(word in text for word in words), text
    else:
        raise AssertionError(f"accepted: {argument} {words}")

def matrices(dtype="float32", rows=5, columns=7):
    numbers = np.random.default_rng(0).standard_normal((2, rows, columns))
    return numbers[0].astype(dtype), numbers[1].astype(dtype)
"""

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return acme(tmp_path_factory)


@pytest.fixture(scope="module")
def alone(home: Path) -> Iterator[Interpreter]:
    """A Python that has the package, NumPy and tvm-ffi."""
    interpreter = Interpreter(home)
    yield interpreter
    interpreter.close()


@pytest.fixture(scope="module")
def everything(home: Path) -> Iterator[Interpreter]:
    """A Python that has PyTorch and JAX as well."""
    interpreter = Interpreter(home, also=True)
    yield interpreter
    interpreter.close()


# ---- what is imported


@needs_torch
@needs_jax
def test_a_package_is_imported_listed_and_described_without_any_array_library(home: Path) -> None:
    code = """
import sys, importlib.util
assert all(importlib.util.find_spec(name) for name in ("torch", "jax", "numpy", "tvm_ffi"))
import acme_kernels
assert dir(acme_kernels) and acme_kernels.manifest()["kernels"]["axpy"]
print(sorted({"torch", "jax", "numpy", "tvm_ffi", "typing", "json"} & sys.modules.keys()))
"""
    assert run(home, code, also=True) == "['json']\n"


# ---- NumPy


def test_numpy_results_equal_a_reference(alone: Interpreter) -> None:
    code = """
for dtype, tolerance in (("float32", 1e-6), ("float16", 1e-3)):
    for rows, columns in ((5, 7), (1, 1), (33, 130)):
        x, y = matrices(dtype, rows, columns)
        expected = (np.float32(1.5) * x.astype("float32") + y.astype("float32")).astype(dtype)
        new = np.from_dlpack(axpy(1.5, x, y))
        np.testing.assert_allclose(new, expected, tolerance, tolerance)
        assert new.dtype == dtype and new.shape == x.shape
        z = np.full_like(x, np.nan)
        assert axpy(1.5, x, y, z) is None
        np.testing.assert_array_equal(z, new)
x, y = (matrix.ravel() for matrix in matrices())
expected = x + y
assert accumulate(x, y) is None
np.testing.assert_array_equal(x, expected)
assert "torch" not in sys.modules and "jax" not in sys.modules
"""
    alone.run(PRELUDE + code)


def test_numpy_arrays_without_elements_are_computed(alone: Interpreter) -> None:
    code = """
for rows, columns in ((0, 7), (5, 0), (0, 0)):
    x, y = matrices(rows=rows, columns=columns)
    assert np.from_dlpack(axpy(1.5, x, y)).shape == (rows, columns)
    z = np.empty((rows, columns), "float32")
    axpy(1.5, x, y, z)
    axpy(1.5, x.T, y.T, z.T)
accumulate(np.empty(0, "float32"), np.empty(0, "float32"))
"""
    alone.run(PRELUDE + code)


def test_numpy_arrays_that_are_not_compact_are_refused_and_nothing_is_written(alone: Interpreter) -> None:
    code = """
x, y = matrices()
z = np.full((5, 14), 9, "float32")
views = {"transposed": np.ones((7, 5), "float32").T, "reversed": x[::-1], "sliced": np.ones((5, 14), "float32")[:, ::2],
         "repeated": np.broadcast_to(np.float32(1), (5, 7))}
for view in views.values():
    with refused(ValueError, "axpy", "x.strides", "compact", "numpy.ascontiguousarray"):
        axpy(1.5, view, y)
    expected = np.float32(1.5) * view + y
    np.testing.assert_allclose(np.from_dlpack(axpy(1.5, np.ascontiguousarray(view), y)), expected, 1e-6, 1e-6)
with refused(ValueError, "axpy", "z.strides", "compact"):
    axpy(1.5, x, y, z[:, ::2])
assert (z == 9).all()
np.testing.assert_allclose(np.from_dlpack(axpy(1.5, x[1:3], y[1:3])), np.float32(1.5) * x[1:3] + y[1:3], 1e-6, 1e-6)
with refused(ValueError, "axpy", "'x'", "aligned"):
    axpy(1.5, np.frombuffer(bytearray(4 * 35 + 1), "uint8")[1:].view("float32").reshape(5, 7), y)
"""
    alone.run(PRELUDE + code)


def test_numpy_arrays_that_no_variant_takes_are_refused(alone: Interpreter) -> None:
    code = """
x, y = matrices()
with refused(TypeError, "axpy", "x = float64[5, 7] on cpu"):
    axpy(1.5, x.astype("float64"), y)
with refused(TypeError, "axpy", "'y' is a numpy.ndarray", "native byte order"):
    axpy(1.5, x, y.astype(">f4"))
with refused(TypeError, "axpy", "'x' is a numpy.ndarray", "cannot be passed"):
    axpy(1.5, x.astype(object), y)
with refused(ValueError, "axpy", "y.shape[0]", "fit each other"):
    axpy(1.5, x, y[1:])
with refused(TypeError, "axpy", "alpha = a tensor"):
    axpy(np.array(1.5), x, y)
np.from_dlpack(axpy(np.float32(1.5), x, y))
"""
    alone.run(PRELUDE + code)


def test_read_only_arrays_are_inputs_that_are_not_written(alone: Interpreter, tmp_path: Path) -> None:
    code = f"""
x, y = matrices()
expected = np.float32(1.5) * x + y
x.flags.writeable = False
np.testing.assert_allclose(np.from_dlpack(axpy(1.5, x, y)), expected, 1e-6, 1e-6)
y.tofile({str(tmp_path / "y")!r})
mapped = np.memmap({str(tmp_path / "y")!r}, "float32", "r", shape=y.shape)
z = np.empty_like(y)
axpy(1.5, x, mapped, z)
np.testing.assert_allclose(z, expected, 1e-6, 1e-6)
np.testing.assert_allclose(np.from_dlpack(axpy.variant(dtype="float32")(1.5, x, mapped)), expected, 1e-6, 1e-6)
empty = np.empty((0, 7), "float32")
empty.flags.writeable = False
assert np.from_dlpack(axpy(1.5, empty, empty)).shape == (0, 7)
total = np.ones(35, "float32")
accumulate(total, x.ravel())
np.testing.assert_array_equal(total, 1 + x.ravel())
"""
    alone.run(PRELUDE + code)


def test_the_function_of_a_kernel_leaves_read_only_arrays_to_numpy(alone: Interpreter) -> None:
    code = """
x, y = matrices()
np.testing.assert_array_equal(np.from_dlpack(axpy.function(1.5, x, y)), np.from_dlpack(axpy(1.5, x, y)))
x.flags.writeable = False
try:
    axpy.function(1.5, x, y)
except BufferError as error:
    assert "readonly" in str(error), error
else:
    raise AssertionError
"""
    alone.run(PRELUDE + code)


def test_read_only_arrays_are_refused_where_a_kernel_writes(alone: Interpreter) -> None:
    code = """
x, y = matrices()
z = np.full_like(x, 9)
z.flags.writeable = False
with refused(ValueError, "axpy", "'z' is a read-only array"):
    axpy(1.5, x, y, z)
with refused(ValueError, "axpy", "'z' is a read-only array"):
    axpy.variant(dtype="float32")(1.5, z, y, z)
with refused(ValueError, "accumulate", "'total' is a read-only array"):
    accumulate(z.ravel(), x.ravel())
assert (z == 9).all()
try:
    axpy(1.5, z)
except TypeError as error:
    assert "kernel 'axpy': takes 4 arguments" in str(error), error
else:
    raise AssertionError
"""
    alone.run(PRELUDE + code)


# ---- PyTorch


@needs_torch
def test_torch_results_equal_a_reference_and_are_tensors(everything: Interpreter) -> None:
    code = """
import torch
for dtype, tolerance in ((torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)):
    for rows, columns in ((5, 7), (1, 1), (0, 7), (5, 0)):
        x, y = (torch.from_numpy(matrix).to(dtype) for matrix in matrices(rows=rows, columns=columns))
        expected = (1.5 * x.float() + y.float()).to(dtype)
        new = axpy(1.5, x, y)
        assert type(new) is torch.Tensor and new.dtype == dtype and new.shape == (rows, columns)
        torch.testing.assert_close(new, expected, rtol=tolerance, atol=tolerance)
        z = torch.full_like(x, 9)
        assert axpy(1.5, x, y, z) is None
        torch.testing.assert_close(z, new, rtol=0, atol=0)
total = torch.ones(3)
accumulate(total, torch.arange(3.0))
assert total.tolist() == [1, 2, 3]
mixed = axpy(1.5, torch.ones(5, 7), np.ones((5, 7), "float32"))
assert type(mixed) is torch.Tensor and (mixed == 2.5).all()
untracked = axpy(1.5, torch.ones(5, 7, requires_grad=True), torch.ones(5, 7))
assert not untracked.requires_grad and (untracked == 2.5).all()
"""
    everything.run(PRELUDE + code)


@needs_torch
def test_torch_tensors_that_cannot_be_computed_with_are_refused(everything: Interpreter) -> None:
    code = """
import torch, warnings
warnings.simplefilter("ignore")
x, y, z = torch.ones(5, 7), torch.ones(5, 7), torch.full((5, 7), 9.0)
for view in (torch.ones(7, 5).T, torch.ones(1, 7).expand(5, 7), torch.ones(5, 14)[:, ::2]):
    with refused(ValueError, "axpy", "x.strides", "compact", ".contiguous()"):
        axpy(1.5, view, y)
    assert axpy(1.5, view.contiguous(), y).sum() == 35 * 2.5
with refused(ValueError, "axpy", "z.strides", "compact"):
    axpy(1.5, x, y, z.T.contiguous().T)
for position, name in ((1, "x"), (2, "y"), (3, "z")):
    arguments = [1.5, x, y, z]
    arguments[position] = torch.empty(5, 7, device="meta")
    with refused(TypeError, "axpy", f"{name!r} is a torch.Tensor", "on meta", "that has data"):
        axpy(*arguments)
with refused(TypeError, "axpy", "'x' is a torch.Tensor", "storage"):
    axpy(1.5, x.to_sparse(), y)
with refused(TypeError, "axpy", "'x' is a torch.Tensor", "vmap"):
    torch.func.vmap(lambda rows: axpy(1.5, rows, y))(torch.ones(2, 5, 7))
with refused(TypeError, "axpy", "x = float64[5, 7] on cpu"):
    axpy(1.5, x.double(), y)
with refused(TypeError, "axpy", "y = bfloat16[5, 7] on cpu"):
    axpy(1.5, x, y.bfloat16())
with refused(TypeError, "axpy", "alpha = a tensor"):
    axpy(torch.tensor(1.5), x, y)
assert (z == 9).all()
"""
    everything.run(PRELUDE + code)


# ---- JAX


@needs_jax
def test_jax_results_equal_a_reference(everything: Interpreter) -> None:
    code = """
import jax, jax.numpy as jnp
for dtype, tolerance in ((jnp.float32, 1e-6), (jnp.float16, 1e-3), (jnp.bfloat16, 8e-3)):
    for rows, columns in ((5, 7), (1, 1), (0, 7), (5, 0)):
        x, y = (jnp.asarray(matrix).astype(dtype) for matrix in matrices(rows=rows, columns=columns))
        expected = (1.5 * x.astype("float32") + y.astype("float32")).astype(dtype)
        new = jnp.from_dlpack(axpy(1.5, x, y))
        assert isinstance(new, jax.Array) and new.dtype == dtype and new.shape == (rows, columns)
        np.testing.assert_allclose(*(np.asarray(a, "float32") for a in (new, expected)), tolerance, tolerance)
x, y = matrices()
z = np.empty_like(x)
axpy(1.5, jnp.asarray(x), jnp.asarray(y), z)
np.testing.assert_allclose(z, np.float32(1.5) * x + y, 1e-6, 1e-6)
shape = jax.ShapeDtypeStruct((5, 7), "float32")
inside = jax.jit(lambda a, b: jax.pure_callback(lambda *rows: np.from_dlpack(axpy(1.5, *rows)), shape, a, b))
np.testing.assert_allclose(inside(x, y), z, 1e-6, 1e-6)
"""
    everything.run(PRELUDE + code)


@needs_jax
def test_jax_arrays_are_never_written_and_what_is_no_array_yet_is_refused(everything: Interpreter) -> None:
    code = """
import jax, jax.numpy as jnp
x, y, z = jnp.ones((5, 7)), jnp.ones((5, 7)), jnp.full((5, 7), 9.0)
with refused(ValueError, "axpy", "'z' is an array of JAX, which is immutable"):
    axpy(1.5, x, y, z)
with refused(ValueError, "axpy", "'z' is an array of JAX, which is immutable"):
    axpy.variant(dtype="float32")(1.5, x, y, z)
with refused(ValueError, "axpy", "'z' is an array of JAX, which is immutable"):
    axpy(1.5, np.asarray(x), np.asarray(y), z)
with refused(ValueError, "accumulate", "'total' is an array of JAX, which is immutable"):
    accumulate(z.ravel(), np.ones(35, "float32"))
assert (z == 9).all()
total = np.zeros(35, "float32")
accumulate(total, z.ravel())
assert (total == 9).all()
with refused(TypeError, "axpy", "'x' is a jax.", "jax.pure_callback"):
    jax.jit(lambda a: axpy(1.5, a, y))(x)
import ml_dtypes
with refused(TypeError, "axpy", "'x' is a numpy.ndarray", "bfloat16 or float8 of ml_dtypes"):
    axpy(1.5, *matrices(ml_dtypes.int4))
with refused(TypeError, "axpy", "'y' is a jaxlib.", "not deleted"):
    y.delete()
    axpy(1.5, x, y)
"""
    everything.run(PRELUDE + code)


# ---- all of them


@needs_torch
@needs_jax
def test_arrays_of_all_libraries_meet_in_one_call(everything: Interpreter) -> None:
    code = """
import torch, jax.numpy as jnp
x, y = matrices()
expected = np.float32(1.5) * x + y
x.flags.writeable = False
z = torch.empty(5, 7)
axpy(1.5, x, jnp.asarray(y), z)
np.testing.assert_allclose(z.numpy(), expected, 1e-6, 1e-6)
"""
    everything.run(PRELUDE + code)
