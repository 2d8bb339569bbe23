"""Custom calls of the jax backend as they are registered and traced. Nothing is built, and nothing is run."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from support.launcher_build import scalar, tensor

jax = pytest.importorskip("jax")
jax_tvm_ffi = pytest.importorskip("jax_tvm_ffi")

LOADER = SimpleNamespace(package="acme.kernels", version="1.0+cu13")

ALIAS = re.compile(r"output_operand_alias<output_tuple_indices = \[(\d*)\],\s*operand_index = (\d+)")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is registered with jax-tvm-ffi, as in a process of its own."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(jax_tvm_ffi, "register_ffi_target", lambda *given, **more: calls.append((*given, more)))
    monkeypatch.setattr(jax_tvm_ffi, "_kernelwright", {}, raising=False)
    return calls


def updated(name: str, dtype: str = "float32") -> dict[str, Any]:
    """An input that the kernel writes."""
    return {**tensor(name, dtype, ["n"]), "written": True}


def entry_of(*variants: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    listed = [
        {
            **{"slug": f"v{number}", "config": {"number": number}, "arguments": list(arguments)},
            **{"symbols": {"n": "int32"}, "units": [{"target": "llvm"}]},
        }
        for number, arguments in enumerate(variants)
    ]
    return {"doc": "", "variants": listed}


class Kernel:
    """What a kernel object of tvm-ffi has that the backend asks for."""

    name = "f"

    def __init__(self, index: int | None = None) -> None:
        self._index, self.function = index, object()
        self.missed: list[Any] = []

    def _of_variant(self, index: int) -> Kernel:
        return Kernel(index)

    def _note_miss(self, arguments: Any, error: Exception) -> None:
        self.missed.append(arguments)

    def for_xla(self, function: Any) -> tuple[str, Any]:
        return "guarded", function


def kernel_of(entry: dict[str, Any], kernel: Any = None) -> Any:
    from kernelwright.runtime.jax_kernel import JaxKernel

    return JaxKernel(LOADER, entry, kernel or Kernel(), None)


def lowered(kernel: Any, *arguments: Any) -> str:
    """The program of a call, as XLA gets it."""
    return str(jax.jit(kernel).lower(*arguments).as_text())


X = jax.ShapeDtypeStruct((4,), "float32")


def test_inputs_that_are_written_share_memory_with_the_results_behind_the_outputs(registered: list[Any]) -> None:
    entry = entry_of(
        [tensor("x", "float32", ["n"]), updated("total"), tensor("y", "float32", ["n"], output=True), updated("count")]
    )
    text = lowered(kernel_of(entry), X, X, X)
    assert ALIAS.findall(text) == [("1", "1"), ("2", "2")], text


def test_none_is_told_by_its_place_and_shares_no_memory(registered: list[Any]) -> None:
    optional = [{**tensor(name, "float32", ["n"]), "given": None} for name in "ab"]
    kernel = kernel_of(entry_of([*optional, updated("total"), tensor("y", "float32", ["n"], output=True)]))
    for a, b, absent, place in ((X, X, 0, "2"), (X, None, 2, "1"), (None, X, 1, "1"), (None, None, 3, "0")):
        text = lowered(kernel, a, b, X)
        assert ALIAS.findall(text) == [("1", place)] and f"absent = {absent} : i64" in text, text


def test_an_input_that_a_later_variant_writes_is_returned(registered: list[Any]) -> None:
    x, y = tensor("x", "float32", ["n"]), tensor("y", "float32", ["n"], output=True)
    kernel = kernel_of(entry_of([x, y], [updated("x"), y]))
    assert [result.shape for result in jax.eval_shape(kernel, X)] == [(4,), (4,)]
    assert ALIAS.findall(lowered(kernel, X)) == [("1", "0")]


@pytest.mark.parametrize(
    ("arguments", "places", "direct"),
    [
        ("x y", ["args", "rets"], True),
        ("y x", ["rets", "args"], True),
        ("x a y", ["args", "attrs.a", "rets"], True),
        ("a b x y", ["attrs.a", "attrs.b", "args", "rets"], True),
        ("total", ["args"], True),
        ("x total", ["args"], True),
        ("x y total", ["args", "rets"], False),
        ("total y", ["args", "rets"], False),
        ("x a total y", ["attrs.a", "args", "rets"], False),
        ("x y v z", ["args", "rets"], False),
    ],
)
def test_arguments_in_the_order_of_jax_go_to_the_kernel_and_others_through_a_function(
    registered: list[Any], arguments: str, places: list[str], direct: bool
) -> None:
    kernel = Kernel()
    kernel_of(entry_of(described(arguments)), kernel)
    ((target, function, found, platform, more),) = registered
    assert (target, platform, found) == ("acme_kernels_1_0_cu13.f", "cpu", places)
    assert (function is kernel.function) == direct and more == {"pass_owned_tensor": not direct}


def described(names: str) -> list[dict[str, Any]]:
    """Arguments by their names: inputs x and v, outputs y and z, numbers a and b, an input that is written."""
    made = {
        **{name: tensor(name, "float32", ["n"]) for name in "xv"},
        **{name: tensor(name, "float32", ["n"], output=True) for name in "yz"},
        **{name: scalar(name, "float32") for name in "ab"},
        "total": updated("total"),
    }
    return [made[name] for name in names.split()]


def test_what_is_registered_for_a_gpu_leaves_no_stream_behind(registered: list[Any]) -> None:
    kernel, entry = Kernel(), entry_of(described("x y"))
    entry["variants"][0]["units"].append({"target": "cuda"})
    kernel_of(entry, kernel)
    assert [call[1:4] for call in registered] == [
        (kernel.function, ["args", "rets"], "cpu"),
        (("guarded", kernel.function), ["args", "rets"], "gpu"),
    ]


def test_threads_that_use_a_kernel_at_once_register_it_once(registered: list[Any], monkeypatch) -> None:
    entry, others = entry_of(described("x y")), list[threading.Thread]()

    def register(*given: Any, **more: Any) -> None:
        registered.append(given)
        if not others:
            others.append(threading.Thread(target=kernel_of, args=(entry,)))
            others[0].start()
            others[0].join(0.2)  # it waits for this one

    monkeypatch.setattr(jax_tvm_ffi, "register_ffi_target", register)
    kernel_of(entry)
    others[0].join()
    assert len(registered) == 1
