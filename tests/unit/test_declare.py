"""The decorator, ``grid`` and slugs."""

from __future__ import annotations

import inspect
import itertools
import math
import re

import pytest
from kernelwright import grid, kernel
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.define import kernel as declare
from kernelwright.define.kernel import (
    MAX_NAME,
    MAX_SLUG,
    RESERVED,
    Variant,
    named_outputs,
    require_gradient_names,
    slugs,
    variant_of,
)
from kernelwright.lower import get


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


def test_grid_that_is_too_large_is_an_error_at_the_line_of_the_call(monkeypatch):
    monkeypatch.setattr(declare, "MAX_POINTS", 10)
    monkeypatch.setattr(declare, "MAX_CONFIGS", 3)
    assert len(grid(m=range(3))) == len(grid(m=range(5), n=[1, 2], where=lambda m, n: m < 3 and n == 1)) == 3
    for axes, message in [
        ({"m": itertools.count()}, "the grid has 11 points"),
        ({"m": range(4), "n": range(3)}, "the grid has 12 points, at most 10 are possible"),
        ({"m": range(4)}, "the grid keeps more than 3 configs"),
    ]:
        with pytest.raises(DefinitionError, match=message) as caught:
            grid(**axes)
        line = inspect.currentframe().f_lineno - 1
        assert caught.value.where == Where(stage="discover", location=f"{__file__}:{line}")
        assert "fewer values" in caught.value.remedy


def test_kernel_keeps_configs_in_order_and_first_is_default():
    @kernel(configs=grid(block=[64, 32]), outputs=["c"])
    def gemm(block):
        """c = a b"""

    assert [v.slug for v in gemm.variants] == ["block-64", "block-32"]
    assert gemm.doc == "c = a b"
    assert gemm.outputs == ("c",)
    assert not gemm.takes_target


def test_kernel_keeps_what_its_decorator_says():
    @kernel(
        configs=({"block": n} for n in (64, 32)),
        targets=["cuda"],
        archs=["sm_90a", "sm_80"],
        backends=("nvrtc", "tvm_ffi"),
        outputs=["c", -2],
        flags=["-Xptxas", "-v", "-Xptxas"],
        tolerance=1,
    )
    def gemm(block, stages=2): ...

    assert gemm.name == "gemm" and gemm.doc == ""
    assert gemm.configs == ({"block": 64}, {"block": 32})
    assert gemm.variants == [
        Variant("gemm", {"block": 64}, "block-64"),
        Variant("gemm", {"block": 32}, "block-32"),
    ]
    assert (gemm.targets, gemm.archs, gemm.backends) == (("cuda",), ("sm_90a", "sm_80"), ("nvrtc", "tvm_ffi"))
    assert (gemm.outputs, gemm.flags, gemm.tolerance) == (("c", -2), ("-Xptxas", "-v", "-Xptxas"), 1.0)
    assert isinstance(gemm.tolerance, float) and gemm.frontend == "tir" and gemm.pass_configs == {}
    assert gemm.location == f"{__file__}:{gemm.function.__code__.co_firstlineno}"
    assert (gemm.forward, gemm.backward_kernel, gemm.reference_function, gemm.inputs_function) == (None,) * 4


def test_kernel_without_restrictions_leaves_them_to_the_settings():
    @kernel(outputs=None, flags=None, reads=None)
    def copy(): ...

    assert (copy.targets, copy.archs, copy.backends, copy.tolerance) == (None, None, None, None)
    assert (copy.outputs, copy.flags, copy.reads) == ((), (), ())


def test_definition_is_called_with_a_config_and_with_the_target_if_it_takes_it():
    @kernel(configs=[{"block": 1}])
    def plain(block):
        return block

    @kernel(configs=[{"block": 1}])
    def with_target(block, target):
        return block, target

    assert plain.build({"block": 5}, "llvm") == 5
    assert with_target.build({"block": 5}, "llvm") == (5, "llvm")


def test_reference_and_inputs_stay_functions():
    @kernel
    def copy(): ...

    @copy.reference
    def reference(x):
        return x

    @copy.inputs
    def inputs(rng):
        return {}

    assert copy.reference_function is reference and reference(1) == 1
    assert copy.inputs_function is inputs and inputs(None) == {}


def test_cute_dsl_is_for_cuda_and_has_no_flags_of_nvcc():
    @kernel(frontend="cutedsl")
    def copy(): ...

    where = Where("copy")
    front_end = get(copy.frontend, where)
    front_end.check(copy, where)
    assert (copy.frontend, copy.targets, front_end.targets) == ("cutedsl", None, ("cuda",))
    for arguments, message in [
        ({"frontend": "cutedsl", "targets": ["llvm"]}, "cutedsl cannot be built for the target 'llvm'"),
        ({"frontend": "cutedsl", "flags": ["-v"]}, "flags are those of nvcc"),
        ({"frontend": "cutedsl", "pass_configs": {"tirx.disable_vectorize": True}}, "do not lower a definition in cut"),
        ({"frontend": "cute"}, "frontend is 'cute'"),
        ({"frontend": ["tir"]}, r"frontend is \['tir'\]"),
    ]:
        with pytest.raises(DefinitionError, match=message) as caught:
            get((other := kernel(copy.function, **arguments)).frontend, where).check(other, where)
        assert caught.value.where.kernel == "copy" and caught.value.remedy


def test_pass_configs_are_a_copy_in_a_fixed_order():
    given = {"b": {"z": 1, "y": "text"}, "a": -(2**63) + 1, "c": True, "d": 0.5}

    @kernel(pass_configs=given, outputs=["y"])
    def scale(): ...

    @scale.backward(outputs=["grad_x"], pass_configs={"a": 2})
    def backward(): ...

    assert list(scale.pass_configs.items()) == [
        ("a", -(2**63) + 1),
        ("b", {"y": "text", "z": 1}),
        ("c", True),
        ("d", 0.5),
    ]
    assert list(scale.pass_configs["b"]) == ["y", "z"]
    given["b"]["z"] = 2
    assert scale.pass_configs["b"]["z"] == 1
    assert backward.pass_configs == {"a": 2}, "those of the forward kernel are its own"


def test_backward_kernel_is_built_as_its_forward_kernel():
    @kernel(configs=grid(block=[64, 32]), targets=["cuda"], archs=["sm_80"], backends=["nvrtc"], outputs=["y"])
    def scale(block): ...

    @scale.backward(outputs=["grad_x", -1], flags=["-v"], tolerance=0.5, reads=["a.json"])
    def _(block): ...

    assert _ is scale.backward_kernel and _.forward is scale
    assert (_.name, _.configs, _.frontend) == ("scale_backward", scale.configs, "tir")
    assert (_.targets, _.archs, _.backends) == (("cuda",), ("sm_80",), ("nvrtc",))
    assert (_.outputs, _.flags, _.tolerance, _.reads) == (("grad_x", -1), ("-v",), 0.5, ("a.json",))
    assert _.location == f"{__file__}:{_.function.__code__.co_firstlineno}" != scale.location
    with pytest.raises(DefinitionError, match=re.escape(f"has a backward kernel already, at {_.location}")):
        scale.backward(outputs=["grad_x"])(_.function)


@pytest.mark.parametrize("outputs", [[], ["y"], ["grad_"], ["grad_x", "y"]])
def test_outputs_of_a_backward_kernel_are_gradients(outputs):
    @kernel(outputs=["y"])
    def scale(): ...

    def backward(): ...

    with pytest.raises(DefinitionError, match="expected names of gradients") as caught:
        scale.backward(outputs=outputs)(backward)
    assert caught.value.where.location == f"{__file__}:{backward.__code__.co_firstlineno}"
    assert scale.backward_kernel is None


def test_backward_kernel_needs_outputs_a_function_and_a_short_name():
    @kernel
    def copy(): ...

    @kernel(outputs=["y"])
    def scale(): ...

    def backward(): ...

    with pytest.raises(DefinitionError, match="kernel 'copy' has no outputs") as caught:
        copy.backward(outputs=["grad_x"])(backward)
    assert "name the outputs of copy with @kernel(outputs=[...])" in caught.value.remedy
    with pytest.raises(DefinitionError, match=r"@scale\.backward was applied to 3, expected a function"):
        scale.backward(outputs=["grad_x"])(3)
    scale.name = "x" * (MAX_NAME - len("_backward") + 1)
    with pytest.raises(DefinitionError, match="cannot be a kernel's name"):
        scale.backward(outputs=["grad_x"])(backward)


@pytest.mark.parametrize(
    ("outputs", "arguments", "message"),
    [
        (["grad_x", "grad_w"], ["grad_y", "x", "w", "y", "grad_x", "grad_w"], None),
        ([-1], ["grad_y", "grad_x"], None),
        (["grad_x"], ["x", "grad_x"], None),
        (
            ["grad_y"],
            ["x", "grad_y"],
            "output 'grad_y' is the gradient of no input of scale\n  remedy: its inputs are x, w:",
        ),
        ([-1], ["grad_y", "x"], "output 'x' is the gradient of no input of scale"),
        (["grad_x"], ["z", "grad_x"], "argument 'z' is no argument of scale"),
        (["grad_x"], ["grad_w", "grad_x"], "argument 'grad_w' is no argument of scale"),
    ],
)
def test_arguments_of_a_backward_kernel_are_those_that_autograd_has(outputs, arguments, message):
    @kernel(outputs=["y"])
    def scale(): ...

    @scale.backward(outputs=outputs)
    def backward(): ...

    where = Where("scale_backward", location="k.py:3")
    if message is None:
        require_gradient_names(backward, arguments, ["x", "w", "y"], where)
    else:
        with pytest.raises(DefinitionError, match=re.escape(message)) as caught:
            require_gradient_names(backward, arguments, ["x", "w", "y"], where)
        assert caught.value.where == where and caught.value.remedy
    require_gradient_names(scale, ["anything"], ["x"], where)


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
        ({"configs": [{"block": math.nan}]}, "block=nan is equal to nothing"),
        ({"configs": [{"block": -math.inf}]}, "block=-inf is not finite"),
        ({"configs": [{"block": 2**64}]}, "has more than 64 bits"),
        ({"configs": [{"block": "a\0"}]}, "has NUL"),
        ({"configs": "block"}, "config 'b' is not a dict"),
        ({"configs": 3}, "expected a list of dicts"),
        ({"configs": [{"block": 1}, {"block": 1}]}, "listed twice"),
        ({"configs": [{"block": 1}], "outputs": "c"}, "expected a list of names or positions"),
        ({"configs": [{"block": 1}], "outputs": -1}, "outputs is -1, expected a list of names or positions"),
        ({"configs": [{"block": 1}], "outputs": [True]}, "outputs contains True, expected the name or the position"),
        ({"configs": [{"block": 1}], "outputs": [-1.0]}, "outputs contains -1.0, expected the name or the position"),
        ({"configs": [{"block": 1}], "outputs": [2**64]}, "outputs contains 18446744073709551616, expected"),
        ({"configs": [{"block": 1}], "outputs": ["c", "c"]}, "outputs lists an entry twice"),
        ({"configs": [{"block": 1}], "outputs": [-1, -1]}, "outputs lists an entry twice"),
        ({"configs": [{"block": 1}], "targets": ["llvm", "llvm"]}, "twice"),
        ({"configs": [{"block": 1}], "outputs": {"c": 1}}, "expected a list of names or positions"),
        ({"configs": [{"block": 1}], "outputs": ["\ud800"]}, "expected the name or the position"),
        ({"configs": [{"block": 1}], "archs": ["sm_80", "sm_80"]}, "archs lists an entry twice"),
        ({"configs": [{"block": 1}], "archs": "sm_80"}, "archs is 'sm_80', expected a list of strings"),
        ({"configs": [{"block": 1}], "backends": ["jax", "jax"]}, "backends lists an entry twice"),
        ({"configs": [{"block": 1}], "backends": 3}, "backends is 3, expected a list of strings"),
        ({"configs": [{"block": 1}], "targets": "llvm"}, "targets is 'llvm', expected a list of strings"),
        ({"configs": [{"block": 1}], "flags": [1]}, "expected strings"),
        ({"configs": [{"block": 1}], "flags": ["a", "b\0"]}, r"flags contains 'b\\x00', expected strings"),
        ({"configs": [{"block": 1}], "tolerance": -1}, "expected a number"),
        ({"configs": [{"block": 1}], "tolerance": True}, "expected a number"),
        ({"configs": [{"block": 1}], "tolerance": "1"}, "expected a number"),
        ({"configs": [{"block": 1}], "tolerance": math.inf}, "expected a number"),
        ({"configs": [{"block": 1}], "reads": "tuning.json"}, "expected a list of strings"),
        ({"configs": [{"block": 1}], "reads": [3]}, "expected strings"),
        ({"configs": [{"block": 1}], "reads": ["a", "a"]}, "twice"),
        ({"configs": [{"block": 1}], "reads": [""]}, "expected a path, absolute or relative"),
        ({"configs": [{"block": 1}], "reads": ["//"]}, "expected a path, absolute or relative"),
        ({"configs": [{"block": 1}], "reads": ["tables\\a.json"]}, "expected a path, absolute or relative"),
        ({"configs": [{"block": 1}], "pass_configs": ["a"]}, r"pass_configs is \['a'\], expected a dict"),
        ({"configs": [{"block": 1}], "pass_configs": {1: 2}}, "pass_configs has the key 1, expected a name"),
        ({"configs": [{"block": 1}], "pass_configs": {"": 2}}, "pass_configs has the key '', expected a name"),
        ({"configs": [{"block": 1}], "pass_configs": {"a": [1]}}, r"pass config 'a' is \[1\], expected a bool"),
        ({"configs": [{"block": 1}], "pass_configs": {"a": math.nan}}, "pass config 'a' is nan, expected a bool"),
        ({"configs": [{"block": 1}], "pass_configs": {"a": 2**63}}, "pass config 'a' is 9223372036854775808, expected"),
        ({"configs": [{"block": 1}], "pass_configs": {"a": "b\0"}}, r"pass config 'a' is 'b\\x00', expected"),
        ({"configs": [{"block": 1}], "pass_configs": {"a": {"b": {}}}}, "pass config 'a', field 'b', is {}, expected"),
        ({"configs": [{"block": 1}], "pass_configs": {"a": {1: 2}}}, "pass config 'a' has the key 1, expected a name"),
    ],
)
def test_bad_decorator_arguments_name_the_line_and_the_cause(arguments, message):
    with pytest.raises(DefinitionError, match=message) as caught:

        @kernel(**arguments)
        def gemm(block): ...

    assert (caught.value.where.kernel, caught.value.where.stage) == ("gemm", "discover")
    assert caught.value.where.location.startswith(__file__ + ":")


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"configs": 3}, "write configs=grid(...)"),
        ({"configs": [3]}, "write configs=grid(...)"),
        ({"configs": []}, "give at least one config"),
        ({"configs": [{"blok": 1}]}, "add a parameter 'blok' to gemm"),
        ({"configs": [{}]}, "add the key, or a default"),
        ({"configs": [{"block": 1}, {"block": 1}]}, "remove one of them"),
        ({"configs": [{"block": math.inf}]}, "write it as a string"),
        ({"outputs": 1}, 'write outputs=["y"]'),
        ({"outputs": [True]}, 'write outputs=["y"]'),
        ({"archs": "sm_80"}, "write archs=[...]"),
        ({"reads": ["/"]}, "write for example reads="),
        ({"pass_configs": 1}, "write for example pass_configs="),
    ],
)
def test_bad_decorator_arguments_say_what_to_write(arguments, remedy):
    def gemm(block): ...

    with pytest.raises(DefinitionError) as caught:
        kernel(gemm, **{"configs": [{"block": 1}], **arguments})
    assert remedy in caught.value.remedy


def test_values_at_their_limits_are_taken():
    @kernel(
        configs=[{"block": 2**64 - 1}, {"block": -1}, {"block": 0.0}, {"block": ""}], outputs=[0, 2**63], tolerance=0
    )
    def gemm(block): ...

    assert len(gemm.configs) == 4 and gemm.outputs == (0, 2**63) and gemm.tolerance == 0.0


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


@pytest.mark.parametrize("name", ["x", "gemm_2", "x" * MAX_NAME])
def test_names_that_kernels_can_have(name):
    def function(): ...

    function.__name__ = name
    assert kernel(function).name == name


@pytest.mark.parametrize(
    "name", [*sorted(RESERVED), "kw_fast", "_hidden", "a__b", "größe", "class", "2d", "x" * (MAX_NAME + 1), "a-b", ""]
)
def test_names_that_cannot_be_kernels(name):
    def function(): ...

    function.__name__ = name
    with pytest.raises(DefinitionError, match="cannot be a kernel's name"):
        kernel(function)


def test_what_the_package_and_the_build_file_use_is_reserved():
    used = {"main", "preload", "supported", "variants", "manifest", "set_num_threads", "num_threads"}
    used |= {"misses", "set_fallback"}
    assert used | {"check", "ir", "wheel", "tune", "sass", "ptx", "backends", "jax"} == RESERVED


def test_slugs_are_readable_where_they_can_be():
    assert slugs([{"block_m": 64, "dtype": "float16"}]) == ["block_m-64_dtype-float16"]
    assert slugs([{"x": "aZ09_.+-"}, {}]) == ["x-aZ09_.+-", "default"]
    longest = "q" * (MAX_SLUG - 2)
    assert slugs([{"a": longest}]) == [f"a-{longest}"]


def test_slugs_that_had_to_be_changed_have_a_hash_of_the_config():
    (cut,) = slugs([{"a": "q" * MAX_SLUG}])
    assert re.fullmatch(f"a-{'q' * (MAX_SLUG - 2)}_[0-9a-f]{{8}}", cut)
    (plain,) = slugs([{"a": "x/y"}])
    assert re.fullmatch("a-xy_[0-9a-f]{8}", plain)
    assert slugs([{"a": "x/y"}, {"a": plain.removeprefix("a-")}])[1] != plain, "no name is that of another one"


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
