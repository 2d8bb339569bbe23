"""``scons --partial``: packages of what is well, which say what they lack, and are never taken for complete."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from kernelwright.cli import main
from support.project import ADD, CUBE, SCALE, SCONSTRUCT, Project

BAD_SCALE = SCALE.replace(
    "    @T.prim_func", '    if dtype == "float16":\n        raise RuntimeError("on purpose")\n    @T.prim_func'
)
GONE = ADD.replace("add_one", "gone").replace("n = te.var", 'raise ValueError("never")\n    n = te.var')

ONE_ARCH = """\
from kernelwright import grid, kernel
from tvm.script import tirx as T


@kernel(
    configs=grid(factor=[2, 3]),
    outputs=["y"],
    targets=["cuda"],
    flags=["-Dpicky(x)=(x+0*sizeof(char[__CUDA_ARCH__<900?1:-1]))"],
)
def picky(factor: int):
    name = "picky" if factor == 3 else "fabsf"

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
        for i in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("a"):
                j = T.axis.spatial(32, i)
                y[j] = T.call_extern("float32", name, x[j])

    return main
"""


def logs_of(project: Project) -> list[str]:
    return sorted(path.name for path in project.folder.glob("build/kernels/demo/*/failed/*.txt"))


def break_it(project: Project) -> None:
    """One bad config of two, a kernel of which nothing is well, and a file that cannot be executed."""
    project.write("kernels/scale.py", BAD_SCALE)
    project.write("kernels/gone.py", GONE)
    (project.folder / "kernels/syntax.py").write_text("def f(:\n")


def mend_it(project: Project) -> None:
    project.write("kernels/scale.py", SCALE)
    project.write("kernels/gone.py", ADD.replace("add_one", "gone"))
    (project.folder / "kernels/syntax.py").unlink()


def test_what_is_well_becomes_a_package_that_says_what_it_lacks(cpu_project):
    break_it(cpu_project)
    run = cpu_project.built("-j2", "--partial", ok=False)
    assert run.status == 2 and run.counts[2] == 3
    assert "kernelwright: demo is built partially; manifest.json lists what it lacks" in run.output
    manifest = cpu_project.manifest
    assert sorted(manifest["kernels"]) == ["add_one", "scale"]
    assert [variant["slug"] for variant in manifest["kernels"]["scale"]["variants"]] == ["dtype-float32"]
    assert manifest["missing"] == [
        {
            **{"kernel": "gone", "variant": "default", "archs": ["x86-64-v3"], "stage": "lower"},
            **{"location": "kernels/gone.py:8", "error": "the definition of gone raised ValueError: never"},
        },
        {
            **{"kernel": "scale", "variant": "dtype-float16", "archs": ["x86-64-v3"], "stage": "lower"},
            **{"location": "kernels/scale.py:10", "error": "the definition of scale raised RuntimeError: on purpose"},
        },
        {"stage": "discover", "location": "kernels/syntax.py:1", "error": "SyntaxError: invalid syntax"},
    ]
    assert logs_of(cpu_project) == [
        "discover-kernels-syntax.py-1.txt",
        "lower-gone-default-x86-64-v3.txt",
        "lower-scale-dtype-float16-x86-64-v3.txt",
    ]
    log = cpu_project.folder / "build/kernels/demo/scale/failed/lower-scale-dtype-float16-x86-64-v3.txt"
    assert "RuntimeError: on purpose" in log.read_text()


def test_calls_of_what_is_missing_say_why(cpu_project):
    break_it(cpu_project)
    cpu_project.replace("kernels/add_one.py", "@kernel(", '@kernel(backends=["tvm_ffi"], ')
    cpu_project.scons("-j2", "--partial", "BACKENDS=tvm_ffi,cython", ok=False)
    cpu_project.python("""
        import numpy as np, pytest, demo
        x = np.arange(4, dtype="float32")
        assert np.from_dlpack(demo.scale(x)).tolist() == [0, 2, 4, 6]
        lacks = "this package was built partially (scons --partial), without what failed:"
        scale = "scale/dtype-float16 for x86-64-v3 [lower]: the definition of scale raised RuntimeError: on purpose"
        half = x.astype("float16")

        def message(error, function):
            with pytest.raises(error) as caught:
                function()
            return str(caught.value)

        for kernel in (demo.scale, demo.backends.cython.scale):
            text = message((TypeError, ValueError), lambda: kernel(half))
            assert lacks in text and scale in text, text
            text = message((TypeError, ValueError), lambda: kernel(half, half))
            assert lacks in text and scale in text, text
            text = message(KeyError, lambda: kernel.variant(dtype="float16"))
            assert lacks in text and scale in text, text
        for module in (demo, demo.backends.cython):
            text = message(AttributeError, lambda: module.gone)
            assert lacks in text and "gone/default for x86-64-v3 [lower]: the definition of gone raised" in text, text
            assert "kernels/syntax.py:1 [discover]: SyntaxError" in text, text
        assert lacks not in message(TypeError, lambda: demo.add_one(half))
        """)


def test_a_kernel_without_its_backward_kernel_is_called_without_gradients(cpu_project):
    pytest.importorskip("torch")
    lines = CUBE.replace('"""The gradients of x and w."""', 'raise RuntimeError("no gradients")')
    cpu_project.write("kernels/cube.py", lines)
    run = cpu_project.scons("-j2", "--partial", "BACKENDS=tvm_ffi,torch", ok=False)
    assert run.status == 2 and sorted(cpu_project.manifest["kernels"]) == ["add_one", "cube", "scale"]
    cpu_project.python("""
        import pytest, torch
        from demo.backends.torch import cube
        x, w = torch.arange(8.0).reshape(2, 4), torch.ones(4)
        assert torch.equal(cube(x, w, 2.0), 2 * x**3)
        with pytest.raises(RuntimeError) as caught:
            cube(x.requires_grad_(), w, 2.0).sum().backward()
        text = str(caught.value)
        assert "no backward kernel" in text, text
        assert "cube_backward/dtype-float32 for x86-64-v3 [lower]: the definition of cube_backward" in text, text
        """)


def test_mended_it_is_the_package_that_a_first_build_makes(cpu_project, tmp_path_factory):
    complete = Project(tmp_path_factory.mktemp("complete"))
    for name in ("SConstruct", "pyproject.toml"):
        complete.write(name, (cpu_project.folder / name).read_text())
    for project in (complete, cpu_project):
        project.write("kernels/add_one.py", ADD)
        break_it(project)
    mend_it(complete)
    complete.built("-j2")
    # Built partially from nothing, and over a complete package. A mended build with the flag is a complete one as well.
    for start, flags in ((cpu_project.built, ()), (cpu_project.scons, ("--partial",))):
        start("-j2", "--partial", ok=False)
        mend_it(cpu_project)
        cpu_project.scons("-j2", *flags)
        assert cpu_project.files("build/demo", "build/kernels") == complete.files("build/demo", "build/kernels")
        cpu_project.python("import numpy as np, demo; assert demo.gone and len(demo.scale.variants) == 2")
        assert logs_of(cpu_project) == []
        assert cpu_project.scons("-j2").labels == {}
        break_it(cpu_project)


def test_the_same_failure_gives_the_same_package_and_is_tried_again(cpu_project):
    break_it(cpu_project)
    cpu_project.built("-j2", "--partial", ok=False)
    first = cpu_project.files("build/demo", "build/kernels")
    run = cpu_project.scons("-j2", "--partial", ok=False)
    assert run.status == 2 and set(run.labels) == {"DISCOVER", "LOWER"} and run.counts[2] == 3
    assert cpu_project.files("build/demo", "build/kernels") == first
    cpu_project.replace("kernels/scale.py", "on purpose", "by mistake")
    assert cpu_project.scons("-j2", "--partial", ok=False).labels["LINK"] == 1
    assert b"by mistake" in (cpu_project.folder / "build/demo/_lib/scale.so").read_bytes()


def test_without_the_flag_nothing_partial_is_made_nor_taken_for_complete(cpu_project):
    break_it(cpu_project)
    run = cpu_project.scons("-j2", "-k", ok=False)
    assert "kernelwright: scons --partial makes a package of what can be built" in run.output
    assert not (cpu_project.folder / "build/demo/manifest.json").exists()
    cpu_project.scons("-j2", "--partial", ok=False)
    before = cpu_project.manifest
    run = cpu_project.scons("-j2", "-k", ok=False)
    assert run.status == 2 and "PACKAGE" not in run.labels and "LINK" not in run.labels
    assert cpu_project.manifest == before and before["missing"]
    assert cpu_project.scons("-j2", "add_one", ok=False).status == 2
    assert cpu_project.manifest == before
    # The cache has no part of it either: a fresh folder of outputs is complete.
    mend_it(cpu_project)
    for path in ("build/demo", "build/kernels"):
        subprocess.run(["rm", "-r", cpu_project.folder / path], check=True)
    cpu_project.scons("-j2")
    assert "missing" not in cpu_project.manifest
    cpu_project.python("import demo; assert len(demo.scale.variants) == 2 and demo.gone")


def test_a_kernel_by_its_name_and_checks_go_on_with_what_is_well(cpu_project):
    cpu_project.write("kernels/scale.py", BAD_SCALE)
    run = cpu_project.scons("-j2", "--partial", "scale", ok=False)
    assert run.status == 2 and run.labels["LINK"] == 1
    # Its first variant is missing, so the second has the number 0 in the library.
    cpu_project.replace("kernels/scale.py", '["float32", "float16"]', '["float16", "float32"]')
    run = cpu_project.scons("-j2", "--partial", "check", ok=False)
    assert run.status == 2 and run.counts[2] == 1
    assert "CHECK scale/dtype-float32 cpu" in run.stages and "CHECK scale/dtype-float16 cpu" not in run.stages
    assert list(cpu_project.folder.glob("build/check/demo/scale/*")) == [
        cpu_project.folder / "build/check/demo/scale/dtype-float32.cpu.json"
    ]


def test_one_bad_arch_costs_that_arch_of_that_variant(project):
    project.write("pyproject.toml", '[tool.kernelwright]\narchs = ["x86-64-v3", "sm_80", "sm_90a"]\n')
    project.write("kernels/picky.py", ONE_ARCH)
    for name in ("scale", "add_one"):
        (project.folder / f"kernels/{name}.py").unlink()
    run = project.scons("-j2", "--partial", ok=False)
    assert run.status == 2 and run.counts[2] == 1
    manifest = project.manifest
    (gap,) = manifest["missing"]
    assert {key: gap[key] for key in ("kernel", "variant", "archs", "stage")} == {
        **{"kernel": "picky", "variant": "factor-3", "archs": ["sm_90a"], "stage": "nvcc"},
    }
    assert str(project.folder) not in json.dumps(manifest["missing"])
    archs = {variant["slug"]: variant["archs"] for variant in manifest["kernels"]["picky"]["variants"]}
    assert archs == {"factor-2": ["sm_80", "sm_90a"], "factor-3": ["sm_80"]}
    assert b"picky/factor-3 for sm_90a [nvcc]" in (project.folder / "build/demo/_lib/picky.so").read_bytes()
    # All archs of a variant: then it is the variant that is missing.
    run = project.scons("-j2", "--partial", "ARCHS=sm_90a", ok=False)
    assert [variant["slug"] for variant in project.manifest["kernels"]["picky"]["variants"]] == ["factor-2"]


def test_a_kernel_that_is_over_a_limit_is_left_out_as_a_whole(project):
    run = project.scons("-j2", "--partial", "MAX_REGISTERS=1", ok=False)
    assert run.status == 2 and "no kernel is well, so there is no package" in run.output
    assert not (project.folder / "build/demo/manifest.json").exists()
    project.replace("kernels/add_one.py", "@kernel(", '@kernel(targets=["llvm"], ')
    run = project.scons("-j2", "--partial", "MAX_REGISTERS=1", ok=False)
    assert list(project.manifest["kernels"]) == ["add_one"]
    assert [(gap["kernel"], gap["stage"]) for gap in project.manifest["missing"]] == [("scale", "nvcc")]


WHEEL = """\
[project]
name = "demo"
version = "1"

[tool.kernelwright]
package = "demo"
targets = ["llvm"]
"""


@pytest.fixture
def wheel_project(cpu_project):
    cpu_project.write("pyproject.toml", WHEEL)
    cpu_project.write("SConstruct", SCONSTRUCT + 'env.KernelWheel("demo")\n')
    return cpu_project


def wheels_of(project: Project) -> list[Path]:
    return sorted(project.folder.glob("dist/*.whl"))


def test_a_wheel_of_a_partial_package_is_made_only_if_it_was_asked_for(wheel_project, capsys):
    break_it(wheel_project)
    (wheel_project.folder / "kernels/syntax.py").rename(wheel_project.folder / "kernels/_syntax.py")
    wheel_project.scons("-j2", "--partial", ok=False)
    # SCons's -i takes what failed for done.
    for option, status in (("-k", 2), ("-i", 0)):
        run = wheel_project.scons(option, "wheel", ok=status == 0)
        assert run.status == status
        assert "kernelwright: scons --partial wheel makes a wheel of what can be built" in run.output
        assert wheels_of(wheel_project) == []
    (wheel_project.folder / "kernels/_syntax.py").rename(wheel_project.folder / "kernels/syntax.py")
    run = wheel_project.scons("-j2", "--partial", "wheel", ok=False)
    assert run.status == 2
    (wheel,) = wheels_of(wheel_project)
    assert wheel.name.startswith("demo-1+partial-py3-none-manylinux")
    with zipfile.ZipFile(wheel) as archive:
        manifest = json.loads(archive.read("demo/manifest.json"))
    assert [gap.get("kernel") for gap in manifest["missing"]] == ["gone", "scale", None]
    assert [main(["verify", *options, str(wheel)]) for options in ([], ["--partial"])] == [1, 0]
    said = capsys.readouterr().out
    assert f"{wheel.name}: built partially" in said
    assert "scale/dtype-float16 for x86-64-v3 [lower]: the definition of scale raised RuntimeError" in said
    mend_it(wheel_project)
    # With the flag, too: nothing is missing.
    wheel_project.scons("-j2", "--partial", "wheel")
    partial, whole = wheels_of(wheel_project)
    assert partial == wheel and whole.name == wheel.name.replace("+partial", "")
    with zipfile.ZipFile(whole) as archive:
        assert "missing" not in json.loads(archive.read("demo/manifest.json"))


def test_a_complete_kernel_has_nothing_of_a_failure_of_another_file_in_it(cpu_project):
    """The file defines the kernel a second time, which is an error of that file, and no source of the kernel."""
    cpu_project.write("kernels/zz.py", SCALE)
    (cpu_project.folder / "kernels/add_one.py").unlink()
    # Its error is shown first, before the kernel is put together.
    targets = ("build/kernels/demo/0.failed", "build/demo")
    run = cpu_project.scons("-j1", "--partial", "BACKENDS=tvm_ffi,torch", *targets, ok=False)
    assert run.status == 2 and "kernel" in cpu_project.manifest["missing"][0]
    made = cpu_project.files("build/kernels", "build/demo/_lib", "build/demo/backends")
    assert [name for name, content in made.items() if b"built partially" in content and "/scale" in name] == []
    (cpu_project.folder / "kernels/zz.py").unlink()
    run = cpu_project.scons("-j2", "BACKENDS=tvm_ffi,torch")
    assert set(run.labels) == {"PACKAGE"}


def test_an_error_of_a_file_is_shown_whatever_is_asked_for(cpu_project):
    (cpu_project.folder / "kernels/broken.py").write_text(ADD.replace("add_one", "lost") + "\ndef kernels(:\n")
    cpu_project.built("-j2", "-k", "add_one", ok=False)
    # Words of no file, and of a valid one, and a folder with the name of a word in the broken one.
    run = cpu_project.scons("-k", "nowhere", "x_handle", "kernels", ok=False)
    assert run.output.count("Do not know how to make") == 2 and "[discover]" not in run.output
    assert "`kernels' is up to date" in run.output
    for option, target in (("-k", "check"), ("--partial", "scale"), ("-k", "lost"), ("--partial", "lost")):
        run = cpu_project.scons("-j2", option, target, ok=False)
        assert run.status == 2 and "kernels/broken.py:17 [discover]: SyntaxError" in run.output
        assert "Do not know how to make" not in run.output
    assert (cpu_project.folder / "build/check/demo/scale/dtype-float32.cpu.json").exists()


def test_one_bad_kernel_of_a_file_does_not_drop_those_after_it(cpu_project):
    other = ADD.replace("add_one", "third").replace("@kernel(", '@kernel(backends=["nope"], ')
    cpu_project.write("kernels/add_one.py", other + ADD.split("te\n", 1)[1])
    run = cpu_project.scons("-j2", "--partial", ok=False)
    assert run.status == 2
    assert sorted(cpu_project.manifest["kernels"]) == ["add_one", "scale"]
    assert [gap["kernel"] for gap in cpu_project.manifest["missing"]] == ["third"]
    run = cpu_project.scons("-j2", "-k", "third", ok=False)
    assert run.status == 2 and "'nope'" in run.output and "Do not know how to make" not in run.output


def test_a_wheel_of_a_partial_package_names_no_folder_of_this_machine_and_escapes_half_characters(wheel_project):
    top, home = wheel_project.folder, Path("~").expanduser()
    text = f"a \\ud800 b in {top}, {top}/x, {home}, {sys.prefix} and /home/somebody/secret.txt"
    wheel_project.write("kernels/scale.py", BAD_SCALE.replace("on purpose", text))
    assert wheel_project.scons("-j2", "--partial", "wheel", ok=False).status == 2
    assert len(wheels_of(wheel_project)) == 1
    error = wheel_project.manifest["missing"][0]["error"]
    assert error.endswith("raised RuntimeError: a \\ud800 b in ..., x, ..., ... and ...")
    (log,) = wheel_project.folder.glob("build/kernels/demo/scale/failed/*.txt")
    assert "RuntimeError: a \\ud800 b" in log.read_text()


def test_a_linked_folder_of_logs_is_refused(cpu_project, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    cpu_project.write("kernels/scale.py", BAD_SCALE)
    folder = cpu_project.folder / "build/kernels/demo/scale"
    folder.mkdir(parents=True)
    (folder / "failed").symlink_to(elsewhere)
    run = cpu_project.scons("-j2", "--partial", ok=False)
    assert run.status == 2 and "build/kernels/demo/scale/failed is a symbolic link" in run.output
    assert list(elsewhere.iterdir()) == []
