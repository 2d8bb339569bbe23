"""Bad input: exit status, message, and that nothing half-written is left."""

from __future__ import annotations

import re

import pytest
from support.moments import HANGS_AFTER_S
from support.project import SCALE, SCONSTRUCT, Project, new_project

PRELUDE = "from kernelwright import grid, kernel\nfrom tvm.script import tirx as T\nfrom tvm import te\n"

GOOD_BODY = """
    n = te.var("n")
    x = te.placeholder((n,), "float32", name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] * 2.0, name="y")])
"""

LOOPS = """
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((32, 32), "float32"), y: T.Buffer((32, 32), "float32")):
        for i in {outer}:
            for j in {inner}:
                with T.sblock("a"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, vj] = {value}
    return main
"""
IN_PLACE = """
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((32,), "int32")):
        for i in range(32):
            with T.sblock("a"):
                j = T.axis.spatial(32, i)
                x[j] = x[j] + 1
    return main
"""
THREADS = {"outer": 'T.thread_binding(32, thread="threadIdx.x")', "inner": "range(32)"}
UNKNOWN = 'T.call_extern("float32", "no_such_device_function", x[vi, vj])'


def declared(arguments: str, body: str = GOOD_BODY) -> str:
    """A definition file with the kernel NAME."""
    return f"{PRELUDE}@kernel{arguments}\ndef NAME():{body}"


BAD = {
    "imports": ("import no_such_module\n", ["imports.py:1", "no_such_module"]),
    "leaves": ("raise SystemExit(0)\n", ["leaves.py:1", "SystemExit"]),
    "crashes": ("import ctypes\nctypes.string_at(0)\n", ["crashes.py", "SIGSEGV"]),
    "outputs": (declared("(outputs='y')"), ["outputs.py:4 outputs", "outputs is 'y'", 'remedy: write outputs=["y"]']),
    "keys": (declared("(configs=[{'block': 1}])"), ["keys.py:4 keys", "config key 'block' is not a parameter"]),
    "preload": (declared(""), ["preload.py:4", "'preload' cannot be a kernel's name"]),
    "target": (declared("(targets=['rocm'])"), ["target.py:4 target", "unknown target 'rocm'", "llvm, cuda"]),
    "arch": (declared("(archs=['gfx90a'])"), ["arch.py:4 arch", "unknown arch 'gfx90a'", "sm_90a", "x86-64-v3"]),
    "backend": (declared("(backends=['ctypes'])"), ["backend.py:4 backend", "unknown backend 'ctypes'", "tvm_ffi"]),
    "twin": (SCALE, ["twin.py:5 scale", "a kernel named 'scale' is also defined at kernels/scale.py:5"]),
    "lacking": (declared("(outputs=['z'], targets=['llvm'])"), ["lacking.py:4 lacking/default [lower]", "'z'", "x, y"]),
    "nested": (  # LLVM code generation rejects a parallel loop inside of a parallel loop.
        declared("(targets=['llvm'])", LOOPS.format(outer="T.parallel(32)", inner="T.parallel(32)", value="x[vi, vj]")),
        ["nested/default [lower]: TVM cannot lower the function", "Nested parallel loop"],
    ),
    "unscheduled": (
        declared("(targets=['cuda'])", IN_PLACE),
        [
            "unscheduled/default [lower]: the function has no thread bindings, and none of TVM's rules",
            "dlight.gpu.Fallback",
            "remedy: schedule it by hand",
        ],
    ),
    "rejected": (
        declared("(targets=['cuda'])", LOOPS.format(**THREADS, value=UNKNOWN)),
        ["-arch=compute_80", "no_such_device_function", "build/kernels/demo/rejected/default/cuda/device.cu"],
    ),
}
"""What is wrong -> a definition file, and what is said of it."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What ``scons -k`` says of all of these at once, beside two good kernels."""
    project = new_project(tmp_path_factory.mktemp("errors"))
    for name, (text, _) in BAD.items():
        (project.folder / f"kernels/{name}.py").write_text(text.replace("NAME", name))
    # How a worker has died is known only once the system says so, however late that is.
    late = f"from kernelwright.processes import worker\nworker.REAP_S = {HANGS_AFTER_S}\n"
    project.write("SConstruct", late + SCONSTRUCT)
    run = project.scons("-j2", "-k", ok=False)
    assert run.status == 2 and "LINK scale" in run.stages and "LINK add_one" in run.stages
    assert run.counts[2] == len(BAD)
    summary = run.output.partition(f"kernelwright: {len(BAD)} failed:\n")[2]
    assert summary and [name for name in BAD if not re.search(rf"kernels/{name}\.py| {name}/default ", summary)] == []
    assert not (project.folder / "build/demo/manifest.json").exists()
    names = [name for name in project.files("build") if "/.kernelwright/" not in name or "scratch" in name]
    left = {name.partition("demo/")[2] for name in names if any(f"/{bad}/" in name for bad in BAD)}
    assert "rejected/default/cuda/device.cu" in left, "of the stages before the one that fails"
    assert [name for name in left if not name.startswith("rejected/") or name.endswith((".cubin", ".ptx", ".so"))] == []
    assert [name for name in names if "scratch" in name] == []
    return run.output


@pytest.mark.parametrize("name", BAD)
def test_bad_definition(told: str, name: str) -> None:
    assert [part for part in BAD[name][1] if part not in told] == []


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("ARCHS=sm_42", ["command line [settings]: nvcc", "sm_42", "sm_90a"]),
        ("NVCC=/no/such/nvcc", ["command line [settings]: nvcc = '/no/such/nvcc'", "pip install"]),
        ("HOST_COMPILER=no-such-cc", ["command line [settings]: host_compiler = 'no-such-cc'", "install gcc"]),
        ("WORKER_TIMEOUT=soon", ["command line [settings]: worker_timeout is 'soon'", "seconds"]),
    ],
)
def test_bad_setting(project: Project, argument: str, expected: list[str]) -> None:
    run = project.scons(argument, ok=False)
    assert run.status == 2 and [part for part in expected if part not in run.output] == []
    assert not (project.folder / "build/demo").exists()


def test_an_arch_is_told_with_the_place_that_names_it_and_not_with_that_of_others(project: Project) -> None:
    project.replace("pyproject.toml", '"sm_80"', '"sm_42"')
    run = project.scons("ARCHS=x86-64-v2", ok=False)
    assert re.search(r"pyproject.toml \[settings\]: nvcc \S+ does not know the arch 'sm_42'", run.output), run.output
    project.replace("pyproject.toml", "archs =", 'nvcc = "/no/such/nvcc"\narchs =')
    run = project.scons("CUDA=nvrtc-12.1", ok=False)
    assert "*** command line [settings]: no NVRTC of CUDA 12.1" in run.output, "nvcc does not count"
    project.replace("pyproject.toml", "archs =", 'worker_timeout = "soon"\narchs =')
    run = project.scons(ok=False)
    assert run.status == 2 and "*** pyproject.toml [settings]: worker_timeout is 'soon'" in run.output, run.output


def test_no_sources_are_an_error_that_says_how_to_write_them(cpu_project: Project) -> None:
    cpu_project.replace("SConstruct", 'env.Glob("kernels/*.py")', '"kernels/*.py"')
    output = cpu_project.scons(ok=False).output
    assert "the definition file kernels/*.py does not exist" in output
    assert 'a pattern is written as Glob("kernels/*.py")' in output
    cpu_project.replace("SConstruct", '"kernels/*.py"', "[]")
    output = cpu_project.scons(ok=False).output
    assert "demo has no definition files" in output and 'remedy: give it some: Glob("kernels/*.py"); ' in output
