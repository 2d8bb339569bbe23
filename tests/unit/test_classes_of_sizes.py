"""Which variants classes of sizes make of the configs that are listed, recorded, or given as a default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernelwright import grid, kernel, recorded
from kernelwright.core.errors import DefinitionError
from kernelwright.define import recorded as recording
from kernelwright.define.arguments import Scalar, Tensor, multiples_of


def scale(dtype: str = "float32", block: int = 1, n_multiple_of: int = 1) -> None:
    """A definition that is never called."""


def configs_of(**arguments: Any) -> list[dict[str, Any]]:
    return [dict(variant.config) for variant in kernel(**arguments)(scale).variants]


CLASSES = {"n": [1, 16]}
BOTH = [{"dtype": "float16", "n_multiple_of": 16}, {"dtype": "float16"}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where recorded configs are looked for."""
    monkeypatch.setattr(recording, "folder_of", lambda function: tmp_path)
    return tmp_path


def record(folder: Path, *configs: dict[str, Any]) -> None:
    (folder / "configs.json").write_text(recording.text_of({"scale": configs}))


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ([{"n_multiple_of": 16}, {}], [{"n_multiple_of": 16}, {}]),
        ([{"n_multiple_of": 16}], [{"n_multiple_of": 16}]),
        ([{"n_multiple_of": 1}], [{}]),
        ([{"n_multiple_of": 1}, {"n_multiple_of": 16}], [{"n_multiple_of": 16}, {}]),
    ],
)
def test_a_config_that_names_a_class_is_for_that_one(configs, expected):
    assert configs_of(configs=configs, divisible=CLASSES) == expected


def test_the_largest_multiples_of_what_was_recorded_come_first(folder: Path) -> None:
    record(folder, *BOTH, {"dtype": "float32"})
    content = json.loads((folder / "configs.json").read_text())
    assert content["kernels"]["scale"][0] == BOTH[1], "the file is sorted"
    assert configs_of(configs=recorded("configs.json"), divisible=CLASSES) == [*BOTH, {"dtype": "float32"}]


def test_of_a_space_it_is_the_callers_part_that_has_the_order(folder: Path) -> None:
    record(folder, {"dtype": "float16", "block": 1}, {"dtype": "float16", "n_multiple_of": 16, "block": 2})
    made = kernel(configs=recorded("configs.json"), tune=grid(block=[1, 2]), divisible=CLASSES)(scale)
    assert [dict(choice.config) for choice in made.choices] == BOTH


@pytest.mark.parametrize("listed", [[1, 16], [16]])
def test_a_default_for_what_was_not_recorded_has_all_classes(folder: Path, listed: list[int]) -> None:
    default = recorded("configs.json", default=[{"dtype": "float16"}])
    assert configs_of(configs=default, divisible={"n": listed}) == BOTH[: len(listed)]


def test_too_many_classes_are_an_error() -> None:
    with pytest.raises(DefinitionError, match="configs and divisible make 262144 variants, at most 10000") as raised:
        configs_of(divisible={symbol: range(1, 65) for symbol in "kmn"})
    assert "remedy: list fewer classes" in str(raised.value)


def test_a_size_is_a_multiple_of_all_that_is_said_of_it():
    x, y = Tensor("float32", "m", "n", multiples={"n": 6}), Tensor("float32", "n", multiples={"n": 4})
    assert multiples_of({"x": x, "y": y}, {"m": 2, "n": 16}) == {"m": 2, "n": 48}
    assert multiples_of({"y": y, "x": x, "k": Scalar("int32", multiple=8), "n": Scalar("int32")}) == {"n": 12, "k": 8}
