"""Spaces of tuning parameters: ``tune=``, ``.sizes``, ``.cost``, and what a record says of them."""

from __future__ import annotations

from typing import Any

import pytest
from kernelwright import grid, kernel
from kernelwright.core.errors import DefinitionError
from kernelwright.define import configs as declare
from kernelwright.define.kernel import Kernel
from kernelwright.define.record import definition_record
from kernelwright.define.space import Choice
from test_discovery import GOOD_KERNEL


def gemm(n: int, block: int = 0, stages: int = 1, target: Any = None) -> None:
    """A definition that nobody calls."""


def declared(**arguments: Any) -> Kernel:
    made: Kernel = kernel(**{"configs": grid(n=[1024, 4096]), **arguments})(gemm)
    return made


def test_the_configs_of_a_kernel_with_a_space_are_those_of_all_candidates() -> None:
    made = declared(tune=grid(block=[32, 64]))
    assert made.configs == tuple({"n": n, "block": block} for n in (1024, 4096) for block in (32, 64))
    assert [variant.slug for variant in made.variants][:2] == ["n-1024_block-32", "n-1024_block-64"]
    points = ({"block": 32}, {"block": 64})
    assert made.choices[0] == Choice({"n": 1024}, {"llvm": points, "cuda": points})
    assert made.choices[1].config == {"n": 4096}
    assert made.choices[1].declared("cuda") == {"n": 4096, "block": 32}


def test_a_function_gives_the_points_of_each_target_and_config() -> None:
    def space(n: int, target: str) -> list[dict[str, int]]:
        return grid(block=[8]) if target == "llvm" else grid(block=[n // 32, 8], stages=[2])

    made = declared(tune=space)
    assert made.choices[0].points == {
        "llvm": ({"block": 8},),
        "cuda": ({"block": 32, "stages": 2}, {"block": 8, "stages": 2}),
    }
    assert [config["block"] for config in made.configs if config["n"] == 4096] == [8, 128, 8]
    made = declared(tune=lambda target: [{"block": 8}, {"block": 16 if target == "llvm" else 32}])
    of_one = [config["block"] for config in made.configs if config["n"] == 1024]
    assert of_one == [8, 16, 32], "one variant serves both targets where their points are equal"
    made = declared(tune=lambda n, target: [{"block": 8}] if target == "cuda" or n == 1024 else [])
    assert [sorted(choice.points) for choice in made.choices] == [["cuda", "llvm"], ["cuda"]]
    assert [choice.declared("llvm") is None for choice in made.choices] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "targets"),
    [({}, {"llvm", "cuda"}), ({"targets": ["cuda"]}, {"cuda"}), ({"frontend": "cutedsl"}, {"cuda"})],
)
def test_a_space_has_points_for_the_targets_that_the_kernel_has(arguments: dict[str, Any], targets: set[str]) -> None:
    assert declared(tune=[{"block": 8}], **arguments).choices[0].points.keys() == targets


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ([], "tune is empty"),
        ({"block": 32}, "expected a list of dicts"),
        ("ab", "expected a list of dicts"),
        (7, "expected a list of dicts"),
        ([32], "which is not a dict"),
        ([{"block": 32}, {"block": 32}], "twice"),
        ([{"blocks": 32}], "'blocks' is not a parameter"),
        ([{"target": "cuda"}], "'target' is not a parameter"),
        ([{"n": 3}], "has the key 'n', which tune has, too"),
        ([{"block": [1]}], "is not a bool, int, float or str"),
        (lambda m: [{"block": m}], "has a parameter 'm', but what it can be given is n, target"),
        (lambda n: [], "tune has no point for {'n': 1024} and any target"),
    ],
)
def test_a_space_of_another_form_is_an_error_at_the_definition(tune: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as caught:
        declared(tune=tune)
    assert str(caught.value.where.location).startswith(f"{__file__}:")


def test_a_definition_may_prefer_points_for_archs() -> None:
    points = grid(block=[8, 16], stages=[1, 2])
    best = {"block": 16, "stages": 2}
    made = declared(tune=points, preferred={"sm_90a": best, "sm_80": points[0]})
    assert [choice.preferred for choice in made.choices] == [{"sm_90a": best}] * 2, "the first point needs no word"
    made = declared(tune=points, preferred=lambda n: {"x86-64-v4": best} if n == 1024 else {})
    assert [choice.preferred for choice in made.choices] == [{"x86-64-v4": best}, {}]
    made = declared(tune=points, targets=["llvm"], preferred={"sm_90a": best})
    assert [choice.preferred for choice in made.choices] == [{}, {}], "there is no point for that target"


@pytest.mark.parametrize(
    ("preferred", "message"),
    [
        ([{"block": 8}], "expected a dict from archs to points"),
        (lambda n: None, "expected a dict from archs to points"),
        ({"sm_90a": 8}, "expected an arch and a point"),
        ({90: {"block": 8}}, "expected an arch and a point"),
        ({"sm90": {"block": 8}}, "unknown arch 'sm90'"),
        ({"sm_90a": {"block": 64}}, "no point of the space for cuda"),
        ({"sm_90a": {"block": 16.0}}, "no point of the space for cuda"),
        (lambda m: {}, "has a parameter 'm', but what it can be given is n"),
    ],
)
def test_a_preference_of_another_form_is_an_error_at_the_definition(preferred: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as caught:
        declared(tune=grid(block=[8, 16]), preferred=preferred)
    assert str(caught.value.where.location).startswith(f"{__file__}:") and caught.value.remedy


def test_a_space_gives_what_has_no_default_a_preference_needs_one_and_it_has_a_limit(monkeypatch):
    def needs(n: int, block: int, stages: int) -> None: ...

    with pytest.raises(DefinitionError, match="preferred names points, and there is no tune"):
        kernel(configs=grid(n=[1]), preferred={"sm_90a": {"block": 8}})(gemm)
    with pytest.raises(DefinitionError, match="gives no value for parameter 'stages'"):
        kernel(configs=grid(n=[1]), tune=grid(block=[1, 2]))(needs)
    monkeypatch.setattr(declare, "MAX_CONFIGS", 4)
    assert len(declared(tune=grid(block=[1, 2])).configs) == 4
    with pytest.raises(DefinitionError, match="make 6 candidates, at most 4"):
        declared(tune=grid(block=[1, 2, 3]))


def test_a_backward_kernel_has_the_callers_configs_and_a_space_of_its_own() -> None:
    def forward(n: int, block: int) -> None: ...

    made = kernel(configs=grid(n=[1, 2]), tune=grid(block=[4, 8]), outputs=["y"])(forward)

    @made.backward(outputs=["grad_x"])
    def plain(n: int) -> None: ...

    assert plain.configs == ({"n": 1}, {"n": 2}) and plain.choices == ()
    of_target = lambda target: grid(block=[4] if target == "llvm" else [8])  # noqa: E731
    other = kernel(configs=grid(n=[1, 2]), tune=of_target, outputs=["y"])(forward)

    @other.backward(outputs=["grad_x"], tune=grid(rows=[1, 2]))
    def tuned(n: int, rows: int) -> None: ...

    assert [choice.points["llvm"] for choice in tuned.choices] == [({"rows": 1}, {"rows": 2})] * 2
    of_forward = [tuned.config_of_forward({"n": 2, "rows": 1}, target) for target in ("llvm", "cuda")]
    assert of_forward == [{"n": 2, "block": 4}, {"n": 2, "block": 8}]


def test_sizes_are_sorted_and_each_once_and_may_depend_on_the_config() -> None:
    made = declared(tune=grid(block=[1]))
    assert made.sizes_of({"n": 3}) == {}
    made.sizes(lambda n: {"m": [n, 1, 16, 1], "k": range(1, 3), "largest": [2**53]})
    assert made.sizes_of({"n": 1024}) == {"m": (1, 16, 1024), "k": (1, 2), "largest": (2**53,)}


@pytest.mark.parametrize(
    "sizes", [None, [1], {"m": 3}, {"m": []}, {"m": [0]}, {"m": [2**53 + 1]}, {"m": [True]}, {"m": ["1"]}, {"m n": [1]}]
)
def test_sizes_of_another_form_are_an_error(sizes: Any) -> None:
    made = declared(tune=grid(block=[1]))
    made.sizes(lambda: sizes)
    with pytest.raises(DefinitionError, match="sizes") as caught:
        made.sizes_of({"n": 1})
    assert caught.value.where.location == made.location


def test_a_cost_is_given_what_it_has_parameters_for() -> None:
    made = declared(tune=grid(block=[1]))
    assert made.amount_of("cost", {"n": 2, "block": 8, "m": 3, "target": "llvm"}) == 0
    made.cost(lambda block, m, target: block * m if target == "llvm" else -1)
    assert made.amount_of("cost", {"n": 2, "block": 8, "m": 3, "target": "llvm"}) == 24
    assert made.amount_of("cost", {"n": 2, "block": 8, "m": 3, "target": "cuda"}) == -1
    made.cost(lambda **all: len(all))
    assert made.amount_of("cost", {"n": 2, "block": 8, "m": 3, "target": "cuda"}) == 4
    for bad in (None, "1", float("nan"), True):
        made.cost(lambda bad=bad: bad)
        with pytest.raises(DefinitionError, match="expected a number"):
            made.amount_of("cost", {})


RECORD: dict[str, Any] = {
    **GOOD_KERNEL,
    "configs": [{"n": 1, "block": 8}, {"n": 1, "block": 16}],
    "slugs": ["n-1_block-8", "n-1_block-16"],
    "choices": [{"config": {"n": 1}, "points": {"llvm": [{"block": 8}, {"block": 16}]}, "sizes": {"m": [1, 2]}}],
    "has_cost": True,
}


def read(record: dict[str, Any]) -> None:
    """Read the record of a kernel, as a build does."""
    definition_record({"file": "k.py", "dependencies": {"k.py": "0"}, "kernels": [record]})


@pytest.mark.parametrize(
    "change",
    [
        {"choices": 3},
        {"choices": [{"config": {"n": 1}, "points": {"llvm": [{"block": 8}]}, "sizes": {}}]},
        {"choices": [{"config": {"n": 1}, "points": {"llvm": [{"block": 8}, {"block": [16]}]}, "sizes": {}}]},
        {"choices": [{**RECORD["choices"][0], "sizes": {"m": ["1"]}}]},
        {"choices": [{**RECORD["choices"][0], "sizes": {"m": [True]}}]},
        {"choices": [{**RECORD["choices"][0], "config": None}]},
        {"has_cost": 1},
    ],
)
def test_a_record_with_malformed_choices_is_refused(change: dict[str, Any]) -> None:
    read(RECORD)
    with pytest.raises(ValueError):
        read({**RECORD, **change})
