"""The decorator, ``grid`` and slugs."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from contextlib import nullcontext

import pytest
from kernelwright import grid, kernel
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.define import configs as declare
from kernelwright.define.configs import MAX_SLUG, Variant, slugs, variant_of
from kernelwright.define.kernel_options import KernelOptions
from kernelwright.define.names import MAX_NAME, RESERVED
from kernelwright.define.outputs import Arguments, named_outputs, require_gradient_names


def test_grid_is_a_product_with_the_last_axis_fastest_of_which_the_filter_keeps_points():
    assert grid(m=[1, 2], n=["a", "b"]) == [{"m": m, "n": n} for m in (1, 2) for n in ("a", "b")]
    assert grid(m=[1, 2], n=[1, 2], where=lambda m, n: m < n) == [{"m": 1, "n": 2}]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"m": []}, "is empty"),
        ({"m": "ab"}, "expected a list"),
        ({"m": 3}, "expected a list"),
        ({"m": [1], "where": lambda m: False}, "keeps no config"),
        ({"m": itertools.count()}, "the grid has 11 points"),
        ({"m": range(4), "n": range(3)}, "the grid has 12 points, at most 10 are possible"),
        ({"m": range(4)}, "the grid keeps more than 3 configs"),
        ({"m": range(9), "where": lambda m: m < 4}, "the grid keeps more than 3 configs"),
    ],
)
def test_a_grid_that_is_none_or_too_large_is_an_error_at_the_line_of_the_call(monkeypatch, axes, message):
    monkeypatch.setattr(declare, "MAX_POINTS", 10)
    monkeypatch.setattr(declare, "MAX_CONFIGS", 3)
    assert len(grid(m=range(3))) == len(grid(m=range(5), n=[1, 2], where=lambda m, n: m < 3 and n == 1)) == 3
    with pytest.raises(DefinitionError, match=message) as caught:
        grid(**axes)
    line = inspect.currentframe().f_lineno - 1
    assert caught.value.where == Where(stage="discover", location=f"{__file__}:{line}")
    assert "the grid" not in message or "fewer values" in caught.value.remedy


def place_of(made) -> str:
    return f"{__file__}:{made.function.__code__.co_firstlineno}"


def test_kernel_keeps_what_its_decorator_says():
    @kernel(
        configs=({"block": n} for n in (64, 32)),
        targets=["cuda"],
        archs=["sm_90a", "sm_80"],
        backends=("cuda_core", "tvm_ffi"),
        outputs=["c", -2],
        flags=["-Xptxas", "-v", "-Xptxas"],
        tolerance=1,
    )
    def gemm(block, stages=2): ...

    assert gemm.configs == ({"block": 64}, {"block": 32})
    assert gemm.variants == [Variant("gemm", {"block": n}, f"block-{n}") for n in (64, 32)]
    archs, backends, flags = ("sm_90a", "sm_80"), ("cuda_core", "tvm_ffi"), ("-Xptxas", "-v", "-Xptxas")
    rest = {"archs": archs, "backends": backends, "flags": flags, "tolerance": 1.0}
    assert gemm.options == KernelOptions(targets=("cuda",), outputs=("c", -2), **rest)
    assert isinstance(gemm.options.tolerance, float) and gemm.options.frontend == "tir"
    assert (gemm.name, gemm.doc, gemm.location) == ("gemm", "", place_of(gemm))
    assert (gemm.forward, gemm.backward_kernel, gemm.reference_function, gemm.inputs_function) == (None,) * 4


def test_kernel_without_restrictions_leaves_them_to_the_settings_and_takes_values_at_their_limits() -> None:
    @kernel(outputs=None, flags=None, reads=None)
    def copy(target):
        """y = x"""

    assert copy.options == KernelOptions(targets=None, archs=None, backends=None, tolerance=None)
    assert copy.doc == "y = x" and copy.takes_target and [v.slug for v in copy.variants] == ["default"]
    for function, made in ((lambda block: block, 5), (lambda block, target: (block, target), (5, "llvm"))):
        function.__name__ = "function"
        assert kernel(function, configs=[{"block": 1}]).build({"block": 5}, "llvm") == made

    @kernel(
        configs=[{"block": 2**64 - 1}, {"block": -1}, {"block": 0.0}, {"block": ""}], outputs=[0, 2**63], tolerance=0
    )
    def gemm(block): ...

    assert len(gemm.configs) == 4 and gemm.options.outputs == (0, 2**63) and gemm.options.tolerance == 0.0


def test_pass_configs_are_a_copy_in_a_fixed_order():
    given = {"b": {"z": 1, "y": "text"}, "a": -(2**63) + 1, "c": True, "d": 0.5}

    @kernel(pass_configs=given, outputs=["y"])
    def scale(): ...

    @scale.backward(outputs=["grad_x"], pass_configs={"a": 2})
    def backward(): ...

    ordered = [("a", -(2**63) + 1), ("b", {"y": "text", "z": 1}), ("c", True), ("d", 0.5)]
    assert list(scale.options.pass_configs.items()) == ordered and list(scale.options.pass_configs["b"]) == ["y", "z"]
    given["b"]["z"] = 2
    assert scale.options.pass_configs["b"]["z"] == 1
    assert backward.options.pass_configs == {"a": 2}, "those of the forward kernel are its own"


def test_backward_kernel_is_a_function_and_built_as_its_forward_kernel() -> None:
    restricted = {"targets": ["cuda"], "archs": ["sm_80"], "backends": ["cuda_core"]}

    @kernel(configs=grid(block=[64, 32]), outputs=["y"], **restricted)
    def scale(block): ...

    @scale.backward(outputs=["grad_x", -1], flags=["-v"], tolerance=0.5, reads=["a.json"])
    def _(block): ...

    assert _ is scale.backward_kernel and _.forward is scale
    assert (_.name, _.configs, _.location) == ("scale_backward", scale.configs, place_of(_))
    own = {"outputs": ("grad_x", -1), "flags": ("-v",), "tolerance": 0.5, "reads": ("a.json",)}
    assert _.options == KernelOptions(**{name: tuple(value) for name, value in restricted.items()}, **own)
    with pytest.raises(DefinitionError, match=re.escape(f"has a backward kernel already, at {_.location}")):
        scale.backward(outputs=["grad_x"])(_.function)

    def scale(): ...

    with pytest.raises(DefinitionError, match=r"@scale\.backward was applied to 3, expected a function"):
        kernel(scale, outputs=["y"]).backward(outputs=["grad_x"])(3)


@pytest.mark.parametrize(
    ("forward", "outputs", "message"),
    [
        ({"outputs": ["y"]}, [], "expected names of gradients"),
        ({"outputs": ["y"]}, ["y"], "expected names of gradients"),
        ({"outputs": ["y"]}, ["grad_"], "expected names of gradients"),
        ({"outputs": ["y"]}, ["grad_x", "y"], "expected names of gradients"),
        ({}, ["grad_x"], "name the outputs of scale with @kernel(outputs=[...])"),
        ({"outputs": ["y"], "name": "x" * (MAX_NAME - len("_backward") + 1)}, ["grad_x"], "cannot be a kernel's name"),
    ],
)
def test_a_backward_kernel_has_a_short_name_and_gradients_of_a_kernel_with_outputs(forward, outputs, message):
    def scale(): ...

    def backward(): ...

    scale.__name__ = forward.pop("name", "scale")
    made = kernel(scale, **forward)
    with pytest.raises(DefinitionError, match=f"(?s){re.escape(message)}") as caught:
        made.backward(outputs=outputs)(backward)
    assert caught.value.where.location == f"{__file__}:{backward.__code__.co_firstlineno}"
    assert made.backward_kernel is None


GRADIENT_OF_NONE = "output {!r} is the gradient of no input of scale"


@pytest.mark.parametrize(
    ("outputs", "arguments", "message"),
    [
        (["grad_x", "grad_w"], ["grad_y", "x", "w", "y", "grad_x", "grad_w"], None),
        ([-1], ["grad_y", "grad_x"], None),
        (["grad_x"], ["x", "grad_x"], None),
        (["grad_y"], ["x", "grad_y"], GRADIENT_OF_NONE.format("grad_y") + "\n  remedy: its inputs are x, w:"),
        ([-1], ["grad_y", "x"], GRADIENT_OF_NONE.format("x")),
        (["grad_x"], ["z", "grad_x"], "argument 'z' is no argument of scale"),
        (["grad_x"], ["grad_w", "grad_x"], "argument 'grad_w' is no argument of scale"),
    ],
)
def test_arguments_of_a_backward_kernel_are_those_that_autograd_has(outputs, arguments, message):
    where, of_forward = Where("scale_backward", location="k.py:3"), Arguments(["y"], ["x", "w", "y"])
    with nullcontext() if message is None else pytest.raises(DefinitionError, match=re.escape(message or "")) as caught:
        require_gradient_names("scale", of_forward, Arguments(tuple(outputs), arguments), where)
    assert message is None or (caught.value.where == where and caught.value.remedy)


@pytest.mark.parametrize(
    ("outputs", "named"),
    [((), ()), ((-1,), ("c",)), ((2, "a"), ("c", "a")), ((0, -2), ("a", "b")), ((-3,), ("a",)), (("z",), ("z",))],
)
def test_outputs_get_names_when_the_arguments_are_known(outputs, named):
    assert named_outputs(outputs, ["a", "b", "c"], Where("k")) == named


@pytest.mark.parametrize(
    ("outputs", "arguments", "message"),
    [
        ((3,), "abc", "position 3, but there are 3 arguments (a, b, c)\n  remedy: use 0 to 2, or -1 to -3"),
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
    ("arguments", "message", "remedy"),
    [
        ({"configs": {"block": 1}}, "expected a list of dicts", ""),
        ({"configs": 3}, "expected a list of dicts", "write configs=grid(...)"),
        ({"configs": []}, "configs is empty", "give at least one config"),
        ({"configs": [3]}, "config 3 is not a dict", "write configs=grid(...)"),
        ({"configs": [{"blok": 1}]}, "'blok' is not a parameter", "add a parameter 'blok' to gemm"),
        ({"configs": [{}]}, "no value for parameter 'block'", "add the key, or a default"),
        ({"configs": [{"block": [1]}]}, "not a bool, int, float or str", ""),
        ({"configs": [{"block": math.nan}]}, "block=nan is equal to nothing", ""),
        ({"configs": [{"block": -math.inf}]}, "block=-inf is not finite", "write it as a string"),
        ({"configs": [{"block": 2**64}]}, "has more than 64 bits", ""),
        ({"configs": [{"block": "a\0"}]}, "has NUL", ""),
        ({"configs": [{"block": 1}, {"block": 1}]}, "listed twice", "remove one of them"),
        *(({"outputs": one}, "expected a list of names or positions", "") for one in ("c", {"c": 1})),
        ({"outputs": -1}, "outputs is -1, expected a list of names or positions", 'write outputs=["y"]'),
        ({"outputs": [True]}, "outputs contains True, expected the name or the position", 'write outputs=["y"]'),
        ({"outputs": [-1.0]}, "outputs contains -1.0, expected the name or the position", ""),
        ({"outputs": [2**64]}, "outputs contains 18446744073709551616, expected", ""),
        ({"outputs": ["\ud800"]}, "expected the name or the position", ""),
        ({"outputs": [-1, -1]}, "outputs lists an entry twice", ""),
        *(({name: ["a", "a"]}, f"{name} lists an entry twice", "") for name in ("targets", "archs", "backends")),
        ({"targets": "llvm"}, "targets is 'llvm', expected a list of strings", ""),
        ({"archs": "sm_80"}, "archs is 'sm_80', expected a list of strings", "write archs=[...]"),
        ({"backends": 3}, "backends is 3, expected a list of strings", ""),
        ({"flags": [1]}, "expected strings", ""),
        ({"flags": ["a", "b\0"]}, "flags contains 'b\\x00', expected strings", ""),
        *(({"tolerance": one}, "expected a number", "") for one in (-1, True, "1", math.inf)),
        ({"reads": "tuning.json"}, "expected a list of strings", ""),
        ({"reads": [3]}, "expected strings", ""),
        ({"reads": ["a", "a"]}, "twice", ""),
        *(({"reads": [one]}, "expected a path, absolute or relative", "") for one in ("", "a\\b", "tables\\a.json")),
        ({"reads": ["//"]}, "expected a path, absolute or relative", "write for example reads="),
        ({"sources": ["/a.cu"]}, "sources contains '/a.cu', which is no path of a source", "give paths relative to"),
        ({"sources": ["a$b.cu"]}, "sources contains 'a$b.cu', which is no path of a source", "that end in .cu"),
        ({"includes": ["-include"]}, "includes contains '-include', which is no path of a folder", "package:"),
        ({"includes": ["/opt/a$b"]}, "includes contains '/opt/a$b', and nvcc has a shell read it", "move it to"),
        ({"includes": ["package:/opt"]}, "includes contains 'package:/opt', which is no path of a folder", "absolute"),
        ({"pass_configs": ["a"]}, "pass_configs is ['a'], expected a dict", "write for example pass_configs="),
        ({"pass_configs": {1: 2}}, "pass_configs has the key 1, expected a name", ""),
        ({"pass_configs": {"": 2}}, "pass_configs has the key '', expected a name", ""),
        ({"pass_configs": {"a": [1]}}, "pass config 'a' is [1], expected a bool", ""),
        ({"pass_configs": {"a": math.nan}}, "pass config 'a' is nan, expected a bool", ""),
        ({"pass_configs": {"a": 2**63}}, "pass config 'a' is 9223372036854775808, expected", ""),
        ({"pass_configs": {"a": "b\0"}}, "pass config 'a' is 'b\\x00', expected", ""),
        ({"pass_configs": {"a": {"b": {}}}}, "pass config 'a', field 'b', is {}, expected", ""),
        ({"pass_configs": {"a": {1: 2}}}, "pass config 'a' has the key 1, expected a name", ""),
    ],
)
def test_bad_decorator_arguments_name_the_line_the_cause_and_what_to_write(arguments, message, remedy):
    def gemm(block): ...

    with pytest.raises(DefinitionError, match=re.escape(message)) as caught:
        kernel(gemm, **{"configs": [{"block": 1}], **arguments})
    assert (caught.value.where.kernel, caught.value.where.stage) == ("gemm", "discover")
    assert caught.value.where.location.startswith(__file__ + ":") and remedy in (caught.value.remedy or "")


def test_definition_has_named_parameters_only():
    def starred(*blocks): ...

    def keywords(**blocks): ...

    def positional(block, /): ...

    for function in (starred, keywords, positional):
        with pytest.raises(DefinitionError, match="cannot have \\*args, \\*\\*kwargs or positional-only"):
            kernel(function)
    with pytest.raises(DefinitionError, match="@kernel was applied to 3, expected a function") as caught:
        kernel(3)
    assert caught.value.where.location.startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("names", "fits"),
    [
        (("x", "gemm_2", "x" * MAX_NAME), True),
        ((*RESERVED, "kw_fast", "_hidden", "a__b", "größe", "class", "2d", "a-b", "", "x" * (MAX_NAME + 1)), False),
    ],
)
def test_names_that_kernels_can_have(names, fits):
    for name in names:
        function = lambda: None  # noqa: E731
        function.__name__ = name
        with nullcontext() if fits else pytest.raises(DefinitionError, match="cannot be a kernel's name"):
            assert kernel(function).name == name


def test_what_the_package_and_the_build_file_use_is_reserved():
    used = {"main", "preload", "supported", "variants", "manifest", "set_num_threads", "num_threads"}
    used |= {"misses", "set_fallback"}
    assert used | {"check", "ir", "wheel", "tune", "sass", "ptx", "backends", "jax"} == RESERVED


def test_slugs_are_readable_where_they_can_be_and_others_have_a_hash_of_the_config() -> None:
    assert slugs([{"block_m": 64, "dtype": "float16"}]) == ["block_m-64_dtype-float16"]
    assert slugs([{"x": "aZ09_.+-"}, {}]) == ["x-aZ09_.+-", "default"]
    longest = "q" * (MAX_SLUG - 2)
    assert slugs([{"a": longest}]) == [f"a-{longest}"]
    (cut,) = slugs([{"a": "q" * MAX_SLUG}])
    assert re.fullmatch(f"a-{'q' * (MAX_SLUG - 2)}_[0-9a-f]{{8}}", cut)
    (plain,) = slugs([{"a": "x/y"}])
    assert re.fullmatch("a-xy_[0-9a-f]{8}", plain)
    assert slugs([{"a": "x/y"}, {"a": plain.removeprefix("a-")}])[1] != plain, "no name is that of another one"


@pytest.mark.parametrize(
    "configs",
    [
        *([{"a": "x/y"}, {"a": "xy"}], [{"a": "../../etc"}, {"a": "....etc"}], [{"a": "X"}, {"a": "x"}]),
        *([{"a": "é"}, {"a": "è"}], [{"a": "q" * 300}, {"a": "q" * 301}], [{"a": 1}, {"a": True}, {"a": "1"}]),
    ],
)
def test_slugs_are_unique_and_safe_for_file_systems(configs):
    made = slugs(configs)
    assert len({slug.lower() for slug in made}) == len(configs)
    for slug in made:
        assert "/" not in slug and len(slug.encode()) < 100 and slug.isascii() and slug not in (".", "..")


LISTED = ({"m": 1, "n": 2.0}, {"m": True, "n": 2.0})


@pytest.mark.parametrize(
    ("config", "slug", "ordered"),
    [
        ({"n": 2.0, "m": 1}, "m-1_n-2.0", {"m": 1, "n": 2.0}),
        ({"n": 2.0, "m": True}, "m-True_n-2.0", {"m": True, "n": 2.0}),
        ({"n": 3.0, "k": "a", "m": 1}, "m-1_n-3.0_k-a", {"m": 1, "n": 3.0, "k": "a"}),
    ],
)
def test_the_variant_of_a_config_has_the_order_of_the_listed_keys(config, slug, ordered):
    variant = variant_of("k", LISTED, config)
    assert (variant.kernel, variant.slug, repr(variant.config)) == ("k", slug, repr(ordered))


def test_the_variant_of_a_config_that_looks_like_a_listed_one_has_a_hash():
    variant = variant_of("k", LISTED, {"m": "1", "n": 2.0})
    assert variant.slug.startswith("m-1_n-2.0_") and variant.config == {"m": "1", "n": 2.0}

    @kernel(configs=list(LISTED))
    def k(m, n): ...

    other, names = k.unlisted({"m": "1", "n": 2.0})
    assert other == variant and names[-1] == variant.slug and names[0].startswith("m-1_n-2.0_")
