"""Hardware that changes while settings are read again, on a daemon with the embedded runtime."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nri_policy.hardware.machine import Machine, MemoryKind
from tests.support import nodes
from tests.support.daemon import Served, pod, served
from tests.support.patience import HANGS


def test_a_machine_read_for_other_settings_does_not_take_the_place_of_theirs(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with served(tmp_path) as node:
            daemon = node.daemon
            known = daemon.node.view.layout.machine
            plugged, for_new_settings = nodes.machine(), nodes.machine()
            async with daemon.node.turn:
                reloading = asyncio.create_task(
                    daemon.events.reconfigure(settings=nodes.settings(), machine=for_new_settings)
                )
                await asyncio.sleep(0)
                plugging = asyncio.create_task(
                    daemon.events.reconfigure(machine=plugged, instead_of=known)
                )
                await asyncio.sleep(0)
            await asyncio.gather(reloading, plugging)
            assert daemon.node.view.layout.machine is for_new_settings
            await daemon.events.reconfigure(machine=plugged, instead_of=for_new_settings)
            assert daemon.node.view.layout.machine is plugged

    asyncio.run(run())


def test_a_machine_that_changes_while_it_is_read_for_new_settings_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = nodes.machine(), nodes.machine(f"{nodes.SMALL} offline=12-15")
    reading, unplugged = threading.Event(), threading.Event()
    kinds: list[Mapping[int, MemoryKind]] = []

    def discover(_: Path, *, memory_kinds: Mapping[int, MemoryKind]) -> Machine:
        kinds.append(memory_kinds)
        if len(kinds) > 1:
            return after
        reading.set()
        assert unplugged.wait(HANGS)
        return before

    monkeypatch.setattr("nri_policy.daemon.reload.discover", discover)
    new = nodes.settings(memoryKinds={"3": "pmem"})

    async def run() -> None:
        async with served(tmp_path, load=lambda: new) as node:
            reloading = asyncio.create_task(node.daemon.reloads.reload())
            await asyncio.to_thread(reading.wait, HANGS)
            known = node.daemon.node.view.layout.machine
            shrunk = nodes.machine(f"{nodes.SMALL} offline=12-15")
            await node.daemon.events.reconfigure(machine=shrunk, instead_of=known)
            unplugged.set()
            assert (await reloading).accepted
            assert node.daemon.node.view.layout.machine is after
            assert kinds == [new.memory_kinds] * 2

    asyncio.run(run())


@pytest.mark.parametrize("offline", ["2-15", "1-15"], ids=["shared CPUs", "only reserved CPUs"])
def test_who_lost_cpus_to_the_machine_stands_in_the_way_of_no_settings(
    offline: str, tmp_path: Path
) -> None:
    async def run() -> None:
        reserved = {"cpu": "cpuset:0"}
        source = [nodes.settings(reservedResources=reserved)]
        async with served(tmp_path, load=lambda: source[0], reservedResources=reserved) as node:
            daemon = node.daemon
            assert not await node.start(pod("big", "4"), pod("small", "2"))
            whole = daemon.node.view.layout.machine
            await daemon.events.reconfigure(
                machine=nodes.machine(f"{nodes.SMALL} offline={offline}"), instead_of=whole
            )
            before = {each: placed.grant for each, placed in daemon.node.view.placed.items()}
            assert not any(grant.exclusive for grant in before.values())

            source[0] = nodes.settings(reservedResources=reserved, log={"debug": ["nri"]})
            assert (await daemon.reloads.reload()).accepted
            after = {each: placed.grant for each, placed in daemon.node.view.placed.items()}
            assert after == before
            assert daemon.node.view.layout.settings.log.debug

            await daemon.events.reconfigure(
                machine=whole, instead_of=daemon.node.view.layout.machine
            )
            owned = [placed.grant.exclusive for placed in daemon.node.view.placed.values()]
            assert sorted(map(len, owned)) == [2, 4], "what comes back is theirs again"

    asyncio.run(run())


async def _starve(node: Served, offline: str) -> None:
    """Take CPUs from under a daemon, so that it cannot reserve what its settings ask for."""
    known = node.daemon.node.view.layout.machine
    await node.daemon.events.reconfigure(
        machine=nodes.machine(f"{nodes.SMALL} offline={offline}"), instead_of=known
    )
    assert node.daemon.node.view.layout.shortages


@pytest.mark.parametrize(
    "amounts",
    [
        {"reservedResources": {"cpu": 6}},
        {"reservedResources": {"cpu": 1}, "availableResources": {"cpu": "cpuset:8-15"}},
    ],
    ids=["reserved", "available"],
)
def test_what_the_machine_cannot_give_any_more_stands_in_the_way_of_no_other_settings(
    amounts: dict[str, Any], tmp_path: Path
) -> None:
    async def run() -> None:
        source = [nodes.settings(**amounts)]
        async with served(tmp_path, load=lambda: source[0], **amounts) as node:
            assert not await node.start(pod("small", "1"))
            await _starve(node, "4-15")
            before = {each: p.grant for each, p in node.daemon.node.view.placed.items()}
            source[0] = nodes.settings(**amounts, log={"debug": ["nri"]})
            outcome = await node.daemon.reloads.reload()
            assert outcome.accepted, outcome.reason
            layout = node.daemon.node.view.layout
            assert layout.settings.log.debug
            assert layout.shortages, "status says so still"
            assert {e: p.grant for e, p in node.daemon.node.view.placed.items()} == before

    asyncio.run(run())


def test_settings_that_ask_for_what_the_machine_has_lost_are_refused(tmp_path: Path) -> None:
    reserved = {"cpu": 6}

    async def run() -> None:
        source = [nodes.settings(reservedResources=reserved)]
        async with served(tmp_path, load=lambda: source[0], reservedResources=reserved) as node:
            await _starve(node, "4-15")
            source[0] = nodes.settings(reservedResources={"cpu": 5})
            outcome = await node.daemon.reloads.reload()
            assert not outcome.accepted
            assert "cannot reserve 5 CPUs" in outcome.reason
            source[0] = nodes.settings(reservedResources={"cpu": 2})
            assert (await node.daemon.reloads.reload()).accepted
            assert not node.daemon.node.view.layout.shortages

    asyncio.run(run())
