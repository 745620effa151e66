"""Changes outside of events, with an embedded runtime that can deadlock as the original."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.foundation.units import parse_cpu
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.nri.errors import CallRefused
from nri_policy.settings import OnExit
from nri_policy.simulation.containers import CRIError
from tests.support import nodes
from tests.support.daemon import Served, pod, served
from tests.unit.simulation.scripted import ScriptedPlugin

CALLED = "2.4.0"  # a containerd that may be called at any time
REGISTERED = "2.1.9"  # one that must not

RESERVED = [{"cpu": "750m"}, {"cpu": "cpuset:8"}, {"cpu": "cpuset:4-5"}]


def check(it: Served) -> None:
    """Assert that the runtime has what was decided."""
    state = it.daemon.node.view
    decided = {each: (str(cpus), str(mems)) for each, (cpus, mems) in state.sent.items()}
    held = {each.id: (str(each.cpus), str(each.mems)) for each in it.runtime.containers}
    assert decided == {each: held[each] for each in decided}
    assert decided.keys() == state.placed.keys()


async def settle(it: Served) -> None:
    await it.daemon.flush_updates()
    await it.runtime.settled()


async def reload(it: Served, reserved: Mapping[str, Any]) -> None:
    await it.daemon.events.reconfigure(settings=nodes.settings(reservedResources=reserved))


@pytest.mark.parametrize(("version", "registrations"), [(CALLED, 1), (REGISTERED, 2)])
async def test_a_reload_is_told_by_the_runtimes_way(
    version: str, registrations: int, tmp_path: Path
) -> None:
    async with served(tmp_path, version=version) as it:
        await it.start(pod("own", "2"), pod("shared", "500m", shared=True), pod("guest"))
        await reload(it, {"cpu": "cpuset:8-9"})
        assert it.daemon.node.view.sent  # something else than what the runtime has
        with pytest.raises(AssertionError):
            check(it)
        await settle(it)
        check(it)
        assert it.runtime.synchronizations == registrations


@pytest.mark.parametrize("version", [CALLED, REGISTERED])
async def test_a_reload_goes_along_with_the_next_response(version: str, tmp_path: Path) -> None:
    async with served(tmp_path, version=version) as it:
        await it.start(pod("own", "2"), pod("shared", "500m", shared=True), pod("guest"))
        await reload(it, {"cpu": "cpuset:8-9"})
        await it.start(pod("next", "1"))
        check(it)
        assert it.runtime.synchronizations == 1


@pytest.mark.parametrize("version", [CALLED, REGISTERED])
async def test_what_goes_along_with_a_creation_that_fails_is_told_again(
    version: str, tmp_path: Path
) -> None:
    def veto(_: object) -> None:
        raise CallRefused("not on my watch")

    async with served(tmp_path, version=version) as it:
        await it.start(pod("own", "2"), pod("shared", "500m", shared=True), pod("guest"))
        async with ScriptedPlugin(it.runtime.socket_path, {"CreateContainer": veto}, index="95"):
            await it.runtime.synchronized(after=1)
            await reload(it, {"cpu": "cpuset:8-9"})
            (error,) = await it.start(pod("next", "1"))
            assert "not on my watch" in error
            check(it)


@pytest.mark.parametrize("version", [CALLED, REGISTERED])
async def test_500_containers_are_told_of_a_reload(version: str, tmp_path: Path) -> None:
    async with served(tmp_path, version=version) as it:
        for number in range(500):
            await it.start(pod(f"guest{number}"))
        await reload(it, {"cpu": "cpuset:1,4,8,12"})
        await settle(it)
        check(it)
        causes = {each.updated_by[-1].cause for each in it.runtime.containers}
        assert len(causes) == 1


@pytest.mark.parametrize("version", [CALLED, REGISTERED])
async def test_a_storm_of_changes_hangs_nobody(version: str, tmp_path: Path) -> None:
    chance = random.Random(1)
    async with served(tmp_path, version=version) as it:
        await it.start(*(pod(f"guest{number}") for number in range(4)))
        await it.start(*(pod(f"own{number}", "1") for number in range(4)))
        storming = True

        async def reloading() -> None:
            nonlocal storming
            for _ in range(60):
                with suppress(PlacementError):
                    await reload(it, chance.choice(RESERVED))
                await it.daemon.flush_updates()
            storming = False

        async def resizing() -> None:
            while storming:
                await asyncio.sleep(0)  # without a plugin, nothing else in here waits
                name = f"own{chance.randrange(4)}"
                amount = Amounts(cpu=parse_cpu(chance.choice(["1", "2", "1500m"])))
                change = ResourceChange(requests=amount, limits=amount)
                with suppress(CRIError):
                    await it.runtime.resize(it.runtime.pod(name), "main", change)

        async def coming_and_going() -> None:
            number = 0
            while storming:
                await asyncio.sleep(0)
                number += 1
                await it.start(pod(f"short{number}", "1"))
                await it.runtime.delete_pod(it.runtime.pod(f"short{number}"))

        async with asyncio.TaskGroup() as group:
            for storm in (reloading, resizing, coming_and_going):
                group.create_task(storm())
        await settle(it)
        check(it)
        assert it.runtime.plugins == ["90-nri-policy"]
        assert not await it.start(pod("after"))


@pytest.mark.parametrize("version", [CALLED, REGISTERED])
async def test_containers_run_anywhere_once_a_daemon_has_left_that_widens(
    version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keep = {"cpu.preserve.resource-policy.nri.io/pod": "true"}
    async with served(tmp_path, version=version, onExit=OnExit.WIDEN.value) as it:
        await it.start(pod("own", "2"), pod("guest"), pod("system", namespace="kube-system"))
        await it.start(pod("kept", "1", annotations=keep))
        await it.daemon.leave()
        await it.runtime.settled()
        for name in ("default/own", "default/guest", "kube-system/system"):
            container = it.runtime.container(f"{name}/main")
            assert (str(container.cpus), str(container.mems)) == ("0-15", "0-3")
        assert not it.runtime.container("kept/main").cpus
        (said,) = [each for each in caplog.records if each.msg == "widened"]
        assert (said.levelno, vars(said)["complete"]) == (logging.INFO, True)


async def test_who_comes_while_a_daemon_leaves_that_widens_runs_anywhere(tmp_path: Path) -> None:
    async with served(tmp_path, version=CALLED, onExit=OnExit.WIDEN.value) as it:
        await it.start(pod("old", "2"))
        leaving = asyncio.create_task(it.daemon.leave())
        await asyncio.sleep(0)
        await it.start(pod("new", "2"))
        amount = Amounts(cpu=parse_cpu("3"))
        change = ResourceChange(requests=amount, limits=amount)
        await it.runtime.resize(it.runtime.pod("old"), "main", change)
        await leaving
        await it.runtime.settled()
        for name in ("old", "new"):
            container = it.runtime.container(f"default/{name}/main")
            assert (str(container.cpus), str(container.mems)) == ("0-15", "0-3"), name


async def test_containers_keep_what_they_have_when_the_daemon_leaves(tmp_path: Path) -> None:
    async with served(tmp_path) as it:
        await it.start(pod("own", "2"), pod("guest"))
        await it.daemon.leave()
        check(it)
        assert it.runtime.synchronizations == 1
