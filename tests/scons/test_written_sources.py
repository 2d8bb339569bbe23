"""Sources with host code of their own that a definition writes, config by config."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.demand import Demand
from support.project import SCONSTRUCT, Project
from support.wheels import inside

SETTINGS = """\
[project]
name = "demo"
version = "1.0"
dependencies = ["apache-tvm-ffi>=0.1.8"]

[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_80"]
backends = ["tvm_ffi"]
"""

NUMBERS = """\
#include <tvm/ffi/c_api.h>
#include "config.inc"
#include "value.h"
static int calls;
#define KW_NUMBER(name, number)                                                     \\
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(           \\
      void *, const TVMFFIAny *, int32_t, TVMFFIAny *result) {                      \\
    result->type_index = kTVMFFIInt;                                                \\
    result->v_int64 = number;                                                       \\
    return 0;                                                                       \\
  }
KW_NUMBER(run, SCALE * VALUE + part())
KW_NUMBER(count, ++calls)
"""
"""A file that includes what a definition writes, as FlashInfer's do."""

DEFINITIONS = """\
from pathlib import Path

from kernelwright import grid, kernel
from kernelwright.cuda import Exported, Text

TEMPLATE = (Path(__file__).parent / "part.cc.txt").read_text()


def sources(scale, odd=False):
    return [
        "numbers.cc",
        Text("config.inc", f"#define SCALE {scale}\\nint part();\\n"),
        Text("part.cc", TEMPLATE.replace("{{ part }}", str(scale % 2))),
    ]


@kernel(frontend="cuda", sources=sources, configs=grid(scale=[3, 5, 8]))
def run(scale):
    return Exported("run")


@kernel(frontend="cuda", sources=sources, configs=grid(scale=[3, 5]))
def count(scale):
    return Exported("count")
"""

PART = """\
#include "value.h"
int part() { return {{ part }} * VALUE; }
"""

CALLS = """
import demo
print([demo.run.variant(scale=n)() for n in (3, 5, 8)], [demo.count.variant(scale=3)() for _ in range(2)],
      demo.count.variant(scale=5)())
"""


def new_project(folder: Path, settings: str = "", definitions: str = DEFINITIONS) -> Project:
    project = Project.of(folder, SETTINGS + settings, own=definitions)
    project.write("SConstruct", SCONSTRUCT + "env.KernelWheel(package)\n")
    for name, text in (("numbers.cc", NUMBERS), ("value.h", "#define VALUE 10\n"), ("part.cc.txt", PART)):
        project.write(f"kernels/{name}", text)
    return project


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = new_project(tmp_path_factory.mktemp("written") / "project")
    labels = project.scons("-j2", "--cache-disable").labels
    # Headers for each of three scales, and a part for odd and for even ones.
    assert (labels["TEXT"], labels["OBJECT"], labels["SOURCES"], labels["LINK"]) == (5, 6, 3, 2), labels
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    return built.copied(tmp_path / "project")


def test_each_config_has_a_library_of_what_was_written_for_it_and_kernels_share_it(built):
    assert built.python(CALLS) == "[40, 60, 80] [1, 2] 1\n"


def test_texts_and_what_they_include_are_dependencies_and_equal_texts_run_nothing(project):
    assert project.scons("--cache-disable").stages == []
    project.write("kernels/value.h", "#define VALUE 100\n")
    labels = project.scons("--cache-disable").labels
    assert (labels["OBJECT"], labels["SOURCES"], "TEXT" in labels, "LOWER" in labels) == (6, 3, False, False)
    project.write("kernels/part.cc.txt", PART.replace("int part", "static int one = 1;\nint part"))
    labels = project.scons("--cache-disable", "run").labels
    assert (labels["TEXT"], labels["OBJECT"], labels["SOURCES"]) == (2, 3, 3), "what the file reads is one, too"
    project.replace("kernels/own.py", "scale % 2", "int(scale == 8)")
    labels = project.scons("--cache-disable").labels
    assert ("TEXT" in labels, labels["OBJECT"], labels["SOURCES"]) == (False, 3, 3), "others have these texts"
    assert project.python(CALLS) == "[300, 500, 900] [1, 2] 1\n"
    left = {path.parent.name.partition("-")[0] for path in project.folder.glob("build/**/_objects/*/*")}
    assert left == {"headers", "part.cc"} and len(list(project.folder.glob("build/**/_objects/*.o"))) == 6


def test_a_mistake_is_told_with_its_line_and_costs_only_its_config(project):
    project.write("kernels/part.cc.txt", PART.replace("VALUE;", "VALUEZ;"))
    project.replace("kernels/own.py", "TEMPLATE.replace(", 'TEMPLATE.replace("Z" if scale < 8 else "", "").replace(')
    run = project.scons("--cache-disable", "--partial", ok=False)
    place = r"build/kernels/demo/_objects/part.cc-[0-9a-f]{16}/part.cc"
    assert re.search(rf"run \[nvcc\]: nvcc ended(?s:.*?){place}:2:\d+: error: .VALUEZ. was not declared", run.output)
    assert re.search(rf"remedy: mend what the definition writes into {place}, or the flags", run.output)
    assert project.python("import demo; print(demo.run.variant(scale=3)())") == "40\n"
    made = project.manifest["kernels"]["run"]
    assert len(made["source_libraries"]) == 2
    assert [variant["slug"] for variant in made["variants"]] == ["scale-3", "scale-5"]


def test_a_file_beside_a_source_that_hides_a_text_is_an_error(project):
    project.write("kernels/config.inc", "#define SCALE 1000\nint part();\n")
    run = project.scons("run", ok=False)
    assert (
        "kernels/numbers.cc includes the file 'config.inc' beside it, which hides the Text of this name" in run.output
    )
    (project.folder / "kernels/config.inc").unlink()
    project.scons()
    assert project.python(CALLS) == "[40, 60, 80] [1, 2] 1\n"


def test_so_is_a_file_beside_a_header_and_what_the_header_has_for_itself_is_none(project):
    project.write("include/common.h", '#pragma once\n#include "config.inc"\n')
    project.write("include/config.inc", "#pragma once\n#define SCALE 1000\nint part();\n")
    project.replace("kernels/numbers.cc", '#include "config.inc"', '#include "../include/common.h"')
    run = project.scons("run", ok=False)
    assert "include/common.h includes the file 'config.inc' beside it, which hides the Text of this name" in run.output
    project.write("include/config.inc", "#pragma once\n#define ITS_OWN 1000\n")
    project.replace("kernels/numbers.cc", '#include "../include', '#include "config.inc"\n#include "../include')
    project.scons()
    assert project.python(CALLS) == "[40, 60, 80] [1, 2] 1\n"


def test_a_script_and_the_database_of_compilers_name_the_text(built):
    texts = list(built.folder.glob("build/**/_objects/part.cc-*/part.cc"))
    (script, *_) = built.folder.glob("build/**/_objects/compile_part.cc-*.sh")
    named = re.search(r'"\$HERE"/(part.cc-[0-9a-f]{16}/part.cc)$', script.read_text().strip())
    assert named and script.parent / named[1] in texts and str(built.folder) not in script.read_text()


def test_a_wheel_has_the_libraries_of_all_configs(project):
    project.scons("wheel", "--cache-disable")
    (wheel,) = (project.folder / "dist").glob("*.whl")
    assert "all well" in project.kernelwright("verify", wheel)
    libraries = [name for name in inside(wheel) if ".cc-" in name]
    assert len(libraries) == 3 and not [name for name in inside(wheel) if name.endswith((".cc", ".inc"))]


DEVICE = """\
namespace {
__device__ int value = SCALE;  // nvcc makes names of these
__global__ void kernel(int *place, const char **file) { *place = value, *file = __FILE__; }
}  // namespace
int launch(int *place) {
  kernel<<<1, 1>>>(place, nullptr);
  return cudaGetLastError();
}
"""


def of_device_code(folder: Path, settings: str = "") -> Project:
    """A project that writes a source with device code."""
    definitions = DEFINITIONS.replace("part.cc.txt", "part.cu.txt").replace('"part.cc"', '"part.cu"')
    project = new_project(folder, settings, definitions.replace('Text("part.cu", ', 'Text("part.cu", INCLUDED + '))
    for scales in ("[3, 5, 8]", "[3, 5]"):
        project.replace("kernels/own.py", scales, "[5]")
    project.replace("kernels/own.py", "\n\ndef sources", "\nINCLUDED = '#include \"config.inc\"\\n'\n\n\ndef sources")
    project.write("kernels/part.cu.txt", PART + DEVICE)
    return project


ON_DEMAND = """
run = kw.load("kernels/own.py").run
made = run.using(archs=["sm_80"]).compile(scale=5)
print(made())
print(*[path.read_text().splitlines()[0] for path in made.artifacts.parent.rglob("part.cu")])
"""

READING = """\
def sources(scale, odd=False):
    if scale > 8:
        (Path(__file__).parent / "more.txt").exists()"""

UNSEEN = """
run = kw.load("kernels/own.py").run.using(archs=["sm_80"])
try:
    print(run.compile(scale=9)())
except kw.KernelwrightError as error:
    print(error)
"""

MISTAKEN = """
import re
try:
    kw.load("kernels/own.py").run.using(archs=["sm_80"]).compile(scale=5)
except kw.KernelwrightError as error:
    print(error)
    (named, *_) = re.findall(r"^\\s*(.*/part\\.cu)\\(\\d+\\): error", error.detail, re.M)
    print(os.path.isfile(named), named)
"""


def test_objects_are_equal_in_all_folders_and_on_demand(tmp_path):
    """And a fresh folder takes them out of the cache."""
    first = of_device_code(tmp_path / "first", f'cache_dir = "{tmp_path / "cache"}"\n')
    first.scons("-j2")
    second = of_device_code(tmp_path / "a second")
    second.scons("-j2", "--cache-disable")
    objects = first.files("build/kernels/demo/_objects")
    assert objects == second.files("build/kernels/demo/_objects") and any(name.endswith(".o") for name in objects)
    third = of_device_code(tmp_path / "third", f'cache_dir = "{tmp_path / "cache"}"\n')
    assert set(third.scons().labels) <= {"CACHED", "PACKAGE"}
    demand = Demand(second)
    assert demand.run(ON_DEMAND).stdout.splitlines() == ["60", '#include "config.inc"']
    second.write("kernels/part.cu.txt", PART + DEVICE.replace("SCALE", "SCALEX"))
    told = demand.run(MISTAKEN).stdout
    assert told.splitlines()[-1].startswith("True ") and "part.cu(5): error: identifier" in told
    second.replace("kernels/own.py", "def sources(scale, odd=False):", READING)
    told = demand.run(UNSEEN).stdout
    assert "run/scale-9 [lower]: what makes its sources uses kernels/more.txt for a config that the" in told
    second.write("kernels/part.cu.txt", PART + DEVICE)
    second.replace("kernels/own.py", '(Path(__file__).parent / "more.txt").exists()', "Path(__file__).read_text()")
    said = "all of the definition file is known, which writes sources for a config that it does not list"
    assert demand.run(UNSEEN).stdout == "100\n", said
