"""Stands before a server and keeps back what clients send, for as many milliseconds as it is told.

usage: delay.py OWN-PORT PORT-OF-THE-SERVER MILLISECONDS
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any


class Half(asyncio.Protocol):
    """One of the two ends of a connection through this program."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.own: Any = None
        self.other: Half | None = None
        self.kept: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        """Send what has come meanwhile."""
        self.own = transport
        for data in self.kept:
            transport.write(data)
        self.kept.clear()

    def send(self, data: bytes) -> None:
        """Send to whoever is at this end, if there is one already."""
        if self.own is None:
            self.kept.append(data)
        else:
            self.own.write(data)

    def data_received(self, data: bytes) -> None:
        """Pass data on, later."""
        assert self.other is not None
        if self.delay_s:
            asyncio.get_running_loop().call_later(self.delay_s, self.other.send, data)
        else:
            self.other.send(data)

    def connection_lost(self, error: Exception | None) -> None:
        """End the other end, too."""
        if self.other is not None and self.other.own is not None:
            self.other.own.close()


async def main(port: int, server: int, delay_s: float) -> None:
    """Run until the process is ended."""
    loop = asyncio.get_running_loop()
    pending: set[asyncio.Task[Any]] = set()

    def accept() -> Half:
        client, behind = Half(delay_s), Half()
        client.other, behind.other = behind, client
        task = loop.create_task(loop.create_connection(lambda: behind, "127.0.0.1", server))
        pending.add(task)
        task.add_done_callback(pending.discard)
        return client

    await (await loop.create_server(accept, "127.0.0.1", port, backlog=256)).serve_forever()


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000))
