"""The fork server: ``python -m kernelwright.worker.forkserver PROJECT_ROOT VARIABLES``.

It imports TVM once, and forks a worker (see ``server``) whenever it is asked to: a fork takes 3 milliseconds and shares
the memory that an import took 0.7 s to fill. It executes no definition itself, so that every worker begins with TVM and
nothing else.

Its stdin is a socket. Each message on it brings four descriptors: stdin, stdout and stderr of the worker, and the
worker's life line. As soon as the worker leads a session of its own, it writes ``NUMBER BIRTH`` to the life line: its
process number, and when it was started. When the worker has ended, the fork server writes ``status STATUS`` there. The
worker stays a zombie until the build closes its end of the life line, so that no other process gets its number. A
worker ends when its stdin ends, and the fork server when the socket ends.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import KernelwrightError
from ..processes.children import POLL_S, born
from ..processes.messages import Hello
from ..processes.tool_process import end_session
from . import server, tvm_import
from .definitions import Definitions
from .environment import Variables, variables_of

DESCRIPTORS = 4
"""How many descriptors come with a request."""

LAST_GRACE_S = 2
"""Seconds that workers have to end with the build before the fork server kills them."""


@dataclass
class _Child:
    """A worker, and its life line while the build holds the other end."""

    life_line: socket.socket | None
    reported: bool = False


class ForkServer:
    """Forks workers until the build is gone.

    Arguments:
        control: the socket that requests come through.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, _Child] = {}
        # A child that ends makes this pipe readable, so that one poll() waits for everything.
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def run(self) -> bool:
        """Serve; return True in each worker, and False when the build is gone."""
        while True:
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            poll.register(self._woken, select.POLLIN)
            lines = {c.life_line.fileno(): pid for pid, c in self._children.items() if c.life_line is not None}
            for descriptor in lines:
                poll.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._woken in ready:
                os.read(self._woken, 1 << 12)
            for descriptor in ready & lines.keys():
                self._release(lines[descriptor])
            self._look_after_children()
            if self._control.fileno() in ready:
                _, descriptors, _, _ = socket.recv_fds(self._control, 1, DESCRIPTORS)
                if not descriptors:
                    self._reap_all()
                    return False
                if self._fork(descriptors):
                    return True

    def _fork(self, descriptors: list[int]) -> bool:
        """Fork a worker; True in it."""
        *streams, life_line = descriptors
        with warnings.catch_warnings():
            # Python 3.12 warns if a process with threads forks. NumPy's OpenBLAS has threads, and is ready for a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                pid = os.fork()
            except OSError as error:  # too many processes, or too little memory: the build sees the life line end
                print(f"no worker can be forked: {error}", file=sys.stderr, flush=True)
                for descriptor in descriptors:
                    os.close(descriptor)
                return False
        if pid == 0:
            self._become_worker(streams)
            # The worker writes this, not the fork server: so there is a session before anybody knows the number, and
            # the number comes before the hello.
            os.write(life_line, f"{os.getpid()} {born(os.getpid())}\n".encode())
            os.close(life_line)
            return True
        for descriptor in streams:
            os.close(descriptor)
        self._children[pid] = _Child(socket.socket(fileno=life_line))
        return False

    def _become_worker(self, streams: list[int]) -> None:
        """Leave everything of the fork server behind, and take the streams of a worker."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for line in (self._control, *(child.life_line for child in self._children.values())):
            if line is not None:
                line.close()
        os.close(self._woken)
        os.close(self._waker)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)

    def _release(self, pid: int) -> None:
        """Close the life line of a worker after the build has closed its end."""
        child = self._children[pid]
        if child.life_line is not None:
            child.life_line.close()
            child.life_line = None

    def _look_after_children(self) -> None:
        """Report workers that have ended, and reap those whose life line the build has closed."""
        for pid, child in list(self._children.items()):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                continue
            if child.life_line is None:
                os.waitpid(pid, 0)
                del self._children[pid]
            elif not child.reported:
                child.reported = True
                status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                with contextlib.suppress(OSError):  # the build has closed its end, and the next poll() says so
                    child.life_line.send(f"status {status}\n".encode())

    def _reap_all(self) -> None:
        """Wait for all workers, which end with the build, so that their processor time is on record."""
        end = time.monotonic() + LAST_GRACE_S
        for pid in self._children:
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > end:
                    end_session(pid)  # one that runs an endless loop in C++ does not notice the end of its stdin
                time.sleep(POLL_S)


def _load_unless_build_ends(control: socket.socket, variables: Variables) -> Hello | KernelwrightError:
    """Import TVM. If the build ends meanwhile, a thread ends this process; the thread is gone before the first fork."""
    done, doing = os.pipe()

    def watch() -> None:
        poll = select.poll()
        poll.register(control, 0)  # says only that the other end was closed
        poll.register(done, 0)
        if poll.poll()[0][0] == control.fileno():
            os.killpg(0, signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        return tvm_import.load(writes_bytecode="PYTHONDONTWRITEBYTECODE" not in variables.others)
    finally:
        os.close(doing)
        thread.join()
        os.close(done)


def main() -> None:
    """Import TVM, and serve until stdin ends."""
    root = Path(sys.argv[1]).absolute()
    control = socket.socket(fileno=os.dup(0))
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)  # takes the lowest number that is free
    variables = variables_of(sys.argv[2])
    loaded = _load_unless_build_ends(control, variables)
    definitions = Definitions(root, variables)
    gc.collect()
    gc.freeze()  # TVM's own objects stay; later collections need not look at them, nor copy their pages
    if ForkServer(control).run():
        server.serve(definitions, loaded)
    os._exit(0)  # tearing TVM down takes 0.2 s


if __name__ == "__main__":
    main()
