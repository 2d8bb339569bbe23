"""Days of somebody who builds a package: edits, mistakes, other archs and settings, kernels that come and go."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from support.moments import rewrite
from support.project import ADD, SCALE, SCONSTRUCT, Project

FILE = "kernels/scale.py"

EVERYTHING = {"CC": 2, "CUBIN": 3, "GLIBC": 1, "LAUNCHER": 1, "LINK": 2, "LOWER": 6, "PACKAGE": 1, "PTX": 3, "WRAP": 2}


def test_a_kernel_is_edited_and_back_and_gets_another_config(project: Project) -> None:
    first = project.scons("-j2")
    assert first.labels == EVERYTHING and first.counts == (21, 0, 0)
    assert project.value() == 2
    second = project.scons("-j2")
    assert second.stages == [] and second.counts == (0, 19, 0)

    project.replace(FILE, "    return main", "    # a comment\n    return main")
    assert project.scons("-j2").stages == [
        "LOWER scale/dtype-float16 cuda",
        "LOWER scale/dtype-float16 x86-64-v3",
        "LOWER scale/dtype-float32 cuda",
        "LOWER scale/dtype-float32 x86-64-v3",
    ]
    project.replace(FILE, "T.cast(2.0", "T.cast(3.0")
    run = project.scons("-j2", "--why")
    assert run.labels == {"CUBIN": 2, "LINK": 1, "LOWER": 4, "PACKAGE": 1, "PTX": 2}
    assert "LOWER scale/dtype-float32 x86-64-v3 runs: kernels/scale.py changed\n" in run.output
    assert not [stage for stage in run.stages if "add_one" in stage]
    assert project.value() == 3

    project.write(FILE, SCALE)
    assert project.scons("-j2").labels == {"CACHED": 9, "PACKAGE": 1}
    assert project.value() == 2

    project.replace(FILE, '"float16"]', '"float16", "float64"]')
    run = project.scons("-j2")
    assert [stage for stage in run.stages if not stage.startswith("LOWER")] == [
        *("CC scale", "CUBIN scale/dtype-float64 sm_80", "LINK scale", "PACKAGE demo"),
        *("PTX scale/dtype-float64 compute_80", "WRAP scale"),
    ]
    project.replace(FILE, '"float32", "float16", "float64"', '"float64"')
    project.scons("-j2")
    assert project.python("import demo; print(demo.scale.variants)") == "({'dtype': 'float64'},)\n"
    left = [path.name for path in (project.folder / "build/kernels/demo/scale").iterdir() if path.is_dir()]
    assert left == ["dtype-float64"]


def test_archs_flags_and_limits_of_the_command_line(project: Project) -> None:
    project.built("-j2")
    run = project.scons("-j2", "ARCHS=sm_80,sm_90a")
    assert run.labels == {"CC": 2, "CUBIN": 3, "LINK": 2, "PACKAGE": 1, "PTX": 3, "WRAP": 2}
    assert all("_90a" in stage for stage in run.stages if stage.startswith(("CUBIN", "PTX")))
    # The PTX that a cubin is made from serves as an image of the package.
    assert project.scons("-j2", "ARCHS=sm_80,compute_80").labels == {"CC": 2, "LINK": 2, "PACKAGE": 1, "WRAP": 2}
    assert project.scons("-j2", "ARCHS=compute_80").labels == {"CC": 2, "LINK": 2, "PACKAGE": 1, "WRAP": 2}
    # Line information changes every cubin; fast math would not change those of kernels as simple as these.
    run = project.scons("-j2", "NVCC_FLAGS=-lineinfo")
    assert run.labels == {"CACHED": 4, "CUBIN": 3, "LINK": 2, "PACKAGE": 1, "PTX": 3}
    run = project.scons("-j2", "-k", "MAX_REGISTERS=1", ok=False)
    assert run.status == 2 and "registers for sm_80, max_registers is 1" in run.output
    assert not (project.folder / "build/kernels/demo/scale/scale.so").exists()
    run = project.scons("-j2", "MAX_REGISTERS=100")
    assert run.labels["LINK"] == 2 and not {"CUBIN", "PTX", "LOWER"} & set(run.labels)
    assert project.scons("-j2", "TARGETS=llvm").labels["PACKAGE"] == 1
    assert project.python("import demo; print(demo.scale.devices)") == "frozenset({'cpu'})\n"


MANY_FILES = """
import os, sys
from pathlib import Path

from kernelwright import kernel
from tvm import te

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "common"))
from lib.deep import HELPER
from of_all import COMMON


@kernel(outputs=["y"])
def scale():
    from inside import INSIDE

    try:
        from later import LATER
    except ImportError:
        LATER = 1
    value = HELPER * COMMON * INSIDE * LATER * int((HERE / "table.txt").read_text()) * len(os.listdir(HERE / "listed"))
    n = te.var("n")
    x = te.placeholder((n,), "float32", name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] * te.const(value, "float32"), name="y")])


@scale.reference
def _(x):
    return x * int((HERE / "reference.txt").read_text())
"""

BESIDE = {
    "../common/of_all.py": "COMMON = 1\n",
    "kernels/lib/__init__.py": "",
    "kernels/lib/deep/__init__.py": "from .constants import HELPER\n",
    "kernels/lib/deep/constants.py": "HELPER = 1\n",
    "inside.py": "INSIDE = 1\n",
    "kernels/table.txt": "1",
    "kernels/listed/first": "",
    "kernels/reference.txt": "1",
}

OLD = 978307200
"""A time long ago; SCons does not read a file again that has it, and had it before."""


def test_what_a_definition_uses_beside_itself_counts_whatever_the_times_say(tmp_path: Path) -> None:
    """A monorepo: a package beside the project, helpers, data, a folder that is listed, and what is not there yet."""
    (tmp_path / "repository/.git").mkdir(parents=True)
    project = Project(tmp_path / "repository/project")
    project.write("SConstruct", SCONSTRUCT.replace('env.Glob("kernels/*.py")', f'["{FILE}", "kernels/add_one.py"]'))
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    files = {**BESIDE, FILE: MANY_FILES, "kernels/add_one.py": ADD}
    for name, text in files.items():
        os.utime(project.write(name, text), (OLD, OLD))
    project.scons("-j2")
    assert project.value() == 1
    for name, text, value in (
        (FILE, MANY_FILES.replace("te.const(value", "te.const(2 * value"), 2),
        ("kernels/lib/deep/constants.py", "HELPER = 3\n", 6),
        ("../common/of_all.py", "COMMON = 5\n", 30),
        ("inside.py", "INSIDE = 7\n", 210),
        ("kernels/table.txt", "2", 420),
        ("kernels/listed/second", "", 840),
        ("later.py", "LATER = 2\n", 1680),
        ("kernels/inside.py", "INSIDE = 1\n", 240),  # is found before the other one
        ("inside.py", "INSIDE = 9\n", 240),
    ):
        if name in files and len(text) == len(files[name]):
            rewrite(project.folder / name, text.encode(), (OLD * 10**9, OLD * 10**9))
        else:
            project.write(name, text)
        run = project.scons("-j2")
        assert project.value() == value, name
        assert not [stage for stage in run.stages if "add_one" in stage], name
        assert project.scons("-j2").stages == [], name
    run = project.scons("check", ok=False)
    assert "scale/default" in run.output and "differs from the reference" in run.output
    project.write("kernels/reference.txt", "240")
    assert project.scons("check").labels == {"CHECK": 2}, "that of add_one had no turn"
    assert project.scons("check").labels == {}


SOURCE = """\
#include "factor.h"
extern "C" __global__ void times(float *x, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) x[i] *= FACTOR;
}
"""

OF_CUDA = """\
from kernelwright import kernel
from kernelwright.cuda import Size, Source, Tensor, ceildiv


@kernel(frontend="cuda")
def times():
    x = Tensor("float32", "n", written=True)
    return Source("times.cu", "times", x=x, n=Size("n"), grid=ceildiv("n", 64), block=64)
"""


def test_a_header_of_cuda_is_edited_and_found_elsewhere(project: Project) -> None:
    shutil.rmtree(project.folder / "kernels")
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80"]\n')
    project.write("kernels/times.py", OF_CUDA)
    project.write("kernels/times.cu", SOURCE)
    header = project.write("kernels/factor.h", "#define FACTOR 2\n")
    project.scons("-j2")
    before = project.files("build/demo")
    header.write_text("#define FACTOR 3\n")
    assert project.scons("-j2").labels == {"CUBIN": 1, "LINK": 1, "PACKAGE": 1, "PTX": 1, "WRAP": 1}
    assert project.files("build/demo") != before
    header.write_text("#define FACTOR 2\n// a comment\n")
    project.scons("-j2")
    assert project.files("build/demo") == before
    header.write_text("#define FACTOR nothing\n")
    run = project.scons("-j2", ok=False)
    assert run.status == 2 and "nothing" in run.output and "kernels/times.cu" in run.output
    header.write_text("#define FACTOR 2\n")
    project.scons("-j2")
    assert project.files("build/demo") == before


def test_a_mistake_is_told_the_rest_is_built_and_mended_it_is_as_before(cpu_project: Project) -> None:
    cpu_project.built("-j2")
    whole = cpu_project.files("build/demo", "build/kernels")
    cpu_project.write(FILE, SCALE.replace("return main", "return mian"))
    cpu_project.replace("kernels/add_one.py", "1.0", "1.5")
    run = cpu_project.scons("-j2", ok=False)
    line = 1 + SCALE.splitlines().index("    return main")
    assert f"kernels/scale.py:{line} scale/dtype-float" in run.output and "NameError" in run.output
    assert run.status == 2 and "Traceback" not in run.output
    run = cpu_project.scons("-j2", "-k", ok=False)
    assert run.counts[2] == 2 and "PACKAGE" not in run.labels, "one for each variant"
    assert (cpu_project.folder / "build/kernels/demo/add_one/add_one.so").exists()
    run = cpu_project.scons("-j2", "--partial", ok=False)
    assert run.status == 2 and cpu_project.value("add_one", (1, 4)) == 2.5
    said = cpu_project.python("import demo\ntry: demo.scale\nexcept AttributeError as error: print(error)")
    assert "package 'demo' has no kernel 'scale'; it has add_one\n" in said
    failed = "[lower]: the definition of scale raised NameError: name 'mian' is not defined\n"
    assert said.endswith("".join(f"    scale/dtype-{dtype} for x86-64-v3 {failed}" for dtype in ("float32", "float16")))
    cpu_project.write(FILE, "def f(:\n")
    run = cpu_project.scons("-j2", "-k", ok=False)
    assert "kernels/scale.py:1 [discover]: SyntaxError" in run.output and run.counts[2] == 1
    cpu_project.write(FILE, SCALE)
    cpu_project.write("kernels/add_one.py", ADD)
    assert set(cpu_project.scons("-j2").labels) == {"CACHED", "PACKAGE"}
    assert cpu_project.files("build/demo", "build/kernels") == whole


def test_a_kernel_is_renamed_and_removed_and_all_is_cleaned(cpu_project: Project) -> None:
    cpu_project.built("-j2", "check")
    (cpu_project.folder / FILE).rename(cpu_project.folder / "kernels/times.py")
    cpu_project.write("kernels/times.py", SCALE.replace("scale", "times"))
    run = cpu_project.scons("-j2")
    assert run.labels == {"CC": 1, "LINK": 1, "LOWER": 2, "PACKAGE": 1, "WRAP": 1} and cpu_project.value("times") == 2
    assert not (cpu_project.folder / "build/kernels/demo/scale").exists()
    assert "scale" not in (cpu_project.folder / "build/demo/__init__.py").read_text()
    (cpu_project.folder / "kernels/add_one.py").unlink()
    assert cpu_project.scons("-j2").stages == ["PACKAGE demo"]
    assert not [name for name in cpu_project.files("build/demo", "build/kernels") if "add_one" in name]
    assert list(cpu_project.manifest["kernels"]) == ["times"]
    cpu_project.write("kernels/add_one.py", ADD)
    cpu_project.scons("-j2")
    cpu_project.scons("-c", "add_one")
    assert [path.name for path in (cpu_project.folder / "build/kernels/demo").iterdir() if path.name[0] != "_"] == [
        "glibc-2.28",
        "times",
    ]
    cpu_project.scons("-c")
    assert cpu_project.files("build") == {}


WHEEL = """\
[project]
name = "demo"
version = "1"

[tool.kernelwright]
package = "demo"
targets = ["llvm"]
"""


def test_a_wheel_is_built_installed_elsewhere_and_compared_with_the_next(cpu_project, tmp_path_factory):
    cpu_project.write("pyproject.toml", WHEEL)
    cpu_project.write("SConstruct", SCONSTRUCT + 'env.KernelWheel("demo")\n')
    cpu_project.scons("-j2", "wheel")
    (wheel,) = (cpu_project.folder / "dist").iterdir()
    assert cpu_project.scons("wheel").stages == []
    assert f"{wheel.name}: " in cpu_project.kernelwright("verify", wheel)
    elsewhere = Project(tmp_path_factory.mktemp("elsewhere"))
    shutil.unpack_archive(wheel, elsewhere.folder / "build", "zip")
    called = """
        import sys
        for name in ("tvm", "kernelwright", "SCons"):
            sys.modules[name] = None
        import demo, numpy as np
        print(np.from_dlpack(demo.scale(np.ones(2, "float16"))), np.from_dlpack(demo.add_one(np.ones((1, 4), "f4"))))
    """
    assert elsewhere.python(called) == "[2. 2.] [[2. 2. 2. 2.]]\n"
    old = shutil.copy(wheel, cpu_project.folder / "old.whl")
    cpu_project.replace(FILE, "T.cast(2.0", "T.cast(3.0")
    made = cpu_project.scons("-j2", "--replace", "wheel").labels
    assert made == {"LINK": 1, "LOWER": 2, "PACKAGE": 1, "WHEEL": 1}
    said = cpu_project.kernelwright("diff", old, wheel)
    assert "kernels: 0 added, 0 removed, 1 changed, 1 as before" in said
