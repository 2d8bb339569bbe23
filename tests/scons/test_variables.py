"""Variables of the environment that definitions ask for: one rule for builds and on demand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.demand import Demand
from support.project import Project

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


@pytest.fixture
def tiled(cpu_project: Project) -> Project:
    for path in (cpu_project.folder / "kernels").iterdir():
        path.unlink()
    cpu_project.write("kernels/tiled.py", TILED.format(top=1, inside="float(os.environ.get('MY_TILE', 1))"))
    return cpu_project


def value(project: Project, variable: str) -> float:
    """What a build with that value of the variable multiplies by; empty: it is not set."""
    project.scons(env={"MY_TILE": variable} if variable else {})
    return float(project.python(VALUE))


@pytest.mark.parametrize("place", ["top", "inside"])
def test_a_declared_variable_is_a_dependency(tiled: Project, place: str) -> None:
    code = {"top": "1", "inside": "TILE"} | {place: "float(os.environ.get('MY_TILE', 1))"}
    tiled.write("kernels/tiled.py", TILED.format(**code))
    tiled.write("pyproject.toml", DECLARED)
    assert [value(tiled, variable) for variable in ("", "3", "3", "4", "")] == [1, 3, 3, 4, 1]
    assert tiled.scons().counts[0] == 0, "nothing to do"
    again = """
    kernel = kw.load("kernels/tiled.py").tiled
    for variable in ("5", "6", None, "5"):
        os.environ.pop("MY_TILE", None) if variable is None else os.environ.update(MY_TILE=variable)
        print(float(array(kernel.compile()(np.ones((1, 4), "float32")))[0, 0]))
    """
    assert Demand(tiled).run(again).stdout.split() == ["5.0", "6.0", "1.0", "5.0"]


ERROR = "asks for the variable MY_TILE, which is set, and which definitions do not see"
REMEDY = 'write environment = ["MY_TILE"] under [tool.kernelwright] in pyproject.toml: then definitions see it'


@pytest.mark.parametrize(
    ("asks", "env", "said"),
    [
        ("float(os.environ['MY_TILE'])", {"MY_TILE": "3"}, ERROR),
        ("float(os.getenv('MY_TILE') or 1)", {"MY_TILE": "3"}, ERROR),
        ("2.0 if 'MY_TILE' in os.environ else 1.0", {"MY_TILE": "3"}, ERROR),
        ("swallowing()", {"MY_TILE": "3"}, ERROR),
        ("float(os.environ['MY_TILE'])", {}, "raised KeyError: 'MY_TILE'"),
    ],
)
def test_a_variable_that_is_not_declared_is_an_error_that_says_how_to_declare_it(
    tiled: Project, asks: str, env: dict[str, str], said: str
) -> None:
    code = "def swallowing():\n    try: return os.environ['MY_TILE']\n    except BaseException: return 1.0\n\nTILE = 1"
    text = TILED.format(top=1, inside=asks)
    text = text.replace("TILE = 1", code) if "swallowing" in asks else text
    line = 1 + text[: text.index("'MY_TILE'")].count("\n")
    tiled.write("kernels/tiled.py", text)
    output = tiled.scons(env=env, ok=False).output
    assert f"kernels/tiled.py:{line} tiled/default [lower]: the definition of tiled {said}" in output
    assert REMEDY in output
    program = "kw.load('kernels/tiled.py').tiled.compile()"
    error = Demand(tiled).run(program, env=env, ok=False).stderr
    assert f"kernels/tiled.py:{line} tiled/default [lower]: the definition of tiled {said}" in error and REMEDY in error


def test_what_an_optional_variable_would_change_is_seen_when_it_is_set(tiled: Project) -> None:
    assert value(tiled, "") == 1
    assert ERROR in tiled.scons(env={"MY_TILE": "3"}, ok=False).output
    tiled.write("pyproject.toml", DECLARED)
    assert value(tiled, "3") == 3


def test_what_installed_packages_ask_for_is_their_own_affair(tiled: Project, tmp_path: Path) -> None:
    package = tmp_path / "elsewhere/site-packages/asking.py"
    package.parent.mkdir(parents=True)
    package.write_text("import os\ndef tile(): return float(os.environ.get('MY_TILE', 1))\n")
    asks = f"(__import__('sys').path.append({str(package.parent)!r}), __import__('asking').tile())[1]"
    tiled.write("kernels/tiled.py", TILED.format(top=1, inside=asks))
    assert value(tiled, "3") == 1


@pytest.mark.parametrize(
    ("names", "said"),
    [(["PYTHONPATH"], "sys.path"), (["LD_PRELOAD"], "use another name"), (["a b"], "letters, digits and underscores")],
)
def test_what_cannot_be_declared(tiled: Project, names: list[str], said: str) -> None:
    tiled.write("pyproject.toml", DECLARED.replace('["MY_TILE"]', str(names)))
    assert said in tiled.scons(ok=False).output
