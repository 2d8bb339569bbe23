"""The library's device code compiled by NVRTC, with precompiled headers and without, beside nvcc; is it the same?

Every device.cu of the library is compiled for each arch in a process of its own, one after the other, by each compiler
in turn. The code of device functions is compared byte for byte, and their registers and spills as ptxas reports them.
nvcc computes addresses of shared memory in 32 bits and NVRTC in 64, so that some of it differs; that there is no other
difference is shown by an nvcc that is told to do it as NVRTC does.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .harness import Bench, BenchmarkError, Finished, Result, Row, Skip, Target, interleave, median, run
from .projects import built_library

ARCHS = ("sm_80", "sm_90a")
COLD, OURS, PLAIN, NVCC = "NVRTC, no header kept yet", "NVRTC", "NVRTC without a precompiled header", "nvcc"
SAME = "nvcc with 64-bit addresses of shared memory"

REPORT = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes.*?Used (\d+) regis", re.S
)
"""Name, spill stores, spill loads and registers of a device function, in the output of ``ptxas -v``."""


@dataclass(frozen=True)
class Unit:
    """A source for an arch.

    Arguments:
        folder: the folder of device.cu.
        arch: such as ``sm_80``.
        commands: how each compiler is run, with OUTPUT for the file to make.
    """

    folder: Path
    arch: str
    commands: Mapping[str, list[str]]

    def compile(self, how: str, output: Path) -> Finished:
        """Run a compiler."""
        command = [word.replace("OUTPUT.cubin", str(output)) for word in self.commands[how]]
        return run(command, self.folder)


@dataclass(frozen=True)
class Code:
    """What a compiler made of a unit: the machine code and the report on each device function, by name."""

    code: dict[str, bytes]
    report: dict[str, tuple[str, ...]]


def measure(bench: Bench) -> Result:
    """Compile everything with each compiler, and compare."""
    project = built_library(bench)
    headers, outputs = bench.work / "pch", bench.work / "cubins"
    outputs.mkdir(exist_ok=True)
    units = _units(bench, project.kernels, headers)
    code: dict[str, list[Code]] = {}

    def compile_all(name: str, how: str) -> dict[str, float]:
        if name == COLD:
            shutil.rmtree(headers, ignore_errors=True)
            headers.mkdir()
        runs = [unit.compile(how, outputs / f"{number}.cubin") for number, unit in enumerate(units)]
        code[name] = [_code(outputs / f"{number}.cubin", done.output) for number, done in enumerate(runs)]
        return {"wall_s": sum(done.wall_s for done in runs), "cpu_s": sum(done.cpu_s for done in runs)}

    ways = {COLD: OURS, OURS: OURS, PLAIN: PLAIN, NVCC: NVCC}
    bench.say(f"{len(units)} compilations with each of {', '.join(ways)}")
    samples = interleave(
        bench.rounds_or(3), {name: lambda name=name, how=how: compile_all(name, how) for name, how in ways.items()}
    )
    bench.say("the same once more with nvcc and 64-bit addresses of shared memory")
    compile_all(SAME, SAME)
    size = sum(file.stat().st_size for file in headers.iterdir())
    details = {"samples": samples, "units": len(units), "headers_bytes": size, "headers": len(list(headers.iterdir()))}
    differences = {other: _differences(units, code[OURS], code[other]) for other in (NVCC, SAME, PLAIN)}
    return Result([*_time_rows(samples), *_code_rows(code, differences)], details | {"differences": differences})


def _units(bench: Bench, kernels: Path, headers: Path) -> list[Unit]:
    try:
        lines = bench.child("cuda_commands", kernels, headers, *ARCHS).output.splitlines()
    except BenchmarkError as error:
        raise (Skip("NVRTC is not installed") if "no NVRTC" in str(error) else error) from error
    found = [json.loads(line) for line in lines]
    return [Unit(Path(unit["folder"]), unit["arch"], unit["commands"]) for unit in found]


def _code(cubin: Path, output: str) -> Code:
    from elftools.elf.elffile import ELFFile  # which machines that only run the other benchmarks do not have

    with cubin.open("rb") as file:
        sections = {s.name: s.data() for s in ELFFile(file).iter_sections() if s.name.startswith(".text.")}
    return Code(sections, {match[0]: match[1:] for match in REPORT.findall(output)})


def _differences(units: Iterable[Unit], ours: list[Code], theirs: list[Code]) -> dict[str, list[str]]:
    """Units whose functions have other registers or spills, or other machine code."""
    triples = list(zip(units, ours, theirs, strict=True))
    names = {
        id(unit): f"{unit.folder.parent.parent.name}/{unit.folder.parent.name} {unit.arch}" for unit, _, _ in triples
    }
    return {
        "registers or spills": [names[id(unit)] for unit, a, b in triples if a.report != b.report],
        "machine code": [names[id(unit)] for unit, a, b in triples if a.code != b.code],
    }


def _time_rows(samples: Mapping[str, list[dict[str, float]]]) -> list[Row]:
    def total(name: str, what: str) -> float:
        return median(sample[what] for sample in samples[name])

    rows = []
    for name in (OURS, COLD, PLAIN):
        target = Target(1.0, "ratio") if name == OURS else None
        note = "the headers of these sources are there" if name == OURS else ""
        rows.append(
            Row(f"all sources, {name}", "s", total(name, "wall_s"), {NVCC: total(NVCC, "wall_s")}, target, note)
        )
        rows.append(Row(f"all sources, {name}, CPU", "s", total(name, "cpu_s"), {NVCC: total(NVCC, "cpu_s")}))
    return rows


def _code_rows(code: Mapping[str, list[Code]], differences: Mapping[str, dict[str, list[str]]]) -> list[Row]:
    functions = Counter(name for unit in code[NVCC] for name in unit.report).total()
    rows = [Row("device functions", "", functions)]
    for other, found in differences.items():
        target = None if other == NVCC else Target(0)
        rows += [Row(f"sources with other {what}: {other}", "", len(u), {}, target) for what, u in found.items()]
    return rows
