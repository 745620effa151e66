"""Rooms as a runtime meets them: a pod's resize, its quota, and what containers are told."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from nri_policy.cli.node.criteria_table import explain
from nri_policy.delivery import pod_quota_records, pod_quotas
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.report import answer_report, explanation_report
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.containers import CRIError
from tests.support import rooms
from tests.support.daemon import Served, pod, served
from tests.unit.delivery.test_pod_quotas import Host, until

NEW = "2.3.0"  # the first of containerd that says when a pod is resized


def shop(name: str = "shop", *, main: str = "2", log: str = "1", **more: Any) -> dict[str, Any]:
    """Return the manifest of a pod with a room: main has a slice, log shares the rest."""
    prefer = {"prefer-shared-cpus.resource-policy.nri.io/container.log": "true"}
    manifest = pod(name, main, annotations={**rooms.ROOM, **prefer}, **more)
    (first,) = manifest["spec"]["containers"]
    side = {**first, "name": "log", "resources": {"limits": {"cpu": log, "memory": "1Mi"}}}
    manifest["spec"]["containers"] = [first, side]
    return manifest


def room(it: Served) -> CPUSet:
    """Return the CPUs of the only room."""
    (found,) = it.daemon.node.view.rooms.values()
    return found.grant.exclusive


async def at_once(_seconds: float) -> None:
    """Sleep no time."""


def cpus(it: Served, name: str) -> CPUSet:
    """Return the CPUs that the policy has decided on for a container."""
    (found,) = [
        each
        for each in it.daemon.node.view.placed.values()
        if each.container.full_name == f"default/{name}"
    ]
    return it.daemon.node.view.cpus(found)


def change(cpu: int) -> ResourceChange:
    amounts = Amounts({"cpu": cpu})
    return ResourceChange(requests=amounts, limits=amounts)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_quota_records, "LOOK", 0.001)
    monkeypatch.setattr(pod_quotas, "MAX_WAIT", 600.0)


async def test_a_pod_s_resize_comes_before_its_container_s_and_makes_room(tmp_path: Path) -> None:
    async with served(tmp_path, version=NEW) as it:
        assert not await it.start(shop())
        before, own = room(it), cpus(it, "shop/main")
        await it.runtime.resize(it.runtime.pod("shop"), "main", change(3000))
        assert before < room(it)
        assert own < cpus(it, "shop/main")
        assert cpus(it, "shop/log") == room(it) - cpus(it, "shop/main")
        await it.runtime.resize(it.runtime.pod("shop"), "main", change(1000))
        assert (len(room(it)), len(cpus(it, "shop/main"))) == (2, 1)


async def test_a_pod_that_cannot_grow_is_refused_before_its_container_hears(tmp_path: Path) -> None:
    async with served(tmp_path, version=NEW) as it:
        assert not await it.start(shop())
        before, main = room(it), cpus(it, "shop/main")
        with pytest.raises(CRIError, match="room of 3 CPUs cannot be resized to 100: "):
            await it.runtime.resize(it.runtime.pod("shop"), "main", change(99_000))
        assert (room(it), cpus(it, "shop/main")) == (before, main)


async def test_a_pod_has_no_quota_while_it_has_its_room(tmp_path: Path) -> None:
    host = Host()
    async with served(tmp_path, cgroups=host, onExit="widen") as it:
        assert not await it.start(shop())
        assert host.quota(it, "shop") == NO_QUOTA
        assert it.runtime.container("shop/main").quota == NO_QUOTA
        assert it.runtime.container("shop/log").quota == 100_000
        await it.daemon.leave()
        assert host.quota(it, "shop") == 300_000


async def test_the_kubelet_s_quota_stays_where_it_is_to_be_kept(tmp_path: Path) -> None:
    host = Host()
    async with served(tmp_path, cgroups=host, exclusiveQuota="keep") as it:
        assert not await it.start(shop())
        assert host.quota(it, "shop") == 300_000


async def test_containers_are_shown_their_slice_and_what_they_share(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        assert not await it.start(shop())
        view = it.daemon.node.view
        main, log = (
            view.exposed(it.runtime.container(f"shop/{each}").id) for each in ("main", "log")
        )
        assert main["EXCLUSIVE_CPUS"] == str(cpus(it, "shop/main"))
        assert "SHARED_CPUS" not in main
        assert log["SHARED_CPUS"] == str(cpus(it, "shop/log"))


async def test_a_room_ends_when_the_sandbox_stops(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        assert not await it.start(shop())
        for name in ("main", "log"):
            await it.runtime.stop_container(it.runtime.container(f"shop/{name}"))
        assert len(room(it)) == 3
        await it.runtime.stop_pod(it.runtime.pod("shop"))
        assert not it.daemon.node.view.rooms


async def test_a_room_ends_with_a_pod_whose_end_nobody_tells(tmp_path: Path) -> None:
    """As containerd, of a pod that it had before it was started last."""
    async with served(tmp_path, cgroups=SimulatedCgroups) as it:
        assert not await it.start(shop(), pod("other"))
        events, whole = it.daemon.events, it.runtime.pod("shop")
        await events.clear_rooms([whole.id])
        assert it.daemon.node.view.rooms, "it has tenants"
        for name in ("main", "log"):
            await it.runtime.delete_container(it.runtime.container(f"shop/{name}"))
        presence = it.daemon.auditor.orphans
        presence._clock = Clock(sleep=at_once)
        await presence.round()
        assert it.daemon.node.view.rooms, "its sandbox runs"
        whole.ready = False
        await presence.round()
        assert not it.daemon.node.view.rooms


async def test_a_burstable_pod_s_quota_goes_and_comes_back(tmp_path: Path) -> None:
    host = Host()
    manifest = pod("web", annotations=rooms.ROOM)
    (main,) = manifest["spec"]["containers"]
    main["resources"] = {"requests": {"cpu": 2}, "limits": {"cpu": 3}}
    async with served(tmp_path, cgroups=host, onExit="widen") as it:
        assert not await it.start(manifest)
        await until(lambda: host.quota(it, "web") == NO_QUOTA)
        await it.daemon.leave()
        assert host.quota(it, "web") == 300_000


async def test_explain_has_words_for_tenants(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        assert not await it.start(shop())
        view = it.daemon.node.view
        placed = view.placed[it.runtime.container("shop/log").id]
        report = replace(
            explanation_report(placed.explanation, placed.grant), answer=answer_report(view, placed)
        )
        console = Console(width=200, file=StringIO())
        for each in explain(report, why=True):
            console.print(each)
        assert isinstance(console.file, StringIO)
        text = console.file.getvalue()
        assert "in its pod's room on NUMA node #1" in text
        assert "room of 3: 2 main, 1 shared by log" in text
        assert "why here  NUMA nodes #1, #2 and #3 are equally good" in text
        assert "* NUMA node #1 1 2 1 CPU [1]" in " ".join(text.split())
        assert "The pools were compared for its pod's room of 3 CPUs." in text
