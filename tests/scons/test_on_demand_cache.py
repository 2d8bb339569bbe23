"""The cache folder: what is damaged, deleted or disabled costs only time, and checkouts keep what is theirs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.demand import Demand
from support.project import Project

DEVICE = '''\
from kernelwright import kernel
from kernelwright.cuda import Size, Source, Tensor, ceildiv

SOURCE = """
#include "factor.h"
extern "C" __global__ void times(float *x, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n) x[i] *= FACTOR;
}
"""


@kernel(frontend="cuda")
def times():
    return Source(SOURCE, "times", x=Tensor("float32", "n", written=True), n=Size("n"), grid=ceildiv("n", 64), block=64)
'''

OF_CUDA = """
import struct
KIND, OPTIONS = "ptx", dict(archs=["sm_80"])
mark = lambda number: "0f" + struct.pack(">f", number).hex().upper()
"""

KINDS = {
    "read by a definition": 'KIND, OPTIONS = "tir", {}\nmark = lambda number: f"T.float32({number}.0)"\n',
    "header": OF_CUDA,
}
"""Kind of a file that only stages read -> the begin of a program."""

BOTH = """
one, two = (kw.load(f"{folder}/kernels/times.py").times.using(**OPTIONS) for folder in ("one", "two"))

def require(kernel, number):
    "A kernel runs, and shows, what its checkout says."
    assert mark(number) in kernel.source(KIND)
    assert KIND != "tir" or (array(kernel(np.ones((1, 4), "float32"))) == number).all()

def elsewhere(work):
    "Have another process do something."
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture(params=KINDS)
def checkouts(request: pytest.FixtureRequest) -> tuple[Demand, str]:
    """Two checkouts that differ in a file that only stages read, and the begin of a program with their kernels."""
    begin = KINDS[request.param]
    project: Project = request.getfixturevalue("project" if begin == OF_CUDA else "cpu_project")
    demand = Demand(project)
    demand.definition("times", "factor = int(open('kernels/factor.txt').read())")
    text = DEVICE if begin == OF_CUDA else (project.folder / "kernels/times.py").read_text()
    for folder, number in ("one", 5), ("two", 7):
        project.write(f"{folder}/kernels/times.py", text)
        project.write(f"{folder}/kernels/factor.h", f"#define FACTOR {number}\n")
        project.write(f"{folder}/kernels/factor.txt", f"{number}")
        for name in ("SConstruct", "pyproject.toml"):
            project.write(f"{folder}/{name}", (project.folder / name).read_text())
    return demand, f"{begin}\n{BOTH}"


def test_two_checkouts_stay_compiled_and_keep_what_is_theirs(checkouts: tuple[Demand, str]) -> None:
    demand, begin = checkouts
    demand.run(f"""{begin}
first = one.compile()
elsewhere(two.compile)
require(first, 5)
again = [(kernel.cached, kernel.key) for kernel in (one.compile(), two.compile(), one.compile(), two.compile())]
assert [cached for cached, _ in again] == [True] * 4 and first.key == again[0][1] != again[1][1] == again[3][1]
require(first, 5), require(two.compile(), 7)
assert first.artifacts != two.compile().artifacts
""")
    assert demand.entries() and len(demand.kernels()) == 2 and demand.rest() == []
    demand.run(f"{begin}\nassert two.compile().cached and one.compile().cached; require(two.compile(), 7)")


@pytest.mark.parametrize("checkouts", ["header"], indirect=True)
def test_another_checkout_is_compiled_between_any_two_steps_of_a_compile(checkouts: tuple[Demand, str]) -> None:
    demand, begin = checkouts
    demand.run(f"""{begin}
from kernelwright.ondemand import loaded
compile_job = loaded.compile_job

def compile_between(job, note, *more, **named):
    compiled = compile_job(job, note, *more, **named)
    elsewhere(lambda: (setattr(loaded, "compile_job", compile_job), two.compile()))
    return compiled

loaded.compile_job = compile_between
for _ in range(2):
    require(one.compile(), 5)
loaded.compile_job = compile_job
require(two.compile(), 7), require(one.compile(), 5)
""")


@pytest.mark.parametrize("checkouts", ["read by a definition"], indirect=True)
def test_a_kernel_whose_files_have_gone_shows_no_others(checkouts: tuple[Demand, str]) -> None:
    demand, begin = checkouts
    demand.run(f"""{begin}
first = one.compile()
elsewhere(kw.clear_cache)
with pytest.raises(kw.KernelwrightError, match="(?s)no longer in the cache.*remedy: compile it again"):
    first.source(KIND)
require(two.compile(), 7)
with pytest.raises(kw.KernelwrightError, match="no longer in the cache"):
    first.source(KIND)
again = one.compile()
assert not again.cached
require(again, 5), require(two.compile(), 7)
""")


BEGIN = """
times = kw.load("kernels/times.py").times
x = np.ones((3, 4), "float32")
"""


@pytest.fixture
def demand(cpu_project: Project) -> Demand:
    demand = Demand(cpu_project)
    demand.definition("times")
    return demand


BROKEN = """#!/bin/sh
case "$*" in *wrapper.c*) echo broken >&2; exit 1;; esac
exec gcc "$@"
"""


def test_a_failed_compile_leaves_its_sources_and_its_log_where_the_error_says(demand: Demand) -> None:
    compiler = demand.project.write("bin/cc", BROKEN)
    compiler.chmod(0o755)
    program = f"""{BEGIN}
try:
    times.compile()
except kw.KernelwrightError as error:
    print(error)
"""
    text = demand.run(program, env={"PATH": f"{compiler.parent}:{os.environ['PATH']}"}).stdout
    found = re.search(r"its sources and its log are in (\S+)", text)
    assert found and "broken" in text, text
    folder = Path(found[1])
    assert folder.parent == demand.cache / "failed" and folder.name.startswith("times-dtype-float32-")
    assert "broken" in (folder / "log.txt").read_text()
    assert list(folder.rglob("wrapper.c")) and list(folder.rglob("module.tir"))
    assert demand.rest() == []
    demand.run(f"{BEGIN}\nassert not times.compile().cached")


def test_damage_anywhere_in_the_cache_costs_only_time(demand: Demand) -> None:
    program = f"{BEGIN}\nkernel = times.compile(); assert (array(kernel(x)) == 2).all(); print(kernel.cached)"
    assert demand.run(program).stdout == "False\n"
    (kernel,) = (demand.cache / "kernels").iterdir()
    every = [path for path in demand.cache.rglob("*") if path.is_file() and path.name != "CACHEDIR.TAG"]
    for paths, damage in (
        ([kernel / "_lib/times.so"], lambda path: path.write_bytes(path.read_bytes()[:-9] + b"?" * 9)),
        ([kernel / "manifest.json"], lambda path: path.write_bytes(b"")),
        ([kernel / "later.json"], lambda path: path.write_bytes(path.read_bytes()[:-9] + b"?" * 9)),
        (every, lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + b"\0?")),
    ):
        for path in paths:
            damage(path)
        assert demand.run(program).stdout == "False\n", paths
        assert demand.run(program).stdout == "True\n"


def test_a_cache_can_be_deleted_while_it_is_used(demand: Demand) -> None:
    demand.run(f"""{BEGIN}
import shutil
for dtype in ("float32", "float64", "float32"):
    times(np.ones((3, 4), dtype))
first = times.compile()
shutil.rmtree(os.environ["KERNELWRIGHT_CACHE_DIR"])
assert (array(first(x)) == 2).all()
for rows in range(5, 9):
    for dtype in ("float64", "float32"):
        assert (array(times(np.ones((rows, 4), dtype))) == 2).all()
assert not os.path.exists(os.environ["KERNELWRIGHT_CACHE_DIR"]), "a call with another shape needs no cache"
again, other = times.compile(), times.compile(dtype="float64")
assert not again.cached and (array(again(x)) == 2).all() and (array(times(x)) == 2).all()
assert not other.cached and (array(other(x.astype("float64"))) == 2).all()
""")


def test_a_disabled_cache_reads_and_keeps_nothing(demand: Demand) -> None:
    demand.run(f"{BEGIN}\ntimes.compile()")
    before = sorted(demand.project.files("cache"))
    program = f"{BEGIN}\nprint([times.compile().cached for _ in range(2)])"
    assert demand.run(program, env={"KERNELWRIGHT_DISABLE_CACHE": "1"}).stdout == "[False, True]\n"
    assert sorted(demand.project.files("cache")) == before
    assert demand.run(program, env={"KERNELWRIGHT_CLEAR_CACHE": "1"}).stdout == "[False, True]\n"
