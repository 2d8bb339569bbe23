"""Holds a call where a test wants it, so that something else can be done at that moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def held(gate: str | Path, work: Callable[[], Any]) -> Iterator[None]:
    """Run ``work`` in another thread; the block runs while something that it calls is held at the gate.

    Arguments:
        gate: the path of a named pipe to make. Whoever opens it and reads it to its end is held until the block is
            over. Who comes while the block runs finds no pipe, and goes on.
        work: raises in this thread, once the block is over, what it raised.
    """
    errors: list[BaseException] = []
    late: list[int] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        with suppress(FileNotFoundError):  # it never came to the gate, and must not be waited for
            late.append(os.open(gate, os.O_RDONLY | os.O_NONBLOCK))

    os.mkfifo(gate)
    thread = threading.Thread(target=run)
    thread.start()
    writer = os.open(gate, os.O_WRONLY)  # waits for a reader
    Path(gate).unlink()
    try:
        yield
    finally:
        os.close(writer)
        thread.join()
        for file in late:
            os.close(file)
    if errors:
        raise errors[0]
    if late:
        raise AssertionError(f"nothing was held at {gate}")
