"""The part of the report about results of ``kernelwright bench``: rooflines, and the table beside them."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from kernelwright.cli import main
from kernelwright.commands.report.data import collect
from kernelwright.commands.report.page import render
from support.browser import EVIL, Browser, escaped, needs_browser, rows_of


def row(kernel: str, what: str, gb_s: float, gflop_s: float = 0.0) -> dict[str, Any]:
    return {
        **{"kernel": kernel, "config": {"dtype": "float32"}, "sizes": {"m": 64}, "what": what},
        **{"rounds": [10.0, 11.0, 12.0], "gb_s": gb_s, "gflop_s": gflop_s},
    }


def results(**other: Any) -> dict[str, Any]:
    """What was measured on a device that moves 100 GB/s and does 1000 GFLOP/s."""
    return {
        "schema": 1,
        "device": {"target": "llvm", "arch": "x86-64-v3", "name": "a CPU", "count": 2},
        "measured": {"tvm": "0.27.0"},
        "rows": [row("gemm", EVIL, 20, 800), row("gemm", "reference", 2, 4), row("copy", "kernel", 90)],
        "limits": {"gb_s": 100.0, "gflop_s": 1000.0},
        **other,
    }


@pytest.fixture
def page(tmp_path: Path) -> str:
    return page_of(tmp_path, results())


def page_of(folder: Path, data: dict[str, Any]) -> str:
    path = folder / "results.json"
    path.write_text(json.dumps(data))
    return render(collect(folder, ["build"], [path])).decode()


def test_a_roofline_shows_each_row_below_the_limits_that_are_its_own(page: str) -> None:
    (drawing,) = re.findall(r'<svg class="plot".*?</svg>\n</svg>', page, re.S)
    assert 'aria-label="Roofline of gemm"' in drawing and "copy" not in drawing
    start, ridge, end = re.findall(r'class="line roof" d="M(\S+ \S+)L(\S+) \S+H(\S+)"', drawing)[0]
    assert float(start.split()[0]) < float(ridge) < float(end)
    found = [float(x) for x in re.findall(r'<circle class="dot" cx="([\d.]+)"', drawing)]
    assert found[1] < float(ridge) < found[0], "2 FLOP for each byte are below the ridge, 40 are above it"
    tips = [html.unescape(tip).splitlines() for tip in re.findall(r"<title>(.*?)</title>", drawing, re.S)]
    assert tips[0][0] == EVIL and tips[0][-1] == "80% of the limit" and tips[1][-1] == "2% of the limit"
    assert "4 GFLOP/s, 2 GB/s, 2 FLOP for each byte" in tips[1]
    assert EVIL not in page and escaped(EVIL) in page


def test_a_table_has_what_has_no_roofline_too(page: str) -> None:
    rows = rows_of(page, "Measured on x86-64-v3")
    assert [one[0] for one in rows] == ["gemm", "gemm", "copy"]
    assert rows[2][4:] == ["11.00", "18%", "90", "\u2013", "90%"]


def test_results_without_limits_have_no_roofline(tmp_path: Path) -> None:
    data = results()
    del data["limits"]
    page = page_of(tmp_path, data)
    assert "Roofline" not in page and "The limits of the device were not measured" in page
    assert rows_of(page, "Measured on x86-64-v3")[0][-1] == "\u2013"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"schema": 2}, "its schema is 2, expected 1"),
        ({"rows": [row("gemm", "kernel", 1) | {"rounds": []}]}, "a row has no times"),
        ({"rows": [row("gemm", "kernel", 1e-300, 1)]}, "rows[0].gb_s is 1e-300, expected 0, or a number from"),
        ({"limits": {"gb_s": 0.0, "gflop_s": 1.0}}, "gb_s"),
    ],
)
def test_a_file_that_is_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, Any], said: str
) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results(**other)))
    assert main(["report", str(tmp_path), "--bench", str(path)]) == 1
    error = capsys.readouterr().err
    assert "results.json: is damaged" in error and said in error and "kernelwright bench --json FILE" in error
    path.unlink()
    assert main(["report", str(tmp_path), "--bench", str(path)]) == 1
    assert "results.json: cannot be read" in capsys.readouterr().err


@needs_browser
def test_a_mark_explains_itself_in_a_browser_and_the_page_asks_for_nothing(tmp_path: Path, page: str) -> None:
    path = tmp_path / "report.html"
    path.write_text(page)
    with Browser(path, tmp_path / "profile") as browser:
        browser.mouse("mouseMoved", *browser.middle('.one[data-candidate="1"] .hit'))
        text = browser.evaluate("document.getElementById('tip').innerText").split("\n")
        assert (text[0], text[-1]) == ("reference", "2% of the limit")
        assert browser.evaluate("document.querySelectorAll('.lighting .lit').length") == 1
        assert browser.complaints == [] and browser.requests == [path.as_uri()]
