"""NVRTC beside nvcc: the same code, precompiled headers that change nothing but the time, flags, and errors."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from kernelwright.core.errors import SettingsError, ToolchainError, ToolError, Where
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.processes.runner import ToolRunner
from kernelwright.processes.tools import ToolCall, ToolResult
from kernelwright.toolchain import nvrtc as nvrtc_library
from kernelwright.toolchain import nvrtc_compile
from kernelwright.toolchain import nvrtc_run as nvrtc_module
from kernelwright.toolchain.nvcc_run import CompiledCode
from kernelwright.toolchain.nvrtc import Nvrtc, compiler_process, find_nvrtc, include_beside
from kernelwright.toolchain.nvrtc_run import (
    HeaderStore,
    NvrtcJob,
    compile_with_nvrtc,
    head_lines,
    require_flags,
    script,
)
from kernelwright.toolchain.probe import Toolchain
from support.moments import Gate, wait_for
from support.real_nvcc import Bench as WithNvcc
from support.real_nvcc import real_nvcc

SOURCE = """\
#ifdef __CUDACC_RTC__
  #include <cuda/std/cstdint>
#else
  #include <cstdint>
#endif
#if __CUDA_ARCH__ >= 530
#include <cuda_fp16.h>
#endif
extern "C" __global__ void scale(__half *x, int n) {
  __shared__ float total[32];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  total[threadIdx.x % 32] = i < n ? __half2float(x[i]) : 0.0f;
  __syncthreads();
  if (i < n) x[i] = __float2half(total[(threadIdx.x + 1) % 32] / 3.0f);
}
"""
HEAD = 8
"""Lines of it that are a header."""

WHERE = Where("scale", "default", "nvrtc")
SAME_AS_NVRTC = ("-Xcudafe", "--sharedmem32=0")


PLAIN: dict[str, bytes] = {}
"""Source -> what the first test that asked has got of it."""


@dataclass
class Bench:
    """A project with a source, and what compiles it."""

    project: Path
    nvrtc: Nvrtc
    runner: ToolRunner
    store: HeaderStore
    calls: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.project / "build" / "kernel"

    @property
    def source(self) -> Path:
        return self.folder / "device.cu"

    @property
    def headers(self) -> list[Path]:
        """The precompiled headers that there are."""
        return sorted(self.store.folder.glob("*.pch"))

    def scratch(self) -> Path:
        folder = self.project / "build" / "scratch, (1): really"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def compile(self, *flags: str, arch: str = "sm_80", pch: bool = False) -> tuple[CompiledCode, bytes]:
        """What is reported, and the output."""
        scratch = self.scratch()
        job = NvrtcJob(arch, flags, self.folder, WHERE)
        store = self.store if pch else None
        compiled = compile_with_nvrtc(job, self.nvrtc, scratch, self.runner, f"scale {arch}", store)
        assert sorted(path.name for path in scratch.iterdir()) == sorted(job.outputs)
        return compiled, (scratch / job.output).read_bytes()

    def plain(self) -> bytes:
        """The output of the source without any header or flag, which is the same in each test: it is compiled once."""
        source = self.source.read_text()
        if source not in PLAIN:
            PLAIN[source] = self.compile()[1]
        return PLAIN[source]

    def by_hand(self, output: Path, *own: str, process: Sequence[str] = ()) -> list[str]:
        """The command that compiles it, with options of the compiler process."""
        job, nvrtc = NvrtcJob("sm_80", (), self.folder, WHERE), self.nvrtc
        own = (f"--head={HEAD}", *own)
        return job.arguments(process or compiler_process(), nvrtc.library, nvrtc.options(), str(output), own)

    def said(self, compiled: CompiledCode) -> list[str]:
        """What the compiler process said of the precompiled header."""
        return [line for line in compiled.result.output.splitlines() if line.startswith("PCH ")]


@pytest.fixture(scope="session")
def nvrtc(tmp_path_factory: pytest.TempPathFactory) -> Nvrtc:
    try:
        return Toolchain(tmp_path_factory.mktemp("probe") / "toolchain.json", {}).nvrtc()
    except ToolchainError as error:
        if "no NVRTC" in error.message:
            pytest.skip("NVRTC is not installed")
        raise


@pytest.fixture
def bench(tmp_path: Path, nvrtc: Nvrtc) -> Iterator[Bench]:
    governor = MemoryGovernor(2 << 20, Measurements(tmp_path / "measurements.json"))
    runner = ToolRunner(2, tmp_path, 120.0, governor)
    bench = Bench(tmp_path, nvrtc, runner, HeaderStore(tmp_path / "pch", 1 << 30))
    bench.folder.mkdir(parents=True)
    bench.source.write_text(SOURCE)
    yield bench
    runner.close()


def test_a_cubin_its_resource_usage_and_a_script_are_left(bench: Bench) -> None:
    compiled, cubin = bench.compile()
    assert cubin.startswith(b"\x7fELF") and b"scale" in cubin
    assert compiled.headers == () and compiled.notes == ()
    assert 50 << 10 < compiled.result.peak_kib < 1 << 20 and compiled.result.cpu_seconds > 0
    scratch = bench.project / "build" / "scratch, (1): really"
    usage = (scratch / "sm_80.json").read_text()
    assert '"registers": ' in usage and '"shared_bytes": 128' in usage and '"registers": 0,' not in usage
    assert "/" not in (scratch / "compile_sm_80.sh").read_text().split("exec ")[1].replace('"/cccl', "")


def test_the_script_repeats_the_run_and_names_no_path(bench: Bench) -> None:
    _, cubin = bench.compile("-use_fast_math")
    text = script(NvrtcJob("sm_80", ("-use_fast_math",), bench.folder, WHERE), bench.nvrtc)
    assert str(bench.project) not in text and bench.nvrtc.library not in text
    (bench.folder / "compile.sh").write_text(text)
    python, *_, program = compiler_process()
    tools = {"PYTHON": python, "NVRTC_COMPILE": program}
    tools |= {"NVRTC": bench.nvrtc.library, "CUDA_INCLUDE": bench.nvrtc.include}
    subprocess.run(["sh", bench.folder / "compile.sh"], env={"PATH": "/usr/bin:/bin"} | tools, check=True)
    assert (bench.folder / "sm_80.cubin").read_bytes() == cubin


# Precompiled headers.


@pytest.mark.parametrize("arguments", [("sm_80", "-lineinfo"), ("sm_90a",), ("compute_80",)])
def test_a_precompiled_header_is_made_and_then_used_and_changes_no_byte(bench, arguments):
    arch, *flags = arguments
    _, plain = bench.compile(*flags, arch=arch)
    made, first = bench.compile(*flags, arch=arch, pch=True)
    used, second = bench.compile(*flags, arch=arch, pch=True)
    assert (bench.said(made), bench.said(used)) == (["PCH is made"], ["PCH is used"])
    assert plain == first == second
    assert made.notes == used.notes == () and len(bench.headers) == 1


def test_sources_that_begin_alike_share_a_header_and_others_do_not(bench: Bench) -> None:
    bench.compile(pch=True)
    bench.source.write_text(SOURCE.replace("3.0f", "5.0f") + "#if 1\n#define LATER\n#endif\n")
    assert bench.said(bench.compile(pch=True)[0]) == ["PCH is used"]
    bench.source.write_text("#define OTHER 1\n" + SOURCE)
    assert bench.said(bench.compile(pch=True)[0]) == ["PCH is made"]
    assert bench.said(bench.compile("-DX=1", pch=True)[0]) == ["PCH is made"]
    assert len(bench.headers) == 3


def test_a_header_that_nvrtc_refuses_is_made_again(bench: Bench) -> None:
    bench.compile(pch=True)
    (path,) = bench.headers
    _, plain = bench.compile("-DX=1")
    bench.compile("-DX=1", pch=True)
    (wanted,) = set(bench.headers) - {path}
    shutil.copy(path, wanted)
    refused, cubin = bench.compile("-DX=1", pch=True)
    assert "NVRTC refuses it" in refused.notes[0] and cubin == plain
    assert bench.said(bench.compile("-DX=1", pch=True)[0]) == ["PCH is made"]


def test_a_header_that_makes_nvrtc_crash_only_costs_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = bench.plain()
    run, calls = bench.runner.run, []

    def crash(call: ToolCall) -> ToolResult:
        calls.append(call)
        if any(word.startswith("--pch=") for word in call.command):
            raise ToolError(call.command, -signal.SIGSEGV, "", WHERE)
        return run(call)

    monkeypatch.setattr(bench.runner, "run", crash)
    compiled, cubin = bench.compile(pch=True)
    assert cubin == plain and len(calls) == 2
    assert any("crash" in note for note in compiled.notes)


def test_a_run_that_somebody_kills_is_not_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def kill(call: ToolCall) -> ToolResult:
        calls.append(call)
        raise ToolError(call.command, -signal.SIGKILL, "", WHERE, called=call.called)

    monkeypatch.setattr(bench.runner, "run", kill)
    with pytest.raises(ToolError, match="NVRTC was ended by signal 9"):
        bench.compile(pch=True)
    assert len(calls) == 1


def test_what_is_in_the_place_of_a_header_or_of_their_folder_only_costs_time(bench: Bench) -> None:
    plain, folder = bench.plain(), bench.store.folder
    bench.compile(pch=True)
    (path,) = bench.headers

    def header_is_damaged() -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x55
        path.unlink()
        path.write_bytes(data)

    def header_is_a_folder() -> None:
        path.unlink()
        path.mkdir()

    def folder_is_a_file() -> None:
        shutil.rmtree(folder)
        folder.write_text("a file")

    def folder_takes_no_file() -> None:
        folder.unlink()
        folder.symlink_to("/proc/self")  # nobody can make a file there, not even root

    for change, note in (
        (header_is_damaged, "a precompiled header "),
        (header_is_a_folder, "a precompiled header "),
        (folder_is_a_file, "precompiled headers are not used: "),
        (folder_takes_no_file, "is not made"),
    ):
        change()
        compiled, cubin = bench.compile(pch=True)
        assert cubin == plain and note in compiled.notes[0]
        if change is header_is_damaged:
            assert bench.said(compiled)[-1] == "PCH is made"
            assert bench.said(bench.compile(pch=True)[0]) == ["PCH is used"]


def test_a_system_that_does_not_fix_addresses_only_costs_time(bench: Bench, tmp_path: Path) -> None:
    """As in a container: personality(2) is refused."""
    *python, program = compiler_process()
    text, changed = Path(program).read_text(), tmp_path / "nvrtc_compile.py"
    assert text.count("libc = ctypes.CDLL(None)") == 1
    changed.write_text(text.replace("libc = ctypes.CDLL(None)", "libc = Refusing()").replace("class F", REFUSING, 1))
    words = bench.by_hand(tmp_path / "x.cubin", f"--pch={tmp_path / 'x.pch'}", process=[*python, str(changed)])
    done = subprocess.run(words, cwd=bench.folder, capture_output=True, text=True, check=True)
    assert "PCH is not used: this system does not let a process fix its addresses" in done.stdout
    assert (tmp_path / "x.cubin").read_bytes() == bench.plain() and not (tmp_path / "x.pch").exists()


REFUSING = """\
class Refusing:
    def personality(self, value):
        return -1

class F"""


def test_a_heap_that_is_too_small_grows(bench: Bench) -> None:
    """NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED."""
    plain, output = bench.plain(), bench.project / "x.cubin"
    for said, own in (("made", ["--heap=1000000"]), ("used", [])):
        words = bench.by_hand(output, f"--pch={bench.project / 'x.pch'}", *own)
        done = subprocess.run(words, cwd=bench.folder, capture_output=True, text=True, check=True)
        assert f"PCH is {said}\n" in done.stdout and output.read_bytes() == plain


def test_several_at_once_make_the_same_header(bench: Bench) -> None:
    def compile_one(number: int) -> bytes:
        scratch = bench.project / f"scratch{number}"
        scratch.mkdir()
        job = NvrtcJob("sm_80", (), bench.folder, WHERE)
        compile_with_nvrtc(job, bench.nvrtc, scratch, bench.runner, f"scale {number}", bench.store)
        return (scratch / job.output).read_bytes()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(compile_one, range(4))) == [bench.plain()] * 4
    assert list(bench.store.folder.iterdir()) == bench.headers and len(bench.headers) == 1


STOPS = """\
import os, runpy, sys
execv, replace = os.execv, os.replace
os.execv = lambda path, words: execv(path, [__file__ if word == {program!r} else word for word in words])
def stop(source, target):
    {gate}
    replace(source, target)
os.replace = stop
runpy.run_path({program!r}, run_name="__main__")
"""
"""The compiler process, which stops when it has written a header and is about to give it its name."""


def test_a_killed_process_leaves_no_header_that_is_used(bench: Bench) -> None:
    folder, output = bench.store.folder, bench.project / "x.cubin"
    folder.mkdir()
    *python, program = compiler_process()
    stops = bench.project / "stops.py"
    with Gate(bench.project / "gate") as gate:
        stops.write_text(STOPS.format(program=program, gate=gate.python))
        words = bench.by_hand(output, f"--pch={folder / 'x.pch'}", process=[*python, str(stops)])
        process = subprocess.Popen(words, cwd=bench.folder, stdout=subprocess.DEVNULL)
        wait_for(lambda: gate.count or process.poll() is not None, "no header is written")
        process.kill()
        assert process.wait() == -signal.SIGKILL
    left = [path.name for path in folder.iterdir()]
    assert left == [f".scratch-{process.pid}-x.pch"], "it was killed while it wrote"
    assert not output.exists() and bench.compile(pch=True)[1] == bench.plain()


def test_no_header_is_made_where_there_is_no_room_for_one(bench: Bench) -> None:
    bench.store = HeaderStore(bench.store.folder, 50 << 20)
    assert bench.said(bench.compile(pch=True)[0]) == [] and bench.headers == []


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    store = HeaderStore(tmp_path, 200)
    for number in range(4):
        (tmp_path / f"{number}.pch").write_bytes(bytes(100))
        os.utime(tmp_path / f"{number}.pch", (1000 + number, 1000 + number))
    (tmp_path / ".scratch-1-4.pch").write_bytes(bytes(1000))
    os.utime(tmp_path / "0.pch", (2000, 2000))
    (tmp_path / "9.pch").mkdir()
    os.utime(tmp_path / "9.pch", (1, 1))
    store.trim()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".scratch-1-4.pch", "0.pch", "3.pch", "9.pch"]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        *((SOURCE, HEAD), ("int x;\n", 0), ("", 0), ("#include <a>", 1), ("#include <a>\n", 1)),
        *(("# include <a>\nint x;\n#include <b>\nint y;\n", 3), ('#include "mine.h"\n#include <a>\n', 0)),
        *(("#include MACRO\n", 0), ("#include <a> // why\n", 1), ("#if 1\n#include <a>\nint x;\n", 0)),
        *(("#if 1\n#include <a>\n#else\n#include <b>\n#endif\nint x;\n", 5), ("/* #include <a>\n*/ int x;\n", 0)),
        *(("/*\n#include <a>\n*/\n", 0), ("// #include <a>\n#include <b>\n", 2)),
        *(('const char *x = R"(\n#include <a>\n)";\n', 0), ("#include <a>\\\n\n", 0), ("#include <a>\r\n", 0)),
        *(("__global__ void f() {}\n#include <a>\n", 0), ('// it is "\n#include <a>\n', 2)),
    ],
)
def test_the_lines_that_can_be_a_header(source: str, lines: int) -> None:
    assert head_lines(source) == lines


def test_everything_that_decides_a_header_is_in_its_name(tmp_path: Path) -> None:
    def name(arch: str = "sm_80", flags: tuple[str, ...] = (), head: str = "#include <a>", **changed: str) -> str:
        tool = Nvrtc("/lib/libnvrtc.so.13", "/include", "13.0.88", "identity", ())
        return nvrtc_module._key(NvrtcJob(arch, flags, tmp_path, WHERE), replace(tool, **changed), head)

    others = [name("sm_90"), name(flags=("-DX=1",)), name(head="#include <b>"), name(identity="another")]
    others += [name(include="/elsewhere"), name(library="/elsewhere/libnvrtc.so.13")]
    assert len({name(), *others}) == 7 and name() == name()


def test_a_header_says_its_heap_and_any_byte_that_is_damaged_is_found(tmp_path: Path) -> None:
    path, image = tmp_path / "x.pch", b"an image of memory"
    (tmp_path / "scratch").write_bytes(image)
    nvrtc_compile.keep(str(tmp_path / "scratch"), str(path), 3 << 28)
    assert nvrtc_compile.heap_of(str(path)) == 3 << 28
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert nvrtc_compile.heap_of(str(path)) is None
    for size in range(1, len(content)):
        path.write_bytes(content[:size])
        assert nvrtc_compile.heap_of(str(path)) is None


# Flags.


@pytest.mark.parametrize(
    "flags",
    [
        "-use_fast_math --maxrregcount=32 -lineinfo -DX=1 -D Y=2 -U X -I somewhere -Isomewhere -std=c++20 -w -restrict",
        "-O3 -Xptxas -O2 --ptxas-options=-v -ftz=true -prec-div=false --fmad false -diag-suppress 177 "
        + " ".join(SAME_AS_NVRTC),
    ],
)
def test_flags_that_nvcc_and_nvrtc_share_are_taken(bench: Bench, flags: str) -> None:
    assert bench.compile(*flags.split())[1].startswith(b"\x7fELF")


def test_flags_have_their_effect_and_one_without_its_value_is_nvrtcs_own_error(bench: Bench) -> None:
    plain, fast, few = (bench.compile(*f)[1] for f in ((), ("-use_fast_math",), ("-Xptxas", "-O0")))
    assert len({plain, fast, few}) == 3
    assert bench.compile("-O2")[1] == plain, "it is for the host's code"
    require_flags(("-maxrregcount",), WHERE)
    with pytest.raises(ToolError, match="NVRTC ended with exit status 1"):
        bench.compile("-maxrregcount")


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (("--expt-relaxed-constexpr",), "--expt-relaxed-constexpr"),
        (("-w", "-Xcompiler", "-Wall"), "-Xcompiler"),
        (("-gencode", "arch=compute_80,code=sm_80"), "-gencode"),
        (("-Xcudafe", "--sharedmem32=1"), "-Xcudafe --sharedmem32=1"),
        (("--options-file=x",), "--options-file=x"),
        (("-rdc=true",), "-rdc=true"),
        (("--create-pch=x",), "--create-pch=x"),
        (("file.cu",), "file.cu"),
    ],
)
def test_a_flag_that_nvrtc_lacks_is_named_with_its_kernel(bench: Bench, flags: tuple[str, ...], shown: str) -> None:
    with pytest.raises(SettingsError, match="NVRTC has no flag") as caught:
        bench.compile(*flags)
    assert repr(shown) in caught.value.message and caught.value.where == WHERE
    assert "cuda_compiler" in str(caught.value.remedy)


# Errors.


@pytest.mark.parametrize("pch", [False, True])
def test_an_error_in_the_source_has_its_line_and_kernel(bench: Bench, pch: bool) -> None:
    if pch:
        bench.compile(pch=True)
    bench.source.write_text(SOURCE.replace("__float2half(total", "no_such_function(total"))
    with pytest.raises(ToolError) as caught:
        bench.compile(pch=pch)
    text = str(caught.value)
    assert "NVRTC ended with exit status 1" in text and "scale/default [nvrtc]" in text
    assert 'device.cu(14): error: identifier "no_such_function" is undefined' in text
    assert str(bench.source) in text and "device-head.h" not in text


def test_an_error_in_the_head_is_shown_as_it_is_in_the_source(bench: Bench) -> None:
    bench.source.write_text(SOURCE.replace("cuda_fp16.h", "no_such_header.h"))
    with pytest.raises(ToolError, match=r"device.cu\(7\).*no_such_header") as caught:
        bench.compile(pch=True)
    assert "device-head.h" not in str(caught.value) and bench.headers == []


# Headers of the project.


def test_headers_that_flags_bring_are_reported_and_nothing_is_precompiled(bench: Bench) -> None:
    plain = bench.plain()
    include = bench.project / "inc"
    include.mkdir()
    (include / "top.h").write_text(
        '#include "on device.h"\n#include <cuda_fp16.h>\n#if 0\n#include "never.h"\n#endif\n'
    )
    (include / "on device.h").write_text("#define NOTHING\n")
    (include / "never.h").touch()
    (include / "unused.h").touch()
    compiled, code = bench.compile("-include", "top.h", "-I", str(include), pch=True)
    assert compiled.headers == ("inc/never.h", "inc/on device.h", "inc/top.h")
    assert code == plain and bench.headers == []


# Finding it.


def test_its_parts_are_what_it_loads_and_the_headers_of_each_package(tmp_path: Path) -> None:
    headers = ["crt/mma.h", "cccl/cuda/std/__cccl/version.h", "cuda_fp16.hpp", "cuda_runtime_api.h"]
    names = ["lib/libnvrtc.so.13", "lib/libnvrtc-builtins.so.13.0", *(f"include/{name}" for name in headers)]
    for path in (tmp_path / name for name in [*names, "include/other.h", "lib/libnvrtc.alt.so.13"]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    parts = nvrtc_library.nvrtc_parts(tmp_path / "lib/libnvrtc.so.13")
    assert sorted(path.relative_to(tmp_path).as_posix() for path in parts) == sorted(names)


@pytest.fixture
def copied(nvrtc: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library in a folder like that of the wheels, with links, which is the one that is found."""
    library, top = Path(nvrtc.library), tmp_path / "elsewhere"
    for folder, original in (("lib", library.parent), ("include", include_beside(library))):
        (top / folder).mkdir(parents=True)
        for part in original.glob("libnvrtc*" if folder == "lib" else "*"):
            (top / folder / part.name).symlink_to(part)
    monkeypatch.setattr(nvrtc_library, "library_folders", lambda environment: [top / "lib"])
    return top / "lib" / library.name


def probe(library: Path) -> Nvrtc:
    return Toolchain(library.parents[1] / "toolchain.json", {}).nvrtc()


def replace_link(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def test_the_identity_is_that_of_the_contents_wherever_they_are(nvrtc: Nvrtc, copied: Path) -> None:
    found = probe(copied)
    assert (found.identity, found.version) == (nvrtc.identity, nvrtc.version) and found.library != nvrtc.library
    assert nvrtc.version.startswith("13.0.") and {"sm_80", "sm_90a", "sm_100f", "compute_80"} <= set(nvrtc.archs)
    builtins = next(copied.parent.glob("libnvrtc-builtins.so.*"))
    replace_link(builtins, builtins.read_bytes() + b"\0")
    assert probe(copied).identity != nvrtc.identity


@pytest.mark.parametrize(
    ("missing", "message", "remedy"),
    [
        ("lib/libnvrtc-builtins*", "no libnvrtc-builtins beside it", "--force-reinstall 'nvidia-cuda-nvrtc==13.0.*'"),
        ("include/cuda_fp16.h", "beside it", "pip install 'nvidia-cuda-runtime==13.0.*'"),
        ("include/cccl", "beside it", "pip install 'nvidia-cuda-cccl==13.0.*'"),
    ],
)
def test_what_is_missing_is_named_with_the_package_that_has_it(copied, missing, message, remedy):
    for part in copied.parents[1].glob(missing):
        part.unlink()
    with pytest.raises(ToolchainError, match=message) as caught:
        probe(copied)
    assert remedy in str(caught.value.remedy)


def test_headers_of_another_release_are_named(copied: Path) -> None:
    replace_link(copied.parents[1] / "include/cuda_runtime_api.h", b"#define CUDART_VERSION  13020\n")
    with pytest.raises(ToolchainError, match=r"NVRTC is of CUDA 13\.0, but the headers of CUDA 13\.2"):
        probe(copied)


def test_a_library_that_is_none_is_an_error(copied: Path) -> None:
    replace_link(copied, b"no library")
    with pytest.raises(ToolchainError, match="NVRTC cannot be used") as caught:
        probe(copied)
    assert "NVRTC cannot be loaded" in str(caught.value)


# The same as nvcc.


def machine_code(cubin: bytes) -> dict[str, bytes]:
    """The code of each device function."""
    return {s.name: s.data() for s in ELFFile(io.BytesIO(cubin)).iter_sections() if s.name.startswith(".text.")}


def by_nvcc(bench: Bench, arch: str, *flags: str) -> bytes:
    with real_nvcc(WithNvcc, bench.project / "by nvcc", bench.source.read_text()) as other:
        return next(iter(other.plain(arch, *flags)[1].values()))


def test_tensor_maps_have_a_type_where_cuda_h_is_not_included(bench: Bench) -> None:
    from test_tir_tensor_maps import lowered

    bench.source.write_bytes(lowered()["device.cu"])
    _, image = bench.compile(arch="sm_90a", pch=True)
    assert list(machine_code(image)) == [".text.boxes_kernel"]


def test_addresses_of_shared_memory_are_what_nvcc_does_otherwise(bench: Bench) -> None:
    """So that what the documentation says of it is looked at again when this changes."""
    ours, theirs = bench.compile(arch="compute_80")[1], by_nvcc(bench, "compute_80")
    assert b".target sm_80\n" in ours and ours.endswith(b"\n") and b"\0" not in ours
    widths = [set(re.findall(rb"mov\.u(\d+) .*total;", ptx)) for ptx in (ours, theirs)]
    assert widths == [{b"64"}, {b"32"}]
    again = by_nvcc(bench, "compute_80", *SAME_AS_NVRTC)
    assert set(re.findall(rb"mov\.u(\d+) .*total;", again)) == {b"64"}


def test_no_nvrtc_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc_library, "library_folders", lambda environment: [tmp_path])
    with pytest.raises(ToolchainError, match="no NVRTC") as caught:
        find_nvrtc({})
    assert "pip install 'kernelwright[nvrtc]'" in str(caught.value.remedy)


def test_the_machine_code_is_that_of_nvcc_with_addresses_of_shared_memory_as_wide(bench: Bench) -> None:
    ours, theirs = bench.compile(*SAME_AS_NVRTC, arch="sm_90a", pch=True)[1], by_nvcc(bench, "sm_90a", *SAME_AS_NVRTC)
    assert machine_code(ours) == machine_code(theirs) and machine_code(ours)


def test_the_newest_release_is_found_or_the_one_that_is_asked_for(tmp_path, monkeypatch):
    """PyTorch for CUDA 12 brings an NVRTC as well, in a folder whose name sorts behind that of CUDA 13."""
    folders = [tmp_path / f"nvidia/{name}/lib" for name in ("cudnn", "cuda_nvrtc", "cu13")]
    for folder, release in zip(folders, ("", "12.8", "13.0"), strict=True):
        folder.mkdir(parents=True)
        for name in (f"libnvrtc.so.{release[:2]}", f"libnvrtc-builtins.so.{release}") if release else ():
            (folder / name).touch()
    monkeypatch.setattr(nvrtc_library, "in_wheels", lambda name: folders)
    old, new = folders[1] / "libnvrtc.so.12", folders[2] / "libnvrtc.so.13"
    assert find_nvrtc({}) == find_nvrtc({}, "13.0") == new and find_nvrtc({}, "12.8") == old
    with pytest.raises(ToolchainError, match=r"no NVRTC of CUDA 12\.9 \(there is that of 13\.0, 12\.8\)"):
        find_nvrtc({}, "12.9")
    beside = nvrtc_library.header_folders(str(include_beside(old)), "$X")
    assert beside == ["$X", "$X/../../cuda_nvcc/include", "$X/../../cuda_cccl/include"]
    assert include_beside(old) == tmp_path / "nvidia/cuda_runtime/include"
    assert nvrtc_library.header_folders(str(include_beside(new)), "$X") == ["$X", "$X/cccl"]
