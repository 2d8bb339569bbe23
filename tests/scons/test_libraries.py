"""Kernels whose sources call a library of another package: NVRTC's, which is installed with nvcc and needs no GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess

from support.project import Project

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
    ('libraries=["nvrtc"]', "libraries=[]", "or the library in libraries"),
)


def test_a_library_is_linked_by_name_found_where_it_is_installed_and_asked_of_pip(tmp_path):
    project = Project.of(tmp_path, SETTINGS, own=DEFINITION)
    project.write("kernels/version.cc", SOURCE)
    with (project.folder / "SConstruct").open("a") as file:
        file.write('env.KernelWheel("demo")\n')
    project.scons("-j2")
    entry = json.loads((project.folder / "build/demo/manifest.json").read_text())["kernels"]["compiler"]
    ((name, folder, requirement),) = entry["libraries"]
    assert re.fullmatch(r"libnvrtc\.so\.\d+", name) and folder.startswith("nvidia/")
    needed = subprocess.check_output(["readelf", "-d", project.folder / "build/demo/_lib/compiler.so"], text=True)
    assert f"[{name}]" in needed and "/" not in re.findall(r"NEEDED.*\[(.*)\]", needed)[0]
    major = re.fullmatch(r"nvidia-cuda-nvrtc>=(\d+),<\d+", requirement)[1]
    nothing = {"KERNELWRIGHT_CUDA_DRIVER": "/nowhere"}
    assert project.python("import demo; print(demo.compiler())", env=nothing).startswith(major)
    script = project.folder / "build/kernels/demo/compiler/compile.sh"
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
