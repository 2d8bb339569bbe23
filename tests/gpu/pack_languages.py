"""Builds what the part "languages" calls: the examples, kernels of the library built in other ways, a Triton program.

They go into one folder of the bundle, as they would be installed. What cannot be built here, because a compiler is not
installed, is left out; ``left_out.json`` says why.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TILELANG = "KERNELWRIGHT_TILELANG_PYTHON"
"""The variable that names an interpreter that has TileLang, as for the tests of tests/tilelang_language."""

Scons = Callable[[Path, Sequence[str]], None]
"""Runs SCons in a folder, with some words."""

MODES = """\
from kernelwright.scons import generate

env = Environment(tools=[generate])
kernels = env.Glob("kernels/*.py")
env.Default(env.KernelPackage("kw_split", kernels, split="arch"))
env.Default(env.KernelPackage("kw_compressed", kernels, compress="size"))
env.Default(env.KernelPackage("kw_nvrtc", kernels, cuda_compiler="nvrtc"))
env.Default(env.KernelPackage("kw_ptx", kernels, archs={ptx}))
env.KernelWheel("kw_split")
"""

PROJECT = """\
[project]
name = "kw-split"
version = "1.0"
requires-python = ">=3.10"

[tool.kernelwright]
backends = ["tvm_ffi", "cuda_core"]
targets = {targets}
archs = {archs}
"""

IN_MODES = ("saxpy", "rope", "gemm")
"""The kernels of the library that are built in other ways."""

RECORDED = """\
from kernelwright.scons import generate

env = Environment(tools=[generate])
env.Default(env.KernelPackage("triton_program", env.Glob("kernels/*.py")))
"""


@dataclass(frozen=True)
class Example:
    """A folder of ``examples/``.

    Arguments:
        folder: its name.
        package: what it builds.
        needs: modules that the definitions import.
        needs_tilelang: whether it has definitions in TileLang.
    """

    folder: str
    package: str
    needs: tuple[str, ...] = ()
    needs_tilelang: bool = False

    def problem(self) -> str:
        """Why it cannot be built here; empty: it can be."""
        missing = [name for name in self.needs if find_spec(name) is None]
        if missing:
            return f"there is no module {missing[0]} here"
        return f"{TILELANG} names no interpreter" if self.needs_tilelang and not os.environ.get(TILELANG) else ""


EXAMPLES = (
    Example("triton", "attention_kernels", ("triton",)),
    Example("cuda-cpp", "norm_kernels"),
    Example("mixed", "mixed_kernels", ("triton", "cutlass"), needs_tilelang=True),
    Example("tilelang", "tile_kernels", needs_tilelang=True),
    Example("triton-programs", "model_kernels", ("triton",)),
    Example("vllm-plugin", "gate_kernels"),
)

PARTS = (*(example.folder for example in EXAMPLES), "modes", "recorded")
"""What ``pack.py --languages`` can name."""


def add_languages(folder: Path, work: Path, options: argparse.Namespace, scons: Scons) -> None:
    """Build what was asked for, and put it into a folder; say what is left out.

    Arguments:
        folder: that of the bundle.
        work: where projects are built, and kept for the next time.
        options: of ``pack.py``.
        scons: runs a build.
    """
    folder.mkdir(parents=True)
    wanted, left_out = options.languages.split(","), {}
    cuda = [arch for arch in options.archs.split(",") if arch.startswith("sm_")]
    for example in EXAMPLES:
        problem = example.problem() or ("" if cuda else "it needs an arch such as sm_90a")
        if example.folder in wanted and problem:
            left_out[example.package] = problem
        elif example.folder in wanted:
            add(build_example(work / example.folder, example, cuda, scons), folder)
    if "modes" in wanted:
        for path in build_modes(work / "modes", options, scons):
            add(path, folder)
    if "recorded" in wanted and find_spec("triton") is None:
        left_out["triton_program"] = "there is no module triton here"
    elif "recorded" in wanted:
        add(build_recorded(work / "recorded", scons), folder)
    (folder / "left_out.json").write_text(json.dumps(left_out, indent=1) + "\n")
    for package, problem in left_out.items():
        print(f"left out: {package}: {problem}")


def add(source: Path, folder: Path) -> None:
    """Put a package into the folder, without what Python has left in it, or unpack a wheel there."""
    if source.suffix == ".whl":
        with zipfile.ZipFile(source) as wheel:
            wheel.extractall(folder)
    else:
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))


def fresh(folder: Path, name: str, files: Sequence[Path]) -> None:
    """Replace a folder of a project, whose other folders are kept."""
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).mkdir(parents=True)
    for path in files:
        shutil.copy(path, folder / name)


def build_example(folder: Path, example: Example, archs: Sequence[str], scons: Scons) -> Path:
    """Build an example as its README says, for the archs of the GPU."""
    source = ROOT / "examples" / example.folder
    shutil.rmtree(folder / "kernels", ignore_errors=True)
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("build", "__pycache__"))
    words = [f"ARCHS={','.join(archs)}"]
    if example.needs_tilelang:
        words.append(f"TILELANG_PYTHON={os.environ[TILELANG]}")
    scons(folder, words)
    return folder / "build" / example.package


def build_modes(folder: Path, options: argparse.Namespace, scons: Scons) -> list[Path]:
    """Build some kernels of the library in other ways: packages, and the wheels of the split one."""
    known = options.kernels.split(",") if options.kernels else IN_MODES
    kernels = [ROOT / "kernels" / f"{name}.py" for name in IN_MODES if name in known]
    fresh(folder, "kernels", [*kernels, *(ROOT / "kernels").glob("_*.py")])
    shutil.rmtree(folder / "dist", ignore_errors=True)
    targets, archs = options.targets.split(","), options.archs.split(",")
    # Not on the command line, where archs would be those of all packages.
    (folder / "pyproject.toml").write_text(PROJECT.format(targets=json.dumps(targets), archs=json.dumps(archs)))
    cpu = [arch for arch in archs if not arch.startswith(("sm_", "compute_"))]
    (folder / "SConstruct").write_text(MODES.format(ptx=[*cpu, "compute_80"]))
    scons(folder, [".", "wheel"])
    packages = [folder / "build" / name for name in ("kw_compressed", "kw_nvrtc", "kw_ptx")]
    return [*packages, *sorted((folder / "dist").glob("*.whl"))]


def build_recorded(folder: Path, scons: Scons) -> Path:
    """Build the Triton program of this folder, for the calls that were recorded."""
    source = HERE / "triton_program"
    fresh(folder, "kernels", [source / name for name in ("program.py", "_kernels.py", "calls.json")])
    (folder / "SConstruct").write_text(RECORDED)
    (folder / "pyproject.toml").write_text("")
    scons(folder, ["TARGETS=cuda", "ARCHS=sm_90a", "BACKENDS=tvm_ffi"])
    return folder / "build" / "triton_program"
