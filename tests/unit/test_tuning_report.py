"""The part of the report about tuning: what it shows, what it refuses, and how it behaves in a browser."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright.cli import main
from kernelwright.commands.report.data import collect
from kernelwright.commands.report.page import render
from kernelwright.commands.report.plot import ticks
from kernelwright.commands.report.text import microseconds, short_time
from kernelwright.state.tuning_result import ConfigResult, read_result
from support.browser import EVIL, Browser, escaped, needs_browser, rows_of
from support.tuning_results import CPU, add_result, grid, result, tuned_config

POINTS = grid(block_m=[64, 16, 256], stages=[2, 3], block_n=[128])
"""The default is block_m=64 stages=2."""
SIZES = [{"m": m} for m in (1, 64, 4096)]
LARGE = "gemm/block_m-256 [link]: it needs 300,000 bytes of shared memory; declare fewer stages\nand more"


def cost(point: Mapping[str, Any], sizes: Mapping[str, int]) -> float:
    """Small blocks are best for small sizes, large ones for large sizes; stages matter little."""
    rows = point.get("block_m", 64)
    return float(
        10 * math.ceil(sizes.get("m", 1) / rows) * (8 + rows / 16) * (1.0 if point.get("stages") == 3 else 1.02)
    )


GEMM = tuned_config({"n": 4096, "dtype": "float16"}, POINTS, SIZES, cost, {5: LARGE}, warm=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of which one kernel was tuned, and nothing built."""
    add_result(tmp_path, result("gemm", GEMM))
    return tmp_path


def page_of(folder: Path, *configs: ConfigResult) -> str:
    """The page of a project, or of one whose kernel ``k`` has these configs."""
    if configs:
        add_result(folder, result("k", *configs))
    return render(collect(folder, ["build"])).decode()


def plots(page: str) -> list[str]:
    """The plots of a page."""
    return re.findall(r'<svg class="plot" .*?\n</svg>(?=</figure>)', page, re.S)


def maps(page: str) -> list[str]:
    """The heat maps of a page."""
    return re.findall(r'<table class="map.*?</table>', page, re.S)


def candidates(plot: str) -> dict[int, str]:
    """Number -> what is drawn of a candidate."""
    found = re.findall(r'<g class="one \w+" data-candidate="(\d+)">(.*?)</g>\n', plot, re.S)
    return {int(number): drawn for number, drawn in found}


def text_of(page: str) -> str:
    """What a reader sees."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))


# The file.


def test_what_is_written_is_what_is_read_also_by_other_programs(project: Path) -> None:
    assert read_result(project, "build/tune/gemm/sm_90a-132/result.json") == result("gemm", GEMM)
    document = json.loads((project / "build/tune/gemm/sm_90a-132/result.json").read_text())
    assert list(document) == ["schema", "kernel", "device", "measured", "table", "configs"]
    assert document["device"] == {"target": "cuda", "arch": "sm_90a", "name": "NVIDIA H100 80GB HBM3", "count": 132}
    (config,) = document["configs"]
    assert config["default"] == config["points"][0] == {"block_m": 64, "stages": 2, "block_n": 128}
    assert config["by"] == ["m"] and "upto" in config["rules"][0] and list(config["rules"][-1]) == ["tune"]
    assert config["sizes"][0]["candidates"][0] == {
        **{"number": 0, "us": 122.4, "default_us": 122.4, "ratio": 1.0, "spread": 0.012, "rounds": 5},
        **{"warm_us": pytest.approx(110.16), "clock_mhz": [1755, 1980]},
    }
    assert config["failures"][0] == {
        **{"number": 5, "slug": "slug-5", "message": LARGE, "folder": "build/tune/gemm/failed/slug-5"}
    }


MISFITS = [
    ('"schema": 1', '"schema": 2', "its schema is 2, expected 1"),
    ('"kernel": "gemm"', '"kernel": "../gemm"', "kernel is '../gemm', expected a name"),
    ('"count": 132', '"count": "132"', "device.count is '132', expected an integer"),
    ('"ratio": 1.0', '"ratio": 0', "ratio is 0, expected a number from 1e-16 to 9e+15"),
    ('"ratio": 1.0', '"ratio": 1e-300', "ratio is 1e-300, expected a number from"),
    ('"us": 122.4', '"us": 1e999', "us is inf"),
    ('"m": 64\n', '"m": 0\n', "sizes.m is 0, expected an integer from 1 to 9007199254740992"),
    ('"m": 64\n', '"k": 64\n', "has not exactly the symbols of its config"),
    ('"chosen": 3', '"chosen": 6', "it has a candidate 6, but there are 6 points"),
    ('"number": 1,', '"number": 0,', "a candidate is there twice"),
    ('"unmeasured": []', '"unmeasured": [6]', "it has a candidate 6, but there are 6 points"),
    ('"block_m": 64', '"block_m": [64]', "block_m is [64], expected true or false or an integer or a"),
    ('"clock_mhz": [\n      1755,', '"clock_mhz": [\n      1, 2,', "1980], expected no numbers or two"),
    ('"by": [\n    "m"', '"by": [\n    "q"', "by is not among its symbols"),
]


@pytest.mark.parametrize(("old", "new", "expected"), MISFITS)
def test_a_damaged_result_is_a_note_and_the_rest_is_shown(project, capsys, old, new, expected):
    path = project / "build/tune/gemm/sm_90a-132/result.json"
    content = re.sub(r"\n +", "\n", path.read_text())
    old, new = (re.sub(r"\n +", "\n", text) for text in (old, new))
    assert old in content
    path.write_text(content.replace(old, new))
    add_result(project, result("softmax", GEMM, device=CPU), "cpu")
    assert main(["report", str(project)]) == 0
    assert "0 kernels, 1 result of tuning" in capsys.readouterr().out
    page = text_of((project / "build" / "report.html").read_text())
    assert "build/tune/gemm/sm_90a-132/result.json: is damaged: " in page and expected in page
    assert "measure it again: kernelwright tune" in page and "Tuning of softmax" in page
    assert str(project / "build/tune") not in page


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'{"schema": 1}', b"[" * 100_000])
def test_a_file_that_is_no_result_is_a_note(project: Path, content: bytes):
    path = project / "build/tune/gemm/sm_90a-132/result.json"
    path.write_bytes(content)
    assert "result.json: is damaged: " in text_of(page_of(project))
    path.unlink()
    path.symlink_to("nowhere")
    assert "sm_90a-132/result.json: cannot be read" in text_of(page_of(project))


def test_tuning_that_was_interrupted_is_noted(project: Path):
    folder = project / "build/tune/softmax/sm_90a-132"
    folder.mkdir(parents=True)
    (folder / "timings.jsonl").write_text("{}\n")
    (project / "build/tune/softmax/failed/block_m-256").mkdir(parents=True)
    (project / "build/tune/cuda-0.lock").touch()
    notes = re.findall(r'<p class="note callout">(.*?)</p>', page_of(project))
    assert [note for note in notes if "tune" in note] == [
        "There is no build/tune/softmax/sm_90a-132/result.json: tuning was interrupted, or goes on; "
        "kernelwright tune ends it."
    ]


# What is on the page.


def test_choices_by_size_and_what_was_measured_with_what(project: Path) -> None:
    page = page_of(project)
    rows = rows_of(page, "Choices of gemm n=4096 dtype=float16")
    # m, chosen, time, default, regret of default and choice, spread, warm, clocks, measured, to the end.
    assert rows[0] == [
        *("1", "block_m=16 stages=3", "90.00", "122.4", "36.0%", "0.0%", "1.2%", "81.00", "1755 \u2013 1980", "5", "5")
    ]
    # At m=64 block_m=16 takes four turns, more than twice the default's time: it has one round.
    assert rows[1][:4] == ["64", "block_m=64 stages=3", "120.0", "122.4"] and rows[1][-2:] == ["5", "3"]
    assert rows[2][1:3] == ["block_m=256 stages=2", "3,917"]
    (row,) = rows_of(page, "Candidates of gemm n=4096 dtype=float16 that are out")
    assert row == ["block_m=256 stages=3", LARGE.splitlines()[0], "build/tune/gemm/failed/slug-5"]
    text = text_of(page_of(project))
    assert "NVIDIA H100 80GB HBM3, 132 multiprocessors. Measured with tvm 0.27.0, compiler nvcc 13.0.88" in text
    assert "The table is tuning/gemm.json." in text
    assert "6 candidates: 5 measured, 1 out." in text
    rules = "m up to 8: block_m=16 stages=3; up to 512: block_m=64 stages=3; above: block_m=256 stages=2."
    assert f"{rules} Every candidate has block_n=128." in text


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda size: replace(size, chosen=0), ["block_m=64 stages=2 (default)", "122.4", "122.4", "36.0%", "36.0%"]),
        (
            lambda size: replace(size, candidates=[one for one in size.candidates if one.number != size.chosen]),
            ["block_m=16 stages=3", "\u2013", "122.4", "33.3%", "\u2013"],
        ),
        (
            lambda size: replace(
                size,
                candidates=[replace(one, ratio=0.1, rounds=1) if one.number == 1 else one for one in size.candidates],
            ),
            ["block_m=16 stages=3", "90.00", "122.4", "36.0%", "0.0%"],
        ),
    ],
    ids=["not the fastest", "without a timing", "another one with fewer rounds"],
)
def test_the_regret_of_a_choice_is_that_beside_what_was_measured_to_the_end(tmp_path, change, shown):
    page = page_of(tmp_path, replace(GEMM, sizes=(change(GEMM.sizes[0]), *GEMM.sizes[1:])))
    assert rows_of(page, "Choices of k n=4096 dtype=float16")[0][1:6] == shown


# Plots.


def test_each_candidate_is_a_line_and_the_chosen_one_is_marked_where_it_is_chosen(project: Path):
    times, ratios = plots(page_of(project))
    for plot in (times, ratios):
        found = candidates(plot)
        assert sorted(found) == [0, 1, 2, 3, 4]
        assert {number: drawn.count('class="ring"') for number, drawn in found.items()} == {
            **{0: 0, 1: 1, 2: 0, 3: 1, 4: 1}
        }
        assert all(drawn.count("L") == 2 for drawn in found.values())
        marks = re.findall(r'<circle class="(ring|dot)" cx="([\d.]+)" cy="(-?[\d.]+)"', plot)
        for column in {x for _, x, _ in marks}:
            lowest = max((float(y), kind) for kind, x, y in marks if x == column)
            assert lowest[1] == "ring", "the chosen one is the lowest"
    level = set(re.findall(r"[\d.]+ (-?[\d.]+)(?=[L\"])", candidates(ratios)[0].partition("/>")[0]))
    assert len(level) == 1, "the default among the ratios"
    assert 'data-candidate="0"' in times and '<g class="one tdefault" data-candidate="0">' in times


def test_axes_and_tips_say_what_they_show(project: Path) -> None:
    times, ratios = plots(page_of(project))
    assert re.findall(r'text-anchor="middle">([^<]*)</text>', times) == ["1", "64", "4,096", "m"]
    assert {"300 \u00b5s", "1 ms"} <= set(re.findall(r'text-anchor="end">([^<]*)</text>', times))
    assert "1\u00d7" in re.findall(r'text-anchor="end">([^<]*)</text>', ratios)
    assert 'aria-label="Time of a call over m, gemm n=4096 dtype=float16"' in times
    times, _ = plots(page_of(project))
    tips = re.findall(r"<title>(.*?)</title>", candidates(times)[3], re.S)
    assert html.unescape(tips[0]).split("\n") == [
        *("block_m=16 stages=3 (chosen)", "m=1", "90 \u00b5s in 5 rounds, spread 1.2%"),
        *("0.735 of the default\u2019s time", "81 \u00b5s with warm caches"),
    ]


MANY = grid(a=list(range(20)), b=list(range(25)))


def many_cost(point: Mapping[str, Any], sizes: Mapping[str, int]) -> float:
    return 100.0 + abs(point["a"] - sizes["m"] % 7) + point["b"] / 10


def test_of_many_candidates_only_the_best_have_colours_and_plots_are_at_most_six_pairs(tmp_path: Path) -> None:
    page = page_of(tmp_path, tuned_config({}, MANY, [{"m": m} for m in (1, 3, 5)], many_cost))
    times, _ = plots(page)
    colours = re.findall(r'<g class="one (\w+)" data-candidate="(\d+)"', times)
    assert [colour for colour, _ in colours].count("tother") == 200
    assert [colour for colour, _ in colours[-7:]] == ["tdefault", "t5", "t4", "t3", "t2", "t1", "t0"]
    # Those that were chosen have colours, whatever else is fast.
    assert {25, 75, 125} <= {int(number) for _, number in colours[-7:]}
    assert "493 other candidates, 200 of them drawn" in text_of(page)
    assert len(page) < 600_000
    sizes = [{"m": m, "b": b} for b in range(1, 21) for m in (1, *range(50, 81))]
    page = page_of(tmp_path / "pairs", tuned_config({}, POINTS[:2], sizes, cost))
    assert len(plots(page)) == 12 and "6 of 20 plots; the table has all sizes." in page
    assert re.findall(r"<h4>b=(\d+)</h4>", page)[::5] == ["1", "20"]


def test_a_candidate_that_was_not_measured_is_a_gap_and_the_two_parameters_that_matter_are_shown(tmp_path):
    sizes = [{"m": m} for m in (1, 2, 4, 8)]
    config = tuned_config({}, grid(rows=[1, 2]), sizes, lambda point, at: 10.0 * point["rows"])
    gap = replace(config.sizes[1], candidates=config.sizes[1].candidates[:1])
    times, _ = plots(page_of(tmp_path, replace(config, sizes=(config.sizes[0], gap, *config.sizes[2:]))))
    line = re.search(r'<path class="line" d="(.*?)"', candidates(times)[1])
    assert line and re.fullmatch(r"M[\d. ]+h0M[\d. ]+L[\d. ]+", line[1])
    assert candidates(times)[1].count('class="dot"') == 3
    points = grid(a=[1, 2], b=[1, 2, 3], c=[1, 2])

    def price(point: Mapping[str, Any], sizes: Mapping[str, int]) -> float:
        return float(10 * point["b"] * (1 + point["c"]) + 0.1 * point["a"])

    page = page_of(tmp_path / "two", tuned_config({}, points, SIZES, price))
    assert "The best time over b and c. These two change the time most. Each cell has the best over a." in page
    assert cells_of(maps(page)[1])["b=3 c=2"][1] == "90.1 \u00b5s"


def test_symbols_that_vary_have_plots_of_their_own_unless_they_vary_together(tmp_path: Path) -> None:
    sizes = [{"b": b, "m": m} for m in (1, 64, 4096) for b in (1, 8)]
    page = page_of(tmp_path, tuned_config({}, POINTS, sizes, lambda point, at: cost(point, at) * at["b"]))
    assert re.findall(r"<h4>(b=\d)</h4>", page) == ["b=1", "b=8"]
    assert len(plots(page)) == 4
    assert [row[:2] for row in rows_of(page, "Choices of k")][:2] == [["1", "1"], ["8", "1"]]
    sizes = [{"m": 512 // b, "b": b} for b in (1, 8, 64)]
    page = page_of(tmp_path / "together", tuned_config({}, POINTS, sizes, cost))
    times, _ = plots(page)
    assert all(drawn.count("L") == 2 for drawn in candidates(times).values())
    line = candidates(times)[0].split('d="M')[1].partition('"')[0]
    across = [float(place.split()[0]) for place in line.split("L")]
    assert across == sorted(across)


@pytest.mark.parametrize("at", [{}, {"m": 64}])
def test_one_combination_of_sizes_has_bars_in_place_of_lines(tmp_path: Path, at: dict[str, int]):
    points = grid(block_m=[64, *range(1, 20), 256])
    page = page_of(tmp_path, tuned_config({}, points, [at], cost))
    assert not plots(page)
    (label,) = re.findall(r'aria-label="(Fastest candidates of .*?)"', page)
    rows = rows_of(page, label)
    assert 10 <= len(rows) <= 12 and sum("(chosen)" in row[0] for row in rows) == 1
    assert any(row[0].startswith("block_m=64 (default)") for row in rows)
    shares = [float(share) for share in re.findall(r'<rect class="t\w+" width="([\d.]+)%"', page)]
    assert shares == sorted(shares) and shares[-1] == 100


# Heat maps.


def cells_of(drawing: str) -> dict[str, tuple[str, str]]:
    """Values of the parameters -> the classes of a cell and its text."""
    found = re.findall(r'<td class="cell (.*?)" title="(.*?)\n[^"]*">(.*?)</td>', drawing)
    return {html.unescape(tip).partition(" (")[0]: (kinds, text) for kinds, tip, text in found}


def test_heat_map_has_the_best_time_of_each_pair_of_values_and_explains_only_what_occurs(project, tmp_path):
    together, *single = maps(page_of(project))
    assert len(single) == 3
    assert cells_of(single[0]) == {
        "block_m=16 stages=2": ("h0", "91.8 \u00b5s"),
        "block_m=16 stages=3": ("h0 chosen", "90 \u00b5s"),
        "block_m=64 stages=2": ("h3 default", "122 \u00b5s"),
        "block_m=64 stages=3": ("h3", "120 \u00b5s"),
        "block_m=256 stages=2": ("h5", "245 \u00b5s"),
        "block_m=256 stages=3": ("none", "\u2715"),
    }
    # Geometric means: 1 for the default, and for block_m=256 of 2, 2 and 0.5.
    found = cells_of(together)
    assert found["block_m=64 stages=2"] == ("h0 default", "1.00\u00d7")
    assert found["block_m=256 stages=2"][1] == "1.26\u00d7"
    assert "\u2715 no candidate works" in page_of(project) and "not measured</li>" not in page_of(project)
    page = page_of(tmp_path / "other", tuned_config({}, POINTS, SIZES, cost, late=[5]))
    assert "\u2013 not measured</li>" in page and "no candidate works" not in page


@pytest.mark.parametrize(
    ("points", "cells"),
    [
        ([{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}], ["a=1 b=1", "a=2 b=1", "a=1 b=2"]),
        ([{"a": 1}, {"a": 1, "b": 2}, {"b": 2}, {}], ["a=1 b=\u2013", "a=\u2013 b=\u2013", "a=1 b=2", "a=\u2013 b=2"]),
        (
            grid(a=[16, 2, 128], b=["y"], c=[True, False]),
            ["a=2 c=False", "a=16 c=False", "a=128 c=False", "a=2 c=True", "a=16 c=True", "a=128 c=True"],
        ),
        (grid(a=[1, 2], b=[5]), None),
    ],
    ids=["one is not in the space", "some lack a parameter", "values have an order", "only one parameter varies"],
)
def test_a_heat_map_has_the_cells_of_the_space(tmp_path: Path, points: Any, cells: list[str] | None):
    found = maps(page_of(tmp_path, tuned_config({}, points, SIZES, cost)))
    assert (list(cells_of(found[0])) if found else None) == cells


def test_maps_are_few_whatever_the_sizes(tmp_path: Path):
    sizes = [{"m": m} for m in range(1, 41)]
    page = page_of(tmp_path, tuned_config({}, POINTS, sizes, cost))
    titles = re.findall(r"<figcaption>(m=\d+)</figcaption>", page)
    assert len(titles) == 8 and titles[0] == "m=1" and titles[-1] == "m=40"
    large = tuned_config({}, grid(a=list(range(40)), b=list(range(40))), sizes[:9], lambda point, at: 5.0)
    assert page_of(tmp_path / "large", large).count('class="cell ') == 2 * 1600


# Texts of the user.


def test_texts_of_the_user_are_escaped(tmp_path: Path):
    points = [{EVIL: EVIL, "b": 1}, {EVIL: "x", "b": 1}, {EVIL: EVIL, "b": 2}, {EVIL: "x", "b": 2}]
    sizes = [{EVIL: size, "m<b>": size} for size in (1, 2)]
    config = tuned_config({EVIL: EVIL}, points, sizes, lambda point, at: 10.0 + point["b"], {3: EVIL})
    made = result("k<i>", config, device=replace(CPU, name=EVIL))
    add_result(tmp_path, replace(made, measured={EVIL: EVIL}, table=EVIL))
    page = page_of(tmp_path)
    assert "<script>alert" not in page and "<img" not in page and "<!--" not in page and "<i>" not in page
    assert page.count("</script>") == 2 and page.count(escaped(EVIL)) > 20


def test_overview_and_no_styles_in_attributes_and_nothing_from_outside(project: Path) -> None:
    page = page_of(project).replace("http://www.w3.org/2000/svg", "")
    assert ' style="' not in page and " on" not in re.sub(r">[^<]*<", "><", page.partition("<style>")[0])
    for reference in ("http:", "https:", "url(", "@import", " src=", " href=", "<link"):
        assert reference not in page
    add_result(project, result("add", tuned_config({}, grid(rows=[1, 2]), [{}], cost), device=CPU), "cpu")
    # The default takes twice as long as block_m=256 at m=4096.
    assert rows_of(page_of(project), "Tuning") == [
        ["add", "x86-64-v3", "\u2013", "1", "2", "0", "1", "0.0%"],
        ["gemm", "sm_90a", "n=4096 dtype=float16", "3", "6", "1", "0", "100.0%"],
    ]


# Numbers.


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.65, 1.6, [0.8, 1.0, 1.2, 1.4, 1.6]),
        (8, 900, [10, 20, 50, 100, 200, 500]),
        (5, 1500, [10, 30, 100, 300, 1000]),
        (1, 1e12, [1, 100, 1e4, 1e6, 1e8, 1e10, 1e12]),
    ],
)
def test_ticks_are_round_and_few(low: float, high: float, expected: list[float]):
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize("low", [1e-30, 0.37, 999])
@pytest.mark.parametrize("factor", [1.25, 4.1, 99, 1e40])
def test_every_axis_has_ticks(low: float, factor: float):
    found = ticks(low, low * factor)
    assert 2 <= len(found) <= 8 and found == sorted(set(found))
    assert all(low * 0.999 <= tick <= low * factor * 1.001 for tick in found)


def test_times_are_written_for_people():
    shown = {
        **{0.01234: ("0.01234", "12.3 ns"), 999.96: ("1,000.0", "1 ms"), 12.345: ("12.35", "12.3 \u00b5s")},
        **{1234.5: ("1,234", "1.23 ms"), 98765432.1: ("98,765,432", "98.8 s")},
    }
    assert {us: (microseconds(us), short_time(us)) for us in shown} == shown


# In a browser.


@pytest.fixture(scope="module")
def built_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two kernels, in a file."""
    folder = tmp_path_factory.mktemp("project")
    add_result(folder, result("gemm", GEMM))
    evil = tuned_config({"a": EVIL}, [{"b": EVIL, "c": 1}, {"b": 1, "c": 1}, {"b": 1, "c": 2}], SIZES, cost)
    add_result(folder, result("other", evil, device=replace(CPU, name=EVIL)))
    assert main(["report", str(folder)]) == 0
    return folder / "build" / "report.html"


def leave(browser: Browser) -> None:
    """Take the pointer away from everything."""
    browser.evaluate("window.scrollTo(0, 0)")
    browser.mouse("mouseMoved", 1, 1)


@needs_browser
def test_pointer_on_a_mark_explains_it_and_lights_its_candidate(shared_browser: Browser, built_page: Path):
    shared_browser.mouse("mouseMoved", *shared_browser.middle('.one[data-candidate="3"] .ring + .hit'))
    text = shared_browser.evaluate("document.getElementById('tip').innerText")
    assert text.split("\n")[:2] == ["block_m=16 stages=3 (chosen)", "m=1"]
    lit = "[...document.querySelectorAll('.lighting .lit')].map(one => one.dataset.candidate).join()"
    assert shared_browser.evaluate(lit) == "3,3", "in both plots of this config"
    leave(shared_browser)
    assert shared_browser.evaluate("document.getElementById('tip').hidden") is True
    assert shared_browser.evaluate(lit) == ""
    shared_browser.mouse("mouseMoved", *shared_browser.middle("section:last-of-type .map .cell.default"))
    assert EVIL in shared_browser.evaluate("document.querySelector('#tip strong').textContent")
    assert shared_browser.evaluate("document.images.length + document.scripts.length") == 2
    leave(shared_browser)
    assert shared_browser.complaints == [] and shared_browser.requests == [built_page.as_uri()]


@needs_browser
def test_pointer_or_focus_on_the_legend_lights_its_candidate(shared_browser: Browser):
    shared_browser.mouse("mouseMoved", *shared_browser.middle('.key [data-candidate="1"]'))
    lit = "document.querySelectorAll('.lighting .lit').length"
    assert shared_browser.evaluate(lit) == 2
    leave(shared_browser)
    shared_browser.evaluate("document.querySelector('.key [data-candidate]').focus()")
    assert shared_browser.evaluate(lit) == 2
    shared_browser.evaluate("document.activeElement.blur()")
    assert shared_browser.evaluate(lit) == 0


@needs_browser
def test_default_is_dashed_and_chosen_cells_have_a_border(shared_browser: Browser):
    def style(selector: str, name: str) -> str:
        return str(shared_browser.evaluate(f"getComputedStyle(document.querySelector('{selector}')).{name}"))

    assert style(".one.tdefault .line", "strokeDasharray") != "none"
    assert style(".one.t0 .line", "strokeDasharray") == "none"
    assert style(".one.t0 .line", "stroke") != style(".one.t1 .line", "stroke")
    assert style(".cell.chosen", "outlineStyle") == "solid"
    assert style(".cell.chosen", "outlineWidth") == "2px"
    assert style(".cell.h3", "backgroundColor").endswith("/ 0.32)") and "/" not in style(".cell.h0", "backgroundColor")


@needs_browser
def test_narrow_window_and_paper(shared_browser: Browser):
    shared_browser.resize(420, 800)
    assert shared_browser.evaluate("document.documentElement.scrollWidth") == 420
    shared_browser.resize(1280, 900)
    shared_browser.emulate("dark", "print")
    assert shared_browser.evaluate("getComputedStyle(document.querySelector('.t0 .line')).stroke") == "rgb(43, 95, 168)"
    assert len(shared_browser.command("Page.printToPDF", printBackground=True)["data"]) > 10_000
    shared_browser.emulate()
