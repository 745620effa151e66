"""Which Nodes are marked because their daemon is silent: those, and never all because we were."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.service.kinds import OF_EXTENDER
from nri_policy.cluster.service.node_health import PERIOD, NodeHealth
from nri_policy.cluster.service.service import Service
from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.readiness import CONDITION, NAMESPACE, SILENT, TAINT, WHILE_AWAY, condition_of
from tests.support.cluster_api import ClusterAPI
from tests.support.patience import HANGS

Object = dict[str, Any]


class World:
    """Nodes with daemons that renew their Leases, and the service."""

    def __init__(self, api: ClusterAPI, client: Client) -> None:
        self.api = api
        self.time, self.leads = 0.0, True
        self.health = NodeHealth(
            client, lambda: self.leads, Clock(now=lambda: self.time, date=lambda: 0.0)
        )

    async def node(self, name: str, wants: str = "taint") -> None:
        status = {"conditions": [{"type": CONDITION, "status": "True"}]}
        await self.api.put("nodes", {"metadata": {"name": name}, "spec": {}, "status": status})
        metadata = {"name": name, "namespace": NAMESPACE, "annotations": {WHILE_AWAY: wants}}
        await self.api.put("leases", {"metadata": metadata})

    async def renew(self, names: Iterable[str]) -> None:
        for name in names:
            await self.api.put("leases", self.api.objects["leases"][f"{NAMESPACE}/{name}"])

    async def advance(self, seconds: float, alive: Iterable[str] = ()) -> None:
        """Let time pass; those *alive* renew their Leases."""
        end = self.time + seconds
        while self.time < end:
            self.time += PERIOD
            await self.renew(alive)
            await self.health.look()

    @property
    def tainted(self) -> set[str]:
        return {
            name
            for name, node in self.api.objects["nodes"].items()
            if any(each["key"] == TAINT for each in node["spec"].get("taints") or ())
        }


@asynccontextmanager
async def world(folder: Path, *names: str) -> AsyncIterator[World]:
    async with ClusterAPI(folder) as api:
        connect = access(api.kubeconfig)
        assert connect is not None
        client = Client(connect)
        made = World(api, client)
        for name in names:
            await made.node(name)
        yield made
        await client.close()


async def test_a_node_whose_daemon_is_silent_for_a_minute_is_tainted(tmp_path: Path) -> None:
    async with world(tmp_path, "a", "b", "c") as here:
        await here.advance(SILENT, "abc")
        await here.advance(SILENT - PERIOD, "ab")
        assert here.tainted == set()
        await here.advance(PERIOD, "ab")
        assert here.tainted == {"c"}
        (taint,) = here.api.objects["nodes"]["c"]["spec"]["taints"]
        assert taint == {"key": TAINT, "effect": "NoSchedule"}, "it evicts nobody"


async def test_a_node_is_marked_once_and_again_when_its_daemon_had_come_back(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, "a", "b", "c") as here:
        await here.advance(2 * SILENT, "ab")
        asked = len(here.api.requests)
        await here.advance(SILENT, "ab")
        assert {path for method, path, _ in here.api.requests[asked:]} == {
            f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
        }
        here.api.objects["nodes"]["c"]["spec"] = {}  # its daemon has taken it away
        await here.advance(PERIOD, "abc")
        await here.advance(2 * SILENT, "ab")
        assert here.tainted == {"c"}


async def test_only_what_a_daemon_wants_is_written(tmp_path: Path) -> None:
    async with world(tmp_path, "a", "b", "c", "d") as here:
        await here.node("c", "condition")
        await here.node("d", "")
        await here.node("other")
        del here.api.objects["leases"][f"{NAMESPACE}/other"]
        await here.node("quiet")
        await here.advance(2 * SILENT, ["a", "b", "quiet"])
        assert here.tainted == set()
        shown = {
            name: condition_of(node)["status"] for name, node in here.api.objects["nodes"].items()
        }
        assert shown == {name: "Unknown" if name == "c" else "True" for name in shown}


async def test_a_single_node_is_marked_too(tmp_path: Path) -> None:
    async with world(tmp_path, "a") as here:
        await here.advance(2 * SILENT)
        assert here.tainted == {"a"}


@pytest.mark.parametrize("dead", ["abcd", "abc"])
async def test_many_that_fall_silent_at_once_are_not_marked(
    tmp_path: Path, dead: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, *"abcd") as here:
        await here.advance(SILENT, "abcd")
        alive = set("abcd") - set(dead)
        await here.advance(5 * SILENT, alive)
        assert here.tainted == set()
        assert len(caplog.messages) == 1, "and it is said once"
        await here.advance(PERIOD, set("abcd") - {"a"})
        await here.advance(PERIOD, set("abcd") - {"a"})
        assert here.tainted == {"a"}, "those that come back are alive; the one that does not is not"


async def test_half_of_the_nodes_can_die_one_after_the_other(tmp_path: Path) -> None:
    async with world(tmp_path, *"abcd") as here:
        for left in ("abc", "ab", "a", ""):
            await here.advance(2 * SILENT, left)
        assert here.tainted == set("abcd")


async def test_after_an_outage_all_have_a_minute(tmp_path: Path) -> None:
    """Nobody could renew then; a daemon that was dead before is found a minute later."""
    async with world(tmp_path, "a", "b", "c") as here:
        await here.advance(SILENT, "abc")
        here.api.refuse = lambda _method, _path: 503
        await here.advance(10 * SILENT)
        here.api.refuse = lambda _method, _path: 0
        await here.advance(SILENT - PERIOD)
        assert here.tainted == set()
        await here.advance(2 * SILENT, "ab")
        assert here.tainted == {"c"}


async def test_after_we_were_away_ourselves_all_have_a_minute(tmp_path: Path) -> None:
    """A process that was frozen reads the same Leases at once, before anyone can renew."""
    async with world(tmp_path, "a") as here:
        await here.advance(SILENT, "a")
        here.time += 10 * SILENT
        await here.health.look()
        assert here.tainted == set()


async def test_a_new_leader_gives_all_a_minute_and_others_do_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, "a") as here:
        here.leads = False
        await here.advance(10 * SILENT)
        assert here.api.requests == []
        here.leads = True
        await here.advance(SILENT)
        assert here.tainted == set()
        await here.advance(PERIOD)
        assert here.tainted == {"a"}


async def test_a_daemon_that_comes_back_at_the_last_moment_is_spared(tmp_path: Path) -> None:
    async with world(tmp_path, "a") as here:
        get = here.health._client.get

        async def late(*arguments: Any, **options: Any) -> Object:
            await here.renew("a")
            return await get(*arguments, **options)

        here.health._client.get = late  # type: ignore[method-assign]
        await here.advance(SILENT + PERIOD)
        assert here.tainted == set()


async def test_a_node_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    async with world(tmp_path, "a") as here:
        here.api.refuse = lambda method, _path: 500 if method == "PATCH" else 0
        await here.advance(2 * SILENT)
        here.api.refuse = lambda _method, _path: 0
        await here.advance(PERIOD)
        assert here.tainted == {"a"}


async def test_a_node_that_went_is_forgotten(tmp_path: Path) -> None:
    async with world(tmp_path, "a", "b", "c") as here:
        await here.advance(SILENT, "abc")
        del here.api.objects["nodes"]["c"]
        await here.advance(2 * SILENT, "ab")
        await here.api.delete("leases", f"{NAMESPACE}/c")
        await here.advance(PERIOD, "ab")
        assert here.tainted == set()
        assert "c" not in here.health._seen


@pytest.mark.parametrize("wanted", [True, False])
async def test_the_service_looks_for_silent_daemons_where_it_is_told_to(
    tmp_path: Path, wanted: bool
) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    async with ClusterAPI(tmp_path) as api:
        connect = access(api.kubeconfig)
        assert connect is not None
        client = Client(connect)
        service = Service(ClusterSettings(), client, readiness=wanted)
        running = asyncio.create_task(service.run())
        try:
            async with asyncio.timeout(HANGS):
                while service.watch.problem(*OF_EXTENDER) or (  # noqa: ASYNC110 - nobody tells
                    wanted and leases not in {path for _, path, _ in api.requests}
                ):
                    await asyncio.sleep(0.005)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await client.close()
        assert (leases in {path for _, path, _ in api.requests}) is wanted
