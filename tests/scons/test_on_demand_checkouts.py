"""Checkouts of one project on one cache: each has what its own files say, and keeps it, whatever the others do."""

from __future__ import annotations

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
    demand.run(
        f"""{begin}
first = one.compile()
elsewhere(two.compile)
require(first, 5)
again = [(kernel.cached, kernel.key) for kernel in (one.compile(), two.compile(), one.compile(), two.compile())]
assert [cached for cached, _ in again] == [True] * 4 and first.key == again[0][1] != again[1][1] == again[3][1]
require(first, 5), require(two.compile(), 7)
assert first.artifacts != two.compile().artifacts
"""
    )
    assert demand.entries() and len(demand.kernels()) == 2 and demand.rest() == []
    demand.run(f"{begin}\nassert two.compile().cached and one.compile().cached; require(two.compile(), 7)")


def test_another_checkout_is_compiled_between_any_two_steps_of_a_compile(checkouts: tuple[Demand, str]) -> None:
    demand, begin = checkouts
    demand.run(
        f"""{begin}
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
"""
    )


def test_a_kernel_whose_files_have_gone_shows_no_others(checkouts: tuple[Demand, str]) -> None:
    demand, begin = checkouts
    demand.run(
        f"""{begin}
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
"""
    )
