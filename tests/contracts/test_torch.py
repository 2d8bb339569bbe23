"""Kernels as operators of PyTorch, beyond what every backend does: autograd, compiled and exported programs."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.contract import contracted, copied, forgotten
from support.project import Project

torch = pytest.importorskip("torch")

__all__ = ["contracted"]


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def kernels(contracted: Any) -> Any:
    return contracted.backends.torch


def calls_of(kernels: Any) -> dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]]:
    """Kernels of each kind, with the inputs and the outputs of a call."""
    x, y, w = torch.randn(5), torch.randn(5), torch.rand(4) + 1
    return {
        "numbers": (kernels.plus, (2.0, x, y), (torch.ones(5),)),
        "a flag": (kernels.flag, (x, True), (torch.ones(5, dtype=torch.int64),)),
        "an integer": (kernels.whole.variant(dtype="int16"), (x, 3), (torch.ones(5, dtype=torch.int64),)),
        "an integer without a sign": (kernels.natural, (x, 2**63 - 1), (torch.ones(5, dtype=torch.uint64),)),
        "a narrow number": (kernels.real.variant(dtype="bfloat16"), (x, 0.5), (torch.ones(5),)),
        "narrow arrays": (kernels.same, (x.bfloat16(),), (y.bfloat16(),)),
        "several outputs": (kernels.pair, (x,), (torch.ones(5), torch.ones(6))),
        "a gradient": (kernels.cube, (torch.randn(5, 4), w, 1.5), (torch.ones(5, 4),)),
        "a written input": (kernels.accumulate, (x, y), (torch.ones(5),)),
        "no output": (kernels.add_to, (x, y), ()),
    }


def results(function: Any, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> list[Any]:
    """What a call returns, and all tensors that it may have written; the arguments stay as they are."""
    given = [one.clone() if isinstance(one, torch.Tensor) else one for one in (*inputs, *outputs)]
    made = function(*given)
    return [*(made if isinstance(made, tuple) else [made]), *(one for one in given if isinstance(one, torch.Tensor))]


def test_operators_are_declared_with_what_they_take_write_and_return(kernels: Any) -> None:
    def schemas(name: str) -> list[str]:
        op = getattr(kernels, name).op
        return [str(getattr(op, overload)._schema).partition("::")[2] for overload in op.overloads()]

    assert str(kernels.plus.op) == "contracted_1_2_0.plus"
    assert (kernels.plus.__name__, kernels.plus.__module__) == ("plus", "contracted.backends.torch")
    assert schemas("plus") == [
        "plus(float alpha, Tensor x, Tensor y) -> Tensor",
        "plus.out(float alpha, Tensor x, Tensor y, Tensor(a!) z) -> ()",
    ]
    assert schemas("pair") == [
        "pair(Tensor x) -> (Tensor, Tensor)",
        "pair.out(Tensor x, Tensor(a!) z, Tensor(b!) y) -> ()",
    ]
    assert schemas("accumulate") == [
        "accumulate(Tensor(a!) total, Tensor x) -> Tensor",
        "accumulate.out(Tensor(a!) total, Tensor x, Tensor(b!) y) -> ()",
    ]
    assert schemas("flag")[0] == "flag(Tensor x, bool a) -> Tensor"
    assert schemas("add_to") == ["add_to(Tensor(a!) total, Tensor x) -> ()"]


def test_operators_pass_opcheck(kernels: Any) -> None:
    calls = calls_of(kernels)
    for kind in ("an integer without a sign", "several outputs", "a gradient", "a written input", "no output"):
        function, inputs, outputs = calls[kind]
        overloads = [(function.op.default, inputs), *([(function.op.out, (*inputs, *outputs))] if outputs else [])]
        if not outputs:
            overloads = [(getattr(function.op, function.op.overloads()[0]), inputs)]
        for operator, arguments in overloads:
            every = torch.library.opcheck(operator, arguments)
            assert set(every.values()) == {"SUCCESS"} and len(every) == 4, kind
    x, w = torch.randn(5, 4, requires_grad=True), torch.rand(4).add(1).requires_grad_()
    every = torch.library.opcheck(kernels.cube.op.default, (x, w, 1.5))
    assert set(every.values()) == {"SUCCESS"} and len(every) == 4


def test_a_program_of_all_operators_compiles_without_a_graph_break(kernels: Any) -> None:
    calls = list(calls_of(kernels).values())
    torch._dynamo.reset()

    def program(passed: Any) -> Any:
        return [function(*arguments) for (function, _, _), arguments in zip(calls, passed, strict=True)]

    compiled = torch.compile(program, backend="aot_eager", fullgraph=True, dynamic=True)
    for with_outputs in (False, True):
        given = [(inputs, outputs if with_outputs else ()) for _, inputs, outputs in calls]
        expected = [results(function, *one) for (function, _, _), one in zip(calls, given, strict=True)]
        passed = [
            tuple(one.clone() if isinstance(one, torch.Tensor) else one for one in (*inputs, *outputs))
            for inputs, outputs in given
        ]
        for wanted, made, arguments in zip(expected, compiled(passed), passed, strict=True):
            got = [*(made if isinstance(made, tuple) else [made]), *(a for a in arguments if torch.is_tensor(a))]
            assert len(got) == len(wanted)
            for one, other in zip(got, wanted, strict=True):
                assert one is other or torch.equal(one, other)


class Layer(torch.nn.Module):
    """A program with two kernels, of which one writes what another one has made."""

    def __init__(self, kernels: Any) -> None:
        super().__init__()
        self.kernels = kernels
        self.weight = torch.nn.Parameter(torch.rand(4) + 1, requires_grad=False)

    def forward(self, x: Any, residual: Any) -> Any:
        y = self.kernels.cube(x * 2, self.weight, 0.5)
        self.kernels.cube(y + residual, self.weight, 1.0, y)
        return self.kernels.plus(2.0, y[:, ::2][:, 0], residual[:, 1]) + 1


@pytest.fixture(scope="module")
def of_inductor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Inductor keeps PyTorch's headers, which it compiles ahead, and what it makes."""
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch, of_inductor: Path) -> Iterator[None]:
    """Inductor compiles in this process, and without programs that find out what the CPU can do."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(of_inductor))
    codecache = importlib.import_module("torch._inductor.codecache")
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(of_inductor / "headers"))
    monkeypatch.setattr(codecache, "_HEADER_LOCK_DIR", str(of_inductor / "locks"))
    settings = {"cpp.simdlen": 1, "cpp.vec_isa_ok": True, "cpp_cache_precompile_headers": True, "compile_threads": 1}
    with torch._inductor.config.patch(settings):
        yield


@pytest.mark.usefixtures("inductor")
def test_inductor_compiles_a_module_and_reuses_it_for_other_sizes_and_gradients_are_compiled(kernels: Any) -> None:
    module = Layer(kernels)
    # It is imported by itself only if other tests have run.
    counter = importlib.import_module("torch._dynamo.testing").CompileCounterWithBackend("inductor")
    compiled = torch.compile(module, backend=counter, fullgraph=True, dynamic=True)
    for rows in (3, 5, 12):
        x, residual = torch.randn(2, rows, 4)
        torch.testing.assert_close(compiled(x, residual), module(x, residual))
    assert counter.frame_count == 1

    def loss(x: Any, w: Any) -> Any:
        return (kernels.cube(x.sin(), w, 1.5) * x).sum()

    x, w = torch.randn(7, 4, requires_grad=True), torch.rand(4).add(1).requires_grad_()
    expected = torch.autograd.grad(loss(x, w), (x, w))
    made = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(x, w), (x, w))
    torch.testing.assert_close(made, expected)


def test_an_exported_program_runs_with_any_number_of_rows_and_survives_a_file(kernels, contracted, tmp_path):
    module, rows = Layer(kernels), torch.export.Dim("rows")
    example = tuple(torch.randn(2, 3, 4))
    program = torch.export.export(module, example, dynamic_shapes={"x": {0: rows}, "residual": {0: rows}})
    x, residual = torch.randn(2, 11, 4)
    expected = module(x, residual)
    torch.testing.assert_close(program.module()(x, residual), expected)
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save((x, residual, expected), tmp_path / "tensors.pt")
    code = f"""
    import sys, os, torch
    sys.path[:] = map(os.path.abspath, sys.path)
    os.chdir({str(tmp_path)!r})
    x, residual, expected = torch.load("tensors.pt")
    try:
        torch.export.load("program.pt2")
    except RuntimeError as error:
        assert "deserializing" in str(error), error
    else:
        raise AssertionError("a program was loaded without the kernels of its version")
    from contracted.backends.torch import *
    assert torch.ops.contracted.plus is plus.op
    torch.testing.assert_close(torch.export.load("program.pt2").module()(x, residual), expected)
    """
    printed = Project(contracted.folder.parents[1]).python(code)
    assert "resolve torch.ops.contracted_1_2_0.cube.default" in printed


def require_lines(eager: Any, traced: Any) -> None:
    """Dynamo indents what an error says, and says more."""
    said = {line.strip() for line in str(traced.value).replace("\\n", "\n").splitlines()}
    for line in str(eager.value).splitlines()[1:]:
        assert any(line.strip() in other for other in said), (line, str(traced.value))


@pytest.mark.parametrize("of_sizes", [True, False])
def test_a_wrong_call_is_the_same_error_in_eager_mode_and_where_it_is_traced(kernels: Any, of_sizes: bool) -> None:
    function, call, kind, text = (
        (kernels.plus, (2.0, torch.zeros(3), torch.zeros(4)), ValueError, r"kernel 'plus': Mismatched y.shape\[0\]")
        if of_sizes
        else (kernels.same, (torch.zeros(3),), TypeError, "kernel 'same': no built variant accepts")
    )
    with pytest.raises(kind, match=text) as eager:
        function(*call)
    with pytest.raises(Exception, match=text.partition(": ")[2][:10]) as traced:
        torch.compile(function, backend="eager", fullgraph=True)(*call)
    require_lines(eager, traced)
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) if torch.is_tensor(one) else one for one in call]
        with pytest.raises(kind) as fake:
            function(*fakes)
    assert str(fake.value).splitlines()[0].partition(" on arg")[0] in str(eager.value)


def test_a_call_that_no_variant_fits_is_noted_where_it_is_traced(kernels: Any, contracted: Any) -> None:
    with pytest.raises(Exception, match="no built variant"):
        torch.compile(kernels.same.op.default, backend="eager", fullgraph=True)(torch.zeros(2, dtype=torch.float64))
    noted = [call["arguments"][0]["dtype"] for call in contracted.misses() if call["kernel"] == "same"]
    assert "float64" in noted


# ---- tensors that are not compact, and what is written


def test_inputs_that_are_not_contiguous_are_copied_and_outputs_are_refused(kernels: Any) -> None:
    x, y = torch.randn(2, 6)
    expected, z = 2 * x[::2] + y[1::2], torch.zeros(3)
    torch.testing.assert_close(kernels.plus(2.0, x[::2], y[1::2]), expected)
    kernels.plus(2.0, x[::2], y[1::2], z)
    torch.testing.assert_close(z, expected)
    w = torch.rand(4, 7)
    torch.testing.assert_close(kernels.cube(w.t(), torch.ones(4), 1.0), w.t() ** 3)
    z = torch.zeros(6)
    with pytest.raises(ValueError, match=r"kernel 'plus': argument 'z' is not contiguous.*\n  remedy: pass a contig"):
        kernels.plus(2.0, x[:3], y[:3], z[::2])
    assert not z.any()


def test_what_is_written_has_a_new_version(kernels: Any) -> None:
    """Autograd then notices that a tensor which it has saved was changed."""
    weight, z = torch.randn(3, requires_grad=True), torch.ones(3)
    loss = (weight * z).sum()
    kernels.plus(2.0, torch.ones(3), torch.ones(3), z)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        kernels.plus(2.0, torch.ones(3), torch.ones(3), torch.zeros(3))


def test_a_call_below_a_dispatch_mode_is_seen_by_it(kernels: Any) -> None:
    """Also after a plain call, which takes the short way."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[Any] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    x = torch.ones(3)
    for _ in range(2):
        kernels.plus(1.0, x, x)
        with Recorder():
            kernels.plus(1.0, x, x)
            kernels.plus(1.0, x, x, torch.zeros(3))
    out = [kernels.plus.op.default, kernels.plus.op.out]
    assert [function for function in seen if function in out] == out * 2


# ---- autograd; what is the same in JAX is in test_gradients.py


def test_gradients_are_those_of_finite_differences_and_only_of_what_needs_one(kernels: Any) -> None:
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    w = torch.rand(4, dtype=torch.float64).add(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: kernels.cube(x, w, 1.5), (x, w))
    kernels.cube(x, w.detach(), 0.5).sum().backward()
    torch.testing.assert_close(x.grad, 1.5 * x.detach() ** 2 * w.detach())
    assert w.grad is None
    (grad,) = torch.autograd.grad(kernels.cube(x, w, 1.0).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="kernel 'cube_backward': it has no backward kernel"):
        grad.sum().backward()
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    assert kernels.same(parameter).requires_grad
    assert not kernels.whole.variant(dtype="int8")(torch.ones(3, requires_grad=True), 1).requires_grad


@pytest.mark.parametrize("compiled", [False, True])
def test_writing_arguments_while_gradients_are_recorded_is_a_clear_error(kernels: Any, compiled: bool) -> None:
    function = torch.compile(kernels.plus, backend="aot_eager", fullgraph=True) if compiled else kernels.plus
    x, z = torch.ones(3, requires_grad=True), torch.zeros(3)
    with pytest.raises(Exception, match="kernel 'plus': argument 'x' requires a gradient"):
        function(2.0, x, torch.ones(3), z)
    with torch.no_grad():
        kernels.plus(2.0, x, torch.ones(3), z)
    assert z.tolist() == [3.0] * 3
    total = torch.zeros(3, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"argument 'total' requires a gradient.*\n  remedy: pass total.detach\(\)"):
        kernels.accumulate(total, torch.ones(3))
    assert not total.any()


# ---- registration


def test_versions_and_packages_have_namespaces_of_their_own(contracted: Any, tmp_path: Path) -> None:
    older = copied(contracted.folder, tmp_path, "one_torch", version="1.0")
    newer = copied(contracted.folder, tmp_path, "other_torch", version="2.0+cu13")
    names = [str(package.backends.torch.plus.op) for package in (older, newer)]
    assert names == ["one_torch_1_0.plus", "other_torch_2_0_cu13.plus"]
    assert newer.backends.torch.plus(1.0, torch.ones(2), torch.ones(2)).tolist() == [2, 2]


def test_an_operator_has_a_name_without_the_version_which_programs_do_not_keep(kernels: Any) -> None:
    """So neither an exported program nor what PyTorch has compiled is ever one of another version."""
    x, y = torch.randn(2, 5)
    assert kernels.plus.op is torch.ops.contracted.plus
    seen: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        seen.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph

    def program(x: Any, y: Any) -> Any:
        return torch.ops.contracted.plus(2.0, torch.ops.contracted.plus.default(1.0, x, y), y)

    made = torch.compile(program, backend=keep, fullgraph=True)(x, y)
    torch.testing.assert_close(made, 2 * (x + y) + y)
    assert {str(one).removesuffix(".default") for one in seen} == {"contracted_1_2_0.plus"}

    class Program(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return program(x, y)

    exported = torch.export.export(Program(), (x, y))
    targets = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert targets == ["contracted_1_2_0.plus.default"] * 2
    variant = kernels.whole.variant(dtype="int16")
    assert getattr(torch.ops.contracted, variant.op.__name__) is variant.op


def test_the_name_without_the_version_is_an_error_where_two_versions_meet(contracted: Any, tmp_path: Path) -> None:
    older = copied(contracted.folder, tmp_path / "older", "met_torch", version="1.0")
    first, x = older.backends.torch.plus, torch.ones(2)
    assert torch.ops.met_torch.plus(1.0, x, x).tolist() == [2, 2]
    with forgotten("met_torch"):
        newer = copied(contracted.folder, tmp_path / "newer", "met_torch", version="2.0")
        second = newer.backends.torch.plus
        pattern = (
            r"kernel 'plus': torch.ops.met_torch.plus could be that of version 1\.0 \(\S*/older/met_torch\) and 2\.0 "
        )
        pattern += (
            r"\(\S*/newer/met_torch\)(.|\n)*remedy: write torch.ops.met_torch_1_0.plus or torch.ops.met_torch_2_0.p"
        )
        with pytest.raises(RuntimeError, match=pattern):
            torch.ops.met_torch.plus(1.0, x, x)
        with pytest.raises(RuntimeError, match=pattern):
            _ = torch.ops.met_torch.plus.default
        with pytest.raises(Exception, match="could be that of version 1"):
            torch.compile(lambda: torch.ops.met_torch.plus(1.0, x, x), backend="eager", fullgraph=True)()
        assert first(1.0, x, x).tolist() == second(1.0, x, x).tolist() == [2, 2]
        assert torch.ops.met_torch_1_0.plus is first.op and torch.ops.met_torch_2_0.plus is second.op
    assert newer.backends.torch.whole.op is torch.ops.met_torch.whole, "the other version's was not used"


def test_an_operator_of_another_library_keeps_its_name(contracted: Any, tmp_path: Path) -> None:
    library = torch.library.Library("taken_torch", "FRAGMENT")
    library.define("plus(Tensor x) -> Tensor")
    package = copied(contracted.folder, tmp_path, "taken_torch")
    text = r"kernel 'plus': another library has registered torch\.ops\.taken_torch\.plus(.|\n)*remedy: rename"
    for _ in range(2):
        with pytest.raises(ImportError, match=text):
            _ = package.backends.torch.plus
    assert str(torch.ops.taken_torch.plus.default._schema).startswith("taken_torch::plus")
    assert package.backends.torch.flag.op is torch.ops.taken_torch.flag


def test_operators_are_registered_once_by_many_threads(contracted: Any, tmp_path: Path) -> None:
    module = copied(contracted.folder, tmp_path, "threads_torch").backends.torch
    barrier = threading.Barrier(8)

    def use(_: int) -> tuple[Any, Any]:
        barrier.wait()
        return module.whole, module.whole.variant(dtype="int16")

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(use, range(8)))) == 1


def test_a_variant_has_operators_of_its_own_and_torch_func_cannot_differentiate(kernels: Any) -> None:
    variant = kernels.whole.variant(dtype="int16")
    assert str(variant.op).startswith("contracted_1_2_0.whole__") and str(kernels.whole.op).endswith(".whole")
    x = torch.ones(2)
    assert torch.compile(variant, backend="aot_eager", fullgraph=True)(x, 300).tolist() == [300, 300]
    assert str(np.int16(300)) in str(variant(x, 300).tolist())
    text = r"kernel 'cube': torch.func cannot differentiate.*\n  remedy: use torch.autog"
    with pytest.raises(RuntimeError, match=text):
        torch.func.grad(lambda x: kernels.cube(x, torch.ones(4), 1.5).sum())(torch.ones(5, 4))
