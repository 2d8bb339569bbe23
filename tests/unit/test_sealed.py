"""Sealed lines and files: what was written is read again, and whatever else there is counts as nothing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.records import Record
from kernelwright.core.sealed import read_sealed, sealed, sealed_object, unsealed, unsealed_object, write_sealed

BODY = {"größe": "\udcff", "b": [1, None], "a": {"c": 0.5}}


def raw(record: Record) -> dict[str, Any]:
    return record.raw


def test_a_sealed_line_is_json_with_the_digest_of_the_rest() -> None:
    text = '"größe",\t{"a":1}'
    line = sealed(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert line.decode() == f'["{digest}",{text}]\n'
    assert json.loads(line) == [digest, "größe", {"a": 1}]
    assert unsealed(line) == text


@pytest.mark.parametrize("text", ["", '"größe"', "[" * 2000, "not JSON", '"a",\t{}'])
def test_a_sealed_line_with_any_flipped_bit_or_cut_off_is_refused(text: str) -> None:
    line = sealed(text)
    assert unsealed(line) == text
    for position in range(len(line)):
        changed = line[:position] + bytes([line[position] ^ 1]) + line[position + 1 :]
        for damaged in (changed, line[:position], line[position + 1 :]):
            with pytest.raises(ValueError, match="does not fit its digest"):
                unsealed(damaged)
    for damaged in (line + b"\n", line + line, b"\n" + line):
        with pytest.raises(ValueError, match="does not fit its digest"):
            unsealed(damaged)


def test_what_is_no_text_is_refused_though_its_digest_fits() -> None:
    data = b'"\xff"'
    with pytest.raises(ValueError):
        unsealed(b'["%s",%s]\n' % (hashlib.sha256(data).hexdigest().encode(), data))


def test_an_object_comes_back_in_its_order(tmp_path: Path) -> None:
    write_sealed(tmp_path / "folder" / "x", "demo 1", BODY)
    found = read_sealed(tmp_path / "folder" / "x", "demo 1", raw)
    assert found == BODY and found is not None and list(found) == list(BODY)
    assert (tmp_path / "folder" / "x").read_bytes() == sealed_object("demo 1", BODY)
    assert unsealed_object(sealed_object("demo 1", BODY), "demo 1").raw == BODY


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\0" * 999,
        sealed_object("demo 2", BODY),
        sealed_object("demo 1", BODY)[:-1],
        sealed_object("demo 1", BODY) + b"\n",
        sealed(""),
        sealed('"demo 1"'),
        sealed('"demo 1",[]'),
        sealed('"demo 1",{},{}'),
        sealed('1,{"a":1}'),
        sealed('"demo 1",{"a":NaN}'),
        sealed('"demo 1",{"a":' + "9" * 5000 + "}"),
        sealed('"demo 1",' + '{"a":' * 100_000 + "1" + "}" * 100_000),
        sealed('"demo 1",{'),
    ],
    ids=range(15),
)
def test_what_is_damaged_or_of_another_form_counts_as_nothing(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    assert read_sealed(tmp_path / "x", "demo 1", raw) is None


def test_what_its_reader_refuses_counts_as_nothing(tmp_path: Path) -> None:
    write_sealed(tmp_path / "x", "demo 1", BODY)
    assert read_sealed(tmp_path / "x", "demo 1", lambda record: record.text("b")) is None
    assert read_sealed(tmp_path / "x", "demo 1", lambda record: record.text("größe")) == "\udcff"
    assert read_sealed(tmp_path, "demo 1", raw) is None
    assert read_sealed(tmp_path / "absent", "demo 1", raw) is None
