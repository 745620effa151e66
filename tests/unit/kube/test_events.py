"""Events that an API server gets, and how many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.events import (
    BURST,
    INTERVAL,
    MAX_WAITING,
    SAME,
    ClusterEvent,
    EventRecorder,
    Subject,
)
from tests.support.apiserver import CUT, Answer, APIServer, Request
from tests.support.patience import HANGS

POD = Subject.pod("shop", "db-0", "uid-1")
OFTEN = ClusterEvent(about=POD, reason="CPUOverlap", text="two on CPU 3")


@dataclass
class Time:
    """A clock that every sleep moves on."""

    reading: float = 0.0
    slept: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.reading += seconds
        if seconds:
            self.slept.append(seconds)
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A cluster, and what creates events in it."""

    server: APIServer
    events: EventRecorder
    time: Time

    async def texts(self, number: int) -> list[str]:
        """Return the messages of the server's events, once there are so many."""
        await self.server.until(lambda: len(self.server.events) >= number)
        return [each["message"] for each in self.server.events.values()]


@asynccontextmanager
async def sending(folder: Path) -> AsyncIterator[Sent]:
    async with APIServer(folder) as server:
        connect = access(server.kubeconfig)
        assert connect is not None
        client, time = Client(connect, patience=2 * HANGS), Time()
        events = EventRecorder(
            client,
            "node-a",
            clock=Clock(
                now=lambda: time.reading,
                date=lambda: 1_800_000_000.0 + time.reading,
                sleep=time.sleep,
            ),
            delay=lambda failures: 100.0 * failures,
        )
        running = asyncio.create_task(events.run())
        try:
            yield Sent(server=server, events=events, time=time)
        finally:
            running.cancel()
            await client.close()


def numbered(number: int) -> ClusterEvent:
    return ClusterEvent(about=POD, reason="Test", text=f"event {number}")


async def test_an_event_of_a_pod_is_in_its_namespace(tmp_path: Path) -> None:
    async with sending(tmp_path) as sent:
        sent.events.record(OFTEN)
        await sent.texts(1)
        (event,) = sent.server.events.values()
    name = event["metadata"].pop("name")
    assert name.startswith("db-0.")
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "shop"},
        "involvedObject": {
            "kind": "Pod",
            "apiVersion": "v1",
            "namespace": "shop",
            "name": "db-0",
            "uid": "uid-1",
        },
        "type": "Warning",
        "reason": "CPUOverlap",
        "message": "two on CPU 3",
        "source": {"component": "nri-policy", "host": "node-a"},
        "firstTimestamp": "2027-01-15T08:00:00Z",
        "lastTimestamp": "2027-01-15T08:00:00Z",
        "count": 1,
    }


async def test_an_event_of_a_node_is_where_those_of_the_kubelet_are(tmp_path: Path) -> None:
    async with sending(tmp_path) as sent:
        long = "n" * 202
        for name in ("node-a", long):
            sent.events.record(
                ClusterEvent(
                    about=Subject.node(name), reason="Test", text="t" * 2000, warning=False
                )
            )
        assert await sent.texts(2) == ["t" * 1024] * 2
        first, second = sent.server.events.values()
    assert first["metadata"]["namespace"] == "default"
    assert first["involvedObject"] == {
        "kind": "Node",
        "apiVersion": "v1",
        "name": "node-a",
        "uid": "node-a",
    }
    assert first["type"] == "Normal"
    assert second["involvedObject"]["name"] == long
    assert len(second["metadata"]["name"]) < 253


async def test_the_same_event_is_created_once_in_ten_minutes(tmp_path: Path) -> None:
    async with sending(tmp_path) as sent:
        for _ in range(3):
            sent.events.record(OFTEN)
        sent.events.record(numbered(0))
        assert await sent.texts(2) == [OFTEN.text, "event 0"]
        sent.time.reading += SAME
        sent.events.record(OFTEN)
        assert await sent.texts(3) == [OFTEN.text, "event 0", OFTEN.text]


async def test_a_flood_is_let_through_slowly_and_the_oldest_make_way(tmp_path: Path) -> None:
    async with sending(tmp_path) as sent:
        for number in range(MAX_WAITING + 7):
            sent.events.record(numbered(number))
        texts = await sent.texts(BURST + 3)
        assert texts[: BURST + 3] == [f"event {number + 7}" for number in range(BURST + 3)]
        assert sent.time.slept[:3] == [INTERVAL] * 3
        await sent.texts(MAX_WAITING)
        assert sum(sent.time.slept) == (MAX_WAITING - BURST) * INTERVAL


async def test_a_server_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    async with sending(tmp_path) as sent:
        busy = Answer(status=429, body="later", headers={"Retry-After": "7"})
        answers = iter([CUT, Answer(status=500, body="no"), busy])
        sent.server.disturb = lambda _: next(answers, None)
        sent.events.record(OFTEN)
        sent.events.record(numbered(1))
        assert await sent.texts(2) == [OFTEN.text, "event 1"]
        assert sent.time.slept == [100.0, 200.0, 300.0]


async def test_an_attempt_whose_answer_was_lost_makes_no_second_event(tmp_path: Path) -> None:
    async with sending(tmp_path) as sent:
        created: list[Any] = []

        def lose(request: Request) -> Answer | None:
            if created:
                return None
            created.append(sent.server._event(request, "shop"))
            return CUT

        sent.server.disturb = lose
        sent.events.record(OFTEN)
        sent.events.record(numbered(1))
        assert await sent.texts(2) == [OFTEN.text, "event 1"]


async def test_a_refused_event_is_dropped_and_the_log_says_what_helps(
    tmp_path: Path, caplog: Any
) -> None:
    async with sending(tmp_path) as sent:
        sent.server.forbidden.add("create")
        sent.events.record(OFTEN)
        sent.events.record(numbered(0))
        await sent.server.until(lambda: len(sent.server.requests) == 2)
        sent.server.forbidden.clear()
        sent.events.record(numbered(1))
        assert await sent.texts(1) == ["event 1"]
    (line,) = [each for each in caplog.text.splitlines() if "event-not-created" in each]
    assert "about=shop/db-0" in line
    assert "rbac.yaml" in line
