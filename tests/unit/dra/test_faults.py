"""What becomes of a claim when the API server is away, or the daemon dies in between."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nri_policy.dra.cdi import CDIFiles
from nri_policy.dra.driver import PAUSE, TRIES, Driver
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Prepared, Unprepared
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.node import Node
from nri_policy.proto.dra_pb2 import (
    Claim,
    NodePrepareResourceResponse,
    NodePrepareResourcesRequest,
    NodeUnprepareResourcesRequest,
)
from nri_policy.workload.claim import DRIVER
from tests.support import nodes
from tests.support.apiserver import Answer, APIServer, Request
from tests.support.clock import SleepingClock
from tests.support.resources import claim

from .driver_cluster import GATES, cpu

ASKED = Claim(namespace="default", name="fast", uid="uid-fast")
AWAY = Answer(status=503, body="away")


@dataclass(slots=True)
class Holder:
    """Holds claims by an engine alone; the next events fail as a daemon that dies first would."""

    node: Node
    dies: bool = False

    async def prepare(self, event: Prepared) -> None:
        if self.dies:
            raise asyncio.CancelledError
        async with self.node.turn:
            self.node.handle(event)

    async def unprepare(self, event: Unprepared) -> None:
        async with self.node.turn:
            self.node.handle(event)


@dataclass(slots=True, kw_only=True)
class Faulty:
    """A driver, the API server that it asks, and its CDI files."""

    driver: Driver
    server: APIServer
    holder: Holder
    folder: Path
    ready: asyncio.Event
    slept: list[float] = field(default_factory=list)

    async def prepare(self) -> NodePrepareResourceResponse:
        answer = await self.driver.prepare(NodePrepareResourcesRequest(claims=[ASKED]))
        return answer.claims[ASKED.uid]

    @property
    def asked(self) -> int:
        return sum("resourceclaims" in each.path for each in self.server.requests)

    @property
    def files(self) -> dict[str, str]:
        return {each.name: each.read_text() for each in self.folder.iterdir()}


@asynccontextmanager
async def faulty(folder: Path) -> AsyncIterator[Faulty]:
    async with APIServer(folder) as server:
        server.components, server.resources.gates = ("dra",), GATES
        made = claim("fast", cpu("numa1"))
        made["metadata"]["uid"] = ASKED.uid
        pod = {"resource": "pods", "name": "web", "uid": "uid-web"}
        made["status"]["reservedFor"] = [pod]
        await server.resources.put("resourceclaims", made)
        connect = access(server.kubeconfig)
        assert connect is not None
        client, node = Client(connect), Node(Engine(nodes.machine(), nodes.settings()))
        ready, slept = asyncio.Event(), list[float]()
        ready.set()

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        holder, cdi = Holder(node), folder / "cdi"
        driver = Driver(
            node,
            holder,
            client,
            name="node-a",
            files=CDIFiles(cdi),
            ready=ready,
            clock=SleepingClock(sleep=sleep),
        )
        yield Faulty(
            driver=driver, server=server, holder=holder, folder=cdi, ready=ready, slept=slept
        )
        await client.close()


def away(times: int) -> Iterator[Answer | None]:
    yield from [AWAY] * times
    while True:
        yield None


async def test_claims_wait_until_the_daemon_knows_the_containers_of_the_node(
    tmp_path: Path,
) -> None:
    async with faulty(tmp_path) as them:
        assert not (await them.prepare()).error
        files = them.files
        assert files
        them.ready.clear()
        why = "the daemon does not know the containers of this node yet"
        assert (await them.prepare()).error == why
        given_back = await them.driver.unprepare(NodeUnprepareResourcesRequest(claims=[ASKED]))
        assert given_back.claims[ASKED.uid].error == why
        assert them.files == files


async def test_an_api_server_that_is_away_is_asked_again_and_at_last_given_up(
    tmp_path: Path,
) -> None:
    async with faulty(tmp_path) as them:
        answers = away(TRIES)

        def disturb(request: Request) -> Answer | None:
            return next(answers) if "resourceclaims" in request.path else None

        them.server.disturb = disturb
        answer = await them.prepare()
        assert answer.error
        assert (them.asked, them.slept) == (TRIES, [PAUSE] * (TRIES - 1))
        answers = away(TRIES - 1)
        assert not (await them.prepare()).error
        assert them.asked == 2 * TRIES


async def test_an_api_server_that_does_not_answer_is_given_up_before_the_kubelet_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_policy.dra.driver.PATIENCE", 0.0)  # seconds
    async with faulty(tmp_path) as them:
        assert (await them.prepare()).error == "no answer within 0 s"
        assert not them.holder.node.view.claims


async def test_whenever_the_daemon_dies_the_next_answer_is_the_same(tmp_path: Path) -> None:
    async with faulty(tmp_path) as them:
        them.holder.dies = True  # before the claim is stored
        await asyncio.wait({asyncio.create_task(them.prepare())})
        assert not them.holder.node.view.claims
        them.holder.dies = False
        answer, files = await them.prepare(), them.files
        assert [each.device_name for each in answer.devices] == ["numa1"]
        (name,) = files
        (them.folder / name).unlink()  # it is stored, and the file is not written yet
        assert await them.prepare() == answer
        (them.folder / name).write_text("{")  # half of it is
        assert await them.prepare() == answer
        assert them.files == files
        assert await them.prepare() == answer
        assert them.asked == 2, "what is held is answered without the API server"


async def test_a_file_of_another_user_says_nothing_of_what_claims_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with faulty(tmp_path) as them:
        await them.prepare()
        files, layout = CDIFiles(them.folder), them.holder.node.view.layout
        (stored,) = files.stored(layout)
        assert stored.grant.exclusive
        another = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: another)
        assert not [*files.stored(layout)]


async def test_a_start_leaves_the_files_of_claims_that_are_held_and_of_other_drivers(
    tmp_path: Path,
) -> None:
    async with faulty(tmp_path) as them:
        await them.prepare()
        kept = them.files
        (own,) = kept
        (them.folder / "gpu.json").write_text("{}")
        (them.folder / own).write_text("{")
        for name in (f"{DRIVER}-gone.json", f"{DRIVER}-uid-fast.tmp"):
            (them.folder / name).write_text("{")
        them.driver.restart()
        assert them.files == {**kept, "gpu.json": "{}"}
        assert json.loads(kept[own])["devices"]
        await them.driver.unprepare(NodeUnprepareResourcesRequest(claims=[ASKED]))
        assert [*them.files] == ["gpu.json"]
