"""Days of somebody who calls kernels without a build: cells, scripts, bare functions, and then a package of them."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from support.demand import Demand
from support.moments import Gate
from support.project import Project

NOTEBOOK = '''
import linecache
names, count = {"kw": kw, "np": np, "__name__": "__main__"}, 0

def run(text):
    """Run a cell as IPython does."""
    global count
    count += 1
    name = f"/tmp/ipykernel_1/{count}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec", dont_inherit=True), names)

def value(call="kernel(x)"):
    return float(array(eval(call, names)).flat[0])

FACTOR = "from tvm import te\\nx = np.ones((1, 4), 'float32')\\nFACTOR = 2"
HELPER = "def helper(): return FACTOR + 1"
KERNEL = """
@kw.kernel(configs=[{"dtype": "float32"}, {"dtype": "float64"}], outputs=["y"])
def kernel(dtype):
    a = te.placeholder((te.var("n"), 4), dtype, name="x")
    return te.create_prim_func([a, te.compute(a.shape, lambda i, j: a[i, j] * te.const(helper(), dtype), name="y")])
"""
'''


@pytest.fixture
def notebook(tmp_path: Path) -> Demand:
    """A folder that is no project."""
    return Demand(Project(tmp_path))


def test_cells_are_edited_and_run_in_any_order_and_each_call_is_what_they_say_now(notebook: Demand) -> None:
    notebook.run(
        NOTEBOOK
        + """
for cell in (FACTOR, HELPER, KERNEL):
    run(cell)
assert value() == 3 and value('kernel(x.astype("float64"))') == 3
first = names["kernel"].compile()
assert first.cached
run("FACTOR = 4")
assert value() == 5 and (array(first(names["x"])) == 3).all(), "what compile() gave stays what it is"
run(HELPER.replace("+ 1", "+ 2"))
assert value() == 6
run("FACTOR = 2")
assert value() == 4
old = names["kernel"]
run(KERNEL.replace("helper()", "10 * helper()"))
assert value() == 40 and float(array(old(names["x"])).max()) == 4
run(HELPER)
run(KERNEL)
assert value() == 3 and names["kernel"].compile().key == first.key and names["kernel"].compile().cached
run(KERNEL.replace("helper()", "oops()"))
with pytest.raises(kw.KernelwrightError) as error:
    value()
assert f"/tmp/ipykernel_1/{count}.py:" in str(error.value) and "NameError" in str(error.value)
assert "site_scons" not in str(error.value)
run("def oops(): return 7")
assert value() == 7, "the missing cell was run"
with pytest.raises(TypeError, match="no listed config fits these arguments"):
    value('kernel(x.astype("int8"))')
"""
    )
    made = notebook.entries()
    program = NOTEBOOK + "for cell in (KERNEL, HELPER, FACTOR): run(cell)\nassert value() == 3"
    notebook.run(program)  # another day, and another order
    assert notebook.entries() == made and notebook.rest() == []


def test_a_bare_prim_func_is_compiled_once_and_an_edited_one_anew(notebook: Demand) -> None:
    program = """
from tvm.script import tirx as T

def adds(number):
    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float32")
        y = T.match_buffer(y_handle, (n,), "float32")
        for i in T.serial(n):
            with T.sblock("y"):
                j = T.axis.spatial(n, i)
                y[j] = x[j] + T.float32(number)
    return main

x = np.arange(4, dtype="float32")
for number in (1, 2, 1):
    kernel = kw.compile(adds(number), outputs=[-1])
    assert array(kernel(x)).tolist() == [number, 1 + number, 2 + number, 3 + number]
    print(kernel.cached)
"""
    notebook.project.write("cell.py", program)  # TVMScript reads the text of a function
    for cached in ("False\nFalse\nTrue\n", "True\nTrue\nTrue\n"):
        assert notebook.run("exec(compile(open('cell.py').read(), 'cell.py', 'exec'))").stdout == cached


def test_a_script_is_edited_scons_takes_what_it_has_made_and_builds_what_it_used(cpu_project: Project) -> None:
    demand = Demand(cpu_project)
    demand.definition("times", "from _helper import F\nfactor = F")
    cpu_project.write("kernels/_helper.py", "F = 3\n")
    shutil.rmtree(cpu_project.folder / "build", ignore_errors=True)
    cpu_project.replace("SConstruct", 'env.Glob("kernels/*.py")', '["kernels/times.py"]')
    call = """
        times = kw.load("kernels/times.py").times
        print(float(array(times(np.ones((1, 4), "float64"))).max()), "tvm" in sys.modules)
    """
    record = {"KERNELWRIGHT_RECORD": "configs.json"}
    assert demand.run(call, env=record, tvm=False).stdout == "3.0 False\n"
    cpu_project.write("kernels/_helper.py", "F = 5\n")
    assert demand.run(call, tvm=False).stdout == "5.0 False\n"
    made = demand.entries()
    assert demand.run(call, tvm=False).stdout == "5.0 False\n" and demand.entries() == made
    env = {"KERNELWRIGHT_CACHE_DIR": str(demand.cache)}
    run = cpu_project.scons("CONFIGS=configs.json", env=env)
    assert "CACHED LOWER times/dtype-float64 x86-64-v3" in run.stages and "LOWER" not in run.labels
    printed = cpu_project.python("import demo; print(demo.times.variants)")
    assert printed == "({'dtype': 'float64'},)\n"
    assert demand.entries() == made, "a build leaves that cache as it is"
    shutil.rmtree(demand.cache)
    demand.probe()
    assert demand.run(call).stdout.startswith("5.0") and demand.entries() > 0


def test_two_checkouts_call_with_one_cache_and_one_is_killed_in_the_middle(cpu_project, tmp_path_factory):
    demand = Demand(cpu_project)
    demand.definition("times", "factor = int(open(__file__.replace('times.py', 'factor.txt')).read())")
    for folder, number in ("one", "3"), ("two", "5"):
        shutil.copytree(cpu_project.folder / "kernels", cpu_project.folder / folder / "kernels")
        cpu_project.write(f"{folder}/kernels/factor.txt", number)
        for name in ("SConstruct", "pyproject.toml"):
            shutil.copy(cpu_project.folder / name, cpu_project.folder / folder / name)
    call = """
        x = np.ones((1, 4), "float32")
        kernels = [kw.load(f"{folder}/kernels/times.py").times for folder in ("one", "two", "one")]
        print([float(array(kernel(x)).max()) for kernel in kernels])
    """
    with Gate(tmp_path_factory.mktemp("gate") / "gate") as gate:
        text = (cpu_project.folder / "one/kernels/times.py").read_text()
        cpu_project.write("one/kernels/times.py", text.replace("    n = te", f"    {gate.python}\n    n = te"))
        process = demand.script(call)
        gate.wait()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    cpu_project.write("one/kernels/times.py", text)
    assert demand.run(call).stdout == "[3.0, 5.0, 3.0]\n"
    cpu_project.write("one/kernels/factor.txt", "7")
    assert demand.run(call).stdout == "[7.0, 5.0, 7.0]\n"
    made = demand.entries()
    cpu_project.write("one/kernels/factor.txt", "3")
    assert demand.run(call).stdout == "[3.0, 5.0, 3.0]\n" and demand.entries() == made
