"""The settings that count while the service runs, and what is said of them.

Owns where they come from: the ClusterPlacement object `default`, where the cluster has one, else
the file, else the defaults; and Kueue's topologies whose names they do not have. What is wrong is
said, in the object's status too, and the settings before stay in force.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from nri_policy.cluster.objects.document import DocumentError, Object
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.settings import (
    KIND,
    ClusterSettings,
    Topology,
    load,
    read_settings,
    read_topology,
    with_topologies,
)
from nri_policy.cluster.service.kinds import PLACEMENT, PLACEMENTS
from nri_policy.foundation.backoff import backoff
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.units import format_time
from nri_policy.kube.client import Client
from nri_policy.kube.errors import APIError
from nri_policy.settings import SettingsError
from nri_policy.settings_sources.settings_file import WatchedFile

log = logging.getLogger(__name__)

_BACKOFF = partial(backoff, least=1.0, most=60.0)


class PlacementFile(WatchedFile):
    """The settings of the cluster side in one file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "configs/cluster/settings.yaml is a sample")

    def load(self) -> ClusterSettings:
        """Return the settings that are in the file now; SettingsError, also where there is none."""
        return load(self.read(), str(self.path))


class LiveSettings:
    """Settings that may change at any time."""

    def __init__(
        self,
        given: ClusterSettings,
        file: PlacementFile | None,
        changed: Callable[[ClusterSettings], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Begin with these settings, from a *file* or not; pass later ones to *changed*."""
        self.current = given
        self.rejected = ""  # why the latest settings are not in force; empty: they are
        self._given = given
        self._file = file
        self._changed = changed
        self._clock = clock
        self._object: ClusterSettings | None = None
        self._objects: set[str] = set()
        self._topologies: dict[str, Topology] = {}
        self._status: Object = {}  # to be written to the object
        self._written: Object = {}

    def reload(self) -> None:
        """Read the file again, if there is one."""
        if self._file is None:
            return
        try:
            self._given = self._file.load()
        except SettingsError as error:
            self._reject(str(error))
        else:
            self._settle("the file")

    def set_object(self, item: Object) -> None:
        """Take in what a ClusterPlacement is; raises DocumentError."""
        metadata = item.get("metadata") or {}
        name = metadata.get("name", "")
        self._objects.add(name)
        if name != PLACEMENT:
            raise DocumentError("metadata.name", f"only the {KIND} {PLACEMENT} counts")
        error = ""
        try:
            self._object = read_settings(item)
        except DocumentError as wrong:
            error = str(wrong)
            self._reject(f"{KIND} {name}: {error}")
        else:
            self._settle(f"{KIND} {name}")
        self._say(metadata.get("generation"), error, item.get("status") or {})

    def remove_object(self, name: str) -> None:
        """Take in that a ClusterPlacement went."""
        self._objects.discard(name)
        if name == PLACEMENT:
            self._object = None
            self._status = self._written = {}
            self._settle("the file")

    def objects(self) -> Collection[Key]:
        """Return the ClusterPlacements that are known."""
        return [("", name) for name in self._objects]

    def set_topology(self, item: Object) -> None:
        """Take in what a topology of Kueue's is; raises DocumentError."""
        topology = read_topology(item, "")
        self._topologies[topology.name] = topology
        self._settle(f"Topology {topology.name}")

    def remove_topology(self, name: str) -> None:
        """Take in that a topology of Kueue's went."""
        self._topologies.pop(name, None)
        self._settle(f"Topology {name}")

    def topologies(self) -> Collection[Key]:
        """Return the topologies of Kueue's that are known."""
        return [("", name) for name in self._topologies]

    async def write(self, client: Client, leading: Callable[[], bool]) -> None:
        """Keep the object's status up to date while we lead, until cancelled."""
        failures = 0
        while True:
            status = self._status
            if status != self._written and leading():
                try:
                    await client.merge(PLACEMENTS, PLACEMENT, {"status": status}, part="status")
                except APIError as error:
                    failures += 1
                    if failures == 1:
                        log.warning("status-not-written", extra={"reason": str(error)})
                else:
                    self._written, failures = status, 0
            await self._clock.sleep(_BACKOFF(failures))

    def _settle(self, origin: str) -> None:
        """Have what counts now in force."""
        self.rejected = ""
        settings = with_topologies(self._object or self._given, self._topologies.values())
        if settings != self.current:
            self.current = settings
            self._changed(settings)
            log.info("settings-changed", extra={"origin": origin})

    def _reject(self, reason: str) -> None:
        if reason != self.rejected:
            log.warning(
                "settings-rejected", extra={"reason": reason, "text": "the ones before stay"}
            )
        self.rejected = reason

    def _say(self, generation: object, error: str, found: Object) -> None:
        """Write the outcome to the status of the object, unless the status has it."""
        status = {
            "status": "Failure" if error else "Success",
            "generation": generation,
            "errors": error or None,
        }
        if all(found.get(key) == value for key, value in status.items()):
            self._status = self._written = found
        elif any(self._status.get(key) != value for key, value in status.items()):
            self._status = status | {"timestamp": format_time(self._clock.date())}
