"""Sizes of signature.json: their values, and what they are translated to."""

from __future__ import annotations

from typing import Any

import pytest
from kernelwright.define.sizes import Size as Declared
from kernelwright.define.sizes import ceildiv, text_of
from kernelwright.runtime.size import Size, line, translate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("7", 7), ("n", 10), (" n ", 10), ("2 * n + m", 23), ("2 * (n + m)", 26), ("n - (m - 1)", 8)),
        *(("(n - m) % 4", 3), ("-n // m", -4), ("-(n // m)", -3), ("min(n, m, 2) + max(n, m)", 12)),
    ],
)
def test_value_of_an_expression(text: str, value: int) -> None:
    assert Size(text).value({"n": 10, "m": 3}) == value


@pytest.mark.parametrize(
    "text",
    [
        *("k", "1.5", "True", "n ** 2", "n / m", "n << 1", "abs(n)", "min(n)", "min(n, key=m)", "min(*n, m)"),
        *("~n", "+n", "n.real", "__import__('os')", "n +", "", "min", "n and m", "n if m else 1", "(n := 1)"),
    ],
)
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        Size(text).value({"n": 10, "m": 3})


def test_symbols_have_any_names_and_a_size_is_translated_operation_by_operation() -> None:
    with pytest.raises(ValueError, match=r"cannot evaluate the size 'n \+ k' with the symbols \['m', 'n'\]"):
        Size("n + k").value({"n": 10, "m": 3})
    with pytest.raises(ZeroDivisionError):
        Size("n // m").value({"n": 10, "m": 0})
    assert Size("min(min, max)").value({"min": 5, "max": 3}) == 3, "symbols may have names of functions"
    assert Size("m * n + 2").names == ["m", "n"]
    said = translate("max(-n, 2, m) % 3 - 1", str, str.upper, lambda sign, operands: f"[{sign} {' '.join(operands)}]")
    assert said == "[- [% [max [- N] 2 M] 3] 1]"


@pytest.mark.parametrize(
    ("size", "value"),
    [
        (Declared("(n - 1) + m") * 4, 48),
        (Declared("n") - "(m) - 1", 8),
        (ceildiv("(n + 1) + m", "(m) + 1"), 4),
        (Declared("(n + m)") * 4, 52),
        (Declared("(n - 1) + (m)") * 4, 48),
        (50 - Declared("n") * "m", 20),
    ],
)
def test_what_is_computed_of_texts_takes_each_as_a_whole(size: Declared, value: int) -> None:
    assert Size(text_of(size)).value({"n": 10, "m": 3}) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 * d", ("d", 2, 0)),
        ("d", ("d", 1, 0)),
        ("3 - -d * 2", ("d", 2, 3)),
        ("2 * (d + 3) - d", ("d", 1, 6)),
        ("d - 5", ("d", 1, -5)),
        *((text, None) for text in ("d + n", "d * d", "d // 2", "-d", "d - d", "8", "max(d, 1)", "d *", "d << 1")),
        *((text, None) for text in ("(d + 1) * (d - 1)", f"d * {1 << 31}", "0 * d + 4")),
    ],
)
def test_a_size_tells_its_one_name_if_it_is_a_number_of_times_that_and_a_number(text: str, expected: Any) -> None:
    found = line(text)
    assert found == expected
    for value in range(20) if found else ():
        size = Size(text).value({"d": value})
        assert found is not None and found.solved(size) == value and found.fits(size) == (value >= 0)
        assert found.times == 1 or not found.fits(size + 1)
