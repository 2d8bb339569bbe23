"""Builds kernels with and without tuning tables, or times their calls: ``lookup.py build|call FOLDER [CALLS SIZES]``.

``call`` prints the ns of a call of each kernel as JSON: ``none``, ``one`` and ``eight``, by how many tables there are.
The calls have so many different sizes in turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from kernelwright.backends.commands import (
    ToolPaths,
    compile_command,
    compile_flags,
    include_flags,
    launcher_commands,
    launcher_library,
    launcher_map,
    link_command,
)
from kernelwright.backends.launcher import LAUNCHER
from kernelwright.backends.plan import Argument, KernelPlan, LoweredUnit, VariantPlan
from kernelwright.backends.sources import emit
from kernelwright.runtime.tables import DeviceTable, Rules

SOURCE = Path(__file__).resolve().parent.parent / "lookup.c"

ARCH = "x86-64"
VARIANTS = 8
NOTHING = "int {symbol}(void *self, void *arguments, int count, void *result) {{ return 0; }}\n"


def kernel() -> KernelPlan:
    """c = a @ b with one declared variant, and others that tables name."""
    shapes: dict[str, tuple[int | str, ...]] = {"a": ("m", 1024), "b": (1024, 1024), "c": ("m", 1024)}
    arguments = tuple(Argument(name, "tensor", "float16", shape, name == "c") for name, shape in shapes.items())
    variants = []
    for number in range(VARIANTS):
        slug, symbol = f"variant-{number}", f"nothing_{number}"
        unit = LoweredUnit("gemm", slug, "llvm", ARCH, symbol, arguments, {"m": "int32"}, (), f"{symbol}.o")
        variants.append(VariantPlan(slug, {}, (unit,)))
    return KernelPlan("gemm", ("c",), tuple(variants), declared=1)


def tables(count: int, ranges: int) -> tuple[DeviceTable, ...]:
    """Tables of other machines, the nearest of which counts."""
    step = 8192 // ranges
    ends = [step * number for number in range(1, ranges)]
    rules = Rules(("m",), tuple((end, number % VARIANTS) for number, end in enumerate([*ends, None])))
    return tuple(DeviceTable("llvm", ARCH, f"CPU {number}", 4 * (number + 1), {0: rules}) for number in range(count))


KERNELS = {
    "none": kernel(),
    "one": replace(kernel(), tables=tables(1, 3)),
    "eight": replace(kernel(), tables=tables(8, 20)),
}


def build(folder: Path) -> None:
    """Make the libraries, as a build does, and the program that calls them."""
    from tvm_ffi import libinfo

    places = ToolPaths("cc", str(LAUNCHER), (libinfo.find_include_path(), libinfo.find_dlpack_include_path()))
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(VARIANTS):
        source = folder / f"nothing_{number}.c"
        source.write_text(NOTHING.format(symbol=source.stem))
        run(folder, "cc", "-O2", "-fPIC", "-c", source.name)
    launcher = launcher_library("0")
    (folder / "launcher.map").write_text(launcher_map(launcher))
    for command in launcher_commands(places, launcher, "."):
        run(folder, *command)
    for name, plan in KERNELS.items():
        (folder / plan.name).mkdir(exist_ok=True)
        for file, text in emit(plan).items():
            (folder / plan.name / file).write_text(text)
        run(folder, *compile_command(plan.name, places, f"{plan.name}/wrapper.o"))
        objects = [unit.host for unit in plan.units]
        run(folder, *link_command(plan.name, [*objects, launcher], places, f"{name}.so"))
    folders = include_flags(places.includes, places.launcher)
    run(folder, "cc", *compile_flags(), *folders, str(SOURCE), "-o", "lookup", "-ldl")


def call(folder: Path, calls: str, sizes: str) -> None:
    """Time the calls, and print the result."""
    from tvm_ffi import libinfo

    libraries = [f"./{name}.so" for name in KERNELS]
    words = run(folder, "./lookup", libinfo.find_libtvm_ffi(), calls, sizes, *libraries).split()
    print(json.dumps(dict(zip(KERNELS, map(float, words), strict=True))))


def run(folder: Path, *command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build(Path(sys.argv[2]))
    else:
        call(Path(sys.argv[2]), *sys.argv[3:5])
