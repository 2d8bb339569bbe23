"""Where sources come from: git before records, records as far as digests go, and no program of a repository's."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from kernelwright.core.errors import KernelwrightError, SettingsError
from kernelwright.package import git as git_module
from kernelwright.package.git import repository_of
from kernelwright.package.sdist import choose_files, read_files
from kernelwright.package.source import FIRST_ZIP_TIME, RECORD, Source, find_source
from kernelwright.package.version import version_of
from packaging.version import Version
from support.project import SITE_SCONS

ONE = "0" * 39 + "1"
TIME = 1_700_000_000

PYPROJECT = """\
[build-system]
requires = ["kernelwright"]
build-backend = "kernelwright.build"

[project]
name = "demo"
version = "1.0"
readme = "README.md"

[tool.kernelwright]
package = "demo"
"""

FILES = {"pyproject.toml": PYPROJECT, "README.md": "# Demo\n", "SConstruct": "", "kernels/scale.py": "# a kernel\n"}

OF_TAG = {"project": {"name": "demo", "dynamic": ["version"]}, "tool": {"kernelwright": {"version": {"git": True}}}}
"""A pyproject.toml whose version is that of the newest tag."""

SECRETS = (".env", ".pypirc", ".aws/credentials", "notes.txt", "kernels/data.bin")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def committed(folder: Path, files: Mapping[str, str] = FILES) -> Path:
    write(folder, files)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "all")
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project that git has."""
    return committed(tmp_path / "tree")


def build_hook(root: Path, code: str) -> subprocess.CompletedProcess[str]:
    """A hook of the build backend in a project, with both outputs as one."""
    command = [sys.executable, "-c", f"from kernelwright.build import {code.partition('(')[0]}; {code}"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(SITE_SCONS)}, check=False, **output)


def make_sdist(root: Path) -> tuple[int, str, list[str]]:
    """Exit status and output of the hook, and the files of the archive."""
    out = root.parent / "out"
    out.mkdir(exist_ok=True)
    done = build_hook(root, f"build_sdist({str(out)!r})")
    names: list[str] = []
    if (out / "demo-1.0.tar.gz").exists():
        with tarfile.open(out / "demo-1.0.tar.gz") as packed:
            assert all(item.isfile() for item in packed.getmembers())
            names = sorted(name.removeprefix("demo-1.0/") for name in packed.getnames())
    return done.returncode, done.stdout, names


def unpacked(root: Path) -> Path:
    """The source distribution of a tree, unpacked."""
    assert make_sdist(root)[0] == 0
    with tarfile.open(root.parent / "out/demo-1.0.tar.gz") as packed:
        packed.extractall(root.parent / "unpacked", filter="data")
    return root.parent / "unpacked/demo-1.0"


# ---- what is in a source distribution


def test_only_tracked_files_are_packed_and_the_others_are_named(tree: Path) -> None:
    write(tree, dict.fromkeys((*SECRETS, "build/x", "dist/y", ".sconsign.dblite"), "secret"))
    status, output, names = make_sdist(tree)
    assert status == 0 and names == sorted([*FILES, "PKG-INFO", RECORD])
    assert f"the source distribution leaves out 5 files: {', '.join(sorted(SECRETS))}" in output
    assert "build/x" not in output


INCLUDE = '\n[tool.kernelwright.sdist]\ninclude = ["kernels/**/*.py"]\n'


def test_without_git_the_files_are_those_that_pyproject_names_and_the_others_are_named(tmp_path: Path) -> None:
    tree = write(tmp_path / "tree", {**FILES, "pyproject.toml": PYPROJECT + 'tuning = "tables"' + INCLUDE})
    write(tree, dict.fromkeys((*SECRETS, "build/x", "kernels/.hidden.py", "kernels/more/deep.py"), "secret"))
    write(tree, dict.fromkeys(("tables/scale.sm_80-108.json", "tuning/scale.sm_80-108.json"), "{}"))
    status, output, names = make_sdist(tree)
    packed = ["kernels/more/deep.py", "tables/scale.sm_80-108.json", "PKG-INFO", RECORD]
    assert status == 0 and names == sorted([*FILES, *packed])
    others = (*SECRETS, "kernels/.hidden.py", "tuning/scale.sm_80-108.json")
    assert all(name in output for name in others if not name.startswith(".aws"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/more.py").write_text("secret")
    (tree / "kernels/linked").symlink_to(tmp_path / "elsewhere")
    status, output, _ = make_sdist(tree)
    assert status == 1 and "kernels/linked/more.py [sdist]: it leads to " in output


def test_without_git_there_is_no_source_distribution_without_a_list_and_no_promise_without_digests(tmp_path):
    status, output, names = make_sdist(write(tmp_path / "tree", FILES))
    assert status == 1 and names == [] and "Traceback" not in output
    assert "pyproject.toml does not say which files are sources" in output
    assert '[tool.kernelwright.sdist] with include = ["kernels/**/*.py"]' in output
    forge(write(tmp_path, FILES))
    assert find_source(tmp_path) == Source(ONE, True, TIME)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        *((table, "[tool.kernelwright.sdist] is") for table in ({}, {"include": "x"}, {"include": [1]})),
        ({"include": [], "other": 1}, "[tool.kernelwright.sdist] is"),
        *(
            ({"include": [pattern]}, f"include has {pattern!r}, which names no file in the project")
            for pattern in ("kernel/*.py", "/etc/hostname", "../*", "kernels/../../*")
        ),
    ],
)
def test_a_list_of_another_form_or_that_leads_out_is_named(tmp_path: Path, table: object, message: str) -> None:
    write(tmp_path / "tree", FILES)
    with pytest.raises(SettingsError, match=re.escape(message)):
        choose_files(tmp_path / "tree", {"tool": {"kernelwright": {"sdist": table}}}, [])


@pytest.mark.parametrize("name", ["kernels/new.py", "SConscript", "tuning/scale.sm_80-108.json"])
def test_what_a_build_may_use_and_git_does_not_track_is_refused(tree: Path, name: str) -> None:
    write(tree, {name: "{}", "tuning/notes.txt": "mine"})
    status, output, names = make_sdist(tree)
    assert status == 1 and names == [] and f"git does not track {name}: the build here may use that" in output
    git(tree, "add", name)
    status, output, names = make_sdist(tree)
    assert status == 0 and name in names and "tuning/notes.txt" not in names
    git(tree, "rm", "-q", "--cached", name)
    write(tree, {".gitignore": f"{name}\n"})
    git(tree, "add", ".gitignore")
    assert name not in choose_files(tree, {}, []).files


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "../notes.txt", "../kernels", "nowhere"])
def test_a_link_to_what_is_not_packed_is_refused(tree: Path, target: str) -> None:
    (tree.parent / "secret").write_text("secret")
    (tree / "notes.txt").write_text("mine")
    (tree / "kernels/link.txt").symlink_to(target)
    git(tree, "add", "kernels/link.txt")
    status, output, names = make_sdist(tree)
    assert status == 1 and names == [] and "Traceback" not in output
    said = output.partition("kernels/link.txt [sdist]: it leads to ")[2]
    assert "which is no file of the source distribution" in said


def test_a_link_is_packed_as_its_file_a_name_of_any_bytes_as_it_is_and_a_readme_has_to_be(tree: Path) -> None:
    (tree / "kernels/again.py").symlink_to("scale.py")
    git(tree, "add", "kernels/again.py")
    root = unpacked(tree)
    assert (root / "kernels/again.py").read_text() == FILES["kernels/scale.py"]
    assert not (root / "kernels/again.py").is_symlink()
    name = os.fsdecode(b"kernels/\xff.txt")
    (tree / name).write_text("x")
    git(tree, "add", "-A")
    assert name in read_files(tree, set(choose_files(tree, {}, []).files))
    git(tree, "rm", "-q", "--cached", "README.md")
    status, output, _ = make_sdist(tree)
    assert status == 1 and "it would have no README.md, and its wheel needs that" in output


def test_files_of_submodules_are_packed(tree: Path) -> None:
    committed(tree.parent / "shared", {"helper.py": "x = 1\n"})
    git(tree, "submodule", "--quiet", "add", "../shared", "kernels/shared")
    git(tree, "commit", "-qam", "more")
    assert {"kernels/shared/helper.py", ".gitmodules"} <= set(make_sdist(tree)[2])
    assert not find_source(tree).dirty
    write(tree, {"kernels/shared/helper.py": "x = 2\n"})
    assert find_source(tree).dirty


# ---- what is said of the sources


def forge(root: Path, files: Mapping[str, str] | None = None) -> None:
    """A record that says that the tree is that of a commit."""
    record = {"commit": ONE, "dirty": False, "time": TIME, **({} if files is None else {"files": files})}
    (root / RECORD).write_text(json.dumps(record))


def digests(root: Path, *names: str) -> dict[str, str]:
    return {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in names}


def test_git_wins_over_a_record(tree: Path) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    write(tree, {"kernels/scale.py": "# changed\n"})
    forge(tree, digests(tree, *FILES))
    found = find_source(tree)
    assert (found.commit, found.dirty) == (commit, True)


def test_the_version_is_that_of_the_tag_and_a_commit_behind_it_has_one_of_its_own(tree: Path) -> None:
    git(tree, "tag", "v2.0")
    forge(tree)
    write(tree, {"PKG-INFO": "Metadata-Version: 2.4\nName: demo\nVersion: 9.9\n"})
    assert version_of(tree, OF_TAG) == "2.0", "whatever a record says"
    write(tree, {"README.md": "# Another\n"})
    git(tree, "commit", "-qam", "more")
    later = Version(version_of(tree, OF_TAG))
    assert later > Version("2.0") and later.local is not None and later.local in git(tree, "rev-parse", "HEAD")


def test_a_source_distribution_has_the_commit_until_it_is_edited(tree: Path) -> None:
    write(tree, {"README.md": "# Another\n"})
    assert find_source(tree).dirty and find_source(unpacked(tree)).dirty
    git(tree, "checkout", "-q", "README.md")
    source, root = find_source(tree), unpacked(tree)
    assert not source.dirty and find_source(root) == source
    for change in ({"kernels/scale.py": "# edited\n"}, {"PKG-INFO": "Name: x\n"}, {"kernels/new.py": "x = 1\n"}):
        before = {name: (root / name).read_text() for name in change if (root / name).exists()}
        write(root, change)
        assert find_source(root) == Source(source.commit, True, source.time), change
        for name in change:
            (root / name).unlink()
        assert find_source(root).dirty == bool(before)
        write(root, before)
        assert find_source(root) == source
    made = ("build/x", "dist/x", ".sconsign.dblite", "kernels/__pycache__/x.pyc", ".venv/x.py")
    write(root, dict.fromkeys(made, ""))
    assert find_source(root) == source, "what a build makes is no edit"
    assert find_source(root, ["kernels/scale.py"]) == source and find_source(root, [".venv/x.py"]).dirty


def test_a_source_distribution_of_a_source_distribution_has_the_same_files(tree: Path) -> None:
    root = unpacked(tree)
    names = make_sdist(tree)[2]
    write(root, {"notes.txt": "mine"})
    (tree.parent / "out/demo-1.0.tar.gz").rename(tree.parent / "first")
    inner = root.parent / "out"
    status, output, again = make_sdist(root)
    assert status == 0 and again == names and inner.exists() and "leaves out 1 file: notes.txt" in output


def test_a_source_distribution_in_the_repository_of_something_else_keeps_its_record(tree: Path) -> None:
    source, root = find_source(tree), unpacked(tree)
    committed(root.parent, {"other.txt": "something else\n"})
    git(root.parent, "rm", "-rq", "--cached", root.name)
    git(root.parent, "commit", "-qm", "without it")
    git(root.parent, "checkout", "-q", "--orphan", "new")
    git(root.parent, "commit", "-qm", "never with it")
    assert find_source(root) == source
    assert set(choose_files(root, {}, ["README.md"]).files) == set(FILES)
    assert version_of(root, OF_TAG) == "1.0"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"commit": "x" * 40}, "commit is"),
        ({"commit": "1\n"}, "commit is"),
        ({"time": 5}, "time is 5, expected seconds since 1970"),
        ({"files": []}, "files is"),
        ({"files": {"x": 1}}, "files.x is"),
    ],
)
def test_a_record_of_another_form_is_an_error(tmp_path: Path, change: dict[str, object], message: str) -> None:
    record = {"commit": ONE, "dirty": False, "time": TIME, "files": {}, **change}
    (tmp_path / RECORD).write_text(json.dumps(record))
    with pytest.raises(KernelwrightError, match=re.escape(message)):
        find_source(tmp_path)


@pytest.mark.parametrize(
    ("told", "changed"),
    [
        (["update-index", "--assume-unchanged", "kernels/scale.py"], "kernels/scale.py"),
        (["update-index", "--skip-worktree", "kernels/scale.py"], "kernels/scale.py"),
        (["config", "status.showUntrackedFiles", "no"], "new.txt"),
        (["config", "status.renames", "nonsense"], None),  # git tells no status, which is none of a clean tree
    ],
)
def test_what_git_was_told_to_overlook_makes_the_tree_dirty(tree: Path, told: list[str], changed: str | None) -> None:
    assert not find_source(tree).dirty
    git(tree, *told)
    if changed is not None:
        write(tree, {changed: "changed"})
    assert find_source(tree).dirty


def test_a_file_that_was_replaced_by_one_of_equal_size_and_time_makes_the_tree_dirty(tree: Path) -> None:
    path, other = tree / "kernels/scale.py", tree.parent / "other.py"
    other.write_text(FILES["kernels/scale.py"].swapcase())
    for file in (path, other):  # before the index was written, so that git does not look into them for that reason
        os.utime(file, (TIME, TIME))
    git(tree, "update-index", "--refresh")
    git(tree, "config", "core.checkStat", "minimal")
    git(tree, "config", "core.trustctime", "false")
    assert not find_source(tree).dirty
    other.rename(path)
    assert git(tree, "status", "--porcelain") == "", "git itself does not see it"
    assert find_source(tree).dirty


def test_the_time_is_that_of_the_last_commit_that_changed_the_project_and_one_that_zip_can_hold(tree, monkeypatch):
    for date, expected in ((f"@{TIME} +0900", TIME), ("@86400 +0000", FIRST_ZIP_TIME)):
        monkeypatch.setenv("GIT_COMMITTER_DATE", date)
        git(tree, "commit", "-q", "--amend", "-m", date)
        assert find_source(tree).time == expected
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(TIME + 5))
    found = find_source(tree)
    assert (found.time, found.commit, found.dirty) == (TIME + 5, git(tree, "rev-parse", "HEAD"), False)


def test_a_definition_that_git_ignores_makes_the_tree_dirty(tree: Path) -> None:
    write(tree, {".gitignore": "kernels/mine.py\n", "kernels/mine.py": ""})
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "more")
    assert not find_source(tree, ["kernels/scale.py"]).dirty
    assert find_source(tree, ["kernels/scale.py", "kernels/mine.py"]).dirty
    assert not find_source(tree, ["kernels/scale.py", "build/generated.py"]).dirty


# ---- programs that a repository names


def trap(folder: Path, name: str) -> tuple[str, Path]:
    """A program that leaves a file when it is started, and that file."""
    program, sprung = folder / f"trap-{name}", folder / f"sprung-{name}"
    program.write_text(f"#!/bin/sh\ntouch '{sprung}'\ncat\n")
    program.chmod(0o755)
    return str(program), sprung


def set_traps(tree: Path) -> list[Path]:
    """Have a repository start a program wherever its own configuration can ask for one; the files that they leave."""
    made = {name: trap(tree.parent, f"{tree.name}-{name}") for name in ("fsmonitor", "clean", "process", "gpg", "hook")}
    git(tree, "config", "core.fsmonitor", made["fsmonitor"][0])
    git(tree, "config", "filter.one.clean", made["clean"][0])
    git(tree, "config", "filter.one.required", "true")
    git(tree, "config", "filter.Two.x.process", made["process"][0])
    git(tree, "config", "log.showSignature", "true")
    git(tree, "config", "gpg.program", made["gpg"][0])
    (tree / ".git/info").mkdir(exist_ok=True)
    (tree / ".git/info/attributes").write_text("*.py filter=one\n*.md filter=Two.x\n")
    hooks = tree.parent / f"hooks-{tree.name}"
    hooks.mkdir()
    (hooks / "post-index-change").symlink_to(made["hook"][0])
    git(tree, "config", "core.hooksPath", str(hooks))
    return [sprung for _, sprung in made.values()]


def touch_all(tree: Path, time: int = TIME) -> None:
    """Give files other times, so that git has to look into them."""
    for name in FILES:
        os.utime(tree / name, (time, time))


def signed(tree: Path) -> None:
    """Give the commit a signature, for which git would ask a program."""
    signature = "\ngpgsig -----BEGIN PGP SIGNATURE-----\n -----END PGP SIGNATURE-----\n\n"
    text = git(tree, "cat-file", "commit", "HEAD").replace("\n\n", signature, 1)
    (tree.parent / "commit").write_text(f"{text}\n")
    git(tree, "reset", "-q", "--soft", git(tree, "hash-object", "-t", "commit", "-w", str(tree.parent / "commit")))


def test_a_replaced_commit_is_not_that_of_the_tree(tree: Path) -> None:
    head = git(tree, "rev-parse", "HEAD")
    write(tree, {"README.md": "not in the commit"})
    git(tree, "add", "README.md")
    git(tree, "replace", head, git(tree, "commit-tree", git(tree, "write-tree"), "-m", "x"))
    assert git(tree, "status", "--porcelain") == ""
    assert find_source(tree).dirty


def test_a_repository_that_once_had_the_folder_is_not_asked_for_the_commit(tree: Path, tmp_path: Path) -> None:
    outer = committed(tmp_path / "outer", {**FILES, "vendor/demo-1.0/README.md": "old", ".gitignore": "vendor/"})
    git(outer, "add", "-f", "vendor/demo-1.0/README.md")
    git(outer, "commit", "-qm", "with it")
    git(outer, "rm", "-q", "vendor/demo-1.0/README.md")
    git(outer, "commit", "-qm", "without it")
    (outer / "vendor").mkdir()
    inner = unpacked(tree).rename(outer / "vendor/demo-1.0")
    assert find_source(inner) == find_source(tree)


def test_no_program_of_a_repository_is_started(tree: Path) -> None:
    signed(tree)
    git(tree, "tag", "v2.0")
    sprung = set_traps(tree)
    touch_all(tree)
    before = dict(os.environ)
    find_source(tree)
    choose_files(tree, {}, [])
    assert version_of(tree, OF_TAG).startswith(("2.0", "2.1"))
    assert dict(os.environ) == before
    assert [path.name for path in sprung if path.exists()] == []
    for command in ("status", "log"):
        subprocess.run(["git", command], cwd=tree, check=False, capture_output=True)
    git(tree, "config", "--unset", "core.fsmonitor")  # it has said that nothing changed
    touch_all(tree, TIME + 1)
    subprocess.run(["git", "status"], cwd=tree, check=False, capture_output=True)
    touch_all(tree, TIME + 2)
    subprocess.run(["git", "add", "README.md"], cwd=tree, check=False, capture_output=True)
    assert [path.name for path in sprung if not path.exists()] == [], "git itself starts them"


@pytest.mark.parametrize("place", [".", "kernels"])
def test_no_program_of_a_submodule_is_started(tree: Path, place: str) -> None:
    committed(tree.parent / "shared")
    git(tree, "submodule", "--quiet", "add", "../shared", "shared")
    git(tree, "commit", "-qam", "more")
    git(tree, "tag", "v2.0")
    inner = tree / "shared"
    program, sprung = trap(tree.parent, "inner")
    git(inner, "config", "filter.one.clean", program)
    git(inner, "config", "core.fsmonitor", program)
    (tree / ".git/modules/shared/info").mkdir(exist_ok=True)
    (tree / ".git/modules/shared/info/attributes").write_text("* filter=one\n")
    touch_all(inner)
    find_source(tree / place)
    if place == ".":
        choose_files(tree, {}, [])
    assert version_of(tree / place, OF_TAG).startswith("2.0")
    assert not sprung.exists()
    subprocess.run(["git", "status"], cwd=tree, check=False, capture_output=True)
    assert sprung.exists(), "git itself starts it"


def test_the_environment_cannot_point_git_elsewhere_and_a_git_that_minds_no_settings_is_not_asked(tree, monkeypatch):
    other = committed(tree.parent / "other", {"pyproject.toml": "x"})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    assert set(choose_files(tree, {}, []).files) == set(FILES)
    assert repository_of(tree) is not None
    # As versions before 2.31 do, which do not know the variable.
    monkeypatch.setattr(git_module, "_environment", lambda settings: {"PATH": os.environ["PATH"]})
    assert repository_of(tree) is None and find_source(tree).commit == ""


# ---- an editable installation


@pytest.mark.parametrize("name", ["a\nimport os; os.abort()", "a\rb", "a\x0cb", "a\u2028b", os.fsdecode(b"a\xff")])
def test_a_path_that_would_be_more_than_one_line_is_refused_before_anything_is_built(tmp_path: Path, name: str) -> None:
    tree = write(tmp_path / name, FILES)
    done = build_hook(tree, f"build_editable({str(tmp_path)!r})")
    assert done.returncode == 1 and "Traceback" not in done.stdout
    assert "Python cannot be told of a folder whose path has a line break" in done.stdout, done.stdout
    assert not list(tmp_path.glob("*.whl")) and not (tree / "build").exists()


def test_files_of_the_repository_beside_the_project_are_of_its_commit_or_not_and_others_of_none(tmp_path: Path) -> None:
    top = write(tmp_path / "repo", {".gitignore": "*.log\n", "common/tiles.py": "1", "other/a.py": "1"})
    project = write(top / "proj", FILES)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        git(top, *command)
    write(top, {"other/a.py": "2"})
    beside = ["../common/tiles.py"]
    assert find_source(project, (), beside) == find_source(project) and not find_source(project).dirty
    write(top, {"common/tiles.py": "2"})
    assert find_source(project, (), beside).dirty and not find_source(project).dirty
    git(top, "commit", "-qam", "two")
    assert find_source(project, (), beside).commit == git(top, "rev-parse", "HEAD") != find_source(project).commit
    write(top, {"common/new.log": "1"})
    assert not find_source(project, (), beside).dirty
    assert find_source(project, (), ["../common/new.log"]).dirty and find_source(project, (), ["/far/tiles.py"]).dirty
