"""The worker process, a fork of the ``forkserver``, which has imported TVM. It serves one definition file.

It reads requests from stdin and answers on stdout (see ``protocol``) until stdin ends, which it also does when the
build dies. Everything that other code prints, in Python or C++, goes to stderr, which the pool has connected to a log.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.util
import os
import platform
import queue
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import frontends
from ..core.errors import (
    DefinitionError,
    EditedError,
    KernelwrightError,
    ToolchainError,
    Where,
    WorkerError,
    refused,
)
from ..define.configs import Config, Variant
from ..define.kernel import Kernel
from ..define.outputs import Arguments, require_gradient_names
from ..define.pass_configs import checked_pass_configs
from ..define.record import DefinitionRecord, KernelRecord, record_of
from ..define.unit import Unit
from ..processes import protocol
from ..processes.protocol import (
    CheckRequest,
    CheckResult,
    DevicesRequest,
    DevicesResult,
    DiscoverRequest,
    LowerRequest,
    LowerResult,
    Request,
)
from .definitions import Definition, Definitions, SpentError

if TYPE_CHECKING:
    from ..frontends.unit import LoweredKernel

MEMORY_LIMIT_KIB = 3 * 1024 * 1024
"""A worker whose memory has grown beyond this asks to be replaced."""

COLLECT_EVERY = 8
"""Answers from one complete garbage collection to the next. Parsed functions are full of cycles, and it takes 4 ms."""

RECURSION_LIMIT = 10_000
"""TVMScript's parser recurses for each level of a definition's syntax."""


class Server:
    """Answers requests, one after the other.

    Arguments:
        definitions: executes the definition file; nothing has been executed with it.
        send: writes one line to the client.
    """

    def __init__(self, definitions: Definitions, send: Callable[[bytes], None]) -> None:
        self._definitions = definitions
        self._send = send
        self._answered = 0

    def answer(self, line: bytes) -> None:
        """Do what a line asks for and send the answer, whatever happens."""
        number, request = protocol.decode_request(line)

        def progress(doing: str) -> None:
            self._send(protocol.encode_progress(number, doing))

        try:
            result = self._do(request, progress)
        except SpentError:
            self._send(protocol.encode_spent(number))
        except KernelwrightError as error:
            self._send(protocol.encode_error(number, self._placed(error, request)))
        except Exception as error:  # a defect of ours must not look like a death
            self._send(protocol.encode_error(number, _defect(error, request)))
        else:
            self._send(protocol.encode_result(number, result, retiring=peak_memory_kib() > MEMORY_LIMIT_KIB))
        self._answered += 1
        if self._answered % COLLECT_EVERY == 0:
            gc.collect()

    def _do(self, request: Request, progress: Callable[[str], None]) -> Any:
        """The result of a request, of the type that ``RESULTS`` has for it."""
        if isinstance(request, DiscoverRequest):
            return self._discover(request)
        if isinstance(request, LowerRequest):
            return self._lower(request, progress)
        if isinstance(request, CheckRequest):
            return self._check(request, progress)
        if isinstance(request, DevicesRequest):
            from .check import devices

            return DevicesResult(tuple(devices()))
        raise WorkerError(f"no operation for {request!r}")

    def _discover(self, request: DiscoverRequest) -> DefinitionRecord:
        definition = self._definitions.load(request.file, request.strict, configs=True)
        # What they are made of may read files itself.
        kernels = [self._kernel_record(definition, kernel) for kernel in definition.kernels]
        declared = repr(kernels).encode(errors="backslashreplace")
        surroundings = self._definitions.surroundings_of(definition) | self._definitions.places_in([declared])
        return DefinitionRecord(
            definition.file,
            definition.dependencies,
            tuple(kernels),
            recorded=definition.recorded,
            surroundings=surroundings,
            shared=self._definitions.is_shareable(definition),
            untracked=tuple(self._definitions.untracked(definition)),
        )

    def _kernel_record(self, definition: Definition, kernel: Kernel) -> KernelRecord:
        def sizes_of(config: Config) -> dict[str, tuple[int, ...]]:
            if kernel.sizes_function is None:
                return {}
            found: dict[str, tuple[int, ...]] = self._definitions.call(
                definition, kernel, "sizes", lambda: kernel.sizes_of(config)
            )
            return found

        location = self._definitions.project.location(kernel.location) or kernel.location
        return record_of(kernel, frontends.targets_of(kernel), location, sizes_of)

    def _lower(self, request: LowerRequest, progress: Callable[[str], None]) -> LowerResult:
        start, cpu_start = time.monotonic(), time.process_time()
        progress("executing the definition")
        definition = self._definitions.load(request.file, request.strict)
        kernel, variant = self._variant_of(definition, request)
        if dict(request.config) != dict(variant.config):
            raise _edited(request, definition)
        pass_configs = checked_pass_configs(request.pass_configs, request.where)
        unit = replace(
            self._unit(kernel, variant, request.target, request.arch, request.python),
            symbol=request.symbol,
            archs=request.archs,
            pass_configs=pass_configs,
            ir=request.ir,
        )
        lowered = self._run_front_end(definition, kernel, unit, progress)
        self._definitions.note_read(definition, lowered.read)
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
            self._definitions.seen_by(definition) | self._definitions.places_in(lowered.files.values()),
            tuple(self._definitions.untracked(definition)),
        )

    def _run_front_end(
        self, definition: Definition, kernel: Kernel, unit: Unit, progress: Callable[[str], None]
    ) -> LoweredKernel:
        """Call the definition, and lower what it returns."""
        front_end = frontends.of(kernel)
        front_end.require_pass_configs(unit.pass_configs, unit.where)
        returned = self._returned(definition, kernel, unit)
        if kernel.forward is not None:
            self._check_backward(definition, kernel, returned, unit)

        def run() -> LoweredKernel:
            return front_end.lower(returned, unit, progress)

        if front_end.calls_definition(returned):
            lowered: LoweredKernel = self._definitions.call(definition, kernel, "definition", run, by_tool=True)
            return lowered
        return run()

    def _returned(self, definition: Definition, kernel: Kernel, unit: Unit) -> Any:
        """What the definition of a kernel returns, if its front end can lower that."""
        front_end = frontends.of(kernel)
        target = front_end.target(unit)
        returned = self._definitions.call(definition, kernel, "definition", lambda: kernel.build(unit.config, target))
        frontends.require_recognized(front_end, returned, unit.where)
        return returned

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

    def _check(self, request: CheckRequest, progress: Callable[[str], None]) -> CheckResult:
        from .check import Check

        progress("executing the definition")
        if request.device == protocol.INTERPRETED:
            os.environ.update(frontends.interpreter_variables())
        definition = self._definitions.load(request.file, request.strict)
        kernel, variant = self._variant_of(definition, request)

        def call(what: str, function: Callable[[], Any]) -> Any:
            return self._definitions.call(definition, kernel, what, function)

        function = None
        if request.device == protocol.INTERPRETED:
            unit = self._unit(kernel, variant, "cuda", request.archs, request.python)
            function = self._interpreted(definition, kernel, unit)
        try:
            result = Check(request, kernel, variant, call, progress, function).run()
        except DefinitionError as error:
            if function is None or not _is_caused_by(error, NotImplementedError):
                raise
            print(f"{kernel.name}/{variant.slug} is not checked, as the interpreter cannot run it: {error.message}")
            result = CheckResult(0, 0.0, (), request.device)
        return replace(result, dependencies=definition.dependencies)

    def _interpreted(self, definition: Definition, kernel: Kernel, unit: Unit) -> Callable[..., None]:
        """A function that runs a variant in the interpreter of its language. Errors are those of the definition."""
        front_end, returned = frontends.get(kernel.options.frontend), self._returned(definition, kernel, unit)
        run = front_end.interpreted(returned, unit)

        def call(*arguments: Any) -> None:
            if front_end.calls_definition(returned):
                self._definitions.call(definition, kernel, "interpreted function", lambda: run(*arguments))
            else:
                self._definitions.note_read(definition, run(*arguments))

        return call

    def _unit(self, kernel: Kernel, variant: Variant, target: str, arch: str, python: str) -> Unit:
        """What the definition declares of a unit. The contents of its files are in the key of every request."""
        location = self._definitions.project.location(kernel.location) or ""
        return Unit(
            *(kernel.name, variant.slug, "", variant.config, kernel.options.outputs, target, arch, location),
            multiples=kernel.multiples(variant.config),
            divisible=kernel.divisible,
            python=python,
            per_arch=kernel.options.per_arch,
        )

    def _variant_of(self, definition: Definition, request: LowerRequest | CheckRequest) -> tuple[Kernel, Variant]:
        try:
            return _variant_of(definition, request)
        except DefinitionError:
            self._definitions.require_recorded(definition)
            raise

    def _placed(self, error: KernelwrightError, request: Request) -> KernelwrightError:
        """The error with what the request knows about its place, and with paths relative to the project root."""
        asked, where = request.where, error.where
        location = self._definitions.project.location(where.location) or asked.location
        error.where = Where(where.kernel or asked.kernel, where.variant or asked.variant, asked.stage, location)
        return error


def load() -> dict[str, str] | KernelwrightError:
    """Import TVM; the versions of what a worker runs, or why it cannot."""
    try:
        return _versions()
    except KernelwrightError as error:
        return error


def serve(
    definitions: Definitions, loaded: dict[str, str] | KernelwrightError, kind: type[Server] | None = None
) -> None:
    """Be a worker until stdin ends.

    Arguments:
        definitions: executes the definition file; nothing has been executed with it.
        loaded: the result of :func:`load` in this process.
        kind: what answers; None: a plain worker does.
    """
    requests, send = _take_over_streams()
    os.chdir(definitions.project.root)
    sys.setrecursionlimit(RECURSION_LIMIT)
    if isinstance(loaded, KernelwrightError):
        send(protocol.encode_failed_hello(loaded))
        return
    _show_python_lines_in_crashes()
    server = (kind or Server)(definitions, send)
    send(protocol.encode_hello(loaded))
    while True:
        server.answer(requests.get())


def peak_memory_kib() -> int:
    """The largest amount of memory in KiB that this process has had (Linux; other systems count in bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _take_over_streams() -> tuple[queue.Queue[bytes], Callable[[bytes], None]]:
    """Keep the protocol's pipes for ourselves: stdin becomes empty, and stdout the same as stderr."""
    incoming = os.fdopen(os.dup(0), "rb")
    outgoing = os.dup(1)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)  # takes the lowest number that is free
    os.dup2(2, 1)
    requests: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        # In a thread of its own, so that the end of the build also ends a request that takes forever.
        for line in incoming:
            requests.put(line)
        _end()

    def send(line: bytes) -> None:
        sys.stdout.flush()
        while line:
            line = line[os.write(outgoing, line) :]

    threading.Thread(target=read, name="requests", daemon=True).start()
    return requests, send


def _show_python_lines_in_crashes() -> None:
    """Have a fatal signal write the Python traceback to the log, in place of TVM's handler, which prints C++ frames."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    faulthandler.enable(all_threads=False)


def _end() -> None:
    """End this process at once, and with it every process that definitions have left running."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _versions() -> dict[str, str]:
    """Import TVM, and say what this worker runs.

    Raises:
        ToolchainError: TVM cannot be imported.
    """
    gc.disable()  # an import makes objects that stay; looking for garbage among them takes a tenth of its time
    try:
        with _without_torch(), _without_cuda_runtime():
            _load_libraries()
            import tvm  # noqa: F401 (so that workers, which are forks of this process, have it)

            for name in frontends.names():
                frontends.get(name).load()
            from . import check  # noqa: F401 (what workers import themselves costs each of them its time)
    except Exception as error:  # a broken installation fails in many ways, a library that does not load among them
        raise ToolchainError(
            f"TVM cannot be imported: {error}",
            remedy="install apache-tvm and the apache-tvm-ffi that it was built for, as pinned in pyproject.toml",
            detail=traceback.format_exc(),
        ) from error
    gc.enable()
    importlib.invalidate_caches()  # a worker lists folders anew, in which files may have come since
    return {"python": platform.python_version(), "tvm": version("apache-tvm"), "tvm_ffi": version("apache-tvm-ffi")}


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Keep tvm-ffi from importing PyTorch.

    tvm-ffi 0.1 does so where it is installed, which takes longer than the import of TVM, and no worker needs it. A
    definition can still import it afterwards.
    """
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules["torch"]


@contextlib.contextmanager
def _without_cuda_runtime() -> Iterator[None]:
    """Keep TVM from loading its CUDA runtime, which ``check`` does where it is needed.

    Where there are a driver and a CUDA toolkit, TVM 0.27 loads it when it is imported. Then it does not only lower: it
    runs nvcc, for the GPU of this machine, and fails if it finds none. It accepts that the library is missing.
    """
    from tvm_ffi import libinfo

    load = libinfo.load_lib_ctypes

    def load_others(package: str, target_name: str, *arguments: Any, **options: Any) -> ctypes.CDLL:
        if target_name == "tvm_runtime_cuda":
            raise FileNotFoundError(target_name)
        return load(package, target_name, *arguments, **options)

    libinfo.load_lib_ctypes = load_others
    try:
        yield
    finally:
        libinfo.load_lib_ctypes = load


def _load_libraries() -> None:
    """Load two of TVM's libraries before it does.

    TVM 0.27 looks for types of the second one before it loads it. It ignores that this fails, but the error has a C++
    backtrace, which takes a quarter of the time of the import.
    """
    import tvm_ffi  # noqa: F401 (they need its library)

    found = importlib.util.find_spec("tvm")
    for folder in found.submodule_search_locations or () if found else ():
        for name in ("libtvm_runtime.so", "libtvm_runtime_extra.so"):
            with contextlib.suppress(OSError):
                ctypes.CDLL(os.path.join(folder, "lib", name), ctypes.RTLD_GLOBAL)  # noqa: PTH118


def _variant_of(definition: Definition, request: LowerRequest | CheckRequest) -> tuple[Kernel, Variant]:
    """The kernel and the variant of a request.

    Raises:
        DefinitionError: there is no such variant (any more), or none can be made of the config.
    """
    if request.listed:
        return definition.find(request.kernel, request.slug)
    kernel = definition.kernel(request.kernel)
    variant, _ = kernel.unlisted(request.config)
    if variant.slug != request.slug:
        raise _edited(request, definition)
    return kernel, variant


def _edited(request: LowerRequest | CheckRequest, definition: Definition) -> EditedError:
    return EditedError(
        f"variant {request.slug!r} has another config than when the kernels were discovered",
        Where(location=definition.file),
        "the file was edited meanwhile: try again",
    )


def _is_caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether an exception, or one that it comes of, is of a kind."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error is not None


def _defect(error: Exception, request: Request) -> WorkerError:
    return WorkerError(
        f"an unexpected {type(error).__name__} in a worker: {error}",
        replace(request.where),
        "report this as a defect of Kernelwright",
        "".join(traceback.format_exception(error)),
    )
