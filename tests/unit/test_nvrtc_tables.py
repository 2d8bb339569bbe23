"""Tuning tables in packages of the nvrtc backend: the choice in Python is that of the libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernelwright.runtime.tables import DeviceTable, Rules
from launcher_build import scalar, tensor
from nvrtc_package import Process, make_driver, make_package
from test_nvrtc_backend import cuda_signature, launch, number, pointers

ARCHS = ("sm_80", "sm_90a")


def touch() -> list[dict[str, Any]]:
    """Two declared variants, float16 for aligned data and for any; and three that only run where a table says so."""
    variants = []
    for slug, alignment in (("fast", 16), ("plain", 2), ("tuned", 8), ("wide", 64), ("elsewhere", 2)):
        arguments = [tensor("x", "float16", ["m", "n"]) | {"alignment": alignment}, scalar("k", "int32")]
        launches = [launch(slug, [*pointers("x"), number("k", "int32")], ["m", 1, 1])]
        symbols = {"m": "int32", "n": "int32"}
        variants.append(cuda_signature("touch", arguments, launches, slug=slug, config={"slug": slug}, symbols=symbols))
    return variants


BY_M = Rules(("m",), ((4, 2), (16, 3), (32, 4), (None, 0)))
H100 = DeviceTable("cuda", "sm_90a", "NVIDIA H100", 132, {0: BY_M, 1: Rules(("m", "k"), ((10, 1), (None, 2)))})
H800 = DeviceTable("cuda", "sm_90a", "NVIDIA H800", 100, {0: Rules((), ((None, 2),))})

HERE = {"capability": 90, "name": "NVIDIA H100", "count": 132}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package: its tuned variants have code for sm_90a only, and the one called elsewhere for sm_80 only."""
    folder = tmp_path_factory.mktemp("nvrtc_tables")
    make_package(folder, {"touch": touch()}, ARCHS)
    path = folder / "made/touch.json"
    entry = json.loads(path.read_text())
    for variant in entry["variants"][2:]:
        variant["archs"] = variant["units"][0]["archs"] = ["sm_80" if variant["slug"] == "elsewhere" else "sm_90a"]
    path.write_text(json.dumps(entry | {"declared": 2, "tables": [H100.to_json(), H800.to_json()]}))
    return folder


@pytest.fixture
def process(folder: Path, driver: Path) -> Process:
    return Process(folder, driver)


RUN = """
kernel = made.kernel("touch")
for m, k, data in {calls}:
    x = on_cuda((m, 8), "float16", data=data)
    print(kernel.choice(x, k).variant)
    kernel(x, k)
"""


def ran(process: Process, *calls: tuple[int, int, int], **standin: Any) -> list[str]:
    """The variant that each call runs: ``(m, k, address)``; what the choice says is compared with it."""
    said = process.run(RUN.format(calls=repr(calls)), **(standin or HERE)).split()
    launched = [line.split()[0] for line in process.calls("launch")]
    assert said == launched
    return launched


ALIGNED, BY_8, BY_2 = 0x10000, 0x10008, 0x10002


def test_each_range_runs_the_variant_that_the_table_has_for_it(process: Process) -> None:
    sizes = [1, 4, 5, 16, 17, 32, 33, 1000]
    assert ran(process, *((m, 0, ALIGNED) for m in sizes)) == [
        *["tuned", "tuned", "wide", "wide"],
        *["fast", "fast"],  # where the table names one without code for the arch, the declared one
        *["fast", "fast"],
    ]


def test_a_number_decides_like_a_size(process: Process) -> None:
    """Data that is aligned by 8 bytes fits the second declared variant, which has rules of its own."""
    assert ran(process, (2, 5, BY_8), (2, 6, BY_8), (11, 1, BY_8), (10, 1, BY_8)) == [
        "plain",
        "tuned",
        "tuned",
        "plain",
    ]


def test_a_chosen_variant_that_the_data_is_not_aligned_for_leaves_the_declared_one(process: Process) -> None:
    assert ran(process, (8, 0, 0x10010), (8, 0, ALIGNED), (8, 0, 0x10010)) == ["fast", "wide", "fast"]
    assert ran(process, (100, 9, BY_2)) == ["plain"]


def test_calls_like_earlier_ones_are_compared_with_the_declared_variant_too(process: Process) -> None:
    """The tuned variant takes data that the declared one, in whose place it runs, does not: that has other rules."""
    calls = [(2, 3, ALIGNED), (2, 3, BY_8), (2, 3, ALIGNED), (2, 3, BY_8)]
    assert ran(process, *calls) == ["tuned", "plain", "tuned", "plain"]


@pytest.mark.parametrize(
    ("standin", "expected"),
    [
        ({"name": "NVIDIA H800", "count": 100}, ["tuned", "tuned"]),
        ({"name": "another", "count": 117}, ["tuned", "fast"]),
        ({"name": "another", "count": 116}, ["tuned", "tuned"]),
        ({"count": -1}, ["tuned", "tuned"]),
        ({"name": "NVIDIA H100", "count": 132, "capability": 80}, ["fast", "fast"]),
        ({"name": "NVIDIA H100", "count": 132, "fail": "cuDeviceGetName=1"}, ["tuned", "fast"]),
    ],
)
def test_the_table_is_that_of_the_device(process: Process, standin: dict[str, Any], expected: list[str]) -> None:
    assert ran(process, (1, 0, ALIGNED), (99, 0, ALIGNED), **{"capability": 90, **standin}) == expected


def test_the_choice_says_why_and_launches_nothing(process: Process) -> None:
    said = process.run(
        """
        kernel = made.kernel("touch")
        def x(m, data=0x10000):
            return on_cuda((m, 8), "float16", data=data)
        for choice in (
            kernel.choice(x(5), 1), kernel.choice(x(5, 0x10010), 1), kernel.choice(x(20), 1),
            kernel.variant(slug="wide").choice(x(20), 1),
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
        kernel = made.kernel("touch")
        x = on_cuda((3, 8), "float16")
        elsewhere = on_cuda((3, 8), "float16", device=9)
        for arguments in ((x,), (x, "text"), (on_cuda((3, 8)), 1), (x, 2**40), (elsewhere, 1)):
            texts = []
            for function in (kernel, kernel.choice):
                try:
                    function(*arguments)
                except Exception as error:
                    texts.append(f"{type(error).__name__}: {error}")
            assert len(texts) == 2 and texts[0] == texts[1], texts
            print(texts[0].splitlines()[0])
        """,
        **HERE,
    )
    assert len(said.splitlines()) == 5 and "no built variant accepts" in said


def test_only_declared_variants_are_listed_and_others_can_be_called_by_themselves(process: Process) -> None:
    said = process.run(
        """
        kernel = made.kernel("touch")
        try:
            kernel(on_cuda((3, 8)), 1)
        except TypeError as error:
            print(str(error).count("expects:"))
        kernel.variant(slug="wide")(on_cuda((3, 8), "float16"), 1)
        """,
        **HERE,
    )
    assert said.split() == ["2"]
    assert [line.split()[0] for line in process.calls("launch")] == ["wide"]


def test_a_gpu_for_whose_arch_only_declared_variants_have_code_is_supported(process: Process) -> None:
    code = """
    kernel = made.kernel("touch")
    print(kernel.supported(), kernel.variant(slug="wide").supported())
    kernel.preload()
    """
    assert process.run(code, capability=80).split() == ["True", "False"]
    assert process.calls("load") == ["sm_80"] * 3  # the declared ones, and one that has code for this arch
    assert process.run(code, capability=90).split() == ["True", "True"]
    assert process.calls("load") == ["sm_90a"] * 4
    assert process.run('print(made.kernel("touch").supported())', capability=70).split() == ["False"]


def test_without_tables_the_first_declared_variant_runs(folder: Path, driver: Path, tmp_path: Path) -> None:
    make_package(tmp_path, {"touch": touch()}, ARCHS)
    process = Process(tmp_path, driver)
    said = process.run('print(made.kernel("touch").choice(on_cuda((3, 8), "float16"), 1))', **HERE)
    assert said == "<variant fast: it is the first declared variant that fits; there are no tuning tables>\n"


def test_what_is_declared_for_the_cpu_runs_only_where_a_table_says_so(driver: Path, tmp_path: Path) -> None:
    """A table for an sm_80 has chosen it, so it has code for that arch only."""
    make_package(tmp_path, {"touch": touch()}, ARCHS)
    path = tmp_path / "made/touch.json"
    entry = json.loads(path.read_text())
    for place in (0, 2):
        variant = entry["variants"][place]
        variant["archs"] = variant["units"][0]["archs"] = ["sm_80"]
        variant["tabled"] = ["cuda"]
    table = DeviceTable("cuda", "sm_80", "NVIDIA A100", 108, {1: Rules(("m",), ((4, 0), (None, 1)))})
    path.write_text(json.dumps(entry | {"declared": 5, "tables": [table.to_json()]}))
    process = Process(tmp_path, driver)
    assert ran(process, (1, 0, ALIGNED), (5, 0, ALIGNED), capability=90) == ["plain", "plain"]
    a100 = {"capability": 80, "name": "NVIDIA A100", "count": 108}
    assert ran(process, (1, 0, ALIGNED), (5, 0, ALIGNED), **a100) == ["fast", "plain"]
    for capability in (80, 90):
        assert process.run('print(made.kernel("touch").supported())', capability=capability) == "True\n"
