"""The bits of dtypes, and the alignment of data that follows from them: the same wherever it is asked for."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from kernelwright import backends
from kernelwright.backends import signature_tables as library
from kernelwright.core.dtype import CODES, Dtype, alignment_of, bytes_of, numpy_dtype
from kernelwright.core.errors import KernelwrightError, Where
from kernelwright.runtime import dlpack
from kernelwright.runtime.dtype import NARROW, dtype_name, name_of_torch, rounded, torch_dtype
from support.launcher_build import signature, tensor
from support.launchers import plan_of

WHERE = Where("k")

ALIGNMENTS = {
    **{"bool": 1, "int1": 1, "uint4": 1, "int4x2": 1, "int4x4": 2, "int4x8": 4, "int4x16": 8, "float4_e2m1fn": 1},
    **{"float4_e2m1fnx2": 1, "float4_e2m1fnx4": 2, "float6_e3m2fn": 1, "float6_e3m2fnx4": 1, "float8_e4m3fn": 1},
    **{"float8_e4m3fnx4": 4, "int8x3": 1, "float16": 2, "bfloat16x2": 4, "float32": 4, "float32x3": 4, "float32x4": 16},
    "int64": 8,
}
"""dtype -> alignment of an element. The vector types have that of CUDA's, such as char3, float3 and float4."""


def cuda_data(dtype: str, **more: Any) -> dict[str, Any]:
    data = signature("k", [{**tensor("x", dtype, ["n"]), **more}], target="cuda", arch="sm_80", symbols={"n": "int32"})
    launch = {"kernel": "f", "params": [{"tensor": "x"}], "grid": ["n", 1, 1], "block": [1, 1, 1], "shared": 0}
    return {**data, "launches": [launch]}


@pytest.mark.parametrize(("dtype", "alignment"), ALIGNMENTS.items())
def test_library_module_and_lowering_agree_about_the_alignment(dtype: str, alignment: int) -> None:
    from kernelwright.frontends.tir.alignment import element_alignment
    from tvm import tirx

    (unit,) = plan_of([cuda_data(dtype)]).units
    row = library._argument(unit.arguments[0], unit)
    assert re.findall(r"\.alignment = (\d+)", row) == [str(alignment)]
    assert alignments_of(cuda_data(dtype)) == {"default": (alignment,)}
    assert element_alignment(tirx.decl_buffer((8,), dtype, "x")) == alignment
    found = Dtype.parse(dtype, WHERE)
    assert found.alignment == alignment_of(found.bits * found.lanes) == alignment
    assert bytes_of(found.bits * found.lanes) % alignment == 0


def alignments_of(data: dict[str, Any]) -> Any:
    """What the module of the cuda_core backend says."""
    (text,) = backends.get("cuda_core").emit(plan_of([data])).values()
    return eval(text.partition("ALIGNMENTS = ")[2].partition('"""')[0])


def test_a_demanded_alignment_goes_before_that_of_the_elements() -> None:
    assert alignments_of(cuda_data("float32", alignment=16)) == {"default": (16,)}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        *(("int8", (0, 8, 1)), ("uint1", (1, 1, 1)), ("float64", (2, 64, 1)), ("float16x4", (2, 16, 4))),
        *(("handle", (3, 64, 1)), ("bfloat16", (4, 16, 1)), ("complex128", (5, 128, 1)), ("complex64x2", (5, 64, 2))),
        *(("bool", (6, 8, 1)), ("boolx16", (6, 8, 16)), ("float8_e4m3fn", (10, 8, 1)), ("float8_e5m2", (12, 8, 1))),
        *(("float6_e2m3fn", (15, 6, 1)), ("float4_e2m1fnx2", (17, 4, 2))),
        *((text, None) for text in ("float32x", "float32xx4", "floatx4", "int4y8", "float4_e2m1fnx12345", "")),
    ],
)
def test_a_dtype_is_its_code_its_bits_and_its_lanes_and_what_is_none_is_refused(text, parts):
    with nullcontext() if parts else pytest.raises(KernelwrightError, match="cannot be an argument"):
        assert Dtype.parse(text, WHERE) == Dtype(*parts)


def test_the_name_of_a_dtype_says_what_it_is_and_one_that_numpy_lacks_needs_ml_dtypes(monkeypatch):
    for base in CODES:
        name = {"bool": "bool", "handle": "handle64"}.get(base, base if "_" in base else f"{base}16")
        parts = Dtype.parse(name.removesuffix("64"), WHERE)
        assert parts.code == CODES[base] and dtype_name(parts.code, parts.bits, 1) == name
    assert [dtype_name(2, 32, 4), dtype_name(6, 1, 1), dtype_name(99, 8, 1)] == ["float32x4", "bool1", "dtype99_8"]
    with pytest.raises(AttributeError):
        numpy_dtype("handle")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TypeError, match="NumPy has no float7, and ml_dtypes, which has it, is not installed"):
        numpy_dtype("float7")


@pytest.mark.parametrize("name", NARROW)
def test_numbers_are_rounded_as_ml_dtypes_rounds_them_those_too_that_are_hardly_more_than_zero(name: str) -> None:
    of = np.random.default_rng(1)
    values = of.uniform(1, 2, 600) * 2.0 ** of.integers(-160, 120, 600) * of.choice([1, -1], 600)
    known = np.frombuffer(bytes(range(256)), numpy_dtype(name)).astype("float64") if name != "bfloat16" else values
    finite = np.sort(known[np.isfinite(known)])
    for value in map(float, [*values, *finite, *(finite[1:] / 2 + finite[:-1] / 2)]):
        if name == "float8_e8m0fnu" and 2.0**-149 < value < 2.0**-126:
            continue  # ml_dtypes rounds up whatever lies between the two least numbers
        with np.errstate(all="ignore"):
            expected = float(np.float64(value).astype(numpy_dtype(name)))
        assert str(rounded(value, name)) == str(expected), value


@pytest.mark.filterwarnings("ignore")  # PyTorch has made some dtypes obsolete
def test_tensors_of_pytorch_have_the_dtype_that_dlpack_says() -> None:
    torch = pytest.importorskip("torch")
    compared = set()
    for kind in {found for found in vars(torch).values() if isinstance(found, torch.dtype)}:
        try:
            capsule = torch.empty(4, dtype=kind).__dlpack__(max_version=(1, 1))
        except (BufferError, RuntimeError):
            continue  # PyTorch does not export it
        address = dlpack.pointer_in(capsule, b"dltensor_versioned")
        found = dlpack.VersionedTensor.from_address(address).tensor
        text = dtype_name(found.code, found.bits, found.lanes)
        assert name_of_torch(kind) == text
        assert name_of_torch(torch_dtype(text)) == text
        compared.add(text)
    assert compared >= {"float16", "int8", "bool", "complex64"}
    for text in ("int4", "float32x4", "no_grad", "int5"):
        with pytest.raises(TypeError, match="no such dtype"):
            torch_dtype(text)
