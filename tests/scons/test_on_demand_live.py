"""Definitions that no worker could execute, in cells, scripts and tests; processes that fork, spawn and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.demand import FILE, Demand
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


def test_a_cell_is_compiled_called_and_compiled_anew_when_it_was_edited(demand: Demand) -> None:
    demand.run(
        CELLS
        + f"TIMES = '''{TIMES}'''"
        + '''
cell(TIMES)
times = names["times"]
kernel = times.compile()
assert not kernel.cached and (array(kernel(x)) == 2).all() and (array(times(x.astype("float64"))) == 2).all()
cell("# a comment above\\n" + TIMES)
assert names["times"].compile().key == kernel.key and names["times"].compile().cached
cell(TIMES.replace("const(2", "const(5"))
edited = names["times"].compile()
assert not edited.cached and (array(edited(x)) == 5).all() and (array(names["times"](x)) == 5).all()
assert (array(times(x)) == 2).all(), "the old object is what it was"
assert [one.cached for one in names["times"].par_compile()] == [True, False]

# A mistake is told with the cell and its line, and without a line of ours.
cell(TIMES.replace("x = te", "oops\\n    x = te"))
with pytest.raises(kw.KernelwrightError) as error:
    names["times"].compile()
text = str(error.value)
place = f"/tmp/ipykernel_1/{count}.py:4 times/dtype-float32 [lower]: "
assert place + "the definition of times raised NameError" in text, text
assert "site_scons" not in text and "ondemand" not in text, text

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
''',
    )


def test_what_is_in_a_closure_counts_be_it_plain_or_not(demand: Demand) -> None:
    demand.run(
        CELLS
        + """
FACTOR = 3

def make(factor, other=None):
    @kw.kernel(outputs=["y"])
    def times():
        other
        x = te.placeholder((te.var("n"), 4), "float32", name="x")
        value = te.const(factor * FACTOR, "float32")
        return te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] * value, name="y")])
    return times

first = make(2)
assert (array(first(x)) == 6).all() and (array(make(4)(x)) == 12).all()
assert make(2).compile().cached and make(2).compile().key != make(4).compile().key
FACTOR = 5
assert (array(first(x)) == 10).all(), "a global that changed counts with an object that was called before"
FACTOR = 3
assert (array(first(x)) == 6).all()
for fine in (1, 2.5, "text", None, True, (1, "a"), len, np, b"b"):
    if fine is not len:
        make(2, fine).compile()
for other in ([1], {"a": 1}, np.ones(3), object()):
    assert make(2, other).compile().key == first.compile().key and (array(make(2, other)(x)) == 6).all()
""",
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
""",
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
            with multiprocessing.Pool(2) as pool:
                print(pool.map(work, range(4), chunksize=1))
        """
    )
    printed, said = started.communicate(timeout=300)
    assert started.returncode == 0, said
    assert printed.strip() == str([(True, 24.0, 24.0, "spawn")] * 4), (printed, said)
    assert demand.rest() == []


def test_a_child_of_fork_compiles_with_workers_of_its_own(cpu_project: Project) -> None:
    demand = Demand(cpu_project)
    demand.definition("times")
    done = demand.run(
        """
        import threading
        times = kw.load("kernels/times.py").times
        x = np.ones((3, 4), "float32")
        times.compile()
        children = []
        for factor in (3, 4):
            pid = os.fork()
            if not pid:
                kernel = times.compile(dtype="float32", factor=factor)
                good = not kernel.cached and (array(kernel(x)) == factor).all()
                sys.exit(not good)
            children.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]
        kernel = times.compile(dtype="float32", factor=5)
        assert not kernel.cached and (array(kernel(x)) == 5).all(), "the parent's workers still work"
        assert times.compile(dtype="float32", factor=3).cached
        """
    )
    assert done.stderr == ""
    assert demand.rest() == []


def test_threads_compile_equal_keys_once_and_different_ones_at_once(cpu_project: Project) -> None:
    demand = Demand(cpu_project)
    demand.definition("times")
    done = demand.run(
        """
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
        """
    )
    assert done.stderr.count("[ LOWER ]") == 4 and done.stderr.count("[ LINK ]") == 4, done.stderr


def test_under_pytest_with_several_processes(cpu_project: Project) -> None:
    demand = Demand(cpu_project)
    demand.definition("times")
    test = """
    import kernelwright as kw, numpy as np
    from tvm import te
    {definition}

    def test_of_a_file():
        kernel = kw.load("{folder}/kernels/times.py").times.compile(dtype="float32", factor={factor})
        assert (np.from_dlpack(kernel(np.ones((2, 4), "float32"))) == {factor}).all()

    def test_of_a_test():
        assert (np.from_dlpack(times(np.ones((2, 4), "float32"))) == 2).all()
    """
    definition = TIMES.replace("\n", "\n    ")
    for number in range(2):
        text = test.format(definition=definition, folder=cpu_project.folder, factor=7 + number)
        cpu_project.write(f"tests/test_{number}.py", text)
    cpu_project.write("tests/conftest.py", "import sys\nsys.modules['torch'] = None\n")
    started = demand.start(["-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "tests"])
    printed, said = started.communicate(timeout=300)
    assert started.returncode == 0 and "4 passed" in printed, printed + said
    assert len(demand.kernels()) == 3
    assert demand.rest() == []


SLOW = """
import time
from pathlib import Path
Path("begun").touch()
time.sleep(120)
"""


def processes_in(folder: Path) -> list[str]:
    """The commands of the processes that name a folder, or work in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_text().replace("\0", " ")
            if int(path.name) != os.getpid() and (
                str(folder) in command or str(folder) in str((path / "cwd").readlink())
            ):
                found.append(command)
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.02)


@pytest.mark.parametrize("how", ["compile()", "par_compile([{'dtype': 'float32', 'factor': f} for f in range(5)])"])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_an_interrupted_compile_leaves_nothing_and_the_next_one_works(
    cpu_project: Project, sent: signal.Signals, how: str
) -> None:
    demand = Demand(cpu_project)
    demand.definition("slow", SLOW)
    started = demand.script(f"kw.load('kernels/slow.py').slow.{how}")
    wait_for(cpu_project.folder / "begun", started)
    started.send_signal(sent)
    begin = time.monotonic()
    _, said = started.communicate(timeout=60)
    assert time.monotonic() - begin < 20
    assert started.returncode == -sent, said
    if sent == signal.SIGINT:
        assert said.rstrip().endswith("KeyboardInterrupt"), said
        assert demand.rest() == []
    else:
        end = time.monotonic() + 20
        while processes_in(cpu_project.folder) and time.monotonic() < end:
            time.sleep(0.1)
    assert processes_in(cpu_project.folder) == []
    assert demand.kernels() == []
    for path in (demand.cache / "scratch").glob("*"):  # so young, they might be of a process that is about to lock it
        os.utime(path, (0, 0))
    demand.definition("slow")
    demand.run("assert not kw.load('kernels/slow.py').slow.compile().cached")
    assert [name for name in demand.rest() if name.startswith("scratch/")] == []


@pytest.mark.parametrize("how", ["compile()", "par_compile([{'dtype': 'float32'}, {'dtype': 'float64'}])"])
def test_ctrl_c_ends_a_wait_for_another_process(cpu_project: Project, how: str) -> None:
    demand = Demand(cpu_project)
    demand.definition("slow", SLOW)
    first = demand.script("kw.load('kernels/slow.py').slow.compile()")
    program = "import sys; sys.modules['torch'] = None; import kernelwright as kw; kw.load('kernels/slow.py')"
    second = None
    try:
        wait_for(cpu_project.folder / "begun", first)
        second = demand.start(["-c", f"{program}.slow.{how}"])
        assert second.stderr is not None
        assert "another process compiles slow, waiting for it" in second.stderr.readline()
        second.send_signal(signal.SIGINT)
        _, said = second.communicate(timeout=20)
        assert second.returncode == -signal.SIGINT and said.rstrip().endswith("KeyboardInterrupt"), said
        assert first.poll() is None
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.communicate()


def test_eight_processes_that_start_cold_compile_each_kernel_once(cpu_project: Project) -> None:
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
    running = [demand.start([program]) for _ in range(8)]
    outcomes = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0] * 8, outcomes
    assert {printed[:12] for printed, _ in outcomes} == {"[24.0, 36.0]"}
    assert sum(int(printed.split()[-1]) for printed, _ in outcomes) == 2, outcomes
    shown = "".join(said for _, said in outcomes)
    assert shown.count("[ LOWER ]") == 2 and shown.count("[ LINK ]") == 2, shown
    assert len(demand.kernels()) == 2 and demand.rest() == []


def test_a_child_calls_while_a_thread_of_the_parent_compiles(demand: Demand) -> None:
    demand.run(
        CELLS
        + '''
import signal, threading

names["begun"] = threading.Event()
names["forked"], told = os.pipe()
cell("""
import os

@kw.kernel(outputs=[-1])
def times():
    begun.set()
    os.read(forked, 1)
    x = te.placeholder((te.var("n"), 4), "float32", name="x")
    return te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] + x[i, j], name="y")])
""")
times = names["times"]
thread = threading.Thread(target=times, args=(x,))
thread.start()
names["begun"].wait()
child = os.fork()
os.write(told, b"." * 100)  # one for each time that the definition is executed, in either process
if child == 0:
    signal.alarm(60)
    os._exit(0 if (array(times(x)) == 2).all() else 1)
thread.join()
assert os.waitpid(child, 0)[1] == 0
'''
    )


def test_a_bound_function_may_look_at_numbers(demand: Demand) -> None:
    demand.run(
        CELLS
        + '''
cell("""
@kw.kernel(configs=[{"factor": 0.0}], outputs=[-1])
def times(factor):
    x = te.placeholder((te.var("n"), 4 if factor else 1), "float32", name="x")
    wanted = te.var("wanted", "float32")
    body = lambda i, j: x[i, j] * te.const(factor, "float32") + wanted * te.const(0, "float32")
    return te.create_prim_func([x, wanted, te.compute(x.shape, body, name="y")])
""")
times = names["times"]
times.bind(lambda x, wanted: {"factor": float(wanted)})
for wanted in (2.0, 3.0, np.float32(5), np.float32(7), 2.0):
    assert (array(times(x, wanted)) == wanted).all(), wanted
'''
    )


def test_an_eager_call_sees_an_edited_helper_and_the_kinds_of_numbers(demand: Demand) -> None:
    demand.run(
        CELLS
        + '''
cell("""
FACTORS = (1, 0.0)
BASE = 0

def helper():
    return BASE + (2 if isinstance(FACTORS[0], int) else 3) + (0 if str(FACTORS[1]) == "0.0" else 10)

@kw.kernel(outputs=[-1])
def times():
    x = te.placeholder((te.var("n"), 4), "float32", name="x")
    return te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] * te.const(helper(), "float32"), name="y")])
""")
times = names["times"]
for line, expected in [
    ("", 2), ("FACTORS = (1.0, 0.0)", 3), ("FACTORS = (1.0, -0.0)", 13), ("BASE = 4", 17),
    ("def helper(): return 5", 5), ("def helper(): return 6", 6),
]:
    cell(line)
    assert (array(times(x)) == expected).all(), (line, array(times(x)))
'''
    )


def test_zeros_of_both_signs_are_two_configs(demand: Demand) -> None:
    demand.run(
        CELLS
        + '''
cell("""
import math

@kw.kernel(configs=[{"zero": 0.0}], outputs=[-1])
def times(zero):
    x = te.placeholder((te.var("n"), 4), "float32", name="x")
    sign = te.const(math.copysign(1, zero), "float32")
    return te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] * sign, name="y")])
""")
times = names["times"]
assert (array(times.compile(zero=0.0)(x)) == 1).all() and (array(times.compile(zero=-0.0)(x)) == -1).all()
'''
    )


def test_a_failure_of_one_thread_leaves_the_compile_of_another_alone(demand: Demand) -> None:
    begun, failed = (demand.project.folder.parent / name for name in ("begun", "failed"))
    body = f"""if factor == 3:
        from pathlib import Path
        Path({str(begun)!r}).touch()
        while not Path({str(failed)!r}).exists(): pass
    if factor == 4: raise ValueError("four")"""
    demand.project.write("kernels/slow.py", FILE.format(name="slow", body=body))
    demand.run(
        """
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
        """
    )


def test_an_edit_that_only_one_variant_sees_compiles_the_kernel_anew(demand: Demand) -> None:
    """Of a kernel with a space: its first point runs where data is only aligned to its elements, or the preferred."""
    demand.run(
        CELLS
        + '''
cell("""
from tvm.script import tirx as T

@kw.kernel(tune=[{"block": 1}, {"block": 8}], preferred={"x86-64-v2": {"block": 8}}, outputs=["y"])
def times(block: int):
    factor = FIRST if block == 1 else SECOND

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        x = T.match_buffer(x_handle, (64,), "float32", align=4 * block)
        y = T.match_buffer(y_handle, (64,), "float32")
        for i in T.serial(64 // block):
            for k in T.vectorized(block):
                y[i * block + k] = x[i * block + k] * T.float32(factor)

    return main
""")
memory = np.ones(4 * 128, "uint8")
start = -memory.ctypes.data % 64
aligned, other = (memory[at : at + 256].view("float32") for at in (start, start + 4))
aligned[:], other[-1] = 1, 1
for first, second in (2.0, 5.0), (3.0, 5.0), (3.0, 4.0), (2.0, 5.0):
    cell(f"FIRST, SECOND = {first}, {second}")
    times = names["times"].using(archs=["x86-64-v2"])
    for x, factor in (other, first), (aligned, second):
        assert (array(times(x)) == factor).all(), (first, second, factor)
'''
    )
