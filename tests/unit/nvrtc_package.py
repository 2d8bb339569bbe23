"""Packages of the nvrtc backend by hand, and a process with the stand-in driver that calls their kernels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelwright import backends, runtime
from kernelwright.library.plan import KernelPlan, LoweredUnit, VariantPlan
from kernelwright.runtime.arguments import outputs_of
from support.forked import starter

STANDIN = Path(__file__).parent.parent / "standin" / "cuda.c"

INIT = '''\
from pathlib import Path


class Loader:
    """What the loader of a package has that the backend asks for; images hold the name of their arch."""

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
'''


def plan_of(signatures: Sequence[Mapping[str, Any]], archs: Sequence[str] = ("sm_80",)) -> KernelPlan:
    """The plan of a kernel whose variants are lowered for CUDA only, with the files where a build has them."""
    units = []
    for data in signatures:
        place = f"{data['kernel']}/{data['slug']}/cuda"
        images = {arch: f"{place}/{arch}.cubin" for arch in archs}
        units.append(LoweredUnit.from_json(data, f"{place}/host.c", images))
    return KernelPlan(units[0].kernel, units[0].outputs, tuple(VariantPlan(u.slug, {}, (u,)) for u in units))


def entry_of(signatures: Sequence[Mapping[str, Any]], archs: Sequence[str] = ("sm_80",)) -> dict[str, Any]:
    """A kernel's part of the manifest, as far as the backend reads it."""
    variants = [
        {
            "slug": data["slug"],
            "config": data["config"],
            "archs": list(archs),
            "arguments": data["arguments"],
            "symbols": data["symbols"],
            "units": [{"target": "cuda", "archs": list(archs)}],
        }
        for data in signatures
    ]
    return {"doc": "A kernel.", "outputs": outputs_of(signatures[0]), "variants": variants}


def make_package(
    folder: Path,
    kernels: Mapping[str, Sequence[Mapping[str, Any]]],
    archs: Sequence[str] = ("sm_80",),
    driver: int = 0,
    toolkit: int = 0,
) -> None:
    """Write the package ``made`` with these kernels, each given by the signatures of its variants."""
    backend, root = backends.get("nvrtc"), folder / "made"
    for sub in ("_runtime", "backends/nvrtc", "_images"):
        (root / sub).mkdir(parents=True, exist_ok=True)
    for path in ("_runtime", "backends", "backends/nvrtc"):
        (root / path / "__init__.py").write_text("")
    (root / "__init__.py").write_text(INIT)
    for name in (*backend.runtime, "loader.py"):  # every package has the last
        shutil.copy(Path(runtime.__file__).with_name(name), root / "_runtime" / name)
    for kernel, signatures in kernels.items():
        texts = backend.emit(replace(plan_of(signatures, archs), driver=driver, toolkit=toolkit))
        for name, text in texts.items():
            (root / "backends/nvrtc" / name).write_text(text)
        (root / f"{kernel}.json").write_text(json.dumps(entry_of(signatures, archs)))
        for data in signatures:
            for arch in archs:
                suffix = "ptx" if arch.startswith("compute") else "cubin"
                path = root / "_images" / kernel / f"{data['slug']}.{arch}.{suffix}"
                path.parent.mkdir(exist_ok=True)
                path.write_text(arch)


def make_driver(folder: Path) -> Path:
    """Build the stand-in as ``libcuda.so.1`` in a folder of its own, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, str(STANDIN), "-o", str(folder / "libcuda.so.1"), "-ldl"], check=True)
    return folder


class Process:
    """Python processes that import a package, with the stand-in driver.

    Arguments:
        folder: that of the package ``made``.
        driver: that of the driver; None: there is none.
    """

    def __init__(self, folder: Path, driver: Path | None) -> None:
        self._folder = folder
        self._driver = driver
        self.log_file = folder / "log"
        self.log: list[str] = []

    def run(self, code: str, **standin: object) -> str:
        """What code prints; afterwards ``log`` has the calls of the driver.

        Arguments:
            standin: settings of the stand-in, such as ``capability=90``.
        """
        self.log_file.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STANDIN_")}
        environment |= {f"STANDIN_{name.upper()}": str(value) for name, value in standin.items()}
        environment["STANDIN_LOG"] = str(self.log_file)
        environment["LD_LIBRARY_PATH"] = str(self._driver or self._folder / "nothing")
        process = starter("numpy", "cuda.core", "launcher_build", library_path=environment["LD_LIBRARY_PATH"])
        done = process.run(HEAD + textwrap.dedent(code), env=environment, path=[self._folder])
        self.log = self.log_file.read_text().splitlines() if self.log_file.exists() else []
        assert done.returncode == 0, done.stderr
        return done.stdout

    def calls(self, name: str) -> list[str]:
        """The calls of that name, without it."""
        return [line.removeprefix(name).strip() for line in self.log if line.startswith(name)]


HEAD = """\
import made
from launcher_build import FakeTensor

CODES = {"float16": (2, 16, 1), "float32": (2, 32, 1), "bfloat16": (4, 16, 1), "int8": (0, 8, 1), "int32": (0, 32, 1)}

def on_cuda(shape, dtype="float32", device=0, **more):
    return FakeTensor(shape, CODES[dtype], device=(2, device), **more)

"""
