"""Four kernels written in TileLang, for sm_90a: our front end and build against TileLang's own compile and cache.

They are those of ``examples/tilelang``: a matrix product in two dtypes, and an attention with and without a mask. Both
take the same sources, with the same TileLang and nvcc, and no GPU. From nothing is with empty caches. An edit changes a
number in the source of the product. Loading is a second process: for TileLang the same program again, which reads its
cache; for us one that imports the package and gets hold of all variants. Times are of whole processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from .against_tilelang import TileLang
from .harness import (
    Bench,
    Finished,
    Result,
    Row,
    Times,
    edits,
    interleave,
    kib,
    phases,
    run,
    samples,
    timed_rows,
)
from .projects import Project, example, example_folder

KERNELS = {
    "gemm": [{"N": 2048, "K": 2048, "dtype": dtype} for dtype in ("float16", "bfloat16")],
    "attention": [{"heads": 16, "dim": 64, "causal": causal} for causal in (False, True)],
}
"""The values of the example's definitions."""

EDIT = ("T.clear(sums)", "T.fill(sums, {})")
"""What an edit replaces in the source of the product: the sums begin with another number."""

TIMES: Times = {
    "four kernels, from nothing": (("cold",), "TileLang cold", "we: with the package"),
    "an edit of one of two sources, two kernels of four": (
        ("edit",),
        "TileLang edit",
        "TileLang: others from its cache",
    ),
    "nothing to do, and loading": (("null", "load"), "TileLang load", "we: a build, and a process that loads all"),
    "loading": (("load",), "TileLang load", "as on a machine that only has the package"),
}

FOLDER_OF = "from importlib.util import find_spec; print(find_spec({name!r}).submodule_search_locations[0])"


def measure(bench: Bench) -> Result:
    """Compile, edit and load with both, in turn."""
    kernels = example_folder(bench, "tilelang") / "kernels/tile"
    tilelang = TileLang(bench, "tilelang_kernels", str(kernels), json.dumps(KERNELS), str(bench.jobs))
    project = _project(bench, tilelang.python)
    actions: dict[str, Callable[[], Finished]] = {
        "cold": lambda: project.build_anew(bench.jobs),
        "null": project.do_nothing,
        "load": lambda: project.use(*KERNELS),
        "TileLang cold": tilelang.cold,
        "TileLang load": tilelang.run,
    }
    bench.say(f"four kernels in TileLang: {', '.join(actions)}")
    warm_up = 0 if bench.small else 1
    runs = interleave(bench.rounds_or(3), actions, warm_up)
    sizes = _sizes(project, tilelang)
    bench.say("edits of one of them")
    source = project.folder / "kernels/tile/gemm.py"
    after_edit = {"edit": lambda: project.build(bench.jobs), "TileLang edit": tilelang.run}
    runs |= interleave(bench.rounds_or(3), edits(source, *EDIT, after_edit), warm_up)
    return _result(runs, sizes)


def _project(bench: Bench, python: Path) -> Project:
    """A copy of the example, which finds TileLang in that environment."""
    project = example(bench, "tilelang", "tile_kernels")
    settings = project.folder / "pyproject.toml"
    settings.write_text(settings.read_text().replace("tilelang/bin/python", str(python)))
    return project


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
    theirs = {name: phases(listed) for name, listed in runs.items() if name.startswith("TileLang")}
    return Result([*timed_rows(runs, TIMES, "TileLang"), *sizes], {**samples(runs), "tilelang": theirs})
