"""Kernels whose sources call a library of another package: NVRTC's, which is installed with nvcc and needs no GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from support.project import SCONSTRUCT, Project

SETTINGS = """\
[project]
name = "demo"
version = "1"

[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_80"]
backends = ["tvm_ffi"]
"""

SOURCE = """\
#include <nvrtc.h>
#include <tvm/ffi/c_api.h>

extern "C" __attribute__((visibility("default"))) int __tvm_ffi_version(
    void *, const TVMFFIAny *, int32_t, TVMFFIAny *result) {
  int major = 0, minor = 0;
  nvrtcVersion(&major, &minor);
  result->type_index = kTVMFFIInt;
  result->v_int64 = 100 * major + minor;
  return 0;
}
"""

DEFINITION = """\
from kernelwright import kernel
from kernelwright.cuda import Exported


@kernel(frontend="cuda", sources=["version.cc"], libraries=["nvrtc"])
def compiler():
    return Exported("version")
"""

MISTAKES = (
    ('"nvrtc"', '"nvrtk"', "libraries names 'nvrtk', and no installed package has that library"),
    ('"nvrtc"', '"package:nvidia/cu13/lib/libno.so"', "libraries names 'nvidia/cu13/lib/libno.so', and no installed"),
    ('"nvrtc"', '"lib/nvrtc"', "libraries contains 'lib/nvrtc', which is no name of a library"),
    ('sources=["version.cc"], ', "", "libraries are called by sources with host code of their own, and there are none"),
    ('libraries=["nvrtc"]', "libraries=[]", 'remedy: write libraries=["nvrtc"]'),
)


def test_a_library_is_linked_by_name_found_where_it_is_installed_and_asked_of_pip(tmp_path):
    project = Project.of(tmp_path, SETTINGS, own=DEFINITION)
    project.write("kernels/version.cc", SOURCE)
    with (project.folder / "SConstruct").open("a") as file:
        file.write('env.KernelWheel("demo")\n')
    project.scons("-j2")
    entry = project.manifest["kernels"]["compiler"]
    ((name, folder, requirement),) = entry["libraries"]
    assert re.fullmatch(r"libnvrtc\.so\.\d+", name) and folder.startswith("nvidia/")
    needed = subprocess.check_output(
        ["readelf", "-d", project.folder / "build/demo" / entry["source_libraries"][0]], text=True
    )
    assert f"[{name}]" in needed and "/" not in re.findall(r"NEEDED.*\[(.*)\]", needed)[0]
    major = re.fullmatch(r"nvidia-cuda-nvrtc>=(\d+),<\d+", requirement)[1]
    nothing = {"KERNELWRIGHT_CUDA_DRIVER": "/nowhere"}
    assert project.python("import demo; print(demo.compiler())", env=nothing).startswith(major)
    (script,) = (project.folder / "build/kernels/demo/_objects").glob("link_*.sh")
    assert '"$PACKAGE_1"/libnvrtc.so' in script.read_text() and os.fspath(project.folder) not in script.read_text()
    assert project.scons().stages == []

    refused = project.scons("wheel", ok=False).output
    assert f"it does not depend on '{requirement}', which has {name} for kernel compiler: add" in refused
    project.replace("pyproject.toml", 'version = "1"\n', f'version = "1"\ndependencies = ["{requirement}"]\n')
    assert "dist/demo-1-" in project.scons("wheel").output
    for old, new, words in MISTAKES:
        project.replace("kernels/own.py", old, new)
        assert words in project.scons(ok=False).output
        project.write("kernels/own.py", DEFINITION)


def install(site: Path, version: str, value: int) -> None:
    """Install a package with a library, which has no versions of symbols, as C code without a C library has none."""
    shutil.rmtree(site, ignore_errors=True)
    (site / "acme/lib").mkdir(parents=True)
    (site / f"acme-{version}.dist-info").mkdir()
    (site / f"acme-{version}.dist-info/RECORD").write_text("acme/lib/libacme.so,,\n")
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libacme.so", "-x", "c", "-", "-o", "acme/lib/libacme.so"]
    subprocess.run(command, input=f"int acme(void) {{ return {value}; }}", text=True, check=True, cwd=site)


def test_another_version_of_a_package_is_linked_with_and_a_damaged_library_is_an_error(tmp_path):
    site = tmp_path / "site"
    install(site, "1.4", 1)
    own = DEFINITION.replace('"nvrtc"', '"package:acme/lib/libacme.so"')
    project = Project.of(tmp_path / "project", SETTINGS, own=own)
    project.write("SConstruct", f"import sys\nsys.path.insert(0, {str(site)!r})\n{SCONSTRUCT}")
    project.write("kernels/version.cc", SOURCE.replace("nvrtcVersion(&major, &minor)", "major = acme()"))
    project.replace("kernels/version.cc", "#include <nvrtc.h>", 'extern "C" int acme(void);')
    env = {"KERNELWRIGHT_CUDA_DRIVER": "/nowhere", "PYTHONPATH": f"build:{site}"}
    for version, value, requirement in (("1.4", 1, "acme>=1,<2"), ("2.0", 2, "acme>=2,<3")):
        install(site, version, value)
        assert "SOURCES kernels/version.cc" in project.scons().stages
        entry = project.manifest["kernels"]["compiler"]
        assert entry["libraries"] == [["libacme.so", "acme/lib", requirement]]
        assert project.python("import demo; print(demo.compiler())", env=env) == f"{value}00\n"
    assert project.scons().stages == []
    (site / "acme/lib/libacme.so").write_text("INPUT(libm.so)")
    project.replace("kernels/version.cc", "acme()", "acme() + 2")
    assert "libraries names libacme.so, which cannot be read as a shared library" in project.scons(ok=False).output
