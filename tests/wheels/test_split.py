"""Wheels of device code: their content; installed with and without each other; damaged, of other versions; refused."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import environments
from support.forked import starter
from support.project import CALLING, ROOT, SITE_SCONS, Project, once
from test_wheel import (
    build_environment,
    committed_copy,
    copy_of,
    elsewhere,
    git,
    hook,
    kernelwright,
    made_for,
    pip,
)

ARCHS = ("sm_80", "sm_90a", "compute_80")
SPLIT = 'split = "arch"\n'
ENDING = {"sm_80": "cubin", "sm_90a": "cubin", "compute_80": "ptx"}

CALL = """
import sys
before = "importlib.metadata" in sys.modules  # a .pth file of the environment may have imported it
sys.modules["torch"] = None  # tvm-ffi would import it, which takes a second
import demo
assert "importlib.metadata" not in sys.modules or before
import numpy as np
x = np.arange(8, dtype="float32").reshape(2, 4)
np.testing.assert_array_equal(np.from_dlpack(demo.add_one(x)), x + 1)
assert "kernelwright" not in sys.modules and "tvm" not in sys.modules
sys.path += {tests!r}
import tvm_ffi
from launcher_build import FakeTensor
x = tvm_ffi.from_dlpack(FakeTensor((8,), (2, 32, 1), device=(2, 0)))
try:
    demo.scale(x, x)
except RuntimeError as error:
    print(error)
print("supported:", demo.scale.supported("cuda"))
"""


def committed_split(project: Project, folder: Path) -> Project:
    """A committed copy with another setting; what was built for the wheel that is not split is there."""
    return committed_copy(project, folder, 'package = "demo"\n', f'package = "demo"\n{SPLIT}')


@pytest.fixture(scope="session")
def split(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A committed project whose wheels were built, one for each arch; tests must not change it."""

    def make(folder: Path) -> None:
        committed_split(made_for(tmp_path_factory), folder / "project").scons("-j2", "wheel")

    return Project(once(tmp_path_factory, "split-wheels-of-demo", make) / "project")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libcuda."""
    library = tmp_path_factory.mktemp("driver") / "libstandin.so"
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", str(ROOT / "tests/standin/cuda.c")]
    subprocess.run([*command, "-o", str(library)], check=True)
    return library


def wheels_of(project: Project) -> dict[str, Path]:
    """The wheels in dist by arch; that of the package has the key ``main``."""
    found = {}
    for path in (project.folder / "dist").glob("*.whl"):
        match = re.fullmatch(r"demo_kernels(?:_(\w+))?-[^-]+-py3-none-(\w+)\.whl", path.name)
        assert match, path
        found[match[1] or "main"] = path
    return found


def inside(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def unpack(folder: Path, *wheels: Path) -> Path:
    """What an installation of the wheels into a folder gives."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


class Machine:
    """A machine with the stand-in driver, on which packages of some folders are called."""

    def __init__(self, driver: Path, log: Path) -> None:
        self._driver = driver
        self._log = log

    def call(self, *folders: Path | str, capability: int = 90, python: Path | None = None, **more: str) -> str:
        """What a call on a GPU prints: nothing but the last line, if it went well.

        Without an interpreter it runs in a fork of a process that has imported NumPy and tvm-ffi.
        """
        variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | more
        variables |= {"PYTHONPATH": ":".join(map(str, folders)), "KERNELWRIGHT_CUDA_DRIVER": str(self._driver)}
        variables |= {"STANDIN_LOG": str(self._log), "STANDIN_CAPABILITY": str(capability)}
        code = CALL.format(tests=[str(ROOT / "tests/unit"), str(SITE_SCONS)])
        if python is None:
            done = starter(*CALLING).run(code, env=variables, path=folders, merged=True)
        else:
            output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            done = subprocess.run([python, "-c", code], env=variables, text=True, timeout=300, **output)
        assert done.returncode == 0 and "Traceback" not in done.stdout, done.stdout
        return done.stdout

    @property
    def loads(self) -> list[str]:
        """Kind and arch of the images that were loaded, and their bytes."""
        if not self._log.exists():
            return []
        lines = [line.split() for line in self._log.read_text().splitlines()]
        return [" ".join(line[1:4]) for line in lines if line[0] == "load"]


@pytest.fixture
def machine(driver: Path, tmp_path: Path) -> Machine:
    return Machine(driver, tmp_path / "log")


# ---- what is in them


def test_each_arch_has_a_wheel_with_its_code_and_the_package_has_none(split: Project) -> None:
    wheels = wheels_of(split)
    assert set(wheels) == {"main", *ARCHS}
    work = split.folder / "build/kernels/demo"
    seen: list[str] = []
    for arch in ARCHS:
        files = inside(wheels[arch])
        code = {name: content for name, content in files.items() if name.endswith((".cubin", ".ptx"))}
        variants = ("add_one/default", "scale/dtype-float16", "scale/dtype-float32")
        names = [f"{variant}/cuda/{arch}.{ENDING[arch]}" for variant in variants]
        assert {f"demo_{arch}/{name}": (work / name).read_bytes() for name in names} == code
        seen += [hashlib.sha256(content).hexdigest() for content in code.values()]
        rest = {name.rpartition("/")[2] for name in files.keys() - code.keys()}
        assert rest == {
            "__init__.py",
            "manifest.json",
            "METADATA",
            "WHEEL",
            "RECORD",
            "entry_points.txt",
            "LICENSE.txt",
        }
    assert len(set(seen)) == len(seen), "no device code is there twice"
    main = inside(wheels["main"])
    whole = [content for name, content in main.items() if name.endswith(".so")]
    assert len(whole) == 3, "two kernels and their launcher"
    images = [path.read_bytes() for path in work.rglob("*.cubin")] + [
        path.read_bytes() for path in work.rglob("compute_80.ptx")
    ]
    assert len(images) == 9 and not any(image in library for image in images for library in whole)


def test_extras_pins_entry_points_and_tags(split: Project) -> None:
    wheels = wheels_of(split)
    main = inside(wheels["main"])["demo_kernels-1.2rc1.dist-info/METADATA"].decode().splitlines()
    for arch in ARCHS:
        name = arch.replace("_", "-")
        assert f"Provides-Extra: {name}" in main
        for extra in (name, "cuda"):
            assert f'Requires-Dist: Demo-Kernels-{name}==1.2rc1; extra == "{extra}"' in main
        info = f"demo_kernels_{arch}-1.2rc1.dist-info"
        files = inside(wheels[arch])
        metadata = files[f"{info}/METADATA"].decode().splitlines()
        for line in (f"Name: Demo-Kernels-{name}", "Version: 1.2rc1", "License-Expression: MIT"):
            assert line in metadata
        assert [line for line in metadata if line.startswith("Requires-Dist")] == [
            "Requires-Dist: Demo-Kernels==1.2rc1"
        ]
        points = files[f"{info}/entry_points.txt"].decode()
        assert points == f"[kernelwright.device_code]\ndemo_{arch} = demo_{arch}\n"
        described = files[f"{info}/WHEEL"].decode()
        assert "Root-Is-Purelib: true\nTag: py3-none-any\n" in described
        assert wheels[arch].name == f"demo_kernels_{arch}-1.2rc1-py3-none-any.whl"
    assert re.fullmatch(r"demo_kernels-1\.2rc1-py3-none-manylinux_2_\d+_x86_64\.whl", wheels["main"].name)
    scripts = inside(wheels["main"])["demo_kernels-1.2rc1.dist-info/entry_points.txt"]
    assert scripts == b"[console_scripts]\ndemo-add = demo:main\n"


def test_a_version_is_normal_wherever_it_is_named(tmp_path: Path) -> None:
    from kernelwright.wheel.project import provider_project, read_project

    document = {"project": {"name": "Demo.Kernels", "version": "1.0-RC.1", "license": "MIT", "scripts": {"x": "y:z"}}}
    main = read_project(tmp_path, document, providers=["sm_100f"])
    assert b"\nVersion: 1.0rc1\n" in main.metadata
    assert b'\nRequires-Dist: Demo.Kernels-sm-100f==1.0rc1; extra == "sm-100f"\n' in main.metadata
    provider = provider_project(tmp_path, document, "sm_100f", "demo_sm_100f")
    assert (provider.name, provider.distribution) == ("demo_kernels_sm_100f", "Demo.Kernels-sm-100f")
    assert b"\nRequires-Dist: Demo.Kernels==1.0rc1\n" in provider.metadata
    assert provider.entry_points == "[kernelwright.device_code]\ndemo_sm_100f = demo_sm_100f\n"


@pytest.fixture(scope="module")
def unsplit(split: Project, tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, dict[str, int]]:
    """A copy that was built again without splitting, and how many actions of each kind ran for that."""
    project = copy_of(split, tmp_path_factory.mktemp("unsplit") / "copy")
    shutil.rmtree(project.folder / "dist")
    return project, project.scons("wheel", "SPLIT=none", "CACHE_DIR=").labels


def test_the_tag_is_that_of_a_package_which_is_not_split(
    split: Project, unsplit: tuple[Project, dict[str, int]]
) -> None:
    names = [path.name for path in (unsplit[0].folder / "dist").iterdir()]
    assert names == [wheels_of(split)["main"].name]


def test_splitting_lowers_and_compiles_no_device_code_again(
    split: Project, unsplit: tuple[Project, dict[str, int]], tmp_path: Path
) -> None:
    project, whole = copy_of(unsplit[0], tmp_path / "copy"), unsplit[1]
    assert whole == {"CC": 2, "LINK": 2, "PACKAGE": 1, "WHEEL": 1, "WRAP": 2}
    assert not (project.folder / "build/demo/_runtime/provider.py").exists()
    assert project.scons("wheel", "CACHE_DIR=").labels == whole
    assert project.scons("wheel").stages == []
    assert inside(wheels_of(project)["main"]) == inside(wheels_of(split)["main"])


def test_equal_sources_give_equal_wheels(
    split: Project, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = committed_split(elsewhere(tmp_path_factory), tmp_path / "another path")
    other.scons("-j1", "wheel", "CACHE_DIR=", env={"TZ": "Asia/Tokyo", "HOME": str(tmp_path)})
    mine, theirs = wheels_of(split), wheels_of(other)
    assert {arch: path.name for arch, path in mine.items()} == {arch: path.name for arch, path in theirs.items()}
    assert all(mine[arch].read_bytes() == theirs[arch].read_bytes() for arch in mine)


def test_one_that_cannot_be_published_keeps_all_others_back(split: Project, tmp_path: Path) -> None:
    project = copy_of(split, tmp_path / "copy")
    project.write("VERSION", "1.3\n")
    blocked = project.folder / "dist/demo_kernels_sm_90a-1.3-py3-none-any.whl"
    project.write(f"dist/{blocked.name}/of somebody.txt", "stays")
    assert f"the wheels cannot be put into {blocked}: Is a directory" in project.scons("wheel", ok=False).output
    assert [path for path in (project.folder / "dist").glob("*1.3*") if path != blocked] == []
    assert not [path for path in (project.folder / "dist").iterdir() if path.name.startswith(".")]
    shutil.rmtree(blocked)
    project.scons("wheel")
    assert len(list((project.folder / "dist").glob("*1.3*"))) == 4


# ---- installed


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that has what packages of kernels need, and no index to install anything from."""
    folder = tmp_path_factory.mktemp("home")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "needed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return folder


@pytest.fixture
def fresh(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home, tmp_path / "home", symlinks=True))


def install(home: Path, project: Project, *what: str) -> None:
    environments.install(home, "--no-index", "--find-links", project.folder / "dist", "--pre", *what)


def installed(home: Path) -> set[str]:
    return {path.name for path in home.glob("lib/python*/site-packages/demo*") if not path.name.endswith("-info")}


def test_without_device_code_the_cpu_works_and_the_gpu_names_the_wheel_to_install(
    split: Project, fresh: Path, machine: Machine
) -> None:
    install(fresh, split, "demo-kernels")
    assert installed(fresh) == {"demo"}
    output = machine.call(python=fresh / "bin/python")
    assert output == (
        "kernel 'scale': cuda:0 is an sm_90, and the device code for it is not installed: sm_90a or compute_80 "
        "(installed: none)\n  remedy: pip install 'Demo-Kernels-sm-90a==1.2rc1'\nsupported: False\n"
    )
    assert machine.loads == []


def test_an_extra_installs_the_device_code_of_an_arch(split: Project, fresh: Path, machine: Machine) -> None:
    install(fresh, split, "demo-kernels[sm-80]")
    assert installed(fresh) == {"demo", "demo_sm_80"}
    python = fresh / "bin/python"
    size = len(inside(wheels_of(split)["sm_80"])["demo_sm_80/scale/dtype-float32/cuda/sm_80.cubin"])
    assert machine.call(python=python, capability=86) == "supported: True\n"
    assert machine.loads == [f"cubin sm_80 {size}"]
    output = machine.call(python=python, capability=90)
    assert "(installed: sm_80)\n  remedy: pip install 'Demo-Kernels-sm-90a==1.2rc1'\n" in output
    assert machine.loads == [f"cubin sm_80 {size}"]


def test_the_extra_for_all_archs_installs_all_and_the_best_is_used(
    split: Project, fresh: Path, machine: Machine
) -> None:
    install(fresh, split, "demo-kernels[cuda]")
    assert installed(fresh) == {"demo", *(f"demo_{arch}" for arch in ARCHS)}
    for capability in (89, 90, 120):
        assert machine.call(python=fresh / "bin/python", capability=capability) == "supported: True\n"
    assert [load.rpartition(" ")[0] for load in machine.loads] == [
        "cubin sm_80",
        "cubin sm_90",
        "ptx compute_80",
    ]
    assert "built for sm_80, sm_90a, compute_80" in machine.call(python=fresh / "bin/python", capability=70)


def test_device_code_in_another_folder_is_found_by_its_entry_point(
    split: Project, fresh: Path, machine: Machine, tmp_path: Path
) -> None:
    install(fresh, split, "demo-kernels")
    other = tmp_path / "other place"
    install(fresh, split, "--no-deps", "--target", str(other), "demo-kernels-sm-90a")
    assert installed(fresh) == {"demo"}
    assert machine.call(other, python=fresh / "bin/python") == "supported: True\n"
    assert [load.rpartition(" ")[0] for load in machine.loads] == ["cubin sm_90"]


def test_the_user_site_is_another_folder(split: Project, machine: Machine, tmp_path: Path) -> None:
    base = subprocess.run(
        [sys.executable, "-c", "import site; print(site.getusersitepackages())"],
        env={**os.environ, "PYTHONUSERBASE": str(tmp_path / "user")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    wheels = wheels_of(split)
    unpack(Path(base), wheels["sm_90a"])
    main = unpack(tmp_path / "main", wheels["main"])
    needed = [path for path in sys.path if path.endswith("site-packages")]
    # An environment hides the user's site, so this is the Python that it was made from.
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    assert machine.call(main, *needed, python=python, PYTHONUSERBASE=str(tmp_path / "user")) == "supported: True\n"
    assert [load.rpartition(" ")[0] for load in machine.loads] == ["cubin sm_90"]


@pytest.fixture(scope="session")
def newer(split: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The next version of the project, with another kernel in it."""
    project = copy_of(split, tmp_path_factory.mktemp("newer") / "copy")
    shutil.rmtree(project.folder / "dist")
    project.write("VERSION", "1.3\n")
    git(project.folder, "commit", "-qam", "next")
    project.scons("wheel")
    return project


@pytest.mark.parametrize("beside", [True, False])
def test_device_code_of_another_version_is_an_error(
    split: Project, newer: Project, machine: Machine, tmp_path: Path, beside: bool
) -> None:
    main = unpack(tmp_path / "main", wheels_of(split)["main"])
    other = unpack(main if beside else tmp_path / "other", wheels_of(newer)["sm_90a"])
    assert machine.call(main, other) == (
        "kernel 'scale': Demo-Kernels-sm-90a is installed in version 1.3, and Demo-Kernels in 1.2rc1\n"
        "  remedy: pip install 'Demo-Kernels-sm-90a==1.2rc1'\nsupported: False\n"
    )
    assert machine.loads == []


def test_pip_does_not_install_versions_that_do_not_belong_together(split: Project, newer: Project, fresh: Path) -> None:
    wheels = [str(wheels_of(split)["main"]), str(wheels_of(newer)["sm_90a"])]
    with pytest.raises(AssertionError, match=r"these package versions have conflicting dependencies"):
        install(fresh, split, *wheels)


DAMAGED = """
import sys, pathlib
sys.modules["torch"] = None
sys.path += {tests!r}
import demo, tvm_ffi
from launcher_build import FakeTensor
x = tvm_ffi.from_dlpack(FakeTensor((8,), (2, 32, 1), device=(2, 0)))
for name, damage in {damages!r}:
    path = pathlib.Path({folder!r}, name)
    whole = path.read_bytes()
    path.unlink() if damage is None else path.write_bytes(damage)
    try:
        demo.scale(x, x)
    except RuntimeError as error:
        print(error)
    path.write_bytes(whole)
demo.scale(x, x)
"""


def test_damaged_device_code_is_not_loaded(split: Project, driver: Path, tmp_path: Path) -> None:
    wheels = wheels_of(split)
    folder = unpack(tmp_path / "all", wheels["main"], wheels["sm_90a"], wheels["compute_80"]) / "demo_sm_90a"
    image = "scale/dtype-float32/cuda/sm_90a.cubin"
    cases = {
        (image, b"\x7fELF\x02\x01"): "was altered, or belongs to another build: its content is not what",
        (image, b""): "was altered",
        (image, None): "cannot be read (No such file or directory)",
        ("manifest.json", b"{}"): "has another schema than 3",
        ("manifest.json", b"no JSON"): "is not valid JSON",
    }
    tests = [str(ROOT / "tests/unit"), str(SITE_SCONS)]
    code = DAMAGED.format(tests=tests, damages=list(cases), folder=str(folder))
    variables = os.environ | {"KERNELWRIGHT_CUDA_DRIVER": str(driver)}
    variables |= {"STANDIN_LOG": str(tmp_path / "log"), "STANDIN_CAPABILITY": "90"}
    run = starter(*CALLING).run(code, env=variables, path=[folder.parent])
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    remedy = "  remedy: pip install --force-reinstall --no-deps 'Demo-Kernels-sm-90a==1.2rc1'"
    for (name, _), message in cases.items():
        assert lines[0].startswith(f"kernel 'scale': {folder / name}: {message}") and lines[1] == remedy, lines
        lines = lines[2:]
    assert not lines and (tmp_path / "log").read_text().count("load ") == 1, "only what is whole is loaded"


def test_device_code_of_another_package_is_not_loaded(split: Project, machine: Machine, tmp_path: Path) -> None:
    wheels = wheels_of(split)
    folder = unpack(tmp_path / "all", wheels["main"], wheels["sm_80"])
    (folder / "demo_sm_80").rename(folder / "demo_sm_90a")
    assert "demo_sm_90a is not the device code of demo for sm_90a\n  remedy: " in machine.call(folder)


def test_an_import_and_calls_on_the_cpu_load_only_what_they_need(split: Project, tmp_path: Path) -> None:
    wheels = wheels_of(split)
    folder = unpack(tmp_path / "all", wheels["main"], wheels["sm_90a"])
    code = """
import sys
before = set(sys.modules)
import demo
after = {name.partition(".")[0] for name in set(sys.modules) - before} - {"demo"}
assert not after - set(sys.stdlib_module_names), after
assert "demo._runtime.provider" not in sys.modules and not {"hashlib", "json", "importlib.metadata"} & after
"""
    environment = {"PYTHONPATH": str(folder), "PATH": ""}
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env=environment)


# ---- in the build folder


def test_the_build_folder_is_used_without_installing_anything(split: Project, machine: Machine) -> None:
    assert machine.call(split.folder / "build") == "supported: True\n"
    assert [load.rpartition(" ")[0] for load in machine.loads] == ["cubin sm_90"]


def test_device_code_that_the_build_lacks_is_an_error(split: Project, machine: Machine, tmp_path: Path) -> None:
    shutil.copytree(split.folder / "build/demo", tmp_path / "demo")
    output = machine.call(tmp_path)
    assert "cannot be read (No such file or directory)\n  remedy: scons\n" in output


LIBRARY = """
import sys
sys.modules["torch"] = None
sys.path += {tests!r}
import tvm_ffi
from launcher_build import FakeTensor
module = tvm_ffi.load_module({library!r})
x = tvm_ffi.from_dlpack(FakeTensor((8,), (2, 32, 1), device=(2, 0)))
for provider in {providers}:
    if provider:
        module["kw_set_provider"](tvm_ffi.convert(provider))
    try:
        module["scale"](x, x)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""


def library_call(driver: Path, log: Path, library: Path, *providers: str) -> str:
    """What calls of a library print whose device code is found by some functions; None: by none."""
    code = LIBRARY.format(
        tests=[str(ROOT / "tests/unit"), str(SITE_SCONS)], library=str(library), providers=f"[{', '.join(providers)}]"
    )
    variables = os.environ | {"KERNELWRIGHT_CUDA_DRIVER": str(driver), "STANDIN_LOG": str(log)}
    run = starter(*CALLING).run(code, env=variables)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_library_that_is_loaded_without_its_package_finds_what_was_built(
    split: Project, driver: Path, tmp_path: Path
) -> None:
    library = split.folder / "build/kernels/demo/scale/scale.so"
    assert library_call(driver, tmp_path / "log", library, "None") == ""
    assert "load cubin sm_80 " in (tmp_path / "log").read_text()
    copy = Path(shutil.copyfile(library, tmp_path / "scale.so"))
    (launcher,) = (split.folder / "build/demo/_lib").glob("libkernelwright-*")
    shutil.copy(launcher, tmp_path)
    output = library_call(driver, tmp_path / "log", copy, "None")
    assert output.startswith("kernel 'scale': its device code, ") and output.endswith("No such file or directory\n")


def test_what_a_provider_answers_is_checked(split: Project, driver: Path, tmp_path: Path) -> None:
    library = split.folder / "build/kernels/demo/scale/scale.so"
    answers = {
        "'sm_80 /x'": "its device code, /x, cannot be read: No such file or directory",
        "'sm_70 /x'": "the provider of device code returned 'sm_70 /x'",
        "'sm_8 /xyz'": "the provider of device code returned 'sm_8 /xyz'",
        "'nonsense and more'": "the provider of device code returned 'nonsense and more'",
        "'nonsense'": "the provider of device code returned 'nonsense'",
        "'nonsense, long'": "the provider of device code returned 'nonsense, long'",
        "' it is elsewhere'": "it is elsewhere",
        "7": "the provider of device code returned no text",
        "' ' + ', '.join(map(str, a))": "dtype-float32, sm_80 compute_80, 0, 80",
    }
    output = library_call(driver, tmp_path / "log", library, *(f"lambda *a: {answer}" for answer in answers))
    assert output.splitlines() == [f"kernel 'scale': {message}" for message in answers.values()]
    assert "load" not in (tmp_path / "log").read_text()


# ---- verify


def test_good_wheels_are_well_alone_and_together(split: Project) -> None:
    wheels = [str(path) for path in wheels_of(split).values()]
    done = kernelwright("verify", "--entry-points", *wheels)
    assert done.returncode == 0 and done.stdout.count(": all well\n") == 4


def test_device_code_in_the_package_that_says_it_has_none_is_named(split: Project) -> None:
    from kernelwright.wheel.device_code import arch_problems

    library = inside(wheels_of(split)["main"])["demo/_lib/scale.so"]
    cubin = (split.folder / "build/kernels/demo/scale/dtype-float32/cuda/sm_80.cubin").read_bytes()
    assert list(arch_problems("scale", {"x86-64-v3"}, library)) == []
    assert list(arch_problems("scale", {"x86-64-v3"}, library + cubin)) == [
        "kernel scale has device code for sm_80, which the manifest does not list"
    ]


def test_wheels_of_two_builds_of_one_version_do_not_fit_together(split: Project, tmp_path: Path) -> None:
    project = copy_of(split, tmp_path / "copy")
    project.replace("kernels/add_one.py", "+ 1.0", "+ 2.0")
    project.scons("-j2", "wheel")
    mine, theirs = wheels_of(split), wheels_of(project)
    done = kernelwright("verify", "--entry-points", str(mine["main"]), str(theirs["sm_90a"]))
    name = "add_one/default/cuda/sm_90a.cubin"
    assert (
        done.returncode == 1
        and f"{name} is not the one in {theirs['sm_90a'].name}: they are of different" in done.stdout
    )
    assert kernelwright("verify", "--entry-points", *map(str, theirs.values())).returncode == 0


# ---- pip and other front ends


def test_pip_gives_the_wheel_of_the_package_or_the_one_that_is_asked_for(split: Project, tmp_path: Path) -> None:
    project = copy_of(split, tmp_path / "copy")
    for more, arch in (([], "main"), (["--config-settings", "provider=sm_90a"], "sm_90a")):
        out = tmp_path / arch
        options = ["--no-build-isolation", "--no-deps", "-w", str(out)]
        pip("wheel", ".", *options, *more, env=build_environment(), cwd=project.folder)
        (found,) = out.iterdir()
        expected = wheels_of(split)[arch]
        assert found.name == expected.name and found.read_bytes() == expected.read_bytes()


def test_a_front_end_that_keeps_the_folder_gets_all_wheels(split: Project, tmp_path: Path) -> None:
    project = copy_of(split, tmp_path / "copy")
    out = tmp_path / "out"
    out.mkdir()
    done = hook(project, f"print('made', build.build_wheel({str(out)!r}, {{'jobs': '2'}}))")
    assert done.returncode == 0 and f"made {wheels_of(split)['main'].name}\n" in done.stdout
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in wheels_of(split).values()
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"provider": "sm_70"}, "provider is 'sm_70'; the archs are sm_80, sm_90a, compute_80"),
        ({"provider": "sm_80", "split": "none"}, "provider is 'sm_80'; it needs split = 'arch' and a CUDA arch"),
        ({"provider": "sm_90a", "archs": "sm_80"}, "provider is 'sm_90a'; the archs are sm_80"),
        ({"targets": "llvm"}, "split = 'arch' without the target cuda"),
        ({"split": "yes"}, "unknown split 'yes'"),
    ],
)
def test_bad_config_settings_are_plain_errors(
    split: Project, tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("prepare_metadata_for_build_wheel", "build_wheel"):
        done = hook(split, f"build.{name}({str(out)!r}, {settings!r})")
        assert done.returncode == 1 and message in done.stdout and "Traceback" not in done.stdout
    assert list(out.iterdir()) == []


def test_archs_that_only_the_build_file_knows_are_an_error_where_metadata_was_prepared(
    split: Project, tmp_path: Path
) -> None:
    project = copy_of(split, tmp_path / "copy")
    project.replace("SConstruct", 'env.Glob("kernels/*.py"))', 'env.Glob("kernels/*.py"), archs=["sm_80"])')
    out = tmp_path / "out"
    out.mkdir()
    code = f"name = build.prepare_metadata_for_build_wheel({str(out)!r})\n"
    done = hook(project, code + f"build.build_wheel({str(out)!r}, None, {str(out)!r} + '/' + name)")
    assert done.returncode == 1 and "is not what pyproject.toml says\n  remedy: set archs and split in" in done.stdout
    assert not list(out.glob("*.whl"))


# ---- bad input


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (SPLIT, 'split = "sm_80"\n', r"unknown split 'sm_80'\n  remedy: the valid ones are none, arch"),
        (SPLIT, "split = true\n", r"split is True, expected one of none, arch"),
        (
            SPLIT,
            SPLIT + 'targets = ["llvm"]\n',
            r"split = 'arch' without the target cuda\n  remedy: add the target cuda",
        ),
        (
            SPLIT,
            SPLIT + 'compress = "zip"\n',
            r"unknown compress 'zip'\n  remedy: the valid ones are none, speed, balance",
        ),
        (
            "scripts =",
            'optional-dependencies = { CUDA = ["x"] }\nscripts =',
            r"has 'CUDA', the name of an extra that split",
        ),
        (
            "scripts =",
            'optional-dependencies = ["x"]\nscripts =',
            r"optional-dependencies is \['x'\], expected a table",
        ),
    ],
)
def test_bad_settings_are_errors_and_leave_no_wheel(
    split: Project, tmp_path: Path, old: str, new: str, message: str
) -> None:
    project = copy_of(split, tmp_path / "copy")
    shutil.rmtree(project.folder / "dist")
    project.replace("pyproject.toml", old, new)
    run = project.scons("wheel", ok=False)
    assert run.status == 2 and re.search(message, run.output), run.output
    assert not (project.folder / "dist").exists()


def test_the_wheel_that_is_too_large_is_named_and_none_is_published(split: Project, tmp_path: Path) -> None:
    project = copy_of(split, tmp_path / "copy")
    shutil.rmtree(project.folder / "dist")
    sizes = {arch: path.stat().st_size for arch, path in wheels_of(split).items()}
    assert sizes["main"] > sizes["sm_90a"] > sizes["sm_80"] > 1024
    output = project.scons("wheel", "MAX_WHEEL_SIZE=20K", ok=False).output
    assert f"the wheel {wheels_of(split)['main'].name} has {sizes['main']:,} bytes, and max_wheel_size is 20K" in output
    assert not (project.folder / "dist").exists()


def test_a_wheel_of_device_code_that_is_too_large_names_the_kernels_with_the_most_of_it(split: Project) -> None:
    from kernelwright.core.errors import KernelwrightError, Where
    from kernelwright.stages.wheel import _require_size

    build, of_arch = split.folder / "build", {"sm_90a": None}
    request: Any = SimpleNamespace(limit="3K", providers=of_arch, folder=build / "demo", work=build / "kernels/demo")
    wheel = wheels_of(split)["sm_90a"]
    code = [path.stat().st_size for path in (split.folder / "build/kernels/demo/scale").rglob("sm_90a.cubin")]
    assert code
    with pytest.raises(
        KernelwrightError, match=rf"the wheel {wheel.name} has [\d,]+ bytes, and max_wheel_size is 3K"
    ) as e:
        _require_size("sm_90a", wheel, request, Where(stage="wheel"))
    assert f"the largest kernels are scale ({sum(code):,} bytes), add_one (" in str(e.value.remedy)


def test_an_arch_that_no_kernel_is_built_for_is_an_error(split: Project, tmp_path: Path) -> None:
    project = copy_of(split, tmp_path / "copy")
    shutil.rmtree(project.folder / "dist")
    for name in ("scale", "add_one"):
        project.replace(f"kernels/{name}.py", "@kernel(", '@kernel(archs=["sm_80", "compute_80"], ')
    output = project.scons("-j2", "wheel", ok=False).output
    assert "no kernel is built for sm_90a, and its wheel would be empty\n  remedy: remove it from archs" in output
    assert not (project.folder / "dist").exists()


def test_a_cpu_kernel_among_others_is_no_matter(split: Project, machine: Machine, tmp_path: Path) -> None:
    project = copy_of(split, tmp_path / "copy")
    project.replace("kernels/add_one.py", "@kernel(", '@kernel(targets=["llvm"], ')
    project.scons("-j2", "wheel")
    files = inside(wheels_of(project)["sm_80"])
    assert not [name for name in files if "add_one" in name]
    everything = unpack(tmp_path / "all", *wheels_of(project).values())
    assert machine.call(everything) == "supported: True\n"
