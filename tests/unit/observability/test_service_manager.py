from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.observability.service_manager import ServiceManager


class Receiver:
    """What systemd's end of the socket hears, and a clock."""

    def __init__(self, address: str) -> None:
        self.now = 1000.0
        self.environment = {"NOTIFY_SOCKET": address.replace("\0", "@")}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def manager(self, **environment: str) -> ServiceManager:
        return ServiceManager(self.environment | environment, Clock(now=lambda: self.now))

    def heard(self) -> list[str]:
        """Return the lines since the last call."""
        lines = []
        while True:
            try:
                lines += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return lines

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Receiver]:
    path = str(tmp_path / "notify")
    receiver = Receiver(path if request.param == "path" else f"\0nri-policy-test-{os.getpid()}")
    yield receiver
    receiver.close()


def test_ready_is_said_once_and_the_status_when_it_changes(receiver: Receiver) -> None:
    manager = receiver.manager()
    manager.beat(ready=True, status="8 pools")
    manager.beat(ready=True, status="8 pools")
    assert receiver.heard() == ["READY=1", "STATUS=8 pools"]
    manager.beat(ready=True, status="9 pools")
    assert receiver.heard() == ["STATUS=9 pools"]


def test_a_start_that_waits_asks_for_time_again_and_again_but_not_for_ever(
    receiver: Receiver,
) -> None:
    manager, heard = receiver.manager(), []
    for _ in range(400):
        manager.beat(ready=False, status="waiting")
        heard += [(receiver.now - 1000, line) for line in receiver.heard() if "EXTEND" in line]
        receiver.now += 1
    assert {line for _, line in heard} == {"EXTEND_TIMEOUT_USEC=30000000"}
    assert [at for at, _ in heard] == [*range(0, 300, 10)]


def test_the_watchdog_is_fed_at_half_its_time(receiver: Receiver) -> None:
    manager, fed = receiver.manager(WATCHDOG_USEC="30000000"), []
    for _ in range(60):
        manager.beat(ready=True, status="")
        fed += [receiver.now - 1000 for line in receiver.heard() if line == "WATCHDOG=1"]
        receiver.now += 1
    assert fed == [0, 15, 30, 45]
    assert manager.max_interval == 7.5


def test_a_watchdog_that_waits_for_another_process_is_not_fed(receiver: Receiver) -> None:
    manager = receiver.manager(WATCHDOG_USEC="30000000", WATCHDOG_PID="1")
    manager.beat(ready=True, status="")
    assert "WATCHDOG=1" not in receiver.heard()
    assert manager.max_interval == float("inf")


def test_a_reload_is_told_with_the_time_and_ends_ready(receiver: Receiver) -> None:
    manager = receiver.manager()
    manager.notify_reloading()
    manager.notify_reloaded()
    assert receiver.heard() == [], "it is not ready, and must not say so"
    manager.beat(ready=True, status="")
    receiver.heard()
    before = time.monotonic_ns() // 1000
    manager.notify_reloading()
    word, stamp = receiver.heard()
    assert word == "RELOADING=1"
    assert before <= int(stamp.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
    manager.notify_reloaded()
    manager.notify_stopping()
    assert receiver.heard() == ["READY=1", "STOPPING=1"]


def test_a_name_with_a_line_end_cannot_say_anything(receiver: Receiver) -> None:
    receiver.manager().beat(ready=True, status="last decision: a/b/c\nMAINPID=1\x1b[2J")
    assert receiver.heard() == ["READY=1", r"STATUS=last decision: a/b/c\nMAINPID=1\x1b[2J"]


def test_without_a_service_manager_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager({}, Clock(now=lambda: 0.0))
    manager.beat(ready=True, status="x")
    manager.notify_reloading()
    manager.notify_stopping()
    assert not caplog.records


def test_a_receiver_that_is_gone_or_full_is_a_warning_and_no_wait(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    manager = receiver.manager()
    for number in range(1000):
        manager.beat(ready=True, status=f"{number}" * 100)
    assert "event=not-notified" in caplog.text
    receiver.close()
    caplog.clear()
    manager.beat(ready=True, status="gone")
    assert "event=not-notified" in caplog.text
