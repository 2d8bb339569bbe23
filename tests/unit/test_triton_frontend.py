"""The front end of Triton, as far as it goes without Triton."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernelwright import frontends, kernel
from kernelwright.core.errors import DefinitionError, LoweringError, ToolchainError, Where
from kernelwright.define.divisible import ALL
from kernelwright.define.sizes import Size
from kernelwright.define.unit import Unit
from kernelwright.frontends.triton.compiler import Compiled, require_release
from kernelwright.frontends.triton.heuristics import divisor_of, each_specialized, resolved
from kernelwright.frontends.triton.joined import _renamed
from kernelwright.frontends.triton.lowering import _launch, _source
from kernelwright.frontends.triton.memory import memory_of
from kernelwright.frontends.triton.program import Program
from kernelwright.frontends.triton.source_digest import _named_in
from kernelwright.triton import Scalar, Tensor, ceildiv, configs_of

WHERE = Where("k", "default", "lower", "k.py:1")
UNIT = Unit("k", "default", "kw_k__default__cuda", {}, (), "cuda", "sm_80", "k.py:1")


def program(**more: object) -> Program:
    given = {"x": Tensor("float32", "n"), "n": Size("n"), "grid": ceildiv("n", 64), **more}
    return Program(print, **given)  # type: ignore[arg-type]


def test_a_cluster_multiplies_the_grid_along_x():
    plain, cluster = program().launch(128), program(num_ctas=2).launch(128)
    assert [name for name, _ in plain] == ["blockIdx.x", "threadIdx.x"]
    launched = dict(cluster)
    assert launched["clusterCtaIdx.x"] == 2
    text = launched["blockIdx.x"].text  # type: ignore[union-attr]
    assert eval(text, {"n": 130}) == 6


@pytest.mark.parametrize(
    ("size", "expected"),
    [("n", 16), ("m", 1), ("n * 3", 48), ("n + 8", 8), ("n - m", 1), ("n // 2", 1), ("0", 0), ("min(n, 32)", 16)],
)
def test_what_a_size_is_a_multiple_of(size, expected):
    assert divisor_of(Size(size), {"n": 16}) == expected


def test_one_source_is_written_once_for_the_archs_that_have_it():
    class Result:
        def __init__(self, arch: str, source: str) -> None:
            self.arch, self.source = arch, source

    results: list[Any] = [Result("sm_80", "a\n"), Result("sm_89", "b\n"), Result("sm_90a", "a\n")]
    head, _, rest = _source(program(), results).partition("\n")
    assert rest == "// ---- for sm_80, sm_90a ----\na\n// ---- for sm_89 ----\nb\n"
    assert '"blockIdx.x":"(((n + 64) - 1) // 64)"' in head and '"num_warps":4' in head, head
    others: list[Any] = [program(num_warps=8), program(num_stages=2), program(maxnreg=64), program(grid="n")]
    assert len({_source(each, results) for each in (program(), *others)}) == 5, "timings are kept by its digest"


def test_one_launch_fits_all_archs_or_is_an_error_that_says_what_differs():
    one = Compiled("sm_80", "f", b"", "", "", 128, 1000, 0, (), "")
    assert _launch(program(), [one, replace(one, arch="sm_90a", shared=2000)], UNIT, "").shared == 2000
    for other, message in (
        ({"name": "g"}, "Triton launches 128 threads for sm_90a, 128 threads for sm_80"),
        ({"threads": 256}, "Triton launches 256 threads for sm_90a, 128 threads for sm_80"),
        ({"descriptors": ({"a": 1},)}, "Triton launches 128 threads with a map of {'a': 1} for sm_90a"),
        ({"shared": 200_000}, "the code for sm_90a needs 200000 bytes of shared memory in a block, and sm_80 has"),
    ):
        with pytest.raises(LoweringError, match=message):
            _launch(program(), [one, replace(one, arch="sm_90a", **other)], UNIT, "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"num_warps": 64}, "num_warps is 64, expected a power of two up to 32"),
        ({"num_warps": True}, "num_warps is True"),
        ({"num_ctas": 16}, "num_ctas is 16, expected a power of two up to 8"),
        ({"maxnreg": 0}, "maxnreg is 0, expected a positive integer"),
        ({"num_stages": 0}, "num_stages is 0, expected a positive integer"),
        ({"m": Size("m")}, "argument 'm' has the name 'm', which is in no shape"),
        ({"a": Scalar("float16")}, "argument 'a' has the dtype 'float16', which no number can have here"),
    ],
)
def test_what_no_launch_can_be_is_an_error(more, message):
    with pytest.raises(DefinitionError, match=message):
        program(**more).check([], WHERE)


class Config:
    """As Triton has it."""

    def __init__(self, kwargs: dict[str, object], **options: object) -> None:
        self.kwargs, self.pre_hook, self.ir_override = kwargs, None, None
        self.num_warps, self.num_stages, self.num_ctas, self.maxnreg = 4, 3, 1, None
        self.__dict__.update(options)


class Tuned:
    """A function with configs."""

    def __init__(self, *configs: Config) -> None:
        self.configs = list(configs)


def test_configs_of_autotune_are_points():
    plain = {"num_warps": 4, "num_stages": 3}
    assert configs_of(Tuned(Config({"A": 1}), Config({"A": 2}, num_warps=8), Config({"A": 1}))) == [
        {"A": 1, **plain},
        {"A": 2, **plain, "num_warps": 8},
    ]
    assert configs_of(Tuned(Config({}), Config({}, num_ctas=2, maxnreg=64))) == [
        {**plain, "num_ctas": 1},
        {**plain, "num_ctas": 2, "maxnreg": 64},
    ]
    assert configs_of(SimpleNamespace(fn=Tuned(Config({"A": 1})))) == [{"A": 1, **plain}], "heuristics are outside"
    with pytest.raises(DefinitionError, match="has no configs"):
        configs_of(print)
    with pytest.raises(DefinitionError, match="has a pre_hook"):
        configs_of(Tuned(Config({}, pre_hook=print)))


def test_another_release_or_none_is_an_error_with_the_line_for_pip(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.9.7"))
    require_release(WHERE)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.10.0"))
    with pytest.raises(ToolchainError, match=r"Triton 3.10.0 is installed") as caught:
        require_release(WHERE)
    assert caught.value.remedy == "pip install 'triton==3.9.*'"
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ToolchainError, match="Triton cannot be imported"):
        require_release(WHERE)


def test_parameters_with_the_names_of_sizes_and_strides_need_no_values() -> None:
    def plain(m, x, row, y, n: tl.int64, N: tl.constexpr, k=3, other=None): ...  # type: ignore  # noqa: F821

    function: Any = SimpleNamespace(fn=SimpleNamespace(fn=plain))  # as decorators make it
    x = Tensor("float32", "m", "n", "k", "N", strides=("row", None, None, 1))
    program = Program(function, x=x, y=x, N=64, grid="m")
    expected = {"m": Size("m"), "x": x, "row": Size("row"), "y": x, "n": Size("n", "int64"), "N": 64}
    assert list(program.arguments.items()) == list(expected.items())
    assert Program(function, x=x, m=1, y=x, row=2, n=3, grid=1).arguments == {"x": x, "m": 1, "y": x, "row": 2, "n": 3}


def test_the_specialized_variant_has_aligned_data_and_rows_of_multiples():
    """Only of sizes that the function gets and that an input tells: nothing else of a call changes its code."""
    tensors = {
        "a": Tensor("float16", "m", "k", multiples={"k": 24}),
        "b": Tensor("float16", "k", "n", alignment=64, written=True),
        "c": Tensor("float16", "m", "other"),
    }
    sizes = {name: Size(name) for name in "mnk"}
    made = Program(print, **tensors, **sizes, unit=Size(1), grid="m").specialized(16, ["c"])
    assert {name: tensor.alignment for name, tensor in made.declared.items()} == {"a": 16, "b": 64, "c": 16}
    assert [dict(tensor.multiples) for tensor in made.declared.values()] == [{"k": 48}, {"k": 16, "n": 16}, {}]
    assert made.declared["b"].written
    assert made.arguments["unit"] == 1, "an integer that is always 1 is a constant"
    assert list(made.arguments) == ["a", "b", "c", "m", "n", "k", "unit"]


def test_specialize_takes_numbers_that_are_strides_and_refuses_two_equal_variants():
    x = Tensor("float32", "m", "n", strides=("step", 1), alignment=16)
    arguments = {"x": x, "step": Scalar("int32"), "other": Scalar("int32")}
    assert Program(print, **arguments, grid="m").strides([]) == {"step"}
    unit = Unit("k", "all_multiple_of-16", "kw_k", {}, (), "cuda", "sm_80", "k.py:1", multiples={"all": 16})
    ((_, made),) = each_specialized(Program(print, **arguments, grid="m"), unit)
    assert made.multiples == {"step": 16}
    with pytest.raises(DefinitionError, match="makes two equal variants"):
        each_specialized(Program(print, x=x, other=Scalar("int32"), grid="m"), unit)


def test_specialize_makes_two_variants_of_each_config():
    def k(dtype: str = "float32"):
        """A definition."""

    made = kernel(frontend="triton", specialize="auto", configs=[{"dtype": "float32"}, {"dtype": "float16"}])(k)
    slugs = [variant.slug for variant in made.variants]
    assert slugs == [
        *("dtype-float32_all_multiple_of-16", "dtype-float32"),
        *("dtype-float16_all_multiple_of-16", "dtype-float16"),
    ]
    for options, message in (
        ({"specialize": True}, "specialize is True"),
        ({"divisible": {"all": [1, 16]}}, "divisible has the key 'all'"),
    ):
        with pytest.raises(DefinitionError, match=message):
            kernel(**{"frontend": "triton", **options})(k)
    tir = kernel(specialize="auto")(k)
    with pytest.raises(DefinitionError, match="a definition in tir cannot have specialize"):
        frontends.of(tir).check(tir, tir.where)
    with pytest.raises(DefinitionError, match="has specialize, which no backward kernel can follow"):
        kernel(frontend="triton", specialize="auto", outputs=["y"])(k).backward(outputs=["grad_x"])(k)


class Ruled:
    """A function with heuristics."""

    def __init__(self, **values: object) -> None:
        self.fn, self.values = print, values


def ruled(monkeypatch: pytest.MonkeyPatch, unit: Unit, more: dict[str, object], **rules: object) -> Program:
    """A Program with heuristics, as a variant has it."""
    module = SimpleNamespace(Autotuner=Tuned, Heuristics=Ruled)
    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", module)
    for name in ("triton", "triton.runtime"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    arguments = {"x": Tensor("float32", "m", "n"), "m": Size("m"), "n": Size("n"), "BLOCK": 64, **more}
    return resolved(Program(Ruled(**rules), grid="m", **arguments), unit)[0]  # type: ignore[arg-type]


def test_heuristics_of_what_a_variant_knows_are_constants(monkeypatch):
    rules = {
        "EVEN": lambda args: args["n"] % args["BLOCK"] == 0,
        "TWICE": lambda args: 2 * args["BLOCK"] if args["x"] is not None else 0,
        "WHOLE": lambda args: args["m"] % 1 == 0,
        "num_warps": lambda args: 8 if args["TWICE"] > 100 else 4,
        "BLOCK": lambda args: 1 // 0,
    }
    classes = {"n": (64, 1)}
    for multiples, even in (({"n": 64}, True), ({}, False)):
        found = ruled(monkeypatch, replace(UNIT, multiples=multiples, divisible=classes), {}, **rules)
        assert found.function is print
        known = {name: found.arguments[name] for name in ("BLOCK", "EVEN", "TWICE", "WHOLE")}
        assert known == {"BLOCK": 64, "EVEN": even, "TWICE": 128, "WHOLE": True}
        assert found.options["num_warps"] == 8
    both = {ALL: (16, 1), "n": (16, 1)}
    for multiples, even in (({ALL: 16}, True), ({"n": 16}, True), ({}, False)):
        unit = replace(UNIT, multiples=multiples, divisible=both)
        assert ruled(monkeypatch, unit, {"BLOCK": 16}, EVEN=rules["EVEN"]).arguments["EVEN"] == even


def test_the_general_variant_of_specialize_knows_nothing_of_rows(monkeypatch):
    unit = replace(UNIT, divisible={ALL: (16, 1), "n": (64, 1)})
    for number in (16, 32):
        with pytest.raises(DefinitionError, match=f"needs whether n is a multiple of {number}, which only") as caught:
            ruled(monkeypatch, unit, {}, EVEN=lambda args, number=number: args["n"] % number == 0)
        assert f'divisible={{"n": [{number}, 1]}}' in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("rule", "message", "remedy"),
    [
        (lambda args: args["n"] % 32 == 0, "needs whether n is a multiple of 32, which only a call tells", '"n": [32'),
        (lambda args: args["m"] % 64 == 0, "needs whether m is a multiple of 64", 'divisible={"m": [64, 1]}'),
        (lambda args: args["n"] % 64 == 3, "needs whether n is a multiple of 64", ""),
        (lambda args: args["n"] % 0 == 0, "needs the size n, which only a call tells", "give RULE to the Program"),
        (lambda args: 2 ** args["n"], "needs the size n, which only a call tells", "give RULE to the Program"),
        (lambda args: args["n"] > 1000, "needs the size n", "give RULE"),
        (lambda args: args["x"].dtype, "needs dtype of the argument x", "give RULE"),
        (lambda args: args["n"], "is the size n, which only a call tells", "give RULE"),
        (lambda args: args["k"], "raised KeyError: 'k'", "give RULE"),
    ],
)
def test_a_heuristic_that_only_a_call_tells_is_an_error_that_names_it(monkeypatch, rule, message, remedy):
    with pytest.raises(DefinitionError) as caught:
        ruled(monkeypatch, replace(UNIT, divisible={"n": (64, 1)}), {}, RULE=rule)
    assert "the heuristic 'RULE' of @triton.heuristics" in caught.value.message
    assert message in caught.value.message
    assert remedy in (caught.value.remedy or "")
    assert "test_triton_frontend.py" in str(caught.value.where.location) or "is the size" in message


def test_the_memory_of_an_array_is_that_from_its_lowest_to_its_highest_element() -> None:
    array = np.arange(12, dtype="int32").reshape(3, 4)
    for view, first, last in ((array[::-1, 1:3], 1, 10), (array[1:, ::-2], 5, 11), (array.T, 0, 11)):
        assert np.frombuffer(memory_of(view, "int32"), "int32").tolist() == [*range(first, last + 1)]


def test_what_is_renamed_is_a_function_and_no_instruction_or_register_of_its_name() -> None:
    statement = "add.f32 %add, add, add$1; call (add), add;"
    assert _renamed(statement, {"add": "add_0"}) == "add.f32 %add, add_0, add$1; call (add_0), add_0;"


def test_a_constant_of_a_package_is_looked_for_as_one_of_a_module() -> None:
    package = ModuleType("acme")
    vars(package).update(SCALE=2, __path__=[])
    assert [value for _, _, value in _named_in({"acme": package}, ("acme",), ("SCALE",), set())] == [2]
