"""Tensor maps of TIR: what signature.json says of them. What launchers make of that is in tests/contracts."""

from __future__ import annotations

import json
from typing import Any

from kernelwright.backends.plan import LoweredUnit
from kernelwright.core.signature import TensorMap
from kernelwright.define.unit import Unit
from kernelwright.frontends.tir.front_end import Tir


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


def test_what_a_tensor_map_says_is_data_and_an_array_is_written_only_if_boxes_are_stored() -> None:
    unit = LoweredUnit.from_json(json.loads(lowered()["signature.json"]), "host.c")
    assert unit.launches is not None
    assert unit.tensor_maps == (
        TensorMap("x", "float16", (64, "m"), (128,), (64, 8), (1, 1), 0, 3, 0, 0),
        TensorMap("w", "float32", (64, 5, 3), (256, 1280), (32, 5, 1), (1, 1, 2), 0, 0, 2, 1),
    )
    assert ("tensor_map", 0) in unit.launches[0].passed
    assert unit.device_kernels[0].params.count("tensor_map") == 1, "the other one is not used"
    for stores in (False, True):
        arguments = json.loads(lowered(stores=stores)["signature.json"])["arguments"]
        assert {a["name"]: a["written"] for a in arguments} == {"x": stores, "w": stores, "y": True}
