"""Which variant a call gets by a manifest, where nothing in C says the same: symbols, symbolic sizes, targets.

What the compiled dispatcher says as well is in contracts/test_arguments.py.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from kernelwright.runtime.arguments import Signatures
from kernelwright.runtime.expected import Described
from kernelwright.runtime.interface import plain_number
from kernelwright.runtime.size import INT32_LIMIT
from support.launcher_build import build, plan, signature, tensor
from support.matching import described, entry_of, f32


@pytest.mark.parametrize(
    ("name", "lengths", "output", "source"),
    [("saxpy", (3, 3, 4), "z.shape[0] on argument #3", "x"), ("copied", (4, 3), "y.shape[0] on argument #0", "x")],
)
def test_sizes_are_those_of_inputs_also_where_an_output_comes_first(name, lengths, output, source):
    kernel, arguments = Signatures(name, entry_of(name)), [Described("float32", (length,)) for length in lengths]
    begin = [Described(value=1.0)] if name == "saxpy" else []
    with pytest.raises(ValueError, match="Mismatched") as error:
        kernel.choose([*begin, *arguments])
    first, _, expected = str(error.value).splitlines()[:3]
    assert first == f"kernel '{name}': Mismatched {output} when calling:"
    assert expected == f"  expected to match {source}.shape[0]"
    fitting = Described("float32", (3,))
    assert kernel.choose([*begin, *[fitting] * len(lengths)]).symbols == {"n": 3}


def test_sizes_that_do_not_fit_have_the_words_of_tvm(tmp_path):
    """The real kernel's host code, for which the package adds kernel and remedy."""
    import tvm_ffi
    from support.launcher_build import llvm_unit
    from tvm import te

    n = te.var("n")
    x, y = te.placeholder((n,), "float32", name="x"), te.placeholder((n,), "float32", name="y")
    function = te.create_prim_func([x, y, te.compute((n,), lambda i: x[i] + y[i], name="z")])
    arguments = [tensor(name, "float32", ["n"], output=name == "z") for name in "xyz"]
    data = signature("add", arguments, symbols={"n": "int32"})
    library = build(tmp_path, plan("add", llvm_unit(tmp_path, function, data), outputs=["z"]))
    with pytest.raises(ValueError, match="Mismatched") as expected:
        tvm_ffi.load_module(str(library))["add"](f32(3), f32(4))
    entry = {"variants": [{"slug": "default", "arguments": arguments, "symbols": {"n": "int32"}}]}
    with pytest.raises(ValueError, match="Mismatched") as got:
        Signatures("add", entry).choose([described(f32(3)), described(f32(4))])
    assert str(got.value) == str(expected.value)


def test_a_size_is_computed_from_the_integer_that_was_compared():
    kernel, asked = Signatures("windows", entry_of("windows")), []

    class Counting:
        def __index__(self):
            asked.append(0)
            return len(asked)

    chosen = kernel.choose([Described("float32", (9, 4)), Described(value=Counting())])
    assert (chosen.symbols["width"], asked) == (1, [0])
    assert type(kernel.choose([Described("float32", (9, 4)), Described(value=np.int8(2))]).symbols["width"]) is int


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((np.int64(4), 4), (np.array(4), 4), (np.uint64(2**64 - 1), 2**64 - 1), (np.bool_(True), True), (True, True)),
        *((np.float16(1.5), 1.5), (np.array(2.5), 2.5), (2**70, 2**70), (None, None), ("4", "4"), (1j, 1j)),
    ],
)
def test_numbers_are_taken_as_python_has_them(value, expected):
    plain = plain_number(value)
    assert plain == expected and type(plain) is type(expected)


def test_symbolic_numbers_and_sizes_stay_symbolic():
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv()
    fake = torch._subclasses.FakeTensorMode(shape_env=environment)
    x = fake.from_tensor(torch.zeros(9, 4), static_shapes=False)
    width = x.shape[1]
    assert plain_number(width) is width
    kernel = Signatures("windows", entry_of("windows"))
    chosen = kernel.choose([Described("float32", (12, 4)), Described(value=width)])
    (_, parts), _ = chosen.outputs()
    assert isinstance(chosen.symbols["width"], torch.SymInt) and isinstance(parts[0], torch.SymInt)
    assert [str(guard.expr) for guard in environment.guards if "Eq" in str(guard.expr)] == []
    (_, parts), (_, order) = kernel.choose([Described("float32", tuple(x.shape)), Described(value=2)]).outputs()
    assert all(isinstance(size, torch.SymInt) for size in (*parts, *order))
    assert [int(size) for size in (*parts, *order)] == [(9 - 2) // 4 + 1, 6, 1, 5]


def copied(kind: str, output: str = "n") -> Signatures:
    """y = f(x), of n times m elements."""
    arguments = [tensor("x", "bool", ["n", "m"]), tensor("y", "bool", [output, "m"], output=True)]
    return Signatures("f", {"variants": [{"slug": "s", "arguments": arguments, "symbols": {"n": kind}}]})


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((INT32_LIMIT + 1, 1), ""),
        (((2**63 - 1) // 128, 1), ""),
        ((2**63, 1), f"has a dimension of {2**63}, beyond the {2**63 - 1} that int64 sizes"),
    ],
)
def test_as_many_elements_are_taken_and_made_as_int64_sizes_allow(shape, text):
    kernel, x, small = copied("int64"), Described("bool", shape), Described("bool", (1, 1))
    if not text:
        assert kernel.choose([x]).outputs() == [("bool", shape)] and kernel.choose([x, x]).index == 0
        return
    for call in ([x], [x, x], [small, x]):
        with pytest.raises(ValueError, match=re.escape(text)):
            kernel.choose(call)


@pytest.mark.parametrize(
    ("kind", "output", "n", "text"),
    [
        ("int32", "n + 1", INT32_LIMIT - 1, ""),
        ("int32", "n + 1", INT32_LIMIT, f"output 'y' would have the shape [{INT32_LIMIT + 1}, 1], expected sizes"),
        ("int32", "n - 9", 8, "output 'y' would have the shape [-1, 1], expected sizes from 0"),
        ("int32", "n * n * n", 2**22, "dimension 0 of output 'y' cannot be computed"),
        ("int32", "n // (m - 1)", 4, "dimension 0 of output 'y' cannot be computed"),
        ("int64", "n", (2**63 - 1) // 128 + 1, "output 'y' would have the shape"),
    ],
)
def test_outputs_that_cannot_be_are_refused(kind, output, n, text):
    chosen = copied(kind, output).choose([Described("bool", (n, 1))])
    if not text:
        assert chosen.outputs() == [("bool", (n + 1, 1))]
        return
    with pytest.raises(ValueError, match=re.escape(text)):
        chosen.outputs()


def test_an_output_is_made_if_none_is_passed_for_it_and_an_input_is_not():
    kernel, x = Signatures("saxpy", entry_of("saxpy")), Described("float32", (3,))
    assert kernel.choose([Described(value=1.0), x, x, None]).outputs() == [("float32", (3,))]
    with pytest.raises(TypeError, match=r"takes 4 arguments .* 3 were given"):
        kernel.choose([Described(value=1.0), x, None, x])


def test_only_variant_is_not_left_to_the_host_code():
    """With all arguments of a kernel with one variant, TVM's host code finds what is wrong. Here is none."""
    call = [Described(value=0.5), Described(value=0), Described(value=0), Described("bool", (2,))]
    with pytest.raises(
        TypeError, match=r"no built variant accepts these arguments\n  passed: on = the float 0.5, level"
    ):
        Signatures("flags", entry_of("flags")).choose(call)


def test_target_and_index_narrow_the_choice():
    entry = entry_of("rms_norm")
    entry["variants"][1]["units"] = [{"target": "cuda"}]
    kernel = Signatures("rms_norm", entry)
    call = [Described("float32", (7, 64)), Described("float32", (64,))]
    assert kernel.choose(call, target="cuda").index == 1
    with pytest.raises(ValueError, match="no built variant accepts"):
        kernel.choose(call, target="llvm")
    with pytest.raises(
        ValueError, match="cannot run on cuda: hidden-128_dtype-float32 was built for llvm, cuda only\n"
    ):
        kernel.choose(call, index=3, target="cuda")
    entry["variants"] = entry["variants"][1:2]
    with pytest.raises(ValueError, match="kernel 'rms_norm': it cannot run on cpu: it was built for cuda only\n"):
        Signatures("rms_norm", entry).choose(call, target="llvm")


class Unknown:
    """A symbolic integer, as far as sizes ask: it says how it was combined."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __sym_min__(self, other: object) -> Unknown:
        return Unknown(f"min({self.text}, {other})")

    def __sym_max__(self, other: object) -> Unknown:
        return Unknown(f"max({self.text}, {other})")

    def __str__(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("size", "result"),
    [
        *(("min(n, 3)", "min(n, 3)"), ("min(5, 3, n)", "min(n, 3)"), ("max(n, 3, 7)", "max(max(n, 3), 7)")),
        *(("max(m, n)", "max(n, 2)"), ("min(m, 1)", "1")),
    ],
)
def test_least_and_greatest_of_symbolic_sizes_are_asked_of_them(size, result):
    arguments = [tensor("x", "float32", ["n", "m"]), tensor("y", "float32", [size], output=True)]
    kernel = Signatures("k", {"variants": [{"slug": "s", "arguments": arguments, "symbols": {"n": "int32"}}]})
    ((dtype, (found,)),) = kernel.choose([Described("float32", (Unknown("n"), 2))]).outputs()
    assert (dtype, str(found)) == ("float32", result)
