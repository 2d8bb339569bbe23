"""The report: what it reads, what it refuses, and how its page behaves in a browser."""

from __future__ import annotations

import hashlib
import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kernelwright.cli import main
from kernelwright.commands.report.data import collect
from kernelwright.commands.report.page import FOLDER, render
from kernelwright.commands.report.text import duration
from kernelwright.core.pipeline import STAGES
from kernelwright.core.quantity import in_words
from kernelwright.package.manifest import BuiltPackage, PackagedKernel, make_manifest, sealed_manifest
from kernelwright.runtime.loader import DIGEST_LINE
from kernelwright.state.trace import RunSummary, Trace
from support.browser import EVIL, Browser, escaped, needs_browser, rows_of

LABELS = [kind.label for kind in STAGES]
SUMMARY = RunSummary(jobs=2, cores=2, built=6, reused=3, cached=2, failed=1, seconds=4.0)
TOOLS = {
    "tvm": {"tvm": "0.27.0", "tvm_ffi": "0.1.15", "identity": "00"},
    "host_compiler": {"version": "gcc 12.2.0", "identity": "11"},
    "nvcc": {"version": "13.0.88", "identity": "22"},
}


def usage(registers: int, stores: int = 0, loads: int = 0, shared: int = 0) -> dict[str, int]:
    """What one device function uses."""
    return {
        **{"registers": registers, "stack_bytes": 8 if stores else 0, "spill_store_bytes": stores},
        **{"spill_load_bytes": loads, "shared_bytes": shared, "constant_bytes": 372},
    }


def variant(slug: str, resources: dict[str, Any]) -> dict[str, Any]:
    """A variant for one CPU arch, the cubins of the resources, and PTX."""
    gpu = [*resources, "compute_80"]
    unit = {"schedule": "as written", "source_digest": "00", "signature": "00"}
    return {
        "slug": slug,
        "config": {},
        "archs": ["x86-64-v3", *gpu],
        "arguments": [],
        "symbols": {},
        "units": [
            {"target": "llvm", "archs": ["x86-64-v3"], **unit, "resources": {}},
            {"target": "cuda", "archs": gpu, **unit, "resources": resources},
        ],
    }


KERNELS = {
    "gemm": {
        "doc": f"Matrix product ``c = a @ b``. {EVIL}\n\nThe second paragraph.",
        "library": "_lib/gemm.so",
        "outputs": ["c"],
        "variants": [
            variant("block_m-64", {"sm_80": {"gemm_kernel": usage(96)}, "sm_90a": {"gemm_kernel": usage(90)}}),
            variant(
                "block_m-128",
                {
                    "sm_80": {"gemm_kernel": usage(255, 48, 40, 8448), f"part_2{EVIL}": usage(9)},
                    "sm_90a": {"gemm_kernel": usage(128)},
                },
            ),
        ],
    },
    "saxpy": {
        "doc": "",
        "library": "_lib/saxpy.so",
        "outputs": [],
        "variants": [variant("default", {"sm_80": {"saxpy_kernel": usage(12)}})],
    },
}


def add_package(base: Path, name: str = "demo") -> Path:
    """Lay out a package as a build does; the path of its manifest."""
    for kernel, entry in KERNELS.items():
        for number, built in enumerate(entry["variants"]):
            folder = base / "kernels" / name / kernel / built["slug"]
            for place, arch_size in (("llvm/x86-64-v3/host.o", 5000), ("cuda/compute_80.ptx", 7000)):
                add_file(folder / place, arch_size + number)
            for index, arch in enumerate(built["units"][1]["resources"]):
                add_file(folder / "cuda" / f"{arch}.cubin", 10_000 + 1000 * index + number)
    packaged = [
        PackagedKernel(kernel, json.dumps(entry, indent=1), ("tvm_ffi",), {entry["library"]: ("00", 64_000 + number)})
        for number, (kernel, entry) in enumerate(KERNELS.items())
    ]
    package = BuiltPackage(name, "0.1.0", TOOLS, ("tvm_ffi",), tuple(packaged))
    manifest = base / name.replace(".", "/") / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(make_manifest(package, {}))
    return manifest


def add_file(path: Path, length: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(length))


def add_trace(base: Path) -> Path:
    """Write the trace of a run with two jobs."""
    trace = Trace(start=0.0)
    trace.span("LOWER", "gemm/block_m-64 cuda", 0.2, 0.9, cpu_seconds=0.5, kernel="gemm", variant="block_m-64")
    trace.span("LOWER", f"gemm/{EVIL} cuda", 0.3, 0.8, cpu_seconds=0.5)
    trace.span("CUBIN", "gemm/block_m-64 sm_80", 0.9, 2.9, cpu_seconds=1.75, peak_kib=200_000, arch="sm_80")
    trace.span("CUBIN", "gemm/block_m-128 sm_80", 0.9, 2.0, failed=True, cpu_seconds=1.0, peak_kib=150_000)
    trace.span("CUBIN", "gemm/block_m-64 sm_90a", 2.0, 2.01, cached=True)
    trace.span("PTX", "gemm/block_m-64 compute_80", 2.1, 2.11, cached=True)
    trace.span("WRAP", "gemm tvm_ffi", 2.9, 2.91)
    trace.span("LINK", "gemm", 3.0, 3.9, cpu_seconds=0.25)
    trace.span("TUNE", "gemm", 3.1, 3.6)
    trace.write(base / "trace.json", SUMMARY)
    return base / "trace.json"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that was built."""
    folder = tmp_path / "project"
    add_package(folder / "build")
    add_trace(folder / "build")
    return folder


def page_of(folder: Path) -> str:
    return render(collect(folder, ["build"])).decode()


# The command.


def test_command_writes_the_same_page_each_time_that_names_no_folder_of_the_machine(project, capsys):
    assert main(["report", str(project)]) == 0
    assert capsys.readouterr().out == f"{project}/build/report.html: 9 steps, 2 kernels\n"
    assert (project / "build" / "report.html").read_text().startswith("<!doctype html>")
    assert page_of(project) == page_of(project)
    assert str(project) not in page_of(project)


def test_folder_defaults_to_the_current_one_and_packages_may_be_in_several(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    add_package(project / "out", "extra")
    packages = ["--packages", "build", "--packages", "out"]
    assert main(["report", "--output", "pages/index.html", *packages]) == 0
    assert "9 steps, 4 kernels" in capsys.readouterr().out
    assert (project / "pages" / "index.html").is_file()
    assert not (project / "build" / "report.html").exists()


def fail(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, which must fail with one line on stderr."""
    assert main(["report", *arguments]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    return shown.err


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        ("", ["--output", "{top}"], "kernelwright: {top}: cannot be written"),
        ("", ["--output", "{build}/trace.json/page.html"], "kernelwright: {build}/trace.json/page.html: cannot be"),
        (
            "rm -r {build}",
            [],
            "kernelwright: {build}: has neither a trace.json nor a kernel package; run scons in {top}",
        ),
        ("rm -r {top}", [], "there is no such folder; name the folder"),
        ("printf '{{' > {build}/trace.json", [], "{build}/trace.json: is damaged"),
        ("sed -i 's/registers\": 96/registers\": 12/' {manifest}", [], "{manifest}: was altered"),
    ],
)
def test_what_cannot_be_read_or_written_is_named(project, capsys, change, more, said):
    build = project / "build"
    names = {"top": project, "build": build, "manifest": build / "demo/manifest.json"}
    subprocess.run(change.format(**names), shell=True, check=True)
    assert said.format(**names) in fail(capsys, str(project), *(word.format(**names) for word in more))


def test_folders_and_steps_whose_names_are_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "caf\udce9"
    add_trace(folder / "build")
    assert main(["report", str(folder)]) == 0
    assert "caf\\udce9" in capsys.readouterr().out
    assert "caf&#56553;" in (folder / "build" / "report.html").read_text()
    trace = Trace(start=0.0)
    trace.span("DISCOVER", "kernels/\udcff.py", 0.0, 1.0)
    trace.write(tmp_path / "build" / "trace.json", SUMMARY)
    assert "kernels/&#56575;.py" in page_of(tmp_path)


def rewrite(manifest: Path, old: str, new: str) -> None:
    """Change a manifest as a wrong builder would: its digest fits."""
    covered = manifest.read_text().rpartition("," + DIGEST_LINE)[0]
    assert old in covered
    covered = covered.replace(old, new)
    manifest.write_text(f'{covered},{DIGEST_LINE}"{hashlib.sha256(covered.encode()).hexdigest()}"\n}}\n')


MISFITS = [
    ('"registers": 96', '"registers": "96"', "gemm_kernel.registers is '96', expected an integer"),
    ('"registers": 96', '"registers": -1', "registers is -1"),
    ('"registers": 96', '"registers": 1e999', "registers is inf"),
    ('"registers": 96', f'"registers": {"9" * 60}', "registers is 9999"),
    ('"slug": "block_m-64"', '"slug": "../../.."', "slug is '../../..', expected a name"),
    ('"target": "cuda"', '"target": "../cuda"', "target is '../cuda', expected a name"),
    ('"archs": [', '"archs": [\n"../x",', "is not the name of a kernel or an arch"),
    ('"doc": ""', '"doc": null', "kernels.saxpy.doc is None, expected a string"),
    ('"_lib/saxpy.so": {', '"_lib/other.so": {', "kernels.saxpy.library is '_lib/saxpy.so', which is not among"),
    ('"saxpy": {', '"../saxpy": {', "'../saxpy' is not the name of a kernel"),
    ('"package": "demo"', '"package": "other"', "it is of the package 'other', expected 'demo'"),
    ('"version": "13.0.88"', '"version": 13', "tools.nvcc.version is 13"),
]


@pytest.mark.parametrize(("old", "new", "expected"), MISFITS)
def test_manifest_that_does_not_fit_is_named(project, capsys, old, new, expected):
    manifest = project / "build" / "demo" / "manifest.json"
    rewrite(manifest, old, new)
    error = fail(capsys, str(project))
    assert f"{manifest}: " in error and expected in error and "run scons" in error


def test_times_and_sizes_are_written_for_people():
    shown = {
        **{9.99: "9.99 s", 10.0: "10.0 s", 119.94: "119.9 s", 119.96: "2 min 0 s", 185.0: "3 min 5 s"},
        3725.0: "1 h 2 min",
    }
    assert {seconds: duration(seconds) for seconds in shown} == shown
    sizes = {1023: "1023 B", 1024: "1.0 KiB", 3 * 2**20: "3.0 MiB", 5 * 2**29: "2.5 GiB"}
    assert {amount: in_words(amount) for amount in sizes} == sizes


# What is on the page.


def test_device_functions_with_their_resources(project: Path):
    (project / "build/kernels/demo/gemm/block_m-64/cuda/sm_90a.cubin").unlink()
    page = page_of(project)
    rows = rows_of(page, "Device code")
    assert rows[0] == ["gemm", "block_m-64", "sm_80", "gemm_kernel", "96", "0", "0", "0", "0", "10,000"]
    assert rows[1] == ["gemm", "block_m-64", "sm_90a", "gemm_kernel", "90", "0", "0", "0", "0", "\u2013"]
    assert rows[2][:4] == ["gemm", "block_m-64", "compute_80", "PTX"] and rows[2][-1] == "7,000"
    assert set(rows[2][4:-1]) == {"\u2013"}
    assert rows[3] == ["gemm", "block_m-128", "sm_80", "gemm_kernel", "255", "48", "40", "8,448", "8", "10,001"]
    assert [row[0] for row in rows].count("saxpy") == 2
    spilled = re.findall(r'<td class="number bad" data-value="(\d+)">', page.split('aria-label="Device code"')[1])
    assert spilled == ["48", "40"] and "1 of 6 device functions spills registers to memory" in page
    assert rows_of(page, "CPU code")[1] == ["gemm", "block_m-128", "x86-64-v3", "5,001"]


def test_kernels_with_their_descriptions_in_tables_that_sort_by_exact_values(project: Path) -> None:
    page = page_of(project)
    rows = rows_of(page, "Kernels")
    assert rows[0] == [
        *("gemm", f"Matrix product c = a @ b. {EVIL}", "2", "x86-64-v3 sm_80 sm_90a compute_80", "62.5 KiB")
    ]
    assert "<code>c = a @ b</code>" in page
    assert "Kernelwright 0.1.0, TVM 0.27.0, tvm-ffi 0.1.15, host compiler gcc 12.2.0, nvcc 13.0.88." in page
    page = page_of(project)
    device = page.split('aria-label="Device code"', 1)[1]
    assert '<td class="number" data-value="10000">10,000</td>' in device
    assert device.count('<td class="number zero" data-value="0">0</td>') == 6 * 4 - 4
    assert '<td class="missing" title="compiled by the driver">PTX</td>' in device
    assert '<td class="name arch">sm_90a</td>' in device
    stages = page.split('aria-label="Stages and build cache"', 1)[1]
    assert '<td class="number bad" data-value="1">1</td>' in stages
    assert '<td class="number" data-value="0.3333333333333333">33%</td>' in stages
    assert "2 steps of 9 came out of the build cache." in page


def test_numbers_of_the_run_its_slowest_steps_and_its_stages(project: Path) -> None:
    cards = re.findall(r'<div( class="bad")? title="(.+?)"><dt>(.*?)</dt><dd>(.*?)</dd>', page_of(project))
    # 4 s of processor time in 4 s on 2 cores, two steps not measured; 5.73 s of steps in 2 slots of 4 s.
    assert {title: value for _, _, title, value in cards} == {
        **{"Built": "6", "From cache": "2", "Reused": "3", "Failed": "1"},
        **{"Time": "4.00 s", "Cores": "2", "CPU use": "≥ 50%", "Slots busy, of 2": "72%"},
    }
    assert [title for marked, _, title, _ in cards if marked] == ["Failed"]
    assert "4.00 s of processor time, measured for 5 of 7 steps" in [html.unescape(hint) for _, hint, _, _ in cards]
    bars = re.findall(r'<rect class="c(\d+)" width="([\d.]+%)"', page_of(project))
    cubin, lower, link = (str(LABELS.index(label)) for label in ("CUBIN", "LOWER", "LINK"))
    assert bars[:4] == [(cubin, "100.0%"), (cubin, "55.0%"), (link, "45.0%"), (lower, "35.0%")]
    rows = {row[0]: row[1:] for row in rows_of(page_of(project), "Stages and build cache")}
    assert list(rows) == ["LOWER", "PTX", "CUBIN", "WRAP", "LINK", "TUNE"]
    assert rows["CUBIN"] == ["3", "1", "2", "33%", "1", "3.10", "2.00", "2.75"]
    assert rows["PTX"] == ["1", "1", "0", "100%", "0", "0.00", "0.00", "\u2013"]
    assert rows["LOWER"] == ["2", "0", "2", "0%", "0", "1.20", "0.70", "1.00"]


@pytest.mark.parametrize(
    ("steps", "share"),
    [
        *(([(1.0, False)], "50%"), ([(1.0, False), (None, True)], "50%"), ([(1.0, False), (None, False)], "≥ 50%")),
        *(([(None, False)], "\u2013"), ([], "\u2013")),
    ],
)
def test_use_of_the_processor_is_a_lower_bound_where_a_step_was_not_measured(tmp_path, steps, share):
    trace = Trace(start=0.0)
    for seconds, cached in steps:
        trace.span("CC", "x", 0.0, 1.0, cpu_seconds=seconds, cached=cached)
    trace.write(tmp_path / "build" / "trace.json", RunSummary(1, 2, len(steps), 0, 0, 0, 1.0))
    page = page_of(tmp_path)
    assert f"<dt>CPU use</dt><dd>{share}</dd>" in page
    assert '<div class="bad"' not in page, "nothing failed"


def test_trace_alone_has_a_note_in_place_of_the_tables(tmp_path: Path):
    add_trace(tmp_path / "build")
    page = page_of(tmp_path)
    assert 'id="chart"' in page and 'aria-label="Device code"' not in page
    assert "There is no kernel package in" in page
    rows = rows_of(page, "Slowest steps")
    assert [row[2] for row in rows] == ["2.00", "1.10", "0.90", "0.70", "0.50", "0.50", "0.01"]
    assert rows[0] == ["CUBIN", "gemm/block_m-64 sm_80", "2.00", "", "1.75", "195.3"]
    assert rows[2] == ["LINK", "gemm", "0.90", "", "0.25", "\u2013"]


def test_a_package_that_is_not_assembled_and_a_run_that_is_missing_are_noted(tmp_path: Path):
    manifest = add_package(tmp_path / "build", "acme.parts")
    add_package(tmp_path / "build")
    page = page_of(tmp_path)
    assert "<title>acme.parts, demo: build report</title>" in page and page.count('aria-label="Device code"') == 2
    assert 'id="chart"' not in page and "trace.json; the next run of scons that builds something writes it" in page
    assert '<script type="application/json" id="data">null</script>' in page
    manifest.unlink()
    manifest.symlink_to("nowhere")
    assert "build/acme/parts/manifest.json; run scons to assemble it" in page_of(tmp_path)


def test_what_a_partial_package_lacks_is_noted(project: Path):
    assert "partially" not in page_of(project)
    path = project / "build/demo/manifest.json"
    gap = {"kernel": "gemm", "variant": "block_m-256", "archs": ["sm_80"], "stage": "nvcc", "error": f"large {EVIL}"}
    content = path.read_text().rpartition("," + DIGEST_LINE)[0]
    content = content.replace('"kernels":', f'"missing": [{json.dumps(gap)}],\n "kernels":', 1)
    path.write_text(sealed_manifest(content))
    text = f"demo was built partially, without gemm/block_m-256 for sm_80 [nvcc]: large {EVIL}"
    assert escaped(text) in page_of(project)


def test_package_without_code_of_a_kind_has_no_table_of_it(tmp_path: Path):
    entry = {**KERNELS["saxpy"], "variants": []}
    built = BuiltPackage(
        "demo",
        "1",
        {},
        ("tvm_ffi",),
        (PackagedKernel("saxpy", json.dumps(entry), ("tvm_ffi",), {"_lib/saxpy.so": ("00", 5)}),),
    )
    (tmp_path / "build/demo").mkdir(parents=True)
    (tmp_path / "build/kernels/demo").mkdir(parents=True)
    (tmp_path / "build/demo/manifest.json").write_text(make_manifest(built, {}))
    page = page_of(tmp_path)
    assert 'aria-label="Kernels"' in page and "1 kernel, 0 variants." in page
    assert 'aria-label="Device code"' not in page and 'aria-label="CPU code"' not in page


def test_texts_of_the_user_are_escaped_and_templates_trust_nothing_else(project: Path) -> None:
    rewrite(project / "build/demo/manifest.json", '"saxpy": {', '"<b>": {')
    page = page_of(project)
    assert "<script>alert" not in page and "<img" not in page and "<!--" not in page and "<b>" not in page
    assert [row[0] for row in rows_of(page, "Kernels")] == ["gemm", "<b>"]
    # The data and the script, each in an element that only they close.
    assert page.count("</script>") == 2
    assert escaped(f"part_2{EVIL}") in page
    templates = "".join(path.read_text() for path in FOLDER.glob("*.html"))
    assert re.findall(r"(\w+)\s*\|\s*safe", templates) == ["style", "script"] and "autoescape" not in templates


def test_page_refers_to_nothing_outside_and_its_policy_allows_only_its_own_style_and_script(project: Path):
    page = page_of(project)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy and policy[1].startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy[1] and "http" not in policy[1]
    page = re.sub(r'id="data">.*?</script>', "", page)
    # What the user wrote is text; and the name of SVG looks like an address, but is none.
    page = html.unescape(page).replace(EVIL, "").replace("http://www.w3.org/2000/svg", "")
    for reference in ("http:", "https:", "//cdn", "url(", "@import", " src=", " href=", "<link", "<iframe", "fetch("):
        assert reference not in page


# In a browser.


@pytest.fixture(scope="module")
def built_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the small project, in a file."""
    folder = tmp_path_factory.mktemp("project")
    add_package(folder / "build")
    add_trace(folder / "build")
    assert main(["report", str(folder)]) == 0
    return folder / "build" / "report.html"


@needs_browser
def test_page_neither_complains_nor_asks_for_anything(shared_browser: Browser, built_page: Path):
    shared_browser.emulate()
    shared_browser.mouse("mouseMoved", *shared_browser.middle("#chart .bar"))
    index = shared_browser.evaluate("[...document.querySelectorAll('#chart .bar.c2')].at(-1).dataset.index")
    shared_browser.mouse("mouseMoved", *shared_browser.middle(f"#chart [data-index='{index}']"))
    assert EVIL in shared_browser.evaluate("document.querySelector('#tip strong').textContent")
    assert shared_browser.evaluate("document.images.length + document.scripts.length") == 2
    shared_browser.mouse("mouseMoved", 1, 1)
    assert shared_browser.complaints == []
    assert shared_browser.requests == [built_page.as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@needs_browser
def test_timeline_is_drawn_in_both_colour_schemes(shared_browser: Browser, scheme: str):
    shared_browser.emulate(scheme)
    fills = "[...document.querySelectorAll('#chart .bar')].map(bar => getComputedStyle(bar).fill)"
    colours = set(shared_browser.evaluate(fills))
    ground = shared_browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert len(colours) >= 4 and ground not in colours
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) > 600) == (scheme == "light")
    shared_browser.emulate()


@needs_browser
def test_pointer_on_a_bar_explains_it(shared_browser: Browser):
    shared_browser.mouse("mouseMoved", *shared_browser.middle("#chart .failed"))
    text = shared_browser.evaluate("document.getElementById('tip').innerText")
    assert text.split("\n") == [
        *("gemm/block_m-128 sm_80", "CUBIN, failed", "1.10 s, from 0.90 s to 2.00 s", "1.00 s of processor time"),
        "146.5 MiB at its peak",
    ]
    shared_browser.mouse("mouseMoved", 1, 1)
    assert shared_browser.evaluate("document.getElementById('tip').hidden") is True


def column(browser: Browser, number: int) -> list[str]:
    """The texts of the visible cells of a column of the device table."""
    rows = "[...document.querySelectorAll('[aria-label=\"Device code\"] tbody tr')].filter(r => !r.hidden)"
    return list(browser.evaluate(f"{rows}.map(r => r.cells[{number}].textContent)"))


@needs_browser
def test_headings_sort_by_number_and_leave_the_unknown_last(shared_browser: Browser):
    before = column(shared_browser, 4)
    heading = '[aria-label="Device code"] th:nth-child(5)'
    shared_browser.click(f"{heading} button")
    assert column(shared_browser, 4) == ["255", "128", "96", "90", "12", "9", "\u2013", "\u2013", "\u2013"][:9]
    assert shared_browser.evaluate(f"document.querySelector('{heading}').ariaSort") == "descending"
    shared_browser.click(f"{heading} button")
    assert column(shared_browser, 4)[:3] == ["9", "12", "90"]
    shared_browser.click(f"{heading} button")
    assert column(shared_browser, 4) == before


@needs_browser
def test_filter_shows_the_rows_with_all_words(shared_browser: Browser):
    field = "document.querySelector('[aria-label=\"Device code\"]').parentElement.querySelector('.filter')"
    for words, expected in (("GEMM sm_90a", 2), ("nothing", 0), ("", 9)):
        shared_browser.evaluate(f"(f => {{ f.value = '{words}'; f.dispatchEvent(new Event('input')); }})({field})")
        assert len(column(shared_browser, 0)) == expected
    shared_browser.click(".spills")
    assert column(shared_browser, 4) == ["255"]
    shared_browser.click(".spills")


@needs_browser
def test_dragging_enlarges_a_double_click_restores_and_a_click_on_a_stage_hides_it(shared_browser: Browser):
    everything = shared_browser.evaluate("document.querySelectorAll('#chart .bar').length")
    x, y = shared_browser.middle(f"#chart .bar.c{LABELS.index('LINK')}")
    shared_browser.mouse("mousePressed", x - 20, y, "left", 1)
    shared_browser.mouse("mouseMoved", x, y, "left")
    shared_browser.mouse("mouseMoved", x + 20, y, "left")
    shared_browser.mouse("mouseReleased", x + 20, y, "left", 1)
    assert shared_browser.evaluate("document.querySelectorAll('#chart .bar').length") < everything
    assert shared_browser.evaluate("document.querySelectorAll('#chart .selection').length") == 0
    shared_browser.evaluate("document.getElementById('chart').dispatchEvent(new MouseEvent('dblclick'))")
    assert shared_browser.evaluate("document.querySelectorAll('#chart .bar').length") == everything
    for hidden in (0, 3):
        shared_browser.click(".legend button:nth-child(3)")
        assert shared_browser.evaluate("document.querySelectorAll('#chart .bar.c4').length") == hidden


@needs_browser
def test_timeline_of_thousands_of_steps_stays_small(tmp_path: Path):
    trace = Trace(start=0.0)
    for number in range(8_000):
        start = number // 4 * 0.01
        trace.span("CUBIN" if number % 3 else "LOWER", f"kernel_{number}/default sm_80", start, start + 0.01)
    trace.write(tmp_path / "build" / "trace.json", RunSummary(4, 4, 8_000, 0, 0, 0, 20.0))
    assert main(["report", str(tmp_path)]) == 0
    with Browser(tmp_path / "build" / "report.html", tmp_path / "profile") as browser:
        assert browser.complaints == []
        bars = browser.evaluate("document.querySelectorAll('#chart .bar').length")
        assert 4 * 100 < bars < 4 * 1280
        browser.mouse("mouseMoved", *browser.middle("#chart .bar"))
        assert "short steps" in browser.evaluate("document.getElementById('tip').innerText")
        for _ in range(8):
            browser.click("[data-zoom=in]")
        browser.mouse("mouseMoved", *browser.middle("#chart .bar"))
        assert "/default sm_80" in browser.evaluate("document.querySelector('#tip strong').textContent")


@needs_browser
def test_timeline_is_redrawn_for_paper_and_keeps_its_size_on_screen(shared_browser: Browser):
    before = shared_browser.evaluate("document.getElementById('chart').getAttribute('viewBox')")
    assert len(shared_browser.command("Page.printToPDF", printBackground=True)["data"]) > 10_000
    assert shared_browser.evaluate("document.getElementById('chart').getAttribute('viewBox')") == before
    shared_browser.emulate("dark", "print")
    assert shared_browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    shared_browser.emulate()
    shared_browser.resize(420, 800)
    assert shared_browser.evaluate("document.documentElement.scrollWidth") == 420, "nothing is beyond a narrow window"
    shared_browser.resize(1280, 900)
