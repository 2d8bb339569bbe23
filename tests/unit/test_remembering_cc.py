"""The C compiler of the tests: what it remembers, and what it leaves to the real one as users have it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the compiler, which runs a program that notes its arguments in place of gcc."""
    real = tmp_path / "real"
    lines = (
        "#!/bin/sh",
        f'echo "$@" >> {tmp_path}/log',
        'for w in "$@"; do [ "$p" = -o ] && echo o > "$w"; p=$w; done',
    )
    real.write_text("\n".join(lines) + "\n:\n")
    real.chmod(0o755)
    (tmp_path / "memory").mkdir()
    text = (ROOT / "tests/standin/remembering_cc.py").read_text()
    places = f"COMPILER, MEMORY = {str(real)!r}, {str(tmp_path / 'memory')!r}"
    (tmp_path / "cc.py").write_text(text.replace('COMPILER = MEMORY = ""', places))
    return tmp_path


def compiled(folder: Path, source: str) -> list[str]:
    """The runs of the real compiler for a source that is compiled as the stages do, in the folder of the kernels."""
    path = folder / source
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("int x;")
    (folder / "log").write_text("")
    command = [sys.executable, "cc.py", "-O2", "-c", source, "-o", str(folder / "scratch.o")]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "log").read_text().splitlines()


@pytest.mark.parametrize("source", ["softmax/wrapper.c", "gemm/backends/cython/_gemm.c"])
def test_a_source_is_compiled_once_and_hardly_optimised(folder: Path, source: str) -> None:
    first = compiled(folder, source)
    assert [line.endswith("-O0") for line in first if "-E" not in line] == [True]
    assert [line for line in compiled(folder, source) if "-E" not in line] == []


@pytest.mark.parametrize("source", ["saxpy/wrapper.c", "top_k/backends/cython/_top_k.c", "x/_saxpy.c"])
def test_two_kernels_of_the_library_are_compiled_as_users_have_them_each_time(folder: Path, source: str) -> None:
    for _ in range(2):
        (line,) = compiled(folder, source)
        assert "-O2" in line and "-O0" not in line and "-E" not in line
