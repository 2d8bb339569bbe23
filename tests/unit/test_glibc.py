"""The libraries that stand in for the machine's C library: what is linked with them, and what goes wrong."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kernelwright.core.errors import ToolchainError, Where
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.processes.runner import ToolRunner
from kernelwright.stages.glibc import LIBRARIES, Symbol, chosen_symbols, make_stubs, version_script
from kernelwright.toolchain.host_compiler import HostCompiler, find_host_compiler

PROGRAM = """
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
static __thread int calls; /* needs __tls_get_addr, which is the loader's */
static void *same(void *x) { ++calls; return x; }
double compute(double x) {
  pthread_t thread;
  pthread_create(&thread, 0, same, 0);
  pthread_join(thread, 0);
  if (!dlopen("libm.so.6", RTLD_NOW)) return -1;
  return exp(x) + pow(x, 2.5);
}
"""


def compiler() -> HostCompiler:
    return HostCompiler(find_host_compiler("", {"PATH": "/usr/bin:/bin"}), "", "")


def real(soname: str) -> Path:
    """A library of this machine's glibc."""
    command = [compiler().path, f"-print-file-name={soname}"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


def stubs(folder: Path, floor: str, host_compiler: HostCompiler) -> Path:
    governor = MemoryGovernor(1 << 20, Measurements(folder / "measurements.json"))
    runner = ToolRunner(1, folder, 60.0, governor)
    made = folder / f"stubs {floor}"
    made.mkdir()
    try:
        make_stubs(floor, host_compiler, made, runner, Where(stage="link"), "ld-linux-x86-64.so.2")
    finally:
        runner.close()
    return made


def linked(folder: Path, *options: str) -> tuple[Path, set[tuple[int, ...]]]:
    """A library, and the versions of glibc that its symbols are bound to."""
    (folder / "program.c").write_text(PROGRAM)
    library = folder / f"program{len(list(folder.glob('*.so')))}.so"
    command = [compiler().path, "-shared", "-fPIC", "program.c", "-o", library.name, *options]
    subprocess.run([*command, "-lm", "-ldl", "-lpthread"], cwd=folder, check=True)
    listing = subprocess.run(["readelf", "-V", "--wide", library], capture_output=True, text=True, check=True).stdout
    return library, {tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_([0-9.]+)", listing)}


def test_what_is_linked_with_them_runs_and_needs_no_newer_glibc(tmp_path: Path) -> None:
    if max(linked(tmp_path)[1]) <= (2, 28):
        pytest.skip("this machine's glibc has nothing newer")
    for floor in ("2.28", "2.17"):
        library, versions = linked(tmp_path, f"-L{stubs(tmp_path, floor, compiler())}")
        listing = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
        undefined = [line.split()[-1] for line in listing.stdout.splitlines() if " w " not in line]
        assert "__tls_get_addr@GLIBC_2.3" in undefined and all("@GLIBC_" in name for name in undefined)
        assert max(versions) <= tuple(map(int, floor.split(".")))
        compute = ctypes.CDLL(str(library)).compute
        compute.argtypes, compute.restype = [ctypes.c_double], ctypes.c_double
        assert compute(1.5) == pytest.approx(4.481689070338065 + 2.7556759606310752)


def test_the_newest_version_that_is_old_enough_is_chosen_and_they_are_the_same_each_time(tmp_path):
    found = {
        floor: {s.name: s.version for s in chosen_symbols([real("libm.so.6")], (2, floor), Where())}
        for floor in (2, 28, 29)
    }
    assert found[28]["exp"] == (2, 2, 5) and found[29]["exp"] == (2, 29)
    assert found[28]["expf"] == (2, 27) and found[2]["expf"] == (2, 2, 5)
    assert "roundeven" in found[28] and "roundeven" not in found[2]
    assert (
        version_script([Symbol("b", (2, 17), True), Symbol("a", (2, 2, 5), True)])
        == "GLIBC_2.2.5 { };\nGLIBC_2.17 { };\n"
    )
    folders = [tmp_path / name for name in ("first", "second")]
    contents = []
    for folder in folders:
        folder.mkdir()
        made = stubs(folder, "2.28", compiler())
        contents.append({name: (made / f"{name}.so").read_bytes() for name in LIBRARIES})
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    "answer",
    [
        'echo "${1#*=}"',  # its name: the compiler does not know it
        "echo /nowhere/libc.so.6",
        "echo /etc",
        "echo Makefile",
        "echo /bin/sh; exit 1",
    ],
)
def test_a_compiler_without_glibc_is_an_error_with_a_remedy(tmp_path, monkeypatch, answer):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Makefile").touch()
    script = tmp_path / "cc"
    script.write_text(f"#!/bin/sh\n{answer}\n")
    script.chmod(0o755)
    with pytest.raises(ToolchainError, match=r'has no libc.so.6\n.*set glibc = ""') as caught:
        stubs(tmp_path, "2.28", HostCompiler(str(script), "", ""))
    assert caught.value.where == Where(stage="link")


@pytest.mark.parametrize("damage", ["nonsense", "cut", "not versioned"])
def test_a_library_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, damage: str) -> None:
    library = tmp_path / "libc.so.6"
    if damage == "not versioned":
        (tmp_path / "empty.c").write_text("int unused;")
        subprocess.run([compiler().path, "-shared", "empty.c", "-nostdlib", "-o", library], cwd=tmp_path, check=True)
    else:
        real = subprocess.run(
            [compiler().path, "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True
        )
        shutil.copyfile(real.stdout.strip(), library)
        content = library.read_bytes()
        library.write_bytes(b"no library" if damage == "nonsense" else content[: len(content) // 2])
    with pytest.raises(ToolchainError, match=rf"the symbols of {re.escape(str(library))} cannot be read"):
        chosen_symbols([library], (2, 28), Where())
