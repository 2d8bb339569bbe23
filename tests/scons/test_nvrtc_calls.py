"""A package of the nvrtc backend as scons builds it, called with the stand-in driver: the real images are loaded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.project import Project

UNIT = Path(__file__).parent.parent / "unit"
SETTINGS = ("TARGETS=cuda", "ARCHS=sm_80,compute_80", "BACKENDS=nvrtc")

CALL = """
import sys
sys.path.insert(0, "build")
from launcher_build import FakeTensor
import demo
x = FakeTensor((100,), device=(2, 0))
try:
    y = demo.scale(x)
    print(y.shape, demo.scale(x, x), demo.scale.supported("cuda:1"))
    demo.preload("cuda:1")
except (RuntimeError, ImportError) as error:
    print(type(error).__name__, error, sep=": ")
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(UNIT))
    from nvrtc_package import make_driver

    return make_driver(tmp_path_factory.mktemp("driver"))


def call(project: Project, driver: Path, **standin: object) -> tuple[str, list[str]]:
    """What the calls print, and what the driver was asked for."""
    log = project.folder / "standin.log"
    log.unlink(missing_ok=True)
    paths = [str(UNIT), *(path for path in sys.path if path)]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "PYTHONPATH": os.pathsep.join(paths)}
    environment |= {"STANDIN_LOG": str(log)} | {f"STANDIN_{k.upper()}": str(v) for k, v in standin.items()}
    command = [sys.executable, "-c", CALL]
    done = subprocess.run(
        command, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, log.read_text().splitlines() if log.exists() else []


def loads(log: list[str]) -> list[str]:
    return [" ".join(line.split()[1:3]) for line in log if line.startswith("load")]


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
def test_kernels_are_launched_from_the_images_of_the_package(project: Project, driver: Path, split: bool) -> None:
    project.built("-j2", *SETTINGS)
    if split:
        project.scons("-j2", *SETTINGS, "SPLIT=arch")
    printed, log = call(project, driver)
    assert printed == "(100,) None True\n", log
    launches = [line.split(" stream")[0] for line in log if line.startswith("launch")]
    assert len(launches) == 2 and launches[0].startswith("launch scale_kernel cubin sm_80")
    assert set(loads(log)) == {"cubin sm_80"}
    assert set(loads(call(project, driver, capability=120)[1])) == {"ptx compute_80"}


def test_a_module_says_what_its_images_need_of_a_driver(project: Project, driver: Path) -> None:
    module = project.folder / "build/demo/backends/nvrtc/_scale.py"

    def numbers() -> dict[str, int]:
        found = re.findall(r"^(DRIVER|TOOLKIT) = (\d+)$", module.read_text(), re.M)
        return {name: int(number) for name, number in found}

    project.built("-j2", *SETTINGS)
    project.scons("-j2", *SETTINGS, "COMPRESS=speed")
    compiler = json.loads((project.folder / "build/demo/manifest.json").read_text())["tools"]["nvcc"]["version"]
    major, minor = map(int, compiler.split(".")[:2])
    assert numbers() == {"DRIVER": 0, "TOOLKIT": 1000 * major + 10 * minor}
    project.scons("-j2", *SETTINGS, "COMPRESS=size")
    assert numbers() == {"DRIVER": 12040, "TOOLKIT": 1000 * major + 10 * minor}
    assert "needs a driver for CUDA 12.4 or newer" in call(project, driver, version=12030)[0]


def test_what_is_wrong_with_a_package_is_said(project: Project, driver: Path) -> None:
    project.built("-j2", *SETTINGS)
    assert (
        "RuntimeError: kernel 'scale': cuda:0 is an sm_75, and variant dtype-"
        in call(project, driver, capability=75)[0]
    )
    image = project.folder / "build/demo/_images/scale/dtype-float32/cuda/sm_80.cubin"
    content = image.read_bytes()
    image.write_bytes(content[:-1] + b"?")
    printed, log = call(project, driver)
    assert "RuntimeError: kernel 'scale': " in printed and "sm_80.cubin: was altered" in printed and loads(log) == []
    image.write_bytes(content)
    module = project.folder / "build/demo/backends/nvrtc/_scale.py"
    module.write_text(module.read_text() + "\n# edited\n")
    printed, log = call(project, driver)
    assert printed.startswith("DamageError: ") and "_scale.py: was altered" in printed and log == []


def test_host_code_that_is_no_data_fails_the_build_with_its_place(project: Project) -> None:
    for path in (project.folder / "kernels").iterdir():
        path.unlink()
    project.write(
        "kernels/looping.py",
        """
        from kernelwright import kernel
        from tvm import tirx
        from tvm.script import tirx as T


        @kernel
        def looping():
            n = tirx.Var("n", "int32")

            @T.prim_func(s_tir=True)
            def main(x: T.Buffer((n,), "float32")):
                for step in range(n):
                    for i in T.thread_binding(n, thread="blockIdx.x"):
                        for _ in T.thread_binding(1, thread="threadIdx.x"):
                            with T.sblock("x"):
                                k = T.axis.spatial(n, i)
                                x[k] = x[k] + T.float32(1)

            return main
        """,
    )
    run = project.scons("-j2", "-k", *SETTINGS, ok=False)
    assert run.status == 2
    assert (
        "looping/default [wrap]: the host code has a loop around what it launches: for step in range(n)" in run.output
    )
    assert "remedy: use the backend tvm_ffi" in run.output
    project.scons("-j2", *SETTINGS[:2], "BACKENDS=tvm_ffi")
