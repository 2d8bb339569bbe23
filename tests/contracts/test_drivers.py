"""Builds and compile on demand do the same with one definition: what they make, what they see, and what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.demand import Demand
from support.project import Project, new_project

# --- What is made

COMPILE_ALL = """
import json
made = {}
for file in ("scale", "add_one"):
    kernel = getattr(kw.load(f"kernels/{file}.py"), file).using(archs=["x86-64-v3", "sm_80"], verbose=True)
    for one in kernel.par_compile():
        made.setdefault(file, []).append(str(one.artifacts))
print(json.dumps(made))
"""


def device_files(folder: Path) -> dict[str, bytes]:
    """What a variant's compile has made that is the same for everyone: what TVM has made, and the images."""
    names = ("signature.json", "module.tir", "device.cu", "host.c", "host.o")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name in names or path.suffix == ".cubin"
    }


@pytest.mark.parametrize("first", ["scons", "on demand"])
def test_both_drivers_make_the_same_and_it_is_made_once(project: Project, first: str) -> None:
    demand = Demand(project, project.folder / ".cache/kernelwright")
    (project.folder / ".git").mkdir()
    environment = {"KERNELWRIGHT_CACHE_DIR": ""}
    if first == "scons":
        project.built("-j2")
    done = demand.run(COMPILE_ALL, env=environment)
    if first == "on demand":
        built = project.scons("-j2", env=environment)
        assert not {"LOWER", "CUBIN"} & built.labels.keys() and "CACHED" in built.labels, built.output
    else:
        assert "[ LOWER ]" not in done.stderr and "[ CUBIN ]" not in done.stderr, done.stderr
        assert done.stderr.count("[ CACHED ]") >= 9, done.stderr
    compared = 0
    for name, folders in json.loads(done.stdout).items():
        expected = device_files(project.folder / "build/kernels/demo" / name)
        found = {key: value for folder in folders for key, value in device_files(Path(folder)).items()}
        assert found.keys() == expected.keys()
        assert [key for key in found if found[key] != expected[key]] == []
        compared += len(found)
    assert compared == 3 * (3 + 5), compared


# --- What is said

ASKS = """kernels/{name}.py:8 {name}/dtype-float32 [lower]: the definition of {name} asks for the variable \
MY_{letter}, which is set, and which definitions do not see
  remedy: write environment = ["MY_{letter}"] under [tool.kernelwright] in pyproject.toml: then definitions see it"""

MISTAKES = {
    "raises": (
        "raise LookupError('nothing there')",
        """kernels/raises.py:8 raises/dtype-float32 [lower]: the definition of raises raised LookupError: nothing there
      File "kernels/raises.py", line 8, in raises
        raise LookupError('nothing there')
    LookupError: nothing there""",
    ),
    "returns": (
        "return 7",
        """kernels/returns.py:6 returns/dtype-float32 [lower]: the definition returned an object of type builtins.int, \
expected a PrimFunc or an IRModule
  remedy: return a function made with @T.prim_func or te.create_prim_func, or a module made with @I.ir_module""",
    ),
    "leaves": (
        "import sys; sys.exit(3)",
        "kernels/leaves.py:8 leaves/dtype-float32 [lower]: the definition of leaves called sys.exit: 3\n",
    ),
    "dies": (
        "import os; os._exit(3)",
        """kernels/dies.py:6 dies/dtype-float32 [lower]: a worker ended with exit status 3 while executing the \
definition
  remedy: a definition must not end the process it runs in: look for os._exit and for closed file descriptors""",
    ),
    "asks": ("import os; factor = int(os.environ['MY_A'])", ASKS.format(name="asks", letter="A")),
    "gets": ("import os; factor = int(os.getenv('MY_B') or 1)", ASKS.format(name="gets", letter="B")),
    "looks": ("import os; factor = 2 if 'MY_C' in os.environ else 1", ASKS.format(name="looks", letter="C")),
    "swallows": (
        "import os\ntry: factor = int(os.environ['MY_D'])\nexcept BaseException: pass",
        ASKS.format(name="swallows", letter="D").replace(":8", ":9"),
    ),
    "lacks": (
        "import os; factor = int(os.environ['MY_UNSET'])",
        """kernels/lacks.py:8 lacks/dtype-float32 [lower]: the definition of lacks raised KeyError: 'MY_UNSET'
      File "kernels/lacks.py", line 8, in lacks""",
    ),
    "prints": (
        "print('a word of the definition')",
        "kernels/prints.py prints/dtype-float32 [lower]: a word of the definition",
    ),
    "broken": (None, "kernels/broken.py:1 [discover]: SyntaxError: invalid syntax\n    def broken(:\n               ^"),
    "empty": (
        None,
        """kernels/empty.py [discover]: the file declares no kernel
  remedy: decorate a function with @kernel; begin a helper file's name with _, or take it out of the sources""",
    ),
}
"""What a definition does -> what is said of it, by both drivers alike."""


STARTS = "import threading, time; threading.Thread(target=time.sleep, args=(100,)).start()"
"""No mistake: a thread that goes on for long holds nobody up."""


def said_by_scons(demand: Demand, env: dict[str, str]) -> str:
    # One job: of two variants that fail alike, the one that fails first is told with its details.
    run = demand.project.scons("-j1", "-k", env=env, ok=False)
    assert "LINK starts" in run.stages
    return run.output


def said_on_demand(demand: Demand, env: dict[str, str]) -> str:
    program = f"""
    kw.load("kernels/starts.py").starts.compile()
    for name in {list(MISTAKES)}:
        try:
            getattr(kw.load(f"kernels/{{name}}.py"), name).compile()
        except kw.KernelwrightError as error:
            print(error)
    """
    done = demand.run(program, env=env)
    assert demand.rest() == []
    return done.stdout + done.stderr


@pytest.fixture(scope="module", params=[said_by_scons, said_on_demand], ids=["scons", "on demand"])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a driver says of all mistakes at once."""
    project = new_project(tmp_path_factory.mktemp("mistakes"))
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    demand = Demand(project)
    for name, (body, _) in MISTAKES.items():
        if body is not None:
            demand.definition(name, body)
    demand.definition("starts", STARTS)
    project.write("kernels/broken.py", "def broken(:\n")
    project.write("kernels/empty.py", "")
    said_by: Callable[..., str] = request.param
    return said_by(demand, {f"MY_{letter}": "3" for letter in "ABCD"})


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_place_and_a_remedy(said: str, name: str) -> None:
    assert MISTAKES[name][1] in said


# --- Variables of the environment

TILED = """\
import os
from kernelwright import kernel
from tvm import te

TILE = {top}


@kernel(outputs=["y"])
def tiled():
    value = {inside}
    n = te.var("n")
    x = te.placeholder((n, 4), "float32", name="x")
    return te.create_prim_func([x, te.compute((n, 4), lambda i, j: x[i, j] * te.const(value, "float32"), name="y")])
"""

VALUE = """
import numpy as np
from demo import tiled
print(np.from_dlpack(tiled(np.ones((1, 4), "float32")))[0, 0])
"""

DECLARED = '[tool.kernelwright]\ntargets = ["llvm"]\nenvironment = ["MY_TILE"]\n'

ASKED = "float(os.environ.get('MY_TILE', 1))"


@pytest.fixture
def tiled(cpu_project: Project) -> Project:
    """A project whose only kernel multiplies by a variable."""
    for path in (cpu_project.folder / "kernels").iterdir():
        path.unlink()
    cpu_project.write("kernels/tiled.py", TILED.format(top=1, inside=ASKED))
    cpu_project.write("pyproject.toml", DECLARED)
    return cpu_project


def value(project: Project, variable: str) -> float:
    """What a build with that value of the variable multiplies by; empty: it is not set."""
    project.scons(env={"MY_TILE": variable} if variable else {})
    return float(project.python(VALUE))


def test_a_declared_variable_is_a_dependency(tiled: Project) -> None:
    """One kernel asks for it in its definition, and one at the top of its file."""
    tiled.write("kernels/top.py", TILED.format(top=ASKED, inside="TILE").replace("def tiled", "def top"))
    both = VALUE.replace("import tiled", "import tiled, top").replace(
        "[0, 0])", "[0, 0], np.from_dlpack(top(X))[0, 0])"
    )
    for variable, expected in (("", "1.0"), ("3", "3.0"), ("4", "4.0"), ("", "1.0")):
        tiled.scons(env={"MY_TILE": variable} if variable else {})
        assert tiled.python(both.replace("X", 'np.ones((1, 4), "float32")')).split() == [expected] * 2
    assert tiled.scons().counts[0] == 0, "nothing to do"
    again = """
    kernels = [getattr(kw.load(f"kernels/{name}.py"), name) for name in ("tiled", "top")]
    for variable in ("5", "6", None, "5"):
        os.environ.pop("MY_TILE", None) if variable is None else os.environ.update(MY_TILE=variable)
        for kernel in kernels:
            print(float(array(kernel.compile()(np.ones((1, 4), "float32")))[0, 0]))
    """
    assert Demand(tiled).run(again).stdout.split() == ["5.0", "5.0", "6.0", "6.0", "1.0", "1.0", "5.0", "5.0"]


def test_what_an_optional_variable_would_change_is_seen_when_it_is_set(tiled: Project) -> None:
    tiled.write("pyproject.toml", DECLARED.partition("environment")[0])
    assert value(tiled, "") == 1
    output = tiled.scons(env={"MY_TILE": "3"}, ok=False).output
    assert "asks for the variable MY_TILE, which is set, and which definitions do not see" in output
    tiled.write("pyproject.toml", DECLARED)
    assert value(tiled, "3") == 3


def test_what_installed_packages_ask_for_is_their_own_affair(tiled: Project, tmp_path: Path) -> None:
    package = tmp_path / "elsewhere/site-packages/asking.py"
    package.parent.mkdir(parents=True)
    package.write_text(f"import os\ndef tile(): return {ASKED}\n")
    asks = f"(__import__('sys').path.append({str(package.parent)!r}), __import__('asking').tile())[1]"
    tiled.write("kernels/tiled.py", TILED.format(top=1, inside=asks))
    tiled.write("pyproject.toml", DECLARED.partition("environment")[0])
    assert value(tiled, "3") == 1
