"""Sealed lines and files: what was written is read again, and whatever else there is counts as nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.sealed import (
    form_of,
    read_sealed,
    sealed,
    sealed_record,
    unsealed,
    unsealed_record,
    write_sealed,
)


@dataclass(frozen=True)
class Demo:
    text: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Other(Demo):
    """A record with the same fields."""


GOOD = Demo("a", {"größe": "\udcff", "b": [1, None], "a": {"c": 0.5}})
FORM, WHOLE = form_of(Demo), '{"text":"a","body":{}}'


def test_a_sealed_line_is_json_with_the_digest_of_the_rest_and_what_is_no_text_is_none() -> None:
    text = '"größe",\t{"a":1}'
    line = sealed(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert line.decode() == f'["{digest}",{text}]\n'
    assert json.loads(line) == [digest, "größe", {"a": 1}]
    assert unsealed(line) == text
    data = b'"\xff"'
    with pytest.raises(ValueError):
        unsealed(b'["%s",%s]\n' % (hashlib.sha256(data).hexdigest().encode(), data))


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


def test_a_record_comes_back_in_its_order(tmp_path: Path) -> None:
    write_sealed(tmp_path / "folder" / "x", GOOD)
    found = read_sealed(tmp_path / "folder" / "x", Demo)
    assert found == GOOD and found is not None and list(found.body) == list(GOOD.body)
    content = (tmp_path / "folder" / "x").read_bytes()
    assert content == sealed_record(GOOD) and unsealed_record(content, Demo) == GOOD
    assert json.loads(content)[1:] == [form_of(Demo), {"text": "a", "body": dict(GOOD.body)}]


def test_another_field_or_another_type_is_another_form() -> None:
    forms = [
        form_of(make_dataclass("Demo", fields, frozen=True))
        for fields in ([("a", int)], [("a", str)], [("a", int), ("b", int)], [("a", int, 1)], [("b", int)])
    ]
    assert len(set(forms)) == len(forms) and all(form.startswith("Demo ") for form in forms)


@pytest.mark.parametrize(
    "content",
    [
        *(None, b"", b"\0" * 999, sealed_record(Other("a", GOOD.body)), sealed_record(GOOD)[:-1]),
        *(sealed_record(GOOD) + b"\n", sealed(""), sealed(f'"{FORM}"'), sealed(f'"{FORM}",[]')),
        *(sealed(f'"{FORM}",{WHOLE},{{}}'), sealed(f"1,{WHOLE}"), sealed(f'"{FORM}",{{"text":"a"}}')),
        *(sealed(f'"{FORM}",{{"text":1,"body":{{}}}}'), sealed(f'"{FORM}",{{"text":"a","body":{{}},"more":1}}')),
        sealed(f'"{FORM}",{{"text":"a","body":{{"a":NaN}}}}'),
        sealed(f'"{FORM}",{{"text":"a","body":{{"a":{"9" * 5000}}}}}'),
        *(sealed(f'"{FORM}",{{"text":"a","body":' + '{"a":' * 100_000 + "1" + "}" * 100_001), sealed(f'"{FORM}",{{')),
    ],
    ids=range(18),
)
def test_what_is_damaged_or_of_another_form_counts_as_nothing(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "x").write_bytes(sealed(f'"{FORM}",{WHOLE}'))
    assert read_sealed(tmp_path / "x", Demo) == Demo("a", {})
    (tmp_path / "x").unlink()
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    assert read_sealed(tmp_path / "x", Demo) is None
    assert read_sealed(tmp_path, Demo) is None
