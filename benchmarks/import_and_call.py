"""What importing the package and calling a kernel cost, against an empty interpreter and against tvm-ffi alone."""

from __future__ import annotations

import json
import sys

from .harness import CHILDREN, Bench, BenchmarkError, Finished, Result, Row, Target, interleave, median, run
from .projects import Project, built_library

LARGEST_IMPORT_MS = 10.0

IMPORT = "import kw_kernels"
MODULES = """
import sys
before = set(sys.modules)
import kw_kernels
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def measure(bench: Bench) -> Result:
    """Start interpreters and call saxpy, in turn."""
    project = built_library(bench)
    others = _foreign_modules(project)
    if others:
        raise BenchmarkError(f"import kw_kernels has loaded more than the standard library: {', '.join(others)}")
    bench.say("imports and calls")
    starts = interleave(
        bench.rounds_or(41),
        {"empty": lambda: project.python("pass"), "import": lambda: project.python(IMPORT)},
        warm_up=0 if bench.small else 3,
    )
    first = interleave(
        bench.rounds_or(11),
        {"ours": lambda: _call(bench, project, "ours"), "raw": lambda: _call(bench, project, "raw")},
        warm_up=0 if bench.small else 1,
    )
    calls = 200 if bench.small else 20000
    steady = interleave(bench.rounds_or(5), {"call": lambda: _call(bench, project, "steady", calls)})["call"]
    return _result(starts, first, steady)


def _foreign_modules(project: Project) -> list[str]:
    """Modules that importing the package has loaded, besides its own and those of the standard library."""
    loaded = set(project.python(MODULES).output.split())
    return sorted(loaded - {project.package} - set(sys.stdlib_module_names))


def _call(bench: Bench, project: Project, what: str, calls: int = 1) -> dict[str, float]:
    build = project.folder / "build"
    library = build / project.package / "_lib" / "saxpy.so"
    command = [sys.executable, str(CHILDREN / "call_cost.py"), what, str(library), str(calls)]
    command += ["without-torch"] if bench.small else []
    return dict(json.loads(run(command, project.folder, {"PYTHONPATH": str(build)}).output))


def _result(
    starts: dict[str, list[Finished]], first: dict[str, list[dict[str, float]]], steady: list[dict[str, float]]
) -> Result:
    over = [1e3 * (a.wall_s - b.wall_s) for a, b in zip(starts["import"], starts["empty"], strict=True)]
    load = {name: 1e3 * median(run["load_s"] for run in runs) for name, runs in first.items()}
    call = {name: 1e3 * median(run["call_s"] for run in runs) for name, runs in first.items()}
    ours, function, raw = (median(run[f"{name}_ns"] for run in steady) for name in ("ours", "function", "raw"))
    rows = [
        Row("import kw_kernels, over an empty interpreter", "ms", median(over), {}, Target(LARGEST_IMPORT_MS)),
        Row("import and load saxpy", "ms", load["ours"], {"tvm-ffi": load["raw"]}, note="tvm-ffi's import is in both"),
        Row("first call of saxpy", "ms", call["ours"], {"tvm-ffi": call["raw"]}),
        Row("call of saxpy, 8 elements, NumPy", "ns", ours, {"tvm-ffi": raw}),
        Row("call of saxpy.function, 8 elements, NumPy", "ns", function, {"tvm-ffi": raw}),
    ]
    return Result(rows, {"import_over_empty_ms": over, "first": first, "steady": steady})
