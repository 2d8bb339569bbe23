"""A kernel in CUDA C++ with its own host code, for sm_90a: our build against tvm-ffi's own builder and its cache.

It is ``rms_norm`` of ``examples/cuda-cpp``: device code for two dtypes, and a function that launches it, exported
through tvm-ffi. ``tvm_ffi.cpp.load`` writes a ``build.ninja``, and runs ninja with the same sources, nvcc and C++
compiler; its cache is the folder that it builds in. From nothing is with empty caches. An edit changes a number in the
device code. Loading is a second process. Times are of whole processes.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from .harness import (
    CHILDREN,
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
from .ninja_build import find_ninja
from .projects import Project, example, tool_path

PEER = "tvm-ffi"
KERNEL = "rms_norm"
SOURCES = ("rms_norm.cu", "rms_norm.cc")
EDIT = ("float squares = 0;", "float squares = {};")

TIMES: Times = {
    "a kernel with its own host code, from nothing": (("cold",), "tvm-ffi cold", "we: with the package"),
    "an edit of its device code": (("edit",), "tvm-ffi edit", ""),
    "nothing to do, and loading": (("null", "load"), "tvm-ffi load", "we: a build, and a process that loads it"),
    "loading": (("load",), "tvm-ffi load", "as on a machine that only has the package"),
}


def measure(bench: Bench) -> Result:
    """Compile, edit and load with both, in turn."""
    project, peer = _project(bench), _Builder(bench)
    actions: dict[str, Callable[[], Finished]] = {
        "cold": lambda: project.build_anew(bench.jobs),
        "null": project.do_nothing,
        "load": lambda: project.use(KERNEL),
        "tvm-ffi cold": lambda: peer.cold(project),
        "tvm-ffi load": lambda: peer.run(project),
    }
    bench.say(f"a kernel with its own host code: {', '.join(actions)}")
    warm_up = 0 if bench.small else 1
    runs = interleave(bench.rounds_or(5), actions, warm_up)
    sizes = _sizes(project, peer)
    bench.say("edits of its device code")
    after_edit = {"edit": lambda: project.build(bench.jobs), "tvm-ffi edit": lambda: peer.run(project)}
    runs |= interleave(bench.rounds_or(5), edits(project.folder / "kernels/rms_norm.cu", *EDIT, after_edit), warm_up)
    theirs = {name: phases(listed) for name, listed in runs.items() if name.startswith(PEER)}
    return Result([*timed_rows(runs, TIMES, PEER), *sizes], {**samples(runs), PEER: theirs})


def _project(bench: Bench) -> Project:
    """The example with this one kernel, for one arch."""
    project = example(bench, "cuda-cpp", "norm_kernels")
    for other in ("layer_norm", "column_means"):
        (project.folder / f"kernels/{other}.py").unlink()
    definition = project.folder / "kernels/rms_norm.py"
    head, first, _ = definition.read_text().split("@kernel(")
    definition.write_text(f"{head}@kernel({first}")
    settings = project.folder / "pyproject.toml"
    settings.write_text(settings.read_text().replace('"sm_80", ', ""))
    return project


class _Builder:
    """tvm-ffi's builder, with a folder of its own."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.folder = bench.work / "tvm-ffi-module"
        self._home = _toolkit(bench)
        self._env = {
            "CUDA_HOME": str(self._home),
            "TVM_FFI_CUDA_ARCH_LIST": "9.0a",
            "PATH": f"{find_ninja().parent}:{os.environ['PATH']}",
            "MAX_JOBS": str(bench.jobs),
        }

    def cold(self, project: Project) -> Finished:
        """Compile in an empty folder, and load."""
        shutil.rmtree(self.folder, ignore_errors=True)
        return self.run(project)

    def run(self, project: Project) -> Finished:
        """Compile what changed, and load."""
        program = [CHILDREN / "tvm_ffi_module.py", self.folder, self._home / "include"]
        sources = [project.folder / "kernels" / name for name in SOURCES]
        return run([sys.executable, *program, *sources], self._bench.work, self._env)

    @property
    def library(self) -> Path:
        """What it loads."""
        return self.folder / "norm.so"


def _toolkit(bench: Bench) -> Path:
    """The CUDA toolkit as tvm-ffi expects one: PyPI's has no ``lib64``, and no ``libcudart.so`` without a version."""
    home = bench.work / "cuda-home"
    shutil.rmtree(home, ignore_errors=True)
    (home / "lib64").mkdir(parents=True)
    toolkit = Path(tool_path(bench.site_scons, "nvcc")).parent.parent
    for folder in ("bin", "include", "nvvm", "lib"):
        (home / folder).symlink_to(toolkit / folder)
    runtime = next((toolkit / "lib").glob("libcudart.so*"))
    (home / "lib64/libcudart.so").symlink_to(runtime)
    return home


def _sizes(project: Project, peer: _Builder) -> list[Row]:
    """What is left and what is needed, after a build from nothing."""
    package = kib([project.folder / "build" / project.package])
    needed = "we: the package, with CUDA's and C++'s runtime in it; tvm-ffi: a library that needs both"
    return [
        Row("left on disk", "KiB", kib(project.left), {PEER: kib([peer.folder])}, None, ""),
        Row("what a user needs", "KiB", package, {PEER: kib([peer.library])}, None, needed),
    ]
