"""The processes of a walk that call kernels: those of a package, and those that compile on demand."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

from support.demand import BEGIN, READY
from support.forked import Starter

READY_MODULES = ("support.tvm_ready", "numpy", "pytest", "support.tvm_ffi_ready")

NUMBERS = r"""
import re, traceback
def x_of(name):
    return np.arange(8, dtype="float64")[::2] if name.startswith("strided") else np.arange(4, dtype="float64")

def number_of(make):
    try:
        return make()
    except kw.KernelwrightError as error:
        return f"error: {error}"
    except BaseException:
        return "defect: " + traceback.format_exc()

def added(kernel, x):
    difference = array(kernel(x)) - x
    assert (difference == difference[0]).all(), difference
    return int(difference[0])

def in_ptx(kernel, arch):
    text = kernel.source("ptx", arch)
    found = re.findall(r"add\.s32\s+%r\d+, %r\d+, (\d+);", text)
    return int(found[-1]) if found else 0

held = []

def compiled(definition, arch, x):
    kernel = definition().using(archs=[arch]).compile() if arch else definition().compile()
    number = (lambda: in_ptx(kernel, arch)) if arch else (lambda: added(kernel, x))
    kind = ("ptx", arch) if arch else ("tir",)
    held.append((kernel, number, number(), kernel.source(*kind), kind))
    return held[-1][2]

def source_of(kernel, kind):
    try:
        return kernel.source(*kind)
    except kw.KernelwrightError as error:  # if somebody has emptied the cache, it says so
        assert "compile it again" in str(error), error
        return None

def of_held():
    for kernel, number, before, text, kind in held[-20:]:
        source = source_of(kernel, kind)
        if source not in (None, text):
            return f"an object that adds {before} shows other code: {source}, and not {text}"
        if kind == ("tir",) and number() != before:
            return f"an object that has added {before} adds {number()}"

def numbers_of(definition, arch="", x=x_of("")):
    if arch:
        return {"compile": number_of(lambda: compiled(definition, arch, x))}
    return {
        "call": number_of(lambda: added(definition(), x)),
        "compile": number_of(lambda: compiled(definition, arch, x)),
        "call again": number_of(lambda: added(definition(), x)),
    }
"""
"""What a process does that compiles on demand: how much each kernel adds, or what fails."""

IN_FRESH = (
    READY
    + BEGIN
    + NUMBERS
    + """
import json
found = {}
for name, file, arch in json.loads(sys.argv[1]):
    found[name] = numbers_of(lambda: getattr(kw.load(file), name), arch, x_of(name))
print("found", json.dumps(found))
"""
)
"""A process that loads definitions and ends."""

IN_KEPT = (
    READY
    + BEGIN
    + NUMBERS
    + r"""
import importlib.util, json, linecache, signal
signal.alarm(0)
loaded, cells, modules = {}, {"__name__": "__main__", "kw": kw, "np": np}, 0

def imported_from(path):
    name = "kept_" + str(len(loaded))
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    folder, before, known = os.path.dirname(path), list(sys.path), set(sys.modules)
    sys.path[:0] = [folder, os.path.dirname(folder)]
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
        repository = os.path.dirname(os.path.dirname(folder))
        for other in set(sys.modules) - known - {name}:  # another checkout has modules of these names as well
            if str(getattr(sys.modules[other], "__file__", "")).startswith(repository):
                del sys.modules[other]
    return module

def file_of(path, imported):
    if path not in loaded:
        loaded[path] = imported_from(path) if imported else kw.load(path)
    return loaded[path]

def cell(text):
    global modules
    modules += 1
    name = f"/tmp/ipykernel_1/{modules}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), cells)

def answer(request):
    if "cell" in request:
        return number_of(lambda: cell(request["cell"]))
    if "environment" in request:
        os.environ.pop("WALK_DIGIT", None)
        return os.environ.update(request["environment"])
    if "held" in request:
        return number_of(of_held)
    if "file" not in request:
        return numbers_of(lambda: cells[request["name"]])
    name, file, imported = request["name"], request["file"], request["imported"]
    return numbers_of(lambda: getattr(file_of(file, imported), name), request["arch"], x_of(name))

print(os.getpid(), file=open(sys.argv[3], "w"), flush=True)
with open(sys.argv[1]) as requests, open(sys.argv[2], "w") as answers:
    for line in requests:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()
"""
)
"""A process that lives on, and answers requests."""

IN_PACKAGE = (
    BEGIN.replace("import kernelwright as kw", "import demo as kw")
    + NUMBERS
    + """
import json
print(json.dumps({name: added(getattr(kw, name), x_of(name)) for name in names}))
"""
)
"""What the kernels of a package add; ``names`` has theirs."""


CELL_KERNEL = """
from tvm import te

@kw.kernel(outputs=["y"], targets=["llvm"])
def in_cell():
    x = te.placeholder((te.var("n"),), "float64", name="x")
    offset = te.const({offset}, "float64")
    return te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] + offset, name="y")])
"""


class WalkError(Exception):
    """Something that must hold did not: what has seen it, what was wrong, and after how many steps."""

    def __init__(self, look: str, message: str, steps: int = 0) -> None:
        super().__init__(message)
        self.look, self.steps = look, steps

    def __str__(self) -> str:
        return f"{self.look}: {self.args[0].removeprefix(f'{self.look}: ')}"


class Kept:
    """A process that compiles on demand and lives on; it works in a folder, where its pipes are."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        folder.mkdir()
        names = [str(folder / name) for name in ("requests", "answers", "pid")]
        for name in names:
            os.mkfifo(name)
        self._thread = threading.Thread(target=self._run, args=(names, environment, folder), daemon=True)
        self._thread.start()
        self.pid = int(Path(names[2]).read_text())
        self._requests: IO[str] = Path(names[0]).open("w")  # noqa: SIM115 (until it ends)
        self._answers: IO[str] = Path(names[1]).open()  # noqa: SIM115
        self.ended: subprocess.CompletedProcess[str] | None = None

    def _run(self, names: list[str], environment: dict[str, str], folder: Path) -> None:
        self.ended = _long_lived().run(IN_KEPT, *names, env=environment, cwd=folder)

    def ask(self, **request: object) -> Any:
        """What it answers."""
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        line = self._answers.readline()
        if not line:
            self._thread.join()
            raise WalkError("kept", f"the process has ended: {self.ended and self.ended.stderr}")
        return json.loads(line)

    def end(self, kill: bool = False) -> None:
        """End it, and wait for its end."""
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._thread.join()
        self._answers.close()


_STARTERS: list[Starter] = []


def _long_lived() -> Starter:
    """What is forked for processes that live on; others are forked meanwhile."""
    if not _STARTERS:
        _STARTERS.append(Starter(READY_MODULES))
    return _STARTERS[0]
