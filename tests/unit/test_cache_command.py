"""``kernelwright cache``."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path

import pytest
from kernelwright.cli import main
from kernelwright.commands.cache import COMMAND
from kernelwright.ondemand.store import KernelStore
from kernelwright.package.manifest import sealed_document
from kernelwright.runtime.loader import SCHEMA
from kernelwright.state.entry import key_of
from test_store import KEY, OTHER, age, write_kernel

THIRD = "abcd" * 16


def describe(folder: Path, name: str, key: str, **config: object) -> None:
    """Give a kernel's folder a manifest as compiles write it."""
    slug = "_".join(f"{key}-{value}" for key, value in config.items()) or "default"
    variant = {"slug": slug, "config": config, "archs": ["x86-64-v3", "sm_90a"]}
    document = {
        "schema": SCHEMA,
        "kernelwright": "0.1.0",
        "key": key,
        "tools": {"nvcc": {"version": "13.0.88", "identity": "long"}},
        "kernels": {name: {"backends": ["tvm_ffi"], "variants": [variant]}},
    }
    write_kernel(folder, key)
    listed = {"_lib/scale.so": {"sha256": hashlib.sha256(b"library").hexdigest(), "size": 7}}
    (folder / "manifest.json").write_text(sealed_document({**document, "files": listed}))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two kernels, a stage and a failed compile."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("KERNELWRIGHT_CACHE_DIR", str(folder))
    store = KernelStore(folder)
    for number, (name, key, config) in enumerate([("scale", KEY, {"n": 4}), ("softmax", OTHER, {})]):
        with store.scratch(name) as scratch:
            describe(scratch, name, key, **config)
            age(store.publish(name, THIRD, key, scratch), 1000 * (2 - number))
    with store.scratch("broken") as scratch:
        store.fail("broken-default", THIRD, scratch, "error: no")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a").write_bytes(bytes(3000))
    store.stages().store(key_of("f", []), out, ["a"], {})
    return folder


def entry(cache: Path) -> Path:
    (found,) = (cache / "stages").glob("??/*")
    return found


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["cache", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_list_has_a_line_for_each_kernel_the_last_used_first(cache, capsys):
    status, out, _ = run(capsys, "list")
    header, *rows = [re.split("  +", line) for line in out.splitlines()]
    assert status == 0 and header == ["kernel", "config", "archs", "backend", "size", "last used", "key"]
    used = [
        time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime)) for path in (cache / "kernels").iterdir()
    ]
    assert [row[:4] + row[6:] for row in rows] == [
        ["softmax", "default", "x86-64-v3 sm_90a", "tvm_ffi", OTHER[:16]],
        ["scale", "n-4", "x86-64-v3 sm_90a", "tvm_ffi", KEY[:16]],
    ]
    assert sorted(row[5] for row in rows) == sorted(used)


def test_a_kernel_is_shown_by_the_begin_of_its_key(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "show", OTHER[:2])
    folder = cache / f"kernels/softmax-{THIRD[:16]}-{OTHER[:16]}"
    assert status == 0
    for line in (
        *(f"key:       {OTHER}", f"folder:    {folder}", "tool:      nvcc: version 13.0.88", "files:     intact"),
    ):
        assert line in out.splitlines()
    assert "file:      _lib/scale.so" in out
    status, out, _ = run(capsys, "show", KEY)
    assert status == 0 and "config:    n=4" in out
    (cache / f"kernels/scale-{THIRD[:16]}-{KEY[:16]}/_lib/scale.so").unlink()
    status, out, _ = run(capsys, "show", KEY)
    assert status == 1 and re.search("damage: .*scale.so: cannot be read", out)


def test_an_unknown_key_and_one_of_several_are_errors(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "show", "99")
    assert status == 1 and "no kernel has a key that begins with '99'" in err
    status, _, err = run(capsys, "show", "ab")
    assert status == 1 and f"{KEY[:16]} (scale), broken-default-{THIRD[:16]} (failed)" in err
    status, out, _ = run(capsys, "show", THIRD)
    assert status == 0 and str(cache / f"failed/broken-default-{THIRD[:16]}/log.txt") in out


def test_the_size_counts_all_parts_and_clearing_leaves_none(cache, capsys):
    status, out, _ = run(capsys, "size")
    stage = entry(cache).stat().st_size
    assert status == 0 and stage > 3000
    assert re.search(r"^2 kernels: .*\n1 stage: 3\.\d KiB\n1 failed compile: 9 B\ntogether ", out)
    assert run(capsys, "clear")[0] == 0
    left = {path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file()}
    assert left == {".gitignore", "CACHEDIR.TAG", "stages/CACHEDIR.TAG"}


def test_pruning_keeps_what_was_used_last(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (entry(cache), *(cache / "failed").iterdir()):
        age(path, 5000)
    assert run(capsys, "prune")[0] == 0 and len(list((cache / "kernels").iterdir())) == 2
    status, out, _ = run(capsys, "prune", "--to", "1K")
    assert status == 0 and out.startswith("removed ")
    assert [path.name for path in (cache / "kernels").iterdir()] == [f"softmax-{THIRD[:16]}-{OTHER[:16]}"]
    assert not list((cache / "stages").glob("??/*")) and not list((cache / "failed").iterdir())
    status, _, err = run(capsys, "prune", "--to", "much")
    assert status == 1 and "'much' is no size" in err


def test_verifying_reports_all_damage_and_removes_it_if_asked(cache, capsys, tmp_path):
    assert run(capsys, "verify") == (0, "1 stage and 2 kernels, 0 damaged\n", "")
    (cache / f"kernels/scale-{THIRD[:16]}-{KEY[:16]}/_lib/scale.so").write_bytes(b"librarx")
    moved = cache / f"kernels/softmax-{THIRD[:16]}-{THIRD[:16]}"
    (cache / f"kernels/softmax-{THIRD[:16]}-{OTHER[:16]}").rename(moved)
    stage = entry(cache)
    stage.write_bytes(stage.read_bytes()[:-1] + b"x")
    status, out, _ = run(capsys, "verify")
    assert status == 1 and out.splitlines() == [
        f"stages/{stage.name[:2]}/{stage.name}: the content does not fit its digest",
        f"kernels/scale-{THIRD[:16]}-{KEY[:16]}: _lib/scale.so: was altered",
        f"kernels/softmax-{THIRD[:16]}-{THIRD[:16]}: has the name of another key",
        "1 stage and 2 kernels, 3 damaged",
    ]
    assert stage.exists() and moved.exists()
    status, out, _ = run(capsys, "verify", "--remove")
    assert status == 0 and out.endswith("removed what is damaged\n")
    assert run(capsys, "verify") == (0, "0 stages and 0 kernels, 0 damaged\n", "")
    KernelStore(cache).stages().store(key_of("g", []), tmp_path / "out", ["a"], {"table.json": "digest"})
    assert run(capsys, "verify")[0] == 0
    listed = next(path for path in (cache / "stages").glob("??/*") if b'"lists"' in path.read_bytes())
    listed.write_bytes(listed.read_bytes() + b"x")
    status, out, _ = run(capsys, "verify")
    assert status == 1 and f"stages/{listed.name[:2]}/{listed.name}: " in out


@pytest.mark.parametrize("action", ["size", "verify"])
def test_a_kernel_that_another_process_removes_meanwhile_is_no_error(cache, action, capsys, monkeypatch):
    kernels = KernelStore.kernels

    def and_one_that_is_gone(store: KernelStore) -> list[Path]:
        return [*kernels(store), store.folder / "kernels/gone-0123456789abcdef"]

    assert main(["cache", action]) == 0
    expected = capsys.readouterr().out
    monkeypatch.setattr(KernelStore, "kernels", and_one_that_is_gone)
    assert main(["cache", action]) == 0
    assert capsys.readouterr().out == expected


def test_a_damaged_manifest_is_listed_and_ends_nothing(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = cache / f"kernels/scale-{THIRD[:16]}-{KEY[:16]}/manifest.json"
    for text in ("{", sealed_document({"schema": SCHEMA, "key": KEY, "kernels": {"scale": []}, "files": {}})):
        manifest.write_text(text)
        status, out, _ = run(capsys, "list")
        assert status == 0 and re.search(f"^scale +damaged .*{KEY[:16]}$", out, re.M)
    manifest.write_text("{")
    assert run(capsys, "show", KEY[:16])[0] == 1


@pytest.mark.parametrize("action", [one.name for one in COMMAND.actions if one.arguments])
def test_a_folder_without_a_cache_stays_as_it_is(tmp_path, action, capsys):
    more = ["ab"] if action == "show" else []
    status, out, _ = run(capsys, action, *more, "--dir", str(tmp_path / "none"))
    assert status == (action == "show") and out == f"there is no cache in {tmp_path / 'none'}\n"
    assert not (tmp_path / "none").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes").write_text("mine")
    status, _, err = run(capsys, action, *more, "--dir", str(tmp_path / "other"))
    assert status == 1 and "has other things in it" in err and (tmp_path / "other/notes").exists()


def test_what_is_shared_is_of_the_innermost_project_around_the_working_folder(tmp_path, capsys, monkeypatch):
    (tmp_path / "inner/kernels").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.kernelwright]\nremote_cache = "shared"\n')
    (tmp_path / "inner/pyproject.toml").write_text("[tool.kernelwright]\n")
    for folder, said in (("inner/kernels", "remote_cache is empty"), ("inner", "remote_cache is empty"), (".", "")):
        monkeypatch.chdir(tmp_path / folder)
        assert said in run(capsys, "push")[2]
