"""The torch backend: what it emits, and its operators in eager mode, under torch.compile, torch.export and autograd."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from backend_package import KERNELS, cases, imported, make, shared_library
from kernelwright.backends import get
from kernelwright.core.errors import KernelwrightError
from kernelwright.library.plan import LoweredUnit
from kernelwright.worker.compare import compare
from launcher_build import plan, scalar, signature, tensor
from support.kernel_library import LIKE_OTHERS
from support.project import SCALE, SCONSTRUCT, SITE_SCONS, Project

torch = pytest.importorskip("torch")

GOLDEN = Path(__file__).parent.parent / "golden"


# ---- what is emitted


def emitted(name: str, arguments, **options) -> str:
    unit = LoweredUnit.from_json(signature(name, arguments, **options), "host.o")
    outputs = [argument["name"] for argument in arguments if argument.get("output")]
    return get("torch").emit(plan(name, unit, outputs=outputs))[f"_{name}.py"]


def mixed_arguments():
    """Every kind of argument; an input that is written, and outputs between inputs."""
    state = tensor("state", "float32", ["n"])
    state["written"] = True
    return [
        tensor("total", "float32", [], output=True),
        state,
        scalar("run", "bool"),
        scalar("steps", "int32"),
        scalar("factor", "bfloat16"),
        tensor("flags", "bool", ["n", 4]),
        tensor("order", "int64", ["n * steps"], output=True),
    ]


def test_emitted_operators_are_those_of_the_golden_file():
    assert emitted("mixed", mixed_arguments()) == (GOLDEN / "torch_mixed.txt").read_text()


def test_emitted_text_is_python_and_its_lines_are_not_long():
    many = [tensor(f"argument_with_a_long_name_{i}", "float32", ["n"], output=i > 10) for i in range(13)]
    text = emitted("many", many)
    compile(text, "_many.py", "exec")
    assert max(len(line) for line in text.splitlines() if "requires_grad" in line) <= 120
    assert "Tensor(a!) argument_with_a_long_name_11, Tensor(b!) argument_with_a_long_name_12) -> ()" in text


@pytest.mark.parametrize("dtype", ["float4_e2m1fn", "float32x4", "int4", "float6_e3m2fn"])
def test_dtypes_that_pytorch_does_not_have_are_refused(dtype):
    with pytest.raises(KernelwrightError, match=f"argument 'x' is a tensor of dtype {dtype}") as error:
        emitted("k", [tensor("x", dtype, ["n"])])
    assert "take torch out of the kernel's backends" in str(error.value.remedy)


def test_name_that_a_namespace_of_pytorch_has_for_itself_is_refused():
    with pytest.raises(KernelwrightError, match="no operator of this name"):
        emitted("name", [tensor("x", "float32", ["n"])])


# ---- the library of this repository


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return shared_library(tmp_path_factory)


@pytest.fixture(scope="module")
def package(tmp_path_factory, built):
    return make(tmp_path_factory.mktemp("packages"), built, "torch", "kernels_in_torch")


@pytest.fixture(scope="module")
def kernels(package):
    return imported(package, "torch")


@pytest.fixture(scope="module")
def library(built):
    """The cases, by kernel."""
    found = {}
    for case in cases(built):
        found.setdefault(case.kernel, []).append(case)
    return found


def to_torch(value):
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(value.copy())


def require_close(case, name, got):
    expected = to_torch(np.asarray(case.expected[name]))
    assert got.dtype == expected.dtype and got.shape == expected.shape
    _, mismatch = compare(expected.double().numpy(), got.double().numpy(), case.tolerance[name])
    assert mismatch is None, (case.kernel, case.index, mismatch)


def garbage(case, argument):
    return torch.full_like(to_torch(np.asarray(case.expected[argument["name"]])), 1)


def every_argument(case):
    return [garbage(case, a) if a["output"] else to_torch(case.inputs[a["name"]]) for a in case.arguments]


def test_library_is_what_these_tests_expect(library):
    """It takes long: the library is built for all backends, which other tests use as well."""
    assert sorted(library) == sorted(KERNELS)


OF_A_KIND = [name for name in KERNELS if name not in LIKE_OTHERS]
"""Kernels whose arguments differ in kind from those of others."""


@pytest.mark.parametrize("name", KERNELS)
def test_operators_compute_what_the_reference_does(kernels, library, name):
    for case in library[name]:
        function = case.of(getattr(kernels, name))
        outputs = [a["name"] for a in case.arguments if a["output"]]
        inputs = [to_torch(value) for value in case.inputs.values()]
        if outputs:
            made = function(*inputs)
            for output, tensor_ in zip(outputs, made if len(outputs) > 1 else [made], strict=True):
                require_close(case, output, tensor_)
        arguments = every_argument(case)
        assert function(*arguments) is None
        for argument, value in zip(case.arguments, arguments, strict=True):
            if argument["written"]:
                require_close(case, argument["name"], value)


@pytest.mark.parametrize("name", OF_A_KIND)
def test_operators_pass_opcheck(kernels, library, name):
    case = library[name][0]
    function = case.of(getattr(kernels, name))
    inputs = tuple(to_torch(value) for value in case.inputs.values())
    every = torch.library.opcheck(function.op.default, inputs)
    assert set(every.values()) == {"SUCCESS"} and len(every) == 4
    if any(argument["output"] for argument in case.arguments):
        every = torch.library.opcheck(function.op.out, tuple(every_argument(case)))
        assert set(every.values()) == {"SUCCESS"} and len(every) == 4


FIXED = ("accumulate", "saxpy", "top_k")
"""Kernels that are compiled for fixed sizes as well."""


@pytest.mark.parametrize(("name", "dynamic"), [*((n, True) for n in OF_A_KIND), *((n, False) for n in FIXED)])
def test_operators_compile_without_a_graph_break(kernels, library, name, dynamic):
    """All variants in one program, which compiles in less time than a program for each."""
    variants = library[name]
    functions = [case.of(getattr(kernels, name)) for case in variants]

    def program(calls):
        return [function(*arguments) for function, arguments in zip(functions, calls, strict=True)]

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    results = compiled([[to_torch(value) for value in case.inputs.values()] for case in variants])
    for case, made in zip(variants, results, strict=True):
        outputs = [argument["name"] for argument in case.arguments if argument["output"]]
        if outputs:
            for output, tensor_ in zip(outputs, made if isinstance(made, tuple) else [made], strict=True):
                require_close(case, output, tensor_)
    calls = [every_argument(case) for case in variants]
    assert compiled(calls) == [None] * len(variants)
    for case, arguments in zip(variants, calls, strict=True):
        for argument, value in zip(case.arguments, arguments, strict=True):
            if argument["written"]:
                require_close(case, argument["name"], value)


# ---- programs


def layer(kernels):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4096), requires_grad=False)

        def forward(self, x, residual):
            y = kernels.rms_norm(x * 2, self.weight)
            kernels.rms_norm(y + residual, self.weight, y)
            return kernels.softmax(y[:, ::4][:, :1000]) + 1

    return Layer()


@pytest.fixture(scope="module")
def of_inductor(tmp_path_factory):
    """Where Inductor keeps PyTorch's headers, which it compiles ahead, and what it makes."""
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture
def inductor(monkeypatch, of_inductor):
    """Inductor compiles in this process, and without programs that find out what the CPU can do."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(of_inductor))
    codecache = importlib.import_module("torch._inductor.codecache")
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(of_inductor / "headers"))
    monkeypatch.setattr(codecache, "_HEADER_LOCK_DIR", str(of_inductor / "locks"))
    settings = {"cpp.simdlen": 1, "cpp.vec_isa_ok": True, "cpp_cache_precompile_headers": True, "compile_threads": 1}
    with torch._inductor.config.patch(settings):
        yield


@pytest.mark.usefixtures("inductor")
def test_inductor_compiles_a_module_and_reuses_it_for_other_sizes(kernels):
    module = layer(kernels)
    # It is imported by itself only if other tests have run.
    testing = importlib.import_module("torch._dynamo.testing")
    counter = testing.CompileCounterWithBackend("inductor")
    compiled = torch.compile(module, backend=counter, fullgraph=True)
    for rows in (3, 5, 9, 12):
        x, residual = torch.randn(2, rows, 4096)
        torch.testing.assert_close(compiled(x, residual), module(x, residual))
    assert counter.frame_count <= 2


def test_exported_program_runs_with_any_number_of_rows_and_survives_a_file(kernels, package, tmp_path):
    module = layer(kernels)
    rows = torch.export.Dim("rows")
    example = torch.randn(2, 3, 4096)
    program = torch.export.export(module, tuple(example), dynamic_shapes={"x": {0: rows}, "residual": {0: rows}})
    x, residual = torch.randn(2, 11, 4096)
    expected = module(x, residual)
    torch.testing.assert_close(program.module()(x, residual), expected)
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save((x, residual, expected), tmp_path / "tensors.pt")
    code = """
    import torch
    from kernels_in_torch.backends.torch import rms_norm, softmax
    program = torch.export.load("program.pt2")
    x, residual, expected = torch.load("tensors.pt")
    torch.testing.assert_close(program.module()(x, residual), expected)
    """
    run_python(code, tmp_path, package)


def run_python(code: str, folder: Path, package: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=folder,
        env={"PYTHONPATH": str(package.parent), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def require_lines(eager, traced):
    """Dynamo indents what an error says, and says more."""
    said = {line.strip() for line in str(traced.value).replace("\\n", "\n").splitlines()}
    for line in str(eager.value).splitlines()[1:]:
        assert any(line.strip() in other for other in said), (line, str(traced.value))


def test_wrong_call_is_the_same_error_in_eager_mode_and_under_compile(kernels):
    call = (torch.zeros(3, 4096), torch.zeros(4096, dtype=torch.float16))
    with pytest.raises(TypeError, match="kernel 'rms_norm': no built variant accepts") as eager:
        kernels.rms_norm(*call)
    with pytest.raises(Exception, match="no built variant accepts") as traced:
        torch.compile(kernels.rms_norm, backend="eager", fullgraph=True)(*call)
    require_lines(eager, traced)
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(argument) for argument in call]
        with pytest.raises(TypeError) as fake:
            kernels.rms_norm(*fakes)
    assert str(fake.value) == str(eager.value)


def test_sizes_that_do_not_fit_are_the_same_error_in_eager_mode_and_under_compile(kernels):
    call = (2.0, torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match=r"kernel 'saxpy': Mismatched y.shape\[0\]") as eager:
        kernels.saxpy(*call)
    with pytest.raises(Exception, match="Mismatched") as traced:
        torch.compile(kernels.saxpy, backend="eager", fullgraph=True)(*call)
    require_lines(eager, traced)


@pytest.mark.parametrize("call", [(), (1.0,), (1.0, torch.zeros(3)), (1.0, *torch.zeros(4, 3))])
def test_wrong_number_of_arguments_is_a_typeerror_that_names_the_kernel(kernels, call):
    with pytest.raises(TypeError, match=r"saxpy\(\)"):
        kernels.saxpy(*call)


@pytest.mark.parametrize("value", ["a", None, torch.zeros(2), np.zeros(3, np.float32)])
def test_what_is_no_tensor_or_no_number_is_refused_with_the_operator(kernels, value):
    with pytest.raises((RuntimeError, TypeError), match="saxpy"):
        kernels.saxpy(value, torch.zeros(3), torch.zeros(3))
    if not isinstance(value, torch.Tensor):
        with pytest.raises((RuntimeError, TypeError), match="saxpy"):
            kernels.saxpy(1.0, value, torch.zeros(3))


# ---- tensors that are not compact


def test_inputs_that_are_not_contiguous_are_copied(kernels):
    x, y = torch.randn(2, 6)
    torch.testing.assert_close(kernels.saxpy(2.0, x[::2], y[1::2]), 2 * x[::2] + y[1::2])
    z = torch.zeros(3)
    kernels.saxpy(2.0, x[::2], y[1::2], z)
    torch.testing.assert_close(z, 2 * x[::2] + y[1::2])
    m = torch.randn(64, 96)
    torch.testing.assert_close(kernels.transpose(m.t()), m)


def test_outputs_that_are_not_contiguous_are_refused_and_left_alone(kernels):
    x, z = torch.ones(3), torch.zeros(6)
    with pytest.raises(ValueError, match=r"kernel 'saxpy': argument 'z' is not contiguous.*\n  remedy: pass a contig"):
        kernels.saxpy(2.0, x, x, z[::2])
    assert not z.any()


def test_what_is_written_has_a_new_version(kernels):
    """Autograd then notices that a tensor which it has saved was changed."""
    weight = torch.randn(3, requires_grad=True)
    z = torch.ones(3)
    loss = (weight * z).sum()
    kernels.saxpy(2.0, torch.ones(3), torch.ones(3), z)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        kernels.saxpy(2.0, torch.ones(3), torch.ones(3), torch.zeros(3))


# ---- autograd


def test_gradients_are_those_of_the_backward_kernel(kernels):
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    w = torch.rand(4, dtype=torch.float64).add(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: kernels.cube(x, w, 1.5), (x, w))
    only_x = kernels.cube(x, w.detach(), 0.5)
    only_x.sum().backward()
    torch.testing.assert_close(x.grad, 1.5 * x.detach() ** 2 * w.detach())
    assert w.grad is None


def test_mapped_call_runs_for_each_element(kernels):
    x, w = torch.randn(3, 5, 4), torch.rand(4)
    torch.testing.assert_close(torch.func.vmap(lambda x: kernels.cube(x, w, 2.0))(x), 2 * x**3 * w)


def test_gradient_of_a_transformed_function_is_a_clear_error(kernels):
    with pytest.raises(
        RuntimeError, match=r"kernel 'cube': torch.func cannot differentiate.*\n  remedy: use torch.autog"
    ):
        torch.func.grad(lambda x: kernels.cube(x, torch.ones(4), 1.5).sum())(torch.ones(5, 4))


def test_call_below_a_dispatch_mode_is_seen_by_it(kernels):
    """Also after a plain call, which takes the short way."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    x = torch.ones(3)
    for _ in range(2):
        kernels.saxpy(1.0, x, x)
        with Recorder():
            kernels.saxpy(1.0, x, x)
            kernels.saxpy(1.0, x, x, torch.zeros(3))
    out = [kernels.saxpy.op.default, kernels.saxpy.op.out]
    assert [function for function in seen if function in out] == out * 2


def test_operators_with_gradients_pass_opcheck(kernels):
    x = torch.randn(5, 4, requires_grad=True)
    w = torch.rand(4).add(1).requires_grad_()
    every = torch.library.opcheck(kernels.cube.op.default, (x, w, 1.5))
    assert set(every.values()) == {"SUCCESS"} and len(every) == 4


@pytest.mark.usefixtures("inductor")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_gradients_are_those_of_eager_mode(kernels, backend):
    def loss(x, w):
        return (kernels.cube(x.sin(), w, 1.5) * x).sum()

    x, w = torch.randn(7, 4, requires_grad=True), torch.rand(4).add(1).requires_grad_()
    expected = torch.autograd.grad(loss(x, w), (x, w))
    compiled = torch.compile(loss, backend=backend, fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(x, w), (x, w)), expected)


def test_gradient_through_a_kernel_without_backward_is_a_clear_error(kernels):
    x = torch.ones(3, requires_grad=True)
    y = kernels.saxpy(2.0, x, torch.ones(3))
    assert y.requires_grad
    with pytest.raises(RuntimeError, match=r"kernel 'saxpy': it has no backward kernel.*\n  remedy: .*@saxpy.backward"):
        y.sum().backward()
    with torch.no_grad():
        assert not kernels.saxpy(2.0, x, torch.ones(3)).requires_grad


def test_gradient_that_the_backward_kernel_does_not_compute_is_a_clear_error(kernels):
    x, w = torch.ones(4, requires_grad=True), torch.full((4,), 3.0)
    product = kernels.product.variant(factor=1)
    product(x, w).sum().backward()
    assert x.grad.tolist() == [3.0] * 4
    with pytest.raises(RuntimeError, match=r"no gradient of argument 'w'.*\n  remedy: add the output grad_w to it"):
        product(x, w.requires_grad_()).sum().backward()


def test_a_variant_that_is_named_has_the_gradient_of_its_config(kernels):
    x, w = torch.ones(4, requires_grad=True), torch.full((4,), 3.0)
    for variant in (kernels.product.variant(factor=3), kernels.product.variant(factor=1).variant(factor=3)):
        x.grad = None
        variant(x, w).sum().backward()
        assert x.grad.tolist() == [9.0] * 4
    with pytest.raises(ValueError, match=r"fit several variants.*\n(.*\n)*.*name one: product.variant"):
        kernels.product(x, w)


def test_second_derivative_needs_a_backward_kernel_of_the_backward_kernel(kernels):
    x, w = torch.randn(5, 4, requires_grad=True), torch.rand(4)
    (grad,) = torch.autograd.grad(kernels.cube(x, w, 1.0).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="kernel 'cube_backward': it has no backward kernel"):
        grad.sum().backward()


@pytest.mark.parametrize("compiled", [False, True])
def test_writing_arguments_while_gradients_are_recorded_is_a_clear_error(kernels, compiled):
    function = torch.compile(kernels.saxpy, backend="aot_eager", fullgraph=True) if compiled else kernels.saxpy
    x, z = torch.ones(3, requires_grad=True), torch.zeros(3)
    with pytest.raises(Exception, match="kernel 'saxpy': argument 'x' requires a gradient"):
        function(2.0, x, torch.ones(3), z)
    with torch.no_grad():
        kernels.saxpy(2.0, x, torch.ones(3), z)
    assert z.tolist() == [3.0] * 3


def test_gradient_of_an_input_that_is_written_is_a_clear_error(kernels):
    total = torch.zeros(3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"argument 'total' requires a gradient.*\n  remedy: pass total.detach\(\)"):
        kernels.accumulate(total, torch.ones(3))
    assert not total.any()


def test_integer_outputs_have_no_gradient(kernels):
    values, indices = kernels.top_k.variant(k=8)(torch.randn(3, 40, requires_grad=True))
    assert values.requires_grad and not indices.requires_grad


# ---- the functions, and their registration


def test_function_has_what_a_kernel_has(kernels, library):
    top_k = kernels.top_k
    assert (top_k.__name__, top_k.__module__) == ("top_k", "kernels_in_torch.backends.torch")
    assert top_k.__doc__.startswith("The k largest elements") and top_k.devices == {"cpu"}
    assert top_k.variants == tuple({"k": k, "dtype": d} for k in (8, 32) for d in ("float32", "float16"))
    assert top_k.supported("cpu") and not top_k.supported("cuda")
    top_k.preload()
    with pytest.raises(ValueError, match="built for llvm"):
        top_k.preload("cuda")
    assert str(top_k.op) == "kernels_in_torch_1_2_0.top_k" and top_k.op.overloads() == ["default", "out"]


def test_variant_has_operators_of_its_own(kernels):
    x = torch.randn(3, 40)
    assert kernels.top_k.variant(k=8)(x)[0].shape == (3, 8)
    variant = kernels.top_k.variant(k=32)
    assert variant(x)[0].shape == (3, 32) and variant.variants == ({"k": 32, "dtype": "float32"},)
    assert torch.compile(variant, backend="aot_eager", fullgraph=True)(x)[0].shape == (3, 32)
    assert kernels.top_k.variant(k=32) is variant and variant.variant(k=8)(x)[0].shape == (3, 8)
    with pytest.raises(KeyError, match="top_k has no variant with k=3"):
        kernels.top_k.variant(k=3)
    with pytest.raises(TypeError, match=r"kernel 'top_k': no built variant accepts"):
        variant(x.half())


def test_package_that_is_imported_again_has_the_same_operators(package, kernels):
    function, operator = kernels.saxpy, kernels.saxpy.op
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("kernels_in_torch")}
    try:
        again = imported(package, "torch")
        assert again is not kernels and again.saxpy.op is operator
        torch.testing.assert_close(again.saxpy(2.0, torch.ones(3), torch.ones(3)), torch.full((3,), 3.0))
        torch.testing.assert_close(function(2.0, torch.ones(3), torch.ones(3)), torch.full((3,), 3.0))
    finally:
        sys.modules.update(hidden)


def test_another_build_of_the_same_package_and_version_is_refused(tmp_path, built, package, kernels):
    assert kernels.saxpy
    other = make(tmp_path, built, "torch", "kernels_in_torch")
    manifest = other / "manifest.json"
    manifest.write_text(manifest.read_text().replace("z = alpha * x + y", "something else"))
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("kernels_in_torch")}
    try:
        with pytest.raises(
            ImportError, match=r"another build of 'kernels_in_torch' .*(?s:.)*start a new Python process"
        ):
            imported(other, "torch").saxpy  # noqa: B018
    finally:
        for name in [name for name in sys.modules if name.startswith("kernels_in_torch")]:
            del sys.modules[name]
        sys.modules.update(hidden)


def test_two_versions_have_namespaces_of_their_own(tmp_path, built):
    older = imported(make(tmp_path, built, "torch", "one_torch", version="1.0"), "torch")
    newer = imported(make(tmp_path, built, "torch", "other_torch", version="2.0+cu13"), "torch")
    assert str(older.saxpy.op) == "one_torch_1_0.saxpy" and str(newer.saxpy.op) == "other_torch_2_0_cu13.saxpy"


def test_operators_are_registered_once_by_many_threads(tmp_path, built):
    module = imported(make(tmp_path, built, "torch", "threads_torch"), "torch")
    found, barrier = [], threading.Barrier(8)

    def use() -> None:
        barrier.wait()
        found.append((module.rms_norm, module.rms_norm.variant(hidden=8192, dtype="float32")))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


def test_cuda_call_without_a_driver_is_an_exception(tmp_path):
    """The operator cannot get a CUDA tensor here, so the device code is loaded ahead."""
    project = Project(tmp_path)
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm", "cuda"]\narchs = ["x86-64", "sm_80"]\n')
    project.write("kernels/scale.py", SCALE.replace('"float32", "float16"', '"float16"'))
    project.scons("build/demo")
    module = imported(make(tmp_path / "made", tmp_path / "build/demo", "torch", "cuda_torch"), "torch")
    assert module.scale.devices == {"cpu", "cuda"}
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="kernel 'scale'"):
        module.scale.preload("cuda")
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(5, device="cuda:1", dtype=torch.float16)
        assert (module.scale(x).device, module.scale(x).dtype) == (torch.device("cuda", 1), torch.float16)


# ---- types


def test_stub_tells_a_type_checker_what_a_kernel_takes(tmp_path, built):
    import json

    from kernelwright.package.stubs import STUB_HEAD

    entry = json.loads((built / "manifest.json").read_text())["kernels"]
    backend = get("torch")
    folder = tmp_path / "demo"
    place = folder / "backends/torch"
    place.mkdir(parents=True)
    for path in (folder, folder / "backends", folder / "_runtime"):
        path.mkdir(exist_ok=True)
        (path / "__init__.py").write_text("")
    runtime = SITE_SCONS / "kernelwright/runtime"
    for module in (*backend.runtime, "loader.py"):
        (folder / "_runtime" / module).write_text((runtime / module).read_text())
    head = STUB_HEAD.format(summary="s", version="1", imports="").replace("._runtime", "..._runtime")
    parts = [backend.stub(name, entry[name]) for name in ("saxpy", "top_k", "rope")]
    (place / "__init__.pyi").write_text(head + backend.stub_imports("..._runtime") + "".join(parts))
    # All of PyTorch would take a minute.
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    (tmp_path / "use.py").write_text(
        textwrap.dedent("""
        import torch
        from demo.backends.torch import rope, saxpy, top_k
        x = torch.zeros(3)
        y: torch.Tensor = saxpy(2.0, x, x)
        saxpy(2.0, x, x, y)
        values, indices = top_k(x)
        values.shape
        print(saxpy.op, saxpy.devices, saxpy.variants)
        saxpy(2.0, x)
        rope(x, x)
        """)
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "use.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    errors = [line.partition(": ")[0] for line in lines if ": error:" in line and "_runtime" not in line]
    assert errors == ["use.py:10", "use.py:11"], done.stdout
