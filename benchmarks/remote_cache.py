"""``scons`` in an empty checkout whose kernels all are in a remote cache, beside one with a full local cache.

The server is nginx on the same machine. In the rows "20 ms" a program stands before it that keeps each request back for
so long, as a network does. Compilers are stand-ins in the project of many kernels, and the real ones for the library.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

from .fresh_folder import ARCHS, SCONSTRUCT, SETTINGS
from .harness import (
    CHILDREN,
    ROOT,
    Bench,
    BenchmarkError,
    Finished,
    Result,
    Row,
    Skip,
    Target,
    interleave,
    median,
    walls,
)
from .projects import Project, stand_in, write_generated

MANY = 1000
DELAY_MS = 20
OF_LOCAL, OF_NULL, DELAYED_OF_LOCAL, LIBRARY_OF_NULL = 1.5, 10.0, 2.5, 4.0
"""The aims: of the time with a full local cache, of nothing to do, the first with a delay, and of the library."""

NGINX = """\
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors crit; {user}
events {{ worker_connections 256; }}
http {{
  access_log off; keepalive_requests 1000000; client_max_body_size 200m; client_body_temp_path {folder}/t;
  proxy_temp_path {folder}/t; fastcgi_temp_path {folder}/t; uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;
  server {{ listen 127.0.0.1:{port}; root {folder}/root; location / {{ dav_methods PUT; create_full_put_path on; }} }}
}}
"""


class Checkouts:
    """Checkouts of one project: the first one has filled a local and a remote cache.

    Arguments:
        bench: what the benchmark was told.
        name: of the project.
        write: writes the project into a folder; its pyproject.toml ends in the table of the settings.
        remote, delayed: addresses of the remote cache.
    """

    def __init__(self, bench: Bench, name: str, write: Callable[[Path], None], remote: str, delayed: str) -> None:
        self._bench = bench
        self._top = bench.work / f"remote-{name}"
        self._write = write
        self._remote, self._delayed = remote, delayed
        self._numbers = count()
        shutil.rmtree(self._top, ignore_errors=True)
        bench.say(f"filling a local and a remote cache: {name}")
        self._first = self._checkout(cache_dir=str(self._top / "cache"), remote_cache=remote, remote_mode="read-write")
        self._require_all(self._scons(self._first), made=True)
        self._scons(self._first)

    def actions(self) -> dict[str, Callable[[], Finished]]:
        """What is measured."""
        return {
            "null": lambda: self._scons(self._first),
            "local": lambda: self._fresh(cache_dir=str(self._top / "cache")),
            "remote": lambda: self._fresh(remote_cache=self._remote),
            "delayed": lambda: self._fresh(remote_cache=self._delayed),
        }

    def _fresh(self, **settings: str) -> Finished:
        """A new checkout; only the package is assembled there."""
        done = self._scons(self._checkout(**settings))
        self._require_all(done, made=False)
        return done

    def _checkout(self, **settings: str) -> Project:
        folder = self._top / str(next(self._numbers))
        folder.mkdir(parents=True)
        self._write(folder)
        with (folder / "pyproject.toml").open("a") as stream:
            stream.writelines(f'{name} = "{value}"\n' for name, value in settings.items())
        return Project(folder, "", self._bench.site_scons)

    def _scons(self, project: Project) -> Finished:
        return project.scons(f"-j{self._bench.jobs}")

    def _require_all(self, done: Finished, made: bool) -> None:
        found = re.findall(r"(\d+) built(?: \((\d+) from the cache\))?", done.output)
        built, cached = (int(text or 0) for text in found[-1])
        if "were not written" in done.output or (not made and built - cached != 1):
            raise BenchmarkError(f"{built - cached} stages ran in an empty checkout\n{done.output[-4000:]}")


def measure(bench: Bench) -> Result:
    """Measure many kernels with stand-ins for the compilers, and the library."""
    rows, details = [], {}
    with _nginx(bench) as port, _delaying(port) as behind:
        for name, write, kernels in _projects(bench):
            addresses = (f"http://127.0.0.1:{where}/{name}" for where in (port, behind))
            runs = interleave(bench.rounds_or(5), Checkouts(bench, name, write, *addresses).actions(), warm_up=1)
            rows += _rows(kernels, runs, of_library=name == "library")
            details[name] = {"wall_s": walls(runs), "cpu_s": {n: [done.cpu_s for done in runs[n]] for n in runs}}
    return Result(rows, details)


def _projects(bench: Bench) -> Iterator[tuple[str, Callable[[Path], None], str]]:
    """Name, what writes it, and what it is called in the table."""
    many = 3 if bench.small else MANY
    standin = stand_in(bench)
    yield "many", lambda folder: write_generated(folder, many, standin), f"{many} kernels"
    if not bench.small:
        yield "library", _write_library, "library"


def _write_library(folder: Path) -> None:
    (folder / "kernels").mkdir()
    for path in sorted((ROOT / "kernels").glob("*.py")):
        shutil.copy(path, folder / "kernels")
    (folder / "SConstruct").write_text(SCONSTRUCT)
    settings = SETTINGS.format(archs=ARCHS["library"], cache="")
    (folder / "pyproject.toml").write_text(settings.replace('cache_dir = ""\n', ""))


def _rows(what: str, runs: dict[str, list[Finished]], of_library: bool) -> list[Row]:
    def row(text: str, name: str, peer: str, peer_name: str, bound: float) -> Row:
        wall = {name: median(done.wall_s for done in listed) for name, listed in runs.items()}
        target = Target(bound, "ratio")
        return Row(f"empty checkout, {what}, {text}", "s", wall[name], {peer_name: wall[peer]}, target)

    if of_library:
        return [row("remote cache", "remote", "null", "nothing to do", LIBRARY_OF_NULL)]
    return [
        row("remote cache", "remote", "local", "full local cache", OF_LOCAL),
        row("remote cache", "remote", "null", "nothing to do", OF_NULL),
        row(f"remote cache, {DELAY_MS} ms", "delayed", "local", "full local cache", DELAYED_OF_LOCAL),
    ]


@contextlib.contextmanager
def _nginx(bench: Bench) -> Iterator[int]:
    """An nginx with WebDAV; its port."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        raise Skip("nginx is not installed: apt-get install nginx-light")
    folder, port = bench.work / "nginx", _free_port()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "root").mkdir(parents=True)
    user = "user root;" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, user=user))
    with _running([program, "-c", folder / "nginx.conf"], port):
        yield port


@contextlib.contextmanager
def _delaying(port: int) -> Iterator[int]:
    """What keeps each request to a port back; its own port."""
    behind = _free_port()
    with _running([sys.executable, CHILDREN / "delay.py", behind, port, DELAY_MS], behind):
        yield behind


@contextlib.contextmanager
def _running(command: Sequence[object], port: int) -> Iterator[None]:
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
