"""Functions that a program was recorded with: built by real runs of scons, and called against the stand-in driver."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from kernelwright.frontends.triton.program import NEED
from kernelwright.frontends.triton.source_digest import digest_of_text
from support.project import Project
from support.recorded import recorded
from support.standin_calls import call, launches, make_standin

try:
    version("triton")
except PackageNotFoundError:
    pytest.skip(f"Triton is not installed: {NEED.install}", allow_module_level=True)

SETTINGS = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80", "sm_90a"]\n'

OPS = """
import triton
import triton.language as tl

SHIFT = tl.constexpr(3)

@triton.heuristics({"HAS_BIAS": lambda args: args["b"] is not None})
@triton.jit
def _scale_rows(y, x, b, stride, n, alpha, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + at, mask=at < n) * alpha + SHIFT
    if HAS_BIAS:
        value += tl.load(b + at, mask=at < n)
    tl.store(y + row * stride + at, value, mask=at < n)

@triton.autotune([triton.Config({"BLOCK": 128}, num_warps=2), triton.Config({"BLOCK": 64}, num_warps=8)], key=["n"])
@triton.jit
def tuned(y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 1.0, mask=at < n)

@triton.jit
def kinds(y, small: tl.int32, eps: tl.float32, free, KIND: tl.constexpr, SHAPE: tl.constexpr):
    at = tl.arange(0, SHAPE[0])
    tl.store(y + at, (small + eps + free).to(KIND))

@triton.jit
def paired(y, pair, num_warps: tl.constexpr):
    at = tl.arange(0, 64)
    tl.store(y + at, tl.load(pair[0] + at) * pair[1][0] + num_warps)
"""

SPECIALIZED: dict[str, Any] = {
    "_scale_rows": [
        {"types": {"y": "*fp32 16", "x": "*fp32 16", "stride": "i32 16", "n": "i32", "alpha": "fp32"},
         "constants": {"b": None, "HAS_BIAS": False, "BLOCK": 1024}},
        {"types": {"y": "*fp32 16", "x": "*fp32 16", "b": "*fp32 16", "stride": "i32 16", "n": "i32", "alpha": "fp32"},
         "constants": {"HAS_BIAS": True, "BLOCK": 1024}, "options": {"num_warps": 8}},
    ],
    "tuned": [
        {"types": {"y": "*fp32 16", "n": "i32"}, "constants": {"BLOCK": 64}, "options": {"num_warps": 8}},
        {"types": {"y": "*fp32 16", "n": "i32"}, "constants": {"BLOCK": 128}, "options": {"num_warps": 2}},
        {"types": {"y": "*fp32 16", "n": "i32 16"}, "constants": {"BLOCK": 64}, "options": {"num_warps": 8}},
    ],
    "kinds": [
        {"types": {"y": "*fp16 16", "small": "i32", "eps": "fp32", "free": "i64 16"},
         "constants": {"KIND": {"dtype": "fp16"}, "SHAPE": [64, 2]}},
    ],
    "paired": [
        {"types": {"y": "*fp32 16", "pair": ["*fp32 16", ["i32 16", {"constant": 1}]]}, "constants": {"num_warps": 8},
         "options": {"num_warps": 8}},
    ],
}  # fmt: skip
PARAMETERS = {
    "_scale_rows": ["y", "x", "b", "stride", "n", "alpha", "HAS_BIAS", "BLOCK"],
    "tuned": ["y", "n", "BLOCK"],
    "kinds": ["y", "small", "eps", "free", "KIND", "SHAPE"],
    "paired": ["y", "pair", "num_warps"],
}


def recording(**more: list[dict[str, Any]]) -> str:
    """The file, with more specializations of some functions."""
    functions = {
        f"ops:{name}": {
            "parameters": PARAMETERS[name],
            "source": "0" * 16,
            "specializations": [{"options": {}, "archs": ["sm_90a"], **one} for one in [*listed, *more.get(name, [])]],
        }
        for name, listed in SPECIALIZED.items()
    }
    return json.dumps({"schema": 1, "functions": functions})


def recording_of(name: str) -> str:
    """The file, with one function."""
    functions = json.loads(recording())["functions"]
    return json.dumps({"schema": 1, "functions": {f"ops:{name}": functions[f"ops:{name}"]}})


def new_project(folder: Path, arguments: str = "") -> Project:
    project = Project.of(folder, SETTINGS)
    project.write("kernels/ops.py", OPS.replace("\n@triton", "\n\n@triton"))
    project.write("kernels/program.py", declaration(arguments))
    project.write("kernels/calls.json", recording())
    project.write(
        "SConstruct", project.folder.joinpath("SConstruct").read_text().replace("kernels/*.py", "kernels/p*.py")
    )
    return project


def declaration(arguments: str = "") -> str:
    return f'from kernelwright.triton import recorded\n\nkernels = recorded("calls.json"{arguments})\n'


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project, which tests do not change."""
    project = new_project(tmp_path_factory.mktemp("recorded"))
    assert project.scons("-j2").labels["LOWER"] == 14
    make_standin(project)
    return project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """A copy of the built project."""
    return built.copied(tmp_path / "copy")


ARRAYS = """
y, x, b, h = on_cuda(4, 1000), on_cuda(4, 1000), on_cuda(1000), on_cuda(64, dtype=half)
"""


def run(project: Project, code: str, capability: int = 90, **more: Any) -> tuple[str, list[str]]:
    printed, log = call(project, ARRAYS + textwrap.dedent(code), capability=capability, **more)
    return printed, launches(log)


def test_a_call_runs_the_code_of_its_form_on_each_arch_with_what_the_program_passes(built):
    code = """
    demo.scale_rows[(4, 2)](y, x, None, 1024, 1000, 0.5, BLOCK=1024)
    options = dict(BLOCK=1024, num_warps=8)
    grid = lambda meta: (meta["n"], meta["BLOCK"], meta["HAS_BIAS"])
    demo.scale_rows[grid](y, x, b, 1024, n=999, alpha=2.0, **options)
    """
    for capability, arch in ((90, "90"), (80, "80")):
        _, (plain, biased) = run(built, code, capability, parameters="ppiif")
        assert f"sm_{arch} " in plain
        assert "grid 4 2 1 block 128 1 1" in plain
        assert plain.endswith("1024 1000 0.5")
        assert "grid 999 1024 1 block 256 1 1" in biased


def test_a_heuristic_decides_also_if_the_call_says_otherwise(built):
    code = "demo.scale_rows[(4,)](y, x, None, 1024, 1000, 0.5, HAS_BIAS=True, BLOCK=1024)"
    _, (launch,) = run(built, code, parameters="ppiif")
    assert launch.endswith("1024 1000 0.5")


def test_a_tuned_function_runs_the_first_config_that_was_recorded_for_the_call(built):
    code = """
    demo.tuned[lambda meta: (meta["BLOCK"],)](y, 1000)
    demo.tuned[lambda meta: (meta["BLOCK"],)](y, 1008)
    demo.tuned[(7,)](y, 1000, BLOCK=64, num_warps=8)
    """
    _, (first, other, given) = run(built, code)
    assert "grid 128 1 1 block 64 1 1" in first
    assert "grid 64 1 1 block 256 1 1" in other
    assert "grid 7 1 1 block 256 1 1" in given


def test_constants_of_any_type_and_numbers_of_declared_types_are_compared_as_triton_does(built):
    code = """
    import torch, triton.language as tl
    demo.kinds[(1,)](h, 7, 0.5, 1 << 40, tl.float16, (64, 2))
    demo.kinds[(1,)](h, 1, 2, 1 << 40, torch.float16, [64, 2])
    demo.kinds[(1,)](h, True, True, 1 << 40, tl.float16, (64, 2))
    print(message_of(demo.kinds[(1,)], h, 7, 0.5, 16, tl.float16, (64, 2)))
    print(message_of(demo.kinds[(1,)], h, 7, 0.5, 1 << 40, tl.float32, (64, 2)))
    """
    printed, found = run(built, code, parameters="pifl")
    assert [launch.split("parameters ")[1].split()[1:] for launch in found] == [
        ["7", "0.5", str(1 << 40)],
        ["1", "2", str(1 << 40)],
        ["1", "1", str(1 << 40)],
    ]
    assert re.findall(r"recorded has: (.*)", printed) == ["free = int64, a multiple of 16", 'KIND = {"dtype":"fp16"}']


def test_the_elements_of_a_tuple_are_passed_and_an_option_can_be_a_parameter(built):
    code = """
    demo.paired[(1,)](y, (x, (32, 1)), num_warps=8)
    print(message_of(lambda: demo.paired[(1,)](y, (x, (33, 1)), num_warps=8)))
    print(message_of(lambda: demo.paired[(1,)](y, (x, 32), num_warps=8)).splitlines()[0])
    """
    printed, (launch,) = run(built, code, parameters="ppi")
    assert "block 256 1 1" in launch
    assert launch.split()[-1] == "32"
    assert "recorded has: pair.1.0 = int32, a multiple of 16" in printed
    assert printed.splitlines()[-1].endswith("no such call was recorded: its parameter 'pair' is no tuple of 2")


REFUSED = {
    "y, x, None, 1024, 1000, 0.5, BLOCK=512": "the nearest of the 2 that were recorded has: BLOCK = 1024",
    "y, x, None, 1024, 1008, 0.5, BLOCK=1024": "recorded has: n = int32, no multiple of 16",
    "y, x, None, 1024, 1, 0.5, BLOCK=1024": "recorded has: n = int32, no multiple of 16",
    "y, x, None, 1024, 1000, 1, BLOCK=1024": "recorded has: alpha = float32",
    "y, h, None, 1024, 1000, 0.5, BLOCK=1024": "recorded has: x = *float32, a multiple of 16",
    "y, x, None, 1024, 1000, 0.5, BLOCK=1024, num_warps=16": "recorded has: num_warps = the default",
    "y, x, None, 1024, 1000, 0.5, BLOCK=1024, maxnreg=8": "no call with maxnreg=8 was recorded",
    "y, x, None, 1024, 1000, BLOCK=1024": "its parameter 'alpha' is missing",
    "y, x, None, 1024, 1000, 0.5, BLOK=1024": "it has no parameter 'BLOK'",
    "y, x, None, 1024, 1000, 0.5, False, 1024, 3": "it has 8 parameters, and 9 values were given",
    "y, x, None, 1024, 1000, 0.5, x=3": "its parameter 'x' is given twice",
    "y, on_cuda(4, device=1), None, 1024, 1000, 0.5, BLOCK=1024": "tensors are on several devices, cuda:0 and cuda:1",
}  # fmt: skip


def test_a_call_that_was_not_recorded_is_an_error_that_says_where_it_differs_and_is_noted(built):
    calls = "\n".join(f"said(dict(grid=(4,)), lambda f: f({arguments}))" for arguments in REFUSED)
    code = f"""
def said(options, launch):
    try:
        launch(demo.scale_rows[options["grid"]])
    except Exception as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))
    else:
        print("it ran")
{calls}
print(len(demo.misses()), demo.misses()[0]["arguments"][7])
"""
    printed, found = run(built, code)
    *lines, noted = printed.splitlines()
    for line, expected in zip(lines, REFUSED.values(), strict=True):
        assert expected in line
        assert line.startswith(("ValueError kernel 'scale_rows': ", "TypeError kernel 'scale_rows': "))
    assert not found
    assert noted == "6 {'name': 'BLOCK', 'kind': 'int', 'value': 512}"


def test_a_grid_is_up_to_three_integers_and_one_without_blocks_launches_nothing(built):
    code = """
    import numpy as np
    passed = y, x, None, 1024, 1000, 0.5
    for grid in ((0,), (4, 0, 2), [5], (np.int64(6), 1, 1), (-1,), (1, 70000), (1, 2, 3, 4), 4, ("a",)):
        try:
            demo.scale_rows[grid](*passed, BLOCK=1024)
        except Exception as error:
            print(f"{type(error).__name__}: {error}".splitlines()[0])
    print(message_of(demo.scale_rows, 3).splitlines()[0])
    """
    printed, found = run(built, code)
    assert [re.search("grid (.*) block", launch)[1] for launch in found] == ["5 1 1", "6 1 1"]
    assert printed.splitlines() == [
        "ValueError: kernel 'scale_rows': the grid has -1 blocks along x, and 0 to 2147483647 are possible",
        "ValueError: kernel 'scale_rows': the grid has 70000 blocks along y, and 0 to 65535 are possible",
        "TypeError: kernel 'scale_rows': the grid has 4 numbers",
        "TypeError: kernel 'scale_rows': the grid is 4",
        "TypeError: kernel 'scale_rows': the grid has something along x that is no integer",
        "TypeError: kernel 'scale_rows': it is called with a grid",
    ]


def test_general_code_runs_what_was_not_recorded_and_exact_code_what_was(project):
    project.write("kernels/program.py", declaration(", general=True"))
    # Two calls of tuned() have one general form. What is there is lowered again, because the definition was edited.
    assert project.scons("-j2", "ARCHS=sm_90a").labels["LOWER"] == 7 + 6
    code = """
    def launch(stride, n):
        demo.scale_rows[(4,)](y, x, None, stride, n, 0.5, BLOCK=1024)
    for n in (1000, 1008, 1, 16):
        launch(1024, n)
        print(demo.scale_rows.choice(y, x, None, 1024, n, 0.5, BLOCK=1024).variant)
    launch(1, 7)
    print(message_of(launch, 1 << 40, 7))
    """
    printed, found = run(project, code)
    assert [("general" in line) for line in printed.splitlines()[:4]] == [False, True, True, True]
    assert len(found) == 5
    assert "stride = int32" in printed


def test_a_program_with_triton_runs_the_code_of_a_package_or_is_told_what_is_missing(built):
    code = """
    import sys
    sys.path.append("kernels")
    import ops, triton, kernelwright.triton
    with kernelwright.triton.use(demo) as use:
        ops._scale_rows[(4,)](y, x, None, 1024, 1000, 0.5, BLOCK=1024)
        print(message_of(lambda: ops._scale_rows[(4,)](y, x, None, 1024, 1000, 0.5, BLOCK=2048)).splitlines()[0])
        ops.SHIFT = triton.language.constexpr(4)
        print(message_of(lambda: ops._scale_rows[(4,)](y, x, None, 1024, 1000, 0.5, BLOCK=1024)))
        print(message_of(kernelwright.triton.use, triton).splitlines()[0])
    print(triton.runtime.jit.JITFunction.run.__module__)
    """
    printed, found = run(built, code)
    assert len(found) == 1
    assert printed.splitlines()[0] == "ValueError: kernel 'scale_rows': no such call was recorded"
    assert "no code for ops:_scale_rows: its text, that of a function that it calls, or a constant" in printed
    assert "is no kernel package" in printed
    assert printed.splitlines()[-1] == "triton.runtime.jit"


def test_the_config_that_was_the_fastest_runs_where_it_was_measured(project):
    file = json.loads(recording())
    config = {"BLOCK": 64, "num_warps": 8, "num_stages": 3}
    file["functions"]["ops:tuned"]["choices"] = [{"key": [1000, "float32"], "config": config, "archs": ["sm_90a"]}]
    project.write("kernels/calls.json", json.dumps(file))
    assert project.scons("-j2").labels["LOWER"] == 6  # all of this function: the package has another choice
    code = """
    demo.tuned[lambda meta: (meta["BLOCK"],)](y, 1000)
    demo.tuned[lambda meta: (meta["BLOCK"],)](y, 1001)
    """
    for capability, blocks in ((90, ["64", "128"]), (80, ["128", "128"])):
        _, found = run(project, code, capability)
        assert [re.search(r"grid (\d+)", launch)[1] for launch in found] == blocks


def test_tuning_is_refused_with_the_command_that_measures_configs(built):
    for word, names in (("tuned", "tuned"), ("--check", "kinds, paired, scale_rows, tuned")):
        said = built.kernelwright("tune", "--file", "kernels/program.py", word, status=1)
        assert said.startswith(f"kernelwright: [tune]: {names}: a function of a recorded program is tuned by Tr")
        assert "kernelwright record --arch sm_90a --timings FOLDER program.py" in said


# ---- what is built again


def test_a_new_specialization_lowers_nothing_else_and_an_edit_of_the_function_lowers_all_of_it(project):
    more = {"types": {"y": "*fp16 16", "n": "i32"}, "constants": {"BLOCK": 64}}
    project.write("kernels/calls.json", recording(tuned=[more]))
    assert project.scons("-j2").labels == {"LOWER": 2, "WRAP": 1, "CC": 1, "LINK": 1, "PACKAGE": 1}
    project.write("kernels/calls.json", json.dumps(json.loads(recording(tuned=[more])), indent=4))
    assert "LOWER" not in project.scons("-j2").labels
    project.write("kernels/ops.py", project.folder.joinpath("kernels/ops.py").read_text().replace("1.0", "2.0"))
    assert project.scons("-j2").labels["LOWER"] == 16


def test_a_function_that_has_changed_since_it_was_recorded_is_told_at_each_run_and_refused_in_strict_mode(project):
    def told(*options: str, ok: bool = True) -> list[str]:
        return [
            line for line in project.scons("-n", *options, ok=ok).output.splitlines() if "has changed since" in line
        ]

    recorded = json.loads(recording())
    for node in ast.parse(OPS).body:
        if isinstance(node, ast.FunctionDef):
            recorded["functions"][f"ops:{node.name}"]["source"] = digest_of_text(
                ast.get_source_segment(OPS, node) or ""
            )
    project.write("kernels/calls.json", json.dumps(recorded))
    text = OPS.replace("alpha + SHIFT", "alpha  +  SHIFT  # a comment\n").replace("key=", "warmup=1, key=")
    text = text.replace("BLOCK: tl.constexpr):\n", 'BLOCK: tl.constexpr):\n    """Says what it does."""\n\n')
    project.write("kernels/ops.py", text)
    assert told() == []
    project.write("kernels/ops.py", text.replace("alpha  +", "alpha  -"))
    line = (
        "kernelwright: ops:_scale_rows has changed since kernels/calls.json was recorded; "
        "record the program again: kernelwright record --output kernels/calls.json program.py"
    )
    assert told() == told() == [line]
    (refused,) = told("--strict", ok=False)
    assert line.removeprefix("kernelwright: ") in refused
    project.write("kernels/ops.py", OPS)
    assert told() == []


def test_two_builds_have_the_same_bytes_in_any_folder(built, tmp_path):
    other = new_project(tmp_path / "elsewhere")
    name = "build/kernels/demo/scale_rows/scale_rows.so"
    other.scons("scale_rows")
    assert (other.folder / name).read_bytes() == (built.folder / name).read_bytes()


# ---- bad input

BAD = {
    "a missing file": ("unlink", "", "there is no file calls.json", "record --output kernels/calls.json program.py"),
    "damage": ('"schema"', '"schma"', "calls.json is damaged: ", "delete it, and record the program"),
    "another parameter": ('"stride"', '"strides"', "ops:_scale_rows has the parameters y, x, b, stride, n", "--fresh"),
    "no such function": ("ops:_scale", "ops:_skale", "the module 'ops' has no '_skale_rows' any more", "--fresh"),
    "no such module": ("ops:_scale", "oops:_scale", "there is no module 'oops', which oops:_scale_rows", "sys.path"),
    "what does not compile": ('"y": "*fp32 16", "x"', '"y": "fp32", "x"', "Triton cannot compile it for", "mend"),
    "no functions": ("empty", "", "calls.json has no functions", "record the program"),
}  # fmt: skip


NAMES = {
    "two functions of a name": (", names={'ops:tuned': 'kinds'}", "functions would become kernels of one name: "),
    "a name that no kernel can have": (", names={'ops:tuned': 'if'}", "ops:tuned cannot be a kernel called 'if'"),
    "a name for nothing": (", names={'ops:nothing': 'x'}", "calls.json has no function 'ops:nothing', which names has"),
    "an option of other kernels": (", outputs=['y']", "recorded() has no argument 'outputs'"),
}  # fmt: skip


def test_a_backend_that_has_to_know_arguments_is_refused(project):
    project.write("pyproject.toml", SETTINGS + 'backends = ["tvm_ffi", "cuda_core", "torch"]\n')
    project.write("kernels/program.py", declaration(", backends=['tvm_ffi', 'cuda_core']"))
    printed = project.scons(ok=False).output
    assert "its arguments are not declared" in printed
    assert "leave backends out" in printed


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one build says of all that is wrong, in files of their own."""
    project = new_project(tmp_path_factory.mktemp("wrong"))
    project.write("kernels/program.py", declaration().replace("calls", "tuned") + "\nimport ops\n")
    project.write("kernels/tuned.json", recording_of("tuned"))
    for number, (old, new, *_) in enumerate(BAD.values()):
        text = recording_of("_scale_rows").replace(old, new) if old != "empty" else '{"schema": 1, "functions": {}}'
        if old != "unlink":
            project.write(f"kernels/bad{number}.json", text)
        names = ", names={'ops:_scale_rows': 'strided'}" if "strides" in new else ""
        project.write(f"kernels/p{number}.py", declaration(names).replace("calls", f"bad{number}"))
    for number, (arguments, _) in enumerate(NAMES.values()):
        project.write(f"kernels/pn{number}.py", declaration(arguments))
    return project.scons("-k", "-j2", "ARCHS=sm_90a", ok=False).output


@pytest.mark.parametrize("number", range(len(BAD)), ids=list(BAD))
def test_what_is_wrong_with_a_recording_is_an_error_with_a_remedy(wrong, number):
    *_, message, remedy = [*BAD.values()][number]
    _, said, after = wrong.partition(message.replace("calls", f"bad{number}"))
    assert said, wrong
    assert remedy.replace("calls", f"bad{number}") in after.partition("scons: ***")[0]
    assert "Traceback" not in wrong


@pytest.mark.parametrize("case", NAMES)
def test_what_is_wrong_with_a_declaration_is_an_error_with_a_remedy(wrong, case):
    _, said, after = wrong.partition(NAMES[case][1])
    assert said, wrong
    assert "remedy: " in after.partition("scons: ***")[0]


def test_a_definition_file_that_imports_recorded_functions_is_refused(wrong):
    assert "the definition file imports 'ops', which has recorded functions" in wrong
    assert "remedy: do not import it there: put what both need into a module without functions of Triton" in wrong


# ---- what the program does when it is imported, and what its decorators decide

DECIDING = """
import triton
import triton.language as tl

HOPPER = triton.runtime.driver.active.get_current_target().arch >= 90
WIDTH = tl.constexpr(256 if HOPPER else 64)
DEFAULT = 32

@triton.jit
def by_arch(y, n):
    at = tl.arange(0, WIDTH)
    tl.store(y + at, 1.0, mask=at < n)

@triton.autotune([triton.Config({"BLOCK": 256 if HOPPER else 64}), triton.Config({"BLOCK": 16})], key=["n"])
@triton.jit
def configs_by_arch(y, n, BLOCK: tl.constexpr = DEFAULT):
    tl.store(y + tl.arange(0, BLOCK), n)

@triton.autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 64})], key=["n"],
                 prune_configs_by={"early_config_prune": lambda configs, args, **more: configs[1:]})
@triton.jit
def pruned(y, n, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), n)

def unclear(args):
    print("too much for an expression")
    return True

@triton.heuristics({"WIDE": unclear})
@triton.jit
def heuristic_with_a_default(y, n, WIDE: tl.constexpr = False):
    tl.store(y + tl.arange(0, 64 if WIDE else 32), n)

@triton.heuristics({"num_warps": lambda args: 8 if args["n"] > 512 else 4})
@triton.jit
def warps(y, n):
    tl.store(y + tl.arange(0, 64), n)

@triton.jit(debug=True)
def debugged(y, n):
    tl.device_assert(n > 0)
    tl.store(y + tl.arange(0, 64), n)

@triton.jit
def pair(y, PAIR: tl.constexpr):
    tl.store(y + tl.arange(0, 64), PAIR[1])

@triton.jit
def padded(y, n, pad=(1, 20)):
    tl.store(y + tl.arange(0, 64), pad[1] * n)
"""

DECIDING += """
@triton.jit
def usual(y, n, BLOCK: tl.constexpr, SCALE: tl.constexpr = 2):
    tl.store(y + tl.arange(0, BLOCK), n * SCALE)
"""

DECIDING += """
@triton.autotune([triton.Config({"KIND": tl.float32}), triton.Config({"KIND": tl.float16}, num_warps=8)], key=[])
@triton.jit
def of_a_kind(y, KIND: tl.constexpr):
    tl.store(y + tl.arange(0, 64), tl.full((64,), 1, KIND).to(tl.float32))
"""

PROGRAM = """
import torch
from deciding import *

y = torch.zeros(1024, device="cuda")
by_arch[(1,)](y, 5)
configs_by_arch[(1,)](y, 5)
pruned[(1,)](y, 5)
heuristic_with_a_default[(1,)](y, 5)
warps[(1,)](y, 5)
warps[(1,)](y, 1001)
debugged[(1,)](y, 5)
pair[(1,)](y, (None, 2))
pair[(1,)](y, (float("inf"), 2))
padded[(1,)](y, 1)
padded[(1,)](y, 3)
usual[(1,)](y, 3, 64)
usual[(1,)](y, 3, 64, num_warps=8)
of_a_kind[(1,)](y)
"""


@pytest.fixture(scope="module")
def deciding(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose recording was made by a run of the program."""
    project = Project.of(tmp_path_factory.mktemp("deciding"), SETTINGS)
    project.write("deciding.py", DECIDING)
    project.write("program.py", PROGRAM)
    project.write("kernels/recorded.py", declaration())
    words = ["--output", "kernels/calls.json", "--arch", "sm_80", "--arch", "sm_90a"]
    recorded(project.folder, "program.py", *words)
    project.scons("-j2")
    make_standin(project)
    return project


def test_what_a_module_makes_of_the_gpu_is_that_of_each_arch(deciding):
    code = "y = on_cuda(1024)\ndemo.by_arch[(1,)](y, 5)\ndemo.configs_by_arch[lambda meta: (meta['BLOCK'],)](y, 5)"
    for capability, width in ((80, 64), (90, 256)):
        _, (_, tuned) = run(deciding, code, capability)
        assert f"grid {width} 1 1" in tuned
    for arch, width in (("sm_80", 64), ("sm_90a", 256)):
        (ir,) = deciding.folder.glob(f"build/kernels/demo/by_arch/*/cuda/{arch}/module.ttir")
        assert f"end = {width} : i32" in ir.read_text()


def test_what_a_package_cannot_decide_as_the_program_does_has_to_be_given(deciding):
    code = """
    y = on_cuda(1024)
    demo.pruned[(1,)](y, 5)  # for this key, one config was left
    print(message_of(lambda: demo.pruned[(1,)](y, 6)))
    demo.pruned[(1,)](y, 5, BLOCK=64)
    print(message_of(lambda: demo.heuristic_with_a_default[(1,)](y, 5)))
    demo.heuristic_with_a_default[(1,)](y, 5, WIDE=True)
    print(message_of(lambda: demo.pair[(1,)](y, (object(), 2))).splitlines()[0])
    print(message_of(lambda: demo.pair[(1,)](y, "[null,2]")).splitlines()[0])
    demo.pair[(1,)](y, (None, 2))
    demo.pair[(1,)](y, (float("inf"), 2))
    demo.padded[(1,)](y, 3)
    print(message_of(lambda: demo.padded[(1,)](y, 3, grid=(7,))).splitlines()[0])
    """
    printed, found = run(deciding, code)
    assert len(found) == 6
    assert "its parameter 'BLOCK' is missing" in printed
    assert "its parameter 'WIDE' is missing" in printed
    assert [line.rpartition(": ")[2] for line in printed.splitlines()[-3:]] == [
        "no such call was recorded",
        "no such call was recorded",
        "it has no parameter 'grid'",
    ]


def test_a_usual_call_is_as_any_other_however_its_arguments_and_its_grid_are_written(deciding):
    code = """
    y = on_cuda(1024)
    f = demo.usual
    f[(1,)](y, 3, 64)
    f[(1,)](y, BLOCK=64, n=3)
    f[(1,)](n=3, y=y, BLOCK=64, SCALE=2, num_warps=4)
    f[(1,)](y, 3, 64, num_warps=8)
    f[(1,)](y, 3, 64, num_warps=8, num_stages=3)
    f[(1, 1)](y, 3, 64)
    f[[1]](y, 3, BLOCK=64)
    f[lambda meta: (meta["SCALE"] - 1,)](y, 3, 64)
    f.run(y, 3, 64, grid=(1,), warmup=False)
    f.run(y, 3, 64, grid=(1,), warmup=True)
    for launch in (
        lambda: f[(1,)](y, 3),
        lambda: f[(1,)](y, 3, 64, 2, 5),
        lambda: f[(1,)](y, 3, 64, n=4),
        lambda: f[(1,)](y, 3, 64, num_warps=2),
        lambda: f[(1,)](y, 3, 64, num_stages=2),
        lambda: f[(1,)](y, 3, 64, other=2),
        lambda: f.variant(call=f.variants[0]["call"]),
        lambda: f.best_config,
        lambda: f.nothing,
    ):
        print(message_of(launch).splitlines()[0])
    assert f.arg_names == ["y", "n", "BLOCK", "SCALE"]
    assert "remedy: ask the program's own function" in message_of(lambda: f.best_config)
    """
    printed, found = run(deciding, code)
    assert [re.search(r"grid (\d) 1 1 block (\d+)", launch)[2] for launch in found] == ["128"] * 3 + ["256"] * 2 + [
        "128"
    ] * 4
    assert printed.splitlines() == [
        "TypeError: kernel 'usual': its parameter 'BLOCK' is missing",
        "TypeError: kernel 'usual': it has 4 parameters, and 5 values were given",
        "TypeError: usual() got multiple values for argument 'n'",
        "ValueError: kernel 'usual': no such call was recorded",
        "ValueError: kernel 'usual': no call with num_stages=2 was recorded",
        "TypeError: kernel 'usual': it has no parameter 'other'",
        "TypeError: kernel 'usual': its variants are for calls of different forms, and a call finds its own",
        "AttributeError: a recorded function of a package has no attribute 'best_config'",
        "AttributeError: a recorded function of a package has no attribute 'nothing'",
    ]


def test_a_config_can_give_a_dtype(deciding):
    code = "import triton.language as tl\ny = on_cuda(64)\ndemo.of_a_kind[(1,)](y)\n"
    _, found = run(deciding, code + "demo.of_a_kind[(1,)](y, KIND=tl.float16, num_warps=8)")
    assert [re.search(r"block (\d+)", launch)[1] for launch in found] == ["128", "256"]


def test_general_code_of_sizes_that_were_1_and_others_is_built_once_for_both(deciding, tmp_path):
    project = deciding.copied(tmp_path / "copy")
    project.write("kernels/recorded.py", declaration(", general=True"))
    file = json.loads((project.folder / "kernels/calls.json").read_text())
    file["functions"] = {"deciding:padded": file["functions"]["deciding:padded"]}
    project.write("kernels/calls.json", json.dumps(file))
    project.scons("-j2", "ARCHS=sm_90a")
    code = "y = on_cuda(1024)\nfor n in (1, 3, 16):\n    demo.padded[(1,)](y, n)"
    assert len(run(project, code)[1]) == 3


LIMITED = """
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": b, "DEEP": d}, num_warps=32) for b, d in ((64, 16), (16, 512), (32, 16))]

@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def limited(y, n, BLOCK: tl.constexpr, DEEP: tl.constexpr):
    tl.static_assert(BLOCK < 64)
    a = tl.load(y + tl.arange(0, 64)[:, None] * n + tl.arange(0, DEEP)[None, :])
    b = tl.load(y + tl.arange(0, DEEP)[:, None] * n + tl.arange(0, 64)[None, :])
    tl.store(y + tl.arange(0, 64)[:, None] + tl.arange(0, 64)[None, :], tl.dot(a, b))
"""


def limited_recording(*blocks: tuple[int, int], **more: Any) -> str:
    """A recording of some configs of the function."""
    one = {"types": {"y": "*fp32 16", "n": "i32"}, "options": {"num_warps": 32}, "archs": ["sm_90a"]}
    forms = [one | {"constants": {"BLOCK": block, "DEEP": deep}} for block, deep in blocks]
    known = {"parameters": ["y", "n", "BLOCK", "DEEP"], "source": "0" * 16, "specializations": forms, **more}
    return json.dumps({"schema": 1, "functions": {"ops:limited": known}})


def test_configs_that_cannot_run_are_left_out_while_another_is_left(tmp_path):
    project = new_project(tmp_path / "limited")
    project.write("kernels/ops.py", LIMITED)
    project.write("kernels/calls.json", limited_recording((64, 16), (16, 512), (32, 16)))
    project.write("pyproject.toml", SETTINGS.replace('"sm_80", ', "") + 'compress = "size"\n')
    done = project.scons("-j2")
    line = LIMITED.splitlines().index("    tl.static_assert(BLOCK < 64)") + 1
    told = [each for each in done.output.splitlines() if "is left out" in each]
    assert len(told) == 2
    asserted, large = [next(each for each in told if text in each) for text in ("static_assert", "shared memory")]
    assert asserted.startswith(f"kernelwright: kernels/ops.py:{line} limited/call-BLOCK-64_DEEP-16_")
    assert "tl.static_assert(BLOCK < 64), so this config of ops:limited is left out" in asserted
    assert "limited/call-BLOCK-16_DEEP-512_" in large
    entry = json.loads((project.folder / "build/demo/manifest.json").read_text())["kernels"]["limited"]
    assert [variant["slug"].split("_")[0] for variant in entry["variants"]] == ["call-BLOCK-32"]
    first = (project.folder / "build/demo/manifest.json").read_bytes()
    project.scons("-c")
    project.scons("-j2")  # from the cache
    assert (project.folder / "build/demo/manifest.json").read_bytes() == first
    make_standin(project)
    code = """
    import sys
    sys.path.append("kernels")
    import ops, triton, kernelwright.triton
    demo.limited[(1,)](y, 3)
    ops.limited._do_bench = lambda call, quantiles: call() or [1.0] * 3
    with kernelwright.triton.use(demo):
        ops.limited[(1,)](y, 3)
    print(ops.limited.best_config.kwargs)
    """
    printed, found = run(project, code)
    assert len(found) == 3 and printed.splitlines()[-1] == "{'BLOCK': 32, 'DEEP': 16}"
    # What was the fastest counts as what is left; then what was the fastest is gone.
    config = {"BLOCK": 32, "DEEP": 16, "num_warps": 32, "num_stages": 3}
    chosen = [{"key": [3, "float32"], "config": config, "archs": ["sm_90a"]}]
    project.write("kernels/calls.json", limited_recording((64, 16), (32, 16), choices=chosen))
    assert project.scons("-j2").output.count("is left out") == 1
    config["BLOCK"] = 64
    project.write("kernels/calls.json", limited_recording((64, 16), (32, 16), choices=chosen))
    assert f"kernels/ops.py:{line} limited/call-BLOCK-64" in project.scons("-j2", ok=False).output


def test_uses_of_packages_can_be_closed_in_any_order(built):
    code = """
    import sys
    sys.path.append("kernels")
    import ops, triton, kernelwright.triton
    plain = triton.runtime.jit.JITFunction.run
    first = kernelwright.triton.use(demo)
    second = kernelwright.triton.use(demo, otherwise="jit")
    first.close()
    ops.tuned.fn[(1,)](y, 1000, BLOCK=64, num_warps=8)
    second.close()
    third = kernelwright.triton.use(demo)
    ops.tuned.fn[(2,)](y, 1000, BLOCK=64, num_warps=8)
    third.close()
    """
    assert [re.search(r"grid (\d+)", launch)[1] for launch in run(built, code)[1]] == ["1", "2"]


def test_heuristics_of_options_and_options_of_the_decorator_count(deciding):
    code = "y = on_cuda(1024)\nfor n in (5, 1001):\n    demo.warps[(1,)](y, n)\ndemo.debugged[(1,)](y, 5)"
    _, found = run(deciding, code)
    assert [re.search(r"block (\d+)", launch)[1] for launch in found] == ["128", "256", "128"]


def test_in_place_of_triton_a_package_is_of_the_functions_and_constants_that_the_program_has(built):
    code = """
    import sys
    sys.path.append("kernels")
    import ops, kernelwright.triton
    from kernelwright.frontends.triton.source_digest import source_of
    before = source_of(ops._scale_rows.fn)
    assert source_of(ops._scale_rows.fn).digest == before.digest and before.is_current
    import triton.language as tl
    ops.SHIFT = tl.constexpr(tl.float16)
    after = source_of(ops._scale_rows.fn)
    assert not before.is_current and after.digest != before.digest
    ops._scale_rows.fn._unsafe_update_src(ops._scale_rows.fn.src.rstrip() + "\\n    pass")
    assert not after.is_current and source_of(ops._scale_rows.fn).digest != after.digest
    """
    assert run(built, code) == ("", [])


def test_a_decorator_of_another_library_around_the_function_is_looked_through(tmp_path, monkeypatch):
    from kernelwright.core.errors import Where
    from kernelwright.frontends.triton.recorded_function import found

    text = """
import triton

class Entry(triton.runtime.jit.KernelInterface):
    def __init__(self, fn):
        self.fn, self.arg_names = fn, fn.arg_names

@Entry
@triton.heuristics({"A": lambda args: args["n"] > 3})
@Entry
@triton.jit
def inside(y, n, A):
    pass
"""
    (tmp_path / "entries.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = found("entries:inside", "calls.json", Where())
    assert known.heuristics == {"A": "args['n'] > 3"}
    assert [parameter.name for parameter in known.function.params] == ["y", "n", "A"]
