"""Says what compile on demand does in this process: counts for everybody, and events for who asks for them."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..core.errors import KernelwrightError, Where, shown

WHERE = Where(stage="monitor")

KINDS = ("compile", "failure", "hit", "wait", "load")
"""What may happen: a kernel is compiled, or could not be; the cache had it; another process or thread, which was
waited for, has compiled it; or its library was loaded."""


@dataclass(frozen=True)
class Event:
    """Something that has happened.

    Arguments:
        kind: one of ``compile``, ``failure``, ``hit``, ``wait`` and ``load``.
        kernel, variant: the names of the kernel and of the variant.
        seconds: how long it took.
        why: for a compile, what in the request differs from what the cache had; else empty.
    """

    kind: str
    kernel: str
    variant: str
    seconds: float
    why: str = ""


Callback = Callable[[Event], Any]

_callbacks: dict[object, Callback] = {}
"""By a key of each call of :func:`monitor`: functions may be equal, and one may be given twice."""

_counts = dict.fromkeys(KINDS, 0)
_seconds = dict.fromkeys(KINDS, 0.0)
_lock = threading.Lock()


def counters() -> Mapping[str, tuple[int, float]]:
    """How often each kind of event has happened in this process, and how many seconds all of them took."""
    with _lock:
        return {kind: (_counts[kind], _seconds[kind]) for kind in KINDS}


def monitor(callback: Callback | None = None) -> Callable[[], None]:
    """Have a function called with each :class:`Event` of this process, in the thread in which it happens.

    What the function raises is logged, and disturbs nothing.

    Arguments:
        callback: the function. None: OpenTelemetry gets a counter ``kernelwright.events`` and a histogram
            ``kernelwright.seconds``, with the attributes ``kind`` and ``kernel``; its SDK decides where they go.

    Returns:
        A function that ends that.

    Raises:
        KernelwrightError: there is no OpenTelemetry, or what is given cannot be called.
    """
    called, key = _for_opentelemetry() if callback is None else callback, object()
    if not callable(called):
        message = f"the argument of monitor() is {shown(called)}, which cannot be called"
        raise KernelwrightError(message, WHERE, "give it a function that takes an event")
    with _lock:
        _callbacks[key] = called

    def end() -> None:
        with _lock:
            _callbacks.pop(key, None)

    return end


def _for_opentelemetry() -> Callback:
    try:
        from opentelemetry import metrics
    except ImportError as error:
        remedy = "pip install opentelemetry-api, or give it a function"
        raise KernelwrightError("monitor() without a function needs OpenTelemetry", WHERE, remedy) from error
    meter = metrics.get_meter("kernelwright")
    events = meter.create_counter("kernelwright.events", description="what compile on demand has done")
    seconds = meter.create_histogram("kernelwright.seconds", unit="s", description="how long that took")

    def export(event: Event) -> None:
        attributes = {"kind": event.kind, "kernel": event.kernel}
        events.add(1, attributes)
        seconds.record(event.seconds, attributes)

    return export


def is_heard() -> bool:
    """Whether somebody asked for events: to find out why a kernel is compiled takes time."""
    return bool(_callbacks)


def tell(kind: str, kernel: str, variant: str, seconds: float, why: str = "") -> None:
    """Count an event, and tell it to those who asked for that; the arguments are those of :class:`Event`."""
    with _lock:
        _counts[kind] += 1
        _seconds[kind] += seconds
        callbacks = tuple(_callbacks.values())
    if callbacks:
        event = Event(kind, kernel, variant, seconds, why)
        for callback in callbacks:
            try:
                callback(event)
            except Exception:  # of the user's function
                logging.getLogger("kernelwright").exception("the monitor failed at %s", event)


@cache
def say_at_exit() -> None:
    """Have this process print a line at its end, if it has used compile on demand by then."""
    atexit.register(_say)


def _say() -> None:
    known = [f"{count} {kind} ({seconds:.2f} s)" for kind, (count, seconds) in counters().items() if count]
    if known:
        print(f"kernelwright: process {os.getpid()}: {', '.join(known)}", file=sys.stderr)


def _begin_child() -> None:
    """A child that was forked has done nothing yet, and its lock is free."""
    global _lock
    _lock = threading.Lock()
    _counts.update(dict.fromkeys(KINDS, 0))
    _seconds.update(dict.fromkeys(KINDS, 0.0))


os.register_at_fork(after_in_child=_begin_child)
