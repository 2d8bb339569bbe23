"""What others run to test their own front ends and backends finds those that break a promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernelwright.testing import Caller, Project
from kernelwright.testing.calls import (
    every_dtype_and_size_is_taken,
    outputs_are_made_or_written,
    strides_are_taken_or_refused,
)
from kernelwright.testing.languages import the_same_bytes_again
from numpy.lib.stride_tricks import as_strided

CALLER = Caller("numpy", np.asarray, np.asarray)


def plus(alpha: float, x: Any, y: Any, z: Any = None) -> Any:
    made = alpha * x + y
    if z is None:
        return made
    z[:] = made
    return None


def add_to(total: Any, x: Any) -> None:
    total += x


RIGHT = {
    "each": lambda x: x.copy(),
    "plus": plus,
    "two": lambda x: (np.append(x, x[:1] * 0), 2 * x),
    "add_to": add_to,
    "rows": lambda x: 2 * x,
}
"""The kernels of a backend that keeps its promises, as NumPy computes them."""

WRONG: dict[str, tuple[Callable[..., None], str, Callable[..., Any]]] = {
    "another dtype": (every_dtype_and_size_is_taken, "each", lambda x: x.astype("float64")),
    "one element for none": (every_dtype_and_size_is_taken, "each", lambda x: np.resize(x, x.size or 1)),
    "the first element": (every_dtype_and_size_is_taken, "each", lambda x: x[:1].copy()),
    "another order": (outputs_are_made_or_written, "two", lambda x: RIGHT["two"](x)[::-1]),
    "a list": (outputs_are_made_or_written, "two", lambda x: [*RIGHT["two"](x)]),
    "nothing is written": (
        outputs_are_made_or_written,
        "plus",
        lambda a, x, y, z=None: plus(a, x, y, 0 * x if z is not None else None),
    ),
    "no input is written": (outputs_are_made_or_written, "add_to", lambda total, x: None),
    "no gaps": (strides_are_taken_or_refused, "rows", lambda x: 2 * as_strided(x, strides=(4 * x.shape[1], 4))),
    "gaps of another array": (strides_are_taken_or_refused, "rows", lambda x: 2 * as_strided(x, strides=(16, 4))),
    "no steps": (strides_are_taken_or_refused, "plus", lambda a, x, y: plus(a, as_strided(x, strides=(4,)), y)),
}


@pytest.mark.parametrize("wrong", [None, *WRONG])
def test_a_backend_that_breaks_a_promise_is_found_and_one_that_keeps_it_passes(wrong: str | None) -> None:
    if wrong is None:
        for promise in dict.fromkeys(promise for promise, _, _ in WRONG.values()):
            promise(CALLER, SimpleNamespace(**RIGHT))
        return
    promise, name, kernel = WRONG[wrong]
    with pytest.raises(AssertionError):
        promise(CALLER, SimpleNamespace(**{**RIGHT, name: kernel}))


@dataclass(frozen=True)
class Built(Project):
    """A project whose builds make what they are told, once: what was made is kept, as a build does."""

    builds: list[dict[str, bytes]]

    def scons(self, *arguments: str, fails: bool = False) -> str:
        kept, top = self.folder / "build/kept", self.folder / "build/demo"
        said = "" if kept.exists() else "[ LOWER ] scale"
        if said:
            for name, content in self.builds.pop(0).items():
                (kept / name).parent.mkdir(parents=True, exist_ok=True)
                (kept / name).write_bytes(content)
        for path in kept.rglob("*.*"):
            (top / path.relative_to(kept)).parent.mkdir(parents=True, exist_ok=True)
            (top / path.relative_to(kept)).write_bytes(path.read_bytes())
        return said


@pytest.mark.parametrize("more", [{}, {"_lib/a.so": b"2"}, {"_lib/b.so": b""}])
def test_a_language_that_makes_other_bytes_or_files_the_second_time_is_found(tmp_path: Path, more: Any) -> None:
    first = {"_lib/a.so": b"1", "text.py": b""}
    for number, builds in enumerate(([first, {**first, **more}], [{**first, **more}, first])):
        language: Any = SimpleNamespace(project=partial(Built, None, builds=builds))
        if more:
            with pytest.raises(AssertionError):
                the_same_bytes_again(language, tmp_path / str(number))
        else:
            the_same_bytes_again(language, tmp_path / str(number))
