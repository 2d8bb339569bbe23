"""Real servers for the tests of the remote cache, and one that does whatever is wrong."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hmac
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

READER, WRITER = "token-of-readers", "token-of-writers"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str | Path], port: int, env: dict[str, str] | None = None) -> Iterator[None]:
    """A server in a process of its own, until the end of the block."""
    process = subprocess.Popen(
        [str(word) for word in command],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, f"{command[0]} has ended"
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


NGINX = """\
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors; {user}
events {{ worker_connections 256; }}
http {{
  access_log {folder}/access; keepalive_requests 100000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/t; fastcgi_temp_path {folder}/t;
  uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t;
  map $http_authorization $who {{ default none; "Bearer {reader}" reader; "Bearer {writer}" writer; }}
  server {{
    listen 127.0.0.1:{port} {tls}; client_max_body_size 200m; root {folder}/root;
    {certificate}
    location / {{
      dav_methods PUT; create_full_put_path on;
      set $do "$who-$request_method";
      if ($do ~ ^none) {{ set $refused {closed}; }}
      if ($refused) {{ return 401; }}
      if ($do = reader-PUT) {{ return 403; }}
      if (-f $request_filename) {{ set $there $request_method; }}
      if ($there = PUT) {{ return 412; }}
    }}
  }}
}}
"""


@dataclass
class Nginx:
    """An nginx with WebDAV: objects are created and never replaced."""

    address: str
    folder: Path

    def objects(self) -> list[Path]:
        return sorted(path for path in (self.folder / "root").rglob("*") if path.is_file())

    def requests(self) -> list[str]:
        return (self.folder / "access").read_text().splitlines()


@contextlib.contextmanager
def nginx(folder: Path, closed: bool = False, certificate: tuple[Path, Path] | None = None) -> Iterator[Nginx]:
    """Start nginx.

    Arguments:
        closed: whether a token is asked for; readers and writers have one each.
        certificate: the files of a certificate and of its key, for https.
    """
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    port = free_port()
    (folder / "root").mkdir(parents=True)
    files = f"ssl_certificate {certificate[0]}; ssl_certificate_key {certificate[1]};" if certificate else ""
    text = NGINX.format(
        folder=folder,
        port=port,
        reader=READER,
        writer=WRITER,
        closed=int(closed),
        tls="ssl" if certificate else "",
        certificate=files,
        user="user root;" if os.getuid() == 0 else "",
    )
    (folder / "nginx.conf").write_text(text)
    with running([program, "-c", folder / "nginx.conf"], port):
        yield Nginx(f"http{'s' if certificate else ''}://localhost:{port}/kernels", folder)


S3_VARIABLES = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "its-secret", "AWS_REGION": "us-east-1"}


@contextlib.contextmanager
def rclone(folder: Path) -> Iterator[dict[str, str]]:
    """``rclone serve s3`` with the bucket ``cache``; the variables that a client needs. It checks signatures."""
    program = shutil.which("rclone") or shutil.which("rclone", path=str(Path(sys.executable).parent))
    if (
        program is None
        or "serve s3" not in subprocess.run([program, "serve", "s3", "-h"], capture_output=True, text=True).stdout
    ):
        pytest.skip("an rclone with `serve s3` is not installed: see tests/remote/README.md")
    (folder / "cache").mkdir(parents=True)
    port = free_port()
    keys = f"{S3_VARIABLES['AWS_ACCESS_KEY_ID']},{S3_VARIABLES['AWS_SECRET_ACCESS_KEY']}"
    command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", keys, "--config", "/dev/null"]
    with running([*command, folder], port):
        yield {**S3_VARIABLES, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


@contextlib.contextmanager
def moto() -> Iterator[dict[str, str]]:
    """moto's S3 with the bucket ``cache``; the variables that a client needs. It knows preconditions."""
    program = shutil.which("moto_server") or shutil.which("moto_server", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("moto is not installed: pip install 'moto[server,s3]'")
    port = free_port()
    with running([program, "-p", str(port)], port):
        place = f"http://127.0.0.1:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{place}/cache", method="PUT")).close()
        yield {**S3_VARIABLES, "AWS_ENDPOINT_URL": place}


AZURE_VARIABLES = {
    "AZURE_STORAGE_ACCOUNT_NAME": "reader",
    "AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"its-secret").decode(),
}


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[dict[str, str]]:
    """Azurite's blobs with the container ``cache``; the variables that a client needs. It checks signatures."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite-blob is not installed: npm install -g azurite")
    port = free_port()
    account, key = AZURE_VARIABLES.values()
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", folder, "--silent"]
    with running([*command, "--skipApiVersionCheck"], port, {"AZURITE_ACCOUNTS": f"{account}:{key}"}):
        place = f"http://127.0.0.1:{port}/{account}"
        new_container(place, account, key, "cache")
        yield {**AZURE_VARIABLES, "AZURE_STORAGE_ENDPOINT": place}


def new_container(place: str, account: str, key: str, name: str) -> None:
    """Make a container, see https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key."""
    stamps = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = "".join(f"{header}:{value}\n" for header, value in stamps.items())
    # The account is twice in it, because it is in the path, too.
    text = "PUT" + 12 * "\n" + lines + f"/{account}/{account}/{name}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), "sha256")).decode()
    headers = {**stamps, "Authorization": f"SharedKey {account}:{signature}", "Content-Length": "0"}
    address = f"{place}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(address, headers=headers, method="PUT")).close()


@dataclass
class Faulty:
    """A server whose answers a test chooses, with objects in its memory.

    Arguments:
        port: where it listens.
        objects: path -> content.
        asked: method and path of each request, in their order.
        answer: called with the handler of a request; whether it has dealt with it.
    """

    port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    answer: Callable[[BaseHTTPRequestHandler], bool] = lambda handler: False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/cache"


def status(code: int) -> Callable[[BaseHTTPRequestHandler], bool]:

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        reply(handler, code, b"")
        return True

    return answer


def reply(handler: BaseHTTPRequestHandler, code: int, data: bytes) -> None:
    handler.send_response(code)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


@contextlib.contextmanager
def faulty() -> Iterator[Faulty]:
    """A server of the test, in its own process."""
    state = Faulty()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            state.asked.append(f"{self.command} {self.path}")
            if state.answer(self):
                return
            if self.command == "PUT":
                there = self.path in state.objects
                state.objects.setdefault(self.path, body)
                reply(self, 412 if there else 201, b"")
            else:
                found = state.objects.get(self.path)
                reply(self, 404 if found is None else 200, found or b"")

        do_GET = do_PUT = do_HEAD = handle_any

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        state.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield state
        finally:
            server.shutdown()
