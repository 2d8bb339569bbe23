"""Calls of a kernel that was tuned for this very machine: all backends run what the table says, and say why."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from kernelwright.define.tuning import TableDevice
from support.project import SCONSTRUCT, Project
from support.tuned import table, tuned

WHICH = '''\
from kernelwright import grid, kernel
from tvm.script import tirx as T


@kernel(configs=grid(dtype=["float32", "int32"]), tune=grid(block=[1, 4, 16]), outputs=["out"])
def which(dtype: str, block: int):
    """Every element of out is the block of the variant that has run."""

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, out_handle: T.handle):
        m, n = T.int32(), T.int32()
        x = T.match_buffer(x_handle, (m, n), dtype)
        out = T.match_buffer(out_handle, (m,), dtype)
        for i in T.serial(m):
            with T.sblock("out"):
                j = T.axis.spatial(m, i)
                out[j] = T.cast(block, dtype)

    return main
'''


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


COUNT = os.sysconf("SC_NPROCESSORS_ONLN")
HERE = TableDevice("llvm", "x86-64-v3", cpu_name(), COUNT)
BY_M = tuned("float32", (8, {"block": 4}), (64, {"block": 1}), (None, {"block": 16}), by=("m",))
BY_BOTH = tuned("int32", (100, {"block": 1}), (None, {"block": 4}), by=("m", "n"))

BACKENDS = {
    "tvm_ffi": ("np.from_dlpack", "np.zeros({}, '{}')"),
    "cython": ("np.from_dlpack", "np.zeros({}, '{}')"),
    "torch": ("", "torch.zeros({}, dtype=torch.{})"),
    "jax": ("", "jax.numpy.zeros({}, '{}')"),
}
"""Backend -> what makes an array of NumPy of its outputs, and an array of a shape and a dtype."""

SIZES = [(1, 3, "float32"), (8, 3, "float32"), (9, 3, "float32"), (64, 3, "float32"), (65, 3, "float32")]
SIZES += [(10, 10, "int32"), (10, 11, "int32"), (101, 1, "int32")]
RAN = [4, 4, 1, 1, 16, 1, 4, 4]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("tuned_calls"))
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\narchs = ["x86-64-v3"]\n')
    project.write("kernels/which.py", WHICH)
    project.write("tuning/which.here.json", table(BY_M, BY_BOTH, device=HERE, kernel="which"))
    project.built("-j2", f"BACKENDS={','.join(BACKENDS)}")
    return project


CALLS = """
import json
import numpy as np
import demo{imports}
which, found = demo.backends.{backend}.which, []
for m, n, dtype in {sizes}:
    x = {array}
    found.append([int({taken}(which(x))[0]), which.choice(x).config["block"], which.choice(x).reason])
alone = which.variant(dtype="float32", block=16)
x = {first}
found.append([int({taken}(alone(x))[0]), alone.choice(x).config["block"], alone.choice(x).reason])
print(json.dumps(found))
"""


def called(project: Project, backend: str) -> list[Any]:
    taken, array = BACKENDS[backend]
    imports = {"torch": ", torch", "jax": ", jax"}.get(backend, "")
    array = array.replace("'{}'", "{}").format("(m, n)", "DTYPE")
    array = array.replace("torch.DTYPE", "getattr(torch, dtype)").replace("DTYPE", "dtype")
    first = (
        array.replace("(m, n)", "(1, 3)")
        .replace("getattr(torch, dtype)", "torch.float32")
        .replace("dtype)", "'float32')")
    )
    code = CALLS.format(imports=imports, backend=backend, sizes=SIZES, array=array, taken=taken, first=first)
    found: list[Any] = json.loads(project.python(code).splitlines()[-1])
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_size_runs_the_variant_that_the_table_has_for_it_and_the_choice_says_so(
    built: Project, backend: str
) -> None:
    *found, alone = called(built, backend)
    assert [ran for ran, _, _ in found] == [block for _, block, _ in found] == RAN
    known = f"the tuning table of '{HERE.name}' (count {COUNT}), which is this device, has "
    reasons = [reason for _, _, reason in found]
    assert reasons[0] == f"{known}dtype-float32_block-4 for m = 1, up to 8"
    assert reasons[4] == f"{known}dtype-float32_block-16 for m = 65, above 64"
    assert reasons[5] == f"{known}dtype-int32_block-1 for m * n = 100, up to 100"
    assert alone == [16, 16, "it is the variant that was asked for"]


def test_variants_that_only_tables_name_are_not_listed_in_errors_and_not_compared(built: Project) -> None:
    code = """
        import demo, numpy as np
        try:
            demo.which(np.zeros((3, 3), "float64"))
        except TypeError as error:
            print(str(error).count("expects:"))
        print(len(demo.which.variants), len(demo.misses()))
        print(demo.which.supported("cpu"))
        demo.preload()
    """
    assert built.python(code).split() == ["2", "5", "1", "True"]


def test_the_choice_raises_what_a_call_raises_and_takes_what_it_takes(built: Project) -> None:
    code = """
        import demo, numpy as np
        x = np.zeros((3, 3), "float32")
        y = x.copy()
        y.flags.writeable = False
        for backend in ("tvm_ffi", "cython"):
            which = getattr(demo.backends, backend).which
            print(which.choice(y).config["block"], which.choice(x, np.zeros(3, "float32")).config["block"])
            for arguments in ((x, x, x), (x.astype("float64"),), ("text",), (x, y[0])):
                texts = []
                for function in (which, which.choice):
                    try:
                        function(*arguments)
                    except Exception as error:
                        texts.append(f"{type(error).__name__}: {error}")
                assert len(texts) == 2 and texts[0] == texts[1], texts
        print(which.choice(x=x).variant, len(demo.misses()))
    """
    said = built.python(code).splitlines()
    assert said == ["4 4", "4 4", "dtype-float32_block-4 1"]


def test_tensors_of_torch_that_calls_copy_have_a_choice(built: Project) -> None:
    code = """
        import torch, demo
        which = demo.backends.torch.which
        x = torch.zeros(3, 130).t()  # 130 rows, not contiguous
        print(int(which(x)[0]), which.choice(x).config["block"])
        compiled = torch.compile(which, fullgraph=True, backend="eager")
        print([int(compiled(torch.zeros(m, 3))[0]) for m in (1, 20, 70)])
    """
    assert built.python(code).splitlines() == ["16 16", "[4, 1, 16]"]


def test_jitted_programs_of_jax_run_what_the_table_says(built: Project) -> None:
    code = """
        import demo, jax
        jitted = jax.jit(demo.backends.jax.which)
        print([int(jitted(jax.numpy.zeros((m, 3), "float32"))[0]) for m in (1, 20, 70)])
    """
    assert built.python(code).splitlines()[-1] == "[4, 1, 16]"


NEAREST = TableDevice("llvm", "x86-64-v3", "another CPU", COUNT + 4)


def test_a_table_of_another_device_counts_until_there_is_one_of_this(built: Project) -> None:
    """An edit of tables makes no code for devices again."""
    always = (tuned("float32", (None, {"block": 16}), by=()), tuned("int32", (None, {"block": 1}), by=()))
    built.write("tuning/which.here.json", table(*always, device=NEAREST, kernel="which"))
    try:
        labels = built.scons("-j2", f"BACKENDS={','.join(BACKENDS)}").labels
        assert "LOWER" not in labels
        *found, _ = called(built, "tvm_ffi")
        assert [ran for ran, _, _ in found[:5]] == [16] * 5
        assert f"of 'another CPU' (count {COUNT + 4}), the nearest to this device, '{HERE.name}'" in found[0][2]
    finally:
        built.write("tuning/which.here.json", table(BY_M, BY_BOTH, device=HERE, kernel="which"))
