"""What an error says: the place, the cause, the detail and the remedy, whatever a user's program printed."""

from __future__ import annotations

import errno

import pytest
from kernelwright.core.errors import (
    LONGEST_SHOWN,
    KernelwrightError,
    ToolError,
    Where,
    escaped,
    is_text,
    printable,
    refused,
    shown,
)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (Where(), ""),
        (Where("gemm"), "gemm"),
        (Where("gemm", "m-64"), "gemm/m-64"),
        (Where(stage="nvcc"), "[nvcc]"),
        (Where("gemm", stage="link"), "gemm [link]"),
        (Where("gemm", "m-64", "nvcc", "kernels/gemm.py:7"), "kernels/gemm.py:7 gemm/m-64 [nvcc]"),
        (Where(location="a\nb.py:1"), r"a\nb.py:1"),
    ],
)
def test_a_place_is_its_known_parts(where: Where, text: str) -> None:
    assert str(where) == text


def test_an_error_is_place_message_detail_and_remedy_in_which_nothing_rules_a_terminal() -> None:
    error = KernelwrightError("it broke", Where("gemm"), "mend it", "one\n  two\n")
    assert str(error).split("\n") == ["gemm: it broke", "    one", "      two", "  remedy: mend it"]
    assert (error.message, error.where, error.remedy) == ("it broke", Where("gemm"), "mend it")
    error = KernelwrightError("it broke")
    assert str(error) == "it broke" == error.args[0]
    assert (error.where, error.remedy, error.detail) == (Where(), None, None)
    for text, expected in ESCAPED.items():
        error = KernelwrightError(text, None, text, text)
        assert (escaped(text), error.message, error.remedy, error.detail) == (expected,) * 4


ESCAPED = {
    **{"a\tb\nc\u00e4\u4e2d": "a\tb\nc\u00e4\u4e2d", "a\r\nb": "a\nb", "a\rb": "a\\rb", "\x1b[31mred": "\\x1b[31mred"},
    **{"\x9b31m": "\\x9b31m", "a\u202eb\u2066c\u200fd": "a\\u202eb\\u2066c\\u200fd", "a\u2028b": "a\\u2028b"},
    **{"a\udcffb": "a\\udcffb", "a\x7f\x00\x07": "a\\x7f\\x00\\x07", "c\x1b]0;d": "c\\x1b]0;d"},
}


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")


LONGEST = "x" * (LONGEST_SHOWN - 2)


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        *((printable, "kernels/größe 1.py", "kernels/größe 1.py"), (printable, "a\nb'", r"a\nb'"), (shown, "x", "'x'")),
        *((shown, LONGEST, repr(LONGEST)), (shown, LONGEST + "x", f"'{LONGEST}x...")),
        *((shown, Odd(), "<Odd that cannot be shown>"), (is_text, "", True), (is_text, "größe\n", True)),
        *((is_text, "a\0b", False), (is_text, "\ud800", False)),
    ],
)
def test_what_is_shown_is_one_short_line_of_text(function, value, expected):
    assert function(value) == expected


@pytest.mark.parametrize(
    ("error", "place", "message"),
    [
        (OSError(errno.EACCES, "Permission denied", "a/b"), "c", "Permission denied (a/b)"),
        (OSError(errno.ENOSPC, "No space left on device"), "c", "No space left on device (c)"),
        (OSError(errno.ENOSPC, "No space left on device"), "", "No space left on device"),
        (OSError("odd"), "", "odd"),
    ],
)
def test_what_the_operating_system_refused_names_the_path(error: OSError, place: str, message: str) -> None:
    made = refused(error, Where("gemm"), place)
    assert made.message == f"the operating system said: {message}"
    assert made.where == Where("gemm") and "try again" in (made.remedy or "")


@pytest.mark.parametrize(
    ("status", "output", "ending", "printed"),
    [(2, "a: bad\n", "ended with exit status 2", "a: bad"), (-9, " \n", "was ended by signal 9", "(no output)")],
)
def test_a_failed_program_shows_how_it_ended_and_what_it_printed(status, output, ending, printed):
    error = ToolError(["/usr/bin/cc", "a b.c"], status, output, Where("gemm"), "mend it")
    lines = [f"gemm: cc {ending}", "    $ /usr/bin/cc 'a b.c'", f"    {printed}", "  remedy: mend it"]
    assert str(error).split("\n") == lines
    assert (error.command, error.status) == (("/usr/bin/cc", "a b.c"), status)
    assert ToolError(["cc"], status, output, Where()).message == f"cc {ending}"
