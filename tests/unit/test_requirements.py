"""What a definition requires of sizes, and sizes that it computes of others: what is lowered, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kernelwright import kernel
from kernelwright.core.errors import DefinitionError
from kernelwright.define.arguments import Scalar, Tensor
from kernelwright.define.declared import check_arguments
from kernelwright.define.sizes import ceildiv
from kernelwright.define.unit import Unit
from kernelwright.frontends.cutedsl.program import Program
from kernelwright.frontends.declared_launch import lower_launches
from kernelwright.frontends.launches import DeclaredLaunch
from kernelwright.frontends.requirements import with_requirements
from kernelwright.frontends.unit import LoweredKernel
from support.launcher_build import scalar, signature, tensor

CONFIG = {"block": 4096, "dtype": "float32", "fast": True}


def unit(*requires: str, **config: Any) -> Unit:
    return Unit("k", "default", "kw_k", {**CONFIG, **config}, ("y",), "cuda", "sm_80", "k.py:1", requires=requires)


def required(
    *requires: str, constants: dict[str, Any] | None = None, multiples: dict[str, int] | None = None, **config: Any
) -> dict[str, Any]:
    """The signature of a kernel of a matrix with gaps, and of two integers, with what it requires."""
    arguments = [{**tensor("x", "float32", ["m", "n"]), "strides": ["row", 1]}, scalar("k", "int32")]
    arguments += [scalar("u", "uint8"), scalar("f", "float32"), tensor("y", "float32", ["m", "z"], output=True)]
    data = signature("k", arguments, symbols={"m": "int32", "n": "int32", "z": "int32"})
    data |= {"stride_symbols": {"row": "int32"}, "multiples": dict(multiples or {})}
    lowered = LoweredKernel({"signature.json": json.dumps(data).encode()}, "as written")
    made = with_requirements(lowered, unit(*requires, **config), constants or {})
    return dict(json.loads(made.files["signature.json"]))


def test_integers_of_the_config_and_of_the_code_are_put_in() -> None:
    found = required("n <= block", "m == 8*k", "ceildiv(n, THREADS) < 2*block", "row % -BIAS == 0", constants={
        "THREADS": 32, "BIAS": -4, "fast": True, "x": "text", "k": 3, "block": 1, "HUGE": 2**70,
    })  # fmt: skip
    assert found["requires"] == ["n <= 4096", "m == 8 * k", "ceildiv(n, 32) < 2 * 4096", "row % --4 == 0"]
    assert found["constants"] == {"THREADS": 32, "BIAS": -4, "k": 3, "block": 1}, "k in a text is that of the call"
    assert "requires" not in required() and "requires" not in required("block <= 4096"), "what always holds is left out"
    assert required("n > 1", multiples={"k": 16, "m": 8})["requires"] == ["n > 1", "k % 16 == 0"], (
        "a number is compared"
    )


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        (["n <= blok"], r"'n <= blok', and 'blok' is no size, stride .*known: row, k, u, m, n, block\)"),
        (["n <= dtype"], "'dtype' is 'float32', which is no integer"),
        (["n <= fast"], "'fast' is True, which is no integer"),
        (["n <= f"], "'f' is no size, stride or integer of a call"),
        (["z <= 4"], "'z' only outputs tell, which a call may leave out"),
        (["n < 0"], "no size fulfils what it requires: n < 0"),
        (["n <= 32", "m > 0", "64 <= n"], "no size fulfils what it requires: n <= 32 and 64 <= n"),
        (["n * m + 1 <= 0"], "no size fulfils"),
        (["n >= 3000000000"], "no size fulfils"),
        (["u > 255"], "no size fulfils"),
        (["n % 8 == 8"], "no size fulfils"),
        (["min(n, 7) // 2 > 3"], "no size fulfils"),
        (["min(7, n) // 2 > 3"], "no size fulfils"),
        (["max(n, 7) < 7"], "no size fulfils"),
        (["max(7, n) < 7"], "no size fulfils"),
        (["block <= 1024"], r"no size fulfils what it requires: block <= 1024 \(it is 4096 <= 1024 here\)"),
    ],
)
def test_what_no_call_can_fulfil_is_refused_when_it_is_lowered(requires: list[str], message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as error:
        required(*requires)
    assert str(error.value.where) == "k.py:1 k/default [lower]" and error.value.remedy


def test_a_name_of_both_a_call_and_the_config_is_refused() -> None:
    with pytest.raises(DefinitionError, match="'n' is a size of the call and a key of the config"):
        required("n <= 4", n=4)
    assert required("m <= 4", n=4)["requires"] == ["m <= 4"]


def test_what_can_hold_is_not_refused() -> None:
    requires = ["k < 0", "row >= -5", "n % m == 0", "n // k <= m", "n - m != 0", "n <= 64", "n >= 64", "max(n, 3) == n"]
    assert required(*requires)["requires"] == requires


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ("n <= 4", "requires is 'n <= 4', expected a list of strings"),
        (["n"], "'n', which is no comparison of two sizes"),
        (["1 <= n <= 4"], "'1 <= n <= 4', which is no comparison of two sizes"),
        (["n <= 4 and m <= 4"], "which is no comparison"),
        (["n <= 4.5"], "cannot translate the size '4.5'"),
        (["n <= len(x)"], r"cannot translate the size 'len\(x\)'"),
        (["n <="], "is not an expression"),
        ([4], "requires contains 4, expected strings"),
    ],
)
def test_a_requirement_is_one_comparison(requires: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as error:

        @kernel(requires=requires)
        def k() -> None:
            pass

    assert "test_requirements.py:" in str(error.value.where)


def test_sizes_can_be_computed_of_sizes_that_other_arguments_have() -> None:
    declared = {
        "a": Tensor("int8", "8 * m8"),
        "y": Tensor("float32", ceildiv("t", 64), "m8 + 1"),
        "b": Tensor("int8", "m8"),
        "t": Scalar("int32"),
    }
    launch = DeclaredLaunch("f", declared, [("blockIdx.x", "m8"), ("threadIdx.x", 32)])
    lowered = lower_launches(declared, [launch], unit())
    found = json.loads(lowered.files["signature.json"])
    assert [argument.get("shape") for argument in found["arguments"]] == [
        ["m8 * 8"],
        ["(t + 63) // 64", "m8 + 1"],
        ["m8"],
        None,
    ]
    assert found["symbols"] == {"m8": "int64", "t": "int32"}
    host = lowered.files["host.c"].decode()
    assert "(m8 * (int64_t)8) == (((int64_t*)k_a_shape)[0])" in host, "it is compared, and in 64 bits"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (("8 * k",), "'8 [*] k', and no input tells 'k' .known are big, m, t."),
        (("m // t",), "a size of argument 'y' is 'm // t', expected a positive integer, a name or an expression"),
        (("m % 0",), "'m % 0'"),
        (("m ** 2",), "'m [*][*] 2'"),
        (("4 * 16",), "'4 [*] 16'"),
        (("",), "is ''"),
    ],
)
def test_a_size_that_cannot_be_computed_is_refused(shape: tuple[str, ...], message: str) -> None:
    declared = {"x": Tensor("int8", "m"), "t": Scalar("int32"), "big": Scalar("int64"), "y": Tensor("int8", *shape)}
    with pytest.raises(DefinitionError, match=message) as error:
        check_arguments({**declared, "z": Tensor("int8", "k")}, ["y", "z"], unit().where)
    assert error.value.remedy


def test_cute_dsl_has_no_computed_sizes() -> None:
    program = Program(print, x=Tensor("int8", "m"), y=Tensor("int8", "2 * m"))
    with pytest.raises(DefinitionError, match=r"argument 'y' is '2 [*] m', and CuTe DSL knows numbers and names only"):
        program.check(["y"], unit().where)
