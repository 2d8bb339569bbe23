"""Operators of the torch backend without a library: what a second try may copy, and what a traced call gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from support.launcher_build import tensor

torch = pytest.importorskip("torch")

from kernelwright.runtime.expected import Described  # noqa: E402
from kernelwright.runtime.torch_kernel import Operators, _described  # noqa: E402


def refuse(arguments: Any, error: Exception) -> NoReturn:
    """What a kernel object does about calls that failed, where nothing is compiled."""
    raise error


def operators(name: str, *variants: tuple[list[dict[str, Any]], str], index: int | None = None) -> Operators:
    """The operators of a kernel, of which each variant has arguments and a target."""
    called: list[tuple[Any, ...]] = []
    kernel = SimpleNamespace(name=name, _index=index, function=lambda *given: called.append(given), called=called)
    kernel._note_miss = lambda arguments, error: called.append(arguments)
    kernel._missed = refuse
    plain = {"slug": "v", "config": {}, "symbols": {"n": "int32"}}
    listed = [{**plain, "arguments": arguments, "units": [{"target": target}]} for arguments, target in variants]
    return Operators(SimpleNamespace(package="by_hand", version="1"), {"doc": "", "variants": listed}, kernel, None)


def x_and_y(shape: str = "n", *, written: bool = False, alignment: int = 4) -> list[dict[str, Any]]:
    """An input, which may be written, and an output."""
    arguments = [tensor("x", "float32", ["n"]), tensor("y", "float32", [shape], output=True)]
    arguments[0]["written"] = written
    return [argument | {"alignment": alignment} for argument in arguments]


FAILED = RuntimeError("the first try")


def test_what_a_later_variant_writes_is_no_copy_and_data_is_aligned_as_any_needs_it() -> None:
    made = operators("written", (x_and_y(), "llvm"), (x_and_y(written=True), "llvm"))
    with pytest.raises(ValueError, match="argument 'x' is not contiguous, or not aligned to 4 bytes, and the kernel"):
        made.repeat(FAILED, torch.arange(6.0)[::2], torch.zeros(3))
    with pytest.raises(ValueError, match="argument 'y' is not contiguous"):
        made.repeat(FAILED, torch.zeros(3), torch.arange(6.0)[::2])
    assert made.kernel.called == []
    made = operators("aligned", (x_and_y(), "llvm"), (x_and_y(alignment=64), "llvm"))
    memory = torch.zeros(64)
    odd = next(memory[i : i + 4] for i in range(32) if memory[i:].data_ptr() % 64 == 32)
    made.repeat(FAILED, odd, torch.zeros(4))
    ((first, _),) = made.kernel.called
    assert first.data_ptr() != odd.data_ptr()
    with pytest.raises(ValueError, match="argument 'y' is not contiguous, or not aligned to 64 bytes"):
        made.repeat(FAILED, torch.zeros(4), odd)


def test_only_what_declares_strides_is_passed_as_it_is() -> None:
    x, y = x_and_y()
    made = operators("strided", ([x, {**x, "name": "w", "strides": ["s"]}, y], "llvm"))
    rows = torch.arange(6.0).reshape(3, 2)
    made.repeat(FAILED, rows[:, 0], rows[:, 1], torch.zeros(3))
    ((first, second, _),) = made.kernel.called
    assert (first.tolist(), first.stride(), second.stride()) == ([0, 2, 4], (1,), (2,))


class OnCuda(torch.Tensor):
    """What a tensor on a GPU says of itself; its data is not looked at where shapes are asked for."""

    device = torch.device("cuda", 0)


def on_cuda(size: int) -> torch.Tensor:
    return torch.empty(size).as_subclass(OnCuda)


def test_a_traced_call_gets_the_variant_that_is_built_for_its_device() -> None:
    made = operators("traced", (x_and_y("n * 2"), "llvm"), (x_and_y("n * 3"), "cuda"))
    assert tuple(made._fake(torch.empty(4)).shape) == (8,)
    assert made._fake(torch.empty(4), torch.empty(8)) is made._fake(on_cuda(4), on_cuda(12)) is None
    for call in ((torch.empty(4), torch.empty(12)), (on_cuda(4), on_cuda(8))):
        with pytest.raises(ValueError, match=r"Mismatched y\.shape\[0\] on argument #1"):
            made._fake(*call)
    with pytest.raises(TypeError, match="no built variant accepts"):
        made._fake(torch.empty(4), torch.empty(8, dtype=torch.float16))
    on_cpu = operators("traced_on_cpu", (x_and_y(), "llvm"))
    with pytest.raises(ValueError, match="kernel 'traced_on_cpu': it cannot run on cuda: it was built for llvm only"):
        on_cpu._fake(on_cuda(4))


def test_a_call_that_no_variant_takes_is_described_with_its_device() -> None:
    for make, device in ((torch.empty, "cpu"), (on_cuda, "cuda:0")):
        described = _described(make(4)[::2], has_strides=True)
        assert described == Described("float32", (2,), device=device, strides=(2,))
