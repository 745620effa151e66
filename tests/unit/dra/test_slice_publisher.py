"""When the node's slice is written: by a clock of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nri_policy.dra.cpu_devices import Published, devices_of
from nri_policy.dra.resource_slice import CPU, dropped, faults, slice_name, slice_of
from nri_policy.dra.slice_publisher import (
    BURST,
    CHECK,
    INTERVAL,
    SETTLE,
    UNAVAILABLE,
    SlicePublisher,
)
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Stopped
from nri_policy.engine.state.layout import layout_of
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.node import Node
from nri_policy.workload.pod import Container
from tests.support import nodes, resources
from tests.support.apiserver import APIServer
from tests.support.clock import SleepingClock

from .waiting import until


@dataclass(slots=True, kw_only=True)
class Publishing:
    """A publisher whose attempts the test makes, by a clock of its own."""

    node: Node
    server: APIServer
    publisher: SlicePublisher
    time: float = 0.0
    wanted: bool = True
    slept: list[float] = field(default_factory=list)  # that would be longer than INTERVAL

    async def attempt(self) -> float:
        """Let it write what is due; return the seconds until it looks again."""
        return await self.publisher._attempt()

    async def sleep(self, seconds: float) -> None:
        """Wait for ever if that is longer than between two writes."""
        if seconds > INTERVAL:
            self.slept.append(seconds)
            await asyncio.Event().wait()

    async def create(self, container: Container) -> None:
        async with self.node.turn:
            self.node.handle(Created(container=container))

    async def stop(self, container: Container) -> None:
        async with self.node.turn:
            self.node.handle(Stopped(container_id=container.id))

    @property
    def written(self) -> int:
        return sum(each.method == "PATCH" for each in self.server.requests)


def _later(made: list[Publishing]) -> Callable[[float], Awaitable[None]]:
    async def sleep(seconds: float) -> None:
        await made[0].sleep(seconds)

    return sleep


@asynccontextmanager
async def publishing(folder: Path, **spec: Any) -> AsyncIterator[Publishing]:
    async with APIServer(folder) as server:
        server.components = ("dra",)
        server.resources.gates = resources.DEFAULT_GATES | {"DRAConsumableCapacity"}
        connect = access(server.kubeconfig)
        assert connect is not None
        client, node = Client(connect), Node(Engine(nodes.machine(), nodes.settings(**spec)))
        made: list[Publishing] = []
        publisher = SlicePublisher(
            node,
            client,
            name="node-a",
            wanted=lambda: made[0].wanted,
            clock=SleepingClock(now=lambda: made[0].time, sleep=_later(made)),
            delay=float,
        )
        made.append(Publishing(node=node, server=server, publisher=publisher))
        yield made[0]
        await client.close()


async def test_a_value_that_falls_is_written_at_once_and_one_that_rises_settles(
    tmp_path: Path,
) -> None:
    async with publishing(tmp_path) as them:
        await them.attempt()
        assert them.written == 1
        assert await them.attempt() == CHECK
        them.time += 10
        owner = nodes.container(3000)
        await them.create(owner)
        await them.attempt()
        assert them.written == 2
        await them.stop(owner)
        them.time += INTERVAL
        assert await them.attempt() == SETTLE
        assert them.written == 2
        them.time += SETTLE
        await them.attempt()
        assert them.written == 3


async def test_many_falls_are_written_as_fast_as_one_every_two_seconds_on_average(
    tmp_path: Path,
) -> None:
    async with publishing(tmp_path) as them:
        await them.attempt()
        for _ in range(100):
            them.time += INTERVAL
            await them.create(nodes.container(100, 200))
            await them.attempt()
        assert BURST <= them.written <= BURST + 2 + 100 * INTERVAL / SETTLE


async def test_a_value_for_which_a_claim_was_refused_is_taken_back_at_once(tmp_path: Path) -> None:
    async with publishing(tmp_path) as them:
        pauses = [await them.attempt()]
        while pauses[-1] in {0.0, CHECK}:  # as many falls as may follow one another
            them.time += INTERVAL
            await them.create(nodes.container(1000))
            pauses.append(await them.attempt())
        written = them.written
        assert written == len(pauses) - 1
        them.publisher.hurry()
        await them.attempt()
        assert them.written == written + 1


async def test_an_unchanged_slice_is_applied_again_now_and_then_and_changes_nothing(
    tmp_path: Path,
) -> None:
    async with publishing(tmp_path) as them:
        await them.attempt()
        found = them.server.resources.one("resourceslices", slice_name("node-a"))
        them.time += CHECK
        await them.attempt()
        assert them.written == 2
        assert them.server.resources.one("resourceslices", slice_name("node-a")) == found


async def test_a_slice_that_is_not_wanted_is_deleted_once(tmp_path: Path) -> None:
    async with publishing(tmp_path) as them:
        await them.attempt()
        them.wanted = False
        await them.attempt()
        assert them.server.resources.one("resourceslices", slice_name("node-a")) is None
        requests = len(them.server.requests)
        await them.attempt()
        assert len(them.server.requests) == requests


async def test_while_no_slice_is_wanted_nothing_is_looked_at(tmp_path: Path) -> None:
    async with publishing(tmp_path) as them:
        them.wanted = False
        running = asyncio.create_task(them.publisher.run())
        await until(lambda: bool(them.slept))
        assert them.slept == [UNAVAILABLE - INTERVAL]
        assert not them.server.requests
        them.wanted = True
        them.publisher.ask()
        await until(lambda: bool(them.server.resources.one("resourceslices", slice_name("node-a"))))
        await until(lambda: any(r.query.get("watch") for r in them.server.requests))
        running.cancel()
        await asyncio.wait({running})


async def test_without_rights_it_is_asked_less_and_less(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with publishing(tmp_path) as them:
        them.server.forbidden = {"patch"}
        pauses = []
        for _ in range(8):
            pauses.append(await them.attempt())
            them.time += pauses[-1]
        assert pauses[-1] == 3600
        assert len(caplog.records) == 1
        assert "configs/kustomize/dra" in them.publisher.problem
        them.server.forbidden = set()
        await them.attempt()
        assert not them.publisher.problem


@pytest.mark.parametrize("cores", ["off", "require"])
def test_every_value_gives_a_slice_that_the_rules_accept(cores: str) -> None:
    layout = layout_of(nodes.machine(), nodes.settings(fullCores=cores))
    granule = 2 if cores == "require" else 1
    for cpus in range(0, 64, granule):
        values = [Published(device=e, cpus=cpus, granule=granule) for e in devices_of(layout)]
        made = slice_of(layout, values, "node-a", {})
        assert not [*faults(made)]
        assert not [*resources.invalid_slice(made)]
        assert bool(made["spec"]["devices"]) == bool(cpus)


def test_the_slice_of_16_numa_nodes_is_no_burden_to_the_cluster() -> None:
    layout = layout_of(nodes.machine("package:4 numa:4 core:2 pu:2"), nodes.settings())
    devices = devices_of(layout)
    values = [Published(device=each, cpus=128, granule=2) for each in devices]
    made = slice_of(layout, values, "a-node-of-a-large-cluster", {"uid": "u" * 36})
    assert len(made["spec"]["devices"]) == 16
    assert len(json.dumps(made)) <= 20_000


def test_what_is_wrong_with_a_slice_is_found_before_it_is_sent() -> None:
    device = {"name": "numa0", "allowMultipleAllocations": True}
    for policy in (
        None,
        {"default": "5"},
        {"default": "1", "validRange": {"min": "2"}},
        {"default": "1", "validRange": {"min": "1001m"}},
        {"default": "2", "validRange": {"min": "2", "step": "3"}},
        {"default": "3", "validRange": {"min": "2", "step": "2"}},
    ):
        capacity = {"value": "4", **({"requestPolicy": policy} if policy else {})}
        assert [*faults({"spec": {"devices": [{**device, "capacity": {CPU: capacity}}]}})], policy


def test_a_dropped_field_is_named() -> None:
    whole = {"name": "n", "allowMultipleAllocations": True, "capacity": {CPU: {"requestPolicy": 1}}}
    sent = {"spec": {"devices": [whole]}}
    assert dropped(sent, sent) == ()
    kept = {"spec": {"devices": [{"name": "n", "capacity": {CPU: {}}}]}}
    assert dropped(sent, kept) == ("allowMultipleAllocations", "requestPolicy")
    assert dropped(sent, {"spec": {}}) == ("allowMultipleAllocations", "requestPolicy")
