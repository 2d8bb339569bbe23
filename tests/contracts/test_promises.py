"""What every language promises, by the functions that plug-ins can run themselves (``kernelwright.testing``)."""

from __future__ import annotations

import inspect
import os
import subprocess
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from kernelwright import frontends
from kernelwright.commands.init import FRONT_END, make_project
from kernelwright.testing import PROMISES, Edit, Language
from kernelwright.testing.languages import (
    SCONSTRUCT,
    a_comment_changes_nothing,
    a_mistake_is_an_error_with_its_place,
    the_same_bytes_in_another_folder_and_order,
)
from kernelwright.testing.launches import DeviceArray, _ManagedTensor
from support import tool_memory
from support.environments import environment, site_of
from support.operators import raw, ready
from support.plugin import OF_EDITS, TWICE, Crashing, distribute, in_forks, with_plugin
from support.project import SITE_SCONS, Project
from support.standin_calls import driver_folder, launches

CPU = 'targets = ["llvm"]\narchs = ["x86-64-v3"]'
CUDA = 'targets = ["cuda"]\narchs = ["sm_80"]'
HERE = {"PYTHONPATH": str(SITE_SCONS)}

TIR = """\
from kernelwright import kernel
from numbers_of import FACTOR
from tvm import te

@kernel(outputs=["y"])
def scale():
    n = te.var("n")
    x = te.placeholder((n,), "float32", "x")
    y = te.compute((n,), lambda i: x[i] * FACTOR, "y")
    return te.create_prim_func([x, y])
"""

CUDA_CPP = """\
from kernelwright import kernel
from kernelwright.cuda import Source, Tensor
from numbers_of import FACTOR

@kernel(frontend="cuda", outputs=["y"], includes=["package:numpy/_core/include"])
def scale():
    row, defines = Tensor("float32", "n"), {"FACTOR": FACTOR}
    return Source("csrc/scale.cu", "scale", x=row, y=row, grid="n", block=1, defines=defines)
"""

CUDA_SOURCES = {
    "kernels/csrc/scale.cu": """\
#include "scaled.cuh"
#include <numpy/utils.h>
extern "C" __global__ void scale(const float *x, float *y) { y[blockIdx.x] = scaled(x[blockIdx.x]); }
""",
    "kernels/csrc/scaled.cuh": "__device__ float scaled(float x) { return float(FACTOR) * x; }\n",
}

CUTILE = """\
import cuda.tile as ct
from kernelwright import kernel
from kernelwright_cutile import Program, Tensor
from numbers_of import FACTOR

@ct.kernel
def scale_kernel(x, y, BLOCK: ct.Constant[int]):
    ct.store(y, index=(ct.bid(0),), tile=ct.load(x, index=(ct.bid(0),), shape=(BLOCK,)) * FACTOR)

@kernel(frontend="cutile", outputs=["y"])
def scale():
    row = Tensor("float32", "n")
    return Program(scale_kernel, x=row, y=row, BLOCK=64, grid="n")
"""

TRITON = """\
import triton
import triton.language as tl
from kernelwright import kernel
from kernelwright.triton import Program, Tensor
from numbers_of import FACTOR

@triton.jit
def scale_kernel(x, y, FACTOR: tl.constexpr):
    tl.store(y + tl.program_id(0), tl.load(x + tl.program_id(0)) * FACTOR)

@kernel(frontend="triton", outputs=["y"])
def scale():
    row = Tensor("float32", "n")
    return Program(scale_kernel, x=row, y=row, FACTOR=FACTOR, grid="n")
"""


CUTEDSL = """\
import cutlass
from cutlass import cute
from kernelwright import kernel
from kernelwright.cutedsl import Program, Tensor
from numbers_of import FACTOR

@cute.kernel
def device(x: cute.Tensor, y: cute.Tensor):
    block, _, _ = cute.arch.block_idx()
    y[block] = x[block] * cutlass.Float32(FACTOR)

@cute.jit
def host(x: cute.Tensor, y: cute.Tensor):
    device(x, y).launch(grid=[cute.size(x), 1, 1], block=[1, 1, 1])

@kernel(frontend="cutedsl", outputs=["y"])
def scale():
    row = Tensor("float32", "n")
    return Program(host, x=row, y=row)
"""

TILELANG = """\
from kernelwright import kernel
from kernelwright.tilelang import Program, Size
from numbers_of import FACTOR

@kernel(frontend="tilelang", outputs=["y"])
def scale():
    return Program("tile/scale.py", "scale", n=Size("n"), factor=FACTOR)
"""

TILELANG_SOURCE = """\
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[-1])
def scale(n, factor):
    @T.prim_func
    def main(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):
        with T.Kernel(n, threads=32) as block:
            y[block] = x[block] * factor
    return main
"""

TORCH = """\
from kernelwright import kernel
from kernelwright.cuda import Operators
from numbers_of import FACTOR

@kernel(frontend="torch", sources=["scale.cpp"], flags=[f"-DFACTOR={FACTOR}"])
def scale():
    return Operators("demo_ops::scale")
"""

TORCH_SOURCE = raw("demo_ops", "scale(float x) -> float", more="double scale(double x) { return x * FACTOR; }")


def language(text: str, settings: str, returned: str, *mistakes: tuple[str, str, str], **more: str) -> Language:
    """A kernel with a helper that has a number, and with more files."""
    file, helper = "kernels/scale.py", "numbers_of.py"
    return Language(
        {file: text, helper: "FACTOR = 2.0\n", **more},
        settings,
        file,
        returned,
        Edit(file, "from kernelwright import", "# a comment\nfrom kernelwright import"),
        Edit(helper, "2.0", "3.0"),
        [(Edit(file, old, new), said) for old, new, said in mistakes],
        variables=HERE,
    )


TILELANG_PYTHON = os.environ.get("KERNELWRIGHT_TILELANG_PYTHON", "")
TILEIRAS = os.environ.get("KERNELWRIGHT_TEST_CUTILE_PYTHON", "")
OUTPUT = ('outputs=["y"]', 'outputs=["z"]', "outputs names 'z'")
LANGUAGES = {
    "tir": language(TIR, CPU, "return te.", OUTPUT, ("x[i] * FACTOR", "x[i] * missing", "name 'missing'")),
    "cuda": language(CUDA_CPP, CUDA, "return Source(", OUTPUT, ("block=1", "block=0", "block"), **CUDA_SOURCES),
    "triton": language(TRITON, CUDA, "return Program(", OUTPUT, ("* FACTOR)", "* missing)", "missing")),
    "cutedsl": language(CUTEDSL, CUDA, "return Program(", OUTPUT, ("Float32(FACTOR)", "Float32(missing)", "missing")),
    "tilelang": language(
        TILELANG,
        f'{CUDA}\ntilelang_python = "{TILELANG_PYTHON}"',
        "return Program(",
        ('outputs=["y"]', 'outputs=["z"]', "the outputs of scale are y, those of the definition z"),
        ("factor=FACTOR", "factor=object()", "use numbers, texts"),
        **{"kernels/tile/scale.py": TILELANG_SOURCE},
    ),
    "torch": language(
        TORCH,
        CUDA,
        "return Operators(",
        ("demo_ops::scale", "demo_ops::missing", "demo_ops::missing"),
        **{"kernels/scale.cpp": TORCH_SOURCE},
    ),
    "cutile": language(
        CUTILE,
        f'{CUDA}\nplugin_pythons = ["cutile={TILEIRAS}"]',
        "return Program(",
        OUTPUT,
        ("* FACTOR)", "* missing)", "Undefined variable missing"),
        ("BLOCK=64", "BLOCK=None", "ahead of a launch"),
    ),
}


MISSING = {
    "triton": "" if find_spec("triton") else "Triton is not installed: pip install 'kernelwright[triton]'",
    "cutedsl": "" if find_spec("cutlass") else "CuTe DSL is not installed: pip install 'kernelwright[cutedsl]'",
    "torch": "" if find_spec("torch") else "PyTorch is not installed",
    "tilelang": "" if TILELANG_PYTHON else "KERNELWRIGHT_TILELANG_PYTHON names no environment with TileLang",
    "cutile": ""
    if TILEIRAS and find_spec("kernelwright_cutile")
    else "KERNELWRIGHT_TEST_CUTILE_PYTHON names no environment with tileiras, or plugins/cutile is not installed",
}
"""Language -> why it cannot be built here; empty: it can."""


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for a build cache of each language."""
    return tmp_path_factory.mktemp("caches")


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", LANGUAGES)
def test_a_language_keeps_what_all_promise(
    name: str, promise: Callable[..., None], caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if MISSING.get(name):
        pytest.skip(MISSING[name])
    if name == "torch":
        ready()
    with_remembering_compiler(monkeypatch)
    if promise in PROMISES[:2]:
        monkeypatch.setenv(tool_memory.FOLDER, "")  # all compilers run twice
    # In a fork, LLVM remembers what it has made: whether it makes the same again takes a real start.
    if name != "tir" or promise is not the_same_bytes_in_another_folder_and_order:
        in_forks(monkeypatch, caches / name if promise in OF_EDITS else None)
    promise(LANGUAGES[name] if name == "tir" else Crashing(**vars(LANGUAGES[name])), tmp_path)


def with_remembering_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have real starts find the C compiler of the tests, which hardly optimises the launcher."""
    monkeypatch.setenv("PATH", f"{Project.shared}/bin:{os.environ['PATH']}")


def test_every_language_of_ours_is_among_them() -> None:
    assert {*frontends.names()} <= {*LANGUAGES}


def test_a_plug_in_keeps_them_in_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its files in site-packages. The helper is one that the definition imports from the project."""
    with_remembering_compiler(monkeypatch)
    python, _ = with_plugin(tmp_path)
    text = TWICE.replace("from kernelwright import", "from texts import TEXT\nfrom kernelwright import")
    file = "kernels/twice.py"
    plugin = Crashing(
        {file: text.replace('"x * 2"', "TEXT"), "texts.py": 'TEXT = "x * 2"\n'},
        CPU,
        file,
        "return Expression(",
        Edit(file, "from texts", "# a comment\nfrom texts"),
        Edit("texts.py", "2", "3"),
        [(Edit("texts.py", "x * 2", "missing"), "missing")],
        python=str(python),
    )
    # Its mistake is in a text, which has no line. Comments are of the next test.
    for promise in PROMISES:
        if promise not in (a_mistake_is_an_error_with_its_place, a_comment_changes_nothing):
            promise(plugin, tmp_path / promise.__name__)
            in_forks(monkeypatch)  # the first one has real starts


ALONE = """
from __future__ import annotations
import ctypes, json, sys
import together, tvm_ffi
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

ARRAY

def arrays(device, *places):
    return [tvm_ffi.from_dlpack(DeviceArray((3,), device=device, data=place)) for place in places]

x, y = (ctypes.c_float * 3)(1, 2, 3), (ctypes.c_float * 3)()
together.tir_scale(*arrays((1, 0), ctypes.addressof(x), ctypes.addressof(y)))
print(*y)
manifest = json.loads(Path(together.__path__[0], "manifest.json").read_text())
for name in manifest["kernels"]:
    if "cuda" in getattr(together, name).devices:
        getattr(together, name)(*arrays((2, 0), 0x10000, 0x20000))
print(*manifest["kernels"])
print(*{"numpy", "torch", "tvm", "triton", "cutlass", "tilelang", "cuda", "kernelwright"} & {*sys.modules})
"""


def test_a_wheel_with_all_languages_loads_with_tvm_ffi_alone(tmp_path: Path) -> None:
    """All that can be built here, but for operators of PyTorch, which need that. The driver is a stand-in."""
    able = {name: one for name, one in LANGUAGES.items() if name != "torch" and not MISSING.get(name)}
    archs = ['targets = ["llvm", "cuda"]', 'archs = ["x86-64-v3", "sm_90a"]']
    more = [line for one in able.values() for line in one.settings.splitlines() if "_python" in line]
    lines = ["[project]", 'name = "together"', 'version = "1"', "[tool.kernelwright]", *archs, *more]
    project = Project.of(tmp_path / "project", "\n".join(lines))
    project.write("SConstruct", f'{SCONSTRUCT}env.KernelWheel("demo")'.replace("demo", "together"))
    for name, one in able.items():
        for file, text in one.files.items():
            new = file.replace("kernels/scale.py", f"kernels/{name}_scale.py")
            project.write(new, text.replace("def scale():", f"def {name}_scale():") if new != file else text)
    project.imported = ("support.torch_ready", *Project.imported)
    project.scons("-j2", "wheel")
    (wheel,) = (project.folder / "dist").glob("*.whl")
    home = environment(tmp_path / "env", wheel)
    assert not [*site_of(home).glob("numpy*")]
    array = "\n".join(inspect.getsource(one) for one in (DeviceArray, _ManagedTensor))
    variables = {
        "KERNELWRIGHT_CUDA_DRIVER": str(driver_folder() / "libcuda.so.1"),
        "STANDIN_LOG": str(tmp_path / "log"),
    }
    variables |= {"STANDIN_CAPABILITY": "90", "STANDIN_SHARED": "232448"}
    command = [home / "bin/python", "-c", ALONE.replace("ARRAY", array)]
    done = subprocess.run(command, env=variables, cwd=tmp_path, stdout=-1, stderr=subprocess.STDOUT, text=True)
    names = sorted(f"{name}_scale" for name in able)
    assert done.stdout.splitlines() == ["2.0 4.0 6.0", " ".join(names), ""], done.stdout
    assert len(launches((tmp_path / "log").read_text().splitlines())) == len(able)


def test_what_init_begins_passes_its_own_tests(tmp_path: Path) -> None:
    """One of them: the others are run for a plug-in above."""
    made = make_project(str(tmp_path / "acme-formulas"), FRONT_END)
    home = environment(tmp_path / "env")
    site = site_of(home)
    (site / "all.pth").write_text(f"{SITE_SCONS}\n{sysconfig.get_path('purelib')}\n{made}\n")
    entry_point = "acme_formulas = acme_formulas.front_end:FRONT_END"
    distribute(site, "acme_formulas", {}, f"[kernelwright.frontends]\n{entry_point}\n")
    command = [home / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "comment", "tests"]
    env = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=made, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


def test_a_promise_that_is_broken_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function fails for a language that does not keep it: here one whose code depends on when it is made."""
    in_forks(monkeypatch)
    file = "kernels/scale.py"
    random = TIR.replace("from tvm", "import time\nfrom tvm").replace("* FACTOR", "* (time.time_ns() % 997 + FACTOR)")
    broken = language(random, CPU, "return te.", OUTPUT)
    with pytest.raises(AssertionError):
        PROMISES[0](broken, tmp_path / "again")
    for promise, wrong in ((PROMISES[2], "comment"), (PROMISES[3], "helper")):
        edits = {"comment": Edit(file, "* FACTOR", "* 7"), "helper": Edit(file, "from tvm", "# nothing\nfrom tvm")}
        plain = language(TIR, CPU, "return te.", OUTPUT)
        with pytest.raises(AssertionError):
            promise(Language(**{**vars(plain), wrong: edits[wrong]}), tmp_path / wrong)
