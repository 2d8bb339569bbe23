"""The finished kernels of earlier runs: what is written is read again, and nothing else counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.files import file_stamp, sha256_of
from kernelwright.core.records import decoded
from kernelwright.core.sealed import write_sealed
from kernelwright.state.settled import (
    SCHEMA,
    Settled,
    SettledKernel,
    is_current,
    read_settled,
    stamps_of,
    trusted_stamps,
    write_settled,
)

STAMP = [1, 2, 3, 4]
LONG_AGO_NS = 10**18


def settled() -> Settled:
    """One finished kernel, with something of each kind."""
    kernel = SettledKernel(
        "kernels/scale.py",
        7,
        {"build/scale.so": STAMP},
        2,
        {"build/check.json": STAMP},
        ["tvm_ffi"],
        {"_lib/scale.so": ["scale/scale.so", "digest"]},
        "digest of the entry",
    )
    files: dict[str, dict[str, list[int] | None]] = {"kernels/scale.py": {"kernels/scale.py": STAMP, "absent": None}}
    return Settled(
        "key", files, {"kernels/scale.py": ["a note"]}, {"scale": kernel}, {"_lib/scale.so": ((1, 2, 3, 4), "d")}
    )


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    write_settled(tmp_path / "x.json", settled())
    found = read_settled(tmp_path / "x.json", "key")
    assert found == settled()
    assert found.of_file == {"kernels/scale.py": {"scale": settled().kernels["scale"]}}


def test_another_key_and_an_absent_file_are_empty(tmp_path: Path) -> None:
    assert read_settled(tmp_path / "x.json", "key") == Settled("key")
    write_settled(tmp_path / "x.json", settled())
    assert read_settled(tmp_path / "x.json", "another") == Settled("another")


def put(*place: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one value in the JSON document."""

    def change(body: dict[str, Any]) -> None:
        inner: Any = body
        for part in place[:-1]:
            inner = inner[part]
        inner[place[-1]] = value

    return change


def renamed(*place: Any, to: str) -> Callable[[dict[str, Any]], None]:
    """A change of the only key of an object."""

    def change(body: dict[str, Any]) -> None:
        inner: Any = body
        for part in place:
            inner = inner[part]
        (name,) = list(inner)
        inner[to] = inner.pop(name)

    return change


KERNEL = ("kernels", "scale")


@pytest.mark.parametrize(
    "change",
    [
        put("schema", value=1),
        put("key", value=["key"]),
        put("files", "kernels/scale.py", value=[]),
        put("notes", "kernels/scale.py", value="a note"),
        put("notes", "kernels/scale.py", value=[1]),
        put("copies", "_lib/scale.so", value=[1, 2, 3, "d"]),
        put("copies", "_lib/scale.so", value=[*STAMP, 1]),
        put("copies", "_lib/scale.so", value=[1, 2, 3, 4.0, "d"]),
        put("copies", "_lib/scale.so", value=[1, 2, 3, True, "d"]),
        renamed("kernels", to="../scale"),
        renamed("kernels", to="größe"),
        renamed("copies", to="../scale.so"),
        renamed("copies", to="/scale.so"),
        put(*KERNEL, "file", value=1),
        put(*KERNEL, "stages", value="7"),
        put(*KERNEL, "checks", value="2"),
        put(*KERNEL, "outputs", value=[]),
        put(*KERNEL, "check_outputs", value=[]),
        put(*KERNEL, "backends", value=[1]),
        put(*KERNEL, "entry", value=None),
        put(*KERNEL, "more", value=1),
        put(*KERNEL, "products", "_lib/scale.so", value=["../scale.so", "d"]),
        put(*KERNEL, "products", "_lib/scale.so", value=["scale.so", 1]),
        put(*KERNEL, "products", "_lib/scale.so", value=["scale.so", "d", "d"]),
        put(*KERNEL, "products", "_lib/scale.so", value=["scale\0.so", "d"]),
        renamed(*KERNEL, "products", to="a/../../b"),
        lambda body: body.pop("notes"),
        lambda body: body["kernels"]["scale"].pop("entry"),
    ],
)
def test_a_document_of_another_form_is_empty(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    write_settled(tmp_path / "x.json", settled())
    _, schema, body = decoded((tmp_path / "x.json").read_bytes())
    assert schema == SCHEMA
    change(body)
    write_sealed(tmp_path / "x.json", SCHEMA, body)
    assert read_settled(tmp_path / "x.json", "key") == Settled("key")


@pytest.mark.parametrize("schema", ["settled 2", "toolchain 2", 3, None])
def test_a_document_of_another_schema_is_empty(tmp_path: Path, schema: Any) -> None:
    write_settled(tmp_path / "x.json", settled())
    write_sealed(tmp_path / "x.json", schema, decoded((tmp_path / "x.json").read_bytes())[2])
    assert read_settled(tmp_path / "x.json", "key") == Settled("key")


def test_a_changed_byte_makes_it_empty(tmp_path: Path) -> None:
    write_settled(tmp_path / "x.json", settled())
    content = (tmp_path / "x.json").read_bytes()
    (tmp_path / "x.json").write_bytes(content.replace(b"a note", b"A note"))
    assert read_settled(tmp_path / "x.json", "key") == Settled("key")


def old_file(path: Path, content: bytes = b"content") -> Path:
    path.write_bytes(content)
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return path


def test_files_are_current_while_their_stamps_are_the_same(tmp_path: Path) -> None:
    path = old_file(tmp_path / "a")
    stamps: dict[str, list[int] | None] = {"a": [*file_stamp(path)], "absent": None, "no\0name": None}
    top = str(tmp_path)
    assert is_current(top, stamps) and is_current(top, {})
    for index in range(4):
        other = [*file_stamp(path)]
        other[index] += 1
        assert not is_current(top, {"a": other})
    assert not is_current(top, {"a": None})
    assert not is_current(top, {"absent": STAMP})
    assert not is_current(top, {"a": [*file_stamp(path)], "no\0name": STAMP})


def with_change_times(monkeypatch: pytest.MonkeyPatch, *, changed: int, now: int) -> None:
    """Let files have been changed, and let it be, at certain times in ns."""
    monkeypatch.setattr(
        "kernelwright.state.settled.file_stamp", lambda path: (*file_stamp(path)[:1], changed, changed, 5)
    )
    monkeypatch.setattr("time.time_ns", lambda: now)


def test_stamps_are_trusted_if_the_content_is_as_its_digest_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = sha256_of(old_file(tmp_path / "a"))
    with_change_times(monkeypatch, changed=LONG_AGO_NS, now=LONG_AGO_NS + 10**12)
    top = str(tmp_path)
    assert trusted_stamps(top, {"a": digest}) == {"a": [7, LONG_AGO_NS, LONG_AGO_NS, 5]}
    assert trusted_stamps(top, {"a": "another"}) is None
    assert trusted_stamps(top, {}) == {}
    monkeypatch.undo()
    assert trusted_stamps(top, {"absent": ""}) == {"absent": None}
    assert trusted_stamps(top, {"absent": digest}) is None


@pytest.mark.parametrize(
    ("changed", "after", "trusted"),
    [
        (LONG_AGO_NS + 1, 20_000_000, False),
        (LONG_AGO_NS + 1, 20_000_001, True),
        (LONG_AGO_NS, 2_000_000_000, False),
        (LONG_AGO_NS, 2_000_000_001, True),
        (LONG_AGO_NS + 1, -1, False),
    ],
)
def test_a_file_that_was_changed_just_now_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: int, after: int, trusted: bool
) -> None:
    digest = sha256_of(old_file(tmp_path / "a"))
    with_change_times(monkeypatch, changed=changed, now=changed + after)
    assert (trusted_stamps(str(tmp_path), {"a": digest}) is not None) == trusted


def test_stamps_of_outputs_have_paths_below_the_top(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    path = old_file(tmp_path / "build" / "a")
    assert [*stamps_of(str(tmp_path), [str(path)])] == ["build/a"]
    assert stamps_of(str(tmp_path), [str(path)])["build/a"][:2] == [7, LONG_AGO_NS]
    with pytest.raises(OSError):
        stamps_of(str(tmp_path), [str(tmp_path / "absent")])
