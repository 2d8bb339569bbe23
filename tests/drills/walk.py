"""Random walks of edits, damage and kills, after each of which a build or a call gives what it gives from nothing.

    python tests/drills/walk.py [--steps 1000] [--seed 1] [--length 25] [--replay FILE]

A walk has a random project of two or three tiny kernels (`walk_project`), in two checkouts that share their caches.
Each step does something to one of them: an edit that keeps size and time, a file that shadows another, a revert, damage
of an output or a cache, a killed build. Then some of these look at it, which the step names too:

- ``scons``: every file of the package is that of a clean build of the same tree in another folder, without caches. It
  fails if and only if the clean one does, and so does ``scons check``;
- ``fresh``: a new process that compiles on demand: calls and ``compile()`` give the number that the model of the
  project has. Of kernels for GPUs, the PTX has it;
- ``kept``: the same for a process that lives on, has loaded or imported the definitions, and has called them before;
- ``held``: kernels that this process has compiled earlier, and that are what they were;
- ``cells``: definitions in the cells of a notebook in that process, whose globals other cells bind anew.

If something else comes out, steps, kernels and looks are left out as long as it still does, and what is left is printed
with the command that repeats it. With the same seed a walk has the same steps.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests"))

from support.forked import starter  # noqa: E402
from support.project import CACHE_DIR, Project, make_compiler  # noqa: E402 (it is below that folder)
from walk_cells import CELLS, Cell  # noqa: E402
from walk_demand import CELL_KERNEL, IN_FRESH, IN_PACKAGE, READY_MODULES, Kept, WalkError  # noqa: E402
from walk_project import REFERENCE, SETTINGS, Checkout, Content, Kernel, Model, difference, number_of, random_model  # noqa: E402

LOOKS = ("scons", "fresh", "kept", "cells", "held")
"""What looks at a checkout after a step."""

SAME_TIME = "same time"
"""How a file is edited that keeps its time of modification."""

TEXTS = (".tir", ".ptx", ".cu")
"""Texts that ``source()`` shows as they are in the cache, damaged or not; no code is made of them."""

WORDS = ("-Q", "-j2")


@dataclass(frozen=True)
class Step:
    """A method of `Walk` with its arguments for one of the checkouts, and what looks at that afterwards.

    What it means depends on nothing but the project, so that other steps may be left out.
    """

    kind: str
    at: int
    arguments: tuple[int | str, ...]
    looks: tuple[str, ...]

    def __str__(self) -> str:
        return json.dumps([self.kind, self.at, list(self.arguments), list(self.looks)])

    @staticmethod
    def read(line: str) -> Step:
        """The step of a line."""
        kind, at, arguments, looks = json.loads(line)
        return Step(kind, at, tuple(arguments), tuple(looks))


@dataclass(frozen=True)
class Plan:
    """A walk: all that it does follows from this."""

    seed: int
    model: Model
    cells: tuple[str, ...]
    """The sources of the kernel in the notebook."""

    caches: str
    """Whether the checkouts share the build cache, a remote one, or neither."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        kernels = [[kernel.name, kernel.language, list(kernel.sources)] for kernel in self.model.kernels]
        return "\n".join(
            [json.dumps([self.seed, kernels, list(self.cells), self.caches, self.model.strict]), *map(str, self.steps)]
        )

    @staticmethod
    def read(text: str) -> Plan:
        """The plan of a text that was printed."""
        first, *steps = text.strip().splitlines()
        seed, kernels, cells, caches, strict = json.loads(first)
        model = Model(tuple(Kernel(name, language, tuple(sources)) for name, language, sources in kernels), strict)
        return Plan(seed, model, tuple(cells), caches, tuple(map(Step.read, steps)))


WEIGHTS = {
    **{"edit": 30, "pad": 4, "remove": 8, "restore": 14, "swap": 8, "move_file": 4, "revert": 6, "pull": 5},
    **{"bytecode": 3, "wrong_reference": 2, "damage": 8, "lose": 3, "kill": 5, "move": 2, "clean": 1, "check": 4},
    **{"restart": 3, "together": 4, "cell": 12},
}
"""Kind of a step -> how often it comes."""

DAMAGED = ("build/demo", "build/kernels", "build/.kernelwright", "shared cache", "on-demand cache", "remote cache")
LOST = ("build", "build/.kernelwright", "build/.kernelwright/cache", "shared cache", "on-demand cache", "remote cache")


def random_plan(seed: int, length: int, leave_out: frozenset[str] = frozenset()) -> Plan:
    """The walk of a seed."""
    chosen = random.Random(seed)
    model = random_model(chosen, leave_out)
    known = [name for name in CELLS if name not in leave_out]
    cells = tuple(chosen.sample(known, min(4, len(known))))
    caches = chosen.choice(("own", "shared", "remote"))
    kinds = {kind: weight for kind, weight in WEIGHTS.items() if kind not in leave_out}
    if not cells:
        kinds.pop("cell", None)
    steps = []
    for _ in range(length):
        kind = chosen.choices(list(kinds), list(kinds.values()))[0]
        step = _random_step(chosen, kind, model, cells)
        looks = tuple(look for look in step.looks if look not in leave_out) or ("scons",)
        step = dataclasses.replace(step, looks=looks)
        if SAME_TIME in leave_out:
            step = dataclasses.replace(step, arguments=tuple("now" if a == SAME_TIME else a for a in step.arguments))
        steps.append(step)
    return Plan(seed, model, cells, caches, tuple(steps))


def _random_step(chosen: random.Random, kind: str, model: Model, cells: Sequence[str]) -> Step:
    place, number = chosen.choice(model.places[:-1]), chosen.randrange(1000)
    swaps = model.swaps()
    one, other = chosen.choice(swaps) if swaps else ("", "")
    arguments: dict[str, tuple[int | str, ...]] = {
        "edit": (place, chosen.randrange(1, 10), chosen.choice(("now", SAME_TIME, SAME_TIME))),
        "pad": (place,),
        "remove": (place,),
        "restore": (number, chosen.randrange(10)),
        "swap": (one, other),
        "move_file": (one, other),
        "revert": (number, chosen.choice(("now", SAME_TIME))),
        "wrong_reference": (chosen.randrange(2),),
        "damage": (chosen.choice(DAMAGED), number, chosen.choice(("flip", "cut", "empty", "remove"))),
        "lose": (chosen.choice(LOST),),
        "kill": (chosen.randrange(1, 9),),
        "cell": (chosen.choice(cells or ("",)), chosen.randrange(1, 10), number),
        "restart": (chosen.choice(("end", "kill")),),
    }
    looks = ("cells",) if kind == "cell" else tuple(look for look in LOOKS if chosen.random() < 0.5)
    return Step(kind, chosen.randrange(2), arguments.get(kind, ()), looks or ("scons",))


KILLED = """
import os, sys
left = int(sys.argv.pop())
reading, writing = os.pipe()
child = os.fork()
if not child:
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(writing)
    os.close(reading)
    from support import scons_start
    scons_start.main()
    os._exit(0)
os.close(writing)
for line in os.fdopen(reading):
    print(line, end="")
    if line.startswith("[ "):
        left -= 1
        if not left:
            os.kill(child, 9)
os.waitpid(child, 0)
"""
"""``scons``, which is killed when it has shown so many stages; this goes on until its last process has ended."""


@dataclass(frozen=True)
class Clean:
    """What a clean build gives: whether it fails, and path in the package -> SHA-256."""

    fails: bool
    files: dict[str, str]


class CleanBuilds:
    """Clean builds of trees, each made once, one after the other in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Clean] = {}
        self.count = 0

    def of(self, checkout: Checkout) -> Clean:
        """That of what a checkout is to have.

        Raises:
            WalkError: it does not give what the model of the project has.
        """
        files = checkout.model.files(checkout.state)
        content = sorted(files.items()), checkout.model.environment(checkout.state)
        key = hashlib.sha256(repr(content).encode()).hexdigest()
        if key not in self._known:
            self._known[key] = self._build(checkout)
            self.count += 1
        return self._known[key]

    def _build(self, checkout: Checkout) -> Clean:
        shutil.rmtree(self._folder, ignore_errors=True)
        copy = Checkout(self._folder, checkout.model)
        copy.become(checkout.state)
        subprocess.run(["git", "init", "-q", self._folder], check=True)
        project = Project(copy.project)
        run = project.scons(*WORDS, env=copy.model.environment(copy.state), ok=None)
        numbers = checkout.model.expected(checkout.state)
        if (run.status != 0) != (None in numbers.values() or not numbers):
            raise WalkError("clean", f"a clean build ended with {run.status}, but {numbers} is right\n{run.output}")
        if run.status == 0:
            self._call(project, copy)
        return Clean(run.status != 0, digests(copy.project / "build/demo"))

    def _call(self, project: Project, copy: Checkout) -> None:
        numbers = copy.model.expected(copy.state)
        names = [kernel.name for kernel in copy.model.kernels if not kernel.is_for_gpus and kernel.file in copy.state]
        found = json.loads(project.python(f"names = {names}\n{IN_PACKAGE}"))
        for kernel in copy.model.kernels:
            if kernel.is_for_gpus and kernel.file in copy.state:
                folder, number = copy.project / "build/kernels/demo" / kernel.name, numbers[kernel.name]
                texts = "".join(path.read_text() for path in folder.rglob("*") if path.suffix in (".ptx", ".ttir"))
                if number and not re.search(rf", {number};|dense<{number}>", texts):
                    raise WalkError("clean", f"{kernel.name} does not add {number} in a clean build")
            elif kernel.name in found and found[kernel.name] != numbers[kernel.name]:
                wrong = difference(kernel.digits(copy.state) or {}, found[kernel.name])
                raise WalkError("clean", f"{kernel.name} is wrong in a clean build: {wrong}")


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of all files in a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


@dataclass
class Tally:
    """What walks came to."""

    steps: Counter[str] = field(default_factory=Counter)
    looks: Counter[str] = field(default_factory=Counter)
    clean: int = 0

    def __str__(self) -> str:
        steps = ", ".join(f"{count} {kind}" for kind, count in self.steps.most_common())
        looks = ", ".join(f"{count} {look}" for look, count in self.looks.most_common())
        return f"walk: {self.steps.total()} steps ({steps}); looked at: {looks}; {self.clean} clean builds"


class Walk:
    """Two checkouts of a random project in a new folder, and what is done to them."""

    def __init__(self, folder: Path, plan: Plan, tally: Tally) -> None:
        folder.mkdir()
        self.folder, self.plan, self.tally = folder, plan, tally
        self._clean = CleanBuilds(folder / "clean")
        chosen = random.Random(plan.seed)
        start = plan.model.start(chosen)
        self._cells = {name: Cell(CELLS[name], chosen.randrange(10)) for name in plan.cells}
        self._checkouts = [Checkout(folder / name, plan.model) for name in ("one", "two")]
        for checkout in self._checkouts:
            checkout.become(start)
            subprocess.run(["git", "init", "-q", checkout.folder], check=True)
        self._moves = 0
        self._kept: Kept | None = None

    # --- What runs

    def words(self) -> list[str]:
        """The words of a run of scons."""
        words = list(WORDS)
        if self.plan.caches != "own":
            words.append(f"CACHE_DIR={self.folder / 'shared'}")
        if self.plan.caches == "remote":
            words += [f"REMOTE_CACHE={self.folder / 'remote'}", "REMOTE_MODE=read-write"]
            words[-3] = "CACHE_DIR=build/.kernelwright/cache"
        if self.plan.model.strict:
            words.append("--strict")
        return words

    @property
    def demand_cache(self) -> Path:
        """The cache of compile on demand."""
        return self.folder / "demand"

    def _scons(self, checkout: Checkout, *more: str) -> Any:
        environment = self._variables(checkout)
        return Project(checkout.project).scons(*self.words(), *more, env=environment, ok=None)

    def _variables(self, at: Checkout) -> dict[str, str]:
        return {"KERNELWRIGHT_CACHE_DIR": str(self.demand_cache), **at.model.environment(at.state)}

    def _environment(self) -> dict[str, str]:
        project = Project(self.folder)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("KERNELWRIGHT_") and k != "PYTHONPATH"}
        if not (self.demand_cache / "toolchain.json").exists():
            from kernelwright.state.own_folder import mark_own

            mark_own(self.demand_cache)
            shutil.copyfile(project.tools() / "toolchain.json", self.demand_cache / "toolchain.json")
        own = {"PATH": f"{project.shared}/bin:{os.environ['PATH']}", "KERNELWRIGHT_CACHE_DIR": str(self.demand_cache)}
        return kept | own | {"KERNELWRIGHT_NUM_WORKERS": "2"}

    def kept(self) -> Kept:
        """The process that lives on."""
        if self._kept is None:
            self._moves += 1
            self._kept = Kept(self.folder / f"kept{self._moves}", self._environment())
            for cell in self._cells.values():
                self._cell(cell.source.bind.format(digit=cell.digit))
            self._cell(self._definition())
        return self._kept

    def _cell(self, text: str) -> None:
        assert self._kept is not None
        if failed := self._kept.ask(cell=text):
            raise WalkError("cells", f"a cell failed: {failed}\n{text}")

    def _definition(self) -> str:
        values = [f"{10**place} * ({cell.source.value})" for place, cell in enumerate(self._cells.values())]
        return CELL_KERNEL.format(offset=" + ".join(values) or "0")

    def close(self) -> None:
        """End what runs."""
        self.tally.clean += self._clean.count
        if self._kept is not None:
            self._kept.end()

    # --- Steps

    def edit(self, at: Checkout, place: str, more: int, how: str) -> None:
        """Another digit in a file; its size stays, and its time, too, if that is asked for."""
        if place in at.state:
            old = at.state[place]
            changed = dataclasses.replace(old, digit=(old.digit + more) % 10)
            at.become({**at.state, place: changed}, how == SAME_TIME)

    def pad(self, at: Checkout, place: str) -> None:
        """A comment, or blanks, in a file."""
        if place in at.state:
            old = at.state[place]
            at.become({**at.state, place: dataclasses.replace(old, padding=(old.padding + 1) % 3)})

    def remove(self, at: Checkout, place: str) -> None:
        """A file that goes."""
        if place != SETTINGS:
            at.become({name: content for name, content in at.state.items() if name != place})

    def restore(self, at: Checkout, number: int, digit: int) -> None:
        """A file that is not there."""
        absent = [place for place in at.model.places if place not in at.state]
        if absent:
            at.become({**at.state, absent[number % len(absent)]: Content(digit)})

    def swap(self, at: Checkout, one: str, other: str) -> None:
        """Two files that are renamed, so that each has the name of the other."""
        if one in at.state and other in at.state:
            for old, new in ((one, f"{one}~"), (other, one), (f"{one}~", other)):
                at.rename(old, new)
            at.state = {**at.state, one: at.state[other], other: at.state[one]}

    def move_file(self, at: Checkout, one: str, other: str) -> None:
        """A file that takes the place of another."""
        if one not in at.state:
            one, other = other, one
        if one in at.state:
            at.rename(one, other)
            state = {**at.state, other: at.state[one]}
            del state[one]
            at.state = state

    def revert(self, at: Checkout, number: int, how: str) -> None:
        """An earlier state of the checkout."""
        at.become(at.history[number % len(at.history)], how == SAME_TIME)

    def pull(self, at: Checkout) -> None:
        """The state of the other checkout."""
        other = next(one for one in self._checkouts if one is not at)
        at.become(other.state)

    def bytecode(self, at: Checkout) -> None:
        """Bytecode beside all modules, as a process leaves it that imports them."""
        compileall = "import compileall, sys; compileall.compile_dir(sys.argv[1], quiet=2)"
        subprocess.run([sys.executable, "-c", compileall, str(at.folder)], check=False)

    def wrong_reference(self, at: Checkout, digit: int) -> None:
        """References that are wrong, or right."""
        at.become({**at.state, REFERENCE: Content(digit)})
        self.check(at)

    def damage(self, at: Checkout, where: str, number: int, how: str) -> None:
        """A file of the outputs or of a cache that becomes another one."""
        folder = self._place(at, where)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "CACHEDIR.TAG")
        if not files:
            return
        path = files[number % len(files)]
        if path.suffix in TEXTS and path.is_relative_to(self.demand_cache / "kernels"):
            return
        content = bytearray(path.read_bytes())
        status = path.stat()
        path.unlink()  # processes that have loaded it keep what they have
        if how == "remove":
            return
        if how == "flip" and content:
            content[number % len(content)] ^= 1 << number % 8
        elif how != "flip":
            del content[len(content) // 2 if how == "cut" else 0 :]
        path.write_bytes(content)
        path.chmod(status.st_mode & 0o777)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def lose(self, at: Checkout, where: str) -> None:
        """A folder of outputs or of a cache that goes."""
        shutil.rmtree(self._place(at, where), ignore_errors=True)

    def _place(self, at: Checkout, where: str) -> Path:
        caches = {
            "shared cache": self.folder / "shared",
            "on-demand cache": self.demand_cache,
            "remote cache": self.folder / "remote",
        }
        return caches.get(where) or at.project / where

    def kill(self, at: Checkout, stages: int) -> None:
        """A build that is killed when it has shown some stages."""
        project = Project(at.project)
        project.know_tools()
        environment = project.variables(self._variables(at))
        starter("support.scons_start").run(KILLED, *self.words(), stages, env=environment, cwd=at.project, merged=True)

    def move(self, at: Checkout) -> None:
        """The folder of the checkout gets another name."""
        self._moves += 1
        at.folder = at.folder.rename(self.folder / f"moved{self._moves}")

    def clean(self, at: Checkout) -> None:
        """``scons -c``."""
        self._scons(at, "-c")

    def check(self, at: Checkout) -> None:
        """``scons check``."""
        run = self._scons(at, "check")
        if (run.status == 0) != at.model.checks(at.state):
            right = "succeed" if at.model.checks(at.state) else "fail"
            raise WalkError("check", f"scons check ended with {run.status} and should {right}\n{run.output}")

    def cell(self, at: Checkout, name: str, more: int, number: int) -> None:
        """A cell that changes a global."""
        if name not in self._cells:
            return
        self.kept()
        cell = self._cells[name]
        cell.digit = (cell.digit + more) % 10
        ways = cell.source.ways
        self._cell(ways[number % len(ways)].format(digit=cell.digit))

    def restart(self, at: Checkout, how: str) -> None:
        """The end of the process that lives on; the next look starts another."""
        if self._kept is not None:
            self._kept.end(kill=how == "kill")
            self._kept = None

    def together(self, at: Checkout) -> None:
        """A build and the process that lives on in one checkout, while a new process compiles in the other."""
        other = next(one for one in self._checkouts if one is not at)
        self._clean.of(at)
        self._environment()
        with ThreadPoolExecutor(3) as threads:
            looks = [("scons", at), ("kept", at), ("fresh", other)]
            for look in [threads.submit(self.look, name, checkout) for name, checkout in looks]:
                look.result()

    # --- Looks

    def look(self, name: str, at: Checkout) -> None:
        """See whether all is right."""
        self.tally.looks[name] += 1
        getattr(self, f"_look_{name}")(at)

    def _look_scons(self, at: Checkout) -> None:
        clean = self._clean.of(at)
        run = self._scons(at)
        if (run.status != 0) != clean.fails:
            raise WalkError("scons", f"a clean build {'fails' if clean.fails else 'succeeds'}\n{run.output}")
        built = digests(at.project / "build/demo")
        if not clean.fails and built != clean.files:
            names = [name for name in {**built, **clean.files} if built.get(name) != clean.files.get(name)]
            raise WalkError("scons", f"differs from a clean build: {', '.join(names)}\n{run.output}")

    def _look_fresh(self, at: Checkout) -> None:
        kernels = [kernel for kernel in at.model.kernels if kernel.file in at.state]
        asked = [(kernel.name, str(at.folder / kernel.file), kernel.arch) for kernel in kernels]
        done = starter(*READY_MODULES).run(
            IN_FRESH, json.dumps(asked), env=self._environment() | self._variables(at), cwd=at.project
        )
        line = next((line for line in done.stdout.splitlines() if line.startswith("found ")), None)
        if line is None:
            raise WalkError("fresh", f"the process ended with {done.returncode}\n{done.stdout}{done.stderr}")
        found = json.loads(line.removeprefix("found "))
        for kernel in kernels:
            self._compare("fresh", kernel, at, found[kernel.name])

    def _look_kept(self, at: Checkout) -> None:
        self.kept().ask(environment=at.model.environment(at.state))
        for number, kernel in enumerate(at.model.kernels):
            if kernel.file not in at.state:
                continue
            imported = bool(number % 2)
            if imported and kernel.expected(at.state) is None:
                continue  # the import itself would fail
            found = self.kept().ask(
                file=str(at.folder / kernel.file), name=kernel.name, imported=imported, arch=kernel.arch
            )
            self._compare("kept", kernel, at, found)

    def _look_cells(self, at: Checkout) -> None:
        found = self.kept().ask(name="in_cell")
        digits = {name: cell.digit for name, cell in self._cells.items()}
        for what, number in found.items():
            if number != number_of(digits):
                raise WalkError("cells", f"{what}: {difference(digits, number)}")

    def _look_held(self, at: Checkout) -> None:
        if wrong := self.kept().ask(held=True):
            raise WalkError("held", wrong)

    def _compare(self, look: str, kernel: Kernel, at: Checkout, found: dict[str, Any]) -> None:
        for what, number in found.items():
            called = "call" in what
            right = kernel.expected(at.state, called)
            if right is None and str(number).startswith("error: "):
                continue
            if number != right:
                wrong = difference(kernel.digits(at.state, called) or {}, number)
                raise WalkError(look, f"{kernel.name}, {what}: {wrong}")

    def run(self) -> None:
        """Do all steps. Raises WalkError where one gives what it should not."""
        try:
            with _explained("the start", -1):
                for name in ("scons", "fresh", "kept", "cells"):
                    self.look(name, self._checkouts[0])
            for number, step in enumerate(self.plan.steps):
                at = self._checkouts[step.at]
                with _explained(step, number):
                    getattr(self, step.kind)(at, *step.arguments)
                    self.tally.steps[step.kind] += 1
                    for name in step.looks:
                        self.look(name, at)
        finally:
            self.close()


@contextlib.contextmanager
def _explained(step: Step | str, number: int) -> Iterator[None]:
    try:
        yield
    except (AssertionError, WalkError) as error:
        look = error.look if isinstance(error, WalkError) else "defect"
        raise WalkError(look, f"{error}\nafter {step}", number + 1) from error


def walked(plan: Plan, tally: Tally, folder: Path) -> WalkError | None:
    """What a walk in a new folder finds wrong first; None: nothing."""
    try:
        Walk(folder, plan, tally).run()
    except WalkError as error:
        return error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


def shrunk(plan: Plan, error: WalkError, folder: Path, most: int = 60) -> tuple[Plan, WalkError]:
    """A smaller walk that fails in the same look, and how.

    Arguments:
        most: how many walks are tried.
    """
    left = most

    def try_plan(smaller: Plan) -> bool:
        nonlocal plan, error, left
        if left <= 0 or smaller == plan:
            return False
        left -= 1
        found = walked(smaller, Tally(), folder)
        if found is None or found.look != error.look:
            return False
        plan, error = dataclasses.replace(smaller, steps=smaller.steps[: found.steps]), found
        return True

    plan = dataclasses.replace(plan, steps=plan.steps[: error.steps])
    # Most faults need the last few steps only.
    for length in (1, 2, 4, 8, 16):
        if length < len(plan.steps) and try_plan(dataclasses.replace(plan, steps=plan.steps[-length:])):
            break
    for number in reversed(range(len(plan.steps) - 1)):
        try_plan(dataclasses.replace(plan, steps=plan.steps[:number] + plan.steps[number + 1 :]))
    for name in [*(kernel.name for kernel in plan.model.kernels), *plan.model.names, *plan.cells]:
        try_plan(without(plan, name))
    for number, step in enumerate(plan.steps):
        looks = (error.look,) if number == len(plan.steps) - 1 and error.look in LOOKS else ()
        changed = (*plan.steps[:number], dataclasses.replace(step, looks=looks), *plan.steps[number + 1 :])
        if looks != step.looks:
            try_plan(dataclasses.replace(plan, steps=changed))
    return plan, error


def without(plan: Plan, name: str) -> Plan:
    """The same project without a kernel, or without a source of kernels and of the notebook."""
    kernels = tuple(
        dataclasses.replace(kernel, sources=tuple(source for source in kernel.sources if source != name))
        for kernel in plan.model.kernels
        if kernel.name != name
    )
    model = dataclasses.replace(plan.model, kernels=kernels or plan.model.kernels)
    return dataclasses.replace(plan, model=model, cells=tuple(cell for cell in plan.cells if cell != name))


def prepare(folder: Path) -> None:
    """Make what the projects of all walks share, as the tests do."""
    shared = folder / "shared"
    shared.mkdir()
    make_compiler(shared)
    Project.shared = shared
    os.environ["OBJECTS_OF_TESTS"] = str(shared / "lowered")
    os.environ.setdefault(CACHE_DIR, "/proc/kernelwright")


def main() -> None:
    """Walk until there were enough steps; stop at nothing that is wrong, and tell it at the end by the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="of the first walk; the next ones follow")
    parser.add_argument("--length", type=int, default=25, help="steps of a walk")
    parser.add_argument("--without", default="", help="what to leave out, separated by commas")
    parser.add_argument("--replay", type=Path, help="a file with a walk that was printed")
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args()
    leave_out = frozenset(filter(None, options.without.split(",")))
    tally, failures = Tally(), 0
    with tempfile.TemporaryDirectory() as top:
        prepare(Path(top))
        seed = options.seed
        while options.replay or tally.steps.total() < options.steps:
            replayed = Plan.read(options.replay.read_text()) if options.replay else None
            plan = replayed or random_plan(seed, options.length, leave_out)
            start = time.monotonic()
            error = walked(plan, tally, Path(top) / "walk")
            said = "failed" if error else "as from nothing"
            print(f"seed {seed}: {said} ({time.monotonic() - start:.0f} s)", flush=True)
            if error is not None:
                failures += 1
                if not options.replay and not options.no_shrink:
                    plan, error = shrunk(plan, error, Path(top) / "walk")
                print(f"{error}\n--- the walk, for --replay:\n{plan}\n---", flush=True)
            if options.replay:
                break
            seed += 1
    print(tally, f"{failures} failures", sep="; ")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
