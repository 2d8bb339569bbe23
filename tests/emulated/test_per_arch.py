"""Kernels with a source for each CUDA arch: which of them runs on a device, in both ways to call them."""

from __future__ import annotations

import json

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
SIZES = {}


@kernel(frontend="cuda", outputs=["y"], per_arch=True)
def scale(target):
    threads = {"sm_80": 128, "sm_90a": 256}[target]
    return Source(
        SOURCE.replace("THREADS", str(threads)),
        f"scale_{threads}",
        x=Tensor("float32", "n", alignment={"sm_80": 4, "sm_90a": 16}[target]),
        y=Tensor("float32", "n", *SIZES.get(target, [])),
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

CALLS = """
for kernel in (demo.add, demo.scale):
    for _ in range(2):
        kernel(on_cuda(1000, data=0x100), on_cuda(1000, data=0x200))
"""


@pytest.mark.parametrize("nvrtc", [False, True])
@pytest.mark.parametrize("capability", RUNS)
def test_the_source_of_the_image_that_suits_the_device_best_is_launched(built, capability, nvrtc):
    image, *threads = RUNS[capability]
    _, log = call(built, CALLS, parameters="ppi", capability=capability, nvrtc=nvrtc)
    assert [line[: len(image) + 5] for line in log if line.startswith("load ")] == 2 * [f"load {image}"]
    launched = [line for line in log if line.startswith("launch ")]
    for line, of_block in zip(launched, [threads[0]] * 2 + [threads[1]] * 2, strict=True):
        assert line.startswith(f"launch {'add_kernel' if of_block < 100 else f'scale_{of_block}'} {image} ")
        assert f" grid {-(-1000 // of_block)} 1 1 block {of_block} 1 1 " in line


@pytest.mark.parametrize("nvrtc", [False, True])
def test_a_device_that_no_source_has_code_for_and_data_that_one_source_cannot_take_are_refused(built, nvrtc):
    code = """
print(message_of(demo.add, on_cuda(9)), demo.add.supported("cuda"))
print(message_of(demo.scale, on_cuda(9, data=0x104), on_cuda(9, data=0x200)))
"""
    printed, log = call(built, code, capability=75, nvrtc=nvrtc)
    assert "cuda:0 is an sm_75, and variant default was built for sm_80, compute_80, sm_90a" in printed
    assert "False" in printed and not [line for line in log if line.startswith("l")]
    # The strictest of the alignments counts for all sources: which of them runs is known only later.
    assert "argument 'x' has data that is not aligned to 16 bytes" in printed


def test_the_manifest_has_a_unit_for_each_source(built):
    manifest = json.loads((built.folder / "build/demo/manifest.json").read_text())
    (variant,) = manifest["kernels"]["scale"]["variants"]
    units = [(unit["source_arch"], unit["archs"], list(unit["images"])) for unit in variant["units"]]
    assert units == [("sm_80", *2 * [["sm_80", "compute_80"]]), ("sm_90a", *2 * [["sm_90a"]])]
    assert units[0] != units[1] and variant["archs"] == ["sm_80", "compute_80", "sm_90a"]


def test_sources_with_other_arguments_are_refused(built):
    built.write("kernels/scale.py", SCALE.replace("SIZES = {}", 'SIZES = {"sm_90a": [1]}'))
    run = built.scons("build/kernels/demo/scale/wrapper.c", ok=False)
    built.write("kernels/scale.py", SCALE)
    told = "scale/default [wrap]: it returns for sm_90a a program that is called with x: float32[n], y: float32[n, 1] ("
    assert told in run.output
    assert "; for sm_80, with x: float32[n], y: float32[n] (output)" in run.output
    assert "remedy: return programs with equal arguments for all CUDA archs" in run.output
