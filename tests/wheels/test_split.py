"""Wheels of device code: their content; installed with and without each other; damaged, of other versions; refused."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import environments
from support.project import Project, once
from support.wheels import (
    ARCHS,
    ON_CUDA,
    Machine,
    built_wheel,
    driver,
    elsewhere,
    hook,
    inside,
    machine,
    pip_wheel,
    require_well,
    split_copy,
    unpack,
    wheels_of,
    without_dist,
)

__all__ = ["driver", "machine"]

ENDING = {"sm_80": "cubin", "sm_90a": "cubin", "compute_80": "ptx"}
WORKS = "supported: True\n"


@pytest.fixture(scope="session")
def split(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A committed project whose wheels were built, one for each arch; tests must not change it."""

    def make(folder: Path) -> None:
        split_copy(built_wheel(tmp_path_factory), folder / "project").scons("-j2", "wheel")

    return Project(once(tmp_path_factory, "split-wheels-of-demo", make) / "project")


# ---- what is in them


def test_each_arch_has_a_wheel_with_its_code_and_the_package_has_none(split: Project) -> None:
    wheels = wheels_of(split)
    assert set(wheels) == {"main", *ARCHS}
    work, seen = split.folder / "build/kernels/demo", []
    for arch in ARCHS:
        files = inside(wheels[arch])
        code = {name: content for name, content in files.items() if name.endswith((".cubin", ".ptx"))}
        variants = ("add_one/default", "scale/dtype-float16", "scale/dtype-float32")
        names = [f"{variant}/cuda/{arch}.{ENDING[arch]}" for variant in variants]
        assert {f"demo_{arch}/{name}": (work / name).read_bytes() for name in names} == code
        seen += [hashlib.sha256(content).hexdigest() for content in code.values()]
        rest = {name.rpartition("/")[2] for name in files.keys() - code.keys()}
        described = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE.txt", "kernelwright.cdx.json"}
        assert rest == {"__init__.py", "manifest.json", *described}
    assert len(set(seen)) == len(seen) == 9, "no device code is there twice"
    whole = [content for name, content in inside(wheels["main"]).items() if name.endswith(".so")]
    assert len(whole) == 3, "two kernels and their launcher"
    images = [path.read_bytes() for path in [*work.rglob("*.cubin"), *work.rglob("compute_80.ptx")]]
    assert len(images) == 9 and not any(image in library for image in images for library in whole)
    require_well(*wheels.values())


def test_splitting_lowers_and_compiles_no_device_code_again_and_changes_no_tag(split: Project, tmp_path: Path) -> None:
    project = without_dist(split, tmp_path / "copy")
    whole = project.scons("wheel", "SPLIT=none", "CACHE_DIR=").labels
    assert whole == {"CC": 2, "LINK": 2, "PACKAGE": 1, "WHEEL": 1, "WRAP": 2}
    assert list(wheels_of(project)) == ["main"] and wheels_of(project)["main"].name == wheels_of(split)["main"].name
    assert not (project.folder / "build/demo/_runtime/provider.py").exists()
    assert project.scons("--replace", "wheel", "CACHE_DIR=").labels == whole
    assert project.scons("wheel").stages == []
    assert inside(wheels_of(project)["main"]) == inside(wheels_of(split)["main"])


def test_equal_sources_give_equal_wheels(split, tmp_path, tmp_path_factory):
    other = split_copy(elsewhere(tmp_path_factory), tmp_path / "another path")
    other.scons("-j1", "wheel", "CACHE_DIR=", env={"TZ": "Asia/Tokyo", "HOME": str(tmp_path)})
    mine, theirs = wheels_of(split), wheels_of(other)
    assert {arch: path.name for arch, path in mine.items()} == {arch: path.name for arch, path in theirs.items()}
    assert all(mine[arch].read_bytes() == theirs[arch].read_bytes() for arch in mine)


def test_one_that_cannot_be_published_keeps_all_others_back(split: Project, tmp_path: Path) -> None:
    project = split.copied(tmp_path / "copy")
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


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A fresh environment that has what packages of kernels need, and no index to install anything from."""
    home = tmp_path / "home"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (environments.site_of(home) / "needed.pth").write_text("\n".join(paths))
    return home


def install(home: Path, project: Project, *what: str) -> None:
    environments.install(home, "--no-index", "--find-links", project.folder / "dist", "--pre", *what)


def installed(home: Path) -> set[str]:
    return {path.name for path in environments.site_of(home).glob("demo*") if not path.name.endswith("-info")}


def test_device_code_is_installed_arch_by_arch_and_the_best_is_used(split, fresh, machine, tmp_path):
    site = environments.site_of(fresh)
    install(fresh, split, "demo-kernels")
    assert installed(fresh) == {"demo"}
    assert machine.call(python=fresh / "bin/python") == (
        "kernel 'scale': cuda:0 is an sm_90, and the device code for it is not installed: sm_90a or compute_80 "
        "(installed: none)\n  remedy: pip install 'Demo-Kernels-sm-90a==1.2rc1'\nsupported: False\n"
    )
    assert machine.loads == [], "the CPU works all the same"

    other = tmp_path / "other place"
    install(fresh, split, "--no-deps", "--target", str(other), "demo-kernels-sm-80")
    assert installed(fresh) == {"demo"}
    assert machine.call(other, site, capability=86) == WORKS, "found by its entry point"
    output = machine.call(other, site, capability=90)
    assert "(installed: sm_80)\n  remedy: pip install 'Demo-Kernels-sm-90a==1.2rc1'\n" in output
    size = len(inside(wheels_of(split)["sm_80"])["demo_sm_80/scale/dtype-float32/cuda/sm_80.cubin"])
    assert machine.loads == [f"cubin sm_80 {size}"]

    install(fresh, split, "demo-kernels[cuda]")
    assert installed(fresh) == {"demo", *(f"demo_{arch}" for arch in ARCHS)}
    for capability in (90, 120):
        assert machine.call(site, capability=capability) == WORKS
    assert machine.loaded == ["cubin sm_80", "cubin sm_90", "ptx compute_80"]
    assert "built for sm_80, sm_90a, compute_80" in machine.call(site, capability=70)


# ---- in the build folder, and without a package


def test_the_build_folder_is_used_without_installing_anything(split: Project, machine: Machine, tmp_path: Path) -> None:
    assert machine.call(split.folder / "build") == WORKS
    assert machine.loaded == ["cubin sm_90"]
    shutil.copytree(split.folder / "build/demo", tmp_path / "demo")
    assert "cannot be read (No such file or directory)\n  remedy: scons\n" in machine.call(tmp_path)


LIBRARY = f"""
{ON_CUDA.replace("import demo", "")}
module = tvm_ffi.load_module(LIBRARY)
for provider in PROVIDERS:
    if provider:
        module["kw_set_provider"](tvm_ffi.convert(provider))
    try:
        module["scale"](x, x)
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""


def library_call(machine: Machine, library: Path, *providers: str) -> str:
    """What calls of a library print whose device code is found by some functions; None: by none."""
    code = LIBRARY.replace("LIBRARY", repr(str(library))).replace("PROVIDERS", f"[{', '.join(providers)}]")
    return machine.run(code, capability=80)


def test_a_library_that_is_loaded_without_its_package_finds_what_was_built(split, machine, tmp_path):
    library = split.folder / "build/kernels/demo/scale/scale.so"
    assert library_call(machine, library, "None") == "" and machine.loaded == ["cubin sm_80"]
    copy = Path(shutil.copyfile(library, tmp_path / "scale.so"))
    (launcher,) = (split.folder / "build/demo/_lib").glob("libkernelwright-*")
    shutil.copy(launcher, tmp_path)
    output = library_call(machine, copy, "None")
    assert output.startswith("kernel 'scale': its device code, ") and output.endswith("No such file or directory\n")


def test_what_a_provider_answers_is_checked(split: Project, machine: Machine) -> None:
    library = split.folder / "build/kernels/demo/scale/scale.so"
    answers = {
        "'sm_80 /x'": "its device code, /x, cannot be read: No such file or directory",
        "'sm_70 /x'": "the provider of device code returned 'sm_70 /x'",
        "'sm_8 /xyz'": "the provider of device code returned 'sm_8 /xyz'",
        "'nonsense'": "the provider of device code returned 'nonsense'",
        "'nonsense, long'": "the provider of device code returned 'nonsense, long'",
        "' it is elsewhere'": "it is elsewhere",
        "7": "the provider of device code returned no text",
        "' ' + ', '.join(map(str, a))": "dtype-float32, sm_80 compute_80, 0, 80",
    }
    output = library_call(machine, library, *(f"lambda *a: {answer}" for answer in answers))
    assert output.splitlines() == [f"kernel 'scale': {message}" for message in answers.values()]
    assert machine.loads == []


# ---- builds again, and front ends


def test_a_front_end_gets_the_wheel_that_it_asks_for_or_all(split: Project, tmp_path: Path) -> None:
    project, wheels = split.copied(tmp_path / "copy"), wheels_of(split)
    found = pip_wheel(project, tmp_path / "pip", "--config-settings", "provider=sm_90a")
    assert (found.name, found.read_bytes()) == (wheels["sm_90a"].name, wheels["sm_90a"].read_bytes())
    out = tmp_path / "out"
    out.mkdir()
    done = hook(project, f"print('made', build.build_wheel({str(out)!r}, {{'jobs': '2'}}))")
    assert done.returncode == 0 and f"made {wheels['main'].name}\n" in done.stdout
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in wheels.values()
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"provider": "sm_80", "split": "none"}, "provider is 'sm_80'; it needs split = 'arch' and a CUDA arch"),
        ({"provider": "sm_90a", "archs": "sm_80"}, "provider is 'sm_90a'; the archs are sm_80"),
        ({"targets": "llvm"}, "split = 'arch' without the target cuda"),
    ],
)
def test_bad_config_settings_are_plain_errors(split, tmp_path, settings, message):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("prepare_metadata_for_build_wheel", "build_wheel"):
        done = hook(split, f"build.{name}({str(out)!r}, {settings!r})")
        assert done.returncode == 1 and message in done.stdout and "Traceback" not in done.stdout
    assert list(out.iterdir()) == []


def test_archs_that_no_kernel_is_built_for_are_an_error_and_a_cpu_kernel_among_others_is_no_matter(
    split: Project, machine: Machine, tmp_path: Path
) -> None:
    project = without_dist(split, tmp_path / "copy")
    project.replace("kernels/add_one.py", "@kernel(", '@kernel(targets=["llvm"], ')
    project.replace("kernels/scale.py", "@kernel(", '@kernel(archs=["sm_80", "compute_80"], ')
    output = project.scons("-j2", "wheel", ok=False).output
    assert "no kernel is built for sm_90a, and its wheel would be empty\n  remedy: remove it from archs" in output
    assert not (project.folder / "dist").exists()
    project.scons("-j2", "wheel", "ARCHS=sm_80,compute_80")
    assert not [name for name in inside(wheels_of(project)["sm_80"]) if "add_one" in name]
    everything = unpack(tmp_path / "all", *wheels_of(project).values())
    assert machine.call(everything, capability=80) == WORKS


def test_extras_pins_entry_points_and_tags(split: Project) -> None:
    wheels = wheels_of(split)
    files = inside(wheels["main"])
    main = files["demo_kernels-1.2rc1.dist-info/METADATA"].decode().splitlines()
    for arch in ARCHS:
        name, info, files_of_arch = (
            arch.replace("_", "-"),
            f"demo_kernels_{arch}-1.2rc1.dist-info",
            inside(wheels[arch]),
        )
        assert f"Provides-Extra: {name}" in main
        for extra in (name, "cuda"):
            assert f'Requires-Dist: Demo-Kernels-{name}==1.2rc1; extra == "{extra}"' in main
        metadata = files_of_arch[f"{info}/METADATA"].decode().splitlines()
        for line in (f"Name: Demo-Kernels-{name}", "Version: 1.2rc1", "License-Expression: MIT"):
            assert line in metadata
        required = [line for line in metadata if line.startswith("Requires-Dist")]
        assert required == ["Requires-Dist: Demo-Kernels==1.2rc1"]
        points = files_of_arch[f"{info}/entry_points.txt"].decode()
        assert points == f"[kernelwright.device_code]\ndemo_{arch} = demo_{arch}\n"
        assert "Root-Is-Purelib: true\nTag: py3-none-any\n" in files_of_arch[f"{info}/WHEEL"].decode()
        assert wheels[arch].name == f"demo_kernels_{arch}-1.2rc1-py3-none-any.whl"
    assert re.fullmatch(r"demo_kernels-1\.2rc1-py3-none-manylinux_2_\d+_x86_64\.whl", wheels["main"].name)
    assert files["demo_kernels-1.2rc1.dist-info/entry_points.txt"] == b"[console_scripts]\ndemo-add = demo:main\n"
