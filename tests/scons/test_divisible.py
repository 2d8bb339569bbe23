"""Classes of sizes: a variant for multiples of a number, whose code has no tail, and one for all other sizes."""

from __future__ import annotations

import json
import re

import pytest
from support.demand import Demand
from support.project import Project

TWICE = '''\
from kernelwright import grid, kernel
from tvm.script import tirx as T
from tvm.tirx import Var


@kernel(configs=grid(dtype=["float32", "float16"]), divisible={"n": [1, 16]}, outputs=["y"])
def twice(dtype: str, target, n_multiple_of: int = 1):
    """y = 2 x, and in y[0] the class of the variant, so that it can be told which one ran."""
    n = Var("n", "int32")
    if target.kind.name == "cuda":
        @T.prim_func(s_tir=True)
        def cuda(x: T.Buffer((n,), dtype), y: T.Buffer((n,), dtype)):
            for b in T.thread_binding(T.ceildiv(n, 1024), thread="blockIdx.x"):
                for t in T.thread_binding(256, thread="threadIdx.x"):
                    for v in T.vectorized(4):
                        if b * 1024 + t * 4 + v < n:
                            y[b * 1024 + t * 4 + v] = x[b * 1024 + t * 4 + v] * T.Cast(dtype, 2)
        return cuda

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((n,), dtype), y: T.Buffer((n,), dtype)):
        for i in T.serial(n):
            y[i] = x[i] * T.Cast(dtype, 2)
        if n > 0:
            y[0] = T.Cast(dtype, n_multiple_of)

    return main
'''
CALL = """\
import json
import numpy as np
import demo

def ran(function, size, **given):
    x = np.ones(size, "float32")
    y = np.zeros_like(x)
    try:
        function(x, y)
    except ValueError as error:
        return str(error)
    return [int(y[0]), bool((y[1:] == 2).all())] if size else []

sizes = [16, 17, 1, 160, 8, 0]
known = demo.twice.variant(dtype="float32", n_multiple_of=16)
assert demo.twice.variant(dtype="float32").variants == ({"dtype": "float32"},)
print(json.dumps([[ran(demo.twice, n) for n in sizes], ran(known, 32), ran(known, 33)]))
"""


@pytest.fixture
def twice(project: Project) -> Project:
    """A project whose only kernel has classes of sizes."""
    for name in ("add_one", "scale"):
        (project.folder / f"kernels/{name}.py").unlink(missing_ok=True)
    project.write("kernels/twice.py", TWICE)
    return project


REFERENCE = """

@twice.reference
def _(x, n_multiple_of=1):
    y = 2 * x
    y[:1] = n_multiple_of
    return y
"""


def test_the_code_for_multiples_has_no_tail_and_other_sizes_never_reach_it(twice: Project) -> None:
    twice.scons("-j2")
    sources = {n: c.decode() for n, c in twice.files("build/kernels/demo/twice").items() if n.endswith("device.cu")}
    body = {name: text[text.rindex("__launch_bounds__") :] for name, text in sources.items()}
    assert len(body) == 4
    for name, text in body.items():
        has_class = "n_multiple_of-16" in name
        message = f"{name} works on vectors, or on one element after the other:\n{text}"
        assert ("for (" not in text) == has_class, message
    found = json.loads(twice.python(CALL))
    assert found[0] == [[16, True], [1, True], [1, True], [16, True], [1, True], []]
    assert found[1] == [16, True]
    assert "expects: x = float32[n (a multiple of 16)]" in found[2] and "remedy: " in found[2]


def test_checks_use_sizes_of_the_class(twice: Project) -> None:
    twice.write("kernels/twice.py", TWICE + REFERENCE)
    twice.scons("-j2", "check", "TARGETS=llvm")
    reports = {name: json.loads(text) for name, text in twice.files("build/check").items() if "float32" in name}
    sizes = {name: [case["n"] for case in report["sizes"]] for name, report in reports.items()}
    classes = [found for name, found in sizes.items() if "multiple" in name]
    assert classes and all(size % 16 == 0 for size in classes[0]) and max(classes[0]) > 2000, sizes
    assert any(size % 16 for found in sizes.values() for size in found)


def test_on_demand_the_class_that_fits_is_compiled(twice: Project) -> None:
    program = """\
twice = kw.load("kernels/twice.py").twice
for size in 32, 33:
    print(int(array(twice(np.ones(size, "float32")))[0]))
print(twice.compile(dtype="float32").variants, twice.compile(dtype="float32", n_multiple_of=16).variants)
"""
    assert Demand(twice).run(program).stdout.splitlines() == [
        *("16", "1"),
        "({'dtype': 'float32'},) ({'dtype': 'float32', 'n_multiple_of': 16},)",
    ]


NO_CLASSES = {
    '{"m": [1, 16]}': "divisible names 'm', which is no size, stride or integer of an input (those are: n)",
    '{"n": 16}': "divisible has n=16, expected a list of integers",
    '{"n": [0]}': "divisible has n=0, expected an integer from 1 to 65536",
    '{"n": [16, 16]}': "divisible lists a number twice for n",
    "[16]": "divisible is [16], expected a dict",
}


def test_what_is_no_class_is_an_error_at_the_definition(twice: Project) -> None:
    for number, declared in enumerate(NO_CLASSES):
        text = TWICE.replace('{"n": [1, 16]}', declared).replace("def twice", f"def wrong{number}")
        twice.write(f"kernels/wrong{number}.py", text.replace('["float32", "float16"]', '["float32"]'))
    output = twice.scons("-k", "TARGETS=llvm", ok=False).output
    for number, message in enumerate(NO_CLASSES.values()):
        place = rf"kernels/wrong{number}\.py:\d+ wrong{number}\b"
        assert re.search(rf"{place}.*: {re.escape(message)}\n  remedy:", output), (message, output)


def test_without_assertions_other_sizes_reach_no_variant_of_a_class_either(twice: Project) -> None:
    text = TWICE.replace("[1, 16]}", '[16]}, pass_configs={"tirx.disable_assert": True}')
    twice.write("kernels/twice.py", text.replace('["float32", "float16"]', '["float32"]'))
    twice.scons("-j2", "TARGETS=llvm")
    program = """
        import numpy as np, demo
        x, y = np.ones(17, "float32"), np.zeros(17, "float32")
        for call in (lambda: demo.twice(x), lambda: demo.twice(x, y), lambda: demo.twice.choice(x, y)):
            try:
                call()
            except ValueError as error:
                print("a multiple of 16" in str(error), y.any())
    """
    assert twice.python(program) == "True False\n" * 3
