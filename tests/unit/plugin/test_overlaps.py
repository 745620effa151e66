"""Which cpusets are looked at, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kube.events import Event
from nri_policy.plugin.overlaps import Overlaps
from nri_policy.simulation.cgroups import SimulatedCgroups
from tests.support.daemon import pod, served


class Counting:
    """Counts how often anybody was looked at."""

    def __init__(self, cpus: Mapping[str, str]) -> None:
        self.looks = 0
        self.looked, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self._cpus = cpus

    def cpusets(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:
        self.looks += 1
        self._loop.call_soon_threadsafe(self.looked.set)
        return {each: CPUSet.parse(self._cpus[each]) for each in cgroups if each in self._cpus}


async def test_nobody_is_looked_at_while_nobody_has_cpus_of_its_own(tmp_path: Path) -> None:
    async with served(tmp_path, cgroups=SimulatedCgroups) as it:
        counting = Counting({})
        overlaps = Overlaps(it.daemon.node, it.daemon.parts.enforcement, counting, Clock())
        await it.start(pod("guest"))
        await overlaps.look()
        assert counting.looks == 0
        await it.start(pod("own", "1"))
        await overlaps.look()
        assert counting.looks == 1


async def test_what_is_seen_while_others_write_is_looked_at_again_before_it_counts(
    tmp_path: Path,
) -> None:
    events: list[Event] = []
    async with served(tmp_path, cgroups=SimulatedCgroups, record=events.append) as it:
        await it.start(pod("guest"), pod("own", "1"))
        guest, _ = it.runtime.containers
        parts, decided = it.daemon.parts, guest.cpus
        await parts.writing.settle()
        it.daemon._update_queue.confirmations.sent.clear()
        before = len(guest.updated_by)
        stale = Counting({guest.message.linux.cgroups_path: "0-15"})
        overlaps = Overlaps(it.daemon.node, parts.enforcement, stale, Clock())
        async with parts.writing.lock:  # a batch is being written
            looking = asyncio.create_task(overlaps.look())
            await stale.looked.wait()
        await looking
        assert (events, guest.cpus, len(guest.updated_by)) == ([], decided, before)
        # and what is still there then is put right and reported
        assert guest.in_force is not None
        guest.in_force.cpu.cpus = "0-15"
        await overlaps.look()
        assert [each.reason for each in events] == ["ExclusiveCPUsShared"]
        assert guest.cpus == decided
