"""Packages with several backends: what is built again, what the package offers, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.project import SITE_SCONS, Project

BOTH = "BACKENDS=tvm_ffi,torch"
CYTHON = "BACKENDS=cython"
ALL = "BACKENDS=tvm_ffi,cython,torch,jax"


def manifest(project: Project) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((project.folder / "build/demo/manifest.json").read_text())
    return content


def images(project: Project) -> dict[str, bytes]:
    """The libraries and device images of the package."""
    return project.files("build/demo/_lib", "build/demo/_images")


def test_choosing_another_backend_runs_no_lowering_and_no_compiler(project: Project) -> None:
    project.built("-j2")
    libraries = images(project)
    run = project.scons("-j2", BOTH)
    assert run.labels == {"PACKAGE": 1, "WRAP": 2}
    assert images(project) == libraries
    assert list(manifest(project)["backends"]) == ["tvm_ffi", "torch"]
    assert project.scons("-j2", BOTH).stages == []
    assert project.scons("-j2").labels == {"PACKAGE": 1}
    assert not (project.folder / "build/demo/backends/torch").exists()
    assert not (project.folder / "build/demo/_runtime/torch_kernel.py").exists()


def test_images_in_files_are_made_by_no_further_compilation(project: Project) -> None:
    project.built("-j2")
    run = project.scons("-j2", "BACKENDS=tvm_ffi,nvrtc")
    assert run.labels == {"CC": 2, "LINK": 2, "PACKAGE": 1, "WRAP": 4}, "the libraries are linked without their images"
    cubin = "scale/dtype-float16/cuda/sm_80.cubin"
    image = (project.folder / "build/demo/_images" / cubin).read_bytes()
    assert image == (project.folder / "build/kernels/demo" / cubin).read_bytes()
    library = (project.folder / "build/demo/_lib/scale.so").read_bytes()
    assert image not in library, "device code is there once"
    assert project.scons("-j2", "BACKENDS=tvm_ffi,nvrtc").stages == []


def test_default_backend_is_at_the_top_and_all_are_below_backends(cpu_project: Project) -> None:
    cpu_project.built("-j2", ALL)
    cpu_project.scons("-j2", "BACKENDS=torch,tvm_ffi,cython")
    code = """
        import numpy as np, torch
        import demo
        from demo.backends import cython, tvm_ffi
        x = torch.ones(3)
        print(demo.scale is demo.backends.torch.scale, sorted(dir(demo.backends)), demo.backends.__all__)
        for backend in (demo, demo.backends.torch, cython, tvm_ffi):
            print(backend.scale(x).tolist(), backend.add_one(torch.zeros(1, 4)).tolist())
        y = np.empty(3, np.float32)
        cython.scale(np.ones(3, np.float32), y)
        demo.backends.tvm_ffi.preload(), cython.preload()
        print(y, dir(cython))
    """
    lines = cpu_project.python(code).splitlines()
    assert lines[0] == "True ['cython', 'torch', 'tvm_ffi'] ['torch', 'tvm_ffi', 'cython']"
    assert lines[1:5] == ["[2.0, 2.0, 2.0] [[1.0, 1.0, 1.0, 1.0]]"] * 4
    assert lines[5] == "[2. 2. 2.] ['add_one', 'preload', 'scale']"


def test_a_kernel_that_restricts_its_backends(cpu_project: Project) -> None:
    cpu_project.replace("kernels/add_one.py", '@kernel(outputs=["y"])', '@kernel(outputs=["y"], backends=["torch"])')
    cpu_project.scons("-j2", BOTH)
    kernels = manifest(cpu_project)["kernels"]
    assert (kernels["scale"]["backends"], kernels["add_one"]["backends"]) == (["tvm_ffi", "torch"], ["torch"])
    code = """
        import torch, demo
        print(demo.add_one, dir(demo.backends.tvm_ffi))
        try:
            demo.backends.tvm_ffi.add_one
        except AttributeError as error:
            print(error)
    """
    function, error = cpu_project.python(code).splitlines()
    assert function.startswith("<function add_one") and "['preload', 'scale']" in function
    assert error == "module 'demo.backends.tvm_ffi' has no kernel 'add_one'; it has scale"


def test_jax_is_a_module_of_the_package(cpu_project: Project) -> None:
    cpu_project.built("-j2", ALL)
    code = """
        import demo
        from demo.jax import scale
        import demo.jax, numpy
        print(demo.jax is demo.backends.jax, scale is demo.jax.scale, sorted(dir(demo))[:3])
        print(scale(numpy.ones(2, "float32")))
    """
    assert cpu_project.python(code) == "True True ['add_one', 'backends', 'jax']\n[2. 2.]\n"
    cpu_project.scons("-j2")
    assert not list((cpu_project.folder / "build/demo").glob("jax.py*"))


def test_another_cython_compiles_the_extensions_again(cpu_project: Project) -> None:
    """Also those of kernels that nothing else has changed of, which have no nodes otherwise."""
    cpu_project.built("-j2", ALL)
    assert cpu_project.scons("-j2", ALL).stages == []
    newer = "import importlib.metadata as m\nknown = m.version\n"
    newer += "m.version = lambda name: '99' if name == 'cython' else known(name)\n"
    cpu_project.write("newer/sitecustomize.py", newer)
    paths = {"PYTHONPATH": f"{cpu_project.folder / 'newer'}:{SITE_SCONS}"}
    assert cpu_project.scons("-j2", ALL, env=paths).labels["EXT"] == 2


def test_auto_picks_by_target(cpu_project: Project) -> None:
    (cpu_project.folder / "kernels/scale.py").unlink()
    cpu_project.scons("-j2", "BACKENDS=auto")
    assert list(manifest(cpu_project)["backends"]) == ["tvm_ffi"]


def test_backends_of_the_settings_file(cpu_project: Project) -> None:
    settings = '[tool.kernelwright]\ntargets = ["llvm"]\nbackends = ["torch", "auto"]\n'
    cpu_project.write("pyproject.toml", settings)
    (cpu_project.folder / "kernels/scale.py").unlink()
    cpu_project.scons("-j2")
    assert list(manifest(cpu_project)["backends"]) == ["torch", "tvm_ffi"]


@pytest.mark.parametrize(
    ("setting", "message", "remedy"),
    [
        (
            "BACKENDS=ctypes",
            "unknown backend 'ctypes'",
            "the valid ones are auto, tvm_ffi, cython, nvrtc, torch, jax",
        ),
        (
            "BACKENDS=nvrtc",
            "no backend of ['nvrtc'] can call target 'llvm'",
            "add one of tvm_ffi, cython, torch, jax to backends, or remove 'llvm' from targets",
        ),
    ],
)
def test_unsuitable_backends_are_refused(project: Project, setting: str, message: str, remedy: str) -> None:
    run = project.scons("-j2", setting, ok=False)
    assert run.status == 2 and message in run.output and remedy in run.output
    assert not (project.folder / "build/demo").exists()


def test_decorator_with_an_unknown_backend(cpu_project: Project) -> None:
    cpu_project.replace("kernels/add_one.py", '@kernel(outputs=["y"])', '@kernel(outputs=["y"], backends=["ctypes"])')
    run = cpu_project.scons(ok=False)
    assert "kernels/add_one.py" in run.output and "add_one" in run.output
    assert "unknown backend 'ctypes'" in run.output and "the valid ones are tvm_ffi, cython" in run.output


def test_backend_whose_build_package_is_missing(cpu_project: Project) -> None:
    """Cython is hidden from scons by a finder; the message has the line that installs it."""
    hidden = "import sys\nclass Hidden:\n    def find_spec(self, name, path=None, target=None):\n"
    hidden += "        if name == 'Cython':\n            raise ModuleNotFoundError(name)\n"
    cpu_project.write("hidden/sitecustomize.py", hidden + "sys.meta_path.insert(0, Hidden())\n")
    paths = {"PYTHONPATH": f"{cpu_project.folder / 'hidden'}:{SITE_SCONS}"}
    for more in ((), ("-k",)):
        run = cpu_project.scons("BACKENDS=tvm_ffi,cython", *more, env=paths, ok=False)
        assert run.status == 2 and not run.stages
        said = "the backend cython needs cython where kernels are built"
        assert run.output.count(said) == 1, "once, for both kernels"
        assert "pip install 'cython>=3.1'" in run.output
    assert cpu_project.scons("-j2", env=paths).labels["PACKAGE"] == 1


@pytest.mark.parametrize(
    ("backend", "module", "line"),
    [
        ("tvm_ffi", "tvm_ffi", "pip install 'apache-tvm-ffi>=0.1.13,<0.2'"),
        ("cython", "tvm_ffi", "pip install 'apache-tvm-ffi>=0.1.13,<0.2'"),
        ("torch", "torch", "pip install 'torch>=2.4'"),
        ("jax", "jax_tvm_ffi", "pip install 'jax-tvm-ffi"),
    ],
)
def test_backend_whose_package_is_missing_where_it_runs(
    cpu_project: Project, backend: str, module: str, line: str
) -> None:
    cpu_project.built("-j2", ALL)
    code = f"""
        import sys
        class Hidden:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == {module!r}:
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Hidden())
        import demo
        try:
            demo.backends.{backend}.scale
        except ImportError as error:
            print(error)
    """
    printed = cpu_project.python(code)
    assert printed.startswith(f"kernel 'scale' of 'demo' needs {module}, which is not installed"), printed
    assert f"  remedy: {line}" in printed


def test_an_altered_file_of_a_backend_is_not_loaded(cpu_project: Project) -> None:
    cpu_project.built("-j2", ALL)
    for name in ("backends/torch/_scale.py", "_runtime/torch_kernel.py"):
        path = cpu_project.folder / "build/demo" / name
        text = path.read_text()
        path.write_text(text + "\n")
        code = "import demo\ntry:\n    demo.backends.torch.scale\nexcept ImportError as error:\n    print(error)"
        assert f"{name}: was altered" in cpu_project.python(code)
        cpu_project.scons("-j2", ALL)
        assert path.read_text() == text, "the next build restores it"
        path.unlink()
        cpu_project.scons("-j2", ALL)
        assert path.read_text() == text


# Of PyTorch and JAX only what stubs name and programs call: all of them would take 15 seconds.
TYPES = """\
[mypy]
[mypy-torch.*,jax.*,jaxlib.*,jax_tvm_ffi.*,numpy.*]
follow_imports = skip
[mypy-torch,torch._tensor,torch._C,jax,jax._src.basearray]
follow_imports = silent
"""


def test_stubs_of_all_backends_are_valid(cpu_project: Project) -> None:
    cpu_project.built("-j2", ALL)
    use = """
        import demo
        import torch
        from demo.backends import cython, jax, torch as of_torch, tvm_ffi
        x = torch.ones(3)
        made: torch.Tensor = of_torch.scale(x)
        cython.scale(x, x, stream=None)
        tvm_ffi.scale(x, x)
        demo.scale(x)
        of_torch.scale("x")
    """
    path = cpu_project.write("use.py", use)
    cpu_project.write("types.ini", TYPES)
    code = f"""
        import os, subprocess, sys
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file=types.ini", "--cache-dir", os.devnull]
        command.append({str(path)!r})
        done = subprocess.run(command, env=os.environ | {{"MYPYPATH": "build"}}, capture_output=True, text=True)
        print(done.stdout)
    """
    printed = cpu_project.python(code)
    errors = [line for line in printed.splitlines() if ": error:" in line]
    assert len(errors) == 1 and "use.py:10" in errors[0], printed


def test_commands_of_an_extension_can_be_repeated_by_hand(cpu_project: Project) -> None:
    (cpu_project.folder / "kernels/add_one.py").unlink()
    cpu_project.scons("-j2", CYTHON, f"HOST_COMPILER={shutil.which('cc')}")
    folder = cpu_project.folder / "build/kernels/demo/scale/backends/cython"
    made = (folder / "_scale.abi3.so").read_bytes()
    (folder / "_scale.abi3.so").unlink()
    code = f"""
        import os, subprocess, sys
        path = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]
        env = os.environ | {{"PYTHONPATH": {str(SITE_SCONS)!r}, "PATH": path}}
        subprocess.run(["sh", "compile.sh"], cwd={str(folder)!r}, env=env, check=True)
    """
    cpu_project.python(code)
    assert (folder / "_scale.abi3.so").read_bytes() == made


def test_extensions_are_equal_in_other_folders(cpu_project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    # The compiler of other projects would give a copy of what it has made in another folder.
    compiler = f"HOST_COMPILER={shutil.which('cc')}"
    (cpu_project.folder / "kernels/scale.py").unlink()
    cpu_project.scons("-j2", CYTHON, compiler, "CACHE_DIR=")
    other = Project(tmp_path_factory.mktemp("a longer name with blanks"))
    for name in ("SConstruct", "pyproject.toml", "kernels/add_one.py"):
        other.write(name, (cpu_project.folder / name).read_text())
    other.scons("-j1", CYTHON, compiler, "CACHE_DIR=")
    assert other.files("build/demo") == cpu_project.files("build/demo")


def test_python_of_the_tests_has_the_extensions_headers() -> None:
    """Without Python.h the tests of the cython backend would all fail in the same way; this one says why."""
    import sysconfig

    assert Path(sysconfig.get_path("include"), "Python.h").is_file(), f"install the headers of Python {sys.version}"
