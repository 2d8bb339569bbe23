"""The journal of signatures and outputs."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("SCons")

import SCons.Node.Alias
import SCons.Node.FS
import SCons.Node.Python
import SCons.SConf
import SCons.SConsign
from kernelwright.core.files import file_stamp
from kernelwright.scons.journal import FolderSignatures, entry_from_json, entry_to_json
from kernelwright.state import journal as lines
from kernelwright.state.journal import SCHEMA, Journal
from support.moments import HANGS_AFTER_S, rewrite


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


def signature_of(tmp_path, path):
    found = journal(tmp_path).entries(str(path.parent.relative_to(tmp_path))).get(path.name)
    return found and entry_from_json(found).binfo.bactsig


def test_signature_survives_as_it_was(tmp_path, output):
    made(tmp_path, output)
    found = entry_from_json(journal(tmp_path).entries("build")["out.bin"])
    assert entry_to_json(found) == kept("s")
    assert found.binfo.bsourcesigs[0].timestamp == 12.5


def test_output_is_intact_also_if_the_run_never_ended(tmp_path, output):
    made(tmp_path, output)  # neither closed nor ended in any other way
    assert journal(tmp_path).intact(str(output))
    assert signature_of(tmp_path, output) == "s"


def test_unknown_output_is_not_intact(tmp_path, output):
    assert not journal(tmp_path).intact(str(output))


def test_content_without_its_signature_does_not_count(tmp_path, output):
    made(tmp_path, output)
    output.write_bytes(b"of a stage that was killed before SCons noted it")
    journal(tmp_path).record([str(output)])
    assert not journal(tmp_path).intact(str(output))


def test_edit_of_the_same_size_and_mtime_is_found(tmp_path, output):
    made(tmp_path, output)
    status = output.stat()
    rewrite(output, b"CONTENT", (status.st_atime_ns, status.st_mtime_ns))
    assert not journal(tmp_path).intact(str(output))


def test_touched_output_with_equal_content_is_intact(tmp_path, output):
    made(tmp_path, output)
    os.utime(output, ns=(1, 1))
    assert journal(tmp_path).intact(str(output))


def test_content_is_compared_whatever_the_stamp_says_if_that_is_asked_for(tmp_path, output):
    made(tmp_path, output)
    digest = journal(tmp_path).output(str(output))[1]
    output.write_bytes(b"CONTENT")
    forged = journal(tmp_path)
    forged._outputs["build/out.bin"] = (file_stamp(output), digest)
    assert forged.intact(str(output)), "a stamp that fits is believed"
    strict = Journal(tmp_path / "journal", tmp_path, verify=True)
    strict._outputs["build/out.bin"] = (file_stamp(output), digest)
    assert not strict.intact(str(output))


def test_touched_output_is_read_once_and_known_by_its_new_times_then(tmp_path, output):
    made(tmp_path, output)
    os.utime(output, ns=(1, 1))
    touched = journal(tmp_path)
    assert touched.intact(str(output))
    touched.close()
    assert journal(tmp_path).output(str(output))[0] == file_stamp(output)
    assert signature_of(tmp_path, output) == "s"


def test_output_that_a_run_went_on_without_is_not_that_of_an_earlier_run(tmp_path, output):
    made(tmp_path, output)
    run = journal(tmp_path)
    run.forget([str(output)])
    assert run.output(str(output)) is None and not run.intact(str(output))
    run.store("build", "out.bin", kept("s"))
    assert not journal(tmp_path).intact(str(output))


def test_run_that_only_shows_something_writes_nothing(tmp_path, output):
    made(tmp_path, output).close()
    path = file_of(tmp_path)
    before = path.read_bytes()
    os.utime(output, ns=(1, 1))
    shown = Journal(tmp_path / "journal", tmp_path)
    assert shown.intact(str(output))
    shown.store("build", "out.bin", kept("other"))
    shown.close()
    assert path.read_bytes() == before
    path.write_bytes(before + b"damage\n")
    Journal(tmp_path / "journal", tmp_path).intact(str(output))
    shown = Journal(tmp_path / "journal", tmp_path)
    shown.entries("build")
    shown.close()
    assert path.read_bytes() == before + b"damage\n"


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


def test_line_of_which_only_a_part_fitted_on_the_disk_is_an_error_and_spoils_no_later_one(
    tmp_path, output, monkeypatch
):
    run = made(tmp_path, output)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda stream, data: write(stream, data[:30]))
        run.store("build", "out.bin", kept("cut"))
    assert isinstance(run.problem, OSError) and "space" in str(run.problem)
    other = output.with_name("other.bin")
    other.write_bytes(b"x")
    run.record([str(other)])
    run.store("build", "other.bin", kept("whole"))
    assert signature_of(tmp_path, other) == "whole" and journal(tmp_path).intact(str(other))
    assert signature_of(tmp_path, output) == "s"


def test_outputs_of_one_kernel_are_in_one_file_and_those_of_others_are_spread(tmp_path):
    run = journal(tmp_path)
    for kernel in range(12):
        for folder in ("", "m-1", "m-1/cuda", "m-2/llvm/x86-64-v3"):
            path = tmp_path / f"build/kernels/demo/kernel_{kernel}" / folder / "out"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("1")
            run.record([str(path)])
            run.store(str(path.parent.relative_to(tmp_path)), "out", kept("s"))
    names = [
        {json.loads(line)[1].split("/")[3] for line in path.read_text().splitlines()[1:] if line}
        for path in (tmp_path / "journal").iterdir()
    ]
    assert sum(map(len, names)) == 12 and len(names) > 6


def test_touched_output_is_read_once(tmp_path, output, monkeypatch):
    made(tmp_path, output)
    os.utime(output, ns=(1, 1))
    assert journal(tmp_path).intact(str(output))
    with monkeypatch.context() as patched:
        patched.setattr(lines, "sha256_of", None)  # its new times are known
        assert journal(tmp_path).intact(str(output))
    assert signature_of(tmp_path, output) == "s"
    os.utime(output, ns=(2, 2))
    assert journal(tmp_path).intact(str(output)), "its content is known as before"


def test_contents_of_all_outputs_are_compared_if_asked_for(tmp_path, output, monkeypatch):
    monkeypatch.setattr(lines, "file_stamp", lambda path: (7, 1, 1, 1))
    monkeypatch.setattr(lines, "lasting_stamp", lambda path: (7, 1, 1, 1))
    made(tmp_path, output)
    assert Journal(tmp_path / "journal", tmp_path, verify=True).intact(str(output))
    output.write_bytes(b"CONTENT")
    assert Journal(tmp_path / "journal", tmp_path).intact(str(output)), "its stamp is the same"
    assert not Journal(tmp_path / "journal", tmp_path, verify=True).intact(str(output))


def test_output_that_is_gone_is_not_intact(tmp_path, output):
    made(tmp_path, output)
    output.unlink()
    assert not journal(tmp_path).intact(str(output))
    assert journal(tmp_path).output(str(output)) is not None


def test_output_that_was_not_made_does_not_count_with_what_it_was_before(tmp_path, output):
    run = made(tmp_path, output)
    run.forget([str(output)])
    assert not run.intact(str(output))
    run.store("build", "out.bin", kept("s"))
    assert not journal(tmp_path).intact(str(output))
    assert signature_of(tmp_path, output) == "s"


def test_run_that_must_not_write_leaves_no_file(tmp_path, output):
    run = Journal(tmp_path / "journal", tmp_path)
    run.record([str(output)])
    run.store("build", "out.bin", kept("s"))
    run.close()
    assert run.intact(str(output)) and not (tmp_path / "journal").exists()


def test_what_says_nothing_new_is_not_written_again(tmp_path, output):
    run = made(tmp_path, output)
    before = file_of(tmp_path).read_bytes()
    run.store("build", "out.bin", kept("s"))
    journal(tmp_path).store("build", "out.bin", kept("s"))
    assert file_of(tmp_path).read_bytes() == before


def test_full_disk_is_a_problem_and_the_next_line_is_whole(tmp_path, output, monkeypatch):
    run = made(tmp_path, output, "old")
    assert run.problem is None
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda stream, data: write(stream, data[:20]))
        run.store("build", "out.bin", kept("lost"))
    assert isinstance(run.problem, OSError) and run.problem.errno == errno.ENOSPC
    assert run.problem.filename == str(file_of(tmp_path))
    assert signature_of(tmp_path, output) == "old"
    run.store("build", "out.bin", kept("new"))
    assert signature_of(tmp_path, output) == "new" and journal(tmp_path).intact(str(output))


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


def test_files_of_the_top_folder_are_found(tmp_path):
    journal(tmp_path).store(".", "out.bin", kept("s"))
    assert journal(tmp_path).entries(".")["out.bin"]["bactsig"] == "s"


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


def test_scons_is_given_what_it_stored_and_nothing_that_has_another_form(tmp_path, output):
    made(tmp_path, output)
    run = journal(tmp_path)
    for name, body in (("a", {"kind": "os.system"}), ("b", {**kept("s"), "bsourcesigs": 3}), ("c", kept("other"))):
        run.store("build", name, body)
    folder = SCons.Node.FS.FS(str(tmp_path)).Dir("build")
    known = FolderSignatures(journal(tmp_path), folder)
    assert {name: entry.binfo.bactsig for name, entry in known.entries.items()} == {"out.bin": "s", "c": "other"}
    FolderSignatures(run, folder).set_entry("d", entry("later"))
    assert FolderSignatures(journal(tmp_path), folder).entries["d"].binfo.bactsig == "later"


def test_node_of_a_class_that_is_not_known_is_not_kept():
    class Other(SCons.Node.FS.FileNodeInfo):
        __slots__ = ()

    strange = entry("s")
    strange.ninfo = Other()
    assert entry_to_json(strange) is None
    strange = entry("s")
    strange.binfo.bsourcesigs[0].csig = ["no text"]
    assert entry_to_json(strange) is None


def test_damage_leaves_only_what_can_be_compared(tmp_path, output):
    run = made(tmp_path, output)
    run.store("build", "alias", kept("s"))
    path = file_of(tmp_path)
    path.write_bytes(path.read_bytes() + b"damage\n")
    again = journal(tmp_path)
    assert list(again.entries("build")) == ["out.bin"], "an older line of what is no output may be outdated"
    again.close()
    assert b"damage" not in path.read_bytes()
    assert journal(tmp_path).intact(str(output))


@pytest.mark.parametrize("position", [5, 30, 60, 100, -2])
def test_flipped_bit_is_found(tmp_path, output, position):
    made(tmp_path, output)
    path = file_of(tmp_path)
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    assert signature_of(tmp_path, output) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xff\n", b'kernelwright signatures 1\n["a"]\n', SCHEMA + b'["a"]\n', b"\0" * 9999]
)
def test_journal_of_another_form_is_empty_and_usable(tmp_path, output, content):
    made(tmp_path, output)
    file_of(tmp_path).write_bytes(content)
    assert not journal(tmp_path).intact(str(output))
    made(tmp_path, output).close()
    assert journal(tmp_path).intact(str(output))


def test_every_truncation_leaves_a_true_journal(tmp_path, output):
    made(tmp_path, output, "old")
    output.write_bytes(b"newer content")
    made(tmp_path, output, "new")
    path = file_of(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = journal(tmp_path)
        # Whatever is left: the new content never stands beside the old signature.
        assert not found.intact(str(output)) or signature_of(tmp_path, output) == "new"


def test_line_that_a_killed_run_has_half_written_spoils_no_other(tmp_path, output):
    made(tmp_path, output)
    path = file_of(tmp_path)
    path.write_bytes(path.read_bytes() + b'0123456789abcdef "build/ot')
    other = output.with_name("other.bin")
    other.write_bytes(b"x")
    made(tmp_path, other)
    assert journal(tmp_path).intact(str(output))
    assert journal(tmp_path).intact(str(other))


def test_long_journal_is_written_anew(tmp_path, output):
    run = made(tmp_path, output)
    for number in range(1200):
        output.write_text(str(number))
        run.record([str(output)])
        run.store("build", "out.bin", kept(str(number)))
    run.close()
    assert len(file_of(tmp_path).read_text().splitlines()) == 2
    assert signature_of(tmp_path, output) == "1199"


def test_tree_can_move(tmp_path):
    first = tmp_path / "first"
    (first / "build").mkdir(parents=True)
    (first / "build/out").write_bytes(b"1")
    made(first, first / "build/out")
    second = first.rename(tmp_path / "second")
    assert journal(second).intact(str(second / "build/out"))


def test_signature_that_json_cannot_hold_is_not_kept(tmp_path, output):
    strange = entry("s")
    strange.binfo.bact = SimpleNamespace()
    assert entry_to_json(strange) is None
    made(tmp_path, output)
    journal(tmp_path).store("build", "out.bin", entry_to_json(strange))
    assert signature_of(tmp_path, output) is None


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"kind": "os.system"},
        {"kind": "file", "bsourcesigs": [["file", {"__class__": "x"}]]},
        {"kind": "file", "bsourcesigs": [["file", {"csig": [1]}]]},
        {"kind": "file", "bsources": 3},
    ],
)
def test_entry_of_another_form_is_refused(body):
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        entry_from_json(body)


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "empty folder", "sparse"])
def test_what_is_no_journal_is_replaced_and_nothing_is_written_through_it(tmp_path, output, kind):
    made(tmp_path, output)
    path, outside = file_of(tmp_path), tmp_path / "outside"
    content = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "empty folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as stream:
            stream.truncate(3 << 30)
    else:
        path.symlink_to(outside)
    if kind == "link":
        outside.write_bytes(content)
    # A pipe would keep a reader, and a writer, waiting for ever.
    found: list[bool] = []
    reader = threading.Thread(target=lambda: found.append(journal(tmp_path).intact(str(output))), daemon=True)
    reader.start()
    reader.join(HANGS_AFTER_S)
    assert found == [False]
    made(tmp_path, output).close()
    assert journal(tmp_path).intact(str(output))
    assert outside.exists() == (kind == "link")
    assert kind != "link" or outside.read_bytes() == content
