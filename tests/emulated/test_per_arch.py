"""Kernels with a source for each CUDA arch: which of them runs on a device, in both ways to call them."""

from __future__ import annotations

import json
import zipfile

import pytest
from kernelwright.define.tuning import Rule, TableDevice, TunedConfig
from kernelwright.package.verify import verify_together, verify_wheel
from support.project import SCONSTRUCT, Project
from support.standin_calls import call, make_standin
from support.tuned import table

SETTINGS = """\
[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_80", "sm_90a", "compute_80"]
backends = ["tvm_ffi", "cuda_core"]
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
    project = Project.of(tmp_path_factory.mktemp("per_arch"), SETTINGS.replace('"sm_90a", ', ""), add=ADD, scale=SCALE)
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
    90: ("cubin sm_90", 64, 256),
    100: ("ptx compute_80", 32, 128),
}

CALLS = """
for kernel in (demo.add, demo.scale):
    for _ in range(2):
        kernel(on_cuda(1000, data=0x100), on_cuda(1000, data=0x200))
"""


@pytest.mark.parametrize("cuda_core", [False, True])
@pytest.mark.parametrize("capability", RUNS)
def test_the_source_of_the_image_that_suits_the_device_best_is_launched(built, capability, cuda_core):
    image, *threads = RUNS[capability]
    _, log = call(built, CALLS, parameters="ppi", capability=capability, cuda_core=cuda_core)
    assert [line[: len(image) + 5] for line in log if line.startswith("load ")] == 2 * [f"load {image}"]
    launched = [line for line in log if line.startswith("launch ")]
    for line, of_block in zip(launched, [threads[0]] * 2 + [threads[1]] * 2, strict=True):
        assert line.startswith(f"launch {'add_kernel' if of_block < 100 else f'scale_{of_block}'} {image} ")
        assert f" grid {-(-1000 // of_block)} 1 1 block {of_block} 1 1 " in line


@pytest.mark.parametrize("cuda_core", [False, True])
def test_a_device_that_no_source_has_code_for_and_data_that_one_source_cannot_take_are_refused(built, cuda_core):
    code = """
print(message_of(demo.add, on_cuda(9)), demo.add.supported("cuda"))
print(message_of(demo.scale, on_cuda(9, data=0x104), on_cuda(9, data=0x200)))
"""
    printed, log = call(built, code, capability=75, cuda_core=cuda_core)
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
    wide = SCALE.replace('n=Size("n")', 'n=Size("n", "int64" if threads > 128 else "int32")')
    of_type = 'str(threads)).replace("int n", "long long n" if threads > 128 else "int n")'
    built.write("kernels/scale.py", wide.replace("str(threads))", of_type))
    run = built.scons("build/kernels/demo/scale/wrapper.c", ok=False)
    assert "n: int64; for sm_80, with x: float32[n], y: float32[n] (output)" in run.output
    assert "n: int64, n passed as int32" in run.output
    built.write("kernels/scale.py", SCALE.replace("SIZES = {}", 'SIZES = {"sm_90a": [1]}'))
    run = built.scons("build/kernels/demo/scale/wrapper.c", ok=False)
    built.write("kernels/scale.py", SCALE)
    told = "scale/default [wrap]: it returns for sm_90a a program that is called with x: float32[n], y: float32[n, 1] ("
    assert told in run.output
    assert "; for sm_80, with x: float32[n], y: float32[n] (output)" in run.output
    assert "remedy: return programs with equal arguments for all CUDA archs" in run.output


# ---- tables, and a wheel for each arch

TUNED = """\
from kernelwright import grid, kernel
from tvm.script import tirx as T
from tvm.tirx import Var


@kernel(outputs=["y"], per_arch=True, tune=grid(threads=[32, 64, 128]))
def add(target, threads):
    n, blocks = Var("n", "int32"), 2 if target.attrs["arch"] == "sm_90a" else 1

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")):
        for i in T.thread_binding((n + threads * blocks - 1) // (threads * blocks), thread="blockIdx.x"):
            for j in T.thread_binding(threads * blocks, thread="threadIdx.x"):
                if i * threads * blocks + j < n:
                    y[i * threads * blocks + j] = x[i * threads * blocks + j] + T.float32(1)

    return main
"""

WHEELS = """\
[project]
name = "demo-kernels"
version = "1.0"

[tool.kernelwright]
package = "demo"
split = "arch"
targets = ["cuda"]
archs = ["sm_80", "sm_90a", "compute_80"]
backends = ["tvm_ffi", "cuda_core"]
"""


def chosen(arch: str, name: str, *points: tuple[int | None, int]) -> str:
    """A table of a GPU: pairs of the end of a range and the threads there."""
    rules = tuple(Rule({"threads": threads}, upto) for upto, threads in points)
    return table(TunedConfig({}, ("n",), rules), device=TableDevice("cuda", arch, name, 100), kernel="add")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A package whose device code is in a wheel for each arch, and whose tables choose another point on each."""
    project = Project(tmp_path_factory.mktemp("tuned_per_arch"))
    project.write("SConstruct", SCONSTRUCT + 'env.KernelWheel("demo")\n')
    project.write("pyproject.toml", WHEELS)
    project.write("kernels/add.py", TUNED)
    project.write("tuning/add.sm_80.json", chosen("sm_80", "A100", (100, 32), (None, 64)))
    project.write("tuning/add.sm_90a.json", chosen("sm_90a", "H100", (None, 128)))
    project.scons("-j2", ".", "wheel")
    make_standin(project)
    return project


@pytest.mark.parametrize("cuda_core", [False, True])
@pytest.mark.parametrize(("capability", "name", "blocks"), [(80, "A100", [32, 64]), (90, "H100", [256, 256])])
def test_a_table_of_an_arch_chooses_among_the_points_of_its_source(tuned, capability, name, blocks, cuda_core):
    code = "for n in (100, 1000):\n    demo.add(on_cuda(n, data=0x100), on_cuda(n, data=0x200))"
    _, log = call(tuned, code, parameters="ppi", capability=capability, name=name, cuda_core=cuda_core)
    launched = [line for line in log if line.startswith("launch ")]
    for line, of_block, n in zip(launched, blocks, (100, 1000), strict=True):
        assert f" grid {-(-n // of_block)} 1 1 block {of_block} 1 1 " in line


def test_the_wheel_of_an_arch_has_what_its_table_chooses_and_is_used_alone(tuned, tmp_path):
    wheels = {path.name.split("-")[0].removeprefix("demo_kernels"): path for path in tuned.folder.glob("dist/*.whl")}
    found = {}
    for arch, path in wheels.items():
        assert verify_wheel(path) == []
        with zipfile.ZipFile(path) as wheel:
            found[arch] = sorted(name for name in wheel.namelist() if name.endswith((".cubin", ".ptx")))
            if arch in ("", "_sm_90a"):
                wheel.extractall(tmp_path / "build")
    assert verify_together(list(wheels.values())) == []
    assert found == {
        "": [],
        "_sm_80": [f"demo_sm_80/add/threads-{threads}/cuda/sm_80/sm_80.cubin" for threads in (32, 64)],
        "_sm_90a": [f"demo_sm_90a/add/threads-{threads}/cuda/sm_90a/sm_90a.cubin" for threads in (128, 32)],
        "_compute_80": ["demo_compute_80/add/threads-32/cuda/sm_80/compute_80.ptx"],
    }
    installed = Project(tmp_path)
    make_standin(installed)
    code = "print(message_of(demo.add, on_cuda(1000)) if lacks else demo.add(on_cuda(1000), on_cuda(1000)))"
    printed, log = call(installed, f"lacks = False\n{code}", capability=90, name="H100")
    assert printed == "None" and [line[:16] for line in log if line.startswith("load ")] == ["load cubin sm_90"]
    printed, _ = call(installed, f"lacks = True\n{code}", capability=80, name="A100")
    assert "pip install 'demo-kernels-sm-80==1.0'" in printed
