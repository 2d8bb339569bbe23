"""The value of a size in signature.json."""

from __future__ import annotations

import pytest
from kernelwright.core.size import evaluate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("n", 10),
        ("2 * n + m", 23),
        ("(n - m) % 4", 3),
        ("-n // m", -4),
        ("min(n, m, 2) + max(n, m)", 12),
    ],
)
def test_value_of_an_expression(text: str, value: int) -> None:
    assert evaluate(text, {"n": 10, "m": 3}) == value


@pytest.mark.parametrize(
    "text", ["k", "1.5", "True", "n ** 2", "n / m", "abs(n)", "min(n)", "n.real", "__import__('os')", "n +", ""]
)
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        evaluate(text, {"n": 10, "m": 3})


def test_division_by_zero_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        evaluate("n // m", {"n": 10, "m": 0})
