"""Runs the benchmarks: ``python -m benchmarks [--only NAME] [--rounds N] [--small] [--list]``, in the repository."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import machine
from .harness import ROOT, Bench, Benchmark, BenchmarkError, Result, Skip
from .report import table, write_json
from .suite import BENCHMARKS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for, print the table and write the results; 1 if a benchmark could not be run."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(f"{benchmark.name:20}{benchmark.about}" for benchmark in BENCHMARKS))
        return 0
    chosen = [one for one in BENCHMARKS if not options.only or one.name in options.only]
    described = machine.describe()
    results, failed = {}, []
    with _work_folder(options.work) as work:
        bench = _bench(options, work)
        for benchmark in chosen:
            try:
                results[benchmark.name] = _run(benchmark, bench)
            except BenchmarkError as error:
                failed.append(f"FAILED: {benchmark.name}: {error}")
                sys.stderr.write(f"{failed[-1]}\n")
                continue
            folder = options.results or (work if bench.small else ROOT / "benchmarks" / "results")
            write_json(folder / f"{benchmark.name}.json", benchmark.name, results[benchmark.name], bench, described)
    print(table(results))
    print("\n".join(failed), end="\n" if failed else "")
    return 1 if failed else 0


def _run(benchmark: Benchmark, bench: Bench) -> Result:
    sys.stderr.write(f"{benchmark.name}: {benchmark.about}\n")
    start = time.perf_counter()
    try:
        result = benchmark.measure(bench)
    except Skip as reason:
        result = Result([], {}, [str(reason)])
    bench.say(f"took {time.perf_counter() - start:.0f} s")
    return result.without_targets() if bench.small else result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument("--only", metavar="NAME", action="append", choices=names, help="this one; may be repeated")
    parser.add_argument("--rounds", metavar="N", type=int, help="rounds, instead of each benchmark's own number")
    parser.add_argument("--small", action="store_true", help="only see whether each one runs: tiny projects, one round")
    parser.add_argument("--list", action="store_true", help="show what there is")
    parser.add_argument("--jobs", metavar="N", type=int, default=2, help="the N of -jN, for all; default 2")
    parser.add_argument("--work", metavar="FOLDER", type=Path, help="keep the projects there for the next run")
    parser.add_argument("--results", metavar="FOLDER", type=Path, help="where the JSON files go")
    parser.add_argument("--tilelang-python", metavar="PATH", type=Path, help="an interpreter that has TileLang")
    return parser


@contextlib.contextmanager
def _work_folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="kernelwright-benchmarks-") as folder:
        yield Path(folder)


def _bench(options: argparse.Namespace, work: Path) -> Bench:
    """What the benchmarks are told; the measured code is copied, so that nobody edits it while it is measured."""
    site_scons = work / "site_scons"
    shutil.rmtree(site_scons, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "site_scons", site_scons, ignore=ignored)
    python = options.tilelang_python and options.tilelang_python.absolute()
    return Bench(work, site_scons, options.small, options.rounds, options.jobs, python)


if __name__ == "__main__":
    sys.exit(main())
