"""The process that measures: ``python -m kernelwright.tune.measure PROJECT_ROOT``, one for each device.

It speaks the protocol of the workers (JSON lines, see ``processes/protocol.py``) and knows two requests more. One is
``measure``, a turn of one variant at one combination of sizes. What it keeps between two turns only saves time. So it
can be ended at any moment, and whatever a variant does to it, a new one goes on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import CheckError, KernelwrightError
from ..core.signature import Argument, Signature
from ..processes.protocol import CostRequest, CostResult, MeasureRequest, MeasureResult
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

LEAST_BATCHES = 3
"""Batches that a turn has even if they take longer than that: of calls that take long, one is as good as many."""


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

        from ..worker.strided import Exported, Spread

        self._clock = clock
        self._spread = Spread.of(array, array.dtype) if argument.strides and not array.flags.c_contiguous else None
        self._content = self._spread.memory if self._spread else array
        self._memory = self.tensor = clock.tensor(self._content, argument)
        if self._spread:
            begin = self._spread.first * array.itemsize
            self._exported = Exported(self._memory, begin, argument.dtype, array.shape, self._spread.steps)
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
    """What is measured at the sizes of the last request.

    All variants get the same inputs. They are compared with one result of the reference.
    """

    def __init__(self, device: str) -> None:
        from .clocks import CpuClock, CudaClock

        self._clock = CpuClock() if device == "cpu" else CudaClock(int(device.partition(":")[2] or 0))
        self._sizes: tuple[Any, ...] = ()
        self._inputs: dict[str, Values] = {}
        self._expected: dict[str, Values] = {}
        self._turns: dict[str, Turn] = {}

    def measure(self, request: MeasureRequest, check: Check, has_reference: bool) -> MeasureResult:
        """The result of a request; ``check`` is that of its variant."""
        sizes = (request.file, request.kernel, sorted(request.sizes.items()))
        if sizes != self._sizes:
            self._sizes, self._inputs, self._expected, self._turns = sizes, {}, {}, {}
        if request.library not in self._turns:
            self._turns[request.library] = self._prepared(request, check, has_reference)
        batches, disturbed = self._turns[request.library].batches(request.batches, request.waiting)
        return MeasureResult(
            tuple(1e6 * seconds for seconds, _ in batches),
            tuple(1e6 * warm for _, warm in batches if warm is not None),
            self._clock.clock_mhz(),
            disturbed,
        )

    def _prepared(self, request: MeasureRequest, check: Check, has_reference: bool) -> Turn:
        """A variant that was called, compared and warmed up."""
        function, inputs = check.function(), self._inputs_of(request, check)
        placed: dict[str, Placed] = {}
        values: list[Any] = []
        for argument in request.signature.arguments:
            value = check.drawing.garbage(argument, request.sizes) if argument.output else inputs[argument.name]
            if isinstance(value, np.ndarray):
                placed[argument.name] = Placed(self._clock, value, argument)
                value = placed[argument.name].tensor
            values.append(value)
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
            message = f"calling the kernel at {size_text(request.sizes)} raised {type(error).__name__}: {error}"
            raise CheckError(message) from error

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
            return [kernel.cost_of(config, request.sizes, request.target) for config in request.configs]

        return CostResult(tuple(definition.call(kernel, "cost", costs)))

    def _measure(self, request: MeasureRequest, progress: Progress) -> MeasureResult:
        definition = self._definitions.load(request.file, request.strict, checks=True)
        kernel, variant = definition.find(request)
        from ..worker.check import Check

        if self._bench is None:
            self._bench = Bench(request.device)
        check = Check(request, kernel, variant, partial(definition.call, kernel), progress)
        return self._bench.measure(request, check, kernel.reference_function is not None)


def main() -> None:
    """Import TVM, and serve until stdin ends."""
    serve(Definitions(Path(sys.argv[1]).absolute(), variables_of(sys.argv[2])), load(), MeasuringServer)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
    os._exit(0)
