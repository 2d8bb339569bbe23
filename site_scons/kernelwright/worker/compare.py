"""Compares what a kernel computed with what its reference says. It needs nothing but NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

TOLERANCES = {
    "float64": 1e-10,
    "float32": 2e-5,
    "float16": 2e-3,
    "bfloat16": 1e-2,
    "float8_e4m3fn": 1e-1,
    "float8_e5m2": 2e-1,
}
"""Largest accepted error (see :func:`compare`) by the tensor's dtype; all other types must be equal."""


@dataclass(frozen=True)
class Mismatch:
    """Where an array differs most visibly from what was expected.

    Arguments:
        index: the first index at which it differs too much.
        expected, got: the two values there.
        error: the largest error of the array.
        count: how many elements differ too much.
    """

    index: tuple[int, ...]
    expected: Any
    got: Any
    error: float
    count: int


def compare(expected: Array, got: Array, tolerance: float) -> tuple[float, Mismatch | None]:
    """The largest error of an array, and where it is too large.

    The error of an element is ``|got - expected| / (scale + |expected|)`` with the array's :func:`scale`, so that the
    unit in which a kernel computes does not matter, nor that a sum happens to be near zero. Infinities and NaNs must
    be equal. The error of integers and booleans is 0 or 1.

    Arguments:
        expected, got: arrays of one shape; if one of them is of floating point, both are compared as float64.
        tolerance: the largest error that is accepted.
    """
    # Most arrays are inputs that have not changed; looking at each element takes longer than most kernels.
    if expected.dtype == got.dtype and expected.tobytes() == got.tobytes():
        return 0.0, None
    if is_float(got.dtype) or is_float(expected.dtype):
        errors = _float_errors(expected.astype(np.float64), got.astype(np.float64))
    else:
        errors = (expected != got).astype(np.float64)
    largest = float(errors.max(initial=0.0))
    wrong = errors > tolerance
    if not wrong.any():
        return largest, None
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return largest, Mismatch(index, expected[index], got[index], largest, int(wrong.sum()))


def scale(expected: NDArray[np.float64]) -> float:
    """The root mean square of an array's finite elements; 1 if they are all zero or there are none."""
    sizes = np.abs(expected)
    largest = float(sizes.max(initial=0.0))
    if not np.isfinite(largest):
        sizes = sizes[np.isfinite(sizes)]
        largest = float(sizes.max(initial=0.0))
    if largest == 0.0:
        return 1.0
    return largest * float(np.sqrt(np.mean(np.square(sizes / largest))))  # the squares alone could overflow


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type is of floating point, those of ml_dtypes among them."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def _float_errors(expected: NDArray[np.float64], got: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.abs(got - expected) / (scale(expected) + np.abs(expected))
    if np.isfinite(errors).all():
        return errors
    same = (expected == got) | (np.isnan(expected) & np.isnan(got))
    return np.where(same, 0.0, np.where(np.isfinite(errors), errors, np.inf))
