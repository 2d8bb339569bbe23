"""Runs TVM on programs that may be nested deeply: it recurses for each level of a program, in C++ and in Python.

When a thread's stack is full, its process crashes. For a worker that becomes an error. This process, which must not
crash, gives the work a thread with a larger stack.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

Result = TypeVar("Result")

RECURSION_LIMIT = 10_000
"""Python's limit while TVMScript's printer and parser run."""

STACK = 1 << 30
"""Bytes of the stack, of which the system gives only those that are used. TVM's printer takes 3 kB for a level."""

LOCK = threading.Lock()
"""Held while the size of new threads' stacks is changed, which is one setting for the whole process."""


@contextlib.contextmanager
def deep_recursion() -> Iterator[None]:
    """Let TVM's printer and parser recurse as deep as they may in workers."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def deeply(work: Callable[[], Result]) -> Result:
    """Do something in a thread with a large stack, and wait for it; a KeyboardInterrupt is raised in that thread.

    Raises:
        BaseException: what the work raises.
    """
    done: Future[Result] = Future()
    context = copy_context()

    def run() -> None:
        try:
            done.set_result(context.run(work))
        except BaseException as error:
            done.set_exception(error)

    thread = _started(run)
    while True:
        try:
            return done.result()
        except KeyboardInterrupt:
            if done.done():
                raise
            interrupt = ctypes.py_object(KeyboardInterrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), interrupt)


def _started(run: Callable[[], None]) -> threading.Thread:
    """A thread with the largest stack that the system gives."""
    with LOCK:
        before = threading.stack_size()
        try:
            for stack in (STACK, STACK >> 4, before):
                threading.stack_size(stack)
                thread = threading.Thread(target=run, name="kernelwright-deep")
                try:
                    thread.start()
                except RuntimeError:  # no room for it
                    continue
                return thread
        finally:
            threading.stack_size(before)
    raise MemoryError("there is no room for a thread")
