"""The C compiler of the tests: what it remembers, and what it leaves to the real one as users have it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.project import make_remembering_compiler
from support.scripts import script

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the compiler, which runs a program that notes its arguments in place of gcc."""
    body = 'for w in "$@"; do [ "$p" = -o ] && echo o > "$w"; p=$w; done\n:'
    real = script(tmp_path / "real", f'echo "$@" >> {tmp_path}/log\n{body}')
    (tmp_path / "memory").mkdir()
    make_remembering_compiler(real, tmp_path / "memory", tmp_path / "cc")
    return tmp_path


def compiled(folder: Path, source: str) -> list[str]:
    """The runs of the real compiler for a source that is compiled as the stages do, in the folder of the kernels."""
    path = folder / source
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("int x;")
    (folder / "log").write_text("")
    command = ["./cc", "-O2", "-c", source, "-o", str(folder / "scratch.o")]
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


def test_what_warns_or_fails_is_told_each_time_and_another_option_is_another_compilation(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    make_remembering_compiler(shutil.which("cc") or "", tmp_path / "memory", tmp_path / "cc")
    source, target = tmp_path / "a.c", tmp_path / "a.o"

    def run(text: str, *options: str) -> tuple[bool, bool]:
        """Whether it succeeded, and whether it wrote anything."""
        source.write_text(text)
        command = ["./cc", *options, "-c", "a.c", "-o", str(target)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        return done.returncode == 0, bool(done.stdout + done.stderr)

    for _ in range(2):
        assert run("int f(void) { return g(); }") == (True, True)
        assert run("int f(void) { return 1 }") == (False, True)
    assert run("int f(void) { return NUMBER; }", "-DNUMBER=1") == (True, False)
    first = target.read_bytes()
    assert run("int f(void) { return NUMBER; }", "-DNUMBER=2") == (True, False)
    assert target.read_bytes() != first
    assert run("int f(void) { return NUMBER; }", "-DNUMBER=1") == (True, False)
    assert target.read_bytes() == first and len(list((tmp_path / "memory").iterdir())) == 2
