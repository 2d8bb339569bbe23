"""The generated package: calls, errors, stubs, manifest, damage, threads and forks."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.project import ADD, CUBE, SCALE, Project


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A built package with CPU code, and CUDA code of one kernel."""
    settings = '[tool.kernelwright]\narchs = ["x86-64-v2", "x86-64-v3", "sm_80", "compute_80"]\n'
    kernels = {"scale": SCALE, "add_one": ADD.replace("@kernel(", '@kernel(targets=["llvm"], ')}
    project = Project.of(tmp_path_factory.mktemp("package"), settings, **kernels)
    project.built("-j2")
    return project


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
    cpu_project.python("""
        import numpy as np, demo
        x = np.linspace(-2, 2, 24, dtype="float32").reshape(3, 8)
        made = np.from_dlpack(demo.softmax(x))
        assert abs(made.sum(-1) - 1).max() < 1e-5
        kernel = demo.manifest()["kernels"]["softmax"]
        assert kernel["outputs"] == ["T_softmax_norm"], kernel["outputs"]
        assert [a["output"] for a in kernel["variants"][1]["arguments"]] == [False, True]
        """)
    # Another position is another kernel; the same one counted from the front is not.
    cpu_project.replace("kernels/softmax.py", "outputs=[-1]", "outputs=[1]")
    assert set(cpu_project.scons("-j2").labels) == {"LOWER"}
    cpu_project.write("kernels/softmax.py", text + "@kernel" + second)
    output = cpu_project.scons("-j2", ok=False).output
    assert "give all variants of a kernel the same arguments" in output and "z[] (output)" in output


def test_outputs_of_a_backward_kernel_can_be_listed_by_position_and_its_arguments_are_those_of_the_kernel(cpu_project):
    shutil.rmtree(cpu_project.folder / "kernels")
    cpu_project.write("kernels/cube.py", CUBE.replace('["grad_x", "grad_w"]', "[-2, -1]"))
    assert cpu_project.scons("-j2", "check").labels["CHECK"] == 4
    cpu_project.write("kernels/cube.py", CUBE.replace('["grad_x", "grad_w"]', "[1, -1]"))
    output = cpu_project.scons("-j2", "cube_backward", ok=False).output
    assert "output 'x' is the gradient of no input of cube" in output and "kernels/cube.py:" in output
    cpu_project.write("kernels/cube.py", CUBE.replace('name="grad_y"', 'name="dy"'))
    output = cpu_project.scons("-j2", "cube_backward", ok=False).output
    line = next(number for number, text in enumerate(CUBE.splitlines(), 1) if "cube.backward(" in text)
    assert f"kernels/cube.py:{line} cube_backward/dtype-float32 [lower]: argument 'dy' is no argument of cube" in output
    assert "call it like one of x, w, scale, y, grad_y" in output


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


def test_a_script_repeats_the_linking_by_hand(built, tmp_path):
    copy = tmp_path / "build"
    shutil.copytree(built.folder / "build", copy)
    output = copy / "kernels/demo/scale/scale.so"
    output.unlink()
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", output.with_name("compile.sh")], check=True, env=env, timeout=300)
    assert output.read_bytes() == (built.folder / "build/demo/_lib/scale.so").read_bytes()
