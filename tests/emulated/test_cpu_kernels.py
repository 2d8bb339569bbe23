"""The kernels of the library on the CPU where ``scons check`` does not reach: points of spaces, edges, instructions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from emulation import kernels_in
from tvm import te
from tvm.target import Target

ARCHS = ("x86-64-v3", "x86-64-v4")


def target_of(arch: str) -> Target:
    return Target({"kind": "llvm", "mcpu": arch, "mtriple": "x86_64-linux-gnu"})


def compiled(name: str, arch: str, **config: Any) -> Any:
    """A variant of a kernel of the library, compiled by TVM alone."""
    (kernel,) = (kernel for kernel in kernels_in(name) if kernel.name == name)
    target = target_of(arch)
    return tvm.compile(tvm.IRModule({"main": kernel.build(config, target)}), target=target)


def called(library: Any, *arrays: np.ndarray[Any, Any]) -> None:
    """Run it here, with the last array as output."""
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    library["main"](*tensors)
    arrays[-1][...] = tensors[-1].numpy()


def runs_here(arch: str) -> None:
    needed = "avx512f" if arch == "x86-64-v4" else "avx2"
    if needed not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip(f"this CPU has no {needed}")


def elementwise(function: Callable[[Any], Any], dtype: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A function of expressions, compiled for AVX2 in vectors, of each element."""
    runs_here("x86-64-v3")
    from _common import rows_on_cpu  # kernels_in has put its folder on the path

    target = target_of("x86-64-v3")
    given = te.placeholder((te.var("n"), len(x)), "float32", name="x")
    made = te.create_prim_func([given, te.compute(given.shape, lambda i, j: function(given[i, j]).astype(dtype), "y")])
    y = np.empty((1, len(x)), dtype)
    library = tvm.compile(tvm.IRModule({"main": rows_on_cpu(made, target)}), target=target)
    called(library, x[None], y)
    return y[0]


def test_the_exponential_is_good_to_two_units_in_the_last_place_and_knows_no_numbers() -> None:
    kernels_in("softmax")
    from _common import exp

    x = np.linspace(-87, 88, 1 << 16, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(elementwise(exp, "float32", x) - exact) / exact) < 2**-22

    x = np.array([np.nan, np.inf, 1e30, 89, 0, -0.0, -88.5, -1e30, -np.inf] + 7 * [1], np.float32)
    expected = [np.nan, np.inf, np.inf, np.inf, 1, 1, 0, 0, 0]
    np.testing.assert_array_equal(elementwise(exp, "float32", x)[:9], np.array(expected, np.float32))


def test_the_nearest_integer_is_that_of_numpy_also_in_the_middle() -> None:
    kernels_in("softmax")
    from _common import nearest_int

    x = np.concatenate([np.arange(-130, 130, 0.25), [0.49999997, -0.49999997, 4e6, -4e6, 1.5, 2.5]]).astype(np.float32)
    x = np.pad(x, (0, -len(x) % 16))
    np.testing.assert_array_equal(elementwise(nearest_int, "int32", x), np.rint(x).astype(np.int32))


@pytest.mark.parametrize("arch", ARCHS)
def test_each_point_of_the_space_of_gemm_computes_every_row(arch: str) -> None:
    """Each arch takes every second one."""
    runs_here(arch)
    (kernel,) = kernels_in("gemm")
    rng = np.random.default_rng(0)
    b = (rng.standard_normal((1024, 1024)) / 32).astype(np.float32)
    choice = next(one for one in kernel.choices if one.config == {"n": 1024, "k": 1024, "dtype": "float32"})
    candidates = choice.candidates("llvm")
    assert len(candidates) > 5
    for config in candidates[ARCHS.index(arch) :: len(ARCHS)]:
        library = compiled("gemm", arch, **config)
        for m in (1, 17, 150):
            a, c = rng.standard_normal((m, 1024)).astype(np.float32), np.zeros((m, 1024), np.float32)
            called(library, a, b, c)
            np.testing.assert_allclose(c, a @ b, atol=1e-4, err_msg=str((config, m)))


@pytest.mark.parametrize(("arch", "products"), [("x86-64-v3", 12), ("x86-64-v4", 16)])
def test_the_inner_loop_of_gemm_multiplies_and_adds_in_registers(arch: str, products: int) -> None:
    library = compiled("gemm", arch, n=1024, k=1024, dtype="float32", block_m=144, block_n=256)
    blocks = re.split(r"^\.L\w+:.*$", library.mod.inspect_source("asm"), flags=re.MULTILINE)
    (loop,) = [block for block in blocks if block.count("vfmadd") == products and re.search(r"\tj\w+\t", block)]
    loop = loop[: re.search(r"\tj\w+\t", loop).start()]  # type: ignore[union-attr]
    assert not re.search(r"vmov\w+\t[^,]*%[xyz]mm\d+, [^%]", loop), f"the loop stores:\n{loop}"
    assert len(re.findall(r"vbroadcastss", loop)) == products // 2


@pytest.mark.parametrize(("arch", "dtype"), [("x86-64-v4", "float32"), ("x86-64-v3", "int8")])
def test_transpose_moves_every_element_at_all_edges(arch: str, dtype: str) -> None:
    runs_here(arch)
    library = compiled("transpose", arch, dtype=dtype, block=64)
    for m, n in ((1, 1), (15, 17), (16, 16), (130, 7), (65, 129), (8, 300), (400, 1)):
        x, y = np.arange(m * n).reshape(m, n).astype(dtype), np.zeros((n, m), dtype)
        called(library, x, y)
        np.testing.assert_array_equal(y, x.T)


@pytest.mark.parametrize("share", [4, 1])
def test_decode_attention_ends_where_a_sequence_does(share: int) -> None:
    runs_here("x86-64-v3")
    (kernel,) = kernels_in("decode_attention")
    config = {"heads": 16, "kv_heads": 4, "head_dim": 64, "dtype": "float32"}
    library = compiled("decode_attention", "x86-64-v3", **config, share=share, block=64)
    rng = np.random.default_rng(0)
    lengths = np.array([0, 1, 63, 64, 65, 130, 1000, -3], np.int32)
    q, out = (rng.standard_normal((len(lengths), 16, 64)).astype(np.float32) for _ in range(2))
    keys, values = (rng.standard_normal((len(lengths), 130, 4, 64)).astype(np.float32) for _ in range(2))
    called(library, q, keys, values, lengths, out)
    np.testing.assert_allclose(out, kernel.reference_function(q, keys, values, lengths), atol=1e-5)
