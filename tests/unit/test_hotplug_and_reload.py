"""Hardware that changes while settings are read again, on a daemon with the embedded runtime."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests import nodes
from tests.served import pod, served


def test_a_machine_read_for_other_settings_does_not_take_the_place_of_theirs(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with served(tmp_path) as node:
            daemon = node.daemon
            known = daemon.engine.layout.machine
            plugged, for_new_settings = nodes.machine(), nodes.machine()
            async with daemon._turn:
                reloading = asyncio.create_task(
                    daemon.reconfigure(settings=nodes.settings(), machine=for_new_settings)
                )
                await asyncio.sleep(0)
                plugging = asyncio.create_task(daemon.replace_machine(known, plugged))
                await asyncio.sleep(0)
            await asyncio.gather(reloading, plugging)
            assert daemon.engine.layout.machine is for_new_settings
            await daemon.replace_machine(for_new_settings, plugged)
            assert daemon.engine.layout.machine is plugged

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
            whole = daemon.engine.layout.machine
            await daemon.replace_machine(whole, nodes.machine(f"{nodes.SMALL} offline={offline}"))
            before = {each: placed.grant for each, placed in daemon.engine.state.placed.items()}
            assert not any(grant.exclusive for grant in before.values())

            source[0] = nodes.settings(reservedResources=reserved, log={"debug": ["nri"]})
            assert (await daemon.reload()).accepted
            after = {each: placed.grant for each, placed in daemon.engine.state.placed.items()}
            assert after == before
            assert daemon.engine.layout.settings.log.debug

            await daemon.replace_machine(daemon.engine.layout.machine, whole)
            owned = [placed.grant.exclusive for placed in daemon.engine.state.placed.values()]
            assert sorted(map(len, owned)) == [2, 4], "what comes back is theirs again"

    asyncio.run(run())
