"""Flags that make nvcc read more files, and lists of files as compilers write them for Make."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelwright.errors import ToolchainError, Where
from kernelwright.headers import can_include, headers_in, options_files, parse_dependencies


@pytest.mark.parametrize(
    "flags",
    [
        ["-include", "a.h"],
        ["-include=a.h"],
        ["--pre-include", "a.h"],
        ["--use_fast_math", "--pre-include=a.h"],
        ["-I", "inc"],
        ["-Iinc"],
        ["-I=inc"],
        ["--include-path=inc"],
        ["-isystem", "inc"],
        ["-isystem=inc"],
        ["--system-include", "inc"],
        ["-optf", "flags.txt"],
        ["--options-file=flags.txt"],
        ["-Xcompiler", "-include,a.h"],
        ["-Xcompiler=-O2,-include,a.h"],
        ["--compiler-options", "-imacros", "a.h"],
        ["-Xcompiler", "-O2", "-Xcompiler", "-iquote,inc"],
        ["-Xcompiler=@args"],
        ["-Xptxas", "-v,-optf,flags.txt"],
    ],
)
def test_flags_that_can_include(flags: list[str]) -> None:
    assert can_include(flags)


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--use_fast_math", "-lineinfo", "-G"],
        ["-maxrregcount=64", "--ftz", "true"],
        ["-DX=-include", "-D", "Y=1"],
        ["-Xptxas", "-O2,-v", "-Xptxas=-dlcm=ca"],
        ["-Xcompiler", "-O2,-DA=-I"],
        ["-Xcompiler"],
    ],
)
def test_flags_that_cannot(flags: list[str]) -> None:
    assert not can_include(flags)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("device : device.cu \\\n    a.h \\\n    b.h\n", ["device.cu", "a.h", "b.h"]),
        ("device: device.cu a.h", ["device.cu", "a.h"]),
        ("device : my\\ inc/a\\ \\ b.h c.h\n", ["my inc/a  b.h", "c.h"]),
        ("device : a\\#b.h c#d.h e:f.h g$$h.h k\\l.h\n", ["a#b.h", "c#d.h", "e:f.h", "g$$h.h", "k\\l.h"]),
        ("device : a.h\n\na.h:\nb.h:\n", ["a.h"]),
        ("device : \\\n  \\\n", []),
        ("", []),
    ],
)
def test_lists_for_make(text: str, names: list[str]) -> None:
    assert parse_dependencies(text) == names


def install(tmp_path: Path, *names: str) -> None:
    for path in (tmp_path / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def listed(tmp_path: Path, names: list[str], nvcc: str = "cuda/bin/nvcc", compiler: str = "gcc/bin/gcc") -> list[str]:
    listing = tmp_path / "headers.d"
    listing.write_text("device : " + " \\\n  ".join(names) + "\n")
    found = headers_in(listing, tmp_path / "build", str(tmp_path / nvcc), str(tmp_path / compiler), Where())
    return [path.relative_to(tmp_path).as_posix() for path in found]


def test_headers_of_cuda_the_system_and_the_compiler_are_left_out(tmp_path: Path) -> None:
    cuda = ["cuda/include/cuda_runtime.h", "cuda/include/crt/x.h", "cuda/include/cccl/y.h"]
    gcc = ["gcc/lib/gcc/x86_64/13/include/stddef.h", "gcc/include/c++/13/cstdint"]
    own = ["build/near.h", "inc/far.h", "cuda/mine/z.h", "gcc/include/mine.h", "gcc/lib/mine.h"]
    install(tmp_path, *cuda, *gcc, *own)
    system = ["/usr/include/stdc-predef.h", "/usr/lib/gcc/x86_64-linux-gnu/12/include/stddef.h"]
    # As nvcc writes them: its own through its folder, the user's relative to where it runs, or absolute.
    names = [f"{tmp_path}/cuda/bin/..//{name.removeprefix('cuda/')}" for name in cuda]
    names += [*system, *(str(tmp_path / name) for name in gcc), "near.h", "./near.h", "../inc/far.h"]
    names += [str(tmp_path / name) for name in own[2:]]
    assert listed(tmp_path, names) == own


def test_another_cuda_than_nvccs_own_is_not_left_out(tmp_path: Path) -> None:
    install(tmp_path, "cuda/bin/nvcc", "other/include/cuda_runtime.h", "other/include/cuda_fp16.h")
    names = ["../other/include/cuda_runtime.h", "../other/include/cuda_fp16.h"]
    assert listed(tmp_path, names) == ["other/include/cuda_runtime.h", "other/include/cuda_fp16.h"]


def test_cuda_is_found_through_symbolic_links(tmp_path: Path) -> None:
    install(tmp_path, "cuda-13/bin/nvcc", "cuda-13/include/cuda_runtime.h", "cuda-13/include/cuda_fp16.h")
    (tmp_path / "cuda").symlink_to("cuda-13")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").symlink_to("../cuda/bin/nvcc")
    for top in ("cuda", "cuda-13"):
        names = [f"../{top}/include/cuda_runtime.h", f"../{top}/include/cuda_fp16.h"]
        for nvcc in ("cuda/bin/nvcc", "cuda-13/bin/nvcc", "bin/nvcc"):
            assert listed(tmp_path, names, nvcc) == []


def test_a_name_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"gone\.h', which is no file"):
        listed(tmp_path, ["gone.h"])


def test_a_doubled_dollar_is_one_or_two_whatever_is_there(tmp_path: Path) -> None:
    install(tmp_path, "build/a$b.h", "build/c$$d.h")
    assert listed(tmp_path, ["a$$b.h", "c$$d.h"]) == ["build/a$b.h", "build/c$$d.h"]


def test_options_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("-O3 -optf two.txt,one.txt\n--options-file='th ree.txt'")
    (tmp_path / "two.txt").write_text("-Xcompiler @four.txt")
    (tmp_path / "th ree.txt").write_text("a stray ' quote -optf missing.txt")
    install(tmp_path, "four.txt", "five.txt")
    flags = ["-lineinfo", "-optf", "one.txt", "-Xptxas=-optf,five.txt"]
    names = [path.name for path in options_files(flags, tmp_path)]
    assert sorted(names) == ["five.txt", "four.txt", "one.txt", "th ree.txt", "two.txt"]
    assert options_files(["-DX=-optf", "-optfoo", "one.txt"], tmp_path) == []
