"""What runs under the daemon now, in the documents that pictures are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nri_policy.control.client import Client
from nri_policy.picture.scene import Document, Scene, scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The hardware, the pools made of it and who holds what."""

    machine: Document
    pools: Sequence[Document]
    containers: Mapping[str, Document]

    @property
    def placed(self) -> list[str]:
        """The names of those that hold something."""
        return [name for name, fields in self.containers.items() if fields["pool"] is not None]

    def scene(self, before: Scene | None = None) -> Scene:
        """Return the picture of it; with *before*, marks stay and changes are said."""
        return scene(self.machine, self.pools, self.containers, before)


def running(client: Client) -> Running:
    """Ask the daemon for all of it."""
    return Running(**client.machine(), containers=client.containers())
