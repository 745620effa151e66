"""The Kubernetes events of pods about the decisions on their containers."""

from __future__ import annotations

import asyncio
from asyncio import TaskGroup
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nri_policy.engine.event import Created
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.events import ClusterEvent, EventRecorder
from nri_policy.observability.decision_events import DecisionEvents
from nri_policy.proto.nri_pb2 import LinuxCPU, LinuxResources
from nri_policy.simulation.containers import CRIError
from nri_policy.workload.pod import AmountsError
from tests.support.apiserver import APIServer
from tests.support.containers import member
from tests.support.daemon import pod, served

LARGE = LinuxResources(cpu=LinuxCPU(shares={"value": 99 * 1024}, quota={"value": 9_900_000}))


async def said(folder: Path, **spec: Any) -> list[ClusterEvent]:
    """Return the events of a life: one is placed, one is refused, and then a resize is."""
    events: list[ClusterEvent] = []
    async with served(folder, record=events.append, **spec) as node:
        await node.start(pod("own", "2"), pod("large", "99", namespace="shop"))
        with suppress(CRIError):
            await node.runtime.update_container(node.runtime.container("own/main"), LARGE)
        await node.runtime.stop_container(node.runtime.container("own/main"))
        await asyncio.sleep(0)
        uids = {each.manifest.metadata.uid for each in node.runtime.pods}
        assert {each.about.uid for each in events} <= uids
    return events


async def test_all_decisions_are_said_in_one_line_each(tmp_path: Path) -> None:
    placed, refused, resized = await said(tmp_path, events="all")
    assert (placed.reason, placed.warning) == ("Placed", False)
    assert (placed.about.namespace, placed.about.name) == ("default", "own")
    assert placed.text.startswith("container main: placed: 2 exclusive CPUs on NUMA node #")
    assert ", because " in placed.text
    assert placed.text.endswith("; CPUs 4-5; memory nodes 1")
    assert (refused.reason, refused.warning) == ("FailedPlacement", True)
    assert (refused.about.namespace, refused.about.name) == ("shop", "large")
    assert refused.text.startswith("container main: no pool has room for 99 exclusive CPUs")
    assert (resized.reason, resized.about.name) == ("FailedResize", "own")
    assert not any("\n" in each.text for each in (placed, refused, resized))


async def test_refusals_alone_are_said_where_only_they_are_wanted(tmp_path: Path) -> None:
    reasons = [each.reason for each in await said(tmp_path, events="refusals")]
    assert reasons == ["FailedPlacement", "FailedResize"]


@pytest.mark.parametrize("spec", [{}, {"events": "all", "pinCPU": False, "pinMemory": False}])
async def test_nothing_is_said_unasked_or_of_what_is_only_pins_nothing(
    tmp_path: Path, spec: dict[str, Any]
) -> None:
    assert await said(tmp_path, **spec) == []


async def test_an_api_server_gets_the_events(tmp_path: Path) -> None:
    async with APIServer(tmp_path) as server:
        connect = access(server.kubeconfig)
        assert connect is not None
        client = Client(connect)
        events = EventRecorder(client, "node-a")
        async with (
            served(tmp_path, events="all", record=events.record) as node,
            TaskGroup() as group,
        ):
            running = group.create_task(events.run())
            await node.start(pod("own", "2"), pod("large", "99", namespace="shop"))
            await server.until(lambda: len(server.events) == 2)
            running.cancel()
        await client.close()
    created = sorted(server.events.values(), key=lambda each: str(each["reason"]))
    assert [(each["reason"], each["type"]) for each in created] == [
        ("FailedPlacement", "Warning"),
        ("Placed", "Normal"),
    ]
    assert created[0]["involvedObject"]["namespace"] == "shop"
    assert created[1]["message"].startswith("container main: placed: 2 exclusive CPUs on NUMA node")


async def test_a_refusal_is_said_in_its_own_words(tmp_path: Path) -> None:
    said: list[ClusterEvent] = []
    async with served(tmp_path, events="all") as node:
        events = DecisionEvents(said.append)
        events.observe(
            Created(container=member("shop/web/main")),
            AmountsError("no such amount"),
            node.daemon.node.view,
        )
        assert [each.text for each in said] == ["container main: no such amount"]
