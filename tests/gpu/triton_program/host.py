"""How the program calls its kernels: by way of Triton, or of a package that was built from a recording of these calls.

``functions`` is always what has the kernels: the module ``_kernels``, or the package. Nothing here needs Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """Something that the program does.

    Arguments:
        run: calls a kernel, with arrays by their names.
        inputs: the arrays before the call.
        expected: the values of the array ``out`` afterwards, from the arrays before.
        is_exact: whether the result does not depend on the order of the operations.
    """

    run: Callable[[Any, Arrays], None]
    inputs: Mapping[str, np.ndarray]
    expected: Callable[[Arrays], np.ndarray]
    is_exact: bool = True


def ceildiv(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


# ---- the calls


def softmax(functions: Any, arrays: Arrays) -> None:
    """Rows of any length up to that of a block."""
    rows, columns = arrays["x"].shape
    block = 1 << (columns - 1).bit_length()
    values = (arrays["out"], arrays["x"], arrays.get("bias"), arrays["x"].stride(0), columns, 0.5)
    functions.softmax_rows[(rows,)](*values, BLOCK=block, num_warps=8 if block > 1024 else 4)


def product(functions: Any, arrays: Arrays, is_transposed: bool = False) -> None:
    """A matrix product; of a transposed matrix the columns are next to each other in memory."""
    a, b, out = arrays["a"], arrays["b"], arrays["out"]
    a_row, a_column = (a.stride(1), a.stride(0)) if is_transposed else (a.stride(0), a.stride(1))
    (m, n), k = out.shape, b.shape[0]
    functions.matmul[lambda meta: (ceildiv(m, meta["BLOCK_M"]), ceildiv(n, meta["BLOCK_N"]))](
        a, b, out, m, n, k, a_row, a_column, b.stride(0), b.stride(1), out.stride(0)
    )


def transposed_product(functions: Any, arrays: Arrays) -> None:
    product(functions, arrays, is_transposed=True)


def thin_out(functions: Any, arrays: Arrays) -> None:
    """Each element, or one of several."""
    count = arrays["out"].shape[0]
    functions.every[(ceildiv(count, 256),)](arrays["out"], arrays["x"], arrays["x"].shape[0] // count, count, BLOCK=256)


def combination(functions: Any, arrays: Arrays) -> None:
    """Three arrays and five numbers."""
    out, count = arrays["out"], arrays["out"].shape[0]
    grid = (ceildiv(count, 256),)
    functions.combine[grid](out, arrays["x"], arrays["y"], count, 2.0, 3.0, 7, 90.0, BLOCK=256)


# ---- what is expected


def softmax_of(before: Arrays) -> np.ndarray:
    values = before["x"].astype(np.float32) * 0.5
    values = values + before["bias"] if "bias" in before else values
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(before["x"].dtype)


def product_of(before: Arrays) -> np.ndarray:
    a = before["a"] if before["a"].shape[1] == before["b"].shape[0] else before["a"].T
    return (a.astype(np.float32) @ before["b"].astype(np.float32)).astype(np.float16)


def thinned_out(before: Arrays) -> np.ndarray:
    count = before["out"].shape[0]
    return before["x"][:: before["x"].shape[0] // count][:count].copy()


def combined(before: Arrays) -> np.ndarray:
    return np.minimum(2 * before["x"] + 3 * before["y"] + 7, 90).astype(np.float32)


# ---- the cases


def small(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Small integers: all sums of them are exact, in whatever order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def numbers(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _softmax(shape: tuple[int, int], dtype: str, has_bias: bool) -> Case:
    inputs = {"x": numbers(shape, dtype), "out": np.full(shape, np.nan, dtype)}
    if has_bias:
        inputs["bias"] = numbers(shape[1:], "float32", 1)
    return Case(softmax, inputs, softmax_of, is_exact=False)


def _product(m: int, n: int, k: int, is_transposed: bool) -> Case:
    a = small((k, m) if is_transposed else (m, k), "float16")
    inputs = {"a": a, "b": small((k, n), "float16", 1), "out": np.full((m, n), np.nan, np.float16)}
    return Case(transposed_product if is_transposed else product, inputs, product_of)


def _every(count: int, step: int) -> Case:
    return Case(thin_out, {"x": numbers((count * step,)), "out": np.full(count, np.nan, np.float32)}, thinned_out)


def _combine(count: int) -> Case:
    inputs = {"x": small((count,)), "y": small((count,), seed=1), "out": np.full(count, np.nan, np.float32)}
    return Case(combination, inputs, combined)


CASES: Mapping[str, Case] = {
    "softmax, 4 x 1024": _softmax((4, 1024), "float32", has_bias=False),
    "softmax, 5 x 1000 with a bias": _softmax((5, 1000), "float32", has_bias=True),
    "softmax, 7 x 2003 of float16 with a bias": _softmax((7, 2003), "float16", has_bias=True),
    "softmax, 1 x 2048 of float16": _softmax((1, 2048), "float16", has_bias=False),
    "matmul, 256 x 192 x 128": _product(256, 192, 128, is_transposed=False),
    "matmul, 144 x 80 x 96 transposed": _product(144, 80, 96, is_transposed=True),
    "matmul, 75 x 41 x 37": _product(75, 41, 37, is_transposed=False),
    "every, step 1": _every(1000, 1),
    "every, step 3": _every(1000, 3),
    "every, one element": _every(1, 3),
    "combine, 1024": _combine(1024),
    "combine, 999": _combine(999),
}


def run_all(functions: Any, made: Callable[[np.ndarray], Any]) -> None:
    """Do everything once; ``made`` makes an array of a framework."""
    for case in CASES.values():
        case.run(functions, {name: made(array) for name, array in case.inputs.items()})


# ---- launches one after the other, to be timed


def launch_softmax(functions: Any, arrays: Arrays, times: int) -> None:
    """Launch what a heuristic belongs to, with a None."""
    function, grid, stride = functions.softmax_rows, (arrays["x"].shape[0],), arrays["x"].stride(0)
    columns, out, x = arrays["x"].shape[1], arrays["out"], arrays["x"]
    for _ in range(times):
        function[grid](out, x, None, stride, columns, 0.5, BLOCK=1024)


def launch_combine(functions: Any, arrays: Arrays, times: int) -> None:
    """Launch a function of three tensors and five numbers."""
    function, grid, count = functions.combine, (ceildiv(arrays["x"].shape[0], 256),), arrays["x"].shape[0]
    out, x, y = arrays["out"], arrays["x"], arrays["y"]
    for _ in range(times):
        function[grid](out, x, y, count, 2.0, 3.0, 7, 90.0, BLOCK=256)


LAUNCHES: Mapping[str, Callable[[Any, Arrays, int], None]] = {
    "softmax, 4 x 1024": launch_softmax,
    "combine, 1024": launch_combine,
}
"""Case -> what launches its kernel so many times."""
