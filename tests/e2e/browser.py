"""A real browser without a window, driven over its own pipe: headless Chromium.

Owns the protocol between us (Chrome DevTools, JSON texts that end with a zero byte) and what it
takes to run it where there is no desktop and no other profile.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from tests.e2e.waiting import eventually

PROGRAM = shutil.which("chromium")
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# The browser reads requests from file 3 and writes to file 4
_LAUNCHER = """\
import os, sys
requests, answers, *command = sys.argv[1:]
os.dup2(int(requests), 3)
os.dup2(int(answers), 4)
os.execv(command[0], command)
"""


class Page:
    """A page in the browser."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests = requests
        self._answers = answers
        self._session: str | None = None
        self._number = 0
        self.complaints: list[str] = []  # errors of scripts, and what the page's policy forbade
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, path: Path, width: int = 1280, *, scheme: str = "light") -> None:
        """Show a file in a window that broad, to a reader who prefers `light` or `dark`."""
        self.complaints.clear()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", features=features)
        self._call("Page.navigate", url=path.as_uri())
        shown = "location.href.split('#')[0]"  # a page may add where in it one is
        loaded = f"document.readyState === 'complete' && {shown} === {path.as_uri()!r}"
        assert eventually(lambda: self.value(loaded), bool)

    def value(self, expression: str) -> Any:
        """Return what a script gives in the page, as plain values."""
        done = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        self._requests.write(json.dumps(request).encode() + b"\0")
        self._requests.flush()
        while (message := self._message()).get("id") != self._number:
            if message["method"] == "Log.entryAdded":
                self.complaints.append(message["params"]["entry"]["text"])
            elif message["method"] == "Runtime.exceptionThrown":
                self.complaints.append(message["params"]["exceptionDetails"]["text"])
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    def _message(self) -> dict[str, Any]:
        text = b"".join(iter(lambda: self._answers.read(1).strip(b"\0"), b""))
        assert text, "the browser ended"
        message: dict[str, Any] = json.loads(text)
        return message


@contextmanager
def browser() -> Iterator[Page]:
    """Yield a page of a browser that runs for it alone."""
    assert PROGRAM is not None
    to_it, from_us = os.pipe()
    from_it, to_us = os.pipe()
    # out of the way of 3 and 4
    its = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_it, to_us)]
    for end in (to_it, to_us):
        os.close(end)
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = (*_OPTIONS, f"--user-data-dir={profile}")
        command = [sys.executable, "-c", _LAUNCHER, *map(str, its), PROGRAM, *options]
        with (
            os.fdopen(from_us, "wb") as requests,
            os.fdopen(from_it, "rb") as answers,
            subprocess.Popen(command, pass_fds=its, stderr=subprocess.DEVNULL) as running,
        ):
            for end in its:
                os.close(end)
            try:
                yield Page(requests, answers)
            finally:
                running.kill()
