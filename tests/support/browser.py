"""A real browser for tests of pages: Chromium without a screen, driven through a pipe by its own
protocol. It needs nothing but the browser itself.

If MDISPATCH_BROWSER in the environment names a browser (by name or path) that is missing, that is
an error. Without the variable, tests that need a browser are skipped.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from patience import limit

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WANTED = "MDISPATCH_BROWSER"
# The browser reads descriptor 3 and writes 4, whatever our numbers are.
START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
    os.close(end)
os.execv(sys.argv[3], sys.argv[3:])
"""
_LIMIT = limit(60)  # how many seconds the browser has for an answer


def find_browser() -> str | None:
    """The browser's path, or None when there is none. Raises LookupError when the one that the
    environment names is missing.
    """
    named = os.environ.get(WANTED)
    if named:
        found = shutil.which(named)
        if found is None:
            raise LookupError(f"{WANTED}={named} is in the environment, and there is no such file")
        return found
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A process with one page and no network. Notes what the page tries to load."""

    def __init__(self, program: str, folder: Path) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        options = [
            *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"),
            *("--no-first-run", "--disable-dev-shm-usage", f"--user-data-dir={folder}"),
            *("--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND"),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs_in), str(theirs_out), program, *options],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = os.fdopen(ours_out, "wb", buffering=0), ours_in
        self._number, self._rest, self._session = 0, b"", ""
        self._asked: dict[str, str] = {}
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for area in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{area}.enable")

    def close(self) -> None:
        self._session = ""
        self._call("Browser.close")
        self._out.close()
        os.close(self._in)
        self._process.wait(timeout=_LIMIT)

    # --- the protocol: JSON, each with a NUL behind it

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            asked["sessionId"] = self._session
        self._out.write(json.dumps(asked).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)
        raise EOFError(f"the browser ended at {method}")

    def _until(self, event: str) -> None:
        for message in self._messages():
            self._note(message)
            if message.get("method") == event:
                return
        raise EOFError(f"the browser ended before {event}")

    def _messages(self) -> Iterator[dict[str, Any]]:
        watchdog = threading.Timer(_LIMIT, self._process.kill)  # this ends the reading
        watchdog.start()
        try:
            while True:
                message, end, rest = self._rest.partition(b"\0")
                if end:
                    self._rest = rest
                    yield json.loads(message)
                    continue
                data = os.read(self._in, 1 << 16)
                if not data:
                    return
                self._rest += data
        finally:
            watchdog.cancel()

    def _note(self, message: dict[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self._asked[told["requestId"]] = told["request"]["url"]
        elif method == "Network.loadingFailed" and told.get("blockedReason"):
            self._asked.pop(told["requestId"], None)
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(told["entry"]["text"])

    # --- what tests do with it

    def open(
        self, page: Path, *, script: bool = True, dark: bool = False, width: int = 1200
    ) -> None:
        self._asked, self.complaints = {}, []
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Emulation.setScriptExecutionDisabled", value=not script)
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._call("Page.navigate", url=page.as_uri())
        self._until("Page.loadEventFired")

    @property
    def loaded(self) -> list[str]:
        """What the page has loaded or tried to load, without what its own policy forbids."""
        return list(self._asked.values())

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression, even if the page's own scripts are off."""
        found = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def type(self, text: str) -> None:
        self._call("Input.insertText", text=text)

    def roles(self) -> list[tuple[str, str]]:
        """What a screen reader gets: the role and name of everything that is not hidden."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]

    def picture(self, file: Path) -> None:
        shown = self._call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(shown["data"]))
