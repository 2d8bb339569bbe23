"""Kernels with headers of packages and of the system: what is compared where, so that no other one's code is taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.demand import Demand
from support.project import SCONSTRUCT, Project

DEVICE = '''\
from kernelwright import kernel
from kernelwright.cuda import Size, Source, Tensor, ceildiv

SOURCE = """
#include <acme/factor.h>
extern "C" __global__ void times(float *x, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) x[i] *= FACTOR;
}
"""


@kernel(frontend="cuda", includes=["package:acme_more/include", "package:acme_headers/include"])
def times():
    return Source(SOURCE, "times", x=Tensor("float32", "n", written=True), n=Size("n"), grid=ceildiv("n", 64), block=64)
'''

OWN = """\
from kernelwright import kernel
from kernelwright.cuda import Exported


@kernel(
    frontend="cuda",
    sources=["package:acme_headers/csrc/packaged.cc"],
    includes=["package:acme_more/include", "package:acme_headers/include"],
)
def packaged():
    return Exported("packaged")
"""

HOST = """\
#include <acme/factor.h>
#include <tvm/ffi/c_api.h>

extern "C" __attribute__((visibility("default"))) int __tvm_ffi_packaged(
    void *, const TVMFFIAny *, int32_t, TVMFFIAny *result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = FACTOR + ADDED;
  return 0;
}
"""

VALUE = "import demo; print(demo.packaged())"


def new_project(folder: Path, site: Path, runtime: Path) -> Project:
    """A project whose kernels have headers of packages in ``site``, and are linked with an archive in it."""
    project = Project(folder)
    found = f"""\
import sys
from pathlib import Path
from kernelwright.stages import sources
sys.path.insert(0, {str(site)!r})
sources.cuda_runtime = lambda *given: Path({str(runtime)!r})
"""
    settings = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80"]\nbackends = ["tvm_ffi"]\n'
    project.write("SConstruct", found + SCONSTRUCT)
    project.write("pyproject.toml", settings + f'cache_dir = "{site.parent / "cache"}"\n')
    project.write("kernels/device.py", DEVICE)
    project.write("kernels/own.py", OWN)
    return project


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("headers") / "site-packages"
    record = "acme_headers/include/acme/factor.h,sha256=x,1\nacme_headers/csrc/packaged.cc,sha256=x,1\n"
    write(site / "acme_headers-1.0.dist-info/RECORD", record)
    write(site / "acme_headers/include/acme/factor.h", "#define FACTOR 3\n#define ADDED 0\n")
    write(site / "acme_headers/csrc/packaged.cc", HOST)
    (site / "acme_more/include").mkdir(parents=True)
    return site


@pytest.fixture(scope="module")
def built(site: Path) -> Project:
    """A project that was built with the packages as they are at first."""
    from kernelwright.backends.own_code import cuda_runtime
    from kernelwright.core.errors import Where
    from kernelwright.toolchain.nvcc import Nvcc, find_nvcc

    nvcc = Nvcc(find_nvcc("", {}), "13.0", "", ())
    shutil.copy(cuda_runtime(nvcc, Where(), "x86_64"), site / "acme_headers/runtime.a")
    project = new_project(site.parent / "project", site, site / "acme_headers/runtime.a")
    project.scons()
    assert project.python(VALUE) == "3\n"
    return project


def labels_of(project: Project) -> set[str]:
    """The stages that a build runs, but for those that follow from others."""
    return set(project.scons().labels) - {"WRAP", "CC", "SOURCES", "LINK", "PACKAGE", "LOWER", "GLIBC", "LAUNCHER"}


@pytest.mark.parametrize(
    ("file", "text", "value"),
    [
        ("acme_headers/include/acme/factor.h", "#define FACTOR 4\n#define ADDED 0\n", 4),
        ("acme_headers/csrc/packaged.cc", HOST.replace("+ ADDED", "+ 1"), 5),
        ("acme_more/include/acme/factor.h", "#define FACTOR 6\n#define ADDED 0\n", 7),
    ],
)
def test_an_edit_in_a_package_is_noticed_in_every_folder(built: Project, site: Path, file: str, text: str, value: int):
    write(site / file, text)
    fresh = Project(site.parent / f"fresh {value}")
    for name in ("SConstruct", "pyproject.toml", "kernels/device.py", "kernels/own.py"):
        fresh.write(name, (built.folder / name).read_text())
    expected = {"OBJECT"} if file.endswith(".cc") else {"CUBIN", "OBJECT", "PTX"}
    assert labels_of(fresh) - {"CACHED"} == expected, "finished kernels of another header are none"
    assert labels_of(built) == {"CACHED"}, (
        "settled kernels go back to the stages, and what was made for the other is right"
    )
    for project in (built, fresh):
        assert project.python(VALUE) == f"{value}\n"
        assert project.scons().stages == []
    shutil.rmtree(fresh.folder / "build")
    assert set(fresh.scons().labels) == {"CACHED", "PACKAGE"}
    assert fresh.python(VALUE) == f"{value}\n"


def test_another_runtime_of_cuda_is_noticed(built: Project, site: Path) -> None:
    built.scons()
    with (site / "acme_headers/runtime.a").open("ab") as archive:
        archive.write(b"\n")
    assert "SOURCES" in built.scons().labels
    shutil.rmtree(built.folder / "build")
    built.scons()
    before = (site / "acme_headers/runtime.a").read_bytes()
    (site / "acme_headers/runtime.a").write_bytes(before + b"\n")
    shutil.rmtree(built.folder / "build")
    assert "SOURCES" in built.scons().labels


def test_packages_may_be_elsewhere_on_another_machine(built: Project, site: Path, tmp_path: Path) -> None:
    built.scons()
    moved = tmp_path / "elsewhere/site-packages"
    shutil.copytree(site, moved)
    project = new_project(tmp_path / "project", moved, moved / "acme_headers/runtime.a")
    settings = project.folder / "pyproject.toml"
    settings.write_text(settings.read_text().replace(str(moved.parent), str(site.parent)))
    assert set(project.scons().labels) == {"CACHED", "PACKAGE"}
    shutil.rmtree(project.folder / "build")
    write(moved / "acme_more/include/acme/factor.h", "#define FACTOR 9\n#define ADDED 0\n")
    project.scons()
    assert project.python(VALUE) == "10\n"


def test_on_demand_the_same_is_compared(built: Project, site: Path, tmp_path: Path) -> None:
    own = tmp_path / "site-packages"
    shutil.copytree(site, own)
    demand = Demand(new_project(tmp_path / "project", own, own / "acme_headers/runtime.a"))
    found = (demand.project.folder / "SConstruct").read_text().removesuffix(SCONSTRUCT)
    program = found + 'kernel = kw.load("kernels/own.py").packaged.using(archs=["sm_80"]).compile()\n'

    def run() -> str:
        return demand.run(program + "print(kernel.cached, kernel())").stdout.strip()

    write(own / "acme_headers/csrc/packaged.cc", HOST)
    write(own / "acme_more/include/acme/factor.h", "#define FACTOR 3\n#define ADDED 0\n")
    assert [run(), run()] == ["False 3", "True 3"]
    write(own / "acme_more/include/acme/factor.h", "#define FACTOR 8\n#define ADDED 0\n")
    assert run() == "False 8"
    with (own / "acme_headers/runtime.a").open("ab") as archive:
        archive.write(b"\n")
    assert run() == "False 8"


def test_a_folder_of_the_system_is_one_by_its_path_and_its_contents(built: Project, site: Path, tmp_path: Path) -> None:
    header, listed = tmp_path / "opt/include/acme/factor.h", "package:acme_more/include"
    write(header, "#define FACTOR 3\n#define ADDED COMPLETE\n")

    def project(name: str, folder: Path | str = tmp_path / "opt/include") -> Project:
        made = new_project(tmp_path / name, site, site / "acme_headers/runtime.a")
        for file, text in (("device", DEVICE), ("own", OWN.replace("package:acme_headers/csrc/", ""))):
            includes = f'"{folder}", "/usr/include/arpa'
            made.write(f"kernels/{file}.py", text.replace(f'"{listed}", "package:acme_headers/include', includes))
        made.write("kernels/packaged.cc", "#include <ftp.h>\n" + HOST)
        made.replace("kernels/device.py", "#include", "#include <ftp.h>\n#include")
        made.replace("pyproject.toml", str(site.parent), str(tmp_path))
        return made

    first, second = project("first"), project("second")
    first.scons()
    assert first.python(VALUE) == "5\n" and labels_of(second) == {"CACHED"}
    for script in ("times/default/cuda/compile_sm_80.sh", "_objects/compile_packaged.cc-*.sh"):
        (path,) = (first.folder / "build/kernels/demo").glob(script)
        assert f" -I {header.parents[1]} -I /usr/include/arpa " in path.read_text()
    records = b"".join(
        path.read_bytes() for path in (first.folder / "build/.kernelwright").rglob("*") if path.is_file()
    )
    assert records.count(b"/usr/include/arpa/ftp.h") >= 2, "the host compiler's identity does not stand for it"
    write(header, "#define FACTOR 4\n#define ADDED 0\n")
    assert labels_of(first) == {"PTX", "CUBIN", "OBJECT"} and labels_of(second) == {"CACHED"}
    assert first.python(VALUE) == second.python(VALUE) == "4\n"
    found = (first.folder / "SConstruct").read_text().removesuffix(SCONSTRUCT)
    program = found + 'kernel = kw.load("kernels/own.py").packaged.using(archs=["sm_80"]).compile()\n'
    demand = Demand(first)
    for value in (4, 6):
        write(header, f"#define FACTOR {value}\n#define ADDED 0\n")
        assert demand.run(program + "print(kernel())").stdout.strip() == str(value)
    errors = project("third", tmp_path / "nowhere").scons("-k", ok=False).output
    assert f"includes names '{tmp_path}/nowhere', which is no folder on this machine" in errors
    inside = tmp_path / "third/include"
    inside.mkdir()
    errors = project("third", inside).scons("-k", ok=False).output
    assert f"includes names '{inside}', which other checkouts of the project do not have" in errors
    assert "write '../include'" in errors


def test_the_manifest_names_the_package_and_another_version_is_noticed(built: Project, site: Path) -> None:
    def contained() -> dict[str, list[list[str]]]:
        kernels = built.manifest["kernels"]
        return {name: kernel["contains"] for name, kernel in kernels.items()}

    built.scons()
    assert contained() == {name: [["acme_headers", "1.0", "NOASSERTION"]] for name in ("packaged", "times")}
    newer = site / "acme_headers-2.0.dist-info"
    shutil.copytree(site / "acme_headers-1.0.dist-info", newer, copy_function=shutil.copy)
    shutil.rmtree(site / "acme_headers-1.0.dist-info")
    write(newer / "METADATA", "Name: acme-headers\nVersion: 2.0\nLicense-Expression: MIT\n")
    assert "PACKAGE" in built.scons().labels
    assert contained() == {name: [["acme_headers", "2.0", "MIT"]] for name in ("packaged", "times")}
    assert built.scons().stages == []
