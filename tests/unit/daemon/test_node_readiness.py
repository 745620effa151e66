"""What a daemon writes to its Node: when it is ready, and no more than it has to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.control.client import connected
from nri_policy.daemon.node_readiness import GRACE, LOOK, NodeReadiness
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Reconfigured, Stopped
from nri_policy.engine.grant import Decision
from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.readiness import NAMESPACE, RENEW, SILENT, TAINT, WHILE_AWAY, condition_of
from nri_policy.node import view_of
from nri_policy.nrt.publisher import PublishError, Trouble, WriteResult
from nri_policy.settings import Readiness as Wanted
from tests.support import nodes
from tests.support.cluster_api import ClusterAPI
from tests.support.daemon import served
from tests.support.patience import HANGS

Object = dict[str, Any]

OURS = {"key": TAINT, "effect": "NoSchedule"}
OTHER = {"key": "example.com/other", "effect": "NoSchedule"}
ALL = Wanted(taint=True, condition=True, while_away=True)
VIEW = view_of(Engine(nodes.machine(nodes.SMALL), nodes.settings()))
LEASE = f"{NAMESPACE}/a"


class World:
    """A Node in a cluster, and a daemon on it."""

    def __init__(self, api: ClusterAPI, client: Client, wanted: Wanted) -> None:
        self.api, self.client, self.wanted = api, client, wanted
        self.time, self.missing = 0.0, ""
        self.daemon = self.start()

    def start(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> NodeReadiness:
        return NodeReadiness(
            self.client,
            "a",
            wanted=lambda: self.wanted,
            missing=lambda: self.missing,
            clock=Clock(now=lambda: self.time, date=lambda: self.time, sleep=sleep),
            delay=lambda failures: 10.0 * failures,
        )

    async def advance(self, seconds: float) -> list[str]:
        """Let time pass, second by second; return what was asked of the API server."""
        before = len(self.api.requests)
        for _ in range(int(seconds)):
            self.time += 1
            await self.daemon.step()
        return [f"{method} {path}" for method, path, _ in self.api.requests[before:]]

    @property
    def node(self) -> Object:
        return self.api.objects["nodes"]["a"]

    @property
    def taints(self) -> list[Object]:
        return self.node["spec"].get("taints") or []

    async def taint(self, *taints: Object) -> None:
        await self.api.put("nodes", self.node | {"spec": {"taints": [*taints]}})

    @property
    def ready(self) -> tuple[str, str]:
        found = condition_of(self.node)
        return found.get("status", ""), found.get("message", "")


@asynccontextmanager
async def world(folder: Path, wanted: Wanted) -> AsyncIterator[World]:
    async with ClusterAPI(folder) as api:
        metadata = {"name": "a", "uid": "u"}
        await api.put("nodes", {"metadata": metadata, "spec": {"taints": [OTHER, OURS]}})
        connect = access(api.kubeconfig)
        assert connect is not None
        client = Client(connect)
        yield World(api, client, wanted)
        await client.close()


async def test_the_taint_stays_until_the_daemon_is_ready(tmp_path: Path) -> None:
    async with world(tmp_path, Wanted(taint=True)) as here:
        here.missing = "runtime: none"
        await here.advance(300)
        assert here.taints == [OTHER, OURS]
        assert [*here.daemon.problems()] == [
            "readiness: the Node is not told that this daemon is ready: runtime: none"
        ]
        here.missing = ""
        await here.advance(1)
        assert here.taints == [OTHER]
        assert [*here.daemon.problems()] == []


async def test_without_the_settings_nobody_is_asked(tmp_path: Path) -> None:
    async with world(tmp_path, Wanted()) as here:
        assert await here.advance(700) == []
        assert here.taints == [OTHER, OURS]


async def test_it_rests_until_the_settings_ask_for_something(tmp_path: Path) -> None:
    slept = asyncio.Event()

    async def sleep(_: float) -> None:
        slept.set()
        await asyncio.Event().wait()

    async with world(tmp_path, Wanted()) as here:
        here.daemon = here.start(sleep)
        following = asyncio.create_task(here.daemon.run())
        await asyncio.sleep(0)
        here.daemon.observe(Stopped(container_id="any"), Decision(), VIEW)
        await asyncio.sleep(0)
        assert (slept.is_set(), here.api.requests) == (False, [])
        here.wanted = Wanted(taint=True)
        here.daemon.observe(Reconfigured(settings=nodes.settings()), Decision(), VIEW)
        await asyncio.wait_for(slept.wait(), HANGS)
        assert here.taints == [OTHER]
        following.cancel()
        await asyncio.wait({following})


async def test_an_idle_daemon_looks_at_its_node_every_ten_minutes(tmp_path: Path) -> None:
    async with world(tmp_path, Wanted(taint=True)) as here:
        await here.advance(10)
        assert await here.advance(LOOK) == ["GET /api/v1/nodes/a"]
        await here.taint(OURS)  # by hand
        await here.advance(LOOK)
        assert here.taints == []


async def test_the_condition_follows_the_daemon_after_a_while(tmp_path: Path) -> None:
    """A daemon registers again now and then, and is away for a second or two."""
    async with world(tmp_path, Wanted(condition=True)) as here:
        here.missing = "runtime: none"
        await here.advance(1)
        assert here.ready == ("False", "runtime: none")
        assert here.taints == [OTHER, OURS], "it is not asked to touch the taint"
        here.missing = ""
        await here.advance(1)
        assert here.ready[0] == "True"
        here.missing = "runtime: gone"
        assert await here.advance(GRACE - 2) == []
        await here.advance(3)
        assert here.ready == ("False", "runtime: gone")


async def test_the_lease_is_renewed_while_the_daemon_is_ready_and_goes_with_the_setting(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, ALL) as here:
        await here.advance(1)
        lease = here.api.objects["leases"][LEASE]
        assert lease["metadata"]["annotations"] == {WHILE_AWAY: "taint,condition"}
        assert lease["metadata"]["ownerReferences"][0]["uid"] == "u"
        await here.advance(2 * SILENT)
        asked = await here.advance(5 * RENEW)
        assert len(asked) == 5, "of an idle daemon nothing else"
        assert {each.split()[0] for each in asked} == {"PATCH"}
        here.missing = "runtime: gone"
        assert await here.advance(GRACE - 1) == []
        here.missing = ""
        here.wanted = Wanted(taint=True)
        await here.advance(2 * RENEW)
        assert LEASE not in here.api.objects["leases"]


async def test_a_daemon_that_is_late_looks_for_what_was_written_meanwhile(tmp_path: Path) -> None:
    """The service may mark the node just when the daemon is back."""
    async with world(tmp_path, ALL) as here:
        await here.advance(3 * SILENT)
        here.time += SILENT
        await here.advance(2)
        await here.taint(OTHER, OURS)
        await here.advance(RENEW)
        assert here.taints == [OTHER]
        here.daemon = here.start()
        await here.taint(OURS)
        await here.advance(1)
        assert here.taints == [], "a new one looks at once"


@pytest.mark.parametrize("code", [403, 409, 429, 500])
async def test_what_is_refused_is_said_and_tried_again(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, ALL) as here:
        here.api.refuse = lambda method, _path: code if method != "GET" else 0
        await here.advance(60)
        (problem,) = here.daemon.problems()
        assert str(code) in problem
        assert ("configs/kustomize/readiness" in problem) is (code == 403)
        assert len([each for each in caplog.messages if "readiness-not-written" in each]) == 2
        here.api.refuse = lambda _method, _path: 0
        await here.advance(60)
        assert here.taints == [OTHER]
        assert [*here.daemon.problems()] == []


async def test_a_server_that_is_away_is_waited_for(tmp_path: Path) -> None:
    async with world(tmp_path, ALL) as here:
        await here.api.stop()
        await here.advance(5)
        assert [*here.daemon.problems()] != []
        await here.api.start()
        await here.advance(60)
        assert here.taints == [OTHER]


async def test_without_a_cluster_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    alone = NodeReadiness(None, "a", wanted=lambda: ALL, missing=str)
    for _ in range(3):
        await alone.step()
    assert [*alone.problems()] == [
        "readiness: no cluster is known: neither in a pod nor --kubeconfig"
    ]
    assert len(caplog.messages) == 1


async def test_a_daemon_that_is_stopped_for_good_is_not_missed(tmp_path: Path) -> None:
    async with world(tmp_path, ALL) as here:
        await here.advance(1)
        await here.daemon.leave()
        assert LEASE not in here.api.objects["leases"]


class Sink:
    """A place that takes an object when it is let, or never has the kind."""

    name = "the cluster"

    def __init__(self, *, known: bool = True) -> None:
        self.open = asyncio.Event()
        self.known = known
        self.asked = asyncio.Event()

    async def put(self, new: Object, *, fresh: bool) -> WriteResult:
        del new, fresh
        self.asked.set()
        if not self.known:
            raise PublishError(Trouble.NO_CRD, "no kind")
        await self.open.wait()
        return WriteResult()

    async def is_gone(self) -> bool:
        return False

    async def remove(self) -> None: ...


async def test_a_daemon_is_ready_when_it_is_synchronized_and_has_published(tmp_path: Path) -> None:
    async with served(tmp_path, listening=False) as node:
        sink = Sink()
        async with node.daemon.topology.publishing([sink]):
            await sink.asked.wait()
            assert node.daemon._not_ready() == "topology: not published yet to the cluster"
            sink.open.set()
            while node.daemon._not_ready():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
        await node.runtime.__aexit__()
        while not node.daemon._not_ready():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        assert node.daemon._not_ready().startswith("runtime: ")


async def test_a_cluster_without_the_kind_has_nothing_to_wait_for(tmp_path: Path) -> None:
    async with (
        served(tmp_path, listening=False) as node,
        node.daemon.topology.publishing([Sink(known=False)]),
    ):
        while node.daemon._not_ready():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


async def test_status_says_what_is_not_in_force(tmp_path: Path) -> None:
    def notices(socket: Path) -> tuple[str, ...]:
        with connected(socket) as client:
            return client.status().notices

    async with served(tmp_path, readiness={"taint": True}) as node:
        await node.daemon.readiness.step()
        shown = await asyncio.to_thread(notices, node.socket)
        assert any("no cluster is known" in each for each in shown)
