"""The process that measures: ``python -m kernelwright.tune.measure PROJECT_ROOT``, one for each device.

It speaks the protocol of the workers (JSON lines, see ``processes/protocol.py``) and knows two requests more. One is
``measure``, a turn of one variant at one combination of sizes. What it keeps between two turns only saves time. So it
can be ended at any moment, and whatever a variant does to it, a new one goes on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.dtype import numpy_dtype
from ..core.errors import CheckError, KernelwrightError
from ..core.signature import Argument, Signature
from ..processes.protocol import REFERENCE, CostRequest, CostResult, MeasureRequest, MeasureResult
from ..processes.serving import Progress, Send
from ..worker.definitions import Definitions
from ..worker.environment import variables_of
from ..worker.server import Server, serve
from ..worker.tvm_import import load
from .sizes import size_text

# What imports TVM is imported only after `load`, which keeps PyTorch out of it.
if TYPE_CHECKING:
    from ..worker.check import Check
    from ..worker.check_inputs import Values
    from .clocks import CpuClock, CudaClock

MOST_CALLS = 1_000_000
"""Calls of a batch; a kernel that does nothing takes a fraction of a microsecond."""


MOST_BATCHES = 5
"""How many times as many batches as are wanted there may be on a machine that is busy."""

TURN_S = 0.2
"""Seconds after which a turn has no more batches."""

COPIES = 3
"""How often the measuring process has an array: as it was drawn, where a kernel gets it, and as the reference's."""

LEAST_BATCHES = 3
"""Batches that a turn has even if they take longer than that: of calls that take long, one is as good as many."""


FUNCTIONS = "install its library, or write --beside MODULE:FUNCTION, such as numpy:tanh or torch:tanh"
"""What to do about a function that cannot be measured beside a kernel."""


class Turn:
    """A variant that is ready to be timed.

    Arguments:
        clock: what times it.
        call: calls it once.
        calls: how many calls a batch has.
        renewed: arrays that it changes.
    """

    def __init__(self, clock: CpuClock | CudaClock, call: Callable[[], Any], renewed: list[Placed]) -> None:
        self._clock = clock
        self._call = call
        self._calls = 1
        self._renewed = renewed

    def warm_up(self, batch_s: float) -> None:
        """Call it until a batch is found that takes long enough for the clock."""
        self._renew()
        while (seconds := self._clock.seconds(self._call, self._calls)) < batch_s and self._calls < MOST_CALLS:
            needed = int(1.1 * self._calls * batch_s / max(seconds, 1e-9)) + 1
            self._calls = min(MOST_CALLS, max(2 * self._calls, min(needed, 100 * self._calls)))

    def batches(self, count: int, waiting: float) -> tuple[list[tuple[float, float | None]], float]:
        """Seconds of a call by each of some batches, see ``batch`` of the clocks; and the part that does not count.

        A batch in which a thread waited for a CPU does not count, unless all are like that. There is another one for
        it, up to a limit. Of long calls there are fewer. ``waiting`` is the part of its time that may be spent so.
        """
        end = time.monotonic() + TURN_S
        quiet: list[tuple[float, float | None]] = []
        disturbed: list[tuple[float, float | None]] = []
        while len(quiet) < count and len(quiet) + len(disturbed) < MOST_BATCHES * count:
            if time.monotonic() > end and (len(quiet) >= LEAST_BATCHES or len(disturbed) >= 2 * LEAST_BATCHES):
                break
            self._renew()
            before = self._clock.waited_s()
            batch = self._clock.batch(self._call, self._calls)
            is_disturbed = self._clock.is_disturbed(before, waiting * batch[0] * self._calls)
            (disturbed if is_disturbed else quiet).append(batch)
        return quiet or disturbed, len(disturbed) / (len(quiet) + len(disturbed))

    def _renew(self) -> None:
        for array in self._renewed:
            array.renew()


class Placed:
    """An array where a kernel gets it. If the argument declares strides, a view has those that it has.

    Attributes:
        tensor: what a kernel is called with; this object has to live as long.
    """

    def __init__(self, clock: CpuClock | CudaClock, array: Any, argument: Argument) -> None:
        import tvm_ffi

        from ..worker.strided import Spread, exported

        self._clock = clock
        self._spread = Spread.of(array, array.dtype) if argument.strides and not array.flags.c_contiguous else None
        self._content = self._spread.memory if self._spread else array
        self._memory = self.tensor = clock.tensor(self._content, argument)
        if self._spread:
            begin = self._spread.first * array.itemsize
            self._exported = exported(self._memory, begin, argument.dtype, array.shape, self._spread.steps)
            self.tensor = tvm_ffi.from_dlpack(self._exported)

    @property
    def values(self) -> Any:
        """What it has in it now."""
        content = self._clock.values(self._memory)
        return self._spread.view(content) if self._spread else content

    def renew(self) -> None:
        """Give it again what it had at first."""
        self._clock.write(self._memory, self._content)


class Bench:
    """What is measured at the sizes of the last request, of one config of the caller's.

    All its variants get the same inputs. They are compared with one result of the reference.
    """

    def __init__(self, device: str) -> None:
        from .clocks import CpuClock, CudaClock

        self._clock = CpuClock() if device == "cpu" else CudaClock(int(device.partition(":")[2] or 0))
        self._work: tuple[Any, ...] = ()
        self._inputs: dict[str, Values] = {}
        self._expected: dict[str, Values] = {}
        self._turns: dict[tuple[str, str], Turn] = {}

    def measure(self, request: MeasureRequest, check: Check, has_reference: bool, flops: float) -> MeasureResult:
        """The result of a request; ``check`` is that of its variant, and ``flops`` is what its calls do."""
        # The reference and the inputs function may take what callers see of the config.
        work = (request.file, request.kernel, check.callers_config, request.sizes)
        if work != self._work:
            self._work, self._inputs, self._expected, self._turns = work, {}, {}, {}
        who = request.library, request.beside
        if who not in self._turns:
            self._require_memory(check, request.sizes)
            prepare = self._prepared if _calls_kernel(request) else self._prepared_other
            self._turns[who] = prepare(request, check, has_reference)
        batches, disturbed = self._turns[who].batches(request.batches, request.waiting)
        return MeasureResult(
            tuple(1e6 * seconds for seconds, _ in batches),
            tuple(1e6 * warm for _, warm in batches if warm is not None),
            self._clock.clock_mhz(),
            disturbed,
            _moved(check, request.sizes),
            flops,
        )

    def _require_memory(self, check: Check, sizes: Mapping[str, int]) -> None:
        """Raise a CheckError where the arrays of a call do not fit: a system without memory ends the process."""
        needed = COPIES * (check.drawing.bytes_of(sizes) or 0)
        if needed > (free := _free_memory()):
            message = f"its arrays at {size_text(sizes)} need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
            raise CheckError(message, remedy="name smaller sizes: --sizes")

    def _prepared_other(self, request: MeasureRequest, check: Check, has_reference: bool) -> Turn:
        """The reference, or a function of a library of arrays, with the inputs that variants get."""
        from .clocks import ReferenceClock

        inputs = self._inputs_of(request, check)
        if request.beside == REFERENCE:
            if not has_reference:
                raise CheckError("the kernel has no reference", remedy=f"add one with @{request.kernel}.reference")
            self._expected_of(check, inputs)  # it says what is wrong with a reference
            turn = Turn(ReferenceClock(check.in_reference), check.referenced(inputs), [])
        else:
            function, converted = _imported(request.beside)
            values: list[Any] = []
            for argument in request.signature.arguments:
                if not argument.output:
                    value = inputs[argument.name]
                    is_array = isinstance(value, np.ndarray)
                    values.append(converted(Placed(self._clock, value, argument).tensor) if is_array else value)
            turn = Turn(self._clock, lambda: function(*values), [])
            self._first(function, values, request)
        turn.warm_up(request.batch_us / 1e6)
        return turn

    def _prepared(self, request: MeasureRequest, check: Check, has_reference: bool) -> Turn:
        """A variant that was called, compared and warmed up."""
        function = _of_package(request) if request.beside else check.function()
        inputs = self._inputs_of(request, check)
        placed: dict[str, Placed] = {}
        values: list[Any] = []
        for argument in request.signature.arguments:
            value = check.drawing.garbage(argument, request.sizes) if argument.output else inputs[argument.name]
            if isinstance(value, np.ndarray):
                placed[argument.name] = Placed(self._clock, value, argument)
                value = placed[argument.name].tensor
            values.append(value)
        if request.beside:
            function = _of_config(function, check.callers_config, values)
        self._first(function, values, request)
        got = {name: array.values for name, array in placed.items()}
        if has_reference:
            check.compared(self._expected_of(check, inputs), got, request.sizes, inputs)
        arguments = request.signature.arguments
        changed = [placed[a.name] for a in arguments if a.written and not a.output and a.name in placed]
        turn = Turn(self._clock, lambda: function(*values), changed)
        turn.warm_up(request.batch_us / 1e6)
        return turn

    def _first(self, function: Any, values: list[Any], request: MeasureRequest) -> None:
        try:
            self._clock.first(lambda: function(*values))
        except KernelwrightError:
            raise
        except Exception as error:  # the library raises errors of any type
            called, remedy = "the kernel", None
            if request.beside and _calls_kernel(request):
                called = f"the kernel of the package {Path(request.beside).name}"
                remedy = "name a package whose kernel has the arguments of this one, or leave --against out"
            elif request.beside:
                inputs = ", ".join(one.name for one in request.signature.arguments if not one.output)
                called, remedy = request.beside, f"name a function of {inputs}"
            message = f"calling {called} at {size_text(request.sizes)} raised {type(error).__name__}: {error}"
            raise CheckError(message, remedy=remedy) from error

    def _inputs_of(self, request: MeasureRequest, check: Check) -> Values:
        """An array or a number for each input, the same ones for all variants with the same arguments."""
        layout = _layout(request.signature)
        if layout not in self._inputs:
            inputs = check.drawing.values(request.sizes)
            if inputs is None:
                message = f"its inputs function, or its shapes, do not allow {size_text(request.sizes)}"
                raise CheckError(message, remedy="tune it at other sizes")
            self._inputs[layout] = inputs
        return self._inputs[layout]

    def _expected_of(self, check: Check, inputs: Values) -> Values:
        key = str(id(inputs))
        if key not in self._expected:
            self._expected[key] = check.expected(inputs)
        return self._expected[key]


def _layout(signature: Signature) -> str:
    """The arguments as far as they decide what the inputs are."""
    return repr([(a.name, a.kind, a.dtype, a.shape, a.strides) for a in signature.arguments])


def _calls_kernel(request: MeasureRequest) -> bool:
    """Whether the variant is called, or a kernel of a package: both get outputs, and are compared."""
    return not request.beside or request.beside.startswith("/")


def _moved(check: Check, sizes: Mapping[str, int]) -> int:
    """Bytes that a call reads and writes at least: each array once, and twice if it is read and written."""
    shapes = check.drawing.shapes(sizes) or {}
    return sum(
        math.prod(shapes[each.name]) * int(numpy_dtype(each.dtype).itemsize) * (1 + (each.written and not each.output))
        for each in check.drawing.tensors
    )


def _free_memory() -> float:
    """Bytes of memory that this machine has left; with no end if the system does not say."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    return int(match[1]) * 1024 if match else math.inf


def _of_package(request: MeasureRequest) -> Any:
    """The kernel of a built package."""
    folder = Path(request.beside)
    sys.path.insert(0, str(folder.parent))
    try:
        return getattr(importlib.import_module(folder.name), request.kernel)
    except (ImportError, AttributeError, KernelwrightError) as error:
        message = f"the package {folder.name} gives no kernel {request.kernel}: {error}"
        raise CheckError(message, remedy="name a package that has it, and was built for this machine") from error
    finally:
        sys.path.remove(str(folder.parent))


def _of_config(kernel: Any, config: Mapping[str, Any], values: list[Any]) -> Any:
    """A kernel of a package, or its variant of a config, where a call with these arguments would run another one."""
    try:
        chosen = kernel.choice(*values).config
    except Exception:  # they fit several variants, or none
        chosen = {}
    if chosen.items() >= config.items() or not kernel.variants[0].keys() >= config.keys():
        return kernel
    try:
        return kernel.variant(**config)
    except KeyError as error:
        raise CheckError(f"the package has no such variant: {error}", remedy="name a package that has it") from error


def _imported(name: str) -> tuple[Any, Callable[[Any], Any]]:
    """A function such as ``torch:softmax``, and what makes its library's arrays of others without a copy."""
    module, _, function = name.partition(":")
    try:
        found = functools.reduce(getattr, function.split("."), importlib.import_module(module))
    except Exception as error:  # the module may raise errors of any type
        message = f"{name} cannot be imported: {error}"
        raise CheckError(message, remedy=FUNCTIONS) from error
    library = sys.modules[module.partition(".")[0]]
    converted = getattr(library, "from_dlpack", None) or getattr(getattr(library, "dlpack", None), "from_dlpack", None)
    if converted is None:
        raise CheckError(f"{name} is of no library of arrays: {library.__name__} has no from_dlpack", remedy=FUNCTIONS)
    return found, converted


class MeasuringServer(Server):
    """Answers requests as a worker does, and those to measure."""

    def __init__(self, definitions: Definitions, send: Send) -> None:
        super().__init__(definitions, send)
        self._bench: Bench | None = None
        self.operations |= {MeasureRequest: self._measure, CostRequest: self._costs}

    def _costs(self, request: CostRequest, progress: Progress) -> CostResult:
        definition = self._definitions.load(request.file, request.strict, checks=True)
        kernel = definition.kernel(request.kernel)

        def costs() -> list[float]:
            common = {**request.sizes, "target": request.target}
            return [kernel.amount_of("cost", {**config, **common}) for config in request.configs]

        return CostResult(tuple(definition.call(kernel, "cost", costs)))

    def _measure(self, request: MeasureRequest, progress: Progress) -> MeasureResult:
        definition = self._definitions.load(request.file, request.strict, checks=True)
        kernel, variant = definition.find(request)
        from ..worker.check import Check

        if self._bench is None:
            self._bench = Bench(request.device)
        check = Check(request, kernel, variant, partial(definition.call, kernel), progress)
        flops = definition.call(kernel, "flops", lambda: kernel.amount_of("flops", {**variant.config, **request.sizes}))
        return self._bench.measure(request, check, kernel.reference_function is not None, flops)


def main() -> None:
    """Import TVM, and serve until stdin ends."""
    serve(Definitions(Path(sys.argv[1]).absolute(), variables_of(sys.argv[2])), load(), MeasuringServer)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
    os._exit(0)
