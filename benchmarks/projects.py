"""The projects that are measured: a copy of this repository's library, and generated ones of any number of kernels."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .harness import CHILDREN, ROOT, Bench, BenchmarkError, Finished, run
from .measured import Measured, run_scons

STANDIN = Path(__file__).resolve().parent / "standin.c"
PARTS = (
    "bin/nvcc.profile",
    "bin/ptxas",
    "bin/cudafe++",
    "bin/fatbinary",
    "nvvm/bin/cicc",
    "nvvm/libdevice/libdevice.10.bc",
    "include/cuda_runtime_api.h",
    "include/cuda_fp16.hpp",
    "include/cuda_bf16.hpp",
    "include/cuda_fp8.hpp",
)
"""Files beside an nvcc whose times each run of scons looks at; the stand-in has them too, empty."""

SCONSTRUCT = """\
from kernelwright.scons import generate

env = Environment(tools=[generate])
# The stand-in for the C compiler has no C library.
env.Default(env.KernelPackage("many", env.Glob("kernels/*.py"), glibc=""))
"""

DEFINITION = '''\
from kernelwright import kernel
from tvm import te


@kernel(outputs=["y"])
def {name}():
    """y = 2 x + a constant"""
    n = te.var("n")
    x = te.placeholder((n,), "float32", name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] * 2.0 + {constant:.1f}, name="y")])
'''


WITHOUT_TORCH = """\
import runpy, sys
sys.modules["torch"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program as if PyTorch were not installed."""


@dataclass(frozen=True)
class Project:
    """A project that scons builds.

    Arguments:
        folder: with the SConstruct.
        package: import name of its package.
        site_scons: the measured code.
    """

    folder: Path
    package: str
    site_scons: Path

    @property
    def kernels(self) -> Path:
        """The folder with each kernel's intermediate files."""
        return self.folder / "build" / "kernels" / self.package

    def scons(self, *arguments: str) -> Finished:
        """Run scons as a user would, and say what the process used."""
        command = [sys.executable, "-m", "SCons", "-Q", *arguments]
        return run(command, self.folder, {"PYTHONPATH": str(self.site_scons)})

    def measured_scons(self, *arguments: str, count: bool = False) -> Measured:
        """Run scons, and say as well what it used itself, and how many nodes it made if ``count``."""
        return run_scons(self.folder, self.site_scons, arguments, count)

    def python(self, code: str, *arguments: str) -> Finished:
        """Run Python with the built package on its path, and nothing else of ours."""
        return run([sys.executable, "-c", code, *arguments], self.folder, {"PYTHONPATH": str(self.folder / "build")})

    def remove_outputs(self) -> None:
        """Remove what builds leave."""
        shutil.rmtree(self.folder / "build", ignore_errors=True)
        for file in self.folder.glob(".sconsign*"):
            file.unlink()

    def build(self, jobs: int) -> Finished:
        """Bring it up to date, without any cache outside of it."""
        return self.scons(f"-j{jobs}", "--cache-disable")

    def build_anew(self, jobs: int) -> Finished:
        """Build it from nothing."""
        self.remove_outputs()
        return self.build(jobs)

    def do_nothing(self) -> Finished:
        """Run scons where everything is built.

        Raises:
            BenchmarkError: something was built.
        """
        done = self.scons()
        if "0 built" not in done.output:
            raise BenchmarkError(f"a build with nothing to do has built something\n{done.output}")
        return done

    @property
    def left(self) -> list[Path]:
        """What builds leave."""
        return [self.folder / "build", *self.folder.glob(".sconsign*")]

    def use(self, *kernels: str) -> Finished:
        """Import the built package in a new process, and get hold of all variants of some kernels.

        PyTorch is hidden from it, because tvm-ffi would import it where it is installed.
        """
        return self.python(WITHOUT_TORCH, str(CHILDREN / "use_package.py"), self.package, *kernels)


def example_folder(bench: Bench, name: str) -> Path:
    """Where :func:`example` puts an example."""
    return bench.work / f"example-{name}"


def example(bench: Bench, name: str, package: str) -> Project:
    """A fresh copy of one of the folders in ``examples/``, without what builds and environments have left there."""
    folder = example_folder(bench, name)
    shutil.rmtree(folder, ignore_errors=True)
    left = shutil.ignore_patterns("build", ".venv", "tilelang", "__pycache__", ".sconsign*")
    shutil.copytree(ROOT / "examples" / name, folder, ignore=left)
    return Project(folder, package, bench.site_scons)


def library(bench: Bench, name: str = "library", source: Path = ROOT, site_scons: Path | None = None) -> Project:
    """A copy of this repository's library with the SConstruct and settings; in small mode one kernel of it.

    Arguments:
        name: of its folder.
        source: the repository, or what another commit has in its place.
        site_scons: the code that builds it, if it is not the measured code.
    """
    folder, code = bench.work / (f"{name}-small" if bench.small else name), site_scons or bench.site_scons
    names = ("saxpy.py", "_*.py") if bench.small else ("*.py",)
    kernels = [file for name in names for file in sorted((source / "kernels").glob(name))]
    others = [source / "SConstruct", source / "pyproject.toml"]
    state = _digest([*kernels, *others, *sources_of(code)])
    if not _is_ready(folder, state):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "kernels").mkdir(parents=True)
        for file in kernels:
            shutil.copy(file, folder / "kernels")
        shutil.copytree(code, folder / "site_scons")
        for file in others:
            shutil.copy(file, folder)
        (folder / "ready").write_text(state)
    return Project(folder, "kw_kernels", folder / "site_scons")


def built_library(bench: Bench) -> Project:
    """The same, built."""
    return built(bench, library(bench))


def built(bench: Bench, project: Project) -> Project:
    """A project that is built, if it is not yet."""
    if not (project.folder / "build" / project.package / "manifest.json").exists():
        bench.say(f"building {project.folder.name}")
        project.build(bench.jobs)
    return project


def generated(bench: Bench, count: int) -> Project:
    """A project with that many different small kernels, for x86-64-v3 and sm_90a, built with stand-in compilers.

    A project that an earlier benchmark has left in the work folder is used again.
    """
    project = Project(bench.work / f"kernels-{count}", "many", bench.site_scons)
    standin = stand_in(bench)
    state = _digest(sources_of(bench.site_scons))
    if not _is_ready(project.folder, state):
        bench.say(f"building a project of {count} kernels, with stand-ins for the compilers")
        write_generated(project.folder, count, standin)
        project.build(bench.jobs)
        project.scons()  # where a second run has something left to do, it is not what is measured
        (project.folder / "ready").write_text(state)
    return project


def definition(project: Project, number: int) -> Path:
    """The file of one kernel of a generated project."""
    return project.folder / "kernels" / f"k{number:04}.py"


def write_definition(project: Project, number: int, constant: float) -> None:
    """Write the file of one kernel of a generated project."""
    name = f"k{number:04}"
    definition(project, number).write_text(DEFINITION.format(name=name, constant=constant))


def write_generated(folder: Path, count: int, standin: Path) -> None:
    """Write a project of that many different small kernels, which stand-in compilers build."""
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    (folder / "SConstruct").write_text(SCONSTRUCT)
    (folder / "pyproject.toml").write_text(
        '[tool.kernelwright]\ntargets = ["llvm", "cuda"]\narchs = ["x86-64-v3", "sm_90a"]\n'
        f'nvcc = "{standin}/bin/nvcc"\nhost_compiler = "{standin}/bin/cc"\n'
    )
    for number in range(count):
        write_definition(Project(folder, "", folder), number, number)


def stand_in(bench: Bench) -> Path:
    """The folder of the stand-in compilers ``bin/nvcc`` and ``bin/cc``, made at the first call."""
    top = bench.work / "standin"
    if (top / "bin" / "cc").exists():
        return top
    for part in PARTS:
        (top / part).parent.mkdir(parents=True, exist_ok=True)
        (top / part).touch()
    run(["cc", "-O2", "-o", top / "bin" / "nvcc", STANDIN], bench.work)
    shutil.copy2(top / "bin" / "nvcc", top / "bin" / "cc")
    (top / "bin" / "cc.launcher").write_text(tool_path(bench.site_scons, "cc") + "\n")
    return top


@contextlib.contextmanager
def real_compilers(bench: Bench) -> Iterator[None]:
    """In this context the stand-ins run the real compilers, and still say that they are the same tools."""
    folder = stand_in(bench) / "bin"
    try:
        for name in ("nvcc", "cc"):
            (folder / f"{name}.real").write_text(tool_path(bench.site_scons, name) + "\n")
        yield
    finally:
        for file in folder.glob("*.real"):
            file.unlink()


def tool_path(site_scons: Path, name: str) -> str:
    """What ``kernelwright tool NAME`` says."""
    command = [sys.executable, "-m", "kernelwright", "tool", name]
    path = run(command, site_scons, {"PYTHONPATH": str(site_scons)}).output.strip()
    if not Path(path).exists():
        raise BenchmarkError(f"kernelwright tool {name} says {path!r}, which does not exist")
    return path


def sources_of(site_scons: Path) -> list[Path]:
    """The files that the measured code consists of."""
    return [file for file in sorted(site_scons.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]


def _is_ready(folder: Path, state: str) -> bool:
    """Whether a project is there and was made from the same files."""
    ready = folder / "ready"
    return ready.exists() and ready.read_text() == state


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
