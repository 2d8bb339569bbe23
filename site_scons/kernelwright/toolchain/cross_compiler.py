"""Finds and probes the C compiler for CPUs of another family than this machine's: GNU's, or Zig's.

Zig's is one program with the headers and the symbols of every glibc, so it needs no libraries that stand in for one.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import ToolchainError
from ..core.files import sha256_of, write_atomically
from .ask import WHERE, answer, identity
from .host_compiler import HostCompiler

ZIG = "zig"
"""What a setting says for Zig's compiler, which has no name of its own on PATH."""

WRAPPER = """\
#!/bin/sh
# Zig as a C compiler for {triple}. Written by Kernelwright.
for word; do
  shift
  case "$word" in
  -Wl,--push-state* | -Wl,--pop-state) ;; # Zig's linker has no such options
  *) set -- "$@" "$word" ;;
  esac
done
ZIG_GLOBAL_CACHE_DIR={cache} exec {zig} cc -target {triple} -g0 -Wl,--undefined-version "$@"
"""


def remedy_for(family: str) -> str:
    """What to do where there is no compiler for a family."""
    gnu = f"apt-get install gcc-{family.replace('_', '-')}-linux-gnu g++-{family.replace('_', '-')}-linux-gnu"
    return f"{gnu}, or pip install 'kernelwright[cross]', or leave archs of {family} out"


def find_cross_compiler(family: str, named: str, environment: Mapping[str, str]) -> str:
    """Path of the C compiler for a family of CPUs; ``zig`` for Zig's.

    Arguments:
        family: such as ``aarch64``.
        named: what the setting ``cross_compilers`` names for it; empty: GNU's if there is one, else Zig's.

    Raises:
        ToolchainError: there is none.
    """
    path = shutil.which(named or f"{family}-linux-gnu-gcc", path=environment.get("PATH"))
    if path is not None:
        return str(Path(path).absolute())
    if named in ("", ZIG) and zig_records():
        return ZIG
    what = f"there is no C compiler for {family}, which archs need"
    if named:
        what = f"cross_compilers names {named!r} for {family}, and there is no such program"
    raise ToolchainError(what, WHERE, remedy_for(family))


def zig_records() -> list[Path]:
    """The RECORD file of Zig's package, in a list; empty: it is not installed."""
    folders = (folder or "." for folder in sys.path)
    found = (sorted(Path(f).glob("ziglang-*.dist-info/RECORD")) for f in folders if os.path.isdir(f"{f}/ziglang"))  # noqa: PTH112
    return next(filter(None, found), [])[:1]


def zig_wrapper(folder: Path, family: str, glibc: str, environment: Mapping[str, str]) -> str:
    """Write a program that runs Zig as a compiler for a family of CPUs; its path.

    Arguments:
        folder: where it is written.
        glibc: the oldest glibc that libraries are to run with; empty: the one that Zig chooses.
        environment: says where the user's caches are: what Zig makes of its own libraries takes it 20 seconds.
    """
    # Not below ~/.cache/kernelwright: compile on demand has that folder for itself.
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kernelwright-zig")
    triple = f"{family}-linux-gnu{glibc and f'.{glibc}'}"
    zig = zig_records()[0].parent.parent / "ziglang" / "zig"
    text = WRAPPER.format(triple=triple, cache=shlex.quote(str(cache)), zig=shlex.quote(str(zig)))
    path = folder / f"cc-{triple}"
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
        path.chmod(0o700)
    return str(path)


def probe_cross_compiler(path: str, family: str) -> HostCompiler:
    """Identify GNU's compiler, or another one that takes its options.

    Raises:
        ToolchainError: it does not answer, or compiles for another family.
    """
    remedy = remedy_for(family)
    machine = answer([path, "-dumpmachine"], remedy).strip()
    if machine.partition("-")[0] != family:
        raise ToolchainError(f"{path} compiles for {machine}, and not for {family}", WHERE, remedy)
    version = answer([path, "--version"], remedy).splitlines()[0]
    return HostCompiler(path, version, identity([version, machine, sha256_of(Path(path))]), family)


def probe_zig(path: str, records: Sequence[Path], family: str) -> HostCompiler:
    """Identify Zig's compiler by what pip has installed.

    Raises:
        ToolchainError: it cannot compile.
    """
    (record,) = records
    triple, version = path.partition("cc-")[2], record.parent.name.removesuffix(".dist-info").partition("-")[2]
    answer([path, "--version"], "pip install --force-reinstall ziglang")
    rows = sorted(row for row in record.read_text().splitlines() if row.startswith("ziglang/") and ".pyc" not in row)
    named = f"zig {version} cc -target {triple}"
    return HostCompiler(path, named, identity([named, rows, WRAPPER]), family, brings_glibc=True)
