"""Kernels of the nvrtc backend: the modules that are generated, and calls with cuda.core on the stand-in driver.

No device code is compiled: an image is the name of its arch, which the stand-in repeats.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright import backends
from kernelwright.core.errors import KernelwrightError
from kernelwright.library.plan import HostCheck, KernelPlan, Launch, LoweredUnit, VariantPlan
from kernelwright.runtime.cuda_core_arrays import Array
from kernelwright.runtime.cuda_core_device import LaunchError, int8, truncdiv, truncmod, uint16
from launcher_build import scalar, signature, tensor
from nvrtc_package import Process, entry_of, make_driver, make_package, plan_of

GOLDEN = Path(__file__).parent.parent / "golden"

BLOCK = [128, 1, 1]


def launch(kernel: str, params: Sequence[Mapping[str, Any]], grid: Sequence[int | str], **more: Any) -> dict[str, Any]:
    """One launch of signature.json."""
    return {"kernel": kernel, "params": list(params), "grid": list(grid), "block": BLOCK, "shared": 0, **more}


def pointers(*names: str) -> list[dict[str, Any]]:
    return [{"tensor": name} for name in names]


def number(expression: int | str, dtype: str) -> dict[str, Any]:
    return {"scalar": expression, "dtype": dtype}


def cuda_signature(
    kernel: str,
    arguments: Sequence[Mapping[str, Any]],
    launches: Sequence[Mapping[str, Any]],
    *,
    slug: str = "default",
    config: Mapping[str, Any] | None = None,
    symbols: Mapping[str, str] | None = None,
    workspaces: Sequence[int | str] = (),
    checks: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """What signature.json says of a lowering for CUDA."""
    data = signature(kernel, arguments, slug=slug, target="cuda", arch="sm_80", symbols=symbols or {"n": "int32"})
    spaces = [{"bytes": size} for size in workspaces]
    more = {"launches": list(launches), "workspaces": spaces, "host_checks": list(checks)}
    return {**data, "config": dict(config or {}), **more}


def scale() -> list[dict[str, Any]]:
    """y = x * alpha + beta + shift, with numbers of three types."""
    arguments = [tensor("x", "float16", ["n"]), tensor("y", "float16", ["n"], output=True)]
    arguments += [scalar("alpha", "float32"), scalar("beta", "float16"), scalar("shift", "int64")]
    numbers = [number("alpha", "float32"), number("beta", "float16"), number("n", "int32"), number("shift", "int64")]
    return [
        cuda_signature(
            "scale", arguments, [launch("scale_kernel", [*pointers("x", "y"), *numbers], ["(n + 127) // 128", 1, 1])]
        )
    ]


def two_steps() -> list[dict[str, Any]]:
    """Two launches with temporary memory between them; the second of them for more than 50 elements only."""
    arguments = [tensor("x", "float32", ["n"]), tensor("y", "float32", ["n"], output=True)]
    first = launch("first_kernel", [{"workspace": 0}, *pointers("x")], ["n", 1, 1])
    second = launch("second_kernel", [{"workspace": 0}, *pointers("y")], ["n", 1, 1], when="n > 50")
    check = {"passes": "n % 10 == 0", "error": "ValueError", "message": 'n has to be a multiple of "10"'}
    return [cuda_signature("two_steps", arguments, [first, second], workspaces=["n * 4"], checks=[check])]


def norm() -> list[dict[str, Any]]:
    """Four variants by size and dtype; those of float16 have a second one for data that is aligned less."""
    variants = []
    for hidden, dtype, alignment in (
        (64, "float16", 16),
        (64, "float16", None),
        (64, "float32", None),
        (128, "float32", 8),
    ):
        slug = f"hidden-{hidden}_dtype-{dtype}_alignment-{alignment or 0}"
        arguments = [tensor("x", dtype, ["tokens", hidden]), tensor("y", dtype, ["tokens", hidden], output=True)]
        if alignment is not None:
            arguments = [argument | {"alignment": alignment} for argument in arguments]
        launches = [launch(f"norm_{len(variants)}", pointers("x", "y"), ["tokens", 1, 1])]
        config = {"hidden": hidden, "dtype": dtype, "alignment": alignment or 0}
        variants.append(
            cuda_signature("norm", arguments, launches, slug=slug, config=config, symbols={"tokens": "int32"})
        )
    return variants


def special() -> list[dict[str, Any]]:
    """A launch with everything that a launch can have."""
    arguments = [tensor("x", "float32", ["n"])]
    flags = {"cluster": [2, 1, 1], "cooperative": True, "dependent": True, "shared": 65536}
    return [cuda_signature("special", arguments, [launch("special_kernel", pointers("x"), ["n * 2", 1, 1], **flags)])]


def divide() -> list[dict[str, Any]]:
    """The grid depends on a number."""
    arguments = [tensor("x", "float32", ["n"]), scalar("parts", "int32"), scalar("flag", "bool")]
    params = [*pointers("x"), number("parts", "int32"), number("flag", "bool")]
    return [cuda_signature("divide", arguments, [launch("divide_kernel", params, ["n // parts", 1, 1])])]


def fill() -> list[dict[str, Any]]:
    """A number is the size of the output."""
    arguments = [tensor("x", "float32", ["n"]), scalar("count", "int32")]
    arguments += [tensor("y", "float32", ["count"], output=True)]
    params = [*pointers("x", "y"), number("count", "int32")]
    symbols = {"n": "int32", "count": "int32"}
    return [cuda_signature("fill", arguments, [launch("fill_kernel", params, ["count", 1, 1])], symbols=symbols)]


def several() -> list[dict[str, Any]]:
    """Numbers that host code gets in another way, and outputs that are returned in another order."""
    arguments = [tensor("x", "float32", ["n"]), *(scalar(n, d) for n, d in zip("abc", SEVERAL, strict=True))]
    arguments += [tensor("z", "float32", ["n"], output=True), tensor("y", "float32", ["n + 1"], output=True)]
    params = [*pointers("x", "z", "y"), number("a", "float32"), number("b", "float32"), number("c", "uint64")]
    made = cuda_signature("several", arguments, [launch("several_kernel", params, ["n", 1, 1])])
    return [{**made, "symbols": {"n": "int32"}, "outputs": ["y", "z"]}]


SEVERAL = ("bfloat16", "float8_e4m3fn", "uint64")

KERNELS = {
    "scale": scale(),
    "several": several(),
    "two_steps": two_steps(),
    "norm": norm(),
    "special": special(),
    "divide": divide(),
    "fill": fill(),
}
ARCHS = ("sm_80", "sm_90", "sm_90a", "sm_100f", "compute_80")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvrtc")
    make_package(folder, KERNELS, ARCHS)
    return folder


@pytest.fixture
def process(folder: Path, driver: Path) -> Process:
    return Process(folder, driver)


def refused(process: Process, call: str, **standin: object) -> str:
    """Type and message of what a call raises."""
    return process.run(
        f"""
        try:
            {call}
            print("nothing was raised")
        except Exception as error:
            print(type(error).__name__, error, sep=": ")
        """,
        **standin,
    ).rstrip("\n")


# ---- what is generated


def mixed() -> KernelPlan:
    """Two variants that have all that modules can have, with names that mean something else in Python."""
    arguments = [
        tensor("call", "float32", ["min", 4]),
        tensor("out", "float32", ["min * 2", "n"], output=True),
        *(scalar(name, dtype) for name, dtype in (("lambda_", "float32"), ("bool", "bool"), ("k", "uint8"))),
        scalar("half", "float16"),
    ]
    numbers = [number("lambda_", "float32"), number("bool", "bool"), number("k", "uint8"), number("half", "float16")]
    first = launch("fill", [*pointers("out"), *numbers, number("truncdiv(min, 3)", "int64")], ["max(min, n)", 4, 1])
    flags = {"cluster": [2, 1, 1], "cooperative": True, "dependent": True, "shared": "n * 16"}
    second = launch(
        "use", [{"workspace": 0}, {"workspace": 1}], ["n * 2", 1, 1], when="min > 3 and not k == 1", **flags
    )
    options: dict[str, Any] = {"symbols": {"min": "int32", "n": "int32"}, "workspaces": ["min * 4", 64]}
    checks = [{"passes": "n % 4 == 0", "error": "ValueError", "message": 'n is "odd" \\ \n'}]
    rich = cuda_signature("mixed", arguments, [first, second], slug="rich", checks=checks, **options)
    poor = cuda_signature("mixed", arguments, [launch("use", pointers("call"), [1, 1, 1])], slug="poor", **options)
    return replace(plan_of([rich, {**poor, "workspaces": []}]), driver=12040)


def test_the_generated_module_is_the_golden_one() -> None:
    golden = GOLDEN / "nvrtc_mixed.txt"
    ((name, text),) = backends.get("nvrtc").emit(mixed()).items()
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert name == "_mixed.py"
    assert text == golden.read_text(), "run with UPDATE_GOLDEN=1 and look at the difference"
    compile(text, name, "exec")


def test_the_backend_says_what_it_makes_and_needs() -> None:
    nvrtc = backends.get("nvrtc")
    assert nvrtc.files("scale") == nvrtc.products("scale") == ("_scale.py",)
    assert (nvrtc.targets, nvrtc.library, nvrtc.images) == (("cuda",), False, True)
    assert [need.requirement.partition(">")[0] for need in nvrtc.run_needs] == ["cuda-core", "cuda-bindings"]


def test_the_stub_has_a_stream() -> None:
    entry = {**entry_of(scale()), "doc": "Use it as f(x, /) -> y."}
    text = backends.get("nvrtc").stub("scale", entry)
    assert "Use it as f(x, /) -> y." in text
    assert "x: _Tensor, y: _Tensor, alpha: _b.float, beta: _b.float, shift: _b.int, /, *, stream: _Any = None)" in text
    assert text.count("stream: _Any = None") == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preferred_cluster": (2, 1, 1)}, "preferred clusters, which cuda.core does not offer"),
        ({"params": (("bfloat16", "n"),)}, "a parameter of dtype 'bfloat16', which cannot be passed"),
    ],
)
def test_launches_that_cuda_core_cannot_make_are_errors_of_the_build(change: dict[str, Any], message: str) -> None:
    plan = plan_of(scale())
    (unit,) = plan.units
    assert unit.host_plan is not None
    changed = replace(unit.host_plan, launches=(replace(unit.host_plan.launches[0], **change),))
    odd = replace(plan, variants=(replace(plan.variants[0], units=(replace(unit, host_plan=changed),)),))
    with pytest.raises(KernelwrightError, match=re.escape(message)) as caught:
        backends.get("nvrtc").check(odd)
    assert caught.value.remedy and str(caught.value).startswith("scale/default [wrap]")


def test_a_size_that_no_argument_tells_is_an_error_of_the_build() -> None:
    data = cuda_signature("k", [tensor("x", "float32", ["n * 2"])], [launch("f", pointers("x"), ["n", 1, 1])])
    with pytest.raises(KernelwrightError, match="the size 'n' is not the size of an argument by itself"):
        backends.get("nvrtc").emit(plan_of([data]))


def test_signatures_of_an_older_build_have_no_host_code() -> None:
    data = {name: value for name, value in scale()[0].items() if name not in ("launches", "host_logic")}
    with pytest.raises(KernelwrightError, match=r"signature\.json says nothing of the host code"):
        backends.get("nvrtc").check(plan_of([data]))


def test_a_plan_is_read_from_a_signature() -> None:
    (unit,) = plan_of(two_steps()).units
    assert unit.host_plan is not None and unit.host_plan.workspaces == ("n * 4",)
    assert unit.host_plan.checks == (HostCheck("n % 10 == 0", "ValueError", 'n has to be a multiple of "10"'),)
    first = Launch("first_kernel", (("workspace", 0), ("tensor", "x")), ("n", 1, 1), (128, 1, 1))
    assert unit.host_plan.launches[0] == first and unit.host_plan.launches[1].when == "n > 50"


def changed(unit: LoweredUnit, **launch: Any) -> KernelPlan:
    """A plan with this lowering, whose first launch is another one."""
    assert unit.host_plan is not None
    launches = (replace(unit.host_plan.launches[0], **launch),) if launch else unit.host_plan.launches
    unit = replace(unit, host_plan=replace(unit.host_plan, launches=launches))
    return KernelPlan(unit.kernel, (), (VariantPlan(unit.slug, {}, (unit,)),))


@pytest.mark.parametrize("name", ['f", grid=print(1), x="', "f\n", "a b", "", "1f", "f\\", "é"])
def test_a_name_that_is_none_does_not_enter_a_module(name: str) -> None:
    (unit,) = plan_of(scale()).units
    nvrtc = backends.get("nvrtc")
    named = replace(unit, arguments=(replace(unit.arguments[0], name=name), *unit.arguments[1:]))
    for plan in (changed(unit, kernel=name), changed(named), replace(changed(unit), name=name)):
        with pytest.raises(KernelwrightError, match=r"expected an identifier") as caught:
            nvrtc.emit(plan)
        assert caught.value.remedy


TEXTS = ['"""', "\\", 'ends with "', "\\u0041\n\t", "\N{PILE OF POO}", "'", "{kernel}"]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_any_characters_enter_a_module_as_they_are(text: str) -> None:
    (unit,) = plan_of(two_steps()).units
    assert unit.host_plan is not None
    check = HostCheck("n > 0", "ValueError", text)
    arguments = (replace(unit.arguments[0], shape=(text, "n")), *unit.arguments[1:])
    plan = replace(unit, slug=text, host_plan=replace(unit.host_plan, checks=(check,)), arguments=arguments)
    (module,) = backends.get("nvrtc").emit(changed(plan)).values()
    tree = ast.parse(module)
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert constants.count(text) == 4  # the check's message, and the slug in three tables
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    said = ast.get_docstring(function, clean=False)
    assert said is not None and said.startswith(f"Variant {text.splitlines()[0]}")


class Calls:
    """Stands for the call that a generated function is given; notes what is launched with which parameters."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, tuple[Any, ...]]] = []

    def workspace(self, size: int) -> str:
        return f"{size} bytes"

    def launch(self, kernel: str, parameters: tuple[Any, ...], **_: Any) -> None:
        self.launches.append((kernel, parameters))


def launched(data: dict[str, Any], *arguments: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """What the generated function of a lowering launches when it is called with these arguments."""
    (module,) = backends.get("nvrtc").emit(plan_of([data])).values()
    tree = ast.parse(module)
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]
    names: dict[str, Any] = {"Array": Array, "Call": Calls, "int32": int}
    exec(compile(tree, "generated", "exec"), names)
    calls = Calls()
    names["VARIANTS"][data["slug"]](calls, *arguments)
    return calls.launches


def test_a_condition_is_that_of_one_launch_and_not_of_those_behind_it() -> None:
    steps = [launch("first", [], [1, 1, 1], when="n > 50"), launch("second", [], [1, 1, 1])]
    data = cuda_signature("k", [tensor("x", "float32", ["n"])], steps)
    for size, names in ((51, ["first", "second"]), (50, ["second"])):
        array = Array(256, "float32", (size,), None, (2, 0))
        assert [name for name, _ in launched(data, array)] == names


@pytest.mark.parametrize("names", [("call", "call_"), ("call_", "call"), ("workspace_0", "n"), ("min_", "min")])
def test_arguments_and_sizes_keep_apart_whatever_their_names_are(names: tuple[str, str]) -> None:
    numbers = [number(name, "int32") for name in names]
    step = launch("f", [{"workspace": 0}, {"tensor": "x"}, *numbers, number("size", "int32")], ["size", 1, 1])
    arguments = [tensor("x", "float32", ["size"]), *(scalar(name, "int32") for name in names)]
    data = cuda_signature("k", arguments, [step], symbols={"size": "int32"}, workspaces=[64])
    array = Array(256, "float32", (7,), None, (2, 0))
    assert launched(data, array, 11, 22) == [("f", ("64 bytes", 256, 11, 22, 7))]


# ---- helpers of generated modules


@pytest.mark.parametrize(("a", "b"), [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3), (0, 5), (2**62 + 1, -3)])
def test_truncated_division_is_that_of_c(a: int, b: int) -> None:
    assert truncdiv(a, b) == (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    assert truncdiv(a, b) * b + truncmod(a, b) == a and (truncmod(a, b) == 0 or (truncmod(a, b) < 0) == (a < 0))


def test_numbers_that_do_not_fit_are_refused() -> None:
    assert (int8(-128).value, uint16(65535).value) == (-128, 65535)
    for convert, value in ((int8, 128), (int8, -129), (uint16, -1), (uint16, 65536)):
        with pytest.raises(LaunchError, match=f"passed {value}, which does not fit"):
            convert(value)


# ---- arrays as they are read


@pytest.mark.parametrize(
    ("shape", "strides", "compact"),
    [
        ((3, 4), None, True),
        ((3, 4), (4, 1), True),
        ((3, 4), (1, 3), False),
        ((4, 4), (1, 4), False),
        ((3, 4), (5, 1), False),
        ((3, 4), (4, 2), False),
        ((3, 4), (-4, 1), False),
        ((2, 3, 4), (12, 4, 1), True),
        ((2, 3, 4), (4, 8, 1), False),
        ((3, 1), (1, 7), True),
        ((1, 4), (99, 1), True),
        ((3, 0), (5, 2), True),
        ((4,), (0,), False),
        ((), (), True),
    ],
)
def test_an_array_is_compact_if_its_elements_follow_one_another(shape: Any, strides: Any, compact: bool) -> None:
    assert Array(0x10000, "float32", shape, strides, (2, 0)).is_compact is compact


# ---- launches


def test_a_launch_passes_dims_stream_and_typed_parameters(process: Process) -> None:
    process.run(
        """
        x, y = on_cuda((1000,), "float16"), on_cuda((1000,), "float16", data=0x20000)
        assert made.kernel("scale")(x, y, 1.5, -2, 2**40, stream=0x5150) is None
        """,
        parameters="ppfhil",
    )
    (launched,) = process.calls("launch")
    head, parameters = launched.split(" parameters ")
    assert head == "scale_kernel sm_80 grid 8 1 1 block 128 1 1 shared 0 stream 0x5150 on cuda:0"
    assert parameters.split() == ["0x10000", "0x20000", "1.5", "0xc000", "1000", str(2**40)]  # -2 as float16


def test_an_empty_grid_is_not_launched(process: Process) -> None:
    process.run('x = on_cuda((0,), "float16", data=0); made.kernel("scale")(x, x, 1, 1, 1)')
    assert process.calls("launch") == process.calls("load") == []


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        ("0x77", "0x77"),
        ("Protocol()", "0x88"),
        ("OfTorch()", "0x99"),
        ("OfCupy()", "0xaa"),
        ("0", "0x1"),
        ("2", "0x2"),
        ("None", "0x1"),
    ],
)
def test_streams_have_many_forms(process: Process, stream: str, handle: str) -> None:
    process.run(
        f"""
        class Protocol:
            def __cuda_stream__(self):
                return 0, 0x88
        class OfTorch:
            cuda_stream = 0x99
        class OfCupy:
            ptr = 0xaa
        made.kernel("special")(on_cuda((4,)), stream={stream})
        """,
        capability=90,
    )
    assert f"stream {handle} on cuda:0" in process.calls("launch")[0]


@pytest.mark.parametrize(
    ("stream", "what"), [("'fast'", "a str"), ("True", "the bool True"), ("-1", "the int -1"), ("1.5", "the float 1.5")]
)
def test_what_is_no_stream_is_refused(process: Process, stream: str, what: str) -> None:
    text = refused(process, f'made.kernel("special")(on_cuda((4,)), stream={stream})')
    assert text.startswith(f"TypeError: kernel 'special': stream is {what}, expected a CUDA stream\n  remedy: pass an")


def test_clusters_shared_memory_and_flags_are_passed_on(process: Process) -> None:
    process.run(
        'k = made.kernel("special")\nfor device in (0, 0, 1):\n    k(on_cuda((4,), device=device))', capability=90
    )
    assert process.calls("set") == [f"special_kernel attribute 8 to 65536 on cuda:{device}" for device in (0, 1)]
    first, _, third = process.calls("launch")
    assert first.startswith("special_kernel sm_90a grid 8 1 1 block 128 1 1 shared 65536")
    assert set(re.findall(r"attribute (\d+: \d+)", first)) == {"4: 2", "2: 1", "6: 1"}
    assert "on cuda:1" in third


def test_more_shared_memory_than_the_device_has_is_refused(process: Process) -> None:
    text = refused(process, 'made.kernel("special")(on_cuda((4,)))', capability=90, shared=66000, static=1000)
    assert "65536 bytes of dynamic shared memory, cuda:0 (sm_90): with 1000 bytes of static shared memory" in text
    assert text.endswith(
        "more than the 66000 bytes of a block on this device\n  remedy: call a variant with smaller tiles"
    )


def test_a_grid_that_clusters_do_not_divide_is_refused(process: Process, tmp_path: Path, driver: Path) -> None:
    (data,) = special()
    data = {**data, "launches": [{**data["launches"][0], "grid": ["n", 1, 1]}]}
    make_package(tmp_path, {"special": [data]}, ARCHS)
    text = refused(Process(tmp_path, driver), 'made.kernel("special")(on_cuda((5,)))', capability=90)
    assert "a grid of (5, 1, 1), no multiple of its clusters of (2, 1, 1)" in text


def test_several_launches_share_temporary_memory(process: Process) -> None:
    process.run(
        'k, x = made.kernel("two_steps"), on_cuda((100,))\nk(x, x, stream=7)\nk(on_cuda((50,)), on_cuda((50,)))'
    )
    log = [" ".join(line.split()[:2]) for line in process.log if line.startswith(("launch", "allocate", "free"))]
    assert log == [
        "allocate 400",
        "launch first_kernel",
        "launch second_kernel",
        "free in",
        "allocate 200",
        "launch first_kernel",
        "free in",
    ]
    assert process.calls("allocate")[0] == "400 in stream 0x7 from pool 1 of cuda:0"
    assert process.calls("pool") == ["1 of cuda:0", f"1 keeps {2**64 - 1:#x}"]


def test_temporary_memory_is_freed_when_a_launch_fails(process: Process) -> None:
    text = refused(process, 'x = on_cuda((100,)); made.kernel("two_steps")(x, x)', fail="cuLaunchKernelEx=700")
    assert text.startswith(
        "RuntimeError: kernel 'two_steps': launching device function first_kernel, grid (100, 1, 1), "
        "block (128, 1, 1), 0 bytes of dynamic shared memory, cuda:0 (sm_80) failed with CUDA_ERROR_ILLEGAL_ADDRESS"
    )
    assert len(process.calls("allocate")) == len(process.calls("free")) == 1


def test_a_device_without_memory_pools_is_served(process: Process) -> None:
    process.run('x = on_cuda((100,)); made.kernel("two_steps")(x, x)', pools=0)
    assert process.calls("allocate") == ["400"] and process.calls("free") == [""]


def test_a_check_of_the_definition_is_made(process: Process) -> None:
    text = refused(process, 'x = on_cuda((101,)); made.kernel("two_steps")(x, x)')
    assert text == "ValueError: kernel 'two_steps': n has to be a multiple of \"10\""
    assert process.calls("launch") == []


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("0", "a launch cannot be computed from these sizes and numbers: it divides by 0"),
        ("-5", "device function divide_kernel would be launched with a dimension of -20"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(process: Process, parts: str, message: str) -> None:
    text = refused(process, f'made.kernel("divide")(on_cuda((100,)), {parts}, True)')
    assert text == f"ValueError: kernel 'divide': {message}"


# ---- variants


def test_the_first_variant_that_fits_is_launched(process: Process) -> None:
    process.run(
        """
        norm = made.kernel("norm")
        for shape, dtype, data in (
            ((3, 64), "float16", 0x10000), ((3, 64), "float16", 0x10002), ((3, 64), "float32", 0x10004),
            ((3, 128), "float32", 0x10008),
        ):
            x = on_cuda(shape, dtype, data=data)
            norm(x, x)
        assert norm.variants[1] == {"hidden": 64, "dtype": "float16", "alignment": 0}
        chosen = norm.variant(hidden=64, alignment=0)
        assert repr(chosen) == "<kernel norm, variant hidden-64_dtype-float16_alignment-0>"
        x = on_cuda((3, 64), "float16")
        chosen(x, x)
        """
    )
    assert [line.split()[0] for line in process.calls("launch")] == ["norm_0", "norm_1", "norm_2", "norm_3", "norm_1"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("data=0x10001", "argument 'x' has data that is not aligned to 2 bytes"),
        ("data=0", "x data pointer is NULL on argument #0"),
        ("strides=(128, 1)", "Mismatched x.strides on argument #0"),
        ("device=1", "Mismatched y.device_id on argument #1"),
        ("data=0x10002", ""),
    ],
)
def test_a_call_like_an_earlier_one_is_compared_as_well(process: Process, second: str, message: str) -> None:
    text = refused(
        process,
        f"""
            x, norm = on_cuda((3, 64), "float16"), made.kernel("norm").variant(alignment=0)
            norm(x, x)
            norm(x, x)
            norm(on_cuda((3, 64), "float16", {second}), x)
        """.strip(),
    )
    assert message in text if message else text == "nothing was raised"
    assert len(process.calls("launch")) == (2 if message else 3)


READ_ONLY = """
class View:
    def __init__(self, read_only, typestr="<f2"):
        self.__cuda_array_interface__ = {
            "shape": (3, 64), "typestr": typestr, "data": (0x10000, read_only), "version": 3,
        }

class Exported(FakeTensor):
    # in the form of DLPack that has flags, of which the first forbids writing
    def __init__(self, read_only, typestr):
        super().__init__((3, 64), CODES["float16"], device=(2, 0))
        head = struct.pack("<IIQQQ", 1, 0, 0, 0, int(read_only))
        tensor = ctypes.string_at(ctypes.addressof(self._managed), ctypes.sizeof(self._managed) - 16)
        self.versioned = ctypes.create_string_buffer(head + tensor)

    def __dlpack__(self, **_):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.versioned), b"dltensor_versioned", None)
"""


@pytest.mark.parametrize("kind", ["View", "Exported"])
def test_memory_that_may_not_be_written_is_no_output_of_a_call_like_an_earlier_one(process: Process, kind: str) -> None:
    code = f"""
import ctypes, struct
{READ_ONLY}
norm = made.kernel("norm").variant(alignment=0)
free, closed = ({kind}(read_only, "<f2") for read_only in (False, True))
norm(free, free)
for _ in range(2):
    norm(closed, free)
    try:
        norm(free, closed)
    except ValueError as error:
        print(error)
"""
    lines = process.run(code).splitlines()
    expected = "kernel 'norm': argument 'y' is a read-only array, and the kernel writes it"
    assert [line for line in lines if "remedy" not in line] == [expected] * 2
    assert len(process.calls("launch")) == 3


def test_an_array_begins_where_its_offset_says(process: Process) -> None:
    process.run(
        """
        x, y = (on_cuda((3, 64), data=0x10000) for _ in range(2))
        x._managed.byte_offset, y._managed.byte_offset = 0x400, 0
        made.kernel("norm")(x, y)
        y._managed.byte_offset = 0x404
        made.kernel("norm")(x, y)
        """,
        parameters="pp",
    )
    assert [line.split(" parameters ")[1] for line in process.calls("launch")] == ["0x10400 0x10000", "0x10400 0x10404"]


def test_a_choice_for_data_that_is_aligned_less_is_not_remembered(process: Process) -> None:
    process.run(
        """
        x, odd = on_cuda((3, 64), "float16"), on_cuda((3, 64), "float16", data=0x10002)
        for array in (odd, x, odd, x):
            made.kernel("norm")(array, array)
        norm = made.kernel("norm")
        for array in (odd, x, odd, x):
            norm(array, array)
        """
    )
    assert [line.split()[0] for line in process.calls("launch")] == ["norm_1", "norm_0"] * 4


def test_data_that_no_variant_takes_as_it_is_aligned_is_refused(process: Process) -> None:
    text = refused(process, 'x = on_cuda((3, 128), data=0x10004); made.kernel("norm")(x, x)')
    assert text == (
        "ValueError: kernel 'norm': argument 'x' has data that is not aligned to 8 bytes\n  remedy: pass a copy of it"
    )


@pytest.mark.parametrize(("dtype", "codes"), [("int4x8", (0, 4, 8)), ("float4_e2m1fnx2", (17, 4, 2))])
def test_packed_data_is_aligned_to_its_elements(
    tmp_path: Path, driver: Path, dtype: str, codes: tuple[int, int, int]
) -> None:
    data = cuda_signature("packed", [tensor("x", dtype, ["n"])], [launch("f", pointers("x"), ["n", 1, 1])])
    make_package(tmp_path, {"packed": [data]})
    process, (_, bits, lanes) = Process(tmp_path, driver), codes
    start = 0x10000 + bits * lanes // 8
    process.run(f'made.kernel("packed")(FakeTensor((3,), {codes}, device=(2, 0), data={start}))')
    assert len(process.calls("launch")) == 1


def test_the_alignment_is_that_of_the_code_for_cuda(tmp_path: Path, driver: Path) -> None:
    """The arguments in the manifest are those of a variant's first lowering, which may be for the CPU."""
    (data,) = special()
    data["arguments"] = [argument | {"alignment": 16} for argument in data["arguments"]]
    make_package(tmp_path, {"special": [data]})
    entry = tmp_path / "made/special.json"
    entry.write_text(entry.read_text().replace(', "alignment": 16', ""))
    assert "alignment" not in entry.read_text()
    text = refused(Process(tmp_path, driver), 'made.kernel("special")(on_cuda((4,), data=0x10004))')
    assert "argument 'x' has data that is not aligned to 16 bytes" in text


def test_kernel_objects_can_be_asked_and_not_pickled(process: Process) -> None:
    process.run(
        """
        import copy, pickle
        norm = made.kernel("norm")
        assert repr(norm) == "<kernel norm with 4 variants>" and norm.devices == {"cuda"} and norm.name == "norm"
        assert norm.__doc__ == "A kernel." and copy.copy(norm) is norm and copy.deepcopy(norm) is norm
        for call, kind, text in (
            (lambda: pickle.dumps(norm), TypeError, "cannot be pickled"),
            (lambda: norm.variant(hidden=7), KeyError, "norm has no variant with hidden=7; built are: hidden=64"),
        ):
            try:
                call()
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
        """
    )
    assert process.log == [], "nothing is touched before it is needed"


# ---- wrong calls


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "x",
            "TypeError: kernel 'scale': takes 5 arguments (x, [y], alpha, beta, shift), or 4 with",
        ),
        (
            "x, x, 1, 1, 'a'",
            "TypeError: kernel 'scale': no built variant accepts these arguments\n  passed: x = float16[5]",
        ),
        ("None, x, 1, 1, 1", "TypeError: kernel 'scale': argument 'x' is None, expected a tensor: an array of NumPy"),
        ("x, 3, 1, 1, 1", "TypeError: kernel 'scale': argument 'y' is the int 3, expected a tensor"),
        ("x, [x], 1, 1, 1", "TypeError: kernel 'scale': argument 'y' is a Python object that is not a tensor"),
        ("on_cuda((5,)), x, 1, 1, 1", "TypeError: kernel 'scale': no built variant accepts these arguments\n"),
        ("on_cuda((5, 1), 'float16'), x, 1, 1, 1", "TypeError: kernel 'scale': no built variant accepts these"),
        (
            "x, on_cuda((6,), 'float16'), 1, 1, 1",
            "ValueError: kernel 'scale': Mismatched y.shape[0] on argument #1 when",
        ),
        (
            "x, x, 1, 1, 2**63",
            "ValueError: kernel 'scale': argument 'shift' is 9223372036854775808, which does not fit",
        ),
        ("x, x, 10**400, 1, 1", "ValueError: kernel 'scale': argument 'alpha' is an int that is too large for float32"),
        ("on_cuda((2**31 - 1,), 'float16'), x, 1, 1, 1", "ValueError: kernel 'scale': argument 'x' has a dimension of"),
        (
            "on_cuda((5,), 'float16', strides=(2,)), x, 1, 1, 1",
            "ValueError: kernel 'scale': Mismatched x.strides on arg",
        ),
        (
            "on_cuda((5,), 'float16', data=0), x, 1, 1, 1",
            "ValueError: kernel 'scale': x data pointer is NULL on argumen",
        ),
        (
            "on_cuda((5,), 'float16', data=3), x, 1, 1, 1",
            "ValueError: kernel 'scale': argument 'x' has data that is not",
        ),
        (
            "x, on_cuda((5,), 'float16', 1), 1, 1, 1",
            "ValueError: kernel 'scale': Mismatched y.device_id on argument #1",
        ),
        (
            "on_cuda((5,), 'float16', 7), x, 1, 1, 1",
            "ValueError: kernel 'scale': Mismatched y.device_id on argument #1",
        ),
        (
            "numpy.zeros(5, 'float16'), x, 1, 1, 1",
            "ValueError: kernel 'scale': argument 'x' is on cpu, and it was built",
        ),
        (
            "x, torch.zeros(5), 1, 1, 1",
            "ValueError: kernel 'scale': argument 'y' is on cpu, and it was built for cuda (",
        ),
        (
            "torch.zeros(5, device='meta'), x, 1, 1, 1",
            "ValueError: kernel 'scale': argument 'x' is on device 0 of DLPack",
        ),
        (
            "Broken(), x, 1, 1, 1",
            "TypeError: kernel 'scale': argument 'x' is a __main__.Broken that cannot be passed: no",
        ),
        (
            "x, Immutable((5,), (2, 16, 1), device=(2, 0)), 1, 1, 1",
            "ValueError: kernel 'scale': argument 'y' is an arra",
        ),
        (
            "x, ReadOnly(), 1, 1, 1",
            "ValueError: kernel 'scale': argument 'y' is a read-only array, and the kernel writes",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_their_name(process: Process, arguments: str, message: str) -> None:
    if "torch" in arguments:
        pytest.importorskip("torch")
    code = f"""
    import sys
    import numpy
    {"import torch" if "torch" in arguments else ""}
    class Broken:
        def __dlpack_device__(self):
            return 2, 0
        def __dlpack__(self, **options):
            raise BufferError("no\\nbuffer")
    class Immutable(FakeTensor):
        pass
    Immutable.__module__ = "jaxlib._jax"
    class ReadOnly:
        __cuda_array_interface__ = {{"shape": (5,), "typestr": "<f2", "data": (0x10000, True), "version": 3}}
    x = on_cuda((5,), "float16")
    try:
        made.kernel("scale")({arguments})
    except Exception as error:
        print(type(error).__name__, error, sep=": ")
    """
    text = process.run(code)
    assert text.startswith(message), text
    assert process.calls("launch") == []


NUMBERS = """
import numpy

class Counting:
    # a number that is another one each time it is asked for
    def __init__(self):
        self.asked = 0

    def __index__(self):
        self.asked += 1
        return 4 if self.asked == 1 else 1000000

def refusal(*arguments):
    try:
        made.kernel("fill")(*arguments)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"

x, fill = on_cuda((4,)), made.kernel("fill")
"""


@pytest.mark.parametrize("kind", ["numpy.int64", "numpy.array", "int"])
def test_integers_of_any_library_are_part_of_what_a_call_is_remembered_by(process: Process, kind: str) -> None:
    printed = process.run(
        NUMBERS
        + f"""
for count in (4, 1000000, 4):
    print(fill(x, {kind}(count)).shape)
y = on_cuda((4,))
fill(x, {kind}(4), y)
print(refusal(x, {kind}(1000000), y))
"""
    )
    shapes, message = printed.splitlines()[:3], printed.splitlines()[3]
    assert shapes == ["(4,)", "(1000000,)", "(4,)"]
    assert message == "ValueError: kernel 'fill': Mismatched y.shape[0] on argument #2 when calling:"
    assert len(process.calls("launch")) == 4


def test_only_so_many_kinds_of_calls_are_remembered(process: Process) -> None:
    process.run(
        """
        fill, x = made.kernel("fill"), on_cuda((4,))
        fill._shared.KEPT = 3
        for count in range(1, 9):
            fill(x, count, on_cuda((count,)))
            assert 1 <= len(fill._shared.matches) <= 3
        """
    )
    assert len(process.calls("launch")) == 8


def test_calls_that_no_variant_fits_are_noted_and_may_be_answered(process: Process) -> None:
    printed = process.run(
        """
        from types import SimpleNamespace
        from kernelwright.runtime.misses import Misses
        misses, scale, x = Misses(), made.kernel("scale"), on_cuda((5,), "float16")
        scale._loader = SimpleNamespace(missed_calls=lambda: misses)
        mistaken = [(x, x, 1, 1, 2**63), (x, on_cuda((6,), "float16"), 1, 1, 1)]
        wrong = [(x, x, 1, 1, 2.5), (on_cuda((5,)), 1, 1, 1), *mistaken]
        for arguments in wrong:
            try:
                scale(*arguments)
            except (TypeError, ValueError):
                continue
            raise AssertionError(arguments)
        for call in misses.calls():
            print(call["count"], [one.get("value", one.get("shape")) for one in call["arguments"]])
        misses._definitions, misses._compiled = ("scale.py",), {"scale": lambda *arguments: len(arguments)}
        print(scale(on_cuda((5,)), 1, 1, 1))
        """
    )
    assert printed == "1 [None, None, 1, 1, 2.5]\n1 [None, 1, 1, 1]\n4\n", "its arrays tell dtypes to DLPack only"


def test_numbers_are_rounded_to_their_dtypes_and_several_outputs_come_in_the_order_of_the_definition(
    process: Process,
) -> None:
    code = """
        import numpy
        for numbers in ((1.3, 1.3, 2**64 - 1), (numpy.bool_(True), 500, numpy.uint64(2**63))):
            made_now = made.kernel("several")(on_cuda((5,)), *numbers)
            print(type(made_now).__name__, [list(one.shape) for one in made_now])
    """
    assert process.run(code, parameters="pppffl") == "tuple [[6], [5]]\n" * 2
    launched = [line.split()[-3:] for line in process.calls("launch")]
    assert launched == [["1.29688", "1.25", "-1"], ["1", "nan", str(-(2**63))]]


def test_a_number_is_asked_for_once(process: Process) -> None:
    printed = process.run(NUMBERS + "number = Counting()\nprint(fill(x, number).shape, number.asked)", parameters="ppi")
    assert printed == "(4,) 1\n"
    assert process.calls("launch")[0].endswith(" 4")


@pytest.mark.parametrize(
    ("count", "message"),
    [
        ("numpy.int64(2**31)", "ValueError: kernel 'fill': argument 'count' is 2147483648, which does not fit int32"),
        ("numpy.uint64(2**64 - 1)", f"ValueError: kernel 'fill': argument 'count' is {2**64 - 1}, which does not fit"),
        ("2**70", f"ValueError: kernel 'fill': argument 'count' is {2**70}, which does not fit int32"),
        ("numpy.int32(-3)", "ValueError: kernel 'fill': output 'y' would have the shape [-3], expected sizes from 0"),
        ("numpy.float32(4)", "TypeError: kernel 'fill': no built variant accepts these arguments"),
        ("numpy.array([4])", "TypeError: kernel 'fill': no built variant accepts these arguments"),
        ("numpy.array(4.5)", "TypeError: kernel 'fill': no built variant accepts these arguments"),
    ],
)
def test_integers_are_checked_whatever_library_they_are_of(process: Process, count: str, message: str) -> None:
    assert process.run(NUMBERS + f"fill(x, 4)\nprint(refusal(x, {count}))").startswith(message)
    assert len(process.calls("launch")) == 1


def test_complex_numbers_are_no_numbers_of_a_kernel(process: Process) -> None:
    for value in ("numpy.complex64(1 + 2j)", "1j"):
        text = refused(
            process, f'import numpy; x = on_cuda((5,), "float16"); made.kernel("scale")(x, x, {value}, 1, 1)'
        )
        assert text.startswith("TypeError: kernel 'scale': no built variant accepts these arguments"), text


@pytest.mark.parametrize("value", ["1.5", "numpy.float32(1.5)", "numpy.array(1.5)", "True", "numpy.int8(1)"])
def test_numbers_may_be_of_numpy(process: Process, value: str) -> None:
    process.run(
        f'import numpy\nx = on_cuda((5,), "float16")\nmade.kernel("scale")(x, x, {value}, 2.5, numpy.int64(3))',
        parameters="ppfhil",
    )
    expected = "1.5" if "1.5" in value else "1"
    assert process.calls("launch")[0].split(" parameters ")[1] == f"0x10000 0x10000 {expected} 0x4100 5 3"


@pytest.mark.parametrize("value", ["True", "numpy.bool_(True)", "numpy.array(True)", "1", "numpy.uint8(3)"])
def test_flags_may_be_of_numpy(process: Process, value: str) -> None:
    process.run(f'import numpy\nmade.kernel("divide")(on_cuda((5,)), 1, {value})', parameters="pib")
    assert process.calls("launch")[0].endswith(" 1")


# ---- arrays


def test_arrays_may_have_the_array_interface_only(process: Process) -> None:
    process.run(
        """
        class Array:
            def __init__(self, shape, strides=None, stream=None):
                self.__cuda_array_interface__ = {
                    "shape": shape, "typestr": "<f4", "data": (0x40000, False), "strides": strides, "stream": stream,
                    "version": 3,
                }
        made.kernel("two_steps")(Array((50,), (4,), 0x99), Array((50,)))
        """,
        parameters="pp",
    )
    assert "0x40000" in process.calls("launch")[0]
    assert process.calls("record") == ["in stream 0x99"] and process.calls("wait") == ["in stream 0x1"]


def test_outputs_that_are_left_out_are_device_memory(process: Process) -> None:
    printed = process.run(
        """
        y = made.kernel("scale")(on_cuda((1000,), "float16", device=1), 1, 1, 1)
        print(y.shape, y.dtype, y.__dlpack_device__()[1], y)
        made.kernel("norm")(y2 := on_cuda((2, 64)), y2)
        made.kernel("scale")(on_cuda((1000,), "float16"), 1, 1, 1)
        """
    )
    assert printed == "(1000,) float16 1 <output of kernel scale: float16[1000] on cuda:1>\n"
    pools = ("pool 1 of cuda:1", "pool 2 of cuda:0")
    assert process.calls("allocate") == [f"2000 in stream 0 from {pool}" for pool in pools]
    assert "on cuda:1" in process.calls("launch")[0]


# ---- memory of our own

OUTPUTS = """
import gc, os
from cuda.bindings import driver
scale = made.kernel("scale")

def output(size=1000, **more):
    return scale(on_cuda((size,), "float16"), 1, 1, 1, **more)
"""


def test_the_end_of_an_output_makes_no_call_of_the_driver(process: Process) -> None:
    process.run(OUTPUTS + "y = output(stream=0x77)\nos.environ['STANDIN_DESTROYED'] = '0x77'\ndel y\ngc.collect()")
    assert process.log[-1].startswith("launch scale_kernel")


def test_memory_of_outputs_that_have_ended_is_used_when_there_is_no_other(process: Process) -> None:
    process.run(OUTPUTS + "for stream in (0x77, 0x78, 0x79, 0x7a):\n    output(stream=stream)", memory=5000)
    kinds = [" ".join(line.split()[:4]) for line in process.log if line.startswith(("allocate", "wait", "free"))]
    assert kinds == [
        "allocate 2000 in stream",
        "allocate 2000 in stream",
        "wait for cuda:0",
        "free in stream 0x79",
        "free in stream 0x79",
        "allocate 2000 in stream",
        "allocate 2000 in stream",
    ]


def test_much_memory_does_not_wait_to_be_used(process: Process) -> None:
    process.run(OUTPUTS + "for _ in range(4):\n    output(75_000_000)")  # 150 MB
    kinds = [line.split()[0] for line in process.log if line.startswith(("allocate", "wait", "free"))]
    assert kinds == ["allocate", "allocate", "wait", "free", "free", "allocate", "allocate"]


def test_memory_stays_where_it_is_while_the_device_cannot_be_waited_for(process: Process) -> None:
    printed = process.run(
        OUTPUTS
        + """
output(), output()
os.environ["STANDIN_FAIL"] = "cuCtxSynchronize=719"
try:
    output()
except RuntimeError as error:
    print(error)
os.environ["STANDIN_FAIL"] = ""
output()
""",
        memory=5000,
    )
    assert printed.startswith("kernel 'scale': allocating 2000 bytes for an output failed with CUDA_ERROR_OUT_OF_MEMO")
    assert len(process.calls("allocate")) == 3 and len(process.calls("free")) == 2


def test_a_wait_that_fails_is_made_again_after_as_much_memory_again(process: Process) -> None:
    """Each one makes the capture of another thread fail."""
    process.run(
        OUTPUTS
        + """
output(150_000_000)  # 300 MB
os.environ["STANDIN_FAIL"] = "cuCtxSynchronize=900"
for _ in range(9):
    output()
os.environ["STANDIN_FAIL"] = ""
output(150_000_000)
output()
"""
    )
    kinds = [line.split()[0] for line in process.log if line.startswith(("allocate", "wait", "free"))]
    assert kinds == [*["allocate"] * 11, "wait", *["free"] * 11, "allocate"]


def test_a_pool_that_cannot_be_set_up_is_not_left_behind(process: Process) -> None:
    text = refused(process, 'made.kernel("fill")(on_cuda((4,)), 10)', fail="cuMemPoolSetAttribute=1")
    assert "setting up a memory pool on cuda:0 failed" in text
    assert process.log[-1] == "destroy pool 1"


def test_an_output_of_a_launch_that_failed_is_freed(process: Process) -> None:
    printed = process.run(
        OUTPUTS
        + """
os.environ["STANDIN_FAIL"] = "cuLaunchKernelEx=700"
try:
    output()
except RuntimeError as error:
    print(error)
os.environ["STANDIN_FAIL"] = ""
output()
""",
        memory=2000,
    )
    assert "failed with CUDA_ERROR_ILLEGAL_ADDRESS" in printed
    assert [line.split()[0] for line in process.log if line.startswith(("allocate", "free"))] == [
        "allocate",
        "free",
        "allocate",
    ]


def test_kernels_of_a_package_share_a_pool_for_each_device(process: Process) -> None:
    process.run(
        """
        for device in (0, 1, 0):
            x = on_cuda((100,), device=device)
            made.kernel("two_steps")(x, x)
            made.kernel("two_steps")(x)
        made.kernel("fill")(on_cuda((4,)), 10)
        """
    )
    assert [line for line in process.calls("pool") if "of" in line] == ["1 of cuda:0", "2 of cuda:1"]
    assert {line.split(" from ")[1] for line in process.calls("allocate")} == {"pool 1 of cuda:0", "pool 2 of cuda:1"}


def test_an_output_in_a_captured_stream_is_refused(process: Process) -> None:
    text = refused(process, 'made.kernel("fill")(on_cuda((4,)), 10, stream=0x77)', capture="0x77")
    assert text == (
        "RuntimeError: kernel 'fill': its output would be part of the graph that is captured on cuda:0, and gone once "
        "that has run\n  remedy: pass the outputs"
    )
    assert process.calls("launch") == process.calls("allocate") == []


def test_temporary_memory_in_a_captured_stream_is_the_graphs(process: Process) -> None:
    process.run('x = on_cuda((100,)); made.kernel("two_steps")(x, x, stream=0x77)', capture="0x77")
    assert [line.split()[0] for line in process.log if line.startswith(("allocate", "launch", "free"))] == [
        "allocate",
        "launch",
        "launch",
        "free",
    ]
    text = refused(process, 'x = on_cuda((9,)); made.kernel("two_steps")(x, x, stream=0x77)', capture="0x77", pools=0)
    assert "it needs temporary memory" not in text  # the definition's own check comes first
    text = refused(process, 'x = on_cuda((10,)); made.kernel("two_steps")(x, x, stream=0x77)', capture="0x77", pools=0)
    assert "it needs temporary memory, which a graph cannot hold on cuda:0: the device has no memory pools" in text


# ---- order of streams

TAKEN = """
scale = made.kernel("scale")
y = scale(on_cuda((1000,), "float16"), 1, 1, 1, stream={launched})
try:
    y.__dlpack__(stream={stream})
except (BufferError, RuntimeError) as error:
    print(type(error).__name__, error, sep=": ")
"""


@pytest.mark.parametrize(
    ("launched", "stream", "calls"),
    [
        ("0x77", "0x99", ["record in stream 0x77", "wait in stream 0x99"]),
        ("0x77", "1", ["record in stream 0x77", "wait in stream 0x1"]),
        ("None", "0x99", ["record in stream 0x1", "wait in stream 0x99"]),
        ("None", "2", ["record in stream 0x1", "wait in stream 0x2"]),
        ("2", "1", ["record in stream 0x2", "wait in stream 0x1"]),
        ("0x77", "0x77", []),
        ("None", "1", []),
        ("2", "2", []),
        ("0x77", "-1", []),
        ("0x77", "None", ["synchronize stream 0x77"]),
        ("None", "None", ["synchronize stream 0x1"]),
    ],
)
def test_who_takes_an_output_is_behind_its_kernel(
    process: Process, launched: str, stream: str, calls: list[str]
) -> None:
    assert process.run(TAKEN.format(launched=launched, stream=stream)) == ""
    after = process.log[[line.startswith("launch") for line in process.log].index(True) + 1 :]
    assert after == calls


@pytest.mark.parametrize("stream", ["0", "True", "'fast'", "-2", "1.5"])
def test_an_output_is_not_handed_over_to_what_is_no_stream(process: Process, stream: str) -> None:
    text = process.run(TAKEN.format(launched="0x77", stream=stream))
    assert text.startswith("BufferError: kernel 'scale': an output was asked for on the stream ")


def test_an_output_is_exported_as_it_is(process: Process) -> None:
    printed = process.run(
        """
        import ctypes
        y = made.kernel("scale")(on_cuda((1000,), "float16"), 1, 1, 1)
        forms = [y.__dlpack__(stream=-1), y.__dlpack__(stream=-1, max_version=(1, 1))]
        print(*(repr(capsule).split('"')[1] for capsule in forms))
        for options in ({"copy": True}, {"dl_device": (1, 0)}):
            try:
                y.__dlpack__(stream=-1, **options)
            except BufferError as error:
                print(error)
        y.__dlpack__(stream=-1, copy=False, dl_device=(2, 0))
        """
    )
    lines = printed.splitlines()
    assert lines[0] == "dltensor dltensor_versioned"
    assert lines[1:] == ["a new output of a kernel is exported where it is, and not copied"] * 2


def test_the_private_names_of_a_view_are_none_of_an_output(process: Process) -> None:
    printed = process.run(
        """
        import copy
        y = made.kernel("scale")(on_cuda((1000,), "float16"), 1, 1, 1, stream=0x77)
        print(hasattr(y._view, "__dlpack_c_exchange_api__"), hasattr(y, "__dlpack_c_exchange_api__"))
        print(copy.copy(y).ptr == y.ptr)
        import tvm_ffi
        print(tvm_ffi.from_dlpack(y).shape)
        """
    )
    assert printed == "True False\nTrue\n(1000,)\n"
    assert process.log[-1] == "synchronize stream 0x77"


def test_another_threads_default_stream_is_waited_for(process: Process) -> None:
    process.run(
        """
        import threading
        outputs = []
        def call():
            outputs.append(made.kernel("scale")(on_cuda((1000,), "float16"), 1, 1, 1, stream=2))
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        outputs[0].__dlpack__(stream=2)
        """
    )
    assert process.log[-1] == "wait for cuda:0"


def test_an_output_that_is_passed_on_is_waited_for(process: Process) -> None:
    process.run(
        """
        scale = made.kernel("scale")
        y = scale(on_cuda((1000,), "float16"), 1, 1, 1, stream=0x77)
        scale(y, y, 1, 1, 1, stream=0x77)
        scale(y, on_cuda((1000,), "float16"), 1, 1, 1, stream=0x99)
        """
    )
    kinds = [line for line in process.log if line.startswith(("launch", "record", "wait"))]
    assert [line.split()[0] for line in kinds] == ["launch", "launch", "record", "wait", "launch"]
    assert kinds[2:4] == ["record in stream 0x77", "wait in stream 0x99"]


def test_the_stream_of_an_output_is_kept_as_far_as_it_was_passed(process: Process) -> None:
    printed = process.run(
        """
        import gc, weakref
        class Own:
            def __cuda_stream__(self):
                return 0, 0x88
        own = Own()
        alive = weakref.ref(own)
        y = made.kernel("scale")(on_cuda((1000,), "float16"), 1, 1, 1, stream=own)
        del own
        gc.collect()
        print(alive() is not None)
        del y
        gc.collect()
        print(alive() is None)
        """
    )
    assert printed == "True\nTrue\n"


JAX = """
class Immutable(FakeTensor):
    pass
Immutable.__module__ = "jaxlib._jax"
x, y = Immutable((100,), (2, 16, 1), device=(2, 0)), on_cuda((100,), "float16")
"""


def test_arrays_of_jax_are_held_until_the_kernel_is_done(process: Process) -> None:
    process.run(JAX + 'made.kernel("scale")(x, y, 1, 1, 1, stream=0x77)\nmade.kernel("scale")(y, y, 1, 1, 1)')
    kinds = [" ".join(line.split()[:3]) for line in process.log if line.startswith(("launch", "synchronize"))]
    assert kinds == ["launch scale_kernel sm_80", "synchronize stream 0x77", "launch scale_kernel sm_80"]


def test_arrays_of_jax_are_held_also_where_a_later_launch_fails(process: Process) -> None:
    process.run(
        JAX.replace("(2, 16, 1)", "(2, 32, 1)").replace('"float16"', '"float32"')
        + """
import os
arrays, kernel = (x, y), made.kernel("two_steps")
kernel.preload("cuda")
launch = kernel._module.Call.launch
def failing(self, function, **more):
    if function == "second_kernel":
        os.environ["STANDIN_FAIL"] = "cuLaunchKernelEx=1"
    return launch(self, function, **more)
kernel._module.Call.launch = failing
try:
    kernel(*arrays)
except RuntimeError as error:
    print(error)
"""
    )
    kinds = [line.split()[0] for line in process.log if line.startswith(("launch", "synchronize", "free"))]
    assert kinds == ["launch", "free", "synchronize"]


def test_arrays_of_jax_cannot_be_captured(process: Process) -> None:
    text = process.run(
        JAX
        + """
try:
    made.kernel("scale")(x, y, 1, 1, 1, stream=0x77)
except RuntimeError as error:
    print(error)
""",
        capture="0x77",
    )
    assert text.startswith(
        "kernel 'scale': the call would have to wait for stream 0x77 of cuda:0, which is being captured"
    )
    assert "remedy: capture calls with arrays of PyTorch or CuPy" in text and process.calls("launch") == []


# ---- frameworks


def framework_call(array: str, more: str = "") -> str:
    return f"""
import frameworks_standin
framework = frameworks_standin.{array.partition("_")[0]}()
from frameworks_standin import TorchTensor, CupyArray
def torch_array(number, shape=(64,), dtype="float16"):
    return TorchTensor(shape, getattr(framework, dtype), number)
def cupy_array(number, shape=(64,)):
    return CupyArray(shape, (2, 16, 1), number)
x = {array}
scale = made.kernel("scale")
y = scale(x, 1, 1, 1{more})
print(type(y).__name__)
"""


ON_SECOND = {"torch": "torch_array(1)", "cupy": "cupy_array(1)"}


@pytest.mark.parametrize("framework", ["torch", "cupy"])
@pytest.mark.parametrize(
    ("stream", "handle"),
    [("None", "0x510"), ("0x66", "0x66"), ("0", "0x0"), ("1", "0x0"), ("2", "0x2"), ("0x510", "0x510")],
)
def test_frameworks_allocate_in_the_stream_of_the_launch(
    process: Process, framework: str, stream: str, handle: str
) -> None:
    printed = process.run(framework_call(ON_SECOND[framework], f", stream={stream}"))
    dtype, kind = ("torch.float16", "TorchTensor") if framework == "torch" else ("float16", "CupyArray")
    assert printed == f"{framework} makes {dtype} [64] in {handle} on cuda:1\n{kind}\n"
    (launched,) = process.calls("launch")
    assert f"stream {handle.replace('0x0', '0x1')} on cuda:1" in launched
    assert process.calls("allocate") == []


def test_numbers_of_pytorch_do_not_say_where_a_kernel_runs(process: Process) -> None:
    """A number may be a tensor of rank 0, on any device: neither its stream nor its library is the call's."""
    call = """
import frameworks_standin
torch, cupy = frameworks_standin.torch(), frameworks_standin.cupy()
x = frameworks_standin.CupyArray((64,), (2, 16, 1), 1)
number = frameworks_standin.TorchTensor((), torch.int32, 0)
print(type(made.kernel("scale")(x, 1, 1, number)).__name__)
"""
    assert process.run(call).splitlines() == ["cupy makes float16 [64] in 0x510 on cuda:1", "CupyArray"]
    assert "stream 0x510 on cuda:1" in process.calls("launch")[0]


def test_temporary_memory_is_of_the_framework(process: Process) -> None:
    printed = process.run(
        """
        import frameworks_standin
        torch = frameworks_standin.torch()
        x = frameworks_standin.TorchTensor((100,), torch.float32, 1)
        made.kernel("two_steps")(x, x)
        """
    )
    assert printed.splitlines() == [
        "torch makes torch.uint8 [400] in 0x510 on cuda:1",
        "torch frees torch.uint8 [400]",
    ]
    assert process.calls("allocate") == process.calls("free") == [] and len(process.calls("launch")) == 2


# ---- graph capture


@pytest.mark.parametrize("kernel", ["scale", "special"])
def test_the_first_call_may_be_captured(process: Process, kernel: str) -> None:
    """Opening the device, loading, and opting in to shared memory are refused in a capture, unless it is relaxed."""
    calls = {"scale": "x = on_cuda((5,), 'float16'); k(x, x, 1, 1, 1, stream=0x77)", "special": "k(x, stream=0x77)"}
    process.run(f"k, x = made.kernel({kernel!r}), on_cuda((4,))\n{calls[kernel]}", capture="0x77", capability=90)
    assert len(process.calls("load")) == len(process.calls("launch")) == 1


def test_the_capture_mode_of_the_thread_is_what_it_was(process: Process) -> None:
    process.run(
        """
        from cuda.bindings import driver
        x = on_cuda((5,), "float16")
        made.kernel("scale")(x, x, 1, 1, 1, stream=0x77)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        assert driver.cuThreadExchangeStreamCaptureMode(mode)[1] == mode
        """,
        capture="0x77",
    )


@pytest.mark.parametrize("function", ["cuLibraryLoadData", "cuKernelGetFunction", "cuDevicePrimaryCtxRetain"])
def test_what_a_capture_does_not_allow_says_preload(process: Process, function: str) -> None:
    text = refused(process, 'x = on_cuda((5,), "float16"); made.kernel("scale")(x, x, 1, 1, 1)', fail=f"{function}=900")
    assert "failed with CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" in text
    assert text.endswith(
        "\n  a graph is being captured, which does not allow this"
        "\n  remedy: call preload before the capture, pass the outputs, and use the captured stream"
    )


def test_an_innocent_thread_is_told_why_the_default_stream_is_refused(process: Process) -> None:
    """Another thread captures a stream that is not non-blocking."""
    text = refused(process, 'made.kernel("fill")(on_cuda((4,)), 10)', capture="0x77", blocking=1)
    assert "is captured failed with CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" in text
    assert text.endswith(
        "\n  another stream that is not non-blocking is being captured, and the default stream would wait for it"
        "\n  remedy: use a stream of your own"
    )
    process.run('made.kernel("fill")(on_cuda((4,)), 10, stream=0x78)', capture="0x77", blocking=1)


# ---- errors that come from elsewhere


@pytest.mark.parametrize("status", [226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911])
def test_an_error_of_earlier_work_says_so(process: Process, status: int) -> None:
    text = refused(
        process,
        'x = on_cuda((5,), "float16"); made.kernel("scale")(x, x, 1, 1, 1)',
        fail=f"cuLaunchKernelEx={status}",
    )
    assert text.endswith(
        "\n  it comes from earlier work on the device, of this kernel or of anything else"
        "\n  remedy: restart the process, since CUDA cannot be used in it any more; with CUDA_LAUNCH_BLOCKING=1 in its "
        "environment the launch at fault raises the error"
    ), text


def test_with_blocking_launches_the_launch_itself_is_at_fault(process: Process) -> None:
    call = 'import os; os.environ["CUDA_LAUNCH_BLOCKING"] = "1"; x = on_cuda((5,), "float16"); '
    text = refused(process, call + 'made.kernel("scale")(x, x, 1, 1, 1)', fail="cuLaunchKernelEx=700")
    assert "earlier work" not in text and text.endswith("restart the process, since CUDA cannot be used in it any more")


@pytest.mark.parametrize("function", ["cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction"])
@pytest.mark.parametrize("status", [200, 209, 218, 222])
def test_code_that_the_driver_cannot_read_has_the_versions_compared(
    tmp_path: Path, driver: Path, function: str, status: int
) -> None:
    make_package(tmp_path, {"scale": scale()}, toolkit=13010)
    process, call = Process(tmp_path, driver), 'x = on_cuda((5,), "float16"); made.kernel("scale")(x, x, 1, 1, 1)'
    text = refused(process, call, fail=f"{function}={status}", version=12080)
    assert text.endswith(
        "\n  its device code was made with CUDA 13.1, and the driver is for CUDA 12.8"
        "\n  remedy: install an NVIDIA driver for CUDA 13.1, or compile it with CUDA 12.8"
    ), text


@pytest.mark.parametrize(
    ("toolkit", "version", "message"),
    [
        (
            13000,
            13000,
            "was made with CUDA 13.0, and the driver is for CUDA 13.0, which is new enough\n  remedy: install",
        ),
        (
            0,
            12080,
            "\n  the driver is for CUDA 12.8\n  remedy: install a newer NVIDIA driver, or compile it with an older",
        ),
        (12040, 12020, "install an NVIDIA driver for CUDA 12.4, or compile it with CUDA 12.2"),
        (13000, 12080, "install an NVIDIA driver for CUDA 13.0 (580 or newer), or compile it with CUDA 12.8"),
    ],
)
def test_what_is_said_of_code_depends_on_both_versions(
    tmp_path: Path, driver: Path, toolkit: int, version: int, message: str
) -> None:
    make_package(tmp_path, {"scale": scale()}, toolkit=toolkit)
    process, call = Process(tmp_path, driver), 'x = on_cuda((5,), "float16"); made.kernel("scale")(x, x, 1, 1, 1)'
    assert message in refused(process, call, fail="cuLibraryLoadData=222", version=version)


def test_a_default_stream_is_that_of_the_primary_context(process: Process) -> None:
    process.run(
        """
        import ctypes
        from cuda.bindings import driver
        driver.cuInit(0)
        library, own = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        library.cuCtxCreate_v2(ctypes.byref(own), 0, 0)
        library.cuCtxSetCurrent(own)
        x, scale = on_cuda((5,), "float16"), made.kernel("scale")
        for stream in (None, 1, 2, 0xf001, 0x77):
            scale(x, x, 1, 1, 1, stream=stream)
        now = ctypes.c_void_p()
        library.cuCtxGetCurrent(ctypes.byref(now))
        assert now.value == own.value
        try:
            scale(x, 1, 1, 1, stream=0xf001)
        except RuntimeError as error:
            assert "in a stream of another context of cuda:0 than the primary one" in str(error)
        else:
            raise AssertionError("an output in another context")
        """
    )
    assert ["a context of its own" in line for line in process.calls("launch")] == [False, False, False, True, False]


# ---- devices and images


@pytest.mark.parametrize(
    ("capability", "loaded"), [(80, "sm_80"), (86, "sm_80"), (90, "sm_90a"), (103, "sm_100f"), (120, "compute_80")]
)
def test_the_best_image_is_loaded(process: Process, capability: int, loaded: str) -> None:
    process.run('x = on_cuda((5,), "float16"); made.kernel("scale")(x, x, 1, 1, 1)', capability=capability)
    assert process.calls("load") == [loaded]


def test_a_device_that_no_image_suits_is_refused(process: Process) -> None:
    text = refused(process, 'x = on_cuda((5,), "float16"); made.kernel("scale")(x, x, 1, 1, 1)', capability=75)
    assert text == (
        "RuntimeError: kernel 'scale': cuda:0 is an sm_75, and variant default was built for sm_80, sm_90, sm_90a, "
        "sm_100f, compute_80\n  remedy: add sm_75 to its archs"
    )


def test_compressed_code_needs_a_driver_that_can_decompress_it(tmp_path: Path, driver: Path) -> None:
    make_package(tmp_path, {"scale": scale()}, driver=12040)
    process, call = Process(tmp_path, driver), 'x = on_cuda((5,), "float16"); made.kernel("scale")(x, x, 1, 1, 1)'
    text = refused(process, call, version=12030)
    assert (
        "sm_80 of variant default is compressed, and needs a driver for CUDA 12.4 or newer; this one is for CUDA"
        in text
    )
    process.run(call, version=12040)
    assert process.calls("load") == ["sm_80"]


def test_a_device_that_does_not_exist_is_refused(process: Process) -> None:
    text = refused(process, 'x = on_cuda((5,), "float16", 2); made.kernel("scale")(x, x, 1, 1, 1)')
    assert text == "ValueError: kernel 'scale': there is no cuda:2, the process sees 2 CUDA devices"


def test_a_missing_image_is_an_error(tmp_path: Path, driver: Path) -> None:
    make_package(tmp_path, {"scale": scale()})
    (tmp_path / "made/_images/scale/default.sm_80.cubin").unlink()
    text = refused(Process(tmp_path, driver), 'x = on_cuda((5,), "float16"); made.kernel("scale")(x, x, 1, 1, 1)')
    assert text.startswith("ImportError") and "default.sm_80.cubin" in text


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("cuInit=100", "initialising CUDA failed with CUDA_ERROR_NO_DEVICE"),
        ("cuDeviceGetCount=3", "counting CUDA devices failed with CUDA_ERROR_NOT_INITIALIZED"),
        ("cuDevicePrimaryCtxRetain=2", "opening cuda:0 failed with CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuLibraryLoadData=222", "loading sm_80 of variant default with the device function scale_kernel failed with"),
        (
            "cuLibraryGetKernel=500",
            "loading sm_80 of variant default with the device function scale_kernel failed with",
        ),
    ],
)
def test_a_failure_of_the_driver_is_an_exception_and_can_be_retried(process: Process, fail: str, message: str) -> None:
    printed = process.run(
        """
        import os
        x, scale = on_cuda((5,), "float16"), made.kernel("scale")
        try:
            scale(x, x, 1, 1, 1)
        except RuntimeError as error:
            print(error)
        os.environ["STANDIN_FAIL"] = ""
        scale(x, x, 1, 1, 1)
        """,
        fail=fail,
    )
    assert printed.startswith(f"kernel 'scale': {message}"), printed
    assert len(process.calls("launch")) == 1


def test_a_machine_without_a_driver_gets_an_exception(folder: Path) -> None:
    process = Process(folder, None)
    text = refused(process, 'x = on_cuda((5,), "float16"); made.kernel("scale")(x, x, 1, 1, 1)')
    assert text.startswith("RuntimeError: kernel 'scale': there is no CUDA driver: ")
    assert "\n  remedy: install the NVIDIA driver (580 or newer)" in text
    assert process.run('print(made.kernel("scale").supported())') == "False\n"


def test_preload_loads_and_a_call_then_only_launches(process: Process) -> None:
    process.run(
        """
        norm, x = made.kernel("norm"), on_cuda((3, 64))
        assert norm.supported("cuda:1") and not norm.supported("cuda:2") and not norm.supported("cpu")
        norm.preload("cuda:0")
        norm(x, x)
        """
    )
    kinds = [line.split()[0] for line in process.log if line.startswith(("load", "launch"))]
    assert kinds == ["load"] * 4 + ["launch"]


def test_a_variant_is_preloaded_alone(process: Process) -> None:
    process.run('made.kernel("norm").variant(hidden=64, dtype="float32").preload("cuda:0")')
    assert len(process.calls("load")) == 1


def test_a_kernel_cannot_be_preloaded_for_the_cpu(process: Process) -> None:
    assert "ValueError: kernel 'norm': it cannot run on cpu: it was built for cuda (sm_80, " in refused(
        process, 'made.kernel("norm").preload("cpu")'
    )
    assert "ValueError: unknown device 'tpu'" in refused(process, 'made.kernel("norm").preload("tpu")')


def test_the_context_that_was_current_is_current_afterwards(process: Process) -> None:
    printed = process.run(
        """
        from cuda.bindings import driver
        x, scale = on_cuda((5,), "float16", 1), made.kernel("scale")
        scale(x, x, 1, 1, 1)
        print(driver.cuCtxGetDevice()[0].name)
        _, first = driver.cuDevicePrimaryCtxRetain(0)
        driver.cuCtxSetCurrent(first)
        scale(x, x, 1, 1, 1)
        print(int(driver.cuCtxGetDevice()[1]))
        assert scale(on_cuda((5,), "float16", 0), 1, 1, 1).shape == (5,)
        """
    )
    assert printed == "CUDA_ERROR_INVALID_CONTEXT\n0\n"
    assert [line.split()[-1] for line in process.calls("launch")] == ["cuda:1", "cuda:1", "cuda:0"]


def test_threads_load_an_image_once_for_each_device(process: Process) -> None:
    process.run(
        """
        import threading
        scale, start, errors = made.kernel("scale"), threading.Barrier(8), []
        def work(number):
            x = on_cuda((5,), "float16", number % 2)
            start.wait()
            try:
                for _ in range(20):
                    scale(x, x, 1, 1, 1)
            except Exception as error:
                errors.append(error)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        """
    )
    assert process.calls("load") == ["sm_80", "sm_80"] and len(process.calls("launch")) == 160


FORK = """
import os, signal
x, scale = on_cuda((5,), "float16"), made.kernel("scale")
def call_in_child():
    if os.fork():
        assert os.wait()[1] == 0
        return
    signal.alarm(300)  # against a hang
    try:
        scale(x, x, 1, 1, 1)
        print("called", flush=True)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
"""


def test_a_child_that_was_forked_after_cuda_gets_an_exception(process: Process) -> None:
    printed = process.run(FORK + "scale(x, x, 1, 1, 1)\ncall_in_child()")
    assert printed.startswith(
        "kernel 'scale': CUDA was used before this process was forked, and does not survive that\n"
    )


def test_a_child_that_was_forked_before_cuda_can_use_it(process: Process) -> None:
    assert process.run(FORK + "call_in_child()") == "called\n"
