"""A headless Chromium without a network, driven over pipes with the DevTools protocol."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>&amp;\"'"
"""A text of a user that would do something in a page if it were not escaped."""

NAMES = ("chromium", "chromium-browser", "google-chrome")
# The browser reads commands from descriptor 3 and writes answers to descriptor 4.
START = """\
import fcntl, os, sys
source, sink = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(source, 3)
os.dup2(sink, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND"),
    "--proxy-server=127.0.0.1:9",
)


BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"no {', '.join(NAMES)} on PATH")


def escaped(text: str) -> str:
    """A text as the templates of a page write it."""
    return html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


def rows_of(page: str, label: str) -> list[list[str]]:
    """The texts of the cells of a table of a report, by row."""
    body = page.split(f'aria-label="{escaped(label)}"', 1)[1].split("<tbody>", 1)[1].split("</tbody>", 1)[0]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", body, re.S)]
    return [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in cells]


class Browser:
    """One page, from a file, in a browser of its own; ``profile`` is an empty folder."""

    def __init__(self, page: Path, profile: Path) -> None:
        assert BROWSER
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        arguments = [*SWITCHES, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(commands), str(answers), BROWSER, *arguments],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        self._attach()
        self.resize(1280, 900)
        self.open(page)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        with contextlib.suppress(AssertionError, OSError):
            self.command("Browser.close")
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come in between are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def open(self, page: Path) -> None:
        """Open a file, and wait until it is loaded."""
        self.command("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def emulate(self, scheme: str = "light", media: str = "screen") -> None:
        """Set the colour scheme and the kind of device."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", media=media, features=features)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        # Runs beside the page's own policy, as the developer's console does.
        result = self.command("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, button: str = "none", count: int = 0) -> None:
        """One event of the mouse: ``mouseMoved``, ``mousePressed`` or ``mouseReleased``."""
        buttons = 1 if button == "left" and kind != "mouseReleased" else 0
        self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=count)

    def click(self, selector: str) -> None:
        """Click into the middle of an element."""
        x, y = self.middle(selector)
        self.mouse("mousePressed", x, y, "left", 1)
        self.mouse("mouseReleased", x, y, "left", 1)

    def middle(self, selector: str) -> tuple[float, float]:
        """The middle of an element, after it has been scrolled to."""
        x, y = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return float(x), float(y)

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts, violations of the page's policy, and what was written to the console."""
        self.evaluate("1")  # what the page complained of before is among the events then
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in kinds]

    @property
    def requests(self) -> list[str]:
        """Addresses of everything that was asked for."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [str(event["params"]["request"]["url"]) for event in sent]

    def _attach(self) -> None:
        targets = self.command("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.command("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")
        self.command(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
        )

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            block = os.read(self._from, 1 << 16)
            assert block, "the browser ended"
            self._buffer += block
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))
