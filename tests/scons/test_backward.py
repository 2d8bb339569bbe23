"""Backward kernels: what the decorator makes and refuses, and how the build finds and checks them."""

from __future__ import annotations

import shutil

import pytest
from kernelwright import grid, kernel
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.define.outputs import Arguments, require_gradient_names
from support.project import CUBE, Project


def forward(**options):
    @kernel(configs=grid(m=[1, 2]), outputs=["y"], targets=["llvm"], archs=["x86-64"], backends=["torch"], **options)
    def scale(m): ...

    return scale


def test_backward_kernel_is_named_after_the_kernel_and_built_for_the_same():
    scale = forward()

    @scale.backward(outputs=["grad_x"], tolerance=0.5)
    def _(m):
        """Its gradient."""

    made = scale.backward_kernel
    assert (made.name, made.doc) == ("scale_backward", "Its gradient.")
    own, options = made.options, scale.options
    assert (own.outputs, own.tolerance) == (("grad_x",), 0.5)
    assert (own.targets, own.archs, own.backends) == (options.targets, options.archs, options.backends)
    assert [variant.slug for variant in made.variants] == ["m-1", "m-2"]
    assert made.forward is scale and made.location.rpartition(":")[0] == __file__


def define(scale, **options):
    def function(m): ...

    return scale.backward(**options)(function)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": []}, "expected names of gradients"),
        ({"outputs": ["x"]}, "expected names of gradients"),
        ({"outputs": ["grad_"]}, "expected names of gradients"),
        ({"outputs": "grad_x"}, "expected a list of names or positions"),
        ({"outputs": [True]}, "outputs contains True"),
        ({"outputs": ["grad_x"], "tolerance": -1}, "expected a number >= 0"),
        ({"outputs": ["grad_x"], "reads": [""]}, "relative to that of the definition file"),
    ],
)
def test_a_wrong_backward_kernel_is_refused_at_its_line(options, message):
    with pytest.raises(DefinitionError, match=message) as caught:
        define(forward(), **options)
    assert caught.value.where.location.startswith(f"{__file__}:")


def test_a_backward_kernel_that_cannot_be_one_is_refused():
    scale = forward()
    define(scale, outputs=["grad_x"])
    with pytest.raises(DefinitionError, match="has a backward kernel already, at "):
        define(scale, outputs=["grad_x"])

    @kernel
    def update(m=1): ...

    with pytest.raises(DefinitionError, match="kernel 'update' has no outputs"):
        define(update, outputs=["grad_x"])
    with pytest.raises(DefinitionError, match=r"@scale.backward was applied to 3, expected a function"):
        forward().backward(outputs=["grad_x"])(3)
    with pytest.raises(DefinitionError, match="config key 'm' is not a parameter"):

        @forward().backward(outputs=["grad_x"])
        def _(n): ...


def test_arguments_are_found_by_their_names():
    scale = forward()
    made = define(scale, outputs=["grad_x", "grad_w"])
    where = Where("scale_backward", location="kernels/k.py:7")

    def require(of_backward: list[str], of_forward: list[str]) -> None:
        pair = (Arguments(k.options.outputs, n) for k, n in ((scale, of_forward), (made, of_backward)))
        require_gradient_names("scale", *pair, where)

    require(["grad_y", "x", "y", "n", "grad_w", "grad_x"], ["x", "w", "n", "y"])
    with pytest.raises(DefinitionError, match="argument 'dy' is no argument of scale") as caught:
        require(["dy", "grad_x", "grad_w"], ["x", "w", "y"])
    assert caught.value.remedy == "call it like one of x, w, y, grad_y"
    with pytest.raises(DefinitionError, match="output 'grad_w' is the gradient of no input of scale"):
        require(["grad_y", "grad_x", "grad_w"], ["x", "y"])


def test_wrong_name_of_an_argument_is_an_error_at_the_line_of_the_definition(project: Project):
    shutil.rmtree(project.folder / "kernels")
    project.write("kernels/cube.py", CUBE.replace('name="grad_y"', 'name="dy"'))
    output = project.scons("build/demo", "TARGETS=llvm", ok=False).output
    line = next(n for n, text in enumerate(CUBE.splitlines(), 1) if "cube.backward(" in text)
    assert f"kernels/cube.py:{line} cube_backward/dtype-float32 [lower]: argument 'dy' is no argument of cube" in output
    assert "call it like one of x, w, scale, y, grad_y" in output
