"""Bad input: exit status, message, and that nothing half-written is left."""

from __future__ import annotations

import shutil

import pytest
from support.moments import HANGS_AFTER_S
from support.project import ADD, SCONSTRUCT

PRELUDE = "from kernelwright import grid, kernel\nfrom tvm.script import tirx as T\nfrom tvm import te\n"

GOOD_BODY = """
    n = te.var("n")
    x = te.placeholder((n,), "float32", name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] * 2.0, name="y")])
"""

DEFINITIONS = {
    "syntax error": ("def f(:\n    pass\n", ["kernels/bad.py:1", "discover"]),
    "import error": ("import no_such_module\n", ["kernels/bad.py:1", "no_such_module"]),
    "wrong decorator argument": (
        PRELUDE + "@kernel(outputs='y')\ndef bad():" + GOOD_BODY,
        ["kernels/bad.py:4", "bad", "outputs is 'y'", 'remedy: write outputs=["y"]'],
    ),
    "unknown decorator argument": (
        PRELUDE + "@kernel(output=['y'])\ndef bad():" + GOOD_BODY,
        ["kernels/bad.py:4", "@kernel has no argument 'output'"],
    ),
    "config key that is no parameter": (
        PRELUDE + "@kernel(configs=[{'block': 1}])\ndef bad():" + GOOD_BODY,
        ["kernels/bad.py:4", "config key 'block' is not a parameter", "remedy"],
    ),
    "definition that raises": (
        PRELUDE + "@kernel\ndef bad():\n    raise RuntimeError('on purpose')\n",
        ["kernels/bad.py:6", "bad", "lower", "on purpose"],
    ),
    "definition that returns something else": (
        PRELUDE + "@kernel\ndef bad():\n    return 42\n",
        ["bad", "lower", "int", "PrimFunc"],
    ),
    "output that is no argument": (
        PRELUDE + "@kernel(outputs=['z'])\ndef bad():" + GOOD_BODY,
        ["bad", "'z'", "x, y"],
    ),
    "no kernel": ("x = 1\n", ["kernels/bad.py", "no kernel"]),
    "reserved name": (PRELUDE + "@kernel\ndef preload():" + GOOD_BODY, ["'preload' cannot be a kernel's name"]),
    "exit": ("raise SystemExit(0)\n", ["kernels/bad.py:1", "SystemExit"]),
    "crash": ("import ctypes\nctypes.string_at(0)\n", ["kernels/bad.py", "SIGSEGV"]),
    "unknown target": (
        PRELUDE + "@kernel(targets=['rocm'])\ndef bad():" + GOOD_BODY,
        ["unknown target 'rocm'", "llvm, cuda"],
    ),
    "unknown arch": (
        PRELUDE + "@kernel(archs=['gfx90a'])\ndef bad():" + GOOD_BODY,
        ["unknown arch 'gfx90a'", "sm_90a", "x86-64-v3"],
    ),
    "unknown backend": (
        PRELUDE + "@kernel(backends=['ctypes'])\ndef bad():" + GOOD_BODY,
        ["unknown backend 'ctypes'", "tvm_ffi"],
    ),
}


@pytest.mark.parametrize("case", DEFINITIONS)
def test_bad_definition(cpu_project, case):
    text, expected = DEFINITIONS[case]
    shutil.rmtree(cpu_project.folder / "kernels")
    cpu_project.write("kernels/bad.py", "")
    (cpu_project.folder / "kernels/bad.py").write_text(text)
    # How a worker has died is known only once the system says so, however late that is.
    cpu_project.write(
        "SConstruct", f"from kernelwright.processes import worker\nworker.REAP_S = {HANGS_AFTER_S}\n{SCONSTRUCT}"
    )
    run = cpu_project.scons("-j2", ok=False)
    assert run.status == 2
    for part in expected:
        assert part in run.output, run.output
    assert not (cpu_project.folder / "build/demo/manifest.json").exists()
    assert leftovers(cpu_project) == []


def leftovers(project, finished: str = "") -> list[str]:
    """Scratch files, and files of the bad kernel but those of the stages before the one that failed."""
    names = [name for name in project.files("build") if not name.startswith("build/.kernelwright/discovery")]
    bad = [name for name in names if "/bad/" in name and not (finished and f"/{finished}/" in name)]
    return bad + [name for name in names if "scratch" in name or name.endswith("bad.so")]


@pytest.mark.parametrize("case", ["syntax error", "definition that raises", "crash"])
def test_keep_going_builds_the_rest_and_sums_up(cpu_project, case):
    cpu_project.write("kernels/bad.py", "")
    (cpu_project.folder / "kernels/bad.py").write_text(DEFINITIONS[case][0])
    run = cpu_project.scons("-j2", "-k", ok=False)
    assert run.status == 2
    assert "LINK scale" in run.stages and "LINK add_one" in run.stages
    assert "kernelwright: 1 failed:" in run.output
    assert run.counts[2] == 1
    assert not (cpu_project.folder / "build/demo/manifest.json").exists()


def test_two_kernels_with_one_name(cpu_project):
    text = (cpu_project.folder / "kernels/scale.py").read_text()
    cpu_project.write("kernels/other.py", text)
    run = cpu_project.scons("-j2", ok=False)
    assert run.status == 2
    assert "kernels/scale.py:" in run.output and "kernels/other.py:" in run.output and "'scale'" in run.output


def test_tir_that_does_not_lower(cpu_project):
    # LLVM code generation rejects a parallel loop inside of a parallel loop.
    cpu_project.write(
        "kernels/bad.py",
        PRELUDE
        + """
@kernel
def bad():
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((32, 32), "float32"), y: T.Buffer((32, 32), "float32")):
        for i in T.parallel(32):
            for j in T.parallel(32):
                with T.sblock("a"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, vj] = x[vi, vj]
    return main
""",
    )
    run = cpu_project.scons("-j2", ok=False)
    assert run.status == 2
    assert "kernels/bad.py:" in run.output and "bad/default [lower]: TVM cannot lower the function" in run.output
    assert "Nested parallel loop" in run.output
    assert leftovers(cpu_project) == []


def test_kernel_that_no_rule_can_schedule_for_the_gpu(project):
    project.write(
        "kernels/bad.py",
        PRELUDE
        + """
@kernel
def bad():
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((32,), "int32")):
        for i in range(32):
            with T.sblock("a"):
                j = T.axis.spatial(32, i)
                x[j] = x[j] + 1
    return main
""",
    )
    run = project.scons("-j2", ok=False)
    assert run.status == 2
    assert "bad/default [lower]: the function has no thread bindings, and none of TVM's rules" in run.output
    assert "dlight.gpu.Fallback" in run.output and "remedy: schedule it by hand" in run.output
    assert leftovers(project, "llvm") == []


def test_cuda_that_nvcc_rejects(project):
    project.write(
        "kernels/bad.py",
        PRELUDE
        + """
@kernel(targets=["cuda"])
def bad():
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
        for i in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("a"):
                j = T.axis.spatial(32, i)
                y[j] = T.call_extern("float32", "no_such_device_function", x[j])
    return main
""",
    )
    run = project.scons("-j2", ok=False)
    assert run.status == 2
    assert "-arch=compute_80" in run.output, "the command"
    assert "no_such_device_function" in run.output, "nvcc's output"
    assert "build/kernels/demo/bad/default/cuda/device.cu" in run.output, "the path of the source"
    assert (project.folder / "build/kernels/demo/bad/default/cuda/device.cu").exists()
    assert not list(project.folder.glob("build/kernels/demo/bad/**/*.cubin"))


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("TARGETS=rocm", ["unknown target 'rocm'", "llvm, cuda"]),
        ("ARCHS=sm_9000", ["unknown arch 'sm_9000'", "x86-64-v3", "sm_90a"]),
        ("ARCHS=sm_42", ["sm_42", "sm_90a"]),
        ("BACKENDS=ctypes", ["unknown backend 'ctypes'", "tvm_ffi"]),
        ("NVCC=/no/such/nvcc", ["/no/such/nvcc", "pip install"]),
        ("HOST_COMPILER=no-such-cc", ["no-such-cc", "install gcc"]),
        ("WORKER_TIMEOUT=soon", ["worker_timeout is 'soon'", "seconds"]),
    ],
)
def test_bad_setting(project, argument, expected):
    run = project.scons(argument, ok=False)
    assert run.status == 2
    for part in expected:
        assert part in run.output, run.output
    assert not (project.folder / "build/demo").exists()


def test_unknown_setting_in_pyproject_is_named(project):
    project.write("pyproject.toml", '[tool.kernelwright]\narch = ["sm_80"]\n')
    run = project.scons(ok=False)
    assert "no setting 'arch'" in run.output and "did you mean 'archs'" in run.output


def test_pyproject_that_is_not_toml(project):
    project.write("pyproject.toml", "[tool.kernelwright\n")
    assert "pyproject.toml" in project.scons(ok=False).output


def test_no_sources(cpu_project):
    for path in cpu_project.folder.glob("kernels/*.py"):
        path.unlink()
    output = cpu_project.scons(ok=False).output
    assert "demo has no definition files" in output and 'remedy: give it some: Glob("kernels/*.py"); ' in output


def test_a_pattern_without_glob_is_an_error_that_says_how_to_write_it(cpu_project):
    cpu_project.replace("SConstruct", 'env.Glob("kernels/*.py")', '"kernels/*.py"')
    output = cpu_project.scons(ok=False).output
    assert "the definition file kernels/*.py does not exist" in output
    assert 'a pattern is written as Glob("kernels/*.py")' in output


def test_without_nvcc_scons_says_how_to_get_it(project):
    # An interpreter that sees our packages but not NVIDIA's: the wheels are hidden behind a setting that finds nothing.
    run = project.scons("NVCC=nvcc-that-is-not-there", ok=False)
    assert "pip install 'kernelwright[cuda]'" in run.output and "targets = llvm" in run.output
    assert project.scons("-j2", "NVCC=nvcc-that-is-not-there", "TARGETS=llvm").labels["LINK"] == 2


def test_worker_timeout_is_an_error_that_names_the_setting(cpu_project, tmp_path_factory):
    begun = tmp_path_factory.mktemp("begun") / "begun"
    body = f"    open({str(begun)!r}, 'w').close()\n    while True: pass\n"
    cpu_project.write("kernels/bad.py", f"{PRELUDE}@kernel\ndef bad():\n{body}")
    # Much time passes at the moment at which the endless loop begins.
    clock = f"""\
import os, time, types
from kernelwright.processes import worker
worker.time = types.SimpleNamespace(monotonic=lambda: time.monotonic() + 1000 * os.path.exists({str(begun)!r}))
"""
    cpu_project.write("SConstruct", clock + SCONSTRUCT)
    run = cpu_project.scons("bad", "WORKER_TIMEOUT=400", ok=False)
    assert "bad/default [lower]: a worker took longer than 400 s" in run.output and "worker_timeout" in run.output


def test_keep_going_reports_all_kinds_of_bad_definitions_at_once(cpu_project):
    text = (cpu_project.folder / "kernels/scale.py").read_text()
    cpu_project.write("kernels/twin.py", text)
    (cpu_project.folder / "kernels/syntax.py").write_text("def f(:\n")
    cpu_project.write("kernels/arch.py", ADD.replace("add_one", "odd").replace("@kernel(", '@kernel(archs=["foo"], '))
    run = cpu_project.scons("-j2", "-k", ok=False)
    assert run.counts[2] == 3
    assert "LINK add_one" in run.stages and "LINK scale" in run.stages
    summary = run.output.rpartition("3 failed:")[2]
    for part in ("kernels/syntax.py:1", "kernels/twin.py:5", "unknown arch 'foo'"):
        assert part in run.output and (part in summary), run.output
