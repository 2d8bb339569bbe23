"""The journal of signatures and outputs."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

pytest.importorskip("SCons")

import SCons.Node.Alias
import SCons.Node.FS
import SCons.Node.Python
import SCons.SConf
import SCons.SConsign
from kernelwright.core import files
from kernelwright.scons.journal import FolderSignatures, entry_from_json, entry_to_json
from kernelwright.state import journal as journal_module
from kernelwright.state.journal import Journal


def entry(signature: str):
    """What SCons stores for a file that was made by an action of this signature."""
    made = SCons.SConsign.SConsignEntry()
    made.binfo = SCons.Node.FS.FileBuildInfo()
    made.binfo.bsources = ["kernels/a.py"]
    source = SCons.Node.FS.FileNodeInfo()
    source.csig, source.timestamp, source.size = "abc", 12.5, 3
    made.binfo.bsourcesigs = [source]
    made.binfo.bact, made.binfo.bactsig = "[ LOWER ] a", signature
    made.ninfo = SCons.Node.FS.FileNodeInfo()
    made.ninfo.timestamp, made.ninfo.size = 5.0, 7
    return made


def kept(signature: str):
    """The same as the journal has it."""
    return entry_to_json(entry(signature))


@pytest.fixture
def output(tmp_path):
    path = tmp_path / "build" / "out.bin"
    path.parent.mkdir()
    path.write_bytes(b"content")
    return path


def journal(tmp_path):
    made = Journal(tmp_path / "journal", tmp_path)
    made.writable = True
    return made


def file_of(tmp_path):
    """The only file of the journal: all outputs of these tests are in one folder."""
    (path,) = (tmp_path / "journal").iterdir()
    return path


def made(tmp_path, path, signature="s"):
    """A run that made an output."""
    run = journal(tmp_path)
    run.record([str(path)])
    run.store(str(path.parent.relative_to(tmp_path)), path.name, kept(signature))
    return run


def test_after_damage_older_lines_of_targets_that_are_not_ours_do_not_count(tmp_path, output):
    run = made(tmp_path, output)
    run.store("build", "library.a", kept("old"))
    run.store("build", "library.a", kept("new"))
    path = file_of(tmp_path)
    whole = path.read_bytes()
    lines = [line for line in whole.split(b"\n") if b"library.a" in line]
    path.write_bytes(whole.replace(lines[-1], lines[-1][:-1] + b"!"))
    assert set(journal(tmp_path).entries("build")) == {"out.bin"}, "the older line may be of other sources"
    assert journal(tmp_path).intact(str(output))
    # The next run that writes leaves the damage out.
    again = journal(tmp_path)
    again.entries("build")
    again.close()
    assert b"library.a" not in path.read_bytes() and journal(tmp_path).intact(str(output))


@pytest.mark.parametrize("is_read", [True, False])
def test_an_output_is_read_again_as_long_as_a_change_may_leave_its_stamp(tmp_path, output, monkeypatch, is_read):
    """Where a file system counts seconds, this is so within the second in which the output was made or touched."""
    stamp = (7, 0, 10**9 * (10**10 if is_read else 1), 1)
    made(tmp_path, output)
    for module in (files, journal_module):
        monkeypatch.setattr(module, "file_stamp", lambda path: stamp)
    for run in (journal(tmp_path), made(tmp_path, output)):
        output.write_bytes(b"content")
        assert run.intact(str(output))  # of the first run it notes the new stamp
        output.write_bytes(b"CONTENT")
        assert run.intact(str(output)) != is_read


def test_what_says_nothing_new_is_not_written_again(tmp_path, output):
    run = made(tmp_path, output)
    before = file_of(tmp_path).read_bytes()
    run.store("build", "out.bin", kept("s"))
    journal(tmp_path).store("build", "out.bin", kept("s"))
    assert file_of(tmp_path).read_bytes() == before


def test_all_of_one_kernel_is_in_one_file_and_many_kernels_are_in_many(tmp_path):
    run = journal(tmp_path)
    for name in ("llvm/x86-64/host.o", "cuda/sm_80.cubin", "wrapper.c"):
        folder, _, file = f"build/kernels/demo/scale/{name}".rpartition("/")
        run.store(folder, file, kept("s"))
    assert re.fullmatch(r"[0-9a-f]{2}\.jsonl", file_of(tmp_path).name)
    assert list(run.entries("build/kernels/demo/scale/cuda")) == ["sm_80.cubin"]
    run.store("build/kernels/\udcff", "wrapper.c", kept("s"))
    assert list(journal(tmp_path).entries("build/kernels/\udcff")) == ["wrapper.c"]
    for number in range(100):
        run.store(f"build/kernels/demo/k{number}", "wrapper.c", kept("s"))
    assert 50 < len(list((tmp_path / "journal").iterdir())) <= 102
    assert list(journal(tmp_path).entries("build/kernels/demo/k7")) == ["wrapper.c"]
    assert journal(tmp_path).entries("build/kernels/demo") == {}
    run.store(".", "out.bin", kept("s"))
    assert journal(tmp_path).entries(".")["out.bin"]["bactsig"] == "s", "the top folder is one, too"


def test_every_kind_of_node_is_kept(tmp_path):
    made = SCons.SConsign.SConsignEntry()
    made.binfo = SCons.SConf.SConfBuildInfo()
    made.binfo.result, made.binfo.string = 0, "checked"
    made.binfo.bdepends, made.binfo.bimplicit = ["a", "b"], ["c"]
    made.binfo.bdependsigs = [SCons.Node.FS.DirNodeInfo(), SCons.Node.Python.ValueNodeInfo()]
    made.binfo.bimplicitsigs = [SCons.Node.Alias.AliasNodeInfo()]
    made.binfo.bdependsigs[1].csig = made.binfo.bimplicitsigs[0].csig = "abc"
    journal(tmp_path).store("build", "out.bin", entry_to_json(made))
    found = entry_from_json(journal(tmp_path).entries("build")["out.bin"])
    assert entry_to_json(found) == {**entry_to_json(made), **{"node": ["file", {}], "bsourcesigs": []}}
    assert [type(info) for info in found.binfo.bdependsigs] == [type(info) for info in made.binfo.bdependsigs]
    assert (found.binfo.string, found.binfo.bdepends, found.binfo.bimplicit) == ("checked", ["a", "b"], ["c"])
    assert isinstance(found.binfo, SCons.SConf.SConfBuildInfo)


SOURCES = [[["file", {"__class__": "x"}]], [["file", {"csig": [1]}]]]


def test_scons_is_given_what_it_stored_and_nothing_that_has_another_form(tmp_path, output):
    made(tmp_path, output)
    run = journal(tmp_path)
    run.store("build", "c", kept("other"))
    of_another_form = ({"bsources": 3}, {"bsourcesigs": 3}, *({"bsourcesigs": sources} for sources in SOURCES))
    for number, body in enumerate(
        (None, [], {"kind": "os.system"}, *({**kept("s"), **one} for one in of_another_form))
    ):
        run.store("build", str(number), body)
    folder = SCons.Node.FS.FS(str(tmp_path)).Dir("build")
    known = FolderSignatures(journal(tmp_path), folder)
    assert {name: entry.binfo.bactsig for name, entry in known.entries.items()} == {"out.bin": "s", "c": "other"}
    FolderSignatures(run, folder).set_entry("d", entry("later"))
    assert FolderSignatures(journal(tmp_path), folder).entries["d"].binfo.bactsig == "later"


class OtherInfo(SCons.Node.FS.FileNodeInfo):
    __slots__ = ()


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: setattr(entry, "ninfo", OtherInfo()),
        lambda entry: setattr(entry.binfo.bsourcesigs[0], "csig", ["no text"]),
        lambda entry: setattr(entry.binfo, "bact", SimpleNamespace()),
    ],
)
def test_what_json_cannot_hold_and_a_node_of_an_unknown_class_are_not_kept(tmp_path, output, change):
    strange = entry("s")
    change(strange)
    assert entry_to_json(strange) is None
    made(tmp_path, output)
    journal(tmp_path).store("build", "out.bin", entry_to_json(strange))
    assert journal(tmp_path).entries("build").get("out.bin") is None


@pytest.mark.parametrize("kind", ["link", "dangling link", "empty folder"])
def test_what_is_no_journal_is_replaced_and_nothing_is_written_through_it(tmp_path, output, kind):
    made(tmp_path, output)
    path, outside = file_of(tmp_path), tmp_path / "outside"
    content = path.read_bytes()
    path.unlink()
    path.mkdir() if kind == "empty folder" else path.symlink_to(outside)
    if kind == "link":
        outside.write_bytes(content)
    assert not journal(tmp_path).intact(str(output))
    made(tmp_path, output).close()
    assert journal(tmp_path).intact(str(output))
    assert outside.exists() == (kind == "link")
    assert kind != "link" or outside.read_bytes() == content
