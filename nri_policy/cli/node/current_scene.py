"""What runs under the daemon now, as the documents that pictures are made of."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from nri_policy.control.client import ControlClient
from nri_policy.picture.scene import Scene, scene
from nri_policy.report import Containers, MachineReport, PoolReport


class CurrentScene(Struct, frozen=True, kw_only=True):
    """The hardware, its pools, and what each container holds."""

    machine: MachineReport
    pools: Sequence[PoolReport]
    containers: Containers

    @property
    def placed(self) -> list[str]:
        """The names of those that hold something."""
        return [name for name, each in self.containers.items() if each.pool is not None]

    def scene(self, before: Scene | None = None) -> Scene:
        """Return the picture of it; with *before*, marks stay and changes are said."""
        return scene(self.machine, self.pools, self.containers, before)


def read_current_scene(client: ControlClient, *, usage: bool = False) -> CurrentScene:
    """Ask the daemon for all of it, with the CPU time that containers have used if wanted."""
    topology, containers = client.machine(), client.containers(usage=usage)
    return CurrentScene(machine=topology.machine, pools=topology.pools, containers=containers)
