"""``kernelwright explain`` says what a call would run, and why not the rest, as the package itself decides it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from kernelwright.commands.explain import value_of
from support.forked import starter
from support.project import Project

DEFINITION = """
from kernelwright import grid, kernel
from tvm import te


@kernel(configs=grid(columns=[8, 16], dtype=["float32", "float16"]), outputs=["y"])
def twice(columns, dtype):
    rows = te.var("rows")
    x = te.placeholder((rows, columns), dtype, name="x")
    return te.create_prim_func([x, te.compute((rows, columns), lambda i, j: x[i, j] + x[i, j], name="y")])
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = Project.of(
        tmp_path_factory.mktemp("explain"), '[tool.kernelwright]\ntargets = ["llvm"]\n', twice=DEFINITION
    )
    project.scons()
    return project.folder / "build/demo"


def explain(package: Path, *words: str) -> tuple[int, list[str]]:
    program = "import sys; from kernelwright.cli import main; sys.exit(main(sys.argv[1:]))"
    done = starter("support.scons_start").run(program, "explain", package, *words, env=os.environ, merged=True)
    return done.returncode, done.stdout.splitlines()


def test_the_variant_that_runs_and_the_reasons_of_the_others_are_told(package: Path) -> None:
    status, lines = explain(package, "twice", "float16[100000,16]")
    assert (status, len(lines)) == (0, 4)
    assert lines[0].startswith("runs columns-16_dtype-float16: it is the first declared variant that fits")
    assert lines[1] == "not columns=8, dtype=float32: it expects x = float32[rows, 8]"
    assert explain(package, "twice", "x=float16[3,16]") == (status, lines), "an argument by name"


def test_a_call_that_nothing_fits_is_told_with_status_1(package: Path) -> None:
    status, lines = explain(package, "twice", "float16[3,17]")
    assert status == 1 and lines[0].startswith("no variant runs: kernel 'twice': no built variant accepts")
    assert lines[-1] == "not columns=16, dtype=float16: it expects x = float16[rows, 16]"


def test_a_word_stands_for_a_compact_array_with_just_that_alignment() -> None:
    value = value_of("int16[5,3,7]@16", (1, 0))
    array = np.from_dlpack(value)
    assert (array.shape, array.strides, array.ctypes.data % 32) == ((5, 3, 7), (42, 14, 2), 16)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["twise", "float32[1,8]"], "has no kernel 'twise'"),
        (["twice", "float32(1,8)"], "'float32(1,8)' is no argument of a call"),
        (["twice", "floot32[1,8]"], "dtype 'floot32' cannot be an argument"),
        (["twice", "float32[1,8]", "--device", "tpu"], "'tpu' is no device"),
    ],
)
def test_a_word_that_means_nothing_is_an_error(package: Path, words: list[str], said: str) -> None:
    status, lines = explain(package, *words)
    assert status in (1, 2) and said in "".join(lines) and "Traceback" not in "".join(lines)


def test_what_is_no_package_is_an_error(package: Path) -> None:
    status, lines = explain(package.parent / "nothing", "twice")
    assert status == 1 and "is no package of kernels" in lines[0] and "remedy: name the folder" in lines[1]
