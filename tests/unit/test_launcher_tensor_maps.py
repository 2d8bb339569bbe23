"""Tensor maps of kernel libraries: what the driver is asked to make, and what launches pass.

The kernels go the way of a build, from TIR to C; the driver is the stand-in.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernelwright.define.unit import Unit
from kernelwright.library.plan import KernelPlan, LoweredUnit, TensorMap
from kernelwright.lower.tir import Tir
from launcher_build import OPTIMISED, build, plan
from test_launcher_cuda import Machine, folder, machine, on_cuda  # noqa: F401 (two of these are fixtures)


def doubled(dtype: str = "float16", stores: bool = False) -> Any:
    """Copies boxes of x and has threads write y; with ``stores``, boxes are written back to x, too."""
    from tvm.script import tirx as T
    from tvm.tirx import Var

    m = Var("m", "int32")
    load = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    store = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"

    @T.prim_func
    def main(
        x: T.Buffer((m, 64), dtype, align=16), w: T.Buffer((3, 5, 64), "float32"), y: T.Buffer((m,), "float32", align=4)
    ):
        map_x: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        map_w: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.tensormap_encode_tiled(map_x, x.data, 64, m, 128, 64, 8, 1, 1, descriptor_dtype=dtype, rank=2, swizzle=3)
        T.tensormap_encode_tiled(
            *(map_w, w.data, 64, 5, 3, 256, 1280, 32, 5, 1, 1, 1, 2),
            descriptor_dtype="float32",
            rank=3,
            l2_promotion=2,
            oob_fill=1,
        )
        T.device_entry()
        bx = T.launch_thread("blockIdx.x", T.ceildiv(m, 8))
        tx = T.launch_thread("threadIdx.x", 32)
        tile = T.alloc_buffer((8 * 64,), dtype, scope="shared.dyn", align=1024)
        bar = T.alloc_buffer((1,), "uint64", scope="shared")
        T.ptx[load](tile.ptr_to([0]), T.address_of(map_x), 0, bx * 8, bar.ptr_to([0]))
        if stores:
            T.ptx[store](T.address_of(map_x), 0, bx * 8, tile.ptr_to([0]))
        y[bx * 8 + tx % 8] = T.cast(tile[tx % 8 * 64], "float32")

    return main


def lowered(dtype: str = "float16", stores: bool = False) -> dict[str, bytes]:
    unit = Unit("boxes", "v", "kw_boxes__v__cuda", {}, ("y",), "cuda", "sm_90a", "boxes.py:1")
    return dict(Tir().lower(doubled(dtype, stores), unit, lambda doing: None).files)


def plan_in(place: Path, files: dict[str, bytes]) -> KernelPlan:
    host, image = Path("boxes", "host.c"), Path("boxes", "sm_90a.cubin")
    (place / "boxes").mkdir(parents=True, exist_ok=True)
    (place / host).write_bytes(files["host.c"])
    (place / image).write_text("sm_90a")
    data = json.loads(files["signature.json"])
    return plan("boxes", LoweredUnit.from_json(data, str(host), {"sm_90a": str(image)}), outputs=["y"])


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:  # noqa: F811
    return build(folder, plan_in(folder, lowered()), extra=OPTIMISED)


@pytest.fixture
def call(machine: Machine, library: Path) -> Any:  # noqa: F811
    machine.set(capability=90, parameters="pti")
    function = machine.load(library)["boxes"]

    def run(m: int, on: int = 0) -> Any:
        x, w, y = ((m, 64), (2, 16, 1)), ((3, 5, 64), (2, 32, 1)), ((m,), (2, 32, 1))
        return function(*(on_cuda(shape, dtype, on) for shape, dtype in (x, w, y)))

    return run


def test_what_a_tensor_map_says_is_data() -> None:
    unit = LoweredUnit.from_json(json.loads(lowered()["signature.json"]), "host.c")
    assert unit.host_plan is not None
    assert unit.host_plan.tensor_maps == (
        TensorMap("x", "float16", (64, "m"), (128,), (64, 8), (1, 1), 0, 3, 0, 0),
        TensorMap("w", "float32", (64, 5, 3), (256, 1280), (32, 5, 1), (1, 1, 2), 0, 0, 2, 1),
    )
    assert ("tensor_map", 0) in unit.host_plan.launches[0].params
    assert unit.device_kernels[0].params.count("tensor_map") == 1, "the other one is not used"


def test_the_driver_makes_a_map_for_each_call_in_the_device_s_context(machine: Machine, call: Any) -> None:  # noqa: F811
    call(20)
    call(7)
    first, second, third, _ = machine.calls("encode")
    assert first == ("map 1 of dtype 6 at 0x10000 sizes 64,20 strides 128 box 64,8 steps 1,1 modes 0 3 0 0")
    assert second == ("map 2 of dtype 7 at 0x10000 sizes 64,5,3 strides 256,1280 box 32,5,1 steps 1,1,2 modes 0 0 2 1")
    assert " of dtype 6 at 0x10000 sizes 64,7 " in third
    assert len(machine.calls("push")) == len(machine.calls("pop")) == 7, "maps, launches and a load"
    call(7, on=1)
    assert machine.calls("push")[7:] == ["cuda:1"] * 4


def test_a_launch_passes_the_map_itself(machine: Machine, call: Any) -> None:  # noqa: F811
    call(20)
    call(7)
    (unit,) = [json.loads(lowered()["signature.json"])]
    letters = {"handle": "p", "tensor_map": "t", "int32": "i"}
    machine.set(parameters="".join(letters[dtype] for dtype in unit["device_kernels"][0]["params"]))
    call(9)
    made = [line.split(" of ")[0] for line in machine.calls("encode") if "dtype 6" in line]
    *_, last = machine.calls("launch")
    assert f" {made[-1]} " in last.partition(" parameters")[2] + " "


def test_an_empty_array_has_no_map_and_no_launch(machine: Machine, call: Any) -> None:  # noqa: F811
    call(0)
    assert [line.split()[4] for line in machine.calls("encode")] == ["7"], "that of w"
    assert not machine.calls("launch")


def test_what_the_driver_refuses_is_an_error_with_the_array_s_sizes(machine: Machine, call: Any) -> None:  # noqa: F811
    machine.set(fail="cuTensorMapEncodeTiled=200")
    message = (
        r"kernel 'boxes': making a tensor map of float16\[20, 64\] at 0x10000 failed with CUDA_ERROR_INVALID_IMAGE"
    )
    with pytest.raises(RuntimeError, match=message):
        call(20)
    assert len(machine.calls("push")) == len(machine.calls("pop")), "no context is left behind"


def test_an_array_is_written_only_if_boxes_are_stored() -> None:
    for stores in (False, True):
        arguments = json.loads(lowered(stores=stores)["signature.json"])["arguments"]
        assert {a["name"]: a["written"] for a in arguments} == {"x": stores, "w": stores, "y": True}
