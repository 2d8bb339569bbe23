"""Builds whose scheduler says nothing, or dies, at any moment of the first words with it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelwright.core.errors import SettingsError, ToolchainError
from support.certificates import certificates
from support.dask_cluster import Scheduler

pytest.importorskip("distributed", reason="clusters need the extra fleet")
from kernelwright.cluster import dask_client
from kernelwright.cluster.address import FILES, find_certificates, first_cause
from kernelwright.cluster.dask_client import Loop
from kernelwright.cluster.runner import ClusterGone

LIMIT_S = 0.3
"""In place of the seconds that a scheduler may take to answer."""


class Relay:
    """Passes bytes between a build and its scheduler, until something happens to the scheduler.

    Arguments:
        port: where the scheduler is; None: there is none, and nobody ever answers.
        count: so many bytes of the scheduler arrive.
        dies: whether its connections are closed then; otherwise it says nothing any more.
    """

    def __init__(self, port: int | None, count: int, dies: bool) -> None:
        self._port, self._left, self._dies = port, count, dies
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._server]
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                self._open.append(near)
                if self._port is None or self._left == 0:
                    continue
                far = socket.create_connection(("127.0.0.1", self._port))
                self._open.append(far)
                threading.Thread(target=self._pass, args=(near, far), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_counted: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    data = data[: self._left] if is_counted else data
                    self._left -= len(data) if is_counted else 0
                    is_over = self._left == 0
                sink.sendall(data)
                if is_over and self._dies:
                    self.close()

    def close(self) -> None:
        """Close all connections, and take no more."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    made = Scheduler(tmp_path_factory.mktemp("dask") / "scheduler")
    yield made
    made.kill()


def use(address: str) -> str:
    """Connect to a cluster, ask it, and leave it; what there was to say."""
    try:
        engine = dask_client.connect(address, None)
    except ToolchainError as error:
        return error.message.rpartition(": ")[2]
    try:
        return f"{len(engine.offers())} workers"
    except ClusterGone:
        return "gone"
    finally:
        engine.close()


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_client, "CONNECT_S", LIMIT_S)


def test_a_scheduler_that_accepts_and_says_nothing_is_an_error(limits: None):
    relay, said = Relay(None, 0, dies=False), []
    # Without a limit this would wait for ever.
    thread = threading.Thread(target=lambda: said.append(use(relay.address)), daemon=True)
    thread.start()
    thread.join(60)
    relay.close()
    assert said == ["it does not answer"]
    assert "cluster" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("dies", [True, False], ids=["dies", "says nothing"])
def test_a_scheduler_that_is_lost_at_any_moment_of_the_start_holds_up_nobody(scheduler, limits, dies):
    """All that it says from the first word to the offers of its workers are some 900 bytes."""
    said = []
    for count in (1, 8, 100, 200, 300, 400, 500, 600, 700):
        relay = Relay(scheduler.port, count, dies)
        thread = threading.Thread(target=lambda relay=relay: said.append(use(relay.address)), daemon=True)
        thread.start()
        thread.join(60)
        relay.close()
        assert not thread.is_alive(), f"it hangs after {count} bytes: {said}"
    assert said[0] == ("Stream is closed" if dies else "it does not answer")
    assert "cluster" not in {thread.name for thread in threading.enumerate()}


def test_whoever_is_no_scheduler_is_an_error(limits: None):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            near, _ = server.accept()
            near.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            near.recv(1 << 16)
            near.close()

        threading.Thread(target=answer, daemon=True).start()
        said = use(f"tcp://127.0.0.1:{server.getsockname()[1]}")
    assert said and "workers" not in said


def test_a_worker_that_finds_no_scheduler_says_so_in_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "kernelwright", "worker", address, "--threads", "1"]
        variables = {**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "0.5s"}
        run = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert run.returncode == 1 and "Traceback" not in run.stderr
    # At the end of the time the last attempt may be cut off before it has failed.
    cause = "(.* Connection refused|it does not answer)"
    assert re.search(rf"\[settings\]: no worker can join {address}: {cause}\n", run.stderr), run.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_worker_whose_certificate_or_scheduler_is_refused_says_so_and_ends(tmp_path: Path):
    """Also without a nanny, where Dask takes it for a scheduler that is not there yet."""
    own, refusing, refused = (certificates(tmp_path / name) for name in ("own", "refusing", "refused"))
    shutil.copy(own / "ca.pem", refused)  # the worker trusts the scheduler, and not the other way round
    files = {"CA_FILE": "ca.pem", "SCHEDULER__CERT": "cert.pem", "SCHEDULER__KEY": "key.pem"}
    variables = {f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(own / file) for name, file in files.items()}
    variables["DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME"] = "tls"
    scheduler = Scheduler(tmp_path / "scheduler", **variables)
    assert "tls://" in scheduler.log.read_text()
    address = f"tls://127.0.0.1:{scheduler.port}"
    try:
        for other in (refusing, refused):
            command = [sys.executable, "-m", "kernelwright", "worker", address, "--no-nanny", "--certificates", other]
            run = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert run.returncode == 1
            assert re.search(rf"no worker can join {address}: .*(SSL|certificate)", run.stderr), run.stderr
            assert "Waiting to connect" not in run.stderr
    finally:
        scheduler.kill()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("wrong", ["no certificate", "of another one", "with a password"])
def test_certificates_that_cannot_be_used_are_named(tmp_path: Path, what: str, wrong: str):
    own, other = certificates(tmp_path / "own"), certificates(tmp_path / "other")
    assert find_certificates("tls://head:8786", own) is not None
    if wrong == "with a password":
        shutil.copy(own / "key.pem", own / "plain.pem")
        change = ["openssl", "pkey", "-in", "plain.pem", "-aes256", "-passout", "pass:secret", "-out", what]
        subprocess.run(change, cwd=own, check=True, capture_output=True)
    elif wrong == "of another one":
        shutil.copy(other / what, own)
    else:
        (own / what).write_text("no certificate")
    if (what, wrong) == ("ca.pem", "of another one"):
        assert find_certificates("tls://head:8786", own) is not None, "the other side may be signed by somebody else"
        return
    with pytest.raises(SettingsError, match="cannot be used") as caught:
        find_certificates("tls://head:8786", own)
    assert str(own) in caught.value.message and what in caught.value.message and "secret" not in str(caught.value)


def test_an_attempt_that_was_cut_off_is_said_in_words():
    late = TimeoutError()
    late.__cause__ = asyncio.CancelledError()
    assert first_cause(late) == "it does not answer"
    ended = OSError("in <TLS (closed)>")
    ended.__cause__ = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
    assert first_cause(ended) == "it has ended the connection, perhaps because it refuses a certificate"


def test_a_loop_cancels_what_is_late_and_waits_for_nobody_who_takes_no_notice():
    loop, cancelled, go_on = Loop(), [], threading.Event()

    async def late() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async def deaf() -> None:
        go_on.wait()

    with pytest.raises(concurrent.futures.TimeoutError):
        loop.within(0.01, late())
    loop.within(60, asyncio.sleep(0))
    assert cancelled == [1]
    loop.soon(deaf())
    begun = time.monotonic()
    loop.close(0.01)
    assert time.monotonic() - begun < 60
    go_on.set()
    loop.close(60)
    with pytest.raises(RuntimeError):
        loop.soon(late())
