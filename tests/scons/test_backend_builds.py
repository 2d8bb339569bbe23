"""Builds with several backends: what is built again, what the package offers, and what is refused.

What each backend does when it is called is in ``tests/contracts``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.project import SCONSTRUCT, SITE_SCONS, Project


def images(project: Project) -> dict[str, bytes]:
    """The libraries and device images of the package."""
    return project.files("build/demo/_lib", "build/demo/_images")


def test_choosing_another_backend_runs_no_lowering_and_no_compiler(project: Project) -> None:
    project.built("-j2")
    libraries = images(project)
    both = "BACKENDS=tvm_ffi,torch,jax"
    assert project.scons("-j2", both).labels == {"PACKAGE": 1, "WRAP": 2}
    assert images(project) == libraries
    assert list(project.manifest["backends"]) == ["tvm_ffi", "torch", "jax"]
    assert project.scons("-j2", both).stages == []
    assert project.scons("-j2").labels == {"PACKAGE": 1}
    for name in ("backends/torch", "_runtime/torch_kernel.py", "jax.py", "jax.pyi"):
        assert not (project.folder / "build/demo" / name).exists()


def test_images_in_files_are_made_by_no_further_compilation(project: Project) -> None:
    project.built("-j2")
    run = project.scons("-j2", "BACKENDS=tvm_ffi,cuda_core")
    assert run.labels == {"CC": 2, "LINK": 2, "PACKAGE": 1, "WRAP": 4}, "the libraries are linked without their images"
    cubin = "scale/dtype-float16/cuda/sm_80.cubin"
    image = (project.folder / "build/demo/_images" / cubin).read_bytes()
    assert image == (project.folder / "build/kernels/demo" / cubin).read_bytes()
    assert image not in (project.folder / "build/demo/_lib/scale.so").read_bytes(), "device code is there once"
    assert project.scons("-j2", "BACKENDS=tvm_ffi,cuda_core").stages == []


def test_the_default_backend_is_at_the_top_and_all_are_below_backends(cpu_project: Project) -> None:
    cpu_project.replace("kernels/add_one.py", '@kernel(outputs=["y"])', '@kernel(outputs=["y"], backends=["torch"])')
    cpu_project.scons("-j2", "BACKENDS=torch,tvm_ffi")
    kernels = cpu_project.manifest["kernels"]
    assert (kernels["scale"]["backends"], kernels["add_one"]["backends"]) == (["torch", "tvm_ffi"], ["torch"])
    code = """
        import numpy as np, torch
        import demo
        from demo.backends import tvm_ffi
        x = torch.ones(3)
        print(demo.scale is demo.backends.torch.scale, sorted(dir(demo.backends)), demo.backends.__all__)
        for backend in (demo, demo.backends.torch, tvm_ffi):
            print(backend.scale(x).tolist(), dir(backend)[:2])
        demo.backends.tvm_ffi.preload()
        print(demo.add_one(torch.zeros(1, 4)).tolist())
        try:
            tvm_ffi.add_one
        except AttributeError as error:
            print(error)
    """
    assert cpu_project.python(code).splitlines() == [
        "True ['torch', 'tvm_ffi'] ['torch', 'tvm_ffi']",
        "[2.0, 2.0, 2.0] ['add_one', 'backends']",
        "[2.0, 2.0, 2.0] ['add_one', 'preload']",
        "[2.0, 2.0, 2.0] ['preload', 'scale']",
        "[[1.0, 1.0, 1.0, 1.0]]",
        "module 'demo.backends.tvm_ffi' has no kernel 'add_one'; it has scale",
    ]


NEWER = """\
import importlib.metadata as m
known = m.version
m.version = lambda name: "99" if name == "cython" else known(name)
"""


def test_another_cython_compiles_the_extensions_again(cpu_project: Project) -> None:
    """Also those of kernels that nothing else has changed of, which have no nodes otherwise."""
    (cpu_project.folder / "kernels/scale.py").unlink()
    cpu_project.built("-j2", "BACKENDS=tvm_ffi,cython")
    assert cpu_project.scons("-j2", "BACKENDS=tvm_ffi,cython").stages == []
    cpu_project.write("SConstruct", NEWER + SCONSTRUCT)
    assert cpu_project.scons("-j2", "BACKENDS=tvm_ffi,cython").labels["EXT"] == 1


HIDDEN = """\
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "Cython":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
"""


def test_a_backend_whose_build_package_is_missing_is_an_error_once(cpu_project: Project) -> None:
    """Cython is hidden from scons by a finder; the message has the line that installs it."""
    cpu_project.write("SConstruct", HIDDEN + SCONSTRUCT)
    run = cpu_project.scons("BACKENDS=tvm_ffi,cython", "-k", ok=False)
    assert run.status == 2 and not run.stages
    said = "the backend cython needs cython where kernels are built"
    assert run.output.count(said) == 1, "once, for both kernels"
    assert "pip install 'cython>=3.1'" in run.output
    assert cpu_project.scons("-j2").labels["PACKAGE"] == 1


def test_the_script_of_an_extension_makes_the_same_in_another_folder(cpu_project, tmp_path_factory):
    # The compiler of other projects would give a copy of what it has made in another folder.
    cpu_project.write(
        "pyproject.toml", f'[tool.kernelwright]\ntargets = ["llvm"]\nhost_compiler = "{shutil.which("cc")}"\n'
    )
    module = "build/kernels/demo/add_one/backends/cython/_add_one.abi3.so"
    run = cpu_project.scons("-j2", "BACKENDS=cython", "CACHE_DIR=", module)
    assert run.labels["EXT"] == 1 and "LAUNCHER" not in run.labels
    other = cpu_project.copied(tmp_path_factory.mktemp("a longer name with blanks") / "copy").folder / module
    made = other.read_bytes()
    assert str(cpu_project.folder) not in (other.parent / "compile.sh").read_text()
    other.unlink()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PYTHONPATH": str(SITE_SCONS), "PATH": path}
    subprocess.run(["sh", "compile.sh"], cwd=other.parent, env=env, check=True)
    assert other.read_bytes() == made
