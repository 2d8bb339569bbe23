"""Kernels with a space, or with classes of sizes, on demand: what is compiled is what a package would run."""

from __future__ import annotations

import pytest
from support.demand import Demand
from support.project import CUBE, Project
from support.tuned import BLOCKS, SCALED, scaled_on_both


@pytest.fixture
def demand(cpu_project: Project) -> Demand:
    cpu_project.write("kernels/scaled.py", SCALED)
    return Demand(cpu_project)


def test_the_first_point_of_the_target_is_compiled(demand: Demand) -> None:
    demand.project.write("kernels/scaled.py", scaled_on_both())
    demand.run(
        """
        scaled = kw.load("kernels/scaled.py").scaled
        for target, archs, block in ("llvm", ["x86-64-v2"], 16), ("cuda", ["sm_80"], 4):
            made = scaled.using(target=target, archs=archs).compile(dtype="float64")
            assert made.variants == ({"dtype": "float64", "block": block},), made.variants
        x = np.ones(3)
        assert (array(scaled(x)) == 2).all()
        assert scaled.compile(dtype="float64", block=4).variants[0]["block"] == 4
        """
    )


def test_of_a_space_only_the_first_points_are_compiled_without_being_asked_for(demand: Demand) -> None:
    printed = demand.run(
        """
        scaled = kw.load("kernels/scaled.py").scaled
        print([kernel.variants for kernel in scaled.par_compile()])
        try:
            scaled(np.ones(3, "int8"))
        except TypeError as error:
            print(str(error).count("expects:"))
        """
    ).stdout
    configs = [({"dtype": dtype, "block": 1},) for dtype in ("float32", "float64")]
    assert printed == f"{configs}\n2\n"


def test_a_config_is_for_sizes_of_any_class_and_has_the_first_point(demand: Demand) -> None:
    demand.project.replace("kernels/scaled.py", "outputs=", 'divisible={"n": [1, 16]}, outputs=')
    demand.run(
        """
        scaled = kw.load("kernels/scaled.py").scaled
        assert scaled.compile(dtype="float32").variants == ({"dtype": "float32", "block": 1},)
        of_class = scaled.compile(dtype="float32", n_multiple_of=16)
        assert of_class.variants == ({"dtype": "float32", "n_multiple_of": 16, "block": 1},)
        assert (array(of_class(np.ones(32, "float32"))) == 2).all()
        with pytest.raises(ValueError, match="a multiple of 16"):
            of_class(np.ones(33, "float32"))
        """
    )


@pytest.mark.parametrize("has_own", [False, True])
def test_gradients_know_nothing_of_the_space_of_their_kernel(demand: Demand, has_own: bool) -> None:
    text = CUBE.replace("outputs=", f"tune={BLOCKS}, outputs=", 1).replace(
        "(dtype: str)", "(dtype: str, block: int)", 1
    )
    own = text.replace(
        '"grad_w"])\ndef _(dtype: str)', '"grad_w"], tune=grid(rows=[1, 2]))\ndef _(dtype: str, rows: int)'
    )
    assert own != text
    demand.project.write("kernels/cube.py", own if has_own else text)
    demand.run(
        """
        import torch
        cube = kw.load("kernels/cube.py").cube.using(backend="torch").compile(dtype="float32")
        assert cube.variants == ({"dtype": "float32", "block": 1},)
        x = torch.ones(3, 4, requires_grad=True)
        cube(x, torch.ones(4), 2.0).sum().backward()
        assert (x.grad == 6).all()
        """
    )


def test_what_a_program_knows_of_sizes_decides_what_is_compiled(demand: Demand) -> None:
    """The programs are equal, and so are the configs."""
    demand.project.write(
        "script.py",
        """
        import kernelwright as kw, numpy as np
        from tvm import te

        def copied(n_multiple_of):
            n = te.var("n")
            x = te.placeholder((n,), "float32", name="x")
            return te.create_prim_func([x, te.compute((n,), lambda i: x[i], name="y")])

        declared = {"configs": [{"n_multiple_of": 16}], "outputs": ["y"]}
        of_class = kw.kernel(**declared, divisible={"n": [16]})(copied).compile()
        plain = kw.kernel(**declared)(copied).compile()
        assert of_class.key != plain.key
        assert (np.from_dlpack(plain(np.ones(17, "float32"))) == 1).all()
        """,
    )
    process = demand.start(["script.py"])
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, output + errors
