"""Definitions in cuTile: real builds without a GPU, and launches beside cuTile's own launcher."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.project import ROOT, SITE_SCONS, Project
from support.standin_calls import driver_folder

PYTHON = os.environ.get("KERNELWRIGHT_TEST_CUTILE_PYTHON", "")
"""The interpreter of an environment with tileiras."""

try:
    version("kernelwright-cutile")
except PackageNotFoundError:
    pytest.skip("kernelwright-cutile is not installed: pip install plugins/cutile", allow_module_level=True)
if not PYTHON:
    pytest.skip(
        "KERNELWRIGHT_TEST_CUTILE_PYTHON names no environment with cuda-tile[tileiras]==1.7.*", allow_module_level=True
    )

KERNELS = ROOT / "examples/cutile/kernels"
SETTINGS = f"""\
[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_80", "sm_90a"]
plugin_pythons = ["cutile={PYTHON}"]
"""

ADD = """\
import cuda.tile as ct
from helpers import scaled
from kernelwright import kernel
from kernelwright_cutile import Program, Scalar, Tensor

@ct.kernel
def add_kernel(x, y, z, factor, BLOCK: ct.Constant[int]):
    place = ct.bid(0)
    left = ct.load(x, index=(place,), shape=(BLOCK,))
    ct.store(z, index=(place,), tile=left + scaled(ct.load(y, index=(place,), shape=(BLOCK,)), factor))

@kernel(frontend="cutile", outputs=["z"])
def add():
    row = Tensor("float32", "n")
    return Program(add_kernel, x=row, y=row, z=row, factor=Scalar("float32"), BLOCK=64, grid="n")
"""

SPILLING = """\
import cuda.tile as ct
from kernelwright import kernel
from kernelwright_cutile import Program, Scalar, Tensor

@ct.kernel
def spilling_kernel(x, y, times, COLUMNS: ct.Constant[int]):
    factor = ct.load(x, index=(0, 0), shape=(64, COLUMNS))
    total = ct.load(x, index=(1, 0), shape=(64, COLUMNS))
    for step in range(times):
        total = total * factor + factor
    ct.store(y, index=(0, 0), tile=total)

@kernel(frontend="cutile", outputs=["y"])
def spilling():
    rows = Tensor("float32", "m", "n", alignment=16, multiples={"n": 16})
    return Program(spilling_kernel, x=rows, y=rows, times=Scalar("int32"), COLUMNS=512, grid=1)
"""

HELPERS = """\
OFFSET = 1.0

def scaled(tile, factor):
    return tile * factor + OFFSET
"""

BESIDE = """
import ctypes, os, re, sys, warnings
sys.path[:0] = ["kernels"]
import cuda.tile as ct, demo, tvm_ffi
from support.launcher_build import FakeTensor
import attention, layer_norm, matmul, softmax

KINDS = {"<f4": (2, 32), "<f2": (2, 16)}

warnings.simplefilter("ignore")  # cuTile says that it takes tileiras from PATH
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)

class Array:
    '''An array at a made-up place on a GPU.'''
    def __init__(self, place, kind, *shape, strides=None):
        self.place, self.kind, self.shape = place, kind, shape
        self.strides = strides or tuple(__import__("math").prod(shape[axis + 1:]) for axis in range(len(shape)))
    @property
    def __cuda_array_interface__(self):
        strides = tuple(step * KINDS[self.kind][1] // 8 for step in self.strides)
        return dict(shape=self.shape, typestr=self.kind, data=(self.place, False), version=3, strides=strides)
    @property
    def ours(self):
        tensor = FakeTensor(self.shape, (*KINDS[self.kind], 1), device=(2, 0), strides=self.strides, data=self.place)
        return tvm_ffi.from_dlpack(tensor)
    def folded(self, *shape):
        return Array(self.place, self.kind, *shape)

def launched():
    lines = open(os.environ["STANDIN_LOG"]).read().splitlines()
    os.truncate(os.environ["STANDIN_LOG"], 0)
    (line,) = [line for line in lines if line.startswith("launch ")]
    return re.sub(r"^launch (\\S+) cubin sm_90 \\d+ \\d+", "", line)

def compare(name, kernel, theirs, grid, ours):
    ct.launch(0x510, grid, kernel, theirs)
    expected = launched()
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 0x510):
        getattr(demo, name)(*ours)
    found = launched()
    assert found == expected and " bytes " in found, f"{name}\\n{expected}\\n{found}"
    print(name)

x, y = Array(1 << 20, "<f4", 5, 300, strides=(320, 1)), Array(2 << 20, "<f4", 5, 300)
compare("softmax", softmax.softmax_kernel, (x, y, 1024), (5,), (x.ours, y.ours))
x, y, w, b = (Array(n << 20, "<f2", *shape) for n, shape in enumerate([(2, 3, 160), (2, 3, 160), (160,), (160,)], 1))
rows = x.folded(6, 160), w, b, y.folded(6, 160), 1e-5, 160, 1024
compare("layer_norm", layer_norm.layer_norm_kernel, rows, (6,), (x.ours, w.ours, b.ours, y.ours, 1e-5))
a, b, c = (Array(n << 20, "<f2", *shape) for n, shape in enumerate([(100, 72), (72, 200), (100, 200)], 1))
compare("matmul", matmul.matmul_kernel, (a, b, c, 128, 128, 64), (1, 2), (a.ours, b.ours, c.ours))
q, k, v, out = (Array(n << 20, "<f2", 3, length, 64) for n, length in enumerate([70, 130, 130, 70], 1))
bias = Array(5 << 20, "<f4", 3, 130)
compare("attention", attention.attention_kernel, (q, k, v, out, 0.5, 130, bias, True, 64, 64), (2, 3),
        (q.ours, k.ours, v.ours, out.ours, 0.5, bias.ours))
"""


@pytest.fixture(scope="module", autouse=True)
def _with_torch() -> Iterator[None]:
    """Workers have PyTorch, which cuTile imports where it is installed."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("torch"):
            patch.setattr(Project, "imported", ("support.torch_ready", *Project.imported))
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project with one kernel, which tests do not change."""
    project = Project.of(tmp_path_factory.mktemp("cutile"), SETTINGS, add=ADD)
    project.write("helpers.py", HELPERS)
    assert project.scons().labels["LOWER"] == 1
    return project


def test_a_package_launches_what_cutile_launches(tmp_path: Path) -> None:
    """Four kernels with other strides, folded dimensions, sizes, numbers and an array that may be left out."""
    texts = {file.stem: file.read_text() for file in KERNELS.glob("*.py")}
    project = Project.of(tmp_path, SETTINGS, **texts)
    project.replace(
        "kernels/softmax.py", 'dtype=["float32", "float16"], BLOCK=[1024, 4096]', 'dtype=["float32"], BLOCK=[1024]'
    )
    project.replace("kernels/matmul.py", 'dtype=["float16", "bfloat16"]', 'dtype=["float16"]')
    project.replace("kernels/attention.py", "has_bias=[False, True]", "has_bias=[True]")
    project.replace("kernels/layer_norm.py", 'dtype=["float32", "float16"]', 'dtype=["float16"]')
    project.scons("ARCHS=sm_90a")
    driver, tools = (
        driver_folder(),
        next(Path(PYTHON).parent.parent.glob("lib/python3.*/site-packages/nvidia/cu13/bin")),
    )
    env = {
        "PYTHONPATH": os.pathsep.join(["build", str(ROOT / "tests"), str(SITE_SCONS)]),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CUDA_TILE_CACHE_DIR": "",
        "LD_LIBRARY_PATH": str(driver),
        "KERNELWRIGHT_CUDA_DRIVER": str(driver / "libcuda.so.1"),
        "STANDIN_LOG": str(project.folder / "log"),
        "STANDIN_BYTES": "1",
        "STANDIN_CAPABILITY": "90",
        "STANDIN_SHARED": "232448",
    }
    assert project.python(BESIDE, env=env).split() == ["softmax", "layer_norm", "matmul", "attention"]


def test_the_manifest_names_the_tools_and_what_the_code_uses(small: Project) -> None:
    manifest = json.loads((small.folder / "build/demo/manifest.json").read_text())
    (unit,) = manifest["kernels"]["add"]["variants"][0]["units"]
    assert unit["archs"] == ["sm_80", "sm_90a"] and unit["tools"]["cutile"]["version"].startswith("13.4.")
    assert all(unit["resources"][arch]["add_kernel"]["registers"] > 7 for arch in unit["archs"])


def test_an_edit_of_a_function_that_the_kernel_calls_compiles_it_again(small: Project, tmp_path: Path) -> None:
    """What else is built again is in tests/contracts/test_promises.py."""
    project = small.copied(tmp_path / "copy")
    project.replace("helpers.py", "* factor", "/ factor")
    run = project.scons()
    assert run.labels == {"LINK": 1, "LOWER": 1, "PACKAGE": 1} and "starts a process" not in run.output
    assert project.scons().stages == []


MISTAKES = (
    ("tile=left + ", "tile=missing + ", ["Undefined variable missing used"]),
    ("shape=(BLOCK,))\n", "shape=(1, BLOCK))\n", ["cuTile cannot compile it for sm_80"]),
    ("BLOCK=64", "SIZE=64", ["it has no parameter 'SIZE'", "in the same order"]),
    ("BLOCK=64", "BLOCK=None", ["'BLOCK' is None", "given=False"]),
    ("BLOCK=64", "BLOCK=[row]", ["which cuTile compiles no code for ahead of a launch", "a parameter of its own"]),
    ("Program(add_kernel", "Program(print", ["builtin_function_or_method", "@ct.kernel"]),
    ('"float32", "n")', '"float32", "n", strides=(-1,))', ["a stride of argument 'x' is -1"]),
    ('Tensor("float32", "n")', "None", ["outputs names 'z', which is no tensor argument"]),
    (
        '"cutile", outputs',
        '"cutile", archs=["sm_80", "compute_80"], outputs',
        ["cuTile makes no code for compute_80"],
    ),
    ('"cutile", outputs', '"cutile", archs=["sm_90"], outputs', ["cuTile makes no code for sm_90", "sm_90a"]),
)


def test_a_mistake_is_an_error_with_its_place(tmp_path: Path) -> None:
    head, body = ADD.split("\n\n", 1)
    bodies = []
    for number, (old, new, _) in enumerate(MISTAKES):
        assert old in body
        bodies.append(
            body.replace(old, new).replace("add_kernel", f"add{number}_kernel").replace("add()", f"add{number}()")
        )
    text = "\n\n".join([head, *bodies])
    project = Project.of(tmp_path, SETTINGS, add=text)
    project.write("helpers.py", HELPERS)
    errors = project.scons("-k", "ARCHS=sm_80,sm_90,compute_80", ok=False).errors
    for number, (*_, texts) in enumerate(MISTAKES):
        said = errors[f"add{number}"]
        assert said.startswith("kernels/add.py:") and all(each in said for each in texts), said
    for number in (0, 1):
        line = text.partition(MISTAKES[number][1])[0].count("\n") + 1
        assert errors[f"add{number}"].startswith(f"kernels/add.py:{line} add{number}/default [lower]: "), errors


def test_classes_of_sizes_are_told_to_cutile(small: Project, tmp_path: Path) -> None:
    project = small.copied(tmp_path / "copy")
    project.replace("kernels/add.py", '"cutile", outputs', '"cutile", divisible={"n": [16, 1]}, outputs')
    project.scons("ARCHS=sm_80")
    texts = {path.parts[-3]: path.read_text() for path in (project.folder / "build/kernels").rglob("module.tileir")}
    assert "div_by<16>" in texts["n_multiple_of-16"] and "div_by<16>" not in texts["default"]


def test_spills_are_what_ptxas_tells_and_can_be_limited(small: Project, tmp_path: Path) -> None:
    """Two tiles of 256 numbers for each thread live in a loop, and a thread has 255 registers."""
    project = small.copied(tmp_path / "copy")
    project.write("kernels/spilling.py", SPILLING)
    output = project.scons("ARCHS=sm_80", "MAX_SPILLS=0", ok=False).output
    assert "spilling_kernel" in output and "spill" in output and "remedy" in output, output
    project.scons("ARCHS=sm_80")
    (used,) = json.loads((project.folder / "build/demo/manifest.json").read_text())["kernels"]["spilling"]["variants"]
    used = used["units"][0]["resources"]["sm_80"]["spilling_kernel"]
    assert used["spill_store_bytes"] > 500 and used["spill_load_bytes"] > 500 and used["registers"] == 255, used


def test_without_tileiras_of_the_right_release_it_says_how_to_get_it(small: Project, tmp_path: Path) -> None:
    project = small.copied(tmp_path / "copy")
    output = project.scons(f"PLUGIN_PYTHONS=cutile={shutil.which('python3')}", "ARCHS=sm_89", ok=False).output
    assert "tileiras" in output and "cutile/bin/pip install" in output and "add/default" in output, output
