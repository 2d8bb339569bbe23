"""The generated package: calls, errors, stubs, manifest, damage, threads and forks."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.environments import needed
from support.project import ADD, CUBE, SCALE, SCONSTRUCT, Project

MORE = '''\
from kernelwright import grid, kernel
from tvm.script import tirx as T


@kernel(configs=grid(block=[4, 8]), outputs=["s", "d"], targets=["llvm"])
def sum_and_difference(block: int):
    """s = a + b, d = a - b, scaled by alpha; a, b: [n, 4] float32"""

    @T.prim_func(s_tir=True)
    def main(a_: T.handle, b_: T.handle, alpha: T.float32, s_: T.handle, d_: T.handle):
        n = T.int32()
        a = T.match_buffer(a_, (n, 4), "float32")
        b = T.match_buffer(b_, (n, 4), "float32")
        s = T.match_buffer(s_, (n, 4), "float32")
        d = T.match_buffer(d_, (n, 4), "float32")
        for i, j in T.grid(n, 4):
            with T.sblock("both"):
                vi, vj = T.axis.remap("SS", [i, j])
                s[vi, vj] = alpha * (a[vi, vj] + b[vi, vj])
                d[vi, vj] = alpha * (a[vi, vj] - b[vi, vj])

    return main


@kernel(targets=["llvm"])
def increment():
    """x += 1, in place"""

    @T.prim_func(s_tir=True)
    def main(x_: T.handle):
        n = T.int32()
        x = T.match_buffer(x_, (n,), "int32")
        for i in range(n):
            with T.sblock("x"):
                j = T.axis.spatial(n, i)
                x[j] = x[j] + 1

    return main
'''


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A built package with CPU code, and CUDA code of one kernel."""
    project = Project(tmp_path_factory.mktemp("package"))
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", '[tool.kernelwright]\narchs = ["x86-64-v2", "x86-64-v3", "sm_80", "compute_80"]\n')
    project.write("kernels/scale.py", SCALE)
    project.write("kernels/add_one.py", ADD.replace("@kernel(", '@kernel(targets=["llvm"], '))
    project.write("kernels/more.py", MORE)
    project.scons("-j2")
    return project


@pytest.fixture
def copy(built, tmp_path):
    """A copy of the built package that a test may damage."""
    shutil.copytree(built.folder / "build/demo", tmp_path / "build/demo", ignore=shutil.ignore_patterns("__pycache__"))
    return Project(tmp_path)


def test_outputs_in_place_and_allocated(built):
    built.python("""
        import numpy as np, demo
        x = np.arange(5, dtype="float32")
        y = np.empty_like(x)
        assert demo.scale(x, y) is None
        np.testing.assert_array_equal(y, 2 * x)
        np.testing.assert_array_equal(np.from_dlpack(demo.scale(x)), 2 * x)
        assert np.from_dlpack(demo.scale(x.astype("float16"))).dtype == "float16"
    """)


def test_several_outputs_scalars_and_updates_in_place(built):
    built.python("""
        import numpy as np, demo
        a, b = np.random.default_rng(0).random((2, 3, 4), "float32")
        s, d = demo.sum_and_difference(a, b, 2.0)
        np.testing.assert_allclose(np.from_dlpack(s), 2 * (a + b), rtol=1e-6)
        np.testing.assert_allclose(np.from_dlpack(d), 2 * (a - b), rtol=1e-6)
        x = np.array([1, 2], dtype="int32")
        demo.increment(x)
        assert x.tolist() == [2, 3]
    """)


BY_POSITION = """\
from kernelwright import grid, kernel
from tvm import te, topi


@kernel(configs=grid(dtype=["float32", "float64"]), outputs=[-1])
def softmax(dtype):
    n = te.var("n")
    x = te.placeholder((n, 8), dtype, name="x")
    return te.create_prim_func([x, topi.nn.softmax(x)])


@softmax.reference
def _(x):
    import numpy as np

    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@kernel(configs=[{"name": "y"}, {"name": "z"}], outputs=[-1])
def renamed(name):
    x = te.placeholder((8,), "float32", name="x")
    return te.create_prim_func([x, te.compute((8,), lambda i: x[i] + 1.0, name=name)])
"""


def test_outputs_by_position_are_names_for_those_who_call(cpu_project):
    shutil.rmtree(cpu_project.folder / "kernels")
    text, _, second = BY_POSITION.rpartition("@kernel")
    cpu_project.write("kernels/softmax.py", text)
    cpu_project.scons("-j2")
    assert cpu_project.scons("check", "-j2").labels["CHECK"] == 2
    cpu_project.python(
        """
        import numpy as np, demo
        x = np.linspace(-2, 2, 24, dtype="float32").reshape(3, 8)
        made = np.from_dlpack(demo.softmax(x))
        assert abs(made.sum(-1) - 1).max() < 1e-5
        kernel = demo.manifest()["kernels"]["softmax"]
        assert kernel["outputs"] == ["T_softmax_norm"], kernel["outputs"]
        assert [a["output"] for a in kernel["variants"][1]["arguments"]] == [False, True]
        """
    )
    # Another position is another kernel; the same one counted from the front is not.
    cpu_project.replace("kernels/softmax.py", "outputs=[-1]", "outputs=[1]")
    assert set(cpu_project.scons("-j2").labels) == {"LOWER"}
    cpu_project.write("kernels/softmax.py", text + "@kernel" + second)
    output = cpu_project.scons("-j2", ok=False).output
    assert "give all variants of a kernel the same arguments" in output and "z[] (output)" in output


def test_outputs_of_a_backward_kernel_can_be_listed_by_position(cpu_project):
    shutil.rmtree(cpu_project.folder / "kernels")
    cpu_project.write("kernels/cube.py", CUBE.replace('["grad_x", "grad_w"]', "[-2, -1]"))
    assert cpu_project.scons("-j2", "check").labels["CHECK"] == 4
    cpu_project.write("kernels/cube.py", CUBE.replace('["grad_x", "grad_w"]', "[1, -1]"))
    output = cpu_project.scons("-j2", "cube_backward", ok=False).output
    assert "output 'x' is the gradient of no input of cube" in output and "kernels/cube.py:" in output


def test_zero_size(built):
    built.python("""
        import numpy as np, demo
        assert demo.scale(np.empty(0, "float32")).shape == (0,)
    """)


def test_variants_are_listed_and_reached_by_their_config(built):
    built.python("""
        import numpy as np, demo, pytest
        assert demo.sum_and_difference.variants == ({"block": 4}, {"block": 8})
        a = np.ones((2, 4), "float32")
        assert np.from_dlpack(demo.sum_and_difference.variant(block=8)(a, a, 1.0)[0]).tolist() == (a + a).tolist()
        assert demo.sum_and_difference.variant(block=8).variants == ({"block": 8},)
        with pytest.raises(KeyError, match="no variant with block=5; built are: block=4; block=8"):
            demo.sum_and_difference.variant(block=5)
    """)


WRONG_CALLS = [
    ("demo.scale(np.ones(3, 'float64'))", ["scale", "float64", "float32", "float16"]),
    ("demo.add_one(np.ones((3, 4), 'float64'))", ["add_one", "x = float64[3, 4] on cpu", "x = float32[n, 4]"]),
    ("demo.add_one(np.ones(3, 'float32'))", ["add_one", "x = float32[3] on cpu", "x = float32[n, 4]"]),
    ("demo.add_one(np.ones((3, 5), 'float32'))", ["add_one", "x = float32[3, 5] on cpu", "x = float32[n, 4]"]),
    (
        "demo.add_one(np.ones((3, 4), 'float32'), np.ones((2, 4), 'float32'))",
        ["add_one", "y.shape[0]", "x.shape[0]"],
    ),
    ("demo.add_one()", ["add_one", "argument"]),
    ("demo.add_one(*[np.ones((3, 4), 'float32')] * 3)", ["add_one", "argument"]),
    ("demo.add_one('text')", ["add_one", "x"]),
    ("demo.add_one(np.ones((4, 3), 'float32').T)", ["add_one", "x", "strides"]),
    ("demo.sum_and_difference(*[np.ones((3, 4), 'float32')] * 2, 'alpha')", ["sum_and_difference", "alpha"]),
]


@pytest.fixture(scope="module")
def errors(built):
    """Wrong call -> what it says."""
    printed = built.python(f"""
        import json
        import numpy as np, demo
        said = {{}}
        for call in {[call for call, _ in WRONG_CALLS]!r}:
            try:
                eval(call)
            except (TypeError, ValueError) as error:
                said[call] = str(error)
            else:
                said[call] = "no error"
        print(json.dumps(said))
    """)
    return json.loads(printed)


@pytest.mark.parametrize(("call", "expected"), WRONG_CALLS)
def test_wrong_arguments_name_the_kernel_the_argument_and_what_is_expected(errors, call, expected):
    for part in expected:
        assert part in errors[call], errors[call]


def test_cuda_without_a_driver_is_an_error_that_names_the_kernel(built):
    output = built.python(
        """
        import demo
        assert not demo.scale.supported("cuda")
        for call in (lambda: demo.scale.preload("cuda:0"), lambda: demo.preload("cuda")):
            try:
                call()
            except RuntimeError as error:
                print(error)
    """,
        env={"KERNELWRIGHT_CUDA_DRIVER": "/no/such/libcuda.so.1"},
    )
    assert output.count("driver") >= 2 and "scale" in output


def test_unknown_device_is_an_error(built):
    output = built.python("""
        import demo
        try:
            demo.scale.supported("rocm")
        except ValueError as error:
            print(error)
    """)
    assert "unknown device 'rocm'" in output and "cuda" in output


def test_cpu_below_the_built_level_is_an_error(built):
    output = built.python(
        """
        import numpy as np, demo
        assert not demo.scale.supported("cpu")
        try:
            demo.scale(np.ones(3, "float32"))
        except RuntimeError as error:
            print(error)
    """,
        env={"KERNELWRIGHT_CPU_LEVEL": "x86-64"},
    )
    assert "scale" in output and "x86-64-v2" in output
    code = "import numpy as np, demo; print(np.from_dlpack(demo.scale(np.ones(1, 'float32'))))"
    assert built.python(code, env={"KERNELWRIGHT_CPU_LEVEL": "x86-64-v2"}) == "[2.]\n"


def test_import_loads_nothing_but_the_standard_library(built):
    built.python("""
        import sys
        import demo
        loaded = {name.split(".")[0] for name in sys.modules}
        assert not loaded & {"numpy", "tvm_ffi", "tvm", "torch"}, loaded
        sys.modules["torch"] = None  # tvm-ffi would import it, which takes seconds
        demo.scale
        assert "tvm_ffi" in sys.modules and "tvm" not in sys.modules
    """)


def test_first_use_from_many_threads_loads_once(built):
    built.python("""
        import sys, threading
        import demo
        sys.setswitchinterval(1e-6)
        barrier, seen = threading.Barrier(16), []
        def use():
            barrier.wait()
            seen.append(demo.scale)
        threads = [threading.Thread(target=use) for _ in range(16)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert len(seen) == 16 and len({id(k) for k in seen}) == 1
    """)


def test_fork_after_use_and_in_the_middle_of_a_load(built):
    built.python("""
        import os, signal, threading
        import numpy as np, demo
        x = np.ones(100_000, "float32")
        demo.scale(x)
        held, release = threading.Event(), threading.Event()
        def hold():
            with demo._loader._lock:
                held.set(); release.wait()
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(300)  # ends it if it hangs
            assert np.from_dlpack(demo.add_one(np.ones((2, 4), "float32"))).sum() == 16
            assert np.from_dlpack(demo.scale(x)).sum() == 200_000
            os._exit(0)
        _, status = os.waitpid(child, 0)
        release.set()
        assert status == 0, status
    """)


def test_thread_count_can_be_set(built):
    built.python(
        """
        import numpy as np, demo, pytest
        assert demo.num_threads() == 3
        demo.set_num_threads(2)
        assert demo.num_threads() == 2
        assert np.from_dlpack(demo.scale(np.ones(1000, "float32"))).sum() == 2000
        for bad in (0, -1, "2", True):
            with pytest.raises(ValueError, match="positive integer"):
                demo.set_num_threads(bad)
    """,
        env={"KERNELWRIGHT_NUM_THREADS": "3"},
    )


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
@pytest.mark.parametrize("name", ["_lib/scale.so", "manifest.json", "_runtime/kernel.py"])
def test_missing_or_altered_file_is_an_error_that_names_it(copy, name, damage):
    path = copy.folder / "build/demo" / name
    content = path.read_bytes()
    if damage == "delete":
        path.unlink()
    else:
        middle = len(content) // 2
        path.write_bytes(content[:middle] if damage == "truncate" else content[:middle] + b"~" + content[middle + 1 :])
    output = copy.python("""
        import demo
        try:
            demo.scale
        except ImportError as error:
            print(error)
    """)
    assert str(path) in output and "install the package again" in output


def test_unknown_kernel_is_an_attribute_error_that_lists_the_kernels(built):
    output = built.python("""
        import demo
        try:
            demo.scael
        except AttributeError as error:
            print(error)
    """)
    assert "'scael'" in output and "scale" in output


def test_manifest_lists_every_file_with_its_digest(built):
    folder = built.folder / "build/demo"
    manifest = json.loads((folder / "manifest.json").read_text())
    present = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert set(manifest["files"]) == present - {"manifest.json"} > {"__init__.py", "_lib/scale.so"}
    for name, entry in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    scale = manifest["kernels"]["scale"]
    assert scale["outputs"] == ["y"]
    assert [v["slug"] for v in scale["variants"]] == ["dtype-float32", "dtype-float16"]
    assert scale["variants"][0]["archs"] == ["x86-64-v2", "x86-64-v3", "sm_80", "compute_80"]
    assert scale["variants"][0]["arguments"][0]["shape"] == ["n"]
    assert all(len(unit["signature"]) == 64 for v in scale["variants"] for unit in v["units"])
    assert manifest["tools"]["nvcc"]["version"] and manifest["tools"]["tvm"]["tvm"]
    assert str(built.folder) not in json.dumps(manifest)


def test_kernels_can_be_copied_but_not_pickled(built):
    built.python("""
        import copy, pickle, demo, pytest
        assert copy.deepcopy({"k": demo.scale})["k"] is demo.scale
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(demo.scale)
    """)


def test_preload_skips_kernels_that_are_not_built_for_the_device(built):
    built.python("""
        import demo
        demo.preload("cpu")
        assert demo.increment.devices == {"cpu"} and demo.scale.devices == {"cpu", "cuda"}
    """)


def test_stubs_are_accepted_by_mypy_and_catch_mistakes(built, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import numpy as np
        import demo
        x = np.ones(3, "float32")
        demo.scale(x)
        demo.scale(x, x)
        s, d = demo.sum_and_difference(x, x, 1.0)
        demo.preload("cuda:0")
        demo.scale(x, x, x)  # mistake: too many
        demo.sum_and_difference(x, x, "one")  # mistake: not a number
        demo.scael(x)  # mistake: no such kernel
    """)
    )
    # tvm-ffi imports PyTorch, whose analysis takes longer than all else.
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", config, "--cache-dir", os.devnull, program],
        env={**os.environ, "MYPYPATH": str(built.folder / "build")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line for line in run.stdout.splitlines() if "program.py" in line and ": error:" in line]
    assert {int(line.split(":")[1]) for line in lines} == {9, 10, 11}, run.stdout
    assert not [line for line in run.stdout.splitlines() if "demo/__init__.pyi" in line], run.stdout


def test_libraries_need_only_the_c_library_and_tvm_ffi_and_kernels_their_launcher(built):
    of_glibc = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "ld-linux")
    libraries = sorted((built.folder / "build/demo/_lib").glob("*.so"))
    assert "scale.so" in [library.name for library in libraries]
    (launcher,) = (library.name for library in libraries if library.name.startswith("libkernelwright-"))
    version = "@" + launcher.removesuffix(".so").replace("-", "_")
    for library in libraries:
        is_launcher = library.name == launcher
        allowed = of_glibc if is_launcher else (*of_glibc, launcher)
        needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
        names = [line.split("[")[1].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line]
        assert names and all(name.startswith(allowed) for name in names), names
        symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
        undefined = [line.split()[-1] for line in symbols.splitlines() if " U " in line]
        others = [name for name in undefined if "@GLIBC" not in name and not name.startswith("TVMFFI")]
        assert undefined and not (others if is_launcher else [name for name in others if not name.endswith(version)])
        defined = [line.split()[-1] for line in symbols.splitlines() if " T " in line]
        exported = f"{'kw' if is_launcher else '__tvm_ffi'}_"
        assert defined and all(name.startswith(exported) for name in defined), defined


def test_library_holds_code_for_every_listed_arch(built):
    content = (built.folder / "build/demo/_lib/scale.so").read_bytes()
    for slug in ("dtype-float32", "dtype-float16"):
        unit = built.folder / "build/kernels/demo/scale" / slug / "cuda"
        assert (unit / "sm_80.cubin").read_bytes() in content
        assert (unit / "compute_80.ptx").read_bytes() in content
        flags = subprocess.run(
            ["readelf", "-h", unit / "sm_80.cubin"], capture_output=True, text=True, check=True
        ).stdout
        assert "NVIDIA CUDA" in flags


@pytest.mark.parametrize(
    "script", ["kernels/demo/scale/dtype-float32/cuda/compile_sm_80.sh", "kernels/demo/scale/compile.sh"]
)
def test_scripts_repeat_a_step_by_hand(built, tmp_path, script):
    copy = tmp_path / "build"
    shutil.copytree(built.folder / "build", copy)
    output = copy / script.replace("compile_sm_80.sh", "sm_80.cubin").replace("compile.sh", "scale.so")
    output.unlink(missing_ok=True)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", copy / script], check=True, env=env, timeout=300)
    original = "demo/_lib/scale.so" if script.endswith("compile.sh") else str(output.relative_to(copy))
    assert output.read_bytes() == (built.folder / "build" / original).read_bytes()


@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_runs_with_tvm_ffi_and_numpy_only_on_every_python(built, tmp_path, tmp_path_factory, version):
    home = needed(tmp_path_factory, int(version.removeprefix("3.")))
    code = (
        "import sys, numpy, demo; print(numpy.from_dlpack(demo.scale(numpy.ones(2, 'float32'))), 'tvm' in sys.modules)"
    )
    run = subprocess.run(
        [home / "bin/python", "-c", code],
        env={"PYTHONPATH": str(built.folder / "build"), "PATH": "/nonexistent"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.stdout == "[2. 2.] False\n", run.stderr
