"""The graph of a generated project for plain SCons and for ninja: five steps for each kernel, and one at the end.

The steps copy text, because what is measured is a build with nothing to do. Each makes one file; ours make thirteen
for each kernel, so the peers have less to look at.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from .harness import Bench, Finished, run
from .ninja_build import Edge, Ninja, find_ninja

SCONSTRUCT = """\
env = Environment(tools=[])
command = "cat $SOURCES > $TARGET"
libraries = []
for number in range({count}):
    name = f"k{{number:04}}"
    host = env.Command(f"out/{{name}}/host.o", f"{{name}}.py", command)
    device = env.Command(f"out/{{name}}/device.cu", f"{{name}}.py", command)
    cubin = env.Command(f"out/{{name}}/sm_90a.cubin", device, command)
    wrapper = env.Command(f"out/{{name}}/wrapper.c", [host, device], command)
    libraries += env.Command(f"out/{{name}}/{{name}}.so", [wrapper, host, cubin], command)
env.Command("out/manifest.json", libraries, command)
"""


def plain_scons(bench: Bench, count: int) -> Path:
    """The folder of an SConstruct without us, built."""
    folder = _sources(bench, f"plain-{count}", count)
    (folder / "SConstruct").write_text(SCONSTRUCT.format(count=count))
    scons(folder, bench.jobs)
    return folder


def scons(folder: Path, jobs: int = 1) -> Finished:
    """Run SCons there."""
    return run([sys.executable, "-m", "SCons", "-Q", f"-j{jobs}"], folder)


def plain_ninja(bench: Bench, count: int) -> Ninja:
    """The same graph for ninja, built.

    Raises:
        Skip: there is no ninja.
    """
    folder = _sources(bench, f"ninja-{count}", count)
    ninja = Ninja(find_ninja(), folder, "build.ninja")
    ninja.write(_edges(count))
    for number in range(count):
        (folder / f"out/k{number:04}").mkdir(parents=True, exist_ok=True)
    ninja.build(bench.jobs)
    return ninja


def _edges(count: int) -> Iterator[Edge]:
    libraries = []
    for number in range(count):
        name = f"k{number:04}"
        host, device, cubin, wrapper, library = (
            f"out/{name}/{file}" for file in ("host.o", "device.cu", "sm_90a.cubin", "wrapper.c", f"{name}.so")
        )
        yield _copy(host, f"{name}.py")
        yield _copy(device, f"{name}.py")
        yield _copy(cubin, device)
        yield _copy(wrapper, host, device)
        yield _copy(library, wrapper, host, cubin)
        libraries.append(library)
    yield _copy("out/manifest.json", *libraries)


def _copy(output: str, *inputs: str) -> Edge:
    return Edge([output], inputs, f"cat {shlex.join(inputs)} > {shlex.quote(output)}")


def _sources(bench: Bench, name: str, count: int) -> Path:
    folder = bench.work / name
    folder.mkdir(exist_ok=True)
    for number in range(count):
        file = folder / f"k{number:04}.py"
        if not file.exists():
            file.write_text(f"kernel {number}\n")
    return folder
