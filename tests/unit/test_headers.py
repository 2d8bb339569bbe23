"""Flags that make nvcc read more files, and lists of files as compilers write them for Make."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from kernelwright.core.dependencies import EDITED
from kernelwright.core.errors import DefinitionError, ToolchainError, Where
from kernelwright.stages.compilation import included
from kernelwright.stages.context import require_folders
from kernelwright.toolchain.headers import (
    Search,
    can_include,
    headers_in,
    included_files,
    options_files,
    parse_dependencies,
    sought_in_vain,
)
from kernelwright.toolchain.nvcc_run import NvccJob

INCLUDE = (
    *("-include a.h", "--use_fast_math --pre-include=a.h", "-Iinc", "--include-path=inc", "-isystem=inc"),
    *("--system-include inc", "-optf flags.txt", "--options-file=flags.txt", "-Xcompiler -include,a.h"),
    *("-Xcompiler=-O2,-include,a.h", "--compiler-options -imacros a.h", "-Xcompiler -O2 -Xcompiler -iquote,inc"),
    *("-Xcompiler=@args", "-Xptxas -v,-optf,flags.txt"),
)
INCLUDE_NOT = (
    *("", "--use_fast_math -lineinfo -G", "-maxrregcount=64 --ftz true", "-DX=-include -D Y=1"),
    *("-Xptxas -O2,-v -Xptxas=-dlcm=ca", "-Xcompiler -O2,-DA=-I", "-Xcompiler"),
)


@pytest.mark.parametrize(("flags", "can"), [*((f, True) for f in INCLUDE), *((f, False) for f in INCLUDE_NOT)])
def test_flags_that_can_include_and_those_that_cannot(flags: str, can: bool) -> None:
    assert can_include(flags.split()) == can


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


def listed(
    tmp_path: Path, names: list[str], nvcc: str = "cuda/bin/nvcc", compiler: str = "gcc/bin/gcc", *packages: str
) -> list[str]:
    listing = tmp_path / "headers.d"
    listing.write_text("device : " + " \\\n  ".join(names) + "\n")
    folders = [str(tmp_path / name) for name in packages]
    found = headers_in(listing, tmp_path / "build", str(tmp_path / nvcc), str(tmp_path / compiler), Where(), folders)
    return [path.relative_to(tmp_path).as_posix() for path in found]


def test_headers_of_cuda_the_system_and_the_compiler_are_left_out(tmp_path: Path) -> None:
    cuda = ["cuda/include/cuda_runtime.h", "cuda/include/crt/x.h", "cuda/include/cccl/y.h"]
    gcc = ["gcc/lib/gcc/x86_64/13/include/stddef.h", "gcc/include/c++/13/cstdint"]
    own = ["build/near.h", "inc/far.h", "cuda/include-mine/z.h", "gcc/include/mine.h", "gcc/lib/mine.h"]
    install(tmp_path, *cuda, *gcc, *own)
    system = ["/usr/include/stdc-predef.h", "/usr/lib/gcc/x86_64-linux-gnu/12/include/stddef.h"]
    # As nvcc writes them: its own through its folder, the user's relative to where it runs, or absolute.
    names = [f"{tmp_path}/cuda/bin/..//{name.removeprefix('cuda/')}" for name in cuda]
    names += [*system, *(str(tmp_path / name) for name in gcc), "near.h", "./near.h", "../inc/far.h"]
    names += [str(tmp_path / name) for name in own[2:]]
    assert listed(tmp_path, names) == own
    install(tmp_path, "other/include/cuda_fp16.h", "build/a$b.h", "build/c$$d.h")
    assert listed(tmp_path, ["../other/include/cuda_fp16.h"]) == ["other/include/cuda_fp16.h"], "another CUDA's"
    inner = "gcc/lib/gcc/x86_64/13/include/stddef.h"
    assert listed(tmp_path, [f"../{inner}"], "x/bin/nvcc", "gcc/bin/gcc", str(Path(inner).parent)) == [inner], (
        "packaged"
    )
    assert listed(tmp_path, ["a$$b.h", "c$$d.h"]) == ["build/a$b.h", "build/c$$d.h"]


def test_cuda_is_found_through_symbolic_links(tmp_path: Path) -> None:
    install(tmp_path, "cuda-13/bin/nvcc", "cuda-13/include/cuda_runtime.h", "cuda-13/include/cuda_fp16.h")
    (tmp_path / "cuda").symlink_to("cuda-13")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").symlink_to("../cuda/bin/nvcc")
    for top in ("cuda", "cuda-13"):
        names = [f"../{top}/include/cuda_runtime.h", f"../{top}/include/cuda_fp16.h"]
        for nvcc in ("cuda/bin/nvcc", "cuda-13/bin/nvcc", "bin/nvcc"):
            assert listed(tmp_path, names, nvcc) == []


def test_a_list_that_lacks_or_names_no_file_is_an_error_and_a_header_counts_once(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="left no list of the headers") as caught:
        headers_in(tmp_path / "headers.d", tmp_path, "nvcc", "cc", Where("gemm", stage="nvcc"))
    assert caught.value.where == Where("gemm", stage="nvcc")
    with pytest.raises(ToolchainError, match=r"gone\.h', which is no file") as caught:
        listed(tmp_path, ["gone.h"])
    assert "without a backslash" in (caught.value.remedy or "")
    install(tmp_path, "build/a.h", "build/\udcff.h")
    (tmp_path / "headers.d").write_bytes(b"device : a.h \xff.h ../build/a.h\n")
    found = headers_in(tmp_path / "headers.d", tmp_path / "build", "/x/nvcc", "/y/cc", Where("gemm"))
    assert found == [tmp_path / "build/a.h", tmp_path / "build/\udcff.h"]


INCLUDES = """\
#include "near.h"
  # include <far.h>
#include_next "both.h"
#include \\
  "continued.h"
// #include "comment.h"
#include "absent.h"
#include <near.h>
"""


NEAR = ("src/both.h", "src/continued.h", "src/near.h", "src/of_near.h")


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", NEAR),
        ("-Iinc", ("inc/both.h", "inc/far.h", *NEAR)),
        ("-I inc", ("inc/both.h", "inc/far.h", *NEAR)),
        ("--include-path=other", ("other/far.h", *NEAR)),
        ("-include inc/given.h --pre-include=inc/far.h -DX=-Iinc", ("inc/far.h", "inc/given.h", *NEAR)),
    ],
)
def test_files_that_a_source_may_include(tmp_path: Path, flags: str, found: tuple[str, ...]) -> None:
    install(tmp_path, "src/both.h", "src/continued.h", "src/comment.h", "src/of_near.h")
    install(tmp_path, "inc/far.h", "inc/both.h", "inc/given.h", "other/far.h", "near.h")
    (tmp_path / "src/device.cu").write_text(INCLUDES)
    (tmp_path / "src/near.h").write_text('#include "of_near.h"\n#include "device.cu"\n')
    paths = included_files(tmp_path / "src/device.cu", flags.split(), tmp_path)
    assert tuple(path.relative_to(tmp_path).as_posix() for path in paths) == found


def test_an_include_that_is_a_macro_may_be_any_file_and_options_files_are_followed(tmp_path: Path) -> None:
    install(tmp_path, "src/a.h", "inc/b.h", "inc/sub/c.h")
    (tmp_path / "src/device.cu").write_bytes(b"// \xff\n#include MACRO\n")
    paths = included_files(tmp_path / "src/device.cu", ["-Iinc"], tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == ["inc/b.h", "inc/sub/c.h"]
    (tmp_path / "one.txt").write_text("-O3 -optf two.txt,one.txt\n--options-file='th ree.txt'")
    (tmp_path / "two.txt").write_text("-Xcompiler @four.txt")
    (tmp_path / "th ree.txt").write_text("a stray ' quote -optf missing.txt")
    install(tmp_path, "four.txt", "five.txt")
    flags = ["-lineinfo", "-optf", "one.txt", "-Xptxas=-optf,five.txt"]
    names = [path.name for path in options_files(flags, tmp_path)]
    assert sorted(names) == ["five.txt", "four.txt", "one.txt", "th ree.txt", "two.txt"]
    assert options_files(["-DX=-optf", "-optfoo", "one.txt"], tmp_path) == []


def test_files_that_would_be_included_if_they_were_made(tmp_path: Path) -> None:
    install(tmp_path, "kernels/a.cu", "include/a.cuh", "include/sub/b.cuh", "build/x/device.cu")
    source, header = tmp_path / "kernels/a.cu", tmp_path / "include/a.cuh"
    source.write_text('# include "a.cuh"\n#if __has_include(<option.h>)\n#endif\n#include <cuda_fp16.h>\n')
    header.write_text('#include "sub/b.cuh"\n#include "/usr/include/stdio.h"\n#include MACRO\n')
    flags = ["-I", "../../kernels", "-O3", "-I../../include"]
    assert sought_in_vain([source, header], flags, tmp_path / "build/x", tmp_path, {}) == [
        *("include/a.cu", "include/cuda_fp16.h", "include/option.h", "kernels/a.cuh", "kernels/cuda_fp16.h"),
        "kernels/option.h",
    ]
    header.write_text("#include <sub/b.cuh>\n")
    assert sought_in_vain([header], flags, tmp_path / "build/x", tmp_path, {}) == ["kernels/sub/"]


QUOTED, ANGLED = '#include "h.h"\n', "#include <h.h>\n"


@pytest.mark.parametrize(
    ("flags", "text", "early"),
    [
        ("-I first -I late -include h.h", "", "first"),
        ("-Ifirst -Ilate -includeh.h", "", "first"),
        ("-I first -I late --include=h.h", "", "first"),
        ("-I first -I late -imacros h.h", "", "first"),
        ("-I late -include h.h", "", "."),
        ("-I late -iquote first -include h.h", "", "first"),
        ("-iquote first -I late", QUOTED, "first"),
        ("-I late", QUOTED, "src"),
        ("-isystem late -I first", ANGLED, "first"),
        ("-isystem first -idirafter late", ANGLED, "first"),
        ("-isystemfirst -idirafterlate", ANGLED, "first"),
        ("-iprefix ./ -iwithprefixbefore first -isystem late", ANGLED, "first"),
        ("-iprefix ./ -iwithprefix first -iwithprefix late", ANGLED, "first"),
        ("-I late -I first -isystem late", ANGLED, "first"),
        ("-I first -I late", '#define NAME "h.h"\n#include NAME\n', "first"),
        ("-I first -I late", "#import <h.h>\n", "first"),
        ("-I first", '#if __has_include("h.h")\n#include "h.h"\n#endif\n', "first"),
        ("@flags.txt", ANGLED, "first"),
        ("-I none -I late", ANGLED, "none"),
        ("-I none -I late", "#include <deep/h.h>\n", "none/deep"),
    ],
)
def test_a_new_file_that_a_compiler_reads_was_looked_for_before(tmp_path, flags, text, early):
    """What g++ reads decides: nvcc looks for headers as it does, and so does NVRTC, which has fewer flags."""
    install(tmp_path, "late/h.h", "late/deep/h.h", "first/other.h")
    (tmp_path / "flags.txt").write_text("-I first -I late")
    source = tmp_path / "src/device.cu"
    source.parent.mkdir()
    source.write_text(text)

    def read() -> set[Path]:
        command = ["g++", "-x", "c++", "-M", "-w", *flags.split(), "src/device.cu"]
        listed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        return {path for name in parse_dependencies(listed) if (path := Path(os.path.normpath(tmp_path / name)))}

    before = read()
    for top in tmp_path, tmp_path / "src":  # inside of the project, or perhaps outside
        names = sought_in_vain(before, flags.split(), tmp_path, top, {})
        sought = [Path(os.path.normpath(top / name)) for name in names]
        assert not any(map(Path.exists, sought))
        install(tmp_path, f"{early}/h.h")
        assert read() != before and any(map(Path.exists, sought)), names
        shutil.rmtree(tmp_path / early) if early.startswith("none") else (tmp_path / early / "h.h").unlink()


@pytest.mark.parametrize(
    ("of_nvcc", "of_gcc"),
    [
        ("--pre-include a.h -I one", "-include a.h -I one"),
        ("--include-path=one --system-include two", "-I one -isystem two"),
        ("-Xcompiler -iquote,one -Xcompiler=-idirafter,two", "-iquote one -idirafter two"),
        ("--compiler-options -imacros --compiler-options a.h -isystem=two", "-imacros a.h -isystem two"),
        ("-optf flags.txt -include=a.h", "-I one -I two -include a.h"),
    ],
)
def test_nvccs_flags_are_those_of_gcc_by_other_names(tmp_path: Path, of_nvcc: str, of_gcc: str) -> None:
    (tmp_path / "flags.txt").write_text("-I one --include-path two")
    assert Search.of(of_nvcc.split(), tmp_path) == Search.of(of_gcc.split(), tmp_path)


def test_a_list_of_folders_is_one_of_nvcc_and_a_name_of_others(tmp_path: Path) -> None:
    search = Search.of(["-Ione,two", "-include", "a.h,b.h"], tmp_path)
    assert {tmp_path / name for name in ("one", "two", "one,two")} == set(search.folders)
    assert {"a.h", "b.h", "a.h,b.h"} == set(search.given)


def test_headers_that_are_made_meanwhile_or_lack_in_a_package_were_looked_for(tmp_path: Path) -> None:
    install(tmp_path, "first/h.h", "late/h.h", "src/a.cu")
    source, flags = tmp_path / "src/a.cu", ["-I", "first", "-I", "late"]
    source.write_text(ANGLED)
    os.utime(tmp_path / "first/h.h", (1, 1))  # as ``mv`` and ``cp -p`` leave it
    made = (tmp_path / "first/h.h").stat().st_ctime_ns
    for begun, names in (made - 1, ["first/h.h"]), (made, []):
        assert sought_in_vain({source, tmp_path / "late/h.h"}, flags, tmp_path, tmp_path, {}, begun) == names
    install(tmp_path, "top/a.cu", "site/acme/include/acme/a.h", "site/other/include/other/b.h")
    source, top = tmp_path / "top/a.cu", tmp_path / "top"
    source.write_text("#include <other/b.h>\n#include <acme/c.h>\n")
    packages = {str(tmp_path / f"site/{name}/include"): f"package:{name}/include" for name in ("acme", "other")}
    flags = [word for folder in packages for word in ("-I", folder)]
    assert sought_in_vain([source], flags, top, top, packages) == [
        "/package:acme/include//acme/c.h",
        "/package:acme/include//other/",
        "/package:other/include//acme/",
    ]


def test_a_run_depends_on_what_it_read_looked_for_in_vain_and_made(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text('#include "b.h"')
    job = NvccJob("sm_80", (), tmp_path, Where())
    # The clock of files may be behind that of programs.
    found = included(tmp_path, ["a.cu"], job, time.time_ns() + 10**9)
    assert found == {"a.cu": hashlib.sha256(b'#include "b.h"').hexdigest(), "b.h": ""}
    os.utime(tmp_path / "a.cu", (1, 1))  # an edit may leave any time that programs can set
    begun_before_an_edit = included(tmp_path, ["a.cu"], job, time.time_ns() - 10**9)
    assert begun_before_an_edit["a.cu"] == EDITED
    install(tmp_path, "kernels/a.h", "include/b.h", "build/x/device.cu")
    (tmp_path / "build/x/device.cu").write_text('#include "a.h"\n#include <b.h>\n')
    job = NvccJob("sm_80", ("-I", "../../kernels", "-I", "../../include"), tmp_path / "build/x", Where())
    read = ["kernels/a.h", "include/b.h"]
    found = included(tmp_path, read, job, time.time_ns() + 10**9, tmp_path / "build/x/device.cu")
    assert sorted(found) == ["include/b.h", "kernels/a.h", "kernels/b.h"] and found["kernels/b.h"] == ""


def test_folders_of_headers_are_there_and_mean_the_same_in_another_checkout(tmp_path: Path) -> None:
    inside, where = tmp_path / "kernels/include", Where("k", location="kernels/k.py:3")
    inside.mkdir(parents=True)
    require_folders({"include": inside, "/usr": Path("/usr")}, tmp_path, where)
    for name, path, said in (
        (
            "inclde",
            inside.with_name("inclde"),
            "is no folder beside the definition\n  remedy: give paths relative to k",
        ),
        (
            "/dev/null",
            Path("/dev/null"),
            "is no folder on this machine\n  remedy: give paths relative to kernels, or m",
        ),
        (str(inside), inside, "other checkouts of the project do not have\n  remedy: write 'include'"),
    ):
        with pytest.raises(DefinitionError, match=re.escape(f"includes names {name!r}, which {said}")):
            require_folders({name: path}, tmp_path, where)
