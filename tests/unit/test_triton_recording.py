"""The file of a recording of a program in Triton: its form, what counts as damage, and how two of them become one."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright.backends.files import UnitFiles, VariantFiles
from kernelwright.backends.forms import Forms, plain
from kernelwright.core.errors import KernelwrightError, LoweringError, Where
from kernelwright.define.recorded import CALL
from kernelwright.frontends.triton.recorded import _variants
from kernelwright.frontends.triton.recorded_function import expression_of
from kernelwright.frontends.triton.recording import (
    ChosenConfig,
    RecordedFunction,
    Recording,
    Specialization,
    merged,
    parse,
    text_of,
    text_of_specialization,
)
from kernelwright.runtime.heuristic import rule_of, tuning_key, undeclared
from kernelwright.stages.left_out import without_left_out

NORM = RecordedFunction(
    ("y", "y_stride", "x", "mask", "n", "eps", "BLOCK_SIZE"),
    "0f1e2d3c4b5a6978",
    (
        Specialization(
            {"y": "*fp32 16", "y_stride": "i32 16", "x": "*fp32", "n": "i32", "eps": "fp32"},
            {"mask": None, "BLOCK_SIZE": 1024},
            {"num_warps": 8},
            ("sm_90a",),
        ),
    ),
)
TEXT = """\
{
 "schema": 1,
 "functions": {
  "my_ops.norm:rms_norm_forward": {
   "parameters": ["y", "y_stride", "x", "mask", "n", "eps", "BLOCK_SIZE"],
   "source": "0f1e2d3c4b5a6978",
   "specializations": [
    {"types": {"y": "*fp32 16", "y_stride": "i32 16", "x": "*fp32", "n": "i32", "eps": "fp32"}, \
"constants": {"mask": null, "BLOCK_SIZE": 1024}, "options": {"num_warps": 8}, "archs": ["sm_90a"]}
   ]
  }
 }
}
"""
CONSTANTS = [
    *(None, True, False, 0, 1, -(2**63), 1.0, 0.5, "", 'a "text"', [], [1, [None, "x"]]),
    *({"dtype": "fp32"}, {"function": "ops.norm:silu"}, {"float": "inf"}, {"float": "-inf"}, {"float": "nan"}),
    *([{"dtype": "bf16"}, {"float": "nan"}],),
]
TYPES = [
    *("*fp32", "*fp32 16", "*kbf16 16", "i32", "i64 16", "u64", "u1", "fp64", "*fp8e4nv", "**i8"),
    *("tensordesc<fp16[64, 64]>", ["*fp32 16", {"constant": None}, ["i32"]], [], [{"constant": [1, {"dtype": "i8"}]}]),
]


def of(constants: dict[str, Any], archs: tuple[str, ...] = ("sm_90a",), **options: Any) -> Specialization:
    """A specialization of a function with the parameters x and C."""
    return Specialization({"x": "*fp32 16"}, constants, options, archs)


def function(*specializations: Specialization, source: str = "0" * 16) -> RecordedFunction:
    return RecordedFunction(("x", "C"), source, specializations)


BOTH = ("sm_80", "sm_90a")


def damaged(path: list[Any], value: Any) -> str:
    """The text with another value at a place."""
    document = json.loads(TEXT)
    place = document
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(document)


def test_the_file_has_the_documented_form_and_gives_back_what_was_written() -> None:
    assert text_of({"my_ops.norm:rms_norm_forward": NORM}) == TEXT
    assert parse(TEXT) == parse(TEXT.encode()) == {"my_ops.norm:rms_norm_forward": NORM}
    assert parse(text_of({})) == {}
    assert parse(text_of({"m:f": function()})) == {"m:f": function()}


@pytest.mark.parametrize("value", CONSTANTS, ids=repr)
def test_each_kind_of_constant_is_given_back_as_it_was(value: Any) -> None:
    recording = {"m:f": function(of({"C": value}, launch_pdl=True))}
    (back,) = parse(text_of(recording))["m:f"].specializations
    assert json.dumps(back.constants["C"]) == json.dumps(value)


@pytest.mark.parametrize("value", TYPES, ids=repr)
def test_each_kind_of_type_is_given_back_as_it_was_and_in_general_without_what_is_divisible(value: Any) -> None:
    one = Specialization({"x": value}, {"C": 1}, {}, ("sm_80", "sm_90a", "sm_100a"))
    assert parse(text_of({"m:f": function(one)})) == {"m:f": function(one)}
    general = _variants("m:f", "file", function(one), general=True).popitem()[1].specialization
    assert json.dumps(general.types) == json.dumps(one.types).replace(' 16"', '"')


def test_all_of_a_specialization_but_its_archs_asks_for_different_code_by_type_too() -> None:
    texts = {text_of_specialization(of({"C": value})) for value in (1, 1.0, True, "1", [1], {"float": "inf"})}
    assert len(texts) == 6
    function_with_all = function(*(of({"C": value}) for value in (1, 1.0, True)))
    assert len(parse(text_of({"m:f": function_with_all}))["m:f"].specializations) == 3
    one = of({"C": 1}, num_warps=8)
    others = {"types": {"x": "*fp32"}, "constants": {"C": 2}, "options": {}, "archs": ("sm_80",)}
    assert {field.name for field in fields(Specialization)} == {*others}
    same = {
        name
        for name, value in others.items()
        if text_of_specialization(replace(one, **{name: value})) == text_of_specialization(one)
    }
    assert same == {"archs"}
    turned = Specialization({"x": "*fp32 16"}, {"C": 1, "D": 2}, {}, ("sm_80",))
    assert text_of_specialization(turned) == text_of_specialization(replace(turned, constants={"D": 2, "C": 1}))


def test_specializations_and_functions_are_sorted_and_equal_ones_are_one_line_with_all_archs():
    ones = [of({"C": 2}), of({"C": 1}, ("sm_100a",)), of({"C": 1}, ("sm_80",)), of({"C": 1}, ("sm_80", "sm_90a"))]
    expected = function(of({"C": 1}, ("sm_80", "sm_90a", "sm_100a")), of({"C": 2}))
    texts = {text_of({"b:f": function(*order), "a:f": function()}) for order in itertools.permutations(ones)}
    assert len(texts) == 1
    assert list(parse(texts.pop()).items()) == [("a:f", function()), ("b:f", expected)]


def test_merging_keeps_what_either_knows_takes_the_newer_code_and_refuses_other_parameters() -> None:
    one: Recording = {"m:f": function(of({"C": 1})), "m:g": function()}
    other: Recording = {"m:f": function(of({"C": 1}, ("sm_80",)), of({"C": 3})), "m:h": function()}
    expected = {"m:f": function(of({"C": 1}, ("sm_80", "sm_90a")), of({"C": 3})), "m:g": function(), "m:h": function()}
    assert merged(one, other) == merged(other, one) == expected
    assert merged(one, {}) == merged({}, one) == one
    old, new = function(of({"C": 1})), function(of({"C": 2}), source="1" * 16)
    assert merged({"m:f": old}, {"m:f": new}) == {"m:f": new}
    assert merged({"m:f": new}, {"m:f": old}) == {"m:f": old}
    first, last, more = (ChosenConfig([64], {"C": n}, archs) for n, archs in ((1, BOTH), (2, BOTH[:1]), (1, BOTH[1:])))
    together = merged({"m:f": replace(function(), choices=(first,))}, {"m:f": replace(function(), choices=(last,))})
    assert {*map(str, together["m:f"].choices)} == {str(last), str(more)}, "the last one that was measured on each arch"
    other = RecordedFunction(("x", "D"), "1" * 16, ())
    with pytest.raises(ValueError, match=r"^m:f has the parameters \(x, C\) in one and \(x, D\) in the other$"):
        merged({"m:f": function()}, {"m:f": other})


def test_merging_in_any_order_gives_the_same():
    chance = random.Random(7)
    constants = [{"C": value} for value in (1, True, None, "a")]
    parts = [
        {f"m:{chance.choice('fg')}": function(*(of(chance.choice(constants), ("sm_80",)) for _ in range(3)))}
        for _ in range(5)
    ]
    texts = set()
    for order in itertools.permutations(parts):
        whole: Recording = {}
        for part in order:
            whole = merged(whole, part)
        texts.add(text_of(whole))
    assert len(texts) == 1


FUNCTION = ["functions", "my_ops.norm:rms_norm_forward"]
FIRST = [*FUNCTION, "specializations", 0]
PLACE = "functions.my_ops.norm:rms_norm_forward"


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (["schema"], 2, "its schema is 2, expected 1"),
        (["schema"], ..., "schema is missing"),
        (["functions"], [], "functions is []"),
        (["more"], 1, "more is not expected"),
        (
            ["functions", "norm"],
            {"parameters": [], "source": "0" * 16, "specializations": []},
            "functions.norm is 'norm', expected a function as module:qualname",
        ),
        ([*FUNCTION, "source"], "0F1E2D3C4B5A6978", f"{PLACE}.source is '0F1E2D3C4B5A6978', expected 16 hex"),
        ([*FUNCTION, "source"], ..., f"{PLACE}.source is missing"),
        ([*FUNCTION, "parameters"], ["x", "x"], f"{PLACE}.parameters is"),
        ([*FUNCTION, "parameters", 0], "z", f"{PLACE} does not fit: specializations[0] names no parameter 'y'"),
        ([*FUNCTION, "more"], 1, f"{PLACE}.more is not expected"),
        ([*FIRST, "types", "x"], "constexpr<", f"{PLACE}.specializations[0].types is"),
        ([*FIRST, "types", "x"], "*fp32 8", "expected an object of Triton's types"),
        ([*FIRST, "types", "x"], [{"constant": {"a": 1}}], "expected an object of Triton's types"),
        ([*FIRST, "types", "mask"], "i32", "specializations[0] has 'mask' as a type and as a constant"),
        ([*FIRST, "types", "x"], ..., "specializations[0] does not have the parameter 'x'"),
        ([*FIRST, "constants", "mask"], {"dtype": "fp 32"}, f"{PLACE}.specializations[0].constants is"),
        ([*FIRST, "constants", "mask"], {"function": "silu"}, "expected an object of constants"),
        ([*FIRST, "constants", "mask"], {"float": "1"}, "expected an object of constants"),
        ([*FIRST, "constants", "mask"], {"float": "inf", "dtype": "fp32"}, "expected an object of constants"),
        ([*FIRST, "constants", "mask"], {}, "expected an object of constants"),
        ([*FIRST, "options", "num_warps"], {"a": 1}, "options is"),
        ([*FIRST, "archs"], [], "expected a sorted list of archs"),
        ([*FIRST, "archs"], ["sm_90a", "sm_80"], "expected a sorted list of archs"),
        ([*FIRST, "archs"], ["compute_80"], "expected a sorted list of archs"),
        ([*FIRST, "archs"], ["x86-64"], "expected a sorted list of archs"),
    ],
)
def test_damage_is_refused_and_the_message_says_where_it_is(path: list[Any], value: Any, problem: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse(damaged(path, value))
    assert problem in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[]", TEXT[:-20], TEXT.replace("1024", "NaN"), b"\xff"])
def test_what_is_no_such_document_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_a_recording_says_of_each_parameter_what_it_is():
    with pytest.raises(ValueError, match=r"specializations\[1\] does not have the parameter 'C'"):
        function(of({"C": 1}), of({}))


def test_what_a_manifest_has_for_a_heuristic_is_an_expression_of_arguments_and_nothing_else() -> None:
    rule = rule_of("(cdiv(args['n'], 4), next_power_of_2(args['n']), args['b'] is None)")
    for n in range(1, 20):
        assert rule({"n": n, "b": None}) == (math.ceil(n / 4), 2 ** math.ceil(math.log2(n)), True)
    passed = {"n": 3, "x": SimpleNamespace(dtype="torch.float16")}
    assert tuning_key(passed, ["n"], ["x", "n"]) == [3, "float16"]
    for text in ("__import__('os')", "args['x'].__class__", "open('x')", "[each for each in args]", "lambda: 1", "n"):
        with pytest.raises(ValueError, match="is no expression of arguments and numbers"):
            rule_of(text)


PROGRAM = """\
from math import ceil as cdiv

SIZE, later = 64, lambda args: (
args["n"] + 1
)
rules = {"EVEN": lambda args: args["n"] % SIZE == 0, "ODD": lambda args: args["n"] % 2 == 1, "ARGS": lambda args: args}
wide = {"FIRST": lambda args: max(
    args["n"], 7), "SECOND": lambda args: min(args["n"], 7)}
def pair(size): return [lambda args: args["n"] // size, lambda args: (lambda args: args["n"] // 3)(args)]
def same(args): return args["n"] * 2
before = same
def same(args):
    "Of the same name."
    return args["n"] * 3
def steps(args):
    args = {"n": 5}
    return args["n"]
def branches(args, other=1): return args["n"]
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before Python 3.11, code has no columns")
def test_the_expression_of_a_heuristic_is_that_of_its_own_place_in_the_source(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    program = SimpleNamespace()
    exec(compile(PROGRAM, str(tmp_path / "program.py"), "exec"), vars(program))
    even, odd, args = program.rules.values()
    found = {
        **{even: "args['n'] % 64 == 0", odd: "args['n'] % 2 == 1", args: "", program.later: "args['n'] + 1"},
        **dict(zip(program.wide.values(), ("max(args['n'], 7)", "min(args['n'], 7)"), strict=True)),
        **dict(zip(program.pair(5), ("args['n'] // 5", ""), strict=True)),
        **{program.before: "args['n'] * 2", program.same: "args['n'] * 3"},
        **dict.fromkeys((program.steps, program.branches, len), ""),
    }
    assert {rule: expression_of(rule) for rule in found} == found


def test_a_config_that_cannot_run_on_an_arch_is_left_out_there_if_another_one_is_left_for_such_calls(tmp_path) -> None:
    said: list[str] = []

    def kept(**forms: str) -> dict[str, list[str]]:
        """Slug -> archs of the variants that are left of those with these forms; the one that is named last fails."""
        variants = []
        for slug, form in forms.items():
            units = [UnitFiles("cuda", (arch,), f"{tmp_path}/{slug} {arch}", "", "") for arch in ("sm_80", "sm_90a")]
            for unit in units:
                why = (
                    {"left_out": "ops.py:3: it is too large"} if slug == [*forms][-1] and "sm_80" in unit.archs else {}
                )
                call = {"function": {"name": "f"}, "form": form, **why}
                Path(unit.signature).write_text(json.dumps({"recorded": call}))
            variants.append(VariantFiles(slug, {CALL: slug}, tuple(units)))
        left = without_left_out(tuple(variants), Where("f"), SimpleNamespace(note_once=said.append))  # type: ignore[arg-type]
        return {variant.slug: [arch for unit in variant.units for arch in unit.archs] for variant in left}

    assert kept(one="F", other="F") == {"one": ["sm_80", "sm_90a"], "other": ["sm_90a"]}
    assert [line.split(": it ")[1] for line in said] == ["is too large, so this config of f is left out"]
    with pytest.raises(LoweringError, match="it is too large; no other config is left for such calls"):
        kept(one="F", other="G")


def test_a_parameter_that_is_a_descriptor_in_some_calls_only_is_named() -> None:
    def unit(number: int, tuples: dict[str, int]) -> Any:
        recorded = SimpleNamespace(function=SimpleNamespace(tuples=tuples))
        return SimpleNamespace(slug=f"v{number}", where=Where("k", f"v{number}", "wrap"), recorded=recorded)

    units = [unit(0, {"x": 2}), unit(1, {})]
    plan: Any = SimpleNamespace(units=units, recorded=SimpleNamespace(options=(), tuples={"x": 2}), variants=())
    told = "'x' is a tuple or tensor descriptor of another form than in the variant v0, or is one in only one of them"
    with pytest.raises(KernelwrightError, match=told):
        Forms(plan)


def test_a_constant_is_compared_in_the_form_in_which_calls_pass_it() -> None:
    for constant, passed in (({"float": "inf"}, math.inf), ({"float": "-inf"}, -math.inf), (1, 1), ("relu", "relu")):
        assert plain(constant) == passed
    assert math.isnan(plain({"float": "nan"}))


def test_a_constant_that_triton_makes_other_code_for_is_marked() -> None:
    for constant in (None, 1, {"function": "cdiv"}):
        assert undeclared(constant) is constant
    for constant in (True, False, 0, 2, 1.0, "relu"):
        assert undeclared(constant) == {"constexpr": constant}


def test_options_of_a_launch_are_compared_in_the_order_of_the_kernel() -> None:
    kernel: Any = SimpleNamespace(_options=("num_ctas", "num_warps"))
    told = ({"num_warps": 4, "num_ctas": 1}, {"num_ctas": 1, "num_warps": 4}, {"num_warps": 4})
    calls: list[Any] = [SimpleNamespace(options=options, parameters=()) for options in told]
    one, other, absent = (Forms._rows(kernel, call, Where("k")) for call in calls)
    assert one == other and one[1] == absent[1] and one[0] != absent[0]
