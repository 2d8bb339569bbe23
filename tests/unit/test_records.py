"""Checked reading of JSON: every value is of its kind, or an error that names the file and the place in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.converter import LARGEST
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.records import Record, decoded, is_file_name, read_json

READERS: dict[str, Callable[[Record], Any]] = {
    "text": lambda record: record.text("x"),
    "file_name": lambda record: record.file_name("x"),
    "flag": lambda record: record.flag("x"),
    "count": lambda record: record.count("x"),
    "number": lambda record: record.number("x"),
    "most": lambda record: record.count("x", 7),
    "limited": lambda record: record.number("x", 0.5),
    "texts": lambda record: record.texts("x"),
    "mapping": lambda record: record.mapping("x"),
    "records": lambda record: [item.raw for item in record.records("x")],
    "record": lambda record: record.record("x").raw,
    "members": lambda record: [(name, item.raw) for name, item in record.members("x")],
}


GOOD: dict[str, list[Any]] = {
    **{"text": ["", "a/b"], "file_name": ["a.so"], "flag": [False, True], "count": [0, LARGEST]},
    **{"number": [0, 0.5, LARGEST], "most": [7], "limited": [0.5], "texts": [[], ["a", "b"]]},
    **{"mapping": [{"a": 1, "b": None}], "records": [[{}, {"a": 1}]], "record": [{"a": 1}]},
}


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in GOOD.items() for value in values])
def test_a_value_of_its_kind_is_given(kind: str, value: Any) -> None:
    assert READERS[kind](Record({"x": value}, "")) == value


def test_numbers_are_floats_members_have_names_and_places_and_what_may_be_absent_is_of_its_kind() -> None:
    assert isinstance(Record({"x": 1}, "").number("x"), float)
    assert READERS["members"](Record({"x": {"a": {"b": 1}, "c": {}}}, "")) == [("a", {"b": 1}), ("c", {})]
    record = Record({"a": {"b": 1}, "c": {}}, "")
    assert [(name, item.raw, item.place) for name, item in record.members()] == [("a", {"b": 1}, "a"), ("c", {}, "c")]
    with pytest.raises(ValueError, match=r"^a\.b is 1, expected an object"):
        list(record.record("a").members())
    record = Record({"a": "text", "b": None, "c": 1}, "")
    assert [record.optional(record.text, name) for name in "abd"] == ["text", None, None]
    with pytest.raises(ValueError, match=r"^c is 1, expected a string"):
        record.optional(record.text, "c")
    Record({"a": 1}, "k").require_names("a", "b")
    with pytest.raises(ValueError, match=r"^k\.b is not expected"):
        Record({"c": 1, "a": 1, "b": 1}, "k").require_names("a")
    assert decoded(b'{"gr\xc3\xb6\xc3\x9fe": "\\udcff"}') == decoded('{"größe": "\\udcff"}') == {"größe": "\udcff"}
    record = Record({"a": None, "b": 0, "c": ""}, "")
    assert [record.has(name) for name in "abcd"] == [False, True, True, False]


BAD: dict[tuple[str, str | None], list[Any]] = {
    ("text", "a string"): [1],
    ("file_name", "a name"): ["a/b"],
    ("file_name", "a string"): [1],
    ("flag", "true or false"): [1],
    ("count", "an integer from 0 to"): [-1, LARGEST + 1, True, 1.0],
    ("number", "a number from 0"): [-0.5, LARGEST + 2, 10**400, True, "1", float("nan"), float("inf")],
    ("most", "an integer from 0 to 7"): [8],
    ("limited", "a number from 0 to 0.5"): [0.75],
    ("texts", "a list"): ["ab"],
    ("texts", "a list of strings"): [["a", 1]],
    ("mapping", "an object"): [[]],
    ("records", "a list"): [{}],
    ("records", None): [[{}, 1]],
    ("record", "an object"): [[]],
    ("members", None): [{"a": 1}],
}
"""Reader and what it expects -> values that are none; None: the error is that of a value in it."""


@pytest.mark.parametrize(
    ("kind", "value", "expected"), [(kind, value, text) for (kind, text), values in BAD.items() for value in values]
)
def test_another_value_is_an_error_that_names_place_and_value(kind: str, value: Any, expected: str | None) -> None:
    with pytest.raises(ValueError) as caught:
        READERS[kind](Record({"x": value}, "kernels.gemm"))
    inner = {"records": "kernels.gemm.x[1] is 1, expected an object", "members": "kernels.gemm.x.a is 1"}
    assert str(caught.value).startswith("kernels.gemm.x is " if expected else inner[kind])
    assert expected is None or f", expected {expected}" in str(caught.value)


@pytest.mark.parametrize("kind", sorted(set(READERS) - {"record", "members"}))
def test_an_absent_value_is_called_missing(kind: str) -> None:
    with pytest.raises(ValueError, match=r"^x is missing, expected "):
        READERS[kind](Record({}, ""))


@pytest.mark.parametrize(
    "text", ["", "{", "[1", "NaN", '{"a": -Infinity}', "9" * 5000, "[" * 200_000, "[] []", b"\xff"]
)
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        decoded(text)


@pytest.mark.parametrize(
    ("names", "fits"),
    [
        (("a.so", "größe", "...", ".a", "a b", "x" * 255, "ß" * 127), True),
        (("x" * 256, "ß" * 128, "", ".", "..", "/", "a/b", "a\0", "a\nb", "a\u202e"), False),
    ],
)
def test_a_name_of_a_file_is_one_that_the_system_takes_and_that_leads_nowhere_else(names, fits):
    assert {name: is_file_name(name) for name in names} == dict.fromkeys(names, fits)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", r"is damaged: the document is \[\], expected an object"),
        ("{", "is damaged: "),
        ('{"x": NaN}', "is damaged: NaN is not a number"),
        ("[" * 200_000, "is damaged: it is nested too deeply"),
        ('{"x": 1}', "is damaged: x is 1, expected a string"),
        (None, r"cannot be read \(No such file or directory\)"),
    ],
)
def test_damage_names_the_file_and_the_remedy(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(KernelwrightError, match=f"^{re.escape(str(path))}: {message}") as caught:
        read_json(path, lambda record: record.text("x"), "remove it")
    assert caught.value.remedy == "remove it"
    path.write_text(json.dumps({"x": "größe"}))
    assert read_json(path, lambda record: record.text("x"), "remove it") == "größe"
