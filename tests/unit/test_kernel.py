"""Kernel objects over a library that stands in: which function a call reaches, and which arrays are refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from kernelwright.runtime.interface import NoVariantError, backward_of, unsigned_of
from kernelwright.runtime.kernel import Kernel, Output, make_kernel
from support.launcher_build import FakeTensor, scalar, tensor


class Library:
    """A library whose functions note how they are called, and return what they are told to.

    Arguments:
        answers: service of the launcher -> what it returns.
    """

    def __init__(self, **answers: Any) -> None:
        self.result: Any = None
        self.calls: list[str] = []
        self.asked: list[tuple[Any, ...]] = []
        self._answers = answers

    def get_function(self, symbol: str) -> tvm_ffi.Function:
        """The function of a kernel, or of one of its variants."""

        def function(*arguments: Any) -> Any:
            self.calls.append(symbol)
            return self.result

        return tvm_ffi.convert(function)

    def __getitem__(self, service: str) -> Any:
        def function(*numbers: int) -> Any:
            self.asked.append((service, *numbers))
            return self._answers.get(service, 0)

        return function


def variant(slug: str, *written: str, targets: tuple[str, ...] = ("llvm",), **config: Any) -> dict[str, Any]:
    """A variant of ``y = f(x)``, which may write more than its output y."""
    arguments = [tensor("x", "float32", ["n"]), tensor("y", "float32", ["n"], output=True)]
    for argument in arguments:
        argument["written"] = argument["output"] or argument["name"] in written
    units = [{"target": target} for target in targets]
    return {"slug": slug, "config": config, "arguments": arguments, "symbols": {"n": "int32"}, "units": units}


def kernel_of(library: Library, *variants: Mapping[str, Any]) -> Kernel:
    entry = {"doc": "", "outputs": ["y"], "variants": [dict(item) for item in variants]}
    return make_kernel("f", entry, library, None, Kernel)


def read_only() -> np.ndarray:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    return array


def test_a_variant_is_found_by_value_and_type_before_value_and_keeps_what_is_not_said() -> None:
    kernel = kernel_of(
        Library(), variant("one", size=1), variant("real", size=1.0), variant("true", size=True), variant("two", size=2)
    )
    for wanted, number in ((1, 0), (1.0, 1), (True, 2), (2.0, 3), (np.int64(1), 0)):
        assert kernel.variant(size=wanted)._index == number
    of_class = variant("one", dtype="float32", n_multiple_of=16, block=1) | {"multiples": {"n": 16}}
    kernel = kernel_of(Library(), of_class, variant("two", dtype="float32", block=1))
    assert kernel.variant(dtype="float32")._index == 1, "without a class it is for any size"
    assert kernel.variant(n_multiple_of=16)._index == 0
    configs = [{"size": size, "dtype": dtype} for dtype in ("float32", "float16") for size in (8, 32)]
    kernel = kernel_of(Library(), *(variant(str(config), **config) for config in configs))
    assert kernel.variant(dtype="float16").variants == ({"size": 8, "dtype": "float16"},)
    assert kernel.variant(dtype="float16").variant(size=32).variants == ({"size": 32, "dtype": "float16"},)
    with pytest.raises(KeyError, match="f has no variant with size=5, dtype='float16'; built are: size=8, dtype="):
        kernel.variant(dtype="float16").variant(size=5)


@pytest.mark.parametrize(("device", "numbers"), [("cpu", (1, 0)), ("cuda", (2, 0)), ("cuda:3", (2, 3))])
def test_a_device_is_asked_for_by_its_kind_and_number(device: str, numbers: tuple[int, int]) -> None:
    library = Library(kw_supported=1)
    kernel = kernel_of(library, variant("a"))
    assert not kernel.supported(device)
    kernel.preload(device)
    assert library.asked == [("kw_supported", *numbers), ("kw_preload", *numbers)]
    with pytest.raises(ValueError, match="unknown device 'cuda:x'"):
        kernel.supported("cuda:x")


def test_an_array_that_a_later_variant_writes_may_not_be_read_only() -> None:
    library = Library()
    kernel = kernel_of(library, variant("a", size=1), variant("b", "x", size=2))
    for function in (kernel, kernel.variant(size=2)):
        for arguments in ((read_only(),), (read_only(), np.ones(3, np.float32))):
            with pytest.raises(ValueError, match="kernel 'f': argument 'x' is a read-only array, and the kernel"):
                function(*arguments)
    assert library.calls == []
    kernel.variant(size=1)(read_only())
    with pytest.raises(ValueError, match="argument 'y' is a read-only array"):
        kernel.variant(size=1)(read_only(), read_only())
    assert library.calls == ["kw_looking__0"]


def test_an_output_on_a_gpu_remembers_its_stream_whatever_else_the_kernel_is_built_for() -> None:
    library = Library(kw_current_stream=0x50)
    kernel, x = kernel_of(library, variant("a", targets=("llvm", "cuda"))), np.ones(3, np.float32)
    for _ in range(2):
        library.result = tvm_ffi.from_dlpack(x)
        assert isinstance(kernel(x), tvm_ffi.Tensor)
        library.result = tvm_ffi.from_dlpack(FakeTensor((3,), device=(2, 1)))
        output = kernel(x)
        assert isinstance(output, Output) and output._stream == 0x50
    assert library.asked == [("kw_current_stream", 1)] * 2


def test_a_number_is_unsigned_if_it_is_in_each_variant() -> None:
    variants = {dtype: {"arguments": [scalar("n", dtype)]} for dtype in ("uint64", "int64")}
    for dtypes, names in ((["uint64"], {"n"}), (["uint64", "int64"], set()), (["int64", "uint64"], set())):
        assert unsigned_of({"variants": [variants[dtype] for dtype in dtypes]}) == names


def test_the_gradient_of_a_variant_is_that_of_its_own_config_or_none() -> None:
    class Backward:
        variants = ({"n": 1}, {"n": 2})

        def variant(self, **config: int) -> int:
            if config not in self.variants:
                raise NoVariantError
            return config["n"]

    configs = [{"m": 8, "n": n} for n in (1, 2, 3)]
    assert [backward_of(SimpleNamespace(variants=[config]), Backward()) for config in configs] == [1, 2, None]
