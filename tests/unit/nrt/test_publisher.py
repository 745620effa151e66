"""When the publisher writes, how often, and what it tells of itself; nrt.md §0."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import nri_policy.node
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event, Reconfigured, Stopped
from nri_policy.node import Sandbox
from nri_policy.nrt.publisher import (
    CHECK_INTERVAL,
    INTERVAL,
    LAST_WRITE_TIMEOUT,
    LOG_AGAIN,
    REFRESH,
    Pace,
    PublicationPhase,
    PublishError,
    TopologyPublisher,
    Trouble,
    WriteResult,
    publishing,
)
from nri_policy.nrt.reading import Feed, Object
from nri_policy.report import PublicationReport
from nri_policy.workload.pod import Container, Resources
from tests.support import nodes
from tests.support.clock import SleepingClock, Steps


class Shelf:
    """A sink that keeps the objects put into it, or raises `error`."""

    name = "a shelf"

    def __init__(self) -> None:
        self.puts: list[Object] = []
        self.fresh: list[bool] = []
        self.error: Exception | None = None
        self.rivals: tuple[str, ...] = ()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self.removed = 0
        self.gone = False
        self.looks = 0

    async def is_gone(self) -> bool:
        if self.error is not None:
            raise self.error
        self.looks += 1
        return self.gone

    async def put(self, new: Object, *, fresh: bool) -> WriteResult:
        self.asked.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.puts.append(new)
        self.fresh.append(fresh)
        return WriteResult(version="v1alpha2", rivals=self.rivals)

    async def remove(self) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.removed += 1


class Node:
    """An engine whose state is published on a shelf, by a clock of steps."""

    def __init__(self, last_write_timeout: float = LAST_WRITE_TIMEOUT) -> None:
        self.engine = Engine(nodes.machine(), nodes.settings())
        self.node = nri_policy.node.Node(self.engine)
        self.steps = Steps()
        self.shelf = Shelf()
        self.synchronized = asyncio.Event()
        self.synchronized.set()
        self.feed = Feed(
            self.node,
            name="node-a",
            synchronized=self.synchronized,
        )
        pace = Pace(
            clock=SleepingClock(now=self.steps.now, sleep=self.steps.sleep),
            delay=lambda n: min(2.0**n, 60.0),
            last_write_timeout=last_write_timeout,
        )
        self.publisher = TopologyPublisher(self.feed, self.shelf, pace)
        self.keep = True

    @property
    def publication(self) -> PublicationReport:
        return self.publisher.publication

    @property
    def phase(self) -> str:
        return str(self.publication.phase)

    def start(self, container: Container) -> None:
        self._handle(Created(container=container))

    def stop(self, container: Container) -> None:
        self._handle(Stopped(container_id=container.id))

    def reconfigure(self, **spec: Any) -> None:
        self._handle(Reconfigured(settings=nodes.settings(**spec), machine=None))

    def _handle(self, event: Event) -> None:
        self.engine.handle(event)
        self.node.view = nri_policy.node.view_of(self.engine)
        self.feed.observe()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with publishing([self.publisher], keep=lambda: self.keep):
            await self.steps.settled()
            yield


def attribute(topology: Object, name: str) -> str | None:
    found = {each["name"]: each["value"] for each in topology["attributes"]}
    return found.get(name)


def available(topology: Object) -> list[str]:
    return [
        zone["resources"][0]["available"] for zone in topology["zones"] if zone["type"] == "Node"
    ]


async def test_the_first_write_comes_at_once_and_the_next_a_quarter_second_later() -> None:
    node = Node()
    async with node.running():
        assert len(node.shelf.puts) == 1
        node.start(nodes.container(2000))
        node.start(nodes.container(1000))
        await node.steps.advance(INTERVAL - 0.01)
        assert len(node.shelf.puts) == 1
        await node.steps.advance(0.01)
        assert len(node.shelf.puts) == 2
        assert available(node.shelf.puts[1]) == ["3", "2", "3", "4"]
        assert attribute(node.shelf.puts[1], "nri-policy/generation") == "2"


async def test_an_object_that_somebody_removed_is_written_again_within_a_minute() -> None:
    node = Node()
    async with node.running():
        await node.steps.advance(CHECK_INTERVAL)
        assert (len(node.shelf.puts), node.shelf.looks) == (1, 1)
        node.shelf.gone = True
        await node.steps.advance(CHECK_INTERVAL - 1.0)
        assert len(node.shelf.puts) == 1
        await node.steps.advance(1.0)
        assert node.shelf.fresh == [True, True]


async def test_a_look_that_fails_is_a_failure() -> None:
    node = Node()
    async with node.running():
        node.shelf.error = PublishError(Trouble.UNREACHABLE, "no answer")
        await node.steps.advance(CHECK_INTERVAL)
        assert node.phase == "failing"


async def test_nothing_is_written_before_the_runtime_has_told_its_containers() -> None:
    node = Node()
    node.synchronized.clear()
    async with publishing([node.publisher], keep=lambda: True):
        for _ in range(20):
            await asyncio.sleep(0)
        assert not node.shelf.puts
        assert node.publication.phase is PublicationPhase.WAITING
        node.synchronized.set()
        await node.steps.settled()
        assert len(node.shelf.puts) == 1


async def test_what_has_not_changed_is_not_written_until_ten_minutes_are_over() -> None:
    node = Node()
    async with node.running():
        container = nodes.container(1000)
        node.start(container)
        node.stop(container)
        await node.steps.advance(REFRESH - 1)
        assert len(node.shelf.puts) == 1
        assert node.publication.unchanged == 1
        await node.steps.advance(1)
        assert len(node.shelf.puts) == 2
        assert node.shelf.fresh == [True, True]
        assert attribute(node.shelf.puts[1], "nri-policy/generation") == "2"
        await node.steps.advance(REFRESH)
        assert len(node.shelf.puts) == 3


async def test_ten_thousand_decisions_in_a_minute_are_at_most_four_writes_a_second() -> None:
    node = Node()
    async with node.running():
        lasting = nodes.container(1000)
        for tick in range(600):
            for _ in range(8):
                passing = nodes.container(1000)
                node.start(passing)
                node.stop(passing)
            (node.stop if tick % 2 else node.start)(lasting)
            await node.steps.advance(0.1)
        decided = 600 * 17
        assert 100 <= len(node.shelf.puts) <= 1 + 60 / INTERVAL
    assert attribute(node.shelf.puts[-1], "nri-policy/generation") == str(decided)


async def test_pods_without_containers_change_the_fingerprint() -> None:
    node = Node()
    async with node.running():
        sandbox = Sandbox(
            namespace="ns1",
            name="n1",
            folder="",
            asked=Resources(),
            whole=None,
            overhead=0,
            counted=True,
        )
        async with node.node.turn:
            node.node.replace_pods({"pod": sandbox})
        node.feed.changed()
        await node.steps.advance(INTERVAL)
        prints = [attribute(put, "nodeTopologyPodsFingerprint") for put in node.shelf.puts]
        assert prints[0] == "pfp0v001ef46db3751d8e999"
        assert len({*prints}) == 2


async def test_while_nothing_can_be_written_decisions_go_on_and_the_latest_state_comes_next() -> (
    None
):
    node = Node()
    node.shelf.error = PublishError(Trouble.UNREACHABLE, "no route")
    async with node.running():
        for _ in range(3):
            node.start(nodes.container(1000))
            await node.steps.advance(9)
        assert node.phase == "failing"
        assert node.publication.trouble is Trouble.UNREACHABLE
        failed = node.publication.failed
        assert failed == 4  # at 0, 2, 6 and 14 seconds; the next one comes at 30
        node.shelf.error = None
        await node.steps.advance(3)
        assert available(node.shelf.puts[0]) == ["3", "3", "3", "3"]
        assert node.phase == "published"
        assert not node.publication.error
        assert node.publication.generation == 3


async def test_a_failed_write_is_made_up_for_even_if_all_is_as_it_was_before() -> None:
    """It may have arrived nevertheless."""
    node = Node()
    async with node.running():
        container = nodes.container(1000)
        node.start(container)
        node.shelf.error = PublishError(Trouble.UNREACHABLE, "no answer")
        await node.steps.advance(1)
        node.stop(container)
        node.shelf.error = None
        await node.steps.advance(2)
        assert len(node.shelf.puts) == 2
        assert available(node.shelf.puts[0]) == available(node.shelf.puts[1])


async def test_a_change_during_a_slow_write_is_written_after_it() -> None:
    node = Node()
    async with node.running():
        node.shelf.gate.clear()
        node.start(nodes.container(1000))
        advancing = asyncio.create_task(node.steps.advance(INTERVAL))
        for _ in range(200):
            await asyncio.sleep(0)
        node.start(nodes.container(1000))
        node.shelf.gate.set()
        await advancing
        await node.steps.advance(INTERVAL)
        assert [attribute(put, "nri-policy/generation") for put in node.shelf.puts] == list("012")


async def test_a_fault_of_ours_is_shown_and_does_not_end_publishing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    node.shelf.error = ZeroDivisionError("by design")
    async with node.running():
        assert (node.publication.trouble, node.phase) == (Trouble.FAULT, "failing")
        assert "by design" in node.publication.error
        assert "ZeroDivisionError" in caplog.text
        node.shelf.error = None
        await node.steps.advance(2)
        assert node.phase == "published"


async def test_a_throttled_write_waits_as_long_as_the_server_says() -> None:
    node = Node()
    node.shelf.error = PublishError(Trouble.THROTTLED, "later", wait=40.0)
    async with node.running():
        await node.steps.advance(39)
        assert node.publication.failed == 1
        await node.steps.advance(1)
        assert node.publication.failed == 2


async def test_the_log_has_each_trouble_once_in_five_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    missing = PublishError(Trouble.NO_CRD, "the cluster has no such kind")
    with caplog.at_level(logging.INFO):
        async with node.running():
            for minute in range(10):  # it comes and goes
                node.shelf.error = missing if minute % 2 else None
                node.start(nodes.best_effort())
                await node.steps.advance(60)
            node.shelf.error = PublishError(Trouble.FORBIDDEN, "403")
            node.start(nodes.best_effort())
            await node.steps.advance(LOG_AGAIN - 120)
    said = caplog.text.splitlines()
    assert [text.split()[0].partition("=")[2] for text in said[:-1]] == [
        *["nrt-published", "nrt-not-published"] * 2,
        "nrt-published",
        "nrt-not-published",
    ]
    assert [("no-crd" in text, "403" in text) for text in (said[1], said[-2])] == [
        (True, False),
        (False, True),
    ]
    assert node.publication.failed > len(said)


async def test_other_writers_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    node.shelf.rivals = ("exporter",)
    async with node.running():
        assert node.publication.rivals == ("exporter",)
        assert "exporter" in caplog.text
        node.shelf.rivals = ()
        node.start(nodes.container(1000))
        await node.steps.advance(INTERVAL)
        assert not node.publication.rivals


async def test_settings_switch_it_off_and_on() -> None:
    node = Node()
    async with node.running():
        node.reconfigure(agent={"nodeResourceTopology": False})
        await node.steps.advance(INTERVAL)
        assert (node.shelf.removed, node.publication.phase) == (1, PublicationPhase.OFF)
        node.start(nodes.container(1000))
        await node.steps.advance(REFRESH * 1.9)
        assert (node.shelf.removed, len(node.shelf.puts)) == (1, 1)
        node.reconfigure()
        await node.steps.advance(INTERVAL)
        assert (len(node.shelf.puts), node.publication.phase) == (2, PublicationPhase.PUBLISHED)


async def test_what_the_settings_do_not_want_is_never_touched() -> None:
    node = Node()
    node.reconfigure(agent={"nodeResourceTopology": False})
    async with node.running():
        await node.steps.advance(REFRESH)
    assert (node.shelf.puts, node.shelf.removed) == ([], 0)
    assert node.publication.phase is PublicationPhase.OFF


async def test_at_the_end_the_last_state_stays_and_is_marked() -> None:
    node = Node()
    async with node.running():
        node.start(nodes.container(1000))
    assert [attribute(put, "nri-policy/stopped") for put in node.shelf.puts] == [None, "true"]
    assert available(node.shelf.puts[1]) == ["3", "3", "4", "4"]


async def test_at_the_end_it_is_removed_where_containers_are_widened() -> None:
    node = Node()
    node.keep = False
    async with node.running():
        pass
    assert (len(node.shelf.puts), node.shelf.removed) == (1, 1)


async def test_an_end_without_an_answer_takes_no_longer_than_it_may(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node(last_write_timeout=0.01)
    async with node.running():
        node.shelf.gate.clear()
    assert "event=nrt-stop-failed" in caplog.text


async def test_a_fault_at_the_end_keeps_nothing_from_ending(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()
    async with node.running():
        node.shelf.error = KeyError("a bug of ours")
    assert "event=nrt-fault" in caplog.text


async def test_where_nothing_was_written_nothing_is_marked() -> None:
    node = Node()
    node.synchronized.clear()
    async with publishing([node.publisher], keep=lambda: True):
        pass
    assert node.shelf.puts == []


async def test_a_write_that_was_given_up_at_the_end_may_have_arrived() -> None:
    node = Node()
    node.shelf.gate.clear()
    async with publishing([node.publisher], keep=lambda: True):
        await node.shelf.asked.wait()
        node.shelf.gate.set()
    assert [attribute(put, "nri-policy/stopped") for put in node.shelf.puts] == ["true"]


async def test_a_reading_is_of_one_moment_and_waits_for_no_request() -> None:
    node = Node()
    async with node.node.turn:
        reading = await node.feed.read()
    assert reading.equals(await node.feed.read())


async def test_alignment_is_told_in_the_words_of_the_kubelet() -> None:
    node = Node()
    plain = (await node.feed.read()).object()
    assert attribute(plain, "topologyManagerPolicy") == "none"
    node.reconfigure(alignment="numa")
    aligned = (await node.feed.read()).object()
    assert attribute(aligned, "topologyManagerPolicy") == "single-numa-node"
    assert attribute(aligned, "topologyManagerScope") == "container"
    assert attribute(aligned, "TopologyPolicy") == "topology-aware"
    assert attribute(aligned, "nodeTopologyPodsFingerprintMethod") == ("with-exclusive-resources")


async def test_status_shows_a_publication_with_its_rivals() -> None:
    node = Node()
    node.shelf.rivals = ("exporter",)
    async with node.running():
        shown = node.publication
    assert (shown.to, shown.phase, shown.written) == ("a shelf", "published", 1)
    assert (shown.trouble, shown.rivals) == ("", ("exporter",))
    assert shown.written_at > 0
