"""Launches of programs in Triton: those of packages that were recorded are those that Triton makes itself.

Triton's own launcher and a package run beside each other, against the library that stands in for the driver. What both
ask for is compared byte by byte: the code, the grid, the block, the attributes and all parameters.
"""

from __future__ import annotations

import json
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from kernelwright.frontends.triton.program import NEED
from support.project import Project
from support.recorded import recorded
from support.standin_calls import beside, make_standin
from support.walks import THOROUGH

for name in ("triton", "torch"):
    try:
        version(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed: {NEED.install}", allow_module_level=True)

PROGRAMS = Path(__file__).parent / "programs"
SETTINGS = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_90a"]\n'
DEFINITION = 'from kernelwright.triton import recorded\n\nkernels = recorded("calls.json")\n'

FUNCTIONS = (
    *("optional", "numbers", "typed", "precise", "unspecialized", "constants"),
    *("matmul", "applied", "copied", "aware", "described", "by_descriptor", "decided", "tuned"),
)
"""Those of ``programs/everything.py``."""


def packaged(folder: Path, program: str) -> Project:
    """A package of what a program was recorded with."""
    project = Project.of(folder, SETTINGS, recorded=DEFINITION)
    shutil.copy(PROGRAMS / f"{program}.py", project.folder)
    recorded(folder, f"{program}.py", "--output", "kernels/calls.json", "--arch", "sm_90a")
    project.scons("-j2")
    make_standin(project)
    return project


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The package of all calls."""
    return packaged(tmp_path_factory.mktemp("everything"), "everything")


@pytest.fixture(scope="module")
def differences(everything: Project) -> dict[str, list[str]]:
    """Function -> its calls, and how launches of the package differ from those of Triton."""
    printed = beside(everything, COMPARED)
    found: dict[str, list[str]] = json.loads(printed.splitlines()[-1])
    return found


COMPARED = """
import json, torch
from pathlib import Path
import demo, everything
from support.triton_launches import Beside
beside = Beside(Path("log"), demo)
print(json.dumps(beside.differences(everything)))
"""


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_package_launches_what_triton_launches(differences, function):
    """Cubin, grid, block, shared memory, attributes and the bytes of each parameter, both through the program's own
    function while the package is used, and by the kernel of the package."""
    compared = differences[function]
    assert len(compared) >= 2 and not any(compared), "\n".join(filter(None, compared))


def test_all_functions_of_the_program_are_compared(differences):
    assert sorted(differences) == sorted(FUNCTIONS)


HOOKED = """
import demo, everything, kernelwright.triton, torch, triton
from pathlib import Path
from support.triton_launches import Beside

beside = Beside(Path("log"), demo)
x, runtime, seen = torch.zeros(1024), triton.knobs.runtime, []

def entered(told):
    assert type(told) is triton.compiler.LazyDict
    seen.append(("enter", told.data["name"], {**told.get(), "function": None}, beside._log.launches()))

def left(told):
    seen.append(("exit", told.data["name"], len(beside._log.launches())))

def before(*arguments, **named):
    seen.append(("before", len(arguments), named.get("BLOCK")))

everything.copied.add_pre_run_hook(before)

def calls():
    seen.clear()
    beside._log.taken()
    everything.copied[(4,)](x, x, 256, num_ctas=2)
    everything.copied[lambda meta: (meta["BLOCK"] // 64, 2, 3)](
        x, x, BLOCK=256, num_ctas=2, launch_pdl=True, launch_cooperative_grid=True)
    everything.optional[(0,)](x, x, None, 1000, 0.5)
    return list(seen)

def both():
    theirs = calls()
    with kernelwright.triton.use(demo):
        assert calls() == theirs, f"{theirs} {seen}"
    return theirs

assert [each[0] for each in both()] == ["before", "before"]
runtime.launch_exit_hook.add(left)
assert [each[0] for each in both()] == ["before", "exit"] * 2 + ["exit"]
runtime.launch_enter_hook.add(entered)
first, second = [each for each in both() if each[0] == "enter"][:2]
assert first[2]["name"] == "copied (4,) 4 2" and second[2]["name"] == "copied (4, 2, 3) 4 2", (first, second)
runtime.launch_exit_hook, runtime.launch_enter_hook = None, entered
both()

with kernelwright.triton.use(demo, otherwise="jit"):
    seen.clear()
    everything.copied[(4,)](x, x, 32)  # which Triton compiles
    assert [each[0] for each in seen] == ["before", "enter"], seen

with kernelwright.triton.use(demo):
    runtime.debug = True
    try:
        everything.copied[(4,)](x, x, 256)
    except ValueError as error:
        assert "no call with debug=True was recorded" in str(error), error
    else:
        raise AssertionError("code without checks has run")
"""


def test_hooks_of_triton_are_called_for_launches_of_a_package_as_for_its_own(everything):
    beside(everything, HOOKED)


COMPILED = """
import demo, everything, kernelwright.triton, torch, torch.utils._triton, triton
from pathlib import Path
from support.triton_launches import Beside

torch.utils._triton.has_triton = lambda: True  # as where PyTorch has a GPU; it then knows functions of Triton
beside = Beside(Path("log"), demo)

def theirs(x, n):
    y = x + 1
    everything.optional[lambda meta: (n, meta["BLOCK"])](y, y, None, 1000, 0.5, BLOCK=64)
    return y * 2

def ours(x, n):
    y = x + 1
    demo.optional[(n, 64)](y, y, None, 1000, 0.5)
    return y * 2

@torch.library.custom_op("test::launched", mutates_args=["y"])
def launched(y: torch.Tensor, n: int) -> None:
    demo.optional[(n, 64)](y, y, None, 1000, 0.5)

def through_operator(x, n):
    y = x + 1
    launched(y, n)
    return y * 2

def check(function, **options):
    torch._dynamo.reset()
    compiled = torch.compile(function, **options)
    for n in (2, 3, 4, 7):
        beside._log.taken()
        assert compiled(torch.ones(1000), n).tolist() == [4.0] * 1000
        assert [launch.grid for launch in beside._log.launches()] == [f"{n} 64 1"], (function, options)

def message_of(function, **options):
    try:
        check(function, **options)
    except Exception as error:
        return str(error)

check(ours, backend="aot_eager")
said = message_of(ours, backend="eager", fullgraph=True)
assert "put the launch into a function with torch.library.custom_op" in said, said
check(through_operator, backend="aot_eager", fullgraph=True)

def never(*_, **__):
    raise AssertionError("Triton compiles")

triton.runtime.jit.JITFunction._do_compile = never
with kernelwright.triton.use(demo):
    check(theirs, backend="aot_eager", fullgraph=True)
assert "Triton compiles" in message_of(theirs, backend="eager")
"""


def test_what_pytorch_compiles_launches_the_code_of_a_package(everything):
    beside(everything, COMPILED)


VARIED = """
import torch
from pathlib import Path
import demo, varied
from hypothesis import given, settings, strategies as st
from support.triton_launches import Beside

beside = Beside(Path("log"), demo)
known = list(varied.calls())
for function, arguments in known:
    assert beside.agree(varied, function, (varied.FLOATS, *arguments), compiles=True), (function, arguments)

EDGES = [0, 1, 16, 17, -1, -16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**63 - 1, -(2**63)]
LARGE = [2**63, 2**63 + 1, 2**64 - 16, 2**64 - 1]
floats = st.floats(width=32)
signed = st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1) | st.integers(-64, 64)
integers = signed | st.sampled_from(LARGE) | st.integers(2**63, 2**64 - 1)
pointers = st.sampled_from([*varied.POINTERS])
counts = {True: 0, False: 0}

def both(function, *arguments):
    arguments = [varied.POINTERS.get(a, a) if isinstance(a, str) else a for a in arguments]
    counts[beside.agree(varied, function, (varied.FLOATS, *arguments), compiles=False)] += 1

def checked(*strategies):
    chosen = settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True)
    return lambda test: chosen(given(*strategies)(test))

@checked(pointers, integers | floats | st.booleans() | st.none())
def untyped(x, n):
    both("untyped", x, n)

@checked(st.sampled_from(["floats", "odd floats", "halves"]), signed, integers | floats | st.booleans())
def typed(x, m, k):
    both("typed", x, m, k)

@checked(floats, st.sampled_from([1, 1.0, True, False, 0, 0.0, -0.0, 1.5, 2, None]))
def constant(f, count):
    both("constant", f, count)

for test in (untyped, typed, constant):
    test()
    assert all(counts.values()), (test, counts)
print("launched", counts[True], "refused", counts[False])
"""


def test_any_call_is_launched_as_by_triton_or_refused_where_triton_would_compile(tmp_path):
    project = packaged(tmp_path, "varied")
    printed = beside(project, f"EXAMPLES = {2000 if THOROUGH else 50}\n{VARIED}")
    launched, refused = (int(word) for word in printed.split()[-3::2])
    assert launched >= 20 and refused >= 20, printed
