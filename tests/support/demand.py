"""Programs that compile on demand, each in a process of its own, with a cache folder of the test's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.forked import starter
from support.project import CALLING, WITHOUT_TORCH, Project

READY = "from support import tvm_ready; tvm_ready.prepare(2)\n"
"""The beginning of every fork: so many processes of its own are forks, too."""

WITHOUT_TVM = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "tvm"]:
    del sys.modules[name]
"""

BEGIN = """
import os, sys
import numpy as np, pytest
import kernelwright as kw
array = np.from_dlpack
"""
"""The beginning of every program."""

FILE = """
from kernelwright import grid, kernel
from tvm import te


@kernel(configs=[{{"dtype": "float32"}}, {{"dtype": "float64"}}], outputs=["y"])
def {name}(dtype: str, factor: int = 2):
    {body}
    n = te.var("n")
    x = te.placeholder((n, 4), dtype, name="x")
    y = te.compute((n, 4), lambda i, j: x[i, j] * te.const(factor, dtype), name="y")
    return te.create_prim_func([x, y])
"""


class Demand:
    """What a test compiles on demand.

    Arguments:
        project: the project; its folder is the working folder of the programs.
        cache: the cache folder. The tools were probed already, unless it is told to be left alone.
        probed: whether they were.
    """

    def __init__(self, project: Project, cache: Path | None = None, probed: bool = True) -> None:
        self.project = project
        self.cache = cache or project.folder / "cache"
        if probed:
            self.probe()

    def probe(self) -> None:
        """Have the cache know what the tools are, as after a first compile."""
        from kernelwright.state.own_folder import mark_own

        mark_own(self.cache)
        shutil.copyfile(self.project.tools() / "toolchain.json", self.cache / "toolchain.json")

    def definition(self, name: str, body: str = "") -> Path:
        """Write ``kernels/<name>.py``; its kernel multiplies by a factor."""
        text = FILE.format(name=name, body=textwrap.indent(textwrap.dedent(body), "    ").strip() or "pass")
        return self.project.write(f"kernels/{name}.py", text)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables of the programs: those of the tests, a compiler that remembers, and the cache folder."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("KERNELWRIGHT_") and k != "PYTHONPATH"}
        own = {
            "PATH": f"{self.project.shared}/bin:{os.environ['PATH']}",
            "KERNELWRIGHT_CACHE_DIR": str(self.cache),
            "KERNELWRIGHT_NUM_WORKERS": "2",
        }
        return kept | own | dict(more or {})

    def run(
        self, code: str, *, env: Mapping[str, str] | None = None, tvm: bool = True, ok: bool = True, forks: int = 2
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in a fork of a process that has imported NumPy and TVM; what it wrote to both streams.

        Arguments:
            env: variables that it has besides.
            tvm: whether the program may import TVM itself. Its workers, and what measures, have it in any case.
            ok: whether it is expected to succeed.
            forks: how many of the processes that it starts are forks with TVM as well; later ones import it.
        """
        program = f"{READY.replace('2', str(forks))}{'' if tvm else WITHOUT_TVM}{BEGIN}\n{textwrap.dedent(code)}"
        modules = ("support.tvm_ready", *CALLING)
        done = starter(*modules).run(program, env=self.environment(env), cwd=self.project.folder)
        text = f"{numbered(program)}\nended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert (done.returncode == 0) == ok, text
        return done

    def start(self, arguments: Sequence[str | Path], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start Python with some arguments; it has no PyTorch, and leads a group of processes."""
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=self.project.folder,
            env=self.environment(env) | {"PYTHONDONTWRITEBYTECODE": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Whoever runs the tests in the background has it ignored, and so would this process.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def script(self, code: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a script of the project's folder, ``script.py``."""
        return self.start([self.project.write("script.py", f"{WITHOUT_TORCH}{BEGIN}\n{textwrap.dedent(code)}")], env)

    def entries(self) -> int:
        """How many finished stages the cache has."""
        return sum(1 for path in (self.cache / "stages").glob("??/*") if path.is_file())

    def kernels(self) -> list[str]:
        """The folders of compiled kernels."""
        return sorted(path.name for path in (self.cache / "kernels").glob("*"))

    def rest(self) -> list[str]:
        """What should not be there when nobody compiles: scratch folders and locks."""
        return sorted(
            str(path.relative_to(self.cache)) for top in ("scratch", "locks") for path in (self.cache / top).glob("*")
        )


def numbered(program: str) -> str:
    """A program with the numbers of its lines."""
    return "\n".join(f"{number:4} {line}" for number, line in enumerate(program.splitlines(), 1))
