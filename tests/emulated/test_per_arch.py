"""Kernels with a source for each CUDA arch: which of them runs on a device, in both ways to call them."""

from __future__ import annotations

import pytest
from conftest import SCONSTRUCT, Project
from standin_calls import call, make_standin

SETTINGS = """\
[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_80", "sm_90a", "compute_80"]
backends = ["tvm_ffi", "nvrtc"]
"""

ADD = """\
from kernelwright import kernel
from tvm.script import tirx as T
from tvm.tirx import Var


@kernel(outputs=["y"], per_arch=True)
def add(target):
    n, threads = Var("n", "int32"), 64 if target.attrs["arch"] == "sm_90a" else 32

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):
        for i in T.thread_binding((n + threads - 1) // threads, thread="blockIdx.x"):
            for j in T.thread_binding(threads, thread="threadIdx.x"):
                if i * threads + j < n:
                    y[i * threads + j] = x[i * threads + j] + T.float32(1)

    return main
"""

SCALE = '''\
from kernelwright import kernel
from kernelwright.cuda import Size, Source, Tensor, ceildiv

SOURCE = """
extern "C" __global__ void scale_THREADS(const float *x, float *y, int n) {
  int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
"""
DTYPE = {}


@kernel(frontend="cuda", outputs=["y"], per_arch=True)
def scale(target):
    threads = {"sm_80": 128, "sm_90a": 256}[target]
    return Source(
        SOURCE.replace("THREADS", str(threads)),
        f"scale_{threads}",
        x=Tensor("float32", "n", alignment={"sm_80": 4, "sm_90a": 16}[target]),
        y=Tensor(DTYPE.get(target, "float32"), "n"),
        n=Size("n"),
        grid=ceildiv("n", threads),
        block=threads,
    )
'''


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project, whose last arch was added after the first build."""
    project = Project(tmp_path_factory.mktemp("per_arch"))
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", SETTINGS.replace('"sm_90a", ', ""))
    project.write("kernels/add.py", ADD)
    project.write("kernels/scale.py", SCALE)
    assert project.scons("-j2").labels["LOWER"] == 2
    project.write("pyproject.toml", SETTINGS)
    added = project.scons("-j2")
    assert {stage for stage in added.stages if stage.split()[0] in ("LOWER", "PTX", "CUBIN")} == {
        *(f"LOWER {name}/default sm_90a" for name in ("add", "scale")),
        *(f"PTX {name}/default compute_90a" for name in ("add", "scale")),
        *(f"CUBIN {name}/default sm_90a" for name in ("add", "scale")),
    }
    make_standin(project)
    return project


RUNS = {  # capability of the device -> what is loaded there, and the threads of a block of both kernels
    80: ("cubin sm_80", 32, 128),
    86: ("cubin sm_80", 32, 128),
    90: ("cubin sm_90", 64, 256),
    100: ("ptx compute_80", 32, 128),
}


@pytest.mark.parametrize("capability", RUNS)
@pytest.mark.parametrize("kernel", ["add", "scale"])
def test_the_source_of_the_image_that_suits_the_device_best_is_launched(built, capability, kernel):
    image, *threads = RUNS[capability]
    threads = threads[kernel == "scale"]
    name = f"scale_{threads}" if kernel == "scale" else "add_kernel"
    code = f"[demo.{kernel}(on_cuda(1000, data=0x100), on_cuda(1000, data=0x200)) for _ in range(2)]"
    _, log = call(built, code, parameters="ppi", capability=capability)
    assert [line[: len(image) + 5] for line in log if line.startswith("load ")] == [f"load {image}"]
    of_library = [line for line in log if line.startswith("launch ")]
    assert len(of_library) == 2 and all(line.startswith(f"launch {name} {image} ") for line in of_library)
    assert f" grid {-(-1000 // threads)} 1 1 block {threads} 1 1 " in of_library[0]
    _, log = call(built, code, parameters="ppi", capability=capability, nvrtc=True)
    of_python = [line for line in log if line.startswith("launch ")]
    assert [line.partition(" stream ")[0] for line in of_python] == [
        line.partition(" stream ")[0] for line in of_library
    ]
