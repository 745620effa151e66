"""Hardware that changes while settings are read again, on a daemon with the embedded runtime."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests import nodes
from tests.served import served


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
