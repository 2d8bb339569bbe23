"""TIR kernels that declare strides: arrays that are not compact, on the CPU and against the stand-in for the driver."""

from __future__ import annotations

import json

import numpy as np
import pytest
from emulation import Emulation
from kernelwright.frontends.tir.front_end import Tir
from kernelwright.frontends.unit import Unit
from support.project import SITE_SCONS, Project
from support.standin_calls import call, launches, make_standin
from tvm.script import tirx as T
from tvm.tirx import Var

SETTINGS = """\
[tool.kernelwright]
targets = ["llvm", "cuda"]
archs = ["x86-64-v3", "sm_80"]
backends = ["tvm_ffi", "cuda_core", "torch"]
"""

KERNELS = """\
from kernelwright import kernel
from tvm.script import tirx as T
from tvm.tirx import Var


def plus_one(strides_of, out=None):
    m, n, s = (Var(name, "int32") for name in "mns")
    strides = strides_of(m, n, s)

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((m, n), "float32", strides=strides), y: T.Buffer((m, n), "float32", strides=out)):
        for i, j in T.grid(m, n):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] + T.float32(1)

    return main


@kernel(outputs=["y"])
def rows():
    return plus_one(lambda m, n, s: (s, 1))


@kernel(outputs=["y"])
def columns():
    return plus_one(lambda m, n, s: (1, m))


@kernel(targets=["llvm"])
def plain():
    m, n, s, t = (Var(name, "int32") for name in "mnst")

    @T.prim_func
    def main(x: T.Buffer((m, n), "float32", strides=(s, 1)), y: T.Buffer((m, n), "float32", strides=(t, 1))):
        for i, j in T.grid(m, n):
            y[i, j] = x[i, j] + T.float32(1)

    return main


@plain.reference
def _(x, y):
    return {"y": x + 1}


@kernel(targets=["llvm"], configs=[{"layout": "compact"}, {"layout": "any"}], outputs=["y"])
def either(layout):
    if layout == "compact":
        return plus_one(lambda m, n, s: None)
    return plus_one(lambda m, n, s: (s, Var("t", "int32")), (Var("u", "int32"), Var("v", "int32")))


@kernel(targets=["llvm"], configs=[{"order": "C"}, {"order": "F"}])
def ordered(order):
    m, n = Var("m", "int32"), Var("n", "int32")
    strides = (n, 1) if order == "C" else (1, m)

    @T.prim_func
    def main(x: T.Buffer((m, n), "float32", strides=strides), y: T.Buffer((m, n), "float32", strides=strides)):
        for i, j in T.grid(m, n):
            y[i, j] = x[i, j] + T.float32(1)

    return main


@ordered.reference
def _(x, y, order):
    return {"y": x + 1}


@rows.reference
@columns.reference
@either.reference
def _(x):
    return x + 1
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A built project; its check has compared kernels of the CPU with arrays that are not compact."""
    project = Project.of(tmp_path_factory.mktemp("strides"), SETTINGS, strides=KERNELS)
    assert project.scons("-j2", ".", "check").labels["CHECK"] == 7
    make_standin(project)
    return project


def test_arrays_are_taken_as_declared_and_others_are_refused(built):
    printed = built.python(
        """
        import demo, numpy as np
        def shown(function, *arguments):
            try:
                return np.from_dlpack(function(*arguments)).tolist()
            except ValueError as error:
                return str(error).splitlines()[0] + str(error).splitlines()[-1]
        x = np.arange(6, dtype="float32").reshape(2, 3)
        print(shown(demo.rows, x[:, :2]), shown(demo.rows, x[::-1]), shown(demo.columns, x.T))
        print(shown(demo.rows, x[:, ::2]))
        print(shown(demo.columns, x))
        # A size of 1 and an array without elements have nothing to stride over.
        print(shown(demo.columns, x[:1]), shown(demo.columns, x[:, :1].copy()), shown(demo.columns, x[:0]))
        y = np.full((4, 5), -1, "float32")
        demo.plain(x[::-1], y[::2, 1:4])
        print(y.tolist())
        far = np.lib.stride_tricks.as_strided(x, (3, 3), (2**32, 4))
        print(shown(demo.rows, far))
        for wrong in np.zeros((1, 0, *[1] * 30), "float32"), np.zeros(1, "float32"):
            print(shown(demo.plain, wrong, y))
        """
    ).splitlines()
    assert (
        printed[0] == "[[1.0, 2.0], [4.0, 5.0]] [[4.0, 5.0, 6.0], [1.0, 2.0, 3.0]] [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]"
    )
    remedy = "remedy: pass an array with the strides that the definition declares"
    wrong = "kernel '{}': argument 'x' has the stride {} in dimension {}, expected 1 (it has to be float32[m, n] with"
    assert wrong.format("rows", 2, 1) in printed[1] and printed[1].endswith(remedy)
    assert wrong.format("columns", 3, 0) in printed[2] and printed[2].endswith(remedy)
    assert printed[3] == "[[1.0, 2.0, 3.0]] [[1.0], [4.0]] []"
    beside = [-1.0] * 5
    assert printed[4] == str([[-1.0, 4.0, 5.0, 6.0, -1.0], beside, [-1.0, 1.0, 2.0, 3.0, -1.0], beside])
    assert "argument 'x' has elements that are further apart than the 2147418112 that int32 sizes allow" in printed[5]
    assert all("Mismatched x.ndim on argument #0" in line for line in printed[6:]) and len(printed) == 8


def test_random_views_are_computed_as_numpy_does_and_the_first_variant_that_fits_runs(built):
    printed = built.python(
        """
        import demo, numpy as np, torch, warnings
        from demo.backends import torch as by_torch
        from hypothesis import given, settings, strategies as st

        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        chosen = set()

        @settings(max_examples=300, deadline=None, database=None, derandomize=True)
        @given(st.data())
        def same(data):
            x = np.arange(9**3, dtype="float32").reshape(9, 9, 9).transpose(data.draw(st.permutations(range(3))))
            x = x[data.draw(st.slices(9)), data.draw(st.slices(9)), data.draw(st.integers(0, 8))]
            if x.shape[0] and data.draw(st.booleans()):
                x = np.broadcast_to(x[0], x.shape)
            y = np.zeros((20, 20), "float32")
            out = y[: 2 * x.shape[0] : 2, 1 : 1 + x.shape[1]][:, :: data.draw(st.sampled_from([1, -1]))]
            assert (np.from_dlpack(demo.either(x)) == x + 1).all()
            demo.either(x, out)
            assert (out == x + 1).all()
            out[...] = 0
            assert not y.any(), "beside the output"
            variant = demo.either.choice(x).variant
            if min((*x.strides, *out.strides)) >= 0:  # PyTorch has no negative strides
                one, other = torch.from_numpy(x), torch.from_numpy(out)
                assert torch.equal(by_torch.either(one), one + 1)
                by_torch.either(one, other)
                assert torch.equal(other, one + 1) and by_torch.either.choice(one).variant == variant
                out[...] = 0
                assert not y.any(), "beside the output"
                chosen.add(f"torch {variant}")
            assert variant == ("layout-compact" if x.flags.c_contiguous else "layout-any"), (x.shape, x.strides)
            chosen.add(variant)

        same()
        print(sorted(chosen))
        """
    )
    assert printed == "['layout-any', 'layout-compact', 'torch layout-any', 'torch layout-compact']\n"


def test_variants_that_differ_in_meaning_are_told_apart_by_strides_where_these_differ(built):
    printed = built.python(
        """
        import demo, numpy as np
        x = np.arange(12, dtype="float32").reshape(3, 4)
        for one in (x, x.T, x[:1]):
            y = np.zeros_like(one)
            try:
                demo.ordered(one, y)
                print((y == one + 1).all(), demo.ordered.choice(one, y).variant)
            except ValueError as error:
                print(str(error).splitlines()[0])
        """
    ).splitlines()
    assert printed[:2] == ["True order-C", "True order-F"]
    assert printed[2] == "kernel 'ordered': these arguments fit several variants, which differ in meaning"


def test_pytorch_copies_no_view_that_a_variant_takes_and_traces_the_right_one(built):
    printed = built.python(
        """
        import torch
        from demo.backends.torch import either, plain, rows
        x = torch.arange(12.0).reshape(3, 4)
        for view in (x, x.T, x[:, ::2], x[0].expand(3, 4)):
            assert torch.equal(either(view), view + 1)
            print(either.choice(view).variant, end=" ")
        assert torch.equal(torch.compile(lambda x: either(x.T) * 2, backend="eager")(x), (x.T + 1) * 2)
        y = torch.zeros(3, 8)
        plain(x[:, 1:], y[:, 2:5])
        assert torch.equal(y[:, 2:5], x[:, 1:] + 1) and y.sum() == y[:, 2:5].sum()
        try:
            plain(x, y[:, ::2])
        except ValueError as error:
            print(str(error).splitlines()[0])
        """
    ).split(" ", 4)
    assert printed[:4] == ["layout-compact", "layout-any", "layout-any", "layout-any"]
    assert "argument 'y' has the stride 2 in dimension 1, expected 1" in printed[4]


def test_a_definition_is_compiled_on_demand_for_the_strides_of_each_call(built):
    printed = built.python(
        """
        import kernelwright, numpy as np
        either = kernelwright.load("kernels/strides.py").either
        x = np.arange(12, dtype="float32").reshape(3, 4)
        for view in (x, x[:, ::-1], x, x[::-1], x[:, ::-1]):
            assert (np.from_dlpack(either(view)) == view + 1).all()
        print("done")
        """,
        env={"PYTHONPATH": str(SITE_SCONS), "KERNELWRIGHT_CACHE_DIR": "ondemand"},
    )
    assert printed == "done\n"


@pytest.mark.parametrize("cuda_core", [False, True])
def test_a_stride_is_a_parameter_of_the_launch(built, cuda_core):
    code = """
print(message_of(demo.columns, on_cuda(4, 5, data=0x100), on_cuda(4, 5, data=0x200)))
print(message_of(demo.rows, on_cuda(4, 5, data=0x100, strides=(7, 2)), on_cuda(4, 5, data=0x200)))
print(message_of(demo.rows, on_cuda(4, 5, data=0x100, strides=(-(2**30), 1)), on_cuda(4, 5, data=0x200)))
demo.rows(on_cuda(4, 5, data=0x100, strides=(7, 1)), on_cuda(4, 5, data=0x200))
demo.columns(on_cuda(4, 5, data=0x100, strides=(1, 4)), on_cuda(4, 5, data=0x200))
demo.columns(on_cuda(1, 5, data=0x100, strides=(9, 1)), on_cuda(1, 5, data=0x200))
"""
    printed, log = call(built, code, parameters="ppiii", capability=80, cuda_core=cuda_core)
    assert printed.count("remedy: pass an array with the strides that the definition declares") == 2
    assert "further apart than the 2147418112 that int32 sizes allow" in printed
    parameters = [line.partition("parameters ")[2].split() for line in launches(log)]
    assert len(parameters) == 3 and "7" in parameters[0] and "7" not in parameters[1]


def test_a_function_without_s_tir_follows_strides_and_has_barriers_on_the_gpu(tmp_path):
    m, s = Var("m", "int32"), Var("s", "int32")

    @T.prim_func
    def main(x: T.Buffer((m, 64), "float32", strides=(s, 2)), y: T.Buffer((m, 64), "float32")):
        row = T.launch_thread("blockIdx.x", m)
        tx = T.launch_thread("threadIdx.x", 64)
        shared = T.alloc_buffer((64,), "float32", scope="shared")
        shared[tx] = x[row, tx]
        y[row, tx] = shared[63 - tx]

    unit = Unit("turned", "v", "kw_turned", {}, ("y",), "cuda", "sm_80", "turned.py:1")
    files = Tir().lower(main, unit, lambda doing: None).files
    emulation = Emulation(json.loads(files["signature.json"]), files["device.cu"].decode(), tmp_path)
    whole = np.arange(3 * 130, dtype="float32").reshape(3, 130)
    for backwards in (False, True):
        values = {"x": whole, "y": np.zeros((3, 64), "float32")}
        result = emulation(values, {"m": 3, "s": 130}, backwards)
        np.testing.assert_array_equal(result["y"], whole[:, :128:2][:, ::-1])


def test_the_signature_has_the_strides(built):
    described = json.loads((built.folder / "build/kernels/demo/rows/default/cuda/signature.json").read_text())
    assert described["arguments"][0]["strides"] == ["s", 1] and "strides" not in described["arguments"][1]
    assert (described["symbols"], described["stride_symbols"]) == ({"m": "int32", "n": "int32"}, {"s": "int32"})


def test_an_output_whose_strides_no_new_array_has_is_refused(built):
    built.write("kernels/strides.py", KERNELS.replace('(outputs=["y"])\ndef columns', '(outputs=["x"])\ndef columns'))
    run = built.scons("build/kernels/demo/columns/wrapper.c", ok=False)
    assert "columns/default [lower]: output 'x' has the strides [1, m], and new arrays are compact" in run.output
    assert "remedy: remove 'x' from outputs, so that callers pass it" in run.output
