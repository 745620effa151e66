"""Which cpusets are looked at, and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from nri_policy.clock import Clock
from nri_policy.cpuset import CPUSet
from nri_policy.plugin.overlaps import Overlaps
from nri_policy.simulation.cgroups import SimulatedCgroups
from tests.support.daemon import pod, served


class Counting:
    """Counts how often anybody was looked at."""

    def __init__(self, cpus: Mapping[str, str]) -> None:
        self.looks = 0
        self._cpus = cpus

    def cpusets(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:
        self.looks += 1
        return {each: CPUSet.parse(self._cpus[each]) for each in cgroups if each in self._cpus}


async def test_nobody_is_looked_at_while_nobody_has_cpus_of_its_own(tmp_path: Path) -> None:
    async with served(tmp_path, cgroups=SimulatedCgroups) as it:
        counting = Counting({})
        overlaps = Overlaps(it.daemon.node, it.daemon.plugin.enforcement, counting, Clock())
        await it.start(pod("guest"))
        await overlaps.look()
        assert counting.looks == 0
        await it.start(pod("own", "1"))
        await overlaps.look()
        assert counting.looks == 1
