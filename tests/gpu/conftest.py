"""What the tests on a GPU need, said once; ``KERNELWRIGHT_TEST_GPU=1`` makes a failure of everything that is missing.

``KERNELWRIGHT_TEST_PACKAGES`` is the folder of the built packages (default ``build``), ``KERNELWRIGHT_TEST_CASES``
that of the cases (``build/gpu_cases``), ``KERNELWRIGHT_TEST_BACKENDS`` names the backends to test, with commas between
them, ``KERNELWRIGHT_TEST_DEVICE=cpu`` runs on the CPU what can run there, which tries the tests themselves, and
``KERNELWRIGHT_TEST_REPORT`` is a file to which a line of JSON is added after each test.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

import devices

REQUIRED = "KERNELWRIGHT_TEST_GPU"
REPORT = "KERNELWRIGHT_TEST_REPORT"


def missing(*modules: str) -> str | None:
    """Why tests that need a device and some modules cannot run here, or None."""
    if devices.named() == "cuda" and not Path("/dev/nvidiactl").exists():
        return "no NVIDIA GPU here"
    if not all((devices.packages() / name).is_dir() for name in ("kw_kernels", "gpu_probes")):
        return f"no packages in {devices.packages()}: run tests/gpu/pack.py where the compilers are"
    absent = [name for name in ("torch", *modules) if not is_installed(name)]
    return f"{' and '.join(absent)} not installed" if absent else None


def is_installed(module: str) -> bool:
    """Whether a module can be found; a missing parent of it counts as no."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def needed(backend: str, library: str) -> tuple[str, ...]:
    """The modules that a backend needs when it is called with a library's arrays; NumPy plays CuPy on the CPU."""
    module = devices.MODULES[library]
    return (*devices.NEEDS[backend], *(() if module == "cupy" and devices.named() == "cpu" else (module,)))


@pytest.fixture(autouse=True)
def _requirements(request: pytest.FixtureRequest) -> None:
    """Skip a test that cannot run here; its parameters name a backend and a library of arrays."""
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    backend = parameters.get("backend", "tvm_ffi")
    reason = missing(*needed(backend, parameters.get("library", "torch")))
    if reason is None and backend not in kernels_package().backends.__all__:
        reason = f"the package was built without the backend {backend}: scons BACKENDS=tvm_ffi,{backend}"
    if reason is not None:
        pytest.skip(reason)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Where a GPU is required, what is skipped has failed. Only the tests of this folder are looked at."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get(REQUIRED) == "1" and Path(__file__).parent in item.path.parents:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome, report.longrepr = "failed", f"{REQUIRED}=1 allows no skipped test: {reason}"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down how a test ended as soon as it is known, so that an early end leaves what was found."""
    file = os.environ.get(REPORT)
    if file is None or os.environ.get("PYTEST_XDIST_WORKER") or (report.passed and report.when != "call"):
        return
    lines = [] if report.passed else str(report.longreprtext).strip().splitlines()
    message = "\n".join([line for line in lines if line.startswith("E ")] or lines[-3:])
    line = {"test": report.nodeid, "outcome": report.outcome, "message": message[:600]}
    with Path(file).open("a", encoding="utf-8") as written:
        written.write(json.dumps(line) + "\n")


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid: str) -> None:
    """End a worker of pytest-xdist whose device answers no more: the next test gets a new process and context.

    pytest calls this after the tests of other folders too, which may have imported PyTorch and use no GPU.
    """
    torch = sys.modules.get("torch")
    if os.environ.get("PYTEST_XDIST_WORKER") and torch is not None and torch.cuda.is_initialized():
        try:
            devices.device_of("cuda").wait()
        except RuntimeError as error:
            sys.stderr.write(f"{nodeid}: the device does not answer any more: {error}\n")
            sys.stderr.flush()
            os._exit(70)


def kernels_package() -> Any:
    """The built package."""
    if str(devices.packages()) not in sys.path:
        sys.path.insert(0, str(devices.packages()))
    return importlib.import_module("kw_kernels")


@pytest.fixture
def kernels() -> Any:
    return kernels_package()


@pytest.fixture
def device() -> devices.Device:
    return devices.device_of(devices.named())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drop the tests of this folder that have no parameters left, because no backend of theirs is to be tested."""
    folder = Path(__file__).parent
    items[:] = [item for item in items if folder not in item.path.parents or not item.name.endswith("[NOTSET]")]
