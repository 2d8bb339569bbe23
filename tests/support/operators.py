"""Builds of operators for PyTorch without most of what they take: PyTorch's headers, and its import.

`raw` writes a source without these headers. A build asks PyTorch which operators a library registers. After `ready`, a
fork of a process that has imported PyTorch runs the program that does so. That process ends with the process of the
tests that has started it; then the program is run as always.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from kernelwright.toolchain import torch_registry

from support.forked import LIMIT_S, end
from support.project import Project, once_in

RAW = """\
#include <cstdint>
#include <stdexcept>
extern "C" {{
int aoti_torch_library_init_fragment(const char*, const char*, uint32_t, void**);
int aoti_torch_library_def(void*, const char*);
{declared}
}}
namespace {{
struct Registering {{
  Registering() {{
    void* library;
    aoti_torch_library_init_fragment("{namespace}", __FILE__, __LINE__, &library);
    if (aoti_torch_library_def(library, "{schema}")) throw std::runtime_error("API call failed");
  }}
}} registering;
}}  // namespace
{more}
"""
"""A source that has no headers of PyTorch, which take long, and does what they do."""


def raw(namespace: str, schema: str, declared: str = "", more: str = "") -> str:
    return RAW.format(namespace=namespace, schema=schema, declared=declared, more=more)


CLIENT = """\
import json, os, socket, sys
asked = socket.socket(socket.AF_UNIX)
try:
    asked.connect({name!r})
except OSError:
    os.execv(sys.executable, [sys.executable, "-I", {program!r}, *sys.argv[1:]])
socket.send_fds(asked, [json.dumps([os.getcwd(), *sys.argv[1:]]).encode()], [1, 2])
status = int(asked.makefile().read())
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
"""What is run in place of the program."""


def ready() -> None:
    """Have later builds of this test run ask such a fork."""
    once_in(Project.shared, "registry", _start)


def _start(folder: Path) -> None:
    command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    assert name, "the process with PyTorch has ended"
    _PROCESSES.append(process)
    (folder / "client.py").write_text(CLIENT.format(name=f"\0{name}", program=torch_registry.__file__))


_PROCESSES: list[subprocess.Popen[str]] = []
"""The process, which ends with its stdin, and so with this one."""


def serve() -> NoReturn:
    """Import PyTorch, and fork for each library until stdin ends."""
    import torch  # noqa: F401

    name, server = f"kernelwright-registry-{os.getpid()}", socket.socket(socket.AF_UNIX)
    server.bind(f"\0{name}")
    server.listen()
    print(name, flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    while True:
        connection, _ = server.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(connection)
        connection.close()


def _answer(connection: socket.socket) -> NoReturn:
    """Have a further fork run the program, and tell how it has ended."""
    message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    child = os.fork()
    if not child:
        connection.close()
        _run(json.loads(message), streams)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    connection.sendall(str(status).encode())
    os._exit(0)


def _run(request: list[str], streams: list[int]) -> NoReturn:
    signal.alarm(LIMIT_S)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
    folder, *arguments = request
    os.chdir(folder)
    sys.argv = [str(torch_registry.__file__), *arguments]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
        end(1)
    end(0)
