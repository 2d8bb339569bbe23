"""Kernels that list the same sources with the same options: one object of each source, and one library of all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.project import Project

SETTINGS = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80"]\nbackends = ["tvm_ffi"]\n'

HEAD = """\
#include <tvm/ffi/c_api.h>
#include "value.h"
#define KW_NUMBER(name, number)                                                     \\
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(           \\
      void *, const TVMFFIAny *, int32_t, TVMFFIAny *result) {                      \\
    result->type_index = kTVMFFIInt;                                                \\
    result->v_int64 = number;                                                       \\
    return 0;                                                                       \\
  }
static int calls;
KW_NUMBER(one, VALUE)
KW_NUMBER(two, 2 * VALUE)
KW_NUMBER(count, ++calls)
"""

LACKING = HEAD + "int nowhere(int);\nKW_NUMBER(astray, nowhere(1))\n"
"""The same with a function that calls what nothing has."""

DEFINITIONS = "from kernelwright import kernel\nfrom kernelwright.cuda import Exported\n"


def kernel(name: str, function: str, options: str = 'sources=["numbers.cc"]') -> str:
    return f'\n\n@kernel(frontend="cuda", {options})\ndef {name}():\n    return Exported("{function}")\n'


def new_project(folder: Path, settings: str = "") -> Project:
    """A project with three kernels in two files, which share a source."""
    first = DEFINITIONS + kernel("one", "one") + kernel("first", "count")
    second = DEFINITIONS + kernel("second", "count")
    project = Project.of(folder, SETTINGS + settings, a=first, b=second)
    project.write("kernels/numbers.cc", HEAD)
    project.write("kernels/value.h", "#define VALUE 1\n")
    return project


def value_of(project: Project, *kernels: str) -> list[int]:
    calls = ", ".join(f"demo.{name}()" for name in kernels)
    return list(json.loads(project.python(f"import demo; print([{calls}])")))


def libraries_in(project: Project) -> list[str]:
    return sorted(path.name for path in (project.folder / "build/demo/_lib").glob("*.cc-*.so"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = new_project(tmp_path_factory.mktemp("shared") / "project")
    labels = project.scons("-j2", "--cache-disable").labels
    assert (labels["OBJECT"], labels["SOURCES"], labels["LINK"]) == (1, 1, 3)
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    return built.copied(tmp_path / "project")


def test_kernels_of_several_files_have_one_library_with_one_state(built):
    assert len(libraries_in(built)) == 1
    assert value_of(built, "one", "first", "second", "first") == [1, 1, 2, 3]


def test_an_edit_of_a_header_makes_one_object_whichever_definitions_are_left(project):
    assert project.scons("--cache-disable").stages == []
    project.write("kernels/value.h", "#define VALUE 5\n")
    expected = ["LINK first", "LINK one", "LINK second", "OBJECT kernels/numbers.cc", "PACKAGE demo"]
    assert project.scons("--cache-disable").stages == [*expected, "SOURCES kernels/numbers.cc"]
    assert value_of(project, "one") == [5]
    # One that comes when the object is there, and the others are settled, knows what it was made of.
    project.write("kernels/c.py", DEFINITIONS + kernel("third", "two"))
    project.scons("--cache-disable")
    for name in ("a", "b"):
        (project.folder / f"kernels/{name}.py").unlink()
    project.scons("--cache-disable")
    project.write("kernels/value.h", "#define VALUE 7\n")
    project.scons("--cache-disable")
    assert value_of(project, "third") == [14]


def test_a_kernel_with_other_options_has_a_library_of_its_own_and_what_nobody_needs_goes(project):
    project.write("kernels/b.py", DEFINITIONS + kernel("second", "count", 'sources=["numbers.cc"], flags=["-DX"]'))
    labels = project.scons("--cache-disable").labels
    assert (labels["OBJECT"], labels["SOURCES"], labels["LINK"]) == (1, 1, 1)
    assert len(libraries_in(project)) == 2 and value_of(project, "first", "second") == [1, 1]
    (project.folder / "kernels/a.py").unlink()
    project.scons("--cache-disable")
    assert len(libraries_in(project)) == 1 and value_of(project, "second") == [1]
    project.write("kernels/b.py", DEFINITIONS + kernel("second", "count"))
    project.scons("--cache-disable")
    made = [*(project.folder / "build/kernels/demo/_objects").glob("*.o")]
    assert len(made) == 1, "the object with other options is gone"


def test_an_edit_of_one_definition_leaves_what_others_share(project):
    project.replace("kernels/b.py", '"count"', '"two"')
    assert set(project.scons("--cache-disable").labels) == {"LOWER", "WRAP", "CC", "LINK", "PACKAGE"}
    assert value_of(project, "first", "second") == [1, 2]
    assert project.scons("--cache-disable").stages == []


def test_packages_with_other_headers_each_have_their_own_functions(built, project):
    """Their libraries have equal names, because the request is the same."""
    project.write("kernels/value.h", "#define VALUE 3\n")
    project.replace("pyproject.toml", "[tool.kernelwright]", '[tool.kernelwright]\npackage = "other"')
    project.replace("SConstruct", '"demo"', '"other"')
    project.scons("--cache-disable")
    assert libraries_in(built) == sorted(p.name for p in (project.folder / "build/other/_lib").glob("*.cc-*.so"))
    code = f"import sys; sys.path.append({str(project.folder / 'build')!r})\nimport demo, other\n"
    assert built.python(code + "print(demo.one(), other.one(), other.first(), demo.first())") == "1 3 1 1\n"


def test_a_fresh_folder_takes_all_out_of_the_cache_and_shards_make_the_same(tmp_path):
    settings = f'cache_dir = "{tmp_path / "cache"}"\n'
    first = new_project(tmp_path / "first", settings)
    first.scons("-j2")
    assert first.scons().stages == []
    second = new_project(tmp_path / "second", settings)
    run = second.scons()
    assert set(run.labels) <= {"CACHED", "PACKAGE"}
    assert second.files("build/demo") == first.files("build/demo") and value_of(second, "second") == [1]
    assert second.scons().stages == []
    for library in second.folder.glob("build/**/_lib/*.cc-*.so"):
        library.write_bytes(b"damage")
    second.scons()
    assert second.files("build/demo") == first.files("build/demo"), "all of what was restored is looked at"
    second.write("kernels/value.h", "#define VALUE 9\n")
    second.scons()
    assert value_of(second, "one") == [9]


def test_a_merge_takes_the_library_that_each_shard_has_made(built, tmp_path):
    for number in (1, 2):
        shard = new_project(tmp_path / f"shard {number}", f'cache_dir = "{tmp_path}/cache {number}"\n')
        shard.scons(f"--shard={number}/2", "shard")
    merged = new_project(tmp_path / "merged")
    merged.kernelwright("merge", tmp_path / "cache 1", tmp_path / "cache 2")
    assert merged.files("build/demo") == built.files("build/demo")


def test_what_only_some_functions_lack_is_an_error_of_their_kernels(project):
    project.write("kernels/numbers.cc", LACKING)
    project.write("kernels/c.py", DEFINITIONS + kernel("third", "astray") + kernel("fourth", "nothing"))
    run = project.scons("--cache-disable", "-k", ok=False)
    assert "c.py:5 third/default [link]: nothing has nowhere(int), which 'astray' calls\n" in run.output
    assert "[link]: its sources do not export 'nothing'; they export astray, count, one, two\n" in run.output
    project.scons("--cache-disable", "--partial", ok=False)
    assert value_of(project, "one", "second") == [1, 1]


def test_a_partial_package_says_of_each_kernel_that_a_source_does_not_compile(project):
    project.write("kernels/numbers.cc", HEAD + "wrong\n")
    project.write("kernels/c.py", DEFINITIONS + kernel("third", "three", 'sources=["three.cc"]'))
    project.write("kernels/three.cc", HEAD.replace("one", "three"))
    project.scons("--cache-disable", "--partial", ok=False)
    manifest = project.manifest
    gaps = {(gap["kernel"], gap["stage"], gap["location"]) for gap in manifest["missing"]}
    assert gaps == {
        ("first", "nvcc", "kernels/a.py:10"),
        ("one", "nvcc", "kernels/a.py:5"),
        ("second", "nvcc", "kernels/b.py:5"),
    }
    assert value_of(project, "third") == [1]
    with pytest.raises(AssertionError, match=r"second.*nvcc"):
        project.python("import demo; demo.second")


def test_damage_of_the_library_is_found_before_it_is_loaded(project):
    (name,) = libraries_in(project)
    moved = project.folder / "elsewhere"
    shutil.move(project.folder / "build", moved)
    code = "import sys; sys.path.insert(0, 'elsewhere'); import demo; print(demo.second())"
    assert project.python(code) == "1\n", "a package can be moved"
    with (moved / "demo/_lib" / name).open("ab") as file:
        file.write(b"x")
    with pytest.raises(AssertionError, match=rf"DamageError: .*{name}"):
        project.python(code)
