"""``kernelwright tune`` for a GPU that is not there: a driver stands in, which computes nothing and makes times up.

So these tests show that the tuner asks a driver the right things, and what it makes of the answers, and nothing about
any GPU. The kernel has no reference, because its results would be wrong.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from support.demand import Demand
from support.project import ROOT, Project

FILE = '''
from kernelwright import grid, kernel
from tvm.script import tirx as T


@kernel(tune=grid(threads=[64, 256]), outputs=["y"])
def double(threads: int):
    """y[i] = 2 x[i]"""

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float32")
        y = T.match_buffer(y_handle, (n,), "float32")
        for b in T.thread_binding((n + threads - 1) // threads, thread="blockIdx.x"):
            for t in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("y"):
                    j = T.axis.spatial(n, b * threads + t)
                    T.where(b * threads + t < n)
                    y[j] = x[j] * T.float32(2)

    return main


@double.sizes
def _():
    return {"n": [64, 65536, 1048576]}
'''

COMMAND = "import sys; from kernelwright.cli import main; sys.exit(main({arguments!r}))"


class Gpu:
    """A project on a machine with the stand-in driver."""

    def __init__(self, project: Project) -> None:
        project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80"]\n')
        project.write("kernels/double.py", FILE)
        self.folder = project.folder
        self.driver = project.folder / "libstandin.so"
        source = ROOT / "tests" / "standin" / "cuda.c"
        subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(self.driver)], check=True)
        self.demand = Demand(project)

    def tune(self, *arguments: str, ok: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        policy = {"rounds": 3, "batches": 2, "batch_us": 100}
        given = {"KERNELWRIGHT_CUDA_DRIVER": str(self.driver), "KERNELWRIGHT_TEST_TUNE": json.dumps(policy)}
        code = COMMAND.format(arguments=["tune", "double", *arguments])
        return self.demand.run(code, env=given | variables, ok=ok)

    def table(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "tuning/double.sm_80-100.json").read_text())
        return found


@pytest.fixture
def gpu(project: Project) -> Gpu:
    return Gpu(project)


def made_up_us(n: int, threads: int) -> float:
    """What the stand-in makes of a launch; see ``tests/standin/cuda.c``."""
    return 5 + 0.01 * -(-n // threads) + 0.02 * threads


def test_a_table_for_a_gpu_says_which_and_what_was_measured(gpu: Gpu) -> None:
    gpu.tune()
    table = gpu.table()
    assert table["device"] == {"target": "cuda", "arch": "sm_80", "name": "stand-in 0", "count": 100}
    assert table["measured"]["compiler"].startswith("nvcc 13.") and table["measured"]["driver"].endswith("CUDA 13.0")
    assert "L2 flushed at each call" in table["measured"]["policy"]
    (config,) = table["configs"]
    assert config["rules"] == [{"upto": 2048, "tune": {"threads": 64}}, {"tune": {"threads": 256}}]
    for row in config["evidence"]:
        n = row["sizes"]["n"]
        assert row["us"] == pytest.approx(made_up_us(n, row["tune"]["threads"]), rel=1e-3)
        assert row["default_us"] == pytest.approx(made_up_us(n, 64), rel=1e-3)
    (path,) = (gpu.folder / "build/tune/double/sm_80-100").glob("result.json")
    (found,) = json.loads(path.read_text())["configs"]
    chosen = next(one for one in found["sizes"][2]["candidates"] if one["number"] == 1)
    assert chosen["warm_us"] == pytest.approx(made_up_us(1048576, 256), rel=1e-3) and chosen["clock_mhz"] == []


def test_two_gpus_that_differ_in_their_names_only_have_a_table_each(gpu: Gpu) -> None:
    gpu.tune("--sizes", "n=64", "--device", "cuda:0", "--device", "cuda:1")
    names = sorted(path.name for path in (gpu.folder / "tuning").glob("*"))
    assert names == ["double.sm_80-100-stand-in-1.json", "double.sm_80-100.json"]
    assert "stand-in 1: 1 configs" in gpu.tune("--list").stdout


def test_a_driver_that_does_not_answer_is_an_error(gpu: Gpu) -> None:
    said = gpu.tune("--device", "cuda:0", ok=False, KERNELWRIGHT_CUDA_DRIVER="libm.so.6")
    assert "this machine has no device cuda:0, or its driver does not answer" in said.stderr
    assert not (gpu.folder / "tuning").exists()


SOURCED = """
from kernelwright import grid, kernel
from kernelwright.cuda import Source, Tensor

@kernel(frontend="cuda", tune=grid(threads=[64, 256]), outputs=["y"])
def double(threads: int):
    x, y = Tensor("float32", "n"), Tensor("float32", "n")
    return Source("double.cu", f"twice<{threads}>", x=x, y=y, grid=f"(n + {threads - 1}) // {threads}", block=threads)

@double.sizes
def _():
    return {"n": [64]}
"""


def test_what_a_source_includes_is_a_part_of_what_was_measured(gpu: Gpu) -> None:
    (gpu.folder / "kernels/double.py").write_text(SOURCED)
    (gpu.folder / "kernels/double.cu").write_text(
        '#include "factor.cuh"\ntemplate <int> __global__ void twice(const float *x, float *y) { *y = FACTOR * *x; }\n'
    )
    header = gpu.folder / "kernels/factor.cuh"
    header.write_text("#define FACTOR 2\n")
    gpu.tune()
    before = gpu.table()["configs"][0]["sources"]
    assert "stale" not in gpu.tune("--list").stdout
    header.write_text("#define FACTOR 3\n")
    assert "stale" in gpu.tune("--list").stdout
    gpu.tune()
    after = gpu.table()["configs"][0]["sources"]
    assert after and all(new["digest"] != old["digest"] for new, old in zip(after, before, strict=True))
