"""A package with kernels of one backend, made from the library that a build of this repository has linked.

The parts are the real ones: libraries and manifest of the build, the emitted files, the modules of ``package/``. What
stands in is the loader: it verifies nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kernelwright.backends import get
from kernelwright.define.kernel import Kernel
from kernelwright.library.plan import Argument, KernelPlan, LoweredUnit, VariantPlan
from kernelwright.processes.protocol import CheckRequest
from kernelwright.worker.check import Check, size_sets
from kernelwright.worker.definitions import kernels_of
from support.kernel_library import build_kernel_library
from support.project import ROOT

KERNELS = sorted(path.stem for path in (ROOT / "kernels").glob("[!_]*.py"))
assert "gemm" in KERNELS
KERNELS += ["accumulate", "cube", "cube_backward", "product", "product_backward"]
"""What the built library has: the kernels of this repository, and those that the tests add."""

PACKAGE = Path(importlib.util.find_spec("kernelwright.runtime").origin).parent

INIT = """\
from .loader_for_tests import TestLoader as _Loader

_loader = _Loader(__name__, __file__, {version!r})
"""

BACKEND_INIT = """\
from ... import _loader


def __getattr__(name):
    if name.startswith("_") or name not in _loader.manifest()["kernels"]:
        raise AttributeError(name)
    kernel = globals()[name] = _loader.through("{module}", name)
    return kernel
"""

LOADER = """\
import json
import threading
from importlib import import_module
from pathlib import Path


class TestLoader:
    def __init__(self, package, file, version):
        self.package, self.folder, self.version = package, Path(file).parent, version
        self._kernels, self._lock = {}, threading.RLock()

    def manifest(self):
        return json.loads((self.folder / "manifest.json").read_text())

    def entry(self, name):
        return self.manifest()["kernels"][name]

    def verified(self, relative):
        return self.folder / relative

    def library(self, name):
        return self.folder / "_lib" / f"{name}.so"

    def through(self, module, name):
        with self._lock:
            if (module, name) not in self._kernels:
                loaded = import_module(f"{self.package}._runtime.{module.removesuffix('.py')}")
                self._kernels[module, name] = loaded.load(self, name, self.entry(name))
            return self._kernels[module, name]
"""

LOAD = """

def load(loader, name, entry):
    return load_kernel(name, entry, loader.library(name))
"""


def make(folder: Path, built: Path, backend_name: str, name: str, version: str = "1.2.0") -> Path:
    """Write a package of the given name beside others; ``built`` is a package that the build has made."""
    backend = get(backend_name)
    package = folder / name
    place = package / "backends" / backend_name
    place.mkdir(parents=True)
    (package / "backends/__init__.py").write_text("")
    shutil.copytree(built / "_lib", package / "_lib")
    shutil.copy(built / "manifest.json", package)
    (package / "_runtime").mkdir()
    (package / "_runtime/__init__.py").write_text("")
    for module in {*backend.runtime, "kernel.py"}:
        text = (PACKAGE / module).read_text()
        if module == "kernel.py" and "\ndef load(" not in text:
            text += LOAD
        (package / "_runtime" / module).write_text(text)
    if (PACKAGE / "loader.py").exists():
        shutil.copy(PACKAGE / "loader.py", package / "_runtime")
    (package / "loader_for_tests.py").write_text(LOADER)
    (package / "__init__.py").write_text(INIT.format(version=version))
    (place / "__init__.py").write_text(BACKEND_INIT.format(module=backend.runtime[0]))
    for kernel, entry in json.loads((built / "manifest.json").read_text())["kernels"].items():
        for file, text in backend.emit(plan_of(kernel, entry)).items():
            (place / file).write_text(text)
    return package


def plan_of(name: str, entry: dict[str, Any]) -> KernelPlan:
    """A plan with what the manifest says; there is no more of a lowering than its arguments."""
    return KernelPlan(name, tuple(entry["outputs"]), tuple(variant_plan(name, v) for v in entry["variants"]))


def variant_plan(name: str, variant: dict[str, Any]) -> VariantPlan:
    arguments = tuple(
        Argument(
            a["name"], a["kind"], a["dtype"], tuple(a.get("shape") or ()), a["output"], a["written"], a.get("alignment")
        )
        for a in variant["arguments"]
    )
    units = tuple(
        LoweredUnit(name, variant["slug"], unit["target"], unit["archs"][0], f"kw_{name}", arguments, {}, (), "host")
        for unit in variant["units"]
    )
    return VariantPlan(variant["slug"], variant["config"], units)


def imported(package: Path, backend: str) -> Any:
    """The module with the package's kernels; it is in the search path from now on."""
    sys.path.insert(0, str(package.parent))
    try:
        return importlib.import_module(f"{package.name}.backends.{backend}")
    finally:
        sys.path.remove(str(package.parent))


def shared_library(factory: pytest.TempPathFactory) -> Path:
    """The kernels of this repository, and a few more, built for the CPU; the package of the build."""
    folder = factory.mktemp("library")
    build_kernel_library(folder)
    return folder / "build/demo"


@dataclass(frozen=True)
class Case:
    """A call of a kernel: its inputs by name, and what its reference makes of them.

    Arguments:
        kernel, index, config: the variant.
        arguments: the manifest's.
        inputs: an array or a number for each argument that is not an output.
        expected: an array for each tensor that the kernel writes.
        tolerance: by output, as ``compare`` takes it.
    """

    kernel: str
    index: int
    config: dict[str, Any]
    arguments: list[dict[str, Any]]
    inputs: dict[str, Any]
    expected: dict[str, Any]
    tolerance: dict[str, float]

    def of(self, function: Any) -> Any:
        """The kernel, or its variant if the arguments also fit another one that computes something else."""
        return function.variant(**self.config) if {"k", "factor"} & {*self.config} else function


def cases(built: Path) -> list[Case]:
    """One call of moderate size of each variant of the library, with inputs made as ``scons check`` makes them."""
    manifest = json.loads((built / "manifest.json").read_text())
    folder = built.parent.parent / "kernels"
    sys.path.insert(0, str(folder))
    try:
        kernels = [kernel for path in sorted(folder.glob("[!_]*.py")) for kernel in kernels_in(path)]
    finally:
        sys.path.remove(str(folder))
    return [
        case_of(kernel, index, entry)
        for kernel in kernels
        for index, entry in enumerate(manifest["kernels"][kernel.name]["variants"])
    ]


def kernels_in(path: Path) -> tuple[Kernel, ...]:
    name = f"definitions_of_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return kernels_of(module)


def case_of(kernel: Kernel, index: int, entry: dict[str, Any]) -> Case:
    (variant,) = (variant for variant in kernel.variants if variant.slug == entry["slug"])
    signature = {key: entry[key] for key in ("arguments", "symbols")}
    request = CheckRequest("", kernel.name, variant.slug, "", index, signature, "cpu", kernel.tolerance)
    check = Check(request, kernel, variant, lambda what, function: function(), lambda doing: None)
    for sizes in size_sets(list(entry["symbols"])):
        inputs = check.inputs(sizes) if all(size > 1 for size in sizes.values()) else None
        if inputs is not None:
            tolerance = {argument["name"]: check.tolerance(argument["dtype"]) for argument in entry["arguments"]}
            config = dict(variant.config)
            return Case(kernel.name, index, config, entry["arguments"], inputs, check.expected(inputs), tolerance)
    raise AssertionError(f"no sizes for {kernel.name}")
