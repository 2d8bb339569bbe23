"""Fixtures for all tests, and how pytest runs them; ``support`` has what tests call."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import Browser
from support.project import CACHE_DIR, ROOT, Project, make_compiler, new_project, once
from support.slow import FAST, SlowTests

# What was installed with --no-compile is compiled where it is imported first, for hundreds of processes.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# What this run was asked for is nothing that a pytest of a test should do.
os.environ.pop("PYTEST_ADDOPTS", None)

# What was compiled on demand on this machine is not to come back in tests; those who want a cache name one. Not even
# root can make this folder.
os.environ[CACHE_DIR] = "/proc/kernelwright"

# TVM's parser asks Python for the module of each of its callers. For code without a file, that goes through all modules
# each time, which is most of the time of a parse.
inspect.modulesbyfile.update({"<string>": "", "<ast>": ""})  # type: ignore[attr-defined]


def _nearest(context: int = 1) -> list[inspect.FrameInfo]:
    """What called this, without most frames of pytest: TVM's parser has the lines of all of them looked up."""
    found, frame = [], sys._getframe(1)
    while frame is not None and len(found) < 8:
        found.append(inspect.FrameInfo(frame, *inspect.getframeinfo(frame, context)))
        frame = frame.f_back
    return found


inspect.stack = _nearest

# Threads of NumPy's matrix products would wait for each other in a loop, beside the other processes of a test run.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

SLOW = SlowTests()

LONGEST = (
    *("triton_language/test_triton.py", "cluster/test_dask.py", "contracts/test_backends.py", "scons/test_trust.py"),
    *("scons/test_incremental.py", "scons/test_gpu_script.py", "scons/test_package.py", "scons/test_backend_builds.py"),
    *("scons/test_partial.py", "scons/test_nvrtc_builds.py", "wheels/test_wheel.py", "contracts/test_library.py"),
    *("unit/test_cython.py", "scons/test_build_file.py", "emulated/test_emulated_kernels.py"),
    *("wheels/test_own_wheel.py", "wheels/test_split.py", "drills/test_killed_builds.py", "scons/test_benchmarks.py"),
    *("scons/test_isolation.py", "contracts/test_promises.py", "emulated/test_examples.py"),
)
"""The files that take longest; they come first, so that at the end no process is alone with a long one."""


WITH_TRITON = (
    "triton_language/",
    "cutile_language/",
    "test_gpu_script.py",
    "test_promises.py",
    "test_examples.py",
    "test_sequences.py",
    "test_leading_dimensions.py",
)
"""Files whose runs are forks of a process with PyTorch and Triton; cuTile imports PyTorch."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What a collection makes stays; looking for garbage among it takes a third of its time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.option.markexpr == FAST and SLOW.has_file(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW.has(item):
            item.add_marker("slow")
    places = {ROOT / "tests" / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give whole files to the processes of ``-n``, so that what the tests of a file share is made once.

    One process has all files whose runs are forks of processes with PyTorch and Triton, whose start takes 20 s.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "triton" if any(name in file for name in WITH_TRITON) else file

    if config.option.dist != "load":
        return None
    config.option.loadscopereorder = False
    return Scheduling(config, log)


FUZZED: Counter[str] = Counter()
"""Fuzz test -> cases that it has run in the processes of pytest-xdist."""


def fuzzed_here() -> Counter[str]:
    """The same for this process."""
    harness = sys.modules.get("fuzz.harness")
    return Counter() if harness is None else harness.CASES


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass the number of cases on to the process that prints it, which imports no test."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["fuzzed"] = dict(fuzzed_here())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    FUZZED.update(getattr(node, "workeroutput", {}).get("fuzzed", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    cases = FUZZED + fuzzed_here()
    if terminalreporter.verbosity > 0:
        for name, count in sorted(cases.items()):
            terminalreporter.write_line(f"fuzz: {count:7} {name}")
    if cases:
        profile = os.environ.get("KERNELWRIGHT_FUZZ", "default")
        terminalreporter.write_line(f"fuzz: {cases.total()} cases ({profile} profile)")


@pytest.fixture(scope="session", autouse=True)
def _shared_builds(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the projects of a test run share: those that were built, and compilers that compile nothing twice."""
    Project.shared = once(tmp_path_factory, "shared", make_compiler)
    os.environ["OBJECTS_OF_TESTS"] = str(Project.shared / "lowered")
    os.environ["RUNS_OF_TESTS"] = str(Project.shared / "runs")
    # A pytest that a test runs would spend its last minutes with removing the folders of earlier runs.
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(tmp_path_factory.getbasetemp())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The project of `new_project`, for one test."""
    return new_project(tmp_path)


@pytest.fixture
def cpu_project(project: Project) -> Project:
    """The same without CUDA, which builds faster."""
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    return project


@pytest.fixture(scope="module")
def shared_browser(built_page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with the page that a module has made; tests leave the page as they found it."""
    with Browser(built_page, tmp_path_factory.mktemp("profile")) as browser:
        yield browser
