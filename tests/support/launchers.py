"""What a call for CUDA goes through: the launcher in C, and the one in Python; both on a driver that stands in.

Both get the same kernels, which TVM lowers. No device code is compiled: an image is the name of its arch, which the
stand-in repeats. A test gives a program to a process, where ``made`` is a package with these kernels; see :data:`HEAD`.
A further launcher is one more line in :data:`LAUNCHERS`: what writes its package.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright import backends, runtime
from kernelwright.backends.plan import KernelPlan, LoweredUnit, VariantPlan
from kernelwright.define.unit import Unit
from kernelwright.runtime.arguments import outputs_of

from .forked import starter
from .launcher_build import build
from .project import ROOT

STANDIN = ROOT / "site_scons/kernelwright/testing/cuda.c"


@dataclass(frozen=True)
class Variant:
    """A variant that was lowered for CUDA.

    Arguments:
        signature: its signature.json.
        host: its host.c.
        archs: those that it has code for; none: those of the package.
        tabled: as of a VariantPlan.
    """

    signature: Mapping[str, Any]
    host: str = ""
    archs: Sequence[str] = ()
    tabled: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, kernel: str, defined: Any, *, slug: str = "default", config: Any = None, outputs: Any = (), **more: Any
    ) -> Variant:
        """That of a PrimFunc, a DeclaredLaunch or several of these."""
        from kernelwright.define.declared import declared_in
        from kernelwright.frontends.declared_launch import lower_launches
        from kernelwright.frontends.launches import DeclaredLaunch
        from kernelwright.frontends.tir.front_end import Tir

        symbol = f"kw_{kernel}__{slug}__cuda"
        unit = Unit(kernel, slug, symbol, config or {}, tuple(outputs), "cuda", "sm_90", f"{kernel}.py:1")
        launches = [defined] if isinstance(defined, DeclaredLaunch) else defined
        lowered = (
            lower_launches(declared_in({n: v for each in launches for n, v in each.passed.items()}), launches, unit)
            if isinstance(launches, list)
            else Tir().lower(defined, unit, lambda doing: None)
        )
        return cls(json.loads(lowered.files["signature.json"]), lowered.files["host.c"].decode(), **more)


@dataclass(frozen=True)
class Kernel:
    """A kernel of a package, with what a manifest says of all its variants."""

    variants: Sequence[Variant]
    tables: Sequence[Any] = ()
    declared: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """More of the KernelPlan: ``driver``, ``toolkit``, ``meaning``."""


def plan_of(
    signatures: Sequence[Mapping[str, Any]], archs: Sequence[str] = ("sm_80",), variants: Sequence[Variant] = ()
) -> KernelPlan:
    """The plan of a kernel whose variants are lowered for CUDA only, with the files where a build has them."""
    plans = []
    for variant in variants or map(Variant, signatures):
        data = dict(variant.signature)
        place = f"{data['kernel']}/{data['slug']}/cuda"
        images = {arch: f"{place}/{arch}.cubin" for arch in variant.archs or archs}
        unit = LoweredUnit.from_json(data, f"{place}/host.c", images)
        plans.append(VariantPlan(unit.slug, data["config"], (unit,), variant.tabled))
    unit = plans[0].units[0]
    return KernelPlan(unit.kernel, unit.returned, tuple(plans))


def entry_of(kernel: Kernel, archs: Sequence[str] = ("sm_80",)) -> dict[str, Any]:
    """A kernel's part of the manifest, as far as calls need it."""
    variants = []
    for variant in kernel.variants:
        said = {name: variant.signature[name] for name in ("slug", "config", "arguments", "symbols")}
        said |= {name: variant.signature[name] for name in ("limited", "requires") if name in variant.signature}
        listed = list(variant.archs or archs)
        more = {"tabled": list(variant.tabled)} if variant.tabled else {}
        variants.append(said | more | {"archs": listed, "units": [{"target": "cuda", "archs": listed}]})
    entry = {"doc": "A kernel.", "outputs": outputs_of(dict(kernel.variants[0].signature)), "variants": variants}
    if "meaning" in kernel.options:
        entry["meaning"] = kernel.options["meaning"]
    if kernel.tables:
        entry["tables"] = [table.to_json() for table in kernel.tables]
    return entry | ({"declared": kernel.declared} if kernel.declared is not None else {})


# ---- packages


def _write_images(root: Path, place: str, archs: Sequence[str]) -> None:
    for arch in archs:
        path = root / place.format(arch=arch, suffix="ptx" if arch.startswith("compute") else "cubin")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(arch)


def host_of(folder: Path, variant: Variant, archs: Sequence[str]) -> None:
    """Write the files of a variant to where :func:`plan_of` has them."""
    place = folder / variant.signature["kernel"] / variant.signature["slug"] / "cuda"
    _write_images(place, "{arch}.cubin", variant.archs or archs)
    (place / "host.c").write_text(variant.host)


LIBRARY_INIT = """\
import json
from pathlib import Path

import tvm_ffi
from kernelwright.runtime.kernel import load_kernel


def kernel(name):
    path = Path(__file__).with_name(f"{name}.json")
    return load_kernel(name, json.loads(path.read_text()), path.with_suffix(".so"))


def call(kernel, *arguments, stream=None):
    if stream is None:
        return kernel(*arguments)
    device = next(each.__dlpack_device__()[1] for each in arguments if hasattr(each, "__dlpack_device__"))
    with tvm_ffi.use_raw_stream(tvm_ffi.device(f"cuda:{device}"), stream):
        return kernel(*arguments)
"""


def make_library(root: Path, name: str, kernel: Kernel, plan: KernelPlan, archs: Sequence[str]) -> None:
    """A kernel that is called through the launcher in C, which its library has."""
    (root / "__init__.py").write_text(LIBRARY_INIT)
    for variant in kernel.variants:
        host_of(root / "work", variant, archs)
    build(root / "work", plan).rename(root / f"{name}.so")


CUDA_CORE_INIT = '''\
from pathlib import Path


class Loader:
    """What the loader of a package has that the backend asks for."""

    package = __name__
    folder = Path(__file__).parent

    def verified(self, relative):
        path = self.folder / relative
        if not path.is_file():
            raise ImportError(f"{path}: cannot be read")
        return path

    def image(self, name, slug, archs, device, capability):
        arch = archs.split()[0]
        suffix = "ptx" if arch.startswith("compute") else "cubin"
        return arch, self.verified(f"_images/{name}/{slug}.{arch}.{suffix}")


def kernel(name):
    import json

    from ._runtime.cuda_core_kernel import load

    loader = Loader()
    return load(loader, name, json.loads((loader.folder / f"{name}.json").read_text()))


def call(kernel, *arguments, stream=None):
    return kernel(*arguments, stream=stream)
'''


def make_cuda_core(root: Path, name: str, kernel: Kernel, plan: KernelPlan, archs: Sequence[str]) -> None:
    """A kernel of the cuda_core backend, which is launched by Python through cuda.core."""
    backend = backends.get("cuda_core")
    (root / "__init__.py").write_text(CUDA_CORE_INIT)
    for path in ("_runtime", "backends", "backends/cuda_core"):
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / "__init__.py").write_text("")
    for module in (*backend.runtime, "loader.py", "passed.py"):  # every package has the last two
        shutil.copy(Path(runtime.__file__).with_name(module), root / "_runtime" / module)
    for file, text in backend.emit(plan).items():
        (root / "backends/cuda_core" / file).write_text(text)
    for variant in kernel.variants:
        place = f"_images/{name}/{variant.signature['slug']}.{{arch}}.{{suffix}}"
        _write_images(root, place, variant.archs or archs)


Make = Callable[[Path, str, Kernel, KernelPlan, Sequence[str]], None]
"""Writes what a package has of a kernel."""

LAUNCHERS: dict[str, Make] = {"library": make_library, "cuda_core": make_cuda_core}


def make_package(
    folder: Path,
    kernels: Mapping[str, Kernel],
    archs: Sequence[str] = ("sm_80",),
    *,
    launcher: str | Make = "cuda_core",
) -> None:
    """Write the package ``made`` with these kernels."""
    make, root = LAUNCHERS[launcher] if isinstance(launcher, str) else launcher, folder / "made"
    root.mkdir(parents=True, exist_ok=True)
    for name, kernel in kernels.items():
        plan = replace(plan_of([], archs, kernel.variants), tables=tuple(kernel.tables), declared=kernel.declared)
        make(root, name, kernel, replace(plan, **kernel.options), archs)
        (root / f"{name}.json").write_text(json.dumps(entry_of(kernel, archs)))


# ---- processes


def make_driver(folder: Path, *flags: str) -> Path:
    """Build the stand-in as ``libcuda.so.1`` in a folder of its own, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags, str(STANDIN)]
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1"), "-ldl"], check=True)
    return folder


class Process:
    """Python processes that import a package, with the stand-in driver.

    Arguments:
        folder: that of the package ``made``.
        driver: that of the driver; None: there is none.
    """

    def __init__(self, folder: Path, driver: Path | None) -> None:
        self.folder = folder
        self._driver = driver or folder / "nothing"
        self.log_file = folder / f"log of {os.getpid()}"  # other processes of the tests have the same folder
        self.log: list[str] = []

    def run(self, code: str, **standin: object) -> str:
        """What code prints; afterwards ``log`` has the calls of the driver.

        Arguments:
            standin: settings of the stand-in, such as ``capability=90``.
        """
        self.log_file.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STANDIN_")}
        environment |= {f"STANDIN_{name.upper()}": str(value) for name, value in standin.items()}
        environment |= {"STANDIN_LOG": str(self.log_file), "LD_LIBRARY_PATH": str(self._driver)}
        environment["KERNELWRIGHT_CUDA_DRIVER"] = str(self._driver / "libcuda.so.1")
        modules = ("numpy", "tvm_ffi", "cuda.core", "support.launcher_build")
        process = starter(*modules, library_path=str(self._driver))
        done = process.run(HEAD + textwrap.dedent(code), env=environment, path=[self.folder])
        lines = self.log_file.read_text().splitlines() if self.log_file.exists() else []
        # The default stream has two handles; which contexts are current meanwhile is a matter of each launcher's own.
        lines = [re.sub(r"stream 0x1\b", "stream 0", line) for line in lines]
        self.log = [line for line in lines if not line.startswith(("push", "pop"))]
        switches = [line.split()[0] for line in lines if line.startswith(("push", "pop"))]
        assert switches.count("push") == switches.count("pop"), "a context is left current"
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refusal(self, call: str, **standin: object) -> str:
        """Type and message of what a call raises."""
        return self.run(f"print(refusal(lambda: {call}))", **standin).rstrip("\n")

    def calls(self, name: str) -> list[str]:
        """The calls of that name, without it."""
        return [line.removeprefix(name).strip() for line in self.log if line.startswith(name)]

    def order(self, *names: str) -> list[str]:
        """The names of the calls among these, in order."""
        return [line.split()[0] for line in self.log if line.startswith(names)]

    def parameters(self) -> list[str]:
        """Those of each launch."""
        return [line.partition(" parameters ")[2] for line in self.calls("launch")]


HEAD = """\
import os
import made
from made import call
from support.launcher_build import FakeTensor

CODES = {"float16": (2, 16, 1), "float32": (2, 32, 1), "bfloat16": (4, 16, 1), "int8": (0, 8, 1), "int32": (0, 32, 1)}

def on_cuda(shape, dtype="float32", device=0, **more):
    return FakeTensor(shape, CODES[dtype], device=(2, device), **more)

def refusal(work):
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"

"""
"""What every program begins with.

``made.kernel(name)`` is a kernel, ``call(kernel, *arguments, stream=None)`` calls it on a stream of the device.
"""


class Machine:
    """A machine with the stand-in driver for libraries that are loaded into this process, and what that was asked for.

    A library's state is for one machine, so each machine loads copies of its own.
    """

    def __init__(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._tmp_path = tmp_path
        self._patch = monkeypatch
        self.driver = folder / "libcuda.so.1"
        self.log_file = tmp_path / "log"
        monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", str(self.driver))
        monkeypatch.setenv("STANDIN_LOG", str(self.log_file))

    def set(self, **variables: object) -> None:
        for name, value in variables.items():
            self._patch.setenv(f"STANDIN_{name.upper()}", str(value))

    def hold(self, function: str) -> Path:
        """Put a gate in front of a function of the driver; its path, for ``held``."""
        gate = self._tmp_path / f"gate of {function}"
        self.set(hold=f"{function}={gate}")
        return gate

    def load(self, library: Path) -> Any:
        import tvm_ffi

        copy = self._tmp_path / f"{len(list(self._tmp_path.iterdir()))}_{library.name}"
        shutil.copy(library, copy)
        return tvm_ffi.load_module(str(copy))

    @property
    def log(self) -> list[str]:
        return self.log_file.read_text().splitlines() if self.log_file.exists() else []

    def calls(self, name: str) -> list[str]:
        return [line.removeprefix(name).strip() for line in self.log if line.startswith(name)]
