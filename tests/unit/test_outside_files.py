"""Files outside of the project are dependencies like those in it; their names mean the same elsewhere if they can."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.dependencies import (
    dependency_name,
    is_portable,
    may_be_asked,
    path_of,
    present_digest,
    repository_around,
)
from kernelwright.core.project import Installation
from kernelwright.core.project import Project as Names
from support.workers_project import Project


@pytest.fixture(scope="module")
def monorepo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project in a repository, with other folders of it beside, and one outside of it."""
    top = tmp_path_factory.mktemp("monorepo")
    project = Project(top / "repo/proj")
    (top / "repo/.git").mkdir(parents=True)
    with project.pool:
        yield project


@pytest.fixture
def project(monorepo: Project) -> Project:
    for folder in ("repo/common", "far"):
        for name, text in {"tiles.py": "VALUE = 1\n", "table.json": "1\n"}.items():
            path = top_of(monorepo) / folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return monorepo


def top_of(project: Project) -> Path:
    return project.folder.parents[1]


def dependencies(project: Project, top: str) -> dict[str, str]:
    """What a definition file depends on, besides itself and what it looks for beside itself in vain."""
    text = textwrap.dedent(top).format(top=top_of(project))
    record = project.discover(project.empty("k", text))
    listed: dict[str, str] = {**record["dependencies"], **record["recorded"]}
    return {name: digest for name, digest in listed.items() if name.startswith(("/", "../"))}


FOLDERS = ("{top}/repo/common", "{top}/far")

USES = [
    ("import sys; sys.path.insert(0, '{folder}'); import tiles", "tiles.py"),
    ("import sys; sys.path.append('{folder}')\ndef f(): import tiles\nf()", "tiles.py"),
    (
        "from importlib.util import *\nspec = spec_from_file_location('tiles', '{folder}/tiles.py')\n"
        "spec.loader.exec_module(module_from_spec(spec))",
        "tiles.py",
    ),
    ("open('{folder}/table.json').close()", "table.json"),
    ("try: open('{folder}/new.json')\nexcept OSError: pass", "new.json"),
    ("import os; os.listdir('{folder}')", ""),
    ("import os; os.listdir(os.open('{folder}', os.O_RDONLY))", ""),
    ("import os; list(os.fwalk('{folder}'))", ""),
    ("import os; os.open('table.json', os.O_RDONLY, dir_fd=os.open('{folder}', os.O_RDONLY))", "table.json"),
    ("f = open('{folder}/table.json', 'a+'); f.seek(0); f.read()", "table.json"),
    ("from pathlib import Path; list(Path('{folder}').glob('*/new.json'))", ""),
]
"""What a definition does -> the file of the folder that it uses, or empty: the folder itself."""


# Each use in one of the folders, and the first in all of them.
@pytest.mark.parametrize(
    ("code", "file", "folder"),
    [*((*USES[0], folder) for folder in FOLDERS), *((*use, FOLDERS[i % 2]) for i, use in enumerate(USES[1:]))],
)
def test_what_is_used_outside_of_the_project_is_a_dependency(project, code, file, folder):
    place = folder.format(top=top_of(project))
    name = f"{'../common' if folder.endswith('common') else place}/{file}"
    before = dependencies(project, code.format(folder=folder))
    assert name in before
    Path(place, file or "another.json").write_text("VALUE = 2\n")
    after = dependencies(project, code.format(folder=folder))
    assert after[name] != before[name] and after[name] == present_digest(project.folder, name)
    Path(place, file or "another.json").unlink()
    assert is_portable(name) == folder.endswith("common")


def test_a_repository_is_known_by_any_of_its_paths_and_links_lead_nobody_astray(project: Project) -> None:
    top = top_of(project)
    installation = Installation()
    (top / "link").symlink_to(top / "repo")
    (top / "repo/deep/er").mkdir(parents=True)
    (top / "repo/shallow").symlink_to(top / "repo/deep/er")
    for root in (top / name for name in ("link/proj", "repo/proj", "repo/shallow", "repo/deep/er")):
        for path in (top / "link/common/tiles.py", top / "repo/common/tiles.py"):
            name = str(Names(root).name(str(path), installation))
            assert path_of(root, name).resolve() == path.resolve()
            assert name == "../common/tiles.py" or root.parent.name != "link"


def test_what_is_installed_in_a_repository_is_none_of_its_files(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    names, installation = Names(tmp_path / "proj"), Installation()
    for path in ("venv/lib/a.py", "other/lib/python3/site-packages/a.py", "common/__pycache__/a.pyc"):
        assert names.name(str(tmp_path / path), installation) is None
    assert names.name(str(tmp_path / "common/a.h"), installation) == "../common/a.h"
    assert dependency_name(tmp_path / "common/a.h", tmp_path / "proj", {}) == "../common/a.h"
    assert names.location(f"{tmp_path}/common/a.py:3") == "../common/a.py:3"


def test_a_repository_with_the_home_folder_in_it_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proj").mkdir()
    assert repository_around(tmp_path / "proj") is None
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")  # of a submodule, or of one of several work trees
    repository_around.cache_clear()
    assert repository_around(tmp_path / "proj") == tmp_path
    for home in (tmp_path, tmp_path / "users/me"):
        monkeypatch.setenv("HOME", str(home))
        repository_around.cache_clear()
        assert repository_around(tmp_path / "proj") is None
    repository_around.cache_clear()


ASKED: dict[str, Any] = {
    **{"kernels/tiles.py": True, "kernels/.config": True, "../common/tiles.py": True, "../common/": True},
    **{"/package:acme/include//a.h": True, "/package:acme/include//../more/a.h": True, "/usr/include/a.h": True},
    **{"/opt/cutlass/a.h": True, "/installed/numpy": True, "/environment/HOME": True, "/folder/": True},
    **{"/environment/NOT_SET": True, "/environment/MY_TILE": False, "/environment/SECRET": False, "/outside/": False},
    **{".git/config": False, "a/.git/config": False, "a/../.git/config": False, "../.git/config": False},
    "../.env": False,
    **{"../../far/table.json": False, "..": True, "../..": False, "../common/../../far/table.json": False},
    **{"/etc/shadow": False, "/home/me/.ssh/id_rsa": False, "/usr/../etc/shadow": False},
    **{"/package:.ssh//id_rsa": False, "/package:acme//../../etc/passwd": False, "/package:/etc//passwd": False},
    **{"/package:..//secret": False, "a\0": False},
}


@pytest.mark.parametrize("name", ASKED)
def test_others_may_ask_for_what_is_in_the_repository_in_software_and_declared_only(project, name, monkeypatch):
    monkeypatch.setenv("SECRET", "1234")
    monkeypatch.setenv("MY_TILE", "8")
    assert may_be_asked(project.folder, name) == ASKED[name]
    outside_of_any = may_be_asked(Path("/nowhere/at/all"), name)
    assert outside_of_any == (ASKED[name] and not name.startswith(".."))
    assert may_be_asked(project.folder, "/environment/MY_TILE", ["MY_TILE"])


PLACES = {"inside": "data", "common": "{top}/repo/common/data", "far": "{top}/far/data"}


QUESTIONS = [
    ("import os; os.path.exists('{path}')", "md"),
    ("import os; os.path.isfile('{path}'), os.path.isdir('{path}')", "md"),
    ("import os; os.access('{path}', os.R_OK)", "md"),
    ("from os.path import lexists; lexists('{path}')", "md"),
    ("from pathlib import Path; Path('{path}').exists()", "md"),
    ("from pathlib import Path; Path('{path}').is_dir()", "md"),
    ("from pathlib import Path; Path('{path}').is_symlink()", "mdl"),
    ("import os\ntry: os.readlink('{path}')\nexcept OSError: pass", "mdl"),
    ("import os\ntry: os.stat('{path}').st_size\nexcept OSError: pass", "mdc"),
    ("import os\ntry: os.path.getsize('{path}')\nexcept OSError: pass", "mdc"),
    ("from pathlib import Path\ntry: Path('{path}').stat()\nexcept OSError: pass", "mdc"),
    ("import os; os.path.realpath('{path}'), os.path.abspath('{path}')", ""),
]
"""What is asked -> whether the answer hangs on a file (m), a folder (d), the content (c) or where a link leads (l)."""


@pytest.mark.parametrize(
    ("place", "code", "sees"),
    [(list(PLACES)[number % 3], *question) for number, question in enumerate([*QUESTIONS[:3], *QUESTIONS])],
)
def test_what_is_asked_of_a_file_without_opening_it_is_a_dependency(project, place, code, sees):
    path = project.folder / PLACES[place].format(top=top_of(project))
    file = project.empty("looking", code.replace("{path}", str(path)))

    def depends() -> dict[str, str]:
        return {name: digest for name, digest in project.discover(file)["dependencies"].items() if "data" in name}

    def changed(known: dict[str, str]) -> bool:
        return any(present_digest(project.folder, name) != digest for name, digest in known.items())

    absent = depends()
    path.mkdir()
    assert changed(absent) == ("d" in sees), "a folder appears"
    path.rmdir()
    path.write_text("1")
    assert changed(absent) == ("m" in sees), "a file appears"
    present = depends()
    path.write_text("2 and more")
    assert changed(present) == ("c" in sees), "its content changes"
    path.unlink()
    path.symlink_to("tiles.py")
    assert changed(present) or not sees
    linked = depends()
    path.unlink()
    path.symlink_to("table.json")
    assert changed(linked) or "l" not in sees
    path.unlink()
    assert all(is_portable(name) == (place != "far") for name in absent)


def test_what_others_look_for_and_what_was_made_is_no_dependency(project: Project) -> None:
    code = """
    import linecache, os, shutil, tempfile, tokenize
    linecache.checkcache(), shutil.which("cc"), os.path.realpath(__file__)
    with tempfile.TemporaryDirectory() as folder:
        assert os.path.isdir(folder) and not os.path.exists(folder + "/a")
        open(folder + "/a", "w").close()
        assert os.stat(folder + "/a").st_size == 0
    """
    listed = project.discover(project.empty("k", code))
    assert not [name for name in listed["dependencies"] if name.startswith("/kind/")] and listed["shared"]


@pytest.mark.parametrize("code", ["os.cpu_count()", "len(os.sched_getaffinity(0))", "os.system('true')"])
def test_what_no_digest_can_tell_is_told_and_not_shared(project: Project, code: str) -> None:
    record = project.discover(project.empty("k", f"import os\n{code}"))
    (told,) = record["untracked"]
    assert told.startswith("kernels/k.py:3: ") and not record["shared"]
    assert project.discover(project.empty("k", "from concurrent.futures import *; ThreadPoolExecutor()"))["shared"]


@pytest.mark.parametrize(
    ("code", "is_asked"),
    [
        *(("os.getcwd()", True), ("os.getcwdb()", True), ("Path.cwd()", True), ("os.path.abspath('data')", True)),
        *(("Path('data').resolve()", True), ("Path(__file__).resolve()", False), ("os.path.abspath(__file__)", False)),
    ],
)
def test_the_working_folder_is_a_dependency_if_it_is_asked_for(project: Project, code: str, is_asked: bool) -> None:
    record = project.discover(project.empty("k", f"import os\nfrom pathlib import Path\n{code}"))
    assert ("/folder/" in record["dependencies"]) == is_asked and record["shared"]


ABSENT = ["../common/tiles/", "../common/first/tiles/", "../common/first/tiles.py"]
ABSENT += [f"../common/first/tiles{suffix}" for suffix in EXTENSION_SUFFIXES]


@pytest.mark.parametrize(
    ("put", "found", "absent"),
    [("[:0] = ['{folder}/first', '{folder}']", "1", ABSENT), (".append('{folder}')", "13", [])],
)
def test_folders_in_front_of_the_search_path_come_first_as_in_a_script(project, put, found, absent):
    (top_of(project) / "repo/common/first").mkdir(exist_ok=True)
    project.write("kernels/tiles.py", "VALUE = 13\n")
    put = put.format(folder=f"{top_of(project)}/repo/common")
    listed = dependencies(project, f"import sys; sys.path{put}; import tiles; print(tiles.VALUE)")
    assert project.printed[-1] == f"{found}\n"
    assert {name for name in listed if not listed[name]} == set(absent), "it looked for them in vain"
