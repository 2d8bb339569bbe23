"""The work of a process that answers requests: it takes over its streams, greets, and answers until its stdin ends."""

from __future__ import annotations

import os
import queue
import resource
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from ..core.errors import KernelwrightError, WorkerError
from . import messages
from .messages import Failed, Hello, Result, Spent, decode, encode
from .protocol import Request
from .tool_process import end_own_session, write

MEMORY_LIMIT_KIB = 3 * 1024 * 1024
"""A process whose memory has grown beyond this asks to be replaced."""

Send = Callable[[bytes], None]
"""Writes one line to the build."""

Progress = Callable[[str], None]
"""Called with what is about to be done for a request."""

Do = Callable[[Any, Progress], Any]
"""Does a request, and returns its result."""


class SpentError(Exception):
    """This process has executed something else than a request needs: ask a new process."""


def answer_to(line: bytes, kinds: Mapping[str, Any], do: Do, send: Send) -> bytes:
    """Do what a line asks for, and return the line with the answer, whatever happens.

    Arguments:
        kinds: the requests that may come.
        do: does a request.
        send: writes one line about the progress to the client.

    Raises:
        WorkerError: the line is none of these requests.
    """
    number, request = decode(line, kinds)
    try:
        value = do(request, lambda doing: send(encode(number, messages.Progress(doing))))
        return encode(number, Result(value, retiring=peak_memory_kib() > MEMORY_LIMIT_KIB))
    except SpentError:
        return encode(number, Spent())
    except KernelwrightError as error:
        return encode(number, Failed.of(error))
    except Exception as error:  # a defect of ours must not look like the death of this process
        return encode(number, Failed.of(_defect(error, request)))


def peak_memory_kib() -> int:
    """The largest amount of memory in KiB that this process has had (Linux; other systems count in bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def serve(
    greeting: Hello | KernelwrightError, answering: Callable[[Send], Callable[[bytes], None]], answers: int = 1
) -> None:
    """Greet, and answer each line until stdin ends, which ends this process at once; or say why it cannot work.

    Arguments:
        greeting: the greeting, or why there is none.
        answering: given what writes a line to the build, makes what answers a line.
        answers: the descriptor that answers are written to; stdout becomes the same as stderr.
    """
    requests, send = _take_over_streams(answers)
    if isinstance(greeting, KernelwrightError):
        send(encode(0, Failed.of(greeting)))
        return
    answer_line = answering(send)
    send(encode(0, greeting))
    while True:
        answer_line(requests.get())


def _take_over_streams(answers: int) -> tuple[queue.Queue[bytes], Send]:
    """Keep the protocol's pipes for ourselves: stdin becomes empty, and stdout the same as stderr."""
    incoming = os.fdopen(os.dup(0), "rb")
    outgoing = os.dup(answers)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)  # gets the lowest number that is free, 0
    for descriptor in {1, answers}:
        os.dup2(2, descriptor)
    requests: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        # In a thread of its own, so that the end of the build also ends a request that takes forever.
        for line in incoming:
            requests.put(line)
        _end()

    def send(line: bytes) -> None:
        sys.stdout.flush()
        write(outgoing, line)

    threading.Thread(target=read, name="requests", daemon=True).start()
    return requests, send


def _end() -> None:
    """End this process at once, and with it every process that definitions have left running."""
    end_own_session()
    os._exit(0)


def _defect(error: Exception, request: Request[Any]) -> WorkerError:
    return WorkerError(
        f"an unexpected {type(error).__name__} in a worker: {error}",
        request.where,
        "report this as a defect of Kernelwright",
        "".join(traceback.format_exception(error)),
    )
