"""What every launcher does with tuning tables, and with tensor maps."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright.runtime.tables import DeviceTable, Rules
from support.launched import declared, driver_of
from support.launchers import LAUNCHERS, Kernel, Process, Variant, make_driver, make_package
from support.project import once

ARCHS = ("sm_80", "sm_90a")
ALIGNED, BY_8, BY_2 = 0x10000, 0x10008, 0x10002


def touch() -> list[Variant]:
    """Two declared variants, for aligned data and for any; and three that only run where a table says so."""
    from kernelwright.cuda import Scalar, Tensor

    variants = []
    for slug, alignment in (("fast", 16), ("plain", 2), ("tuned", 8), ("wide", 64), ("elsewhere", 2)):
        passed = {"x": Tensor("float16", "m", "n", alignment=alignment), "k": Scalar("int32")}
        archs = {"fast": ARCHS, "plain": ARCHS, "elsewhere": ("sm_80",)}.get(slug, ("sm_90a",))
        launch = declared(slug, "m", passed)
        variants.append(Variant.of("touch", launch, slug=slug, config={"slug": slug}, archs=archs))
    return variants


BY_M = Rules(("m",), ((4, 2), (16, 3), (32, 4), (None, 0)))
H100 = DeviceTable("cuda", "sm_90a", "NVIDIA H100", 132, {0: BY_M, 1: Rules(("m", "k"), ((10, 1), (None, 2)))})
H800 = DeviceTable("cuda", "sm_90a", "NVIDIA H800", 100, {0: Rules((), ((None, 2),))})

HERE = {"capability": 90, "name": "NVIDIA H100", "count": 132}


def boxes() -> Variant:
    """A launch with a tensor map."""
    from kernelwright.cuda import Size, Tensor, TensorMap

    mapped = TensorMap(Tensor("float16", "m", 64), box=(8, 64), swizzle=128, promotion=128)
    passed = {"y": Tensor("float32", "m"), "x": mapped, "m": Size("m"), "twice": Size("m * 2", dtype="int64")}
    return Variant.of("boxes", declared("boxes_kernel", "(m + 7) // 8", passed, shared=65536), archs=("sm_90a",))


def planes() -> Variant:
    """The same with three dimensions."""
    from kernelwright.cuda import Tensor, TensorMap

    mapped = TensorMap(Tensor("float16", "b", "m", "n"), box=(1, 8, 64))
    return Variant.of("planes", declared("planes_kernel", "b", {"x": mapped}), archs=("sm_90a",))


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def process(launcher: str, tmp_path_factory: pytest.TempPathFactory) -> Process:
    def make(folder: Path) -> None:
        kernels = {
            "touch": Kernel(touch(), [H100, H800], declared=2),
            "boxes": Kernel([boxes()]),
            "planes": Kernel([planes()]),
        }
        make_package(folder, kernels, ARCHS, launcher=launcher)

    return Process(once(tmp_path_factory, f"tuned_{launcher}", make), driver_of(tmp_path_factory))


def made(
    launcher: str, folder: Path, factory: pytest.TempPathFactory, variants: list[Variant], *tables: DeviceTable
) -> Process:
    """Processes of a package of its own, with these variants declared."""
    make_package(folder, {"touch": Kernel(variants, tables, declared=len(variants))}, ARCHS, launcher=launcher)
    return Process(folder, driver_of(factory))


RUN = """
touch = made.kernel("touch")
for m, k, data, device in {calls}:
    x = on_cuda((m, 8), "float16", device, data=data)
    print(touch.choice(x, k).variant)
    touch(x, k)
"""


def ran(process: Process, *calls: tuple[int, ...], **standin: Any) -> list[str]:
    """The variant that each call runs: ``(m, k, address, device)``; what the choice says is compared with it."""
    complete = [(*call, *(0, ALIGNED, 0)[len(call) - 1 :]) for call in calls]
    said = process.run(RUN.format(calls=complete), **(standin or HERE)).split()
    launched = [line.split()[0] for line in process.calls("launch")]
    assert said == launched
    return launched


# ---- sizes


def test_each_range_runs_the_variant_that_the_table_has_for_it(process: Process) -> None:
    """Where it names one without code for the arch, the declared one."""
    expected = {1: "tuned", 4: "tuned", 5: "wide", 16: "wide", 17: "fast", 32: "fast", 33: "fast", 1000: "fast"}
    assert ran(process, *((m,) for m in expected)) == [*expected.values()]


def test_a_number_decides_like_a_size(process: Process) -> None:
    """Data that is aligned by 8 bytes fits the second declared variant, which has rules of its own."""
    calls = {(2, 5): "plain", (2, 6): "tuned", (11, 1): "tuned", (10, 1): "plain", (10, -1): "plain"}
    assert ran(process, *((*call, BY_8) for call in calls)) == [*calls.values()]


def test_a_chosen_variant_that_the_data_is_not_aligned_for_leaves_the_declared_one(process: Process) -> None:
    assert ran(process, (8, 0, 0x10010), (8,), (8, 0, 0x10010)) == ["fast", "wide", "fast"]
    assert ran(process, (100, 9, BY_2)) == ["plain"]


def test_calls_like_earlier_ones_are_compared_with_the_declared_variant_too(process: Process) -> None:
    """The tuned variant takes data that the declared one, in whose place it runs, does not: that has other rules."""
    assert ran(process, *[(2, 3, ALIGNED), (2, 3, BY_8)] * 2) == ["tuned", "plain"] * 2


def test_requirements_choose_among_declared_variants_and_a_table_keeps_to_them(
    launcher: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    requires = {"fast": ["m <= 4"], "plain": ["m <= 64", "k >= 0"], "tuned": ["k % 2 == 0"]}
    variants = [
        replace(one, signature={**one.signature, "requires": requires[slug]})
        for one in touch()
        if (slug := str(one.signature["slug"])) in requires
    ]
    table = replace(H100, rules={0: Rules((), ((None, 2),)), 1: Rules((), ((None, 2),))})
    make_package(tmp_path, {"touch": Kernel(variants, [table], declared=2)}, ARCHS, launcher=launcher)
    process = Process(tmp_path, driver_of(tmp_path_factory))
    calls = {(4, 1): "fast", (4, 2): "tuned", (5, 1): "plain", (5, 4): "tuned", (64, 1): "plain", (4, -1): "fast"}
    assert ran(process, *calls, *calls) == [*calls.values()] * 2
    lines = process.run('print(refusal(lambda: made.kernel("touch")(on_cuda((65, 8), "float16"), 1)))', **HERE)
    assert lines.startswith("ValueError: kernel 'touch': no built variant accepts these arguments\n")
    assert "fast requires m <= 4, and m is 65" in lines and "plain requires m <= 64, and m is 65" in lines


# ---- devices


@pytest.mark.parametrize(
    ("standin", "expected", "said"),
    [
        ({"name": "NVIDIA H100", "count": 132}, ["tuned", "fast"], "which is this device"),
        ({"name": "NVIDIA H800", "count": 100}, ["tuned", "tuned"], "which is this device"),
        ({"name": "another", "count": 117}, ["tuned", "fast"], "the nearest to this device, 'another' (count 117)"),
        ({"name": "another", "count": 116}, ["tuned", "tuned"], "the nearest to this device, 'another' (count 116)"),
        ({"count": -1}, ["tuned", "tuned"], "the nearest to this device, 'stand-in 0' (count 0)"),
        ({"name": "NVIDIA H100", "count": 132, "capability": 80}, ["fast", "fast"], "no tuning table is for sm_80"),
        (
            {"name": "NVIDIA H100", "count": 132, "fail": "cuDeviceGetName=1"},
            ["tuned", "fast"],
            "the nearest to this device, '' (count 132)",
        ),
    ],
)
def test_the_table_is_that_of_the_device_or_of_the_nearest_count(
    process: Process, standin: dict[str, Any], expected: list[str], said: str
) -> None:
    known = {"capability": 90, **standin}
    assert ran(process, (1,), (99,), **known) == expected
    reason = 'print(made.kernel("touch").choice(on_cuda((1, 8), "float16"), 0).reason)'
    assert said in process.run(reason, **known)


def test_a_driver_that_cannot_name_devices_is_no_error(process: Process, launcher: str, tmp_path: Path) -> None:
    """Of drivers that cuda.core takes, all can."""
    if launcher == "library":
        nameless = Process(process.folder, make_driver(tmp_path, "-DSTANDIN_NAMELESS"))
        assert ran(nameless, (1,), (99,), **HERE) == ["tuned", "fast"]


def test_what_is_found_for_one_device_is_not_for_another(process: Process) -> None:
    """The second device is asked when it is used first, and has become another one until then."""
    process.run(
        """
        touch, arrays = made.kernel("touch"), [on_cuda((99, 8), "float16", device) for device in (0, 1)]
        touch(arrays[0], 0)
        touch(on_cuda((2, 8), "float16", data=0x10008), 5)
        os.environ |= {"STANDIN_NAME": "NVIDIA H800", "STANDIN_COUNT": "100"}
        touch(arrays[1], 0)
        touch(arrays[0], 0)
        """,
        **HERE,
    )
    assert [line.split()[0] for line in process.calls("launch")] == ["fast", "plain", "tuned", "fast"]


def test_a_device_needs_code_of_declared_variants_only(process: Process) -> None:
    code = """
    touch = made.kernel("touch")
    print(touch.supported("cuda"))
    print(refusal(lambda: touch.variant(slug="wide")(on_cuda((3, 8), "float16"), 1)).partition("\\n")[0])
    touch.preload("cuda")
    """
    said = process.run(code, capability=80).splitlines()
    refused = "RuntimeError: kernel 'touch': cuda:0 is an sm_80, and variant wide was built for sm_90a"
    assert said == ["True", refused]
    assert process.calls("load") == ["sm_80"] * 3, "the declared ones, and one that has code for this arch"
    assert process.run(code, capability=90).splitlines() == ["True", "nothing was raised"]
    assert process.calls("load") == ["sm_90a"] * 4, "what tables choose is loaded ahead of the first call"


def test_a_device_that_nothing_was_built_for_is_the_error_of_the_declared_variant(process: Process) -> None:
    said = process.run(
        """
        touch, x = made.kernel("touch"), on_cuda((3, 8), "float16")
        print(touch.supported("cuda"))
        for function in (touch, touch.choice):
            print(refusal(lambda: function(x, 1)).partition("\\n")[0])
        """,
        capability=70,
    )
    refused = "RuntimeError: kernel 'touch': cuda:0 is an sm_70, and variant fast was built for sm_80, sm_90a"
    assert said.splitlines() == ["False", refused, refused]


# ---- what the choice says


def test_the_choice_says_why_and_launches_nothing(process: Process) -> None:
    said = process.run(
        """
        touch = made.kernel("touch")
        def x(m, data=0x10000):
            return on_cuda((m, 8), "float16", data=data)
        for choice in (
            touch.choice(x(5), 1), touch.choice(x(5, 0x10010), 1), touch.choice(x(20), 1),
            touch.variant(slug="wide").choice(x(20), 1),
        ):
            print(choice.variant, choice.config, choice.reason, sep="; ")
        """,
        **HERE,
    ).splitlines()
    table = "the tuning table of 'NVIDIA H100' (count 132), which is this device, has"
    first = "it is the first declared variant that fits; "
    assert said == [
        f"wide; {{'slug': 'wide'}}; {table} wide for m = 5, from 5 to 16",
        f"fast; {{'slug': 'fast'}}; {first}{table} wide for m = 5, from 5 to 16, which these arguments do not fit",
        f"fast; {{'slug': 'fast'}}; {table} fast for m = 20, from 17 to 32",
        "wide; {'slug': 'wide'}; it is the variant that was asked for",
    ]
    assert process.calls("launch") == process.calls("load") == []


def test_the_choice_for_a_wrong_call_raises_what_the_call_raises(process: Process) -> None:
    said = process.run(
        """
        touch = made.kernel("touch")
        x, elsewhere = on_cuda((3, 8), "float16"), on_cuda((3, 8), "float16", device=9)
        for arguments in ((x,), (x, "text"), (on_cuda((3, 8)), 1), (x, 2**40), (elsewhere, 1)):
            first, second = (refusal(lambda: function(*arguments)) for function in (touch, touch.choice))
            assert first == second, (first, second)
            print(first.splitlines()[0])
        """,
        **HERE,
    )
    assert said.splitlines() == [
        "TypeError: kernel 'touch': takes 2 arguments (x, k), 1 were given",
        "TypeError: kernel 'touch': no built variant accepts these arguments",
        "TypeError: kernel 'touch': no built variant accepts these arguments",
        "ValueError: kernel 'touch': argument 'k' is 1099511627776, which does not fit int32",
        "ValueError: kernel 'touch': there is no cuda:9, the process sees 2 CUDA devices",
    ]


def test_only_declared_variants_are_listed_and_others_can_be_called_by_themselves(process: Process) -> None:
    said = process.run(
        """
        touch = made.kernel("touch")
        print(refusal(lambda: touch(on_cuda((3, 8)), 1)).count("expects:"))
        touch.variant(slug="wide")(on_cuda((3, 8), "float16"), 1)
        """,
        **HERE,
    )
    assert said.split() == ["2"]
    assert [line.split()[0] for line in process.calls("launch")] == ["wide"]


# ---- other tables


def test_without_tables_the_first_declared_variant_runs(
    launcher: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    process = made(launcher, tmp_path, tmp_path_factory, touch())
    said = process.run('print(made.kernel("touch").choice(on_cuda((3, 8), "float16"), 1))', **HERE)
    assert said == "<variant fast: it is the first declared variant that fits; there are no tuning tables>\n"


def test_what_is_declared_for_the_cpu_runs_only_where_a_table_says_so(
    launcher: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A table for an sm_80 has chosen it, so it has code for that arch only."""
    variants = [Variant(variant.signature, variant.host) for variant in touch()]
    for place in (0, 2):
        variants[place] = replace(variants[place], archs=("sm_80",), tabled=("cuda",))
    table = DeviceTable("cuda", "sm_80", "NVIDIA A100", 108, {1: Rules(("m",), ((4, 0), (None, 1)))})
    process = made(launcher, tmp_path, tmp_path_factory, variants, table)
    assert ran(process, (1,), (5,), capability=90) == ["plain", "plain"]
    assert ran(process, (1,), (5,), capability=80, name="NVIDIA A100", count=108) == ["fast", "plain"]
    for capability in (80, 90):
        assert process.run('print(made.kernel("touch").supported("cuda"))', capability=capability) == "True\n"


# ---- tensor maps

MAPPED = """
boxes = made.kernel("boxes")
def run(m):
    call(boxes, on_cuda((m,)), on_cuda((m, 64), "float16", data=0x20000), stream=0x50)
"""


def test_the_driver_makes_a_map_for_each_call_and_launches_pass_it(process: Process) -> None:
    process.run(MAPPED + "run(20); run(7)", capability=90, parameters="ptil")
    assert process.calls("encode") == [
        "map 1 of dtype 6 at 0x20000 sizes 64,20 strides 128 box 64,8 steps 1,1 modes 0 3 2 0",
        "map 2 of dtype 6 at 0x20000 sizes 64,7 strides 128 box 64,8 steps 1,1 modes 0 3 2 0",
    ]
    launches = [line.split(" parameters ") for line in process.calls("launch")]
    assert [head for head, _ in launches] == [
        f"boxes_kernel sm_90a grid {blocks} 1 1 block 128 1 1 shared 65536 stream 0x50 on cuda:0" for blocks in (3, 1)
    ]
    assert [re.sub("^0x[0-9a-f]+ ", "", parameters) for _, parameters in launches] == ["map 1 20 40", "map 2 7 14"]


def test_a_stride_over_one_element_is_one_that_the_driver_takes(process: Process) -> None:
    calls = "; ".join(f'planes(on_cuda({shape}, "float16"))' for shape in ((1, 1, 4), (2, 3, 8)))
    process.run(f'planes = made.kernel("planes"); {calls}', capability=90)
    told = [re.search("sizes .*?(?= box)", line)[0] for line in process.calls("encode")]
    assert told == ["sizes 4,1,1 strides 16,16", "sizes 8,3,2 strides 16,48"]


def test_a_bit_that_drivers_set_wrongly_in_small_maps_is_cleared(process: Process) -> None:
    for version, expected in ((13010, ["", " as made"]), (13020, [" as made", " as made"])):
        process.run(MAPPED + "run(1024); run(1025)", capability=90, parameters="ptil", version=version)
        shown = [re.search(r"map \d+(.*?) \d", line)[1] for line in process.calls("launch")]
        assert shown == expected


def test_an_empty_array_has_no_map_and_no_launch(process: Process) -> None:
    process.run(MAPPED + "run(0)", capability=90)
    assert process.calls("encode") == process.calls("launch") == []


@pytest.mark.parametrize(
    ("function", "doing"),
    [
        ("cuTensorMapEncodeTiled", "making a tensor map of float16[20, 64] at 0x20000"),
        ("cuLaunchKernelEx", "launching device function boxes_kernel, grid (3, 1, 1), block (128, 1, 1), 65536 bytes"),
    ],
)
def test_what_the_driver_refuses_is_an_error_with_the_sizes(process: Process, function: str, doing: str) -> None:
    said = process.run(MAPPED + "print(refusal(lambda: run(20)))", fail=f"{function}=200", capability=90)
    assert said.startswith(f"RuntimeError: kernel 'boxes': {doing}") and "failed with CUDA_ERROR_INVALID_IMAGE" in said
