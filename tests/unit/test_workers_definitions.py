"""Executing definition files: always the current text, with exact dependencies, and errors at the user's line."""

from __future__ import annotations

import hashlib
import os
import py_compile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelwright.errors import DefinitionError
from workers_project import COPY, Project


@pytest.fixture(scope="module")
def pool_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("definitions"))
    with project.pool:
        yield project


@pytest.fixture
def project(pool_project: Project) -> Project:
    """A project whose only files are those of the test; all tests share one worker, as all files of a build do."""
    for path in sorted(pool_project.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return pool_project


def deps(project: Project, file: str) -> list[str]:
    return list(project.discover(file)["dependencies"])


def test_the_record_says_everything_that_the_decorator_was_told(project: Project) -> None:
    text = '''
    from kernelwright import grid, kernel

    @kernel(configs=grid(m=[1, 2], t=["a b"]), targets=["cuda"], archs=["sm_80"], backends=["tvm_ffi"],
            outputs=["y"], flags=["-O1"], tolerance=0.5)
    def k(m, t, target):
        """First line.

        More.
        """

    @k.reference
    def _(x):
        return x
    '''
    record = project.discover(str(project.write("kernels/k.py", text)))
    (kernel,) = record["kernels"]
    assert kernel["location"].startswith("kernels/k.py:")
    assert (record["schema"], record["file"], list(record["dependencies"])) == (1, "kernels/k.py", ["kernels/k.py"])
    assert kernel["configs"] == [{"m": 1, "t": "a b"}, {"m": 2, "t": "a b"}]
    assert len(set(kernel["slugs"])) == 2
    expected = {
        "name": "k",
        "doc": "First line.\n\nMore.",
        "targets": ["cuda"],
        "archs": ["sm_80"],
        "backends": ["tvm_ffi"],
        "outputs": ["y"],
        "flags": ["-O1"],
        "tolerance": 0.5,
        "has_reference": True,
        "takes_target": True,
    }
    assert {key: kernel[key] for key in expected} == expected


def test_dependencies_are_the_project_files_that_were_imported_and_no_others(project: Project) -> None:
    project.write("kernels/_helper.py", "import shared.deep.leaf\nVALUE = 1\n")
    project.write("kernels/_unused.py", "")
    project.write("shared/__init__.py", "")
    project.write("shared/deep/__init__.py", "from . import sub\n")
    project.write("shared/deep/sub.py", "")
    project.write("shared/deep/leaf.py", "import importlib\nimportlib.import_module('shared.dynamic')\n")
    project.write("shared/dynamic.py", "")
    project.write("shared/other.py", "")
    file = project.empty("k", "from _helper import VALUE\nimport json, tvm, numpy")
    record = project.discover(file)
    assert list(record["dependencies"]) == [
        "kernels/_helper.py",
        "kernels/k.py",
        "shared/__init__.py",
        "shared/deep/__init__.py",
        "shared/deep/leaf.py",
        "shared/deep/sub.py",
        "shared/dynamic.py",
    ]
    for name, digest in record["dependencies"].items():
        assert digest == hashlib.sha256((project.folder / name).read_bytes()).hexdigest()


def test_a_definition_file_in_a_package_can_import_relatively(project: Project) -> None:
    project.write("lib/__init__.py", "")
    project.write("lib/kernels/__init__.py", "")
    project.write("lib/common.py", "FACTOR = 2\n")
    project.write("lib/kernels/_tiles.py", "TILE = 4\n")
    text = COPY.format(name="k", factor="1.0")
    file = project.write("lib/kernels/k.py", "from ..common import FACTOR\nfrom . import _tiles\n" + text)
    assert deps(project, str(file)) == [
        "lib/__init__.py",
        "lib/common.py",
        "lib/kernels/__init__.py",
        "lib/kernels/_tiles.py",
        "lib/kernels/k.py",
    ]
    assert project.lower("lib/kernels/k.py", "k")["schedule"] == "as written"


def test_a_folder_without_init_is_a_namespace_package(project: Project) -> None:
    project.write("kernels/_helper.py", "")
    file = project.empty("k", "import kernels._helper, json.decoder")
    assert deps(project, file) == ["kernels/_helper.py", "kernels/k.py"]


def test_a_data_file_that_is_read_is_a_dependency(project: Project) -> None:
    project.write("tuning/table.json", "[1]")
    project.write("tuning/written.txt", "")
    top = """
    import json, pathlib
    TABLE = json.loads(pathlib.Path(__file__).parent.parent.joinpath("tuning/table.json").read_text())
    open("tuning/written.txt", "w").close()
    """
    assert deps(project, project.empty("k", top)) == ["kernels/k.py", "tuning/table.json"]


def test_an_import_inside_the_function_is_reported_by_the_lowering(project: Project) -> None:
    project.write("kernels/_later.py", "FACTOR = 3.0\n")
    text = COPY.format(name="k", factor="FACTOR").replace("    @T", "    from _later import FACTOR\n    @T")
    file = str(project.write("kernels/k.py", text).relative_to(project.folder))
    assert deps(project, file) == ["kernels/k.py"]
    result = project.lower(file, "k")
    assert list(result["dependencies"]) == ["kernels/_later.py", "kernels/k.py"]
    assert b"T.float32(3.0)" in result["contents"]["module.tir"]
    project.write("kernels/_later.py", "FACTOR = 4.0\n")
    assert b"T.float32(4.0)" in project.lower(file, "k")["contents"]["module.tir"]


def set_time(path: Path, seconds: float = 1_600_000_000.0) -> None:
    os.utime(path, (seconds, seconds))


@pytest.mark.parametrize("edited", ["kernels/k.py", "kernels/_helper.py"])
def test_an_edit_of_the_same_size_within_the_same_second_is_seen(project: Project, edited: str) -> None:
    for factor in ("2.0", "3.0", "4.0"):
        project.write("kernels/_helper.py", f"FACTOR = {factor}\n" if "_helper" in edited else "FACTOR = 1.0\n")
        own = "FACTOR" if "_helper" in edited else factor
        project.write("kernels/k.py", "from _helper import FACTOR\n" + COPY.format(name="k", factor=own))
        set_time(project.folder / "kernels/k.py")
        set_time(project.folder / "kernels/_helper.py")
        text = project.lower("kernels/k.py", "k")["contents"]["module.tir"]
        assert f"T.float32({factor})".encode() in text


def test_stale_bytecode_is_neither_used_nor_written(project: Project) -> None:
    helper = project.write("kernels/_helper.py", "FACTOR = 2.0\n")
    set_time(helper)
    py_compile.compile(str(helper))  # for the text above, with its size and time
    project.write("kernels/_helper.py", "FACTOR = 5.0\n")
    set_time(helper)
    bytecode = list(project.folder.rglob("*.pyc"))
    project.write("kernels/k.py", "from _helper import FACTOR\n" + COPY.format(name="k", factor="FACTOR"))
    assert b"T.float32(5.0)" in project.lower("kernels/k.py", "k")["contents"]["module.tir"]
    assert list(project.folder.rglob("*.pyc")) == bytecode


def test_a_new_helper_file_is_found_at_once(project: Project) -> None:
    file = project.empty("k", "import _new")
    with pytest.raises(DefinitionError, match="No module named '_new'"):
        project.discover(file)
    project.write("kernels/_new.py", "")
    assert deps(project, file) == ["kernels/_new.py", "kernels/k.py"]


def test_files_of_one_name_in_different_folders_do_not_mix(project: Project) -> None:
    for folder, factor in (("one", 2.0), ("two", 3.0)):
        project.write(f"{folder}/_helper.py", f"FACTOR = {factor}\n")
        project.write(f"{folder}/k.py", "import _helper\n" + COPY.format(name="k", factor="_helper.FACTOR"))
    for folder, factor in (("one", 2.0), ("two", 3.0), ("one", 2.0)):
        result = project.lower(f"{folder}/k.py", "k")
        assert f"T.float32({factor})".encode() in result["contents"]["module.tir"]
        assert list(result["dependencies"]) == [f"{folder}/_helper.py", f"{folder}/k.py"]


def test_a_definition_file_may_have_the_name_of_a_standard_module(project: Project) -> None:
    for name in ("copy", "random"):
        assert project.discover(project.copy(name))["kernels"][0]["name"] == name
    file = project.empty("k", "import copy, random\ncopy.deepcopy, random.random")
    assert deps(project, file) == ["kernels/k.py"]


def test_variants_of_one_file_execute_it_once(project: Project) -> None:
    text = """
    import tvm
    from kernelwright import grid, kernel
    from tvm import te
    print("executing")

    @kernel(configs=grid(n=[1, 2, 3]))
    def k(n):
        x = te.placeholder((n,), "float32", name="x")
        return te.create_prim_func([x, te.compute((n,), lambda i: x[i] + 1.0, name="y")])
    """
    project.write("kernels/k.py", text)
    project.printed.clear()
    for n in (1, 2, 3):
        project.lower("kernels/k.py", "k", slug=f"n-{n}", config={"n": n})
    assert "".join(project.printed).count("executing") == 1


def test_a_changed_config_is_an_error_and_not_another_kernel(project: Project) -> None:
    project.copy("k")
    with pytest.raises(DefinitionError, match="edited during the build"):
        project.lower("kernels/k.py", "k", config={"n": 1})


def raises(project: Project, text: str) -> DefinitionError:
    file = project.write("kernels/bad.py", text)
    with pytest.raises(DefinitionError) as caught:
        project.discover(str(file))
    assert caught.value.where.stage == "discover"
    assert str(project.folder) not in str(caught.value)
    return caught.value


def test_a_syntax_error_names_line_and_text(project: Project) -> None:
    error = raises(project, "x = 1\ndef f(:\n    pass\n")
    assert error.where.location == "kernels/bad.py:2"
    assert "SyntaxError" in error.message and "def f(:" in str(error.detail)


def test_a_syntax_error_in_a_helper_names_the_helper(project: Project) -> None:
    project.write("kernels/_helper.py", "\n\n1 +\n")
    assert raises(project, "import _helper\n").where.location == "kernels/_helper.py:3"


def test_an_exception_shows_only_the_users_frames(project: Project) -> None:
    project.write("kernels/_helper.py", "def f():\n    return {}['missing']\n")
    error = raises(project, "from _helper import f\nf()\n")
    assert error.where.location == "kernels/_helper.py:2"
    assert "KeyError" in error.message
    assert "return {}['missing']" in str(error.detail)
    assert "workers/definitions.py" not in str(error.detail) and "importlib" not in str(error.detail)


def test_a_file_that_is_not_utf8_is_an_error(project: Project) -> None:
    path = project.write("kernels/bad.py", "")
    path.write_bytes(b"x = '\xff'\n")
    with pytest.raises(DefinitionError, match="SyntaxError"):
        project.discover("kernels/bad.py")


def test_sys_exit_is_an_error(project: Project) -> None:
    error = raises(project, "import sys\nsys.exit(0)\n")
    assert "called sys.exit" in error.message and error.where.location == "kernels/bad.py:2"


def test_a_decorator_error_names_the_users_line(project: Project) -> None:
    error = raises(project, "from kernelwright import kernel\n\n@kernel(configs=[])\ndef k(): pass\n")
    assert error.where.location == "kernels/bad.py:3" and "configs is empty" in error.message


def test_a_file_without_a_kernel_is_an_error_with_a_remedy(project: Project) -> None:
    error = raises(project, "x = 1\n")
    assert "declares no kernel" in error.message and "_" in str(error.remedy)


def test_two_kernels_of_one_name_in_a_file_are_an_error(project: Project) -> None:
    text = "from kernelwright import kernel\n\n@kernel\ndef k(): pass\n\n@kernel\ndef k(): pass\n"
    error = raises(project, text)
    assert error.where.location == "kernels/bad.py:6" and "kernels/bad.py:3" in error.message


def test_kernels_of_one_name_from_a_factory_are_an_error(project: Project) -> None:
    text = """
    from kernelwright import kernel
    def make():
        @kernel
        def k(): pass
        return k
    a, b = make(), make()
    """
    assert "also defined" in raises(project, text).message


def test_a_kernel_that_is_imported_from_another_file_belongs_to_that_file(project: Project) -> None:
    project.copy("first")
    file = project.empty("second", "from first import first")
    assert [kernel["name"] for kernel in project.discover(file)["kernels"]] == ["second"]


def test_a_kernel_from_a_helpers_factory_belongs_to_the_file_that_keeps_it(project: Project) -> None:
    project.write(
        "kernels/_make.py",
        "from kernelwright import kernel\ndef make():\n    @kernel\n    def k(): pass\n    return k\n",
    )
    file = project.write("kernels/k.py", "from _make import make\nk = make()\n")
    assert [kernel["name"] for kernel in project.discover(str(file))["kernels"]] == ["k"]


def test_a_file_outside_of_the_project_or_missing_is_an_error(project: Project, tmp_path: Path) -> None:
    for file, what in ((str(tmp_path / "k.py"), "outside"), ("kernels/none.py", "does not exist")):
        with pytest.raises(DefinitionError, match=what):
            project.discover(file)


def test_an_error_in_tvmscript_names_the_line_inside_the_function(project: Project) -> None:
    text = COPY.format(name="k", factor="1.0").replace("x[j]", "unknown[j]")
    file = str(project.write("kernels/k.py", text))
    with pytest.raises(DefinitionError, match="unknown") as caught:
        project.lower(file, "k")
    assert caught.value.where.location == "kernels/k.py:11"
    assert caught.value.where.variant == "default"
    assert "site-packages" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return None", "returned None"),
        ("return 3", "builtins.int"),
        ("return [1 / 0]", "ZeroDivisionError"),
        ("raise SystemExit", "called sys.exit"),
        ("import missing_module", "ModuleNotFoundError"),
    ],
)
def test_a_definition_function_that_does_not_return_a_function_is_an_error(
    project: Project, body: str, what: str
) -> None:
    with pytest.raises(DefinitionError, match=what) as caught:
        project.lower(project.empty("k", body=body), "k")
    assert str(caught.value.where.location).startswith("kernels/k.py:")
