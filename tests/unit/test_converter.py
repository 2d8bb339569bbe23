"""Typed records to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelwright.core.converter import Count, from_json, json_text, that, to_json

Letter = Annotated[str, that("a letter", lambda text: len(text) == 1)]


@dataclass(frozen=True)
class Part:
    name: Letter
    size: Count = 0


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    named: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    pair: tuple[int, str] = (0, "")
    share: Annotated[float, that("a number from 0", lambda value: value >= 0)] = 0.0
    last: Part | None = None
    flag: bool = False
    anything: Any = None
    content: bytes = b""
    letters: Mapping[Letter, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.last is not None and self.last not in self.parts:
            raise ValueError("the last one is none of the parts")


parts = st.builds(Part, st.characters(), st.integers(0, 2**53))
wholes = st.lists(parts, max_size=3).flatmap(
    lambda found: st.builds(
        Whole,
        st.just(tuple(found)),
        st.dictionaries(st.text(), st.lists(st.integers() | st.text()).map(tuple), max_size=2),
        st.tuples(st.integers(), st.text()),
        st.floats(0, allow_infinity=False),
        st.sampled_from([None, *found]),
        st.booleans(),
        st.none() | st.text(),
        st.binary(),
        st.dictionaries(st.characters(), st.none() | st.lists(st.integers()), max_size=2),
    )
)


@given(wholes)
def test_what_is_written_is_read_back_equal(whole: Whole) -> None:
    assert from_json(Whole, json.loads(json.dumps(to_json(whole)))) == whole
    assert json_text(whole) == json.dumps(to_json(whole), separators=(",", ":"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "the document is 3, expected an object"),
        ({}, "parts is missing"),
        ({"parts": [], "more": 1}, "more is not expected"),
        ({"parts": {}}, "parts is {}, expected a list"),
        ({"parts": [{"name": "a"}, {"name": 1}]}, "parts[1].name is 1, expected a string"),
        ({"parts": [], "letters": {"a": 1, "ab": 1}}, "letters.ab is 'ab', expected a letter"),
        ({"parts": [], "letters": []}, "letters is [], expected an object"),
        ({"parts": [], "pair": [True, "a"]}, "pair[0] is True, expected an integer"),
        ({"parts": [{"name": "ab"}]}, "parts[0].name is 'ab', expected a letter"),
        ({"parts": [{"name": "a", "size": True}]}, "parts[0].size is True, expected an integer"),
        ({"parts": [{"name": "a", "size": -1}]}, "parts[0].size is -1, expected an integer from 0 to 9007199254740992"),
        ({"parts": [], "named": {"n": [1, None]}}, "named.n[1] is None, expected a string or an integer"),
        ({"parts": [], "pair": [1]}, "pair is [1], expected a list of 2"),
        ({"parts": [], "pair": [1, 2]}, "pair[1] is 2, expected a string"),
        ({"parts": [], "share": 10**400}, "share is 100000000000000000...0000000000000000000, expected a number"),
        ({"parts": [], "flag": 1}, "flag is 1, expected true or false"),
        ({"parts": [], "content": "a?=="}, "content is 'a?==', expected a string in base64"),
        ({"parts": [], "content": 3}, "content is 3, expected a string in base64"),
        ({"parts": [], "last": {"name": "z"}}, "the document does not fit: the last one is none of the parts"),
    ],
)
def test_what_does_not_fit_is_an_error_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        from_json(Whole, value)
    assert str(caught.value) == message


def test_defaults_are_left_out_so_that_equal_records_are_equal_data_and_what_is_no_data_is_refused():
    assert to_json(Whole((Part("a"),), share=1)) == {"parts": [{"name": "a"}], "share": 1}
    assert to_json(Whole((), flag=False)) == {"parts": []}
    with pytest.raises(TypeError, match="a set cannot be written as JSON"):
        to_json(Whole((), anything={1}))
