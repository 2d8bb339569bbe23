"""Random input: odd texts, JSON values, and what damage makes of real files."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

ODD_TEXTS = [
    *("", " ", ".", "..", "...", "/", "../../evil", "/tmp/evil", "a/b", "a\\b", "~", "-", "--help", "-o", "#x", "@x"),
    *("\0", "a\0b", "\n", "a\nb", "\r", "\t", "\x1b[31mred\x1b[0m", "\x7f", "\x85"),
    *("\u2028", "\u202eevil", "\u200b", "\ufeff", "\ud800", "\udcff", "\U0010ffff"),
    *("é", "e\u0301", "\ufb01", "\u017f", "\u0130", "ß", "😀", "\U0001f469\u200d\U0001f467", "日本語"),
    *("CON", "nul", "com1", "aux.py", "main", "check", "kw_x", "a__b", "class", "None", "self", "default", "wheel"),
    *("$HOME", "${TARGETS}", "$(x)", "$$", "%s", "%(x)s", "{}", "{0}", "'", '"', "'''", '"""', "\\", "`id`", "; id"),
    *("*/", "/*", "//", "*", "?", "[a]", "<x>", "&lt;", "|", "a b"),
    *("0", "-1", "1e999", "nan", "inf", "true", "null", "0x10"),
    *("a" * 80, "a" * 81, "a" * 255, "b" * 256, "c" * 5000, "é" * 200, "9" * 400, "9" * 5000, "../" * 100),
]
"""Texts that programs have trouble with."""

odd_texts = st.sampled_from(ODD_TEXTS)
letters = st.text("abcXYZ019_-.", max_size=12)
any_character = st.characters() | st.characters(categories=["Cc", "Cf", "Cs", "Co", "Zs"])
texts = st.one_of(
    odd_texts, letters, st.text(any_character, max_size=40), st.tuples(letters, odd_texts, letters).map("".join)
)
"""Any text, lone surrogates and control characters among them."""

# Hypothesis shows what it samples from, and Python refuses to show an integer of 5000 digits.
huge = st.sampled_from([400, 5000]).map(lambda digits: 10**digits)
integers = st.integers() | st.sampled_from([0, 1, -1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**64)]) | huge
numbers = integers | st.floats() | st.booleans()
plain = st.none() | numbers | texts
json_texts = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=20) | odd_texts
json_plain = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | json_texts
json_values = st.recursive(
    json_plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(json_texts, inner, max_size=4), max_leaves=8
)
values = st.recursive(
    plain | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(texts, inner, max_size=3)
        | st.sets(st.integers(), max_size=3)
    ),
    max_leaves=6,
)
"""Any value that a build file could give for a setting."""


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    """JSON, or TOML, that is nested deeply."""
    return opening * depth + closing * depth


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """What a crash, a bad disk or a careless program makes of a file."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["flip", "cut", "drop", "insert", "repeat", "zeros", "replace"]))
        if kind == "flip" and data:
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[place:]
        elif kind == "drop":
            del data[place : place + draw(st.integers(1, 40))]
        elif kind == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=20) | st.sampled_from([b"\n", b"\xff", b"{", b'"']))
        elif kind == "repeat":
            data[place:place] = data[place : place + draw(st.integers(1, 200))]
        elif kind == "zeros":
            data[place : place + 16] = bytes(16)
        elif kind == "replace":
            data[:] = draw(st.binary(max_size=100))
    return bytes(data)


@st.composite
def restructured(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document of which parts were removed, renamed or replaced by something of another kind."""
    box = [copy.deepcopy(document)]
    for _ in range(draw(st.integers(1, 2))):
        holder, key = draw(st.sampled_from(_places(box)))
        kind = draw(st.sampled_from(["replace", "replace", "drop", "wrap", "rename", "repeat", "odd"]))
        value = holder[key]
        if kind == "drop":
            del holder[key]
        elif kind == "wrap":
            holder[key] = [value]
        elif kind == "rename" and isinstance(holder, dict):
            holder[draw(json_texts)] = holder.pop(key)
        elif kind == "repeat" and isinstance(holder, list):
            holder.append(copy.deepcopy(value))
        elif kind == "odd":
            holder[key] = draw(odd_texts)
        else:
            holder[key] = draw(json_values)
        if not box:
            return draw(json_values)
    return box[0]


def _places(node: Any) -> list[tuple[Any, Any]]:
    """Every value in a document, as its holder and its key or index."""
    if isinstance(node, list):
        keys: list[Any] = list(range(len(node)))
    else:
        keys = list(node) if isinstance(node, dict) else []
    return [(node, key) for key in keys] + [place for key in keys for place in _places(node[key])]


def as_json(value: Any) -> str:
    """JSON with all that Python's parser takes, such as lone surrogates and ``NaN``."""
    return json.dumps(value)
