"""Gradients, and programs that are traced: the same in PyTorch and in JAX, where outputs have an order, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.contract import contracted

__all__ = ["contracted"]

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
pytest.importorskip("jax_tvm_ffi")


class OfTorch:
    """What a test asks of PyTorch."""

    name, array = "torch", staticmethod(torch.from_numpy)

    @staticmethod
    def gradient(loss: Any, x: Any) -> Any:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(loss(x), x)[0]

    @staticmethod
    def compiled(function: Any) -> Any:
        return torch.compile(function, backend="aot_eager", fullgraph=True)

    @staticmethod
    def shapes(function: Any, *arguments: Any) -> list[list[int]]:
        with torch._subclasses.FakeTensorMode() as mode:
            return [list(made.shape) for made in function(*map(mode.from_tensor, arguments))]

    vmap = staticmethod(torch.func.vmap)


class OfJax:
    """What a test asks of JAX."""

    name, array = "jax", staticmethod(jax.numpy.asarray)
    gradient = staticmethod(lambda loss, x: jax.grad(loss)(x))
    compiled, vmap = staticmethod(jax.jit), staticmethod(jax.vmap)

    @staticmethod
    def shapes(function: Any, *arguments: Any) -> list[list[int]]:
        return [list(made.shape) for made in jax.eval_shape(function, *arguments)]


@pytest.fixture(params=[OfTorch, OfJax], ids=lambda framework: framework.name)
def framework(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def kernels(contracted: Any, framework: Any) -> Any:
    return getattr(contracted.backends, framework.name)


def test_a_backward_kernel_is_a_kernel_of_the_package_and_checked_as_any_other(contracted: Any) -> None:
    entries = contracted.manifest()["kernels"]
    assert entries["cube"]["backward"] == "cube_backward" and "backward" not in entries["cube_backward"]
    assert entries["cube_backward"]["outputs"] == ["grad_x", "grad_w"] and "backward" not in entries["plus"]
    checks = contracted.folder.parent / "check/contracted"
    for name in ("cube/dtype-float64", "cube_backward/dtype-float32", "pair/default", "product/factor-3"):
        assert (checks / f"{name}.cpu.json").exists()


@pytest.fixture
def vectors(framework: Any) -> tuple[Any, Any]:
    """x and w."""
    return framework.array(np.ones(4, "float32")), framework.array(np.full(4, 3, "float32"))


def test_a_gradient_is_that_of_the_backward_kernel_also_in_a_program_and_of_several_outputs(kernels, framework):
    numbers = np.random.default_rng(0).uniform(1, 2, (2, 5, 4)).astype("float32")
    x, w = framework.array(numbers[0]), framework.array(numbers[1][0])

    def loss(x: Any) -> Any:
        return kernels.cube(x * 2, w, 1.5).sum()

    for function in (loss, framework.compiled(loss)):
        made = np.asarray(framework.gradient(function, x))
        np.testing.assert_allclose(made, 36 * numbers[0] ** 2 * numbers[1][0], rtol=1e-5)
    x = framework.array(np.zeros(2, "float32"))

    def loss(x: Any) -> Any:
        y, z = framework.compiled(lambda x: kernels.pair(x))(x)
        return (10 * y).sum() + z.sum()

    assert framework.shapes(kernels.pair, x) == [[3], [2]]
    assert framework.gradient(loss, x).tolist() == [12, 12]
    x = np.arange(60, dtype="float32").reshape(3, 5, 4)
    w = framework.array(np.ones(4, "float32"))
    made = framework.vmap(lambda x: kernels.cube(x, w, 2.0))(framework.array(x))
    np.testing.assert_allclose(np.asarray(made), 2 * x**3, rtol=1e-5)


def test_a_gradient_that_nothing_computes_is_an_error_and_a_named_variant_has_its_own(kernels, framework, vectors):
    x, w = vectors
    product = kernels.product.variant(factor=1)
    assert framework.gradient(lambda x: product(x, w).sum(), x).tolist() == [3] * 4
    with pytest.raises((RuntimeError, TypeError), match=r"no gradient of argument 'w'.*\n  remedy: add the output gra"):
        framework.gradient(lambda w: product(x, w).sum(), w)
    x, w = vectors
    for variant in (kernels.product.variant(factor=3), kernels.product.variant(factor=1).variant(factor=3)):
        assert framework.gradient(lambda x, named=variant: named(x, w).sum(), x).tolist() == [9] * 4
    with pytest.raises(ValueError, match=r"fit several variants.*\n(.*\n)*.*name one: product.variant"):
        kernels.product(x, w)
    x, w = vectors
    text = (
        r"kernel 'plus': it has no backward kernel.*\n  remedy: .*@plus.backward"
        if framework.name == "torch"
        else r"FFI call to `contracted_1_2_0.plus` cannot be differentiated"
    )
    with pytest.raises((RuntimeError, ValueError), match=text):
        framework.gradient(lambda x: kernels.plus(2.0, x, w).sum(), x)
