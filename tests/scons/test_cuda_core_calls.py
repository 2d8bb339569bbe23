"""A package of the backend cuda_core as scons builds it, called with the stand-in driver, which gets real images."""

from __future__ import annotations

import re

import pytest
from support.project import Project
from support.standin_calls import call, launches, make_standin

SETTINGS = ("TARGETS=cuda", "ARCHS=sm_80,compute_80", "BACKENDS=cuda_core")

CALL = """
x = FakeTensor((100,), device=(2, 0))
try:
    y = demo.scale(x)
    print(y.shape, demo.scale(x, x), demo.scale.supported("cuda:1"))
    demo.preload("cuda:1")
    from demo.backends import nvrtc
    assert nvrtc is demo, "by the name that it has in TileLang"
except (RuntimeError, ImportError) as error:
    print(type(error).__name__, error, sep=": ")
"""


@pytest.fixture
def built(project: Project) -> Project:
    project.built("-j2", *SETTINGS)
    make_standin(project)
    return project


def calls(project: Project, **machine: object) -> tuple[str, list[str]]:
    return call(project, CALL, cuda_core=True, **machine)


def loads(log: list[str]) -> list[str]:
    return [" ".join(line.split()[1:3]) for line in log if line.startswith("load")]


def test_kernels_are_launched_from_the_images_of_the_package(built: Project) -> None:
    for settings in ((), ("SPLIT=arch",)):
        if settings:
            built.scons("-j2", *SETTINGS, *settings)
        printed, log = calls(built)
        assert printed == "(100,) None True", log
        assert [line.partition(" ")[0] for line in launches(log)] == ["cubin"] * 2
        assert sum(line.startswith("launch scale_kernel cubin sm_80 ") for line in log) >= 1
        assert set(loads(log)) == {"cubin sm_80"}
        assert set(loads(calls(built, capability=120)[1])) == {"ptx compute_80"}


def test_a_module_says_what_its_images_need_of_a_driver(built: Project) -> None:
    module = built.folder / "build/demo/backends/cuda_core/_scale.py"
    compiler = built.manifest["tools"]["nvcc"]["version"]
    major, minor = map(int, compiler.split(".")[:2])
    for mode, driver in (("speed", 0), ("size", 12040)):
        built.scons("-j2", *SETTINGS, f"COMPRESS={mode}")
        found = re.findall(r"^(DRIVER|TOOLKIT) = (\d+)$", module.read_text(), re.M)
        assert sorted(found) == [("DRIVER", str(driver)), ("TOOLKIT", str(1000 * major + 10 * minor))]
    assert f"needs a driver for CUDA {major}.0 or newer" in calls(built, version=12030)[0]


def test_what_is_wrong_with_a_package_is_said(built: Project) -> None:
    said = "RuntimeError: kernel 'scale': cuda:0 is an sm_75, and variant dtype-"
    assert said in calls(built, capability=75)[0]
    for name, kind in (
        ("_images/scale/dtype-float32/cuda/sm_80.cubin", "Runtime"),
        ("backends/cuda_core/_scale.py", "Damage"),
    ):
        path = built.folder / "build/demo" / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"?")
        printed, log = calls(built)
        assert printed.startswith(f"{kind}Error: ") and f"{path.name}: was altered" in printed and loads(log) == []
        path.write_bytes(content)
