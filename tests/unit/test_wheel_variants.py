"""Which wheel variants there are for some archs, which GPUs each is offered to, and what is wrong with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelwright.core.driver import of_cubin, of_ptx, of_toolkit
from kernelwright.core.errors import KernelwrightError, SettingsError
from kernelwright.package.wheel_variants import (
    ARCH,
    DRIVER,
    NAMESPACE,
    Group,
    groups_of,
    index_text,
    label_in,
    portable,
    properties,
    read_variant,
    require_groups,
    variant_text,
    without_label,
)
from kernelwright.runtime.arch import suitable

NUMBERS = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
"""The capabilities of GPUs that CUDA 13.0 knows."""

REAL = [f"sm_{n}{s}" for n in NUMBERS for s in ("", *(["a"] if n >= 90 else []), *(["f"] if n >= 100 else []))]
PTX = [name.replace("sm_", "compute_") for name in REAL]
DEVICES = [*NUMBERS, 88, 91, 107, 125, 130]
"""Some that nobody knows are among them."""


def said_by_provider(capability: int, driver: int) -> dict[str, list[str]]:
    """What NVIDIA's provider says of a machine, best first, as uv 0.13.9 has it built in."""
    major, minor = divmod(capability, 10)
    of_driver, of_minor = driver // 1000, driver % 1000 // 10
    bounds = [f"{of_driver}.{least}" for least in range(of_minor, -1, -1)]
    bounds += [f"{older}.{least}" for older in range(of_driver - 1, 10, -1) for least in range(20, -1, -1)]
    return {DRIVER: bounds, ARCH: [*(f"{major}{least}_real" for least in range(minor, -1, -1)), f"{major}0_virtual"]}


def taken(groups: list[Group], drivers: dict[Group, dict[str, int]], capability: int, driver: int) -> Group | None:
    """The group whose wheel an installer takes: each property is one of the machine's, and the first feature counts
    most."""
    has = said_by_provider(capability, driver)
    scores = {}
    for group in groups:
        needs = properties(group, drivers[group])[NAMESPACE]
        if all(needs[feature][0] in has[feature] for feature in has):
            scores[group] = [has[feature].index(needs[feature][0]) for feature in has]
    return min(scores, key=lambda group: scores[group]) if scores else None


@given(st.sets(st.sampled_from(REAL), min_size=1, max_size=6), st.sets(st.sampled_from(PTX), max_size=3))
def test_a_gpu_runs_in_the_wheel_that_it_is_given_what_it_runs_with_all_code(real: set[str], ptx: set[str]) -> None:
    archs = [*sorted(real), *sorted(ptx)]
    try:
        groups = require_groups(archs, "archs")
    except SettingsError as error:
        assert "too, which do not run it" in error.message
        return
    codes = {group: group.code(archs) for group in groups}
    for toolkit in (12080, 13000):
        drivers = {g: {arch: of_toolkit(arch, toolkit) for arch in code} for g, code in codes.items()}
        for capability in DEVICES:
            group = taken(groups, drivers, capability, 13010)
            code = portable(archs) if group is None else codes[group]
            assert suitable(code, capability)[:1] == suitable(archs, capability)[:1]
            for other in groups:  # whatever others are in an index
                if other.value in said_by_provider(capability, 13010)[ARCH]:
                    assert suitable(codes[other], capability)


@pytest.mark.parametrize(
    ("archs", "expected"),
    [
        ("sm_80", {"80_real": "sm_80"}),
        ("sm_80 sm_86", {"80_real": "sm_80", "86_real": "sm_86"}),
        ("sm_90a compute_80", {"90_real": "sm_90a compute_80"}),
        ("sm_90 sm_90a", {"90_real": "sm_90 sm_90a"}),
        ("sm_100a sm_100f compute_80", {"100_real": "sm_100a sm_100f"}),
        ("sm_100f", {"100_real": "sm_100f"}),
        ("sm_100a sm_103a compute_100", {"100_real": "sm_100a compute_100", "103_real": "sm_103a compute_100"}),
        ("sm_120f sm_80 compute_80", {"80_real": "sm_80", "120_real": "sm_120f"}),
    ],
)
def test_there_is_a_wheel_for_each_number_with_what_all_of_its_gpus_run(archs: str, expected: dict[str, str]) -> None:
    groups = require_groups(archs.split(), "archs")
    assert {group.value: " ".join(group.code(archs.split())) for group in groups} == expected


def test_code_needs_the_first_driver_that_reads_its_ptx_or_knows_its_arch() -> None:
    read = {(8, 0): 12000, (8, 5): 12050, (8, 6): 12070, (8, 7): 12080, (8, 8): 12090, (9, 0): 13000, (9, 2): 13020}
    assert {version: of_ptx(version) for version in read} == read, "that of CUDA 12.6 has the PTX of 12.5"
    with pytest.raises(ValueError, match=r"the version 10\.0, which is not known"):
        of_ptx((10, 0))
    of_toolkits = {12060: 12050, 12080: 12080, 12090: 12090, 13000: 13000, 0: 0}
    assert {toolkit: of_toolkit("compute_80", toolkit) for toolkit in of_toolkits} == of_toolkits
    assert [of_toolkit(arch, 12090) for arch in ("sm_80", "sm_100a", "sm_103a")] == [12000, 12080, 12090]
    assert [of_cubin(80, 7), of_cubin(80, 8), of_cubin(121, 7)] == [12000, 13000, 12090]


@pytest.mark.parametrize(
    ("archs", "message", "remedy"),
    [
        ("sm_90a", "offer sm_90a to GPUs of arch 9.1, too, which do not run it", "such as sm_90 or compute_90"),
        ("sm_80 sm_100a", "offer sm_100a to GPUs of arch 10.1, too", "such as sm_100, sm_100f or compute_100"),
        ("sm_100a sm_103f", "offer sm_100a and sm_103f to GPUs of arch 10.1, too", "sm_100f"),
        ("compute_80", "archs has PTX only: compute_80", "write split = none"),
    ],
)
def test_archs_that_some_gpu_would_be_offered_and_not_run_are_an_error(archs: str, message: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as caught:
        require_groups(archs.split(), "archs of cu130")
    assert message in caught.value.message and remedy in caught.value.remedy and "archs of cu130" in str(caught.value)


def test_the_driver_is_the_least_with_which_each_known_gpu_runs_some_code() -> None:
    hopper = groups_of(["sm_90a"])[0]
    assert hopper.driver({"sm_90a": 12000, "compute_80": 12080}) == 12000, "9.0 needs no PTX"
    blackwell = groups_of(["sm_100a", "sm_103a"])[0]
    assert blackwell.driver({"sm_100a": 12080, "compute_80": 13000}) == 13000, "10.3 may get it, and runs the PTX"
    assert properties(hopper, {"sm_90a": 13000}) == {
        "nvidia": {"cuda_version_lower_bound": ["13.0"], "sm_arch": ["90_real"]}
    }


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("demo-1.0-py3-none-any-sm_90.whl", "sm_90"),
        ("demo-1.0+cu130-2-py3-none-manylinux_2_17_x86_64-null.whl", "null"),
        ("demo-1.0-py3-none-any.whl", ""),
        ("demo-1.0-2-py3-none-any.whl", ""),
        ("demo-1.0-py3-none-any-SM.whl", ""),
    ],
)
def test_the_label_is_what_follows_the_platform(name: str, label: str) -> None:
    assert label_in(name) == label
    assert without_label(name) == (name.replace(f"-{label}.whl", ".whl") if label else name)


def test_labels_of_one_meaning_and_meanings_of_one_label_are_an_error() -> None:
    one, other = ({"nvidia": {"sm_arch": [value]}} for value in ("80_real", "90_real"))
    x86, arm = "a-1-py3-none-x86-sm_80.whl", "a-1-py3-none-arm-sm_80.whl"
    assert json.loads(index_text({x86: ("sm_80", one), arm: ("sm_80", one)}))["variants"] == {"sm_80": one}
    for second, needs, fault in (("sm_80", other, "other machines"), ("cu128_sm_80", one, "the same machines")):
        with pytest.raises(KernelwrightError, match=f"{arm} and {x86} ask for {fault}"):
            index_text({x86: ("sm_80", one), arm: (second, needs)})


def test_what_is_read_is_what_is_written_and_nothing_else() -> None:
    needs = properties(Group(90, 100), {"sm_90": 13000})
    text = variant_text("sm_90", needs)
    assert read_variant(text.encode(), "sm_90") == needs
    for old, new, said in (
        ("sm_90", "sm_80", "it is about sm_80, and not sm_90"),
        ("nvidia-variant-provider", "another-provider", "other providers"),
        ("peps/850", "peps/825", "another schema"),
        ('"variants"', '"more": 1, "variants"', "more is not expected"),
        ("{", "[", "Expecting"),
    ):
        with pytest.raises(ValueError, match=said):
            read_variant(text.replace(old, new, 1).encode(), "sm_90")


def test_the_page_says_what_wheels_there_are() -> None:
    """The table of the page is true: each row with a property, by what a build makes of the archs before it."""
    page = Path(__file__).parents[2].joinpath("docs/variants.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if "_real` |" in line]
    rows = [row for row in rows if len(row) == 4]
    archs: list[str] = []
    for given_archs, label, value, _ in rows:
        archs = [arch.strip(" `") for arch in given_archs.split(",")] if given_archs else archs
        found = {group.label(): group.value for group in require_groups(archs, "archs")}
        assert found[label.strip("`")] == value.strip("`")
    assert len(rows) == 8
