"""Four launches of cuTile's kernels in one process: through a package, against cuTile with its cache, without a GPU.

They are those of ``examples/cutile``, for sm_90a, against a library that stands in for the driver. A process with a
full cache imports cuTile and makes the bytecode of what it launches; one with an empty cache runs tileiras as well.
``KERNELWRIGHT_TEST_CUTILE_PYTHON`` names the interpreter of an environment with tileiras.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from functools import partial
from pathlib import Path

from .harness import (
    CHILDREN,
    ROOT,
    Bench,
    Finished,
    Result,
    Row,
    Skip,
    Target,
    interleave,
    kib,
    run,
    samples,
    timed_rows,
)
from .projects import Project, example

PYTHON = os.environ.get("KERNELWRIGHT_TEST_CUTILE_PYTHON", "")
NEEDED = ("cuda.tile", "kernelwright_cutile")

FULL, EMPTY = "cuTile, full cache", "cuTile, empty cache"
LAUNCHED = Target(0.5, "ratio")
"""A process that launches through a package, against one that finds all in cuTile's cache."""


def measure(bench: Bench) -> Result:
    """Build the four kernels, and launch each of them once in processes of their own."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name.partition(".")[0]) is None]
    if missing or not PYTHON:
        raise Skip("it takes plugins/cutile and KERNELWRIGHT_TEST_CUTILE_PYTHON, an interpreter beside tileiras")
    project = _built(bench)
    bench.say("launches")
    actions = {name: partial(_launched, bench, project, name) for name in ("package", FULL, EMPTY)}
    runs = interleave(bench.rounds_or(3), actions, warm_up=1)
    times = {"four first launches": (("package",), FULL, "")}
    rows = timed_rows(runs, times, FULL)
    rows[1] = Row(**{**vars(rows[1]), "target": LAUNCHED})
    rows += timed_rows(runs, {"the same, with an empty cache": (("package",), EMPTY, "")}, EMPTY)
    cache, libraries = kib([_cache(project)]), kib([project.folder / "build/tile_kernels/_lib"])
    rows.append(Row("code on the disk", "KiB", libraries, {"cuTile's cache": cache}, None, "the package's libraries"))
    programs = kib([_programs().parent])
    rows.append(
        Row("what else a process needs", "KiB", 0, {"programs of CUDA": programs}, None, "and cuda-tile itself")
    )
    return Result(rows, samples(runs))


def _launched(bench: Bench, project: Project, name: str) -> Finished:
    if name == EMPTY:
        shutil.rmtree(project.folder / "empty", ignore_errors=True)
    cache = project.folder / "empty" if name == EMPTY else _cache(project)
    env = {
        "PYTHONPATH": os.pathsep.join(
            map(str, (project.folder / "build", project.folder / "kernels", bench.site_scons))
        ),
        "PATH": f"{_programs()}:{os.environ['PATH']}",
        "CUDA_TILE_CACHE_DIR": str(cache),
        "LD_LIBRARY_PATH": str(project.folder / "driver"),
        "KERNELWRIGHT_CUDA_DRIVER": str(project.folder / "driver/libcuda.so.1"),
        "STANDIN_CAPABILITY": "90",
        "STANDIN_SHARED": "232448",
    }
    how = "package" if name == "package" else "cutile"
    return run([sys.executable, CHILDREN / "cutile.py", how], project.folder, env)


def _cache(project: Project) -> Path:
    return project.folder / "cache"


def _programs() -> Path:
    return next(Path(PYTHON).parent.parent.glob("lib/python3.*/site-packages/nvidia/cu13/bin"))


def _built(bench: Bench) -> Project:
    """The example, with one variant of each kernel."""
    project = example(bench, "cutile", "tile_kernels")
    settings = project.folder / "pyproject.toml"
    changed = settings.read_text().replace('"sm_80", "sm_90a", "sm_100a"', '"sm_90a"')
    settings.write_text(changed.replace("cutile=cutile/bin/python", f"cutile={PYTHON}"))
    for name, all_of, one in ONE_VARIANT:
        path = project.folder / f"kernels/{name}.py"
        text = path.read_text()
        if all_of not in text:
            raise Skip(f"{path.name} has no {all_of}")
        path.write_text(text.replace(all_of, one))
    (project.folder / "driver").mkdir()
    source = ROOT / "site_scons/kernelwright/testing/cuda.c"
    run(["cc", "-O2", "-shared", "-fPIC", source, "-o", "driver/libcuda.so.1"], project.folder)
    project.build(bench.jobs)
    return project


ONE_VARIANT = (
    ("softmax", 'dtype=["float32", "float16"], BLOCK=[1024, 4096]', 'dtype=["float32"], BLOCK=[1024]'),
    ("matmul", 'dtype=["float16", "bfloat16"]', 'dtype=["float16"]'),
    ("layer_norm", 'dtype=["float32", "float16"]', 'dtype=["float16"]'),
)
"""A file of the example, its configs, and those that are built."""
