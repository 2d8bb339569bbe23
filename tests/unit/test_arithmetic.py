"""What a machine computes with: another C library or another CPU is another identity of all tools."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelwright.cluster.machine import finders
from kernelwright.core import arithmetic
from kernelwright.core.files import sha256_of
from kernelwright.core.surroundings import interpreter
from kernelwright.toolchain.probe import Toolchain

MAPS = """\
7f0000000000-7f0000001000 r--p 00000000 fe:00 1    /usr/lib/x86_64-linux-gnu/libmpfr.so.6.2.0
7f0000001000-7f0000002000 r--p 00000000 fe:00 2    /usr/lib/x86_64-linux-gnu/libmvec.so.1
7f0000002000-7f0000003000 r--p 00000000 fe:00 3    {}
7f0000003000-7f0000004000 rw-p 00000000 00:00 0
"""

CPU = "processor\t: 0\nmodel name\t: any\nflags\t\t: fpu sse2 {}\nbugs\t\t:\n\nprocessor\t: 1\nflags\t\t: avx fma4\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes this machine another one."""

    def forget() -> None:
        arithmetic.library.cache_clear()
        arithmetic.features.cache_clear()

    def become(name: str = "libm.so.6", content: str = "one", flags: str = "avx avx2 fma avx512f") -> None:
        (tmp_path / name).write_text(content)
        (tmp_path / "maps").write_text(MAPS.format(tmp_path / name))
        (tmp_path / "cpu").write_text(CPU.format(flags))
        monkeypatch.setattr(arithmetic, "MAPS", tmp_path / "maps")
        monkeypatch.setattr(arithmetic, "CPU", tmp_path / "cpu")
        forget()

    yield become
    monkeypatch.undo()
    forget()


def test_this_machine_has_a_library_and_says_what_its_cpu_has() -> None:
    found = arithmetic.library()
    assert found is not None and math.exp(0) == 1
    digest, features = arithmetic.arithmetic()
    assert digest == sha256_of(found)
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    assert features == [name for name in ("avx", "avx2", "fma", "fma4") if name in flags]


@pytest.mark.parametrize("name", ["libm.so.6", "libm-2.28.so"])
def test_the_library_is_the_one_in_memory(machine: Any, tmp_path: Path, name: str) -> None:
    machine(name, "content of it")
    assert arithmetic.library() == tmp_path / name
    assert arithmetic.arithmetic() == [sha256_of(tmp_path / name), ["avx", "avx2", "fma"]]
    assert arithmetic.of_numpy() == ["avx512f"]


def test_without_one_in_memory_the_usual_place_counts(machine: Any, tmp_path: Path, monkeypatch: Any) -> None:
    machine()
    (tmp_path / "maps").write_text("")
    monkeypatch.setattr(arithmetic, "USUAL", (tmp_path / "nowhere", tmp_path / "libm.so.6"))
    assert arithmetic.library() == tmp_path / "libm.so.6"
    monkeypatch.setattr(arithmetic, "USUAL", ())
    arithmetic.library.cache_clear()
    assert arithmetic.arithmetic() == ["", ["avx", "avx2", "fma"]] and arithmetic.stamp()[1] == []


def identities(folder: Path) -> dict[str, str]:
    """Those that a worker offers, and that of TVM, as a build with kept results has them."""
    chain = Toolchain(folder / "toolchain.json", {"PATH": "/usr/bin:/bin"})
    return {"tvm": chain.lowerer().identity, "cc": finders(chain)["cc"]().identity}


def differ(first: dict[str, str], second: dict[str, str]) -> bool:
    assert first.keys() == second.keys()
    return all(first[name] != second[name] for name in first)


def test_another_library_or_cpu_is_another_identity_of_all_tools(machine, tmp_path, monkeypatch):
    machine()
    first = identities(tmp_path)
    assert identities(tmp_path) == first == identities(tmp_path / "elsewhere")
    machine(content="another one")
    assert differ(identities(tmp_path), first), "what was kept is of another machine"
    machine(flags="avx avx512f")
    assert differ(identities(tmp_path), first)
    machine("libm-2.28.so", flags="avx avx2 fma")
    assert identities(tmp_path) == first, "no name and no feature that glibc does not choose by"
    monkeypatch.setattr(arithmetic, "_digest", lambda path, stamp: pytest.fail(f"{path} is read"))
    assert identities(tmp_path) == first, "what is kept is told without reading the library"


def test_what_numpy_computes_with_is_what_definitions_see(machine: Any) -> None:
    machine()
    first = interpreter()
    machine(content="another one", flags="avx512f")
    assert interpreter() == first
    machine(flags="avx avx2 fma")
    assert interpreter() != first


def test_a_machine_with_many_cpus_is_told_by_its_first(machine: Any, tmp_path: Path) -> None:
    machine()
    with (tmp_path / "cpu").open("a") as file:
        file.write("flags : fma4\n" * 100_000)
    assert arithmetic.features() == ("avx", "avx2", "fma", "avx512f")
