"""Compiles a Program for archs: cuTile makes bytecode of its function, and tileiras machine code of that.

Written for cuda-tile 1.7, and what it calls the convention ``cutile_python_v2``.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cuda.tile as ct
from cuda.tile.compilation import (
    ArrayConstraint,
    CallingConvention,
    KernelSignature,
    ScalarConstraint,
    export_kernel,
)
from kernelwright.core.dtype import Dtype, bytes_of
from kernelwright.core.errors import DefinitionError, KernelwrightError, LoweringError, ToolchainError, Where
from kernelwright.define.arguments import Scalar, Tensor
from kernelwright.define.declared import first_difference
from kernelwright.define.sizes import Size, divisor_of
from kernelwright.define.strides import all_strides
from kernelwright.frontends.cubin import reported_usage
from kernelwright.frontends.raised import MAX_MESSAGE, first_line, line_of
from kernelwright.frontends.unit import Unit
from kernelwright.processes.environment import tool_environment

from .cubin import parameter_sizes
from .program import Program
from .tool import RELEASE, programs


def _remove_folder() -> None:
    """Remove the folder that cuTile makes when it is imported: a worker that is killed would leave it, and exporting a
    kernel puts nothing into it."""
    with contextlib.suppress(OSError):
        Path(ct._cext.default_tile_context.config.temp_dir).rmdir()


_remove_folder()

ARCHS = {
    **{arch: arch for arch in ("sm_80", "sm_86", "sm_87", "sm_88", "sm_89")},
    **{f"{arch}a": arch for arch in ("sm_90", "sm_100", "sm_103", "sm_107", "sm_110", "sm_120", "sm_121")},
}
"""An arch -> tileiras' name of it. From 9.0 on its code is for the device of that name and for no later one, for which
Kernelwright has the suffix ``a``."""

MOST_DIVISIBLE = 16
"""What cuTile's own launcher looks for: addresses and strides that are multiples of so many bytes, and sizes that are
multiples of so many elements."""


@dataclass(frozen=True)
class Compiled:
    """What was made for one arch.

    Arguments:
        arch: such as ``sm_90a``.
        cubin: the device code.
        source: cuTile's code as text, without places in files.
        ptx: empty: tileiras tells none.
        report: what ptxas says of a function that has a stack frame, which may be for spills.
    """

    arch: str
    cubin: bytes
    source: str
    ptx: str = ""
    report: str = ""


class Compiler:
    """Compiles one program.

    Arguments:
        program: what the definition returned.
        unit: what is lowered, with all that sizes are multiples of.

    Raises:
        DefinitionError: the function is none of cuTile's, or its parameters are not the arguments.
        ToolchainError: tileiras is not installed.
    """

    def __init__(self, program: Program, unit: Unit) -> None:
        self._program, self._unit = program, unit
        self._bin = programs(unit.python or sys.executable, unit.where)
        if not isinstance(program.function, ct.kernel):
            message = f"the Program's function is of type {type(program.function).__name__}"
            raise DefinitionError(message, unit.where, "pass a function that is decorated with @ct.kernel")
        function = program.function._pyfunc
        parameters = list(inspect.signature(function).parameters)
        given = list(program.arguments)
        if different := first_difference(given, parameters, given, parameters):
            message = f"the arguments of the Program are not the parameters of {function.__name__}: {different}"
            raise DefinitionError(message, unit.where, "give both the same names in the same order")
        annotations = program.function._annotated_function.parameter_annotations
        self._annotations = dict(zip(parameters, annotations, strict=True))
        self.symbol = function.__name__ if function.__name__.isascii() else unit.symbol

    def index_dtype(self, name: str) -> str:
        """The dtype that an array's sizes and strides have for the function; its annotation tells."""
        array = getattr(self._annotations[name], "array", None)
        return "int32" if array is None else str(array.index_dtype.name)

    def compile(self, arch: str) -> Compiled:
        """Compile for one arch.

        Raises:
            LoweringError: there is no code for the arch, or cuTile or tileiras cannot make it.
        """
        if arch not in ARCHS:
            message = f"cuTile makes no code for {arch}"
            remedy = f"restrict the kernel to others with archs=[...]; it knows {', '.join(ARCHS)}"
            raise LoweringError(message, self._unit.where, remedy)
        bytecode = io.BytesIO()
        try:
            signature = KernelSignature(self._constraints(), CallingConvention.cutile_python_v2(), symbol=self.symbol)
            options = {"gpu_code": ARCHS[arch], "output_format": "tileir_bytecode", "bytecode_version": RELEASE}
            export_kernel(self._program.function, [signature], bytecode, **options)
        except KernelwrightError:
            raise
        except BaseException as error:  # it evaluates the user's code, and its own errors have many types
            raise self._error(error, arch) from error
        with tempfile.TemporaryDirectory(prefix="kernelwright-") as folder:
            path = Path(folder) / "kernel"
            path.write_bytes(bytecode.getvalue())
            options = [str(path), "-o", f"{path}.cubin", "--gpu-name", ARCHS[arch], f"-O{self._level(arch)}"]
            self._run(self._bin / "tileiras", arch, *options)
            source = self._run(self._bin / "tileirdisasm", arch, str(path))
            made = Compiled(arch, Path(f"{path}.cubin").read_bytes(), source)
            if any(used["stack_bytes"] for used in reported_usage(made).values()):
                made = replace(made, report=self._report(Path(folder), arch, options))
        self._require_parameters(made.cubin)
        return made

    def _report(self, folder: Path, arch: str, options: Sequence[str]) -> str:
        """What ptxas says of a function: tileiras runs the one beside it and drops that, so this is beside a copy.

        Arguments:
            folder: for the copy.
            options: those of tileiras.
        """
        report, tools = folder / "report", folder / "tools"
        (tools / "bin").mkdir(parents=True)
        for item in self._bin.parent.iterdir():
            if item != self._bin:
                (tools / item.name).symlink_to(item)
        shutil.copy(self._bin / "tileiras", tools / "bin")
        ptxas = tools / "bin/ptxas"
        ptxas.write_text(
            f'#!/bin/sh\nexec {shlex.quote(str(self._bin / "ptxas"))} -v "$@" 2>{shlex.quote(str(report))}\n'
        )
        ptxas.chmod(0o700)
        self._run(tools / "bin/tileiras", arch, *options)
        return report.read_text(errors="replace")

    def _level(self, arch: str) -> int:
        level: int = self._program.function._compiler_options.opt_level_for_target(ARCHS[arch])
        return level

    def _constraints(self) -> list[Any]:
        """What cuTile is told of each parameter."""
        made = []
        for name, value in self._program.arguments.items():
            if isinstance(value, Tensor):
                made.append(self._array(name, value) if value.given else ())
            elif isinstance(value, (Scalar, Size)):
                made.append(ScalarConstraint(dtype_of(value.dtype)))
            else:
                made.append(value)
        return made

    def _array(self, name: str, value: Tensor) -> ArrayConstraint:
        """What cuTile is told of an array: what its launcher looks for in a call, as far as it is declared."""
        strides = all_strides(name, value.shape, value.strides)
        multiples = self._unit.multiples
        element = bytes_of(Dtype.parse(value.dtype, self._unit.where).bits)
        steps = max(1, MOST_DIVISIBLE // element)
        negative = next((step for step in strides if isinstance(step, int) and step < 0), None)
        if negative is not None:
            message = f"a stride of argument {name!r} is {negative}, and cuTile knows none below 0"
            raise DefinitionError(message, self._unit.where, "pass the array the other way round")
        return ArrayConstraint(
            dtype_of(value.dtype),
            len(value.shape),
            index_dtype=dtype_of(self.index_dtype(name)),
            stride_lower_bound_incl=0,
            alias_groups=(),
            may_alias_internally=0 in strides,
            stride_constant=[step if isinstance(step, int) else None for step in strides],
            shape_constant=[size if isinstance(size, int) else None for size in value.shape],
            stride_divisible_by=[_divisor(step, multiples, steps) for step in strides],
            shape_divisible_by=[_divisor(size, multiples, MOST_DIVISIBLE) for size in value.shape],
            base_addr_divisible_by=min(MOST_DIVISIBLE, max(value.alignment or 1, element)),
        )

    def _run(self, program: Path, arch: str, *arguments: str) -> str:
        """Run a program; what it printed.

        Raises:
            LoweringError: it fails.
        """
        environment = {**tool_environment(), "PATH": str(self._bin)}
        if "-o" in arguments:
            environment["TMPDIR"] = str(Path(arguments[0]).parent)
        command = [str(program), *arguments]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        except OSError as error:
            raise ToolchainError(
                f"{program.name} cannot be run: {error}", self._unit.where, "install it again"
            ) from error
        if done.returncode:
            from cuda.tile._compile import _parse_tileir_stderr

            message, place = _parse_tileir_stderr(done.stderr)
            raise self._failed(
                message.strip() or f"{program.name} ended with {done.returncode}", arch, place, done.stderr
            )
        return done.stdout

    def _require_parameters(self, cubin: bytes) -> None:
        """Raise a LoweringError if the function has other parameters than the launch passes."""
        expected: list[int] = []
        for name, value in self._program.arguments.items():
            if isinstance(value, Tensor) and value.given:
                index = bytes_of(Dtype.parse(self.index_dtype(name), self._unit.where).bits)
                expected += [8, *[index] * (2 * len(value.shape))]
            elif isinstance(value, (Scalar, Size)):
                expected.append(bytes_of(Dtype.parse(value.dtype, self._unit.where).bits))
        found = parameter_sizes(cubin, self.symbol)
        if found != expected:
            message = f"the function has parameters of {found} bytes, and a launch passes {expected}"
            raise LoweringError(message, self._unit.where, "install a release of cuda-tile that the front end knows")

    def _error(self, error: BaseException, arch: str) -> LoweringError:
        """The error for what cuTile, or the user's code in it, has raised: at the user's line."""
        place = getattr(error, "loc", None)
        text = getattr(error, "message", None) or str(error)
        line = None if getattr(place, "filename", None) else line_of(error, "cuda")
        kind = type(error).__name__
        return self._failed(first_line(error, text), arch, place, f"{kind}: {error}", line)

    def _failed(self, message: str, arch: str, place: Any, detail: str, line: str | None = None) -> LoweringError:
        unit = self._unit
        location = f"{place.filename}:{place.line}" if getattr(place, "filename", None) else line or unit.location
        where = Where(unit.kernel, unit.slug, "lower", location)
        text = f"cuTile cannot compile it for {arch}: {message.splitlines()[0]}"
        return LoweringError(text, where, "mend that line of the definition", detail[:MAX_MESSAGE])


def dtype_of(name: str) -> Any:
    """cuTile's dtype of that name."""
    return getattr(ct, "bool_" if name == "bool" else name)


def _divisor(size: int | str, multiples: Mapping[str, int], most: int) -> int:
    """What a size is a multiple of, among the powers of 2 up to ``most``; 1 if its value is known."""
    return 1 if isinstance(size, int) else math.gcd(divisor_of(size, multiples) or most, most)
