"""Which calls a package notes as those that no built variant fits, and what is done about them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernelwright.runtime.misses import MOST, Misses
from kernelwright.runtime.refusal import BY_KERNEL, NO_TARGET, NO_VARIANT, because
from support.launcher_build import scalar, tensor


def entry(*dtypes: str, target: str = "llvm") -> dict[str, Any]:
    """A kernel ``y = f(x, alpha, count)`` with a variant for each dtype, for x: [n, 4]."""
    variants = []
    for dtype in dtypes:
        items = [tensor("x", dtype, ["n", 4]), scalar("alpha", "float32"), scalar("count", "int32")]
        items.append(tensor("y", dtype, ["n", 4], output=True))
        variants.append({"arguments": items, "units": [{"target": target}]})
    return {"variants": variants}


ONE = entry("float32")
X = np.zeros((3, 4), "float32")
OPTIONAL = {"variants": [{"arguments": [tensor("x", "float32", ["n"]), tensor("y", "int8", []) | {"given": False}]}]}
OPTIONAL["variants"][0]["units"] = [{"target": "llvm"}]
REFUSED = because(TypeError("kernel 'f': Mismatched x.dtype on argument #0"), BY_KERNEL)


@pytest.mark.parametrize(
    ("arguments", "is_miss"),
    [
        ((X, 1.5, 2), False),
        ((X, 1, True), False),
        ((X, 1.5, 2, X), False),
        ((X[:, ::2][:, :2].repeat(2, 1), 1.5, 2), False),
        ((X.astype("float16"), 1.5, 2), True),
        ((X.astype("float16"), 1.5, 2, X.astype("float16")), True),
        ((X, 1.5, 2, X.astype("float64")), True),
        ((X[0], 1.5, 2), True),
        ((X[:, :3], 1.5, 2), True),
        ((X, 1.5, 2.5), True),
        ((X, 1.5), False),
        ((X, "1.5", 2), False),
        ((None, 1.5, 2), True),
        ((7, 1.5, 2), False),
    ],
)
def test_a_call_is_noted_if_dtypes_ranks_or_constant_sizes_are_those_of_no_variant(
    arguments: tuple[Any, ...], is_miss: bool
) -> None:
    misses = Misses()
    assert misses.note("f", ONE, arguments, REFUSED) == is_miss
    assert len(misses.calls()) == is_miss


def test_a_call_with_an_array_is_noted_if_the_variants_are_for_none() -> None:
    misses, x = Misses(), X[0]
    assert [misses.note("f", OPTIONAL, call, REFUSED) for call in ((x,), (x, None), (x, x), ())] == [0, 0, 1, 0]
    assert [argument["name"] for argument in misses.calls()[0]["arguments"]] == ["x", "y"]


def test_a_device_that_nothing_is_built_for_and_sizes_of_no_class_are_noted() -> None:
    error = because(ValueError("kernel 'f': it cannot run on cpu"), NO_TARGET)
    assert Misses().note("f", entry("float32", target="cuda"), (X, 1.5, 2), error)
    behind = {"variants": [{"arguments": [scalar("alpha", "float32"), tensor("x", "float32", ["n", 4])]}]}
    behind["variants"][0]["units"] = [{"target": "cuda"}]
    assert Misses().note("f", behind, (1.5, X), error)
    classes = {"variants": [variant | {"multiples": {"n": 16}} for variant in ONE["variants"]]}
    for size, is_miss in ((16, False), (0, False), (17, True)):
        assert Misses().note("f", classes, (np.zeros((size, 4), "float32"), 1.5, 2), REFUSED) == is_miss


@pytest.mark.parametrize("error", [because(RuntimeError("no driver"), BY_KERNEL), TypeError("kernel 'f': x is wrong")])
def test_other_errors_are_not_noted(error: Exception) -> None:
    misses = Misses()
    with pytest.raises(type(error)) as raised:
        misses.answer("f", ONE, (X.astype("float16"), 1.5, 2), error)
    assert raised.value is error and misses.calls() == []


class Traced:
    """An array without data."""

    dtype, shape = "torch.bfloat16", ("s0", 4)


class Symbolic:
    """A number of PyTorch's that is not known yet."""

    def __sym_max__(self) -> None: ...

    def __index__(self) -> int:
        raise AssertionError("it was asked for")

    def __str__(self) -> str:
        return "s1"


def test_what_is_noted_of_arguments_has_values_that_json_has() -> None:
    misses = Misses()
    no_match = because(TypeError("kernel 'f': no built variant accepts these arguments"), NO_VARIANT)
    for arguments in (
        (X.astype("float16"), np.float32(0.5), np.int64(3)),
        (Traced(), float("nan"), Symbolic()),
        (Traced(), float("nan"), Symbolic()),
        (memoryview(b"1"), "text", np.bool_(True)),
    ):
        with pytest.raises(TypeError) as raised:
            misses.answer("f", ONE, arguments, no_match)
        assert raised.value is no_match
    calls = misses.calls()
    assert [call["count"] for call in calls] == [1, 2, 1] and {call["kernel"] for call in calls} == {"f"}
    assert calls[0]["arguments"] == [
        {"name": "x", "dtype": "float16", "shape": [3, 4], "device": "cpu"},
        {"name": "alpha", "kind": "float", "value": 0.5},
        {"name": "count", "kind": "int", "value": 3},
    ]
    assert calls[1]["arguments"][0] == {"name": "x", "dtype": "bfloat16", "shape": ["s0", 4]}
    assert calls[1]["arguments"][2] == {"name": "count", "kind": "int", "value": "s1"}
    assert calls[2]["arguments"] == [
        {"name": "x", "kind": "memoryview", "value": None},
        {"name": "alpha", "kind": "str", "value": None},
        {"name": "count", "kind": "bool", "value": True},
    ]
    json.dumps(calls)
    calls[0]["arguments"].clear()
    assert misses.calls()[0]["arguments"], "what is returned is the caller's own"


def test_so_many_different_calls_are_kept_and_no_more() -> None:
    misses = Misses()
    for number in (*range(MOST + 50), *range(MOST + 50)):
        misses.note("f", ONE, (X, 1.5, number + 0.5), REFUSED)
    assert [call["count"] for call in misses.calls()] == [2] * MOST


def test_a_child_of_fork_notes_calls_whoever_held_the_lock() -> None:
    misses = Misses()
    misses._lock.acquire()
    pid = os.fork()
    if not pid:
        os._exit(0 if misses.note("f", ONE, (X, 1.5, 2.5), REFUSED) else 1)
    assert os.waitpid(pid, 0)[1] == 0


# ---- what is compiled on demand; the kernels stand in


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The definition files that were loaded; they have a kernel called as the file."""
    paths: list[str] = []

    def load(path: str) -> Any:
        paths.append(Path(path).name)
        return SimpleNamespace(**{Path(path).stem: lambda *arguments: ("compiled", len(arguments))})

    monkeypatch.setitem(sys.modules, "kernelwright", SimpleNamespace(load=load))
    monkeypatch.chdir(tmp_path)
    for name in ("f.py", "g.py"):
        (tmp_path / name).touch()
    return paths


def test_a_call_is_made_with_what_the_definition_file_has(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    misses = Misses()
    missed = (X, 1.5, 2.5)
    with pytest.raises(TypeError, match="Mismatched"):
        misses.answer("f", ONE, missed, REFUSED)
    misses.set_fallback("compile", ["g.py", "f.py"])
    monkeypatch.chdir("/")
    assert [misses.answer("f", ONE, missed, REFUSED) for _ in range(3)] == [("compiled", 3)] * 3
    assert loaded == ["g.py", "f.py"]
    assert [call["count"] for call in misses.calls()] == [4]
    with pytest.raises(TypeError, match=r"kernel 'f': Mismatched(.|\n)*a call with a stream is not compiled on demand"):
        misses.answer("f", ONE, missed, REFUSED, stream=1)
    with pytest.raises(TypeError) as raised:
        misses.answer("f", ONE, (X, 1.5, 2), REFUSED)
    assert raised.value is REFUSED, "a variant fits, so another one is no help"
    with pytest.raises(TypeError, match=r"kernel 'f': Mismatched(.|\n)*none of .*/g.py, .*/f.py has this kernel"):
        misses.answer("h", ONE, missed, REFUSED)
    misses.set_fallback(None, [])
    with pytest.raises(TypeError) as raised:
        misses.answer("f", ONE, missed, REFUSED)
    assert raised.value is REFUSED


@pytest.mark.parametrize(
    ("mode", "definitions", "kind", "said"),
    [
        ("build", ["f.py"], ValueError, "expected 'compile' or None, got 'build'"),
        ("compile", [], ValueError, "expected at least one definition file"),
        (None, ["f.py"], ValueError, "expected no definition files with None"),
        ("compile", ["f.py", "absent.py"], FileNotFoundError, "there is no definition file .*/absent.py"),
    ],
)
def test_what_is_no_fallback_is_an_error(
    loaded: list[str], mode: str | None, definitions: list[str], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        Misses().set_fallback(mode, definitions)
