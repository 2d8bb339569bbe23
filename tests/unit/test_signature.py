"""Matching of a call against a manifest entry, beside what the compiled dispatcher of the same kernel does."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from kernelwright.runtime.arguments import INT32_LIMIT, Described, Signatures
from kernelwright.runtime.interface import plain_number
from launcher_build import build, c_unit, plan, scalar, signature, tensor
from support.project import SITE_SCONS

DOES_NOTHING = "BEGIN (void)argument; (void)self; (void)count; (void)result; (void)tensor; END"

KERNELS: dict[str, list[tuple[str, list[dict[str, Any]], dict[str, str]]]] = {
    "saxpy": [
        (
            "default",
            [
                scalar("alpha", "float32"),
                tensor("x", "float32", ["n"]),
                tensor("y", "float32", ["n"]),
                tensor("z", "float32", ["n"], output=True),
            ],
            {"n": "int32"},
        )
    ],
    "rms_norm": [
        (
            f"hidden-{hidden}_dtype-{dtype}",
            [
                tensor("x", dtype, ["tokens", hidden]),
                tensor("weight", dtype, [hidden]),
                tensor("y", dtype, ["tokens", hidden], output=True),
            ],
            {"tokens": "int32"},
        )
        for hidden in (64, 128)
        for dtype in ("float16", "float32")
    ],
    "windows": [
        (
            "default",
            [
                tensor("x", "float32", ["n", "m"]),
                scalar("width", "int32"),
                tensor(
                    "parts", "float32", ["(n - width) // max(m, 2) + 1", "min(n, m, 3) * 2", "n % width"], output=True
                ),
                tensor("order", "int64", ["-(-n // width)"], output=True),
            ],
            {"n": "int32", "m": "int32"},
        )
    ],
    "flags": [
        (
            "small",
            [scalar("on", "bool"), scalar("level", "int8"), scalar("count", "uint8"), tensor("x", "bool", ["n"])],
            {"n": "int64"},
        )
    ],
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Each kernel's entry, and its compiled dispatcher; the kernels do nothing, which is all that is asked of them."""
    import tvm_ffi

    folder = tmp_path_factory.mktemp("signatures")
    made = {}
    for name, variants in KERNELS.items():
        units = []
        for slug, arguments, symbols in variants:
            data = signature(name, arguments, slug=slug, symbols=symbols)
            units.append(c_unit(folder, DOES_NOTHING, data))
        outputs = [argument["name"] for argument in variants[0][1] if argument.get("output")]
        made[name] = entry_of(name), tvm_ffi.load_module(str(build(folder, plan(name, *units, outputs=outputs))))[name]
    return made


def entry_of(name: str) -> dict[str, Any]:
    """What the manifest would say."""
    variants = [
        {"slug": slug, "arguments": arguments, "symbols": symbols, "units": [{"target": "llvm"}]}
        for slug, arguments, symbols in KERNELS[name]
    ]
    return {"variants": variants, "outputs": [a["name"] for a in KERNELS[name][0][1] if a.get("output")]}


def described(argument: Any) -> Described:
    if hasattr(argument, "__dlpack__"):
        return Described(str(argument.dtype), argument.shape, device="cpu")
    return Described(value=argument)


def f32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def f16(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float16)


FITTING = [
    ("saxpy", (2.0, f32(3), f32(3))),
    ("saxpy", (2, f32(0), f32(0))),
    ("rms_norm", (f32(5, 128), f32(128))),
    ("rms_norm", (f16(0, 64), f16(64))),
    ("windows", (f32(7, 3), 2)),
    ("windows", (f32(9, 1), 4)),
    ("windows", (f32(9, 4), 9)),
]


@pytest.mark.parametrize(("name", "arguments"), FITTING)
def test_outputs_are_those_that_the_dispatcher_makes(libraries, name, arguments):
    entry, function = libraries[name]
    result = function(*arguments)
    tensors = list(result) if len(entry["outputs"]) > 1 else [result]
    expected = [(str(t.dtype), tuple(t.shape)) for t in tensors]
    assert Signatures(name, entry).choose([described(a) for a in arguments]).outputs() == expected


WRONG = [
    ("saxpy", (2.0, f32(3))),
    ("saxpy", (2.0, f32(3), f32(3), f32(3), f32(3))),
    ("saxpy", (2.0, 3.0, f32(3))),
    ("saxpy", (2.0, f32(3), 3)),
    ("saxpy", (2.0, f32(3), True)),
    ("saxpy", (2.0, f32(3), None)),
    ("saxpy", (2.0, f32(3), "a")),
    ("saxpy", ("a", f32(3), f32(3))),
    ("saxpy", (None, f32(3), f32(3))),
    ("saxpy", (2.5, f32(3), f16(3))),
    ("saxpy", (1e30, f32(3, 1), f32(3))),
    ("rms_norm", (f32(5, 127), f32(127))),
    ("rms_norm", (f32(5, 128), f16(128))),
    ("rms_norm", (f32(5, 128), f32(64), f32(5, 128))),
    ("rms_norm", (f32(5, 64), f32(64), f32(5, 128))),
    ("rms_norm", (f32(5, 64), f32(64), f16(5, 64))),
    ("rms_norm", (f32(5, 64), f32(64), f32(5, 64, 1))),
    ("windows", (f32(9, 4), 0)),
    ("windows", (f32(1, 1), 4)),
    ("windows", (f32(9, 4), 2**31)),
    ("windows", (f32(9, 4), 1.5)),
    ("flags", (True, 128, 0, np.zeros(2, np.bool_))),
    ("flags", (True, -129, 0, np.zeros(2, np.bool_))),
    ("flags", (True, 0, -1, np.zeros(2, np.bool_))),
    ("flags", (True, 0, 256, np.zeros(2, np.bool_))),
    ("flags", (True, 0, 0)),
]


@pytest.mark.parametrize(("name", "arguments"), WRONG)
def test_wrong_calls_get_the_message_of_the_dispatcher(libraries, name, arguments):
    entry, function = libraries[name]
    with pytest.raises((TypeError, ValueError)) as expected:
        function(*arguments)
    with pytest.raises((TypeError, ValueError)) as got:
        Signatures(name, entry).choose([described(a) for a in arguments]).outputs()
    assert (str(got.value), got.type) == (str(expected.value), expected.type)


def test_first_variant_that_fits_is_chosen():
    kernel = Signatures("rms_norm", entry_of("rms_norm"))
    weights = [Described(dtype, (hidden,)) for hidden in (64, 128) for dtype in ("float16", "float32")]
    rows = [Described(weight.dtype, (7, *weight.shape)) for weight in weights]
    assert [kernel.choose(pair).index for pair in zip(rows, weights, strict=True)] == [0, 1, 2, 3]
    assert kernel.choose([rows[1], weights[1]]).symbols == {"tokens": 7}


def test_passed_outputs_are_compared_too():
    kernel = Signatures("saxpy", entry_of("saxpy"))
    x, z = Described("float32", (3,)), Described("float32", (4,))
    assert kernel.choose([Described(value=1.0), x, x, x]).index == 0
    assert kernel.choose([Described(value=1.0), x, x, None]).outputs() == [("float32", (3,))]
    with pytest.raises(
        ValueError, match=r"kernel 'saxpy': Mismatched z.shape\[0\] on argument #3 .*(?s:.)*x.shape\[0\]"
    ):
        kernel.choose([Described(value=1.0), x, x, z])
    with pytest.raises(TypeError, match=r"takes 4 arguments .* 3 were given"):
        kernel.choose([Described(value=1.0), x, None, z])


def out_first():
    """y = f(x), whose output comes before its input."""
    arguments = [tensor("y", "float32", ["n"], output=True), tensor("x", "float32", ["n"])]
    return {"variants": [{"slug": "default", "arguments": arguments, "symbols": {"n": "int32"}}]}


def test_sizes_are_those_of_inputs_also_where_an_output_comes_first():
    kernel, small, large = Signatures("f", out_first()), Described("float32", (3,)), Described("float32", (4,))
    assert kernel.choose([None, small]).symbols == kernel.choose([small, small]).symbols == {"n": 3}
    with pytest.raises(ValueError, match="Mismatched") as error:
        kernel.choose([large, small])
    first, call, expected = str(error.value).splitlines()[:3]
    assert first == "kernel 'f': Mismatched y.shape[0] on argument #0 when calling:"
    assert call == "  `f(y: Tensor([n], float32), x: Tensor([n], float32))`,"
    assert expected == "  expected to match x.shape[0]"


def test_a_passed_output_is_of_the_dtype_rank_and_sizes_of_its_variant():
    kernel = Signatures("rms_norm", entry_of("rms_norm"))
    x, weight = Described("float32", (7, 64)), Described("float32", (64,))
    assert kernel.choose([x, weight, x]).index == 1
    for dtype, shape, kind in (
        ("float16", (7, 64), TypeError),
        ("float64", (7, 64), TypeError),
        ("float32", (7, 64, 1), TypeError),
        ("float32", (7, 128), ValueError),
        ("float32", (6, 64), ValueError),
    ):
        with pytest.raises(kind, match="kernel 'rms_norm'"):
            kernel.choose([x, weight, Described(dtype, shape)])


def test_sizes_that_do_not_fit_have_the_words_of_tvm(tmp_path):
    """The real kernel's host code, for which the package adds kernel and remedy."""
    from tvm import te

    n = te.var("n")
    x, y = te.placeholder((n,), "float32", name="x"), te.placeholder((n,), "float32", name="y")
    from launcher_build import llvm_unit

    function = te.create_prim_func([x, y, te.compute((n,), lambda i: x[i] + y[i], name="z")])
    arguments = [
        tensor("x", "float32", ["n"]),
        tensor("y", "float32", ["n"]),
        tensor("z", "float32", ["n"], output=True),
    ]
    data = signature("add", arguments, symbols={"n": "int32"})
    import tvm_ffi

    library = build(tmp_path, plan("add", llvm_unit(tmp_path, function, data), outputs=["z"]))
    with pytest.raises(ValueError, match="Mismatched") as expected:
        tvm_ffi.load_module(str(library))["add"](f32(3), f32(4))
    entry = {"variants": [{"slug": "default", "arguments": arguments, "symbols": {"n": "int32"}}]}
    with pytest.raises(ValueError, match="Mismatched") as got:
        Signatures("add", entry).choose([described(f32(3)), described(f32(4))])
    assert str(got.value) == str(expected.value)


@pytest.mark.parametrize("kind", [int, np.int64, np.array])
def test_integers_of_any_library_are_compared_with_their_type(kind):
    kernel, on, x = Signatures("flags", entry_of("flags")), Described(value=True), Described("bool", (2,))
    for level, text in ((128, "'level' is 128, which does not fit int8"), (2**62, f"is {2**62}, which does not fit")):
        with pytest.raises(ValueError, match=text):
            kernel.choose([on, Described(value=kind(level)), Described(value=0), x])
    for count in (256, -1):
        with pytest.raises(ValueError, match=f"'count' is {count}, which does not fit uint8"):
            kernel.choose([on, Described(value=0), Described(value=kind(count)), x])
    assert kernel.choose([on, Described(value=kind(-128)), Described(value=kind(255)), x]).index == 0


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
        (np.int64(4), 4),
        (np.array(4), 4),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (True, True),
        (np.float16(1.5), 1.5),
        (np.array(2.5), 2.5),
        (2**70, 2**70),
        (None, None),
        ("4", "4"),
        (1j, 1j),
    ],
)
def test_numbers_are_taken_as_python_has_them(value, expected):
    plain = plain_number(value)
    assert plain == expected and type(plain) is type(expected)


def test_symbolic_numbers_stay_symbolic():
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv()
    fake = torch._subclasses.FakeTensorMode(shape_env=environment)
    width = fake.from_tensor(torch.zeros(9, 4), static_shapes=False).shape[1]
    assert plain_number(width) is width
    chosen = Signatures("windows", entry_of("windows")).choose([Described("float32", (12, 4)), Described(value=width)])
    (_, parts), _ = chosen.outputs()
    assert isinstance(chosen.symbols["width"], torch.SymInt) and isinstance(parts[0], torch.SymInt)
    assert [str(guard.expr) for guard in environment.guards if "Eq" in str(guard.expr)] == []


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2**31, 0), f"has a dimension of {2**31}, beyond the {INT32_LIMIT} that int32 sizes allow"),
        ((2**16, 2**16), "of shape [65536, 65536] has more elements than the 2147418112 that int32 sizes allow"),
        ((-1, 2), "has a dimension of -1, expected one from 0"),
    ],
)
def test_sizes_beyond_int32_are_refused(shape, text):
    with pytest.raises(ValueError, match="argument 'x'") as error:
        Signatures("windows", entry_of("windows")).choose([Described("float32", shape), Described(value=1)])
    assert text in str(error.value)


def product(*, wide=False):
    """y = f(x), of n times m elements, which takes and makes vectors and matrices."""
    arguments = [tensor("x", "bool", ["n", "m"]), tensor("y", "bool", ["n", "m"], output=True)]
    return {"variants": [{"slug": "s", "arguments": arguments, "symbols": {"n": "int64" if wide else "int32"}}]}


@pytest.mark.parametrize("shape", [(INT32_LIMIT, 1), (INT32_LIMIT, 0), (1, INT32_LIMIT), (65536, 32767)])
def test_as_many_elements_as_int32_allows_are_taken_and_made(shape):
    assert (INT32_LIMIT, 65536 * 32767) == (2147418112, INT32_LIMIT)
    kernel, x = Signatures("f", product()), Described("bool", shape)
    assert kernel.choose([x]).outputs() == [("bool", shape)]
    assert kernel.choose([x, x]).index == 0


@pytest.mark.parametrize("shape", [(INT32_LIMIT + 1, 1), (INT32_LIMIT + 1, 0), (1, INT32_LIMIT + 1), (65537, 32767)])
def test_one_element_more_than_int32_allows_is_refused(shape):
    kernel, x, small = Signatures("f", product()), Described("bool", shape), Described("bool", (1, 1))
    for call in ([x], [x, x], [small, x]):
        with pytest.raises(ValueError, match=f"(beyond|than) the {INT32_LIMIT} that int32 sizes allow"):
            kernel.choose(call)
    assert Signatures("f", product(wide=True)).choose([x]).outputs() == [("bool", shape)]


@pytest.mark.parametrize(("length", "fits"), [(INT32_LIMIT, True), (INT32_LIMIT + 1, False), (0, True), (-1, False)])
def test_an_output_has_as_many_elements_as_int32_allows_and_no_more(length, fits):
    arguments = [scalar("length", "int32"), tensor("y", "bool", ["length"], output=True)]
    kernel = Signatures("f", {"variants": [{"slug": "s", "arguments": arguments, "symbols": {"length": "int32"}}]})
    chosen = kernel.choose([Described(value=length)])
    if fits:
        assert chosen.outputs() == [("bool", (length,))]
    else:
        with pytest.raises(ValueError, match=rf"output 'y' would have the shape \[{length}\], expected sizes from 0"):
            chosen.outputs()


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


@pytest.mark.parametrize(
    "size", ["n ** 2", "__import__('os')", "n.bit_length()", "n / 2", "(lambda: 1)()", "1.5", "n if n else 1", "n +"]
)
def test_sizes_outside_of_the_grammar_are_refused(size):
    entry = {"variants": [{"slug": "s", "arguments": [tensor("x", "float32", [size])], "symbols": {}}]}
    with pytest.raises(ValueError, match="the size"):
        Signatures("k", entry)


def test_symbols_may_be_called_like_the_functions():
    arguments = [tensor("x", "float32", ["min", "max"]), tensor("y", "float32", ["min(min, max)"], output=True)]
    kernel = Signatures("k", {"variants": [{"slug": "s", "arguments": arguments, "symbols": {"min": "int32"}}]})
    assert kernel.choose([Described("float32", (5, 3))]).outputs() == [("float32", (3,))]


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
        ("min(n, 3)", "min(n, 3)"),
        ("min(5, 3, n)", "min(n, 3)"),
        ("max(n, 3, 7)", "max(max(n, 3), 7)"),
        ("max(m, n)", "max(n, 2)"),
        ("min(m, 1)", "1"),
    ],
)
def test_least_and_greatest_of_symbolic_sizes_are_asked_of_them(size, result):
    arguments = [tensor("x", "float32", ["n", "m"]), tensor("y", "float32", [size], output=True)]
    kernel = Signatures("k", {"variants": [{"slug": "s", "arguments": arguments, "symbols": {"n": "int32"}}]})
    ((dtype, (found,)),) = kernel.choose([Described("float32", (Unknown("n"), 2))]).outputs()
    assert (dtype, str(found)) == ("float32", result)


def test_what_a_variant_lacks_is_told_with_every_error():
    entry = entry_of("saxpy") | {
        "missing": [{"kernel": "saxpy", "archs": ["sm_80"], "stage": "nvcc", "error": "large"}]
    }
    with pytest.raises(
        TypeError, match=r"kernel 'saxpy': takes 4 arguments \(alpha, x, y, \[z\]\), or 3 with"
    ) as caught:
        Signatures("saxpy", entry).choose([])
    assert "large" in str(caught.value)


def test_limits_of_sizes_are_those_of_the_integers_that_a_kernel_computes_with():
    for kind, limit, most in (("int32", INT32_LIMIT, INT32_LIMIT), ("int64", 2**63 - 1, (2**63 - 1) // 128)):
        arguments = [tensor("x", "float32", ["n"]), tensor("y", "float32", ["n"], output=True)]
        kernel = Signatures("k", {"variants": [{"slug": "s", "arguments": arguments, "symbols": {"n": kind}}]})
        assert kernel.choose([Described("float32", (most,))]).outputs() == [("float32", (most,))]
        with pytest.raises(ValueError, match=f"has a dimension of {limit + 1}, beyond the {limit} that {kind} sizes"):
            kernel.choose([Described("float32", (limit + 1,))])
        if most < limit:
            with pytest.raises(
                ValueError, match=rf"output 'y' would have the shape \[{most + 1}\], expected sizes from 0"
            ):
                kernel.choose([Described("float32", (most + 1,))]).outputs()


@pytest.mark.parametrize("sizes", [["n // m"], ["n * n * n"], ["n - 9"], ["n", "1073741824"]])
def test_outputs_that_cannot_be_are_refused(sizes):
    arguments = [tensor("x", "float32", ["n", "m"]), tensor("y", "float32", sizes, output=True)]
    kernel = Signatures("k", {"variants": [{"slug": "s", "arguments": arguments, "symbols": {"n": "int32"}}]})
    number = 2**22 if "*" in sizes[0] else 4
    with pytest.raises(ValueError, match=r"kernel 'k': (dimension 0 of )?output 'y' (cannot be computed|would have)"):
        kernel.choose([Described("float32", (number, 0))]).outputs()


def test_symbolic_sizes_stay_symbolic():
    torch = pytest.importorskip("torch")
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv()
    fake = torch._subclasses.FakeTensorMode(shape_env=environment)
    tensor = fake.from_tensor(torch.zeros(9, 4), static_shapes=False)
    kernel = Signatures("windows", entry_of("windows"))
    chosen = kernel.choose([Described("float32", tuple(tensor.shape)), Described(value=2)])
    (_, parts), (_, order) = chosen.outputs()
    assert all(isinstance(size, torch.SymInt) for size in (*parts, *order))
    assert [int(size) for size in (*parts, *order)] == [(9 - 2) // 4 + 1, 6, 1, 5]


def test_only_the_standard_library_is_imported():
    code = """
    import sys
    import kernelwright.runtime.arguments
    print(sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"__main__"}))
    """
    command = [sys.executable, "-Sc", textwrap.dedent(code)]
    paths = {"PYTHONPATH": str(SITE_SCONS)}  # without site, an installed package is not found
    done = subprocess.run(command, env=paths, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == ["kernelwright"]
