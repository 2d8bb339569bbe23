"""Records of definition files in the build cache: which other trees may use them, and when they may not."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core import surroundings
from kernelwright.core.dependencies import present_digest
from kernelwright.core.files import LARGEST_RECORD
from kernelwright.stages.discovery import DefinitionRecords, Discovery
from kernelwright.state.cache import BuildCache
from support.workers_project import Project

TUNED = """\
from kernelwright import grid, kernel

@kernel(configs=grid(z=[1], a=[2, 3]), tune=grid(warps=[4, 8], block=[1]))
def tuned(z, a, warps, block):
    raise NotImplementedError


@tuned.sizes
def _(z, a):
    return {"n": [1, 100]}
"""


class Tree(Project):
    """A project whose build cache is beside it."""

    def __init__(self, folder: Path, cache: Path) -> None:
        super().__init__(folder)
        self.beside = cache.parent
        self.cache = BuildCache(cache, LARGEST_RECORD)
        self.runs = 0

    def _fresh(self) -> DefinitionRecords:
        """Records with nothing of an earlier run, but for the build cache."""
        self.runs += 1
        return DefinitionRecords(self.folder, self.beside / f"{self.folder.name}-{self.runs}", "tvm 1", self.cache)

    def record(self, *files: str) -> Discovery:
        return self._fresh().discover([self.folder / file for file in files], lambda: self.pool)

    def hits(self, *files: str) -> bool:
        """Whether the build cache has the records of files."""
        return self._fresh().are_known([self.folder / file for file in files])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("shared"))
    with project.pool:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("CUDA_VISIBLE_DEVICES", "1")
            project.discover(project.copy("first"))
        yield project


@pytest.fixture
def tree(shared: Project, tmp_path: Path) -> Iterator[Tree]:
    """A project with a worker of its own, whose fork server is that of other tests. It has CUDA_VISIBLE_DEVICES=1."""
    made = Tree(shared.folder, tmp_path / "cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CUDA_VISIBLE_DEVICES", "1")  # a pool of another environment would leave its fork server
        shared.lend_to(made)
    with made.pool:
        yield made


def entries(tree: Tree) -> list[Path]:
    return sorted((tree.beside / "cache").glob("??/*"))


def test_a_record_with_a_space_keeps_its_order(tree: Tree) -> None:
    tree.write("kernels/tuned.py", TUNED)
    first = tree.record("kernels/tuned.py")
    assert first.errors == [] and tree.hits("kernels/tuned.py") and tree.record("kernels/tuned.py") == first
    (kernel,) = first.records[0].kernels
    assert [*kernel.configs[0]][:2] == ["z", "a"]


@pytest.mark.parametrize(
    ("top", "change"),
    [
        ("import _new", lambda tree: tree.write("kernels/_new.py", "X = 2\n")),
        ("open('kernels/data.json')", lambda tree: tree.write("kernels/data.json", "{ }")),
        ("import os; os.listdir('kernels')", lambda tree: tree.write("kernels/other.txt", "")),
        ("try:\n    import _absent\nexcept ImportError:\n    pass", lambda tree: tree.write("kernels/_absent.py", "")),
        ("X = 1", lambda tree: tree.empty("one", "X = 2")),
    ],
    ids=["import", "read", "listing", "absent", "text"],
)
def test_another_content_of_anything_it_depends_on_is_a_miss(tree: Tree, top: str, change: Any) -> None:
    tree.write("kernels/_new.py", "X = 1\n")
    tree.write("kernels/data.json", "{}")
    file = tree.empty("one", top)
    assert not tree.record(file).errors and tree.hits(file)
    change(tree)
    assert not tree.hits(file)


@pytest.mark.parametrize(
    "top",
    [
        "import os; os.environ.get('CUDA_VISIBLE_DEVICES')",
        "import os; 'CUDA_VISIBLE_DEVICES' in os.environ",
        "import os; dict(os.environ)",
        "import os; list(os.environ)",
        "import os; os.getenvb(b'CUDA_VISIBLE_DEVICES')",
        "import os; os.environ['CUDA_VISIBLE_DEVICES']; os.environ['CUDA_VISIBLE_DEVICES'] = '3'",
    ],
)
def test_another_value_of_a_variable_that_it_asks_for_is_a_miss(tree, top, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    file = tree.empty("one", top)
    tree.record(file)
    assert tree.hits(file)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert not tree.hits(file)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert not tree.hits(file)


@pytest.mark.parametrize("around", ["", "/.."])
def test_a_path_of_the_project_in_what_it_declares_counts_in_its_place_only(tmp_path: Path, around: str) -> None:
    tree = Tree(tmp_path / "tree", tmp_path / "cache")  # the test moves it
    text = f"""\
        import os
        from kernelwright import kernel
        FOLDER = os.path.normpath(os.path.dirname(__file__) + "{around}/..")

        @kernel(flags=[f"-I{{FOLDER}}/include"])
        def k():
            raise NotImplementedError
    """
    tree.write("kernels/k.py", text)
    with tree.pool:
        (kernel,) = tree.record("kernels/k.py").records[0].kernels
    assert tree.hits("kernels/k.py") and str(tmp_path) in kernel.options.flags[0]
    other = Tree(tmp_path / "other" / "checkout", tmp_path / "cache")
    other.write("kernels/k.py", text)
    assert not other.hits("kernels/k.py")
    tree.folder.rename(tmp_path / "moved")
    moved = DefinitionRecords(tmp_path / "moved", tmp_path / "tree-1", "tvm 1")
    assert not moved.are_known([tmp_path / "moved/kernels/k.py"]), "nor what the tree itself has kept"


def test_a_path_of_the_project_in_what_is_lowered_counts_in_its_place_only(tree: Tree) -> None:
    tree.write("kernels/k.cu", 'extern "C" __global__ void f(const float* x) {}\n')
    for name, place in (("inside", '"k.cu"'), ("absolute", 'Path(__file__).with_name("k.cu")')):
        text = f"""\
            from pathlib import Path
            from kernelwright import kernel
            from kernelwright.cuda import Source, Tensor

            @kernel(frontend="cuda")
            def {name}():
                return Source({place}, "f", x=Tensor("float32", "n"), grid="n", block=32)
        """
        tree.write(f"kernels/{name}.py", text)
        lowered = tree.lower(f"kernels/{name}.py", name, "cuda", archs=("sm_80",))
        present = present_digest(tree.folder, surroundings.FOLDER)
        assert lowered["dependencies"].get(surroundings.FOLDER) == (present if name == "absolute" else None)
    assert present != present_digest(tree.folder / "elsewhere", surroundings.FOLDER)


def test_a_variable_that_it_does_not_ask_for_has_no_effect(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tree.empty("one")
    tree.record(file)
    for name in (*surroundings.PASSED_ON, "SOMETHING"):
        monkeypatch.setenv(name, "/elsewhere")
    assert tree.hits(file)


def test_another_version_of_an_installed_package_that_it_imports_is_a_miss(tree, monkeypatch):
    file = tree.empty("one", "import iniconfig")
    tree.record(file)
    assert tree.hits(file)
    digest = surroundings.installed_digest
    asked = []

    def changed(name: str) -> str:
        asked.append(name)
        return digest(name) + ("changed" if name == "iniconfig" else "")

    def is_known() -> bool:
        records = DefinitionRecords(tree.folder, tree.beside / f"{tree.folder.name}-1", "tvm 1")
        return records.are_known([tree.folder / file])

    assert is_known(), "in the tree that has found it out"
    monkeypatch.setattr(surroundings, "installed_digest", changed)
    assert not tree.hits(file) and asked == ["iniconfig"]
    assert not is_known()


@pytest.mark.parametrize(
    "top",
    [
        "open('/etc/hostname').close()",
        "import os; os.listdir('..')",
        "import subprocess; subprocess.run(['true'])",
        "import sys; sys.path.append('{outside}'); import somewhere_else",
    ],
    ids=["file", "folder", "process", "module"],
)
def test_a_record_that_depends_on_what_nobody_else_can_look_at_is_not_shared(tree: Tree, top: str) -> None:
    outside = tree.beside / "outside"
    outside.mkdir()
    (outside / "somewhere_else.py").write_text("")
    file = tree.empty("one", top.format(outside=outside))
    assert not tree.record(file).errors
    assert entries(tree) == [] and not tree.hits(file)


def test_another_python_numpy_or_tvm_is_a_miss(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tree.empty("one")
    tree.record(file)
    other = DefinitionRecords(tree.folder, tree.beside / "other", "tvm 2", tree.cache)
    assert not other.are_known([tree.folder / file])
    with monkeypatch.context() as patched:
        patched.setattr(sys, "version_info", (3, 99, 0))
        assert not tree.hits(file)
    with monkeypatch.context() as patched:
        patched.setattr(surroundings, "versions_of", lambda names: ["numpy-99.dist-info", ""])
        assert not tree.hits(file)
    assert tree.hits(file)


def test_damaged_and_strange_entries_are_misses(tree: Tree) -> None:
    file = tree.empty("one")
    tree.record(file)
    contents = {entry: entry.read_bytes() for entry in entries(tree)}
    assert contents
    for entry, content in contents.items():
        entry.write_bytes(content[: len(content) // 2])
        assert not tree.hits(file)
        entry.write_bytes(content)
    assert tree.hits(file)
    with pytest.MonkeyPatch.context() as patched:
        for change in ({"file": "kernels/two.py"}, {"kernels": [{}]}, {"schema": 99}, {"dependencies": {}}):
            patched.setattr(tree.cache, "recall", lambda question, current, change=change: _changed(tree, change))
            assert not tree.hits(file)


def _changed(tree: Tree, change: dict[str, Any]) -> Any:
    from kernelwright.core.records import Record

    (text,) = [e.read_bytes().partition(b"\n")[2] for e in entries(tree) if b'"kernels"' in e.read_bytes()]
    return Record(json.loads(text) | change, "")


def test_distributions_are_found_by_their_files() -> None:
    import iniconfig
    import numpy

    files = [str(iniconfig.__file__), str(numpy.__file__)]
    assert surroundings.distributions_of(files) == ["iniconfig", "numpy"]
    assert surroundings.distributions_of(["/somewhere/else.py"]) is None
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(Path(str(numpy.__file__)).parent)
        assert surroundings.distributions_of(files) == ["iniconfig", "numpy"], "a folder of a package is on the path"
    for path in ("not_recorded.py", "../__init__.py"):  # there are files whose names end like the second
        assert surroundings.distributions_of([os.path.normpath(Path(str(numpy.__file__)).parent / path)]) is None
    assert surroundings.installed_digest("numpy") and surroundings.installed_digest("no_such_thing") == ""
    assert surroundings.surrounding_digest("kernels/numpy.py") is None


def test_another_version_of_a_distribution_is_seen_also_if_its_files_are_the_same(tmp_path, monkeypatch):
    """A definition may ask for the version."""
    monkeypatch.syspath_prepend(str(tmp_path))
    digests = []
    for version in (1, 2):
        (folder := tmp_path / f"acme-{version}.dist-info").mkdir()
        (folder / "RECORD").write_text("acme.py,sha256=1,1\n")
        os.utime(tmp_path, (version, version))
        digests.append(surroundings.installed_digest("acme"))
        shutil.rmtree(folder)
    assert len({*digests, ""}) == 3


@pytest.mark.parametrize(
    "name", ["", "/numpy", "**", "n*", "[", "..", "../numpy", "numpy\0", "numpy\n", "numpy-", "nump"]
)
def test_a_name_that_no_distribution_has_is_looked_for_nowhere(name: str) -> None:
    assert surroundings.surrounding_digest("/installed/numpy")
    assert surroundings.surrounding_digest(f"/installed/{name}") == ""
