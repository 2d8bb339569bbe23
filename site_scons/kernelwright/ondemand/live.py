"""Definitions that only this process has: in a notebook's cell, a script, a test, or none at all around a PrimFunc.

They are called and lowered in this process, because no worker could execute them. What decides the result is the
program that a definition returns, so that is in the fingerprint in place of the definition's files, and a definition
may use whatever it likes. ``docs/on-demand.md`` says what isolation is lost.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import frontends
from ..core.arch import lowering_arch
from ..core.errors import DefinitionError, Where, WorkerError, refused
from ..core.project import OWN_PACKAGE
from ..core.request import digest
from ..define.configs import Config
from ..define.kernel import Kernel
from ..define.pass_configs import PassConfigs
from ..define.record import DefinitionRecord, KernelRecord, record_of
from ..define.unit import Unit, unit_symbol
from ..processes.protocol import LowerRequest, LowerResult
from ..stages.context import KernelContext
from .build import Job, MakeContext
from .deep import deep_recursion, deeply
from .options import Options, settings_for
from .origin import Origin
from .project import session_for

if TYPE_CHECKING:
    from ..stages.selection import KernelSelection

LOCK = threading.RLock()
"""TVM lowers one program at a time in a process."""

# A child of fork lacks the thread that may hold it; this is what the standard library does with its own locks.
os.register_at_fork(after_in_child=LOCK._at_fork_reinit)  # type: ignore[attr-defined]


class Evaluated(NamedTuple):
    """A program that a definition has returned, and the digest that it is known by."""

    program: Any
    digest: str


@dataclass(frozen=True)
class Programs:
    """What a definition returns for the units of one variant; of several, if targets have different ones.

    Arguments:
        kernel: the kernel.
        configs: slug of a variant -> its config.
        slugs: the slugs that the definition lists.
        pass_configs: configs of TVM's passes.
    """

    kernel: Kernel
    configs: Mapping[str, Config]
    slugs: tuple[str, ...]
    pass_configs: PassConfigs

    def unit(self, slug: str, target: str, arch: str) -> Unit:
        """What is lowered for an arch."""
        kernel, config = self.kernel, self.configs[slug]
        symbol = unit_symbol(kernel.name, slug, self.slugs, target, arch, kernel.options.per_arch)
        return Unit(
            *(kernel.name, slug, symbol, config, kernel.options.outputs, target, arch, kernel.location),
            pass_configs=self.pass_configs,
            multiples=kernel.multiples(config),
            requires=tuple(kernel.options.requires),
            per_arch=kernel.options.per_arch,
        )

    def returned(self, unit: Unit) -> Any:
        """What the definition returns for a unit.

        Raises:
            DefinitionError: it raised something, or returned what its front end does not lower.
        """
        import tvm_ffi

        front_end = frontends.of(self.kernel, unit.where)
        if front_end.compiles_device_code or front_end.header_folders or self.kernel.options.sources:
            raise _needs_a_file(front_end.name, unit.where)
        target = front_end.target(unit)
        try:
            returned = self.kernel.build(unit.config, target)
        except (Exception, SystemExit) as error:  # user code may raise anything
            raise _error(error, unit.where) from error
        returned = frontends.recognized(front_end, returned, unit.where)
        if not isinstance(returned, tvm_ffi.Object):
            raise _needs_a_file(front_end.name, unit.where)
        front_end.require_pass_configs(unit.pass_configs, unit.where)
        return returned

    def evaluated(self, selection: KernelSelection) -> dict[str, Evaluated]:
        """The program of each unit. It is kept, so that what is lowered later is what was digested."""
        found: dict[str, Evaluated] = {}
        for slug in selection.record.slugs:
            wanted = selection.archs_of(slug)
            units = [("llvm", arch) for arch in wanted.get("llvm", ())]
            units += [("cuda", lowering_arch(archs)) for archs, _ in selection.cuda_sources(slug)]
            found |= {f"{slug} {target} {arch}": self._evaluated(slug, target, arch) for target, arch in units}
        return found

    def _evaluated(self, slug: str, target: str, arch: str) -> Evaluated:
        """A program, and a digest of it and its unit: of the text, and of TVM's own hash of the structure.

        The text alone would not do: TVM does not print all that a program can have.
        """
        import tvm_ffi

        with LOCK, deep_recursion():
            unit = self.unit(slug, target, arch)
            returned = self.returned(unit)
            text, structure = deeply(lambda: (returned.script(show_meta=True), tvm_ffi.structural_hash(returned)))
            return Evaluated(returned, digest([unit, text, str(structure)]))

    def lower(self, request: LowerRequest, program: Any) -> LowerResult:
        """Do what a worker would do, with a program that the definition has returned."""
        start = time.process_time()
        with LOCK, deep_recursion(), _without_compiling():
            unit = self.unit(request.slug, request.target, request.arch)
            unit = replace(unit, symbol=request.symbol, pass_configs=request.pass_configs, ir=request.ir)
            front_end = frontends.of(self.kernel)
            lowered = deeply(lambda: frontends.lowered(front_end, program, unit, lambda doing: None))
        try:
            for name, content in lowered.files.items():
                (Path(request.out) / name).write_bytes(content)
        except OSError as error:
            raise refused(error, unit.where, request.out) from error
        seconds = round(time.process_time() - start, 4)
        return LowerResult(tuple(sorted(lowered.files)), lowered.schedule, seconds, seconds, {})


@dataclass(frozen=True)
class LiveContext(KernelContext):
    """What the stages of a kernel are made from whose definition is in this process.

    Arguments:
        programs: lowers the programs.
        evaluated: slug, target and arch of a unit -> its program.
    """

    programs: Programs
    evaluated: Mapping[str, Evaluated]

    @property
    def definition_identity(self) -> dict[str, Any]:
        """The programs, in place of the definition's files."""
        return {"programs": {unit: one.digest for unit, one in self.evaluated.items()}}

    def call(self, request: Any, where: Where) -> LowerResult:
        """See :meth:`KernelContext.call`: the answer is made here."""
        if not isinstance(request, LowerRequest):
            raise WorkerError(f"no operation for {request!r}", where)
        one = self.evaluated[f"{request.slug} {request.target} {request.arch}"]
        return self.programs.lower(request, one.program)


def origin_of(kernel: Kernel, options: Options, root: Path) -> Origin:
    """What a compile needs to know of a kernel of this process.

    Arguments:
        root: the project's folder.
    """
    settings = settings_for(root, options, os.environ)
    session = session_for(root, settings, options)

    def context(selection: KernelSelection) -> tuple[MakeContext, dict[str, str]]:
        record, backward = selection.record, kernel.backward_kernel
        declared = backward if backward is not None and backward.name == record.name else kernel
        for config in record.configs:
            declared.unlisted(config)
        configs = dict(zip(record.slugs, record.configs, strict=True))
        slugs = tuple(variant.slug for variant in declared.variants)
        programs = Programs(declared, configs, slugs, record.options.pass_configs)
        made = programs.evaluated(selection)
        return partial(LiveContext, programs=programs, evaluated=made), {unit: one.digest for unit, one in made.items()}

    return Origin(definition_of(kernel), record_of_kernel(kernel), settings, session, context)


def record_of_kernel(kernel: Kernel) -> KernelRecord:
    """The record of a kernel of this process.

    Raises:
        DefinitionError: there is no such front end, or the kernel does not fit it.
    """
    where = Where(kernel.name, location=kernel.location)
    front_end = frontends.of(kernel, where)
    front_end.check(kernel, where)
    return record_of(kernel, frontends.targets_of(kernel), kernel.location, kernel.sizes_of)


def definition_of(kernel: Kernel) -> DefinitionRecord:
    """The record of the definition file that a kernel of this process would be in."""
    kernels = [kernel, *([kernel.backward_kernel] if kernel.backward_kernel else [])]
    return DefinitionRecord(f"<{kernel.name}>", {}, tuple(map(record_of_kernel, kernels)))


@contextlib.contextmanager
def _without_compiling() -> Iterator[None]:
    """Keep TVM from compiling the CUDA source that it makes, which it does itself where there is a driver.

    Workers leave TVM's CUDA runtime out for that; in this process somebody may need it.
    """
    import tvm_ffi

    name = "tvm_callback_cuda_compile"
    before = tvm_ffi.get_global_func(name, allow_missing=True)
    tvm_ffi.register_global_func(name, lambda *arguments: b"", override=True)
    try:
        yield
    finally:
        if before is not None:
            tvm_ffi.register_global_func(name, before, override=True)


def _needs_a_file(language: str, where: Where) -> DefinitionError:
    message = f"a definition in {language} cannot be compiled from a cell or a script"
    return DefinitionError(message, where, "write it into a file, and load that: kernelwright.load(path)")


def _error(error: BaseException, where: Where) -> DefinitionError:
    """The error for what a definition raised, with the user's line."""
    frames = traceback.extract_tb(error.__traceback__)
    shown = [frame for frame in frames if _is_user_code(frame.filename)]
    verb = "called sys.exit" if isinstance(error, SystemExit) else f"raised {type(error).__name__}"
    first = next(iter(str(error).splitlines()), "")
    location = f"{shown[-1].filename}:{shown[-1].lineno}" if shown else where.location
    detail = "".join([*traceback.format_list(shown), f"{type(error).__name__}: {error}"])
    message = f"the definition of {where.kernel} {verb}" + (f": {first}" if first else "")
    remedy = "a definition must not end the process" if isinstance(error, SystemExit) else None
    return DefinitionError(message, Where(where.kernel, where.variant, "lower", location), remedy, detail)


def _is_user_code(file: str) -> bool:
    """Whether a file, or what stands for one, such as a cell of a notebook, is not ours and not an installed package's.

    A name without a file is a cell if ``linecache`` has its text; TVM and Cython name sources that do not exist.
    """
    return not file.startswith(OWN_PACKAGE) and "/site-packages/" not in file and bool(linecache.getlines(file))


def scheduled_module(kernel: Kernel, job: Job) -> Any:
    """What a variant is lowered from: the ``tvm.IRModule``, scheduled; for CUDA, if the job has both targets.

    Raises:
        DefinitionError: the definition is wrong.
        LoweringError: no schedule can be found.
    """
    from ..frontends.tir.lowering import scheduled

    selection = job.selection
    target = "cuda" if "cuda" in selection.archs else "llvm"
    variant = selection.variant_for(target)
    sources = selection.cuda_sources(variant.slug)
    arch = lowering_arch(sources[0][0]) if target == "cuda" else selection.archs["llvm"][0]
    programs = Programs(kernel, {variant.slug: variant.config}, job.record.slugs, job.record.options.pass_configs)
    unit = programs.unit(variant.slug, target, arch)
    with deep_recursion():
        returned = programs.returned(unit)
        return deeply(lambda: scheduled(returned, unit))
