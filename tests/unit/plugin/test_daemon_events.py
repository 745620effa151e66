"""What happens to a node without the runtime."""

from __future__ import annotations

from pathlib import Path

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.locality import Locator
from nri_policy.hardware.machine import Machine
from nri_policy.plugin.sources import Sources
from tests.support import nodes
from tests.support.daemon import served
from tests.support.rooms import with_cpus


class Located(Locator):
    """Notes which machines it was told of."""

    def __init__(self, root: Path, machine: Machine) -> None:
        self.machines: list[Machine] = []
        super().__init__(root, machine)

    def renew(self, machine: Machine) -> None:
        self.machines.append(machine)
        super().renew(machine)


async def test_who_locates_devices_hears_of_another_machine_and_of_nothing_else(
    tmp_path: Path,
) -> None:
    machine = nodes.machine()
    locator = Located(tmp_path, machine)
    async with served(tmp_path, sources=Sources(locator=locator)) as node:
        events, known = node.daemon.events, node.daemon.node.view.layout.machine
        few = with_cpus(known, known.online - CPUSet([15]))
        assert await events.reconfigure(machine=few, instead_of=known)
        assert locator.machines == [machine, few]
        assert not await events.reconfigure(machine=known, instead_of=known)
        assert await events.reconfigure(settings=nodes.settings())
        assert locator.machines == [machine, few]
