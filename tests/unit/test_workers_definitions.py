"""Executing definition files: always the current text, with exact dependencies, and errors at the user's line."""

from __future__ import annotations

import hashlib
import os
import py_compile
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.errors import DefinitionError
from kernelwright.core.files import dependency_digest
from kernelwright.core.project import Project as Files
from kernelwright.ondemand.record import note
from kernelwright.processes.protocol import DiscoverRequest
from kernelwright.worker.patterns import pattern_files
from support.workers_project import COPY, EMPTY, Project


@pytest.fixture(scope="module")
def pool_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("definitions"))
    with project.pool:
        yield project


@pytest.fixture
def project(pool_project: Project) -> Project:
    """A project whose only files are those of the test; all tests share one worker, as all files of a build do."""
    pool_project.clear()
    return pool_project


def files_of(result: dict[str, Any]) -> list[str]:
    """The files that a definition has read; not those that it has looked for in vain, and not the folders."""
    return [name for name, digest in result["dependencies"].items() if digest and not name.endswith("/")]


def deps(project: Project, file: str) -> list[str]:
    return files_of(project.discover(file))


def changed(project: Project, record: dict[str, Any]) -> list[str]:
    """The dependencies of a record that are not as they were."""
    return [n for n, digest in record["dependencies"].items() if dependency_digest(project.folder, n) != digest]


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
    def _(x, m):
        return x
    '''
    record = project.pool.call(DiscoverRequest(str(project.write("kernels/k.py", text))))
    (kernel,) = record.kernels
    assert kernel.location.startswith("kernels/k.py:")
    assert (record.file, list(record.dependencies)) == ("kernels/k.py", ["kernels/k.py"])
    assert kernel.configs == ({"m": 1, "t": "a b"}, {"m": 2, "t": "a b"})
    assert len(set(kernel.slugs)) == 2
    assert (kernel.name, kernel.doc, kernel.backward) == ("k", "First line.\n\nMore.", None)
    assert (kernel.reference, kernel.takes_target) == (("m",), True)
    expected = {
        **{"targets": ("cuda",), "archs": ("sm_80",), "backends": ("tvm_ffi",), "outputs": ("y",), "flags": ("-O1",)}
    }
    expected |= {"tolerance": 0.5, "frontend": "tir", "pass_configs": {}}
    assert {key: getattr(kernel.options, key) for key in expected} == expected


CUTEDSL = """
from kernelwright import kernel

@kernel(frontend="cutedsl", outputs=["y"])
def k():
    ...

@k.backward(outputs=["grad_x"])
def gradient():
    ...
"""


def test_a_kernel_and_its_backward_kernel_are_for_the_targets_of_the_front_end(project: Project) -> None:
    record = project.pool.call(DiscoverRequest(str(project.write("kernels/k.py", CUTEDSL))))
    assert [(kernel.name, kernel.options.targets) for kernel in record.kernels] == [
        ("k", ("cuda",)),
        ("k_backward", ("cuda",)),
    ]
    (other,) = project.pool.call(DiscoverRequest(project.empty("other"))).kernels
    assert other.options.targets == ("llvm", "cuda")


def test_dependencies_are_the_project_files_that_were_imported_and_no_others(project: Project) -> None:
    used = {
        "kernels/_helper.py": "import shared.deep.leaf\nVALUE = 1\n",
        "shared/__init__.py": "",
        "shared/deep/__init__.py": "from . import sub\n",
        "shared/deep/leaf.py": "import importlib\nimportlib.import_module('shared.dynamic')\n",
        "shared/deep/sub.py": "",
        "shared/dynamic.py": "",
    }
    for name, text in {**used, "kernels/_unused.py": "", "shared/other.py": ""}.items():
        project.write(name, text)
    record = project.discover(project.empty("k", "from _helper import VALUE\nimport json, tvm, numpy"))
    assert files_of(record) == sorted([*used, "kernels/k.py"])
    for name in files_of(record):
        assert record["dependencies"][name] == hashlib.sha256((project.folder / name).read_bytes()).hexdigest()


def test_a_definition_file_in_a_package_can_import_relatively(project: Project) -> None:
    text = "from ..common import FACTOR\nfrom . import _tiles\n" + COPY.format(name="k", factor="FACTOR")
    files = {"lib/__init__.py": "", "lib/common.py": "FACTOR = 2.0\n", "lib/kernels/__init__.py": ""}
    files |= {"lib/kernels/_tiles.py": "TILE = 4\n", "lib/kernels/k.py": text}
    for name, content in files.items():
        project.write(name, content)
    assert deps(project, "lib/kernels/k.py") == list(files)
    assert project.lower("lib/kernels/k.py", "k")["schedule"] == "as written"


def set_time(path: Path, seconds: float = 1_600_000_000.0) -> None:
    os.utime(path, (seconds, seconds))


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


OPTIONAL = "try:\n    import lib_opt\nexcept ImportError:\n    pass"
MISSING = "try:\n    open('tuning.json')\nexcept OSError:\n    pass"


FOUND = [
    ("import lib.tool", "kernels/lib/__init__.py"),
    ("import lib.tool", "kernels/lib.py"),
    ("import lib.tool", "kernels/lib.abi3.so"),
    ("import lib.tool", "lib/__init__.py"),
    ("import lib.tool", "lib/tool/__init__.py"),
    ("import lib", "kernels/lib/x.py"),  # a folder of that name would become a part of the namespace package
    ("import single", "kernels/single.py"),
    ("import single", "single/__init__.py"),
    ("import importlib.util\nimportlib.util.find_spec('lib.none')", "lib/none.py"),
    ("from lib import tool\ntry:\n    from lib import none\nexcept ImportError:\n    pass", "lib/none.py"),
    (OPTIONAL, "kernels/lib_opt.py"),
    (OPTIONAL, "lib_opt/__init__.py"),
    (OPTIONAL, "lib_opt/x.py"),
    ("import pygments", "kernels/pygments.py"),
    ("import pygments", "pygments/__init__.py"),
    ("import sys\nsys.path.append('more')\n" + OPTIONAL, "more/lib_opt.py"),
    (MISSING, "tuning.json"),
    ("import os\nos.listdir('tables')", "tables/b.json"),
    ("import os\nos.listdir('tables/build')", "tables/build/b.json"),
    ("import os\nwith os.scandir(b'tables') as found: list(found)", "tables/b.json"),
    ("import os\nlist(os.walk('tables'))", "tables/deep/b.json"),
    ("from pathlib import Path\nlist(Path('tables').iterdir())", "tables/b.json"),
    ("from pathlib import Path\nlist(Path('tables').rglob('*.json'))", "tables/deep/b.json"),
    ("from pathlib import Path\nlist(Path('tables').glob('deep/b.json'))", "tables/deep/b.json"),
    ("from pathlib import Path\nlist(Path('.').glob('*/deep/b.json'))", "tables/deep/b.json"),
    ("import glob\nglob.glob('tables/*.json')", "tables/b.json"),
    ("import glob\nglob.glob('t*/deep/b.json')", "tables/deep/b.json"),
    ("import glob\nglob.glob('t*/more/*.json')", "tables/more/b.json"),
    ("import glob\nglob.glob('tables/b.json')", "tables/b.json"),
    ("import glob\nglob.glob('b.json', root_dir='tables')", "tables/b.json"),
    ("import glob\nglob.glob('none/*.json')", "none/b.json"),
    ("import os\nos.listdir()", "b.json"),
]
"""The top of a definition file, and a file that would change what it has found."""

NOT_FOUND = [
    ("import lib.tool", "kernels/new_kernel.py"),
    ("import lib.tool", "lib/other.py"),
    ("import lib.tool", "tool.py"),
    ("import kernelwright, tvm, numpy, json", "kernels/numpy.py"),  # all workers have them before any definition
    (OPTIONAL, "kernels/lib_optional.py"),
    (MISSING, "kernels/tuning.json"),
    ("import os\nos.listdir('tables')", "tables/.b.json.swp"),
    ("import os\nos.listdir('tables')", "tables/__pycache__/b.pyc"),
    ("import os\nos.listdir('tables')", "tables/deep/b.json"),
    ("import sys\nsys.path.append('tables')\n" + OPTIONAL, "tables/b.json"),
    ("import os\nlist(os.walk('.'))", "build/deep/b.json"),
    ("import os\nlist(os.walk('.'))", "dist/b.whl"),
    ("import os\nlist(os.walk('.'))", ".git/deep/b"),
]
"""The same for one that changes nothing."""


@pytest.mark.parametrize(
    ("top", "made", "is_found"), [*((*row, True) for row in FOUND), *((*row, False) for row in NOT_FOUND)]
)
def test_a_file_that_would_change_what_was_found_is_a_dependency_and_no_other(project, top, made, is_found):
    for name in ("lib/tool.py", "single.py", "tables/a.json", "tables/deep/a.json", "tables/build/a"):
        project.write(name, "")
    for name in (".git/deep/a", "build/deep/a", "dist/a"):
        project.write(name, "")
    record = project.discover(project.empty("k", top))
    assert changed(project, record) == []
    project.write(made, "")
    assert bool(changed(project, record)) == is_found


def test_an_installed_module_that_another_definition_has_loaded_leaves_the_same_dependencies(project: Project) -> None:
    absent = [
        {name for name, digest in project.discover(project.empty(name, "import iniconfig"))["dependencies"].items()}
        - {f"kernels/{name}.py"}
        for name in ("first", "second")
    ]
    assert "kernels/iniconfig.py" in absent[0]
    assert absent[0] == absent[1]


def test_an_installed_package_never_imports_a_file_of_the_project(project: Project) -> None:
    project.write("kernels/iniconfig.py", "raise RuntimeError('not this one')\n")
    record = project.discover(project.empty("k", "import sys\nassert 'pytest' not in sys.modules\nimport pytest"))
    assert not [name for name in record["dependencies"] if "iniconfig" in name]


LOADED = """
import importlib.util
spec = importlib.util.spec_from_file_location("tool", "lib/tool.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)
"""


@pytest.mark.parametrize("top", ["import sys\nsys.path.insert(0, 'lib')\nimport tool", LOADED])
def test_a_module_from_another_folder_is_a_dependency_and_fresh(project: Project, top: str) -> None:
    path = project.write("lib/tool.py", "VALUE = 1\n")
    set_time(path)
    py_compile.compile(str(path))
    project.write("lib/tool.py", "VALUE = 2\n")
    set_time(path)
    assert deps(project, project.empty("k", top + "\nprint('value', tool.VALUE)")) == ["kernels/k.py", "lib/tool.py"]
    assert "value 2" in project.printed[-1]


@pytest.mark.parametrize(
    "top",
    [
        "open('tuning/data', 'r+').close()",
        "open('tuning/data', 'a').close()\nopen('tuning/data').close()",
        "open('tuning/dat', 'w').close()\nopen('tuning/data').close()",
        "import os\nos.close(os.open('tuning/data', os.O_WRONLY | os.O_CREAT))\nopen('tuning/data').close()",
        "import os\nos.makedirs('tuning', exist_ok=True)\nopen('tuning/data').close()",
        "import os\nos.close(os.open('tuning/data', os.O_RDONLY))",
        "import os\nos.close(os.open('tuning/data', os.O_RDWR))",
        "import os\nos.rename('tuning/other', 'tuning/data')\nopen('tuning/data').close()",
        "import numpy\nnumpy.memmap('tuning/data')",
        "import sqlite3\nsqlite3.connect('tuning/data').execute('select * from t').fetchall()",
        "from pathlib import Path\nPath(__file__).resolve().parent.parent.joinpath('tuning', 'data').read_bytes()",
        "import os\nos.chdir('tuning')\nopen('data').close()",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(1) as threads: threads.submit(open, 'tuning/data').result().close()",
    ],
)
def test_a_file_is_seen_however_it_is_read(project: Project, top: str) -> None:
    project.write("tuning/other", "1")
    with sqlite3.connect(project.folder / "tuning/data") as database:
        database.execute("create table t (x)")
    database.close()
    assert deps(project, project.empty("k", top)) == ["kernels/k.py", "tuning/data"]


def test_what_counts_of_a_file_is_the_content_that_was_read_first(project: Project) -> None:
    project.write("tuning/data", "1")
    top = """
    import os
    open("tuning/data").close()
    descriptor = os.open("tuning/data", os.O_WRONLY)
    os.write(descriptor, b"2")
    open("tuning/data").close()
    """
    digest = project.discover(project.empty("k", top))["dependencies"]["tuning/data"]
    assert digest == hashlib.sha256(b"1").hexdigest()


def test_the_source_of_a_function_is_the_one_that_was_compiled_whatever_the_file_has_now(project: Project) -> None:
    project.write("kernels/_helper.py", "def size():\n    return 111\n")
    top = """
    import inspect, os
    import _helper
    descriptor = os.open(_helper.__file__, os.O_WRONLY)
    os.write(descriptor, b"def size():\\n    return 22222\\n")
    os.close(descriptor)
    assert "return 111" in inspect.getsource(_helper.size)
    """
    digest = project.discover(project.empty("k", top))["dependencies"]["kernels/_helper.py"]
    assert digest == hashlib.sha256(b"def size():\n    return 111\n").hexdigest()


def test_files_that_threads_read_at_the_same_time_are_all_seen(project: Project) -> None:
    names = [project.write(f"tuning/{n}", "x" * 100_000).relative_to(project.folder).as_posix() for n in range(200)]
    top = f"""
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path
    with ThreadPoolExecutor(8) as threads: list(threads.map(lambda name: Path(name).read_bytes(), {names}))
    """
    assert set(names) <= set(deps(project, project.empty("k", top)))


def test_what_a_definition_makes_itself_is_no_dependency(project: Project) -> None:
    top = """
    import os, tempfile
    from pathlib import Path
    open("tuning.txt", "w").close()
    open("tuning.txt").close()
    Path("made.json").write_text("1")
    os.rename("made.json", "moved.json")
    Path("moved.json").read_text()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        Path(folder, "deep").mkdir()
        Path(folder, "deep/data").write_text("2")
        Path(folder, "deep/data").read_text()
        os.listdir(folder)
    """
    project.write("tuning.txt", "written before it is read")
    assert list(project.discover(project.empty("k", top))["dependencies"]) == ["kernels/k.py"]


def test_a_project_is_known_by_its_real_path_too(tmp_path: Path) -> None:
    (tmp_path / "real/kernels").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    files = Files(tmp_path / "link")
    assert files.relative(str(tmp_path / "link/kernels/k.py")) == "kernels/k.py"
    assert files.relative(str(tmp_path / "real/kernels/k.py")) == "kernels/k.py"
    assert files.relative(str(tmp_path / "real")) == "." and files.relative(str(tmp_path)) is None


def test_digests_of_dependencies(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.py").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    for name, content in {"b.py": b"x", "./": b"b.py\npipe\nsub", "sub/": b""}.items():
        assert dependency_digest(tmp_path, name) == hashlib.sha256(content).hexdigest()
    for name in ("none", "none/", "b.py/", "sub", "pipe"):
        assert dependency_digest(tmp_path, name) == ""


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("t/a.json", ["t/a.json"]),
        ("none/a.json", ["none/a.json"]),
        ("t/*.json", ["t/", "t/a.json", "t/b.json"]),
        ("t/[!a].json", ["t/", "t/b.json"]),
        ("*/c.json", ["./", "t/c.json"]),
        ("t/*/c.json", ["t/", "t/d/c.json", "t/up/c.json"]),
        ("none/*.json", ["none/"]),
        ("t/**", ["t/", "t/", "t/a.json", "t/b.json", "t/d/", "t/d/", "t/d/TUNED", "t/d/c.json"]),
        ("**/c.json", ["./", "c.json", "t/", "t/c.json", "t/d/", "t/d/c.json"]),
    ],
)
def test_the_files_and_folders_of_a_pattern(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    for name in ("t/a.json", "t/b.json", "t/.hidden.json", "t/d/c.json", "t/d/TUNED", "build/c.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "t/up").symlink_to("..")
    assert sorted(pattern_files(tmp_path, ".", pattern.split("/"))) == expected


READS = """
from kernelwright import kernel

@kernel(reads={reads})
def k():
    return None
"""


@pytest.mark.parametrize(
    ("reads", "made", "is_dependency"),
    [
        (["tuning.json"], "kernels/tuning.json", True),
        (["new.json"], "kernels/new.json", True),
        (["../tables/*.json"], "tables/a.json", True),
        (["../tables/*.json"], "tables/new.json", True),
        (["../tables/**"], "tables/deep/new", True),
        (["../tables/*.json"], "tables/deep/new.json", False),
        (["tuning.json"], "kernels/new.json", False),
    ],
)
def test_what_a_kernel_declares_is_a_dependency_even_if_nothing_reads_it(project, reads, made, is_dependency):
    project.write("kernels/tuning.json", "1")
    project.write("tables/a.json", "1")
    project.write("tables/deep/a.json", "1")
    record = project.discover(str(project.write("kernels/k.py", READS.format(reads=reads))))
    project.write(made, "2")
    assert bool(changed(project, record)) == is_dependency


def test_a_changed_config_is_an_error_and_not_another_kernel(project: Project) -> None:
    project.copy("k")
    with pytest.raises(DefinitionError, match="edited meanwhile"):
        project.lower("kernels/k.py", "k", config={"n": 1})
    with pytest.raises(DefinitionError, match="no kernel 'other'"):
        project.lower("kernels/k.py", "other")


def test_a_name_of_a_standard_module_is_that_module_elsewhere(project: Project) -> None:
    for name in ("copy", "random", "wave"):
        assert project.discover(project.copy(name))["kernels"][0]["name"] == name
    top = "import sys\nassert 'wave' not in sys.modules\nimport copy, random, wave\ncopy.deepcopy, random.random"
    assert deps(project, project.empty("k", top + "\nwave.Wave_read")) == ["kernels/k.py"]


MAKE = "from kernelwright import kernel\ndef make():\n    @kernel\n    def k(): pass\n    return k\n"


def test_a_kernel_belongs_to_the_file_that_keeps_it(project: Project) -> None:
    project.copy("first")
    project.write("kernels/_make.py", MAKE)
    file = project.empty("second", "from first import first\nfrom _make import make\nmade = make()")
    assert {kernel["name"] for kernel in project.discover(file)["kernels"]} == {"second", "k"}


KERNEL = "from kernelwright import kernel\n"
UNPRINTABLE = "class Unprintable(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise Unprintable\n"


@pytest.mark.parametrize(
    ("text", "line", "message", "more"),
    [
        ("x = 1\ndef f(:\n    pass\n", "bad.py:2", "SyntaxError", "def f(:\n      ^"),
        ("import _broken\n", "_broken.py:3", "SyntaxError", "1 +"),
        ("import _new\n", "bad.py:1", "No module named '_new'", "import _new"),
        ("from _raises import f\nf()\n", "_raises.py:2", "KeyError", "return {}['missing']"),
        ("import sys\nsys.exit(0)\n", "bad.py:2", "called sys.exit", ""),
        (f"{KERNEL}\n@kernel(configs=[])\ndef k(): pass\n", "bad.py:3", "configs is empty", ""),
        ("x = 1\n", "bad.py", "declares no kernel", "_"),
        (f"{KERNEL}\n@kernel\ndef k(): pass\n\n@kernel\ndef k(): pass\n", "bad.py:6", "kernels/bad.py:3", ""),
        (f"{MAKE}a, b = make(), make()\n", "bad.py:3", "also defined", ""),
        (UNPRINTABLE, "bad.py:4", "Unprintable: (it has no text: its __str__ raised RuntimeError)", ""),
        (
            f"{KERNEL}@kernel(output=['y'])\ndef k(): ...\n",
            "bad.py:2",
            "output",
            "did you mean 'outputs'? the arguments of ",
        ),
        (f"{KERNEL}@kernel(q=['y'])\ndef k(): ...\n", "bad.py:2", "q", "the arguments of @kernel are outputs, "),
        (f"{KERNEL}@kernel(reads=['../tables'])\ndef k(): ...\n", "bad.py:2", "which is a folder", '"../tables/**"'),
        ("x = '\udcff'\n", "bad.py:1", "SyntaxError", ""),
    ],
)
def test_what_is_wrong_in_a_file_is_an_error_at_the_users_line_that_shows_no_other_frame(
    project: Project, text: str, line: str, message: str, more: str
) -> None:
    project.write("kernels/_broken.py", "\n\n1 +\n")
    project.write("kernels/_raises.py", "def f():\n    return {}['missing']\n")
    project.write("tables/a.json", "")
    (project.folder / "kernels/bad.py").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DefinitionError) as caught:
        project.discover("kernels/bad.py")
    error = caught.value
    assert (error.where.stage, error.where.location) == ("discover", f"kernels/{line}")
    assert message in error.message and more in f"{error.detail}{error.remedy}"
    for hidden in (str(project.folder), "worker/definitions.py", "importlib"):
        assert hidden not in str(error)


def test_a_file_outside_of_the_project_or_missing_is_an_error(project: Project, tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text("")
    for file, what in ((str(tmp_path / "k.py"), "outside"), ("kernels/none.py", "does not exist")):
        with pytest.raises(DefinitionError, match=what):
            project.discover(file)


TE = """from tvm import te
x, y = (te.placeholder((8,), "float32", name=name) for name in "xy")
z = te.compute((8,), lambda i: x[i] + y[i], name="z")
return te.create_prim_func([x, z])"""


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (COPY.format(name="k", factor="1.0").replace("x[j]", "unknown[j]"), 11, "unknown"),
        (EMPTY.format(name="k", top="", body=TE.replace("\n", "\n    ")), 9, ""),
        (EMPTY.format(name="k", top="", body="return None"), 4, "returned None"),
        (EMPTY.format(name="k", top="", body="return 3"), 4, "builtins.int"),
        (EMPTY.format(name="k", top="", body="return [1 / 0]"), 6, "ZeroDivisionError"),
        (EMPTY.format(name="k", top="", body="raise SystemExit"), 6, "called sys.exit"),
        (EMPTY.format(name="k", top="", body="import missing_module"), 6, "ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_when_it_is_lowered_is_an_error_at_the_users_line(project, text, line, message):
    project.write("kernels/k.py", text)
    with pytest.raises(DefinitionError, match=message) as caught:
        project.lower("kernels/k.py", "k")
    assert (caught.value.where.location, caught.value.where.variant) == (f"kernels/k.py:{line}", "default")
    assert "site-packages" not in str(caught.value) and ".pxi" not in str(caught.value)


RECORDED = (
    COPY.format(name="k", factor="m").replace("import kernel", "import kernel, recorded").replace("k():", "k(m):")
)
RECORDED = RECORDED.replace(
    "@kernel", 'print("executed")\n@kernel(configs=recorded("configs.json", default=[{"m": 1}]))'
)


def test_a_worker_goes_on_lowering_while_configs_are_recorded(project: Project) -> None:
    """Lowerings do not depend on the file of configs, and discovery does."""
    file = str(project.write("kernels/k.py", RECORDED).relative_to(project.folder))
    path = project.folder / "kernels/configs.json"
    first = project.discover(file)
    assert (first["recorded"], first["kernels"][0]["configs"]) == ({"kernels/configs.json": ""}, [{"m": 1}])
    assert list(first["dependencies"]) == ["kernels/k.py"]
    executed = len(project.printed)

    note(path, "k", {"m": 5})
    lowered = project.lower(file, "k", slug="m-1", config={"m": 1})
    assert list(lowered["dependencies"]) == ["kernels/k.py"]
    unlisted = project.lower(file, "k", slug="m-5", config={"m": 5}, listed=False)
    assert len(project.printed) == executed, "nothing that it executed has changed"

    listed = project.lower(file, "k", slug="m-5", config={"m": 5})
    assert len(project.printed) == executed + 1
    assert listed["contents"] == unlisted["contents"]
    again = project.lower(file, "k", slug="m-5", config={"m": 5}, listed=False)
    assert again["contents"] == unlisted["contents"], "it was recorded in the meantime"

    note(path, "k", {"m": 6})
    found = project.discover(file)
    assert found["kernels"][0]["configs"] == [{"m": 5}, {"m": 6}]
    assert list(found["recorded"].values()) != [""]


def test_an_import_inside_the_function_is_reported_by_the_lowering(project: Project) -> None:
    project.write("kernels/_later.py", "FACTOR = 3.0\n")
    text = COPY.format(name="k", factor="FACTOR").replace("    @T", "    from _later import FACTOR\n    @T")
    file = str(project.write("kernels/k.py", text).relative_to(project.folder))
    assert deps(project, file) == ["kernels/k.py"]
    result = project.lower(file, "k")
    assert files_of(result) == ["kernels/_later.py", "kernels/k.py"]
    assert b"T.float32(3.0)" in result["contents"]["module.tir"]
    project.write("kernels/_later.py", "FACTOR = 4.0\n")
    assert b"T.float32(4.0)" in project.lower(file, "k")["contents"]["module.tir"]
