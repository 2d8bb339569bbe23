"""Kernels with a space of tuning parameters, compiled on demand: which variant is meant, and what tables change."""

from __future__ import annotations

import json

import pytest
from kernelwright.define.tuning import TableDevice
from kernelwright.tune.device import device_of
from support.demand import Demand
from support.project import Project
from support.tuned import BLOCKS, FILE, SMALL_AND_LARGE, table, tuned, write_project

MINE = TableDevice("llvm", "x86-64-v3", device_of("cpu").name, device_of("cpu").count)
"""This machine. All levels of x86-64 that the tests need are its own."""


@pytest.fixture
def demand(cpu_project: Project) -> Demand:
    write_project(cpu_project)
    return Demand(cpu_project)


def test_a_callers_config_means_the_first_point_and_all_keys_mean_that_candidate(demand: Demand) -> None:
    demand.run("""
        scaled = kw.load("kernels/scaled.py").scaled
        first = scaled.compile(dtype="float64")
        assert list(first.variants) == [{"dtype": "float64", "block": 1}]
        again = scaled.compile(block=1, dtype="float64")
        assert (again.key, again.cached) == (first.key, True), "one kernel, however it is named"
        other = scaled.compile(dtype="float64", block=16)
        assert list(other.variants) == [{"dtype": "float64", "block": 16}] and other.key != first.key
        unlisted = scaled.compile(dtype="float64", block=3)
        assert list(unlisted.variants) == [{"dtype": "float64", "block": 3}]
        assert list(scaled.compile().variants) == [{"dtype": "float32", "block": 1}]
        assert [one.variants[0] for one in scaled.par_compile()] == [
            {"dtype": "float32", "block": 1}, {"dtype": "float64", "block": 1}
        ]
        x = np.arange(1000, dtype="float64")
        for one in (first, other, unlisted):
            assert (array(one(x)) == 2 * x).all()
        with pytest.raises(kw.KernelwrightError, match="'m' is not a parameter"):
            scaled.compile(dtype="float64", m=3)
    """)


def test_a_candidate_is_the_one_that_a_build_makes(demand: Demand) -> None:
    demand.project.write(FILE, SMALL_AND_LARGE)
    demand.project.scons("-j2")
    ran = demand.run(
        'kw.load("kernels/scaled.py").scaled.compile(dtype="float32", block=4)', env={"KERNELWRIGHT_VERBOSE": "1"}
    )
    assert "[ CACHED ] LOWER scaled/dtype-float32_block-4 x86-64-v3" in ran.stderr
    assert "[ LOWER ]" not in ran.stderr


def test_calls_take_what_a_table_has_and_see_when_it_is_edited(demand: Demand) -> None:
    first = table(tuned("float32", (64, {"block": 4}), (None, {"block": 16})), device=MINE)
    second = table(tuned("float32", (None, {"block": 16})), device=MINE)
    demand.project.write("first.json", first)
    demand.project.write("second.json", second)
    demand.run(f"""
        import pathlib, shutil
        scaled = kw.load("kernels/scaled.py").scaled
        small, large, double = np.ones(64, "float32"), np.ones(65, "float32"), np.ones(64, "float64")
        def chosen(x):
            assert (array(scaled(x)) == 2 * x).all()
            return list(scaled._eager._choices.chosen.values())[-1].choice(x).variant.rpartition("-")[2]
        assert [chosen(small), chosen(large), chosen(double)] == ["1", "1", "1"]
        pathlib.Path("tuning").mkdir()
        shutil.copy("first.json", {FILE!r})
        assert [chosen(small), chosen(large), chosen(double)] == ["4", "16", "1"]
        assert list(scaled.compile(dtype="float32").variants) == [{{"dtype": "float32", "block": 1}}]
        shutil.copy("second.json", {FILE!r})
        assert [chosen(small), chosen(large), chosen(double)] == ["16", "16", "1"]
        pathlib.Path({FILE!r}).write_text("{{")
        with pytest.raises(kw.KernelwrightError, match="expected a name") as caught:
            scaled(small)
        assert {FILE!r} + ":1" in str(caught.value)
    """)


def test_a_recorded_program_names_the_declared_variants(demand: Demand) -> None:
    demand.project.write(FILE, table(tuned("float32", (None, {"block": 16})), device=MINE))
    demand.run(
        """
        scaled = kw.load("kernels/scaled.py").scaled
        scaled(np.ones(3, "float32"))
        scaled.compile(dtype="float64", block=4)
    """,
        env={"KERNELWRIGHT_RECORD": "configs.json"},
    )
    seen = json.loads((demand.project.folder / "configs.json").read_text())["kernels"]["scaled"]
    assert seen == [{"block": 1, "dtype": "float32"}, {"block": 4, "dtype": "float64"}]


def test_targets_may_have_other_first_points(demand: Demand) -> None:
    demand.project.replace(
        "kernels/scaled.py", f"tune={BLOCKS}", "tune=lambda target: grid(block=[4, 1] if target == 'llvm' else [1, 8])"
    )
    demand.run("""
        scaled = kw.load("kernels/scaled.py").scaled
        assert list(scaled.compile(dtype="float32").variants) == [{"dtype": "float32", "block": 4}]
        with pytest.raises(kw.KernelwrightError, match="compiled for CUDA only"):
            scaled.compile(dtype="float32", block=8)
    """)


BOTH = """
from kernelwright import kernel
from tvm import te


@kernel(configs=[{"dtype": "float32"}], tune=lambda target: [{"factor": n} for n in POINTS[target]], outputs=["y"])
def times(dtype: str, factor: int):
    n = te.var("n")
    x = te.placeholder((n, 4), dtype, name="x")
    y = te.compute((n, 4), lambda i, j: x[i, j] * te.const(factor, dtype), name="y")
    return te.create_prim_func([x, y])
"""


def test_a_kernel_for_both_targets_has_the_first_point_of_each(demand: Demand) -> None:
    demand.project.write(
        "kernels/times.py", BOTH.replace("@kernel", 'POINTS = {"llvm": [2, 3], "cuda": [4, 2]}\n\n\n@kernel')
    )
    demand.run("""
        times = kw.load("kernels/times.py").times.using(archs=["x86-64-v3", "sm_80"])
        kernel = times.compile(dtype="float32")
        assert [config["factor"] for config in kernel.variants] == [2, 4]
        assert [entry["archs"] for entry in kernel._entry["variants"]] == [["x86-64-v3"], ["sm_80"]]
        x = np.ones((2, 4), "float32")
        assert array(kernel(x)).max() == array(times(x)).max() == 2
        archs = [entry["archs"] for entry in times.compile(factor=2)._entry["variants"]]
        assert archs == [["x86-64-v3", "sm_80"]], "it is in the space of both"
        assert [entry["archs"] for entry in times.compile(factor=4)._entry["variants"]] == [["sm_80"]]
    """)


def test_a_config_without_a_point_for_a_target_is_not_compared_with_calls_on_it(demand: Demand) -> None:
    demand.project.replace(
        "kernels/scaled.py",
        f"tune={BLOCKS}",
        "tune=lambda target, dtype: grid(block=[4]) if (target, dtype) != ('llvm', 'float64') else []",
    )
    assert demand.project.scons("-j2").labels["LOWER"] == 1
    demand.run("""
        scaled = kw.load("kernels/scaled.py").scaled
        assert array(scaled(np.ones(3, "float32"))).max() == 2
        with pytest.raises(TypeError, match="no listed config fits"):
            scaled(np.ones(3, "float64"))
        with pytest.raises(kw.KernelwrightError, match="compiled for CUDA only"):
            scaled.compile(dtype="float64")
    """)


def test_a_kernel_of_a_notebook_has_its_first_point(demand: Demand) -> None:
    demand.run(
        """
        from tvm import te

        @kw.kernel(configs=[{"dtype": "float32"}], tune=[{"factor": 2}, {"factor": 3}], outputs=["y"])
        def times(dtype, factor):
            n = te.var("n")
            x = te.placeholder((n, 4), dtype, name="x")
            y = te.compute((n, 4), lambda i, j: x[i, j] * te.const(factor, dtype), name="y")
            return te.create_prim_func([x, y])

        x = np.ones((2, 4), "float32")
        assert array(times(x)).max() == 2
        assert array(times.compile(factor=3)(x)).max() == 3
        assert list(times.compile().variants) == [{"dtype": "float32", "factor": 2}]
    """,
    )
