"""Four kernels written in TileLang, for sm_90a: our front end and build against TileLang's own compile and cache.

They are those of ``examples/tilelang``: a matrix product in two dtypes, and an attention with and without a mask. Both
take the same sources, with the same TileLang and nvcc, and no GPU. From nothing is with empty caches. An edit changes a
number in the source of the product. Loading is a second process: for TileLang the same program again, which reads its
cache; for us one that imports the package and gets hold of all variants. Times are of whole processes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

from .against_tilelang import TileLang
from .harness import ROOT, Bench, BenchmarkError, Finished, Result, Row, interleave, kib, median, phases, run
from .projects import Project

EXAMPLE = ROOT / "examples" / "tilelang"
KERNELS = {
    "gemm": [{"N": 2048, "K": 2048, "dtype": dtype} for dtype in ("float16", "bfloat16")],
    "attention": [{"heads": 16, "dim": 64, "causal": causal} for causal in (False, True)],
}
"""The values of the example's definitions."""

EDITED = "T.clear(sums)"
"""What an edit replaces in the source of the product: the sums begin with another number."""

TIMES: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "four kernels, from nothing": (("cold",), "TileLang cold", "we: with the package"),
    "an edit of one of two sources, two kernels of four": (
        ("edit",),
        "TileLang edit",
        "TileLang: others from its cache",
    ),
    "nothing to do, and loading": (("null", "load"), "TileLang load", "we: a build, and a process that loads all"),
    "loading": (("load",), "TileLang load", "as on a machine that only has the package"),
}
"""Row -> our actions, which count together, TileLang's, and a note."""

FOLDER_OF = "from importlib.util import find_spec; print(find_spec({name!r}).submodule_search_locations[0])"


def measure(bench: Bench) -> Result:
    """Compile, edit and load with both, in turn."""
    folder = bench.work / "tilelang-kernels"
    tilelang = TileLang(bench, "tilelang_kernels", str(folder / "kernels/tile"), json.dumps(KERNELS), str(bench.jobs))
    project = _project(bench, folder, tilelang.python)
    actions: dict[str, Callable[[], Finished]] = {
        "cold": lambda: project.build_anew(bench.jobs),
        "null": lambda: _null(project),
        "load": lambda: project.use(*KERNELS),
        "TileLang cold": tilelang.cold,
        "TileLang load": tilelang.run,
    }
    runs, sizes = {}, {}
    bench.say(f"four kernels in TileLang: {', '.join(actions)}")
    warm_up = 0 if bench.small else 1
    runs = interleave(bench.rounds_or(3), actions, warm_up)
    sizes = _sizes(project, tilelang)
    bench.say("edits of one of them")
    runs |= interleave(bench.rounds_or(3), _edits(bench, project, tilelang), warm_up)
    return _result(runs, sizes)


def _project(bench: Bench, folder: Path, python: Path) -> Project:
    """A copy of the example, which finds TileLang in that environment."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("build", "tilelang", "__pycache__", ".sconsign*"))
    settings = (folder / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(settings.replace("tilelang/bin/python", str(python)))
    return Project(folder, "tile_kernels", bench.site_scons)


def _null(project: Project) -> Finished:
    done = project.scons()
    if "0 built" not in done.output:
        raise BenchmarkError(f"a build with nothing to do has built something\n{done.output}")
    return done


def _edits(bench: Bench, project: Project, tilelang: TileLang) -> dict[str, Callable[[], Finished]]:
    """What builds after an edit; each edit has another number, so that nothing was ever built before."""
    numbers, source = count(1), project.folder / "kernels/tile/gemm.py"
    text = source.read_text()
    if EDITED not in text:
        raise BenchmarkError(f"{source.name} has no {EDITED}")

    def edited(act: Callable[[], Finished]) -> Callable[[], Finished]:
        def action() -> Finished:
            source.write_text(text.replace(EDITED, f"T.fill(sums, {next(numbers)})"))
            return act()

        return action

    return {"edit": edited(lambda: project.build(bench.jobs)), "TileLang edit": edited(tilelang.run)}


def _sizes(project: Project, tilelang: TileLang) -> list[Row]:
    """What is left and what is needed, after a build from nothing."""
    ours, cache = kib([project.folder / "build" / project.package]), kib([tilelang.cache])
    python = [str(tilelang.python), "-c", FOLDER_OF.format(name="tilelang")]
    theirs = kib([Path(run(python, project.folder).output.splitlines()[-1])])
    ffi = kib([Path(project.python(FOLDER_OF.format(name="tvm_ffi")).output.splitlines()[-1])])
    needed = "the installed packages apache-tvm-ffi and tilelang; TileLang also needs PyTorch"
    return [
        Row(
            "left on disk", "KiB", kib(project.left), {"TileLang": cache}, None, "we: the build folder with its records"
        ),
        Row("what a user needs", "KiB", ours, {"TileLang": cache}, None, "we: the package; TileLang: its cache"),
        Row("what has to be installed for it", "KiB", ffi, {"TileLang": theirs}, None, needed),
    ]


def _result(runs: dict[str, list[Finished]], sizes: list[Row]) -> Result:
    rows = [
        Row(
            f"{what}: {unit} time",
            "s",
            _seconds(runs, ours, unit),
            {"TileLang": _seconds(runs, (theirs,), unit)},
            None,
            note,
        )
        for what, (ours, theirs, note) in TIMES.items()
        for unit in ("wall", "CPU")
    ]
    samples = {
        unit: {name: [round(_second(done, unit), 4) for done in listed] for name, listed in runs.items()}
        for unit in ("wall", "CPU")
    }
    theirs = {name: phases(listed) for name, listed in runs.items() if name.startswith("TileLang")}
    return Result([*rows, *sizes], {"wall_s": samples["wall"], "cpu_s": samples["CPU"], "tilelang": theirs})


def _seconds(runs: Mapping[str, list[Finished]], names: tuple[str, ...], unit: str) -> float:
    """The median of what some actions took together."""
    rounds = zip(*(runs[name] for name in names), strict=True)
    return median(sum(_second(done, unit) for done in one) for one in rounds)


def _second(done: Finished, unit: str) -> float:
    return done.wall_s if unit == "wall" else done.cpu_s
