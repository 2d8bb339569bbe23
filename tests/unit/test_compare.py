"""The comparison of a result with its reference: errors are relative to what is expected, not to 1."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernelwright.worker.compare import TOLERANCES, Mismatch, compare, is_float, scale

RNG = np.random.default_rng(0)


def softmax(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    power = np.exp(scores)
    return np.asarray(power / power.sum(axis=-1, keepdims=True))


RESULTS = {
    **{"normal": RNG.standard_normal((33, 100)), "softmax of 4096": softmax(RNG.standard_normal((33, 4096)))},
    **{"large": 1e4 * RNG.standard_normal(50), "all the same": np.full(100, 0.01), "one": np.array([-0.3])},
}


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize(("dtype", "factor"), [("float16", 1.02), ("float32", 1.001), ("float64", 1.0000001)])
def test_a_wrong_factor_fails_and_a_rounding_error_passes(result: str, dtype: str, factor: float) -> None:
    exact = RESULTS[result]
    expected = exact.astype(dtype)
    assert compare(expected, (exact * factor).astype(dtype), TOLERANCES[dtype])[1] is not None
    # To the neighbour of each number, as another order of summation gives it.
    assert compare(expected, np.nextafter(expected, np.inf).astype(dtype), TOLERANCES[dtype])[1] is None


def test_an_error_is_measured_by_all_elements_and_a_mismatch_shows_the_first_and_the_largest() -> None:
    expected, got = np.array([1.0, -1.0, 1e-9]), np.array([1.0, -1.0, 2e-9])
    error, mismatch = compare(expected, got, 2e-5)
    assert 1e-9 < error < 2e-9 and mismatch is None
    assert compare(np.zeros((0, 3)), np.zeros((0, 3)), 0.0) == (0.0, None)
    expected = np.array([[1.0, -1.0], [1.0, 1.0]])
    got = np.array([[1.0, -1.5], [1.0, 3.0]])
    error, mismatch = compare(expected, got, 0.1)
    assert error == 1.0
    assert mismatch == Mismatch((0, 1), -1.0, -1.5, 1.0, 2)
    assert compare(expected, got, 1.0) == (1.0, None), "the tolerance itself is accepted"
    special = np.array([np.inf, -np.inf, np.nan, 1.0])
    assert compare(special, special.copy(), 0.0) == (0.0, None)
    for place, other in [(0, -np.inf), (1, 5.0), (2, 5.0), (3, np.nan), (3, np.inf)]:
        got = special.copy()
        got[place] = other
        error, mismatch = compare(special, got, 0.5)
        assert error == np.inf and mismatch is not None and mismatch.index == (place,)


@pytest.mark.parametrize("name", TOLERANCES)
def test_every_type_of_floating_point_is_compared_with_its_tolerance(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    assert is_float(dtype) and not is_float(np.dtype("int32")) and not is_float(np.dtype(ml_dtypes.int4))
    expected = np.ones(4, dtype)
    near = expected.astype(np.float64) * (1 + TOLERANCES[name])
    for one, other in [(expected, near), (near, expected)]:
        error, mismatch = compare(one, other, 2 * TOLERANCES[name])
        assert 0 < error < TOLERANCES[name] and mismatch is None
    assert compare(np.ones(4, dtype), np.ones(4, dtype), 0.0) == (0.0, None)


def test_tolerances_grow_as_precision_falls_and_the_scale_is_of_what_is_finite() -> None:
    names = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
    assert list(TOLERANCES) == names
    for name, tolerance in TOLERANCES.items():
        spacing = float(ml_dtypes.finfo(name).eps)
        assert spacing / 2 < tolerance < 1
    assert sorted(TOLERANCES.values()) == list(TOLERANCES.values())
    assert scale(np.array([3.0, 4.0, np.inf, np.nan])) == pytest.approx(12.5**0.5)
    assert scale(np.array([0.0, np.inf])) == scale(np.array([])) == 1.0
    assert scale(np.array([1e300, -1e300])) == pytest.approx(1e300)


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool"])
def test_integers_must_be_equal(dtype: str) -> None:
    expected = np.zeros((2, 3), dtype)
    got = expected.copy()
    got[1, 2] = 1
    error, mismatch = compare(expected, got, 0.0)
    assert error == 1.0 and mismatch is not None and (mismatch.index, mismatch.count) == ((1, 2), 1)
    assert compare(expected, expected, 0.0) == (0.0, None)


def test_integers_are_compared_by_what_they_are_worth_also_where_no_float_tells_them_apart():
    expected, got = np.array([-1], "int8"), np.array([255], "uint8")
    assert expected.tobytes() == got.tobytes() and compare(expected, got, 0.0)[1] is not None
    assert compare(np.array([7], "int8"), np.array([7], "uint8"), 0.0) == (0.0, None)
    for mixed in ((np.array([2.0]), np.array([3])), (np.array([2]), np.array([3.0]))):
        assert compare(*mixed, 0.5)[0] == 0.25, "relative, as one of them is of floating point"
    expected = np.array([2**53, -(2**62)])
    for change in (np.array([1, 0]), np.array([0, 1])):
        assert compare(expected, expected + change, 0.0)[1] is not None
