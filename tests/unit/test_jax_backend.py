"""The jax backend: custom calls in eager mode, under jax.jit, jax.vmap and jax.grad."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from backend_package import KERNELS, cases, imported, make, shared_library
from kernelwright.backends import get
from kernelwright.core.errors import KernelwrightError
from kernelwright.library.plan import LoweredUnit
from kernelwright.worker.compare import compare
from launcher_build import plan, signature, tensor

jax = pytest.importorskip("jax")
pytest.importorskip("jax_tvm_ffi")
jnp = jax.numpy


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return shared_library(tmp_path_factory)


@pytest.fixture(scope="module")
def package(tmp_path_factory, built):
    return make(tmp_path_factory.mktemp("packages"), built, "jax", "kernels_in_jax")


@pytest.fixture(scope="module")
def kernels(package):
    return imported(package, "jax")


@pytest.fixture(scope="module")
def library(built):
    """The cases, by kernel."""
    found = {}
    for case in cases(built):
        found.setdefault(case.kernel, []).append(case)
    return found


@pytest.fixture
def wide():
    """64-bit dtypes are on."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def require_close(case, made):
    names = [a["name"] for a in case.arguments if a["output"]]
    names += [a["name"] for a in case.arguments if a["written"] and not a["output"]]
    for name, got in zip(names, made if len(names) > 1 else [made], strict=True):
        expected = np.asarray(case.expected[name])
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        _, mismatch = compare(expected.astype(np.float64), np.asarray(got).astype(np.float64), case.tolerance[name])
        assert mismatch is None, (case.kernel, case.index, mismatch)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compute_what_the_reference_does_alone_and_in_a_program(kernels, library, name, wide):
    for case in library[name]:
        function = case.of(getattr(kernels, name))
        values = list(case.inputs.values())
        require_close(case, function(*values))
        places = [place for place, value in enumerate(values) if isinstance(value, np.ndarray)]

        def program(*arrays, function=function, values=tuple(values), places=tuple(places)):
            arguments = list(values)
            for place, array in zip(places, arrays, strict=True):
                arguments[place] = array[::-1][::-1]  # made by the program
            return function(*arguments)

        require_close(case, jax.jit(program)(*(values[place] for place in places)))


def test_library_is_what_these_tests_expect(library):
    assert sorted(library) == sorted(KERNELS)


def test_programs_take_several_shapes_and_dtypes(kernels):
    @jax.jit
    def program(x, weight):
        return kernels.rms_norm(x * 2, weight) + 1

    for rows in (0, 1, 5):
        for hidden, dtype in ((4096, "float32"), (8192, "float16"), (4096, "bfloat16")):
            x = jnp.ones((rows, hidden), dtype)
            made = program(x, jnp.ones(hidden, dtype))
            assert (made.shape, made.dtype) == (x.shape, x.dtype)
            np.testing.assert_allclose(np.asarray(made, np.float32), 2, rtol=1e-2)


def test_numbers_are_part_of_the_program(kernels):
    x = jnp.arange(4.0)
    assert kernels.saxpy(2.0, x, x).tolist() == kernels.saxpy(2, x, x).tolist() == [0, 3, 6, 9]
    assert kernels.saxpy(np.float32(0.5), x, x).tolist() == [0, 1.5, 3, 4.5]
    assert kernels.saxpy(jnp.float32(3), x, x).tolist() == [0, 4, 8, 12]
    zero, one = jnp.zeros(1), jnp.ones(1)
    signs = [1 / kernels.saxpy(alpha, one, -zero)[0] for alpha in (0.0, -0.0, 0.0)]
    assert [float(sign) for sign in signs] == [np.inf, -np.inf, np.inf]


@pytest.mark.parametrize("alpha", [np.longdouble(2.5), Fraction(5, 2), Decimal("2.5"), np.array(2.5)], ids=repr)
def test_any_real_number_is_passed_as_it_is(kernels, alpha):
    x = jnp.arange(4.0)
    assert kernels.saxpy(alpha, x, x).tolist() == [0, 3.5, 7, 10.5]
    assert kernels.saxpy(2.5, x, x).tolist() == [0, 3.5, 7, 10.5]
    assert kernels.saxpy(3, x, x).tolist() == [0, 4, 8, 12]


@pytest.mark.parametrize(
    ("alpha", "error", "text"),
    [
        (np.array([2.5]), TypeError, r"is a numpy.ndarray, expected a number\n  remedy: "),
        (2 + 3j, TypeError, r"is a complex, expected a number\n  remedy: "),
        (None, TypeError, r"is a NoneType, expected a number\n  remedy: "),
        (-(10**400), ValueError, "is an int that is too large for a float"),
    ],
    ids=["array", "complex", "None", "too large for a float"],
)
def test_what_is_no_number_of_the_right_kind_is_refused(kernels, alpha, error, text):
    x = jnp.arange(4.0)
    with pytest.raises(error, match=r"^kernel 'saxpy': argument 'alpha' " + text):
        kernels.saxpy(alpha, x, x)


def test_traced_number_is_an_error_that_says_what_to_do(kernels):
    x = jnp.arange(4.0)
    with pytest.raises(TypeError, match=r"argument 'alpha' is traced by JAX.*\n  remedy: make it static"):
        jax.jit(lambda alpha: kernels.saxpy(alpha, x, x))(2.0)
    static = jax.jit(lambda alpha: kernels.saxpy(alpha, x, x), static_argnames="alpha")
    assert static(alpha=2.0).tolist() == [0, 3, 6, 9]


def test_inputs_that_a_kernel_writes_are_returned_and_stay_as_they_are(kernels):
    query, key = jnp.ones((3, 32, 128), "float16"), jnp.ones((3, 8, 128), "float16")
    cos, sin = jnp.zeros((5, 64)), jnp.ones((5, 64))
    new_query, new_key = kernels.rope(query, key, jnp.arange(3), cos, sin)
    assert (query == 1).all() and (key == 1).all()
    assert abs(new_query[..., :64] + 1).max() == 0 and abs(new_key[..., 64:] - 1).max() == 0


def test_mapped_call_runs_for_each_element(kernels):
    x, y = jnp.arange(12.0).reshape(3, 4), jnp.ones(4)
    np.testing.assert_allclose(jax.vmap(lambda row: kernels.saxpy(2.0, row, y))(x), 2 * x + 1)


def test_outputs_and_inputs_in_any_order_are_put_in_place(tmp_path, built):
    """Kernels with interleaved arguments go through a function in Python."""
    entry = json.loads((built / "manifest.json").read_text())["kernels"]["saxpy"]
    package = make(tmp_path, built, "jax", "order_in_jax")
    module = imported(package, "jax")
    assert module.saxpy._function()[1] == ["attrs.alpha", "args", "rets"]
    for variant in entry["variants"]:
        alpha, x, y, z = variant["arguments"]
        variant["arguments"] = [x, alpha, z, y]
    from order_in_jax._runtime.jax_kernel import JaxKernel

    class Interleaved:
        """The kernel with its arguments in another order."""

        _index, name, variants, devices = None, "interleaved", ({},), frozenset({"cpu"})

        @staticmethod
        def function(x, alpha, z, y):
            module.saxpy._kernel.function(alpha, x, y, z)

    kernel = JaxKernel(module.saxpy._loader, entry, Interleaved, None)
    assert kernel._function()[1] == ["attrs.alpha", "args", "rets"]
    x = jnp.arange(4.0)
    assert kernel(x, 2.0, 10 * x).tolist() == [0, 12, 24, 36]


# ---- gradients


def test_gradients_are_those_of_the_backward_kernel(kernels, wide):
    x = np.random.default_rng(0).standard_normal((5, 4))
    w = np.random.default_rng(1).uniform(1, 2, 4)
    from jax.test_util import check_grads

    @jax.jit
    def loss(x, w):
        return jnp.tanh(kernels.cube(x / 2, w, 1.5)).sum()

    check_grads(loss, (jnp.asarray(x), jnp.asarray(w)), order=1, modes=["rev"], atol=1e-4, rtol=1e-4)


def test_gradient_that_the_backward_kernel_does_not_compute_is_a_clear_error(kernels):
    x, w = jnp.ones(4), jnp.full(4, 3.0)
    product = kernels.product.variant(factor=1)
    assert jax.grad(lambda x: product(x, w).sum())(x).tolist() == [3.0] * 4
    with pytest.raises(TypeError, match=r"no gradient of argument 'w'.*\n  remedy: add the output grad_w to it"):
        jax.grad(lambda w: product(x, w).sum())(w)


def test_a_variant_that_is_named_has_the_gradient_of_its_config(kernels):
    x, w = jnp.ones(4), jnp.full(4, 3.0)
    for variant in (kernels.product.variant(factor=3), kernels.product.variant(factor=1).variant(factor=3)):
        assert jax.grad(lambda x, named=variant: named(x, w).sum())(x).tolist() == [9.0] * 4
    with pytest.raises(ValueError, match=r"fit several variants.*\n(.*\n)*.*name one: product.variant"):
        kernels.product(x, w)


def test_gradient_of_a_kernel_without_backward_is_an_error_that_names_it(kernels):
    x = jnp.arange(4.0)
    with pytest.raises(ValueError, match=r"FFI call to `kernels_in_jax_1_2_0.saxpy` cannot be differentiated"):
        jax.grad(lambda x: kernels.saxpy(2.0, x, x).sum())(x)


# ---- wrong calls


def test_wrong_calls_have_the_messages_of_the_dispatcher(kernels):
    x = jnp.zeros(3)
    with pytest.raises(TypeError, match=r"kernel 'saxpy': no built variant accepts.*\n  passed: alpha = the float 1"):
        kernels.saxpy(1.0, x, x.astype("float16"))
    with pytest.raises(ValueError, match=r"kernel 'saxpy': Mismatched y.shape\[0\] on argument #2"):
        jax.jit(kernels.saxpy, static_argnums=0)(1.0, x, jnp.zeros(4))
    with pytest.raises(TypeError, match=r"kernel 'saxpy': takes 3 arguments \(alpha, x, y\), 4 .*\n  remedy: leave"):
        kernels.saxpy(1.0, x, x, x)
    with pytest.raises(TypeError, match=r"takes 3 arguments \(alpha, x, y\), 1 were given$"):
        kernels.saxpy(1.0)
    with pytest.raises(TypeError, match=r"'saxpy': argument 'alpha' is a str, .* number\n  remedy: pass"):
        kernels.saxpy("a", x, x)
    with pytest.raises(TypeError, match=r"argument 'x' is a list, expected an array of JAX or NumPy"):
        kernels.saxpy(1.0, [1.0], x)


def test_wide_dtypes_need_the_switch_of_jax(kernels, wide):
    x, w = np.ones((2, 4)), np.ones(4)
    assert kernels.cube(x, w, 2.0).dtype == np.float64
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(ValueError, match=r"kernel 'cube': argument 'x' is float64.*\n  remedy: jax.config.update"):
        kernels.cube(x, w, 2.0)


def test_dtypes_that_jax_does_not_have_are_refused():
    unit = LoweredUnit.from_json(signature("k", [tensor("x", "float32x4", ["n"])]), "host.o")
    with pytest.raises(KernelwrightError, match="argument 'x' is a tensor of dtype float32x4") as error:
        get("jax").check(plan("k", unit))
    assert "take jax out of the kernel's backends" in str(error.value.remedy)


# ---- the objects, and their registration


def test_object_has_what_a_kernel_has(kernels):
    top_k = kernels.top_k
    assert (top_k.__name__, repr(top_k)) == ("top_k", "<JAX kernel top_k with 4 variants>")
    assert top_k.devices == {"cpu"} and top_k.supported() and not top_k.supported("cuda")
    top_k.preload()
    with pytest.raises(ValueError, match="built for llvm"):
        top_k.preload("cuda")
    variant = top_k.variant(k=32)
    assert variant is top_k.variant(k=32) and variant.target == "kernels_in_jax_1_2_0.top_k__2"
    assert variant(jnp.zeros((3, 40)))[0].shape == (3, 32)
    with pytest.raises(KeyError, match="no variant with k=3"):
        top_k.variant(k=3)


def test_package_that_is_imported_again_works(package, kernels):
    assert kernels.saxpy
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("kernels_in_jax")}
    try:
        again = imported(package, "jax")
        assert again is not kernels and again.saxpy(2.0, jnp.ones(2), jnp.ones(2)).tolist() == [3, 3]
    finally:
        sys.modules.update(hidden)


def test_another_build_of_the_same_package_and_version_is_refused(tmp_path, built, kernels):
    assert kernels.saxpy
    other = make(tmp_path, built, "jax", "kernels_in_jax")
    manifest = other / "manifest.json"
    manifest.write_text(manifest.read_text().replace("z = alpha * x + y", "something else"))
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("kernels_in_jax")}
    try:
        with pytest.raises(ImportError, match=r"another build of 'kernels_in_jax' .*\n  remedy: start a new Python"):
            imported(other, "jax").saxpy  # noqa: B018
    finally:
        for name in [name for name in sys.modules if name.startswith("kernels_in_jax")]:
            del sys.modules[name]
        sys.modules.update(hidden)


def test_stub_tells_a_type_checker_what_a_kernel_takes(tmp_path, built):
    from kernelwright.package.stubs import STUB_HEAD
    from support.project import SITE_SCONS

    entry = json.loads((built / "manifest.json").read_text())["kernels"]
    place = tmp_path / "demo/backends/jax"
    place.mkdir(parents=True)
    (tmp_path / "demo/_runtime").mkdir()
    for path in (tmp_path / "demo", tmp_path / "demo/backends", tmp_path / "demo/_runtime"):
        (path / "__init__.py").write_text("")
    for module in (*get("jax").runtime, "loader.py"):
        text = (SITE_SCONS / "kernelwright/runtime" / module).read_text()
        (tmp_path / "demo/_runtime" / module).write_text(text)
    head = STUB_HEAD.format(summary="s", version="1", imports="").replace("._runtime", "..._runtime")
    parts = [get("jax").stub(name, entry[name]) for name in ("saxpy", "top_k")]
    (place / "__init__.pyi").write_text(head + get("jax").stub_imports("..._runtime") + "".join(parts))
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-jax.*,jax_tvm_ffi.*,numpy.*,torch.*]\nfollow_imports = skip\n")
    (tmp_path / "use.py").write_text(
        textwrap.dedent("""
        import numpy as np
        from demo.backends.jax import saxpy, top_k
        x = np.zeros(3)
        y = saxpy(2.0, x, x)
        values, indices = top_k(x)
        print(saxpy.target, saxpy.devices, saxpy.variants, y, values, indices)
        saxpy(2.0, x, x, x)
        """)
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "use.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    errors = [
        line.partition(": ")[0] for line in done.stdout.splitlines() if ": error:" in line and "_runtime" not in line
    ]
    assert errors == ["use.py:8"], done.stdout
