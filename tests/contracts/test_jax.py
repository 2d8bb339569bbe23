"""Kernels as functions of JAX, beyond what every backend does: custom calls in programs, and arrays that stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.contract import contracted, wide_in_jax

__all__ = ["contracted"]

jax = pytest.importorskip("jax")
pytest.importorskip("jax_tvm_ffi")
jnp = jax.numpy


@pytest.fixture(scope="module")
def kernels(contracted: Any) -> Any:
    return contracted.backends.jax


@pytest.fixture
def wide() -> Iterator[None]:
    with wide_in_jax():
        yield


def test_programs_take_several_shapes_and_dtypes(kernels: Any, wide: None) -> None:
    @jax.jit
    def program(x: Any, w: Any) -> Any:
        return kernels.cube(x * 2, w, 1.0)[::-1] + 1

    for rows in (0, 1, 5):
        for dtype in ("float32", "float64"):
            x = jnp.arange(rows * 4.0, dtype=dtype).reshape(rows, 4)
            made = program(x, jnp.ones(4, dtype))
            assert (made.shape, made.dtype) == (x.shape, x.dtype)
            np.testing.assert_allclose(np.asarray(made), (8 * np.asarray(x) ** 3 + 1)[::-1], rtol=1e-5)


def test_numbers_are_part_of_the_program_and_inputs_that_are_written_are_returned(kernels: Any) -> None:
    x = jnp.arange(4.0)
    assert kernels.plus(jnp.float32(3), x, x).tolist() == [0, 4, 8, 12]
    zero, one = jnp.zeros(1), jnp.ones(1)
    signs = [1 / kernels.plus(alpha, one, -zero)[0] for alpha in (0.0, -0.0, 0.0)]
    assert [float(sign) for sign in signs] == [np.inf, -np.inf, np.inf]
    with pytest.raises(TypeError, match=r"argument 'alpha' is traced by JAX.*\n  remedy: make it static"):
        jax.jit(lambda alpha: kernels.plus(alpha, x, x))(2.0)
    static = jax.jit(lambda alpha: kernels.plus(alpha, x, x), static_argnames="alpha")
    assert static(alpha=2.0).tolist() == [0, 3, 6, 9]
    total, x = jnp.ones(3), jnp.arange(3.0)
    for function in (kernels.accumulate, jax.jit(lambda *arrays: kernels.accumulate(*arrays))):
        y, changed = function(total, x)
        assert (y.tolist(), changed.tolist(), total.tolist()) == ([2, 4, 6], [1, 2, 3], [1, 1, 1])


def test_outputs_and_inputs_in_any_order_are_put_in_place(kernels: Any) -> None:
    """Kernels with interleaved arguments go through a function in Python."""
    from contracted._runtime.jax_kernel import JaxKernel

    assert kernels.plus._function()[1] == ["attrs.alpha", "args", "rets"]
    entry = {**kernels.plus._entry}
    (variant,) = entry["variants"]
    alpha, x, y, z = variant["arguments"]
    entry["variants"] = [{**variant, "arguments": [x, alpha, z, y]}]

    class Interleaved:
        """The kernel with its arguments in another order."""

        _index, name, variants, devices = None, "interleaved", ({},), frozenset({"cpu"})

        @staticmethod
        def function(x: Any, alpha: Any, z: Any, y: Any) -> None:
            kernels.plus._kernel.function(alpha, x, y, z)

    kernel = JaxKernel(kernels.plus._loader, entry, Interleaved, None)
    numbers = jnp.arange(4.0)
    assert kernel(numbers, 2.0, 10 * numbers).tolist() == [0, 12, 24, 36]


def test_gradients_are_those_of_finite_differences(kernels: Any, wide: None) -> None:
    from jax.test_util import check_grads

    x = np.random.default_rng(0).standard_normal((5, 4))
    w = np.random.default_rng(1).uniform(1, 2, 4)
    loss = jax.jit(lambda x, w: jnp.tanh(kernels.cube(x / 2, w, 1.5)).sum())
    check_grads(loss, (jnp.asarray(x), jnp.asarray(w)), order=1, modes=["rev"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((np.array([2.5]), 0, 0), TypeError, r"argument 'alpha' is a numpy.ndarray, expected a number\n  remedy: "),
        ((None, 0, 0), TypeError, r"argument 'alpha' is a NoneType, expected a number\n  remedy: "),
        ((-(10**400), 0, 0), ValueError, "argument 'alpha' is an int that is too large for a float"),
        ((1.0, [1.0], 0), TypeError, r"argument 'x' is a list, expected an array of JAX or NumPy"),
        ((1.0, 0, 0, 0), TypeError, r"takes 3 arguments \(alpha, x, y\), 4 .*\n  remedy: leave"),
        ((1.0,), TypeError, r"takes 3 arguments \(alpha, x, y\), 1 were given$"),
    ],
)
def test_a_wrong_call_says_what_is_expected(kernels: Any, arguments: Any, error: type[Exception], text: str) -> None:
    x = jnp.arange(4.0)
    with pytest.raises(error, match=f"^kernel 'plus': {text}"):
        kernels.plus(*(x if type(one) is int and not one else one for one in arguments))


def test_a_variant_is_a_custom_call_of_its_own_and_wide_dtypes_need_the_switch_of_jax(kernels: Any) -> None:
    number = [config["dtype"] for config in kernels.whole.variants].index("int16")
    assert kernels.whole.variant(dtype="int16").target == f"contracted_1_2_0.whole__{number}"
    assert kernels.whole.__name__ == "whole"
    assert repr(kernels.whole) == f"<JAX kernel whole with {len(kernels.whole.variants)} variants>"
    with pytest.raises(ValueError, match=r"kernel 'cube': argument 'x' is float64.*\n  remedy: jax.config.update"):
        kernels.cube(np.ones((2, 4)), np.ones(4), 2.0)
