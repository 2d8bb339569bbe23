"""What every launcher does with None for an array: the function gets a null pointer, or a variant for None runs."""

from __future__ import annotations

import re

import pytest
from support.launched import RULES, process_of
from support.launchers import LAUNCHERS, Process


@pytest.fixture(params=LAUNCHERS)
def process(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Process:
    return process_of(tmp_path_factory, request.param)


def test_None_for_an_optional_array_is_a_null_pointer(process: Process) -> None:
    """It comes before the array that tells its size, and its data has to be aligned if there is any."""
    process.run(
        """
        biased = made.kernel("biased")
        x, y, bias, scale = (on_cuda(shape, data=at << 16) for at, shape in enumerate([(3, 8), (3, 8), (8,), (1,)], 1))
        half, other = (on_cuda((3, 8), "float16", data=at << 16) for at in (5, 6))
        biased(bias, x, scale, y)
        biased(None, x, scale, y)
        biased(bias, x, None, y)
        assert biased(None, x).shape == biased(x=x).shape == biased(x=x, bias=None, y=None).shape == (3, 8)
        biased(x=x, y=y, bias=bias)
        biased(None, half, y=other)
        """,
        parameters="ppipp",
    )
    launched = [line.split() for line in process.parameters()]
    assert launched[:3] == [
        ["0x30000", "0x10000", "8", "0x40000", "0x20000"],
        ["0", "0x10000", "8", "0x40000", "0x20000"],
        ["0x30000", "0x10000", "8", "0", "0x20000"],
    ]
    assert [line[:4] for line in launched[3:6]] == [["0", "0x10000", "8", "0"]] * 3
    assert launched[6:] == [["0x30000", "0x10000", "8", "0", "0x20000"], ["0", "0x50000", "8", "0", "0x60000"]]


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        ("biased(None, None)", "TypeError", "argument 'x' is None, expected a tensor: an array of NumPy,"),
        ("biased(3, x)", "TypeError", "argument 'bias' is the int 3, expected a tensor: an array of NumPy,"),
        (
            "biased()",
            "TypeError",
            "takes 4 arguments (bias, x, scale, [y]), or 2 to 3 with the outputs left out; 0 were",
        ),
        ("biased(None, x, y)", "TypeError", "to the definition; if inputs are left out, pass outputs by name"),
        ("biased(None, x, None, y, y)", "TypeError", "or 2 to 3 with the outputs left out; 5 were given"),
        ("biased(on_cuda((7,)), x)", "ValueError", "Mismatched x.shape[1] on argument #1 when calling:"),
        ("biased(None, x, None, on_cuda((3, 9)))", "ValueError", "Mismatched y.shape[1] on argument #3 when calling:"),
        ("biased(on_cuda((8,), data=4), x)", "ValueError", "argument 'bias' has data that is not aligned to 16 bytes"),
        (
            'biased(None, on_cuda((3, 8), "int8"))',
            "TypeError",
            "no built variant accepts these arguments\n  passed: bias = None, x = int8[3, 8] on cuda:0, scale = None\n"
            "  float32 expects: bias = float32[n] or None, x = float32[m, n], scale = float32[1] or None\n",
        ),
        (
            "masked.variant(given=True)(on_cuda((5,)))",
            "TypeError",
            "passed: x = float32[5] on cuda:0, mask = None\n  given_True expects: x = float32[n], mask = int8[n, k]\n",
        ),
        (
            'masked.variant(given=False)(on_cuda((5,)), on_cuda((5, 7), "int8"))',
            "TypeError",
            "mask = int8[5, 7] on cuda:0\n  given_False expects: x = float32[n], mask = None\n",
        ),
        (
            "masked(on_cuda((5,)), 3)",
            "TypeError",
            "argument 'mask' is the int 3, expected a tensor: an array of NumPy,",
        ),
        ("masked(None)", "TypeError", "argument 'x' is None, expected a tensor: an array of NumPy,"),
    ],
)
def test_a_call_that_no_variant_is_for_is_refused(process: Process, call: str, kind: str, said: str) -> None:
    names = 'made.kernel("biased"), made.kernel("masked"), on_cuda((3, 8)), on_cuda((3, 8))'
    text = process.refusal(f"(lambda biased, masked, x, y: {call})({names})")
    assert text.startswith(f"{kind}: kernel '") and said in text, text
    assert process.calls("launch") == []


def test_a_variant_for_None_runs_if_None_is_passed_or_the_array_is_left_out(process: Process) -> None:
    printed = process.run(
        """
        masked, x, mask = made.kernel("masked"), on_cuda((5,)), on_cuda((5, 7), "int8", data=0x70000)
        masked(x), masked(x, None), masked(x=x), masked.variant(given=False)(x)
        masked(x, mask), masked(mask=mask, x=x)
        print(masked.choice(x).variant, masked.choice(x, mask).variant)
        """,
        parameters="pp",
    )
    assert printed.split() == ["given_False", "given_True"]
    launched = [(line.split()[0], line.partition(" parameters ")[2]) for line in process.calls("launch")]
    assert launched == [("masked_False", "0x10000 0")] * 4 + [("masked_True", "0x10000 0x70000")] * 2


def test_a_number_has_its_default_where_it_is_left_out(process: Process) -> None:
    process.run(
        """
        kernel, x = made.kernel("default"), on_cuda((2,))
        kernel(x), kernel(x, 2), kernel(x, None, 4.5), kernel(x=x, scale=3)
        """,
        parameters="pif",
    )
    numbers = [line.split()[1:] for line in process.parameters()]
    assert [(int(k), float(scale)) for k, scale in numbers] == [(7, 0.25), (2, 0.25), (7, 4.5), (7, 3)]
    assert [line.split()[3] for line in process.calls("launch")] == ["7", "2", "7", "7"]
    count = "TypeError: kernel 'default': takes 3 arguments (x, k, scale), or 1 to 3; 0 were given"
    assert process.refusal('made.kernel("default")()') == count


def test_a_number_can_tell_the_size_of_an_array_that_is_None(process: Process) -> None:
    process.run(
        """
        told, x = made.kernel("told"), on_cuda((2,))
        told(x, None, 3), told(x, on_cuda((4,), data=0x20000), 4), told(x=x, k=5)
        """,
        parameters="ppi",
    )
    assert process.parameters() == ["0x10000 0 3", "0x10000 0x20000 4", "0x10000 0 5"]
    assert [line.split()[3] for line in process.calls("launch")] == ["6", "8", "10"]
    text = process.refusal('made.kernel("told")(on_cuda((2,)), on_cuda((4,)), 3)')
    assert re.match("ValueError: kernel 'told': (Invalid|Mismatched) b.shape.0. on argument #1 when calling:", text)


def test_None_tells_no_stride_and_a_size_that_is_computed_may_have_strides(process: Process) -> None:
    process.run(
        """
        apart, one = made.kernel("apart"), on_cuda((1, 5), data=0x20000)
        x = on_cuda((3, 5), strides=(9, 1), data=0x20000)
        apart(None, x), apart(on_cuda((3,), strides=(9,)), x, on_cuda((24, 5), strides=(11, 1), data=0x30000))
        apart(None, one), apart(on_cuda((1,)), one)
        """,
        parameters="pppii",
    )
    assert process.parameters() == [
        "0 0x20000 0 9 0",
        "0x10000 0x20000 0x30000 9 11",
        *(f"{bias} 0x20000 0 5 0" for bias in ("0", "0x10000")),
    ]
    large = "on_cuda((2**29 + 1, 1), strides=(1, 1))"
    for x, rest in (("on_cuda((3, 5))", "on_cuda((23, 5))"), (large, "on_cuda((8, 1))")):  # 8 is 8 * n in 32 bits
        text = process.refusal(f'made.kernel("apart")(None, {x}, {rest})')
        assert text.startswith("ValueError: kernel 'apart': ") and "rest.shape[0]" in text, text
    assert process.calls("launch") == []


RANDOM = """
import os
from pathlib import Path
from hypothesis import given, settings, strategies as st

kernel, log = made.kernel("rules"), Path(os.environ["STANDIN_LOG"])
places = {name: at << 16 for at, name in enumerate("xabcy", 1)}
arrays = {name: on_cuda((4,), data=at) for name, at in places.items()}

def fits(rule, present):
    return all(wanted is None or wanted == (name in present) for name, wanted in rule.items())

@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(st.sets(st.sampled_from("abc")), st.booleans(), st.booleans(), st.integers(1, 5), st.integers(0, 3))
def check(present, writes, names_none, positional, left_out):
    # Of the arguments behind the positional ones, each is passed by its name, if it is passed.
    listed = ["x", *"abc", *("y" * writes)]
    values = {name: arrays[name] if name in (*present, "x", "y") else None for name in listed}
    if positional < len(listed):
        first = [values[name] for name in [*"xabc"][:positional]]
        named = {name: value for name, value in list(values.items())[positional:] if value is not None or names_none}
    else:
        first, named = list(values.values()), {}
        while not writes and left_out and first[-1] is None:
            first.pop()
            left_out -= 1
    number = next((number for number, rule in enumerate(RULES) if fits(rule, present)), None)
    before = len(log.read_text().splitlines()) if log.exists() else 0
    if number is None:
        text = refusal(lambda: kernel(*first, **named))
        assert text.startswith("TypeError: kernel 'rules': no built variant accepts"), text
    else:
        made_ = kernel(*first, **named)
        assert (made_ is None) == writes
    new = log.read_text().splitlines()[before:] if log.exists() else []
    launches = [line.partition(" parameters ") for line in new if line.startswith("launch ")]
    launched = [[what.split()[1], *parameters.split()[: 4 + writes]] for what, _, parameters in launches]
    pointers = [hex(places[name]) if values[name] is not None else "0" for name in listed]
    assert launched == ([] if number is None else [[f"rules_{number}", *pointers]]), (launched, number, pointers)
    counts[number is None] += 1

counts = [0, 0]
check()
print(*counts)
"""


def test_any_call_with_arrays_and_None_runs_the_first_variant_whose_rules_it_keeps(process: Process) -> None:
    ran, refused = map(int, process.run(f"RULES = {RULES}\n{RANDOM}", parameters="ppppp").split())
    assert ran >= 50 and refused >= 20, (ran, refused)
    numbers = [re.sub(r"rules_(\d) .*", r"\1", line) for line in process.calls("launch")]
    assert {*numbers} == {*map(str, range(len(RULES)))}
