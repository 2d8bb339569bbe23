"""The benchmarks run, and say what they are meant to say; their times are not looked at."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import harness, measured, report, suite  # noqa: E402
from benchmarks.commands import parse_script  # noqa: E402
from benchmarks.harness import Result, Row, Target  # noqa: E402
from benchmarks.ninja_build import Edge, Ninja, find_ninja  # noqa: E402


def run_suite(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def test_a_small_run_has_a_row_for_all_that_is_measured_and_judges_nothing(tmp_path: Path) -> None:
    more = ("--work", str(tmp_path / "work"), "--results", str(tmp_path / "results"))
    done = run_suite("--small", "--only", "null_build", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (tmp_path / "results").iterdir()
    document = json.loads(file.read_text())
    assert file.stem == document["benchmark"] == "null_build" and document["rows"] and " NO" not in done.stdout
    for row in document["rows"]:
        assert set(row) == {"what", "unit", "ours", "peers", "ratio", "target", "met", "note"}
        assert row["ours"] > 0 or any(words in row["what"] for words in ("over an empty", "exponent", "beyond that"))
        assert all(value > 0 for value in row["peers"].values()) and row["met"] is None
    assert {"cpu", "cores", "memory_gib", "system", "python", "versions"} <= set(document["machine"])
    assert platform.node() not in document["machine"].values(), "the machine is described, and not named"
    head, _, *rest = done.stdout.splitlines()
    column = head.index("what")
    rows = [line for line in rest if line.startswith("null_build")]
    assert len(rows) == len(document["rows"])
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in rows)
    first = document["rows"][0]
    assert first["ratio"] > 0, "plain SCons is measured in the same run"
    try:
        find_ninja()
    except harness.Skip as reason:
        assert f"skipped: null_build: {reason}" in done.stdout and "pip install" in str(reason)
    else:
        assert "ninja" in first["peers"]


def test_names_are_listed_and_others_are_refused() -> None:
    done = run_suite("--list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [one.name for one in suite.BENCHMARKS]
    done = run_suite("--only", "nope")
    assert done.returncode == 2 and "null_build" in done.stderr


def test_rounds_are_interleaved_and_warm_ups_dropped() -> None:
    order: list[str] = []

    def action(name: str) -> int:
        order.append(name)
        return len(order)

    values = harness.interleave(2, {"ours": lambda: action("ours"), "peer": lambda: action("peer")}, warm_up=1)
    assert order == ["ours", "peer"] * 3
    assert values == {"ours": [3, 5], "peer": [4, 6]}


def test_what_a_process_used_has_its_children_in_it(tmp_path: Path) -> None:
    spin = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}], check=True)"
    done = harness.run([sys.executable, "-c", parent], tmp_path)
    assert done.cpu_s >= 0.2
    assert done.wall_s >= 0.2


def test_a_process_that_fails_is_an_error_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(harness.BenchmarkError, match=r"status 3(.|\n)*no such thing"):
        harness.run([sys.executable, "-c", "print('no such thing'); raise SystemExit(3)"], tmp_path)


def test_targets_bound_our_value_or_the_ratio_to_the_first_peer() -> None:
    assert Row("a", "s", 2.0, {"peer": 1.0, "other": 9.0}, Target(1.5, "ratio")).met is False
    assert Row("a", "s", 2.0, {"peer": 1.0}, Target(2.0)).met is True
    assert Row("a", "", 0.9, {}, Target(0.95, at_least=True)).met is False
    assert Row("a", "s", 2.0, {}, Target(1.0, "ratio")).met is None


def test_a_missed_target_stands_out_in_the_table() -> None:
    shown = report.table({"demo": Result([Row("a", "s", 2.0, {"peer": 1.0}, Target(1.5, "ratio"), "why")], {}, ["x"])})
    assert " ".join(shown.splitlines()[2].split()) == "demo a [1] 2.00 s peer 1.00 s 2 ratio <= 1.5 NO"
    assert shown.splitlines()[-2:] == ["[1] why", "skipped: demo: x"]


def test_a_compile_script_gives_folder_command_and_output(tmp_path: Path) -> None:
    script = tmp_path / "saxpy" / "compile.sh"
    script.parent.mkdir()
    script.write_text(
        '#!/bin/sh\nset -e\ncd "$(dirname "$0")/.."\nCC=${CC:-$(python3 -m kernelwright tool cc)}\n'
        "TVM_FFI=${TVM_FFI:-$(python3 -m kernelwright tool tvm_ffi)}\n"
        'exec "$CC" -I"$TVM_FFI" \'-Wl,-rpath,$ORIGIN\' saxpy/wrapper.c -o saxpy/saxpy.so\n'
    )
    command = parse_script(script, lambda name: f"/tools/{name}")
    assert command.folder == tmp_path
    assert command.output == tmp_path / "saxpy" / "saxpy.so"
    assert command.arguments[:3] == ("/tools/cc", "-I/tools/tvm_ffi", "-Wl,-rpath,$ORIGIN")


def test_a_library_depends_on_all_that_it_embeds(tmp_path: Path) -> None:
    for name in ("saxpy/wrapper.c", "saxpy/default/cuda/sm_80.cubin", "saxpy/default/cuda/host.c", "saxpy/saxpy.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    script = tmp_path / "saxpy" / "compile.sh"
    script.write_text('cd "$(dirname "$0")/.."\nexec cc saxpy/wrapper.c -o saxpy/saxpy.so\n')
    inputs = parse_script(script, str).inputs
    assert [path.name for path in inputs] == ["host.c", "sm_80.cubin", "wrapper.c"]


def test_ninja_files_escape_what_is_special_to_ninja(tmp_path: Path) -> None:
    ninja = Ninja(Path("ninja"), tmp_path, "build.ninja")
    ninja.write([Edge(["a b"], ["c:d"], "echo $HOME > 'a b'")])
    assert (tmp_path / "build.ninja").read_text().splitlines()[-2:] == [
        "build a$ b: run c$:d",
        "  cmd = echo $$HOME > 'a b'",
    ]


def test_time_in_which_a_step_ran_counts_overlaps_once() -> None:
    events = [{"ts": 0, "dur": 4e6}, {"ts": 1e6, "dur": 1e6}, {"ts": 3e6, "dur": 2e6}, {"ts": 7e6, "dur": 1e6}]
    assert measured.union_s(events) == 6.0
