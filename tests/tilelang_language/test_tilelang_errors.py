"""Errors of definitions in TileLang: each names its place, and what to do."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from kernelwright.core.errors import DefinitionError, KernelwrightError, LoweringError, ToolchainError
from kernelwright.define.sizes import Size
from kernelwright.define.unit import Unit
from kernelwright.frontends.tilelang.lowering import lower
from kernelwright.frontends.tilelang.program import NEED, Program

PYTHON = os.environ.get("KERNELWRIGHT_TILELANG_PYTHON", "")
needs_tilelang = pytest.mark.skipif(not PYTHON, reason=f"no KERNELWRIGHT_TILELANG_PYTHON with {NEED.requirement}")
SOURCE = Path(__file__).with_name("faults.py")
KINDS = {error.__name__: error for error in (DefinitionError, LoweringError, ToolchainError)}


def message_of(
    folder: Path, program: Program, monkeypatch, *, python: str = PYTHON, **fields: object
) -> tuple[str, str]:
    """The kind and the words of the error of a program whose definition is in ``kernels/k.py``."""
    (folder / "kernels").mkdir()
    shutil.copy(SOURCE, folder / "kernels/faults.py")
    monkeypatch.chdir(folder)
    values = {"outputs": (-1,), "target": "cuda", "arch": "sm_90a", "location": "kernels/k.py:7", **fields}
    unit = Unit("k", "default", "kw_k__default__cuda", {}, python=python, **values)
    with pytest.raises(KernelwrightError) as caught:
        lower(program, unit, lambda doing: None)
    text = str(caught.value)
    assert "tilelang_worker.py" not in text
    assert "k/default [lower]" in text
    return type(caught.value).__name__, text


@pytest.mark.parametrize(
    ("program", "python", "kind", "words"),
    [
        (Program("faults.py", "large"), "", "ToolchainError", ("no environment", f"pip install {NEED.requirement}")),
        (Program("faults.py", "large"), "/nowhere/python", "ToolchainError", ("'/nowhere/python'", "tilelang_python")),
        (
            Program("faults.py", "large"),
            sys.executable,
            "ToolchainError",
            ("No module named 'tilelang'", NEED.requirement),
        ),
        (Program("fault.py", "large"), "python", "DefinitionError", ("there is no file 'fault.py'", "kernels")),
        (Program(len, "large"), "python", "DefinitionError", ('Program("matmul.py", "matmul", M=1024)',)),
        (Program("faults.py", "a b"), "python", "DefinitionError", ("'a b'", "name of a function")),
        (Program("faults.py", "large", n=len), "python", "DefinitionError", ("argument 'n'", "numbers, texts")),
        (
            Program("faults.py", "large", n=(Size("4 * n"), 1)),
            "python",
            "DefinitionError",
            ("argument 'n'", "a size of the call is a name"),
        ),
    ],
)
def test_what_is_wrong_without_tilelang(tmp_path, monkeypatch, program, python, kind, words):
    found, text = message_of(tmp_path, program, monkeypatch, python=python)
    assert found == kind and all(word in text for word in words), text


def line_of(text: str) -> int:
    """The line of the source that has a text."""
    return next(n for n, line in enumerate(SOURCE.read_text().splitlines(), 1) if text in line)


CASES = {
    "nothing": ("DefinitionError", "kernels/faults.py has no 'nothing'; such functions are fine, raising, mismatched"),
    "helper": (
        "DefinitionError",
        f"faults.py:{line_of('def helper')} k/default [lower]: .* is no function with @tilel",
    ),
    "raising": (
        "DefinitionError",
        f"faults.py:{line_of('n // 0')} k/default [lower]: raising raised ZeroDivisionError",
    ),
    "mismatched": (
        "DefinitionError",
        f"faults.py:{line_of('T.gemm')} .*T.gemm K shape check failed: K_A = 32, K_B = 64",
    ),
    "large": (
        "LoweringError",
        "the launch of copied_kernel has 262144 bytes of shared memory in a block, and sm_90a has 232448",
    ),
    "kept": ("LoweringError", "kept cannot be a kernel of a package: it uses a policy of the level 2 cache"),
    "pointing": ("LoweringError", "argument 'x' is a plain pointer"),
    "convolved": ("LoweringError", "a tensor map for convolutions"),
    "ending": ("LoweringError", "TileLang cannot lower ending for sm_90a: the process was ended by SIGABRT"),
}


@needs_tilelang
@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_with_a_function(tmp_path, monkeypatch, name):
    kind, words = CASES[name]
    found, text = message_of(tmp_path, Program("faults.py", name, n=64), monkeypatch)
    at = 0
    for part in words.split(".*"):
        assert part in text[at:], text
        at = text.index(part, at)
    assert found == kind


@needs_tilelang
@pytest.mark.parametrize(
    ("values", "fields", "words"),
    [
        ({}, {}, "cannot be called with the values of the Program: missing a required argument: 'n'"),
        ({"n": 64, "m": 1}, {}, "unexpected keyword argument 'm'"),
        ({"n": 64}, {"outputs": ("x",)}, "the outputs of fine are y, those of the definition x"),
    ],
)
def test_what_does_not_fit_a_function(tmp_path, monkeypatch, values, fields, words):
    _, text = message_of(tmp_path, Program("faults.py", "fine", **values), monkeypatch, **fields)
    assert words in text


@needs_tilelang
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "deciding",
            f"kernels/faults.py:{line_of('n % 128 == 0')} k/default [lower]: deciding decides by whether n % 128 is 0",
        ),
        ("counting", f":{line_of('range(n)')} k/default [lower]: counting raised TypeError"),
        ("holding", "TileLang cannot lower holding for sm_90a"),
    ],
)
def test_a_function_that_has_to_know_a_size_names_it(tmp_path, monkeypatch, name, words):
    _, text = message_of(tmp_path, Program("faults.py", name, n=Size("n")), monkeypatch)
    assert words in text and "if it needs to know n, give the Program a number for it" in text, text
