"""Tiny projects in folders of their own, real ``scons`` runs in them, and what the projects of a test run share."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.forked import starter

CACHE_DIR = "KERNELWRIGHT_CACHE_DIR"


ROOT = Path(__file__).resolve().parents[2]


SITE_SCONS = ROOT / "site_scons"


SCONSTRUCT = """\
from kernelwright.scons import generate
env = Environment(tools=[generate])
package = env.KernelPackage("demo", env.Glob("kernels/*.py"))
env.Default(package)
"""


NO_TOOLS = """\
from kernelwright.processes import pool, runner
from kernelwright.toolchain import probe

def refuse(*arguments, **options):
    raise RuntimeError("a worker or a compiler is started, or nvcc is probed")

pool.ForkServer = probe.probe_nvcc = runner.ToolRunner.run = refuse
"""
"""The begin of a build file that starts no worker and no compiler, and does not probe nvcc."""


# `FACTOR` and `TYPES` are replaced by tests that edit the definition.
SCALE = '''\
from kernelwright import grid, kernel
from tvm.script import tirx as T


@kernel(configs=grid(dtype=["float32", "float16"]), outputs=["y"])
def scale(dtype: str):
    """y[i] = 2 x[i]"""

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), dtype)
        y = T.match_buffer(y_handle, (n,), dtype)
        for i in T.parallel(n):
            with T.sblock("y"):
                j = T.axis.spatial(n, i)
                y[j] = x[j] * T.cast(2.0, dtype)

    return main


@scale.reference
def _(x):
    return x * 2
'''


ADD = '''\
from kernelwright import kernel
from tvm import te


@kernel(outputs=["y"])
def add_one():
    """y = x + 1, x: [n, 4] float32"""
    n = te.var("n")
    x = te.placeholder((n, 4), "float32", name="x")
    return te.create_prim_func([x, te.compute((n, 4), lambda i, j: x[i, j] + 1.0, name="y")])


@add_one.reference
def _(x):
    return x + 1
'''


# A kernel with a backward kernel.
CUBE = '''\
from kernelwright import grid, kernel
from tvm import te


@kernel(configs=grid(dtype=["float32", "float64"]), outputs=["y"], targets=["llvm"])
def cube(dtype: str):
    """y = scale * x**3 * w"""
    n = te.var("n")
    x = te.placeholder((n, 4), dtype, name="x")
    w = te.placeholder((4,), dtype, name="w")
    scale = te.var("scale", "float32")
    value = scale.astype(dtype)
    y = te.compute((n, 4), lambda i, j: value * x[i, j] * x[i, j] * x[i, j] * w[j], name="y")
    return te.create_prim_func([x, w, scale, y])


@cube.reference
def _(x, w, scale):
    return scale * x**3 * w


@cube.backward(outputs=["grad_x", "grad_w"])
def _(dtype: str):
    """The gradients of x and w."""
    n = te.var("n")
    x = te.placeholder((n, 4), dtype, name="x")
    w = te.placeholder((4,), dtype, name="w")
    y = te.placeholder((n, 4), dtype, name="y")
    grad = te.placeholder((n, 4), dtype, name="grad_y")
    scale = te.var("scale", "float32")
    value = scale.astype(dtype) * te.const(3, dtype)
    grad_x = te.compute((n, 4), lambda i, j: value * x[i, j] * x[i, j] * w[j] * grad[i, j], name="grad_x")
    k = te.reduce_axis((0, n), name="k")
    grad_w = te.compute((4,), lambda j: te.sum(y[k, j] / w[j] * grad[k, j], axis=k), name="grad_w")
    return te.create_prim_func([grad, x, w, y, scale, grad_x, grad_w])


@_.reference
def gradients(grad_y, x, w, y, scale):
    return 3 * scale * x**2 * w * grad_y, (y / w * grad_y).sum(0)


@cube.backward_kernel.inputs
def inputs(rng, n):
    return None if n == 0 else {"w": rng.uniform(1, 2, 4)}
'''


WITHOUT_TORCH = """
import sys
class _WithoutTorch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, _WithoutTorch)
"""
"""The beginning of a program that has no use for it."""


CALLING = ("numpy", "pytest", "support.tvm_ffi_ready")
"""What `forked.starter` imports for programs that call kernels."""


def read_at_start(variables: Iterable[str]) -> bool:
    """Whether a process reads one of these variables when it starts, so that a fork would come too late for it."""
    return any(name.startswith(("PYTHON", "LC_", "LANG", "LD_", "TVM")) for name in variables)


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that one of the processes of a test run makes, and all of them read."""
    base = factory.getbasetemp()
    return once_in(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base, name, make)


def once_in(top: Path, name: str, make: Callable[[Path], None]) -> Path:
    """A folder below ``top`` that the first process that asks for it makes."""
    folder, finished = top / name, top / f"{name}.finished"
    with (top / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder


CROSS = "aarch64-linux-gnu-gcc"
"""GNU's C compiler for the other family of CPUs."""


def make_compiler(folder: Path) -> None:
    """Write ``bin/cc`` and `CROSS`, if there are such compilers, and make the folders of what is compiled once."""
    for name in ("bin", "lowered", "runs", "objects-cc", f"objects-{CROSS}"):
        (folder / name).mkdir()
    for name in ("cc", CROSS):
        real = shutil.which(name)
        if real is not None:
            make_remembering_compiler(real, folder / f"objects-{name}", folder / "bin" / name)


def make_remembering_compiler(real: str | Path, memory: Path, target: Path) -> None:
    """Compile ``remembering_cc.c``.

    Arguments:
        real: the compiler that it asks.
        memory: a folder for what it keeps.
        target: the program to make.
    """
    places = [f'-D{name}="{path}"' for name, path in (("COMPILER", real), ("MEMORY", memory))]
    source = str(ROOT / "tests/standin/remembering_cc.c")
    subprocess.run(["cc", "-O1", "-w", *places, source, "-o", str(target)], check=True)


@dataclass(frozen=True)
class Run:
    """What a ``scons`` run gave."""

    status: int
    output: str

    @property
    def stages(self) -> list[str]:
        """The progress lines, such as ``LOWER scale/dtype-float32 cuda``, sorted."""
        return sorted(f"{a} {b}" for a, b in re.findall(r"^\[ (\w+) \] (.*)$", self.output, re.M))

    @property
    def labels(self) -> dict[str, int]:
        """How many actions of each kind ran."""
        labels = [stage.split()[0] for stage in self.stages]
        return {label: labels.count(label) for label in sorted(set(labels))}

    @property
    def errors(self) -> dict[str, str]:
        """The only error of each kernel, with its place and its remedy."""
        found = re.findall(r"^scons: \*\*\* \[\S+\] (\S+:\d+ (\w+)[/ ].*\n(?:  .*\n)*)", self.output, re.M)
        assert len({name for _, name in found}) == len(found), self.output
        return {name: text for text, name in found}

    @property
    def counts(self) -> tuple[int, int, int]:
        """Built, reused and failed, from the last line."""
        pattern = r"kernelwright: (\d+) built(?: \(\d+ from the cache\))?, (\d+) reused, (\d+) failed in "
        match = re.search(pattern, self.output)
        assert match, self.output
        return int(match[1]), int(match[2]), int(match[3])


class Project:
    """A project in a folder of its own."""

    shared: Path
    """Where built projects are kept for other tests of the run."""
    imported: tuple[str, ...] = ("support.scons_start",)
    """What the process has imported that runs of ``scons`` are forks of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, folder: Path, settings: str, **kernels: str) -> Project:
        """A project of the package ``demo``.

        Arguments:
            settings: the text of pyproject.toml.
            kernels: name of a file in the folder of the kernels, without its ending -> its text.
        """
        project = cls(folder)
        project.write("SConstruct", SCONSTRUCT)
        project.write("pyproject.toml", settings)
        for name, text in kernels.items():
            project.write(f"kernels/{name}.py", text)
        return project

    def copied(self, folder: Path) -> Project:
        """A copy of the project, as it is, in a folder that is not there yet."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Project(folder)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def replace(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def scons(
        self, *arguments: str, env: dict[str, str] | None = None, ok: bool | None = True, fresh: bool = False
    ) -> Run:
        """Run ``scons`` in the project.

        Arguments:
            env: variables that it has besides those of the tests. With one that is read at the start it is no fork.
            ok: whether it is expected to succeed; None: it may do either.
            fresh: whether it has an interpreter of its own from the start, and is no fork, see ``scons_start``; and
                whether it has to find out what the tools are.
        """
        command = [sys.executable, "-m", "SCons", *arguments]
        variables = self.variables(env)
        if not fresh:
            self.know_tools(*arguments)
        if fresh or read_at_start(env or ()):
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=600,
            )
        else:
            program = "from support import scons_start; scons_start.main()"
            done = starter(*self.imported).run(program, *arguments, env=variables, cwd=self.folder, merged=True)
        assert ok is None or (done.returncode == 0) == ok, f"{command} ended with {done.returncode}\n{done.stdout}"
        assert "Traceback (most recent call last)" not in re.sub(r"^ {4}.*$", "", done.stdout, flags=re.M), done.stdout
        return Run(done.returncode, done.stdout)

    def start(self, *arguments: str, command: tuple[str, ...] = (), **options: Any) -> subprocess.Popen[str]:
        """Start ``scons`` in a process group of its own; ``command`` is what starts it."""
        self.know_tools(*arguments)
        with_streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options
        words = [*command, sys.executable, "-m", "SCons", *arguments]
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # Whoever runs the tests in the background has it ignored, and so would this process.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **with_streams,
        )

    def kernelwright(self, *arguments: str | Path, status: int = 0) -> str:
        """What ``kernelwright`` prints in the project, in a fork; ``status`` is the one that it is expected to have."""
        program = "import sys; from kernelwright.cli import main; sys.exit(main(sys.argv[1:]))"
        done = starter("support.scons_start").run(
            program, *arguments, env=self.variables(), path=[SITE_SCONS], cwd=self.folder, merged=True
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def variables(self, env: dict[str, str] | None = None) -> dict[str, str]:
        """The environment of a run: that of the tests, with their C compiler, and what is given."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith("KERNELWRIGHT_")}
        variables |= {"PYTHONPATH": str(SITE_SCONS), "PATH": f"{self.shared}/bin:{os.environ['PATH']}"}
        return variables | {CACHE_DIR: os.environ[CACHE_DIR]} | (env or {})

    def know_tools(self, *arguments: str) -> None:
        """Have a first run with these arguments know what the tools are, as later ones do."""
        state = self.folder / "build/.kernelwright"
        if not os.path.lexists(state.parent):
            compiler = re.search(r"^HOST_COMPILER=(/.*)$", "\n".join(arguments), re.M)
            shutil.copytree(self.tools(compiler[1] if compiler else ""), state)

    def tools(self, compiler: str = "") -> Path:
        """A folder with what a build keeps of its tools, made once for each C compiler; empty: that of the tests."""
        name = f"tools{hashlib.sha256(compiler.encode()).hexdigest() if compiler else ''}"
        return once_in(self.shared, name, lambda folder: self._find_tools(folder, compiler))

    def _find_tools(self, folder: Path, compiler: str) -> None:
        """Write what the tools are and, for the C compiler of the tests, what CUDA's headers leave."""
        from kernelwright import frontends
        from kernelwright.core.errors import KernelwrightError
        from kernelwright.define.settings import Settings
        from kernelwright.toolchain.probe import Toolchain

        tools = Toolchain(folder / "toolchain.json", {"PATH": f"{self.shared}/bin:{os.environ['PATH']}"})
        with contextlib.suppress(KernelwrightError):  # whoever needs what is missing is told so
            tools.lowerer()
            for name in frontends.names():
                frontends.get(name).tool(tools, Settings())
            host_compiler = tools.host_compiler(compiler)
            tools.nvcc_programs(tools.nvcc("", host_compiler), host_compiler)
            if not compiler:
                with tempfile.TemporaryDirectory(dir=self.shared) as top:
                    project = new_project(Path(top))
                    state = project.folder / "build/.kernelwright"
                    shutil.copytree(folder, state)
                    project.scons("-j2")
                    (state / "headers").rename(folder / "headers")

    def built(self, *arguments: str, ok: bool = True) -> Run:
        """As ``scons``, for a first build: of equal projects one is built in a test run and the others are copies."""
        sources = self.files(".")
        assert not any(name.startswith("build/") for name in sources), "built() is for the first build of a project"
        key = hashlib.sha256(repr((sources, arguments)).encode()).hexdigest()

        def build(folder: Path) -> None:
            original = Project(Path(shutil.copytree(self.folder, folder / "project", symlinks=True)))
            run = original.scons(*arguments, ok=ok)
            (folder / "run.json").write_text(json.dumps([run.status, run.output]))

        made = once_in(self.shared, key, build)
        shutil.copytree(made / "project", self.folder, symlinks=True, dirs_exist_ok=True)
        status, output = json.loads((made / "run.json").read_text())
        assert (status == 0) == ok, output
        return Run(status, output.replace(str(made / "project"), str(self.folder)))

    def python(self, code: str, *, env: dict[str, str] | None = None) -> str:
        """Run Python with the build folder as the only addition to its path; its output.

        It is a fork of a process that has imported NumPy, tvm-ffi and, if the program uses them, PyTorch and Triton,
        unless its start or what is imported matters. tvm-ffi imports PyTorch where that is installed, which takes two
        seconds: only for those who use it.
        """
        given = {"PYTHONPATH": "build"} | (env or {})
        variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | given
        program = textwrap.dedent(code)
        # Triton's interpreter is chosen when it is imported.
        names = ("torch",) if "TRITON_INTERPRET" in given else ("torch", "triton")
        first = tuple(name for name in names if name in program and importlib.util.find_spec(name))
        at_start = read_at_start(given.keys() - {"PYTHONPATH", "LD_LIBRARY_PATH"})
        if not at_start and not re.search(r"jax|sys\.m|subprocess|fork", program):
            path = ["", *given["PYTHONPATH"].split(os.pathsep)]
            ready = starter(*first, *CALLING, library_path=given.get("LD_LIBRARY_PATH", ""))
            done = ready.run(program, env=variables, path=path, cwd=self.folder, merged=True)
        else:
            done = subprocess.run(
                [sys.executable, "-c", program if first else WITHOUT_TORCH + program],
                cwd=self.folder,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
            )
        assert done.returncode == 0, done.stdout
        return done.stdout

    @property
    def manifest(self) -> dict[str, Any]:
        """What the built package ``demo`` says of itself."""
        return dict(json.loads((self.folder / "build/demo/manifest.json").read_text()))

    def value(self, kernel: str = "scale", shape: tuple[int, ...] = (1,)) -> float:
        """What a kernel of the built package ``demo`` makes out of ones."""
        return float(
            self.python(
                f"import numpy as np, demo; print(np.from_dlpack(demo.{kernel}(np.ones({shape}, 'f4'))).flat[0])"
            )
        )

    def files(self, *under: str) -> dict[str, bytes]:
        """Content of every file below some folders, by relative path."""
        paths = (p for top in under for p in sorted((self.folder / top).rglob("*")) if p.is_file())
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in paths if "__pycache__" not in p.parts}


def new_project(folder: Path) -> Project:
    """A project with two small kernels for the CPU and one GPU arch."""
    settings = '[tool.kernelwright]\ntargets = ["llvm", "cuda"]\narchs = ["x86-64-v3", "sm_80"]\n'
    return Project.of(folder, settings, scale=SCALE, add_one=ADD)
