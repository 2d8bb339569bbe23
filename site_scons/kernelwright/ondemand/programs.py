"""Compiles programs of TVM without a definition around them: ``kernelwright.compile`` and ``par_compile``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import frontends
from ..core.errors import DefinitionError, Where, shown
from ..define.names import MAX_NAME, is_name
from .definition import listed
from .kernel import OnDemandKernel
from .kernel import kernel as declare
from .options import Options
from .parallel import compile_all

FALLBACK_NAME = "program"
"""The name of a kernel whose function has none, or one that no kernel can have, such as ``main``."""


def compile(
    program: Any,
    *,
    outputs: Sequence[str | int] = (),
    target: str | Sequence[str] | None = None,
    archs: str | Sequence[str] | None = None,
    backend: str | None = None,
    flags: str | Sequence[str] | None = None,
    pass_configs: Mapping[str, Any] | None = None,
    verbose: bool | None = None,
) -> Any:
    """Compile a PrimFunc, or an IRModule with one entry function, unless the cache has it.

    It is lowered in this process. Its kernel has the name of the function.

    Arguments:
        program: a ``tvm.tirx.PrimFunc`` or a ``tvm.IRModule``.
        outputs: tensor arguments that callers may leave out: names, or positions, from the end where negative.
        target: ``llvm``, ``cuda`` or both; default: ``KERNELWRIGHT_TARGET``, or those of this machine's devices.
        archs: such as ``["sm_90a"]``; default: ``KERNELWRIGHT_ARCHS``, or those of this machine's devices.
        backend: the execution backend; default: ``KERNELWRIGHT_BACKEND``, or ``tvm_ffi``.
        flags: flags of the CUDA compiler.
        pass_configs: options of TVM's passes.
        verbose: whether the commands are shown, and what compilers say.

    Returns:
        A kernel object as packages have.

    Raises:
        KernelwrightError: the program, an argument or the machine does not fit; or a stage failed.
    """
    options = {"target": target, "archs": archs, "backend": backend, "flags": flags, "pass_configs": pass_configs}
    return _kernel(program, outputs, "compile()", {**options, "verbose": verbose}).compile()


def par_compile(
    programs: Iterable[Any],
    *,
    outputs: Sequence[str | int] = (),
    num_workers: int | None = None,
    ignore_error: bool = False,
    **options: Any,
) -> list[Any]:
    """Compile several programs at once; the kernel objects in their order.

    Arguments:
        programs: as for :func:`compile`.
        outputs: those of each program, as for :func:`compile`; the list is copied.
        num_workers: how many stages run at once; None: as many as there are cores.
        ignore_error: whether a program that fails becomes None, with a warning. Otherwise the first failure ends all,
            and is raised.
        options: the other arguments of :func:`compile`.

    Raises:
        KernelwrightError: a program failed.
    """
    given = {**options, "num_workers": num_workers}
    kernels = [_kernel(program, outputs, "par_compile()", given) for program in listed(programs, "programs", _caller())]
    if not kernels:
        return []
    session = kernels[0]._origin().session
    return compile_all([kernel.compile for kernel in kernels], session, ignore_error)


def _kernel(program: Any, outputs: Sequence[str | int], place: str, options: Mapping[str, Any]) -> OnDemandKernel:
    """A definition that returns the program."""
    where = _caller()
    name = _name(program, where)

    def definition() -> Any:
        return program

    definition.__name__ = name
    try:
        kernel: OnDemandKernel = declare(outputs=outputs)(definition)
    except DefinitionError as error:
        error.where = replace(error.where, location=where.location)
        raise
    kernel.location = str(where.location)
    kernel.program = program
    kernel._options = Options.read(place, **options)
    return kernel


def _name(program: Any, where: Where) -> str:
    """The name of the program's function, if a kernel can have that."""

    if not frontends.get(frontends.names()[0]).recognizes(program):
        remedy = "pass what @T.prim_func or te.create_prim_func made; definitions have a method compile of their own"
        raise DefinitionError(f"{shown(program)} is no PrimFunc and no IRModule", where, remedy)
    attributes = getattr(program, "attrs", None) or {}
    names = [str(attributes["global_symbol"])] if "global_symbol" in attributes else []
    if not names and hasattr(program, "functions_items"):
        names = [var.name_hint for var, function in program.functions_items() if "global_symbol" in function.attrs]
    name = re.sub("_+", "_", re.sub(r"\W", "_", names[0], flags=re.ASCII)).strip("_")[:MAX_NAME] if names else ""
    return name if is_name(name) else FALLBACK_NAME


def _caller() -> Where:
    """The line that called a function of this module."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    location = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else None
    return Where(stage="lower", location=location)
