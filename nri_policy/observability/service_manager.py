"""The service manager: notifies systemd of the daemon's state, by its notification protocol.

Owns the socket and the order of messages. Without NOTIFY_SOCKET it sends nothing.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Mapping

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.wording import one_line, problem_of

log = logging.getLogger(__name__)

MORE_TIME = 30.0  # seconds by which a start that waits for the runtime extends its timeout,
PATIENCE = 300.0  # until so many have passed: units ordered after the daemon wait for it


class ServiceManager:
    """The receiver of NOTIFY_SOCKET, if there is one."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._clock = clock
        self._started = clock.now()
        self._ready = False
        self._status = ""
        self._sent_at: dict[str, float] = {}  # when each regular message was sent
        self._feed = _watchdog_seconds(environment) / 2

    @property
    def max_interval(self) -> float:
        """The seconds within which the watchdog needs a beat; infinite without one."""
        return self._feed / 2 or math.inf

    def beat(self, *, ready: bool, status: str) -> None:
        """Notify that the daemon lives, and its status; *ready* once it takes part."""
        if not self._address:
            return
        lines = []
        if ready and not self._ready:
            self._ready = True
            lines.append("READY=1")
        waited = self._clock.now() - self._started
        if not self._ready and waited < PATIENCE and self._due("EXTEND", MORE_TIME / 3):
            lines.append(f"EXTEND_TIMEOUT_USEC={MORE_TIME * 1e6:.0f}")
        if self._feed and self._due("WATCHDOG", self._feed):
            lines.append("WATCHDOG=1")
        if status != self._status:
            self._status = status
            lines.append(f"STATUS={one_line(status)}")
        self._send(*lines)

    def notify_reloading(self) -> None:
        """Notify that settings are being read again."""
        if self._ready:
            self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def notify_reloaded(self) -> None:
        """Notify that the reload has ended, with any result."""
        if self._ready:
            self._send("READY=1")

    def notify_stopping(self) -> None:
        """Notify that the daemon ends."""
        self._send("STOPPING=1")

    def _due(self, what: str, every: float) -> bool:
        """Return whether *what* was not sent for *every* seconds, and mark it as sent."""
        now = self._clock.now()
        if now - self._sent_at.get(what, -every) < every:
            return False
        self._sent_at[what] = now
        return True

    def _send(self, *lines: str) -> None:
        if not self._address or not lines:
            return
        flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            with socket.socket(socket.AF_UNIX, flags) as sender:
                sender.connect(self._address)
                sender.send("\n".join(lines).encode())
        except OSError as error:
            log.warning("not-notified", extra={"error": problem_of(error)})


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Return the timeout of systemd's watchdog in seconds; 0 without one."""
    ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if ours and microseconds.isdecimal() else 0.0
