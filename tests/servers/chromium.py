"""A client of Chromium's DevTools protocol over a pipe, for tests of pages in a headless browser.

https://chromedevtools.github.io/devtools-protocol: messages are JSON objects that end with a zero byte, read by the
browser from file descriptor 3 and written to 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.patience import GUARD_S

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
"""Longest wait for an answer: a loaded machine is slow, a browser without an answer is broken."""


class Chromium:
    """A headless browser."""

    def __init__(self, profile: Path) -> None:
        """Start the browser with a new profile in the folder `profile`."""
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def place() -> None:
            # The pipe ends may have the numbers 3 and 4 themselves, so they are duplicated to high numbers first.
            high = [os.dup2(fd, number, inheritable=False) for fd, number in ((to_browser, 103), (from_browser, 104))]
            for fd, number in zip(high, (3, 4), strict=True):
                os.dup2(fd, number)

        command = [str(PROGRAM), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number = 0
        self._rest = b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.send("Browser.close")
            self._process.wait(GUARD_S)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._write)
            os.close(self._read)

    def send(self, method: str, session: str | None = None, /, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a command. Events that arrive before the answer are collected in `events`."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == number:
                assert "error" not in found, (method, found["error"])
                return dict(found["result"])
            self.events.append(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], GUARD_S)
            assert ready, f"no answer of the browser within {GUARD_S:.0f} s"
            received = os.read(self._read, 1 << 20)
            assert received, "the browser ended"
            self._rest += received
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


class Page:
    """A page in a browser, with its errors."""

    def __init__(
        self,
        browser: Chromium,
        path: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        script: bool = True,
        phone: bool = False,
        first: str = "",
    ) -> None:
        """Open the file `path`; `phone`: with touch; `first`: JavaScript that runs before that of the page."""
        self._browser = browser
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setScriptExecutionDisabled", value=not script)
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.send("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.media("screen", dark=dark)
        self.send("Page.addScriptToEvaluateOnNewDocument", source=first)
        self.send("Page.navigate", url=path.as_uri())
        self.until(lambda: bool(self.events("Page.loadEventFired")))
        if script:
            self.until(lambda: self.run("document.readyState") == "complete")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **parameters)

    def media(self, kind: str, *, dark: bool = False) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", media=kind, features=features)

    def run(self, expression: str) -> Any:
        """Return the JSON value of a JavaScript expression, awaited."""
        found = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + GUARD_S
        while not holds():
            assert time.monotonic() < deadline
            self.send("Runtime.getIsolateId")  # collects events
            time.sleep(0.02)

    def wait_for(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        self.until(lambda: bool(self.run(f"Boolean({expression})")))

    def events(self, method: str) -> list[dict[str, Any]]:
        return [
            e["params"] for e in self._browser.events if e.get("sessionId") == self._session and e["method"] == method
        ]

    def errors(self) -> list[dict[str, Any]]:
        """Return everything that the console shows: messages of scripts, exceptions, blocked requests."""
        self.send("Runtime.getIsolateId")
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for kind in kinds for event in self.events(kind)]

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send a mouse event: kind is `Moved`, `Pressed`, `Released` or `Wheel`; x and y in CSS pixels."""
        self.send("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)

    def key(self, key: str, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "")

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def picture(self, path: Path) -> Path:
        """Save a picture of the whole page."""
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def close(self) -> None:
        self.send("Page.close")
