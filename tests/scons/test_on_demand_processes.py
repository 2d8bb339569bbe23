"""Definitions that no worker could execute, in cells, scripts and tests; processes that fork, spawn and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest
from support.demand import FILE, Demand
from support.moments import HANGS_AFTER_S, processes_of, wait_for
from support.project import Project

TIMES = """
@kw.kernel(configs=[{"dtype": "float32"}, {"dtype": "float64"}], outputs=[-1])
def times(dtype):
    x = te.placeholder((te.var("n"), 4), dtype, name="x")
    return te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] * te.const(2, dtype), name="y")])
"""

CELLS = '''
import linecache
from tvm import te

names = {"__name__": "__main__", "kw": kw, "te": te}
count = 0

def cell(text):
    """Run a cell as IPython does: its text is in linecache, under a name of which there is no file."""
    global count
    count += 1
    name = f"/tmp/ipykernel_1/{count}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), names)

x = np.ones((3, 4), "float32")
'''


@pytest.fixture
def demand(tmp_path: Path) -> Demand:
    """A folder that is no project."""
    return Demand(Project(tmp_path))


def test_a_cell_may_have_tvmscript_and_deep_expressions_and_no_source_beside_it(demand: Demand) -> None:
    demand.run(
        CELLS
        + '''
# TVM's printer recurses for each of the terms, and the stack of this thread would have room for about 2000.
from kernelwright.ondemand.deep import deeply
z = te.placeholder((4,), "float32", name="z")
many = te.create_prim_func([z, te.compute(z.shape, lambda i: sum([z[i]] * 3000, z[i]), name="y")])
assert len(deeply(lambda: many.script())) > 3000

# The source of a kernel in CUDA C++ is beside the file of its definition, and a cell has none.
cell("""
from kernelwright.cuda import Source, Tensor

@kw.kernel(frontend="cuda")
def sourced():
    return Source("sourced.cu", "sourced", x=Tensor("float32", "n"), grid="n", block=32)
""")
with pytest.raises(kw.KernelwrightError, match="a definition in cuda cannot be compiled from a cell"):
    names["sourced"].using(archs=["sm_90a"]).compile()

# TVMScript needs the text of its cell.
cell("""
from tvm.script import tirx as T

@kw.kernel(configs=[{"dtype": "float32"}], outputs=["y"])
def doubled(dtype):
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
""")
assert (array(names["doubled"](x[0])) == 2).all()
'''
    )


def test_a_fork_while_another_thread_lowers_does_not_wait_for_it(demand: Demand) -> None:
    demand.run(
        CELLS
        + TIMES
        + """
import signal, threading
lowering, go_on = threading.Event(), threading.Event()

@kw.kernel(outputs=["y"])
def slow():
    lowering.set()
    go_on.wait(60)
    x = te.placeholder((te.var("n"), 4), "float32", name="x")
    return te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="y")])

thread = threading.Thread(target=lambda: slow(x))
thread.start()
lowering.wait(60)
pid = os.fork()
if not pid:
    go_on = threading.Event()
    go_on.set()
    signal.alarm(50)
    os._exit(0 if (array(times(x)) == 2).all() and (array(slow(x)) == 2).all() else 1)
assert os.waitpid(pid, 0)[1] == 0
go_on.set()
thread.join()
assert (array(slow(x)) == 2).all()
"""
    )


def test_a_script_compiles_its_own_kernels_and_so_do_its_children(demand: Demand) -> None:
    """Children by fork, and by spawn, which imports the script again under another name."""
    started = demand.script(
        """
        import multiprocessing
        from tvm import te
        """
        + TIMES.replace("\n", "\n        ")
        + """
        x = np.ones((3, 4), "float32")

        def work(factor):
            kernel = times.compile(dtype="float32")
            method = multiprocessing.get_start_method()
            return kernel.cached, float(array(kernel(x)).sum()), float(array(times(x)).sum()), method

        if __name__ == "__main__":
            assert (array(times(x)) == 2).all()
            pid = os.fork()
            if not pid:
                kernel = times.compile(dtype="float64")
                os._exit(0 if not kernel.cached and array(kernel(x.astype("float64"))).sum() == 24 else 1)
            assert os.waitpid(pid, 0)[1] == 0
            assert times.compile(dtype="float64").cached
            multiprocessing.set_start_method("spawn")
            with multiprocessing.Pool(1) as pool:
                print(pool.map(work, range(2), chunksize=1))
        """
    )
    printed, said = started.communicate(timeout=300)
    assert started.returncode == 0, said
    assert printed.strip() == str([(True, 24.0, 24.0, "spawn")] * 2), (printed, said)
    assert demand.rest() == []


def test_a_child_of_fork_compiles_with_workers_of_its_own(cpu_project: Project) -> None:
    demand = Demand(cpu_project)
    demand.definition("times")
    done = demand.run("""
        import threading
        times = kw.load("kernels/times.py").times
        x = np.ones((3, 4), "float32")
        times.compile()
        pid = os.fork()
        if not pid:
            kernel = times.compile(dtype="float32", factor=3)
            sys.exit(kernel.cached or bool((array(kernel(x)) != 3).any()))
        assert os.waitpid(pid, 0)[1] == 0
        kernel = times.compile(dtype="float32", factor=5)
        assert not kernel.cached and (array(kernel(x)) == 5).all(), "the parent's workers still work"
        assert times.compile(dtype="float32", factor=3).cached
        """)
    assert done.stderr == ""
    assert demand.rest() == []


def test_threads_compile_equal_keys_once_and_different_ones_at_once(cpu_project: Project) -> None:
    demand = Demand(cpu_project)
    demand.definition("times")
    done = demand.run("""
        import threading
        loud = kw.load("kernels/times.py").times.using(verbose=True)
        x = np.ones((3, 4), "float32")
        together = threading.Barrier(8)
        made, wrong = [], []

        def work(number):
            together.wait()
            try:
                kernel = loud.compile(dtype="float32", factor=number)
                made.append((number, kernel.key, kernel.cached, float(array(kernel(x))[0, 0])))
                made.append((2, None, None, float(array(loud(x))[0, 0])))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(max(number, 5),)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong
        assert all(number == value for number, _, _, value in made), made
        assert sum(cached is False for _, _, cached, _ in made) == 3, made
        """)
    assert done.stderr.count("[ LOWER ]") == 4 and done.stderr.count("[ LINK ]") == 4, done.stderr


def test_a_definition_in_a_test_of_pytest_is_compiled(demand: Demand) -> None:
    demand.project.write(
        "tests/test_times.py",
        f"""
        import sys
        sys.modules['torch'] = None
        import kernelwright as kw, numpy as np
        from tvm import te
        {textwrap.indent(TIMES, " " * 8)}

        def test_of_a_test():
            assert (np.from_dlpack(times(np.ones((2, 4), 'float32'))) == 2).all()
        """,
    )
    started = demand.start(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests"])
    printed, said = started.communicate(timeout=300)
    assert started.returncode == 0 and "1 passed" in printed, printed + said
    assert len(demand.kernels()) == 1 and demand.rest() == []


SLOW = """
import time
from pathlib import Path
Path("begun").touch()
time.sleep(120)
"""


def begun(project: Project, process: subprocess.Popen[str]) -> None:
    """Wait until the definition of `SLOW` is executed."""
    wait_for(lambda: (project.folder / "begun").exists() or process.poll() is not None, "it does not begin")
    assert process.poll() is None, process.communicate()


def test_an_interrupted_compile_leaves_nothing_and_the_next_one_works(cpu_project: Project) -> None:
    demand = Demand(cpu_project)
    demand.definition("slow", SLOW)
    started = demand.script("kw.load('kernels/slow.py').slow.compile()")
    begun(cpu_project, started)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=HANGS_AFTER_S)
    assert started.returncode == -signal.SIGINT and said.rstrip().endswith("KeyboardInterrupt"), said
    assert demand.rest() == [] and processes_of(cpu_project.folder) == []
    assert demand.kernels() == []
    demand.definition("slow")
    demand.run("assert not kw.load('kernels/slow.py').slow.compile().cached")


def test_of_processes_that_compile_one_kernel_the_end_of_one_does_the_others_no_harm(cpu_project: Project) -> None:
    """One that waits is interrupted, and the one that compiles is killed."""
    demand = Demand(cpu_project)
    demand.definition("slow", f"import os\nif not os.path.exists('begun'):\n{textwrap.indent(SLOW, '    ')}")
    running = [demand.script("kw.load('kernels/slow.py').slow.compile()")]
    program = "import sys; sys.modules['torch'] = None; import kernelwright as kw; print(kw.load('kernels/slow.py')"

    def waiting(how: str) -> subprocess.Popen[str]:
        process = demand.start(["-c", f"{program}.slow.{how})"])
        running.append(process)
        assert process.stderr is not None
        assert "another process compiles slow, waiting for it" in process.stderr.readline()
        return process

    try:
        begun(cpu_project, running[0])
        interrupted = waiting("par_compile([{'dtype': 'float32'}, {'dtype': 'float64'}])")
        interrupted.send_signal(signal.SIGINT)
        _, said = interrupted.communicate(timeout=HANGS_AFTER_S)
        assert interrupted.returncode == -signal.SIGINT and said.rstrip().endswith("KeyboardInterrupt"), said
        assert running[0].poll() is None
        next_one = waiting("compile().cached")
        running[0].kill()
        running[0].communicate()
        assert next_one.communicate(timeout=HANGS_AFTER_S)[0] == "False\n"
    finally:
        for process in running:
            process.kill()
            process.communicate()
    wait_for(lambda: not processes_of(cpu_project.folder), "workers go on")
    for path in (demand.cache / "scratch").glob("*"):  # so young, they might be of a process that is about to lock it
        os.utime(path, (0, 0))
    demand.run("assert not kw.load('kernels/slow.py').slow.compile(dtype='float32', factor=9).cached")
    assert [name for name in demand.rest() if name.startswith("scratch/")] == []


def test_processes_that_start_cold_compile_each_kernel_once(cpu_project: Project) -> None:
    demand = Demand(cpu_project, probed=False)
    demand.definition("times")
    program = cpu_project.write(
        "cold.py",
        """
        import sys
        sys.modules["torch"] = None
        import numpy as np
        import kernelwright as kw
        times = kw.load("kernels/times.py").times.using(verbose=True)
        kernels = times.par_compile([{"dtype": "float32", "factor": factor} for factor in (2, 3)])
        x = np.ones((3, 4), "float32")
        sums = [float(np.from_dlpack(kernel(x)).sum()) for kernel in kernels]
        print(sums, [kernel.cached for kernel in kernels].count(False))
        """,
    )
    running = [demand.start([program]) for _ in range(2)]
    outcomes = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0] * 2, outcomes
    assert {printed[:12] for printed, _ in outcomes} == {"[24.0, 36.0]"}
    assert sum(int(printed.split()[-1]) for printed, _ in outcomes) == 2, outcomes
    shown = "".join(said for _, said in outcomes)
    assert shown.count("[ LOWER ]") == 2 and shown.count("[ LINK ]") == 2, shown
    assert len(demand.kernels()) == 2 and demand.rest() == []


def test_a_failure_of_one_thread_leaves_the_compile_of_another_alone(demand: Demand) -> None:
    begun, failed = (demand.project.folder.parent / name for name in ("begun", "failed"))
    body = f"""if factor == 3:
        from pathlib import Path
        Path({str(begun)!r}).touch()
        while not Path({str(failed)!r}).exists(): pass
    if factor == 4: raise ValueError("four")"""
    demand.project.write("kernels/slow.py", FILE.format(name="slow", body=body))
    demand.run("""
        import threading
        from pathlib import Path
        slow = kw.load("kernels/slow.py").slow
        begun, failed, made = Path("../begun"), Path("../failed"), []
        thread = threading.Thread(target=lambda: made.append(slow.compile(dtype="float32", factor=3)))
        thread.start()
        while not begun.exists():
            pass
        with pytest.raises(kw.KernelwrightError, match="four"):
            slow.par_compile([{"dtype": "float32", "factor": 4}, {"dtype": "float32", "factor": 5}])
        failed.touch()
        thread.join()
        assert (array(made[0](np.ones((1, 4), "float32"))) == 3).all()
        """)
