"""What is written of a kernel whose variants differ: it has to do for all of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from kernelwright.backends import sources as library
from kernelwright.backends.plan import LoweredUnit
from kernelwright.backends.torch import parameters_of
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.signature import Argument
from support.launcher_build import plan, signature, tensor


def on_cuda(slug: str, rank: int, parameters: int, images: int) -> LoweredUnit:
    """A lowering with an output of that rank, a device function with so many parameters, and so many images."""
    device = {"name": "f", "params": ["handle"] * parameters, "launch": ["blockIdx.x"]}
    arguments = [tensor("y", "float32", [4] * rank, output=True)]
    data = signature("k", arguments, slug=slug, target="cuda", arch="sm_80", device_kernels=[device])
    return LoweredUnit.from_json(data, "host.c", {f"sm_{80 + number}": "image" for number in range(images)})


@pytest.mark.parametrize("first", [True, False])
def test_a_library_has_room_for_the_largest_of_its_variants(first: bool) -> None:
    small, large = on_cuda("small", 1, 2, 3), on_cuda("large", 4, 5, 6)
    units = [large, small] if first else [small, large]
    text = library.emit(plan("k", *units, outputs=["y"]))["wrapper.c"]
    assert "  .num_dims = 4,\n" in text
    libraries = re.findall(r"^static void \*kw_libraries_\d\[(\d)\];$", text, re.M)
    assert libraries == (["6", "3"] if first else ["3", "6"])


@pytest.mark.parametrize("first", [True, False])
def test_an_argument_that_one_variant_writes_is_written_by_the_operator_of_pytorch(first: bool) -> None:
    def argument(written: bool) -> list[Argument]:
        return [Argument("x", "tensor", "float32", False, written, (4,))]

    (parameter,) = parameters_of([argument(first), argument(not first)])
    assert parameter.written


@pytest.mark.parametrize(
    ("dtypes", "kind"),
    [
        (("int32", "float16"), "float"),
        (("bfloat16", "int64"), "float"),
        (("bool", "float32"), "float"),
        (("bool", "uint8"), "SymInt"),
        (("bool", "bool"), "bool"),
    ],
)
def test_the_operator_of_pytorch_takes_a_number_of_any_variant(dtypes: tuple[str, str], kind: str) -> None:
    (parameter,) = parameters_of([[Argument("k", "scalar", dtype, False, False)] for dtype in dtypes])
    assert parameter.kind == kind


@pytest.mark.parametrize(("size", "fits"), [(2**63 - 1, True), (2**63, False), (-1, False)])
def test_a_constant_size_fits_int64(size: int, fits: bool) -> None:
    data: dict[str, Any] = signature("k", [tensor("x", "int8", [size])])
    if fits:
        assert f"(const int64_t[]){{{size}}}" in library.emit(plan("k", LoweredUnit.from_json(data, "o")))["wrapper.c"]
        return
    with pytest.raises(KernelwrightError, match=r"shape\[0\] is .*expected a size from 0 or whole characters"):
        LoweredUnit.from_json(data, "o")


ROWS: dict[str, Any] = {
    **signature("k", [tensor("x", "float32", ["n", 4]) | {"strides": ["s", 1]}], symbols={"n": "int64"}),
    "stride_symbols": {"s": "int64"},
}


@pytest.mark.parametrize(
    "change",
    [
        {"symbols": {"n": "int32"}},
        {"stride_symbols": {"s": "int32"}},
        {"multiples": {"n": 16}},
        *({"arguments": [ROWS["arguments"][0] | more]} for more in ({"alignment": 64}, {"strides": ["s", 2]})),
    ],
    ids=str,
)
def test_variants_share_a_table_in_c_only_if_it_is_right_for_both(change: dict[str, Any]) -> None:
    """What a call is compared with is in the library whatever other variants there are."""

    def written(*units: dict[str, Any]) -> list[str]:
        lowered = [LoweredUnit.from_json(unit | {"entry": f"kw_{number}"}, "o") for number, unit in enumerate(units)]
        return library.emit(plan("k", *lowered))["wrapper.c"].splitlines()

    other = ROWS | change | {"slug": "other"}
    (own,) = (line for line in written(other) if line.startswith("static const kw_signature "))
    assert own.replace("_0", "_1") in written(ROWS, other)
