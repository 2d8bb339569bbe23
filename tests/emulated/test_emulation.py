"""What emulated hardware computes, and which mistakes it finds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulation import Emulation, EmulationError

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

KERNELS = {
    "indices": "y[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x * 1000 + threadIdx.x;",
    "backwards": "__shared__ float s[64]; s[t] = t; __syncthreads(); y[t] = s[63 - t];",
    "no_barrier": "__shared__ float s[64]; s[t] = t; y[t] = s[63 - t];",
    "reused": "__shared__ float s[2]; s[t / 32] = t; __syncthreads(); float sum = s[0] + s[1];\n"
    "sum += __shfl_sync(~0u, 0.0f, 0); s[t / 32] = -1; y[t] = sum;",
    "unwritten": "__shared__ float s[64]; y[t] = s[t];",
    "warp_sum": "float v = t; for (int i = 16; i; i /= 2) v += __shfl_xor_sync(~0u, v, i); y[t] = v;",
    "down": "y[t] = __shfl_down_sync(~0u, float(t), 3, 8);",
    "half_warp": "if (t % 32 < 16) y[t] = __shfl_sync(0xffffu, float(t), 5); else y[t] = -1;",
    "silent_lane": "y[t] = -1; if (t % 32 < 16) y[t] = __shfl_sync(0xffffu, float(t), 20);",
    "ballot": "y[t] = __popc(__ballot_sync(~0u, t % 3 == 0)) + 100 * __any_sync(~0u, t == 40);",
    "early_end": "if (t >= 32) return; __syncthreads(); y[t] = __reduce_add_sync(~0u, 1u);",
    "atomics": "__shared__ int n; if (t == 0) n = 0; __syncthreads(); atomicAdd(&n, 2); __syncthreads(); y[t] = n;",
    "dynamic": "extern __shared__ unsigned char buf_dyn_shmem[]; float *s = (float *)buf_dyn_shmem;\n"
    "s[t] = t; __syncthreads(); y[t] = s[t ^ 1];",
    "halves": "half2 h = make_half2(half(1.0f), half(1 / 3.0f)); y[t] = float(h.x + h.y) - 1.3330078125f;",
    "split": "if (t < 32) { __syncthreads(); }\nelse { __syncthreads(); } y[t] = 0;",
    "missed": "if (t % 32) __syncwarp(); else __syncthreads(); y[t] = 0;",
    "ptx": 'asm volatile("mma.sync %0;" : "=r"(rows));',
    "copied": 'COPY\nasm volatile("cp.async.wait_group 0;" :  :  : "memory");\n__syncthreads(); y[t] = s[63 - t];',
    "not_waited": 'COPY\nasm volatile("cp.async.wait_group 1;" :  :  : "memory");\n__syncthreads(); y[t] = s[63 - t];',
    "unaligned": "y[t] = ((float4 *)(y + 1))->x;",
    "beyond": "__shared__ float s[64]; s[t + 1] = 0; y[t] = 0;",
    "outside": "y[64 + t] = 0;",
    "workspace": "spare[t] = 3 * t; __syncthreads(); y[t] = spare[63 - t];",
    "bfloat": "y[t] = float(nv_bfloat16(1 + t / 256.0f)) + 0 * float((nv_bfloat16)(-1.0f));",
}

COPY = """
__shared__ __align__(16) float s[64]; spare[t] = t; __syncthreads();
unsigned to = __cvta_generic_to_shared(s + t / 4 * 4); const void *from = spare + t / 4 * 4;
asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :  : "r"(to), "l"(from) : "memory");
asm volatile("cp.async.commit_group;" :  : );
"""

SOURCE = '#include <cuda.h>\nextern "C" __global__ void __launch_bounds__(64) NAME'
PARAMETERS = "(float* __restrict__ y, float* __restrict__ spare, int rows) { int t = threadIdx.x;\n"


class Machine:
    """All of KERNELS, each a variant of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, backwards: bool = False) -> Any:
        """What a kernel writes in one block of 64 threads."""
        sizes: dict[str, Any] = {"block": [64, 1, 1], "grid": [1, 1, 1]}
        params = [{"tensor": "y"}, {"workspace": 0}, {"scalar": "rows", "dtype": "int32"}]
        launch = {"kernel": name, "params": params, "shared": 256, **sizes}
        tensor = {"name": "y", "kind": "tensor", "dtype": "float32", "shape": ["rows"], "output": True, "written": True}
        device = {"name": name, "params": ["handle", "handle", "int32"], "launch": []}
        signature = {"schema": 1, "kernel": name, "slug": "", "target": "cuda", "arch": "sm_80", "entry": name}
        signature |= {"arguments": [tensor], "symbols": {"rows": "int32"}, "device_kernels": [device]}
        signature |= {"launches": [launch], "workspaces": [{"bytes": "4 * rows"}], "host_checks": []}
        source = SOURCE.replace("NAME", name) + PARAMETERS + KERNELS[name].replace("COPY", COPY) + "\n}\n"
        place = self.folder / name
        emulation = Emulation(signature, source, place)
        return emulation({"y": np.zeros(64, np.float32)}, {"rows": 64}, backwards)["y"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("emulation"))


T = np.arange(64)

EXPECTED = {
    **{"indices": T, "backwards": 63 - T, "warp_sum": np.where(T < 32, 496, 1520)},
    **{"down": np.where(T % 8 < 5, T + 3, T), "half_warp": np.where(T % 32 < 16, T // 32 * 32 + 5, -1)},
    **{"ballot": np.where(T < 32, 11, 11 + 100), "early_end": np.where(T < 32, 32, 0), "atomics": np.full(64, 128)},
    **{"dynamic": T ^ 1, "halves": np.zeros(64), "workspace": 3 * (63 - T), "copied": 63 - T},
    "bfloat": np.round((1 + T / 256) * 128) / 128,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_it_computes_what_cuda_does(run: Machine, name: str) -> None:
    for backwards in (False, True):
        np.testing.assert_array_equal(run(name, backwards), EXPECTED[name].astype(np.float32))


def test_a_missing_barrier_is_seen_in_at_least_one_order(run: Machine) -> None:
    assert np.isnan(run("no_barrier")[0]) and np.isnan(run("no_barrier", True)[63])


def test_a_copy_that_nobody_waits_for_comes_at_once_in_one_order_and_never_in_the_other(run: Machine) -> None:
    assert (run("not_waited") == 63 - T).all() and np.isnan(run("not_waited", True)).all()


def test_a_warp_may_be_ahead_of_the_others_by_all_that_no_barrier_forbids(run: Machine) -> None:
    assert set(run("reused")[:32]) == {31 + 63} and set(run("reused")[32:]) == {63 - 1}
    assert set(run("reused", True)[:32]) == {0 - 1} and set(run("reused", True)[32:]) == {0 + 32}


def test_what_hardware_leaves_undefined_is_nan(run: Machine) -> None:
    assert np.isnan(run("unwritten")).all()
    assert np.isnan(run("silent_lane")[:16]).all()


MISTAKES = {
    "split": "wait at different barriers, in lines 3 and 4",
    "missed": "0 at the barrier in line 3; 1 in __syncwarp;",
    "ptx": 'instructions of PTX cannot be emulated: "mma.sync',
    "unaligned": "line 3: an access to memory that is not aligned to its size (block 0,0,0, thread 0,0,0)",
    "beyond": "line 3: index 64 is beyond the end of an array (block 0,0,0, thread 63,0,0)",
    "outside": "the kernel wrote behind y, at bytes [",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_it_finds_mistakes(run: Machine, name: str) -> None:
    with pytest.raises(EmulationError) as caught:
        run(name)
    assert MISTAKES[name] in str(caught.value)
