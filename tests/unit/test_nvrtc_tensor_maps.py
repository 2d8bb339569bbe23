"""Tensor maps in packages of the nvrtc backend: Python has the driver make the maps that libraries have it make."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright import backends
from kernelwright.core.errors import KernelwrightError
from kernelwright.define.cuda_source import DTYPES
from kernelwright.library import launcher
from kernelwright.runtime import cuda_core_tensor_maps
from launcher_build import tensor
from nvrtc_package import Process, make_driver, make_package, plan_of
from test_nvrtc_backend import cuda_signature, launch, number, pointers

MAP = {
    **{"tensor": "x", "dtype": "float16", "sizes": [64, "m"], "strides": [128], "box": [64, 8], "steps": [1, 1]},
    **{"interleave": 0, "swizzle": 3, "promotion": 2, "fill": 0},
}


def boxes(more: Mapping[str, Any] | None = None, **flags: Any) -> list[dict[str, Any]]:
    arguments = [tensor("x", "float16", ["m", 64]), tensor("y", "float32", ["m"], output=True)]
    params = [*pointers("y"), {"tensor_map": 0}, number("m", "int32"), number("m * 2", "int64")]
    launches = [launch("boxes_kernel", params, ["(m + 7) // 8", 1, 1], shared=65536, **flags)]
    data = cuda_signature("boxes", arguments, launches, symbols={"m": "int32"})
    return [{**data, "tensor_maps": [{**MAP, **(more or {})}]}]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvrtc_maps")
    make_package(folder, {"boxes": boxes()}, ["sm_90a"])
    return folder


@pytest.fixture
def process(folder: Path, driver: Path) -> Process:
    return Process(folder, driver)


CALL = """
kernel = made.kernel("boxes")
for m in {sizes}:
    kernel(on_cuda((m, 64), "float16", data=0x20000), on_cuda((m,), "float32"), stream=0x50)
"""

HERE = {"capability": 90, "parameters": "ptil"}


def test_the_driver_makes_a_map_for_each_call_and_launches_pass_it(process: Process) -> None:
    process.run(CALL.format(sizes=[20, 7]), **HERE)
    first, second = process.calls("encode")
    assert first == "map 1 of dtype 6 at 0x20000 sizes 64,20 strides 128 box 64,8 steps 1,1 modes 0 3 2 0"
    assert second.startswith("map 2 of dtype 6 at 0x20000 sizes 64,7 ")
    launches = [line.split(" parameters ") for line in process.calls("launch")]
    assert [head for head, _ in launches] == [
        f"boxes_kernel sm_90a grid {blocks} 1 1 block 128 1 1 shared 65536 stream 0x50 on cuda:0" for blocks in (3, 1)
    ]
    assert [re.sub("^0x[0-9a-f]+ ", "", parameters) for _, parameters in launches] == ["map 1 20 40", "map 2 7 14"]


def test_an_empty_array_has_no_map_and_no_launch(process: Process) -> None:
    process.run(CALL.format(sizes=[0]), **HERE)
    assert not process.calls("encode") and not process.calls("launch")


@pytest.mark.parametrize(
    ("function", "doing"),
    [
        ("cuTensorMapEncodeTiled", "making a tensor map of float16[20, 64] at 0x20000"),
        ("cuLaunchKernelEx", "launching device function boxes_kernel, grid (3, 1, 1)"),
    ],
)
def test_what_the_driver_refuses_is_an_error(process: Process, function: str, doing: str) -> None:
    refused = "try:\n    kernel(on_cuda((20, 64), 'float16', data=0x20000), on_cuda((20,), 'float32'))\n"
    code = 'kernel = made.kernel("boxes")\n' + refused + "except RuntimeError as error:\n    print(error)\n"
    said = process.run(code, fail=f"{function}=200", **HERE)
    assert said.startswith(f"kernel 'boxes': {doing}") and "failed with CUDA_ERROR_INVALID_IMAGE" in said


def test_tensors_of_every_dtype_have_maps_with_and_without_a_library() -> None:
    header = Path(*launcher.__path__, "tensormap.h").read_text()
    in_libraries = {name: int(number) for name, number in re.findall(r'\{"(\w+)", (\d+)\}', header)}
    assert in_libraries == cuda_core_tensor_maps.DTYPES
    assert set(DTYPES) == set(in_libraries)


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        (boxes({"dtype": "float4_e2m1fn"}), "there are no tensor maps of float4_e2m1fn"),
        (boxes(cooperative=True), "launched with tensor maps and with clusters or flags"),
    ],
)
def test_what_it_cannot_do_is_an_error_of_the_build(signature: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(KernelwrightError, match=message) as caught:
        backends.get("nvrtc").check(plan_of(signature))
    assert caught.value.remedy


@pytest.mark.parametrize(
    "change", [{"sizes": []}, {"strides": [128, 1]}, {"box": [64]}, {"box": [64, 2.5]}, {"swizzle": "3"}]
)
def test_a_map_of_another_form_is_a_damaged_signature(change: dict[str, Any]) -> None:
    with pytest.raises(KernelwrightError, match=r"signature\.json is damaged"):
        plan_of(boxes(change))


def test_a_size_that_is_only_in_a_map_is_known_in_the_module() -> None:
    (unit,) = plan_of(boxes()).units
    assert unit.host_plan is not None
    (step,) = unit.host_plan.launches
    few = replace(step, grid=(1, 1, 1), params=(("tensor_map", 0),))
    plan = replace(
        plan_of(boxes()).variants[0], units=(replace(unit, host_plan=replace(unit.host_plan, launches=(few,))),)
    )
    (module,) = backends.get("nvrtc").emit(replace(plan_of(boxes()), variants=(plan,))).values()
    assert "m = x.shape[0]" in module
