"""The worker process, a fork of the ``forkserver``, which has imported TVM. It serves one definition file.

It reads requests from stdin and answers on stdout (see ``messages``) until stdin ends, which it also does when the
build dies. Everything that other code prints, in Python or C++, goes to stderr, which the pool has connected to a log.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import frontends
from ..core.errors import KernelwrightError, UnimplementedError, Where, refused
from ..define.configs import Config, Variant
from ..define.kernel import Kernel
from ..define.outputs import Arguments, require_gradient_names
from ..define.pass_configs import checked_pass_configs
from ..define.record import DefinitionRecord, KernelRecord, record_of
from ..define.unit import Unit
from ..processes import serving
from ..processes.messages import Hello
from ..processes.protocol import (
    INTERPRETED,
    CheckRequest,
    CheckResult,
    DevicesRequest,
    DevicesResult,
    DiscoverRequest,
    LowerRequest,
    LowerResult,
    Request,
    SourcesRequest,
    SourcesResult,
)
from ..processes.serving import Progress, Send
from .definitions import Definition, Definitions

if TYPE_CHECKING:
    from ..frontends.unit import LoweredKernel

COLLECT_EVERY = 8
"""Answers from one complete garbage collection to the next. One takes 4 ms; parsed functions are full of cycles."""

RECURSION_LIMIT = 10_000
"""TVMScript's parser recurses for each level of a definition's syntax."""


class Server:
    """Does requests, one after the other.

    Arguments:
        definitions: executes the definition file; it has executed nothing yet.
        send: writes one line to the client.
    """

    def __init__(self, definitions: Definitions, send: Send) -> None:
        self._definitions = definitions
        self._send = send
        self._answered = 0
        self.operations: dict[Any, serving.Do] = {
            DiscoverRequest: self._discover,
            LowerRequest: self._lower,
            SourcesRequest: self._sources,
            CheckRequest: self._check,
            DevicesRequest: self._devices,
        }

    def answer(self, line: bytes) -> None:
        """Do what a line asks for and send the answer, whatever happens."""
        self._send(serving.answer_to(line, {kind.op: kind for kind in self.operations}, self._do, self._send))
        self._answered += 1
        if self._answered % COLLECT_EVERY == 0:
            gc.collect()

    def _do(self, request: Request[Any], progress: Progress) -> Any:
        """The result of a request. Errors get the place that the request knows, and paths relative to the root."""
        try:
            return self.operations[type(request)](request, progress)
        except KernelwrightError as error:
            asked, where = request.where, error.where
            location = self._definitions.project.location(where.location) or asked.location
            error.where = Where(where.kernel or asked.kernel, where.variant or asked.variant, asked.stage, location)
            raise

    def _devices(self, request: DevicesRequest, progress: Progress) -> DevicesResult:
        from .cuda_runtime import devices

        return DevicesResult(tuple(devices()))

    def _discover(self, request: DiscoverRequest, progress: Progress) -> DefinitionRecord:
        definition = self._definitions.load(request.file, request.strict, configs=True)
        # Before the digests below: the functions that these records are made with may read files themselves.
        kernels = [self._kernel_record(definition, kernel) for kernel in definition.kernels]
        declared = repr(kernels).encode(errors="backslashreplace")
        surroundings = definition.uses.surroundings | definition.uses.places_in([declared])
        return DefinitionRecord(
            definition.file,
            definition.uses.files,
            tuple(kernels),
            recorded=definition.uses.recorded,
            surroundings=surroundings,
            lowered=definition.uses.lowered,
            shared=definition.uses.is_shareable,
            untracked=definition.uses.untracked,
        )

    def _kernel_record(self, definition: Definition, kernel: Kernel) -> KernelRecord:
        def sizes_of(config: Config) -> dict[str, tuple[int, ...]]:
            if kernel.sizes_function is None:
                return {}
            return definition.call(kernel, "sizes", lambda: kernel.sizes_of(config))

        location = self._definitions.project.location(kernel.location) or kernel.location
        return record_of(kernel, frontends.targets_of(kernel), location, sizes_of)

    def _sources(self, request: SourcesRequest, progress: Progress) -> SourcesResult:
        definition = self._definitions.load(request.file, request.strict)
        kernel, variant = definition.find(request)
        sources = definition.call(kernel, "sources", lambda: kernel.sources_for(variant))
        texts = [source.text.encode() for source in sources if source.text is not None]
        return SourcesResult(sources, definition.uses.seen(texts), definition.uses.untracked)

    def _lower(self, request: LowerRequest, progress: Progress) -> LowerResult:
        start, cpu_start = time.monotonic(), time.process_time()
        progress("executing the definition")
        definition = self._definitions.load(request.file, request.strict)
        kernel, variant = definition.find(request)
        definition.require_same(request.slug, dict(request.config) == dict(variant.config))
        pass_configs = checked_pass_configs(request.pass_configs, request.where)
        unit = replace(
            self._unit(kernel, variant, request.target, request.arch, request.python),
            symbol=request.symbol,
            archs=request.archs,
            pass_configs=pass_configs,
            ir=request.ir,
            debug=request.debug,
        )
        lowered = self._run_front_end(definition, kernel, unit, progress)
        definition.note_read(lowered.read)
        try:
            for name, content in lowered.files.items():
                (Path(request.out) / name).write_bytes(content)
        except OSError as error:
            raise refused(error, place=request.out) from error
        return LowerResult(
            tuple(sorted(lowered.files)),
            lowered.schedule,
            round(time.monotonic() - start, 4),
            round(time.process_time() - cpu_start, 4),
            definition.uses.seen(lowered.files.values()),
            definition.uses.untracked,
        )

    def _run_front_end(self, definition: Definition, kernel: Kernel, unit: Unit, progress: Progress) -> LoweredKernel:
        """Call the definition, and lower what it returns."""
        front_end = frontends.of(kernel)
        front_end.require_pass_configs(unit.pass_configs, unit.where)
        returned = self._returned(definition, kernel, unit)
        if kernel.forward is not None:
            self._check_backward(definition, kernel, returned, unit)

        def run() -> LoweredKernel:
            return frontends.lowered(front_end, returned, unit, progress)

        if front_end.calls_definition(returned):
            return definition.call(kernel, "definition", run, by_tool=True)
        return run()

    def _returned(self, definition: Definition, kernel: Kernel, unit: Unit) -> Any:
        """What the definition of a kernel returns, if its front end can lower that."""
        front_end = frontends.of(kernel)
        target = front_end.target(unit)
        returned = definition.call(kernel, "definition", lambda: kernel.build(unit.config, target))
        return frontends.recognized(front_end, returned, unit.where)

    def _check_backward(self, definition: Definition, kernel: Kernel, returned: Any, unit: Unit) -> None:
        """Raise a DefinitionError if an argument of a backward kernel is not named after one of its forward kernel."""
        forward = kernel.forward
        if forward is not None:
            config = kernel.config_of_forward(unit.config, unit.target)
            of_forward = replace(unit, kernel=forward.name, outputs=forward.options.outputs, config=config)
            names = frontends.of(forward).argument_names(self._returned(definition, forward, of_forward), of_forward)
            own = frontends.of(kernel).argument_names(returned, unit)
            of_kernel, of_gradients = (Arguments(k.options.outputs, n) for k, n in ((forward, names), (kernel, own)))
            require_gradient_names(forward.name, of_kernel, of_gradients, unit.where)

    def _check(self, request: CheckRequest, progress: Progress) -> CheckResult:
        from .check import Check

        progress("executing the definition")
        if request.device == INTERPRETED:
            os.environ.update(frontends.interpreter_variables())
        definition = self._definitions.load(request.file, request.strict, checks=True)
        kernel, variant = definition.find(request)
        function = None
        if request.device == INTERPRETED:
            unit = self._unit(kernel, variant, "cuda", request.archs, request.python)
            function = self._interpreted(definition, kernel, unit)
        try:
            result = Check(request, kernel, variant, partial(definition.call, kernel), progress, function).run()
        except UnimplementedError as error:
            if function is None:
                raise
            print(f"{kernel.name}/{variant.slug} is not checked, as the interpreter cannot run it: {error.message}")
            result = CheckResult(0, 0.0, (), request.device)
        return replace(result, dependencies=definition.uses.files)

    def _interpreted(self, definition: Definition, kernel: Kernel, unit: Unit) -> Callable[..., None]:
        """A function that runs a variant in the interpreter of its language. Errors are those of the definition."""
        front_end, returned = frontends.get(kernel.options.frontend), self._returned(definition, kernel, unit)
        run = front_end.interpreted(returned, unit)

        def call(*arguments: Any) -> None:
            if front_end.calls_definition(returned):
                definition.call(kernel, "interpreted function", lambda: run(*arguments))
            else:
                definition.note_read(run(*arguments))

        return call

    def _unit(self, kernel: Kernel, variant: Variant, target: str, arch: str, python: str) -> Unit:
        """A unit, as the definition declares it. The contents of the definition's files are in each request's key."""
        location = self._definitions.project.location(kernel.location) or ""
        return Unit(
            kernel.name,
            variant.slug,
            symbol="",
            config=variant.config,
            outputs=kernel.options.outputs,
            target=target,
            arch=arch,
            location=location,
            multiples=kernel.multiples(variant.config),
            requires=tuple(kernel.options.requires),
            divisible=kernel.divisible,
            python=python,
            per_arch=kernel.options.per_arch,
        )


def serve(definitions: Definitions, loaded: Hello | KernelwrightError, kind: type[Server] | None = None) -> None:
    """Be a worker until stdin ends.

    Arguments:
        definitions: executes the definition file; it has executed nothing yet.
        loaded: the result of ``tvm_import.load`` in this process.
        kind: the class that answers requests; None: :class:`Server`.
    """

    def answering(send: Send) -> Callable[[bytes], None]:
        os.chdir(definitions.project.root)
        sys.setrecursionlimit(RECURSION_LIMIT)
        _show_python_lines_in_crashes()
        return (kind or Server)(definitions, send).answer

    serving.serve(loaded, answering)


def _show_python_lines_in_crashes() -> None:
    """Have a fatal signal write the Python traceback to the log, in place of TVM's handler, which prints C++ frames."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    faulthandler.enable(all_threads=False)
