"""Lowers a Program: Triton 3.9 makes device code for each arch, and TVM the host code that launches it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import triton
from kernelwright.core.arch import arch_order, real_arch
from kernelwright.core.errors import DefinitionError, LoweringError
from kernelwright.define.arguments import Scalar, Tensor
from kernelwright.define.sizes import Size, on_axes
from kernelwright.frontends.cubin import device_files, functions_of, reported_usage
from kernelwright.frontends.declared_launch import lower_launches
from kernelwright.frontends.launches import NULL, DeclaredLaunch
from kernelwright.frontends.unit import LoweredKernel, Unit
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

from . import Program

LOCATIONS = re.compile(r"^#loc.*\n| loc\(.*?\)$", re.M)


@dataclass(frozen=True)
class Compiled:
    """What was made for one arch."""

    arch: str
    cubin: bytes
    ptx: str
    source: str
    shared: int
    report: str = ""


def lower(program: Program, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """Compile what a definition returned, for all archs of the unit."""
    unit = program.checked(unit)
    if not isinstance(program.function, GluonJITFunction):
        raise DefinitionError("the Program has no function of Gluon", unit.where, "decorate it with @gluon.jit")
    results = {}
    for arch in sorted({*map(real_arch, unit.archs)}, key=arch_order):
        progress(f"compiling for {arch} (Gluon)")
        results[arch] = compiled(program, arch, unit)
    first = next(iter(results.values()))
    if any(result.shared != first.shared for result in results.values()):
        message = "the archs need different amounts of shared memory"
        raise LoweringError(message, unit.where, "write @kernel(per_arch=True)")
    progress("making host code")
    passed = {n: v for n, v in program.arguments.items() if isinstance(v, (Tensor, Scalar, Size))}
    # Triton's own launcher passes two more pointers: memory for a program, and for its profile.
    launch = DeclaredLaunch(
        functions_of(first.cubin)[0],
        {**passed, "scratch": NULL, "profile": NULL},
        [*on_axes("blockIdx", program.grid), ("threadIdx.x", 32 * program.num_warps)],
        first.shared,
    )
    lowered = lower_launches(program.declared, [launch], unit)
    files = {name: lowered.files[name] for name in ("signature.json", "host.c")}
    files["module.ttgir"] = "".join(result.source for result in results.values()).encode()
    return replace(lowered, files=files | device_files(unit.archs, results, reported_usage))


def compiled(program: Program, arch: str, unit: Unit) -> Compiled:
    """The code for one arch."""
    names, values = program.function.arg_names, program.arguments
    if list(values) != names:
        message = f"the arguments are {', '.join(values)}, and the parameters {', '.join(names)}"
        raise DefinitionError(message, unit.where, "give both the same names in the same order")
    types = {name: type_of(value) for name, value in values.items()}
    constants = {(names.index(name),): values[name] for name, kind in types.items() if kind == "constexpr"}
    source = GluonASTSource(program.function, types, constants)
    options = {"num_warps": program.num_warps, "enable_fp_fusion": True}
    target = GPUTarget("cuda", arch_order(arch)[0], 32)
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope(), triton.knobs.compilation.scope():
        triton.knobs.cache.dir, triton.knobs.compilation.disable_line_info = folder, True
        try:
            made = triton.compile(source, target=target, options=options)
        except Exception as error:  # it evaluates the user's code, and its own errors have many types
            at, *_, why = str(error).splitlines() or ["", repr(error)]
            message = f"{program.function.fn.__name__} cannot be compiled for {arch}: {why} ({at.rstrip(':')})"
            raise DefinitionError(message, unit.where, "mend the function") from error
    text = LOCATIONS.sub("", made.asm["ttgir"])
    return Compiled(arch, made.asm["cubin"], made.asm["ptx"], text, made.metadata.shared)


def type_of(value: Any) -> str:
    """Triton's name of the type of a parameter."""
    if not isinstance(value, (Tensor, Scalar, Size)):
        return "constexpr"
    name = re.sub("^float", "fp", value.dtype).replace("bfloat", "bf").replace("uint", "u").replace("int", "i")
    return f"*{name}" if isinstance(value, Tensor) else name.replace("bool", "u1")
