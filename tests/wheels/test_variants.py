"""Wheel variants with the real uv: which one it takes for which machine, and that this one runs there."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from kernelwright.core.errors import ToolchainError
from kernelwright.toolchain.nvrtc import find_nvrtc
from support import arm, environments
from support.project import Project, once
from support.wheels import (
    FILES,
    Machine,
    commit,
    driver,
    hook,
    inside,
    kernelwright,
    machine,
    metadata_of,
    require_well,
    without_dist,
    write,
)

LACKING = [name for name in ("uv", "variantlib") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"the extra variants is not installed: {', '.join(LACKING)}")

__all__ = ["driver", "machine"]

ARCHS = ("sm_80", "sm_86", "sm_90a", "sm_100a", "sm_100f", "compute_80")
LABELS = {
    "": ARCHS,
    "null": ("compute_80",),
    "sm_80": ("sm_80",),
    "sm_86": ("sm_86",),
    "sm_90": ("sm_90a", "compute_80"),
    "sm_100": ("sm_100a", "sm_100f"),
}
"""Label -> the archs whose code the wheel has."""

INDEX = "demo_kernels-1.2rc1-variants.json"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A committed project whose wheels were built; tests must not change it."""

    def make(folder: Path) -> None:
        project_in(folder / "project").scons("-j2", "wheel")

    return Project(once(tmp_path_factory, "wheel-variants-of-demo", make) / "project")


def project_in(folder: Path) -> Project:
    project = write(folder)
    project.replace("pyproject.toml", 'package = "demo"\n', 'package = "demo"\nsplit = "variant"\n')
    project.replace("kernels/scale.py", ', "float16"', "")
    listed = ", ".join(f'"{arch}"' for arch in ARCHS)
    project.replace("pyproject.toml", '"sm_80", "sm_90a", "compute_80"]', f"{listed}]")
    shutil.rmtree(folder / ".git")
    commit(folder, *FILES)
    return project


def wheels_of(project: Project) -> dict[str, Path]:
    found = {}
    for path in (project.folder / "dist").glob("*.whl"):
        match = re.fullmatch(r"demo_kernels-1\.2rc1-py3-none-manylinux_2_17_x86_64(?:-([\w.]+))?\.whl", path.name)
        assert match, path
        found[match[1] or ""] = path
    return found


def uv_install(folder: Path, *options: str | Path, driver: str = "", arch: str = "", preview: bool = True) -> str:
    """What uv says when it installs the package into a folder, on a machine that NVIDIA's provider is told to see."""
    import uv

    told = {"NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": driver, "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": arch}
    command = [uv.find_uv_bin(), "pip", "install", "--no-deps", "--no-cache", "--prerelease=allow", "--no-config"]
    command += ["--python", sys.executable, "--target", folder, "--verbose"]
    command += [*(["--preview-features", "wheel-variants"] if preview else []), *options, "demo-kernels"]
    done = subprocess.run(
        list(map(str, command)), env=os.environ | told, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def label_of(folder: Path) -> str:
    """The label of the installed variant; empty: none is."""
    found = list(folder.glob("demo_kernels-*.dist-info/variant.json"))
    return next(iter(json.loads(found[0].read_text())["variants"])) if found else ""


def flat(project: Project) -> tuple[str | Path, ...]:
    return ("--no-index", "--find-links", project.folder / "dist")


def archs_in(wheel: Path) -> set[str]:
    return {name.rpartition("/")[2].partition(".")[0] for name in inside(wheel) if "/_images/" in name}


def test_each_label_has_its_code_and_all_are_well(built: Project, tmp_path: Path) -> None:
    wheels = wheels_of(built)
    assert {label: archs_in(wheel) for label, wheel in wheels.items()} == {k: {*v} for k, v in LABELS.items()}
    require_well(*wheels.values())
    assert "Requires-External: nvidia-driver (>=580.65.06)" in metadata_of(wheels["sm_90"])
    index = json.loads((built.folder / "dist" / INDEX).read_text())
    assert set(index["variants"]) == {*LABELS} - {""} and index["variants"]["null"] == {}
    # What is compiled is in test_wheel.py, and the same for all splits.
    other = without_dist(built, tmp_path / "a much longer path/\u00fc")
    for name in ("build/demo", "build/wheels"):
        shutil.rmtree(other.folder / name)
    assert {"PACKAGE", "WHEEL"} <= other.scons("-j1", "wheel", "CACHE_DIR=").labels.keys()
    dist, again = built.folder / "dist", other.folder / "dist"
    assert {p.name: p.read_bytes() for p in dist.iterdir()} == {p.name: p.read_bytes() for p in again.iterdir()}


MACHINES = [
    ("13.0", "8.0", "sm_80", "cubin sm_80"),
    ("13.0", "8.9", "sm_86", "cubin sm_86"),
    ("13.0", "9.0", "sm_90", "cubin sm_90"),
    ("13.1", "10.0", "sm_100", "cubin sm_100"),
    ("13.0", "10.3", "sm_100", "cubin sm_100"),
    ("13.0", "12.0", "null", "ptx compute_80"),
]


@pytest.mark.parametrize(("cuda", "arch", "label", "loaded"), MACHINES)
def test_uv_takes_the_one_for_the_machine_and_it_runs_there(built, tmp_path, machine, cuda, arch, label, loaded):
    uv_install(tmp_path / "site", *flat(built), driver=cuda, arch=arch)
    assert label_of(tmp_path / "site") == label
    assert machine.call(tmp_path / "site", capability=int(arch.replace(".", ""))) == "supported: True\n"
    assert {*machine.loaded} == {loaded}


@pytest.mark.parametrize(("cuda", "arch"), [("", ""), ("12.8", "9.0"), ("13.0", "7.5"), ("13.0", "9")])
def test_uv_takes_the_null_one_without_a_gpu_or_with_one_that_no_other_is_for(built, tmp_path, cuda, arch):
    uv_install(tmp_path / "site", *flat(built), driver=cuda, arch=arch)
    assert label_of(tmp_path / "site") == "null"
    assert archs_in(wheels_of(built)["null"]) == {"compute_80"}


def test_pip_and_uv_without_its_preview_take_the_wheel_with_everything(built: Project, tmp_path: Path) -> None:
    home = environments.environment(tmp_path / "home")
    environments.install(home, *flat(built), "--no-deps", "--pre", "demo-kernels")
    uv_install(tmp_path / "site", *flat(built), driver="13.0", arch="9.0", preview=False)
    for site in (environments.site_of(home), tmp_path / "site"):
        assert label_of(site) == ""
        names = {path.stem for path in site.glob("demo/_images/*/*/cuda/*")}
        assert names == {*ARCHS}


def test_a_variant_on_another_machine_says_what_to_install(built: Project, tmp_path: Path, machine: Machine) -> None:
    uv_install(tmp_path / "site", *flat(built), driver="13.0", arch="8.0")
    said = machine.call(tmp_path / "site", capability=90)
    assert "cuda:0 is an sm_90, and the device code for it is not installed: sm_90a or compute_80" in said
    assert "(installed: sm_80)\n  remedy: this is the wheel variant sm_80, for other machines." in said
    assert "uv pip install --preview-features wheel-variants --reinstall 'Demo-Kernels==1.2rc1'" in said


@pytest.fixture
def address(built: Project, tmp_path: Path) -> Iterator[str]:
    """That of an index with a page for the project, as PEP 503 has it."""
    page = tmp_path / "index/demo-kernels"
    shutil.copytree(built.folder / "dist", page)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "index"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_index_that_serves_the_files_is_one_for_uv(address: str, tmp_path: Path) -> None:
    uv_install(tmp_path / "site", "--default-index", address, driver="13.0", arch="8.9")
    assert label_of(tmp_path / "site") == "sm_86"


def test_a_provider_that_the_installer_lacks_leaves_the_null_one(built: Project, tmp_path: Path) -> None:
    dist = shutil.copytree(built.folder / "dist", tmp_path / "dist")
    index = dist / INDEX
    index.write_text(index.read_text().replace("nvidia-variant-provider", "nobodys-variant-provider"))
    said = uv_install(tmp_path / "site", "--no-index", "--find-links", dist, driver="13.0", arch="9.0")
    assert label_of(tmp_path / "site") == "null"
    assert "Skipping unsupported wheel variant provider" in said


def test_the_tools_of_the_standard_read_the_same(built: Project, tmp_path: Path) -> None:
    dist = shutil.copytree(built.folder / "dist", tmp_path / "dist")
    ours = json.loads((dist / INDEX).read_text())
    (dist / INDEX).unlink()
    code = "import sys; from variantlib.commands.main import main; main(['generate-index-json', '-d', sys.argv[1]])"
    subprocess.run([sys.executable, "-c", code, dist], check=True, capture_output=True)
    theirs = json.loads((dist / INDEX).read_text())
    assert {**theirs, "$schema": ours["$schema"]} == ours
    uv_install(tmp_path / "site", "--no-index", "--find-links", dist, driver="13.0", arch="9.0")
    assert label_of(tmp_path / "site") == "sm_90"


def test_what_is_wrong_with_a_variant_is_told_by_what_is_in_it(built: Project, tmp_path: Path) -> None:
    wheels = wheels_of(built)
    for label, name, said in (
        ("sm_90", "sm_80", "its name has the label sm_80, its manifest has the label sm_90"),
        ("sm_90", "", "its name has no label, its manifest has the label sm_90, and it has a variant.json"),
        ("", "sm_90", "its name has the label sm_90, its manifest has no label, and it has no variant.json"),
    ):
        plain = wheels[""].name.removesuffix(".whl")
        copy = shutil.copy(wheels[label], tmp_path / f"{plain}{f'-{name}' if name else ''}.whl")
        done = kernelwright("verify", "--entry-points", copy)
        assert done.returncode == 1 and said in done.stdout


def test_wheels_of_earlier_builds_beside_them_are_named_or_refused(built: Project, tmp_path: Path) -> None:
    project = built.copied(tmp_path / "copy")
    project.write("VERSION", "1.3\n")
    output = project.scons("wheel").output
    assert "of an earlier build" not in output, "another version has an index of its own"
    assert len(list((project.folder / "dist").glob("*-variants.json"))) == 2
    output = project.scons("--replace", "wheel", "ARCHS=sm_80,compute_80").output
    old = "demo_kernels-1.3-py3-none-manylinux_2_17_x86_64-sm_90.whl"
    assert f"dist/{old} has this version and is of an earlier build: remove it" in output
    index = json.loads((project.folder / "dist/demo_kernels-1.3-variants.json").read_text())
    assert {*index["variants"]} == {"null", "sm_80"}, "no installer takes one of an earlier build"
    damaged = project.folder / "dist" / old.replace("x86_64", "aarch64")
    damaged.write_bytes(b"no archive")
    output = project.scons("wheel", "ARCHS=sm_80,compute_80", ok=False).output
    assert f"{damaged}" in output and "it cannot be read" in output and "Traceback" not in output


def test_verify_compares_variants_with_each_other_and_with_the_file_beside_them(built: Project, tmp_path: Path) -> None:
    dist = shutil.copytree(built.folder / "dist", tmp_path / "dist")
    wheels, index = sorted(dist.glob("*.whl")), dist / INDEX
    whole = json.loads(index.read_text())
    changes = {
        "of sm_90 what": {"variants": {name: needs for name, needs in whole["variants"].items() if name != "sm_90"}},
        "of providers what": {"providers": {}},
        "cannot be read: variants is": {"variants": None},
    }
    for said, change in changes.items():
        index.write_text(json.dumps({**whole, **change}))
        done = kernelwright("verify", "--entry-points", *wheels)
        assert done.returncode == 1 and said in done.stdout and "scons wheel" in done.stdout, done.stdout
    index.unlink()
    require_well(*wheels)
    project = built.copied(tmp_path / "copy")
    (project.folder / "kernels/add_one.py").unlink()
    project.scons("--replace", "wheel")
    shutil.copy(wheels_of(project)["sm_80"], dist)
    done = kernelwright("verify", "--entry-points", *wheels)
    assert done.returncode == 1 and "-sm_80.whl has other kernels than " in done.stdout


def test_diff_compares_a_variant_with_the_one_of_its_label_by_the_code_in_it(built: Project, tmp_path: Path) -> None:
    wheels = wheels_of(built)
    done = kernelwright("diff", wheels["sm_80"], wheels["sm_90"])
    assert done.returncode == 1 and "the one is of demo, the wheel variant sm_80, and the other of " in done.stdout
    project = built.copied(tmp_path / "copy")
    project.scons("--replace", "wheel", "ARCHS=sm_90a,compute_90")
    done = kernelwright("diff", wheels["sm_90"], wheels_of(project)["sm_90"])
    assert "add_one/default has no code for compute_80 any more" in done.stdout and "sm_80 " not in done.stdout


def test_front_ends_get_the_wheel_with_everything_and_all_others_beside_it(built: Project, tmp_path: Path) -> None:
    project, out = without_dist(built, tmp_path / "copy"), tmp_path / "out"
    out.mkdir()
    done = hook(project, f"print('made', build.build_wheel({str(out)!r}))")
    dist = built.folder / "dist"
    assert done.returncode == 0 and f"made {wheels_of(built)[''].name}\n" in done.stdout
    assert {p.name: p.read_bytes() for p in out.iterdir()} == {p.name: p.read_bytes() for p in dist.iterdir()}


def test_each_kernel_has_what_it_runs_best_whatever_archs_others_have(built: Project, tmp_path: Path) -> None:
    project = without_dist(built, tmp_path / "copy")
    project.replace("kernels/add_one.py", "@kernel(", '@kernel(archs=["sm_80", "compute_80"], ')
    project.replace("kernels/scale.py", "@kernel(", '@kernel(archs=["sm_86", "sm_90a", "compute_80"], ')
    run = project.scons("wheel", ok=False)
    assert "no kernel has device code of its own for sm_100, and its wheel would be as another one" in run.output
    project.scons("wheel", "ARCHS=sm_80,sm_86,sm_90a,compute_80")
    code = {name.split("/", 2)[2] for name in inside(wheels_of(project)["sm_86"]) if "/_images/" in name}
    kept = {(path.split("/")[0], path.rpartition("/")[2]) for path in code}
    assert kept == {("add_one", "sm_80.cubin"), ("scale", "sm_86.cubin")}
    require_well(*wheels_of(project).values())


OWN = """\
#include <tvm/ffi/c_api.h>
__global__ void fill(int *x) { *x = 1; }
extern "C" __attribute__((visibility("default")))
int __tvm_ffi_own(void *, const TVMFFIAny *, int32_t, TVMFFIAny *result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = 7;
  return 0;
}
"""
DEFINITION = """\
from kernelwright import kernel
from kernelwright.cuda import Exported

@kernel(frontend="cuda", sources=["own.cu"])
def own():
    return Exported("own")
"""


@pytest.mark.parametrize("split", ["variant", "arch"])
def test_code_of_sources_with_host_code_of_their_own_is_in_each_wheel(built, tmp_path, split):
    project = without_dist(built, tmp_path / "copy")
    project.write("kernels/own.py", DEFINITION)
    project.write("kernels/own.cu", OWN)
    project.scons("-j2", "wheel", "ARCHS=sm_80,compute_80", f"SPLIT={split}")
    wheels = sorted((project.folder / "dist").glob("*.whl"))
    require_well(*wheels)
    having = [wheel for wheel in wheels if any("/_lib/own.cu-" in name for name in inside(wheel))]
    assert len(having) == (len(wheels) if split == "variant" else 1)


TWO = 'package = "demo"\nsplit = "variant"\ncuda = ["13.0", "nvrtc-12.8"]\n'


def why_not() -> str:
    try:
        find_nvrtc(dict(os.environ), "12.8")
    except ToolchainError as error:
        return str(error)
    return ""


@pytest.mark.skipif(bool(why_not()), reason=f"the extra nvrtc12 is not installed: {why_not()}")
def test_wheels_of_two_toolkits_have_one_version_and_the_driver_decides(tmp_path: Path, machine: Machine) -> None:
    project = write(tmp_path / "project")
    project.replace("pyproject.toml", 'package = "demo"\n', TWO)
    project.replace("pyproject.toml", '"sm_80", "sm_90a", "compute_80"]', '"sm_70", "sm_80", "sm_110", "compute_80"]')
    project.scons("-j2", "wheel")
    wheels = wheels_of(project)
    of = {"cu128": ("70", "80"), "cu130": ("80", "110")}
    assert {*wheels} == {"", "null", *(f"{cuda}_sm_{number}" for cuda, numbers in of.items() for number in numbers)}
    require_well(*wheels.values())
    cases = (("12.4", "8.0", "cu128_sm_80"), ("13.0", "8.6", "cu130_sm_80"), ("13.0", "7.0", "cu128_sm_70"))
    for cuda, arch, label in cases:
        uv_install(tmp_path / label, *flat(project), driver=cuda, arch=arch)
        assert label_of(tmp_path / label) == label
        major, minor = cuda.split(".")
        told = {"capability": int(arch.replace(".", "")), "STANDIN_VERSION": f"{major}0{minor}0"}
        assert machine.call(tmp_path / label, **told) == "supported: True\n"
    assert project.scons("wheel").stages == []
    output = project.scons("--replace", "wheel", "CUDA=13.0", "ARCHS=sm_80,sm_110,compute_80").output
    assert "cu128_sm_80.whl has this version and is of an earlier build: remove it" in output


@pytest.mark.skipif(arm.CROSS is None, reason=arm.NO_CROSS)
def test_labels_are_equal_for_both_families_and_uv_takes_the_wheel_for_the_cpu(built: Project, tmp_path: Path) -> None:
    project = without_dist(built, tmp_path / "copy")
    project.scons("-j2", "wheel", "ARCHS=x86-64-v3,neoverse-n1")
    names = [path.name for path in (project.folder / "dist").glob("*.whl")]
    assert len(names) == 2 * len(LABELS) and sum("aarch64" in name for name in names) == len(LABELS)
    options = ("--python-platform", "aarch64-unknown-linux-gnu")
    uv_install(tmp_path / "site", *flat(project), *options, driver="13.0", arch="9.0")
    assert label_of(tmp_path / "site") == "sm_90"
    (described,) = (tmp_path / "site").glob("demo_kernels-*.dist-info/WHEEL")
    assert "Tag: py3-none-manylinux_2_17_aarch64" in described.read_text()
    output = project.scons("wheel", "ARCHS=x86-64-v3").output
    assert output.count("is for aarch64, and this build is not: remove it") == len(LABELS)


def test_a_split_that_does_not_fit_is_an_error_before_anything_is_built(built: Project, tmp_path: Path) -> None:
    project = without_dist(built, tmp_path / "copy")
    run = project.scons("wheel", "ARCHS=sm_80,sm_90a", ok=False)
    assert "split = 'variant' would offer sm_90a to GPUs of arch 9.1, too, which do not run it" in run.output
    assert "remedy: add code to archs that all of these run, such as sm_90 or compute_90" in run.output
    assert run.stages == [] and not (project.folder / "dist").exists()


def test_uv_is_one_that_knows_variants() -> None:
    assert tuple(map(int, version("uv").split(".")[:3])) >= (0, 13, 6)
