"""The decorator, ``grid`` and slugs."""

from __future__ import annotations

import itertools
import re

import pytest
from kernelwright import declare, grid, kernel
from kernelwright.declare import named_outputs, slugs
from kernelwright.errors import DefinitionError, Where


def test_grid_is_a_product_with_the_last_axis_fastest():
    assert grid(m=[1, 2], n=["a", "b"]) == [
        {"m": 1, "n": "a"},
        {"m": 1, "n": "b"},
        {"m": 2, "n": "a"},
        {"m": 2, "n": "b"},
    ]


def test_grid_filter_keeps_points():
    assert grid(m=[1, 2], n=[1, 2], where=lambda m, n: m < n) == [{"m": 1, "n": 2}]


@pytest.mark.parametrize(
    ("axes", "message"),
    [({"m": []}, "is empty"), ({"m": "ab"}, "expected a list"), ({"m": 3}, "expected a list")],
)
def test_grid_rejects_bad_axes(axes, message):
    with pytest.raises(DefinitionError, match=message) as caught:
        grid(**axes)
    assert caught.value.where.location.startswith(__file__)


def test_grid_keeps_the_largest_number_of_configs_and_refuses_one_more(monkeypatch):
    monkeypatch.setattr(declare, "MAX_CONFIGS", 6)
    assert len(grid(m=range(3), n=range(2))) == len(grid(m=range(9), where=lambda m: m < 6)) == 6
    for where in (None, lambda m: m < 7):
        with pytest.raises(DefinitionError, match="keeps more than 6 configs"):
            grid(m=range(9), where=where)


def test_grid_has_the_largest_number_of_points_and_refuses_one_more(monkeypatch):
    monkeypatch.setattr(declare, "MAX_POINTS", 6)
    assert len(grid(m=range(3), n=range(2))) == len(grid(m=range(6))) == 6
    for axes in ({"m": range(7)}, {"m": itertools.count()}, {"m": range(3), "n": range(3)}):
        with pytest.raises(DefinitionError, match="at most 6 are possible"):
            grid(**axes)


def test_grid_whose_filter_keeps_nothing_is_an_error():
    with pytest.raises(DefinitionError, match="keeps no config"):
        grid(m=[1], where=lambda m: False)


def test_kernel_keeps_configs_in_order_and_first_is_default():
    @kernel(configs=grid(block=[64, 32]), outputs=["c"])
    def gemm(block):
        """c = a b"""

    assert [v.slug for v in gemm.variants] == ["block-64", "block-32"]
    assert gemm.doc == "c = a b"
    assert gemm.outputs == ("c",)
    assert not gemm.takes_target


def test_kernel_keeps_the_files_that_it_reads():
    @kernel(reads=["tuning.json", "../tables/**/*.json"])
    def gemm(): ...

    @kernel
    def copy(): ...

    assert gemm.reads == ("tuning.json", "../tables/**/*.json")
    assert copy.reads == ()


def test_kernel_without_arguments_has_one_default_variant():
    @kernel
    def copy(target): ...

    assert [v.slug for v in copy.variants] == ["default"]
    assert copy.takes_target


@pytest.mark.parametrize(
    ("outputs", "named"),
    [((), ()), ((-1,), ("c",)), ((2, "a"), ("c", "a")), ((0, -2), ("a", "b")), ((-3,), ("a",)), (("z",), ("z",))],
)
def test_outputs_get_names_when_the_arguments_are_known(outputs, named):
    assert named_outputs(outputs, ["a", "b", "c"], Where("k")) == named


@pytest.mark.parametrize(
    ("outputs", "arguments", "message"),
    [
        (
            (3,),
            "abc",
            "position 3, but there are 3 arguments (a, b, c)\n  remedy: use 0 to 2, or -1 to -3",
        ),
        ((-4,), "abc", "position -4, but there are 3 arguments"),
        ((0,), "", "position 0, but there are 0 arguments (none)"),
        (("c", -1), "abc", "one argument twice: 'c' and -1 are both 'c'"),
        ((-1, 2), "abc", "one argument twice: -1 and 2 are both 'c'"),
    ],
)
def test_outputs_that_are_no_arguments_or_one_argument_twice_are_errors(outputs, arguments, message):
    with pytest.raises(DefinitionError, match=re.escape(message)) as caught:
        named_outputs(outputs, list(arguments), Where("k", location="k.py:3"))
    assert caught.value.where.location == "k.py:3"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"configs": {"block": 1}}, "expected a list of dicts"),
        ({"configs": []}, "configs is empty"),
        ({"configs": [3]}, "is not a dict"),
        ({"configs": [{"blok": 1}]}, "'blok' is not a parameter"),
        ({"configs": [{}]}, "no value for parameter 'block'"),
        ({"configs": [{"block": [1]}]}, "not a bool, int, float or str"),
        ({"configs": [{"block": 1}, {"block": 1}]}, "listed twice"),
        ({"configs": [{"block": 1}], "outputs": "c"}, "expected a list of names or positions"),
        ({"configs": [{"block": 1}], "outputs": -1}, "outputs is -1, expected a list of names or positions"),
        ({"configs": [{"block": 1}], "outputs": [True]}, "outputs contains True, expected the name or the position"),
        ({"configs": [{"block": 1}], "outputs": [-1.0]}, "outputs contains -1.0, expected the name or the position"),
        ({"configs": [{"block": 1}], "outputs": [2**64]}, "outputs contains 18446744073709551616, expected"),
        ({"configs": [{"block": 1}], "outputs": ["c", "c"]}, "outputs lists an entry twice"),
        ({"configs": [{"block": 1}], "outputs": [-1, -1]}, "outputs lists an entry twice"),
        ({"configs": [{"block": 1}], "targets": ["llvm", "llvm"]}, "twice"),
        ({"configs": [{"block": 1}], "flags": [1]}, "expected strings"),
        ({"configs": [{"block": 1}], "tolerance": -1}, "expected a number"),
        ({"configs": [{"block": 1}], "reads": "tuning.json"}, "expected a list of strings"),
        ({"configs": [{"block": 1}], "reads": [3]}, "expected strings"),
        ({"configs": [{"block": 1}], "reads": ["a", "a"]}, "twice"),
        ({"configs": [{"block": 1}], "reads": ["/etc/hosts"]}, "expected a path relative to the folder"),
        ({"configs": [{"block": 1}], "reads": [""]}, "expected a path relative to the folder"),
        ({"configs": [{"block": 1}], "reads": ["tables\\a.json"]}, "expected a path relative to the folder"),
    ],
)
def test_bad_decorator_arguments_name_the_line_and_the_cause(arguments, message):
    with pytest.raises(DefinitionError, match=message) as caught:

        @kernel(**arguments)
        def gemm(block): ...

    assert caught.value.where.kernel == "gemm"
    assert caught.value.where.location.startswith(__file__ + ":")


@pytest.mark.parametrize("name", ["preload", "main", "kw_fast", "_hidden", "a__b", "größe"])
def test_names_that_cannot_be_kernels(name):
    def function(): ...

    function.__name__ = name
    with pytest.raises(DefinitionError, match="cannot be a kernel's name"):
        kernel(function)


def test_calling_a_definition_says_what_to_do():
    @kernel
    def copy(): ...

    with pytest.raises(DefinitionError, match="inside its definition file"):
        copy(1)


def test_slugs_are_readable_where_they_can_be():
    assert slugs([{"block_m": 64, "dtype": "float16"}]) == ["block_m-64_dtype-float16"]


@pytest.mark.parametrize(
    "configs",
    [
        [{"a": "x/y"}, {"a": "xy"}],
        [{"a": "../../etc"}, {"a": "....etc"}],
        [{"a": "X"}, {"a": "x"}],
        [{"a": "é"}, {"a": "è"}],
        [{"a": "q" * 300}, {"a": "q" * 301}],
        [{"a": 1}, {"a": True}, {"a": "1"}],
    ],
)
def test_slugs_are_unique_and_safe_for_file_systems(configs):
    made = slugs(configs)
    assert len({slug.lower() for slug in made}) == len(configs)
    for slug in made:
        assert "/" not in slug and len(slug.encode()) < 100 and slug.isascii() and slug not in (".", "..")
