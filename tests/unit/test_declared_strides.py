"""Strides that a definition declares for its arguments: what they mean, what is refused, and what is lowered."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from typing import Any

import pytest
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.cuda import Exported, Scalar, Size, Source, Stride, Tensor, TensorMap, Workspace
from kernelwright.define.declared import check_arguments, told_strides
from kernelwright.frontends.declared_launch import declared_arguments
from kernelwright.frontends.launches import encoded
from kernelwright.frontends.unit import Unit
from kernelwright.runtime.arguments import Described, Signatures
from kernelwright.runtime.strides import DeclaredStrides, told_stride
from kernelwright.triton import Program as TritonProgram

WHERE = Where("k", "default", "lower", "k.py:3")
UNIT = Unit("k", "default", "kw_k", {}, (), "cuda", "sm_90", "k.py:3")
SOURCE = "__global__ void f(float *x) {}\n"


def test_words_tuples_and_arrays_without_a_word_tell_each_stride() -> None:
    declared: dict[str, Tensor | Scalar] = {
        "c": Tensor("float32", "m", 3, "k"),
        "d": Tensor("float32", "m", 3, strides="dense"),
        "f": Tensor("float32", "m", 3, strides="free"),
        "t": Tensor("float32", "m", 3, 1, strides=(Size("s") * 2, None, -1)),
        "u": Tensor("float32", "m", strides=["s"]),
    }
    check_arguments(declared, (), WHERE)
    assert told_strides(declared) == {
        **{"c__stride_0": "k * 3", "c__stride_1": "k", "c__stride_2": 1},
        **{"d__stride_0": "d__stride_0", "d__stride_1": 1},
        **{"f__stride_0": "f__stride_0", "f__stride_1": "f__stride_1"},
        **{"t__stride_0": "(s * 2)", "t__stride_1": "t__stride_1", "t__stride_2": -1, "u__stride_0": "s"},
    }
    assert Stride("x", 1, "int64") * 2 == Size("(x__stride_1 * 2)", "int64")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"strides": (1,)}, "argument 'x' has strides=(1,), and 2 dimensions"),
        ({"strides": 5}, "argument 'x' has strides='5', and 2 dimensions"),
        ({"strides": array("b", [1, 2])}, "argument 'x' has strides=\"array('b', [1, 2])\", and 2 dimensions"),
        ({"strides": "packed"}, "argument 'x' has strides='packed', and 2 dimensions"),
        ({"strides": ("s", 1.5)}, "stride 1 of argument 'x' is 1.5, which is no stride"),
        ({"strides": ("s", True)}, "stride 1 of argument 'x' is True, which is no stride"),
        ({"strides": ("s +", 1)}, "stride 0 of argument 'x' is 's +', which is no stride: the size 's +' is not an"),
        ({"strides": ("m // n", 1)}, "stride 0 of argument 'x' is 'm // n', which is no stride: its divisor is no"),
        ({"strides": ("2 * q", 1)}, "stride 0 of argument 'x' is 2 * q, and nothing tells 'q'"),
        ({"strides": (2**63, 1)}, "stride 0 of argument 'x' is 9223372036854775808, which is no stride"),
        ({"strides": (0, 1), "written": True}, "stride 0 of argument 'x' is 0, and the kernel writes it"),
        ({"strides": ("s", 1), "multiples": {"t": 4}}, "argument 'x' has multiples={'t': 4}"),
        ({"strides": ("2 * n", 1), "multiples": {"2 * n": 4}}, "argument 'x' has multiples={'2 * n': 4}"),
    ],
    ids=str,
)
def test_strides_that_cannot_be_are_refused(tensor: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        x = Tensor("float32", "m", "n", **tensor)
        TritonProgram(print, x=x, grid=1)  # the definition goes on, and has its place when it is checked
        check_arguments({"x": x}, (), WHERE)
    assert message in str(refused.value) and refused.value.where.location == "k.py:3"
    assert refused.value.remedy


def test_what_has_no_such_dimension_and_what_would_be_two_things_is_refused() -> None:
    def refusal(**arguments: Any) -> str:
        with pytest.raises(DefinitionError) as refused:
            Source(SOURCE, "f", grid=1, block=1, **arguments).check((), WHERE)
        assert refused.value.remedy
        return str(refused.value)

    x = Tensor("float32", "m", "n", strides="dense")
    for wrong in (Stride("x", 2), Stride("y", 0) + 1):
        assert "and no Tensor that is given has that name and such a dimension" in refusal(x=x, s=wrong)
    assert "argument 's' has Stride(\"x\", 2)" in refusal(x=x, s=Stride("x", 2))
    assert 'there are Stride("x", 0), Stride("x", 1)' in refusal(x=x, s=Stride("x", 2))
    assert "argument 'x' has strides='dense', and no dimensions" in refusal(x=Tensor("float32", strides="dense"))
    assert "workspace 'w' has the size 'm // n': its divisor is no" in refusal(x=x, w=Workspace("int8", "m // n"))
    assert "'x__stride_0' is the name of a stride" in refusal(x=x, x__stride_0=Scalar("int32"))
    free = Tensor("float32", "m", 64, strides="free")
    assert "is of a tensor whose last stride is not always 1" in refusal(x=TensorMap(free, box=(8, 8)))
    assert "stride 0 of argument 'y' is 0" in refusal(x=x, y=Tensor("float32", "m", strides=(0,), written=True))
    for argument, dimension in (("x", -1), ("x", "0"), (0, 0)):
        with pytest.raises(DefinitionError, match="a Stride is of"):
            Stride(argument, dimension)  # type: ignore[arg-type]
    for shape, strides in (((1 << 33,), "compact"), ((4, "n"), (-1 << 33, 1))):
        with pytest.raises(
            DefinitionError, match="8589934592 is a size or a stride of an argument, and these are int32"
        ):
            declared_arguments({"x": Tensor("float32", *shape, strides=strides)}, UNIT, "int32")


def lowered(unit: Unit, **arguments: Any) -> dict[str, Any]:
    from kernelwright.frontends.cuda.lowering import lower

    source = Source(SOURCE, "f", grid=Stride("x", 0), block=1, **arguments)
    content: dict[str, Any] = json.loads(lower(source, unit, lambda doing: None).files["signature.json"])
    return content


def test_one_name_is_one_number_and_a_stride_is_passed_in_its_type() -> None:
    signature = lowered(
        UNIT,
        x=Tensor("float32", "m", "n", strides=("k", "2 * s")),
        y=Tensor("float32", "k", 4, 3, written=True),
        z=Tensor("float32", "n", strides=("s",), multiples={"s": 4}),
        w=Tensor("float32", "n", strides=("step",)),
        step=Scalar("int32"),
        a=Stride("x", 0) - 1,
        b=Stride("x", 1, dtype="int64"),
        c=Stride("y", 0, dtype="uint32"),
        d=Stride("z", 0, dtype="uint32"),
        e=Stride("z", 0, dtype="int32"),
    )
    assert [a.get("strides") for a in signature["arguments"]] == [["k", "2 * s"], None, ["s"], ["step"], None]
    assert (signature["stride_symbols"], signature["multiples"]) == ({"s": "int64"}, {"s": 4})
    assert signature["limited"] == {"s": "int32"}, "what is computed, and what gets 64 bits, is none of it"
    (launch,) = signature["launches"]
    numbers = [(each["scalar"], each["dtype"]) for each in launch["params"] if "dtype" in each]
    assert numbers[:4] == [("step", "int32"), ("k - 1", "int32"), ("s * 2", "int64"), (12, "uint32")]
    assert numbers[4:] == [("s", "uint32"), ("s", "int32")]
    assert launch["grid"] == ["k", 1, 1]
    checks = [check["passes"] for check in signature["host_checks"]]
    assert any(passes.startswith("0 <= s") or "s >= 0" in passes for passes in checks), checks


def test_a_tensor_map_has_the_innermost_dimension_first() -> None:
    made = encoded("x", TensorMap(Tensor("float16", 4, "m", "n", strides=("s", "t", 1)), box=(1, 8, 64)))
    assert (made.sizes, made.strides, made.box) == (("n", "m", "4"), ("2 * t", "2 * s"), (64, 8, 1))


def test_constants_of_64_bits_are_sizes_and_strides() -> None:
    x = Tensor("int8", 4, 2**32, strides=(8, 2**33))
    (x,) = (signature := lowered(UNIT, x=x))["arguments"]
    assert (x["shape"], x["strides"], signature["limited"]) == ([4, 2**32], [8, 2**33], {})


def test_numbers_in_a_size_have_64_bits_and_what_is_passed_has_those_of_its_dtype() -> None:
    def passed(**arguments: Any) -> Any:
        (launch,) = lowered(UNIT, x=Tensor("int8", "n", 1), **arguments)["launches"]
        return launch["params"][1]["scalar"]

    assert passed(least=-(2**31)) == passed(least=Size("-2147483648")) == -(2**31)
    assert passed(parts=Size("n * 2147483648 // 1073741824")) == "n * 2"
    for value, told in ((2**32, "is 4294967296, which does not fit int32"), (Size(2**63, "uint64"), "is too large to")):
        with pytest.raises(DefinitionError, match=told):
            passed(wrong=value)


def test_an_integer_that_callers_pass_may_have_to_be_a_multiple() -> None:
    signature = lowered(UNIT, x=Tensor("int8", "n", 1), k=Scalar("int32", default=32, multiple=16))
    assert (signature["multiples"], [check["passes"] for check in signature["host_checks"]]) == (
        {"k": 16},
        ["(k % 16) == 0"],
    )
    for dtype, more in (
        ("float32", {"multiple": 2}),
        ("int32", {"default": 8, "multiple": 16}),
        ("int8", {"multiple": 0}),
    ):
        with pytest.raises(DefinitionError, match="which is a multiple of no such number"):
            lowered(UNIT, x=Tensor("int8", "n", 1), k=Scalar(dtype, **more))


def test_a_function_gets_constants_and_null_pointers() -> None:
    signature = lowered(UNIT, x=Tensor("int8", 4, 8), mask=None, causal=True, fast=False)
    (launch,) = signature["launches"]
    assert signature["device_kernels"][0]["params"] == ["handle", "uint64", "bool", "bool"]
    assert launch["params"][1:] == [
        {"dtype": "uint64", "scalar": 0},
        {"dtype": "bool", "scalar": "True"},
        {"dtype": "bool", "scalar": "False"},
    ]


def test_a_size_has_one_type_whether_it_is_computed_or_a_number_of_its_name() -> None:
    """With declared strides TVM compares all of them in one type; nothing wraps around in it."""
    signature = lowered(UNIT, x=Tensor("float32", "8 * m", "m - 1", strides=("s", 1)), m=Scalar("int32"))
    assert signature["arguments"][0]["shape"] == ["m * 8", "m - 1"]
    assert (signature["symbols"], signature["stride_symbols"]) == ({"m": "int32"}, {"s": "int64"})
    for dtype in ("int64", "int8"):
        assert lowered(UNIT, x=Tensor("float32", "n"), n=Scalar(dtype))["symbols"] == {"n": dtype}
    with pytest.raises(DefinitionError, match="'n' is a size, which is int64, and an argument that is float32"):
        lowered(UNIT, x=Tensor("float32", "n"), n=Scalar("float32"))


@pytest.mark.parametrize("name", ["s", "multiprocessors"])
def test_no_launch_is_made_of_a_stride_that_calls_with_none_do_not_tell(name: str) -> None:
    bias = Tensor("float32", "n", strides=(name,), optional=True)
    arguments = {"x": Tensor("float32", "n"), "bias": bias, "step": Stride("bias", 0)}
    Source("\n", "f", **arguments, grid="n", block=1).check((), WHERE)
    of_float = {"grid": name, "bias": Scalar("float32"), name: Scalar("float32"), "step": 1}
    stride = {"grid": 1, "shared": Stride("bias", 0)}
    for launch in ({"grid": name}, of_float, stride, {"grid": 1, "w": Workspace("int8", name)}):
        with pytest.raises(
            DefinitionError, match=r"is in no shape of a Tensor that is passed|Tensor that is given has"
        ):
            Source("\n", "f", **{"block": 1, **arguments, **launch}).check((), WHERE)
    with pytest.raises(DefinitionError, match=r"divisible names 'q', which is no size, stride or integer") as error:
        lowered(replace(UNIT, multiples={"q": 8}), x=Tensor("float32", "n"))
    assert error.type is DefinitionError
    y = Tensor("float32", "n", strides=(None,))
    with pytest.raises(
        DefinitionError, match=r'Stride\("y", 0\) has to be a multiple of a number, and no input tells it'
    ):
        lowered(replace(UNIT, outputs=("y",), multiples={"y__stride_0": 8}), x=Tensor("float32", "n"), y=y)


def test_the_occupancy_is_that_of_one_launch_whose_block_does_not_depend_on_it() -> None:
    from kernelwright.frontends.declared_launch import lower_launches
    from kernelwright.frontends.launches import DeclaredLaunch

    x, once = Tensor("float32", "n"), {"blockIdx.x": "2 * occupancy", "threadIdx.x": 64}

    def logic(*launches: dict[str, Any], passed: Any = None) -> dict[str, Any]:
        made = [DeclaredLaunch(f"f{n}", passed or {"x": x}, list(each.items())) for n, each in enumerate(launches)]
        return json.loads(lower_launches({"x": x}, made, UNIT).files["signature.json"])  # type: ignore[no-any-return]

    number = {"x": x, "number": Size("occupancy % 4")}
    assert logic(once, passed=number)["launches"][0]["params"][1]["scalar"] == "occupancy % 4"
    assert logic({"blockIdx.x": "multiprocessors % 4"})["launches"][0]["grid"][0] == "multiprocessors % 4"
    assert logic(once, {"blockIdx.x": 4, "threadIdx.x": "occupancy"})["launches"][1]["block"][0] == "occupancy"
    for launches, problem in (
        ([once, once], "is in the grids of 2 launches"),
        ([{**once, "clusterCtaIdx.x": 2}], "of a launch with clusters"),
        ([{**once, "threadIdx.x": "32 * occupancy"}], "with a block or shared memory that depends on it"),
        ([{"threadIdx.x": "occupancy"}], "is in the grids of 0 launches"),
    ):
        with pytest.raises(DefinitionError, match=problem):
            logic(*launches)


def test_an_output_has_the_strides_of_new_arrays_and_an_exported_function_sees_all() -> None:
    from kernelwright.frontends.declared_launch import lower_launches

    unit = replace(UNIT, outputs=("y",))
    x = Tensor("float32", "m", "n", strides=("s", 1))
    signature = lowered(unit, x=x, y=Tensor("float32", "m", "n", strides="free"))
    assert signature["stride_symbols"] == dict.fromkeys(("s", "y__stride_0", "y__stride_1"), "int64")
    with pytest.raises(DefinitionError, match=r"output 'y' has the strides \[s, 1\], and new arrays are compact"):
        lowered(unit, x=x, y=x)
    exported = Exported("f", x=x, y=Tensor("float32", "m", strides="free", written=True))
    exported.check((), WHERE)
    signature = json.loads(lower_launches(exported.declared, (), UNIT).files["signature.json"])
    assert signature["stride_symbols"] == {"s": "int64", "y__stride_0": "int64"}


class Given:
    def __init__(self, shape: tuple[int, ...] | None, strides: tuple[int, ...] | None = None) -> None:
        self.shape, self.strides = shape, strides


def test_the_first_array_with_something_to_stride_over_tells_a_symbol() -> None:
    one, two, empty = Given((1, 4), (99, 1)), Given((3, 8), (-11, 1)), Given((3, 0), (7, 1))
    assert told_stride([(None, 0), (one, 0), (empty, 0), (two, 0)]) == -11
    assert told_stride([(one, 0)]) == 4 and told_stride([(Given((1, 21)), 0)], 16) == 16 and told_stride([]) == 0
    assert told_stride([(Given(None), 0), (one, 0)]) == 4 and told_stride([(Given(None), 0)]) == 0
    bias = {"output": False, "given": None, "strides": ["s"]}
    optional = DeclaredStrides({"arguments": [bias, {"output": False, "strides": ["s", 1]}]})
    assert [optional.told([each, one], {})["s"] for each in (Given((1,)), Given(None))] == [4, 4]
    arguments = [{"output": name == "y", "strides": ["s", 1]} for name in "xy"]
    declared = DeclaredStrides({"arguments": arguments, "stride_symbols": {"s": "int32"}, "multiples": {"s": 2}})
    assert declared.fit([Given((3, 4), (6, 1)), Given((3, 4), (6, 1))], {})
    assert declared.fit([one, Given((3, 4), (6, 1))], {}) and declared.fit([empty, None], {})
    assert not declared.fit([Given((3, 4), (7, 1)), None], {})  # no multiple of 2
    assert not declared.fit([Given((3, 4), (6, 1)), Given((3, 4))], {})
    call = [Given((3, 4), (6, 1)), Given((3, 4), (8, 1))]
    assert declared.other(1, call, declared.told(call, {})) == (0, 6)


def test_a_variant_is_a_rival_only_if_the_strides_fit_it_too() -> None:
    def variant(slug: str, strides: list[int | str]) -> dict[str, Any]:
        argument = {"name": "x", "kind": "tensor", "dtype": "float32", "shape": ["m", "n"], "output": False}
        units = [{"target": "cuda"}]
        return {
            **{"slug": slug, "config": {"order": slug}, "units": units, "symbols": {"m": "int32", "n": "int32"}},
            "arguments": [{**argument, "written": False, "strides": strides}],
        }

    entry = {"variants": [variant("C", ["n", 1]), variant("F", [1, "m"])], "meaning": ["order"], "outputs": []}
    signatures = Signatures("k", entry)

    def chosen(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> int:
        return signatures.choose([Described("float32", shape, strides=strides)]).index

    assert (chosen((3, 4), None), chosen((3, 4), (4, 1)), chosen((3, 4), (1, 3)), chosen((3, 4), (9, 2))) == (
        0,
        0,
        1,
        0,
    )
    with pytest.raises(ValueError, match="these arguments fit several variants, which differ in meaning"):
        chosen((1, 4), (7, 1))
